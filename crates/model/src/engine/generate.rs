//! The token loop: compute, sample, hand out, until something ends it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::draft::DraftModel;
use super::sampler::Sampler;
use super::session::{MOST_REMEMBERED, Session};
use super::speculate::{Judge, Lookup, MOST_DRAFT, Speculate};
use crate::error::ModelError;

/// When to end.
#[derive(Clone, Copy, Debug)]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Go on after an end-of-generation token, and hand it out like any other.
    pub ignore_eos: bool,
    /// Whether tokens are drafted; the answer is the same.
    pub speculate: Speculate,
}

impl Default for GenerateOptions {
    /// No limit but the context.
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: usize::MAX,
            ignore_eos: false,
            speculate: Speculate::default(),
        }
    }
}

/// Why generating ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model produced an end-of-generation token, which was not handed out.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    ContextFull,
    /// The callback asked for it.
    Interrupted,
}

/// What was generated, and how long it took.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// Why it ended.
    pub finish: Finish,
    /// Tokens handed out.
    pub tokens: usize,
    /// Steps of decoding; fewer than tokens where drafts were right.
    pub steps: usize,
    /// From the call to the first token's logits.
    pub prompt: Duration,
    /// From there to the end.
    pub decode: Duration,
}

/// Feeds `prompt`, then samples tokens, hands each to `on_token` and feeds it.
///
/// Afterwards the sequence holds the prompt and every token handed out, unless it ended with
/// [`Finish::ContextFull`], which means that the last one did not fit. An end token is neither
/// handed out nor fed.
///
/// # Errors
/// As [`Session::feed`] of the prompt; a file that shrinks meanwhile.
pub fn generate(
    session: &mut Session<'_>,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    let began = Instant::now();
    session.feed(prompt)?;
    for &token in prompt {
        sampler.accept(token);
    }
    let mut drafts = Drafts::new(session, options.speculate);
    let done = go_on(session, &mut drafts, sampler, (began, options), on_token);
    drafts.end(session);
    session.draft_model = drafts.model;
    done
}

/// The token loop, after the prompt.
fn go_on(
    session: &mut Session<'_>,
    drafts: &mut Drafts<'_>,
    sampler: &mut Sampler,
    (began, options): (Instant, &GenerateOptions),
    on_token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, ModelError> {
    let prompt = began.elapsed();
    let began = Instant::now();
    let tokenizer = session.model().tokenizer();
    let (mut tokens, mut steps) = (0, 0);
    let finish = loop {
        if tokens == options.max_tokens {
            break Finish::Length;
        }
        let token = sampler.sample(session.logits_of(drafts.row, drafts.len)?);
        if !options.ignore_eos && tokenizer.is_end(token) {
            break Finish::Stop;
        }
        sampler.accept(token);
        tokens += 1;
        let flow = on_token(token);
        let computed = drafts.came(session, token);
        if !computed && session.position() == session.context() {
            break Finish::ContextFull;
        }
        if flow.is_break() || tokens == options.max_tokens {
            if !computed {
                session.defer(token)?;
            }
            break if flow.is_break() { Finish::Interrupted } else { Finish::Length };
        }
        if !computed {
            let room = session.context() - session.position() - 1;
            drafts.compute(session, token, room.min(options.max_tokens - tokens - 1))?;
            steps += 1;
        }
    };
    Ok(Generated { finish, tokens, steps, prompt, decode: began.elapsed() })
}

/// The draft that the session has computed, of which the first tokens have come.
struct Drafts<'m> {
    lookup: Lookup,
    judge: Judge,
    /// What proposes where the lookup does not; taken from the session meanwhile.
    model: Option<Box<DraftModel<'m>>>,
    /// Whether it has proposed this draft.
    by_model: bool,
    draft: [u32; MOST_DRAFT],
    len: usize,
    /// The row of logits that the next token is sampled from: so many tokens of the draft have come.
    row: usize,
}

impl<'m> Drafts<'m> {
    fn new(session: &mut Session<'m>, speculate: Speculate) -> Drafts<'m> {
        let drafts = speculate != Speculate::Off && session.get_ready_for_drafts();
        let speculate = if drafts { speculate } else { Speculate::Off };
        let most = session.context().min(MOST_REMEMBERED) + 1;
        let most = if speculate == Speculate::Off { 0 } else { most };
        let mut lookup = Lookup::new(most);
        session.tokens().iter().for_each(|token| lookup.push(*token));
        let (judge, model) = (Judge::new(speculate), session.draft_model.take());
        Drafts { lookup, judge, model, by_model: false, draft: [0; MOST_DRAFT], len: 0, row: 0 }
    }

    /// A token was chosen. Returns whether the session has computed it; what it has of a draft that says otherwise is forgotten.
    fn came(&mut self, session: &mut Session<'_>, token: u32) -> bool {
        self.judge.came(&mut self.lookup, token);
        if self.row < self.len {
            let as_proposed = self.draft[self.row] == token;
            if let (Some(model), true) = (&mut self.model, self.by_model) {
                model.came(as_proposed);
            }
            if as_proposed {
                self.row += 1;
                return true;
            }
        }
        self.end(session);
        false
    }

    /// Computes a token, and a draft of up to `most` tokens after it.
    fn compute(
        &mut self,
        session: &mut Session<'_>,
        token: u32,
        most: usize,
    ) -> Result<(), ModelError> {
        let draft = self.lookup.propose(self.judge.most().min(most));
        (self.len, self.row, self.by_model) = (draft.len(), 0, false);
        self.draft[..draft.len()].copy_from_slice(draft);
        if let (0, Some(model)) = (self.len, &mut self.model) {
            let most = most.min(MOST_DRAFT);
            self.len =
                model.propose(&self.judge, (session.tokens(), token), most, &mut self.draft)?;
            self.by_model = true;
        }
        let began = Instant::now();
        session.decode_draft(token, &self.draft[..self.len])?;
        self.judge.took(self.len, began.elapsed());
        Ok(())
    }

    /// Takes tokens of the draft that have not come out of the sequence.
    fn end(&mut self, session: &mut Session<'_>) {
        let wrong = self.len - self.row;
        if wrong > 0 {
            session.truncate(session.position() - wrong);
        }
        (self.len, self.row) = (0, 0);
    }
}
