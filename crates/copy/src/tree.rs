//! Several sources, and folders with all their contents.
//!
//! No link is followed below the named destination, and nothing that this run has created is replaced or descended into, on
//! whichever side and whichever process puts it there: see [`walk`](crate::walk).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use alight_pages::{Destination, Folder, Identity, ReplaceError, remove_acls};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use crate::file::{self, Before, Entry, special};
use crate::links::{self, Linked};
use crate::walk::{self, Level, Pair};
use crate::{Copied, CopyError, Event, OnEvent, Options, Summary, dest, keep};

struct Tree<'a, 'f> {
    options: &'a Options,
    on_event: &'a mut OnEvent<'f>,
    summary: Summary,
    before: Before,
    linked: Linked,
    /// All files and folders that this run has created.
    made: HashSet<Identity>,
}

/// The destination of a source.
enum To<'a> {
    /// Under this name in a folder.
    In(&'a Folder, &'a OsStr),
    /// The destination named by the user; a link there is followed.
    Named,
}

pub(crate) fn copy(
    sources: &[PathBuf],
    dest: &Path,
    options: &Options,
    on_event: &mut OnEvent<'_>,
) -> Result<Summary, CopyError> {
    let into_folder =
        !options.no_target_directory && fs::metadata(dest).is_ok_and(|found| found.is_dir());
    if sources.len() > 1 && !into_folder {
        let problem = match options.no_target_directory {
            true => "several files cannot have one name: -T takes one source",
            false => "is not a folder, which several files need to be copied into; make it first",
        };
        return Err(CopyError::Destination { path: dest.into(), problem });
    }
    let mut before = Before::default();
    if options.count {
        before.total = sources.iter().map(|source| count(source, options.recursive)).sum();
    }
    let (linked, made) = (Linked::default(), HashSet::new());
    let mut tree = Tree { options, on_event, summary: Summary::default(), before, linked, made };
    let write = |source| CopyError::Write { path: dest.into(), source };
    let folder = if into_folder { Some(Folder::open(dest).map_err(write)?) } else { None };
    for source in sources {
        let copied = match (&folder, dest::name_in_folder(source)) {
            (Some(folder), Some(name)) => {
                tree.source(source, &dest.join(name), &To::In(folder, name))
            }
            _ => tree.source(source, dest, &To::Named),
        };
        tree.tell(copied)?;
    }
    Ok(tree.summary)
}

/// Returns the approximate number of bytes to copy: holes are known only when a file is opened.
fn count(path: &Path, recursive: bool) -> u64 {
    let (mut bytes, mut left) = (0_u64, vec![path.to_path_buf()]);
    while let Some(path) = left.pop() {
        let found = match recursive {
            true => fs::symlink_metadata(&path),
            false => fs::metadata(&path),
        };
        match found {
            Ok(found) if found.is_file() => {
                bytes = bytes.saturating_add(found.len().min(found.blocks().saturating_mul(512)));
            }
            Ok(found) if found.is_dir() && recursive => {
                let entries = fs::read_dir(path).into_iter().flatten().flatten();
                left.extend(entries.map(|entry| entry.path()));
            }
            _ => {}
        }
    }
    bytes
}

impl Tree<'_, '_> {
    /// Copies a source that the user named: without -r a link is followed.
    fn source(&mut self, from: &Path, to: &Path, dest: &To<'_>) -> Result<(), CopyError> {
        let follow = !self.options.recursive || from.as_os_str().as_bytes().ends_with(b"/");
        let entry = Entry { folder: CWD, name: from.as_os_str(), path: from, follow };
        let found = entry.look()?;
        self.before.in_folder = false;
        if !found.is_dir() {
            let dest = match dest {
                To::In(folder, name) => (Destination::in_folder(folder, name, to), false),
                To::Named if found.is_symlink() => (Destination::unfollowed(to)?, true),
                To::Named => (Destination::of(to)?, true),
            };
            self.any(&entry, &found, &dest.0, dest.1)?;
            // (A file has already been synced.)
            return match found.is_file() {
                true => Ok(()),
                false => dest.0.folder().sync().map_err(|source| write(to, source)),
            };
        }
        if !self.options.recursive {
            return Err(CopyError::Folder { path: from.into() });
        }
        dest::not_into_itself(from, &found, to)?;
        let source = Folder::open(from).map_err(|source| open(from, source))?;
        let top = self.enter((source, from), &found, |tree| match dest {
            To::In(folder, name) => tree.folder_in(folder, name, to),
            To::Named => tree.folder_named(to),
        })?;
        self.walk(top, from, to)?;
        Folder::open(dest::parent(to))
            .and_then(|folder| folder.sync())
            .map_err(|source| write(to, source))
    }

