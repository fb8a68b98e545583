//! Class 8 of the list of malformed inputs: models in several files that do not belong together.

use alight_formats::GgmlType::{F16, F32};
use alight_formats::gguf::write::Builder;
use alight_formats::gguf::{Gguf, GgufError, ValueType, parse};
use alight_formats::split::{Catalog, Shard, ShardName, SplitError as E, merge, names};

/// What a shard says of itself, and its tensors.
#[derive(Clone)]
struct Says {
    no: Option<u16>,
    count: Option<u16>,
    total: Option<i32>,
    architecture: Option<&'static str>,
    tensors: Vec<&'static str>,
}

/// Three shards in order: metadata alone, two tensors, one tensor.
fn three() -> Vec<Says> {
    [(0, Some("llama"), vec![]), (1, None, vec!["a", "b"]), (2, Some("llama"), vec!["c"])]
        .map(|(no, architecture, tensors)| Says {
            no: Some(no),
            count: Some(3),
            total: Some(3),
            architecture,
            tensors,
        })
        .into()
}

fn file(says: &Says) -> Vec<u8> {
    let mut out = Builder::new();
    if let Some(text) = says.architecture {
        out.str("general.architecture", text);
    }
    says.no.map(|n| out.u16("split.no", n).bool("x", true));
    says.count.map(|n| out.u16("split.count", n).bool("y", true));
    says.total.map(|n| out.i32("split.tensors.count", n).bool("z", true));
    for name in &says.tensors {
        out.tensor(name, F16, &[8]).unwrap();
    }
    out.file(|_, data| data.fill(1))
}

fn name(no: usize) -> String {
    format!("model-{:05}-of-00003.gguf", no + 1)
}

/// Merges, and gives the catalog as (shard, tensor) to `then`.
fn merged<T>(shards: &[Says], then: impl FnOnce(Result<&Catalog<'_>, &E>, &[Gguf<'_>]) -> T) -> T {
    let files: Vec<_> = shards.iter().map(file).collect();
    let parsed: Vec<_> = files.iter().map(|bytes| parse(bytes).unwrap()).collect();
    let names: Vec<_> = (0..shards.len()).map(name).collect();
    let given: Vec<_> =
        names.iter().zip(&parsed).map(|(name, gguf)| Shard { name, gguf }).collect();
    then(merge(&given).as_ref(), &parsed)
}

#[track_caller]
fn fails(what: &str, shards: &[Says], expected: impl Fn(&E) -> bool, words: &[&str]) {
    merged(shards, |result, _| {
        let error = result.expect_err(what);
        assert!(expected(error), "{what}: {error:?}");
        let text = error.to_string();
        for word in words {
            assert!(text.contains(word), "{what}: no {word:?} in {text:?}");
        }
    });
}

#[test]
fn shards_that_belong_together_make_one_catalog() {
    merged(&three(), |result, parsed| {
        let catalog = result.unwrap();
        let found: Vec<_> = catalog.tensors.iter().map(|t| (t.shard, t.info.name)).collect();
        assert_eq!(found, [(1, "a"), (1, "b"), (2, "c")]);
        assert_eq!(catalog.get("b").map(|t| t.shard), Some(1));
        assert_eq!(catalog.get("b").map(|t| &t.info), parsed[1].tensor("b"));
        assert!(catalog.get("d").is_none());
    });
}

#[test]
fn a_model_in_one_file_is_one_shard() {
    for count in [None, Some(0), Some(1)] {
        let says = Says {
            no: None,
            count,
            total: None,
            architecture: Some("llama"),
            tensors: vec!["a", "b"],
        };
        let bytes = file(&says);
        let gguf = parse(&bytes).unwrap();
        assert_eq!(names("any name", &gguf), Ok(vec!["any name".to_owned()]));
        let catalog = merge(&[Shard { name: "any name", gguf: &gguf }]).unwrap();
        assert_eq!(catalog.tensors.len(), 2);
    }
}

#[test]
fn names_follow_from_any_shard() {
    let expected: Vec<_> = (0..3).map(name).collect();
    for (no, says) in three().iter().enumerate() {
        let bytes = file(says);
        assert_eq!(names(&name(no), &parse(&bytes).unwrap()), Ok(expected.clone()));
    }
}

