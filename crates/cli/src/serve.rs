//! `alight serve`: converts arguments into a server of `alight-server`, which does the rest; handles signals; prints messages.

use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use alight_model::{EngineOptions, MAX_SEQUENCES, Model, describe};
use alight_server::{Listening, Options, Served, ServedAdapter, Server, Stopper, is_socket_file};
use anyhow::{Context, anyhow};
use listenfd::ListenFd;
use rusage::inherited::is_ignored;
use serde_json::{Map, Value};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::drafts::DraftArgs;
use crate::interrupt::Interrupt;
use crate::lora::NamedFile;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop, chain};
use crate::pack::KeepArgs;
use crate::run::sampling::SamplingArgs;
use crate::template::TemplateArgs;
use crate::terminal_text::one_line;
use crate::{
    answer_limits, panics, prompt_cache, quantization, say, short_help, source, text_input, units,
};

/// Context size of a sequence by default, if the model was trained for more.
const CONTEXT: usize = 32 << 10;
/// Maximum bytes of a file of keys.
const KEYS: u64 = 1 << 20;

/// The options that `-h` shows.
const SHORT: short_help::Shown = &[
    ("models", Some("Models: .gguf files, a folder of them, or hf.co/USER/REPO")),
    ("alias", Some("Name of the model in requests [default: the file's]")),
    ("host", Some("Address to listen at; 0.0.0.0: all of this machine")),
    ("port", None),
    ("ctx_size", Some("Tokens of a prompt and its answer")),
    ("parallel", Some("Requests that are computed at the same time")),
    ("api_key_file", Some("Keys that requests must have, one to a line")),
    ("metrics", None),
    ("pack", Some("Pack the model once, which makes it faster")),
    ("threads", Some("Threads to compute with")),
];

/// Arguments of `alight serve`.
#[derive(Debug, clap::Args)]
#[command(mut_args = short_help::only(SHORT), after_help = short_help::END, after_long_help = "\
Examples:
  alight serve model.gguf
  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'
  alight serve model.gguf --port 9000 --parallel 16 --ctx-size 8192
  alight serve one.gguf other.gguf  (requests choose one by `model`)
  alight serve model.gguf --host 0.0.0.0 --api-key-file keys.txt

It says \"listening on http://…\" on standard error when it is ready. After Ctrl-C, SIGTERM or SIGHUP, requests that \
are being answered have some seconds to finish (--drain-seconds); a second one ends the program at once. docs/reference/server.md has every address.")]
pub struct ServeArgs {
    /// The model: a .gguf file (of a split model, its first shard). Several, or a folder of them: requests choose by `model`
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<PathBuf>,

    /// Name of the model in requests and answers, and further names that requests may use, separated by commas; of several models, a
    /// name for each [default: the files' names]
    #[arg(short = 'a', long, value_name = "NAME", value_delimiter = ',', value_parser = alias)]
    alias: Vec<String>,

    /// Listen at this address; 0.0.0.0: at all of this machine; PATH.sock: at this Unix socket
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,

    /// Listen at this port; 0: one that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// Context size of each sequence in tokens, prompt and answer; 0: as many as the model was trained for
    /// [default: 32768, or what it was trained for if that is less]
    #[arg(short = 'c', long, value_name = "N", value_parser = answer_limits::positions)]
    ctx_size: Option<usize>,

