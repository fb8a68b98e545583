//! The command line as a whole: help, versions, completions, usage errors, paths that are not
//! models, what goes to which stream.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::support::{self, alight, command, done};

const COMMANDS: [&str; 8] =
    ["run", "batch", "replay", "inspect", "tokenize", "perplexity", "bench", "completions"];

#[test]
fn help_names_the_commands_and_shows_examples() {
    let help = alight(&["--help"]).succeeds();
    assert_eq!(help.stderr, "");
    for name in COMMANDS {
        assert!(help.stdout.contains(&format!("\n  {name}")), "{name}: {}", help.stdout);
        let of = alight(&[name, "--help"]).succeeds().stdout;
        assert!(of.contains("Examples:\n  alight ") && of.contains("Usage: "), "{name}: {of}");
        assert!(!of.contains('\x1b'), "styled although not a terminal");
        assert!(of.lines().all(|l| l.chars().count() <= 100), "{name}: {of}");
    }
}

#[test]
fn sampling_flags_are_named_as_people_know_them() {
    let help = alight(&["run", "--help"]).succeeds().stdout;
    for flag in [
        "-n, --predict",
        "-c, --ctx-size",
        "-t, --threads",
        "--temp",
        "--top-k",
        "--top-p",
        "--min-p",
        "--repeat-penalty",
        "--repeat-last-n",
        "-s, --seed",
        "-p, --prompt",
        "-f, --file",
        "--ignore-eos",
        "--raw",
        "--system",
        "--json",
        "--stats",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    assert!(!help.contains("--isa"));
}

#[test]
fn the_version_names_the_commit_and_the_kernels() {
    let version = alight(&["--version"]).succeeds().stdout;
    assert!(version.starts_with(&format!("alight {}\n", env!("CARGO_PKG_VERSION"))), "{version}");
    assert_eq!(alight(&["-V"]).succeeds().stdout, version);
    let commit = version.lines().find_map(|line| line.strip_prefix("commit: ")).unwrap();
    assert!(commit == "unknown" || commit.chars().all(|c| c.is_ascii_hexdigit()), "{version}");
    assert!(version.contains("kernels: ") && version.contains("scalar"), "{version}");
}

#[test]
fn wrong_usage_has_status_2_and_says_so_on_stderr() {
    let cases: [&[&str]; 16] = [
        &[],
        &["frobnicate"],
        &["run"],
        &["run", "m.gguf", "a", "b"],
        &["run", "m.gguf", "--temp", "hot"],
        &["run", "m.gguf", "--temp", "-1"],
        &["run", "m.gguf", "--top-p", "1.5"],
        &["run", "m.gguf", "-n", "-3"],
        &["run", "m.gguf", "a", "-p", "b"],
        &["run", "m.gguf", "a", "-f", "b"],
        &["run", "m.gguf", "-t", "0"],
        &["batch"],
        &["batch", "m.gguf", "--raw", "--system", "x"],
        &["perplexity", "m.gguf"],
        &["perplexity", "m.gguf", "text", "--kl-base", "base"],
        &["completions", "cmd.exe"],
    ];
    for args in cases {
        let done = alight(args);
        assert_eq!(done.status, Some(2), "{args:?}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{args:?}");
        assert!(!done.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn words_and_numbers_that_are_wrong_are_told_in_plain_words() {
    alight(&["run", "m.gguf", "Why", "is", "it"]).fails_as_usage("put it between quotes");
    let other = alight(&["run", "m.gguf", "x", "--tmp", "3"]);
    assert!(
        !other.stderr.contains("quotes") && other.stderr.contains("--temp"),
        "{}",
        other.stderr
    );
    for (number, said) in [
        ("many", "expected a whole number"),
        ("", "expected a whole number"),
        ("9".repeat(30).as_str(), "too large"),
    ] {
        alight(&["run", "m.gguf", "x", "--top-k", number]).fails_as_usage(said);
    }
    alight(&["serve", "m.gguf", "--port", "99999"]).fails_as_usage("99999 is not in 0 to 65535");
    alight(&["run", "m.gguf", "x", "-n", "-3"]).fails_as_usage("-3 is not -2 or more\n");
    // What was typed stays as it was.
    alight(&["run", "m.gguf", "x", "--temp", "0..=1"]).fails_as_usage("'0..=1'");
}

#[test]
fn a_negative_number_is_the_value_of_its_option() {
    for (args, said) in [
        (&["run", "m.gguf", "x", "--temp", "-1"][..], "expected a number"),
        (&["run", "m.gguf", "x", "-c", "-1"], "expected 0 or more"),
        (&["run", "m.gguf", "x", "--repeat-last-n", "-2"], "expected -1 or more"),
        (&["serve", "m.gguf", "--port", "-1"], "-1 is not in 0 to 65535"),
        (&["bench", "decode", "m.gguf", "-n", "-1"], "expected a number from 1"),
    ] {
        let done = alight(args);
        done.fails_as_usage(said);
        assert!(done.stderr.contains("invalid value '-"), "{args:?}: {}", done.stderr);
    }
    for option in ["--top-k", "--repeat-last-n"] {
        alight(&["run", "/none.gguf", "x", option, "-1"]).fails(1, &["none.gguf"]);
    }
}

#[test]
fn a_word_too_much_is_told_of_with_what_was_meant() {
    for (args, said) in [
        (&["run", "m.gguf", "--cache", "/dir", "Hi"][..], "--cache=/dir"),
        (&["run", "m.gguf", "-5 degrees"], "write -- before it"),
        (&["inspect", "m.gguf", "--watch", "2"], "--watch=2"),
        (&["bench", "m.gguf", "-pg", "8,2"], "-p and -n"),
        (&["perplexity", "m.gguf", "--kl-divergence-base", "x"], "--kl-base"),
        (&["run", "m.gguf", "x", "--format", "yaml"], "--json-schema"),
        (&["chat"], "alight run MODEL"),
        (&["ps"], "alight serve"),
        (&["show", "m.gguf"], "alight inspect"),
        (&["version"], "alight --version"),
        (&["-m", "m.gguf", "-p", "x"], "alight run"),
    ] {
        alight(args).fails_as_usage(said);
    }
    // That everything after `--` is a prompt does not help who has the name of an option wrong.
    let unknown = alight(&["run", "m.gguf", "x", "--max-tokens", "3"]);
    unknown.fails_as_usage("--max-tokens");
    assert!(!unknown.stderr.contains("-- --"), "{}", unknown.stderr);
    let text = alight(&["help", "run"]).succeeds().stdout;
    for help in ["-h", "--help"] {
        assert_eq!(alight(&["help", help, "run"]).succeeds().stdout, text);
    }
}

#[test]
fn more_threads_than_are_made_are_refused() {
    for args in [&["run", "m.gguf", "x"][..], &["quantize", "m.gguf", "-o", "x", "--type", "q8_0"]]
    {
        alight(&[args, &["-t", "257"]].concat()).fails_as_usage("expected a number from 1 to 256");
    }
}

/// Examples are as wide as a terminal at most, so that none of their lines is broken; what is no example fits any width.
#[test]
fn help_fits_a_terminal_of_80_columns() {
    let help = alight(&["--help"]).succeeds().stdout;
    let names = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names.take_while(|line| !line.is_empty());
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 15, "{names:?}");
    let own = |name: &&str| !["help", "rusage"].contains(name);
    for name in names.into_iter().filter(own).chain(["--help"]) {
        let words = if name == "--help" { vec![name] } else { vec![name, "--help"] };
        let said = done(command(&words).env("COLUMNS", "80").output().unwrap()).succeeds().stdout;
        let examples = said.lines().skip_while(|line| *line != "Examples:").skip(1);
        let examples: Vec<&str> = examples.take_while(|line| !line.is_empty()).collect();
        assert!(!examples.is_empty(), "{name}: {said}");
        // (A command alone may be longer: whoever copies it needs all of it. It is broken between words.)
        let whole = |line: &&str| line.starts_with("  ") && line.chars().count() <= 80;
        let commented = |line: &&str| line.trim_start().contains("  ");
        assert!(examples.iter().filter(|line| commented(line)).all(whole), "{name}: {said}");
        // A line that is broken twice is a short one between long ones.
        let prose: Vec<&str> = said.lines().skip_while(|line| *line != "Examples:").collect();
        let ragged = prose.windows(3).find(|lines| {
            let lengths = [0, 1, 2].map(|i| lines[i].chars().count());
            lines.iter().all(|line| !line.is_empty() && !line.starts_with(' '))
                && lengths[0] > 60
                && lengths[1] < 30
        });
        assert_eq!(ragged, None, "{name}: {said}");
    }
}

#[test]
fn completions_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = alight(&["completions", shell]).succeeds().stdout;
        assert!(script.contains("alight") && script.contains("perplexity"), "{shell}");
    }
}

#[test]
fn the_bash_completion_is_valid_bash() {
    let script = alight(&["completions", "bash"]).succeeds().stdout;
    let Ok(checked) = std::process::Command::new("bash").args(["-n", "-c", &script]).output()
    else {
        return;
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// What bash would offer after these words.
fn completed(words: &[&str]) -> Option<Vec<String>> {
    let script = alight(&["completions", "bash"]).succeeds().stdout;
    let at = words.len() - 1;
    let ask = format!(
        "{script}\nCOMP_WORDS=(\"$@\"); COMP_CWORD={at}; _alight alight \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let output = std::process::Command::new("bash").args(["-c", &ask, "bash"]).args(words).output();
    let output = output.ok()?;
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

#[test]
fn completions_offer_files_and_values() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.gguf"), "").unwrap();
    let start = format!("{}/mo", dir.path().display());
    for (words, wanted) in [
        (&["alight", "qu"][..], "quantize"),
        (&["alight", "tok"], "tokenize"),
        (&["alight", "run", "--load", "d"], "direct"),
        (&["alight", "quantize", "--type", "q4_k_"], "q4_k_m"),
        (&["alight", "run", "m.gguf", "-f", &start], &format!("{start}del.gguf")),
    ] {
        let Some(offered) = completed(words) else { return };
        assert!(offered.iter().any(|offer| offer == wanted), "{words:?}: {offered:?}");
    }
}

#[test]
fn the_short_help_fits_a_screen() {
    for (name, shown) in [("run", "--system"), ("batch", "--output"), ("serve", "--port")] {
        let help = command(&[name, "-h"]).env("COLUMNS", "80").output().unwrap();
        let help = done(help).succeeds().stdout;
        assert!(help.lines().count() <= 24, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert!(help.contains("--help") && help.contains(shown) && !help.contains("--top-k"));
        let long = alight(&[name, "--help"]).succeeds().stdout;
        assert!(long.contains("--top-k") && long.contains("Examples:"), "{long}");
    }
}

#[test]
fn a_misspelt_command_is_named() {
    for (word, meant) in [
        ("rnu", "run"),
        ("sreve", "serve"),
        ("Run", "run"),
        ("quantise", "quantize"),
        ("lst", "list"),
    ] {
        alight(&[word, "x"]).fails_as_usage(&format!("'{meant}'"));
    }
    let other = alight(&["frobnicate"]);
    assert!(other.status == Some(2) && !other.stderr.contains("similar"), "{}", other.stderr);
}

#[test]
fn check_tensors_names_a_weight_that_is_no_number() {
    let folder = tempfile::tempdir().unwrap();
    let model = support::wild::model(folder.path());
    let run =
        |options: &[&str]| alight(&[&["run", &model, "--raw", "aaa", "-n", "1"], options].concat());
    run(&["--check-tensors"]).succeeds();
    let mut bytes = fs::read(&model).unwrap();
    let gguf = alight_formats::gguf::parse(&bytes).unwrap();
    let tensor = gguf.tensors.iter().find(|tensor| tensor.name.contains("ffn_down")).unwrap();
    let (name, at) = (tensor.name.to_owned(), tensor.offset as usize);
    bytes[at..at + 4].fill(0xff);
    fs::write(&model, bytes).unwrap();
    run(&["--check-tensors"]).fails(1, &[&model, &name, "not finite"]);
    run(&[]).fails(1, &[&name, "not finite"]);
}

#[test]
fn manual_pages() {
    let page = alight(&["man", "run"]).succeeds().stdout;
    let version = env!("CARGO_PKG_VERSION");
    let title = |name: &str| format!(".TH {name} 1  \"alight {version}\" ");
    assert!(page.contains(&title("alight-run")) && page.contains("ctx\\-size"), "{page}");
    // The page is read on other machines.
    let page = alight(&["man"]).succeeds().stdout;
    let heading = page.lines().find(|line| line.starts_with(".TH")).unwrap();
    assert!(heading.starts_with(&title("alight")), "{heading}");
    assert!(page.contains(&format!(".SH VERSION\nv{version}\n")), "{page}");
    assert!(!page.contains("kernels: "), "{page}");
    let dir = tempfile::tempdir().unwrap();
    alight(&["man", "-o", dir.path().to_str().unwrap()]).succeeds();
    for name in [
        "alight.1",
        "alight-run.1",
        "alight-tokenize.1",
        "alight-bench-decode.1",
        "alight-quantize.1",
    ] {
        assert!(dir.path().join(name).is_file(), "{name}: {:?}", support::names(dir.path()));
    }
    assert!(!dir.path().join("alight-bench-resident.1").exists(), "it is hidden");
    alight(&["man", "frobnicate"]).fails(2, &["no command 'frobnicate'"]);
    // After the names of each option are words.
    for name in support::names(dir.path()) {
        let page = fs::read_to_string(dir.path().join(&name)).unwrap();
        let lines: Vec<&str> = page.lines().collect();
        let wordless = lines.windows(3).find(|lines| {
            let named = lines[0] == ".TP" && lines[1].starts_with("\\fB\\-");
            named && !lines[2].starts_with(|c: char| c.is_alphabetic() || c.is_numeric())
        });
        assert_eq!(wordless, None, "{name}");
    }
}

/// Every command that opens a model says the same about a path that is none.
#[test]
fn paths_that_are_not_models() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let folder = folder.to_str().unwrap().to_owned();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let empty = empty.to_str().unwrap().to_owned();
    let whole = dir.path().join("whole");
    fs::create_dir(&whole).unwrap();
    fs::write(whole.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    fs::write(whole.join("config.json"), "{}").unwrap();
    let whole = whole.to_str().unwrap().to_owned();
    let missing = dir.path().join("none.gguf").to_str().unwrap().to_owned();
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n";
    let text = file("text.txt", b"some text\n");

    let cases: Vec<(String, &[&str])> = vec![
        (missing, &["none.gguf", "does not exist", "give the path"]),
        (whole, &["is a folder", "safetensors", "alight convert", "-o model.gguf"]),
        (folder, &["is a folder", "safetensors", "alight convert", "no config.json"]),
        (
            file("a.safetensors", b"\x08\0\0\0\0\0\0\0{}      "),
            &["safetensors", "alight convert", "no config.json"],
        ),
        (file("a.pth", b"PK\x03\x04rest"), &["a.pth", ".pth", "alight convert", "params.json"]),
        (empty, &["is a folder without a model in it: give the path of a .gguf file"]),
        (file("lfs.gguf", pointer), &["lfs.gguf", "pointer of Git LFS", "`git lfs pull`"]),
        (file("page.gguf", b"<!DOCTYPE html><html>"), &["page.gguf", "but a web page"]),
        ("llama3.2:1b".to_owned(), &["'llama3.2:1b' does not exist", "hf.co/USER/REPO"]),
        (file("a.bin", b"tjgg\x01\0\0\0"), &["a.bin", "legacy GGML", "alight convert"]),
        (file("empty.gguf", b""), &["empty.gguf", "is empty: fetch or copy it again"]),
        (
            file("notes.gguf", b"Dear diary, today"),
            &["notes.gguf", "not a GGUF file", "Dear", "give the path of a .gguf file"],
        ),
        (
            file("short.gguf", b"GGUF\x03\0\0\0"),
            &["short.gguf", "cut short", "fetch or copy it again"],
        ),
        ("/dev/null".to_owned(), &["/dev/null", "not a regular file"]),
    ];
    for (path, parts) in &cases {
        for args in [
            vec!["run", path, "hello"],
            vec!["batch", path, &text],
            vec!["perplexity", path, &text],
            vec!["tokenize", path, "hello"],
            vec!["bench", "decode", path],
        ] {
            alight(&args).fails(1, parts);
        }
        // What other programs wrote has other errors where it is converted.
        if !parts.iter().any(|part| ["alight convert", "not a GGUF file"].contains(part))
            && path.ends_with(".gguf")
        {
            let made = dir.path().join("made.gguf");
            let made = made.to_str().unwrap();
            alight(&["pack", path, "-o", made]).fails(1, parts);
            alight(&["quantize", path, "-o", made, "--type", "q8_0"]).fails(1, parts);
        }
        // `inspect` reads other formats.
        if !parts.contains(&"alight convert") {
            alight(&["inspect", path]).fails(1, parts);
            alight(&["inspect", path, "--json"]).fails(1, parts);
        }
    }
}

#[test]
fn a_kernel_that_the_cpu_lacks_or_nobody_knows_is_wrong_usage() {
    let done = alight(&["run", "m.gguf", "x", "--isa", "mmx"]);
    assert_eq!(done.status, Some(2));
    let all = "expected one of scalar, neon, i8mm, avx2, avxvnni, avx512, amxint8, amx";
    assert!(done.stderr.contains(all), "{}", done.stderr);
    let foreign = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    let done = alight(&["run", "m.gguf", "x", "--isa", foreign]);
    assert_eq!(done.status, Some(2));
    let why = format!("this CPU cannot run the {foreign} kernels; it can run scalar");
    assert!(done.stderr.contains(&why), "{}", done.stderr);
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_not() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        command(&["completions", "bash"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    done(output).fails(1, &["cannot write to standard output", "No space left"]);

    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output =
        command(&["completions", "bash"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let done = done(output);
    assert_eq!((done.status, done.stderr.as_str()), (Some(0), ""));
}

#[test]
fn alight_rusage_becomes_the_program_that_stands_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("alight");
    support::copy_program(Path::new(env!("CARGO_BIN_EXE_alight")), &own);
    let run = |args: &[&str]| done(std::process::Command::new(&own).args(args).output().unwrap());
    run(&["rusage", "true"]).fails(1, &["there is no", "rusage'", "cargo install"]);
    let other = dir.path().join("rusage");
    support::script(&other, "for word; do echo \"[$word]\"; done; exit 7");
    let did = run(&["rusage", "-n", "2", "--help", "--", "a b", "-x"]);
    assert_eq!(
        (did.status, did.stdout.as_str()),
        (Some(7), "[-n]\n[2]\n[--help]\n[--]\n[a b]\n[-x]\n")
    );
}
