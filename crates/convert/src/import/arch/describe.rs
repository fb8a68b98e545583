//! What an architecture is, as data: each has a file beside this one.

use super::config::Config;
use crate::ConvertError;
use crate::import::tensor::Entry;

/// An architecture of Hugging Face's, and what it is in GGUF.
pub(super) struct Architecture {
    /// `general.architecture`.
    pub(super) gguf: &'static str,
    /// What `architectures` may name.
    pub(super) classes: &'static [&'static str],
    /// True if it is meant, where several have these classes.
    pub(super) fits: fn(&Config) -> bool,
    /// What `model_type` is, for configurations without `architectures`.
    pub(super) model_types: &'static [&'static str],
    /// What `transformers` takes where the configuration says nothing.
    pub(super) defaults: Defaults,
    /// The key of the activation of the feed-forward gate, and the one that GGUF's has.
    pub(super) activation: (&'static str, &'static str),
    /// The tensors of a layer.
    pub(super) layer: &'static [Group],
    /// The tensors outside of layers, except for the embedding and the output.
    pub(super) outside: &'static [Part],
    /// Sizes that it alone has, and what distinguishes its layers.
    pub(super) more: fn(&Config, &Dimensions) -> Result<More, ConvertError>,
    /// The mixture of experts that some or all layers have.
    pub(super) experts: Option<Mixture>,
    /// The `quant_method` of weights that are read although they are quantised.
    pub(super) quantised: Option<&'static str>,
    /// Rows of queries and keys stand in halves in the source and in pairs in GGUF.
    pub(super) permuted: bool,
    /// What the norms of GGUF are more than those of the source.
    pub(super) norm_add: f32,
    /// True if the length of a head goes into the metadata, or has to be the one that follows from
    /// the width and the number of heads.
    pub(super) own_head_length: bool,
    /// True if keys and values are in a latent space, so that their heads and lengths are among its own metadata.
    pub(super) latent: bool,
    /// The key of what is added to the mean square in norms.
    pub(super) eps_key: &'static str,
    /// True if GGUF's can have an output that is not its embedding.
    pub(super) own_output: bool,
    /// Flags that GGUF's cannot have set.
    pub(super) never: &'static [&'static str],
    /// Beginnings of the names of tensors that do not belong to the text part, and what they are.
    pub(super) others: &'static [(&'static str, &'static str)],
    /// Metadata that it alone has, and notes.
    pub(super) keys: fn(&Config, &Dimensions, &mut Own) -> Result<(), ConvertError>,
}

/// How a configuration speaks of a mixture of experts: keys, and what `transformers` takes where they are not said.
#[derive(Clone, Copy)]
pub(super) struct Mixture {
    /// Experts of a layer, if none of [`COUNTS`] says it.
    pub(super) count: u64,
    /// Experts that a token goes through.
    pub(super) used: (&'static str, u64),
    /// Intermediate size of an expert; that of a dense layer if none.
    pub(super) width: Option<(&'static str, u64)>,
    /// Intermediate size of what all tokens go through; none if there is no key.
    pub(super) shared: Option<(&'static str, u64)>,
    /// Whether the weights of a token's experts are made to sum to 1, where the configuration says nothing, and in GGUF, if
    /// that has no key for it.
    pub(super) normed: Option<(bool, bool)>,
}

/// Which keys say how many experts a layer has; `transformers` 5 writes the second where 4 wrote the first.
pub(super) const COUNTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// Where an architecture puts the metadata that it alone has.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// Keys without the architecture's prefix.
    pub(super) keys: Vec<(&'static str, Entry)>,
    /// What a person should know.
    pub(super) notes: Vec<String>,
}

impl Own {
    pub(super) fn add(&mut self, key: &'static str, entry: Entry) {
        self.keys.push((key, entry));
    }
}

/// The values of a configuration that says nothing, by `transformers`' `configuration_*.py`.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) hidden: u64,
    pub(super) feed_forward: u64,
    pub(super) layers: u64,
    pub(super) heads: u64,
    /// As many as heads, if none.
    pub(super) kv_heads: Option<u64>,
    /// The width divided by the heads, if none.
    pub(super) head_length: Option<u64>,
    pub(super) context: u64,
    pub(super) eps: f64,
    pub(super) theta: f64,
    /// Base of the layers with a sliding window, where it is another.
    pub(super) local_theta: Option<f64>,
    pub(super) tied: bool,
    /// The share of a head that rotates; `None` if all of it does, always.
    pub(super) partial: Option<f64>,
    /// Ways to stretch the rotation that it has and others do not.
    pub(super) scalings: &'static [&'static str],
}

/// Tensors of a layer that are there together or not at all.
#[derive(Clone, Copy)]
pub(super) struct Group {
    pub(super) when: When,
    pub(super) parts: &'static [Part],
}

impl Group {
    pub(super) const fn always(parts: &'static [Part]) -> Group {
        Group { when: When::Always, parts }
    }

