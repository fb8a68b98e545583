//! Which type each tensor gets.
//!
//! The names, the numbers in `general.file_type` and what gets more bits are llama.cpp's, so that a
//! file is called the same whoever made it.

use std::fmt;
use std::str::FromStr;

use alight_formats::GgmlType;

/// What of a model decides about its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    layers: u64,
    /// The embedding is the output, too.
    tied: bool,
}

impl Shape {
    /// Of a model whose tensors have these names.
    pub(crate) fn of(names: &[&str]) -> Shape {
        let layer = |name: &&str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<u64>().ok();
        let last = names.iter().filter_map(layer).max();
        let layers = last.map_or(0, |last| last.saturating_add(1));
        Shape { layers, tied: !names.contains(&"output.weight") }
    }
}

/// What a model's matrices become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs)] // the names that people know
pub enum QuantizationMix {
    F16,
    BF16,
    Q8_0,
    Q6_K,
    Q5_K_M,
    Q5_K_S,
    Q5_1,
    Q5_0,
    Q4_K_M,
    Q4_K_S,
    Q4_1,
    Q4_0,
}

impl QuantizationMix {
    /// All, from the largest file to the smallest.
    pub const ALL: [QuantizationMix; 12] = [
        QuantizationMix::F16,
        QuantizationMix::BF16,
        QuantizationMix::Q8_0,
        QuantizationMix::Q6_K,
        QuantizationMix::Q5_K_M,
        QuantizationMix::Q5_K_S,
        QuantizationMix::Q5_1,
        QuantizationMix::Q5_0,
        QuantizationMix::Q4_K_M,
        QuantizationMix::Q4_K_S,
        QuantizationMix::Q4_1,
        QuantizationMix::Q4_0,
    ];

    /// The number in `general.file_type`.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            QuantizationMix::F16 => 1,
            QuantizationMix::Q4_0 => 2,
            QuantizationMix::Q4_1 => 3,
            QuantizationMix::Q8_0 => 7,
            QuantizationMix::Q5_0 => 8,
            QuantizationMix::Q5_1 => 9,
            QuantizationMix::Q4_K_S => 14,
            QuantizationMix::Q4_K_M => 15,
            QuantizationMix::Q5_K_S => 16,
            QuantizationMix::Q5_K_M => 17,
            QuantizationMix::Q6_K => 18,
            QuantizationMix::BF16 => 32,
        }
    }

    /// The first whose matrices are mostly `ty`.
    pub(crate) fn of_type(ty: GgmlType) -> Option<QuantizationMix> {
        QuantizationMix::ALL.into_iter().find(|mix| mix.base() == ty)
    }

    /// The type of most matrices.
    fn base(self) -> GgmlType {
        match self {
            QuantizationMix::F16 => GgmlType::F16,
            QuantizationMix::BF16 => GgmlType::BF16,
            QuantizationMix::Q8_0 => GgmlType::Q8_0,
            QuantizationMix::Q6_K => GgmlType::Q6_K,
            QuantizationMix::Q5_K_M | QuantizationMix::Q5_K_S => GgmlType::Q5_K,
            QuantizationMix::Q5_1 => GgmlType::Q5_1,
            QuantizationMix::Q5_0 => GgmlType::Q5_0,
            QuantizationMix::Q4_K_M | QuantizationMix::Q4_K_S => GgmlType::Q4_K,
            QuantizationMix::Q4_1 => GgmlType::Q4_1,
            QuantizationMix::Q4_0 => GgmlType::Q4_0,
        }
    }

    /// What the tensor called `name` becomes; `None` if it stays as it is. `ne` is innermost first.
    pub(crate) fn of(self, name: &str, ne: &[u64], model: Shape) -> Option<GgmlType> {
        if !is_matrix(name, ne) {
            return None;
        }
        let base = self.base();
        let is_output = name == "output.weight" || model.tied && name == "token_embd.weight";
        let wanted = if is_output && base.block_len() > 1 && base != GgmlType::Q8_0 {
            GgmlType::Q6_K
        } else {
            self.of_layer(name, model.layers).unwrap_or(base)
        };
        Some(fitting(wanted, ne[0]))
    }

    /// More bits, where they matter most.
    fn of_layer(self, name: &str, layers: u64) -> Option<GgmlType> {
        let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer: u64 = layer.parse().ok()?;
        let more = layer < layers / 8
            || layer >= 7 * layers / 8
            || layer.checked_sub(layers / 8).is_some_and(|rest| rest % 3 == 2);
        match (self, part) {
            (
                QuantizationMix::Q4_K_M | QuantizationMix::Q5_K_M,
                "attn_v.weight" | "ffn_down.weight",
            ) => more.then_some(GgmlType::Q6_K),
            (QuantizationMix::Q4_K_M, "attn_qkv.weight") => Some(GgmlType::Q5_K),
            (QuantizationMix::Q5_K_M, "attn_qkv.weight") => Some(GgmlType::Q6_K),
            (QuantizationMix::Q4_K_S, "attn_v.weight") => (layer < 4).then_some(GgmlType::Q5_K),
            (QuantizationMix::Q4_K_S, "ffn_down.weight") => {
                (layer < layers / 8).then_some(GgmlType::Q5_K)
            }
            _ => None,
        }
    }
}

