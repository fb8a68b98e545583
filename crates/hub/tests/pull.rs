//! Pulls from a hub that does what hubs do, and from one that does not.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use alight_hub::{Event, Hub, HubError, Name, Pulled, Settings};

use crate::support::{COMMIT, FakeHub, REPO, bytes, sha256};

/// Bytes of a piece, as the crate has it.
const PIECE: usize = 8 << 20;

pub struct Case {
    pub hub: FakeHub,
    folder: tempfile::TempDir,
    pub settings: Settings,
}

pub fn with(files: &[(&str, Vec<u8>)]) -> Case {
    let (hub, folder) = (FakeHub::with(files), tempfile::tempdir().unwrap());
    let settings = Settings {
        cache: folder.path().join("hub"),
        endpoint: hub.endpoint.clone(),
        token: None,
        offline: false,
    };
    Case { hub, folder, settings }
}

impl Case {
    pub fn ours(&self) -> Hub {
        Hub::new(self.settings.clone()).with_pause(Duration::from_millis(1))
    }

    pub fn pull(&self, tag: &str) -> Result<Pulled, HubError> {
        self.ours().pull(&name(tag), &mut |_| ControlFlow::Continue(()))
    }

    fn error(&self, tag: &str) -> String {
        let error = self.pull(tag).unwrap_err().to_string();
        assert!(self.ours().find(&name(tag)).unwrap().is_none(), "nothing may be there: {error}");
        error
    }

    pub fn repo(&self) -> PathBuf {
        self.settings.cache.join("models--org--model-GGUF")
    }

    pub fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repo().join("blobs")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn incomplete(&self, bytes: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(format!("{}.alight.incomplete", sha256(bytes)))
    }
}

pub fn name(tag: &str) -> Name {
    Name::parse(&format!("{REPO}:{tag}")).unwrap()
}

#[test]
fn a_file_is_where_other_tools_look_for_it() {
    let model = bytes(3 * PIECE + 12345, 1);
    let case =
        with(&[("README.md", b"# text".to_vec()), ("sub folder/m-Q4_K_M.gguf", model.clone())]);
    let pulled = case.pull("latest").unwrap();
    let path = case.repo().join("snapshots").join(COMMIT).join("sub folder/m-Q4_K_M.gguf");
    assert_eq!(pulled.paths, std::slice::from_ref(&path));
    assert_eq!((pulled.bytes, pulled.received), (model.len() as u64, model.len() as u64));
    assert_eq!(pulled.model.tag(), "Q4_K_M");
    assert!(fs::read(&path).unwrap() == model);
    let link = PathBuf::from(format!("../../../blobs/{}", sha256(&model)));
    assert_eq!(fs::read_link(&path).unwrap(), link);
    assert_eq!(case.blobs(), [sha256(&model)]);
    assert_eq!(fs::read_to_string(case.repo().join("refs/main")).unwrap(), COMMIT);
    assert!(case.settings.cache.join("CACHEDIR.TAG").exists());
    let lock = format!(".locks/models--org--model-GGUF/{}.lock", sha256(&model));
    assert!(case.settings.cache.join(lock).exists());
    // Each byte was asked for once, over several requests.
    let asked = case.hub.asked();
    let mut ranges: Vec<(u64, u64)> =
        asked.iter().filter(|one| one.cdn).map(|one| one.range.unwrap()).collect();
    ranges.sort();
    assert_eq!(ranges.len(), 4);
    assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{ranges:?}");
    assert_eq!((ranges[0].0, ranges[3].1), (0, model.len() as u64 - 1));

    // It is there: the hub is asked whether it has something newer, and no byte is fetched.
    let again = case.pull("Q4_K_M").unwrap();
    assert_eq!((again.received, &again.paths), (0, &pulled.paths));
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    let found = case.ours().find(&name("Q4_K_M")).unwrap().unwrap();
    assert_eq!((found.paths, found.bytes), (pulled.paths, model.len() as u64));
    assert!(case.hub.asked().is_empty(), "what is in the cache needs no network");
    assert!(case.folder.path().join("hub").is_dir());
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let mut case = with(&[("m-Q8_0.gguf", bytes(100_000, 2))]);
    case.hub.plan().token = Some("hf_secret".to_owned());
    let error = case.error("Q8_0");
    assert!(
        error.contains("HF_TOKEN") && error.contains("no such model, or it is private"),
        "{error}"
    );
    case.settings.token = Some("hf_wrong".to_owned());
    let error = case.error("Q8_0");
    assert!(
        error.contains("an account that may read it") && !error.contains("hf_wrong"),
        "{error}"
    );
    case.hub.asked();
    case.settings.token = Some("hf_secret".to_owned());
    case.pull("Q8_0").unwrap();
    let asked = case.hub.asked();
    assert!(asked.iter().any(|one| one.cdn) && asked.iter().any(|one| !one.cdn));
    for one in asked {
        assert_eq!(one.token.is_some(), !one.cdn, "{one:?}");
    }
}

