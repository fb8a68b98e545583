//! What a sequence has computed: keys and values of attention, states of recurrent layers.
//!
//! Keys and values are f16. The whole context is reserved and nothing of it is touched: a page of memory is taken when a
//! position in it is first stored. Huge pages are declined, because one of them would hold many
//! positions of a head that are not used yet.

mod prefix;
mod states;
mod zeroed;

use std::ops::Range;

use alight_kernels::attention::{KvCache, KvShape, KvWriter, LINE};

/// The system does not give the memory for what a sequence computes.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot reserve {bytes} bytes for keys, values and states: {source}; a smaller context (-c) needs less"
)]
pub struct CacheError {
    /// Bytes that were to be reserved.
    pub bytes: usize,
    /// Why.
    pub source: std::io::Error,
}

pub use prefix::reusable;
pub(crate) use states::States;
use zeroed::Zeroed;

/// What a sequence has computed.
pub(crate) struct Cache {
    pub(crate) kv: Kv,
    pub(crate) states: States,
}

/// The shape of a layer's keys and values, and where they are in the memory.
type KvLayer = (KvShape, Range<usize>, Range<usize>);

/// Keys and values of all layers.
pub(crate) struct Kv {
    /// By layer; `None`: it has no keys and values.
    layers: Vec<Option<KvLayer>>,
    /// The keys of all layers, then their values, of u16. The layers' shapes may differ.
    memory: Zeroed<u16>,
    capacity: usize,
}

impl Kv {
    /// Positions of a cache that is to hold at least `context` of them: whole lines.
    pub(crate) fn capacity_for(context: usize) -> usize {
        context.next_multiple_of(LINE)
    }

    /// A cache of `capacity` positions in each layer of these shapes, which have that capacity; `None` is a layer without
    /// keys and values.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(crate) fn new(capacity: usize, shapes: &[Option<KvShape>]) -> Result<Kv, CacheError> {
        let len = |dim: fn(&KvShape) -> usize| -> usize {
            let lens = shapes
                .iter()
                .flatten()
                .map(|s| capacity.saturating_mul(s.kv_heads).saturating_mul(dim(s)));
            lens.fold(0, usize::saturating_add)
        };
        let (keys, values) = (len(|shape| shape.k_dim), len(KvShape::stored_v_dim));
        let memory = Zeroed::new(keys.saturating_add(values))?;
        let (mut key, mut value) = (0, keys);
        let layers = shapes.iter().map(|shape| {
            let shape = (*shape)?;
            let layer = (shape, key..key + shape.k_len(), value..value + shape.v_len());
            (key, value) = (layer.1.end, layer.2.end);
            Some(layer)
        });
        let layers = layers.collect();
        Ok(Kv { layers, memory, capacity })
    }

    /// Positions that each layer can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The cache of a layer that has one, to read from.
    pub(crate) fn layer(&self, layer: usize) -> KvCache<'_> {
        let (shape, keys, values) = self.layers[layer].as_ref().expect(HAS_KEYS);
        let memory = self.memory.get();
        KvCache::new(*shape, &memory[keys.clone()], &memory[values.clone()])
    }

    /// The cache of a layer that has one, to write to.
    pub(crate) fn writer(&mut self, layer: usize) -> KvWriter<'_> {
        let (shape, keys, values) = self.layers[layer].clone().expect(HAS_KEYS);
        // All values follow all keys.
        let (low, high) = self.memory.get_mut().split_at_mut(values.start);
        KvWriter::new(shape, &mut low[keys], &mut high[..values.len()])
    }
}

const HAS_KEYS: &str = "a layer of attention";

#[cfg(test)]
mod tests {
    use super::*;
    use alight_kernels::Isa;

    fn shapes(
        layers: usize,
        kv_heads: usize,
        [k_dim, v_dim]: [usize; 2],
        capacity: usize,
    ) -> Vec<Option<KvShape>> {
        vec![Some(KvShape { kv_heads, k_dim, v_dim, capacity, shared: false }); layers]
    }

    #[test]
    fn layers_do_not_overlap_and_start_as_zeros() {
        let capacity = Kv::capacity_for(20);
        let mut kv = Kv::new(capacity, &shapes(3, 2, [4, 6], capacity)).unwrap();
        assert_eq!(kv.capacity(), 32);
        let one = [1.0; 12];
        // SAFETY: one thread.
        unsafe { kv.writer(1).store(Isa::Scalar, 19, &one[..8], &one) };
        let bits = kv.memory.get();
        assert_eq!(bits.len(), 3 * 2 * 32 * 10);
        assert_eq!(bits.iter().filter(|&&b| b != 0).count(), 20);
        let (k, v) = (2 * 32 * 4, 2 * 32 * 6);
        assert_eq!(bits[k..2 * k].iter().filter(|&&b| b != 0).count(), 8);
        assert_eq!(bits[3 * k + v..3 * k + 2 * v].iter().filter(|&&b| b != 0).count(), 12);
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        let capacity = 1 << 30;
        let error =
            Kv::new(capacity, &shapes(4096, 1 << 20, [1 << 20; 2], capacity)).err().unwrap();
        assert_eq!(error.bytes, usize::MAX);
    }
}
