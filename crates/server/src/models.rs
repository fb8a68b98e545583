//! The served models, by name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};

use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::Grammars;
use alight_chat::worker::{STUCK_AFTER, StartError, Worker, WorkerConfig};
use alight_model::{EngineOptions, Model, ModelSpec};
use alight_text::Vocabulary;
use serde_json::{Map, Value};

use crate::adapters::{Adapters, ServedAdapter};
use crate::apart::{is_cancelled, step_aside};
use crate::client_errors::ClientErrors;
use crate::failure::Failure;
use crate::{Log, Options, ids};

/// A model to serve.
pub struct Served {
    /// The name that requests use.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// The model. It is used until the process ends.
    pub model: &'static Model,
    /// A smaller model with the same tokens, which proposes tokens for speculative decoding
    /// ([`alight_model::Engine::draft_with`]).
    pub draft: Option<&'static Model>,
    /// The number of positions of a sequence.
    pub context: usize,
    /// Its adapters, and a folder of more of them.
    pub adapters: (Vec<ServedAdapter>, Option<PathBuf>),
    /// Returns the name of its quantization, such as `Q4_K_M`, if it is known. It may read the header of a file, and is called once, on the
    /// first request for it.
    pub quantization: Quantization,
}

/// Returns the name of a model's quantization.
pub type Quantization = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// A model that is served.
pub(crate) struct Serving {
    pub(crate) name: String,
    aliases: Vec<String>,
    pub(crate) model: &'static Model,
    pub(crate) worker: Worker,
    pub(crate) adapters: Adapters,
    /// The errors of its engine, for clients.
    pub(crate) errors: Arc<ClientErrors>,
    /// When it was opened.
    pub(crate) created: u64,
    /// Compiles the grammars of answers.
    pub(crate) grammars: Grammars,
    /// Variables of its template that requests do not set.
    pub(crate) template_variables: Map<String, Value>,
    quantization: (Quantization, OnceLock<Option<String>>),
    log: Log,
    /// Set once it is reported that tools are described to it in words.
    tools_in_words: Once,
}

impl Serving {
    /// Returns all its names, of which the first is the one in answers.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        [&self.name].into_iter().chain(&self.aliases).map(String::as_str)
    }

    pub(crate) fn vocabulary(&self) -> &'static Vocabulary {
        self.model.vocabulary()
    }

    /// Reports once that tools are described to the model in words, on standard error.
    pub(crate) fn report_tools_in_words(&self) {
        self.tools_in_words.call_once(|| {
            (self.log)(&format!(
                "the chat template of '{}' shows no tools in a known notation: they are described in its system message, and it is asked \
                 for calls in JSON, which it may not have been trained for",
                self.name
            ));
        });
    }

    /// Returns the name of its quantization, if it is known.
    pub(crate) fn quantization(&self) -> Option<&str> {
        let (read, known) = &self.quantization;
        known.get_or_init(read).as_deref()
    }
}

/// The files and folders that the errors of an engine may name.
fn paths<'p>(
    model: &'p Model,
    draft: Option<&'p Model>,
    options: &'p Options,
) -> impl Iterator<Item = &'p Path> {
    let files = [Some(model), draft].into_iter().flatten().flat_map(Model::files);
    let folders =
        [options.slot_files.as_deref(), options.engine.prompts.as_ref().map(|p| p.path())];
    files.chain(folders.into_iter().flatten())
}

/// All served models.
pub(crate) struct Models(Vec<Serving>);

