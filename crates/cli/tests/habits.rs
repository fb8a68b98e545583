//! What people type who know llama.cpp: its most used options do what they do there, or are answered with one sentence.

mod support;
#[path = "support/wild.rs"]
mod wild;

use serde_json::Value;
use support::alight;

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
fn options_that_there_is_no_need_for_are_said_to_be_so_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let usual = alight(&with(&model, &[])).succeeds().stdout;
    let usual: Value = serde_json::from_str(&usual).unwrap();
    for options in [
        &["-ngl", "99"][..],
        &["--n-gpu-layers", "-1"],
        &["-fa"],
        &["-fa", "on"],
        &["--flash-attn", "auto"],
        &["-b", "2048"],
        &["-ub", "512"],
        &["-tb", "8"],
        &["-sm", "layer"],
        &["-ts", "3,1"],
        &["-mg", "0"],
        &["--numa", "distribute"],
        &["--jinja"],
        &["-cnv"],
        &["-st"],
        &["-i"],
        &["--color"],
        &["--no-warmup"],
        &["--no-display-prompt"],
        &["--simple-io"],
        &["--log-disable"],
        &["-v"],
        &["--no-context-shift"],
        &["--keep", "-1"],
        &["--prio", "2"],
        &["-nkvo"],
    ] {
        let done = alight(&with(&model, options)).succeeds();
        let said = format!("alight: note: {} is not needed: ", options[0]);
        assert!(done.stderr.starts_with(&said), "{options:?}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{options:?}: {}", done.stderr);
        let got: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(got["tokens"], usual["tokens"], "{options:?}");
    }
}

#[test]
fn other_names_of_options_do_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let usual = tokens(&with(&model, &[]));
    for options in [
        &["--mlock"][..],
        &["--no-mmap"],
        &["--temperature", "0"],
        &["-ctk", "f16", "-ctv", "f16"],
        &["-no-cnv"],
        &["-c", "64", "-t", "1", "-s", "7", "--top-k", "1", "--top-p", "0.9", "--min-p", "0.1"],
        &["--repeat-penalty", "1", "--repeat-last-n", "64"],
        &["--presence-penalty", "0", "--frequency-penalty", "0"],
    ] {
        assert_eq!(tokens(&with(&model, options)), usual, "{options:?}");
    }
    // The model is an option there; what it is not is the prompt.
    let all = ["run", "--temp", "0", "-n", "4", "--ignore-eos", "--raw", "--json"];
    for given in [&["-m", &model, "-p", "aaa"][..], &["aaa", "--model", &model]] {
        assert_eq!(tokens(&[&all[..], given].concat()), usual, "{given:?}");
    }
    let explained = alight(&with(&model, &["--no-mmap", "--explain-load"])).succeeds().stderr;
    assert!(explained.contains("read"), "{explained}");
}

#[test]
fn what_cannot_be_had_is_refused_with_what_to_do_instead() {
    for (options, part) in [
        (&["-mu", "https://host/m.gguf"][..], "fetch the file"),
        (&["-hft", "hf_x"], "HF_TOKEN"),
        (&["--grammar", "root ::= \"a\""], "alight serve"),
        (&["--json-schema", "{}"], "alight serve"),
        (&["--lora", "a.gguf"], "merge it"),
        (&["--mmproj", "a.gguf"], "text alone"),
        (&["--rope-freq-base", "10000"], "file"),
        (&["--chat-template", "chatml"], "--chat-template-file"),
        (&["--mirostat", "2"], "--top-k"),
        (&["-e"], "$'"),
        (&["-hello"], "no option '-hello'"),
    ] {
        let done = alight(&[&["run", "m.gguf", "x"][..], options].concat());
        done.fails(2, &[options[0], part]);
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
    }
    alight(&["run", "-m"]).fails(2, &["-m needs"]);
}

#[test]
fn a_folder_with_one_model_is_that_model() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    support::write(folder.path(), "README.md", "about it");
    let at = folder.path().to_str().unwrap();
    assert_eq!(tokens(&with(at, &[])), tokens(&with(&model, &[])));
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
