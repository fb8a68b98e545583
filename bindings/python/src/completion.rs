//! An answer: whole, or in pieces while it is generated.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use alight_chat::grammar::{Held, PromptConstraint};
use alight_chat::thinking::ThinkingBudget;
use alight_chat::worker::{EngineEvent, GenerateRequest, LogitsWanted, TokenLogits};
use alight_model::{AdapterSet, Finish, Logprobs, Request};
use alight_text::Vocabulary;
use alight_text::output::{Shown, Tools};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::asked::{EncodedPrompt, Options};
use crate::worker::{Failure, Running, Worker};

/// The time to wait for a token before signals are checked.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// An answer, with the fields of what `alight run --json` writes. As a `str` it is its text.
#[pyclass(frozen, module = "alight")]
pub struct Completion {
    /// What `alight run` would write into a pipe: thinking between <think> and </think>, then the answer.
    #[pyo3(get)]
    text: String,
    /// The text that was shown to the user.
    #[pyo3(get)]
    answer: String,
    /// The model's thinking; `None` if it did not.
    #[pyo3(get)]
    thinking: Option<String>,
    calls: Vec<alight_text::output::Call>,
    /// The tokens.
    #[pyo3(get)]
    tokens: Vec<u32>,
    logprobs: Option<Vec<Logprobs>>,
    finish: Option<Finish>,
    /// Tokens of the prompt.
    #[pyo3(get)]
    prompt_tokens: usize,
    /// How many of them were not computed, because they had been for an earlier prompt.
    #[pyo3(get)]
    reused_tokens: usize,
    /// The seed of the random choices.
    #[pyo3(get)]
    seed: u64,
}

#[pymethods]
impl Completion {
    /// Calls of tools: each a dict of a `name` and of `arguments`, as the model gave them.
    #[getter]
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let calls = PyList::empty(py);
        for call in &self.calls {
            calls.append(crate::tokenizer::call(py, call)?)?;
        }
        Ok(calls)
    }

    /// How likely the tokens were, if that was asked for: for each a dict of its `logprob`, and of `top`, those of the likeliest
    /// tokens, the likeliest first.
    #[getter]
    fn logprobs<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(logprobs) = &self.logprobs else { return Ok(None) };
        let all = PyList::empty(py);
        for one in logprobs {
            let (entry, top) = (PyDict::new(py), PyDict::new(py));
            for (token, logprob) in &one.top {
                top.set_item(token, logprob)?;
            }
            entry.set_item("logprob", one.chosen)?;
            entry.set_item("top", top)?;
            all.append(entry)?;
        }
        Ok(Some(all))
    }

    /// Why it ended: "stop" (the model ended it, or a text of `stop` did), "length" (`max_tokens`), "context" (it is full), or
    /// "interrupted" (the stream was closed); `None` while it is made.
    #[getter]
    fn finish(&self) -> Option<&'static str> {
        self.finish.map(|finish| match finish {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ContextFull => "context",
            Finish::Interrupted => "interrupted",
        })
    }

    fn __str__(&self) -> &str {
        &self.text
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let text = self.text.as_str().into_pyobject(py)?.repr()?;
        let finish = self.finish().unwrap_or("going on");
        Ok(format!("<alight.Completion {text}, {} tokens, {finish}>", self.tokens.len()))
    }
}

/// An answer in progress.
pub struct Making {
    /// `None` once it has ended.
    running: Option<Running>,
    shown: Shown<Arc<Vocabulary>>,
    /// The pieces to be handed out.
    pieces: VecDeque<String>,
    tokens: Vec<u32>,
    logprobs: Option<Vec<Logprobs>>,
    prompt_tokens: usize,
    reused: usize,
    seed: u64,
    finish: Option<Finish>,
}

/// The result of waiting for the next piece.
pub enum Waited {
    Piece(String),
    /// Nothing yet.
    Nothing,
    /// There are no more pieces.
    End,
}

impl Making {
    /// Starts the computation.
    pub fn begin(
        worker: &Arc<Worker>,
        vocabulary: &Arc<Vocabulary>,
        (prompt, tools): (EncodedPrompt, Option<Tools>),
        (options, adapters): (&Options, AdapterSet),
        held: Option<Held>,
    ) -> Result<Making, Failure> {
        let EncodedPrompt { tokens: prompt, style, thinking: budget } = prompt;
        let thinking = options.shown();
        let fitted = PromptConstraint::new(held, style, &prompt, Arc::clone(vocabulary));
        let style = fitted.style(style);
        let shown = Shown::new(Arc::clone(vocabulary), style, &prompt, thinking, &options.stops);
        let shown = match tools.clone() {
            Some(tools) => shown.with_tools(tools),
            None => shown,
        };
        let (sampling, prompt_tokens) = (options.sampling(), prompt.len());
        let request = Request {
            prompt,
            sampling,
            logit_bias: options.logit_bias.clone(),
            dry_sequence_breakers: options.breakers.clone(),
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            adapters,
            ..Request::default()
        };
        let logits = options.logprobs.map_or(LogitsWanted::Nothing, LogitsWanted::Logprobs);
        let budget = budget.filter(|_| fitted.rules.thinking);
        let budget = budget.map(|most| ThinkingBudget::new(most, Arc::clone(vocabulary), tools));
        let request = GenerateRequest { request, logits, grammar: fitted.held, thinking: budget };
        let running = worker.generate(request)?;
        Ok(Making {
            running: Some(running),
            shown,
            pieces: VecDeque::new(),
            tokens: Vec::new(),
            logprobs: options.logprobs.map(|_| Vec::new()),
            prompt_tokens,
            reused: 0,
            seed: sampling.seed,
            finish: None,
        })
    }

