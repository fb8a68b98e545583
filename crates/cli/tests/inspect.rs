//! `alight inspect` on files made here: complete, escaped, and not dependent on what alight can
//! compute.

use std::fs;
use std::path::Path;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use serde_json::{Value, json};

use crate::support::{alight, smollm2, source};

fn write(path: &Path, builder: &Builder) -> String {
    fs::write(path, builder.file(|_, _| ())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn strange() -> Builder {
    let mut b = Builder::with_alignment(4096);
    b.str("general.architecture", "transmogrifier")
        .str("general.name", "a \u{1b}[31mred\u{1b}[0m name\n")
        .str("general.bytes", b"ok \xff bad")
        .u64("x.big", u64::MAX)
        .i8("x.small", -7)
        .f32("x.eps", 1e-5)
        .f32("x.nan", f32::NAN)
        .bool("x.flag", true)
        .strs("x.words", &["a", "b\tc"])
        .i32s("x.ints", &(0..1000).collect::<Vec<_>>())
        .bools("x.flags", &[true, false]);
    b.tensor("first\u{7}.weight", GgmlType::IQ2_XXS, &[256, 3]).unwrap();
    b.tensor("second", GgmlType::F32, &[5]).unwrap();
    b
}

#[test]
fn everything_is_in_the_json() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir.path().join("m.gguf"), &strange());
    let out = alight(&["inspect", &path, "--json"]).succeeds();
    assert_eq!(out.stderr, "");
    assert_eq!(out.stdout.lines().count(), 1);
    let got: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(got["architecture"], "transmogrifier");
    assert_eq!(got["parameters"], 256 * 3 + 5);
    assert_eq!(got["tensor_bytes"], 3 * 66 + 20);
    let bits = got["bits_per_weight"].as_f64().unwrap();
    assert!((bits - 8.0 * 218.0 / 773.0).abs() < 1e-12);
    assert_eq!(got["files"][0]["alignment"], 4096);
    assert_eq!(got["files"][0]["bytes"], fs::metadata(&path).unwrap().len());
    assert_eq!(got["files"][0]["tensors"], 2);
    assert_eq!(got["files"][0]["cached_bytes"], got["files"][0]["bytes"], "written just now");
    let value = |key: &str| {
        let all = got["metadata"].as_array().unwrap();
        all.iter().find(|m| m["key"] == key).unwrap().clone()
    };
    assert_eq!(value("x.big")["value"], u64::MAX);
    assert_eq!(value("x.small"), json!({"key": "x.small", "type": "i8", "value": -7}));
    // As text: through an f64 it would have seventeen digits.
    assert!(
        out.stdout.contains(r#""type":"f32","value":0.00001}"#)
            || out.stdout.contains(r#""value":1e-5}"#)
    );
    assert_eq!(value("x.nan")["value"], Value::Null);
    assert_eq!(value("x.flag")["value"], true);
    assert_eq!(value("general.bytes")["value"], "ok \u{fffd} bad");
    assert_eq!(value("general.name")["value"], "a \u{1b}[31mred\u{1b}[0m name\n");
    assert_eq!(
        value("x.words"),
        json!({"key": "x.words", "type": "array", "elem_type": "str", "len": 2,
               "value": ["a", "b\tc"]})
    );
    assert_eq!(value("x.ints")["value"].as_array().unwrap().len(), 1000);
    assert_eq!(value("x.flags")["value"], json!([true, false]));
    let start = got["files"][0]["data_start"].as_u64().unwrap();
    assert_eq!(start % 4096, 0);
    assert_eq!(
        got["tensors"],
        json!([
            {"name": "first\u{7}.weight", "type": "IQ2_XXS", "layout": "rows", "shape": [256, 3], "elements": 768,
             "bytes": 198, "file": 0, "offset": start, "alignment": lowest_bit(start),
             "cached_bytes": 198},
            {"name": "second", "type": "F32", "layout": "rows", "shape": [5], "elements": 5, "bytes": 20, "file": 0,
             "offset": start + 4096, "alignment": lowest_bit(start + 4096), "cached_bytes": 20},
        ])
    );
    assert_eq!(got["types"][0]["type"], "IQ2_XXS");
    assert_eq!(got["types"][0]["tensors"], 1);
}

fn lowest_bit(n: u64) -> u64 {
    n & n.wrapping_neg()
}

#[test]
fn the_text_is_escaped_and_summarises_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(&dir.path().join("m.gguf"), &strange());
    let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    assert!(!text.contains('\x1b') && !text.contains('\x07'), "{text}");
    assert!(text.contains("architecture  transmogrifier\n"));
    assert!(text.contains("i32[1000]     0, 1, 2, 3, "), "{text}");
    assert!(!text.contains("999"), "{text}");
    assert!(text.contains(r"a \u{1b}[31mred"), "{text}");
    let line = text.lines().find(|l| l.contains("second")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..5], ["second", "F32", "5", "20", "B"]);
    assert!(text.lines().all(|l| l.chars().count() < 200), "{text}");
}

