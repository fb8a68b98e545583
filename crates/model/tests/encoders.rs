//! Encoders: the states, vectors and scores of texts against the definitions in float64, with mistakes that have to be seen; and the same bits whatever is
//! computed at the same time.

use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use alight_kernels::Isa;
use alight_model::spec::HeadActivation;
use alight_model::{
    Engine, EngineOptions, Event, Model, ModelError, OfPrompt, OpenOptions, Pooling, Request,
    RequestId, Session, SessionOptions,
};

use alight_testing::encoder_definition::{Definition, Mistake, mean};
use alight_testing::encoders::Encoder;
use alight_testing::models::{self, tokens};

/// Of root mean squares. What there is to differ is the rounding of f32.
const TOLERANCE: f64 = 1e-5;
/// The same for a decoder: a key or value here and there is turned to the next f16.
const DECODER: f64 = 1e-4;

/// A text, and where its second segment begins.
type Text = (Vec<u32>, Option<usize>);

fn open(path: &Path, threads: usize, isa: Isa) -> Model {
    let options = OpenOptions { threads: Some(threads), isa: Some(isa), ..OpenOptions::default() };
    Model::open(path, &options).unwrap()
}

fn request((prompt, second_segment): &Text, pooling: Pooling) -> Request {
    Request {
        prompt: prompt.clone(),
        second_segment: *second_segment,
        of_prompt: OfPrompt::Embedding(pooling),
        ..Request::default()
    }
}

/// The vectors of texts that are computed together.
fn vectors(model: &Model, batch: usize, texts: &[Text], pooling: Pooling) -> Vec<Vec<f32>> {
    let options = EngineOptions { batch, sequences: 4, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let ids: Vec<RequestId> =
        texts.iter().map(|text| engine.add(request(text, pooling)).unwrap()).collect();
    let mut found = vec![Vec::new(); ids.len()];
    let mut on_event = |id: RequestId, event: Event<'_>| match event {
        Event::Embedding(vector) => {
            found[ids.iter().position(|other| *other == id).unwrap()] = vector.to_vec();
        }
        Event::Reading { .. } => {}
        other => panic!("{other:?}"),
    };
    while engine.step(&mut on_event).unwrap() {}
    found
}

fn text(spec: &Encoder, n: usize) -> Text {
    (tokens(n, spec.vocab, spec.seed + n as u64), (n > 2).then_some(n / 3))
}

fn narrow(rows: impl IntoIterator<Item = Vec<f64>>) -> Vec<f32> {
    rows.into_iter().flatten().map(|x| x as f32).collect()
}

/// The root mean square of the differences, as a share of that of `expected`.
fn apart(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let squares = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(expected).map(|(a, b)| squares(a - b)).sum();
    (off / expected.iter().map(|x| squares(*x)).sum::<f64>()).sqrt()
}

/// The mistakes that an encoder of each architecture could make.
fn mistakes(spec: &Encoder) -> Vec<Mistake> {
    let mut all = vec![Mistake::Causal];
    let gelu = ["bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "modern-bert"];
    match spec.arch {
        "bert" => all.push(Mistake::LaterPositions),
        "jina-bert-v2" => {
            all.extend([Mistake::NoBias, Mistake::OneNorm, Mistake::NormedHeads]);
        }
        "t5encoder" => all.extend([Mistake::NoBias, Mistake::OtherSide]),
        _ => all.push(Mistake::OtherPairs),
    }
    if gelu.contains(&spec.arch) {
        all.push(Mistake::TanhGelu);
    }
    if spec.is_bert() {
        all.push(Mistake::NormsBefore);
    }
    if spec.segments > 1 {
        all.push(Mistake::OneSegment);
    }
    if spec.has_layer_norms() {
        all.push(Mistake::NoEmbeddingNorm);
    }
    if spec.window.is_some() {
        all.extend([Mistake::WideWindow, Mistake::LongerWindow, Mistake::OneBase]);
    }
    match spec.arch {
        "modern-bert" => all.extend([Mistake::FirstNorm, Mistake::SwappedHalves]),
        "neo-bert" => all.push(Mistake::SwappedHalves),
        "nomic-bert-moe" => all.extend([Mistake::NormedExperts, Mistake::NoBiasOfExperts]),
        _ => {}
    }
    all
}

#[test]
fn states_are_those_of_the_definition_and_mistakes_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    for spec in Encoder::every() {
        let (path, weights) = spec.write(folder.path());
        let definition = Definition::of(&spec, &weights);
        let texts = [1, 2, 17, 130].map(|n| text(&spec, n));
        let of = |definition: &Definition<'_>, (tokens, second): &Text| {
            let states = definition.states(tokens, second.unwrap_or(usize::MAX)).into_iter();
            narrow(states.map(|state| definition.projected(state)))
        };
        let expected = texts.each_ref().map(|text| of(&definition, text));
        let tolerance = if spec.causal { DECODER } else { TOLERANCE };
        let mut off = [0.0; 4];
        for isa in Isa::available() {
            let model = open(&path, models::threads(), isa);
            let found = vectors(&model, 512, &texts, Pooling::None);
            for (off, (found, expected)) in off.iter_mut().zip(found.iter().zip(&expected)) {
                *off = apart(found, expected);
                assert!(*off <= tolerance, "{isa}, {}: {off:e}", spec.arch);
            }
        }
        eprintln!("{}: {off:?}", spec.arch);
        for mistake in mistakes(&spec) {
            let wrong = Definition { mistake, ..Definition::of(&spec, &weights) };
            let text = 3;
            let wrong = apart(&of(&wrong, &texts[text]), &expected[text]);
            eprintln!("{}, {mistake:?}: {wrong:e}", spec.arch);
            let seen = wrong > 10.0 * off[text];
            assert!(seen, "{}: {mistake:?} is not seen: {wrong:e}", spec.arch);
        }
    }
}

