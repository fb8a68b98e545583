//! Class 11 of the list of malformed inputs (and 7, cut files): every lie of a legacy file or of a set
//! of parts has its own error, which names the place, what was found and what was expected.

use alight_formats::Source;
use alight_formats::ggml::parts::{PartsError as P, check_replicas, count, merge};
use alight_formats::ggml::{
    self, Era, Ggml, GgmlError as E, GgmlField, LegacyType, LegacyTypeError, MAX_LAYERS,
    MAX_TENSORS, MAX_TOKEN, MAX_VOCAB, MAX_VOCAB_BYTES, Magic,
};
use proptest::prelude::*;

use crate::legacy::*;
use crate::support::memory::within;
use crate::support::refused::{refused, says, table};

/// Parses and checks that this took little memory: some fixed tables, and so much per byte of the
/// file as its densest content (empty tokens of 4 bytes each, in a vector that grows) needs.
fn parse(bytes: &[u8]) -> Result<Ggml<'_>, E> {
    within(256 * 1024 + 20 * bytes.len(), || ggml::parse(bytes))
}

/// The file is refused with this error, and the message holds all of `words`.
#[track_caller]
fn fails(what: &str, bytes: &[u8], expected: impl Fn(&E) -> bool, words: &[&str]) {
    refused(what, parse(bytes), expected, words);
}

/// A file of `ggjt` version 1 after a change.
fn changed(change: impl FnOnce(&mut File)) -> Vec<u8> {
    let mut file = File::model(b"tjgg", Some(1), 1);
    change(&mut file);
    file.bytes()
}

/// The same, the change being one of the first tensor.
fn tensor(change: impl FnOnce(&mut Tensor)) -> Vec<u8> {
    changed(|file| change(&mut file.tensors[0]))
}

#[test]
fn every_kind_of_file_is_read_and_the_rest_refused_by_name() {
    for (magic, version) in KINDS {
        let bytes = File::model(magic, version, 1).bytes();
        let file = parse(&bytes).unwrap();
        assert_eq!((file.version, file.tensors.len()), (version, 12));
        assert!(merge(&[file]).is_ok());
    }
    let with = |magic: &[u8; 4]| [magic, &[1, 0, 0, 0][..], &[0; 64]].concat();
    table! {
        "LoRA", with(b"algg"), E::Lora, ["ggla", "base model"];
        "session", with(b"nsgg"), E::Session, ["ggsn"];
        "LoRA, magic alone", *b"algg", E::Lora, ["ggla"];
        "big-endian", with(b"ggml"), E::BigEndian { magic: "ggml" }, ["big-endian ggml"];
        "big-endian", with(b"ggmf"), E::BigEndian { magic: "ggmf" }, ["big-endian ggmf"];
        "big-endian", with(b"ggjt"), E::BigEndian { magic: "ggjt" }, ["big-endian ggjt"];
        "big-endian", with(b"ggla"), E::BigEndian { magic: "ggla" }, ["big-endian ggla"];
        "big-endian", with(b"ggsn"), E::BigEndian { magic: "ggsn" }, ["big-endian ggsn"];
        "GGUF", with(b"GGUF"), E::BadMagic { found } if found == b"GGUF", ["\"GGUF\"", "\"tjgg\""];
        "zeros", [0; 64], E::BadMagic { .. }, ["\\0"];
    }

    for version in [0, 2, 3, 4, 1 << 16, 1 << 24, 1 << 31, u32::MAX] {
        for (magic, name, known) in [(b"fmgg", Magic::Ggmf, 1), (b"tjgg", Magic::Ggjt, 3)] {
            if (1..=known).contains(&version) {
                continue;
            }
            let bytes = File::model(magic, Some(version), 1).bytes();
            let expected = if known == 1 { "expected 1" } else { "1, 2 or 3" };
            let words = [&version.to_string(), expected, &name.to_string()];
            let error = |error: &E| matches!(error, E::Version { found, .. } if *found == version);
            fails("version", &bytes, error, &words);
        }
    }
}

