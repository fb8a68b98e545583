//! A disk that does not answer: the reads of a program wait until the test lets them go on. The kernel asks the test about each such
//! system call (seccomp's user notifications), so nothing is a matter of time.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Where a program finds its own side.
const THEIRS: i32 = 100;
/// Smaller reads are of headers, and are not held.
const MIN_BYTES: u32 = 64 << 10;

/// The command's large reads wait from this offset on, in whichever file it reads.
pub fn hold(command: &mut Command, offset: u32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // What a filter sees is the number of the call, and its arguments in eight bytes each after 16; here the lower halves.
    let load = |at| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at);
    let argument = |index: u32| load(16 + 8 * index);
    let allow = step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW);
    let at_least = |k| step(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 1, 0, k);
    let mut steps = [
        load(0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, libc::SYS_pread64 as u32),
        allow,
        argument(2),
        at_least(MIN_BYTES),
        allow,
        argument(3),
        at_least(offset),
        allow,
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ];
    let install = move || {
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: a program of as many steps as it says, copied by the kernel.
        let listener = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &program,
            )
        };
        // SAFETY: of a descriptor that was just made; the copy outlives the exec.
        match listener < 0 || unsafe { libc::dup2(listener as i32, THEIRS) } < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    };
    // SAFETY: it makes system calls that are allowed between fork and exec, and nothing else.
    unsafe { command.pre_exec(install) };
}

/// The reads of a program that was started after [`hold`].
pub struct Held(OwnedFd);

impl Held {
    /// Those of this child. It may not be allowed to ask for them.
    pub fn of(child: &Child) -> io::Result<Held> {
        let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        Ok(Held(pidfd_getfd(process, THEIRS, PidfdGetfdFlags::empty())?))
    }

    /// Waits until one is there.
    pub fn wait(&self) {
        let mut here = [rustix::event::PollFd::new(&self.0, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut here, None).unwrap();
    }

    /// Lets them go on, those to come as well.
    pub fn release(self) {
        std::thread::spawn(move || while self.next().is_ok() {});
    }

    /// Lets the next one go on.
    fn next(&self) -> io::Result<()> {
        let mut asked = MaybeUninit::<libc::seccomp_notif>::zeroed();
        // SAFETY: the kernel fills one structure in, of which every bit pattern is one.
        let asked = unsafe {
            let status =
                libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, asked.as_mut_ptr());
            if status < 0 {
                return Err(io::Error::last_os_error());
            }
            asked.assume_init()
        };
        let go_on = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: 0,
            flags: libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
        };
        // SAFETY: the kernel reads one structure. (The thread that asked may have ended: nothing is to be done then.)
        unsafe { libc::ioctl(self.0.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &go_on) };
        Ok(())
    }
}
