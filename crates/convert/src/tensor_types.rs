//! Types that tensors get whatever the mix gives them. What the options mean is what they mean to llama.cpp's quantiser
//! (`src/llama-quant.cpp`).

use std::collections::BTreeMap;
use std::str::FromStr;

use alight_formats::GgmlType;
use alight_kernels::WeightType;
use regex_automata::nfa::thompson::pikevm::PikeVM;
use regex_automata::util::syntax;

use crate::mix::{QuantizationMix, Shape, fitting, is_embedding, is_matrix};

/// Types of tensors that are not left to the mix.
#[derive(Clone, Debug, Default)]
pub struct TensorTypes {
    /// Tensors by their names; the first pattern that is found in a name decides. They apply to mixes of blocks.
    pub patterns: Vec<TensorPattern>,
    /// The output matrix, also if that is the embedding.
    pub output: Option<GgmlType>,
    /// The embeddings of tokens.
    pub embedding: Option<GgmlType>,
}

/// A pattern of names and the type of the tensors that have them.
#[derive(Clone, Debug)]
pub struct TensorPattern {
    pattern: PikeVM,
    ty: GgmlType,
}

/// A type that a tensor is given, and the one that its rows can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) wanted: GgmlType,
    pub(crate) to: GgmlType,
}

/// Why a text is no type, or no pattern with a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorTypeError {
    /// No type has the name, or none can be made of floats.
    #[error("{name:?} is no type that weights are quantised to; known are {known}")]
    Type {
        /// The name.
        name: String,
        /// Those that are known.
        known: String,
    },
    /// There is no pattern, or no type.
    #[error("expected PATTERN=TYPE, such as attn_v=q8_0")]
    Form,
    /// The pattern is no regular expression.
    #[error("{pattern:?} is no regular expression: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The reason.
        problem: String,
    },
}

/// Returns the type with this name, in either case, that weights can be quantised to.
///
/// # Errors
/// [`TensorTypeError::Type`].
pub fn quantized_type(name: &str) -> Result<GgmlType, TensorTypeError> {
    let known = || WeightType::ALL.into_iter().filter(|ty| ty.quantizes()).map(WeightType::ggml);
    known().find(|ty| ty.name().eq_ignore_ascii_case(name)).ok_or_else(|| TensorTypeError::Type {
        name: name.into(),
        known: known().map(|ty| ty.name().to_lowercase()).collect::<Vec<_>>().join(", "),
    })
}

impl FromStr for TensorPattern {
    type Err = TensorTypeError;

    /// `PATTERN=TYPE`. The pattern is a regular expression that is found anywhere in a name, in either case.
    fn from_str(text: &str) -> Result<TensorPattern, TensorTypeError> {
        let found = text.split_once('=').filter(|(pattern, _)| !pattern.is_empty());
        let (pattern, ty) = found.ok_or(TensorTypeError::Form)?;
        let ty = quantized_type(ty)?;
        let syntax = syntax::Config::new().case_insensitive(true).unicode(false).utf8(false);
        let pattern = PikeVM::builder().syntax(syntax).build(pattern).map_err(|error| {
            let causes = std::iter::successors(std::error::Error::source(&error), |e| e.source());
            let problem = causes.last().map_or_else(|| error.to_string(), ToString::to_string);
            TensorTypeError::Pattern { pattern: pattern.into(), problem }
        })?;
        Ok(TensorPattern { pattern, ty })
    }
}

impl TensorTypes {
    /// Returns the new type of the tensor `name`; `None` if it stays as it is. `ne` is innermost first.
    pub(crate) fn choose(
        &self,
        mix: QuantizationMix,
        name: &str,
        ne: &[u64],
        model: &Shape,
    ) -> Option<Chosen> {
        if !is_matrix(name, ne) {
            return None;
        }
        let wanted = self.stated(mix, name, model).unwrap_or_else(|| mix.wanted(name, ne, model));
        Some(Chosen { wanted, to: fitting(wanted, ne[0]) })
    }

    /// Returns the type that an option states for a matrix.
    fn stated(&self, mix: QuantizationMix, name: &str, model: &Shape) -> Option<GgmlType> {
        let matches =
            |one: &&TensorPattern| one.pattern.is_match(&mut one.pattern.create_cache(), name);
        let patterns = self.patterns.iter().filter(|_| mix.is_of_blocks());
        let pattern = patterns.clone().find(matches).map(|one| one.ty);
        // A table of many small embeddings may be named apart.
        let is_table = name == "per_layer_token_embd.weight" && pattern.is_some();
        let embedding = self.embedding.filter(|_| is_embedding(name) && !is_table);
        let output = self.output.filter(|_| name == "output.weight");
        let tied =
            self.output.filter(|_| model.is_tied() && is_embedding(name) && mix.is_of_blocks());
        embedding.or(output).or(pattern).or(tied)
    }
}

