//! Answers that are held to a JSON schema, a grammar, a regular expression, or the call of a tool, by llguidance: which tokens may come next.
//!
//! `alight run` and `alight batch` hold theirs by it, too: nothing here knows of HTTP. [`take`] reads the fields of a body, [`held`] takes what
//! an answer is [`Wanted`] to be, and [`Masks`] makes of either the constraint that an engine takes.
//!
//! Invariant: what a stranger's schema or grammar may cost is limited, in time and in memory, when it is compiled and for each token. Beyond,
//! the request fails, and no other.

mod beside;
mod calls;
mod compiling;
mod error;
mod gbnf;
mod marks;
mod size;

use std::fmt;
use std::sync::{Arc, OnceLock};

use alight_text::{Tokenizer, Vocabulary};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Map, Value, json};

use crate::body::fields::{Fields, kind};
use crate::body::refusal::Refusal;

pub use self::beside::{Beside, Masks};
pub use self::calls::Calls;
pub(crate) use self::calls::{of_calls, of_strict_calls};
pub(crate) use self::compiling::MOST_COMPILED;
pub use self::error::{NoGrammar, NotHeld};
use self::marks::Marks;

/// Most bytes of a schema, or of a grammar in which no expression is long; of a grammar of llguidance's; and of a regular expression. The time
/// to compile an expression grows with the square of its length.
const SCHEMA: usize = 256 << 10;
const GRAMMAR: usize = 32 << 10;
const REGEX: usize = size::PATTERN;

/// What a grammar of llama-server begins with if it is not GBNF but llguidance's Lark.
const LARK: &str = "%llguidance";

/// Makes what holds the answers of a model.
pub struct Grammars {
    vocabulary: &'static Vocabulary,
    /// Made when it is first asked for.
    compiler: OnceLock<Result<Arc<Compiler>, NoGrammar>>,
}

impl Grammars {
    /// For a model's tokens, and the notation in which it calls tools.
    pub fn new(vocabulary: &'static Vocabulary) -> Grammars {
        Grammars { vocabulary, compiler: OnceLock::new() }
    }

    /// Compiles what the field `param` of a request asks for.
    fn compiled(&self, param: &'static str, wanted: Wanted) -> Result<Grammar, NotHeld> {
        let make = || Compiler::new(&self.vocabulary.tokenizer).map(Arc::new);
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(NoGrammar::clone);
        let grammar = compiler.and_then(|compiler| compiling::compile(compiler, wanted));
        grammar.map_err(|why| why.of_field(param))
    }
}

/// Compiles schemas and grammars for the tokens of a model.
pub struct Compiler {
    factory: ParserFactory,
    /// The token that ends an answer, and all that do.
    end: u32,
    ends: Arc<[u32]>,
}

impl Compiler {
    /// For the tokens of a model.
    ///
    /// # Errors
    /// No answer of the model can be held to anything.
    pub fn new(tokenizer: &Tokenizer) -> Result<Compiler, NoGrammar> {
        let vocab = tokenizer.vocab_size() as u32;
        let end = tokenizer.eos().or(tokenizer.ends().first().copied());
        let end = end.ok_or(NoGrammar::NoEnd)?;
        let words: Vec<Vec<u8>> = (0..vocab)
            .map(|id| {
                let mut bytes = Vec::new();
                if tokenizer.is_control(id) || tokenizer.is_end(id) {
                    // So that no text is taken for it.
                    bytes.push(TokTrie::SPECIAL_TOKEN_MARKER);
                    bytes.extend_from_slice(tokenizer.token_text(id));
                } else {
                    tokenizer.decode_bytes(id, &mut bytes);
                }
                bytes
            })
            .collect();
        Compiler::of_words(&words, end, tokenizer.ends().into())
    }

    /// For tokens of these bytes, one of which ends an answer, as do some others.
    fn of_words(words: &[Vec<u8>], end: u32, ends: Arc<[u32]>) -> Result<Compiler, NoGrammar> {
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens)
            .map_err(|error| NoGrammar::Tokens(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = 50_000;
        // JSON and programming languages need some hundreds for a token, and a grammar that can read a text in very many ways all there are.
        factory.limits_mut().step_max_items = 5_000;
        Ok(Compiler { factory, end, ends })
    }

    /// For tokens that are a byte each, and one that ends.
    #[cfg(test)]
    fn of_bytes() -> Compiler {
        let words = (0..=255).map(|byte| vec![byte]).chain([b"\xff<end>".to_vec()]);
        let end = 256;
        Compiler::of_words(&words.collect::<Vec<_>>(), end, [end].into()).unwrap()
    }

    fn compile(&self, wanted: Wanted) -> Result<Grammar, String> {
        let grammar = match wanted {
            Wanted::Schema { mut schema, strict } => {
                size::check(&schema)?;
                with_rules(&mut schema, strict);
                TopLevelGrammar::from_json_schema(schema)
            }
            Wanted::Gbnf(text) => of_lark(gbnf::lark(&text)?)?,
            Wanted::Lark(text) | Wanted::Calls(text) => of_lark(text)?,
            Wanted::Regex(regex) => TopLevelGrammar::from_regex(&regex),
        };
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| error.to_string())?;
        let matcher = Matcher::new(Ok(parser));
        let mut grammar = Grammar { matcher, end: self.end, ends: self.ends.clone() };
        // One with which no answer can begin is a mistake that is told before there is an answer.
        grammar.mask().map_err(|why| {
            format!("no answer can begin with it ({})", why.lines().next().unwrap_or_default())
        })?;
        Ok(grammar)
    }
}

