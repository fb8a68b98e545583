//! The language of chat templates, feature by feature, as Python's jinja2 evaluates it (recorded in
//! `tests/data/template_cases.json` by `python -m evidence agree templates --golden`).

use std::fs;
use std::path::Path;

use alight_text::{ChatError, ChatTemplate};

#[derive(serde::Deserialize)]
struct Case {
    template: String,
    /// `None`: jinja2 fails.
    rendered: Option<String>,
}

#[derive(serde::Deserialize)]
struct Cases {
    context: serde_json::Map<String, serde_json::Value>,
    cases: Vec<Case>,
}

#[test]
fn every_feature_gives_what_it_gives_in_jinja2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/template_cases.json");
    let Cases { context, cases } = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert!(cases.len() > 1000);
    let mut differ = Vec::new();
    for Case { template, rendered } in cases {
        let ours = ChatTemplate::new(&template, "<s>", "</s>")
            .and_then(|template| template.render_context(&context));
        if let Err(error) = &ours {
            let text = error.to_string();
            assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text:?}");
            let bounded = matches!(error, ChatError::TooLong { .. } | ChatError::TooDeep { .. });
            assert!(!bounded, "{template}: {error}");
        }
        if ours.as_ref().ok() != rendered.as_ref() {
            differ.push(format!("{template:?}: {ours:?}, but jinja2 {rendered:?}"));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
