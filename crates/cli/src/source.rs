//! Recognises paths: the format, and the files that belong to it, by the first bytes of the files; and errors that describe a
//! file and the next step.

use std::io;
use std::path::{Path, PathBuf};

use alight_convert::ConvertError;
pub use alight_convert::format_of;
use alight_files::{FilesError, file_name, packed_name};
use alight_formats::Format;
use alight_formats::adapter::AdapterFile;
use alight_formats::gguf::GgufError;
use alight_formats::split::ShardName;
use alight_model::ModelError;
use alight_pages::MapError;
use anyhow::anyhow;

use crate::outcome::Stop;

/// Maximum number of files of a folder that are examined.
const FILES: usize = 4096;

/// The files recognised at a path.
#[derive(Debug)]
pub struct Recognised {
    /// The format, which determines the reader.
    pub format: Format,
    /// The given file; for a folder, all its files of this format, sorted; for a GGUF model, its first file. At least one.
    pub paths: Vec<PathBuf>,
}

/// Formats in the order in which they determine the purpose of a folder: the first one wins. PyTorch's zip files come last except
/// for pickles: besides models, they are the optimiser's state and the training's arguments.
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

/// Recognises the file or folder at `path`. An unrecognised file is left to the reader of GGUF,
/// which reports its contents.
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
    let Some(format) = in_order(&files) else { return Err(no_model(folder)) };
    let of_format = files.into_iter().filter(|(of, _)| *of == format);
    let mut paths: Vec<PathBuf> = of_format.map(|(_, path)| path).collect();
    if format == Format::Gguf {
        paths = models_of(paths);
        if paths.len() > 1 {
            return Err(anyhow!(
                "'{}' is a folder of several models: give one of its .gguf files, such as '{}'",
                folder.display(),
                paths[0].display()
            ));
        }
    }
    Ok(Recognised { format, paths })
}

fn no_model(folder: &Path) -> anyhow::Error {
    let folder = folder.display();
    anyhow!("'{folder}' is a folder without a model in it: give the path of a .gguf file")
}

/// Returns the first file of each model among these files of a folder, sorted. A packed file next to the model that it was made from
/// is not a model by itself: `--pack` finds it.
fn models_of(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let packed: Vec<String> = paths.iter().map(|path| packed_name(path)).collect();
    let mut split = Vec::new();
    let is_first = |path: &PathBuf| {
        let name = file_name(path);
        if packed.contains(&name) {
            return false;
        }
        let model = ShardName::parse(&name).map(|shard| (shard.prefix.to_owned(), shard.count));
        let Some(model) = model else { return true };
        let is_new = !split.contains(&model);
        split.extend(is_new.then_some(model));
        is_new
    };
    paths.into_iter().filter(is_first).collect()
}

/// Returns the first file of each model in a folder, sorted by name. The name of a file decides whether it is a model, so the caller can
/// report a damaged one.
///
/// # Errors
/// The folder cannot be read, or contains no model.
pub fn models_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_gguf = |path: &PathBuf| path.extension().is_some_and(|end| end == "gguf");
    let files = files_in(folder)?.into_iter().filter(|path| is_gguf(path) && path.is_file());
    let mut models = models_of(files.collect());
    // (A split model whose first shard is missing cannot be served.)
    models.retain(|path| ShardName::parse(&file_name(path)).is_none_or(|shard| shard.no == 0));
    match models.is_empty() {
        true => Err(check_path(folder).err().unwrap_or_else(|| no_model(folder))),
        false => Ok(models),
    }
}

/// Returns the file of a model: the path itself, or for a folder with one GGUF model, that model's first file.
///
/// # Errors
/// There is no model, or several.
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

/// Returns the format that determines the purpose of a folder with these files.
pub fn in_order(files: &[(Format, PathBuf)]) -> Option<Format> {
    ORDER.into_iter().find(|wanted| files.iter().any(|(format, _)| format == wanted))
}

/// Returns the recognised files of a folder, sorted by name.
pub fn recognised(folder: &Path) -> anyhow::Result<Vec<(Format, PathBuf)>> {
    Ok(files_in(folder)?.into_iter().filter_map(|path| Some((format_of(&path)?, path))).collect())
}

