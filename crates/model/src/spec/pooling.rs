//! From the states of a text's tokens to one vector, or to scores.

use std::str::FromStr;

use alight_formats::gguf::Array;

use super::SpecError;
use crate::keys::Keys;

/// Limit far above any classifier, which keeps sizes far below overflow.
pub(crate) const MAX_LABELS: usize = 1 << 16;

/// How the final hidden states of the tokens of a text become its vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Not at all: the vector of every token, one after the other.
    None,
    /// The mean of all.
    Mean,
    /// That of the first token.
    Cls,
    /// That of the last token.
    Last,
    /// The scores that the file's classifier gives the text ([`ClassifierSpec`]).
    Rank,
}

/// A head that gives texts scores: relevance, or one score for each label. `cls.weight`, an activation and a norm, then
/// `cls.output.weight`; or one of the two matrices alone.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifierSpec {
    /// Number of scores.
    pub labels: usize,
    /// The name of each score, if the file has them.
    pub names: Vec<String>,
    /// The states that it is applied to: of all tokens (their mean), the first or the last.
    pub pooling: Pooling,
    /// Follows the first of two matrices.
    pub activation: HeadActivation,
}

/// The function between the two matrices of a classifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadActivation {
    /// tanh x.
    Tanh,
    /// GELU, by the error function.
    Gelu,
    /// x · sigmoid(x).
    Silu,
    /// max(x, 0): our own value of the key, for DistilBERT.
    Relu,
}

impl Pooling {
    /// The ways of making one vector of a text, by the names that options and requests have for them.
    pub const OF_TEXTS: [(&'static str, Pooling); 3] =
        [("mean", Pooling::Mean), ("cls", Pooling::Cls), ("last", Pooling::Last)];

    /// The key of the pooling that a model was trained for.
    const KEY: &'static str = "pooling_type";

    /// Reads the pooling that the file states, if it does.
    ///
    /// # Errors
    /// A number that stands for no pooling.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Option<Pooling>, SpecError> {
        let pooling = match keys.get::<i64>(Pooling::KEY)? {
            None => return Ok(None),
            Some(0) => Pooling::None,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(3) => Pooling::Last,
            Some(4) => Pooling::Rank,
            Some(other) => {
                let expected = "0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)";
                return Err(keys.value(Pooling::KEY, other, expected.into()));
            }
        };
        Ok(Some(pooling))
    }

    /// Returns true if it needs the states of all tokens.
    pub(crate) fn takes_all(self) -> bool {
        matches!(self, Pooling::None | Pooling::Mean)
    }
}

impl FromStr for Pooling {
    type Err = String;

    /// Returns the way of making one vector of a text that has this name.
    fn from_str(name: &str) -> Result<Pooling, String> {
        let found = Pooling::OF_TEXTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, pooling)| *pooling).ok_or_else(|| {
            let names = Pooling::OF_TEXTS.map(|(name, _)| name);
            format!("expected one of {}", names.join(", "))
        })
    }
}

impl ClassifierSpec {
    /// Reads the keys of a classifier that is applied to the states `pooling` and has `activation` if the file does not state it. The
    /// number of its labels follows from its tensors.
    ///
    /// # Errors
    /// A pooling that a classifier cannot have, or an unknown activation.
    pub(crate) fn read(
        keys: &Keys<'_, '_>,
        pooling: Pooling,
        activation: HeadActivation,
    ) -> Result<ClassifierSpec, SpecError> {
        let key = "classifier.pooling_type";
        let pooling = match keys.get::<i64>(key)? {
            None => pooling,
            Some(1) => Pooling::Mean,
            Some(2) => Pooling::Cls,
            Some(other) => return Err(keys.value(key, other, "1 (mean) or 2 (cls)".into())),
        };
        let key = "classifier.activation";
        let activation = match keys.get::<&str>(key)? {
            None => activation,
            Some("tanh") => HeadActivation::Tanh,
            Some("gelu") => HeadActivation::Gelu,
            Some("silu") => HeadActivation::Silu,
            Some("relu") => HeadActivation::Relu,
            Some(other) => return Err(keys.unsupported(key, other, "this activation")),
        };
        let names = keys.get::<Array<'_>>("classifier.output_labels")?;
        let names = names.as_ref().and_then(Array::iter_str).into_iter().flatten();
        let names = names.take(MAX_LABELS).map(|name| String::from_utf8_lossy(name).into_owned());
        Ok(ClassifierSpec { labels: 0, names: names.collect(), pooling, activation })
    }
}
