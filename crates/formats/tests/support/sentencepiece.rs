//! Writes SentencePiece's models without any check, so that tests can lie in every field. Small and
//! separate from what is tested.

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

fn tag(number: u64, wire: u64) -> Vec<u8> {
    varint(number << 3 | wire)
}

/// A field of bytes: text, or a message.
pub fn bytes(number: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [tag(number, 2), varint(value.len() as u64), value.to_vec()].concat()
}

pub fn number(number: u64, value: u64) -> Vec<u8> {
    [tag(number, 0), varint(value)].concat()
}

pub fn float(number: u64, value: f32) -> Vec<u8> {
    [tag(number, 5), value.to_le_bytes().to_vec()].concat()
}

pub fn double(number: u64, value: f64) -> Vec<u8> {
    [tag(number, 1), value.to_le_bytes().to_vec()].concat()
}

/// A piece, as a field of the model.
pub fn piece(text: impl AsRef<[u8]>, score: f32, ty: u64) -> Vec<u8> {
    bytes(1, [bytes(1, text), float(2, score), number(3, ty)].concat())
}

/// `trainer_spec` of these fields.
pub fn trainer(fields: &[Vec<u8>]) -> Vec<u8> {
    bytes(2, fields.concat())
}

/// `normalizer_spec` of these fields.
pub fn normalizer(fields: &[Vec<u8>]) -> Vec<u8> {
    bytes(3, fields.concat())
}

/// A model of BPE that is in order: the special tokens, all bytes, some pieces.
pub fn small() -> Vec<u8> {
    let mut out = vec![piece("<unk>", 0.0, 2), piece("<s>", 0.0, 3), piece("</s>", 0.0, 3)];
    out.extend((0..=255).map(|byte| piece(format!("<0x{byte:02X}>"), 0.0, 6)));
    let pieces = [("▁a", -0.0), ("ab", -1.0), ("▁ab", -2.0), ("▁", -3.0), ("a", -4.0), ("b", -5.0)];
    out.extend(pieces.map(|(text, score)| piece(text, score, 1)));
    out.push(piece("▁▁", 0.0, 4));
    out.push(piece("<extra>", -0.5, 5));
    out.push(trainer(&[number(3, 2), number(35, 1), number(4, 267), bytes(1, "corpus.txt")]));
    out.push(normalizer(&[bytes(1, "identity"), number(4, 0)]));
    out.concat()
}

/// The least model of BPE: without bytes.
pub fn least(rest: &[Vec<u8>]) -> Vec<u8> {
    let head = [piece("<unk>", 0.0, 2), piece("a", -1.0, 1), trainer(&[number(3, 2)])];
    [head.concat(), rest.concat()].concat()
}
