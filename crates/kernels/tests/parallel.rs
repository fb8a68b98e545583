//! Work cut into units: whichever threads take them, in whichever parts and order, the bits are those
//! of the kernels called for everything at once.

use alight_kernels::attention::{
    Ahead, AttentionLimits, AttentionParams, AttentionScratch, HeadsOut, KvCache, KvShape, KvType,
    KvWriter, Queries, Tile, Window, attend_tile, kv_store,
};
use alight_kernels::parallel::{
    Attend, AttendRows, Bank, Cost, Cut, Packing, Place, Product, Rows, Scratch, Term, Threads,
    each_row, gather, multiply, multiply_and_pack, multiply_and_sum, multiply_banks,
    multiply_banks_and_pack, pack, room_for_products, store, store_rows,
};
use alight_kernels::vec::add_times;
use alight_kernels::{
    ActivationFormats, Activations, Isa, Layout, MatmulScratch, Matrix, Output, RowCounts,
    WeightType, matmul, tiles,
};
use std::ops::Range;

use crate::common::{Rng, random_blocks};

/// Real threads, each of which takes every so many parts of `step` units; the last parts first if
/// `backwards`.
struct Some {
    threads: usize,
    step: usize,
    backwards: bool,
}

struct Own;

impl Scratch for Own {
    fn with_products(&mut self, count: usize, f: impl FnOnce(&mut MatmulScratch, &mut [f32])) {
        assert!(count <= room_for_products(600), "more products than a thread has room for");
        f(&mut MatmulScratch::new(), &mut vec![f32::NAN; count]);
    }

    fn with_attention(&mut self, limits: AttentionLimits, f: impl FnOnce(&mut AttentionScratch)) {
        f(&mut AttentionScratch::new(limits));
    }
}

// SAFETY: every part is one thread's, and the scope waits for all.
unsafe impl Threads for Some {
    type Scratch = Own;

    fn run(&mut self, units: usize, _: Cost, f: &(dyn Fn(Range<usize>, &mut Own) + Sync)) {
        let step = self.step.min(units);
        let mut parts: Vec<_> = (0..units).step_by(step).map(|u| u..units.min(u + step)).collect();
        if self.backwards {
            parts.reverse();
        }
        std::thread::scope(|scope| {
            for thread in 0..self.threads {
                let mine = parts.iter().skip(thread).step_by(self.threads).cloned();
                scope.spawn(move || mine.for_each(|part| f(part, &mut Own)));
            }
        });
    }
}

const ALL: [Some; 4] = [
    Some { threads: 1, step: usize::MAX, backwards: false },
    Some { threads: 1, step: 1, backwards: true },
    Some { threads: 3, step: 1, backwards: false },
    Some { threads: 2, step: 5, backwards: true },
];

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn products_have_the_bits_of_one_call() {
    let mut rng = Rng(1);
    let isa = Isa::best();
    // More than two stretches of columns.
    let cols = 1792;
    // Rows that are no whole units, two types, and tiles beside rows.
    let (a, b) = (random_blocks(&mut rng, WeightType::Q4_K, 100, cols), 48);
    let canonical = random_blocks(&mut rng, WeightType::Q2_K, b, cols);
    let mut packed = vec![0; canonical.len()];
    tiles::pack(WeightType::Q2_K, cols, &canonical, &mut packed);
    let a = Matrix::new(WeightType::Q4_K, &a, 100, cols).unwrap();
    let b = Matrix::with_layout(Layout::Tiles, WeightType::Q2_K, &packed, b, cols).unwrap();
    for n in [1, 7, 70] {
        let x = rng.normals(n * cols);
        let formats = ActivationFormats::of([a.kind(), b.kind()]);
        let mut direct = Activations::new(n, cols);
        direct.begin(isa, RowCounts::of_call(n), cols, formats);
        x.chunks_exact(cols).enumerate().for_each(|(t, x)| direct.put(t, x));
        let expected = [&a, &b].map(|w| {
            let mut out = vec![0f32; n * w.rows()];
            let y = Output::new(&mut out, w.rows());
            // SAFETY: one thread.
            unsafe { matmul(w, 0..w.rows(), &direct, y, &mut MatmulScratch::new()) };
            out
        });
        for mut threads in ALL {
            let threads = &mut threads;
            let (mut rows, mut acts) = (x.clone(), Activations::new(n, cols));
            let (buffers, shape) = ([Rows::new(&mut rows, cols)], (RowCounts::of_call(n), cols));
            pack(threads, isa, shape, buffers, (&mut acts, formats), &|_, [row], _, put| put(row));
            let (mut y, mut z) = (vec![0f32; n * a.rows()], vec![0f32; n * b.rows()]);
            let products = [
                [Product::new(a, Rows::new(&mut y, a.rows()))],
                [Product::new(b, Rows::new(&mut z, b.rows()))],
            ];
            multiply(threads, &products, &acts, None);
            assert_eq!([bits(&y), bits(&z)], [bits(&expected[0]), bits(&expected[1])]);
            // Some rows of one, beside each other with what is done to them.
            let mut part = vec![0f32; n * 60];
            multiply(threads, &[[Product::of_rows(a, 37..93, &mut part, 60)]], &acts, None);
            for (part, all) in part.chunks_exact(60).zip(expected[0].chunks_exact(100)) {
                assert_eq!(bits(&part[..56]), bits(&all[37..93]));
                assert!(part[56..].iter().all(|x| *x == 0.0));
            }
            let (mut y, mut z) = (vec![0f32; n * a.rows()], vec![0f32; n * a.rows()]);
            let products = [[
                Product::new(a, Rows::new(&mut y, a.rows())),
                Product::new(a, Rows::new(&mut z, a.rows())),
            ]];
            multiply(
                threads,
                &products,
                &acts,
                Option::Some(&|_, rows, [y, z]| {
                    assert_eq!((y.len(), z.len()), (rows.len(), rows.len()));
                    z.iter_mut().zip(y).for_each(|(z, y)| *z -= *y);
                }),
            );
            assert_eq!(bits(&y), bits(&expected[0]));
            assert!(z.iter().all(|z| *z == 0.0));
        }
    }
}

