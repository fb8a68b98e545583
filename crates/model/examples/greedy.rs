//! Greedy continuation of token ids, for comparing with other programs:
//! `cargo run --release -p alight-model --example greedy -- MODEL COUNT [-t THREADS] [-b BATCH] ID…`
//! prints, for each step, the chosen id and the margin to the second.

use std::path::Path;
use std::time::Instant;

use alight_model::{Model, ModelError, OpenOptions, Session, SessionOptions};

fn main() -> Result<(), ModelError> {
    let mut args = std::env::args().skip(1).peekable();
    let usage = "usage: greedy MODEL COUNT [-t THREADS] [-b BATCH] ID ID …";
    let path = args.next().expect(usage);
    let count: usize = args.next().expect(usage).parse().expect(usage);
    let mut flag = |name| {
        let given = args.next_if(|arg| arg == name).is_some();
        given.then(|| args.next().expect(usage).parse::<usize>().expect(usage))
    };
    let threads = flag("-t");
    let batch = flag("-b").unwrap_or(SessionOptions::default().batch);
    let prompt: Vec<u32> = args.map(|id| id.parse().expect(usage)).collect();
    let began = Instant::now();
    let model = Model::open(Path::new(&path), &OpenOptions { threads, ..OpenOptions::default() })?;
    let mut session = Session::new(&model, &SessionOptions { batch, ..SessionOptions::default() })?;
    let ready = began.elapsed();
    let mut next = top(session.feed(&prompt)?);
    let first = began.elapsed();
    for _ in 0..count {
        println!("{} {:.3}", next.0, next.1);
        next = top(session.decode(next.0)?);
    }
    let rate = count as f64 / (began.elapsed() - first).as_secs_f64();
    eprintln!("ready {ready:?}, first {first:?}, {rate:.1} tok/s; {:?}", model.timings());
    Ok(())
}

/// The most likely token and by how much it is.
fn top(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::MIN);
    let mut second = f32::MIN;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            second = best.1;
            best = (id as u32, logit);
        } else if logit > second {
            second = logit;
        }
    }
    (best.0, best.1 - second)
}
