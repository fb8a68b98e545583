//! The result, for people and as JSON.

use std::path::Path;

use serde::Serialize;

use super::score::Compared;
use super::summary::{Distance, Estimate, distance, perplexity};
use crate::outcome::Outcome;
use crate::{output, units};

/// The settings and the duration of the run.
#[derive(Debug, Serialize)]
pub struct RunFacts<'a> {
    /// The model file.
    #[serde(serialize_with = "output::lossy")]
    pub model: &'a Path,
    /// Chunks that were scored.
    pub chunks: usize,
    /// Tokens per chunk.
    pub n_ctx: usize,
    /// Number of tokens that were computed at once.
    pub batch: usize,
    /// Threads.
    pub threads: usize,
    /// Kernels.
    pub isa: String,
    /// Duration of the whole run.
    pub seconds: f64,
}

#[derive(Serialize)]
struct Perplexity<'a> {
    #[serde(flatten)]
    about: &'a RunFacts<'a>,
    positions: usize,
    perplexity: Estimate,
}

#[derive(Serialize)]
struct Comparison<'a> {
    #[serde(flatten)]
    about: &'a RunFacts<'a>,
    #[serde(flatten)]
    distance: &'a Distance,
}

/// Writes the comparison to stdout if there was one, the losses otherwise.
pub fn write(about: &RunFacts<'_>, losses: &[f32], compared: &[Compared], json: bool) -> Outcome {
    let distance = distance(compared);
    if let Some(distance) = &distance {
        return match json {
            true => output::json(&Comparison { about, distance }),
            false => output::lines(&comparison(about, distance)),
        };
    }
    let (perplexity, positions) = (perplexity(losses), losses.len());
    match json {
        true => output::json(&Perplexity { about, positions, perplexity }),
        false => output::lines(&format!(
            "perplexity {:.4} ± {:.4}   ({} in {} of {}, {})\n",
            perplexity.value,
            perplexity.error,
            units::so_many(positions, "position"),
            units::so_many(about.chunks, "chunk"),
            about.n_ctx,
            units::ms(about.seconds * 1e3)
        )),
    }
}

fn comparison(about: &RunFacts<'_>, d: &Distance) -> String {
    let pm = |e: Estimate| format!("{:.6} ± {:.6}", e.value, e.error);
    let percent = |e: Estimate| format!("{:.3} ± {:.3} %", 100.0 * e.value, 100.0 * e.error);
    let k = &d.kl;
    let p = &d.p_diff;
    let h = |x: f32| format!("{:.3} %", 100.0 * x);
    format!(
        "{} in {} of {}, {}\n\
         \n\
         perplexity            {}\n\
         perplexity of base    {}\n\
         ratio                 {}\n\
         ln ratio              {}\n\
         correlation of losses {:.2} %\n\
         \n\
         KL divergence  mean   {}\n\
         {:15}median {:.6}, 90 % {:.6}, 95 % {:.6}, 99 % {:.6}, 99.9 % {:.6}\n\
         {:15}least  {:.6}, most {:.6}\n\
         same top token        {}\n\
         Δp             mean   {}\n\
         {:15}rms    {}\n\
         {:15}least  {}, 1 % {}, median {}, 99 % {}, most {}\n",
        units::so_many(d.positions, "position"),
        units::so_many(about.chunks, "chunk"),
        about.n_ctx,
        units::ms(about.seconds * 1e3),
        pm(d.perplexity),
        pm(d.base_perplexity),
        pm(d.perplexity_ratio),
        pm(d.ln_perplexity_ratio),
        100.0 * d.correlation,
        pm(k.mean),
        "",
        k.median,
        k.p90,
        k.p95,
        k.p99,
        k.p99_9,
        "",
        k.min,
        k.max,
        percent(d.same_top),
        percent(p.mean),
        "",
        percent(d.p_diff_rms),
        "",
        h(p.min),
        h(p.p01),
        h(p.median),
        h(p.p99),
        h(p.max),
    )
}
