//! A chat on a pseudo-terminal, held by `chat_pty.py`. Without the model file or Python the test
//! says so and passes.

use std::process::Command;

use crate::support::smollm2;

#[test]
fn a_chat_on_a_terminal() {
    let Some(model) = smollm2() else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chat_pty.py");
    let output =
        match Command::new("python3").args([script, env!("CARGO_BIN_EXE_alight"), &model]).output()
        {
            Ok(output) => output,
            Err(error) => {
                eprintln!("skipped: python3: {error}");
                return;
            }
        };
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