#[test]
fn numbers_of_the_header_have_limits() {
    let names = ["n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype"];
    for (index, name) in names.into_iter().enumerate() {
        for bad in [-1, i32::MIN, -64, 0] {
            if index == 6 && bad == 0 {
                continue;
            }
            let bytes = changed(|file| file.hparams[index] = bad);
            let expected = |error: &E| matches!(error, E::Hparam { what, found, .. } if *what == name && *found == bad);
            fails(name, &bytes, expected, &["header", name, &bad.to_string()]);
        }
    }
    let with = |index: usize, number| changed(|file| file.hparams[index] = number);
    table! {
        "huge n_vocab", with(0, i32::MAX), E::Hparam { what: "n_vocab", found: i32::MAX, .. }, ["2147483647"];
        "n_vocab just too large", with(0, MAX_VOCAB + 1), E::Hparam { what: "n_vocab", .. }, ["1048576"];
        "n_vocab more than the file holds", with(0, MAX_VOCAB), E::TokenCount { found: 1_048_576, .. },
            ["1048576", "at most"];
        "n_layer", with(4, MAX_LAYERS + 1), E::Hparam { what: "n_layer", .. }, ["4096"];
        "n_embd not heads", with(1, 63), E::Heads { n_head: 2, n_embd: 63 }, ["63", "2"];
        "n_head too large", with(3, 128), E::Heads { n_head: 128, n_embd: 64 }, ["128"];
        "n_rot more than a head", with(5, 33), E::Hparam { what: "n_rot", found: 33, max: 32, .. }, ["1 to 32"];
    }
    assert!(parse(&with(6, i32::MAX)).unwrap().hparams.ftype_name().is_none());
    assert_eq!(parse(&with(6, 4)).unwrap().hparams.ftype_name(), Some("Q4_1_SOME_F16"));
    // The sum that no program may make: 8 n_embd in 32 bits, and a multiple beyond.
    let mut file = File::new(b"tjgg", Some(3));
    (file.hparams[1], file.hparams[2]) = (i32::MAX - 1, i32::MAX);
    assert_eq!(parse(&file.bytes()).unwrap().hparams.formula_n_ff(), 3 * (i32::MAX as u64));
}

#[test]
fn tokens_end_inside_the_file() {
    let mut file = File::new(b"lmgg", None);
    let with_length = |file: &File, length: u32| {
        let mut bytes = file.bytes();
        bytes[32..36].copy_from_slice(&length.to_le_bytes());
        bytes
    };
    for length in [1 << 31, u32::MAX, 1000] {
        let expected = |error: &E| {
            matches!(error, E::Truncated { place: GgmlField::Token(0), what: "text", at: 36, needed, .. }
                if *needed == u64::from(length))
        };
        fails("token", &with_length(&file, length), expected, &["token 0", &length.to_string()]);
    }
    // A vocabulary of empty tokens, and a header that promises one or two more.
    file.tokens = vec![(Vec::new(), 0.0); 5];
    let scored = File { magic: *b"fmgg", version: Some(1), scored: true, ..file.clone() };
    let two = |file: &File| File { hparams: [7, 64, 64, 2, 1, 32, 0], ..file.clone() }.bytes();
    table! {
        "one more", file.bytes(), E::Truncated { place: GgmlField::Token(5), what: "length", .. }, ["token 5"];
        "one more, scored", scored.bytes(), E::Truncated { place: GgmlField::Token(5), .. }, ["token 5"];
        "two more", two(&file), E::TokenCount { found: 7, limit: 5 }, ["7", "at most 5"];
        "two more, scored", two(&scored), E::TokenCount { found: 7, limit: 5 }, ["7", "at most 5"];
    }
    let bad = changed(|file| file.tokens[5].0 = b"\xffx".to_vec());
    let error = parse(&bad).unwrap().vocabulary.to_gguf().unwrap_err();
    assert!(matches!(error, E::TokenText { token: 5, .. }));
}

#[test]
fn tokens_have_a_length_that_tokens_have() {
    let of = |len: u32| changed(|file| file.tokens[1].0 = vec![b'a'; len as usize]);
    assert!(parse(&of(MAX_TOKEN)).is_ok());
    table! {
        "a long token", of(MAX_TOKEN + 1), E::TokenLength { place: GgmlField::Token(1), found: 65_537, .. }, ["65537", "65536"];
    }
}

