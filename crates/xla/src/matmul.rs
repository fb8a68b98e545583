//! `alight_matmul`: products with matrices of a model file, or with a rank's rows or columns of them.
//!
//! Arguments: file `u8[N]`, places `u32[m, 4]` (see [`crate::places`]), x `f32[T, C]`. Results: `m` products `f32[T, Rᵢ]`.
//! All matrices share one packing of x, and one division of the work among threads.
//!
//! Attributes, int64 arrays unless noted: `devices` (their numbers, group by group, in the order of the ranks), `rows` `[m]` and
//! `cols` (an int64): the matrices' shapes in the file; `row_start`, `row_count` `[m · n]`: for each matrix, the rows of each of
//! the `n` ranks; `col_start`, `col_count` `[n]`: the columns of each rank; `threads` (an int64): the number of threads, or 0 for
//! as many as are worthwhile.
//!
//! A rank's result is `y[t, r] = Σ W[row_start + r, col_start + c] · x[t, c]` for `r` below its `row_count`, over `c` below its
//! `col_count`; values beyond `row_count` are 0. Columns begin and end at blocks. Bits do not depend on the number of threads, nor,
//! where only rows are split, on the number of ranks.

use std::ops::Range;

use alight_kernels::parallel::{Product, multiply, pack};
use alight_kernels::{ActivationFormats, Activations, Isa, Matrix, RowCounts};

use crate::api::{CallFrame, Error, Handler};
use crate::arrays::{dimensions, expect, size, slice, slice_mut};
use crate::frame::{Frame, Refusal, handle};
use crate::places;
use crate::scratch::{MAX_TOKENS, with_activations};
use crate::team::Team;
use crate::{Stage, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_matmul",
    platform: "cpu",
    stages: &[(Stage::Execute, alight_matmul as Handler)],
    state: None,
}];

/// The stage that runs the call, on every device.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_matmul(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

/// The part of a matrix to be multiplied, and the whole result.
struct MatmulJob<'a> {
    matrix: Matrix<'a>,
    rows: Range<usize>,
    /// `[T, slots]`
    out: &'a mut [f32],
    slots: usize,
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    run(frame).map_err(|Refusal(code, text)| Refusal(code, format!("alight_matmul: {text}")))
}

fn run(frame: Frame<'_>) -> Result<(), Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let [file, places, x] = &arguments[..] else {
        return Err(Refusal::argument(format!(
            "{} arguments, expected file, places and x",
            arguments.len()
        )));
    };
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // for the call; results overlap nothing.
    let (file, numbers, values) = unsafe {
        (slice::<u8>("file", file)?, slice::<u32>("places", places)?, slice::<f32>("x", x)?)
    };
    let [tokens, width] = dimensions("x", x)?;
    let places = places::all(numbers, places.dims, results.len())?;
    let cut = Cut::of(frame, results.len())?;
    if cut.columns.len() > width {
        let columns = cut.columns.len();
        return Err(Refusal::argument(format!(
            "{columns} columns of this rank, where x has {width}"
        )));
    }
    let mut jobs = Vec::with_capacity(results.len());
    for (i, (place, result)) in places.iter().zip(&results).enumerate() {
        let name = format_args!("matrix {i} of {}", results.len());
        let [_, slots] = dimensions("a result", result)?;
        expect("a result", result, &[tokens, slots])?;
        let rows = cut.rows[i].clone();
        if rows.len() > slots {
            return Err(Refusal::argument(format!(
                "{name}: {} rows of this rank, where the result has {slots}",
                rows.len()
            )));
        }
        let matrix = places::matrix(file, place, cut.heights[i], cut.width, &name)?;
        // SAFETY: as above.
        let out = unsafe { slice_mut::<f32>("a result", result)? };
        let used = if cut.columns.is_empty() { 0 } else { rows.len() };
        if used < slots {
            out.chunks_exact_mut(slots).for_each(|row| row[used..].fill(0.0));
        }
        if used > 0 {
            let matrix = matrix.columns(cut.columns.clone());
            let matrix = matrix.map_err(|error| Refusal::argument(format!("{name}: {error}")))?;
            jobs.push(MatmulJob { matrix, rows, out, slots });
        }
    }
    if jobs.is_empty() || tokens == 0 {
        return Ok(());
    }
    let mut team = Team::new(frame, cut.threads, cut.devices)?;
    // Parts of nearly equal size: none has a single token, which would be rounded differently, unless the call has only one.
    let step = tokens.div_ceil(tokens.div_ceil(MAX_TOKENS));
    for first in (0..tokens).step_by(step) {
        let part = first..tokens.min(first + step);
        let x = Values { values, width, used: cut.columns.len() };
        with_activations(part.len(), x.used, |packed| {
            multiply_part(&mut team, &mut jobs, &x, part, packed);
        });
    }
    Ok(())
}

