//! Products with factors of low rank: against float64, the same bits at every SIMD level, of each token alone and of stored types as of their values.

use std::sync::atomic::{AtomicUsize, Ordering};

use alight_kernels::dequant::dequantize_row;
use alight_kernels::half::f32_to_f16;
use alight_kernels::low_rank::{Numbers, add, multiply};
use alight_kernels::parallel::SharedWork;
use alight_kernels::{Isa, WeightType};

use crate::common::{Rng, at_all_levels};

const TYPES: [WeightType; 3] = [WeightType::F32, WeightType::F16, WeightType::BF16];

/// Random numbers of a type: words of four bytes, so that they are aligned, and the values.
fn numbers(rng: &mut Rng, ty: WeightType, n: usize) -> (Vec<u32>, Vec<f32>) {
    let mut bytes: Vec<u8> = match ty {
        WeightType::F32 => rng.normals(n).iter().flat_map(|x| x.to_le_bytes()).collect(),
        WeightType::F16 => {
            rng.normals(n).iter().flat_map(|x| f32_to_f16(*x).to_le_bytes()).collect()
        }
        _ => rng.normals(n).iter().flat_map(|x| x.to_le_bytes()[2..].to_vec()).collect(),
    };
    let mut values = vec![0.0; n];
    dequantize_row(ty, &bytes, &mut values);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect();
    (words, values)
}

/// The first `n` numbers of words.
fn in_place(ty: WeightType, words: &[u32], n: usize) -> Numbers<'_> {
    // SAFETY: the bytes of the words.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), 4 * words.len()) };
    Numbers::in_place(ty, &bytes[..ty.row_bytes(n).unwrap()]).unwrap()
}

#[test]
fn products_of_both_factors_are_those_of_float64() {
    let mut rng = Rng(3);
    for ty in TYPES {
        for (cols, rank, tokens) in
            [(1, 1, 1), (70, 3, 2), (64, 16, 3), (576, 16, 8), (95, 7, 5), (130, 9, 4)]
        {
            let (a, a_values) = numbers(&mut rng, ty, rank * cols);
            let x: Vec<Vec<f32>> = (0..tokens).map(|_| rng.normals(cols)).collect();
            let x: Vec<&[f32]> = x.iter().map(|x| &x[..]).collect();
            let stride = rank + 2;
            let what = format!("A of {ty}, {rank} rows of {cols}, {tokens} tokens");
            let found = at_all_levels(&what, |isa| {
                let mut out = vec![7.0; tokens * stride];
                multiply(isa, in_place(ty, &a, rank * cols), &x, &mut out, stride);
                out
            });
            for (t, found) in found.chunks_exact(stride).enumerate() {
                assert_eq!(found[rank..], [7.0, 7.0], "{what}");
                let mut alone = vec![0.0; rank];
                let a = in_place(ty, &a, rank * cols);
                multiply(Isa::best(), a, &x[t..=t], &mut alone, 0);
                assert_eq!(found[..rank], alone, "{what}: a token alone");
                for (k, found) in found[..rank].iter().enumerate() {
                    let row = a_values[k * cols..][..cols].iter().zip(x[t]);
                    let exact: f64 = row.map(|(a, x)| f64::from(*a) * f64::from(*x)).sum();
                    assert!((f64::from(*found) - exact).abs() < 1e-4, "{what}: {found}, {exact}");
                }
            }
        }
        for (rank, rows, step) in
            [(1, 9, 1), (3, 12, 2), (16, 40, 1), (32, 40, 3), (64, 33, 1), (100, 9, 2)]
        {
            let (b, b_values) = numbers(&mut rng, ty, rows * rank);
            let (ax, s) = (rng.normals(rank), 0.75f32);
            let what = format!("B of {ty}, {rows} rows of {rank}, every {step}");
            let found = at_all_levels(&what, |isa| {
                let mut out = vec![1.0; rows.div_ceil(step)];
                add(isa, (in_place(ty, &b, rows * rank), step), &ax, s, &mut out);
                out
            });
            for (i, found) in found.iter().enumerate() {
                let row = b_values[i * step * rank..][..rank].iter().zip(&ax);
                let exact: f64 = row.map(|(b, x)| f64::from(*b) * f64::from(*x)).sum();
                let exact = 1.0 + f64::from(s) * exact;
                assert!((f64::from(*found) - exact).abs() < 1e-4, "{what}: {found}, {exact}");
            }
        }
    }
}

#[test]
fn numbers_are_read_as_they_are() {
    let mut rng = Rng(5);
    for ty in TYPES {
        let (words, values) = numbers(&mut rng, ty, 700);
        let stored = in_place(ty, &words, 700).range(1..699);
        assert_eq!((stored.len(), stored.get(3)), (698, values[4]));
        let mut found = vec![0.0; 698];
        stored.each_stretch(Isa::best(), |range, values| found[range].copy_from_slice(values));
        assert_eq!(found, values[1..699]);
        stored.add_times_to(Isa::best(), &mut found, -1.0);
        assert_eq!(found, vec![0.0; 698]);
    }
    assert!(Numbers::in_place(WeightType::Q8_0, &[0; 34]).is_none());
    assert!(Numbers::in_place(WeightType::F16, &[0; 3]).is_none());
}

#[test]
#[should_panic(expected = "a correction with fewer rows")]
fn a_correction_has_a_row_for_each_product() {
    add(Isa::SCALAR, (Numbers::F32(&[0.0; 4]), 2), &[0.0], 1.0, &mut [0.0; 3]);
}

/// Threads that come at any time have all results, and each piece is computed once.
#[test]
fn shared_work_is_done_once() {
    for threads in [1, 2, 5] {
        let (work, calls) = (SharedWork::new(vec![0.0; 100], 33, 3), AtomicUsize::new(0));
        let compute = |i: usize, piece: &mut [f32]| {
            calls.fetch_add(1, Ordering::Relaxed);
            piece.iter_mut().enumerate().for_each(|(j, x)| *x = (3 * i + j) as f32);
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let all = work.get(&compute);
                    assert!(all.iter().enumerate().all(|(i, x)| *x == i as f32));
                    assert_eq!(all.len(), 99);
                });
            }
        });
        assert_eq!((calls.into_inner(), work.into_buffer().len()), (33, 100));
    }
    assert!(SharedWork::new(Vec::new(), 0, 16).get(&|_, _| unreachable!()).is_empty());
}

#[test]
#[should_panic(expected = "a buffer for all pieces")]
fn shared_work_has_a_buffer_for_all_of_it() {
    _ = SharedWork::new(vec![0.0; 5], 2, 3);
}
