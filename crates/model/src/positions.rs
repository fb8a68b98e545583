//! Positions of a sequence, with keys and values kept in memory and in prompt files, and those that layers with a window still see.

use alight_kernels::attention::{AttentionParams, PAGE_UNIT, Window};

/// Number of positions of a page: those that attention reads at a time.
pub(crate) const POSITIONS: usize = PAGE_UNIT;

/// Returns the length of the common prefix of two token sequences.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Positions that are kept beyond those that the next row sees: a sequence can always be cut by this number of them. Drafts are shorter.
const SLACK: usize = POSITIONS;

/// Number of places that a sequence with windows and no recurrent states can go back to: each has the pages of a whole window.
pub(crate) const PLACES_OF_WINDOWS: usize = 2;

/// Positions that a sequence keeps at most for layers with a window of `window`, besides those of a batch that is being read: those of the window
/// itself, and of each of its places.
pub(crate) fn most_kept(window: usize) -> usize {
    window.saturating_add(SLACK + POSITIONS).saturating_mul(PLACES_OF_WINDOWS + 1)
}

/// The windows of the layers that have one; empty if there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Windows(Vec<AttentionParams>);

impl Windows {
    /// The windows of some layers.
    pub(crate) fn new(windows: impl Iterator<Item = Window>) -> Windows {
        let mut all: Vec<AttentionParams> = Vec::new();
        for window in windows {
            let params = AttentionParams { scale: 1.0, softcap: None, window: Some(window) };
            if !all.contains(&params) {
                all.push(params);
            }
        }
        Windows(all)
    }

    /// Returns true if no layer has a window.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first position that a row at `position` sees in any of the layers; later rows see none before it.
    pub(crate) fn first_seen(&self, position: usize) -> usize {
        self.0.iter().map(|params| params.visible(position).start).min().unwrap_or(position)
    }

    /// The maximum number of pages that a sequence keeps while it decodes, without those of its places.
    pub(crate) fn most_pages(&self) -> usize {
        let widest = self.0.iter().filter_map(|params| params.window).map(|window| match window {
            Window::Sliding(positions) | Window::Chunk(positions) => positions,
            Window::Around(away) => away,
        });
        widest.max().map_or(0, |widest| (widest + SLACK).div_ceil(POSITIONS) + 1)
    }

    /// The first page that a row at `position` needs.
    pub(crate) fn needed_from(&self, position: usize) -> usize {
        self.first_seen(position) / POSITIONS
    }

    /// The first page that is kept of a sequence whose next row is at `position`.
    pub(crate) fn kept_from(&self, position: usize) -> usize {
        self.needed_from(position.saturating_sub(SLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_kept_as_long_as_a_row_may_see_it() {
        let windows = |all: &[Window]| Windows::new(all.iter().copied());
        let sliding = windows(&[Window::Sliding(100), Window::Sliding(12), Window::Sliding(100)]);
        assert_eq!(sliding.0.len(), 2);
        assert_eq!([0, 99, 100, 1000].map(|p| sliding.first_seen(p)), [0, 0, 1, 901]);
        assert_eq!([227, 228, 292].map(|p| sliding.needed_from(p)), [2, 2, 3]);
        assert_eq!([227, 291, 292].map(|p| sliding.kept_from(p)), [1, 2, 2]);
        // Of a chunk that has ended everything is kept as long as the sequence may be cut into it.
        let chunk = windows(&[Window::Chunk(256)]);
        assert_eq!([255, 256, 511, 512].map(|p| chunk.needed_from(p)), [0, 4, 4, 8]);
        assert_eq!([256, 319, 320, 575, 576].map(|p| chunk.kept_from(p)), [0, 0, 4, 4, 8]);
        assert!(windows(&[]).is_empty());
    }
}
