//! Answers constrained to a JSON schema, a grammar, a regular expression, or a tool call, by llguidance, which determines the tokens
//! that may come next.
//!
//! `alight run` and `alight batch` use it, too: nothing here depends on HTTP. [`take`] reads the fields of a body, [`held`] takes a
//! [`Wanted`], and [`Masks`] turns the result of either into the constraint for an engine.
//!
//! Invariant: the cost of an untrusted schema or grammar is limited, in time and memory, when it is compiled and for each token.
//! Beyond the limit, that request fails, and no other.

mod beside;
mod calls;
#[cfg(feature = "grammar")]
mod compiler;
#[cfg(not(feature = "grammar"))]
#[path = "no_compiler.rs"]
mod compiler;
mod compiling;
mod error;
#[cfg(feature = "grammar")]
mod gbnf;
mod inputs;
mod lark;
mod marks;
mod notation;
mod schemas;
#[cfg(feature = "grammar")]
mod size;
mod thought;
mod tree;
mod trial;
mod vllm;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use alight_text::output::opened_thinking;
use alight_text::{Style, Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

use crate::body::fields::{Fields, kind};
use crate::body::refusal::Refusal;
use crate::thinking::VocabularyHandle;

pub use self::beside::{Beside, Masks};
pub use self::calls::Calls;
pub use self::calls::{of_calls, of_strict_calls};
pub use self::compiler::Compiler;
use self::compiler::{Grammar, Mask};
pub use self::compiling::{Cancelled, MAX_COMPILED, MAX_GRAMMAR_MEMORY};
pub use self::error::{NoGrammar, NotHeld};
pub use self::inputs::CustomInputs;
use self::marks::Marks;
use self::thought::Thought;

/// Maximum bytes of a schema or of a grammar without long expressions, of an llguidance grammar, and of a regular expression. The
/// time to compile an expression grows with the square of its length.
const SCHEMA: usize = 256 << 10;
const GRAMMAR: usize = 32 << 10;
const REGEX: usize = 4096;

/// The prefix that marks a grammar for llama-server as llguidance's Lark instead of GBNF.
const LARK: &str = "%llguidance";

/// A function that calls the given work once.
pub type Waiting = fn(&mut dyn FnMut());

/// Builds the constraints for the answers of a model.
pub struct Grammars {
    vocabulary: &'static Vocabulary,
    waiting: Waiting,
    cancelled: Cancelled,
    compiler: LazyCompiler,
}

/// The compiler for the tokens of a model, created on first use.
#[derive(Default)]
pub struct LazyCompiler(OnceLock<Result<Arc<Compiler>, NoGrammar>>);

impl LazyCompiler {
    fn get(&self, tokenizer: &Tokenizer) -> Result<&Arc<Compiler>, NoGrammar> {
        let make = || Compiler::new(tokenizer).map(Arc::new);
        self.0.get_or_init(make).as_ref().map_err(NoGrammar::clone)
    }

    /// Compiles the constraint on a whole answer, always for the same tokens.
    ///
    /// # Errors
    /// The grammar cannot be built.
    pub fn held(&self, tokenizer: &Tokenizer, wanted: Wanted) -> Result<Held, NoGrammar> {
        Ok(Held(Part::Whole(compiling::compile(self.get(tokenizer)?, wanted, || false)?)))
    }
}

impl Grammars {
    /// Creates it for a model's tokens and its notation for tool calls.
    pub fn new(vocabulary: &'static Vocabulary) -> Grammars {
        Grammars {
            vocabulary,
            waiting: |work| work(),
            cancelled: || false,
            compiler: LazyCompiler::default(),
        }
    }

    /// The same, but a thread that has to wait for a compilation passes the waiting work to `waiting`, which can let others proceed.
    pub fn waiting(self, waiting: Waiting) -> Grammars {
        Grammars { waiting, ..self }
    }

    /// The same, where a compilation is ended once `cancelled` returns true on the thread that waits for it.
    pub fn until(self, cancelled: Cancelled) -> Grammars {
        Grammars { cancelled, ..self }
    }

    /// Compiles the grammar that the field `param` of a request requests.
    fn compiled(&self, param: &str, wanted: Wanted) -> Result<Grammar, NotHeld> {
        self.compile(wanted).map_err(|why| why.of_field(param))
    }

    fn compile(&self, wanted: Wanted) -> Result<Grammar, NoGrammar> {
        self.compiler.get(&self.vocabulary.tokenizer).and_then(|compiler| {
            let (mut wanted, mut compiled) = (Some(wanted), None);
            (self.waiting)(&mut || {
                compiled = wanted
                    .take()
                    .map(|wanted| compiling::compile(compiler, wanted, self.cancelled));
            });
            compiled.unwrap_or(Err(NoGrammar::Failed))
        })
    }
}

/// The constraint on an answer.
#[derive(Clone, Debug)]
pub struct Held(pub(crate) Part);

/// The part of the answer that is constrained.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// The whole answer.
    Whole(Grammar),
    /// The whole answer, which may be tool calls instead of the requested JSON.
    WholeOrCalls(Grammar),
    /// The whole answer, which must be tool calls in the model's own notation.
    Calls(Grammar),
    /// The text after certain markers.
    After(Marks),
    /// An answer that begins in thinking, and what follows it.
    AfterThinking(Thought, Grammar),
}

