//! The bits of float kernels on given inputs: the same at every SIMD level of every machine. They change with `ARITHMETIC` alone.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Partial, Queries, Tile, Window, attend_merge, attend_partial, attend_tile, kv_store,
    partial_len,
};
use alight_kernels::recurrent::{
    COLUMNS, DeltaStep, Filter, SsmStep, convolve, delta_step, ssm_step,
};
use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling, RopeTable, rope_apply};
use alight_kernels::{Isa, gate, norm, softmax, vec};

use crate::common::{Rng, levels, uniform};

/// A function of all that is computed, for each kind of it. After a change of the arithmetic the test says what they are.
const BITS: [(&str, u64); 13] = [
    ("norms", 0xd312_0312_7390_1906),
    ("sums", 0x1d21_697c_7470_68e1),
    ("softmax", 0xf5bb_1952_155c_aa05),
    ("silu", 0x27ac_ded3_0f9d_556b),
    ("gelu", 0xe3d2_3d13_9d1d_5e5d),
    ("sigmoid", 0xb3b5_ddf3_7268_e629),
    ("clamped silu", 0xa77e_02e9_2527_d074),
    ("softcap", 0x4435_ffb7_94d2_7aa9),
    ("rotations", 0x3206_10a4_c981_7baa),
    ("YaRN", 0xefba_0aa2_5beb_f3cf),
    ("decode", 0xdb44_4327_b1cb_0cc0),
    ("prefill", 0xaee8_fa23_8bc8_6a86),
    ("recurrent", 0x501e_bb36_271a_becc),
];

/// FNV-1a, 64 bits.
fn hash(x: &[f32]) -> u64 {
    let bytes = x.iter().flat_map(|x| x.to_bits().to_le_bytes());
    let fold = |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    bytes.fold(0xcbf2_9ce4_8422_2325, fold)
}

/// Numbers that take no function of a library to make.
fn floats(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| uniform(rng, -4.0, 4.0)).collect()
}

fn elementwise(isa: Isa, f: impl Fn(Isa, &mut [f32], &[f32])) -> u64 {
    let mut rng = Rng(41);
    let mut all = Vec::new();
    for n in [1, 7, 16, 40, 64, 129, 2049] {
        let (mut x, y) = (floats(&mut rng, n), floats(&mut rng, n));
        f(isa, &mut x, &y);
        all.extend(x);
    }
    hash(&all)
}

fn rotations(isa: Isa, scaling: RopeScaling) -> u64 {
    let mut all = Vec::new();
    for dims in [6, 64, 96] {
        let table = RopeTable::new(&RopeParams { dims, base: 5e5, scaling: scaling.clone() });
        let (mut cos, mut sin) = (vec![0.0; dims / 2], vec![0.0; dims / 2]);
        for pos in [1, 77, 4095, 100_003] {
            table.fill(pos, &mut cos, &mut sin);
            for pairing in [RopePairing::Interleaved, RopePairing::NeoX] {
                let mut x = floats(&mut Rng(43), dims + 3);
                rope_apply(isa, &mut x, &cos, &sin, pairing);
                all.extend(x);
            }
        }
    }
    hash(&all)
}

