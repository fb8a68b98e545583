//! Options for sampling an answer, and for its end.

use alight_model::{SamplerNumber, SamplerOptions, SamplerStages};
use alight_text::infill::GapLimits;
use serde_json::Value;

use super::declared::REFUSED;
use super::fields::{Fields, whole};
use super::refusal::Refusal;

/// The reason why log probabilities are not available here.
pub const NO_LOGPROBS: &str =
    "/v1/chat/completions and /v1/completions tell how likely tokens were";

/// Maximum number of texts that break sequences, and maximum bytes of each: they are searched for in all tokens.
pub const BREAKERS: (usize, usize) = (32, 40);

/// Maximum number of stop texts, and maximum bytes of each.
const STOPS: (usize, usize) = (64, 1024);

/// Takes the sampling options and the maximum number of tokens.
///
/// # Errors
/// A value is invalid.
pub fn sampling(
    fields: &mut Fields,
    defaults: &SamplerOptions,
    max_tokens: usize,
) -> Result<(SamplerOptions, usize), Refusal> {
    let mut options = *defaults;
    for SamplerNumber { name, also, numbers, set, .. } in &SamplerOptions::NUMBERS {
        for name in [name].into_iter().chain(*also) {
            if let Some(x) = fields.number(name, numbers.expected(), |x| numbers.hold(x))? {
                set(&mut options, x);
            }
        }
    }
    for count in &SamplerOptions::COUNTS {
        let read = |value| count.read(whole(&value)?);
        if let Some(n) = fields.read(count.name, &count.expected(), read)? {
            (count.set)(&mut options, n);
        }
    }
    let seed = fields.read("seed", "a whole number of 64 bits", |value| match whole(&value)? {
        // No seed, as in llama.cpp and Ollama; other negative numbers are ordinary seeds.
        -1 => Some(None),
        seed => match u64::try_from(seed) {
            Ok(seed) => Some(Some(seed)),
            Err(_) => i64::try_from(seed).ok().map(|seed| Some(seed as u64)),
        },
    })?;
    options.seed = seed.flatten().unwrap_or(options.seed);
    if let Some(stages) = stages(fields)? {
        stages.keep(&mut options);
    }
    let mut most = |name| fields.count_or_all(name, usize::MAX);
    let given = match (most("max_completion_tokens")?, most("max_tokens")?) {
        (Some(one), Some(other)) if one != other => {
            let message = "max_completion_tokens is another number: give one of them";
            return Err(Refusal::invalid("max_tokens", message));
        }
        (one, other) => one.or(other),
    };
    // llama.cpp's own name takes precedence there, too.
    let max_tokens = most("n_predict")?.or(given).unwrap_or(max_tokens);
    Ok((options, max_tokens))
}

/// Takes the stages in which tokens are chosen: a list of their names, or a text of their letters.
fn stages(fields: &mut Fields) -> Result<Option<SamplerStages>, Refusal> {
    let what = "a list of names, or a text of letters";
    let read = fields.read("samplers", what, |value| match value {
        Value::String(letters) => Some(SamplerStages::of_letters(&letters)),
        Value::Array(names) => {
            let names: Option<Vec<&str>> = names.iter().map(Value::as_str).collect();
            Some(SamplerStages::of_names(names?))
        }
        _ => None,
    })?;
    read.transpose().map_err(|why| Refusal::unsupported("samplers", why.to_string()))
}

/// Takes the texts that break sequences for DRY; `None` if there are none in the request.
///
/// # Errors
/// There are too many, or one is too long.
pub fn sequence_breakers(fields: &mut Fields) -> Result<Option<Vec<String>>, Refusal> {
    let (most, longest) = BREAKERS;
    let what = format!("a list of at most {most} texts, of at most {longest} bytes each");
    fields.read("dry_sequence_breakers", &what, |value| match value {
        Value::Array(texts) if texts.len() <= most => {
            let texts = texts.into_iter().map(|text| text.as_str().map(str::to_owned));
            let texts: Option<Vec<String>> = texts.collect();
            texts.filter(|texts| texts.iter().all(|text| text.len() <= longest))
        }
        _ => None,
    })
}

