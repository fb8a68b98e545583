//! Detects whether one tensor of a source is a copy of another.

use std::os::unix::fs::FileExt;

use alight_pages::Map;

use super::tensor::Tensor;
use crate::ConvertError;

/// Number of places that are compared, and bytes of each. A copy is equal everywhere; a tensor
/// trained separately differs nearly everywhere, so gigabytes need not be read twice.
const PLACES: u64 = 64;
const BYTES: u64 = 4096;

/// Returns true if `a` has the bytes of `b`, judging by samples spread over all of it.
///
/// # Errors
/// They cannot be read.
pub(super) fn is_copy(maps: &[Map], a: &Tensor, b: &Tensor) -> Result<bool, ConvertError> {
    if a.shape != b.shape || a.dtype != b.dtype {
        return Ok(false);
    }
    // torch files store both in one place.
    if a.file == b.file && a.offset == b.offset {
        return Ok(true);
    }
    let elements = a.shape.iter().product();
    let Some(len) = a.elements(maps)?.bytes(elements) else { return Ok(false) };
    let size = len.min(BYTES);
    let last = len - size;
    for place in 0..PLACES {
        // Both ends, and evenly spaced places between them.
        let at = (u128::from(last) * u128::from(place) / u128::from(PLACES - 1)) as u64;
        if read(maps, a, at, size)? != read(maps, b, at, size)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads some bytes of a tensor; `size` is at most [`BYTES`].
fn read(maps: &[Map], tensor: &Tensor, at: u64, size: u64) -> Result<Vec<u8>, ConvertError> {
    let mut bytes = vec![0; size as usize];
    let (map, at) = (&maps[tensor.file], tensor.offset + at);
    let failed = |source| ConvertError::Read { path: map.path().into(), at, source };
    map.file().read_exact_at(&mut bytes, at).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alight_formats::GgmlType;
    use std::fs;

    #[test]
    fn a_copy_is_told_from_what_differs_anywhere_that_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let weights: Vec<u8> = (0..400_000u32).map(|i| (i * 7919 / 251) as u8).collect();
        fs::write(&one, &weights).unwrap();
        // At another place of another file.
        let moved = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = [&[1; 24], weights.as_slice()].concat();
            change(&mut bytes);
            fs::write(&two, bytes).unwrap();
            vec![Map::open(&one).unwrap(), Map::open(&two).unwrap()]
        };
        let tensor = |file, offset, shape: [u64; 2]| Tensor {
            name: "x".into(),
            ty: Some(GgmlType::F16),
            dtype: "F16",
            shape: shape.into(),
            file,
            offset,
        };
        let (a, b) = (tensor(0, 0, [1000, 200]), tensor(1, 24, [1000, 200]));
        assert!(is_copy(&moved(&|_| ()), &a, &b).unwrap());
        assert!(is_copy(&moved(&|_| ()), &b, &b).unwrap());
        for at in [24, 24 + 5000, 200_000, 400_023] {
            let maps = moved(&|bytes| bytes[at..(at + 3000).min(400_024)].fill(9));
            assert!(!is_copy(&maps, &a, &b).unwrap(), "{at}");
        }
        let maps = moved(&|_| ());
        assert!(!is_copy(&maps, &a, &tensor(1, 24, [200, 1000])).unwrap());
        let other = Tensor { dtype: "BF16", ..b.clone() };
        assert!(!is_copy(&maps, &a, &other).unwrap());
        assert!(is_copy(&maps, &tensor(0, 0, [1, 3]), &tensor(1, 24, [1, 3])).unwrap(), "short");
        // A file that has become shorter.
        let maps = moved(&|_| ());
        fs::File::options().write(true).open(&two).unwrap().set_len(1000).unwrap();
        assert!(is_copy(&maps, &a, &b).unwrap_err().to_string().contains("two: cannot read"));
    }
}
