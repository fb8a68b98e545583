//! A conversation into the text that a model was trained on, by the Jinja template in its file.
//!
//! The reference is what Hugging Face `transformers` does with Python's jinja2: blocks trimmed,
//! Python's methods on strings, lists and dicts, `tojson` with Python's separators,
//! `raise_exception`, `strftime_now`, loop controls, and `{% generation %}` without effect.
//! `python -m evidence agree chat` compares.
//!
//! A template is a program from a file that nobody has vetted, so it is bounded: its source, the
//! number of steps, the depth of recursion, and the length of what it writes. What is not bounded
//! is a value that doubles in every step (`s ~ s`): that ends when memory does.

use std::fmt::Write as _;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

mod clock;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant` in most templates.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }

    /// Who the model should be.
    pub fn system(content: &str) -> Message {
        Message::new("system", content)
    }

    /// What the user says.
    pub fn user(content: &str) -> Message {
        Message::new("user", content)
    }

    /// What the model said.
    pub fn assistant(content: &str) -> Message {
        Message::new("assistant", content)
    }
}

/// Why a template cannot be used, or could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The source is longer than any real template.
    #[error("the chat template has {len} bytes, more than the {limit} that are read")]
    TooLong {
        /// Bytes of the source.
        len: usize,
        /// The most that is read.
        limit: usize,
    },
    /// The source is not a template.
    #[error("the chat template is not valid: {message}")]
    Syntax {
        /// What is wrong, and where.
        message: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// Its words.
        message: String,
    },
    /// The template takes too many steps or writes too much.
    #[error("the chat template goes on for too long ({what})")]
    Endless {
        /// Which bound it met.
        what: &'static str,
    },
    /// Rendering failed.
    #[error("the chat template fails: {message}")]
    Failed {
        /// How, and where.
        message: String,
    },
}

/// Most bytes of source. (The longest in use have some 20 kB.)
const MAX_SOURCE: usize = 1 << 20;
/// Steps for a rendering, and for each message in it. (A template in use takes some hundred steps
/// a message; with tools some thousand.)
const FUEL: u64 = 2_000_000;
const FUEL_PER_MESSAGE: u64 = 10_000;
/// Most bytes written beyond eight times those of the context.
const MAX_OUTPUT: usize = 16 << 20;

/// A chat template, checked for syntax.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Reads a template; `bos_text` and `eos_text` are the spellings of those tokens (empty if
    /// there is none).
    ///
    /// # Errors
    /// [`ChatError::TooLong`], [`ChatError::Syntax`].
    pub fn new(source: &str, bos_text: &str, eos_text: &str) -> Result<ChatTemplate, ChatError> {
        if source.len() > MAX_SOURCE {
            return Err(ChatError::TooLong { len: source.len(), limit: MAX_SOURCE });
        }
        let environment = environment();
        let source = without_generation(source);
        if let Err(error) = environment.template_from_str(&source) {
            return Err(ChatError::Syntax { message: describe(&error) });
        }
        Ok(ChatTemplate { environment, source, bos: bos_text.into(), eos: eos_text.into() })
    }

    /// The conversation as the model expects it; with `add_generation_prompt` up to where its
    /// answer begins.
    ///
    /// # Errors
    /// [`ChatError::Refused`], [`ChatError::Endless`], [`ChatError::Failed`].
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let bytes = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let list = messages.iter().map(|message| {
            Value::from_pairs([("role", &*message.role), ("content", &*message.content)])
        });
        let context = vec![
            ("messages".to_owned(), Value::from_iter(list)),
            ("add_generation_prompt".to_owned(), Value::from(add_generation_prompt)),
        ];
        self.run(context, messages.len(), bytes)
    }

    /// As [`render`](Self::render) for any context, such as one with tools: `context` is an
    /// object with `messages` and whatever else the template may look for. It takes precedence
    /// over what is there by default (`bos_token`, `eos_token`, and null for `tools` and
    /// `documents`).
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_context(
        &self,
        context: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, ChatError> {
        let messages = context.get("messages").and_then(|m| m.as_array()).map_or(0, Vec::len);
        let mut bytes = 0;
        let context = context
            .iter()
            .map(|(key, value)| (key.clone(), from_json(value, &mut bytes)))
            .collect();
        self.run(context, messages, bytes)
    }

    fn run(
        &self,
        context: Vec<(String, Value)>,
        messages: usize,
        bytes: usize,
    ) -> Result<String, ChatError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(FUEL + FUEL_PER_MESSAGE * messages as u64));
        let failed = |error: Error| fate(&error);
        let template = environment.template_from_str(&self.source).map_err(failed)?;
        let mut all = vec![
            ("bos_token".to_owned(), Value::from(&*self.bos)),
            ("eos_token".to_owned(), Value::from(&*self.eos)),
            ("tools".to_owned(), Value::from(())),
            ("documents".to_owned(), Value::from(())),
        ];
        // Of two entries with one key the later counts.
        all.extend(context);
        let limit = MAX_OUTPUT.saturating_add(bytes.saturating_mul(8));
        let mut out = Bounded { bytes: Vec::new(), limit };
        template.render_captured_to(Value::from_pairs(all), &mut out).map_err(failed)?;
        String::from_utf8(out.bytes)
            .map_err(|error| ChatError::Failed { message: error.to_string() })
    }
}

/// A JSON value for a template; adds the bytes of its strings to `bytes`.
fn from_json(value: &serde_json::Value, bytes: &mut usize) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), ..) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (.., n) => Value::from(n.unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(s) => {
            *bytes += s.len();
            Value::from(&**s)
        }
        serde_json::Value::Array(items) => {
            items.iter().map(|item| from_json(item, bytes)).collect()
        }
        serde_json::Value::Object(entries) => {
            let pairs = entries.iter().map(|(key, value)| {
                *bytes += key.len();
                (key.clone(), from_json(value, bytes))
            });
            Value::from_pairs(pairs.collect::<Vec<_>>())
        }
    }
}

/// A buffer that refuses to grow beyond a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `raise_exception` was told.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn fate(error: &Error) -> ChatError {
    let mut link: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = link {
        if let Some(Raised(message)) = error.downcast_ref() {
            return ChatError::Refused { message: message.clone() };
        }
        if let Some(error) = error.downcast_ref::<Error>() {
            match error.kind() {
                ErrorKind::OutOfFuel => return ChatError::Endless { what: "too many steps" },
                ErrorKind::WriteFailure => return ChatError::Endless { what: "too much text" },
                _ => {}
            }
        }
        link = error.source();
    }
    ChatError::Failed { message: describe(error) }
}

/// The error with its line. (minijinja adds the name of the template, which here is only
/// "<string>".)
fn describe(error: &Error) -> String {
    let mut message = error.kind().to_string();
    if let Some(detail) = error.detail() {
        let _ = write!(message, ": {detail}");
    }
    if let Some(line) = error.line() {
        let _ = write!(message, " (line {line} of the template)");
    }
    message
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    // Only delimiters could make this fail, and those are the usual ones.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", to_json);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    // minijinja goes through nothing as if it were an empty list, and calls it iterable; templates
    // ask `tools is iterable and tools | length > 0`.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception was called")
            .with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        clock::format_utc(now.as_secs(), &format)
    });
    environment
}

/// As in jinja2, nothing has the length 0.
fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(len) => Ok(len),
        None if value.is_undefined() => Ok(0),
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("{} has no length", value.kind())))
        }
    }
}

/// `json.dumps(value, ensure_ascii=False, …)`: separators `, ` and `: `, or lines if `indent` is
/// given.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    options.assert_all_used()?;
    let given = separators.as_deref();
    let (item, key) = match given {
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson takes two separators"));
        }
        None => (if indent.is_some() { "," } else { ", " }, ": "),
    };
    let (sort, ascii) = (sort_keys.unwrap_or(false), ascii.unwrap_or(false));
    let writer = Json { indent, sort, ascii, item, key };
    let mut out = String::new();
    writer.write(value, 0, &mut out)?;
    Ok(Value::from_safe_string(out))
}

struct Json<'a> {
    indent: Option<usize>,
    sort: bool,
    ascii: bool,
    item: &'a str,
    key: &'a str,
}

impl Json<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        const DEEPEST: usize = 100;
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson of too deep a value"));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => write_number(value, out),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let mut items = value.try_iter()?.peekable();
                if items.peek().is_none() {
                    out.push_str("[]");
                    return Ok(());
                }
                out.push('[');
                for (i, item) in items.enumerate() {
                    self.begin_item(i, depth + 1, out);
                    self.write(&item, depth + 1, out)?;
                }
                self.new_line(depth, out);
                out.push(']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if keys.is_empty() {
                    out.push_str("{}");
                    return Ok(());
                }
                if self.sort {
                    keys.sort();
                }
                out.push('{');
                for (i, key) in keys.iter().enumerate() {
                    self.begin_item(i, depth + 1, out);
                    match key.as_str() {
                        Some(key) => self.write_string(key, out),
                        // As Python does with numbers, booleans and None for keys.
                        None => {
                            let mut text = String::new();
                            self.write(key, depth + 1, &mut text)?;
                            self.write_string(&text, out);
                        }
                    }
                    out.push_str(self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)?;
                }
                self.new_line(depth, out);
                out.push('}');
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("{kind} cannot become JSON"),
                ));
            }
        }
        Ok(())
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }

    fn begin_item(&self, number: usize, depth: usize, out: &mut String) {
        if number > 0 {
            out.push_str(self.item);
        }
        self.new_line(depth, out);
    }

    fn new_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            // No more than a template could mean.
            out.extend(std::iter::repeat_n(' ', indent.min(64) * depth));
        }
    }
}

/// Floats as Python's `repr`: always with a point or an exponent.
fn write_number(value: &Value, out: &mut String) {
    let text = value.to_string();
    let _ = if value.is_integer() {
        write!(out, "{text}")
    } else {
        match f64::try_from(value.clone()) {
            Ok(x) if x.is_nan() => write!(out, "NaN"),
            Ok(x) if x.is_infinite() => {
                write!(out, "{}", if x > 0.0 { "Infinity" } else { "-Infinity" })
            }
            // Python turns to an exponent of at least two digits below 1e-4 and from 1e16 on.
            Ok(x) if x != 0.0 && !(1e-4..1e16).contains(&x.abs()) => {
                let text = format!("{x:e}");
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, exponent) =
                    exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
                write!(out, "{digits}e{sign}{exponent:0>2}")
            }
            Ok(x) => write!(out, "{x:?}"),
            Err(_) => write!(out, "{text}"),
        }
    };
}

/// `{% generation %}` marks what a model said, for training; here it must only not be an error.
/// It becomes an `if` that is true, which leaves the handling of white space around it as it is.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let name = tag.trim_start_matches(['-', '+']);
        let dash = &tag[..tag.len() - name.len()];
        let name = name.trim_start();
        for (word, replacement) in [("generation", " if true "), ("endgeneration", " endif ")] {
            if let Some(after) = name.strip_prefix(word) {
                let end = after.trim_start();
                if end.starts_with("%}") || end.starts_with("-%}") || end.starts_with("+%}") {
                    out.push_str(dash);
                    out.push_str(replacement);
                    rest = end;
                }
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: serde_json::Value) -> Result<String, ChatError> {
        ChatTemplate::new(source, "<s>", "</s>")?.render_context(context.as_object().unwrap())
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let value = serde_json::json!({
            "b": [1, 2.0, 0.1, 1e16, 1e-5, -0.0, null, true, {}, []],
            "a": "é \"q\" \\ \n\u{1}/<>&'",
            "c": {"d": {"e": []}, "f": 12345678901234567890u64},
        });
        let context = serde_json::json!({ "v": value });
        // From Python: json.dumps(v, ensure_ascii=False) and with indent=2, sort_keys=True.
        assert_eq!(
            render("{{ v | tojson }}", context.clone()).unwrap(),
            "{\"b\": [1, 2.0, 0.1, 1e+16, 1e-05, -0.0, null, true, {}, []], \
             \"a\": \"é \\\"q\\\" \\\\ \\n\\u0001/<>&'\", \
             \"c\": {\"d\": {\"e\": []}, \"f\": 12345678901234567890}}"
        );
        assert_eq!(
            render("{{ v.c | tojson(indent=2) }}", context.clone()).unwrap(),
            "{\n  \"d\": {\n    \"e\": []\n  },\n  \"f\": 12345678901234567890\n}"
        );
        assert_eq!(
            render(
                "{{ {'b': 1, 'a': [1]} | tojson(sort_keys=true, separators=(',', ':')) }}",
                context
            )
            .unwrap(),
            "{\"a\":[1],\"b\":1}"
        );
    }

    #[test]
    fn json_can_be_ascii_and_nothing_is_not_iterable() {
        let context = serde_json::json!({ "v": "é🚀\u{7f}", "n": null });
        assert_eq!(
            render("{{ v | tojson(ensure_ascii=true) }}", context.clone()).unwrap(),
            "\"\\u00e9\\ud83d\\ude80\u{7f}\""
        );
        assert_eq!(
            render("{{ [n is iterable, v is iterable, [] is iterable, 1 is iterable] }}", context)
                .unwrap(),
            "[False, True, True, False]"
        );
    }

    #[test]
    fn generation_tags_have_no_effect() {
        let context = || serde_json::json!({});
        for (source, expected) in [
            ("a{% generation %}b{% endgeneration %}c", "abc"),
            ("a {%- generation -%} b {%- endgeneration -%} c", "abc"),
            ("a\n{% generation %}\nb\n{% endgeneration %}\nc", "a\nb\nc"),
            ("{%generation%}x{%endgeneration%}", "x"),
            ("{{ '{% generation' }}", "{% generation"),
        ] {
            assert_eq!(render(source, context()).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn a_refusal_is_told_apart_from_a_failure() {
        let refused = render("{{ raise_exception('only ' ~ 'two') }}", serde_json::json!({}));
        assert_eq!(refused, Err(ChatError::Refused { message: "only two".into() }));
        let nested = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
        let refused = render(nested, serde_json::json!({}));
        assert_eq!(refused, Err(ChatError::Refused { message: "deep".into() }));
        let failed = render("\n{{ 1 + 'a' }}", serde_json::json!({}));
        assert!(
            matches!(&failed, Err(ChatError::Failed { message }) if message.contains("line 2")),
            "{failed:?}"
        );
        let syntax = ChatTemplate::new("{% if %}", "", "").unwrap_err();
        assert!(matches!(syntax, ChatError::Syntax { .. }));
    }

    #[test]
    fn bombs_are_defused() {
        let endless = |source: &str| render(source, serde_json::json!({}));
        for source in [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
        ] {
            assert!(matches!(endless(source), Err(ChatError::Endless { .. })), "{source}");
        }
        for source in [
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{{ 'x' * 100000000000 }}",
            "{% for a in range(1000000000) %}{% endfor %}",
        ] {
            assert!(endless(source).is_err(), "{source}");
        }
        let deep = "{{".to_owned() + &"(".repeat(100_000) + &")".repeat(100_000) + "}}";
        assert!(matches!(ChatTemplate::new(&deep, "", ""), Err(ChatError::Syntax { .. })));
        let long = " ".repeat(MAX_SOURCE + 1);
        assert!(matches!(ChatTemplate::new(&long, "", ""), Err(ChatError::TooLong { .. })));
    }
}
