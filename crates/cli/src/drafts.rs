//! Arguments for tokens that are computed ahead.

use std::path::{Path, PathBuf};

use alight_model::{Model, Speculate};

use crate::open::{self, EngineArgs};
use crate::outcome::Outcome;

/// Options of speculative decoding.
#[derive(Debug, clap::Args)]
pub struct DraftArgs {
    /// Compute tokens ahead that followed the last ones earlier in the text: auto (where that is faster), off, or up to N (at
    /// most 7). The answer is the same
    #[arg(long, value_name = "auto|off|N", default_value = "auto", value_parser = str::parse::<Speculate>)]
    pub speculate: Speculate,

    /// A smaller model with the same tokenizer, which proposes tokens to compute ahead where the text has none to offer and
    /// where that is faster; without it, the model's own layer for that proposes, if its file has one. The answer is the same
    #[arg(long, value_name = "FILE", visible_alias = "model-draft")]
    draft: Option<PathBuf>,
}

impl DraftArgs {
    /// Returns the paths of the model and the draft model.
    pub fn models<'a>(&'a mut self, model: &'a mut PathBuf) -> Vec<&'a mut PathBuf> {
        std::iter::once(model).chain(&mut self.draft).collect()
    }

    /// Returns the draft model's file, to be replaced.
    pub fn file_mut(&mut self) -> Option<&mut PathBuf> {
        self.draft.as_mut()
    }

    /// Returns the draft model's file.
    pub fn file(&self) -> Option<&Path> {
        self.draft.as_deref()
    }

    /// Opens the draft model.
    pub fn model(&self, engine: &EngineArgs) -> Outcome<Option<Model>> {
        self.draft.as_ref().map(|path| open::draft(path, engine)).transpose()
    }

    /// Opens the draft model and keeps it until the process ends.
    pub fn leaked(&self, engine: &EngineArgs) -> Outcome<Option<&'static Model>> {
        Ok(self.model(engine)?.map(|draft| &*Box::leak(Box::new(draft))))
    }
}
