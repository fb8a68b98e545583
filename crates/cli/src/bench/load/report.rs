//! The complete result. Its JSON fields are only ever added.

use std::path::PathBuf;

use alight_pages::Load;
use serde::Serialize;

use super::cells::{Cell, State, Variant};
use super::child::Sample;
use super::disk::Disk;
use super::files::Files;
use crate::{output, units};
use rusage::Summary;

/// The result. Times in milliseconds, memory in bytes.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    /// `load`.
    what: &'static str,
    /// The canonical model.
    #[serde(serialize_with = "output::lossy")]
    pub model: PathBuf,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of the packed file.
    pub packed_bytes: Option<u64>,
    /// Repetitions of each cell.
    pub repetitions: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u64>,
    /// True if all cells generated the same first token.
    pub same_token: bool,
    /// Reading the canonical file itself, starting cold; null if no cell is cold.
    pub disk: Option<DiskReport>,
    /// In the order of the table.
    pub cells: Vec<CellReport>,
}

/// The disk.
#[derive(Debug, Serialize)]
pub struct DiskReport {
    /// Milliseconds that alight's direct transfer needs for the bytes.
    pub alight_ms: Option<Summary>,
    /// Its engine.
    pub alight_how: String,
    /// Milliseconds that fio needs; null if it is not installed.
    pub fio_ms: Option<Summary>,
    /// fio's arguments, except for the file's name.
    pub fio_arguments: &'static [&'static str],
}

impl DiskReport {
    /// Returns the time that the disk needs: the shorter one, since the longer includes other work.
    pub fn median_ms(&self) -> Option<f64> {
        [self.fio_ms, self.alight_ms].into_iter().flatten().map(|s| s.median).min_by(f64::total_cmp)
    }
}

/// A cell.
#[derive(Debug, Serialize)]
pub struct CellReport {
    /// The cell itself.
    #[serde(flatten)]
    pub cell: Cell,
    /// True if it was in that state before each repetition. Cold: no page cached, counted; warm: all.
    pub state_proven: bool,
    /// The pages that were cached before the repetition furthest from the state (the maximum if
    /// cold, otherwise the minimum), and the pages of the file.
    pub cached_pages_before: u64,
    #[allow(missing_docs)]
    pub pages: u64,
    /// By its own clock, from the start of `main`; resident: from the prompt.
    pub first_token_ms: Option<Summary>,
    /// From before the start of the process until after its exit; null if resident.
    pub process_ms: Option<Summary>,
    /// Bytes from the disk.
    pub read_bytes: Option<Summary>,
    /// Memory when the token was generated: anonymous, of files, proportional, and the peak.
    pub rss_anon: Option<Summary>,
    #[allow(missing_docs)]
    pub rss_file: Option<Summary>,
    #[allow(missing_docs)]
    pub pss: Option<Summary>,
    #[allow(missing_docs)]
    pub peak_rss: Option<Summary>,
    /// Faults.
    pub minor_faults: Option<Summary>,
    #[allow(missing_docs)]
    pub major_faults: Option<Summary>,
    /// The load method actually used.
    pub method: Option<String>,
    /// Cold: the median as a multiple of the time that the disk needs for the bytes.
    pub of_disk: Option<f64>,
    /// For alight's own choice: the median as a multiple of the best alternative.
    pub of_best: Option<f64>,
    /// Each repetition.
    pub samples: Vec<Sample>,
}

impl CellReport {
    /// Returns the median, in milliseconds.
    pub fn median_ms(&self) -> Option<f64> {
        self.first_token_ms.map(|s| s.median)
    }
}

