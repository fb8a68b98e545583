//! Classes 1 to 7 of the list of malformed inputs: every lie has its own error, which names the
//! place, what was found and what was expected; none takes memory out of proportion to the file.

use alight_formats::gguf::{Gguf, GgufError as E, GgufField, MAX_HEADER, ValueType, parse};
use alight_formats::packed::{PACKED_BASE, PLANES_BASE, Packing, packed_id};
use alight_formats::{GgmlType, TypeError};

use crate::support::memory;
use crate::support::raw::*;
use crate::support::refused::{refused, table};

/// Parses and checks that this took little memory: some fixed tables, and so much per byte of the
/// file as its densest content (tensors of 33 bytes each) needs.
fn measured(bytes: &[u8]) -> Result<Gguf<'_>, E> {
    memory::within(512 * 1024 + 16 * bytes.len(), || parse(bytes))
}

/// The parse fails as expected, and the message holds all of `words`.
#[track_caller]
fn fails(what: &str, bytes: &[u8], expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, measured(bytes), expected, words);
}

#[test]
fn the_small_file_is_in_order() {
    let bytes = small();
    let file = measured(&bytes).unwrap();
    assert_eq!((file.version, file.alignment), (3, 32));
    assert_eq!(file.get_str("general.architecture"), Ok(Some("llama")));
    assert_eq!(file.get_u32("count"), Ok(Some(7)));
    assert_eq!(file.get_u64("big"), Ok(Some(u64::MAX)));
    assert_eq!(file.get_f32("ratio"), Ok(Some(0.5)));
    assert_eq!(file.get_bool("flag"), Ok(Some(true)));
    assert_eq!(file.get_u32("absent"), Ok(None));
    let tokens: Vec<_> = file.get_strings("tokens").unwrap().unwrap().collect();
    assert_eq!(tokens, [&b"a"[..], b"", b"bc"]);
    let scores = file.get_array("scores").unwrap().unwrap();
    assert_eq!(scores.iter_f32().unwrap().collect::<Vec<_>>(), [0.0, 1.0]);
    let second = file.tensor("second").unwrap();
    assert_eq!((second.ty, second.shape(), second.nbytes), (GgmlType::F32, &[3][..], 12));
    assert_eq!(second.offset, file.data_start + 96);
    assert_eq!(*second.data(&bytes).unwrap(), [0xab; 12]);
    assert_eq!(file.data_end, bytes.len() as u64);
}

#[test]
fn class_1_header() {
    for len in 0..24 {
        fails(
            &format!("{len} bytes"),
            &Raw::v3(0, 0).done()[..len],
            |e| matches!(e, E::Truncated { place: GgufField::Header, .. }),
            &["header", "bytes"],
        );
    }
    let big_endian = {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_be_bytes());
        bytes.extend([0_u64, 0].map(u64::to_be_bytes).as_flattened());
        bytes
    };
    table! {
        "magic", *b"GGML\x03\0\0\0", E::BadMagic { found } if found == b"GGML", ["\"GGML\"", "GGUF"];
        "legacy magic", *b"tjgg\x03\0\0\0", E::BadMagic { .. }, ["tjgg"];
        "reversed magic", *b"FUGG\x03\0\0\0", E::BadMagic { .. }, ["FUGG"];
        "terminal escape as magic", *b"\x1b[2J....", E::BadMagic { .. }, ["\\u{1b}[2J"];
        "zip", *b"PK\x03\x04....", E::BadMagic { .. }, ["PK"];
        "pointer", *b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n", E::LfsPointer, ["git lfs pull"];
        "page", *b"\n<!DOCTYPE html>\n<html>", E::WebPage, ["web page", "download the file itself"];
        "page without a type", *b"<HTML lang=\"en\">", E::WebPage, ["web page"];
        "other markup", *b"<svg></svg>", E::BadMagic { .. }, ["<svg"];
        "version 0", Raw::new(0, 0, 0).done(), E::Version { found: 0 }, ["version 0", "1, 2 or 3"];
        "version 4", Raw::new(4, 0, 0).done(), E::Version { found: 4 }, ["version 4"];
        "version 2^31", Raw::new(1 << 31, 0, 0).done(), E::BigEndian { version: 128 }, ["128"];
        "version 2^32-1", Raw::new(u32::MAX, 0, 0).done(), E::Version { found: u32::MAX }, [];
        "big-endian", big_endian, E::BigEndian { version: 3 }, ["big-endian", "version 3"];
    }
    for version in [1, 2, 3] {
        for lie in [1, 2, 1 << 31, (1 << 32) - 1, 1 << 63, u64::MAX, u64::MAX / 33 + 1] {
            let low = if version == 1 { lie & 0xffff_ffff } else { lie };
            if low == 0 {
                continue;
            }
            let found = low.to_string();
            table! {
                "tensors", Raw::new(version, lie, 0).done(),
                    E::Count { what: "tensors", found: n, limit: 0 } if *n == low, ["tensors", &found];
                "entries", Raw::new(version, 0, lie).done(),
                    E::Count { what: "metadata entries", found: n, limit: 0 } if *n == low, [&found];
            }
        }
    }
    // As many as a file of this size could hold, but not more; none of them is there.
    let mut bytes = Raw::v3(1000, 0).done();
    bytes.resize(24 + 33 * 1000, 0);
    table! {
        "1000 tensors of zeros", bytes, E::EmptyName { place: GgufField::TensorName(0) }, ["tensor 0"];
        "1000 tensors, a byte short", bytes[..24 + 33 * 1000 - 1],
            E::Count { found: 1000, limit: 999, .. }, ["1000", "999", "cut short"];
    }
    // Both counts share the bytes that are there.
    let mut bytes = Raw::v3(1, 1000).done();
    bytes.resize(24 + 14 * 1000 + 32, 0);
    table! { "tensors after entries", bytes, E::Count { what: "tensors", limit: 0, .. }, []; }
    // More entries than any model has, in a file that could hold them.
    let mut bytes = Raw::v3(0, (1 << 20) + 1).done();
    bytes.resize(24 + 14 * ((1 << 20) + 1), 0);
    table! { "2^20 + 1 entries", bytes, E::Count { limit: 0x10_0000, .. }, ["1048576"]; }
}

