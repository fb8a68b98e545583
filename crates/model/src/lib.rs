//! From weights to logits and tokens: opening and checking a model's files, the forward pass, the KV cache, the sampler, and the session that ties
//! them together.
//!
//! [`Model::open`] maps the files, checks their header, starts to load the weights and returns; a
//! [`Session`] is one sequence of tokens on it; [`generate`] is the loop of computing and sampling. An
//! [`Engine`] computes many sequences at the same time.
//! Tokenizer, chat template and prompt are in `alight-text`, accessible through [`Model::vocabulary`].
//!
//! | Module | What it is |
//! |---|---|
//! | `spec` | an architecture as data: one file each in `spec/arch` |
//! | `parts` | attention and feed-forward parts: one file each, with spec, tensors, work size, forward pass |
//! | `weights` | tensors found in the catalog, with their shape and type checked |
//! | `load` | weights brought into memory in the background |
//! | `cache` | keys and values in pages, and the states of recurrent layers with snapshots of earlier ones |
//! | `engine` | the pool of threads, batches, the forward pass, session, scheduler, sampler, token loop |
//!
//! It must never print. It must never import `alight-convert`, `alight-xla` or the command.
//!
//! **Invariant:** an architecture is data: its norms, activation, positions and sliding windows. There is one forward pass for all of them
//! (`engine/net.rs`).
//!
//! **Invariant:** a weight is in memory once: in the map of its file, or in an image of the file that direct or buffered reads fill, or packed.
//! Packing from a map gives the map's pages back piece by piece, so that the peak stays near one copy. Small vectors (norms, biases, RoPE factors)
//! are copied as f32 when a model is opened, by small reads and not by faults.
//!
//! **Invariant:** the forward pass waits for each section of the weights (embedding, layer, output) while they are loaded, and pays one atomic load
//! afterwards. It never waits for weights in a warm map. A load that fails is a typed error of the next step and of every step after it; dropping the
//! model ends the load within a few pieces.
//!
//! **Invariant:** memory for copies, and memory to be locked, is compared with the available memory (control groups, RLIMIT_MEMLOCK) before anything
//! is read: a model that does not fit is rejected with the numbers, not killed half way.
//!
//! **Invariant:** results do not depend on the number of threads, on how the weights were loaded, on how a prompt was split, or on the sequences that
//! are computed at the same time. The partitioning of work and the rounding of activations depend only on shapes, positions and the roles of rows.
//! The layout in which a matrix is read (rows or tiles) decides the order of its sums. If the system provides fewer threads than requested, work
//! continues with those, if necessary with the caller's alone.
//!
//! **Invariant:** after [`Session::new`] the token loop (compute, sample, decode) allocates nothing; a test counts. The KV cache is f16. A context is
//! reserved as address space, and a page of it uses memory once a position in it is stored; the same holds for large buffers.
//!
//! **Invariant:** logits that are not numbers are an error of the step, which names the first weight
//! that is not a number: no token is drawn from them.
//!
//! **Invariant:** every failure is a typed error that names the file, and the value found in it and the expected one. Each module has its own; only
//! [`Model`], [`Session`] and [`describe`] return [`ModelError`], which wraps them.
//!
//! `unsafe` is in the pool, around the cache's memory and where its rows are stored, and where a load fills regions piece by piece;
//! nowhere else.
//!
//! # Example
//!
//! Writes a tiny model, opens it, and continues a prompt.
//!
//! ```
//! use alight_formats::GgmlType;
//! use alight_formats::gguf::write::Builder;
//! use alight_model::{
//!     GenerateOptions, Model, OpenOptions, Sampler, SamplerNumber, SamplerOptions, Session, SessionOptions, generate,
//! };
//! use std::ops::ControlFlow;
//!
//! let (hidden, intermediate, vocab) = (32, 64, 259);
//! let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
//! tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
//! let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
//! let mut file = Builder::new();
//! file.str("general.architecture", "llama");
//! file.u32("llama.block_count", 1).u32("llama.context_length", 64);
//! file.u32("llama.embedding_length", hidden as u32);
//! file.u32("llama.feed_forward_length", intermediate as u32);
//! file.u32("llama.attention.head_count", 2);
//! file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
//! file.str("tokenizer.ggml.model", "llama");
//! file.strs("tokenizer.ggml.tokens", &tokens);
//! file.f32s("tokenizer.ggml.scores", &[0.0; 259]);
//! file.i32s("tokenizer.ggml.token_type", &types);
//! // Shapes are innermost first: [columns, rows].
//! file.tensor("token_embd.weight", GgmlType::F32, &[hidden, vocab])?;
//! file.tensor("output_norm.weight", GgmlType::F32, &[hidden])?;
//! for name in ["attn_norm", "ffn_norm"] {
//!     file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden])?;
//! }
//! for name in ["attn_q", "attn_k", "attn_v", "attn_output"] {
//!     file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden, hidden])?;
//! }
//! for name in ["ffn_gate", "ffn_up"] {
//!     file.tensor(&format!("blk.0.{name}.weight"), GgmlType::F32, &[hidden, intermediate])?;
//! }
//! file.tensor("blk.0.ffn_down.weight", GgmlType::F32, &[intermediate, hidden])?;
//! let weights = file.file(|tensor, bytes| {
//!     for (i, weight) in bytes.chunks_exact_mut(4).enumerate() {
//!         weight.copy_from_slice(&((i * 7 + tensor) as f32).sin().to_le_bytes());
//!     }
//! });
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("tiny.gguf");
//! std::fs::write(&path, weights)?;
//!
//! let model = Model::open(&path, &OpenOptions::default())?;
//! let mut session = Session::new(&model, &SessionOptions::default())?;
//! let mut sampler = Sampler::new(SamplerOptions::greedy(), model.spec().vocab);
//! let prompt = [1, 3 + u32::from(b'a'), 3 + u32::from(b'b')];
//! let options = GenerateOptions { max_tokens: 5, ignore_eos: true, ..GenerateOptions::default() };
//! let mut answer = Vec::new();
//! let done = generate(&mut session, &mut sampler, &prompt, &options, &mut |token| {
//!     answer.push(token);
//!     ControlFlow::Continue(())
//! })?;
//! assert_eq!((done.tokens, answer.len()), (5, 5));
//! assert_eq!(session.position(), prompt.len() + 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adapters;
mod cache;
mod cancel;
mod content;
pub mod describe;
mod engine;
mod error;
mod keys;
mod load;
mod measure;
mod norm;
mod open;
mod open_adapter;
mod parts;
mod positions;
mod prompts;
pub mod spec;
mod store;
mod tensors;
mod threads;
mod weights;