/// What units pack has the bits of what is packed when all products are there, for tokens of 16 and of 8 bits and matrices of integers and
/// of floats. What is packed differs from level to level, so products with it are compared.
#[test]
fn products_are_packed_as_whole_rows_are() {
    let mut rng = Rng(9);
    let cols = 256;
    for (ty, layout, width, n) in [
        (WeightType::Q4_0, Layout::Rows, 416, RowCounts { bits16: 3, bits8: 30 }),
        (WeightType::Q4_K, Layout::Tiles, 512, RowCounts { bits16: 1, bits8: 100 }),
        (WeightType::Q6_K, Layout::Tiles, 256, RowCounts { bits16: 0, bits8: 13 }),
        (WeightType::Q5_1, Layout::Rows, 96, RowCounts { bits16: 2, bits8: 0 }),
        // Many rows, so that a unit keeps them in several parts.
        (WeightType::Q8_0, Layout::Tiles, 1056, RowCounts { bits16: 2, bits8: 180 }),
        (WeightType::F32, Layout::Rows, 100, RowCounts { bits16: 1, bits8: 5 }),
    ] {
        let inputs = [(); 2].map(|()| random_blocks(&mut rng, WeightType::Q4_0, width, cols));
        let [gate, up] =
            inputs.each_ref().map(|data| Matrix::new(WeightType::Q4_0, data, width, cols).unwrap());
        let rows = 48;
        let canonical = random_blocks(&mut rng, ty, rows, width);
        let mut data = canonical.clone();
        if layout == Layout::Tiles {
            tiles::pack(ty, width, &canonical, &mut data);
        }
        let down = Matrix::with_layout(layout, ty, &data, rows, width).unwrap();
        let x = rng.normals(n.all() * cols);
        for isa in Isa::available() {
            let mut acts = Activations::new(n.all(), cols);
            acts.begin(isa, n, cols, ActivationFormats::of([gate.kind()]));
            x.chunks_exact(cols).enumerate().for_each(|(t, x)| acts.put(t, x));
            let formats = ActivationFormats::of([down.kind()]);
            let outputs = |threads: &mut Some, activated: &Activations| {
                let mut out = vec![0f32; n.all() * rows];
                let product = Product::new(down, Rows::new(&mut out, rows));
                multiply(threads, &[[product]], activated, None);
                bits(&out)
            };
            let one = &mut Some { threads: 1, step: usize::MAX, backwards: false };
            let [mut gates, mut ups] = [(); 2].map(|()| vec![0f32; n.all() * width]);
            for (matrix, out) in [(gate, &mut gates), (up, &mut ups)] {
                multiply(one, &[[Product::new(matrix, Rows::new(out, width))]], &acts, None);
            }
            let mut expected = Activations::new(n.all(), width);
            expected.begin(isa, n, width, formats);
            for (t, (gate, up)) in
                gates.chunks_exact_mut(width).zip(ups.chunks_exact(width)).enumerate()
            {
                gate.iter_mut().zip(up).for_each(|(gate, up)| *gate += 2.0 * up);
                expected.put(t, gate);
            }
            let expected = outputs(one, &expected);
            for mut threads in ALL {
                let mut activated = Activations::new(n.all(), width);
                let mut whole = vec![f32::NAN; n.bits16 * width];
                let join = |rows: Range<usize>, [gate, up]: [&mut [f32]; 2]| {
                    assert_eq!([gate.len(), up.len()], [n.all() * rows.len(); 2]);
                    gate.iter_mut().zip(up).for_each(|(gate, up)| *gate += 2.0 * *up);
                };
                let to = (&mut activated, formats);
                let to = Packing::new(&acts, width, to, &mut whole);
                multiply_and_pack(&mut threads, [&gate, &up], &acts, &join, &to);
                assert_eq!(outputs(&mut threads, &activated), expected, "{ty} {layout:?} {isa}");
            }
        }
    }
}

