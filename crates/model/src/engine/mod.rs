//! From layers to answers: the forward pass ([`net`]), a step on rows of several sequences ([`runner`]), the state of a sequence and how it continues
//! ([`sequence`]); a single sequence under the caller's control ([`session`], [`generate`]), and many that answer requests ([`scheduler`]).

mod active;
mod best;
mod draft;
mod drafter;
mod dry;
mod generate;
mod history;
mod logprobs;
mod lookup;
mod mtp;
mod net;
mod options;
mod outputs;
mod pace;
mod prompt_store;
mod proposer;
mod request;
mod runner;
mod sampler;
mod scheduler;
mod sequence;
mod session;
mod speculate;
mod stages;

pub use self::best::OutputCounts;
pub use self::generate::{Finish, GenerateOptions, Generated, generate, generate_constrained};
pub use self::logprobs::Logprobs;
pub use self::options::{Numbers, OptionError, SamplerCount, SamplerNumber, context};
pub use self::outputs::DraftCounts;
pub use self::request::{Constraint, Event, OfPrompt, Request, RequestId, to_unit_length};
pub use self::runner::{MAX_BATCH, MAX_CONTEXT, MAX_SEQUENCES, MAX_WHOLE_TEXT, Restored};
pub use self::sampler::{Sampler, SamplerOptions};
pub use self::scheduler::{CachePage, Engine, EngineOptions};
pub use self::session::{Session, SessionOptions};
pub use self::speculate::Speculate;
pub use self::stages::{SamplerStages, StageError};
