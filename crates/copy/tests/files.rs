//! What is copied where, what is refused, and that nothing is left of what fails.
#![cfg(target_os = "linux")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use alight_copy::{CopyError, Event, Options, Progress, copy};

use crate::support::{self, folder, names, recursively, run, simply};

#[test]
fn under_a_name_or_into_a_folder() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a"), b"one").unwrap();
    fs::write(at("b"), b"two").unwrap();
    fs::create_dir(at("into")).unwrap();
    simply(&at("a"), &at("c")).succeeds();
    assert_eq!(fs::read(at("c")).unwrap(), b"one");
    simply(&at("b"), &at("c")).succeeds();
    assert_eq!(fs::read(at("c")).unwrap(), b"two");
    let done = run(&[&at("a"), &at("b")], &at("into"), &Options::default()).unwrap().succeeds();
    assert_eq!((done.summary.files, done.summary.bytes), (2, 6));
    assert_eq!(names(&at("into")), ["a", "b"]);
    assert_eq!(names(folder.path()), ["a", "b", "c", "into"]);

    let error = run(&[&at("a"), &at("b")], &at("c"), &Options::default()).unwrap_err();
    assert!(error.to_string().ends_with("make it first"), "{error}");
    let options = Options { no_target_directory: true, ..Options::default() };
    let done = run(&[&at("a")], &at("into"), &options).unwrap();
    assert!(done.error().ends_with("is a folder, and cannot be replaced by a file"));
    assert!(simply(&at("a"), &at("no/c")).error().contains("its folder does not exist"));
    assert!(simply(&at("a"), &at("new/")).error().contains("is not a folder"));
    assert!(simply(&at("a"), &at("c/d")).error().contains("cannot"));
}

#[test]
fn what_fails_does_not_stop_the_rest() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("into")).unwrap();
    fs::write(at("a"), b"a").unwrap();
    fs::write(at("c"), b"c").unwrap();
    let done =
        run(&[&at("a"), &at("missing"), &at("c")], &at("into"), &Options::default()).unwrap();
    assert!(done.error().starts_with(at("missing").to_str().unwrap()));
    assert_eq!(names(&at("into")), ["a", "c"]);
    assert_eq!(done.summary.files, 2);
}

#[test]
fn never_onto_itself_by_whatever_name() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a"), b"precious").unwrap();
    symlink("a", at("link")).unwrap();
    fs::hard_link(at("a"), at("hard")).unwrap();
    let inode = fs::metadata(at("a")).unwrap().ino();
    for (from, to) in [
        ("a", "a"),
        ("a", "link"),
        ("link", "a"),
        ("a", "hard"),
        ("hard", "a"),
        ("a", "./a"),
        ("link", "hard"),
    ] {
        let done = simply(&at(from), &at(to));
        assert!(done.error().ends_with("there is nothing to copy"), "{from} {to}: {done:?}");
    }
    assert!(simply(&at("a"), folder.path()).error().contains("itself"));
    assert_eq!(fs::read(at("a")).unwrap(), b"precious");
    assert_eq!(fs::metadata(at("a")).unwrap().ino(), inode);
    assert_eq!(names(folder.path()), ["a", "hard", "link"]);
}

#[test]
fn a_link_is_followed_and_one_that_is_the_destination_stays() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a"), b"new").unwrap();
    fs::write(at("b"), b"old").unwrap();
    symlink("a", at("source")).unwrap();
    symlink("b", at("dest")).unwrap();
    simply(&at("source"), &at("dest")).succeeds();
    assert!(fs::symlink_metadata(at("dest")).unwrap().is_symlink());
    assert_eq!(fs::read(at("b")).unwrap(), b"new");
    symlink("nowhere", at("dangling")).unwrap();
    assert!(simply(&at("a"), &at("dangling")).error().contains("leads nowhere"));
    assert!(!at("nowhere").exists());
}

