//! The forward pass and the loop around it: layers on the rows of a call; a
//! sequence of tokens ([`session`]), the choice of the next one ([`sampler`]), and both together ([`generate`]).

mod draft;
mod drafter;
mod generate;
mod logprobs;
mod lookup;
mod mtp;
mod net;
mod options;
mod pace;
mod proposer;
mod request;
mod sampler;
mod scheduler;
mod session;
mod slot;
mod speculate;

pub use self::generate::{Finish, GenerateOptions, Generated, generate, generate_constrained};
pub use self::logprobs::Logprobs;
pub use self::options::{Numbers, OptionError, context};
pub use self::request::{Constraint, Event, OfPrompt, Pooling, Request, RequestId, to_unit_length};
pub use self::sampler::{Sampler, SamplerOptions};
pub use self::scheduler::{Engine, EngineOptions, MAX_SEQUENCES};
pub use self::session::{MAX_BATCH, MAX_CONTEXT, Restored, Session, SessionOptions};
pub use self::speculate::Speculate;
