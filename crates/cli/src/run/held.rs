//! What answers are held to: JSON of a schema, or a text of a grammar. `alight serve` holds its answers by the same.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alight_server::grammar::{self, Compiler, Held, NoGrammar, Wanted};
use alight_text::Vocabulary;
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::outcome::{Outcome, Stop};
use crate::text_input::{self, From};

/// Most bytes of a file. What is in it has a limit of its own, to which the blanks of a schema do not count.
const LIMIT: u64 = 1 << 20;

/// What an answer is held to; one of them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What the answer is held to")]
#[group(multiple = false)]
pub struct HeldArgs {
    /// Let the answer be JSON of this schema, such as {} for any
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    json_schema: Option<String>,

    /// Let the answer be JSON of the schema in this file
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,

    /// Let the answer follow this grammar, in llama.cpp's GBNF, or in llguidance's Lark behind %llguidance
    #[arg(long, value_name = "GBNF")]
    grammar: Option<String>,

    /// Let the answer follow the grammar in this file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
}

/// What is wanted, and who wants it.
pub struct Asked {
    wanted: Wanted,
    by: By,
}

/// An option, and the file that it names.
struct By {
    option: &'static str,
    file: Option<PathBuf>,
    /// Whether its value is the name of a file and should be what is in one.
    names_file: bool,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            None => write!(f, "{}", self.option),
            Some(file) => write!(f, "{} '{}'", self.option, file.display()),
        }
    }
}

impl By {
    /// What stands on the command line is wrong usage, and what stands in a file is not.
    fn refused(&self, why: &NoGrammar) -> Stop {
        let mut text = format!("{self}: {why}");
        if self.names_file {
            text += &format!(". It is the name of a file: {}-file reads that", self.option);
        }
        match &self.file {
            None if why.is_of_what_was_asked() => Stop::Usage(text),
            _ => Stop::Failed(anyhow!(text)),
        }
    }
}

/// The ids of the options, and their names.
const OPTIONS: [(&str, &str); 4] = [
    ("json_schema", "--json-schema"),
    ("json_schema_file", "--json-schema-file"),
    ("grammar", "--grammar"),
    ("grammar_file", "--grammar-file"),
];

impl HeldArgs {
    /// The option that counts, by its id and its name: that of the command line `given`, or else the user's default.
    fn chosen(&self, given: &ArgMatches) -> Outcome<Option<(&'static str, &'static str)>> {
        let set = |id: &str| match id {
            "json_schema" => self.json_schema.is_some(),
            "json_schema_file" => self.json_schema_file.is_some(),
            "grammar" => self.grammar.is_some(),
            _ => self.grammar_file.is_some(),
        };
        let by_hand = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
        let all: Vec<_> = OPTIONS.into_iter().filter(|(id, _)| set(id)).collect();
        match (all.iter().find(|(id, _)| by_hand(id)), &all[..]) {
            (Some(one), _) => Ok(Some(*one)),
            (None, []) => Ok(None),
            (None, [one]) => Ok(Some(*one)),
            (None, [(_, one), (_, other), ..]) => Err(Stop::Usage(format!(
                "{one} and {other} are both set as defaults: an answer is held to one of them"
            ))),
        }
    }

    /// Refuses to hold an answer that another engine makes.
    pub fn refuse(&self, given: &ArgMatches) -> Outcome {
        match self.chosen(given)? {
            None => Ok(()),
            Some((_, option)) => Err(Stop::Usage(format!(
                "{option} is not an option of the JAX engine: the answers of --engine native can be held to a schema or a grammar"
            ))),
        }
    }

    /// What was asked for, as far as it is known without a model.
    pub fn asked(&self, given: &ArgMatches) -> Outcome<Option<Asked>> {
        let Some((id, option)) = self.chosen(given)? else { return Ok(None) };
        let (text, file, schema) = match id {
            "json_schema" => (&self.json_schema, &None, true),
            "json_schema_file" => (&None, &self.json_schema_file, true),
            "grammar" => (&self.grammar, &None, false),
            _ => (&None, &self.grammar_file, false),
        };
        let text = match file {
            None => text.clone().unwrap_or_default(),
            Some(path) => {
                let what = if schema { "the schema" } else { "the grammar" };
                let read = text_input::read(From::File(path), what, LIMIT);
                read.map_err(|error| error.context(option))?
            }
        };
        let names_file = file.is_none() && Path::new(&text).is_file();
        let by = By { option, file: file.clone(), names_file };
        let wanted = if schema { Wanted::schema(&text) } else { Wanted::grammar(text) };
        match wanted {
            Ok(wanted) => Ok(Some(Asked { wanted, by })),
            Err(why) => Err(by.refused(&why)),
        }
    }
}

impl Asked {
    /// The same in the tokens of a model.
    pub fn held(self, vocabulary: &Vocabulary) -> Outcome<Held> {
        let compiler = Compiler::new(&vocabulary.tokenizer).map(Arc::new);
        let held = compiler.and_then(|compiler| grammar::held(&compiler, self.wanted));
        held.map_err(|why| self.by.refused(&why))
    }
}