    /// Requests that are computed at the same time; further ones wait
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 8, value_parser = sequences)]
    parallel: usize,

    /// Requests that may wait; further ones get 503
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue: usize,

    /// At most this many tokens of prompts are computed in one step
    #[arg(short = 'b', long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    batch_size: u16,

    /// Keep at most N MiB of computed prompts in memory, for prompts that begin alike; 0: none, -1: as much as there is
    #[arg(long, value_name = "N", default_value_t = 1024, allow_negative_numbers = true,
          value_parser = clap::value_parser!(i64).range(-1..=1 << 30))]
    cache_ram: i64,

    /// Generate at most N tokens for a request that sets no limit; -1 or -2: until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, visible_alias = "n-predict",
          value_parser = clap::value_parser!(i64).range(-2..))]
    predict: i64,

    /// A key that requests must have; several are separated by commas. Other users can see it in the list of processes: a file is better
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,

    /// A file of such keys, one to a line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Origins that browsers may send requests from, such as https://host, separated by commas; localhost: this machine's, at any
    /// port; *: all
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = origin)]
    cors_origins: Vec<String>,

    /// Serve Prometheus metrics at /metrics
    #[arg(long)]
    metrics: bool,

    /// Names of metrics: llama-server's; or vLLM's, too, which pickers of endpoints in Kubernetes look for
    #[arg(long, value_name = "WHOSE", default_value = "llama", requires = "metrics")]
    metrics_names: MetricNames,

    /// Give requests that are being answered N seconds to finish, after Ctrl-C, SIGTERM or SIGHUP
    #[arg(long, value_name = "N", default_value_t = 5)]
    drain_seconds: u32,

    /// Log one line a request on standard error: time, client, path, status, seconds, model, tokens, and what was dropped or changed
    /// of it; auto: if that is a terminal
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    log: LogRequests,

    /// Disable /slots
    #[arg(long, overrides_with = "slots")]
    no_slots: bool,

    /// Enable /slots (default)
    #[arg(long)]
    slots: bool,

    #[command(flatten)]
    template: TemplateArgs,

    /// Let the model think before its answers, where its template has a switch for that and a request does not set it; auto: as the
    /// template does by itself
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    reasoning: Reasoning,

    /// End the thinking before an answer after N tokens, if a request sets no such limit; -1: no limit
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = clap::value_parser!(i64).range(-1..))]
    reasoning_budget: i64,

    #[command(flatten)]
    keep: KeepArgs,

    /// Let /slots/N?action=save and restore write and read files of prompts in DIR
    #[arg(long, value_name = "DIR")]
    slot_save_path: Option<PathBuf>,

    /// Give memory back after N seconds without a request; the next one waits until the model is there again. -1: never
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = clap::value_parser!(i64).range(-1..))]
    sleep_idle_seconds: i64,

    /// No page with a chat and a picture of memory at /
    #[arg(long, visible_alias = "no-webui")]
    no_ui: bool,

    /// Keep what was computed of prompts in DIR, over restarts [default: alight/prompts in $XDG_CACHE_HOME, or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,

    /// Keep nothing in files
    #[arg(long, conflicts_with = "cache_dir")]
    no_cache: bool,

    /// A LoRA adapter for the model, a GGUF file; requests choose it by `model`: NAME, or the model's name, a colon and NAME. Without a
    /// name, all requests that name none have it, at this scale [default: 1]; may be given several times
    #[arg(long, value_name = "NAME=FILE|FILE[:SCALE]", visible_alias = "lora-scaled", value_delimiter = ',', action = clap::ArgAction::Append)]
    lora: Vec<NamedFile>,

    /// A folder of LoRA adapters, each of which requests choose by the name of its file
    #[arg(long, value_name = "DIR")]
    lora_folder: Option<PathBuf>,

    /// Let clients name files of this machine as LoRA adapters (/v1/load_lora_adapter)
    #[arg(long)]
    allow_load: bool,

    #[command(flatten)]
    drafts: DraftArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// The names of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MetricNames {
    Llama,
    Vllm,
}

/// When requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogRequests {
    Auto,
    On,
    Off,
}

/// When a model thinks before its answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reasoning {
    Auto,
    On,
    Off,
}

/// Parses a name that requests can use for a model.
fn alias(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("expected a name, or several separated by commas".to_owned()),
        false => Ok(text.to_owned()),
    }
}

/// Bytes of computed prompts that are kept, of the option in MiB.
fn prompt_cache_bytes(mib: i64) -> usize {
    match u64::try_from(mib) {
        Ok(mib) => usize::try_from(mib << 20).unwrap_or(usize::MAX),
        Err(_) => usize::try_from(alight_pages::available_memory().0).unwrap_or(usize::MAX),
    }
}

fn sequences(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MAX_SEQUENCES).contains(&n) => Ok(n),
        _ => Err(format!("expected a number from 1 to {MAX_SEQUENCES}")),
    }
}

