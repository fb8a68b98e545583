//! The architectures: each is a small file that turns its metadata into the data by which the one
//! forward pass ([`crate::forward`]) differs.

mod gemma3;
mod llama;

use crate::config::{Config, Keys};
use crate::error::ConfigError;

/// A family of networks that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama, Mistral, SmolLM and everything else that converters call `llama`.
    Llama,
    /// Gemma 3 (its language model).
    Gemma3,
}

impl Architecture {
    /// Every one.
    pub const ALL: [Architecture; 2] = [Architecture::Llama, Architecture::Gemma3];

    /// What `general.architecture` calls it, which is also the prefix of its keys.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Gemma3 => "gemma3",
        }
    }

    /// The architecture of that name.
    ///
    /// # Errors
    /// [`ConfigError::Architecture`], which names those that are supported.
    pub fn from_name(name: &str) -> Result<Architecture, ConfigError> {
        Self::ALL.into_iter().find(|a| a.name() == name).ok_or_else(|| ConfigError::Architecture {
            found: name.into(),
            supported: Self::ALL.map(Architecture::name).join(", "),
        })
    }

    /// Completes what is common to all with what is particular to this one.
    pub(crate) fn configure(
        self,
        config: Config,
        keys: &Keys<'_, '_>,
    ) -> Result<Config, ConfigError> {
        match self {
            Architecture::Llama => llama::configure(config, keys),
            Architecture::Gemma3 => gemma3::configure(config, keys),
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
