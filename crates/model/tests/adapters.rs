//! Adapters: what they compute is what a model computes whose weights they are added to; an adapter at a scale of 0 is none; and a sequence has the bits
//! that it has alone, whatever adapters its neighbours have.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_formats::GgmlType;
use alight_formats::gguf::{self, write::Builder};
use alight_kernels::Isa;
use alight_model::{
    Adapter, AdapterOpenError, AdapterSet, Engine, EngineOptions, Event, Model, OpenOptions,
    PromptFolder, Repack, Request, SamplerOptions, Session, SessionOptions, Speculate,
};
use alight_testing::adapters::{self, AdapterSpec};
use alight_testing::models::{self, Recurrence, Spec, distance, tokens};

fn open(path: &Path) -> Model {
    Model::open(path, &crate::options()).unwrap()
}

/// Writes an adapter and opens it for a model.
fn adapter(model: &Model, folder: &Path, spec: &AdapterSpec, names: &[String]) -> Arc<Adapter> {
    let path = folder.join(format!("adapter-{}-{}.gguf", spec.seed, spec.rank));
    let base = std::fs::read(model.files().next().unwrap()).unwrap();
    std::fs::write(&path, adapters::adapter(&base, spec, names)).unwrap();
    Arc::new(model.open_adapter(&path).unwrap())
}

/// The matrices of a model that adapters can change, and those that they cannot.
fn names(model: &Model, folder: &Path) -> (Vec<String>, Vec<String>) {
    let base = std::fs::read(model.files().next().unwrap()).unwrap();
    let path = folder.join("trial.gguf");
    let can = |name: &String| {
        std::fs::write(
            &path,
            adapters::adapter(&base, &AdapterSpec::default(), std::slice::from_ref(name)),
        )
        .unwrap();
        match model.open_adapter(&path) {
            Ok(_) => true,
            Err(AdapterOpenError::NotApplied { name: found, .. }) => {
                assert_eq!(found, *name);
                false
            }
            Err(error) => panic!("{error}"),
        }
    };
    adapters::matrices(&base).into_iter().partition(can)
}

/// The logits of a prompt in parts of `batch` tokens, and of a few decoded tokens after it.
fn logits(model: &Model, batch: usize, set: &AdapterSet) -> Vec<f32> {
    let options = SessionOptions { batch, ..SessionOptions::default() };
    let mut session = Session::new(model, &options).unwrap();
    session.set_adapters(set).unwrap();
    let all = tokens(40, model.spec().vocab, 5);
    let mut found = session.feed(&all[..35]).unwrap().to_vec();
    for token in &all[35..] {
        found.extend(session.decode(*token).unwrap());
    }
    found
}

fn one(adapter: &Arc<Adapter>, scale: f32) -> AdapterSet {
    AdapterSet::new([(adapter.clone(), scale)])
}

fn hybrid(kind: Recurrence, spec: Spec) -> Spec {
    Spec { recurrent: Some((kind, 3)), ..spec }
}

/// Weights of F32 of each kind of part, and the tensors of them that adapters cannot change.
fn kinds() -> Vec<(Spec, &'static [&'static str])> {
    let fused = |mut spec: Spec| {
        spec.moe.as_mut().unwrap().fused = true;
        spec
    };
    vec![
        (Spec { biases: true, ..Spec::llama() }, &[]),
        (Spec::gemma3(), &[]),
        (Spec::gemma3n(), &["altup", "laurel", "per_layer"]),
        (hybrid(Recurrence::DeltaNet([2, 4, 32]), Spec::qwen35()), &["ssm_conv1d"]),
        (Spec::deepseek2(), &[]),
        (Spec { ty: GgmlType::F32, ..Spec::deepseek2_before_2025() }, &[]),
        (Spec::lfm2(), &["shortconv.conv"]),
        (Spec::nemotron_h_moe(), &["ssm_conv1d", "ssm_norm"]),
        (Spec::qwen2moe(), &[]),
        (Spec::qwen3moe(), &[]),
        (fused(Spec::qwen3moe()), &[]),
        (Spec::gpt_oss(), &[]),
        (Spec::gptoss(), &[]),
        (Spec::llama4(), &[]),
        (Spec::rwkv7(), &["lerp", "time_mix_r_k"]),
    ]
}

