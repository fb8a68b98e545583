//! Defaults set by the user: `ALIGHT_THREADS=4` in the environment, and the file `config.toml`.
//!
//! They are the values of options that are not given: `--help` shows them, they conflict with nothing, the command line overrides
//! them, and the environment overrides the file.

use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use alight_files::folders;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command};
use serde::Deserialize;
use toml::de::DeTable;
use toml::{Table, Value};

use crate::outcome::{Outcome, Stop};
use crate::plain;
use crate::text_input::{self, From};

/// Maximum bytes of the file.
const LIMIT: u64 = 1 << 20;
/// The prefix of an option's name, which is in capitals, with `_` for `-`.
const PREFIX: &str = "ALIGHT_";
/// Names a file to use instead of the one in the user's folder; empty: none.
const NAMED: &str = "ALIGHT_CONFIG";
/// Options that request a single action, and are not settings.
const NO_SETTINGS: [&str; 8] =
    ["help", "version", "prompt", "file", "output", "force", "host-name", "svg"];
/// Commands with user defaults.
const COMMANDS: [&str; 7] = ["run", "batch", "replay", "serve", "bench", "perplexity", "quantize"];

/// A default, and where it was set.
struct Default {
    value: Value,
    from: String,
}

/// The user's file.
struct DefaultsFile {
    path: PathBuf,
    table: Table,
    /// The lines of names, by section; those before the first section are under the empty name.
    lines: HashMap<(String, String), usize>,
}

impl DefaultsFile {
    /// Returns the location of a name, for an error.
    fn place(&self, section: &str, name: &str) -> String {
        let line = self.lines.get(&(section.to_owned(), name.to_owned()));
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        let section = if section.is_empty() { String::new() } else { format!(", [{section}]") };
        format!("'{}'{line}{section}", self.path.display())
    }
}

/// Returns `cli` with the defaults of the command that `words` call.
pub fn applied(cli: Command, words: &[OsString]) -> Outcome<Command> {
    let called = words.get(1).and_then(|word| word.to_str());
    let Some(called) = called.filter(|called| COMMANDS.contains(called)) else { return Ok(cli) };
    let file = file().map(read).transpose()?;
    if let Some(file) = &file {
        check(file, &cli)?;
    }
    let mut wrong = None;
    let cli = cli.mut_subcommand(called, |command| {
        with_defaults(command, &mut |option| {
            let names = names(option);
            let default = names.iter().find_map(|name| environment(name)).or_else(|| {
                let file = file.as_ref()?;
                let section = file.table.get(called).and_then(Value::as_table);
                // (A section may have the name of an option.)
                let of_all = |name| file.table.get(name).filter(|value| !value.is_table());
                let in_own = |name| section.and_then(|own| own.get(name));
                let found =
                    |section, value: Option<&Value>, name| Some((section, name, value?.clone()));
                let all = names.iter().copied();
                let own = all.clone().find_map(|name| found(called, in_own(name), name));
                let (section, name, value) =
                    own.or_else(|| all.clone().find_map(|name| found("", of_all(name), name)))?;
                Some(Default { value, from: file.place(section, name) })
            });
            default.map_or(Ok(None), |default| taken(option, &default)).unwrap_or_else(|error| {
                wrong.get_or_insert(error);
                None
            })
        })
    });
    wrong.map_or(Ok(cli), |error| Err(Stop::Usage(error)))
}

/// Returns a command, including its subcommands, with the default values that `of` returns for their options.
fn with_defaults(command: Command, of: &mut dyn FnMut(&Arg) -> Option<Vec<String>>) -> Command {
    let command = command.mut_args(|option| match of(&option) {
        Some(values) => option.default_values(values),
        None => option,
    });
    command.mut_subcommands(|inner| with_defaults(inner, of))
}

/// Returns the names of an option that is a setting: its own and its aliases.
fn names(option: &Arg) -> Vec<&str> {
    let own = option.get_long().filter(|long| !NO_SETTINGS.contains(long));
    let others = own.and_then(|_| option.get_all_aliases()).into_iter().flatten();
    own.into_iter().chain(others).collect()
}

/// Returns an option's default from the environment.
fn environment(long: &str) -> Option<Default> {
    let name = format!("{PREFIX}{}", long.to_uppercase().replace('-', "_"));
    let value = env::var(&name).ok().filter(|value| !value.is_empty())?;
    Some(Default { value: Value::String(value), from: name })
}

/// Returns the path of the user's file, which is optional unless it is named.
fn file() -> Option<PathBuf> {
    match env::var_os(NAMED) {
        Some(path) if path.is_empty() => None,
        Some(path) => Some(path.into()),
        None => folders::of_user(folders::CONFIG)
            .map(|folder| folder.join("config.toml"))
            .filter(|path| path.exists()),
    }
}

fn read(path: PathBuf) -> Outcome<DefaultsFile> {
    let text = text_input::read(From::File(&path), "the configuration", LIMIT);
    let text = text.map_err(|error| match env::var_os(NAMED) {
        Some(_) => error.context(format!("the file that {NAMED} names")),
        None => error,
    })?;
    let line = |at: usize| text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let wrong = |error: toml::de::Error| {
        let (line, why) = (line(error.span().map_or(0, |span| span.start)), error.message());
        Stop::Usage(format!("'{}' is not TOML: line {line}: {why}", path.display()))
    };
    let parsed = DeTable::parse(&text).map_err(wrong)?;
    let mut lines = HashMap::new();
    for (name, value) in parsed.get_ref() {
        let (section, at) = (name.get_ref().to_string(), line(name.span().start));
        for (name, _) in value.get_ref().as_table().into_iter().flatten() {
            let at = line(name.span().start);
            lines.insert((section.clone(), name.get_ref().to_string()), at);
        }
        lines.insert((String::new(), section), at);
    }
    let table = Table::deserialize(toml::Deserializer::from(parsed)).map_err(wrong)?;
    Ok(DefaultsFile { path, table, lines })
}

