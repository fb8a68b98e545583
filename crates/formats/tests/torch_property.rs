//! Whatever the bytes, the reader of torch's files does not panic, takes memory in proportion, and
//! what it accepts is as it promises. What is in order is read as it was written.

use std::collections::HashSet;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use crate::support::torch_check::measured;
use crate::support::torch_files::*;

/// What holds of every file that is accepted.
fn check(bytes: &[u8]) {
    let Ok(file) = measured(bytes) else { return };
    let mut names = HashSet::new();
    for tensor in &file.tensors {
        assert!(!tensor.name.is_empty() && names.insert(&*tensor.name));
        assert_eq!(file.tensor(&tensor.name), Some(tensor));
        assert_eq!(tensor.data(bytes).unwrap().len() as u64, tensor.nbytes);
        assert_eq!(tensor.elements() * tensor.dtype.bytes(), tensor.nbytes);
        assert!((tensor.storage as usize) < file.storages);
    }
}

/// Pieces that pickles are made of, so that random ones go somewhere.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::sample::select(&b"(N}])tabsueRQ.\x81\x85\x86\x87\x88\x89\x8f"[..]).prop_map(|code| vec![code]),
        2 => (prop::sample::select(&b"qh"[..]), 0..4_u8).prop_map(|(code, index)| vec![code, index]),
        1 => any::<u8>().prop_map(|value| vec![b'K', value]),
        1 => any::<i32>().prop_map(|value| [&b"J"[..], &value.to_le_bytes()].concat()),
        1 => "[a-c]{0,2}".prop_map(|text| Pickle::default().text(&text).bytes.clone()),
        1 => prop::sample::select(vec![
            ("collections", "OrderedDict"),
            ("torch._utils", "_rebuild_tensor_v2"),
            ("torch._utils", "_rebuild_tensor_v3"),
            ("torch._utils", "_rebuild_parameter"),
            ("torch._tensor", "_rebuild_from_type_v2"),
            ("torch", "FloatStorage"),
            ("torch", "Tensor"),
            ("os", "system"),
        ])
        .prop_map(|(module, name)| Pickle::default().global(module, name).bytes.clone()),
        1 => Just(Pickle::default().tensor(&PLAIN).bytes.clone()),
        1 => Just(Pickle::default().storage("LongStorage", "1", 2).bytes.clone()),
        1 => Just(Pickle::default().args(0, &[2], &[1]).bytes.clone()),
        1 => vec(any::<u8>(), 0..3),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        check(&bytes);
        check(&[b"PK\x03\x04", &bytes[..]].concat());
        check(&file(&bytes));
    }

    #[test]
    fn pickles_of_pieces(pieces in vec(piece(), 0..40)) {
        check(&file(&[b"\x80\x02}", &pieces.concat()[..], b"."].concat()));
        check(&file(&[b"\x80\x02}U\x01x", &pieces.concat()[..], b"s."].concat()));
    }

    #[test]
    fn a_file_in_order_changed_in_some_places(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = model();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        check(&bytes);
    }

    #[test]
    fn what_is_in_order_is_read_as_it_was_written(
        tensors in btree_map("[a-z.]{1,12}", (vec(0..5_i64, 0..4), 0..3_i64), 0..6),
    ) {
        let mut pickle = Pickle::new();
        pickle.put(b"}(");
        let mut storages = Vec::new();
        for (index, (name, (shape, start))) in tensors.iter().enumerate() {
            let elements: i64 = shape.iter().product();
            let strides: Vec<i64> =
                (1..=shape.len()).map(|from| shape[from..].iter().product()).collect();
            let (key, numel) = (index.to_string(), start + elements + 1);
            storages.push((key.clone(), vec![index as u8 + 1; 2 * numel as usize]));
            pickle.text(name).tensor(&Tensor {
                class: "HalfStorage", key: &key, numel, at: *start, size: shape, stride: &strides,
            });
        }
        let pickle = pickle.put(b"u").done();
        let records: Vec<(&str, &[u8])> =
            storages.iter().map(|(key, data)| (&**key, &data[..])).collect();
        let archive = Archive::torch(&pickle, &records);
        for bytes in [archive.bytes(), archive.torchlike().bytes()] {
            check(&bytes);
            let file = measured(&bytes).unwrap();
            prop_assert_eq!(file.tensors.len(), tensors.len());
            for (index, (found, (name, (shape, _)))) in file.tensors.iter().zip(&tensors).enumerate() {
                prop_assert_eq!(&*found.name, name);
                prop_assert!(found.shape.iter().eq(shape.iter().map(|n| *n as u64).collect::<Vec<_>>().iter()));
                prop_assert!(found.data(&bytes).unwrap().iter().all(|byte| *byte == index as u8 + 1));
            }
        }
    }
}
