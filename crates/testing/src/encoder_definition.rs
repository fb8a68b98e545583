//! Encoders in float64, written down from the definition of each architecture by those who made it. Keys and values of decoders are rounded to f16,
//! as the cache does; everything else in it is exact.

use std::collections::HashMap;
use std::ops::Range;

use crate::definition::f16;
use crate::encoders::{BUCKETS, Encoder, TAPS};

/// Something that a program could do wrong, which a test has to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// GELU in its tanh form.
    TanhGelu,
    /// Every token is of the first segment.
    OneSegment,
    /// A token sees none after it.
    Causal,
    /// A window twice as wide, or one position wider.
    WideWindow,
    LongerWindow,
    /// No norm of the embeddings.
    NoEmbeddingNorm,
    /// Norms before the parts instead of after the sums.
    NormsBefore,
    /// Positions begin at 1.
    LaterPositions,
    /// The other pairing of rotated elements.
    OtherPairs,
    /// Layers with windows rotate as those without.
    OneBase,
    /// The first layer has a norm.
    FirstNorm,
    /// The bias of the experts' sum is left out.
    NoBiasOfExperts,
    /// The chosen experts' weights are divided by their sum.
    NormedExperts,
    /// The halves of a matrix of gate and up in the other order.
    SwappedHalves,
    /// Scores have no biases.
    NoBias,
    /// Distances before and after are alike, or the other way round.
    OtherSide,
    /// The second norm is missing.
    OneNorm,
    /// Heads of queries and keys are normed one by one.
    NormedHeads,
}

/// The definition of an encoder with these weights.
pub struct Definition<'s> {
    pub spec: &'s Encoder,
    pub w: HashMap<String, Vec<f64>>,
    pub mistake: Mistake,
}

fn sum(values: impl Iterator<Item = f64>) -> f64 {
    values.sum()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    sum(a.iter().zip(b).map(|(a, b)| a * b))
}

