//! `alight cp`: what it says, what it refuses, and that neither Ctrl-C nor a kill leaves anything.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{alight, command, done, names, text};

/// A folder on a disk (not in memory).
fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn it_says_nothing_unless_asked() {
    let dir = folder();
    let [a, b, c] = ["a", "b", "c"].map(|name| dir.path().join(name));
    fs::write(&a, noise(3 << 20)).unwrap();
    let out = alight(&["cp", text(&a), text(&b)]).succeeds();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""));
    assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
    // What cp is told out of habit.
    let out = alight(&["cp", "-af", "-p", text(&a), text(&c)]).succeeds();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""));

    let out = alight(&["cp", "-v", "--verify", text(&a), text(&b)]).succeeds();
    assert_eq!(out.stdout, "");
    let says = |part: &str| assert!(out.stderr.contains(part), "{part:?} in {:?}", out.stderr);
    says(&format!("{} -> {}: 3.15 MB in ", a.display(), b.display()));
    says("/s, ");
    says("; verified, read from ");
    assert_eq!(out.stderr.lines().count(), 1);

    let out = alight(&["cp", "--json", text(&a), text(&c)]).succeeds();
    assert_eq!(out.stderr, "");
    let json: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((&json["from"], &json["to"]), (&text(&a).into(), &text(&c).into()));
    assert_eq!((&json["bytes"], &json["hole_bytes"]), (&(3 << 20).into(), &0.into()));
    assert!(json["method"].is_string() && json["wall_us"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn what_fails_is_named_and_the_rest_is_copied() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a"), b"a").unwrap();
    fs::create_dir(at("d")).unwrap();
    let out = alight(&["cp", text(&at("no")), text(&at("a")), text(&at("d"))]);
    assert_eq!(out.status, Some(1));
    let expected = format!(
        "alight: error: {}: cannot read: No such file or directory (os error 2)\n",
        at("no").display()
    );
    assert_eq!(out.stderr, expected);
    assert_eq!(fs::read(at("d/a")).unwrap(), b"a");
    for (args, status, part) in [
        (vec!["a", "a"], 1, "there is nothing to copy"),
        (vec!["d", "e"], 1, "-r copies it"),
        (vec!["-r", "d", "d/e"], 1, "cannot be copied into itself"),
        (vec!["a", "d", "e"], 1, "make it first"),
        (vec!["a", "e/f"], 1, "its folder does not exist; make it first"),
        (vec!["a"], 2, "<DEST>"),
        (vec!["--reflink=maybe", "a", "e"], 2, "possible values"),
    ] {
        let mut command = command(&[&["cp"], &args[..]].concat());
        let out = done(command.current_dir(dir.path()).output().unwrap());
        assert_eq!(out.status, Some(status), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains(part), "{args:?}: {}", out.stderr);
        assert_eq!(names(dir.path()), ["a", "d"]);
    }
}

#[test]
fn folders_links_and_what_is_left_alone() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("from/deep")).unwrap();
    fs::write(at("from/deep/a"), b"new").unwrap();
    fs::write(at("from/b"), b"b").unwrap();
    alight(&["cp", "-r", text(&at("from")), text(&at("to"))]).succeeds();
    assert_eq!(fs::read(at("to/deep/a")).unwrap(), b"new");
    fs::write(at("to/deep/a"), b"old").unwrap();
    let out = alight(&["cp", "-rnvT", text(&at("from")), text(&at("to"))]).succeeds();
    assert_eq!(fs::read(at("to/deep/a")).unwrap(), b"old");
    assert_eq!(
        out.stderr.matches("already exists, and is left alone").count(),
        2,
        "{}",
        out.stderr
    );
}