impl Held {
    /// The size of its grammars as compiled. Every copy takes as much.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Part::Whole(grammar)
            | Part::WholeOrCalls(grammar)
            | Part::Calls(grammar)
            | Part::AfterThinking(_, grammar) => grammar.bytes(),
            Part::After(marks) => marks.bytes(),
        }
    }

    /// The keywords of schemas that are not held, each once: those that no grammar can hold, where the client does not insist on them.
    pub fn left_out(&self) -> Vec<String> {
        let mut all: Vec<String> = match &self.0 {
            Part::Whole(grammar)
            | Part::WholeOrCalls(grammar)
            | Part::Calls(grammar)
            | Part::AfterThinking(_, grammar) => grammar.left_out().to_vec(),
            Part::After(marks) => marks.left_out().cloned().collect(),
        };
        all.sort();
        all.dedup();
        all
    }

    /// The same constraint for the answer to this prompt: if the prompt has opened thinking, the answer is free up to its end.
    fn after(self, prompt: &[u32], vocabulary: VocabularyHandle) -> Held {
        let (format, tokenizer) = (vocabulary.output_format(), &vocabulary.tokenizer);
        let Some(pair) = opened_thinking(format, tokenizer, prompt) else { return self };
        let notation = format.notation();
        // A mark may be built of tokens.
        let written = |open: &str| {
            let mut parts = notation.tokens.iter().filter(|part| open.contains(**part));
            vocabulary.template_has(open)
                || tokenizer.token_id(open.as_bytes()).is_some()
                || parts.any(|part| tokenizer.token_id(part.as_bytes()).is_some())
        };
        let opens = notation.answer.iter().filter(|pair| !pair.close.is_empty());
        let opens = opens.map(|pair| pair.open).filter(|open| written(open));
        let opens: Vec<&str> = opens.collect();
        self.after_thinking(Thought::new(pair.close, opens.into_iter(), vocabulary))
    }

    fn after_thinking(self, thought: Thought) -> Held {
        Held(match self.0 {
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) | Part::Calls(grammar) => {
                Part::AfterThinking(thought, grammar)
            }
            Part::After(marks) => Part::After(marks.in_thinking(thought.close())),
            part @ Part::AfterThinking(..) => part,
        })
    }

    /// The tokens that may come next; `None` if all may.
    fn mask(&mut self) -> Result<Option<Mask>, Box<str>> {
        match &mut self.0 {
            Part::AfterThinking(thought, grammar) => thought.mask(grammar),
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) | Part::Calls(grammar) => {
                grammar.mask().map(Some)
            }
            Part::After(marks) => marks.mask(),
        }
    }

    /// Accepts a chosen token.
    fn accept(&mut self, token: u32) {
        match &mut self.0 {
            Part::AfterThinking(thought, grammar) => thought.accept(token, grammar),
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) | Part::Calls(grammar) => {
                grammar.accept(token);
            }
            Part::After(marks) => marks.accept(token),
        }
    }
}