/// A file without an end, in which every token is as long as one may be.
struct LongTokens {
    begin: Vec<u8>,
    rest: Vec<u8>,
}

impl<'a> Source<'a> for &'a LongTokens {
    fn len(&self) -> u64 {
        1 << 40
    }

    fn get(&self, range: std::ops::Range<u64>) -> Option<&'a [u8]> {
        let len = (range.end - range.start) as usize;
        match range.start {
            0 => self.begin.get(..len),
            at => self.rest.get(at as usize % 4..)?.get(..len),
        }
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        self.get(at..at + to.len() as u64).map(|found| to.copy_from_slice(found)).is_some()
    }
}

#[test]
fn a_vocabulary_has_a_length_that_vocabularies_have() {
    // The numbers of the header are a multiple of 4 bytes.
    let rest = MAX_TOKEN.to_le_bytes().repeat(1 << 19);
    let mut file = File::new(b"tjgg", Some(3));
    (file.hparams[0], file.tokens) = (1 << 13, Vec::new());
    let begin = [&file.bytes()[..36], &rest].concat();
    let error = ggml::parse(&LongTokens { begin, rest }).unwrap_err();
    let count = (MAX_VOCAB_BYTES / (8 + u64::from(MAX_TOKEN))) as u32;
    let expected = E::VocabularyLength { place: GgmlField::Token(count), limit: MAX_VOCAB_BYTES };
    assert_eq!(error, expected);
}

#[test]
fn the_token_that_gpt4all_leaves_out() {
    for (magic, version) in KINDS {
        let mut file = File::model(magic, version, 1);
        file.tokens.pop();
        let bytes = file.bytes();
        let parsed = parse(&bytes).unwrap();
        assert!(parsed.vocabulary.lacks_padding() && parsed.vocabulary.tokens.len() == 5);
        let tokens = parsed.vocabulary.to_gguf().unwrap();
        assert_eq!((tokens.len(), &*tokens[5].text), (6, "<pad>"));
        assert!(merge(&[parsed]).is_ok());
        // Two are too many; and another tensor is no sign of it.
        file.tokens.pop();
        assert!(parse(&file.bytes()).is_err());
        file.tokens.push((b"x".to_vec(), 0.0));
        file.tensors.swap(0, 1);
        assert!(parse(&file.bytes()).is_err());
    }
}

