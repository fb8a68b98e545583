//! Renders a conversation as the text that a model was trained on, with the Jinja template in its file.
//!
//! The reference is Hugging Face `transformers` with Python's jinja2: trimmed blocks, Python's
//! operators and methods on strings, lists and dicts, `tojson` with Python's separators,
//! `raise_exception`, `strftime_now`, loop controls, and `{% generation %}` without effect.
//! `evidence/agree/chat.py` compares the two.
//!
//! A template is a program from an untrusted file, so it is evaluated here within
//! limits, and every limit is an error of its own:
//! - stack: compiling nests at most `compile::MAX_NESTING` levels, values at most
//!   `value::MAX_DEPTH`; the machine that runs the program does not recurse, and counts the
//!   calls of macros. All of it fits into a quarter of a mebibyte;
//! - time: `STEPS` plus some for each message, charged for instructions, elements and bytes alike
//!   before they are processed (`budget`);
//! - memory: `HELD` bytes plus some for each byte of the conversation, counted while they are
//!   held; the allocator may hold twice that while a value grows;
//! - source: [`MAX_SOURCE`] bytes.
//!
//! The same template, conversation and [`Time`] yield the same text everywhere; only `strftime_now` uses the
//! time, and the caller may fix it. Not supported are recursive loops, HTML escaping where strings marked by `safe` or `escape`
//! are formatted, joined or replaced in, other templates (`include`, `extends`), and filters that
//! depend on chance or on a terminal (`random`, `pprint`, `wordwrap`, `urlize`, `xmlattr`,
//! `striptags`).

mod budget;
mod clock;
mod code;
mod compile;
mod filters;
mod format;
mod json;
mod lexer;
mod machine;
mod methods;
mod names;
mod ops;
mod print;
mod sequences;
mod shown;
mod tests;
mod text;
mod value;

use std::rc::Rc;

use budget::{Budget, RenderStop};
pub use clock::Time;
use code::Program;
use lexer::SyntaxError;
use machine::TemplateMachine;
use value::{ListBuilder, MAX_DEPTH, MapBuilder, Value};

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The speaker: `system`, `user` or `assistant` in most templates.
    pub role: String,
    /// The text.
    pub content: String,
    /// The model's thinking before it wrote the text. Most templates leave it out of all but the latest messages.
    pub thinking: Option<String>,
}

impl Message {
    /// Creates a message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into(), thinking: None }
    }

    /// Creates a system prompt.
    pub fn system(content: &str) -> Message {
        Message::new("system", content)
    }

    /// Creates a message of the user.
    pub fn user(content: &str) -> Message {
        Message::new("user", content)
    }

    /// Creates an answer of the model.
    pub fn assistant(content: &str) -> Message {
        Message::new("assistant", content)
    }

    /// The object that a template sees. Thinking has two names in it: `thinking` is gpt-oss's.
    pub fn to_json(&self) -> serde_json::Value {
        let mut message = serde_json::Map::new();
        let mut put =
            |key: &str, text: &String| message.insert(key.to_owned(), text.clone().into());
        put("role", &self.role);
        put("content", &self.content);
        if let Some(thinking) = &self.thinking {
            put("reasoning_content", thinking);
            put("thinking", thinking);
        }
        message.into()
    }
}

/// The reason why a template is unusable, or could not be rendered. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The source is longer than any real template.
    #[error("the chat template has {len} bytes, more than the {limit} that are read")]
    TooLong {
        /// Bytes of the source.
        len: usize,
        /// The maximum.
        limit: usize,
    },
    /// The source is not a template.
    #[error("the chat template is not valid: {message} (line {line} of the template)")]
    Syntax {
        /// The line of the mistake.
        line: u32,
        /// The mistake, and what was expected.
        message: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// Its message, without control characters.
        message: String,
    },
    /// The template takes too many steps or too much memory.
    #[error("the chat template runs for too long: {what} (line {line} of the template)")]
    Endless {
        /// The line where it was stopped.
        line: u32,
        /// The limit that it reached.
        what: &'static str,
    },
    /// Values or macros nest too deeply.
    #[error("the chat template goes too deep: {what} (line {line} of the template)")]
    TooDeep {
        /// The line where it was stopped; 0 if the conversation itself nests too deeply.
        line: u32,
        /// The limit that it reached.
        what: &'static str,
    },
    /// The template attempts something impossible.
    #[error("the chat template fails: {message} (line {line} of the template)")]
    Failed {
        /// The line of the failure.
        line: u32,
        /// The failure.
        message: String,
    },
}

