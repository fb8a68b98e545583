//! A model that computes: the native engine, as `alight run` and `alight serve` use it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_formats::Format;
use alight_model::{
    EngineOptions, KvType, Load, MAX_SEQUENCES, MAX_THREADS, ModelError, OfPrompt, OpenOptions,
    Pooling, Precision, Repack, Request, SamplerOptions, Speculate, to_unit_length,
};
use alight_text::Vocabulary;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::array::Array;
use crate::asked::{Context, Options, Prompt};
use crate::completion::{Completion, Making, PATIENCE, Stream};
use crate::error;
use crate::hub;
use crate::source;
use crate::tokenizer::Tokenizer;
use crate::worker::{Ask, Happened, OfLogits, Running, Wanted, Worker};

/// `speculate` as it is given.
#[derive(FromPyObject)]
pub enum Drafts {
    Number(usize),
    Word(String),
}

/// An open model, which computes in threads of its own.
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
    #[pyo3(get)]
    parameters: u64,
    #[pyo3(get)]
    threads: usize,
}

/// An option that is one of a few words.
fn word<T: std::str::FromStr<Err = String>>(name: &str, given: &str) -> PyResult<T> {
    given.parse().map_err(|expected| error::OPTION.err(format!("{name} is '{given}': {expected}")))
}

/// An option that is one of a few values.
fn one_of<T: Copy, V: PartialEq + std::fmt::Display>(
    name: &str,
    given: &V,
    values: [(V, T); 2],
) -> PyResult<T> {
    let [(first, _), (second, _)] = &values;
    let expected = format!("{name} is {given}, expected {first} or {second}");
    let found = values.into_iter().find(|(value, _)| value == given);
    found.map(|(_, meant)| meant).ok_or_else(|| error::OPTION.err(expected))
}

/// A number of things, from 1 on.
fn number(name: &str, given: usize, most: usize) -> PyResult<usize> {
    if (1..=most).contains(&given) {
        return Ok(given);
    }
    Err(error::OPTION.err(format!("{name} is {given}, expected a number from 1 to {most}")))
}

/// Waits for what happens next.
///
/// # Errors
/// What went wrong; `KeyboardInterrupt`, or whatever a handler of a signal raises.
fn wait(py: Python<'_>, running: &mut Running) -> PyResult<Happened> {
    loop {
        let happened = py.detach(|| running.next(PATIENCE))?;
        py.check_signals()?;
        if let Some(happened) = happened {
            return Ok(happened);
        }
    }
}

/// Several prompts.
fn several(prompts: &Bound<'_, PyAny>) -> PyResult<Vec<Prompt>> {
    if prompts.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("expected a list of prompts, found one text"));
    }
    prompts.try_iter()?.map(|prompt| Prompt::take(&prompt?)).collect()
}

impl Model {
    /// Begins to answer a prompt.
    fn begin(&self, py: Python<'_>, prompt: Prompt, options: &Options) -> PyResult<Making> {
        let tools = prompt.has_tools();
        py.detach(|| {
            let (tokens, style) = prompt.encode(&self.vocabulary, options, self.context)?;
            let prompt = (tokens, style, tools);
            Ok(Making::begin(&self.worker, &self.vocabulary, prompt, options)?)
        })
    }