#[test]
fn an_adapter_is_computed_as_if_it_were_in_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (spec, others) in kinds() {
        let (path, _) = spec.write(folder.path());
        let (base, model) = (std::fs::read(&path).unwrap(), open(&path));
        let (mut names, left) = names(&model, folder.path());
        let expected = |name: &String| others.iter().any(|other| name.contains(other));
        assert!(left.iter().all(expected), "{}: {left:?}", spec.arch);
        // A tied output would change with the embedding.
        names.retain(|name| name != "token_embd.weight" || !spec_is_tied(&base));
        let made = AdapterSpec { rank: 2, seed: 3, size: 0.1, ..AdapterSpec::default() };
        let opened = adapter(&model, folder.path(), &made, &names);
        let bytes = std::fs::read(opened.path()).unwrap();
        for scale in [1.0, -0.5] {
            let merged = folder.path().join("merged.gguf");
            std::fs::write(&merged, adapters::merged(&base, &bytes, f64::from(scale))).unwrap();
            let expected = logits(&open(&merged), 64, &AdapterSet::default());
            let base = logits(&model, 64, &AdapterSet::default());
            for batch in [64, 7] {
                let found = logits(&model, batch, &one(&opened, scale));
                let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
                let [off, moved] = [&found, &base].map(|other| distance(&expected, other) / size);
                // Sums of f32 in another order; the thresholds of Gemma 3n's gates amplify the difference.
                let near = off < 2e-3 && moved > 0.01 && off < moved / 200.0;
                assert!(near, "{} at {scale}: {off:e}, and without {moved}", spec.arch);
            }
        }
    }
}

fn spec_is_tied(base: &[u8]) -> bool {
    gguf::parse(base).unwrap().tensor("output.weight").is_none()
}

/// Of quantised weights, packed ones too.
#[test]
fn a_scale_of_0_changes_no_bit_and_any_cut_yields_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::F16] {
        let mut moe = Spec::qwen3moe();
        moe.moe.as_mut().unwrap().width = 64;
        for spec in [Spec { ty, ..Spec::llama() }, Spec { ty, ..moe }] {
            for repack in [Repack::Off, Repack::On] {
                let (path, _) = spec.write(folder.path());
                let model =
                    Model::open(&path, &OpenOptions { repack, ..crate::options() }).unwrap();
                let (names, _) = names(&model, folder.path());
                let opened = adapter(&model, folder.path(), &AdapterSpec::default(), &names);
                let base = logits(&model, 64, &AdapterSet::default());
                assert_eq!(logits(&model, 64, &one(&opened, 0.0)), base, "a scale of 0");
                let opposite = [(opened.clone(), 0.5), (opened.clone(), -0.5)];
                assert!(AdapterSet::new(opposite).is_empty());
                let whole = logits(&model, 64, &one(&opened, 0.5));
                assert_ne!(whole, base);
                assert_eq!(logits(&model, 3, &one(&opened, 0.5)), whole, "cut in another way");
            }
        }
    }
}

/// Adapters of some ranks, types and sizes, of some or all of the matrices.
fn several(model: &Model, folder: &Path) -> Vec<AdapterSet> {
    let (names, _) = names(model, folder);
    let adapter = |rank: usize, ty, of: &dyn Fn(usize) -> bool| {
        let some: Vec<String> = names
            .iter()
            .enumerate()
            .filter(|(i, _)| of(*i))
            .map(|(_, name)| name.clone())
            .collect();
        let seed = 10 + rank as u64;
        adapter(
            model,
            folder,
            &AdapterSpec { rank, seed, ty, size: 0.2, ..AdapterSpec::default() },
            &some,
        )
    };
    let all = [
        adapter(1, GgmlType::F32, &|_| true),
        adapter(3, GgmlType::F16, &|i| i % 2 == 0),
        adapter(8, GgmlType::BF16, &|i| i % 3 != 0),
    ];
    vec![
        AdapterSet::default(),
        one(&all[0], 1.0),
        one(&all[1], 1.0),
        one(&all[1], -2.0),
        AdapterSet::new([(all[0].clone(), 0.5), (all[2].clone(), 1.0)]),
        AdapterSet::new([(all[2].clone(), 1.0), (all[1].clone(), 0.25), (all[0].clone(), -1.0)]),
    ]
}

type Answer = Vec<(u32, Vec<u32>)>;