/// The maximum size of a source in bytes. (The longest in use have some 20 kB.)
pub const MAX_SOURCE: usize = 1 << 20;
/// Steps for a rendering, and for each message in it. (A template in use takes some hundred steps
/// per message; with tools some thousand.) A template may also iterate over the whole conversation
/// once for each message.
const STEPS: u64 = 20_000_000;
const STEPS_PER_MESSAGE: u64 = 50_000;
/// The maximum number of bytes held at once, in addition to `HELD_PER_BYTE` for each byte of the
/// conversation and the template.
const HELD: usize = 64 << 20;
const HELD_PER_BYTE: usize = 16;
/// The bytes counted for a value of the conversation, in addition to its text.
const VALUE: usize = 32;

/// A chat template, checked for syntax.
pub struct ChatTemplate {
    program: Program,
    source_len: usize,
    bos: String,
    eos: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source_len", &self.source_len).finish_non_exhaustive()
    }
}

/// The size of a conversation: its messages, and its values and text.
struct Size {
    messages: usize,
    bytes: usize,
}

impl ChatTemplate {
    /// Reads a template; `bos_text` and `eos_text` are the spellings of those tokens (empty if there are none).
    ///
    /// # Errors
    /// [`ChatError::TooLong`], [`ChatError::Syntax`].
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<ChatTemplate, ChatError> {
        if source.len() > MAX_SOURCE {
            return Err(ChatError::TooLong { len: source.len(), limit: MAX_SOURCE });
        }
        let program = compile::compile(&lexer::normalise(source))
            .map_err(|SyntaxError { line, message }| ChatError::Syntax { line, message })?;
        let (bos, eos) = (bos_text.into(), eos_text.into());
        Ok(ChatTemplate { program, source_len: source.len(), bos, eos })
    }

    /// Renders the conversation as the model expects it; with `add_generation_prompt` up to the
    /// beginning of its answer. The template has today's date, and may let the model think
    /// (see [`Encoder::chat_in`](crate::Encoder::chat_in)).
    ///
    /// # Errors
    /// [`ChatError::Refused`], [`ChatError::Endless`], [`ChatError::TooDeep`],
    /// [`ChatError::Failed`].
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let time = Time::now();
        let mut context = context(messages, add_generation_prompt);
        complete(&mut context, time);
        self.render_context_at(&context, time)
    }

    /// As [`render`](Self::render) for any context, such as one with tools: `context` is what Hugging Face's
    /// `apply_chat_template` passes to a template, with `messages` and any other variables that it may use. It
    /// takes precedence over the defaults (`bos_token`, `eos_token`, and null for `tools` and `documents`).
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_context(
        &self,
        context: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, ChatError> {
        self.render_context_at(context, Time::now())
    }

    /// As [`render_context`](Self::render_context) at a given time, which is what `strftime_now` formats.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_context_at(
        &self,
        context: &serde_json::Map<String, serde_json::Value>,
        time: Time,
    ) -> Result<String, ChatError> {
        let messages = context.get("messages").and_then(|m| m.as_array()).map_or(0, Vec::len);
        let mut bytes = 0;
        for (key, value) in context {
            bytes += key.len() + measure(value, 1)?;
        }
        self.run(&Size { messages, bytes }, time, |name, budget| {
            context.get(name).map(|value| from_json(value, budget)).transpose()
        })
    }

    fn run(
        &self,
        size: &Size,
        time: Time,
        mut context: impl FnMut(&str, &Rc<Budget>) -> budget::Result<Option<Value>>,
    ) -> Result<String, ChatError> {
        let bytes = size.bytes.saturating_add(self.source_len);
        let each = STEPS_PER_MESSAGE + bytes as u64 / budget::BYTES_PER_STEP as u64;
        let steps = STEPS
            .saturating_add(each.saturating_mul(size.messages as u64))
            .saturating_add(bytes as u64);
        let budget = Budget::new(steps, HELD.saturating_add(bytes.saturating_mul(HELD_PER_BYTE)));
        let variables = |name: &str| {
            Ok(match context(name, &budget)? {
                Some(value) => Some(value),
                None => match name {
                    "bos_token" => Some(Value::text(&self.bos, &budget)?),
                    "eos_token" => Some(Value::text(&self.eos, &budget)?),
                    "tools" | "documents" => Some(Value::None),
                    _ => None,
                },
            })
        };
        TemplateMachine::new(&self.program, Rc::clone(&budget), time, variables)
            .map_err(|stop| (stop, 0))
            .and_then(TemplateMachine::run)
            .map_err(|(stop, line)| match stop {
                RenderStop::Endless(what) => ChatError::Endless { line, what },
                RenderStop::TooDeep(what) => ChatError::TooDeep { line, what },
                RenderStop::Refused(message) => ChatError::Refused { message },
                RenderStop::Failed(message) => ChatError::Failed { line, message },
            })
    }
}

