//! A summary of an adapter: its base, its changes, and how it does not fit a model.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use alight_convert::misfits;
use alight_files::Headers;
use alight_formats::adapter::{AdapterFile, TensorChange};
use alight_formats::gguf::{Gguf, Value};
use anyhow::anyhow;
use serde::Serialize;

use super::shards;
use crate::inspect::map;
use crate::inspect::parts::{View, quoted};
use crate::{source, terminal_text};

/// Maximum number of sentences about what does not fit.
const SHOWN: usize = 8;

/// A summary of an adapter.
#[derive(Debug, Serialize)]
pub struct Adapter {
    /// The architecture of its base.
    architecture: String,
    /// The name of its base, as its makers have it.
    base_model: Option<String>,
    alpha: f32,
    /// The number of matrices with each rank.
    ranks: BTreeMap<u64, usize>,
    /// Matrices, or stacks of them, that it changes by a product of low rank.
    low_rank: usize,
    /// Those of them that have magnitudes (DoRA), and biases.
    magnitudes: usize,
    biases: usize,
    /// Vectors that it adds to.
    deltas: usize,
    /// Tensors that it replaces.
    overrides: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_prefix: Option<String>,
    /// It acts from these tokens on.
    #[serde(skip_serializing_if = "Option::is_none")]
    invocation_tokens: Option<Vec<u32>>,
    /// How it does not fit the base that it was compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    misfits: Option<Vec<String>>,
}

impl Adapter {
    /// Reads a file that says that it is an adapter, and compares it with the model at `base`.
    ///
    /// # Errors
    /// It cannot be used, or the model cannot be read.
    pub fn read(gguf: &Gguf<'_>, base: Option<&Path>) -> anyhow::Result<Adapter> {
        let file = AdapterFile::read(gguf).map_err(|error| anyhow!(error))?;
        let mut ranks = BTreeMap::new();
        let (mut low_rank, mut magnitudes, mut biases, mut deltas, mut overrides) = (0, 0, 0, 0, 0);
        for change in file.changes.values() {
            match change {
                TensorChange::LowRank(factors) => {
                    low_rank += 1;
                    *ranks.entry(factors.rank).or_default() += 1;
                    magnitudes += usize::from(factors.magnitude.is_some());
                    biases += usize::from(factors.bias.is_some());
                }
                TensorChange::Delta(_) => deltas += 1,
                TensorChange::Override(_) => overrides += 1,
            }
        }
        let text = |key: &str| match gguf.get(key) {
            Some(Value::Str(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        };
        let named = |key: &str| text(&format!("general.base_model.0.{key}"));
        let base_model = named("name").map(|name| match named("organization") {
            Some(organization) => format!("{organization}/{name}"),
            None => name,
        });
        Ok(Adapter {
            architecture: file.architecture.into(),
            base_model,
            alpha: file.alpha,
            ranks,
            low_rank,
            magnitudes,
            biases,
            deltas,
            overrides,
            task_name: file.task_name.map(Into::into),
            prompt_prefix: file.prompt_prefix.map(Into::into),
            invocation_tokens: file.invocation_tokens.clone(),
            misfits: base.map(|base| compared(&file, base)).transpose()?,
        })
    }

    /// Returns why it does not fit the base that it was compared with, if it does not.
    pub fn misfit(&self) -> Option<String> {
        let misfits = self.misfits.as_ref()?;
        let first = misfits.first()?;
        Some(match misfits.len() {
            1 => first.clone(),
            n => format!("{first}, and {} more", n - 1),
        })
    }

    /// Writes its lines.
    pub fn write(&self, view: View, out: &mut dyn Write) -> io::Result<()> {
        let mut line =
            |what: &str, text: String| writeln!(out, "{}", view.fit(&format!("{what:12}  {text}")));
        let text = |text: &str| quoted(text.as_bytes());
        let base =
            self.base_model.as_ref().map_or(String::new(), |name| format!(", {}", text(name)));
        line("adapter", format!("LoRA, for {}{base}", text(&self.architecture).trim_matches('"')))?;
        let ranks: Vec<String> =
            self.ranks.iter().map(|(rank, count)| format!("{rank} ({count})")).collect();
        if !ranks.is_empty() {
            let scales: Vec<f32> =
                self.ranks.keys().map(|rank| self.alpha / *rank as f32).collect();
            let scale = match (self.alpha, &scales[..]) {
                (0.0, _) => "1 (no alpha)".into(),
                (alpha, [one]) => format!("{one} (alpha {alpha})"),
                (alpha, _) => format!("alpha {alpha} / rank"),
            };
            line("rank", format!("{}; scale {scale}", ranks.join(", ")))?;
        }
        let counts = [
            (self.low_rank, "matrices by low rank"),
            (self.magnitudes, "of them with magnitudes (DoRA)"),
            (self.biases, "of them with a bias"),
            (self.deltas, "vectors"),
            (self.overrides, "tensors replaced"),
        ];
        let counts: Vec<String> =
            counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        line("changes", counts.join(", "))?;
        if let Some(name) = &self.task_name {
            line("task", text(name))?;
        }
        if let Some(prefix) = &self.prompt_prefix {
            line("prefix", text(prefix))?;
        }
        if let Some(tokens) = &self.invocation_tokens {
            let shown: Vec<String> = tokens.iter().take(16).map(ToString::to_string).collect();
            line("acts from", format!("the tokens {}", shown.join(", ")))?;
        }
        let Some(misfits) = &self.misfits else { return Ok(()) };
        line("base", if misfits.is_empty() { "it fits".into() } else { "it does not fit".into() })?;
        for misfit in misfits.iter().take(SHOWN) {
            line("", terminal_text::one_line(misfit).into_owned())?;
        }
        match misfits.len().checked_sub(SHOWN) {
            None | Some(0) => Ok(()),
            Some(more) => line("", format!("… and {more} more")),
        }
    }
}

/// Returns how an adapter does not fit a model.
fn compared(adapter: &AdapterFile<'_>, base: &Path) -> anyhow::Result<Vec<String>> {
    let path = source::model_file(base)?;
    let maps = shards(&path)?.iter().map(|path| map(path)).collect::<anyhow::Result<Vec<_>>>()?;
    let copies = alight_files::copies(&maps);
    let headers = alight_files::headers(&maps, &copies);
    let Headers { files, catalog } = headers.map_err(|e| source::explain(&path, anyhow!(e)))?;
    let architecture = files[0].get_str("general.architecture").ok().flatten().unwrap_or("unknown");
    let shapes: std::collections::HashMap<&str, &[u64]> =
        catalog.tensors.iter().map(|tensor| (tensor.info.name, tensor.info.shape())).collect();
    Ok(misfits(adapter, architecture, |name| shapes.get(name).copied()))
}
