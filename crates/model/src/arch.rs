//! The architectures: each is a small file that turns its metadata into the data by which the one
//! forward pass ([`crate::forward`]) differs.

mod gemma;
mod gemma2;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;

use crate::config::{Config, Keys};
use crate::error::ConfigError;

/// A family of networks that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama, Mistral, SmolLM and everything else that converters call `llama`.
    Llama,
    /// Qwen 2 and 2.5, the dense ones.
    Qwen2,
    /// Qwen 3, the dense ones.
    Qwen3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3 (its language model).
    Gemma3,
}

impl Architecture {
    /// Every one.
    pub const ALL: [Architecture; 5] = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
        Architecture::Gemma2,
        Architecture::Gemma3,
    ];

    /// What `general.architecture` calls it, which is also the prefix of its keys.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma2 => "gemma2",
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
            Architecture::Qwen2 => Ok(qwen2::configure(config)),
            Architecture::Qwen3 => Ok(qwen3::configure(config)),
            Architecture::Gemma2 => gemma2::configure(config, keys),
            Architecture::Gemma3 => gemma3::configure(config, keys),
        }
    }
}

impl std::fmt::Display for Architecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
