//! Text into tokens and back, and conversations into prompts, by `alight_text`, for Python.

use std::sync::Arc;

use alight_chat::body::conversation;
use alight_chat::body::fields::Fields;
use alight_model::describe;
use alight_text::output::{Call, Parser, Part, Reader, Span};
use alight_text::{EncodeOptions, Encoder, Message, PromptError, StreamDecoder, Style, Vocabulary};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use serde_json::{Map, Value};

use crate::error;
use crate::given::Given;
use crate::items::Items;

/// A model's tokenizer and chat template.
#[pyclass(frozen, module = "alight")]
pub struct Tokenizer {
    inner: Arc<Vocabulary>,
}

/// A message, as used by chat templates.
pub struct MessageArg {
    role: String,
    content: String,
}

impl<'a, 'py> FromPyObject<'a, 'py> for MessageArg {
    type Error = PyErr;

    fn extract(message: Borrowed<'a, 'py, PyAny>) -> PyResult<MessageArg> {
        let found = message.get_type().name()?;
        let dict = message.cast::<PyDict>().map_err(|_| {
            PyTypeError::new_err(format!(
                "a message: expected a dict with a role and a content, found {found}"
            ))
        })?;
        let field = |name: &str| {
            let found = dict.get_item(name)?;
            found.ok_or_else(|| PyTypeError::new_err(format!("a message has no {name}")))
        };
        let role = field("role")?;
        let role = role.extract().map_err(|_| PyTypeError::new_err("role: expected a text"))?;
        Ok(MessageArg { role, content: said_text(&field("content")?)? })
    }
}

impl From<MessageArg> for Message {
    fn from(message: MessageArg) -> Message {
        Message::new(message.role, message.content)
    }
}

const NO_CONTENT: &str =
    "content: expected a text, or a list of parts {\"type\": \"text\", \"text\": …}";

/// The text of a message: a text, or a list of parts that are texts, as in OpenAI's API, each of which becomes a line.
fn said_text(content: &Bound<'_, PyAny>) -> PyResult<String> {
    match content.cast::<PyList>() {
        Ok(parts) => Ok(lines(&value(parts.as_any())?)?.unwrap_or_default()),
        Err(_) => content.extract().map_err(|_| PyTypeError::new_err(NO_CONTENT)),
    }
}

/// The texts of the parts of a content, one per line; `None` if there are no parts.
///
/// # Errors
/// `TypeError`: a part is not a text.
fn lines(content: &Value) -> PyResult<Option<String>> {
    let Value::Array(parts) = content else { return Ok(None) };
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        _ => Err(PyTypeError::new_err(NO_CONTENT)),
    };
    Ok(Some(parts.iter().map(text).collect::<PyResult<Vec<_>>>()?.join("\n")))
}

/// Python objects as JSON.
///
/// # Errors
/// `TypeError` and the like: JSON has no such objects.
pub fn value(objects: &Bound<'_, PyAny>) -> PyResult<Value> {
    let options = PyDict::new(objects.py());
    options.set_item("allow_nan", false)?;
    let text = objects.py().import("json")?.call_method("dumps", (objects,), Some(&options))?;
    serde_json::from_str(&text.extract::<String>()?)
        .map_err(|problem| PyValueError::new_err(problem.to_string()))
}

/// A conversation as passed to templates: `messages`, each with a `role`, `tools` if there are any, and all other fields of the
/// messages.
///
/// # Errors
/// `TypeError` names the message or the tool that is invalid, and what was expected.
pub fn conversation(
    messages: &Bound<'_, PyAny>,
    tools: Option<&Bound<'_, PyAny>>,
    add_generation_prompt: bool,
) -> PyResult<Map<String, Value>> {
    let found = messages.get_type().name()?;
    if messages.is_instance_of::<PyString>() || messages.is_instance_of::<PyDict>() {
        return Err(PyTypeError::new_err(format!(
            "messages: expected a list of messages, each a dict with a role and a content, found {found}"
        )));
    }
    let mut fields = Fields::new(Map::new());
    let listed = messages.try_iter().map_err(|_| {
        let problem = format!("messages: expected a list of messages, found {found}");
        PyTypeError::new_err(problem)
    })?;
    let listed = PyList::new(messages.py(), listed.collect::<PyResult<Vec<_>>>()?)?;
    fields.insert("messages", value(listed.as_any())?);
    if let Some(tools) = tools {
        fields.insert("tools", value(tools)?);
    }
    fields.insert("add_generation_prompt", add_generation_prompt.into());
    // A last message of the assistant's is part of the conversation.
    fields.insert("continue_final_message", false.into());
    let mut context =
        conversation::take(&mut fields).map_err(|refusal| PyTypeError::new_err(refusal.message))?;
    context.insert("add_generation_prompt".into(), add_generation_prompt.into());
    Ok(context)
}

