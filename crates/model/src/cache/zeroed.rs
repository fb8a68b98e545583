//! Zero-initialised numbers that use no memory until they are written.

use std::marker::PhantomData;
use std::sync::Arc;

use alight_pages::{Map, MapError, Reservation};

use super::CacheError;

/// Number types for which every bit pattern is valid.
///
/// # Safety
/// Every bit pattern is a value of the type, there is no padding, and the alignment of a page is sufficient for it.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: any two bytes are a valid u16.
unsafe impl Plain for u16 {}
// SAFETY: any four bytes are a valid f32.
unsafe impl Plain for f32 {}

/// Zeros of one type that use no memory until they are written. Parts of files can be mapped in their place.
pub(super) struct Zeroed<T> {
    memory: Option<Reservation>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Zeroed<T> {
    /// Creates `len` zeros.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(super) fn new(len: usize) -> Result<Zeroed<T>, CacheError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = match len {
            0 => None,
            _ => Some(Reservation::new(bytes).map_err(|source| CacheError { bytes, source })?),
        };
        Ok(Zeroed { memory, len, of: PhantomData })
    }

    /// Requests huge pages for the memory from byte `from` on.
    pub(super) fn ask_for_huge_pages(&mut self, from: usize) {
        if let Some(memory) = &mut self.memory {
            memory.ask_for_huge_pages(from);
        }
    }

    pub(super) fn get(&self) -> &[T] {
        let Some(memory) = &self.memory else { return &[] };
        // SAFETY: any bytes are valid values of the type.
        let (head, body, _) = unsafe { memory.bytes().align_to::<T>() };
        debug_assert!(head.is_empty());
        &body[..self.len]
    }

    pub(super) fn get_mut(&mut self) -> &mut [T] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        // SAFETY: any bytes are valid values of the type, and any value of the type is valid as bytes.
        let (head, body, _) = unsafe { memory.bytes_mut().align_to_mut::<T>() };
        debug_assert!(head.is_empty());
        &mut body[..self.len]
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        let all = self.memory.as_ref().map_or(&[][..], Reservation::bytes);
        &all[..self.len * size_of::<T>()]
    }

    /// All bytes, for writing: any bytes are valid values of the type.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let all = self.memory.as_mut().map_or(&mut [][..], Reservation::bytes_mut);
        &mut all[..self.len * size_of::<T>()]
    }

    /// Maps `len` numbers from the byte `offset` of a file on in place of those from `at` on.
    ///
    /// # Errors
    /// As [`Reservation::put`].
    pub(super) fn put(
        &mut self,
        at: usize,
        file: &Arc<Map>,
        offset: usize,
        len: usize,
    ) -> Result<(), MapError> {
        match &mut self.memory {
            Some(memory) => memory.put(at * size_of::<T>(), file, offset, len * size_of::<T>()),
            None => Ok(()),
        }
    }

    /// Replaces the mapped part of a file from `at` on with zeros.
    pub(super) fn take_out(&mut self, at: usize) {
        if let Some(memory) = &mut self.memory {
            memory.take_out(at * size_of::<T>());
        }
    }

    /// Checks that the data read from files is reliable.
    ///
    /// # Errors
    /// As [`Reservation::check`].
    pub(super) fn check(&self) -> Result<(), MapError> {
        self.memory.as_ref().map_or(Ok(()), Reservation::check)
    }
}
