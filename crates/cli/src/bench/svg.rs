//! Text, for all pictures of `alight bench`.

/// Adds text at a position. `class` is a class of the picture's style; `anchor` is start, middle or
/// end.
pub(super) fn text(body: &mut String, x: f64, y: f64, class: &str, anchor: &str, content: &str) {
    *body += &format!(
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>\n",
        escaped(content)
    );
}

/// Escapes text for XML, which allows no control characters at all.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
