//! Detects the file system of a file, and how it affects reading.

use std::fs::File;

/// The file system of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// Its usual name: `ext4`, `nfs`; the magic number in hexadecimal if it has no name here.
    pub name: String,
    /// Its read behaviour.
    pub kind: Kind,
}

/// How a file system reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Blocks of a disk, read without processing.
    Local,
    /// Data comes over a network or from the host of a virtual machine: every request is slow.
    Network,
    /// Files are in memory: there is no disk to read.
    Memory,
    /// The file system copies on write, computes checksums or compresses: reads around the page cache
    /// (O_DIRECT) are slower than reads through it.
    CopyOnWrite,
    /// A user-space program serves the requests: every request is slow.
    Fuse,
    /// An unrecognized file system.
    Unknown,
}

impl Filesystem {
    /// Creates the entry for a file system, with its name as in mount(8).
    pub fn named(name: &str) -> Filesystem {
        Filesystem { name: name.to_owned(), kind: kind(name) }
    }
}

fn kind(name: &str) -> Kind {
    match name {
        "ext2/3/4" | "xfs" | "f2fs" | "jfs" | "reiserfs" | "ntfs3" | "exfat" | "vfat" | "iso9660"
        | "udf" | "minix" | "ufs" | "hfs" | "apfs" | "erofs"
        // overlayfs passes everything on to a lower layer and does not report where that is. Containers
        // have it on a local disk.
        | "overlay" => Kind::Local,
        "btrfs" | "zfs" | "bcachefs" | "nilfs2" | "squashfs" => Kind::CopyOnWrite,
        "tmpfs" | "ramfs" | "hugetlbfs" => Kind::Memory,
        "nfs" | "cifs" | "smb2" | "smbfs" | "lustre" | "ceph" | "9p" | "afs" | "coda" | "gpfs" | "beegfs"
        | "gfs2" | "ocfs2" | "orangefs" | "vboxsf" | "vmhgfs" | "webdav" => Kind::Network,
        "fuse" | "macfuse" => Kind::Fuse,
        _ => Kind::Unknown,
    }
}

/// overlayfs, a special case in [`residency`](crate::residency()).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const OVERLAYFS: u32 = 0x794c_7630;
/// btrfs and FUSE, special cases in [`transfer`](crate::transfer).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const BTRFS: u32 = 0x9123_683E;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const FUSE: u32 = 0x6573_5546;

/// The magic numbers of statfs(2), from linux/magic.h and, if they are not in the kernel's tree, from the
/// file system's own sources (zfs, lustre, gpfs, beegfs, vmhgfs).
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAGIC: [(u32, &str); 40] = [
    (0xEF53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (BTRFS, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xCA45_1A4E, "bcachefs"),
    (0x3434, "nilfs2"),
    (0xF2F5_2010, "f2fs"),
    (0x3153_464A, "jfs"),
    (0x5265_4973, "reiserfs"),
    (0x7366_746E, "ntfs3"),
    (0x2011_BAB0, "exfat"),
    (0x4D44, "vfat"),
    (0x9660, "iso9660"),
    (0x1501_3346, "udf"),
    (0xE0F5_E1E2, "erofs"),
    (0x7371_7368, "squashfs"),
    (OVERLAYFS, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x9584_58F6, "hugetlbfs"),
    (0x6969, "nfs"),
    (0x517B, "smbfs"),
    (0xFE53_4D42, "smb2"),
    (0xFF53_4D42, "cifs"),
    (0x0BD0_0BD0, "lustre"),
    (0x00C3_6400, "ceph"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "afs"),
    (0x6B41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x0116_1970, "gfs2"),
    (0x7461_636F, "ocfs2"),
    (0x2003_0528, "orangefs"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (FUSE, "fuse"), // virtiofs as well
    (0x2468, "minix"),
    (0x0001_1954, "ufs"),
];

/// Returns the magic number that identifies the file system.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn magic(file: &File) -> Option<u32> {
    use std::os::fd::AsRawFd;
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the struct, which outlives the call.
    let status = unsafe { libc::fstatfs(file.as_raw_fd(), stat.as_mut_ptr()) };
    if status != 0 {
        return None;
    }
    // SAFETY: filled, as the call succeeded. The field's width depends on the architecture; all magic
    // numbers have 32 bits.
    Some(unsafe { stat.assume_init() }.f_type as u32)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn of(file: &File) -> Filesystem {
    let Some(magic) = magic(file) else { return Filesystem::named("unknown") };
    match MAGIC.iter().find(|(number, _)| *number == magic) {
        Some((_, name)) => Filesystem::named(name),
        None => Filesystem::named(&format!("{magic:#x}")),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn of(file: &File) -> Filesystem {
    use std::os::fd::AsRawFd;
    // NetBSD has the name in statvfs, which other systems reserve for the fields of POSIX.
    #[cfg(not(target_os = "netbsd"))]
    use libc::{fstatfs as ask, statfs as Stat};
    #[cfg(target_os = "netbsd")]
    use libc::{fstatvfs as ask, statvfs as Stat};

    let mut stat = std::mem::MaybeUninit::<Stat>::uninit();
    // SAFETY: the kernel fills the struct, which outlives the call.
    let status = unsafe { ask(file.as_raw_fd(), stat.as_mut_ptr()) };
    if status != 0 {
        return Filesystem::named("unknown");
    }
    // SAFETY: filled, as the call succeeded.
    let stat = unsafe { stat.assume_init() };
    let name: Vec<u8> =
        stat.f_fstypename.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    Filesystem::named(&String::from_utf8_lossy(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn every_number_is_of_one_name_and_every_name_of_a_kind() {
        for (i, (number, name)) in MAGIC.iter().enumerate() {
            assert!(MAGIC[..i].iter().all(|(other, _)| other != number), "{number:#x}");
            assert_ne!(kind(name), Kind::Unknown, "{name}");
        }
        assert_eq!(kind("0x1234"), Kind::Unknown);
    }

    /// Compares with the names that mount reports on this machine.
    #[cfg(target_os = "linux")]
    #[test]
    fn files_of_this_machine() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut checked = 0;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let (at, ty) = (fields[1], fields[2]);
            // Only the last file system mounted at a path is visible.
            let hidden = mounts.lines().filter(|l| l.split(' ').nth(1) == Some(at)).count() > 1;
            let Ok(file) = File::open(at) else { continue };
            let named = of(&file).name;
            // mount has several names for one magic number.
            let ty = match ty {
                "ext2" | "ext3" | "ext4" => "ext2/3/4",
                "devtmpfs" => "tmpfs",
                "nfs4" => "nfs",
                ty if ty.starts_with("fuse") || ty == "virtiofs" => "fuse",
                ty => ty,
            };
            if !hidden && kind(ty) != Kind::Unknown {
                assert_eq!(named, ty, "{at}");
                checked += 1;
            }
        }
        eprintln!("{checked} mounts have the name that mount has for them");
    }
}
