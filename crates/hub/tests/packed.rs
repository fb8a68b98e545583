//! Models that are kept packed. What packs them here reverses their bytes.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use alight_hub::{Hub, HubError, Pulled};

use crate::pull::{Case, name, with};
use crate::support::{COMMIT, REPO, bytes, sha256};

const FILE: &str = "m-Q4_K_M.gguf";

/// Reverses a file, and returns the SHA-256 of what it was.
fn pack(from: &Path, to: &Path) -> Result<String, HubError> {
    let mut bytes = fs::read(from).unwrap();
    let hash = sha256(&bytes);
    bytes.reverse();
    fs::write(to, bytes).unwrap();
    Ok(hash)
}

fn never(_: &Path, _: &Path) -> Result<String, HubError> {
    panic!("it is packed already")
}

type Pack = fn(&Path, &Path) -> Result<String, HubError>;

fn keep(hub: &Hub, paths: &[PathBuf], pack: Pack) -> Result<PathBuf, HubError> {
    hub.keep_packed(REPO, paths, &mut |_| ControlFlow::Continue(()), pack)
}

impl Case {
    fn pull_to_pack(&self, tag: &str) -> Result<Pulled, HubError> {
        self.ours().pull_to_pack(&name(tag), &mut |_| ControlFlow::Continue(()))
    }

    fn in_snapshot(&self, file: &str) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT).join(file)
    }
}

#[test]
fn the_packed_file_is_kept_alone_and_the_cache_knows_it() {
    let model = bytes(100_000, 1);
    let case = with(&[(FILE, model.clone()), ("m-Q8_0.gguf", bytes(1000, 2))]);
    let pulled = case.pull_to_pack("Q4_K_M").unwrap();
    assert!(!pulled.packed && pulled.paths == [case.in_snapshot(FILE)]);
    let path = keep(&case.ours(), &pulled.paths, pack).unwrap();
    assert_eq!(path, case.in_snapshot("m-Q4_K_M.packed.gguf"));
    assert_eq!(case.blobs(), [format!("{}.alight.packed", sha256(&model))]);
    assert!(!case.in_snapshot(FILE).is_symlink(), "no file has this name and other bytes");
    // By its tag, by the name of its file, and without either.
    for tag in ["Q4_K_M", FILE, "latest"] {
        let found = case.ours().find(&name(tag)).unwrap().unwrap();
        assert_eq!((found.path(), &*found.tag), (&*path, "Q4_K_M"), "{tag}");
        assert_eq!(found.original, Some(case.in_snapshot(FILE)));
        let exact = case.ours().find_exactly(&name(tag)).unwrap().unwrap();
        assert_eq!(exact.path(), path);
    }
    assert_eq!(case.ours().list().unwrap().len(), 1);
    // No pull fetches it again, of this kind or the other.
    case.hub.asked();
    for again in [case.pull("Q4_K_M").unwrap(), case.pull_to_pack("Q4_K_M").unwrap()] {
        assert!(again.packed && again.received == 0 && again.paths == [path.clone()]);
        assert_eq!(keep(&case.ours(), &again.paths, never).unwrap(), path);
    }
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    let removed = case.ours().remove(&name(FILE), false).unwrap();
    assert_eq!((removed.bytes, removed.models.len()), (model.len() as u64, 1));
    assert!(!case.repo().exists());
}

#[test]
fn of_a_newer_commit_with_the_same_file_nothing_is_fetched() {
    let case = with(&[(FILE, bytes(100_000, 1))]);
    keep(&case.ours(), &case.pull("Q4_K_M").unwrap().paths, pack).unwrap();
    case.hub.asked();
    let newer = "f".repeat(40);
    case.hub.plan().commit = newer.clone();
    let pulled = case.pull("Q4_K_M").unwrap();
    assert!(pulled.packed && pulled.received == 0);
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    let snapshots = case.repo().join("snapshots");
    assert_eq!(pulled.path(), snapshots.join(newer).join("m-Q4_K_M.packed.gguf"));
    assert!(fs::metadata(pulled.path()).unwrap().is_file());
    // Other bytes are another model.
    let changed = bytes(100_000, 9);
    case.hub.plan().files.clear();
    case.hub.add(FILE, changed.clone(), true);
    case.hub.plan().commit = "e".repeat(40);
    let pulled = case.pull("Q4_K_M").unwrap();
    assert!(!pulled.packed && fs::read(pulled.path()).unwrap() == changed);
}

