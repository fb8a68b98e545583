//! An engine whose file cannot be read for a while, and work that does not end.

use std::fs::OpenOptions as Files;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::channel;

use alight_model::{Load, OpenOptions, Repack};

use super::*;
use alight_testing::models::Spec;

/// No step of a test takes as long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A worker that logs to a list.
struct Logging {
    worker: Worker,
    log: Arc<Mutex<Vec<String>>>,
}

impl Logging {
    fn start(path: &Path, stuck_after: Duration) -> Logging {
        let options = OpenOptions {
            threads: Some(2),
            load: Load::Mmap,
            repack: Repack::Off,
            ..OpenOptions::default()
        };
        let model = Model::open(path, &options).unwrap();
        model.wait_loaded().unwrap();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let lines = Arc::clone(&log);
        let config = WorkerConfig {
            engine: EngineOptions { context: Some(64), ..EngineOptions::default() },
            max_pending: 4,
            rest: None,
            remembers_prompts: false,
            starts_engine: true,
            stuck_after,
            log: Arc::new(move |line| lines.lock().unwrap().push(line.to_owned())),
        };
        Logging { worker: Worker::start(model, None, config).unwrap(), log }
    }

    /// The last event of a request.
    fn outcome(&self) -> EngineEvent {
        let (send, events) = channel();
        let request = Request {
            prompt: vec![1, 40, 50],
            max_tokens: 2,
            ignore_eos: true,
            ..Request::default()
        };
        let request = GenerateRequest { request, ..GenerateRequest::default() };
        let on_event: OnEvent = Box::new(move |event| drop(send.send(event)));
        let _running = self.worker.generate(vec![(request, on_event)]).unwrap();
        loop {
            let event = events.recv_timeout(PATIENCE).expect("an event");
            if !matches!(event, EngineEvent::Prompt { .. } | EngineEvent::Token(..)) {
                return event;
            }
        }
    }

    fn logged(&self, text: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// More pages than the header.
fn spec() -> Spec {
    Spec { embd: 256, ff: 512, key_dim: 64, value_dim: 64, ..Spec::llama() }
}

#[test]
fn a_file_that_could_not_be_read_is_trouble_until_it_can_be_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = spec().write(folder.path());
    let whole = std::fs::read(&path).unwrap();
    let worker = Logging::start(&path, STUCK_AFTER);
    assert!(matches!(worker.outcome(), EngineEvent::Finished(_)));
    let file = || Files::new().write(true).open(&path).unwrap();
    for round in 1..=2 {
        file().set_len(whole.len() as u64 / 8).unwrap();
        for _ in 0..2 {
            let EngineEvent::EngineFailed(error) = worker.outcome() else { panic!("no failure") };
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            let trouble = worker.worker.trouble().expect("trouble");
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(trouble.contains(name), "{trouble}");
            assert!(!trouble.contains(folder.path().to_str().unwrap()), "{trouble}");
            assert_eq!(worker.logged("a step has failed"), round, "once");
        }
        file().write_all(&whole).unwrap();
        assert!(worker.worker.trouble().is_some(), "it was not tried yet");
        assert!(matches!(worker.outcome(), EngineEvent::Finished(_)));
        assert_eq!(worker.worker.trouble(), None);
    }
    assert!(worker.worker.quit());
}

#[test]
fn work_that_does_not_end_is_reported_once_and_does_not_hinder_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let worker = Logging::start(&path, Duration::from_millis(100));
    for round in 1..=2 {
        let (release, released) = channel::<()>();
        worker.worker.between(Box::new(move |_| {
            let _ = released.recv();
        }));
        until("it is logged", || worker.logged("a step has been running for") == round);
        let trouble = worker.worker.trouble().expect("trouble");
        assert!(trouble.contains("a step has been running for 0 s"), "{trouble}");
        if round == 2 {
            assert!(!worker.worker.quit(), "it has not ended");
            assert!(worker.worker.quit(), "it is waited for once");
        }
        assert_eq!(worker.logged("a step has been running"), round, "once");
        drop(release);
        until("it works again", || worker.worker.trouble().is_none());
    }
}

#[test]
fn a_long_step_that_makes_progress_is_no_trouble() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = Spec::llama().write(folder.path());
    let model = Model::open(&path, &OpenOptions::default()).unwrap();
    model.wait_loaded().unwrap();
    let (health, limit) = (Health::new(&model), Duration::from_secs(1));
    assert_eq!(health.trouble(limit), None);
    let working = health.begin();
    until("time passes", || health.working_for().is_some_and(|time| time > limit));
    assert!(health.trouble(limit).is_some());
    model.progress().fetch_add(1, Ordering::Relaxed);
    assert_eq!(health.trouble(limit), None);
    drop(working);
    assert_eq!((health.trouble(Duration::ZERO), health.working_for()), (None, None));
}
