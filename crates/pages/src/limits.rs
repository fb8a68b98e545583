//! The memory still available to this process: what the system has, and what its control groups allow.
//!
//! "Available" is memory that can be obtained without swapping: free memory and memory that can be
//! reclaimed, above all the clean pages of files. A group's share is counted the same way: its limit,
//! minus its usage, plus the file pages in that usage. (They are on the lists `active_file` and
//! `inactive_file`; pages of tmpfs and locked pages are not, and cannot be reclaimed.) Dirty pages are
//! counted as if they were clean: they can be reclaimed too, after a write. The usage of other groups
//! does not count against a group's limit, but the limit of any group *around* ours applies to us as
//! well, so the whole ancestry is checked, as far as it is visible from inside a container.

use std::fmt;
use std::path::{Component, Path, PathBuf};

/// The source of the limit on available memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitSource {
    /// Memory that the system has available (MemAvailable).
    System,
    /// A control group, by its folder.
    Cgroup(PathBuf),
    /// All memory of the machine: this system does not report how much of it is available.
    Total,
    /// The system reports nothing.
    Unknown,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitSource::System => f.write_str("MemAvailable"),
            LimitSource::Cgroup(folder) => write!(f, "the limit of cgroup {}", folder.display()),
            LimitSource::Total => f.write_str("all memory of the machine"),
            LimitSource::Unknown => f.write_str("unknown"),
        }
    }
}

/// Bytes of memory available to this process, and the source of the limit. Unknown is `u64::MAX`.
pub fn available() -> (u64, LimitSource) {
    let system = system();
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return system;
    }
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let (groups, mounts) = (text("/proc/self/cgroup"), text("/proc/self/mountinfo"));
    smallest(folders(&groups, &mounts), system)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn system() -> (u64, LimitSource) {
    match meminfo("MemAvailable:") {
        Some(bytes) => (bytes, LimitSource::System),
        None => (u64::MAX, LimitSource::Unknown),
    }
}

/// Returns a line of /proc/meminfo in bytes.
fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Maximum bytes of this process's memory that could be swapped out now; a control group may allow less.
/// 0 where the system does not report it.
pub fn swap_free() -> u64 {
    meminfo("SwapFree:").unwrap_or(0)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn system() -> (u64, LimitSource) {
    // SAFETY: takes a number and returns a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    match u64::try_from(pages) {
        Ok(pages) if pages > 0 => {
            (pages.saturating_mul(crate::fault::page_size() as u64), LimitSource::Total)
        }
        _ => (u64::MAX, LimitSource::Unknown),
    }
}

/// The two layouts of a memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of our control groups and of all visible groups around them. `groups` is
/// /proc/self/cgroup, `mounts` /proc/self/mountinfo.
fn folders(groups: &str, mounts: &str) -> Vec<(PathBuf, Version)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        // hierarchy:controllers:path
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = match (id, controllers) {
            ("0", "") => Version::Two,
            (_, list) if list.split(',').any(|c| c == "memory") => Version::One,
            _ => continue,
        };
        let Some((root, point)) = mounts.lines().find_map(|line| mount(line, version)) else {
            continue;
        };
        let path = Path::new(path);
        // Outside the part that this namespace may see.
        if path.components().any(|c| c == Component::ParentDir) {
            continue;
        }
        // A container sees its own group mounted as the root, or a mount of a group as its root.
        let inside = path.strip_prefix(&root).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
        let leaf = if inside == Path::new("") { point.clone() } else { point.join(inside) };
        let around = leaf.ancestors().take_while(|folder| folder.starts_with(&point));
        found.extend(around.map(|folder| (folder.to_owned(), version)));
    }
    found
}

/// Root and mount point in a line of mountinfo, if it is the requested hierarchy: `id parent device ROOT
/// POINT options [optional]* - TYPE source SUPEROPTIONS`.
fn mount(line: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    let (ty, options) = (tail.next()?, tail.nth(1).unwrap_or(""));
    let sought = match version {
        Version::Two => ty == "cgroup2",
        Version::One => ty == "cgroup" && options.split(',').any(|o| o == "memory"),
    };
    let mut head = head.split(' ').skip(3);
    let (root, point) = (head.next()?, head.next()?);
    sought.then(|| (PathBuf::from(unescaped(root)), PathBuf::from(unescaped(point))))
}

/// Spaces and similar characters are `\040` and so on in mountinfo.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &after[3..];
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out + rest
}