#[test]
fn descriptions_of_tensors() {
    let dims = |dims| tensor(|tensor| tensor.dims = dims);
    let len = |len| tensor(|tensor| tensor.name_len = len);
    let ne = |index: usize, n| tensor(|tensor| tensor.ne[index] = n);
    let named = |name: &[u8]| {
        tensor(|tensor| {
            tensor.name = name.into();
            tensor.name_len = name.len() as i32;
        })
    };
    let ty = |ty| tensor(|tensor| tensor.ty = ty);
    table! {
        "dims", dims(0), E::Dimensions { place: GgmlField::TensorNumber(0), found: 0 }, ["tensor 0", "1 or 2"];
        "dims", dims(3), E::Dimensions { found: 3, .. }, ["3"];
        "dims", dims(-1), E::Dimensions { found: -1, .. }, ["-1"];
        "dims", dims(i32::MIN), E::Dimensions { found: i32::MIN, .. }, ["-2147483648"];
        "dims", dims(i32::MAX), E::Dimensions { .. }, [];
        "name", len(0), E::NameLength { found: 0, .. }, ["0 bytes", "1 to 64"];
        "name", len(-1), E::NameLength { found: -1, .. }, ["-1"];
        "name", len(65), E::NameLength { found: 65, .. }, ["65"];
        "name", len(i32::MIN), E::NameLength { found: i32::MIN, .. }, ["-2147483648"];
        "name", len(i32::MAX), E::NameLength { found: i32::MAX, .. }, ["2147483647"];
        "name", named(b"a\0b"), E::NulInName { at: 1, .. }, ["\\0"];
        "name", named(b"ab\xff\x1b"), E::NotUtf8 { at: 2, .. }, ["\\xff\\u{1b}"];
        "extent", ne(0, 0), E::Dimension { index: 0, found: 0, .. }, ["dimension 0 is 0"];
        "extent", ne(1, -1), E::Dimension { index: 1, found: -1, .. }, ["dimension 1 is -1"];
        "extent", ne(0, i32::MIN), E::Dimension { index: 0, .. }, ["-2147483648"];
        "data", ne(1, i32::MAX), E::Truncated { what: "data", .. }, ["tok_embeddings.weight"];
        "type", ty(-1), E::TensorType { reason: LegacyTypeError::Unknown { id: -1 }, .. }, ["type -1"];
        "type", ty(9), E::TensorType { reason: LegacyTypeError::Unknown { id: 9 }, .. }, ["type 9"];
        "type", ty(99), E::TensorType { reason: LegacyTypeError::Unknown { id: 99 }, .. }, ["type 99"];
        "type", ty(i32::MIN), E::TensorType { .. }, ["-2147483648"];
        "K-quant then", ty(12), E::TensorType { reason: LegacyTypeError::NotThen { .. }, .. }, ["Q4_K"];
    }
    let product = tensor(|tensor| tensor.ne = vec![i32::MAX, i32::MAX]);
    fails("product", &product, |error| matches!(error, E::Truncated { what: "data", .. }), &[]);
    let product = tensor(|tensor| (tensor.ty, tensor.ne) = (0, vec![i32::MAX, i32::MAX]));
    fails("product", &product, |error| matches!(error, E::ShapeOverflow { .. }), &["2147483647"]);
    let twice = changed(|file| file.tensors[3] = file.tensors[0].clone());
    let expected = |error: &E| matches!(error, E::DuplicateTensor { first: 0, second: 3, .. });
    fails("twice", &twice, expected, &["tok_embeddings.weight", "0 and 3"]);
    let vector = changed(|file| file.tensor("norm.weight").ty = 1);
    let expected = |error: &E| matches!(error, E::VectorType { found: LegacyType::F16, .. });
    fails("vector", &vector, expected, &["F16", "F32"]);
    for junk in [&[0][..], &[0; 12], &[0; 64], b"more"] {
        let bytes = [&changed(|_| ())[..], junk].concat();
        assert!(parse(&bytes).is_err(), "{junk:?}");
    }
}

/// Types and sizes of each era, from the table of the facts; one byte less is an error, and so is a row
/// of half a block.
#[test]
fn types_have_the_sizes_of_their_time() {
    let eras = [
        (KINDS[0], Era::Pairs),
        (KINDS[1], Era::Pairs),
        (KINDS[2], Era::Pairs),
        (KINDS[3], Era::Halves),
        (KINDS[4], Era::Current),
    ];
    for ((magic, version), era) in eras {
        for id in 0..16 {
            let ty = era.type_of(id);
            let (block, bytes) = match ty {
                Ok(ty) => era.block(ty).unwrap(),
                Err(_) => (32, 36),
            };
            let with = |cols: u64, nbytes: u64| {
                let mut file = File::new(magic, version);
                file.tensors.push(Tensor::new("t", id, &[cols as i32, 3], nbytes as usize));
                file.bytes()
            };
            let right = with(block * 2, bytes * 6);
            match (&ty, parse(&right)) {
                (Ok(ty), Ok(file)) => {
                    let tensor = file.tensor("t").unwrap();
                    assert_eq!(
                        (tensor.ty, tensor.nbytes, tensor.row_bytes()),
                        (*ty, bytes * 6, bytes * 2)
                    );
                    assert_eq!(
                        (tensor.range().end, tensor.shape()),
                        (right.len(), &[block * 2, 3][..])
                    );
                    assert_eq!(tensor.offset % if magic == b"tjgg" { 32 } else { 1 }, 0);
                    assert!(tensor.data(&right).unwrap().iter().all(|byte| *byte == 0x11));
                }
                (Err(reason), Err(E::TensorType { reason: found, .. })) => {
                    assert_eq!(*reason, found)
                }
                other => panic!("{era} {id}: {other:?}"),
            }
            if ty.is_ok() {
                let short = with(block * 2, bytes * 6 - 1);
                let short = parse(&short);
                assert!(matches!(short, Err(E::Truncated { what: "data", .. })), "{era} {id}");
            }
            if ty.is_ok() && block > 1 {
                let part = with(block + block / 2, bytes * 6);
                let part = parse(&part);
                assert!(matches!(part, Err(E::PartialBlock { .. })), "{era} {id}: {part:?}");
            }
        }
    }
}

