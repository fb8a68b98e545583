//! A model in several files is found by any of them, and what is wrong with a set is said with the file's name.

use std::fs;
use std::path::{Path, PathBuf};

use alight_files::FilesError;
use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;

/// Writes shard `no` of `count`, with one tensor of four numbers.
fn shard(folder: &Path, no: u16, count: u16, tensors: i32) -> PathBuf {
    let mut b = Builder::new();
    b.u16("split.no", no).u16("split.count", count).i32("split.tensors.count", tensors);
    b.tensor(&format!("tensor.{no}"), GgmlType::F32, &[4]).unwrap();
    let path = folder.join(format!("m-{:05}-of-{count:05}.gguf", no + 1));
    fs::write(&path, b.file(|_, out| out.fill(0))).unwrap();
    path
}

fn tensors(path: &Path) -> Result<Vec<(String, usize)>, FilesError> {
    let maps = alight_files::open(path)?;
    let copies = alight_files::copies(&maps);
    let headers = alight_files::headers(&maps, &copies)?;
    assert!(headers.metadata().iter().all(|(key, _)| !key.starts_with("split.")));
    Ok(headers.catalog.tensors.iter().map(|t| (t.info.name.to_owned(), t.shard)).collect())
}

#[test]
fn any_shard_opens_all_of_them_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [0, 1, 2].map(|no| shard(folder.path(), no, 3, 3));
    let all = [0, 1, 2].map(|no| (format!("tensor.{no}"), no));
    for path in &paths {
        assert_eq!(tensors(path).unwrap(), all);
        let maps = alight_files::open(path).unwrap();
        assert!(maps.iter().map(|map| map.path()).eq(paths.iter()));
    }
}

#[test]
fn a_file_by_itself_is_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.gguf");
    let mut b = Builder::new();
    b.str("general.name", "x").tensor("t", GgmlType::F32, &[4]).unwrap();
    fs::write(&path, b.file(|_, out| out.fill(0))).unwrap();
    assert_eq!(tensors(&path).unwrap(), [("t".to_owned(), 0)]);
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    // A shard is missing.
    let path = shard(folder.path(), 0, 2, 2);
    let error = tensors(&path).unwrap_err();
    assert!(matches!(error, FilesError::Map(_)), "{error:?}");
    assert!(error.to_string().contains("m-00002-of-00002.gguf"), "{error}");
    // The shards have fewer tensors than they say.
    shard(folder.path(), 1, 2, 5);
    let wrong = shard(folder.path(), 0, 2, 5);
    let error = tensors(&wrong).unwrap_err();
    assert!(matches!(error, FilesError::Split { .. }), "{error:?}");
    assert!(error.to_string().starts_with(wrong.to_str().unwrap()), "{error}");
    // A name that the header does not fit.
    let other = folder.path().join("other.gguf");
    fs::rename(&wrong, &other).unwrap();
    assert!(matches!(tensors(&other).unwrap_err(), FilesError::Split { .. }));
    // No GGUF at all.
    fs::write(&other, b"not a model").unwrap();
    let error = tensors(&other).unwrap_err();
    assert!(matches!(error, FilesError::Header { .. }), "{error:?}");
    assert!(error.to_string().starts_with(other.to_str().unwrap()), "{error}");
}
