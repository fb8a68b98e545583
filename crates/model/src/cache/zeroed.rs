//! Numbers that are zero and take no memory until they are written.

use std::marker::PhantomData;
use std::sync::Arc;

use alight_pages::{Map, MapError, Reservation};

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

/// Zeros of one type that take no memory until they are written. Parts of files can be put in their place.
pub(super) struct Zeroed<T> {
    memory: Option<Reservation>,
    len: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Zeroed<T> {
    /// So many.
    ///
    /// # Errors
    /// The system does not give the address space.
    pub(super) fn new(len: usize) -> Result<Zeroed<T>, CacheError> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = match len {
            0 => None,
            _ => Some(Reservation::new(bytes).map_err(|source| CacheError { bytes, source })?),
        };
        Ok(Zeroed { memory, len, of: PhantomData })
    }

    /// Asks for huge pages of what begins at byte `from`.
    pub(super) fn ask_for_huge_pages(&mut self, from: usize) {
        if let Some(memory) = &mut self.memory {
            memory.ask_for_huge_pages(from);
        }
    }

    pub(super) fn get(&self) -> &[T] {
        let Some(memory) = &self.memory else { return &[] };
        // SAFETY: any bytes are values of the type.
        let (head, body, _) = unsafe { memory.bytes().align_to::<T>() };
        debug_assert!(head.is_empty());
        &body[..self.len]
    }

    pub(super) fn get_mut(&mut self) -> &mut [T] {
        let Some(memory) = &mut self.memory else { return &mut [] };
        // SAFETY: any bytes are values of the type, and any value of the type is bytes.
        let (head, body, _) = unsafe { memory.bytes_mut().align_to_mut::<T>() };
        debug_assert!(head.is_empty());
        &mut body[..self.len]
    }

    /// All of their bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        let all = self.memory.as_ref().map_or(&[][..], Reservation::bytes);
        &all[..self.len * size_of::<T>()]
    }

    /// All of their bytes, for writing: any bytes are values of the type.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let all = self.memory.as_mut().map_or(&mut [][..], Reservation::bytes_mut);
        &mut all[..self.len * size_of::<T>()]
    }

    /// Puts `len` numbers from the byte `offset` of a file on in the place of those from `at` on.
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

    /// Puts zeros in the place of the part of a file from `at` on.
    pub(super) fn take_out(&mut self, at: usize) {
        if let Some(memory) = &mut self.memory {
            memory.take_out(at * size_of::<T>());
        }
    }

    /// Whether what was read from files can be relied on.
    ///
    /// # Errors
    /// As [`Reservation::check`].
    pub(super) fn check(&self) -> Result<(), MapError> {
        self.memory.as_ref().map_or(Ok(()), Reservation::check)
    }
}
