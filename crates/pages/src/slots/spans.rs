//! Parts of pieces, and how nearby parts are joined into spans.

use std::ops::Range;

/// A part of a piece: bytes of one of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The index of the file.
    pub file: usize,
    /// The range of bytes in the file.
    pub range: Range<u64>,
}

/// Returns the spans of a piece that has these parts, and for each part its span and its offset in it. A part that may follow
/// (`true`) joins the span that ends fewer than `near` bytes before it, including the bytes in between.
pub fn join(parts: &[(Span, bool)], near: u64) -> (Vec<Span>, Vec<(usize, usize)>) {
    let (mut spans, mut places) = (Vec::<Span>::new(), Vec::with_capacity(parts.len()));
    for (part, may_follow) in parts {
        let start = part.range.start;
        let before = spans.iter_mut().enumerate().find(|(_, span)| {
            let is_near = start >= span.range.end && start - span.range.end < near;
            *may_follow && span.file == part.file && is_near
        });
        match before {
            Some((index, span)) => {
                places.push((index, (start - span.range.start) as usize));
                span.range.end = part.range.end;
            }
            None => {
                places.push((spans.len(), 0));
                spans.push(part.clone());
            }
        }
    }
    (spans, places)
}

/// The spans of every piece of every group.
pub type Groups = Vec<Vec<Vec<Span>>>;
