//! Class 12 of the list of malformed inputs, zips: every lie has its own error.

use alight_formats::Header;
use alight_formats::torch::zip::MAX_DIRECTORY;
use alight_formats::torch::{TorchError as E, ZipError as Z};

use crate::support::torch_check::{fails, measured};
use crate::support::torch_files::*;

/// A file with one tensor of 24 bytes.
fn plain() -> Archive {
    Archive::torch(&dict_of(&PLAIN), &[("0", &[7; 24])])
}

/// `plain`, changed.
fn with(change: impl FnOnce(&mut Archive)) -> Vec<u8> {
    let mut archive = plain();
    change(&mut archive);
    archive.bytes()
}

/// `plain`, with patches of the headers of its storage.
fn patched(local: &[(usize, &[u8])], central: &[(usize, &[u8])]) -> Vec<u8> {
    with(|archive| {
        let entry = archive.entry("data/0");
        entry.local = local.iter().map(|(at, new)| (*at, new.to_vec())).collect();
        entry.central = central.iter().map(|(at, new)| (*at, new.to_vec())).collect();
    })
}

/// What, file, pattern of the zip's error, words of its message.
macro_rules! table {
    ($($what:expr, $bytes:expr, $pattern:pat $(if $guard:expr)?, [$($word:expr),*];)*) => {
        $(fails($what, &$bytes, |e| matches!(e, E::Zip($pattern) $(if $guard)?), &["zip: ", $($word),*]);)*
    };
}

#[test]
fn files_in_order_are_read_where_the_local_header_says() {
    let plainly = plain().bytes();
    let as_torch = plain().torchlike().bytes();
    let mut old = plain();
    old.zip64 = false;
    old.comment = b"a comment".to_vec();
    let mut long = plain();
    long.entry("data/0").central_extra = b"xx\x05\0.....".to_vec();
    for bytes in [plainly, as_torch.clone(), old.bytes(), long.bytes()] {
        let file = measured(&bytes).unwrap();
        assert_eq!((file.root, file.version, file.storages), ("archive", 3, 1));
        let tensor = file.tensor("t").unwrap();
        assert_eq!((&*tensor.shape, tensor.nbytes, tensor.elements()), (&[2, 3][..], 24, 6));
        assert_eq!(tensor.data(&bytes), Some(&[7; 24][..]));
        assert!(file.tensor("u").is_none());
    }
    let file = measured(&as_torch).unwrap();
    assert_eq!(file.tensors[0].offset % 64, 0, "the padding of the local header counts");
}

#[test]
fn class_12_compressed_and_encrypted() {
    let method = |n: u16| patched(&[(8, &n.to_le_bytes())], &[(10, &n.to_le_bytes())]);
    let flags = |n: u16| patched(&[(6, &n.to_le_bytes())], &[(8, &n.to_le_bytes())]);
    table! {
        "deflated", method(8), Z::Compressed { .. }, ["archive/data/0", "deflate, method 8", "stored"];
        "zstd", method(93), Z::Compressed { .. }, ["zstd"];
        "unknown method", method(77), Z::Compressed { .. }, ["method 77"];
        "deflated, says the local header only", patched(&[(8, b"\x08\0")], &[]), Z::Disagree { .. }, ["method"];
        "encrypted", flags(1), Z::Encrypted { .. }, ["archive/data/0", "encrypted"];
        "strongly encrypted", flags(1 << 6), Z::Encrypted { .. }, [];
        "masked headers", flags(1 << 13), Z::Encrypted { .. }, [];
        "encrypted, says the local header only", patched(&[(6, b"\x01\0")], &[]), Z::Disagree { .. }, ["flags"];
        "a patch", flags(1 << 5), Z::Name { .. }, ["patch"];
        "sizes differ as if compressed", patched(&[(18, b"\x10\0\0\0")], &[(20, b"\x10\0\0\0")]),
            Z::Sizes { stored: 16, size: 24, .. }, ["16", "24"];
    }
}

