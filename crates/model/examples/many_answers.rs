//! Several prompts at once from Rust, by an `Engine`: they join and leave between steps, and each has the answer that it has alone.
//! `cargo run --release -p alight-model --example many_answers -- model.gguf Germany Egypt Japan`

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;

use alight_model::{
    Engine, EngineOptions, Event, Model, OpenOptions, Request, RequestId, SamplerOptions,
};
use alight_text::{Encoder, Message, Style};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: many_answers MODEL COUNTRY…")?;
    let model = Model::open(&PathBuf::from(path), &OpenOptions::default())?;
    let encoder = Encoder::new(model.vocabulary(), Style::Chat, false);
    let mut engine = Engine::new(&model, &EngineOptions::default())?;

    let mut asked: HashMap<RequestId, (String, Vec<u32>)> = HashMap::new();
    for country in args {
        let question = format!("What is the capital of {country}?");
        let prompt = encoder.chat(&[Message::user(&question)], true)?;
        let sampling = SamplerOptions::greedy();
        let request = Request { prompt, sampling, max_tokens: 20, ..Request::default() };
        asked.insert(engine.add(request)?, (country, Vec::new()));
    }
    // A step computes one token of each answer, or a part of a prompt.
    while engine.step(&mut |id, event| match event {
        Event::Token(token, _) => {
            if let Some((_, tokens)) = asked.get_mut(&id) {
                tokens.push(token);
            }
        }
        Event::Finished(_) => {
            let (country, tokens) = &asked[&id];
            println!("{country}: {}", model.tokenizer().decode(tokens).trim());
        }
        Event::Failed(error) => eprintln!("{error}"),
        _ => {}
    })? {}
    Ok(())
}