/// Norms, biases, routers and tables of frequencies stay as they are.
fn is_matrix(name: &str, ne: &[u64]) -> bool {
    ne.get(1).is_some_and(|rows| *rows > 1)
        && name.ends_with(".weight")
        && !name.contains("_norm")
        && !name.contains("ffn_gate_inp")
}

/// The type, or the next larger one of which a row is a whole number of blocks.
fn fitting(ty: GgmlType, columns: u64) -> GgmlType {
    if columns.is_multiple_of(ty.block_len()) {
        return ty;
    }
    match ty {
        GgmlType::Q4_K => fitting(GgmlType::Q5_0, columns),
        GgmlType::Q5_K => fitting(GgmlType::Q5_1, columns),
        GgmlType::Q6_K => fitting(GgmlType::Q8_0, columns),
        _ => GgmlType::F16,
    }
}

impl fmt::Display for QuantizationMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A name that is not one of [`QuantizationMix::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown; known are {}", known())]
pub struct UnknownMix;

fn known() -> String {
    QuantizationMix::ALL.map(|mix| mix.to_string().to_lowercase()).join(", ")
}

impl FromStr for QuantizationMix {
    type Err = UnknownMix;

    /// In any case; `q4_k` and `q5_k` are their `_m`.
    fn from_str(name: &str) -> Result<QuantizationMix, UnknownMix> {
        let name = name.to_uppercase();
        let name = match name.as_str() {
            "Q4_K" => "Q4_K_M",
            "Q5_K" => "Q5_K_M",
            name => name,
        };
        QuantizationMix::ALL.into_iter().find(|mix| mix.to_string() == name).ok_or(UnknownMix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_people_know() {
        for mix in QuantizationMix::ALL {
            assert_eq!(mix.to_string().to_lowercase().parse(), Ok(mix));
        }
        assert_eq!("q4_k".parse(), Ok(QuantizationMix::Q4_K_M));
        let error = "q3_k".parse::<QuantizationMix>().unwrap_err().to_string();
        assert!(error.contains("q4_k_m") && error.contains("bf16"), "{error}");
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_type_of_which_they_are() {
        assert_eq!(fitting(GgmlType::Q4_K, 512), GgmlType::Q4_K);
        assert_eq!(fitting(GgmlType::Q4_K, 576), GgmlType::Q5_0);
        assert_eq!(fitting(GgmlType::Q5_K, 96), GgmlType::Q5_1);
        assert_eq!(fitting(GgmlType::Q6_K, 96), GgmlType::Q8_0);
        assert_eq!(fitting(GgmlType::Q6_K, 33), GgmlType::F16);
        assert_eq!(fitting(GgmlType::Q4_0, 48), GgmlType::F16);
        assert_eq!(fitting(GgmlType::F16, 7), GgmlType::F16);
    }

    #[test]
    fn layers_that_matter_get_more_bits() {
        let of = |layer: u64| {
            QuantizationMix::Q4_K_M.of_layer(&format!("blk.{layer}.attn_v.weight"), 32)
        };
        let more: Vec<u64> = (0..32).filter(|layer| of(*layer).is_some()).collect();
        assert_eq!(more, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(QuantizationMix::Q4_K_M.of_layer("blk.0.attn_k.weight", 32), None);
        assert_eq!(
            QuantizationMix::Q4_K_S.of_layer("blk.3.ffn_down.weight", 32),
            Some(GgmlType::Q5_K)
        );
        assert_eq!(QuantizationMix::Q4_0.of_layer("blk.0.attn_v.weight", 32), None);
    }
}