#[test]
fn wherever_it_stops_the_model_is_there_and_the_next_call_goes_on() {
    let model = bytes(100_000, 1);
    let case = with(&[(FILE, model.clone())]);
    let pulled = case.pull_to_pack("Q4_K_M").unwrap();
    // While it is packed, or before it has its name.
    let stopped = keep(&case.ours(), &pulled.paths, |_, _| Err(HubError::Stopped));
    assert!(matches!(stopped, Err(HubError::Stopped)));
    let there = || case.ours().find(&name("Q4_K_M")).unwrap().unwrap();
    assert!(there().original.is_none() && fs::read(there().path()).unwrap() == model);
    // When it has its name and no link.
    let packed = case.repo().join("blobs").join(format!("{}.alight.packed", sha256(&model)));
    pack(&pulled.paths[0], &packed).unwrap();
    assert!(there().original.is_none() && fs::read(there().path()).unwrap() == model);
    // When there are both: another tool may have fetched it as well.
    let both = case.in_snapshot("m-Q4_K_M.packed.gguf");
    let target = format!("../../blobs/{}.alight.packed", sha256(&model));
    std::os::unix::fs::symlink(target, &both).unwrap();
    assert_eq!((there().path(), there().original), (&*both, Some(pulled.paths[0].clone())));
    assert_eq!(case.ours().list().unwrap().len(), 1);
    let again = case.pull_to_pack("Q4_K_M").unwrap();
    assert_eq!(keep(&case.ours(), &again.paths, never).unwrap(), both);
    assert_eq!(case.blobs(), [packed.file_name().unwrap().to_str().unwrap()]);
    // Packed bytes without a link go with the repository.
    fs::remove_file(&both).unwrap();
    case.ours().remove(&name("latest"), true).unwrap();
    assert!(case.blobs().is_empty());
}

#[test]
fn bytes_that_are_not_what_the_hub_has_promised_are_not_packed() {
    let model = bytes(100_000, 1);
    let case = with(&[(FILE, model.clone())]);
    let pulled = case.pull_to_pack("Q4_K_M").unwrap();
    let blob = case.repo().join("blobs").join(sha256(&model));
    fs::write(&blob, bytes(100_000, 2)).unwrap();
    let error = keep(&case.ours(), &pulled.paths, pack).unwrap_err().to_string();
    assert!(error.contains(FILE) && error.contains(&sha256(&model)), "{error}");
    assert_eq!(case.blobs(), [sha256(&model)]);
    assert!(case.in_snapshot(FILE).is_file());
}

#[test]
fn what_cannot_be_restored_is_refused_before_anything_is_fetched() {
    let case = with(&[
        ("s-Q8_0-00001-of-00002.gguf", bytes(1000, 1)),
        ("s-Q8_0-00002-of-00002.gguf", bytes(1000, 2)),
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", bytes(1000, 3)),
        (FILE, bytes(1000, 4)),
        ("m-Q4_K_M.packed.gguf", bytes(1000, 5)),
    ]);
    case.hub.add("git-Q2_K.gguf", bytes(1000, 6), false);
    for (tag, why) in [
        ("Q8_0", "several files"),
        ("safetensors", "alight convert"),
        (FILE, "a file of the name"),
        ("Q2_K", "no SHA-256"),
    ] {
        let error = case.pull_to_pack(tag).unwrap_err().to_string();
        assert!(error.contains("cannot be kept packed: ") && error.contains(why), "{tag}: {error}");
    }
    // One that has been fetched already.
    let split = case.pull("Q8_0").unwrap();
    let error = keep(&case.ours(), &split.paths, never).unwrap_err().to_string();
    assert!(error.contains("several files"), "{error}");
    let first = &split.paths[..1];
    assert!(keep(&case.ours(), first, never).is_err());
    // The hub's own file of that name is a model like others.
    let own = case.pull("m-Q4_K_M.packed.gguf").unwrap();
    assert!(!own.packed && fs::read(own.path()).unwrap() == bytes(1000, 5));
    let pulled = case.pull(FILE).unwrap();
    assert!(keep(&case.ours(), &pulled.paths, never).is_err());
    assert!(fs::read(pulled.path()).unwrap() == bytes(1000, 4));
}

#[test]
fn the_disk_must_have_space_for_both() {
    let case = with(&[(FILE, bytes(1000, 1))]);
    let folder = alight_pages::Folder::open(case.settings.cache.parent().unwrap()).unwrap();
    let size = folder.free_bytes().unwrap() / 4 * 3;
    case.hub.plan().listing =
        Some(format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"{FILE}"}}]}}"#));
    case.hub.plan().size = Some(size.to_string());
    let error = case.pull_to_pack("Q4_K_M").unwrap_err().to_string();
    let needs = format!(
        "{FILE}, with its packed form, needs {} more",
        alight_types::units::bytes(2 * size)
    );
    assert!(error.contains(&needs), "{error}");
    assert!(!case.repo().exists() && case.hub.asked().iter().all(|one| !one.cdn));
}

#[test]
fn two_who_pack_one_model_pack_it_once() {
    let case = with(&[(FILE, bytes(100_000, 1))]);
    let paths = case.pull_to_pack("Q4_K_M").unwrap().paths;
    let (begun, is_begun) = channel();
    let (go, may_go) = channel::<()>();
    thread::scope(|scope| {
        let (hub, of_first) = (case.ours(), paths.clone());
        let first = scope.spawn(move || {
            hub.keep_packed(REPO, &of_first, &mut |_| ControlFlow::Continue(()), |from, to| {
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                pack(from, to)
            })
        });
        is_begun.recv().unwrap();
        let mut waits = 0;
        let second = case.ours().keep_packed(
            REPO,
            &paths,
            &mut |_| {
                waits += 1;
                if waits == 2 {
                    go.send(()).unwrap();
                }
                ControlFlow::Continue(())
            },
            never,
        );
        assert_eq!(second.unwrap(), first.join().unwrap().unwrap());
        assert!(waits >= 2);
    });
    // A second pull that waits for the lock finds it packed, too.
    assert!(case.pull("Q4_K_M").unwrap().packed);
}
