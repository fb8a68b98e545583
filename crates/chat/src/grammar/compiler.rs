//! The grammar compiler, which is llguidance: turns what an answer is [`Wanted`] to be into a [`Grammar`], and a grammar into the
//! [`Mask`] of each token.

use std::fmt;
use std::sync::Arc;

use alight_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::Value;

use super::compiling::{GrammarMemory, Tried};
use super::error::NoGrammar;
use super::{Wanted, gbnf, schemas, size, with_rules};

/// Compiles schemas and grammars for the tokens of a model.
pub struct Compiler {
    factory: ParserFactory,
    /// The token that ends an answer, and all tokens that do.
    end: u32,
    ends: Arc<[u32]>,
    tried: Tried,
}

impl Compiler {
    /// Creates a compiler for the tokens of a model.
    ///
    /// # Errors
    /// The answers of this model cannot be constrained.
    pub fn new(tokenizer: &Tokenizer) -> Result<Compiler, NoGrammar> {
        let vocab = tokenizer.vocab_size() as u32;
        let end = tokenizer.eos().or(tokenizer.ends().first().copied());
        let end = end.ok_or(NoGrammar::NoEnd)?;
        let words: Vec<Vec<u8>> = (0..vocab)
            .map(|id| {
                let mut bytes = Vec::new();
                if tokenizer.is_control(id) || tokenizer.is_end(id) {
                    // The marker keeps text from matching it.
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

    /// Creates a compiler for tokens with these bytes; `end` ends an answer, as do all of `ends`.
    fn of_words(words: &[Vec<u8>], end: u32, ends: Arc<[u32]>) -> Result<Compiler, NoGrammar> {
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens)
            .map_err(|error| NoGrammar::Tokens(error.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = 50_000;
        // JSON and programming languages need a few hundred per token; a grammar that can parse a text in very many ways reaches any limit.
        factory.limits_mut().step_max_items = 5_000;
        // An object of a thousand properties that may come in any order.
        factory.limits_mut().max_items_in_row = 5_000;
        Ok(Compiler { factory, end, ends, tried: Tried::default() })
    }

    /// Creates a compiler for tokens of one byte each, and an end token.
    #[cfg(test)]
    pub(super) fn of_bytes() -> Compiler {
        let words = (0..=255).map(|byte| vec![byte]).chain([b"\xff<end>".to_vec()]);
        let end = 256;
        Compiler::of_words(&words.collect::<Vec<_>>(), end, [end].into()).unwrap()
    }

    /// The grammars that are known to fit the limits.
    pub(super) fn tried(&self) -> &Tried {
        &self.tried
    }

    pub(super) fn compile(&self, wanted: Wanted) -> Result<Grammar, String> {
        let grammar = match wanted {
            Wanted::Schema { schema, strict } => {
                size::check(&schema)?;
                let compile = |mut part: Value| {
                    with_rules(&mut part, strict);
                    self.begin(TopLevelGrammar::from_json_schema(part))
                };
                let mut grammar = compile(schema.clone())
                    .map_err(|why| schemas::located(&schema, &why, |part| compile(part).err()))?;
                if !strict {
                    grammar.leave_out(schemas::left_out(&schema));
                }
                return Ok(grammar);
            }
            Wanted::Gbnf(text) => of_lark(gbnf::lark(&text)?)?,
            Wanted::Lark(text) | Wanted::Calls(text) => of_lark(text)?,
            Wanted::Regex(regex) => TopLevelGrammar::from_regex(&regex),
        };
        self.begin(grammar)
    }

    fn begin(&self, grammar: TopLevelGrammar) -> Result<Grammar, String> {
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| error.to_string())?;
        let mut matcher = Matcher::new(Ok(parser));
        let warnings = matcher.grammar_warnings();
        let left_out = warnings.iter().flat_map(|text| schemas::of_warning(text)).collect();
        let memory = GrammarMemory::default();
        let ends = self.ends.clone();
        let mut grammar = Grammar { matcher, end: self.end, ends, memory, left_out };
        // If no answer can begin with a grammar, the error is reported before there is an answer.
        grammar.mask().map_err(|why| {
            format!("no answer can begin with it ({})", why.lines().next().unwrap_or_default())
        })?;
        Ok(grammar)
    }
}

fn of_lark(text: String) -> Result<TopLevelGrammar, String> {
    size::check_grammar(&text)?;
    Ok(TopLevelGrammar::from_lark(text))
}

/// A grammar, and the position of a text in it.
pub(crate) struct Grammar {
    matcher: Matcher,
    end: u32,
    ends: Arc<[u32]>,
    memory: GrammarMemory,
    /// The keywords of its schemas that it does not hold.
    left_out: Arc<[String]>,
}

impl Clone for Grammar {
    fn clone(&self) -> Grammar {
        let (ends, memory) = (self.ends.clone(), self.memory.clone());
        let (matcher, left_out) = (self.matcher.deep_clone(), self.left_out.clone());
        Grammar { matcher, end: self.end, ends, memory, left_out }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

impl Grammar {
    /// Counts its memory while it is in use.
    pub(super) fn account(&mut self, memory: GrammarMemory) {
        self.memory = memory;
    }

    /// The keywords of its schemas that it does not hold.
    pub(super) fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Adds keywords that were left out before it was compiled.
    pub(super) fn leave_out(&mut self, more: Vec<String>) {
        if !more.is_empty() {
            self.left_out = self.left_out.iter().cloned().chain(more).collect();
        }
    }

    /// Its size as compiled.
    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }

    pub(super) fn mask(&mut self) -> Result<Mask, Box<str>> {
        let allowed = self.matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
        let ends = allowed.is_allowed(self.end).then(|| self.ends.clone());
        Ok(Mask { allowed, ends })
    }

    /// All tokens but those that end an answer.
    pub(super) fn free(&self) -> Option<Mask> {
        let vocab = self.matcher.tok_env().ok()?.tok_trie().vocab_size();
        let mut allowed = SimpleVob::alloc(vocab);
        allowed.set_all(true);
        self.ends
            .iter()
            .filter(|id| (**id as usize) < vocab)
            .for_each(|id| allowed.disallow_token(*id));
        Some(Mask { allowed, ends: None })
    }

    /// No token.
    pub(super) fn nothing(&self) -> Option<Mask> {
        let vocab = self.matcher.tok_env().ok()?.tok_trie().vocab_size();
        Some(Mask { allowed: SimpleVob::alloc(vocab), ends: None })
    }

    /// True if a token may come next.
    pub(super) fn takes(&mut self, token: u32) -> bool {
        self.matcher.validate_tokens(&[token]).is_ok_and(|taken| taken == 1)
    }

    /// True if a text may come next.
    pub(super) fn takes_text(&mut self, text: &[u8]) -> bool {
        let Some(tokens) = self.tokens_of(text) else { return false };
        self.matcher.validate_tokens(&tokens).is_ok_and(|taken| taken == tokens.len())
    }

    /// Returns the tokens of a text; `None` if the vocabulary cannot write it.
    fn tokens_of(&self, text: &[u8]) -> Option<Vec<u32>> {
        let env = self.matcher.tok_env().ok()?;
        let tokens = env.tokenize_bytes(text);
        (env.tok_trie().decode(&tokens) == text).then_some(tokens)
    }

    pub(super) fn accept(&mut self, token: u32) {
        // If it fails, so does the next mask.
        let _ = self.matcher.consume_token(token);
    }

    /// Advances by a text. Returns true if the grammar accepts it.
    pub(super) fn accept_text(&mut self, text: &[u8]) -> bool {
        let Some(tokens) = self.tokens_of(text) else { return false };
        self.matcher.try_consume_tokens(&tokens).is_ok_and(|n| n == tokens.len())
    }

    /// True if nothing can follow.
    pub(super) fn has_ended(&self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error()
    }
}

/// The tokens that may come next.
pub(super) struct Mask {
    pub(super) allowed: SimpleVob,
    /// The tokens that end an answer, if the answer may end here.
    ends: Option<Arc<[u32]>>,
}

impl Mask {
    /// Adds a token.
    pub(super) fn allow(&mut self, id: u32) {
        if (id as usize) < self.allowed.len() {
            self.allowed.allow_token(id);
        }
    }

    /// Sets the logits `[vocab]` of all other tokens to −∞.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        let ends = self.ends.as_deref().unwrap_or(&[]);
        for (id, logit) in logits.iter_mut().enumerate() {
            let allowed = id < self.allowed.len() && self.allowed.get(id);
            if !(allowed || ends.contains(&(id as u32))) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        // No value matches this one; it is refused before there is an answer.
        for strict in [false, true] {
            let schema = json!({"$ref": "#"});
            assert!(compiler.compile(Wanted::Schema { schema, strict }).is_err());
        }
    }

    #[test]
    fn an_error_names_the_place_in_the_schema_and_the_reason() {
        let compiler = Compiler::of_bytes();
        for (schema, wanted) in [
            (json!({"properties": {"a": {"type": "strange"}}}), "at /properties/a: "),
            (
                json!({"properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}),
                "at /properties/a: regex parse error: look-around, ",
            ),
            (
                json!({"properties": {"a": {"type": "array", "uniqueItems": true}}}),
                "at /properties/a: no answer can be held to uniqueItems",
            ),
            (
                json!({"properties": {"a": {"items": {"type": "string", "pattern": "("}}}}),
                "at /properties/a/items: ",
            ),
            (
                json!({"properties": {"a/b": {"anyOf": [{"type": "null"}, {"enum": 7}]}}}),
                "at /properties/a~1b/anyOf/1: ",
            ),
            (
                json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"required": 1}}}),
                "at /$defs/x: ",
            ),
            (json!({"type": "strange"}), "Invalid type"),
        ] {
            let wanted_schema = Wanted::Schema { schema, strict: true };
            let why = compiler.compile(wanted_schema).err().unwrap();
            println!("{why}");
            assert!(why.starts_with(wanted) && !why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn keywords_that_are_left_out_are_named() {
        let compiler = Compiler::of_bytes();
        let schema = json!({"properties": {
            "a": {"type": "array", "uniqueItems": true}, "b": {"type": "string", "pattern": "(?=x)"},
            "c": {"type": "string", "format": "password"}
        }});
        let grammar = compiler.compile(Wanted::Schema { schema, strict: false }).unwrap();
        let left_out = grammar.left_out().join("; ");
        for name in ["uniqueItems", "pattern \"(?=x)\"", "format password"] {
            assert!(left_out.contains(name), "{left_out}");
        }
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let grammar = compiler.compile(Wanted::Schema { schema, strict: false }).unwrap();
        assert_eq!(grammar.left_out(), &[] as &[String]);
    }

    #[test]
    fn references_with_escapes_are_held() {
        let compiler = Compiler::of_bytes();
        let schema = json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}});
        let mut grammar = compiler.compile(Wanted::Schema { schema, strict: true }).unwrap();
        assert!(grammar.accept_text(b"12"));
    }

    /// Each rule is twice the size of the next. A few more of them would use gigabytes.
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
            let lark =
                format!("%llguidance {{}}\nstart: A0\n{}", rules(n, ": ", |i| format!("A{i}")));
            assert_eq!(compiler.compile(Wanted::Lark(lark)).is_ok(), fits, "{n}");
        }
    }
}
