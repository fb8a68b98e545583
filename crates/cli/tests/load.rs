//! `--load`, `--repack`, `--reclaim`, `--lock` and `--explain-load` on real models: the same answer
//! and the same perplexity in every way, memory within its bounds, faults counted, errors named.
//! Without the model files the tests say so and pass.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{alight, command, done, everything, gemma3, smollm2};

/// Every way, by arguments, without `--repack`.
const WAYS: [&[&str]; 7] = [
    &["--load", "auto"],
    &["--load", "mmap"],
    &["--load", "mmap", "--reclaim", "off"],
    &["--load", "mmap", "--lock"],
    &["--load", "direct"],
    &["--load", "direct", "--lock", "-t", "1"],
    &["--load", "read", "--reclaim", "off", "-t", "4"],
];

fn json(args: &[&str]) -> Value {
    let done = alight(args).succeeds();
    assert_eq!(done.stderr, "");
    serde_json::from_str(&done.stdout).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn answers_are_the_same_and_memory_is_one_copy() {
    for model in [smollm2(), gemma3().filter(|_| everything())].into_iter().flatten() {
        let weights = fs::metadata(&model).unwrap().len() as f64;
        for repack in ["off", "on"] {
            let mut expected = None;
            for way in WAYS {
                let args = ["run", &model, "--raw", "Once upon a time", "--temp", "0", "-n", "12"];
                let rest = ["-c", "256", "--json", "--repack", repack];
                let line = json(&[&args[..], &rest, way].concat());
                let what = format!("{way:?}, repack {repack}, {}", line["memory"]);
                let expected = expected.get_or_insert_with(|| line["tokens"].clone());
                assert_eq!(&line["tokens"], expected, "{what}");

                let load = &line["load"];
                let copies = repack == "on" || way.contains(&"direct") || way.contains(&"read");
                assert_eq!(load["repack"], repack == "on", "{what}");
                assert_eq!(
                    number(&load["bytes_repacked"]) > 0.9 * weights,
                    repack == "on",
                    "{what}"
                );
                if !way.contains(&"auto") {
                    assert_eq!(load["method"], way[1], "{what}");
                }
                let read = load["method"] != "mmap";
                assert_eq!(load["engine"].is_null(), !read, "{what}");
                let reclaims = repack == "on" && !read && !way.contains(&"off");
                assert_eq!(number(&load["bytes_given_back"]) > 0.9 * weights, reclaims, "{what}");
                let locked = number(&load["bytes_locked"]);
                assert_eq!(locked > 0.9 * weights, way.contains(&"--lock"), "{what}");

                if cfg!(target_os = "linux") {
                    let memory = &line["memory"];
                    let peak = number(&memory["peak_rss"]);
                    let slack =
                        100e6 + if way.contains(&"off") && repack == "on" { weights } else { 0.0 };
                    assert!(peak <= 1.05 * weights + slack, "{what}");
                    assert!(number(&memory["pss"]) > 0.0, "{what}");
                    let file = number(&memory["rss_file"]);
                    if copies && (read || !way.contains(&"off")) {
                        // The program itself, and what of headers is at the borders of pages.
                        assert!(file < 20e6, "{what}");
                        assert!(number(&memory["rss_anon"]) > 0.9 * weights, "{what}");
                    }
                    if repack == "on" {
                        // The system may have taken pages of the program itself: once more, then.
                        let faults = |line: &Value| line["faults"]["major_after_first_token"] == 0;
                        let again = || faults(&json(&[&args[..], &rest, way].concat()));
                        assert!(faults(&line) || again(), "{what}");
                    }
                }
            }
        }
    }
}

/// A packed file is used in place: the same sums in the same order as with packing while loading.
#[test]
fn a_packed_file_is_like_packing_while_loading() {
    for model in [smollm2(), gemma3().filter(|_| everything())].into_iter().flatten() {
        let dir = tempfile::tempdir().unwrap();
        let packed = dir.path().join("packed.gguf");
        let packed = packed.to_str().unwrap();
        alight(&["pack", &model, "-o", packed]).succeeds();
        let run = |path: &str, way: &[&str]| {
            let args =
                ["run", path, "--raw", "Once upon a time", "--temp", "0", "-n", "24", "--json"];
            json(&[&args[..], way].concat())
        };
        let expected = run(&model, &["--repack", "on"])["tokens"].clone();
        for way in WAYS {
            // There is nothing to pack, whatever is asked for.
            let repacks: &[&str] = if way == WAYS[1] { &["auto", "on", "off"] } else { &["auto"] };
            for &repack in repacks {
                let line = run(packed, &[way, &["--repack", repack]].concat());
                assert_eq!(line["tokens"], expected, "{way:?}, repack {repack}");
                assert_eq!(line["load"]["packed"], 0);
                let peak = number(&line["memory"]["peak_rss"]);
                let weights = fs::metadata(packed).unwrap().len() as f64;
                assert!(peak <= 1.05 * weights + 100e6, "{way:?}, repack {repack}: {peak}");
            }
        }
    }
}

#[test]
fn perplexity_is_the_same_to_the_bit() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let text: String =
        (0..60).map(|i| format!("Day {i}: {} miles to the north. ", 7 * i)).collect();
    let path = dir.path().join("text.txt");
    fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let mut layouts = Vec::new();
    for repack in ["off", "on"] {
        let mut values = WAYS.iter().map(|way| {
            let args = ["perplexity", &model, path, "-c", "64", "--chunks", "2", "--json"];
            let line = json(&[&args[..], &["--repack", repack], way].concat());
            line["perplexity"].to_string()
        });
        let first = values.next().unwrap();
        values.for_each(|value| assert_eq!(value, first));
        layouts.push(serde_json::from_str::<Value>(&first).unwrap()["value"].as_f64().unwrap());
    }
    // Sums in another order.
    assert!((layouts[0] / layouts[1] - 1.0).abs() < 0.01, "{layouts:?}");
}

