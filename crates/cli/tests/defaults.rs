//! Defaults that the user has set: the command line counts more than the environment, and that more than the file.

use crate::support::{self, Done, command, done, said, wild, write};

/// What `run` does with a prompt, and these words, variables and settings.
fn run(words: &[&str], variables: &[(&str, &str)], file: &str) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let config = write(folder.path(), "config.toml", file);
    let args = ["run", &model, "--raw", "aaa", "--ignore-eos", "--json"];
    let mut command = command(&[&args[..], words].concat());
    // `make test` sets it.
    command
        .env_remove("ALIGHT_THREADS")
        .env("ALIGHT_CONFIG", config)
        .envs(variables.iter().copied());
    done(command.stdin(std::process::Stdio::null()).output().unwrap())
}

/// The number of tokens that were generated, and whether statistics were said.
fn did(done: Done) -> (u64, bool) {
    let done = done.succeeds();
    let line: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    (line["generated_tokens"].as_u64().unwrap(), done.stderr.contains("tokens/s"))
}

#[test]
fn the_command_line_counts_more_than_the_environment_and_that_more_than_the_file() {
    let file = "threads = 1\n[run]\npredict = 3\nstats = true\n[serve]\nport = 1\n";
    assert_eq!(did(run(&[], &[], file)), (3, true));
    let variables = [("ALIGHT_PREDICT", "2"), ("ALIGHT_TEMP", "0")];
    assert_eq!(did(run(&[], &variables, file)), (2, true));
    assert_eq!(did(run(&["-n", "1"], &variables, file)), (1, true));
    assert_eq!(did(run(&["-n", "1"], &[("ALIGHT_STATS", "off")], "")), (1, false));
    // A default conflicts with nothing: --raw has no system message.
    assert_eq!(did(run(&["-n", "1"], &[], "[run]\nsystem = \"Be brief.\"")).0, 1);
}

#[test]
fn a_default_that_is_none_is_wrong_usage_and_says_where_it_is() {
    for (file, parts) in [
        ("\nthreads = 0", &["config.toml', line 2: ", "--threads", "'0'"][..]),
        ("[run]\n\ntemp = -1", &["config.toml', line 3, [run]: '-1' for --temp"]),
        (
            "[run]\ncache-type = \"q4\"",
            &["line 2, [run]: 'q4' for --cache-type", "one of f16, q8_0, q4r"],
        ),
        (
            "[run]\ntop_k = 4",
            &["line 2, [run]: ", "no option 'top_k' of run (did you mean 'top-k'?)"],
        ),
        (
            "thread = 4",
            &["line 1: ", "no option 'thread' of any command (did you mean 'threads'?)"],
        ),
        ("[run]\ntemp = \"hot\"", &["config.toml", "--temp", "number"]),
        ("[run]\ntemperament = 1", &["no option 'temperament' of run"]),
        ("frobnicate = 1", &["no option 'frobnicate'"]),
        (
            "[frobnicate]\na = 1",
            &["line 1: no section [frobnicate] is known", "[perplexity], [quantize]"],
        ),
        ("[run]\nstats = 7", &["--stats", "true or false"]),
        ("threads = [1]", &["--threads", "a list", "one value"]),
        ("stop = [[\"a\"]]", &["--stop", "lists"]),
        ("threads = 1979-05-27", &["--threads", "'1979-05-27'"]),
        ("[serve]\ncache-dir = 7\n[run]\ndraft = false", &["--draft", "'false'", "a value"]),
        ("threads = 1\nthreads = ", &["config.toml", "not TOML: line 2: "]),
    ] {
        run(&[], &[], file).fails(2, parts);
    }
    run(&[], &[("ALIGHT_THREADS", "many")], "").fails(2, &["ALIGHT_THREADS", "'many'"]);
    run(&[], &[("ALIGHT_TOP_K", "3.5")], "").fails(2, &["'3.5'", "expected a whole number"]);
    run(&[], &[("ALIGHT_CONFIG", "/nonexistent")], "")
        .fails(1, &["the file that ALIGHT_CONFIG names", "'/nonexistent'", "does not exist"]);
}

#[test]
fn help_is_there_whatever_is_wrong_with_the_defaults() {
    let help = run(&["--help"], &[], "threads = many").succeeds().stdout;
    assert!(help.contains("--threads") && help.contains("config.toml"), "{help}");
}

#[test]
fn other_names_of_options_and_lists_of_values_are_taken() {
    assert_eq!(did(run(&[], &[], "[run]\nn-predict = 2")).0, 2);
    assert_eq!(did(run(&[], &[("ALIGHT_N_PREDICT", "2")], "[run]\npredict = 3")).0, 2);
    // Some of these are what a model of all kinds of characters writes first.
    let drawn = ["--temp", "9", "--seed", "1", "-n", "200"];
    let all = did(run(&drawn, &[], "")).0;
    let stop = "stop = [\"\\u001b[2J\", \"\\u202e\", \"\\u007f\"]";
    assert!(did(run(&drawn, &[], stop)).0 < all);
}

/// A default that does not go with what is on the command line gives way.
#[test]
fn a_system_message_on_the_command_line_counts_more_than_raw_in_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &[("Yes", said::TEXT)], 0);
    let answered = |words: &[&str]| {
        let args = ["run", &model, "a", "--temp", "0", "-t", "1", "-n", "1", "--parse-special"];
        let mut command = command(&[&args[..], words].concat());
        command.env("ALIGHT_RAW", "1").stdin(std::process::Stdio::null());
        done(command.output().unwrap()).succeeds().stdout
    };
    assert_eq!(answered(&["--system", "x"]), "Yes\n");
    assert_ne!(answered(&[]), "Yes\n");
}

#[test]
fn the_prompt_cache_is_switched_by_words_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let (here, own) = (folder.path().join("here"), folder.path().join("own"));
    std::fs::create_dir(&here).unwrap();
    let prompt = "a".repeat(300);
    // Whether a prompt is kept where the user's are, by these words, variables and settings; nothing is kept here.
    let keeps = |words: &[&str], variables: &[(&str, &str)], file: &str| {
        let _ = std::fs::remove_dir_all(&own);
        let config = write(folder.path(), "config.toml", file);
        let args = ["run", &model, "--raw", &prompt, "-n", "1", "-c", "512", "-t", "1"];
        let mut command = command(&[&args[..], words].concat());
        // `make test` sets it.
        command
            .env_remove("ALIGHT_THREADS")
            .env("ALIGHT_CONFIG", config)
            .envs(variables.iter().copied());
        command.env("XDG_CACHE_HOME", &own).current_dir(&here).stdin(std::process::Stdio::null());
        done(command.output().unwrap()).succeeds();
        assert_eq!(support::names(&here), [""; 0], "{words:?} {variables:?} {file}");
        own.join("alight/prompts").exists()
    };
    for (word, on) in [("false", false), ("true", true)] {
        assert_eq!(keeps(&[], &[], &format!("[run]\ncache = {word}")), on, "{word}");
    }
    for (word, on) in [("0", false), ("off", false), ("No", false), ("1", true), ("on", true)] {
        assert_eq!(keeps(&[], &[("ALIGHT_CACHE", word)], ""), on, "{word}");
    }
    assert!(keeps(&["--cache"], &[], "cache = false"));
    assert!(!keeps(&["--cache=off"], &[], "cache = true"));
    // A folder of such a name has more to its path.
    let args = ["run", &model, "--raw", &prompt, "-n", "1", "-c", "512", "--cache=./off"];
    done(command(&args).current_dir(&here).output().unwrap()).succeeds();
    assert_eq!(support::names(&here), ["off"]);
}
