//! The record of an answer: everything that it depended on, so that `alight replay` can compute it again anywhere.
//!
//! A record is an object of JSON: the `record` of the line that `alight run --json` writes, and of each line of `alight batch --record`.
//! Its `request` is a body as a line of a batch has it, with the prompt as tokens; so options are written from the table that
//! they are read with ([`SamplerOptions::NUMBERS`], [`SamplerOptions::COUNTS`]), and a body is parsed in one place
//! ([`BodyOptions`](crate::body_options::BodyOptions)).
//!
//! **Invariant:** it has no path and no name of a user: of the model the name of its file, without the folder.

mod read;
mod request;

use std::time::{SystemTime, UNIX_EPOCH};

use alight_kernels::ARITHMETIC;
use alight_model::{AdapterSet, Model, ModelContent, Precision};
use alight_server::date;
use alight_text::Vocabulary;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

pub use read::{FoundRecord, ReadRecord};
pub use request::{AnswerConstraints, RequestParts};

use crate::open::HowArgs;

/// The version of the format. A reader refuses a greater one, and a field that is added does not make it greater.
pub const FORMAT: u64 = 1;

/// A record.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    format: u64,
    #[serde(flatten)]
    program: Program,
    /// When it was written, in UTC.
    date: String,
    model: RecordedModel,
    computed: ComputationRecord,
    /// The adapters of the answer; left out where it has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lora: Vec<RecordedAdapter>,
    /// The hash of the chat template that built the prompt; null where none did.
    template: Option<String>,
    request: Map<String, Value>,
    answer: RecordedAnswer,
}

/// The program that computed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// Its version, and the commit that it was built from.
    pub alight: String,
    pub commit: String,
    /// The version of the kernels' arithmetic.
    pub arithmetic: u64,
}

impl Program {
    /// This program.
    pub fn this() -> Program {
        Program {
            alight: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env!("ALIGHT_COMMIT").to_owned(),
            arithmetic: ARITHMETIC.into(),
        }
    }
}

/// The model that answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedModel {
    /// The name of its file.
    pub name: String,
    pub architecture: Option<String>,
    /// The type of most of its weights.
    #[serde(rename = "type")]
    pub main_type: Option<String>,
    /// See [`Model::content`]; null if the file was still being fetched.
    pub hash: Option<String>,
}

/// An adapter of an answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecordedAdapter {
    /// The name of its file.
    pub name: String,
    /// SHA-256 of the file.
    pub hash: String,
    pub scale: f32,
}

/// How it was computed. `context`, `prompt_precision` and `cache_type` are options; the rest should not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComputationRecord {
    pub context: usize,
    pub prompt_precision: u64,
    pub cache_type: String,
    pub isa: String,
    /// True if the kernels read weights in tiles.
    pub tiles: Option<bool>,
    pub threads: usize,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedAnswer {
    pub finish: RecordedFinish,
    /// The text of all tokens, with marks.
    pub text: String,
    pub tokens: Vec<u32>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedFinish {
    /// The model ended it.
    Stop,
    /// One of the stop texts was generated.
    StopText,
    /// It has the maximum number of tokens.
    Length,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

impl RecordedFinish {
    /// All of them, with their names in a record.
    const NAMES: [(&str, RecordedFinish); 5] = [
        ("stop", RecordedFinish::Stop),
        ("stop_text", RecordedFinish::StopText),
        ("length", RecordedFinish::Length),
        ("context", RecordedFinish::Context),
        ("interrupted", RecordedFinish::Interrupted),
    ];
}

/// Writes records of the answers of one model.
#[derive(Clone, Debug)]
pub struct Recorder {
    model: RecordedModel,
    lora: Vec<RecordedAdapter>,
    computed: ComputationRecord,
    template: Option<String>,
}

impl Recorder {
    /// Creates the recorder of this model with these adapters, computed with these options in sequences of this number of positions.
    pub fn new(model: &Model, how: &HowArgs, context: usize, adapters: &AdapterSet) -> Recorder {
        let content = content(model);
        let source = model.vocabulary().template_source();
        let lora = adapters.iter().map(|(adapter, scale)| RecordedAdapter {
            name: adapter.path().file_name().unwrap_or_default().to_string_lossy().into_owned(),
            hash: hexadecimal(adapter.hash()),
            scale,
        });
        Recorder {
            lora: lora.collect(),
            model: RecordedModel {
                name: model.name().to_owned(),
                architecture: content.map(|content| content.architecture.clone()),
                main_type: content.map(|content| content.main_type.to_owned()),
                hash: content.map(|content| hexadecimal(&content.hash)),
            },
            computed: ComputationRecord {
                context,
                prompt_precision: bits(how.prompt_precision()),
                cache_type: how.cache_type().to_string(),
                isa: model.isa().to_string(),
                tiles: content.map(|content| model.has_tiles(content)),
                threads: model.threads(),
            },
            template: source.map(|source| hexadecimal(&Sha256::digest(source))),
        }
    }

    /// Returns the record of an answer, whose prompt the chat template has built if `templated` is set.
    pub fn record(
        &self,
        request: Map<String, Value>,
        templated: bool,
        answer: RecordedAnswer,
    ) -> Record {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Record {
            format: FORMAT,
            program: Program::this(),
            date: date(now.as_secs()),
            model: self.model.clone(),
            computed: self.computed.clone(),
            lora: self.lora.clone(),
            template: self.template.clone().filter(|_| templated),
            request,
            answer,
        }
    }
}

/// Returns the content of the model's files; `None` if they are not there yet. (A file that cannot be read is an error of every step.)
pub fn content(model: &Model) -> Option<&ModelContent> {
    (!model.is_incoming()).then(|| model.content().ok()).flatten()
}

/// Returns bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bits of activations, as the option has them.
fn bits(precision: Precision) -> u64 {
    match precision {
        Precision::Bits8 => 8,
        Precision::Bits16 => 16,
    }
}

/// The precisions that a record may have.
const PRECISIONS: [Precision; 2] = [Precision::Bits8, Precision::Bits16];

/// Returns the text of tokens, with that of special ones.
pub fn text(tokens: &[u32], vocabulary: &Vocabulary) -> String {
    let mut bytes = Vec::new();
    tokens.iter().for_each(|id| vocabulary.tokenizer.decode_special(*id, &mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
