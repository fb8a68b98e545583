//! Models to begin with, for machines of 4, 8 and 16 GB of memory. README, the tutorial and `--help` name the same ones, which a test
//! checks.

/// A model to begin with.
#[derive(Debug)]
pub struct Suggestion {
    /// Memory of the machine that it is for, in GB.
    pub memory_gb: u32,
    /// Its name, as it can be typed.
    pub name: &'static str,
    /// Its size.
    pub size: &'static str,
    /// Its strength.
    pub good_for: &'static str,
}

/// The models, the smallest first.
pub const SUGGESTED: [Suggestion; 3] = [
    Suggestion {
        memory_gb: 4,
        name: "hf.co/unsloth/Qwen3-1.7B-GGUF",
        size: "1.1 GB",
        good_for: "summaries, short answers",
    },
    Suggestion {
        memory_gb: 8,
        name: "hf.co/unsloth/Qwen3-4B-Instruct-2507-GGUF",
        size: "2.5 GB",
        good_for: "everyday questions, tools",
    },
    Suggestion {
        memory_gb: 16,
        name: "hf.co/ggml-org/gpt-oss-20b-GGUF",
        size: "12 GB",
        good_for: "reasoning, code, agents",
    },
];

/// Returns a help text, with these models in front of it.
pub fn before(help: &str) -> String {
    let mut text = "Models to begin with:\n".to_owned();
    // Two lines, which terminals of 80 columns need not break.
    for Suggestion { memory_gb, name, size, good_for } in &SUGGESTED {
        text += &format!(
            "  alight run {name}\n      for {memory_gb} GB of memory; {size}: {good_for}\n"
        );
    }
    text + "\n" + help
}

/// Returns advice for a command that was given no model.
pub fn tip(command: &str) -> String {
    let Suggestion { name, size, .. } = &SUGGESTED[0];
    format!("to begin with, `alight {command} {name}` fetches a small model ({size}) and uses it")
}
