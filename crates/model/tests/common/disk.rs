//! Filesystems in files.

#[path = "../../../pages/tests/common/mounts.rs"]
#[allow(dead_code)] // `bare` is for the tests of pages
pub mod mounts;

/// A folder on the disk.
pub fn disk_folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}
