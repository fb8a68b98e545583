//! Texts as vectors, and pairs of texts as scores ([`alight_chat::vectors`]).
//!
//! Clients send hundreds of texts at once. They are passed to the engine in batches of the size that it computes together, so that other
//! requests are served in between, and a request occupies no more of the queue than one batch.

use std::fmt::Write;
use std::sync::Arc;

use alight_chat::answer::AnswerOptions;
use alight_chat::body::fields::{Fields, whole};
use alight_chat::body::refusal::Refusal;
use alight_chat::vectors::{Normalization, ScoreRule, Scores, VectorError, VectorOptions, Vectors};
use alight_chat::worker::GenerateRequest;
use alight_model::{AdapterSet, Pooling};
use alight_text::{EncoderInput, InputError, PromptError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::apart::{is_cancelled, note};
use crate::asking;
use crate::failure::Failure;
use crate::generation::{Generation, Update};
use crate::http::Call;
use crate::models::Serving;
use crate::request_log::Record;
use crate::shared::Shared;

/// Maximum number of numbers in all vectors of a request. Written as JSON they take some 84 MB.
const MAX_NUMBERS: usize = 1 << 22;
/// Maximum number of texts in a request, the same as OpenAI's.
pub(crate) const MAX_TEXTS: usize = 2048;

/// The note about texts that do not fit and are shortened.
const CUT: &str = "a text is cut to what the model reads";

/// How a request for vectors is read.
#[derive(Clone, Copy)]
pub(crate) struct VectorRules {
    /// The field with the texts.
    pub(crate) input: &'static str,
    /// True if a text that is too long is shortened, and not refused.
    pub(crate) cut: bool,
    /// The scale of a vector.
    pub(crate) normalization: Normalization,
    /// The maximum number of tokens of a text, if it is below the model's.
    pub(crate) max_tokens: Option<usize>,
}

/// Texts to be embedded.
pub(crate) struct Texts {
    batch: Batch,
    vectors: Vectors<'static>,
}

/// The vectors of texts, in their order.
pub(crate) struct ManyVectors {
    /// The model's name.
    pub(crate) model: String,
    pub(crate) all: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub(crate) tokens: usize,
}

/// Takes the texts, `dimensions`, `pooling` and `prompt_name`.
pub(crate) fn take(
    call: &Call,
    serving: &Serving,
    fields: &mut Fields,
    rules: VectorRules,
) -> Result<Texts, Failure> {
    let spec = serving.model.spec();
    let width = spec.embedding_size;
    let dimensions =
        fields.read("dimensions", &format!("a number from 1 to {width}"), |value| {
            let n = usize::try_from(whole(&value)?).ok()?;
            (1..=width).contains(&n).then_some(n)
        })?;
    let names = Pooling::OF_TEXTS.map(|(name, _)| format!("{name:?}")).join(", ");
    let pooling: Option<Pooling> =
        fields.read("pooling", &format!("one of {names}"), |value| value.as_str()?.parse().ok())?;
    let options = VectorOptions {
        pooling,
        normalization: Some(rules.normalization),
        dimensions,
        prompt_name: fields.string("prompt_name")?,
        truncate: rules.cut,
        max_tokens: rules.max_tokens,
        ..VectorOptions::default()
    };
    let (vocabulary, context) = (serving.vocabulary(), serving.worker.context());
    let vectors = Vectors::new(spec, vocabulary, context, &options, is_cancelled)?;
    let inputs = asking::inputs(fields, rules.input, MAX_TEXTS, &vectors, serving)?;
    check_numbers(inputs.len(), vectors.dimensions).map_err(|refusal| Refusal {
        param: Some(rules.input.into()),
        message: refusal.message.replacen("input", rules.input, 1),
        ..refusal
    })?;
    Ok(Texts { batch: Batch::new(call, serving, fields, inputs)?, vectors })
}

/// Takes llama.cpp's number for the scale of a vector.
pub(crate) fn normalization(fields: &mut Fields) -> Result<Option<Normalization>, Refusal> {
    fields.read("embd_normalize", "-1, 0, or a number from 1 to 64", |value| {
        Normalization::of_number(i64::try_from(whole(&value)?).ok()?)
    })
}

fn check_numbers(texts: usize, dimensions: usize) -> Result<(), Refusal> {
    let numbers = texts.saturating_mul(dimensions);
    if numbers <= MAX_NUMBERS {
        return Ok(());
    }
    let message = format!(
        "{texts} texts of {dimensions} dimensions are {numbers} numbers, expected at most {MAX_NUMBERS}: send at most {} texts at a time",
        MAX_NUMBERS / dimensions
    );
    Err(Refusal::invalid("input", message))
}

/// Appends a vector as JSON. Values of all its numbers would take many times the memory of their text.
pub(crate) fn write(vector: &[f32], out: &mut String) {
    out.push('[');
    for (i, x) in vector.iter().enumerate() {
        let comma = if i == 0 { "" } else { "," };
        // As clients parse it: in double precision.
        let _ = write!(out, "{comma}{}", Value::from(*x));
    }
    out.push(']');
}

/// Appends a vector as text in JSON: base64 of its numbers, which are little-endian f32.
pub(crate) fn write_base64(vector: &[f32], out: &mut String) {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    let _ = write!(out, "\"{}\"", STANDARD.encode(bytes));
}

impl Texts {
    /// Computes the vectors.
    pub(crate) async fn vectors(self, server: &Shared) -> Result<ManyVectors, Failure> {
        let Texts { batch, vectors } = self;
        let (mut all, mut tokens) = (Vec::new(), 0);
        let model = batch.model.clone();
        let take = |output: Vec<f32>, read| {
            all.push(vectors.finish(output));
            tokens += read;
        };
        batch.compute(server, |input| vectors.request(input), take).await?;
        Ok(ManyVectors { model, all, tokens })
    }
}

/// Pairs of a query and documents to be scored.
pub(crate) struct Pairs {
    batch: Batch,
    scores: Scores<'static>,
    rule: ScoreRule,
}

/// The scores of documents, in their order.
pub(crate) struct ManyScores {
    /// The model's name.
    pub(crate) model: String,
    pub(crate) all: Vec<f64>,
    /// The number of tokens of all pairs.
    pub(crate) tokens: usize,
}

impl Pairs {
    /// Tokenizes the pairs. Of one that is longer than `max_tokens` or the context, the document is shortened, if `cut`.
    pub(crate) fn new(
        call: &Call,
        serving: &Serving,
        fields: &mut Fields,
        query: &str,
        documents: &[String],
        (max_tokens, cut): (Option<usize>, bool),
        rule: ScoreRule,
    ) -> Result<Pairs, Failure> {
        let (vocabulary, context) = (serving.vocabulary(), serving.worker.context());
        let spec = serving.model.spec();
        let scores = Scores::new(spec, vocabulary, context, max_tokens, cut, is_cancelled)?;
        let pair = |document: &String| match is_cancelled() {
            true => Err(Failure::ending()),
            false => Ok(scores.pair(query, document)?),
        };
        let inputs = documents.iter().map(pair).collect::<Result<Vec<EncoderInput>, Failure>>()?;
        Ok(Pairs { batch: Batch::new(call, serving, fields, inputs)?, scores, rule })
    }

    /// Computes the scores.
    pub(crate) async fn scores(self, server: &Shared) -> Result<ManyScores, Failure> {
        let Pairs { batch, scores, rule } = self;
        let (mut all, mut tokens) = (Vec::new(), 0);
        let model = batch.model.clone();
        let take = |output: Vec<f32>, read| {
            all.push(rule.of(&output));
            tokens += read;
        };
        batch.compute(server, |input| scores.request(input), take).await?;
        Ok(ManyScores { model, all, tokens })
    }
}

/// Inputs of a request.
struct Batch {
    model: String,
    record: Arc<Record>,
    inputs: Vec<EncoderInput>,
    salt: Box<str>,
    adapters: AdapterSet,
}

impl Batch {
    fn new(
        call: &Call,
        serving: &Serving,
        fields: &mut Fields,
        inputs: Vec<EncoderInput>,
    ) -> Result<Batch, Failure> {
        if inputs.iter().any(|input| input.truncated) {
            note(CUT);
        }
        let (model, record) = (serving.name.clone(), Arc::clone(&call.record));
        let adapters = call.adapters(serving, fields)?;
        record.ignored(fields);
        Ok(Batch { model, record, inputs, salt: call.salt.clone(), adapters })
    }

    /// Computes all inputs, and calls `take` with the output of each, in their order, and the number of its tokens.
    async fn compute(
        self,
        server: &Shared,
        request: impl Fn(EncoderInput) -> GenerateRequest,
        mut take: impl FnMut(Vec<f32>, usize),
    ) -> Result<(), Failure> {
        let serving = server.models.find(Some(&self.model))?;
        let mut inputs = self.inputs.into_iter().peekable();
        while inputs.peek().is_some() {
            let some = inputs.by_ref().take(server.options.engine.sequences).map(|input| {
                let mut ask = request(input);
                ask.request.salt = self.salt.clone();
                ask.request.adapters = self.adapters.clone();
                ask
            });
            let running = asking::begin_each(serving, some.collect())?;
            let asked = AnswerOptions::default();
            let mut generation =
                Generation::new(&self.record, running, &asked, serving.vocabulary());
            while let Some((_, update)) = generation.next().await {
                if let Update::Failed(failure) = update {
                    return Err(failure);
                }
            }
            for choice in &mut generation.choices {
                take(std::mem::take(&mut choice.embedding), choice.prompt_tokens);
            }
        }
        Ok(())
    }
}

impl From<VectorError> for Failure {
    fn from(error: VectorError) -> Failure {
        match error {
            VectorError::Input(InputError::TooLong { tokens, limit }) => {
                Failure::too_long(tokens, limit)
            }
            VectorError::Input(InputError::Tokenizer(error)) => PromptError::from(error).into(),
            VectorError::Dimensions { .. } => {
                Refusal::invalid("dimensions", error.to_string()).into()
            }
            VectorError::NoPrompt { .. } => {
                Refusal::invalid("prompt_name", error.to_string()).into()
            }
            error => Failure::invalid(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_written_as_values_are() {
        for vector in [&[][..], &[0.1], &[-1.5e-9, 3.0, f32::NAN]] {
            let mut written = String::new();
            write(vector, &mut written);
            assert_eq!(written, Value::from(vector.to_vec()).to_string());
        }
    }

    #[test]
    fn a_request_has_a_bounded_number_of_numbers() {
        assert!(check_numbers(MAX_TEXTS, 2048).is_ok());
        let refused = check_numbers(MAX_TEXTS, 4096).unwrap_err();
        assert!(refused.message.contains("at most 1024 texts"), "{}", refused.message);
    }
}
