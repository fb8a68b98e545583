//! A plain forward pass in float64, written down from the definition of each architecture.
//!
//! It rounds keys and values to f16, as the cache does; everything else in it is exact.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use alight_kernels::half::{f16_to_f32, f32_to_f16};

use crate::models::{Latent, Moe, Scaling, Spec};

/// Logits `[tokens][vocab]` of a model, by the definition.
pub struct Oracle<'s> {
    pub spec: &'s Spec,
    pub w: HashMap<String, Vec<f64>>,
}

impl Oracle<'_> {
    /// With these weights.
    pub fn of<'s>(spec: &'s Spec, weights: &HashMap<String, Vec<f32>>) -> Oracle<'s> {
        let wide = |values: &Vec<f32>| values.iter().copied().map(f64::from).collect();
        Oracle { spec, w: weights.iter().map(|(n, v)| (n.clone(), wide(v))).collect() }
    }

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

    /// The output of a mixture of experts for `x`.
    fn mixture(&self, moe: &Moe, name: &dyn Fn(&str) -> String, x: &[f64]) -> Vec<f64> {
        let oss = self.spec.is_gpt_oss();
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
        let (oss, width) = (self.spec.is_gpt_oss(), moe.width);
        // `rows` rows of a tensor with `all` of them, `step` apart.
        let linear = |what: &str, x: &[f64], [first, step, rows, all]: [usize; 4]| -> Vec<f64> {
            let w = self.of_expert(&name(&format!("{what}.weight")), e, all * x.len());
            let of_rows = w.chunks(x.len()).skip(first).step_by(step).take(rows);
            let mut y: Vec<f64> =
                of_rows.map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect();
            if moe.biases {
                let bias = self.of_expert(&name(&format!("{what}.bias")), e, all);
                let bias = bias.iter().skip(first).step_by(step);
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
            y
        };
        let both = |first, step| linear("ffn_gate_up_exps", x, [first, step, width, 2 * width]);
        let [gate, up] = match moe.fused {
            true if oss => [both(0, 2), both(1, 2)],
            true => [both(0, 1), both(width, 1)],
            false => {
                ["ffn_gate_exps", "ffn_up_exps"].map(|what| linear(what, x, [0, 1, width, width]))
            }
        };
        let activated = gate.iter().zip(&up).map(|(g, u)| match oss {
            true => {
                let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
                g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
            }
            false => activation(false, *g) * u,
        });
        let activated: Vec<f64> = activated.collect();
        linear("ffn_down_exps", &activated, [0, 1, x.len(), x.len()])
    }

    /// The output of a layer's latent attention for `h`, which is at position `pos`: by the definition, with keys and values of
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
                if !llama4 && s.arch != "refact" || llama4 && self.is_local(layer) {
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
            // With a power of two heads the slopes are powers of 2^(-8 / heads).
            let biased = if s.arch == "refact" { 1.0 } else { 0.0 };
            let slope = biased * 2f64.powf(-8.0 / s.heads as f64 * (head + 1) as f64);
            let scores: Vec<f64> = seen
                .clone()
                .map(|j| {
                    let k = &keys[j][kv * s.key_dim..][..s.key_dim];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                    capped(dot * scale, attn_cap) - slope * (seen.end - 1 - j) as f64
                })
                .collect();
            let sinks = ["attn_sinks.weight", "attn_sinks"].map(&name);
            let sinks = sinks.iter().find_map(|name| self.w.get(name));
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
        let output = if s.arch == "gptoss" { "attn_out" } else { "attn_output" };
        self.linear(&name(output), &attended)
    }

    /// The logits of each token.
    pub fn forward(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
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
pub(crate) fn f16(x: f64) -> f64 {
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
pub fn written(spec: &Spec, tokens: &[u32], folder: &Path) -> (PathBuf, Vec<Vec<f32>>) {
    let (path, weights) = spec.write(folder);
    let rows = Oracle::of(spec, &weights).forward(tokens).into_iter();
    (path, rows.map(|row| row.into_iter().map(|x| x as f32).collect()).collect())
}
