//! The bits of kernels on given inputs: the same at every SIMD level of every machine, and of products in both layouts. They change with `ARITHMETIC`
//! alone.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Partial, Queries, Tile, Window, attend_merge, attend_partial, attend_tile, kv_store,
    partial_len,
};
use alight_kernels::recurrent::{
    COLUMNS, DeltaStep, Filter, SsmStep, convolve, delta_step, ssm_step,
};
use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling, RopeTable, rope_apply};
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, Precision,
    RowCounts, WeightType, gate, matmul, norm, softmax, tiles, vec,
};

use crate::common::{Rng, levels, random_blocks, uniform};

/// A function of all that is computed, for each kind of it. After a change of the arithmetic the test says what they are.
const BITS: [(&str, u64); 16] = [
    ("norms", 0xd312_0312_7390_1906),
    ("sums", 0x1d21_697c_7470_68e1),
    ("softmax", 0xf5bb_1952_155c_aa05),
    ("silu", 0x27ac_ded3_0f9d_556b),
    ("gelu", 0xe3d2_3d13_9d1d_5e5d),
    ("gelu by erf", 0x4006_6309_17ef_c482),
    ("sigmoid", 0xb3b5_ddf3_7268_e629),
    ("clamped silu", 0xa77e_02e9_2527_d074),
    ("softcap", 0x4435_ffb7_94d2_7aa9),
    ("rotations", 0x3206_10a4_c981_7baa),
    ("YaRN", 0xefba_0aa2_5beb_f3cf),
    ("decode", 0xdb44_4327_b1cb_0cc0),
    ("prefill", 0xaee8_fa23_8bc8_6a86),
    ("decode, f32", 0x672b_c003_64ad_f6ca),
    ("prefill, f32", 0xf3ac_e269_5a43_ba5f),
    ("recurrent", 0x501e_bb36_271a_becc),
];

