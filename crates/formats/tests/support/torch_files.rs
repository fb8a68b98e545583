//! Writes torch's zips and pickles without any check, so that tests can lie in every field. Small
//! and separate from what is tested: written from APPNOTE.TXT and pickletools.

/// One entry of a zip. Patches are bytes over the finished headers: (place in the header, bytes).
#[derive(Clone, Default)]
pub struct Entry {
    pub name: String,
    pub data: Vec<u8>,
    pub flags: u16,
    pub local: Vec<(usize, Vec<u8>)>,
    pub local_extra: Vec<u8>,
    pub central: Vec<(usize, Vec<u8>)>,
    pub central_extra: Vec<u8>,
    /// After the data.
    pub descriptor: Vec<u8>,
}

/// A zip under construction.
#[derive(Clone, Default)]
pub struct Archive {
    pub entries: Vec<Entry>,
    pub zip64: bool,
    pub comment: Vec<u8>,
    pub end64: Vec<(usize, Vec<u8>)>,
    pub locator: Vec<(usize, Vec<u8>)>,
    pub end: Vec<(usize, Vec<u8>)>,
    /// Between the directory and its end records.
    pub gap: Vec<u8>,
}

fn patch(bytes: &mut [u8], patches: &[(usize, Vec<u8>)]) {
    for (at, new) in patches {
        bytes[*at..at + new.len()].copy_from_slice(new);
    }
}

/// CRC-32 as in zip, bit by bit.
pub fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |state, byte| {
        (0..8).fold(state ^ u32::from(*byte), |state, _| {
            (state >> 1) ^ (0xedb8_8320 & (state & 1).wrapping_neg())
        })
    })
}

/// The descriptor that torch's miniz writes after data.
pub fn descriptor(data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [u32::from_le_bytes(*b"PK\x07\x08"), crc(data), len, len].map(u32::to_le_bytes).concat()
}

impl Archive {
    /// Entries under `archive/`: the pickle, a version, and storages with their keys.
    pub fn torch(pickle: &[u8], storages: &[(&str, &[u8])]) -> Archive {
        let mut archive = Archive { zip64: true, ..Archive::default() };
        archive.add("archive/data.pkl", pickle).add("archive/byteorder", b"little");
        for (key, data) in storages {
            archive.add(&format!("archive/data/{key}"), data);
        }
        archive.add("archive/version", b"3\n");
        archive
    }

    pub fn add(&mut self, name: &str, data: &[u8]) -> &mut Archive {
        let entry = Entry { name: name.into(), data: data.into(), ..Entry::default() };
        self.entries.push(entry);
        self
    }

    /// The entry that `name` ends.
    pub fn entry(&mut self, name: &str) -> &mut Entry {
        self.entries.iter_mut().find(|entry| entry.name.ends_with(name)).unwrap()
    }

    /// As torch writes: sizes after the data, data at multiples of 64.
    pub fn torchlike(mut self) -> Archive {
        let mut at = 0;
        for entry in &mut self.entries {
            let head = at + 30 + entry.name.len();
            let pad = (head + 4).next_multiple_of(64) - head - 4;
            entry.local_extra = [b"FB", &(pad as u16).to_le_bytes()[..], &vec![b'Z'; pad]].concat();
            entry.flags = 0x0808;
            entry.descriptor = descriptor(&entry.data);
            entry.local.push((14, vec![0; 12]));
            at = head + 4 + pad + entry.data.len() + 16;
        }
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let at = out.len() as u32;
            let (size, name) = (entry.data.len() as u32, entry.name.as_bytes());
            let mut common = Vec::new();
            common.extend([0, entry.flags, 0, 0, 0].map(u16::to_le_bytes).concat());
            common.extend([crc(&entry.data), size, size].map(u32::to_le_bytes).concat());
            common.extend((name.len() as u16).to_le_bytes());
            let len = |extra: &[u8]| (extra.len() as u16).to_le_bytes();
            let mut local = [b"PK\x03\x04", &common[..], &len(&entry.local_extra)].concat();
            local.extend([name, &entry.local_extra].concat());
            patch(&mut local, &entry.local);
            let mut central = [b"PK\x01\x02\0\0", &common[..], &len(&entry.central_extra)].concat();
            central.extend([0; 10]);
            central.extend(at.to_le_bytes());
            central.extend([name, &entry.central_extra].concat());
            patch(&mut central, &entry.central);
            out.extend([local, entry.data.clone(), entry.descriptor.clone()].concat());
            directory.extend(central);
        }
        let (start, size) = (out.len() as u64, directory.len() as u64);
        out.extend([directory, self.gap.clone()].concat());
        let n = self.entries.len() as u64;
        if self.zip64 {
            let at = out.len() as u64;
            let mut end = [b"PK\x06\x06", &44_u64.to_le_bytes()[..], &[0; 12]].concat();
            end.extend([n, n, size, start].map(u64::to_le_bytes).concat());
            patch(&mut end, &self.end64);
            let mut locator =
                [b"PK\x06\x07\0\0\0\0", &at.to_le_bytes()[..], &[1, 0, 0, 0]].concat();
            patch(&mut locator, &self.locator);
            out.extend([end, locator].concat());
        }
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend([n as u16, n as u16].map(u16::to_le_bytes).concat());
        end.extend([size as u32, start as u32].map(u32::to_le_bytes).concat());
        end.extend((self.comment.len() as u16).to_le_bytes());
        patch(&mut end, &self.end);
        out.extend([end, self.comment.clone()].concat());
        out
    }
}

