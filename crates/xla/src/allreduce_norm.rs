//! `alight_allreduce_norm`: the collective among CPU devices of one process, or of several on one host.
//!
//! Arguments: partial `[…, hidden]`, residual of the same shape, weight `[hidden]`, post-weight `[hidden]` if there is a post-norm,
//! and optionally an int32, the device's position among all as the program has it, which must be that of `devices`. Results:
//! normed, new residual, both like the partial, possibly in the memory of partial and residual.
//!
//! Attributes: `devices` (int64 array: the numbers of the devices, group by group, in the order of the ranks), `ranks` (int64:
//! devices of a group), `processes` (int64 array: for each device the number of its process), `capacity` (int64: bytes of the
//! partial), `limit_ms` (int64: the longest wait), `bias` (int64: 0 or 1), `epsilon` (float32). A program is the same on all
//! devices, so a rank cannot be an attribute: it is the position of the device in its group.
//!
//! The state of the call site is a `ThreadGroup` for each group of devices, made once at instantiation and shared by its devices; a
//! group of several processes is a `ProcessGroup` in their shared memory (`shared`). Sites are independent of each other, so XLA
//! may run them in any order.

use alight_collective::{
    Args, CollectiveError, Element, Key, Options, ProcessGroup, ProcessGroupOptions, ThreadGroup,
};

use crate::api::{CallFrame, Error, TypeId, TypeInfo, code};
use crate::call::{Attributes, Call};
use crate::frame::{Array, Frame, Refusal, handle};
use crate::shared::SiteKey;
use crate::state::StateType;
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

/// Devices that compute a sum together.
enum Group {
    /// All of them are in this process.
    Here(Box<ThreadGroup>),
    /// They are in several processes, including this one.
    Across(Box<ProcessGroup>),
    /// They are in other processes.
    Elsewhere,
}

/// The state of a call site.
struct Site {
    groups: Vec<Group>,
    /// All devices, group by group.
    devices: Vec<i64>,
}

impl Site {
    /// The position of a device among all.
    fn place(&self, device: i64) -> Option<usize> {
        self.devices.iter().position(|other| *other == device)
    }

    /// The group of a position, and the rank there.
    fn group(&self, place: usize) -> (&Group, usize) {
        let ranks = self.devices.len() / self.groups.len();
        (&self.groups[place / ranks], place % ranks)
    }
}

static STATE: StateType<Site> = StateType::new();

extern "C" fn alight_clique_type_id() -> *const TypeId {
    STATE.id()
}

extern "C" fn alight_clique_type_info() -> *const TypeInfo {
    STATE.info()
}

/// The stage that creates the groups of a call site.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_allreduce_norm_instantiate(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, STATE.number(), instantiate) }
}

/// The stage that runs the call, on every device.
///
/// # Safety
/// Only XLA may call it, with its frame.
unsafe extern "C" fn alight_allreduce_norm_execute(frame: *mut CallFrame) -> *mut Error {
    // SAFETY: passed on.
    unsafe { handle(frame, 0, execute) }
}

fn instantiate(frame: Frame<'_>) -> Result<(), Refusal> {
    let Attributes { devices, processes, ranks, capacity, limit } = Attributes::read(frame)?;
    let kind = (&devices, &processes, ranks, capacity, frame.integer("bias")?);
    let mut key = None;
    let mut groups = vec![];
    for (number, processes) in processes.chunks(ranks).enumerate() {
        let mut processes = processes.to_vec();
        processes.sort_unstable();
        processes.dedup();
        if processes.len() == 1 {
            let mut options = Options::new(ranks, capacity);
            options.limit = limit;
            groups.push(Group::Here(Box::new(ThreadGroup::new(options).map_err(refusal)?)));
            continue;
        }
        if key.is_none() {
            key = SiteKey::next((&kind, frame.float("epsilon")?.to_bits()));
        }
        let key = key.ok_or_else(|| {
            Refusal(
                code::FAILED_PRECONDITION,
                "alight_allreduce_norm: a program for several processes, which do not share memory here; call \
                 alight.jax.connect(mesh) first"
                    .into(),
            )
        })?;
        let mut options = ProcessGroupOptions::new(Key([0; 2]), ranks, processes.len(), capacity);
        options.limit = limit;
        let group = key.join(number, &processes, options).map_err(refusal)?;
        groups.push(group.map_or(Group::Elsewhere, |group| Group::Across(Box::new(group))));
    }
    STATE.give(frame, Site { groups, devices })
}

fn execute(frame: Frame<'_>) -> Result<(), Refusal> {
    let site = STATE.get(frame)?;
    let device = frame.device()?;
    let place = site.place(device).ok_or_else(|| {
        Refusal::argument(format!("device {device} is not among the ranks {:?}", site.devices))
    })?;
    let (group, rank) = site.group(place);
    let call = Call::read(frame)?;
    if let Some(index) = &call.index {
        // SAFETY: an int32 of XLA, on the host.
        let index = unsafe { index.data.cast::<i32>().read() };
        if usize::try_from(index) != Ok(place) {
            return Err(Refusal::argument(format!(
                "device {device} has place {index} in the shard_map around this call, and {place} in the mesh that allreduce_norm was given"
            )));
        }
    }
    let spec = &call.spec;
    // SAFETY: XLA's arrays have the sizes that it states, are dense and row-major (the default layout of a custom call) and live
    // for the call; results overlap nothing except arguments whose memory they were given as a whole.
    let args = unsafe {
        Args {
            partial: apart(&call.partial, &call.normed, spec.element)?,
            residual: apart(&call.residual, &call.new_residual, spec.element)?,
            weight: bytes(&call.weight, spec.weight)?,
            post_weight: call.post_weight.map(|array| bytes(&array, spec.weight)).transpose()?,
            normed: bytes_mut(&call.normed, spec.element)?,
            new_residual: bytes_mut(&call.new_residual, spec.element)?,
        }
    };
    let done = match group {
        Group::Here(group) => group.allreduce_norm(rank, frame.run()?, spec, args),
        Group::Across(group) => group.allreduce_norm(rank, spec, args),
        Group::Elsewhere => {
            return Err(Refusal::argument(format!("device {device} is of another process")));
        }
    };
    done.map_err(refusal)
}

fn length(array: &Array<'_>, element: Element) -> Result<usize, Refusal> {
    let length = array.count().and_then(|count| count.checked_mul(element.size()));
    length.ok_or_else(|| Refusal::argument("an array is larger than any memory"))
}

/// # Safety
/// The array is valid for `'a`, and is not written to.
unsafe fn bytes<'a>(array: &Array<'_>, element: Element) -> Result<&'a [u8], Refusal> {
    match length(array, element)? {
        0 => Ok(&[]),
        // SAFETY: by the contract.
        length => Ok(unsafe { std::slice::from_raw_parts(array.data, length) }),
    }
}

/// The bytes of an argument, or `None` if the result is in the same memory.
///
/// # Safety
/// The array is valid for `'a`, and is not written to except through this result, if it is the same memory.
unsafe fn apart<'a>(
    array: &Array<'_>,
    result: &Array<'_>,
    element: Element,
) -> Result<Option<&'a [u8]>, Refusal> {
    match array.data == result.data {
        true => Ok(None),
        // SAFETY: by the contract.
        false => unsafe { bytes(array, element) }.map(Some),
    }
}

/// # Safety
/// The array is valid for `'a`, and is not used elsewhere.
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
