//! Nothing is read, replaced or removed in a guarded folder but files of ours, whatever others put there.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use alight_pages::{FileKind, GuardedError, GuardedFolder, NotOurs};
use tempfile::TempDir;

const MAGIC: &[u8] = b"GUARDED!";
const NAME: &str = "a file";

/// A user that is neither this one nor root.
const OTHER: u32 = 12_345;

fn open(path: &Path) -> Result<GuardedFolder, GuardedError> {
    GuardedFolder::open(path, MAGIC)
}

/// Writes a file of ours.
fn write(folder: &GuardedFolder, rest: &[u8]) -> Result<(), GuardedError> {
    let bytes = [MAGIC, rest].concat();
    folder.write(OsStr::new(NAME), bytes.len() as u64, |mut file| file.write_all(&bytes))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: a valid string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}

/// Returns why an entry is not ours.
fn why(error: &GuardedError) -> NotOurs {
    match error {
        GuardedError::NotOurs { path, why } => {
            assert!(path.ends_with(NAME) && error.to_string().contains(NAME), "{error}");
            *why
        }
        other => panic!("{other}"),
    }
}

/// True if the test can give files to another user.
fn may_give(path: &Path) -> bool {
    let may = chown(path, Some(OTHER), None).is_ok();
    if !may {
        eprintln!("skipped: only root can give a file to another user");
    }
    may
}

