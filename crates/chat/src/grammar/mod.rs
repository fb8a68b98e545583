//! Answers that are held to a JSON schema, a grammar, a regular expression, or the call of a tool, by llguidance: which tokens may come next.
//!
//! `alight run` and `alight batch` hold theirs by it, too: nothing here knows of HTTP. [`take`] reads the fields of a body, [`held`] takes what
//! an answer is [`Wanted`] to be, and [`Masks`] makes of either the constraint that an engine takes.
//!
//! Invariant: what a stranger's schema or grammar may cost is limited, in time and in memory, when it is compiled and for each token. Beyond,
//! the request fails, and no other.

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
mod marks;
#[cfg(feature = "grammar")]
mod size;

use std::sync::{Arc, OnceLock};

use alight_text::{Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

use crate::body::fields::{Fields, kind};
use crate::body::refusal::Refusal;

pub use self::beside::{Beside, Masks};
pub use self::calls::Calls;
pub use self::calls::{of_calls, of_strict_calls};
pub use self::compiler::Compiler;
use self::compiler::{Grammar, Mask};
pub use self::compiling::MAX_COMPILED;
pub use self::error::{NoGrammar, NotHeld};
use self::marks::Marks;

/// Most bytes of a schema, or of a grammar in which no expression is long; of a grammar of llguidance's; and of a regular expression. The time
/// to compile an expression grows with the square of its length.
const SCHEMA: usize = 256 << 10;
const GRAMMAR: usize = 32 << 10;
const REGEX: usize = 4096;

/// What a grammar of llama-server begins with if it is not GBNF but llguidance's Lark.
const LARK: &str = "%llguidance";

/// Calls the work that it is given, once.
pub type Waiting = fn(&mut dyn FnMut());

/// Makes what holds the answers of a model.
pub struct Grammars {
    vocabulary: &'static Vocabulary,
    waiting: Waiting,
    compiler: LazyCompiler,
}

/// The compiler for the tokens of a model, made when something is first compiled.
#[derive(Default)]
pub struct LazyCompiler(OnceLock<Result<Arc<Compiler>, NoGrammar>>);

impl LazyCompiler {
    fn get(&self, tokenizer: &Tokenizer) -> Result<&Arc<Compiler>, NoGrammar> {
        let make = || Compiler::new(tokenizer).map(Arc::new);
        self.0.get_or_init(make).as_ref().map_err(NoGrammar::clone)
    }

    /// Compiles the constraint on a whole answer, in the same tokens each time.
    ///
    /// # Errors
    /// It makes no grammar.
    pub fn held(&self, tokenizer: &Tokenizer, wanted: Wanted) -> Result<Held, NoGrammar> {
        Ok(Held(Part::Whole(compiling::compile(self.get(tokenizer)?, wanted)?)))
    }
}

impl Grammars {
    /// For a model's tokens, and the notation in which it calls tools.
    pub fn new(vocabulary: &'static Vocabulary) -> Grammars {
        Grammars { vocabulary, waiting: |work| work(), compiler: LazyCompiler::default() }
    }

    /// The same, where a thread that has to wait for a compilation calls `waiting` with the work that waits, and so can let others go on.
    pub fn waiting(self, waiting: Waiting) -> Grammars {
        Grammars { waiting, ..self }
    }

    /// Compiles what the field `param` of a request asks for.
    fn compiled(&self, param: &'static str, wanted: Wanted) -> Result<Grammar, NotHeld> {
        let grammar = self.compiler.get(&self.vocabulary.tokenizer).and_then(|compiler| {
            let (mut wanted, mut compiled) = (Some(wanted), None);
            (self.waiting)(&mut || {
                compiled = wanted.take().map(|wanted| compiling::compile(compiler, wanted));
            });
            compiled.unwrap_or(Err(NoGrammar::Failed))
        });
        grammar.map_err(|why| why.of_field(param))
    }
}

/// What of an answer is held to a grammar.
#[derive(Clone, Debug)]
pub struct Held(pub(crate) Part);

/// Which part of it.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// All of it.
    Whole(Grammar),
    /// All of it, which may be the calls of tools instead of what was asked for.
    WholeOrCalls(Grammar),
    /// What comes after some marks.
    After(Marks),
}

impl Held {
    /// Which tokens may come next; `None`: all.
    fn mask(&mut self) -> Result<Option<Mask>, Box<str>> {
        match &mut self.0 {
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) => grammar.mask().map(Some),
            Part::After(marks) => marks.mask(),
        }
    }

    /// A token has come.
    fn accept(&mut self, token: u32) {
        match &mut self.0 {
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) => grammar.accept(token),
            Part::After(marks) => marks.accept(token),
        }
    }
}

/// What follows for an answer from the constraint that it has, if it has one: the same for every front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerRules {
    /// The model may think first. No grammar has a rule for that.
    pub thinking: bool,
    /// Marks of thinking and of calls take the answer apart. An answer that a grammar has is what was asked for, whatever it looks like.
    pub marks: bool,
    /// The answer may go on after an end-of-generation token. Nothing follows the end of what a grammar has.
    pub past_end: bool,
}

impl AnswerRules {
    /// Those of an answer without a constraint.
    pub const FREE: AnswerRules = AnswerRules { thinking: true, marks: true, past_end: true };
    /// Those of an answer that a grammar has as a whole.
    pub const WHOLE: AnswerRules = AnswerRules { thinking: false, marks: false, past_end: false };