impl LoadReport {
    /// Creates the report; `samples[i]` belong to `cells[i]`.
    pub fn new(
        canonical: &Files,
        packed: Option<&Files>,
        repetitions: usize,
        disk: &Disk,
        cells: &[Cell],
        samples: &[Vec<Sample>],
    ) -> LoadReport {
        let disk = Summary::of(&disk.alight_ms).map(|alight| DiskReport {
            alight_ms: Some(alight),
            alight_how: disk.how.clone(),
            fio_ms: Summary::of(&disk.fio_ms),
            fio_arguments: &super::disk::FIO,
        });
        let mut all: Vec<CellReport> =
            cells.iter().zip(samples).map(|(cell, samples)| of_cell(*cell, samples)).collect();
        for i in 0..all.len() {
            let Some(median) = all[i].median_ms() else { continue };
            let cell = all[i].cell;
            if cell.state == State::Cold {
                let bytes = match cell.variant {
                    Variant::Packed => packed.map_or(canonical.bytes, |f| f.bytes),
                    _ => canonical.bytes,
                };
                let scale = bytes as f64 / canonical.bytes.max(1) as f64;
                let disk_ms = disk.as_ref().and_then(DiskReport::median_ms);
                all[i].of_disk = disk_ms.map(|ms| median / (ms * scale));
            }
            let best = all
                .iter()
                .filter(|other| cell.chose_against(&other.cell))
                .filter_map(CellReport::median_ms)
                .min_by(f64::total_cmp);
            all[i].of_best = best.map(|best| median / best);
        }
        let mut tokens = samples.iter().flatten().map(|s| s.token);
        let first = tokens.next().flatten();
        LoadReport {
            what: "load",
            model: canonical.first().to_owned(),
            bytes: canonical.bytes,
            packed_bytes: packed.map(|f| f.bytes),
            repetitions,
            prompt_tokens: samples.iter().flatten().find_map(|s| s.prompt_tokens),
            same_token: first.is_some() && tokens.all(|token| token == first),
            disk,
            cells: all,
        }
    }

    /// Returns the cells of a state.
    pub fn of_state(&self, state: State) -> impl Iterator<Item = &CellReport> {
        self.cells.iter().filter(move |c| c.cell.state == state)
    }
}

/// Returns the common heading of the cells of a state: the state as found before the runs, not the intended one.
pub fn heading(state: State, cells: &[&CellReport]) -> String {
    let (reached, bound) = match state {
        State::Cold => ("nothing of the file in the page cache", "up to"),
        State::Warm => ("all of the file in the page cache", "as little as"),
        State::Resident => return "resident: a process that has answered before".to_owned(),
    };
    if cells.iter().all(|cell| cell.state_proven) {
        return format!("{state}: {reached}, a new process");
    }
    let share = |cell: &&&CellReport| {
        let share = cell.cached_pages_before as f64 / cell.pages.max(1) as f64;
        if state == State::Cold { share } else { -share }
    };
    let worst = cells.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let worst =
        worst.map_or_else(String::new, |cell| units::percent(cell.cached_pages_before, cell.pages));
    format!("{state}, not proven: {bound} {worst} of the file in the page cache, a new process")
}

