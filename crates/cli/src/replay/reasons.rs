//! The reasons why an answer may differ from a record: everything that the record says of its computation and that is different here.

use alight_kernels::{Isa, SimdLevel};
use alight_model::Model;

use crate::record::{Program, ReadRecord, RecordedModel, content, hexadecimal};
use crate::terminal_text::one_line;

/// Digits of a hash that are shown.
const DIGITS: usize = 12;
/// Characters of a text from a record that are shown.
const SHOWN: usize = 60;

/// The program and the model that compute this time.
pub struct ThisRun {
    program: Program,
    name: String,
    hash: Option<String>,
    isa: Isa,
}

impl ThisRun {
    /// This program, with this model.
    pub fn of(model: &Model) -> ThisRun {
        ThisRun {
            program: Program::this(),
            name: model.name().to_owned(),
            hash: content(model).map(|content| hexadecimal(&content.hash)),
            isa: model.isa(),
        }
    }

    /// Returns true if the model is known to be another than the record's.
    pub fn has_another_model(&self, record: &ReadRecord) -> bool {
        record.model.hash.is_some() && record.model.hash != self.hash
    }

    /// Returns what is different, each in a sentence; what is more likely to be the reason comes first.
    pub fn reasons(&self, record: &ReadRecord) -> Vec<String> {
        let all = [
            self.model(&record.model),
            self.arithmetic(record),
            self.kernels(record),
            self.version(record),
        ];
        all.into_iter().flatten().collect()
    }

    fn model(&self, recorded: &RecordedModel) -> Option<String> {
        let name = shown(&recorded.name);
        match (&recorded.hash, &self.hash) {
            (Some(recorded), Some(hash)) if recorded == hash => None,
            (Some(hash), own) => Some(format!(
                "the model is another: '{name}' ({}) answered, this is '{}' ({})",
                digits(hash),
                one_line(&self.name),
                own.as_deref().map_or("unknown", digits),
            )),
            (None, _) => Some(format!(
                "the model may be another: the record has no hash of '{name}', which was still being fetched"
            )),
        }
    }

    fn arithmetic(&self, record: &ReadRecord) -> Option<String> {
        let (then, now) = (record.program.arithmetic, self.program.arithmetic);
        (then != now).then(|| format!("the arithmetic is another: version {then} then, {now} now"))
    }

    /// Kernels of all levels have the same bits, except for prompts in bf16.
    fn kernels(&self, record: &ReadRecord) -> Option<String> {
        let (then, now) = (record.isa.as_deref()?, self.isa.to_string());
        let is_bf16 = |isa: &str| isa == SimdLevel::Amx.to_string();
        (is_bf16(then) != is_bf16(&now)).then(|| {
            format!(
                "the kernels are others: {} then, {now} now; {} multiplies prompts in bf16",
                shown(then),
                SimdLevel::Amx
            )
        })
    }

    fn version(&self, record: &ReadRecord) -> Option<String> {
        let (then, now) = (&record.program, &self.program);
        let is_same = (&then.alight, &then.commit) == (&now.alight, &now.commit);
        (!is_same).then(|| {
            format!(
                "alight is another: {} ({}) then, {} ({}) now",
                shown(&then.alight),
                shown(&then.commit),
                now.alight,
                now.commit
            )
        })
    }
}

/// The first digits of a hash.
pub fn digits(hash: &str) -> &str {
    hash.get(..DIGITS)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .unwrap_or("unknown")
}

/// A text from a record, in which nothing drives a terminal.
pub fn shown(text: &str) -> String {
    let line = one_line(text);
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.into_owned(),
    }
}
