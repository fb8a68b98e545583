//! A model that computes: the native engine, as `alight run` and `alight serve` use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_chat::grammar::{Held, LazyCompiler};
use alight_chat::vectors::{
    Normalization, ScoreRule, Scores, VectorError, VectorModel, VectorOptions, Vectors,
};
use alight_chat::worker::{EngineEvent, GenerateRequest, LogitsWanted, TokenLogits};
use alight_formats::Format;
use alight_kernels::Isa;
use alight_model::{
    Adapter, AdapterOpenError, AdapterSet, EngineOptions, KvType, Load, MAX_SEQUENCES, MAX_THREADS,
    ModelError, OfPrompt, OpenOptions, Pooling, Precision, Repack, Request, SamplerOptions,
    Speculate,
};
use alight_text::{EncoderInput, InputError, PromptError, Vocabulary};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::array::Array;
use crate::asked::{Context, Options, Prompt, whole};
use crate::completion::{Completion, Making, PATIENCE, Stream};
use crate::error;
use crate::hub;
use crate::items::Items;
use crate::pack;
use crate::source;
use crate::tokenizer::Tokenizer;
use crate::worker::{Running, Worker};

/// The argument `speculate`.
#[derive(FromPyObject)]
pub enum Drafts {
    Number(i128),
    Word(String),
}

/// A GGUF file, a folder with one model in it, or a model of the hub ("hf.co/USER/REPO:Q4_K_M"), which answers with the native engine in
/// threads of its own. The weights are mapped, and loaded in the background.
///
///   context           positions of a prompt and its answer; 0: as many as the model was trained for; None: 4096 of them at most
///   threads           threads that compute; None: one per core
///   sequences         answers that are computed at the same time; others wait
///   load              "auto", "mmap", "direct" or "read": how weights reach memory
///   repack            "auto", "on" or "off": whether weights are rearranged in memory
///   lock              keep the weights in memory
///   memory            bytes that the model may take
///   prompt_precision  8 or 16: bits of activations while a prompt is read
///   cache_type        "f16", "q8_0" or "q4r": the type of the KV cache
///   prompt_cache      bytes of memory for what was computed of prompts, for those that begin alike
///   speculate         "auto", "off" or 0 to 7: how many tokens are computed ahead
///   draft             the file of a smaller model that proposes tokens
///   pack              pack the model once, keep the packed file, and use it from then on
///   strict            refuse a file of which a warning would say that answers are doubtful: metadata that is not read, or a
///                     pre-tokeniser that does not fit the vocabulary
///   offline           nothing is fetched from the hub
///   isa               the kernels' SIMD level, such as "avx2"; None: the best that this CPU has. The answer is the same
///   lora              LoRA adapters that answers may have, {"name": file}; their files are mapped
///
/// `generate`, `stream`, `chat`, `stream_chat` and `batch` answer; `help(alight.Model.generate)` tells their options.
#[pyclass(frozen, module = "alight")]
pub struct Model {
    pub(crate) worker: Arc<Worker>,
    pub(crate) vocabulary: Arc<Vocabulary>,
    pub(crate) context: Context,
    #[pyo3(get)]
    path: PathBuf,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    architecture: &'static str,
    #[pyo3(get)]
    hidden_size: usize,
    vectors: VectorModel,
    #[pyo3(get)]
    parameters: u64,
    #[pyo3(get)]
    threads: usize,
    compiler: LazyCompiler,
    /// By their names.
    adapters: BTreeMap<String, Arc<Adapter>>,
}

/// An option with a few possible words.
fn word<T: std::str::FromStr<Err = String>>(name: &str, given: &str) -> PyResult<T> {
    given.parse().map_err(|expected| error::OPTION.err(format!("{name} is '{given}': {expected}")))
}

/// An option with a few possible values.
fn one_of<T: Copy, V: PartialEq + std::fmt::Display, const N: usize>(
    name: &str,
    given: &V,
    values: [(V, T); N],
) -> PyResult<T> {
    let mut known = String::new();
    for (i, (value, _)) in values.iter().enumerate() {
        known.push_str(if i == 0 {
            ""
        } else if i + 1 == N {
            " or "
        } else {
            ", "
        });
        known.push_str(&value.to_string());
    }
    let expected = format!("{name} is {given}, expected {known}");
    let found = values.into_iter().find(|(value, _)| value == given);
    found.map(|(_, meant)| meant).ok_or_else(|| error::OPTION.err(expected))
}

