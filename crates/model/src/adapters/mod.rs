//! Adapters that are loaded: what they add to the products of a model's projections, and which of them a sequence has.
//!
//! An adapter belongs to one base, whose projections have numbers. Its factors stay in its file, which is mapped, if they are floats of 32 or 16 bits; others are
//! converted when it is opened. What is added to a product is the sum of the terms of its adapters, one after the other, each in the order of
//! [`low_rank`](alight_kernels::low_rank). So the bits of a row depend on its own adapters and their scales, and on no other row.

mod error;
mod term;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use alight_pages::{Map, MapError, Stamp};

pub use self::error::AdapterOpenError;
pub(crate) use self::term::{Change, Floats, LowRankTerm, OtherMatrix, TableChange, TableTerm};

/// A LoRA adapter of a model.
#[derive(Debug)]
pub struct Adapter {
    pub(crate) map: Arc<Map>,
    /// SHA-256 of the file.
    pub(crate) hash: [u8; 32],
    /// [`Model::identity`](crate::Model::identity) of the base.
    pub(crate) base: [u8; 32],
    pub(crate) task_name: Option<String>,
    pub(crate) prompt_prefix: Option<String>,
    /// By the number of the projection: what is added to its products, in this order.
    pub(crate) changes: Vec<Vec<Change>>,
    /// The change of the rows of the embedding.
    pub(crate) embedding: Option<TableChange>,
    /// `[segments, hidden]`: what is added to the embeddings of segments, at a scale of 1.
    pub(crate) segments: Option<Box<[f32]>>,
}

impl Adapter {
    /// The file.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// SHA-256 of the file: it distinguishes prompts.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Distinguishes its file from another one under its name.
    pub fn stamp(&self) -> &Stamp {
        self.map.stamp()
    }

    /// The task that it was trained for, if the file says so.
    pub fn task_name(&self) -> Option<&str> {
        self.task_name.as_deref()
    }

    /// Text that the caller should put before prompts, if the file says so.
    pub fn prompt_prefix(&self) -> Option<&str> {
        self.prompt_prefix.as_deref()
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> usize {
        self.map.len()
    }

    /// The number of projections that it changes.
    pub fn changed(&self) -> usize {
        self.changes.iter().filter(|changes| !changes.is_empty()).count()
    }

    /// Its changes of the products of a projection.
    pub(crate) fn changes(&self, number: usize) -> &[Change] {
        self.changes.get(number).map_or(&[], |changes| changes)
    }

    /// The most that the ranks of a projection add up to.
    fn rank(&self) -> usize {
        let rank = |changes: &Vec<Change>| changes.iter().map(Change::rank).sum();
        self.changes.iter().map(rank).max().unwrap_or(0)
    }

    /// Checks that its file is as long as it was when it was opened.
    ///
    /// # Errors
    /// It has become shorter: what was read of it may be zeros.
    pub(crate) fn check(&self) -> Result<(), MapError> {
        self.map.check()
    }
}

/// An adapter and its scale.
type ScaledAdapter = (Arc<Adapter>, f32);

/// The adapters of a sequence, each with its scale, in the order of their hashes: a set has one order, so that the same adapters yield the same bits,
/// in whichever order they were named. An adapter that is named twice has the sum of its scales. Those with a scale of 0 are left out: then everything
/// is as without them.
#[derive(Clone, Debug, Default)]
pub struct AdapterSet {
    all: Option<Arc<[ScaledAdapter]>>,
}

impl AdapterSet {
    /// Makes a set of adapters and their scales. A scale that is not a finite number is one that the caller must not pass on.
    pub fn new(adapters: impl IntoIterator<Item = (Arc<Adapter>, f32)>) -> AdapterSet {
        let mut all: Vec<ScaledAdapter> = Vec::new();
        for (adapter, scale) in adapters {
            match all.iter_mut().find(|(other, _)| other.hash == adapter.hash) {
                Some((_, sum)) => *sum += scale,
                None => all.push((adapter, scale)),
            }
        }
        all.retain(|(_, scale)| *scale != 0.0);
        all.sort_by_key(|(adapter, _)| adapter.hash);
        AdapterSet { all: (!all.is_empty()).then(|| all.into()) }
    }

    /// Returns true if nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.all.is_none()
    }

    /// The adapters and their scales.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<Adapter>, f32)> {
        self.all.iter().flat_map(|all| all.iter().map(|(adapter, scale)| (adapter, *scale)))
    }

    /// Returns true if it has the adapters of another one, at whichever scales.
    pub(crate) fn has_adapters_of(&self, other: &AdapterSet) -> bool {
        let adapters = |set: &AdapterSet| set.all.as_ref().map_or(0, |all| all.len());
        let mut pairs = self.iter().zip(other.iter());
        adapters(self) == adapters(other) && pairs.all(|((a, _), (b, _))| Arc::ptr_eq(a, b))
    }

    /// The most that the ranks of a projection add up to.
    pub(crate) fn rank(&self) -> usize {
        self.iter().map(|(adapter, _)| adapter.rank()).sum()
    }

    /// Returns the salt of prompts that are computed with these adapters: prompts of other sets, and of other scales, have other salts.
    pub fn salt(&self, salt: &str) -> Box<str> {
        if self.is_empty() {
            // A salt that begins like that of a set is another one.
            return if salt.starts_with('\0') { format!("\0{salt}").into() } else { salt.into() };
        }
        let mut all = String::from("\0lora");
        for (adapter, scale) in self.iter() {
            all.push(' ');
            adapter.hash.iter().for_each(|byte| _ = write!(all, "{byte:02x}"));
            _ = write!(all, ":{:08x}", scale.to_bits());
        }
        all.push('\n');
        all.push_str(salt);
        all.into()
    }
}

impl PartialEq for AdapterSet {
    /// Sets are equal if everything that is computed with them is.
    fn eq(&self, other: &AdapterSet) -> bool {
        self.iter()
            .map(|(adapter, scale)| (adapter.hash, scale.to_bits()))
            .eq(other.iter().map(|(adapter, scale)| (adapter.hash, scale.to_bits())))
    }
}

/// The tensors of a model that adapters can change, by name.
#[derive(Debug, Default)]
pub(crate) struct Adaptable {
    pub(crate) tensors: HashMap<String, AdaptableTensor>,
}

/// A tensor of a model, and the projections that have its rows.
#[derive(Debug)]
pub(crate) struct AdaptableTensor {
    /// Extents, innermost first.
    pub(crate) ne: [u64; 4],
    /// Several where it is cut by rows, or where layers are repeated.
    pub(crate) projections: Vec<AdaptableRows>,
}

/// A projection, or a stack of them, that has rows of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdaptableRows {
    pub(crate) number: usize,
    /// The first row of each expert that is the projection's, rows of each projection, and projections of each expert.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) per_expert: usize,
}
