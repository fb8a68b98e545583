//! Turns a line of the input into a prompt's tokens and the options to continue them with.
//!
//! A line is a request of OpenAI's batches (`custom_id`, `method`, `url`, `body`), or just such a body, or a prompt as a string.
//! A field that would change the answer and is not supported is refused by name.

use alight_chat::answer::{AnswerOptions, Tools};
use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::json::{JsonBudget, JsonError};
use alight_chat::body::refusal::{Refusal, TOO_LONG};
use alight_chat::body::thinking::{self, SWITCH};
use alight_chat::body::{conversation, messages, options};
use alight_chat::grammar::{AnswerRules, Calls, Grammars, Held, NotHeld, PromptConstraint};
use alight_chat::thinking::ThinkingBudget;
use alight_model::SamplerOptions;
use alight_text::infill::Gap;
use alight_text::prompt::check_length;
use alight_text::{Encoder, PromptError, Style, Vocabulary};
use serde_json::{Map, Value, json};

use super::result::LineId;
use crate::body_options::{BodyOptions, OptionDefaults, token_ids};
use crate::record::{AnswerConstraints, RequestParts};

/// Values for fields that a line leaves out.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// The options of an answer.
    pub options: OptionDefaults,
    /// The model does not think, unless a line says so.
    pub no_thinking: bool,
    /// The message before a plain prompt.
    pub system: Option<String>,
    /// The style of plain prompts: through the chat template or raw.
    pub style: Style,
    /// Positions of a sequence.
    pub context: usize,
}

/// A line that can be computed.
pub struct Prepared {
    /// Its line.
    pub line: LineId,
    /// The tokens of its prompt.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<Vec<String>>,
    /// Maximum tokens of the answer.
    pub max_tokens: usize,
    /// Ignore the end-of-text token.
    pub ignore_eos: bool,
    /// Constrained output.
    pub held: Option<Held>,
    /// The limit on its thinking.
    pub thinking: Option<ThinkingBudget>,
    /// True if the answer is a message of a conversation, and not the continuation of a text.
    pub chat: bool,
    /// The options of the answer.
    pub asked: AnswerOptions,
    /// `held` and `thinking` as a record has them.
    pub limits: AnswerConstraints,
}

impl Prepared {
    /// Returns the request of its record.
    pub fn recorded(&self) -> Map<String, Value> {
        let parts = RequestParts {
            prompt: &self.prompt,
            sampling: &self.sampling,
            breakers: self.breakers.as_deref(),
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            stops: &self.asked.stops,
            limits: &self.limits,
        };
        parts.body()
    }
}

/// The prompt of a request.
enum Prompt {
    /// A text to continue.
    Text(String),
    /// Its tokens.
    Tokens(Vec<u32>),
    /// A gap to fill between two texts.
    Gap(Gap),
    /// A conversation, as a template sees it.
    Chat(Map<String, Value>),
}

/// A line parsed as far as its `custom_id`.
pub struct Parsed {
    /// The line's own id.
    pub custom_id: Option<String>,
    /// The rest of it, or the reason for its refusal.
    content: Result<Content, Refusal>,
}

impl Parsed {
    /// Returns true if the line is JSON, whatever its content.
    pub fn is_json(&self) -> bool {
        let no_json = |refusal: &Refusal| [NO_TEXT, NO_JSON].contains(&refusal.code);
        !self.content.as_ref().is_err_and(no_json)
    }
}

/// The codes of a line that is not UTF-8, and of one that is not JSON.
const NO_TEXT: &str = "invalid_utf8";
const NO_JSON: &str = "invalid_json";

