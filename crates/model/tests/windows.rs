//! Models whose layers have windows: what is given back while a sequence grows, cut and continued.

use alight_formats::GgmlType;
use alight_model::{Model, OpenOptions, Session, SessionOptions};

use alight_testing::models::{self, Spec, tokens};

/// Calls `check` with a model of each kind of window.
fn each(check: impl Fn(&Model)) {
    let folder = tempfile::tempdir().unwrap();
    let sliding = |spec: Spec, window| Spec { window: Some(window), ty: GgmlType::Q8_0, ..spec };
    let specs = [
        sliding(Spec::gemma3(), (100, 6)),
        sliding(Spec::gpt_oss(), (12, 2)),
        sliding(Spec::llama4(), (96, 4)),
        sliding(Spec::gemma3n(), (70, 5)),
    ];
    for spec in specs {
        let (path, _) = Spec { context: 2048, ..spec }.write(folder.path());
        let options = OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() };
        check(&Model::open(&path, &options).unwrap());
    }
}

fn session(model: &Model, batch: usize) -> Session<'_> {
    Session::new(model, &SessionOptions { batch, ..SessionOptions::default() }).unwrap()
}

/// The logits after each of `decoded`, which follow a prompt.
fn after(session: &mut Session<'_>, prompt: &[u32], decoded: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut add = |logits: &[f32]| bits.extend(logits.iter().map(|x| x.to_bits()));
    add(session.feed(prompt).unwrap());
    decoded.iter().for_each(|token| add(session.decode(*token).unwrap()));
    bits
}

#[test]
fn a_cut_sequence_continues_as_one_that_was_never_longer() {
    each(|model| {
        let vocab = model.spec().vocab;
        let (prompt, answer) = (tokens(400, vocab, 5), tokens(330, vocab, 6));
        let next = tokens(70, vocab, 7);
        let mut session = session(model, 48);
        let mut exact = Vec::new();
        for n in [730, 728, 690, 420, 401, 400, 399, 350, 130, 64, 3, 0] {
            session.truncate(0);
            after(&mut session, &prompt, &answer);
            let left = session.truncate(n);
            assert!(left == n || left == 400 && n > 400 || left == 0, "{left} of {n}");
            if left == n {
                exact.push(n);
            }
            let same = [&prompt[..n.min(400)], &answer[..n.saturating_sub(400)]].concat();
            let mut other = self::session(model, 100);
            // The missing part of the prompt, and of the answer.
            for (session, from) in [(&mut session, left), (&mut other, 0)] {
                let read = &same[from.min(n).min(400)..n.min(400)];
                if !read.is_empty() {
                    session.prefill(read).unwrap();
                }
                for token in same.get(from.max(400)..).unwrap_or_default() {
                    session.decode(*token).unwrap();
                }
            }
            let [cut, whole] = [&mut session, &mut other];
            assert!(after(cut, &next, &answer[..9]) == after(whole, &next, &answer[..9]), "{n}");
        }
        let always = [730, 728, 690, 400, 399, 350, 0];
        assert!(always.iter().all(|n| exact.contains(n)), "{exact:?}");
        assert!(!exact.contains(&130), "{exact:?}");
    });
}

#[test]
fn a_window_as_long_as_the_context_gives_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let all = |window| {
        let (path, _) = Spec { window: Some(window), ..Spec::gemma3() }.write(folder.path());
        let model = Model::open(&path, &OpenOptions::default()).unwrap();
        let layers = model.spec().stored();
        layers.filter(|stored| stored.positions.is_none()).count() == model.spec().layers.len()
    };
    assert!(all((512, 6)) && !all((511, 6)));
}
