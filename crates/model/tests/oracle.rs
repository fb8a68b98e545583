//! The forward pass against a plain one in float64, written down from the definition of each
//! architecture, on small random models that use every feature.
//!
//! `definition` rounds keys and values to f16, as the cache does; everything else in it is exact. With
//! F32 weights nothing but float32 arithmetic differs, so the tolerance is tight: each of the
//! features tested moves logits by a hundred times as much or more.

use alight_formats::GgmlType;
use alight_kernels::{Isa, WeightType};
use alight_model::{
    Engine, EngineOptions, Event, MAX_WHOLE_TEXT, Model, ModelError, OfPrompt, OpenOptions,
    Pooling, Request, Session, SessionOptions,
};

use alight_testing::definition::written;
use alight_testing::models::{self, Latent, Moe, Scaling, Spec, distance, tokens};

/// Runs a model every way there is and compares each with the oracle. Tolerances are relative to
/// the largest logit: `one` for one token at a time, `many` for batches.
fn check(spec: &Spec, length: usize, one: f32, many: f32) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = tokens(length, spec.vocab, spec.seed);
    let (path, expected) = written(spec, &tokens, folder.path());
    let size = expected.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
    assert!(size > 0.5, "the model says nothing: {size}");
    let open = |isa| {
        let threads = Some(models::threads());
        let options = OpenOptions { threads, isa: Some(isa), ..OpenOptions::default() };
        Model::open(&path, &options).unwrap()
    };
    let last = |model: &Model| {
        let mut session = Session::new(model, &SessionOptions::default()).unwrap();
        session.feed(&tokens).unwrap().to_vec()
    };
    let best = last(&open(Isa::best()));
    // (The most portable one takes long for many tokens.)
    for isa in Isa::available().into_iter().filter(|_| length < 300 || models::everything()) {
        assert!(last(&open(isa)) == best, "{isa} has other bits than {}: {spec:?}", Isa::best());
    }
    for isa in models::levels() {
        let model = open(isa);
        let close = |what: &str, position: usize, logits: &[f32], tolerance: f32| {
            let off = distance(logits, &expected[position]) / size;
            assert!(off <= tolerance, "{isa}: {what}, position {position}: {off:e} in {spec:?}");
            off
        };
        let mut worst = [0f32; 2];
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        for (i, &token) in tokens.iter().enumerate() {
            let logits = session.decode(token).unwrap();
            worst[0] = worst[0].max(close("one by one", i, logits, one));
        }
        for batch in [5, 64, 512] {
            let options = SessionOptions { batch, ..SessionOptions::default() };
            let mut session = Session::new(&model, &options).unwrap();
            let mut seen = 0;
            session
                .feed_each(&tokens, &mut |i, logits| {
                    assert_eq!(i, seen);
                    seen += 1;
                    worst[1] = worst[1].max(close("batch", i, logits, many));
                })
                .unwrap();
            assert_eq!(seen, tokens.len());
            let left = session.truncate(length / 2);
            let logits = session.feed(&tokens[left..]).unwrap();
            close("after truncation", length - 1, logits, many);
        }
        eprintln!("{} {isa}: {:e} one by one, {:e} in batches", spec.arch, worst[0], worst[1]);
    }
}

const TIGHT: f32 = 5e-4;

