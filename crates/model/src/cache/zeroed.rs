//! Zeros that take no memory until they are written.

use std::marker::PhantomData;

use memmap2::{MmapMut, MmapOptions};

use super::CacheError;

/// Numbers of which any bytes are one.
///
/// # Safety
/// Every pattern of bits is a value of the type, there is no padding, and a page's alignment is enough for it.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: any two bytes are a u16.
unsafe impl Plain for u16 {}
// SAFETY: any four bytes are an f32.
unsafe impl Plain for f32 {}

/// Zeros of one type that take no memory until they are written.
pub(super) struct Zeroed<T> {
    map: Option<MmapMut>,
    of: PhantomData<T>,
}

impl<T: Plain> Zeroed<T> {
    /// So many.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(super) fn new(len: usize) -> Result<Zeroed<T>, CacheError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let error = |source| CacheError { bytes, source };
        if bytes > isize::MAX as usize {
            return Err(error(std::io::ErrorKind::OutOfMemory.into()));
        }
        if bytes == 0 {
            return Ok(Zeroed { map: None, of: PhantomData });
        }
        let map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(error)?;
        #[cfg(target_os = "linux")]
        {
            // Best effort: kernels without huge pages refuse it.
            let _ = map.advise(memmap2::Advice::NoHugePage);
        }
        Ok(Zeroed { map: Some(map), of: PhantomData })
    }

    pub(super) fn get(&self) -> &[T] {
        let Some(map) = &self.map else { return &[] };
        // SAFETY: any bytes are values of the type.
        let (head, body, tail) = unsafe { map.align_to::<T>() };
        debug_assert!(head.is_empty() && tail.is_empty());
        body
    }

    pub(super) fn get_mut(&mut self) -> &mut [T] {
        let Some(map) = &mut self.map else { return &mut [] };
        // SAFETY: any bytes are values of the type, and any value of the type is bytes.
        let (head, body, tail) = unsafe { map.align_to_mut::<T>() };
        debug_assert!(head.is_empty() && tail.is_empty());
        body
    }
}
