//! A replacement is there as a whole or not at all, and leaves nothing behind.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use alight_pages::{FileKind, Map, ReplaceError, Replacement};
use tempfile::TempDir;

/// A folder on a disk.
fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_new_file_appears_when_it_is_committed() {
    let folder = folder();
    let dest = folder.path().join("packed");
    let new = Replacement::create(&dest, 5).unwrap();
    new.file().write_all(b"hello").unwrap();
    assert!(!dest.exists());
    new.commit().unwrap();
    assert_eq!(fs::read(&dest).unwrap(), b"hello");
    assert_eq!(names(folder.path()), ["packed"]);
    // The permissions of any new file.
    let other = folder.path().join("other");
    File::create(&other).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&dest), mode(&other));
}

#[test]
fn an_old_file_stays_until_the_commit_and_for_who_has_it_mapped() {
    let folder = folder();
    let dest = folder.path().join("packed");
    fs::write(&dest, b"old").unwrap();
    let map = Map::open(&dest).unwrap();
    let new = Replacement::create(&dest, 1000).unwrap();
    new.file().write_all(b"new").unwrap();
    assert_eq!(fs::read(&dest).unwrap(), b"old");
    new.commit().unwrap();
    assert_eq!(fs::read(&dest).unwrap(), b"new");
    assert_eq!(map.bytes(), b"old");
    map.check().unwrap();
    assert_eq!(names(folder.path()), ["packed"]);
}

#[test]
fn dropped_it_leaves_nothing() {
    let folder = folder();
    let dest = folder.path().join("packed");
    fs::write(&dest, b"old").unwrap();
    let new = Replacement::create(&dest, 10).unwrap();
    new.file().write_all(b"new").unwrap();
    drop(new);
    assert_eq!(fs::read(&dest).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["packed"]);
}

#[test]
fn room_is_set_aside_and_what_is_not_used_is_given_back() {
    let folder = folder();
    let dest = folder.path().join("packed");
    let new = Replacement::create(&dest, 8 << 20).unwrap();
    let blocks = |file: &File| file.metadata().unwrap().blocks() * 512;
    assert!(blocks(new.file()) >= 8 << 20, "{} bytes set aside", blocks(new.file()));
    assert_eq!(new.file().metadata().unwrap().len(), 0);
    new.file().write_all(b"short").unwrap();
    new.commit().unwrap();
    let file = File::open(&dest).unwrap();
    assert!(blocks(&file) < 1 << 20, "{} bytes for 5", blocks(&file));
}

#[test]
fn a_link_stays_and_what_it_leads_to_is_replaced() {
    let folder = folder();
    let (dest, link) = (folder.path().join("packed"), folder.path().join("link"));
    fs::write(&dest, b"old").unwrap();
    std::os::unix::fs::symlink("packed", &link).unwrap();
    let new = Replacement::create(&link, 3).unwrap();
    new.file().write_all(b"new").unwrap();
    new.commit().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&dest).unwrap(), b"new");
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = folder();
    let error = Replacement::create(folder.path(), 3).unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Directory, .. }), "{error}");
    let error = Replacement::create(Path::new("/dev/null"), 3).unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { .. }), "{error}");
    let missing = folder.path().join("missing").join("packed");
    let error = Replacement::create(&missing, 3).unwrap_err();
    assert!(matches!(error, ReplaceError::Create { .. }), "{error}");
    assert!(error.to_string().starts_with(missing.to_str().unwrap()), "{error}");
    assert_eq!(names(folder.path()), [""; 0]);
}

/// The other half of the test below: writes, says so, and waits to be killed.
#[test]
#[ignore = "run by the test that kills it"]
fn child_that_is_killed_while_it_writes() {
    let dest = std::env::var("REPLACE_DEST").unwrap();
    let new = Replacement::create(Path::new(&dest), 1 << 20).unwrap();
    new.file().write_all(&vec![7; 500_000]).unwrap();
    println!("unnamed: {}", new.is_unnamed());
    std::io::stdin().read_exact(&mut [0]).unwrap();
    new.commit().unwrap();
}

#[test]
fn killed_in_the_middle_it_leaves_the_old_file_and_nothing_else() {
    let folder = folder();
    let dest = folder.path().join("packed");
    fs::write(&dest, b"old").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_that_is_killed_while_it_writes", "--nocapture"])
        .env("REPLACE_DEST", &dest)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = child.stdout.take().unwrap();
    while !said.contains("unnamed: ") || !said.ends_with('\n') {
        let mut byte = [0];
        stdout.read_exact(&mut byte).unwrap();
        said.push(byte[0] as char);
    }
    child.kill().unwrap(); // SIGKILL
    child.wait().unwrap();
    assert_eq!(fs::read(&dest).unwrap(), b"old");
    if said.contains("unnamed: true") {
        assert_eq!(names(folder.path()), ["packed"]);
    } else {
        eprintln!("skipped the leftovers: this filesystem has no files without a name");
    }
}

/// A filesystem of 1 MiB, which may be mounted by root only.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_noticed_at_once_with_what_is_needed_and_what_is_free() {
    use std::ffi::CString;
    struct Mounted(CString);
    impl Drop for Mounted {
        fn drop(&mut self) {
            // SAFETY: a string that ends in zero.
            unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
        }
    }
    let folder = folder();
    let at = CString::new(folder.path().to_str().unwrap()).unwrap();
    // SAFETY: strings that end in zero.
    let status = unsafe {
        let (kind, options) = (c"tmpfs".as_ptr(), c"size=1m".as_ptr());
        libc::mount(kind, at.as_ptr(), kind, 0, options.cast())
    };
    if status != 0 {
        eprintln!("skipped: cannot mount a small filesystem: {}", std::io::Error::last_os_error());
        return;
    }
    let _mounted = Mounted(at);
    let dest = folder.path().join("packed");
    fs::write(&dest, vec![1; 300_000]).unwrap();
    let error = Replacement::create(&dest, 1 << 20).unwrap_err();
    let ReplaceError::NoSpace { needed, free, .. } = &error else { panic!("{error}") };
    assert_eq!(*needed, 1 << 20);
    assert!((600_000..760_000).contains(free), "{free}");
    let text = error.to_string();
    assert!(text.contains("packed") && text.contains("1048576") && text.contains("free"), "{text}");
    assert_eq!(names(folder.path()), ["packed"]);
    // What fits goes in, and after a failure nothing is used up.
    let new = Replacement::create(&dest, 600_000).unwrap();
    new.file().write_all(&[2; 600_000]).unwrap();
    // The disk becomes full while more is written than was promised.
    let error = new.file().write_all(&[2; 600_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(new);
    assert_eq!(fs::read(&dest).unwrap(), vec![1; 300_000]);
    Replacement::create(&dest, 700_000).unwrap();
}
