//! The cache in the format of Hugging Face's own tools, shared with them.
//!
//! ```text
//! models--USER--REPO/refs/main                        the commit that this branch was at when it was last fetched
//! models--USER--REPO/snapshots/COMMIT/PATH            a relative link to …
//! models--USER--REPO/blobs/ETAG                       … the bytes, stored once for all names and commits
//! models--USER--REPO/blobs/ETAG.alight.incomplete     an incomplete file
//! models--USER--REPO/blobs/ETAG.alight.packed         what was packed of the bytes, and is kept in their place
//! models--USER--REPO/snapshots/COMMIT/NAME.packed.gguf  a relative link to it, where NAME.gguf would be
//! .locks/models--USER--REPO/ETAG.lock                 locked (flock) by the process that fetches it
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use alight_pages::{MapError, New, Replacement, file_kind, open_unfollowed};

use crate::api::is_hex;
use crate::error::{OTHER_NAME, TAKEN_NAME};
use crate::name::is_path;
use crate::select::{self, Model};
use crate::{HubError, Name};

/// Maximum number of files of a snapshot, and of a cache, that are looked at.
const FILES: usize = 100_000;
/// Maximum depth of nested folders.
const DEPTH: usize = 16;
/// The suffix of the name of an incomplete file.
const INCOMPLETE: &str = ".alight.incomplete";
/// The suffix of the name of bytes that were packed, after the etag of what they were packed from.
const PACKED: &str = ".alight.packed";
/// The ends of the names of a file and of its packed form.
const GGUF: &str = ".gguf";
const PACKED_GGUF: &str = ".packed.gguf";
/// Maximum number of bytes of a file that holds a commit.
const MAX_REF_BYTES: u64 = 256;
/// Tells backup programs that all of the cache can be fetched again (bford.info/cachedir).
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file is a cache directory tag; see https://bford.info/cachedir/\n";

/// The folder of a repository.
#[derive(Clone, Debug)]
pub(crate) struct RepoFolder {
    cache: PathBuf,
    name: String,
}

/// A model that is in the cache.
#[derive(Clone, Debug)]
pub struct Cached {
    /// `USER/REPO`.
    pub repo: String,
    /// Its name after `USER/REPO:`.
    pub tag: String,
    /// The commit.
    pub commit: String,
    /// The branches and tags that were at this commit.
    pub revisions: Vec<String>,
    /// Its files.
    pub paths: Vec<PathBuf>,
    /// Bytes of all its files.
    pub bytes: u64,
    /// The time it was fetched.
    pub modified: Option<SystemTime>,
    /// The first of its parts that is missing.
    pub missing: Option<String>,
    /// Of a model that is kept packed, the path of the file that it was packed from, whose name it has.
    pub original: Option<PathBuf>,
}

/// The result of a removal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The models.
    pub models: Vec<String>,
    /// Bytes that were freed.
    pub bytes: u64,
    /// Bytes that were not freed, since other repositories may share them.
    pub shared: u64,
}

impl RepoFolder {
    pub fn new(cache: &Path, repo: &str) -> RepoFolder {
        let name = format!("models--{}", repo.replace('/', "--"));
        RepoFolder { cache: cache.to_owned(), name }
    }

    pub fn path(&self) -> PathBuf {
        self.cache.join(&self.name)
    }

