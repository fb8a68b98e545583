//! Opening a model for a subcommand, with the arguments that all engines share.

use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use alight_kernels::Isa;
use alight_model::{KvType, Load, Model, ModelError, OpenOptions, Precision, Repack, describe};
use alight_pages::{Map, Threads};
use alight_text::Vocabulary;
use anyhow::anyhow;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::explain_load;
use crate::hub::HubArgs;
use crate::outcome::Outcome;
use crate::source;
use crate::{say, threads, units};

/// Arguments of every command that computes with a model.
#[derive(Clone, Debug, clap::Args)]
pub struct EngineArgs {
    /// Threads to compute with [default: one per core]
    #[arg(short = 't', long, value_name = "N", value_parser = threads::number)]
    pub threads: Option<usize>,

    #[command(flatten)]
    pub how: HowArgs,
}

impl Deref for EngineArgs {
    type Target = HowArgs;

    fn deref(&self) -> &HowArgs {
        &self.how
    }
}

/// The engine arguments without the number of threads, of which some commands accept several.
#[derive(Clone, Debug, clap::Args)]
pub struct HowArgs {
    /// Kernels to use instead of the best that this CPU has: scalar, neon, i8mm, avx2, avxvnni, avx512, amxint8; amx, which
    /// is faster for long prompts and slower for short ones
    #[arg(long, value_name = "NAME", hide = true)]
    pub isa: Option<Isa>,

