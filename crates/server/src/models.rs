//! The models that are served, by their names.

use alight_model::Model;
use alight_text::Vocabulary;

use crate::body::refusal::Refusal;
use crate::failure::Failure;
use crate::grammar::Grammars;
use crate::worker::Worker;
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
}

/// A model that is served.
pub(crate) struct Serving {
    pub(crate) name: String,
    pub(crate) model: &'static Model,
    pub(crate) worker: Worker,
    /// When it was opened.
    pub(crate) created: u64,
    /// Makes what answers are held to.
    pub(crate) grammars: Grammars,
}

impl Serving {
    pub(crate) fn vocabulary(&self) -> &'static Vocabulary {
        self.model.vocabulary()
    }
}

/// All of them.
pub(crate) struct Models(Vec<Serving>);

impl Models {
    pub(crate) fn start(
        served: Vec<Served>,
        options: &Options,
        log: &Log,
    ) -> Result<Models, String> {
        // What cannot work is said at once of a model that is alone. Of several, many may never be asked for.
        let at_once = served.len() == 1;
        let start = |Served { name, model, draft, context }: Served| {
            let worker = Worker::start((model, draft), context, options, at_once, log.clone())?;
            let grammars = Grammars::new(model.vocabulary());
            Ok(Serving { name, model, worker, created: ids::now(), grammars })
        };
        Ok(Models(served.into_iter().map(start).collect::<Result<_, String>>()?))
    }

    pub(crate) fn all(&self) -> &[Serving] {
        &self.0
    }

    /// The model that has this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Serving> {
        self.0.iter().find(|serving| serving.name == name)
    }

    /// The model of this name, behind which Ollama's clients write a tag. One that is alone answers to any: clients have names of their own in
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