/// Returns the entries of a folder, sorted by name.
fn files_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = folder
        .read_dir()
        .map_err(|error| anyhow!(error).context(format!("'{}'", folder.display())))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).take(FILES).collect();
    paths.sort();
    Ok(paths)
}

/// Checks a path for errors before any reader of formats opens it.
pub fn check_path(path: &Path) -> anyhow::Result<()> {
    let named = path.display();
    match path.metadata() {
        Err(error) => Err(match error.kind() {
            io::ErrorKind::NotFound if path.is_symlink() => {
                anyhow!("'{named}' is a link to a file that does not exist")
            }
            io::ErrorKind::NotFound => anyhow!("'{named}' {}", instead_of_missing(path)),
            io::ErrorKind::PermissionDenied => {
                anyhow!("'{named}': permission denied: check that you may read it")
            }
            _ => anyhow!(error).context(format!("'{named}'")),
        }),
        Ok(meta) if meta.is_dir() => Err(offered_by(path)),
        Ok(meta) if !meta.is_file() => {
            Err(anyhow!("'{named}' is not a regular file, so it cannot be mapped"))
        }
        Ok(_) => Ok(()),
    }
}

/// Returns the message for a path that does not exist. It could mean `user/repo:Q4_K_M`, or a part of the name of a fetched model,
/// or a model's name in Ollama's library (`llama3.2:1b`).
fn instead_of_missing(path: &Path) -> String {
    const MISSING: &str = "does not exist: give the path of a .gguf file";
    let text = path.to_str().unwrap_or_default();
    if text.is_empty() || text.ends_with(".gguf") {
        return MISSING.to_owned();
    }
    match alight_hub::Name::parse(text) {
        Ok(_) => format!("{MISSING}, or hf.co/{text} for a model of the hub"),
        Err(_) if text.contains('/') => MISSING.to_owned(),
        Err(_) => {
            "does not exist, and is no part of the name of a model that was fetched: give the path of a .gguf \
             file, or hf.co/USER/REPO for a model of the hub; `alight list` shows those that were fetched"
                .to_owned()
        }
    }
}

/// Replaces the error of a file in another format than GGUF by one that names the format, and adds the next step to that of a file
/// that is no whole GGUF file.
pub fn explain(path: &Path, error: anyhow::Error) -> anyhow::Error {
    match format_of(path) {
        Some(Format::Gguf) if is_adapter(path) => {
            let named = path.display();
            anyhow!("'{named}' is an adapter: give the model that it changes, and --lora '{named}'")
        }
        None | Some(Format::Gguf) => with_next_step(error),
        Some(other) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let next = what_to_do(other, folder.unwrap_or(Path::new(".")));
            anyhow!("'{}' is {}: {next}", path.display(), other.describe())
        }
    }
}

/// Returns true if the file at `path` is a LoRA adapter.
fn is_adapter(path: &Path) -> bool {
    let Ok(maps) = alight_files::open(path) else { return false };
    let copies = alight_files::copies(&maps);
    alight_files::headers(&maps, &copies)
        .is_ok_and(|headers| headers.files.first().is_some_and(AdapterFile::is_adapter))
}

/// Adds the next step to the error of a file that is not, or not wholly, what it should be.
pub fn with_next_step(error: anyhow::Error) -> anyhow::Error {
    match next_step(&error) {
        Some(next) => anyhow!("{error}: {next}"),
        None => error,
    }
}

/// As [`explain`], for the end of a command; an end that is no failure stays what it is.
pub fn explain_stop(path: &Path, stop: Stop) -> Stop {
    match stop {
        Stop::Failed(error) => Stop::Failed(explain(path, error)),
        other => other,
    }
}

