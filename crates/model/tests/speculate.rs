//! Drafts change nothing: tokens, ends and what the cache holds are those of plain decoding, bit for bit, for every length of drafts.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use alight_formats::GgmlType;
use alight_kernels::Isa;
use alight_model::{
    Engine, EngineOptions, Event, Finish, GenerateOptions, Generated, Model, OpenOptions, Repack,
    Request, Sampler, SamplerOptions, Session, SessionOptions, Speculate, generate,
};

use alight_testing::models::{self, Spec, tokens};

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

fn sampler(model: &Model, options: SamplerOptions) -> Sampler {
    let breakers = options.breakers(model.tokenizer(), None);
    Sampler::new(options, model.tokenizer().vocab_size()).with_breakers(breakers)
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
    let mut sampler = sampler(model, asked.sampling);
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
    let sampling = match seed % 5 {
        0 | 1 => sampling,
        2 => SamplerOptions { mirostat: 2, mirostat_tau: 1.0, ..sampling },
        3 => SamplerOptions { dry_multiplier: 0.5, dry_allowed_length: 1, ..sampling },
        _ => SamplerOptions { xtc_probability: 0.5, top_n_sigma: 2.0, ..sampling },
    };
    let prompt = [&part[..], &part, &part[..9]].concat();
    Asked { prompt, sampling, max_tokens: 40, context: 256, stop_after: usize::MAX }
}

const ALL: [Speculate; 6] = [
    Speculate::Auto,
    Speculate::Tokens(3),
    Speculate::Tokens(1),
    Speculate::Tokens(2),
    Speculate::Tokens(5),
    Speculate::Tokens(7),
];

/// Lengths of drafts: all of them if there are `few` answers to be compared, else only in `make test-all`.
fn lengths(few: bool) -> &'static [Speculate] {
    if few || models::everything() { &ALL } else { &ALL[..2] }
}

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
        quantised(GgmlType::F16, Spec::lfm2()),
        quantised(GgmlType::F16, Spec::nemotron_h()),
        Spec { long_context: Some(80), seed: 61, ..Spec::llama() }.write(folder).0,
    ];
    all.extend(models::real_model(models::SMOLLM2));
    all
}

