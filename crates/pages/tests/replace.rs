//! A replacement is there as a whole or not at all, and leaves no leftover.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use alight_pages::{FileKind, Input, Map, New, ReplaceError, Replacement};
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

/// One that replaces what is there.
fn create(dest: &Path, len: u64) -> Result<Replacement, ReplaceError> {
    Replacement::create(dest, New { len, replace: true, inputs: &[] })
}

#[test]
fn a_new_file_appears_when_it_is_committed() {
    let folder = folder();
    let dest = folder.path().join("packed");
    let new = create(&dest, 5).unwrap();
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
    let new = create(&dest, 1000).unwrap();
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
    let new = create(&dest, 10).unwrap();
    new.file().write_all(b"new").unwrap();
    drop(new);
    assert_eq!(fs::read(&dest).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["packed"]);
}

#[test]
fn room_is_set_aside_and_what_is_not_used_is_given_back() {
    let folder = folder();
    let dest = folder.path().join("packed");
    let new = create(&dest, 8 << 20).unwrap();
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
    let new = create(&link, 3).unwrap();
    new.file().write_all(b"new").unwrap();
    new.commit().unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&dest).unwrap(), b"new");
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = folder();
    let error = create(folder.path(), 3).unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Directory, .. }), "{error}");
    let error = create(Path::new("/dev/null"), 3).unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { .. }), "{error}");
    let missing = folder.path().join("missing").join("packed");
    let error = create(&missing, 3).unwrap_err();
    assert!(matches!(error, ReplaceError::Name { .. }), "{error}");
    assert!(error.to_string().starts_with(missing.to_str().unwrap()), "{error}");
    assert_eq!(names(folder.path()), [""; 0]);
}

/// The other half of the test below: writes, says so, and waits to be killed.
#[test]
#[ignore = "run by the test that kills it"]
fn child_that_is_killed_while_it_writes() {
    let dest = std::env::var("REPLACE_DEST").unwrap();
    let new = create(Path::new(&dest), 1 << 20).unwrap();
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
        .args(["--ignored", "--exact", "replace::child_that_is_killed_while_it_writes"])
        .arg("--nocapture")
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
    let error = create(&dest, 1 << 20).unwrap_err();
    let ReplaceError::NoSpace { needed, free, .. } = &error else { panic!("{error}") };
    assert_eq!(*needed, 1 << 20);
    assert!(free.is_some_and(|free| (600_000..760_000).contains(&free)), "{free:?}");
    let text = error.to_string();
    assert!(text.contains("packed") && text.contains("1.05 MB") && text.contains("free"), "{text}");
    assert_eq!(names(folder.path()), ["packed"]);
    // What fits goes in, and after a failure nothing is used up.
    let new = create(&dest, 600_000).unwrap();
    new.file().write_all(&[2; 600_000]).unwrap();
    // The disk becomes full while more is written than was promised.
    let error = new.file().write_all(&[2; 600_000]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop(new);
    assert_eq!(fs::read(&dest).unwrap(), vec![1; 300_000]);
    create(&dest, 700_000).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn input(path: &Path) -> Input {
    Input::of(&File::open(path).unwrap()).unwrap()
}

#[test]
fn nothing_that_it_is_made_of_is_replaced_by_whatever_name() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("source"), b"precious").unwrap();
    fs::hard_link(at("source"), at("hard")).unwrap();
    std::os::unix::fs::symlink("source", at("link")).unwrap();
    std::os::unix::fs::symlink("hard", at("link to hard")).unwrap();
    for name in ["source", "hard", "link", "link to hard"] {
        for replace in [false, true] {
            let new = New { len: 3, replace, inputs: &[input(&at("source"))] };
            let error = Replacement::create(&at(name), new).unwrap_err();
            assert!(matches!(error, ReplaceError::Input { .. }), "{name}: {error}");
        }
    }
    // Nor if it gets that name while the new file is made.
    let new = New { len: 3, replace: true, inputs: &[input(&at("source"))] };
    let made = Replacement::create(&at("new"), new).unwrap();
    fs::rename(at("hard"), at("new")).unwrap();
    let error = made.commit().unwrap_err();
    assert!(matches!(error, ReplaceError::Input { .. }), "{error}");
    assert_eq!(fs::read(at("new")).unwrap(), b"precious");
    assert_eq!(names(folder.path()), ["link", "link to hard", "new", "source"]);
}

#[test]
fn without_leave_nothing_is_replaced_not_even_a_link_that_leads_nowhere() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), b"old").unwrap();
    std::os::unix::fs::symlink("nowhere", at("dangling")).unwrap();
    let error = |name| Replacement::create(&at(name), New::default()).unwrap_err();
    assert!(matches!(error("file"), ReplaceError::Exists { .. }));
    let dangling = error("dangling");
    assert!(matches!(dangling, ReplaceError::DanglingLink { .. }), "{dangling}");
    assert!(dangling.to_string().contains("--force"), "{dangling}");
    // With it, the link is, and nothing appears where it leads.
    create(&at("dangling"), 3).unwrap().commit().unwrap();
    assert!(fs::symlink_metadata(at("dangling")).unwrap().is_file());
    assert_eq!(names(folder.path()), ["dangling", "file"]);
}

