//! The key/value cache of a session: f16, one sequence, all layers.
//!
//! The whole context is reserved and nothing of it is touched: a page of memory is taken when a
//! position in it is first stored. Huge pages are declined, because one of them would hold many
//! positions of a head that are not used yet.

use alight_kernels::attention::{KvCache, KvShape, KvWriter, LINE};
use memmap2::{MmapMut, MmapOptions};

use crate::error::ModelError;

/// Keys and values of all layers.
pub(crate) struct Kv {
    shape: KvShape,
    /// `[layers][k_len]`, then `[layers][v_len]`, of u16.
    memory: Zeroed,
    layers: usize,
}

impl Kv {
    /// Room for `context` positions (rounded up to whole lines) in each of `layers` layers.
    pub(crate) fn new(
        layers: usize,
        kv_heads: usize,
        k_dim: usize,
        v_dim: usize,
        context: usize,
    ) -> Result<Kv, ModelError> {
        let shape = KvShape { kv_heads, k_dim, v_dim, capacity: context.next_multiple_of(LINE) };
        let len = [k_dim.saturating_add(v_dim), shape.capacity, kv_heads, layers]
            .into_iter()
            .fold(1usize, usize::saturating_mul);
        Ok(Kv { shape, memory: Zeroed::new("key/value cache", len)?, layers })
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// A layer's cache to read from.
    pub(crate) fn layer(&self, layer: usize) -> KvCache<'_> {
        let (k, v) = (self.shape.k_len(), self.shape.v_len());
        let (keys, values) = self.memory.get().split_at(self.layers * k);
        KvCache::new(self.shape, &keys[layer * k..][..k], &values[layer * v..][..v])
    }

    /// A layer's cache to write to.
    pub(crate) fn writer(&mut self, layer: usize) -> KvWriter<'_> {
        let (k, v) = (self.shape.k_len(), self.shape.v_len());
        let (keys, values) = self.memory.get_mut().split_at_mut(self.layers * k);
        KvWriter::new(self.shape, &mut keys[layer * k..][..k], &mut values[layer * v..][..v])
    }
}

/// Zeros of type u16 that take no memory until they are written.
struct Zeroed(MmapMut);

impl Zeroed {
    fn new(what: &'static str, len: usize) -> Result<Zeroed, ModelError> {
        let bytes = len.saturating_mul(2);
        let error = |source| ModelError::Memory { what, bytes, source };
        if bytes > isize::MAX as usize {
            return Err(error(std::io::ErrorKind::OutOfMemory.into()));
        }
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(error)?;
        #[cfg(target_os = "linux")]
        {
            // Best effort: kernels without huge pages refuse it.
            let _ = map.advise(memmap2::Advice::NoHugePage);
        }
        Ok(Zeroed(map))
    }

    fn get(&self) -> &[u16] {
        // SAFETY: any two bytes are a u16.
        let (head, body, tail) = unsafe { self.0.align_to::<u16>() };
        debug_assert!(head.is_empty() && tail.is_empty());
        body
    }

    fn get_mut(&mut self) -> &mut [u16] {
        // SAFETY: any two bytes are a u16, and any u16 is two bytes.
        let (head, body, tail) = unsafe { self.0.align_to_mut::<u16>() };
        debug_assert!(head.is_empty() && tail.is_empty());
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alight_kernels::Isa;

    #[test]
    fn layers_do_not_overlap_and_start_as_zeros() {
        let mut kv = Kv::new(3, 2, 4, 6, 20).unwrap();
        assert_eq!(kv.shape().capacity, 32);
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
        assert!(matches!(
            Kv::new(4096, 1 << 20, 1 << 20, 1 << 20, 1 << 30),
            Err(ModelError::Memory { .. })
        ));
    }
}
