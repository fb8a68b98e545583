//! The weights that memory holds now, by part: according to the page cache, a load in the background, and the slots of experts.

use std::collections::HashMap;

use alight_pages::residency;

use super::experts::in_slots;
use crate::store::{InSlots, Storage, Store, arrival};
use crate::tensors::MatrixRef;
use crate::weights::Weights;

/// A part of a model whose weights are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PartName {
    /// The embedding, and other inputs made from tokens before the first layer.
    Embedding,
    /// The layer of this index.
    Layer(usize),
    /// The output matrix, where it is not the embedding.
    Output,
}

/// How much of a part is in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct ResidentPart {
    /// Which part.
    pub part: PartName,
    /// Bytes of its matrices.
    pub bytes: u64,
    /// The number of them in memory: in the page cache, if they are used from the map. `None`: the system does not report it.
    pub resident: Option<u64>,
    /// The share of each expert of a layer that is in memory, 0 to 1. Empty: the layer has no experts, or the system does not report it.
    pub experts: Vec<f32>,
}

/// The residency of every part, in the order in which a token reads them. Nothing is read or touched for it.
pub(crate) fn resident(weights: &Weights, store: &Store) -> Vec<ResidentPart> {
    let mut all = Vec::with_capacity(weights.layers.len() + 2);
    let mut known = Known { store, groups: HashMap::new() };
    let embedding = [&weights.embed].into_iter().chain(weights.inputs()).collect::<Vec<_>>();
    all.push(known.part(PartName::Embedding, &embedding, arrival::EMBEDDING));
    for (index, layer) in weights.layers.iter().take(weights.layers_in_file()).enumerate() {
        all.push(known.part(PartName::Layer(index), &layer.matrices(), arrival::layer(index)));
    }
    if let Some(output) = weights.output.as_ref().filter(|_| !weights.tied) {
        all.push(known.part(PartName::Output, &[&output.matrix], store.output_section()));
    }
    all
}

/// Query results so far.
struct Known<'s> {
    store: &'s Store,
    /// For each group of slots, which of its pieces are resident.
    groups: HashMap<u32, Vec<bool>>,
}

impl Known<'_> {
    fn part(&mut self, part: PartName, matrices: &[&MatrixRef], section: usize) -> ResidentPart {
        let bytes = matrices.iter().map(|matrix| matrix.len()).sum();
        let count = in_slots(matrices).map_or(1, |(_, experts)| experts);
        let mut resident = Some(0);
        // For each expert: its bytes, and those that are resident.
        let mut experts: Option<Vec<[u64; 2]>> = Some(Vec::new());
        for matrix in matrices {
            let pieces = if matrix.fits_slots() { count } else { 1 };
            let there: Option<Vec<u64>> =
                (0..pieces).map(|piece| self.there(matrix, piece, pieces, section)).collect();
            resident =
                resident.zip(there.as_ref()).map(|(sum, there)| sum + there.iter().sum::<u64>());
            if pieces == 1 {
                continue;
            }
            experts = experts.zip(there).map(|(mut experts, there)| {
                experts.resize(pieces.max(experts.len()), [0, 0]);
                for (expert, there) in experts.iter_mut().zip(there) {
                    *expert = [expert[0] + matrix.len() / pieces as u64, expert[1] + there];
                }
                experts
            });
        }
        let share = |[all, there]: [u64; 2]| there as f32 / all.max(1) as f32;
        let experts = experts.unwrap_or_default().into_iter().map(share).collect();
        ResidentPart { part, bytes, resident, experts }
    }

    /// The resident bytes of one of the pieces of a matrix.
    fn there(
        &mut self,
        matrix: &MatrixRef,
        piece: usize,
        pieces: usize,
        section: usize,
    ) -> Option<u64> {
        let (shard, _) = matrix.file_range();
        let bytes = matrix.expert_range(piece, pieces);
        let len = bytes.len();
        match matrix.storage() {
            Storage::Map => {
                let range = bytes.start as u64..bytes.end as u64;
                let found = residency(self.store.maps()[shard].file(), range);
                // Pages at the ends partly belong to other weights.
                found.ok().map(|found| (found.share() * len as f64).round() as u64)
            }
            // A copy is in memory once it has been written. One that is being written counts as absent.
            Storage::Image | Storage::Tiles(_) => {
                Some(if self.store.arrival().is_ready(section) { len as u64 } else { 0 })
            }
            Storage::Slots(InSlots { group, .. }) => {
                let slots = self.store.slots()?;
                let here = self.groups.entry(group).or_insert_with(|| slots.here(group as usize));
                Some(if here.get(piece).is_some_and(|here| *here) { len as u64 } else { 0 })
            }
        }
    }
}