fn shard(no: u16, count: u16, total: i32, names: &[&str]) -> Builder {
    let mut b = Builder::new();
    if no == 0 {
        b.str("general.architecture", "llama");
    }
    b.u16("split.no", no).u16("split.count", count).i32("split.tensors.count", total);
    for name in names {
        b.tensor(name, GgmlType::Q8_0, &[64, 2]).unwrap();
    }
    b
}

#[test]
fn shards_are_shown_as_one_model_from_any_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |no: u32| dir.path().join(format!("big-{no:05}-of-00002.gguf"));
    let first = write(&at(1), &shard(0, 2, 3, &["a", "b"]));
    let second = write(&at(2), &shard(1, 2, 3, &["c"]));
    let json = |path: &str| -> Value {
        serde_json::from_str(&alight(&["inspect", path, "--json"]).succeeds().stdout).unwrap()
    };
    let got = json(&first);
    assert_eq!(got, json(&second));
    assert_eq!(got["files"].as_array().unwrap().len(), 2);
    let placed: Vec<_> = got["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["name"].as_str().unwrap(), t["file"].as_u64().unwrap()))
        .collect();
    assert_eq!(placed, [("a", 0), ("b", 0), ("c", 1)]);
    assert_eq!(got["architecture"], "llama");
    assert!(alight(&["inspect", &first, "--tensors"]).succeeds().stdout.contains("  file\n"));

    fs::remove_file(&second).unwrap();
    alight(&["inspect", &first]).fails(1, &["00002-of-00002", "does not exist", "one of 2 shards"]);
    write(&at(2), &shard(1, 2, 3, &["b"]));
    alight(&["inspect", &first]).fails(1, &["in two shards"]);
}

#[test]
fn a_real_model_is_shown_in_full() {
    let Some(path) = smollm2() else { return };
    let text = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    assert!(text.contains("parameters    135 M in 272 tensors, 5.74 bits per weight\n"), "{text}");
    assert!(text.contains("str[49152]"));
    let got: Value =
        serde_json::from_str(&alight(&["inspect", &path, "--json"]).succeeds().stdout).unwrap();
    assert_eq!(got["parameters"], 134_515_008);
    assert_eq!(got["tensors"].as_array().unwrap().len(), 272);
    let last = got["tensors"].as_array().unwrap().last().unwrap().clone();
    let end = last["offset"].as_u64().unwrap() + last["bytes"].as_u64().unwrap();
    assert_eq!(got["files"][0]["data_end"], end);
}

/// Bytes of a tensor. Readahead is as much as 8 MiB on some machines.
#[cfg(target_os = "linux")]
const BIG: u64 = 24 << 20;

/// A file of three tensors of 24 MiB, on a disk, of which only the second is in the page cache, and the
/// header with what is read along with it.
#[cfg(target_os = "linux")]
fn a_third_cached(dir: &Path) -> String {
    let mut b = Builder::with_alignment(4096);
    b.str("general.architecture", "transmogrifier");
    for name in ["first", "second", "third"] {
        b.tensor(name, GgmlType::F32, &[BIG / 4]).unwrap();
    }
    let path = write(&dir.join("m.gguf"), &b);
    let file = fs::File::open(&path).unwrap();
    assert_eq!(alight_pages::evict(&file).unwrap().cached, 0, "a test on a disk");
    warm_second(&path);
    path
}

