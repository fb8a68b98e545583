//! Drafts change nothing: tokens, ends and what the cache holds are those of plain decoding, bit for bit, for every length of drafts.

mod common;

use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_formats::GgmlType;
use alight_kernels::Isa;
use alight_model::{
    Engine, EngineOptions, Event, Finish, GenerateOptions, Generated, Model, OpenOptions, Repack,
    Request, Sampler, SamplerOptions, Session, SessionOptions, Speculate, generate,
};
use common::{Spec, tokens};

/// What a call gives: the tokens, how it ended, the position, and the bits of the logits of what would follow.
#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    finish: Finish,
    position: usize,
    next: Vec<u32>,
}

struct Asked {
    prompt: Vec<u32>,
    sampling: SamplerOptions,
    max_tokens: usize,
    context: usize,
    stop_after: usize,
}

fn answer(model: &Model, asked: &Asked, speculate: Speculate) -> (Outcome, Generated) {
    answer_with(model, None, asked, speculate)
}

/// With a draft model.
fn answer_with(
    model: &Model,
    draft: Option<&Model>,
    asked: &Asked,
    speculate: Speculate,
) -> (Outcome, Generated) {
    let options = SessionOptions { context: Some(asked.context), ..SessionOptions::default() };
    let mut session = Session::new(model, &options).unwrap();
    if let Some(draft) = draft {
        session.draft_with(draft).unwrap();
    }
    let mut sampler = Sampler::new(asked.sampling, model.tokenizer().vocab_size());
    let mut tokens = Vec::new();
    let options = GenerateOptions { max_tokens: asked.max_tokens, ignore_eos: true, speculate };
    let done = generate(&mut session, &mut sampler, &asked.prompt, &options, &mut |token| {
        tokens.push(token);
        match tokens.len() == asked.stop_after {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
    .unwrap();
    let position = session.position();
    assert!(session.tokens()[asked.prompt.len()..] == tokens[..position - asked.prompt.len()]);
    let next = match position < session.context() {
        true => session.feed(&[3]).unwrap().iter().map(|x| x.to_bits()).collect(),
        false => Vec::new(),
    };
    (Outcome { tokens, finish: done.finish, position, next }, done)
}

fn asked(model: &Model, seed: u64) -> Asked {
    let vocab = model.spec().vocab.min(40_000);
    let part = tokens(20 + seed as usize, vocab, seed);
    let sampling = match seed % 3 {
        0 => SamplerOptions::greedy(),
        _ => SamplerOptions {
            // Small, so that drafts are right now and then.
            temperature: if seed % 3 == 1 { 0.2 } else { 1.0 },
            repeat_penalty: if seed.is_multiple_of(2) { 1.1 } else { 1.0 },
            seed,
            ..SamplerOptions::default()
        },
    };
    let prompt = [&part[..], &part, &part[..9]].concat();
    Asked { prompt, sampling, max_tokens: 40, context: 256, stop_after: usize::MAX }
}

const ALL: [Speculate; 6] = [
    Speculate::Auto,
    Speculate::Tokens(1),
    Speculate::Tokens(2),
    Speculate::Tokens(3),
    Speculate::Tokens(5),
    Speculate::Tokens(7),
];

fn models(folder: &std::path::Path) -> Vec<PathBuf> {
    let quantised = |ty, spec| Spec { ty, ..spec }.write(folder).0;
    let mut all = vec![
        quantised(GgmlType::Q4_0, Spec::llama()),
        quantised(GgmlType::Q8_0, Spec::gemma3()),
        quantised(GgmlType::Q8_0, Spec::qwen2moe()),
        quantised(GgmlType::Q4_0, Spec::gpt_oss()),
        Spec::deepseek2().write(folder).0,
        Spec::llama4().write(folder).0,
        quantised(GgmlType::F16, Spec::qwen35()),
        Spec { long_context: Some(80), seed: 61, ..Spec::llama() }.write(folder).0,
    ];
    all.extend(common::real_model(common::SMOLLM2));
    all
}

#[test]
fn answers_are_those_of_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    for (i, path) in models(folder.path()).into_iter().enumerate() {
        let real = std::fs::metadata(&path).unwrap().len() > 50_000_000;
        let (mut plain_steps, mut drafted_steps) = (0, 0);
        for isa in Isa::available() {
            for repack in [Repack::Off, Repack::On] {
                if real && (isa != Isa::best() || repack == Repack::Off) {
                    continue;
                }
                let options =
                    OpenOptions { threads: Some(2), isa: Some(isa), repack, ..Default::default() };
                let model = Model::open(&path, &options).unwrap();
                for seed in 0..if real { 2 } else { 4 } {
                    let asked = asked(&model, seed);
                    let (plain, done) = answer(&model, &asked, Speculate::Off);
                    assert_eq!((done.tokens, done.steps), (40, 39));
                    for speculate in ALL {
                        let (found, done) = answer(&model, &asked, speculate);
                        let what = format!("{speculate:?}, seed {seed}, {isa}, {}", path.display());
                        assert!(found == plain, "{what}");
                        assert!(done.steps <= 39);
                        plain_steps += 39;
                        drafted_steps += done.steps;
                    }
                }
            }
        }
        let name = path.file_name().unwrap().to_string_lossy();
        println!("{name}: {drafted_steps} of {plain_steps} steps");
        if i == 0 || real {
            assert!(drafted_steps < plain_steps, "some drafts are right");
        }
    }
}

#[test]
fn answers_with_a_draft_model_are_those_without() {
    let folder = tempfile::tempdir().unwrap();
    let write = |spec: Spec| {
        let path = Spec { ty: GgmlType::Q4_0, ..spec }.write(folder.path()).0;
        Model::open(&path, &OpenOptions { threads: Some(2), ..Default::default() }).unwrap()
    };
    let model = write(Spec::llama());
    // The model itself is nearly always right, a model of other weights hardly ever.
    let [same, other, recurrent] =
        [Spec::llama(), Spec { seed: 77, ..Spec::llama() }, Spec::qwen35()].map(write);
    let mut steps = Vec::new();
    for draft in [&same, &other, &recurrent] {
        let mut sum = 0;
        for seed in 0..6 {
            // Nothing in the prompt to look up.
            let prompt = tokens(30 + seed as usize, model.spec().vocab, 1000 + seed);
            for (i, n) in [1, 7, 40, 40].into_iter().enumerate() {
                let context = if i == 2 { prompt.len() + 20 } else { 256 };
                let case =
                    Asked { prompt: prompt.clone(), max_tokens: n, context, ..asked(&model, seed) };
                let (plain, _) = answer(&model, &case, Speculate::Off);
                for speculate in ALL.into_iter().chain([Speculate::Off]) {
                    let (found, done) = answer_with(&model, Some(draft), &case, speculate);
                    assert!(found == plain, "{speculate:?}, seed {seed}, {}", draft.name());
                    if speculate == Speculate::Tokens(3) {
                        sum += done.steps;
                    }
                    assert!(speculate != Speculate::Off || done.steps + 1 >= done.tokens);
                }
            }
        }
        steps.push(sum);
    }
    // A third of the answers is greedy.
    assert!(5 * steps[0] < 4 * steps[1], "{steps:?}");
}

#[test]
fn a_model_with_other_tokens_cannot_draft() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        |spec: Spec| Model::open(&spec.write(folder.path()).0, &OpenOptions::default()).unwrap();
    let (model, recurrent) = (open(Spec::llama()), open(Spec::qwen35()));
    let mut session = Session::new(&recurrent, &SessionOptions::default()).unwrap();
    let error = session.draft_with(&model).unwrap_err().to_string();
    assert!(error.contains("cannot draft for"), "{error}");
    let Some(smollm2) = common::real_model(common::SMOLLM2) else { return };
    let other = Model::open(&smollm2, &OpenOptions::default()).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let error = session.draft_with(&other).unwrap_err().to_string();
    assert!(error.contains("cannot draft for") && error.contains("49152"), "{error}");
}

#[test]
fn every_end_is_the_same_at_every_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = Spec { ty: GgmlType::Q4_0, ..Spec::llama() }.write(folder.path()).0;
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    for n in 1..24 {
        let one = asked(&model, 0);
        let prompt = one.prompt.len();
        let cases = [
            Asked { max_tokens: n, ..asked(&model, 0) },
            Asked { stop_after: n, ..asked(&model, 0) },
            Asked { context: prompt + n, max_tokens: usize::MAX, ..one },
        ];
        for (i, case) in cases.iter().enumerate() {
            let (plain, _) = answer(&model, case, Speculate::Off);
            for speculate in ALL {
                assert_eq!(
                    answer(&model, case, speculate).0,
                    plain,
                    "case {i}, {n}, {speculate:?}"
                );
            }
        }
    }
}

