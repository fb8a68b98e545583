//! A step that is cancelled ends in the middle, and leaves nothing behind: what comes next has the bits that it has without it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alight_formats::GgmlType;
use alight_model::{
    Cancel, Engine, EngineOptions, Event, GenerateOptions, Model, ModelError, Request, Sampler,
    SamplerOptions, Session, SessionOptions, generate,
};

use alight_testing::models::{Spec, tokens};

/// One that cancels after a number of questions, of which each piece of work asks one.
#[derive(Clone)]
struct After(Arc<AtomicUsize>);

impl After {
    fn new() -> After {
        After(Arc::new(AtomicUsize::new(usize::MAX)))
    }

    fn set(&self, left: usize) {
        self.0.store(left, Ordering::SeqCst);
    }

    fn left(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn cancel(&self) -> Cancel {
        let left = Arc::clone(&self.0);
        let take = |left: usize| if left == usize::MAX { None } else { left.checked_sub(1) };
        Cancel::when(move || {
            left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err_and(|left| left == 0)
        })
    }
}

/// Models of each kind of layer.
fn each(check: impl Fn(&Model)) {
    let folder = tempfile::tempdir().unwrap();
    let specs =
        [Spec::llama(), Spec::qwen2moe(), Spec::deepseek2(), Spec::gemma3n(), Spec::gpt_oss()];
    for spec in specs.into_iter().chain(Spec::recurrent()) {
        let (path, _) = Spec { ty: GgmlType::F32, ..spec }.write(folder.path());
        check(&Model::open(&path, &crate::options()).unwrap());
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn a_cancelled_prompt_leaves_the_sequence_as_it_was() {
    each(|model| {
        let options = SessionOptions { batch: 24, ..SessionOptions::default() };
        let session = || Session::new(model, &options).unwrap();
        let (first, second) =
            (tokens(30, model.spec().vocab, 5), tokens(50, model.spec().vocab, 6));
        let mut undisturbed = session();
        undisturbed.feed(&first).unwrap();
        let expected = bits(undisturbed.feed(&second).unwrap());

        let (mut disturbed, after) = (session(), After::new());
        disturbed.cancel_by(after.cancel());
        disturbed.feed(&first).unwrap();
        // All questions of the whole call.
        after.set(usize::MAX - 1);
        disturbed.feed(&second).unwrap();
        let all = usize::MAX - 1 - after.left();
        assert!(all > 20, "{}: {all} questions", model.name());
        after.set(usize::MAX);
        disturbed.truncate(first.len());
        let mut cancelled = 0;
        for left in (0..all).step_by((all / 13).max(1)) {
            after.set(left);
            let missing = first[disturbed.position()..].to_vec();
            let fed = disturbed.feed(&[&missing[..], &second].concat()).map(bits);
            after.set(usize::MAX);
            match fed {
                Err(ModelError::Cancelled) => cancelled += 1,
                fed => assert_eq!(fed.unwrap(), expected, "{}", model.name()),
            }
            // Recurrent layers may have to go further back.
            assert!(disturbed.position() <= first.len() + second.len());
            disturbed.truncate(first.len());
        }
        assert!(cancelled >= 10, "{}: {cancelled}", model.name());
        let missing = first[disturbed.position()..].to_vec();
        let fed = disturbed.feed(&[&missing[..], &second].concat()).map(bits);
        assert_eq!(fed.unwrap(), expected, "{}", model.name());
    });
}

#[test]
fn a_cancelled_answer_can_be_given_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let model = Model::open(&path, &crate::options()).unwrap();
    let prompt = tokens(20, model.spec().vocab, 5);
    let limits = GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
    let answer = |session: &mut Session<'_>, on: &mut dyn FnMut()| {
        let mut sampler = Sampler::new(SamplerOptions::greedy(), model.tokenizer().vocab_size());
        let mut answer = Vec::new();
        let mut on_token = |token| {
            answer.push(token);
            on();
            std::ops::ControlFlow::Continue(())
        };
        let ended = generate(session, &mut sampler, &prompt, &limits, &mut on_token);
        (answer, ended.map(|_| ()))
    };
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let (expected, ended) = answer(&mut session, &mut || {});
    ended.unwrap();
    for at in [1, 7, 23] {
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        let after = After::new();
        session.cancel_by(after.cancel());
        let mut count = 0;
        let mut cancel = || {
            count += 1;
            if count == at {
                after.set(3);
            }
        };
        let (begun, ended) = answer(&mut session, &mut cancel);
        assert!(matches!(ended, Err(ModelError::Cancelled)), "{ended:?}");
        assert_eq!(begun, expected[..begun.len()], "no token of the cancelled step is handed out");
        after.set(usize::MAX);
        session.truncate(0);
        assert_eq!(answer(&mut session, &mut || {}).0, expected);
    }
}

#[test]
fn an_engine_drops_the_requests_of_a_cancelled_step() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let model = Model::open(&path, &crate::options()).unwrap();
    let options = EngineOptions { sequences: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, &options).unwrap();
    let after = After::new();
    engine.cancel_by(after.cancel());
    let request = |seed| Request {
        prompt: tokens(40, model.spec().vocab, seed),
        max_tokens: 5,
        ignore_eos: true,
        sampling: SamplerOptions::greedy(),
        ..Request::default()
    };
    let answers = |engine: &mut Engine<'_>| {
        let mut answers = Vec::new();
        let mut run = || -> Result<(), ModelError> {
            while engine.step(&mut |id, event| {
                if let Event::Token(token, _) = event {
                    answers.push((id, token));
                }
            })? {}
            Ok(())
        };
        let ended = run();
        answers.sort_by_key(|(id, _)| *id);
        (answers.into_iter().map(|(_, token)| token).collect::<Vec<_>>(), ended)
    };
    let ask = |engine: &mut Engine<'_>| [5, 6].map(|seed| engine.add(request(seed)).unwrap());
    ask(&mut engine);
    let (expected, ended) = answers(&mut engine);
    ended.unwrap();
    ask(&mut engine);
    after.set(10);
    let (_, ended) = answers(&mut engine);
    assert!(matches!(ended, Err(ModelError::Cancelled)) && engine.is_idle());
    after.set(usize::MAX);
    ask(&mut engine);
    let (again, ended) = answers(&mut engine);
    ended.unwrap();
    assert_eq!(again, expected);
}
