//! The experts of a mixture, and the part of each that is in the page cache.

use std::io::{self, Write};

use alight_formats::gguf::{Gguf, Value};
use alight_formats::split::Catalog;
use alight_pages::Map;
use serde::Serialize;

use crate::inspect::cached::{AsFound, Canvas, picture};
use crate::units;

/// The experts of all layers: expert `n` is the `n`-th matrix of every stack of the file.
#[derive(Debug, Serialize)]
pub struct Experts {
    /// Number of experts.
    count: u64,
    /// Number of experts that each token goes through, if the file states it.
    used: Option<u64>,
    /// Bytes of all of them.
    bytes: u64,
    /// Bytes of each that are in the page cache; null if the system does not report it.
    cached_bytes: Vec<Option<u64>>,
}

/// Maximum number of parts queried, whatever a file declares.
const MAX_PARTS: u64 = 1 << 18;

impl Experts {
    /// Queries the experts of a model with `maps` of its files. `None`: it has no experts.
    pub fn of(
        gguf: &Gguf<'_>,
        catalog: &Catalog<'_>,
        maps: &[Map],
        as_found: &AsFound,
    ) -> Option<Experts> {
        let architecture = match gguf.get("general.architecture") {
            Some(Value::Str(name)) => String::from_utf8_lossy(name).into_owned(),
            _ => return None,
        };
        let number = |key: &str| {
            let value = gguf.get(&format!("{architecture}.{key}"))?.as_int()?;
            u64::try_from(value).ok().filter(|n| *n > 0)
        };
        let count = number("expert_count")?;
        let of_experts = |info: &alight_formats::gguf::TensorInfo<'_>| {
            info.name.contains("_exps.") && info.ne[2] == count && info.nbytes.is_multiple_of(count)
        };
        let stacks: Vec<_> = catalog.tensors.iter().filter(|t| of_experts(&t.info)).collect();
        let parts = count.checked_mul(stacks.len() as u64).filter(|n| (1..=MAX_PARTS).contains(n));
        parts?;
        let cached = |expert: u64| {
            stacks.iter().try_fold(0u64, |sum, stack| {
                as_found
                    .bytes(&maps[stack.shard], stack.info.expert(expert))
                    .map(|found| sum.saturating_add(found))
            })
        };
        Some(Experts {
            count,
            used: number("expert_used_count"),
            bytes: stacks.iter().fold(0, |sum, stack| sum.saturating_add(stack.info.nbytes)),
            cached_bytes: (0..count).map(cached).collect(),
        })
    }

    /// Writes the line of the heading.
    pub fn write(&self, canvas: Canvas, out: &mut dyn Write) -> io::Result<()> {
        let mut line = format!("experts       {}", self.count);
        if let Some(used) = self.used {
            line += &format!(", {used} for each token");
        }
        line += &format!(", {}", units::bytes(self.bytes));
        let each = self.bytes / self.count;
        let known: Option<Vec<u64>> = self.cached_bytes.iter().copied().collect();
        let Some(known) = known else { return writeln!(out, "{line}") };
        let whole = known.iter().filter(|cached| **cached >= each).count();
        let some = known.iter().filter(|cached| **cached > 0).count() - whole;
        line += &format!("; in memory {whole} of them");
        if some > 0 {
            line += &format!(", and a part of {some}");
        }
        writeln!(out, "{line}")?;
        if let Some(room) = canvas.width.map(|width| width.saturating_sub(17)).filter(|n| *n >= 8) {
            let shares: Vec<f64> = known.iter().map(|n| *n as f64 / each.max(1) as f64).collect();
            let share = shares.iter().sum::<f64>() / shares.len() as f64;
            writeln!(out, "{:14}[{}]", "", canvas.paint(&picture(&shares, room), share))?;
        }
        Ok(())
    }
}
