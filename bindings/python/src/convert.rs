//! Copies parts of tensors into memory, unchanged or as floats of another type.

use alight_kernels::half::f32_to_bf16;
use alight_kernels::vec::narrow_f16;
use alight_kernels::{Isa, Layout, Matrix};

use crate::geometry::{Runs, Spread};

/// Bytes of result per thread, below which another thread is not worthwhile.
const SHARE: usize = 4 << 20;
/// Maximum number of threads.
const THREADS: usize = 16;

/// A float type that weights can be converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// The type of this name in NumPy.
    pub fn from_name(name: &str) -> Option<Float> {
        Some(match name {
            "float32" => Float::F32,
            "float16" => Float::F16,
            "bfloat16" => Float::Bf16,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        if self == Float::F32 { 4 } else { 2 }
    }
}

/// Copies `runs` of elements of `unit` bytes each, from a tensor with this `spread` in the `file`.
pub fn copy(file: &[u8], spread: Spread, runs: &Runs, unit: usize, to: &mut [u8]) {
    let run = runs.run * unit;
    // A run may be the whole tensor, so threads share bytes, not runs.
    in_parallel(to, 1, |first, to| {
        let (mut at, mut rest) = (first, to);
        while !rest.is_empty() {
            let (i, skip) = (at / run, at % run);
            let start = (runs.start(i) * unit + skip) as u64;
            let n = (run - skip).min(rest.len()).min(spread.run(start));
            let (now, later) = std::mem::take(&mut rest).split_at_mut(n);
            now.copy_from_slice(&file[spread.place(start) as usize..][..n]);
            (at, rest) = (at + n, later);
        }
    });
}

/// Converts the columns `cols` of rows `runs` of matrices of the same shape, row after row. Floats are rounded to the nearest, ties
/// to even; a narrower type is always converted from f32.
pub fn floats(
    matrices: &[Matrix<'_>],
    runs: &Runs,
    cols: (usize, usize),
    float: Float,
    to: &mut [u8],
) {
    let Some(matrix) = matrices.first() else { return };
    let width = cols.1 - cols.0;
    let isa = Isa::best();
    // Of rows in GGUF's layout, only the blocks that contain the columns are read.
    let block = matrix.weight_type().block_len();
    let (from, until) = match matrix.layout() {
        Layout::Rows => (cols.0 / block * block, cols.1.next_multiple_of(block).min(matrix.cols())),
        Layout::Tiles | Layout::Planes => (0, matrix.cols()),
    };
    in_parallel(to, width * float.bytes(), |first, to| {
        let mut wide = vec![0f32; until - from];
        let mut narrow = vec![0u16; if float == Float::F16 { width } else { 0 }];
        for (i, to) in to.chunks_exact_mut(width * float.bytes()).enumerate() {
            let row = runs.start((first + i) / runs.run) + (first + i) % runs.run;
            let (matrix, row) = (&matrices[row / matrix.rows()], row % matrix.rows());
            match matrix.layout() {
                Layout::Rows => {
                    let ty = matrix.weight_type();
                    let bytes = |cols: usize| cols / block * ty.block_bytes();
                    let row = row * bytes(matrix.cols());
                    let data = &matrix.data()[row + bytes(from)..row + bytes(until)];
                    alight_kernels::dequantize_row(ty, data, &mut wide);
                }
                Layout::Tiles | Layout::Planes => matrix.dequantize_row(row, &mut wide),
            }
            let wide = &wide[cols.0 - from..cols.1 - from];
            match float {
                Float::F32 => {
                    for (to, x) in to.as_chunks_mut::<4>().0.iter_mut().zip(wide) {
                        *to = x.to_le_bytes();
                    }
                }
                Float::Bf16 => {
                    for (to, x) in to.as_chunks_mut::<2>().0.iter_mut().zip(wide) {
                        *to = f32_to_bf16(*x).to_le_bytes();
                    }
                }
                Float::F16 => {
                    narrow_f16(isa, wide, &mut narrow);
                    for (to, x) in to.as_chunks_mut::<2>().0.iter_mut().zip(&narrow) {
                        *to = x.to_le_bytes();
                    }
                }
            }
        }
    });
}

/// Passes parts of `to` to threads, cut at multiples of `unit` bytes, with the index of the first unit of each part. The result
/// does not depend on the number of threads.
fn in_parallel(to: &mut [u8], unit: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    if to.is_empty() {
        return;
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(THREADS);
    let threads = (to.len() / SHARE).clamp(1, cores);
    let units = (to.len() / unit).div_ceil(threads);
    if threads == 1 {
        return work(0, to);
    }
    let parts = std::sync::Mutex::new(to.chunks_mut(units * unit).enumerate());
    let take = || parts.lock().ok().and_then(|mut parts| parts.next());
    let some = || {
        while let Some((i, part)) = take() {
            work(i * units, part);
        }
    };
    std::thread::scope(|scope| {
        // With as many threads as can be started, in addition to this one.
        for _ in 1..threads {
            if std::thread::Builder::new().spawn_scoped(scope, some).is_err() {
                break;
            }
        }
        some();
    });
}