    /// In the layers that have this trait.
    pub(super) const fn of_layers(named: &'static str, parts: &'static [Part]) -> Group {
        Group { when: When::Trait(named), parts }
    }

    pub(super) const fn if_said(flag: &'static str, parts: &'static [Part]) -> Group {
        Group { when: When::Said(flag), parts }
    }
}

/// When tensors are there.
#[derive(Clone, Copy)]
pub(super) enum When {
    Always,
    /// If this flag of the configuration is set.
    Said(&'static str),
    /// In the layers that have this trait ([`More`]).
    Trait(&'static str),
    /// If the source has a tensor whose name ends so, or if it has none.
    Stored(&'static str, bool),
}

/// Sizes that an architecture alone has, and what distinguishes its layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct More {
    /// Sizes of [`Dim::Named`].
    pub(super) sizes: Vec<(Dim, u64)>,
    /// The layers; none if all are alike.
    pub(super) layers: Vec<Layer>,
    /// Heads of keys of each layer; none if all have as many.
    pub(super) kv_heads: Vec<u64>,
    /// Intermediate size, where it is not what the configuration says as it stands.
    pub(super) feed_forward: Option<u64>,
    /// Length of a head, where it is not.
    pub(super) head: Option<u64>,
}

/// What distinguishes a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layer {
    /// What [`When::Trait`] asks for.
    pub(super) traits: Vec<&'static str>,
    /// Sizes that go before those of all layers.
    pub(super) sizes: Vec<(Dim, u64)>,
}

impl Layer {
    pub(super) fn with(named: &'static str) -> Layer {
        Layer { traits: vec![named], sizes: Vec::new() }
    }
}

/// Name of the number of layers after the last that predict further tokens, which are left out.
pub(super) const FURTHER: &str = "num_nextn_predict_layers";

/// Which rows or columns of a tensor are taken, in their order: (first, how many).
pub(super) type Runs = fn(&Dimensions) -> Vec<(u64, u64)>;

/// One tensor: its names, without what stands before in a layer, and its shape.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// A `*` in it is the number of an expert: the tensors of all experts become one, in the order of these numbers.
    pub(super) source: &'static str,
    pub(super) gguf: &'static str,
    /// Outermost first; `None` after the last.
    pub(super) shape: [Option<Dim>; 4],
    pub(super) kind: Kind,
}

/// What distinguishes tensors of one shape.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Plain,
    /// Some of the rows, or all of them in another order.
    Rows(Runs),
    /// All columns, in another order.
    Columns(Runs),
    /// Logarithms of rates, of which GGUF has minus the rates, in another order.
    Rates(Runs),
    /// The first rows of each head, which GGUF has transposed: (rows, of how many).
    Transposed(fn(&Dimensions) -> (u64, u64)),
    /// Some rows of each head: a matrix for each.
    Heads(Runs),
    /// A vector that GGUF has as a matrix of so many rows.
    VectorOfRows(fn(&Dimensions) -> u64),
    /// Such a vector, of logarithms of rates, of which GGUF has minus the rates.
    RatesOfRows(fn(&Dimensions) -> u64),
    /// Readers do not need it, for this reason; it may be missing.
    Unused(&'static str),
    /// A norm, to which some architectures add one.
    Norm,
    /// Rows belong to heads of queries.
    Queries,
    /// Rows belong to heads of keys.
    Keys,
    /// A matrix of one row, which GGUF has as a vector.
    Row,
    /// Blocks of MXFP4 `[experts, rows, blocks, 16]`, of which GGUF's has every `step`-th row of each expert, from `first` on.
    /// Their scales are in the tensor whose name ends with `_scales` in place of `_blocks`.
    Blocks {
        first: u64,
        step: u64,
    },
    /// The scales of such blocks.
    Scales,
    /// The first (0) or the second (1) half of the rows of each expert, `[experts, rows, columns]`, or of a matrix.
    Half(u64),
    /// Matrices of experts that stand transposed in the source, and of which GGUF's has one (0, 1 …) of so many equal parts of
    /// the rows.
    Turned {
        part: u64,
        of: u64,
    },
    /// Numbers `[experts, rows]`, of which GGUF's has every `step`-th of each expert, from `first` on.
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
    /// Of what all tokens go through; 0 if there is none.
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
    /// Intermediate size of what all tokens go through.
    SharedWidth,
    /// Rows of gate and up of an expert together.
    GateAndUp,
    /// Rows of gate and up of what all tokens go through.
    SharedGateAndUp,
    /// Blocks of 32 in the hidden size.
    HiddenBlocks,
    /// Blocks of 32 in the intermediate size of an expert.
    WidthBlocks,
    /// Bytes of such a block.
    BlockBytes,
    /// Heads of queries.
    Heads,
    /// All query, key and value heads.
    Fused,
    /// Gate and up of a dense layer.
    FusedUp,
    /// A size that an architecture alone has, in the words of messages ([`More`]).
    Named(&'static str),
}

pub(super) const fn matrix(source: &'static str, gguf: &'static str, rows: Dim, cols: Dim) -> Part {
    Part { source, gguf, shape: [Some(rows), Some(cols), None, None], kind: Kind::Plain }
}

pub(super) const fn vector(source: &'static str, gguf: &'static str, len: Dim) -> Part {
    Part { source, gguf, shape: [Some(len), None, None, None], kind: Kind::Plain }
}

pub(super) const fn norm(source: &'static str, gguf: &'static str, len: Dim) -> Part {
    Part { source, gguf, shape: [Some(len), None, None, None], kind: Kind::Norm }
}

const fn of_heads(part: Part, kind: Kind) -> Part {
    Part { kind, ..part }
}

/// The parts outside of layers.
pub(super) const EMBEDDING: Part =
    matrix("embed_tokens.weight", "token_embd.weight", Dim::Vocab, Dim::Hidden);
pub(super) const OUTPUT_NORM: Part = norm("norm.weight", "output_norm.weight", Dim::Hidden);
pub(super) const OUTPUT: Part = matrix("lm_head.weight", "output.weight", Dim::Vocab, Dim::Hidden);

/// Seven matrices, which all have.
pub(super) const MATRICES: &[Part] = &[
    of_heads(
        matrix("self_attn.q_proj.weight", "attn_q.weight", Dim::Queries, Dim::Hidden),
        Kind::Queries,
    ),
    of_heads(
        matrix("self_attn.k_proj.weight", "attn_k.weight", Dim::Keys, Dim::Hidden),
        Kind::Keys,
    ),
    matrix("self_attn.v_proj.weight", "attn_v.weight", Dim::Keys, Dim::Hidden),
    matrix("self_attn.o_proj.weight", "attn_output.weight", Dim::Hidden, Dim::Queries),
    matrix("mlp.gate_proj.weight", "ffn_gate.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.up_proj.weight", "ffn_up.weight", Dim::FeedForward, Dim::Hidden),
    matrix("mlp.down_proj.weight", "ffn_down.weight", Dim::Hidden, Dim::FeedForward),
];

/// Those of attention.
pub(super) const ATTENTION: &[Part] = MATRICES.split_at(4).0;

/// A router and the experts that it chooses from.
pub(super) const EXPERTS: &[Part] = &[
    matrix("mlp.gate.weight", "ffn_gate_inp.weight", Dim::Experts, Dim::Hidden),
    matrix("mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix("mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", Dim::ExpertWidth, Dim::Hidden),
    matrix("mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", Dim::Hidden, Dim::ExpertWidth),
];

/// [`EXPERTS`], those of a layer in one tensor each.
pub(super) const EXPERTS_TOGETHER: &[Part] = &[
    EXPERTS[0],
    of_experts("mlp.experts.gate_up_proj", "ffn_gate_exps.weight", GATE_UP, Kind::Half(0)),
    of_experts("mlp.experts.gate_up_proj", "ffn_up_exps.weight", GATE_UP, Kind::Half(1)),
    of_experts("mlp.experts.down_proj", "ffn_down_exps.weight", DOWN, Kind::Plain),
];

/// Either of both.
pub(super) const EITHER_EXPERTS: [Group; 2] = [
    Group { when: When::Stored("mlp.experts.gate_up_proj", false), parts: EXPERTS },
    Group { when: When::Stored("mlp.experts.gate_up_proj", true), parts: EXPERTS_TOGETHER },
];

/// Rows and columns of an expert's.
pub(super) const GATE_UP: (Dim, Dim) = (Dim::GateAndUp, Dim::Hidden);
pub(super) const DOWN: (Dim, Dim) = (Dim::Hidden, Dim::ExpertWidth);

/// A matrix of each expert of a layer, in one tensor.
pub(super) const fn of_experts(
    source: &'static str,
    gguf: &'static str,
    (rows, columns): (Dim, Dim),
    kind: Kind,
) -> Part {
    Part { source, gguf, shape: [Some(Dim::Experts), Some(rows), Some(columns), None], kind }
}

/// What all tokens go through, and its gate.
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
        kind: Kind::Row,
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

/// A norm on both sides of both.
pub(super) const FOUR_NORMS: &[Part] = &[
    norm("input_layernorm.weight", "attn_norm.weight", Dim::Hidden),
    norm("post_attention_layernorm.weight", "post_attention_norm.weight", Dim::Hidden),
    norm("pre_feedforward_layernorm.weight", "ffn_norm.weight", Dim::Hidden),
    norm("post_feedforward_layernorm.weight", "post_ffw_norm.weight", Dim::Hidden),
];

/// The two of [`TWO_NORMS`], of which the second has in GGUF the name that elsewhere is that of a norm of what attention
/// gives.
pub(super) const TWO_NORMS_RENAMED: &[Part] = FOUR_NORMS.split_at(2).0;

/// Norms of each head's queries and keys.
pub(super) const HEAD_NORMS: &[Part] = &[
    norm("self_attn.q_norm.weight", "attn_q_norm.weight", Dim::Head),
    norm("self_attn.k_norm.weight", "attn_k_norm.weight", Dim::Head),
];

/// Biases of queries, keys and values.
pub(super) const INPUT_BIASES: &[Part] = &[
    of_heads(vector("self_attn.q_proj.bias", "attn_q.bias", Dim::Queries), Kind::Queries),
    of_heads(vector("self_attn.k_proj.bias", "attn_k.bias", Dim::Keys), Kind::Keys),
    vector("self_attn.v_proj.bias", "attn_v.bias", Dim::Keys),
];

/// The bias of what attention gives.
pub(super) const OUTPUT_BIAS: &[Part] =
    &[vector("self_attn.o_proj.bias", "attn_output.bias", Dim::Hidden)];

/// Biases of the feed-forward part.
pub(super) const MLP_BIASES: &[Part] = &[
    vector("mlp.gate_proj.bias", "ffn_gate.bias", Dim::FeedForward),
    vector("mlp.up_proj.bias", "ffn_up.bias", Dim::FeedForward),
    vector("mlp.down_proj.bias", "ffn_down.bias", Dim::Hidden),
];