    /// The path of the bytes of a file with this etag.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(etag)
    }

    pub fn incomplete(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(format!("{etag}{INCOMPLETE}"))
    }

    /// The path of the packed form of the bytes with this etag.
    pub fn packed(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}{PACKED}"))
    }

    /// The path of a file of a commit.
    pub fn file(&self, commit: &str, path: &str) -> PathBuf {
        self.path().join("snapshots").join(commit).join(path)
    }

    /// Creates the folders into which bytes are written.
    pub fn create(&self) -> Result<(), HubError> {
        let blobs = self.path().join("blobs");
        fs::create_dir_all(&blobs).map_err(HubError::cache(&blobs))?;
        let tag = self.cache.join("CACHEDIR.TAG");
        // If it cannot be written, the cost is space in a backup.
        let _ = File::create_new(&tag)
            .and_then(|mut file| io::Write::write_all(&mut file, TAG.as_bytes()));
        Ok(())
    }

    /// Takes the lock of a file, or reports that another process holds it; there is no lock if the filesystem does not support
    /// them.
    pub fn try_lock(&self, etag: &str) -> Result<Lock, HubError> {
        let path = self.cache.join(".locks").join(&self.name).join(format!("{etag}.lock"));
        let folder = path.parent().unwrap_or(&self.cache);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let (file, _) = open_unfollowed(&path, &options).map_err(HubError::opening)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Lock::Others),
            Err(TryLockError::Error(_)) => return Ok(Lock::None),
        }
        // The previous holder may have removed the file: the lock is then on an unlinked file.
        let same = |there: fs::Metadata| {
            file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        };
        match fs::symlink_metadata(&path).is_ok_and(same) {
            true => Ok(Lock::Ours(file)),
            false => Ok(Lock::Others),
        }
    }

    /// Makes the complete file at `incomplete` the blob with this etag.
    pub fn complete(&self, incomplete: &Path, etag: &str) -> Result<(), HubError> {
        let blob = self.blob(etag);
        fs::rename(incomplete, &blob).map_err(HubError::cache(&blob))?;
        synced(&self.path().join("blobs"))
    }

    /// Links a file of a commit to the bytes with this etag.
    pub fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), HubError> {
        let file = self.file(commit, path);
        let folder = file.parent().unwrap_or(&self.cache);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let up = "../".repeat(2 + path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&file).is_ok_and(|there| there == target) {
            return Ok(());
        }
        // Created next to it and renamed, so that the file exists at every moment.
        let beside = folder.join(format!(".{}.alight", std::process::id()));
        let _ = fs::remove_file(&beside);
        let blob = self.blob(etag);
        let done = match symlink(&target, &beside) {
            Ok(()) => fs::rename(&beside, &file),
            // On a filesystem without links the bytes are stored here, as with Hugging Face's tools.
            Err(error) if is_unsupported(&error) => fs::rename(&blob, &file),
            Err(error) => Err(error),
        };
        done.map_err(HubError::cache(&file))?;
        synced(folder)
    }

    /// Records the commit that a branch is at.
    pub fn set_revision(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.path().join("refs").join(revision);
        if read_short(&path)?.as_deref() == Some(commit) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.cache);
        fs::create_dir_all(folder).map_err(HubError::cache(folder))?;
        let len = commit.len() as u64;
        let new = New { len, replace: true, inputs: &[] };
        let new = Replacement::create(&path, new).map_err(HubError::writing)?;
        io::Write::write_all(&mut new.file(), commit.as_bytes()).map_err(HubError::cache(&path))?;
        new.commit().map_err(HubError::writing)
    }

    /// The recorded commit of a branch, or `revision` itself if it is a commit.
    ///
    /// # Errors
    /// The record is not a regular file.
    pub fn commit(&self, revision: &str) -> Result<Option<String>, HubError> {
        if is_hex(revision, 40) {
            return Ok(Some(revision.to_owned()));
        }
        if !is_path(revision) {
            return Ok(None);
        }
        let commit = read_short(&self.path().join("refs").join(revision))?;
        Ok(commit.map(|commit| commit.trim().to_owned()).filter(|commit| is_hex(commit, 40)))
    }

    /// The metadata of the regular file at `path` in the cache, if there is one; links within the cache are followed.
    ///
    /// # Errors
    /// It is not a regular file, or a link that leads out of the cache.
    pub fn regular(&self, path: &Path) -> Result<Option<fs::Metadata>, HubError> {
        let found = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found.map_err(HubError::cache(path))?,
        };
        let unexpected = |found| HubError::Unexpected { path: path.to_owned(), found };
        match Inside::of(self).leads_out(path) {
            Some(target) => {
                let target = target.display();
                Err(unexpected(format!("link to {target}, which is not in the cache")))
            }
            None if !found.is_file() => Err(unexpected(file_kind(&found).to_string())),
            None => Ok(Some(found)),
        }
    }

    /// The models of a snapshot.
    pub fn models(&self, commit: &str) -> Vec<Model> {
        let folder = self.path().join("snapshots").join(commit);
        let files = Inside::of(self).files(&folder);
        // A file and its packed form are one.
        let original = |file: String| self.original(commit, &file).unwrap_or(file);
        let files: BTreeSet<String> = files.into_iter().map(original).collect();
        select::models(files.iter().map(|file| (file.as_str(), None)))
    }

    /// The file of which this file of a commit is the packed form.
    fn original(&self, commit: &str, file: &str) -> Option<String> {
        let stem = file.strip_suffix(PACKED_GGUF)?;
        is_packed(&self.file(commit, file)).then(|| format!("{stem}{GGUF}"))
    }

    /// The path of the packed form of a file of a commit, if it is there.
    fn packed_form(&self, commit: &str, file: &str) -> Option<PathBuf> {
        let path = self.file(commit, &packed_name(file)?);
        let found = is_packed(&path).then(|| self.regular(&path).ok()?);
        found.flatten().map(|_| path)
    }

    /// Links the packed form of a file to the packed bytes of this etag, and returns the path of the link.
    ///
    /// # Errors
    /// The system prevents it, or the repository has a file of that name.
    pub fn link_packed(&self, commit: &str, file: &str, etag: &str) -> Result<PathBuf, HubError> {
        let refused = |problem| HubError::NotPackable { file: file.to_owned(), problem };
        let packed = packed_name(file).ok_or_else(|| refused(OTHER_NAME))?;
        let path = self.file(commit, &packed);
        if is_taken(&path) {
            return Err(refused(TAKEN_NAME));
        }
        self.link(commit, &packed, &format!("{etag}{PACKED}"))?;
        Ok(path)
    }

    /// Removes the bytes with this etag and all links to them, after links to their packed form were made in the same places.
    ///
    /// # Errors
    /// The system prevents it, or a repository has a file of the name of a packed form.
    pub fn replace_by_packed(&self, etag: &str) -> Result<(), HubError> {
        let snapshots = self.path().join("snapshots");
        let mut removed = Removed::default();
        for commit in folders(&snapshots)? {
            for file in Inside::of(self).files(&snapshots.join(&commit)) {
                let path = self.file(&commit, &file);
                if linked(&path).is_some_and(|bytes| bytes == etag) {
                    self.link_packed(&commit, &file, etag)?;
                    removed.file(self, &path)?;
                }
            }
        }
        Ok(())
    }
}

