//! The result of a benchmark, as JSON and for the user.

use std::path::{Path, PathBuf};

use alight_model::Model;
use rusage::{Phase, Summary};
use serde::Serialize;

use super::machine::MachineLimits;
use super::work::Work;
use crate::{output, phases, units};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// One by one, or all at once.
    pub decode: bool,
    /// Tokens per repetition.
    pub tokens: usize,
    /// Tokens in the cache before.
    pub depth: usize,
}

/// The measurements.
#[derive(Debug)]
pub struct Measured {
    /// Tokens per second.
    pub rate: Summary,
    /// Milliseconds per token, if they were computed one by one.
    pub steps: Option<Summary>,
    /// The limits of the machine.
    pub limits: MachineLimits,
    /// The resources that the process used.
    pub phases: Vec<Phase>,
}

/// The result. Fields are only ever added.
#[derive(Debug, Serialize)]
pub struct BenchReport {
    /// `decode` or `prefill`.
    what: &'static str,
    #[serde(serialize_with = "output::lossy")]
    model: PathBuf,
    tokens: usize,
    depth: usize,
    threads: usize,
    isa: String,
    tokens_per_second: Summary,
    /// Milliseconds per token over all repetitions; null for `prefill`.
    token_ms: Option<Summary>,
    /// Of one repetition.
    work: Work,
    /// At the median.
    bytes_per_second: f64,
    macs_per_second: f64,
    limits: MachineLimits,
    /// Of the limits, 0 to 1.
    share_of_read_bandwidth: f64,
    share_of_int8_peak: f64,
    /// The resources that the process used: `open`, `warm up`, `measure` (all repetitions).
    phases: Vec<Phase>,
    #[serde(skip)]
    about: String,
}

impl BenchReport {
    /// Creates a report.
    pub fn new(
        path: &Path,
        model: &Model,
        run: Run,
        work: Work,
        measured: Measured,
    ) -> BenchReport {
        let Measured { rate, steps, limits, phases } = measured;
        let runs_per_second = rate.median / run.tokens as f64;
        let bytes_per_second = work.bytes() * runs_per_second;
        let macs_per_second = work.macs() * runs_per_second;
        BenchReport {
            what: if run.decode { "decode" } else { "prefill" },
            model: path.to_owned(),
            tokens: run.tokens,
            depth: run.depth,
            threads: model.threads(),
            isa: model.isa().to_string(),
            tokens_per_second: rate,
            token_ms: steps,
            work,
            bytes_per_second,
            macs_per_second,
            limits,
            share_of_read_bandwidth: bytes_per_second / limits.read_bytes_per_second,
            share_of_int8_peak: macs_per_second / limits.int8_macs_per_second,
            phases,
            about: describe(model),
        }
    }

    /// Returns the text for the user.
    pub fn human(&self, columns: Option<usize>) -> String {
        let rate = &self.tokens_per_second;
        let mut text = format!(
            "{}\n\
             {:<9} {} tokens at depth {}, {}, {} kernels\n\
             speed     {} tokens/s, median of {} ({} to {}, middle half {} to {})\n",
            crate::terminal_text::one_line(&self.about),
            self.what,
            self.tokens,
            self.depth,
            units::so_many(self.threads as u64, "thread"),
            self.isa,
            units::digits(rate.median),
            rate.runs,
            units::digits(rate.min),
            units::digits(rate.max),
            units::digits(rate.q1),
            units::digits(rate.q3),
        );
        if let Some(step) = &self.token_ms {
            text += &format!(
                "token     {}, median of {} ({} to {})\n",
                units::ms(step.median),
                step.runs,
                units::ms(step.min),
                units::ms(step.max)
            );
        }
        let threads = units::so_many(self.limits.threads as u64, "thread");
        let giga = |x: f64| units::digits(x / 1e9);
        let percent = |x: f64| format!("{:.0} %", 100.0 * x);
        text += &format!(
            "memory    {} GB/s (weights {}, cache {}), {} of the {} GB/s that {} can read here\n",
            giga(self.bytes_per_second),
            units::bytes(self.work.weight_bytes as u64),
            units::bytes(self.work.kv_bytes as u64),
            percent(self.share_of_read_bandwidth),
            giga(self.limits.read_bytes_per_second),
            threads,
        );
        text += &format!(
            "multiply  {} GMAC/s, {} of the {} GMAC/s that {} can do here in 8 bits",
            giga(self.macs_per_second),
            percent(self.share_of_int8_peak),
            giga(self.limits.int8_macs_per_second),
            threads
        );
        text.push_str("\n\n");
        text.push_str(&phases::table(&self.phases, columns));
        text.push('\n');
        text
    }
}

/// Returns the quantization of a model that is open.
pub fn quantization_of(model: &Model) -> String {
    let name = model.files().next().map(crate::quantization::of);
    name.and_then(Result::ok).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the name, quantization and size of a model.
fn describe(model: &Model) -> String {
    format!(
        "{}, {}, {} parameters, {} of weights read per token",
        model.name(),
        quantization_of(model),
        units::count(model.parameters()),
        units::bytes(model.decode_bytes()),
    )
}
