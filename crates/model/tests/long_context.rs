//! Models that rotate long sequences by other factors than short ones: what comes out depends on the tokens alone.

use alight_model::{Model, OpenOptions, Session, SessionOptions};

use alight_testing::models::{self, Spec, distance, tokens};

/// The longest sequence that is short.
const ORIGINAL: usize = 32;
/// Of f32 weights, whose activations are not rounded to 8 bits.
const BOUND: f32 = 2e-4;

fn model(folder: &tempfile::TempDir, long_context: Option<usize>) -> Model {
    let (path, _) = Spec { long_context, ..Spec::llama() }.write(folder.path());
    Model::open(&path, &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() })
        .unwrap()
}

fn session(model: &Model, context: usize) -> Session<'_> {
    Session::new(
        model,
        &SessionOptions { context: Some(context), batch: 24, ..SessionOptions::default() },
    )
    .unwrap()
}

#[test]
fn a_sequence_that_becomes_long_is_as_if_it_had_always_been() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder, Some(ORIGINAL));
    let all = tokens(50, model.spec().vocab, 5);
    let whole = session(&model, 64).feed(&all).unwrap().to_vec();
    for first in [1, 20, 32, 33] {
        let mut cut = session(&model, 64);
        cut.feed(&all[..first]).unwrap();
        cut.feed(&all[first..]).unwrap();
        assert!(distance(&whole, cut.logits()) < BOUND, "cut at {first}");
        assert_eq!(cut.position(), 50);
    }
    let mut singly = session(&model, 64);
    for token in &all {
        singly.feed(&[*token]).unwrap();
    }
    assert!(distance(&whole, singly.logits()) < BOUND, "token by token");
    let mut deferred = session(&model, 64);
    deferred.feed(&all[..31]).unwrap();
    deferred.defer(all[31]).unwrap();
    deferred.feed(&all[32..]).unwrap();
    assert!(distance(&whole, deferred.logits()) < BOUND, "with a deferred token");
    let mut each = session(&model, 64);
    each.feed(&all[..20]).unwrap();
    let mut last = Vec::new();
    each.feed_each(&all[20..], &mut |_, logits| last = logits.to_vec()).unwrap();
    assert!(distance(&whole, &last) < BOUND, "each");
}

#[test]
fn a_short_sequence_does_not_depend_on_the_context() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder, Some(ORIGINAL));
    let all = tokens(50, model.spec().vocab, 5);
    let short = session(&model, ORIGINAL).feed(&all[..30]).unwrap().to_vec();
    assert_eq!(short, session(&model, 64).feed(&all[..30]).unwrap());
    // One that was long and is cut is short again.
    let mut cut = session(&model, 64);
    cut.feed(&all).unwrap();
    cut.truncate(20);
    cut.feed(&all[20..30]).unwrap();
    assert!(distance(&short, cut.logits()) < BOUND);
}

#[test]
fn the_factors_matter() {
    let folder = tempfile::tempdir().unwrap();
    let all = tokens(50, Spec::llama().vocab, 5);
    let found = [ORIGINAL, 64].map(|original| {
        let model = model(&folder, Some(original));
        session(&model, 64).feed(&all).unwrap().to_vec()
    });
    assert!(distance(&found[0], &found[1]) > 100.0 * BOUND);
}
