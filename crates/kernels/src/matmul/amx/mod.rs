//! Tokens of a prompt with AMX, a unit that multiplies small matrices ("tiles") in one instruction: of bytes ([`bytes`]), whose results have the
//! bits of AVX-512, or of bf16 numbers ([`brain`]), whose have not.

pub(super) mod brain;
mod brain_panel;
pub(super) mod bytes;
mod tile;

use std::arch::x86_64::__mmask16;
use std::ops::Range;
use tile::TILE;

/// Columns that share a scale, of most types, and that one instruction multiplies.
const GROUP: usize = 32;

/// Which of the 16 rows from row `first` on are among `rows`.
#[inline(always)]
fn mask(rows: &Range<usize>, first: usize) -> __mmask16 {
    let below = |r: usize| (1u32 << r.saturating_sub(first).min(TILE)) - 1;
    (below(rows.end) & !below(rows.start)) as __mmask16
}
