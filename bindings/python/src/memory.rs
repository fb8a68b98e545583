//! Memory for bytes that cannot be shown in place.

use alight_pages::{Region, RegionError};

/// Addresses at a multiple of this are used by XLA in place; of others it makes a copy.
pub const ALIGNMENT: usize = 64;
/// From this size on, memory comes from the system by itself: it is then zero without being touched.
const LARGE: usize = 1 << 20;

/// Memory that begins at a multiple of [`ALIGNMENT`].
#[derive(Debug)]
pub enum Memory {
    /// `len` bytes of a vector that has some more.
    Small {
        bytes: Vec<u8>,
        start: usize,
        len: usize,
    },
    Large(Region),
}

impl Memory {
    /// `len` zeros.
    ///
    /// # Errors
    /// There is not as much address space.
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