/// x `[T, width]`, of which `used` columns are multiplied.
struct Values<'a> {
    values: &'a [f32],
    width: usize,
    used: usize,
}

/// All products of some tokens.
fn multiply_part(
    team: &mut Team<'_>,
    jobs: &mut [MatmulJob<'_>],
    x: &Values<'_>,
    tokens: Range<usize>,
    packed: &mut Activations,
) {
    let count = tokens.len();
    let formats = ActivationFormats::of(jobs.iter().map(|job| job.matrix.kind()));
    let shape = (RowCounts::of_call(count), x.used);
    pack(team, Isa::best(), shape, [], (packed, formats), &|t, [], _, put| {
        put(&x.values[(tokens.start + t) * x.width..][..x.used]);
    });
    let products = jobs.iter_mut().map(|job| {
        let out = &mut job.out[tokens.start * job.slots..][..count * job.slots];
        [Product::of_rows(job.matrix, job.rows.clone(), out, job.slots)]
    });
    multiply(team, &products.collect::<Vec<_>>(), packed, None);
}

/// This rank's part of the matrices.
struct Cut {
    /// Rows of the matrices in the file, and their columns.
    heights: Vec<usize>,
    width: usize,
    rows: Vec<Range<usize>>,
    columns: Range<usize>,
    devices: usize,
    threads: i64,
}

impl Cut {
    /// The part of the calling device, for `matrices` matrices.
    fn of(frame: Frame<'_>, matrices: usize) -> Result<Cut, Refusal> {
        let list = |name, count| list(frame, name, count);
        let starts = list("col_start", None)?;
        let ranks = starts.len();
        let counts = list("col_count", Some(ranks))?;
        let (rank, devices) = rank(frame, ranks)?;
        let heights = list("rows", Some(matrices))?;
        let width = size("cols", frame.integer("cols")?)?;
        let row_starts = list("row_start", Some(matrices * ranks))?;
        let row_counts = list("row_count", Some(matrices * ranks))?;
        let within = |name: &str, start: usize, count: usize, whole: usize| {
            let end = start.checked_add(count).filter(|end| *end <= whole);
            end.map(|end| start..end).ok_or_else(|| {
                Refusal::argument(format!(
                    "{name}: {count} from {start} on for rank {rank}, where the matrix has {whole}"
                ))
            })
        };
        let rows = (0..matrices).map(|i| {
            let at = i * ranks + rank;
            within(&format!("rows of matrix {i}"), row_starts[at], row_counts[at], heights[i])
        });
        Ok(Cut {
            rows: rows.collect::<Result<_, _>>()?,
            columns: within("columns", starts[rank], counts[rank], width)?,
            heights,
            width,
            devices,
            threads: frame.integer("threads")?,
        })
    }
}

/// The sizes in an attribute; if `count` is given, exactly that many.
pub(crate) fn list(
    frame: Frame<'_>,
    name: &str,
    count: Option<usize>,
) -> Result<Vec<usize>, Refusal> {
    let values = frame.integers(name)?;
    if count.is_some_and(|count| count != values.len()) {
        let (found, count) = (values.len(), count.unwrap_or_default());
        return Err(Refusal::argument(format!(
            "the attribute '{name}' has {found} elements, expected {count}"
        )));
    }
    values.into_iter().map(|value| size(name, value)).collect()
}

/// The rank of the calling device, of `ranks` ranks, and the number of devices.
pub(crate) fn rank(frame: Frame<'_>, ranks: usize) -> Result<(usize, usize), Refusal> {
    let devices = frame.integers("devices")?;
    if ranks == 0 || devices.is_empty() || !devices.len().is_multiple_of(ranks) {
        return Err(Refusal::argument(format!(
            "{} devices, expected a multiple of the {ranks} ranks",
            devices.len()
        )));
    }
    let device = frame.device()?;
    let rank = devices.iter().position(|other| *other == device).map(|at| at % ranks);
    let rank = rank.ok_or_else(|| {
        Refusal::argument(format!("device {device} is not among the ranks {devices:?}"))
    })?;
    Ok((rank, devices.len()))
}