/// Maximum number of tokens around a gap.
const AROUND_GAP: usize = 2048;

/// The limits of the text around a gap that is filled with at most `max_tokens` tokens: as many tokens as llama-server computes at
/// once; other files get the rest of the context, without the answer.
pub fn around_gap(context: usize, max_tokens: usize) -> GapLimits {
    // At most a quarter of the context is reserved for the answer, however long it may become.
    let total = context - max_tokens.min(context / 4);
    GapLimits { around: AROUND_GAP.min(total), total }
}

/// Takes the stop texts.
///
/// # Errors
/// There are too many, or one is too long.
pub fn stops(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let (most, longest) = STOPS;
    let what = format!("a string or a list of at most {most}, of at most {longest} bytes each");
    let stops = fields.read("stop", &what, |value| {
        let mut stops = match value {
            Value::String(stop) => vec![stop],
            Value::Array(items) if items.len() <= most => {
                let stops = items.into_iter().map(|item| item.as_str().map(str::to_owned));
                stops.collect::<Option<Vec<String>>>()?
            }
            _ => return None,
        };
        // An empty text means none.
        stops.retain(|stop| !stop.is_empty());
        stops.iter().all(|stop| stop.len() <= longest).then_some(stops)
    })?;
    Ok(stops.unwrap_or_default())
}