/// The call of a tool as a dict.
pub fn call<'py>(py: Python<'py>, call: &Call) -> PyResult<Bound<'py, PyDict>> {
    let one = PyDict::new(py);
    one.set_item("name", &call.name)?;
    one.set_item("arguments", py.import("json")?.call_method1("loads", (&call.arguments,))?)?;
    Ok(one)
}

impl Tokenizer {
    /// The tokenizer of an open model.
    pub fn of(inner: Arc<Vocabulary>) -> Tokenizer {
        Tokenizer { inner }
    }

    fn text(&self) -> &alight_text::Tokenizer {
        &self.inner.tokenizer
    }

    /// `id`, if it is in the vocabulary.
    fn checked(&self, id: u32) -> PyResult<u32> {
        let vocab = self.text().vocab_size();
        if (id as usize) < vocab {
            return Ok(id);
        }
        let problem = format!("token id {id} is outside the vocabulary of {vocab} tokens");
        Err(PyValueError::new_err(problem))
    }
}

#[pymethods]
impl Tokenizer {
    /// The tokenizer of a model: its path, or its open catalog.
    #[new]
    fn new(py: Python<'_>, model: Given<'_>) -> PyResult<Tokenizer> {
        let inner = model.with_gguf(py, |files| {
            // Of several files, the first contains the vocabulary.
            describe::vocabulary(&files[0]).map_err(error::model)
        })?;
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// Number of tokens.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.text().vocab_size()
    }

    /// Beginning of sequence.
    #[getter]
    fn bos(&self) -> Option<u32> {
        self.text().bos()
    }

    /// End of sequence.
    #[getter]
    fn eos(&self) -> Option<u32> {
        self.text().eos()
    }

    /// What pads batches.
    #[getter]
    fn padding(&self) -> Option<u32> {
        self.text().padding()
    }

    /// What stands for text that has no token.
    #[getter]
    fn unknown(&self) -> Option<u32> {
        self.text().unknown()
    }

    /// The tokens with which an answer ends, ascending.
    #[getter]
    fn ends(&self) -> Vec<u32> {
        self.text().ends().to_vec()
    }

    /// True if the file asks for a beginning of sequence before every text.
    #[getter]
    fn adds_bos(&self) -> bool {
        self.text().adds_bos()
    }

    /// True if the file asks for an end of sequence after every text.
    #[getter]
    fn adds_eos(&self) -> bool {
        self.text().adds_eos()
    }

    /// True if the file has a chat template that compiles.
    #[getter]
    fn has_chat_template(&self) -> bool {
        matches!(self.inner.template(), Some(Ok(_)))
    }

    /// Why the file's chat template does not compile, if it has one that does not.
    #[getter]
    fn chat_template_error(&self) -> Option<String> {
        self.inner.template()?.err().map(ToString::to_string)
    }

    /// The tokens of a text. `add_bos`: `None` has beginning and end of sequence as the file says,
    /// `False` neither, `True` the beginning in any case. With `parse_special`, spellings of control
    /// tokens become those tokens.
    #[pyo3(signature = (text, *, add_bos=None, parse_special=false))]
    pub fn encode(
        &self,
        py: Python<'_>,
        text: &str,
        add_bos: Option<bool>,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let options = EncodeOptions { add_bos, parse_special };
        py.detach(|| self.text().encode(text, options))
            .map_err(|e| error::PROMPT.err(e.to_string()))
    }

    /// The text of tokens together, without control tokens; what is not UTF-8 becomes U+FFFD.
    pub fn decode(&self, py: Python<'_>, ids: Items<u32>) -> PyResult<String> {
        let Items(ids) = ids;
        ids.iter().try_for_each(|&id| self.checked(id).map(drop))?;
        Ok(py.detach(|| self.text().decode(&ids)))
    }

