//! Computes the answer of a record until it differs.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use alight_chat::worker::{
    EngineEvent, EngineLoop, GenerateRequest, Log, LogitsWanted, TokenLogits,
};
use alight_model::{DEFAULT_CONTEXT, EngineOptions, KvType, Logprobs, Model, Precision};
use anyhow::anyhow;

use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Stop};
use crate::record::{ReadRecord, RecordedFinish};
use crate::say;

/// The key of the only request.
const KEY: u64 = 0;

/// The log-probabilities that the user wants to see.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// The number of the likeliest tokens, if any are wanted.
    pub logprobs: Option<usize>,
    /// True for those of every token, and not only of the first that differs.
    pub everywhere: bool,
}

/// A token that was computed, and the likeliest ones in its place.
#[derive(Clone, Debug)]
pub struct ComputedToken {
    pub id: u32,
    pub logprobs: Option<Box<Logprobs>>,
}

/// A recorded answer, and what was computed.
#[derive(Debug, Default)]
pub struct AnswerComparison {
    /// The number of tokens that are the same.
    pub same: usize,
    pub difference: Option<Difference>,
    /// The tokens, if all of them are to be shown.
    pub tokens: Vec<ComputedToken>,
}

/// The first token that differs, which follows those that are the same.
#[derive(Debug)]
pub struct Difference {
    /// The recorded token; `None` for the end of the answer.
    pub recorded: Option<u32>,
    /// The computed one; `None` if there is no position left for one.
    pub now: Option<ComputedToken>,
    /// True if that one ends the answer.
    pub ends: bool,
}

/// Computes with one model.
pub struct Replayer {
    model: &'static Model,
    interrupt: Interrupt,
    /// Of the last record: those of one batch share it.
    engine: Option<(EngineSetting, EngineLoop<'static>)>,
}

/// The options that an engine is created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EngineSetting {
    context: usize,
    prompt_precision: Precision,
    cache_type: KvType,
}

impl Replayer {
    /// Creates a replayer, which Ctrl-C ends.
    pub fn new(model: &'static Model, interrupt: Interrupt) -> Replayer {
        Replayer { model, interrupt, engine: None }
    }

    /// Returns the engine for a record with a prompt of this length.
    fn engine(&mut self, record: &ReadRecord, prompt: usize) -> Outcome<&mut EngineLoop<'static>> {
        let ReadRecord { prompt_precision, cache_type, .. } = *record;
        // No bit depends on positions that nothing is in, and a record may ask for very many.
        let needed = (prompt + record.tokens.len() + 1).next_power_of_two();
        let context = record.context.min(needed.max(DEFAULT_CONTEXT));
        let setting = EngineSetting { context, prompt_precision, cache_type };
        if self.engine.as_ref().is_none_or(|(made_for, _)| *made_for != setting) {
            // The memory of one is free before the next is created.
            self.engine = None;
            let options = EngineOptions {
                sequences: 1,
                context: Some(context),
                prompt_precision,
                cache_type,
                ..EngineOptions::default()
            };
            let log: Log = Arc::new(say::note);
            let engine = EngineLoop::start(self.model, None, &options, &log);
            let mut engine = engine.map_err(|error| anyhow!(error))?;
            engine.cancel_by(self.interrupt.cancel());
            self.engine = Some((setting, engine));
        }
        match &mut self.engine {
            Some((_, engine)) => Ok(engine),
            None => Err(anyhow!("there is no engine").into()),
        }
    }

    /// Computes the answer to a request, which is the record's, and compares it with the record's.
    ///
    /// # Errors
    /// It cannot be computed, or Ctrl-C was pressed.
    pub fn compare(
        &mut self,
        record: &ReadRecord,
        mut request: GenerateRequest,
        wish: Wish,
    ) -> Outcome<AnswerComparison> {
        let has_end = record.finish == RecordedFinish::Stop;
        let mut state = Comparing {
            expected: &record.tokens,
            has_end,
            wish,
            found: AnswerComparison::default(),
            is_end: Box::new({
                let (model, ends_count) = (self.model, !request.request.ignore_eos);
                move |id| ends_count && model.tokenizer().is_end(id)
            }),
        };
        // The token that ends an answer is handed out, too, since it is compared.
        request.request.ignore_eos = true;
        request.request.max_tokens = record.tokens.len() + usize::from(has_end);
        request.logits = wish.logprobs.map_or(LogitsWanted::Nothing, LogitsWanted::Logprobs);
        if request.request.max_tokens == 0 {
            return Ok(state.found);
        }
        let interrupt = self.interrupt;
        let engine = self.engine(record, request.request.prompt.len())?;
        let (send, events) = channel();
        let on_event = Box::new(move |event| {
            // After the comparison has ended, nothing receives events.
            let _ = send.send(event);
        });
        engine.generate(KEY, request, on_event);
        let ended = run(engine, &events, &mut state, interrupt);
        engine.cancel(KEY);
        ended.map(|()| state.found)
    }
}

