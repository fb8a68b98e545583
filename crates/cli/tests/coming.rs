//! `alight run` with a model that is not in the hub's cache yet: the answer begins when what it needs has come, and in the end the file
//! is there and checked, or the command has failed and says so.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use alight_model::{Model, OpenOptions, Session, SessionOptions};
use alight_text::{Encoder, Style};
use serde_json::Value;

use crate::hub::Case;
use crate::support::fake_hub::{FakeHub, REPO, sha256};
use crate::support::wild::{self, Moe, Spec};
use crate::support::{PATIENCE, alight, done, ended, everything, kill, pty};

/// A hub with one model, in one file or in several, which is also in a file.
struct Streamed {
    case: Case,
    local: String,
    files: Vec<(String, Vec<u8>)>,
}

/// A mixture of 52 MB, of which a token needs 6.
fn mixture() -> Streamed {
    streamed(mixture_spec(), 1)
}

fn mixture_spec() -> Spec {
    let moe = Moe { experts: 32, used: 3, width: 128, ..Moe::default() };
    Spec { embd: 256, layers: 4, moe: Some(moe), ..Spec::qwen3moe() }
}

/// The mixture in three files.
fn split_mixture() -> Streamed {
    streamed(mixture_spec(), 3)
}

fn streamed(spec: Spec, count: usize) -> Streamed {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let local = wild::model_of(folder.path(), spec);
    let bytes = fs::read(&local).unwrap();
    let files = match count {
        1 => vec![("m-F32.gguf".to_owned(), bytes)],
        _ => wild::shards_of(&bytes, "m-F32", count),
    };
    let stored: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (&name[..], bytes.clone())).collect();
    let hub = FakeHub::with(&stored);
    Streamed { case: Case { hub, folder }, local, files }
}

const NAME: &str = "hf.co/org/model-GGUF:F32";

/// The arguments of a run with a model, whose answer of this number of tokens is a line of JSON.
fn run<'a>(model: &'a str, tokens: &'a str) -> Vec<&'a str> {
    assert!(NAME.contains(REPO));
    let greedy = ["--raw", "-p", "a", "--temp", "0", "--ignore-eos", "--json"];
    [&["run", model, "-n", tokens][..], &greedy].concat()
}

fn tokens(line: &str) -> Value {
    let answer: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    answer["tokens"].clone()
}

impl Streamed {
    fn expected(&self, count: &str) -> Value {
        tokens(&alight(&run(&self.local, count)).succeeds().stdout)
    }

    fn start(&self, count: &str) -> Child {
        self.case.command(&run(NAME, count)).spawn().unwrap()
    }

    /// Bytes that the first token needs: all but the experts, and the chosen ones.
    fn needed(&self) -> u64 {
        let model = Model::open(self.local.as_ref(), &OpenOptions::default()).unwrap();
        let prompt = Encoder::new(model.vocabulary(), Style::Raw, false).raw("a").unwrap();
        model.record_experts();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        session.feed(&prompt).unwrap();
        let trace = model.recorded_experts().to_string();
        let visits = trace.lines().skip(2).map(|line| line.split(' ').count() as u64 - 1);
        let expert = 3 * 4 * 256 * 128;
        self.len() as u64 - 4 * 32 * expert + visits.sum::<u64>() * expert
    }

    /// Bytes of all files.
    fn len(&self) -> usize {
        self.files.iter().map(|(_, bytes)| bytes.len()).sum()
    }

    fn blobs(&self) -> PathBuf {
        self.case.cache().join("models--org--model-GGUF/blobs")
    }

    /// The bytes of the first file.
    fn blob(&self) -> PathBuf {
        self.blobs().join(sha256(&self.files[0].1))
    }

    /// Everything is as after a pull.
    fn is_complete(&self) {
        for (name, bytes) in &self.files {
            assert!(fs::read(self.case.file(name)).unwrap() == *bytes);
        }
        assert_eq!(fs::read_dir(self.blobs()).unwrap().count(), self.files.len());
    }

