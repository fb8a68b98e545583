//! Small random models, written as GGUF files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_kernels::half::{f16_to_f32, f32_to_bf16, f32_to_f16};
use alight_kernels::{Isa, WeightType, dequantize_row};

/// True if all there is to show is to be shown, as by `make test-all`, or what sees nearly every mistake in a third of the time.
pub fn everything() -> bool {
    std::env::var_os("ALIGHT_TEST_ALL").is_some()
}

/// The threads of a model in a test whose subject is not their number. `make test` runs tests next to each other on all cores: a model with
/// more threads than it gets cores takes up to ten times as long.
pub fn threads() -> usize {
    if everything() { 2 } else { 1 }
}

/// The SIMD levels of a test that compares each with itself: all of them, or the best one, since the kernels' tests show that all have the
/// same bits, and the most portable one takes ten times as long.
pub fn levels() -> Vec<Isa> {
    if everything() { Isa::available() } else { vec![Isa::best()] }
}

/// The real models, where they have been fetched: `$ALIGHT_MODELS` or `models/` in the workspace. The larger of the two only if
/// [`everything`] is to be shown.
pub fn real_model(file: &str) -> Option<PathBuf> {
    if file == GEMMA3 && !everything() {
        eprintln!("left out: {file} (ALIGHT_TEST_ALL=1, make test-all)");
        return None;
    }
    let folder = std::env::var_os("ALIGHT_MODELS").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| workspace().join("models"));
    let path = folder.join(file);
    if !path.exists() {
        eprintln!("skipped: there is no {} (make models)", path.display());
        return None;
    }
    Some(path)
}

/// The shards of a model whose file has these bytes, with their names; their numbers of tensors are as equal as they can be.
pub fn shards_of(file: &[u8], name: &str, count: usize) -> Vec<(String, Vec<u8>)> {
    let gguf = alight_formats::gguf::parse(file).unwrap();
    let total = gguf.tensors.len();
    let shard = |(no, infos): (usize, &[alight_formats::gguf::TensorInfo<'_>])| {
        let mut shard = Builder::new();
        for (key, value) in gguf.metadata.iter().filter(|_| no == 0) {
            shard.value(key, value);
        }
        shard.u16("split.no", no as u16).u16("split.count", count as u16);
        shard.i32("split.tensors.count", total as i32);
        for info in infos {
            shard.tensor(info.name, info.ty, info.shape()).unwrap();
        }
        let bytes = shard.file(|i, out| out.copy_from_slice(&file[infos[i].range()]));
        (format!("{name}-{:05}-of-{count:05}.gguf", no + 1), bytes)
    };
    gguf.tensors.chunks(total.div_ceil(count)).enumerate().map(shard).collect()
}

pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A small generator of pseudo-random numbers (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in −1..1.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }
}

/// RoPE scaling in the metadata.
#[derive(Clone, Copy, Debug)]
pub enum Scaling {
    None,
    Linear(f32),
    /// The magnitude is a key of its own if it is not 0.
    Yarn {
        factor: f32,
        original: usize,
        magnitude: f32,
    },
}

/// A mixture of experts in every layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moe {
    pub experts: usize,
    pub used: usize,
    pub width: usize,
    /// Of a network for all tokens, if not 0.
    pub shared: usize,
    /// Gate and up in one tensor.
    pub fused: bool,
    /// Keys, where they are not 0 or `None`.
    pub gating: u32,
    pub normed: Option<bool>,
    pub scale: f32,
    pub groups: (u32, u32),
    /// A bias for the choice of experts.
    pub selection: bool,
    /// Of the router and of the experts.
    pub biases: bool,
    /// Neither the experts nor the network for all tokens have a gate.
    pub ungated: bool,
    /// Length of what experts take in, if not the hidden size.
    pub latent: usize,
}

/// Latent attention in every layer; `rope_dims` are rotated.
#[derive(Clone, Copy, Debug)]
pub struct Latent {
    /// 0: queries are one projection.
    pub query_rank: usize,
    pub rank: usize,
    /// Elements of a query that are not rotated.
    pub unrotated: usize,
    /// Projections of keys and of values are one tensor, as in old files.
    pub together: bool,
    /// YaRN's multiplier, if not 0.
    pub multiplier: f32,
    /// Leading layers without experts, whose shared network is this many experts wide.
    pub leading: usize,
}

/// A model to make up.
#[derive(Clone, Debug)]
pub struct Spec {
    pub arch: &'static str,
    pub layers: usize,
    pub embd: usize,
    pub ff: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    /// Written as keys only if they are not embd / heads.
    pub vocab: usize,
    pub context: usize,
    pub eps: f32,
    pub rope_dims: Option<usize>,
    pub rope_base: f32,
    pub scaling: Scaling,
    /// A `rope_freqs.weight` tensor.
    pub factors: bool,
    /// Factors of short and of long sequences: the longest that is short.
    pub long_context: Option<usize>,
    /// The Gemmas: window and period of the global layers.
    pub window: Option<(usize, usize)>,
    /// Tokens see none after them.
    pub causal: bool,
    /// The part that most layers have in place of attention, and the interval at which there is attention.
    pub recurrent: Option<(Recurrence, usize)>,
    /// Where each layer has one part: a letter for each, `m` for what `recurrent` says, `a` for attention, `f` for a
    /// feed-forward part.
    pub layout: &'static str,
    /// Granite's factors: of the embedding, of scores, of what parts add, and what logits are divided by.
    pub scales: Option<[f32; 4]>,
    /// Latent attention.
    pub latent: Option<Latent>,
    pub attn_cap: f32,
    pub logit_cap: f32,
    /// Of every matrix.
    pub biases: bool,
    /// Of queries, keys and values.
    pub qkv_biases: bool,
    pub tied: bool,
    pub ty: GgmlType,
    pub seed: u64,
    pub moe: Option<Moe>,
    /// A further layer, which predicts the token after the next one.
    pub mtp: bool,
}

