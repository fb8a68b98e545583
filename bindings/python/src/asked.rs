//! Arguments of requests from Python: the options of an answer, with the names of `alight run`; and prompts as tokens.

use alight_chat::body::options::BREAKERS;
use alight_chat::body::thinking::{self, SWITCH};
use alight_chat::body::{conversation, messages};
use alight_chat::grammar::{AnswerRules, NoGrammar, Wanted};
use alight_model::{ModelError, SamplerOptions, SamplerStages};
use alight_text::output::{Thinking, Tools};
use alight_text::prompt::check_length;
use alight_text::{Encoder, Style, Vocabulary};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyString};
use serde_json::{Map, Value, json};

use crate::error;
use crate::items::Items;
use crate::tokenizer;

/// The options that come after the sampler's numbers.
const NAMES: [&str; 14] = [
    "dry_sequence_breakers",
    "samplers",
    "seed",
    "logit_bias",
    "logprobs",
    "ignore_eos",
    "thinking",
    "parse_special",
    "raw",
    "system",
    "json_schema",
    "grammar",
    "regex",
    "lora",
];

/// All options, in the order of the documentation.
fn names() -> impl Iterator<Item = &'static str> {
    let [temperature, others @ ..] = SamplerOptions::NUMBERS.map(|number| number.name);
    let [top_k, counts @ ..] = SamplerOptions::COUNTS.map(|count| count.name);
    let first = ["max_tokens", "stop", temperature, top_k];
    first.into_iter().chain(others).chain(counts).chain(NAMES)
}

/// Maximum number of alternatives whose log-probabilities are returned with each token.
const MAX_LOGPROBS: usize = 1000;

/// The options of an answer.
#[derive(Clone, Debug)]
pub struct Options {
    pub sampling: SamplerOptions,
    /// The given seed; without one, each answer has its own.
    seed: Option<u64>,
    pub max_tokens: usize,
    pub stops: Vec<String>,
    pub ignore_eos: bool,
    pub logit_bias: Vec<(u32, f32)>,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<Vec<String>>,
    stages: Option<SamplerStages>,
    pub logprobs: Option<usize>,
    pub thinking: bool,
    pub parse_special: bool,
    raw: bool,
    system: Option<String>,
    /// The constraint on an answer, and the option that sets it.
    pub held: Option<(&'static str, Wanted)>,
    /// Names of adapters, and their scales.
    pub lora: Vec<(String, f32)>,
}

impl Options {
    /// The options for a text that is not continued: no template, no sampling.
    pub fn of_text(parse_special: bool) -> Options {
        Options { raw: true, parse_special, ..Options::none() }
    }

    fn none() -> Options {
        Options {
            sampling: SamplerOptions::default(),
            seed: None,
            max_tokens: usize::MAX,
            stops: Vec::new(),
            ignore_eos: false,
            logit_bias: Vec::new(),
            breakers: None,
            stages: None,
            logprobs: None,
            thinking: true,
            parse_special: false,
            raw: false,
            system: None,
            held: None,
            lora: Vec::new(),
        }
    }

