//! Options that users of llama.cpp or Ollama type: other names of options, options that are not needed here, and options that
//! would mean something else to this command line (`-hf` is not `-h`, `-ngl` is not `-n gl`).
//!
//! An option that a command has is never touched, so only the [`table`] needs additions.

mod table;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use alight_hub::Name;
use clap::{Arg, Command};

use crate::outcome::{Outcome, Stop};
use crate::say;
use crate::terminal_text::one_line;

/// The commands with a counterpart among llama.cpp's programs.
const COMMANDS: [&str; 6] = ["run", "batch", "serve", "bench", "perplexity", "tokenize"];

/// The meaning of an option.
#[derive(Clone, Copy, Debug)]
enum Means {
    /// The model, which is the first argument.
    Model,
    /// The model on the hub: `user/repo:Q4_K_M`.
    Repo,
    /// The file in its repository.
    RepoFile,
    /// The model on the hub, by its URL.
    Url,
    /// The draft model, on the hub.
    RepoDraft,
    /// The option of this name, with a value if that has one.
    Same(&'static str),
    /// Half of the option of this name: the other half must have the same value.
    Half(&'static str),
    /// The argument after the model.
    Second,
    /// These arguments.
    Words(&'static [&'static str]),
    /// The arguments for each value; other values are refused with this advice.
    Which(&'static [(&'static str, &'static [&'static str])], &'static str),
    /// Like `Which`, for an option whose value follows `=` or is missing: then it is the empty one.
    EqualsValue(&'static [(&'static str, &'static [&'static str])], &'static str),
    /// The whole command line becomes this one.
    Instruction(&'static [&'static str]),
    /// Ignored, with its value, for this reason.
    NotNeeded(IgnoredValue, &'static str),
    /// Not supported; the advice.
    Instead(&'static str),
}

/// The value of an ignored option.
#[derive(Clone, Copy, Debug)]
enum IgnoredValue {
    No,
    One,
    /// If one of `on`, `off`, `auto`, `0`, `1`, `-1` follows.
    Switch,
}

use IgnoredValue::{No, One, Switch};
use Means::{
    EqualsValue, Half, Instead, Instruction, Model, NotNeeded, Repo, RepoDraft, RepoFile, Same,
    Second, Url, Which, Words,
};

/// Returns true if a word in the place of a command is a model: of the hub, or a file.
fn is_model(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_file = path.extension().is_some_and(|end| end == "gguf") || path.is_file();
    is_file || Name::of_path(path).is_ok_and(|name| name.is_some())
}

/// Returns the command line `given` in the options of `cli`.
pub fn translated(mut given: Vec<OsString>, cli: &Command) -> Outcome<Vec<OsString>> {
    if given.get(1).is_some_and(|word| word == "help") {
        given.retain(|word| word != "-h" && word != "--help");
        return Ok(given);
    }
    let (mut command, mut at) = (cli, 1);
    while let Some(next) = given.get(at).and_then(|name| command.find_subcommand(name)) {
        (command, at) = (next, at + 1);
    }
    if command.get_name() == "quantize" {
        return Ok(as_llama_quantize(given, command));
    }
    let no_command =
        given.get(1).filter(|_| at == 1).and_then(|word| table::command(word.to_str()?));
    if let Some(meant) = no_command {
        return Err(Stop::Usage(meant.to_owned()));
    }
    if let Some(model) = given.get(1).filter(|word| at == 1 && is_model(word)) {
        let model = model.to_string_lossy();
        let model = one_line(&model);
        let quote = if model.contains(char::is_whitespace) { "'" } else { "" };
        return Err(Stop::Usage(format!(
            "a command comes before the model, such as `alight run {quote}{model}{quote}`; `alight help` lists the others"
        )));
    }
    let named = given.get(1).is_some_and(|name| COMMANDS.iter().any(|known| name == known));
    if !named {
        return Ok(given);
    }
    let mut words: Vec<OsString> = given[..at].to_vec();
    let mut first = words.len();
    let mut rest = given[at..].iter().peekable();
    let (mut repo, mut file) = (None, None);
    let mut second = None;
    // By option, and by the last letter of each of its halves.
    let mut halves = BTreeMap::new();
    while let Some(word) = rest.next() {
        let name = name(word);
        if word == "--" {
            words.push(word.clone());
            words.extend(rest.cloned());
            break;
        }
        let known = option(command, name);
        if let Some(option) = known {
            words.push(word.clone());
            // In llama.cpp it is a switch.
            let named =
                |next: &&OsString| ["auto", "on", "off"].iter().any(|value| **next == *value);
            if name == "--repack" && name.len() == word.len() && !rest.peek().is_some_and(named) {
                words.push("on".into());
            } else if takes_value(option) && name.len() == word.len() {
                words.extend(rest.next().cloned());
            }
            continue;
        }
        match habit(command.get_name(), name) {
            // The next word is not the value of a known option.
            None if name.starts_with("-h") && name.len() > 2 => {
                return Err(Stop::Usage(format!(
                    "there is no option '{name}': -h alone is the help"
                )));
            }
            None => match others(cli, name) {
                Some(others) => {
                    let of = command.get_name();
                    return Err(Stop::Usage(format!(
                        "there is no {name} of `alight {of}`: {others}"
                    )));
                }
                None => words.push(word.clone()),
            },
            Some(Instruction(others)) => {
                let program = given[..1].iter().cloned();
                return Ok(program.chain(others.iter().map(OsString::from)).collect());
            }
            Some(means @ (Which(values, why) | EqualsValue(values, why))) => {
                let value = match means {
                    EqualsValue(..) => after_equals(word),
                    _ => value(word, &mut rest),
                };
                let value = value.unwrap_or_default();
                match values.iter().find(|(known, _)| value == *known) {
                    Some((_, others)) if others.iter().all(|word| has(command, word)) => {
                        words.extend(others.iter().map(OsString::from));
                    }
                    _ => {
                        let value = value.to_string_lossy();
                        return Err(Stop::Usage(format!("there is no {name} {value}: {why}")));
                    }
                }
            }
            Some(Model) => match value(word, &mut rest) {
                Some(model) => {
                    words.insert(first, model);
                    // The next of several goes after it.
                    first += 1;
                }
                None => return Err(Stop::Usage(format!("{name} needs the path of a model"))),
            },
            Some(means @ (Repo | RepoFile | Url | RepoDraft)) => {
                let value = value(word, &mut rest).filter(|value| !value.is_empty());
                let Some(value) = value.map(|value| value.to_string_lossy().into_owned()) else {
                    return Err(Stop::Usage(format!("{name} needs a value")));
                };
                match means {
                    Repo => repo = Some(value),
                    RepoFile => file = Some(value),
                    Url if Name::without_hub(&value).is_some() => repo = Some(value),
                    RepoDraft => words.extend(["--draft".into(), on_hub(&value).into()]),
                    _ => {
                        return Err(Stop::Usage(format!(
                            "there is no {name} of other servers than the hub: fetch the file first (curl -LO URL), and give its path"
                        )));
                    }
                }
            }
            Some(Same(other)) if option(command, other).is_some() => {
                words.push(other.into());
                words.extend(value(word, &mut rest));
            }
            Some(Half(whole)) if option(command, whole).is_some() => {
                let Some(value) = value(word, &mut rest) else {
                    return Err(Stop::Usage(format!("{name} needs a value")));
                };
                halves.insert((whole, name.chars().last()), (name, value));
            }
            Some(Second) => match value(word, &mut rest) {
                Some(value) => second = Some(value),
                None => return Err(Stop::Usage(format!("{name} needs a value"))),
            },
            Some(Words(others)) if others == ["--help"] || option(command, others[0]).is_some() => {
                words.extend(others.iter().map(OsString::from));
            }
            Some(Same(other) | Half(other) | Words(&[other, ..])) => match others(cli, other) {
                Some(others) => return Err(elsewhere(name, command, &others)),
                None => words.push(word.clone()),
            },
            Some(Words([])) => {}
            Some(NotNeeded(takes, why)) => {
                let switch = |next: &&OsString| {
                    ["on", "off", "auto", "0", "1", "-1"].iter().any(|one| **next == *one)
                };
                match takes {
                    No => None,
                    One => value(word, &mut rest),
                    Switch => rest.next_if(switch).cloned(),
                };
                say::note(&format!("{name} is not needed: {why}"));
            }
            Some(Instead(what)) => {
                return Err(Stop::Usage(format!("there is no {name}: {what}")));
            }
        }
    }
    let given: Vec<_> = halves.iter().collect();
    for pair in given.windows(2) {
        let [((whole, _), (one, its)), (_, (other, value))] = [pair[0], pair[1]];
        if its != value {
            let [its, value] = [its, value].map(|value| value.to_string_lossy());
            return Err(Stop::Usage(format!(
                "{one} {its} and {other} {value} cannot be combined: {whole} is one type for both"
            )));
        }
    }
    if let Some(((whole, _), (_, value))) = halves.first_key_value() {
        // At the front, because nothing after `--` is an option.
        words.splice(first..first, [OsString::from(*whole), value.clone()]);
    }
    words.extend(second);
    match (repo, file) {
        (Some(repo), None) => words.insert(first, on_hub(&repo).into()),
        (Some(repo), Some(file)) => {
            // A file is more specific than a quantization.
            let repo = on_hub(&repo);
            let end = repo.rfind(':').filter(|at| *at > repo.rfind('/').unwrap_or(0));
            words.insert(first, format!("{}:{file}", &repo[..end.unwrap_or(repo.len())]).into());
        }
        (None, Some(_)) => {
            return Err(Stop::Usage(
                "a file of which repository? give -hf USER/REPO as well".into(),
            ));
        }
        (None, None) => {}
    }
    Ok(words)
}

/// Returns the value of an option: the text after its `=`, or else the next word.
fn value<'w>(word: &OsStr, rest: &mut impl Iterator<Item = &'w OsString>) -> Option<OsString> {
    after_equals(word).or_else(|| rest.next().cloned())
}

