//! Copies as the tests of copying make them.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use alight_pages::copy::{self, CopyError, Method, Options, Report};

/// All ways that copy.
pub const METHODS: [Method; 3] = [Method::Direct, Method::CopyFileRange, Method::ReadWrite];

pub fn by(method: Method) -> Options {
    let mut options = Options::default();
    options.method = Some(method);
    options
}

/// Copies `from` to a new file `to` in small windows, and syncs it.
pub fn copy(from: &Path, to: &Path, options: &Options) -> Result<Report, CopyError> {
    copy_and(from, to, options, &mut |_| ControlFlow::Continue(()))
}

/// The same, with an observer of progress.
pub fn copy_and(
    from: &Path,
    to: &Path,
    options: &Options,
    on_progress: &mut copy::OnProgress<'_>,
) -> Result<Report, CopyError> {
    let source = File::open(from).unwrap();
    let dest =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(to).unwrap();
    let report = copy::copy((&source, from), (&dest, to), options, on_progress)?;
    dest.sync_all().unwrap();
    let _ = alight_pages::give_up(&dest);
    Ok(report)
}

/// The same bytes, the same length.
pub fn assert_same(from: &Path, to: &Path) {
    let [a, b] = [from, to].map(|path| File::open(path).unwrap());
    let len = a.metadata().unwrap().len();
    assert_eq!(b.metadata().unwrap().len(), len);
    let (mut one, mut two) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    for at in (0..len).step_by(1 << 20) {
        let n = (1 << 20).min(len - at) as usize;
        a.read_exact_at(&mut one[..n], at).unwrap();
        b.read_exact_at(&mut two[..n], at).unwrap();
        assert!(one[..n] == two[..n], "MiB {}", at >> 20);
    }
}

/// Where a file has bytes, as the system tells it.
pub fn segments(path: &Path) -> Vec<(i64, i64)> {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    // SAFETY: takes numbers only.
    let seek = |at, whence| unsafe { libc::lseek(file.as_raw_fd(), at, whence) };
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let start = seek(at, libc::SEEK_DATA);
        if start < 0 {
            return found;
        }
        at = seek(start, libc::SEEK_HOLE);
        found.push((start, at));
    }
}

/// Bytes that a file takes on the disk.
pub fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

/// Which pages of a file are cached.
pub fn cached_pages(path: &Path) -> Vec<bool> {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0u8; len.div_ceil(4096)];
    // SAFETY: a map that is asked about and never touched, and a byte for each of its pages.
    unsafe {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let map = libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, len, pages.as_mut_ptr().cast()), 0);
        libc::munmap(map, len);
    }
    pages.into_iter().map(|page| page & 1 == 1).collect()
}

/// Takes a file out of the page cache and brings back some of it, in pieces all over the file that
/// begin and end anywhere; returns which pages are cached then.
pub fn half_warm(path: &Path) -> Vec<bool> {
    use std::os::fd::AsRawFd;
    let file = File::open(path).unwrap();
    alight_pages::evict(&file).unwrap();
    let len = file.metadata().unwrap().len();
    // SAFETY: takes numbers only. Nothing is read ahead.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    let (mut at, mut step) = (5 * 4096, 3 * 4096);
    let mut buffer = vec![0; 4 << 20];
    while at < len {
        let n = step.min(len - at) as usize;
        file.read_exact_at(&mut buffer[..n], at).unwrap();
        at += 2 * step + 7 * 4096;
        step = step * 3 % (4 << 20) / 4096 * 4096 + 4096;
    }
    cached_pages(path)
}

/// Copies a half-warm file by `copy`, which must leave it exactly as half warm. It is tried again where it does not: the system
/// may take pages at any time, and refuses to drop one that it holds for a moment on another CPU. A copy that drops too much
/// or too little does so at every try.
pub fn stays_half_warm(path: &Path, mut copy: impl FnMut() -> Report) -> Report {
    let mut tries = 0;
    loop {
        let before = half_warm(path);
        let report = copy();
        let after = cached_pages(path);
        let both = || before.iter().zip(&after);
        let (gone, come) = (
            both().filter(|(b, a)| **b && !**a).count(),
            both().filter(|(b, a)| !**b && **a).count(),
        );
        tries += 1;
        if (gone, come) == (0, 0) {
            return report;
        }
        assert!(tries < 4, "{gone} pages have gone and {come} have come: {report:?}");
    }
}