    /// How weights come from the file: a map of it, direct reads past the page cache, reads through
    /// it, or what suits the moment
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = named::<Load>(Load::ALL.map(Load::name)))]
    load: Load,

    /// Reorder weights while loading, for faster kernels: takes memory of this process; auto: with
    /// --load direct or read
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = named::<Repack>(Repack::ALL.map(Repack::name)))]
    repack: Repack,

    /// Give mapped pages back when their weights have been reordered
    #[arg(long, value_name = "on|off", default_value = "on")]
    reclaim: Switch,

    /// Lock the weights in memory
    #[arg(long)]
    lock: bool,

    /// Memory that the model may take, such as 8G: of one that is larger, experts are read when they are chosen, or layers when they are computed
    /// [default: what is available]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    memory: Option<u64>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Report on standard error how the weights are loaded, and why
    #[arg(long)]
    explain_load: bool,

    /// Check before the first answer that all weights are finite numbers, which reads the whole file; without it, those that are not
    /// are noticed when something is computed with them
    #[arg(long)]
    check_tensors: bool,

    /// Refuse a file with metadata that is not read and may change what other programs compute, or with a pre-tokeniser that does not
    /// fit its vocabulary; without it, they are named
    #[arg(long)]
    strict: bool,

    /// Bits to which the activations of a prompt are rounded for quantised weights; 16, as those of answers always are, is more
    /// exact and slower
    #[arg(long, value_name = "BITS", default_value = "8")]
    prompt_precision: PromptPrecision,

    /// How keys and values of the context are kept; q8_0 takes little more than half the memory, and is less exact;
    /// q4r, four bits after a rotation, takes little more than a quarter, and is less exact still
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    cache_type: CacheType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CacheType {
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4r")]
    Q4R,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PromptPrecision {
    #[value(name = "8")]
    Bits8,
    #[value(name = "16")]
    Bits16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Parses a name of a library's option; help and completions list the names.
pub fn named<T>(names: impl Into<PossibleValuesParser>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

impl HowArgs {
    /// Returns the configured limit on the model's memory, if there is one.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// Returns true if files whose metadata makes answers doubtful are refused.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// Returns the precision of activations of prompts.
    pub fn prompt_precision(&self) -> Precision {
        match self.prompt_precision {
            PromptPrecision::Bits8 => Precision::Bits8,
            PromptPrecision::Bits16 => Precision::Bits16,
        }
    }

    /// Returns the type in which keys and values are stored.
    pub fn cache_type(&self) -> KvType {
        match self.cache_type {
            CacheType::F16 => KvType::F16,
            CacheType::Q8_0 => KvType::Q8_0,
            CacheType::Q4R => KvType::Q4R,
        }
    }

    /// Returns the options for the library.
    fn options(&self, threads: Option<usize>) -> OpenOptions {
        OpenOptions {
            threads,
            isa: self.isa,
            load: self.load,
            repack: self.repack,
            reclaim: self.reclaim == Switch::On,
            lock: self.lock,
            memory: self.memory,
            strict: self.strict,
            ..OpenOptions::default()
        }
    }

    /// Prints the outcome of loading, if that was requested.
    pub fn explain_outcome(&self, model: &Model) {
        if self.explain_load {
            explain_load::outcome(model);
        }
    }
}

/// Opens the model at `path`.
pub fn model(path: &Path, args: &EngineArgs) -> Outcome<Model> {
    noted(draft(path, args)?, args)
}

/// Opens the model in these maps, whose files may still be being fetched.
pub fn mapped(maps: &[Arc<Map>], args: &EngineArgs) -> Outcome<Model> {
    let model = Model::open_mapped(maps, &args.options(args.threads));
    noted(explained(model.map_err(|error| anyhow!(error))?, args)?, args)
}

/// Returns the model, after a note on a limit that is not kept.
fn noted(model: Model, args: &EngineArgs) -> Outcome<Model> {
    let report = model.load_report();
    let weights: u64 = report.files.iter().map(|file| file.weights).sum();
    if args.memory.is_some_and(|memory| memory < weights) && report.slots.is_none() {
        say::note(&format!(
            "--memory changes nothing, though the weights take {}: {}",
            units::bytes(weights),
            report.reason()
        ));
    }
    Ok(model)
}

/// Opens the model at `path` in addition to another one, without the notes on options that apply to both.
pub fn draft(path: &Path, args: &EngineArgs) -> Outcome<Model> {
    let path = &source::model_file(path)?;
    let model = Model::open(path, &args.options(args.threads));
    explained(model.map_err(|error| source::explain(path, anyhow!(error)))?, args)
}

/// Returns the model, after notes on how it computes and is loaded, and the check that was asked for.
fn explained(model: Model, args: &EngineArgs) -> Outcome<Model> {
    threads::note(Threads { wanted: model.pool().wanted(), had: model.threads() });
    model.warnings().iter().for_each(|warning| say::note(warning));
    if args.check_tensors {
        say::progress("checking the weights");
        let checked = model.check_tensors();
        say::progress("");
        checked.map_err(|error| anyhow!(error))?;
    }
    if args.explain_load {
        explain_load::decision(&model);
    } else if say::is_terminal() && model.load_report().slots.is_some() {
        say::note(model.load_report().reason());
    }
    Ok(model)
}

/// The text data in a model's files, for engines that compute with its weights in another process.
pub struct ModelText {
    /// The model's name.
    pub name: String,
    /// Its tokenizer and chat template.
    pub vocabulary: Vocabulary,
    /// The context length that the model was trained for.
    pub trained: usize,
}

/// Returns the tokenizer and the chat template of the model at `path`, regardless of its network.
pub fn vocabulary(path: &Path) -> Outcome<Vocabulary> {
    let path = &source::model_file(path)?;
    let maps = alight_files::open(path).map_err(|error| source::explain(path, anyhow!(error)))?;
    Ok(describe::vocabulary(&maps[0]).map_err(|error| anyhow!(error))?)
}

/// Opens the model at `path` for its text only. Models that the native engine would reject are rejected here, too.
pub fn text(path: &Path, strict: bool) -> Outcome<ModelText> {
    let path = &source::model_file(path)?;
    let maps = alight_files::open(path).map_err(|error| source::explain(path, anyhow!(error)))?;
    let read = || -> Result<ModelText, ModelError> {
        let spec = describe::spec(&maps)?;
        let (name, vocabulary) = (describe::name(path), describe::vocabulary(&maps[0])?);
        let warnings = describe::warnings(&spec, &vocabulary.tokenizer);
        if strict && !warnings.is_empty() {
            return Err(ModelError::Doubtful { path: path.into(), warnings });
        }
        warnings.iter().for_each(|warning| say::note(warning));
        Ok(ModelText { name, vocabulary, trained: spec.context })
    };
    Ok(read().map_err(|error| anyhow!(error))?)
}