/// The folders that links in a repository's folder may lead to. Each of them may itself be a link, since users move them to other disks.
struct Inside(Vec<PathBuf>);

impl Inside {
    fn of(repo: &RepoFolder) -> Inside {
        let own = repo.path();
        // `blobs` of the whole cache has the bytes that repositories share.
        let folders = [own.join("blobs"), own, repo.cache.join("blobs"), repo.cache.clone()];
        Inside(folders.iter().flat_map(fs::canonicalize).collect())
    }

    /// The target of a link that leads elsewhere.
    fn leads_out(&self, path: &Path) -> Option<PathBuf> {
        let target = path.is_symlink().then(|| fs::canonicalize(path).ok())??;
        let is_inside = self.0.iter().any(|folder| target.starts_with(folder));
        (!is_inside).then_some(target)
    }

    /// The regular files below a folder, by their paths in it. Links that lead nowhere or out of the cache are left out.
    fn files(&self, folder: &Path) -> Vec<String> {
        let mut files = Vec::new();
        self.files_below(folder, "", 0, &mut files);
        files
    }

    fn files_below(&self, folder: &Path, above: &str, depth: usize, files: &mut Vec<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if files.len() >= FILES || depth > DEPTH || name.starts_with('.') {
                continue;
            }
            let path = format!("{above}{name}");
            match fs::metadata(entry.path()) {
                Ok(meta) if meta.is_file() && self.leads_out(&entry.path()).is_none() => {
                    files.push(path);
                }
                // A link to a folder may lead back to it.
                Ok(meta) if meta.is_dir() && !entry.path().is_symlink() => {
                    self.files_below(&entry.path(), &format!("{path}/"), depth + 1, files);
                }
                _ => {}
            }
        }
    }
}

