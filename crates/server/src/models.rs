//! The models that are served, by their names.

use std::sync::OnceLock;

use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::Grammars;
use alight_chat::worker::{StartError, Worker, WorkerConfig};
use alight_model::{EngineOptions, Model};
use alight_text::Vocabulary;

use crate::apart::step_aside;
use crate::failure::Failure;
use crate::{Log, Options, ids};

/// A model to be served.
pub struct Served {
    /// What requests call it.
    pub name: String,
    /// The model. It is used until the process ends.
    pub model: &'static Model,
    /// A smaller model with the same tokens, which proposes what is computed ahead ([`alight_model::Engine::draft_with`]).
    pub draft: Option<&'static Model>,
    /// Positions of a sequence.
    pub context: usize,
    /// Tells what its quantization is called, such as `Q4_K_M`, if that is known. It may read the header of a file, and is asked once, when
    /// somebody wants to know.
    pub quantization: Quantization,
}

/// Tells a model's quantization.
pub type Quantization = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A model that is served.
pub(crate) struct Serving {
    pub(crate) name: String,
    pub(crate) model: &'static Model,
    pub(crate) worker: Worker,
    /// When it was opened.
    pub(crate) created: u64,
    /// Makes what answers are held to.
    pub(crate) grammars: Grammars,
    quantization: (Quantization, OnceLock<Option<String>>),
}

impl Serving {
    pub(crate) fn vocabulary(&self) -> &'static Vocabulary {
        self.model.vocabulary()
    }

    /// What its quantization is called, if that is known.
    pub(crate) fn quantization(&self) -> Option<&str> {
        let (read, known) = &self.quantization;
        known.get_or_init(read).as_deref()
    }
}

/// All of them.
pub(crate) struct Models(Vec<Serving>);

impl Models {
    pub(crate) fn start(
        served: Vec<Served>,
        options: &Options,
        log: &Log,
    ) -> Result<Models, StartError> {
        // What cannot work is said at once of a model that is alone. Of several, many may never be asked for.
        let at_once = served.len() == 1;
        let start = |Served { name, model, draft, context, quantization }: Served| {
            let engine = EngineOptions { context: Some(context), ..options.engine.clone() };
            let config = WorkerConfig {
                max_pending: engine.sequences + options.queue,
                engine,
                rest: options.rest,
                remembers_prompts: options.slot_files.is_some(),
                starts_engine: at_once,
                log: log.clone(),
            };
            let worker = Worker::start(model, draft, config)?;
            let grammars = Grammars::new(model.vocabulary()).waiting(step_aside);
            let quantization = (quantization, OnceLock::new());
            Ok(Serving { name, model, worker, created: ids::now(), grammars, quantization })
        };
        Ok(Models(served.into_iter().map(start).collect::<Result<_, StartError>>()?))
    }

    pub(crate) fn all(&self) -> &[Serving] {
        &self.0
    }

    /// The model that has this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Serving> {
        self.0.iter().find(|serving| serving.name == name)
    }

    /// The model of this name, after which Ollama's clients write a tag. One that is alone answers to any: clients have names of their own in
    /// mind.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Serving, Failure> {
        let named =
            |name: &str| self.named(name).or_else(|| self.named(name.strip_suffix(":latest")?));
        match (name.and_then(named), &self.0[..]) {
            (Some(serving), _) | (None, [serving]) => Ok(serving),
            (None, _) => {
                let names: Vec<&str> = self.0.iter().map(|serving| &*serving.name).collect();
                let names = names.join(", ");
                let Some(name) = name else {
                    let message = format!("it is missing, expected one of {names}");
                    return Err(Refusal::invalid("model", message).into());
                };
                let message = format!("there is no model {name:?} here, expected one of {names}");
                Err(Failure {
                    code: Some("model_not_found"),
                    param: Some("model".into()),
                    ..Failure::not_found(message)
                })
            }
        }
    }
}