/// The rules that follow for an answer from its constraint, if it has one: the same for every frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRules {
    /// The model may think first. No grammar has a rule for thinking.
    pub thinking: bool,
    /// Markers of thinking and of calls divide the answer. An answer with a grammar is the requested text, whatever it looks like.
    pub marks: bool,
    /// The answer may continue after an end-of-generation token. Nothing follows the end of a grammar.
    pub past_end: bool,
}

impl AnswerRules {
    /// The rules for an answer without a constraint.
    pub const FREE: AnswerRules = AnswerRules { thinking: true, marks: true, past_end: true };
    /// The rules for an answer that is held to a grammar as a whole.
    pub const WHOLE: AnswerRules = AnswerRules { thinking: false, marks: false, past_end: false };

    /// The rules for an answer with this constraint.
    pub fn of(held: Option<&Held>) -> AnswerRules {
        match held.map(|held| &held.0) {
            // The text before the markers of a call is free.
            None | Some(Part::After(_)) => AnswerRules::FREE,
            Some(Part::Whole(_)) => AnswerRules::WHOLE,
            // The markers of calls distinguish JSON from a tool call.
            Some(Part::WholeOrCalls(_)) => AnswerRules { marks: true, ..AnswerRules::WHOLE },
            Some(Part::Calls(_) | Part::AfterThinking(..)) => {
                AnswerRules { past_end: false, ..AnswerRules::FREE }
            }
        }
    }
}

/// The constraint of the answer to a certain prompt, and the rules that follow from it.
#[derive(Clone, Debug)]
pub struct PromptConstraint {
    /// The constraint. Where the prompt of a conversation has opened thinking, it begins where that ends; a text that is continued
    /// has no thinking.
    pub held: Option<Held>,
    /// The rules.
    pub rules: AnswerRules,
}

impl PromptConstraint {
    /// Fits a constraint to the prompt.
    pub fn new(
        held: Option<Held>,
        style: Style,
        prompt: &[u32],
        vocabulary: impl Into<VocabularyHandle>,
    ) -> PromptConstraint {
        let held = held.map(|held| match style {
            Style::Chat => held.after(prompt, vocabulary.into()),
            Style::Raw => held,
        });
        let rules = AnswerRules::of(held.as_ref());
        PromptConstraint { held, rules }
    }

    /// How the answer is divided: as its prompt, unless the answer is one text.
    pub fn style(&self, style: Style) -> Style {
        if self.rules.marks { style } else { Style::Raw }
    }
}

/// The requested constraint on an answer.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// JSON that matches a schema.
    Schema {
        /// An object, `true` or `false`.
        schema: Value,
        /// True to fail if llguidance does not support every part of the schema.
        strict: bool,
    },
    /// A text that matches a llama.cpp grammar.
    Gbnf(String),
    /// A text that matches an llguidance grammar.
    Lark(String),
    /// A tool call, by an llguidance grammar that was built here.
    Calls(String),
    /// A text that matches a regular expression.
    Regex(String),
}

impl Wanted {
    /// JSON that matches the schema in this text, as far as llguidance supports it.
    ///
    /// # Errors
    /// The text is not a schema.
    pub fn schema(text: &str) -> Result<Wanted, NoGrammar> {
        let schema = serde_json::from_str(text);
        Wanted::schema_of(schema.map_err(|error| NoGrammar::NotJson(error.to_string()))?)
    }

    /// The same, for a parsed schema.
    ///
    /// # Errors
    /// It is not a schema.
    pub fn schema_of(schema: Value) -> Result<Wanted, NoGrammar> {
        let wanted = Wanted::lenient(schema);
        wanted.check()?;
        Ok(wanted)
    }

    /// A text that this regular expression matches from beginning to end.
    ///
    /// # Errors
    /// The expression is empty, or too long.
    pub fn regex(text: String) -> Result<Wanted, NoGrammar> {
        if text.is_empty() {
            return Err(NoGrammar::Wrong("the regular expression is empty".to_owned()));
        }
        let wanted = Wanted::Regex(text);
        wanted.check()?;
        Ok(wanted)
    }

    /// A text that matches this grammar, which is GBNF, or llguidance's Lark after its prefix.
    ///
    /// # Errors
    /// The text is empty, or too long.
    pub fn grammar(text: String) -> Result<Wanted, NoGrammar> {
        if text.trim().is_empty() {
            return Err(NoGrammar::Empty);
        }
        let wanted = of_grammar(text);
        wanted.check()?;
        Ok(wanted)
    }

