//! The answers to one request as they are generated: the engine's events, as text.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use alight_chat::answer::{Answer, AnswerOptions, Delta};
use alight_chat::worker::{EngineEvent, TokenLogits};
use alight_model::{Finish, Logprobs, ModelError};
use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::request_log::{Record, Tokens};
use crate::worker::Running;

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The model ended it.
    Stop,
    /// A stop text was generated.
    Text,
    /// The requested number of tokens was generated, the context is full, or another limit was reached.
    Length,
}

/// A token that was sent to the client.
#[derive(Clone, Debug)]
pub(crate) struct TokenLogprob {
    pub(crate) id: u32,
    pub(crate) logprobs: Option<Box<Logprobs>>,
}

impl TokenLogprob {
    /// The number of log probabilities: its own, and those of the likeliest tokens.
    fn count(&self) -> usize {
        self.logprobs.as_ref().map_or(0, |logprobs| 1 + logprobs.top.len())
    }

    /// The token with its log probability and those of the likeliest tokens, in OpenAI's format with llama-server's ids; `None` if they are not
    /// known.
    pub(crate) fn value(&self, tokenizer: &Tokenizer) -> Option<Value> {
        let one = |id: u32, logprob: f32| {
            let mut bytes = Vec::new();
            tokenizer.decode_special(id, &mut bytes);
            let token = String::from_utf8_lossy(&bytes).into_owned();
            json!({"id": id, "token": token, "bytes": bytes, "logprob": logprob})
        };
        let logprobs = self.logprobs.as_ref()?;
        let mut value = one(self.id, logprobs.chosen);
        value["top_logprobs"] = logprobs.top.iter().map(|(id, l)| one(*id, *l)).collect();
        Some(value)
    }
}

/// The new part of an answer.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) deltas: Vec<Delta>,
    /// Tokens whose text has been sent, including in this piece.
    pub(crate) tokens: Vec<TokenLogprob>,
}

/// An event of one of the answers.
#[derive(Debug)]
pub(crate) enum Update {
    /// This many tokens of its prompt were read, and more follow.
    Reading(usize),
    /// Its prompt was read.
    Read,
    /// More of it was generated.
    More(Piece),
    /// It ended with this piece.
    Ended(Piece, Reason),
    /// It failed, and nothing follows.
    Failed(Failure),
}

/// One answer.
pub(crate) struct Choice {
    /// `None` if it has ended.
    running: Option<Running>,
    pub(crate) answer: Answer,
    /// When it was requested.
    began: Instant,
    /// When its prompt was read.
    read: Option<Instant>,
    /// Of the prompt: its tokens, and those that were reused.
    pub(crate) prompt_tokens: usize,
    pub(crate) reused: usize,
    /// The place of the engine that computes it, once the prompt was read.
    pub(crate) place: Option<usize>,
    /// Tokens of the prompt that are computed or known so far.
    known: usize,
    /// While it waits for a place: the number of requests that get one first.
    queue: Option<usize>,
    /// Tokens that were generated.
    pub(crate) tokens: usize,
    /// The tokens of the prompt, if requested; the first one has no likelihood.
    pub(crate) echoed: Vec<TokenLogprob>,
    /// The embedding of the prompt.
    pub(crate) embedding: Vec<f32>,
    /// Tokens whose text was not sent yet, with where it begins and ends.
    waiting: VecDeque<([usize; 2], TokenLogprob)>,
}

impl Choice {
    /// The progress of its prompt, in llama-server's format; `read` is `None` when all of it was read, which is when the number of
    /// reused tokens is known. `queue` is not llama-server's, and is there only while the request waits for a place.
    pub(crate) fn progress(&self, read: Option<usize>) -> Value {
        let mut progress = json!({
            "total": self.prompt_tokens,
            "cache": self.reused,
            "processed": read.unwrap_or(self.prompt_tokens),
            "time_ms": self.began.elapsed().as_millis() as u64,
        });
        if let Some(before) = self.queue {
            progress["queue"] = before.into();
        }
        progress
    }

    /// Returns the time its prompt took, including waiting, and the time since then.
    pub(crate) fn times(&self) -> [Duration; 2] {
        let now = Instant::now();
        let read = self.read.unwrap_or(now);
        [read - self.began, now - read]
    }