    /// Those of an answer with this constraint.
    pub fn of(held: Option<&Held>) -> AnswerRules {
        match held.map(|held| &held.0) {
            // What comes before the marks of a call is free.
            None | Some(Part::After(_)) => AnswerRules::FREE,
            Some(Part::Whole(_)) => AnswerRules::WHOLE,
            // What is JSON or a call of a tool is told apart by the marks of calls.
            Some(Part::WholeOrCalls(_)) => AnswerRules { marks: true, ..AnswerRules::WHOLE },
        }
    }
}

/// What an answer is to be held to.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// JSON that a schema has.
    Schema {
        /// An object, `true` or `false`.
        schema: Value,
        /// True if nothing is held to it if not all of it can be kept to.
        strict: bool,
    },
    /// A text of a grammar of llama.cpp's.
    Gbnf(String),
    /// A text of a grammar of llguidance's.
    Lark(String),
    /// The call of a tool, by a grammar of llguidance's that was made here.
    Calls(String),
    /// A text of a regular expression.
    Regex(String),
}

impl Wanted {
    /// JSON that the schema of this text has, as far as it can be kept to.
    ///
    /// # Errors
    /// The text is no schema.
    pub fn schema(text: &str) -> Result<Wanted, NoGrammar> {
        let schema = serde_json::from_str(text);
        Wanted::schema_of(schema.map_err(|error| NoGrammar::NotJson(error.to_string()))?)
    }

    /// The same of a schema that has been parsed.
    ///
    /// # Errors
    /// It is no schema.
    pub fn schema_of(schema: Value) -> Result<Wanted, NoGrammar> {
        let wanted = Wanted::lenient(schema);
        wanted.check()?;
        Ok(wanted)
    }

    /// A text that this regular expression matches from its beginning to its end.
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

    /// A text of this grammar, which is GBNF, or llguidance's Lark after its mark.
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

    /// Refuses what needs no compiler to be refused.
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

    /// JSON that a schema has, as far as it can be kept to.
    fn lenient(schema: Value) -> Wanted {
        Wanted::Schema { schema, strict: false }
    }

    /// How many bytes it has, and how many it may have.
    fn bytes(&self) -> (usize, usize) {
        match self {
            Wanted::Schema { schema, .. } => (schema.to_string().len(), SCHEMA),
            Wanted::Gbnf(text) | Wanted::Calls(text) => (text.len(), SCHEMA),
            Wanted::Lark(text) => (text.len(), GRAMMAR),
            Wanted::Regex(text) => (text.len(), REGEX),
        }
    }
}

/// Takes what an answer is to be held to: `response_format`, or llama-server's `json_schema` and `grammar`, or `regex`. What a tool has to be
/// called by is held to nothing else.
///
/// # Errors
/// A field asks for what is no grammar, or for what cannot be held.
pub fn take(
    fields: &mut Fields,
    calls: Calls<'_>,
    grammars: &Grammars,
) -> Result<Option<Held>, NotHeld> {
    let format = fields.object("response_format")?.map(of_format).transpose()?.flatten();
    let full = |text: &String| !text.is_empty();
    let all = [
        ("response_format", format),
        ("json_schema", fields.any("json_schema").map(Wanted::lenient)),
        ("grammar", fields.string("grammar")?.filter(full).map(of_grammar)),
        ("regex", fields.string("regex")?.filter(full).map(Wanted::Regex)),
    ];
    let mut all = all.into_iter().filter_map(|(param, wanted)| Some((param, wanted?)));
    let Some((param, wanted)) = all.next() else { return Ok(None) };
    if let Some((other, _)) = all.next() {
        let message = format!("there is {param}, too: an answer is held to one of them");
        return Err(Refusal::invalid(other, message).into());
    }
    wanted.check().map_err(|why| why.of_field(param))?;
    let wanted = match (calls, wanted) {
        (Calls::Must, _) => return Ok(None),
        (Calls::May(tools), Wanted::Schema { schema, strict }) => {
            match calls::or_schema(tools, &schema, strict, grammars.vocabulary)? {
                Some(lark) => {
                    let grammar = grammars.compiled(param, Wanted::Calls(lark))?;
                    return Ok(Some(Held(Part::WholeOrCalls(grammar))));
                }
                None => Wanted::Schema { schema, strict },
            }
        }
        (_, wanted) => wanted,
    };
    Ok(Some(Held(Part::Whole(grammars.compiled(param, wanted)?))))
}

/// How JSON of a schema is written.
fn with_rules(schema: &mut Value, strict: bool) {
    if let Some(object) = schema.as_object_mut() {
        // A small model may write blanks for ever. What llguidance does not know of a schema is left out, unless the client insists.
        let how = json!({"whitespace_flexible": false, "lenient": !strict});
        object.insert("x-guidance".to_owned(), how);
    }
}

/// A grammar of llama-server: GBNF, or Lark after its mark.
fn of_grammar(text: String) -> Wanted {
    if text.starts_with(LARK) { Wanted::Lark(text) } else { Wanted::Gbnf(text) }
}

/// What OpenAI's field asks for.
fn of_format(mut format: Map<String, Value>) -> Result<Option<Wanted>, Refusal> {
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => {
            let schema = format.shift_remove("schema");
            Ok(Some(Wanted::lenient(schema.unwrap_or_else(|| json!({"type": "object"})))))
        }
        Some("json_schema") => {
            // Others than chat completions have the same fields without an object around them.
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