/// The variables of a conversation that a template sees.
pub(crate) fn context(
    messages: &[Message],
    add_generation_prompt: bool,
) -> serde_json::Map<String, serde_json::Value> {
    let messages: Vec<_> = messages.iter().map(Message::to_json).collect();
    serde_json::Map::from_iter([
        ("messages".to_owned(), messages.into()),
        ("add_generation_prompt".to_owned(), add_generation_prompt.into()),
    ])
}

/// Adds the variables that llama-server gives to templates in addition to Hugging Face's, except those that the context
/// has: the date, and whether the model may think.
pub(crate) fn complete(context: &mut serde_json::Map<String, serde_json::Value>, time: Time) {
    let mut default = |name: &str, value: serde_json::Value| {
        context.entry(name).or_insert(value);
    };
    // Llama 3's, "26 Jul 2024".
    default("date_string", time.format("%d %b %Y").into());
    // llama.cpp's has the time of day as well. With it, no request of a conversation would begin like the one before.
    default("datetime", time.format("%b %d %Y").into());
    default("enable_thinking", true.into());
}

/// Returns the size of a JSON value. Recurses as deep as values may nest.
pub(crate) fn measure(value: &serde_json::Value, depth: u32) -> Result<usize, ChatError> {
    if depth >= MAX_DEPTH {
        return Err(ChatError::TooDeep { line: 0, what: "the conversation nests too deeply" });
    }
    let mut bytes = VALUE;
    match value {
        serde_json::Value::String(s) => bytes += s.len(),
        serde_json::Value::Array(items) => {
            for item in items {
                bytes += measure(item, depth + 1)?;
            }
        }
        serde_json::Value::Object(entries) => {
            for (key, value) in entries {
                bytes += VALUE + key.len() + measure(value, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(bytes)
}

/// Converts a JSON value for a template; [`measure`] has checked it.
fn from_json(value: &serde_json::Value, budget: &Rc<Budget>) -> budget::Result<Value> {
    Ok(match value {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::Int(n.into()),
            (_, Some(n)) => Value::Int(n.into()),
            _ => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => Value::text(s, budget)?,
        serde_json::Value::Array(items) => {
            let mut list = ListBuilder::new(budget)?;
            for item in items {
                list.push(from_json(item, budget)?)?;
            }
            list.list()?
        }
        serde_json::Value::Object(entries) => {
            let mut map = MapBuilder::new(budget)?;
            for (key, value) in entries {
                map.text(key, from_json(value, budget)?)?;
            }
            map.value()?
        }
    })
}
