//! Arbitrary configurations and lists of tensors: the result is a one-line error, or a network with
//! a rule for every tensor.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Case;
use crate::import::tensor::Rule;

const CASES: [&str; 6] =
    ["llama-3.1", "llama-yarn", "qwen3", "gemma2", "gemma3-pattern", "gemma3-pictures"];

fn value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        Just(json!(0)),
        Just(json!(1)),
        Just(json!(2)),
        Just(json!(-1)),
        Just(json!(1e-300)),
        Just(json!(1e300)),
        Just(json!(u64::MAX)),
        Just(json!(i64::MIN)),
        Just(json!(1u64 << 20)),
        Just(json!(1u64 << 30)),
        any::<f64>().prop_map(|float| json!(float)),
        (0..5000u32).prop_map(|small| json!(small)),
    ];
    let leaf = prop_oneof![
        number,
        any::<bool>().prop_map(Value::Bool),
        Just(Value::Null),
        "[a-z_\n\u{1b}é]{0,12}".prop_map(Value::String),
        Just(json!("sliding_attention")),
        Just(json!("llama3")),
        Just(json!("yarn")),
    ];
    let key = prop_oneof![
        Just("rope_type"),
        Just("factor"),
        Just("rope_theta"),
        Just("full_attention"),
        Just("sliding_attention"),
        Just("original_max_position_embeddings"),
        Just("low_freq_factor"),
        Just("high_freq_factor"),
    ];
    leaf.prop_recursive(2, 8, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map(key.clone(), inner, 0..5).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn nothing_panics_and_every_tensor_has_a_rule(
        name in prop::sample::select(&CASES[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..3),
        shape in prop::option::of((any::<prop::sample::Index>(), prop::collection::vec(any::<u64>(), 0..4))),
        inner in any::<bool>(),
    ) {
        let mut case = Case::named(name);
        for (index, value) in changes {
            let object = match case.config.get("text_config") {
                Some(_) if inner => &mut case.config["text_config"],
                _ => &mut case.config,
            };
            let keys: Vec<String> = object.as_object().unwrap().keys().cloned().collect();
            object[index.get(&keys)] = value;
        }
        if let Some((index, shape)) = shape {
            let index = index.index(case.tensors.len());
            case.tensors[index].1 = shape;
        }
        match case.read() {
            Ok(network) => {
                prop_assert_eq!(network.rules.len(), case.tensors.len());
                let has_reason = |rule: &Rule| !matches!(rule, Rule::Skip(""));
                prop_assert!(network.rules.iter().all(has_reason));
                prop_assert!(network.extra.iter().all(|(_, v)| v.iter().all(|f| f.is_finite())));
            }
            Err(error) => prop_assert!(!error.contains('\n') && error.len() < 900, "{}", error),
        }
    }
}