/// Refuses names that belong to no option.
fn check(file: &DefaultsFile, cli: &Command) -> Outcome {
    let unknown = |section: &str, name: &str, of: &str, commands: &[&str]| {
        let place = file.place(section, name);
        let near = commands.iter().find_map(|command| near(cli, command, name));
        let near = near.map_or_else(String::new, |near| format!(" (did you mean '{near}'?)"));
        Err(Stop::Usage(format!(
            "{place}: there is no option '{name}' of {of}{near}; names are those of `alight help COMMAND`, without the dashes"
        )))
    };
    for (name, value) in &file.table {
        let Some(section) = value.as_table() else {
            if !COMMANDS.iter().any(|command| has(cli, command, name)) {
                return unknown("", name, "any command", &COMMANDS);
            }
            continue;
        };
        if !COMMANDS.contains(&name.as_str()) {
            let place = file.place("", name);
            let sections = COMMANDS.map(|command| format!("[{command}]")).join(", ");
            return Err(Stop::Usage(format!(
                "{place}: no section [{name}] is known: there are {sections}"
            )));
        }
        if let Some(option) = section.keys().find(|option| !has(cli, name, option)) {
            return unknown(name, option, name, &[name]);
        }
    }
    Ok(())
}

/// Returns the option of a command whose name is closest to this one.
fn near(cli: &Command, command: &str, name: &str) -> Option<String> {
    let dashed = name.replace('_', "-");
    if has(cli, command, &dashed) {
        return Some(dashed);
    }
    let one = cli.find_subcommand(command)?.clone().no_binary_name(true);
    let error = one.try_get_matches_from([format!("--{dashed}")]).err()?;
    let Some(ContextValue::String(near)) = error.get(ContextKind::SuggestedArg) else {
        return None;
    };
    let near = near.strip_prefix("--")?.split([' ', '=']).next()?;
    has(cli, command, near).then(|| near.to_owned())
}

/// Returns true if a command, or a subcommand of it, has an option of this name.
fn has(cli: &Command, command: &str, long: &str) -> bool {
    fn one(command: &Command, long: &str) -> bool {
        command.get_arguments().any(|option| names(option).contains(&long))
            || command.get_subcommands().any(|inner| one(inner, long))
    }
    cli.find_subcommand(command).is_some_and(|command| one(command, long))
}

/// Returns the values of an option as on a command line, if it accepts them; `None` for a switch that is left off.
fn taken(option: &Arg, default: &Default) -> Result<Option<Vec<String>>, String> {
    let Default { value, from } = default;
    let name = option.get_long().unwrap_or_default();
    let wrong = |value: &str, why: &str| Err(format!("{from}: {value} for --{name}: {why}"));
    let values: Vec<String> = match value {
        Value::Array(several) => {
            if !takes_several(option) {
                return wrong("a list", "expected one value");
            }
            let values: Option<Vec<String>> = several.iter().map(written).collect();
            match values {
                Some(values) => values,
                None => return wrong("a list of lists", "expected values"),
            }
        }
        one => match written(one) {
            Some(value) => vec![value],
            None => return wrong("a table", "expected a value"),
        },
    };
    if matches!(option.get_action(), ArgAction::SetTrue) {
        let on = values.first().and_then(|value| plain::switch(value));
        return match on {
            Some(on) => Ok(on.then(|| vec!["true".to_owned()])),
            None => wrong(&format!("'{}'", values.join(" ")), "expected true or false"),
        };
    }
    // `cache-dir = false` would be a folder of that name.
    let may_be_alone = option.get_num_args().is_some_and(|values| values.min_values() == 0);
    if value.is_bool() && !may_be_alone {
        return wrong(&format!("'{}'", values.join(" ")), "expected a value");
    }
    // Parsed by itself: conflicts with other options do not matter.
    let alone = Arg::new("it")
        .long("it")
        .action(ArgAction::Append)
        .allow_hyphen_values(true)
        .ignore_case(option.is_ignore_case_set())
        .value_delimiter(option.get_value_delimiter())
        .value_parser(option.get_value_parser().clone());
    let alone = Command::new("alight").no_binary_name(true).arg(alone);
    for value in &values {
        if let Err(error) = alone.clone().try_get_matches_from(["--it", value]) {
            use std::error::Error;
            let why = error.source().map(|why| plain::why(&why.to_string(), value));
            let why = why.unwrap_or_else(|| {
                let known = option.get_possible_values();
                let known = known.iter().filter(|value| !value.is_hide_set());
                let known: Vec<&str> = known.map(|value| value.get_name()).collect();
                format!("expected one of {}", known.join(", "))
            });
            return wrong(&format!("'{value}'"), &why);
        }
    }
    Ok(Some(values))
}

/// Returns true if an option accepts several values.
fn takes_several(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
        || option.get_value_delimiter().is_some()
        || option.get_num_args().is_some_and(|values| values.max_values() > 1)
}

/// Returns a value as written on a command line; `None` if it is several.
fn written(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(on) => Some(on.to_string()),
        Value::Datetime(date) => Some(date.to_string()),
        Value::Array(_) | Value::Table(_) => None,
    }
}