impl Definition<'_> {
    pub fn of<'s>(spec: &'s Encoder, weights: &HashMap<String, Vec<f32>>) -> Definition<'s> {
        let wide = |values: &Vec<f32>| values.iter().copied().map(f64::from).collect();
        let w = weights.iter().map(|(name, values)| (name.clone(), wide(values))).collect();
        Definition { spec, w, mistake: Mistake::None }
    }

    fn weight(&self, name: &str) -> &[f64] {
        self.w.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == mistake
    }

    /// W x + b, with the bias if there is one.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.weight(&format!("{name}.weight")).chunks(x.len());
        let bias = self.w.get(&format!("{name}.bias"));
        rows.enumerate().map(|(i, row)| dot(row, x) + bias.map_or(0.0, |bias| bias[i])).collect()
    }

    /// LayerNorm or RMSNorm; nothing if the file has no such norm.
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let Some(weight) = self.w.get(&format!("{name}.weight")) else { return x.to_vec() };
        let n = x.len() as f64;
        let mean = if self.spec.has_layer_norms() { sum(x.iter().copied()) / n } else { 0.0 };
        let variance = sum(x.iter().map(|x| (x - mean) * (x - mean))) / n;
        let root = (variance + f64::from(self.spec.eps)).sqrt();
        let bias = self.w.get(&format!("{name}.bias"));
        let normed = x.iter().zip(weight).map(|(x, w)| (x - mean) / root * w);
        normed.enumerate().map(|(i, x)| x + bias.map_or(0.0, |bias| bias[i])).collect()
    }

    fn gelu(&self, x: f64) -> f64 {
        if ["gemma-embedding", "t5encoder"].contains(&self.spec.arch) || self.is(Mistake::TanhGelu)
        {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            return 0.5 * x * (1.0 + u.tanh());
        }
        0.5 * x * libm::erfc(-x / std::f64::consts::SQRT_2)
    }

    /// The function of a gate, or of the only projection.
    fn activation(&self, x: f64) -> f64 {
        match self.spec.arch {
            "nomic-bert" | "eurobert" | "llama-embed" | "neo-bert" | "lfm2" | "qwen3" => {
                x / (1.0 + (-x).exp())
            }
            _ => self.gelu(x),
        }
    }

    fn has_window(&self, layer: usize) -> bool {
        self.spec.window.is_some_and(|(_, period)| match self.spec.arch {
            "modern-bert" => !layer.is_multiple_of(period),
            _ => layer % period != period - 1,
        })
    }

    /// The positions that the one at `i` sees, of `n`.
    fn seen(&self, layer: usize, i: usize, n: usize) -> Range<usize> {
        let n = if self.spec.causal != self.is(Mistake::Causal) { i + 1 } else { n };
        match self.spec.window.filter(|_| self.has_window(layer)) {
            None => 0..n,
            Some((width, _)) => {
                let away = match self.mistake {
                    Mistake::WideWindow => width,
                    Mistake::LongerWindow => width / 2 + 1,
                    _ => width / 2,
                };
                i.saturating_sub(away)..n.min(i + away + 1)
            }
        }
    }

    fn rotate(&self, layer: usize, position: usize, head: &mut [f64]) {
        if ["bert", "jina-bert-v2", "t5encoder"].contains(&self.spec.arch) {
            return;
        }
        let local = self.has_window(layer) && !self.is(Mistake::OneBase);
        let base = if local { 10_000.0 } else { f64::from(self.spec.rope_base) };
        let n = head.len();
        let neighbours = ["llama-embed", "neo-bert"].contains(&self.spec.arch);
        for i in 0..n / 2 {
            let angle = position as f64 * base.powf(-2.0 * i as f64 / n as f64);
            let neighbours = neighbours != self.is(Mistake::OtherPairs);
            let (a, b) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + n / 2) };
            let (x, y) = (head[a], head[b]);
            head[a] = x * angle.cos() - y * angle.sin();
            head[b] = x * angle.sin() + y * angle.cos();
        }
    }

    /// The bias of the score of a head for a key at a distance.
    fn bias(&self, head: usize, distance: isize) -> f64 {
        let away = distance.unsigned_abs() as f64;
        match self.spec.arch {
            _ if self.is(Mistake::NoBias) => 0.0,
            // Six heads: four, and two of eight.
            "jina-bert-v2" => {
                let exponent = [2.0, 4.0, 6.0, 8.0, 1.0, 3.0][head];
                -away / f64::powf(2.0, exponent)
            }
            "t5encoder" => {
                let half = BUCKETS as f64 / 2.0;
                let exact = half / 2.0;
                let further = (away / exact).ln() / (128.0 / exact).ln() * (half - exact);
                // A distance at the edge of a bucket is in the further one.
                let bucket = match away < exact {
                    true => away,
                    false => (exact + (further + 1e-9).floor()).min(half - 1.0),
                };
                let after = (distance > 0) != self.is(Mistake::OtherSide);
                let bucket = bucket + if after { half } else { 0.0 };
                self.weight("enc.blk.0.attn_rel_b.weight")[bucket as usize * self.spec.heads + head]
            }
            _ => 0.0,
        }
    }

    /// The outputs of a layer's convolution for all tokens.
    fn convolution(&self, layer: usize, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let e = self.spec.hidden;
        let name = |what: &str| format!("{}.{layer}.{what}", self.spec.prefix());
        let all: Vec<Vec<f64>> =
            inputs.iter().map(|x| self.linear(&name("shortconv.in_proj"), x)).collect();
        let taps = self.weight(&name("shortconv.conv.weight"));
        let middle = if self.is(Mistake::Causal) { TAPS - 1 } else { TAPS / 2 };
        let output = |i: usize| {
            let of = |c: usize| {
                let term = |j: usize| {
                    let row = (i + j).checked_sub(middle).and_then(|row| all.get(row));
                    row.map_or(0.0, |row| taps[c * TAPS + j] * row[c] * row[2 * e + c])
                };
                all[i][e + c] * sum((0..TAPS).map(term))
            };
            self.linear(&name("shortconv.out_proj"), &(0..e).map(of).collect::<Vec<_>>())
        };
        (0..inputs.len()).map(output).collect()
    }

    /// The outputs of a layer's attention for all tokens.
    fn attention(&self, layer: usize, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let s = self.spec;
        let dim = s.head_dim;
        let name = |what: &str| format!("{}.{layer}.{what}", self.spec.prefix());
        let (q_width, kv_width) = (s.heads * dim, s.kv_heads * dim);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (position, x) in inputs.iter().enumerate() {
            let [mut q, mut k, v] = if s.fused {
                let all = self.linear(&name("attn_qkv"), x);
                let (q, kv) = all.split_at(q_width);
                let (k, v) = kv.split_at(kv_width);
                [q, k, v].map(<[f64]>::to_vec)
            } else {
                ["attn_q", "attn_k", "attn_v"].map(|what| self.linear(&name(what), x))
            };
            for (what, row) in [("attn_q_norm", &mut q), ("attn_k_norm", &mut k)] {
                if s.arch == "jina-bert-v2" {
                    let [whole, heads] = [row.len(), dim];
                    let part = if self.is(Mistake::NormedHeads) { heads } else { whole };
                    for part in row.chunks_mut(part) {
                        part.copy_from_slice(&self.norm(&name(what), part));
                    }
                    continue;
                }
                for head in row.chunks_mut(dim) {
                    head.copy_from_slice(&self.norm(&name(what), head));
                    self.rotate(layer, position, head);
                }
            }
            queries.push(q);
            // Those kept for later tokens are rounded.
            let kept = |x| if self.spec.causal { f16(x) } else { x };
            keys.push(k.into_iter().map(kept).collect::<Vec<_>>());
            values.push(v.into_iter().map(kept).collect::<Vec<_>>());
        }
        let attended = queries.iter().enumerate().map(|(i, q)| {
            let seen = self.seen(layer, i, inputs.len());
            let mut out = Vec::new();
            for (head, q) in q.chunks(dim).enumerate() {
                let at = head / (s.heads / s.kv_heads) * dim;
                let scale = if s.arch == "t5encoder" { 1.0 } else { (dim as f64).sqrt() };
                let score = |j: usize| {
                    let product = dot(q, &keys[j][at..at + dim]) / scale;
                    product + self.bias(head, j as isize - i as isize)
                };
                let scores: Vec<f64> = seen.clone().map(score).collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let total = sum(weights.iter().copied());
                let column = |d: usize| {
                    sum(weights
                        .iter()
                        .zip(seen.clone())
                        .map(|(w, j)| w / total * values[j][at + d]))
                };
                out.extend((0..dim).map(column));
            }
            let output = if s.arch == "t5encoder" { "attn_o" } else { "attn_output" };
            self.linear(&name(output), &out)
        });
        attended.collect()
    }

    /// The output of a layer's feed-forward part.
    fn feed_forward(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let name = |what: &str| format!("{}.{layer}.{what}", self.spec.prefix());
        if self.spec.has_experts(layer) {
            return self.experts(layer, x);
        }
        let mut up = self.linear(&name("ffn_up"), x);
        let gate = match self.spec.arch {
            "modern-bert" | "neo-bert" => {
                let second = up.split_off(self.spec.ff);
                let (gate, rest) = match self.is(Mistake::SwappedHalves) {
                    false => (up, second),
                    true => (second, up),
                };
                up = rest;
                Some(gate)
            }
            _ if self.spec.has_gate() => Some(self.linear(&name("ffn_gate"), x)),
            _ => None,
        };
        let activated: Vec<f64> = match gate {
            Some(gate) => gate.iter().zip(&up).map(|(g, u)| self.activation(*g) * u).collect(),
            None => up.iter().map(|u| self.activation(*u)).collect(),
        };
        self.linear(&name("ffn_down"), &activated)
    }

    fn experts(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let [experts, used, _] = self.spec.experts.unwrap();
        let (e, f) = (self.spec.hidden, self.spec.ff);
        let name = |what: &str| format!("{}.{layer}.{what}", self.spec.prefix());
        let logits = self.linear(&name("ffn_gate_inp"), x);
        let total = sum(logits.iter().map(|l| l.exp()));
        let mut chosen: Vec<usize> = (0..experts).collect();
        chosen.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        chosen.truncate(used);
        let share = |expert: usize| logits[expert].exp() / total;
        let of_chosen = match self.is(Mistake::NormedExperts) {
            true => sum(chosen.iter().map(|expert| share(*expert))),
            false => 1.0,
        };
        let mut out = vec![0.0; e];
        for expert in chosen {
            let up = &self.weight(&name("ffn_up_exps.weight"))[expert * e * f..][..e * f];
            let up: Vec<f64> = up.chunks(e).map(|row| self.gelu(dot(row, x))).collect();
            let down = &self.weight(&name("ffn_down_exps.weight"))[expert * e * f..][..e * f];
            for (out, row) in out.iter_mut().zip(down.chunks(f)) {
                *out += share(expert) / of_chosen * dot(row, &up);
            }
        }
        if !self.is(Mistake::NoBiasOfExperts) {
            let bias = self.weight(&name("ffn_moe_out.bias"));
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    /// The embedding of a token.
    fn embedded(&self, position: usize, token: u32, second: usize) -> Vec<f64> {
        let s = self.spec;
        let row = |table: &str, row: usize| &self.weight(table)[row * s.hidden..][..s.hidden];
        let scale = if s.arch == "gemma-embedding" { (s.hidden as f64).sqrt() } else { 1.0 };
        let mut x: Vec<f64> =
            row("token_embd.weight", token as usize).iter().map(|x| x * scale).collect();
        let mut add = |other: &[f64]| x.iter_mut().zip(other).for_each(|(x, o)| *x += o);
        if s.segments > 0 {
            let is_second = position >= second && s.segments > 1 && !self.is(Mistake::OneSegment);
            add(row("token_types.weight", usize::from(is_second)));
        }
        if s.arch == "bert" {
            let later = usize::from(self.is(Mistake::LaterPositions));
            add(row("position_embd.weight", position + later));
        }
        match s.has_layer_norms() && !self.is(Mistake::NoEmbeddingNorm) {
            true => self.norm("token_embd_norm", &x),
            false => x,
        }
    }

    /// The final state `[hidden]` of each token of a text whose second segment begins at `second`.
    pub fn states(&self, tokens: &[u32], second: usize) -> Vec<Vec<f64>> {
        let s = self.spec;
        let tokens = tokens.iter().enumerate();
        let mut all: Vec<Vec<f64>> =
            tokens.map(|(position, token)| self.embedded(position, *token, second)).collect();
        let add = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x + y).collect::<Vec<f64>>();
        // The norm before a part, that of its output, and that of the sum.
        let names = match s.arch {
            _ if s.is_bert() && self.is(Mistake::NormsBefore) => {
                [["attn_output_norm", "", ""], ["layer_output_norm", "", ""]]
            }
            _ if s.is_bert() => [["", "", "attn_output_norm"], ["", "", "layer_output_norm"]],
            _ => [["attn_norm", "post_attention_norm", ""], ["ffn_norm", "post_ffw_norm", ""]],
        };
        for layer in 0..s.layers {
            for (part, [before, after, of_sum]) in names.into_iter().enumerate() {
                let norm = |what: &str, x: &[f64]| {
                    self.norm(&format!("{}.{layer}.{what}", self.spec.prefix()), x)
                };
                let first = layer == 0 && part == 0 && self.is(Mistake::FirstNorm);
                let before = if first { "ffn_norm" } else { before };
                let inputs: Vec<Vec<f64>> = all.iter().map(|x| norm(before, x)).collect();
                let outputs = match part {
                    0 if s.has_convolution(layer) => self.convolution(layer, &inputs),
                    0 => self.attention(layer, &inputs),
                    _ => inputs.iter().map(|x| self.feed_forward(layer, x)).collect(),
                };
                let sums = all.iter().zip(&outputs).map(|(x, y)| add(x, &norm(after, y)));
                let sums: Vec<Vec<f64>> = sums.map(|x| norm(of_sum, &x)).collect();
                let second = part == 0 && s.arch == "jina-bert-v2";
                all = match second && !self.is(Mistake::OneNorm) {
                    true => {
                        let again = all.iter().zip(&sums);
                        again.map(|(x, sum)| norm("attn_norm_2", &add(x, sum))).collect()
                    }
                    false => sums,
                };
            }
        }
        match s.output_norm() {
            Some(name) => all.iter().map(|x| self.norm(name, x)).collect(),
            None => all,
        }
    }

    /// A pooled vector after the projections that follow it.
    pub fn projected(&self, mut x: Vec<f64>) -> Vec<f64> {
        for name in ["dense_2", "dense_3"].into_iter().take(self.spec.dense.len()) {
            x = self.linear(name, &x);
        }
        x
    }

    /// The scores of a pooled vector.
    pub fn scores(&self, mut x: Vec<f64>) -> Vec<f64> {
        if self.spec.two_matrices {
            x = self.linear("cls", &x);
            let modern = self.spec.arch == "modern-bert";
            let activated = |x: f64| match self.spec.relu {
                true => x.max(0.0),
                false if modern => self.gelu(x),
                false => x.tanh(),
            };
            x.iter_mut().for_each(|x| *x = activated(*x));
            x = self.norm("cls.norm", &x);
        }
        self.linear("cls.output", &x)
    }
}

/// The mean of vectors.
pub fn mean(all: &[Vec<f64>]) -> Vec<f64> {
    let column = |i: usize| sum(all.iter().map(|x| x[i])) / all.len() as f64;
    (0..all[0].len()).map(column).collect()
}
