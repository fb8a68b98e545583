//! Restricts a new file to the users who may read all of its inputs.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use rustix::fs::Stat;

use crate::Identity;

/// A file that a new file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Input {
    pub(super) identity: Identity,
    /// True if every user may read it.
    everybody: bool,
    /// The group whose members may read it, if there is one.
    group: Option<u32>,
}

impl Input {
    /// Creates an input from an open file.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub fn of(file: &File) -> io::Result<Input> {
        let metadata = file.metadata()?;
        let bits = match acl(file) {
            // With an ACL, the group bits are the maximum that it grants to any named user or group, not
            // what it grants to all.
            Some(acl) if !lets_all_read(&acl) => metadata.mode() & !0o070,
            _ => metadata.mode(),
        };
        Ok(Input::new((&metadata).into(), bits, metadata.gid()))
    }

    /// Creates an input from the file being replaced.
    #[allow(clippy::unnecessary_cast)] // the widths differ between systems
    pub(super) fn replaced(found: &Stat) -> Input {
        Input::new(found.into(), found.st_mode as u32, found.st_gid)
    }

    fn new(identity: Identity, mode: u32, gid: u32) -> Input {
        let group = (mode & 0o040 != 0).then_some(gid);
        // The bits for others do not apply to members of the group.
        Input { identity, everybody: mode & 0o044 == 0o044, group }
    }
}

/// The permissions of a file made of `inputs`, before the umask; `None` if they are those of any new
/// file. `gid` is its group.
fn mode(inputs: &[Input], gid: u32) -> Option<u32> {
    if inputs.iter().all(|input| input.everybody) {
        return None;
    }
    let group = inputs.iter().all(|input| input.everybody || input.group == Some(gid));
    Some(if group { 0o660 } else { 0o600 })
}

/// True if a file made of `inputs` must at first be readable only by its owner.
pub(super) fn is_private(inputs: &[Input]) -> bool {
    mode(inputs, 0).is_some()
}

/// Gives `file`, which is new and private, the permissions that match `inputs`.
///
/// # Errors
/// The system refuses.
pub(super) fn grant(file: &File, inputs: &[Input]) -> io::Result<()> {
    // The default ACL of the folder would admit more users.
    remove_acls(file, false)?;
    if let Some(mode) = mode(inputs, file.metadata()?.gid())
        && mode != 0o600
    {
        file.set_permissions(Permissions::from_mode(mode & !umask()))?;
    }
    Ok(())
}

/// The permission bits that new files do not get.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    // If the system does not report it, use the strictest.
    umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok()).unwrap_or(0o077)
}

const ACCESS: &std::ffi::CStr = c"system.posix_acl_access";
const DEFAULT: &std::ffi::CStr = c"system.posix_acl_default";

/// The ACL of a file that has one; empty if it cannot be read.
#[cfg(target_os = "linux")]
fn acl(file: &File) -> Option<Vec<u8>> {
    let len = rustix::fs::fgetxattr_query(file, ACCESS).ok().filter(|len| *len > 0)?;
    let mut acl = vec![0; len];
    let read = rustix::fs::fgetxattr(file, ACCESS, &mut acl[..]);
    acl.truncate(read.unwrap_or(0));
    Some(acl)
}

#[cfg(not(target_os = "linux"))]
fn acl(_: &File) -> Option<Vec<u8>> {
    let _ = (ACCESS, DEFAULT);
    None
}

/// True if an ACL in the system's format (version 2: a tag, rights and an id in each entry) lets every
/// user read, except perhaps the owner.
fn lets_all_read(acl: &[u8]) -> bool {
    const OWNER: u16 = 0x01;
    const OTHERS: u16 = 0x20;
    let Some((&[2, 0, 0, 0], entries)) = acl.split_first_chunk() else { return false };
    let (entries, rest) = entries.as_chunks::<8>();
    let entry = |[t0, t1, r0, r1, ..]: [u8; 8]| {
        (u16::from_le_bytes([t0, t1]), u16::from_le_bytes([r0, r1]))
    };
    let mut entries = entries.iter().copied().map(entry);
    // The mask is one of the entries.
    rest.is_empty()
        && entries.clone().any(|(tag, _)| tag == OTHERS)
        && entries.all(|(tag, rights)| tag == OWNER || rights & 4 != 0)
}

/// Removes the ACLs that a new file, or a new `folder`, inherited from its parent folder. Its permissions
/// do not change.
///
/// # Errors
/// The system refuses.
#[cfg(target_os = "linux")]
pub fn remove_acls(file: &impl AsFd, folder: bool) -> io::Result<()> {
    use rustix::io::Errno;
    for name in [ACCESS, DEFAULT].into_iter().take(if folder { 2 } else { 1 }) {
        match rustix::fs::fremovexattr(file, name) {
            // The file has none, or the filesystem does not support them.
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Removes the ACLs that a new file inherited from its folder, on systems whose ACLs are supported here.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn remove_acls(_: &impl AsFd, _: bool) -> io::Result<()> {
    Ok(())
}
