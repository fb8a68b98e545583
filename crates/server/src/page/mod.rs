//! The page: a chat in the browser, with a live picture of memory. It is a single file, built once from the files in this folder,
//! and sends no request to another host.
//!
//! Invariant: a browser runs the page's own script and no other, whatever a model writes: the policy that is sent with the page names
//! the script by its hash, and the script turns the output of a model into text, never into HTML.

pub(crate) mod memory;

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::http::{self, Answered, Call, Reply};

/// The scripts, in order of dependency.
const SCRIPTS: [&str; 13] = [
    include_str!("dom.js"),
    include_str!("colours.js"),
    include_str!("math.js"),
    include_str!("markdown.js"),
    include_str!("conversation.js"),
    include_str!("tabs.js"),
    include_str!("conversations.js"),
    include_str!("stream.js"),
    include_str!("answers.js"),
    include_str!("messages.js"),
    include_str!("list.js"),
    include_str!("memory.js"),
    include_str!("page.js"),
];

/// The page, and its policy.
struct Page {
    html: Bytes,
    policy: HeaderValue,
}

static PAGE: LazyLock<Page> = LazyLock::new(Page::make);

impl Page {
    fn make() -> Page {
        // Each has its own scope; a script exports names as members of `Alight`.
        let scripts = SCRIPTS.map(|script| format!("(() => {{\n{script}\n}})();\n"));
        let script = format!("\"use strict\";\nconst Alight = {{}};\n{}", scripts.concat());
        let style = include_str!("page.css");
        let html = include_str!("page.html").replace("/* style */", style);
        let html = html.replace("/* script */", &script);
        let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
            hash(&script),
            hash(style)
        );
        let policy = HeaderValue::try_from(policy).expect("a policy of visible characters");
        Page { html: html.into(), policy }
    }
}

/// `GET /`
pub(crate) async fn answer(call: Call) -> Answered {
    if !call.server.options.page {
        // The text that Ollama's clients look for.
        let text = "Ollama is running".to_owned();
        return Ok(http::text(StatusCode::OK, "text/plain; charset=utf-8", text));
    }
    Ok(response(&PAGE))
}

fn response(page: &Page) -> Response<Reply> {
    let mut response = http::bytes(StatusCode::OK, "text/html; charset=utf-8", page.html.clone());
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, page.policy.clone());
    // Another version of the server has another page.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text between the only two of these tags.
    fn between<'h>(html: &'h str, [open, close]: [&str; 2]) -> &'h str {
        assert_eq!((html.matches(open).count(), html.matches(close).count()), (1, 1), "{open}");
        let (_, rest) = html.split_once(open).unwrap();
        rest.split_once(close).unwrap().0
    }

    #[test]
    fn the_policy_names_the_script_and_the_style_that_are_in_the_page() {
        let page = Page::make();
        let policy = page.policy.to_str().unwrap();
        let html = std::str::from_utf8(&page.html).unwrap();
        for (tags, name) in
            [(["<script>", "</script>"], "script-src"), (["<style>", "</style>"], "style-src")]
        {
            let hash = STANDARD.encode(Sha256::digest(between(html, tags)));
            assert!(policy.contains(&format!("{name} 'sha256-{hash}'")), "{name}");
        }
        assert!(!policy.contains("unsafe") && policy.starts_with("default-src 'none'"));
    }

    /// The policy would block most of these too; the script must not even try.
    #[test]
    fn nothing_in_the_page_makes_html_of_text_or_asks_another_host() {
        let html = String::from_utf8(Page::make().html.into()).unwrap();
        for word in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "DOMParser",
            " onclick=",
            " style=",
            "javascript:",
            "src=",
        ] {
            assert!(!html.contains(word), "{word}");
        }
        // The only addresses are namespaces: of the icon's picture, and of formulas.
        assert_eq!(html.matches("://").count(), 2);
        assert!(html.contains("xmlns='http://www.w3.org/2000/svg'"));
        assert!(html.contains("\"http://www.w3.org/1998/Math/MathML\""));
        assert!(html.len() < 128 << 10, "{} bytes", html.len());
    }
}
