//! `alight pull`: fetches models from the hub into its cache.

use std::io::{IsTerminal, stdout};
use std::os::unix::ffi::OsStrExt;

use alight_hub::Name;
use serde_json::json;

use super::{HubArgs, failed, fetch, hub};
use crate::outcome::Outcome;
use crate::terminal_text::one_line;
use crate::{output, say};

/// Arguments of `alight pull`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight pull bartowski/Llama-3.2-1B-Instruct-GGUF       Q4_K_M, or the nearest
  alight pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0  this quantization
  alight pull USER/REPO:model-Q6_K.gguf                  this file
  alight run \"$(alight pull USER/REPO)\" \"Hello\"          it prints the path
  alight pull --offline USER/REPO                        where it is

What is there is not fetched again; what has changed on the hub is. Ctrl-C keeps what was received, \
and the next pull continues from there. Models are where Hugging Face's own tools have them and look for \
them: in $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub. HF_TOKEN, or `hf auth login`, \
is for models that not everybody may have; HF_ENDPOINT names another hub; HF_HUB_OFFLINE=1 asks none.")]
pub struct PullArgs {
    /// Models: USER/REPO, USER/REPO:QUANTIZATION, USER/REPO:FILE, or an address of the hub
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// Branch, tag or commit [default: main]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

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
        let (paths, tag, commit, bytes, received) = match hub.find(&name) {
            Ok(Some(there)) if hub.settings().offline => {
                (there.paths, there.tag, there.commit, there.bytes, 0)
            }
            _ => {
                let pulled = fetch(&hub, &name).map_err(|error| {
                    if error.is_unreachable()
                        && let Ok(Some(there)) = hub.find(&name)
                    {
                        let (repo, tag) = (there.repo, there.tag);
                        say::note(&format!("{repo}:{tag} is in the cache: --offline says where"));
                    }
                    failed(error)
                })?;
                let tag = pulled.model.tag().to_owned();
                (pulled.paths, tag, pulled.commit, pulled.bytes, pulled.received)
            }
        };
        let texts: Vec<String> =
            paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        if args.json {
            output::json(&json!({
                "repo": name.repo,
                "tag": tag,
                "commit": commit,
                "path": texts.first(),
                "files": texts,
                "bytes": bytes,
                "received_bytes": received,
            }))?;
        } else {
            let path = texts.first().map_or("", String::as_str);
            match (stdout().is_terminal(), paths.first()) {
                (false, Some(path)) => {
                    output::report([path.as_os_str().as_bytes(), b"\n"].concat())?
                }
                _ => output::report(format!("{}\n", one_line(path)))?,
            }
        }
    }
    Ok(())
}
