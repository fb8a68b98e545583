//! `alight rm`: removes models from the hub's cache.

use alight_hub::{HubError, Name};

use super::{failed, hub};
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
    /// Models, as `alight list` names them
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,

    /// All models of a repository
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub fn main(args: &RmArgs) -> Outcome {
    let hub = hub(true)?;
    let names: Result<Vec<Name>, HubError> =
        args.names.iter().map(|name| Name::parse(name)).collect();
    for name in names.map_err(failed)? {
        let removed = hub.remove(&name, args.all).map_err(|error| match error {
            HubError::Several { repo, exist } => Stop::Failed(anyhow::anyhow!(
                "{repo} has several models in the cache: {}; name one, or give --all",
                exist.join(", ")
            )),
            error => failed(error),
        })?;
        let what = match removed.models.is_empty() {
            true => format!("the incomplete files of {}", name.repo),
            false => removed.models.join(", "),
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
