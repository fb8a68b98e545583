//! A model has one hash, whatever the layout of its files, and another model has another.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{Gguf, parse};
use alight_model::{Model, ModelContent};

use alight_testing::models::{Moe, Spec};
use alight_testing::packed::packed;

fn content(path: &Path) -> ModelContent {
    Model::open(path, &crate::options()).unwrap().content().unwrap().clone()
}

#[test]
fn a_packed_file_is_the_model_of_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let wide = |spec: Spec| {
        let moe = spec.moe.map(|moe| Moe { width: 256, ..moe });
        Spec { embd: 256, ff: 256, heads: 4, key_dim: 64, value_dim: 64, moe, ..spec }
    };
    let llama = Spec { vocab: 304, ..wide(Spec::llama()) };
    for (spec, versions) in [(llama, [1, 3]), (wide(Spec::qwen3moe()), [1, 2])] {
        let types =
            [GgmlType::Q4_0, GgmlType::Q8_0, GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::BF16];
        for ty in types {
            let (path, _) = Spec { ty, ..spec.clone() }.write(folder.path());
            let source = content(&path);
            assert!(!source.packed && source.architecture == spec.arch, "{source:?}");
            assert_eq!(source.main_type, ty.name());
            for version in versions {
                let file = content(&packed(&path, version));
                assert!(file.packed, "{ty} {version}");
                assert_eq!(file, ModelContent { packed: true, ..source.clone() }, "{ty} {version}");
            }
        }
    }
}

/// Writes a file with other metadata and other bytes than this one's.
fn written(
    from: &Path,
    name: &str,
    more: impl Fn(&mut Builder),
    change: impl Fn(&Gguf<'_>, usize, &mut [u8]),
) -> ModelContent {
    let bytes = std::fs::read(from).unwrap();
    let source = parse(&bytes).unwrap();
    let mut builder = Builder::new();
    for (key, value) in source.metadata.iter().filter(|(key, _)| *key != "general.alignment") {
        builder.value(key, value);
    }
    more(&mut builder);
    for info in &source.tensors {
        builder.tensor(info.name, info.ty, info.shape()).unwrap();
    }
    let file = builder.file(|index, to| {
        to.copy_from_slice(&source.tensors[index].data(&bytes).unwrap());
        change(&source, index, to);
    });
    let path = from.with_file_name(name);
    std::fs::write(&path, file).unwrap();
    content(&path)
}

#[test]
fn what_tokens_depend_on_is_hashed_and_names_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let hash = content(&path).hash;
    let same = |_: &Gguf<'_>, _, _: &mut [u8]| ();
    let named = written(
        &path,
        "named.gguf",
        |builder| {
            builder.str("general.name", "another").str("tokenizer.chat_template", "{{ x }}");
        },
        same,
    );
    assert_eq!(named.hash, hash, "names and the chat template");
    let keyed = |builder: &mut Builder| {
        builder.f32("llama.another", 12345.0);
    };
    assert_ne!(written(&path, "keyed.gguf", keyed, same).hash, hash, "a key of the architecture");
    for (tensor, at) in [("output_norm.weight", 0), ("blk.1.ffn_up.weight", 2)] {
        let change = |source: &Gguf<'_>, index: usize, to: &mut [u8]| {
            let info = &source.tensors[index];
            if info.name == tensor {
                let row = (info.ne[1] / 16 / 2 * 16 * info.row_bytes()) as usize;
                to[row + at] ^= 1;
            }
        };
        assert_ne!(written(&path, "changed.gguf", |_| (), change).hash, hash, "{tensor}");
    }
}