#[test]
fn class_2_strings() {
    let key = |text: &[u8]| Raw::v3(0, 1).key(text, U8).put(&[1]).put(&[0; 32]).done();
    let len = |len: u64| Raw::v3(0, 1).u64(len).put(&[b'k'; 40]).done();
    let value = |len: u64| Raw::v3(0, 1).key("key", STR).u64(len).put(&[b'v'; 40]).done();
    let name = |text: &[u8]| Raw::v3(1, 0).tensor(text, &[1], 0, 0).data(32, 4).done();
    let long = |len: usize| "x".repeat(len).into_bytes();
    table! {
        "key longer than the file", len(41), E::Truncated { place: GgufField::Key(0), needed: 41, available: 40, .. }, ["41", "40"];
        "key of 2^64-1", len(u64::MAX), E::Truncated { needed: u64::MAX, .. }, ["metadata key 0"];
        "key of 2^63", len(1 << 63), E::Truncated { .. }, [];
        "empty key", key(b""), E::EmptyName { place: GgufField::Key(0) }, ["metadata key 0", "empty"];
        "zero byte in a key", key(b"a\0b"), E::NulInName { at: 1, .. }, ["offset 1"];
        "zero byte alone", key(b"\0"), E::NulInName { at: 0, .. }, [];
        "key not UTF-8", key(b"ab\xff"), E::NotUtf8 { place: GgufField::Key(0), at: 2, .. }, ["byte 2", "\\xff"];
        "overlong UTF-8", key(b"\xc0\x80"), E::NotUtf8 { at: 0, .. }, [];
        "surrogate", key(b"\xed\xa0\x80"), E::NotUtf8 { .. }, [];
        "key of 65536", key(&long(65536)), E::NameTooLong { found: 65536, limit: 65535, .. }, ["65536", "65535"];
        "value longer than the file", value(41), E::Truncated { needed: 41, available: 40, .. }, ["\"key\"", "41"];
        "value of 2^64-1", value(u64::MAX), E::Truncated { .. }, ["\"key\""];
        "empty name", name(b""), E::EmptyName { place: GgufField::TensorName(0) }, ["name of tensor 0"];
        "zero byte in a name", name(b"blk\0"), E::NulInName { at: 3, .. }, ["tensor 0"];
        "name not UTF-8", name(b"\x80"), E::NotUtf8 { at: 0, .. }, [];
        "name of 65", name(&long(65)), E::NameTooLong { found: 65, limit: 64, .. }, ["65", "64"];
        "name of 2^64-1", Raw::v3(1, 0).u64(u64::MAX).put(&[0; 40]).done(), E::Truncated { place: GgufField::TensorName(0), .. }, [];
        "duplicate key", Raw::v3(0, 3).key("a", U8).put(&[1]).key("b", U8).put(&[1]).key("a", U8).put(&[2]).done(),
            E::DuplicateKey { first: 0, second: 2, .. }, ["\"a\"", "0 and 2"];
        "duplicate name", Raw::v3(2, 0).tensor("t", &[1], 0, 0).tensor("t", &[1], 0, 32).data(32, 64).done(),
            E::DuplicateTensor { first: 0, second: 1, .. }, ["\"t\"", "0 and 1"];
    }
    for bytes in [key(&long(65535)), name(&long(63)), name(&long(64)), name("blk.ü".as_bytes())] {
        measured(&bytes).unwrap();
    }
    // Values may be any bytes; asking for text is what fails.
    let bytes = Raw::v3(0, 2).key("k", STR).string(b"\xff\0").key("e", STR).string("").done();
    let file = measured(&bytes).unwrap();
    assert_eq!(file.value::<&[u8]>("k"), Ok(Some(&b"\xff\0"[..])));
    assert!(matches!(file.get_str("k"), Err(E::NotUtf8 { at: 0, .. })));
    assert_eq!(file.get_str("e"), Ok(Some("")));
}