/// One line about the tensors that got other types than they were to have, if there are any: `name`, columns, and the types.
pub(crate) fn note<'n>(all: impl Iterator<Item = (&'n str, u64, Chosen)>) -> Option<String> {
    let mut counts: BTreeMap<(GgmlType, GgmlType), usize> = BTreeMap::new();
    let (mut first, mut matrices) = (None, 0);
    for (name, columns, chosen) in all {
        matrices += 1;
        if chosen.wanted != chosen.to {
            *counts.entry((chosen.wanted, chosen.to)).or_default() += 1;
            first = first.or(Some((name, columns, chosen.wanted)));
        }
    }
    let (name, columns, ty) = first?;
    let all: usize = counts.values().sum();
    let of = |((wanted, to), count): (&(GgmlType, GgmlType), &usize)| {
        format!("{count} {to} instead of {wanted}")
    };
    let counts = counts.iter().map(of).collect::<Vec<_>>().join(", ");
    Some(format!(
        "{all} of {matrices} matrices got another type, because their rows do not divide into blocks of the intended one: \
         {counts} (\"{name}\" has {columns} columns, and a block of {ty} has {})",
        ty.block_len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::ModelFacts;

    fn types(patterns: &[&str]) -> TensorTypes {
        let patterns = patterns.iter().map(|text| text.parse().unwrap()).collect();
        TensorTypes { patterns, ..TensorTypes::default() }
    }

    fn shape(names: &[&str]) -> Shape {
        Shape::of(names.iter().copied(), &ModelFacts::default())
    }

    #[test]
    fn the_first_pattern_in_a_name_decides_and_rows_that_do_not_fit_get_the_next_type() {
        let types = types(&[r"blk\.[02]\.ffn=q8_0", "FFN_down=q5_k", "attn_v=bf16"]);
        let model = shape(&["output.weight"]);
        let of = |name: &str, ne: &[u64]| types.choose(QuantizationMix::Q2_K, name, ne, &model);
        let to = |name: &str| of(name, &[512, 8]).unwrap().to;
        assert_eq!(to("blk.0.ffn_down.weight"), GgmlType::Q8_0);
        assert_eq!(to("blk.1.ffn_down.weight"), GgmlType::Q5_K);
        assert_eq!(to("blk.20.ffn_down.weight"), GgmlType::Q5_K);
        assert_eq!(to("blk.1.ffn_up.weight"), GgmlType::Q2_K);
        assert_eq!(to("blk.1.attn_v.weight"), GgmlType::BF16);
        let small = of("blk.1.ffn_down.weight", &[96, 8]).unwrap();
        assert_eq!((small.wanted, small.to), (GgmlType::Q5_K, GgmlType::Q5_1));
        assert_eq!(of("blk.1.ffn_down_norm.weight", &[96]), None);
        // They change mixes of blocks alone.
        let of = |mix, name| types.choose(mix, name, &[512, 8], &model).unwrap().to;
        assert_eq!(of(QuantizationMix::F16, "blk.0.ffn_down.weight"), GgmlType::F16);
    }

    #[test]
    fn the_output_and_the_embedding_are_named_apart() {
        let (embed, out) = ("token_embd.weight", "output.weight");
        let types = TensorTypes {
            output: Some(GgmlType::Q8_0),
            embedding: None,
            ..types(&["per_layer=q5_0"])
        };
        let of = |types: &TensorTypes, names: &[&str], name| {
            types.choose(QuantizationMix::Q4_K_M, name, &[512, 8], &shape(names)).unwrap().to
        };
        assert_eq!(of(&types, &[embed, out], out), GgmlType::Q8_0);
        assert_eq!(of(&types, &[embed, out], embed), GgmlType::Q4_K);
        assert_eq!(of(&types, &[embed], embed), GgmlType::Q8_0, "it is the output");
        let types = TensorTypes { embedding: Some(GgmlType::F16), ..types };
        assert_eq!(of(&types, &[embed], embed), GgmlType::F16);
        let table = "per_layer_token_embd.weight";
        assert_eq!(of(&types, &[embed, table], table), GgmlType::Q5_0, "it is named");
        let types = TensorTypes { patterns: Vec::new(), ..types };
        assert_eq!(of(&types, &[embed, table], table), GgmlType::F16);
    }

    #[test]
    fn what_is_no_pattern_with_a_type_is_named() {
        let error = |text: &str| text.parse::<TensorPattern>().unwrap_err().to_string();
        assert!(error("attn_v").contains("PATTERN=TYPE"));
        assert!(error("=q8_0").contains("PATTERN=TYPE"));
        assert!(error("attn_v=q9").contains("q4_k"), "{}", error("attn_v=q9"));
        assert!(error("attn_v=iq1_s").contains("\"iq1_s\""), "it is only read");
        assert!(error("attn_(v=q8_0").contains("unclosed group"), "{}", error("attn_(v=q8_0"));
    }

    #[test]
    fn one_line_says_how_many_tensors_got_which_type() {
        let model = shape(&["output.weight"]);
        let names: Vec<String> = (0..3).map(|layer| format!("blk.{layer}.attn_q.weight")).collect();
        let of = |name: &'static str, columns| {
            let chosen =
                TensorTypes::default().choose(QuantizationMix::Q2_K, name, &[columns, 8], &model);
            (name, columns, chosen.unwrap())
        };
        let names: Vec<&'static str> = names.into_iter().map(|name| &*name.leak()).collect();
        let all = names.iter().map(|name| of(name, 576)).chain([of("blk.0.ffn_up.weight", 1536)]);
        let text = note(all).unwrap();
        assert!(
            text.starts_with("3 of 4 matrices") && text.contains("3 Q4_0 instead of Q2_K"),
            "{text}"
        );
        assert!(text.contains("576 columns, and a block of Q2_K has 256"), "{text}");
        assert_eq!(note([of("blk.0.ffn_up.weight", 1536)].into_iter()), None);
    }
}
