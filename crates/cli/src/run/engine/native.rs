//! The engine of this program: a session on the mapped model, and a sampler.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::time::Duration;

use alight_chat::grammar::Masks;
use alight_model::{
    AdapterSet, Cancel, Constraint, Finish, GenerateOptions, Model, ModelError, PromptFolder,
    Sampler, SamplerOptions, Session, SessionOptions, generate_constrained, reusable,
};
use anyhow::anyhow;
use serde::Serialize;

use super::{Answered, Description, Engine, Event, Request, fields};
use crate::needs::Held;
use crate::open::EngineArgs;
use crate::outcome::{Outcome, chain_of};
use crate::prompt_cache::say_ignored;
use crate::{say, units};

/// Prompt tokens that are computed between two events, in one step.
pub const STEP_TOKENS: usize = 512;
/// A prompt is kept if at least this number of its tokens were not kept yet.
const MIN_NEW: usize = 64;

/// A conversation on a model of this process.
pub struct Native<'m> {
    model: &'m Model,
    session: ManuallyDrop<Session<'m>>,
    sampler: Sampler,
    /// The options that `sampler` was created with, and the texts that break sequences; `None`: the usual ones.
    sampling: SamplerOptions,
    breakers: Option<Vec<String>>,
    /// The tokens in the session's cache.
    cached: Vec<u32>,
    args: &'m EngineArgs,
    /// Created when an answer is first constrained.
    masks: OnceCell<Masks>,
    /// The folder of kept prompts, and whether this prompt is to be saved there once it is answered.
    prompts: Option<PromptFolder>,
    to_keep: bool,
}

impl<'m> Native<'m> {
    /// Starts a conversation of up to `context` tokens.
    pub fn new(
        model: &'m Model,
        context: usize,
        (sampling, breakers): (SamplerOptions, Option<&[String]>),
        args: &'m EngineArgs,
    ) -> Outcome<Native<'m>> {
        let options = SessionOptions {
            context: Some(context),
            prompt_precision: args.prompt_precision(),
            cache_type: args.cache_type(),
            ..SessionOptions::default()
        };
        let session = Session::new(model, &options).map_err(|e| anyhow!(e))?;
        Ok(Native {
            model,
            // The system frees its memory when the process ends.
            session: ManuallyDrop::new(session),
            sampler: sampler(model, sampling, breakers),
            sampling,
            breakers: breakers.map(<[String]>::to_vec),
            // The last token of an answer uses no position of the context.
            cached: Vec::with_capacity((context + 1).min(1 << 20)),
            args,
            masks: OnceCell::new(),
            prompts: None,
            to_keep: false,
        })
    }

    /// Keeps the first prompt of the conversation in `folder`, and begins with the part already kept there.
    pub fn keep_prompts(&mut self, folder: Option<PromptFolder>) {
        self.prompts = folder;
    }

    /// Gives the conversation its adapters.
    pub fn adapt(&mut self, adapters: &AdapterSet) -> Outcome {
        Ok(self.session.set_adapters(adapters).map_err(|e| anyhow!(e))?)
    }

    /// Lets a smaller model propose tokens.
    pub fn draft_with(&mut self, draft: &'m Model) -> Outcome {
        Ok(self.session.draft_with(draft).map_err(|e| anyhow!(e))?)
    }

    /// Lets the model's multi-token prediction layer propose tokens, if its file has one.
    pub fn draft_with_mtp(&mut self) -> Outcome {
        self.session.draft_with_mtp().map_err(|e| anyhow!(e))?;
        Ok(())
    }

    /// Restores the part of the first prompt that the folder of prompts holds. Returns its number of tokens.
    fn restore(&mut self, prompt: &[u32]) -> usize {
        let Some(folder) = self.prompts.as_ref().filter(|_| self.session.position() == 0) else {
            return 0;
        };
        if self.model.is_incoming() {
            // Prompts are kept under bytes of all tensors, and of a new model there are none.
            self.to_keep = prompt.len() >= MIN_NEW;
            return 0;
        }
        let restored = self.session.restore(folder, prompt);
        say_ignored(&restored.ignored);
        self.to_keep = prompt.len() - restored.positions >= MIN_NEW;
        restored.positions
    }

    /// Computes the prompt from `from` on, and generates.
    fn go_on(
        &mut self,
        from: usize,
        request: &Request<'_>,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Finish, ModelError> {
        let Native { session, sampler, cached, masks, .. } = self;
        if on_event(Event::Prompt { done: from }).is_break() {
            return Ok(Finish::Interrupted);
        }
        // The first mask is computed while the prompt is.
        let held = request.held.map(|held| {
            let held = masks.get_or_init(Masks::start).hold(held.clone());
            Box::new(held) as Box<dyn Constraint>
        });
        let mut held = match request.thinking.clone() {
            Some(budget) => Some(budget.constraint(request.prompt, held)),
            None => held,
        };
        let prompt = &request.prompt[from..];
        let left = session.context().saturating_sub(session.position());
        // A prompt that does not fit is passed to `generate` whole: its error has the right numbers.
        let early =
            if prompt.len() <= left { (prompt.len() - 1) / STEP_TOKENS * STEP_TOKENS } else { 0 };
        for piece in prompt[..early].chunks(STEP_TOKENS) {
            session.prefill(piece)?;
            piece.iter().for_each(|&token| sampler.accept(token));
            if on_event(Event::Prompt { done: session.position() }).is_break() {
                return Ok(Finish::Interrupted);
            }
        }
        let rest = &prompt[early..];
        if request.limits.max_tokens == 0 {
            session.prefill(rest)?;
            return Ok(Finish::Length);
        }
        let mut on_token = |id| {
            cached.push(id);
            on_event(Event::Token(id))
        };
        let held = held.as_mut().map(|held| &mut **held as &mut dyn Constraint);
        // The last token takes no position.
        let most = (request.context + 1).saturating_sub(request.prompt.len());
        let max_tokens = request.limits.max_tokens.min(most);
        let limits = GenerateOptions { max_tokens, ..request.limits };
        let generated = generate_constrained(session, sampler, rest, &limits, held, &mut on_token)?;
        Ok(match generated.finish {
            Finish::Length if request.limits.max_tokens > most => Finish::ContextFull,
            finish => finish,
        })
    }
}

