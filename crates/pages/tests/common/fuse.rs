//! A filesystem with one file, `weights`, whose reads a test answers: short, failing, or ending early.
//!
//! The kernel's protocol is spoken directly (linux/fuse.h), so that no library is needed.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::thread::JoinHandle;

use super::mounts::{self, Mounted};

/// One read as the kernel asks for it.
pub struct Asked {
    pub offset: usize,
    pub len: usize,
    /// True if the file was opened with O_DIRECT.
    pub direct: bool,
}

/// What the file does.
pub struct Behaviour {
    /// What `stat` says.
    pub len: usize,
    /// The error for an open with O_DIRECT, or 0.
    pub refuse_direct_open: i32,
    /// True if the filesystem can say what it is.
    pub statfs: bool,
    /// Bytes, or an error number.
    pub read: Box<dyn Fn(Asked) -> Result<Vec<u8>, i32> + Send>,
}

/// The mounted filesystem.
pub struct Fuse {
    mounted: Option<Mounted>,
    server: Option<JoinHandle<()>>,
    pub path: PathBuf,
}

impl Fuse {
    /// Mounts, or says why that is not possible here.
    pub fn mount(behaviour: Behaviour) -> Result<Fuse, String> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let mounted = mounts::bare("fuse", &options)?;
        let server = std::thread::spawn(move || serve(device, &behaviour));
        let path = mounted.folder.path().join("weights");
        Ok(Fuse { mounted: Some(mounted), server: Some(server), path })
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // Unmounting ends the conversation, once no process has the file open.
        self.mounted.take();
        if !std::thread::panicking() {
            self.server.take().unwrap().join().unwrap();
        }
    }
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn words(words: &[u64], out: &mut Vec<u8>) {
    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn halves(halves: &[u32], out: &mut Vec<u8>) {
    halves.iter().for_each(|half| out.extend_from_slice(&half.to_le_bytes()));
}

fn attributes(node: u64, len: usize, out: &mut Vec<u8>) {
    let (mode, len) = if node == 1 { (0o40755, 0) } else { (0o100_644, len as u64) };
    words(&[node, len, len.div_ceil(512), 0, 0, 0], out);
    halves(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0], out);
}

fn serve(mut device: File, behaviour: &Behaviour) {
    let mut request = vec![0; 1 << 20];
    loop {
        let len = match device.read(&mut request) {
            Ok(len) => len,
            // Unmounted. The second is rare: unmounting has ended a request that was on its way.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED)) =>
            {
                return;
            }
            // A request was taken back before it was read.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                continue;
            }
            Err(error) => panic!("/dev/fuse: {error}"),
        };
        let (code, unique, node) =
            (number(&request, 4, 4), number(&request, 8, 8), number(&request, 16, 8));
        let body = &request[40..len];
        let direct = |flags| number(body, flags, 4) & libc::O_DIRECT as u64 != 0;
        let mut out = Vec::new();
        let answer = match code {
            // LOOKUP
            1 if body == b"weights\0" => {
                words(&[2, 0, 3600, 3600, 0], &mut out);
                attributes(2, behaviour.len, &mut out);
                Ok(())
            }
            1 => Err(libc::ENOENT),
            // GETATTR
            3 => {
                words(&[3600, 0], &mut out);
                attributes(node, behaviour.len, &mut out);
                Ok(())
            }
            // OPEN
            14 if direct(0) && behaviour.refuse_direct_open != 0 => {
                Err(behaviour.refuse_direct_open)
            }
            // With FOPEN_DIRECT_IO, so that what is answered is what `read` returns.
            14 => {
                words(&[0, 1], &mut out);
                Ok(())
            }
            // READ
            15 => {
                let (offset, len) = (number(body, 8, 8) as usize, number(body, 16, 4) as usize);
                let asked = Asked { offset, len, direct: direct(32) };
                (behaviour.read)(asked).map(|bytes| out = bytes)
            }
            // STATFS
            17 if behaviour.statfs => {
                out.resize(80, 0);
                Ok(())
            }
            // RELEASE, FLUSH
            18 | 25 => Ok(()),
            // INIT: version 7.31, up to 256 pages a request, asynchronous reads
            26 => {
                halves(&[7, 31, 1 << 20, 1 | 1 << 22, 12 | 9 << 16, 1 << 16, 1, 256], &mut out);
                out.resize(64, 0);
                Ok(())
            }
            // FORGET, INTERRUPT, BATCH_FORGET have no answer.
            2 | 36 | 42 => continue,
            _ => Err(libc::ENOSYS),
        };
        let error = answer.err().unwrap_or(0);
        if error != 0 {
            out.clear();
        }
        let mut reply = Vec::new();
        halves(&[16 + out.len() as u32, (-error) as u32], &mut reply);
        words(&[unique], &mut reply);
        reply.extend_from_slice(&out);
        // Perhaps nothing waits for it any more.
        let _ = device.write(&reply);
    }
}
