//! Writes GGUF bytes without any check, so that tests can lie in every field.

/// Bytes of a file under construction, little-endian.
#[derive(Clone, Default)]
pub struct Raw {
    pub bytes: Vec<u8>,
    /// Lengths and counts are u32, as in version 1.
    narrow: bool,
}

pub const U8: u32 = 0;
pub const I32: u32 = 5;
pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STR: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

impl Raw {
    /// Magic, version and counts.
    pub fn new(version: u32, tensors: u64, entries: u64) -> Raw {
        let mut raw = Raw { narrow: version == 1, ..Raw::default() };
        raw.put(b"GGUF").u32(version).size(tensors).size(entries);
        raw
    }

    /// Version 3.
    pub fn v3(tensors: u64, entries: u64) -> Raw {
        Raw::new(3, tensors, entries)
    }

    pub fn put(&mut self, bytes: &[u8]) -> &mut Raw {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn u32(&mut self, value: u32) -> &mut Raw {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Raw {
        self.put(&value.to_le_bytes())
    }

    /// A length or count.
    pub fn size(&mut self, value: u64) -> &mut Raw {
        if self.narrow { self.u32(value as u32) } else { self.u64(value) }
    }

    pub fn string(&mut self, text: impl AsRef<[u8]>) -> &mut Raw {
        let text = text.as_ref();
        self.size(text.len() as u64).put(text)
    }

    /// Key and type of an entry; the value comes next.
    pub fn key(&mut self, key: impl AsRef<[u8]>, ty: u32) -> &mut Raw {
        self.string(key).u32(ty)
    }

    /// Key, element type and count of an array; the elements come next.
    pub fn array(&mut self, key: &str, elem: u32, count: u64) -> &mut Raw {
        self.key(key, ARRAY).u32(elem).size(count)
    }

    /// A tensor's description.
    pub fn tensor(&mut self, name: impl AsRef<[u8]>, ne: &[u64], ty: u32, offset: u64) -> &mut Raw {
        self.string(name).u32(ne.len() as u32);
        for n in ne {
            self.size(*n);
        }
        self.u32(ty).u64(offset)
    }

    /// Pads to `alignment` and appends `len` bytes of data.
    pub fn data(&mut self, alignment: usize, len: usize) -> &mut Raw {
        let padded = self.bytes.len().next_multiple_of(alignment);
        self.bytes.resize(padded, 0);
        self.bytes.resize(padded + len, 0xab);
        self
    }

    pub fn done(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// A small file that is in order: one value of every type, two tensors.
pub fn small() -> Vec<u8> {
    let mut raw = Raw::v3(2, 8);
    raw.key("general.architecture", STR).string("llama");
    raw.key("count", U32).u32(7);
    raw.key("ratio", F32).u32(0.5_f32.to_bits());
    raw.key("flag", BOOL).put(&[1]);
    raw.key("big", U64).u64(u64::MAX);
    raw.array("tokens", STR, 3).string("a").string("").string("bc");
    raw.array("scores", F32, 2).u32(0).u32(1.0_f32.to_bits());
    raw.array("flags", BOOL, 2).put(&[0, 1]);
    raw.tensor("first", &[32, 2], 8, 0).tensor("second", &[3], 0, 96);
    // 68 bytes of Q8_0, padded to 96, then 12 bytes of F32 without padding.
    raw.data(32, 96 + 12);
    raw.done()
}
