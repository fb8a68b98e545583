//! The options of an answer that the fields of a body set, whatever the body's prompt is: for the lines of `alight batch`, and for
//! records of answers, whose request is such a body.

use alight_chat::body::declared::OF_VLLM;
use alight_chat::body::fields::Fields;
use alight_chat::body::options;
use alight_chat::body::refusal::Refusal;
use alight_chat::grammar::{self, AnswerRules, Calls, Grammars, Held, NotHeld};
use alight_model::SamplerOptions;
use serde_json::{Map, Value, json};

/// OpenAI's fields that do not change an answer.
const IGNORED: [&str; 8] = [
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "stream_options",
];

/// Values for options that a body leaves out.
#[derive(Clone, Debug)]
pub struct OptionDefaults {
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<Vec<String>>,
    /// Maximum tokens of an answer.
    pub max_tokens: usize,
    /// Ignore the end-of-text token.
    pub ignore_eos: bool,
}

/// The field of a body that constrains an answer: its name and its value.
pub type ConstraintField = (&'static str, Value);

/// The options of an answer.
pub struct BodyOptions {
    /// How tokens are chosen.
    pub sampling: SamplerOptions,
    /// Texts that break sequences for DRY, if they are not the usual ones.
    pub breakers: Option<Vec<String>>,
    /// Maximum tokens of the answer.
    pub max_tokens: usize,
    /// Ignore the end-of-text token.
    pub ignore_eos: bool,
    /// Constrained output.
    pub held: Option<Held>,
    /// The field that constrains it.
    pub constraint: Option<ConstraintField>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
}

impl BodyOptions {
    /// Takes the options of an answer with these calls, and refuses all fields that are left then.
    ///
    /// # Errors
    /// A field is invalid, or requests something unsupported.
    pub fn take(
        mut fields: Fields,
        calls: Calls<'_>,
        grammars: &Grammars,
        defaults: &OptionDefaults,
    ) -> Result<BodyOptions, NotHeld> {
        let (sampling, max_tokens) =
            options::sampling(&mut fields, &defaults.sampling, defaults.max_tokens)?;
        let breakers = options::sequence_breakers(&mut fields)?;
        let breakers = breakers.or_else(|| defaults.breakers.clone());
        let (mut held, mut constraint) = (None, None);
        if let Some((param, wanted)) = grammar::requested(&mut fields)? {
            constraint = Some(wanted.field());
            held = grammar::hold(&param, wanted, calls, grammars)?;
        }
        let ignore_eos = fields.truth("ignore_eos")?.unwrap_or(defaults.ignore_eos);
        let ignore_eos = ignore_eos && AnswerRules::of(held.as_ref()).past_end;
        let stops = options::stops(&mut fields)?;
        refuse_unsupported(&mut fields)?;
        fields.ignore(&IGNORED);
        OF_VLLM.iter().for_each(|declared| fields.ignore(&[declared.name]));
        fields.finish()?;
        Ok(BodyOptions { sampling, breakers, max_tokens, ignore_eos, held, constraint, stops })
    }
}

/// Refuses fields that would change an answer and are not supported.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), Refusal> {
    let is = |expected: Value| move |value: &Value| *value == expected;
    let zero = |value: &Value| value.as_f64() == Some(0.0);
    let no_probabilities = "log-probabilities are not returned";
    fields.only("n", is(json!(1)), "one answer to a line: repeat the line with another seed")?;
    fields.only("best_of", is(json!(1)), "one answer to a line")?;
    fields.only("stream", is(json!(false)), "answers of a batch are not streamed")?;
    fields.only("logprobs", |v| *v == json!(false), no_probabilities)?;
    fields.only("top_logprobs", zero, no_probabilities)?;
    fields.only("parallel_tool_calls", is(json!(true)), "the number of calls cannot be limited")?;
    let empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
    fields.only("logit_bias", empty, "biases of tokens are not supported")?;
    fields.only("echo", is(json!(false)), "the prompt is not returned with the answer")?;
    options::refuse_unsupported(fields)
}

/// Returns a list of token ids; `None` if it is no list of whole numbers, or empty.
///
/// # Errors
/// A number is no id.
pub fn token_ids(value: &Value) -> Option<Result<Vec<u32>, Refusal>> {
    let items = value.as_array().filter(|items| !items.is_empty())?;
    let ids = items.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()?;
    let ids: Result<Vec<u32>, _> = ids.into_iter().map(u32::try_from).collect();
    Some(ids.map_err(|_| Refusal::invalid("prompt", "a token's id is too large")))
}
