//! `alight_allreduce_norm` for the platform CUDA. Arguments, results and attributes are those of the version for CPUs. If each
//! group is in one process, `devices` are XLA's numbers of the GPUs of a process, which are the same in all of them. If a group
//! spans several processes (`processes`), they are JAX's numbers of all GPUs, which `arena` translates.
//!
//! *instantiate* makes the state of the call site, without using a GPU. *initialize* allocates and compiles, once: it is not called
//! while a graph is captured. *execute* only launches, so that it may be captured; it is not called when a graph is replayed.
//!
//! A call site has its own communicators, or shares them with the other sites of its channel ([`Communicator::of_channel`]). XLA
//! puts the runs of all programs on one stream of a device, so that two calls of one communicator are not in flight at once; the
//! kernel detects a violation.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use alight_collective::Spec;

use super::arena;
use super::communicator::{Arrays, Communicator, Members, shared_capacity};
use super::driver::{Driver, Function, Stream};
use super::error::CudaError;
use super::kernel::{Shape, Variant};
use crate::api::{self, CallFrame, Error, TypeId, TypeInfo, code};
use crate::call::{Attributes, Call};
use crate::frame::{Frame, Refusal, handle_with};
use crate::state::StateType;
use crate::{Stage, State, Target};

pub(crate) const TARGETS: &[Target] = &[Target {
    name: "alight_allreduce_norm",
    platform: "CUDA",
    stages: &[
        (Stage::Instantiate, alight_allreduce_norm_cuda_instantiate),
        (Stage::Initialize, alight_allreduce_norm_cuda_initialize),
        (Stage::Execute, alight_allreduce_norm_cuda_execute),
    ],
    state: Some(State {
        name: "alight_communicators",
        type_id: alight_communicators_type_id,
        type_info: alight_communicators_type_info,
    }),
}];

/// The state of a call site.
struct CollectiveSite {
    attributes: Attributes,
    channel: i64,
    /// True if groups span several processes.
    across: bool,
    /// If so, the number of the site in all of them: taken at its first use, since a compilation may make call sites that never
    /// run.
    key: OnceLock<u64>,
    /// One for each group, once it has been made: after a failure, the next call tries again.
    communicators: Vec<Mutex<Option<Arc<Communicator>>>>,
    /// One for each device: a call site always launches the same function there.
    functions: Vec<OnceLock<(Variant, Function)>>,
}

impl CollectiveSite {
    /// The position of a device among all; XLA's number of it is CUDA's.
    fn place(&self, ordinal: i64) -> Result<usize, Refusal> {
        let devices = &self.attributes.devices;
        let device = match self.across {
            false => Some(ordinal),
            true => arena::current().map_err(refusal)?.device(ordinal),
        };
        let place = device.and_then(|one| devices.iter().position(|other| *other == one));
        place.ok_or_else(|| {
            Refusal::argument(format!("device {ordinal} is not among the ranks {devices:?}"))
        })
    }

    /// The GPUs of a group.
    fn members(&self, group: usize, spec: &Spec) -> Result<Members, CudaError> {
        let Attributes { devices, processes, ranks, capacity, limit } = &self.attributes;
        let members = devices[group * ranks..][..*ranks].to_vec();
        if !self.across {
            return Ok(Members::Here(members));
        }
        let arenas = arena::current()?;
        let key = self.key.get_or_init(|| {
            let shared_capacity = shared_capacity(self.channel, *capacity);
            let kind =
                arena::hash((devices, processes, ranks, shared_capacity, limit, self.channel));
            // Sites of a channel share their place, whatever they compute and whenever they are made.
            match self.channel {
                0 => arenas.next_site(arena::hash((kind, spec.to_string()))),
                _ => kind,
            }
        });
        Ok(Members::Across(members, *key))
    }

    /// The communicator and the kernel of a call on the GPU `ordinal`. The first call makes the communicator, for all ranks of this
    /// process, while the others wait: no rank writes to a workspace that does not exist yet.
    fn ready(
        &self,
        (place, ordinal): (usize, i64),
        call: &Call<'_>,
        shape: &Shape,
    ) -> Result<(Arc<Communicator>, Function), CudaError> {
        let Attributes { ranks, capacity, limit, .. } = &self.attributes;
        let group = place / ranks;
        let communicator = {
            let mut made = self.communicators[group].lock().unwrap_or_else(PoisonError::into_inner);
            match &*made {
                Some(communicator) => communicator.clone(),
                None => {
                    let members = self.members(group, &call.spec)?;
                    let new = Communicator::of_channel(self.channel, members, *capacity, *limit)?;
                    made.insert(new).clone()
                }
            }
        };
        let variant = Variant::of(&call.spec, shape);
        if let Some((loaded, function)) = self.functions[place].get()
            && *loaded == variant
        {
            return Ok((communicator, *function));
        }
        let driver = Driver::get()?;
        let function = driver.relaxed(|| {
            let function = variant.load(driver, ordinal)?;
            let resident = driver.resident(ordinal, function, shape.threads)?;
            if resident < shape.blocks as usize {
                return Err(CudaError::Unsupported(format!(
                    "GPU {ordinal} runs {resident} blocks at once, the call has {}",
                    shape.blocks
                )));
            }
            Ok(function)
        })?;
        let _ = self.functions[place].set((variant, function));
        Ok((communicator, function))
    }
}