/// A mixer that carries a state from token to token.
#[derive(Clone, Copy, Debug)]
pub enum Recurrence {
    /// Heads of keys and of values, and their length.
    DeltaNet([usize; 3]),
    ShortConv,
    /// Of Mamba-2 heads, groups, their length and that of keys.
    Mamba2([usize; 4]),
    /// Of Mamba channels, the length of their states, and the width between the two projections for step lengths.
    Mamba([usize; 3]),
    /// Of Kimi delta attention the length of a head.
    Kda(usize),
    /// Of RWKV-7 the length of a head.
    Rwkv7(usize),
}

/// Of Gemma 3n: how many layers have no keys and values of their own, and how many numbers a layer takes from a token.
const SHARED_KV: usize = 2;
const FROM_TOKEN: usize = 32;

/// Tokens that convolutions look at.
const TAPS: usize = 4;

impl Spec {
    pub fn llama() -> Spec {
        Spec {
            arch: "llama",
            layers: 3,
            embd: 64,
            ff: 96,
            heads: 4,
            kv_heads: 2,
            key_dim: 16,
            value_dim: 16,
            vocab: 300,
            context: 512,
            eps: 1e-5,
            rope_dims: None,
            rope_base: 10_000.0,
            scaling: Scaling::None,
            factors: false,
            long_context: None,
            window: None,
            recurrent: None,
            layout: "",
            scales: None,
            causal: true,
            latent: None,
            attn_cap: 0.0,
            logit_cap: 0.0,
            biases: false,
            qkv_biases: false,
            tied: true,
            ty: GgmlType::F32,
            seed: 1,
            moe: None,
            mtp: false,
        }
    }

    pub fn qwen3moe() -> Spec {
        let moe = Moe { experts: 7, used: 3, width: 48, ..Moe::default() };
        Spec { arch: "qwen3moe", moe: Some(moe), seed: 51, ..Spec::qwen3() }
    }

    pub fn qwen2moe() -> Spec {
        let moe = Moe { experts: 6, used: 2, width: 32, shared: 64, ..Moe::default() };
        Spec { arch: "qwen2moe", moe: Some(moe), seed: 52, ..Spec::qwen2() }
    }

    /// Everything that this family has.
    pub fn gpt_oss() -> Spec {
        let moe = Moe { experts: 5, used: 2, width: 32, biases: true, ..Moe::default() };
        let scaling = Scaling::Yarn { factor: 8.0, original: 64, magnitude: 0.0 };
        Spec {
            arch: "gpt-oss",
            key_dim: 24,
            value_dim: 24,
            window: Some((12, 2)),
            scaling,
            biases: true,
            moe: Some(moe),
            seed: 53,
            ..Spec::llama()
        }
    }

    /// The same with Ollama's names, and rows of gate and up that alternate in one tensor.
    pub fn gptoss() -> Spec {
        let spec = Spec::gpt_oss();
        let moe = spec.moe.map(|moe| Moe { fused: true, ..moe });
        Spec { arch: "gptoss", moe, seed: 71, ..spec }
    }

    /// Chunks shorter than a prompt, and every fourth layer without rotation.
    pub fn llama4() -> Spec {
        let moe = Moe {
            experts: 5,
            used: 2,
            width: 32,
            shared: 32,
            gating: 2,
            normed: Some(false),
            ..Moe::default()
        };
        let window = Some((12, 4));
        Spec { arch: "llama4", layers: 5, window, moe: Some(moe), seed: 69, ..Spec::llama() }
    }

    pub fn deepseek2() -> Spec {
        let moe = Moe {
            experts: 6,
            used: 3,
            width: 32,
            shared: 64,
            gating: 2,
            normed: Some(true),
            scale: 1.5,
            selection: true,
            ..Moe::default()
        };
        let latent = Latent {
            query_rank: 40,
            rank: 48,
            unrotated: 24,
            together: false,
            multiplier: 0.7,
            leading: 1,
        };
        Spec {
            arch: "deepseek2",
            heads: 5,
            kv_heads: 1,
            value_dim: 20,
            rope_dims: Some(8),
            scaling: Scaling::Yarn { factor: 8.0, original: 32, magnitude: 0.0 },
            latent: Some(latent),
            moe: Some(moe),
            seed: 61,
            ..Spec::llama()
        }
    }

    /// Projections of keys and of values are one tensor.
    pub fn deepseek2_before_2025() -> Spec {
        let spec = Spec::deepseek2();
        let latent =
            spec.latent.map(|latent| Latent { query_rank: 0, rank: 64, together: true, ..latent });
        Spec { value_dim: 32, heads: 3, latent, ty: GgmlType::F16, seed: 68, ..spec }
    }

    pub fn gemma3() -> Spec {
        Spec {
            arch: "gemma3",
            layers: 7,
            kv_heads: 1,
            key_dim: 32,
            value_dim: 32,
            eps: 1e-6,
            rope_base: 1_000_000.0,
            window: Some((12, 6)),
            seed: 2,
            ..Spec::llama()
        }
    }

    pub fn qwen2() -> Spec {
        Spec {
            arch: "qwen2",
            eps: 1e-6,
            rope_base: 1_000_000.0,
            qkv_biases: true,
            seed: 21,
            ..Spec::llama()
        }
    }

    /// A head that is longer than its share of the width.
    pub fn qwen3() -> Spec {
        Spec {
            arch: "qwen3",
            key_dim: 24,
            value_dim: 24,
            eps: 1e-6,
            rope_base: 1_000_000.0,
            seed: 22,
            ..Spec::llama()
        }
    }

    /// Layers that carry a state, and every third with keys and values.
    pub fn qwen35() -> Spec {
        Spec {
            arch: "qwen35",
            layers: 5,
            key_dim: 32,
            value_dim: 32,
            eps: 1e-6,
            recurrent: Some((Recurrence::DeltaNet([2, 4, 32]), 3)),
            seed: 24,
            ..Spec::llama()
        }
    }