/// The reason why there are no vectors or scores.
fn of_vectors(problem: VectorError) -> PyErr {
    match problem {
        VectorError::Input(InputError::Tokenizer(problem)) => {
            error::prompt(PromptError::Tokenizer(problem))
        }
        VectorError::Input(InputError::Empty) => error::prompt(PromptError::Empty),
        VectorError::Input(
            problem @ (InputError::TooLong { .. } | InputError::FirstTooLong { .. }),
        ) => error::CONTEXT_FULL.err(problem.to_string()),
        problem => error::OPTION.err(problem.to_string()),
    }
}

/// Opens the adapters of a model.
fn adapters(
    model: &alight_model::Model,
    files: BTreeMap<String, PathBuf>,
) -> PyResult<BTreeMap<String, Arc<Adapter>>> {
    let open = |(name, path): (String, PathBuf)| {
        let adapter = model.open_adapter(&path).map_err(|problem| match problem {
            AdapterOpenError::Map(problem) => error::of_map(&problem),
            problem => error::FORMAT.err(problem.to_string()),
        })?;
        Ok((name, Arc::new(adapter)))
    };
    files.into_iter().map(open).collect()
}

/// Waits for the vector or the scores of a request.
fn pooled(py: Python<'_>, mut running: Running) -> PyResult<Vec<f32>> {
    loop {
        if let EngineEvent::Embedding(output) = wait(py, &mut running)? {
            return Ok(output);
        }
    }
}

/// Returns vectors or scores alone, or in a pair with the tokens of each text; of one text that is a number and no list.
fn with_usage<'py>(
    py: Python<'py>,
    found: impl IntoPyObjectExt<'py>,
    lengths: Option<&Vec<usize>>,
    one: bool,
) -> PyResult<Py<PyAny>> {
    match lengths {
        None => found.into_py_any(py),
        Some(lengths) if one => (found, lengths.first().copied()).into_py_any(py),
        Some(lengths) => (found, lengths).into_py_any(py),
    }
}

/// A number from 1 to `most`.
fn number(name: &str, given: i128, most: usize) -> PyResult<usize> {
    match usize::try_from(given) {
        Ok(given) if (1..=most).contains(&given) => Ok(given),
        _ => {
            Err(error::OPTION.err(format!("{name} is {given}, expected a number from 1 to {most}")))
        }
    }
}

/// Waits for the next event.
///
/// # Errors
/// The failure of the request; `KeyboardInterrupt`, or the exception of a signal handler.
fn wait(py: Python<'_>, running: &mut Running) -> PyResult<EngineEvent> {
    loop {
        let event = py.detach(|| running.next(PATIENCE))?;
        py.check_signals()?;
        if let Some(event) = event {
            return Ok(event);
        }
    }
}

/// Reads several prompts.
fn several(prompts: &Bound<'_, PyAny>) -> PyResult<Vec<Prompt>> {
    if prompts.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("expected a list of prompts, found one text"));
    }
    let Ok(all) = prompts.try_iter() else {
        let found = prompts.get_type().name()?;
        return Err(PyTypeError::new_err(format!("expected a list of prompts, found {found}")));
    };
    all.map(|prompt| Prompt::take(&prompt?)).collect()
}

impl Model {
    /// Starts to answer a prompt.
    fn begin(&self, py: Python<'_>, prompt: Prompt, options: &Options) -> PyResult<Making> {
        let tools = prompt.tools();
        py.detach(|| {
            let held = self.held(options, tools.is_some())?;
            let prompt = (prompt.encode(&self.vocabulary, options, self.context)?, tools);
            let adapters = self.adapter_set(options)?;
            let options = (options, adapters);
            Ok(Making::begin(&self.worker, &self.vocabulary, prompt, options, held)?)
        })
    }

    /// The adapters of an answer.
    fn adapter_set(&self, options: &Options) -> PyResult<AdapterSet> {
        let find = |(name, scale): &(String, f32)| {
            let adapter = self.adapters.get(name).ok_or_else(|| {
                let known = match self.adapters.is_empty() {
                    true => "alight.Model(…, lora={name: file}) opens adapters".to_owned(),
                    false => {
                        let names: Vec<_> = self.adapters.keys().map(String::as_str).collect();
                        format!("expected one of {}", names.join(", "))
                    }
                };
                error::OPTION.err(format!("lora: the model has no adapter '{name}': {known}"))
            })?;
            Ok((Arc::clone(adapter), *scale))
        };
        let all = options.lora.iter().map(find).collect::<PyResult<Vec<_>>>()?;
        Ok(AdapterSet::new(all))
    }

