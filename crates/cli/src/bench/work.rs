//! The minimum that a run must read and multiply, from the model's shapes.

use alight_model::Model;
use alight_model::spec::Attended;
use serde::Serialize;

/// The work of one repetition.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Bytes of weights.
    pub weight_bytes: f64,
    /// Bytes read from the KV cache.
    pub kv_bytes: f64,
    /// Multiply-accumulates with weights.
    pub weight_macs: f64,
    /// Multiply-accumulates of attention.
    pub attention_macs: f64,
}

impl Work {
    /// Returns the work of `tokens` tokens one by one, after `depth` others.
    pub fn decode(model: &Model, depth: usize, tokens: usize) -> Work {
        let seen = |layer: &Attended| positions_seen(depth, tokens, layer.window);
        Work {
            weight_bytes: tokens as f64 * model.decode_bytes() as f64,
            kv_bytes: over_layers(model, |layer| seen(layer) * layer.bytes as f64),
            weight_macs: tokens as f64 * model.decode_macs() as f64,
            attention_macs: over_layers(model, |layer| seen(layer) * layer.macs as f64),
        }
    }

    /// Returns the work of `tokens` tokens at once, after `depth` others. The output matrix is used
    /// for the last one.
    pub fn prefill(model: &Model, depth: usize, tokens: usize) -> Work {
        let output = model.decode_macs().saturating_sub(model.prefill_macs());
        // Each position's keys and values are needed once, however many tokens attend to them.
        let held = (depth + tokens) as f64;
        let seen = |layer: &Attended| positions_seen(depth, tokens, layer.window);
        Work {
            weight_bytes: model.decode_bytes() as f64,
            kv_bytes: over_layers(model, |layer| held * layer.bytes as f64),
            weight_macs: tokens as f64 * model.prefill_macs() as f64 + output as f64,
            attention_macs: over_layers(model, |layer| seen(layer) * layer.macs as f64),
        }
    }

    /// Returns all bytes.
    pub fn bytes(&self) -> f64 {
        self.weight_bytes + self.kv_bytes
    }

    /// Returns all multiply-accumulates.
    pub fn macs(&self) -> f64 {
        self.weight_macs + self.attention_macs
    }
}

/// Returns the sum over the layers with attention.
fn over_layers(model: &Model, f: impl Fn(&Attended) -> f64) -> f64 {
    model.spec().attended().map(|layer| f(&layer)).sum()
}

/// Returns the number of positions that `tokens` tokens after `depth` others attend to, in total:
/// each to itself and to those before it, but to at most `window`.
fn positions_seen(depth: usize, tokens: usize, window: Option<usize>) -> f64 {
    let window = window.unwrap_or(usize::MAX);
    // The number of first tokens that attend to less than a full window.
    let partial = window.saturating_sub(depth).min(tokens);
    let (d, n) = (depth as f64, partial as f64);
    d * n + n * (n + 1.0) / 2.0 + (tokens - partial) as f64 * window as f64
}

#[cfg(test)]
mod tests {
    #[test]
    fn positions_add_up() {
        for (depth, tokens, window) in
            [(10, 3, None), (0, 1, None), (10, 5, Some(12)), (100, 7, Some(16)), (0, 40, Some(16))]
        {
            let most = window.unwrap_or(usize::MAX);
            let expected: usize = (0..tokens).map(|i| (depth + i + 1).min(most)).sum();
            let got = super::positions_seen(depth, tokens, window);
            assert_eq!(got, expected as f64, "{depth} {tokens} {window:?}");
        }
    }
}