/// Brings the second tensor into the page cache, where a system that reclaims what is not in use may have
/// taken it from.
#[cfg(target_os = "linux")]
fn warm_second(path: &str) {
    let file = fs::File::open(path).unwrap();
    let end = file.metadata().unwrap().len();
    alight_pages::warm(&file, end - 2 * BIG..end - BIG).unwrap();
}

/// What `inspect` says with these options while the second tensor is in the page cache. The system may take pages away between
/// the warming and the look: once more, then, until it is `shown`.
#[cfg(target_os = "linux")]
fn inspect_warm(path: &str, options: &[&str], shown: impl Fn(&str) -> bool) -> String {
    let mut said = String::new();
    for _ in 0..10 {
        warm_second(path);
        said = alight(&[&["inspect", path], options].concat()).succeeds().stdout;
        if shown(&said) {
            break;
        }
    }
    said
}

/// A folder on the disk where the tests are built.
#[cfg(target_os = "linux")]
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_of_each_expert_is_in_the_page_cache_is_shown() {
    let dir = on_disk();
    let mut b = Builder::with_alignment(4096);
    b.str("general.architecture", "transmogrifier");
    b.u32("transmogrifier.expert_count", 3).u32("transmogrifier.expert_used_count", 2);
    b.tensor("blk.0.ffn_up_exps.weight", GgmlType::F32, &[1024, BIG / 4096, 3]).unwrap();
    let path = write(&dir.path().join("m.gguf"), &b);
    assert_eq!(alight_pages::evict(&fs::File::open(&path).unwrap()).unwrap().cached, 0, "a disk");
    let parsed = |json: &str| -> Value { serde_json::from_str(json).unwrap() };
    let json =
        inspect_warm(&path, &["--json"], |json| parsed(json)["experts"]["cached_bytes"][1] == BIG);
    let got = parsed(&json);
    let experts = &got["experts"];
    assert_eq!((&experts["count"], &experts["used"]), (&Value::from(3), &Value::from(2)));
    assert_eq!(experts["bytes"], 3 * BIG);
    let cached = |i: usize| experts["cached_bytes"][i].as_u64().unwrap();
    assert_eq!(cached(1), BIG);
    assert!(cached(0) < BIG && cached(2) < BIG, "{experts}");
    let text = inspect_warm(&path, &[], |text| text.contains("in memory 1 of them"));
    let line = text.lines().find(|line| line.starts_with("experts ")).unwrap();
    assert!(line.contains("3, 2 for each token, 75.5 MB; in memory 1 of them"), "{line}");
}

/// The header of a small network with those heads of keys in its layers.
fn network(arch: &str, kv_heads: &[u32]) -> Builder {
    let mut b = Builder::new();
    b.str("general.architecture", arch);
    for (name, value) in [
        ("block_count", kv_heads.len() as u32),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("shortconv.l_cache", 3),
        ("expert_count", 3 * u32::from(arch == "gpt-oss")),
        ("expert_used_count", 2 * u32::from(arch == "gpt-oss")),
    ] {
        b.u32(&format!("{arch}.{name}"), value);
    }
    b.u32s(&format!("{arch}.attention.head_count_kv"), kv_heads);
    b.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5);
    b.strs("tokenizer.ggml.tokens", &["a", "b"]);
    b
}

