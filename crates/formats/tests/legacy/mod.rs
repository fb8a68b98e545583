//! Builds legacy files, right ones and wrong ones, for tests and for the seeds of the fuzzer.

/// A file that can be changed before it is written.
#[derive(Clone)]
pub struct File {
    pub magic: [u8; 4],
    pub version: Option<u32>,
    /// n_vocab, n_embd, n_mult, n_head, n_layer, n_rot, ftype.
    pub hparams: [i32; 7],
    pub scored: bool,
    pub padded: bool,
    pub tokens: Vec<(Vec<u8>, f32)>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone)]
pub struct Tensor {
    pub name: Vec<u8>,
    pub dims: i32,
    pub name_len: i32,
    pub ty: i32,
    pub ne: Vec<i32>,
    pub data: Vec<u8>,
}

impl Tensor {
    pub fn new(name: &str, ty: i32, ne: &[i32], nbytes: usize) -> Tensor {
        Tensor {
            name: name.into(),
            dims: ne.len() as i32,
            name_len: name.len() as i32,
            ty,
            ne: ne.into(),
            data: vec![0x11; nbytes],
        }
    }
}

pub const EMBD: i32 = 64;
pub const FF: i32 = 192;
pub const VOCAB: i32 = 6;

/// Magic and version of every kind of file that is read.
pub const KINDS: [(&[u8; 4], Option<u32>); 5] = [
    (b"lmgg", None),
    (b"fmgg", Some(1)),
    (b"tjgg", Some(1)),
    (b"tjgg", Some(2)),
    (b"tjgg", Some(3)),
];

impl File {
    /// An empty file of a kind, without tensors.
    pub fn new(magic: &[u8; 4], version: Option<u32>) -> File {
        File {
            magic: *magic,
            version,
            hparams: [VOCAB, EMBD, 64, 2, 1, 32, 0],
            scored: magic != b"lmgg",
            padded: magic == b"tjgg",
            tokens: [&b" "[..], b"", b"", b"\0", b"\x01", b"ab"]
                .iter()
                .map(|text| (text.to_vec(), -1.5))
                .collect(),
            tensors: Vec::new(),
        }
    }

    /// One part of a model of `parts` parts with one layer, in F16.
    pub fn model(magic: &[u8; 4], version: Option<u32>, parts: i32) -> File {
        let mut file = File::new(magic, version);
        let mut matrix = |name: &str, cols: i32, rows: i32| {
            let nbytes = (cols * rows * 2) as usize;
            file.tensors.push(Tensor::new(name, 1, &[cols, rows], nbytes));
        };
        matrix("tok_embeddings.weight", EMBD / parts, VOCAB);
        for name in ["wq", "wk", "wv"] {
            matrix(&format!("layers.0.attention.{name}.weight"), EMBD, EMBD / parts);
        }
        matrix("layers.0.attention.wo.weight", EMBD / parts, EMBD);
        matrix("layers.0.feed_forward.w1.weight", EMBD, FF / parts);
        matrix("layers.0.feed_forward.w2.weight", FF / parts, EMBD);
        matrix("layers.0.feed_forward.w3.weight", EMBD, FF / parts);
        matrix("output.weight", EMBD, VOCAB / parts);
        for name in ["layers.0.attention_norm", "layers.0.ffn_norm", "norm"] {
            let name = format!("{name}.weight");
            file.tensors.push(Tensor::new(&name, 0, &[EMBD], EMBD as usize * 4));
        }
        file
    }

    /// The tensor called `name`.
    pub fn tensor(&mut self, name: &str) -> &mut Tensor {
        let found = self.tensors.iter_mut().find(|tensor| tensor.name == name.as_bytes());
        found.unwrap_or_else(|| panic!("no {name}"))
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_and_ends().0
    }

    /// The bytes, and where the header, every token and every tensor end.
    pub fn bytes_and_ends(&self) -> (Vec<u8>, Vec<usize>) {
        let mut out = self.magic.to_vec();
        let mut ends = Vec::new();
        if let Some(version) = self.version {
            out.extend(version.to_le_bytes());
        }
        out.extend(self.hparams.map(i32::to_le_bytes).as_flattened());
        ends.push(out.len());
        for (text, score) in &self.tokens {
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text);
            if self.scored {
                out.extend(score.to_le_bytes());
            }
            ends.push(out.len());
        }
        for tensor in &self.tensors {
            for number in [tensor.dims, tensor.name_len, tensor.ty].iter().chain(&tensor.ne) {
                out.extend(number.to_le_bytes());
            }
            out.extend(&tensor.name);
            if self.padded {
                out.resize(out.len().next_multiple_of(32), 0);
            }
            out.extend(&tensor.data);
            ends.push(out.len());
        }
        (out, ends)
    }
}