fn of_cell(cell: Cell, samples: &[Sample]) -> CellReport {
    let of = |value: &dyn Fn(&Sample) -> Option<u64>| {
        let values: Option<Vec<f64>> = samples.iter().map(|s| value(s).map(|v| v as f64)).collect();
        Summary::of(&values?)
    };
    let times = |value: &dyn Fn(&Sample) -> f64| {
        Summary::of(&samples.iter().map(value).collect::<Vec<_>>())
    };
    let proven = |s: &Sample| {
        s.before.counted
            && match cell.state {
                State::Cold => s.before.cached == 0,
                State::Warm | State::Resident => s.before.cached == s.before.pages,
            }
    };
    let method = samples.last().and_then(|s| s.load.get("method")?.as_str().map(str::to_owned));
    CellReport {
        cell,
        state_proven: samples.iter().all(proven),
        cached_pages_before: match cell.state {
            State::Cold => samples.iter().map(|s| s.before.cached).max(),
            State::Warm | State::Resident => samples.iter().map(|s| s.before.cached).min(),
        }
        .unwrap_or(0),
        pages: samples.iter().map(|s| s.before.pages).max().unwrap_or(0),
        first_token_ms: times(&|s| s.first_token_ms),
        process_ms: times(&|s| s.process_ms).filter(|_| cell.state != State::Resident),
        read_bytes: of(&|s| s.read_bytes),
        rss_anon: of(&|s| s.rss_anon),
        rss_file: of(&|s| s.rss_file),
        pss: of(&|s| s.pss),
        peak_rss: of(&|s| s.peak_rss),
        minor_faults: of(&|s| s.minor_faults),
        major_faults: of(&|s| s.major_faults),
        method: method.filter(|_| cell.load == Load::Auto),
        of_disk: None,
        of_best: None,
        samples: samples.to_vec(),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::cells::matrix;
    use super::super::state::Proof;
    use super::*;
    use serde_json::json;
    use std::path::Path;

    /// Returns a report of all cells without a packed file; the n-th cell takes n + 1 times 100 ms,
    /// and the disk 50 ms.
    pub fn some_report() -> LoadReport {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a<b>&c.gguf");
        let mut builder = alight_formats::gguf::write::Builder::new();
        builder.str("general.architecture", "none");
        std::fs::write(&path, builder.file(|_, _| ())).unwrap();
        let files = Files::of(Path::new(&path)).unwrap();
        let cells = matrix(&[], &[], false);
        let samples: Vec<Vec<Sample>> = cells
            .iter()
            .enumerate()
            .map(|(i, cell)| {
                let before = match cell.state {
                    State::Cold => Proof { pages: 9, cached: 0, counted: true },
                    _ => Proof { pages: 9, cached: 9, counted: true },
                };
                let sample = Sample {
                    first_token_ms: 100.0 * (i + 1) as f64,
                    process_ms: 0.0,
                    read_bytes: Some(1_000_000),
                    minor_faults: Some(7),
                    major_faults: Some(0),
                    rss_anon: Some(5_000_000),
                    rss_file: None,
                    pss: Some(1),
                    peak_rss: Some(9_000_000),
                    token: Some(42),
                    prompt_tokens: Some(5),
                    load: json!({"method": "mmap"}),
                    before,
                };
                vec![sample.clone(), sample]
            })
            .collect();
        let disk = Disk { alight_ms: vec![50.0, 50.0], fio_ms: vec![], how: "io_uring".to_owned() };
        LoadReport::new(&files, None, 2, &disk, &cells, &samples)
    }

    #[test]
    fn ratios_are_to_the_disk_and_to_the_best() {
        let report = some_report();
        let cell = |state, variant, load| {
            report.cells.iter().find(|c| c.cell == Cell { state, variant, load }).unwrap()
        };
        assert_eq!(cell(State::Cold, Variant::RepackOff, Load::Mmap).of_disk, Some(2.0));
        let auto = cell(State::Cold, Variant::RepackOff, Load::Auto);
        assert_eq!((auto.of_disk, auto.of_best), (Some(8.0), Some(4.0)));
        assert_eq!(auto.method.as_deref(), Some("mmap"));
        assert_eq!(cell(State::Cold, Variant::RepackOff, Load::Read).of_best, None);
        assert_eq!(cell(State::Warm, Variant::RepackOff, Load::Mmap).of_disk, None);
        // The ninth against the first.
        assert_eq!(cell(State::Cold, Variant::RepackAuto, Load::Auto).of_best, Some(9.0));
        assert!(report.same_token && report.cells.iter().all(|c| c.state_proven));
        assert_eq!(report.cells[0].rss_file, None);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][1]["load"], "direct");
        assert_eq!(json["cells"][1]["variant"], "repack-off");
        assert_eq!(json["disk"]["alight_ms"]["median"], 50.0);
    }

    #[test]
    fn a_state_that_was_not_reached_is_said() {
        let mut samples = some_report().cells[0].samples.clone();
        samples[1].before.cached = 3;
        let cold = Cell { state: State::Cold, variant: Variant::RepackOff, load: Load::Mmap };
        let got = of_cell(cold, &samples);
        assert_eq!((got.state_proven, got.cached_pages_before), (false, 3));
        samples[1].before = Proof { pages: 9, cached: 0, counted: false };
        assert!(!of_cell(cold, &samples).state_proven, "samples prove nothing");
    }

    #[test]
    fn a_heading_says_what_was_found() {
        let mut report = some_report();
        let text = |report: &LoadReport, state| {
            heading(state, &report.of_state(state).collect::<Vec<_>>())
        };
        assert_eq!(
            text(&report, State::Cold),
            "cold: nothing of the file in the page cache, a new process"
        );
        assert!(text(&report, State::Warm).starts_with("warm: all of the file in the page cache"));
        for (cell, cached) in report.cells.iter_mut().zip([1, 98, 0]) {
            (cell.pages, cell.cached_pages_before, cell.state_proven) = (100, cached, cached == 0);
        }
        assert_eq!(
            text(&report, State::Cold),
            "cold, not proven: up to 98 % of the file in the page cache, a new process"
        );
        let warm = report.cells.iter_mut().find(|cell| cell.cell.state == State::Warm).unwrap();
        (warm.pages, warm.cached_pages_before, warm.state_proven) = (100, 97, false);
        assert_eq!(
            text(&report, State::Warm),
            "warm, not proven: as little as 97 % of the file in the page cache, a new process"
        );
    }
}