pub use adapters::{Adapter, AdapterOpenError, AdapterSet};
pub use alight_kernels::attention::KvType;
pub use alight_kernels::matmul::Precision;
pub use alight_pages::slots::replay::{Replayed, Rule};
pub use alight_pages::slots::{Found, SlotCounts, SlotOptions, SlotSizes};
pub use cache::reusable;
pub use cancel::Cancel;
pub use content::ModelContent;
pub use engine::{
    CachePage, Constraint, DraftCounts, Engine, EngineOptions, Event, Finish, GenerateOptions,
    Generated, Logprobs, MAX_BATCH, MAX_CONTEXT, MAX_SEQUENCES, MAX_WHOLE_TEXT, Numbers, OfPrompt,
    OptionError, OutputCounts, Request, RequestId, Restored, Sampler, SamplerCount, SamplerNumber,
    SamplerOptions, SamplerStages, Session, SessionOptions, Speculate, StageError, context,
    generate, generate_constrained, to_unit_length,
};
pub use error::ModelError;
pub use load::{FileReport, Load, LoadReport, PartName, Repack, ResidentPart, SlotsReport};
pub use measure::MatrixInputs;
pub use open::{DEFAULT_CONTEXT, Model, OpenOptions, OpenTimings};
pub use prompts::{
    IgnoredPrompt, ListedPrompt, PromptFileError, PromptFolder, PromptWriteError, RestoreError,
};
pub use spec::{ClassifierSpec, ModelSpec, Pooling, Stored};
pub use store::{ExpertTrace, LoadError, Loading, TraceError};
pub use tensors::WeightError;
pub use threads::{MAX_THREADS, Pool};