/// Computes until the comparison ends.
fn run(
    engine: &mut EngineLoop<'static>,
    events: &Receiver<EngineEvent>,
    state: &mut Comparing<'_>,
    interrupt: Interrupt,
) -> Outcome {
    loop {
        while let Ok(event) = events.try_recv() {
            let ended = match event {
                EngineEvent::Token(id, logits) => state.take(id, logits),
                EngineEvent::Finished(_) => {
                    state.end();
                    true
                }
                EngineEvent::Refused(error)
                | EngineEvent::Failed(error)
                | EngineEvent::EngineFailed(error) => return Err(anyhow!(error).into()),
                EngineEvent::Ending => return Err(Stop::Interrupted),
                EngineEvent::Waiting { .. }
                | EngineEvent::Reading { .. }
                | EngineEvent::Prompt { .. }
                | EngineEvent::PromptToken(..)
                | EngineEvent::Embedding(_) => false,
            };
            if ended {
                return Ok(());
            }
        }
        if interrupt.pressed() {
            return Err(Stop::Interrupted);
        }
        engine.step();
    }
}

/// A comparison in progress.
struct Comparing<'r> {
    expected: &'r [u32],
    /// True if the end of the answer is compared, too.
    has_end: bool,
    wish: Wish,
    found: AnswerComparison,
    /// Returns true for a token that ends the answer.
    is_end: Box<dyn Fn(u32) -> bool>,
}

impl Comparing<'_> {
    /// Takes the next token. Returns true at the end of the comparison.
    fn take(&mut self, id: u32, logits: TokenLogits) -> bool {
        let logprobs = match logits {
            TokenLogits::Logprobs(logprobs) => Some(logprobs),
            TokenLogits::Nothing | TokenLogits::All(_) => None,
        };
        let now = ComputedToken { id, logprobs };
        let (ends, recorded) = ((self.is_end)(id), self.expected.get(self.found.same).copied());
        let same = match recorded {
            Some(recorded) => recorded == id && !ends,
            None => ends,
        };
        if self.wish.everywhere && self.wish.logprobs.is_some() {
            self.found.tokens.push(now.clone());
        }
        if !same {
            self.found.difference = Some(Difference { recorded, now: Some(now), ends });
            return true;
        }
        self.found.same += usize::from(recorded.is_some());
        recorded.is_none() || (self.found.same == self.expected.len() && !self.has_end)
    }

    /// The engine has no position for another token.
    fn end(&mut self) {
        let recorded = self.expected.get(self.found.same).copied();
        if recorded.is_some() || self.has_end {
            self.found.difference = Some(Difference { recorded, now: None, ends: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u32 = 9;

    /// Compares tokens as they come with recorded ones. Returns how many are the same, and where the comparison ended.
    fn compared(
        expected: &[u32],
        has_end: bool,
        tokens: &[u32],
    ) -> (usize, Option<usize>, AnswerComparison) {
        let mut state = Comparing {
            expected,
            has_end,
            wish: Wish { logprobs: None, everywhere: true },
            found: AnswerComparison::default(),
            is_end: Box::new(|id| id == END),
        };
        let ended = tokens.iter().position(|id| state.take(*id, TokenLogits::Nothing));
        if ended.is_none() {
            state.end();
        }
        (state.found.same, ended, state.found)
    }

    #[test]
    fn answers_are_equal_up_to_the_recorded_end() {
        for (expected, has_end, tokens, ended) in [
            (&[1, 2][..], false, &[1, 2][..], Some(1)),
            (&[1, 2], true, &[1, 2, END], Some(2)),
            (&[], true, &[END], Some(0)),
        ] {
            let (same, found, comparison) = compared(expected, has_end, tokens);
            assert_eq!((same, found), (expected.len(), ended));
            assert!(comparison.difference.is_none());
        }
    }

    #[test]
    fn the_first_difference_ends_the_comparison() {
        for (expected, has_end, tokens, same, recorded, now) in [
            (&[1, 2, 3][..], true, &[1, 5][..], 1, Some(2), Some(5)),
            (&[1, 2], true, &[1, 2, 3], 2, None, Some(3)),
            (&[1, 2], false, &[1, END], 1, Some(2), Some(END)),
            // An end among the recorded tokens ends the answer nevertheless.
            (&[1, END], false, &[1, END], 1, Some(END), Some(END)),
            (&[1, 2], true, &[1, 2], 2, None, None),
        ] {
            let (found, _, comparison) = compared(expected, has_end, tokens);
            let difference = comparison.difference.unwrap();
            assert_eq!((found, difference.recorded), (same, recorded), "{expected:?}");
            assert_eq!(difference.now.map(|token| token.id), now);
            assert_eq!(difference.ends, now == Some(END));
        }
    }
}
