//! A packed file that is made of a model once, kept, and used from then on.
//!
//! It has the modification time of the model that it was made from, and records that model's size. It is used while both match: a
//! model that was replaced is packed again. Any other file of this name next to the model may belong to the user and is left alone,
//! also if it appears while the model is packed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use alight_files::packed_name;
use alight_pages::ReplaceError;
use rustix::fs::{Access, access};

use crate::pack::{is_packed_from, pack};
use crate::{ConvertError, OnProgress, Options, Volume};

/// The packed file of a model.
#[derive(Clone, Debug)]
pub struct PackedOnce {
    /// The file.
    pub path: PathBuf,
    /// Bytes and time, if it was made now.
    pub made: Option<Volume>,
    /// A file that has the name of the packed one, next to the model, and was not made of the model as it is now. It is as it was.
    pub left_alone: Option<PathBuf>,
}

/// Returns the packed file of a model, which consists of the files `shards` and is not packed itself. It is made now, unless it was
/// before: next to the model, or in the folder `cache` where that is not possible.
///
/// # Errors
/// The model cannot be packed, or there is no place for the packed file. The model can still be used as it is.
pub fn pack_once(
    model: &Path,
    shards: &[PathBuf],
    cache: Option<&Path>,
    on_progress: &mut OnProgress<'_>,
) -> Result<PackedOnce, ConvertError> {
    let first = shards.first().map_or(model, |first| first.as_path());
    let unreadable = |source| ConvertError::Read { path: model.into(), at: 0, source };
    let made = newest(shards).map_err(unreadable)?;
    // An unreadable file does not match.
    let fits = |place: &Path| {
        time(place).is_ok_and(|time| time == made) && is_packed_from(place, shards).unwrap_or(false)
    };
    let adjacent = first.with_file_name(packed_name(first));
    let stored = cache.map(|cache| in_cache(cache, first)).transpose().map_err(unreadable)?;
    // In the cache of a hub, the model is a link, and files written there belong to the hub.
    let is_link = fs::symlink_metadata(first).is_ok_and(|found| found.is_symlink());
    let found = |path: &Path, made| PackedOnce { path: path.to_owned(), made, left_alone: None };
    for place in [Some(&adjacent), stored.as_ref()].into_iter().flatten() {
        if fits(place) {
            return Ok(found(place, None));
        }
    }
    let folder = adjacent.parent().filter(|folder| !folder.as_os_str().is_empty());
    let writable = access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok();
    let taken = || adjacent.symlink_metadata().is_ok();
    if writable && !taken() && !is_link {
        // Another process may pack the same model at the same time.
        match make(model, &adjacent, made, false, on_progress)? {
            Some(volume) => return Ok(found(&adjacent, Some(volume))),
            None if fits(&adjacent) => return Ok(found(&adjacent, None)),
            None => {}
        }
    }
    let Some(stored) = stored else { return Err(ConvertError::NoPlace { path: model.into() }) };
    let left_alone = taken().then_some(adjacent);
    // In the cache folder, only an older file of the same model is replaced.
    let volume = make(model, &stored, made, true, on_progress)?;
    Ok(PackedOnce { path: stored, made: volume, left_alone })
}

/// Packs the model into a file at `place`, if it is to be new and there is none by then.
fn make(
    model: &Path,
    place: &Path,
    made: SystemTime,
    replace: bool,
    on_progress: &mut OnProgress<'_>,
) -> Result<Option<Volume>, ConvertError> {
    let failed = |source| ConvertError::Write { path: place.into(), source };
    let new = NewFolders::of(place).map_err(failed)?;
    let packed =
        match pack(model, place, Options { force: replace, ..Options::default() }, on_progress) {
            Err(error) if !replace && is_taken(&error) => return Ok(None),
            packed => packed?,
        };
    let file = File::options().write(true).open(place).map_err(failed)?;
    file.set_modified(made).map_err(failed)?;
    new.keep();
    Ok(Some(packed.volume))
}

