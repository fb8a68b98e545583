//! `apertus`: queries and keys are normed per head, NeoX rotary pairs, and a feed-forward part without a gate, whose activation, xIELU, has numbers of its
//! own in every layer (Swiss AI's Apertus).

use alight_formats::gguf::{Array, GgufError};

use super::{Architecture, qwen3};
use crate::keys::Keys;
use crate::keys::SpecError;
use crate::parts::dense::{DenseSpec, Xielu};
use crate::parts::routing::softplus;
use crate::spec::{Activation, FeedForward, InputMatrices, ModelSpec};

pub(super) const ARCHITECTURE: Architecture = Architecture { name: "apertus", read };

fn read(keys: &Keys<'_, '_>) -> Result<ModelSpec, SpecError> {
    let dense = DenseSpec { inputs: InputMatrices::Up, ..DenseSpec::read(keys)? };
    let mut spec = qwen3::read_with(keys, dense)?;
    let layers = spec.layers.len();
    let [positive, negative, slope, limit] = [
        numbers(keys, "xielu.alpha_p", layers)?,
        numbers(keys, "xielu.alpha_n", layers)?,
        numbers(keys, "xielu.beta", layers)?,
        numbers(keys, "xielu.eps", layers)?,
    ];
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let Some(FeedForward::Dense(dense)) = &mut layer.feed_forward {
            dense.activation = Activation::Xielu(Xielu {
                positive: softplus(positive[i]),
                negative: slope[i] + softplus(negative[i]),
                slope: slope[i],
                limit: limit[i],
            });
        }
    }
    Ok(spec)
}

/// Reads a number for each layer, of a key without the architecture's prefix: a list, or one for all.
fn numbers(keys: &Keys<'_, '_>, key: &str, layers: usize) -> Result<Vec<f32>, SpecError> {
    let wrong = |found: String| SpecError::Value {
        key: key.into(),
        found,
        expected: format!("a finite number for each of the {layers} layers"),
    };
    let found: Vec<f32> = match keys.gguf.value::<Array<'_>>(key) {
        Ok(Some(array)) => array.iter_f32().into_iter().flatten().take(layers).collect(),
        Ok(None) => return Err(SpecError::Header(GgufError::MissingKey { key: key.into() })),
        Err(_) => vec![keys.gguf.value::<f32>(key)?.unwrap_or(0.0); layers],
    };
    match found.iter().find(|number| !number.is_finite()) {
        Some(number) => Err(wrong(number.to_string())),
        None if found.len() < layers => Err(wrong(format!("an array of {}", found.len()))),
        None => Ok(found),
    }
}
