//! Each format's parts, however the text is cut; and that nothing is lost.

use super::{Format, Parser, Part};

/// The spans of `text` fed in pieces of so many characters, neighbours of one part joined.
fn spans(format: Format, prompt: &str, text: &str, piece: usize) -> Vec<(Part, String)> {
    let mut parser = Parser::new(format, prompt);
    let mut spans: Vec<(Part, String)> = Vec::new();
    let mut take = |span: super::Span<'_>| match spans.last_mut() {
        Some((part, raw)) if *part == span.part && !matches!(part, Part::Call(_)) => {
            raw.push_str(span.raw);
        }
        _ => spans.push((span.part, span.raw.to_owned())),
    };
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(piece) {
        parser.push(&piece.iter().collect::<String>(), &mut take);
    }
    parser.finish(&mut take);
    let raw: String = spans.iter().map(|(_, raw)| raw.as_str()).collect();
    assert_eq!(raw, text, "{format:?}");
    spans
}

/// The parts in short: `T:` thinking, `A:` answer, `C:` a call; marks are left out.
fn short(format: Format, prompt: &str, text: &str) -> Vec<String> {
    let whole = spans(format, prompt, text, usize::MAX);
    for piece in [1, 2, 3, 7] {
        assert_eq!(spans(format, prompt, text, piece), whole, "{format:?} {piece} {text:?}");
    }
    let shown = whole.into_iter().filter_map(|(part, raw)| match part {
        Part::Thinking => Some(format!("T:{raw}")),
        Part::Answer => Some(format!("A:{raw}")),
        Part::Call(call) => Some(format!("C:{} {}", call.name, call.arguments)),
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
    // An answer may speak of the marks.
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
    // The end of the text ends a call, too; and the arguments may be a string of JSON.
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
        ["C:f {\"a\": 1}", "C:g {}"]
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
    // Without a header, without an end, arguments that are none.
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
    let pieces: Vec<&str> = Format::ALL.iter().flat_map(|format| format.marks()).copied().collect();
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
    ];
    let mut state = 7u32;
    let mut next = |below: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % below
    };
    for round in 0..4000 {
        let own = Format::ALL[round % 5];
        let mut text = String::new();
        for _ in 0..next(12) + 1 {
            match next(4) {
                0 => text.push_str(pieces[next(pieces.len())]),
                1 if !own.marks().is_empty() => text.push_str(own.marks()[next(own.marks().len())]),
                _ => text.push_str(texts[next(texts.len())]),
            }
        }
        short(own, "", &text);
    }
}
