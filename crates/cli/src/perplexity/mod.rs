//! `alight perplexity`: how well a model predicts a text, and how far it is from a reference.
//!
//! The procedure is that of llama.cpp's `llama-perplexity`, so that the results are comparable: the
//! text is split into chunks of `-c` tokens; the first token of each is replaced by the
//! begin-of-text token if the model requires one, and the predictions of the second half are
//! scored.

mod base;
mod evaluate;
mod report;
mod score;
mod summary;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use alight_model::{Model, Session, SessionOptions};
use alight_pages::Replacement;
use alight_text::EncodeOptions;
use anyhow::{Context, anyhow, ensure};

use crate::chunks::ChunkArgs;
use crate::lora::LoraArgs;
use crate::open::{self, EngineArgs};
use crate::outcome::{Outcome, Stop};
use crate::{new_file, say, text_input};
use base::{Base, LogprobRow, Shape};
use evaluate::{Evaluation, Position};

/// Maximum bytes of a text, some four million tokens. Tokenization takes up to a hundred bytes of memory for each byte of text.
const TEXT_LIMIT: u64 = 16 << 20;

/// Arguments of `alight perplexity`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight perplexity model.gguf text.txt
  alight perplexity model.gguf text.txt --chunks 8 --json
  alight perplexity exact.gguf text.txt --save-logits exact.kl
  alight perplexity model.gguf --kl-base exact.kl  how far from exact

The figures compare with llama.cpp's: `llama-perplexity -m MODEL -f FILE`, and its \
`--kl-divergence-base FILE --kl-divergence`. Files of log-probabilities are interchangeable.

`-b 1` feeds tokens one by one, as an answer is made: it measures the arithmetic of decoding \
instead of that of a prompt.")]
pub struct PerplexityArgs {
    /// The model: a .gguf file (of a split model, its first shard)
    model: PathBuf,

    /// The text; `-`: standard input
    #[arg(required_unless_present = "kl_base", conflicts_with = "kl_base")]
    file: Option<PathBuf>,

    /// Compare with the log-probabilities in this file, on the text that it holds
    #[arg(long, value_name = "FILE", conflicts_with = "ctx_size")]
    kl_base: Option<PathBuf>,

    /// Save log-probabilities for --kl-base, 16 bits each
    #[arg(long, value_name = "FILE", conflicts_with = "kl_base")]
    save_logits: Option<PathBuf>,

    /// Replace the file of --save-logits if it exists
    #[arg(long, requires = "save_logits")]
    force: bool,

    #[command(flatten)]
    chunks: ChunkArgs,

    /// Compute each token as those of an answer are: one after the other, with activations of 16 bits
    #[arg(long, conflicts_with = "batch_size")]
    decode: bool,

    /// One line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    lora: LoraArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

impl PerplexityArgs {
    /// See [`Command::models`](crate::args::Command::models).
    pub fn models(&mut self) -> (Vec<&mut PathBuf>, bool) {
        (vec![&mut self.model], self.engine.hub.offline)
    }
}

/// Runs the command.
pub fn main(args: PerplexityArgs) -> Outcome {
    let began = Instant::now();
    // Before the model: cheap checks come first.
    if let Some(path) = &args.save_logits {
        new_file::check(path, args.force, &[])?;
    }
    let base = args.kl_base.as_deref().map(Base::open).transpose()?;
    let text = args.file.as_deref().map(read_text).transpose()?;
    let model = open::model(&args.model, &args.engine)?;
    let vocab = model.spec().vocab;

    let (shape, tokens) = match (&base, &text) {
        (Some(base), _) => (checked(base, vocab, &args)?, Vec::new()),
        (None, Some(text)) => chunks_of(&model, text, &args)?,
        (None, None) => return Err(Stop::Usage("give a text, or --kl-base".to_owned())),
    };
    let n_chunk = args.chunks.count(shape.n_chunk)?;
    let shape = Shape { n_chunk, ..shape };
    if shape.n_ctx > model.spec().context {
        say::note(&format!(
            "the model was trained for a context of {} tokens, not {}",
            model.spec().context,
            shape.n_ctx
        ));
    }

    let measured = measure(&args, &model, base.as_ref(), &tokens, shape, began)?;
    report::write(
        &report::RunFacts {
            model: &args.model,
            chunks: shape.n_chunk,
            n_ctx: shape.n_ctx,
            batch: if args.decode { 1 } else { args.chunks.batch_size },
            threads: model.threads(),
            isa: model.isa().to_string(),
            seconds: began.elapsed().as_secs_f64(),
        },
        &measured.losses,
        &measured.compared,
        args.json,
    )?;
    args.engine.explain_outcome(&model);
    Ok(())
}

/// Values of all scored positions: one of the two, depending on whether there is a reference.
#[derive(Default)]
struct ScoredValues {
    losses: Vec<f32>,
    compared: Vec<score::Compared>,
}

/// Evaluates all chunks, of `tokens` or of `base`, and saves the logits if requested.
fn measure(
    args: &PerplexityArgs,
    model: &Model,
    base: Option<&Base>,
    tokens: &[u32],
    shape: Shape,
    began: Instant,
) -> Outcome<ScoredValues> {
    let vocab = shape.n_vocab;
    let options = SessionOptions {
        context: Some(shape.n_ctx),
        batch: args.chunks.batch_size,
        prompt_precision: args.engine.prompt_precision(),
        cache_type: args.engine.cache_type(),
    };
    let mut session = Session::new(model, &options).map_err(|e| anyhow!(e))?;
    session.set_adapters(&args.lora.open(model)?).map_err(|e| anyhow!(e))?;
    let batch = (!args.decode).then_some(args.chunks.batch_size);
    let mut evaluation = Evaluation::new(session, shape, batch);
    let mut measured = ScoredValues::default();
    let mut saved = match &args.save_logits {
        Some(path) => Some(Saved::create(path, args, model, shape, tokens)?),
        None => None,
    };
    let mut rows = Vec::new();
    for chunk in 0..shape.n_chunk {
        let own;
        let chunk_tokens = match base {
            Some(base) => {
                own = base.tokens(chunk)?;
                &own[..]
            }
            None => &tokens[chunk * shape.n_ctx..][..shape.n_ctx],
        };
        let ScoredValues { losses, compared } = &mut measured;
        evaluation.chunk(chunk_tokens, &mut |positions: &[Position<'_>]| {
            if let Some(base) = base {
                base.rows(chunk, positions[0].index, positions.len(), &mut rows)?;
                compared.extend(evaluate::in_parallel(positions, |i, p| {
                    let row = &rows[i * shape.row_bytes()..][..shape.row_bytes()];
                    score::compare(p.logits, LogprobRow::new(row, vocab), p.next)
                }));
            } else {
                losses
                    .extend(evaluate::in_parallel(positions, |_, p| score::loss(p.logits, p.next)));
            }
            if let Some(saved) = &mut saved {
                saved.append(positions)?;
            }
            Ok(())
        })?;
        say::progress(&progress(chunk + 1, shape.n_chunk, losses, compared, began));
    }
    say::progress("");
    if let Some(saved) = saved {
        saved.finish()?;
    }
    Ok(measured)
}

/// Reads the text of a file, without a newline at its end.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let from = match path == Path::new("-") {
        true => text_input::From::Stdin,
        false => text_input::From::File(path),
    };
    let mut text = text_input::read(from, "the text", TEXT_LIMIT)?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// Returns the chunks of a text: their shape, and the tokens of all.
