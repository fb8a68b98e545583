//! Weights that do not fit into memory: what there is, and what will be brought when it is needed.

use std::sync::Arc;

use alight_pages::policy::{FITS_SHARE, WARM_SHARE};
use alight_pages::slots::{Groups, SlotOptions, Slots};
use alight_pages::{Choice, Facts, Kind, LimitSource, LoadRequest, Map, ReadMethod, choose};

use super::{FileReport, Load, LoadReport, Wanted, experts, streamed};
use crate::store::LoadError;
use crate::store::budget::MemoryBudget;
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// The share of a control group's remaining memory that weights may use alongside slots. The group itself protects the rest of the machine, and the
/// memory of a sequence is already counted: this reserves memory for everything uncounted.
const GROUP_SHARE: f64 = 0.95;

/// The same share for weights in the page cache: the system takes pages from there when it must, so nothing fails if it was too much.
const GROUP_SHARE_OF_PAGES: f64 = 0.98;

/// Maximum alignment of reads, as far as is known before the file is opened for them.
pub(super) const ALIGN: usize = 4096;

/// Weights that do not fit into memory.
pub(super) struct Shortage {
    /// Bytes of all weights.
    pub(super) all: u64,
    /// Bytes that they may use, with everything that is computed.
    pub(super) budget: u64,
    /// The same for weights that stay in the page cache.
    pub(super) budget_of_pages: u64,
    /// The source of that limit.
    pub(super) limit: String,
}

/// Weights that will be brought when they are needed.
pub(super) struct Planned {
    /// Their places in the files, by visit.
    pub(super) groups: Groups,
    /// Maximum memory of the slots in bytes.
    pub(super) budget: u64,
    /// Expected memory of everything else in bytes.
    pub(super) sequence_bytes: u64,
    /// How they are read.
    pub(super) options: SlotOptions,
}

/// Decides if weights are brought when they are needed: experts when they are chosen, or, without experts, layers when they are computed. If so,
/// marks them and changes how the other weights are read.
///
/// # Errors
/// The user has set a limit, and what is needed at the same time does not fit.
pub(super) fn plan(
    report: &mut LoadReport,
    weights: &mut Weights,
    wanted: &Wanted,
    maps: &[Arc<Map>],
) -> Result<Option<Planned>, LoadError> {
    let Some(shortage) = Shortage::of(report, weights, wanted) else { return Ok(None) };
    let groups = experts::groups(weights);
    match groups.is_empty() {
        true => streamed::plan(report, weights, wanted, maps, &shortage),
        false => experts::plan(report, weights, wanted, maps, (&shortage, groups)),
    }
}

impl Shortage {
    /// `None` if the weights fit, or will be used as they are for another reason.
    fn of(report: &LoadReport, weights: &Weights, wanted: &Wanted) -> Option<Shortage> {
        let facts = report.files.iter().map(|file| &file.facts).min_by_key(|f| f.available)?;
        let part = |share: f64| (share * facts.available as f64) as u64;
        let in_group = matches!(facts.limit_source, LimitSource::Cgroup(_));
        let (enough, [budget, budget_of_pages], limit) = match wanted.memory {
            Some(memory) => {
                let budget = memory.min(facts.available);
                (budget, [budget; 2], format!("--memory {memory}"))
            }
            None => {
                let shares = match in_group {
                    true => [GROUP_SHARE, GROUP_SHARE_OF_PAGES],
                    false => [FITS_SHARE; 2],
                };
                (part(FITS_SHARE), shares.map(part), facts.limit_source.to_string())
            }
        };
        let warm = wanted.memory.is_none() && is_warm(facts);
        let in_memory = facts.filesystem.kind == Kind::Memory;
        // A user who requests all weights locked, without a limit, gets an error if they do not fit.
        let all_locked = wanted.lock && wanted.memory.is_none();
        let all: u64 = weights.matrices().map(MatrixRef::len).sum();
        let fits = all + wanted.sequence_bytes <= enough;
        let used_as_is = wanted.load != Load::Auto || warm || in_memory || all_locked || fits;
        (!used_as_is).then_some(Shortage { all, budget, budget_of_pages, limit })
    }

    /// The error that what is needed at the same time, `least` bytes of `what`, and the `always` bytes of everything else are more than `budget`.
    pub(super) fn error(
        &self,
        report: &LoadReport,
        what: &'static str,
        [least, always, budget]: [u64; 3],
    ) -> LoadError {
        let (path, limit) = (report.files[0].path.clone(), self.limit.clone());
        LoadError::TooFewSlots { path, what, least, always, budget, limit }
    }
}

fn is_warm(facts: &Facts) -> bool {
    facts.cached_share() >= WARM_SHARE
}

/// Returns how a file would be read if none of it were cached: the cached part of it will not stay, since the memory is reserved for other data.
pub(super) fn uncached_choice(file: &FileReport, copied: bool) -> Choice {
    let request = LoadRequest { load: Load::Auto, copied, weights: file.weights };
    choose(&Facts { cached: 0, ..file.facts.clone() }, &request)
}

/// Returns true if the weights of all files can be read around the page cache.
pub(super) fn are_direct(report: &LoadReport) -> bool {
    let mut choices = report.files.iter().map(|file| uncached_choice(file, true));
    choices.all(|choice| choice.method == ReadMethod::Direct)
}

/// Creates the slots of a plan, and the budget that they share with everything else.
pub(super) fn slots(
    planned: &Planned,
    maps: &[Arc<Map>],
) -> Result<(Slots, Arc<MemoryBudget>), LoadError> {
    let named = |source| LoadError::NoSlots { path: maps[0].path().into(), source };
    let slots = Slots::of_maps(maps, &planned.groups, planned.budget, planned.options);
    Ok((slots.map_err(named)?, Arc::new(MemoryBudget::new(planned.budget, planned.sequence_bytes))))
}
