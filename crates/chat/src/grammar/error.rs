//! Why an answer is held to nothing. None of it is about who has asked: a request, a line of a batch, or an option.

use super::compiling::{MAX_COMPILE_TIME, MAX_COMPILED};
use crate::body::refusal::Refusal;

/// Why something makes no grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrammar {
    /// A schema is no JSON.
    #[error("it is not JSON: {0}")]
    NotJson(String),
    /// JSON is no schema.
    #[error("the schema is {0}, expected an object")]
    NoSchema(String),
    /// A grammar has nothing in it.
    #[error("the grammar is empty, expected a rule `root ::= …`")]
    Empty,
    /// It costs too much before it is looked into.
    #[error("it has {bytes} bytes, expected at most {most}")]
    TooLong {
        /// How many it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// It cannot be compiled, or no answer can begin with it.
    #[error("it makes no grammar: {0}")]
    Wrong(String),
    /// It costs too much.
    #[error("it makes no grammar: it takes more than {} s to compile: make it simpler", MAX_COMPILE_TIME.as_secs())]
    TooSlow,
    /// The program was built without the feature `grammar`.
    #[error(
        "this program was built without grammars; `make build` and `cargo install` build it with them"
    )]
    NotBuilt,
    /// Nothing would end an answer.
    #[error("the model has no token that ends an answer")]
    NoEnd,
    /// The tokens of the model are none for llguidance.
    #[error("nothing can be held in the tokens of this model: {0}")]
    Tokens(String),
    /// Too many wait for it.
    #[error("{MAX_COMPILED} grammars are being compiled or wait for it")]
    Busy,
    /// The system gives no thread.
    #[error("the system gives no thread to compile a grammar: {0}")]
    NoThread(String),
    /// A mistake of ours, or of llguidance's.
    #[error("the compiler of grammars has failed")]
    Failed,
}

impl NoGrammar {
    /// True if it is about what was asked for, and so comes of it again whenever that is asked for.
    pub fn is_of_what_was_asked(&self) -> bool {
        !matches!(self, NoGrammar::Busy | NoGrammar::NoThread(_) | NoGrammar::Failed)
    }

    /// The same of a field of a body.
    pub(super) fn of_field(self, param: &'static str) -> NotHeld {
        match self {
            NoGrammar::NotBuilt | NoGrammar::NoEnd | NoGrammar::Tokens(_) => {
                Refusal::unsupported(param, self.to_string()).into()
            }
            why if why.is_of_what_was_asked() => Refusal::invalid(param, why.to_string()).into(),
            why => NotHeld::Compiler(why),
        }
    }
}

/// Why the answer to a body is not held to what its fields ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeld {
    /// The body asks for what there is not.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// Nothing is wrong with the body.
    #[error("{0}")]
    Compiler(NoGrammar),
}

impl From<Refusal> for NotHeld {
    fn from(refusal: Refusal) -> NotHeld {
        NotHeld::Refused(refusal)
    }
}