#[test]
fn the_first_days_are_said_by_a_person() {
    let with = |magic, version, ty| {
        let mut file = File::new(magic, version);
        file.tensors.push(Tensor::new("t", ty, &[32, 1], [128, 64, 20, 24, 20][ty as usize]));
        file.bytes()
    };
    for ty in 0..4 {
        let bytes = with(b"lmgg", None, ty);
        let file = parse(&bytes).unwrap();
        assert_eq!(file.era, Era::Pairs);
        assert_eq!(file.clone().assume_era(Era::Rows).unwrap().era, Era::Rows);
        assert!(
            file.clone().assume_era(Era::Pairs).is_ok() && file.assume_era(Era::Halves).is_err()
        );
    }
    let bytes = with(b"lmgg", None, 4);
    let error = parse(&bytes).unwrap().assume_era(Era::Rows).unwrap_err();
    assert!(matches!(error, E::Era { ty: Some(LegacyType::Q4_2), .. }));
    says("era", &error.to_string(), &["Q4_2", "ggml"]);
    for (magic, version) in [(b"fmgg", 1), (b"tjgg", 1), (b"tjgg", 2)] {
        let bytes = with(magic, Some(version), 2);
        assert!(parse(&bytes).unwrap().assume_era(Era::Rows).is_err());
    }
    let bytes = with(b"tjgg", Some(3), 0);
    let error = parse(&bytes).unwrap().assume_era(Era::Rows).unwrap_err();
    says("era", &error.to_string(), &["ggjt version 3"]);
}

/// Cut at every byte: an error, but between two tensors; then parts do not come together.
#[test]
fn every_cut_is_found() {
    for (magic, version) in KINDS {
        let mut file = File::model(magic, version, 1);
        // Small, so that every byte can be tried.
        file.hparams = [VOCAB, 4, 8, 2, 1, 2, 1];
        for tensor in &mut file.tensors {
            let size = |n: i32| {
                if n == EMBD {
                    4
                } else if n == FF {
                    16
                } else {
                    n
                }
            };
            tensor.ne.iter_mut().for_each(|n| *n = size(*n));
            let count: i32 = tensor.ne.iter().product();
            tensor.data = vec![7; count as usize * if tensor.ty == 0 { 4 } else { 2 }];
        }
        let (bytes, ends) = file.bytes_and_ends();
        let ends = &ends[VOCAB as usize..];
        assert!(merge(&[parse(&bytes).unwrap()]).is_ok());
        for cut in 0..bytes.len() {
            match parse(&bytes[..cut]) {
                Ok(parsed) => {
                    let tensors = ends.iter().position(|end| *end == cut);
                    assert_eq!(Some(parsed.tensors.len()), tensors, "cut at {cut}");
                    let error = merge(&[parsed]).unwrap_err();
                    assert!(matches!(error, P::Missing { part: 0, .. }), "{error:?}");
                }
                Err(error) => {
                    let expected = matches!(error, E::Truncated { .. } | E::TokenCount { .. });
                    assert!(expected && !ends.contains(&cut), "cut at {cut}: {error:?}");
                }
            }
        }
    }
}

#[test]
fn the_padding_ends_inside_the_file() {
    let (bytes, ends) = File::model(b"tjgg", Some(1), 1).bytes_and_ends();
    // After the name of the second tensor.
    let name = ends[VOCAB as usize + 1] + 20 + "layers.0.attention.wq.weight".len();
    assert_ne!(name % 32, 0);
    let expected = |error: &E| matches!(error, E::Truncated { what: "padding", .. });
    fails("padding", &bytes[..name + 1], expected, &["layers.0.attention.wq.weight", "padding"]);
    // What it holds means nothing.
    let mut bytes = bytes;
    bytes[name] = 0xff;
    assert!(parse(&bytes).is_ok());
}

