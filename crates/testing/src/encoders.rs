//! Small random encoders, written as GGUF files: networks that make vectors and scores of texts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_kernels::dequantize_row;

use crate::models::{Random, add_tokenizer, fill, kernel_type};

/// An encoder to make up.
#[derive(Clone, Debug)]
pub struct Encoder {
    pub arch: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub ff: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub context: usize,
    pub eps: f32,
    pub rope_base: f32,
    /// Rows of `token_types`; 0: there is no such tensor.
    pub segments: usize,
    /// Width of a window, and the period of the layers without one.
    pub window: Option<(usize, usize)>,
    /// Queries, keys and values are one tensor.
    pub fused: bool,
    /// A token sees none after it, and tokens follow from the states.
    pub causal: bool,
    /// Every how many layers there is attention; the others are short convolutions.
    pub convolutions: Option<usize>,
    /// Of experts: their number, how many a token takes, and every how many layers there are some.
    pub experts: Option<[usize; 3]>,
    /// The value of the key; 0 is none, and there is no key if it is `None`.
    pub pooling: Option<u32>,
    /// Scores of a classifier; 0: there is none.
    pub labels: usize,
    /// The classifier has a matrix, an activation and perhaps a norm before its last matrix.
    pub two_matrices: bool,
    /// That activation is ReLU, which the file says.
    pub relu: bool,
    /// Lengths of vectors after `dense_2` and `dense_3`.
    pub dense: Vec<usize>,
    pub ty: GgmlType,
    pub seed: u64,
}

/// Tokens that convolutions look at.
pub const TAPS: usize = 3;

/// Of distances, of T5.
pub const BUCKETS: usize = 16;

/// Names and shapes (innermost first) of tensors.
type Shapes = Vec<(String, Vec<usize>)>;

impl Encoder {
    pub fn bert() -> Encoder {
        Encoder {
            arch: "bert",
            layers: 3,
            hidden: 48,
            ff: 80,
            heads: 3,
            kv_heads: 3,
            head_dim: 16,
            vocab: 300,
            context: 160,
            eps: 1e-12,
            rope_base: 10_000.0,
            segments: 2,
            window: None,
            fused: false,
            causal: false,
            convolutions: None,
            experts: None,
            pooling: Some(2),
            labels: 0,
            two_matrices: true,
            relu: false,
            dense: Vec::new(),
            ty: GgmlType::F32,
            seed: 1,
        }
    }

    pub fn nomic_bert() -> Encoder {
        Encoder {
            arch: "nomic-bert",
            pooling: Some(1),
            fused: true,
            rope_base: 1000.0,
            seed: 2,
            ..Encoder::bert()
        }
    }

    pub fn nomic_bert_moe() -> Encoder {
        let experts = Some([5, 2, 2]);
        Encoder { arch: "nomic-bert-moe", layers: 4, experts, seed: 3, ..Encoder::nomic_bert() }
    }

    pub fn jina_bert_v3() -> Encoder {
        Encoder { arch: "jina-bert-v3", segments: 1, seed: 4, ..Encoder::nomic_bert() }
    }

    /// Windows shorter than a text.
    pub fn modern_bert() -> Encoder {
        Encoder {
            arch: "modern-bert",
            layers: 7,
            segments: 0,
            window: Some((8, 3)),
            fused: true,
            eps: 1e-5,
            rope_base: 160_000.0,
            seed: 5,
            ..Encoder::bert()
        }
    }

    /// One head of keys and values.
    pub fn eurobert() -> Encoder {
        Encoder {
            arch: "eurobert",
            kv_heads: 1,
            segments: 0,
            eps: 1e-5,
            rope_base: 250_000.0,
            pooling: Some(3),
            seed: 6,
            ..Encoder::bert()
        }
    }

    pub fn llama_embed() -> Encoder {
        Encoder { arch: "llama-embed", pooling: Some(1), seed: 7, ..Encoder::eurobert() }
    }

    pub fn neo_bert() -> Encoder {
        let base = Encoder::eurobert();
        Encoder { arch: "neo-bert", kv_heads: 3, fused: true, pooling: None, seed: 8, ..base }
    }

