//! A layer that predicts the token after the next one proposes tokens, and changes nothing.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use alight_formats::GgmlType;
use alight_model::{
    Engine, EngineOptions, Event, GenerateOptions, Model, OpenOptions, Repack, Request, Sampler,
    SamplerOptions, Session, SessionOptions, Speculate, generate,
};

use alight_testing::models::{self, Spec, tokens};

/// What generating gives: the tokens with what follows them, in bits; and the steps that it took.
fn answer(
    model: &Model,
    prompt: &[u32],
    sampling: SamplerOptions,
    speculate: Option<Speculate>,
) -> (Vec<u32>, usize) {
    let options = SessionOptions { context: Some(200), batch: 48, ..SessionOptions::default() };
    let mut session = Session::new(model, &options).unwrap();
    if speculate.is_some() {
        assert!(session.draft_with_mtp().unwrap());
    }
    let mut sampler = Sampler::new(sampling, model.tokenizer().vocab_size());
    let mut all = Vec::new();
    let speculate = speculate.unwrap_or(Speculate::Off);
    let options = GenerateOptions { max_tokens: 30, ignore_eos: true, speculate };
    let done = generate(&mut session, &mut sampler, prompt, &options, &mut |token| {
        all.push(token);
        ControlFlow::Continue(())
    });
    all.extend(session.feed(&[3]).unwrap().iter().map(|x| x.to_bits()));
    (all, done.unwrap().steps)
}

/// The same of several requests in an engine, which has such a layer for each of its two sequences.
fn answers(model: &Model, prompts: &[Vec<u32>], speculate: Speculate) -> Vec<Vec<u32>> {
    let context = Some(200);
    let options = EngineOptions { sequences: 2, context, speculate, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let mut all = vec![Vec::new(); prompts.len()];
    let ids: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let sampling = SamplerOptions::greedy();
            let (prompt, max_tokens) = (prompt.clone(), 24);
            let request =
                Request { prompt, sampling, max_tokens, ignore_eos: true, ..Request::default() };
            engine.add(request).unwrap()
        })
        .collect();
    while engine
        .step(&mut |of, event| {
            if let Event::Token(token, logits) = event {
                let found = &mut all[ids.iter().position(|id| *id == of).unwrap()];
                found.push(token);
                found.extend(logits.iter().map(|x| x.to_bits()));
            }
        })
        .unwrap()
    {}
    all
}

const ALL: [Speculate; 4] =
    [Speculate::Auto, Speculate::Tokens(1), Speculate::Tokens(3), Speculate::Tokens(7)];

#[test]
fn answers_are_those_of_plain_decoding() {
    let folder = tempfile::tempdir().unwrap();
    for (spec, ty) in [
        (Spec::qwen35(), GgmlType::F16),
        (Spec::deepseek2(), GgmlType::F16),
        (Spec { embd: 128, ..Spec::deepseek2() }, GgmlType::F32),
    ] {
        let path = Spec { mtp: true, ty, ..spec }.write(folder.path()).0;
        for isa in models::levels() {
            let options = OpenOptions {
                threads: Some(models::threads()),
                isa: Some(isa),
                ..Default::default()
            };
            let model = Model::open(&path, &options).unwrap();
            let vocab = model.spec().vocab;
            let prompt = |seed: u64| tokens(70 + seed as usize, vocab, seed);
            for seed in 0..3 {
                let sampling = match seed {
                    0 => SamplerOptions::greedy(),
                    _ => SamplerOptions {
                        temperature: 0.5,
                        seed,
                        // The histories of DRY, XTC and Mirostat must be the same with drafts.
                        dry_multiplier: 0.5,
                        dry_allowed_length: 1,
                        xtc_probability: 0.3,
                        mirostat: seed as usize - 1,
                        ..SamplerOptions::default()
                    },
                };
                let (plain, _) = answer(&model, &prompt(seed), sampling, None);
                for speculate in ALL {
                    let (found, _) = answer(&model, &prompt(seed), sampling, Some(speculate));
                    assert!(
                        found == plain,
                        "{}, {isa}, {speculate:?}, seed {seed}",
                        path.display()
                    );
                }
            }
            // Five requests for two sequences, the last two of which share a prompt with the first.
            let mut prompts: Vec<_> = (0..3).map(prompt).collect();
            prompts.extend([prompt(0), [&prompt(0)[..66], &[4, 5]].concat()]);
            let plain = answers(&model, &prompts, Speculate::Off);
            for speculate in ALL {
                let found = answers(&model, &prompts, speculate);
                assert!(found == plain, "an engine: {}, {isa}, {speculate:?}", path.display());
            }
        }
    }
}

/// A model whose next token follows from the last one alone, and whose further layer is right about it by the half of its input that
/// `by` says.
fn certain(folder: &Path, by: &str) -> Model {
    let spec = Spec { mtp: true, tied: false, ..Spec::deepseek2() };
    let (width, vocab, layer) = (spec.embd, spec.vocab, spec.layers);
    // Tokens from 3 on have a place each in the residual stream, and the one after a token has the next place.
    let places = 3..3 + width;
    let one = |rows: usize, cols: usize, at: &dyn Fn(usize) -> Option<usize>| {
        let mut all = vec![0.0; rows * cols];
        (0..rows).for_each(|row| at(row).into_iter().for_each(|col| all[row * cols + col] = 1.0));
        all
    };
    let before = |row: usize| (row + width - 1) % width;
    let place = |token: usize| places.contains(&token).then(|| token - 3);
    let own: HashMap<String, Vec<f32>> = [
        ("token_embd.weight".into(), one(vocab, width, &place)),
        ("output.weight".into(), one(vocab, width, &|token| place(token).map(before))),
        (
            format!("blk.{layer}.nextn.eh_proj.weight"),
            match by {
                "token" => one(width, 2 * width, &Some),
                "state" => one(width, 2 * width, &|row| Some(width + before(row))),
                // The state of the same token, as if it came a position too late.
                _ => one(width, 2 * width, &|row| Some(width + row)),
            },
        ),
    ]
    .into();
    let tensors = spec.tensors().into_iter().map(|(name, shape)| {
        let n = shape.iter().product();
        let values = match own.get(&name) {
            Some(values) => values.clone(),
            None if name.contains("norm") => vec![1.0; n],
            // The layers add nothing.
            None => vec![0.0; n],
        };
        (name, shape, values)
    });
    let path = folder.join(format!("{by}.gguf"));
    spec.write_as(&path, spec.arch, tensors.collect());
    Model::open(&path, &OpenOptions { repack: Repack::Off, ..Default::default() }).unwrap()
}

#[test]
fn what_it_is_right_about_takes_fewer_steps() {
    let folder = tempfile::tempdir().unwrap();
    for (by, right) in [("token", true), ("state", true), ("late", false)] {
        let model = certain(folder.path(), by);
        let steps = |speculate| answer(&model, &[7, 3], SamplerOptions::greedy(), speculate);
        let (plain, all) = steps(None);
        assert_eq!(plain[..4], [4, 5, 6, 7], "{by}");
        assert_eq!(all, 29);
        // No three tokens come twice.
        let (found, some) = steps(Some(Speculate::Tokens(3)));
        assert!(found == plain, "{by}");
        // Of each four tokens, three were proposed.
        assert_eq!(some, if right { 8 } else { 29 }, "{by}");
    }
}
