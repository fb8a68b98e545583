//! The time that the disk needs for the bytes, which is the limit of every cold start: the whole
//! file read sequentially past the page cache, by alight's own transfer and, if it is installed, by
//! fio.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use alight_pages::transfer::{Piece, TransferMethod, TransferOptions, transfer};
use anyhow::{Context, anyhow};
use serde_json::Value;

use super::files::Files;
use super::state;

/// Bytes per read.
const PIECE: u64 = 4 << 20;

/// Milliseconds for all bytes, of each repetition.
#[derive(Debug, Default)]
pub struct Disk {
    /// By alight.
    pub alight_ms: Vec<f64>,
    /// By fio; empty if it is not installed or fails.
    pub fio_ms: Vec<f64>,
    /// Alight's read: its engine, and `direct` if past the page cache.
    pub how: String,
}

impl Disk {
    /// Reads all files once with each, starting cold.
    pub fn measure(&mut self, files: &Files) -> anyhow::Result<()> {
        state::cold(files)?;
        let mut all = 0.0;
        for (path, file) in files.iter() {
            let len = file.metadata().with_context(|| format!("'{}'", path.display()))?.len();
            let pieces: Vec<Piece> = (0..len.div_ceil(PIECE))
                .map(|i| Piece::slot(i * PIECE..((i + 1) * PIECE).min(len)))
                .collect();
            let options = TransferOptions::default();
            let never = AtomicBool::new(false);
            let done =
                transfer(file, path, &pieces, TransferMethod::Direct, &options, &never, &|_, _| {})
                    .map_err(|e| anyhow!(e))?;
            all += done.took.as_secs_f64() * 1e3;
            self.how = format!(
                "{}, {}",
                done.engine,
                if done.direct { "direct" } else { "through the page cache" }
            );
        }
        self.alight_ms.push(all);
        state::cold(files)?;
        let fio: Option<f64> = files.iter().map(|(path, _)| fio(path)).sum();
        self.fio_ms.extend(fio);
        Ok(())
    }
}

/// Returns the disk's bytes per second, measured on a part of the file that is read past the page cache.
pub fn rate(path: &Path) -> anyhow::Result<f64> {
    const MAX_BYTES: u64 = 1 << 30;
    let file = File::open(path).with_context(|| format!("'{}'", path.display()))?;
    let len = file.metadata().with_context(|| format!("'{}'", path.display()))?.len();
    let first = len.saturating_sub(MAX_BYTES) / 2 / PIECE * PIECE;
    let end = len.min(first + MAX_BYTES);
    let pieces: Vec<Piece> = (first..end)
        .step_by(PIECE as usize)
        .map(|start| Piece::slot(start..end.min(start + PIECE)))
        .collect();
    let (options, never) = (TransferOptions::default(), AtomicBool::new(false));
    let done = transfer(&file, path, &pieces, TransferMethod::Direct, &options, &never, &|_, _| {})
        .map_err(|e| anyhow!(e))?;
    Ok((end - first) as f64 / done.took.as_secs_f64())
}

/// The arguments of fio, except for the file.
pub const FIO: [&str; 9] = [
    "--name=read",
    "--readonly",
    "--rw=read",
    "--direct=1",
    "--bs=1M",
    "--ioengine=io_uring",
    "--iodepth=32",
    "--output-format=json",
    "--invalidate=0",
];

/// Returns the milliseconds that fio needs for the file; `None` if it is not installed or fails.
fn fio(path: &Path) -> Option<f64> {
    // A colon would separate two names.
    let name = path.to_str()?.replace(':', "\\:");
    let done = Command::new("fio")
        .args(FIO)
        .arg(format!("--filename={name}"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let told: Value = serde_json::from_slice(&done.stdout).ok()?;
    runtime(&told)
}

fn runtime(told: &Value) -> Option<f64> {
    let ms = told.pointer("/jobs/0/read/runtime")?.as_f64()?;
    (ms > 0.0 && told.pointer("/jobs/0/error")?.as_u64()? == 0).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fio_is_believed_only_if_it_read() {
        let told =
            |ms: u64, error: u64| json!({"jobs": [{"read": {"runtime": ms}, "error": error}]});
        assert_eq!(runtime(&told(1234, 0)), Some(1234.0));
        assert_eq!(runtime(&told(1234, 5)), None);
        assert_eq!(runtime(&told(0, 0)), None);
        assert_eq!(runtime(&json!({})), None);
    }
}
