//! One answer: the prompt fed, tokens sampled and streamed, times taken.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use alight_model::{Finish, GenerateOptions, Sampler, Session, generate};
use alight_text::StreamDecoder;
use anyhow::anyhow;
use rusage::Phases;

use crate::interrupt::Interrupt;
use crate::outcome::Outcome;

/// Prompt tokens that are fed between two looks at Ctrl-C.
const STRIDE: usize = 512;

/// What came of it.
#[derive(Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The tokens of the text.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Tokens of the prompt that were computed.
    pub prompt_tokens: usize,
    /// From the first prompt token fed to the first answer token chosen.
    pub prompt: Duration,
    /// When each token had been written out.
    pub written: Vec<Instant>,
}

impl Answer {
    /// Times between written tokens.
    pub fn steps(&self) -> impl Iterator<Item = Duration> {
        self.written.windows(2).map(|w| w[1] - w[0])
    }

    /// Tokens per second after the first token, if there were at least two.
    pub fn rate(&self) -> Option<f64> {
        let (first, last) = (self.written.first()?, self.written.last()?);
        let seconds = (*last - *first).as_secs_f64();
        (seconds > 0.0).then(|| (self.written.len() - 1) as f64 / seconds)
    }
}

/// The phases of an answer: up to the first token written, and after it.
pub const PROMPT: &str = "prompt";
/// See [`PROMPT`].
pub const ANSWER: &str = "answer";

/// Appends `prompt` (not empty) to the session and streams what follows into `sink`, in pieces of
/// whole characters. The phases go on from what was done before.
pub fn answer(
    session: &mut Session<'_>,
    sampler: &mut Sampler,
    prompt: &[u32],
    options: &GenerateOptions,
    interrupt: Interrupt,
    phases: &mut Phases,
    sink: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Outcome<Answer> {
    let began = Instant::now();
    let mut answer = Answer {
        text: String::new(),
        tokens: Vec::new(),
        finish: Finish::Length,
        prompt_tokens: prompt.len(),
        prompt: Duration::ZERO,
        written: Vec::new(),
    };
    let room = session.context().saturating_sub(session.position());
    // A prompt that does not fit goes to `generate` whole: its error has the right numbers.
    let early = if prompt.len() <= room { (prompt.len() - 1) / STRIDE * STRIDE } else { 0 };
    for piece in prompt[..early].chunks(STRIDE) {
        session.prefill(piece).map_err(|e| anyhow!(e))?;
        piece.iter().for_each(|&token| sampler.accept(token));
        if interrupt.pressed() {
            answer.finish = Finish::Interrupted;
            return Ok(answer);
        }
    }
    if options.max_tokens == 0 {
        session.prefill(&prompt[early..]).map_err(|e| anyhow!(e))?;
        answer.prompt = began.elapsed();
        phases.end(PROMPT);
        return Ok(answer);
    }

    let tokenizer = session.model().tokenizer();
    let mut decoder = StreamDecoder::new();
    let mut failed = None;
    let mut on_token = |id| {
        if answer.tokens.is_empty() {
            answer.prompt = began.elapsed();
        }
        tokenizer.decode_bytes(id, decoder.buffer());
        let piece = decoder.take();
        let sent = if piece.is_empty() { Ok(()) } else { sink(piece) };
        answer.text.push_str(piece);
        answer.tokens.push(id);
        answer.written.push(Instant::now());
        if answer.written.len() == 1 {
            phases.end(PROMPT);
        }
        match sent {
            Ok(()) if !interrupt.pressed() => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let generated = generate(session, sampler, &prompt[early..], options, &mut on_token)
        .map_err(|e| anyhow!(e))?;
    answer.finish = generated.finish;
    if let Some(error) = failed {
        return Err(error.into());
    }
    if answer.tokens.is_empty() {
        answer.prompt = began.elapsed();
    }
    phases.end(if answer.tokens.is_empty() { PROMPT } else { ANSWER });
    let rest = decoder.finish();
    if !rest.is_empty() {
        sink(rest)?;
        answer.text.push_str(rest);
    }
    Ok(answer)
}
