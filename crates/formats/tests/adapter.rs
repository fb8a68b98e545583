//! Headers of adapters: what is right, and one mistake of each kind.

use alight_formats::adapter::{AdapterError, AdapterFile, MAX_RANK, TensorChange};
use alight_formats::gguf::{self, write::Builder};
use alight_formats::{GgmlType, GgmlType::F32};

type Tensors<'t> = &'t [(&'t str, GgmlType, &'t [u64])];

const PAIR: Tensors<'_> =
    &[("blk.0.attn_q.weight.lora_a", F32, &[32, 4]), ("blk.0.attn_q.weight.lora_b", F32, &[4, 64])];

fn builder() -> Builder {
    let mut file = Builder::new();
    file.str("general.type", "adapter");
    file.str("general.architecture", "llama");
    file.str("adapter.type", "lora");
    file
}

fn with(mut file: Builder, tensors: Tensors<'_>) -> Vec<u8> {
    for (name, ty, shape) in tensors {
        file.tensor(name, *ty, shape).unwrap();
    }
    file.file(|_, bytes| bytes.fill(0))
}

fn error(file: Builder, tensors: Tensors<'_>) -> String {
    let bytes = with(file, tensors);
    AdapterFile::read(&gguf::parse(&bytes[..]).unwrap()).unwrap_err().to_string()
}

#[test]
fn all_that_an_adapter_may_have_is_read() {
    let mut file = builder();
    file.f32("adapter.lora.alpha", 8.0);
    file.str("adapter.lora.task_name", "classification");
    let bytes = with(
        file,
        &[
            PAIR[0],
            PAIR[1],
            ("blk.0.attn_q.weight.lora_bias", F32, &[64]),
            ("blk.0.attn_q.weight.lora_magnitude", F32, &[64]),
            ("blk.0.attn_q.bias.lora_delta", F32, &[64]),
            ("output.weight.lora_override", GgmlType::Q8_0, &[32, 100]),
            ("token_embd.weight.lora_a", F32, &[2, 100]),
            ("token_embd.weight.lora_b", F32, &[2, 32]),
            ("blk.0.ffn_up_exps.weight.lora_a", GgmlType::F16, &[32, 3, 5]),
            ("blk.0.ffn_up_exps.weight.lora_b", GgmlType::F16, &[3, 48, 5]),
        ],
    );
    let parsed = gguf::parse(&bytes[..]).unwrap();
    let adapter = AdapterFile::read(&parsed).unwrap();
    assert_eq!((adapter.alpha, adapter.architecture), (8.0, "llama"));
    assert_eq!(adapter.task_name, Some("classification"));
    assert_eq!((adapter.prompt_prefix, &adapter.invocation_tokens), (None, &None));
    let low_rank = |name| match &adapter.changes[name] {
        TensorChange::LowRank(factors) => factors,
        other => panic!("{other:?}"),
    };
    let q = low_rank("blk.0.attn_q.weight");
    assert!(q.bias.is_some() && q.magnitude.is_some());
    assert_eq!((q.rank, q.experts(), q.base_extents("blk.0.attn_q.weight")), (4, 1, [32, 64]));
    assert_eq!([q.scale(8.0, 0.5), q.scale(0.0, 0.5)], [1.0, 0.5]);
    let embedding = low_rank("token_embd.weight");
    assert_eq!(embedding.base_extents("token_embd.weight"), [32, 100]);
    assert_eq!(low_rank("blk.0.ffn_up_exps.weight").experts(), 5);
    assert!(matches!(adapter.changes["output.weight"], TensorChange::Override(_)));
    assert!(matches!(adapter.changes["blk.0.attn_q.bias"], TensorChange::Delta(_)));
    assert_eq!(adapter.changes.len(), 5);
}

