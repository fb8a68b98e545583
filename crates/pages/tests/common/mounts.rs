//! Filesystems in a file, mounted where the test may do so.

use std::ffi::CString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A mounted filesystem, unmounted on drop.
pub struct Mounted {
    at: CString,
    pub folder: TempDir,
    image: Option<TempDir>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: a string that ends in zero.
        unsafe { libc::umount2(self.at.as_ptr(), libc::MNT_DETACH) };
    }
}

fn folder() -> (TempDir, CString) {
    let folder = super::disk_folder();
    let at = CString::new(folder.path().to_str().unwrap()).unwrap();
    (folder, at)
}

impl Mounted {
    /// The file that the filesystem is in.
    pub fn image(&self) -> PathBuf {
        self.image.as_ref().expect("it is in a file").path().join("image")
    }
}

/// Mounts without a device, by mount(2).
pub fn bare(kind: &str, options: &str) -> Result<Mounted, String> {
    let (folder, at) = folder();
    let (kind, options) = (CString::new(kind).unwrap(), CString::new(options).unwrap());
    // SAFETY: strings that end in zero.
    let status = unsafe {
        libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
    };
    match status {
        0 => Ok(Mounted { at, folder, image: None }),
        _ => Err(format!("cannot mount {kind:?}: {}", std::io::Error::last_os_error())),
    }
}

/// Makes a filesystem in a sparse file of `mib` by `make` (a command and its arguments) and mounts
/// it through a loop device.
pub fn in_a_file(mib: u64, make: &[&str], options: &str) -> Result<Mounted, String> {
    let image = super::disk_folder();
    let path = image.path().join("image");
    File::create(&path).unwrap().set_len(mib << 20).unwrap();
    run(Command::new(make[0]).args(&make[1..]).arg(&path))?;
    let (folder, at) = folder();
    let options = if options.is_empty() { "loop".into() } else { format!("loop,{options}") };
    run(Command::new("mount").args(["-o", &options]).args([&path as &Path, folder.path()]))?;
    Ok(Mounted { at, folder, image: Some(image) })
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
