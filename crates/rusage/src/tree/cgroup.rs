//! A control group (version 2) for one run.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::{PeakMethod, TreePeak};

/// A group that is removed on drop; processes that are still in it are moved back to ours.
pub(crate) struct Cgroup {
    folder: PathBuf,
    /// The folder of this process's group.
    own: PathBuf,
    procs: File,
}

impl Cgroup {
    /// Makes one below this process's group, or next to it or to one above it, wherever the memory
    /// controller is delegated and this user has permission; `None` if that is nowhere, or the
    /// kernel records no peak. A group that has a limit is never left: the program would escape it.
    pub(crate) fn make() -> Option<Cgroup> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let (root, own) = own_folder(&mounts, &groups)?;
        let place =
            own.ancestors().take_while(|folder| folder.starts_with(&root)).find_map(|folder| {
                let delegated = fs::read_to_string(folder.join("cgroup.subtree_control")).ok()?;
                let free = own
                    .ancestors()
                    .take_while(|left| *left != folder)
                    .all(|left| !is_limited(left));
                (free && delegated.split_whitespace().any(|name| name == "memory"))
                    .then(|| Cgroup::in_folder(folder, &own))?
            })?;
        Some(place)
    }

    fn in_folder(parent: &Path, own: &Path) -> Option<Cgroup> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, n) = (std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = parent.join(format!("rusage.{pid}.{n}"));
        fs::create_dir(&folder).ok()?;
        let procs = OpenOptions::new().write(true).open(folder.join("cgroup.procs"));
        match procs {
            Ok(procs) if folder.join("memory.peak").exists() => {
                Some(Cgroup { folder, own: own.to_owned(), procs })
            }
            _ => {
                let _ = fs::remove_dir(&folder);
                None
            }
        }
    }

    /// A process that writes `0` to this file joins the group.
    pub(crate) fn procs(&self) -> &File {
        &self.procs
    }

    /// Returns the peak so far, and removes the group.
    pub(crate) fn peak(self) -> Option<TreePeak> {
        let read = |name: &str| fs::read_to_string(self.folder.join(name)).ok();
        let bytes = read("memory.peak")?.trim().parse().ok()?;
        let left = read("cgroup.procs").unwrap_or_default().lines().count() as u64;
        Some(TreePeak { bytes, how: PeakMethod::Cgroup, samples: 0, left })
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes that the program left running keep a group alive; two rounds, since a process
        // may fork while it is moved.
        for _ in 0..2 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            let left = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                let _ = fs::write(self.own.join("cgroup.procs"), pid);
            }
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// True if a group limits the resources of its processes.
fn is_limited(folder: &Path) -> bool {
    ["memory.max", "memory.high", "memory.swap.max", "cpu.max", "pids.max"].iter().any(|name| {
        let limit = fs::read_to_string(folder.join(name)).unwrap_or_default();
        limit.split_whitespace().next().is_some_and(|limit| limit != "max")
    })
}

/// Returns where cgroup version 2 is mounted, and this process's folder in it.
fn own_folder(mounts: &str, groups: &str) -> Option<(PathBuf, PathBuf)> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        // `36 35 98:0 /root /mount/point options - type source options`
        let (before, after) = line.split_once(" - ")?;
        if after.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // The mount may be only a part of the hierarchy (in a container).
        let inside = Path::new(own).strip_prefix(root).ok()?;
        Some((PathBuf::from(point), Path::new(point).join(inside)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_found_in_the_mounts() {
        let mounts = "25 1 0:23 / /proc rw - proc proc rw\n\
                      30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let folders = |mounts, groups| own_folder(mounts, groups);
        let (root, own) = folders(mounts, "0::/user.slice/a.scope\n").unwrap();
        assert_eq!(root, Path::new("/sys/fs/cgroup"));
        assert_eq!(own, Path::new("/sys/fs/cgroup/user.slice/a.scope"));
        let part = "30 1 0:26 /box /sys/fs/cgroup rw - cgroup2 none rw";
        assert_eq!(folders(part, "0::/box/x\n").unwrap().1, Path::new("/sys/fs/cgroup/x"));
        assert_eq!(folders(part, "0::/other\n"), None);
        assert_eq!(folders(mounts, "4:memory:/x\n"), None);
        assert_eq!(folders("25 1 0:23 / /p rw - proc proc rw", "0::/\n"), None);
    }

    #[test]
    fn limits_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_limited(folder.path()));
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        fs::write(folder.path().join("cpu.max"), "max 100000\n").unwrap();
        assert!(!is_limited(folder.path()));
        fs::write(folder.path().join("cpu.max"), "50000 100000\n").unwrap();
        assert!(is_limited(folder.path()));
    }
}
