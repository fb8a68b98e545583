//! Tool calls, in the model's notation: answers that must be one, and answers that may contain one.

use std::time::{Duration, Instant};

use alight_text::format::Pair;
use alight_text::output::Format;
use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

use super::notation::{StartMark, Writer, mark, until};
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

/// How long the tool at fault is searched for.
const MAX_SEARCH_TIME: Duration = Duration::from_secs(5);

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

/// The writer of calls in the notation of a model; `None` if no grammar holds calls in it.
fn with_writer<T>(vocabulary: &Vocabulary, work: impl FnOnce(Option<Writer<'_>>) -> T) -> T {
    let has = |text: &str| vocabulary.template_has(text);
    let control = |text: &str| control(&vocabulary.tokenizer, text);
    work(Writer::new(vocabulary.output_format(), &has, &control))
}

/// The id of a text that is a control token.
fn control(tokenizer: &Tokenizer, text: &str) -> Option<u32> {
    tokenizer.token_id(text.as_bytes()).filter(|id| tokenizer.is_control(*id))
}

/// Returns an llguidance grammar of an answer that is JSON of a schema, or tool calls in its place; `None` if the calls of the model
/// have no marks that a grammar could begin with.
pub(super) fn or_schema(
    tools: &[Value],
    wanted: &Value,
    strict: bool,
    vocabulary: &Vocabulary,
) -> Result<Option<String>, Refusal> {
    if !wanted.is_object() {
        return Ok(None);
    }
    with_writer(vocabulary, |writer| {
        let Some(writer) = writer.filter(|writer| !writer.is_unmarked()) else { return Ok(None) };
        let mut schema = wanted.clone();
        with_rules(&mut schema, strict);
        let rules = writer.rules(tools, false)?;
        Ok(Some(format!("start: answer | calls\nanswer: %json {schema}\n{rules}")))
    })
}

/// Refuses strict tools of a model to which tools are described in words: nothing says that it will write their calls as it is asked.
fn refuse_strict_in_words(tools: &[Value], vocabulary: &Vocabulary) -> Result<(), Refusal> {
    match tools.iter().position(is_strict) {
        Some(i) if !vocabulary.shows_tools() => {
            let why = "the model's chat template does not show tools, or not in a notation that is known, so they are described to it in words, and \
                       its calls cannot be held to a schema: leave strict out, or use a model that was trained to call tools";
            Err(Refusal::unsupported(format!("tools[{i}].function.strict"), why))
        }
        _ => Ok(()),
    }
}

/// Constrains an answer to calls of these tools, in the model's own notation and perhaps after thinking; with `one`, and where tools are described
/// in words, to a single call. Where no grammar holds the notation, it is one call `{"name": …, "arguments": {…}}`, with the blanks that templates write.
pub fn of_calls(tools: &[Value], one: bool, grammars: &Grammars) -> Result<Held, NotHeld> {
    let vocabulary = grammars.vocabulary;
    refuse_strict_in_words(tools, vocabulary)?;
    let format = vocabulary.output_format();
    // A model that has not learned calls may not know when to end them.
    let one = one || format == Format::Plain;
    let known = |text: &str| control(&vocabulary.tokenizer, text);
    let tokens = format.notation().tokens;
    let own = match format {
        Format::Harmony => Some(harmony(tools, tokens, &known)?),
        format => with_writer(vocabulary, |writer| {
            let rules = writer.map(|writer| writer.rules(tools, one)).transpose()?;
            Ok::<_, Refusal>(rules.map(|rules| {
                let mut thinking = String::new();
                // Other models would never think, and must not be let begin.
                let thinks = |pair: &&Pair| {
                    let is_token =
                        |text: &str| vocabulary.tokenizer.token_id(text.as_bytes()).is_some();
                    vocabulary.template_has(pair.close) || is_token(pair.close)
                };
                let pair = format.notation().thinking.iter().find(thinks);
                let first = pair.map_or(String::new(), |pair| {
                    let until =
                        until("thought", "(?s:.*)", pair.close, (tokens, &known), &mut thinking);
                    format!("(BLANK? {} {until})? ", mark(pair.open, tokens, &known))
                });
                let end = match format.notation().end {
                    "" => String::new(),
                    end => format!(" ({})?", mark(end, tokens, &known)),
                };
                format!("start: {first}BLANK? calls{end}\n{thinking}{rules}")
            }))
        })?,
    };
    match own {
        Some(lark) => Ok(Held(Part::Calls(held(lark, tools, grammars)?))),
        None => {
            let grammar = held(format!("start: call\n{}", calls(tools)?), tools, grammars)?;
            Ok(Held(Part::Whole(grammar)))
        }
    }
}

/// A call of gpt-oss, perhaps after its analysis. The prompt ends with the role.
fn harmony(
    tools: &[Value],
    tokens: &'static [&'static str],
    known: &dyn Fn(&str) -> Option<u32>,
) -> Result<String, Refusal> {
    let text = |text: &str| mark(text, tokens, known);
    let mut lark = String::new();
    let thought = until("thought", "(?s:.*)", "<|end|>", (tokens, known), &mut lark);
    let all: Vec<String> = (0..tools.len()).map(|i| format!("call{i}")).collect();
    let mut rules = format!(
        "start: ({} {thought} {})? call\ncall: {}\n{lark}",
        text("<|channel|>analysis<|message|>"),
        text("<|start|>assistant"),
        all.join(" | ")
    );
    for (i, tool) in tools.iter().enumerate() {
        let name = name(i, tool)?;
        let channel = text(&format!(
            "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        ));
        let header = text(&format!(
            " to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"
        ));
        let schema = schema(tool);
        rules.push_str(&format!(
            "call{i}: ({channel} | {header}) args{i}\nargs{i}: %json {schema}\n"
        ));
    }
    Ok(rules)
}

/// Constrains the arguments of calls to their schemas wherever the model writes a call, and leaves the rest of its answer free;
/// `None` if no tool is strict.
pub fn of_strict_calls(tools: &[Value], grammars: &Grammars) -> Result<Option<Held>, NotHeld> {
    if !tools.iter().any(is_strict) {
        return Ok(None);
    }
    refuse_strict_in_words(tools, grammars.vocabulary)?;
    // Each may be compiled separately.
    let bytes: usize = tools.iter().map(|tool| schema(tool).to_string().len()).sum();
    if bytes > SCHEMA {
        let message = format!("their schemas have {bytes} bytes, expected at most {SCHEMA}");
        return Err(Refusal::invalid("tools", message).into());
    }
    let vocabulary = grammars.vocabulary;
    let format = vocabulary.output_format();
    let marks = match format {
        Format::Harmony => {
            let mut marks = Vec::new();
            for (i, tool) in tools.iter().enumerate() {
                let lark = format!("start: args\nargs: %json {}", schema(tool));
                let (name, of) = (name(i, tool)?, held(lark, tools, grammars)?);
                let mark = |between| StartMark {
                    text: format!("to=functions.{name}{between}<|message|>"),
                    start: String::new(),
                    begins_line: false,
                };
                marks.extend(HARMONY.map(|between| (mark(between), of.clone())));
            }
            marks
        }
        _ => {
            let written = with_writer(vocabulary, |writer| {
                let rules = writer.map(|writer| {
                    let (marks, rules) = (writer.marks(tools)?, writer.rules(tools, false)?);
                    Ok((marks, format!("{rules}{}", writer.unmarked_rules(tools))))
                });
                rules.transpose()
            });
            let Some((marks, rules)) = written.map_err(|refusal: Refusal| refusal)? else {
                return Ok(None);
            };
            // Several marks share a rule.
            let mut compiled: Vec<(String, Grammar)> = Vec::new();
            let mut all = Vec::new();
            for mark in marks {
                let known = compiled.iter().find(|(start, _)| *start == mark.start);
                let grammar = match known {
                    Some((_, grammar)) => grammar.clone(),
                    None => {
                        let lark = format!("start: {}\n{rules}", mark.start);
                        let grammar = held(lark, tools, grammars)?;
                        compiled.push((mark.start.clone(), grammar.clone()));
                        grammar
                    }
                };
                all.push((mark, grammar));
            }
            all
        }
    };
    let marks = Marks::new(marks, format.notation(), &vocabulary.tokenizer);
    Ok(Some(Held(Part::After(marks))))
}

/// Compiles the grammar of [`or_schema`]. If it fails, the error is about the schema or about a tool, whichever is at fault.
pub(super) fn or_schema_held(
    lark: String,
    (schema, strict): (&Value, bool),
    tools: &[Value],
    param: &str,
    grammars: &Grammars,
) -> Result<Grammar, NotHeld> {
    match grammars.compile(Wanted::Calls(lark.clone())) {
        Ok(grammar) => Ok(grammar),
        Err(NoGrammar::Wrong(_)) => {
            grammars.compiled(param, Wanted::Schema { schema: schema.clone(), strict })?;
            held(lark, tools, grammars)
        }
        Err(why) => Err(why.of_field(param)),
    }
}

/// Compiles a grammar of calls. If it fails, the error names the tool that is at fault.
fn held(lark: String, tools: &[Value], grammars: &Grammars) -> Result<Grammar, NotHeld> {
    let patterns = tools.iter().filter(|tool| !is_strict(tool));
    let patterns = patterns.flat_map(|tool| schemas::left_out(&own_schema(tool))).collect();
    let compiled = grammars.compile(Wanted::Calls(lark));
    let compiled = compiled.map(|mut grammar| {
        grammar.leave_out(patterns);
        grammar
    });
    compiled.map_err(|why| {
        // A grammar that is too slow or too large is not compiled again.
        if matches!(why, NoGrammar::Wrong(_)) {
            let begun = Instant::now();
            for (i, tool) in tools.iter().enumerate() {
                if begun.elapsed() > MAX_SEARCH_TIME {
                    break;
                }
                let (schema, strict) = (own_schema(tool), is_strict(tool));
                if let Err(why) = grammars.compile(Wanted::Schema { schema, strict }) {
                    return why.of_field(&format!("tools[{i}].function.parameters"));
                }
            }
        }
        let why = match why {
            NoGrammar::Wrong(why) => NoGrammar::Wrong(schemas::in_words(schemas::reason(&why))),
            why => why,
        };
        why.of_field("tools")
    })
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

pub(super) fn name(i: usize, tool: &Value) -> Result<&str, Refusal> {
    let refused = || Refusal::invalid(format!("tools[{i}].function.name"), "expected a string");
    tool["function"]["name"].as_str().ok_or_else(refused)
}

/// The schema of a tool's arguments, as the client gave it.
pub(super) fn own_schema(tool: &Value) -> Value {
    match &tool["function"]["parameters"] {
        Value::Object(schema) if !schema.is_empty() => Value::Object(schema.clone()),
        _ => json!({"type": "object"}),
    }
}

/// The schema of a tool's arguments, with the rules for writing it.
pub(super) fn schema(tool: &Value) -> Value {
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
