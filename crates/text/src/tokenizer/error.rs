//! The ways a vocabulary can be unusable, and the ways a text can fail to encode.

use alight_formats::gguf::GgufError;
use thiserror::Error;

/// Why a tokenizer could not be built, or a text could not be encoded.
///
/// The errors do not know the file; the code that opened it adds its name.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A key is missing or has a value of another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// `tokenizer.ggml.model` names a kind of tokenizer that this build does not support.
    #[error("unknown tokenizer model `{name}` (known: {known})")]
    UnknownModel {
        /// The name in the file.
        name: String,
        /// The supported names.
        known: &'static str,
    },
    /// `tokenizer.ggml.pre` names a pre-tokeniser that this build does not support.
    #[error(
        "unknown pre-tokeniser `{name}`: text would be cut in the wrong places, so it is not guessed"
    )]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
    },
    /// `tokenizer.ggml.tokens` is empty.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// The texts are larger than the 32-bit offsets that this store uses.
    #[error("the texts of `{key}` take more than {limit} bytes")]
    VocabularyTooLarge {
        /// The full name of the key.
        key: &'static str,
        /// The largest size in bytes.
        limit: u64,
    },
    /// An array that runs parallel to the tokens is shorter than they are.
    #[error("`{key}` has {found} entries for {expected} tokens")]
    ShortArray {
        /// The full name of the key.
        key: &'static str,
        /// Number of entries found.
        found: usize,
        /// Number of tokens.
        expected: usize,
    },
    /// The file lists more tokens that end an answer than any model has.
    #[error("`tokenizer.ggml.eos_token_ids` has {found} entries, expected at most {limit}")]
    TooManyEnds {
        /// Number of entries found.
        found: usize,
        /// The largest number.
        limit: usize,
    },
    /// A token of type byte does not have the form `<0xHH>`.
    #[error(
        "token {id} has the type of a byte, but its text is `{text}`, expected `<0x00>` to `<0xFF>`"
    )]
    BadByteToken {
        /// Its id.
        id: u32,
        /// Its text, with invalid UTF-8 replaced.
        text: String,
    },
    /// `tokenizer.ggml.precompiled_charsmap` is not in SentencePiece's compiled form.
    #[error("`tokenizer.ggml.precompiled_charsmap`: {problem}")]
    CharsMap {
        /// What was found, and what was expected.
        problem: String,
    },
    /// A token of a unigram model is longer than the longest text that is looked up.
    #[error("token {id} has {len} bytes, expected at most {limit} in a unigram model")]
    PieceTooLong {
        /// Its id.
        id: u32,
        /// Its length in bytes.
        len: usize,
        /// The largest length in bytes.
        limit: usize,
    },
    /// The spellings of special tokens take more memory than any vocabulary needs.
    #[error(
        "the spellings of special tokens have {bytes} bytes together, expected at most {limit}"
    )]
    SpecialTooLong {
        /// Their length in bytes.
        bytes: usize,
        /// The largest length in bytes.
        limit: usize,
    },
    /// A beginning-of-sequence token was requested and the vocabulary has none.
    #[error("a beginning-of-sequence token was asked for, but the vocabulary has none")]
    NoBos,
    /// The text is longer than the 32-bit offsets that encoding uses.
    #[error("the text has {len} bytes, more than the {limit} that can be encoded at once")]
    TextTooLong {
        /// Its length in bytes.
        len: usize,
        /// The largest length in bytes.
        limit: usize,
    },
    /// The caller stopped the encoding.
    #[error("the encoding was stopped: its result is no longer needed")]
    Stopped,
}