    /// Heads that are longer than their share, windows shorter than a text, and longer vectors for a while.
    pub fn gemma_embedding() -> Encoder {
        Encoder {
            arch: "gemma-embedding",
            layers: 7,
            head_dim: 24,
            window: Some((13, 6)),
            eps: 1e-6,
            rope_base: 1_000_000.0,
            pooling: Some(1),
            dense: vec![100, 40],
            seed: 9,
            ..Encoder::eurobert()
        }
    }

    /// Convolutions over three tokens, and attention in every third layer.
    pub fn lfm2() -> Encoder {
        let base = Encoder::eurobert();
        Encoder { arch: "lfm2", layers: 5, convolutions: Some(3), seed: 10, ..base }
    }

    /// A decoder whose states are used.
    pub fn qwen3() -> Encoder {
        Encoder { arch: "qwen3", head_dim: 24, causal: true, seed: 11, ..Encoder::eurobert() }
    }

    /// A number of heads that is no power of two, norms of whole queries and keys, and a second norm.
    pub fn jina_bert_v2() -> Encoder {
        let base = Encoder::bert();
        Encoder { arch: "jina-bert-v2", heads: 6, kv_heads: 6, head_dim: 8, seed: 12, ..base }
    }

    /// Distances of all buckets.
    pub fn t5encoder() -> Encoder {
        Encoder {
            arch: "t5encoder",
            kv_heads: 3,
            pooling: Some(1),
            seed: 13,
            ..Encoder::eurobert()
        }
    }

    /// One of each architecture.
    pub fn every() -> Vec<Encoder> {
        vec![
            Encoder::bert(),
            Encoder::nomic_bert(),
            Encoder::nomic_bert_moe(),
            Encoder::jina_bert_v3(),
            Encoder::modern_bert(),
            Encoder::eurobert(),
            Encoder::llama_embed(),
            Encoder::neo_bert(),
            Encoder::gemma_embedding(),
            Encoder::lfm2(),
            Encoder::qwen3(),
            Encoder::jina_bert_v2(),
            Encoder::t5encoder(),
        ]
    }

    /// True for what is made after BERT: norms of sums, segments.
    pub fn is_bert(&self) -> bool {
        ["bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3"]
            .contains(&self.arch)
    }

    /// True if its norms are LayerNorms.
    pub fn has_layer_norms(&self) -> bool {
        self.is_bert() || self.arch == "modern-bert"
    }

    /// True if its matrices and norms have biases.
    pub fn has_biases(&self) -> bool {
        self.is_bert() && self.arch != "nomic-bert"
    }

