//! `alight_allreduce_norm`: the collective among CPU devices of one process.
//!
//! Arguments: partial `[…, hidden]`, residual of the same shape, weight `[hidden]`, and post-weight `[hidden]` if there is a
//! post-norm. Results: normed, new residual, both like the partial.
//!
//! Attributes: `devices` (int64 array: the numbers of the devices, group by group, in the order of the ranks), `ranks` (int64:
//! devices of a group), `capacity` (int64: bytes of the partial), `limit_ms` (int64: the longest wait), `bias` (int64: 0 or
//! 1), `epsilon` (float32). A program is the same on all devices, so a rank cannot be an attribute: it is the place of the
//! device in its group.
//!
//! The state of the call site is a clique for each group, made once at instantiation and shared by its devices. Sites are
//! independent of each other, so XLA may run them in any order.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use alight_collective::{Args, Clique, CollectiveError, Element, Options, Spec};

use crate::api::{self, CallFrame, Error, TypeId, TypeInfo, code};
use crate::frame::{Array, Frame, Refusal, handle};
use crate::{Stage, State, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_allreduce_norm",
    platform: "cpu",
    stages: &[
        (Stage::Instantiate, alight_allreduce_norm_instantiate),
        (Stage::Execute, alight_allreduce_norm_execute),
    ],
    state: Some(State {
        name: "alight_clique",
        type_id: alight_clique_type_id,
        type_info: alight_clique_type_info,
    }),
}];

/// The state of a call site.
struct Site {
    /// One for each group.
    cliques: Vec<Clique>,
    /// Group by group.
    devices: Vec<i64>,
}

impl Site {
    /// The clique of a device's group, and its rank there.
    fn place(&self, device: i64) -> Option<(&Clique, usize)> {
        let at = self.devices.iter().position(|other| *other == device)?;
        let ranks = self.devices.len() / self.cliques.len();
        Some((&self.cliques[at / ranks], at % ranks))
    }
}

static TYPE_ID: TypeId = TypeId { type_id: AtomicI64::new(0) };

/// `TypeInfo` holds a null pointer, which is why this needs saying.
struct Info(TypeInfo);
// SAFETY: nothing writes to it, and its pointer is null.
unsafe impl Sync for Info {}

static TYPE_INFO: Info = Info(TypeInfo {
    struct_size: size_of::<TypeInfo>(),
    extension_start: null_mut(),
    deleter: delete,
});

unsafe extern "C" fn delete(site: *mut c_void) {
    // SAFETY: XLA deletes what `instantiate` gave it, once, when no call runs.
    drop(unsafe { Box::from_raw(site.cast::<Site>()) });
}

/// The address of the type's number, for `jax.ffi.register_ffi_type`.
extern "C" fn alight_clique_type_id() -> *const TypeId {
    &TYPE_ID
}

/// The address of what XLA has to know of the type, for `jax.ffi.register_ffi_type`.
extern "C" fn alight_clique_type_info() -> *const TypeInfo {
    &TYPE_INFO.0
}

/// The stage that makes the clique of a call site.
///
/// # Safety
/// For XLA to call, with its frame.
unsafe extern "C" fn alight_allreduce_norm_instantiate(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, TYPE_ID.type_id.load(Ordering::Acquire), instantiate) }
}

/// The stage that calls, on every device.
///
/// # Safety
/// For XLA to call, with its frame.
unsafe extern "C" fn alight_allreduce_norm_execute(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn instantiate(frame: Frame<'_>) -> Result<(), Refusal> {
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
    let mut options = Options::new(ranks, size("capacity")?);
    options.limit = Duration::from_millis(size("limit_ms")? as u64);
    let mut sorted = devices.clone();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Refusal::argument(format!("a device is twice in {devices:?}")));
    }
    let cliques = devices.chunks(ranks).map(|_| Clique::new(options.clone()));
    let cliques = cliques.collect::<Result<_, _>>().map_err(refusal)?;
    let site = Box::into_raw(Box::new(Site { cliques, devices })).cast();
    frame.set_state(&TYPE_ID, site)
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    let site = frame.state(&TYPE_ID)?.cast::<Site>();
    // SAFETY: XLA gives what `instantiate` gave it, by the type's number, and keeps it while calls run.
    let site = unsafe { &*site };
    let device = frame.device()?;
    let (clique, rank) = site.place(device).ok_or_else(|| {
        Refusal::argument(format!("device {device} is not among the ranks {:?}", site.devices))
    })?;
    let (arguments, results) = (frame.arguments()?, frame.results()?);
    let ([partial, residual, weight, rest @ ..], [normed, new_residual]) =
        (&arguments[..], &results[..])
    else {
        return Err(Refusal::argument(format!(
            "{} arguments and {} results, expected partial, residual, weight and perhaps post-weight, and two results",
            arguments.len(),
            results.len()
        )));
    };
    let post_weight = match rest {
        [] => None,
        [post_weight] => Some(post_weight),
        _ => return Err(Refusal::argument("more than four arguments")),
    };
    let hidden =
        *partial.dims.last().ok_or_else(|| Refusal::argument("the partial is a scalar"))?;
    let (Some(count), Ok(hidden)) = (partial.count(), usize::try_from(hidden)) else {
        return Err(Refusal::argument("the partial is larger than any memory"));
    };
    let bias = frame.integer("bias")?;
    if !(0..=1).contains(&bias) {
        return Err(Refusal::argument(format!("the attribute 'bias' is {bias}, expected 0 or 1")));
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
    // SAFETY: XLA's arrays have the sizes that it says, dense and row-major (the default layout of a custom call), live for the
    // call, and results overlap nothing.
    let args = unsafe {
        Args {
            partial: bytes(partial, spec.element)?,
            residual: bytes(residual, spec.element)?,
            weight: bytes(weight, spec.weight)?,
            post_weight: post_weight.map(|array| bytes(array, spec.weight)).transpose()?,
            normed: bytes_mut(normed, spec.element)?,
            new_residual: bytes_mut(new_residual, spec.element)?,
        }
    };
    clique.allreduce_norm(rank, frame.run()?, &spec, args).map_err(refusal)
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

fn length(array: &Array<'_>, element: Element) -> Result<usize, Refusal> {
    let length = array.count().and_then(|count| count.checked_mul(element.size()));
    length.ok_or_else(|| Refusal::argument("an array is larger than any memory"))
}

/// # Safety
/// The array is there for `'a`, and nobody writes to it.
unsafe fn bytes<'a>(array: &Array<'_>, element: Element) -> Result<&'a [u8], Refusal> {
    match length(array, element)? {
        0 => Ok(&[]),
        // SAFETY: by the contract.
        length => Ok(unsafe { std::slice::from_raw_parts(array.data, length) }),
    }
}

/// # Safety
/// The array is there for `'a`, and nobody else uses it.
unsafe fn bytes_mut<'a>(array: &Array<'_>, element: Element) -> Result<&'a mut [u8], Refusal> {
    match length(array, element)? {
        0 => Ok(&mut []),
        // SAFETY: by the contract.
        length => Ok(unsafe { std::slice::from_raw_parts_mut(array.data, length) }),
    }
}

fn refusal(error: CollectiveError) -> Refusal {
    let code = match error {
        CollectiveError::TimedOut { .. } => code::DEADLINE_EXCEEDED,
        CollectiveError::Poisoned { .. } | CollectiveError::InUse { .. } => {
            code::FAILED_PRECONDITION
        }
        _ => code::INVALID_ARGUMENT,
    };
    Refusal(code, format!("alight_allreduce_norm: {error}"))
}