    /// Copies the contents of a folder. A failure of one entry does not stop the others.
    fn walk(&mut self, top: Level, from: &Path, to: &Path) -> Result<(), CopyError> {
        let (mut from, mut to) = (from.to_path_buf(), to.to_path_buf());
        let mut stack = vec![top];
        let mut outcome = Ok(());
        while let Some(level) = stack.last_mut() {
            let next = if outcome.is_ok() { level.names.next() } else { None };
            let done = match (next, level.pair()) {
                (Some(name), Some(pair)) => {
                    self.before.in_folder = true;
                    from.push(&name);
                    to.push(&name);
                    match self.entry(&pair, &name, (&from, &to)) {
                        Ok(Some(below)) => {
                            walk::down(&mut stack, below);
                            continue;
                        }
                        done => done.map(drop),
                    }
                }
                // However it ended, the folder's permissions and times are set.
                (_, pair) => {
                    // If its folders are lost, that error has been reported.
                    let done = match &pair {
                        Some(pair) => self.leave(level, pair, (&from, &to)),
                        None => Ok(()),
                    };
                    stack.pop();
                    if !walk::up(&mut stack, pair) {
                        let moved = Err(CopyError::Moved { path: dest::parent(&from).into() });
                        outcome = outcome.and(self.tell(moved));
                    }
                    done
                }
            };
            if !stack.is_empty() {
                from.pop();
                to.pop();
            }
            outcome = outcome.and(self.tell(done));
        }
        outcome
    }

    /// Copies an entry of a folder; a folder is entered.
    fn entry(
        &mut self,
        pair: &Pair,
        name: &OsStr,
        (from, to): (&Path, &Path),
    ) -> Result<Option<Level>, CopyError> {
        let entry = Entry { folder: pair.source.as_fd(), name, path: from, follow: false };
        let found = entry.look()?;
        if found.is_dir() {
            let source = pair.source.open_in(name).map_err(|source| open(from, source))?;
            let dest = |tree: &mut Self| tree.folder_in(&pair.dest, name, to);
            let mut level = self.enter((source, from), &found, dest)?;
            level.name = name.into();
            return Ok(Some(level));
        }
        self.any(&entry, &found, &Destination::in_folder(&pair.dest, name, to), false)?;
        Ok(None)
    }

    /// Copies anything except a folder. `named` is true if the destination is the caller's own.
    fn any(
        &mut self,
        entry: &Entry<'_>,
        found: &Metadata,
        dest: &Destination,
        named: bool,
    ) -> Result<(), CopyError> {
        let (from, to) = (entry.path, dest.path());
        if let Some(kind) = special(found) {
            return Err(CopyError::Special { path: from.into(), kind });
        }
        let there = dest.look()?;
        if self.options.no_clobber && there.is_some() {
            return self.skip(to);
        }
        if there.is_some_and(|there| self.made.contains(&Identity::from(&there))) {
            return Err(CopyError::Twice { from: from.into(), to: to.into() });
        }
        dest::check(dest, (from, found), named)?;
        let copied = match self.file_or_link(entry, found, dest) {
            Err(CopyError::Replace(
                ReplaceError::Appeared { .. }
                | ReplaceError::Exists { .. }
                | ReplaceError::DanglingLink { .. },
            )) => return self.skip(to),
            copied => copied?,
        };
        if let Ok(Some(there)) = dest.look() {
            self.made.insert(Identity::from(&there));
        }
        self.summary.files += 1;
        if let Some(report) = &copied.report {
            self.summary.bytes += report.bytes;
            self.before.done += report.bytes;
        }
        self.event(Event::Copied(&copied))
    }

    fn skip(&mut self, to: &Path) -> Result<(), CopyError> {
        self.summary.skipped += 1;
        self.event(Event::Skipped(to))
    }

    fn file_or_link(
        &mut self,
        entry: &Entry<'_>,
        found: &Metadata,
        dest: &Destination,
    ) -> Result<Copied, CopyError> {
        let began = Instant::now();
        let replace = !self.options.no_clobber;
        let link = |not_kept| Copied {
            from: entry.path.into(),
            to: dest.path().into(),
            report: None,
            verified: None,
            not_kept,
            took: began.elapsed(),
        };
        if found.is_symlink() {
            return Ok(link(links::symbolic(entry, found, dest, replace)?));
        }
        let several = self.options.recursive && found.nlink() > 1;
        // On a filesystem without hard links, each name gets its own file.
        if several && self.linked.link(found, dest, replace) {
            return Ok(link(Vec::new()));
        }
        let copied = file::copy((entry, found), dest, self.options, self.before, self.on_event)?;
        if several {
            self.linked.add(found, dest);
        }
        Ok(copied)
    }

