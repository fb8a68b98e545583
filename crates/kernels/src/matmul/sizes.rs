//! Sizes shared by several parts of the matrix product.

use crate::tiles::TILE_ROWS;
use std::ops::Range;

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 32;

/// Number of tokens whose activations are stored together for tiles, and that are computed together.
pub(super) const TOKEN_BLOCK: usize = 12;

/// Maximum number of columns of a panel of integers or of bf16. A multiple of 256.
pub(crate) const MAX_K: usize = 768;

/// Bytes of a panel of bf16.
pub(super) const PANEL_BYTES: usize = 2 * MAX_K * PANEL_ROWS;

/// Rows that a prompt's tokens pass over before the next rows. Their weights for the current columns, or a panel of them, stay in
/// the second-level cache meanwhile, with their sums.
pub(super) const ROWS_TOGETHER: usize = 256;

/// Panels of bf16 that are filled before they are multiplied.
pub(super) const PANELS: usize = ROWS_TOGETHER / PANEL_ROWS;

/// Number of tokens whose activations are stored together as bf16.
pub(super) const WIDE_TOKEN_BLOCK: usize = 16;

/// Tiles that all blocks of tokens pass over before the next.
pub(super) const TILES_TOGETHER: usize = ROWS_TOGETHER / TILE_ROWS;

/// Number of sums that are kept meanwhile.
pub(super) const SUMS: usize = TILES_TOGETHER * TOKEN_BLOCK * TILE_ROWS;

/// Cuts `rows` at the multiples of `step`.
pub(crate) fn cut_at_multiples(
    rows: Range<usize>,
    step: usize,
) -> impl Iterator<Item = Range<usize>> {
    let mut start = rows.start;
    std::iter::from_fn(move || {
        let next = (start / step + 1).saturating_mul(step).min(rows.end);
        (start < rows.end).then(|| std::mem::replace(&mut start, next)..next)
    })
}

/// Runs `$body` for one, two or four of `$tokens` at a time, as many as there are from token `$t` on, until all have been. The number is the constant `$n`
/// in `$body`, which so is compiled for each.
macro_rules! tokens_together {
    ($tokens:expr, $t:ident, $n:ident => $body:expr) => {{
        let (tokens, mut $t) = ($tokens, 0);
        while $t < tokens {
            $t += match tokens - $t {
                1 => {
                    const $n: usize = 1;
                    $body;
                    $n
                }
                2 | 3 => {
                    const $n: usize = 2;
                    $body;
                    $n
                }
                _ => {
                    const $n: usize = 4;
                    $body;
                    $n
                }
            };
        }
    }};
}
pub(super) use tokens_together;

/// As [`tokens_together`], for one to four or eight tokens at a time: of eight, the last two may be missing, and `$body` takes the last token that exists in
/// their place.
#[cfg(target_arch = "x86_64")]
macro_rules! up_to_eight_together {
    ($tokens:expr, $t:ident, $n:ident => $body:expr) => {{
        let (tokens, mut $t) = ($tokens, 0);
        while $t < tokens {
            $t += match tokens - $t {
                1 => {
                    const $n: usize = 1;
                    $body;
                    $n
                }
                2 => {
                    const $n: usize = 2;
                    $body;
                    $n
                }
                3 => {
                    const $n: usize = 3;
                    $body;
                    $n
                }
                4 | 5 => {
                    const $n: usize = 4;
                    $body;
                    $n
                }
                _ => {
                    const $n: usize = 8;
                    $body;
                    $n
                }
            };
        }
    }};
}
#[cfg(target_arch = "x86_64")]
pub(super) use up_to_eight_together;