    /// Opens the one model at a path.
    fn open(path: &Path, options: &OpenOptions) -> PyResult<alight_model::Model> {
        if path.is_dir() {
            let source = source::open(path)?;
            if source.format != Format::Gguf {
                return Err(source::other_format(path, source.format));
            }
            // Of several files, any leads to the others.
            let first = source.files.first().map_or(path, |map| map.path());
            return alight_model::Model::open(first, options).map_err(error::model);
        }
        // Nothing of a file is read before it is known what of it is in memory.
        let refused = |problem| match problem {
            // The file may be of another format: `source::open` knows them all, and its errors say what to do.
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

#[pymethods]
impl Model {
    /// Opens a GGUF file, a folder with one model in it, or a model of the hub. The weights are mapped, and loaded in the background.
    #[new]
    #[pyo3(signature = (path, *, context=None, threads=None, sequences=8, load="auto", repack="auto", lock=false, memory=None,
        prompt_precision=8, cache_type="f16", prompt_cache=1 << 30, speculate=None, draft=None, offline=false))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        context: Option<usize>,
        threads: Option<usize>,
        sequences: usize,
        load: &str,
        repack: &str,
        lock: bool,
        memory: Option<u64>,
        prompt_precision: u32,
        cache_type: &str,
        prompt_cache: usize,
        speculate: Option<Drafts>,
        draft: Option<PathBuf>,
        offline: bool,
    ) -> PyResult<Model> {
        let open = OpenOptions {
            threads: threads.map(|n| number("threads", n, MAX_THREADS)).transpose()?,
            load: word::<Load>("load", load)?,
            repack: word::<Repack>("repack", repack)?,
            lock,
            memory,
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
                [("f16", KvType::F16), ("q8_0", KvType::Q8_0)],
            )?,
            prompt_cache,
            speculate: match speculate {
                None => Speculate::Auto,
                Some(Drafts::Number(n)) => word("speculate", &n.to_string())?,
                Some(Drafts::Word(text)) => word("speculate", &text)?,
            },
            ..EngineOptions::default()
        };
        let path = hub::file(py, path, offline)?;
        let draft = draft.map(|draft| hub::file(py, draft, offline)).transpose()?;
        py.detach(move || {
            let model = Model::open(&path, &open)?;
            let draft = draft.map(|path| Model::open(&path, &open)).transpose()?;
            let spec = model.spec();
            let trained = spec.context;
            options.context = Some(alight_model::context(context, trained));
            let about = (model.name().to_owned(), spec.architecture, spec.hidden_size);
            let (name, architecture, hidden_size) = about;
            let (parameters, threads) = (model.parameters(), model.threads());
            let vocabulary = model.shared_vocabulary();
            let (worker, limit) = Worker::start(model, draft, options)?;
            let context = Context { limit, trained };
            Ok(Model {
                worker,
                vocabulary,
                context,
                path,
                name,
                architecture,
                hidden_size,
                parameters,
                threads,
            })
        })
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
        self.tokenizer().decode(py, tokens)
    }

    /// Answers a prompt as `alight run` does.
    #[pyo3(signature = (prompt, **options))]
    fn generate(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::take(prompt)?, &options)?.finish(py)
    }

    /// The same, in pieces while it is made.
    #[pyo3(signature = (prompt, **options))]
    fn stream(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        let options = Options::take(options)?;
        self.begin(py, Prompt::take(prompt)?, &options).map(Stream::new)
    }

    /// The next message of a conversation, by the model's chat template.
    #[pyo3(signature = (messages, *, tools=None, **options))]
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

    /// The same, in pieces while it is made.
    #[pyo3(signature = (messages, *, tools=None, **options))]
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
    #[pyo3(signature = (prompts, **options))]
    fn batch(
        &self,
        py: Python<'_>,
        prompts: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let options = Options::take(options)?;
        let prompts = several(prompts)?;
        // All of them are prompts before one is computed.
        let encoded = py.detach(|| {
            let encode = |prompt: Prompt| {
                let tools = prompt.has_tools();
                let (tokens, style) = prompt.encode(&self.vocabulary, &options, self.context)?;
                Ok((tokens, style, tools))
            };
            prompts.into_iter().map(encode).collect::<PyResult<Vec<_>>>()
        })?;
        let begin = |prompt| Ok(Making::begin(&self.worker, &self.vocabulary, prompt, &options)?);
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
            let (prompt, _) = prompt.encode(&self.vocabulary, &options, self.context)?;
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
            Ok::<_, PyErr>(self.worker.ask(Ask { request, of_logits: Wanted::Logits })?)
        })?;
        let (mut numbers, mut rows) = (Vec::new(), 0);
        loop {
            match wait(py, &mut running)? {
                Happened::PromptLogits(row) | Happened::Token(_, OfLogits::Logits(row)) => {
                    numbers.extend(row);
                    rows += 1;
                }
                Happened::Finished(_) => break,
                _ => {}
            }
        }
        let vocab = self.vocab_size();
        Ok(if all { Array::new(numbers, &[rows, vocab]) } else { Array::new(numbers, &[vocab]) })
    }

    /// A text as a vector: the final hidden states of its tokens, pooled. Of several texts, or lists of tokens, one row each.
    #[pyo3(signature = (text, *, pooling="mean", normalize=true, parse_special=false))]
    fn embed(
        &self,
        py: Python<'_>,
        text: &Bound<'_, PyAny>,
        pooling: &str,
        normalize: bool,
        parse_special: bool,
    ) -> PyResult<Array> {
        let words = [("mean", Pooling::Mean), ("last", Pooling::Last)];
        let of_prompt = OfPrompt::Embedding(one_of("pooling", &pooling, words)?);
        let options = Options::of_text(parse_special);
        let one = text.is_instance_of::<PyString>()
            || text.extract::<Vec<u32>>().is_ok_and(|t| !t.is_empty());
        let prompts = if one { vec![Prompt::take(text)?] } else { several(text)? };
        let running = py.detach(|| {
            let encode = |prompt: Prompt| {
                let (prompt, _) = prompt.encode(&self.vocabulary, &options, self.context)?;
                Ok(Request { prompt, of_prompt, ..Request::default() })
            };
            let requests = prompts.into_iter().map(encode).collect::<PyResult<Vec<_>>>()?;
            let ask = |request| Ok(self.worker.ask(Ask { request, of_logits: Wanted::Nothing })?);
            requests.into_iter().map(ask).collect::<PyResult<Vec<_>>>()
        })?;
        let rows = running.len();
        let mut numbers = Vec::with_capacity(rows * self.hidden_size);
        for mut running in running {
            let vector = loop {
                if let Happened::Embedding(vector) = wait(py, &mut running)? {
                    break vector;
                }
            };
            numbers.extend(if normalize { to_unit_length(&vector) } else { vector });
        }
        let width = self.hidden_size;
        Ok(if one { Array::new(numbers, &[width]) } else { Array::new(numbers, &[rows, width]) })
    }

    /// Ends what is computed, and gives the memory back.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.worker.close());
    }

    /// Whether it was closed.
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
