//! The option for the user's own chat template.

use std::path::PathBuf;

use alight_text::TemplateError;
use anyhow::Context;

use crate::text_input;

/// Maximum bytes of a chat template.
const MAX_BYTES: u64 = 1 << 20;

/// A chat template in a file.
#[derive(Clone, Debug, clap::Args)]
pub struct TemplateArgs {
    /// Use the chat template in this file (Jinja) instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template_file: Option<PathBuf>,
}

impl TemplateArgs {
    /// Returns true if there is one.
    pub fn is_given(&self) -> bool {
        self.chat_template_file.is_some()
    }

    /// Passes it to a model, if there is one.
    pub fn give(
        &self,
        set: impl FnOnce(String) -> Result<(), TemplateError>,
    ) -> anyhow::Result<()> {
        let Some(path) = &self.chat_template_file else { return Ok(()) };
        let from = text_input::From::File(path);
        let source = text_input::read(from, "the chat template", MAX_BYTES)?;
        set(source).with_context(|| format!("the chat template in {from}"))
    }
}
