//! Rows of a prompt that are given as vectors instead of tokens.

use alight_model::{Model, ModelError, OpenOptions, Session, SessionOptions};

use alight_testing::models::{self, Spec, tokens};

fn open(path: &std::path::Path) -> Model {
    Model::open(path, &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() })
        .unwrap()
}

fn session(model: &Model, batch: usize) -> Session<'_> {
    Session::new(model, &SessionOptions { batch, ..SessionOptions::default() }).unwrap()
}

/// The embeddings of tokens, with the model's factor.
fn embeddings(spec: &Spec, weights: &[f32], tokens: &[u32]) -> Vec<f32> {
    let factor = if spec.is_gemma() { (spec.embd as f32).sqrt() } else { 1.0 };
    let rows = tokens.iter().flat_map(|id| &weights[*id as usize * spec.embd..][..spec.embd]);
    rows.map(|x| x * factor).collect()
}

#[test]
fn a_vector_is_computed_as_the_embedding_of_a_token_is() {
    let folder = tempfile::tempdir().unwrap();
    // It becomes long in the middle, and is computed again.
    let long = Spec { long_context: Some(60), seed: 81, ..Spec::llama() };
    for spec in [Spec::llama(), Spec::gemma3(), Spec::qwen35(), long] {
        let (path, weights) = spec.write(folder.path());
        let model = open(&path);
        let all = tokens(90, spec.vocab, 3);
        let vectors = embeddings(&spec, &weights["token_embd.weight"], &all);
        let mut expected = session(&model, 512);
        let expected = expected.feed(&all).unwrap();
        for batch in [512, 7] {
            let mut mixed = session(&model, batch);
            mixed.feed(&all[..20]).unwrap();
            mixed.feed_vectors(&vectors[20 * spec.embd..50 * spec.embd], false).unwrap();
            mixed.feed(&all[50..55]).unwrap();
            let found = mixed.feed_vectors(&vectors[55 * spec.embd..], false).unwrap();
            assert_eq!(found, expected, "{}, {batch} at once", spec.arch);
            assert_eq!(mixed.position(), 90);
            let left = mixed.truncate(40);
            mixed.feed_vectors(&vectors[left * spec.embd..], false).unwrap();
            assert_eq!(mixed.logits(), expected, "{}, after cutting", spec.arch);
        }
    }
}

#[test]
fn vectors_of_a_group_see_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { seed: 82, ..Spec::llama() };
    let (path, weights) = spec.write(folder.path());
    let encoder = folder.path().join("encoder.gguf");
    let (both, _) = Spec { causal: false, ..spec.clone() }.write(folder.path());
    std::fs::rename(&both, &encoder).unwrap();
    spec.write(folder.path());
    let (causal, encoder) = (open(&path), open(&encoder));
    let all = tokens(60, spec.vocab, 4);
    let vectors = embeddings(&spec, &weights["token_embd.weight"], &all);
    let mut expected = session(&encoder, 512);
    let expected = expected.feed(&all).unwrap();
    // All of a text is one group of a causal network: then it is an encoder.
    let mut grouped = session(&causal, 512);
    // But for keys and values, which an encoder does not round to f16.
    let apart = |found: &[f32]| {
        let each = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs());
        each.fold(0.0, f32::max)
    };
    assert!(apart(grouped.feed_vectors(&vectors, true).unwrap()) < 0.02);
    let mut alone = session(&causal, 512);
    assert!(apart(alone.feed_vectors(&vectors, false).unwrap()) > 1.0);
    // A group in the middle is not cut, whatever the size of a batch.
    let middle = &vectors[10 * spec.embd..30 * spec.embd];
    let of = |batch| {
        let mut session = session(&causal, batch);
        session.prefill(&all[..10]).unwrap();
        session.feed_vectors(middle, true).unwrap();
        let logits = session.feed(&all[30..]).unwrap().to_vec();
        assert_eq!(session.truncate(25), 10, "a group is forgotten as a whole");
        session.feed_vectors(middle, true).unwrap();
        assert_eq!(session.feed(&all[30..]).unwrap(), logits, "{batch} at once, again");
        logits
    };
    let whole = of(512);
    assert_eq!(of(23), whole);
    assert_eq!(of(20), whole);
}

#[test]
fn what_is_no_vector_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec::llama();
    let model = open(&spec.write(folder.path()).0);
    let mut session = session(&model, 16);
    let short = session.feed_vectors(&vec![0.0; spec.embd + 1], false).unwrap_err();
    assert!(short.to_string().contains(&format!("multiple of {}", spec.embd)), "{short}");
    let none = session.feed_vectors(&[], false).unwrap_err();
    assert!(matches!(none, ModelError::EmptyInput), "{none}");
    let many = session.feed_vectors(&vec![0.0; 17 * spec.embd], true).unwrap_err();
    assert!(matches!(many, ModelError::TooLongForBatch { found: 17, expected: 16 }), "{many}");
    let nan = session.feed_vectors(&vec![f32::NAN; spec.embd], false).unwrap_err();
    assert!(matches!(nan, ModelError::NotNumbers { .. }), "{nan}");
    assert_eq!(session.position(), 0);
}