    /// The field of a body that requests it, and the value of that: see [`take`].
    pub fn field(&self) -> (&'static str, Value) {
        match self {
            Wanted::Schema { schema, strict: false } => ("json_schema", schema.clone()),
            Wanted::Schema { schema, strict: true } => {
                let named = json!({"strict": true, "schema": schema});
                ("response_format", json!({"type": "json_schema", "json_schema": named}))
            }
            Wanted::Gbnf(text) => ("grammar", text.as_str().into()),
            Wanted::Lark(text) | Wanted::Calls(text) if text.starts_with(LARK) => {
                ("grammar", text.as_str().into())
            }
            Wanted::Lark(text) | Wanted::Calls(text) => {
                ("grammar", format!("{LARK} {{}}\n{text}").into())
            }
            Wanted::Regex(text) => ("regex", text.as_str().into()),
        }
    }

    /// Refuses everything that can be refused without a compiler.
    fn check(&self) -> Result<(), NoGrammar> {
        let (bytes, most) = self.bytes();
        if bytes > most {
            return Err(NoGrammar::TooLong { bytes, most });
        }
        match self {
            Wanted::Schema { schema, .. } if !(schema.is_object() || schema.is_boolean()) => {
                Err(NoGrammar::NoSchema(kind(schema)))
            }
            _ => Ok(()),
        }
    }

    /// JSON that matches a schema, as far as llguidance supports it.
    fn lenient(schema: Value) -> Wanted {
        Wanted::Schema { schema, strict: false }
    }

    /// As text.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Wanted::Schema { schema, .. } => schema.to_string().into(),
            Wanted::Gbnf(text) | Wanted::Calls(text) | Wanted::Lark(text) | Wanted::Regex(text) => {
                text.into()
            }
        }
    }

    fn is_strict(&self) -> bool {
        matches!(self, Wanted::Schema { strict: true, .. })
    }

    /// The bytes of its text, and the maximum.
    fn bytes(&self) -> (usize, usize) {
        let most = match self {
            Wanted::Schema { .. } | Wanted::Gbnf(_) | Wanted::Calls(_) => SCHEMA,
            Wanted::Lark(_) => GRAMMAR,
            Wanted::Regex(_) => REGEX,
        };
        (self.text().len(), most)
    }
}

/// Takes the constraint on an answer: `response_format`, or llama-server's `json_schema` and `grammar`, or `regex`, or vLLM's fields. An answer that
/// must be a tool call gets no other constraint.
///
/// # Errors
/// A field has an invalid grammar, or one that cannot be used.
pub fn take(
    fields: &mut Fields,
    calls: Calls<'_>,
    grammars: &Grammars,
) -> Result<Option<Held>, NotHeld> {
    match requested(fields)? {
        Some((param, wanted)) => hold(&param, wanted, calls, grammars),
        None => Ok(None),
    }
}

/// Takes the constraint that a body requests, with the name of its field, without compiling it.
///
/// # Errors
/// There are several, or one that is refused without a compiler.
pub fn requested(fields: &mut Fields) -> Result<Option<(String, Wanted)>, NotHeld> {
    let format = fields.object("response_format")?.map(of_format).transpose()?.flatten();
    let full = |text: &String| !text.is_empty();
    let own = [
        ("response_format", format),
        ("json_schema", fields.any("json_schema").map(Wanted::lenient)),
        ("grammar", fields.string("grammar")?.filter(full).map(of_grammar)),
        ("regex", fields.string("regex")?.filter(full).map(Wanted::Regex)),
    ];
    let own = own.into_iter().filter_map(|(param, wanted)| Some((param.to_owned(), wanted?)));
    let mut all = own.chain(vllm::take(fields)?);
    let Some((param, wanted)) = all.next() else { return Ok(None) };
    if let Some((other, _)) = all.next() {
        let message = format!("there is {param}, too: an answer is held to one of them");
        return Err(Refusal::invalid(other, message).into());
    }
    wanted.check().map_err(|why| why.of_field(&param))?;
    Ok(Some((param, wanted)))
}

