//! Texts as vectors: the final hidden states of their tokens, pooled and of length 1.
//!
//! Clients send hundreds of texts at once. They are passed to the engine in batches of the size that it computes together, so that other
//! requests are served in between, and a request occupies no more of the queue than one batch.

use std::fmt::Write;
use std::sync::Arc;

use alight_chat::answer::AnswerOptions;
use alight_chat::body::fields::{Fields, whole};
use alight_chat::body::refusal::Refusal;
use alight_chat::worker::GenerateRequest;
use alight_model::{OfPrompt, Pooling, Request, to_unit_length};
use serde_json::Value;

use crate::asking::{self, TextRules};
use crate::failure::Failure;
use crate::generation::{Generation, Update};
use crate::http::Call;
use crate::models::Serving;
use crate::request_log::Record;
use crate::shared::Shared;

/// Maximum number of numbers in all vectors of a request. Written as JSON they take some 84 MB.
const MAX_NUMBERS: usize = 1 << 22;
/// Maximum number of texts in a request, the same as OpenAI's.
const MAX_TEXTS: usize = 2048;

/// Texts to be embedded.
pub(crate) struct Texts {
    model: String,
    record: Arc<Record>,
    all: Vec<Vec<u32>>,
    ask: GenerateRequest,
    /// The number of leading elements of a vector that are kept.
    dimensions: usize,
}

/// The vectors of texts, in their order.
pub(crate) struct Vectors {
    /// The model's name.
    pub(crate) model: String,
    pub(crate) all: Vec<Vec<f32>>,
    /// The number of tokens of all texts.
    pub(crate) tokens: usize,
}

/// Takes `input`, `dimensions` and `pooling`. If `cut` is true, only the beginning of a text that is too long is used.
pub(crate) fn take(
    call: &Call,
    serving: &Serving,
    fields: &mut Fields,
    cut: bool,
) -> Result<Texts, Failure> {
    let width = serving.model.spec().hidden_size;
    let dimensions =
        fields.read("dimensions", &format!("a number from 1 to {width}"), |value| {
            let n = usize::try_from(whole(&value)?).ok()?;
            (1..=width).contains(&n).then_some(n)
        })?;
    let pooling = fields.read("pooling", "\"mean\" or \"last\"", |value| match value.as_str() {
        Some("mean") => Some(Pooling::Mean),
        Some("last") => Some(Pooling::Last),
        _ => None,
    })?;
    let rules = TextRules { most: MAX_TEXTS, cut, parse_special: false };
    let all = asking::texts(fields, "input", rules, serving)?;
    asking::check_fit(&all, serving)?;
    let dimensions = dimensions.unwrap_or(width);
    check_numbers(all.len(), dimensions)?;
    let of_prompt = OfPrompt::Embedding(pooling.unwrap_or(Pooling::Mean));
    let request = Request { of_prompt, salt: call.salt.clone(), ..Request::default() };
    let ask = GenerateRequest { request, ..GenerateRequest::default() };
    let (model, record) = (serving.name.clone(), Arc::clone(&call.record));
    record.ignored(fields);
    Ok(Texts { model, record, all, ask, dimensions })
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

impl Texts {
    /// Computes the vectors.
    pub(crate) async fn vectors(self, server: &Shared) -> Result<Vectors, Failure> {
        let serving = server.models.find(Some(&self.model))?;
        let (mut all, mut tokens) = (Vec::new(), 0);
        for some in self.all.chunks(server.options.engine.sequences) {
            let running = asking::begin(serving, some.to_vec(), 1, &self.ask)?;
            let asked = AnswerOptions::default();
            let mut generation =
                Generation::new(&self.record, running, &asked, serving.vocabulary());
            while let Some((_, update)) = generation.next().await {
                if let Update::Failed(failure) = update {
                    return Err(failure);
                }
            }
            for choice in &generation.choices {
                let vector = &choice.embedding;
                all.push(to_unit_length(&vector[..vector.len().min(self.dimensions)]));
                tokens += choice.prompt_tokens;
            }
        }
        Ok(Vectors { model: self.model, all, tokens })
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