#[test]
fn too_many_tensors() {
    let mut file = File::new(b"lmgg", None);
    for index in 0..=MAX_TENSORS {
        file.tensors.push(Tensor::new(&index.to_string(), 0, &[1], 4));
    }
    let bytes = file.bytes();
    fails(
        "many",
        &bytes,
        |error| matches!(error, E::TensorCount { limit: MAX_TENSORS }),
        &["65536"],
    );
    file.tensors.pop();
    assert_eq!(parse(&file.bytes()).unwrap().tensors.len(), MAX_TENSORS);
}

/// Two parts after a change of the second, put together.
fn two(change: impl FnOnce(&mut File)) -> P {
    let first = File::model(b"fmgg", Some(1), 2);
    let mut second = first.clone();
    change(&mut second);
    let (first, second) = (first.bytes(), second.bytes());
    let parts = [parse(&first).unwrap(), parse(&second).unwrap()];
    match merge(&parts) {
        Ok(model) => check_replicas(&model, &[&first, &second]).unwrap_err(),
        Err(error) => error,
    }
}

/// Both parts after the same change.
fn both(change: impl Fn(&mut File)) -> P {
    let mut file = File::model(b"fmgg", Some(1), 2);
    change(&mut file);
    let bytes = file.bytes();
    merge(&[parse(&bytes).unwrap(), parse(&bytes).unwrap()]).unwrap_err()
}