#[test]
fn class_3_arrays() {
    let array =
        |elem: u32, count: u64| Raw::v3(0, 1).array("key", elem, count).put(&[0; 64]).done();
    let mut bomb = Raw::v3(0, 1);
    bomb.key("key", ARRAY);
    for _ in 0..10_000 {
        bomb.u32(ARRAY).u64(1);
    }
    table! {
        "nested", array(ARRAY, 1), E::NestedArray { .. }, ["\"key\"", "array of arrays"];
        "nested, empty", array(ARRAY, 0), E::NestedArray { .. }, [];
        "depth bomb", bomb.done(), E::NestedArray { .. }, [];
        "type 13", array(13, 1), E::ValueTypeId { found: 13, limit: 12, .. }, ["\"key\"", "13", "12"];
        "type 255", array(255, 1), E::ValueTypeId { found: 255, .. }, ["255"];
        "type 2^32-1", array(u32::MAX, 1), E::ValueTypeId { .. }, [];
        "value type 13", Raw::v3(0, 1).key("key", 13).put(&[0; 9]).done(), E::ValueTypeId { found: 13, .. }, ["\"key\""];
        "n·size wraps to 0", array(U64, 1 << 61), E::Truncated { needed: u64::MAX, .. }, ["\"key\"", "array"];
        "n·size wraps to 8", array(U64, (1 << 61) + 1), E::Truncated { .. }, [];
        "n·size wraps, f32", array(F32, 1 << 62), E::Truncated { .. }, [];
        "strings, n·8 wraps", array(STR, 1 << 61), E::Truncated { needed: u64::MAX, .. }, [];
        "strings, n = 2^63", array(STR, 1 << 63), E::Truncated { .. }, [];
        "n = 2^63", array(U8, 1 << 63), E::Truncated { needed: 0x8000_0000_0000_0000, available: 64, .. }, [];
        "n = 2^64-1", array(U8, u64::MAX), E::Truncated { .. }, [];
        "a byte too many", array(U8, 65), E::Truncated { needed: 65, available: 64, .. }, ["65", "64"];
        "9 strings in 64 bytes", array(STR, 9), E::Truncated { needed: 72, available: 64, .. }, [];
        "second string past the end", Raw::v3(0, 1).array("key", STR, 2).string("a").u64(9).put(b"12345678").done(),
            E::Truncated { needed: 9, available: 8, .. }, ["string in an array"];
        "a string of 2^64-1", Raw::v3(0, 1).array("key", STR, 1).u64(u64::MAX).done(),
            E::Truncated { needed: u64::MAX, available: 0, .. }, [];
        "strings cut in a length", Raw::v3(0, 1).array("key", STR, 2).string("abcdefg").put(&[0; 7]).done(),
            E::Truncated { needed: 8, available: 7, .. }, [];
        "bool 2", Raw::v3(0, 1).key("key", BOOL).put(&[2, 0, 0]).done(), E::Bool { found: 2, .. }, ["\"key\"", "2"];
        "bool 255 in an array", Raw::v3(0, 1).array("key", BOOL, 3).put(&[0, 1, 255]).done(),
            E::Bool { found: 255, at: 53, .. }, ["byte 53"];
        "u64 in version 1", Raw::new(1, 0, 1).key("key", U64).put(&[0; 16]).done(),
            E::ValueTypeId { found: 10, limit: 9, .. }, ["10", "9"];
        "version 1 strings", Raw::new(1, 0, 1).array("key", STR, 2).string("a").u32(9).put(b"12345678").done(),
            E::Truncated { needed: 9, available: 8, .. }, [];
    }
    measured(&array(U8, 64)).unwrap();
    measured(&array(STR, 8)).unwrap();
    measured(&array(F32, 0)).unwrap();
}

