//! The resources used by the phases of this process, for display.

use std::time::Duration;

use rusage::Phase;

use crate::units;

/// Returns a table of the resources used by the phases, one line each.
pub fn table(phases: &[Phase]) -> String {
    let ms = |time: Duration| units::ms(time.as_secs_f64() * 1e3);
    let mut text = format!(
        "{:<12} {:>9} {:>9} {:>9} {:>8} {:>8} {:>11} {:>9}",
        "used", "wall", "cpu", "kernel", "minor", "major", "read", "switches"
    );
    for Phase { name, usage } in phases {
        text.push_str(&format!(
            "\n{name:<12} {:>9} {:>9} {:>9} {:>8} {:>8} {:>11} {:>9}",
            ms(usage.wall),
            ms(usage.cpu()),
            ms(usage.system),
            usage.minor_faults,
            usage.major_faults,
            usage.read_bytes.map_or("?".to_owned(), units::bytes),
            usage.voluntary_switches + usage.involuntary_switches,
        ));
    }
    text
}
