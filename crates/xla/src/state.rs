//! The state of a call site from its *instantiate* stage on: one object for all its devices, which XLA owns and deletes.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::api::{TypeId, TypeInfo};
use crate::frame::{Frame, Refusal};

/// The type of such an object, as registered with XLA. One static for each.
pub(crate) struct StateType<T> {
    id: TypeId,
    info: TypeInfo,
    of: PhantomData<fn() -> T>,
}

// SAFETY: only the number is written to, which is atomic, and the pointer in it is null.
unsafe impl<T> Sync for StateType<T> {}

impl<T: Send + Sync> StateType<T> {
    pub(crate) const fn new() -> StateType<T> {
        StateType {
            id: TypeId { type_id: AtomicI64::new(0) },
            info: TypeInfo {
                struct_size: size_of::<TypeInfo>(),
                extension_start: null_mut(),
                deleter: delete::<T>,
            },
            of: PhantomData,
        }
    }

    /// The address of the type's number, for `jax.ffi.register_ffi_type`.
    pub(crate) fn id(&'static self) -> *const TypeId {
        &self.id
    }

    /// The address of XLA's information about the type, for `jax.ffi.register_ffi_type`.
    pub(crate) fn info(&'static self) -> *const TypeInfo {
        &self.info
    }

    /// The type's number, once it is registered.
    pub(crate) fn number(&self) -> i64 {
        self.id.type_id.load(Ordering::Acquire)
    }

    /// Sets the call site's state.
    pub(crate) fn give(&self, frame: Frame<'_>, state: T) -> Result<(), Refusal> {
        frame.set_state(&self.id, Box::into_raw(Box::new(state)).cast())
    }

    /// The state of the call site.
    pub(crate) fn get<'a>(&self, frame: Frame<'a>) -> Result<&'a T, Refusal> {
        let state = frame.state(&self.id)?.cast::<T>();
        // SAFETY: XLA returns the pointer that `give` passed to it, identified by the type's number, and keeps it while calls are
        // made.
        Ok(unsafe { &*state })
    }
}

unsafe extern "C" fn delete<T>(state: *mut c_void) {
    // SAFETY: XLA deletes the object that `give` passed to it, once, when no call is in progress.
    drop(unsafe { Box::from_raw(state.cast::<T>()) });
}
