//! What a path is: which format, and which files belong to it, by the first bytes of the files; and errors
//! that say what a file is and what to do next.

use std::io;
use std::path::{Path, PathBuf};

pub use alight_convert::format_of;
use alight_files::file_name;
use alight_formats::Format;
use alight_formats::split::one_model;
use anyhow::anyhow;

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
    check_path(path)?;
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

/// The file of a model: the path itself, or of a folder with one GGUF model in it that one's first file.
///
/// # Errors
/// There is none, or several.
pub fn model_file(path: &Path) -> anyhow::Result<PathBuf> {
    if path.is_dir() && recognised(path)?.iter().any(|(format, _)| *format == Format::Gguf) {
        let found = in_folder(path)?;
        if found.format == Format::Gguf {
            return Ok(found.paths.into_iter().next().unwrap_or_default());
        }
    }
    check_path(path)?;
    Ok(path.to_owned())
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

/// Finds what is wrong with a path before any reader of formats sees it.
pub fn check_path(path: &Path) -> anyhow::Result<()> {
    let named = path.display();
    match path.metadata() {
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound if path.is_symlink() => {
                anyhow!("'{named}' is a link to a file that does not exist")
            }
            io::ErrorKind::NotFound => {
                anyhow!(
                    "'{named}' does not exist: give the path of a .gguf file{}",
                    or_of_hub(path)
                )
            }
            io::ErrorKind::PermissionDenied => {
                anyhow!("'{named}': permission denied: check that you may read it")
            }
            _ => anyhow!(error).context(format!("'{named}'")),
        }),
        Ok(meta) if meta.is_dir() => Err(anyhow!("'{named}' is a folder: {}", offered_by(path))),
        Ok(meta) if !meta.is_file() => {
            Err(anyhow!("'{named}' is not a regular file, so it cannot be mapped"))
        }
        Ok(_) => Ok(()),
    }
}

/// What else a path could mean that does not exist: `user/repo:Q4_K_M`, or a part of the name of a model that was fetched.
fn or_of_hub(path: &Path) -> String {
    let text = path.to_str().unwrap_or_default();
    if text.ends_with(".gguf") {
        return String::new();
    }
    let called = match alight_hub::Name::parse(text) {
        Ok(_) => Some(text.to_owned()),
        Err(_) if text.contains('/') => None,
        Err(_) => crate::hub::fetched(text),
    };
    called.map_or_else(String::new, |name| format!(", or hf.co/{name} for a model of the hub"))
}

/// Replaces the error of a file that is another format than GGUF by one that says which.
pub fn explain(path: &Path, error: anyhow::Error) -> anyhow::Error {
    match format_of(path) {
        None | Some(Format::Gguf) => error,
        Some(other) => {
            anyhow!("'{}' is {}: {}", path.display(), other.describe(), what_to_do(other))
        }
    }
}

/// What there is to do with a file of a format that does not run.
fn what_to_do(format: Format) -> &'static str {
    match format {
        Format::LegacyLora | Format::LegacySession => {
            "it is no model, and alight has no use for it; give the path of a .gguf file"
        }
        Format::TorchPickle => {
            "alight converts newer PyTorch files, which are zip archives; load and save it once with \
             PyTorch 1.6 or later"
        }
        _ => "alight runs GGUF, and `alight convert … -o model.gguf` makes one of it",
    }
}

/// What a folder offers instead of itself.
fn offered_by(folder: &Path) -> String {
    let files = recognised(folder).unwrap_or_default();
    let of = |wanted: Format| files.iter().find(|(format, _)| *format == wanted);
    if let Some((_, first)) = of(Format::Gguf) {
        return format!("give one of its .gguf files, such as '{}'", first.display());
    }
    match in_order(&files) {
        Some(format) => format!("it holds {}: {}", format.describe(), what_to_do(format)),
        None => "give the path of a .gguf file".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let error = || check_path(dir.path()).unwrap_err().to_string();
        assert!(error().ends_with("give the path of a .gguf file"), "{}", error());
        // By content: the name does not matter.
        std::fs::write(dir.path().join("consolidated.00.pth"), "").unwrap();
        assert!(error().ends_with("give the path of a .gguf file"), "{}", error());
        std::fs::write(dir.path().join("consolidated.00.pth"), "PK\x03\x04").unwrap();
        assert!(error().contains("PyTorch") && error().contains("alight convert"), "{}", error());
        std::fs::write(dir.path().join("weights"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        assert!(error().contains("safetensors"), "{}", error());
        std::fs::write(dir.path().join("b.gguf"), "GGUF").unwrap();
        assert!(error().contains("b.gguf"), "{}", error());
    }
}
