//! The files of a model, and a packed one made for the time of a benchmark.

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
    /// The files of the model at `path`.
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

    /// What is given to `alight run`.
    pub fn first(&self) -> &Path {
        &self.all[0].0
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &File)> {
        self.all.iter().map(|(path, file)| (path.as_path(), file))
    }
}

/// A packed file for the time of a benchmark. It never has a name (but while it is written, where the
/// filesystem cannot do without: see [`alight_pages::Replacement`]), so nothing of it is left, however the
/// benchmark ends.
#[derive(Debug)]
pub struct Packed {
    /// What leads to it as long as this lives, also for other processes of this user.
    pub path: PathBuf,
    _file: File,
}

/// Packs the model in its own folder, so that it lies on the same disk; or where temporary files go, if
/// that folder cannot be written. `None` after Ctrl-C.
pub fn pack(model: &Path, interrupt: Interrupt) -> anyhow::Result<Option<Packed>> {
    let beside = match model.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut failed = None;
    for folder in [beside, std::env::temp_dir()] {
        // Nothing is there of that name, and nothing gets it.
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
            // What is wrong beside the model is of more interest than what is elsewhere.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed.map_or_else(|| anyhow!("there is no folder for it"), |error| anyhow!(error)))
}
