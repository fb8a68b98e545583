//! The forward pass against a plain one in float64, written down from the definition of each
//! architecture, on small random models that use every feature.
//!
//! The oracle rounds keys and values to f16, as the cache does; everything else in it is exact. With
//! F32 weights nothing but float32 arithmetic differs, so the tolerance is tight: each of the
//! features tested moves logits by a hundred times as much or more.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_kernels::half::{f16_to_f32, f32_to_f16};
use alight_kernels::{Isa, WeightType};
use alight_model::{
    Engine, EngineOptions, Event, Model, ModelError, OfPrompt, OpenOptions, Pooling, Request,
    Session, SessionOptions,
};

use crate::common::{Latent, Moe, Scaling, Spec, distance, tokens};

/// Logits `[tokens][vocab]` of a model, by the definition.
struct Oracle<'s> {
    spec: &'s Spec,
    w: HashMap<String, Vec<f64>>,
}

impl Oracle<'_> {
    fn weight(&self, name: &str) -> &[f64] {
        self.w.get(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// W x + b, with the bias if the model has one.
    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let w = self.weight(&format!("{name}.weight"));
        let mut y: Vec<f64> =
            w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect();
        if let Some(bias) = self.w.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let r = 1.0 / (mean + self.spec.eps as f64).sqrt();
        x.iter().zip(self.weight(&format!("{name}.weight"))).map(|(x, w)| x * r * w).collect()
    }

    fn is_local(&self, layer: usize) -> bool {
        self.spec.window.is_some_and(|(_, period)| layer % period != period - 1)
    }

    fn rope(&self, layer: usize, pos: usize, head: &mut [f64]) {
        let s = self.spec;
        let dims = s.rope_dims.unwrap_or(s.key_dim);
        // The local layers of Gemma 3 rotate in their own way.
        let local = s.arch == "gemma3" && self.is_local(layer);
        let base = if local { 10_000.0 } else { s.rope_base as f64 };
        for i in 0..dims / 2 {
            let plain = pos as f64 * base.powf(-2.0 * i as f64 / dims as f64);
            let mut angle = plain;
            let mut magnitude = 1.0;
            if !local {
                match s.scaling {
                    Scaling::None => {}
                    Scaling::Linear(factor) => angle /= factor as f64,
                    Scaling::Yarn { factor, original, magnitude: own } => {
                        let turns = |n: f64| {
                            let wavelengths = original as f64 / (n * std::f64::consts::TAU);
                            dims as f64 * wavelengths.ln() / (2.0 * base.ln())
                        };
                        let low = turns(32.0).floor().max(0.0);
                        let high = turns(1.0).ceil().min(dims as f64 - 1.0);
                        let keep =
                            1.0 - ((i as f64 - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
                        angle = plain / factor as f64 * (1.0 - keep) + plain * keep;
                        magnitude = own as f64;
                        if s.latent.is_some_and(|latent| latent.multiplier != 0.0) {
                            magnitude = 1.0;
                        } else if own == 0.0 {
                            magnitude = 1.0 + 0.1 * (factor as f64).ln();
                        }
                    }
                }
                if s.factors {
                    angle /= self.weight("rope_freqs.weight")[i];
                }
            }
            let (sin, cos) = angle.sin_cos();
            let pairs = ["llama", "granite", "deepseek2", "llama4"].contains(&s.arch);
            let (a, b) = if pairs { (2 * i, 2 * i + 1) } else { (i, i + dims / 2) };
            let (x, y) = (head[a], head[b]);
            head[a] = (x * cos - y * sin) * magnitude;
            head[b] = (x * sin + y * cos) * magnitude;
        }
    }

    /// Soft caps of attention and of the logits; 0 is none.
    fn caps(&self) -> [f64; 2] {
        let given = [self.spec.attn_cap as f64, self.spec.logit_cap as f64];
        match (self.spec.arch, given) {
            ("gemma2", [0.0, 0.0]) => [50.0, 30.0],
            (_, caps) => caps,
        }
    }

    /// Factor on q·k.
    fn scale(&self) -> f64 {
        let s = self.spec;
        // The 27B of either Gemma.
        let by_width = [("gemma2", 46), ("gemma3", 62)].contains(&(s.arch, s.layers));
        let dim = if by_width { s.embd / s.heads } else { s.key_dim };
        let [_, scores, ..] = self.factors();
        if scores == 0.0 { 1.0 / (dim as f64).sqrt() } else { scores }
    }

    /// Of the embedding, of q·k (0: the usual one), of what parts add, and what logits are divided by.
    fn factors(&self) -> [f64; 4] {
        match self.spec.scales {
            Some(scales) => scales.map(f64::from),
            None if self.spec.is_gemma() => [(self.spec.embd as f64).sqrt(), 0.0, 1.0, 1.0],
            None => [1.0, 0.0, 1.0, 1.0],
        }
    }

    /// down(activation(gate x) ⊙ up x), of the tensors of these names.
    fn gated(&self, x: &[f64], names: [String; 3]) -> Vec<f64> {
        let [gate, up] = [0, 1].map(|i| self.linear(&names[i], x));
        let activated = gate.iter().zip(&up);
        let activated: Vec<f64> =
            activated.map(|(g, u)| activation(self.spec.is_gemma(), *g) * u).collect();
        self.linear(&names[2], &activated)
    }

    /// Row `index` of the experts' tensor `name`, `[len]` elements.
    fn of_expert<'a>(&'a self, name: &str, index: usize, len: usize) -> &'a [f64] {
        &self.weight(name)[index * len..][..len]
    }

    /// What a mixture of experts makes of `x`.
    fn mixture(&self, moe: &Moe, name: &dyn Fn(&str) -> String, x: &[f64]) -> Vec<f64> {
        let oss = self.spec.arch == "gpt-oss";
        let logits = self.linear(&name("ffn_gate_inp"), x);
        let sum: f64 = logits.iter().map(|l| l.exp()).sum();
        let gating = if oss { 3 } else { moe.gating };
        let probs: Vec<f64> = match gating {
            2 => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
            3 => logits.clone(),
            4 => logits.iter().map(|l| (1.0 + l.exp()).ln().sqrt()).collect(),
            _ => logits.iter().map(|l| l.exp() / sum).collect(),
        };
        let mut scores = probs.clone();
        if moe.selection {
            let bias = self.weight(&name("exp_probs_b.bias"));
            scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
        }
        if moe.groups.0 > 1 {
            let size = moe.experts / moe.groups.0 as usize;
            let mut groups: Vec<(f64, usize)> = Vec::new();
            for (i, group) in scores.chunks(size).enumerate() {
                let mut group = group.to_vec();
                group.sort_by(|a, b| b.total_cmp(a));
                groups.push((group[0] + group[1], i));
            }
            groups.sort_by(|a, b| b.0.total_cmp(&a.0));
            for (_, out) in &groups[moe.groups.1 as usize..] {
                scores[out * size..][..size].fill(f64::NEG_INFINITY);
            }
        }
        let mut chosen: Vec<usize> = (0..moe.experts).collect();
        chosen.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        chosen.truncate(moe.used);
        let mut weights: Vec<f64> = chosen.iter().map(|e| probs[*e]).collect();
        if gating == 3 {
            weights.iter_mut().for_each(|w| *w = w.exp());
        }
        let normed = moe.normed.unwrap_or(self.spec.arch != "qwen2moe");
        if normed || gating == 3 {
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        let scale = if moe.scale == 0.0 { 1.0 } else { moe.scale as f64 };
        let mut y = vec![0.0; x.len()];
        for (expert, weight) in chosen.into_iter().zip(weights) {
            // Llama 4 weighs what goes in.
            let within = self.spec.arch == "llama4";
            let weighed: Vec<f64> =
                x.iter().map(|x| if within { weight * x } else { *x }).collect();
            let out = self.expert(moe, name, expert, &weighed);
            let weight = if within { 1.0 } else { weight };
            y.iter_mut().zip(out).for_each(|(y, o)| *y += weight * scale * o);
        }
        if moe.shared > 0 {
            let gate = self.w.get(&name("ffn_gate_inp_shexp.weight")).map_or(1.0, |gate| {
                let logit: f64 = gate.iter().zip(x).map(|(a, b)| a * b).sum();
                1.0 / (1.0 + (-logit).exp())
            });
            let names = ["ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"].map(name);
            y.iter_mut().zip(self.gated(x, names)).for_each(|(y, o)| *y += gate * o);
        }
        y
    }

    /// The output of one expert.
    fn expert(&self, moe: &Moe, name: &dyn Fn(&str) -> String, e: usize, x: &[f64]) -> Vec<f64> {
        let (oss, width) = (self.spec.arch == "gpt-oss", moe.width);
        let linear = |what: &str, x: &[f64], skip: usize, rows: usize, all: usize| -> Vec<f64> {
            let w = self.of_expert(&name(&format!("{what}.weight")), e, all * x.len());
            let rows = w.chunks(x.len()).skip(skip).take(rows);
            let mut y: Vec<f64> =
                rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect();
            if moe.biases {
                let bias = self.of_expert(&name(&format!("{what}.bias")), e, y.len());
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
            y
        };
        let [gate, up] = match moe.fused {
            true => [0, 1].map(|i| linear("ffn_gate_up_exps", x, i * width, width, 2 * width)),
            false => ["ffn_gate_exps", "ffn_up_exps"].map(|n| linear(n, x, 0, width, width)),
        };
        let activated = gate.iter().zip(&up).map(|(g, u)| match oss {
            true => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
            }
            false => activation(false, *g) * u,
        });
        let activated: Vec<f64> = activated.collect();
        linear("ffn_down_exps", &activated, 0, x.len(), x.len())
    }

    /// What latent attention of a layer makes of `h`, which is at position `pos`: by the definition, with keys and values of
    /// all heads made of the rows that the cache keeps.
    fn latent_attention(
        &self,
        latent: &Latent,
        layer: usize,
        pos: usize,
        h: &[f64],
        [keys, values]: [&mut Vec<Vec<f64>>; 2],
    ) -> Vec<f64> {
        let s = self.spec;
        let Latent { query_rank, rank, unrotated, together, .. } = *latent;
        let (heads, rotated) = (s.heads, s.rope_dims.unwrap());
        let (key_dim, value_dim) = (unrotated + rotated, s.value_dim);
        let name = |what: &str| format!("blk.{layer}.{what}");
        let mut q = match query_rank {
            0 => self.linear(&name("attn_q"), h),
            _ => {
                let short = self.linear(&name("attn_q_a"), h);
                self.linear(&name("attn_q_b"), &self.norm(&name("attn_q_a_norm"), &short))
            }
        };
        let made = self.linear(&name("attn_kv_a_mqa"), h);
        let mut row = self.norm(&name("attn_kv_a_norm"), &made[..rank]);
        row.extend(&made[rank..]);
        self.rope(layer, pos, &mut row[rank..]);
        let row: Vec<f64> = row.into_iter().map(f16).collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for head in 0..heads {
            if together {
                let rows = (unrotated + value_dim) * rank;
                let both = &self.weight(&name("attn_kv_b.weight"))[head * rows..][..rows];
                let made = both.chunks(rank).map(|w| dot(w, &row[..rank]));
                let made: Vec<f64> = made.collect();
                key.extend(&made[..unrotated]);
                value.extend(&made[unrotated..]);
            } else {
                let of_keys = &self.weight(&name("attn_k_b.weight"))[head * rank * unrotated..];
                let column =
                    |i| (0..rank).map(|c| of_keys[c * unrotated + i] * row[c]).sum::<f64>();
                key.extend((0..unrotated).map(column));
                let of_values = &self.weight(&name("attn_v_b.weight"))[head * value_dim * rank..];
                let rows = of_values.chunks(rank).take(value_dim);
                value.extend(rows.map(|w| dot(w, &row[..rank])));
            }
            key.extend(&row[rank..]);
        }
        keys.push(key);
        values.push(value);
        let mut scale = 1.0 / (key_dim as f64).sqrt();
        if let Scaling::Yarn { factor, .. } = s.scaling {
            scale *= (1.0 + 0.1 * latent.multiplier as f64 * (factor as f64).ln()).powi(2);
        }
        let mut attended = Vec::new();
        for (head, q) in q.chunks_mut(key_dim).enumerate() {
            self.rope(layer, pos, &mut q[unrotated..]);
            let scores = keys.iter().map(|key| dot(q, &key[head * key_dim..]) * scale);
            let scores: Vec<f64> = scores.collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for at in head * value_dim..(head + 1) * value_dim {
                let weighted = weights.iter().zip(&*values);
                attended.push(weighted.map(|(w, value)| w / sum * value[at]).sum());
            }
        }
        self.linear(&name("attn_output"), &attended)
    }

    /// The queries of a layer of `h`, which is at position `pos`; its keys and values are added to the others.
    fn queries(
        &self,
        layer: usize,
        pos: usize,
        h: &[f64],
        [keys, values]: [&mut Vec<Vec<f64>>; 2],
    ) -> Vec<f64> {
        let s = self.spec;
        let name = |what: &str| format!("blk.{layer}.{what}");
        let mut q = self.linear(&name("attn_q"), h);
        let mut k = self.linear(&name("attn_k"), h);
        let v = self.linear(&name("attn_v"), h);
        for (what, row) in [("attn_q_norm", &mut q), ("attn_k_norm", &mut k)] {
            for head in row.chunks_mut(s.key_dim) {
                if s.norms_qk() {
                    let normed = self.norm(&name(what), head);
                    head.copy_from_slice(&normed);
                }
                // Of Llama 4 every fourth layer is not rotated, and the others' norm is without weights.
                let llama4 = s.arch == "llama4";
                if !llama4 || self.is_local(layer) {
                    self.rope(layer, pos, head);
                }
                if llama4 && self.is_local(layer) {
                    let mean = head.iter().map(|x| x * x).sum::<f64>() / head.len() as f64;
                    let r = 1.0 / (mean + s.eps as f64).sqrt();
                    head.iter_mut().for_each(|x| *x *= r);
                }
            }
        }
        keys.push(k.into_iter().map(f16).collect());
        values.push(v.into_iter().map(f16).collect());
        q
    }

    /// The positions that the one at `pos` sees, of `n`.
    fn seen(&self, layer: usize, pos: usize, n: usize) -> Range<usize> {
        let local = self.spec.window.filter(|_| self.is_local(layer)).map(|window| window.0);
        let end = if self.spec.causal { pos + 1 } else { n };
        match local {
            Some(chunk) if self.spec.arch == "llama4" => pos / chunk * chunk..end,
            Some(window) if self.spec.causal => (pos + 1).saturating_sub(window)..end,
            Some(window) => pos.saturating_sub(window / 2)..end.min(pos + window / 2 + 1),
            None => 0..end,
        }
    }

    /// The result of a layer's softmax attention for the queries of a position that sees `seen`.
    fn attention(
        &self,
        layer: usize,
        seen: Range<usize>,
        q: &[f64],
        [keys, values]: [&Vec<Vec<f64>>; 2],
    ) -> Vec<f64> {
        let s = self.spec;
        let (scale, [attn_cap, _], group) = (self.scale(), self.caps(), s.heads / s.kv_heads);
        let name = |what: &str| format!("blk.{layer}.{what}");
        let mut attended = Vec::new();
        for (head, q) in q.chunks(s.key_dim).enumerate() {
            let kv = head / group;
            let scores: Vec<f64> = seen
                .clone()
                .map(|j| {
                    let k = &keys[j][kv * s.key_dim..][..s.key_dim];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                    capped(dot * scale, attn_cap)
                })
                .collect();
            let sinks = self.w.get(&name("attn_sinks.weight"));
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[head]);
            let most = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let sum: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
            for d in 0..s.value_dim {
                let at = kv * s.value_dim + d;
                let weighted = weights.iter().zip(seen.clone());
                attended.push(weighted.map(|(w, j)| w / sum * values[j][at]).sum());
            }
        }
        self.linear(&name("attn_output"), &attended)
    }

    fn forward(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let s = self.spec;
        let (gemma, [_, logit_cap]) = (s.is_gemma(), self.caps());
        let embed = self.weight("token_embd.weight");
        let [of_embedding, _, of_parts, of_logits] = self.factors();
        let row = |token: &u32| {
            let row = &embed[*token as usize * s.embd..][..s.embd];
            row.iter().map(|x| x * of_embedding).collect()
        };
        let mut all: Vec<Vec<f64>> = tokens.iter().map(row).collect();
        for layer in 0..s.layers {
            let name = |what: &str| format!("blk.{layer}.{what}");
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            let hs: Vec<_> = all.iter().map(|x| self.norm(&name("attn_norm"), x)).collect();
            let mut mixed = Vec::new();
            for (pos, h) in hs.iter().enumerate() {
                let kv = [&mut keys, &mut values];
                mixed.push(match &s.latent {
                    Some(latent) => self.latent_attention(latent, layer, pos, h, kv),
                    None => self.queries(layer, pos, h, kv),
                });
            }
            for (pos, x) in all.iter_mut().enumerate() {
                let mut y = match &s.latent {
                    Some(_) => mixed[pos].clone(),
                    None => {
                        let seen = self.seen(layer, pos, tokens.len());
                        self.attention(layer, seen, &mixed[pos], [&keys, &values])
                    }
                };
                if gemma {
                    y = self.norm(&name("post_attention_norm"), &y);
                }
                x.iter_mut().zip(&y).for_each(|(x, y)| *x += y * of_parts);
                let h = self.norm(&name(s.second_norm()), x);
                let experts = s.latent.is_none_or(|latent| layer >= latent.leading);
                let mut y = match s.moe.as_ref().filter(|_| experts) {
                    Some(moe) => self.mixture(moe, &name, &h),
                    None => self.gated(&h, ["ffn_gate", "ffn_up", "ffn_down"].map(&name)),
                };
                if gemma {
                    y = self.norm(&name("post_ffw_norm"), &y);
                }
                x.iter_mut().zip(&y).for_each(|(x, y)| *x += y * of_parts);
            }
        }
        let logits = |x: Vec<f64>| {
            let h = self.norm("output_norm", &x);
            let mut logits = self.linear(if s.tied { "token_embd" } else { "output" }, &h);
            if let (true, Some(bias)) = (s.tied, self.w.get("output.bias")) {
                logits.iter_mut().zip(bias).for_each(|(l, b)| *l += b);
            }
            logits.into_iter().map(|logit| capped(logit / of_logits, logit_cap)).collect()
        };
        all.into_iter().map(logits).collect()
    }
}