/// A child that copies `mib` MiB (not shared), once it has begun to.
fn begun(dir: &Path, mib: usize) -> std::process::Child {
    let (from, to) = (dir.join("from"), dir.join("to"));
    // A hole is copied at once, so bytes.
    let bytes = noise(1 << 20);
    let mut file = fs::File::create(&from).unwrap();
    (0..mib).for_each(|_| std::io::Write::write_all(&mut file, &bytes).unwrap());
    fs::write(&to, b"old").unwrap();
    let child = command(&["cp", "--reflink=never", "--verify", text(&from), text(&to)])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Until it has written something: as long as the file has no name, it is among what it has open.
    let open = format!("/proc/{}/fd", child.id());
    let patience = Instant::now();
    while patience.elapsed() < Duration::from_secs(20) {
        let entries = fs::read_dir(&open).into_iter().flatten().flatten();
        let sizes = entries.filter_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            let new = link.starts_with(dir) && !link.ends_with("from");
            new.then(|| fs::metadata(entry.path()).map_or(0, |found| found.len()))
        });
        if sizes.max().is_some_and(|len| len > 0) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_and_kill_leave_nothing() {
    for (signal, status) in [("INT", Some(130)), ("KILL", None), ("TERM", None)] {
        let dir = folder();
        let child = begun(dir.path(), 200);
        let kill = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let out = done(child.wait_with_output().unwrap());
        assert_eq!((out.status, out.stderr.as_str()), (status, ""), "{signal}");
        assert_eq!(names(dir.path()), ["from", "to"], "{signal}");
        assert_eq!(fs::read(dir.path().join("to")).unwrap(), b"old", "{signal}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_nothing() {
    let dir = folder();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let image = dir.path().join("image");
    fs::File::create(&image).unwrap().set_len(24 << 20).unwrap();
    let run = |args: &[&str]| {
        let output = Command::new(args[0]).args(&args[1..]).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !run(&["mkfs.ext4", "-q", text(&image)])
        || !run(&["mount", "-o", "loop", text(&image), text(&small)])
    {
        return eprintln!("skipped: only root can mount a small disk, with mkfs.ext4");
    }
    fs::write(small.join("old"), b"old").unwrap();
    let from = dir.path().join("from");
    fs::write(&from, noise(32 << 20)).unwrap();
    let out = alight(&["cp", text(&from), text(&small.join("old"))]);
    let left = (names(&small), fs::read(small.join("old")).unwrap());
    assert!(run(&["umount", text(&small)]));
    assert_eq!(out.status, Some(1));
    assert!(out.stderr.contains("small/old: needs 33.6 MB but only "), "{}", out.stderr);
    assert_eq!(left, (vec!["lost+found".to_owned(), "old".into()], b"old".to_vec()));
}

/// What is synced when, as strace(1) sees it: the bytes before there is a name, the name before it is
/// said to be done.
#[cfg(target_os = "linux")]
#[test]
fn the_bytes_are_on_the_disk_before_the_name_and_the_name_in_the_end() {
    let dir = folder();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("tree")).unwrap();
    fs::write(at("tree/new"), noise(100_000)).unwrap();
    fs::write(at("old"), b"old").unwrap();
    for (args, to) in [
        (["-T", text(&at("tree/new")), text(&at("new"))], at("new")),
        (["-T", text(&at("tree/new")), text(&at("old"))], at("old")),
        (["-rT", text(&at("tree")), text(&at("copy"))], at("copy/new")),
    ] {
        let traced = Command::new("strace")
            .args(["-f", "-y", "-e", "trace=fsync,linkat,rename,renameat,renameat2", "--"])
            .args([env!("CARGO_BIN_EXE_alight"), "cp"])
            .args(args)
            .output();
        let Ok(traced) = traced else { return eprintln!("skipped: no strace(1)") };
        let said = String::from_utf8_lossy(&traced.stderr);
        if !traced.status.success() {
            return eprintln!("skipped: strace does not work here: {said}");
        }
        // The last of each kind: a name is given, or a hidden one changed into it.
        let lines: Vec<&str> = said.lines().collect();
        let last = |what: &dyn Fn(&str) -> bool| lines.iter().rposition(|line| what(line));
        let folder = to.parent().unwrap().display();
        let name = format!("<{folder}>, \"{}\"", to.file_name().unwrap().display());
        let named = last(&|line: &str| line.contains(&name)).unwrap();
        let first = lines.iter().position(|line| line.contains("fsync(")).unwrap();
        let folder = format!("<{folder}>)");
        let folder = last(&|line: &str| line.contains("fsync(") && line.contains(&folder));
        assert!(first < named && named < folder.unwrap(), "{said}");
        // The folder that has a new folder, too.
        let above = format!("<{}>)", dir.path().display());
        assert!(last(&|line: &str| line.contains(&above)) > Some(named), "{said}");
    }
}

/// On a terminal there is a bar, which is gone in the end; script(1) lends one.
#[cfg(target_os = "linux")]
#[test]
fn on_a_terminal_there_is_a_bar() {
    let dir = folder();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, noise(20 << 20)).unwrap();
    let line = format!(
        "'{}' cp --verify '{}' '{}'",
        env!("CARGO_BIN_EXE_alight"),
        from.display(),
        to.display()
    );
    let output =
        Command::new("script").env("TERM", "xterm").args(["-qec", &line, "/dev/null"]).output();
    let Ok(output) = output else { return eprintln!("skipped: no script(1)") };
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains("copying [") && shown.contains("21.0 MB of 21.0 MB"), "{shown:?}");
    assert!(shown.ends_with("\r\x1b[K"), "{shown:?}");
    assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
}

