//! How an answer is chosen, and where it ends.

use alight_model::{Numbers, SamplerOptions};
use serde_json::{Value, json};

use super::fields::Fields;
use super::refusal::Refusal;

/// Most texts that end an answer, and most bytes of one.
const STOPS: (usize, usize) = (16, 1024);

/// Takes how tokens are chosen, and how many at most.
///
/// # Errors
/// A number that makes no sense.
pub fn sampling(
    fields: &mut Fields,
    defaults: &SamplerOptions,
    max_tokens: usize,
) -> Result<(SamplerOptions, usize), Refusal> {
    let mut options = *defaults;
    let mut set = |to: &mut f32, name, numbers: Numbers| {
        let given = fields.number(name, numbers.expected(), |x| numbers.hold(x))?;
        *to = given.unwrap_or(*to);
        Ok::<(), Refusal>(())
    };
    set(&mut options.temperature, "temperature", SamplerOptions::TEMPERATURE)?;
    set(&mut options.top_p, "top_p", SamplerOptions::TOP_P)?;
    set(&mut options.min_p, "min_p", SamplerOptions::MIN_P)?;
    for name in ["repeat_penalty", "repetition_penalty"] {
        set(&mut options.repeat_penalty, name, SamplerOptions::REPEAT_PENALTY)?;
    }
    options.top_k = fields.count("top_k")?.unwrap_or(options.top_k);
    options.repeat_last_n = fields.count("repeat_last_n")?.unwrap_or(options.repeat_last_n);
    let seed = fields.read("seed", "a whole number of 64 bits", |value| {
        // Those below 0 are seeds like any other.
        value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64))
    })?;
    options.seed = seed.unwrap_or(options.seed);
    let max_tokens = match (fields.count("max_completion_tokens")?, fields.count("max_tokens")?) {
        (Some(one), Some(other)) if one != other => {
            let message =
                format!("it is {other}, and max_completion_tokens is {one}: give one of them");
            return Err(Refusal::invalid("max_tokens", message));
        }
        (one, other) => one.or(other).unwrap_or(max_tokens),
    };
    Ok((options, max_tokens))
}

/// Takes the texts that end the answer.
///
/// # Errors
/// Too many, or too long ones.
pub fn stops(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let (most, longest) = STOPS;
    let what = format!("a string or a list of at most {most}, of 1 to {longest} bytes each");
    let stops = fields.read("stop", &what, |value| {
        let stops = match value {
            Value::String(stop) => vec![stop],
            Value::Array(items) if items.len() <= most => {
                let stops = items.into_iter().map(|item| item.as_str().map(str::to_owned));
                stops.collect::<Option<Vec<String>>>()?
            }
            _ => return None,
        };
        stops.iter().all(|stop| (1..=longest).contains(&stop.len())).then_some(stops)
    })?;
    Ok(stops.unwrap_or_default())
}

/// Refuses what would change an answer and is not here, neither in the server nor in `alight batch`.
///
/// # Errors
/// A field asks for it.
pub fn refuse_unsupported(fields: &mut Fields) -> Result<(), Refusal> {
    let is = |expected: Value| move |value: &Value| *value == expected;
    fields.only("modalities", is(json!(["text"])), "answers are text")?;
    fields.only("suffix", is(json!("")), "a text is continued at its end")
}
