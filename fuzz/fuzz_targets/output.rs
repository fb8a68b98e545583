//! Any text as what a model wrote, cut anywhere, in every format: no text is lost, calls have JSON objects for
//! arguments, and where it is cut does not matter. The last is so where calls come in pieces, too.
#![no_main]

use alight_text::output::{Format, Parser, Part, Span, Tools};
use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input {
    format: u8,
    prompt: u8,
    pieces: Vec<Piece>,
}

#[derive(Arbitrary, Debug)]
enum Piece {
    Text(String),
    Mark(u8),
    Known(u8),
}

const KNOWN: [&str; 24] = [
    "\n", "\n\n", "{\"name\":\"f\",\"arguments\":{}}", "{\"a\": 1}", "<function=f>", "</function>",
    "<parameter=x>", "</parameter>", "call:f{a:1,b:[", "analysis", "commentary", " to=functions.f", "thought",
    "f(x=\"", "f<arg_key>x</arg_key><arg_value>", "functions.f:0", "<invoke name=\"f\">", "<parameter name=\"x\">", "<function name=\"f\">",
    "[{\"name\":\"f\"}]", "{\"name\":\"f\",\"arguments\":{", "f[ARGS]{\"a\":", "\"", "}",
];
const PROMPTS: [&str; 4] = ["", "<think>\n", "<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>"];

/// The spans, neighbours of one part joined; calls one by one, each of all its pieces.
fn spans<'t>(mut parser: Parser, texts: impl Iterator<Item = &'t str>) -> Vec<(Part, String)> {
    let mut spans: Vec<(Part, String)> = Vec::new();
    let mut take = |span: Span<'_>| match (spans.last_mut(), &span.part) {
        (Some((Part::Call(call), raw)), Part::Call(more)) if more.name.is_empty() => {
            call.arguments.push_str(&more.arguments);
            raw.push_str(span.raw);
        }
        (Some((part, raw)), _) if *part == span.part && !matches!(part, Part::Call(_)) => raw.push_str(span.raw),
        _ => spans.push((span.part, span.raw.to_owned())),
    };
    texts.for_each(|text| parser.push(text, &mut take));
    parser.finish(&mut take);
    spans
}

fn tools() -> Tools {
    let parameters = serde_json::json!({"properties": {"x": {"type": "string"}, "a": {"type": "integer"}}});
    Tools::of(&[serde_json::json!({"name": "f", "parameters": parameters})])
}

fuzz_target!(|input: Input| {
    let format = Format::ALL[usize::from(input.format) % Format::ALL.len()];
    let prompt = PROMPTS[usize::from(input.prompt) % PROMPTS.len()];
    let marks = format.marks();
    let texts = input.pieces.iter().map(|piece| match piece {
        Piece::Mark(n) if !marks.is_empty() => marks[usize::from(*n) % marks.len()],
        Piece::Mark(n) | Piece::Known(n) => KNOWN[usize::from(*n) % KNOWN.len()],
        Piece::Text(text) => text,
    });
    let texts: Vec<&str> = texts.collect();
    let all = texts.concat();
    let parsers: [fn(Format, &str) -> Parser; 4] = [
        Parser::new,
        |format, prompt| Parser::new(format, prompt).with_tools(tools()),
        |format, prompt| Parser::new(format, prompt).in_pieces(),
        |format, prompt| Parser::new(format, prompt).with_tools(tools()).in_pieces(),
    ];
    for (i, parser) in parsers.into_iter().enumerate() {
        let cut = spans(parser(format, prompt), texts.iter().copied());
        let raw: String = cut.iter().map(|(_, raw)| raw.as_str()).collect();
        assert_eq!(raw, all);
        for (part, _) in &cut {
            if let Part::Call(call) = part {
                assert!(!call.name.is_empty());
                // Pieces of what is no JSON stay a call.
                if i < 2 {
                    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).expect("JSON");
                    assert!(arguments.is_object());
                }
            }
        }
        if all.len() < 1000 {
            let characters = all.char_indices().map(|(at, c)| &all[at..at + c.len_utf8()]);
            assert_eq!(spans(parser(format, prompt), characters), cut);
        }
    }
});
