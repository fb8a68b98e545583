//! Reasons why an answer is not constrained. They do not depend on where the constraint came from: a request, a line of a batch, or an option.

use super::compiling::{MAX_COMPILE_TIME, MAX_GRAMMAR_MEMORY, MAX_GRAMMARS_MEMORY, MAX_TRIAL_TIME};
use crate::body::refusal::Refusal;

/// The reason why a grammar cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGrammar {
    /// A schema is not JSON.
    #[error("it is not JSON: {0}")]
    NotJson(String),
    /// The JSON is not a schema.
    #[error("the schema is {0}, expected an object")]
    NoSchema(String),
    /// A grammar is empty.
    #[error("the grammar is empty, expected a rule `root ::= …`")]
    Empty,
    /// It is too long, and is not parsed.
    #[error("it has {bytes} bytes, expected at most {most}")]
    TooLong {
        /// Its size in bytes.
        bytes: usize,
        /// The maximum size in bytes.
        most: usize,
    },
    /// It cannot be compiled, or no answer can begin with it.
    #[error("it makes no grammar: {0}")]
    Wrong(String),
    /// Compiling it takes too long.
    #[error("it makes no grammar: it takes more than {} s to compile: make it simpler", MAX_TRIAL_TIME.as_secs())]
    TooSlow,
    /// The machine is too busy to compile it.
    #[error("the grammar was not compiled within {} s, since the machine is busy: try again later", MAX_COMPILE_TIME.as_secs())]
    Late,
    /// Compiling it takes too much memory.
    #[error("it makes no grammar: it takes more than {} MiB to compile: make it simpler", MAX_GRAMMAR_MEMORY >> 20)]
    TooLarge,
    /// The program was built without the feature `grammar`.
    #[error(
        "this program was built without grammars; `make build` and `cargo install` build it with them"
    )]
    NotBuilt,
    /// The model has no token that ends an answer.
    #[error("the model has no token that ends an answer")]
    NoEnd,
    /// llguidance cannot use the tokens of the model.
    #[error("nothing can be held in the tokens of this model: {0}")]
    Tokens(String),
    /// Too many are being compiled.
    #[error("{running} grammars are being compiled and {waiting} others wait: try again later")]
    Busy {
        /// The number being compiled.
        running: usize,
        /// The number of those waiting.
        waiting: usize,
    },
    /// The grammars of other answers leave too little memory.
    #[error(
        "the grammars in use take {} MiB of the {} MiB that all may take: try again later", in_use >> 20, MAX_GRAMMARS_MEMORY >> 20
    )]
    Full {
        /// Their bytes.
        in_use: usize,
    },
    /// The client no longer needs it, or the server ends.
    #[error("the compilation was cancelled")]
    Cancelled,
    /// The system starts no thread or process.
    #[error("the system starts no thread or process to compile a grammar: {0}")]
    NoThread(String),
    /// A bug, here or in llguidance.
    #[error("the compiler of grammars has failed")]
    Failed,
}

impl NoGrammar {
    /// True if the reason is the requested constraint itself, so that it fails again each time it is requested.
    pub fn is_of_what_was_asked(&self) -> bool {
        !matches!(
            self,
            NoGrammar::Busy { .. }
                | NoGrammar::Late
                | NoGrammar::Full { .. }
                | NoGrammar::Cancelled
                | NoGrammar::NoThread(_)
                | NoGrammar::Failed
        )
    }

    /// The same, for a field of a body.
    pub(super) fn of_field(self, param: &str) -> NotHeld {
        match self {
            NoGrammar::NotBuilt | NoGrammar::NoEnd | NoGrammar::Tokens(_) => {
                Refusal::unsupported(param, self.to_string()).into()
            }
            why if why.is_of_what_was_asked() => Refusal::invalid(param, why.to_string()).into(),
            why => NotHeld::Compiler(why),
        }
    }
}

/// The reason why the answer to a body does not get the constraint that its fields request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeld {
    /// The body requests an invalid or unsupported constraint.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The body is not the cause.
    #[error("{0}")]
    Compiler(NoGrammar),
}

impl From<Refusal> for NotHeld {
    fn from(refusal: Refusal) -> NotHeld {
        NotHeld::Refused(refusal)
    }
}