    /// The constraint on an answer, compiled for the tokens of this model.
    fn held(&self, options: &Options, tools: bool) -> PyResult<Option<Held>> {
        let Some((option, wanted)) = &options.held else { return Ok(None) };
        if tools {
            return Err(error::OPTION.err(format!(
                "there are tools and {option}: an answer is held to {option}, or may call tools"
            )));
        }
        let held = self.compiler.held(&self.vocabulary.tokenizer, wanted.clone());
        held.map(Some).map_err(|why| error::no_grammar(option, &why))
    }

    /// The file of the one model at a path, of a folder the first.
    fn file(path: PathBuf) -> PyResult<PathBuf> {
        if !path.is_dir() {
            return Ok(path);
        }
        let source = source::open(&path)?;
        if source.format != Format::Gguf {
            return Err(source::other_format(&path, source.format));
        }
        // Any of several files leads to the others.
        Ok(source.files.first().map_or(path, |map| map.path().to_owned()))
    }

    /// Opens the one model at a path.
    fn open(path: &Path, options: &OpenOptions) -> PyResult<alight_model::Model> {
        if path.is_dir() {
            let first = Model::file(path.to_owned())?;
            return alight_model::Model::open(&first, options).map_err(error::model);
        }
        // The file is not read before its residency in memory is known.
        let refused = |problem| match problem {
            // The file may be of another format: `source::open` knows them all, and its errors state what to do.
            ModelError::Files(_) => source::open(path)
                .and_then(|source| match source.format {
                    Format::Gguf => Ok(()),
                    other => Err(source::other_format(path, other)),
                })
                .err()
                .unwrap_or_else(|| error::model(problem)),
            problem => error::model(problem),
        };
        alight_model::Model::open(path, options).map_err(refused)
    }
}

impl Model {
    /// Starts requests.
    fn begin_each(&self, requests: Vec<GenerateRequest>) -> PyResult<Vec<Running>> {
        requests.into_iter().map(|request| Ok(self.worker.generate(request)?)).collect()
    }
}

