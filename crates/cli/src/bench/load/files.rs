//! The files of a model, and a packed one for the duration of a benchmark.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_convert::ConvertError;
use alight_pages::{open_file, path_of};
use anyhow::anyhow;

use crate::interrupt::Interrupt;

/// All files of a model.
#[derive(Debug)]
pub struct Files {
    /// Open, with their paths; at least one.
    all: Vec<(PathBuf, File)>,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Files {
    /// Returns the files of the model at `path`.
    pub fn of(path: &Path) -> anyhow::Result<Files> {
        let mut all = Vec::new();
        let mut bytes = 0;
        for path in crate::inspect::shards(path)? {
            let (file, metadata) = open_file(&path).map_err(|e| anyhow!(e))?;
            bytes += metadata.len();
            all.push((path, file));
        }
        Ok(Files { all, bytes })
    }

    /// Returns the path to give to `alight run`.
    pub fn first(&self) -> &Path {
        &self.all[0].0
    }

    /// Returns each file with its path.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.all.iter().map(|(path, file)| (path.as_path(), file))
    }
}

/// A packed file for the duration of a benchmark. It never has a name (except while it is written, if the filesystem requires
/// one: see [`alight_pages::Replacement`]), so nothing of it is left, however the benchmark ends.
#[derive(Debug)]
pub struct Packed {
    /// A path to it while this value lives, also for other processes of this user.
    pub path: PathBuf,
    _file: File,
}

/// Packs the model in its own folder, so that it is on the same disk; or in the folder for
/// temporary files, if that folder is not writable. `None` after Ctrl-C.
pub fn pack(model: &Path, interrupt: Interrupt) -> anyhow::Result<Option<Packed>> {
    let beside = match model.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut failed = None;
    for folder in [beside, std::env::temp_dir()] {
        // No file has this name, and none gets it.
        let place = folder.join(format!(".alight-bench-{}.gguf", std::process::id()));
        let packed = alight_convert::pack_unnamed(model, &place, &mut |_| {
            if interrupt.pressed() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match packed {
            Ok((file, _)) => {
                let path = path_of(&file)
                    .ok_or_else(|| anyhow!("this system has no path to a file without a name"))?;
                return Ok(Some(Packed { path, _file: file }));
            }
            Err(ConvertError::Stopped) => return Ok(None),
            // The error in the model's folder is more useful than one elsewhere.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.map_or_else(|| anyhow!("there is no folder for it"), |error| anyhow!(error)))
}
