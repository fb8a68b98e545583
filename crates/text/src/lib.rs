//! Text into token ids and back: tokenizer, chat template, prompt.
//!
//! Everything is built from the metadata of a model file, which `alight-formats` has parsed:
//! - [`Tokenizer`] encodes text and decodes tokens: byte-level BPE, SentencePiece or WordPiece.
//! - [`ChatTemplate`] renders a conversation as Python's jinja2 does for Hugging Face.
//! - [`Vocabulary`] holds both for a file; [`Encoder`] uses them to turn a text or a conversation, tools included, into a prompt.
//! - [`InputEncoder`] makes the input of an encoder of a text or of a pair of texts.
//! - [`StreamDecoder`] decodes the tokens of an answer one by one, in whole characters.
//! - [`SequenceBreakers`] finds texts in tokens, whole or in parts, for the sampler that penalises repetition.
//! - [`output::Parser`] separates thinking, answer and tool calls, in the format that the model writes.
//!
//! This crate knows nothing of weights. It must never import `alight-model`, `alight-kernels` or `alight-pages`, print,
//! or open a file. It reads the clock, and the local time zone from the C library (the only `unsafe`, in `template/clock.rs`),
//! because templates may use the date.
//!
//! **Invariant:** a chat template is a program from an untrusted file. Compiling and rendering it takes bounded time,
//! memory and stack for any template and any conversation (the limits are in [`template`]). A template is compiled to
//! flat instructions and run by a machine whose stacks are on the heap. Only compiling recurses (100 levels of blocks
//! and brackets; chains of operators, filters and `elif` are loops), and walking a value (160 levels): both fit into 256
//! KiB of stack, which is what the tests give them.
//!
//! **Invariant:** every instruction, every element and every 16 bytes cost a step before they are processed, and memory
//! in use is counted. Values are immutable trees; objects that can be cyclic (namespaces, macros and their scopes) are
//! referred to by number in the machine's arena, so nothing drops, compares or prints itself.
//!
//! **Invariant:** a file's template is compiled only when a conversation is rendered: an invalid template is no error
//! for callers that do not use it.
//!
//! **Invariant:** text never becomes special tokens unless the caller requests it. They are found by one automaton over
//! all their spellings, longest first, in time that depends on the text and not on the number of spellings.
//!
//! **Invariant:** a tokenizer is built in milliseconds, and no thread started for that outlives the call. An unknown
//! pre-tokenizer is an error, because a wrong one gives fluent nonsense.
//!
//! jinja2 as configured by Hugging Face is the reference for templates (`tests/data/template_cases.json` has its output
//! for every feature), llama.cpp for tokens (`python -m evidence agree tokens`).
//!
//! # Example
//!
//! A byte vocabulary, as the metadata of a file; a conversation becomes a prompt.
//!
//! ```
//! use alight_formats::gguf::{self, write::Builder};
//! use alight_text::{Encoder, Message, StreamDecoder, Style, Vocabulary};
//!
//! let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
//! tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
//! // 2: unknown, 3: control, 6: a byte.
//! let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
//! let mut metadata = Builder::new();
//! metadata.str("tokenizer.ggml.model", "llama");
//! metadata.strs("tokenizer.ggml.tokens", &tokens);
//! metadata.f32s("tokenizer.ggml.scores", &[0.0; 259]);
//! metadata.i32s("tokenizer.ggml.token_type", &types);
//! metadata.bool("tokenizer.ggml.add_space_prefix", false);
//! metadata.str("tokenizer.chat_template", "{{ messages[0].content }}{{ eos_token }}");
//! let file = metadata.header();
//!
//! let vocabulary = Vocabulary::from_gguf(&gguf::parse(&file)?)?;
//! let encoder = Encoder::new(&vocabulary, Style::Chat, false);
//! let prompt = encoder.chat(&[Message::user("é</s>")], true)?;
//! // The first token is the beginning of the sequence. The `</s>` of the template is a token; the
//! // one that the user wrote is text.
//! assert_eq!(prompt.first(), Some(&1));
//! assert_eq!(prompt.iter().filter(|id| **id == 2).count(), 1);
//! assert_eq!(vocabulary.tokenizer.decode(&prompt), "é</s>");
//!
//! // Token by token: half a character is held back.
//! let mut decoder = StreamDecoder::new();
//! vocabulary.tokenizer.decode_bytes(prompt[1], decoder.buffer());
//! assert_eq!(decoder.take(), "");
//! vocabulary.tokenizer.decode_bytes(prompt[2], decoder.buffer());
//! assert_eq!(decoder.take(), "é");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod breakers;
pub mod encoder_input;
pub mod format;
pub mod infill;
pub mod output;
pub mod prompt;
mod sentence;
pub mod template;
pub mod tokenizer;
pub mod vocabulary;

pub use breakers::SequenceBreakers;
pub use encoder_input::{EncoderInput, Fit, InputEncoder, InputError};
pub use prompt::{Encoder, PromptError, PromptPiece, Style};
pub use sentence::SentenceSettings;
pub use template::{ChatError, ChatTemplate, Message};
pub use tokenizer::{EncodeOptions, PreMisfit, Stop, StreamDecoder, Tokenizer, TokenizerError};
pub use vocabulary::{TemplateError, Vocabulary};
