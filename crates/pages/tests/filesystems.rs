//! Residency and facts on real file systems, mounted for the test: overlayfs, btrfs, xfs, ext4 and
//! squashfs. Where the test may not mount, or a tool is missing, it says so and passes.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use alight_pages::{Facts, Kind, Load, LoadRequest, ReadMethod, choose, evict, residency, warm};

/// A folder on the disk where the tests are built (/tmp may be memory).
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Something mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// `mount args… at`; `None`, said, if that is not allowed.
    fn new(args: &[&str], at: &Path) -> Option<Mounted> {
        fs::create_dir_all(at).unwrap();
        run(Command::new("mount").args(args).arg(at)).then(|| Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        run(Command::new("umount").arg(&self.0));
    }
}

fn run(command: &mut Command) -> bool {
    match command.output() {
        Ok(done) if done.status.success() => true,
        Ok(done) => {
            eprintln!("skipped: {command:?}: {}", String::from_utf8_lossy(&done.stderr));
            false
        }
        Err(error) => {
            eprintln!("skipped: {command:?}: {error}");
            false
        }
    }
}

const LEN: u64 = 3 << 20;

/// Bytes that do not compress.
fn noise() -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..LEN).map(|_| next()).collect()
}

/// Cold, partly warm, warm, as the facts and the residency tell it; the facts when cold.
fn cold_to_warm(path: &Path) -> Facts {
    let file = File::open(path).unwrap();
    let left = evict(&file).unwrap();
    assert!(left.is_proven_cold(), "{left:?}");
    let facts = Facts::of(&file).unwrap();
    assert_eq!((facts.len, facts.cached), (LEN, 0), "{facts:?}");
    warm(&file, 0..LEN).unwrap();
    let all = residency(&file, 0..LEN).unwrap();
    assert_eq!(all.cached, all.pages, "{all:?}");
    assert_eq!(Facts::of(&file).unwrap().cached, LEN);
    facts
}

fn when_copied(facts: &Facts) -> ReadMethod {
    choose(facts, &LoadRequest { load: Load::Auto, copied: true, weights: LEN }).method
}

/// A fresh file system of `size` MiB made by `mkfs`, mounted with `noise` in it.
fn with_disk(mkfs: &[&str], ty: &str, size: u64, test: impl FnOnce(&Path)) {
    let dir = folder();
    let disk = dir.path().join("disk");
    File::create(&disk).unwrap().set_len(size << 20).unwrap();
    if !run(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&disk)) {
        return;
    }
    let args = ["-t", ty, "-o", "loop", disk.to_str().unwrap()];
    let Some(mounted) = Mounted::new(&args, &dir.path().join("at")) else { return };
    let path = mounted.0.join("f");
    fs::write(&path, noise()).unwrap();
    test(&path);
}

/// cachestat says 0 on overlayfs, whatever is cached.
#[test]
fn overlayfs_tells_the_truth() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    for name in ["lower", "upper", "work"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("lower").join("f"), noise()).unwrap();
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        at("lower").display(),
        at("upper").display(),
        at("work").display()
    );
    let Some(mounted) = Mounted::new(&["-t", "overlay", "overlay", "-o", &options], &at("merged"))
    else {
        return;
    };
    let facts = cold_to_warm(&mounted.0.join("f"));
    assert_eq!(facts.filesystem.name, "overlay");
}

#[test]
fn ext4_is_local() {
    with_disk(&["mkfs.ext4", "-q", "-F"], "ext4", 32, |path| {
        let facts = cold_to_warm(path);
        assert_eq!(
            (facts.filesystem.name.as_str(), facts.filesystem.kind),
            ("ext2/3/4", Kind::Local)
        );
        assert_eq!(when_copied(&facts), ReadMethod::Direct);
    });
}

#[test]
fn xfs_is_local_and_says_its_alignment() {
    with_disk(&["mkfs.xfs", "-q", "-f"], "xfs", 320, |path| {
        let facts = cold_to_warm(path);
        assert_eq!((facts.filesystem.name.as_str(), facts.filesystem.kind), ("xfs", Kind::Local));
        let align = facts.direct.unwrap();
        assert!(align.offset.is_power_of_two() && align.memory <= 4096, "{align:?}");
        assert_eq!(when_copied(&facts), ReadMethod::Direct);
    });
}

#[test]
fn btrfs_is_read_through_the_page_cache() {
    with_disk(&["mkfs.btrfs", "-q", "-f"], "btrfs", 160, |path| {
        let facts = cold_to_warm(path);
        assert_eq!(
            (facts.filesystem.name.as_str(), facts.filesystem.kind),
            ("btrfs", Kind::CopyOnWrite)
        );
        assert_eq!(when_copied(&facts), ReadMethod::Read);
    });
}

#[test]
fn squashfs_is_read_through_the_page_cache() {
    let dir = folder();
    fs::create_dir(dir.path().join("in")).unwrap();
    fs::write(dir.path().join("in/f"), noise()).unwrap();
    let disk = dir.path().join("disk");
    if !run(Command::new("mksquashfs").arg(dir.path().join("in")).arg(&disk).arg("-quiet")) {
        return;
    }
    let args = ["-t", "squashfs", "-o", "loop", disk.to_str().unwrap()];
    let Some(mounted) = Mounted::new(&args, &dir.path().join("at")) else { return };
    let facts = cold_to_warm(&mounted.0.join("f"));
    assert_eq!(facts.filesystem.kind, Kind::CopyOnWrite);
    assert_eq!(when_copied(&facts), ReadMethod::Read);
}