/// Tokens and logits of all requests, which are computed together.
fn together(model: &Model, options: &EngineOptions, all: &[Request]) -> Vec<Answer> {
    let mut engine = Engine::new(model, options).unwrap();
    let ids: Vec<_> = all.iter().map(|request| engine.add(request.clone()).unwrap()).collect();
    let mut answers = vec![Answer::new(); all.len()];
    while engine
        .step(&mut |id, event| match event {
            Event::Token(token, logits) => {
                let at = ids.iter().position(|other| *other == id).unwrap();
                answers[at].push((token, logits.iter().map(|x| x.to_bits()).collect()));
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        })
        .unwrap()
    {}
    answers
}

fn bases(folder: &Path) -> Vec<PathBuf> {
    let quantised = |ty, spec| Spec { ty, ..spec }.write(folder).0;
    vec![
        quantised(GgmlType::Q4_0, Spec::llama()),
        quantised(GgmlType::Q8_0, Spec::qwen2moe()),
        quantised(GgmlType::F16, Spec::qwen35()),
        quantised(GgmlType::Q8_0, Spec::gemma3()),
        Spec::deepseek2().write(folder).0,
        Spec::gpt_oss().write(folder).0,
    ]
}

/// With drafts, with prompts that begin alike under several adapters, and with requests that wait for others to end.
#[test]
fn a_sequence_has_the_bits_that_it_has_alone() {
    let folder = tempfile::tempdir().unwrap();
    for path in bases(folder.path()) {
        let mut levels: Vec<(Isa, Vec<Answer>)> = Vec::new();
        for isa in models::levels() {
            let options = OpenOptions { isa: Some(isa), ..crate::options() };
            let model = Model::open(&path, &options).unwrap();
            let sets = several(&model, folder.path());
            let beginning = tokens(90, model.spec().vocab, 3);
            let requests: Vec<Request> = (0..2 * sets.len())
                .map(|i| Request {
                    prompt: [
                        &beginning[..70 + i % 5],
                        &tokens(1 + i, model.spec().vocab, i as u64),
                    ]
                    .concat(),
                    sampling: SamplerOptions::greedy(),
                    max_tokens: 7,
                    ignore_eos: true,
                    adapters: sets[i % sets.len()].clone(),
                    ..Request::default()
                })
                .collect();
            let cold = EngineOptions {
                sequences: 1,
                prompt_cache: 0,
                speculate: Speculate::Off,
                ..EngineOptions::default()
            };
            let alone: Vec<Answer> = requests
                .iter()
                .map(|request| together(&model, &cold, std::slice::from_ref(request)).remove(0))
                .collect();
            for (i, answer) in alone.iter().enumerate() {
                let others = alone[..i % sets.len()].iter();
                assert!(others.clone().all(|other| other[0].1 != answer[0].1), "another answer");
            }
            for sequences in [3, 8] {
                for speculate in [Speculate::Off, Speculate::Tokens(4)] {
                    let options = EngineOptions {
                        sequences,
                        batch: 48,
                        speculate,
                        ..EngineOptions::default()
                    };
                    let found = together(&model, &options, &requests);
                    assert!(
                        found == alone,
                        "{path:?} at {isa:?} with {sequences} sequences, {speculate:?}"
                    );
                }
            }
            levels.push((isa, alone));
        }
        for (isa, answers) in &levels {
            assert!(
                *answers == levels[0].1,
                "{path:?}: {isa:?} yields the bits of {:?}",
                levels[0].0
            );
        }
    }
}

/// A prompt is computed under one adapter, without one, under another scale, and again: each finds its own only, in memory and in files.
#[test]
fn a_prompt_of_one_adapter_is_not_found_under_another() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec { ty: GgmlType::Q8_0, ..Spec::llama() }.write(folder.path());
    let model = open(&path);
    let sets = several(&model, folder.path());
    let prompts = PromptFolder::new(folder.path().join("prompts"), u64::MAX);
    let prompt = tokens(200, model.spec().vocab, 3);
    for round in 0..2 {
        // The second engine finds them in files.
        let options = EngineOptions { prompts: Some(prompts.clone()), ..EngineOptions::default() };
        let mut engine = Engine::new(&model, &options).unwrap();
        for again in [false, true] {
            for (number, set) in sets.iter().enumerate() {
                let request = Request {
                    prompt: prompt.clone(),
                    max_tokens: 1,
                    adapters: set.clone(),
                    ..Request::default()
                };
                engine.add(request).unwrap();
                let mut found = None;
                while engine
                    .step(&mut |_, event| {
                        if let Event::Prompt { reused, .. } = event {
                            found = Some(reused);
                        }
                    })
                    .unwrap()
                {}
                let known = again || round == 1;
                assert_eq!(found.unwrap() > 0, known, "set {number}, round {round}");
                engine.keep(("", set), &prompt).unwrap();
            }
        }
    }
    // In a session as well, whose sequence forgets what other adapters computed.
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    for set in &sets {
        session.set_adapters(set).unwrap();
        assert_eq!(session.position(), 0);
        let restored = session.restore(&prompts, &prompt).positions;
        assert!(restored >= 192, "{restored}");
        let warm = session.feed(&prompt[restored..]).unwrap().to_vec();
        let mut cold = Session::new(&model, &SessionOptions::default()).unwrap();
        cold.set_adapters(set).unwrap();
        assert_eq!(warm, cold.feed(&prompt).unwrap());
    }
}