    /// Short convolutions, and every third layer with keys and values.
    pub fn lfm2() -> Spec {
        let recurrent = Some((Recurrence::ShortConv, 3));
        Spec { arch: "lfm2", layers: 5, recurrent, seed: 25, ..Spec::llama() }
    }

    /// Layers of Mamba-2, and every third with keys and values.
    pub fn granitehybrid() -> Spec {
        let recurrent = Some((Recurrence::Mamba2([4, 2, 32, 20]), 3));
        Spec { arch: "granitehybrid", layers: 5, recurrent, seed: 26, ..Spec::llama() }
    }

    /// Layers of one part each, of which the last one stores nothing.
    pub fn nemotron_h() -> Spec {
        let (arch, layout, seed) = ("nemotron_h", "mfamf", 27);
        Spec { arch, layout, seed, key_dim: 24, value_dim: 24, ..Spec::granitehybrid() }
    }

    /// The same with experts on rows of a length of their own.
    pub fn nemotron_h_moe() -> Spec {
        let moe = Moe {
            experts: 6,
            used: 2,
            width: 32,
            shared: 64,
            gating: 2,
            normed: Some(true),
            scale: 1.5,
            selection: true,
            ungated: true,
            latent: 32,
            ..Moe::default()
        };
        Spec { arch: "nemotron_h_moe", moe: Some(moe), seed: 28, ..Spec::nemotron_h() }
    }

    /// Attention and Mamba-2 in every layer.
    pub fn falcon_h1() -> Spec {
        let recurrent = Some((Recurrence::Mamba2([4, 2, 32, 20]), usize::MAX));
        Spec { arch: "falcon-h1", layers: 3, recurrent, seed: 29, ..Spec::llama() }
    }

    /// Layers of Mamba, and every third with keys and values; all have norms of their own.
    pub fn jamba() -> Spec {
        let recurrent = Some((Recurrence::Mamba([128, 12, 6]), 3));
        Spec { arch: "jamba", layers: 5, recurrent, seed: 30, ..Spec::llama() }
    }

    /// Layers of Kimi delta attention, and every third of latent attention.
    pub fn kimi_linear() -> Spec {
        let spec = Spec::deepseek2();
        let latent = spec.latent.map(|latent| Latent { multiplier: 0.0, query_rank: 0, ..latent });
        let (scaling, recurrent) = (Scaling::None, Some((Recurrence::Kda(32), 3)));
        Spec { arch: "kimi-linear", layers: 5, latent, scaling, recurrent, seed: 31, ..spec }
    }

    /// Layers of RWKV-7, whose feed-forward parts have states, too.
    pub fn rwkv7() -> Spec {
        let recurrent = Some((Recurrence::Rwkv7(16), usize::MAX));
        Spec { arch: "rwkv7", recurrent, tied: false, seed: 32, ..Spec::llama() }
    }

    /// One of each kind of recurrent layers, and those of one part each.
    pub fn recurrent() -> [Spec; 9] {
        let [nemotron_h, nemotron_h_moe] = [Spec::nemotron_h(), Spec::nemotron_h_moe()];
        let [falcon_h1, jamba, kimi] = [Spec::falcon_h1(), Spec::jamba(), Spec::kimi_linear()];
        let [qwen35, lfm2, granite] = [Spec::qwen35(), Spec::lfm2(), Spec::granitehybrid()];
        let rwkv7 = Spec::rwkv7();
        [qwen35, lfm2, granite, nemotron_h, nemotron_h_moe, falcon_h1, jamba, kimi, rwkv7]
    }

    /// Experts that are chosen before attention.
    pub fn smallthinker() -> Spec {
        Spec { arch: "smallthinker", moe: Spec::qwen3moe().moe, seed: 45, ..Spec::llama() }
    }

    /// Positions by biases of scores alone.
    pub fn refact() -> Spec {
        Spec { arch: "refact", seed: 43, ..Spec::llama() }
    }

    pub fn granite() -> Spec {
        let scales = Some([0.6, 0.25, 0.5, 1.6]);
        Spec { arch: "granite", scales, seed: 38, ..Spec::llama() }
    }

    /// As `qwen2`, with another name for a norm.
    pub fn seed_oss() -> Spec {
        Spec { arch: "seed_oss", key_dim: 24, value_dim: 24, seed: 39, ..Spec::qwen2() }
    }

    /// Caps so low that they bend what the random weights give.
    pub fn gemma2() -> Spec {
        Spec {
            arch: "gemma2",
            layers: 5,
            key_dim: 32,
            value_dim: 32,
            eps: 1e-6,
            window: Some((12, 2)),
            attn_cap: 2.0,
            logit_cap: 8.0,
            seed: 23,
            ..Spec::llama()
        }
    }

    /// Several streams, and the last two layers without keys and values of their own.
    pub fn gemma3n() -> Spec {
        Spec { arch: "gemma3n", window: Some((12, 5)), seed: 42, ..Spec::gemma3() }
    }

    /// One of each architecture.
    pub fn every() -> [Spec; 10] {
        let dense = [Spec::llama(), Spec::qwen2(), Spec::qwen3(), Spec::gemma2(), Spec::gemma3()];
        let [llama, qwen2, qwen3, gemma2, gemma3] = dense;
        let [granite, seed_oss] = [Spec::granite(), Spec::seed_oss()];
        let [qwen3moe, qwen2moe, gpt_oss] = [Spec::qwen3moe(), Spec::qwen2moe(), Spec::gpt_oss()];
        [llama, qwen2, qwen3, gemma2, gemma3, granite, seed_oss, qwen3moe, qwen2moe, gpt_oss]
    }

    pub fn is_gemma(&self) -> bool {
        self.arch.starts_with("gemma")
    }

    /// True for either name of gpt-oss.
    pub fn is_gpt_oss(&self) -> bool {
        ["gpt-oss", "gptoss"].contains(&self.arch)
    }

    /// True if queries and keys are normed.
    pub fn norms_qk(&self) -> bool {
        ["qwen3", "qwen35", "gemma3", "gemma3n", "qwen3moe", "lfm2"].contains(&self.arch)
    }

