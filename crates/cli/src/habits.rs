//! What people type who know llama.cpp: other names of options, options that there is no need for here, and
//! options that would mean something else to this command line (`-hf` is not `-h`, `-ngl` is not `-n gl`).
//!
//! An option that a command has is never touched, so a table of names is all there is to add to.

use std::ffi::{OsStr, OsString};

use alight_hub::Name;
use clap::{Arg, Command};

use crate::outcome::{Outcome, Stop};
use crate::say;

/// The commands that programs of llama.cpp have a counterpart of.
const COMMANDS: [&str; 5] = ["run", "batch", "serve", "bench", "perplexity"];

/// What an option means here.
#[derive(Clone, Copy, Debug)]
enum Means {
    /// The model, which is the first argument.
    Model,
    /// The same, on the hub: `user/repo:Q4_K_M`.
    Repo,
    /// Which of its files.
    RepoFile,
    /// The same, by its address.
    Url,
    /// The draft model, on the hub.
    RepoDraft,
    /// The option of this name, with a value if that takes one.
    Same(&'static str),
    /// These words.
    Words(&'static [&'static str]),
    /// Nothing, with such a value; why.
    NotNeeded(Value, &'static str),
    /// It cannot be had; what to do instead.
    Instead(&'static str),
}

/// The value of an option that is left out.
#[derive(Clone, Copy, Debug)]
enum Value {
    No,
    One,
    /// If one of `on`, `off`, `auto`, `0`, `1`, `-1` follows.
    Switch,
}

use Means::{Instead, Model, NotNeeded, Repo, RepoDraft, RepoFile, Same, Url, Words};
use Value::{No, One, Switch};

const CPU: &str = "all of the model is computed on the CPU";
const TOKEN: &str =
    "set HF_TOKEN, or log in with `hf auth login`: others can read what is on a command line";
const SAMPLERS: &str =
    "tokens are drawn with --temp, --top-k, --top-p, --min-p and the penalties alone";
const FILE: &str = "what the model's file says of its positions is what counts";
const LOG: &str = "nothing is logged; --stats and --explain-load say what was done";
const GRAMMAR: &str = "`alight serve` holds answers to a schema or a grammar: see response_format in docs/reference/server.md";

/// Options by their names.
const HABITS: &[(&[&str], Means)] = &[
    (&["-m", "--model"], Model),
    (&["-sys"], Same("--system")),
    (&["-sysf", "--system-prompt-file"], Instead("write --system \"$(cat FILE)\"")),
    (&["-md"], Same("--draft")),
    (&["-np"], Same("--parallel")),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"], Same("--cache-type")),
    (&["-r", "--reverse-prompt"], Same("--stop")),
    (&["-no-cnv", "--no-conversation"], Words(&["--raw"])),
    (&["--mlock"], Words(&["--lock"])),
    (&["--no-mmap"], Words(&["--load", "read"])),
    (&["--mmap"], Words(&["--load", "mmap"])),
    (&["--perf"], Words(&["--stats"])),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers", "-ngld"], NotNeeded(One, CPU)),
    (&["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"], NotNeeded(One, CPU)),
    (&["-dev", "--device", "-ot", "--override-tensor"], NotNeeded(One, CPU)),
    (&["-ncmoe", "--n-cpu-moe"], NotNeeded(One, CPU)),
    (&["-cmoe", "--cpu-moe", "-nkvo", "--no-kv-offload"], NotNeeded(No, CPU)),
    (&["-fa", "--flash-attn"], NotNeeded(Switch, "attention is always computed that way")),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        NotNeeded(One, "prompts are computed in pieces of a size that suits the CPU"),
    ),
    (&["-tb", "--threads-batch"], NotNeeded(One, "prompts are computed with the threads of -t")),
    (&["--numa"], NotNeeded(One, "weights are read where they are")),
    (&["-C", "--cpu-mask", "-Cr", "--cpu-range"], NotNeeded(One, "`taskset` chooses the CPUs")),
    (&["--cpu-strict", "--prio", "--poll"], NotNeeded(One, "`nice` and `taskset` do that")),
    (&["--jinja", "--no-jinja"], NotNeeded(No, "the model's own template is always used")),
    (
        &["-cnv", "--conversation", "-i", "--interactive"],
        NotNeeded(No, "a chat begins where there is no prompt"),
    ),
    (&["-st", "--single-turn"], NotNeeded(No, "with a prompt there is one answer")),
    (&["-co", "--color"], NotNeeded(Switch, "a terminal gets colours, unless NO_COLOR is set")),
    (&["--simple-io"], NotNeeded(No, "a pipe gets nothing but the answer")),
    (&["--no-display-prompt"], NotNeeded(No, "the prompt is never repeated")),
    (&["--no-warmup", "--warmup"], NotNeeded(No, "there is no run before the first")),
    (&["--no-perf"], NotNeeded(No, "times are said with --stats only")),
    (&["-cb", "--cont-batching"], NotNeeded(No, "requests are always computed together")),
    (&["-kvu", "--kv-unified"], NotNeeded(No, "each sequence has its own context")),
    (&["--keep"], NotNeeded(One, "a chat that grows too long forgets its oldest exchanges")),
    (
        &["--context-shift", "--no-context-shift"],
        NotNeeded(No, "an answer ends where the context does"),
    ),
    (&["--log-disable", "-v", "--verbose", "--log-verbose"], NotNeeded(No, LOG)),
    (&["-lv", "--verbosity", "--log-file", "--log-colors"], NotNeeded(One, LOG)),
    (&["-e", "--escape"], Instead("the shell makes line breaks: $'one\\ntwo'")),
    (&["--no-escape"], NotNeeded(No, "a backslash in a prompt is a backslash")),
    (&["-hf", "-hfr", "--hf-repo"], Repo),
    (&["-hff", "--hf-file"], RepoFile),
    (&["-hfd", "-hfrd", "--hf-repo-draft"], RepoDraft),
    (&["-mu", "--model-url"], Url),
    (&["-hft", "--hf-token"], Instead(TOKEN)),
    (
        &["-dr", "--docker-repo"],
        Instead("models come from the Hugging Face hub (-hf USER/REPO) or from files"),
    ),
    (&["--chat-template"], Instead("give the template as a file, with --chat-template-file")),
    (&["--grammar", "--grammar-file", "-j", "--json-schema", "-jf"], Instead(GRAMMAR)),
    (&["--lora", "--lora-scaled"], Instead("adapters are not read: merge it into the model first")),
    (&["-mm", "--mmproj", "--image", "--audio"], Instead("models take and give text alone")),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], Instead(FILE)),
    (&["--yarn-orig-ctx", "--yarn-ext-factor"], Instead(FILE)),
    (&["--override-kv"], Instead("`gguf_set_metadata.py` of llama.cpp writes keys into a file")),
    (&["--prompt-cache"], Instead("--cache keeps what was computed of prompts, all in one folder")),
    (&["--mirostat", "--typical", "--samplers", "--sampler-seq"], Instead(SAMPLERS)),
    (&["--dynatemp-range", "--top-nsigma", "--logit-bias", "-l"], Instead(SAMPLERS)),
    (&["--dry-multiplier", "--xtc-probability", "--xtc-threshold"], Instead(SAMPLERS)),
];