#[test]
fn every_row_is_visited_once() {
    for mut threads in ALL {
        let (mut a, mut b) = (vec![0f32; 37 * 3], vec![0f32; 37 * 5]);
        for cut in [Cut::default(), Cut { rows: 16, skipped: 5, take: 2 }] {
            let buffers = [Rows::new(&mut a, 3), Rows::new(&mut b, 5)];
            each_row(&mut threads, 36, cut, buffers, &|i, [a, b], _| {
                a.iter_mut().chain(b).for_each(|x| *x += i as f32 + 1.0);
            });
        }
        let of = |width: usize| {
            move |i: usize| if i < 36 * width { (2 * (i / width) + 2) as f32 } else { 0.0 }
        };
        assert!(a.iter().enumerate().all(|(i, x)| *x == of(3)(i)));
        assert!(b.iter().enumerate().all(|(i, x)| *x == of(5)(i)));
    }
}

/// Two threads would have the same rows.
#[test]
#[should_panic(expected = "4 rows of units of 4 are skipped")]
fn no_unit_is_skipped_as_a_whole() {
    let mut rows = [0.0; 8];
    let cut = Cut { rows: 4, skipped: 4, ..Cut::default() };
    let threads = &mut Some { threads: 1, step: 1, backwards: false };
    each_row(threads, 8, cut, [Rows::new(&mut rows, 1)], &|_, _, _| ());
}

