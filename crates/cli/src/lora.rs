//! `--lora FILE[:SCALE]`: adapters of all answers of a command.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use alight_model::{AdapterSet, Model};
use anyhow::anyhow;

use crate::outcome::{Outcome, Stop};

/// Options of adapters.
#[derive(Clone, Debug, clap::Args)]
pub struct LoraArgs {
    /// A LoRA adapter for the model, a GGUF file, and the factor on what it adds [default: 1]; may be given several times, and then all
    /// of them add
    #[arg(long, value_name = "FILE[:SCALE]", visible_alias = "lora-scaled", value_delimiter = ',', action = clap::ArgAction::Append)]
    lora: Vec<ScaledFile>,
}

/// The file of an adapter, and its scale.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledFile {
    pub path: PathBuf,
    pub scale: f32,
}

impl FromStr for ScaledFile {
    type Err = String;

    /// The text after the last colon is the scale, if it is a number.
    fn from_str(text: &str) -> Result<ScaledFile, String> {
        let (path, scale) = match text.rsplit_once(':') {
            Some((path, number)) => match number.parse::<f32>() {
                Ok(scale) => (path, scale),
                Err(_) => (text, 1.0),
            },
            None => (text, 1.0),
        };
        if path.is_empty() {
            return Err("expected a file, and a scale after a colon".into());
        }
        if !scale.is_finite() {
            return Err(format!("the scale is {scale}, expected a finite number"));
        }
        Ok(ScaledFile { path: path.into(), scale })
    }
}

/// The file of an adapter, and the name that requests use.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedFile {
    /// `None`: it is for all requests that name none.
    pub name: Option<String>,
    pub file: ScaledFile,
}

impl FromStr for NamedFile {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedFile, String> {
        // A path has a separator before its name, and a name has none.
        let named = text.split_once('=').filter(|(name, _)| !name.contains('/'));
        Ok(match named {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => {
                let file = ScaledFile { path: path.into(), scale: 1.0 };
                NamedFile { name: Some(name.into()), file }
            }
            Some(_) => return Err("expected NAME=FILE, or FILE:SCALE".into()),
            None => NamedFile { name: None, file: text.parse()? },
        })
    }
}

impl LoraArgs {
    /// Returns true if there are adapters.
    pub fn are_given(&self) -> bool {
        !self.lora.is_empty()
    }

    /// Refuses adapters, for an engine that has none.
    pub fn refuse(&self, why: &str) -> Outcome {
        match self.are_given() {
            true => Err(Stop::Usage(format!("--lora {why}"))),
            false => Ok(()),
        }
    }

    /// Opens the adapters for a model.
    pub fn open(&self, model: &Model) -> Outcome<AdapterSet> {
        let open = |file: &ScaledFile| {
            let adapter = model.open_adapter(&file.path).map_err(|error| anyhow!(error))?;
            Ok((Arc::new(adapter), file.scale))
        };
        Ok(AdapterSet::new(self.lora.iter().map(open).collect::<Outcome<Vec<_>>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_last_colon_is_a_scale_if_it_is_a_number() {
        let of = |text: &str| text.parse::<ScaledFile>();
        let file = |path: &str, scale| Ok(ScaledFile { path: path.into(), scale });
        assert_eq!(of("a.gguf"), file("a.gguf", 1.0));
        assert_eq!(of("a.gguf:-0.5"), file("a.gguf", -0.5));
        assert_eq!(of("C:\\a.gguf"), file("C:\\a.gguf", 1.0));
        assert_eq!(of("a:b.gguf:2"), file("a:b.gguf", 2.0));
        assert!(of(":2").is_err() && of("a:nan").is_err() && of("a:inf").is_err());
    }
}
