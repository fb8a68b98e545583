//! Hashes of what every public kernel computes on seeded random data: one line per case, so that two
//! commits can be compared with `diff`. A change that keeps every bit keeps every line; a new weight
//! type adds lines and changes none.
//!
//! `cargo run --release -p alight-kernels --example kernel_hashes > FILE`
//!
//! The cases: every weight type × SIMD level × layout × shape (with tails) × number of tokens for
//! the matrix product; rows, tiles and blocks of every type there and back; attention, norms, gates,
//! rotary embedding, softmax and vector operations for every SIMD level and length of tail.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Partial, Queries, Tile, Window, attend_merge, attend_partial, attend_tile, kv_store,
    partial_len,
};
use alight_kernels::rope::{RopePairing, RopeParams, RopeScaling, RopeTable, rope_apply};
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    ScaleField, WeightType, dequantize_row, gate, half, matmul, norm, quantize_row, softmax, tiles,
    vec,
};
use std::ops::Range;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    /// A generator for one case: its name is the seed, so that cases do not depend on one another.
    fn of(case: &str) -> Random {
        Random(hash(case.bytes()))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `-size..size`.
    fn within(&mut self, size: f32) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0) * size
    }

    /// Values as networks have them: mostly small, a few large.
    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|i| self.within(if i % 61 == 7 { 40.0 } else { 1.0 })).collect()
    }
}

/// FNV-1a, 64 bits.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let fold = |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, fold)
}

fn say_bytes(case: &str, bytes: &[u8]) {
    println!("{case} {:016x}", hash(bytes.iter().copied()));
}

fn say(case: &str, values: &[f32]) {
    println!("{case} {:016x}", hash(values.iter().flat_map(|v| v.to_bits().to_le_bytes())));
}

/// Random weights `[rows, cols]`.
fn blocks(random: &mut Random, ty: WeightType, rows: usize, cols: usize) -> Vec<u8> {
    let size = ty.row_bytes(cols).expect("whole blocks") * rows;
    let mut bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let v = random.within(1.0);
        match ty {
            WeightType::F32 => block.copy_from_slice(&v.to_le_bytes()),
            WeightType::F16 => block.copy_from_slice(&half::f32_to_f16(v).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&half::f32_to_bf16(v).to_le_bytes()),
            _ => {
                // Scales must be of a sensible size, everything else may be any bits.
                for field in ty.scale_fields() {
                    match *field {
                        ScaleField::Exponent(at) => block[at] = 118 + (random.next() % 7) as u8,
                        field => field.set(block, random.within(0.05)),
                    }
                }
            }
        }
    }
    bytes
}

/// `[rows, cols]`: whole and broken panels, tiles and groups of 256; every tail that the blocks
/// of the type allow.
const SHAPES: [(usize, usize); 17] = [
    (1, 256),
    (37, 512),
    (32, 768),
    (48, 1024),
    (16, 2304),
    (80, 1792),
    (37, 32),
    (33, 96),
    (32, 352),
    (16, 800),
    (48, 1504),
    (19, 64),
    (32, 320),
    (48, 896),
    (19, 17),
    (16, 100),
    (32, 601),
];

const TOKENS: [usize; 5] = [1, 2, 5, 16, 33];

fn product(w: &Matrix<'_>, rows: Range<usize>, isa: Isa, tokens: usize, x: &[f32]) -> Vec<f32> {
    let mut act = Activations::new(tokens, w.cols());
    act.begin(isa, RowCounts::of_call(tokens), w.cols(), ActivationFormats::of([w.kind()]));
    for (t, x) in x.chunks_exact(w.cols()).take(tokens).enumerate() {
        act.put(t, x);
    }
    let mut out = vec![0f32; tokens * rows.len()];
    let y = Output::starting_at(rows.start, &mut out, rows.len());
    // SAFETY: one thread.
    unsafe { matmul(w, rows, &act, y, &mut MatmulScratch::new()) };
    out
}

