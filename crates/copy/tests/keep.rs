//! What belongs to a file besides its bytes is kept.
#![cfg(target_os = "linux")]

use std::fs::{self, File, FileTimes, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use alight_copy::NotKept;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use crate::support::{self, as_nobody, folder, is_root, recursively, simply};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Two moments that no clock of today says.
fn set_times(path: &Path) {
    let at = |seconds, nanos| SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
    let times = FileTimes::new()
        .set_accessed(at(1_000_000_000, 123_456_789))
        .set_modified(at(987_654_321, 987_654_321));
    File::open(path).unwrap().set_times(times).unwrap();
}

fn times(path: &Path) -> [i64; 4] {
    let m = fs::symlink_metadata(path).unwrap();
    [m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec()]
}

#[test]
fn permissions_and_times_to_the_nanosecond() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, vec![7; 20_000]).unwrap();
    for wanted in [0o600, 0o640, 0o444, 0o777, 0o4755, 0o2755, 0o1644] {
        set_mode(&from, wanted);
        set_times(&from);
        let before = times(&from);
        let options = alight_copy::Options { verify: true, ..Default::default() };
        let done = support::run(&[&from], &to, &options).unwrap().succeeds();
        assert_eq!(done.copied[0].not_kept, []);
        assert_eq!(mode(&to), wanted);
        assert_eq!(times(&to), before, "atime, mtime");
    }
}

#[test]
fn extended_attributes_and_acls() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, b"bytes").unwrap();
    let long = vec![b'x'; 2000];
    for (name, value) in [("user.one", &b"1"[..]), ("user.empty", b""), ("user.long", &long)] {
        if let Err(error) = setxattr(&from, name, value, XattrFlags::empty()) {
            return eprintln!("skipped: no extended attributes here: {error}");
        }
    }
    // Version 2: owner rw, user 1234 r, group r, mask r, others nothing.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, rights, id) in
        [(1, 6, none), (2, 4, 1234), (4, 4, none), (0x10, 4, none), (0x20, 0, none)]
    {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(rights));
        acl.extend(u32::to_le_bytes(id));
    }
    let with_acl = setxattr(&from, "system.posix_acl_access", &acl, XattrFlags::empty());
    if let Err(error) = &with_acl {
        eprintln!("skipped: no ACLs here: {error}");
    }
    // Attributes cannot be written to a file that is read-only, which it is in the end.
    set_mode(&from, 0o440);
    let done = simply(&from, &to).succeeds();
    assert_eq!(done.copied[0].not_kept, []);
    let read = |path: &Path, name: &str| {
        let mut value = vec![0; 4096];
        getxattr(path, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    for name in ["user.one", "user.empty", "user.long", "system.posix_acl_access"] {
        assert_eq!(read(&to, name), read(&from, name), "{name}");
    }
    assert_eq!(read(&to, "user.one").unwrap(), b"1");
    assert!(with_acl.is_err() || read(&to, "system.posix_acl_access").unwrap().len() == 44);
    assert_eq!(mode(&to), mode(&from));
}

#[test]
fn the_owner_if_one_may() {
    if !is_root() {
        return eprintln!("skipped: only root may give files away");
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("from"), b"bytes").unwrap();
    chown(at("from"), Some(1234), Some(4321)).unwrap();
    // A change of owner takes these bits away; they have to be given afterwards.
    set_mode(&at("from"), 0o6755);
    simply(&at("from"), &at("to")).succeeds();
    let made = fs::metadata(at("to")).unwrap();
    assert_eq!((made.uid(), made.gid(), mode(&at("to"))), (1234, 4321, 0o6755));

    fs::create_dir(at("tree")).unwrap();
    symlink("nowhere", at("tree/link")).unwrap();
    lchown(at("tree/link"), Some(1234), Some(4321)).unwrap();
    chown(at("tree"), Some(12), Some(21)).unwrap();
    recursively(&at("tree"), &at("copy")).succeeds();
    for (path, owner) in [("copy/link", (1234, 4321)), ("copy", (12, 21))] {
        let made = fs::symlink_metadata(at(path)).unwrap();
        assert_eq!((made.uid(), made.gid()), owner, "{path}");
    }
}

#[test]
fn a_program_of_somebody_else_does_not_run_as_the_one_who_copied_it() {
    if !is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let folder = folder();
    set_mode(folder.path(), 0o777);
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, b"bytes").unwrap();
    set_mode(&from, 0o6755);
    let done = as_nobody(|| simply(&from, &to)).succeeds();
    let made = fs::metadata(&to).unwrap();
    assert_eq!((made.uid(), made.gid(), mode(&to)), (65534, 65534, 0o755));
    let lost = &done.copied[0].not_kept;
    assert!(matches!(lost[..], [NotKept::Group { .. }, NotKept::Owner { .. }]), "{lost:?}");
    // As with cp -p.
    assert!(lost.iter().all(NotKept::is_expected));
    // One of the two is enough.
    for (owner, group) in [(0, 65534), (65534, 0)] {
        chown(&from, Some(owner), Some(group)).unwrap();
        set_mode(&from, 0o6755);
        let done = as_nobody(|| simply(&from, &to)).succeeds();
        assert_eq!((done.copied[0].not_kept.len(), mode(&to)), (1, 0o755), "{done:?}");
    }
}