/// Returns what to do about a file that is not, or not wholly, what it should be.
fn next_step(error: &anyhow::Error) -> Option<&'static str> {
    const AGAIN: &str = "fetch or copy it again";
    let of_model = error.downcast_ref::<ModelError>();
    let of_conversion = error.downcast_ref::<ConvertError>();
    let files = match (of_model, of_conversion) {
        (Some(ModelError::Map(MapError::Empty { .. })), _)
        | (_, Some(ConvertError::Map(MapError::Empty { .. }))) => return Some(AGAIN),
        (Some(ModelError::Files(files)), _) => &**files,
        (_, Some(ConvertError::Files(files))) => files,
        (None, None) => error.downcast_ref::<FilesError>()?,
        _ => return None,
    };
    match files {
        FilesError::Map(MapError::Empty { .. }) => Some(AGAIN),
        FilesError::Header { source, .. } => match source {
            GgufError::BadMagic { .. } => Some(
                "give the path of a .gguf file; `alight convert` makes one of other programs' models",
            ),
            GgufError::Truncated { .. } | GgufError::Count { .. } | GgufError::PastEnd { .. } => {
                Some(AGAIN)
            }
            _ => None,
        },
        _ => None,
    }
}

/// Returns advice for a file of a format that does not run, which is in this folder.
fn what_to_do(format: Format, folder: &Path) -> String {
    let has = |name: &str| folder.join(name).is_file();
    let what = match format {
        Format::LegacyLora | Format::LegacySession => {
            "it is no model, and alight has no use for it; give the path of a .gguf file"
        }
        Format::TorchPickle => {
            "alight converts newer PyTorch files, which are zip archives; load and save it once with \
             PyTorch 1.6 or later"
        }
        // Its weights are described in a separate file.
        Format::SafeTensors | Format::SafeTensorsIndex | Format::TorchZip
            if !has("config.json") && !has("params.json") =>
        {
            return format!(
                "alight runs GGUF, and `alight convert` makes one of a whole folder: there is no config.json \
                 (Hugging Face's) and no params.json (Meta's) in '{}', so the rest of the model is missing",
                folder.display()
            );
        }
        _ => "alight runs GGUF, and `alight convert … -o model.gguf` makes one of it",
    };
    what.to_owned()
}

/// Returns the error for a folder that is not a model, with the file to use instead.
fn offered_by(folder: &Path) -> anyhow::Error {
    let files = recognised(folder).unwrap_or_default();
    let of = |wanted: Format| files.iter().find(|(format, _)| *format == wanted);
    let named = folder.display();
    if let Some((_, first)) = of(Format::Gguf) {
        let first = first.display();
        return anyhow!("'{named}' is a folder: give one of its .gguf files, such as '{first}'");
    }
    let Some(format) = in_order(&files) else { return no_model(folder) };
    let (what, next) = (format.describe(), what_to_do(format, folder));
    anyhow!("'{named}' is a folder: it holds {what}: {next}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_names_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let error = || check_path(dir.path()).unwrap_err().to_string();
        assert!(error().ends_with("give the path of a .gguf file"), "{}", error());
        // By content: the name is irrelevant.
        std::fs::write(dir.path().join("consolidated.00.pth"), "").unwrap();
        assert!(error().ends_with("give the path of a .gguf file"), "{}", error());
        std::fs::write(dir.path().join("consolidated.00.pth"), "PK\x03\x04").unwrap();
        assert!(error().contains("PyTorch") && error().contains("params.json"), "{}", error());
        std::fs::write(dir.path().join("params.json"), "{}").unwrap();
        assert!(
            error().ends_with("`alight convert … -o model.gguf` makes one of it"),
            "{}",
            error()
        );
        std::fs::write(dir.path().join("weights"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
        assert!(error().contains("safetensors"), "{}", error());
        std::fs::write(dir.path().join("b.gguf"), "GGUF").unwrap();
        assert!(error().contains("b.gguf"), "{}", error());
    }

    #[test]
    fn a_packed_file_and_later_shards_are_no_models_of_their_own() {
        let of = |names: &[&str]| models_of(names.iter().map(PathBuf::from).collect());
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(of(&["m.gguf", "m.packed.gguf"]), paths(&["m.gguf"]));
        let shards = ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf", "s.packed.gguf"];
        assert_eq!(of(&shards), paths(&["s-00001-of-00002.gguf"]));
        assert_eq!(of(&["m.packed.gguf"]), paths(&["m.packed.gguf"]));
        assert_eq!(of(&["a.gguf", "b.packed.gguf"]), paths(&["a.gguf", "b.packed.gguf"]));
    }
}
