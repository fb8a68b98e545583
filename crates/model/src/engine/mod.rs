//! The forward pass and the loop around it: layers on the rows of a call, over a pool of threads ([`pool`]); a
//! sequence of tokens ([`session`]), the choice of the next one ([`sampler`]), and both together ([`generate`]).

mod batch;
mod buffers;
mod compute;
mod draft;
mod drafter;
mod generate;
mod logprobs;
mod lookup;
mod mtp;
mod net;
mod options;
mod pace;
mod pool;
mod proposer;
mod request;
mod sampler;
mod scheduler;
mod session;
mod slot;
mod speculate;
mod step;

pub(crate) use self::buffers::{Angles, Buffers, WorkSize};
pub use self::generate::{Finish, GenerateOptions, Generated, generate, generate_constrained};
pub use self::logprobs::Logprobs;
pub use self::options::{Numbers, OptionError, context};
pub(crate) use self::pool::Parking;
pub use self::pool::{MAX_THREADS, Pool};
pub use self::request::{Constraint, Event, OfPrompt, Pooling, Request, RequestId, to_unit_length};
pub use self::sampler::{Sampler, SamplerOptions};
pub use self::scheduler::{Engine, EngineOptions, MAX_SEQUENCES};
pub use self::session::{
    DEFAULT_CONTEXT, MAX_BATCH, MAX_CONTEXT, Restored, Session, SessionOptions,
};
pub use self::speculate::Speculate;
pub(crate) use self::step::{Order, QueryHeads, Step};
