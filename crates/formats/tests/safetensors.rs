//! Class 14 of the list of malformed inputs: every lie in a safetensors file or an index has its own
//! error, which names the tensor, what was found and what was expected; and what is in order is read.

use std::borrow::Cow;

use alight_formats::safetensors::{
    Dtype, IndexError as I, JsonError as J, JsonField, MAX_HEADER, SafeTensors,
    SafeTensorsError as E, SafeTensorsShard, SafeTensorsShardName, merge, parse, parse_index,
    whole,
};
use proptest::prelude::*;

use crate::support::memory;
use crate::support::refused::{refused, says, table};

/// Parses and checks that this took little memory for what was read.
fn measured(bytes: &[u8]) -> Result<SafeTensors<'_>, E> {
    memory::within(64 * 1024 + 16 * bytes.len(), || parse(bytes))
}

/// A file with this header, as it is, and so many bytes after it.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0x5a);
    bytes
}

/// A file with this one tensor.
fn one(entry: &str, data: usize) -> Vec<u8> {
    file(&format!(r#"{{"t":{entry}}}"#), data)
}

/// The parse fails as expected, and the message holds all of `words`.
#[track_caller]
fn fails(what: &str, bytes: &[u8], expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, measured(bytes), expected, words);
}

#[test]
fn what_is_in_order_is_read() {
    let header = r#"{"b":{"shape":[2,3],"data_offsets":[1,13],"dtype":"F16"},
        "__metadata__":{"format":"pt","é\n":"\ud83d\ude00"},
        "a\u0041":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]},
        "empty":{"dtype":"F64","shape":[0,7],"data_offsets":[13,13]},"":{"dtype":"U8","shape":[1],"data_offsets":[13,14]}}     "#;
    let bytes = file(header, 14);
    let got = measured(&bytes).unwrap();
    let start = 8 + header.len() as u64;
    assert_eq!((got.data_start, got.data_end), (start, start + 14));
    let tensors: Vec<_> = got
        .tensors
        .iter()
        .map(|t| (t.name.as_ref(), t.dtype, t.shape.as_slice(), t.range.clone(), t.elements()))
        .collect();
    assert_eq!(
        tensors,
        [
            ("aA", Dtype::Bool, &[][..], start..start + 1, 1),
            ("b", Dtype::F16, &[2, 3], start + 1..start + 13, 6),
            ("empty", Dtype::F64, &[0, 7], start + 13..start + 13, 0),
            ("", Dtype::U8, &[1], start + 13..start + 14, 1),
        ]
    );
    for tensor in &got.tensors {
        assert_eq!(got.tensor(&tensor.name), Some(tensor));
        assert_eq!(tensor.data(&bytes).unwrap().len() as u64, tensor.bytes());
    }
    assert_eq!(got.tensor("c"), None);
    assert_eq!(got.get("format"), Some("pt"));
    assert_eq!(got.get("é\n"), Some("😀"));
    // Nothing is copied that has no escapes.
    assert!(matches!(got.tensor("b").unwrap().name, Cow::Borrowed(_)));

    assert!(measured(&file("{}", 0)).unwrap().tensors.is_empty());
    for &dtype in Dtype::ALL {
        let n = dtype.bytes() as usize;
        let bytes = one(&format!(r#"{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,{n}]}}"#), n);
        assert_eq!(measured(&bytes).unwrap().tensors[0].dtype, dtype);
    }
    let names: Vec<_> = Dtype::ALL.iter().map(|d| (d.name(), d.bytes())).collect();
    let expected = "BOOL U8 I8 F8_E4M3 F8_E5M2 U16 I16 F16 BF16 U32 I32 F32 U64 I64 F64";
    assert_eq!(names.iter().map(|n| n.0).collect::<Vec<_>>().join(" "), expected);
    assert_eq!(names.iter().map(|n| n.1).sum::<u64>(), 5 + 8 + 12 + 24);
}

#[test]
fn lies_about_the_header() {
    let long = |n: u64| [&n.to_le_bytes()[..], b"{}"].concat();
    table! {
        "no bytes", [], E::TooShort { found: 0 }, ["0 bytes"];
        "seven bytes", [2, 0, 0, 0, 0, 0, 0], E::TooShort { found: 7 }, ["7 bytes", "8"];
        "N = 0", long(0), E::NoHeader, ["0 bytes"];
        "N = 0, nothing else", [0; 8], E::NoHeader, [];
        "N one too many", long(3), E::HeaderPastEnd { found: 3, available: 2 }, ["3 bytes", "2 follow"];
        "N at the limit", long(MAX_HEADER), E::HeaderPastEnd { .. }, ["100000000"];
        "N above the limit", long(MAX_HEADER + 1), E::HeaderTooLong { .. }, ["100000001"];
        "N = 2^64 - 1", long(u64::MAX), E::HeaderTooLong { found: u64::MAX }, ["at most"];
        "N = 2^64 - 8", long(u64::MAX - 7), E::HeaderTooLong { .. }, [];
        "an array", file("[]", 0), E::NotAnObject { found: b'[' }, ["\"[\"", "\"{\""];
        "padded before", file(" {}", 0), E::NotAnObject { found: b' ' }, [];
        "a control character", file("\x1b{}", 0), E::NotAnObject { .. }, ["\\u{1b}"];
        "zeros after", file("{}\0\0", 0), E::Json(J::Syntax { line: 1, column: 3, .. }), ["column 3"];
        "text after", file("{} {}", 0), E::Json(J::Syntax { .. }), ["trailing"];
        "cut short", file("{", 0), E::Json(J::Syntax { .. }), ["EOF"];
        "a comma too many", file(r#"{"__metadata__":{},}"#, 0), E::Json(J::Syntax { .. }), ["comma"];
        "a lone surrogate", file(r#"{"\ud800":1}"#, 0), E::Json(J::Syntax { .. }), [];
        "a raw newline in a name", file("{\"a\nb\":1}", 0), E::Json(J::Syntax { .. }), [];
    }
    let mut bytes = file(r#"{"aa":1}"#, 0);
    bytes[11] = 0xff;
    fails("not UTF-8", &bytes, |e| *e == E::Json(J::NotUtf8 { at: 3 }), &["byte 3"]);
}

#[test]
fn lies_in_the_json() {
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let good = r#"{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
    table! {
        "a number as entry", one("1", 0), E::Json(J::Kind { place: JsonField::Tensor(_), .. }), ["\"t\"", "a number", "an object"];
        "null", one("null", 0), E::Json(J::Kind { found: "null", .. }), [];
        "a list", one("[]", 0), E::Json(J::Kind { found: "an array", .. }), [];
        "text", one(r#""x""#, 0), E::Json(J::Kind { found: "a string", .. }), [];
        "deep in place of an entry", one(&deep("[", "]"), 0), E::Json(J::Kind { .. }), ["an array"];
        "deep objects", one(&deep("{\"a\":", "1}"), 0), E::Json(J::UnknownField { .. }), ["\"a\""];
        "deep shape", one(&format!(r#"{{"shape":{}}}"#, deep("[", "]")), 0), E::Json(J::Kind { .. }), ["\"shape\""];
        "deep metadata", file(&format!(r#"{{"__metadata__":{}}}"#, deep("{\"a\":", "1}")), 0), E::Json(J::Kind { .. }), ["a string"];
        "an unknown field", one(r#"{"dtype":"U8","strides":[1]}"#, 0), E::Json(J::UnknownField { .. }), ["\"t\"", "\"strides\""];
        "no dtype", one(r#"{"shape":[],"data_offsets":[0,1]}"#, 1), E::Json(J::MissingField { field: "dtype", .. }), ["\"dtype\" is missing"];
        "no shape", one(r#"{"dtype":"U8","data_offsets":[0,1]}"#, 1), E::Json(J::MissingField { field: "shape", .. }), [];
        "no offsets", one(r#"{"dtype":"U8","shape":[]}"#, 1), E::Json(J::MissingField { field: "data_offsets", .. }), [];
        "nothing", one("{}", 0), E::Json(J::MissingField { .. }), [];
        "dtype twice", one(r#"{"dtype":"U8","dtype":"U8","shape":[],"data_offsets":[0,1]}"#, 1), E::Json(J::DuplicateKey { .. }), ["\"dtype\" is there twice"];
        "shape twice", one(r#"{"dtype":"U8","shape":[],"shape":[],"data_offsets":[0,1]}"#, 1), E::Json(J::DuplicateKey { .. }), [];
        "offsets twice", one(r#"{"data_offsets":[0,1],"dtype":"U8","shape":[],"data_offsets":[0,1]}"#, 1), E::Json(J::DuplicateKey { .. }), [];
        "a tensor twice", file(&format!(r#"{{"t":{good},"t":{}}}"#, good.replace("[0,4]", "[4,8]")), 8), E::DuplicateTensor { .. }, ["\"t\"", "twice"];
        "the same name by an escape", file(&format!(r#"{{"t":{good},"\u0074":{}}}"#, good.replace("[0,4]", "[4,8]")), 8), E::DuplicateTensor { .. }, [];
        "metadata twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), E::Json(J::DuplicateKey { .. }), ["__metadata__"];
        "a key of the metadata twice", file(r#"{"__metadata__":{"a":"","b":"","a":""}}"#, 0), E::Json(J::DuplicateKey { .. }), ["\"a\""];
        "metadata of numbers", file(r#"{"__metadata__":{"a":1}}"#, 0), E::Json(J::Kind { place: JsonField::Value { .. }, .. }), ["\"a\"", "a string"];
        "metadata null", file(r#"{"__metadata__":null}"#, 0), E::Json(J::Kind { .. }), ["null"];
        "too much metadata", file(&format!(r#"{{"__metadata__":{{{}"a":""}}}}"#, r#""":"","#.repeat(1 << 16)), 0), E::Json(J::TooMany { .. }), ["65536"];
        "an unknown dtype", one(r#"{"dtype":"F4","shape":[2],"data_offsets":[0,1]}"#, 1), E::UnknownDtype { .. }, ["\"t\"", "\"F4\"", "BF16", "F8_E5M2"];
        "dtype in small letters", one(r#"{"dtype":"f32","shape":[1],"data_offsets":[0,4]}"#, 4), E::UnknownDtype { .. }, ["\"f32\""];
        "a long hostile dtype", one(&format!(r#"{{"dtype":"\u001b{}"}}"#, "x".repeat(9999)), 0), E::UnknownDtype { .. }, ["\\u{1b}xxx", "bytes)"];
        "a number as dtype", one(r#"{"dtype":1}"#, 0), E::Json(J::Kind { .. }), ["\"dtype\"", "a string"];
    }
}

#[test]
fn lies_in_the_numbers() {
    let shaped =
        |shape: &str| one(&format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":[0,4]}}"#), 4);
    let placed =
        |at: &str| one(&format!(r#"{{"dtype":"F32","shape":[1],"data_offsets":{at}}}"#), 4);
    table! {
        "a negative dimension", shaped("[-1]"), E::Json(J::NotNatural { .. }), ["\"shape\"", "-1"];
        "a fraction", shaped("[1.5]"), E::Json(J::NotNatural { .. }), ["1.5"];
        "a whole number as a fraction", shaped("[1.0]"), E::Json(J::NotNatural { .. }), ["1.0"];
        "a string", shaped(r#"["1"]"#), E::Json(J::Kind { .. }), ["a string", "whole number"];
        "a dimension of 2^64", shaped("[18446744073709551616]"), E::Json(J::NotNatural { .. }), ["1.8446744073709552e19"];
        "no list", shaped("1"), E::Json(J::Kind { .. }), ["an array"];
        "65 dimensions", shaped(&format!("[{}1]", "1,".repeat(64))), E::Json(J::Length { .. }), ["at most 64"];
        "dimensions without end", shaped(&format!("[{}1]", "1,".repeat(500_000))), E::Json(J::Length { .. }), [];
        "1e400", placed("[0,1e400]"), E::Json(J::Syntax { .. }), ["out of range"];
        "-1", placed("[-1,3]"), E::Json(J::NotNatural { .. }), ["\"data_offsets\"", "-1"];
        "-0", placed("[-0,4]"), E::Json(J::NotNatural { .. }), [];
        "one offset", placed("[4]"), E::Json(J::Length { found: 1, .. }), ["expected 2"];
        "no offset", placed("[]"), E::Json(J::Length { found: 0, .. }), [];
        "three offsets", placed("[0,4,4]"), E::Json(J::Length { .. }), ["expected 2"];
        "reversed", placed("[4,0]"), E::Reversed { begin: 4, end: 0, .. }, ["ends at 0", "begins at 4"];
        "too long for the shape", placed("[0,5]"), E::Size { found: 5, expected: 4, .. }, ["5 bytes", "4", "[1]", "F32"];
        "too short for the shape", placed("[0,3]"), E::Size { found: 3, .. }, [];
        "at the end of the numbers", placed("[18446744073709551611,18446744073709551615]"), E::PastEnd { .. }, ["18446744073709551615"];
        "a hole before", placed("[1,5]"), E::PastEnd { end: 5, available: 4, .. }, ["5", "4 bytes"];
        "pairs overflow", shaped("[4294967296,4294967296]"), E::ShapeOverflow { .. }, ["64 bits", "4294967296"];
        "bytes overflow", shaped("[4611686018427387904]"), E::ShapeOverflow { .. }, ["F32"];
        "overflow, then 0", shaped("[4294967296,4294967296,0]"), E::ShapeOverflow { .. }, [];
        "0 and more bytes", shaped("[0]"), E::Size { expected: 0, .. }, [];
    }
}

#[test]
fn lies_about_the_places() {
    let two = |a: &str, b: &str, data: usize| {
        let entry = |at: &str| format!(r#"{{"dtype":"U16","shape":[2],"data_offsets":{at}}}"#);
        file(&format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b)), data)
    };
    table! {
        "a hole at the beginning", two("[1,5]", "[5,9]", 9), E::Hole { found: 1, expected: 0, .. }, ["\"a\"", "hole"];
        "a hole between", two("[0,4]", "[5,9]", 9), E::Hole { found: 5, expected: 4, .. }, ["\"b\""];
        "an overlap", two("[0,4]", "[3,7]", 7), E::Overlap { found: 3, expected: 4, .. }, ["\"b\"", "inside"];
        "the same place", two("[0,4]", "[0,4]", 4), E::Overlap { .. }, [];
        "out of order with an overlap", two("[2,6]", "[0,4]", 6), E::Overlap { .. }, ["\"a\""];
        "one byte short", two("[0,4]", "[4,8]", 7), E::PastEnd { end: 8, available: 7, .. }, ["cut short"];
        "one byte more", two("[0,4]", "[4,8]", 9), E::Trailing { found: 9, expected: 8 }, ["9 bytes", "8"];
        "no tensors, but data", file("{}", 1), E::Trailing { found: 1, expected: 0 }, [];
    }
    assert!(measured(&two("[4,8]", "[0,4]", 8)).is_ok(), "out of order in the header only");
    // An empty tensor where another begins is before it, in whatever order they are named; one
    // inside another is not.
    let entry = |n: u64, at: &str| format!(r#"{{"dtype":"U8","shape":[{n}],"data_offsets":{at}}}"#);
    let with = |a: String, b: String| file(&format!(r#"{{"a":{a},"b":{b}}}"#), 2);
    assert!(measured(&with(entry(2, "[0,2]"), entry(0, "[0,0]"))).is_ok());
    assert!(measured(&with(entry(0, "[2,2]"), entry(2, "[0,2]"))).is_ok());
    let inside = with(entry(2, "[0,2]"), entry(0, "[1,1]"));
    fails("an empty one inside", &inside, |e| matches!(e, E::Overlap { .. }), &["\"b\""]);
}

#[test]
fn a_file_cut_anywhere_or_longer_is_an_error() {
    let header =
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"k":"v"}} "#;
    let bytes = file(header, 8);
    assert!(measured(&bytes).is_ok());
    for len in 0..bytes.len() {
        let error = measured(&bytes[..len]).unwrap_err();
        says("cut", &error.to_string(), &[]);
        match len {
            0..8 => assert_eq!(error, E::TooShort { found: len as u64 }),
            _ if len < 8 + header.len() => {
                assert!(matches!(error, E::HeaderPastEnd { .. }), "{len}: {error:?}");
            }
            _ => assert!(matches!(error, E::PastEnd { .. }), "{len}: {error:?}"),
        }
    }
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Err(error) = measured(&flipped) {
            says("flipped", &error.to_string(), &[]);
        }
    }
}

#[test]
fn the_densest_files_take_memory_in_proportion() {
    let empty = |i: u32| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let tensors: Vec<String> = (0..20_000).map(empty).collect();
    let bytes = file(&format!("{{{}}}", tensors.join(",")), 0);
    assert_eq!(measured(&bytes).unwrap().tensors.len(), 20_000);
    let metadata: Vec<String> = (0..60_000).map(|i| format!(r#""{i}":"""#)).collect();
    let bytes = file(&format!(r#"{{"__metadata__":{{{}}}}}"#, metadata.join(",")), 0);
    assert_eq!(measured(&bytes).unwrap().metadata.len(), 60_000);
}

#[test]
fn an_index_names_plain_files_and_nothing_else() {
    let bytes = br#"{"metadata":{"total_size":12,"x":[{}]},"other":[[1]],
        "weight_map":{"b":"m-2.safetensors","a":"m-1.safetensors","c":"m-2.safetensors"}}"#;
    let index = parse_index(bytes).unwrap();
    assert_eq!(index.total_size, Some(12));
    assert_eq!(index.files, ["m-1.safetensors", "m-2.safetensors"]);
    let map: Vec<_> = index.weight_map.iter().map(|(name, file)| (name.as_ref(), *file)).collect();
    assert_eq!(map, [("a", 0), ("b", 1), ("c", 1)]);
    let least = br#"{"weight_map":{"a":"x.safetensors"},"metadata":{"total_size":1.5}}"#;
    assert_eq!(parse_index(least).unwrap().total_size, None);
    assert!(parse_index(b"\xef\xbb\xbf{\"weight_map\":{\"a\":\"x.safetensors\"}}").is_ok());

    for name in [
        "",
        ".safetensors",
        "/etc/passwd",
        "/x.safetensors",
        "../x.safetensors",
        "a/x.safetensors",
        "..\\\\x.safetensors",
        "C:x.safetensors",
        "x.safetensors/",
        "a\\u0000.safetensors",
        "a\\n.safetensors",
        "model.safetensors.index.json",
        "x.bin",
        "x.SAFETENSORS",
    ] {
        let text = format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#);
        let error = parse_index(text.as_bytes()).unwrap_err();
        assert!(matches!(error, I::FileName { .. }), "{name}: {error:?}");
        says(name, &error.to_string(), &["\"a\"", ".safetensors"]);
    }
    let fails = |text: &str, expected: fn(&I) -> bool| {
        let error = parse_index(text.as_bytes()).unwrap_err();
        assert!(expected(&error), "{text}: {error:?}");
        says(text, &error.to_string(), &[]);
    };
    let deep = "[".repeat(100_000);
    fails("", |e| matches!(e, I::Json(J::Syntax { .. })));
    fails("[]", |e| matches!(e, I::Json(J::Kind { .. })));
    fails("{}", |e| matches!(e, I::Json(J::MissingField { field: "weight_map", .. })));
    fails(r#"{"weight_map":{}}"#, |e| *e == I::Empty);
    fails(r#"{"weight_map":[]}"#, |e| matches!(e, I::Json(J::Kind { .. })));
    fails(r#"{"weight_map":{"a":1}}"#, |e| matches!(e, I::Json(J::Kind { .. })));
    fails(r#"{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}"#, |e| {
        matches!(e, I::Json(J::DuplicateKey { .. }))
    });
    fails(r#"{"weight_map":{},"weight_map":{}}"#, |e| matches!(e, I::Json(J::DuplicateKey { .. })));
    fails(&format!(r#"{{"metadata":"{}"}}"#, "\u{7f}x".repeat(9999)), |e| {
        matches!(e, I::Json(J::Syntax { .. }))
    });
    fails(&format!(r#"{{"x":{deep}"#), |e| matches!(e, I::Json(J::Syntax { .. })));
    fails(&format!(r#"{{"weight_map":{deep}"#), |e| matches!(e, I::Json(J::Kind { .. })));
    let many: Vec<String> = (0..=65_535).map(|i| format!(r#""{i}":"{i}.safetensors""#)).collect();
    fails(&format!(r#"{{"weight_map":{{{}}}}}"#, many.join(",")), |e| {
        *e == I::TooManyShards { found: 65_536 }
    });
}

/// A file of tensors of one byte with these names.
fn named(names: &[&str]) -> Vec<u8> {
    let entry = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    file(&format!("{{{}}}", entries.join(",")), names.len())
}

#[test]
fn shards_are_checked_against_each_other_and_the_index() {
    let (one, two) = (named(&["a", "b"]), named(&["c"]));
    let (one, two) = (measured(&one).unwrap(), measured(&two).unwrap());
    let text = |c: &str, more: &str| {
        format!(r#"{{"weight_map":{{"a":"1.safetensors","c":"{c}.safetensors"{more}}}}}"#)
    };
    let b = r#","b":"1.safetensors""#;
    let shards = [
        SafeTensorsShard { name: "2.safetensors", file: &two },
        SafeTensorsShard { name: "1.safetensors", file: &one },
    ];
    let text_of_all = text("2", b);
    let index = parse_index(text_of_all.as_bytes()).unwrap();
    let all = merge(Some(&index), &shards).unwrap();
    let placed: Vec<_> = all.tensors.iter().map(|p| (p.info.name.as_ref(), p.shard)).collect();
    assert_eq!(placed, [("c", 0), ("a", 1), ("b", 1)]);
    assert_eq!(all.get("b").unwrap().shard, 1);
    assert!(all.get("d").is_none());
    assert_eq!(merge(None, &shards).unwrap().tensors.len(), 3);

    let fails = |text: &str, shards: &[SafeTensorsShard<'_, '_>], expected: I| {
        let index = parse_index(text.as_bytes()).unwrap();
        let error = merge(Some(&index), shards).unwrap_err();
        assert_eq!(error, expected, "{text}");
        says(text, &error.to_string(), &[]);
    };
    let tensor = |name: &str| Box::from(name);
    let shard = |n: u8| Box::from(format!("{n}.safetensors"));
    fails(&text("2", b), &shards[1..], I::NotGiven { shard: shard(2) });
    fails(&text("1", b), &shards, I::NotNamed { shard: shard(2) });
    fails(&text("2", ""), &shards, I::Orphan { tensor: tensor("b"), shard: shard(1) });
    let more = format!(r#"{b},"d":"2.safetensors""#);
    fails(&text("2", &more), &shards, I::MissingTensor { tensor: tensor("d"), shard: shard(2) });
    // It is there, but elsewhere.
    let moved = r#"{"weight_map":{"a":"2.safetensors","b":"1.safetensors","c":"2.safetensors"}}"#;
    fails(moved, &shards, I::MissingTensor { tensor: tensor("a"), shard: shard(2) });
    let twice = [shards[1], SafeTensorsShard { name: "2.safetensors", file: &one }];
    let duplicate = I::DuplicateTensor { tensor: tensor("a"), first: shard(1), second: shard(2) };
    fails(&text("2", b), &twice, duplicate.clone());
    assert_eq!(merge(None, &twice).unwrap_err(), duplicate);
}

#[test]
fn files_without_an_index_are_one_model_by_their_names() {
    let name = |i: u32| format!("m-{i:05}-of-00003.safetensors");
    let parsed = SafeTensorsShardName::parse("m-00002-of-00003.safetensors").unwrap();
    assert_eq!((parsed.prefix, parsed.no, parsed.count), ("m", 1, 3));
    assert_eq!(parsed.file_name(1), name(2));
    assert_eq!(SafeTensorsShardName::parse("m-00002-of-00003.gguf"), None);
    assert_eq!(SafeTensorsShardName::parse("m-00004-of-00003.safetensors"), None);
    let (a, b, c) = (name(1), name(2), name(3));
    assert_eq!(whole(&["model.safetensors"]), Ok(()));
    assert_eq!(whole(&[&a, &b, &c]), Ok(()));
    assert_eq!(whole(&[]), Err(I::Empty));
    let missing = whole(&[&a, &c]).unwrap_err();
    assert!(matches!(&missing, I::MissingShard { missing, .. } if **missing == b), "{missing:?}");
    for other in
        ["model.safetensors", "n-00002-of-00003.safetensors", "m-00002-of-00004.safetensors"]
    {
        assert!(matches!(whole(&[&a, other]), Err(I::Unrelated { .. })), "{other}");
    }
    assert!(matches!(whole(&["a.safetensors", "b.safetensors"]), Err(I::Unrelated { .. })));
}

/// What the header is made of, in nearly the right order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"",
        "\"t\"",
        "\"u\"",
        "\"dtype\"",
        "\"shape\"",
        "\"data_offsets\"",
        "\"F32\"",
        "\"U8\"",
        "\"__metadata__\"",
        "0",
        "1",
        "4",
        "8",
        "-1",
        "1e400",
        "null",
        "true",
        " ",
        "\\u0041",
        "\"t\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}",
        "\"u\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,8]}",
    ]);
    prop::collection::vec(piece, 0..40).prop_map(|pieces| format!("{{{}", pieces.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Neither any bytes nor nearly a header make it panic, or take memory out of proportion.
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), header in pieces(), data in 0..20_usize) {
        let _ = measured(&bytes);
        let _ = parse_index(&bytes);
        let _ = parse_index(header.as_bytes());
        let _ = measured(&file(&header, data));
    }

    /// Tensors of any types, shapes and names come back, in whatever order the header has them.
    #[test]
    fn what_is_written_is_read(
        tensors in prop::collection::btree_map(".{0,8}", (0..Dtype::ALL.len(), prop::collection::vec(0..4_u64, 0..5)), 0..12),
        metadata in prop::collection::btree_map(".{0,8}", ".{0,8}", 0..4),
        backwards in any::<bool>(),
    ) {
        let mut at = 0;
        let mut entries = Vec::new();
        let mut expected = Vec::new();
        for (name, (dtype, shape)) in &tensors {
            let dtype = Dtype::ALL[*dtype];
            let end = at + shape.iter().product::<u64>() * dtype.bytes();
            entries.push(format!(
                r#"{}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#,
                serde_json::to_string(name).unwrap()
            ));
            expected.push((name.as_str(), dtype, shape.clone(), at, end));
            at = end;
        }
        entries.push(format!(r#""__metadata__":{}"#, serde_json::to_string(&metadata).unwrap()));
        if backwards {
            entries.reverse();
        }
        let bytes = file(&format!("{{{}}}", entries.join(",")), at as usize);
        let got = measured(&bytes).unwrap();
        let mut found: Vec<_> = got
            .tensors
            .iter()
            .map(|t| (t.name.as_ref(), t.dtype, t.shape.clone(), t.range.start - got.data_start, t.range.end - got.data_start))
            .collect();
        // Among empty tensors at one place, any order is right.
        found.sort_by_key(|t| (t.3, t.4, t.0));
        expected.sort_by_key(|t| (t.3, t.4, t.0));
        prop_assert_eq!(found, expected);
        prop_assert_eq!(got.metadata.len(), metadata.len());
        for (key, value) in &metadata {
            prop_assert_eq!(got.get(key), Some(value.as_str()));
        }
    }
}
