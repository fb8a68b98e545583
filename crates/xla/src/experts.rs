//! `alight_experts`: the contribution of a rank's experts of a mixture, computed on the bytes of a model file.
//!
//! Arguments: file `u8[N]`, places `u32[7, 4]` (see [`crate::places`]) of the stacks of gates, ups and downs, of their biases (F32,
//! a row for each expert; a place of zeros is none), and of the store of a model that does not fit in memory (see below; zeros: the
//! matrices are used in place in the file), x `f32[T, C]`, chosen `s32[T, K]`, shares `f32[T, K]`. Result: `f32[T, C]`.
//!
//! Attributes: `devices` (their numbers, group by group, in the order of the ranks); `experts` (an int64), the number of matrices
//! of a stack; `width` (an int64), the size between the two products; `gate` (an int64): 0 for SiLU, 1 for gpt-oss's clamped SiLU;
//! `first`, `count` (int64 arrays) `[n]`: the experts of each of the `n` ranks; `threads` (an int64): the number of threads, or 0
//! for as many as are worthwhile.
//!
//! `y[t] = Σⱼ shares[t, j] · down(active(gate(x[t]), up(x[t])))` over the chosen experts `chosen[t, j]` that the rank has, in the
//! order in which they were chosen; gate, up and down are products with a matrix, plus its bias. Each expert is read once for all
//! of its tokens, and the others are not touched. Bits do not depend on the number of threads, nor on the other tokens of the call
//! (except that a single token is rounded to 16 bits, several to 8).
//!
//! The last place is the number of a [`Store`] (lower and upper 32 bits), the index of one of its layers, and 1. Experts are then
//! taken from its slots: resident ones are computed while the others are read, and those as they arrive. Bits are the same.

use std::ops::Range;
use std::sync::Arc;

use alight_kernels::gate::{clamped_silu_mul, silu_mul};
use alight_kernels::matmul::{Precision, RowCounts};
use alight_kernels::parallel::{Packing, Product, Rows, multiply, multiply_and_pack, pack};
use alight_kernels::{ActivationFormats, Isa, Layout, Matrix, WeightType, vec};
use alight_pages::slots::HeldGroup;

use crate::api::{CallFrame, Error, Handler};
use crate::arrays::{dimensions, expect, size, slice, slice_mut};
use crate::frame::{Frame, Refusal, handle};
use crate::matmul::{list, rank};
use crate::places;
use crate::scratch::{MAX_TOKENS, with_activations, with_floats};
use crate::store::Store;
use crate::team::Team;
use crate::{Stage, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_experts",
    platform: "cpu",
    stages: &[(Stage::Execute, alight_experts as Handler)],
    state: None,
}];

/// The stage that runs the call, on every device.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_experts(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    run(frame).map_err(|Refusal(code, text)| Refusal(code, format!("alight_experts: {text}")))
}

/// A chosen expert of a token: the expert, the token, and its index among all pairs.
type ExpertPair = (usize, usize, usize);

/// `gate = active(gate, up)`.
type Gate = fn(Isa, &mut [f32], &[f32]);

/// The stacks of matrices, and their sizes.
struct Stacks<'a> {
    file: &'a [u8],
    places: &'a [[u32; 4]],
    experts: usize,
    width: usize,
    cols: usize,
}

/// The matrices of an expert, or their biases.
#[derive(Clone, Copy)]
struct Three<T> {
    gate: T,
    up: T,
    down: T,
}

/// The place of a missing bias. (No tensor is at the start of a file.)
const NONE: [u32; 4] = [0; 4];

/// The place of the store for matrices that are in none.
const IN_FILE: [u32; 4] = [0; 4];