/// Refuses fields that would change an answer and are supported neither by the server nor by `alight batch`.
///
/// # Errors
/// A field requests such a change.
pub fn refuse_unsupported(fields: &mut Fields) -> Result<(), Refusal> {
    for declared in REFUSED {
        if let Some(value) = fields.any(declared.name) {
            declared.check(&value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(body: &Value) -> Fields {
        Fields::new(body.as_object().unwrap().clone())
    }

    #[test]
    fn minus_one_is_what_clients_mean_by_it_and_whole_numbers_may_be_written_as_others() {
        let defaults = SamplerOptions { seed: 7, ..SamplerOptions::default() };
        let taken = |body: Value| sampling(&mut fields(&body), &defaults, 9);
        let body = json!({"top_k": -1, "repeat_last_n": -1, "seed": -1, "max_tokens": -1});
        let (options, most) = taken(body).unwrap();
        assert_eq!((options.top_k, options.repeat_last_n), (0, usize::MAX));
        assert_eq!((options.seed, most), (7, usize::MAX));
        let (options, most) =
            taken(json!({"top_k": 40.0, "seed": 3.0, "max_tokens": 5.0})).unwrap();
        assert_eq!((options.top_k, options.seed, most), (40, 3, 5));
        for (seed, wanted) in [(json!(-2), u64::MAX - 1), (json!(u64::MAX), u64::MAX)] {
            assert_eq!(taken(json!({"seed": seed})).unwrap().0.seed, wanted);
        }
        assert_eq!(taken(json!({"n_predict": 3, "max_tokens": 5})).unwrap().1, 3);
        for (name, wrong) in [
            ("top_k", json!(-2)),
            ("top_k", json!(1.5)),
            ("repeat_last_n", json!(1e300)),
            ("seed", json!(1e30)),
            ("max_tokens", json!(-2)),
        ] {
            assert_eq!(taken(json!({name: wrong})).unwrap_err().param.as_deref(), Some(name));
        }
    }

    #[test]
    fn all_numbers_of_the_sampler_are_taken_by_their_names() {
        let taken = |body: Value| sampling(&mut fields(&body), &SamplerOptions::default(), 9);
        let body = json!({
            "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": -1, "xtc_probability": 0.5,
            "xtc_threshold": 0.2, "top_n_sigma": 1.5, "mirostat": 2.0, "mirostat_tau": 4, "mirostat_eta": 0.2,
        });
        let wanted = SamplerOptions {
            dry_multiplier: 0.8,
            dry_base: 2.0,
            dry_allowed_length: 3,
            dry_penalty_last_n: usize::MAX,
            xtc_probability: 0.5,
            xtc_threshold: 0.2,
            top_n_sigma: 1.5,
            mirostat: 2,
            mirostat_tau: 4.0,
            mirostat_eta: 0.2,
            ..SamplerOptions::default()
        };
        assert_eq!(taken(body).unwrap().0, wanted);
        for (name, wrong) in [
            ("mirostat", json!(3)),
            ("dry_base", json!(0.5)),
            ("dry_multiplier", json!(-1)),
            ("dry_allowed_length", json!(-1)),
            ("xtc_probability", json!(1.5)),
            ("mirostat_tau", json!("5")),
            ("samplers", json!([1])),
            ("samplers", json!(["temperature", "top_k"])),
            ("samplers", json!("z")),
        ] {
            assert_eq!(taken(json!({name: wrong})).unwrap_err().param.as_deref(), Some(name));
        }
        let (options, _) = taken(json!({"samplers": ["top_k"], "temperature": 0.3})).unwrap();
        assert_eq!((options.top_k, options.top_p, options.temperature), (40, 1.0, 1.0));
        assert_eq!(taken(json!({"samplers": "edskypmxt"})).unwrap().0, SamplerOptions::default());
    }

    #[test]
    fn texts_break_sequences_if_they_are_few_and_short() {
        let taken =
            |texts: Value| sequence_breakers(&mut fields(&json!({"dry_sequence_breakers": texts})));
        assert_eq!(taken(json!(null)), Ok(None));
        assert_eq!(taken(json!([])), Ok(Some(vec![])));
        assert_eq!(taken(json!(["\n", "a"])).unwrap().unwrap(), ["\n", "a"]);
        for wrong in [json!("\n"), json!([1]), json!(["a".repeat(41)]), json!(vec!["a"; 33])] {
            let refusal = taken(wrong).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some("dry_sequence_breakers"));
            assert!(refusal.message.contains("at most 32 texts"), "{}", refusal.message);
        }
    }

    #[test]
    fn there_are_as_many_stop_texts_as_the_message_says() {
        let taken = |n: usize| {
            let all: Vec<String> = (0..n).map(|i| i.to_string()).collect();
            stops(&mut fields(&json!({"stop": all})))
        };
        assert_eq!(taken(64).unwrap().len(), 64);
        let refusal = taken(65).unwrap_err();
        assert_eq!(refusal.param.as_deref(), Some("stop"));
        assert!(refusal.message.contains("a list of 65, expected"), "{}", refusal.message);
        assert!(refusal.message.contains("at most 64,"), "{}", refusal.message);
    }

    #[test]
    fn an_empty_text_ends_no_answer() {
        for (stop, wanted) in [
            (json!(""), &[][..]),
            (json!([]), &[]),
            (json!(["", "a"]), &["a"]),
            (json!("a"), &["a"]),
        ] {
            assert_eq!(stops(&mut fields(&json!({"stop": stop}))).unwrap(), wanted);
        }
    }

    #[test]
    fn vllm_s_fields_are_refused_unless_they_ask_for_nothing() {
        let nothing = json!({"min_tokens": 0, "stop_token_ids": [], "bad_words": null});
        assert_eq!(refuse_unsupported(&mut fields(&nothing)), Ok(()));
        for (name, value) in [
            ("min_tokens", json!(3)),
            ("stop_token_ids", json!([7])),
            ("allowed_token_ids", json!([7])),
            ("bad_words", json!(["a"])),
            ("truncate_prompt_tokens", json!(9)),
        ] {
            let refusal = refuse_unsupported(&mut fields(&json!({name: value}))).unwrap_err();
            assert_eq!((refusal.code, refusal.param.as_deref()), ("unsupported", Some(name)));
        }
    }

    #[test]
    fn ways_to_choose_tokens_that_are_not_here_are_refused_unless_they_are_off() {
        let off =
            json!({"dynatemp_range": 0, "typical_p": 1.0, "tfs_z": 1, "adaptive_target": -1.0});
        assert_eq!(refuse_unsupported(&mut fields(&off)), Ok(()));
        for (name, value) in [("dynatemp_range", 0.5), ("adaptive_target", 0.8), ("typical_p", 0.5)]
        {
            let refusal = refuse_unsupported(&mut fields(&json!({name: value}))).unwrap_err();
            assert_eq!((refusal.code, refusal.param.as_deref()), ("unsupported", Some(name)));
        }
    }
}
