//! `--pack`: a packed file that is created once, kept, and used from then on.
//!
//! It has the modification time of the model that it was made from, and records that model's size. It is used while both match: a
//! model that was replaced is packed again. Any other file of this name next to the model may belong to the user and is left alone,
//! also if it appears while the model is packed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use alight_convert::{ConvertError, Options, is_packed_from};
use alight_pages::ReplaceError;
use anyhow::{Context, anyhow};
use rustix::fs::{Access, access};

use super::{speed, with_progress};
use crate::outcome::{Outcome, Stop, chain};
use crate::source::{self, packed_name};
use crate::{folders, inspect, say};

/// The option to keep a packed file.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct KeepArgs {
    /// Pack the model once, beside it or in alight/packed in $XDG_CACHE_HOME or ~/.cache, and use the packed file from then on: as
    /// large as the model, the same bits, faster
    #[arg(long)]
    pack: bool,
}

impl KeepArgs {
    /// Returns true if a packed file is to be kept.
    pub fn is_on(self) -> bool {
        self.pack
    }

    /// Returns the file to run: the model, or its packed file. If that cannot be kept, it is the model, and a note is printed.
    pub fn file(self, model: &Path) -> Outcome<PathBuf> {
        if !self.pack {
            return Ok(model.to_owned());
        }
        let (shards, is_packed) = inspect::shards_and_layout(model)?;
        if is_packed {
            return Ok(model.to_owned());
        }
        match kept(model, &shards) {
            Err(Stop::Failed(why)) => {
                say::note(&format!("the model is used as it is: packing failed: {}", chain(&why)));
                Ok(model.to_owned())
            }
            kept => kept,
        }
    }
}

/// Returns the packed file of a model, which consists of the files `shards` and is not packed itself.
fn kept(model: &Path, shards: &[PathBuf]) -> Outcome<PathBuf> {
    let first = shards.first().map_or(model, |first| first.as_path());
    let made = newest(shards).with_context(|| format!("'{}'", model.display()))?;
    // An unreadable file does not match.
    let fits = |place: &Path| {
        time(place).is_ok_and(|time| time == made) && is_packed_from(place, shards).unwrap_or(false)
    };
    let beside = first.with_file_name(packed_name(first));
    let stored = in_cache(first).with_context(|| format!("'{}'", model.display()))?;
    // In the cache of a hub, the model is a link, and files written there belong to the hub.
    let is_link = fs::symlink_metadata(first).is_ok_and(|found| found.is_symlink());
    for place in [Some(&beside), stored.as_ref()].into_iter().flatten() {
        if fits(place) {
            return Ok(place.clone());
        }
    }
    let folder = beside.parent().filter(|folder| !folder.as_os_str().is_empty());
    let writable = access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK).is_ok();
    let taken = || beside.symlink_metadata().is_ok();
    // Another process may pack the same model at the same time.
    if writable && !taken() && !is_link && (make(model, &beside, made, false)? || fits(&beside)) {
        return Ok(beside);
    }
    let Some(stored) = stored else {
        let why = "there is no place for a packed file: the model's folder cannot be written to, and there is no cache folder \
                   (XDG_CACHE_HOME, HOME)";
        return Err(anyhow!(why).into());
    };
    if taken() {
        say::note(&format!(
            "'{}' was not made of the model as it is now, and is left alone",
            beside.display()
        ));
    }
    // In the cache folder, only an older file of the same model is replaced.
    make(model, &stored, made, true)?;
    Ok(stored)
}

/// Packs the model into a file at `place`; returns true if it did. Without `replace`, it does not if a file exists there by then.
fn make(model: &Path, place: &Path, made: SystemTime, replace: bool) -> Outcome<bool> {
    let why = || format!("'{}'", place.display());
    let new = NewFolders::of(place).with_context(why)?;
    let packed = with_progress("packing", |on_progress| {
        alight_convert::pack(model, place, Options { force: replace }, on_progress)
    });
    let packed = match packed {
        Ok(packed) => packed,
        Err(Stop::Failed(error)) if !replace && is_taken(&error) => return Ok(false),
        Err(Stop::Failed(error)) => return Err(Stop::Failed(source::explain(model, error))),
        Err(other) => return Err(other),
    };
    let file = File::options().write(true).open(place).with_context(why)?;
    file.set_modified(made).with_context(why)?;
    new.keep();
    say::note(&format!(
        "packed once into '{}': {}; it is used from now on, and may be deleted",
        place.display(),
        speed(&packed.volume)
    ));
    Ok(true)
}

/// Returns true if the new file was not created because its name is in use.
fn is_taken(error: &anyhow::Error) -> bool {
    use ReplaceError::{Appeared, DanglingLink, Exists, NotAFile};
    let Some(ConvertError::Replace(error)) = error.downcast_ref() else { return false };
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

/// Returns the folder of packed files that are not next to their models.
fn cache_folder() -> Option<PathBuf> {
    folders::of_user(folders::CACHE).map(|cache| cache.join("packed"))
}

/// Returns its path if it is not next to the model: the path of the model, under the cache folder.
fn in_cache(first: &Path) -> io::Result<Option<PathBuf>> {
    let Some(cache) = cache_folder() else { return Ok(None) };
    let named = std::path::absolute(first)?;
    let inside = named.strip_prefix("/").unwrap_or(&named).with_file_name(packed_name(first));
    Ok(Some(cache.join(inside)))
}

/// Returns the packed files in the cache folder, and that folder, if there is one. Links are not followed.
pub fn all_in_cache() -> io::Result<Option<(PathBuf, Vec<PathBuf>)>> {
    let Some(cache) = cache_folder().filter(|folder| folder.is_dir()) else { return Ok(None) };
    let (mut files, mut folders) = (Vec::new(), vec![cache.clone()]);
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
    Ok(Some((cache, files)))
}

/// Removes a packed file of the cache folder, and the folders that are empty without it.
pub fn remove_from_cache(cache: &Path, file: &Path) -> io::Result<()> {
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
        assert!(!make(&at("m.gguf"), &place, made, false).unwrap());
        assert_eq!(fs::read(&place).unwrap(), b"somebody's");
        fs::remove_file(&place).unwrap();
        assert!(make(&at("m.gguf"), &place, made, false).unwrap());
        assert_eq!(time(&place).unwrap(), made);
        assert_eq!(kept(&at("m.gguf"), &[at("m.gguf")]).unwrap(), place);
    }
}