    /// The timings, in llama-server's format. The first token costs no step of its own.
    pub(crate) fn timings(&self) -> Value {
        let of = |n: usize, time: Duration| {
            let (n, seconds) = (n as f64, time.as_secs_f64());
            let rate = if seconds > 0.0 { n / seconds } else { 0.0 };
            (1e3 * seconds, if n > 0.0 { 1e3 * seconds / n } else { 0.0 }, rate)
        };
        let computed = self.known.saturating_sub(self.reused);
        let [prompt, answer] = self.times();
        let (prompt, answer) = (of(computed, prompt), of(self.tokens.saturating_sub(1), answer));
        json!({
            "cache_n": self.reused,
            "prompt_n": computed,
            "prompt_ms": prompt.0,
            "prompt_per_token_ms": prompt.1,
            "prompt_per_second": prompt.2,
            "predicted_n": self.tokens,
            "predicted_ms": answer.0,
            "predicted_per_token_ms": answer.1,
            "predicted_per_second": answer.2,
        })
    }

    fn take(&mut self, event: Option<EngineEvent>) -> Option<Update> {
        let mut deltas = Vec::new();
        let each = &mut |delta| deltas.push(delta);
        match event {
            Some(EngineEvent::Prompt { reused, place }) => {
                (self.reused, self.place, self.queue) = (reused, Some(place), None);
                self.known = self.prompt_tokens;
                self.read = Some(Instant::now());
                Some(Update::Read)
            }
            Some(EngineEvent::Waiting { before }) => {
                self.queue = Some(before);
                Some(Update::Reading(0))
            }
            Some(EngineEvent::Reading { read, reused }) => {
                (self.reused, self.known, self.queue) = (reused, read, None);
                Some(Update::Reading(read))
            }
            Some(EngineEvent::PromptToken(id, logits)) => {
                self.echoed.push(TokenLogprob { id, logprobs: logprobs(logits) });
                None
            }
            Some(EngineEvent::Embedding(embedding)) => {
                self.embedding = embedding;
                self.known = self.prompt_tokens;
                self.running = None;
                Some(Update::Ended(Piece::default(), Reason::Stop))
            }
            Some(EngineEvent::Token(id, logits)) => {
                self.tokens += 1;
                let [begin, _] = self.answer.bytes();
                let ended = self.answer.push(id, each);
                let [end, given] = self.answer.bytes();
                self.waiting.push_back((
                    [begin, end.max(begin)],
                    TokenLogprob { id, logprobs: logprobs(logits) },
                ));
                let tokens = self.told(given, ended);
                if let Some(running) = &self.running {
                    running.pass_on(tokens.iter().map(|token| 1 + token.count()).sum());
                }
                let piece = Piece { deltas, tokens };
                if ended {
                    self.running.take().into_iter().for_each(Running::end);
                    let reason = match self.answer.stopped() {
                        Some(_) => Reason::Text,
                        None if self.answer.is_full() => Reason::Stop,
                        None => Reason::Length,
                    };
                    return Some(Update::Ended(piece, reason));
                }
                let something = !piece.deltas.is_empty() || !piece.tokens.is_empty();
                something.then_some(Update::More(piece))
            }
            Some(EngineEvent::Finished(finish)) => {
                self.answer.finish(each);
                self.running = None;
                let tokens = self.waiting.drain(..).map(|(_, told)| told).collect();
                let reason = match finish {
                    Finish::Length | Finish::ContextFull => Reason::Length,
                    Finish::Stop | Finish::Interrupted => Reason::Stop,
                };
                Some(Update::Ended(Piece { deltas, tokens }, reason))
            }
            failed => {
                let running = self.running.take()?;
                let text = |why: &ModelError| running.error_text(why);
                Some(Update::Failed(match failed {
                    // The grammar of the request allows too much, or nothing, at this point of the answer: it fails again if it is repeated.
                    Some(EngineEvent::Failed(why))
                        if matches!(*why, ModelError::Constraint { .. }) =>
                    {
                        let why = why.to_string();
                        Failure::invalid(format!(
                            "{}: make the schema or the grammar simpler",
                            why.lines().next().unwrap_or_default()
                        ))
                    }
                    Some(EngineEvent::Failed(why) | EngineEvent::EngineFailed(why)) => {
                        Failure::internal(text(&why))
                    }
                    Some(EngineEvent::Refused(why)) => Failure::invalid(text(&why)),
                    Some(EngineEvent::Ending) => Failure::ending(),
                    _ => running.failure(),
                }))
            }
        }
    }

