//! Running the built command from tests.

use std::process::Command;

/// The command, with the default for every signal and none blocked, whatever these tests were started
/// with: `nohup` and a shell's `&` ignore some, other programs block some, and that is inherited.
pub fn rusage() -> Command {
    with_plain_signals(Command::new(env!("CARGO_BIN_EXE_rusage")))
}

/// The same for any other program.
pub fn with_plain_signals(mut command: Command) -> Command {
    use std::os::unix::process::CommandExt;

    // SAFETY: only system calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in 1..=64 {
                // Those that cannot be handled are as they are.
                libc::signal(signal, libc::SIG_DFL);
            }
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
            Ok(())
        })
    };
    command
}
