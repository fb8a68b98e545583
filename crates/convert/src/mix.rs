//! Chooses the type of each tensor.
//!
//! The names, the numbers in `general.file_type` and the choice of tensors that get more bits are
//! llama.cpp's, so that a file has the same name whichever program made it.

use std::fmt;
use std::str::FromStr;

use alight_formats::GgmlType;

/// Metadata of a model that determines the types of its tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelFacts {
    architecture: String,
    layers: Option<u64>,
    /// Heads of the first layer: query heads, key/value heads.
    heads: Option<u64>,
    kv_heads: Option<u64>,
    experts: u64,
    weighted: bool,
}

impl ModelFacts {
    /// The same, with `weighted`: whether an importance matrix is available.
    pub(crate) fn weighted(self, weighted: bool) -> ModelFacts {
        ModelFacts { weighted, ..self }
    }

    /// Reads the facts for this architecture. `number` returns the value of a key with its prefix; of an
    /// array, the first.
    pub(crate) fn read(architecture: &str, number: impl Fn(&str) -> Option<u64>) -> ModelFacts {
        let number = |key| number(&format!("{architecture}.{key}"));
        ModelFacts {
            architecture: architecture.into(),
            layers: number("block_count"),
            heads: number("attention.head_count"),
            kv_heads: number("attention.head_count_kv"),
            experts: number("expert_count").unwrap_or(0),
            weighted: false,
        }
    }
}

/// Properties of a model that determine the types of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    layers: u64,
    /// The embedding is also the output matrix.
    tied: bool,
    /// Query heads of the first layer that share one key/value head; 0 if it has none.
    sharing: u64,
    /// 0 for a dense model.
    experts: u64,
    /// The model is one of those with 70 billion parameters, whose value matrices are small.
    is_70b: bool,
    /// An importance matrix is available.
    weighted: bool,
    /// Layers with a value matrix, in order.
    values: Vec<u64>,
    /// Layers with a down matrix, in order.
    downs: Vec<u64>,
}

impl Shape {
    /// Creates it from the names of the tensors and the metadata.
    pub(crate) fn of<'n>(
        names: impl Iterator<Item = &'n str> + Clone,
        facts: &ModelFacts,
    ) -> Shape {
        let layers_of = |is: fn(&str) -> bool| {
            let mut layers: Vec<u64> = names
                .clone()
                .filter_map(of_layer)
                .filter_map(|(layer, part)| is(part).then_some(layer))
                .collect();
            layers.sort_unstable();
            layers
        };
        let last = layers_of(|_| true).last().copied();
        let layers = facts.layers.unwrap_or_else(|| last.map_or(0, |last| last.saturating_add(1)));
        let heads = facts.heads.unwrap_or(1);
        let kv_heads = facts.kv_heads.unwrap_or(heads);
        let shares = heads != kv_heads;
        Shape {
            layers,
            tied: !names.clone().any(|name| name == "output.weight"),
            sharing: heads.checked_div(kv_heads).unwrap_or(0),
            experts: facts.experts,
            is_70b: match &*facts.architecture {
                "llama" => layers == 80 && shares,
                "qwen2" => layers == 80,
                _ => false,
            },
            weighted: facts.weighted,
            values: layers_of(is_of_values),
            downs: layers_of(is_down),
        }
    }

    /// True if the embedding is also the output matrix.
    pub(crate) fn is_tied(&self) -> bool {
        self.tied
    }

    /// Returns the number of value matrices before this layer's, and the total.
    fn place_of_values(&self, layer: u64) -> (u64, u64) {
        place(&self.values, layer)
    }

    /// The same for down matrices. With experts the layer's number is used, whatever the other
    /// layers have.
    fn place_of_down(&self, layer: u64) -> (u64, u64) {
        match self.experts {
            0 | 1 => (place(&self.downs, layer).0, self.layers),
            _ => (layer, self.layers),
        }
    }
}

