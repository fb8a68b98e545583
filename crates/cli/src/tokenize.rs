//! `alight tokenize`: the tokens of a text for a model. Of the model's files, only the header of the first is read.
//!
//! Every byte of the text counts: a newline at the end of a file or of standard input is tokenized, too.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use alight_text::{EncodeOptions, Tokenizer};
use anyhow::anyhow;
use serde::{Serialize, Serializer};

use crate::hub::HubArgs;
use crate::outcome::{Outcome, Stop};
use crate::text_input::{self, From};
use crate::{open, output, terminal_text};

/// Maximum bytes of a text, as of a prompt.
const LIMIT: u64 = 64 << 20;
/// The name of standard input in place of a file.
const STDIN: &str = "-";

/// Arguments of `alight tokenize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  alight tokenize model.gguf \"Hello, world!\"
  alight tokenize model.gguf \"Hello, world!\" --ids
  alight tokenize model.gguf --count < text.txt  how long a text is
  alight tokenize model.gguf -f text.txt --json | jq '.tokens[].id'

A line for each token has its id and its text. Line breaks and other characters that are not seen are shown as escapes there, and so is a \
byte that is only a part of a character (\\xe2). --json has the texts as they are, and as a list of bytes what is no text.

Every byte of the text counts, a newline at the end of a file or of standard input included. No chat template is \
written around it. Of the model's file nothing is read but the header.")]
pub struct TokenizeArgs {
    /// The model: a .gguf file, or a folder with one model in it
    pub model: PathBuf,

    /// The text [default: standard input]
    text: Option<String>,

    /// The same as TEXT
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "TEXT",
        conflicts_with = "text",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,

    /// Read the text from a file
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with_all = ["text", "prompt"])]
    file: Option<PathBuf>,

    /// Write the ids alone, as a list of JSON
    #[arg(long)]
    ids: bool,

    /// Write how many tokens there are, and nothing else
    #[arg(long, visible_alias = "show-count", conflicts_with = "ids")]
    count: bool,

    /// Write one line of JSON: the ids, the texts, and how many there are
    #[arg(long, conflicts_with_all = ["ids", "count"])]
    json: bool,

    /// Add no token of the beginning or the end of a text, whatever the model's file says
    #[arg(long)]
    no_bos: bool,

    /// Treat special tokens that are written in the text, such as <|im_end|>, as text
    #[arg(long, visible_alias = "no-parse-special")]
    no_special: bool,

    #[command(flatten)]
    pub hub: HubArgs,
}

/// Runs the command.
pub fn main(args: &TokenizeArgs) -> Outcome {
    let text = args.text()?;
    let vocabulary = open::vocabulary(&args.model)?;
    let options =
        EncodeOptions { add_bos: args.no_bos.then_some(false), parse_special: !args.no_special };
    let tokenizer = &vocabulary.tokenizer;
    let ids = tokenizer.encode(&text, options).map_err(|error| anyhow!(error))?;
    if args.count {
        return output::report(format!("{}\n", ids.len()));
    }
    if args.json {
        let tokens = Tokens { tokenizer, ids: &ids };
        return output::json(&TokensLine { model: &args.model, count: ids.len(), tokens });
    }
    output::written(
        |out| if args.ids { write_ids(&ids, out) } else { write_lines(tokenizer, &ids, out) },
    )
}

impl TokenizeArgs {
    /// Returns the text, which errors do not call a prompt: an empty one has tokens, too.
    fn text(&self) -> Outcome<String> {
        let given = self.text.as_deref().or(self.prompt.as_deref());
        let from = match (given, &self.file) {
            (Some(text), _) if text != STDIN => return Ok(text.to_owned()),
            (None, Some(path)) if path != Path::new(STDIN) => From::File(path),
            (None, None) if io::stdin().is_terminal() => {
                return Err(Stop::Usage(
                    "there is no text: give one as an argument or with -f, or pipe one in"
                        .to_owned(),
                ));
            }
            _ => From::Stdin,
        };
        Ok(text_input::read(from, "the text", LIMIT)?)
    }
}

fn write_ids(ids: &[u32], out: &mut dyn Write) -> io::Result<()> {
    out.write_all(b"[")?;
    for (i, id) in ids.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        write!(out, "{comma}{id}")?;
    }
    out.write_all(b"]\n")
}

/// Writes a line for each token. Characters that could drive a terminal are escaped in a pipe, too: the lines are the same
/// everywhere.
fn write_lines(tokenizer: &Tokenizer, ids: &[u32], out: &mut dyn Write) -> io::Result<()> {
    let mut bytes = Vec::new();
    for &id in ids {
        bytes.clear();
        tokenizer.decode_special(id, &mut bytes);
        writeln!(out, "{id:6} -> '{}'", terminal_text::visible(&bytes))?;
    }
    Ok(())
}

/// The line of `--json`. Fields are only ever added.
#[derive(Serialize)]
struct TokensLine<'a> {
    #[serde(serialize_with = "output::lossy")]
    model: &'a Path,
    count: usize,
    tokens: Tokens<'a>,
}

/// Tokens that are decoded when they are written: all of a long text's tokens would take many times its memory.
struct Tokens<'a> {
    tokenizer: &'a Tokenizer,
    ids: &'a [u32],
}

#[derive(Serialize)]
struct Token {
    id: u32,
    piece: Piece,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Piece {
    Text(String),
    /// A part of a character.
    Bytes(Vec<u8>),
}

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ids.iter().map(|&id| {
            let mut bytes = Vec::new();
            self.tokenizer.decode_special(id, &mut bytes);
            let piece = match String::from_utf8(bytes) {
                Ok(text) => Piece::Text(text),
                Err(error) => Piece::Bytes(error.into_bytes()),
            };
            Token { id, piece }
        }))
    }
}
