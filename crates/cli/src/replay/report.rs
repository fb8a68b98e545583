//! The results of a replay, for people and as JSON.

use alight_model::Logprobs;
use alight_text::Vocabulary;
use serde::Serialize;

use super::compare::{AnswerComparison, ComputedToken, Difference};
use crate::terminal_text::{one_line, visible};
use crate::units;

/// The last reason where nothing else is known.
const NO_REASON: &str = "nothing of the record is different here, neither the model nor the arithmetic: please report it, with the record";

/// The place of a record in its file.
pub struct Place {
    /// `None` if the file is one record.
    pub line: Option<u64>,
    pub custom_id: Option<String>,
}

/// The results of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReplaySummary {
    pub equal: usize,
    pub differing: usize,
    /// Records that could not be replayed.
    pub unreadable: usize,
    /// Lines of a batch that have no answer.
    pub failed: usize,
}

impl ReplaySummary {
    /// Counts a comparison.
    pub fn count(&mut self, comparison: &AnswerComparison) {
        *(if comparison.difference.is_none() { &mut self.equal } else { &mut self.differing }) += 1;
    }

    /// The number of lines.
    pub fn all(&self) -> usize {
        self.equal + self.differing + self.unreadable + self.failed
    }

    /// Returns it as a line.
    pub fn line(&self) -> String {
        let ReplaySummary { equal, differing, unreadable, failed } = *self;
        let records = units::so_many(self.all(), "record");
        let differ = if differing == 1 { "differs" } else { "differ" };
        let mut text = format!("{records}: {equal} equal, {differing} {differ}");
        for (n, what) in [(unreadable, "cannot be replayed"), (failed, "without an answer")] {
            if n > 0 {
                text += &format!(", {n} {what}");
            }
        }
        text + "\n"
    }
}

/// Returns the result of a record in lines: what it is, and for an answer that differs why it may, and the likeliest tokens if they are
/// known. `place` is shown where there are several records.
pub fn text(
    place: Option<&Place>,
    comparison: &AnswerComparison,
    why: &[String],
    vocabulary: &Vocabulary,
) -> String {
    let place = place.map_or_else(String::new, Place::in_words);
    let Some(difference) = &comparison.difference else {
        return format!("{place}equal: {}\n", units::so_many(comparison.same, "token"));
    };
    let mut text = format!(
        "{place}differs at token {}: recorded {}, now {}\n",
        comparison.same + 1,
        difference.recorded.map_or("the end".to_owned(), |id| token(id, vocabulary)),
        now(difference, vocabulary)
    );
    let reasons = why.iter().map(String::as_str);
    let reasons = reasons.chain(why.is_empty().then_some(NO_REASON));
    reasons.for_each(|reason| text += &format!("  {reason}\n"));
    let logprobs = difference.now.as_ref().and_then(|now| Some((now.id, now.logprobs.as_deref()?)));
    if let Some((id, logprobs)) = logprobs {
        text += "  log-probabilities:\n";
        let own = (!logprobs.top.iter().any(|top| top.0 == id)).then_some((id, logprobs.chosen));
        for (top, logprob) in logprobs.top.iter().copied().chain(own) {
            let which = match (difference.recorded == Some(top), top == id) {
                (true, _) => "  (recorded)",
                (false, true) => "  (now)",
                (false, false) => "",
            };
            text += &format!("  {logprob:9.4}  {}{which}\n", token(top, vocabulary));
        }
    }
    text
}

/// The computed token, as text.
fn now(difference: &Difference, vocabulary: &Vocabulary) -> String {
    match &difference.now {
        None => "no token, since the context is full".to_owned(),
        Some(now) if difference.ends => format!("the end by {}", token(now.id, vocabulary)),
        Some(now) => token(now.id, vocabulary),
    }
}

/// A token, as text: its id, and what it stands for.
fn token(id: u32, vocabulary: &Vocabulary) -> String {
    let mut bytes = Vec::new();
    vocabulary.tokenizer.decode_special(id, &mut bytes);
    format!("{id} '{}'", visible(&bytes))
}

/// The line of `--json`. Fields are only ever added.
#[derive(Debug, Serialize)]
pub struct ComparisonLine<'a> {
    line: Option<u64>,
    custom_id: Option<&'a str>,
    equal: bool,
    /// The number of tokens that are the same.
    tokens: usize,
    difference: Option<DifferenceFields>,
    /// Everything of the record that is different here, and may be the reason.
    why: &'a [String],
    /// Of each computed token, if they were requested.
    logprobs: Vec<TokenFields>,
}

#[derive(Debug, Serialize)]
struct DifferenceFields {
    /// From 1.
    token: usize,
    /// Null for the end of the answer.
    recorded: Option<TokenFields>,
    /// Null if the context is full.
    now: Option<TokenFields>,
    /// True if that token ends the answer.
    ends: bool,
}

#[derive(Debug, Serialize)]
struct TokenFields {
    id: u32,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprob: Option<f32>,
    /// The likeliest tokens in its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    top: Vec<TokenFields>,
}

impl TokenFields {
    fn of(id: u32, logprob: Option<f32>, vocabulary: &Vocabulary) -> TokenFields {
        let mut bytes = Vec::new();
        vocabulary.tokenizer.decode_special(id, &mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        TokenFields { id, text, logprob, top: Vec::new() }
    }

    fn computed(token: &ComputedToken, vocabulary: &Vocabulary) -> TokenFields {
        let Some(Logprobs { chosen, top }) = token.logprobs.as_deref() else {
            return TokenFields::of(token.id, None, vocabulary);
        };
        let top = top.iter().map(|(id, logprob)| TokenFields::of(*id, Some(*logprob), vocabulary));
        TokenFields { top: top.collect(), ..TokenFields::of(token.id, Some(*chosen), vocabulary) }
    }
}

/// Returns the result of a record as a line of JSON.
pub fn json<'a>(
    place: &'a Place,
    comparison: &AnswerComparison,
    why: &'a [String],
    vocabulary: &Vocabulary,
) -> ComparisonLine<'a> {
    let difference = comparison.difference.as_ref().map(|difference| DifferenceFields {
        token: comparison.same + 1,
        recorded: difference.recorded.map(|id| TokenFields::of(id, None, vocabulary)),
        now: difference.now.as_ref().map(|now| TokenFields::computed(now, vocabulary)),
        ends: difference.ends,
    });
    let logprobs = comparison.tokens.iter();
    ComparisonLine {
        line: place.line,
        custom_id: place.custom_id.as_deref(),
        equal: comparison.difference.is_none(),
        tokens: comparison.same,
        difference,
        why,
        logprobs: logprobs.map(|token| TokenFields::computed(token, vocabulary)).collect(),
    }
}

impl Place {
    /// Returns it as the beginning of a line.
    pub fn in_words(&self) -> String {
        let Some(line) = self.line else { return String::new() };
        match &self.custom_id {
            Some(id) => format!("line {line} ({}): ", one_line(id)),
            None => format!("line {line}: "),
        }
    }
}
