//! The note that a large model would answer faster if it were packed. It appears once for each model, on a terminal, after an answer,
//! and only where that was measured: for these CPUs and types.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use alight_files::folders;
use alight_model::Model;
use alight_pages::open_unfollowed;

use crate::inspect::summary::Summary;
use crate::{say, units};

/// Bytes of a model from which the note is of use: the answers of smaller ones are fast.
const MIN_BYTES: u64 = 1 << 30;
/// The types of most weights in the models that were measured, as rows and packed.
const TYPES: [&str; 3] = ["Q4_0", "Q4_1", "Q4_K"];
/// Maximum number of bytes of the list of models; then it is emptied.
const MAX_LIST_BYTES: u64 = 64 << 10;
/// Maximum number of bytes that are read about the CPU: those of its first processor.
const MAX_CPU_BYTES: u64 = 16 << 10;

/// A measurement of docs/reference/benchmarks.md.
struct MeasuredGain {
    /// A word that the system has among the flags of such a CPU.
    flag: &'static str,
    /// The speed of answers of the packed 3B, in times of that of the GGUF file.
    gain: f64,
}

/// The CPUs of Intel, the first that fits. With others a large model is as fast as memory permits, packed or not.
const MEASURED: [MeasuredGain; 2] =
    [MeasuredGain { flag: "amx_int8", gain: 1.7 }, MeasuredGain { flag: "avx512_vnni", gain: 1.2 }];

/// Prints the note after an answer of this model, if it is true and new.
pub fn note(model: &Model) {
    if !say::is_terminal() || model.file_bytes() < MIN_BYTES {
        return;
    }
    let (Some(file), Some(measured)) = (model.files().next(), measured()) else { return };
    let is_other = model.load_report().repack || model.spec().expert_layers().next().is_some();
    let list = folders::of_user(folders::STATE).map(|folder| folder.join("packing"));
    let Some(list) = list.filter(|_| !is_other && is_measured(file)) else { return };
    // A note that cannot be remembered would come with each answer.
    if remember(&list, file) {
        say::note(&text(measured, model.file_bytes()));
    }
}

fn text(measured: &MeasuredGain, bytes: u64) -> String {
    format!(
        "packed, this model answers about {} times as fast on a CPU of this kind: --pack packs it once, for {} more of disk; \
         `alight pull --pack` keeps the packed file alone",
        measured.gain,
        units::bytes(bytes)
    )
}

/// Returns the measurement for this machine's CPU.
fn measured() -> Option<&'static MeasuredGain> {
    let mut text = String::new();
    let file = File::open("/proc/cpuinfo").ok()?;
    file.take(MAX_CPU_BYTES).read_to_string(&mut text).ok()?;
    of_cpu(&text)
}

/// Returns the measurement for a CPU that the system describes like this.
fn of_cpu(text: &str) -> Option<&'static MeasuredGain> {
    let value = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
    };
    if value("vendor_id") != Some("GenuineIntel") {
        return None;
    }
    let flags = value("flags")?;
    MEASURED.iter().find(|one| flags.split_whitespace().any(|flag| flag == one.flag))
}

/// Returns true if a model is not packed, and most of its weights are of types that were measured.
fn is_measured(file: &Path) -> bool {
    let Ok(maps) = alight_files::open(file) else { return false };
    let copies = alight_files::copies(&maps);
    let Ok(headers) = alight_files::headers(&maps, &copies) else { return false };
    if headers.files.iter().any(|gguf| gguf.packed) {
        return false;
    }
    let summary = Summary::of_catalog(&headers.catalog);
    let of_types = summary.types.iter().filter(|of_type| TYPES.contains(&of_type.ty));
    of_types.map(|of_type| of_type.parameters).sum::<u64>() > summary.parameters / 2
}

/// Adds a model to the list of those that the note was printed for. Returns false if it is there already, or cannot be added.
fn remember(list: &Path, model: &Path) -> bool {
    let Ok(model) = fs::canonicalize(model) else { return false };
    let line = model.display().to_string();
    let mut known = String::new();
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    let open = || {
        fs::create_dir_all(list.parent().map_or(PathBuf::new(), Path::to_owned)).ok()?;
        open_unfollowed(list, &options).ok()
    };
    let Some((mut file, found)) = open() else { return false };
    if found.len() > MAX_LIST_BYTES && file.set_len(0).is_err() {
        return false;
    }
    let read = (&file).take(2 * MAX_LIST_BYTES).read_to_string(&mut known);
    let is_new = read.is_ok() && !known.lines().any(|known| known == line);
    is_new && file.write_all(format!("{line}\n").as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_note_claims_was_measured() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/benchmarks.md");
        let page = fs::read_to_string(page).unwrap();
        let tables = ["Intel, AMX, tokens/s", "Intel, AVX-512, tokens/s"];
        for (table, MeasuredGain { gain, .. }) in tables.iter().zip(&MEASURED) {
            let head = page.find(&format!("| {table} | packed | GGUF |")).expect(table);
            let row = page[head..].lines().find(|line| line.starts_with("| 3B, answer |")).unwrap();
            let cells: Vec<f64> =
                row.split('|').skip(2).map_while(|cell| cell.trim().parse().ok()).collect();
            let found = cells[0] / cells[1];
            assert!((found - gain).abs() < 0.06, "{table}: {found}, not {gain}");
        }
        let note = text(&MEASURED[1], 4_100_000_000);
        assert!(note.contains("about 1.2 times as fast") && note.contains("4.10 GB"), "{note}");
    }

    #[test]
    fn a_cpu_that_was_not_measured_has_no_note() {
        let of = |vendor: &str, flags: &str| {
            let text = format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: fpu {flags}\n");
            of_cpu(&text).map(|one| one.gain)
        };
        assert_eq!(of("GenuineIntel", "avx2 avx512_vnni amx_int8"), Some(1.7));
        assert_eq!(of("GenuineIntel", "avx2 avx512_vnni"), Some(1.2));
        assert_eq!(of("GenuineIntel", "avx2 avx_vnni"), None);
        assert_eq!(of("AuthenticAMD", "avx2 avx512_vnni"), None);
        assert!(of_cpu("").is_none());
    }

    #[test]
    fn a_model_has_the_note_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let list = at("state/alight/packing");
        for name in ["a.gguf", "b.gguf"] {
            fs::write(at(name), "").unwrap();
            assert!(remember(&list, &at(name)), "{name}");
            assert!(!remember(&list, &at(name)), "{name}");
        }
        std::os::unix::fs::symlink(at("a.gguf"), at("link.gguf")).unwrap();
        assert!(!remember(&list, &at("link.gguf")), "it is the same model");
        assert!(!remember(&at("a.gguf/packing"), &at("b.gguf")), "it could not be remembered");
        // A list that has become long is emptied.
        fs::write(&list, "x\n".repeat(MAX_LIST_BYTES as usize)).unwrap();
        assert!(remember(&list, &at("b.gguf")));
        assert_eq!(
            fs::metadata(&list).unwrap().len(),
            fs::read_to_string(&list).unwrap().len() as u64
        );
        assert!(fs::metadata(&list).unwrap().len() < 1000);
    }
}