#[pymethods]
impl Model {
    /// Opens a model. The documentation of the class describes the arguments.
    #[new]
    #[pyo3(signature = (path, *, context=None, threads=None, sequences=8, load="auto", repack="auto", lock=false, memory=None,
        prompt_precision=8, cache_type="f16", prompt_cache=1 << 30, speculate=None, draft=None, pack=false, strict=false, offline=false,
        isa=None, lora=None))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        context: Option<i128>,
        threads: Option<i128>,
        sequences: i128,
        load: &str,
        repack: &str,
        lock: bool,
        memory: Option<i128>,
        prompt_precision: i128,
        cache_type: &str,
        prompt_cache: i128,
        speculate: Option<Drafts>,
        draft: Option<PathBuf>,
        pack: bool,
        strict: bool,
        offline: bool,
        isa: Option<&str>,
        lora: Option<BTreeMap<String, PathBuf>>,
    ) -> PyResult<Model> {
        let context = context.map(|n| whole("context", n)).transpose()?;
        let open = OpenOptions {
            threads: threads.map(|n| number("threads", n, MAX_THREADS)).transpose()?,
            load: word::<Load>("load", load)?,
            repack: word::<Repack>("repack", repack)?,
            lock,
            strict,
            memory: memory.map(|n| whole("memory", n)).transpose()?.map(|n| n as u64),
            isa: isa.map(|name| word::<Isa>("isa", name)).transpose()?,
            ..OpenOptions::default()
        };
        let mut options = EngineOptions {
            sequences: number("sequences", sequences, MAX_SEQUENCES)?,
            prompt_precision: one_of(
                "prompt_precision",
                &prompt_precision,
                [(8, Precision::Bits8), (16, Precision::Bits16)],
            )?,
            cache_type: one_of(
                "cache_type",
                &cache_type,
                [("f16", KvType::F16), ("q8_0", KvType::Q8_0), ("q4r", KvType::Q4R)],
            )?,
            prompt_cache: whole("prompt_cache", prompt_cache)?,
            speculate: match speculate {
                None => Speculate::Auto,
                Some(Drafts::Number(n)) => word("speculate", &n.to_string())?,
                Some(Drafts::Word(text)) => word("speculate", &text)?,
            },
            ..EngineOptions::default()
        };
        let mut path = hub::file(py, path, offline)?;
        if pack {
            path = pack::once(py, &Model::file(path)?)?;
        }
        let draft = draft.map(|draft| hub::file(py, draft, offline)).transpose()?;
        let opened: PyResult<(Model, Vec<String>)> = py.detach(move || {
            let model = Model::open(&path, &open)?;
            let draft = draft.map(|path| Model::open(&path, &open)).transpose()?;
            let adapters = adapters(&model, lora.unwrap_or_default())?;
            let (spec, warnings) = (model.spec(), model.warnings());
            let trained = spec.context;
            let computable = spec.max_positions().unwrap_or(usize::MAX);
            options.context = Some(alight_model::context(context, trained));
            let about = (model.name().to_owned(), spec.architecture, spec.hidden_size);
            let (name, architecture, hidden_size) = about;
            let vectors = VectorModel::from(spec);
            let (parameters, threads) = (model.parameters(), model.threads());
            let vocabulary = model.shared_vocabulary();
            let (worker, limit) = Worker::start(model, draft, options)?;
            let context = Context { limit, trained, computable };
            let model = Model {
                worker,
                vocabulary,
                context,
                path,
                name,
                architecture,
                hidden_size,
                vectors,
                parameters,
                threads,
                compiler: LazyCompiler::default(),
                adapters,
            };
            Ok((model, warnings))
        });
        let (model, warnings) = opened?;
        warnings.iter().try_for_each(|warning| error::warn(py, warning))?;
        Ok(model)
    }

    /// Positions of a prompt and its answer.
    #[getter]
    fn context(&self) -> usize {
        self.context.limit
    }

    /// Positions that the model was trained for.
    #[getter]
    fn trained_context(&self) -> usize {
        self.context.trained
    }

    /// Number of tokens.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.vocabulary.tokenizer.vocab_size()
    }

    /// Its tokenizer and chat template, which may outlive the model.
    #[getter]
    fn tokenizer(&self) -> Tokenizer {
        Tokenizer::of(Arc::clone(&self.vocabulary))
    }

    /// The tokens of a text.
    #[pyo3(signature = (text, *, add_bos=None, parse_special=false))]
    fn tokenize(
        &self,
        py: Python<'_>,
        text: &str,
        add_bos: Option<bool>,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        self.tokenizer().encode(py, text, add_bos, parse_special)
    }

    /// The text of tokens.
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        self.tokenizer().decode(py, Items(tokens))
    }

    /// Answers a prompt as `alight run` does. A text goes through the model's chat template, if it has one, unless `raw` is set; token ids are
    /// continued as they are; messages are a conversation.
    ///
    /// Options, by their names, are those of `alight run`:
    ///
    ///   max_tokens=None       most tokens; None or -1: until the model ends or the context is full
    ///   stop=None             a text or several: the answer ends before it
    ///   temperature=0.8       0 always takes the most likely token
    ///   top_k=40              keep so many of the most likely tokens; 0 keeps all
    ///   top_p=0.95            keep the most likely tokens that make up this share of the probability; 1 keeps all
    ///   min_p=0.05            keep tokens at least this likely, relative to the most likely; 0 keeps all
    ///   repeat_penalty=1.0    makes tokens seen lately less likely by this factor
    ///   frequency_penalty=0.0 subtracted from a token's logit for each time that it was seen lately
    ///   presence_penalty=0.0  subtracted from a token's logit if it was seen lately
    ///   dry_multiplier=0.0    DRY: makes a token that would continue a repetition less likely by this, times a power of dry_base
    ///   dry_base=1.75         DRY: the power's exponent is the length of the repetition beyond dry_allowed_length
    ///   xtc_probability=0.0   XTC: how often all likely tokens but the least likely of them are left out
    ///   xtc_threshold=0.1     XTC: from this probability on a token is likely; above 0.5, none is left out
    ///   top_n_sigma=-1.0      keep tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all
    ///   mirostat_tau=5.0      Mirostat: the mean surprise of a token to aim at, in bits
    ///   mirostat_eta=0.1      Mirostat: how fast it learns
    ///   min_keep=0            top_p, min_p and XTC leave at least this many tokens
    ///   repeat_last_n=64      how many tokens count as seen lately; -1: all
    ///   dry_allowed_length=2  DRY: shorter repetitions are free
    ///   dry_penalty_last_n=64 DRY: how many tokens are searched for repetitions; -1: all
    ///   mirostat=0            1 or 2: draw with this version of Mirostat, in place of penalties, top_n_sigma, top_k, top_p, min_p and XTC
    ///   dry_sequence_breakers=None DRY: no repetition goes beyond these texts; None: line breaks, ':', '"' and '*'
    ///   samplers=None         turn off all stages but these: penalties, dry, top_n_sigma, top_k, top_p, min_p, xtc, temperature
    ///   seed=None             the same seed gives the same answer; None or -1: any
    ///   logit_bias=None       {token: what is added to its logit}
    ///   logprobs=None         tell how likely each token was, and so many of the likeliest
    ///   ignore_eos=False      go on when the model would end
    ///   thinking=True         False turns the model's thinking off: by the chat template, or by the mark that ends it
    ///   parse_special=False   let special tokens written in the prompt be special
    ///   raw=False             give a text to the model as it is, without the chat template
    ///   system=None           the system message before a text or a conversation
    ///   json_schema=None      the answer is JSON of this schema: a dict, a bool, or a text of JSON
    ///   grammar=None          the answer follows this grammar: llama.cpp's GBNF, or llguidance's Lark after %llguidance
    ///   regex=None            the answer matches this regular expression
    ///   lora=None             an adapter of the model's by its name, or several with their scales, {"name": 1.0}
    #[pyo3(
        signature = (prompt, **options),
        text_signature = "($self, prompt, *, \
            max_tokens=None, stop=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, frequency_penalty=0.0, \
            presence_penalty=0.0, dry_multiplier=0.0, dry_base=1.75, xtc_probability=0.0, xtc_threshold=0.1, top_n_sigma=-1.0, \
            mirostat_tau=5.0, mirostat_eta=0.1, min_keep=0, repeat_last_n=64, dry_allowed_length=2, dry_penalty_last_n=64, mirostat=0, \
            dry_sequence_breakers=None, samplers=None, seed=None, logit_bias=None, logprobs=None, ignore_eos=False, thinking=True, \
            parse_special=False, raw=False, system=None, json_schema=None, grammar=None, regex=None, lora=None)"
    )]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::take(prompt)?, &options)?.finish(py)
    }

    /// What `generate` answers, in pieces while it is made; with the same options.
    #[pyo3(
        signature = (prompt, **options),
        text_signature = "($self, prompt, *, \
            max_tokens=None, stop=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, frequency_penalty=0.0, \
            presence_penalty=0.0, dry_multiplier=0.0, dry_base=1.75, xtc_probability=0.0, xtc_threshold=0.1, top_n_sigma=-1.0, \
            mirostat_tau=5.0, mirostat_eta=0.1, min_keep=0, repeat_last_n=64, dry_allowed_length=2, dry_penalty_last_n=64, mirostat=0, \
            dry_sequence_breakers=None, samplers=None, seed=None, logit_bias=None, logprobs=None, ignore_eos=False, thinking=True, \
            parse_special=False, raw=False, system=None, json_schema=None, grammar=None, regex=None, lora=None)"
    )]
    fn stream(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::take(prompt)?, &options).map(Stream::new)
    }

    /// The next message of a conversation, by the model's chat template. `tools` are what the model may call, as JSON schemas.
    ///
    /// The options are those of `generate`.
    #[pyo3(
        signature = (messages, *, tools=None, **options),
        text_signature = "($self, messages, *, tools=None, \
            max_tokens=None, stop=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, frequency_penalty=0.0, \
            presence_penalty=0.0, dry_multiplier=0.0, dry_base=1.75, xtc_probability=0.0, xtc_threshold=0.1, top_n_sigma=-1.0, \
            mirostat_tau=5.0, mirostat_eta=0.1, min_keep=0, repeat_last_n=64, dry_allowed_length=2, dry_penalty_last_n=64, mirostat=0, \
            dry_sequence_breakers=None, samplers=None, seed=None, logit_bias=None, logprobs=None, ignore_eos=False, thinking=True, \
            parse_special=False, raw=False, system=None, json_schema=None, grammar=None, regex=None, lora=None)"
    )]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::conversation(messages, tools)?, &options)?.finish(py)
    }

    /// What `chat` answers, in pieces while it is made; with the same options.
    #[pyo3(
        signature = (messages, *, tools=None, **options),
        text_signature = "($self, messages, *, tools=None, \
            max_tokens=None, stop=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, frequency_penalty=0.0, \
            presence_penalty=0.0, dry_multiplier=0.0, dry_base=1.75, xtc_probability=0.0, xtc_threshold=0.1, top_n_sigma=-1.0, \
            mirostat_tau=5.0, mirostat_eta=0.1, min_keep=0, repeat_last_n=64, dry_allowed_length=2, dry_penalty_last_n=64, mirostat=0, \
            dry_sequence_breakers=None, samplers=None, seed=None, logit_bias=None, logprobs=None, ignore_eos=False, thinking=True, \
            parse_special=False, raw=False, system=None, json_schema=None, grammar=None, regex=None, lora=None)"
    )]
    fn stream_chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::conversation(messages, tools)?, &options).map(Stream::new)
    }

    /// Answers several prompts at the same time, each as `generate` would.
    ///
    /// The options are those of `generate`.
    #[pyo3(
        signature = (prompts, **options),
        text_signature = "($self, prompts, *, \
            max_tokens=None, stop=None, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, repeat_penalty=1.0, frequency_penalty=0.0, \
            presence_penalty=0.0, dry_multiplier=0.0, dry_base=1.75, xtc_probability=0.0, xtc_threshold=0.1, top_n_sigma=-1.0, \
            mirostat_tau=5.0, mirostat_eta=0.1, min_keep=0, repeat_last_n=64, dry_allowed_length=2, dry_penalty_last_n=64, mirostat=0, \
            dry_sequence_breakers=None, samplers=None, seed=None, logit_bias=None, logprobs=None, ignore_eos=False, thinking=True, \
            parse_special=False, raw=False, system=None, json_schema=None, grammar=None, regex=None, lora=None)"
    )]
    fn batch(
        &self,
        py: Python<'_>,
        prompts: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let options = Options::take(options)?;
        let prompts = several(prompts)?;
        // All of them are encoded before the first is computed.
        let (held, encoded) = py.detach(|| {
            let held =
                self.held(&options, prompts.iter().any(|prompt| prompt.tools().is_some()))?;
            let encode = |prompt: Prompt| {
                let tools = prompt.tools();
                Ok((prompt.encode(&self.vocabulary, &options, self.context)?, tools))
            };
            let encoded = prompts.into_iter().map(encode).collect::<PyResult<Vec<_>>>()?;
            Ok::<_, PyErr>((held, encoded))
        })?;
        let adapters = self.adapter_set(&options)?;
        let begin = |prompt| {
            let options = (&options, adapters.clone());
            Ok(Making::begin(&self.worker, &self.vocabulary, prompt, options, held.clone())?)
        };
        let begun: Vec<Making> = encoded.into_iter().map(begin).collect::<PyResult<_>>()?;
        begun.into_iter().map(|making| making.finish(py)).collect()
    }

    /// The logits of what follows a prompt; with `all`, of what follows each of its tokens.
    #[pyo3(signature = (prompt, *, all=false, parse_special=false))]
    fn logits(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        all: bool,
        parse_special: bool,
    ) -> PyResult<Array> {
        let (prompt, options) = (Prompt::take(prompt)?, Options::of_text(parse_special));
        let mut running = py.detach(|| {
            let prompt = prompt.encode(&self.vocabulary, &options, self.context)?.tokens;
            let of_prompt = if all { OfPrompt::Logits } else { OfPrompt::Nothing };
            let sampling = SamplerOptions::greedy();
            let request = Request {
                prompt,
                sampling,
                max_tokens: 1,
                ignore_eos: true,
                of_prompt,
                ..Request::default()
            };
            let (logits, grammar) = (LogitsWanted::All, None);
            let request = GenerateRequest { request, logits, grammar, thinking: None };
            Ok::<_, PyErr>(self.worker.generate(request)?)
        })?;
        let (mut numbers, mut rows) = (Vec::new(), 0);
        loop {
            match wait(py, &mut running)? {
                EngineEvent::PromptToken(_, TokenLogits::All(row))
                | EngineEvent::Token(_, TokenLogits::All(row)) => {
                    numbers.extend(row);
                    rows += 1;
                }
                EngineEvent::Finished(_) => break,
                _ => {}
            }
        }
        let vocab = self.vocab_size();
        Ok(if all { Array::new(numbers, &[rows, vocab]) } else { Array::new(numbers, &[vocab]) })
    }

    /// A text as a vector: the final hidden states of its tokens, pooled. Of several texts, or lists of tokens, one row each. With `usage`
    /// the result is a pair: the vectors, and how many tokens were read of each text.
    #[pyo3(signature = (text, *, pooling=None, normalize=true, dimensions=None, prompt_name=None, truncate=false, parse_special=false,
        usage=false))]
    #[allow(clippy::too_many_arguments)] // the keywords of Python
    fn embed(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        pooling: Option<&str>,
        normalize: bool,
        dimensions: Option<i128>,
        prompt_name: Option<String>,
        truncate: bool,
        parse_special: bool,
        usage: bool,
    ) -> PyResult<Py<PyAny>> {
        let pooling =
            pooling.map(|given| one_of("pooling", &given, Pooling::OF_TEXTS)).transpose()?;
        let most = self.vectors.width;
        let dimensions = dimensions.map(|given| number("dimensions", given, most)).transpose()?;
        let wanted = VectorOptions {
            pooling,
            normalization: (!normalize).then_some(Normalization::None),
            dimensions,
            prompt_name,
            truncate,
            parse_special,
            ..VectorOptions::default()
        };
        let limit = self.context.limit;
        let vectors = Vectors::new(self.vectors, &self.vocabulary, limit, &wanted, || false);
        let vectors = vectors.map_err(of_vectors)?;
        let options = Options::of_text(parse_special);
        let one = text.is_instance_of::<PyString>()
            || text.extract::<Items<u32>>().is_ok_and(|tokens| !tokens.0.is_empty());
        let prompts = if one { vec![Prompt::take(text)?] } else { several(text)? };
        let mut lengths = Vec::with_capacity(prompts.len());
        let running = py.detach(|| {
            let encode = |prompt: Prompt| {
                let input = match prompt {
                    Prompt::Text(text) => vectors.text(&text),
                    prompt => {
                        let limit = if truncate { usize::MAX } else { limit };
                        let context = Context { limit, ..self.context };
                        vectors.tokens(prompt.encode(&self.vocabulary, &options, context)?.tokens)
                    }
                };
                let input = input.map_err(of_vectors)?;
                lengths.push(input.tokens.len());
                Ok(vectors.request(input))
            };
            let requests = prompts.into_iter().map(encode).collect::<PyResult<Vec<_>>>()?;
            self.begin_each(requests)
        })?;
        let (rows, width) = (running.len(), vectors.dimensions);
        let mut numbers = Vec::with_capacity(rows * width);
        for running in running {
            numbers.extend(vectors.finish(pooled(py, running)?));
        }
        let shape: &[usize] = if one { &[width] } else { &[rows, width] };
        let array = Array::new(numbers, shape);
        with_usage(py, array, usage.then_some(&lengths), one)
    }

    /// The scores of documents for a query, in their order: probabilities, or with `raw` what the model's classifier puts out. With `usage`
    /// the result is a pair: the scores, and how many tokens were read of each pair of a query and a document.
    #[pyo3(signature = (query, documents, *, raw=false, truncate=true, usage=false))]
    fn rerank(
        &self,
        py: Python<'_>,
        query: &str,
        documents: Vec<String>,
        raw: bool,
        truncate: bool,
        usage: bool,
    ) -> PyResult<Py<PyAny>> {
        let limit = self.context.limit;
        let scores = Scores::new(self.vectors, &self.vocabulary, limit, None, truncate, || false);
        let scores = scores.map_err(of_vectors)?;
        let mut lengths = Vec::with_capacity(documents.len());
        let running = py.detach(|| {
            let encode = |document: &String| {
                let input: EncoderInput = scores.pair(query, document).map_err(of_vectors)?;
                lengths.push(input.tokens.len());
                Ok(scores.request(input))
            };
            self.begin_each(documents.iter().map(encode).collect::<PyResult<Vec<_>>>()?)
        })?;
        let rule = if raw { ScoreRule::Raw } else { ScoreRule::Probability };
        let found = running.into_iter().map(|running| Ok(rule.of(&pooled(py, running)?)));
        let found = found.collect::<PyResult<Vec<f64>>>()?;
        with_usage(py, found, usage.then_some(&lengths), false)
    }

    /// Ends what is computed, and gives the memory back.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.worker.close());
    }

    /// True if it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.worker.is_closed()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.closed() { ", closed" } else { "" };
        format!("<alight.Model '{}' ({}){closed}>", self.name, self.architecture)
    }
}
