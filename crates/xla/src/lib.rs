//! Handlers for XLA's foreign function interface (FFI).
//!
//! `api` is the part of the interface's C header that the handlers need, in Rust: no header and no C++ compiler is needed at build
//! time, and one library is loaded by every jaxlib with this version of the interface or a newer one. `frame` makes it safe to use,
//! `state` holds the state of call sites, `allreduce_norm` is the collective of `alight-collective` for CPU devices, `shared` the
//! memory for devices of several processes, `cuda` the collective and products for GPUs. `matmul`, `embed` and `attend` are the
//! kernels of `alight-kernels` on the bytes of a model file, which is an array, used in place (`places`), with the help of XLA's
//! own threads (`team`); `store` holds experts that do not fit in memory.
//!
//! The library has no initialiser: the program that loads it registers the entries of [`targets`], first the types of states with
//! `jax.ffi.register_ffi_type`, then the targets with `jax.ffi.register_ffi_target`.
//!
//! **Invariant:** built against the oldest supported C interface (0.3, jaxlib 0.10): newer ones accept it, while more versions
//! would reject a newer one. The structs are written by hand and compared with an installed header by a test.
//!
//! **Invariant:** a model file is one array of bytes, its memory map; a matrix is an offset, a type and a layout in it. These are
//! data of a program and may have any value, so each call checks them against the array. XLA copies neither the file nor, where it
//! is donated or carried, the cache: tests compare addresses.
//!
//! **Invariant:** a rank has rows or columns of a matrix, in place (`Matrix::columns`); padding is zeros. A call may use XLA's
//! threads: the calling thread works too, waits only for units that a thread is computing, and a task that starts late finds
//! nothing to do. Bits depend neither on threads nor, where only rows are split, on the number of ranks.
//!
//! **Invariant:** a state belongs to its call site: made at instantiation, shared by the devices of that site, deleted by XLA.
//! Nothing is global except the number of its type, the memory that this process shares with others (`shared`), which is set once,
//! and the list of stores of experts, which programs refer to by number.
//!
//! **Invariant:** every failure is an error of XLA with a message; so is a panic, if the profile unwinds (`python`, not `release`).

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

/// A stage of a custom call. Every target has [`Stage::Execute`]; the others run before it, if present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Once for a program: creates the state of the call site.
    Instantiate,
    /// Before each run: requests resources.
    Prepare,
    /// Before each run, on every device: work that must not happen while a graph is captured.
    Initialize,
    /// On every device, at the call's position in the program.
    Execute,
}

impl Stage {
    /// Its name for `jax.ffi.register_ffi_target`.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Instantiate => "instantiate",
            Stage::Prepare => "prepare",
            Stage::Initialize => "initialize",
            Stage::Execute => "execute",
        }
    }
}

/// The type of a call site's state, which its stage [`Stage::Instantiate`] creates.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Its name, for `jax.ffi.register_ffi_type`.
    pub name: &'static str,
    /// Returns the address of its `XLA_FFI_TypeId`.
    pub type_id: extern "C" fn() -> *const api::TypeId,
    /// Returns the address of its `XLA_FFI_TypeInfo`.
    pub type_info: extern "C" fn() -> *const api::TypeInfo,
}

/// A custom call.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name in programs.
    pub name: &'static str,
    /// The platform that it is registered for, as named by `jax.ffi`: "cpu" or "CUDA".
    pub platform: &'static str,
    /// Its stages.
    pub stages: &'static [(Stage, api::Handler)],
    /// The state of its call sites, if they have one.
    pub state: Option<State>,
}

impl Target {
    /// The handler of a stage.
    pub fn stage(&self, stage: Stage) -> Option<api::Handler> {
        self.stages.iter().find(|(other, _)| *other == stage).map(|(_, handler)| *handler)
    }
}

/// All custom calls of this library, from the lists of its modules.
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