    /// Reads the options from the keywords of a call.
    ///
    /// # Errors
    /// `TypeError`: an unknown keyword, or a value of a wrong type; `OptionError`: an invalid value.
    pub fn take(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
        let mut options = Options::none();
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            if let Err(error) = options.set(&name, &value) {
                let py = value.py();
                if names().any(|known| known == name) && error.is_instance_of::<PyTypeError>(py) {
                    return Err(PyTypeError::new_err(format!("{name}: {}", error.value(py))));
                }
                return Err(error);
            }
        }
        if !options.rules().past_end {
            options.ignore_eos = false;
        }
        options.sampling.check().map_err(|problem| error::OPTION.err(problem.to_string()))?;
        if let Some(stages) = options.stages {
            stages.keep(&mut options.sampling);
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        match name {
            "max_tokens" => self.max_tokens = count_or_all(name, value)?,
            "stop" => {
                self.stops = match value.cast::<PyString>() {
                    Ok(text) => vec![text.to_str()?.to_owned()],
                    Err(_) if value.is_none() => Vec::new(),
                    Err(_) => {
                        let Items(texts) = value.extract().map_err(|_| {
                            PyTypeError::new_err("expected a text or a list of texts")
                        })?;
                        texts
                    }
                }
            }
            "dry_sequence_breakers" => self.breakers = breakers(name, value)?,
            "samplers" => {
                self.stages = value
                    .extract::<Option<Vec<String>>>()?
                    .map(|names| {
                        SamplerStages::of_names(names.iter().map(String::as_str))
                            .map_err(|why| error::OPTION.err(format!("samplers: {why}")))
                    })
                    .transpose()?;
            }
            "seed" => {
                self.seed = match value.extract::<Option<i128>>()? {
                    None | Some(-1) => None,
                    Some(seed) => Some(u64::try_from(seed).map_err(|_| {
                        error::OPTION.err(format!(
                            "seed is {seed}, expected a whole number from 0 to {}, or -1 for any",
                            u64::MAX
                        ))
                    })?),
                }
            }
            "logit_bias" => {
                self.logit_bias = match value.extract::<Option<Bound<'_, PyDict>>>()? {
                    None => Vec::new(),
                    Some(biases) => biases
                        .iter()
                        .map(|(token, bias)| Ok((token_id(name, &token)?, bias.extract()?)))
                        .collect::<PyResult<_>>()?,
                };
                if let Some((token, bias)) = self.logit_bias.iter().find(|(_, bias)| bias.is_nan())
                {
                    let problem =
                        format!("logit_bias of token {token} is {bias}, expected a number");
                    return Err(error::OPTION.err(problem));
                }
            }
            "logprobs" => {
                let wanted = (!value.is_none()).then(|| count(name, value)).transpose()?;
                if wanted.is_some_and(|top| top > MAX_LOGPROBS) {
                    return Err(error::OPTION.err(format!(
                        "logprobs is {}, expected {MAX_LOGPROBS} at most: `logits` has those of all tokens",
                        wanted.unwrap_or_default()
                    )));
                }
                self.logprobs = wanted;
            }
            "ignore_eos" => self.ignore_eos = value.extract()?,
            "thinking" => self.thinking = value.extract()?,
            "parse_special" => self.parse_special = value.extract()?,
            "raw" => self.raw = value.extract()?,
            "system" => self.system = value.extract()?,
            "json_schema" | "grammar" | "regex" if value.is_none() => {}
            "json_schema" => {
                let wanted = match value.cast::<PyString>() {
                    Ok(text) => Wanted::schema(text.to_str()?),
                    Err(_) => Wanted::schema_of(tokenizer::value(value)?),
                };
                self.hold("json_schema", wanted)?;
            }
            "grammar" => self.hold("grammar", Wanted::grammar(value.extract()?))?,
            "regex" => self.hold("regex", Wanted::regex(value.extract()?))?,
            "lora" => self.lora = scales(value)?,
            other => return self.set_number(other, value),
        }
        Ok(())
    }

    /// Sets one of the sampler's numbers.
    fn set_number(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Some(number) = SamplerOptions::NUMBERS.iter().find(|number| number.name == name) {
            (number.set)(&mut self.sampling, value.extract()?);
            return Ok(());
        }
        let Some(count) = SamplerOptions::COUNTS.iter().find(|count| count.name == name) else {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(PyTypeError::new_err(format!(
                "there is no option '{name}': there are {known}"
            )));
        };
        let n: i128 = value.extract()?;
        let read = count.read(n).ok_or_else(|| {
            let expected = match usize::try_from(n) {
                Err(_) if n > 0 => "a smaller number".to_owned(),
                _ => count.expected(),
            };
            error::OPTION.err(format!("{name} is {n}, expected {expected}"))
        })?;
        (count.set)(&mut self.sampling, read);
        Ok(())
    }

    /// The rules that follow from the constraint.
    fn rules(&self) -> AnswerRules {
        if self.held.is_some() { AnswerRules::WHOLE } else { AnswerRules::FREE }
    }

    /// Sets the constraint on the answer; there can be only one.
    fn hold(&mut self, option: &'static str, wanted: Result<Wanted, NoGrammar>) -> PyResult<()> {
        let wanted = wanted.map_err(|why| error::no_grammar(option, &why))?;
        if let Some((other, _)) = &self.held {
            return Err(error::OPTION
                .err(format!("there are {other} and {option}: an answer is held to one of them")));
        }
        self.held = Some((option, wanted));
        Ok(())
    }

