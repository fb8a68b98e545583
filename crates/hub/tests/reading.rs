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

/// A pull in a thread.
struct Coming {
    thread: JoinHandle<Result<Pulled, HubError>>,
    map: Receiver<Arc<Map>>,
}

impl Coming {
    /// The map, once there is one.
    fn map(&self) -> Arc<Map> {
        self.map.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    fn ended(self) -> Result<Pulled, HubError> {
        self.thread.join().unwrap()
    }
}

impl Case {
    fn ours(&self) -> Hub {
        Hub::new(self.settings.clone()).with_pause(Duration::from_millis(1))
    }

    /// A pull that ends when `stop` returns true.
    fn begin_until(&self, mut stop: impl FnMut(u64) -> bool + Send + 'static) -> Coming {
        let (hub, (send, map)) = (self.ours(), channel());
        let thread = thread::spawn(move || {
            hub.pull_and_read(&name(), &mut |event| {
                match event {
                    Event::Readable { map } => send.send(Arc::clone(map)).unwrap(),
                    Event::Progress { received, .. } if stop(received) => {
                        return ControlFlow::Break(());
                    }
                    _ => {}
                }
                ControlFlow::Continue(())
            })
        });
        Coming { thread, map }
    }

    fn begin(&self) -> Coming {
        self.begin_until(|_| false)
    }

    fn blobs(&self) -> Vec<String> {
        let folder = self.settings.cache.join("models--org--model-GGUF/blobs");
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
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
    let pulled = coming.ended().unwrap();
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
fn a_server_without_ranges_and_a_model_of_several_files_are_pulled() {
    let case = case(3 * MIB);
    case.hub.plan().no_ranges = true;
    let coming = case.begin();
    assert!(coming.map.recv_timeout(Duration::from_secs(60)).is_err(), "it ends without a map");
    coming.ended().unwrap();
    assert!(fs::read(case.file()).unwrap() == case.model);
    // A complete file is not read while it comes.
    let coming = case.begin();
    assert!(coming.map.recv_timeout(Duration::from_secs(60)).is_err());
    assert_eq!(coming.ended().unwrap().received, 0);
    for no in 1..=2 {
        case.hub.add(&format!("s-F16-0000{no}-of-00002.gguf"), bytes(MIB, no), true);
    }
    let (hub, name) = (case.ours(), Name::parse(&format!("{REPO}:F16")).unwrap());
    let pulled = hub.pull_and_read(&name, &mut |event| {
        assert!(!matches!(event, Event::Readable { .. }));
        ControlFlow::Continue(())
    });
    assert_eq!(pulled.unwrap().paths.len(), 2);
}