/// Returns a sampler for the tokens of a model.
fn sampler(model: &Model, options: SamplerOptions, breakers: Option<&[String]>) -> Sampler {
    let tokenizer = model.tokenizer();
    let breakers = options.breakers(tokenizer, breakers);
    Sampler::new(options, tokenizer.vocab_size()).with_breakers(breakers)
}

impl Engine for Native<'_> {
    fn ready(&mut self) -> Outcome {
        Ok(())
    }

    fn cancel_by(&mut self, cancel: Cancel) {
        self.session.cancel_by(cancel);
    }

    fn answer(
        &mut self,
        request: &Request<'_>,
        on_event: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Outcome<Answered> {
        let options = (request.sampling, request.breakers);
        if (self.sampling, self.breakers.as_deref()) != options {
            self.sampling = request.sampling;
            self.breakers = request.breakers.map(<[String]>::to_vec);
            self.sampler = sampler(self.model, request.sampling, request.breakers);
        }
        let mut reused = self.session.truncate(reusable(&self.cached, request.prompt));
        if reused == 0 {
            reused = self.restore(request.prompt);
        }
        // Tokens that are not computed again count for penalties and repetitions like computed ones, and those of an answer that is no part
        // of this prompt do not.
        self.sampler.begin();
        request.prompt[..reused].iter().for_each(|&token| self.sampler.accept(token));
        self.cached.clear();
        self.cached.extend(request.prompt);
        let finish = match self.go_on(reused, request, on_event) {
            Err(ModelError::Cancelled) => Ok(Finish::Interrupted),
            finish => finish.map_err(|e| anyhow!(e)),
        };
        // Also after an error, these tokens have been computed.
        self.cached.truncate(self.session.position());
        Ok(Answered { finish: finish?, computed: request.prompt.len() - reused })
    }

    /// A failure to keep the prompt is only noted: there is an answer.
    fn keep(&mut self) {
        if self.model.is_incoming() {
            // Later, when it is complete.
            return;
        }
        let keep = std::mem::take(&mut self.to_keep);
        let Some(folder) = self.prompts.as_ref().filter(|_| keep) else { return };
        if let Err(error) = self.session.keep(folder) {
            say::note(&format!("the prompt is not kept: {}", chain_of(&error)));
        }
    }

    fn finish(&mut self, tokens: usize) -> Outcome {
        if tokens > 0 && !self.model.brings_behind() {
            // All weights have been used, so they are loaded; the load's remaining bookkeeping takes a moment on a busy machine,
            // and the report needs it. A failure would have ended the answer. Experts that were never chosen are not waited for.
            let _ = self.model.wait_loaded();
        }
        self.args.explain_outcome(self.model);
        Ok(())
    }

    fn description(&self) -> Description {
        let (model, open) = (self.model, self.model.timings());
        let time = |d: Duration| units::ms(d.as_secs_f64() * 1e3);
        Description {
            fields: fields(Computed {
                engine: "native",
                threads: model.threads(),
                isa: model.isa().to_string(),
            }),
            start: vec![
                ("open", open.total),
                ("map", open.map),
                ("header", open.header),
                ("weights", open.weights),
                ("tokenizer", open.tokenizer),
            ],
            start_line: format!(
                "open         {} (map {}, header {}, weights {}, tokenizer {})",
                time(open.total),
                time(open.map),
                time(open.header),
                time(open.weights),
                time(open.tokenizer),
            ),
            by: format!(
                "{}, {} kernels",
                units::so_many(model.threads() as u64, "thread"),
                model.isa()
            ),
            held: Some(Held::of(model, self.session.position(), self.args.cache_type())),
            load: Some(Load::of(model)),
            slots: model.load_report().slots,
            output: self.session.output_counts(),
        }
    }
}