/// Returns the text after the `=` of an option, if it has one.
fn after_equals(word: &OsStr) -> Option<OsString> {
    let (name, value) = word.to_str()?.split_once('=')?;
    name.starts_with("--").then(|| value.into())
}

/// Returns the meaning of llama.cpp's option to a command.
fn habit(command: &str, name: &str) -> Option<Means> {
    let is = |pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    let mut all = table::of(command).iter().chain(table::ALL);
    all.find(|(names, _)| names.iter().any(|pattern| is(pattern))).map(|(_, means)| *means)
}

/// Returns true if a word is not an option, or is one that a command has.
fn has(command: &Command, word: &str) -> bool {
    !word.starts_with('-') || option(command, word).is_some()
}

/// Returns a message naming the other commands that have an option.
fn others(cli: &Command, name: &str) -> Option<String> {
    let has =
        |command: &&str| cli.find_subcommand(command).is_some_and(|c| option(c, name).is_some());
    let names: Vec<String> =
        COMMANDS.iter().copied().filter(has).map(|command| format!("`alight {command}`")).collect();
    let (last, before) = names.split_last()?;
    Some(match before {
        [] => format!("{last} has it"),
        before => format!("{} and {last} have it", before.join(", ")),
    })
}

/// Returns the error that other commands have an option, and this one does not.
fn elsewhere(name: &str, command: &Command, others: &str) -> Stop {
    Stop::Usage(format!("there is no {name} of `alight {}`: {others}", command.get_name()))
}

