//! An answer does not depend on its neighbours: tokens and logits of many requests that are computed together, in random order,
//! with others that come and are cancelled, are those of each request alone, bit for bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use alight_formats::GgmlType;
use alight_kernels::Isa;
use alight_model::spec::Mixer;
use alight_model::{
    Engine, EngineOptions, Event, Finish, Model, ModelError, OpenOptions, Request, RequestId,
    Sampler, SamplerOptions, Session, SessionOptions,
};

use alight_testing::models::{self, Spec, tokens};

/// Tokens of an answer, and a hash of the bits of the logits that each was chosen by.
type Answer = Vec<(u32, u64)>;

fn hash(logits: &[f32]) -> u64 {
    logits.iter().fold(0xcbf2_9ce4_8422_2325, |hash, x| {
        (hash ^ u64::from(x.to_bits())).wrapping_mul(0x0100_0000_01b3)
    })
}

fn models(folder: &Path) -> Vec<PathBuf> {
    let quantised = |ty, spec| Spec { ty, ..spec }.write(folder).0;
    let mut all = vec![
        quantised(GgmlType::Q4_0, Spec::llama()),
        quantised(GgmlType::Q8_0, Spec::gemma3()),
        quantised(GgmlType::Q8_0, Spec::qwen2moe()),
        quantised(GgmlType::Q4_0, Spec::gpt_oss()),
        quantised(GgmlType::F16, Spec::qwen35()),
        quantised(GgmlType::F16, Spec::granitehybrid()),
        quantised(GgmlType::F16, Spec::lfm2()),
        quantised(GgmlType::F16, Spec::falcon_h1()),
        quantised(GgmlType::F16, Spec::jamba()),
        quantised(GgmlType::F16, Spec::kimi_linear()),
        quantised(GgmlType::F16, Spec::rwkv7()),
        quantised(GgmlType::Q8_0, Spec::refact()),
        quantised(GgmlType::F16, Spec::smallthinker()),
        Spec::deepseek2().write(folder).0,
        Spec::deepseek2_before_2025().write(folder).0,
        Spec::llama4().write(folder).0,
    ];
    all.extend(models::real_model(models::SMOLLM2));
    all
}

fn open(path: &Path, threads: usize, isa: Isa) -> Model {
    let options = OpenOptions { threads: Some(threads), isa: Some(isa), ..OpenOptions::default() };
    Model::open(path, &options).unwrap()
}

/// Prompts of all lengths, some of which begin alike.
fn requests(count: usize, vocab: usize, longest: usize, max_tokens: usize) -> Vec<Request> {
    let beginning = tokens(longest, vocab, 77);
    let request = |i: usize| {
        let own = tokens(1 + i * 37 % longest, vocab, 100 + i as u64);
        let shared = if i.is_multiple_of(3) { longest / 2 } else { 0 };
        let prompt = [&beginning[..shared], &own].concat();
        let sampling = match i % 2 {
            0 => SamplerOptions::greedy(),
            _ => SamplerOptions {
                temperature: 1.0,
                seed: i as u64,
                repeat_penalty: 1.1,
                dry_multiplier: 0.5,
                dry_allowed_length: 1,
                xtc_probability: 0.3,
                mirostat: i / 2 % 3,
                ..SamplerOptions::default()
            },
        };
        Request {
            prompt,
            sampling,
            max_tokens: 1 + i * 5 % max_tokens,
            ignore_eos: true,
            ..Request::default()
        }
    };
    (0..count).map(request).collect()
}