fn place(layers: &[u64], layer: u64) -> (u64, u64) {
    (layers.partition_point(|other| *other < layer) as u64, layers.len() as u64)
}

/// Returns the layer of a tensor, and its name within the layer.
fn of_layer(name: &str) -> Option<(u64, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// Values alone, or fused with others.
fn is_of_values(part: &str) -> bool {
    matches!(part, "attn_v.weight" | "attn_qkv.weight" | "attn_kv_b.weight")
}

fn is_down(part: &str) -> bool {
    part.starts_with("ffn_down") && part.ends_with(".weight")
}

/// The types for a model's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, missing_docs)] // the established names
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
    MXFP4_MOE,
    IQ4_NL,
    IQ4_XS,
    Q3_K_L,
    Q3_K_M,
    Q3_K_S,
    Q2_K,
    Q2_K_S,
    Q2_0,
    TQ2_0,
    TQ1_0,
    Q1_0,
}

impl QuantizationMix {
    /// All mixes, from the largest file to the smallest.
    pub const ALL: [QuantizationMix; 24] = [
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
        QuantizationMix::MXFP4_MOE,
        QuantizationMix::IQ4_NL,
        QuantizationMix::IQ4_XS,
        QuantizationMix::Q3_K_L,
        QuantizationMix::Q3_K_M,
        QuantizationMix::Q3_K_S,
        QuantizationMix::Q2_K,
        QuantizationMix::Q2_K_S,
        QuantizationMix::Q2_0,
        QuantizationMix::TQ2_0,
        QuantizationMix::TQ1_0,
        QuantizationMix::Q1_0,
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
            QuantizationMix::Q2_K => 10,
            QuantizationMix::Q3_K_S => 11,
            QuantizationMix::Q3_K_M => 12,
            QuantizationMix::Q3_K_L => 13,
            QuantizationMix::Q2_K_S => 21,
            QuantizationMix::IQ4_NL => 25,
            QuantizationMix::IQ4_XS => 30,
            QuantizationMix::BF16 => 32,
            QuantizationMix::TQ1_0 => 36,
            QuantizationMix::TQ2_0 => 37,
            QuantizationMix::MXFP4_MOE => 38,
            QuantizationMix::Q1_0 => 40,
            QuantizationMix::Q2_0 => 41,
        }
    }

    /// Returns the mix with this number in `general.file_type`; `None` if it is not one that can be written
    /// here.
    pub fn of_file_type(number: u32) -> Option<QuantizationMix> {
        QuantizationMix::ALL.into_iter().find(|mix| mix.file_type() == number)
    }

    /// Returns the first mix whose matrices are mostly `ty`.
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
            QuantizationMix::MXFP4_MOE => GgmlType::MXFP4,
            QuantizationMix::IQ4_NL => GgmlType::IQ4_NL,
            QuantizationMix::IQ4_XS => GgmlType::IQ4_XS,
            QuantizationMix::Q3_K_L | QuantizationMix::Q3_K_M | QuantizationMix::Q3_K_S => {
                GgmlType::Q3_K
            }
            QuantizationMix::Q2_K | QuantizationMix::Q2_K_S => GgmlType::Q2_K,
            QuantizationMix::Q2_0 => GgmlType::Q2_0,
            QuantizationMix::TQ2_0 => GgmlType::TQ2_0,
            QuantizationMix::TQ1_0 => GgmlType::TQ1_0,
            QuantizationMix::Q1_0 => GgmlType::Q1_0,
        }
    }

    /// True if most matrices become blocks.
    pub(crate) fn is_of_blocks(self) -> bool {
        self.base().block_len() > 1
    }

    /// Returns the type that the matrix `name` is to have, if its rows can have it. `ne` is innermost first.
    pub(crate) fn wanted(self, name: &str, ne: &[u64], model: &Shape) -> GgmlType {
        let base = self.base();
        let is_embedding = is_embedding(name);
        let is_output = name == "output.weight" || model.tied && is_embedding;
        if self == QuantizationMix::MXFP4_MOE {
            let of_experts = !is_output && ne.get(2).is_some_and(|experts| *experts > 1);
            if of_experts { GgmlType::MXFP4 } else { GgmlType::Q8_0 }
        } else if is_output && base.block_len() > 1 && base != GgmlType::Q8_0 {
            GgmlType::Q6_K
        } else if is_embedding && is_of_few_levels(base) {
            GgmlType::Q4_K
        } else if base.block_len() > 1 {
            self.of_layer(name, model).unwrap_or(base)
        } else {
            base
        }
    }

    /// More bits where they matter most.
    fn of_layer(self, name: &str, model: &Shape) -> Option<GgmlType> {
        let (layer, part) = of_layer(name)?;
        match part {
            "attn_k.weight" if model.experts == 8 => Some(GgmlType::Q8_0),
            part if is_of_values(part) => self.of_values(model.place_of_values(layer), model),
            "attn_output.weight" => self.of_attention_output(model),
            part if is_down(part) => self.of_down(model.place_of_down(layer), model.weighted),
            _ => None,
        }
    }

    fn of_values(self, (before, count): (u64, u64), model: &Shape) -> Option<GgmlType> {
        use QuantizationMix::*;
        if model.experts == 8 {
            return Some(GgmlType::Q8_0);
        }
        let sharing = model.sharing;
        let found = match self {
            Q2_K | Q2_K_S if sharing >= 4 => Some(GgmlType::Q4_K),
            Q2_K => Some(GgmlType::Q3_K),
            Q3_K_M => Some(if before < 2 { GgmlType::Q5_K } else { GgmlType::Q4_K }),
            Q3_K_L => Some(GgmlType::Q5_K),
            IQ4_NL | IQ4_XS => (sharing >= 4).then_some(GgmlType::Q5_K),
            Q4_K_M | Q5_K_M => matters(before, count).then_some(GgmlType::Q6_K),
            Q4_K_S => (before < 4).then_some(GgmlType::Q5_K),
            _ => None,
        };
        let is_low = matches!(found.unwrap_or(self.base()), GgmlType::Q3_K | GgmlType::Q4_K);
        if model.is_70b && is_low { Some(GgmlType::Q5_K) } else { found }
    }

    fn of_attention_output(self, model: &Shape) -> Option<GgmlType> {
        use QuantizationMix::*;
        match self {
            Q2_K | Q3_K_S | Q3_K_M | IQ4_NL | IQ4_XS | Q4_K_S | Q4_K_M if model.experts == 8 => {
                Some(GgmlType::Q5_K)
            }
            Q2_K => Some(GgmlType::Q3_K),
            Q3_K_M => Some(GgmlType::Q4_K),
            Q3_K_L if model.experts != 8 => Some(GgmlType::Q5_K),
            _ => None,
        }
    }

    fn of_down(self, (before, layers): (u64, u64), weighted: bool) -> Option<GgmlType> {
        use QuantizationMix::*;
        let first = before < layers / 8;
        match self {
            Q2_K => Some(GgmlType::Q3_K),
            Q2_K_S => first.then_some(GgmlType::Q4_K),
            Q3_K_M => Some(if before < layers / 16 { GgmlType::Q5_K } else { GgmlType::Q4_K }),
            Q3_K_L => Some(GgmlType::Q5_K),
            IQ4_NL | IQ4_XS if weighted => None,
            IQ4_NL | IQ4_XS | Q4_K_S => first.then_some(GgmlType::Q5_K),
            Q4_0 if weighted => first.then_some(GgmlType::Q4_1),
            Q5_0 if weighted => first.then_some(GgmlType::Q5_1),
            Q4_K_M | Q5_K_M => matters(before, layers).then_some(GgmlType::Q6_K),
            _ => None,
        }
    }
}

