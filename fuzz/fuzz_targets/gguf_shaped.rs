//! Files that are nearly in order: built from a description, in which any number may be a lie, and
//! then changed in a few places. Reaches behind the checks that random bytes do not pass.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct File {
    version: u8,
    alignment: Option<Lie<u8>>,
    /// Layout (right, or these bytes) and its version: tensors are packed where they can be.
    packed: Option<(Option<Vec<u8>>, Lie<()>)>,
    /// Of a packed file: the tensors from this one on lie side by side, expert by expert; so many of them.
    experts: Option<(u8, Lie<u8>)>,
    entries: Vec<Entry>,
    tensors: Vec<Tensor>,
    counts: (Lie<()>, Lie<()>),
    data: Lie<u8>,
    patches: Vec<(u16, u8)>,
    cut: Option<u16>,
}

/// The right value, or another.
#[derive(Arbitrary, Debug)]
enum Lie<T> {
    Right(T),
    Near(i8),
    Wrong(u64),
}

impl<T> Lie<T> {
    fn of(&self, right: u64) -> u64 {
        match self {
            Lie::Right(_) => right,
            Lie::Near(by) => right.wrapping_add_signed(i64::from(*by)),
            Lie::Wrong(value) => *value,
        }
    }
}

#[derive(Arbitrary, Debug)]
struct Entry {
    key: Name,
    value: Value,
}

#[derive(Arbitrary, Debug)]
struct Name {
    text: String,
    index: u8,
    len: Lie<()>,
}

#[derive(Arbitrary, Debug)]
enum Value {
    Scalar(u8, u64),
    Str(Vec<u8>, Lie<()>),
    Strs(Vec<Vec<u8>>, Lie<()>),
    Array(u8, Vec<u8>, Lie<()>),
    Type(u32),
    ElemType(u32),
}

#[derive(Arbitrary, Debug)]
struct Tensor {
    name: Name,
    dims: Vec<Lie<u8>>,
    n_dims: Lie<()>,
    ty: Lie<u8>,
    offset: Lie<()>,
}

struct Out {
    bytes: Vec<u8>,
    wide: bool,
}

impl Out {
    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }
    fn size(&mut self, value: u64) {
        if self.wide { self.u64(value) } else { self.u32(value as u32) }
    }
    fn string<T>(&mut self, text: &[u8], len: &Lie<T>) {
        self.size(len.of(text.len() as u64));
        self.bytes.extend(text);
    }
    fn name(&mut self, name: &Name) {
        let text = format!("{}{}", name.text, name.index);
        self.string(text.as_bytes(), &name.len);
    }
}

const SIZES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
/// Some of the types: id, elements and bytes per block.
const TYPES: [(u64, u64, u64); 6] =
    [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (12, 256, 144), (39, 32, 17)];

impl File {
    /// The first of the tensors whose experts lie side by side, and how many there are, as the file has it.
    fn run(&self) -> Option<(u64, u64)> {
        let (first, count) = self.experts.as_ref().filter(|_| self.packed.is_some())?;
        let right = if let Lie::Right(more) = count { 2 + u64::from(more % 2) } else { 2 };
        Some((u64::from(first % 4), count.of(right)))
    }

