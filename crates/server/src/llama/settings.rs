//! The options of an answer under llama-server's names, for `/props` and `generation_settings`.

use alight_chat::body::declared::{REFUSED, Use};
use alight_model::{Request, SamplerOptions, SamplerStages};
use serde_json::{Map, Value, json};

/// llama-server's number for a seed that differs from request to request.
const ANY_SEED: u32 = u32::MAX;

/// The options by which tokens are chosen; `breakers` is `None` for the usual ones, and `seed` if each request has its own.
pub(super) fn of_sampling(
    options: &SamplerOptions,
    breakers: Option<&[String]>,
    seed: Option<u64>,
) -> Map<String, Value> {
    let numbers = SamplerOptions::NUMBERS.iter();
    let mut settings: Map<String, Value> =
        numbers.map(|number| (number.name.to_owned(), (number.get)(options).into())).collect();
    let counts = SamplerOptions::COUNTS.iter();
    settings.extend(counts.map(|count| (count.name.to_owned(), or_all((count.get)(options)))));
    let breakers = breakers.map_or(json!(SamplerOptions::DRY_SEQUENCE_BREAKERS), |all| json!(all));
    settings.extend([
        ("seed".to_owned(), seed.unwrap_or(ANY_SEED.into()).into()),
        ("dry_sequence_breakers".to_owned(), breakers),
        ("samplers".to_owned(), json!(SamplerStages::NAMES)),
    ]);
    // Stages that are always off.
    for declared in REFUSED {
        if let Use::Refused { unless: [off], .. } = declared.used
            && let Ok(off @ Value::Number(_)) = serde_json::from_str(off)
        {
            settings.insert(declared.name.to_owned(), off);
        }
    }
    settings
}

/// The options of a request.
pub(super) fn of_request(request: &Request) -> Map<String, Value> {
    let breakers = request.dry_sequence_breakers.as_deref();
    let mut settings = of_sampling(&request.sampling, breakers, Some(request.sampling.seed));
    let most = or_all(request.max_tokens);
    // JSON has no −∞, which llama-server writes as null.
    let biases = request.logit_bias.iter();
    let biases = biases.map(|(token, bias)| json!({"token": token, "bias": bias}));
    settings.extend([
        ("max_tokens".to_owned(), most.clone()),
        ("n_predict".to_owned(), most),
        ("ignore_eos".to_owned(), request.ignore_eos.into()),
        ("logit_bias".to_owned(), biases.collect()),
        ("post_sampling_probs".to_owned(), false.into()),
    ]);
    settings
}

/// A number, of which the greatest means all, as llama.cpp writes it.
fn or_all(n: usize) -> Value {
    match n {
        usize::MAX => json!(-1),
        n => n.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_names_and_numbers_of_requests() {
        let sampling =
            SamplerOptions { seed: 7, repeat_last_n: usize::MAX, ..SamplerOptions::default() };
        let logit_bias = vec![(3, f32::NEG_INFINITY)];
        let request =
            Request { sampling, logit_bias, max_tokens: usize::MAX, ..Request::default() };
        let settings = Value::from(of_request(&request));
        for (name, wanted) in [
            ("seed", json!(7)),
            ("n_predict", json!(-1)),
            ("repeat_last_n", json!(-1)),
            ("top_k", json!(40)),
            ("mirostat", json!(0)),
            ("dry_allowed_length", json!(2)),
            ("dry_sequence_breakers", json!(["\n", ":", "\"", "*"])),
            ("top_n_sigma", json!(-1.0)),
            ("typical_p", json!(1)),
            ("logit_bias", json!([{"token": 3, "bias": null}])),
        ] {
            assert_eq!(settings[name], wanted, "{name}");
        }
        let breakers = ["a".to_owned()];
        let settings = of_sampling(&request.sampling, Some(&breakers), None);
        assert_eq!(
            (&settings["seed"], &settings["dry_sequence_breakers"]),
            (&json!(u32::MAX), &json!(["a"]))
        );
    }
}
