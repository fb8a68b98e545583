//! Answers of a model whose output matrix is in planes: the tokens of the same model with all logits computed.

use std::ops::ControlFlow;
use std::path::Path;

use alight_formats::GgmlType;
use alight_model::{
    Constraint, Engine, EngineOptions, Event, GenerateOptions, Model, Request, Sampler,
    SamplerOptions, Session, SessionOptions, Speculate, generate, generate_constrained,
};
use alight_testing::models::Spec;
use alight_testing::packed::packed;

fn open(path: &Path) -> Model {
    Model::open(path, &crate::options()).unwrap()
}

/// A model, and the same with its output matrix in planes.
fn pair(folder: &Path, spec: Spec) -> [Model; 2] {
    let (path, _) = Spec { ty: GgmlType::Q8_0, vocab: 4000, ..spec }.write(folder);
    [open(&path), open(&packed(&path, 3))]
}

const PLAIN: SamplerOptions = SamplerOptions::DEFAULT;

/// Samplers that choose from few tokens.
fn few() -> Vec<SamplerOptions> {
    vec![
        SamplerOptions::greedy(),
        PLAIN,
        SamplerOptions { top_p: 1.0, min_p: 0.0, temperature: 2.0, ..PLAIN },
        SamplerOptions { top_k: 3, repeat_penalty: 1.2, presence_penalty: 0.5, ..PLAIN },
        SamplerOptions { dry_multiplier: 0.8, temperature: 0.0, repeat_penalty: 0.9, ..PLAIN },
        SamplerOptions { xtc_probability: 0.5, top_k: 10, frequency_penalty: -1.0, ..PLAIN },
    ]
}

/// Samplers that look at all logits.
fn all() -> Vec<SamplerOptions> {
    vec![
        SamplerOptions { top_k: 0, ..PLAIN },
        SamplerOptions { top_n_sigma: 1.0, ..PLAIN },
        SamplerOptions { mirostat: 2, ..PLAIN },
        SamplerOptions { top_k: 1500, ..PLAIN },
        SamplerOptions { temperature: 0.0, xtc_probability: 0.5, top_k: 0, ..PLAIN },
    ]
}

const BIAS: [(u32, f32); 4] = [(7, 4.0), (100, f32::NEG_INFINITY), (1999, 3.0), (40, -2.0)];

fn answer(
    session: &mut Session<'_>,
    options: SamplerOptions,
    bias: &[(u32, f32)],
    speculate: Speculate,
) -> Vec<u32> {
    session.truncate(0);
    let vocab = session.model().spec().vocab;
    let mut sampler = Sampler::new(options, vocab - 3).with_bias(bias);
    let mut out = Vec::new();
    let options = GenerateOptions { max_tokens: 60, ignore_eos: true, speculate };
    generate(session, &mut sampler, &[1, 40, 50, 40], &options, &mut |token| {
        out.push(token);
        ControlFlow::Continue(())
    })
    .unwrap();
    out
}

#[test]
fn samplers_choose_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let specs = [
        Spec::llama(),
        Spec { tied: false, embd: 96, seed: 3, ..Spec::llama() },
        Spec::gemma3(),
        Spec { logit_cap: 5.0, seed: 4, ..Spec::gemma2() },
        Spec { scales: Some([2.0, 0.5, 0.7, 3.0]), seed: 5, ..Spec::granite() },
    ];
    for spec in specs {
        let name = format!("{} {}", spec.arch, spec.seed);
        let [model, planes] = pair(folder.path(), spec);
        let session = |model| Session::new(model, &SessionOptions::default()).unwrap();
        let (mut whole, mut few_of) = (session(&model), session(&planes));
        assert_eq!(whole.output_counts(), None);
        let mut found_by_high_bits = 0;
        for (seed, options) in few().into_iter().enumerate() {
            for (bias, speculate) in [(&[][..], Speculate::Off), (&BIAS[..], Speculate::default())]
            {
                let options = SamplerOptions { seed: seed as u64, ..options };
                let what = format!("{name} {options:?} {bias:?}");
                // One that has not found yet that few logits do not pay.
                let mut few_of = session(&planes);
                let found = answer(&mut few_of, options, bias, speculate);
                assert_eq!(found, answer(&mut whole, options, bias, speculate), "{what}");
                let counts = few_of.output_counts().unwrap();
                assert!(counts.by_high_bits > 0 && counts.rows < 59 * counts.all_rows, "{what}");
                found_by_high_bits += counts.by_high_bits;
            }
        }
        assert!(found_by_high_bits > 200, "{name}: {found_by_high_bits} tokens");
        for options in all() {
            let before = few_of.output_counts().unwrap();
            let found = answer(&mut few_of, options, &[], Speculate::Off);
            assert_eq!(
                found,
                answer(&mut whole, options, &[], Speculate::Off),
                "{name} {options:?}"
            );
            let after = few_of.output_counts().unwrap();
            assert_eq!((after.by_high_bits, after.rows), (before.by_high_bits, before.rows));
            assert!(after.whole > before.whole);
        }
    }
}