enum Content {
    Plain(String),
    /// With the path of OpenAI's API, if it is a request of a batch.
    Body(Option<&'static str>, Fields),
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Parses a line.
pub fn parse(bytes: &[u8]) -> Parsed {
    let refused = |refusal| Parsed { custom_id: None, content: Err(refusal) };
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let message = format!("it is not UTF-8 text: see byte {}", error.valid_up_to());
            return refused(Refusal::new(NO_TEXT, message));
        }
    };
    match JsonBudget::default().parse(text) {
        Err(much @ (JsonError::TooDeep | JsonError::TooMany)) => {
            refused(Refusal::new(NO_JSON, format!("it has {much}")))
        }
        Err(JsonError::Syntax(error)) => {
            // A line intended as JSON begins as JSON does.
            let hint = match text.trim_start().starts_with(['"', '{', '[']) {
                true => "",
                false => "; a text is written between quotes (`jq -R . FILE` makes lines of texts)",
            };
            let message = format!("it is not JSON: {}{hint}", no_line(&error));
            refused(Refusal::new(NO_JSON, message))
        }
        Ok(Value::String(prompt)) => {
            Parsed { custom_id: None, content: Ok(Content::Plain(prompt)) }
        }
        Ok(Value::Object(object)) => {
            let mut fields = Fields::new(object);
            match fields.string("custom_id") {
                Ok(custom_id) => Parsed { custom_id, content: body(fields) },
                Err(refusal) => refused(refusal),
            }
        }
        Ok(other) => {
            let message = format!("it is {}, expected an object or a string", kind(&other));
            refused(Refusal::new("invalid_request", message))
        }
    }
}

/// Replaces the parser's position: it counts lines from the beginning of its own text, which is one line.
fn no_line(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let end = said.rfind(" at line ").unwrap_or(said.len());
    format!("{} at byte {}", &said[..end], error.column())
}

/// Returns the body of a request, in either of its forms.
fn body(mut fields: Fields) -> Result<Content, Refusal> {
    if !["body", "url", "method"].iter().any(|name| fields.has(name)) {
        return Ok(Content::Body(None, fields));
    }
    if let Some(method) = fields.string("method")?
        && method != "POST"
    {
        return Err(Refusal::invalid("method", format!("it is {method:?}, expected \"POST\"")));
    }
    let url = match fields.string("url")?.as_deref() {
        Some(CHAT) => CHAT,
        Some(COMPLETIONS) => COMPLETIONS,
        other => {
            let found = other.map_or("missing".to_owned(), |url| kind(&url.into()));
            let message = format!("it is {found}, expected {CHAT:?} or {COMPLETIONS:?}");
            return Err(Refusal::unsupported("url", message));
        }
    };
    let body = fields.object("body")?.ok_or_else(|| Refusal::invalid("body", "it is missing"))?;
    fields.finish()?;
    Ok(Content::Body(Some(url), Fields::new(body)))
}

impl Parsed {
    /// Prepares the request for computing.
    ///
    /// # Errors
    /// The line requests something unsupported, or something that does not fit.
    pub fn prepare(
        self,
        line: LineId,
        vocabulary: &'static Vocabulary,
        encoder: &Encoder<'_>,
        grammars: &Grammars,
        defaults: &Defaults,
    ) -> Result<Prepared, NotHeld> {
        let (mut prompt, fields) = match self.content? {
            Content::Plain(prompt) => (plain(prompt, defaults), Fields::new(Map::new())),
            Content::Body(url, mut fields) => (prompt(url, &mut fields, defaults)?, fields),
        };
        let calls = match &prompt {
            Prompt::Chat(context) => Calls::of(context, &[]),
            Prompt::Text(_) | Prompt::Tokens(_) | Prompt::Gap(_) => Calls::None,
        };
        let options = BodyOptions::take(fields, calls, grammars, &defaults.options)?;
        let BodyOptions { sampling, breakers, max_tokens, ignore_eos, held, constraint, stops } =
            options;
        let rules = AnswerRules::of(held.as_ref());
        let (mut chat, mut tools, mut given_tools, mut budget) = (false, None, None, None);
        if let Prompt::Chat(context) = &mut prompt {
            let given = context.get("tools").and_then(Value::as_array);
            (chat, tools) = (true, given.map(|tools| Tools::of(tools)));
            given_tools = given.cloned();
            if defaults.no_thinking {
                context.entry(SWITCH).or_insert(false.into());
            }
            budget = thinking::fit_for(context, vocabulary, rules.thinking).budget;
        }
        let tools = tools.filter(|_| rules.marks);
        let prompt = encode(prompt, vocabulary, encoder, (defaults.context, max_tokens))?;
        let style = if chat { Style::Chat } else { Style::Raw };
        let PromptConstraint { held, rules } =
            PromptConstraint::new(held, style, &prompt, vocabulary);
        let marked = chat && rules.marks;
        let budget = budget.filter(|_| rules.thinking);
        let thinking = budget.map(|tokens| ThinkingBudget::new(tokens, vocabulary, tools.clone()));
        let limits = AnswerConstraints {
            constraint,
            chat,
            thinking_budget: budget,
            tools: given_tools,
            tool_format: None,
        };
        let asked = AnswerOptions {
            chat: marked,
            tools: tools.filter(|_| marked),
            stops,
            ..AnswerOptions::default()
        };
        Ok(Prepared {
            line,
            prompt,
            sampling,
            breakers,
            max_tokens,
            ignore_eos,
            held,
            thinking,
            chat,
            asked,
            limits,
        })
    }
}

