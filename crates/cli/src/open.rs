//! Opening a model for a subcommand: the arguments that all engines share, and errors that say
//! what the file is and what to do next.

use std::io;
use std::path::Path;
use std::str::FromStr;

use alight_formats::Format;
use alight_kernels::Isa;
use alight_model::{Load, Model, OpenOptions, Repack};
use alight_pages::Threads;
use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::explain_load;
use crate::outcome::{Outcome, Stop};
use crate::source;
use crate::threads;

/// Arguments of every command that computes.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    pub threads: Option<usize>,

    /// Kernels to use instead of the best that this CPU has: scalar, avx2, avx512
    #[arg(long, value_name = "NAME", hide = true)]
    pub isa: Option<Isa>,

    /// How weights come from the file: a map of it, direct reads past the page cache, reads through
    /// it, or what suits the moment
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = named::<Load>(Load::ALL.map(Load::name)))]
    load: Load,

    /// Reorder weights while loading, for faster kernels: takes memory of this process; auto: where
    /// they are copied anyway
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = named::<Repack>(Repack::ALL.map(Repack::name)))]
    repack: Repack,

    /// Give mapped pages back when their weights have been reordered
    #[arg(long, value_name = "on|off", default_value = "on")]
    reclaim: Switch,

    /// Lock the weights in memory
    #[arg(long)]
    lock: bool,

    /// Say on standard error how the weights are loaded, and why
    #[arg(long)]
    explain_load: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Parses one of the names of a library's options, which help and completions list.
fn named<T>(names: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

impl EngineArgs {
    /// As the library takes them.
    fn options(&self) -> OpenOptions {
        OpenOptions {
            threads: self.threads,
            isa: self.isa,
            load: self.load,
            repack: self.repack,
            reclaim: self.reclaim == Switch::On,
            lock: self.lock,
        }
    }

    /// Says what came of loading, if that was asked for.
    pub fn explain_outcome(&self, model: &Model) {
        if self.explain_load {
            explain_load::outcome(model);
        }
    }
}

/// Opens the model at `path`.
pub fn model(path: &Path, args: &EngineArgs) -> Outcome<Model> {
    if let Some(isa) = args.isa.filter(|isa| !isa.is_available()) {
        return Err(Stop::Usage(format!("this CPU cannot run the {isa} kernels")));
    }
    check_path(path)?;
    let model = Model::open(path, &args.options());
    let model = model.map_err(|error| explain(path, anyhow!(error)))?;
    threads::note(Threads { wanted: model.pool().wanted(), had: model.threads() });
    if args.explain_load {
        explain_load::decision(&model);
    }
    Ok(model)
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
                anyhow!("'{named}' does not exist: give the path of a .gguf file")
            }
            io::ErrorKind::PermissionDenied => {
                anyhow!("'{named}': permission denied: check that you may read it")
            }
            _ => anyhow!(error).context(format!("'{named}'")),
        }),
        Ok(meta) if meta.is_dir() => Err(anyhow!("'{named}' is a folder: {}", in_folder(path))),
        Ok(meta) if !meta.is_file() => {
            Err(anyhow!("'{named}' is not a regular file, so it cannot be mapped"))
        }
        Ok(_) => Ok(()),
    }
}

/// Replaces the error of a file that is another format than GGUF by one that says which.
pub fn explain(path: &Path, error: anyhow::Error) -> anyhow::Error {
    match source::format_of(path) {
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
fn in_folder(folder: &Path) -> String {
    let files = source::recognised(folder).unwrap_or_default();
    let of = |wanted: Format| files.iter().find(|(format, _)| *format == wanted);
    if let Some((_, first)) = of(Format::Gguf) {
        return format!("give one of its .gguf files, such as '{}'", first.display());
    }
    match source::in_order(&files) {
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