/// Compiles the constraint that the field `param` requests, for an answer that may have these calls.
///
/// # Errors
/// As [`take`].
pub fn hold(
    param: &str,
    wanted: Wanted,
    calls: Calls<'_>,
    grammars: &Grammars,
) -> Result<Option<Held>, NotHeld> {
    let wanted = match (calls, wanted) {
        (Calls::Must, _) => return Ok(None),
        (Calls::May(tools), Wanted::Schema { schema, strict }) => {
            match calls::or_schema(tools, &schema, strict, grammars.vocabulary)? {
                Some(lark) => {
                    let grammar =
                        calls::or_schema_held(lark, (&schema, strict), tools, param, grammars)?;
                    return Ok(Some(Held(Part::WholeOrCalls(grammar))));
                }
                None => Wanted::Schema { schema, strict },
            }
        }
        (_, wanted) => wanted,
    };
    Ok(Some(Held(Part::Whole(grammars.compiled(param, wanted)?))))
}

/// Sets the rules for writing JSON of a schema.
fn with_rules(schema: &mut Value, strict: bool) {
    schemas::prepare(schema, strict);
    if let Some(object) = schema.as_object_mut() {
        // A small model may write blanks forever. Parts of a schema that llguidance does not support are ignored, unless the client insists.
        let how = json!({"whitespace_flexible": false, "lenient": !strict});
        object.insert("x-guidance".to_owned(), how);
    }
}

/// A grammar in llama-server's format: GBNF, or Lark after its prefix.
fn of_grammar(text: String) -> Wanted {
    if text.starts_with(LARK) { Wanted::Lark(text) } else { Wanted::Gbnf(text) }
}

/// Returns the constraint that OpenAI's field requests.
fn of_format(mut format: Map<String, Value>) -> Result<Option<Wanted>, Refusal> {
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => {
            let schema = format.shift_remove("schema");
            Ok(Some(Wanted::lenient(schema.unwrap_or_else(|| json!({"type": "object"})))))
        }
        Some("json_schema") => {
            // APIs other than chat completions have the same fields without the enclosing object.
            let mut named = format.shift_remove("json_schema").unwrap_or(format.into());
            let strict = named["strict"] == true;
            let schema = named.get_mut("schema").map(Value::take);
            let missing =
                || Refusal::invalid("response_format.json_schema.schema", "it is missing");
            Ok(Some(Wanted::Schema { schema: schema.ok_or_else(missing)?, strict }))
        }
        _ => {
            let message = "expected a type of \"text\", \"json_object\" or \"json_schema\"";
            Err(Refusal::invalid("response_format", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constraint_is_the_field_that_requests_it() {
        for body in [
            json!({"json_schema": {"type": "string"}}),
            json!({"response_format": {"type": "json_object"}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"strict": true, "schema": {}}}}),
            json!({"grammar": "root ::= \"a\""}),
            json!({"grammar": "%llguidance {}\nstart: \"a\""}),
            json!({"regex": "a+"}),
            json!({"guided_choice": ["a", "b"]}),
        ] {
            let taken = |body: &Value| {
                let mut fields = Fields::new(body.as_object().unwrap().clone());
                let Ok(Some((_, wanted))) = requested(&mut fields) else { panic!("{body}") };
                wanted
            };
            let (name, value) = taken(&body).field();
            let again = taken(&json!({name: value}));
            assert_eq!(again.field(), (name, value), "{body}");
            assert_eq!(again.is_strict(), taken(&body).is_strict(), "{body}");
            let text = taken(&body).text().into_owned();
            assert!(again.text().ends_with(&text), "{body}: {}", again.text());
        }
    }

    #[test]
    fn a_schema_is_strict_where_its_client_says_so() {
        let schema = json!({"type": "string"});
        for (format, wanted) in [
            (json!({"json_schema": {"schema": schema}}), false),
            (json!({"json_schema": {"schema": schema, "strict": true}}), true),
            (json!({"schema": schema}), false),
            (json!({"schema": schema, "strict": true}), true),
        ] {
            let mut format = format.as_object().unwrap().clone();
            format.insert("type".to_owned(), "json_schema".into());
            match of_format(format.clone()).unwrap() {
                Some(Wanted::Schema { schema: got, strict }) => {
                    assert_eq!((got, strict), (schema.clone(), wanted), "{format:?}");
                }
                _ => panic!("{format:?}"),
            }
        }
    }
}