#[test]
fn other_names_of_what_is_replaced_keep_the_old_bytes() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a"), b"new").unwrap();
    fs::write(at("b"), b"old").unwrap();
    fs::hard_link(at("b"), at("other")).unwrap();
    let reader = File::open(at("b")).unwrap();
    simply(&at("a"), &at("b")).succeeds();
    assert_eq!(fs::read(at("other")).unwrap(), b"old");
    let mut bytes = [0; 3];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"old");
}

#[test]
fn no_clobber_leaves_alone_what_is_there() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a"), b"new").unwrap();
    fs::write(at("b"), b"old").unwrap();
    let options = Options { no_clobber: true, ..Options::default() };
    let done = run(&[&at("a")], &at("b"), &options).unwrap().succeeds();
    assert_eq!((done.skipped, done.summary.skipped), (vec![at("b")], 1));
    assert_eq!(fs::read(at("b")).unwrap(), b"old");
    run(&[&at("a")], &at("c"), &options).unwrap().succeeds();
    assert_eq!(fs::read(at("c")).unwrap(), b"new");
}

/// A copy does not wait for a pipe that has no writer: it is not opened.
#[test]
fn pipes_sockets_and_devices_are_named_and_not_opened() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let fifo = std::ffi::CString::new(at("pipe").to_str().unwrap()).unwrap();
    // SAFETY: a string that ends in zero.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o644) }, 0);
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::write(at("a"), b"a").unwrap();
    for (path, kind) in [
        (at("pipe"), "is a pipe"),
        (at("socket"), "is a socket"),
        ("/dev/null".into(), "is a character device"),
    ] {
        assert!(simply(&path, &at("new")).error().contains(kind));
        assert!(simply(&at("a"), &path).error().contains("is not a regular file"));
    }
    // In a folder too, and what is beside them is copied.
    fs::create_dir(at("tree")).unwrap();
    fs::rename(at("pipe"), at("tree/pipe")).unwrap();
    fs::rename(at("a"), at("tree/a")).unwrap();
    let done = recursively(&at("tree"), &at("copy"));
    assert!(done.error().contains("tree/pipe' is a pipe"), "{done:?}");
    assert_eq!(names(&at("copy")), ["a"]);
}

#[test]
fn a_folder_needs_to_be_asked_for() {
    let folder = folder();
    fs::create_dir(folder.path().join("d")).unwrap();
    let done = simply(&folder.path().join("d"), &folder.path().join("e"));
    assert!(done.error().ends_with("-r copies it with everything in it"));
}