#[test]
fn attention_and_the_cache_have_the_bits_of_one_call() {
    let mut rng = Rng(2);
    let isa = Isa::best();
    let shape = KvShape {
        kv_heads: 2,
        k_dim: 32,
        v_dim: 48,
        capacity: 352,
        shared: false,
        ty: KvType::F16,
    };
    let params = AttentionParams { scale: 0.2, softcap: None, window: Some(Window::Sliding(200)) };
    let (group, kd, vd) = (3, 2 * 32, 2 * 48);
    let sinks = rng.normals(2 * group);
    for (pos, tokens) in [(0, 1), (320, 1), (318, 3), (5, 40), (300, 33)] {
        let filled = pos + tokens;
        let (k, v) = (rng.normals(filled * kd), rng.normals(filled * vd));
        let q = rng.normals(tokens * 2 * group * 32);
        let cache = || (vec![0u16; shape.k_len()], vec![0u16; shape.v_len()]);
        let (mut keys, mut values) = cache();
        for p in 0..filled {
            let (k, v) = (&k[p * kd..][..kd], &v[p * vd..][..vd]);
            kv_store(isa, &shape, &mut keys, &mut values, p, k, v);
        }
        let mut results: Vec<Vec<u32>> = Vec::new();
        for mut threads in ALL {
            let threads = &mut threads;
            let (mut some_keys, mut some_values) = cache();
            let writer = KvWriter::new(shape, &mut some_keys, &mut some_values);
            // SAFETY: the caches are this test's.
            unsafe { store(threads, isa, writer, [0, filled], &k, &v) };
            assert!(some_keys == keys && some_values == values, "stored by {tokens}");
            let (mut some_keys, mut some_values) = cache();
            let writer = KvWriter::new(shape, &mut some_keys, &mut some_values);
            let (mut q2, mut k2, mut v2) = (vec![0.0; filled], k.clone(), vec![0.0; v.len()]);
            let rows = [Rows::new(&mut q2, 1), Rows::new(&mut k2, kd), Rows::new(&mut v2, vd)];
            let count = (filled, Option::Some(0));
            let prepare = |i: usize, [_, _, row]: [&mut [f32]; 3]| {
                row.copy_from_slice(&v[i * vd..][..vd]);
            };
            // SAFETY: a row's position is its number, and the caches are this test's.
            unsafe { store_rows(threads, isa, &|i| (writer, i), count, rows, &prepare) };
            assert!(some_keys == keys && some_values == values, "prepared and stored");
            let cache = KvCache::new(shape, &keys, &values);
            let sinks = Option::Some(&sinks[..]);
            let ahead = Ahead::Nothing;
            let attend =
                Attend { isa, params, cache, group, sinks, bias: None, pos, tokens, ahead };
            let mut out = vec![0f32; tokens * 2 * group * 48];
            let mut partials = vec![0f32; attend.partials()];
            assert!(partials.len() <= AttendRows::most_partials(&shape, group, shape.capacity));
            attend.run(threads, &q, &mut out, &mut partials);
            results.push(bits(&out));
            // Tiles of all tokens give the same except for rounding.
            let mut tiles = vec![0f32; out.len()];
            let mut heads_out = HeadsOut::new(&mut tiles, 2 * group * 48);
            let limits = AttentionLimits { rows: tokens * group, k_dim: 32, v_dim: 48 };
            for kv_head in 0..2 {
                let call = Tile {
                    params: &params,
                    cache: &cache,
                    kv_head,
                    q: Queries { data: &q, stride: 2 * group * 32 },
                    heads: kv_head * group..(kv_head + 1) * group,
                    sinks: sinks.map(|sinks| &sinks[kv_head * group..][..group]),
                    bias: None,
                    tokens: 0..tokens,
                    first_pos: pos,
                    ahead: Ahead::Nothing,
                };
                attend_tile(isa, &call, &mut heads_out, &mut AttentionScratch::new(limits));
            }
            for (x, y) in out.iter().zip(&tiles) {
                assert!((x - y).abs() < 1e-5, "{x} {y}");
            }
        }
        assert!(results.iter().all(|result| *result == results[0]), "{pos} {tokens}");
    }
}

/// Experts of two types and both layouts, with tokens of their own, beside a matrix that all tokens go through: each
/// product has the bits of one call, and a token's sum those of adding its terms in order.
#[test]
fn experts_have_the_bits_of_one_call_each() {
    let (mut rng, isa) = (Rng(5), Isa::best());
    let (cols, rows, experts) = (512, 112, 5);
    for (ty, layout) in [
        (WeightType::Q4_K, Layout::Rows),
        (WeightType::Q2_K, Layout::Tiles),
        (WeightType::F16, Layout::Tiles),
    ] {
        let canonical = random_blocks(&mut rng, ty, experts * rows, cols);
        let mut data = canonical.clone();
        if layout == Layout::Tiles {
            tiles::pack(ty, cols, &canonical, &mut data);
        }
        let stack = Matrix::with_layout(layout, ty, &data, experts * rows, cols).unwrap();
        let one = |e: usize| stack.rows_in(e * rows..(e + 1) * rows);
        let shared = one(4);
        for (tokens, used) in [(1, 3), (9, 2), (40, 3)] {
            experts_of(&mut rng, isa, [tokens, used, experts], &one, shared);
        }
    }
}

/// The product of a matrix with one token.
fn product_of(isa: Isa, matrix: Matrix<'_>, one: RowCounts, x: Vec<f32>) -> Vec<f32> {
    let mut single = Activations::new(1, x.len());
    single.begin(isa, one, x.len(), ActivationFormats::of([matrix.kind()]));
    single.put(0, &x);
    let mut out = vec![0f32; matrix.rows()];
    let y = Output::new(&mut out, matrix.rows());
    // SAFETY: one thread.
    unsafe { matmul(&matrix, 0..matrix.rows(), &single, y, &mut MatmulScratch::new()) };
    out
}