#[test]
fn what_a_filesystem_cannot_keep_is_told() {
    let folder = folder();
    let from = folder.path().join("from");
    fs::write(&from, b"bytes").unwrap();
    // ext4 takes one of 3000 bytes, ramfs none.
    if setxattr(&from, "user.one", b"1", XattrFlags::empty()).is_err() {
        return eprintln!("skipped: no extended attributes here");
    }
    let at = folder.path().join("ramfs");
    fs::create_dir(&at).unwrap();
    let mount = |args: &[&str]| {
        let output = std::process::Command::new(args[0]).args(&args[1..]).arg(&at).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !is_root() || !mount(&["mount", "-t", "ramfs", "none"]) {
        return eprintln!("skipped: only root can mount");
    }
    let done = simply(&from, &at.join("to"));
    assert!(mount(&["umount"]));
    let lost = &done.succeeds().copied[0].not_kept;
    assert!(
        matches!(&lost[..], [NotKept::Attribute { name, .. }] if name == "user.one"),
        "{lost:?}"
    );
    assert!(!lost[0].is_expected());
}

/// Until a copy is complete, only its owner may open it, whatever the umask says.
#[test]
fn nobody_else_may_look_before_it_is_complete() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, vec![7; 3 << 20]).unwrap();
    set_mode(&from, 0o600);
    let mut seen = 0;
    alight_copy::copy(std::slice::from_ref(&from), &to, &Default::default(), &mut |_| {
        for entry in fs::read_dir("/proc/self/fd").unwrap().flatten() {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let unnamed = link.to_string_lossy().ends_with("(deleted)");
            if unnamed && link.starts_with(folder.path()) {
                assert_eq!(mode(&entry.path()), 0o600);
                seen += 1;
            }
        }
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    if seen == 0 {
        eprintln!("skipped: files have names here from the beginning");
    }
}

/// An ACL of version 2: owner rwx, user 1234 rwx, group r-x, mask rwx, others r-x.
fn acl() -> Vec<u8> {
    let mut acl = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, rights, id) in
        [(1, 7, none), (2, 7, 1234), (4, 5, none), (0x10, 7, none), (0x20, 5, none)]
    {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(rights));
        acl.extend(u32::to_le_bytes(id));
    }
    acl
}

/// What a folder hands down to everything that is made in it (a default ACL) is no right of a copy.
#[test]
fn a_copy_lets_nobody_in_whom_its_source_does_not() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("from/deep")).unwrap();
    for name in ["from/a", "from/deep/b"] {
        fs::write(at(name), b"bytes").unwrap();
        set_mode(&at(name), 0o664);
    }
    for name in ["into", "from/into"] {
        fs::create_dir(at(name)).unwrap();
    }
    const DEFAULT: &str = "system.posix_acl_default";
    const ACCESS: &str = "system.posix_acl_access";
    if let Err(error) = setxattr(at("into"), DEFAULT, &acl(), XattrFlags::empty()) {
        return eprintln!("skipped: no ACLs here: {error}");
    }
    // One that the source has is kept.
    setxattr(at("from/into"), DEFAULT, &acl(), XattrFlags::empty()).unwrap();
    let mut seen = 0;
    let options = alight_copy::Options { recursive: true, ..Default::default() };
    let sources = [at("from"), at("from/a")];
    let summary = alight_copy::copy(&sources, &at("into"), &options, &mut |_| {
        // At no moment: neither what has no name yet, nor the folders.
        let new = fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.path());
        let new = new.filter(|path| {
            fs::read_link(path).is_ok_and(|to| {
                to.starts_with(at("into")) && (to != at("into")) && !to.ends_with("from/into")
            })
        });
        for path in new {
            // Through /proc: what is open, whatever its name.
            for acl in [ACCESS, DEFAULT] {
                let found = getxattr(&path, acl, &mut [0; 64]).ok();
                assert_eq!(found, None, "{acl} of {:?}", fs::read_link(&path));
            }
            assert_eq!(mode(&path) & 0o002, 0);
            seen += 1;
        }
        std::ops::ControlFlow::Continue(())
    });
    assert_eq!(summary.unwrap().failed, 0);
    let size = |name: &str, acl: &str| getxattr(at(name), acl, &mut [0; 64]).ok();
    for name in ["into/a", "into/from", "into/from/a", "into/from/deep", "into/from/deep/b"] {
        assert_eq!((size(name, ACCESS), size(name, DEFAULT)), (None, None), "{name}");
    }
    for name in ["from/a", "from/deep", "from/deep/b", "from"] {
        assert_eq!(mode(&at("into").join(name)), mode(&at(name)), "{name}");
    }
    assert_eq!((size("into/from/into", ACCESS), size("into/from/into", DEFAULT)), (None, Some(44)));
    assert!(seen > 0);
}
