//! Texts as vectors: the final hidden states of their tokens, pooled and of length 1.

use alight_model::{OfPrompt, Pooling, to_unit_length};

use crate::answer::Asked;
use crate::asking;
use crate::body::fields::{Fields, whole};
use crate::failure::Failure;
use crate::generation::{Generation, Update};
use crate::http::Call;
use crate::models::Serving;
use crate::worker::Ask;

/// Which vectors are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    dimensions: usize,
}

impl Wanted {
    /// So many of the first elements, of length 1.
    pub(crate) fn of(self, vector: &[f32]) -> Vec<f32> {
        to_unit_length(&vector[..vector.len().min(self.dimensions)])
    }
}

/// Takes `input`, `dimensions` and `pooling`, and begins to compute. Of a text that is too long, the beginning is computed if it may be
/// `cut`.
pub(crate) fn begin(
    call: &Call,
    serving: &Serving,
    fields: &mut Fields,
    cut: bool,
) -> Result<(Generation, Wanted), Failure> {
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
    let texts = asking::texts(fields, "input", cut, serving)?;
    let of_prompt = OfPrompt::Embedding(pooling.unwrap_or(Pooling::Mean));
    let ask = Ask { of_prompt, salt: call.salt.clone(), ..Ask::default() };
    let running = asking::begin(serving, texts, 1, &ask)?;
    let generation = Generation::new(running, &Asked::default(), serving.vocabulary());
    Ok((generation, Wanted { dimensions: dimensions.unwrap_or(width) }))
}

/// Waits for all of them.
pub(crate) async fn finish(generation: &mut Generation) -> Result<(), Failure> {
    while let Some((_, update)) = generation.next().await {
        if let Update::Failed(failure) = update {
            return Err(failure);
        }
    }
    Ok(())
}