/// The same of the products of each type.
const PRODUCTS: [(&str, u64); WeightType::ALL.len()] = [
    ("F32", 0xc025_d602_3e45_7259),
    ("F16", 0x5b1f_d952_cf03_1996),
    ("Q4_0", 0x1e67_01f8_4656_b6e4),
    ("Q4_1", 0x0407_acea_315f_f852),
    ("Q5_0", 0x28cc_393a_3c59_7869),
    ("Q5_1", 0xb10d_ee50_a380_17e0),
    ("Q8_0", 0x2ac2_bc82_605f_def1),
    ("Q2_K", 0x8099_0fa8_c023_7763),
    ("Q3_K", 0xd0f2_4ef8_87ed_a4c2),
    ("Q4_K", 0x0322_695f_a5c7_c4fc),
    ("Q5_K", 0x684b_2025_9ea1_8a3d),
    ("Q6_K", 0x26ac_e1e9_35b4_4608),
    ("IQ2_XXS", 0x8784_96c9_1acf_c9e5),
    ("IQ2_XS", 0xa1e5_a00b_f95f_c98e),
    ("IQ3_XXS", 0x3d70_8071_708e_fc99),
    ("IQ1_S", 0x2ac0_8f68_1c47_5354),
    ("IQ4_NL", 0x9100_a7ed_b327_49f2),
    ("IQ3_S", 0xe8d5_3550_cace_5167),
    ("IQ2_S", 0xeebf_8bce_6ab2_a9fc),
    ("IQ4_XS", 0x6d6f_ecd7_c0cb_6321),
    ("IQ1_M", 0x671b_cc9e_9eb1_ff95),
    ("BF16", 0x0c35_94cb_0ff8_29ee),
    ("TQ1_0", 0x65dc_0278_b854_e8c6),
    ("TQ2_0", 0x9cea_0e08_47d8_ff45),
    ("MXFP4", 0xae8c_bbeb_0cbe_4a22),
    ("NVFP4", 0x3db4_fd90_adaa_111a),
    ("Q1_0", 0x818d_191d_4678_54c7),
    ("Q2_0", 0xcd80_b3cd_8c3c_28d2),
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

/// A type of keys and values, query heads of a key/value head, the lengths of keys and values, and whether values are the beginnings of keys.
type AttentionCase = (KvType, usize, usize, usize, bool);

const ROUNDED: &[AttentionCase] = &[
    (KvType::F16, 1, 64, 64, false),
    (KvType::F16, 3, 40, 19, false),
    (KvType::F16, 8, 64, 32, true),
    (KvType::Q8_0, 1, 64, 96, false),
    (KvType::Q8_0, 2, 32, 32, false),
    (KvType::Q8_0, 6, 64, 64, false),
];

const UNROUNDED: &[AttentionCase] =
    &[(KvType::F32, 3, 40, 19, false), (KvType::F32, 1, 64, 130, false)];

/// Decode, or prefill.
fn attention(isa: Isa, prefill: bool, cases: &[AttentionCase]) -> u64 {
    let mut all = Vec::new();
    for &(ty, group, k_dim, v_dim, shared) in cases {
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
                let call = Tile { params, cache, kv_head, q, heads, sinks, bias: None, tokens, first_pos, ahead };
                attend_tile(isa, &call, &mut HeadsOut::new(&mut out, group * v_dim), &mut scratch);
                all.extend(out);
            } else {
                let mut partials = Vec::new();
                for keys in [0..64, 64..130, 130..200] {
                    let mut partial = vec![0.0; partial_len(group, v_dim)];
                    let q = &data[..group * k_dim];
                    let call = Partial { params, cache, kv_head: 0, q, bias: None, pos: 195, keys };
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

fn found(isa: Isa) -> [(&'static str, u64); 16] {
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
        ("gelu by erf", elementwise(isa, gate::gelu_erf_mul)),
        ("sigmoid", elementwise(isa, gate::sigmoid_mul)),
        ("clamped silu", elementwise(isa, gate::clamped_silu_mul)),
        ("softcap", elementwise(isa, |isa, x, _| vec::softcap(isa, x, 1.5))),
        ("rotations", rotations(isa, RopeScaling::None)),
        ("YaRN", rotations(isa, yarn)),
        ("decode", attention(isa, false, ROUNDED)),
        ("prefill", attention(isa, true, ROUNDED)),
        ("decode, f32", attention(isa, false, UNROUNDED)),
        ("prefill, f32", attention(isa, true, UNROUNDED)),
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

/// Products with a few tokens of 16 bits and more of 8, of rows that end within a group of 256 where the type allows it.
fn products(ty: WeightType, isa: Isa, layout: Layout) -> u64 {
    let rows = 48;
    let mut all = Vec::new();
    let lengths = match ty.block_len() {
        1 => [100, 601],
        // A whole group of 256 and a part of one, where there are parts.
        block => [block, 7 * block + 256 / block * block],
    };
    for cols in lengths {
        let mut rng = Rng(cols as u64);
        let blocks = random_blocks(&mut rng, ty, rows, cols);
        let mut data = blocks.clone();
        if layout == Layout::Tiles {
            tiles::pack(ty, cols, &blocks, &mut data);
        }
        let w = Matrix::with_layout(layout, ty, &data, rows, cols).unwrap();
        for (precision, tokens) in [
            (Precision::Bits16, 1),
            (Precision::Bits16, 7),
            (Precision::Bits8, 2),
            (Precision::Bits8, 13),
            (Precision::Bits8, 97),
        ] {
            let x = floats(&mut rng, tokens * cols);
            let mut act = Activations::new(tokens, cols);
            let formats = ActivationFormats::of([w.kind()]);
            act.begin(isa, RowCounts::new(precision, tokens), cols, formats);
            x.chunks_exact(cols).enumerate().for_each(|(t, x)| act.put(t, x));
            let mut out = vec![0.0; tokens * rows];
            let y = Output::new(&mut out, rows);
            // SAFETY: one thread.
            unsafe { matmul(&w, 0..rows, &act, y, &mut MatmulScratch::new()) };
            all.extend(out);
        }
    }
    hash(&all)
}

#[test]
fn products_have_the_same_bits_on_every_machine_and_in_both_layouts() {
    // Prompts in bf16 have bits of their own.
    let levels = levels().into_iter().filter(|isa| isa.bits() == Isa::SCALAR.bits());
    for isa in levels.chain([Isa::SCALAR]) {
        for layout in [Layout::Rows, Layout::Tiles] {
            let found = WeightType::ALL.map(|ty| {
                let layout = if tiles::packable(ty, 16, 1792) { layout } else { Layout::Rows };
                (ty.to_string(), products(ty, isa, layout))
            });
            let found = found.each_ref().map(|(name, hash)| (name.as_str(), *hash));
            assert!(found == PRODUCTS, "{isa} {layout:?}: {found:#x?}, not {PRODUCTS:#x?}");
        }
    }
}
