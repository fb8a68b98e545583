//! `alight`: language models straight from a mapped file. (see docs/explanation/architecture.md)
//!
//! Turns arguments into calls, and results into text. One file (or folder) per subcommand.
//!
//! **Invariant:** results go to stdout ([`output`]) and nothing else does; all messages to the user go to stderr through [`say`].
//! If a result cannot be written to stdout, the status is 1.
//!
//! **Invariant:** memory that the system refuses is an error of one line, too ([`memory`]), and no abort.
//!
//! **Invariant:** a write that fails is an error that names the file, also where the limit on the size of files is the reason.
//!
//! **Invariant:** the exit status is 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted). A reader that
//! closes the pipe ends the program quietly.
//!
//! **Invariant:** no text from a model, a file, a file's name or an argument drives a terminal or begins a line of its own
//! ([`terminal_text`]). A pipe or a file gets the bytes of an answer.
//!
//! **Invariant:** a text that is read whole has a limit, and a report is never much larger than the header it describes.
//!
//! **Invariant:** a signal that was ignored when the program was started stays ignored; whatever ends a chat, the terminal is
//! restored.

mod account;
mod answer_limits;
mod args;
mod bar;
mod batch;
mod bench;
mod body_options;
mod chunks;
mod completions;
mod conversion;
mod convert;
mod cp;
mod defaults;
mod drafts;
mod embed;
mod explain_load;
mod habits;
mod hub;
mod imatrix;
mod inspect;
mod interrupt;
mod layout;
mod lora;
mod man;
mod memory;
mod merge;
mod needs;
mod new_file;
mod open;
mod outcome;
mod output;
mod pack;
mod panics;
mod perplexity;
mod phases;
mod plain;
mod prompt_cache;
mod python;
mod quantization;
mod quantize;
mod record;
mod replay;
mod run;
mod say;
mod serve;
mod short_help;
mod source;
mod template;
mod terminal;
mod terminal_text;
mod text_input;
mod threads;
mod tokenize;
mod units;

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use clap::FromArgMatches;

use args::{Cli, Command};

fn main() -> ExitCode {
    let started = Instant::now();
    memory::end_the_process();
    panics::end_the_process();
    outcome::survive_size_limit();
    let known = args::command();
    let words = match habits::translated(env::args_os().collect(), &known) {
        Ok(words) => words,
        Err(stop) => return outcome::report(Err(stop)),
    };
    let command = match defaults::applied(known, &words) {
        Ok(command) => command,
        Err(stop) => return outcome::report(args::help(&words).unwrap_or(Err(stop))),
    };
    let parsed = command.try_get_matches_from(&words);
    let parsed = parsed.and_then(|given| Ok((Cli::from_arg_matches(&given)?, given)));
    let (mut cli, given) = match parsed {
        Ok(parsed) => parsed,
        Err(said) => return outcome::report(args::instead(&words, said)),
    };
    let given = given.subcommand().map(|(_, given)| given).unwrap_or(&given);
    let (models, offline) = cli.command.models();
    if let Err(stop) = hub::resolve(models, offline) {
        let is_replay = matches!(cli.command, Command::Replay(_));
        return outcome::report(Err(if is_replay { replay::no_model(stop) } else { stop }));
    }
    let outcome = match cli.command {
        Command::Run(a) => run::main(a, given, started),
        Command::Batch(a) => batch::main(a),
        Command::Embed(a) => embed::main(a),
        Command::Rerank(a) => embed::rerank::main(a),
        Command::Replay(a) => replay::main(&a, given),
        Command::Serve(a) => serve::main(a),
        Command::Inspect(a) => inspect::main(&a),
        Command::Tokenize(a) => tokenize::main(&a),
        Command::Perplexity(a) => perplexity::main(a),
        Command::Bench(a) => bench::main(a),
        Command::Pack(a) => pack::pack(&a),
        Command::Unpack(a) => pack::unpack(&a),
        Command::Convert(a) => convert::main(&a),
        Command::Quantize(a) => quantize::main(&a),
        Command::Merge(a) => merge::main(&a),
        Command::Imatrix(a) => imatrix::main(&a),
        Command::Cache(a) => prompt_cache::main(a),
        Command::Pull(a) => hub::pull::main(&a),
        Command::List(a) => hub::list::main(&a),
        Command::Rm(a) => hub::rm::main(&a),
        Command::Cp(a) => cp::main(&a),
        Command::Rusage(a) => account::main(&a),
        Command::Completions(a) => completions::main(&a, args::command()),
        Command::Man(a) => man::main(&a, args::command()),
    };
    outcome::report(outcome)
}