#[test]
fn refact_sees_positions_by_biases_of_scores() {
    // Through several pages, and with one head of keys and values.
    check(&Spec::refact(), 150, TIGHT, TIGHT);
    check(
        &Spec { kv_heads: 1, heads: 8, key_dim: 8, value_dim: 8, seed: 44, ..Spec::refact() },
        40,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn llama_plain() {
    check(&Spec::llama(), 100, TIGHT, TIGHT);
}

#[test]
fn llama_separate_output_biases_odd_shapes() {
    let spec = Spec {
        tied: false,
        biases: true,
        embd: 96,
        ff: 160,
        heads: 6,
        kv_heads: 3,
        key_dim: 24,
        value_dim: 40,
        vocab: 333,
        rope_dims: Some(16),
        seed: 3,
        ..Spec::llama()
    };
    check(&spec, 70, TIGHT, TIGHT);
}

#[test]
fn llama_rope_factors_linear_and_yarn() {
    let base = Spec { rope_base: 500_000.0, ..Spec::llama() };
    check(&Spec { factors: true, seed: 4, ..base.clone() }, 60, TIGHT, TIGHT);
    check(&Spec { scaling: Scaling::Linear(4.0), seed: 5, ..base.clone() }, 60, TIGHT, TIGHT);
    check(
        &Spec { factors: true, scaling: Scaling::Linear(2.0), seed: 6, ..base.clone() },
        60,
        TIGHT,
        TIGHT,
    );
    let yarn = Scaling::Yarn { factor: 8.0, original: 64, magnitude: 0.0 };
    check(&Spec { scaling: yarn, seed: 7, rope_base: 10_000.0, ..base }, 60, TIGHT, TIGHT);
}

#[test]
fn llama_one_head_each_and_many_groups() {
    check(&Spec { heads: 4, kv_heads: 4, seed: 8, ..Spec::llama() }, 40, TIGHT, TIGHT);
    check(
        &Spec { heads: 8, kv_heads: 1, key_dim: 8, value_dim: 8, seed: 9, ..Spec::llama() },
        40,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn gemma3_with_window_edges() {
    // Past the window, so that each of its edges is met; all local but the sixth layer.
    check(&Spec::gemma3(), 90, TIGHT, TIGHT);
    check(&Spec { window: Some((1, 2)), seed: 10, ..Spec::gemma3() }, 20, TIGHT, TIGHT);
    check(&Spec { window: Some((64, 3)), seed: 11, ..Spec::gemma3() }, 150, TIGHT, TIGHT);
}

#[test]
fn gemma3_soft_caps_and_linear_scaling_of_global_layers() {
    let spec = Spec {
        attn_cap: 2.0,
        logit_cap: 3.0,
        scaling: Scaling::Linear(8.0),
        seed: 12,
        ..Spec::gemma3()
    };
    // A key that lies between two f16 numbers is rounded to either by a difference in the last bit of f32; these logits show one of them so much.
    check(&spec, 60, 2.0 * TIGHT, 2.0 * TIGHT);
    check(&Spec { window: None, seed: 13, ..spec }, 40, TIGHT, TIGHT);
}

#[test]
fn qwen2_biases_and_separate_output() {
    check(&Spec::qwen2(), 90, TIGHT, TIGHT);
    let odd = Spec {
        embd: 96,
        ff: 160,
        heads: 6,
        key_dim: 16,
        value_dim: 16,
        vocab: 333,
        ..Spec::qwen2()
    };
    check(&Spec { tied: false, seed: 24, ..odd.clone() }, 60, TIGHT, TIGHT);
    // What no Qwen has, but nothing in the file forbids.
    check(&Spec { biases: true, seed: 25, ..odd }, 40, TIGHT, TIGHT);
    let yarn = Scaling::Yarn { factor: 4.0, original: 64, magnitude: 0.0 };
    check(
        &Spec { scaling: yarn, rope_base: 10_000.0, seed: 26, ..Spec::qwen2() },
        90,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn granite_with_its_four_scales() {
    check(&Spec::granite(), 90, TIGHT, TIGHT);
    check(&Spec { tied: false, seed: 40, ..Spec::granite() }, 40, TIGHT, TIGHT);
}

#[test]
fn seed_oss_biases_and_the_other_name_of_a_norm() {
    check(&Spec::seed_oss(), 90, TIGHT, TIGHT);
    check(&Spec { heads: 6, kv_heads: 3, seed: 41, ..Spec::seed_oss() }, 40, TIGHT, TIGHT);
}

#[test]
fn qwen3_normed_queries_and_keys_of_any_length() {
    check(&Spec::qwen3(), 90, TIGHT, TIGHT);
    let short =
        Spec { heads: 6, kv_heads: 3, key_dim: 8, value_dim: 8, vocab: 333, ..Spec::qwen3() };
    check(&Spec { tied: false, seed: 27, ..short }, 60, TIGHT, TIGHT);
    let yarn = Scaling::Yarn { factor: 4.0, original: 64, magnitude: 1.5 };
    check(
        &Spec { scaling: yarn, rope_base: 10_000.0, seed: 28, ..Spec::qwen3() },
        90,
        TIGHT,
        TIGHT,
    );
}

#[test]
fn gemma2_windows_and_caps() {
    check(&Spec::gemma2(), 90, TIGHT, TIGHT);
    check(
        &Spec { window: Some((7, 3)), rope_base: 500.0, seed: 29, ..Spec::gemma2() },
        60,
        TIGHT,
        TIGHT,
    );
    let linear = Scaling::Linear(4.0);
    check(&Spec { scaling: linear, seed: 30, ..Spec::gemma2() }, 60, TIGHT, TIGHT);
    // Nothing but what has to be there: a window longer than the text, caps that are known.
    let early = Spec { window: None, attn_cap: 0.0, logit_cap: 0.0, ..Spec::gemma2() };
    let early = Spec { seed: 31, ..early };
    check(&early, 60, TIGHT, TIGHT);
    // Random weights give scores too small to show where that cap is.
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&early.write(folder.path()).0, &crate::options()).unwrap();
    let first = model.spec().attention_layers().next().unwrap();
    assert_eq!((first.softcap, first.mask.window()), (Some(50.0), Some(4096)));
}

#[test]
fn the_27b_of_either_gemma_scales_by_its_width() {
    // A width of 64 for 2 heads, which are 16 long.
    let wide =
        |spec: Spec| Spec { heads: 2, kv_heads: 1, key_dim: 16, value_dim: 16, ff: 64, ..spec };
    check(&Spec { layers: 46, seed: 32, ..wide(Spec::gemma2()) }, 30, TIGHT, TIGHT);
    check(&Spec { layers: 62, seed: 33, ..wide(Spec::gemma3()) }, 30, TIGHT, TIGHT);
}

#[test]
fn mixtures_of_experts_of_every_kind() {
    check(&Spec::qwen3moe(), 90, TIGHT, TIGHT);
    check(&Spec::qwen2moe(), 60, TIGHT, TIGHT);
    let base = Spec::qwen3moe();
    let moe = |change: fn(&mut Moe), seed| {
        let mut moe = base.moe.unwrap();
        change(&mut moe);
        Spec { moe: Some(moe), seed, ..base.clone() }
    };
    let fused = |m: &mut Moe| (m.fused, m.width) = (true, 40);
    check(&moe(fused, 54), 40, TIGHT, TIGHT);
    let biased = |m: &mut Moe| (m.gating, m.selection, m.scale) = (2, true, 2.5);
    check(&moe(biased, 55), 40, TIGHT, TIGHT);
    let grouped = |m: &mut Moe| {
        (m.experts, m.groups, m.gating, m.normed) = (12, (4, 2), 2, Some(false));
    };
    check(&moe(grouped, 56), 40, TIGHT, TIGHT);
    check(&moe(|m| (m.gating, m.normed) = (4, Some(true)), 57), 40, TIGHT, TIGHT);
    // All of them, and one of one.
    check(&moe(|m| m.used = m.experts, 58), 40, TIGHT, TIGHT);
    check(&moe(|m| (m.experts, m.used) = (1, 1), 59), 30, TIGHT, TIGHT);
}

#[test]
fn gpt_oss_with_sinks_biases_and_clamps() {
    check(&Spec::gpt_oss(), 90, TIGHT, TIGHT);
    // Pieces of attention that are merged, and a gate beyond the clamp.
    let long =
        Spec { layers: 2, context: 2048, window: Some((300, 2)), seed: 60, ..Spec::gpt_oss() };
    check(&long, 700, TIGHT, TIGHT);
}

#[test]
fn gptoss_with_a_gate_and_an_up_whose_rows_alternate() {
    check(&Spec::gptoss(), 90, TIGHT, TIGHT);
}

#[test]
fn llama4_with_chunks_and_weights_of_what_goes_in() {
    check(&Spec::llama4(), 90, TIGHT, TIGHT);
    // A chunk that begins within a piece of attention, and more tokens than a tile.
    let long = Spec { context: 2048, window: Some((300, 4)), seed: 70, ..Spec::llama4() };
    check(&long, 700, TIGHT, TIGHT);
}

#[test]
fn latent_attention_of_new_files_and_old() {
    check(&Spec::deepseek2(), 90, TIGHT, TIGHT);
    let base = Spec::deepseek2();
    let latent = |change: fn(&mut Latent), seed| {
        let mut latent = base.latent.unwrap();
        change(&mut latent);
        Spec { latent: Some(latent), seed, ..base.clone() }
    };
    check(&latent(|l| l.together = true, 62), 60, TIGHT, TIGHT);
    check(&latent(|l| (l.query_rank, l.multiplier, l.rank) = (0, 0.0, 37), 63), 60, TIGHT, TIGHT);
    // One head, and more than a panel of rows; no experts without leading layers.
    check(&Spec { heads: 1, ..latent(|l| l.leading = 0, 64) }, 40, TIGHT, TIGHT);
    check(&Spec { heads: 17, ..latent(|l| l.unrotated = 3, 65) }, 40, TIGHT, TIGHT);
    // Pieces of attention that are merged.
    let long = Spec { layers: 2, context: 2048, ..latent(|l| l.leading = 1, 66) };
    check(&long, 700, TIGHT, TIGHT);
    // All experts: rounding would change the choice of some of them now and then. Rows of keys are blocks.
    let aligned = |together| {
        let mut spec = latent(|l| (l.query_rank, l.rank, l.unrotated) = (32, 64, 32), 67);
        spec.latent.as_mut().unwrap().together = together;
        spec.moe.as_mut().unwrap().used = spec.moe.unwrap().experts;
        Spec { heads: 4, value_dim: 24, ff: 64, ..spec }
    };
    // Queries and what heads attend to are rounded once more than in other attention.
    check(&Spec { ty: GgmlType::Q8_0, ..aligned(false) }, 60, 1e-3, 8e-2);
    check(&Spec { ty: GgmlType::Q8_0, ..aligned(true) }, 60, 1e-3, 8e-2);
}

/// Whatever the registry of block types has, read only or not.
#[test]
fn every_block_type_in_a_whole_model() {
    let wide = Spec { layers: 2, embd: 256, ff: 256, key_dim: 64, value_dim: 64, ..Spec::llama() };
    for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        check(&Spec { ty: ty.ggml(), seed: 40, ..wide.clone() }, 12, 3e-3, 1e-1);
    }
}

#[test]
fn quantised_weights_within_the_rounding_of_activations() {
    // One token: 16-bit activations. Batches: 8-bit ones, an error of 1/254 of the largest value
    // in 32 for each, some of which averages out.
    let spec = Spec { ty: GgmlType::Q8_0, seed: 14, ..Spec::llama() };
    check(&spec, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q4_0, seed: 15, ..spec.clone() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q8_0, seed: 16, ..Spec::gemma3() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::F16, seed: 17, ..Spec::llama() }, 60, TIGHT, TIGHT);
    check(&Spec { ty: GgmlType::Q8_0, seed: 34, ..Spec::qwen2() }, 60, 1e-3, 5e-2);
    let aligned = Spec { key_dim: 32, value_dim: 32, ..Spec::qwen3() };
    check(&Spec { ty: GgmlType::Q8_0, seed: 35, ..aligned }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::Q4_0, seed: 36, ..Spec::gemma2() }, 60, 1e-3, 5e-2);
    // All experts: rounding would change the choice of some of them now and then.
    let mixture = Spec::qwen2moe();
    let all = mixture.moe.map(|moe| Moe { used: moe.experts, ..moe });
    check(&Spec { ty: GgmlType::Q8_0, moe: all, seed: 37, ..mixture.clone() }, 60, 1e-3, 5e-2);
    check(&Spec { ty: GgmlType::F16, seed: 38, ..mixture }, 60, TIGHT, TIGHT);
}

#[test]
fn a_long_context_is_cut_into_pieces_and_merged() {
    // Longer than a piece of attention, for both forms.
    let spec = Spec { layers: 2, context: 2048, seed: 18, ..Spec::llama() };
    check(&spec, 700, TIGHT, TIGHT);
    let spec =
        Spec { layers: 2, context: 2048, window: Some((300, 2)), seed: 19, ..Spec::gemma3() };
    check(&spec, 700, TIGHT, TIGHT);
}

/// All tokens see all others, or those of a window around them.
#[test]
fn encoders_see_what_comes_after() {
    let plain = Spec { causal: false, seed: 77, ..Spec::llama() };
    let windowed = Spec { causal: false, window: Some((24, 3)), seed: 78, ..Spec::gemma3() };
    for spec in [plain, windowed] {
        let folder = tempfile::tempdir().unwrap();
        let tokens = tokens(130, spec.vocab, spec.seed);
        let (path, expected) = written(&spec, &tokens, folder.path());
        let size = expected.iter().flatten().fold(0f32, |m, x| m.max(x.abs()));
        let causal = written(&Spec { causal: true, ..spec.clone() }, &tokens, folder.path()).1;
        assert!(
            distance(&causal[5], &expected[5]) > 100.0 * TIGHT * size,
            "what comes after matters"
        );
        for isa in Isa::available() {
            let options = OpenOptions {
                threads: Some(models::threads()),
                isa: Some(isa),
                ..OpenOptions::default()
            };
            spec.write(folder.path());
            let model = Model::open(&path, &options).unwrap();
            let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
            session
                .feed_each(&tokens, &mut |i, logits| {
                    let off = distance(logits, &expected[i]) / size;
                    assert!(off <= TIGHT, "{isa}, {}, position {i}: {off:e}", spec.arch);
                })
                .unwrap();
            let more = session.feed(&[1]).unwrap_err();
            assert!(matches!(more, ModelError::Bidirectional { .. }), "{more}");
        }
    }
}

#[test]
fn an_engine_reads_texts_of_encoders_as_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec { causal: false, seed: 79, ..Spec::llama() };
    let (path, _) = spec.write(folder.path());
    let model = Model::open(
        &path,
        &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() },
    );
    let model = model.unwrap();
    let options = EngineOptions { batch: 64, sequences: 4, ..EngineOptions::default() };
    let request = |n: usize, pooling| Request {
        prompt: tokens(n, spec.vocab, n as u64),
        of_prompt: OfPrompt::Embedding(pooling),
        ..Request::default()
    };
    let of = |lengths: &[usize], pooling| {
        let mut engine = Engine::new(&model, &options).unwrap();
        let ids: Vec<_> =
            lengths.iter().map(|n| engine.add(request(*n, pooling)).unwrap()).collect();
        let mut found = vec![Vec::new(); ids.len()];
        while engine
            .step(&mut |id, event| {
                if let Event::Embedding(row) = event {
                    found[ids.iter().position(|other| *other == id).unwrap()] = row.to_vec();
                }
            })
            .unwrap()
        {}
        found
    };
    // More rows than a step has, texts that are longer than a step, and prompts that begin alike.
    let lengths = [40, 33, 64, 7, 130, 65, 40, 12];
    for pooling in [Pooling::Mean, Pooling::Last] {
        let together = of(&lengths, pooling);
        for (n, row) in lengths.iter().zip(&together) {
            assert_eq!(&of(&[*n], pooling)[0], row, "{n} tokens, {pooling:?}");
            assert!(row.iter().any(|x| *x != 0.0));
        }
    }
    let options = EngineOptions { context: Some(9000), ..options };
    let mut engine = Engine::new(&model, &options).unwrap();
    let long = engine.add(request(MAX_WHOLE_TEXT + 1, Pooling::Mean)).unwrap_err();
    let found = matches!(long, ModelError::TooLongForBatch { found: 8193, expected: 8192 });
    assert!(found, "{long}");
    let answer = Request { prompt: vec![1, 2], max_tokens: 3, ..Request::default() };
    let refused = engine.add(answer).unwrap_err();
    assert!(matches!(refused, ModelError::Bidirectional { .. }), "{refused}");
}
