//! The request of a record: a body as `alight batch` reads it, with every option that has a number, the prompt as tokens, and what
//! constrains the answer.

use alight_model::{SamplerCount, SamplerNumber, SamplerOptions};
use alight_text::output::Format;
use serde_json::{Map, Value};

use crate::body_options::ConstraintField;

/// The field that has a grammar begin after the thinking that the prompt has opened.
pub const AFTER_THINKING: &str = "after_thinking";
/// The field of the tools that an answer may call in place of the JSON that it is held to, and in its thinking.
pub const TOOLS: &str = "tools";
/// The field of the notation of thinking and calls, if it is not the model's own.
pub const TOOL_FORMAT: &str = "tool_format";

/// The constraints on the tokens of an answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerConstraints {
    /// The field of a schema or grammar.
    pub constraint: Option<ConstraintField>,
    /// True if that begins after the thinking that the prompt has opened.
    pub chat: bool,
    /// The maximum number of tokens of thinking.
    pub thinking_budget: Option<usize>,
    /// The tools of the conversation.
    pub tools: Option<Vec<Value>>,
    /// The notation of thinking and calls that was used in place of the model's own.
    pub tool_format: Option<Format>,
}

/// The parts of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    pub prompt: &'a [u32],
    pub sampling: &'a SamplerOptions,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<&'a [String]>,
    pub max_tokens: usize,
    pub ignore_eos: bool,
    pub stops: &'a [String],
    pub limits: &'a AnswerConstraints,
}

impl RequestParts<'_> {
    /// Returns it as a body. The prompt comes last, since it is long.
    pub fn body(&self) -> Map<String, Value> {
        let mut body = Map::new();
        let mut put = |name: &str, value: Value| drop(body.insert(name.to_owned(), value));
        for SamplerNumber { name, get, .. } in &SamplerOptions::NUMBERS {
            put(name, short(get(self.sampling)).into());
        }
        for SamplerCount { name, all, get, .. } in &SamplerOptions::COUNTS {
            put(name, or_minus_one(get(self.sampling), *all == Some(usize::MAX)));
        }
        put("seed", self.sampling.seed.into());
        put("max_tokens", or_minus_one(self.max_tokens, true));
        put("ignore_eos", self.ignore_eos.into());
        put("stop", self.stops.into());
        if let Some(breakers) = self.breakers {
            put("dry_sequence_breakers", breakers.into());
        }
        let AnswerConstraints { constraint, chat, thinking_budget, tools, tool_format } =
            self.limits;
        if let Some((name, value)) = constraint {
            put(name, value.clone());
            put(AFTER_THINKING, (*chat).into());
        }
        if let Some(tokens) = thinking_budget {
            put(alight_chat::body::thinking::BUDGET, (*tokens).into());
        }
        let matters = constraint.is_some() || thinking_budget.is_some();
        if let Some(tools) = tools.as_ref().filter(|_| matters) {
            put(TOOLS, tools.clone().into());
        }
        if let Some(format) = tool_format.filter(|_| matters) {
            put(TOOL_FORMAT, format.name().into());
        }
        put("prompt", self.prompt.into());
        body
    }
}

/// Returns the number that is written as `x` is and becomes `x` again: 0.1, not 0.10000000149011612.
fn short(x: f32) -> f64 {
    let decimal = x.to_string().parse::<f64>().unwrap_or(x.into());
    if decimal as f32 == x { decimal } else { x.into() }
}

/// Returns a count; as −1 if it is the greatest of all and that stands for it.
fn or_minus_one(n: usize, stands: bool) -> Value {
    if stands && n == usize::MAX { (-1).into() } else { n.into() }
}

#[cfg(test)]
mod tests {
    use alight_chat::body::fields::Fields;
    use alight_chat::body::options;

    use super::*;

    #[test]
    fn the_body_has_every_option_and_is_read_as_it_was() {
        let mut sampling = SamplerOptions { seed: u64::MAX, ..SamplerOptions::default() };
        for (i, number) in SamplerOptions::NUMBERS.iter().enumerate() {
            let x = [0.1, 1.0, 0.1 + 0.2, 1.5, 2.7e-9];
            let fits = x.iter().cycle().skip(i).find(|x| number.numbers.hold(**x));
            (number.set)(&mut sampling, *fits.unwrap());
        }
        for (i, count) in SamplerOptions::COUNTS.iter().enumerate() {
            (count.set)(&mut sampling, count.all.unwrap_or(i % 3));
        }
        let breakers = ["\n".to_owned(), "a".to_owned()];
        let stops = ["x".to_owned()];
        for (breakers, max_tokens) in [(None, usize::MAX), (Some(&breakers[..]), 7)] {
            let parts = RequestParts {
                prompt: &[1, 70_000],
                sampling: &sampling,
                breakers,
                max_tokens,
                ignore_eos: true,
                stops: &stops,
                limits: &AnswerConstraints::default(),
            };
            let mut fields = Fields::new(parts.body());
            let taken = options::sampling(&mut fields, &SamplerOptions::default(), 3).unwrap();
            assert_eq!(taken, (sampling, max_tokens));
            assert_eq!(
                options::sequence_breakers(&mut fields).unwrap().as_deref(),
                breakers,
                "{breakers:?}"
            );
            assert_eq!(options::stops(&mut fields).unwrap(), stops);
            assert_eq!(fields.left().collect::<Vec<_>>(), ["ignore_eos", "prompt"]);
        }
    }

    #[test]
    fn numbers_are_written_as_people_write_them() {
        for (x, text) in [(0.8, "0.8"), (0.05, "0.05"), (1.0, "1.0"), (1e-9, "1e-9")] {
            assert_eq!(Value::from(short(x)).to_string(), text);
        }
        for bits in (0..0x7f80_0000_u32).step_by(65_537) {
            let x = f32::from_bits(bits);
            assert_eq!(short(x) as f32, x);
        }
    }
}