/// A link that takes the folder's name while the file is made leads nowhere else.
#[test]
fn the_folder_is_the_one_that_was_found_at_first() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for name in ["one", "two"] {
        fs::create_dir(at(name)).unwrap();
    }
    let new = create(&at("one/new"), 3).unwrap();
    fs::rename(at("one"), at("moved")).unwrap();
    std::os::unix::fs::symlink("two", at("one")).unwrap();
    new.commit().unwrap();
    assert_eq!((names(&at("moved")), names(&at("two"))), (vec!["new".to_owned()], vec![]));
}

#[test]
fn nobody_may_read_it_who_may_not_read_what_it_is_made_of() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for (name, of) in [
        ("private", 0o600),
        ("group", 0o640),
        ("public", 0o644),
        ("old", 0o600),
        ("not the group", 0o604),
    ] {
        fs::write(at(name), b"x").unwrap();
        set_mode(&at(name), of);
    }
    File::create(at("any")).unwrap();
    let any = mode(&at("any"));
    let made = |name: &str, inputs: &[&str]| {
        let inputs: Vec<Input> = inputs.iter().map(|name| input(&at(name))).collect();
        let new = New { len: 0, replace: true, inputs: &inputs };
        let made = Replacement::create(&at(name), new).unwrap();
        // At no moment more.
        let begun = made.file().metadata().unwrap().mode() & 0o777;
        made.commit().unwrap();
        assert_eq!(mode(&at(name)), begun);
        begun
    };
    assert_eq!(made("a", &["public"]), any);
    assert_eq!(made("b", &["private"]), 0o600);
    assert_eq!(made("c", &["public", "private"]), 0o600);
    assert_eq!(made("d", &["public", "group"]), any & 0o660);
    assert_eq!(made("e", &["private", "group"]), 0o600);
    assert_eq!(made("g", &["not the group"]), 0o600, "members of the group may not read it");
    assert_eq!(made("h", &["not the group", "group"]), 0o600);
    assert_eq!(made("old", &["public"]), 0o600, "the one that it replaces counts too");
    // The group of another user is not the one that the new file would have.
    if std::os::unix::fs::chown(at("group"), None, Some(4321)).is_ok() {
        assert_eq!(made("f", &["group"]), 0o600);
    }
}

/// What a folder hands down to new files lets no other user in either.
#[cfg(target_os = "linux")]
#[test]
fn a_private_file_has_no_acl_of_its_folder() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("private"), b"x").unwrap();
    set_mode(&at("private"), 0o600);
    if !set_acl(folder.path(), "system.posix_acl_default", 7) {
        return;
    }
    let new = New { len: 0, replace: false, inputs: &[input(&at("private"))] };
    Replacement::create(&at("new"), new).unwrap().commit().unwrap();
    let found = rustix::fs::getxattr(at("new"), "system.posix_acl_access", &mut [0; 64]);
    assert_eq!((mode(&at("new")), found), (0o600, Err(rustix::io::Errno::NODATA)));
}

/// Gives it an ACL: owner rwx, user 1234 `rights`, group r-x, mask rwx, others r-x. Says whether it has it.
#[cfg(target_os = "linux")]
fn set_acl(path: &Path, name: &str, rights: u16) -> bool {
    // Version 2.
    let mut acl = 2_u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, rights, id) in
        [(1, 7, none), (2, rights, 1234), (4, 5, none), (0x10, 7, none), (0x20, 5, none)]
    {
        acl.extend(u16::to_le_bytes(tag));
        acl.extend(u16::to_le_bytes(rights));
        acl.extend(u32::to_le_bytes(id));
    }
    let set = rustix::fs::setxattr(path, name, &acl, rustix::fs::XattrFlags::empty());
    if let Err(error) = set {
        eprintln!("skipped: no ACLs here: {error}");
    }
    set.is_ok()
}

#[cfg(target_os = "linux")]
#[test]
fn whom_an_acl_shuts_out_may_not_read_what_is_made_of_it_either() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    File::create(at("any")).unwrap();
    for (rights, expected) in [(4, mode(&at("any"))), (0, 0o600)] {
        let source = at(&format!("source {rights}"));
        fs::write(&source, b"x").unwrap();
        if !set_acl(&source, "system.posix_acl_access", rights) {
            return;
        }
        let new = New { len: 0, replace: true, inputs: &[input(&source)] };
        Replacement::create(&at("new"), new).unwrap().commit().unwrap();
        assert_eq!(mode(&at("new")), expected, "user 1234 has {rights}");
        fs::remove_file(at("new")).unwrap();
    }
}
