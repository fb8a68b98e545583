//! Reads records. One may come from anybody, so every field is checked before anything is computed: numbers against their limits,
//! tokens against the vocabulary, lengths against the context. The text has been parsed within a
//! [`JsonBudget`](alight_chat::body::json::JsonBudget).

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use alight_chat::body::thinking::BUDGET;
use alight_chat::grammar::{AnswerRules, Calls, Grammars, NotHeld, PromptConstraint};
use alight_chat::thinking::ThinkingBudget;
use alight_chat::worker::GenerateRequest;
use alight_model::{KvType, MAX_CONTEXT, Precision, Request, SamplerOptions};
use alight_text::output::{Format, Tools};
use alight_text::{Style, Vocabulary};
use serde_json::{Map, Value};

use super::request::{AFTER_THINKING, TOOL_FORMAT, TOOLS};
use super::{FORMAT, PRECISIONS, Program, RecordedAdapter, RecordedFinish, RecordedModel, bits};
use crate::body_options::{BodyOptions, OptionDefaults, token_ids};

/// Where a record has its notation.
const NAME: &str = "request.tool_format";

/// A record that was read. What is missing in it is `None`, or empty, unless an answer cannot be computed without it.
#[derive(Debug)]
pub struct ReadRecord {
    pub program: Program,
    pub model: RecordedModel,
    pub isa: Option<String>,
    pub context: usize,
    pub prompt_precision: Precision,
    pub cache_type: KvType,
    pub lora: Vec<RecordedAdapter>,
    request: Map<String, Value>,
    pub finish: RecordedFinish,
    /// The tokens of the answer.
    pub tokens: Vec<u32>,
}

/// The content of a line.
pub enum FoundRecord {
    /// A record.
    Record(Box<ReadRecord>),
    /// The result of a line of a batch that has no answer.
    Failed,
}

/// Reads an adapter of a record.
fn adapter(value: Value) -> Result<RecordedAdapter, Refusal> {
    let wrong = |message: String| Refusal::invalid("lora", message);
    let Value::Object(object) = value else {
        return Err(wrong(format!("it has {}, expected objects", kind(&value))));
    };
    let mut fields = Fields::new(object);
    let scale = fields.read("scale", "a finite number", |value| {
        Some(value.as_f64()? as f32).filter(|scale| scale.is_finite())
    })?;
    Ok(RecordedAdapter {
        name: fields.string("name")?.unwrap_or_default(),
        hash: required(fields.string("hash")?, "hash")?,
        scale: required(scale, "scale")?,
    })
}

impl ReadRecord {
    /// Returns the record in this value: that of a line that this program writes, or the value itself.
    ///
    /// # Errors
    /// There is none, or a field of it is invalid.
    pub fn find(value: Value) -> Result<FoundRecord, Refusal> {
        const NONE: &str =
            "there is no record in it: `alight run --json` and `alight batch --record` write one";
        let Value::Object(object) = value else {
            let message = format!("it is {}, expected an object with a record", kind(&value));
            return Err(Refusal::new("invalid_request", message));
        };
        let failed = object.get("error").is_some_and(|error| !error.is_null());
        let mut fields = Fields::new(object);
        let record = match fields.object("record")? {
            Some(record) => Fields::new(record),
            None if failed => return Ok(FoundRecord::Failed),
            None if fields.has("format") && fields.has("request") => fields,
            None => return Err(Refusal::new("invalid_request", NONE)),
        };
        ReadRecord::of(record).map(|record| FoundRecord::Record(Box::new(record)))
    }

    /// Returns the notation that the record in this value names, if it names one.
    pub fn tool_format_in(value: &Value) -> Option<Format> {
        let record = value.get("record").unwrap_or(value);
        Format::named(record.get("request")?.get(TOOL_FORMAT)?.as_str()?)
    }

