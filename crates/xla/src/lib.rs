//! Handlers for XLA's foreign function interface (FFI).
//!
//! `api` is the interface's C header, as far as the handlers need it, in Rust: no header and no C++ compiler is needed at
//! build time, and one library is loaded by every jaxlib whose version of the interface is ours or newer. `frame` makes it
//! safe to use, `state` is what call sites keep, `allreduce_norm` is the collective of `alight-collective` for CPU devices, `shared` the memory for those of
//! several processes, `cuda` the collective and products for GPUs. `matmul`, `embed` and `attend` are
//! the kernels of `alight-kernels` on the bytes of a model file, which is an array as it lies (`places`), with XLA's own
//! threads to help (`team`); `store` has experts that memory cannot hold.
//!
//! The library has no initialiser: whoever loads it registers what [`targets`] lists, the states' types with
//! `jax.ffi.register_ffi_type` and then the targets with `jax.ffi.register_ffi_target`.
//!
//! **Invariant:** built against the oldest C interface that is supported (0.3, jaxlib 0.10): newer ones accept it, older ones
//! would refuse more. The structs are written by hand and compared with an installed header by a test.
//!
//! **Invariant:** a model file is one array of bytes, which is its map; a matrix is an offset, a type and a layout in it. Those
//! are data of a program and may say anything, so each call checks them against the array. XLA copies neither the file nor,
//! where it is donated or carried, the cache: tests compare addresses.
//!
//! **Invariant:** a rank has rows or columns of a matrix, in place (`Matrix::columns`); padding is zeros. A call may use XLA's
//! threads: the calling thread works too, waits only for units that a thread is computing, and a task that starts late
//! finds nothing to do. Bits depend neither on threads nor, where only rows are cut, on the number of ranks.
//!
//! **Invariant:** a state belongs to its call site: made at instantiation, shared by the devices of that site, deleted by XLA.
//! Nothing is global but the number of its type, the memory that this process shares with others (`shared`), which is
//! handed over once, and the list of stores of experts, which programs name by number.
//!
//! **Invariant:** whatever goes wrong is an error of XLA's with words; a panic too, where the profile unwinds (`python`, not
//! `release`).

mod allreduce_norm;
pub mod api;
mod arrays;
mod attend;
mod call;
#[cfg(target_os = "linux")]
pub mod cuda;
mod embed;
mod experts;
mod frame;
mod matmul;
mod places;
mod scratch;
pub mod shared;
mod state;
pub mod store;
mod team;

/// A stage of a custom call. Every target has [`Stage::Execute`]; the others are run before it, if they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Once for a program: makes the state of the call site.
    Instantiate,
    /// Before each run, to ask for resources.
    Prepare,
    /// Before each run, on every device: what must not happen while a graph is captured.
    Initialize,
    /// On every device, at its place in the program.
    Execute,
}

impl Stage {
    /// As `jax.ffi.register_ffi_target` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Instantiate => "instantiate",
            Stage::Prepare => "prepare",
            Stage::Initialize => "initialize",
            Stage::Execute => "execute",
        }
    }
}

/// The type of what a call site keeps, made by its stage [`Stage::Instantiate`].
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Its name, for `jax.ffi.register_ffi_type`.
    pub name: &'static str,
    /// Gives the address of its `XLA_FFI_TypeId`.
    pub type_id: extern "C" fn() -> *const api::TypeId,
    /// Gives the address of its `XLA_FFI_TypeInfo`.
    pub type_info: extern "C" fn() -> *const api::TypeInfo,
}

/// A custom call.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name in programs.
    pub name: &'static str,
    /// The platform that it is registered for, as `jax.ffi` calls it: "cpu" or "CUDA".
    pub platform: &'static str,
    /// Its stages.
    pub stages: &'static [(Stage, api::Handler)],
    /// What its call sites keep, if they keep something.
    pub state: Option<State>,
}

impl Target {
    /// The handler of a stage.
    pub fn stage(&self, stage: Stage) -> Option<api::Handler> {
        self.stages.iter().find(|(other, _)| *other == stage).map(|(_, handler)| *handler)
    }
}

/// All custom calls of this library: a list of each module's.
pub fn targets() -> Vec<Target> {
    [
        allreduce_norm::TARGETS,
        attend::TARGETS,
        embed::TARGETS,
        experts::TARGETS,
        matmul::TARGETS,
        #[cfg(target_os = "linux")]
        cuda::handler::TARGETS,
        #[cfg(target_os = "linux")]
        cuda::blocks_handler::TARGETS,
    ]
    .concat()
}
