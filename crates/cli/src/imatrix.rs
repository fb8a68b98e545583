//! `alight imatrix`: an importance matrix, measured on a text. The procedure and the file are those of llama.cpp's `llama-imatrix`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_convert::{MeasuredTensor, imatrix_file};
use alight_model::{MatrixInputs, Model, Session, SessionOptions};
use alight_text::EncodeOptions;
use anyhow::{Context, anyhow, ensure};

use crate::chunks::ChunkArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::pack::new_model;
use crate::perplexity::read_text;
use crate::{new_file, say, units};

/// The output matrix, and the embedding, which may be the output.
const OUTPUTS: [&str; 2] = ["output.weight", "token_embd.weight"];

/// Arguments of `alight imatrix`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight imatrix model-bf16.gguf text.txt -o model.imatrix.gguf
  alight imatrix model-bf16.gguf text.txt -o model.imatrix.gguf --chunks 100
  alight quantize model-bf16.gguf -o model-q3_k_m.gguf --type q3_k_m --imatrix model.imatrix.gguf

The model reads the text in chunks, and what each matrix is multiplied with is squared and summed up: of every matrix of the \
layers, and of each expert for the tokens that chose it. `alight quantize` then rounds those columns most exactly that count \
most. The text should be like what the model will be used for; a few hundred thousand tokens are plenty, and experts \
that no token chose are reported. The file is llama.cpp's: its llama-quantize reads it, too.")]
pub struct ImatrixArgs {
    /// The model: a .gguf file (of a split model, its first shard), best one whose weights were not rounded yet
    model: PathBuf,

    /// The text; `-`: standard input
    file: PathBuf,

    /// The file to write
    #[arg(short, long, value_name = "OUT", value_parser = new_model())]
    output: PathBuf,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    chunks: ChunkArgs,

    /// Measure the output matrix, too, which seldom gets few bits
    #[arg(long)]
    process_output: bool,

    #[command(flatten)]
    engine: EngineArgs,
}

impl ImatrixArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (vec![&mut self.model], self.engine.hub.offline)
    }
}

/// Runs the command.
pub fn main(args: &ImatrixArgs) -> Outcome {
    // Before the model: cheap checks come first.
    new_file::check(&args.output, args.force, &[])?;
    let text = read_text(&args.file)?;
    let mut model = open::model(&args.model, &args.engine)?;
    if !model.spec().generates() {
        let name = model.spec().architecture;
        return Err(Stop::Failed(anyhow!(
            "'{}' is an encoder ({name}), which reads a text as a whole: an importance matrix is measured with a model that \
             continues texts",
            args.model.display()
        )));
    }
    let tokens = tokens(&model, &text, args)?;
    model.measure_inputs();
    let chunks = measure(args, &model, &tokens)?;
    let measured = model.measured_inputs().map_err(|e| anyhow!(e))?;
    let keeps = |one: &MatrixInputs| args.process_output || !OUTPUTS.contains(&&*one.name);
    let measured: Vec<MeasuredTensor> = measured.into_iter().filter(keeps).map(into_file).collect();
    write(args, &model, &measured, chunks)?;
    report(args, &measured, chunks);
    args.engine.explain_outcome(&model);
    Ok(())
}

fn into_file(MatrixInputs { name, columns, squares, counts }: MatrixInputs) -> MeasuredTensor {
    MeasuredTensor { name, columns, squares, counts }
}

/// Returns the tokens of the text, at least a chunk.
fn tokens(model: &Model, text: &str, args: &ImatrixArgs) -> anyhow::Result<Vec<u32>> {
    let options = EncodeOptions { add_bos: None, parse_special: false };
    let tokens = model.tokenizer().encode(text, options).map_err(|e| anyhow!(e))?;
    ensure!(
        tokens.len() >= args.chunks.ctx_size,
        "the text has {} tokens, less than a chunk of {}: give a longer text or a smaller -c",
        tokens.len(),
        args.chunks.ctx_size
    );
    Ok(tokens)
}

/// Lets the model read the chunks. Returns their number.
fn measure(args: &ImatrixArgs, model: &Model, tokens: &[u32]) -> Outcome<usize> {
    let began = Instant::now();
    let all = tokens.len() / args.chunks.ctx_size;
    let chunks = args.chunks.count(all)?;
    let options = SessionOptions {
        context: Some(args.chunks.ctx_size),
        batch: args.chunks.batch_size,
        prompt_precision: args.engine.prompt_precision(),
        cache_type: args.engine.cache_type(),
    };
    let mut session = Session::new(model, &options).map_err(|e| anyhow!(e))?;
    let tokenizer = model.tokenizer();
    let bos = if tokenizer.adds_bos() { tokenizer.bos() } else { None };
    for (done, chunk) in (1..).zip(tokens.chunks_exact(args.chunks.ctx_size).take(chunks)) {
        let mut chunk = chunk.to_vec();
        chunk[0] = bos.unwrap_or(chunk[0]);
        session.truncate(0);
        for piece in chunk.chunks(args.chunks.batch_size) {
            // All rows are wanted, so that the last layer computes them all.
            session.feed_each(piece, &mut |_, _| ()).map_err(|e| anyhow!(e))?;
        }
        let left = began.elapsed().as_secs_f64() / done as f64 * (chunks - done) as f64;
        say::progress(&format!("chunk {done} of {chunks}, {left:.0} s left"));
    }
    say::progress("");
    Ok(chunks)
}

/// Writes the file. Neither the model nor the text is replaced.
fn write(
    args: &ImatrixArgs,
    model: &Model,
    measured: &[MeasuredTensor],
    chunks: usize,
) -> anyhow::Result<()> {
    let named = || format!("'{}'", args.output.display());
    let dataset = args.file.display().to_string();
    let bytes =
        imatrix_file(measured, &dataset, (chunks, args.chunks.ctx_size)).map_err(|e| anyhow!(e))?;
    let text = Some(&*args.file).filter(|text| text.is_file());
    let inputs = new_file::inputs(model.files().chain(text.map(|text| -> &Path { text })))?;
    let new = new_file::create(&args.output, args.force, &inputs, bytes.len() as u64)?;
    new.file().write_all(&bytes).with_context(named)?;
    new.commit().map_err(|e| anyhow!(e))
}

/// Says what was measured, and which experts were not.
fn report(args: &ImatrixArgs, measured: &[MeasuredTensor], chunks: usize) {
    say::line(&format!(
        "{}: {} matrices, measured on {chunks} chunks of {} tokens",
        args.output.display(),
        measured.len(),
        units::grouped(args.chunks.ctx_size)
    ));
    let none = |one: &&MeasuredTensor| one.counts.contains(&0);
    let partial: Vec<&MeasuredTensor> = measured.iter().filter(none).collect();
    if let Some(first) = partial.first() {
        let missing = first.counts.iter().filter(|count| **count == 0).count();
        say::note(&format!(
            "{} tensors have experts that no token chose, the first of them \"{}\" ({missing} of {}): a longer text reaches more, \
             and the columns of those count alike",
            partial.len(),
            first.name,
            first.counts.len()
        ));
    }
}