/// A pickle under construction: opcodes as Python's protocol 2 writes them.
#[derive(Clone, Default)]
pub struct Pickle {
    pub bytes: Vec<u8>,
}

impl Pickle {
    pub fn new() -> Pickle {
        Pickle { bytes: vec![0x80, 2] }
    }

    pub fn put(&mut self, bytes: impl AsRef<[u8]>) -> &mut Pickle {
        self.bytes.extend_from_slice(bytes.as_ref());
        self
    }

    pub fn global(&mut self, module: &str, name: &str) -> &mut Pickle {
        self.put(format!("c{module}\n{name}\n"))
    }

    pub fn text(&mut self, text: &str) -> &mut Pickle {
        self.put(b"X").put((text.len() as u32).to_le_bytes()).put(text)
    }

    pub fn int(&mut self, value: i64) -> &mut Pickle {
        match value {
            0..256 => self.put([b'K', value as u8]),
            256..65536 => self.put(b"M").put((value as u16).to_le_bytes()),
            _ if i32::try_from(value).is_ok() => self.put(b"J").put((value as i32).to_le_bytes()),
            _ => self.put([0x8a, 8]).put(value.to_le_bytes()),
        }
    }

    pub fn ints(&mut self, values: &[i64]) -> &mut Pickle {
        self.put(b"(");
        for value in values {
            self.int(*value);
        }
        self.put(b"t")
    }

    pub fn storage(&mut self, class: &str, key: &str, numel: i64) -> &mut Pickle {
        let module = if class == "UntypedStorage" { "torch.storage" } else { "torch" };
        self.put(b"(")
            .text("storage")
            .global(module, class)
            .text(key)
            .text("cpu")
            .int(numel)
            .put(b"tQ")
    }

    /// The arguments that all rebuilding functions begin with, and the hooks.
    pub fn args(&mut self, at: i64, size: &[i64], stride: &[i64]) -> &mut Pickle {
        self.int(at).ints(size).ints(stride).put(b"\x89").hooks()
    }

    pub fn hooks(&mut self) -> &mut Pickle {
        self.global("collections", "OrderedDict").put(b")R")
    }

    pub fn tensor(&mut self, t: &Tensor<'_>) -> &mut Pickle {
        self.global("torch._utils", "_rebuild_tensor_v2").put(b"(");
        self.storage(t.class, t.key, t.numel).args(t.at, t.size, t.stride).put(b"tR")
    }

    pub fn done(&mut self) -> Vec<u8> {
        self.put(b".");
        std::mem::take(&mut self.bytes)
    }
}

/// A tensor as a pickle describes it.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub class: &'a str,
    pub key: &'a str,
    pub numel: i64,
    pub at: i64,
    pub size: &'a [i64],
    pub stride: &'a [i64],
}

/// Six floats in the storage "0", as 2 rows of 3.
pub const PLAIN: Tensor<'_> =
    Tensor { class: "FloatStorage", key: "0", numel: 6, at: 0, size: &[2, 3], stride: &[3, 1] };

/// A dictionary with one tensor, "t".
pub fn dict_of(tensor: &Tensor<'_>) -> Vec<u8> {
    Pickle::new().put(b"}").text("t").tensor(tensor).put(b"s").done()
}

/// A file of `pickle`, with storages "0" of 24 bytes, "1" of 16 and "empty" of none.
pub fn file(pickle: &[u8]) -> Vec<u8> {
    let data: Vec<u8> = (0..24).collect();
    Archive::torch(pickle, &[("0", &data), ("1", &[0xab; 16]), ("empty", b"")]).bytes()
}

/// A file as a model has it: nested, tied, a parameter, other values, written as torch does.
pub fn model() -> Vec<u8> {
    let mut p = Pickle::new();
    p.put(b"}q\x00(");
    p.text("epoch").int(-3).text("rate").put(b"G").put(0.5_f64.to_be_bytes());
    p.text("name").text("ü").text("none").put(b"N").text("list").put(b"](K\x01K\x02e");
    p.text("model").global("collections", "OrderedDict").put(b")Rq\x01(");
    p.text("embed.weight").tensor(&PLAIN);
    p.text("tied.weight").tensor(&PLAIN);
    p.text("last").tensor(&Tensor { at: 5, size: &[1], stride: &[1], ..PLAIN });
    p.text("scalar").tensor(&Tensor {
        class: "LongStorage",
        key: "1",
        numel: 2,
        at: 1,
        size: &[],
        stride: &[],
    });
    p.text("param").global("torch._utils", "_rebuild_parameter").put(b"(");
    p.tensor(&PLAIN).put(b"\x88").hooks().put(b"tR");
    p.put(b"u}X\x09\0\0\0_metadata}sb");
    p.text("many").put(b"]").tensor(&PLAIN).put(b"a");
    p.put(b"u");
    let data: Vec<u8> = (0..24).collect();
    Archive::torch(&p.done(), &[("0", &data), ("1", &[0xab; 16])]).torchlike().bytes()
}