    /// Takes the tokens whose text ends within the first `given` bytes; if the answer was cut there, also the token in which it
    /// was cut.
    fn told(&mut self, given: usize, cut: bool) -> Vec<TokenLogprob> {
        let mut told = Vec::new();
        while let Some(([begin, end], _)) = self.waiting.front() {
            if if cut { *begin < given } else { *end <= given } {
                told.extend(self.waiting.pop_front().map(|(_, told)| told));
            } else {
                break;
            }
        }
        told
    }
}

/// Returns the log probabilities, if requested.
fn logprobs(logits: TokenLogits) -> Option<Box<Logprobs>> {
    match logits {
        TokenLogits::Logprobs(logprobs) => Some(logprobs),
        TokenLogits::Nothing | TokenLogits::All(_) => None,
    }
}

/// Maximum number of log probabilities in the answers to one request that are sent whole, and of those of an echoed prompt, which the engine
/// returns all at once. As JSON values they take some 130 MB.
pub(crate) const MAX_LOGPROBS: usize = 1 << 18;

impl Drop for Generation {
    fn drop(&mut self) {
        for Choice { known, reused, tokens, .. } in &self.choices {
            let read = known.saturating_sub(*reused);
            self.record.count(Tokens { read, reused: *reused, written: *tokens });
        }
    }
}

/// All answers to a request.
pub(crate) struct Generation {
    pub(crate) choices: Vec<Choice>,
    /// The record of the request, for the log.
    pub(crate) record: Arc<Record>,
    /// The number of log probabilities that [`next`](Self::next) has returned.
    logprobs: usize,
    /// Index of the answer to be polled next.
    turn: usize,
}

impl Generation {
    /// Takes answers that are being computed already, or wait.
    pub(crate) fn new(
        record: &Arc<Record>,
        running: Vec<(Running, Vec<u32>)>,
        asked: &AnswerOptions,
        vocabulary: &'static Vocabulary,
    ) -> Generation {
        let began = Instant::now();
        let choices = running.into_iter().map(|(running, prompt)| Choice {
            running: Some(running),
            answer: Answer::new(asked, &prompt, vocabulary),
            began,
            read: None,
            prompt_tokens: prompt.len(),
            reused: 0,
            place: None,
            known: 0,
            queue: None,
            tokens: 0,
            echoed: prompt
                .first()
                .map(|id| TokenLogprob { id: *id, logprobs: None })
                .into_iter()
                .collect(),
            embedding: Vec::new(),
            waiting: VecDeque::new(),
        });
        let (choices, record) = (choices.collect(), Arc::clone(record));
        Generation { choices, record, logprobs: 0, turn: 0 }
    }

    /// Returns the next event and the index of its answer; `None` when all have ended.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Update)>> {
        let n = self.choices.len();
        let mut open = false;
        for _ in 0..n {
            let at = self.turn % n;
            self.turn = (at + 1) % n;
            let choice = &mut self.choices[at];
            while let Some(running) = &mut choice.running {
                open = true;
                match running.poll(context) {
                    Poll::Pending => break,
                    Poll::Ready(event) => {
                        if let Some(update) = choice.take(event) {
                            return Poll::Ready(Some((at, update)));
                        }
                    }
                }
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// Waits for the next event of answers that are sent whole. Fails once they have more than [`MAX_LOGPROBS`].
    pub(crate) async fn next(&mut self) -> Option<(usize, Update)> {
        let next = poll_fn(|context| self.poll(context)).await;
        if let Some((at, Update::More(piece) | Update::Ended(piece, _))) = &next {
            self.logprobs += piece.tokens.iter().map(TokenLogprob::count).sum::<usize>();
            if self.logprobs > MAX_LOGPROBS {
                let message = format!(
                    "the answer has more than {MAX_LOGPROBS} log probabilities, the maximum of one that is sent whole: use \"stream\", or ask for fewer"
                );
                let failed = Update::Failed(Failure::invalid(message));
                return Some((*at, failed));
            }
        }
        next
    }
}