#[test]
fn magnitudes_and_biases_are_those_of_the_definition() {
    let folder = tempfile::tempdir().unwrap();
    for spec in [Spec { biases: true, ..Spec::llama() }, Spec::gemma3(), Spec::qwen2()] {
        let (path, _) = Spec { ty: GgmlType::F32, ..spec }.write(folder.path());
        let (base, model) = (std::fs::read(&path).unwrap(), open(&path));
        let (mut names, _) = names(&model, folder.path());
        names.retain(|name| name != "token_embd.weight");
        let made = AdapterSpec { dora: true, seed: 8, ..AdapterSpec::default() };
        let opened = adapter(&model, folder.path(), &made, &names);
        let bytes = std::fs::read(opened.path()).unwrap();
        let base_logits = logits(&model, 64, &AdapterSet::default());
        for scale in [1.0, 0.5] {
            let merged = folder.path().join("merged.gguf");
            std::fs::write(&merged, adapters::merged(&base, &bytes, f64::from(scale))).unwrap();
            let expected = logits(&open(&merged), 64, &AdapterSet::default());
            let found = logits(&model, 64, &one(&opened, scale));
            let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
            let [off, moved] =
                [&found, &base_logits].map(|other| distance(&expected, other) / size);
            assert!(off < 1e-4 && moved > 0.05, "{path:?} at {scale}: {off:e}, {moved}");
        }
        let zero = logits(&model, 64, &one(&opened, 0.0));
        assert_eq!(zero, base_logits);
    }
}

/// A whole output, embedding and matrix, and another bias, of another model of the same shape: alone they make it that model.
#[test]
fn tensors_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { biases: true, tied: false, ty: GgmlType::F32, ..Spec::llama() };
    let (path, _) = spec.write(folder.path());
    let (other, _) = Spec { seed: 77, ..spec }.write(folder.path());
    let (base, other) = (std::fs::read(&path).unwrap(), std::fs::read(&other).unwrap());
    let model = open(&path);
    let names = ["token_embd.weight", "output.weight", "blk.1.attn_k.weight", "blk.0.attn_q.bias"];
    let has = |name: &&str| gguf::parse(&base[..]).unwrap().tensor(name).is_some();
    let names: Vec<&str> = names.into_iter().filter(has).collect();
    assert!(names.len() >= 3, "{names:?}");
    let (from, into) = (gguf::parse(&other[..]).unwrap(), gguf::parse(&base[..]).unwrap());
    let mut whole = base.clone();
    let mut file = Builder::new();
    file.str("general.type", "adapter")
        .str("general.architecture", "llama")
        .str("adapter.type", "lora");
    for name in &names {
        let [info, place] = [&from, &into].map(|gguf| gguf.tensor(name).unwrap());
        whole[place.range()].copy_from_slice(&other[info.range()]);
        file.tensor(&format!("{name}.lora_override"), GgmlType::F32, info.shape()).unwrap();
    }
    let adapter = file.file(|i, bytes| {
        bytes.copy_from_slice(&other[from.tensor(names[i]).unwrap().range()]);
    });
    let [whole_path, adapter_path] =
        ["whole.gguf", "override.gguf"].map(|name| folder.path().join(name));
    std::fs::write(&whole_path, whole).unwrap();
    std::fs::write(&adapter_path, adapter).unwrap();
    let opened = Arc::new(model.open_adapter(&adapter_path).unwrap());
    let expected = logits(&open(&whole_path), 64, &AdapterSet::default());
    let found = logits(&model, 64, &one(&opened, 1.0));
    let before = logits(&model, 64, &AdapterSet::default());
    let [off, moved] = [&found, &before].map(|other| distance(&expected, other));
    assert!(off < 1e-4 && moved > 0.1, "{off:e}, {moved}");
    assert_eq!(logits(&model, 64, &one(&opened, 0.0)), before);
    assert_eq!(logits(&model, 5, &one(&opened, 0.5)), logits(&model, 64, &one(&opened, 0.5)));
}

#[test]
fn an_adapter_of_another_base_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let (other, _) = Spec::qwen3().write(folder.path());
    let (model, other) = (open(&path), open(&other));
    let (names, _) = names(&model, folder.path());
    let opened = adapter(&model, folder.path(), &AdapterSpec::default(), &names);
    let error = other.open_adapter(opened.path()).unwrap_err().to_string();
    assert!(error.contains("\"llama\", expected \"qwen3\""), "{error}");
    let mut session = Session::new(&other, &SessionOptions::default()).unwrap();
    let error = session.set_adapters(&one(&opened, 1.0)).unwrap_err().to_string();
    assert!(error.contains("opened for another model"), "{error}");
    // The same with fewer layers, and with other sizes.
    let small = Spec { layers: 1, seed: 9, ..Spec::llama() }.write(folder.path()).0;
    let error = open(&small).open_adapter(opened.path()).unwrap_err().to_string();
    assert!(error.contains("does not have"), "{error}");
    let error = model.open_adapter(&path).unwrap_err().to_string();
    assert!(error.contains("not an adapter, but a model"), "{error}");
}
