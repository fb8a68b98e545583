//! What a run has to read and to multiply at least, from the model's shapes.

use alight_model::Model;
use serde::Serialize;

/// The work of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Bytes of the KV cache that are read.
    pub kv_bytes: f64,
    /// Multiply-accumulates with weights.
    pub weight_macs: f64,
    /// Multiply-accumulates of attention.
    pub attention_macs: f64,
}

impl Work {
    /// `tokens` tokens one by one, `depth` before them.
    pub fn decode(model: &Model, depth: usize, tokens: usize) -> Work {
        let seen = layers_times_positions(model, depth, tokens);
        Work {
            weight_bytes: tokens as f64 * model.decode_bytes() as f64,
            kv_bytes: seen * kv_bytes(model),
            weight_macs: tokens as f64 * model.decode_macs() as f64,
            attention_macs: seen * attention_macs(model),
        }
    }

    /// `tokens` tokens at once, `depth` before them. The output matrix is used for the last one.
    pub fn prefill(model: &Model, depth: usize, tokens: usize) -> Work {
        let output = model.decode_macs().saturating_sub(model.prefill_macs());
        // Each position's keys and values are needed once, however many tokens look at them.
        let held = (depth + tokens) as f64 * model.config().layers as f64;
        Work {
            weight_bytes: model.decode_bytes() as f64,
            kv_bytes: held * kv_bytes(model),
            weight_macs: tokens as f64 * model.prefill_macs() as f64 + output as f64,
            attention_macs: layers_times_positions(model, depth, tokens) * attention_macs(model),
        }
    }

    /// All bytes.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes
    }

    /// All multiply-accumulates.
    pub fn macs(&self) -> f64 {
        self.weight_macs + self.attention_macs
    }
}

/// Bytes of one position in the cache of one layer.
fn kv_bytes(model: &Model) -> f64 {
    model.kv_bytes_per_position() as f64 / model.config().layers as f64
}

/// Multiply-accumulates of one token with one position in one layer: q·k and p·v.
fn attention_macs(model: &Model) -> f64 {
    let c = model.config();
    (c.heads * (c.key_dim + c.value_dim)) as f64
}

/// The positions that all tokens attend to, added up over the layers.
fn layers_times_positions(model: &Model, depth: usize, tokens: usize) -> f64 {
    let c = model.config();
    let (windowed, window) = match &c.local {
        Some(local) => (local.layers.iter().filter(|l| **l).count(), local.window),
        None => (0, usize::MAX),
    };
    (c.layers - windowed.min(c.layers)) as f64 * positions_seen(depth, tokens, usize::MAX)
        + windowed as f64 * positions_seen(depth, tokens, window)
}

/// How many positions `tokens` tokens after `depth` others attend to, in all: each to itself and
/// to those before it, but at most to `window`.
fn positions_seen(depth: usize, tokens: usize, window: usize) -> f64 {
    // The first of the tokens that see less than a full window.
    let partial = window.saturating_sub(depth).min(tokens);
    let (d, n) = (depth as f64, partial as f64);
    d * n + n * (n + 1.0) / 2.0 + (tokens - partial) as f64 * window as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn positions_add_up() {
        for (depth, tokens, window) in
            [(10, 3, usize::MAX), (0, 1, usize::MAX), (10, 5, 12), (100, 7, 16), (0, 40, 16)]
        {
            let expected: usize = (0..tokens).map(|i| (depth + i + 1).min(window)).sum();
            let got = super::positions_seen(depth, tokens, window);
            assert_eq!(got, expected as f64, "{depth} {tokens} {window}");
        }
    }
}
