//! The options for the user's own chat template, for its variables, and for the notation that a model writes.

use std::path::PathBuf;

use alight_chat::body::json::JsonBudget;
use alight_text::Vocabulary;
use alight_text::output::Format;
use anyhow::Context;
use serde_json::{Map, Value};

use crate::text_input;

/// Maximum bytes of a chat template.
const MAX_BYTES: u64 = 1 << 20;

/// A chat template in a file, variables, and a format.
#[derive(Clone, Debug, clap::Args)]
pub struct TemplateArgs {
    /// Use the chat template in this file (Jinja) instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,

    /// Give the chat template these variables, a JSON object such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = variables)]
    chat_template_kwargs: Option<Map<String, Value>>,

    /// Read thinking and tool calls in this family's notation, instead of the one that the chat template and the tokens show
    ///
    /// `alight inspect` names the one that they show.
    #[arg(long, value_name = "NAME", value_parser = format)]
    tool_format: Option<Format>,
}

/// Parses the name of a format.
fn format(name: &str) -> Result<Format, String> {
    let names = || Format::ALL.map(Format::name).join(", ");
    Format::named(name).ok_or_else(|| format!("there is no such format: there are {}", names()))
}

/// The variables that are the conversation itself.
const OF_CONVERSATION: [&str; 4] =
    ["messages", "tools", "add_generation_prompt", "continue_final_message"];

/// Parses variables of a template.
fn variables(text: &str) -> Result<Map<String, Value>, String> {
    let expected = "expected a JSON object such as {\"enable_thinking\": false}";
    let parsed = JsonBudget::default().parse(text);
    let variables = match parsed {
        Ok(Value::Object(variables)) => variables,
        Ok(_) => return Err(expected.to_owned()),
        Err(error) => return Err(format!("{error}: {expected}")),
    };
    match OF_CONVERSATION.iter().find(|name| variables.contains_key(**name)) {
        Some(name) => Err(format!("{name} is part of the conversation, expected other variables")),
        None => Ok(variables),
    }
}

impl TemplateArgs {
    /// Returns true if there is one.
    pub fn is_given(&self) -> bool {
        self.chat_template_file.is_some()
    }

    /// Returns the variables for templates.
    pub fn variables(&self) -> Map<String, Value> {
        self.chat_template_kwargs.clone().unwrap_or_default()
    }

    /// Returns the format, if one is given.
    pub fn tool_format(&self) -> Option<Format> {
        self.tool_format
    }

    /// Gives a model the template and the format, if there are any.
    pub fn give(&self, vocabulary: &mut Vocabulary) -> anyhow::Result<()> {
        if let Some(format) = self.tool_format {
            vocabulary.set_output_format(format);
        }
        let Some(path) = &self.chat_template_file else { return Ok(()) };
        let from = text_input::From::File(path);
        let source = text_input::read(from, "the chat template", MAX_BYTES)?;
        vocabulary.set_template(source).with_context(|| format!("the chat template in {from}"))
    }
}