/// How JSON of a schema is written.
fn with_rules(schema: &mut Value, strict: bool) {
    if let Some(object) = schema.as_object_mut() {
        // A small model may write blanks for ever. What llguidance does not know of a schema is left out, unless the client insists.
        let how = json!({"whitespace_flexible": false, "lenient": !strict});
        object.insert("x-guidance".to_owned(), how);
    }
}

fn of_lark(text: String) -> Result<TopLevelGrammar, String> {
    size::check_grammar(&text)?;
    Ok(TopLevelGrammar::from_lark(text))
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
    /// What comes behind some marks.
    Behind(Marks),
}

impl Held {
    /// Whether the answer may be calls of tools instead. The marks around a call tell it from what was asked for.
    pub fn may_call(&self) -> bool {
        matches!(self.0, Part::WholeOrCalls(_))
    }

    /// Which tokens may come next; `None`: all.
    fn mask(&mut self) -> Result<Option<Mask>, Box<str>> {
        match &mut self.0 {
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) => grammar.mask().map(Some),
            Part::Behind(marks) => marks.mask(),
        }
    }

    /// A token has come.
    fn accept(&mut self, token: u32) {
        match &mut self.0 {
            Part::Whole(grammar) | Part::WholeOrCalls(grammar) => grammar.accept(token),
            Part::Behind(marks) => marks.accept(token),
        }
    }
}

/// A grammar, and how far a text of it has come.
pub(crate) struct Grammar {
    matcher: Matcher,
    end: u32,
    ends: Arc<[u32]>,
}

impl Clone for Grammar {
    fn clone(&self) -> Grammar {
        Grammar { matcher: self.matcher.deep_clone(), end: self.end, ends: self.ends.clone() }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    fn mask(&mut self) -> Result<Mask, Box<str>> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
        let ends = allowed.is_allowed(self.end).then(|| self.ends.clone());
        Ok(Mask { allowed, ends })
    }

    fn accept(&mut self, token: u32) {
        // If it fails, so does the next mask.
        let _ = self.matcher.consume_token(token);
    }

    /// Goes on by a text. Returns whether it may begin so.
    fn accept_text(&mut self, text: &[u8]) -> bool {
        let Ok(tokens) = self.matcher.tok_env().map(|tokens| tokens.tokenize_bytes(text)) else {
            return false;
        };
        self.matcher.try_consume_tokens(&tokens).is_ok_and(|n| n == tokens.len())
    }

    /// Whether nothing can follow.
    fn has_ended(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

/// Which tokens may come next.
struct Mask {
    allowed: SimpleVob,
    /// The tokens that end an answer, if it may end here.
    ends: Option<Arc<[u32]>>,
}

impl Mask {
    /// Sets the logits `[vocab]` of all other tokens to −∞.
    fn apply(&self, logits: &mut [f32]) {
        let ends = self.ends.as_deref().unwrap_or(&[]);
        for (id, logit) in logits.iter_mut().enumerate() {
            let allowed = id < self.allowed.len() && self.allowed.get(id);
            if !(allowed || ends.contains(&(id as u32))) {
                *logit = f32::NEG_INFINITY;
            }
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
        /// Whether nothing is held to it if not all of it can be kept to.
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
        let wanted =
            Wanted::lenient(schema.map_err(|error| NoGrammar::NotJson(error.to_string()))?);
        wanted.check()?;
        Ok(wanted)
    }

    /// A text of this grammar, which is GBNF, or llguidance's Lark behind its mark.
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

/// Compiles what all of an answer is held to.
///
/// # Errors
/// It makes no grammar.
pub fn held(compiler: &Arc<Compiler>, wanted: Wanted) -> Result<Held, NoGrammar> {
    Ok(Held(Part::Whole(compiling::compile(compiler, wanted)?)))
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

/// A grammar of llama-server: GBNF, or Lark behind its mark.
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
    fn what_is_not_known_of_a_schema_is_left_out_unless_the_client_insists() {
        let compiler = Compiler::of_bytes();
        for schema in [
            json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
            json!({"type": "string", "format": "password"}),
            json!({"not": {"type": "string"}}),
            json!({"type": "object", "propertyNames": {"pattern": "^a"}}),
            json!({"type": "object", "dependentRequired": {"a": ["b"]}}),
            json!({"type": "integer", "if": {"minimum": 3}, "then": {"maximum": 5}}),
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ] {
            for strict in [false, true] {
                let held = compiler.compile(Wanted::Schema { schema: schema.clone(), strict });
                assert_eq!(held.is_err(), strict, "{schema} {:?}", held.err());
            }
        }
        // Nothing has this one; it is refused while nothing was answered.
        for strict in [false, true] {
            let schema = json!({"$ref": "#"});
            assert!(compiler.compile(Wanted::Schema { schema, strict }).is_err());
        }
    }

    /// Each rule is twice the next. With a few more, they would take gigabytes.
    #[test]
    fn rules_of_rules_are_not_too_many() {
        let compiler = Compiler::of_bytes();
        let rules = |n: usize, is: &str, name: fn(usize) -> String| {
            let twice = |i| format!("{}{is}{} {}\n", name(i), name(i + 1), name(i + 1));
            (0..n).map(twice).collect::<String>() + &format!("{}{is}\"a\"?\n", name(n))
        };
        for (n, fits) in [(4, true), (13, false), (16, false), (40, false)] {
            let gbnf = format!("root ::= r0\n{}", rules(n, " ::= ", |i| format!("r{i}")));
            assert_eq!(compiler.compile(Wanted::Gbnf(gbnf)).is_ok(), fits, "{n}");
            let lark = format!("{LARK} {{}}\nstart: A0\n{}", rules(n, ": ", |i| format!("A{i}")));
            assert_eq!(compiler.compile(Wanted::Lark(lark)).is_ok(), fits, "{n}");
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
