//! The tensors of several files as one catalog, with a name for each.

use std::collections::HashMap;

/// The tensors of all shards of a model.
#[derive(Clone, Debug)]
pub struct ShardedCatalog<'n, T> {
    /// The tensors, shard by shard, each shard in its own order.
    pub tensors: Vec<ShardedTensor<T>>,
    index: HashMap<&'n str, usize>,
}

/// A tensor and the shard that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardedTensor<T> {
    /// Position of the shard among the given ones.
    pub shard: usize,
    /// The tensor; its location is in that shard's file.
    pub info: T,
}

impl<T> Default for ShardedCatalog<'_, T> {
    fn default() -> Self {
        ShardedCatalog { tensors: Vec::new(), index: HashMap::new() }
    }
}

impl<'n, T> ShardedCatalog<'n, T> {
    /// Creates an empty catalog with capacity for `count` tensors.
    pub(crate) fn with_capacity(count: usize) -> Self {
        ShardedCatalog { tensors: Vec::with_capacity(count), index: HashMap::with_capacity(count) }
    }

    /// Adds a tensor.
    ///
    /// # Errors
    /// There already is one of that name, in the returned shard.
    pub(crate) fn add(&mut self, name: &'n str, shard: usize, info: T) -> Result<(), usize> {
        if let Some(earlier) = self.index.insert(name, self.tensors.len()) {
            return Err(self.tensors[earlier].shard);
        }
        self.tensors.push(ShardedTensor { shard, info });
        Ok(())
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&ShardedTensor<T>> {
        self.index.get(name).and_then(|index| self.tensors.get(*index))
    }
}