/// A lock on a file that is being fetched.
#[derive(Debug)]
pub(crate) enum Lock {
    /// This process holds it, until this is dropped.
    Ours(#[allow(dead_code)] File),
    /// Another process holds it.
    Others,
    /// The filesystem has no locks.
    None,
}

/// The model of this name, if it is in the cache. The choice is made among the cached models only.
pub(crate) fn find(cache: &Path, name: &Name) -> Result<Option<Cached>, HubError> {
    let folder = RepoFolder::new(cache, &name.repo);
    let Some(commit) = folder.commit(name.revision())? else { return Ok(None) };
    let models = folder.models(&commit);
    if models.is_empty() {
        return Ok(None);
    }
    match select::choose(&name.repo, &models, name.tag.as_deref()) {
        Ok(model) => Ok(Some(cached(&folder, &name.repo, &commit, model, vec![]))),
        Err(
            HubError::NoMatch { .. } | HubError::ShardMissing { .. } | HubError::NoModels { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The repositories that have a folder in the cache, as `USER/REPO`.
fn repositories(cache: &Path) -> Result<impl Iterator<Item = String>, HubError> {
    let repo = |folder: String| {
        let (user, repo) = folder.strip_prefix("models--")?.split_once("--")?;
        Some(format!("{user}/{repo}"))
    };
    Ok(folders(cache)?.into_iter().filter_map(repo))
}

/// All models that are in the cache, by name.
pub(crate) fn list(cache: &Path) -> Result<Vec<Cached>, HubError> {
    let mut all = Vec::new();
    for repo in repositories(cache)? {
        let Ok(name) = Name::parse(&repo) else { continue };
        let folder = RepoFolder::new(cache, &name.repo);
        let refs = Inside::of(&folder).files(&folder.path().join("refs"));
        let at = |name: &str| folder.commit(name).unwrap_or_default();
        let refs: Vec<(String, Option<String>)> =
            refs.into_iter().map(|name| (name.clone(), at(&name))).collect();
        for commit in folders(&folder.path().join("snapshots"))? {
            if !is_hex(&commit, 40) {
                continue;
            }
            let at = |(name, at): &(String, Option<String>)| {
                (at.as_ref() == Some(&commit)).then(|| name.clone())
            };
            let revisions: Vec<String> = refs.iter().filter_map(at).collect();
            let models = folder.models(&commit);
            all.extend(
                models.iter().map(|m| cached(&folder, &name.repo, &commit, m, revisions.clone())),
            );
        }
    }
    all.sort_by(|a, b| (&a.repo, &a.tag, &a.commit).cmp(&(&b.repo, &b.tag, &b.commit)));
    Ok(all)
}

/// Bytes left by interrupted pulls, by repository.
pub(crate) fn incomplete(cache: &Path) -> Result<Vec<(String, u64)>, HubError> {
    let mut all = Vec::new();
    for repo in repositories(cache)? {
        let repo_folder = RepoFolder::new(cache, &repo);
        let folder = repo_folder.path().join("blobs");
        let mut blobs = Inside::of(&repo_folder).files(&folder);
        blobs.retain(|name| name.ends_with(INCOMPLETE));
        // A file has holes where nothing has been received yet.
        let bytes =
            |name: &String| fs::metadata(folder.join(name)).map_or(0, |meta| meta.blocks() * 512);
        if !blobs.is_empty() {
            all.push((repo, blobs.iter().map(bytes).sum()));
        }
    }
    all.sort();
    Ok(all)
}

/// The error for a model that would have to be fetched while that is forbidden: it names the cached models of the repository.
pub(crate) fn not_there(cache: &Path, name: &Name) -> HubError {
    let all = list(cache).unwrap_or_default().into_iter();
    let mut there: Vec<String> = all
        .filter(|one| one.repo == name.repo)
        .map(|one| match one.missing {
            None => one.tag,
            Some(_) => format!("a part of {}", one.tag),
        })
        .collect();
    there.dedup();
    HubError::Offline { name: name.to_string(), cache: cache.to_owned(), there }
}

/// Removes a model in all commits, those of its bytes that no other file uses, and incomplete files; if the repository is empty
/// then, also its folder.
pub(crate) fn remove(cache: &Path, name: &Name, all: bool) -> Result<Removed, HubError> {
    let folder = RepoFolder::new(cache, &name.repo);
    let not_cached = || HubError::NotCached { name: name.to_string(), cache: cache.to_owned() };
    let there = list(cache)?;
    let mut there: Vec<Cached> = there
        .into_iter()
        .filter(|model| model.repo == name.repo)
        .filter(|model| {
            let at = |revision| folder.commit(revision).unwrap_or_default();
            name.revision.as_ref().is_none_or(|r| at(r).as_ref() == Some(&model.commit))
        })
        .collect();
    if there.is_empty() && !folder.path().join("blobs").is_dir() {
        return Err(not_cached());
    }
    if let Some(tag) = &name.tag {
        let is = |text: &str| text.eq_ignore_ascii_case(tag);
        there.retain(|model| {
            let mut paths = model.paths.iter().chain(&model.original);
            let named =
                paths.any(|path| path.ends_with(tag) || file_name(path).is_some_and(|n| is(&n)));
            is(&model.tag) || named
        });
        if there.is_empty() {
            return Err(not_cached());
        }
    } else if !all {
        let mut tags: Vec<String> = there.iter().map(|model| model.tag.clone()).collect();
        tags.dedup();
        if tags.len() > 1 {
            return Err(HubError::Several { repo: name.repo.clone(), exist: tags });
        }
    }
    let mut removed = Removed::default();
    for model in &there {
        removed.models.push(format!("{}:{}", model.repo, model.tag));
        // Another tool may have fetched what a packed file was made from.
        let original = model.original.iter().filter(|path| path.symlink_metadata().is_ok());
        for path in model.paths.iter().chain(original) {
            removed.file(&folder, path)?;
        }
    }
    removed.models.dedup();
    removed.leftovers(&folder, &there)?;
    Ok(removed)
}

impl Removed {
    /// Removes a file of a snapshot, and its bytes if no other file has them.
    fn file(&mut self, folder: &RepoFolder, path: &Path) -> Result<(), HubError> {
        let own = fs::symlink_metadata(path).map_err(HubError::cache(path))?;
        let blob = own.is_symlink().then(|| fs::read_link(path)).transpose();
        let blob = blob.map_err(HubError::cache(path))?;
        fs::remove_file(path).map_err(HubError::cache(path))?;
        let Some(etag) = blob.as_deref().and_then(file_name) else {
            self.bytes += own.len();
            return Ok(());
        };
        let blob = folder.blob(&etag);
        // Created by Hugging Face's tools: a link into the store that repositories share, which is theirs to clean up.
        let elsewhere = blob.is_symlink();
        if self.is_used(folder, &etag) {
            return Ok(());
        }
        let bytes = fs::metadata(&blob).map_or(0, |meta| meta.len());
        match fs::remove_file(&blob) {
            Ok(()) if elsewhere => self.shared += bytes,
            Ok(()) => self.bytes += bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(HubError::cache(&blob)(error)),
        }
        Ok(())
    }

    /// True if another file of the repository is a link to these bytes.
    fn is_used(&self, folder: &RepoFolder, etag: &str) -> bool {
        let snapshots = folder.path().join("snapshots");
        let mut files = Vec::new();
        for commit in folders(&snapshots).unwrap_or_default() {
            let of_commit = Inside::of(folder).files(&snapshots.join(&commit));
            files.extend(of_commit.into_iter().map(|file| snapshots.join(&commit).join(file)));
        }
        files.iter().any(|file| linked(file).is_some_and(|name| name == etag))
    }

    /// Removes incomplete files, folders that are empty now, and a repository without files.
    fn leftovers(&mut self, folder: &RepoFolder, models: &[Cached]) -> Result<(), HubError> {
        let blobs = folder.path().join("blobs");
        for entry in fs::read_dir(&blobs).into_iter().flatten().flatten() {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let is_unused = |_: &&str| !self.is_used(folder, &name);
            let packed = || name.strip_suffix(PACKED).filter(is_unused);
            let Some(etag) = name.strip_suffix(INCOMPLETE).or_else(packed) else { continue };
            // Another process is fetching it, or packs it.
            let Ok(Lock::Ours(_) | Lock::None) = folder.try_lock(etag) else { continue };
            let bytes = entry.metadata().map_or(0, |meta| meta.blocks() * 512);
            if fs::remove_file(entry.path()).is_ok() {
                self.bytes += bytes;
            }
        }
        for model in models {
            let mut paths = model.paths.iter();
            let snapshots = folder.path().join("snapshots");
            let mut above = paths.next().and_then(|path| path.parent());
            // Up to the first folder that is not empty.
            while let Some(path) =
                above.filter(|path| *path != snapshots && path.starts_with(&snapshots))
            {
                if fs::remove_dir(path).is_err() {
                    break;
                }
                above = path.parent();
            }
        }
        let is_empty = |name: &str| {
            fs::read_dir(folder.path().join(name)).map_or(true, |mut all| all.next().is_none())
        };
        if is_empty("snapshots") && is_empty("blobs") {
            let path = folder.path();
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(HubError::cache(&path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn cached(
    folder: &RepoFolder,
    repo: &str,
    commit: &str,
    model: &Model,
    revisions: Vec<String>,
) -> Cached {
    let mut paths: Vec<PathBuf> =
        model.files.iter().map(|file| folder.file(commit, file)).collect();
    let mut original = None;
    if let [file] = &model.files[..]
        && let Some(packed) = folder.packed_form(commit, file)
    {
        original = Some(std::mem::replace(&mut paths[0], packed));
    }
    let metadata: Vec<fs::Metadata> = paths.iter().flat_map(fs::metadata).collect();
    Cached {
        repo: repo.to_owned(),
        tag: model.tag().to_owned(),
        commit: commit.to_owned(),
        revisions,
        bytes: metadata.iter().map(fs::Metadata::len).sum(),
        modified: metadata.iter().filter_map(|meta| meta.modified().ok()).max(),
        paths,
        missing: model.missing.clone(),
        original,
    }
}

/// The name of the packed form of a file; `None` if the file's name does not end as it should.
pub(crate) fn packed_name(file: &str) -> Option<String> {
    Some(format!("{}{PACKED_GGUF}", file.strip_suffix(GGUF)?))
}

/// The name of the bytes that a file of a snapshot is a link to.
pub(crate) fn linked(path: &Path) -> Option<String> {
    fs::read_link(path).ok().as_deref().and_then(file_name)
}

/// The path of the packed form of the file at this path.
pub(crate) fn packed_path(path: &Path) -> Option<PathBuf> {
    Some(path.with_file_name(packed_name(&file_name(path)?)?))
}

/// True if a file of a snapshot is the packed form of another.
pub(crate) fn is_packed(path: &Path) -> bool {
    linked(path).is_some_and(|bytes| bytes.ends_with(PACKED))
}

/// True if the path of a packed form is that of another file, which the repository has.
pub(crate) fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && !is_packed(path)
}

/// The etag of bytes of this name, packed or not.
pub(crate) fn etag_of(bytes: &str) -> &str {
    bytes.strip_suffix(PACKED).unwrap_or(bytes)
}

/// The names of the folders in a folder; none if there is no such folder.
fn folders(path: &Path) -> Result<Vec<String>, HubError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(HubError::cache(path))?,
    };
    let entries = entries.flatten().filter(|entry| entry.path().is_dir()).take(FILES);
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// The last part of a path, if it is a name.
fn file_name(path: &Path) -> Option<String> {
    match path.components().next_back() {
        Some(Component::Normal(name)) => name.to_str().map(str::to_owned),
        _ => None,
    }
}

/// The text of a file that holds a commit, if there is one that can be read.
///
/// # Errors
/// It is not a regular file.
fn read_short(path: &Path) -> Result<Option<String>, HubError> {
    let file = match open_unfollowed(path, OpenOptions::new().read(true)) {
        Ok((file, _)) => file,
        Err(error @ MapError::NotAFile { .. }) => return Err(HubError::opening(error)),
        Err(_) => return Ok(None),
    };
    let mut text = String::new();
    Ok(file.take(MAX_REF_BYTES).read_to_string(&mut text).is_ok().then_some(text))
}

/// Syncs the names in a folder to disk.
fn synced(folder: &Path) -> Result<(), HubError> {
    let open = alight_pages::Folder::open(folder).and_then(|folder| folder.sync());
    open.map_err(HubError::cache(folder))
}

fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}
