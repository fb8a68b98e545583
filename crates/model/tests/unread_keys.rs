//! Metadata that is not read is named, and that of right files is not.

use std::path::PathBuf;

use alight_formats::gguf;
use alight_model::{Model, ModelError, ModelSpec, OpenOptions};
use alight_testing::encoders::Encoder;
use alight_testing::models::{Scaling, Spec};

/// The keys that are not read of a file of this architecture with these bytes.
fn unread(bytes: &[u8]) -> Vec<String> {
    let gguf = gguf::parse(bytes).unwrap();
    ModelSpec::from_gguf(&gguf).unwrap().unread_keys
}

/// The bytes of a file with the metadata of another, and one more.
fn with(bytes: &[u8], key: &str, value: u32) -> Vec<u8> {
    let gguf = gguf::parse(bytes).unwrap();
    let mut builder = gguf::write::Builder::new();
    gguf.metadata.iter().for_each(|(key, value)| {
        builder.value(key, value);
    });
    builder.u32(key, value);
    for info in &gguf.tensors {
        builder.tensor(info.name, info.ty, info.shape()).unwrap();
    }
    builder.file(|i, out| out.copy_from_slice(&bytes[gguf.tensors[i].range()]))
}

#[test]
fn of_a_right_file_nothing_is_named_and_what_is_added_is() {
    let yarn = Scaling::Yarn { factor: 4.0, original: 32, magnitude: 1.1 };
    let decoders = Spec::every().into_iter().chain(Spec::recurrent()).chain([
        Spec::gptoss(),
        Spec::llama4(),
        Spec::deepseek2(),
        Spec::deepseek2_before_2025(),
        Spec::gemma3n(),
        Spec { scaling: yarn, ..Spec::qwen2() },
        Spec { scaling: Scaling::Linear(2.0), ..Spec::llama() },
        Spec { long_context: Some(24), ..Spec::llama() },
        Spec { mtp: true, ..Spec::qwen35() },
    ]);
    let decoders = decoders.map(|spec| (spec.arch, spec.build().0));
    let encoders = Encoder::every().into_iter();
    let encoders = encoders.map(|spec| (spec.arch, spec.build_with(spec.metadata("")).0));
    for (arch, bytes) in decoders.chain(encoders) {
        assert_eq!(unread(&bytes), [""; 0], "{arch}");
        let key = format!("{arch}.some_switch");
        assert_eq!(unread(&with(&bytes, &key, 1)), [&*key], "{arch}");
        // Something that the model does not have, and what is known to change nothing.
        assert_eq!(unread(&with(&bytes, &key, 0)), [""; 0], "{arch}");
        assert_eq!(unread(&with(&bytes, &format!("{arch}.vocab_size"), 7)), [""; 0], "{arch}");
        // Keys of others are theirs.
        assert_eq!(unread(&with(&bytes, "other.attention.some_switch", 1)), [""; 0], "{arch}");
    }
}

#[test]
fn a_strict_caller_gets_an_error_that_names_the_file_and_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let key = "llama.rope.scaling.alpha";
    let path: PathBuf = folder.path().join("doubtful.gguf");
    std::fs::write(&path, with(&Spec::llama().build().0, key, 1000)).unwrap();
    let options = crate::options();
    let warnings = Model::open(&path, &options).unwrap().warnings();
    assert!(matches!(&warnings[..], [one] if one.contains(key)), "{warnings:?}");
    let refused = Model::open(&path, &OpenOptions { strict: true, ..options.clone() });
    match refused.err().unwrap() {
        error @ ModelError::Doubtful { .. } => {
            let text = error.to_string();
            assert!(text.contains("doubtful.gguf") && text.contains(key), "{text}");
        }
        other => panic!("{other}"),
    }
    let (path, _) = Spec::llama().write(folder.path());
    assert!(Model::open(&path, &OpenOptions { strict: true, ..options }).is_ok());
}
