//! Copies as the tests make them.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use alight_copy::{Copied, CopyError, Event, Options, Summary, copy};
use tempfile::TempDir;

/// A folder on a disk (not in memory).
pub fn folder() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// What a copy did.
#[derive(Debug)]
pub struct Done {
    pub summary: Summary,
    pub copied: Vec<Copied>,
    pub errors: Vec<String>,
    pub skipped: Vec<PathBuf>,
}

impl Done {
    /// The one thing that went wrong.
    pub fn error(&self) -> &str {
        assert_eq!((self.errors.len(), self.summary.failed), (1, 1), "{self:?}");
        &self.errors[0]
    }

    /// Nothing went wrong.
    pub fn succeeds(self) -> Done {
        assert!(self.errors.is_empty() && self.summary.failed == 0, "{self:?}");
        self
    }
}

/// Copies, and keeps everything that is told.
pub fn run(sources: &[&Path], dest: &Path, options: &Options) -> Result<Done, CopyError> {
    let sources: Vec<PathBuf> = sources.iter().map(|path| path.to_path_buf()).collect();
    let (mut copied, mut errors, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let summary = copy(&sources, dest, options, &mut |event| {
        match event {
            Event::Copied(one) => copied.push((
                one.from.clone(),
                one.to.clone(),
                one.not_kept.clone(),
                one.verified,
                one.took,
            )),
            Event::Failed(error) => errors.push(error.to_string()),
            Event::Skipped(path) => skipped.push(path.to_path_buf()),
            _ => {}
        }
        ControlFlow::Continue(())
    })?;
    let copied = copied
        .into_iter()
        .map(|(from, to, not_kept, verified, took)| Copied {
            from,
            to,
            report: None,
            verified,
            not_kept,
            took,
        })
        .collect();
    Ok(Done { summary, copied, errors, skipped })
}

/// One file to another, with nothing special.
pub fn simply(from: &Path, to: &Path) -> Done {
    run(&[from], to, &Options::default()).unwrap()
}

/// A folder and everything in it.
pub fn recursively(from: &Path, to: &Path) -> Done {
    run(&[from], to, &Options { recursive: true, ..Options::default() }).unwrap()
}

/// The names in a folder.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// True if the test is run by root.
pub fn is_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// Does something as a user without rights (the threads that a test starts are its own).
pub fn as_nobody<T: Send>(what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            // SAFETY: take numbers; the plain system calls change this thread alone.
            unsafe {
                let none = std::ptr::null::<libc::gid_t>();
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, none), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, 65534, 65534, 65534), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534), 0);
            }
            what()
        });
        done.join().unwrap()
    })
}