#[test]
fn a_file_of_ours_is_written_read_replaced_and_removed() {
    let place = TempDir::new().unwrap();
    let real = place.path().join("real");
    fs::create_dir(&real).unwrap();
    // The path of the folder may be a link.
    symlink(&real, place.path().join("link")).unwrap();
    let folder = open(&place.path().join("link")).unwrap();
    let name = OsStr::new(NAME);
    assert!(folder.read(name).unwrap_err().is_missing());
    assert!(folder.remove(name).unwrap_err().is_missing());
    for rest in [&b"one"[..], b"two and more", b""] {
        write(&folder, rest).unwrap();
        let mut text = Vec::new();
        folder.read(name).unwrap().read_to_end(&mut text).unwrap();
        assert_eq!(text, [MAGIC, rest].concat());
        let metadata = fs::metadata(real.join(NAME)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        let files = folder.files(|_| true).unwrap();
        assert_eq!((files.len(), files[0].name.as_os_str()), (1, name));
        assert_eq!(files[0].bytes, metadata.len());
        assert_eq!(files[0].modified, metadata.modified().unwrap());
        assert!(folder.files(|other| other != name).unwrap().is_empty());
    }
    // The folder is the one that was opened, wherever it is now.
    let moved = place.path().join("moved");
    fs::rename(&real, &moved).unwrap();
    fs::create_dir(&real).unwrap();
    write(&folder, b"three").unwrap();
    assert_eq!((names(&moved), names(&real)), (vec![NAME.to_owned()], vec![]));
    folder.remove(name).unwrap();
    assert!(names(&moved).is_empty());
    for name in ["", ".", "..", "a/b", "/etc/passwd"] {
        let error = folder.read(OsStr::new(name)).unwrap_err();
        assert!(!error.is_missing(), "{name}: {error}");
    }
    assert!(open(&place.path().join("none")).unwrap_err().is_missing());
}

/// Puts something into the way of a file.
type Plant = fn(&Path, &Path);

#[test]
fn what_is_not_ours_stays_and_is_not_read() {
    const LINK: NotOurs = NotOurs::Kind(FileKind::SymbolicLink);
    let to_text: Plant = |path, victim| {
        fs::write(victim, "mine").unwrap();
        symlink(victim, path).unwrap();
    };
    let to_ours: Plant = |path, victim| {
        fs::write(victim, [MAGIC, b"mine"].concat()).unwrap();
        symlink(victim, path).unwrap();
    };
    let planted: [(NotOurs, Plant); 7] = [
        (LINK, to_text),
        (LINK, to_ours),
        (LINK, |path, _| symlink("nowhere", path).unwrap()),
        (NotOurs::Magic, |path, _| fs::write(path, "a text of somebody").unwrap()),
        (NotOurs::Magic, |path, _| fs::write(path, &MAGIC[..7]).unwrap()),
        (NotOurs::Kind(FileKind::Pipe), |path, _| pipe(path)),
        (NotOurs::Kind(FileKind::Directory), |path, _| fs::create_dir(path).unwrap()),
    ];
    for (expected, plant) in planted {
        let place = TempDir::new().unwrap();
        let folder = open(place.path()).unwrap();
        let (path, victim) = (place.path().join(NAME), place.path().join("victim"));
        plant(&path, &victim);
        let look = |path: &Path| fs::symlink_metadata(path).map(|m| (m.ino(), m.len())).ok();
        let (before, all) = ([look(&path), look(&victim)], names(place.path()));
        assert_eq!(why(&write(&folder, b"new").unwrap_err()), expected);
        assert_eq!(why(&folder.remove(OsStr::new(NAME)).unwrap_err()), expected);
        let read = folder.read(OsStr::new(NAME));
        match expected {
            // Its reader looks at what it begins with.
            NotOurs::Magic => drop(read.unwrap()),
            _ => assert_eq!(why(&read.unwrap_err()), expected),
        }
        let files = folder.files(|_| true).unwrap();
        assert!(!files.iter().any(|file| file.name == NAME) || expected == NotOurs::Magic);
        assert_eq!(([look(&path), look(&victim)], names(place.path())), (before, all));
    }
}

/// A process that was killed leaves one where a new file cannot have its name at once.
#[test]
fn an_empty_file_is_replaced_and_removed() {
    let place = TempDir::new().unwrap();
    let (folder, path) = (open(place.path()).unwrap(), place.path().join(NAME));
    fs::write(&path, "").unwrap();
    write(&folder, b"new").unwrap();
    assert_eq!(fs::read(&path).unwrap(), [MAGIC, b"new"].concat());
    fs::write(&path, "").unwrap();
    folder.remove(OsStr::new(NAME)).unwrap();
    assert!(names(place.path()).is_empty());
}

#[test]
fn what_appears_while_a_file_is_written_stays() {
    let place = TempDir::new().unwrap();
    let folder = open(place.path()).unwrap();
    let path = place.path().join(NAME);
    let written = folder.write(OsStr::new(NAME), 8, |mut file| {
        fs::write(&path, "mine").unwrap();
        file.write_all(MAGIC)
    });
    assert_eq!(why(&written.unwrap_err()), NotOurs::Magic);
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(names(place.path()), [NAME], "and nothing else is left");
    fs::remove_file(&path).unwrap();
    let failed = folder.write(OsStr::new(NAME), 8, |_| Err(std::io::ErrorKind::StorageFull.into()));
    assert!(failed.unwrap_err().to_string().contains(NAME));
    assert!(names(place.path()).is_empty());
}

#[test]
fn files_of_others_in_a_folder_of_ours_are_left_alone() {
    let place = TempDir::new().unwrap();
    let folder = open(place.path()).unwrap();
    write(&folder, b"one").unwrap();
    let path = place.path().join(NAME);
    if !may_give(&path) {
        return;
    }
    // With the sticky bit, as /tmp has it, and without.
    for mode in [0o1777, 0o777, 0o700] {
        fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
        let folder = open(place.path()).unwrap();
        let name = OsStr::new(NAME);
        assert_eq!(why(&folder.read(name).unwrap_err()), NotOurs::OfOthers);
        assert_eq!(why(&write(&folder, b"two").unwrap_err()), NotOurs::OfOthers);
        assert_eq!(why(&folder.remove(name).unwrap_err()), NotOurs::OfOthers);
        assert!(folder.files(|_| true).unwrap().is_empty());
    }
    assert_eq!(fs::read(&path).unwrap(), [MAGIC, b"one"].concat());
}

#[test]
fn a_folder_of_others_is_not_used() {
    let place = TempDir::new().unwrap();
    let path: PathBuf = place.path().join("folder");
    fs::create_dir(&path).unwrap();
    open(&path).unwrap();
    if !may_give(&path) {
        return;
    }
    for mode in [0o777, 0o1777, 0o755] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let error = open(&path).unwrap_err();
        assert!(matches!(error, GuardedError::FolderOfOthers { .. }), "{error}");
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }
    File::create(path.join("x")).unwrap();
    assert!(matches!(open(&path.join("x")), Err(GuardedError::System { .. })));
}