#[test]
fn a_reader_of_json_that_is_gone_ends_it_quietly() {
    let dir = folder();
    fs::create_dir(dir.path().join("from")).unwrap();
    for i in 0..50 {
        fs::write(dir.path().join(format!("from/{i}")), b"x").unwrap();
    }
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let mut child = command(&["cp", "-r", "--json", text(&from), text(&to)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let out = done(child.wait_with_output().unwrap());
    assert_eq!((out.status, out.stderr.as_str()), (Some(0), ""));
}

/// The file at the bottom of a tree of so many folders, each in the one before; they are made, if told.
#[cfg(target_os = "linux")]
fn deep(top: &Path, depth: usize, make: bool) -> fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::fs::OpenOptionsExt;
    let name = c"ddd".as_ptr();
    let mut at = fs::File::options().read(true).custom_flags(libc::O_DIRECTORY).open(top).unwrap();
    for _ in 0..depth {
        // SAFETY: an open folder and a string that ends in zero; the descriptor is a new one of ours.
        at = unsafe {
            assert!(!make || libc::mkdirat(at.as_raw_fd(), name, 0o755) == 0);
            let below = libc::openat(at.as_raw_fd(), name, libc::O_RDONLY | libc::O_CLOEXEC);
            assert!(below >= 0, "{}", std::io::Error::last_os_error());
            fs::File::from_raw_fd(below)
        };
    }
    let flags = libc::O_RDWR | libc::O_CLOEXEC | if make { libc::O_CREAT } else { 0 };
    // SAFETY: as above.
    let file = unsafe { libc::openat(at.as_raw_fd(), c"file".as_ptr(), flags, 0o644) };
    assert!(file >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a new descriptor of ours.
    unsafe { fs::File::from_raw_fd(file) }
}

/// A tree that is deeper than a path can be long, with fewer descriptors than it has levels.
#[cfg(target_os = "linux")]
#[test]
fn a_deep_tree_takes_few_descriptors() {
    use std::io::{Read, Write};
    const DEPTH: usize = 1100;
    let dir = folder();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    deep(&from, DEPTH, true).write_all(b"deep").unwrap();
    let exe = env!("CARGO_BIN_EXE_alight");
    let line = format!("ulimit -n 32; '{exe}' cp -r from to");
    let copied = Command::new("sh").args(["-c", &line]).current_dir(dir.path()).output();
    let out = done(copied.unwrap()).succeeds();
    let mut found = String::new();
    deep(&to, DEPTH, false).read_to_string(&mut found).unwrap();
    assert_eq!((out.stderr.as_str(), found.as_str()), ("", "deep"));
    // (The library's own removal takes a descriptor for each level.)
    assert!(Command::new("rm").arg("-rf").args([from, to]).status().unwrap().success());
}
