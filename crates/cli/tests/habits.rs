//! What people type who know llama.cpp, where it is more than one option by itself: `llama_cpp.rs` has those.

use serde_json::Value;

use crate::support::{self, alight, wild};

fn with<'a>(model: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let all = ["run", model, "--temp", "0", "-n", "4", "--ignore-eos", "--raw", "aaa", "--json"];
    [&all[..], options].concat()
}

/// The tokens of an answer.
fn tokens(args: &[&str]) -> Value {
    let done = alight(args).succeeds();
    assert_eq!(done.stderr, "", "{args:?}");
    serde_json::from_str::<Value>(&done.stdout).unwrap()["tokens"].take()
}

#[test]
fn other_names_of_options_do_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let usual = tokens(&with(&model, &[]));
    for options in [
        &["-ctk", "f16", "-ctv", "f16"][..],
        &["-c", "64", "-t", "1", "-s", "7", "--top-k", "1", "--top-p", "0.9", "--min-p", "0.1"],
        &["--repack"],
        &["--repack", "off"],
    ] {
        assert_eq!(tokens(&with(&model, options)), usual, "{options:?}");
    }
    // A value after `=` is the whole value, and what follows is a word of its own.
    let noted = alight(&["run", &model, "--numa=distribute", "aaa", "--raw", "-n", "1"]).succeeds();
    assert_eq!(noted.stderr.lines().count(), 1, "{}", noted.stderr);
    let plain = ["run", &model, "aaa", "--temp", "0", "-n", "4", "--ignore-eos", "--json"];
    let quiet = |option: &str| {
        let done = alight(&[&plain[..], &[option]].concat()).succeeds();
        (serde_json::from_str::<Value>(&done.stdout).unwrap()["tokens"].take(), done.stderr)
    };
    for option in ["--think=false", "--hidethinking", "--think", "--think=true"] {
        assert_eq!(quiet(option), quiet("--no-thinking"), "{option}");
    }
    for options in [&["--keepalive", "5m"][..], &["--nowordwrap"]] {
        let done = alight(&with(&model, options)).succeeds();
        assert!(done.stderr.contains(&format!("{} is not needed", options[0])), "{}", done.stderr);
    }
    // The model is an option there; what it is not is the prompt.
    let all = ["run", "--temp", "0", "-n", "4", "--ignore-eos", "--raw", "--json"];
    for given in [&["-m", &model, "-p", "aaa"][..], &["aaa", "--model", &model]] {
        assert_eq!(tokens(&[&all[..], given].concat()), usual, "{given:?}");
    }
    let explained = alight(&with(&model, &["--no-mmap", "--explain-load"])).succeeds().stderr;
    assert!(explained.contains("read"), "{explained}");
    // `--json` reports how the file is read.
    let loaded = |options: &[&str]| -> serde_json::Value {
        let out = alight(&[&all[..], &["-m", &model, "aaa"], options].concat()).succeeds().stdout;
        serde_json::from_str::<serde_json::Value>(out.lines().last().unwrap()).unwrap()["load"]
            ["method"]
            .clone()
    };
    for option in ["-ndio", "--no-direct-io"] {
        assert_eq!(loaded(&[option]), "mmap", "{option}");
    }
    for option in ["--reclaim-mmap-source", "--no-reclaim-mmap-source"] {
        assert_eq!(loaded(&["--load", "mmap", option]), "mmap", "{option}");
    }
}

