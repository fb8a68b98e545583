//! Defaults that the user has set: the command line counts more than the environment, and that more than the file.

mod support;
#[path = "support/wild.rs"]
mod wild;

use support::{Done, command, done, write};

/// What `run` does with a prompt, and these words, variables and settings.
fn run(words: &[&str], variables: &[(&str, &str)], file: &str) -> Done {
    let folder = tempfile::tempdir().unwrap();
    let model = wild::model(folder.path());
    let config = write(folder.path(), "config.toml", file);
    let args = ["run", &model, "--raw", "aaa", "--ignore-eos", "--json"];
    let mut command = command(&[&args[..], words].concat());
    command.env("ALIGHT_CONFIG", config).envs(variables.iter().copied());
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
        ("threads = 0", &["config.toml", "--threads", "'0'"][..]),
        ("[run]\ntemp = \"hot\"", &["config.toml", "--temp", "number"]),
        ("[run]\ntemperament = 1", &["no option 'temperament' of run"]),
        ("frobnicate = 1", &["no option 'frobnicate'"]),
        ("[frobnicate]\na = 1", &["no option 'frobnicate'"]),
        ("[run]\nstats = 7", &["--stats", "true or false"]),
    ] {
        run(&[], &[], file).fails(2, parts);
    }
    run(&[], &[], "threads = ").fails(1, &["config.toml", "not TOML"]);
    run(&[], &[("ALIGHT_THREADS", "many")], "").fails(2, &["ALIGHT_THREADS", "'many'"]);
}