#[test]
fn parts_belong_together() {
    let names = ["n_vocab", "n_embd", "n_mult", "n_head", "n_layer", "n_rot", "ftype"];
    for (index, name) in names.into_iter().enumerate() {
        let error = two(|file| {
            let other = [7, 32, 32, 4, 2, 8, 1];
            file.hparams[index] = other[index];
            if index == 0 {
                file.tokens.push((b"g".to_vec(), 0.0));
            }
            if index == 1 || index == 3 {
                file.hparams[5] = 16;
            }
        });
        assert!(matches!(error, P::Hparam { part: 1, what, .. } if what == name), "{error:?}");
        says(name, &error.to_string(), &["part 1", name, "one model"]);
    }
    macro_rules! table {
        ($($error:expr, $pattern:pat $(if $guard:expr)?, [$($word:expr),*];)*) => {$(
            let error = $error;
            assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
            says("parts", &error.to_string(), &[$($word),*]);
        )*};
    }
    let w1 = "layers.0.feed_forward.w1.weight";
    let wk = "layers.0.attention.wk.weight";
    let remove = |file: &mut File, name: &str| file.tensors.retain(|t| t.name != name.as_bytes());
    let resize = |file: &mut File, name: &str, cols: i32, rows: i32| {
        *file.tensor(name) = Tensor::new(name, 1, &[cols, rows], (cols * rows * 2) as usize);
    };
    table! {
            merge(&[]).unwrap_err(), P::None, [];
            two(|file| (file.magic, file.padded) = (*b"tjgg", true)), P::Kind { part: 1, .. }, ["ggjt", "ggmf"];
            two(|file| file.tokens[4].0 = b"\x02".to_vec()), P::Vocabulary { part: 1, token: 4 }, ["token 4"];
            two(|file| file.tokens[5].1 = -0.0), P::Vocabulary { part: 1, token: 5 }, ["token 5"];
            two(|file| { file.tokens.pop(); }), P::Vocabulary { part: 1, token: 5 }, ["token 5"];
            two(|file| remove(file, w1)), P::Missing { part: 1, .. }, ["part 1", w1];
            both(|file| remove(file, w1)), P::Missing { part: 0, .. }, ["part 0", w1];
            both(|file| remove(file, wk)), P::Missing { part: 0, .. }, [wk];
            both(|file| remove(file, "output.weight")), P::Missing { part: 0, .. }, ["output.weight"];
            two(|file| *file.tensor(w1) = Tensor::new(w1, 2, &[64, 96], 3840)), P::Type { part: 1, found: LegacyType::Q4_0, .. }
    , ["Q4_0", "F16", w1];
            two(|file| resize(file, w1, 64, 95)), P::Shape { part: 1, .. }, ["[64, 95]", "[64, 96]"];
            two(|file| resize(file, "tok_embeddings.weight", 64, 6)), P::Shape { part: 1, .. }, ["[64, 6]", "[32, 6]"];
            both(|file| resize(file, "layers.0.attention.wo.weight", 64, 32)), P::Shape { part: 0, .. },
                ["wo", "[64, 32]", "[32, 64]"];
            both(|file| resize(file, "layers.0.attention.wv.weight", 64, 16)), P::Shape { part: 0, .. }, ["wv"];
            both(|file| resize(file, w1, 64, 95)), P::Shape { part: 0, .. }, ["w3"];
            both(|file| file.tensors.push(Tensor::new("lora.A", 0, &[2], 8))), P::Unknown { part: 0, .. }, ["lora.A"];
            two(|file| file.tensors.push(Tensor::new("layers.1.ffn_norm.weight", 0, &[2], 8))),
                P::Unknown { part: 1, .. }, ["part 1", "layers.1.ffn_norm.weight"];
            both(|file| { file.hparams[4] = MAX_LAYERS; }), P::Missing { .. }, ["layers.1.attention_norm.weight"];
            both(|file| resize(file, wk, 64, 24)), P::KvHeads { rows: 48, head_dim: 32, n_head: 2 }, ["48", "32"];
            both(|file| resize(file, wk, 64, 48)), P::KvHeads { rows: 96, .. }, ["96"];
            both(|file| resize(file, "tok_embeddings.weight", 24, 6)), P::Width { found: 24, n_embd: 64 }, ["24", "64"];
            both(|file| resize(file, "tok_embeddings.weight", 128, 6)), P::Width { found: 128, .. }, ["128"];
            both(|file| resize(file, "tok_embeddings.weight", 1, 6)), P::Count { found: 2, expected: 64 }, ["64"];
            both(|file| resize(file, "tok_embeddings.weight", 64, 6)), P::Count { found: 2, expected: 1 }, ["expected 1"];
            two(|file| file.tensor("norm.weight").data[9] = 0), P::ReplicaDiffers { part: 1, element: 2, .. },
                ["part 1", "norm.weight", "element 2"];
        }
    // What has one dimension in one part has it in all.
    let error = two(|file| {
        let norm = file.tensor("norm.weight");
        (norm.ne, norm.dims) = (vec![EMBD, 1], 2);
    });
    assert!(matches!(error, P::Shape { part: 1, .. }), "{error:?}");
}

