//! Folders with everything in them.
#![cfg(target_os = "linux")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use alight_copy::Options;

use crate::support::{self, folder, is_root, names, recursively, run, simply};

fn tree(at: &Path) {
    fs::create_dir_all(at.join("deep/deeper")).unwrap();
    fs::create_dir(at.join("empty")).unwrap();
    fs::write(at.join("file"), b"file").unwrap();
    fs::write(at.join("deep/deeper/file"), b"deep").unwrap();
    symlink("file", at.join("link")).unwrap();
    symlink("nowhere", at.join("deep/dangling")).unwrap();
    symlink("..", at.join("deep/up")).unwrap();
    fs::hard_link(at.join("file"), at.join("deep/same")).unwrap();
}

/// Every path below, with what it is.
fn all(at: &Path, below: &str, found: &mut Vec<String>) {
    for name in names(&at.join(below)) {
        let path = format!("{below}/{name}");
        let full = at.join(path.trim_start_matches('/'));
        let metadata = fs::symlink_metadata(&full).unwrap();
        let what = match metadata {
            ref m if m.is_symlink() => format!("-> {}", fs::read_link(&full).unwrap().display()),
            ref m if m.is_dir() => "folder".into(),
            _ => String::from_utf8(fs::read(&full).unwrap()).unwrap(),
        };
        let (seconds, nanos) = (metadata.mtime(), metadata.mtime_nsec());
        found.push(format!("{path} {:o} {seconds}.{nanos} {what}", metadata.mode()));
        if metadata.is_dir() {
            all(at, path.trim_start_matches('/'), found);
        }
    }
}

fn described(at: &Path) -> Vec<String> {
    let mut found = Vec::new();
    all(at, "", &mut found);
    found
}

#[test]
fn everything_is_as_it_was() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    tree(&from);
    fs::set_permissions(from.join("empty"), Permissions::from_mode(0o711)).unwrap();
    // A folder without the right to write is filled all the same.
    fs::set_permissions(from.join("deep/deeper"), Permissions::from_mode(0o555)).unwrap();
    let done = recursively(&from, &to).succeeds();
    assert_eq!(described(&from), described(&to));
    assert_eq!((done.summary.files, done.summary.folders), (6, 4));
    let inode = |name: &str| fs::metadata(to.join(name)).unwrap().ino();
    assert_eq!(inode("file"), inode("deep/same"), "one file by two names stays that");
    assert_ne!(inode("file"), inode("deep/deeper/file"));

    // Once more, into the folder that is there now: everything is replaced by itself.
    let into = folder.path().join("into");
    fs::create_dir(&into).unwrap();
    for _ in 0..2 {
        recursively(&from, &into).succeeds();
        assert_eq!(described(&from), described(&into.join("from")));
        assert_eq!(names(&into), ["from"]);
        // (But not without the right to write.)
        let closed = into.join("from/deep/deeper");
        fs::set_permissions(closed, Permissions::from_mode(0o755)).unwrap();
    }
    // The contents of a folder, into another.
    recursively(&from.join("."), &into).succeeds();
    assert_eq!(names(&into), ["deep", "empty", "file", "from", "link"]);
    fs::set_permissions(from.join("deep/deeper"), Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn never_into_itself() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    tree(&at("from"));
    symlink("from/deep", at("shortcut")).unwrap();
    for to in ["from", "from/new", "from/deep", "from/deep/deeper/new", "shortcut", "shortcut/new"]
    {
        let done = recursively(&at("from"), &at(to));
        assert!(done.error().contains("itself"), "{to}: {done:?}");
        assert!(!at("from/deep/from").exists() && !at("from/new").exists());
    }
    let before = described(&at("from"));
    assert!(recursively(folder.path(), &at("from/deep")).error().contains("itself"));
    assert_eq!(described(&at("from")), before);
    // A folder beside it whose name begins likewise is another one.
    recursively(&at("from"), &at("from2")).succeeds();
}

#[test]
fn links_are_copied_as_links_and_followed_without_r() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("file"), b"file").unwrap();
    symlink("file", at("link")).unwrap();
    simply(&at("link"), &at("one")).succeeds();
    recursively(&at("link"), &at("two")).succeeds();
    assert!(fs::symlink_metadata(at("one")).unwrap().is_file());
    assert_eq!(fs::read_link(at("two")).unwrap(), Path::new("file"));
    // What was there is replaced by it, and not what it leads to.
    fs::write(at("three"), b"old").unwrap();
    recursively(&at("link"), &at("three")).succeeds();
    assert_eq!(fs::read_link(at("three")).unwrap(), Path::new("file"));
    assert_eq!(fs::read(at("file")).unwrap(), b"file");
    assert_eq!(names(folder.path()), ["file", "link", "one", "three", "two"]);
}

#[test]
fn files_and_folders_do_not_replace_each_other() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    tree(&at("from"));
    fs::create_dir_all(at("to/file")).unwrap();
    fs::create_dir(at("to/link")).unwrap();
    fs::write(at("to/deep"), b"a file").unwrap();
    let options = Options { recursive: true, no_target_directory: true, ..Options::default() };
    let done = run(&[&at("from")], &at("to"), &options).unwrap();
    assert_eq!(done.errors.len(), 3, "{done:?}");
    let folders = |e: &&String| e.ends_with("is a folder, and cannot be replaced by a file");
    assert_eq!(done.errors.iter().filter(folders).count(), 2, "{done:?}");
    assert!(
        done.errors.iter().any(|e| e.ends_with("is not a folder, and cannot be replaced by one"))
    );
    assert_eq!(fs::read(at("to/deep")).unwrap(), b"a file");
    assert!(at("to/file").is_dir() && at("to/empty").is_dir());
}

