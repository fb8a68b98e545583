//! Attention against a float64 oracle, random shapes, windows and splits; and the same bits at every SIMD level.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    Partial, Queries, RelativeBias, Tile, Window, attend_merge, attend_partial, attend_tile,
    kv_store, partial_len,
};
use alight_kernels::half::{f16_to_f32, f32_to_f16};
use alight_kernels::{Isa, WeightType, dequantize_row, quantize_row};

use crate::common::{Rng, at_all_levels};

struct Case {
    shape: KvShape,
    params: AttentionParams,
    group: usize,
    /// Of each query head.
    sinks: Option<Vec<f32>>,
    /// Of each query head, for distances below the first.
    bias: Option<(usize, Vec<f32>)>,
    /// Positions stored.
    filled: usize,
    k: Vec<u16>,
    v: Vec<u16>,
    /// As stored, per position: `[kv_heads][k_dim]` and `[kv_heads][v_dim]`.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

/// Rotates a row by its definition: blocks times a Hadamard matrix, whose elements are ±1, divided by the root of its size.
fn rotated(x: &[f64], block: usize) -> Vec<f64> {
    let element = |block: &[f64], j: usize| {
        let signed = |(i, x): (usize, &f64)| if (i & j).count_ones() % 2 == 1 { -x } else { *x };
        block.iter().enumerate().map(signed).sum::<f64>() / (block.len() as f64).sqrt()
    };
    x.chunks(block).flat_map(|x| (0..block).map(move |j| element(x, j))).collect()
}

/// The largest power of two that divides all of these lengths, but at most 256.
fn block(dims: &[usize]) -> usize {
    (0..=8).map(|n| 1 << n).rev().find(|n| dims.iter().all(|dim| dim % n == 0)).unwrap()
}

/// What the cache keeps of keys or values, of heads of `dim` elements that are rotated in blocks, if they are.
fn stored(shape: &KvShape, dim: usize, x: &[f32]) -> Vec<f32> {
    let ty = shape.ty;
    match ty {
        KvType::F16 => x.iter().map(|x| f16_to_f32(f32_to_f16(*x))).collect(),
        KvType::F32 => x.to_vec(),
        KvType::Q4R => {
            // Through the cache: the levels of a group are the nearest ones for a scale that is found by a search, which
            // `four_bits_are_as_near_as_they_can_be` looks at.
            let one = KvShape { kv_heads: x.len() / dim, k_dim: dim, capacity: 16, ..*shape };
            let one = KvShape { v_dim: if shape.shared { shape.v_dim } else { dim }, ..one };
            let (mut k, mut v) = (vec![0; one.k_len()], vec![0; one.v_len()]);
            let none = &x[..one.kv_heads * one.stored_v_dim()];
            kv_store(Isa::SCALAR, &one, &mut k, &mut v, 0, x, none);
            let kept = levels_of(&one, &k);
            let block = if one.shared { block(&[dim, one.v_dim]) } else { block(&[dim]) };
            let back = kept.chunks(dim).flat_map(|head| rotated(head, block));
            back.map(|x| x as f32).collect()
        }
        KvType::Q8_0 => {
            let ty = WeightType::Q8_0;
            let mut blocks = vec![0; ty.row_bytes(x.len()).unwrap()];
            quantize_row(Isa::SCALAR, ty, x, &mut blocks);
            let mut rounded = vec![0.0; x.len()];
            dequantize_row(ty, &blocks, &mut rounded);
            rounded
        }
    }
}

/// The rotated keys at position 0 of a page, from their codes and scales.
fn levels_of(shape: &KvShape, k: &[u16]) -> Vec<f64> {
    const LEVELS: [i32; 16] =
        [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    let dim = shape.k_dim;
    let bytes: Vec<u8> = k.iter().flat_map(|x| x.to_le_bytes()).collect();
    let each = (0..shape.kv_heads).flat_map(|head| {
        let line = &bytes[head * shape.capacity * (dim / 2 + dim / 16)..];
        let half = |d: usize| line[d / 2 * 16] >> (d % 2 * 4) & 15;
        let scale = move |d: usize| {
            let at = 16 * dim / 2 + d / 32 * 32;
            f16_to_f32(u16::from_le_bytes([line[at], line[at + 1]]))
        };
        (0..dim).map(move |d| f64::from(LEVELS[usize::from(half(d))]) * f64::from(scale(d)))
    });
    each.collect()
}

/// The kept elements of a group are at the nearest levels, and about as far from it as IQ4_NL's search for a scale gets it.
#[test]
fn four_bits_are_as_near_as_they_can_be() {
    let mut rng = Rng(7);
    let (mut found, mut searched, mut all) = (0.0, 0.0, 0.0);
    for dim in [32, 64, 96, 128, 256, 512, 576].into_iter().cycle().take(70) {
        let shape = KvShape {
            kv_heads: 1,
            k_dim: dim,
            v_dim: 32,
            capacity: 16,
            shared: false,
            ty: KvType::Q4R,
        };
        let mut x = rng.normals(dim);
        // The reason for a rotation: one element that is much larger.
        x[3] *= 20.0;
        let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        kv_store(Isa::best(), &shape, &mut k, &mut v, 0, &x, &rng.normals(32));
        let exact = rotated(&x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), block(&[dim]));
        let kept = levels_of(&shape, &k);
        let narrow: Vec<f32> = exact.iter().map(|x| *x as f32).collect();
        let ty = WeightType::IQ4_NL;
        let mut blocks = vec![0; ty.row_bytes(dim).unwrap()];
        quantize_row(Isa::SCALAR, ty, &narrow, &mut blocks);
        let mut best = vec![0.0; dim];
        dequantize_row(ty, &blocks, &mut best);
        for ((exact, kept), best) in exact.iter().zip(&kept).zip(&best) {
            found += (exact - kept) * (exact - kept);
            searched += (exact - f64::from(*best)) * (exact - f64::from(*best));
            all += exact * exact;
        }
    }
    assert!(found < 0.006 * all, "a relative error of {}", found / all);
    assert!(found < 1.1 * searched, "{found}, and {searched} with a longer search");
}

#[test]
fn keys_and_values_that_are_no_numbers_stay_none() {
    let shape =
        KvShape { kv_heads: 1, k_dim: 64, v_dim: 64, capacity: 16, shared: false, ty: KvType::Q4R };
    for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut key = vec![1.0; 64];
        key[40] = x;
        let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        kv_store(Isa::best(), &shape, &mut k, &mut v, 0, &key, &key);
        assert!(levels_of(&shape, &k).iter().all(|x| x.is_nan()), "{x}");
    }
}