impl<'a> Stacks<'a> {
    /// The matrices of an expert, from the slots that hold them: `piece` of a layer, whose parts are at `parts`.
    fn held<'h>(
        &self,
        expert: usize,
        held: &'h HeldGroup<'_>,
        piece: usize,
        parts: &[(usize, usize); 3],
    ) -> Result<Three<Matrix<'h>>, Refusal> {
        let (width, cols) = (self.width, self.cols);
        let one = |i: usize, what: &str, rows: usize, cols: usize| {
            let name = format!("the {what} of expert {expert}, in slots");
            let [_, _, ty, layout] = places::in_stack(&self.places[i], 0, rows, cols, &name)?;
            let (span, at) = parts[i];
            let bytes = held.bytes(piece, span).get(at..).unwrap_or_default();
            places::matrix(bytes, &[0, 0, ty, layout], rows, cols, &name)
        };
        Ok(Three {
            gate: one(0, "gate", width, cols)?,
            up: one(1, "up", width, cols)?,
            down: one(2, "down", cols, width)?,
        })
    }

    /// The store of the matrices, if they are in one, and the index of their layer in it.
    fn store(&self) -> Result<Option<(Arc<Store>, usize)>, Refusal> {
        let [low, high, layer, one] = match self.places[6] {
            IN_FILE => return Ok(None),
            place => place,
        };
        let number = u64::from(high) << 32 | u64::from(low);
        let store =
            Store::of(number).filter(|store| one == 1 && store.places(layer as usize).is_some());
        let store = store.ok_or_else(|| {
            Refusal::argument(format!(
                "places: the last is {:?}, expected the number of a store that is still there, one of its layers, and 1",
                self.places[6]
            ))
        })?;
        Ok(Some((store, layer as usize)))
    }

    /// The matrices of an expert.
    fn of(&self, expert: usize) -> Result<Three<Matrix<'a>>, Refusal> {
        let (width, cols) = (self.width, self.cols);
        let one = |i: usize, what: &str, rows: usize, cols: usize| {
            let name = format!("the {what} of expert {expert}");
            let place = places::in_stack(&self.places[i], expert, rows, cols, &name)?;
            places::matrix(self.file, &place, rows, cols, &name)
        };
        Ok(Three {
            gate: one(0, "gate", width, cols)?,
            up: one(1, "up", width, cols)?,
            down: one(2, "down", cols, width)?,
        })
    }

    /// The biases of all experts, `[experts, width]`, `[experts, width]` and `[experts, cols]`, if present.
    fn biases(&self) -> Result<Three<Option<Matrix<'a>>>, Refusal> {
        let one = |i: usize, what: &str, cols: usize| {
            let (place, name) = (&self.places[i], format!("the biases of {what}"));
            if *place == NONE {
                return Ok(None);
            }
            let all = places::matrix(self.file, place, self.experts, cols, &name)?;
            match all.kind() {
                (WeightType::F32, Layout::Rows) => Ok(Some(all)),
                (found, layout) => {
                    let text = format!("{name}: {layout:?} of {found}, expected rows of F32");
                    Err(Refusal::argument(text))
                }
            }
        };
        Ok(Three {
            gate: one(3, "gates", self.width)?,
            up: one(4, "ups", self.width)?,
            down: one(5, "downs", self.cols)?,
        })
    }
}

fn run(frame: Frame<'_>) -> Result<(), Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([file, places, x, chosen, shares], [result]) = (&arguments[..], &results[..]) else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected file, places, x, chosen and shares, and one result",
            arguments.len(),
            results.len()
        )));
    };
    let [tokens, cols] = dimensions("x", x)?;
    let [_, used] = dimensions("chosen", chosen)?;
    expect("chosen", chosen, &[tokens, used])?;
    expect("shares", shares, &[tokens, used])?;
    expect("the result", result, &[tokens, cols])?;
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // for the call; the result overlaps nothing.
    let (file, numbers, values, chosen, shares, out) = unsafe {
        (
            slice::<u8>("file", file)?,
            slice::<u32>("places", places)?,
            slice::<f32>("x", x)?,
            slice::<i32>("chosen", chosen)?,
            slice::<f32>("shares", shares)?,
            slice_mut::<f32>("the result", result)?,
        )
    };
    let places = places::all(numbers, places.dims, 7)?;
    let experts = size("experts", frame.integer("experts")?)?;
    let width = size("width", frame.integer("width")?)?;
    let gate: Gate = match frame.integer("gate")? {
        0 => silu_mul,
        1 => clamped_silu_mul,
        other => {
            let text = format!("the attribute 'gate' has {other}, expected 0 or 1");
            return Err(Refusal::argument(text));
        }
    };
    let first = list(frame, "first", None)?;
    let count = list(frame, "count", Some(first.len()))?;
    let (rank, devices) = rank(frame, first.len())?;
    let own = first[rank]..first[rank].saturating_add(count[rank]).min(experts);
    let mut pairs: Vec<ExpertPair> = Vec::with_capacity(chosen.len());
    for (pair, expert) in chosen.iter().enumerate() {
        let found = usize::try_from(*expert).ok().filter(|expert| *expert < experts);
        let found = found.ok_or_else(|| {
            Refusal::argument(format!("expert {expert}, expected one of 0..{experts}"))
        })?;
        if own.contains(&found) {
            pairs.push((found, pair / used, pair));
        }
    }
    out.fill(0.0);
    if pairs.is_empty() || cols == 0 || width == 0 {
        return Ok(());
    }
    pairs.sort_unstable();
    let stacks = Stacks { file, places, experts, width, cols };
    let biases = stacks.biases()?;
    let mut team = Team::new(frame, frame.integer("threads")?, devices)?;
    let precision = RowCounts::of_call(tokens).precision(0);
    // One output for each pair, so that the outputs of a token are summed in its own order.
    with_floats(chosen.len() * cols, |outputs| {
        let mut compute = |group: &[ExpertPair], matrices: &Three<Matrix<'_>>| {
            for part in group.chunks(MAX_TOKENS) {
                let how = (precision, gate);
                expert(&mut team, how, (matrices, &biases), (values, part), outputs);
            }
        };
        let groups = pairs.chunk_by(|a, b| a.0 == b.0);
        match stacks.store()? {
            None => {
                for group in groups {
                    compute(group, &stacks.of(group[0].0)?);
                }
            }
            Some((store, layer)) => {
                by_slots(&stacks, (&store, layer, rank), groups.collect(), &mut compute)?;
            }
        }
        pairs.sort_unstable_by_key(|(_, _, pair)| *pair);
        for (_, token, pair) in &pairs {
            let row = &mut out[token * cols..][..cols];
            vec::add_times(Isa::best(), row, &outputs[pair * cols..][..cols], shares[*pair]);
        }
        Ok(())
    })
}

