//! Transfers on real filesystems: in memory, and in files that are mounted where the test may do so
//! (as root, with the filesystem's tools installed); what is skipped is said.
#![cfg(target_os = "linux")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use alight_pages::transfer::{Engine, Piece, TransferFallback, TransferMethod, TransferReport};
use alight_pages::{CacheProbe, Region, evict, residency};

use crate::common::mounts::{Mounted, in_a_file};
use crate::common::{self, compare, contents, options, uneven_pieces};

const LEN: usize = 2_000_003;

/// Reads `path` in each way, to slots and to fresh memory, and returns the reports of the direct
/// ones, by io_uring and without. What is cached stays as it is if `keeps_cache`.
fn read_in_each_way(path: &Path, expected: &[u8], keeps_cache: bool) -> [TransferReport; 2] {
    let pieces = uneven_pieces(expected.len());
    compare(path, expected, &pieces, TransferMethod::Read, &options(true)).unwrap();
    [true, false].map(|ring| {
        let file = File::open(path).unwrap();
        let cold = evict(&file).unwrap();
        let mut options = options(ring);
        let report = compare(path, expected, &pieces, TransferMethod::Direct, &options).unwrap();
        let image = Region::new(expected.len()).unwrap();
        // SAFETY: a region of as many bytes, which nothing else uses.
        let whole = [unsafe { Piece::at(0..expected.len() as u64, image.as_mut_ptr()) }];
        options.register = false;
        compare(path, expected, &whole, TransferMethod::Direct, &options).unwrap();
        let after = residency(&file, 0..expected.len() as u64).unwrap();
        if keeps_cache && cold.probe == CacheProbe::Cachestat && cold.cached == 0 {
            assert_eq!(after.cached, 0, "{report:?}");
        } else if keeps_cache {
            eprintln!(
                "skipped: is not cold ({cold:?}): what stays in the page cache is not looked at"
            );
        }
        report
    })
}

fn mounted(made: Result<Mounted, String>) -> Option<Mounted> {
    made.map_err(|reason| eprintln!("skipped: {}", reason.trim())).ok()
}

fn expect_direct(reports: &[TransferReport; 2]) {
    for (report, engine) in reports.iter().zip([Engine::IoUring, Engine::Threads]) {
        assert!(
            report.direct && report.engine == engine && report.fallbacks.is_empty(),
            "{report:?}"
        );
    }
}

#[test]
fn in_memory_there_is_nothing_to_go_around() {
    let folder = match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => folder,
        Err(error) => return eprintln!("skipped: /dev/shm: {error}"),
    };
    let (path, expected) = (folder.path().join("weights"), contents(LEN));
    common::write(&path, &expected);
    for report in read_in_each_way(&path, &expected, false) {
        assert_eq!(report.fallbacks, [TransferFallback::InMemory]);
        assert!(!report.direct && report.engine == Engine::Threads);
    }
}

#[test]
fn ext4_with_blocks_of_one_and_four_kib_and_holes() {
    for block in ["1024", "4096"] {
        let made = in_a_file(64, &["mkfs.ext4", "-q", "-b", block], "");
        let Some(mounted) = mounted(made) else { return };
        let path = mounted.folder.path().join("weights");
        let mut expected = contents(LEN);
        common::write(&path, &expected);
        expect_direct(&read_in_each_way(&path, &expected, true));
        // A hole in the middle and one at the end, with odd edges.
        let holes = mounted.folder.path().join("holes");
        let file = File::create(&holes).unwrap();
        file.write_all_at(&expected[..500_123], 0).unwrap();
        file.write_all_at(&expected[900_001..1_200_000], 900_001).unwrap();
        file.set_len(LEN as u64).unwrap();
        file.sync_all().unwrap();
        expected[500_123..900_001].fill(0);
        expected[1_200_000..].fill(0);
        expect_direct(&read_in_each_way(&holes, &expected, true));
    }
}

#[test]
fn xfs() {
    let made = in_a_file(320, &["mkfs.xfs", "-q"], "");
    let Some(mounted) = mounted(made) else { return };
    let (path, expected) = (mounted.folder.path().join("weights"), contents(LEN));
    common::write(&path, &expected);
    expect_direct(&read_in_each_way(&path, &expected, true));
}

#[test]
fn btrfs_plain_and_inline() {
    let made = in_a_file(160, &["mkfs.btrfs", "-q"], "");
    let Some(mounted) = mounted(made) else { return };
    let (path, expected) = (mounted.folder.path().join("weights"), contents(LEN));
    common::write(&path, &expected);
    expect_direct(&read_in_each_way(&path, &expected, true));
    // Small files are stored within the metadata: the filesystem reads them in its own way.
    let (path, expected) = (mounted.folder.path().join("small"), contents(1500));
    common::write(&path, &expected);
    read_in_each_way(&path, &expected, false);
}

#[test]
fn btrfs_compressed() {
    let made = in_a_file(160, &["mkfs.btrfs", "-q"], "compress-force=zstd");
    let Some(mounted) = mounted(made) else { return };
    let path = mounted.folder.path().join("weights");
    let expected: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    common::write(&path, &expected);
    for report in read_in_each_way(&path, &expected, false) {
        assert_eq!(report.fallbacks, [TransferFallback::Compressed]);
        assert!(!report.direct && report.engine == Engine::Threads);
    }
}

#[test]
fn overlay_over_a_disk() {
    let layers = common::disk_folder();
    let expected = contents(LEN);
    let at = |name: &str| layers.path().join(name);
    for name in ["lower", "upper", "work"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    common::write(&at("lower").join("weights"), &expected);
    let layer = |name: &str| format!("{name}dir={}", at(name).display());
    let options = [layer("lower"), layer("upper"), layer("work")].join(",");
    let Some(mounted) = mounted(common::mounts::bare("overlay", &options)) else { return };
    let path = mounted.folder.path().join("weights");
    // Whether it is direct depends on the kernel; the bytes do not.
    let reports = read_in_each_way(&path, &expected, false);
    eprintln!("overlay: {:?}", reports.map(|report| (report.direct, report.fallbacks)));
}