#[test]
fn vectors_are_pooled_states_and_scores_those_of_the_classifier() {
    let folder = tempfile::tempdir().unwrap();
    let ranked = |labels, two_matrices, seed, spec| Encoder { labels, two_matrices, seed, ..spec };
    for spec in [
        Encoder::bert(),
        ranked(1, true, 21, Encoder::bert()),
        Encoder { relu: true, ..ranked(2, true, 26, Encoder::bert()) },
        ranked(3, false, 22, Encoder::bert()),
        ranked(2, true, 23, Encoder::modern_bert()),
        ranked(2, false, 24, Encoder::eurobert()),
        ranked(2, false, 25, Encoder::qwen3()),
        Encoder::gemma_embedding(),
    ] {
        let (path, weights) = spec.write(folder.path());
        let definition = Definition::of(&spec, &weights);
        let model = open(&path, models::threads(), Isa::best());
        let found = model.spec();
        let width = spec.dense.last().copied().unwrap_or(spec.hidden);
        assert_eq!((found.embedding_size, found.generates()), (width, spec.causal));
        assert_eq!(found.classifier.as_ref().map_or(0, |head| head.labels), spec.labels);
        let of_scores = match spec.arch {
            "modern-bert" => Pooling::Mean,
            "qwen3" => Pooling::Last,
            _ => Pooling::Cls,
        };
        if let Some(head) = &found.classifier {
            let modern = spec.arch == "modern-bert";
            let activation = match spec.relu {
                true => HeadActivation::Relu,
                false if modern => HeadActivation::Gelu,
                false => HeadActivation::Tanh,
            };
            assert_eq!((head.pooling, head.activation), (of_scores, activation));
        }
        let texts = [1, 2, 40].map(|n| text(&spec, n));
        for (tokens, second) in &texts {
            let states = definition.states(tokens, second.unwrap_or(usize::MAX));
            let [first, last] = [&states[0], &states[states.len() - 1]];
            let mut cases = vec![
                (Pooling::Cls, definition.projected(first.clone())),
                (Pooling::Last, definition.projected(last.clone())),
                (Pooling::Mean, definition.projected(mean(&states))),
            ];
            if spec.labels > 0 {
                let of = match of_scores {
                    Pooling::Mean => mean(&states),
                    Pooling::Last => last.clone(),
                    _ => first.clone(),
                };
                cases.push((Pooling::Rank, definition.scores(of)));
            }
            for (pooling, expected) in cases {
                let text = (tokens.clone(), *second);
                let found = vectors(&model, 64, &[text], pooling).remove(0);
                let expected = narrow([expected]);
                let off = apart(&found, &expected);
                let tolerance = if spec.causal { DECODER } else { TOLERANCE };
                assert!(off <= tolerance, "{}, {pooling:?}: {off:e}", spec.arch);
            }
        }
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_in_company() {
    let folder = tempfile::tempdir().unwrap();
    let wide = |ty, spec| Encoder { ty, hidden: 64, ff: 96, heads: 4, head_dim: 16, ..spec };
    let mut moe = wide(GgmlType::Q8_0, Encoder::nomic_bert_moe());
    (moe.kv_heads, moe.seed) = (4, 31);
    let mut bert = wide(GgmlType::Q8_0, Encoder::bert());
    (bert.kv_heads, bert.seed) = (4, 32);
    for spec in [
        Encoder::bert(),
        bert,
        Encoder::modern_bert(),
        Encoder::gemma_embedding(),
        Encoder::lfm2(),
        Encoder::qwen3(),
        Encoder::jina_bert_v2(),
        Encoder::t5encoder(),
        moe,
    ] {
        let path = spec.write(folder.path()).0;
        let lengths = [40, 33, 64, 7, 40, 12, 100, 1, 130];
        let texts = lengths.map(|n| text(&spec, n));
        let model = open(&path, 1, Isa::best());
        for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
            let alone: Vec<Vec<f32>> = texts
                .iter()
                .map(|text| vectors(&model, 512, std::slice::from_ref(text), pooling).remove(0))
                .collect();
            let same = |found: Vec<Vec<f32>>, what: &str| {
                for (n, (found, alone)) in lengths.iter().zip(found.iter().zip(&alone)) {
                    assert!(found == alone, "{}, {n} tokens, {pooling:?}, {what}", spec.arch);
                }
            };
            // More rows than a step has, and texts that are longer than a step.
            for batch in [512, 64, 16] {
                same(vectors(&model, batch, &texts, pooling), &format!("steps of {batch}"));
            }
            let mut reversed = texts.clone();
            reversed.reverse();
            let mut found = vectors(&model, 100, &reversed, pooling);
            found.reverse();
            same(found, "in another order");
            for threads in [2, 3] {
                let model = open(&path, threads, Isa::best());
                same(vectors(&model, 512, &texts, pooling), &format!("{threads} threads"));
            }
            for isa in models::levels() {
                let model = open(&path, 1, isa);
                same(vectors(&model, 512, &texts, pooling), &format!("{isa}"));
            }
        }
    }
}

#[test]
fn what_an_encoder_cannot_do_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Encoder::bert();
    let path = spec.write(folder.path()).0;
    let model = open(&path, 1, Isa::best());
    let session = Session::new(&model, &SessionOptions::default()).err().unwrap();
    assert!(session.to_string().contains("`alight embed`"), "{session}");
    let options = EngineOptions { context: Some(4096), ..EngineOptions::default() };
    let mut engine = Engine::new(&model, &options).unwrap();
    let answer = Request { prompt: vec![1, 2], max_tokens: 3, ..Request::default() };
    let refused = engine.add(answer).unwrap_err();
    assert!(matches!(refused, ModelError::Bidirectional { .. }), "{refused}");
    let refused = engine.add(request(&text(&spec, 9), Pooling::Rank)).unwrap_err();
    assert!(matches!(refused, ModelError::NoClassifier { .. }), "{refused}");
    // A position beyond the table.
    assert_eq!(engine.context(), spec.context);
    engine.add(request(&text(&spec, spec.context), Pooling::Mean)).unwrap();
    let refused = engine.add(request(&text(&spec, spec.context + 1), Pooling::Mean)).unwrap_err();
    assert!(matches!(refused, ModelError::ContextFull { limit: 160, .. }), "{refused}");
}

