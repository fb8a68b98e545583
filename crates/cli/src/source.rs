//! What a path is: which format, and which files belong to it. Told by the first bytes of the files.

use std::path::{Path, PathBuf};

pub use alight_convert::format_of;
use alight_files::file_name;
use alight_formats::Format;
use alight_formats::split::one_model;
use anyhow::anyhow;

use crate::open;

/// Most files of a folder that are looked into.
const FILES: usize = 4096;

/// What was found at a path.
#[derive(Debug)]
pub struct Recognised {
    /// The format that its reader is chosen by.
    pub format: Format,
    /// The file that was given; of a folder, all its files of this format, sorted. At least one.
    pub paths: Vec<PathBuf>,
}

/// Formats by how much a folder is about them: what stands before wins. PyTorch's zip files come
/// last but for pickles: besides models, they are the optimiser's state and the training's arguments.
const ORDER: [Format; 8] = [
    Format::SafeTensorsIndex,
    Format::SafeTensors,
    Format::Gguf,
    Format::LegacyGgml,
    Format::TorchZip,
    Format::TorchPickle,
    Format::LegacyLora,
    Format::LegacySession,
];

/// Finds out what is at `path`. A file that is not recognised is left to the reader of GGUF, which
/// says what it found instead.
pub fn find(path: &Path) -> anyhow::Result<Recognised> {
    if path.is_dir() {
        return in_folder(path);
    }
    open::check_path(path)?;
    let format = format_of(path).unwrap_or(Format::Gguf);
    Ok(Recognised { format, paths: vec![path.to_owned()] })
}

fn in_folder(folder: &Path) -> anyhow::Result<Recognised> {
    let files = recognised(folder)?;
    let Some(format) = in_order(&files) else {
        return Err(anyhow!("'{}' is a folder without a model in it", folder.display()));
    };
    let of_format = files.into_iter().filter(|(of, _)| *of == format);
    let paths: Vec<PathBuf> = of_format.map(|(_, path)| path).collect();
    let names: Vec<String> = paths.iter().map(|path| file_name(path)).collect();
    if format == Format::Gguf && paths.len() > 1 && !one_model(&names) {
        return Err(anyhow!(
            "'{}' is a folder of several models: give one of its .gguf files, such as '{}'",
            folder.display(),
            paths[0].display()
        ));
    }
    Ok(Recognised { format, paths })
}

/// What a folder with these files is about.
pub fn in_order(files: &[(Format, PathBuf)]) -> Option<Format> {
    ORDER.into_iter().find(|wanted| files.iter().any(|(format, _)| format == wanted))
}

/// The files of a folder that are recognised, sorted by name.
pub fn recognised(folder: &Path) -> anyhow::Result<Vec<(Format, PathBuf)>> {
    let entries = folder
        .read_dir()
        .map_err(|error| anyhow!(error).context(format!("'{}'", folder.display())))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).take(FILES).collect();
    paths.sort();
    Ok(paths.into_iter().filter_map(|path| Some((format_of(&path)?, path))).collect())
}