#[test]
fn answers_are_those_of_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    for (i, path) in models(folder.path()).into_iter().enumerate() {
        let real = std::fs::metadata(&path).unwrap().len() > 50_000_000;
        let (mut plain_steps, mut drafted_steps) = (0, 0);
        for isa in models::levels() {
            for repack in [Repack::Off, Repack::On] {
                if real && (isa != Isa::best() || repack == Repack::Off) {
                    continue;
                }
                let options = OpenOptions {
                    threads: Some(models::threads()),
                    isa: Some(isa),
                    repack,
                    ..Default::default()
                };
                let model = Model::open(&path, &options).unwrap();
                for seed in 0..if real { 2 } else { 4 } {
                    let asked = asked(&model, seed);
                    let (plain, done) = answer(&model, &asked, Speculate::Off);
                    assert_eq!((done.tokens, done.steps), (40, 39));
                    for &speculate in lengths(!real) {
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
        Model::open(&path, &OpenOptions { threads: Some(models::threads()), ..Default::default() })
            .unwrap()
    };
    // The model itself is nearly always right, a model of other weights hardly ever.
    let [llama, other, qwen35, lfm2, granite] = [
        Spec::llama(),
        Spec { seed: 77, ..Spec::llama() },
        Spec::qwen35(),
        Spec::lfm2(),
        Spec::granitehybrid(),
    ]
    .map(write);
    let cases = [
        (&llama, [&llama, &other, &qwen35]),
        (&qwen35, [&qwen35, &other, &llama]),
        (&lfm2, [&lfm2, &other, &qwen35]),
        (&granite, [&granite, &other, &lfm2]),
    ];
    for (model, drafts) in cases {
        let steps = drafts.map(|draft| with_a_draft_model(model, draft));
        // A third of the answers is greedy.
        assert!(5 * steps[0] < 4 * steps[1], "{}: {steps:?}", model.name());
    }
}

/// Returns how many steps there were with drafts of three tokens.
fn with_a_draft_model(model: &Model, draft: &Model) -> usize {
    let mut sum = 0;
    for seed in 0..if models::everything() { 6 } else { 3 } {
        // Nothing in the prompt to look up.
        let prompt = tokens(30 + seed as usize, model.spec().vocab, 1000 + seed);
        for (i, n) in [1, 7, 40, 40].into_iter().enumerate() {
            let context = if i == 2 { prompt.len() + 20 } else { 256 };
            let case =
                Asked { prompt: prompt.clone(), max_tokens: n, context, ..asked(model, seed) };
            let (plain, _) = answer(model, &case, Speculate::Off);
            for speculate in ALL.into_iter().chain([Speculate::Off]) {
                let (found, done) = answer_with(model, Some(draft), &case, speculate);
                let what = format!("{speculate:?}, seed {seed}, {} {}", model.name(), draft.name());
                assert!(found == plain, "{what}");
                if speculate == Speculate::Tokens(3) {
                    sum += done.steps;
                }
                assert!(speculate != Speculate::Off || done.steps + 1 >= done.tokens);
            }
        }
    }
    sum
}

#[test]
fn a_model_with_other_tokens_cannot_draft() {
    let folder = tempfile::tempdir().unwrap();
    let open = |spec: Spec| Model::open(&spec.write(folder.path()).0, &crate::options()).unwrap();
    let model = open(Spec::llama());
    let Some(smollm2) = models::real_model(models::SMOLLM2) else { return };
    let other = Model::open(&smollm2, &crate::options()).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let error = session.draft_with(&other).unwrap_err().to_string();
    assert!(error.contains("cannot draft for") && error.contains("49152"), "{error}");
    let mut engine = Engine::new(&model, &EngineOptions::default()).unwrap();
    assert_eq!(engine.draft_with(&other).unwrap_err().to_string(), error);
}

#[test]
fn every_end_is_the_same_at_every_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = Spec { ty: GgmlType::Q4_0, ..Spec::llama() }.write(folder.path()).0;
    let model = Model::open(&path, &crate::options()).unwrap();
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

/// What an engine gives: the tokens with the bits of their logits, and how it ended.
type OfEngine = (Vec<u32>, Option<Finish>);

/// What an engine gives for all that is asked, each a step after the one before, and how many steps it took.
fn of_engine(
    model: &Model,
    draft: Option<&Model>,
    all: &[Asked],
    speculate: Speculate,
) -> (Vec<OfEngine>, usize) {
    of_engine_of(3, model, draft, all, speculate)
}

fn of_engine_of(
    sequences: usize,
    model: &Model,
    draft: Option<&Model>,
    all: &[Asked],
    speculate: Speculate,
) -> (Vec<OfEngine>, usize) {
    let context = Some(all[0].context);
    // No bound on a step's time: how a prompt is cut, and so how many steps there are, must not depend on how busy the machine is.
    let step = Duration::MAX;
    let options = EngineOptions { sequences, context, speculate, step, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    if let Some(draft) = draft {
        engine.draft_with(draft).unwrap();
    }
    let (mut ids, mut steps) = (Vec::new(), 0);
    let mut found: Vec<OfEngine> = all.iter().map(|_| OfEngine::default()).collect();
    loop {
        if let Some(asked) = all.get(steps) {
            let request = Request {
                prompt: asked.prompt.clone(),
                sampling: asked.sampling,
                max_tokens: asked.max_tokens,
                ignore_eos: true,
                ..Request::default()
            };
            ids.push(engine.add(request).unwrap());
        }
        let more = engine
            .step(&mut |of, event| {
                let found = &mut found[ids.iter().position(|id| *id == of).unwrap()];
                match event {
                    Event::Token(token, logits) => {
                        found.0.push(token);
                        found.0.extend(logits.iter().map(|x| x.to_bits()));
                    }
                    Event::Finished(finish) => found.1 = Some(finish),
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            })
            .unwrap();
        steps += 1;
        if !more && steps >= all.len() {
            return (found, steps);
        }
    }
}

#[test]
fn engines_draft_for_each_sequence() {
    let folder = tempfile::tempdir().unwrap();
    for path in models(folder.path()) {
        let model = Model::open(&path, &crate::options()).unwrap();
        let real = std::fs::metadata(&path).unwrap().len() > 50_000_000;
        let mut steps = [0; 4];
        for seed in 0..if real || !models::everything() { 1 } else { 3 } {
            let one = |seed: u64| Asked { max_tokens: 18, ..asked(&model, seed) };
            let short = |seed: u64| {
                let asked = asked(&model, seed);
                let context = asked.prompt.len() + 13;
                Asked { max_tokens: 100, context, ..asked }
            };
            let cases =
                [vec![one(seed)], vec![one(seed), one(0), one(3), one(5)], vec![short(seed)]];
            // The real model is slow.
            let count = if real && !models::everything() { 2 } else { 3 };
            for case in cases.into_iter().take(count) {
                let (plain, plain_steps) = of_engine(&model, None, &case, Speculate::Off);
                for &speculate in lengths(false) {
                    for (i, draft) in [None, Some(&model)].into_iter().enumerate() {
                        let (found, drafted) = of_engine(&model, draft, &case, speculate);
                        let what = format!("{speculate:?}, seed {seed}, {}", path.display());
                        assert!(found == plain, "{what}");
                        assert!(drafted <= plain_steps, "{what}: {drafted} of {plain_steps}");
                        let many = 2 * usize::from(case.len() > 1);
                        steps[many] += plain_steps;
                        steps[many + 1] += if i == 1 { drafted } else { plain_steps };
                    }
                }
            }
        }
        println!("{}: {steps:?}", path.display());
        // The model itself is right about what is greedy.
        assert!(steps[1] < steps[0] && steps[3] < steps[2], "{steps:?}, {}", path.display());
    }
}

/// Sequences have drafts of seven tokens, more than there are rows for, when the prompts of others end.
#[test]
fn drafts_leave_a_row_for_every_prompt_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let open = |seed| {
        let path = Spec { ty: GgmlType::Q4_0, seed, ..Spec::llama() }.write(folder.path()).0;
        Model::open(&path, &crate::options()).unwrap()
    };
    // Hardly ever right, so that answers last.
    let (model, draft) = (open(1), open(77));
    let max_tokens = |i| if i < 11 { 40 } else { 1 };
    let all: Vec<Asked> =
        (0..40).map(|i| Asked { max_tokens: max_tokens(i), ..asked(&model, 1 + i) }).collect();
    let (plain, _) = of_engine_of(12, &model, None, &all, Speculate::Off);
    let (found, _) = of_engine_of(12, &model, Some(&draft), &all, Speculate::Tokens(7));
    assert!(found == plain);
}

/// The file shrinks while a token and its draft are to be computed: the sequence has all that came before, and nothing else.
#[test]
fn an_error_beside_a_draft_takes_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = Spec { ty: GgmlType::Q4_0, ..Spec::llama() }.write(folder.path()).0;
    let file = folder.path().join("shrinks.gguf");
    for n in 1..16 {
        std::fs::copy(&path, &file).unwrap();
        let model = Model::open(&file, &crate::options()).unwrap();
        let asked = asked(&model, 0);
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        let mut sampler = sampler(&model, asked.sampling);
        let speculate = Speculate::Tokens(7);
        let options = GenerateOptions { max_tokens: 40, ignore_eos: true, speculate };
        let mut came = 0;
        let done = generate(&mut session, &mut sampler, &asked.prompt, &options, &mut |_| {
            came += 1;
            if came == n {
                let file = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
                file.set_len(4096).unwrap();
            }
            ControlFlow::Continue(())
        });
        assert!(done.is_err());
        assert!(came >= n);
        assert_eq!(session.position(), asked.prompt.len() + came - 1, "{n}");
        assert_eq!(session.tokens().len(), session.position());
        std::fs::remove_file(&file).unwrap();
    }
}

/// The vocabularies differ at their ends, and the text has a token that the draft model does not have.
#[test]
fn a_draft_model_that_fails_fails_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    let open = |spec: Spec| {
        let path = Spec { ty: GgmlType::Q4_0, ..spec }.write(folder.path()).0;
        Model::open(&path, &OpenOptions { threads: Some(models::threads()), ..Default::default() })
            .unwrap()
    };
    let model = open(Spec::llama());
    let vocab = model.spec().vocab;
    let draft = open(Spec { vocab: vocab - 8, seed: 5, ..Spec::llama() });
    let with_last = |seed| {
        let mut asked = asked(&model, seed);
        asked.prompt.push(vocab as u32 - 1);
        asked
    };
    let speculate = Speculate::Tokens(3);
    let (plain, _) = answer(&model, &with_last(0), Speculate::Off);
    assert!(answer_with(&model, Some(&draft), &with_last(0), speculate).0 == plain);
    // Beside others, which have drafts.
    let all = [asked(&model, 0), with_last(3), asked(&model, 6), with_last(9)];
    let (plain, _) = of_engine(&model, None, &all, Speculate::Off);
    assert!(of_engine(&model, Some(&draft), &all, speculate).0 == plain);
}

#[test]
fn an_engine_gives_what_a_session_gives_in_sequences_that_become_long() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { long_context: Some(80), seed: 61, ty: GgmlType::Q4_0, ..Spec::llama() };
    let model = Model::open(&spec.write(folder.path()).0, &crate::options()).unwrap();
    let asked = |seed: u64, prompt: usize| {
        let asked = asked(&model, seed);
        let prompt = tokens(prompt, model.spec().vocab, 7 + seed / 2);
        Asked { prompt, max_tokens: 30, ..asked }
    };
    // Short all the time, at the border, long after some tokens, and long from the beginning.
    let all: Vec<Asked> = [40, 51, 52, 70, 79, 80, 81, 100]
        .iter()
        .enumerate()
        .map(|(i, n)| asked(i as u64, *n))
        .collect();
    for speculate in [Speculate::Off, Speculate::Auto, Speculate::Tokens(3), Speculate::Tokens(7)] {
        let (found, _) = of_engine(&model, Some(&model), &all, speculate);
        for (asked, (found, finish)) in all.iter().zip(found) {
            let (alone, _) = answer(&model, asked, Speculate::Off);
            let found: Vec<u32> =
                found.chunks(1 + model.spec().vocab).map(|token| token[0]).collect();
            assert_eq!(found, alone.tokens, "{speculate:?}, prompt of {}", asked.prompt.len());
            assert_eq!(finish, Some(alone.finish));
        }
    }
}
