//! Errors of the use of CUDA.

use std::time::Duration;

/// The reason a call does not run on GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// No driver was found.
    #[error("CUDA's driver is not there: {0}")]
    NoDriver(String),
    /// No run-time compiler was found.
    #[error(
        "CUDA's run-time compiler (libnvrtc) is not there, install jax[cuda13] or nvidia-cuda-nvrtc: {0}"
    )]
    NoCompiler(String),
    /// The kernel does not compile.
    #[error("NVRTC does not compile the kernel for {architecture}: {log}")]
    Compile {
        /// The architecture that it was compiled for.
        architecture: String,
        /// NVRTC's message.
        log: String,
    },
    /// A function of the driver failed.
    #[error("{function}: {message} ({code})")]
    Call {
        /// Its name.
        function: &'static str,
        /// Its result.
        code: i32,
        /// The driver's message.
        message: String,
    },
    /// A GPU that cannot be used.
    #[error("GPU {ordinal}: {reason}")]
    Device {
        /// Its number in this process.
        ordinal: i64,
        /// The problem.
        reason: String,
    },
    /// One GPU cannot write to another one's memory.
    #[error("GPU {from} has no access to the memory of GPU {to}")]
    NoPeers {
        /// The GPU that needs to write.
        from: i64,
        /// The GPU whose memory is to be written.
        to: i64,
    },
    /// The collective was tried among these GPUs and gave a wrong result.
    #[error(
        "among the GPUs {ordinals:?} the collective gives wrong results: what one writes does not arrive"
    )]
    Wrong {
        /// The GPUs.
        ordinals: Vec<i64>,
    },
    /// A shape or a number of ranks that the kernel does not support.
    #[error("{0}")]
    Unsupported(String),
    /// A rank did not arrive in time.
    #[error("rank {rank} waited {limit:?} for rank {missing} (block {block}, call {call})")]
    TimedOut {
        /// The rank that waited.
        rank: usize,
        /// The rank that did not arrive.
        missing: usize,
        /// The block that waited.
        block: u64,
        /// The number of the call.
        call: u64,
        /// The time that it waited.
        limit: Duration,
    },
    /// A rank was in a call twice at the same time.
    #[error("rank {rank} is in two calls of one communicator at the same time (call {call})")]
    InFlight {
        /// The rank.
        rank: usize,
        /// The number of the call.
        call: u64,
    },
    /// The program has its devices in another order.
    #[error(
        "rank {rank} is another device in the shard_map around the call than in the mesh that allreduce_norm was given"
    )]
    Misplaced {
        /// The rank.
        rank: usize,
    },
    /// A rank of another process has given up; that process reports which rank it waited for.
    #[error(
        "rank {rank}: a rank of another process has given up waiting, and no call passes any more"
    )]
    GivenUp {
        /// The first rank here that has seen it.
        rank: usize,
    },
    /// No memory is shared by GPUs of several processes.
    #[error(
        "the program is for GPUs of several processes, which share no memory here; call alight.jax.connect() first"
    )]
    NotConnected,
    /// The memory that processes share is used up.
    #[error(
        "a call needs {wanted} bytes of the memory that GPUs of several processes share, and {left} are left"
    )]
    Full {
        /// Bytes that the call needs.
        wanted: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// Another process uses this place for another call site.
    #[error(
        "the process of GPU {device} has loaded another program in this one's turn; all have to load the same ones in the same order"
    )]
    Apart {
        /// JAX's number of the GPU.
        device: i64,
    },
}
