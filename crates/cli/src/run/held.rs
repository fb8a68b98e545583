//! Constraints on answers: JSON of a schema, or text of a grammar. `alight serve` constrains its answers in the same way.

use std::fmt;
use std::path::{Path, PathBuf};

use alight_chat::grammar::{Held, LazyCompiler, NoGrammar, Wanted};
use alight_text::Vocabulary;
use anyhow::anyhow;
use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::body_options::ConstraintField;
use crate::outcome::{Outcome, Stop};
use crate::text_input::{self, From};

/// Maximum bytes of a file. Its contents have their own limit, in which the blanks of a schema do not count.
const LIMIT: u64 = 1 << 20;

/// The constraint on an answer; one of them.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Constrained output")]
#[group(multiple = false)]
pub struct HeldArgs {
    /// Let the answer be JSON of this schema, such as {} for any
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    json_schema: Option<String>,

    /// Let the answer be JSON of the schema in this file
    #[arg(long, value_name = "FILE")]
    json_schema_file: Option<PathBuf>,

    /// Let the answer follow this grammar, in llama.cpp's GBNF, or in llguidance's Lark after %llguidance
    #[arg(long, value_name = "GBNF")]
    grammar: Option<String>,

    /// Let the answer follow the grammar in this file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
}

/// A constraint, and the option that requested it.
pub struct Constraint {
    wanted: Wanted,
    by: By,
}

/// An option, and the file that it names.
struct By {
    option: &'static str,
    file: Option<PathBuf>,
    /// True if its value is the name of a file, but should be the file's contents.
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
    /// An error on the command line is wrong usage, an error in a file is not.
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

/// One of the options, and its value.
struct Choice<'a> {
    /// Its id in clap, and its name.
    id: &'static str,
    option: &'static str,
    /// True for a schema, false for a grammar.
    schema: bool,
    value: ConstraintText<'a>,
}

enum ConstraintText<'a> {
    Text(&'a str),
    File(&'a Path),
}

impl HeldArgs {
    /// Returns the options that have a value.
    fn choices(&self) -> Vec<Choice<'_>> {
        let text = Option::<String>::as_deref;
        let file = Option::<PathBuf>::as_deref;
        let all = [
            (
                "json_schema",
                "--json-schema",
                true,
                text(&self.json_schema).map(ConstraintText::Text),
            ),
            (
                "json_schema_file",
                "--json-schema-file",
                true,
                file(&self.json_schema_file).map(ConstraintText::File),
            ),
            ("grammar", "--grammar", false, text(&self.grammar).map(ConstraintText::Text)),
            (
                "grammar_file",
                "--grammar-file",
                false,
                file(&self.grammar_file).map(ConstraintText::File),
            ),
        ];
        let set = all.into_iter().filter_map(|(id, option, schema, value)| {
            Some(Choice { id, option, schema, value: value? })
        });
        set.collect()
    }

    /// Returns the option that applies: that of the command line `given`, or else the user's default.
    fn chosen(&self, given: &ArgMatches) -> Outcome<Option<Choice<'_>>> {
        let mut all = self.choices();
        let by_hand =
            |choice: &Choice<'_>| given.value_source(choice.id) == Some(ValueSource::CommandLine);
        if let Some(at) = all.iter().position(by_hand) {
            return Ok(Some(all.swap_remove(at)));
        }
        if let [one, other, ..] = &all[..] {
            return Err(Stop::Usage(format!(
                "{} and {} are both set as defaults: an answer is held to one of them",
                one.option, other.option
            )));
        }
        Ok(all.pop())
    }

    /// Rejects a constraint on the answers of another engine.
    pub fn refuse(&self, given: &ArgMatches) -> Outcome {
        match self.chosen(given)? {
            None => Ok(()),
            Some(Choice { option, .. }) => Err(Stop::Usage(format!(
                "{option} is not an option of the JAX engine: the answers of --engine native can be held to a schema or a grammar"
            ))),
        }
    }

    /// Returns the constraint that the options request, as far as it is known without a model.
    pub fn constraint(&self, given: &ArgMatches) -> Outcome<Option<Constraint>> {
        let Some(Choice { option, schema, value, .. }) = self.chosen(given)? else {
            return Ok(None);
        };
        let (text, file) = match value {
            ConstraintText::Text(text) => (text.to_owned(), None),
            ConstraintText::File(path) => {
                let what = if schema { "the schema" } else { "the grammar" };
                let read = text_input::read(From::File(path), what, LIMIT);
                (read.map_err(|error| error.context(option))?, Some(path.to_owned()))
            }
        };
        let names_file = file.is_none() && Path::new(&text).is_file();
        let by = By { option, file, names_file };
        let wanted = if schema { Wanted::schema(&text) } else { Wanted::grammar(text) };
        match wanted {
            Ok(wanted) => Ok(Some(Constraint { wanted, by })),
            Err(why) => Err(by.refused(&why)),
        }
    }
}

impl Constraint {
    /// Returns the constraint of a chat: a JSON schema, as text or in a file of this name.
    pub fn in_chat(
        text: &str,
        path: impl FnOnce(&str) -> anyhow::Result<PathBuf>,
    ) -> Outcome<Constraint> {
        let option = "schema";
        let (text, file) = if text.starts_with('{') {
            (text.to_owned(), None)
        } else {
            let path = path(text)?;
            (text_input::read(From::File(&path), "the schema", LIMIT)?, Some(path))
        };
        let by = By { option, file, names_file: false };
        match Wanted::schema(&text) {
            Ok(wanted) => Ok(Constraint { wanted, by }),
            Err(why) => Err(by.refused(&why)),
        }
    }

    /// Compiles the constraint for the tokens of a model.
    pub fn held(self, vocabulary: &Vocabulary) -> Outcome<Holding> {
        let field = self.wanted.field();
        let held = LazyCompiler::default().held(&vocabulary.tokenizer, self.wanted);
        let held = held.map_err(|why| self.by.refused(&why))?;
        Ok(Holding { held, field, by: self.by.to_string() })
    }
}

/// The constraint on answers, and its description for the user.
#[derive(Clone)]
pub struct Holding {
    pub held: Held,
    /// The field of a body that requests it.
    pub field: ConstraintField,
    pub by: String,
}