impl Case {
    fn new(rng: &mut Rng, k_dim: usize, v_dim: usize, group: usize, max: usize) -> Case {
        let filled = rng.range(1, max);
        let ty = match k_dim.is_multiple_of(32) && v_dim.is_multiple_of(32) {
            true => rng.pick(&[KvType::F16, KvType::Q8_0, KvType::Q4R, KvType::F32]),
            false => rng.pick(&[KvType::F16, KvType::F32]),
        };
        let shape = KvShape {
            kv_heads: rng.range(1, 4),
            k_dim,
            v_dim,
            capacity: filled.div_ceil(16) * 16 + 16 * rng.range(0, 3),
            shared: v_dim <= k_dim && ty != KvType::F32 && rng.pick(&[true, false, false]),
            ty,
        };
        let params = AttentionParams {
            scale: rng.pick(&[1.0, 1.0 / (k_dim as f32).sqrt()]),
            softcap: rng.pick(&[None, None, Some(3.0), Some(50.0)]),
            window: rng.pick(&[
                None,
                None,
                Some(Window::Sliding(1)),
                Some(Window::Sliding(17)),
                Some(Window::Sliding(64)),
                Some(Window::Sliding(100)),
                Some(Window::Chunk(1)),
                Some(Window::Chunk(23)),
                Some(Window::Chunk(64)),
                Some(Window::Around(0)),
                Some(Window::Around(30)),
            ]),
        };
        let heads = shape.kv_heads * group;
        let sinks =
            rng.pick(&[true, false]).then(|| rng.normals(heads).iter().map(|x| 3.0 * x).collect());
        // Never stored: NaN, which must not be seen.
        let (mut k, mut v) = (vec![0x7e01; shape.k_len()], vec![0x7e01; shape.v_len()]);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for pos in 0..filled {
            let key = rng.normals(shape.kv_heads * k_dim);
            let value = rng.normals(shape.kv_heads * shape.stored_v_dim());
            kv_store(Isa::best(), &shape, &mut k, &mut v, pos, &key, &value);
            let key = stored(&shape, k_dim, &key);
            let begins = |key: &[f32]| key[..v_dim].to_vec();
            values.push(match shape.shared {
                true => key.chunks(k_dim).flat_map(begins).collect(),
                false => stored(&shape, v_dim, &value),
            });
            keys.push(key);
        }
        Case { shape, params, group, sinks, bias: None, filled, k, v, keys, values }
    }

