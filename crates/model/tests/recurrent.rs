//! Models with recurrent layers: fed in any parts, cut and continued.

use alight_model::{Model, OpenOptions, Session, SessionOptions};

use alight_testing::models::{self, Spec, distance, tokens};

/// Calls `check` with a model of each kind of recurrent layers.
fn each(check: impl Fn(&Model)) {
    let folder = tempfile::tempdir().unwrap();
    for spec in Spec::recurrent() {
        let (path, _) = spec.write(folder.path());
        let options = OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() };
        check(&Model::open(&path, &options).unwrap());
    }
}

fn session(model: &Model) -> Session<'_> {
    Session::new(model, &SessionOptions { batch: 48, ..SessionOptions::default() }).unwrap()
}

/// True if logits differ by no more than a token alone and several tokens do, whose f32 products are summed in another order:
/// 2e-5 of the largest (1.1e-5 was the most). Weights are f32, so activations are not rounded to 8 bits.
fn close(a: &[f32], b: &[f32]) -> bool {
    let largest = a.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    distance(a, b) < 2e-5 * largest
}

#[test]
fn any_parts_give_the_same() {
    each(any_parts_give_the_same_in);
}

fn any_parts_give_the_same_in(model: &Model) {
    let prompt = tokens(130, model.spec().vocab, 5);
    let whole = session(model).feed(&prompt).unwrap().to_vec();
    for part in [1, 3, 33, 60] {
        let mut session = session(model);
        for piece in prompt.chunks(part) {
            session.feed(piece).unwrap();
        }
        let apart = distance(&whole, session.logits());
        assert!(close(&whole, session.logits()), "{part} at a time: {apart}");
    }
    let mut each = session(model);
    let mut last = Vec::new();
    each.feed_each(&prompt, &mut |_, logits| last = logits.to_vec()).unwrap();
    assert!(close(&whole, &last));
}

#[test]
fn a_sequence_goes_back_to_the_end_of_a_prompt() {
    each(a_sequence_goes_back_to_the_end_of_a_prompt_in);
}

fn a_sequence_goes_back_to_the_end_of_a_prompt_in(model: &Model) {
    let (first, second) = (tokens(70, model.spec().vocab, 5), tokens(20, model.spec().vocab, 6));
    let mut session = session(model);
    session.feed(&first).unwrap();
    let after_second = session.feed(&second).unwrap().to_vec();
    for token in tokens(9, model.spec().vocab, 7) {
        session.feed(&[token]).unwrap();
    }

    // To the end of the first: the second gives the same bits again.
    assert_eq!(session.truncate(first.len()), first.len());
    assert_eq!(session.feed(&second).unwrap(), after_second);

    // Into the first: there is no snapshot, so everything has to come again.
    assert_eq!(session.truncate(first.len() - 1), 0);
    assert_eq!(session.position(), 0);
    session.feed(&first).unwrap();
    assert_eq!(session.feed(&second).unwrap(), after_second);

    // Into the second: as far back as the end of the first.
    assert_eq!(session.truncate(first.len() + 5), first.len());
    assert_eq!(session.feed(&second).unwrap(), after_second);
}

#[test]
fn a_deferred_token_is_taken_back_without_going_further() {
    each(a_deferred_token_is_taken_back_without_going_further_in);
}

fn a_deferred_token_is_taken_back_without_going_further_in(model: &Model) {
    let prompt = tokens(11, model.spec().vocab, 5);
    let mut session = session(model);
    session.feed(&prompt).unwrap();
    let next = session.feed(&[7]).unwrap().to_vec();
    session.defer(9).unwrap();
    assert_eq!(session.truncate(prompt.len() + 1), prompt.len() + 1);
    let straight = session.feed(&[8]).unwrap().to_vec();
    assert_eq!(session.truncate(prompt.len()), prompt.len());
    assert_eq!(session.feed(&[7]).unwrap(), next);
    assert_eq!(session.feed(&[8]).unwrap(), straight);
}

#[test]
fn what_a_snapshot_is_of_is_not_what_came_later() {
    each(what_a_snapshot_is_of_is_not_what_came_later_in);
}

fn what_a_snapshot_is_of_is_not_what_came_later_in(model: &Model) {
    let (prompt, other) = (tokens(40, model.spec().vocab, 5), tokens(40, model.spec().vocab, 8));
    let mut session = session(model);
    session.feed(&other[..30]).unwrap();
    session.feed(&other[30..]).unwrap();
    session.truncate(0);
    // Snapshots of the other prompt are gone: at 30 tokens there is none.
    session.feed(&prompt).unwrap();
    assert_eq!(session.truncate(35), 0);
}