#[test]
fn class_4_dimensions_and_types() {
    let dims = |ne: &[u64]| Raw::v3(1, 0).tensor("blk.7", ne, 0, 0).data(32, 64).done();
    let typed = |ty: u32, ne: &[u64]| Raw::v3(1, 0).tensor("blk.7", ne, ty, 0).data(32, 64).done();
    let n_dims = |n: u32| Raw::v3(1, 0).string("blk.7").u32(n).put(&[1; 64]).done();
    const MAX: u64 = i64::MAX as u64;
    table! {
        "n_dims 0", n_dims(0), E::Dimensions { found: 0, .. }, ["\"blk.7\"", "0", "1 to 4"];
        "n_dims 5", n_dims(5), E::Dimensions { found: 5, .. }, ["\"blk.7\"", "5"];
        "n_dims 2^32-1", n_dims(u32::MAX), E::Dimensions { found: u32::MAX, .. }, ["4294967295"];
        "ne 0", dims(&[0]), E::Dimension { index: 0, found: 0, .. }, ["\"blk.7\"", "dimension 0 is 0"];
        "last ne 0", dims(&[4, 2, 0]), E::Dimension { index: 2, found: 0, .. }, ["dimension 2"];
        "ne -1", dims(&[4, u64::MAX]), E::Dimension { index: 1, .. }, ["18446744073709551615"];
        "ne 2^63", dims(&[1 << 63]), E::Dimension { index: 0, .. }, [];
        "ne 2^63-1 of 4 bytes", dims(&[MAX]), E::ShapeOverflow { .. }, ["[9223372036854775807]"];
        "ne 2^63-1 of 1 byte", typed(24, &[MAX]), E::PastEnd { nbytes: MAX, .. }, ["\"blk.7\"", "past the end"];
        "pair overflow", dims(&[1 << 32, 1 << 32]), E::ShapeOverflow { .. }, ["[4294967296, 4294967296]"];
        "pair overflow to 2^63", typed(24, &[1 << 32, 1 << 31]), E::ShapeOverflow { .. }, [];
        "quad overflow to 0", dims(&[1 << 16, 1 << 16, 1 << 16, 1 << 16]), E::ShapeOverflow { .. }, [];
        "quad overflow to 1", typed(24, &[u64::MAX / 3 / 2, 3, 2, 3]), E::ShapeOverflow { .. }, [];
        "bytes overflow, elements do not", dims(&[1 << 61]), E::ShapeOverflow { .. }, [];
        "bytes wrap to 0", typed(28, &[1 << 61]), E::ShapeOverflow { .. }, [];
        "elements overflow, bytes do not", typed(18, &[1 << 32, 1 << 31]), E::ShapeOverflow { .. }, [];
        "partial block", typed(2, &[33]), E::PartialBlock { found: 33, block: 32, ty: GgmlType::Q4_0, .. }, ["33", "32", "Q4_0"];
        "partial super-block", typed(12, &[128, 2]), E::PartialBlock { block: 256, .. }, ["Q4_K"];
        "one element of a block", typed(8, &[1]), E::PartialBlock { .. }, ["Q8_0"];
    }
    for id in [4, 5, 31, 32, 33, 36, 37, 38] {
        table! { "removed", typed(id, &[256]),
        E::TensorType { reason: TypeError::Removed { .. }, .. }, ["\"blk.7\"", "removed"]; }
    }
    for id in (133..=158).chain(202..=399) {
        table! { "fork", typed(id, &[256]),
        E::TensorType { reason: TypeError::Private { .. }, .. }, ["\"blk.7\"", "ik_llama.cpp"]; }
    }
    for id in [43, 99, 132, 159, 201, 400, 1 << 31, u32::MAX] {
        table! { "gap", typed(id, &[256]),
        E::TensorType { reason: TypeError::Unknown { .. }, .. }, ["\"blk.7\"", &id.to_string()]; }
    }
    for ty in GgmlType::ALL {
        let bytes = Raw::v3(1, 0)
            .tensor("t", &[ty.block_len(), 3], ty.id(), 0)
            .data(32, 3 * ty.block_bytes() as usize)
            .done();
        let file = measured(&bytes).unwrap();
        assert_eq!((file.tensors[0].ty, file.tensors[0].nbytes), (*ty, 3 * ty.block_bytes()));
    }
}

#[test]
fn class_5_offsets() {
    // Two tensors of 4 and 40 bytes, then a third.
    let file = |offsets: [u64; 3], data: usize| {
        let mut raw = Raw::v3(3, 0);
        raw.tensor("a", &[1], 0, offsets[0]).tensor("b", &[10], 0, offsets[1]);
        raw.tensor("c", &[2], 0, offsets[2]).data(32, data).done()
    };
    let good = [0, 32, 96];
    table! {
        "first not at 0", file([32, 64, 128], 200), E::Gap { found: 32, expected: 0, .. }, ["\"a\"", "32", "0"];
        "misaligned", file([0, 33, 96], 200), E::Misaligned { found: 33, alignment: 32, .. }, ["\"b\"", "33", "32"];
        "aligned to 4 only", file([0, 4, 44], 200), E::Misaligned { found: 4, .. }, [];
        "gap", file([0, 32, 128], 200), E::Gap { found: 128, expected: 96, .. }, ["\"c\"", "128", "96"];
        "overlap", file([0, 32, 64], 200), E::Overlap { found: 64, expected: 96, .. }, ["\"c\"", "64", "96"];
        "same place", file([0, 0, 64], 200), E::Overlap { found: 0, expected: 32, .. }, ["\"b\""];
        "out of order", file([32, 0, 96], 200), E::Gap { found: 32, .. }, ["\"a\""];
        "backwards", file([0, 32, 0], 200), E::Overlap { found: 0, expected: 96, .. }, [];
        "offset 2^64-32", file([0, 32, u64::MAX - 31], 200), E::Gap { .. }, [];
        "offset 2^63", file([0, 32, 1 << 63], 200), E::Gap { .. }, [];
        "last byte missing", file(good, 96 + 7), E::PastEnd { nbytes: 8, .. }, ["\"c\"", "8 bytes"];
        "last tensor missing", file(good, 96), E::PastEnd { .. }, ["\"c\""];
        "all data missing", file(good, 0), E::PastEnd { nbytes: 4, .. }, ["\"a\""];
        "huge first tensor", Raw::v3(2, 0).tensor("a", &[1 << 60], 24, 0).tensor("b", &[1], 0, 1 << 60).data(32, 64).done(),
            E::PastEnd { nbytes: 0x1000_0000_0000_0000, .. }, ["\"a\""];
    }
    let bytes = file(good, 96 + 8);
    let parsed = measured(&bytes).unwrap();
    assert_eq!(parsed.data_end, bytes.len() as u64, "the last tensor needs no padding");
    let bytes = file(good, 96 + 32);
    assert_eq!(measured(&bytes).unwrap().data_end, bytes.len() as u64 - 24);
}