/// Returns true if the new file was not created because its name is in use.
fn is_taken(error: &ConvertError) -> bool {
    use ReplaceError::{Appeared, DanglingLink, Exists, NotAFile};
    let ConvertError::Replace(error) = error else { return false };
    matches!(error, Appeared { .. } | DanglingLink { .. } | Exists { .. } | NotAFile { .. })
}

/// Folders that were created for a file. They are removed again if they stay empty.
struct NewFolders(Vec<PathBuf>);

impl NewFolders {
    /// Creates the missing folders for the file at `place`.
    fn of(place: &Path) -> io::Result<NewFolders> {
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
        let above = folder.into_iter().flat_map(Path::ancestors);
        let missing = above.take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        // The innermost folder comes first.
        let new = NewFolders(missing.map(Path::to_owned).collect());
        folder.map_or(Ok(()), fs::create_dir_all)?;
        Ok(new)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // A folder that is not empty stays.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Returns its path if it is not next to the model: the path of the model, under the folder `cache`.
fn in_cache(cache: &Path, first: &Path) -> io::Result<PathBuf> {
    let named = std::path::absolute(first)?;
    let inside = named.strip_prefix("/").unwrap_or(&named).with_file_name(packed_name(first));
    Ok(cache.join(inside))
}

/// Returns the packed files in the folder `cache`; none if there is no such folder. Links are not followed.
///
/// # Errors
/// A folder cannot be read.
pub fn all_packed(cache: &Path) -> io::Result<Vec<PathBuf>> {
    if !cache.is_dir() {
        return Ok(vec![]);
    }
    let (mut files, mut folders) = (Vec::new(), vec![cache.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (kind, entry) = (entry.file_type()?, entry.path());
            if kind.is_dir() {
                folders.push(entry);
            } else if kind.is_file() && entry.extension().is_some_and(|end| end == "gguf") {
                files.push(entry);
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Removes a packed file of the folder `cache`, and the folders that are empty without it.
///
/// # Errors
/// The system denies it.
pub fn remove_packed(cache: &Path, file: &Path) -> io::Result<()> {
    fs::remove_file(file)?;
    let above = file.ancestors().skip(1).take_while(|folder| *folder != cache);
    // A folder that is not empty stays, and so do those above it.
    for folder in above {
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

fn time(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

/// Returns the time at which the files of a model were last changed.
fn newest(shards: &[PathBuf]) -> io::Result<SystemTime> {
    let times = shards.iter().map(|shard| time(shard));
    let times = times.collect::<io::Result<Vec<_>>>()?;
    Ok(times.into_iter().max().unwrap_or(SystemTime::UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use alight_formats::GgmlType;
    use alight_formats::gguf::write::Builder;

    use super::*;

    /// Writes a model of `len` numbers.
    fn write(path: &Path, len: u64) {
        let mut file = Builder::new();
        file.str("general.architecture", "llama");
        file.tensor("output_norm.weight", GgmlType::F32, &[len]).unwrap();
        fs::write(path, file.file(|_, bytes| bytes.fill(0))).unwrap();
    }

    #[test]
    fn what_appears_beside_a_model_while_it_is_packed_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        write(&at("m.gguf"), 64);
        let place = at("m.packed.gguf");
        // The file appeared after the check.
        fs::write(&place, "somebody's").unwrap();
        let made = time(&at("m.gguf")).unwrap();
        let make = || make(&at("m.gguf"), &place, made, false, &mut |_| ControlFlow::Continue(()));
        assert!(make().unwrap().is_none());
        assert_eq!(fs::read(&place).unwrap(), b"somebody's");
        fs::remove_file(&place).unwrap();
        assert!(make().unwrap().is_some());
        assert_eq!(time(&place).unwrap(), made);
        let again = pack_once(&at("m.gguf"), &[at("m.gguf")], None, &mut |_| {
            panic!("it is packed already")
        });
        assert_eq!(again.unwrap().path, place);
    }
}