#[test]
fn what_a_session_keeps_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let look = |arch: &str, kv_heads: &[u32]| {
        let path = write(&dir.path().join("m.gguf"), &network(arch, kv_heads));
        let json = alight(&["inspect", &path, "--json"]).succeeds().stdout;
        let got: Value = serde_json::from_str(&json).unwrap();
        (got["session"].clone(), alight(&["inspect", &path, "--tensors"]).succeeds().stdout)
    };
    let (hybrid, text) = look("lfm2", &[0, 2, 0]);
    // F16 keys and values of two heads of 16; of either convolution two earlier rows of 64.
    assert_eq!(hybrid["kv_bytes_per_position"], 2 * 2 * (16 + 16));
    assert_eq!((&hybrid["kv_layers"], &hybrid["state_layers"]), (&1.into(), &2.into()));
    assert_eq!(hybrid["state_bytes"], 2 * 2 * 64 * 4);
    assert!(text.contains("for each position, of 1 layer\n"), "{text}");
    assert!(text.contains("of 2 layers, at any length\n"), "{text}");
    let (sinks, text) = look("gpt-oss", &[2, 2]);
    assert_eq!((&sinks["sink_layers"], &sinks["state_layers"]), (&2.into(), &0.into()));
    assert!(text.contains("of 2 layers; attention sinks in 2 layers\n"), "{text}");
    let (unknown, text) = look("transmogrifier", &[2]);
    assert!(unknown.is_null() && !text.contains("for each position"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_in_the_page_cache_is_shown() {
    let dir = on_disk();
    let path = a_third_cached(dir.path());
    let parsed = |json: &str| -> Value { serde_json::from_str(json).unwrap() };
    let json =
        inspect_warm(&path, &["--json"], |json| parsed(json)["tensors"][1]["cached_bytes"] == BIG);
    let got = parsed(&json);
    let cached = |i: usize| got["tensors"][i]["cached_bytes"].as_u64().unwrap();
    assert_eq!(cached(1), BIG);
    // Readahead brings more than what was read: of the first with the header, of the third after
    // the second.
    assert!(cached(0) < BIG && cached(2) < BIG, "{} {}", cached(0), cached(2));
    let whole = got["files"][0]["cached_bytes"].as_u64().unwrap();
    assert!((BIG..3 * BIG).contains(&whole), "{whole}");
    assert_eq!(got["files"][0]["cached_source"], "cachestat");

    let full = |text: &str| text.lines().any(|l| l.contains("second") && l.ends_with("   100 %"));
    let text = inspect_warm(&path, &["--tensors"], full);
    assert!(full(&text), "{text}");
    assert!(
        text.lines().any(|l| l.starts_with("cached  ") && l.ends_with("(cachestat)")),
        "{text}"
    );
    assert!(!text.contains(['█', '░', '\x1b']), "no bars in a pipe: {text}");
}

#[cfg(target_os = "linux")]
#[test]
fn bars_on_a_terminal_keep_to_its_width_and_to_no_color() {
    const SCRIPT: &str = "\
import fcntl, os, pty, struct, sys, termios
width, args = int(sys.argv[1]), sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('4H', 24, width, 0, 0))
    os.execv(args[0], args)
out = b''
try:
    while got := os.read(fd, 65536):
        out += got
except OSError:
    pass
sys.stdout.buffer.write(out)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let dir = on_disk();
    let path = a_third_cached(dir.path());
    let once = |width: &str, no_colour: bool| {
        warm_second(&path);
        let mut python = std::process::Command::new("python3");
        python.args([
            "-c",
            SCRIPT,
            width,
            env!("CARGO_BIN_EXE_alight"),
            "inspect",
            &path,
            "--tensors",
        ]);
        python.env("TERM", "xterm").env_remove("NO_COLOR");
        if no_colour {
            python.env("NO_COLOR", "1");
        }
        match python.output() {
            Ok(done) => {
                assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
                Some(String::from_utf8(done.stdout).unwrap().replace('\r', ""))
            }
            Err(error) => {
                eprintln!("skipped: python3: {error}");
                None
            }
        }
    };
    // The system may take pages away between the warming and the look, and then no bar is full: once more, then.
    let on_terminal = |width: &str, no_colour: bool| {
        let mut shown = once(width, no_colour)?;
        for _ in 0..9 {
            if shown.lines().any(|line| line.contains("second") && line.contains("100 %")) {
                break;
            }
            shown = once(width, no_colour)?;
        }
        Some(shown)
    };
    let Some(plain) = on_terminal("100", true) else { return };
    let second = |text: &str| text.lines().rfind(|l| l.contains("second")).unwrap().to_owned();
    assert!(second(&plain).ends_with("100 % ██████████"), "{plain}");
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let picture = plain.lines().find(|l| l.starts_with("cached")).unwrap();
    assert!(picture.ends_with("·]") && picture.contains("█████"), "{picture}");
    assert!(picture.chars().count() <= 100, "{picture}");

    let coloured = on_terminal("100", false).unwrap();
    assert!(second(&coloured).ends_with("\x1b[32m██████████\x1b[0m"), "{coloured:?}");
    // Too narrow for bars: the numbers stay.
    let narrow = on_terminal("60", true).unwrap();
    let row = narrow.rsplit_once("second").unwrap().1;
    assert!(row.lines().take(2).any(|line| line.ends_with("100 %")), "{narrow}");
    assert!(narrow.lines().any(|l| l.contains("··]") && l.chars().count() <= 60), "{narrow}");
}

#[test]
fn several_models_are_shown_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let model = source(dir.path(), 1);
    let model = model.to_str().unwrap();
    let one = alight(&["inspect", model, "--json"]).succeeds().stdout;
    let done = alight(&["inspect", model, "/nowhere.gguf", model, "--json"]);
    assert_eq!((done.status, done.stdout), (Some(1), one.repeat(2)));
    assert!(done.stderr.contains("/nowhere.gguf") && done.stderr.lines().count() == 1);
    let text = alight(&["inspect", model, "--tensors"]).succeeds().stdout;
    let both = alight(&["inspect", model, model, "--tensors"]).succeeds().stdout;
    assert_eq!(both, format!("{text}\n{text}"));
}