#[test]
fn names_that_are_no_shards_are_seen_as_such() {
    let good = ShardName { prefix: "a-of-b-00001-of-00002", no: 1, count: 12 };
    assert_eq!(ShardName::parse("a-of-b-00001-of-00002-00002-of-00012.gguf"), Some(good));
    assert_eq!(good.file_name(1), "a-of-b-00001-of-00002-00002-of-00012.gguf");
    for bad in [
        "",
        ".gguf",
        "model.gguf",
        "-00001-of-00003.gguf",
        "model-1-of-3.gguf",
        "model-00001-of-3.gguf",
        "model-00000-of-00003.gguf",
        "model-00004-of-00003.gguf",
        "model-00001-of-00000.gguf",
        "model-00001-of-00003.GGUF",
        "model-00001-of-00003.gguf.part",
        "model-000001-of-000003.gguf",
        "model-+0001-of-00003.gguf",
        "model-٠٠٠٠١-of-00003.gguf",
        "model-00001-of-99999.gguf",
        "model00001-of-00003.gguf",
        "model-00001_of_00003.gguf",
    ] {
        assert_eq!(ShardName::parse(bad), None, "{bad}");
    }
}

#[test]
fn a_name_that_does_not_fit_the_header_is_refused() {
    let bytes = file(&three()[1]);
    let gguf = parse(&bytes).unwrap();
    type Case = (&'static str, fn(&E) -> bool);
    let cases: [Case; 7] = [
        ("model.gguf", |e| matches!(e, E::Name { count: 3, .. })),
        ("model-00001-of-00003.gguf", |e| matches!(e, E::Number { found: 1, expected: 0, .. })),
        ("model-00002-of-00004.gguf", |e| matches!(e, E::Count { found: 3, expected: 4, .. })),
        ("../model-00002-of-00003.gguf", |e| matches!(e, E::NotAFileName { .. })),
        ("/etc/x-00002-of-00003.gguf", |e| matches!(e, E::NotAFileName { .. })),
        ("..\\model-00002-of-00003.gguf", |e| matches!(e, E::NotAFileName { .. })),
        ("a\0b-00002-of-00003.gguf", |e| matches!(e, E::NotAFileName { .. })),
    ];
    for (name, expected) in cases {
        let error = names(name, &gguf).expect_err(name);
        assert!(expected(&error), "{name:?}: {error:?}");
        assert!(!error.to_string().contains('\0'));
    }
    let text = names("model.gguf", &gguf).unwrap_err().to_string();
    assert!(text.contains("\"model.gguf\"") && text.contains("-00001-of-00003.gguf"), "{text}");
}

#[test]
fn counts_that_no_name_can_have_are_refused_before_any_name_is_made() {
    let mut out = Builder::new();
    out.u64("split.count", 1 << 40).u16("split.no", 0);
    let bytes = out.header();
    let error = names("m-00001-of-00002.gguf", &parse(&bytes).unwrap()).unwrap_err();
    assert!(matches!(error, E::TooMany { found: 0x100_0000_0000, limit: 65535, .. }), "{error:?}");

    let mut out = Builder::new();
    out.str("split.count", "3");
    let bytes = out.header();
    let error = names("m-00001-of-00003.gguf", &parse(&bytes).unwrap()).unwrap_err();
    let E::Metadata { source: GgufError::WrongType { found: ValueType::Str, .. }, .. } = error
    else {
        panic!("{error:?}")
    };

    let mut out = Builder::new();
    out.i32("split.count", -3);
    let bytes = out.header();
    let error = names("m-00001-of-00003.gguf", &parse(&bytes).unwrap()).unwrap_err();
    assert!(error.to_string().contains("split.count\" is -3"), "{error}");
}

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let change = |no: usize, change: fn(&mut Says)| {
        let mut shards = three();
        change(&mut shards[no]);
        shards
    };
    type Case = (&'static str, Vec<Says>, fn(&E) -> bool, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        ("none", vec![], |e| matches!(e, E::Shards { given: 0, .. }), &["0 shards"]),
        (
            "missing",
            three()[..2].to_vec(),
            |e| matches!(e, E::Shards { given: 2, count: 3 }),
            &["2", "3"],
        ),
        (
            "extra",
            [three(), three()[2..].to_vec()].concat(),
            |e| matches!(e, E::Shards { given: 4, count: 3 }),
            &["4", "3"],
        ),
        (
            "two models in one file each",
            vec![change(0, |s| s.count = None)[0].clone(); 2],
            |e| matches!(e, E::Shards { given: 2, count: 1 }),
            &[],
        ),
        (
            "count differs",
            change(1, |s| s.count = Some(4)),
            |e| matches!(e, E::Count { found: 4, expected: 3, .. }),
            &["model-00002-of-00003.gguf", "4", "3"],
        ),
        (
            "no count",
            change(2, |s| s.count = None),
            |e| matches!(e, E::Metadata { source: GgufError::MissingKey { .. }, .. }),
            &["model-00003-of-00003.gguf", "split.count"],
        ),
        (
            "no number",
            change(1, |s| s.no = None),
            |e| matches!(e, E::Metadata { source: GgufError::MissingKey { .. }, .. }),
            &["model-00002", "split.no"],
        ),
        (
            "the same twice",
            [three()[..2].to_vec(), three()[1..2].to_vec()].concat(),
            |e| matches!(e, E::Number { found: 1, expected: 2, .. }),
            &["model-00003", "1", "2"],
        ),
        (
            "exchanged",
            vec![three()[0].clone(), three()[2].clone(), three()[1].clone()],
            |e| matches!(e, E::Number { found: 2, expected: 1, .. }),
            &[],
        ),
        (
            "first is not 0",
            change(0, |s| s.no = Some(7)),
            |e| matches!(e, E::Number { found: 7, expected: 0, .. }),
            &["model-00001"],
        ),
        (
            "tensor in two shards",
            change(2, |s| s.tensors = vec!["b"]),
            |e| matches!(e, E::DuplicateTensor { .. }),
            &["\"b\"", "model-00002", "model-00003"],
        ),
        (
            "too few tensors",
            change(2, |s| s.tensors = vec![]),
            |e| matches!(e, E::Tensors { found: 2, expected: 3 }),
            &["2 tensors", "3"],
        ),
        (
            "too many tensors",
            change(0, |s| s.tensors = vec!["d"]),
            |e| matches!(e, E::Tensors { found: 4, expected: 3 }),
            &[],
        ),
        (
            "tensor totals differ",
            change(1, |s| s.total = Some(2)),
            |e| matches!(e, E::TensorsCount { found: 2, expected: 3, .. }),
            &["model-00002"],
        ),
        (
            "negative total",
            three().into_iter().map(|s| Says { total: Some(-1), ..s }).collect(),
            |e| matches!(e, E::Tensors { found: 3, expected: -1 }),
            &["-1"],
        ),
        (
            "no total",
            change(0, |s| s.total = None),
            |e| matches!(e, E::Metadata { .. }),
            &["split.tensors.count"],
        ),
        (
            "another architecture",
            change(2, |s| s.architecture = Some("gemma3")),
            |e| matches!(e, E::Architecture { .. }),
            &["model-00003", "gemma3", "llama"],
        ),
        (
            "architecture only in a later shard",
            change(0, |s| s.architecture = None),
            |e| matches!(e, E::Architecture { .. }),
            &["model-00003"],
        ),
    ];
    for (what, shards, expected, words) in cases {
        fails(what, &shards, expected, words);
    }
}

#[test]
fn data_of_each_shard_is_its_own() {
    let mut first = Builder::with_alignment(64);
    first.str("general.architecture", "llama");
    first.u16("split.no", 0).u16("split.count", 2).i32("split.tensors.count", 2);
    first.tensor("a", F32, &[3]).unwrap();
    let mut second = Builder::new();
    second.u16("split.no", 1).u16("split.count", 2).i32("split.tensors.count", 2);
    second.tensor("b", F32, &[5]).unwrap();
    let files = [first.file(|_, d| d.fill(1)), second.file(|_, d| d.fill(2))];
    let parsed = [parse(&files[0]).unwrap(), parse(&files[1]).unwrap()];
    let shards = [("x", 0), ("y", 1)].map(|(name, i)| Shard { name, gguf: &parsed[i] });
    let catalog = merge(&shards).unwrap();
    for (name, value) in [("a", 1), ("b", 2)] {
        let placed = catalog.get(name).unwrap();
        let data = placed.info.data(&files[placed.shard]).unwrap();
        assert!(!data.is_empty() && data.iter().all(|byte| *byte == value));
    }
}
