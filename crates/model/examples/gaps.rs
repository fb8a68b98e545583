//! How long a sequence that is being answered waits for its next token while a long prompt is read beside it:
//! `cargo run --release -p alight-model --example gaps -- MODEL [PROMPT_TOKENS]`
//! prints the median time between two tokens before the prompt comes, and the median and the largest one while it is read, and how long the
//! prompt takes.

use std::path::Path;
use std::time::{Duration, Instant};

use alight_model::{
    Engine, EngineOptions, Event, Model, ModelError, OpenOptions, Request, SamplerOptions,
};

fn main() -> Result<(), ModelError> {
    let usage = "usage: gaps MODEL [PROMPT_TOKENS]";
    let mut args = std::env::args().skip(1);
    let path = args.next().expect(usage);
    let tokens: usize = args.next().map_or(4000, |n| n.parse().expect(usage));
    let model = Model::open(Path::new(&path), &OpenOptions::default())?;
    model.wait_loaded()?;
    let context = Some(tokens + 4096);
    let mut engine = Engine::new(&model, &EngineOptions { context, ..EngineOptions::default() })?;
    let request = |prompt, max_tokens| Request {
        prompt,
        max_tokens,
        ignore_eos: true,
        sampling: SamplerOptions::greedy(),
        ..Request::default()
    };
    let answered = engine.add(request(vec![1, 2, 3], usize::MAX))?;
    let (mut before, mut during) = (Vec::new(), Vec::new());
    let (mut last, mut read) = (None::<Instant>, None);
    let mut long = None;
    while read.is_none() {
        if before.len() >= 64 && long.is_none() {
            let vocab = model.spec().vocab as u32;
            let prompt = (0..tokens as u32).map(|i| i * 7919 % vocab).collect();
            long = Some((engine.add(request(prompt, 1))?, Instant::now()));
        }
        engine.step(&mut |id, event| match event {
            Event::Token(..) if id == answered => {
                let now = Instant::now();
                let gaps = if long.is_some() { &mut during } else { &mut before };
                gaps.extend(last.map(|last| now - last));
                last = Some(now);
            }
            Event::Token(..) => read = long.map(|(_, asked)| asked.elapsed()),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        })?;
    }
    let ms = |gap: Duration| gap.as_secs_f64() * 1e3;
    let median = |gaps: &mut Vec<Duration>| {
        gaps.sort();
        ms(gaps[gaps.len() / 2])
    };
    println!("before   {:.1} ms (median of {})", median(&mut before), before.len());
    let (middle, most) = (median(&mut during), during.last().copied().map_or(0.0, ms));
    println!("beside   {middle:.1} ms (median of {}), at most {most:.1} ms", during.len());
    println!("prompt   {tokens} tokens in {:.2} s", read.unwrap_or_default().as_secs_f64());
    Ok(())
}