#[test]
fn a_cut_connection_costs_what_was_not_yet_received() {
    let model = bytes(2 * PIECE + 777, 3);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    // More often than is tried without progress; the pieces go on where they were cut.
    case.hub.plan().cut = Some((PIECE / 20, 15));
    let pulled = case.pull("Q8_0").unwrap();
    assert!(fs::read(&pulled.paths[0]).unwrap() == model);
    let starts: Vec<u64> =
        case.hub.asked().iter().filter(|one| one.cdn).map(|one| one.range.unwrap().0).collect();
    assert!(starts.iter().any(|start| start % PIECE as u64 != 0), "{starts:?}");
}

/// A pull that is stopped when some of the bytes have come. Returns how many were seen.
fn stopped_in_the_middle(case: &Case) -> u64 {
    case.hub.plan().quota = Some(3 * PIECE / 2);
    let mut seen = 0;
    let stopped = case.ours().pull(&name("Q8_0"), &mut |event| match event {
        Event::Progress { received, .. } if received > PIECE as u64 => {
            seen = received;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(HubError::Stopped)), "{stopped:?}");
    assert!(!case.repo().join("snapshots").exists() && !case.repo().join("refs").exists());
    case.hub.plan().quota = None;
    seen
}

#[test]
fn what_an_ended_pull_has_received_is_not_fetched_again() {
    let model = bytes(5 * PIECE + 9, 4);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    let seen = stopped_in_the_middle(&case);
    assert!(case.incomplete(&model).exists());
    let mut before = 0;
    let pulled = case.ours().pull(&name("Q8_0"), &mut |event| {
        if let Event::Chosen { there, .. } = event {
            before = there;
        }
        ControlFlow::Continue(())
    });
    let pulled = pulled.unwrap();
    assert!(before >= seen, "{before} of {seen}");
    assert_eq!(pulled.received, model.len() as u64 - before);
    assert!(fs::read(&pulled.paths[0]).unwrap() == model);
    assert_eq!(case.blobs(), [sha256(&model)]);
}

#[test]
fn a_part_that_was_spoiled_meanwhile_is_fetched_anew() {
    let model = bytes(5 * PIECE, 5);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    stopped_in_the_middle(&case);
    // Other bytes where bytes are, and the record says that they are.
    let partial = fs::OpenOptions::new().write(true).open(case.incomplete(&model)).unwrap();
    let wrong: Vec<u8> = model.iter().map(|byte| !byte).collect();
    std::os::unix::fs::FileExt::write_all_at(&partial, &wrong, 0).unwrap();
    let mut again = 0;
    let pulled = case.ours().pull(&name("Q8_0"), &mut |event| {
        again += usize::from(matches!(event, Event::Refetched { .. }));
        ControlFlow::Continue(())
    });
    assert!(fs::read(&pulled.unwrap().paths[0]).unwrap() == model);
    assert_eq!(again, 1);
}

#[test]
fn a_server_without_ranges_is_read_from_the_beginning() {
    let model = bytes(2 * PIECE + 1, 6);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    case.hub.plan().no_ranges = true;
    case.hub.plan().cut = Some((PIECE + 100, 3));
    let mut last = 0;
    let pulled = case.ours().pull(&name("Q8_0"), &mut |event| {
        if let Event::Progress { received, total: 1.. } = event {
            last = received;
        }
        ControlFlow::Continue(())
    });
    assert!(fs::read(&pulled.unwrap().paths[0]).unwrap() == model);
    assert_eq!(case.hub.asked().iter().filter(|one| one.cdn).count(), 4);
    assert_eq!(last, model.len() as u64);
}

#[test]
fn wrong_bytes_are_thrown_away() {
    let model = bytes(1000, 7);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    case.hub.plan().wrong_bytes = true;
    let error = case.error("Q8_0");
    assert!(error.contains(&sha256(&model)) && error.contains("m-Q8_0.gguf"), "{error}");
    assert_eq!(case.blobs(), [""; 0]);
    case.hub.plan().wrong_bytes = false;
    case.pull("Q8_0").unwrap();
}

#[test]
fn refusals_say_what_there_is_to_do() {
    let case = with(&[("m-Q8_0.gguf", bytes(1000, 8)), ("m-Q4_K_S.gguf", bytes(1000, 9))]);
    let plan =
        |instead: (&'static str, u16, &'static str)| case.hub.plan().instead.push_back(instead);
    plan(("/api/", 404, "X-Error-Code: RepoNotFound\r\n"));
    assert!(case.error("Q8_0").contains("no such model"));
    plan(("/api/", 404, "X-Error-Code: RevisionNotFound\r\n"));
    assert!(case.error("Q8_0").contains("no revision 'main'"));
    plan(("/api/", 403, "X-Error-Code: GatedRepo\r\n"));
    let gated = case.error("Q8_0");
    assert!(gated.contains("conditions at") && gated.contains(&format!("/{REPO}")), "{gated}");
    plan(("/resolve/", 401, "X-Error-Code: GatedRepo\r\n"));
    assert!(case.error("Q8_0").contains("accept the conditions"));
    plan(("/api/", 403, ""));
    assert!(case.error("Q8_0").contains("status 403"));
    plan(("/api/", 418, ""));
    assert!(case.error("Q8_0").contains("status 418"));
    assert!(case.error("Q6_K").ends_with("it has Q4_K_S, Q8_0"));
    for _ in 0..6 {
        plan(("/api/", 503, ""));
    }
    assert!(case.error("Q8_0").contains("status 503"));
    plan(("/api/", 429, "Retry-After: 100000\r\n"));
    assert!(case.error("Q8_0").contains("a pause of 100000 s"));
}

#[test]
fn what_passes_is_waited_for() {
    let case = with(&[("m-Q8_0.gguf", bytes(1000, 10))]);
    case.hub.plan().instead = [
        ("/api/", 500, ""),
        ("/api/", 429, "Retry-After: 0\r\n"),
        ("/api/", 429, "RateLimit: \"api\";r=0;t=0\r\n"),
        ("/resolve/", 502, ""),
        ("/bytes/", 503, ""),
        // The address has expired: the hub is asked for another.
        ("/bytes/", 403, ""),
    ]
    .into();
    case.pull("Q8_0").unwrap();
    let heads = case.hub.asked().iter().filter(|one| one.method == "HEAD").count();
    assert_eq!(heads, 3);
}

#[test]
fn nobody_there_is_said_and_tells_that_from_a_refusal() {
    let mut case = with(&[]);
    case.settings.endpoint = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = case.pull("Q8_0").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(error.to_string().contains("is there a network, or"), "{error}");
    case.settings.offline = true;
    let error = case.pull("Q8_0").unwrap_err();
    assert!(matches!(error, HubError::Offline { .. }) && !error.is_unreachable(), "{error}");
}

#[test]
fn hostile_answers_are_errors_and_leave_nothing() {
    let listing = |file: &str| {
        format!(
            r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m-Q8_0.gguf"}},{{"rfilename":"{file}"}}]}}"#
        )
    };
    let case = with(&[("m-Q8_0.gguf", bytes(1000, 11))]);
    for text in [
        listing("../../../evil-Q4_K_M.gguf"),
        listing("/etc/evil-Q4_K_M.gguf"),
        listing("a//b.gguf"),
        listing("a\\\\..\\\\b.gguf"),
        listing("a\\u0000b.gguf"),
        r#"{"sha":"../../../../etc","siblings":[{"rfilename":"m-Q8_0.gguf"}]}"#.to_owned(),
        r#"{"sha":"0123","siblings":[]}"#.to_owned(),
        r#"{"siblings":[]}"#.to_owned(),
        "<html>".to_owned(),
        "[".repeat(100_000),
        " ".repeat((64 << 20) + 1),
    ] {
        case.hub.plan().listing = Some(text.clone());
        let error = case.error("Q8_0");
        assert!(error.contains("is not that of a hub"), "{error}: {:.80}", text);
        assert_eq!(error.contains("it is a web page"), text == "<html>", "{error}");
    }
    assert!(!case.settings.cache.exists());
    case.hub.plan().listing = Some(format!(r#"{{"sha":"{COMMIT}"}}"#));
    assert!(case.error("Q8_0").contains("no .gguf file"));
    assert!(case.ours().offers(&name("Q8_0"), &mut || false).is_err());
    case.hub.plan().listing = None;

    let zeros = "0".repeat(64);
    for etag in ["../../x", "", ".hidden", "a/b", "x.alight.incomplete", "\u{e9}", &zeros] {
        case.hub.plan().etag = Some(etag.to_owned());
        let error = case.error("Q8_0");
        assert!(error.contains("etag") || error.contains("another SHA-256"), "{etag}: {error}");
    }
    case.hub.plan().etag = None;
    for size in ["999", "-1", "18446744073709551615", "x"] {
        case.hub.plan().size = Some(size.to_owned());
        let error = case.error("Q8_0");
        assert!(error.contains("size") || error.contains("large"), "{size}: {error}");
    }
    let whole = r#"{"rfilename":"m-Q8_0.gguf"}"#;
    case.hub.plan().listing = Some(format!(r#"{{"sha":"{COMMIT}","siblings":[{whole}]}}"#));
    case.hub.plan().size = Some("99999999999999999".to_owned());
    assert!(case.error("Q8_0").contains("larger than any"));
    case.hub.plan().size = Some((1u64 << 43).to_string());
    let error = case.error("Q8_0");
    assert!(error.contains("m-Q8_0.gguf needs 8.80 TB more"), "{error}");
    assert!(error.contains("are free") && error.contains("HF_HUB_CACHE"), "{error}");
    assert!(!case.repo().exists(), "no file is as long as the hub claims");
    // Shorter and longer than what comes.
    for size in ["999", "1001"] {
        case.hub.plan().size = Some(size.to_owned());
        let error = case.error("Q8_0");
        assert!(error.contains("another range") || error.contains("shorter"), "{error}");
        case.hub.plan().no_ranges = true;
        assert!(case.error("Q8_0").contains("another size than what was promised"));
        case.hub.plan().no_ranges = false;
    }
    case.hub.plan().size = None;

    for range in ["bytes 1-999/1000", "bytes 0-999/2000", "bytes 0-1999/1000", "bytes */1000", "x"]
    {
        case.hub.plan().content_range = Some(range.to_owned());
        let error = case.error("Q8_0");
        assert!(error.contains("another range"), "{range}: {error}");
    }
    case.hub.plan().content_range = None;
    case.hub.plan().endless = true;
    for no_ranges in [false, true] {
        case.hub.plan().no_ranges = no_ranges;
        let error = case.error("Q8_0");
        assert!(error.contains("more of it"), "{error}");
    }
    case.hub.plan().endless = false;
    case.hub.plan().no_ranges = false;

    let resolve = format!("{}/{REPO}/resolve/{COMMIT}/m-Q8_0.gguf", case.hub.endpoint);
    for location in ["file:///etc/passwd", "http://", "", &resolve] {
        case.hub.plan().location = Some(location.to_owned());
        let error = case.error("Q8_0");
        assert!(error.contains("redirect"), "{location}: {error}");
    }
    case.hub.plan().location = None;
    case.pull("Q8_0").unwrap();
}

#[test]
fn headers_come_in_pieces_until_they_are_complete() {
    let mut file = alight_formats::gguf::write::Builder::new();
    file.str("general.architecture", "none").str("a.long.text", "x".repeat(9 << 20));
    let file = file.file(|_, _| {});
    let case = with(&[
        ("m-Q8_0.gguf", [&file[..], &bytes(30 << 20, 3)].concat()),
        ("m-Q4_0.gguf", file[..5 << 20].to_vec()),
    ]);
    let folder = tempfile::tempdir().unwrap();
    for no_ranges in [false, true] {
        case.hub.asked();
        case.hub.plan().no_ranges = no_ranges;
        let header = case.ours().header(&name("Q8_0"), folder.path(), &mut || false).unwrap();
        assert_eq!((header.received, header.bytes), (16 << 20, (file.len() + (30 << 20)) as u64));
        let path = &header.paths[0];
        assert_eq!(fs::metadata(path).unwrap().len(), header.bytes);
        assert!(fs::read(path).unwrap().starts_with(&file));
        let ranges: Vec<_> = case.hub.asked().into_iter().filter_map(|one| one.range).collect();
        let mib = |from: u64, to: u64| (from << 20, (to << 20) - 1);
        assert_eq!(ranges, [mib(0, 4), mib(4, 8), mib(8, 16)]);
        fs::remove_file(path).unwrap();
    }
    case.hub.plan().no_ranges = false;
    let error = |tag: &str| {
        case.ours().header(&name(tag), folder.path(), &mut || false).unwrap_err().to_string()
    };
    assert!(error("Q4_0").contains("m-Q4_0.gguf: ") && error("Q4_0").contains("cut short"));
    case.hub.plan().content_range = Some("bytes 5-9/10".to_owned());
    assert!(error("Q8_0").contains("another range"));
    case.hub.plan().content_range = None;
    // A server that says nothing is not waited for when the user has had enough.
    case.hub.plan().hold = true;
    let began = std::time::Instant::now();
    let mut calls = 0;
    let stop = &mut || {
        calls += 1;
        calls > 3
    };
    let stopped = case.ours().header(&name("Q8_0"), folder.path(), stop);
    assert!(stopped.is_err() && began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    case.hub.plan().hold = false;
    assert!(!case.settings.cache.exists());
}

#[test]
fn a_file_that_is_kept_in_git_is_had_too() {
    let case = with(&[]);
    case.hub.add("tiny-F16.gguf", bytes(1000, 12), false);
    let pulled = case.pull("F16").unwrap();
    assert!(fs::read(&pulled.paths[0]).unwrap() == bytes(1000, 12));
    assert_eq!(case.blobs(), [sha256(&bytes(1000, 12))[..40].to_owned()]);
}

#[test]
fn all_parts_of_a_model_come_and_the_first_is_opened() {
    let parts: Vec<(String, Vec<u8>)> =
        (1..=3).map(|no| (format!("q/m-Q8_0-0000{no}-of-00003.gguf"), bytes(1000, no))).collect();
    let files: Vec<(&str, Vec<u8>)> =
        parts.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())).collect();
    let case = with(&files);
    let pulled = case.pull("Q8_0").unwrap();
    assert_eq!((pulled.paths.len(), pulled.bytes), (3, 3000));
    assert!(pulled.paths[0].ends_with("q/m-Q8_0-00001-of-00003.gguf"));
    // One of them goes: then the model is not there any more, and comes again.
    fs::remove_file(&pulled.paths[1]).unwrap();
    assert!(case.ours().find(&name("Q8_0")).unwrap().is_none());
    assert_eq!(case.pull("Q8_0").unwrap().received, 0, "its bytes are still there");
    assert!(case.ours().find(&name("Q8_0")).unwrap().is_some());
    case.hub.plan().files.remove(2);
    fs::remove_dir_all(case.repo()).unwrap();
    assert!(case.error("Q8_0").contains("lacks 'q/m-Q8_0-00003-of-00003.gguf'"));
}

#[test]
fn two_pulls_of_one_file_are_both_right() {
    let model = bytes(2 * PIECE, 13);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    case.hub.plan().hold = true;
    let mut waited = 0;
    thread::scope(|scope| {
        let first = scope.spawn(|| case.pull("Q8_0").unwrap());
        while !case.hub.plan().asked.iter().any(|one| one.cdn) {
            thread::sleep(Duration::from_millis(5));
        }
        let second = case.ours().pull(&name("Q8_0"), &mut |event| {
            if let Event::Waiting { file } = event {
                assert_eq!(file, "m-Q8_0.gguf");
                waited += 1;
                case.hub.plan().hold = false;
            }
            ControlFlow::Continue(())
        });
        assert_eq!(second.unwrap().paths, first.join().unwrap().paths);
    });
    assert_eq!(waited, 1);
    let asked = case.hub.asked().into_iter().filter(|one| one.cdn).map(|one| one.range.unwrap());
    assert_eq!(asked.map(|(first, last)| last + 1 - first).sum::<u64>(), model.len() as u64);
}

#[test]
fn an_observer_stops_it_while_a_server_says_nothing() {
    let case = with(&[("m-Q8_0.gguf", bytes(1000, 14))]);
    case.hub.plan().hold = true;
    let stopped = case.ours().pull(&name("Q8_0"), &mut |_| match case
        .hub
        .plan()
        .asked
        .iter()
        .any(|one| one.cdn)
    {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(HubError::Stopped)));
    case.hub.plan().hold = false;
}

#[test]
fn a_branch_moves_on_when_all_of_it_is_there() {
    let case = with(&[("m-Q8_0.gguf", bytes(1000, 15))]);
    case.pull("Q8_0").unwrap();
    let second = "fedcba9876543210fedcba9876543210fedcba98";
    case.hub.plan().commit = second.to_owned();
    case.hub.plan().files.clear();
    case.hub.add("m-Q8_0.gguf", bytes(2000, 16), true);
    case.hub.plan().wrong_bytes = true;
    case.pull("Q8_0").unwrap_err();
    assert_eq!(case.ours().find(&name("Q8_0")).unwrap().unwrap().commit, COMMIT);
    case.hub.plan().wrong_bytes = false;
    case.pull("Q8_0").unwrap();
    let found = case.ours().find(&name("Q8_0")).unwrap().unwrap();
    assert_eq!((found.commit.as_str(), found.bytes), (second, 2000));
    // The older one is still there, by its commit.
    let old = name("Q8_0").at(COMMIT).unwrap();
    assert_eq!(case.ours().find(&old).unwrap().unwrap().bytes, 1000);
    let all = case.ours().list().unwrap();
    assert_eq!(all.iter().map(|one| one.revisions.len()).collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn what_is_removed_is_gone_and_nothing_else() {
    let shared = bytes(1000, 17);
    let case = with(&[
        ("m-Q8_0.gguf", shared.clone()),
        ("m-Q4_K_M.gguf", bytes(2000, 18)),
        ("copy/m-Q6_K.gguf", shared),
    ]);
    for tag in ["Q8_0", "Q4_K_M", "Q6_K"] {
        case.pull(tag).unwrap();
    }
    let ours = case.ours();
    let tags = || ours.list().unwrap().into_iter().map(|one| one.tag).collect::<Vec<_>>();
    assert_eq!(tags(), ["Q4_K_M", "Q6_K", "Q8_0"]);
    let all = Name::parse(REPO).unwrap();
    assert!(ours.remove(&all, false).unwrap_err().to_string().contains("Q4_K_M, Q6_K, Q8_0"));
    assert!(ours.remove(&name("Q2_K"), false).is_err());
    let removed = ours.remove(&name("Q8_0"), false).unwrap();
    assert_eq!((removed.bytes, removed.models.len()), (0, 1), "Q6_K has the same bytes");
    assert_eq!(ours.remove(&name("q6_k"), false).unwrap().bytes, 1000);
    assert_eq!(tags(), ["Q4_K_M"]);
    assert_eq!(ours.remove(&all, false).unwrap().bytes, 2000);
    assert!(!case.repo().exists() && tags().is_empty());
    assert!(matches!(ours.remove(&all, true), Err(HubError::NotCached { .. })));
}

/// As huggingface_hub 2 has it: bytes that several repositories have are in a folder of the whole cache.
#[test]
fn bytes_that_repositories_share_are_found_and_left_alone() {
    let model = bytes(1000, 21);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    case.pull("Q8_0").unwrap();
    let blob = case.repo().join("blobs").join(sha256(&model));
    let store = case.settings.cache.join("blobs/ab");
    fs::create_dir_all(&store).unwrap();
    fs::rename(&blob, store.join("shared")).unwrap();
    std::os::unix::fs::symlink("../../blobs/ab/shared", &blob).unwrap();
    assert_eq!(case.ours().find(&name("Q8_0")).unwrap().unwrap().bytes, 1000);
    assert_eq!(case.pull("Q8_0").unwrap().received, 0);
    let removed = case.ours().remove(&name("Q8_0"), false).unwrap();
    assert_eq!((removed.bytes, removed.shared), (0, 1000));
    assert!(store.join("shared").exists() && !case.repo().exists());
}

#[test]
fn a_mirror_may_send_us_to_the_hub_which_is_not_told_the_token() {
    let mut case = with(&[("m-Q8_0.gguf", bytes(1000, 22))]);
    let real = FakeHub::with(&[("m-Q8_0.gguf", bytes(1000, 22))]);
    case.settings.token = Some("hf_secret".to_owned());
    let path = format!("{}/{REPO}/resolve/{COMMIT}/m-Q8_0.gguf", real.endpoint);
    let location: &'static str = format!("Location: {path}\r\n").leak();
    case.hub.plan().instead.push_back(("/resolve/", 307, location));
    let pulled = case.pull("Q8_0").unwrap();
    assert!(fs::read(&pulled.paths[0]).unwrap() == bytes(1000, 22));
    let there = real.asked();
    assert!(!there.is_empty() && there.iter().all(|one| one.token.is_none()));
    assert!(case.hub.asked().iter().all(|one| one.token.is_some()));
}

#[test]
fn a_link_in_the_place_of_bytes_is_not_followed() {
    let model = bytes(1000, 19);
    let case = with(&[("m-Q8_0.gguf", model.clone())]);
    let victim = case.folder.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    fs::create_dir_all(case.repo().join("blobs")).unwrap();
    std::os::unix::fs::symlink(&victim, case.incomplete(&model)).unwrap();
    let error = case.error("Q8_0");
    assert!(error.contains(".alight.incomplete"), "{error}");
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
}

/// Something in the place of a file of the cache.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Pipe,
    Folder,
    /// A link to a file of this length outside of the cache.
    LinkOut(usize),
}

/// Plants it, and returns the file that a link leads to.
fn plant(case: &Case, path: &Path, what: Planted) -> PathBuf {
    let victim = case.folder.path().join("victim");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match what {
        Planted::Pipe => {
            assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
        }
        Planted::Folder => fs::create_dir(path).unwrap(),
        Planted::LinkOut(len) => {
            fs::write(&victim, vec![b'x'; len]).unwrap();
            std::os::unix::fs::symlink(&victim, path).unwrap();
        }
    }
    victim
}

/// A file that is not a regular one, or a link that leads out of the cache, is an error that names it, and never a wait.
#[test]
fn what_is_no_file_of_the_cache_is_named_and_not_opened() {
    let model = bytes(1000, 23);
    let hash = sha256(&model);
    let places = [
        "models--org--model-GGUF/refs/main".to_owned(),
        format!("models--org--model-GGUF/blobs/{hash}"),
        format!("models--org--model-GGUF/blobs/{hash}.alight.incomplete"),
        format!("models--org--model-GGUF/snapshots/{COMMIT}/m-Q8_0.gguf"),
        format!(".locks/models--org--model-GGUF/{hash}.lock"),
    ];
    for place in &places {
        for what in [Planted::Pipe, Planted::Folder, Planted::LinkOut(1000), Planted::LinkOut(40)] {
            let case = with(&[("m-Q8_0.gguf", model.clone())]);
            let path = case.settings.cache.join(place);
            let victim = plant(&case, &path, what);
            let before = fs::read(&victim).ok();
            let (hub, (done, ended)) = (case.ours(), std::sync::mpsc::channel());
            thread::spawn(move || {
                let pulled = hub.pull(&name("Q8_0"), &mut |_| ControlFlow::Continue(()));
                // Functions that only look into the cache do not wait, either.
                let _ = (hub.find(&name("Q8_0")), hub.incomplete().unwrap());
                assert!(hub.list().unwrap().is_empty());
                done.send(pulled).unwrap();
            });
            let pulled = ended.recv_timeout(Duration::from_secs(60));
            let pulled = pulled.unwrap_or_else(|_| panic!("{what:?} at {place}: it waits"));
            let error = pulled.unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, HubError::Unexpected { .. }), "{what:?} at {place}: {text}");
            assert!(text.contains(place) && text.contains("remove it"), "{text}");
            let kind = match what {
                Planted::Pipe => "is a pipe",
                Planted::Folder => "is a directory",
                Planted::LinkOut(_) => "link",
            };
            assert!(text.contains(kind), "{text}");
            assert_eq!(fs::read(&victim).ok(), before);
            // Removed, it is no longer in the way.
            match what {
                Planted::Folder => fs::remove_dir(&path).unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
            let pulled = case.pull("Q8_0").unwrap();
            assert!(fs::read(&pulled.paths[0]).unwrap() == model);
            assert!(case.ours().find(&name("Q8_0")).unwrap().is_some());
        }
    }
}

/// Users move caches, and what is in them, to other disks.
#[test]
fn folders_of_the_cache_may_be_links() {
    let model = bytes(1000, 24);
    for moved in ["hub", "hub/models--org--model-GGUF", "hub/models--org--model-GGUF/blobs"] {
        let case = with(&[("m-Q8_0.gguf", model.clone())]);
        case.pull("Q8_0").unwrap();
        let (from, to) = (case.folder.path().join(moved), case.folder.path().join("elsewhere"));
        fs::rename(&from, &to).unwrap();
        std::os::unix::fs::symlink(&to, &from).unwrap();
        assert_eq!(case.pull("Q8_0").unwrap().received, 0, "{moved}");
        let found = case.ours().find(&name("Q8_0")).unwrap().unwrap();
        assert!(fs::read(&found.paths[0]).unwrap() == model, "{moved}");
    }
}

#[test]
fn no_more_than_a_few_pieces_are_cached_because_of_a_pull() {
    let model = bytes(12 * PIECE, 20);
    // Beside the test itself: /tmp may be memory.
    let exe = std::env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(exe.parent().unwrap()).unwrap();
    let mut case = with(&[("m-Q8_0.gguf", model.clone())]);
    case.settings.cache = folder.path().join("hub");
    let pulled = case.pull("Q8_0").unwrap();
    let file = fs::File::open(&pulled.paths[0]).unwrap();
    let Ok(left) = alight_pages::residency(&file, 0..model.len() as u64) else {
        return eprintln!("skipped: nobody tells what is cached");
    };
    if !probe_gives_up(folder.path()) {
        return eprintln!("skipped: this filesystem keeps its pages");
    }
    assert!(left.share() < 0.5, "{left:?}");
}

/// True if pages can be given up here at all.
fn probe_gives_up(folder: &Path) -> bool {
    let path = folder.join("probe");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let file = fs::File::open(&path).unwrap();
    alight_pages::evict(&file).is_ok_and(|left| left.cached == 0)
}
