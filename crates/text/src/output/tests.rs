//! The parts of each format, however the text is cut; and that no text is lost.

use super::{Format, Parser, Part};

/// The spans of `text` passed in pieces of as many characters as the closure returns, with neighbours of one part
/// and the pieces of a call joined.
pub(super) fn spans(
    mut parser: Parser,
    text: &str,
    mut characters: impl FnMut() -> usize,
) -> Vec<(Part, String)> {
    let mut spans: Vec<(Part, String)> = Vec::new();
    let mut take = |span: super::Span<'_>| match (spans.last_mut(), &span.part) {
        (Some((Part::Call(call), raw)), Part::Call(more)) if more.name.is_empty() => {
            call.arguments.push_str(&more.arguments);
            call.id = call.id.take().or_else(|| more.id.clone());
            raw.push_str(span.raw);
        }
        (_, Part::Call(more)) => {
            assert!(!more.name.is_empty(), "a piece of no call");
            spans.push((span.part, span.raw.to_owned()));
        }
        (Some((part, raw)), _) if *part == span.part => raw.push_str(span.raw),
        _ => spans.push((span.part, span.raw.to_owned())),
    };
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.char_indices().nth(characters()).map_or(rest.len(), |(at, _)| at);
        parser.push(&rest[..end], &mut take);
        rest = &rest[end..];
    }
    parser.finish(&mut take);
    let raw: String = spans.iter().map(|(_, raw)| raw.as_str()).collect();
    assert_eq!(raw, text);
    spans
}

/// The parts in short form: `T:` thinking, `A:` answer, `C:` a call; marks are left out.
fn short(format: Format, prompt: &str, text: &str) -> Vec<String> {
    in_short(|| Parser::new(format, prompt), text)
}

/// The same for calls in pieces.
fn pieces(format: Format, prompt: &str, text: &str) -> Vec<String> {
    in_short(|| Parser::new(format, prompt).in_pieces(), text)
}

fn in_short(parser: impl Fn() -> Parser, text: &str) -> Vec<String> {
    short_of(parser, text)
}

/// The same for the parsers that are made, and with the ids of calls after `#`.
pub(super) fn short_of(parser: impl Fn() -> Parser, text: &str) -> Vec<String> {
    let whole = spans(parser(), text, || usize::MAX);
    for piece in [1, 2, 3, 7] {
        let cut = spans(parser(), text, || piece);
        assert_eq!(cut, whole, "{:?} {piece} {text:?}", parser());
    }
    let shown = whole.into_iter().filter_map(|(part, raw)| match part {
        Part::Thinking => Some(format!("T:{raw}")),
        Part::Answer => Some(format!("A:{raw}")),
        Part::Call(call) => {
            let id = call.id.map(|id| format!(" #{id}")).unwrap_or_default();
            Some(format!("C:{} {}{id}", call.name, call.arguments))
        }
        Part::Mark => None,
    });
    shown.collect()
}

#[test]
fn thinking_in_tags() {
    let chat = |text: &str| short(Format::ChatMl, "<|im_start|>assistant\n", text);
    assert_eq!(chat("<think>\nHm.\n\nSo.\n</think>\n\nYes."), ["T:Hm.\n\nSo.", "A:Yes."]);
    assert_eq!(chat("<think>\n\n</think>\n\nYes."), ["A:Yes."]);
    assert_eq!(chat("No marks, 1 < 2 <thin"), ["A:No marks, 1 < 2 <thin"]);
    assert_eq!(chat("<think>cut off"), ["T:cut off"]);
    // An answer may mention the marks.
    assert_eq!(chat("Use <think> and </think>."), ["A:Use <think> and </think>."]);
    let opened = |text: &str| short(Format::ChatMl, "<|im_start|>assistant\n<think>\n", text);
    assert_eq!(opened("Hm.\n</think>\n\nYes."), ["T:Hm.", "A:Yes."]);
    let closed = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(short(Format::ChatMl, closed, "Yes."), ["A:Yes."]);
    assert_eq!(short(Format::Mistral, "[/INST]", "[THINK]Hm.[/THINK]Yes."), ["T:Hm.", "A:Yes."]);
    assert_eq!(short(Format::Plain, "", "<think>x</think>"), ["A:<think>x</think>"]);
}