/// All products with one matrix, and with some of its rows.
fn products(case: &str, w: &Matrix<'_>) {
    // The same for every layout.
    let x =
        Random::of(&format!("{} columns", w.cols())).floats(TOKENS[TOKENS.len() - 1] * w.cols());
    for isa in Isa::available() {
        for tokens in TOKENS {
            let y = product(w, 0..w.rows(), isa, tokens, &x);
            say(&format!("{case} {isa} tokens {tokens}"), &y);
            let some = w.rows() / 3..w.rows() - w.rows() / 5;
            let y = product(w, some, isa, tokens, &x);
            say(&format!("{case} {isa} tokens {tokens} some rows"), &y);
        }
    }
}

fn weights(ty: WeightType) {
    for (rows, cols) in SHAPES {
        let Some(row_bytes) = ty.row_bytes(cols) else { continue };
        let case = format!("{ty} {rows}x{cols}");
        let mut random = Random::of(&case);
        let canonical = blocks(&mut random, ty, rows, cols);
        let mut floats = vec![0f32; rows * cols];
        dequantize_row(ty, &canonical, &mut floats);
        say(&format!("dequantize {case}"), &floats);
        let w = Matrix::new(ty, &canonical, rows, cols).expect("a matrix");
        products(&format!("matmul {case} rows"), &w);
        let part = cols / ty.block_len() / 3 * ty.block_len()..cols;
        if part.start > 0 {
            let view = w.columns(part.clone()).expect("columns");
            products(&format!("matmul {case} rows columns"), &view);
        }
        if !tiles::packable(ty, rows, cols) {
            continue;
        }
        let mut packed = vec![0; canonical.len()];
        tiles::pack(ty, cols, &canonical, &mut packed);
        say_bytes(&format!("pack {case}"), &packed);
        let mut back = vec![0; canonical.len()];
        tiles::unpack(ty, cols, &packed, &mut back);
        assert!(back == canonical, "{case}: unpacking is not the inverse of packing");
        let w = Matrix::with_layout(Layout::Tiles, ty, &packed, rows, cols).expect("a matrix");
        let mut row = vec![0f32; cols];
        for r in 0..rows {
            w.dequantize_row(r, &mut row);
            let same = row.iter().zip(&floats[r * cols..]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{case}: row {r} of the tiles, {row_bytes} bytes");
        }
        products(&format!("matmul {case} tiles"), &w);
        if part.start > 0 {
            let view = w.columns(part).expect("columns");
            products(&format!("matmul {case} tiles columns"), &view);
        }
    }
}

fn quantised(ty: WeightType) {
    let case = format!("quantize {ty}");
    let mut random = Random::of(&case);
    let x: Vec<f32> = (0..40 * 256)
        .map(|i| random.within([1.0, 1e-3, 30.0, 1e-30][i / 256 % 4]) + (i / 1024) as f32 * 0.1)
        .collect();
    for isa in Isa::available() {
        let mut bytes = vec![0; ty.row_bytes(x.len()).expect("whole blocks")];
        quantize_row(isa, ty, &x, &mut bytes);
        say_bytes(&format!("{case} {isa}"), &bytes);
    }
}

fn attention() {
    for (i, (k_dim, v_dim)) in
        [(64, 64), (128, 128), (80, 80), (256, 256), (24, 40), (7, 19)].into_iter().enumerate()
    {
        for (softcap, window) in [(None, None), (Some(30.0), None), (None, Some(100))] {
            let (group, filled) = ([1, 3, 8][i % 3], 330);
            let shape = KvShape {
                kv_heads: 2,
                k_dim,
                v_dim,
                capacity: 352,
                shared: false,
                ty: KvType::F16,
            };
            let params = AttentionParams {
                scale: 1.0 / (k_dim as f32).sqrt(),
                softcap,
                window: window.map(Window::Sliding),
            };
            let case = format!("attention {k_dim}/{v_dim} group {group} {softcap:?} {window:?}");
            for isa in Isa::available() {
                let mut random = Random::of(&case);
                let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
                for pos in 0..filled {
                    let (key, value) = (random.floats(2 * k_dim), random.floats(2 * v_dim));
                    kv_store(isa, &shape, &mut k, &mut v, pos, &key, &value);
                }
                let stored: Vec<u8> = k.iter().chain(&v).flat_map(|x| x.to_le_bytes()).collect();
                say_bytes(&format!("{case} {isa} store"), &stored);
                let cache = KvCache::new(shape, &k, &v);
                let tokens = 21;
                let limits = AttentionLimits { rows: tokens * group, k_dim, v_dim };
                let mut scratch = AttentionScratch::new(limits);
                let q = random.floats(tokens * 2 * group * k_dim);
                let mut partials = Vec::new();
                for keys in [0..64, 64..200, 200..filled] {
                    let mut partial = vec![0f32; partial_len(group, v_dim)];
                    let q = &q[..group * k_dim];
                    attend_partial(
                        isa,
                        &Partial {
                            params: &params,
                            cache: &cache,
                            kv_head: 1,
                            q,
                            bias: None,
                            pos: 310,
                            keys,
                        },
                        &mut partial,
                        &mut scratch,
                    );
                    partials.extend(partial);
                }
                let mut out = vec![0f32; group * v_dim];
                attend_merge(isa, v_dim, group, &partials, None, &mut out);
                say(&format!("{case} {isa} partial"), &out);
                let mut out = vec![0f32; tokens * 2 * group * v_dim];
                let mut heads = HeadsOut::new(&mut out, 2 * group * v_dim);
                let q = Queries { data: &q, stride: 2 * group * k_dim };
                for h in 0..2 {
                    let of = h * group..(h + 1) * group;
                    let (of_tokens, first) = (0..tokens, filled - tokens);
                    attend_tile(
                        isa,
                        &Tile {
                            params: &params,
                            cache: &cache,
                            kv_head: h,
                            q,
                            heads: of,
                            sinks: None,
                            bias: None,
                            tokens: of_tokens,
                            first_pos: first,
                            ahead: Ahead::Nothing,
                        },
                        &mut heads,
                        &mut scratch,
                    );
                }
                say(&format!("{case} {isa} tile"), &out);
            }
        }
    }
}

fn floats() {
    for isa in Isa::available() {
        for n in (1..40).chain([127, 576, 2049]) {
            let mut random = Random::of(&format!("floats {n}"));
            let (x, y) = (random.floats(n), random.floats(n));
            let case = |name: &str| format!("{name} {isa} {n}");
            let mut z = vec![0f32; n];
            norm::rms_norm(isa, &x, &y, 1e-5, &mut z);
            say(&case("rms_norm"), &z);
            let in_place = |name: &str, f: &dyn Fn(&mut [f32])| {
                let mut z = x.clone();
                f(&mut z);
                say(&case(name), &z);
            };
            in_place("add_assign", &|z| vec::add_assign(isa, z, &y));
            in_place("scale", &|z| vec::scale(isa, z, 3.7));
            in_place("softcap", &|z| vec::softcap(isa, z, 5.0));
            in_place("softmax", &|z| softmax::softmax(isa, z));
            in_place("silu", &|z| gate::silu_mul(isa, z, &y));
            in_place("gelu", &|z| gate::gelu_tanh_mul(isa, z, &y));
            in_place("gelu_erf", &|z| gate::gelu_erf_mul(isa, z, &y));
            say(&case("dot"), &[vec::dot(isa, &x, &y), vec::argmax(isa, &x) as f32]);
        }
        // (The names in lines stay, so that lines compare with those of earlier commits.)
        for (name, pairing) in
            [("Interleaved", RopePairing::Interleaved), ("Halves", RopePairing::NeoX)]
        {
            for dims in [8, 64, 96, 38] {
                let params = RopeParams { dims, base: 10_000.0, scaling: RopeScaling::None };
                let table = RopeTable::new(&params);
                let (mut cos, mut sin) = (vec![0f32; dims / 2], vec![0f32; dims / 2]);
                table.fill(1234, &mut cos, &mut sin);
                let mut x = Random::of("rope").floats(128);
                rope_apply(isa, &mut x, &cos, &sin, pairing);
                say(&format!("rope {isa} {name} {dims}"), &x);
            }
        }
    }
}

fn main() {
    for ty in WeightType::ALL {
        weights(ty);
        if ty.quantizes() {
            quantised(ty);
        }
    }
    attention();
    floats();
}