/// Returns a prompt as `alight run` builds it.
fn plain(prompt: String, defaults: &Defaults) -> Prompt {
    match defaults.style {
        Style::Raw => Prompt::Text(prompt),
        Style::Chat => {
            let system =
                defaults.system.iter().map(|text| json!({"role": "system", "content": text}));
            let user = json!({"role": "user", "content": prompt});
            Prompt::Chat(conversation::context(system.chain([user]).collect()))
        }
    }
}

/// Returns the prompt of a body.
fn prompt(url: Option<&str>, fields: &mut Fields, defaults: &Defaults) -> Result<Prompt, Refusal> {
    let chat = url.map_or(fields.has("messages"), |url| url == CHAT);
    if chat {
        return conversation::take(fields).map(Prompt::Chat);
    }
    let after = fields.string("suffix")?.filter(|after| !after.is_empty());
    let prompt = match fields.any("prompt") {
        Some(Value::Array(mut items)) if items.len() == 1 && items[0].is_string() => {
            items.swap_remove(0)
        }
        Some(prompt) => prompt,
        None if after.is_some() => "".into(),
        None if url.is_none() => {
            return Err(Refusal::new("invalid_request", "it has neither a prompt nor messages"));
        }
        None => return Err(Refusal::invalid("prompt", "it is missing")),
    };
    if let Some(after) = after {
        let Value::String(before) = prompt else {
            let message = format!("it is {}, expected a string beside suffix", kind(&prompt));
            return Err(Refusal::invalid("prompt", message));
        };
        return Ok(Prompt::Gap(Gap { before, after, ..Gap::default() }));
    }
    match prompt {
        Value::String(text) if url.is_none() => Ok(plain(text, defaults)),
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items)
            if items.len() > 1 && items.iter().all(|p| p.is_string() || p.is_array()) =>
        {
            Err(Refusal::unsupported(
                "prompt",
                "several prompts in a line: give each a line of its own",
            ))
        }
        other => match token_ids(&other) {
            Some(ids) => ids.map(Prompt::Tokens),
            None => {
                let message =
                    format!("it is {}, expected a string or a list of token ids", kind(&other));
                Err(Refusal::invalid("prompt", message))
            }
        },
    }
}

/// Returns the tokens of a prompt.
fn encode(
    prompt: Prompt,
    vocabulary: &Vocabulary,
    encoder: &Encoder<'_>,
    (context, max_tokens): (usize, usize),
) -> Result<Vec<u32>, Refusal> {
    let fits = |bytes: usize| {
        check_length(bytes, &vocabulary.tokenizer, context)
            .map_err(|error| Refusal::new(TOO_LONG, error.to_string()))
    };
    let refused = |error: PromptError| {
        let is_long = matches!(error, PromptError::TooLong(_));
        Refusal::new(if is_long { TOO_LONG } else { "invalid_request" }, error.to_string())
    };
    match prompt {
        Prompt::Tokens(tokens) => Ok(tokens),
        Prompt::Text(text) => {
            fits(text.len())?;
            encoder.raw(&text).map_err(refused)
        }
        // Names of special tokens are text, as they are for the server. Texts that are too long are cut.
        Prompt::Gap(gap) => {
            let tokens = encoder.infill(&gap, options::around_gap(context, max_tokens));
            tokens.map_err(|error| match error {
                PromptError::NoInfill => Refusal::unsupported("suffix", error.to_string()),
                error => refused(error),
            })
        }
        Prompt::Chat(context) => {
            fits(context["messages"].as_array().map_or(0, |messages| messages::bytes(messages)))?;
            Ok(conversation::encode(encoder, context).map_err(refused)?.tokens)
        }
    }
}