static STATE: StateType<CollectiveSite> = StateType::new();

extern "C" fn alight_communicators_type_id() -> *const TypeId {
    STATE.id()
}

extern "C" fn alight_communicators_type_info() -> *const TypeInfo {
    STATE.info()
}

/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_allreduce_norm_cuda_instantiate(frame: *mut CallFrame) -> *mut Error {
    let state = STATE.number();
    // SAFETY: passed on.
    unsafe { handle_with(frame, state, api::COMMAND_BUFFER_COMPATIBLE, instantiate) }
}

/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_allreduce_norm_cuda_initialize(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle_with(frame, 0, api::COMMAND_BUFFER_COMPATIBLE, initialize) }
}

/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_allreduce_norm_cuda_execute(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle_with(frame, 0, api::COMMAND_BUFFER_COMPATIBLE, execute) }
}

fn instantiate(frame: Frame<'_>) -> Result<(), Refusal> {
    let attributes = Attributes::read(frame)?;
    let count = attributes.devices.len();
    let mut groups = attributes.processes.chunks(attributes.ranks);
    let across = groups.any(|group| group.iter().any(|process| *process != group[0]));
    let site = CollectiveSite {
        communicators: (0..count / attributes.ranks).map(|_| Mutex::default()).collect(),
        functions: (0..count).map(|_| OnceLock::new()).collect(),
        channel: frame.integer("channel")?,
        across,
        key: OnceLock::new(),
        attributes,
    };
    STATE.give(frame, site)
}

fn initialize(frame: Frame<'_>) -> Result<(), Refusal> {
    let site = STATE.get(frame)?;
    let ordinal = frame.device()?;
    let place = site.place(ordinal)?;
    let call = Call::read(frame)?;
    if call.spec.rows == 0 {
        return Ok(());
    }
    let shape = Shape::of(&call.spec).map_err(refusal)?;
    site.ready((place, ordinal), &call, &shape).map_err(refusal)?;
    Ok(())
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    let site = STATE.get(frame)?;
    let device = frame.device()?;
    let place = site.place(device)?;
    let call = Call::read(frame)?;
    if call.spec.rows == 0 {
        return Ok(());
    }
    let shape = Shape::of(&call.spec).map_err(refusal)?;
    let (communicator, function) = site.ready((place, device), &call, &shape).map_err(refusal)?;
    let at = |array: &crate::frame::Array<'_>| array.data.addr() as u64;
    let arrays = Arrays {
        partial: at(&call.partial),
        residual: at(&call.residual),
        weight: at(&call.weight),
        post_weight: call.post_weight.as_ref().map_or(0, at),
        normed: at(&call.normed),
        new_residual: at(&call.new_residual),
        index: (call.index.as_ref().map_or(0, at), place as u32),
    };
    let rank = place % site.attributes.ranks;
    let params = communicator.params(rank, &call.spec, &arrays).map_err(refusal)?;
    let stream = Stream(frame.stream()?.addr());
    let driver = Driver::get().map_err(refusal)?;
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // until the work on the stream has run; results overlap nothing except the residual, element by element. The stream is the
    // device's.
    driver
        .on(device, || unsafe { communicator.launch(function, &shape, &params, 1, stream) })
        .map_err(refusal)
}

fn refusal(error: CudaError) -> Refusal {
    Refusal(code_of(&error), format!("alight_allreduce_norm: {error}"))
}

/// XLA's code for an error.
pub(super) fn code_of(error: &CudaError) -> std::ffi::c_int {
    match error {
        CudaError::TimedOut { .. } => code::DEADLINE_EXCEEDED,
        CudaError::Unsupported(_) | CudaError::Misplaced { .. } => code::INVALID_ARGUMENT,
        CudaError::Call { .. } => code::INTERNAL,
        _ => code::FAILED_PRECONDITION,
    }
}
