//! `--explain-load`: how the weights come, in a few lines on stderr.

use alight_model::Model;
use alight_model::{FileReport, LoadReport, SlotsReport};

use crate::{say, units};

/// What was decided, right after the model was opened.
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
}

/// What came of it, at the end.
pub fn outcome(model: &Model) {
    say::plain(&done(&model.load_report()));
}

/// What came of the experts that are read when they are chosen.
pub fn experts(slots: &SlotsReport) -> String {
    let (sizes, counts) = (&slots.sizes, &slots.counts);
    format!(
        "{} of {} have room, {}; {} of {} that were chosen were there ({}), {} of {} guessed rightly; {} read; \
         steps waited {} for them",
        sizes.slots,
        sizes.pieces,
        units::bytes(sizes.bytes),
        counts.hits,
        counts.wanted,
        units::percent(counts.hits, counts.wanted.max(1)),
        counts.guessed_right,
        counts.guessed,
        units::bytes(counts.read_bytes),
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
    if let Some(slots) = &report.slots {
        text += &format!("\nexperts {}", experts(slots));
    }
    for fallback in &report.fallbacks {
        text += &format!("\n        {fallback}");
    }
    text
}
