//! Files that are read while they come: in the order in which they are asked for, with the same checks, and nothing is kept as good
//! that is not.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use alight_hub::{Event, Hub, HubError, Name, Pulled, Settings};
use alight_pages::Map;

use crate::support::{COMMIT, FakeHub, REPO, bytes, sha256};

const MIB: usize = 1 << 20;

struct Case {
    hub: FakeHub,
    _folder: tempfile::TempDir,
    settings: Settings,
    model: Vec<u8>,
}

fn case(len: usize) -> Case {
    let model = bytes(len, 77);
    let (hub, folder) =
        (FakeHub::with(&[("m-Q8_0.gguf", model.clone())]), tempfile::tempdir().unwrap());
    let settings = Settings {
        cache: folder.path().join("hub"),
        endpoint: hub.endpoint.clone(),
        token: None,
        offline: false,
    };
    Case { hub, _folder: folder, settings, model }
}

const PATIENCE: Duration = Duration::from_secs(60);

/// A pull in a thread.
struct Coming {
    thread: JoinHandle<Result<(Pulled, bool), HubError>>,
    maps: Receiver<Vec<Arc<Map>>>,
}

impl Coming {
    /// The maps, once there are some.
    fn maps(&self) -> Vec<Arc<Map>> {
        self.maps.recv_timeout(PATIENCE).unwrap()
    }

    /// The only map.
    fn map(&self) -> Arc<Map> {
        let [map] = <[_; 1]>::try_from(self.maps()).unwrap();
        map
    }

    /// The outcome; true if the pull has reported that nothing can be read before it is complete.
    fn ended(self) -> Result<(Pulled, bool), HubError> {
        self.thread.join().unwrap()
    }
}

impl Case {
    fn ours(&self) -> Hub {
        Hub::new(self.settings.clone()).with_pause(Duration::from_millis(1))
    }

    /// A pull that ends when `stop` returns true.
    fn begin_until(&self, stop: impl FnMut(u64) -> bool + Send + 'static) -> Coming {
        self.begin_until_of(&name(), stop)
    }

