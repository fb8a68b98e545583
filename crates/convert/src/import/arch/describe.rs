//! The description of an architecture as data: each has a file next to this one.

use super::config::Config;
use crate::ConvertError;
use crate::import::tensor::Entry;

/// A Hugging Face architecture, and its form in GGUF.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) gguf: &'static str,
    /// Accepted values of `architectures`.
    pub(super) classes: &'static [&'static str],
    /// Distinguishes it from others with the same classes.
    pub(super) fits: fn(&Config) -> bool,
    /// Values of `model_type`, for configurations without `architectures`.
    pub(super) model_types: &'static [&'static str],
    /// The names of what every network has.
    pub(super) naming: Naming,
    /// Defaults of `transformers` for missing values.
    pub(super) defaults: Defaults,
    /// The key of the activation applied to the gate, and the only value that GGUF readers
    /// implement.
    pub(super) activation: (&'static str, &'static str),
    /// The tensors of a layer.
    pub(super) layer: &'static [Group],
    /// The tensors outside of layers, except for the embedding and the output.
    pub(super) outside: &'static [Part],
    /// Returns the sizes specific to it, and what distinguishes its layers.
    pub(super) more: fn(&Config, &Dimensions) -> Result<More, ConvertError>,
    /// The mixture of experts of some or all layers.
    pub(super) experts: Option<Mixture>,
    /// The `quant_method` of quantised weights that can be read.
    pub(super) quantised: Option<&'static str>,
    /// True if rows of queries and keys are in halves in the source and in pairs in GGUF.
    pub(super) permuted: bool,
    /// Difference between the norms of GGUF and those of the source.
    pub(super) norm_add: f32,
    /// True if the length of a head goes into the metadata; otherwise it must be the one that
    /// follows from the hidden size and the number of heads.
    pub(super) own_head_length: bool,
    /// True if keys and values are in a latent space, so that their heads and lengths are part of its own
    /// metadata.
    pub(super) latent: bool,
    /// The key of the epsilon of norms.
    pub(super) eps_key: &'static str,
    /// The key of it in GGUF, which tells the kind of the norms.
    pub(super) norm: &'static str,
    /// True if GGUF allows an output separate from the embedding.
    pub(super) own_output: bool,
    /// Flags that must not be set, as GGUF has no form for them.
    pub(super) never: &'static [&'static str],
    /// Name prefixes of tensors outside the text part, with their description.
    pub(super) others: &'static [(&'static str, &'static str)],
    /// Writes the metadata specific to it, and notes.
    pub(super) keys: fn(&Config, &Dimensions, &mut Own) -> Result<(), ConvertError>,
}

/// The names of what every network has, in the source.
#[derive(Clone, Copy)]
pub(super) struct Naming {
    /// Possible beginnings of the names of all tensors except the output: whole models, parts saved alone, models with pictures.
    pub(super) prefixes: &'static [&'static str],
    pub(super) embedding: &'static str,
    /// Before the number of a layer.
    pub(super) layers: &'static str,
    pub(super) output: &'static str,
    /// Keys of the configuration: the usual name, and the one here.
    pub(super) keys: &'static [(&'static str, &'static str)],
}

/// The names that nearly all architectures have.
pub(super) const USUAL: Naming = Naming {
    prefixes: &["model.", "", "language_model.model.", "model.language_model.", "language_model."],
    embedding: EMBEDDING.source,
    layers: "layers.",
    output: OUTPUT.source,
    keys: &[],
};