    fn cache(&self) -> KvCache<'_> {
        KvCache::new(self.shape, &self.k, &self.v)
    }

    /// The sinks of the query heads on one key/value head.
    fn sinks_of(&self, kv_head: usize) -> Option<&[f32]> {
        self.sinks.as_ref().map(|sinks| &sinks[kv_head * self.group..][..self.group])
    }

    /// The biases of the query heads on one key/value head.
    fn bias_of(&self, kv_head: usize) -> Option<RelativeBias<'_>> {
        let (reach, values) = self.bias.as_ref()?;
        let values = &values[kv_head * self.group * RelativeBias::len_for(*reach)..];
        Some(RelativeBias { values, reach: *reach })
    }

    /// Of query head `head`, at `pos`, where there is nothing to see from `end` on.
    fn oracle(&self, head: usize, q: &[f32], pos: usize, end: usize) -> Vec<f64> {
        let kv_head = head / self.group;
        let (kd, vd) = (self.shape.k_dim, self.shape.v_dim);
        let mut weights = Vec::new();
        for j in 0..end {
            let hidden = self.params.window.is_some_and(|window| match window {
                Window::Sliding(positions) => pos >= j + positions,
                Window::Chunk(positions) => j < pos / positions * positions,
                Window::Around(away) => j.abs_diff(pos) > away,
            });
            if hidden {
                continue;
            }
            let key = &self.keys[j][kv_head * kd..][..kd];
            let dot: f64 = q.iter().zip(key).map(|(&a, &b)| a as f64 * b as f64).sum();
            let mut score = dot * self.params.scale as f64;
            if let Some((reach, bias)) = &self.bias {
                let of_head = &bias[head * RelativeBias::len_for(*reach)..];
                score += of_head[reach - 1 + j - pos] as f64;
            }
            if let Some(cap) = self.params.softcap {
                score = cap as f64 * (score / cap as f64).tanh();
            }
            weights.push((j, score));
        }
        let sink = self.sinks.as_ref().map_or(f64::NEG_INFINITY, |sinks| sinks[head] as f64);
        let max = weights.iter().fold(sink, |m, w| m.max(w.1));
        let mut out = vec![0.0; vd];
        let mut sum = (sink - max).exp();
        for (j, score) in weights {
            let p = (score - max).exp();
            sum += p;
            for (o, &x) in out.iter_mut().zip(&self.values[j][kv_head * vd..]) {
                *o += p * x as f64;
            }
        }
        out.iter().map(|o| o / sum).collect()
    }

    /// Values are standard normal and outputs averages of them. A score is a sum of `k_dim` products
    /// of standard normals: its error in f32 grows with its spread, and is the relative error of the
    /// weights.
    fn tolerance(&self) -> f64 {
        5e-6 * (1.0 + (self.params.scale * (self.shape.k_dim as f32).sqrt()) as f64)
    }

    fn name(&self, what: &str) -> String {
        let Case { shape, params, group, filled, .. } = self;
        format!("{what}: {shape:?} {params:?} group {group} filled {filled}")
    }

    fn assert_close(&self, what: &str, found: &[f32], expected: &[f64]) {
        for (i, (&f, &e)) in found.iter().zip(expected).enumerate() {
            let what = self.name(what);
            let error = (f as f64 - e).abs();
            assert!(error <= self.tolerance(), "{what}: [{i}] found {f}, expected {e}");
        }
    }
}

const DIMS: [usize; 9] = [32, 40, 64, 80, 96, 128, 256, 24, 7];