fn experts_of<'a>(
    rng: &mut Rng,
    isa: Isa,
    [tokens, used, experts]: [usize; 3],
    one: &'a (dyn Fn(usize) -> Matrix<'a> + Sync),
    shared: Matrix<'a>,
) {
    let (cols, rows) = (shared.cols(), shared.rows());
    let formats = ActivationFormats::of([shared.kind()]);
    let counts = |n| RowCounts::new(RowCounts::of_call(tokens).precision(0), n);
    let block = if tokens == 1 { 1 } else { formats.block(isa) };
    let x = rng.normals(tokens * cols);
    let mut acts = Activations::new(tokens, cols);
    acts.begin(isa, RowCounts::of_call(tokens), cols, formats);
    x.chunks_exact(cols).enumerate().for_each(|(t, x)| acts.put(t, x));
    // The last expert is nobody's.
    let chosen: Vec<Vec<usize>> =
        (0..tokens).map(|t| (0..used).map(|j| (3 * t + j) % (experts - 1)).collect()).collect();
    let (mut places, mut token_of, mut slot_of) =
        (Vec::new(), Vec::new(), vec![vec![0; used]; tokens]);
    for matrix in 0..experts {
        let first = token_of.len().next_multiple_of(block);
        let before = token_of.len();
        token_of.resize(first, Option::None);
        for (t, chosen) in chosen.iter().enumerate() {
            for (j, _) in chosen.iter().enumerate().filter(|(_, e)| **e == matrix) {
                slot_of[t][j] = token_of.len();
                token_of.push(Option::Some(t));
            }
        }
        match token_of.len() - first {
            0 => token_of.truncate(before),
            slots => places.push(Place { matrix, first, slots }),
        }
    }
    let product = |matrix: Matrix<'_>, t: usize| {
        product_of(isa, matrix, counts(1), x[t * cols..][..cols].to_vec())
    };
    let down = random_blocks(rng, WeightType::F32, 24, rows);
    let down = Matrix::new(WeightType::F32, &down, 24, rows).unwrap();
    let weight = |t: usize, j: usize| 0.25 + t as f32 - 0.5 * j as f32;
    let slots = token_of.len();
    let term = |t: usize, j: usize| match j < used {
        true => Term { slot: slot_of[t][j], weight: weight(t, j) },
        false => Term { slot: slots + t, weight: 0.75 },
    };
    let terms: Vec<Term> = (0..tokens)
        .flat_map(|t| (0..=used).map(move |j| (t, j)))
        .map(|(t, j)| term(t, j))
        .collect();
    let mut expected = vec![0f32; tokens * rows];
    for (t, out) in expected.chunks_exact_mut(rows).enumerate() {
        for (j, expert) in chosen[t].iter().enumerate() {
            add_times(isa, out, &product(one(*expert), t), weight(t, j));
        }
        add_times(isa, out, &product(shared, t), 0.75);
    }
    for mut threads in ALL {
        let threads = &mut threads;
        let mut gathered = Activations::new(slots, cols);
        let into = (&mut gathered, formats);
        gather(threads, &acts, into, counts(slots), &|slot| token_of[slot]);
        let all = [Place { matrix: 0, first: 0, slots: tokens }];
        let (one_of, shared_of) = (|e| [one(e)], |_| [shared]);
        let banks = || {
            [Bank::new(rows, &one_of, &gathered, &places), Bank::new(rows, &shared_of, &acts, &all)]
        };
        let (mut y, mut z) = (vec![0f32; slots * rows], vec![0f32; tokens * rows]);
        let outputs = [Rows::new(&mut y, rows), Rows::new(&mut z, rows)];
        multiply_banks(threads, banks(), outputs, &|bank, slot, matrix, _, _| {
            assert!(bank == 1 || chosen[token_of[slot].unwrap()].contains(&matrix));
        });
        for (slot, y) in y.chunks_exact(rows).enumerate() {
            let Option::Some(t) = token_of[slot] else { continue };
            let j = slot_of[t].iter().position(|s| *s == slot).unwrap();
            assert_eq!(bits(y), bits(&product(one(chosen[t][j]), t)), "{slot}");
        }
        for (t, z) in z.chunks_exact(rows).enumerate() {
            assert_eq!(bits(z), bits(&product(shared, t)));
        }
        // What is packed of the experts' products, and of the other matrix's if it is asked for.
        for with_shared in [true, false] {
            let [mut activated, mut other] = [slots, tokens].map(|n| Activations::new(n, rows));
            let (mut room, mut other_room) = (vec![f32::NAN; slots * rows], vec![f32::NAN; rows]);
            let formats = ActivationFormats::of([down.kind()]);
            let packing = Packing::new(&gathered, rows, (&mut activated, formats), &mut room);
            let (two_of, two_shared) = (|e| [one(e); 2], |_| [shared; 2]);
            let experts = (Bank::new(rows, &two_of, &gathered, &places), packing);
            let shared_bank = with_shared.then(|| {
                let to = (&mut other, formats);
                let packing = Packing::new(&acts, rows, to, &mut other_room);
                (Bank::new(rows, &two_shared, &acts, &all), packing)
            });
            let join = |bank: usize, place: &Place, rows: Range<usize>, [a, b]: [&mut [f32]; 2]| {
                assert_eq!([a.len(), b.len()], [place.slots * rows.len(); 2]);
                a.iter_mut().zip(b).for_each(|(a, b)| *a += 2.0 * *b + bank as f32);
            };
            let banks = [Option::Some(experts), shared_bank];
            multiply_banks_and_pack(threads, banks, &join);
            let expected = |matrix: Matrix<'_>, t: usize, bank: usize| {
                let values =
                    product(matrix, t).iter().map(|x| x + (2.0 * x + bank as f32)).collect();
                product_of(isa, down, counts(1), values)
            };
            let mut y = vec![0f32; slots * down.rows()];
            let down_of = |_| [down];
            let bank = Bank::new(down.rows(), &down_of, &activated, &places);
            multiply_banks(threads, [bank], [Rows::new(&mut y, down.rows())], &|_, _, _, _, _| {});
            for (slot, y) in y.chunks_exact(down.rows()).enumerate() {
                let Option::Some(t) = token_of[slot] else { continue };
                let j = slot_of[t].iter().position(|s| *s == slot).unwrap();
                assert_eq!(bits(y), bits(&expected(one(chosen[t][j]), t, 0)), "{slot}");
            }
            if with_shared {
                let mut z = vec![0f32; tokens * down.rows()];
                let product = Product::new(down, Rows::new(&mut z, down.rows()));
                multiply(threads, &[[product]], &other, None);
                for (t, z) in z.chunks_exact(down.rows()).enumerate() {
                    assert_eq!(bits(z), bits(&expected(shared, t, 1)));
                }
            }
        }
        let mut out = vec![f32::NAN; tokens * rows];
        let then = |_: usize, _: usize, _: usize, _: Range<usize>, _: &mut [f32]| {};
        multiply_and_sum(
            threads,
            isa,
            banks(),
            &then,
            (&terms, used + 1),
            Rows::new(&mut out, rows),
        );
        assert_eq!(bits(&out), bits(&expected), "{tokens} tokens");
    }
}