/// The answer to a request that is alone, by a session.
fn alone(model: &Model, request: &Request) -> Answer {
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    let breakers = request.sampling.breakers(model.tokenizer(), None);
    let sampler = Sampler::new(request.sampling, model.tokenizer().vocab_size());
    let mut sampler = sampler.with_breakers(breakers);
    session.feed(&request.prompt).unwrap();
    request.prompt.iter().for_each(|token| sampler.accept(*token));
    let mut answer = Answer::new();
    while answer.len() < request.max_tokens {
        let logits = session.logits();
        let (token, hash) = (sampler.sample(logits), hash(logits));
        sampler.accept(token);
        answer.push((token, hash));
        session.decode(token).unwrap();
    }
    answer
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// All requests in random order, with others between them that are cancelled after a while.
fn together(model: &Model, all: &[Request], sequences: usize, step: Duration) -> Vec<Answer> {
    let options = EngineOptions { sequences, step, batch: 48, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let mut random = Random(sequences as u64);
    let mut left: Vec<usize> = (0..all.len()).collect();
    let mut answers = vec![Answer::new(); all.len()];
    let mut finished = vec![false; all.len()];
    let mut ids: BTreeMap<RequestId, usize> = BTreeMap::new();
    let mut others: Vec<RequestId> = Vec::new();
    loop {
        for _ in 0..random.below(3) {
            if !left.is_empty() {
                let i = left.swap_remove(random.below(left.len()));
                ids.insert(engine.add(all[i].clone()).unwrap(), i);
            }
        }
        if random.below(4) == 0 {
            let prompt = tokens(1 + random.below(90), 200, random.0);
            let request = Request { prompt, max_tokens: 1000, ..all[0].clone() };
            others.push(engine.add(request).unwrap());
        }
        if random.below(5) == 0 || left.is_empty() {
            others.pop().map(|id| engine.cancel(id));
        }
        let more = engine
            .step(&mut |id, event| {
                let Some(&i) = ids.get(&id) else { return };
                assert!(!finished[i], "after its end");
                match event {
                    Event::Prompt { .. } => assert!(answers[i].is_empty()),
                    Event::Token(token, logits) => answers[i].push((token, hash(logits))),
                    Event::Finished(finish) => {
                        assert_eq!(finish, Finish::Length);
                        finished[i] = true;
                    }
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            })
            .unwrap();
        if !more && left.is_empty() {
            assert!(finished.iter().all(|finished| *finished) && engine.is_idle());
            return answers;
        }
    }
}

#[test]
fn answers_do_not_depend_on_their_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    for path in models(folder.path()) {
        let real = std::fs::metadata(&path).unwrap().len() > 50_000_000;
        for isa in models::levels() {
            if real && isa != Isa::best() {
                continue;
            }
            let model = open(&path, models::threads(), isa);
            let vocab = model.spec().vocab.min(40_000);
            // All on the best level, some on the others.
            let (count, longest, most) = match (real, isa == Isa::best()) {
                (true, _) => (5, 60, 6),
                (false, true) => (40, 140, 14),
                (false, false) => (14, 80, 8),
            };
            let all = requests(count, vocab, longest, most);
            let expected: Vec<Answer> = all.iter().map(|request| alone(&model, request)).collect();
            let all_sizes = !real && isa == Isa::best();
            let sizes = match (all_sizes, models::everything()) {
                (true, true) => &[1, 2, 5, 16][..],
                (true, false) => &[2, 16],
                (false, _) => &[5],
            };
            for sequences in sizes {
                // However little time a step may take.
                let steps = [Duration::ZERO, Duration::from_secs(1)];
                let steps = match (models::everything(), *sequences) {
                    (true, _) => &steps[..],
                    (false, ..=5) => &steps[..1],
                    (false, _) => &steps[1..],
                };
                for &step in steps {
                    let found = together(&model, &all, *sequences, step);
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        let what = format!("{isa}, {sequences} sequences, {}", path.display());
                        assert!(found == expected, "request {i}: {what}");
                    }
                }
            }
        }
    }
}

/// What a request gets, and how much of its prompt was not computed.
fn answer(engine: &mut Engine<'_>, request: &Request) -> (Answer, usize) {
    let id = engine.add(request.clone()).unwrap();
    let (mut answer, mut all) = (Answer::new(), None);
    while engine
        .step(&mut |other, event| {
            assert_eq!(other, id);
            match event {
                Event::Prompt { reused, .. } => assert!(all.replace(reused).is_none()),
                Event::Token(token, logits) => answer.push((token, hash(logits))),
                Event::Finished(finish) => assert_eq!(finish, Finish::Length),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        })
        .unwrap()
    {}
    (answer, all.unwrap())
}

fn request(prompt: Vec<u32>, seed: u64) -> Request {
    let sampling = SamplerOptions { temperature: 1.0, seed, ..SamplerOptions::default() };
    Request { prompt, sampling, max_tokens: 3, ignore_eos: true, ..Request::default() }
}

#[test]
fn a_prompt_goes_on_where_it_differs_from_earlier_ones() {
    let folder = tempfile::tempdir().unwrap();
    for (i, path) in models(folder.path()).into_iter().enumerate() {
        let model = open(&path, models::threads(), Isa::best());
        let recurrent = model.spec().layers.iter().any(|layer| {
            !matches!(layer.mixer, None | Some(Mixer::Attention(_) | Mixer::LatentAttention(_)))
        });
        let windowed = model.spec().stored().any(|stored| stored.positions.is_some());
        let vocab = model.spec().vocab.min(40_000) - 1;
        let options = EngineOptions { sequences: 3, batch: 80, ..EngineOptions::default() };
        let mut engine = Engine::new(&model, &options).unwrap();
        let long = tokens(if recurrent || windowed { 480 } else { 150 }, vocab, 5);
        let real = model.file_bytes() > 50_000_000;
        // Every length with the first model.
        let lengths: Vec<usize> = match (i, recurrent) {
            (0, _) => (1..long.len()).collect(),
            (_, false) if real => vec![1, 64, 93],
            (_, false) if windowed => vec![1, 63, 129, 300, 330, 440, 448, 449, 478, 479],
            (_, false) => vec![1, 15, 63, 64, 65, 100, 127, 128, 129, 148, 149],
            (_, true) => vec![1, 63, 64, 129, 300, 330, 440, 448, 449, 479],
        };
        let first = request(long.clone(), 1);
        let expected = alone(&model, &first);
        assert_eq!(answer(&mut engine, &first), (expected.clone(), 0), "{}", path.display());
        let mut kept = if recurrent { vec![448] } else { Vec::new() };
        for n in lengths {
            let what = format!("{n} tokens, {}", path.display());
            // A token that the long prompt does not have there.
            let other = if long[n] == 3 { 4 } else { 3 };
            let request = request([&long[..n], &[other, 7, 8]].concat(), n as u64);
            let (found, reused) = answer(&mut engine, &request);
            assert!(found == alone(&model, &request), "{what}");
            if recurrent {
                // States are kept at the end of what was computed, and where prompts have parted.
                let most = kept.iter().filter(|at| **at <= n).max().copied().unwrap_or(0);
                assert_eq!(reused, most, "{what}");
                let page = n / 64 * 64;
                if page >= most + 256 {
                    kept.push(page);
                }
            } else if windowed {
                // The pages that a window of 12 needs are kept at the end of a prompt, and from the second time on where prompts have parted.
                assert!(if n >= 440 { reused == n } else { reused <= n }, "{reused}: {what}");
                let again = [&long[..n], &[other, 9, 8]].concat();
                let again = self::request(again, n as u64);
                let (found, reused) = answer(&mut engine, &again);
                assert!(found == alone(&model, &again), "{what}");
                assert!(if n >= 300 { reused == n + 1 } else { reused <= n + 1 }, "{what}");
            } else {
                assert_eq!(reused, n, "{what}");
            }
        }
        let (found, reused) = answer(&mut engine, &first);
        assert!(found == expected, "{}", path.display());
        assert_eq!(reused, if recurrent { 448 } else { long.len() - 1 });
        // Nobody else finds out that it was asked.
        let salted = Request { salt: "another user".into(), ..first.clone() };
        assert_eq!(answer(&mut engine, &salted), (expected.clone(), 0));
        assert_eq!(answer(&mut engine, &salted).1, reused);
    }
}

#[test]
fn prompts_that_begin_alike_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    for spec in [Spec::llama(), Spec::qwen35(), Spec::gemma3(), Spec::llama4()] {
        let model = open(&spec.write(folder.path()).0, 2, Isa::best());
        let beginning = tokens(400, 290, 5);
        let all: Vec<Request> = (0..5)
            .map(|i| request([&beginning[..], &tokens(90 + i, 290, i as u64)].concat(), i as u64))
            .collect();
        let options = EngineOptions { sequences: 4, batch: 48, ..EngineOptions::default() };
        let mut engine = Engine::new(&model, &options).unwrap();
        let ids: Vec<_> = all.iter().map(|r| engine.add(r.clone()).unwrap()).collect();
        let mut answers = vec![Answer::new(); all.len()];
        let mut shared = vec![0; all.len()];
        while engine
            .step(&mut |id, event| {
                let i = ids.iter().position(|other| *other == id).unwrap();
                match event {
                    Event::Prompt { reused, .. } => shared[i] = reused,
                    Event::Token(token, logits) => answers[i].push((token, hash(logits))),
                    Event::Finished(_) => {}
                    Event::Failed(error) => panic!("{error}"),
                    _ => {}
                }
            })
            .unwrap()
        {}
        for (request, found) in all.iter().zip(&answers) {
            assert!(*found == alone(&model, request));
        }
        assert_eq!(shared[..4], [0, 384, 384, 384]);
        assert!(shared[4] >= 384, "{shared:?}");
    }
}

#[test]
fn what_is_kept_of_prompts_stays_under_its_limit_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    for spec in [Spec::llama(), Spec::qwen35(), Spec::deepseek2(), Spec::gpt_oss()] {
        let model = open(&spec.write(folder.path()).0, 2, Isa::best());
        // Some hundred pages, or states of a few prompts.
        for prompt_cache in [0, 1, 40 << 10, 300 << 10] {
            let options =
                EngineOptions { sequences: 3, batch: 64, prompt_cache, ..EngineOptions::default() };
            let mut engine = Engine::new(&model, &options).unwrap();
            let beginnings = [1, 2, 3].map(|seed| tokens(330, 290, seed));
            for i in 0..24usize {
                let own = tokens(20, 290, 50 + i as u64 / 6);
                let beginning = &beginnings[i * 7 % 3][..330 - i * 11];
                let request = request([beginning, &own].concat(), i as u64);
                let (found, reused) = answer(&mut engine, &request);
                assert!(found == alone(&model, &request), "request {i} of {prompt_cache} bytes");
                assert!(prompt_cache > 1 || reused == 0);
                assert!(engine.kept_bytes() <= prompt_cache);
            }
        }
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit_of_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    for spec in [Spec::qwen2moe(), Spec::qwen35(), Spec::deepseek2()] {
        let path = spec.write(folder.path()).0;
        let answers = [1, 3, 4].map(|threads| {
            let model = open(&path, threads, Isa::best());
            together(&model, &requests(12, 300, 90, 9), 6, Duration::from_millis(1))
        });
        assert!(answers[0] == answers[1] && answers[0] == answers[2], "{}", path.display());
    }
}

#[test]
fn what_cannot_be_computed_is_refused_and_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let model = open(&Spec::llama().write(folder.path()).0, 2, Isa::best());
    let options = EngineOptions { context: Some(20), sequences: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, &options).unwrap();
    let request = |prompt: Vec<u32>| Request {
        prompt,
        sampling: SamplerOptions::greedy(),
        max_tokens: usize::MAX,
        ignore_eos: true,
        ..Request::default()
    };
    assert!(matches!(engine.add(request(Vec::new())), Err(ModelError::EmptyInput)));
    assert!(matches!(
        engine.add(request(vec![1, 300])),
        Err(ModelError::TokenRange { id: 300, vocab: 300 })
    ));
    assert!(matches!(
        engine.add(request(tokens(21, 300, 1))),
        Err(ModelError::ContextFull { used: 0, asked: 21, limit: 20, .. })
    ));
    assert!(engine.is_idle() && !engine.step(&mut |_, _| panic!("nothing was asked")).unwrap());
    let lengths = [20, 5, 19];
    let ids = lengths.map(|n| engine.add(request(tokens(n, 300, n as u64))).unwrap());
    let mut counts = [0; 3];
    let mut ends = Vec::new();
    while engine
        .step(&mut |id, event| {
            let i = ids.iter().position(|other| *other == id).unwrap();
            match event {
                Event::Prompt { reused, .. } => assert_eq!(reused, 0),
                Event::Token(..) => counts[i] += 1,
                Event::Finished(finish) => ends.push((i, finish)),
                Event::Failed(error) => panic!("{error}"),
                _ => {}
            }
        })
        .unwrap()
    {}
    // The last token that is handed out needs no position.
    assert_eq!(counts, [1, 16, 2]);
    ends.sort_by_key(|(i, _)| *i);
    assert_eq!(ends, [0, 1, 2].map(|i| (i, Finish::ContextFull)));
    assert!(!engine.cancel(ids[0]), "it has ended");
    for (sequences, batch) in [(0, 1), (2000, 1), (1, 0), (1, 100_000)] {
        let options = EngineOptions { sequences, batch, ..EngineOptions::default() };
        assert!(matches!(Engine::new(&model, &options), Err(ModelError::Options { .. })));
    }
}
