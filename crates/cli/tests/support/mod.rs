//! Running the program from tests.

pub mod encoder;
#[path = "../../../hub/tests/support/mod.rs"]
pub mod fake_hub;
#[path = "../../../convert/tests/folders/mod.rs"]
#[allow(dead_code)] // some of it is for the tests of convert alone
pub mod folders;
#[path = "../../src/bench/experts/group.rs"]
pub mod group;
#[cfg(target_os = "linux")]
pub mod held;
pub mod http;
#[path = "../../../formats/tests/legacy/mod.rs"]
#[allow(dead_code)] // some of it is for the tests of formats alone
pub mod legacy;
pub mod pty;
#[cfg(target_os = "linux")]
#[path = "../../../pages/tests/common/refuse.rs"]
#[allow(dead_code)] // some of it is for the tests of pages alone
pub mod refuse;
pub mod said;
#[path = "../../../formats/tests/support/torch_files.rs"]
#[allow(dead_code)] // as above
pub mod torch_files;
pub mod wild;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;

/// What the program did.
pub struct Done {
    /// Exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Signals that `nohup`, or `&` in a script, leaves ignored in what it starts, and others that end
/// programs.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM];

/// The program, with an environment and with effects of signals that do not depend on who runs the tests.
pub fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_alight"));
    command.args(args).env_remove("NO_COLOR").env("TERM", "xterm-256color");
    // What is kept of chats is not among what the person keeps who runs the tests.
    command.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    command.env("ALIGHT_CONFIG", "");
    START.call_once(prepare_process);
    command
}

static START: Once = Once::new();

/// Makes what the tests start independent of who runs the tests, and cheap to start. Work between fork and exec would need a fork, which copies the
/// page tables of this process; without such work, the standard library spawns without a copy.
fn prepare_process() {
    extern "C" fn nothing(_: libc::c_int) {}
    for signal in SIGNALS {
        let nothing = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: it asks for numbers, which all may be zero, and sets a handler that does nothing. A signal that is ignored here would be ignored in
        // a program that is started, too; one that has a handler has its usual effect there.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now);
            if now.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, nothing);
            }
        }
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets numbers of the allocator: large models of tests are given back to the system when they are dropped, which the allocator's
    // own rule prevents after the first.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// The command begins with this effect of the signals.
pub fn signals(command: &mut Command, which: &'static [i32], effect: libc::sighandler_t) {
    let set = move || {
        for &signal in which {
            // SAFETY: a system call about numbers, allowed between fork and exec.
            unsafe { libc::signal(signal, effect) };
        }
        Ok(())
    };
    // SAFETY: it makes system calls that are allowed between fork and exec, and nothing else.
    unsafe { command.pre_exec(set) };
}

/// Sends a signal to a child that has not been waited for.
pub fn kill(child: &Child, signal: i32) {
    // SAFETY: a system call about numbers; the child is there, or a zombie.
    assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
}

