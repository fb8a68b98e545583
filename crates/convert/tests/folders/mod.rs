//! Folders of Hugging Face's whose weights are numbers that tell where they come from.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use alight_convert::{Conversion, Options, Request};
use serde_json::{Map, Value, json};

/// More than any of these tensors has elements, so that a weight's value tells its tensor; all are
/// whole numbers below 2^24, which f32 has exactly.
pub const STEP: usize = 100_000;

pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub first: usize,
}

/// A SentencePiece model of so many pieces.
pub fn spm(pieces: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..pieces {
        let (name, ty) = match i {
            0 => ("<unk>".to_owned(), 2),
            1 | 2 => (format!("<s{i}>"), 3),
            _ => (format!("p{i}"), 1),
        };
        let mut piece = vec![0x0a, name.len() as u8];
        piece.extend(name.as_bytes());
        piece.push(0x15);
        piece.extend((-(i as f32)).to_le_bytes());
        piece.extend([0x18, ty]);
        out.extend([0x0a, piece.len() as u8]);
        out.extend(piece);
    }
    out
}

pub fn write_folder(folder: &Path, tensors: &[Tensor], config: &Value) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.model"), spm(384)).unwrap();
    let (mut header, mut data) = (Map::new(), Vec::new());
    for Tensor { name, shape, first } in tensors {
        let begin = data.len();
        let dtype = if is_packed(name) { "U8" } else { "F32" };
        for i in 0..shape.iter().product() {
            match is_packed(name) {
                true => data.push(byte(first + i)),
                false => data.extend(((first + i) as f32).to_le_bytes()),
            }
        }
        let offsets = json!([begin, data.len()]);
        header
            .insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(folder.join("model.safetensors"), file).unwrap();
}

/// Blocks of MXFP4, or their scales.
pub fn is_packed(name: &str) -> bool {
    name.ends_with("_blocks") || name.ends_with("_scales")
}

/// What is in such a tensor.
pub fn byte(i: usize) -> u8 {
    ((i * 40_503) >> 5) as u8
}

pub fn convert(folder: &Path) -> (Conversion, Vec<u8>) {
    let out = folder.with_extension("gguf");
    let conversion = Conversion::plan(folder, Request::default()).unwrap();
    let mut go_on = |_| ControlFlow::Continue(());
    conversion.write(&out, 2, Options { force: true, ..Options::default() }, &mut go_on).unwrap();
    (conversion, fs::read(out).unwrap())
}

pub fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