/// All values of 256 share a scale.
#[test]
#[should_panic(expected = "columns that share a scale with others")]
fn no_part_of_a_token_of_16_bits_is_packed() {
    let mut acts = Activations::new(1, 512);
    let formats = ActivationFormats::of([(WeightType::Q4_0, Layout::Rows)]);
    acts.begin(Isa::SCALAR, RowCounts { bits16: 1, bits8: 0 }, 512, formats);
    // SAFETY: one thread.
    unsafe { acts.slots().put_columns(0, 256, &[0.0; 256]) };
}

/// Else values of one token would be in the place of another's.
#[test]
#[should_panic(expected = "activations of another shape")]
fn products_are_packed_for_as_many_rows_as_there_are() {
    let data = vec![0; 64 * 18];
    let matrix = Matrix::new(WeightType::Q4_0, &data, 64, 32).unwrap();
    let formats = ActivationFormats::of([matrix.kind()]);
    let [mut acts, mut activated] = [(); 2].map(|()| Activations::new(2, 64));
    acts.begin(Isa::SCALAR, RowCounts { bits16: 2, bits8: 0 }, 32, formats);
    let mut room = [0.0; 64];
    let packing = Packing::new(&acts, 32, (&mut activated, formats), &mut room);
    let (matrices, places) = (|_| [matrix], [Place { matrix: 0, first: 0, slots: 2 }]);
    let bank = Bank::new(64, &matrices, &acts, &places);
    let threads = &mut Some { threads: 1, step: 1, backwards: false };
    multiply_banks_and_pack(threads, [Option::Some((bank, packing))], &|_, _, _, [_]| ());
}
