//! `alight list`: the models in the hub's cache.

use std::time::SystemTime;

use serde_json::json;

use super::{failed, full_name, hub};
use crate::outcome::Outcome;
use crate::terminal_text::one_line;
use crate::{output, say, units};

/// Arguments of `alight list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight list                    name, size, age
  alight list --json | jq .path  and where they are

Models that other tools fetched are in it too: those of .gguf files, and of safetensors, which \
`alight convert` reads. For `alight run` and the others a part of a name is enough, \
if no other model's name contains it.")]
pub struct ListArgs {
    /// A line of JSON for each model
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn main(args: &ListArgs) -> Outcome {
    let hub = hub(true)?;
    let all = hub.list().map_err(failed)?;
    if args.json {
        for one in &all {
            let paths = one.paths.iter().map(|path| path.to_string_lossy().into_owned());
            output::json(&json!({
                "repo": one.repo,
                "tag": one.tag,
                "name": full_name(&one.repo, &one.tag),
                "commit": one.commit,
                "revisions": one.revisions,
                "path": one.path().to_string_lossy(),
                "files": paths.collect::<Vec<_>>(),
                "bytes": one.bytes,
                "missing": one.missing,
                "packed": one.original.is_some(),
            }))?;
        }
        return Ok(());
    }
    if all.is_empty() && say::is_terminal() {
        let cache = hub.settings().cache.display().to_string();
        say::line(&format!("there is no model in {cache}; `alight pull USER/REPO` fetches one"));
    }
    if say::is_terminal() {
        for (repo, bytes) in hub.incomplete().map_err(failed)? {
            say::note(&format!(
                "{} of {repo} are in the cache from a pull that was interrupted or is still running: `alight pull` continues it, `alight rm {repo}` removes them",
                units::bytes(bytes)
            ));
        }
    }
    let name = |one: &alight_hub::Cached| {
        let name = full_name(&one.repo, &one.tag);
        one_line(&name).into_owned()
    };
    let width = all.iter().map(|one| name(one).chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for one in &all {
        let age = one.modified.and_then(|then| SystemTime::now().duration_since(then).ok());
        let age = age.map_or(String::new(), |age| units::age(age.as_secs()));
        text += &format!("{:<width$}  {:>8}  {age:>11}", name(one), units::bytes(one.bytes));
        match (&one.missing, &one.revisions[..]) {
            (Some(missing), _) => text += &format!("  lacks {}", one_line(missing)),
            (None, []) => text += &format!("  at {}", &one.commit[..8]),
            (None, [only]) if only == "main" => {}
            (None, several) => text += &format!("  at {}", one_line(&several.join(", "))),
        }
        if one.original.is_some() {
            text += "  packed";
        }
        text.push('\n');
    }
    output::lines(&text)
}
