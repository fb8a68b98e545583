//! Memory for bytes that cannot be exposed in place.

use alight_pages::{Region, RegionError};

/// XLA uses memory at a multiple of this address in place, and copies it otherwise.
pub const ALIGNMENT: usize = 64;
/// From this size on, memory is allocated directly from the system: it is then zero without being touched.
const LARGE: usize = 1 << 20;

/// Memory that begins at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub enum Memory {
    /// `len` bytes of a slightly longer vector.
    Small {
        bytes: Vec<u8>,
        start: usize,
        len: usize,
    },
    Large(Region),
}

impl Memory {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// There is not enough address space.
    pub fn new(len: usize) -> Result<Memory, RegionError> {
        if len >= LARGE {
            return Ok(Memory::Large(Region::new(len)?));
        }
        let bytes = vec![0; len + ALIGNMENT];
        let start = (bytes.as_ptr() as usize).next_multiple_of(ALIGNMENT) - bytes.as_ptr() as usize;
        Ok(Memory::Small { bytes, start, len })
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Memory::Small { bytes, start, len } => &bytes[*start..start + len],
            Memory::Large(region) => region.bytes(),
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Memory::Small { bytes, start, len } => &mut bytes[*start..*start + *len],
            Memory::Large(region) => region.bytes_mut(),
        }
    }
}