/// The command line `given`, as `cli` has it.
pub fn translated(given: Vec<OsString>, cli: &Command) -> Outcome<Vec<OsString>> {
    let (mut command, mut at) = (cli, 1);
    while let Some(next) = given.get(at).and_then(|name| command.find_subcommand(name)) {
        (command, at) = (next, at + 1);
    }
    if command.get_name() == "quantize" {
        return Ok(as_llama_quantize(given, command));
    }
    let named = given.get(1).is_some_and(|name| COMMANDS.iter().any(|known| name == known));
    if !named {
        return Ok(given);
    }
    let mut words: Vec<OsString> = given[..at].to_vec();
    let mut first = words.len();
    let mut rest = given[at..].iter().peekable();
    let (mut repo, mut file) = (None, None);
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
            if takes_value(option) && name.len() == word.len() {
                words.extend(rest.next().cloned());
            }
            continue;
        }
        let habit = HABITS.iter().find(|(names, _)| names.contains(&name));
        match habit.map(|(_, means)| *means) {
            // What follows is not the value of anything that is known.
            None if name.starts_with("-h") && name.len() > 2 => {
                return Err(Stop::Usage(format!(
                    "there is no option '{name}': -h alone is the help"
                )));
            }
            None => words.push(word.clone()),
            Some(Model) => match rest.next() {
                Some(model) => {
                    words.insert(first, model.clone());
                    // Of several, the next stands behind it.
                    first += 1;
                }
                None => return Err(Stop::Usage(format!("{name} needs the path of a model"))),
            },
            Some(means @ (Repo | RepoFile | Url | RepoDraft)) => {
                let value = match word.to_str().and_then(|word| word.split_once('=')) {
                    Some((_, value)) => Some(value.to_owned()),
                    None => rest.next().map(|value| value.to_string_lossy().into_owned()),
                };
                let Some(value) = value.filter(|value| !value.is_empty()) else {
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
                words.extend(rest.next().cloned());
            }
            Some(Words(others)) if option(command, others[0]).is_some() => {
                words.extend(others.iter().map(OsString::from));
            }
            Some(Same(_) | Words(_)) => words.push(word.clone()),
            Some(NotNeeded(value, why)) => {
                let switch = |next: &&OsString| {
                    ["on", "off", "auto", "0", "1", "-1"].iter().any(|one| **next == *one)
                };
                match value {
                    No => None,
                    One => rest.next(),
                    Switch => rest.next_if(switch),
                };
                say::note(&format!("{name} is not needed: {why}"));
            }
            Some(Instead(what)) => {
                return Err(Stop::Usage(format!("there is no {name}: {what}")));
            }
        }
    }
    match (repo, file) {
        (Some(repo), None) => words.insert(first, on_hub(&repo).into()),
        (Some(repo), Some(file)) => {
            // A file says more than a quantization.
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

/// The name of a repository as a model has it.
fn on_hub(repo: &str) -> String {
    match Name::without_hub(repo) {
        Some(_) => repo.to_owned(),
        None => format!("hf.co/{repo}"),
    }
}

/// `quantize IN OUT TYPE [THREADS]`, as options.
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

/// An option without its `=VALUE`; no option's name if it is none.
fn name(word: &OsStr) -> &str {
    let word = word.to_str().unwrap_or_default();
    match word.split_once('=') {
        Some((name, _)) if name.starts_with("--") => name,
        _ => word,
    }
}

/// The option that a command has under this name.
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

/// Whether its value is the word behind it.
fn takes_value(option: &Arg) -> bool {
    let values = option.get_num_args();
    option.get_action().takes_values()
        && !option.is_require_equals_set()
        && values.is_none_or(|values| values.min_values() > 0)
}
