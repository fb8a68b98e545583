//! The options of an answer under llama-server's names, for `/props` and `generation_settings`.

use alight_chat::body::declared::{REFUSED, Use};
use alight_model::{Request, SamplerOptions};
use serde_json::{Map, Value, json};

/// llama-server's number for a seed that differs from request to request.
const ANY_SEED: u32 = u32::MAX;
/// The stages in which a token is chosen, in their order.
const STAGES: [&str; 5] = ["penalties", "top_k", "top_p", "min_p", "temperature"];

/// The options by which tokens are chosen; `seed` is `None` if each request has its own.
pub(super) fn of_sampling(options: &SamplerOptions, seed: Option<u64>) -> Map<String, Value> {
    let numbers = SamplerOptions::NUMBERS.iter();
    let mut settings: Map<String, Value> =
        numbers.map(|number| (number.name.to_owned(), (number.get)(options).into())).collect();
    settings.extend([
        ("seed".to_owned(), seed.unwrap_or(ANY_SEED.into()).into()),
        ("top_k".to_owned(), options.top_k.into()),
        ("min_keep".to_owned(), options.min_keep.into()),
        ("repeat_last_n".to_owned(), or_all(options.repeat_last_n)),
        ("samplers".to_owned(), json!(STAGES)),
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
    let mut settings = of_sampling(&request.sampling, Some(request.sampling.seed));
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
            ("typical_p", json!(1)),
            ("logit_bias", json!([{"token": 3, "bias": null}])),
        ] {
            assert_eq!(settings[name], wanted, "{name}");
        }
        assert_eq!(of_sampling(&request.sampling, None)["seed"], u32::MAX);
    }
}
