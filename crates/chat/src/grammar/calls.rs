//! Tool calls, in the model's notation: answers that must be one, and answers that may contain one.

use alight_text::output::Format;
use alight_text::{EncodeOptions, Vocabulary};
use serde_json::{Map, Value, json};

use super::{
    Grammar, Grammars, Held, Marks, NoGrammar, NotHeld, Part, SCHEMA, Wanted, schemas, with_rules,
};
use crate::body::refusal::Refusal;

/// The text between the recipient of a call and its arguments, in the header of a gpt-oss message.
const HARMONY: [&str; 4] = [
    "",
    " <|constrain|>json",
    "<|channel|>commentary <|constrain|>json",
    "<|channel|>commentary json",
];

/// The tool calls that an answer may contain.
#[derive(Clone, Copy, Debug)]
pub enum Calls<'t> {
    /// None.
    None,
    /// Calls of these tools.
    May(&'t [Value]),
    /// The answer must be a call.
    Must,
}

impl<'t> Calls<'t> {
    /// Returns the calls for the answer to a conversation, in which one of the tools in `must` has to be called if there are any.
    pub fn of(context: &'t Map<String, Value>, must: &[Value]) -> Calls<'t> {
        match context.get("tools").and_then(Value::as_array) {
            _ if !must.is_empty() => Calls::Must,
            Some(tools) => Calls::May(tools),
            None => Calls::None,
        }
    }
}

/// Returns an llguidance grammar of an answer that is JSON of a schema, or tool calls in its place; `None` if the model's notation
/// for calls is not JSON between markers.
pub(super) fn or_schema(
    tools: &[Value],
    wanted: &Value,
    strict: bool,
    vocabulary: &Vocabulary,
) -> Result<Option<String>, Refusal> {
    if vocabulary.output_format() != Format::ChatMl
        || vocabulary.template_has("<function=")
        || !vocabulary.template_has("tools")
        || !wanted.is_object()
    {
        return Ok(None);
    }
    let tokenizer = &vocabulary.tokenizer;
    let options = EncodeOptions { add_bos: Some(false), parse_special: true };
    // A marker that is a control token of its own is referred to by its name.
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

/// Constrains an answer to a call of one of these tools: `{"name": …, "arguments": {…}}`, with the blanks that templates write.
pub fn of_calls(tools: &[Value], grammars: &Grammars) -> Result<Held, NotHeld> {
    let grammar = held(format!("start: call\n{}", calls(tools)?), tools, grammars)?;
    Ok(Held(Part::Whole(grammar)))
}

/// Constrains the arguments of calls to their schemas wherever the model writes a call, and leaves the rest of its answer free;
/// `None` if no tool is strict, or if the model's notation for calls is not JSON.
pub fn of_strict_calls(tools: &[Value], grammars: &Grammars) -> Result<Option<Held>, NotHeld> {
    if !tools.iter().any(is_strict) {
        return Ok(None);
    }
    // Each may be compiled separately.
    let bytes: usize = tools.iter().map(|tool| schema(tool).to_string().len()).sum();
    if bytes > SCHEMA {
        let message = format!("their schemas have {bytes} bytes, expected at most {SCHEMA}");
        return Err(Refusal::invalid("tools", message).into());
    }
    let vocabulary = grammars.vocabulary;
    let one = |lark: String| {
        held(format!("{lark}\nBLANK: /[ \\n]{{1,8}}/\n{}", calls(tools)?), tools, grammars)
    };
    // For each tool, its name and a grammar of its arguments alone.
    let each = || {
        tools.iter().enumerate().map(|(i, tool)| {
            let lark = format!("start: args\nargs: %json {}", schema(tool));
            Ok((name(i, tool)?, held(lark, tools, grammars)?))
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
            .collect::<Result<_, NotHeld>>()?,
        Format::Harmony => {
            let mut marks = Vec::new();
            for tool in each() {
                let (name, of) = tool?;
                let mark = |between| format!("to=functions.{name}{between}<|message|>");
                marks.extend(HARMONY.map(|between| (mark(between), of.clone())));
            }
            marks
        }
        _ => return Ok(None),
    };
    Ok(Some(Held(Part::After(Marks::new(marks, &vocabulary.tokenizer)))))
}

/// Compiles a grammar of calls. If it fails, the error names the tool that is at fault.
fn held(lark: String, tools: &[Value], grammars: &Grammars) -> Result<Grammar, NotHeld> {
    grammars.compile(Wanted::Calls(lark)).map_err(|why| {
        if why.is_of_what_was_asked() {
            for (i, tool) in tools.iter().enumerate() {
                let (schema, strict) = (own_schema(tool), is_strict(tool));
                if let Err(why) = grammars.compile(Wanted::Schema { schema, strict }) {
                    return why.of_field(&format!("tools[{i}].function.parameters"));
                }
            }
        }
        let why = match why {
            NoGrammar::Wrong(why) => NoGrammar::Wrong(schemas::reason(&why)),
            why => why,
        };
        why.of_field("tools")
    })
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

fn name(i: usize, tool: &Value) -> Result<&str, Refusal> {
    let refused = || Refusal::invalid(format!("tools[{i}].function.name"), "expected a string");
    tool["function"]["name"].as_str().ok_or_else(refused)
}

/// The schema of a tool's arguments, as the client gave it.
fn own_schema(tool: &Value) -> Value {
    match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => json!({"type": "object"}),
    }
}

/// The schema of a tool's arguments, with the rules for writing it.
fn schema(tool: &Value) -> Value {
    let mut schema = own_schema(tool);
    with_rules(&mut schema, is_strict(tool));
    // The blanks that templates write.
    schema["x-guidance"]["item_separator"] = ", ".into();
    schema["x-guidance"]["key_separator"] = ": ".into();
    schema
}

/// The rule `call`: a call of one of the tools.
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