impl Models {
    pub(crate) fn start(
        served: Vec<Served>,
        options: &Options,
        log: &Log,
    ) -> Result<Models, StartError> {
        // If there is only one model, an engine that cannot start is reported at once. Of several models, many may never be
        // requested.
        let at_once = served.len() == 1;
        let start = |served: Served| {
            let Served { name, aliases, model, draft, context, adapters, quantization } = served;
            let engine = EngineOptions { context: Some(context), ..options.engine.clone() };
            let config = WorkerConfig {
                max_pending: engine.sequences + options.queue,
                engine,
                rest: options.rest,
                remembers_prompts: options.slot_files.is_some(),
                starts_engine: at_once,
                stuck_after: STUCK_AFTER,
                log: log.clone(),
            };
            let worker = Worker::start(model, draft, config)?;
            let errors = Arc::new(ClientErrors::new(paths(model, draft, options), log.clone()));
            let grammars =
                Grammars::new(model.vocabulary()).waiting(step_aside).until(is_cancelled);
            let quantization = (quantization, OnceLock::new());
            let created = ids::now();
            let template_variables = options.template_variables.clone();
            let (log, tools_in_words) = (log.clone(), Once::new());
            Ok(Serving {
                name,
                aliases,
                model,
                worker,
                adapters: Adapters::new(model, adapters.0, adapters.1),
                errors,
                created,
                grammars,
                template_variables,
                quantization,
                log,
                tools_in_words,
            })
        };
        Ok(Models(served.into_iter().map(start).collect::<Result<_, StartError>>()?))
    }

    pub(crate) fn all(&self) -> &[Serving] {
        &self.0
    }

    /// Describes each model under each of its names.
    pub(crate) fn listed(&self, about: impl Fn(&Serving, &str) -> Value) -> Vec<Value> {
        let all =
            self.0.iter().flat_map(|serving| serving.names().map(move |name| (serving, name)));
        all.map(|(serving, name)| about(serving, name)).collect()
    }

    /// Ends all engines, at the same time: see [`Worker::quit`].
    pub(crate) fn quit(&self, log: &Log) {
        self.0.iter().for_each(|serving| serving.worker.begin_quit());
        for serving in self.0.iter().filter(|serving| !serving.worker.quit()) {
            log(&format!("the engine of '{}' does not stop, and is abandoned", serving.name));
        }
    }

    /// Returns the model with this name.
    pub(crate) fn named(&self, name: &str) -> Option<&Serving> {
        self.0.iter().find(|serving| serving.names().any(|own| own == name))
    }

    /// Returns the model with this name, to which Ollama's clients append a tag. A single model answers to any name: clients have default
    /// names of their own.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<&Serving, Failure> {
        self.find_for(name, |_| true)
    }

    /// As [`Models::find_for`], where the name may be that of an adapter: returns that, too.
    pub(crate) fn find_adapted<'n>(
        &self,
        name: Option<&'n str>,
        for_it: fn(&ModelSpec) -> bool,
    ) -> Result<(&Serving, Option<&'n str>), Failure> {
        match name.and_then(|name| self.adapted(name)) {
            Some((serving, adapter)) => Ok((serving, Some(adapter))),
            None => Ok((self.find_for(name, for_it)?, None)),
        }
    }

    /// Returns the model and the adapter that a name is of: that of an adapter, or of a model and an adapter after a colon.
    fn adapted<'n>(&self, name: &'n str) -> Option<(&Serving, &'n str)> {
        if self.named(name).is_some() {
            return None;
        }
        self.0.iter().find_map(|serving| {
            if serving.adapters.has(name) {
                return Some((serving, name));
            }
            let after = |own: &str| name.strip_prefix(own)?.strip_prefix(':');
            let adapter = serving.names().find_map(after)?;
            serving.adapters.has(adapter).then_some((serving, adapter))
        })
    }

    /// As [`Models::find`]; without a name, the only model that is `for_it` is found, too.
    pub(crate) fn find_for(
        &self,
        name: Option<&str>,
        for_it: fn(&ModelSpec) -> bool,
    ) -> Result<&Serving, Failure> {
        let mut fitting = self.0.iter().filter(|serving| for_it(serving.model.spec()));
        if let (None, Some(serving), None) = (name, fitting.next(), fitting.next()) {
            return Ok(serving);
        }
        let named =
            |name: &str| self.named(name).or_else(|| self.named(name.strip_suffix(":latest")?));
        match (name.and_then(named), &self.0[..]) {
            (Some(serving), _) => Ok(serving),
            // Where names mean adapters, one that is unknown may be a misspelt one's.
            (None, [serving]) if name.is_none() || serving.adapters.are_none() => Ok(serving),
            (None, _) => {
                let names: Vec<&str> = self.0.iter().flat_map(Serving::names).collect();
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
