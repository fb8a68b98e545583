//! Copies on and between real filesystems, mounted where the test may do so (as root, with the
//! filesystem's tools installed); what is skipped is said.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use alight_pages::copy::{CopyError, Fallback, Method, Options, Reflink};

use crate::common::copying::{
    METHODS, allocated, assert_same, by, cached_pages, copy, segments, stays_half_warm,
};
use crate::common::mounts::{Mounted, bare, in_a_file};
use crate::common::{self, contents, disk_folder, write};

const LEN: usize = (20 << 20) + 777;

fn mounted(made: Result<Mounted, String>) -> Option<Mounted> {
    made.map_err(|reason| eprintln!("skipped: {}", reason.trim())).ok()
}

fn at(mounted: &Mounted, name: &str) -> std::path::PathBuf {
    mounted.folder.path().join(name)
}

fn cached(path: &Path) -> usize {
    cached_pages(path).iter().filter(|there| **there).count()
}

fn reflinks(mounted: &Mounted) {
    let (from, to) = (at(mounted, "from"), at(mounted, "to"));
    // Not synced: what is shared must be what was written all the same.
    fs::write(&from, contents(LEN)).unwrap();
    let before = cached(&from);
    let report = copy(&from, &to, &Options::default()).unwrap();
    assert_eq!((report.method, &report.fallbacks[..]), (Method::Reflink, &[][..]));
    assert_eq!(cached(&to), 0, "nothing is copied, so nothing is cached");
    assert_eq!(cached(&from), before);
    assert_same(&from, &to);
    // They are two files.
    File::options().write(true).open(&to).unwrap().write_all_at(b"other", 5).unwrap();
    assert_eq!(fs::read(&from).unwrap(), contents(LEN));
    // What is not to be shared is not: copy_file_range would.
    let mut never = Options::default();
    never.reflink = Reflink::Never;
    write(&from, &contents(LEN));
    let report = stays_half_warm(&from, || copy(&from, &to, &never).unwrap());
    assert!(!matches!(report.method, Method::Reflink | Method::CopyFileRange), "{report:?}");
    assert_eq!(cached(&to), 0, "{report:?}");
    assert_same(&from, &to);
}

#[test]
fn btrfs_shares_bytes() {
    let Some(mounted) = mounted(in_a_file(256, &["mkfs.btrfs", "-q"], "")) else { return };
    reflinks(&mounted);
    // And where it is asked for reads and writes without traces, it refuses them.
    let (from, to) = (at(&mounted, "from"), at(&mounted, "to"));
    let mut options = by(Method::ReadWrite);
    options.reflink = Reflink::Never;
    let report = copy(&from, &to, &options).unwrap();
    assert_eq!(report.method, Method::ReadWrite);
    eprintln!("btrfs, read/write: {:?}", report.fallbacks);
    assert_eq!(cached(&to), 0, "{report:?}");
}

#[test]
fn compressed_btrfs_leaves_nothing_cached() {
    let made = in_a_file(256, &["mkfs.btrfs", "-q"], "compress-force=zstd");
    let Some(mounted) = mounted(made) else { return };
    let (from, to) = (at(&mounted, "from"), at(&mounted, "to"));
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 1000) as u8).collect();
    write(&from, &bytes);
    let mut never = Options::default();
    never.reflink = Reflink::Never;
    let report = stays_half_warm(&from, || copy(&from, &to, &never).unwrap());
    assert_eq!(cached(&to), 0, "{report:?}");
    assert_same(&from, &to);
}

#[test]
fn xfs_shares_bytes() {
    let Some(mounted) = mounted(in_a_file(400, &["mkfs.xfs", "-q"], "")) else { return };
    reflinks(&mounted);
}

#[test]
fn always_is_an_error_where_bytes_cannot_be_shared() {
    let Some(mounted) = mounted(in_a_file(64, &["mkfs.ext4", "-q"], "")) else { return };
    let (from, to) = (at(&mounted, "from"), at(&mounted, "to"));
    write(&from, b"bytes");
    let mut always = Options::default();
    always.reflink = Reflink::Always;
    let error = copy(&from, &to, &always).unwrap_err();
    assert!(matches!(error, CopyError::NotShared { .. }), "{error}");
    assert!(error.to_string().contains("--reflink=auto"), "{error}");
}

#[test]
fn from_one_filesystem_to_another() {
    let ext4 = mounted(in_a_file(128, &["mkfs.ext4", "-q"], ""));
    let btrfs = mounted(in_a_file(256, &["mkfs.btrfs", "-q"], ""));
    let memory = mounted(bare("tmpfs", "size=64m"));
    let (Some(ext4), Some(btrfs), Some(memory)) = (ext4, btrfs, memory) else { return };
    for (one, two) in [(&ext4, &btrfs), (&btrfs, &ext4), (&ext4, &memory), (&memory, &ext4)] {
        let (from, to) = (at(one, "from"), at(two, "to"));
        write(&from, &contents(LEN));
        for method in [None, Some(Method::CopyFileRange), Some(Method::ReadWrite)] {
            let mut options = Options::default();
            options.method = method;
            let report = copy(&from, &to, &options).unwrap();
            assert_same(&from, &to);
            assert_eq!(report.method, Method::ReadWrite, "{report:?}");
            let refused = |method| Fallback::Refused { method, errno: libc::EXDEV };
            assert!(report.fallbacks.contains(&refused(Method::Reflink)), "{report:?}");
            if method != Some(Method::ReadWrite) {
                assert!(report.fallbacks.contains(&refused(Method::CopyFileRange)), "{report:?}");
            }
            fs::remove_file(&to).unwrap();
        }
    }
}