#[test]
fn class_12_local_and_central_headers_disagree() {
    table! {
        "local size", patched(&[(22, b"\x17\0\0\0")], &[]), Z::Disagree { what: "size", .. }, ["archive/data/0", "size"];
        "local stored size", patched(&[(18, b"\x19\0\0\0")], &[]), Z::Disagree { what: "size", .. }, [];
        "local size 0 without a descriptor", patched(&[(18, &[0; 8])], &[]), Z::Disagree { .. }, ["size"];
        "central sizes", patched(&[], &[(20, b"\x08\0\0\0\x08\0\0\0")]), Z::Disagree { .. }, ["size"];
        "local name", patched(&[(30, b"archivf")], &[]), Z::Disagree { what: "name", .. }, ["name"];
        "local name longer", patched(&[(26, b"\x0f\0")], &[]), Z::Disagree { what: "name", .. }, [];
        "local name past the end", patched(&[(26, b"\xff\xff")], &[]), Z::Disagree { what: "name", .. }, [];
        "local checksum", patched(&[(14, &[1; 4])], &[]), Z::Disagree { what: "checksum", .. }, ["checksum"];
        "no local header there", patched(&[(0, b"PK\x03\x05")], &[]), Z::NoLocal { .. }, ["archive/data/0"];
        "place in another entry", patched(&[], &[(42, &[0; 4])]), Z::Disagree { what: "name", .. }, [];
        "place past the directory", patched(&[], &[(42, b"\0\0\0\x10")]), Z::NoLocal { at: 0x1000_0000, .. }, ["268435456"];
        "size past the directory", patched(&[(18, b"\0\x10\0\0\0\x10\0\0")], &[(20, b"\0\x10\0\0\0\x10\0\0")]),
            Z::PastEnd { size: 4096, .. }, ["4096"];
        "extra field past the directory", patched(&[(28, b"\xff\xff")], &[]), Z::NoLocal { .. }, [];
    }
    let torn = |change: fn(&mut Entry)| {
        let mut archive = plain().torchlike();
        change(archive.entry("data/0"));
        archive.bytes()
    };
    table! {
        "descriptor's size", torn(|e| e.descriptor[8] = 1), Z::Disagree { what: "descriptor after its data", .. }, ["descriptor"];
        "descriptor's checksum", torn(|e| e.descriptor[4] ^= 1), Z::Disagree { .. }, ["descriptor"];
        "descriptor's signature", torn(|e| e.descriptor[0] = 0), Z::Disagree { .. }, ["descriptor"];
        "no descriptor", torn(|e| e.descriptor.clear()), Z::Disagree { .. }, ["descriptor"];
        "local size where the descriptor should say it", torn(|e| e.local.push((22, vec![9]))), Z::Disagree { what: "size", .. }, [];
    }
    // A descriptor of 24 bytes is one, too: miniz writes those beyond 4 GiB.
    let bytes = torn(|e| {
        let size = (e.data.len() as u64).to_le_bytes();
        e.descriptor = [&e.descriptor[..8], &size, &size].concat();
    });
    measured(&bytes).unwrap();
}

#[test]
fn class_12_overlaps_duplicates_roots_and_names() {
    // The second entry's header lies in the first one's data, and is in order.
    let nested = {
        let inner = Archive::default().add("archive/data/1", &[1; 8]).bytes();
        let inner = &inner[..30 + 14 + 8];
        let mut outer = Archive::torch(&dict_of(&PLAIN), &[("0", inner), ("1", &[1; 8])]);
        let at = outer.bytes().windows(inner.len()).position(|window| window == inner).unwrap();
        outer.entry("data/1").central.push((42, (at as u32).to_le_bytes().to_vec()));
        outer.bytes()
    };
    let renamed = |name: &str| with(|archive| archive.entry("data/0").name = name.into());
    let twice = with(|archive| {
        archive.add("archive/data/0", &[8; 24]);
    });
    table! {
        "an entry inside another", nested, Z::Overlap { .. }, ["data/0", "data/1", "overlap"];
        "duplicate", twice, Z::Duplicate { .. }, ["archive/data/0", "twice"];
        "two pickles", with(|archive| { archive.add("archive/data.pkl", b"N."); }), Z::Duplicate { .. }, ["data.pkl"];
        "two roots", renamed("other/data/0"), Z::TwoRoots { .. }, ["\"archive\"", "\"other\""];
        "no root", renamed("data.bin"), Z::Name { .. }, ["data.bin", "root"];
        "parent", renamed("archive/../../etc/passwd"), Z::Name { .. }, ["archive/../../etc/passwd", "leads elsewhere"];
        "parent as root", renamed("../data/0"), Z::Name { .. }, [];
        "absolute", renamed("/archive/data/0"), Z::Name { .. }, [];
        "a folder", renamed("archive/data/"), Z::Name { .. }, [];
        "this folder", renamed("archive/./data/0"), Z::Name { .. }, [];
        "backslash", renamed("archive\\data\\0"), Z::Name { .. }, ["backslash"];
        "zero byte", renamed("archive/data/0\0x"), Z::Name { .. }, ["zero byte"];
        "terminal escape", renamed("archive/\u{1b}[2J\0"), Z::Name { .. }, ["\\u{1b}[2J"];
        "empty name", renamed(""), Z::Name { .. }, [];
        "long name", renamed(&format!("archive/{}", "x".repeat(1020))), Z::Name { .. }, ["1024"];
        "name not UTF-8", patched(&[(30 + 13, b"\xff")], &[(46 + 13, b"\xff")]), Z::Name { .. }, ["UTF-8", "\\xff"];
    }
}