    /// Waits until nothing comes any more because the hub sends nothing more.
    fn until_it_stalls(&self) {
        let began = Instant::now();
        // A chunk that does not fit into it waits.
        while self.case.hub.plan().quota.unwrap() > 64 << 10 {
            assert!(began.elapsed() < PATIENCE, "{:?} are left", self.case.hub.plan().quota);
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn lines(child: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

fn line(of: &mut impl BufRead) -> String {
    let mut line = String::new();
    of.read_line(&mut line).unwrap();
    line
}

#[test]
fn an_answer_comes_before_the_experts_that_it_does_not_need() {
    for streamed in [mixture(), split_mixture()] {
        let needed = streamed.needed();
        let all = streamed.len() as u64;
        assert!(needed < all / 4, "{needed} of {all}");
        // Nothing more is sent before the answer is read.
        streamed.case.hub.plan().quota = Some((needed + needed / 10) as usize);
        let mut child = streamed.start("1");
        let mut stdout = lines(&mut child);
        assert_eq!(tokens(&line(&mut stdout)), streamed.expected("1"));
        assert!(!streamed.blob().exists());
        streamed.case.hub.plan().quota = None;
        assert!(ended(&mut child).success());
        streamed.is_complete();
        // The next one sends no request.
        streamed.case.hub.asked();
        let again = streamed.case.alight(&run(NAME, "9")).succeeds();
        assert_eq!(tokens(&again.stdout), streamed.expected("9"));
        assert!(streamed.case.hub.asked().is_empty());
    }
}

/// The figures of docs/explanation/loading.md, as `--nocapture` shows them.
#[test]
fn at_a_throttled_hub_the_first_token_comes_first() {
    let dense = Spec { embd: 256, ff: 4096, layers: 4, ..Spec::llama() };
    let models = [
        ("mixture", mixture()),
        ("mixture in three files", split_mixture()),
        ("dense", streamed(dense.clone(), 1)),
        ("dense in three files", streamed(dense, 3)),
    ];
    for (what, streamed) in models {
        if !everything() && !what.ends_with("in three files") {
            continue;
        }
        let expected = streamed.expected("1");
        streamed.case.hub.plan().rate = Some(50_000_000);
        let began = Instant::now();
        let mut command = streamed.case.command(&run(NAME, "1"));
        let mut child = command.spawn().unwrap();
        let mut stdout = lines(&mut child);
        assert_eq!(tokens(&line(&mut stdout)), expected);
        let first = began.elapsed();
        let status = ended(&mut child);
        let text = done(child.wait_with_output().unwrap()).stderr;
        assert!(status.success() && text.contains("pulled hf.co/org/model-GGUF:F32: "), "{text}");
        let all = began.elapsed();
        let (needed, len) = match what.starts_with("mixture") {
            true => (streamed.needed(), streamed.len()),
            false => (streamed.len() as u64, streamed.len()),
        };
        println!(
            "{what}: {needed} of {len} bytes needed, first token after {first:?}, complete after {all:?}"
        );
        streamed.is_complete();
    }
}

#[test]
fn an_answer_from_wrong_bytes_is_said_to_be_unreliable_and_they_are_not_kept() {
    for streamed in [mixture(), split_mixture()] {
        // One byte of the last tensor, which is the output's norm or a matrix of the last layer.
        let (name, bytes) = streamed.files.last().unwrap();
        let mut wrong = bytes.clone();
        *wrong.last_mut().unwrap() ^= 1;
        streamed.case.hub.plan().files.last_mut().unwrap().bytes = Arc::new(wrong);
        let failed = streamed.case.alight(&run(NAME, "3"));
        assert_eq!(tokens(&failed.stdout).as_array().unwrap().len(), 3, "it was there before");
        assert_eq!(failed.status, Some(1));
        for part in [&format!("the answer is not reliable: {name}"), &sha256(bytes)] {
            assert!(failed.stderr.contains(part), "{}", failed.stderr);
        }
        let others = streamed.files.len() - 1;
        assert_eq!(failed.stderr.contains("are kept; the next pull continues"), others > 0);
        assert_eq!(fs::read_dir(streamed.blobs()).unwrap().count(), others);
        assert!(!streamed.case.file(name).exists());
        streamed.case.hub.plan().files.last_mut().unwrap().bytes = Arc::new(bytes.clone());
        let answered = streamed.case.alight(&run(NAME, "3")).succeeds();
        assert_eq!(tokens(&answered.stdout), streamed.expected("3"));
        streamed.is_complete();
    }
}

#[test]
fn a_hub_without_ranges_is_reported_and_the_answer_comes_after_the_model() {
    for streamed in [mixture(), split_mixture()] {
        streamed.case.hub.plan().no_ranges = true;
        let answered = streamed.case.alight(&run(NAME, "3")).succeeds();
        assert_eq!(tokens(&answered.stdout), streamed.expected("3"));
        let note =
            "the server sends files only whole: the answer begins when all of the model is here";
        assert_eq!(answered.stderr.matches(note).count(), 1, "{}", answered.stderr);
        streamed.is_complete();
        // A pull has no answer that could begin.
        fs::remove_dir_all(streamed.case.cache()).unwrap();
        let pulled = streamed.case.alight(&["pull", NAME]).succeeds();
        assert!(!pulled.stderr.contains(note), "{}", pulled.stderr);
    }
}

#[test]
fn parts_that_end_early_are_continued() {
    let streamed = split_mixture();
    streamed.case.hub.plan().cut = Some((50_000, 12));
    let answered = streamed.case.alight(&run(NAME, "3")).succeeds();
    assert_eq!(tokens(&answered.stdout), streamed.expected("3"));
    assert_eq!(streamed.case.hub.plan().cut, Some((50_000, 0)));
    streamed.is_complete();
}

#[test]
fn a_wrong_range_ends_the_answer_with_its_place() {
    for streamed in [mixture(), split_mixture()] {
        // Enough for the header and a part of the weights.
        let quota = streamed.needed() as usize / 2;
        streamed.case.hub.plan().quota = Some(quota);
        let mut child = streamed.start("3");
        streamed.until_it_stalls();
        streamed.case.hub.plan().content_range = Some("bytes 0-9/10".to_owned());
        streamed.case.hub.plan().quota = None;
        let status = ended(&mut child);
        let failed = done(child.wait_with_output().unwrap());
        assert_eq!((status.code(), &failed.stdout[..]), (Some(1), ""), "{}", failed.stderr);
        assert!(failed.stderr.contains("it is another range than what was asked for"));
        assert!(failed.stderr.contains("at byte ") && failed.stderr.contains(" of m-F32"));
        assert!(failed.stderr.contains("are kept; the next pull continues"), "{}", failed.stderr);
        streamed.case.hub.plan().content_range = None;
        assert_eq!(
            tokens(&streamed.case.alight(&run(NAME, "3")).succeeds().stdout),
            streamed.expected("3")
        );
    }
}

#[test]
fn ctrl_c_ends_it_at_every_moment_and_the_next_run_goes_on() {
    for streamed in [mixture(), split_mixture()] {
        let (all, needed) = (streamed.len(), streamed.needed() as usize);
        let expected = streamed.expected("1");
        let mut there = 0;
        // One token, since after it other experts come as well, which the hub may not send to the end.
        // In the header, among the weights that every token reads, and after the answer.
        for (quota, answers) in [(70_000, false), (needed / 2, false), (all / 2, true)] {
            streamed.case.hub.plan().quota = Some(quota);
            let mut child = streamed.start("1");
            let mut stdout = lines(&mut child);
            if answers {
                assert_eq!(tokens(&line(&mut stdout)), expected);
            }
            streamed.until_it_stalls();
            thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            kill(&child, libc::SIGINT);
            let status = ended(&mut child);
            println!("ended {:?} after Ctrl-C", began.elapsed());
            let mut rest = String::new();
            stdout.read_to_string(&mut rest).unwrap();
            let text = done(child.wait_with_output().unwrap()).stderr;
            // Between opening and the answer, it has its default effect.
            let killed = quota == needed / 2 && status.signal() == Some(libc::SIGINT);
            assert!(killed || status.code() == Some(130), "{status}: {text}");
            let reported = text.contains("are kept; the next pull continues from there");
            assert!(killed || reported, "{text}");
            assert!(
                answers || rest.is_empty() || tokens(&rest).as_array().unwrap().is_empty(),
                "{rest}"
            );
            let size =
                fs::metadata(streamed.blob().with_extension("alight.incomplete")).unwrap().len();
            assert!(size > streamed.files[0].1.len() as u64);
            there += quota;
        }
        streamed.case.hub.plan().quota = None;
        streamed.case.hub.asked();
        let answered = streamed.case.alight(&run(NAME, "1")).succeeds();
        assert_eq!(tokens(&answered.stdout), expected);
        let asked = streamed.case.hub.asked().into_iter().filter(|one| one.cdn);
        let asked: u64 = asked.map(|one| one.range.unwrap()).map(|(a, b)| b + 1 - a).sum();
        assert!(asked < all as u64 - there as u64 / 2, "{asked} asked for, {there} were there");
        streamed.is_complete();
    }
}

#[test]
fn a_chat_answers_while_the_model_comes_and_leaves_when_it_is_complete() {
    let streamed = mixture();
    streamed.case.hub.plan().rate = Some(30_000_000);
    let mut command = streamed.case.command(&[
        "run",
        NAME,
        "--temp",
        "0",
        "-n",
        "3",
        "--ignore-eos",
        "--no-history",
    ]);
    command.stdin(Stdio::null()).env("NO_COLOR", "1");
    let mut chat = pty::Pty::start(command, None);
    chat.expect("> ");
    chat.send(b"aaa\r");
    chat.expect("> ");
    chat.send(b"\x04");
    let status = chat.end();
    assert!(status.success(), "{}", chat.text());
    assert!(chat.text().contains("pulled hf.co/org/model-GGUF:F32: "), "{}", chat.text());
    streamed.is_complete();
}