/// Copies while something happens once there is progress; the destination must not appear.
fn while_it_goes_on(
    options: &Options,
    mut happens: impl FnMut(&Path, Progress) -> ControlFlow<()>,
) -> Result<Vec<String>, CopyError> {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, vec![7; 40 << 20]).unwrap();
    fs::write(&to, b"old").unwrap();
    let mut errors = Vec::new();
    let mut seen = 0;
    let result = copy(std::slice::from_ref(&from), &to, options, &mut |event| match event {
        Event::Progress(progress) => {
            seen += 1;
            match seen >= 2 || progress.verified.is_some() {
                true => happens(&from, progress),
                false => ControlFlow::Continue(()),
            }
        }
        Event::Failed(error) => {
            errors.push(error.to_string());
            ControlFlow::Continue(())
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(fs::read(&to).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["from", "to"]);
    result.map(|summary| {
        assert_eq!((summary.files, summary.failed), (0, 1));
        errors
    })
}

#[test]
fn what_is_stopped_leaves_nothing() {
    let result = while_it_goes_on(&Options::default(), |_, _| ControlFlow::Break(()));
    assert!(matches!(result, Err(CopyError::Stopped)), "{result:?}");
    let options = Options { verify: true, ..Options::default() };
    let mut calls = 0;
    let result = while_it_goes_on(&options, |_, _| {
        calls += 1;
        if calls > 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(CopyError::Stopped)), "{result:?}");
}

#[test]
fn a_source_that_changes_is_an_error() {
    let mut size = true;
    for _ in 0..2 {
        let errors = while_it_goes_on(&Options::default(), |from, _| {
            let mut file = OpenOptions::new().append(size).write(true).open(from).unwrap();
            // Longer, or written to in place.
            file.write_all(b"x").unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(errors[0].contains("from' was changed by another program"), "{errors:?}");
        size = false;
    }
}

/// The one file of this process that has no name yet, and is in `folder`.
fn unnamed(folder: &Path) -> Option<PathBuf> {
    let own = fs::read_dir("/proc/self/fd").unwrap().flatten();
    own.map(|entry| entry.path()).find(|path| {
        fs::read_link(path).is_ok_and(|to| {
            let to = to.to_string_lossy().into_owned();
            to.starts_with(folder.to_str().unwrap()) && to.ends_with("(deleted)")
        })
    })
}

#[test]
fn what_differs_when_it_is_read_again_never_appears() {
    let options = Options { verify: true, ..Options::default() };
    let mut spoiled = false;
    let result = while_it_goes_on(&options, |from, progress| {
        if let Some(new) = unnamed(from.parent().unwrap())
            && !spoiled
            // When everything has been written.
            && progress.verified.is_some()
        {
            let file = OpenOptions::new().write(true).open(new).unwrap();
            file.write_all_at(b"?", 39 << 20).unwrap();
            spoiled = true;
        }
        ControlFlow::Continue(())
    });
    match (spoiled, result) {
        (true, Ok(errors)) => {
            let text = format!("at byte {}", 39 << 20);
            assert!(errors[0].contains("to: differs from"), "{errors:?}");
            assert!(errors[0].contains(&text), "{errors:?}");
        }
        (_, other) => panic!("{spoiled}, {other:?}"),
    }
}

#[test]
fn what_is_verified_says_how() {
    let folder = folder();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, vec![7; 3_000_000]).unwrap();
    let options = Options { verify: true, ..Options::default() };
    let done = run(&[&from], &to, &options).unwrap().succeeds();
    assert!(done.copied[0].verified.is_some());
    assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap());
}

#[test]
fn a_full_disk_leaves_nothing() {
    let folder = folder();
    let small = folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = |args: &[&str]| {
        let output = Command::new(args[0]).args(&args[1..]).arg(&small).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !support::is_root() || !mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "none"]) {
        return eprintln!("skipped: only root can mount a small disk");
    }
    fs::write(small.join("old"), b"old").unwrap();
    let (from, many) = (folder.path().join("from"), folder.path().join("many"));
    fs::write(&from, vec![7; 2 << 20]).unwrap();
    fs::create_dir(&many).unwrap();
    for name in ["a", "b", "c", "d"] {
        fs::write(many.join(name), vec![7; 400 << 10]).unwrap();
    }
    let done = simply(&from, &small.join("old"));
    let tree = recursively(&many, &small.join("many"));
    let (old, left) = (fs::read(small.join("old")).unwrap(), names(&small));
    let whole: Vec<u64> = fs::read_dir(small.join("many"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    assert!(mount(&["umount"]));
    assert!(done.error().contains("make room"), "{done:?}");
    assert_eq!((old, left), (b"old".to_vec(), vec!["many".to_owned(), "old".into()]));
    // Of several files the ones that fit are there, as a whole.
    assert_eq!((whole, tree.summary.failed), (vec![400 << 10; 2], 2));
}

/// The kernel gives a file of /sys new times when its attributes are asked for at first, which is no
/// change. A control group has new ones.
#[test]
fn the_first_copy_of_a_file_that_the_kernel_answers_for() {
    let folder = folder();
    let name = format!("alight-test-{}", std::process::id());
    let group = ["", "unified", "pids"].iter().find_map(|hierarchy| {
        let group = Path::new("/sys/fs/cgroup").join(hierarchy).join(&name);
        fs::create_dir(&group).ok()?;
        // Above the hierarchies there is plain memory.
        let is_group = group.join("cgroup.procs").exists();
        if !is_group {
            fs::remove_dir(&group).unwrap();
        }
        is_group.then_some(group)
    });
    let Some(group) = group else {
        return eprintln!("skipped: no control group can be made");
    };
    let errors = simply(&group.join("cgroup.procs"), &folder.path().join("to")).errors;
    fs::remove_dir(&group).unwrap();
    assert_eq!(errors, [""; 0]);
}
