//! Handlers for XLA's foreign function interface (FFI).
//!
//! `api` is the interface's C header, as far as the handlers need it, in Rust: no header and no C++ compiler is needed at
//! build time, and one library is loaded by every jaxlib whose version of the interface is ours or newer. `frame` makes it
//! safe to use, `allreduce_norm` is the collective of `alight-collective` for CPU devices.
//!
//! The library has no initialiser: whoever loads it registers what [`targets`] lists, with
//! `jax.ffi.register_ffi_type` and then `jax.ffi.register_ffi_target`, by pointers of [`targets`] or by the exported
//! symbols of the same functions.

mod allreduce_norm;
pub mod api;
mod frame;

pub use allreduce_norm::{alight_allreduce_norm_execute, alight_allreduce_norm_instantiate};
pub use allreduce_norm::{alight_clique_type_id, alight_clique_type_info};

/// A custom call with a state that lives as long as its call site.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the custom call.
    pub name: &'static str,
    /// The platform that it is registered for, as XLA calls it.
    pub platform: &'static str,
    /// The stage that makes the state.
    pub instantiate: api::Handler,
    /// The stage that runs.
    pub execute: api::Handler,
    /// Name of the state's type.
    pub state: &'static str,
    /// Gives the address of the state's `XLA_FFI_TypeId`.
    pub type_id: extern "C" fn() -> *const api::TypeId,
    /// Gives the address of the state's `XLA_FFI_TypeInfo`.
    pub type_info: extern "C" fn() -> *const api::TypeInfo,
}

/// All custom calls of this library.
pub fn targets() -> [Target; 1] {
    [Target {
        name: "alight_allreduce_norm",
        platform: "cpu",
        instantiate: alight_allreduce_norm_instantiate,
        execute: alight_allreduce_norm_execute,
        state: "alight_clique",
        type_id: alight_clique_type_id,
        type_info: alight_clique_type_info,
    }]
}
