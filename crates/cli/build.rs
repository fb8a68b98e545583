//! Names the commit that the program is built of: `ALIGHT_COMMIT`, from the environment, or as Git says.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=ALIGHT_COMMIT");
    let given = std::env::var("ALIGHT_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| {
        // The log of HEAD changes with every commit, also in a work tree of its own.
        let log = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])?;
        println!("cargo::rerun-if-changed={log}");
        git(&["rev-parse", "--short=12", "HEAD"])
    });
    println!("cargo::rustc-env=ALIGHT_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// The line that Git answers with; none where there is no Git, or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}
