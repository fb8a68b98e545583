//! The token loop allocates nothing: feeding, sampling and turning ids into bytes, counted by the
//! allocator itself, on all threads. It counts for the whole process, so it is a program of its own
//! without the test harness, whose main thread allocates when it reports.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use alight_model::{
    AdapterSet, Engine, EngineOptions, Event, LoadError, Model, ModelError, OpenOptions, Request,
    RequestId, Sampler, SamplerOptions, Session, SessionOptions,
};
use alight_testing::adapters::{self, AdapterSpec};
use alight_testing::models::{self, Moe, Spec};
use alight_testing::packed::packed;
use alight_text::StreamDecoder;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Every way to choose tokens.
fn samplings() -> [SamplerOptions; 5] {
    let plain = SamplerOptions { repeat_penalty: 1.1, seed: 7, ..SamplerOptions::default() };
    let dry = SamplerOptions { dry_multiplier: 0.8, dry_allowed_length: 0, ..plain };
    let all = SamplerOptions { dry_penalty_last_n: usize::MAX, xtc_probability: 0.5, ..dry };
    [
        plain,
        dry,
        SamplerOptions { top_n_sigma: 1.0, ..all },
        SamplerOptions { mirostat: 1, ..all },
        SamplerOptions { mirostat: 2, ..all },
    ]
}

/// Allocations of an engine whose requests have begun, until the last of them has ended.
fn allocations_of_many(model: &Model, set: &AdapterSet) -> u64 {
    let options = EngineOptions { sequences: 5, batch: 40, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let mut answered = 0;
    for i in 0..5 {
        let sampling = SamplerOptions { seed: i, ..samplings()[i as usize] };
        let prompt = models::tokens(10 + 12 * i as usize, model.spec().vocab, i);
        engine
            .add(Request {
                prompt,
                sampling,
                max_tokens: 8,
                ignore_eos: true,
                ignores_logits: true,
                // Others have none.
                adapters: if i % 2 == 0 { set.clone() } else { AdapterSet::default() },
                ..Request::default()
            })
            .unwrap();
    }
    let mut take = |_: RequestId, event: Event<'_>| match event {
        Event::Token(..) => answered += 1,
        Event::Failed(error) => panic!("{error}"),
        _ => {}
    };
    assert!(engine.step(&mut take).unwrap());
    let before = COUNT.load(Ordering::Relaxed);
    while engine.step(&mut take).unwrap() {}
    let after = COUNT.load(Ordering::Relaxed);
    assert_eq!(answered, 5 * 8);
    after - before
}

/// Two adapters of some of a model's matrices.
fn adapted(model: &Model, path: &Path, folder: &Path) -> AdapterSet {
    let base = std::fs::read(path).unwrap();
    let of = ["attn_q.", "attn_output.", "ffn_gate", "ffn_up", "ffn_down"];
    let mut names = adapters::matrices(&base);
    names.retain(|name| of.iter().any(|part| name.contains(part)));
    let opened = [3, 16].map(|rank| {
        let spec = AdapterSpec { rank, size: 0.01, ..AdapterSpec::default() };
        let file = folder.join(format!("{rank}.gguf"));
        std::fs::write(&file, adapters::adapter(&base, &spec, &names)).unwrap();
        (Arc::new(model.open_adapter(&file).unwrap()), 1.0)
    });
    AdapterSet::new(opened)
}