    /// Waits for the next piece, no longer than [`PATIENCE`] for a token.
    pub fn wait(&mut self) -> Result<Waited, Failure> {
        if let Some(piece) = self.pieces.pop_front() {
            return Ok(Waited::Piece(piece));
        }
        let Some(running) = &mut self.running else { return Ok(Waited::End) };
        let event = match running.next(PATIENCE) {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(Waited::Nothing),
            Err(failure) => {
                self.end(Finish::Interrupted);
                return Err(failure);
            }
        };
        match event {
            EngineEvent::Prompt { reused, .. } => self.reused = reused,
            EngineEvent::Token(id, logits) => {
                self.tokens.push(id);
                if let TokenLogits::Logprobs(logprobs) = logits {
                    self.logprobs.get_or_insert_default().push(*logprobs);
                }
                let pieces = &mut self.pieces;
                let Ok(()) = self.shown.push(id, &mut |_, piece| take(pieces, piece));
                if self.shown.stopped() {
                    self.end(Finish::Stop);
                }
            }
            EngineEvent::Finished(finish) => self.end(finish),
            // Failures are errors of `next`; nothing else was requested.
            EngineEvent::Waiting { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::PromptToken(..)
            | EngineEvent::Embedding(_)
            | EngineEvent::Refused(_)
            | EngineEvent::Failed(_)
            | EngineEvent::EngineFailed(_)
            | EngineEvent::Ending => {}
        }
        Ok(match self.pieces.pop_front() {
            Some(piece) => Waited::Piece(piece),
            None => Waited::Nothing,
        })
    }

    /// Ends the answer.
    pub fn end(&mut self, finish: Finish) {
        if self.running.take().is_some() {
            self.finish = Some(finish);
            let pieces = &mut self.pieces;
            let Ok(()) = self.shown.finish(&mut |_, piece| take(pieces, piece));
        }
    }

    /// The answer so far.
    pub fn completion(&self) -> Completion {
        let texts = self.shown.texts();
        Completion {
            text: texts.written.clone(),
            answer: texts.answer.clone(),
            thinking: Some(&texts.thinking).filter(|text| !text.is_empty()).cloned(),
            calls: texts.calls.clone(),
            tokens: self.tokens.clone(),
            logprobs: self.logprobs.clone(),
            finish: self.finish,
            prompt_tokens: self.prompt_tokens,
            reused_tokens: self.reused,
            seed: self.seed,
        }
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// The failure of the request; `KeyboardInterrupt`, or the exception of a signal handler.
    pub fn finish(mut self, py: Python<'_>) -> PyResult<Completion> {
        loop {
            let waited = py.detach(|| self.wait())?;
            if matches!(waited, Waited::End) {
                return Ok(self.completion());
            }
            py.check_signals()?;
        }
    }
}

fn take(pieces: &mut VecDeque<String>, piece: &str) -> Result<(), Infallible> {
    if !piece.is_empty() {
        pieces.push_back(piece.to_owned());
    }
    Ok(())
}

/// An iterator of the pieces of an answer, which is made meanwhile.
///
/// The pieces, joined, are `completion.text`. To leave it early, `close` it or forget it: nothing more of it is computed then. As a
/// context manager it is closed at the end of the block.
#[pyclass(frozen, module = "alight")]
pub struct Stream {
    making: Mutex<Making>,
}

impl Stream {
    pub fn new(making: Making) -> Stream {
        Stream { making: Mutex::new(making) }
    }

    /// Must be called while the interpreter is released: another thread may hold the lock while it waits.
    fn making(&self) -> MutexGuard<'_, Making> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Stream {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            let waited = py.detach(|| self.making().wait())?;
            // For each piece: between them, `list(stream)` runs no Python code that would check signals.
            if let Err(error) = py.check_signals() {
                self.close(py);
                return Err(error);
            }
            match waited {
                Waited::Piece(piece) => return Ok(Some(piece)),
                Waited::End => return Ok(None),
                Waited::Nothing => {}
            }
        }
    }

    /// What there is of the answer; all of it once the iterator has ended.
    #[getter]
    fn completion(&self, py: Python<'_>) -> Completion {
        py.detach(|| self.making().completion())
    }

    /// Ends the answer here.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let mut making = self.making();
            making.end(Finish::Interrupted);
            making.pieces.clear();
        });
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (tokens, ended) = py.detach(|| {
            let making = self.making();
            (making.tokens.len(), making.running.is_none())
        });
        format!("<alight.Stream, {tokens} tokens{}>", if ended { ", ended" } else { "" })
    }
}