    /// The text of a token as the file has it (`Ġthe`, `▁the`, `<0x0A>`).
    fn token<'py>(&self, py: Python<'py>, id: u32) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.text().token_text(self.checked(id)?)))
    }

    /// The id of exactly this spelling in the file.
    fn find(&self, text: &[u8]) -> Option<u32> {
        self.text().token_id(text)
    }

    /// A decoder for tokens that come one by one.
    fn stream(&self) -> Decoder {
        Decoder { vocabulary: Arc::clone(&self.inner), stream: StreamDecoder::new() }
    }

    /// The tokens of a prompt without a template, those that `alight run --raw` feeds.
    #[pyo3(signature = (text, *, parse_special=false))]
    fn prompt(&self, py: Python<'_>, text: &str, parse_special: bool) -> PyResult<Vec<u32>> {
        py.detach(|| Encoder::new(&self.inner, Style::Raw, parse_special).raw(text))
            .map_err(error::prompt)
    }

    /// The tokens of a conversation by the file's template, those that `alight run` feeds: spellings
    /// of control tokens in messages are text unless `parse_special` is set.
    ///
    /// `tools` are what the model may call, as JSON schemas. Messages may then have `tool_calls`, without `content`, and
    /// whatever else the template looks for.
    #[pyo3(signature = (messages, *, tools=None, add_generation_prompt=true, parse_special=false))]
    fn chat(
        &self,
        py: Python<'_>,
        messages: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyList>>,
        add_generation_prompt: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let encoder = Encoder::new(&self.inner, Style::Chat, parse_special);
        let Some(tools) = tools else {
            let Items::<MessageArg>(messages) = messages.extract()?;
            let messages: Vec<Message> = messages.into_iter().map(Message::from).collect();
            return py
                .detach(|| encoder.chat(&messages, add_generation_prompt))
                .map_err(error::prompt);
        };
        let context = conversation(messages, Some(tools.as_any()), add_generation_prompt)?;
        py.detach(|| encoder.chat_in(context)).map_err(error::prompt)
    }

    /// What a model wrote, taken apart: a dict of `thinking`, `answer` and `calls`, each of these a dict of a `name` and of
    /// `arguments`. `prompt` are the tokens that were answered: a template may have opened the thinking already. The calls
    /// are of those forms that the vocabulary and the template tell.
    #[pyo3(signature = (ids, *, prompt=Items(Vec::new())))]
    fn parse<'py>(
        &self,
        py: Python<'py>,
        ids: Items<u32>,
        prompt: Items<u32>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (Items(ids), Items(prompt)) = (ids, prompt);
        let (text, format) = (self.text(), self.inner.output_format());
        ids.iter().chain(&prompt).try_for_each(|&id| self.checked(id).map(drop))?;
        let (mut thinking, mut answer, mut calls) = (String::new(), String::new(), Vec::new());
        let mut each = |span: Span<'_>| match span.part {
            Part::Thinking => thinking.push_str(span.raw),
            Part::Answer => answer.push_str(span.raw),
            Part::Call(one) => calls.push(one),
            Part::Mark => {}
        };
        let (mut reader, mut parser) =
            (Reader::new(format, &*self.inner), Parser::after(format, text, &prompt));
        for &id in &ids {
            parser.push(reader.push(id), &mut each);
        }
        parser.push(reader.finish(), &mut each);
        parser.finish(&mut each);
        let (parts, found) = (PyDict::new(py), PyList::empty(py));
        for one in calls {
            found.append(call(py, &one)?)?;
        }
        parts.set_item("thinking", thinking)?;
        parts.set_item("answer", answer)?;
        parts.set_item("calls", found)?;
        Ok(parts)
    }

    /// A conversation as the text that the file's template makes of it.
    #[pyo3(signature = (messages, *, add_generation_prompt=true))]
    fn render(
        &self,
        py: Python<'_>,
        messages: Items<MessageArg>,
        add_generation_prompt: bool,
    ) -> PyResult<String> {
        let messages: Vec<Message> = messages.0.into_iter().map(Message::from).collect();
        py.detach(|| {
            let template = self.inner.template().ok_or(PromptError::NoTemplate)?;
            let template = template.map_err(|error| PromptError::Template(error.clone()))?;
            template.render(&messages, add_generation_prompt).map_err(PromptError::Chat)
        })
        .map_err(error::prompt)
    }

    fn __len__(&self) -> usize {
        self.text().vocab_size()
    }

    fn __repr__(&self) -> String {
        format!("<alight.Tokenizer of {} tokens>", self.text().vocab_size())
    }
}

/// Tokens into text that can be shown at once: a character that is not complete waits for the next token.
#[pyclass(module = "alight")]
pub struct Decoder {
    vocabulary: Arc<Vocabulary>,
    stream: StreamDecoder,
}

#[pymethods]
impl Decoder {
    /// The text that is complete with this token. Control tokens have none.
    fn push(&mut self, id: u32) -> &str {
        self.vocabulary.tokenizer.decode_bytes(id, self.stream.buffer());
        self.stream.take()
    }

    /// The rest: what is still incomplete becomes U+FFFD.
    fn finish(&mut self) -> &str {
        self.stream.finish()
    }
}

/// How many tokens at the beginning of `prompt` a cache that holds the positions of `cached` has already; the
/// prompt's last token never counts.
#[pyfunction]
pub fn reusable(cached: Items<u32>, prompt: Items<u32>) -> usize {
    let (Items(cached), Items(prompt)) = (cached, prompt);
    alight_model::reusable(&cached, &prompt)
}