/// The configuration keys of a mixture of experts, with the defaults of `transformers`.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    /// Experts of a layer, if none of [`COUNTS`] is present.
    pub(super) count: u64,
    /// Experts used for a token.
    pub(super) used: (&'static str, u64),
    /// Intermediate size of an expert; that of a dense layer if `None`.
    pub(super) width: Option<(&'static str, u64)>,
    /// Intermediate size of the shared expert; `None` if there is no key.
    pub(super) shared: Option<(&'static str, u64)>,
    /// Whether the weights of a token's experts are normalised to sum to 1: the default of the configuration, and the one
    /// of GGUF, if GGUF has no key for it.
    pub(super) normed: Option<(bool, bool)>,
}

/// Keys for the number of experts of a layer; `transformers` 5 writes the second where 4 wrote the first.
pub(super) const COUNTS: [&str; 4] =
    ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];

/// Collects the metadata specific to an architecture.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Keys without the architecture's prefix.
    pub(super) keys: Vec<(&'static str, Entry)>,
    /// Notes for the user.
    pub(super) notes: Vec<String>,
}

impl Own {
    pub(super) fn add(&mut self, key: &'static str, entry: Entry) {
        self.keys.push((key, entry));
    }
}

/// The values for an empty configuration, from `transformers`' `configuration_*.py`.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) hidden: u64,
    pub(super) feed_forward: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    /// The number of heads, if `None`.
    pub(super) kv_heads: Option<u64>,
    /// The hidden size divided by the heads, if `None`.
    pub(super) head_length: Option<u64>,
    pub(super) context: u64,
    pub(super) eps: f64,
    pub(super) theta: f64,
    /// Base of the layers with a sliding window, if it differs.
    pub(super) local_theta: Option<f64>,
    pub(super) tied: bool,
    /// The share of a head that rotates; `None` if it is always all of it.
    pub(super) partial: Option<f64>,
    /// Types of RoPE scaling that it supports and others do not.
    pub(super) scalings: &'static [&'static str],
}

/// Tensors of a layer that are present together or not at all.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) when: When,
    pub(super) parts: &'static [Part],
}

impl Group {
    pub(super) const fn always(parts: &'static [Part]) -> Group {
        Group { when: When::Always, parts }
    }

    /// In the layers with this trait.
    pub(super) const fn of_layers(named: &'static str, parts: &'static [Part]) -> Group {
        Group { when: When::Trait(named), parts }
    }

    pub(super) const fn if_said(flag: &'static str, parts: &'static [Part]) -> Group {
        Group { when: When::Flag(flag), parts }
    }
}

/// The condition for the presence of tensors.
#[derive(Clone, Copy)]
pub(super) enum When {
    Always,
    /// This flag of the configuration is set.
    Flag(&'static str),
    /// The layer has this trait ([`More`]).
    Trait(&'static str),
    /// The layer has this trait, and the source a tensor whose name ends with this (`true`), or none (`false`).
    TraitStored(&'static str, &'static str, bool),
    /// The source has a tensor whose name ends with this (`true`), or has none (`false`).
    Stored(&'static str, bool),
}

/// Sizes specific to an architecture, and what distinguishes its layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct More {
    /// Sizes of [`Dim::Named`].
    pub(super) sizes: Vec<(Dim, u64)>,
    /// The layers; empty if all are alike.
    pub(super) layers: Vec<Layer>,
    /// Key/value heads of each layer; empty if all have the same number.
    pub(super) kv_heads: Vec<u64>,
    /// Intermediate size, if it differs from the configuration's value.
    pub(super) feed_forward: Option<u64>,
    /// Length of a head, if it differs.
    pub(super) head: Option<u64>,
}

/// The properties that distinguish a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layer {
    /// The traits that [`When::Trait`] refers to.
    pub(super) traits: Vec<&'static str>,
    /// Sizes that take precedence over those of all layers.
    pub(super) sizes: Vec<(Dim, u64)>,
}

impl Layer {
    pub(super) fn with(named: &'static str) -> Layer {
        Layer { traits: vec![named], sizes: Vec::new() }
    }
}

/// Name of the number of layers after the last that predict further tokens, which are omitted.
pub(super) const FURTHER: &str = "num_nextn_predict_layers";

/// The selected rows or columns of a tensor, in order: (first, count).
pub(super) type Runs = fn(&Dimensions) -> Vec<(u64, u64)>;

/// One tensor: its names, without the prefix of the layer, and its shape.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// A `*` is the number of an expert: the tensors of all experts become one, in the order of these numbers.
    pub(super) source: &'static str,
    pub(super) gguf: &'static str,
    /// Outermost first; `None` after the last.
    pub(super) shape: [Option<Dim>; 4],
    pub(super) kind: TensorKind,
}

