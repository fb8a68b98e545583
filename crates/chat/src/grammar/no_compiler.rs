//! Replaces `compiler.rs` in a program built without the feature `grammar`: there is no compiler, so its types cannot be constructed.

use std::convert::Infallible;

use alight_text::Tokenizer;

use super::Wanted;
use super::compiling::{GrammarMemory, Tried};
use super::error::NoGrammar;

/// Cannot be constructed.
pub struct Compiler(Infallible);

impl Compiler {
    /// Returns an error.
    ///
    /// # Errors
    /// Always: no grammar can be compiled.
    pub fn new(_: &Tokenizer) -> Result<Compiler, NoGrammar> {
        Err(NoGrammar::NotBuilt)
    }

    pub(super) fn tried(&self) -> &Tried {
        match self.0 {}
    }

    pub(super) fn compile(&self, _: Wanted) -> Result<Grammar, String> {
        match self.0 {}
    }
}

/// Cannot be constructed.
#[derive(Clone, Debug)]
pub(crate) struct Grammar(Infallible);

impl Grammar {
    pub(super) fn account(&mut self, _: GrammarMemory) {
        match self.0 {}
    }

    pub(super) fn left_out(&self) -> &[String] {
        match self.0 {}
    }

    pub(super) fn leave_out(&mut self, _: Vec<String>) {
        match self.0 {}
    }

    pub(super) fn bytes(&self) -> usize {
        match self.0 {}
    }

    pub(super) fn mask(&mut self) -> Result<Mask, Box<str>> {
        match self.0 {}
    }

    pub(super) fn free(&self) -> Option<Mask> {
        match self.0 {}
    }

    pub(super) fn nothing(&self) -> Option<Mask> {
        match self.0 {}
    }

    pub(super) fn takes(&mut self, _: u32) -> bool {
        match self.0 {}
    }

    pub(super) fn takes_text(&mut self, _: &[u8]) -> bool {
        match self.0 {}
    }

    pub(super) fn accept(&mut self, _: u32) {
        match self.0 {}
    }

    pub(super) fn accept_text(&mut self, _: &[u8]) -> bool {
        match self.0 {}
    }

    pub(super) fn has_ended(&self) -> bool {
        match self.0 {}
    }
}

/// Cannot be constructed.
pub(super) struct Mask(Infallible);

impl Mask {
    pub(super) fn allow(&mut self, _: u32) {
        match self.0 {}
    }

    pub(super) fn apply(&self, _: &mut [f32]) {
        match self.0 {}
    }
}
