//! Renders chat templates, for comparing with Python's jinja2 (`python -m evidence agree chat`).
//!
//! Reads JSON lines `{"template": …, "bos": …, "eos": …, "context": {…}}` on stdin and writes one
//! JSON line for each: a string, or `{"error": …}`.

use std::error::Error;
use std::io::{BufRead, Write};

use alight_text::ChatTemplate;

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line: serde_json::Value = serde_json::from_str(&line?)?;
        let text = |key: &str| line[key].as_str().unwrap_or_default();
        let context = line["context"].as_object().cloned().unwrap_or_default();
        let rendered = ChatTemplate::new(text("template"), text("bos"), text("eos"))
            .and_then(|template| template.render_context(&context));
        let answer = match rendered {
            Ok(text) => serde_json::Value::String(text),
            Err(error) => serde_json::json!({ "error": error.to_string() }),
        };
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
    }
    Ok(())
}
