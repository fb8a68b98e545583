//! Opening a model for a subcommand: the arguments that all engines share, and errors that say
//! what the file is and what to do next.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use alight_kernels::Isa;
use alight_model::{Load, Model, OpenOptions, Repack};
use anyhow::anyhow;

use crate::explain_load;
use crate::outcome::{Outcome, Stop};

/// Arguments of every command that computes.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,

    /// Kernels to use instead of the best that this CPU has: scalar, avx2, avx512
    #[arg(long, value_name = "NAME", hide = true)]
    pub isa: Option<Isa>,

    /// How weights come from the file: a map of it, direct reads past the page cache, reads through
    /// it, or what suits the moment
    #[arg(long, value_name = "HOW", default_value = "auto")]
    load: LoadArg,

    /// Reorder weights while loading, for faster kernels: takes memory of this process; auto: where
    /// they are copied anyway
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    repack: RepackArg,

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

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LoadArg {
    Auto,
    Mmap,
    Direct,
    Read,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RepackArg {
    Auto,
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl EngineArgs {
    /// As the library takes them.
    fn options(&self) -> OpenOptions {
        OpenOptions {
            threads: self.threads,
            isa: self.isa,
            load: match self.load {
                LoadArg::Auto => Load::Auto,
                LoadArg::Mmap => Load::Mmap,
                LoadArg::Direct => Load::Direct,
                LoadArg::Read => Load::Read,
            },
            repack: match self.repack {
                RepackArg::Auto => Repack::Auto,
                RepackArg::On => Repack::On,
                RepackArg::Off => Repack::Off,
            },
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

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("expected a number from 1 to 1024".to_owned()),
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
    let mut start = Vec::new();
    let read = File::open(path).and_then(|f| f.take(16).read_to_end(&mut start));
    match read.ok().and_then(|_| other_format(&start)) {
        Some(format) => {
            let named = path.display();
            anyhow!(
                "'{named}' is {format}, and alight reads GGUF. `alight convert`, which will make \
                 one from it, is planned but not there yet"
            )
        }
        None => error,
    }
}

/// The format of a weight file that is not GGUF, from its first bytes.
fn other_format(start: &[u8]) -> Option<&'static str> {
    match start {
        [b'P', b'K', 3, 4, ..] => Some("a zip archive, as PyTorch's .pth files are"),
        [0x80, 2..=5, ..] => Some("a Python pickle, as old PyTorch files are"),
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => Some("a safetensors file"),
        [b'l', b'm', b'g', b'g', ..]
        | [b'f', b'm', b'g', b'g', ..]
        | [b't', b'j', b'g', b'g', ..] => Some("a legacy GGML file"),
        _ => None,
    }
}

/// What a folder offers instead of itself.
fn in_folder(path: &Path) -> String {
    let mut names: Vec<PathBuf> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .collect();
    names.sort();
    let with = |ext: &str| names.iter().find(|n| n.extension().is_some_and(|e| e == ext));
    if let Some(first) = with("gguf") {
        format!("give one of its .gguf files, such as '{}'", path.join(first).display())
    } else if with("safetensors").or_else(|| with("pth")).is_some() {
        "it holds safetensors or .pth weights, and alight reads GGUF. `alight convert`, which \
         will make one from them, is planned but not there yet"
            .to_owned()
    } else {
        "give the path of a .gguf file".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart() {
        assert!(other_format(b"PK\x03\x04....").unwrap().contains("zip"));
        assert!(other_format(b"\x10\x02\0\0\0\0\0\0{\"a\":1}").unwrap().contains("safetensors"));
        assert!(other_format(b"tjgg\x01\0\0\0").unwrap().contains("GGML"));
        assert!(other_format(b"\x80\x02\x8a\x0a").unwrap().contains("pickle"));
        assert_eq!(other_format(b"GGUF\x03\0\0\0\0\0"), None);
        assert_eq!(other_format(b""), None);
    }

    #[test]
    fn a_folder_names_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let error = || check_path(dir.path()).unwrap_err().to_string();
        assert!(error().ends_with("give the path of a .gguf file"), "{}", error());
        std::fs::write(dir.path().join("consolidated.00.pth"), "").unwrap();
        assert!(error().contains("alight convert"), "{}", error());
        std::fs::write(dir.path().join("b.gguf"), "").unwrap();
        assert!(error().contains("b.gguf"), "{}", error());
    }
}