    /// The name of the norm before the feed-forward part.
    pub fn second_norm(&self) -> &'static str {
        match self.arch {
            "gpt-oss" | "qwen35" | "seed_oss" => "post_attention_norm",
            _ if !self.layout.is_empty() => "attn_norm",
            _ => "ffn_norm",
        }
    }

    /// Name and shape of each tensor of a mixture of experts in a layer.
    fn mixture(&self, moe: &Moe) -> Vec<(&'static str, Vec<usize>)> {
        let (e, f, x) = (self.embd, moe.width, moe.experts);
        let width = if moe.latent > 0 { moe.latent } else { e };
        let mut all = vec![("ffn_gate_inp.weight", vec![e, x])];
        if moe.latent > 0 {
            all.push(("ffn_latent_down.weight", vec![e, moe.latent]));
            all.push(("ffn_latent_up.weight", vec![moe.latent, e]));
        }
        match (moe.fused, moe.ungated) {
            (true, _) => all.push(("ffn_gate_up_exps.weight", vec![width, 2 * f, x])),
            (false, false) => {
                all.push(("ffn_gate_exps.weight", vec![width, f, x]));
                all.push(("ffn_up_exps.weight", vec![width, f, x]));
            }
            (false, true) => all.push(("ffn_up_exps.weight", vec![width, f, x])),
        }
        all.push(("ffn_down_exps.weight", vec![f, width, x]));
        if moe.selection {
            all.push(("exp_probs_b.bias", vec![x]));
        }
        if moe.biases {
            all.push(("ffn_gate_inp.bias", vec![x]));
            if moe.fused {
                all.push(("ffn_gate_up_exps.bias", vec![2 * f, x]));
            } else {
                all.push(("ffn_gate_exps.bias", vec![f, x]));
                all.push(("ffn_up_exps.bias", vec![f, x]));
            }
            all.push(("ffn_down_exps.bias", vec![e, x]));
        }
        if moe.shared > 0 {
            if self.arch == "qwen2moe" {
                all.push(("ffn_gate_inp_shexp.weight", vec![e]));
            }
            if !moe.ungated {
                all.push(("ffn_gate_shexp.weight", vec![e, moe.shared]));
            }
            all.push(("ffn_up_shexp.weight", vec![e, moe.shared]));
            all.push(("ffn_down_shexp.weight", vec![moe.shared, e]));
        }
        all
    }

    /// Name and shape (innermost first) of every tensor; vectors have one dimension.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut all = vec![("token_embd.weight".to_owned(), vec![self.embd, self.vocab])];
        let (q, k) = (self.heads * self.key_dim, self.kv_heads * self.key_dim);
        let (v, o) = (self.kv_heads * self.value_dim, self.heads * self.value_dim);
        for l in 0..self.blocks() {
            let mut add = |name: &str, shape: &[usize]| {
                all.push((format!("blk.{l}.{name}"), shape.to_vec()));
            };
            if l == self.layers {
                add("nextn.eh_proj.weight", &[2 * self.embd, self.embd]);
                add("nextn.enorm.weight", &[self.embd]);
                add("nextn.hnorm.weight", &[self.embd]);
                add("nextn.shared_head_norm.weight", &[self.embd]);
            }
            add("attn_norm.weight", &[self.embd]);
            if let Some((Recurrence::Rwkv7(_), _)) = self.recurrent {
                self.rwkv7_layer(l, &mut add);
                continue;
            }
            if self.letter(l) == Some('f') {
                self.feed_forward(l, &mut add);
                continue;
            }
            let recurrence = self.recurrence(l);
            if let Some(recurrence) = recurrence {
                self.recurrent_mixer(recurrence, &mut add);
            }
            if recurrence.is_none() || self.arch == "falcon-h1" {
                match &self.latent {
                    Some(latent) => self.latent_attention(latent, &mut add),
                    None => {
                        let gate = if self.arch == "qwen35" { q } else { 0 };
                        add("attn_q.weight", &[self.embd, q + gate]);
                        if self.stores(l) {
                            add("attn_k.weight", &[self.embd, k]);
                            add("attn_v.weight", &[self.embd, v]);
                        }
                    }
                }
                add("attn_output.weight", &[o, self.embd]);
            }
            if !self.layout.is_empty() {
                continue;
            }
            add(&format!("{}.weight", self.second_norm()), &[self.embd]);
            if self.is_gpt_oss() {
                add("attn_sinks.weight", &[self.heads]);
            }
            self.feed_forward(l, &mut add);
            let mut bias = |name: &str, n: usize| add(&format!("{name}.bias"), &[n]);
            if self.biases || self.qkv_biases {
                bias("attn_q", q);
                bias("attn_k", k);
                bias("attn_v", v);
            }
            if self.biases {
                bias("attn_output", self.embd);
            }
            if self.biases && self.moe.is_none() {
                bias("ffn_gate", self.ff);
                bias("ffn_up", self.ff);
                bias("ffn_down", self.embd);
            }
            if self.norms_qk() && recurrence.is_none() {
                add("attn_q_norm.weight", &[self.key_dim]);
                if self.stores(l) {
                    add("attn_k_norm.weight", &[self.key_dim]);
                }
            }
            if self.arch == "gemma3n" {
                self.add_streams(&mut add);
            }
            if self.is_gemma() {
                add("post_attention_norm.weight", &[self.embd]);
                add("post_ffw_norm.weight", &[self.embd]);
            }
        }
        self.outside_of_layers(&mut all);
        if self.arch == "gptoss" {
            for (name, _) in &mut all {
                *name = name
                    .replace("attn_output", "attn_out")
                    .replace("attn_sinks.weight", "attn_sinks");
            }
        }
        all
    }

    /// Layers in the file.
    fn blocks(&self) -> usize {
        self.layers + usize::from(self.mtp)
    }

    fn latent_attention(&self, latent: &Latent, add: &mut impl FnMut(&str, &[usize])) {
        let Latent { query_rank, rank, unrotated, .. } = *latent;
        let (heads, rotated) = (self.heads, self.rope_dims.unwrap());
        let q = heads * (unrotated + rotated);
        if query_rank > 0 {
            add("attn_q_a.weight", &[self.embd, query_rank]);
            add("attn_q_a_norm.weight", &[query_rank]);
            add("attn_q_b.weight", &[query_rank, q]);
        } else {
            add("attn_q.weight", &[self.embd, q]);
        }
        add("attn_kv_a_mqa.weight", &[self.embd, rank + rotated]);
        add("attn_kv_a_norm.weight", &[rank]);
        if latent.together {
            add("attn_kv_b.weight", &[rank, heads * (unrotated + self.value_dim)]);
        } else {
            add("attn_k_b.weight", &[unrotated, rank, heads]);
            add("attn_v_b.weight", &[rank, self.value_dim, heads]);
        }
    }

    /// The part that a layer has in place of attention, if any.
    fn recurrence(&self, layer: usize) -> Option<Recurrence> {
        let (recurrence, interval) = self.recurrent?;
        let here = match self.letter(layer) {
            Some(letter) => letter == 'm',
            None => !(layer + 1).is_multiple_of(interval),
        };
        here.then_some(recurrence)
    }

    /// Tensors that come before and after the layers, except for the embedding.
    fn outside_of_layers(&self, all: &mut Vec<(String, Vec<usize>)>) {
        let last = if self.arch == "lfm2" { "token_embd_norm" } else { "output_norm" };
        all.push((format!("{last}.weight"), vec![self.embd]));
        if self.arch == "gemma3n" {
            let (e, width) = (self.embd, self.layers * FROM_TOKEN);
            all.push(("altup_proj.weight".into(), vec![e, e, 3]));
            all.push(("altup_unembd_proj.weight".into(), vec![e, e, 3]));
            all.push(("per_layer_token_embd.weight".into(), vec![width, self.vocab]));
            all.push(("per_layer_model_proj.weight".into(), vec![e, width]));
            all.push(("per_layer_proj_norm.weight".into(), vec![FROM_TOKEN]));
        }
        if !self.tied {
            all.push(("output.weight".to_owned(), vec![self.embd, self.vocab]));
        }
        if self.arch == "rwkv7" {
            for name in ["token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias"] {
                all.push((name.to_owned(), vec![self.embd]));
            }
        }
        if self.biases {
            all.push(("output.bias".to_owned(), vec![self.vocab]));
        }
        if self.long_context.is_some() {
            let pairs = self.rope_dims.unwrap_or(self.key_dim) / 2;
            for kind in ["short", "long"] {
                all.push((format!("rope_factors_{kind}.weight"), vec![pairs]));
            }
        }
        if self.factors {
            all.push((
                "rope_freqs.weight".to_owned(),
                vec![self.rope_dims.unwrap_or(self.key_dim) / 2],
            ));
        }
    }

    /// True if a layer has keys and values of its own.
    fn stores(&self, layer: usize) -> bool {
        self.arch != "gemma3n" || layer + SHARED_KV < self.layers
    }

    /// The tensors that a layer of Gemma 3n has in addition to those of Gemma 3.
    fn add_streams(&self, add: &mut impl FnMut(&str, &[usize])) {
        let e = self.embd;
        for (name, shape) in [
            ("laurel_l", vec![e, 64]),
            ("laurel_r", vec![64, e]),
            ("laurel_post_norm", vec![e]),
            ("altup_router_norm", vec![e]),
            ("altup_router", vec![e, 4]),
            ("altup_predict_coef", vec![4, 16]),
            ("altup_correct_coef", vec![4, 4]),
            ("altup_correct_scale", vec![e]),
            ("inp_gate", vec![e, FROM_TOKEN]),
            ("proj", vec![FROM_TOKEN, e]),
            ("post_norm", vec![e]),
        ] {
            add(&format!("{name}.weight"), &shape);
        }
    }

    /// The one part that a layer has instead of two parts.
    fn letter(&self, layer: usize) -> Option<char> {
        self.layout.chars().nth(layer)
    }

    fn feed_forward(&self, layer: usize, add: &mut impl FnMut(&str, &[usize])) {
        match self.moe.as_ref().filter(|_| self.latent.is_none_or(|m| layer >= m.leading)) {
            Some(moe) => self.mixture(moe).iter().for_each(|(name, shape)| add(name, shape)),
            None => {
                if self.layout.is_empty() {
                    add("ffn_gate.weight", &[self.embd, self.ff]);
                }
                add("ffn_up.weight", &[self.embd, self.ff]);
                add("ffn_down.weight", &[self.ff, self.embd]);
            }
        }
    }

    fn recurrent_mixer(&self, recurrence: Recurrence, add: &mut impl FnMut(&str, &[usize])) {
        let embd = self.embd;
        match recurrence {
            Recurrence::DeltaNet([keys, values, dim]) => {
                let (inner, mixed) = (values * dim, (2 * keys + values) * dim);
                add("attn_qkv.weight", &[embd, mixed]);
                add("attn_gate.weight", &[embd, inner]);
                add("ssm_alpha.weight", &[embd, values]);
                add("ssm_beta.weight", &[embd, values]);
                add("ssm_conv1d.weight", &[TAPS, mixed]);
                add("ssm_dt.bias", &[values]);
                add("ssm_a", &[values]);
                add("ssm_norm.weight", &[dim]);
                add("ssm_out.weight", &[inner, embd]);
            }
            Recurrence::ShortConv => {
                add("shortconv.in_proj.weight", &[embd, 3 * embd]);
                add("shortconv.conv.weight", &[TAPS, embd]);
                add("shortconv.out_proj.weight", &[embd, embd]);
            }
            Recurrence::Mamba2([heads, groups, dim, len]) => {
                let (inner, mixed) = (heads * dim, heads * dim + 2 * groups * len);
                add("ssm_in.weight", &[embd, inner + mixed + heads]);
                add("ssm_conv1d.weight", &[TAPS, mixed]);
                add("ssm_conv1d.bias", &[mixed]);
                add("ssm_dt.bias", &[heads]);
                add("ssm_a", &[1, heads]);
                add("ssm_d", &[1, heads]);
                add("ssm_norm.weight", &[inner / groups, groups]);
                add("ssm_out.weight", &[inner, embd]);
            }
            Recurrence::Mamba([channels, len, rank]) => {
                add("ssm_in.weight", &[embd, 2 * channels]);
                add("ssm_conv1d.weight", &[TAPS, channels]);
                add("ssm_conv1d.bias", &[channels]);
                add("ssm_x.weight", &[channels, rank + 2 * len]);
                add("ssm_dt_norm.weight", &[rank]);
                add("ssm_b_norm.weight", &[len]);
                add("ssm_c_norm.weight", &[len]);
                add("ssm_dt.weight", &[rank, channels]);
                add("ssm_dt.bias", &[channels]);
                add("ssm_a", &[len, channels]);
                add("ssm_d", &[channels]);
                add("ssm_out.weight", &[channels, embd]);
            }
            Recurrence::Rwkv7(_) => unreachable!("its layers have their own tensors"),
            Recurrence::Kda(dim) => {
                let inner = self.heads * dim;
                for name in ["q", "k", "v"] {
                    add(&format!("attn_{name}.weight"), &[embd, inner]);
                    add(&format!("ssm_conv1d_{name}.weight"), &[TAPS, inner]);
                }
                for name in ["f", "g"] {
                    add(&format!("ssm_{name}_a.weight"), &[embd, dim]);
                    add(&format!("ssm_{name}_b.weight"), &[dim, inner]);
                }
                add("ssm_beta.weight", &[embd, self.heads]);
                add("ssm_dt.bias", &[inner]);
                add("ssm_a", &[1, self.heads]);
                add("ssm_norm.weight", &[dim]);
                add("attn_output.weight", &[inner, embd]);
            }
        }
    }

    /// The tensors of a layer of RWKV-7 after the first.
    fn rwkv7_layer(&self, layer: usize, add: &mut impl FnMut(&str, &[usize])) {
        let (e, ff) = (self.embd, self.ff);
        for name in ["attn_norm.bias", "attn_norm_2.weight", "attn_norm_2.bias"] {
            add(name, &[e]);
        }
        for (letter, rank) in [("w", 8), ("a", 12), ("v", 4), ("g", 20)] {
            if letter == "v" && layer == 0 {
                continue;
            }
            if letter != "g" {
                add(&format!("time_mix_{letter}0.weight"), &[e]);
            }
            add(&format!("time_mix_{letter}1.weight"), &[e, rank]);
            add(&format!("time_mix_{letter}2.weight"), &[rank, e]);
        }
        add("time_mix_lerp_fused.weight", &[6 * e]);
        for name in ["k_k", "k_a", "r_k", "ln"] {
            add(&format!("time_mix_{name}.weight"), &[e]);
        }
        add("time_mix_ln.bias", &[e]);
        for name in ["receptance", "key", "value", "output"] {
            add(&format!("time_mix_{name}.weight"), &[e, e]);
        }
        add("channel_mix_lerp_k.weight", &[e]);
        add("channel_mix_key.weight", &[e, ff]);
        add("channel_mix_value.weight", &[ff, e]);
    }

    /// The keys of recurrent layers, and of which layers they are.
    fn recurrent_keys(&self, recurrence: Recurrence, interval: usize, skip: &str, b: &mut Builder) {
        let ssm = |heads: usize, dim: usize, groups: usize, len: usize| {
            vec![
                ("ssm.conv_kernel", TAPS),
                ("ssm.state_size", len),
                ("ssm.group_count", groups),
                ("ssm.time_step_rank", heads),
                ("ssm.inner_size", heads * dim),
            ]
        };
        let keys = match recurrence {
            Recurrence::DeltaNet([keys, values, dim]) => {
                let mut all = ssm(values, dim, keys, dim);
                all.push(("full_attention_interval", interval));
                all
            }
            Recurrence::ShortConv => vec![("shortconv.l_cache", TAPS)],
            Recurrence::Mamba2([heads, groups, dim, len]) => ssm(heads, dim, groups, len),
            Recurrence::Mamba([channels, len, rank]) => {
                let mut all = ssm(rank, 0, 1, len);
                all.last_mut().unwrap().1 = channels;
                all
            }
            Recurrence::Kda(dim) => vec![("ssm.conv_kernel", TAPS), ("kda.head_dim", dim)],
            Recurrence::Rwkv7(dim) => vec![("wkv.head_size", dim)],
        };
        for (name, value) in keys {
            if skip != name {
                b.u32(&format!("{}.{name}", self.arch), value as u32);
            }
        }
    }

    /// The metadata; `skip` leaves out one key.
    pub fn metadata(&self, skip: &str) -> Builder {
        let mut b = Builder::new();
        let key = |name: &str| format!("{}.{name}", self.arch);
        if skip != "general.architecture" {
            b.str("general.architecture", self.arch);
        }
        for (name, value) in [
            ("block_count", self.blocks()),
            ("context_length", self.context),
            ("embedding_length", self.embd),
            ("attention.head_count", self.heads),
        ] {
            if skip != name {
                b.u32(&key(name), value as u32);
            }
        }
        if self.mtp {
            b.u32(&key("nextn_predict_layers"), 1);
        }
        let of_layers = |value: usize, letter: char| {
            let here = |found: char| if found == letter { value as u32 } else { 0 };
            self.layout.chars().map(here).collect::<Vec<_>>()
        };
        match self.layout {
            _ if skip == "feed_forward_length" => {}
            "" => {
                b.u32(&key("feed_forward_length"), self.ff as u32);
            }
            _ => {
                b.u32s(&key("feed_forward_length"), &of_layers(self.ff, 'f'));
            }
        }
        let kv = "attention.head_count_kv";
        match self.recurrent {
            Some((recurrence, _))
                if skip != kv
                    && !matches!(recurrence, Recurrence::DeltaNet(_))
                    && self.arch != "falcon-h1" =>
            {
                let heads = |l| if self.recurrence(l).is_none() { self.kv_heads as u32 } else { 0 };
                let all = (0..self.layers).map(heads).collect::<Vec<_>>();
                let some = of_layers(self.kv_heads, 'a');
                b.u32s(&key(kv), if self.layout.is_empty() { &all } else { &some });
            }
            _ if skip != kv => {
                b.u32(&key(kv), self.kv_heads as u32);
            }
            _ => {}
        }
        if skip != "attention.layer_norm_rms_epsilon" {
            b.f32(&key("attention.layer_norm_rms_epsilon"), self.eps);
        }
        b.f32(&key("rope.freq_base"), self.rope_base);
        if !self.causal {
            b.bool(&key("attention.causal"), false);
        }
        if let Some(latent) = &self.latent {
            self.latent_keys(latent, skip, &mut b);
        } else if self.key_dim != self.embd / self.heads && skip != "attention.key_length" {
            b.u32(&key("attention.key_length"), self.key_dim as u32);
        }
        if self.latent.is_none()
            && self.value_dim != self.embd / self.heads
            && skip != "attention.value_length"
        {
            b.u32(&key("attention.value_length"), self.value_dim as u32);
        }
        if let Some(dims) = self.rope_dims {
            b.u32(&key("rope.dimension_count"), dims as u32);
        }
        if let Some(original) = self.long_context {
            b.u32(&key("rope.scaling.original_context_length"), original as u32);
            b.f32(&key("rope.scaling.attn_factor"), 1.2);
        }
        match self.scaling {
            Scaling::None => {}
            Scaling::Linear(factor) => {
                b.str(&key("rope.scaling.type"), "linear");
                b.f32(&key("rope.scaling.factor"), factor);
            }
            Scaling::Yarn { factor, original, magnitude } => {
                b.str(&key("rope.scaling.type"), "yarn");
                b.f32(&key("rope.scaling.factor"), factor);
                b.u32(&key("rope.scaling.original_context_length"), original as u32);
                if magnitude != 0.0 {
                    b.f32(&key("rope.scaling.yarn_attn_factor"), magnitude);
                }
            }
        }
        if self.arch == "gemma3n" {
            for (name, value) in [
                ("attention.shared_kv_layers", SHARED_KV),
                ("embedding_length_per_layer_input", FROM_TOKEN),
            ] {
                if skip != name {
                    b.u32(&key(name), value as u32);
                }
            }
        }
        if let Some(scales) = self.scales {
            let names = ["embedding_scale", "attention.scale", "residual_scale", "logit_scale"];
            for (name, scale) in names.into_iter().zip(scales) {
                b.f32(&key(name), scale);
            }
        }
        if let Some(moe) = &self.moe {
            self.mixture_keys(moe, skip, &mut b);
        }
        if let Some((window, period)) = self.window {
            b.u32(&key("attention.sliding_window"), window as u32);
            if period != if self.arch == "gemma3" { 6 } else { 2 } {
                b.u32(&key("attention.sliding_window_pattern"), period as u32);
            }
        }
        if let Some((recurrence, interval)) = self.recurrent {
            self.recurrent_keys(recurrence, interval, skip, &mut b);
        }
        if self.attn_cap != 0.0 {
            b.f32(&key("attn_logit_softcapping"), self.attn_cap);
        }
        if self.logit_cap != 0.0 {
            b.f32(&key("final_logit_softcapping"), self.logit_cap);
        }
        if skip != "tokenizer" {
            add_tokenizer(&mut b, self.vocab);
        }
        b
    }

    fn latent_keys(&self, latent: &Latent, skip: &str, b: &mut Builder) {
        let Latent { query_rank, rank, unrotated, together, .. } = *latent;
        let rotated = self.rope_dims.unwrap();
        let key_dim = unrotated + rotated;
        let (key, value) =
            if together { (key_dim, self.value_dim) } else { (rank + rotated, rank) };
        let of_heads = if together { [0, 0] } else { [key_dim, self.value_dim] };
        for (name, value) in [
            ("attention.q_lora_rank", query_rank),
            ("attention.kv_lora_rank", rank),
            ("attention.key_length", key),
            ("attention.value_length", value),
            ("attention.key_length_mla", of_heads[0]),
            ("attention.value_length_mla", of_heads[1]),
            ("leading_dense_block_count", latent.leading),
        ] {
            if skip != name && value > 0 {
                b.u32(&format!("{}.{name}", self.arch), value as u32);
            }
        }
        if latent.multiplier != 0.0 {
            // Files have a tenth of it.
            let name = format!("{}.rope.scaling.yarn_log_multiplier", self.arch);
            b.f32(&name, latent.multiplier / 10.0);
        }
    }

    fn mixture_keys(&self, moe: &Moe, skip: &str, b: &mut Builder) {
        if self.arch == "llama4" && skip != "interleave_moe_layer_step" {
            b.u32("llama4.interleave_moe_layer_step", 1);
        }
        let key = |name: &str| format!("{}.{name}", self.arch);
        let shared = match self.latent {
            Some(_) => "expert_shared_count",
            None => "expert_shared_feed_forward_length",
        };
        for (name, value) in [
            ("expert_count", moe.experts),
            ("expert_used_count", moe.used),
            ("expert_feed_forward_length", moe.width),
            (shared, if self.latent.is_some() { moe.shared / moe.width } else { moe.shared }),
            ("moe_latent_size", moe.latent),
            ("expert_gating_func", moe.gating as usize),
            ("expert_group_count", moe.groups.0 as usize),
            ("expert_group_used_count", moe.groups.1 as usize),
        ] {
            if skip != name && value > 0 {
                b.u32(&key(name), value as u32);
            }
        }
        if let Some(normed) = moe.normed {
            b.bool(&key("expert_weights_norm"), normed);
        }
        if moe.scale != 0.0 {
            b.f32(&key("expert_weights_scale"), moe.scale);
        }
    }

    /// The model's file with its tensors renamed, joined or otherwise changed: name, shape and F32 weights of each.
    pub fn write_as(
        &self,
        path: &Path,
        arch: &'static str,
        tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    ) {
        let mut b = Spec { arch, ..self.clone() }.metadata("");
        for (name, shape, _) in &tensors {
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            b.tensor(name, GgmlType::F32, &shape).unwrap();
        }
        let bytes = b.file(|i, out| {
            for (out, weight) in out.chunks_exact_mut(4).zip(&tensors[i].2) {
                out.copy_from_slice(&weight.to_le_bytes());
            }
        });
        std::fs::write(path, bytes).unwrap();
    }

    /// The file, and the weights that it holds, exactly, by name.
    pub fn build(&self) -> (Vec<u8>, HashMap<String, Vec<f32>>) {
        let mut b = self.metadata("");
        let mut random = Random(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1);
        let mut weights = HashMap::new();
        let mut data = Vec::new();
        for (name, shape) in self.tensors() {
            let elements: usize = shape.iter().product();
            let float = shape.len() == 1
                || [
                    "altup_router",
                    "altup_predict",
                    "altup_correct",
                    "ffn_gate_inp",
                    "conv1d",
                    "shortconv.conv",
                    "ssm_a",
                    "ssm_d",
                    "ssm_norm",
                ]
                .iter()
                .any(|part| name.contains(part))
                || name.ends_with(".bias");
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
        let (bytes, weights) = self.build();
        let path = folder.join(format!("{}-{}.gguf", self.arch, self.seed));
        std::fs::write(&path, bytes).unwrap();
        (path, weights)
    }
}

