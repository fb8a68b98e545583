//! The report for people: one line for each kind of measurement.

use std::time::Duration;

use crate::account::whole_micros;
use crate::{Summary, Usage};

/// Returns the lines of the report, without a prefix. Values that do not apply have no line. For
/// several runs each number is a median, followed by the smallest and the largest; shares are of
/// all runs together. `floor` is the size that the process inherited from the one that made it (see
/// [`Usage`] and the [crate]), 0 if unknown.
pub fn lines(runs: &[Usage], floor: u64) -> Vec<String> {
    let mut lines = Vec::with_capacity(10);
    let runs = Runs(runs);
    lines.push(format!("took {} wall time", runs.time(|u| u.wall)));
    if runs.sum(|u| u.max_rss_bytes) > 0 {
        lines.push(if runs.0.iter().any(|u| u.max_rss_bytes > floor) {
            format!("ballooned to {} in size", runs.value("kb", |u| u.max_rss_bytes / 1024))
        } else {
            // All of it may be the size of the process that made it; and it cannot be more.
            let most = runs.value("kb", |u| u.max_rss_bytes / 1024);
            format!("ballooned to at most {most} in size, which is as small as can be told")
        });
    }
    let cpu = runs.sum(|u| whole_micros(u.cpu()));
    if cpu > 0 {
        let share = percent(runs.sum(|u| whole_micros(u.system)), cpu);
        let total: Duration = runs.0.iter().map(Usage::cpu).sum();
        let doubt = if total >= crate::SPLIT_RELIABLE { "" } else { ", too short to tell" };
        let cpu = runs.time(Usage::cpu);
        lines.push(format!("needed {cpu} cpu ({share}% kernel{doubt})"));
        lines.extend(runs.0.first().filter(|_| runs.0.len() == 1).and_then(integrals));
    }
    let faults = runs.sum(|u| u.minor_faults + u.major_faults);
    if faults > 0 {
        let share = match cfg!(windows) {
            // Windows counts both kinds as one.
            true => String::new(),
            false => {
                format!(" ({}% without the disk)", percent(runs.sum(|u| u.minor_faults), faults))
            }
        };
        let faults = runs.counted("page fault", |u| u.minor_faults + u.major_faults);
        lines.push(format!("caused {faults}{share}"));
    }
    let all = |u: &Usage| u.voluntary_switches + u.involuntary_switches;
    if runs.sum(all) > 0 {
        let share = percent(runs.sum(|u| u.voluntary_switches), runs.sum(all));
        let switches = runs.counted("context switch", all);
        lines.push(format!("{switches} ({share}% consensual)"));
    }
    if runs.sum(|u| u.messages_received + u.messages_sent) > 0 {
        let received = runs.counted("message", |u| u.messages_received);
        lines.push(format!("received {received} and sent {}", runs.value("", |u| u.messages_sent)));
    }
    let of = |n: Option<u64>| n.unwrap_or(0);
    if runs.sum(|u| of(u.read_bytes) + of(u.written_bytes)) > 0 {
        let read = runs.counted("byte", |u| of(u.read_bytes));
        let written = runs.counted("byte", |u| of(u.written_bytes));
        lines.push(format!("performed {read} of read and {written} of write i/o"));
    }
    if runs.sum(|u| of(u.read_operations) + of(u.write_operations)) > 0 {
        let reads = runs.counted("read", |u| of(u.read_operations));
        let writes = runs.value("", |u| of(u.write_operations));
        lines.push(format!("performed {reads} and {writes} write i/o operations"));
    }
    if runs.sum(|u| u.signals) > 0 {
        lines.push(format!("received {}", runs.counted("signal", |u| u.signals)));
    }
    if runs.sum(|u| u.swaps) > 0 {
        lines.push(format!("got swapped {}", runs.counted("time", |u| u.swaps)));
    }
    lines
}

/// One or more runs of the same command.
struct Runs<'a>(&'a [Usage]);