/// Allows even tokens alone.
#[derive(Debug)]
struct Even;

impl Constraint for Even {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>> {
        logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        assert!(token.is_multiple_of(2));
    }
}

#[test]
fn a_constraint_sees_all_logits() {
    let folder = tempfile::tempdir().unwrap();
    let models = pair(folder.path(), Spec::llama());
    let answers = models.each_ref().map(|model| {
        let mut session = Session::new(model, &SessionOptions::default()).unwrap();
        let mut sampler = Sampler::new(PLAIN, model.spec().vocab);
        let options =
            GenerateOptions { max_tokens: 40, ignore_eos: true, ..GenerateOptions::default() };
        let mut out = Vec::new();
        let on_token = &mut |token| {
            out.push(token);
            ControlFlow::Continue(())
        };
        generate_constrained(
            &mut session,
            &mut sampler,
            &[1, 40],
            &options,
            Some(&mut Even),
            on_token,
        )
        .unwrap();
        assert!(session.output_counts().is_none_or(|counts| counts.by_high_bits == 0));
        out
    });
    assert_eq!(answers[0], answers[1]);
}

/// The answers to several requests that are computed together, of which some look at logits: tokens, and hashes of the logits that are looked at.
fn together(
    model: &Model,
    ignore: impl Fn(usize) -> bool,
    count: usize,
) -> Vec<(Vec<u32>, Vec<u32>)> {
    let step = std::time::Duration::MAX;
    // Whether drafts pay is found by the clock, and steps with drafts have more rows.
    let speculate = Speculate::Off;
    let mut engine =
        Engine::new(model, &EngineOptions { step, speculate, ..EngineOptions::default() }).unwrap();
    let mut ids = Vec::new();
    for (i, sampling) in few().into_iter().cycle().take(count).enumerate() {
        let request = Request {
            prompt: vec![1, 40 + i as u32, 50],
            sampling,
            max_tokens: 20 + i,
            ignore_eos: true,
            ignores_logits: ignore(i),
            logit_bias: if i % 3 == 2 { BIAS.to_vec() } else { Vec::new() },
            ..Request::default()
        };
        ids.push(engine.add(request).unwrap());
    }
    let mut found = vec![(Vec::new(), Vec::new()); count];
    while engine
        .step(&mut |id, event| {
            let i = ids.iter().position(|other| *other == id).unwrap();
            if let Event::Token(token, logits) = event {
                found[i].0.push(token);
                if !ignore(i) {
                    found[i].1.extend(logits.iter().map(|logit| logit.to_bits()));
                }
            }
        })
        .unwrap()
    {}
    if let Some(counts) = engine.output_counts() {
        assert_eq!(counts.by_high_bits > 0, (0..count).any(&ignore), "{counts:?}");
    }
    found
}

#[test]
fn requests_that_are_computed_together_have_the_same_answers() {
    let folder = tempfile::tempdir().unwrap();
    let [model, planes] = pair(folder.path(), Spec::gemma3());
    for count in [1, 3, 6] {
        let ignores: [&dyn Fn(usize) -> bool; 3] = [&|_| true, &|i| i > 0 && count > 1, &|_| false];
        for (i, ignore) in ignores.into_iter().enumerate() {
            if i == 1 && count == 1 {
                continue;
            }
            assert!(
                together(&planes, ignore, count) == together(&model, ignore, count),
                "{count} {i}"
            );
        }
    }
}
