//! A model in two files is the same model as in one, whichever of the files is named.

use alight_formats::GgmlType;
use alight_model::{Model, OpenOptions, Session, SessionOptions};

use alight_testing::models::{self, Spec};

fn logits(path: &std::path::Path) -> Vec<f32> {
    let model = Model::open(
        path,
        &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() },
    )
    .unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    session.feed(&models::tokens(9, 300, 1)).unwrap().to_vec()
}

#[test]
fn two_shards_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec::gemma3();
    let (whole, weights) = spec.write(folder.path());
    let tensors = spec.tensors();
    let half = tensors.len() / 2;
    let mut paths = Vec::new();
    for (no, tensors) in [&tensors[..half], &tensors[half..]].into_iter().enumerate() {
        let mut b = if no == 0 { spec.metadata("") } else { Default::default() };
        b.u16("split.no", no as u16).u16("split.count", 2);
        b.i32("split.tensors.count", spec.tensors().len() as i32);
        for (name, shape) in tensors {
            let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
            b.tensor(name, GgmlType::F32, &shape).unwrap();
        }
        let bytes = b.file(|i, out| {
            for (chunk, value) in out.chunks_exact_mut(4).zip(&weights[&tensors[i].0]) {
                chunk.copy_from_slice(&value.to_le_bytes());
            }
        });
        let path = folder.path().join(format!("m-0000{}-of-00002.gguf", no + 1));
        std::fs::write(&path, bytes).unwrap();
        paths.push(path);
    }
    let expected = logits(&whole);
    for path in &paths {
        assert_eq!(logits(path), expected);
    }
    let model = Model::open(&paths[1], &crate::options()).unwrap();
    assert_eq!(model.files().collect::<Vec<_>>(), paths);
    let one = Model::open(&whole, &crate::options()).unwrap();
    assert_eq!(model.content().unwrap(), one.content().unwrap());

    std::fs::remove_file(&paths[1]).unwrap();
    let error = Model::open(&paths[0], &crate::options()).err().unwrap().to_string();
    assert!(error.contains("m-00002-of-00002.gguf"), "{error}");
}