impl Runs<'_> {
    fn sum(&self, of: impl Fn(&Usage) -> u64) -> u64 {
        self.0.iter().map(of).fold(0, u64::saturating_add)
    }

    fn median(&self, of: impl Fn(&Usage) -> u64) -> (u64, Option<Summary>) {
        let values: Vec<f64> = self.0.iter().map(|u| of(u) as f64).collect();
        match (&self.0, Summary::of(&values)) {
            // Not through a float, which holds 53 bits.
            ([one], _) => (of(one), None),
            (_, Some(summary)) => (summary.median.round() as u64, Some(summary)),
            (_, None) => (0, None),
        }
    }

    /// `1,234kb`, or `1,234kb (1,200 to 1,300)`.
    fn value(&self, unit: &str, of: impl Fn(&Usage) -> u64) -> String {
        let (median, summary) = self.median(of);
        format!("{}{unit}{}", thousands(median), spread(summary, thousands))
    }

    /// `0.551 s`, or `0.551 s (0.540 to 0.602)`: the median's unit is used for all three.
    fn time(&self, of: impl Fn(&Usage) -> Duration) -> String {
        let (median, summary) = self.median(|u| whole_micros(of(u)));
        let unit = TimeUnit::of(median);
        let spread = spread(summary, |micros| unit.number(micros));
        format!("{} {}{spread}", unit.number(median), unit.name())
    }

    /// `1 byte`, or `3 bytes (1 to 7)`.
    fn counted(&self, what: &str, of: impl Fn(&Usage) -> u64) -> String {
        let (median, summary) = self.median(of);
        format!("{}{}", counted(median, what), spread(summary, thousands))
    }
}

/// ` (1,200 to 1,300)`; empty for one run, or if all runs are equal.
fn spread(summary: Option<Summary>, number: impl Fn(u64) -> String) -> String {
    match summary {
        Some(s) if s.min < s.max => {
            format!(" ({} to {})", number(s.min.round() as u64), number(s.max.round() as u64))
        }
        _ => String::new(),
    }
}

/// The unit in which a time is reported: seconds from a tenth of a second on, below that the
/// largest that leaves a whole number before the decimal point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// To the millisecond.
    Seconds,
    /// To the microsecond.
    Millis,
    /// Whole microseconds.
    Micros,
}

impl TimeUnit {
    /// Returns the unit for `micros` microseconds.
    pub fn of(micros: u64) -> TimeUnit {
        match micros {
            100_000.. => TimeUnit::Seconds,
            1_000.. => TimeUnit::Millis,
            _ => TimeUnit::Micros,
        }
    }

    /// `s`, `ms` or `µs`.
    pub fn name(self) -> &'static str {
        match self {
            TimeUnit::Seconds => "s",
            TimeUnit::Millis => "ms",
            TimeUnit::Micros => "µs",
        }
    }

    /// Formats `micros` microseconds in this unit: `1,234.567`.
    pub fn number(self, micros: u64) -> String {
        let thousandths = match self {
            TimeUnit::Seconds => micros / 1000 + u64::from(micros % 1000 >= 500),
            TimeUnit::Millis => micros,
            TimeUnit::Micros => return thousands(micros),
        };
        format!("{}.{:03}", thousands(thousandths / 1000), thousandths % 1000)
    }
}

/// Averages over the processor time, if the system integrates (kilobytes × ticks of a hundredth of
/// a second).
fn integrals(usage: &Usage) -> Option<String> {
    if usage.integrals == [0; 3] {
        return None;
    }
    let ticks = (usage.cpu().as_millis() / 10).max(1) as u64;
    let [shared, data, stack] = usage.integrals.map(|sum| thousands(sum / ticks));
    Some(format!("averaged {shared}kb of shared code, {data}kb of data and {stack}kb of stack"))
}

/// `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 fault`, `2 faults`, `0 switches`.
pub(crate) fn counted(n: u64, what: &str) -> String {
    let plural = match (n, what.ends_with("ch")) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {what}{plural}", thousands(n))
}