/// What an engine gives: the tokens with the bits of their logits, and how it ended; and how many steps it took. Another request comes
/// after so many steps.
fn of_engine(
    model: &Model,
    asked: &Asked,
    speculate: Speculate,
    other_after: usize,
) -> (Vec<u32>, Option<Finish>, usize) {
    let context = Some(asked.context);
    let options = EngineOptions { sequences: 2, context, speculate, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let request = Request {
        prompt: asked.prompt.clone(),
        sampling: asked.sampling,
        max_tokens: asked.max_tokens,
        ignore_eos: true,
        ..Request::default()
    };
    let id = engine.add(request.clone()).unwrap();
    let (mut all, mut end, mut steps) = (Vec::new(), None, 0);
    loop {
        if steps == other_after {
            engine.add(Request { max_tokens: 5, ..request.clone() }).unwrap();
        }
        let more = engine
            .step(&mut |of, event| match event {
                Event::Token(token, logits) if of == id => {
                    all.push(token);
                    all.extend(logits.iter().map(|x| x.to_bits()));
                }
                Event::Finished(finish) if of == id => end = Some(finish),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            })
            .unwrap();
        steps += 1;
        if !more {
            return (all, end, steps);
        }
    }
}

#[test]
fn engines_draft_while_a_sequence_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    for (i, path) in models(folder.path()).into_iter().enumerate() {
        let model = Model::open(&path, &OpenOptions::default()).unwrap();
        let (mut plain_steps, mut drafted_steps) = (0, 0);
        let original = model.spec().long_context.rope.as_ref().map_or(256, |_| 80);
        for seed in 0..3 {
            let part = asked(&model, seed);
            let most = if original < 256 { 60 } else { usize::MAX };
            let prompt = part.prompt[..part.prompt.len().min(most)].to_vec();
            let len = prompt.len();
            let cases = [
                (Asked { max_tokens: 18, prompt: prompt.clone(), ..asked(&model, seed) }, 1000),
                (Asked { max_tokens: 18, prompt: prompt.clone(), ..asked(&model, seed) }, 7),
                (Asked { max_tokens: 100, context: len + 13, prompt, ..asked(&model, seed) }, 1000),
            ];
            for (case, after) in &cases {
                let (plain, end, steps) = of_engine(&model, case, Speculate::Off, *after);
                for speculate in ALL {
                    let (found, found_end, drafted) = of_engine(&model, case, speculate, *after);
                    let what = format!("{speculate:?}, seed {seed}, {}", path.display());
                    assert!(found == plain && found_end == end, "{what}");
                    plain_steps += steps;
                    drafted_steps += drafted;
                }
            }
        }
        assert!(drafted_steps <= plain_steps);
        if i == 0 {
            assert!(drafted_steps < plain_steps, "some drafts are right");
        }
    }
}