#[test]
fn class_12_zip64_lies() {
    let max = |n: usize| vec![0xff; n];
    let extra = |id: u16, values: &[u64]| {
        let body: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        [&id.to_le_bytes()[..], &(body.len() as u16).to_le_bytes(), &body].concat()
    };
    let central = |patches: &[(usize, Vec<u8>)], field: Vec<u8>| {
        with(|archive| {
            archive.entry("data/0").central = patches.to_vec();
            archive.entry("data/0").central_extra = field.clone();
        })
    };
    let end64 = |at: usize, value: u64| with(|a| a.end64.push((at, value.to_le_bytes().to_vec())));
    let sizes = (20, max(8));
    table! {
        "size in a field that is not there", central(std::slice::from_ref(&sizes), vec![]), Z::Extra { .. }, ["archive/data/0", "not there"];
        "field too short", central(std::slice::from_ref(&sizes), extra(1, &[24])), Z::Extra { .. }, ["length"];
        "field too long", central(std::slice::from_ref(&sizes), extra(1, &[24, 24, 0])), Z::Extra { .. }, ["length"];
        "field for nothing", central(&[], extra(1, &[99])), Z::Extra { .. }, ["length"];
        "two fields", central(std::slice::from_ref(&sizes), [extra(1, &[24, 24]), extra(1, &[25, 25])].concat()), Z::Extra { .. }, ["two"];
        "another size", central(std::slice::from_ref(&sizes), extra(1, &[25, 25])), Z::Disagree { what: "size", .. }, [];
        "a size of 2^64-1", central(std::slice::from_ref(&sizes), extra(1, &[u64::MAX, u64::MAX])), Z::Disagree { .. }, [];
        "a place of 2^64-1", central(&[(42, max(4))], extra(1, &[u64::MAX])), Z::NoLocal { at: u64::MAX, .. }, [];
        "a place of 2^63", central(&[(42, max(4))], extra(1, &[1 << 63])), Z::NoLocal { .. }, [];
        "another volume", central(&[(34, b"\x01\0".to_vec())], vec![]), Z::Extra { .. }, ["volume"];
        "volume in a field that is not there", central(&[(34, max(2))], vec![]), Z::Extra { .. }, ["not there"];
        "extra field cut short", central(&[], b"\x01\0\x08\0....".to_vec()), Z::Extra { .. }, ["cut short"];
        "extra field of 3 bytes", central(&[], b"abc".to_vec()), Z::Extra { .. }, ["cut short"];
        "local size in a field that is not there", patched(&[(18, &[0xff; 8])], &[]), Z::Extra { .. }, ["not there"];
        "local field with another size", with(|a| {
            a.entry("data/0").local.push((18, max(8)));
            a.entry("data/0").local_extra = extra(1, &[24, 23]);
        }), Z::Disagree { what: "size", .. }, [];
        "end records disagree in entries", end64(32, 3), Z::Zip64 { .. }, ["disagree"];
        "end records disagree in entries of the volume", end64(24, 3), Z::Zip64 { .. }, [];
        "end records disagree in size", end64(40, 1 << 40), Z::Zip64 { .. }, [];
        "end records disagree in place", end64(48, 0), Z::Zip64 { .. }, [];
        "length of the end record", end64(4, 45), Z::Zip64 { .. }, ["56 bytes"];
        "no end record there", end64(0, 0), Z::Zip64 { .. }, ["56 bytes"];
        "volume of the end record", end64(16, 1), Z::Volumes { .. }, ["volumes"];
        "locator points elsewhere", with(|a| a.locator.push((8, vec![0; 8]))), Z::Zip64 { .. }, ["locator"];
        "locator past the end", with(|a| a.locator.push((8, max(8)))), Z::Zip64 { .. }, ["locator"];
        "locator of 2 volumes", with(|a| a.locator.push((16, vec![2]))), Z::Volumes { found: 2 }, [];
        "asked for and missing", with(|a| { a.zip64 = false; a.end.push((12, max(8))); }), Z::Zip64 { .. }, ["missing"];
        "entries asked for and missing", with(|a| { a.zip64 = false; a.end.push((8, max(4))); }), Z::Zip64 { .. }, ["missing"];
        "size of 2^64-1", with(|a| { a.end.push((12, max(8))); a.end64.push((40, max(16))); }), Z::Directory { .. }, [];
        "entries of 2^64-1", with(|a| { a.end.push((8, max(4))); a.end64.push((24, max(16))); }), Z::Count { found: u64::MAX, .. }, [];
    }
    // What is true may stand there.
    let sentinels = [(20, max(8)), (42, max(4))];
    let at = plain().bytes().windows(14).position(|w| w == b"archive/data/0").unwrap() as u64 - 30;
    measured(&central(&sentinels, extra(1, &[24, 24, at]))).unwrap();
    measured(&with(|a| a.end.extend([(8, max(4)), (12, max(8))]))).unwrap();
    measured(&with(|a| {
        a.entry("data/0").local.push((18, max(8)));
        a.entry("data/0").local_extra = extra(1, &[24, 24]);
    }))
    .unwrap();
    // miniz writes the place of a header into its local field, though nothing asks for it.
    measured(&with(|a| a.entry("data/0").local_extra = extra(1, &[1 << 33]))).unwrap();
}

