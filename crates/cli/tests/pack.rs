//! `alight pack` and `alight unpack`: what they say, what they refuse, and that neither a kill, nor a
//! full disk, nor Ctrl-C costs a file or leaves one.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::pty::Pty;
use crate::support::{self, alight, command, done, names, smollm2, source, text, wild};

#[test]
fn there_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), 4);
    let [packed, back] = ["packed.gguf", "back.gguf"].map(|name| dir.path().join(name));
    let out = alight(&["pack", text(&source), "-o", text(&packed)]).succeeds();
    assert_eq!(out.stdout, "");
    for part in
        ["packed.gguf: 4.2", " MB in ", "1 of 3 tensors packed (4.19 MB)", "1 (400 B): vectors"]
    {
        assert!(out.stderr.contains(part), "{part:?} is not in {:?}", out.stderr);
    }
    assert!(out.stderr.contains("1 (578 B): rows not a multiple of 16"), "{:?}", out.stderr);
    assert!(!out.stderr.contains(['\r', '\x1b']), "no bar without a terminal");

    let shown = alight(&["inspect", text(&packed), "--tensors"]).succeeds().stdout;
    assert!(shown.contains("layout        tiles16") && shown.contains("F16x16"), "{shown}");
    let json = alight(&["inspect", text(&packed), "--json"]).succeeds().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let layouts: Vec<_> =
        json["tensors"].as_array().unwrap().iter().map(|t| &t["layout"]).collect();
    assert_eq!(layouts, ["rows", "rows", "tiles16"]);

    let out = alight(&["unpack", text(&packed), "-o", text(&back)]).succeeds();
    assert!(out.stderr.contains("bit for bit, SHA-256 "), "{:?}", out.stderr);
    assert!(fs::read(&back).unwrap() == fs::read(&source).unwrap());
    assert_eq!(names(dir.path()), ["back.gguf", "packed.gguf", "source.gguf"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), 1);
    let packed = dir.path().join("packed.gguf");
    alight(&["pack", text(&source), "-o", text(&packed)]).succeeds();
    let fails = |args: &[&str], parts: &[&str]| alight(args).fails(1, parts);
    let (s, p) = (text(&source), text(&packed));
    fails(&["pack", s, "-o", p], &["packed.gguf", "exists already", "--force"]);
    fails(&["pack", s, "-o", s, "--force"], &["source.gguf", "is the source itself"]);
    fails(&["pack", p, "-o", "/nowhere/x", "--force"], &["packed already", "alight unpack"]);
    fails(&["unpack", s, "-o", p, "--force"], &["source.gguf", "is not packed"]);
    fails(&["pack", s, "-o", text(dir.path()), "--force"], &["is a directory"]);
    fails(&["pack", s, "-o", "/nowhere/x"], &["/nowhere/x", "folder does not exist"]);
    fails(&["pack", "/nowhere/m.gguf", "-o", p], &["does not exist"]);
    let zip = dir.path().join("zip");
    fs::write(&zip, b"PK\x03\x04............").unwrap();
    fails(&["pack", text(&zip), "-o", p, "--force"], &["zip archive"]);
    assert_eq!(alight(&["pack", s]).status, Some(2), "where to?");
    alight(&["pack", s, "-o", p, "--force"]).succeeds();
}

#[test]
fn a_packed_file_cut_short_anywhere_is_refused_before_use() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed.gguf");
    alight(&["pack", &model, "-o", text(&packed)]).succeeds();
    let bytes = fs::read(&packed).unwrap();
    // After the last tensor there may be padding, which nobody misses.
    let end = alight_formats::gguf::parse(&bytes).unwrap().data_end;
    let file = File::options().write(true).open(&packed).unwrap();
    let step = end / 23;
    let lens = (1..23).map(|i| i * step + i).chain([1, 23, 24, 100, 4096, end - 4096, end - 1]);
    let mut lens: Vec<u64> = lens.collect();
    lens.sort();
    for len in lens.into_iter().rev() {
        file.set_len(len).unwrap();
        alight(&["inspect", text(&packed)]).fails(1, &["packed.gguf"]);
        alight(&["run", text(&packed), "hello"]).fails(1, &["packed.gguf"]);
    }
}

