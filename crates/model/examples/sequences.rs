//! Tokens per second of several sequences that are computed together:
//! `cargo run --release -p alight-model --example sequences -- MODEL [-t THREADS] [-n TOKENS] [-r ROUNDS] [--lora FOLDER] [SEQUENCES…]`
//! prints, for each number of sequences, the median over the rounds of all their tokens per second, and how many times as many
//! that is as one sequence makes. Every sequence has a prompt of 16 tokens and generates TOKENS ones. Numbers of sequences take
//! turns, so that all meet the same machine. With a folder of adapters, each number is measured without them, with one adapter of all sequences, and with
//! an adapter for each sequence.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use alight_model::{
    Adapter, AdapterSet, Engine, EngineOptions, Event, Model, ModelError, OpenOptions, Request,
    SamplerOptions,
};

const PROMPT: usize = 16;

fn main() -> Result<(), ModelError> {
    let usage =
        "usage: sequences MODEL [-t THREADS] [-n TOKENS] [-r ROUNDS] [--lora FOLDER] [SEQUENCES…]";
    let mut args = std::env::args().skip(1).peekable();
    let path = args.next().expect(usage);
    let mut flag = |name| {
        let given = args.next_if(|arg| arg == name).is_some();
        given.then(|| args.next().expect(usage).parse::<usize>().expect(usage))
    };
    let threads = flag("-t");
    let tokens = flag("-n").unwrap_or(32);
    let rounds = flag("-r").unwrap_or(3);
    let folder = args.next_if(|arg| arg == "--lora").map(|_| args.next().expect(usage));
    let mut counts: Vec<usize> = args.map(|count| count.parse().expect(usage)).collect();
    if counts.is_empty() {
        counts = vec![1, 2, 4, 8, 16];
    }
    let model = Model::open(Path::new(&path), &OpenOptions { threads, ..OpenOptions::default() })?;
    model.wait_loaded()?;
    let mut files: Vec<_> = folder
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).expect("a folder"))
        .map(|entry| entry.expect("a file").path())
        .collect();
    files.sort();
    files.truncate(counts.iter().copied().max().unwrap_or(0));
    let began = Instant::now();
    let adapters: Vec<_> = files
        .iter()
        .map(|path| Arc::new(model.open_adapter(path).expect("an adapter for the model")))
        .collect();
    if !adapters.is_empty() {
        println!("{} adapters opened in {:?}", adapters.len(), began.elapsed());
    }
    let loads: &[&str] =
        if adapters.is_empty() { &[""] } else { &["", ", one adapter", ", each its own"] };
    let cases: Vec<(usize, usize)> =
        counts.iter().flat_map(|count| (0..loads.len()).map(|load| (*count, load))).collect();
    let mut rates = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for (rates, &(count, load)) in rates.iter_mut().zip(&cases) {
            rates.push(rate(&model, count, tokens, (&adapters, load))?);
        }
    }
    let medians = rates.iter_mut().map(|rates| {
        rates.sort_by(f64::total_cmp);
        (rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
    });
    let medians: Vec<_> = medians.collect();
    for ((count, load), (least, median, most)) in cases.iter().zip(&medians) {
        let times = median / medians[0].1;
        let load = loads[*load];
        println!(
            "{count:>3} sequences{load}: {median:8.2} t/s ({least:.2}–{most:.2}), {times:.2} times"
        );
    }
    Ok(())
}

/// Tokens per second of `count` sequences, from when all prompts are read.
fn rate(
    model: &Model,
    count: usize,
    tokens: usize,
    (adapters, load): (&[Arc<Adapter>], usize),
) -> Result<f64, ModelError> {
    let context = Some(PROMPT + tokens + 1);
    let options = EngineOptions { sequences: count, context, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options)?;
    let vocab = model.spec().vocab as u32;
    for i in 0..count as u32 {
        let prompt = (0..PROMPT as u32).map(|j| (i * 131 + j * 31 + 7) % vocab).collect();
        let sampling = SamplerOptions::greedy();
        let adapter = match load {
            0 => None,
            1 => adapters.first(),
            _ => adapters.get(i as usize % adapters.len()),
        };
        let adapters = AdapterSet::new(adapter.map(|adapter| (adapter.clone(), 1.0)));
        // The first token is the prompt's.
        engine.add(Request {
            prompt,
            sampling,
            max_tokens: tokens + 1,
            ignore_eos: true,
            adapters,
            ..Request::default()
        })?;
    }
    let (mut begun, mut made) = (0, 0);
    let mut began = Instant::now();
    while engine.step(&mut |_, event| {
        if let Event::Token(..) = event {
            made += 1;
        }
    })? {
        if begun == 0 && made >= count {
            (begun, began) = (made, Instant::now());
        }
    }
    Ok((made - begun) as f64 / began.elapsed().as_secs_f64())
}
