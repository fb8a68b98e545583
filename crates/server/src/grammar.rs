//! Answers that are held to a JSON schema, by llguidance: which tokens may come next.
//!
//! Invariant: what a stranger's schema may cost is limited, in time and in memory, when it is compiled and for each token. Beyond,
//! the request fails, and no other.

use std::fmt;
use std::sync::Arc;

use alight_model::Constraint;
use alight_text::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::body::fields::Fields;
use crate::body::refusal::Refusal;
use crate::failure::Failure;
use crate::models::Serving;

/// Most bytes of a schema.
const SCHEMA: usize = 256 << 10;

/// Compiles schemas for the tokens of a model.
pub(crate) struct Compiler {
    factory: ParserFactory,
    /// The token that ends an answer, and all that do.
    end: u32,
    ends: Arc<[u32]>,
}

impl Compiler {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Result<Compiler, String> {
        let vocab = tokenizer.vocab_size() as u32;
        let end = tokenizer.eos().or(tokenizer.ends().first().copied());
        let end = end.ok_or("the model has no token that ends an answer")?;
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
        let trie = TokTrie::from(&TokRxInfo::new(vocab, end), &words);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&tokens).map_err(|e| e.to_string())?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        factory.limits_mut().max_lexer_states = 50_000;
        Ok(Compiler { factory, end, ends: tokenizer.ends().into() })
    }

    fn schema(&self, mut schema: Value) -> Result<Grammar, String> {
        if let Some(object) = schema.as_object_mut() {
            // A small model may write blanks for ever.
            object.insert("x-guidance".to_owned(), json!({"whitespace_flexible": false}));
        }
        let parser = self.factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let parser = parser.map_err(|error| error.to_string())?;
        Ok(Grammar { matcher: Matcher::new(Ok(parser)), end: self.end, ends: self.ends.clone() })
    }
}

/// What an answer is held to, and how far it is.
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

impl Constraint for Grammar {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| e.to_string())?;
        let may_end = mask.is_allowed(self.end);
        for (id, logit) in logits.iter_mut().enumerate() {
            let allowed = id < mask.len() && mask.get(id);
            if !(allowed || may_end && self.ends.contains(&(id as u32))) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        // If it fails, so does the next mask.
        let _ = self.matcher.consume_token(token);
    }
}

/// Takes what an answer is to be held to: `response_format`, or llama-server's `json_schema`.
pub(crate) fn take(fields: &mut Fields, serving: &Serving) -> Result<Option<Grammar>, Failure> {
    let none = |value: &Value| *value == json!("");
    fields.only("grammar", none, "a JSON schema is taken, as response_format or json_schema")?;
    let (param, schema) = match fields.object("response_format")? {
        None => ("json_schema", fields.any("json_schema")),
        Some(mut format) => {
            let param = "response_format";
            match format.get("type").and_then(Value::as_str) {
                Some("text") => (param, None),
                Some("json_object") => {
                    let schema = format.shift_remove("schema");
                    (param, Some(schema.unwrap_or_else(|| json!({"type": "object"}))))
                }
                Some("json_schema") => {
                    let named =
                        format.get_mut("json_schema").and_then(|named| named.get_mut("schema"));
                    let schema = named.map(Value::take).or(format.shift_remove("schema"));
                    let missing =
                        || Refusal::invalid("response_format.json_schema.schema", "it is missing");
                    (param, Some(schema.ok_or_else(missing)?))
                }
                _ => {
                    let message = "expected a type of \"text\", \"json_object\" or \"json_schema\"";
                    return Err(Refusal::invalid(param, message).into());
                }
            }
        }
    };
    let Some(schema) = schema else { return Ok(None) };
    if !(schema.is_object() || schema.is_boolean()) {
        return Err(Refusal::invalid(param, "the schema is not an object").into());
    }
    let bytes = schema.to_string().len();
    if bytes > SCHEMA {
        let message = format!("the schema has {bytes} bytes, expected at most {SCHEMA}");
        return Err(Refusal::invalid(param, message).into());
    }
    let compiler = serving.compiler().map_err(|why| Refusal::unsupported(param, why))?;
    let grammar = compiler.schema(schema);
    Ok(Some(grammar.map_err(|why| Refusal::invalid(param, format!("it makes no grammar: {why}")))?))
}
