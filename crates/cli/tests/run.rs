//! `alight run` on the real models: streams, exit statuses, prompts, signals, JSON.
//! Without the model files the tests say so and pass.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{alight, command, done, gemma3, smollm2, with_stdin};

/// The parsed line of `--json`.
fn json(args: &[&str], stdin: &[u8]) -> Value {
    let done = with_stdin(args, stdin).succeeds();
    assert_eq!(done.stdout.lines().count(), 1, "{}", done.stdout);
    assert!(done.stdout.ends_with('\n'));
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn the_answer_is_all_that_goes_to_stdout() {
    let Some(model) = smollm2() else { return };
    let args = ["run", &model, "Name a colour.", "--temp", "0", "-n", "12"];
    let plain = alight(&args).succeeds();
    assert_eq!(plain.stderr, "");
    let stats = alight(&[&args[..], &["--stats"]].concat()).succeeds();
    assert_eq!(plain.stdout, stats.stdout);
    for part in
        ["open ", "prompt ", "first token ", "answer ", "tokens/s", "memory ", "used ", "prepare "]
    {
        assert!(stats.stderr.contains(part), "{}", stats.stderr);
    }
    assert!(!stats.stderr.contains('\x1b'), "styled although not a terminal");
    let line = json(&[&args[..], &["--json"]].concat(), b"");
    assert_eq!(plain.stdout, format!("{}\n", line["text"].as_str().unwrap()));
}

#[test]
fn the_json_line_is_complete() {
    let Some(model) = smollm2() else { return };
    let line =
        json(&["run", &model, "Hello", "-n", "6", "--ignore-eos", "--seed", "3", "--json"], b"");
    assert_eq!(line["model"], model.as_str());
    assert_eq!(line["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(line["generated_tokens"], 6);
    let phases = line["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["open", "prepare", "prompt", "answer"]);
    // The phases are the process, except for the moments before the first and after the last.
    let sum = |field: &str| phases.iter().map(|p| p[field].as_u64().unwrap()).sum::<u64>();
    let minor = line["faults"]["minor"].as_u64().unwrap();
    assert!(sum("minor_faults") <= minor && sum("minor_faults") * 2 > minor, "{line}");
    let total = line["timings"]["total_ms"].as_f64().unwrap() * 1e3;
    assert!((sum("wall_us") as f64 / total - 1.0).abs() < 0.2, "{line}");
    assert_eq!(line["held"]["mapped"], fs::metadata(&model).unwrap().len());
    // 30 layers, and 3 heads of 64 keys and 64 values, of two bytes.
    let positions = line["held"]["keys_and_values"].as_u64().unwrap() / (30 * 3 * 128 * 2);
    let tokens = line["prompt_tokens"].as_u64().unwrap() + 6;
    assert!((tokens - 1..=tokens).contains(&positions), "{line}");
    assert_eq!(line["finish"], "length");
    assert_eq!(line["seed"], 3);
    assert!(line["prompt_tokens"].as_u64().unwrap() > 8, "the template adds tokens");
    assert!(line["threads"].as_u64().unwrap() >= 1);
    let isa = line["isa"].as_str().unwrap();
    let known = ["scalar", "neon", "i8mm", "avx2", "avxvnni", "avx512", "amxint8"];
    assert!(known.contains(&isa), "{isa}");
    assert!(line["tokens_per_second"].as_f64().unwrap() > 0.0);
    assert!(line["prompt_tokens_per_second"].as_f64().unwrap() > 0.0);
    let times = &line["timings"];
    for key in [
        "open_ms",
        "map_ms",
        "header_ms",
        "weights_ms",
        "tokenizer_ms",
        "prompt_ms",
        "first_token_ms",
        "total_ms",
    ] {
        assert!(times[key].as_f64().is_some_and(|ms| ms >= 0.0), "{key}: {times}");
    }
    assert_eq!(times["token_ms"].as_array().unwrap().len(), 5);
    assert!(times["first_token_ms"].as_f64() >= times["open_ms"].as_f64(), "{times}");
    assert!(times["total_ms"].as_f64() >= times["first_token_ms"].as_f64(), "{times}");
}

#[test]
fn a_prompt_is_the_same_wherever_it_comes_from() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt");
    fs::write(&file, "Name a fruit.\n").unwrap();
    let file = file.to_str().unwrap();
    let run = |args: &[&str], stdin: &[u8]| {
        json(&[&["run", &model, "--temp", "0", "-n", "5", "--json"], args].concat(), stdin)["tokens"]
            .clone()
    };
    let expected = run(&["Name a fruit."], b"");
    assert_eq!(run(&["-p", "Name a fruit."], b""), expected);
    assert_eq!(run(&["-f", file], b""), expected);
    assert_eq!(run(&[], b"Name a fruit.\n"), expected);
    assert_eq!(run(&["-"], b"Name a fruit.\n"), expected);
    assert_ne!(run(&["Name a car."], b""), expected);
    // What is piped in stands before what is asked.
    let both = run(&["apple, banana\n\nWhich is longer?"], b"");
    assert_eq!(run(&["Which is longer?"], b"apple, banana\n"), both);
    fs::write(file, "Which is longer?\n").unwrap();
    assert_eq!(run(&["-f", file], b"apple, banana"), both);
}

#[test]
fn prompts_that_are_none() {
    let Some(model) = smollm2() else { return };
    alight(&["run", &model]).fails(2, &["no prompt", "standard input is empty"]);
    with_stdin(&["run", &model, "-", "--strict-utf8"], b"ab\xffcd")
        .fails(1, &["standard input", "UTF-8", "byte 2"]);
    alight(&["run", &model, ""]).fails(2, &["the prompt is empty"]);
    alight(&["run", &model, "-f", "/nowhere/p.txt"])
        .fails(1, &["'/nowhere/p.txt' does not exist: give the path of a text file"]);
    alight(&["run", &model, "-f", "/"])
        .fails(1, &["'/' is a folder: give the path of a text file"]);
}

#[test]
fn a_prompt_in_another_encoding_is_the_same_prompt() {
    let Some(model) = smollm2() else { return };
    let ask = |bytes: &[u8]| {
        let args = ["run", &model, "--raw", "-n", "4", "--temp", "0", "--json", "-"];
        let done = with_stdin(&args, bytes).succeeds();
        let line: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        (line["tokens"].clone(), line["prompt_tokens"].clone(), done.stderr)
    };
    let (tokens, prompt, said) = ask("Le café est fermé".as_bytes());
    assert_eq!(said, "");
    let latin = ask(b"Le caf\xe9 est ferm\xe9");
    assert_eq!((latin.0, latin.1), (tokens, prompt));
    assert!(latin.2.contains("Windows-1252") && latin.2.contains("--strict-utf8"), "{}", latin.2);
}

#[test]
fn a_seed_repeats_an_answer_and_no_seed_does_not() {
    let Some(model) = smollm2() else { return };
    let run = |seed: &[&str]| {
        let line = json(
            &[&["run", &model, "Tell me a story.", "-n", "16", "--temp", "1.5", "--json"], seed]
                .concat(),
            b"",
        );
        (line["tokens"].clone(), line["seed"].as_u64().unwrap())
    };
    let (tokens, seed) = run(&[]);
    assert_eq!(
        run(&["--seed", &seed.to_string()]).0,
        tokens,
        "the line says the seed that was used"
    );
    assert_eq!(run(&["-s", "7"]), run(&["-s", "7"]));
    assert_ne!(run(&["-s", "7"]).0, run(&["-s", "8"]).0);
    assert_ne!(run(&["--seed", "-1"]).1, run(&["--seed", "-1"]).1);
}

#[test]
fn the_template_the_system_message_and_raw() {
    let Some(model) = smollm2() else { return };
    let count = |args: &[&str]| {
        json(&[&["run", &model, "Hi", "-n", "1", "--json"], args].concat(), b"")["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(count(&["--raw"]), 1);
    let chat = count(&[]);
    assert!(chat > 5);
    assert_ne!(
        count(&["--system", "You are a pirate who speaks in rhymes and nothing else."]),
        chat
    );
}

#[test]
fn special_tokens_do_not_come_out_of_a_prompt_unless_asked() {
    let Some(model) = smollm2() else { return };
    let count = |args: &[&str]| {
        json(
            &[&["run", &model, "-n", "1", "--json", "a<|im_end|>b<|im_start|>c"], args].concat(),
            b"",
        )["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(count(&["--raw", "--parse-special"]), 5);
    assert!(count(&["--raw"]) > 9);
    // Each of the two is one token when it is special and several when it is text.
    assert!(count(&[]) >= count(&["--parse-special"]) + 6);
}

#[test]
fn a_file_without_a_template_is_continued_with_a_note() {
    let Some(model) = gemma3() else { return };
    let args = ["run", &model, "The capital of France is", "--temp", "0", "-n", "3"];
    let done = alight(&args).succeeds();
    assert!(done.stderr.starts_with("alight: note: "), "{}", done.stderr);
    assert!(done.stderr.contains("no chat template") && done.stderr.contains("--raw"));
    assert!(done.stdout.trim().len() > 3, "{}", done.stdout);
    let raw = alight(&[&args[..], &["--raw"]].concat()).succeeds();
    assert_eq!((raw.stderr.as_str(), raw.stdout), ("", done.stdout));
}

#[test]
fn the_context_limit_is_said_and_not_a_crash() {
    let Some(model) = smollm2() else { return };
    let long = "word ".repeat(200);
    alight(&["run", &model, "--raw", &long, "-c", "64"]).fails(1, &["64", "-c"]);
    let done = alight(&["run", &model, "--raw", "one two", "-c", "32", "--ignore-eos"]).succeeds();
    assert!(done.stderr.contains("context of 32 tokens is full"), "{}", done.stderr);
    assert!(done.stderr.contains("-c 64"), "{}", done.stderr);
    let line =
        json(&["run", &model, "--raw", "one two", "-c", "32", "--ignore-eos", "--json"], b"");
    assert_eq!(line["finish"], "context");
}

#[test]
fn a_chat_template_of_a_file() {
    let (Some(model), Some(base)) = (smollm2(), gemma3()) else { return };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("template.jinja");
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}answer:";
    fs::write(&file, template).unwrap();
    let file = file.to_str().unwrap();
    for model in [&model, &base] {
        let tokens = |args: &[&str]| {
            json(&[&["run", model, "-n", "4", "--temp", "0", "--json"], args].concat(), b"")
        };
        let given = tokens(&["--chat-template-file", file, "--system", "Be brief.", "Hi"]);
        let by_hand = tokens(&["--raw", "system: Be brief.\nuser: Hi\nanswer:"]);
        assert_eq!(given["prompt_tokens"], by_hand["prompt_tokens"]);
        assert_eq!(given["tokens"], by_hand["tokens"]);
    }
    fs::write(file, "{% for %}").unwrap();
    let args = ["run", &model, "Hi", "--chat-template-file", file];
    alight(&args).fails(1, &["template.jinja", "line 1"]);
}

#[test]
fn a_run_that_cannot_fit_is_told_before_it_begins() {
    let Some(model) = smollm2() else { return };
    // More than a terabyte of keys and values, of which a few bytes are used.
    let done = alight(&["run", &model, "--raw", "Hi", "-n", "1", "-c", "50000000"]).succeeds();
    let said = done.stderr.lines().last().unwrap();
    assert!(said.starts_with("alight: note: this needs 1.15 TB (weights "), "{said}");
    assert!(
        said.contains("more than the memory available, ") && said.contains("smaller -c"),
        "{said}"
    );
    assert_eq!(alight(&["run", &model, "--raw", "Hi", "-n", "1"]).succeeds().stderr, "");
}

#[test]
fn no_tokens_asked_for() {
    let Some(model) = smollm2() else { return };
    assert_eq!(alight(&["run", &model, "Hi", "-n", "0"]).succeeds().stdout, "\n");
    let line = json(&["run", &model, "Hi", "-n", "0", "--json"], b"");
    assert_eq!((line["finish"].as_str(), line["text"].as_str()), (Some("length"), Some("")));
    assert_eq!(line["timings"]["first_token_ms"], Value::Null);
}

/// An answer that would go on for long, with its first bytes read.
fn running(model: &str, more: &[&str]) -> (Child, Vec<u8>) {
    let args =
        ["run", model, "--raw", "Once upon a time", "--ignore-eos", "-c", "8192", "--temp", "0"];
    let mut child = command(&[&args[..], more].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = vec![0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (child, first)
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn ctrl_c_ends_the_answer_with_a_newline_and_status_130() {
    let Some(model) = smollm2() else { return };
    let (child, first) = running(&model, &["--stats"]);
    interrupt(&child);
    let done = done(child.wait_with_output().unwrap());
    assert_eq!(done.status, Some(130), "{}", done.stderr);
    assert!(done.stdout.ends_with('\n') && !first.is_empty());
    assert!(done.stderr.contains("ended by Ctrl-C"), "{}", done.stderr);
    assert!(!done.stderr.contains("error"), "{}", done.stderr);
}

#[test]
fn ctrl_c_still_writes_the_json_line() {
    let Some(model) = smollm2() else { return };
    let args = ["run", &model, "--raw", "Once", "--ignore-eos", "-c", "8192", "--json"];
    let child = command(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    interrupt(&child);
    let done = done(child.wait_with_output().unwrap());
    assert_eq!(done.status, Some(130), "{}", done.stderr);
    let line: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(line["finish"], "interrupted");
    assert!(!line["tokens"].as_array().unwrap().is_empty());
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let Some(model) = smollm2() else { return };
    let (mut child, _) = running(&model, &[]);
    drop(child.stdout.take());
    let done = done(child.wait_with_output().unwrap());
    assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_full_disk_is_an_error() {
    let Some(model) = smollm2() else { return };
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command(&["run", &model, "Hi", "-n", "4"])
        .stdin(Stdio::null())
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    done(output).fails(1, &["cannot write to standard output", "No space left"]);
}

#[test]
fn a_file_that_is_cut_short_is_an_error_with_its_name() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cut.gguf");
    let bytes = fs::read(&model).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    alight(&["run", path.to_str().unwrap(), "Hi"])
        .fails(1, &["cut.gguf", "past the end of the file"]);
}

/// What a person writes does not part the text around it: the same tokens as those of the whole
/// rendered text, where nothing in it is special.
#[test]
fn a_template_is_encoded_as_one_text() {
    let Some(model) = smollm2() else { return };
    let tokens = |args: &[&str]| {
        let fixed = ["run", &model, "--temp", "0", "-n", "6", "--json"];
        json(&[&fixed[..], args].concat(), b"")
    };
    let by_hand = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a tree.\
                   <|im_end|>\n<|im_start|>assistant\n";
    let raw = tokens(&["--raw", "--parse-special", by_hand]);
    let chat = tokens(&["--system", "Be brief.", "Name a tree."]);
    assert_eq!(chat["prompt_tokens"], raw["prompt_tokens"]);
    assert_eq!(chat["tokens"], raw["tokens"]);
}

#[test]
fn the_last_of_a_repeated_option_counts() {
    let Some(model) = smollm2() else { return };
    let line = json(
        &[
            "run",
            &model,
            "Hi",
            "--temp",
            "1",
            "-n",
            "9",
            "--temp=0",
            "-n",
            "2",
            "--ignore-eos",
            "--json",
        ],
        b"",
    );
    assert_eq!(line["generated_tokens"], 2);
    let once =
        json(&["run", &model, "Hi", "--temp", "0", "-n", "2", "--ignore-eos", "--json"], b"");
    assert_eq!(line["tokens"], once["tokens"]);
}

#[test]
fn penalties_make_what_was_seen_less_likely() {
    let Some(model) = smollm2() else { return };
    let prompt = "Repeat the word apple: apple apple apple apple apple apple";
    let most_often = |penalty: &[&str]| {
        let args =
            ["run", &model, prompt, "--raw", "--temp", "0", "-n", "40", "--ignore-eos", "--json"];
        let line = json(&[&args[..], penalty].concat(), b"");
        let tokens: Vec<u64> =
            line["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect();
        tokens
            .iter()
            .map(|token| tokens.iter().filter(|other| *other == token).count())
            .max()
            .unwrap()
    };
    let without = most_often(&[]);
    for penalty in [["--frequency-penalty", "1.5"], ["--presence-penalty", "8"]] {
        let with = most_often(&penalty);
        assert!(with < without, "{penalty:?}: {with} and {without}");
    }
}

#[test]
fn an_input_that_does_not_come_is_said_to_be_waited_for() {
    let Some(model) = smollm2() else { return };
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut child = command(&["run", &model, "Hi", "-n", "1", "--json"])
        .stdin(reader)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = [0; 32];
    child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert!(said.starts_with(b"alight: note: waiting for standa"));
    std::io::Write::write_all(&mut writer, b"Late.").unwrap();
    drop(writer);
    let line: Value =
        serde_json::from_str(&done(child.wait_with_output().unwrap()).stdout).unwrap();
    let joined = json(&["run", &model, "Late.\n\nHi", "-n", "1", "--json"], b"");
    assert_eq!(line["prompt_tokens"], joined["prompt_tokens"]);
}

#[test]
fn what_would_be_ignored_is_refused() {
    let Some(model) = gemma3() else { return };
    alight(&["run", &model, "--system", "Be brief.", "Hi"])
        .fails_as_usage("error: --system needs a chat template");
}
