//! The parts of a frame that the handlers of `alight_allreduce_norm` read, on CPUs and GPUs alike: attributes of the call site,
//! arrays of a call.

use std::ffi::c_int;
use std::time::Duration;

use alight_collective::{Element, Spec};

use crate::api;
use crate::frame::{Array, Frame, Refusal};

/// Attributes of a call site.
pub(crate) struct Attributes {
    /// The devices, group by group, each in the order of its ranks, without duplicates.
    pub(crate) devices: Vec<i64>,
    /// The number of each device's process.
    pub(crate) processes: Vec<i64>,
    /// Devices of a group, at least one.
    pub(crate) ranks: usize,
    /// Bytes of an operand.
    pub(crate) capacity: usize,
    /// The longest wait.
    pub(crate) limit: Duration,
}

impl Attributes {
    pub(crate) fn read(frame: Frame<'_>) -> Result<Attributes, Refusal> {
        let devices = frame.integers("devices")?;
        let size = |name: &str| {
            let value = frame.integer(name)?;
            usize::try_from(value).map_err(|_| {
                Refusal::argument(format!("the attribute '{name}' is {value}, expected 0 or more"))
            })
        };
        let ranks = size("ranks")?;
        if ranks == 0 || devices.is_empty() || !devices.len().is_multiple_of(ranks) {
            return Err(Refusal::argument(format!(
                "{} devices, expected a multiple of the {ranks} ranks of a group",
                devices.len()
            )));
        }
        let mut sorted = devices.clone();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Refusal::argument(format!("a device is twice in {devices:?}")));
        }
        let processes = frame.integers("processes")?;
        if processes.len() != devices.len() {
            return Err(Refusal::argument(format!(
                "{} numbers of processes, expected one for each of {} devices",
                processes.len(),
                devices.len()
            )));
        }
        let limit = Duration::from_millis(size("limit_ms")? as u64);
        Ok(Attributes { ranks, capacity: size("capacity")?, limit, devices, processes })
    }
}

/// The arrays of a call.
pub(crate) struct Call<'a> {
    pub(crate) spec: Spec,
    pub(crate) partial: Array<'a>,
    pub(crate) residual: Array<'a>,
    pub(crate) weight: Array<'a>,
    pub(crate) post_weight: Option<Array<'a>>,
    /// The device's position among all, as the program has it: a number on the device that must match `devices`.
    pub(crate) index: Option<Array<'a>>,
    pub(crate) normed: Array<'a>,
    pub(crate) new_residual: Array<'a>,
}

impl<'a> Call<'a> {
    /// Checks shapes and types.
    pub(crate) fn read(frame: Frame<'a>) -> Result<Call<'a>, Refusal> {
        let (arguments, results) = (frame.arguments()?, frame.results()?);
        let ([partial, residual, weight, rest @ ..], [normed, new_residual]) =
            (&arguments[..], &results[..])
        else {
            return Err(Refusal::argument(format!(
                "{} arguments and {} results, expected partial, residual, weight, perhaps post-weight and a place, and two results",
                arguments.len(),
                results.len()
            )));
        };
        let (index, rest) = match rest {
            [rest @ .., last] if last.dtype == api::data_type::S32 && last.dims.is_empty() => {
                (Some(*last), rest)
            }
            rest => (None, rest),
        };
        let post_weight = match rest {
            [] => None,
            [post_weight] => Some(post_weight),
            _ => return Err(Refusal::argument("more than four arguments and a place")),
        };
        let hidden =
            *partial.dims.last().ok_or_else(|| Refusal::argument("the partial is a scalar"))?;
        let (Some(count), Ok(hidden)) = (partial.count(), usize::try_from(hidden)) else {
            return Err(Refusal::argument("the partial is larger than any memory"));
        };
        let bias = frame.integer("bias")?;
        if !(0..=1).contains(&bias) {
            return Err(Refusal::argument(format!(
                "the attribute 'bias' is {bias}, expected 0 or 1"
            )));
        }
        let spec = Spec {
            rows: count.checked_div(hidden).unwrap_or(0),
            hidden,
            element: element("the partial", partial.dtype)?,
            weight: element("the weight", weight.dtype)?,
            bias: bias == 1,
            epsilon: frame.float("epsilon")?,
            post_norm: post_weight.is_some(),
        };
        for (what, array) in
            [("residual", residual), ("result", normed), ("new residual", new_residual)]
        {
            same(what, array, partial.dtype, partial.dims)?;
        }
        for array in std::iter::once(weight).chain(post_weight) {
            same("weight", array, weight.dtype, &partial.dims[partial.dims.len() - 1..])?;
        }
        Ok(Call {
            spec,
            partial: *partial,
            residual: *residual,
            weight: *weight,
            post_weight: post_weight.copied(),
            index,
            normed: *normed,
            new_residual: *new_residual,
        })
    }
}

fn element(what: &str, dtype: c_int) -> Result<Element, Refusal> {
    match dtype {
        api::data_type::BF16 => Ok(Element::Bf16),
        api::data_type::F16 => Ok(Element::F16),
        api::data_type::F32 => Ok(Element::F32),
        _ => Err(Refusal::argument(format!(
            "{what} has elements of type {dtype}, expected bfloat16, float16 or float32"
        ))),
    }
}

fn same(what: &str, array: &Array<'_>, dtype: c_int, dims: &[i64]) -> Result<(), Refusal> {
    if array.dtype == dtype && array.dims == dims {
        return Ok(());
    }
    Err(Refusal::argument(format!(
        "the {what} is {:?} of type {}, expected {dims:?} of type {dtype}",
        array.dims, array.dtype
    )))
}