    fn of(mut fields: Fields) -> Result<ReadRecord, Refusal> {
        let format = required(fields.count("format")?, "format")? as u64;
        if format != FORMAT {
            let message = format!(
                "it is {format}, expected {FORMAT}: replay it with the version of alight that wrote it"
            );
            return Err(Refusal::unsupported("format", message));
        }
        let program = Program {
            alight: fields.string("alight")?.unwrap_or_default(),
            commit: fields.string("commit")?.unwrap_or_default(),
            arithmetic: fields.count("arithmetic")?.unwrap_or_default() as u64,
        };
        let model = inner(&mut fields, "model", |fields| {
            Ok(RecordedModel {
                name: fields.string("name")?.unwrap_or_default(),
                architecture: fields.string("architecture")?,
                main_type: fields.string("type")?,
                hash: fields.string("hash")?,
            })
        })?;
        let (context, prompt_precision, cache_type, isa) =
            inner(&mut fields, "computed", |fields| {
                let context = required(fields.count("context")?, "context")?;
                if !(1..=MAX_CONTEXT).contains(&context) {
                    let message = format!("it is {context}, expected 1 to {MAX_CONTEXT}");
                    return Err(Refusal::invalid("context", message));
                }
                let named = |name: String| {
                    KvType::CHOICES.into_iter().find(|cache_type| cache_type.to_string() == name)
                };
                let cache_type = fields.read("cache_type", "f16, q8_0 or q4r", |value| {
                    named(value.as_str()?.to_owned())
                })?;
                let precision = fields.read("prompt_precision", "8 or 16", |value| {
                    PRECISIONS.into_iter().find(|one| value.as_u64() == Some(bits(*one)))
                })?;
                let precision = precision.unwrap_or(Precision::Bits8);
                // For the reader of a record: the layout changes no bit.
                fields.truth("tiles")?;
                let isa = fields.string("isa")?;
                Ok((context, precision, cache_type.unwrap_or(KvType::F16), isa))
            })?;
        let (finish, tokens) = inner(&mut fields, "answer", |fields| {
            let names = RecordedFinish::NAMES.map(|(name, _)| name).join(", ");
            let finish = fields.read("finish", &format!("one of {names}"), |value| {
                let known = |one: &&(&str, RecordedFinish)| value.as_str() == Some(one.0);
                RecordedFinish::NAMES.iter().find(known).map(|one| one.1)
            })?;
            let tokens = fields.read("tokens", "a list of token ids", |value| {
                let ids = value.as_array()?.iter().map(|id| u32::try_from(id.as_u64()?).ok());
                ids.collect::<Option<Vec<u32>>>()
            })?;
            Ok((required(finish, "finish")?, required(tokens, "tokens")?))
        })?;
        let lora = fields.list("lora")?.unwrap_or_default().into_iter().map(adapter);
        let lora = lora.collect::<Result<_, _>>()?;
        let request = required(fields.object("request")?, "request")?;
        Ok(ReadRecord {
            program,
            model,
            isa,
            context,
            prompt_precision,
            cache_type,
            lora,
            request,
            finish,
            tokens,
        })
    }

    /// Checks that the answer was read in this notation, which a run has in place of the model's own, or that it does not matter.
    ///
    /// # Errors
    /// It was another one, or there is no such notation.
    pub fn check_tool_format(&self, given: Option<Format>) -> Result<(), Refusal> {
        let own = self.request.get(TOOL_FORMAT);
        let format = own.and_then(Value::as_str).and_then(Format::named);
        if own.is_some() && format.is_none() {
            let names = Format::ALL.map(Format::name).join(", ");
            return Err(Refusal::invalid(NAME, format!("expected one of {names}")));
        }
        let matters = [BUDGET, AFTER_THINKING].iter().any(|name| self.request.contains_key(*name));
        if format == given || !matters {
            return Ok(());
        }
        let name = |format: Option<Format>| format.map_or("the model's own", Format::name);
        let message = format!(
            "it is {}, and that of the first record is {}: replay this record by itself",
            name(format),
            name(given)
        );
        Err(Refusal::invalid(NAME, message))
    }