/// Runs `alight pack` and waits until it is at work.
fn packing(source: &Path, dest: &Path) -> Child {
    let child = command(&["pack", text(source), "-o", text(dest), "--force"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Its second thread reads and writes.
    let tasks = format!("/proc/{}/task", child.id());
    let started = Instant::now();
    while fs::read_dir(&tasks).map_or(0, Iterator::count) < 2 {
        assert!(started.elapsed() < Duration::from_secs(20), "it never began, or was too quick");
    }
    child
}

#[cfg(target_os = "linux")]
#[test]
fn a_kill_or_ctrl_c_in_the_middle_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), 200);
    let dest = dir.path().join("packed.gguf");
    fs::write(&dest, "old").unwrap();
    for delay in [0, 3, 20, 60] {
        let mut child = packing(&source, &dest);
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().code(), None, "killed in time");
        assert_eq!(fs::read(&dest).unwrap(), b"old", "after {delay} ms");
        assert_eq!(names(dir.path()), ["packed.gguf", "source.gguf"], "after {delay} ms");
    }
    let child = packing(&source, &dest);
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let out = done(child.wait_with_output().unwrap());
    assert_eq!((out.status, &out.stdout[..], &out.stderr[..]), (Some(130), "", ""));
    assert_eq!(fs::read(&dest).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["packed.gguf", "source.gguf"]);
}

/// A small file system, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn new(size: &str) -> Option<Small> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "alight-test"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Small(dir));
        }
        eprintln!("skipped: may not mount a small tmpfs here (needs root)");
        None
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said_clearly_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = source(dir.path(), 8);
    let packed = dir.path().join("packed.gguf");
    alight(&["pack", text(&source), "-o", text(&packed)]).succeeds();
    let Some(small) = Small::new("4m") else { return };
    let dest = small.0.path().join("new.gguf");
    fs::write(&dest, "old").unwrap();
    for (what, from) in [("pack", &source), ("unpack", &packed)] {
        let out = alight(&[what, text(from), "-o", text(&dest), "--force"]);
        out.fails(1, &["new.gguf", "free"]);
        assert_eq!(fs::read(&dest).unwrap(), b"old");
        assert_eq!(names(small.0.path()), ["new.gguf"]);
    }
}

#[test]
fn a_model_is_packed_once_if_asked_for_and_run_from_then_on() {
    let Some(real) = smollm2() else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = dir.path().join("m.gguf");
    fs::copy(real, &model).unwrap();
    let cache = dir.path().join("cache");
    let run = |model: &Path, options: &[&str]| {
        let args = ["run", text(model), "Why is the sky blue?", "-n", "8", "--temp", "0"];
        let mut program = command(&[&args[..], options].concat());
        program.env("XDG_CACHE_HOME", &cache);
        let done = done(program.stdin(Stdio::null()).output().unwrap());
        done.succeeds()
    };
    let plain = run(&model, &[]).stdout;
    assert_eq!(names(dir.path()), ["m.gguf"], "never by surprise");
    let first = run(&model, &["--pack"]);
    assert_eq!(first.stdout, plain);
    assert!(first.stderr.contains("packed once into"), "{}", first.stderr);
    assert_eq!(names(dir.path()), ["m.gguf", "m.packed.gguf"]);
    let packed = dir.path().join("m.packed.gguf");
    let identity =
        || (fs::metadata(&packed).unwrap().ino(), fs::metadata(&packed).unwrap().mtime());
    let made = identity();
    let again = run(&model, &["--pack"]);
    assert_eq!((&*again.stdout, &*again.stderr, identity()), (&*plain, "", made));
    // A packed file is run as it is.
    assert_eq!(run(&packed, &["--pack"]).stderr, "");
    assert_eq!(names(dir.path()), ["m.gguf", "m.packed.gguf"]);
    // A model that was changed has another one, and what is beside it is left alone.
    File::options().write(true).open(&model).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let changed = run(&model, &["--pack"]);
    assert!(
        changed.stderr.contains("left alone") && changed.stderr.contains("packed once into"),
        "{}",
        changed.stderr
    );
    assert_eq!((&*changed.stdout, identity()), (&*plain, made));
    let stored = cache.join("alight/packed").join(packed.strip_prefix("/").unwrap());
    assert_eq!(fs::metadata(&stored).unwrap().modified().unwrap(), std::time::UNIX_EPOCH);
    assert_eq!(run(&model, &["--pack"]).stderr, "");
    // Nor does another model become this one by having its time.
    let longer = File::options().append(true).open(&model).unwrap();
    io::Write::write_all(&mut &longer, b"?").unwrap();
    longer.set_modified(std::time::UNIX_EPOCH).unwrap();
    let changed = run(&model, &["--pack"]);
    assert!(changed.stderr.contains("packed once into"), "{}", changed.stderr);
    assert_eq!(run(&model, &["--pack"]).stderr, "");
    // A link's folder is another program's.
    fs::create_dir(dir.path().join("hub")).unwrap();
    let link = dir.path().join("hub/link.gguf");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    assert_eq!(run(&link, &["--pack"]).stdout, plain);
    assert_eq!(names(&dir.path().join("hub")), ["link.gguf"]);
}