#[test]
fn a_summary_fits_eighty_columns_and_tensors_are_listed_if_asked_for() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut b = strange();
    b.str(&"a.key".repeat(12), "x".repeat(5000)).strs("general.tags", &["one".repeat(50)]);
    let path = write(&dir.path().join("m.gguf"), &b);
    let summary = alight(&["inspect", &path]).succeeds().stdout;
    for line in summary.lines().filter(|line| !line.contains(&path)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(
        summary.contains("2 tensors: --tensors lists them") && !summary.contains("second"),
        "{summary}"
    );
    assert!(summary.contains("transmogrifier") && summary.contains("x.eps"), "{summary}");
    let list = alight(&["inspect", &path, "--tensors"]).succeeds().stdout;
    assert!(
        list.contains("tensors (2)") && list.contains("second") && !list.contains("lists them")
    );
    let Some(real) = smollm2() else { return };
    let real = real.as_str();
    let text = alight(&["inspect", real]).succeeds().stdout;
    for line in text.lines().filter(|line| !line.contains(real)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// What reading a header brings into the page cache is not told as if it had been there, and does not stay.
#[test]
#[cfg(target_os = "linux")]
fn a_cold_file_is_shown_as_cold_and_stays_so() {
    let dir = on_disk();
    let mut b = Builder::new();
    b.str("general.architecture", "llama").strs("tokenizer.ggml.tokens", &vec!["token"; 50_000]);
    b.tensor("a", GgmlType::F32, &[1 << 20]).unwrap();
    let path = write(&dir.path().join("cold.gguf"), &b);
    let shards: Vec<String> = (0..2)
        .map(|no| {
            let at = dir.path().join(format!("big-{:05}-of-00002.gguf", no + 1));
            write(&at, &shard(no, 2, 2, &[["a", "b"][usize::from(no)]]))
        })
        .collect();
    for (path, files) in [(&path, vec![&path]), (&shards[0], shards.iter().collect())] {
        let handles: Vec<fs::File> =
            files.iter().map(|path| fs::File::open(path).unwrap()).collect();
        for file in &handles {
            if !alight_pages::evict(file).is_ok_and(|left| left.is_proven_cold()) {
                eprintln!(
                    "skipped: {} stays in the page cache, or nobody says so",
                    dir.path().display()
                );
                return;
            }
        }
        let got: Value =
            serde_json::from_str(&alight(&["inspect", path, "--json"]).succeeds().stdout).unwrap();
        for file in got["files"].as_array().unwrap() {
            assert_eq!(file["cached_bytes"], 0, "{file}");
        }
        for tensor in got["tensors"].as_array().unwrap() {
            assert_eq!(tensor["cached_bytes"], 0, "{tensor}");
        }
        for file in &handles {
            let len = file.metadata().unwrap().len();
            assert!(
                alight_pages::residency(file, 0..len).unwrap().is_proven_cold(),
                "it is cached now"
            );
        }
        // What was there stays.
        for file in &handles {
            let len = file.metadata().unwrap().len();
            alight_pages::warm(file, 0..len).unwrap();
        }
        alight(&["inspect", path]).succeeds();
        for file in &handles {
            let len = file.metadata().unwrap().len();
            assert!(alight_pages::residency(file, 0..len).unwrap().cached > 0);
        }
    }
}
