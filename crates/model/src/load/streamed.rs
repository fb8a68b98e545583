//! Layers of a model that does not fit into memory and has no experts: decides if they are brought when they are computed, and lists their matrices.
//!
//! Every token reads every layer. If the system decided what stays in memory, by what was used last, each layer would be dropped just before it
//! is used again, and each token would read the whole file. So the pages are managed here: as many matrices as fit stay, and the others are
//! brought ahead of their layer and dropped after it. They stay in the map of the file, which other processes share.

use std::sync::Arc;

use alight_pages::slots::{Groups, SlotOptions, Slots, Span};
use alight_pages::{Choice, Map, Prefetch, ReadMethod};

use super::shortage::{ALIGN, Planned, Shortage, are_direct};
use super::{LoadReport, Repack, Wanted};
use crate::store::{LoadError, PROGRAM};
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// Minimum bytes of a matrix that is brought and dropped by itself. Smaller ones stay in memory: bringing one takes several system calls.
const MIN_BYTES: u64 = 64 << 10;

/// Bytes that are left for the program itself. If it takes more, the system takes pages of the layers.
const FOR_PROGRAM: u64 = 48 << 20;

/// True if a matrix of a layer is brought when the layer is computed.
fn is_streamed(matrix: &MatrixRef) -> bool {
    matrix.len() >= MIN_BYTES
}

/// Decides if layers are streamed; if so, marks their matrices and changes how the others are read.
///
/// # Errors
/// The user has set a limit, and the largest layer does not fit.
pub(super) fn plan(
    report: &mut LoadReport,
    weights: &mut Weights,
    wanted: &Wanted,
    maps: &[Arc<Map>],
    shortage: &Shortage,
) -> Result<Option<Planned>, LoadError> {
    // Only where reads can go around the page cache does the system drop its pages when it is asked to; and a file that is still being received is
    // brought by its receiver.
    let incoming = maps.iter().any(|map| map.incoming().is_some());
    let groups = groups(weights);
    if incoming || groups.iter().all(Vec::is_empty) || !are_direct(report) {
        return Ok(None);
    }
    let streamed: u64 =
        groups.iter().flatten().flatten().map(|span| span.range.end - span.range.start).sum();
    let budget = shortage.budget_of_pages;
    // A sequence takes memory from the layers as it grows.
    let always = shortage.all - streamed + FOR_PROGRAM;
    let least = Slots::least(&groups, ALIGN);
    let left = budget.saturating_sub(always);
    if least > left {
        // Without a limit, the map is used as well as possible.
        return match wanted.memory {
            None => Ok(None),
            Some(_) => {
                Err(shortage.error(report, "the largest layer takes", [least, always, budget]))
            }
        };
    }
    let layers = weights.layers.iter_mut().flat_map(|layer| layer.matrices_mut());
    layers.filter(|matrix| is_streamed(matrix)).for_each(|matrix| matrix.streamed = true);
    let gb = |bytes: u64| bytes as f64 / 1e9;
    for file in &mut report.files {
        let reason = format!(
            "The weights, {:.2} GB, do not fit into {:.2} GB ({}): of the layers, {:.2} GB, as much stays in the page cache as fits with \
             everything else, {:.2} GB, and each step reads the other {:.2} GB again, ahead of the layer that needs it.",
            gb(shortage.all),
            gb(budget),
            shortage.limit,
            gb(streamed),
            gb(always),
            gb(streamed.saturating_sub(left)),
        );
        file.choice = Choice { method: ReadMethod::Mmap, prefetch: Prefetch::None, reason };
    }
    if wanted.repack == Repack::Auto {
        report.repack = false;
        report.repack_reason = "Layers are used where they are in the file.".into();
    }
    let options =
        SlotOptions { direct: true, shared: true, whole: true, guess: false, ..wanted.slots };
    Ok(Some(Planned { groups, budget: left, sequence_bytes: PROGRAM, options }))
}

/// Returns the pieces of each layer of the file: its matrices.
fn groups(weights: &Weights) -> Groups {
    let span = |matrix: &&MatrixRef| {
        let (file, bytes) = matrix.file_range();
        vec![Span { file, range: bytes.start as u64..bytes.end as u64 }]
    };
    let layers = weights.layers.iter().take(weights.layers_in_file());
    layers
        .map(|layer| {
            let all = layer.matrices();
            all.iter().filter(|matrix| is_streamed(matrix)).map(span).collect()
        })
        .collect()
}