/// Adds a tokenizer of `vocab` tokens, those of bytes among them.
pub(crate) fn add_tokenizer(b: &mut Builder, vocab: usize) {
    b.str("tokenizer.ggml.model", "llama");
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    let mut types = vec![2, 3, 3];
    for byte in 0..256.min(vocab - 3) {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
    }
    while tokens.len() < vocab {
        tokens.push(format!("w{}", tokens.len()));
        types.push(1);
    }
    b.strs("tokenizer.ggml.tokens", &tokens);
    b.f32s("tokenizer.ggml.scores", &vec![0.0; vocab]);
    b.i32s("tokenizer.ggml.token_type", &types);
    b.u32("tokenizer.ggml.bos_token_id", 1);
    b.u32("tokenizer.ggml.eos_token_id", 2);
    b.u32("tokenizer.ggml.unknown_token_id", 0);
}

pub fn kernel_type(ty: GgmlType) -> WeightType {
    WeightType::of(ty).unwrap()
}

/// Random weights of a scale that keeps activations near 1.
pub(crate) fn fill(
    ty: GgmlType,
    name: &str,
    shape: &[usize],
    n: usize,
    random: &mut Random,
) -> Vec<u8> {
    // Rates of decay are negative.
    let vector = shape.len() == 1 || name.ends_with("ssm_a");
    let scale = if name == "token_embd.weight" {
        1.0
    } else if vector {
        0.3
    } else {
        1.7 / (shape[0] as f32).sqrt()
    };
    let offset = if vector && name.contains("norm") || name.starts_with("rope_f") {
        1.2
    } else if name.ends_with("ssm_a") {
        -0.5
    } else {
        0.0
    };
    let mut value = || offset + scale * random.signed();
    match ty {
        GgmlType::F32 => (0..n).flat_map(|_| value().to_le_bytes()).collect(),
        GgmlType::F16 => (0..n).flat_map(|_| f32_to_f16(value()).to_le_bytes()).collect(),
        GgmlType::BF16 => (0..n).flat_map(|_| f32_to_bf16(value()).to_le_bytes()).collect(),
        GgmlType::Q8_0 | GgmlType::Q4_0 => {
            let (largest, bytes) = if ty == GgmlType::Q8_0 { (127.0, 32) } else { (8.0, 16) };
            let d = f32_to_f16(scale / largest);
            assert!(f16_to_f32(d) > 0.0);
            (0..n / 32)
                .flat_map(|_| {
                    let mut block = d.to_le_bytes().to_vec();
                    block.extend((0..bytes).map(|_| random.bits() as u8));
                    block
                })
                .collect()
        }
        _ => blocks(kernel_type(ty), scale, n, random),
    }
}