/// The engine, in the line of JSON.
#[derive(Debug, Serialize)]
struct Computed {
    engine: &'static str,
    threads: usize,
    isa: String,
}

/// How the weights were loaded, in the line of JSON.
#[derive(Debug, Serialize)]
pub struct Load {
    /// `mmap`, `direct` or `read`.
    method: &'static str,
    /// The reason, in one sentence.
    reason: String,
    /// The interface that issued the reads, `io_uring` or `threads`; null if the file is only mapped.
    engine: Option<String>,
    /// True if the page cache was bypassed.
    direct: bool,
    /// True if matrices were packed, the reason, and how many were.
    repack: bool,
    repack_reason: String,
    packed: usize,
    bytes_repacked: u64,
    bytes_given_back: u64,
    /// Bytes of weights that were read into memory of this process.
    bytes_read: u64,
    bytes_locked: u64,
    /// From the start of the load to its end; null if it had not finished.
    seconds: Option<f64>,
    /// The time that the prompt and the answer waited for weights.
    waited_seconds: f64,
    /// Features that were not available, as text.
    fallbacks: Vec<String>,
}

impl Load {
    fn of(model: &Model) -> Load {
        let report = model.load_report();
        Load {
            method: report.method().name(),
            reason: report.reason().to_owned(),
            engine: report.engine.map(|engine| engine.to_string()),
            direct: report.direct,
            repack: report.repack,
            packed: report.packed,
            bytes_repacked: report.bytes_repacked,
            bytes_given_back: report.bytes_given_back,
            bytes_read: report.bytes_read,
            bytes_locked: report.bytes_locked,
            seconds: report.took.map(|took| took.as_secs_f64()),
            waited_seconds: report.waited.as_secs_f64(),
            fallbacks: report.fallbacks.iter().map(ToString::to_string).collect(),
            repack_reason: report.repack_reason,
        }
    }
}