#[test]
fn calls_in_json_and_in_xml() {
    let chat = |text: &str| short(Format::ChatMl, "", text);
    let json = r#"{"name": "f", "arguments": {"a": 1.0, "b": "x</tool_call>y"}}"#;
    assert_eq!(
        chat(&format!(
            "Wait.\n\n<tool_call>\n{json}\n</tool_call>\n<tool_call>{{\"name\":\"g\"}}</tool_call>"
        )),
        ["A:Wait.", r#"C:f {"a": 1.0, "b": "x</tool_call>y"}"#, "C:g {}"]
    );
    // The end of the text also ends a call; and the arguments may be a JSON string.
    assert_eq!(chat(r#"<tool_call>{"name":"f","arguments":"{\"a\":2}"}"#), [r#"C:f {"a":2}"#]);
    assert_eq!(
        chat(
            "<think>x</think><tool_call>\n<function=f>\n<parameter=path>\na\nb\n</parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>"
        ),
        ["T:x", r#"C:f {"path":"a\nb","n":3}"#]
    );
    for broken in [
        "<tool_call>{\"name\": f}</tool_call>!",
        "<tool_call> is a mark",
        "<tool_call>{\"nom\": \"f\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f",
        "<tool_call><function=f><parameter=x>1",
    ] {
        assert_eq!(chat(broken), [format!("A:{broken}")]);
    }
}

#[test]
fn calls_of_mistral_and_gemma() {
    let mistral = |text: &str| short(Format::Mistral, "", text);
    assert_eq!(
        mistral("[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]0[ARGS]{}"),
        ["C:f {\"a\": 1}", "C:g {} #0"]
    );
    assert_eq!(
        mistral(
            r#"Ok.[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": []}}]"#
        ),
        ["A:Ok.", "C:f {}", r#"C:g {"x": []}"#]
    );
    assert_eq!(mistral("[TOOL_CALLS] is one"), ["A:[TOOL_CALLS] is one"]);
    let gemma = |text: &str| short(Format::Gemma4, "<|turn>model\n", text);
    assert_eq!(gemma("<|channel>thought\nHm.\n<channel|>Yes."), ["T:Hm.", "A:Yes."]);
    assert_eq!(gemma("<|channel>thought\n<channel|>Yes."), ["A:Yes."]);
    assert_eq!(
        gemma(
            "<|tool_call>call:f{city:<|\"|>a \"b\", {c}<|\"|>,n:-2,l:[true,{x:null}],e:low}<tool_call|>"
        ),
        [r#"C:f {"city":"a \"b\", {c}","n":-2,"l":[true,{"x":null}],"e":"low"}"#]
    );
    assert_eq!(gemma("<|tool_call>call:f{a:<tool_call|>"), ["A:<|tool_call>call:f{a:<tool_call|>"]);
    assert_eq!(short(Format::Gemma4, "<|channel>thought\n", "a<channel|>b"), ["T:a", "A:b"]);
}

#[test]
fn channels_of_harmony() {
    let say = |text: &str| short(Format::Harmony, "<|end|><|start|>assistant", text);
    assert_eq!(
        say(
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>"
        ),
        ["T:Hm.", "A:Yes."]
    );
    let preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";
    let call = "C:f {\"a\": 1}";
    for header in [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        "<|channel|>analysis to=f code<|message|>",
        "<|channel|>commentary some words to=functions.f<|message|>",
    ] {
        assert_eq!(say(&format!("{preamble}{header}{{\"a\": 1}}")), ["A:I look.", call]);
        assert_eq!(say(&format!("{header}{{\"a\": 1}}<|call|>")), [call]);
    }
    // Without a header, without an end, with invalid arguments.
    assert_eq!(say("The answer."), ["A:The answer."]);
    assert_eq!(say("<|channel|>analysis<|message|>a<|channel|>final<|message|>b"), ["T:a", "A:b"]);
    let broken = "<|channel|>commentary to=f<|message|>{\"a\":<|call|>";
    assert_eq!(say(broken), [format!("A:{broken}")]);
    let long = format!("<|channel|>{}<|message|>x", "y".repeat(2000));
    assert!(say(&long).concat().contains(&"y".repeat(2000)));
    let begun = "<|start|>assistant<|channel|>analysis<|message|>So";
    assert_eq!(short(Format::Harmony, begun, " far<|end|>"), ["T: far"]);
    assert_eq!(
        short(Format::Harmony, "<|start|>assistant<|channel|>analysis", "<|message|>a"),
        ["T:a"]
    );
}

/// Pieces of all formats in any order, cut anywhere: nothing is lost, and the parts are the same however it is cut.
#[test]
fn any_order_of_marks_keeps_all_text() {
    let marks: Vec<&str> = Format::ALL.iter().flat_map(|format| format.marks()).copied().collect();
    let texts = [
        "\n",
        "\n\n",
        " ",
        "é日",
        "{\"name\":\"f\",\"arguments\":{}}",
        "{}",
        "<function=f>",
        "<",
        "call:f{a:1}",
        "analysis",
        "final",
        " to=f",
        "thought",
        "x y",
        "<|",
        "[",
        "</function>",
        "{\"name\":\"f\",\"arguments\":{",
        "f[ARGS]{\"a\":",
        ", \"id\": 1",
        "\"",
        "}",
        "]",
    ];
    let mut next = numbers(7);
    for round in 0..12_000 {
        let own = Format::ALL[round % Format::ALL.len()];
        let mut text = String::new();
        for _ in 0..next(12) + 1 {
            match next(4) {
                0 => text.push_str(marks[next(marks.len())]),
                1 if !own.marks().is_empty() => text.push_str(own.marks()[next(own.marks().len())]),
                _ => text.push_str(texts[next(texts.len())]),
            }
        }
        short(own, "", &text);
        pieces(own, "", &text);
        in_short(Parser::of_call, &text);
    }
}

/// Random numbers below the given bounds.
fn numbers(mut state: u32) -> impl FnMut(usize) -> usize {
    move |below| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    }
}

/// Well-formed calls, in all notations.
const CALLS: [(Format, &str); 11] = [
    (
        Format::ChatMl,
        "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"é\\\"}日\"}], \"c\": \"<x\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
    ),
    (
        Format::ChatMl,
        "<tool_call>{\"id\": \"1\", \"n\": 2, \"name\": \"f\\u00e9\", \"parameters\": {\"a\": \"x</tool_call>y\"}, \"b\": null, \"type\": \"function\"}</tool_call>Done.",
    ),
    // Emitted whole: the arguments come first, or are a string, or are not JSON.
    (Format::ChatMl, "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call> So."),
    (Format::ChatMl, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
    (
        Format::ChatMl,
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        Format::Mistral,
        "Ok.[TOOL_CALLS]f[ARGS]{\"a\": \"[TOOL_CALLS]\", \"b\": [[1]]}[TOOL_CALLS]g[CALL_ID]0[ARGS]{} \n",
    ),
    (
        Format::Mistral,
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}, \"id\": \"q\"}, {\"name\": \"g\", \"arguments\": {}}]",
    ),
    (
        Format::Harmony,
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|> {\"a\": \"<|x\"} <|call|>",
    ),
    (
        Format::Harmony,
        "<|channel|>commentary to=f<|message|>{\"a\": 1}<|start|>assistant<|channel|>commentary to=g<|message|><|call|>",
    ),
    (Format::Gemma4, "<|tool_call>call:f{a:<|\"|>b<|\"|>}<tool_call|>"),
    (Format::Plain, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
];

#[test]
fn pieces_of_calls_joined_are_the_whole_calls_however_they_are_cut() {
    let mut next = numbers(11);
    for (format, text) in CALLS {
        let said = |spans: Vec<(Part, String)>| -> Vec<(Part, String)> {
            let spans = spans.into_iter().filter(|(part, _)| *part != Part::Mark);
            // Text around the arguments may be attached to another piece.
            let bare = |(part, raw)| match part {
                Part::Call(_) => (part, String::new()),
                part => (part, raw),
            };
            spans.map(bare).collect()
        };
        let whole = said(spans(Parser::new(format, ""), text, || usize::MAX));
        for _ in 0..200 {
            let parser = Parser::new(format, "").in_pieces();
            assert_eq!(said(spans(parser, text, || next(9) + 1)), whole, "{format:?} {text}");
        }
    }
}

/// The output for a call with each character of its text.
pub(super) fn as_it_comes(mut parser: Parser, text: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut take = |span: super::Span<'_>| match span.part {
        Part::Call(call) if call.name.is_empty() && call.arguments.is_empty() => {}
        Part::Call(call) => all.push(format!("{}{}", call.name, call.arguments)),
        Part::Answer => all.push(format!("A:{}", span.raw)),
        _ => {}
    };
    text.chars().for_each(|c| parser.push(&c.to_string(), &mut take));
    parser.finish(&mut take);
    all
}

#[test]
fn arguments_are_handed_out_while_they_are_written() {
    let json = "{\"name\": \"fun\", \"arguments\": {\"a\": 1}}";
    let wanted = ["fun", "{", "\"", "a", "\"", ":", " ", "1", "}"];
    for (format, text) in [
        (Format::ChatMl, format!("<tool_call>\n{json}\n</tool_call>")),
        (Format::Mistral, format!("[TOOL_CALLS][{json}]")),
        (Format::Mistral, "[TOOL_CALLS]fun[ARGS]{\"a\": 1}".to_owned()),
        (Format::Harmony, "<|channel|>commentary to=fun<|message|>{\"a\": 1}<|call|>".to_owned()),
    ] {
        assert_eq!(as_it_comes(Parser::new(format, "").in_pieces(), &text), wanted, "{text}");
    }
    assert_eq!(as_it_comes(Parser::of_call(), json), wanted);
    let xml = "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>";
    let expected = ["f", "{\"a\":1", "}"];
    assert_eq!(as_it_comes(Parser::new(Format::ChatMl, "").in_pieces(), xml), expected);
}

/// A call that has begun remains one; one that has not begun, or text that is malformed after it, is
/// answer text.
#[test]
fn calls_in_pieces_that_are_not_in_order() {
    let begin = "<tool_call>{\"name\": \"f\", \"arguments\": ";
    let chat = |rest: &str| pieces(Format::ChatMl, "", &format!("{begin}{rest}"));
    // Cut within the arguments and after them.
    assert_eq!(chat("{\"a\": [1, \"x"), ["C:f {\"a\": [1, \"x"]);
    assert_eq!(chat("{\"a\": 1}"), ["C:f {\"a\": 1}"]);
    assert_eq!(chat("{\"a\": 1}, \"id"), ["C:f {\"a\": 1}"]);
    // Not JSON, without its last brace, without a quote, without any brace.
    assert_eq!(chat("{\"a\": oops}}</tool_call>Yes."), ["C:f {\"a\": oops}", "A:Yes."]);
    assert_eq!(chat("{\"a\": 1}\n</tool_call>Yes."), ["C:f {\"a\": 1}", "A:Yes."]);
    assert_eq!(chat("{\"a\": \"x}}\n</tool_call>\nYes."), ["C:f {\"a\": \"x}}\n", "A:Yes."]);
    assert_eq!(chat("{\"a\": 1</tool_call>Yes."), ["C:f {\"a\": 1", "A:Yes."]);
    assert_eq!(chat("{}} and so on</tool_call>"), ["C:f {}", "A:and so on</tool_call>"]);
    // The arguments have not begun.
    for broken in ["", "[1]}</tool_call>", "\"x\"}</tool_call>"] {
        assert_eq!(chat(broken), [format!("A:{begin}{broken}")]);
    }
    let far = format!("<tool_call>{{\"x\": \"{}\", ", "y".repeat(2000));
    let call = "\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>";
    assert_eq!(pieces(Format::ChatMl, "", &format!("{far}{call}")), ["C:f {\"a\": 1}"]);
    assert_eq!(pieces(Format::ChatMl, "", &far), [format!("A:{far}")]);
    let mistral = |text: &str| pieces(Format::Mistral, "", text);
    assert_eq!(
        mistral("[TOOL_CALLS]f[ARGS]{\"a\": [TOOL_CALLS]g[ARGS]{} So."),
        ["C:f {\"a\": ", "C:g {}", "A:So."]
    );
    assert_eq!(mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"nom\""), ["C:f {}"]);
    assert_eq!(
        mistral("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 7]"),
        ["C:f {}", "A:}, 7]"]
    );
    let say = |text: &str| pieces(Format::Harmony, "<|start|>assistant", text);
    let header = "<|channel|>commentary to=f<|message|>";
    assert_eq!(say(&format!("{header}{{\"a\":<|call|>")), ["C:f {\"a\":"]);
    assert_eq!(say(&format!("{header}{{}} x<|call|>")), ["C:f {}", "A:x"]);
    assert_eq!(say(&format!("{header}print(1)<|call|>")), [format!("A:{header}print(1)<|call|>")]);
}

/// However much text arrives, little of it is examined again.
#[test]
fn little_is_held_of_calls_in_pieces() {
    let json = "{\"name\": \"f\", \"arguments\": {\"a\": ";
    for (format, begin) in [
        (Format::ChatMl, format!("<tool_call>{json}")),
        (Format::ChatMl, format!("<tool_call>{json}1}}")),
        (Format::ChatMl, format!("<tool_call>{json}1}}}}")),
        (Format::Mistral, "[TOOL_CALLS]f[ARGS]{}".to_owned()),
        (Format::Mistral, format!("[TOOL_CALLS][{json}1}}}}, ")),
        (Format::Harmony, "<|channel|>commentary to=f<|message|>{}".to_owned()),
    ] {
        for more in [" ", "\n", "é", "\"", "{", "<", "["] {
            let mut parser = Parser::new(format, "").in_pieces();
            parser.push(&begin, &mut |_| {});
            for _ in 0..5000 {
                parser.push(more, &mut |_| {});
                assert!(parser.held.len() < 2048, "{begin} {more:?}");
            }
        }
    }
}
