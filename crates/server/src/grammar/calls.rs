//! Calls of tools, in the notation that a model writes: an answer that has to be one, and an answer in which one may be.

use alight_text::EncodeOptions;
use alight_text::output::Format;
use serde_json::{Map, Value, json};

use super::{Grammar, Held, Marks, SCHEMA, Wanted, compiled, with_rules};
use crate::body::refusal::Refusal;
use crate::failure::Failure;
use crate::models::Serving;

/// What may stand between the recipient of a call and its arguments in the header of a message of gpt-oss.
const HARMONY: [&str; 4] = [
    "",
    " <|constrain|>json",
    "<|channel|>commentary <|constrain|>json",
    "<|channel|>commentary json",
];

/// Whether tools are called in an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Calls<'t> {
    /// There are none.
    None,
    /// These may be.
    May(&'t [Value]),
    /// The answer is the call of one.
    Must,
}

impl<'t> Calls<'t> {
    /// In the answer to a conversation, in which one of some tools `must` be called if there are any.
    pub(crate) fn of(context: &'t Map<String, Value>, must: &[Value]) -> Calls<'t> {
        match context.get("tools").and_then(Value::as_array) {
            _ if !must.is_empty() => Calls::Must,
            Some(tools) => Calls::May(tools),
            None => Calls::None,
        }
    }
}

/// A grammar of llguidance's of an answer that is JSON of a schema, or calls of tools in place of it; `None` if the model writes calls in a
/// notation that is none of JSON between marks.
pub(super) fn or_schema(
    tools: &[Value],
    wanted: &Value,
    strict: bool,
    serving: &Serving,
) -> Result<Option<String>, Refusal> {
    let vocabulary = serving.vocabulary();
    if vocabulary.output_format() != Format::ChatMl
        || vocabulary.template_has("<function=")
        || !vocabulary.template_has("tools")
        || !wanted.is_object()
    {
        return Ok(None);
    }
    let tokenizer = &vocabulary.tokenizer;
    let options = EncodeOptions { add_bos: Some(false), parse_special: true };
    // A mark that is a token of its own without a text is called by its name.
    let mark = |text: &str| match tokenizer.encode(text, options).as_deref() {
        Ok([id]) if tokenizer.is_control(*id) => text.to_owned(),
        _ => json!(text).to_string(),
    };
    let [open, close] = ["<tool_call>", "</tool_call>"].map(mark);
    let mut schema = wanted.clone();
    with_rules(&mut schema, strict);
    Ok(Some(format!(
        "start: answer | tool (BLANK? tool)*\nanswer: %json {schema}\n\
         tool: {open} BLANK? call BLANK? {close}\nBLANK: /[ \\n]{{1,8}}/\n{}",
        calls(tools)?
    )))
}

/// The call of one of these tools: `{"name": …, "arguments": {…}}`, with the blanks that templates write.
pub(crate) fn of_calls(tools: &[Value], serving: &Serving) -> Result<Held, Failure> {
    held(format!("start: call\n{}", calls(tools)?), serving).map(Held::Whole)
}

/// What holds the arguments of calls to their schemas wherever the model writes one, and leaves the rest of its answer free; `None` if no
/// tool is strict, or if the model writes calls in a notation that is not JSON.
pub(crate) fn of_strict_calls(tools: &[Value], serving: &Serving) -> Result<Option<Held>, Failure> {
    if !tools.iter().any(is_strict) {
        return Ok(None);
    }
    // Each may be compiled for itself.
    let bytes: usize = tools.iter().map(|tool| schema(tool).to_string().len()).sum();
    if bytes > SCHEMA {
        let message = format!("their schemas have {bytes} bytes, expected at most {SCHEMA}");
        return Err(Refusal::invalid("tools", message).into());
    }
    let vocabulary = serving.vocabulary();
    let one =
        |lark: String| held(format!("{lark}\nBLANK: /[ \\n]{{1,8}}/\n{}", calls(tools)?), serving);
    // Of each tool, its name and its arguments alone.
    let each = || {
        tools.iter().enumerate().map(|(i, tool)| {
            let lark = format!("start: args\nargs: %json {}", schema(tool));
            Ok((name(i, tool)?, held(lark, serving)?))
        })
    };
    let marks = match vocabulary.output_format() {
        Format::ChatMl if !vocabulary.template_has("<function=") => {
            vec![("<tool_call>".to_owned(), one("start: BLANK? call".to_owned())?)]
        }
        Format::Mistral if !vocabulary.template_has("[ARGS]") => {
            let list = r#"start: BLANK? "[" call (", " call)* "]""#;
            vec![("[TOOL_CALLS]".to_owned(), one(list.to_owned())?)]
        }
        Format::Mistral => each()
            .map(|tool| tool.map(|(name, of)| (format!("[TOOL_CALLS]{name}[ARGS]"), of)))
            .collect::<Result<_, Failure>>()?,
        Format::Harmony => {
            let mut marks = Vec::new();
            for tool in each() {
                let (name, of) = tool?;
                let mark = |between| format!("to=functions.{name}{between}<|message|>");
                marks.extend(HARMONY.map(|between| (mark(between), of.clone())));
            }
            marks
        }
        Format::ChatMl | Format::Gemma4 | Format::Plain => return Ok(None),
    };
    Ok(Some(Held::Behind(Marks::new(marks, &vocabulary.tokenizer))))
}

fn held(lark: String, serving: &Serving) -> Result<Grammar, Failure> {
    compiled("tools", Wanted::Calls(lark), serving)
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

fn name(i: usize, tool: &Value) -> Result<&str, Refusal> {
    let refused = || Refusal::invalid(format!("tools[{i}].function.name"), "expected a string");
    tool["function"]["name"].as_str().ok_or_else(refused)
}

/// The schema of a tool's arguments.
fn schema(tool: &Value) -> Value {
    let mut schema = match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => json!({"type": "object"}),
    };
    with_rules(&mut schema, is_strict(tool));
    // With the blanks that templates write.
    schema["x-guidance"]["item_separator"] = ", ".into();
    schema["x-guidance"]["key_separator"] = ": ".into();
    schema
}

/// The rule `call`, of a call of one of the tools.
fn calls(tools: &[Value]) -> Result<String, Refusal> {
    let all: Vec<String> = (0..tools.len()).map(|i| format!("call{i}")).collect();
    let mut lark = format!("call: {}", all.join(" | "));
    for (i, tool) in tools.iter().enumerate() {
        let begin = json!(format!("{{\"name\": {}, \"arguments\": ", json!(name(i, tool)?)));
        let schema = schema(tool);
        lark.push_str(&format!("\ncall{i}: {begin} args{i} \"}}\"\nargs{i}: %json {schema}"));
    }
    Ok(lark)
}