#[test]
fn each_mistake_is_named() {
    let key = |add: &dyn Fn(&mut Builder) -> &mut Builder| {
        let mut file = builder();
        add(&mut file);
        error(file, PAIR)
    };
    let one = |tensors: Tensors<'_>| error(builder(), tensors);
    let q = |a: (&'static str, GgmlType, &[u64]), b: (&'static str, GgmlType, &[u64])| {
        error(builder(), &[(a.0, a.1, a.2), (b.0, b.1, b.2)])
    };
    let (a, b) = (PAIR[0].0, PAIR[1].0);
    for (found, expected) in [
        (error(Builder::new(), PAIR), "\"general.type\" is missing"),
        (key(&|file| file.f32("adapter.lora.alpha", f32::NAN)), "alpha\" is NaN"),
        (key(&|file| file.f32("adapter.lora.beta", 1.0)), "\"adapter.lora.beta\" is not known"),
        (key(&|file| file.str("adapter.alora.invocation_tokens", "a")), "is of type str"),
        (one(&[]), "no tensors"),
        (one(&[("rope_freqs.weight", F32, &[4])]), "none of the suffixes"),
        (one(&[("blk.0.attn_norm.weight", F32, &[4])]), "none of the suffixes"),
        (one(&[("a.weight.lora_a.lora_a", F32, &[4, 2])]), "none of the suffixes"),
        (one(&[PAIR[0]]), "without its .lora_b"),
        (one(&[PAIR[1]]), "without its .lora_a"),
        (one(&[("a.weight.lora_magnitude", F32, &[4])]), "without its .lora_a"),
        (
            one(&[PAIR[0], PAIR[1], ("blk.0.attn_q.weight.lora_override", F32, &[32, 64])]),
            "one way",
        ),
        (q((a, F32, &[32, 4]), (b, F32, &[8, 64])), "expected [columns, 8]"),
        (q((a, F32, &[4, 32]), (b, F32, &[64, 4])), "expected [columns, 64]"),
        (q((a, F32, &[4, 5000]), (b, F32, &[5000, 4])), "of rank 5000"),
        (q((a, GgmlType::Q4_0, &[32, 4]), (b, F32, &[4, 64])), "of type Q4_0"),
        (q((a, F32, &[32, 4, 2]), (b, F32, &[4, 64, 3])), "expected 3 matrices"),
        (
            q(
                ("token_embd.weight.lora_a", F32, &[32, 4]),
                ("token_embd.weight.lora_b", F32, &[4, 64]),
            ),
            "expected [4, vocabulary]",
        ),
        (one(&[PAIR[0], PAIR[1], ("blk.0.attn_q.weight.lora_bias", F32, &[63])]), "expected [64]"),
        (
            one(&[PAIR[0], PAIR[1], ("blk.0.attn_q.weight.lora_bias", GgmlType::F16, &[64])]),
            "expected F32",
        ),
    ] {
        assert!(found.contains(expected), "{found}\n  without {expected}");
    }
    let mut other = Builder::new();
    other.str("general.type", "adapter");
    other.str("adapter.type", "ia3");
    let bytes = with(other, PAIR);
    let found = AdapterFile::read(&gguf::parse(&bytes[..]).unwrap());
    assert_eq!(found, Err(AdapterError::Kind { found: "ia3".into() }));
}

/// Every bit of a header flipped, and every number in it replaced: what is accepted has whole pairs of factors that fit each other.
#[test]
fn whatever_is_changed_in_a_header_no_half_adapter_is_read() {
    let mut file = builder();
    file.f32("adapter.lora.alpha", 8.0).u32s("adapter.alora.invocation_tokens", &[1, 2]);
    let tensors: Tensors<'_> = &[
        PAIR[0],
        PAIR[1],
        ("blk.0.attn_q.weight.lora_magnitude", F32, &[64]),
        ("output.weight.lora_override", GgmlType::Q8_0, &[32, 2]),
        ("token_embd.weight.lora_a", F32, &[2, 100]),
        ("token_embd.weight.lora_b", F32, &[2, 32]),
        ("blk.0.ffn_up_exps.weight.lora_a", GgmlType::F16, &[32, 3, 5]),
        ("blk.0.ffn_up_exps.weight.lora_b", GgmlType::F16, &[3, 48, 5]),
    ];
    let bytes = with(file, tensors);
    let header = gguf::parse(&bytes[..]).unwrap().header_len as usize;
    let (mut read, mut refused) = (0, 0);
    let mut check = |bytes: &[u8]| {
        let Ok(parsed) = gguf::parse(bytes) else { return };
        let adapter = match AdapterFile::read(&parsed) {
            Ok(adapter) => adapter,
            Err(error) => {
                let text = error.to_string();
                assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
                refused += 1;
                return;
            }
        };
        read += 1;
        assert!(adapter.alpha.is_finite());
        let mut count = 0;
        for change in adapter.changes.values() {
            count += match change {
                TensorChange::LowRank(factors) => {
                    assert!((1..=MAX_RANK).contains(&factors.rank));
                    assert_eq!(factors.a.ne[2..], factors.b.ne[2..]);
                    2 + usize::from(factors.bias.is_some())
                        + usize::from(factors.magnitude.is_some())
                }
                TensorChange::Delta(_) | TensorChange::Override(_) => 1,
            };
        }
        assert_eq!(count, parsed.tensors.len(), "all tensors are in changes");
    };
    for bit in 0..8 * header {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        check(&flipped);
    }
    for at in 0..header - 8 {
        for number in [0, 1, 4097, u64::from(u32::MAX), i64::MAX as u64, u64::MAX] {
            for len in [4, 8] {
                let mut other = bytes.clone();
                other[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
                check(&other);
            }
        }
    }
    assert!(read > 100 && refused > 100, "{read} were read, {refused} refused");
}