#[test]
fn keys_of_encoders_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Encoder { labels: 2, ..Encoder::bert() };
    let opened = |change: &dyn Fn(&mut Builder), skip: &str| {
        let mut b = spec.metadata(skip);
        change(&mut b);
        let path = folder.path().join("changed.gguf");
        std::fs::write(&path, spec.build_with(b).0).unwrap();
        Model::open(&path, &crate::options()).map_err(|error| error.to_string())
    };
    for (number, pooling) in [
        (0, Pooling::None),
        (1, Pooling::Mean),
        (2, Pooling::Cls),
        (3, Pooling::Last),
        (4, Pooling::Rank),
    ] {
        let model = opened(&|b| _ = b.u32("bert.pooling_type", number), "pooling_type").unwrap();
        assert_eq!(model.spec().pooling, Some(pooling));
    }
    assert_eq!(opened(&|_| {}, "pooling_type").unwrap().spec().pooling, None);
    let names = |b: &mut Builder| {
        b.strs("bert.classifier.output_labels", &["no", "yes"]);
        b.str("bert.classifier.activation", "silu").u32("bert.classifier.pooling_type", 1);
    };
    let model = opened(&names, "").unwrap();
    let head = model.spec().classifier.as_ref().unwrap();
    assert_eq!((head.names.as_slice(), head.labels), (&["no".to_owned(), "yes".into()][..], 2));
    assert_eq!((head.activation, head.pooling), (HeadActivation::Silu, Pooling::Mean));
    // Files may leave out that it is an encoder, but not say that it is none.
    assert!(opened(&|_| {}, "attention.causal").is_ok());
    for (what, change, skip) in [
        (
            "pooling_type",
            (|b| _ = b.u32("bert.pooling_type", 5)) as fn(&mut Builder),
            "pooling_type",
        ),
        ("classifier.activation", |b| _ = b.str("bert.classifier.activation", "sigmoid"), ""),
        ("classifier.pooling_type", |b| _ = b.u32("bert.classifier.pooling_type", 3), ""),
        ("attention.causal", |b| _ = b.bool("bert.attention.causal", true), "attention.causal"),
    ] {
        let error = opened(&|b| change(b), skip).err().unwrap();
        assert!(error.contains(what), "{what}: {error}");
    }
}
