//! The command line as a whole; each subcommand's arguments are in its own file.

use std::ffi::OsString;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::builder::styling::{AnsiColor, Styles};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand, ValueHint};

use crate::account::RusageArgs;
use crate::batch::BatchArgs;
use crate::bench::BenchArgs;
use crate::completions::CompletionsArgs;
use crate::convert::ConvertArgs;
use crate::cp::CpArgs;
use crate::embed::EmbedArgs;
use crate::embed::rerank::RerankArgs;
use crate::hub::list::ListArgs;
use crate::hub::pull::PullArgs;
use crate::hub::rm::RmArgs;
use crate::hub::suggested;
use crate::imatrix::ImatrixArgs;
use crate::inspect::InspectArgs;
use crate::layout::{self, lines};
use crate::man::ManArgs;
use crate::merge::MergeArgs;
use crate::outcome::{Outcome, Stop};
use crate::pack::{PackArgs, UnpackArgs};
use crate::perplexity::PerplexityArgs;
use crate::prompt_cache::CacheCommandArgs;
use crate::quantize::QuantizeArgs;
use crate::replay::ReplayArgs;
use crate::run::RunArgs;
use crate::serve::ServeArgs;
use crate::terminal_text::one_line;
use crate::tokenize::TokenizeArgs;
use crate::{output, plain, say};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Run language models straight from a mapped file
#[derive(Debug, Parser)]
#[command(
    name = "alight",
    version = long_version(),
    styles = STYLES,
    propagate_version = false,
    // An alias has its own options; those typed after it count.
    args_override_self = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  alight run model.gguf \"Why is the sky blue?\"  an answer, streamed
  alight run model.gguf                         a chat; Ctrl-D leaves
  alight run hf.co/USER/REPO:Q4_K_M \"Hello\"     a model of the hub
  git diff | alight run model.gguf - --system \"Review this change.\"
  alight batch model.gguf prompts.jsonl -o answers.jsonl
  alight embed model.gguf texts.txt -o v.npy    a vector of each line
  alight replay answer.json model.gguf          does it still answer so?
  alight serve model.gguf                       a server for OpenAI's clients
  alight inspect model.gguf                     what is in the file
  alight tokenize model.gguf \"Hello\"            the tokens of a text
  alight convert folder/ -o model.gguf          other programs' files, as GGUF
  alight pack model.gguf -o packed.gguf         the same weights, faster
  alight bench decode model.gguf                how fast it is, and the limit

The answer goes to standard output and nothing else does; notes and statistics go to standard \
error. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted by Ctrl-C. \
`alight help COMMAND` explains one command.

Options for every run go into ~/.config/alight/config.toml (`[run]`, `temp = 0.6`), or into the \
environment (ALIGHT_TEMP=0.6), under the names of the options. ALIGHT_CONFIG names another file."
)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer a prompt, or chat
    Run(RunArgs),
    /// Answer many prompts at the same time, one to a line
    Batch(BatchArgs),
    /// Make vectors of texts, one for each line
    Embed(EmbedArgs),
    /// Sort documents by how well they suit a query
    Rerank(RerankArgs),
    /// Compute recorded answers again, and say where they differ
    Replay(ReplayArgs),
    /// Serve models over HTTP, with OpenAI's API and others
    Serve(ServeArgs),
    /// Show what is in a model file: metadata, tensors, types, sizes, alignment
    Inspect(InspectArgs),
    /// Show how a model tokenizes a text, or count its tokens
    Tokenize(TokenizeArgs),
    /// Measure how well a model predicts text, or how far it is from a reference
    Perplexity(PerplexityArgs),
    /// Measure tokens per second, and the share of this machine's limit
    Bench(BenchArgs),
    /// Write a model file in the layout that runs fastest
    Pack(PackArgs),
    /// Restore the original of a packed file
    Unpack(UnpackArgs),
    /// Convert a Hugging Face, PyTorch or GGML model to GGUF
    Convert(ConvertArgs),
    /// Write a model file with weights of another type
    Quantize(QuantizeArgs),
    /// Write a model file with LoRA adapters merged into its weights
    Merge(MergeArgs),
    /// Measure which columns of a model's matrices matter most, for `quantize`
    Imatrix(ImatrixArgs),
    /// List or remove the prompts that `run --cache` keeps
    Cache(CacheCommandArgs),
    /// Fetch models from the Hugging Face hub into its cache
    Pull(PullArgs),
    /// List the models that are in the hub's cache
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Remove models from the hub's cache
    Rm(RmArgs),
    /// Copy files to the disk, leaving the page cache as it was
    Cp(CpArgs),
    /// Run a command, and say what it used (by `rusage`, installed beside this program)
    Rusage(RusageArgs),
    /// Write a completion script for your shell
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(ManArgs),
}

