//! Arguments that limit an answer's length and decide its end, the same for one prompt and for
//! many.

use alight_chat::body::thinking::{self, SWITCH};
use alight_model::MAX_CONTEXT;
use alight_text::Vocabulary;
use serde_json::{Map, Value};

/// The most positions that a conversation has without being asked for more.
const MAX_GROWN_CONTEXT: usize = 1 << 17;

/// Parses a number of positions; 0 means those that a model was trained for.
pub fn positions(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n > MAX_CONTEXT => Err(format!("expected at most {MAX_CONTEXT} tokens")),
        Ok(n) => Ok(n),
        Err(error) => Err(error.to_string()),
    }
}

/// Limits of an answer's length, and its contents.
#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// Generate at most N tokens
    ///
    /// -1 or -2: until the model ends or the context is full.
    #[arg(short = 'n', long, value_name = "N", default_value_t = -1, visible_alias = "n-predict",
          value_parser = clap::value_parser!(i64).range(-2..))]
    predict: i64,

    /// Context size in tokens [default: 4096]
    ///
    /// 0: as many as it was trained for. The default is less if it was trained for less, and more for a prompt that needs more.
    #[arg(short = 'c', long, value_name = "N", value_parser = positions)]
    ctx_size: Option<usize>,

    /// Ignore the end-of-text token
    #[arg(long)]
    pub ignore_eos: bool,

    /// Turn the model's thinking off
    ///
    /// By the chat template where that has a switch for it; otherwise by the mark that ends the thinking, which comes at once.
    #[arg(long)]
    pub no_thinking: bool,
}

impl LimitArgs {
    /// Returns the maximum number of tokens.
    pub fn max_tokens(&self) -> usize {
        usize::try_from(self.predict).unwrap_or(usize::MAX)
    }

    /// Returns the number of positions of a conversation, for a model that was trained for
    /// `trained` of them.
    pub fn context(&self, trained: usize) -> usize {
        alight_model::context(self.ctx_size, trained)
    }

    /// Returns the most positions that a conversation may have for a prompt that needs more than the default: those that the model was
    /// trained for, unless a number was given.
    pub fn max_context(&self, trained: usize) -> usize {
        match self.ctx_size {
            Some(_) => self.context(trained),
            None => trained.clamp(self.context(trained), MAX_GROWN_CONTEXT),
        }
    }

    /// Gives the variables of a template what it has for answers with or without thinking. Returns the maximum number of tokens of thinking,
    /// where the template does not end it. `may_think` is false for an answer whose grammar has no place for thinking.
    pub fn fit_thinking(
        &self,
        variables: &mut Map<String, Value>,
        vocabulary: &Vocabulary,
        may_think: bool,
    ) -> Option<usize> {
        if self.no_thinking {
            variables.insert(SWITCH.to_owned(), false.into());
        }
        thinking::fit_for(variables, vocabulary, may_think).budget
    }
}