#[test]
fn partials_of_any_split_merge_to_the_exact_attention() {
    let mut rng = Rng(1);
    for round in 0..120 {
        let k_dim = DIMS[round % DIMS.len()];
        let v_dim = if round % 4 == 0 { rng.pick(&DIMS) } else { k_dim };
        let group = rng.range(1, 17);
        let mut case = Case::new(&mut rng, k_dim, v_dim, group, 400);
        if round % 3 == 1 && !case.shape.shared {
            let reach = case.filled + rng.range(0, 5);
            let numbers = group * case.shape.kv_heads * RelativeBias::len_for(reach);
            case.bias = Some((reach, rng.normals(numbers)));
        }
        let case = case;
        for kv_head in 0..case.shape.kv_heads {
            let pos = rng.range(0, case.filled);
            let q = rng.normals(group * k_dim);
            let mut ranges = Vec::new();
            let mut start = 0;
            while start <= pos {
                let end = (start + rng.range(1, 200)).min(case.shape.capacity);
                ranges.push(start..end);
                start = end;
            }
            let out = at_all_levels(&case.name("partial"), |isa| {
                let limits = AttentionLimits { rows: group, k_dim, v_dim };
                let mut scratch = AttentionScratch::new(limits);
                let mut partials = Vec::new();
                for keys in ranges.iter().cloned() {
                    let mut partial = vec![f32::NAN; partial_len(group, v_dim)];
                    let (params, cache, q) = (&case.params, &case.cache(), &q);
                    let bias = case.bias_of(kv_head);
                    let call = Partial { params, cache, kv_head, q, bias, pos, keys };
                    attend_partial(isa, &call, &mut partial, &mut scratch);
                    partials.extend(partial);
                }
                let mut out = vec![f32::NAN; group * v_dim];
                attend_merge(isa, v_dim, group, &partials, case.sinks_of(kv_head), &mut out);
                out.extend(partials);
                out
            });
            for (i, (q, out)) in q.chunks(k_dim).zip(out.chunks(v_dim)).enumerate() {
                let expected = case.oracle(kv_head * group + i, q, pos, pos + 1);
                case.assert_close("partial", out, &expected);
            }
        }
    }
}

#[test]
fn tiles_give_the_exact_attention_and_touch_nothing_else() {
    let mut rng = Rng(2);
    for round in 0..60 {
        let k_dim = DIMS[round % DIMS.len()];
        let v_dim = if round % 4 == 0 { rng.pick(&DIMS) } else { k_dim };
        let group = rng.range(1, 9);
        let mut case = Case::new(&mut rng, k_dim, v_dim, group, 300);
        if round % 3 == 0 {
            let reach = case.filled + rng.range(0, 5);
            let numbers = group * case.shape.kv_heads * RelativeBias::len_for(reach);
            case.bias = Some((reach, rng.normals(numbers)));
        }
        let case = case;
        let batch = rng.range(1, case.filled.min(70) + 1);
        let first_pos = case.filled - batch;
        let n_heads = group * case.shape.kv_heads;
        let q_stride = n_heads * k_dim + rng.range(0, 3) * 5;
        let o_stride = n_heads * v_dim + rng.range(0, 3) * 5;
        let q = rng.normals(batch * q_stride);
        let tile = rng.range(1, 40);
        // Groups of tokens that see each other, between tokens that see nothing after themselves.
        let mut ends = Vec::new();
        while ends.len() < batch {
            let len = rng.pick(&[1, 1, 2, 13, 40]).min(batch - ends.len());
            ends.extend(vec![first_pos + ends.len() + len; len]);
        }
        let ahead = rng.pick(&[Ahead::Nothing, Ahead::To(case.filled), Ahead::Each(&ends)]);
        let data = at_all_levels(&case.name("tile"), |isa| {
            let limits = AttentionLimits { rows: tile * group, k_dim, v_dim };
            let mut scratch = AttentionScratch::new(limits);
            let mut data = vec![7.5; batch * o_stride];
            let mut out = HeadsOut::new(&mut data, o_stride);
            for kv_head in 0..case.shape.kv_heads {
                for start in (0..batch).step_by(tile) {
                    attend_tile(
                        isa,
                        &Tile {
                            params: &case.params,
                            cache: &case.cache(),
                            kv_head,
                            q: Queries { data: &q, stride: q_stride },
                            heads: kv_head * group..(kv_head + 1) * group,
                            sinks: case.sinks_of(kv_head),
                            bias: case.bias_of(kv_head),
                            tokens: start..(start + tile).min(batch),
                            first_pos,
                            ahead,
                        },
                        &mut out,
                        &mut scratch,
                    );
                }
            }
            data
        });
        for t in 0..batch {
            for h in 0..n_heads {
                let end = match ahead {
                    Ahead::Nothing => first_pos + t + 1,
                    Ahead::To(end) => end,
                    Ahead::Each(ends) => ends[t],
                };
                let q = &q[t * q_stride + h * k_dim..][..k_dim];
                let expected = case.oracle(h, q, first_pos + t, end);
                let found = &data[t * o_stride + h * v_dim..][..v_dim];
                case.assert_close(&format!("tile, token {t} head {h}"), found, &expected);
            }
            let gap = &data[t * o_stride + n_heads * v_dim..(t + 1) * o_stride];
            assert!(gap.iter().all(|&x| x == 7.5), "written outside of the rows");
        }
    }
}