fn chunks_of(
    model: &Model,
    text: &str,
    args: &PerplexityArgs,
) -> anyhow::Result<(Shape, Vec<u32>)> {
    let options = EncodeOptions { add_bos: None, parse_special: false };
    let tokens = model.tokenizer().encode(text, options).map_err(|e| anyhow!(e))?;
    let n_ctx = args.chunks.ctx_size;
    ensure!(
        tokens.len() >= 2 * n_ctx,
        "the text has {} tokens; with chunks of {n_ctx} it needs at least {}: give a longer text \
         or a smaller -c",
        tokens.len(),
        2 * n_ctx
    );
    let shape = Shape { n_ctx, n_vocab: model.spec().vocab, n_chunk: tokens.len() / n_ctx };
    Ok((shape, tokens))
}

/// Returns the shape of a reference, if it is one for this model.
fn checked(base: &Base, vocab: usize, args: &PerplexityArgs) -> anyhow::Result<Shape> {
    let shape = base.shape();
    ensure!(
        shape.n_vocab == vocab,
        "the reference is of a model with a vocabulary of {}, but that of '{}' is {vocab}",
        shape.n_vocab,
        args.model.display()
    );
    Ok(shape)
}

fn progress(
    done: usize,
    of: usize,
    losses: &[f32],
    compared: &[score::Compared],
    began: Instant,
) -> String {
    let left = began.elapsed().as_secs_f64() / done as f64 * (of - done) as f64;
    let figure = match summary::distance(compared) {
        Some(d) => format!("KL {:.5}, perplexity {:.4}", d.kl.mean.value, d.perplexity.value),
        None => format!("perplexity {:.4}", summary::perplexity(losses).value),
    };
    format!("chunk {done} of {of}: {figure}, {left:.0} s left")
}

/// A file of log-probabilities that is being written. It gets its name when it is complete.
struct Saved {
    out: BufWriter<File>,
    new: Replacement,
}

impl Saved {
    /// Neither the model nor the text is replaced, and a user without access to them gets none to this file.
    fn create(
        path: &Path,
        args: &PerplexityArgs,
        model: &Model,
        shape: Shape,
        tokens: &[u32],
    ) -> anyhow::Result<Saved> {
        let named = || format!("'{}'", path.display());
        // (A text from a pipe is not a file that could be replaced.)
        let text = args.file.as_deref().filter(|text| text.is_file());
        let inputs = new_file::inputs(model.files().chain(text))?;
        let new = new_file::create(path, args.force, &inputs, shape.file_bytes().unwrap_or(0))?;
        let file = new.file().try_clone().with_context(named)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        base::write_header(&mut out, shape, tokens).with_context(named)?;
        Ok(Saved { out, new })
    }

    fn append(&mut self, positions: &[Position<'_>]) -> anyhow::Result<()> {
        let rows = evaluate::in_parallel(positions, |_, p| {
            let mut row = Vec::new();
            base::push_row(p.logits, &mut row);
            row
        });
        let named = || format!("'{}'", self.new.destination().path().display());
        rows.iter().try_for_each(|row| self.out.write_all(row)).with_context(named)
    }

    fn finish(self) -> anyhow::Result<()> {
        let named = || format!("'{}'", self.new.destination().path().display());
        self.out.into_inner().map_err(|e| e.into_error()).with_context(named)?;
        self.new.commit().map_err(|e| anyhow!(e))
    }
}