impl Command {
    /// Returns the models given to it, each of which may be one of the hub; and true if nothing may be fetched.
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        match self {
            // `inspect` and `convert` look for themselves.
            Command::Run(a) => a.models(),
            Command::Batch(a) => a.models(),
            Command::Embed(a) => a.models(),
            Command::Rerank(a) => a.models(),
            Command::Replay(a) => a.models(),
            Command::Serve(a) => a.models(),
            Command::Tokenize(a) => (vec![&mut a.model], a.hub.offline),
            Command::Perplexity(a) => a.models(),
            Command::Imatrix(a) => a.models(),
            Command::Bench(a) => a.models(),
            Command::Pack(a) => (vec![&mut a.model], a.hub.offline),
            Command::Quantize(a) => (vec![&mut a.model], a.hub.offline),
            Command::Merge(a) => (vec![&mut a.model], a.hub.offline),
            _ => (vec![], false),
        }
    }
}

/// Returns the version, the commit it was built from, the kernels that this CPU would run, and the features that the program
/// lacks.
fn long_version() -> &'static str {
    use std::sync::OnceLock;
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        format!(
            "{}\ncommit: {}\nkernels: {} (of {}){}",
            env!("CARGO_PKG_VERSION"),
            env!("ALIGHT_COMMIT"),
            alight_kernels::Isa::best(),
            alight_kernels::Isa::available()
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", "),
            match (cfg!(feature = "grammar"), cfg!(feature = "tls")) {
                (true, true) => "",
                (false, true) => "\nbuilt without grammars",
                (true, false) => "\nbuilt without HTTPS",
                (false, false) => "\nbuilt without grammars and HTTPS",
            },
        )
    })
}

/// Returns the command line. Each option with a value accepts a negative number (llama.cpp has `--top-k -1`); an option without
/// negative values reports that itself. Shells complete the names of files where a path is expected.
pub fn command() -> clap::Command {
    fn adapted(command: clap::Command) -> clap::Command {
        let command = command.mut_args(|argument| {
            let takes = argument.get_action().takes_values() && !argument.is_positional();
            let is_path =
                argument.get_value_parser().type_id() == ValueParser::path_buf().type_id();
            let argument = argument.allow_negative_numbers(takes);
            match argument.get_value_hint() {
                ValueHint::Unknown if is_path => argument.value_hint(ValueHint::FilePath),
                _ => argument,
            }
        });
        command.mut_subcommands(adapted)
    }
    adapted(Cli::command())
}

/// Returns the help or the version if `words` request one: those depend on no setting.
pub fn help(words: &[OsString]) -> Option<Outcome> {
    let said = command().try_get_matches_from(words).err()?;
    (!said.use_stderr()).then(|| instead(words, said))
}