/// Parses an origin whose pages may send requests: a malformed one would silently allow none.
fn origin(text: &str) -> Result<String, String> {
    let text = text.trim();
    match ["", "*", "null", "localhost"].contains(&text) || text.contains("://") {
        true => Ok(text.to_owned()),
        false => Err(
            "expected https://host, localhost for this machine's pages at any port, or * for all"
                .to_owned(),
        ),
    }
}

/// Runs the command.
pub fn main(args: ServeArgs) -> Outcome {
    args.sampling.check()?;
    let keys = args.keys()?;
    if let Some(folder) = args.slot_save_path.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(
            anyhow!("'{}' is no folder to save slots in: make it first", folder.display()).into()
        );
    }
    let prompts = match (&args.cache_dir, args.no_cache) {
        (_, true) => None,
        (Some(dir), _) => Some(prompt_cache::folder(Some(dir.clone()))?),
        // Without a home folder there are none, which is no reason not to serve.
        (None, _) => prompt_cache::folder(None).ok(),
    };
    let named = args.named()?;
    let mut served = Vec::new();
    for (names, file) in &named {
        let name = &names[0];
        match (args.open(names, &file.path), &file.folder) {
            (Ok(one), _) => served.push(one),
            // A folder may contain files that cannot be served, such as an image projector: the others are served.
            (Err(Stop::Failed(why)), Some(_)) => {
                say::note(&format!("{name} is not served: {}", chain(&why)));
            }
            (Err(stop), _) => return Err(stop),
        }
    }
    if let ([], Some((_, file))) = (&served[..], named.first()) {
        let folder = file.folder.as_deref().unwrap_or(&file.path);
        let message = format!("no file in the folder '{}' can be served", folder.display());
        return Err(anyhow!(message).into());
    }
    match (args.drafts.file(), &mut served[..]) {
        (None, _) => {}
        (Some(_), [one]) => one.draft = args.drafts.leaked(&args.engine)?,
        (Some(_), _) => {
            let message = "--draft goes with one model: serve the others by another process";
            return Err(Stop::Usage(message.to_owned()));
        }
    }
    match (args.lora.is_empty() && args.lora_folder.is_none() && !args.allow_load, &mut served[..])
    {
        (true, _) => {}
        (false, [one]) => one.adapters = args.adapters(&one.aliases, &one.name)?,
        (false, _) => {
            let message = "--lora, --lora-folder and --allow-load go with one model: serve the others by another process";
            return Err(Stop::Usage(message.to_owned()));
        }
    }
    let engine = EngineOptions {
        sequences: args.parallel,
        batch: usize::from(args.batch_size),
        prompt_precision: args.engine.prompt_precision(),
        cache_type: args.engine.cache_type(),
        speculate: args.drafts.speculate,
        prompt_cache: prompt_cache_bytes(args.cache_ram),
        prompts,
        ..EngineOptions::default()
    };
    let given = given_socket()?;
    let host = match &given {
        Some(socket) => socket.host().context("the given socket has no address")?,
        None => args.host.clone(),
    };
    let options = Options {
        host,
        port: args.port,
        engine,
        sampling: args.sampling.options(),
        dry_sequence_breakers: args.sampling.breakers().map(<[String]>::to_vec),
        fixed_seed: !args.sampling.are_random(),
        max_tokens: usize::try_from(args.predict).unwrap_or(usize::MAX),
        queue: args.queue,
        keys,
        origins: args.cors_origins.clone(),
        metrics: args.metrics,
        vllm_metrics: args.metrics_names == MetricNames::Vllm,
        drain: Duration::from_secs(args.drain_seconds.into()),
        slots: !args.no_slots,
        slot_files: args.slot_save_path.clone(),
        rest: u64::try_from(args.sleep_idle_seconds).ok().map(Duration::from_secs),
        page: !args.no_ui,
        template_variables: args.template_variables(),
        allow_load: args.allow_load,
    };
    if options.is_public() && options.keys.is_empty() {
        say::note(&format!(
            "everyone who can reach {} can use this server, because there is no key: give --api-key-file",
            options.host
        ));
    }
    panics::end_their_task();
    let mut server = match given {
        Some(socket) => Server::given(socket, options).context("the given socket is of no use")?,
        None => Server::bind(options).with_context(|| match is_socket_file(&args.host) {
            true => format!("cannot listen at {} (--host)", args.host),
            false => format!("cannot listen at {} port {} (--host, --port)", args.host, args.port),
        })?,
    };
    if args.logs_requests() {
        server.log_requests(Arc::new(say::line));
    }
    let address = server.address().context("the address is not known")?;
    stop_by_signals(server.stopper(), args.drain_seconds)?;
    let models: Vec<&'static Model> = served.iter().map(|served| served.model).collect();
    let log = Arc::new(|text: &str| say::note(text));
    let outcome = server.run(served, log, || {
        models.iter().for_each(|model| args.engine.explain_outcome(model));
        say::line(&format!("listening on {address}"));
    });
    outcome.map_err(|why| anyhow!(why).into())
}