/// As the cache rounds it.
fn f16(x: f64) -> f64 {
    f16_to_f32(f32_to_f16(x as f32)) as f64
}

fn capped(x: f64, cap: f64) -> f64 {
    if cap == 0.0 { x } else { cap * (x / cap).tanh() }
}

fn activation(gelu: bool, x: f64) -> f64 {
    if gelu {
        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
    } else {
        x / (1.0 + (-x).exp())
    }
}

/// A model that is written to `folder`, and its logits `[tokens][vocab]` by the definition.
fn written(spec: &Spec, tokens: &[u32], folder: &Path) -> (PathBuf, Vec<Vec<f32>>) {
    let (path, weights) = spec.write(folder);
    let w = weights.into_iter().map(|(n, v)| (n, v.into_iter().map(f64::from).collect())).collect();
    let rows = Oracle { spec, w }.forward(tokens).into_iter();
    (path, rows.map(|row| row.into_iter().map(|x| x as f32).collect()).collect())
}

/// Runs a model every way there is and compares each with the oracle. Tolerances are relative to
/// the largest logit: `one` for one token at a time, `many` for batches.
fn check(spec: &Spec, length: usize, one: f32, many: f32) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens(length, spec.vocab, spec.seed);
    let (path, expected) = written(spec, &tokens, folder.path());
    let size = expected.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
    assert!(size > 0.5, "the model says nothing: {size}");
    for isa in Isa::available() {
        let options = OpenOptions {
            threads: Some(crate::common::threads()),
            isa: Some(isa),
            ..OpenOptions::default()
        };
        let model = Model::open(&path, &options).unwrap();
        let close = |what: &str, position: usize, logits: &[f32], tolerance: f32| {
            let off = distance(logits, &expected[position]) / size;
            assert!(off <= tolerance, "{isa}: {what}, position {position}: {off:e} in {spec:?}");
            off
        };
        let mut worst = [0f32; 2];
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            let logits = session.decode(token).unwrap();
            worst[0] = worst[0].max(close("one by one", i, logits, one));
        }
        for batch in [5, 64, 512] {
            let options = SessionOptions { batch, ..SessionOptions::default() };
            let mut session = Session::new(&model, &options).unwrap();
            let mut seen = 0;
            session
                .feed_each(&tokens, &mut |i, logits| {
                    assert_eq!(i, seen);
                    seen += 1;
                    worst[1] = worst[1].max(close("batch", i, logits, many));
                })
                .unwrap();
            assert_eq!(seen, tokens.len());
            session.truncate(length / 2);
            let logits = session.feed(&tokens[length / 2..]).unwrap();
            close("after truncation", length - 1, logits, many);
        }
        eprintln!("{} {isa}: {:e} one by one, {:e} in batches", spec.arch, worst[0], worst[1]);
    }
}

