//! Speed of the attention kernels on one thread, per SIMD level: `cargo run --release -p alight-kernels
//! --example attention_speed [decode|stream|prefill]`.
//!
//! The least time of many repetitions, since others use the machine too. `decode` repeats one piece whose keys and values stay in the
//! cache; `prefill` repeats the last tile of a 512-token prompt. `stream` walks all layers, more than the caches hold, and tells the
//! median time of a walk: what memory gives changes from piece to piece, and the least of each would be a walk that never was.

#[path = "support/sample.rs"]
mod sample;

use std::hint::black_box;

use alight_kernels::Isa;
use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Partial, Queries, Tile, Window, attend_merge, attend_partial, attend_tile, chunk_positions,
    partial_len, tile_tokens,
};
use alight_kernels::half::f32_to_f16;
use sample::Sample;

struct Model {
    name: &'static str,
    shape: KvShape,
    group: usize,
    layers: usize,
    window: Option<Window>,
}

const fn model(
    name: &'static str,
    kv_heads: usize,
    group: usize,
    dim: usize,
    layers: usize,
) -> Model {
    let shape = KvShape {
        kv_heads,
        k_dim: dim,
        v_dim: dim,
        capacity: 4096,
        shared: false,
        ty: KvType::F16,
    };
    Model { name, shape, group, layers, window: None }
}

const MODELS: [Model; 5] = [
    model("SmolLM2 135M", 3, 3, 64, 30),
    model("Gemma 3 270M", 1, 4, 256, 18),
    Model { window: Some(Window::Sliding(512)), ..model("Gemma 3 270M local", 1, 4, 256, 18) },
    model("Llama 8B (4 layers)", 8, 4, 128, 4),
    model("multi-query, 1 row", 8, 1, 128, 4),
];

fn main() {
    let what = std::env::args().nth(1);
    let wanted = |name| what.as_deref().is_none_or(|w| w == name);
    for m in &MODELS {
        for isa in Isa::available() {
            if wanted("decode") {
                decode(m, isa);
            }
            if wanted("stream") && isa != Isa::SCALAR {
                stream(m, isa);
            }
            if wanted("prefill") {
                prefill(m, isa);
            }
        }
    }
}

/// Pseudo-random values around 0, as f32.
fn values(n: usize, scale: f32) -> impl Iterator<Item = f32> {
    let mut state = 1u32;
    (0..n).map(move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * scale
    })
}

fn halves(n: usize) -> Vec<u16> {
    values(n, 1.0).map(f32_to_f16).collect()
}

fn params(m: &Model) -> AttentionParams {
    AttentionParams { scale: 1.0 / (m.shape.k_dim as f32).sqrt(), softcap: None, window: m.window }
}

/// The least seconds of one call, over half a second of calls.
fn least(call: impl FnMut()) -> f64 {
    Sample::for_seconds(0.5, call).least()
}

fn scratch(m: &Model) -> AttentionScratch {
    AttentionScratch::new(AttentionLimits {
        rows: tile_tokens(m.group) * m.group,
        k_dim: m.shape.k_dim,
        v_dim: m.shape.v_dim,
    })
}

fn decode(m: &Model, isa: Isa) {
    let (k, v) = (halves(m.shape.k_len()), halves(m.shape.v_len()));
    let cache = KvCache::new(m.shape, &k, &v);
    let q: Vec<f32> = values(m.group * m.shape.k_dim, 1.0).collect();
    let positions = chunk_positions(&m.shape);
    let mut partial = vec![0.0; partial_len(m.group, m.shape.v_dim)];
    let mut scratch = scratch(m);
    let params = AttentionParams { window: None, ..params(m) };
    let t = least(|| {
        let keys = 1024..1024 + positions;
        let (params, cache) = (&params, &cache);
        let call = Partial { params, cache, kv_head: 0, q: &q, bias: None, pos: 4095, keys };
        attend_partial(isa, &call, &mut partial, &mut scratch);
        black_box(&mut partial);
    });
    let elements = positions * (m.shape.k_dim + m.shape.v_dim);
    println!(
        "decode  {:20} {isa:7} {positions:4} positions {:7.2} us  {:6.1} GB/s  {:6.1} GMAC/s",
        m.name,
        t * 1e6,
        2.0 * elements as f64 / t / 1e9,
        (elements * m.group) as f64 / t / 1e9
    );
}