/// The least memory that a mixture of experts can be opened with.
fn least(path: &Path) -> u64 {
    let options = OpenOptions { memory: Some(1), ..OpenOptions::default() };
    match Model::open(path, &options).err().expect("too little memory") {
        ModelError::Load(error) => match &*error {
            LoadError::TooFewSlots { least, always, .. } => always + least,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = vec![
        Spec { ty: alight_formats::GgmlType::Q4_0, ..Spec::llama() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, biases: true, ..Spec::gemma3() }
            .write(folder.path())
            .0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::gemma2() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::F16, ..Spec::qwen3() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::qwen2moe() }.write(folder.path()).0,
        Spec::gpt_oss().write(folder.path()).0,
        // It becomes long after the prompt, and short again where it is cut.
        Spec { long_context: Some(80), seed: 61, ..Spec::llama() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::qwen35() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::gemma3n() }.write(folder.path()).0,
        Spec::deepseek2().write(folder.path()).0,
        Spec::llama4().write(folder.path()).0,
        Spec::deepseek2_before_2025().write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::lfm2() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::granitehybrid() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::nemotron_h() }.write(folder.path()).0,
        Spec { ty: alight_formats::GgmlType::Q8_0, ..Spec::nemotron_h_moe() }
            .write(folder.path())
            .0,
    ];
    // An output matrix in planes.
    let ty = alight_formats::GgmlType::Q8_0;
    let spec = Spec { ty, vocab: 1600, seed: 63, ..Spec::llama() };
    let planes = packed(&spec.write(folder.path()).0, 3);
    paths.push(planes.clone());
    paths.extend(models::real_model(models::SMOLLM2));
    paths.extend(models::real_model(models::GEMMA3));
    let mut models: Vec<(PathBuf, Option<u64>)> =
        paths.into_iter().map(|path| (path, None)).collect();
    // Experts that are read when they are chosen.
    let moe = Spec::qwen3moe().moe.map(|moe| Moe { experts: 12, width: 128, ..moe });
    let (path, _) = Spec { ty, moe, layers: 6, seed: 62, ..Spec::qwen3moe() }.write(folder.path());
    let least = least(&path);
    models.push((path, Some(least)));
    for (path, memory) in models {
        let options = OpenOptions { threads: Some(3), memory, ..OpenOptions::default() };
        let model = Model::open(&path, &options).unwrap();
        // The thread that brings in the weights is not part of the loop.
        model.wait_loaded().unwrap();
        assert_eq!(model.load_report().slots.is_some(), memory.is_some());
        // Nor is the start of the pool's threads: one unit for each of them, all held at once.
        let here = AtomicU64::new(0);
        model.pool().run_each(3, &|_, _| {
            here.fetch_add(1, Ordering::SeqCst);
            while here.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
        });
        let adapted = adapted(&model, &path, folder.path());
        for set in [AdapterSet::default(), adapted] {
            let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
            session.set_adapters(&set).unwrap();
            let mut samplers = samplings().map(|options| {
                let breakers = options.breakers(model.tokenizer(), None);
                Sampler::new(options, model.spec().vocab).with_breakers(breakers)
            });
            let mut decoder = StreamDecoder::new();
            let prompt = models::tokens(70, model.spec().vocab, 4);

            let before = COUNT.load(Ordering::Relaxed);
            session.feed(&prompt).unwrap();
            for i in 0..40 {
                let sampler = &mut samplers[i % 5];
                let token = sampler.sample(session.logits());
                samplers.iter_mut().for_each(|sampler| sampler.accept(token));
                model.tokenizer().decode_bytes(token, decoder.buffer());
                std::hint::black_box(decoder.take());
                // All logits, or those that the next sampler chooses from.
                match i % 2 {
                    0 => session.decode(token).unwrap(),
                    _ => session.decode_for(token, &mut samplers[(i + 1) % 5]).unwrap(),
                };
            }
            if path == planes && set.is_empty() {
                assert!(session.output_counts().unwrap().by_high_bits > 0);
            }
            session.truncate(10);
            session.defer(3).unwrap();
            session.prefill(&prompt).unwrap();
            let after = COUNT.load(Ordering::Relaxed);
            assert_eq!(after - before, 0, "allocations on {}", path.display());
            let many = allocations_of_many(&model, &set);
            // The first prompt with each salt is noted, and adapters have one of their own.
            let noted = u64::from(!set.is_empty());
            assert!(many <= noted, "{many} allocations of several sequences on {}", path.display());
            // The counter counts.
            drop(std::hint::black_box(vec![1u8; 100]));
            assert!(COUNT.load(Ordering::Relaxed) > after);
        }
        println!("no allocation in the token loop on {}", path.display());
    }
}
