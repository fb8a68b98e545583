//! Any bytes as a LoRA adapter: what is accepted has whole pairs of factors whose shapes fit, within the limits.
#![no_main]

use alight_formats::adapter::{AdapterFile, LowRankFactors, MAX_RANK, TensorChange};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(file) = alight_fuzz::parse_and_check(bytes) else { return };
    let adapter = match AdapterFile::read(&file) {
        Ok(adapter) => adapter,
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 4000 && !text.chars().any(char::is_control), "{text:?}");
            return;
        }
    };
    assert!(AdapterFile::is_adapter(&file) && adapter.alpha.is_finite());
    assert!(adapter.invocation_tokens.as_ref().is_none_or(|tokens| !tokens.is_empty()));
    let mut tensors = 0;
    for (name, change) in &adapter.changes {
        assert!(!name.is_empty() && !name.contains(".lora_"));
        tensors += match change {
            TensorChange::Delta(info) => {
                assert_eq!(info.ne[1..], [1, 1, 1]);
                1
            }
            TensorChange::Override(_) => 1,
            TensorChange::LowRank(factors) => {
                let LowRankFactors { a, b, rank, bias, magnitude } = &**factors;
                assert!((1..=MAX_RANK).contains(rank) && a.ne[2..] == b.ne[2..] && a.ne[3] == 1);
                let [cols, rows] = factors.base_extents(name);
                let elements = factors.experts().checked_mul(*rank).and_then(|n| n.checked_mul(cols.max(rows)));
                assert!(elements.is_some() && factors.experts() >= 1);
                for info in [bias, magnitude].into_iter().flatten() {
                    assert_eq!(info.ne, [rows, 1, 1, 1]);
                }
                2 + usize::from(bias.is_some()) + usize::from(magnitude.is_some())
            }
        };
    }
    // Nothing is left out.
    assert_eq!(tensors, file.tensors.len());
});