fn stream(m: &Model, isa: Isa) {
    let (k, v) = (halves(m.shape.k_len() * m.layers), halves(m.shape.v_len() * m.layers));
    let rows = m.group * m.shape.kv_heads;
    let q: Vec<f32> = values(rows * m.shape.k_dim, 1.0).collect();
    let mut out = vec![0.0; rows * m.shape.v_dim];
    let chunk = chunk_positions(&m.shape);
    let one = partial_len(m.group, m.shape.v_dim);
    let mut partials = vec![0.0; one * m.shape.capacity.div_ceil(chunk)];
    let mut scratch = scratch(m);
    let params = params(m);
    let pos = m.shape.capacity - 1;
    let visible = params.visible(pos);
    let walk = || {
        for (k, v) in k.chunks(m.shape.k_len()).zip(v.chunks(m.shape.v_len())) {
            let cache = KvCache::new(m.shape, k, v);
            for kv_head in 0..m.shape.kv_heads {
                let q = &q[kv_head * m.group * m.shape.k_dim..][..m.group * m.shape.k_dim];
                let mut used = 0;
                for start in visible.clone().step_by(chunk) {
                    let keys = start..(start + chunk).min(pos + 1);
                    let partial = &mut partials[used..used + one];
                    let (params, cache) = (&params, &cache);
                    let call = Partial { params, cache, kv_head, q, bias: None, pos, keys };
                    attend_partial(isa, &call, partial, &mut scratch);
                    used += one;
                }
                let n = m.group * m.shape.v_dim;
                let out = &mut out[kv_head * n..][..n];
                attend_merge(isa, m.shape.v_dim, m.group, &partials[..used], None, out);
            }
        }
        black_box(&mut out);
    };
    let t = Sample::for_seconds(1.0, walk).median();
    let elements = visible.len() * (m.shape.k_dim + m.shape.v_dim) * m.shape.kv_heads * m.layers;
    println!(
        "stream  {:20} {isa:7} {:4} positions {:7.3} ms  {:6.1} GB/s  ({} MB)",
        m.name,
        visible.len(),
        t * 1e3,
        2.0 * elements as f64 / t / 1e9,
        2 * elements / 1_000_000
    );
}

fn prefill(m: &Model, isa: Isa) {
    let tokens = 512;
    let (k, v) = (halves(m.shape.k_len()), halves(m.shape.v_len()));
    let cache = KvCache::new(m.shape, &k, &v);
    let heads = m.group * m.shape.kv_heads;
    let (q_stride, out_stride) = (heads * m.shape.k_dim, heads * m.shape.v_dim);
    let q: Vec<f32> = values(tokens * q_stride, 1.0).collect();
    let mut data = vec![0.0; tokens * out_stride];
    let mut out = HeadsOut::new(&mut data, out_stride);
    let mut scratch = scratch(m);
    let params = params(m);
    let tile = tile_tokens(m.group);
    for first_pos in [0, 3584] {
        let start = (tokens - 1) / tile * tile;
        let start = if tokens - start < tile { start - tile } else { start };
        let t = least(|| {
            let call = Tile {
                params: &params,
                cache: &cache,
                kv_head: 0,
                q: Queries { data: &q, stride: q_stride },
                heads: 0..m.group,
                sinks: None,
                bias: None,
                tokens: start..start + tile,
                first_pos,
                ahead: Ahead::Nothing,
            };
            attend_tile(isa, &call, &mut out, &mut scratch);
        });
        let tokens = first_pos + start..first_pos + start + tile;
        let seen: usize = tokens.clone().map(|t| params.visible(t).len()).sum();
        let macs = seen * m.group * (m.shape.k_dim + m.shape.v_dim);
        println!(
            "prefill {:20} {isa:7} tokens {tokens:?} x {} heads {:8.1} us  {:6.1} GMAC/s",
            m.name,
            m.group,
            t * 1e6,
            macs as f64 / t / 1e9
        );
    }
}
