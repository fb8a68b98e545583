//! Experts of a model that memory cannot hold: whether they come into slots when they are chosen, and which pieces they are.

use std::sync::Arc;

use alight_formats::packed::PART_ALIGNMENT;
use alight_pages::policy::{FITS_SHARE, WARM_SHARE};
use alight_pages::slots::{Groups, SlotOptions, SlotSizes, Slots, Span, join};
use alight_pages::{
    Facts, Kind, LimitSource, LoadRequest, Map, ReadMethod, choose, is_marked_by_others,
};

use super::{FileReport, Load, LoadReport, Repack, Wanted};
use crate::store::budget::MemoryBudget;
use crate::store::{InSlots, LoadError, Storage};
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// Experts that will be in slots.
pub(super) struct Planned {
    pub(super) groups: Groups,
    /// Bytes that the slots may take.
    pub(super) budget: u64,
    /// Bytes that are expected to be needed for all else.
    pub(super) sequence_bytes: u64,
    /// How they are read.
    pub(super) options: SlotOptions,
}

/// Of the memory that a control group has left, the part that weights may take beside slots. The rest of the machine is kept from harm by
/// the group itself, and what a sequence takes is counted already: this is for what nobody has counted.
const GROUP_SHARE: f64 = 0.95;

/// Reads are aligned to so much at most, as far as one knows before the file is open for them.
const ALIGN: usize = 4096;

/// Decides whether experts come into slots; if so, marks their matrices and changes how the other weights are read.
///
/// # Errors
/// The user has set a limit, and the experts of a layer do not fit into it.
pub(super) fn plan(
    report: &mut LoadReport,
    weights: &mut Weights,
    wanted: &Wanted,
    maps: &[Arc<Map>],
) -> Result<Option<Planned>, LoadError> {
    let Some(facts) = report.files.iter().map(|file| &file.facts).min_by_key(|f| f.available)
    else {
        return Ok(None);
    };
    let part = |share: f64| (share * facts.available as f64) as u64;
    let in_group = matches!(facts.limit_source, LimitSource::Cgroup(_));
    let (enough, budget, limit) = match wanted.memory {
        Some(memory) => {
            let budget = memory.min(facts.available);
            (budget, budget, format!("--memory {memory}"))
        }
        None => {
            let share = if in_group { GROUP_SHARE } else { FITS_SHARE };
            (part(FITS_SHARE), part(share), facts.limit_source.to_string())
        }
    };
    let warm = wanted.memory.is_none() && facts.cached_share() >= WARM_SHARE;
    let in_memory = facts.filesystem.kind == Kind::Memory;
    // Who wants all weights locked, and sets no limit, is told that they do not fit.
    let all_locked = wanted.lock && wanted.memory.is_none();
    let all: u64 = weights.matrices().map(MatrixRef::len).sum();
    let fits = all + wanted.sequence_bytes <= enough;
    if wanted.load != Load::Auto || warm || in_memory || all_locked || fits {
        return Ok(None);
    }
    let groups = groups(weights);
    if groups.is_empty() {
        return Ok(None);
    }
    let experts: u64 =
        weights.matrices().filter(|matrix| matrix.fits_slots()).map(MatrixRef::len).sum();
    let always = all - experts + wanted.sequence_bytes;
    let least = Slots::least(&groups, ALIGN);
    let room = budget.saturating_sub(always);
    let copied = |file: &FileReport, copied| {
        let request = LoadRequest { load: Load::Auto, copied, weights: file.weights };
        // What is cached of it will not stay: the memory is spoken for.
        choose(&Facts { cached: 0, ..file.facts.clone() }, &request)
    };
    let direct = report.files.iter().all(|file| copied(file, true).method == ReadMethod::Direct);
    let direct = direct && wanted.slots.direct;
    // What another process has of the page cache is not to be had twice; what it has of its own it gives back when it notices.
    let others = || maps.iter().any(|map| is_marked_by_others(map.file()));
    let shared = direct && (wanted.slots.shared || others());
    if least > room && !shared {
        // Without a limit the map does, as well as it can.
        let Some(_) = wanted.memory else { return Ok(None) };
        let path = report.files[0].path.clone();
        return Err(LoadError::TooFewSlots { path, least, always, budget, limit });
    }
    mark(weights);
    let gb = |bytes: u64| bytes as f64 / 1e9;
    for file in &mut report.files {
        file.choice = copied(file, !shared);
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
             {:.2} GB of {room_of} when they are chosen, which has room for {:.0} % of them.",
            gb(all),
            gb(budget),
            gb(all - experts),
            gb(room.min(experts)),
            (100.0 * room.min(experts) as f64 / experts as f64).floor(),
        );
    }
    if wanted.repack == Repack::Auto {
        report.repack = false;
        report.repack_reason =
            "Experts stay in the file's order, and so do the other weights: an answer is the same with any memory.".into();
    }
    let options = SlotOptions { direct, shared, ..wanted.slots };
    // A slot in the page cache takes no memory until it has an expert, and as many have one as there is room for at the moment.
    let budget = if shared && wanted.memory.is_none() { u64::MAX } else { room.max(least) };
    Ok(Some(Planned { groups, budget, sequence_bytes: wanted.sequence_bytes, options }))
}

/// Matrices of a layer whose experts can be in slots, and how many experts there are.
pub(super) fn in_slots<'w>(matrices: &[&'w MatrixRef]) -> Option<(Vec<&'w MatrixRef>, usize)> {
    let some: Vec<_> = matrices.iter().copied().filter(|matrix| matrix.fits_slots()).collect();
    let experts = some.iter().map(|matrix| matrix.count()).min()?;
    Some((some, experts))
}

/// The spans of an expert, and for each of `matrices` which of them its bytes are in, and where in it. What lies side by side in the
/// file is one span. This is so for all experts of a layer or for none: what does not lie side by side is a page apart at least.
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

/// The pieces of every layer that has experts: of each expert its bytes of all matrices.
fn groups(weights: &Weights) -> Groups {
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
        // Those of all experts are alike.
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

/// The slots of a plan, and how they share memory with all else.
pub(super) fn slots(
    planned: &Planned,
    maps: &[Arc<Map>],
) -> Result<(Slots, Arc<MemoryBudget>), LoadError> {
    let named = |source| LoadError::NoSlots { path: maps[0].path().into(), source };
    let slots = Slots::of_maps(maps, &planned.groups, planned.budget, planned.options);
    Ok((slots.map_err(named)?, Arc::new(MemoryBudget::new(planned.budget, planned.sequence_bytes))))
}

/// What a report says of them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SlotsReport {
    /// How many there are.
    pub sizes: SlotSizes,
    /// True if they are in the page cache, which another process of this model shares.
    pub shared: bool,
    /// What has happened.
    pub counts: alight_pages::slots::SlotCounts,
}

/// For each layer with experts, how many it has, and where its matrices of experts begin: file and byte.
pub(crate) fn layers_with_experts(
    weights: &Weights,
) -> impl Iterator<Item = (usize, Vec<(usize, usize)>)> {
    weights.layers.iter().filter_map(|layer| {
        let (matrices, experts) = in_slots(&layer.matrices())?;
        Some((experts, matrices.into_iter().map(MatrixRef::first_byte).collect()))
    })
}