/// The kinds of tensors that may have the same shape.
#[derive(Clone, Copy)]
pub(super) enum TensorKind {
    Plain,
    /// Some of the rows, or all of them in another order.
    Rows(Runs),
    /// All columns, in another order.
    Columns(Runs),
    /// Logarithms of rates, of which GGUF has minus the rates, in another order.
    Rates(Runs),
    /// The first rows of each head, which GGUF has transposed: (rows, out of this many).
    Transposed(fn(&Dimensions) -> (u64, u64)),
    /// Some rows of each head: one matrix per head.
    Heads(Runs),
    /// A vector that is a matrix with this number of rows in GGUF.
    VectorOfRows(fn(&Dimensions) -> u64),
    /// Such a vector, of logarithms of rates, of which GGUF has minus the rates.
    RatesOfRows(fn(&Dimensions) -> u64),
    /// Not needed by readers, for this reason; it may be missing.
    Unused(&'static str),
    /// A norm, to which some architectures add one.
    Norm,
    /// Rows belong to heads of queries.
    Queries,
    /// Rows belong to heads of keys.
    Keys,
    /// A matrix of one row, which is a vector in GGUF.
    Row,
    /// MXFP4 blocks `[experts, rows, blocks, 16]`, of which GGUF has every `step`-th row of each expert, from `first` on.
    /// Their scales are in the tensor whose name ends with `_scales` instead of `_blocks`.
    Blocks {
        first: u64,
        step: u64,
    },
    /// The scales of such blocks.
    Scales,
    /// The first (0) or the second (1) half of the rows of each expert, `[experts, rows, columns]`, or of a matrix.
    Half(u64),
    /// Matrices of experts that are transposed in the source, of which GGUF has the part `part` (0, 1 …) of `of` equal parts
    /// of the rows.
    Turned {
        part: u64,
        of: u64,
    },
    /// Numbers `[experts, rows]`, of which GGUF has every `step`-th of each expert, from `first` on.
    Numbers {
        first: u64,
        step: u64,
    },
}

/// The size of a network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dimensions {
    pub(super) layers: u64,
    pub(super) hidden: u64,
    pub(super) feed_forward: u64,
    pub(super) heads: u64,
    pub(super) kv_heads: u64,
    /// Length of a query, a key and a value.
    pub(super) head: u64,
    pub(super) context: u64,
    /// Rows of the embedding.
    pub(super) vocab: u64,
    pub(super) eps: f32,
    /// True if the output is the embedding.
    pub(super) tied: bool,
    pub(super) experts: Option<Experts>,
    pub(super) more: More,
}

/// The size of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Experts {
    pub(super) count: u64,
    pub(super) used: u64,
    pub(super) width: u64,
    /// Intermediate size of the shared expert; 0 if there is none.
    pub(super) shared: u64,
}

/// An extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dim {
    Vocab,
    Hidden,
    FeedForward,
    /// All query heads.
    Queries,
    /// All key or value heads.
    Keys,
    /// One head.
    Head,
    One,
    /// Experts of a layer.
    Experts,
    /// Intermediate size of an expert.
    ExpertWidth,
    /// Intermediate size of the shared expert.
    SharedWidth,
    /// Rows of gate and up of an expert together.
    GateAndUp,
    /// Rows of gate and up of the shared expert together.
    SharedGateAndUp,
    /// Blocks of 32 in the hidden size.
    HiddenBlocks,
    /// Blocks of 32 in the intermediate size of an expert.
    WidthBlocks,
    /// Bytes of such a block.
    BlockBytes,
    /// Heads of queries.
    Heads,
    /// Heads of keys and values.
    KeyHeads,
    /// All query, key and value heads.
    Fused,
    /// Gate and up of a dense layer.
    FusedUp,
    /// A size specific to an architecture, with its name for messages ([`More`]).
    Named(&'static str),
}