/// Returns the name of a repository in the form of a model argument.
fn on_hub(repo: &str) -> String {
    match Name::without_hub(repo) {
        Some(_) => repo.to_owned(),
        None => format!("hf.co/{repo}"),
    }
}

/// Returns `quantize IN OUT TYPE [THREADS]` with options.
fn as_llama_quantize(given: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let mut others = ["--output", "--type", "--threads"].into_iter();
    let mut words: Vec<OsString> = Vec::new();
    let (mut first, mut rest) = (true, given.into_iter());
    words.extend(rest.by_ref().take(2));
    while let Some(word) = rest.next() {
        let known = option(command, name(&word));
        let value = known.filter(|option| takes_value(option) && name(&word).len() == word.len());
        if value.is_none()
            && !word.as_encoded_bytes().starts_with(b"-")
            && !std::mem::take(&mut first)
        {
            words.extend(others.next().map(OsString::from));
        }
        words.push(word);
        if value.is_some() {
            words.extend(rest.next());
        }
    }
    words
}

/// Returns an option without its `=VALUE`; any other word as it is (empty if it is not UTF-8).
fn name(word: &OsStr) -> &str {
    let word = word.to_str().unwrap_or_default();
    match word.split_once('=') {
        Some((name, _)) if name.starts_with("--") => name,
        _ => word,
    }
}

/// Returns the option that a command has under this name.
fn option<'c>(command: &'c Command, name: &str) -> Option<&'c Arg> {
    let long = name.strip_prefix("--");
    let short = name.strip_prefix('-').filter(|_| long.is_none());
    command.get_arguments().find(|option| {
        let longs =
            option.get_long().into_iter().chain(option.get_all_aliases().into_iter().flatten());
        let shorts = option
            .get_short()
            .into_iter()
            .chain(option.get_all_short_aliases().into_iter().flatten());
        match (long, short) {
            (Some(long), _) => longs.into_iter().any(|known| known == long),
            (None, Some(short)) => shorts.into_iter().any(|known| short.chars().eq([known])),
            (None, None) => false,
        }
    })
}

/// Returns true if its value is the word after it.
fn takes_value(option: &Arg) -> bool {
    let values = option.get_num_args();
    option.get_action().takes_values()
        && !option.is_require_equals_set()
        && values.is_none_or(|values| values.min_values() > 0)
}
