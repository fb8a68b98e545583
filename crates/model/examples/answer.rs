//! An answer from Rust, streamed as it is made:
//! `cargo run --release -p alight-model --example answer -- model.gguf "Why is the sky blue?"`

use std::error::Error;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use alight_model::{
    GenerateOptions, Model, OpenOptions, Sampler, SamplerOptions, Session, SessionOptions, generate,
};
use alight_text::{Encoder, Message, StreamDecoder, Style};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(path), Some(question)) = (args.next(), args.next()) else {
        return Err("usage: answer MODEL QUESTION".into());
    };
    // Maps the file. Its weights come into memory while the prompt is computed.
    let model = Model::open(&PathBuf::from(path), &OpenOptions::default())?;
    let prompt = Encoder::new(model.vocabulary(), Style::Chat, false)
        .chat(&[Message::user(&question.to_string_lossy())], true)?;

    let mut session = Session::new(&model, &SessionOptions::default())?;
    let mut sampler = Sampler::new(SamplerOptions::greedy(), model.spec().vocab);
    let mut decoder = StreamDecoder::new();
    let mut out = io::stdout().lock();
    let options = GenerateOptions { max_tokens: 30, ..GenerateOptions::default() };
    let done = generate(&mut session, &mut sampler, &prompt, &options, &mut |token| {
        // Whole characters only: a token may end in the middle of one.
        model.tokenizer().decode_bytes(token, decoder.buffer());
        match out.write_all(decoder.take().as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    writeln!(out)?;
    eprintln!("{} tokens read, {} written, ended by: {:?}", prompt.len(), done.tokens, done.finish);
    Ok(())
}