/// Blocks of any bits except for their scales, by which no weight is larger than `scale`.
fn blocks(ty: WeightType, scale: f32, n: usize, random: &mut Random) -> Vec<u8> {
    let (len, bytes) = (ty.block_len(), ty.block_bytes());
    let set = |block: &mut [u8], d: f32| {
        for field in ty.scale_fields() {
            field.set(block, d);
        }
    };
    let mut all: Vec<u8> = (0..n / len * bytes).map(|_| random.bits() as u8).collect();
    let mut values = vec![0.0; len];
    for block in all.chunks_exact_mut(bytes) {
        set(block, 1.0);
        dequantize_row(ty, block, &mut values);
        let most = values.iter().fold(1e-3f32, |most, w| most.max(w.abs()));
        set(block, scale / most);
    }
    all
}

/// Tokens to feed.
pub fn tokens(n: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed + 77);
    (0..n).map(|_| random.below(vocab) as u32).collect()
}

/// Largest absolute difference.
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

/// KL divergence of `b` from `a`, both logits.
pub fn divergence(a: &[f32], b: &[f32]) -> f64 {
    let log = |x: &[f32]| {
        let most = x.iter().copied().fold(f32::MIN, f32::max) as f64;
        let sum: f64 = x.iter().map(|v| (*v as f64 - most).exp()).sum();
        x.iter().map(|v| *v as f64 - most - sum.ln()).collect::<Vec<_>>()
    };
    let (a, b) = (log(a), log(b));
    a.iter().zip(&b).map(|(a, b)| a.exp() * (a - b)).sum()
}
