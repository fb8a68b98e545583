//! The engine of `embed` and `rerank`: many inputs at the same time, and their outputs in the order of the inputs.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use alight_chat::worker::{EngineEvent, EngineLoop, GenerateRequest, Log};
use alight_model::{AdapterSet, EngineOptions, Model};
use anyhow::anyhow;

use crate::interrupt::Interrupt;
use crate::open::EngineArgs;
use crate::outcome::Outcome;
use crate::say;

/// Inputs that are computed at the same time, unless the user says otherwise.
pub const SEQUENCES: usize = 32;

/// Maximum number of outputs that wait for an earlier one.
const MAX_WAITING: usize = 4096;

/// The longest input that memory is set aside for, unless the user says otherwise: models of long contexts are decoders.
const CONTEXT: usize = 8192;

/// The inputs that are computed, and the destination of their outputs.
pub trait VectorWork {
    /// Returns the next request; `None` after the last.
    fn next(&mut self) -> Outcome<Option<GenerateRequest>>;

    /// Takes the output of the request with this number, in their order.
    fn done(&mut self, number: u64, output: Vec<f32>) -> Outcome;
}

/// An engine in use.
pub struct Compute {
    /// Never dropped: the process ends sooner than all of its memory could be freed.
    engine: ManuallyDrop<EngineLoop<'static>>,
    send: Sender<(u64, EngineEvent)>,
    events: Receiver<(u64, EngineEvent)>,
    sequences: usize,
    adapters: AdapterSet,
    interrupt: Interrupt,
}

impl Compute {
    /// Starts an engine of a model and adapters for it, for inputs of at most `longest` tokens.
    pub fn start(
        (model, adapters): (&'static Model, AdapterSet),
        args: &EngineArgs,
        sequences: usize,
        longest: Option<usize>,
    ) -> Outcome<Compute> {
        let own = model.vocabulary().sentence.max_tokens.unwrap_or(usize::MAX);
        let context = model.spec().context.min(own).min(longest.unwrap_or(CONTEXT)).max(1);
        let options = EngineOptions {
            sequences,
            context: Some(context),
            prompt_precision: args.prompt_precision(),
            cache_type: args.cache_type(),
            ..EngineOptions::default()
        };
        let log: Log = Arc::new(say::note);
        let engine = EngineLoop::start(model, None, &options, &log).map_err(|e| anyhow!(e))?;
        let (send, events) = channel();
        let interrupt = Interrupt::catch()?;
        let mut engine = ManuallyDrop::new(engine);
        engine.cancel_by(interrupt.cancel());
        Ok(Compute { engine, send, events, sequences, adapters, interrupt })
    }

    /// The maximum number of tokens of an input.
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// Returns true after Ctrl-C.
    pub fn interrupted(&self) -> bool {
        self.interrupt.pressed()
    }

    /// Does all of the work, or that until Ctrl-C.
    pub fn run(&mut self, work: &mut dyn VectorWork) -> Outcome {
        let (mut begun, mut due, mut active) = (0, 0, 0);
        let mut waiting = BTreeMap::new();
        let mut ended = false;
        while !self.interrupt.pressed() {
            while !ended && active < self.sequences && waiting.len() < MAX_WAITING {
                let Some(mut request) = work.next()? else {
                    ended = true;
                    break;
                };
                request.request.adapters = self.adapters.clone();
                let (send, key) = (self.send.clone(), begun);
                let on_event = Box::new(move |event| {
                    // Nothing receives events after an error.
                    let _ = send.send((key, event));
                });
                self.engine.generate(key, request, on_event);
                (begun, active) = (begun + 1, active + 1);
            }
            if active == 0 {
                break;
            }
            self.engine.step();
            while let Ok((key, event)) = self.events.try_recv() {
                match event {
                    EngineEvent::Embedding(output) => {
                        active -= 1;
                        waiting.insert(key, output);
                    }
                    EngineEvent::Refused(error)
                    | EngineEvent::Failed(error)
                    | EngineEvent::EngineFailed(error) => {
                        return Err(anyhow!(error).context(format!("text {}", key + 1)).into());
                    }
                    EngineEvent::Ending => active -= 1,
                    EngineEvent::Waiting { .. }
                    | EngineEvent::Reading { .. }
                    | EngineEvent::Prompt { .. }
                    | EngineEvent::PromptToken(..)
                    | EngineEvent::Token(..)
                    | EngineEvent::Finished(_) => {}
                }
            }
            while let Some(output) = waiting.remove(&due) {
                work.done(due, output)?;
                due += 1;
            }
        }
        Ok(())
    }
}