const TIGHT: f32 = 5e-4;

#[test]
fn llama_plain() {
    check(&Spec::llama(), 100, TIGHT, TIGHT);
}

#[test]
fn llama_separate_output_biases_odd_shapes() {
    let spec = Spec {
        tied: false,
        biases: true,
        embd: 96,
        ff: 160,
        heads: 6,
        kv_heads: 3,
        key_dim: 24,
        value_dim: 40,
        vocab: 333,
        rope_dims: Some(16),
        seed: 3,
        ..Spec::llama()
    };
    check(&spec, 70, TIGHT, TIGHT);
}

#[test]
fn llama_rope_factors_linear_and_yarn() {
    let base = Spec { rope_base: 500_000.0, ..Spec::llama() };
    check(&Spec { factors: true, seed: 4, ..base.clone() }, 60, TIGHT, TIGHT);
    check(&Spec { scaling: Scaling::Linear(4.0), seed: 5, ..base.clone() }, 60, TIGHT, TIGHT);
    check(
        &Spec { factors: true, scaling: Scaling::Linear(2.0), seed: 6, ..base.clone() },
        60,
        TIGHT,
        TIGHT,
    );
    let yarn = Scaling::Yarn { factor: 8.0, original: 64, magnitude: 0.0 };
    check(&Spec { scaling: yarn, seed: 7, rope_base: 10_000.0, ..base }, 60, TIGHT, TIGHT);
}

