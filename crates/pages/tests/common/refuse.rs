//! Refusals of the system, each in a process of its own.

use std::process::Command;

/// Runs the test `child`, a name with its file's before it, in a process of its own with `argument` in
/// its environment; returns what it said.
pub fn run(child: &str, argument: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", child, "--nocapture"])
        .env("REFUSED", argument)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{argument}: {said}");
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| eprintln!("{line}"));
    said.into_owned()
}

/// From now on the system call fails with this error, on this thread and on threads that it starts.
pub fn forbid(call: i64, errno: i32) -> std::io::Result<()> {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The number of the call is the first field of what the filter sees.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: a program of as many steps as it says, copied by the kernel.
    let status = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program)
    };
    if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