    fn bytes(&self) -> Vec<u8> {
        let version = match self.version {
            0..200 => 3,
            200..220 => 2,
            220..240 => 1,
            other => u32::from(other) - 240,
        };
        let mut out = Out { bytes: b"GGUF".to_vec(), wide: version != 1 };
        out.u32(version);
        out.size(self.counts.0.of(self.tensors.len() as u64));
        let entries = self.entries.len()
            + usize::from(self.alignment.is_some())
            + 2 * usize::from(self.packed.is_some())
            + usize::from(self.run().is_some());
        out.size(self.counts.1.of(entries as u64));
        let mut alignment = 32;
        if let Some(lie) = &self.alignment {
            let right = match (lie, &self.packed) {
                (Lie::Right(_), Some(_)) => 4096,
                (Lie::Right(shift), None) => 8 << (shift % 9),
                _ => 32,
            };
            let value = lie.of(right) as u32;
            out.string(b"general.alignment", &Lie::Right(()));
            out.u32(4);
            out.u32(value);
            alignment = u64::from(value).clamp(1, 4096);
        }
        if let Some((layout, version)) = &self.packed {
            out.string(b"alight.layout", &Lie::Right(()));
            out.u32(8);
            out.string(layout.as_deref().unwrap_or(b"tiles16"), &Lie::Right(()));
            out.string(b"alight.layout.version", &Lie::Right(()));
            out.u32(4);
            out.u32(version.of(2) as u32);
        }
        if let Some((first, count)) = self.run() {
            out.string(b"alight.layout.experts", &Lie::Right(()));
            out.u32(9);
            out.u32(4);
            out.size(2);
            out.u32(first as u32);
            out.u32(count as u32);
        }
        for entry in &self.entries {
            out.name(&entry.key);
            match &entry.value {
                Value::Scalar(ty, bits) => {
                    let ty = ty % 13;
                    out.u32(u32::from(ty));
                    let size = SIZES[usize::from(ty)] as usize;
                    let bits = if ty == 7 { bits % 2 } else { *bits };
                    out.bytes.extend(&bits.to_le_bytes()[..size]);
                }
                Value::Str(text, len) => {
                    out.u32(8);
                    out.string(text, len);
                }
                Value::Strs(texts, count) => {
                    out.u32(9);
                    out.u32(8);
                    out.size(count.of(texts.len() as u64));
                    for text in texts {
                        out.string(text, &Lie::Right(()));
                    }
                }
                Value::Array(ty, bytes, count) => {
                    let ty = ty % 13;
                    out.u32(9);
                    out.u32(u32::from(ty));
                    let size = SIZES[usize::from(ty)].max(1);
                    let len = bytes.len() as u64 / size;
                    out.size(count.of(len));
                    out.bytes.extend(&bytes[..(len * size) as usize]);
                }
                Value::Type(ty) => out.u32(*ty),
                Value::ElemType(ty) => {
                    out.u32(9);
                    out.u32(*ty);
                    out.size(1);
                }
            }
        }
        let mut offset = 0_u64;
        let mut end = 0_u64;
        let run = self.run().map_or(0..0, |(first, count)| first..first.saturating_add(count));
        // Where the run begins, and the end of its parts of the first expert.
        let (mut begin, mut part_end) = (0_u64, 0_u64);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let beside = run.contains(&(index as u64));
            if index as u64 == run.start {
                (begin, part_end) = (offset, 0);
            }
            out.name(&tensor.name);
            out.u32(tensor.n_dims.of(tensor.dims.len() as u64) as u32);
            let kind = if let Lie::Right(kind) = tensor.ty { kind } else { 0 };
            let (id, block, block_bytes) = TYPES[usize::from(kind) % TYPES.len()];
            let mut elements = 1_u64;
            for (index, dim) in tensor.dims.iter().enumerate() {
                let right = if let Lie::Right(n) = dim { u64::from(n % 4) + 1 } else { 1 };
                let right = match index {
                    0 => right * block,
                    1 if self.packed.is_some() => right * 16,
                    2 if beside => 3,
                    _ => right,
                };
                let value = dim.of(right);
                out.size(value);
                elements = elements.saturating_mul(value);
            }
            let packable = !matches!(id, 0 | 39) && tensor.dims.len() > 1;
            let tag = if self.packed.is_some() && packable { 0x416c_0000 } else { 0 };
            out.u32(tensor.ty.of(id | tag) as u32);
            let bytes = (elements / block).saturating_mul(block_bytes);
            if beside {
                let start = part_end.checked_next_multiple_of(128).unwrap_or(part_end);
                out.u64(tensor.offset.of(begin.saturating_add(start)));
                part_end = start.saturating_add(bytes / 3);
                let stride = part_end.checked_next_multiple_of(4096).unwrap_or(part_end);
                end = begin.saturating_add(stride.saturating_mul(2)).saturating_add(part_end);
            } else {
                out.u64(tensor.offset.of(offset));
                end = offset.saturating_add(bytes);
            }
            offset = end.checked_next_multiple_of(alignment).unwrap_or(end);
        }
        let start = out.bytes.len().next_multiple_of(alignment as usize) as u64;
        let len = self.data.of(start.saturating_add(end)).min(1 << 16) as usize;
        if out.bytes.len() < len {
            out.bytes.resize(len, 0x5a);
        }
        for (at, value) in &self.patches {
            let at = usize::from(*at) % out.bytes.len();
            out.bytes[at] = *value;
        }
        if let Some(cut) = self.cut {
            out.bytes.truncate(usize::from(cut));
        }
        out.bytes
    }
}

fuzz_target!(|file: File| {
    alight_fuzz::parse_and_check(&file.bytes());
});
