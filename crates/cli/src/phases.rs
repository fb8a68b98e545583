//! The resources used by the phases of this process, for display.

use std::time::Duration;

use rusage::Phase;

use crate::layout::table::{Style, Table};
use crate::units;

/// The first column begins as the labels of the lines above it.
const HEAD: [&str; 8] =
    ["used       ", "wall", "cpu", "kernel", "minor", "major", "read", "switches"];

/// Returns a table of the resources used by the phases, one line each.
pub fn table(phases: &[Phase], columns: Option<usize>) -> String {
    let ms = |time: Duration| units::ms(time.as_secs_f64() * 1e3);
    let mut table = Table::new(HEAD, 1, Style::Plain);
    for Phase { name, usage } in phases {
        table.row([
            (*name).to_owned(),
            ms(usage.wall),
            ms(usage.cpu()),
            ms(usage.system),
            usage.minor_faults.to_string(),
            usage.major_faults.to_string(),
            usage.read_bytes.map_or("?".to_owned(), units::bytes),
            (usage.voluntary_switches + usage.involuntary_switches).to_string(),
        ]);
    }
    table.text(columns)
}
