//! Experts of a model that does not fit into memory: decides if they are loaded into slots on demand, and lists their pieces.

use std::sync::Arc;

use alight_formats::packed::PART_ALIGNMENT;
use alight_pages::slots::{Groups, SlotOptions, SlotSizes, Slots, Span, join};
use alight_pages::{Map, is_marked_by_others};

use super::shortage::{ALIGN, Planned, Shortage, are_direct, uncached_choice};
use super::{LoadReport, Repack, Wanted};
use crate::store::{InSlots, LoadError, Storage};
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// Decides if experts are loaded into slots; if so, marks their matrices and changes how the other weights are read.
///
/// # Errors
/// The user has set a limit, and the experts of a layer do not fit.
pub(super) fn plan(
    report: &mut LoadReport,
    weights: &mut Weights,
    wanted: &Wanted,
    maps: &[Arc<Map>],
    (shortage, groups): (&Shortage, Groups),
) -> Result<Option<Planned>, LoadError> {
    let &Shortage { all, budget, ref limit, .. } = shortage;
    let experts: u64 =
        weights.matrices().filter(|matrix| matrix.fits_slots()).map(MatrixRef::len).sum();
    let always = all - experts + wanted.sequence_bytes;
    let least = Slots::least(&groups, ALIGN);
    let left = budget.saturating_sub(always);
    let direct = wanted.slots.direct && are_direct(report);
    // The part of the page cache that another process uses is not available a second time; it gives its own memory back when it notices.
    let others = || maps.iter().any(|map| is_marked_by_others(map.file()));
    let shared = direct && (wanted.slots.shared || others());
    if least > left && !shared {
        // Without a limit, the map is used as well as possible.
        return match wanted.memory {
            None => Ok(None),
            Some(_) => Err(shortage.error(
                report,
                "the experts of one layer take",
                [least, always, budget],
            )),
        };
    }
    mark(weights);
    let gb = |bytes: u64| bytes as f64 / 1e9;
    for file in &mut report.files {
        file.choice = uncached_choice(file, !shared);
        let [always_is, come, room_of] = match shared {
            false => ["read into memory", "come into", "slots"],
            true => [
                "used from the page cache, which another process of this model shares,",
                "are kept in",
                "it",
            ],
        };
        file.choice.reason = format!(
            "The weights, {:.2} GB, do not fit into {:.2} GB ({limit}): what every token reads, {:.2} GB, is {always_is} and experts {come} \
             {:.2} GB of {room_of} when they are chosen, which can hold {:.0} % of them.",
            gb(all),
            gb(budget),
            gb(all - experts),
            gb(left.min(experts)),
            (100.0 * left.min(experts) as f64 / experts as f64).floor(),
        );
    }
    if wanted.repack == Repack::Auto {
        report.repack = false;
        report.repack_reason =
            "Experts stay in the file's order, and so do the other weights: an answer is the same with any memory.".into();
    }
    let options = SlotOptions { direct, shared, ..wanted.slots };
    // A slot in the page cache uses no memory until it holds an expert, and the number of slots in use follows the available memory.
    let budget = if shared && wanted.memory.is_none() { u64::MAX } else { left.max(least) };
    Ok(Some(Planned { groups, budget, sequence_bytes: wanted.sequence_bytes, options }))
}

/// Returns the matrices of a layer whose experts can be in slots, and the number of experts.
pub(super) fn in_slots<'w>(matrices: &[&'w MatrixRef]) -> Option<(Vec<&'w MatrixRef>, usize)> {
    let some: Vec<_> = matrices.iter().copied().filter(|matrix| matrix.fits_slots()).collect();
    let experts = some.iter().map(|matrix| matrix.count()).min()?;
    Some((some, experts))
}

/// Returns the spans of an expert, and for each of `matrices` the span that has its bytes, and the offset in it. Adjacent bytes of the file are one
/// span. This is the same for all experts of a layer: bytes that are not adjacent are at least a page apart.
fn spans(
    matrices: &[&MatrixRef],
    expert: usize,
    experts: usize,
) -> (Vec<Span>, Vec<(usize, usize)>) {
    let part = |matrix: &&MatrixRef| {
        let bytes = matrix.expert_range(expert, experts);
        let range = bytes.start as u64..bytes.end as u64;
        (Span { file: matrix.file_range().0, range }, matrix.is_side_by_side())
    };
    join(&matrices.iter().map(part).collect::<Vec<_>>(), PART_ALIGNMENT)
}

/// Returns the pieces of every layer that has experts: for each expert its bytes of all matrices.
pub(super) fn groups(weights: &Weights) -> Groups {
    let layers = weights.layers.iter().filter_map(|layer| in_slots(&layer.matrices()));
    let group = |(matrices, experts): (Vec<&MatrixRef>, usize)| {
        (0..experts).map(|expert| spans(&matrices, expert, experts).0).collect()
    };
    layers.map(group).collect()
}

/// Records in the matrices that they are in slots.
fn mark(weights: &mut Weights) {
    let mut group = 0;
    for layer in &mut weights.layers {
        let Some((some, experts)) = in_slots(&layer.matrices()) else { continue };
        // All experts have the same layout.
        let (_, places) = spans(&some, 0, experts);
        let some = layer.matrices_mut().into_iter().filter(|matrix| matrix.fits_slots());
        for ((span, at), matrix) in places.into_iter().zip(some) {
            // One, or an expert's gate and up.
            let per_piece = (matrix.count() / experts) as u16;
            let span = span as u16;
            matrix.set_storage(Storage::Slots(InSlots { group, span, at, per_piece }));
        }
        group += 1;
    }
}

/// The slots part of a load report.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SlotsReport {
    /// The number and sizes of the slots.
    pub sizes: SlotSizes,
    /// True if they are in the page cache, which another process of this model shares.
    pub shared: bool,
    /// True if they hold matrices of layers, all of which every token reads; otherwise they hold experts.
    pub streamed: bool,
    /// Statistics so far.
    pub counts: alight_pages::slots::SlotCounts,
}

/// For each layer with experts, the number of experts, and the start of each matrix of experts: file and byte.
pub(crate) fn layers_with_experts(
    weights: &Weights,
) -> impl Iterator<Item = (usize, Vec<(usize, usize)>)> {
    weights.layers.iter().filter_map(|layer| {
        let (matrices, experts) = in_slots(&layer.matrices())?;
        Some((experts, matrices.into_iter().map(MatrixRef::first_byte).collect()))
    })
}