#[test]
fn a_large_model_is_reported_once_to_be_faster_packed() {
    let Some(real) = smollm2() else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = dir.path().join("m.gguf");
    fs::copy(real, &model).unwrap();
    let answer = |stderr: Option<Stdio>| {
        let mut program = command(&["run", text(&model), "--raw", "Hi", "-n", "1", "--temp", "0"]);
        program.env("XDG_STATE_HOME", dir.path().join("state"));
        if let Some(stderr) = stderr {
            return done(program.stdin(Stdio::null()).stderr(stderr).output().unwrap()).stderr;
        }
        let mut terminal = Pty::start(program, None);
        assert!(terminal.end().success(), "{}", terminal.text());
        terminal.text()
    };
    let note = "packed, this model answers about ";
    assert!(!answer(None).contains(note), "it is small");
    // As long as a large one, with a hole at its end.
    File::options().write(true).open(&model).unwrap().set_len(2 << 30).unwrap();
    assert_eq!(answer(Some(Stdio::piped())), "", "there is no terminal");
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let is_measured = cpu.contains("GenuineIntel") && cpu.contains("avx512_vnni");
    assert_eq!(answer(None).matches(note).count(), usize::from(is_measured));
    assert!(!answer(None).contains(note), "once for each model");
}

/// What `run` does with the model and `--pack`, and with its cache folder there. No file may become longer than `blocks` of 512 bytes.
fn run_packed(model: &Path, cache: &Path, blocks: &str) -> support::Done {
    let script = format!("ulimit -f {blocks}; trap '' XFSZ; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_alight"), "run", text(model), "--pack"]);
    shell.args(["--raw", "aaa", "-n", "2", "--ignore-eos", "--temp", "0"]).stdin(Stdio::null());
    shell.env("XDG_CACHE_HOME", cache).env("ALIGHT_CONFIG", "");
    done(shell.output().unwrap())
}

#[test]
fn a_folder_with_a_model_and_its_packed_file_has_one_model() {
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("one");
    fs::create_dir(&one).unwrap();
    let model = one.join("m1.gguf");
    fs::rename(wild::model(dir.path()), &model).unwrap();
    let cache = dir.path().join("cache");
    let first = run_packed(&one, &cache, "unlimited").succeeds();
    assert!(first.stderr.contains("packed once into"), "{}", first.stderr);
    assert_eq!(names(&one), ["m1.gguf", "m1.packed.gguf"]);
    let answer = ["run", text(&one), "--raw", "aaa", "-n", "2", "--ignore-eos", "--temp", "0"];
    assert_eq!(alight(&answer).succeeds().stdout, first.stdout);
    assert_eq!(run_packed(&one, &cache, "unlimited").succeeds().stderr, "");
    alight(&["inspect", text(&one)]).succeeds();
    let out = dir.path().join("out.gguf");
    alight(&["pack", text(&one), "-o", text(&out)]).succeeds();
    assert!(fs::read(&out).unwrap() == fs::read(one.join("m1.packed.gguf")).unwrap());
    // Beside another model it is one.
    fs::rename(&model, one.join("m2.gguf")).unwrap();
    alight(&answer).fails(1, &["several models"]);
}

#[test]
fn a_model_that_cannot_be_kept_packed_is_run_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(&wild::model(dir.path())).to_owned();
    let cache = dir.path().join("cache");
    let said = run_packed(&model, &cache, "1").succeeds();
    assert!(
        said.stderr.contains("used as it is: packing failed: ") && !said.stdout.is_empty(),
        "{}",
        said.stderr
    );
    assert_eq!(names(dir.path()), ["wild.gguf"]);
    // A link has its packed file in the cache folder: nothing is left there either.
    let link = dir.path().join("link.gguf");
    std::os::unix::fs::symlink(&model, &link).unwrap();
    let said = run_packed(&link, &cache, "1").succeeds();
    assert!(said.stderr.contains("packing failed: "), "{}", said.stderr);
    assert_eq!(names(dir.path()), ["link.gguf", "wild.gguf"]);
    fs::write(&cache, "no folder").unwrap();
    let said = run_packed(&link, &cache, "unlimited").succeeds();
    assert!(said.stderr.contains("packing failed: "), "{}", said.stderr);
}