    /// The sampler's options, with a new seed for each answer if none was given.
    pub fn sampling(&self) -> SamplerOptions {
        SamplerOptions { seed: self.seed.unwrap_or_else(SamplerOptions::any_seed), ..self.sampling }
    }

    /// The form in which thinking is shown: as `alight run` writes it into a pipe.
    pub fn shown(&self) -> Thinking {
        if self.thinking { Thinking::Tagged } else { Thinking::Hidden }
    }
}

/// A whole number, at least 0.
fn count(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    whole(name, value.extract()?)
}

/// The same for a number: Python's integers are unbounded, and a negative one is not a type error.
pub fn whole(name: &str, n: i128) -> PyResult<usize> {
    usize::try_from(n).map_err(|_| {
        let expected = if n < 0 { "a whole number not below 0" } else { "a smaller number" };
        error::OPTION.err(format!("{name} is {n}, expected {expected}"))
    })
}

/// Texts that break sequences; `None`: the usual ones.
fn breakers(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Vec<String>>> {
    let texts: Option<Vec<String>> = value.extract()?;
    let (most, longest) = BREAKERS;
    let is_fine =
        |texts: &Vec<String>| texts.len() <= most && texts.iter().all(|text| text.len() <= longest);
    if !texts.as_ref().is_none_or(is_fine) {
        return Err(error::OPTION.err(format!(
            "{name} has {} texts, expected at most {most}, of at most {longest} bytes each",
            texts.map_or(0, |texts| texts.len())
        )));
    }
    Ok(texts)
}

/// Names of adapters and their scales: of a dict, or one name, whose scale is 1.
fn scales(value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, f32)>> {
    if value.is_none() {
        return Ok(Vec::new());
    }
    if let Ok(name) = value.cast::<PyString>() {
        return Ok(vec![(name.to_str()?.to_owned(), 1.0)]);
    }
    let given = value
        .cast::<PyDict>()
        .map_err(|_| PyTypeError::new_err("expected the name of an adapter, or {name: scale}"))?;
    given
        .iter()
        .map(|(name, scale)| {
            let (name, scale): (String, f32) = (name.extract()?, scale.extract()?);
            match scale.is_finite() {
                true => Ok((name, scale)),
                false => Err(error::OPTION.err(format!(
                    "lora: the scale of '{name}' is {scale}, expected a finite number"
                ))),
            }
        })
        .collect()
}

/// The id of a token.
fn token_id(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u32> {
    let n: i128 = value.extract()?;
    u32::try_from(n).map_err(|_| error::OPTION.err(format!("{name}: {n} is no token id")))
}

/// A whole number, at least 0; `None` or -1 means no limit.
fn count_or_all(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match value.extract::<Option<i128>>()? {
        None | Some(-1) => Ok(usize::MAX),
        Some(_) => count(name, value),
    }
}

/// The input to be continued.
pub enum Prompt {
    /// A text, as for `alight run`.
    Text(String),
    /// Its tokens.
    Tokens(Vec<u32>),
    /// A conversation, as passed to a template.
    Chat(Map<String, Value>),
}

/// A prompt that can be computed.
pub struct EncodedPrompt {
    pub tokens: Vec<u32>,
    pub style: Style,
    /// The maximum number of tokens of thinking, where the template does not end it and the answer has a place for it.
    pub thinking: Option<usize>,
}

impl Prompt {
    /// Reads a text, token ids, or a conversation.
    ///
    /// # Errors
    /// `TypeError`: it is something else.
    pub fn take(given: &Bound<'_, PyAny>) -> PyResult<Prompt> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(Prompt::Text(text.to_str()?.to_owned()));
        }
        // For Python, bytes are a sequence of numbers, but they are not meant as token ids.
        if given.is_instance_of::<PyBytes>() || given.is_instance_of::<PyByteArray>() {
            return Err(PyTypeError::new_err(
                "a prompt is a text, a list of token ids, or a list of messages, not bytes: decode them",
            ));
        }
        if let Ok(Items(tokens)) = given.extract() {
            return Ok(Prompt::Tokens(tokens));
        }
        // A mistake in a message is reported for a list of dicts, and the forms of a prompt for anything else.
        let is_conversation = given.get_item(0).is_ok_and(|first| first.is_instance_of::<PyDict>());
        if is_conversation {
            return Prompt::conversation(given, None);
        }
        let found = given.get_type().name()?;
        Err(PyTypeError::new_err(format!(
            "a prompt is a text, a list of token ids, or a list of messages with a role and a content; found {found}"
        )))
    }

    /// A conversation, with tools that the model may call.
    pub fn conversation(
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Prompt> {
        tokenizer::conversation(messages, tools, true).map(Prompt::Chat)
    }

    /// The tools to call, if there are any.
    pub fn tools(&self) -> Option<Tools> {
        let Prompt::Chat(context) = self else { return None };
        let tools = context.get("tools").filter(|tools| !tools.is_null())?;
        Some(Tools::of(tools.as_array().map_or(&[], Vec::as_slice)))
    }

    /// The tokens that `alight run` computes for it, and how their answer is read. A text is a conversation if the model has a chat template.
    ///
    /// # Errors
    /// `PromptError`, `ContextFullError`.
    pub fn encode(
        self,
        vocabulary: &Vocabulary,
        options: &Options,
        context: Context,
    ) -> PyResult<EncodedPrompt> {
        let has_template = matches!(vocabulary.template(), Some(Ok(_)));
        let style = match &self {
            Prompt::Text(_) if !options.raw && has_template => Style::Chat,
            Prompt::Chat(_) => Style::Chat,
            Prompt::Text(_) | Prompt::Tokens(_) => Style::Raw,
        };
        let encoder = Encoder::new(vocabulary, style, options.parse_special).within(context.limit);
        let plain = |tokens| {
            let tokens = context.checked(tokens, vocabulary)?;
            Ok(EncodedPrompt { tokens, style, thinking: None })
        };
        if style == Style::Raw && options.system.is_some() {
            return Err(error::OPTION.err(
                "system needs a prompt that goes through the model's chat template: write what it says into the prompt",
            ));
        }
        let fits = |bytes| {
            check_length(bytes, &vocabulary.tokenizer, context.limit)
                .map_err(|problem| error::too_long(&problem))
        };
        let mut messages = match self {
            Prompt::Tokens(tokens) => return plain(tokens),
            Prompt::Text(text) if style == Style::Raw => {
                fits(text.len())?;
                return plain(encoder.raw(&text).map_err(error::prompt)?);
            }
            Prompt::Text(text) => {
                let mut messages = Map::new();
                messages.insert("messages".into(), json!([{"role": "user", "content": text}]));
                messages.insert("add_generation_prompt".into(), true.into());
                messages
            }
            Prompt::Chat(messages) => messages,
        };
        if let (Some(system), Some(Value::Array(all))) =
            (&options.system, messages.get_mut("messages"))
        {
            all.insert(0, json!({"role": "system", "content": system}));
        }
        // Of what is too long by its contents alone, nothing is rendered.
        let given = messages.get("messages").and_then(Value::as_array);
        fits(given.map_or(0, |all| messages::bytes(all)))?;
        if !options.thinking {
            messages.entry(SWITCH).or_insert(false.into());
        }
        let may_think = options.rules().thinking;
        let thinking = thinking::fit_for(&mut messages, vocabulary, may_think).budget;
        let tokens = conversation::encode(&encoder, messages).map_err(error::prompt)?.tokens;
        Ok(EncodedPrompt { tokens: context.checked(tokens, vocabulary)?, style, thinking })
    }
}

/// The number of positions.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    pub limit: usize,
    /// The number that the model was trained for.
    pub trained: usize,
    /// The number that can be computed of it.
    pub computable: usize,
}

impl Context {
    /// Returns the tokens if they can be computed.
    pub fn checked(self, tokens: Vec<u32>, vocabulary: &Vocabulary) -> PyResult<Vec<u32>> {
        let Context { limit, trained, computable } = self;
        let vocab = vocabulary.tokenizer.vocab_size();
        if tokens.is_empty() {
            return Err(error::model(ModelError::EmptyInput));
        }
        if let Some(&id) = tokens.iter().find(|id| **id as usize >= vocab) {
            return Err(error::model(ModelError::TokenRange { id, vocab }));
        }
        if tokens.len() > limit {
            let asked = tokens.len();
            return Err(error::model(ModelError::ContextFull {
                used: 0,
                asked,
                limit,
                trained,
                computable,
            }));
        }
        Ok(tokens)
    }
}