/// Returns the outcome instead of a command's: help or a version, which are results, or the error
/// in the command line `words`.
pub fn instead(words: &[OsString], error: clap::Error) -> Outcome {
    if !error.use_stderr() {
        let text = error.render();
        let styled = stdout().is_terminal() && say::colours_allowed();
        let text = if styled { text.ansi().to_string() } else { text.to_string() };
        // The parser breaks long lines of help itself, but not that of the usage.
        let columns = layout::size(stdout()).map(|(columns, _)| columns);
        return output::report(lines::fit(&text, columns));
    }
    // The message repeats arguments, which may be file names inserted by a shell. So the message is
    // made from arguments in which nothing drives a terminal.
    let shown = words.iter().map(|argument| one_line(&argument.to_string_lossy()).into_owned());
    let mut error = command().try_get_matches_from(shown).err().unwrap_or(error);
    if error.kind() == ErrorKind::UnknownArgument {
        match tip(words, &error) {
            Some(tip) => {
                error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]))
            }
            // (Without the tip that everything after `--` is a prompt: a misspelt option would be one.)
            None => error.remove(ContextKind::Suggested),
        };
    }
    if error.kind() == ErrorKind::InvalidSubcommand
        && error.get(ContextKind::SuggestedSubcommand).is_none()
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
        && let Some(name) = similar_command(word)
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(name));
    }
    if error.kind() == ErrorKind::MissingRequiredArgument
        && words.get(1).is_some_and(|word| ["run", "serve"].contains(&&*word.to_string_lossy()))
    {
        let tip = suggested::tip(&words[1].to_string_lossy());
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    if error.kind() == ErrorKind::InvalidUtf8 {
        return Err(Stop::Usage(
            "an argument is not UTF-8, where a text is expected: give the text in a file (-f FILE), or convert it with `iconv`"
                .to_owned(),
        ));
    }
    let text = error.render();
    let text = if say::colour() { text.ansi().to_string() } else { text.to_string() };
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        say::styled(&text);
        return Err(Stop::Refused);
    }
    // As all other errors begin.
    say::styled(&format!("alight: {}", in_plain_words(text, &error)));
    Err(Stop::Refused)
}

/// Returns the command that a word is a misspelling of, with one letter too many, too few or other, or two of them swapped. (Clap
/// finds none for a short one with swapped letters.)
fn similar_command(word: &str) -> Option<String> {
    let command = command();
    let mut names = command.get_subcommands().map(|one| one.get_name());
    let is_near = |name: &&str| strsim::damerau_levenshtein(word, name) <= 1;
    names.find(is_near).map(str::to_owned)
}

/// Returns advice about an unexpected argument.
fn tip(words: &[OsString], said: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = said.get(ContextKind::InvalidArg) else { return None };
    if word.starts_with('-') {
        // Only a text contains a space.
        let mut words = words.iter().filter_map(|given| given.to_str());
        let is_text = words.any(|given| given.starts_with(word) && given.contains(' '));
        return is_text
            .then(|| "to give a text that begins with a dash, write -- before it".to_owned());
    }
    let command = command();
    let command = command.find_subcommand(words.get(1)?)?;
    let after_equals = |pair: &[OsString]| {
        let name = pair[0].to_str()?.strip_prefix("--")?;
        let option = command.get_arguments().find(|option| option.get_long() == Some(name))?;
        let value = pair[1].to_str().filter(|value| !value.starts_with('-'))?;
        option.is_require_equals_set().then(|| {
            format!("the value of --{name} is written after '=': --{name}={}", one_line(value))
        })
    };
    let run = command.get_name() == "run";
    words.windows(2).find_map(after_equals).or_else(|| {
        run.then(|| "a prompt of several words is one argument: put it between quotes".to_owned())
    })
}

/// Returns the message with the reason against a value in plain words. The rest of it stays as it is: the value is the user's.
fn in_plain_words(text: String, said: &clap::Error) -> String {
    use std::error::Error;
    let value = match said.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value,
        _ => return text,
    };
    let Some(why) = said.source().map(ToString::to_string) else { return text };
    match text.rsplit_once(&why) {
        Some((before, after)) => format!("{before}{}{after}", plain::why(&why, value)),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
