//! A process of its own for a test that changes or counts what belongs to its process.

use std::process::Command;

/// Tells a process that it was started for one test.
const ALONE: &str = "ALIGHT_TEST_ALONE";

/// True if this process is there for this test alone. Any other starts one that is, which is this program again with this test (its name, with its
/// file's before it), and waits for it to end well.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "yes")
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{}: {said}", output.status);
    said.lines().filter(|line| line.starts_with("skipped")).for_each(|line| println!("{line}"));
    false
}