/// Returns the socket that a service manager created for this process (`LISTEN_FDS`, as in systemd), if there is one.
fn given_socket() -> Outcome<Option<Listening>> {
    let mut given = ListenFd::from_env();
    match given.len() {
        0 => return Ok(None),
        1 => {}
        n => return Err(anyhow!("the service manager gives {n} sockets, expected one").into()),
    }
    if let Ok(Some(listener)) = given.take_tcp_listener(0) {
        return Ok(Some(Listening::Tcp(listener)));
    }
    let listener = given.take_unix_listener(0);
    let listener = listener.context("the service manager gives what is no socket that listens")?;
    Ok(listener.map(Listening::Unix))
}

/// Returns the default name of a model.
fn name(path: &Path) -> String {
    one_line(&describe::name(path)).into_owned()
}

/// Returns a name that is in the list more than once.
fn repeated(names: &[String]) -> Option<&String> {
    names.iter().enumerate().find(|(i, name)| names[..*i].contains(name)).map(|(_, name)| name)
}

/// The file of a model.
struct ModelFile {
    path: PathBuf,
    /// The folder that was given in its place, if any.
    folder: Option<PathBuf>,
}

impl ServeArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        let ServeArgs { models, drafts, engine, .. } = self;
        (models.iter_mut().chain(drafts.file_mut()).collect(), engine.hub.offline)
    }

    /// Returns the adapters of the model with these names, and the folder of more of them. None is opened but those that all requests have.
    fn adapters(
        &self,
        aliases: &[String],
        name: &str,
    ) -> Outcome<(Vec<ServedAdapter>, Option<PathBuf>)> {
        let mut all: Vec<ServedAdapter> = Vec::new();
        for NamedFile { name: own, file } in &self.lora {
            if !file.path.is_file() {
                let path = file.path.display();
                return Err(anyhow!("there is no file '{path}' (--lora)").into());
            }
            let scale = if own.is_some() { 0.0 } else { file.scale };
            let own = own.clone().unwrap_or_else(|| describe::name(&file.path));
            let own = one_line(&own).into_owned();
            if all.iter().any(|other| other.name == own) || own == name || aliases.contains(&own) {
                let message =
                    format!("the name '{own}' is taken: --lora NAME=FILE gives another one");
                return Err(Stop::Usage(message));
            }
            all.push(ServedAdapter { name: own, path: file.path.clone(), scale });
        }
        if let Some(folder) = self.lora_folder.as_ref().filter(|folder| !folder.is_dir()) {
            let folder = folder.display();
            return Err(anyhow!("there is no folder '{folder}' (--lora-folder)").into());
        }
        Ok((all, self.lora_folder.clone()))
    }

    /// Returns the variables of templates that requests do not set.
    fn template_variables(&self) -> Map<String, Value> {
        let mut variables = self.template.variables();
        let thinks = match self.reasoning {
            Reasoning::Auto => None,
            Reasoning::On => Some(true),
            Reasoning::Off => Some(false),
        };
        if let Some(thinks) = thinks {
            variables.entry("enable_thinking").or_insert(thinks.into());
        }
        if self.reasoning_budget >= 0 {
            variables.entry("thinking_budget").or_insert(self.reasoning_budget.into());
        }
        variables
    }

    /// Opens a model, which is used until the process ends.
    fn open(&self, names: &[String], path: &Path) -> Outcome<Served> {
        let mut model = open::model(&self.keep.file(path)?, &self.engine)?;
        self.template.give(model.vocabulary_mut())?;
        let trained = model.spec().context;
        let context = match self.ctx_size {
            None => CONTEXT.min(trained),
            given => alight_model::context(given, trained),
        };
        if context > trained {
            let name = &names[0];
            say::note(&format!(
                "{name} was trained for a context of {trained} tokens: beyond it, answers get worse"
            ));
        }
        let model: &'static Model = Box::leak(Box::new(model));
        let file = model.files().next().map(Path::to_owned);
        let quantization = Box::new(move || quantization::of(file.as_deref()?).ok());
        let (name, aliases) = (names[0].clone(), names[1..].to_vec());
        let adapters = Default::default();
        Ok(Served { name, aliases, model, draft: None, context, adapters, quantization })
    }

    /// Returns the files of all models, with their names in requests, of which each has at least one.
    fn named(&self) -> Outcome<Vec<(Vec<String>, ModelFile)>> {
        let mut files = Vec::new();
        for path in &self.models {
            if path.is_dir() {
                let of_folder = |file| ModelFile { path: file, folder: Some(path.clone()) };
                files.extend(source::models_in(path)?.into_iter().map(of_folder));
            } else {
                files.push(ModelFile { path: path.clone(), folder: None });
            }
        }
        if let Some(twice) = repeated(&self.alias) {
            let message = format!("--alias has {twice:?} twice, expected names that differ");
            return Err(Stop::Usage(message));
        }
        let names: Vec<Vec<String>> = match &self.alias[..] {
            [] => files.iter().map(|file| vec![name(&file.path)]).collect(),
            names if files.len() == 1 => vec![names.to_vec()],
            names if names.len() == files.len() => {
                names.iter().map(|name| vec![name.clone()]).collect()
            }
            names => {
                return Err(Stop::Usage(format!(
                    "--alias has {} for {}: give a name for each, separated by commas",
                    units::so_many(names.len(), "name"),
                    units::so_many(files.len(), "model")
                )));
            }
        };
        if let Some(twice) = repeated(&names.concat()) {
            return Err(Stop::Usage(format!(
                "two models are called {twice:?}: give a name for each with --alias, separated by commas"
            )));
        }
        Ok(names.into_iter().zip(files).collect())
    }

    fn logs_requests(&self) -> bool {
        match self.log {
            LogRequests::Auto => say::is_terminal(),
            LogRequests::On => true,
            LogRequests::Off => false,
        }
    }

    fn keys(&self) -> Outcome<Vec<String>> {
        let mut keys = Vec::new();
        if let Some(given) = &self.api_key {
            keys.extend(given.split(',').map(str::to_owned));
        }
        if let Some(path) = &self.api_key_file {
            let text = text_input::read(text_input::From::File(path), "the file of keys", KEYS)?;
            keys.extend(text.lines().map(str::to_owned));
        }
        let keys: Vec<String> = keys.iter().map(|key| key.trim().to_owned()).collect();
        let keys: Vec<String> = keys.into_iter().filter(|key| !key.is_empty()).collect();
        if keys.is_empty() && (self.api_key.is_some() || self.api_key_file.is_some()) {
            return Err(Stop::Usage(
                "there is no key in what --api-key or --api-key-file names".into(),
            ));
        }
        Ok(keys)
    }
}

/// On the first signal, the server finishes its answers; the second one ends the program.
fn stop_by_signals(stopper: Stopper, seconds: u32) -> Outcome {
    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(wanted).context("signals cannot be caught")?;
    Interrupt::leave_to_others();
    let listen = move || {
        for (n, signal) in signals.forever().enumerate() {
            if n > 0 {
                process::exit(128 + signal);
            }
            say::line(&format!(
                "shutting down: running requests have {seconds} seconds to finish; a second signal ends them at once"
            ));
            stopper.stop();
        }
    };
    let spawned = thread::Builder::new().name("signals".into()).spawn(listen);
    spawned.context("the system gives no thread for signals")?;
    Ok(())
}
