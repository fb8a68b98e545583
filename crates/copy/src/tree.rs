//! Several sources, and folders with everything in them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_pages::{Folder, ReplaceError};

use crate::file::{self, Before, place, special};
use crate::{Copied, CopyError, Event, OnEvent, Options, Summary, dest, keep};

/// A file, wherever it has a name.
type Identity = (u64, u64);

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

struct Tree<'a, 'f> {
    options: &'a Options,
    on_event: &'a mut OnEvent<'f>,
    summary: Summary,
    before: Before,
    /// Files with several names: where the first of them went.
    linked: HashMap<Identity, PathBuf>,
    /// Files that were made from several sources.
    made: Option<HashSet<Identity>>,
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
    let mut tree = Tree {
        options,
        on_event,
        summary: Summary::default(),
        before,
        linked: HashMap::new(),
        made: (sources.len() > 1).then(HashSet::new),
    };
    for source in sources {
        let to = match into_folder {
            true => match dest::name_in_folder(source) {
                Some(name) => dest.join(name),
                None => dest.into(),
            },
            false => dest.into(),
        };
        let copied = tree.source(source, &to);
        tree.tell(copied)?;
    }
    Ok(tree.summary)
}

/// Bytes that will be copied, about: holes are known only when a file is opened.
fn count(path: &Path, recursive: bool) -> u64 {
    let found = match recursive {
        true => fs::symlink_metadata(path),
        false => fs::metadata(path),
    };
    match found {
        Ok(found) if found.is_file() => found.len().min(found.blocks().saturating_mul(512)),
        Ok(found) if found.is_dir() && recursive => {
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.map(|entry| count(&entry.path(), true)).sum()
        }
        _ => 0,
    }
}

impl Tree<'_, '_> {
    /// What was asked for by name: without -r a link is followed.
    fn source(&mut self, from: &Path, to: &Path) -> Result<(), CopyError> {
        let open = |source| CopyError::Open { path: from.into(), source };
        let follow = !self.options.recursive || from.as_os_str().as_bytes().ends_with(b"/");
        let found = match follow {
            true => fs::metadata(from),
            false => fs::symlink_metadata(from),
        };
        let found = found.map_err(open)?;
        if found.is_dir() {
            if !self.options.recursive {
                return Err(CopyError::Folder { path: from.into() });
            }
            dest::not_into_itself(from, &found, to)?;
        }
        self.before.in_folder = false;
        self.any(from, &found, to)?;
        // (A file has seen to that itself.)
        match found.is_file() {
            true => Ok(()),
            false => Folder::open(dest::parent(to))
                .and_then(|folder| folder.sync())
                .map_err(|source| CopyError::Write { path: to.into(), source }),
        }
    }

    fn any(&mut self, from: &Path, found: &Metadata, to: &Path) -> Result<(), CopyError> {
        if let Some(kind) = special(found) {
            return Err(CopyError::Special { path: from.into(), kind });
        }
        if found.is_dir() {
            return self.folder(from, found, to);
        }
        let there = fs::symlink_metadata(to);
        if self.options.no_clobber && there.is_ok() {
            self.summary.skipped += 1;
            return self.event(Event::Skipped(to));
        }
        if let (Some(made), Ok(there)) = (&self.made, &there)
            && made.contains(&identity(there))
        {
            return Err(CopyError::Twice { from: from.into(), to: to.into() });
        }
        let copied = match self.file_or_link(from, found, to) {
            Err(CopyError::Replace(ReplaceError::Appeared { .. })) => {
                self.summary.skipped += 1;
                return self.event(Event::Skipped(to));
            }
            copied => copied?,
        };
        if let (Some(made), Ok(there)) = (&mut self.made, fs::symlink_metadata(to)) {
            made.insert(identity(&there));
        }
        self.summary.files += 1;
        if let Some(report) = &copied.report {
            self.summary.bytes += report.bytes;
            self.before.done += report.bytes;
        }
        self.event(Event::Copied(&copied))
    }

    fn file_or_link(
        &mut self,
        from: &Path,
        found: &Metadata,
        to: &Path,
    ) -> Result<Copied, CopyError> {
        let began = Instant::now();
        let link = |not_kept| Copied {
            from: from.into(),
            to: to.into(),
            report: None,
            verified: None,
            not_kept,
            took: began.elapsed(),
        };
        if found.is_symlink() {
            let open = |source| CopyError::Open { path: from.into(), source };
            let target = fs::read_link(from).map_err(open)?;
            if let Ok(there) = fs::symlink_metadata(to)
                && dest::same(found, &there)
            {
                return Err(CopyError::SameFile { from: from.into(), to: to.into() });
            }
            place(to, |at| std::os::unix::fs::symlink(&target, at))?;
            return Ok(link(keep::keep_of_link(found, to)));
        }
        let several = self.options.recursive && found.nlink() > 1;
        if several && let Some(first) = self.linked.get(&identity(found)) {
            let made = place(to, |at| fs::hard_link(first, at));
            // A filesystem without such names gets a file of its own.
            if made.is_ok() {
                return Ok(link(Vec::new()));
            }
        }
        let copied = file::copy((from, found), to, self.options, self.before, self.on_event)?;
        if several {
            self.linked.insert(identity(found), to.into());
        }
        Ok(copied)
    }

    /// A folder and everything in it. What is in the way of one thing does not stop the others.
    fn folder(&mut self, from: &Path, found: &Metadata, to: &Path) -> Result<(), CopyError> {
        let open = |source| CopyError::Open { path: from.into(), source };
        let write = |source| CopyError::Write { path: to.into(), source };
        let entries = fs::read_dir(from).map_err(open)?;
        match fs::metadata(to) {
            Ok(there) if there.is_dir() => {}
            Ok(_) => {
                let problem = "is not a folder, and cannot be replaced by one";
                return Err(CopyError::Destination { path: to.into(), problem });
            }
            // Nobody else's business until it is complete.
            Err(_) => DirBuilder::new().mode(0o700).create(to).map_err(write)?,
        }
        self.before.in_folder = true;
        let mut outcome = Ok(());
        for entry in entries {
            let copied = entry.map_err(open).and_then(|entry| {
                let path = entry.path();
                let open = |source| CopyError::Open { path: path.clone(), source };
                let found = fs::symlink_metadata(&path).map_err(open)?;
                let to = to.join(entry.file_name());
                // Through such a link a tree could grow into itself.
                if found.is_dir() && fs::symlink_metadata(&to).is_ok_and(|f| f.is_symlink()) {
                    let problem = "is a link, and cannot be replaced by a folder";
                    return Err(CopyError::Destination { path: to, problem });
                }
                self.any(&path, &found, &to)
            });
            outcome = self.tell(copied);
            if outcome.is_err() {
                break;
            }
        }
        // However it ended, the folder does not stay closed.
        let source = File::open(from).map_err(open)?;
        let folder = File::open(to).map_err(write)?;
        let not_kept = keep::keep(&source, found, &folder);
        let synced = Folder::open(to).and_then(|folder| folder.sync()).map_err(write);
        outcome.and(synced)?;
        self.summary.folders += 1;
        if not_kept.iter().any(|lost| !lost.is_expected()) {
            let (from, to) = (from.into(), to.into());
            let took = std::time::Duration::ZERO;
            let copied = Copied { from, to, report: None, verified: None, not_kept, took };
            self.event(Event::Copied(&copied))?;
        }
        Ok(())
    }

    /// Tells what went wrong, and goes on; but not when it was stopped.
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