    fn begin_until_of(
        &self,
        name: &Name,
        mut stop: impl FnMut(u64) -> bool + Send + 'static,
    ) -> Coming {
        let (hub, name, (send, maps)) = (self.ours(), name.clone(), channel());
        let thread = thread::spawn(move || {
            let mut only_whole = false;
            let pulled = hub.pull_and_read(&name, &mut |event| {
                match event {
                    Event::Readable { maps } => send.send(maps.to_vec()).unwrap(),
                    Event::OnlyWhole => only_whole = true,
                    Event::Progress { received, .. } if stop(received) => {
                        return ControlFlow::Break(());
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            });
            pulled.map(|pulled| (pulled, only_whole))
        });
        Coming { thread, maps }
    }

    fn begin(&self) -> Coming {
        self.begin_until(|_| false)
    }

    fn blobs(&self) -> Vec<String> {
        let folder = self.settings.cache.join("models--org--model-GGUF/blobs");
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn file(&self) -> PathBuf {
        let folder = self.settings.cache.join("models--org--model-GGUF/snapshots");
        folder.join(COMMIT).join("m-Q8_0.gguf")
    }

    /// Bytes of ranges that the server of bytes was asked for.
    fn asked(&self) -> Vec<(u64, u64)> {
        let asked = self.hub.asked().into_iter().filter(|one| one.cdn);
        asked.map(|one| one.range.unwrap()).collect()
    }
}

fn name() -> Name {
    Name::parse(&format!("{REPO}:Q8_0")).unwrap()
}

fn read(map: &Map, at: usize, len: usize) -> Vec<u8> {
    let mut found = vec![0; len];
    map.read(&mut found, at as u64).unwrap();
    found
}

#[test]
fn what_is_asked_for_comes_first_and_all_of_it_is_there_in_the_end() {
    let case = case(30 * MIB + 77);
    let coming = case.begin();
    let map = coming.map();
    assert_eq!((map.len(), map.path()), (case.model.len(), &*case.file()));
    for at in [20 * MIB + 5, 3 * MIB, 30 * MIB + 70] {
        assert!(read(&map, at, 7) == case.model[at..at + 7]);
    }
    // Long enough for bytes that no reader has asked for.
    thread::sleep(Duration::from_millis(200));
    let asked: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert!(asked < 300 << 10, "{asked}");
    let there = map.incoming().unwrap();
    assert!(!case.file().exists() && there.missing() > 29 << 20);
    there.take_rest();
    let (pulled, only_whole) = coming.ended().unwrap();
    assert!(!only_whole);
    assert_eq!((pulled.received, &pulled.paths[0]), (pulled.bytes, &case.file()));
    assert!(map.incoming().is_none() && map.check().is_ok());
    assert!(map.bytes() == case.model && fs::read(case.file()).unwrap() == case.model);
    assert_eq!(case.blobs(), [sha256(&case.model)]);
    // Each byte was asked for once.
    let rest: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert_eq!(asked + rest, case.model.len() as u64);
    assert!(case.ours().find(&name()).unwrap().is_some());
}

#[test]
fn a_stopped_pull_continues_where_it_was_holes_or_not() {
    let case = case(30 * MIB);
    let coming = case.begin_until(|received| received > 0);
    let map = coming.map();
    map.incoming().unwrap().ask_now(0..MIB as u64);
    assert!(matches!(coming.ended(), Err(HubError::Stopped)));
    assert!(map.check().unwrap_err().to_string().contains("was not received: stopped"));
    drop(map);
    // Here and there, by one that is read.
    let (done, is_done) = std::sync::mpsc::channel();
    let coming = case.begin_until(move |_| is_done.try_recv().is_ok());
    let map = coming.map();
    for at in [9 * MIB, 25 * MIB] {
        assert!(read(&map, at, MIB) == case.model[at..at + MIB]);
    }
    done.send(()).unwrap();
    assert!(matches!(coming.ended(), Err(HubError::Stopped)));
    drop(map);
    case.asked();
    // The rest by an ordinary one.
    let pulled = case.ours().pull(&name(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(fs::read(&pulled.paths[0]).unwrap() == case.model);
    assert!(pulled.received < 28 << 20, "{}", pulled.received);
    let asked: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert_eq!(asked, pulled.received);
}

/// Part of an error, and the change of a hub that leads to it.
type Change = (&'static str, fn(&FakeHub));

#[test]
fn what_is_wrong_ends_readers_with_its_place() {
    let changes: [Change; 4] = [
        ("another range than what was asked for", |hub| {
            hub.plan().content_range = Some("bytes 0-4095/20971520".to_owned());
        }),
        ("it has another etag", |hub| hub.plan().etag_of_bytes = Some("\"other\"".to_owned())),
        ("has another size than what was promised", |hub| hub.plan().no_ranges = true),
        (", at byte 8388608 of m-Q8_0.gguf", |hub| {
            hub.plan().cut = Some((0, usize::MAX));
        }),
    ];
    for (expected, change) in changes {
        let case = case(20 * MIB);
        case.hub.plan().etag_of_bytes = Some("\"one\"".to_owned());
        let coming = case.begin();
        let map = coming.map();
        assert!(read(&map, 0, 9) == case.model[..9]);
        change(&case.hub);
        if expected.contains("size") {
            // A body of all of it where a part was asked for, of a file that has grown.
            let hash = sha256(&case.model);
            let mut plan = case.hub.plan();
            let stored = plan.files.iter_mut().find(|file| file.hash == hash).unwrap();
            stored.bytes = Arc::new([&case.model[..], b"more"].concat());
        }
        let error = map.read(&mut [0; 9], 8 * MIB as u64).unwrap_err().to_string();
        assert!(error.contains("byte 8388608 of 20971520 was not received"), "{error}");
        assert!(error.contains(expected), "{error}");
        let error = coming.ended().unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("byte 8388608"), "{error}");
        assert!(map.check().is_err() && !case.file().exists());
        // The received bytes are kept.
        assert!(case.blobs()[0].ends_with(".alight.incomplete"));
    }
}

#[test]
fn a_chunk_that_is_short_is_continued() {
    let case = case(20 * MIB);
    let coming = case.begin();
    let map = coming.map();
    case.hub.plan().cut = Some((100_000, 20));
    assert!(read(&map, 8 * MIB, MIB) == case.model[8 * MIB..9 * MIB]);
    map.incoming().unwrap().take_rest();
    coming.ended().unwrap();
    assert!(fs::read(case.file()).unwrap() == case.model);
}

#[test]
fn wrong_bytes_are_not_kept_and_their_map_fails() {
    let case = case(5 * MIB);
    case.hub.plan().wrong_bytes = true;
    let coming = case.begin();
    let map = coming.map();
    assert!(read(&map, 5, 100) == case.model[5..105], "another byte is wrong");
    map.incoming().unwrap().take_rest();
    let error = coming.ended().unwrap_err();
    assert!(matches!(error, HubError::Hash { .. }), "{error}");
    let error = map.check().unwrap_err().to_string();
    assert!(error.contains(&sha256(&case.model)), "{error}");
    assert!(case.blobs().is_empty() && case.ours().find(&name()).unwrap().is_none());
    case.hub.plan().wrong_bytes = false;
    case.ours().pull(&name(), &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn of_a_server_without_ranges_a_model_is_pulled_whole_and_that_is_reported() {
    let case = case(3 * MIB);
    case.hub.plan().no_ranges = true;
    let coming = case.begin();
    assert!(coming.maps.recv_timeout(PATIENCE).is_err(), "it ends without a map");
    assert!(coming.ended().unwrap().1);
    assert!(fs::read(case.file()).unwrap() == case.model);
    // A complete file is not read while it comes.
    let coming = case.begin();
    assert!(coming.maps.recv_timeout(PATIENCE).is_err());
    let (pulled, only_whole) = coming.ended().unwrap();
    assert_eq!((pulled.received, only_whole), (0, false));
    // Files of a model come one after another.
    let parts = case.add_parts(3, 9 * MIB);
    let (pulled, only_whole) = case.begin_of(&parts).ended().unwrap();
    assert!(only_whole && parts.are_in(&pulled));
    let whole = case.hub.asked().into_iter().filter(|one| one.cdn && one.method == "GET").count();
    assert_eq!(whole, 1 + 3);
}

/// The parts of a split model.
struct Parts(Vec<Vec<u8>>);

impl Parts {
    fn name(&self) -> Name {
        Name::parse(&format!("{REPO}:F16")).unwrap()
    }

    fn are_in(&self, pulled: &Pulled) -> bool {
        self.0.len() == pulled.paths.len()
            && self.0.iter().zip(&pulled.paths).all(|(part, path)| fs::read(path).unwrap() == *part)
    }
}

impl Case {
    /// A model of several files, of this many bytes each and a few more.
    fn add_parts(&self, count: usize, len: usize) -> Parts {
        let parts: Vec<Vec<u8>> = (1..=count).map(|no| bytes(len + 100 * no, no as u64)).collect();
        for (no, part) in (1..).zip(&parts) {
            self.hub.add(&format!("s-F16-0000{no}-of-0000{count}.gguf"), part.clone(), true);
        }
        Parts(parts)
    }

    fn begin_of(&self, parts: &Parts) -> Coming {
        self.begin_until_of(&parts.name(), |_| false)
    }
}

#[test]
fn the_files_of_a_split_model_are_read_while_they_come_in_the_order_of_the_readers() {
    let case = case(MIB);
    let parts = case.add_parts(3, 9 * MIB);
    let coming = case.begin_of(&parts);
    let maps = coming.maps();
    let names: Vec<_> = maps.iter().map(|map| map.path().file_name().unwrap()).collect();
    assert_eq!(names[2], "s-F16-00003-of-00003.gguf");
    assert!(maps.iter().zip(&parts.0).all(|(map, part)| map.len() == part.len()));
    for (no, at) in [(2, 8 * MIB + 5), (0, 3 * MIB), (1, 9 * MIB + 70)] {
        assert!(read(&maps[no], at, 7) == parts.0[no][at..at + 7]);
    }
    thread::sleep(Duration::from_millis(200));
    let asked: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert!(asked < 400 << 10, "{asked}");
    maps[1].incoming().unwrap().take_rest();
    let (pulled, _) = coming.ended().unwrap();
    assert!(parts.are_in(&pulled));
    assert_eq!(pulled.received, pulled.bytes);
    for (map, part) in maps.iter().zip(&parts.0) {
        assert!(map.incoming().is_none() && map.check().is_ok() && map.bytes() == *part);
    }
    let rest: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert_eq!(asked + rest, pulled.bytes, "each byte was asked for once");
    let mut blobs: Vec<String> = parts.0.iter().map(|part| sha256(part)).collect();
    blobs.sort();
    assert_eq!(case.blobs(), blobs);
}

#[test]
fn a_split_model_that_was_stopped_continues_and_a_part_in_the_cache_is_not_fetched() {
    let case = case(MIB);
    let parts = case.add_parts(3, 9 * MIB);
    let (done, is_done) = std::sync::mpsc::channel();
    let coming = case.begin_until_of(&parts.name(), move |_| is_done.try_recv().is_ok());
    let maps = coming.maps();
    assert!(read(&maps[1], 0, 9 * MIB) == parts.0[1][..9 * MIB]);
    assert!(read(&maps[1], 9 * MIB, 200) == parts.0[1][9 * MIB..]);
    assert!(read(&maps[2], 5 * MIB, MIB) == parts.0[2][5 * MIB..6 * MIB]);
    done.send(()).unwrap();
    assert!(matches!(coming.ended(), Err(HubError::Stopped)));
    assert!(maps.iter().all(|map| map.check().is_err()), "none was checked");
    drop(maps);
    // The second part is completed by itself.
    case.asked();
    let incomplete = case.blobs();
    assert!(incomplete.iter().all(|name| name.ends_with(".alight.incomplete")));
    let folder = case.settings.cache.join("models--org--model-GGUF/blobs");
    let second = folder.join(sha256(&parts.0[1]));
    fs::remove_file(second.with_extension("alight.incomplete")).unwrap();
    fs::write(&second, &parts.0[1]).unwrap();
    let coming = case.begin_of(&parts);
    let maps = coming.maps();
    assert!(maps[1].incoming().is_none() && maps[0].incoming().is_some());
    assert!(maps[1].bytes() == parts.0[1]);
    maps[2].incoming().unwrap().take_rest();
    let (pulled, _) = coming.ended().unwrap();
    assert!(parts.are_in(&pulled) && maps.iter().all(|map| map.check().is_ok()));
    let asked: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert_eq!(asked, pulled.received);
    assert!(asked < pulled.bytes - 10 * MIB as u64 + (300 << 10), "{asked}");
}

#[test]
fn a_wrong_part_of_a_split_model_fails_all_maps_and_alone_is_fetched_again() {
    let case = case(MIB);
    let parts = case.add_parts(2, 3 * MIB);
    let wrong = |case: &Case, part: Vec<u8>| {
        let mut plan = case.hub.plan();
        let stored = plan.files.iter_mut().find(|file| file.path.contains("00002-of")).unwrap();
        stored.bytes = Arc::new(part);
    };
    let mut other = parts.0[1].clone();
    other[2 * MIB] ^= 1;
    wrong(&case, other);
    let coming = case.begin_of(&parts);
    let maps = coming.maps();
    maps[0].incoming().unwrap().take_rest();
    let error = coming.ended().unwrap_err();
    assert!(matches!(&error, HubError::Hash { file, .. } if file.contains("00002-of")), "{error}");
    assert!(maps.iter().all(|map| map.check().is_err()));
    assert_eq!(case.blobs(), [format!("{}.alight.incomplete", sha256(&parts.0[0]))]);
    drop(maps);
    wrong(&case, parts.0[1].clone());
    case.asked();
    let coming = case.begin_of(&parts);
    coming.maps()[1].incoming().unwrap().take_rest();
    let (pulled, _) = coming.ended().unwrap();
    assert!(parts.are_in(&pulled));
    let asked: u64 = case.asked().iter().map(|(first, last)| last + 1 - first).sum();
    assert_eq!(asked, parts.0[1].len() as u64);
}

#[test]
fn files_that_are_no_parts_of_one_gguf_model_are_pulled_before_they_are_read() {
    let case = case(MIB);
    // Two parts that one lock is for.
    for no in 1..=2 {
        case.hub.add(&format!("s-F16-0000{no}-of-00002.gguf"), bytes(MIB, 5), true);
    }
    let parts = Parts(vec![bytes(MIB, 5), bytes(MIB, 5)]);
    let coming = case.begin_of(&parts);
    assert!(coming.maps.recv_timeout(PATIENCE).is_err(), "it ends without a map");
    assert!(parts.are_in(&coming.ended().unwrap().0));
    case.hub.add("config.json", b"{}".to_vec(), false);
    case.hub.add("model.safetensors", bytes(MIB, 6), true);
    let name = Name::parse(&format!("{REPO}:safetensors")).unwrap();
    let coming = case.begin_until_of(&name, |_| false);
    assert!(coming.maps.recv_timeout(PATIENCE).is_err(), "it ends without a map");
    assert_eq!(coming.ended().unwrap().0.paths.len(), 2);
}
