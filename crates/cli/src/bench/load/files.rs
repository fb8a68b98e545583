//! The files of a model, and a packed one made for the time of a benchmark.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use alight_pages::open_file;
use anyhow::{Context, anyhow};

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

/// A packed file, removed with its folder when dropped.
#[derive(Debug)]
pub struct Packed {
    /// The file.
    pub file: PathBuf,
    folder: PathBuf,
}

impl Drop for Packed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Packs the model by `alight pack` into a new folder beside it, so that it lies on the same disk; or
/// where temporary files go, if that folder cannot be written.
pub fn pack(model: &Path) -> anyhow::Result<Packed> {
    let name = format!(".alight-bench-{}", std::process::id());
    let beside = match model.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let made = [beside, std::env::temp_dir()].into_iter().find_map(|at| {
        let folder = at.join(&name);
        fs::create_dir(&folder).is_ok().then_some(folder)
    });
    let folder = made.ok_or_else(|| anyhow!("no folder for it can be made"))?;
    let packed = Packed { file: folder.join("packed.gguf"), folder };
    let done = Command::new(std::env::current_exe().context("cannot find this program")?)
        .arg("pack")
        .arg(model)
        .arg("-o")
        .arg(&packed.file)
        .stdin(Stdio::null())
        .output()
        .context("cannot start `alight pack`")?;
    if !done.status.success() {
        return Err(anyhow!("`alight pack` failed: {}", super::child::complaint(&done.stderr)));
    }
    Ok(packed)
}