#[test]
fn between_two_plain_disks_it_goes_around_the_page_cache() {
    let [one, two] = [1, 2].map(|_| mounted(in_a_file(128, &["mkfs.ext4", "-q"], "")));
    let (Some(one), Some(two)) = (one, two) else { return };
    let (from, to) = (at(&one, "from"), at(&two, "to"));
    write(&from, &contents(LEN));
    let report = stays_half_warm(&from, || copy(&from, &to, &Options::default()).unwrap());
    assert_eq!(report.method, Method::Direct, "{report:?}");
    assert_eq!(cached(&to), 0, "{report:?}");
    assert_same(&from, &to);
}

/// Smaller blocks than pages: holes end within a page, and cannot be left out by direct writes.
#[test]
fn ext4_with_blocks_of_one_kib() {
    let made = in_a_file(128, &["mkfs.ext4", "-q", "-b", "1024"], "");
    let Some(mounted) = mounted(made) else { return };
    let (from, to) = (at(&mounted, "from"), at(&mounted, "to"));
    let file = File::create(&from).unwrap();
    file.write_all_at(&contents(LEN), 0).unwrap();
    file.write_all_at(&contents(5000), (30 << 20) + 1024).unwrap();
    file.set_len((40 << 20) + 3).unwrap();
    file.sync_all().unwrap();
    for method in [None, Some(METHODS[0]), Some(METHODS[1]), Some(METHODS[2])] {
        let mut options = Options::default();
        options.method = method;
        let report = copy(&from, &to, &options).unwrap();
        assert_same(&from, &to);
        assert_eq!(segments(&from), segments(&to), "{report:?}");
        assert!(allocated(&to) <= allocated(&from) + 4096);
        assert_ne!(report.method, Method::Direct, "{report:?}");
        // But for a page that the system has taken back by itself meanwhile.
        assert!(cached(&to) <= cached(&from) + 16, "{} and {}", cached(&from), cached(&to));
    }
}

#[test]
fn overlay_is_as_it_was() {
    let layers = disk_folder();
    let layer = |name: &str| {
        fs::create_dir(layers.path().join(name)).unwrap();
        format!("{name}dir={}", layers.path().join(name).display())
    };
    let options = [layer("lower"), layer("upper"), layer("work")].join(",");
    write(&layers.path().join("lower/from"), &contents(LEN));
    let Some(mounted) = mounted(bare("overlay", &options)) else { return };
    let (from, to) = (at(&mounted, "from"), at(&mounted, "to"));
    for method in [None, Some(Method::CopyFileRange), Some(Method::ReadWrite)] {
        let mut options = Options::default();
        options.method = method;
        let report = stays_half_warm(&from, || copy(&from, &to, &options).unwrap());
        assert_eq!(cached(&to), 0, "{report:?}");
        assert_same(&from, &to);
    }
}

#[test]
fn a_filesystem_that_is_a_program() {
    let bytes = contents(3 << 20);
    let served = bytes.clone();
    let fuse = common::fuse::Fuse::mount(common::fuse::Behaviour {
        len: bytes.len(),
        refuse_direct_open: 0,
        statfs: true,
        read: Box::new(move |asked| {
            let end = (asked.offset + asked.len).min(served.len());
            Ok(served[asked.offset.min(end)..end].to_vec())
        }),
    });
    let fuse = match fuse {
        Ok(fuse) => fuse,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let folder = disk_folder();
    let to = folder.path().join("to");
    let report = copy(&fuse.path, &to, &Options::default()).unwrap();
    assert!(fs::read(&to).unwrap() == bytes, "{report:?}");
    assert_eq!(report.method, Method::ReadWrite, "{report:?}");
}

#[test]
fn no_room_is_said_before_anything_is_written() {
    let Some(mounted) = mounted(in_a_file(16, &["mkfs.ext4", "-q", "-m", "20"], "")) else {
        return;
    };
    let folder = disk_folder();
    let (from, to) = (folder.path().join("from"), at(&mounted, "to"));
    write(&from, &contents(LEN));
    for method in [None, Some(METHODS[0]), Some(METHODS[1]), Some(METHODS[2])] {
        let mut options = Options::default();
        options.method = method;
        match copy(&from, &to, &options) {
            Err(CopyError::NoSpace { needed, free, .. }) => {
                assert_eq!(needed, LEN as u64);
                assert!(free.is_some_and(|free| free < needed));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(allocated(&to), 0);
    }
    // What a filesystem keeps for root is there for root (as which this test runs, if it can mount).
    let free = |path: &Path| {
        let found = rustix::fs::statvfs(path).unwrap();
        (found.f_bavail * found.f_frsize, found.f_bfree * found.f_frsize)
    };
    let (others, root) = free(&to);
    let between = (others + root) / 2;
    write(&from, &contents(between as usize));
    copy(&from, &to, &Options::default()).unwrap();
    fs::remove_file(&to).unwrap();
    // A hole takes no space.
    File::create(&from).unwrap().set_len(1 << 30).unwrap();
    copy(&from, &to, &Options::default()).unwrap();
    assert_eq!((fs::metadata(&to).unwrap().len(), allocated(&to)), (1 << 30, 0));
}