#[test]
fn what_cannot_be_had_is_refused_with_what_to_do_instead() {
    for (options, part) in [
        (&["-mu", "https://host/m.gguf"][..], "fetch the file"),
        (&["-hello"], "no option '-hello'"),
    ] {
        let done = alight(&[&["run", "m.gguf", "x"][..], options].concat());
        done.fails(2, &[options[0], part]);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    for (word, part) in [
        ("info", "alight inspect"),
        ("create", "alight convert"),
        ("push", "hf upload"),
        ("stop", "Ctrl-C"),
        ("embedding", "alight embed"),
        ("download", "alight pull"),
    ] {
        alight(&[word, "model"]).fails(2, &[&format!("no command '{word}'"), part]);
    }
    alight(&["bench", "decod", "m.gguf"])
        .fails(2, &["'decod' is neither a file", "decode, prefill"]);
    alight(&["run", "m.gguf", "x", "--think=low"]).fails(2, &["no --think low", "--no-thinking"]);
    alight(&["run", "-m"]).fails(2, &["-m needs"]);
    alight(&["run", "m.gguf", "x", "-hf"]).fails(2, &["-hf needs"]);
    alight(&["perplexity", "m.gguf", "--reasoning", "off"])
        .fails(2, &["there is no --reasoning off"]);
}

#[test]
fn a_prompt_is_read_from_standard_input_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let args = ["run", &model, "--temp", "0", "-n", "4", "--ignore-eos", "--raw", "--json"];
    let with = |name: &str| {
        let said = support::with_stdin(&[&args[..], &["-f", name]].concat(), b"aaa").succeeds();
        serde_json::from_str::<Value>(&said.stdout).unwrap()["tokens"].take()
    };
    assert_eq!(with("/dev/stdin"), tokens(&self::with(&model, &[])));
    assert_eq!(with("/dev/stdin"), with("-"));
}

#[test]
fn keys_and_values_are_kept_alike() {
    for (options, part) in [
        (&["-ctk", "q8_0", "-ctv", "f16"][..], "-ctk q8_0 and -ctv f16"),
        (&["-ctv", "f16", "--cache-type-k=q8_0"], "--cache-type-k q8_0 and -ctv f16"),
    ] {
        alight(&[&["run", "m.gguf", "x"][..], options].concat()).fails(2, &[part, "--cache-type"]);
    }
    // What is given twice counts the second time, as there.
    let twice = ["run", "/none.gguf", "x", "-ctk", "q8_0", "-ctv", "f16", "-ctk", "f16"];
    alight(&twice).fails(1, &["none.gguf"]);
}

#[test]
fn perplexity_takes_its_text_as_llama_perplexity_does() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let text = support::write(folder.path(), "text", "a".repeat(100));
    let figures = |args: &[&str]| {
        let args = [&["perplexity", "-c", "16", "-t", "1", "--json"], args].concat();
        let mut said: Value = serde_json::from_str(&alight(&args).succeeds().stdout).unwrap();
        said["perplexity"].take()
    };
    let ours = figures(&[&model, &text]);
    assert!(!ours.is_null());
    assert_eq!(figures(&["-f", &text, "-m", &model]), ours);
    let args = ["perplexity", "-c", "16", "-t", "1", "--json", &model, "-"];
    let piped = support::with_stdin(&args, "a".repeat(100).as_bytes()).succeeds();
    assert_eq!(serde_json::from_str::<Value>(&piped.stdout).unwrap()["perplexity"], ours);
    let one = ["perplexity", "-c", "16", "-t", "1", "--chunks", "1", &model, &text];
    let said = alight(&one).succeeds().stdout;
    assert!(said.contains(" positions in 1 chunk of 16, "), "{said}");
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    support::write(folder.path(), "README.md", "about it");
    let at = folder.path().to_str().unwrap();
    assert_eq!(tokens(&with(at, &[])), tokens(&with(&model, &[])));
    let quantized = tempfile::tempdir().unwrap();
    let to = quantized.path().join("q8.gguf");
    alight(&["quantize", at, "-o", to.to_str().unwrap(), "--type", "q8_0"]).succeeds();
    std::fs::copy(&model, folder.path().join("other.gguf")).unwrap();
    alight(&with(at, &[])).fails(1, &["several models", "other.gguf"]);
}

#[test]
fn quantize_takes_its_arguments_in_llama_quantizes_order() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ours, theirs) = (at("ours.gguf"), at("theirs.gguf"));
    alight(&["quantize", &model, "-o", &ours, "--type", "q8_0"]).succeeds();
    alight(&["quantize", &model, &theirs, "Q8_0", "1"]).succeeds();
    assert_eq!(std::fs::read(ours).unwrap(), std::fs::read(theirs).unwrap());
}
