//! `--explain-load`: how the weights are loaded, in a few lines on stderr.

use alight_model::Model;
use alight_model::{FileReport, LoadReport, SlotsReport};

use crate::{say, units};

/// Prints the decision, right after the model was opened.
pub fn decision(model: &Model) {
    let report = model.load_report();
    for file in &report.files {
        say::line(&facts(file));
        say::line(&format!("load    {}: {}", file.choice.method.name(), file.choice.reason));
    }
    let repack = match report.repack {
        true => format!("{} matrices", report.packed),
        false => "none".to_owned(),
    };
    say::line(&format!("repack  {repack}: {}", report.repack_reason));
    if let Some(slots) = report.slots.as_ref().filter(|slots| !slots.streamed) {
        let chosen = model.spec().expert_layers().map(|experts| experts.routing.used).sum();
        say::line(&expected(slots, chosen));
    }
}

/// The share of the chosen experts that is in memory, by the share of all experts that fits there, both in percent: replayed from
/// a published trace of Qwen3-30B-A3B, the second half of an answer.
const HITS: [[f64; 2]; 12] = [
    [0.0, 0.0],
    [3.0, 28.0],
    [5.0, 38.0],
    [10.0, 58.0],
    [15.0, 69.0],
    [20.0, 78.0],
    [25.0, 84.0],
    [30.0, 89.0],
    [40.0, 95.0],
    [50.0, 97.0],
    [60.0, 98.0],
    [100.0, 100.0],
];

/// Returns the share in [`HITS`] if `fitting` percent of the experts fit into memory.
fn expected_hits(fitting: f64) -> f64 {
    let between = HITS.windows(2).find(|pair| fitting <= pair[1][0]);
    let [[from, low], [to, high]] = between.map_or([HITS[10], HITS[11]], |pair| [pair[0], pair[1]]);
    low + (high - low) * ((fitting.min(to) - from) / (to - from))
}

/// Returns the expected performance of slots for the experts of a model of which a token chooses `chosen`, in all layers.
fn expected(slots: &SlotsReport, chosen: usize) -> String {
    const DISK: f64 = 3e9;
    let sizes = &slots.sizes;
    let fitting = 100.0 * sizes.slots as f64 / sizes.pieces.max(1) as f64;
    let hits = expected_hits(fitting);
    let read = chosen as f64 * (1.0 - hits / 100.0) * sizes.slot_bytes();
    let rate = match read as u64 {
        0 => String::new(),
        _ => format!("; a disk of 3 GB/s allows {} t/s", units::digits(DISK / read)),
    };
    let places = match sizes.spans {
        1 => "in one place of the file".to_owned(),
        many => format!("in {many} places of the file"),
    };
    format!(
        "{} of {} experts fit into memory ({:.0} %), {}, each {places}; a token chooses {chosen}. If it chooses like Qwen3-30B-A3B, {hits:.0} % of them are there, \
         and it reads {}{rate}",
        sizes.slots,
        sizes.pieces,
        fitting.floor(),
        units::bytes(sizes.bytes),
        units::bytes(read as u64),
    )
}

/// Prints the outcome, at the end.
pub fn outcome(model: &Model) {
    say::plain(&done(&model.load_report()));
}

/// Returns the outcome for weights that are read when they are needed, after the word for what they are.
pub fn slots(slots: &SlotsReport) -> (&'static str, String) {
    match slots.streamed {
        true => ("layers", layers(slots)),
        false => ("experts", experts(slots)),
    }
}

/// Returns the outcome for experts that are read as they are chosen.
fn experts(slots: &SlotsReport) -> String {
    let (sizes, counts) = (&slots.sizes, &slots.counts);
    let cached = match counts.cached {
        0 => String::new(),
        some => format!(", {some} of them into the page cache, which another process shares"),
    };
    format!(
        "{} of {} fit into memory, {}; {} of {} that were chosen were there ({}), {} of {} guessed rightly; {} read, {} of it for nothing yet, \
         {} experts by {} reads{cached}; steps waited {} for them",
        sizes.slots,
        sizes.pieces,
        units::bytes(sizes.bytes),
        counts.hits,
        counts.wanted,
        units::percent(counts.hits, counts.wanted.max(1)),
        counts.guessed_right,
        counts.guessed,
        units::bytes(counts.read_bytes),
        units::bytes(counts.unwanted_bytes),
        counts.brought,
        counts.reads,
        units::duration(counts.waited.as_secs_f64()),
    )
}

/// Returns the outcome for layers that are read as they are computed.
fn layers(slots: &SlotsReport) -> String {
    let (sizes, counts) = (&slots.sizes, &slots.counts);
    format!(
        "{} of {} matrices fit into memory, {}; {} of {} that were needed were there ({}); {} read, of {} matrices; steps waited {} for them",
        sizes.slots,
        sizes.pieces,
        units::bytes(sizes.bytes),
        counts.hits,
        counts.wanted,
        units::percent(counts.hits, counts.wanted.max(1)),
        units::bytes(counts.read_bytes),
        counts.brought,
        units::duration(counts.waited.as_secs_f64()),
    )
}

fn facts(file: &FileReport) -> String {
    let facts = &file.facts;
    let source = facts.cached_probe.map_or("not known", |probe| probe.name());
    let align = match facts.direct {
        Some(align) => format!("direct reads aligned to {}", align.offset),
        None if facts.direct_refused => "no direct reads".to_owned(),
        None => "direct reads not known".to_owned(),
    };
    let available = match facts.available {
        u64::MAX => "memory not known".to_owned(),
        bytes => format!("{} available ({})", units::bytes(bytes), facts.limit_source),
    };
    format!(
        "facts   {}: {} of weights in {}, {:.0} % in the page cache ({source}); {}; {align}; \
         {available}; found in {}",
        file.path.display(),
        units::bytes(file.weights),
        units::bytes(facts.len),
        (100.0 * facts.cached_share()).floor(),
        facts.filesystem.name,
        units::ms(facts.took.as_secs_f64() * 1e3),
    )
}

fn done(report: &LoadReport) -> String {
    let time = |d: std::time::Duration| units::ms(d.as_secs_f64() * 1e3);
    let mut parts = vec![match report.took {
        Some(took) => format!("in {}", time(took)),
        None => "not over yet".to_owned(),
    }];
    if let Some(engine) = report.engine {
        let way = if report.direct { "past" } else { "through" };
        let bytes = units::bytes(report.bytes_read);
        parts.push(format!("{bytes} read by {engine} {way} the page cache"));
    }
    let counts = [
        (report.bytes_repacked, "packed"),
        (report.bytes_given_back, "of the map given back"),
        (report.bytes_locked, "locked"),
    ];
    for (bytes, what) in counts {
        if bytes > 0 {
            parts.push(format!("{} {what}", units::bytes(bytes)));
        }
    }
    parts.push(format!("steps waited {} for it", time(report.waited)));
    let mut text = format!("loaded  {}", parts.join(", "));
    if let Some((of, counts)) = report.slots.as_ref().map(slots) {
        text += &format!("\n{of:8}{counts}");
    }
    for fallback in &report.fallbacks {
        text += &format!("\n        {fallback}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_memory_is_never_expected_to_have_fewer_hits() {
        let all: Vec<f64> =
            (0..=1000).map(|share| expected_hits(f64::from(share) / 10.0)).collect();
        assert!(all.is_sorted() && all[0] == 0.0 && all[1000] == 100.0);
        assert_eq!((expected_hits(10.0), expected_hits(35.0)), (58.0, 92.0));
    }
}