    /// Returns what the record asks of an engine of the model with this vocabulary.
    ///
    /// # Errors
    /// An option is unknown or invalid; a token is not one of the model's; the answer does not fit into the context.
    pub fn requested(
        &mut self,
        vocabulary: &'static Vocabulary,
        grammars: &Grammars,
    ) -> Result<GenerateRequest, NotHeld> {
        let named = |refusal: Refusal| refusal.within("request.");
        let mut fields = Fields::new(std::mem::take(&mut self.request));
        let prompt = fields.any("prompt").unwrap_or_default();
        let prompt = token_ids(&prompt).unwrap_or_else(|| {
            let message = format!("it is {}, expected a list of token ids", kind(&prompt));
            Err(Refusal::invalid("prompt", message))
        });
        let prompt = prompt.map_err(named)?;
        let size = vocabulary.tokenizer.vocab_size();
        check_tokens(&prompt, size, "request.prompt")?;
        check_tokens(&self.tokens, size, "answer.tokens")?;
        self.check_lengths(prompt.len())?;
        let budget = fields.count(BUDGET).map_err(named)?;
        let after_thinking = fields.truth(AFTER_THINKING).map_err(named)?.unwrap_or(false);
        let tools = fields.list(TOOLS).map_err(named)?;
        // A stop text has ended the answer where the record ends it.
        fields.ignore(&["stop", TOOL_FORMAT]);
        let calls = tools.as_deref().map_or(Calls::None, Calls::May);
        let options = BodyOptions::take(fields, calls, grammars, &defaults());
        let options = options.map_err(|why| match why {
            NotHeld::Refused(refusal) => NotHeld::Refused(named(refusal)),
            why @ NotHeld::Compiler(_) => why,
        })?;
        let marks = AnswerRules::of(options.held.as_ref()).marks;
        let style = if after_thinking { Style::Chat } else { Style::Raw };
        let held = PromptConstraint::new(options.held, style, &prompt, vocabulary).held;
        let tools = tools.filter(|_| marks).map(|tools| Tools::of(&tools));
        let thinking = budget.map(|tokens| ThinkingBudget::new(tokens, vocabulary, tools));
        let request = Request {
            prompt,
            sampling: options.sampling,
            dry_sequence_breakers: options.breakers,
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            ..Request::default()
        };
        Ok(GenerateRequest { request, grammar: held, thinking, ..GenerateRequest::default() })
    }

    /// Refuses an answer that no engine could have given in this context.
    fn check_lengths(&self, prompt: usize) -> Result<(), Refusal> {
        let (context, answer) = (self.context, self.tokens.len());
        // The last token takes no position.
        let most = (context + 1).saturating_sub(prompt);
        if prompt > context || answer > most {
            let message = format!(
                "there are {answer}, expected at most {most} after a prompt of {prompt} in a context of {context}"
            );
            return Err(Refusal::invalid("answer.tokens", message));
        }
        Ok(())
    }
}

/// The options that a record has if it does not name them: those of an older version, where they were not there.
fn defaults() -> OptionDefaults {
    OptionDefaults {
        sampling: SamplerOptions { seed: 0, ..SamplerOptions::DEFAULT },
        breakers: None,
        max_tokens: usize::MAX,
        ignore_eos: false,
    }
}

/// Reads an object within a record.
fn inner<T>(
    fields: &mut Fields,
    name: &str,
    read: impl FnOnce(&mut Fields) -> Result<T, Refusal>,
) -> Result<T, Refusal> {
    let object = required(fields.object(name)?, name)?;
    read(&mut Fields::new(object)).map_err(|refusal| refusal.within(&format!("{name}.")))
}

fn required<T>(value: Option<T>, name: &str) -> Result<T, Refusal> {
    value.ok_or_else(|| Refusal::invalid(name, "it is missing"))
}

fn check_tokens(tokens: &[u32], size: usize, name: &str) -> Result<(), Refusal> {
    let beyond = |id: &&u32| usize::try_from(**id).is_ok_and(|id| id >= size);
    match tokens.iter().find(beyond) {
        None => Ok(()),
        Some(id) => {
            let message = format!(
                "it has the token {id}, but the model has {size} tokens: give the model that answered"
            );
            Err(Refusal::invalid(name, message))
        }
    }
}