#[test]
fn class_6_alignment() {
    let aligned = |ty: u32, value: &[u8]| {
        let mut raw = Raw::v3(1, 1);
        raw.key("general.alignment", ty).put(value).tensor("t", &[4], 0, 0).data(65536, 16).done()
    };
    for found in [0_u32, 1, 2, 4, 3, 12, 24, 33, 1 << 30, 1 << 31, u32::MAX] {
        table! { "alignment", aligned(U32, &found.to_le_bytes()),
        E::Alignment { found: n, .. } if *n == found, ["general.alignment", &found.to_string()]; }
    }
    table! {
        "i32", aligned(I32, &32_i32.to_le_bytes()), E::AlignmentType { found: ValueType::I32 }, ["i32", "u32"];
        "u64", aligned(U64, &32_u64.to_le_bytes()), E::AlignmentType { found: ValueType::U64 }, ["u64"];
        "str", aligned(STR, b"\x02\0\0\0\0\0\0\x0032"), E::AlignmentType { found: ValueType::Str }, ["str"];
        "array", aligned(ARRAY, b"\x04\0\0\0\x01\0\0\0\0\0\0\0\x20\0\0\0"), E::AlignmentType { found: ValueType::Array }, ["array"];
        "set twice", Raw::v3(0, 2).key("general.alignment", U32).u32(32).key("general.alignment", U32).u32(64).done(),
            E::DuplicateKey { .. }, ["general.alignment"];
        "larger than the file", aligned(U32, &(1_u32 << 29).to_le_bytes()), E::PastEnd { start: 0x2000_0000, .. }, ["\"t\""];
    }
    for shift in 3..=16 {
        let value = 1_u32 << shift;
        let mut raw = Raw::v3(2, 1);
        raw.key("general.alignment", U32).u32(value);
        raw.tensor("a", &[1], 0, 0).tensor("b", &[1], 0, u64::from(value));
        let bytes = raw.data(value as usize, value as usize + 4).done();
        let file = measured(&bytes).unwrap();
        assert_eq!(file.alignment, u64::from(value));
        assert!(file.tensors.iter().all(|tensor| tensor.offset.is_multiple_of(file.alignment)));
        assert_eq!(file.tensors[1].data(&bytes).as_deref(), Some(&[0xab; 4][..]));
    }
}

/// A file with the keys of the packed layout and one tensor.
fn packed(layout: Option<&str>, version: Option<u32>, ty: u32, ne: &[u64]) -> Vec<u8> {
    let entries = 1 + u64::from(layout.is_some()) + u64::from(version.is_some());
    let mut raw = Raw::v3(1, entries);
    raw.key("general.alignment", U32).u32(4096);
    if let Some(layout) = layout {
        raw.key("alight.layout", STR).string(layout);
    }
    if let Some(version) = version {
        raw.key("alight.layout.version", U32).u32(version);
    }
    raw.tensor("blk.7", ne, ty, 0).data(4096, 16 * 256 * 4).done()
}

