//! Files that cannot be read for a while: the steps that need them fail by name, and the first step after that goes on as if nothing had been.
#![cfg(unix)]

use std::fs::OpenOptions as Files;
use std::io::Write;
use std::path::{Path, PathBuf};

use alight_formats::GgmlType;
use alight_model::{
    Load, Model, ModelError, OpenOptions, Repack, Session, SessionOptions, SlotOptions,
};

use alight_testing::models::{Moe, Spec, tokens};

/// A file, which can be cut and completed in place.
struct Made {
    path: PathBuf,
    whole: Vec<u8>,
}

impl Made {
    fn new(spec: &Spec, folder: &Path) -> Made {
        let (path, _) = spec.write(folder);
        let whole = std::fs::read(&path).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        Made { path, whole }
    }

    /// Leaves the first eighth: the header, and a part of the weights.
    fn cut(&self) {
        let file = Files::new().write(true).open(&self.path).unwrap();
        file.set_len(self.whole.len() as u64 / 8).unwrap();
    }

    fn complete(&self) {
        let mut file = Files::new().write(true).open(&self.path).unwrap();
        file.write_all(&self.whole).unwrap();
        file.sync_all().unwrap();
    }
}

fn answer(model: &Model) -> Result<Vec<u32>, ModelError> {
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    answer_of(&mut session)
}

fn answer_of(session: &mut Session<'_>) -> Result<Vec<u32>, ModelError> {
    session.truncate(0);
    let logits = session.feed(&tokens(9, 300, 5))?;
    Ok(logits.iter().map(|logit| logit.to_bits()).collect())
}

/// Checks that an error is of reading, and what it names.
fn of_reading(error: &ModelError, made: &Made) {
    let name = made.path.file_name().unwrap().to_str().unwrap();
    let folder = made.path.parent().unwrap().to_str().unwrap();
    assert!(error.to_string().contains(made.path.to_str().unwrap()), "{error}");
    let named = error.unread().unwrap_or_else(|| panic!("{error}"));
    assert!(named.trim_start_matches('\'').starts_with(name) && !named.contains(folder), "{named}");
}

/// Large enough that the cut takes most of its pages.
fn spec() -> Spec {
    Spec { embd: 256, ff: 512, key_dim: 64, value_dim: 64, layers: 4, ..Spec::llama() }
}

#[test]
fn a_map_that_could_not_be_read_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let made = Made::new(&spec(), folder.path());
    let options = OpenOptions {
        threads: Some(2),
        load: Load::Mmap,
        repack: Repack::Off,
        ..OpenOptions::default()
    };
    let model = Model::open(&made.path, &options).unwrap();
    model.wait_loaded().unwrap();
    let expected = answer(&model).unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    for _ in 0..3 {
        made.cut();
        for _ in 0..2 {
            of_reading(&answer_of(&mut session).unwrap_err(), &made);
        }
        made.complete();
        assert!(answer_of(&mut session).unwrap() == expected);
        model.check().unwrap();
    }
}

/// The file is cut at some moment of the load.
#[test]
fn a_load_that_has_failed_begins_again() {
    let folder = tempfile::tempdir().unwrap();
    let made = Made::new(&Spec { ty: GgmlType::Q8_0, ..spec() }, folder.path());
    for (load, repack) in [
        (Load::Mmap, Repack::On),
        (Load::Direct, Repack::Off),
        (Load::Direct, Repack::On),
        (Load::Read, Repack::Off),
        (Load::Read, Repack::On),
    ] {
        let options = OpenOptions { threads: Some(2), load, repack, ..OpenOptions::default() };
        let expected = answer(&Model::open(&made.path, &options).unwrap()).unwrap();
        let mut failed = 0;
        for _ in 0..8 {
            let model = Model::open(&made.path, &options).unwrap();
            made.cut();
            let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
            for _ in 0..2 {
                match answer_of(&mut session) {
                    Ok(answer) => assert!(answer == expected, "{load}, {repack:?}"),
                    Err(error) => {
                        of_reading(&error, &made);
                        failed += 1;
                    }
                }
            }
            made.complete();
            assert!(answer_of(&mut session).unwrap() == expected, "{load}, {repack:?}");
            model.wait_loaded().unwrap();
        }
        eprintln!("{load}, {repack:?}: {failed} of 16 answers failed");
    }
}

#[test]
fn experts_that_could_not_be_read_are_read_again() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 16, used: 2, width: 512, ..Moe::default() };
    let spec =
        Spec { ty: GgmlType::Q8_0, embd: 256, layers: 3, moe: Some(moe), ..Spec::qwen3moe() };
    let made = Made::new(&spec, folder.path());
    let least = crate::experts::least(&made.path)[0];
    for slots in [
        SlotOptions::default(),
        SlotOptions { ring: false, ..SlotOptions::default() },
        SlotOptions { direct: false, ..SlotOptions::default() },
        SlotOptions { shared: true, ..SlotOptions::default() },
    ] {
        let options =
            OpenOptions { threads: Some(2), memory: Some(least), slots, ..OpenOptions::default() };
        let model = Model::open(&made.path, &options).unwrap();
        model.wait_loaded().unwrap();
        let expected = answer(&model).unwrap();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        for _ in 0..3 {
            made.cut();
            // Others may be in memory.
            let decoded = (0..40).find_map(|token| session.decode(token).err());
            of_reading(&decoded.expect("an error"), &made);
            made.complete();
            assert!(answer_of(&mut session).unwrap() == expected, "{slots:?}");
        }
    }
}
