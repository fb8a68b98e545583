//! Any bytes as a legacy file of llama.cpp, as one part and as two, with its blocks converted.
#![no_main]

use std::collections::HashSet;

use alight_formats::ggml::blocks::{Losses, convert};
use alight_formats::ggml::parts::{check_replicas, gguf_name, merge};
use alight_formats::ggml::{Era, parse};
use libfuzzer_sys::fuzz_target;

fn good_message(error: &dyn std::error::Error) {
    // Messages are bounded and printable, whatever the file says.
    let text = error.to_string();
    assert!(text.len() < 2000 && !text.chars().any(char::is_control), "{text:?}");
}

fuzz_target!(|bytes: &[u8]| {
    let file = match parse(bytes) {
        Ok(file) => file,
        Err(error) => return good_message(&error),
    };
    let h = file.hparams;
    assert!(h.n_embd.is_multiple_of(h.n_head) && h.n_rot <= h.head_dim());
    let _ = (h.formula_n_ff(), h.ftype_name());
    match file.vocabulary.to_gguf() {
        Ok(tokens) => assert_eq!(tokens.len() as u64, u64::from(h.n_vocab)),
        Err(error) => good_message(&error),
    }
    let mut names = HashSet::new();
    let mut end = file.tensors_start;
    for tensor in &file.tensors {
        assert!(names.insert(tensor.name));
        assert_eq!(file.tensor(tensor.name), Some(tensor));
        assert!(tensor.offset >= end && tensor.offset - end < 20 + 64 + 64);
        let data = tensor.data(bytes).expect("it lies in the file");
        let (before, after) = file.era.sizes(tensor.ty, tensor.ne[0]).expect("whole blocks");
        assert_eq!((data.len() as u64, tensor.row_bytes()), (before * tensor.ne[1], before));
        let mut out = vec![0; after as usize];
        if let Err(error) =
            convert(file.era, tensor.ty, &data[..before as usize], &mut out, &mut Losses::default())
        {
            good_message(&error);
        }
        end = tensor.offset + tensor.nbytes;
    }
    let _ = file.clone().assume_era(Era::Rows).map_err(|error| good_message(&error));
    for parts in [&[file.clone()][..], &[file.clone(), file.clone()]] {
        let model = match merge(parts) {
            Ok(model) => model,
            Err(error) => {
                good_message(&error);
                continue;
            }
        };
        check_replicas(&model, &vec![bytes; parts.len()]).expect("the same bytes");
        for tensor in &model.tensors {
            assert!(gguf_name(tensor.name).is_some());
            let mut covered = 0;
            for piece in &tensor.pieces {
                assert!(piece.range().end <= bytes.len() as u64);
                let (start, row, stride) = tensor.destination(piece);
                assert!(start + (piece.rows - 1) * stride + row <= tensor.current_bytes().1);
                covered += piece.rows * row;
            }
            assert_eq!(covered, tensor.current_bytes().1);
        }
    }
});