/// The first and the last eighth of the layers, and every third in between.
fn matters(layer: u64, layers: u64) -> bool {
    layer < layers / 8
        || layer >= 7 * layers / 8
        || layer.checked_sub(layers / 8).is_some_and(|rest| rest % 3 == 2)
}

/// Types too coarse for an embedding that is not also the output.
fn is_of_few_levels(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::TQ1_0 | GgmlType::TQ2_0 | GgmlType::Q2_0)
}

/// Names of norms, routers and small tensors that stay as they are: convolutions of recurrent layers, the
/// projection that feeds all layers, Gemma 3n's small matrices, and what encoders add for positions, segments and distances. (llama.cpp
/// leaves out the same.)
const STAY: [&str; 10] = [
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "per_layer_model_proj",
    "altup",
    "laurel",
    "position_embd",
    "token_types",
    "attn_rel_b",
];

/// True for the tables of embeddings of tokens.
pub(crate) fn is_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "per_layer_token_embd.weight")
}

/// Norms, biases, routers and frequency tables stay as they are.
pub(crate) fn is_matrix(name: &str, ne: &[u64]) -> bool {
    ne.get(1).is_some_and(|rows| *rows > 1)
        && name.ends_with(".weight")
        && !STAY.iter().any(|part| name.contains(part))
}

