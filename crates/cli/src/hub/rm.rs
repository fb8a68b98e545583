//! `alight rm`: removes models from the hub's cache.

use alight_hub::{Hub, HubError, Name};

use super::{failed, hub, short};
use crate::outcome::{Outcome, Stop};
use crate::{say, units};

/// Arguments of `alight rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight rm USER/REPO:Q4_K_M  this one
  alight rm USER/REPO         the only one of this repository
  alight rm --all USER/REPO   all of them

Bytes that another file of the repository needs are kept. What was received of incomplete models \
is removed as well.")]
pub struct RmArgs {
    /// Models, as `alight list` names them, or a part of the name of one repository
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// All models of a repository
    #[arg(long)]
    all: bool,
}

/// Returns the model that was named, in full or in short. Unlike where a model is used, a short name without a tag stands for all models of
/// the repository, so that none of several is chosen.
fn named(hub: &Hub, text: &str) -> Outcome<Name> {
    let short = || short::in_cache(hub, text.trim_start_matches("hf.co/"));
    match Name::parse(text) {
        Ok(name) => Ok(name),
        Err(error) => short()?.ok_or_else(|| failed(error)),
    }
}

/// Runs the command.
pub fn main(args: &RmArgs) -> Outcome {
    let hub = hub(true)?;
    let names: Result<Vec<Name>, Stop> = args.names.iter().map(|text| named(&hub, text)).collect();
    for name in names? {
        let removed = hub.remove(&name, args.all).map_err(|error| match error {
            HubError::Several { repo, exist } => Stop::Failed(anyhow::anyhow!(
                "{repo} has several models in the cache: {}; name one, or give --all",
                exist.join(", ")
            )),
            error => failed(error),
        })?;
        let what = match removed.models.is_empty() {
            true => format!("the incomplete files of hf.co/{}", name.repo),
            false => {
                let names = removed.models.iter().map(|model| format!("hf.co/{model}"));
                names.collect::<Vec<_>>().join(", ")
            }
        };
        say::line(&format!("removed {what}, {}", units::bytes(removed.bytes)));
        if removed.shared > 0 {
            say::note(&format!(
                "{} are kept, since other repositories may share them; `hf cache prune` removes them",
                units::bytes(removed.shared)
            ));
        }
    }
    Ok(())
}