#[test]
fn packed_tensors() {
    let tiles = |ty: u32, ne: &[u64]| packed(Some("tiles16"), Some(1), ty, ne);
    let id = PACKED_BASE | 2;
    let aligned = |alignment: u32| {
        let mut raw = Raw::v3(1, 3);
        raw.key("general.alignment", U32).u32(alignment);
        raw.key("alight.layout", STR).string("tiles16").key("alight.layout.version", U32).u32(1);
        raw.tensor("t", &[32, 16], id, 0).data(alignment as usize, 16 * 18).done()
    };
    let typed = |layout: u32, version: u32| {
        let mut raw = Raw::v3(0, 2);
        raw.key("alight.layout", layout).u64(0).key("alight.layout.version", version).u64(0).done()
    };
    table! {
        "no layout", packed(None, None, id, &[32, 16]), E::PackedWithoutLayout { .. }, ["\"blk.7\"", "alight.layout", "missing"];
        "a version alone", packed(None, Some(1), id, &[32, 16]), E::PackedWithoutLayout { .. }, ["alight.layout"];
        "no version", packed(Some("tiles16"), None, id, &[32, 16]), E::MissingKey { .. }, ["alight.layout.version"];
        "unknown layout", packed(Some("tiles32\u{1b}"), Some(1), id, &[32, 16]), E::UnknownLayout { .. }, ["tiles32\\u{1b}", "tiles16", "pack the original"];
        "no layout's name", packed(Some(""), Some(1), 0, &[32]), E::UnknownLayout { .. }, ["\"\""];
        "unknown layout, nothing packed", packed(Some("x"), Some(1), 0, &[32, 16]), E::UnknownLayout { .. }, [];
        "version 0", packed(Some("tiles16"), Some(0), id, &[32, 16]), E::OutOfRange { found: 0, .. }, ["alight.layout.version"];
        "version 4", packed(Some("tiles16"), Some(4), id, &[32, 16]), E::NewerLayout { found: 4, known: 3 }, ["4", "newer alight", "update"];
        "planes in version 2", packed(Some("tiles16"), Some(2), PLANES_BASE | 8, &[32, 16]), E::PackedWithoutLayout { .. }, [];
        "planes of two matrices", packed(Some("tiles16"), Some(3), PLANES_BASE | 8, &[32, 16, 2]), E::TensorType { reason: TypeError::NotPackable { .. }, .. }, [];
        "planes of Q4_0", packed(Some("tiles16"), Some(3), PLANES_BASE | 2, &[32, 16]), E::TensorType { reason: TypeError::NotPackable { .. }, .. }, [];
        "newer and unknown", packed(Some("x"), Some(u32::MAX), 77, &[32, 16]), E::NewerLayout { .. }, ["4294967295"];
        "layout is a number", typed(U64, U64), E::OutOfRange { .. }, [];
        "version is text", typed(STR, STR), E::WrongType { found: ValueType::Str, .. }, ["alight.layout.version", "integer"];
        "a vector", tiles(id, &[32]), E::PackedRows { found: 1, tile: 16, .. }, ["\"blk.7\"", "1 rows", "16"];
        "15 rows", tiles(id, &[32, 15]), E::PackedRows { found: 15, .. }, ["15"];
        "17 rows", tiles(id, &[32, 17]), E::PackedRows { found: 17, .. }, [];
        "8 rows twice", tiles(id, &[32, 8, 2]), E::PackedRows { found: 8, .. }, [];
        "partial block", tiles(id, &[33, 16]), E::PartialBlock { found: 33, .. }, ["Q4_0"];
        "past the end", tiles(id, &[32, 16 << 20]), E::PastEnd { .. }, ["\"blk.7\""];
        "alignment 32", aligned(32), E::PackedMisaligned { alignment: 4096, .. }, ["\"t\"", "4096"];
        "alignment 2048", aligned(2048), E::PackedMisaligned { found: 2048, .. }, ["2048"];
        "removed type", tiles(PACKED_BASE | 4, &[32, 16]), E::TensorType { reason: TypeError::Unknown { .. }, .. }, [];
        "base of another", tiles(id + 0x2_0000, &[32, 16]), E::TensorType { reason: TypeError::Unknown { .. }, .. }, [];
    }
    for ty in GgmlType::ALL {
        let bytes = tiles(PACKED_BASE | ty.id(), &[ty.block_len(), 16]);
        match packed_id(*ty, Packing::Tiles) {
            Some(id) => {
                let file = measured(&bytes).unwrap();
                let tensor = &file.tensors[0];
                assert!(file.packed && tensor.packed == Some(Packing::Tiles));
                assert_eq!((tensor.ty, tensor.type_id()), (*ty, id));
                assert_eq!(tensor.nbytes, 16 * ty.block_bytes(), "as many bytes as the canonical");
            }
            None => {
                table! { "no packed form", bytes,
                E::TensorType { reason: TypeError::NotPackable { .. }, .. }, ["\"blk.7\"", ty.name()]; }
            }
        }
    }
    let planes = packed(Some("tiles16"), Some(3), PLANES_BASE | 8, &[32, 16]);
    let tensor = measured(&planes).unwrap().tensors[0];
    assert_eq!((tensor.packed, tensor.type_id()), (Some(Packing::Planes), PLANES_BASE | 8));
    // Canonical tensors beside packed ones keep their id.
    let bytes = tiles(0, &[3]);
    let file = measured(&bytes).unwrap();
    assert!(file.packed && file.tensors[0].packed.is_none() && file.tensors[0].type_id() == 0);
    assert!(!measured(&small()).unwrap().packed);
    assert!(measured(&aligned(4096)).unwrap().tensors[0].packed.is_some());
    assert!(measured(&aligned(65536)).unwrap().tensors[0].packed.is_some());
    for len in 0..bytes.len() - 16 * 256 * 4 {
        measured(&bytes[..len]).expect_err("a cut file is not whole");
    }
}

/// What a file says of tensors whose experts lie side by side.
struct SideBySide<'a> {
    version: u32,
    alignment: u32,
    runs: &'a [u32],
    /// Shape, type and offset of each.
    tensors: &'a [(&'a [u64], u32, u64)],
    data: usize,
}

const Q4_0X16: u32 = PACKED_BASE | 2;
/// A part of an expert: 16 rows of 32 weights.
const PART: usize = 16 * 18;
/// Two parts, each of which begins at a multiple of 128.
const EXPERT: usize = 384 + PART;
const TWO: &[(&[u64], u32, u64)] = &[(&[32, 16, 3], Q4_0X16, 0), (&[32, 16, 3], Q4_0X16, 384)];

impl Default for SideBySide<'_> {
    fn default() -> Self {
        let data = 2 * 4096 + EXPERT;
        SideBySide { version: 2, alignment: 4096, runs: &[0, 2], tensors: TWO, data }
    }
}

impl SideBySide<'_> {
    fn file(&self) -> Vec<u8> {
        let mut raw = Raw::v3(self.tensors.len() as u64, 4);
        raw.key("general.alignment", U32).u32(self.alignment);
        raw.key("alight.layout", STR).string("tiles16");
        raw.key("alight.layout.version", U32).u32(self.version);
        raw.array("alight.layout.experts", U32, self.runs.len() as u64);
        for number in self.runs {
            raw.u32(*number);
        }
        for (index, (ne, ty, offset)) in self.tensors.iter().enumerate() {
            raw.tensor(format!("blk.{index}"), ne, *ty, *offset);
        }
        raw.data(self.alignment as usize, self.data).done()
    }
}