/// Returns the type, or the next larger one whose blocks divide a row. (llama.cpp has none for Q1_0.)
pub(crate) fn fitting(ty: GgmlType, columns: u64) -> GgmlType {
    if columns.is_multiple_of(ty.block_len()) {
        return ty;
    }
    match ty {
        GgmlType::Q4_K => fitting(GgmlType::Q5_0, columns),
        GgmlType::Q5_K => fitting(GgmlType::Q5_1, columns),
        GgmlType::Q6_K => fitting(GgmlType::Q8_0, columns),
        GgmlType::IQ4_XS => fitting(GgmlType::IQ4_NL, columns),
        GgmlType::Q2_K | GgmlType::Q3_K | GgmlType::TQ1_0 | GgmlType::TQ2_0 => {
            fitting(GgmlType::Q4_0, columns)
        }
        GgmlType::Q1_0 | GgmlType::Q2_0 => fitting(GgmlType::Q4_0, columns),
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

    /// In either case; `q3_k`, `q4_k` and `q5_k` are short for their `_m`.
    fn from_str(name: &str) -> Result<QuantizationMix, UnknownMix> {
        let name = name.to_uppercase();
        let name = match name.as_str() {
            "Q3_K" => "Q3_K_M",
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
    use crate::tensor_types::TensorTypes;

    /// The type that a tensor gets.
    fn given(mix: QuantizationMix, name: &str, ne: &[u64], model: &Shape) -> Option<GgmlType> {
        TensorTypes::default().choose(mix, name, ne, model).map(|chosen| chosen.to)
    }

    #[test]
    fn names_are_those_that_people_know() {
        for mix in QuantizationMix::ALL {
            assert_eq!(mix.to_string().to_lowercase().parse(), Ok(mix));
        }
        assert_eq!("q4_k".parse(), Ok(QuantizationMix::Q4_K_M));
        let error = "q3".parse::<QuantizationMix>().unwrap_err().to_string();
        assert!(error.contains("q4_k_m") && error.contains("bf16"), "{error}");
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_a_type_of_which_they_are() {
        assert_eq!(fitting(GgmlType::Q4_K, 512), GgmlType::Q4_K);
        assert_eq!(fitting(GgmlType::Q4_K, 576), GgmlType::Q5_0);
        assert_eq!(fitting(GgmlType::Q5_K, 96), GgmlType::Q5_1);
        assert_eq!(fitting(GgmlType::Q6_K, 96), GgmlType::Q8_0);
        assert_eq!(fitting(GgmlType::Q6_K, 33), GgmlType::F16);
        assert_eq!(fitting(GgmlType::IQ4_XS, 96), GgmlType::IQ4_NL);
        assert_eq!(fitting(GgmlType::Q3_K, 704), GgmlType::Q4_0);
        assert_eq!(fitting(GgmlType::Q2_0, 96), GgmlType::Q4_0);
        assert_eq!(fitting(GgmlType::TQ1_0, 40), GgmlType::F16);
        assert_eq!(fitting(GgmlType::Q4_0, 48), GgmlType::F16);
        assert_eq!(fitting(GgmlType::F16, 7), GgmlType::F16);
    }

    #[test]
    fn small_things_stay_as_they_are() {
        for name in [
            "blk.0.ffn_gate_inp.weight",
            "blk.0.ssm_conv1d.weight",
            "blk.0.shortconv.conv.weight",
            "per_layer_model_proj.weight",
        ] {
            assert!(!is_matrix(name, &[64, 64]), "{name}");
        }
        assert!(is_matrix("blk.0.ssm_out.weight", &[64, 64]));
        assert!(!is_matrix("blk.0.attn_norm.weight", &[64]));
    }

    /// 32 layers with `sharing` query heads per key/value head, and `experts` experts.
    fn shape(sharing: u64, experts: u64) -> Shape {
        let layers = || (0..32).collect();
        let (values, downs) = (layers(), layers());
        let (tied, is_70b, weighted) = (false, false, false);
        Shape { layers: 32, tied, sharing, experts, is_70b, weighted, values, downs }
    }

    #[test]
    fn layers_that_matter_get_more_bits() {
        let of = |layer: u64| {
            QuantizationMix::Q4_K_M.of_layer(&format!("blk.{layer}.attn_v.weight"), &shape(1, 0))
        };
        let more: Vec<u64> = (0..32).filter(|layer| of(*layer).is_some()).collect();
        assert_eq!(more, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        let of = |mix: QuantizationMix, name| mix.of_layer(name, &shape(1, 0));
        assert_eq!(of(QuantizationMix::Q4_K_M, "blk.0.attn_k.weight"), None);
        assert_eq!(of(QuantizationMix::Q4_K_S, "blk.3.ffn_down.weight"), Some(GgmlType::Q5_K));
        assert_eq!(of(QuantizationMix::Q4_0, "blk.0.attn_v.weight"), None);
        assert_eq!(of(QuantizationMix::Q3_K_M, "blk.1.ffn_down.weight"), Some(GgmlType::Q5_K));
        assert_eq!(of(QuantizationMix::Q3_K_M, "blk.2.ffn_down.weight"), Some(GgmlType::Q4_K));
        assert_eq!(of(QuantizationMix::Q2_K, "blk.9.attn_output.weight"), Some(GgmlType::Q3_K));
        assert_eq!(of(QuantizationMix::IQ4_XS, "blk.4.ffn_down_exps.weight"), None);
        assert_eq!(of(QuantizationMix::IQ4_XS, "blk.3.ffn_down_exps.weight"), Some(GgmlType::Q5_K));
    }

    #[test]
    fn heads_that_share_and_eight_experts_get_more_bits() {
        let v = |mix: QuantizationMix, shape| mix.of_layer("blk.9.attn_v.weight", &shape);
        assert_eq!(v(QuantizationMix::Q2_K, shape(3, 0)), Some(GgmlType::Q3_K));
        assert_eq!(v(QuantizationMix::Q2_K, shape(4, 0)), Some(GgmlType::Q4_K));
        assert_eq!(v(QuantizationMix::IQ4_NL, shape(8, 0)), Some(GgmlType::Q5_K));
        assert_eq!(v(QuantizationMix::IQ4_NL, shape(8, 8)), Some(GgmlType::Q8_0));
        let big = Shape { is_70b: true, ..shape(8, 0) };
        assert_eq!(v(QuantizationMix::Q3_K_S, big.clone()), Some(GgmlType::Q5_K));
        assert_eq!(v(QuantizationMix::Q4_K_M, big), Some(GgmlType::Q6_K));
    }

    #[test]
    fn what_counts_is_what_there_is_of_a_kind() {
        // Attention in every fourth of 16 layers, experts in none, and no down matrix in the first
        // two.
        let mut names: Vec<String> = (2..16).map(|n| format!("blk.{n}.ffn_down.weight")).collect();
        names.extend((3..16).step_by(4).map(|n| format!("blk.{n}.attn_v.weight")));
        names.extend((0..16).map(|n| format!("blk.{n}.ssm_in.weight")));
        let number = |key: &str| match key {
            "x.block_count" => Some(16),
            "x.attention.head_count" => Some(8),
            "x.attention.head_count_kv" => Some(0),
            _ => None,
        };
        let facts = ModelFacts::read("x", number);
        let found = Shape::of(names.iter().map(String::as_str), &facts);
        assert_eq!((found.sharing, found.layers, found.tied), (0, 16, true));
        assert_eq!((found.place_of_values(3), found.place_of_values(11)), ((0, 4), (2, 4)));
        assert_eq!((found.place_of_down(2), found.place_of_down(15)), ((0, 16), (13, 16)));
        let of = |name: &str| given(QuantizationMix::Q4_K_M, name, &[256, 256], &found);
        assert_eq!(of("blk.3.attn_v.weight"), Some(GgmlType::Q4_K));
        assert_eq!(of("blk.11.attn_v.weight"), Some(GgmlType::Q6_K));
        assert_eq!(of("token_embd.weight"), Some(GgmlType::Q6_K));
        assert_eq!(of("per_layer_token_embd.weight"), Some(GgmlType::Q6_K));
        assert_eq!(of("blk.3.laurel_l.weight"), None);
        let facts = ModelFacts { experts: 4, ..facts };
        let found = Shape::of(names.iter().map(String::as_str), &facts);
        assert_eq!((found.place_of_down(2), found.place_of_values(7)), ((2, 16), (1, 4)));
        let facts = ModelFacts::read("llama", |key| match key {
            "llama.block_count" => Some(80),
            "llama.attention.head_count" => Some(64),
            "llama.attention.head_count_kv" => Some(8),
            _ => None,
        });
        let found = Shape::of(names.iter().map(String::as_str), &facts);
        assert!(found.is_70b && found.sharing == 8);
        let down = |mix: QuantizationMix, weighted| {
            mix.of_layer("blk.2.ffn_down.weight", &Shape { weighted, ..shape(1, 0) })
        };
        assert_eq!(down(QuantizationMix::IQ4_XS, false), Some(GgmlType::Q5_K));
        assert_eq!(down(QuantizationMix::IQ4_XS, true), None);
        assert_eq!(down(QuantizationMix::Q4_0, true), Some(GgmlType::Q4_1));
        assert_eq!(down(QuantizationMix::Q5_0, false), None);
    }

    #[test]
    fn only_experts_become_mxfp4() {
        let of =
            |name, ne: &[u64]| given(QuantizationMix::MXFP4_MOE, name, ne, &shape(1, 4)).unwrap();
        assert_eq!(of("blk.0.ffn_up_exps.weight", &[96, 64, 4]), GgmlType::MXFP4);
        assert_eq!(of("blk.0.attn_q.weight", &[96, 64]), GgmlType::Q8_0);
        assert_eq!(of("output.weight", &[96, 64]), GgmlType::Q8_0);
        let of = |name| given(QuantizationMix::TQ2_0, name, &[512, 64], &shape(1, 0)).unwrap();
        assert_eq!(of("token_embd.weight"), GgmlType::Q4_K);
        assert_eq!(of("output.weight"), GgmlType::Q6_K);
        assert_eq!(of("blk.0.attn_q.weight"), GgmlType::TQ2_0);
    }
}