/// A part in whole percent, rounded down: 100 means all of it.
fn percent(part: u64, whole: u64) -> u128 {
    u128::from(part) * 100 / u128::from(whole.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn numbers_have_their_separators_and_plurals() {
        let cases =
            [(0, "0"), (999, "999"), (1000, "1,000"), (u64::MAX, "18,446,744,073,709,551,615")];
        for (n, text) in cases {
            assert_eq!(thousands(n), text);
        }
        assert_eq!(counted(1, "context switch"), "1 context switch");
        assert_eq!(counted(0, "context switch"), "0 context switches");
        assert_eq!(counted(1200, "page fault"), "1,200 page faults");
    }

    #[test]
    fn times_are_in_seconds_where_seconds_are_meant() {
        for (micros, text) in [
            (0, "0 µs"),
            (999, "999 µs"),
            (1_000, "1.000 ms"),
            (99_999, "99.999 ms"),
            (100_000, "0.100 s"),
            (551_499, "0.551 s"),
            (551_500, "0.552 s"),
            (999_999, "1.000 s"),
            (3_725_000_123, "3,725.000 s"),
            (u64::MAX, "18,446,744,073,709.552 s"),
        ] {
            let unit = TimeUnit::of(micros);
            assert_eq!(format!("{} {}", unit.number(micros), unit.name()), text);
        }
        assert_eq!(TimeUnit::Seconds.number(1_499), "0.001");
    }

    #[test]
    fn a_full_report() {
        let usage = Usage {
            wall: Duration::from_micros(1_234_567),
            user: Duration::from_millis(750),
            system: Duration::from_millis(250),
            max_rss_bytes: 5_000 * 1024,
            minor_faults: 998,
            major_faults: 3,
            voluntary_switches: 1,
            involuntary_switches: 1,
            read_bytes: Some(4096),
            written_bytes: Some(1),
            messages_received: 1,
            messages_sent: 3,
            signals: 1,
            swaps: 2,
            integrals: [1000, 2000, 300_000],
            ..Usage::default()
        };
        let faults = if cfg!(windows) {
            "caused 1,001 page faults"
        } else {
            "caused 1,001 page faults (99% without the disk)"
        };
        assert_eq!(
            lines(&[usage], 100 * 1024),
            [
                "took 1.235 s wall time",
                "ballooned to 5,000kb in size",
                "needed 1.000 s cpu (25% kernel)",
                "averaged 10kb of shared code, 20kb of data and 3,000kb of stack",
                faults,
                "2 context switches (50% consensual)",
                "received 1 message and sent 3",
                "performed 4,096 bytes of read and 1 byte of write i/o",
                "received 1 signal",
                "got swapped 2 times",
            ]
        );
    }

    #[test]
    fn what_does_not_apply_has_no_line_and_doubt_is_said() {
        assert_eq!(lines(&[Usage::default()], 0), ["took 0 µs wall time"]);
        let small = Usage {
            user: Duration::from_micros(99),
            system: Duration::from_micros(1),
            max_rss_bytes: 128 << 10,
            read_operations: Some(2),
            ..Usage::default()
        };
        assert_eq!(
            lines(&[small], 128 << 10)[1..],
            [
                "ballooned to at most 128kb in size, which is as small as can be told",
                "needed 100 µs cpu (1% kernel, too short to tell)",
                "performed 2 reads and 0 write i/o operations",
            ]
        );
    }

    #[test]
    fn several_runs_have_medians_and_spread() {
        let run = |ms: u64, minor: u64, major: u64| Usage {
            wall: Duration::from_millis(ms),
            system: Duration::from_millis(ms),
            minor_faults: minor,
            major_faults: major,
            swaps: 1,
            ..Usage::default()
        };
        let faults = if cfg!(windows) { "" } else { " (90% without the disk)" };
        assert_eq!(
            lines(&[run(30, 5, 0), run(10, 3, 0), run(70, 1, 1)], 0),
            [
                "took 30.000 ms (10.000 to 70.000) wall time".to_owned(),
                "needed 30.000 ms (10.000 to 70.000) cpu (100% kernel)".to_owned(),
                format!("caused 3 page faults (2 to 5){faults}"),
                "got swapped 1 time".to_owned(),
            ]
        );
    }
}
