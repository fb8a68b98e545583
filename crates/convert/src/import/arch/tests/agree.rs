//! Comparisons with the output of llama.cpp's `convert_hf_to_gguf.py` for the same folders
//! (recorded by `python -m evidence make hf-models --record`).

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use super::{Case, data};
use crate::import::tensor::{Entry, Rule};

/// Keys of the file itself, which are written elsewhere.
const OF_THE_FILE: [&str; 4] =
    ["general.architecture", "general.type", "general.file_type", "general.quantization_version"];

/// Returns an entry in the form that the script writes.
fn recorded(entry: &Entry) -> (&'static str, Value) {
    match entry {
        Entry::U32(value) => ("UINT32", (*value).into()),
        Entry::I32(value) => ("INT32", (*value).into()),
        Entry::F32(value) => ("FLOAT32", f64::from(*value).into()),
        Entry::Bool(value) => ("BOOL", (*value).into()),
        Entry::Bools(values) => ("ARRAY/BOOL", values.clone().into()),
        Entry::Str(value) => ("STRING", value.clone().into()),
        other => panic!("{other:?}"),
    }
}

/// Returns true for keys that alight writes and llama.cpp does not, by case.
fn is_known_difference(case: &str, key: &str) -> bool {
    match key {
        // llama.cpp writes none, and computes with its default.
        "gemma2.rope.freq_base" => true,
        // llama.cpp loses the layers with a sliding window unless every sixth layer is a full one.
        "gemma3.attention.sliding_window_pattern" => case == "gemma3-pattern",
        _ => false,
    }
}

#[test]
fn keys_and_tensors_are_those_of_llama_cpp() {
    let mut cases: Vec<String> = fs::read_dir(data(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".gguf.json").map(str::to_owned))
        .collect();
    cases.sort();
    assert!(cases.len() > 20, "{cases:?}");
    for name in cases {
        let case = Case::named(&name);
        let network = case.network();
        let expected: Value =
            serde_json::from_slice(&fs::read(data(&format!("{name}.gguf.json"))).unwrap()).unwrap();
        let keys = expected["keys"].as_object().unwrap();
        assert_eq!(keys["general.architecture"][1], network.architecture, "{name}");

        let theirs: Vec<_> = keys
            .iter()
            .filter(|(key, _)| !OF_THE_FILE.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value[0].as_str().unwrap(), value[1].clone()))
            .collect();
        let ours: Vec<_> = network
            .keys
            .iter()
            .filter(|(key, _)| !is_known_difference(&name, key))
            .map(|(key, entry)| {
                let (ty, value) = recorded(entry);
                (key.clone(), ty, value)
            })
            .collect();
        let sorted = |mut keys: Vec<(String, &'static str, Value)>| {
            // llama.cpp's code for Gemma 2 has its own order.
            if name.starts_with("gemma2") {
                keys.sort_by(|a, b| a.0.cmp(&b.0));
            }
            keys
        };
        let leak = |text: &str| -> &'static str { text.to_owned().leak() };
        let theirs = theirs.into_iter().map(|(key, ty, value)| (key, leak(ty), value)).collect();
        assert_eq!(sorted(ours), sorted(theirs), "{name}");

        let mut tensors = BTreeMap::new();
        for ((_, shape), rule) in case.tensors.iter().zip(&network.rules) {
            if let Rule::Take { name, .. } = rule {
                tensors.insert(name.clone(), shape.clone());
            }
        }
        for (name, values) in &network.extra {
            tensors.insert(name.clone(), vec![values.len() as u64]);
        }
        let theirs: BTreeMap<String, Vec<u64>> =
            serde_json::from_value(expected["tensors"].clone()).unwrap();
        assert_eq!(tensors, theirs, "{name}");
        let freqs: Vec<Vec<f32>> = serde_json::from_value(expected["rope_freqs"].clone()).unwrap();
        let extra: Vec<_> = network.extra.iter().map(|(_, values)| values.clone()).collect();
        assert_eq!(extra, freqs, "{name}: to the last bit");
    }
}