#[test]
fn the_choice_is_explained() {
    let Some(model) = smollm2() else { return };
    let args = ["run", &model, "Hi", "-n", "2", "--temp", "0"];
    let plain = alight(&args).succeeds();
    for (more, parts) in [
        (&["--load", "direct"][..], &["direct: --load direct was given", "packed", "read by"][..]),
        (
            &["--load", "mmap", "--repack", "on"],
            &["of the map given back", "--repack on was given"],
        ),
        (&["--load", "mmap"], &["in the file's order", "repack  none"]),
        (&[], &["% in the page cache", "available"]),
    ] {
        let told = alight(&[&args[..], more, &["--explain-load"]].concat()).succeeds();
        for part in parts.iter().chain(&["facts   ", "load    ", "repack  ", "loaded  "]) {
            assert!(told.stderr.contains(part), "{part:?} is not in {}", told.stderr);
        }
        if !more.contains(&"direct") && !more.contains(&"on") {
            assert_eq!(told.stdout, plain.stdout);
        }
    }
    alight(&["run", &model, "Hi", "--load", "magic"]).fails_as_usage("magic");
    alight(&["run", &model, "Hi", "--repack", "maybe"]).fails_as_usage("maybe");
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_on_locked_memory_is_said() {
    let Some(model) = smollm2() else { return };
    // Root may lock what it wants, unless the capability is taken away.
    let setpriv = PathBuf::from("/usr/bin/setpriv");
    if !setpriv.exists() {
        eprintln!("skipped: there is no {}", setpriv.display());
        return;
    }
    for load in ["mmap", "direct"] {
        let alight = command(&["run", &model, "Hi", "-n", "2", "--lock", "--load", load]);
        let program = alight.get_program().to_owned();
        let args: Vec<_> = alight.get_args().map(ToOwned::to_owned).collect();
        let limited = std::process::Command::new("/bin/sh")
            .args(["-c", "ulimit -l 64 && exec \"$@\"", "sh"])
            .arg(&setpriv)
            .args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"])
            .arg(program)
            .args(args)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let limited = done(limited);
        if limited.stderr.contains("setpriv:") {
            eprintln!("skipped: {}", limited.stderr);
            return;
        }
        limited.fails(1, &[&model, "--lock", "RLIMIT_MEMLOCK is 65.5 kB", "ulimit -l"]);
    }
}