/// Computes the experts of `groups` from a store: first those that are resident, then the others as they arrive.
fn by_slots(
    stacks: &Stacks<'_>,
    (store, layer, rank): (&Store, usize, usize),
    mut groups: Vec<&[ExpertPair]>,
    compute: &mut dyn FnMut(&[ExpertPair], &Three<Matrix<'_>>),
) -> Result<(), Refusal> {
    let wrong = |text: &str| Refusal::argument(format!("the store of rank {rank} {text}"));
    let (own, slots) = store.of_rank(rank).ok_or_else(|| wrong("has no experts"))?;
    let parts = store.places(layer).ok_or_else(|| wrong("has no such layer"))?;
    if let Some(group) = groups.iter().find(|group| !own.contains(&group[0].0)) {
        return Err(wrong(&format!("does not have expert {}", group[0].0)));
    }
    let piece = |group: &[ExpertPair]| group[0].0 - own.start;
    let mut held = slots.hold(layer, groups.iter().map(|group| piece(group)));
    // A prompt that chooses nearly all experts of a layer chooses nearly all of the next one, too: they are read after those of
    // this layer, while this layer is computed.
    if 10 * groups.len() >= 9 * own.len() && store.places(layer + 1).is_some() {
        held.read_ahead(layer + 1, 0..own.len());
    }
    loop {
        let (here, coming): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| held.is_here(piece(group)));
        for group in here {
            compute(group, &stacks.held(group[0].0, &held, piece(group), parts)?);
        }
        if coming.is_empty() {
            break;
        }
        groups = coming;
        held.wait_for_more();
    }
    match held.failure() {
        None => Ok(()),
        Some(error) => Err(Refusal::argument(error.to_string())),
    }
}

/// Computes one expert for some pairs, into their rows of `outputs`. `values` are `x`.
fn expert(
    team: &mut Team<'_>,
    (precision, active): (Precision, Gate),
    (Three { gate, up, down }, biases): (&Three<Matrix<'_>>, &Three<Option<Matrix<'_>>>),
    (values, pairs): (&[f32], &[ExpertPair]),
    outputs: &mut [f32],
) {
    let (isa, n, width, cols) = (Isa::best(), pairs.len(), gate.rows(), gate.cols());
    let counts = RowCounts::new(precision, n);
    let number = pairs[0].0;
    let add = |bias: &Option<Matrix<'_>>, first: usize, products: &mut [f32]| {
        bias.iter().for_each(|bias| bias.add_float_row(number, (first, 1), products));
    };
    with_activations(n, width, |activated| {
        with_activations(n, cols, |packed| {
            let formats = ActivationFormats::of([gate.kind(), up.kind()]);
            let into = (&mut *packed, formats);
            pack(team, isa, (counts, cols), [], into, &|i, [], _, put| {
                put(&values[pairs[i].1 * cols..][..cols]);
            });
            let join = |rows: Range<usize>, [gates, ups]: [&mut [f32]; 2]| {
                for (bias, products) in [(&biases.gate, &mut *gates), (&biases.up, &mut *ups)] {
                    let tokens = products.chunks_exact_mut(rows.len());
                    tokens.for_each(|products| add(bias, rows.start, products));
                }
                active(isa, gates, ups);
            };
            with_floats(counts.bits16 * width, |unpacked| {
                let into = (&mut *activated, ActivationFormats::of([down.kind()]));
                let packing = Packing::new(packed, width, into, unpacked);
                multiply_and_pack(team, [gate, up], packed, &join, &packing);
            });
        });
        with_floats(n * cols, |products| {
            let product = Product::new(*down, Rows::new(products, cols));
            multiply(team, &[[product]], activated, None);
            for ((_, _, pair), row) in pairs.iter().zip(products.chunks_exact_mut(cols)) {
                add(&biases.down, 0, row);
                outputs[pair * cols..][..cols].copy_from_slice(row);
            }
        });
    });
}