/// The smallest of the system's available memory and the amount that each group still allows.
fn smallest(folders: Vec<(PathBuf, Version)>, system: (u64, LimitSource)) -> (u64, LimitSource) {
    let mut least = system;
    for (folder, version) in folders {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let number = |name: &str| text(name).trim().parse::<u64>().ok();
        // Above `memory.high` a group is throttled until it gives memory back, so this is as much a
        // limit. "max" and a missing file mean no limit.
        let (limit, used, lists) = match version {
            Version::Two => (
                [number("memory.max"), number("memory.high")].into_iter().flatten().min(),
                "memory.current",
                ["active_file ", "inactive_file "],
            ),
            // `total_`: including the groups inside, as in the usage.
            Version::One => (
                number("memory.limit_in_bytes"),
                "memory.usage_in_bytes",
                ["total_active_file ", "total_inactive_file "],
            ),
        };
        let Some(limit) = limit else { continue };
        let Some(used) = number(used) else { continue };
        if limit.saturating_sub(used) >= least.0 {
            continue;
        }
        // Only now, because this file is slow to generate.
        let stat = text("memory.stat");
        let file_pages: u64 = stat
            .lines()
            .filter_map(|line| {
                lists.iter().find_map(|list| line.strip_prefix(list)?.trim().parse::<u64>().ok())
            })
            .sum();
        // The two are not read at the same instant: there may seem to be more file pages than memory in
        // use.
        let left = limit.saturating_sub(used.saturating_sub(file_pages));
        if left < least.0 {
            least = (left, LimitSource::Cgroup(folder));
        }
    }
    least
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::fs;

    const G: u64 = 1 << 30;

    fn paths(groups: &str, mounts: &str) -> Vec<String> {
        folders(groups, mounts).into_iter().map(|(p, _)| p.display().to_string()).collect()
    }

    #[test]
    fn the_whole_ancestry_is_found() {
        let v2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            paths("0::/user.slice/a b/run.scope\n", v2),
            [
                "/sys/fs/cgroup/user.slice/a b/run.scope",
                "/sys/fs/cgroup/user.slice/a b",
                "/sys/fs/cgroup/user.slice",
                "/sys/fs/cgroup"
            ]
        );
        // Version 1 next to a version 2 without controllers, as on this project's machines.
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset";
        let groups = "9:name=systemd:/\n4:cpu,memory:/process/x:y\n3:cpuset:/\n0::/\n";
        assert_eq!(
            paths(groups, v1),
            [
                "/sys/fs/cgroup/memory/process/x:y",
                "/sys/fs/cgroup/memory/process",
                "/sys/fs/cgroup/memory"
            ]
        );
        // A container of version 1 that sees only its own group, as the root of the mount.
        let docker =
            "35 31 0:32 /docker/0a1b /sys/fs/my\\040cgroup/memory ro - cgroup cgroup rw,memory";
        assert_eq!(paths("4:memory:/docker/0a1b", docker), ["/sys/fs/my cgroup/memory"]);
        // With its own namespace; outside of it; not mounted at all; garbage.
        assert_eq!(paths("0::/", v2), ["/sys/fs/cgroup"]);
        assert_eq!(paths("0::/../other", v2), [""; 0]);
        assert_eq!(paths("0::/a", v1), [""; 0]);
        assert_eq!(paths("memory\n::\n", "- cgroup2\n"), [""; 0]);
    }

    /// Creates folders as the kernel makes them.
    fn group(root: &Path, path: &str, files: &[(&str, String)]) {
        let folder = root.join(path);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_smallest_remainder_counts_and_file_pages_can_be_had() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let stat = |active: u64, inactive: u64, shmem: u64| {
            format!(
                "anon {G}\nfile {}\nactive_file {active}\ninactive_file {inactive}\nshmem {shmem}\n",
                active + inactive + shmem
            )
        };
        group(
            root,
            "outer",
            &[
                ("memory.max", format!("{}\n", 8 * G)),
                ("memory.current", format!("{}\n", 7 * G)),
                ("memory.stat", stat(G, G, 2 * G)),
            ],
        );
        group(
            root,
            "outer/inner",
            &[
                ("memory.max", "max\n".to_owned()),
                ("memory.high", "max\n".to_owned()),
                ("memory.current", format!("{G}\n")),
            ],
        );
        let ours = |system| {
            let all = ["outer/inner", "outer", ""].map(|p| (root.join(p), Version::Two));
            smallest(all.to_vec(), (system, LimitSource::System))
        };
        // 8 − 7 + 2 GiB of file pages; the pages of tmpfs stay.
        assert_eq!(ours(16 * G), (3 * G, LimitSource::Cgroup(root.join("outer"))));
        assert_eq!(ours(2 * G), (2 * G, LimitSource::System));
        fs::write(root.join("outer/inner/memory.high"), format!("{}", 2 * G)).unwrap();
        assert_eq!(ours(16 * G), (G, LimitSource::Cgroup(root.join("outer/inner"))));
        // Over its limit, and statistics newer than the usage.
        fs::write(root.join("outer/inner/memory.high"), format!("{}", G / 2)).unwrap();
        assert_eq!(ours(16 * G).0, 0);
        fs::write(root.join("outer/inner/memory.stat"), stat(9 * G, 9 * G, 0)).unwrap();
        assert_eq!(ours(16 * G).0, G / 2);

        group(
            root,
            "one",
            &[
                ("memory.limit_in_bytes", format!("{}", 4 * G)),
                ("memory.usage_in_bytes", format!("{}", 3 * G)),
                (
                    "memory.stat",
                    format!("inactive_file 7\ntotal_inactive_file {G}\ntotal_active_file 0\n"),
                ),
            ],
        );
        let one = vec![(root.join("one"), Version::One), (root.join("nowhere"), Version::One)];
        let got = smallest(one, (16 * G, LimitSource::System));
        assert_eq!(got, (2 * G, LimitSource::Cgroup(root.join("one"))));
    }

    #[test]
    fn this_machine_has_some_memory_but_not_all_of_it() {
        let (bytes, source) = available();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
        let total: u64 = meminfo
            .lines()
            .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse().ok())
            .unwrap();
        assert!(bytes > 0 && bytes <= total * 1024, "{bytes} by {source}");
    }
}
