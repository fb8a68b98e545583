//! `alight_embed`: rows of a matrix of a model file as floats.
//!
//! Arguments: file `u8[N]`, place `u32[4]` (see [`crate::places`]), tokens `s32[T]`. Result: `f32[T, C]`, whose row `t` is row
//! `tokens[t]` of the matrix times `scale`, dequantised as everywhere and multiplied once.
//!
//! Attributes: `rows`, `cols` (int64): the matrix's shape; `scale` (float32).

use alight_kernels::{Isa, vec};

use crate::api::{CallFrame, Error, Handler};
use crate::arrays::{expect, size, slice, slice_mut};
use crate::frame::{Frame, Refusal, handle};
use crate::places;
use crate::{Stage, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_embed",
    platform: "cpu",
    stages: &[(Stage::Execute, alight_embed as Handler)],
    state: None,
}];

/// The stage that runs the call, on every device.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_embed(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    run(frame).map_err(|Refusal(code, text)| Refusal(code, format!("alight_embed: {text}")))
}

fn run(frame: Frame<'_>) -> Result<(), Refusal> {
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([file, place, tokens], [result]) = (&arguments[..], &results[..]) else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected file, place and tokens, and one result",
            arguments.len(),
            results.len()
        )));
    };
    let rows = size("rows", frame.integer("rows")?)?;
    let cols = size("cols", frame.integer("cols")?)?;
    let scale = frame.float("scale")?;
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // for the call; the result overlaps nothing.
    let (file, numbers, ids, out) = unsafe {
        (
            slice::<u8>("file", file)?,
            slice::<u32>("place", place)?,
            slice::<i32>("tokens", tokens)?,
            slice_mut::<f32>("the result", result)?,
        )
    };
    let [place] = places::all(numbers, &[1, place.count().unwrap_or(0) as i64], 1)? else {
        return Err(Refusal::argument("place is not one place"));
    };
    expect("tokens", tokens, &[ids.len()])?;
    expect("the result", result, &[ids.len(), cols])?;
    let matrix = places::matrix(file, place, rows, cols, &"the matrix")?;
    if cols == 0 {
        return Ok(());
    }
    let isa = Isa::best();
    for (id, row) in ids.iter().zip(out.chunks_exact_mut(cols)) {
        let token = usize::try_from(*id).ok().filter(|token| *token < rows);
        let token = token
            .ok_or_else(|| Refusal::argument(format!("token {id}, expected one of 0..{rows}")))?;
        matrix.dequantize_row(token, row);
        if scale != 1.0 {
            vec::scale(isa, row, scale);
        }
    }
    Ok(())
}