pub(super) const fn matrix(source: &'static str, gguf: &'static str, rows: Dim, cols: Dim) -> Part {
    Part { source, gguf, shape: [Some(rows), Some(cols), None, None], kind: TensorKind::Plain }
}

pub(super) const fn vector(source: &'static str, gguf: &'static str, len: Dim) -> Part {
    Part { source, gguf, shape: [Some(len), None, None, None], kind: TensorKind::Plain }
}

pub(super) const fn norm(source: &'static str, gguf: &'static str, len: Dim) -> Part {
    Part { source, gguf, shape: [Some(len), None, None, None], kind: TensorKind::Norm }
}

const fn of_heads(part: Part, kind: TensorKind) -> Part {
    Part { kind, ..part }
}

/// The tensors outside of layers.
pub(super) const EMBEDDING: Part =
    matrix("embed_tokens.weight", "token_embd.weight", Dim::Vocab, Dim::Hidden);
pub(super) const OUTPUT_NORM: Part = norm("norm.weight", "output_norm.weight", Dim::Hidden);
pub(super) const OUTPUT: Part = matrix("lm_head.weight", "output.weight", Dim::Vocab, Dim::Hidden);

/// The seven matrices that all architectures have.
pub(super) const MATRICES: &[Part] = &[
    of_heads(
        matrix("self_attn.q_proj.weight", "attn_q.weight", Dim::Queries, Dim::Hidden),
        TensorKind::Queries,
    ),
    of_heads(
        matrix("self_attn.k_proj.weight", "attn_k.weight", Dim::Keys, Dim::Hidden),
        TensorKind::Keys,
    ),
    matrix("self_attn.v_proj.weight", "attn_v.weight", Dim::Keys, Dim::Hidden),
    matrix("self_attn.o_proj.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    matrix("mlp.gate_proj.weight", "ffn_gate.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.up_proj.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.down_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

/// The matrices of attention.
pub(super) const ATTENTION: &[Part] = MATRICES.split_at(4).0;

/// A router and the experts that it chooses from.
pub(super) const EXPERTS: &[Part] = &[
    matrix("mlp.gate.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    matrix("mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix("mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix("mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", Dim::Hidden, Dim::ExpertWidth),
];

/// [`EXPERTS`], with those of a layer in one tensor each.
pub(super) const EXPERTS_TOGETHER: &[Part] = &[
    EXPERTS[0],
    of_experts("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", GATE_UP, TensorKind::Half(0)),
    of_experts("mlp.experts.gate_up_proj", "ffn_up_exps.weight", GATE_UP, TensorKind::Half(1)),
    of_experts("mlp.experts.down_proj", "ffn_down_exps.weight", DOWN, TensorKind::Plain),
];

/// Either of the two forms.
pub(super) const EITHER_EXPERTS: [Group; 2] = [
    Group { when: When::Stored("mlp.experts.gate_up_proj", false), parts: EXPERTS },
    Group { when: When::Stored("mlp.experts.gate_up_proj", true), parts: EXPERTS_TOGETHER },
];

/// The same in the layers with a trait.
pub(super) const fn either_experts_of(named: &'static str) -> [Group; 2] {
    let end = "mlp.experts.gate_up_proj";
    [
        Group { when: When::TraitStored(named, end, false), parts: EXPERTS },
        Group { when: When::TraitStored(named, end, true), parts: EXPERTS_TOGETHER },
    ]
}

/// Norms that are RMSNorm, and those that are LayerNorm: the key of their epsilon.
pub(super) const RMS: &str = "attention.layer_norm_rms_epsilon";
pub(super) const LAYER_NORM: &str = "attention.layer_norm_epsilon";

/// Rows and columns of an expert's matrix.
pub(super) const GATE_UP: (Dim, Dim) = (Dim::GateAndUp, Dim::Hidden);
pub(super) const DOWN: (Dim, Dim) = (Dim::Hidden, Dim::ExpertWidth);

/// A matrix of each expert of a layer, in one tensor.
pub(super) const fn of_experts(
    source: &'static str,
    gguf: &'static str,
    (rows, columns): (Dim, Dim),
    kind: TensorKind,
) -> Part {
    Part { source, gguf, shape: [Some(Dim::Experts), Some(rows), Some(columns), None], kind }
}

/// The shared expert, and its gate.
pub(super) const SHARED_EXPERT: &[Part] = &[
    matrix(
        "mlp.shared_expert.gate_proj.weight",
        "ffn_gate_shexp.weight",
        Dim::SharedWidth,
        Dim::Hidden,
    ),
    matrix(
        "mlp.shared_expert.up_proj.weight",
        "ffn_up_shexp.weight",
        Dim::SharedWidth,
        Dim::Hidden,
    ),
    matrix(
        "mlp.shared_expert.down_proj.weight",
        "ffn_down_shexp.weight",
        Dim::Hidden,
        Dim::SharedWidth,
    ),
    Part {
        kind: TensorKind::Row,
        ..matrix(
            "mlp.shared_expert_gate.weight",
            "ffn_gate_inp_shexp.weight",
            Dim::One,
            Dim::Hidden,
        )
    },
];

/// A norm before attention and one before the feed-forward part.
pub(super) const TWO_NORMS: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    norm("post_attention_layernorm.weight", "ffn_norm.weight", Dim::Hidden),
];

/// A norm before and after each part.
pub(super) const FOUR_NORMS: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    norm("post_attention_layernorm.weight", "post_attention_norm.weight", Dim::Hidden),
    norm("pre_feedforward_layernorm.weight", "ffn_norm.weight", Dim::Hidden),
    norm("post_feedforward_layernorm.weight", "post_ffw_norm.weight", Dim::Hidden),
];

/// The two norms of [`TWO_NORMS`]; the second has the GGUF name that is used elsewhere for a norm of attention's output.
pub(super) const TWO_NORMS_RENAMED: &[Part] = FOUR_NORMS.split_at(2).0;

/// Norms of each head's queries and keys.
pub(super) const HEAD_NORMS: &[Part] = &[
    norm("self_attn.q_norm.weight", "attn_q_norm.weight", Dim::Head),
    norm("self_attn.k_norm.weight", "attn_k_norm.weight", Dim::Head),
];

/// Biases of queries, keys and values.
pub(super) const INPUT_BIASES: &[Part] = &[
    of_heads(vector("self_attn.q_proj.bias", "attn_q.bias", Dim::Queries), TensorKind::Queries),
    of_heads(vector("self_attn.k_proj.bias", "attn_k.bias", Dim::Keys), TensorKind::Keys),
    vector("self_attn.v_proj.bias", "attn_v.bias", Dim::Keys),
];

/// The bias of attention's output.
pub(super) const OUTPUT_BIAS: &[Part] =
    &[vector("self_attn.o_proj.bias", "attn_output.bias", Dim::Hidden)];

/// Biases of the feed-forward part.
pub(super) const MLP_BIASES: &[Part] = &[
    vector("mlp.gate_proj.bias", "ffn_gate.bias", Dim::FeedForward),
    vector("mlp.up_proj.bias", "ffn_up.bias", Dim::FeedForward),
    vector("mlp.down_proj.bias", "ffn_down.bias", Dim::Hidden),
];
