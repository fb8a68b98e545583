//! Defaults that the user has set: `ALIGHT_THREADS=4` in the environment, and the file `config.toml`.
//!
//! They are what an option is that is not given: they are shown by `--help`, conflict with nothing, and the
//! command line overrides them, and the environment the file.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Arg, ArgAction, Command};
use toml::{Table, Value};

use crate::folders;
use crate::outcome::{Outcome, Stop};
use crate::text_input::{self, From};

/// Most bytes of the file.
const LIMIT: u64 = 1 << 20;
/// Stands before the name of an option, in capitals, with `_` for `-`.
const PREFIX: &str = "ALIGHT_";
/// Names the file instead of the one in the user's folder; empty: there is none.
const NAMED: &str = "ALIGHT_CONFIG";
/// Options that ask for one thing to be done, and are no settings.
const NO_SETTINGS: [&str; 8] =
    ["help", "version", "prompt", "file", "output", "force", "host-name", "svg"];
/// Commands that have defaults of the user.
const COMMANDS: [&str; 6] = ["run", "batch", "serve", "bench", "perplexity", "quantize"];

/// A default, and where it was set.
struct Default {
    value: String,
    from: String,
}

/// `cli` with the defaults of the command that `words` call.
pub fn applied(cli: Command, words: &[OsString]) -> Outcome<Command> {
    let called = words.get(1).and_then(|word| word.to_str());
    let Some(called) = called.filter(|called| COMMANDS.contains(called)) else { return Ok(cli) };
    let file = match file() {
        Some(path) if path.exists() => Some((read(&path)?, path)),
        _ => None,
    };
    if let Some((table, path)) = &file {
        check(table, path, &cli)?;
    }
    let mut wrong = None;
    let cli = cli.mut_subcommand(called, |command| {
        with_defaults(command, &mut |option| {
            let long = option.get_long().filter(|long| !NO_SETTINGS.contains(long))?;
            let default = environment(long).or_else(|| {
                let (table, path) = file.as_ref()?;
                let own = table.get(called).and_then(|section| section.get(long));
                let value = own.or_else(|| table.get(long).filter(|value| !value.is_table()))?;
                Some(Default { value: plain(value)?, from: format!("'{}'", path.display()) })
            })?;
            match checked(option, &default) {
                Ok(value) => value,
                Err(error) => {
                    wrong.get_or_insert(error);
                    None
                }
            }
        })
    });
    wrong.map_or(Ok(cli), |error| Err(Stop::Usage(error)))
}

/// A command, and those in it, with what `of` says of their options.
fn with_defaults(command: Command, of: &mut dyn FnMut(&Arg) -> Option<String>) -> Command {
    let command = command.mut_args(|option| match of(&option) {
        Some(value) => option.default_value(value),
        None => option,
    });
    command.mut_subcommands(|inner| with_defaults(inner, of))
}

/// What the environment says of an option.
fn environment(long: &str) -> Option<Default> {
    let name = format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"));
    let value = env::var(&name).ok().filter(|value| !value.is_empty())?;
    Some(Default { value, from: name })
}

/// The file of the user.
fn file() -> Option<PathBuf> {
    match env::var_os(NAMED) {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => folders::of_user(folders::CONFIG).map(|folder| folder.join("config.toml")),
    }
}

fn read(path: &std::path::Path) -> Outcome<Table> {
    let text = text_input::read(From::File(path), "the configuration", LIMIT)?;
    let table = text.parse::<Table>().map_err(|error| anyhow!("{}", error.message()));
    Ok(table.with_context(|| format!("'{}' is not TOML", path.display()))?)
}

/// Refuses names that are of no option.
fn check(table: &Table, path: &std::path::Path, cli: &Command) -> Outcome {
    let unknown = |name: &str, of: &str| {
        let why = format!("'{}': there is no option '{name}' of {of}", path.display());
        Err(Stop::Usage(format!("{why}; names are those of `alight help`, without the dashes")))
    };
    for (name, value) in table {
        let Some(section) = value.as_table() else {
            if !COMMANDS.iter().any(|command| has(cli, command, name)) {
                return unknown(name, "any command");
            }
            continue;
        };
        if !COMMANDS.contains(&name.as_str()) {
            return unknown(
                name,
                "alight, which has sections [run], [batch], [serve], [bench] and more",
            );
        }
        if let Some(option) = section.keys().find(|option| !has(cli, name, option)) {
            return unknown(option, name);
        }
    }
    Ok(())
}

/// Whether a command, or one in it, has an option of this name.
fn has(cli: &Command, command: &str, long: &str) -> bool {
    fn one(command: &Command, long: &str) -> bool {
        command.get_arguments().any(|option| option.get_long() == Some(long))
            || command.get_subcommands().any(|inner| one(inner, long))
    }
    !NO_SETTINGS.contains(&long)
        && cli.find_subcommand(command).is_some_and(|command| one(command, long))
}

/// A value as it is written on a command line.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(n) => Some(n.to_string()),
        Value::Float(x) => Some(x.to_string()),
        Value::Boolean(yes) => Some(yes.to_string()),
        _ => None,
    }
}

/// The default of an option, if it is one that the option takes; none where a switch is left off.
fn checked(option: &Arg, default: &Default) -> Result<Option<String>, String> {
    let Default { value, from } = default;
    let name = option.get_long().unwrap_or_default();
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return match value.to_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(Some("true".to_owned())),
            "0" | "false" | "no" | "off" => Ok(None),
            _ => Err(format!("{from}: '{value}' for --{name}: expected true or false")),
        };
    }
    // By itself: what others it goes with does not matter.
    let alone = Arg::new("it")
        .long("it")
        .action(ArgAction::Set)
        .allow_hyphen_values(true)
        .ignore_case(option.is_ignore_case_set())
        .value_parser(option.get_value_parser().clone());
    let parsed = Command::new("alight")
        .no_binary_name(true)
        .arg(alone)
        .try_get_matches_from(["--it".to_owned(), value.clone()]);
    match parsed {
        Ok(_) => Ok(Some(value.clone())),
        Err(error) => {
            use std::error::Error;
            let why =
                error.source().map_or("it is none of its values".to_owned(), ToString::to_string);
            Err(format!("{from}: '{value}' for --{name}: {why}"))
        }
    }
}