#[test]
fn class_12_the_directory_and_its_end() {
    let junk = |n: usize| [plain().bytes(), vec![0; n]].concat();
    let one_less = with(|a| {
        a.end.push((8, vec![3, 0, 3, 0]));
        a.end64.extend([(24, vec![3]), (32, vec![3])]);
    });
    let many = with(|a| {
        a.end.push((8, vec![99, 0, 99, 0]));
        a.end64.extend([(24, vec![99]), (32, vec![99])]);
    });
    let only_end = |end: &[u8]| [&b"PK\x03\x04"[..], b"PK\x05\x06", end].concat();
    table! {
        "junk after", junk(1), Z::NoEnd, ["cut short"];
        "much junk after", junk(70_000), Z::NoEnd, [];
        "gap before the end", with(|a| a.gap = vec![0; 4]), Z::Directory { .. }, [];
        "a volume", with(|a| a.end.push((4, vec![1]))), Z::Volumes { found: 1 }, [];
        "an entry too few announced", one_less, Z::MoreDirectory { entries: 3 }, ["3"];
        "99 entries announced", many, Z::Count { found: 99, .. }, ["99"];
        "entries of the volume", with(|a| { a.zip64 = false; a.end.push((8, vec![1])); }), Z::End { found: 1, expected: 4, .. }, ["1", "4"];
        "an entry that is none", patched(&[], &[(0, b"PK\x01\x03")]), Z::Entry { index: 2, .. }, ["entry 2"];
        "an entry longer than the directory", patched(&[], &[(32, b"\xff\xff")]), Z::Entry { index: 2, .. }, [];
        "no entries", only_end(&[&[0; 8][..], &[0, 0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()), Z::Empty, ["no entries"];
        "directory before the start", only_end(&[&[0; 8][..], &[9, 0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()), Z::Directory { .. }, [];
        "directory of 2^32-2", only_end(&[&[0; 8][..], &[0xfe, 0xff, 0xff, 0xff, 0xfe, 0xff, 0xff, 0xff, 0, 0]].concat()), Z::Directory { .. }, [];
    }
}

/// Of zeros, all but the end: nothing is read of it.
#[test]
fn a_long_directory_is_refused_before_it_is_read() {
    let refused = |size: u64| {
        let end64 = 4 + size;
        let numbers = |numbers: &[u64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
        };
        let tail = [
            &b"PK\x06\x06"[..],
            &numbers(&[44]),
            &[45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &numbers(&[1000, 1000, size, 4]),
            b"PK\x06\x07\0\0\0\0",
            &numbers(&[end64]),
            b"\x01\0\0\0PK\x05\x06\0\0\0\0",
            &[0xff; 12],
            &[0; 2],
        ]
        .concat();
        let header = Header::new(end64 + tail.len() as u64, |to, at| {
            to.fill(0);
            for (byte, at) in to.iter_mut().zip(at..) {
                match at {
                    0..4 => *byte = b"PK\x03\x04"[at as usize],
                    _ if at >= end64 => *byte = tail[(at - end64) as usize],
                    _ => {}
                }
            }
            true
        });
        let error = alight_formats::torch::parse(&header).unwrap_err();
        (error, header.copied())
    };
    let (error, copied) = refused(MAX_DIRECTORY + 1);
    let expected = Z::DirectoryTooLarge { found: MAX_DIRECTORY + 1, limit: MAX_DIRECTORY };
    assert_eq!(error, E::Zip(expected));
    assert!(copied < 1 << 20, "{copied}");
    let (error, _) = refused(1 << 10);
    assert!(matches!(error, E::Zip(Z::Entry { index: 0, .. } | Z::Count { .. })), "{error}");
}

#[test]
fn a_million_entries_are_not_believed_and_many_small_ones_are_cheap() {
    let mut archive = Archive::torch(&dict_of(&PLAIN), &[("0", &[7; 24])]);
    for index in 0..20_000 {
        archive.add(&format!("archive/{index}"), b"");
    }
    assert_eq!(measured(&archive.bytes()).unwrap().tensors.len(), 1);
}