#[test]
fn experts_side_by_side() {
    let good = SideBySide::default().file();
    let file = measured(&good).unwrap();
    assert_eq!(file.data_end, good.len() as u64);
    for (tensor, first) in file.tensors.iter().zip([0, 384]) {
        let start = file.data_start + first;
        let experts: Vec<_> = (0..3).map(|e| start + e * 4096..start + e * 4096 + 288).collect();
        assert_eq!(tensor.pieces().collect::<Vec<_>>(), experts);
        assert_eq!((0..3).map(|e| tensor.expert(e)).collect::<Vec<_>>(), experts);
        assert_eq!((tensor.stride, tensor.nbytes), (Some(4096), 3 * 288));
        assert_eq!(tensor.range(), start as usize..start as usize + 2 * 4096 + 288);
        assert_eq!(*tensor.data(&good).unwrap(), [0xab; 3 * PART]);
    }
    // Others before and after, two runs, and larger alignments.
    let shape: &[u64] = &[32, 16, 3];
    let many = [
        (&[3_u64][..], 0, 0),
        (shape, Q4_0X16, 65536),
        (shape, 2, 65536 + 384),
        (shape, Q4_0X16, 2 * 65536),
        (shape, Q4_0X16, 2 * 65536 + 384),
        (shape, Q4_0X16, 2 * 65536 + 768),
        (&[5], 0, 3 * 65536),
    ];
    let all =
        SideBySide { runs: &[1, 2, 3, 3], tensors: &many, alignment: 65536, ..Default::default() };
    let all = SideBySide { data: 3 * 65536 + 20, ..all }.file();
    let file = measured(&all).unwrap();
    let strides: Vec<_> = file.tensors.iter().map(|tensor| tensor.stride.is_some()).collect();
    assert_eq!(strides, [false, true, true, true, true, true, false]);
    assert_eq!(file.data_end, all.len() as u64);

    let with = |runs: &[u32]| SideBySide { runs, ..Default::default() }.file();
    let of = |tensors: &[(&[u64], u32, u64)]| SideBySide { tensors, ..Default::default() }.file();
    let pair = |shape: &[u64]| of(&[(&[32, 16, 3], Q4_0X16, 0), (shape, Q4_0X16, 384)]);
    let both = |shape: &[u64], second| of(&[(shape, Q4_0X16, 0), (shape, Q4_0X16, second)]);
    let aligned = |alignment| SideBySide { alignment, ..Default::default() }.file();
    let rows = [(&[32_u64, 3, 3][..], 2, 0), (&[32, 3, 3], 2, 128)];
    let mut number = Raw::v3(0, 3);
    number.key("alight.layout", STR).string("tiles16").key("alight.layout.version", U32).u32(2);
    let number = number.key("alight.layout.experts", U32).u32(0).done();
    let mut wide = Raw::v3(0, 3);
    wide.key("alight.layout", STR).string("tiles16").key("alight.layout.version", U32).u32(2);
    let wide = wide.array("alight.layout.experts", U64, 2).u64(0).u64(2).done();
    table! {
        "no list", number, E::WrongType { .. }, ["alight.layout.experts", "array"];
        "another element type", wide, E::WrongElementType { .. }, ["alight.layout.experts", "u32"];
        "no pair", with(&[0]), E::ExpertsPairs { found: 1 }, ["alight.layout.experts", "pairs"];
        "a run of one", with(&[0, 1]), E::ExpertsRun { count: 1, .. }, ["at least two"];
        "a run of none", with(&[0, 0]), E::ExpertsRun { count: 0, .. }, [];
        "beyond the tensors", with(&[1, 2]), E::ExpertsRun { first: 1, .. }, ["2 tensors from 1 on"];
        "far beyond", with(&[u32::MAX, u32::MAX]), E::ExpertsRun { .. }, [];
        "twice", with(&[0, 2, 0, 2]), E::ExpertsRun { .. }, ["after"];
        "overlapping", with(&[0, 2, 1, 2]), E::ExpertsRun { first: 1, .. }, [];
        "not all have them", with(&[]), E::Misaligned { found: 384, .. }, ["384"];
        "of another number", pair(&[32, 16, 2]), E::ExpertsShape { expected: 3, .. }, ["\"blk.1\"", "[32, 16, 2]", "3"];
        "a matrix", pair(&[32, 16]), E::ExpertsShape { .. }, [];
        "four dimensions", pair(&[32, 16, 3, 2]), E::ExpertsShape { .. }, [];
        "one expert", both(&[32, 16, 1], 384), E::ExpertsShape { .. }, ["at least two experts"];
        "too close", both(&[32, 16, 3], 256), E::Overlap { found: 256, expected: 384, .. }, ["384"];
        "at the same place", both(&[32, 16, 3], 0), E::Overlap { found: 0, .. }, [];
        "too far", both(&[32, 16, 3], 512), E::Gap { found: 512, expected: 384, .. }, ["384"];
        "one after the other", both(&[32, 16, 3], 4096), E::Gap { .. }, [];
        "far away", both(&[32, 16, 3], u64::MAX), E::Gap { .. }, [];
        "more experts than the file has", both(&[32, 16, 4], 384), E::PastEnd { .. }, ["\"blk.0\""];
        "more than can be counted", both(&[32, 16, 1 << 52], 384), E::ShapeOverflow { .. }, ["\"blk.0\""];
        "more rows than can be counted", both(&[32, 1 << 57, 2], 384), E::ShapeOverflow { .. }, [];
        "version 1", SideBySide { version: 1, ..Default::default() }.file(), E::Misaligned { found: 384, .. }, [];
        "version 4", SideBySide { version: 4, ..Default::default() }.file(), E::NewerLayout { found: 4, known: 3 }, ["update"];
        "not on a page", aligned(64), E::PackedMisaligned { .. }, ["4096"];
        "rows, not on a page", SideBySide { tensors: &rows, alignment: 64, ..Default::default() }.file(), E::PackedMisaligned { .. }, [];
        "the first is not where it should be", of(&[(&[32, 16, 3], Q4_0X16, 4096), (&[32, 16, 3], Q4_0X16, 4480)]), E::Gap { found: 4096, expected: 0, .. }, [];
    }
    for len in file_start(&good)..good.len() {
        fails("cut short", &good[..len], |e| matches!(e, E::PastEnd { .. }), &["cut short"]);
    }
}