/// Waits for a child to end, in generous time, and fails loudly otherwise.
pub fn ended(child: &mut Child) -> ExitStatus {
    let patience = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if patience.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long anything is waited for before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Runs it with nothing on stdin.
pub fn alight<S: AsRef<OsStr>>(args: &[S]) -> Done {
    with_stdin(args, b"")
}

/// Runs it with `input` in a pipe on stdin.
pub fn with_stdin<S: AsRef<OsStr>>(args: &[S], input: &[u8]) -> Done {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may leave without reading.
    let _ = child.stdin.take().unwrap().write_all(input);
    done(child.wait_with_output().unwrap())
}

/// Takes an output apart.
pub fn done(output: Output) -> Done {
    Done {
        status: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Done {
    /// Asserts a failure with this status, nothing on stdout, and one line on stderr that begins
    /// as errors do and contains all of `parts`.
    #[track_caller]
    pub fn fails(&self, status: i32, parts: &[&str]) {
        let Done { status: got, stdout, stderr } = self;
        assert_eq!(*got, Some(status), "{stderr}");
        assert_eq!(stdout, "");
        assert!(stderr.starts_with("alight: error: "), "{stderr}");
        assert!(!stderr.contains("panicked") && !stderr.contains("backtrace"), "{stderr}");
        assert!(!stderr.contains('\x1b'), "{stderr:?}");
        for part in parts {
            assert!(stderr.contains(part), "{part:?} is not in {stderr:?}");
        }
    }

    /// Asserts a wrong use of the command line that the parser noticed, about `part`.
    #[track_caller]
    pub fn fails_as_usage(&self, part: &str) {
        assert_eq!(self.status, Some(2), "{}", self.stderr);
        assert!(self.stdout.is_empty() && self.stderr.contains(part), "{}", self.stderr);
    }

    /// Asserts success.
    #[track_caller]
    pub fn succeeds(self) -> Done {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self
    }
}

/// True if all there is to show is to be shown, as by `make test-all`, or what sees nearly every mistake in a third of the time.
pub fn everything() -> bool {
    std::env::var_os("ALIGHT_TEST_ALL").is_some()
}

/// Where the real models are.
fn models() -> PathBuf {
    let workspace = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("ALIGHT_MODELS").map_or_else(|| workspace.join("models"), PathBuf::from)
}

/// A real model, or `None` (said on stderr) where it has not been fetched.
pub fn model(file: &str) -> Option<String> {
    let path = models().join(file);
    if path.is_file() {
        return Some(path.to_str().unwrap().to_owned());
    }
    eprintln!("skipped: {} is missing (python -m evidence fetch models gets it)", path.display());
    None
}

/// SmolLM2 135M.
pub fn smollm2() -> Option<String> {
    model("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Gemma 3 270M, a base model without a chat template.
pub fn gemma3() -> Option<String> {
    model("gemma-3-270m-q4_k_m.gguf")
}

/// What `alight inspect --json` says of a path: one line on stdout, nothing else.
#[track_caller]
pub fn inspect_json(path: &str) -> serde_json::Value {
    let out = alight(&["inspect", path, "--json"]).succeeds();
    assert_eq!((out.stderr.as_str(), out.stdout.lines().count()), ("", 1));
    serde_json::from_str(&out.stdout).unwrap()
}

/// Writes a file and returns its path.
pub fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Copies a program. Another process does: a file that this one has written cannot be run while a process that another test has just begun
/// has it open.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

/// Makes a program of a shell's script.
pub fn script(path: &Path, text: &str) -> PathBuf {
    let written = path.with_extension("written");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&written, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&written, path);
    fs::remove_file(written).unwrap();
    path.to_owned()
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A model of one matrix of about `mib` MiB in `dir`.
pub fn source(dir: &Path, mib: u64) -> PathBuf {
    let mut b = Builder::new();
    b.str("general.architecture", "llama").str("general.name", "test");
    b.tensor("blk.0.ffn_up.weight", GgmlType::F16, &[4096, mib * 128]).unwrap();
    b.tensor("blk.0.attn_norm.weight", GgmlType::F32, &[100]).unwrap();
    b.tensor("odd", GgmlType::Q8_0, &[32, 17]).unwrap();
    let path = dir.join("source.gguf");
    let mut file = File::create(&path).unwrap();
    file.write_all(&b.header()).unwrap();
    let end = b.layout().last().map(|last| last.offset + last.nbytes).unwrap() as usize;
    // No weight of it is infinite.
    let noise: Vec<u8> =
        (0..1_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 & 0x3f).collect();
    for at in (0..end).step_by(noise.len()) {
        file.write_all(&noise[..noise.len().min(end - at)]).unwrap();
    }
    path
}

/// The names in a folder, hidden ones included.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A child that was stopped while the file that it makes in `folder` has no name yet.
#[cfg(target_os = "linux")]
pub struct Stopped(pub Child);

#[cfg(target_os = "linux")]
impl Stopped {
    /// Runs the program until then; `None` (said on stderr) where files have names from the beginning.
    pub fn making<S: AsRef<OsStr>>(args: &[S], folder: &Path) -> Option<Stopped> {
        let folder = folder.canonicalize().unwrap();
        if files_have_names(&folder) {
            eprintln!("skipped: files have names here from the beginning");
            return None;
        }
        let child = command(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let began = Instant::now();
        let has_new_file = || {
            let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
            let mut links = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
            links.any(|to| to.starts_with(&folder) && to.to_string_lossy().ends_with("(deleted)"))
        };
        while !has_new_file() {
            assert!(began.elapsed() < Duration::from_secs(60), "it never began, or was too quick");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(&child, libc::SIGSTOP);
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
            stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next())
        };
        while state() != Some('T') {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(has_new_file(), "it was too quick: the file has its name");
        Some(Stopped(child))
    }

    /// Lets it go on to its end.
    pub fn goes_on(self) -> Done {
        kill(&self.0, libc::SIGCONT);
        done(self.0.wait_with_output().unwrap())
    }
}

/// True if files without a name cannot be made in a folder.
#[cfg(target_os = "linux")]
fn files_have_names(folder: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let tmpfile = 0o20_000_000 | 0o200_000;
    File::options().write(true).custom_flags(tmpfile).open(folder).is_err()
}