#[test]
fn a_range_without_visible_keys_weighs_nothing() {
    for isa in Isa::available() {
        let shape = KvShape {
            kv_heads: 1,
            k_dim: 64,
            v_dim: 64,
            capacity: 256,
            shared: false,
            ty: KvType::F16,
        };
        let (k, v) = (vec![0x7e01; shape.k_len()], vec![0x7e01; shape.v_len()]);
        let cache = KvCache::new(shape, &k, &v);
        let params =
            AttentionParams { scale: 1.0, softcap: None, window: Some(Window::Sliding(10)) };
        let mut scratch = AttentionScratch::new(AttentionLimits { rows: 3, k_dim: 64, v_dim: 64 });
        let q = vec![1.0; 3 * 64];
        for keys in [0..90, 101..256, 40..40] {
            let mut partial = vec![f32::NAN; partial_len(3, 64)];
            attend_partial(
                isa,
                &Partial {
                    params: &params,
                    cache: &cache,
                    kv_head: 0,
                    q: &q,
                    bias: None,
                    pos: 100,
                    keys: keys.clone(),
                },
                &mut partial,
                &mut scratch,
            );
            let mut out = vec![f32::NAN; 3 * 64];
            attend_merge(isa, 64, 3, &partial, None, &mut out);
            assert!(out.iter().all(|&x| x == 0.0), "{isa} {keys:?}");
        }
    }
}

#[test]
fn large_scores_do_not_overflow_and_nan_is_not_hidden() {
    for isa in Isa::available() {
        let shape = KvShape {
            kv_heads: 1,
            k_dim: 32,
            v_dim: 32,
            capacity: 128,
            shared: false,
            ty: KvType::F16,
        };
        let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        for pos in 0..128 {
            // Scores from -6.4e6 to 6.3e6: all weight on the last key.
            let key = vec![(pos as f32 - 64.0) * 100.0; 32];
            kv_store(isa, &shape, &mut k, &mut v, pos, &key, &[pos as f32; 32]);
        }
        let params = AttentionParams { scale: 1.0, softcap: None, window: None };
        let mut scratch = AttentionScratch::new(AttentionLimits { rows: 1, k_dim: 32, v_dim: 32 });
        for (q, expected) in [(31.0, 127.0), (-31.0, 0.0), (0.0, 63.5), (f32::NAN, f32::NAN)] {
            let q = vec![q; 32];
            let mut data = vec![0.0; 32];
            attend_tile(
                isa,
                &Tile {
                    params: &params,
                    cache: &KvCache::new(shape, &k, &v),
                    kv_head: 0,
                    q: Queries { data: &q, stride: 32 },
                    heads: 0..1,
                    sinks: None,
                    bias: None,
                    tokens: 0..1,
                    first_pos: 127,
                    ahead: Ahead::Nothing,
                },
                &mut HeadsOut::new(&mut data, 32),
                &mut scratch,
            );
            for x in data {
                assert!(
                    (x - expected).abs() < 1e-4 || x.is_nan() && expected.is_nan(),
                    "{isa} {x}"
                );
            }
        }
    }
}

#[test]
fn values_beyond_f16_saturate() {
    for isa in Isa::available() {
        let shape = KvShape {
            kv_heads: 2,
            k_dim: 5,
            v_dim: 19,
            capacity: 16,
            shared: false,
            ty: KvType::F16,
        };
        let (mut k, mut v) = (vec![0; shape.k_len()], vec![0; shape.v_len()]);
        let mut key = vec![1e9; 10];
        let mut value = vec![-1e9; 38];
        (key[3], value[17], value[18]) = (f32::NAN, f32::NAN, f32::INFINITY);
        kv_store(isa, &shape, &mut k, &mut v, 3, &key, &value);
        for h in 0..2 {
            for d in 0..5 {
                let x = f16_to_f32(k[(h * 5 + d) * 16 + 3]);
                assert!(x == 65504.0 || h == 0 && d == 3 && x.is_nan(), "{isa} {h} {d} {x}");
            }
            for d in 0..19 {
                let x = f16_to_f32(v[(h * 16 + 3) * 19 + d]);
                let ok = match (h, d) {
                    (0, 17) => x.is_nan(),
                    (0, 18) => x == 65504.0,
                    _ => x == -65504.0,
                };
                assert!(ok, "{isa} {h} {d} {x}");
            }
        }
    }
}