#[test]
fn llama_one_head_each_and_many_groups() {
    check(&Spec { heads: 4, kv_heads: 4, seed: 8, ..Spec::llama() }, 40, TIGHT, TIGHT);
    check(
        &Spec { heads: 8, kv_heads: 1, key_dim: 8, value_dim: 8, seed: 9, ..Spec::llama() },
        40,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn gemma3_with_window_edges() {
    // Past the window, so that each of its edges is met; all local but the sixth layer.
    check(&Spec::gemma3(), 90, TIGHT, TIGHT);
    check(&Spec { window: Some((1, 2)), seed: 10, ..Spec::gemma3() }, 20, TIGHT, TIGHT);
    check(&Spec { window: Some((64, 3)), seed: 11, ..Spec::gemma3() }, 150, TIGHT, TIGHT);
}

#[test]
fn gemma3_soft_caps_and_linear_scaling_of_global_layers() {
    let spec = Spec {
        attn_cap: 2.0,
        logit_cap: 3.0,
        scaling: Scaling::Linear(8.0),
        seed: 12,
        ..Spec::gemma3()
    };
    check(&spec, 60, TIGHT, TIGHT);
    check(&Spec { window: None, seed: 13, ..spec }, 40, TIGHT, TIGHT);
}

#[test]
fn qwen2_biases_and_separate_output() {
    check(&Spec::qwen2(), 90, TIGHT, TIGHT);
    let odd = Spec {
        embd: 96,
        ff: 160,
        heads: 6,
        key_dim: 16,
        value_dim: 16,
        vocab: 333,
        ..Spec::qwen2()
    };
    check(&Spec { tied: false, seed: 24, ..odd.clone() }, 60, TIGHT, TIGHT);
    // What no Qwen has, but nothing in the file forbids.
    check(&Spec { biases: true, seed: 25, ..odd }, 40, TIGHT, TIGHT);
    let yarn = Scaling::Yarn { factor: 4.0, original: 64, magnitude: 0.0 };
    check(
        &Spec { scaling: yarn, rope_base: 10_000.0, seed: 26, ..Spec::qwen2() },
        90,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn granite_with_its_four_scales() {
    check(&Spec::granite(), 90, TIGHT, TIGHT);
    check(&Spec { tied: false, seed: 40, ..Spec::granite() }, 40, TIGHT, TIGHT);
}

#[test]
fn seed_oss_biases_and_the_other_name_of_a_norm() {
    check(&Spec::seed_oss(), 90, TIGHT, TIGHT);
    check(&Spec { heads: 6, kv_heads: 3, seed: 41, ..Spec::seed_oss() }, 40, TIGHT, TIGHT);
}

#[test]
fn qwen3_normed_queries_and_keys_of_any_length() {
    check(&Spec::qwen3(), 90, TIGHT, TIGHT);
    let short =
        Spec { heads: 6, kv_heads: 3, key_dim: 8, value_dim: 8, vocab: 333, ..Spec::qwen3() };
    check(&Spec { tied: false, seed: 27, ..short }, 60, TIGHT, TIGHT);
    let yarn = Scaling::Yarn { factor: 4.0, original: 64, magnitude: 1.5 };
    check(
        &Spec { scaling: yarn, rope_base: 10_000.0, seed: 28, ..Spec::qwen3() },
        90,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn gemma2_windows_and_caps() {
    check(&Spec::gemma2(), 90, TIGHT, TIGHT);
    check(
        &Spec { window: Some((7, 3)), rope_base: 500.0, seed: 29, ..Spec::gemma2() },
        60,
        TIGHT,
        TIGHT,
    );
    let linear = Scaling::Linear(4.0);
    check(&Spec { scaling: linear, seed: 30, ..Spec::gemma2() }, 60, TIGHT, TIGHT);
    // Nothing but what has to be there: a window longer than the text, caps that are known.
    let early = Spec { window: None, attn_cap: 0.0, logit_cap: 0.0, ..Spec::gemma2() };
    let early = Spec { seed: 31, ..early };
    check(&early, 60, TIGHT, TIGHT);
    // Random weights give scores too small to show where that cap is.
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&early.write(folder.path()).0, &crate::options()).unwrap();
    let first = model.spec().attention_layers().next().unwrap();
    assert_eq!((first.softcap, first.mask.window()), (Some(50.0), Some(4096)));
}

#[test]
fn the_27b_of_either_gemma_scales_by_its_width() {
    // A width of 64 for 2 heads, which are 16 long.
    let wide =
        |spec: Spec| Spec { heads: 2, kv_heads: 1, key_dim: 16, value_dim: 16, ff: 64, ..spec };
    check(&Spec { layers: 46, seed: 32, ..wide(Spec::gemma2()) }, 30, TIGHT, TIGHT);
    check(&Spec { layers: 62, seed: 33, ..wide(Spec::gemma3()) }, 30, TIGHT, TIGHT);
}

#[test]
fn mixtures_of_experts_of_every_kind() {
    check(&Spec::qwen3moe(), 90, TIGHT, TIGHT);
    check(&Spec::qwen2moe(), 60, TIGHT, TIGHT);
    let base = Spec::qwen3moe();
    let moe = |change: fn(&mut Moe), seed| {
        let mut moe = base.moe.unwrap();
        change(&mut moe);
        Spec { moe: Some(moe), seed, ..base.clone() }
    };
    let fused = |m: &mut Moe| (m.fused, m.width) = (true, 40);
    check(&moe(fused, 54), 40, TIGHT, TIGHT);
    let biased = |m: &mut Moe| (m.gating, m.selection, m.scale) = (2, true, 2.5);
    check(&moe(biased, 55), 40, TIGHT, TIGHT);
    let grouped = |m: &mut Moe| {
        (m.experts, m.groups, m.gating, m.normed) = (12, (4, 2), 2, Some(false));
    };
    check(&moe(grouped, 56), 40, TIGHT, TIGHT);
    check(&moe(|m| (m.gating, m.normed) = (4, Some(true)), 57), 40, TIGHT, TIGHT);
    // All of them, and one of one.
    check(&moe(|m| m.used = m.experts, 58), 40, TIGHT, TIGHT);
    check(&moe(|m| (m.experts, m.used) = (1, 1), 59), 30, TIGHT, TIGHT);
}

#[test]
fn gpt_oss_with_sinks_biases_and_clamps() {
    check(&Spec::gpt_oss(), 90, TIGHT, TIGHT);
    // Pieces of attention that are merged, and a gate beyond the clamp.
    let long =
        Spec { layers: 2, context: 2048, window: Some((300, 2)), seed: 60, ..Spec::gpt_oss() };
    check(&long, 700, TIGHT, TIGHT);
}

#[test]
fn llama4_with_chunks_and_weights_of_what_goes_in() {
    check(&Spec::llama4(), 90, TIGHT, TIGHT);
    // A chunk that begins within a piece of attention, and more tokens than a tile.
    let long = Spec { context: 2048, window: Some((300, 4)), seed: 70, ..Spec::llama4() };
    check(&long, 700, TIGHT, TIGHT);
}

#[test]
fn latent_attention_of_new_files_and_old() {
    check(&Spec::deepseek2(), 90, TIGHT, TIGHT);
    let base = Spec::deepseek2();
    let latent = |change: fn(&mut Latent), seed| {
        let mut latent = base.latent.unwrap();
        change(&mut latent);
        Spec { latent: Some(latent), seed, ..base.clone() }
    };
    check(&latent(|l| l.together = true, 62), 60, TIGHT, TIGHT);
    check(&latent(|l| (l.query_rank, l.multiplier, l.rank) = (0, 0.0, 37), 63), 60, TIGHT, TIGHT);
    // One head, and more than a panel of rows; no experts without leading layers.
    check(&Spec { heads: 1, ..latent(|l| l.leading = 0, 64) }, 40, TIGHT, TIGHT);
    check(&Spec { heads: 17, ..latent(|l| l.unrotated = 3, 65) }, 40, TIGHT, TIGHT);
    // Pieces of attention that are merged.
    let long = Spec { layers: 2, context: 2048, ..latent(|l| l.leading = 1, 66) };
    check(&long, 700, TIGHT, TIGHT);
    // All experts: rounding would change the choice of some of them now and then. Rows of keys are blocks.
    let aligned = |together| {
        let mut spec = latent(|l| (l.query_rank, l.rank, l.unrotated) = (32, 64, 32), 67);
        spec.latent.as_mut().unwrap().together = together;
        spec.moe.as_mut().unwrap().used = spec.moe.unwrap().experts;
        Spec { heads: 4, value_dim: 24, ff: 64, ..spec }
    };
    // Queries and what heads attend to are rounded once more than in other attention.
    check(&Spec { ty: GgmlType::Q8_0, ..aligned(false) }, 60, 1e-3, 8e-2);
    check(&Spec { ty: GgmlType::Q8_0, ..aligned(true) }, 60, 1e-3, 8e-2);
}

/// Whatever the registry of block types has, read only or not.
#[test]
fn every_block_type_in_a_whole_model() {
    let wide = Spec { layers: 2, embd: 256, ff: 256, key_dim: 64, value_dim: 64, ..Spec::llama() };
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        check(&Spec { ty: ty.ggml(), seed: 40, ..wide.clone() }, 12, 3e-3, 1e-1);
    }
}

#[test]
fn quantised_weights_within_the_rounding_of_activations() {
    // One token: 16-bit activations. Batches: 8-bit ones, an error of 1/254 of the largest value
    // in 32 for each, some of which averages out.
    let spec = Spec { ty: GgmlType::Q8_0, seed: 14, ..Spec::llama() };
    check(&spec, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q4_0, seed: 15, ..spec.clone() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q8_0, seed: 16, ..Spec::gemma3() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::F16, seed: 17, ..Spec::llama() }, 60, TIGHT, TIGHT);
    check(&Spec { ty: GgmlType::Q8_0, seed: 34, ..Spec::qwen2() }, 60, 1e-3, 5e-2);
    let aligned = Spec { key_dim: 32, value_dim: 32, ..Spec::qwen3() };
    check(&Spec { ty: GgmlType::Q8_0, seed: 35, ..aligned }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q4_0, seed: 36, ..Spec::gemma2() }, 60, 1e-3, 5e-2);
    // All experts: rounding would change the choice of some of them now and then.
    let mixture = Spec::qwen2moe();
    let all = mixture.moe.map(|moe| Moe { used: moe.experts, ..moe });
    check(&Spec { ty: GgmlType::Q8_0, moe: all, seed: 37, ..mixture.clone() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::F16, seed: 38, ..mixture }, 60, TIGHT, TIGHT);
}

#[test]
fn a_long_context_is_cut_into_pieces_and_merged() {
    // Longer than a piece of attention, for both forms.
    let spec = Spec { layers: 2, context: 2048, seed: 18, ..Spec::llama() };
    check(&spec, 700, TIGHT, TIGHT);
    let spec =
        Spec { layers: 2, context: 2048, window: Some((300, 2)), seed: 19, ..Spec::gemma3() };
    check(&spec, 700, TIGHT, TIGHT);
}

/// All tokens see all others, or those of a window around them.
#[test]
fn encoders_see_what_comes_after() {
    let plain = Spec { causal: false, seed: 77, ..Spec::llama() };
    let windowed = Spec { causal: false, window: Some((24, 3)), seed: 78, ..Spec::gemma3() };
    for spec in [plain, windowed] {
        let folder = tempfile::tempdir().unwrap();
        let tokens = tokens(130, spec.vocab, spec.seed);
        let (path, expected) = written(&spec, &tokens, folder.path());
        let size = expected.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
        let causal = written(&Spec { causal: true, ..spec.clone() }, &tokens, folder.path()).1;
        assert!(
            distance(&causal[5], &expected[5]) > 100.0 * TIGHT * size,
            "what comes after matters"
        );
        for isa in Isa::available() {
            let options = OpenOptions {
                threads: Some(crate::common::threads()),
                isa: Some(isa),
                ..OpenOptions::default()
            };
            spec.write(folder.path());
            let model = Model::open(&path, &options).unwrap();
            let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
            session
                .feed_each(&tokens, &mut |i, logits| {
                    let off = distance(logits, &expected[i]) / size;
                    assert!(off <= TIGHT, "{isa}, {}, position {i}: {off:e}", spec.arch);
                })
                .unwrap();
            let more = session.feed(&[1]).unwrap_err();
            assert!(matches!(more, ModelError::Bidirectional { .. }), "{more}");
        }
    }
}

#[test]
fn an_engine_reads_texts_of_encoders_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { causal: false, seed: 79, ..Spec::llama() };
    let (path, _) = spec.write(folder.path());
    let model = Model::open(
        &path,
        &OpenOptions { threads: Some(crate::common::threads()), ..OpenOptions::default() },
    );
    let model = model.unwrap();
    let options = EngineOptions { batch: 64, sequences: 4, ..EngineOptions::default() };
    let request = |n: usize, pooling| Request {
        prompt: tokens(n, spec.vocab, n as u64),
        of_prompt: OfPrompt::Embedding(pooling),
        ..Request::default()
    };
    let of = |lengths: &[usize], pooling| {
        let mut engine = Engine::new(&model, &options).unwrap();
        let ids: Vec<_> =
            lengths.iter().map(|n| engine.add(request(*n, pooling)).unwrap()).collect();
        let mut found = vec![Vec::new(); ids.len()];
        while engine
            .step(&mut |id, event| {
                if let Event::Embedding(row) = event {
                    found[ids.iter().position(|other| *other == id).unwrap()] = row.to_vec();
                }
            })
            .unwrap()
        {}
        found
    };
    // More rows than a step has, and prompts that begin alike.
    let lengths = [40, 33, 64, 7, 40, 12];
    for pooling in [Pooling::Mean, Pooling::Last] {
        let together = of(&lengths, pooling);
        for (n, row) in lengths.iter().zip(&together) {
            assert_eq!(&of(&[*n], pooling)[0], row, "{n} tokens, {pooling:?}");
            assert!(row.iter().any(|x| *x != 0.0));
        }
    }
    let mut engine = Engine::new(&model, &options).unwrap();
    let long = engine.add(request(65, Pooling::Mean)).unwrap_err();
    assert!(matches!(long, ModelError::TooLongForBatch { found: 65, expected: 64 }), "{long}");
    let answer = Request { prompt: vec![1, 2], max_tokens: 3, ..Request::default() };
    let refused = engine.add(answer).unwrap_err();
    assert!(matches!(refused, ModelError::Bidirectional { .. }), "{refused}");
}