/// Through such a link the tree would grow into itself, without an end.
#[test]
fn a_link_in_the_place_of_a_folder_is_not_followed() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("from/a/b")).unwrap();
    fs::write(at("from/a/file"), b"file").unwrap();
    fs::create_dir(at("to")).unwrap();
    symlink("../from/a/b", at("to/a")).unwrap();
    let options = Options { recursive: true, no_target_directory: true, ..Options::default() };
    let done = run(&[&at("from")], &at("to"), &options).unwrap();
    assert!(done.error().contains("to/a: is a link"), "{done:?}");
    assert_eq!(names(&at("from/a/b")), [""; 0]);
}

#[test]
fn what_was_just_made_of_another_source_is_not_replaced() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for name in ["one", "two", "into"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("one/same"), b"1").unwrap();
    fs::write(at("two/same"), b"2").unwrap();
    let done = run(&[&at("one/same"), &at("two/same")], &at("into"), &Options::default()).unwrap();
    assert!(done.error().contains("two/same: not copied"), "{done:?}");
    assert_eq!(fs::read(at("into/same")).unwrap(), b"1");
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_copied() {
    if !is_root() {
        return eprintln!("skipped: only root can become somebody else");
    }
    let folder = folder();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let at = |name: &str| folder.path().join(name);
    tree(&at("from"));
    fs::set_permissions(at("from/deep"), Permissions::from_mode(0o700)).unwrap();
    fs::write(at("from/secret"), b"secret").unwrap();
    fs::set_permissions(at("from/secret"), Permissions::from_mode(0o600)).unwrap();
    let done = support::as_nobody(|| recursively(&at("from"), &at("to")));
    assert_eq!(done.summary.failed, 2, "{done:?}");
    let mut errors = done.errors.clone();
    errors.sort();
    assert!(errors[0].contains("from/deep: cannot read: Permission denied"), "{errors:?}");
    assert!(errors[1].contains("from/secret: cannot read: Permission denied"), "{errors:?}");
    assert_eq!(names(&at("to")), ["empty", "file", "link"]);
}

#[test]
fn a_link_that_was_just_made_is_never_gone_through() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b", "into", "outside"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("outside/file"), b"precious").unwrap();
    symlink(at("outside"), at("a/folder")).unwrap();
    symlink(at("outside/file"), at("a/file")).unwrap();
    fs::create_dir(at("b/folder")).unwrap();
    fs::write(at("b/folder/new"), b"new").unwrap();
    fs::write(at("b/file"), b"new").unwrap();
    let options = Options { recursive: true, ..Options::default() };
    for name in ["folder", "file"] {
        let (a, b) = (at("a").join(name), at("b").join(name));
        let done = run(&[&a, &b], &at("into"), &options).unwrap();
        assert!(
            done.error().starts_with(b.to_str().unwrap()) || done.error().contains("is a link")
        );
        assert!(fs::symlink_metadata(at("into").join(name)).unwrap().is_symlink());
    }
    assert_eq!(names(&at("outside")), ["file"]);
    assert_eq!(fs::read(at("outside/file")).unwrap(), b"precious");
}

/// Whichever process made it, and also without -r.
#[test]
fn a_link_in_a_folder_that_is_copied_to_is_not_followed() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("from")).unwrap();
    fs::create_dir_all(at("to/from")).unwrap();
    fs::write(at("from/file"), b"new").unwrap();
    fs::write(at("outside"), b"precious").unwrap();
    symlink(at("outside"), at("to/from/file")).unwrap();
    symlink(at("outside"), at("to/file")).unwrap();
    let refused = "is a link, and links in a folder that is copied to are not followed";
    assert!(recursively(&at("from"), &at("to")).error().contains(refused));
    assert!(simply(&at("from/file"), &at("to")).error().contains(refused));
    assert_eq!(fs::read(at("outside")).unwrap(), b"precious");
    // Its own name as the destination is another matter.
    simply(&at("from/file"), &at("to/file")).succeeds();
    assert_eq!(fs::read(at("outside")).unwrap(), b"new");
}

/// A folder of the copy is moved while files are made in it, and a link takes its name.
#[test]
fn a_folder_that_is_swapped_for_a_link_is_not_followed() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("from/deep/deeper")).unwrap();
    fs::create_dir(at("outside")).unwrap();
    for name in ["from/deep/a", "from/deep/b", "from/deep/deeper/c", "from/deep/deeper/d"] {
        fs::write(at(name), name).unwrap();
    }
    let options = Options { recursive: true, ..Options::default() };
    let mut swapped = false;
    let summary = alight_copy::copy(&[at("from")], &at("to"), &options, &mut |event| {
        if let alight_copy::Event::Copied(_) = event
            && !swapped
        {
            fs::rename(at("to/deep"), at("moved")).unwrap();
            symlink(at("outside"), at("to/deep")).unwrap();
            swapped = true;
        }
        std::ops::ControlFlow::Continue(())
    });
    let summary = summary.unwrap();
    assert_eq!((summary.files, summary.failed), (4, 0));
    assert_eq!(names(&at("outside")), [""; 0]);
    assert_eq!(names(&at("moved")), ["a", "b", "deeper"]);
    assert_eq!(names(&at("moved/deeper")), ["c", "d"]);
}