/// Where the data begins.
fn file_start(bytes: &[u8]) -> usize {
    parse(bytes).unwrap().data_start as usize
}

#[test]
fn class_7_truncation_at_every_byte_and_junk_behind() {
    let bytes = small();
    let full = parse(&bytes).unwrap();
    let header = full.header_len as usize;
    for len in 0..bytes.len() {
        let error = measured(&bytes[..len]).expect_err("a cut file is not whole");
        let expected = match len {
            0..24 => matches!(error, E::Truncated { place: GgufField::Header, .. }),
            _ if len < header => matches!(error, E::Truncated { .. } | E::Count { .. }),
            _ => matches!(error, E::PastEnd { .. }),
        };
        assert!(expected, "{len} of {} bytes: {error:?}", bytes.len());
    }
    for junk in [1, 31, 32, 5000] {
        let mut longer = bytes.clone();
        longer.resize(bytes.len() + junk, 0xee);
        let file = measured(&longer).unwrap();
        assert_eq!(file.data_end, bytes.len() as u64, "junk is not data");
        assert_eq!(file.tensors, full.tensors);
    }
}

#[test]
fn a_header_is_not_searched_beyond_its_limit() {
    // An array of empty strings as long as the header may be, in a file that is longer. Most of
    // it is zero pages that were never touched before.
    let mut bytes = vec![0; MAX_HEADER + 4096];
    let count = MAX_HEADER as u64 / 8;
    let start = Raw::v3(0, 1).array("key", STR, count).done();
    bytes[..start.len()].copy_from_slice(&start);
    table! { "endless header", bytes, E::HeaderTooLarge { .. }, ["\"key\"", "268435456"]; }
}

#[test]
fn every_version_is_read() {
    for version in [1, 2, 3] {
        let mut raw = Raw::new(version, 1, 3);
        raw.key("s", STR).string("text");
        raw.array("a", STR, 2).string("x").string("yz");
        raw.array("n", I32, 2).u32(1).u32(u32::MAX);
        raw.tensor("t", &[2, 3], 1, 0).data(32, 12);
        let bytes = raw.done();
        let file = measured(&bytes).unwrap();
        assert_eq!(file.version, version);
        assert_eq!(file.get_str("s"), Ok(Some("text")));
        let strings: Vec<_> = file.get_strings("a").unwrap().unwrap().collect();
        assert_eq!(strings, [&b"x"[..], b"yz"]);
        let numbers = file.get_array("n").unwrap().unwrap();
        assert_eq!(numbers.iter_i32().unwrap().collect::<Vec<_>>(), [1, -1]);
        assert_eq!(numbers.iter_int().unwrap().collect::<Vec<_>>(), [1, -1]);
        let tensor = file.require_tensor("t").unwrap();
        assert_eq!((tensor.ne, tensor.nbytes, tensor.row_bytes()), ([2, 3, 1, 1], 12, 4));
    }
}

#[test]
fn values_convert_where_they_fit_and_nowhere_else() {
    let mut raw = Raw::v3(0, 6);
    raw.key("u8", U8).put(&[200]).key("i32", I32).u32(u32::MAX).key("u64", U64).u64(1 << 40);
    raw.key("f64", 12).u64(2.5_f64.to_bits()).key("flag", BOOL).put(&[1]);
    raw.array("list", U32, 1).u32(5);
    let bytes = raw.done();
    let file = measured(&bytes).unwrap();
    assert_eq!(file.get_u32("u8"), Ok(Some(200)));
    assert_eq!(file.get_i64("i32"), Ok(Some(-1)));
    assert_eq!(file.value::<usize>("u64"), Ok(Some(1 << 40)));
    assert_eq!(file.get_f32("f64"), Ok(Some(2.5)));
    let errors = [
        (file.get_u32("i32").unwrap_err(), "\"i32\" is -1, which is out of range for u32"),
        (file.get_u32("u64").unwrap_err(), "1099511627776"),
        (file.value::<i8>("u8").unwrap_err(), "out of range for i8"),
        (file.get_u32("flag").unwrap_err(), "\"flag\" is of type bool, expected an integer"),
        (file.get_u32("f64").unwrap_err(), "expected an integer"),
        (file.get_f32("u8").unwrap_err(), "expected a float"),
        (file.get_bool("u8").unwrap_err(), "expected bool"),
        (file.get_str("list").unwrap_err(), "of type array, expected str"),
        (file.get_strings("list").unwrap_err(), "an array of u32, expected an array of str"),
        (file.get_array("u8").unwrap_err(), "expected array"),
        (file.require::<u32>("absent").unwrap_err(), "\"absent\" is missing"),
        (file.require_tensor("absent").unwrap_err(), "tensor \"absent\" is missing"),
    ];
    for (error, text) in errors {
        assert!(error.to_string().contains(text), "{error} lacks {text:?}");
    }
}