#[test]
fn parts_are_all_there_and_divide_the_whole() {
    let one = File::model(b"fmgg", Some(1), 2).bytes();
    let error = merge(&[parse(&one).unwrap()]).unwrap_err();
    assert_eq!(error, P::Count { found: 1, expected: 2 });
    says("count", &error.to_string(), &["1 parts", "expected 2"]);
    let parts: [Ggml<'_>; 3] = std::array::from_fn(|_| parse(&one).unwrap());
    assert_eq!(merge(&parts).unwrap_err(), P::Count { found: 3, expected: 2 });

    // 6 rows of the output cannot be cut into 4.
    let four = File::model(b"fmgg", Some(1), 4).bytes();
    let parts: [Ggml<'_>; 4] = std::array::from_fn(|_| parse(&four).unwrap());
    let error = merge(&parts).unwrap_err();
    assert!(matches!(error, P::Indivisible { axis: 1, full: 6, parts: 4, .. }), "{error:?}");
    says("divide", &error.to_string(), &["output.weight", "6 rows", "4 equal parts"]);

    let parts: [Ggml<'_>; 2] = std::array::from_fn(|_| parse(&one).unwrap());
    let model = merge(&parts).unwrap();
    assert_eq!(check_replicas(&model, &[&one]), Err(P::Bytes { part: 1 }));
    assert_eq!(check_replicas(&model, &[&one, &one[..9]]), Err(P::Bytes { part: 1 }));
    assert_eq!(check_replicas(&model, &[&one, &one]), Ok(()));
}

/// Without an embedding the sizes of LLaMA 1 tell the number of parts.
#[test]
fn parts_are_counted_by_the_embedding_or_by_the_size() {
    for (n_embd, expected) in [(4096, 1), (5120, 2), (6656, 4), (8192, 8), (64, 1)] {
        let mut file = File::new(b"lmgg", None);
        file.hparams[1] = n_embd;
        assert_eq!(count(&parse(&file.bytes()).unwrap()), Ok(expected));
        file.tensors.push(Tensor::new(
            "tok_embeddings.weight",
            1,
            &[n_embd / 4, 1],
            (n_embd / 2) as usize,
        ));
        assert_eq!(count(&parse(&file.bytes()).unwrap()), Ok(4));
    }
}

/// The file that takes most memory for its size.
#[test]
fn a_vocabulary_of_nothing() {
    let mut file = File::new(b"lmgg", None);
    file.hparams[0] = MAX_VOCAB;
    file.tokens = vec![(Vec::new(), 0.0); MAX_VOCAB as usize];
    assert_eq!(parse(&file.bytes()).unwrap().vocabulary.tokens.len(), MAX_VOCAB as usize);
}

/// Every promise of the parser, of whatever it accepts.
fn check(bytes: &[u8]) {
    let Ok(file) = parse(bytes) else { return };
    let mut end = file.tensors_start;
    for tensor in &file.tensors {
        assert!(tensor.offset >= end && tensor.data(bytes).is_some());
        assert_eq!(tensor.row_bytes() * tensor.ne[1], tensor.nbytes);
        end = tensor.offset + tensor.nbytes;
    }
    if !file.tensors.is_empty() {
        assert_eq!(end, bytes.len() as u64);
    }
    let _ = (file.vocabulary.to_gguf(), file.hparams.formula_n_ff());
    let _ = merge(&[file.clone(), file.clone()]);
    if let Ok(model) = merge(&[file]) {
        check_replicas(&model, &[bytes]).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bits_that_flip_never_panic(
        kind in 0..KINDS.len(),
        parts in 1_i32..3,
        flips in prop::collection::vec((any::<u32>(), 0_u8..8), 1..6),
        header in any::<bool>(),
    ) {
        let (magic, version) = KINDS[kind];
        let mut bytes = File::model(magic, version, parts).bytes();
        for (at, bit) in flips {
            let range = if header { 200 } else { bytes.len() };
            bytes[at as usize % range] ^= 1 << bit;
        }
        check(&bytes);
    }

    #[test]
    fn numbers_at_the_edges_never_panic(
        kind in 0..KINDS.len(),
        places in prop::collection::vec((0_usize..14, any::<usize>(), proptest::sample::select(
            &[0, 1, -1, 2, 3, 31, 32, 64, 65, 1 << 20, 1 << 24, i32::MAX, i32::MIN][..])), 1..4),
    ) {
        let (magic, version) = KINDS[kind];
        let mut file = File::model(magic, version, 1);
        for (field, which, number) in places {
            let which = which % file.tensors.len();
            let tensor = &mut file.tensors[which];
            match field {
                0..7 => file.hparams[field] = number,
                7 => tensor.dims = number,
                8 => tensor.name_len = number,
                9 => tensor.ty = number,
                10 => tensor.ne[0] = number,
                11 => if let Some(n) = tensor.ne.get_mut(1) { *n = number },
                12 => tensor.data.truncate(number.unsigned_abs() as usize),
                _ => { file.tensors.remove(which); }
            }
            if file.tensors.is_empty() {
                break;
            }
        }
        check(&file.bytes());
    }

    #[test]
    fn any_bytes_never_panic(kind in 0..KINDS.len(), rest in prop::collection::vec(any::<u8>(), 0..400)) {
        let (magic, version) = KINDS[kind];
        check(&[&magic[..], &version.map_or(Vec::new(), |v| v.to_le_bytes().to_vec()), &rest].concat());
    }
}
