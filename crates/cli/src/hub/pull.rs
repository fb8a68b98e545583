//! `alight pull`: fetches models from the hub into its cache.

use std::io::{IsTerminal, stdout};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use alight_convert::Options;
use alight_hub::{Cached, Event, Hub, HubError, Name, Pulled, SAFETENSORS};
use serde::{Serialize, Serializer};

use super::{HubArgs, PullProgress, failed, fetch, fetch_by, full_name, hub, offers, suggested};
use crate::conversion::{speed, with_progress};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::terminal_text::one_line;
use crate::{output, say};

/// Arguments of `alight pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = suggested::before("\
Examples:
  alight pull bartowski/Llama-3.2-1B-Instruct-GGUF       Q4_K_M, or the nearest
  alight pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0  this quantization
  alight pull USER/REPO:model-Q6_K.gguf                  this file
  alight run \"$(alight pull USER/REPO)\" \"Hello\"          it prints the path
  alight pull --offline USER/REPO                        where it is
  alight pull --list USER/REPO                           all, and what fits
  alight pull USER/REPO:safetensors                      for `alight convert`
  alight pull --pack USER/REPO                           its packed file alone
  alight unpack \"$(alight pull USER/REPO)\" -o model.gguf   the hub's file again

A file in the cache is fetched again only if it has changed on the hub. Ctrl-C keeps what was received, \
and the next pull continues from there. Models are where Hugging Face's own tools have them and look for \
them: in $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub. HF_TOKEN, or `hf auth login`, \
is for models that not everybody may have; HF_ENDPOINT names another hub; HF_HUB_OFFLINE=1 asks none."))]
pub struct PullArgs {
    /// Models: USER/REPO, USER/REPO:QUANTIZATION, USER/REPO:FILE, or an address of the hub
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// List the models of a repository with their sizes, and fetch nothing
    #[arg(long)]
    list: bool,

    /// Pack the model when it has been fetched and checked, and keep the packed file alone: as large, the same bits, faster
    ///
    /// `alight unpack` makes the hub's file of it again, to the byte. Other programs cannot read it. While it is packed, the disk
    /// has both. A model in several files is an error before anything is fetched.
    #[arg(long, conflicts_with = "list")]
    pack: bool,

    /// A line of JSON for each model, instead of its path
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    hub: HubArgs,
}

/// Runs the command.
pub fn main(args: &PullArgs) -> Outcome {
    let hub = hub(args.hub.offline)?;
    let mut names = Vec::new();
    for name in &args.names {
        let name = Name::parse(name).map_err(failed)?;
        names.push(match &args.revision {
            Some(revision) => name.at(revision).map_err(failed)?,
            None => name,
        });
    }
    for name in names {
        if args.list {
            offers::list(&hub, &name, args.json)?;
            continue;
        }
        let ready = pulled(&hub, name, args.pack)?;
        let ready = if args.pack { packed(&hub, ready)? } else { ready };
        if args.json {
            output::json(&ready)?;
        } else {
            // A pipe gets the path as it is, whatever its bytes.
            match stdout().is_terminal() {
                false => output::report([ready.path.as_os_str().as_bytes(), b"\n"].concat())?,
                true => output::report(format!("{}\n", one_line(&ready.path.to_string_lossy())))?,
            }
        }
    }
    Ok(())
}

/// A model in the cache, as `--json` describes it.
#[derive(Serialize)]
struct Ready {
    repo: String,
    tag: String,
    commit: String,
    /// The path that is opened.
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    #[serde(serialize_with = "as_texts")]
    files: Vec<PathBuf>,
    bytes: u64,
    received_bytes: u64,
    /// True if it is kept packed.
    packed: bool,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

fn as_texts<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(paths.iter().map(|path| path.to_string_lossy()))
}

impl Ready {
    fn cached(found: Cached) -> Ready {
        let (path, packed) = (found.path().to_owned(), found.original.is_some());
        let Cached { repo, tag, commit, paths: files, bytes, .. } = found;
        Ready { repo, tag, commit, path, files, bytes, received_bytes: 0, packed }
    }

    fn pulled(repo: String, pulled: Pulled) -> Ready {
        let (path, tag) = (pulled.path().to_owned(), pulled.model.tag().to_owned());
        let Pulled { commit, paths: files, bytes, received: received_bytes, packed, .. } = pulled;
        Ready { repo, tag, commit, path, files, bytes, received_bytes, packed }
    }
}

/// Ensures that a model is in the cache, in the hub's current version unless the hub may not be asked. Of a repository without
/// GGUF files, it is the model in safetensors, unless it is `to_pack`.
fn pulled(hub: &Hub, name: Name, to_pack: bool) -> Outcome<Ready> {
    let safetensors = || Name { tag: Some(SAFETENSORS.to_owned()), ..name.clone() };
    if hub.settings().offline {
        let found = hub.find(&name).map_err(failed)?;
        let found = match (found, &name.tag) {
            (None, None) => hub.find(&safetensors()).map_err(failed)?,
            (found, _) => found,
        };
        return found.map(Ready::cached).ok_or_else(|| failed(hub.not_there(&name)));
    }
    let fetch = match to_pack {
        true => |hub: &Hub, name: &Name| fetch_by(hub, name, Hub::pull_to_pack),
        false => fetch,
    };
    let fetched = match fetch(hub, &name) {
        Err(HubError::NoModels { safetensors: true, .. }) => fetch(hub, &safetensors()),
        fetched => fetched,
    };
    let fetched = fetched.map_err(|error| {
        if error.is_unreachable()
            && let Ok(Some(there)) = hub.find(&name)
        {
            let name = full_name(&there.repo, &there.tag);
            say::note(&format!("{name} is in the cache: --offline says where"));
        }
        failed(error)
    })?;
    if fetched.packed && !to_pack {
        say::note(&format!(
            "{} is kept packed, and nothing was fetched: `alight unpack` makes the hub's file of it",
            full_name(&name.repo, fetched.model.tag())
        ));
    }
    Ok(Ready::pulled(name.repo, fetched))
}

/// Keeps a model packed that is in the cache. It is packed if it is not.
fn packed(hub: &Hub, ready: Ready) -> Outcome<Ready> {
    let interrupt = Interrupt::catch()?;
    let model = full_name(&ready.repo, &ready.tag);
    let mut progress = |event: Event<'_>| {
        if let Event::Waiting { file } = event {
            say::note(&format!("waiting for another process that fetches or packs {file}"));
        }
        PullProgress::going_on(interrupt.pressed())
    };
    let kept = hub.keep_packed(&ready.repo, &ready.files, &mut progress, |from, to| {
        let packed = with_progress("packing", |on_progress| {
            alight_convert::pack(from, to, Options::default(), on_progress)
        })?;
        say::line(&format!("packed {model}: {}", speed(&packed.volume)));
        Ok::<_, Stop>(packed.sha256)
    });
    let kept = kept.inspect_err(|_| {
        if !ready.packed {
            say::note(&format!("{model} stays in the cache as the hub has it"));
        }
    })?;
    let bytes = kept.metadata().map_or(ready.bytes, |found| found.len());
    Ok(Ready { path: kept.clone(), files: vec![kept], bytes, packed: true, ..ready })
}