/// Decode, or prefill, with keys and values of both types.
fn attention(isa: Isa, prefill: bool) -> u64 {
    let mut all = Vec::new();
    for (ty, group, k_dim, v_dim, shared) in [
        (KvType::F16, 1, 64, 64, false),
        (KvType::F16, 3, 40, 19, false),
        (KvType::F16, 8, 64, 32, true),
        (KvType::Q8_0, 1, 64, 96, false),
        (KvType::Q8_0, 2, 32, 32, false),
        (KvType::Q8_0, 6, 64, 64, false),
    ] {
        let shape = KvShape { kv_heads: 1, k_dim, v_dim, capacity: 208, shared, ty };
        let mut rng = Rng(47);
        let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        for pos in 0..200 {
            let (key, value) = (floats(&mut rng, k_dim), floats(&mut rng, shape.stored_v_dim()));
            kv_store(isa, &shape, &mut k, &mut v, pos, &key, &value);
        }
        let cache = &KvCache::new(shape, &k, &v);
        let (tokens, sinks) = (11, floats(&mut rng, group));
        let limits = AttentionLimits { rows: tokens * group, k_dim, v_dim };
        let mut scratch = AttentionScratch::new(limits);
        let data = floats(&mut rng, tokens * group * k_dim);
        for (softcap, window) in [(None, None), (Some(5.0), Some(Window::Sliding(90)))] {
            let params = &AttentionParams { scale: 0.125, softcap, window };
            let sinks = softcap.map(|_| &sinks[..]);
            if prefill {
                let mut out = vec![0.0; tokens * group * v_dim];
                let q = Queries { data: &data, stride: group * k_dim };
                let (heads, tokens, first_pos) = (0..group, 0..tokens, 189);
                let (kv_head, ahead) = (0, Ahead::Nothing);
                #[rustfmt::skip]
                let call = Tile { params, cache, kv_head, q, heads, sinks, tokens, first_pos, ahead };
                attend_tile(isa, &call, &mut HeadsOut::new(&mut out, group * v_dim), &mut scratch);
                all.extend(out);
            } else {
                let mut partials = Vec::new();
                for keys in [0..64, 64..130, 130..200] {
                    let mut partial = vec![0.0; partial_len(group, v_dim)];
                    let q = &data[..group * k_dim];
                    let call = Partial { params, cache, kv_head: 0, q, pos: 195, keys };
                    attend_partial(isa, &call, &mut partial, &mut scratch);
                    partials.extend(partial);
                }
                let mut out = vec![0.0; group * v_dim];
                attend_merge(isa, v_dim, group, &partials, sinks, &mut out);
                all.extend(out);
            }
        }
    }
    hash(&all)
}

fn recurrent(isa: Isa) -> u64 {
    let (mut rng, len) = (Rng(53), 24);
    let mut all = Vec::new();
    let mut states = [vec![0.0; len * COLUMNS], vec![0.0; len * COLUMNS]];
    for _ in 0..9 {
        let small =
            |rng: &mut Rng| -> Vec<f32> { (0..len).map(|_| uniform(rng, -0.2, 0.2)).collect() };
        let (key, query, x) = (&small(&mut rng), &small(&mut rng), &floats(&mut rng, COLUMNS));
        let mut out = [0.0; COLUMNS];
        let step = DeltaStep { query, key, value: x, decay: 0.9, rate: 0.7 };
        delta_step(isa, &mut states[0], step, &mut out);
        all.extend(out);
        let step = SsmStep { key, query, x, decay: 0.9, rate: 0.7, past: 0.3 };
        ssm_step(isa, &mut states[1], step, &mut out);
        all.extend(out);
    }
    let (channels, rows) = (37, [1, 2, 3].map(|_| floats(&mut rng, 37)));
    let (taps, bias) = (floats(&mut rng, 3 * channels), floats(&mut rng, channels));
    let mut out = vec![0.0; channels];
    let filter = Filter { taps: &taps, bias: Some(&bias), silu: true };
    convolve(isa, &mut out, &rows.each_ref().map(Vec::as_slice), filter);
    all.extend(out);
    hash(&all)
}

fn found(isa: Isa) -> [(&'static str, u64); 13] {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        orig_ctx: 4096,
        ext_factor: 1.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let norms = elementwise(isa, |isa, x, y| {
        norm::center(isa, x);
        norm::rms_norm_in_place(isa, x, y, 1e-5);
    });
    [
        ("norms", norms),
        ("sums", elementwise(isa, |isa, x, y| x[0] = vec::dot(isa, x, y))),
        ("softmax", elementwise(isa, |isa, x, _| softmax::softmax(isa, x))),
        ("silu", elementwise(isa, gate::silu_mul)),
        ("gelu", elementwise(isa, gate::gelu_tanh_mul)),
        ("sigmoid", elementwise(isa, gate::sigmoid_mul)),
        ("clamped silu", elementwise(isa, gate::clamped_silu_mul)),
        ("softcap", elementwise(isa, |isa, x, _| vec::softcap(isa, x, 1.5))),
        ("rotations", rotations(isa, RopeScaling::None)),
        ("YaRN", rotations(isa, yarn)),
        ("decode", attention(isa, false)),
        ("prefill", attention(isa, true)),
        ("recurrent", recurrent(isa)),
    ]
}

#[test]
fn float_kernels_have_the_same_bits_on_every_machine() {
    for isa in levels().into_iter().chain([Isa::SCALAR]) {
        let found = found(isa);
        assert!(found == BITS, "{isa}: {found:#x?}, not {BITS:#x?}");
    }
}
