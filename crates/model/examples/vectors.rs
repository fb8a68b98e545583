//! Vectors and scores of texts that are given as token ids, for comparing with other programs:
//! `cargo run --release -p alight-model --example vectors -- MODEL [-t THREADS] [-b BATCH] [-s SEQUENCES] < TEXTS`
//! A line of TEXTS is `POOLING SECOND ID…`: none, mean, cls, last or rank, then the number of the token with which the second segment begins, or `-`.
//! Prints a line of numbers for each; all texts are computed together.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use alight_model::{Engine, EngineOptions, Event, Model, OfPrompt, OpenOptions, Pooling, Request};

const USAGE: &str = "usage: vectors MODEL [-t THREADS] [-b BATCH] [-s SEQUENCES] < TEXTS";

fn request(line: &str) -> Option<Request> {
    let mut words = line.split_whitespace();
    let pooling = match words.next()? {
        "none" => Pooling::None,
        "rank" => Pooling::Rank,
        name => name.parse().ok()?,
    };
    let second_segment = match words.next()? {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let prompt = words.map(|id| id.parse().ok()).collect::<Option<Vec<u32>>>()?;
    let of_prompt = OfPrompt::Embedding(pooling);
    Some(Request { prompt, second_segment, of_prompt, ..Request::default() })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let path = args.next().ok_or(USAGE)?;
    let mut flag = |name| {
        let given = args.next_if(|arg| arg == name).is_some();
        given
            .then(|| args.next().and_then(|number| number.parse::<usize>().ok()).ok_or(USAGE))
            .transpose()
    };
    let threads = flag("-t")?;
    let batch = flag("-b")?.unwrap_or(512);
    let sequences = flag("-s")?.unwrap_or(64);
    let texts = std::io::read_to_string(std::io::stdin())?;
    let model = Model::open(Path::new(&path), &OpenOptions { threads, ..OpenOptions::default() })?;
    let options = EngineOptions { batch, sequences, ..EngineOptions::default() };
    let mut engine = Engine::new(&model, &options)?;
    let began = Instant::now();
    let mut ids = Vec::new();
    for line in texts.lines() {
        ids.push(engine.add(request(line).ok_or(USAGE)?)?);
    }
    let (mut found, mut failed) = (vec![Vec::new(); ids.len()], None);
    let mut on_event = |id, event: Event<'_>| match event {
        Event::Embedding(vector) => {
            found[ids.iter().position(|other| *other == id).unwrap_or(0)] = vector.to_vec();
        }
        Event::Failed(error) => failed = Some(error),
        _ => {}
    };
    while engine.step(&mut on_event)? {}
    if let Some(error) = failed {
        return Err(error.into());
    }
    eprintln!("{} texts in {:?}", found.len(), began.elapsed());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for vector in found {
        let numbers: Vec<String> = vector.iter().map(f32::to_string).collect();
        writeln!(out, "{}", numbers.join(" "))?;
    }
    Ok(out.flush()?)
}
