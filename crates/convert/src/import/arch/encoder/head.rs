//! The part of an encoder after its layers: nothing, or a classifier.

use serde_json::Value;

use super::super::config::Config;
use crate::ConvertError;

/// `pooling_type` of a model that scores.
pub(in super::super) const RANK: u32 = 4;

/// Maximum number of labels.
const MAX_LABELS: u64 = 1 << 16;

/// The part after the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Head {
    /// None: vectors of tokens. What predicts masked tokens is left out.
    Vectors,
    /// A classifier: scores of a text or of a pair.
    Scores,
}

/// The reason for leaving out the prediction of masked tokens.
pub(super) const PREDICTS: &str = "predicts masked tokens";
/// The reason for leaving out the numbers of positions.
pub(super) const POSITIONS: &str = "follows from the configuration";
/// The reason for leaving out the pooler of a model without classifier.
pub(super) const POOLER: &str = "belongs to the next-sentence prediction of its training";

/// Returns the names of the `count` labels of a classifier.
pub(super) fn labels(config: &Config, count: u64) -> Result<Vec<String>, ConvertError> {
    if !(1..=MAX_LABELS).contains(&count) {
        return Err(
            config.error(format!("the classifier has {count} labels, expected 1 to {MAX_LABELS}"))
        );
    }
    let names = config.object("id2label")?;
    let label = |id: u64| {
        let name = names.and_then(|names| names.get(&id.to_string())).and_then(Value::as_str);
        name.map_or_else(|| format!("LABEL_{id}"), str::to_owned)
    };
    Ok((0..count).map(label).collect())
}