    /// Opens both sides of a folder that was found; its names are read before anything is created.
    fn enter(
        &mut self,
        (source, from): (Folder, &Path),
        found: &Metadata,
        dest: impl FnOnce(&mut Self) -> Result<Folder, CopyError>,
    ) -> Result<Level, CopyError> {
        let cannot = |source| open(from, source);
        let identity = source.identity().map_err(cannot)?;
        if identity != Identity::from(found) {
            return Err(CopyError::Changed { path: from.into() });
        }
        if self.made.contains(&identity) {
            return Err(CopyError::IntoItself { from: from.into(), to: from.into() });
        }
        let names = walk::names(&source).map_err(cannot)?;
        let pair = Pair { source, dest: dest(self)? };
        Level::new(OsString::new(), found.clone(), names, pair).map_err(cannot)
    }

    /// Returns the folder `name` in a folder of the destination, new or existing; never through a link.
    fn folder_in(&mut self, above: &Folder, name: &OsStr, to: &Path) -> Result<Folder, CopyError> {
        let cannot = |source| write(to, source);
        // Only its owner may open it until it is complete.
        match rustix::fs::mkdirat(above, name, Mode::RWXU) {
            Ok(()) => {
                let folder = above.open_in(name).map_err(cannot)?;
                remove_acls(&folder, true).map_err(cannot)?;
                self.made.insert(folder.identity().map_err(cannot)?);
                Ok(folder)
            }
            Err(Errno::EXIST) => above.open_in(name).map_err(|source| {
                let link = above.look(name).is_ok_and(|found| {
                    found.is_some_and(|found| {
                        rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink()
                    })
                });
                match source.kind() {
                    // Through such a link a tree could grow into itself, or into any other.
                    _ if link => no_folder(to, "is a link, and cannot be replaced by a folder"),
                    io::ErrorKind::NotADirectory => {
                        no_folder(to, "is not a folder, and cannot be replaced by one")
                    }
                    _ => write(to, source),
                }
            }),
            Err(error) => Err(cannot(error.into())),
        }
    }

    /// Returns the folder that the user named, new or existing.
    fn folder_named(&mut self, to: &Path) -> Result<Folder, CopyError> {
        match Folder::open(to) {
            Ok(folder) => Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Without a trailing '/'.
                let dest = Destination::unfollowed(to.components().as_path())?;
                self.folder_in(dest.folder(), dest.name(), to)
            }
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(no_folder(to, "is not a folder, and cannot be replaced by one"))
            }
            Err(error) => Err(write(to, error)),
        }
    }

    /// Sets the metadata of a folder that has all its entries.
    fn leave(
        &mut self,
        level: &Level,
        pair: &Pair,
        (from, to): (&Path, &Path),
    ) -> Result<(), CopyError> {
        let file = |folder: &Folder| folder.as_fd().try_clone_to_owned().map(File::from);
        let source = file(&pair.source).map_err(|source| open(from, source))?;
        let folder = file(&pair.dest).map_err(|source| write(to, source))?;
        let not_kept = keep::keep(&source, &level.was, &folder);
        pair.dest.sync().map_err(|source| write(to, source))?;
        self.summary.folders += 1;
        if not_kept.iter().any(|lost| !lost.is_expected()) {
            let (from, to, took) = (from.into(), to.into(), Duration::ZERO);
            let copied = Copied { from, to, report: None, verified: None, not_kept, took };
            self.event(Event::Copied(&copied))?;
        }
        Ok(())
    }

    /// Reports an error and continues, except when the work was stopped.
    fn tell(&mut self, outcome: Result<(), CopyError>) -> Result<(), CopyError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(CopyError::Stopped) => Err(CopyError::Stopped),
            Err(error) => {
                self.summary.failed += 1;
                self.event(Event::Failed(&error))
            }
        }
    }

    fn event(&mut self, event: Event<'_>) -> Result<(), CopyError> {
        match (self.on_event)(event).is_break() {
            true => Err(CopyError::Stopped),
            false => Ok(()),
        }
    }
}

fn open(path: &Path, source: io::Error) -> CopyError {
    CopyError::Open { path: path.into(), source }
}

fn write(path: &Path, source: io::Error) -> CopyError {
    CopyError::Write { path: path.into(), source }
}

fn no_folder(path: &Path, problem: &'static str) -> CopyError {
    CopyError::Destination { path: path.into(), problem }
}