    /// The beginning of the names of layers' tensors.
    pub fn prefix(&self) -> &'static str {
        if self.arch == "t5encoder" { "enc.blk" } else { "blk" }
    }

    /// True if the layer has a convolution.
    pub fn has_convolution(&self, layer: usize) -> bool {
        self.convolutions.is_some_and(|every| !(layer + 1).is_multiple_of(every))
    }

    /// True if a feed-forward part has a gate.
    pub fn has_gate(&self) -> bool {
        !self.is_bert() || ["nomic-bert", "jina-bert-v2"].contains(&self.arch)
    }

    /// True if heads of queries and keys are normed.
    pub fn norms_qk(&self) -> bool {
        ["gemma-embedding", "jina-bert-v2", "lfm2", "qwen3"].contains(&self.arch)
    }

    /// True if the layer has experts.
    pub fn has_experts(&self, layer: usize) -> bool {
        self.experts.is_some_and(|[.., every]| layer % every == 1)
    }

    /// The name of the norm after the layers.
    pub fn output_norm(&self) -> Option<&'static str> {
        match self.arch {
            _ if self.is_bert() => None,
            "neo-bert" | "t5encoder" => Some("enc.output_norm"),
            "lfm2" => Some("token_embd_norm"),
            _ => Some("output_norm"),
        }
    }

    /// Name and shape of every tensor.
    pub fn tensors(&self) -> Shapes {
        let (e, f) = (self.hidden, self.ff);
        let mut all: Shapes = Vec::new();
        let mut add = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
        let bias = |add: &mut dyn FnMut(String, &[usize]), name: &str, has: bool, n: usize| {
            if has {
                add(format!("{name}.bias"), &[n]);
            }
        };
        add("token_embd.weight".into(), &[e, self.vocab]);
        if self.segments > 0 {
            add("token_types.weight".into(), &[e, self.segments]);
        }
        if self.arch == "bert" {
            add("position_embd.weight".into(), &[e, self.context]);
        }
        if self.has_layer_norms() {
            add("token_embd_norm.weight".into(), &[e]);
            bias(&mut add, "token_embd_norm", self.is_bert(), e);
        }
        let [q, kv] = [self.heads, self.kv_heads].map(|heads| heads * self.head_dim);
        for l in 0..self.layers {
            let name = |what: &str| format!("{}.{l}.{what}", self.prefix());
            let mut linear = |what: &str, cols: usize, rows: usize, has_bias: bool| {
                add(name(&format!("{what}.weight")), &[cols, rows]);
                bias(&mut add, &name(what), has_bias, rows);
            };
            let biases = self.has_biases();
            let convolution = self.has_convolution(l);
            if convolution {
                linear("shortconv.in_proj", e, 3 * e, false);
                linear("shortconv.conv", TAPS, e, false);
                linear("shortconv.out_proj", e, e, false);
            } else {
                if self.fused {
                    linear("attn_qkv", e, q + 2 * kv, biases);
                } else {
                    linear("attn_q", e, q, biases);
                    linear("attn_k", e, kv, biases);
                    linear("attn_v", e, kv, biases);
                }
                let t5 = self.arch == "t5encoder";
                linear(if t5 { "attn_o" } else { "attn_output" }, q, e, biases);
                if t5 && l == 0 {
                    linear("attn_rel_b", self.heads, BUCKETS, false);
                }
            }
            let fused = ["modern-bert", "neo-bert"].contains(&self.arch);
            if self.has_experts(l) {
                let [experts, ..] = self.experts.unwrap();
                add(name("ffn_gate_inp.weight"), &[e, experts]);
                add(name("ffn_up_exps.weight"), &[e, f, experts]);
                add(name("ffn_down_exps.weight"), &[f, e, experts]);
                add(name("ffn_moe_out.bias"), &[e]);
            } else {
                let gated = !fused && self.has_gate();
                if gated {
                    linear("ffn_gate", e, f, biases);
                }
                linear("ffn_up", e, if fused { 2 * f } else { f }, biases);
                linear("ffn_down", f, e, biases);
            }
            let norms: &[&str] = match self.arch {
                "jina-bert-v2" => &["attn_output_norm", "attn_norm_2", "layer_output_norm"],
                _ if self.is_bert() => &["attn_output_norm", "layer_output_norm"],
                "gemma-embedding" => {
                    &["attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"]
                }
                "modern-bert" if l == 0 => &["ffn_norm"],
                _ => &["attn_norm", "ffn_norm"],
            };
            for norm in norms {
                add(name(&format!("{norm}.weight")), &[e]);
                bias(&mut add, &name(norm), self.is_bert(), e);
            }
            if self.norms_qk() && !convolution {
                let whole = self.arch == "jina-bert-v2";
                let width = if whole { q } else { self.head_dim };
                for norm in ["attn_q_norm", "attn_k_norm"] {
                    add(name(&format!("{norm}.weight")), &[width]);
                    bias(&mut add, &name(norm), whole, width);
                }
            }
        }
        if let Some(norm) = self.output_norm() {
            add(format!("{norm}.weight"), &[e]);
        }
        let mut width = e;
        for (name, rows) in ["dense_2.weight", "dense_3.weight"].into_iter().zip(&self.dense) {
            add(name.into(), &[width, *rows]);
            width = *rows;
        }
        if self.labels > 0 {
            if self.two_matrices {
                add("cls.weight".into(), &[e, e]);
                bias(&mut add, "cls", self.is_bert(), e);
                if self.arch == "modern-bert" {
                    add("cls.norm.weight".into(), &[e]);
                }
            }
            add("cls.output.weight".into(), &[e, self.labels]);
            add("cls.output.bias".into(), &[self.labels]);
        }
        all
    }

    /// The metadata; `skip` leaves out one key.
    pub fn metadata(&self, skip: &str) -> Builder {
        let mut b = Builder::new();
        let key = |name: &str| format!("{}.{name}", self.arch);
        b.str("general.architecture", self.arch);
        let numbers = [
            ("block_count", self.layers),
            ("context_length", self.context),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.ff),
            ("attention.head_count", self.heads),
            (
                "attention.relative_buckets_count",
                if self.arch == "t5encoder" { BUCKETS } else { 0 },
            ),
            ("shortconv.l_cache", if self.convolutions.is_some() { TAPS } else { 0 }),
        ];
        let numbers = numbers.into_iter().filter(|(_, value)| *value > 0);
        let heads = |l| if self.has_convolution(l) { 0 } else { self.kv_heads as u32 };
        b.u32s(&key("attention.head_count_kv"), &(0..self.layers).map(heads).collect::<Vec<_>>());
        let more = self.experts.into_iter().flat_map(|[experts, used, every]| {
            let names = ["expert_count", "expert_used_count", "moe_every_n_layers"];
            names.into_iter().zip([experts, used, every])
        });
        let long = self.head_dim != self.hidden / self.heads;
        let lengths = ["attention.key_length", "attention.value_length"];
        let lengths = lengths.into_iter().filter(|_| long).map(|name| (name, self.head_dim));
        let window = self.window.iter().flat_map(|(window, period)| {
            [("attention.sliding_window", *window), ("attention.sliding_window_pattern", *period)]
        });
        let pooling = self.pooling.map(|pooling| ("pooling_type", pooling as usize));
        let all = numbers.chain(more).chain(lengths).chain(window).chain(pooling);
        for (name, value) in all.filter(|(name, _)| *name != skip) {
            b.u32(&key(name), value as u32);
        }
        let eps = match self.has_layer_norms() {
            true => "attention.layer_norm_epsilon",
            false => "attention.layer_norm_rms_epsilon",
        };
        b.f32(&key(eps), self.eps);
        if self.arch != "bert" {
            b.f32(&key("rope.freq_base"), self.rope_base);
        }
        if self.relu {
            b.str(&key("classifier.activation"), "relu");
        }
        if skip != "attention.causal" {
            b.bool(&key("attention.causal"), self.causal);
        }
        add_tokenizer(&mut b, self.vocab);
        b
    }

    /// The file with this metadata, and the weights that it holds, exactly, by name.
    pub fn build_with(&self, mut b: Builder) -> (Vec<u8>, HashMap<String, Vec<f32>>) {
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let (mut weights, mut data) = (HashMap::new(), Vec::new());
        for (name, shape) in self.tensors() {
            let elements: usize = shape.iter().product();
            let float = ["ffn_gate_inp", "shortconv.conv", "attn_rel_b"]
                .iter()
                .any(|part| name.contains(part));
            let float = float || shape.len() == 1;
            let ty = if float { GgmlType::F32 } else { self.ty };
            let bytes = fill(ty, &name, &shape, elements, &mut random);
            let mut values = vec![0.0; elements];
            dequantize_row(kernel_type(ty), &bytes, &mut values);
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            b.tensor(&name, ty, &shape).unwrap();
            weights.insert(name, values);
            data.push(bytes);
        }
        (b.file(|i, out| out.copy_from_slice(&data[i])), weights)
    }

    /// Writes the file into `folder`.
    pub fn write(&self, folder: &Path) -> (PathBuf, HashMap<String, Vec<f32>>) {
        let (bytes, weights) = self.build_with(self.metadata(""));
        let path = folder.join(format!("{}-{}.gguf", self.arch, self.seed));
        std::fs::write(&path, bytes).unwrap();
        (path, weights)
    }
}
