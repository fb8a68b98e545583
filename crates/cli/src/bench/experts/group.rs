//! A control group with little memory. Tests of the command use it too.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A control group for memory, removed with its last process.
pub struct Group(pub PathBuf);

impl Group {
    /// Creates a group that may use `limit` bytes; or returns why it cannot: this needs the permission to create groups, and the
    /// memory controller.
    pub fn make(limit: u64) -> Result<Group, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("alight-group-{}-{number}", std::process::id());
        let mut reasons = Vec::new();
        // Version 1, where it is mounted; version 2.
        for (root, file) in [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ] {
            let group = Group(Path::new(root).join(&name));
            let made = fs::create_dir(&group.0)
                .and_then(|()| fs::write(group.0.join(file), limit.to_string()));
            match made {
                Ok(()) => return Ok(group),
                Err(error) => reasons.push(format!("{root}: {error}")),
            }
        }
        Err(reasons.join("; "))
    }

    /// Returns a command that runs in the group.
    pub fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let procs = self.0.join("cgroup.procs");
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs).args(args);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // From now on, its cached pages belong to its parent.
        let _ = fs::remove_dir(&self.0);
    }
}
