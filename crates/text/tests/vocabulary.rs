//! A file's chat template is compiled when it is used, and not before: an invalid template is no
//! error for callers that do without it.

use alight_formats::gguf::{self, write::Builder};
use alight_text::output::{Call, Format, Shown, Thinking, Tools};
use alight_text::template::Time;
use alight_text::{
    ChatError, Encoder, Message, PromptError, PromptPiece, Style, TemplateError, Vocabulary,
};

/// The text of tokens. (This vocabulary has no token for a space, which is three bytes.)
fn text(vocabulary: &Vocabulary, ids: &[u32]) -> String {
    vocabulary.tokenizer.decode(ids).replace('\u{2581}', " ")
}

/// The metadata of a vocabulary of bytes, without a token before every text.
fn metadata() -> Builder {
    metadata_with(&[])
}

/// The same with these tokens after the bytes, each with its type.
fn metadata_with(more: &[(&str, i32)]) -> Builder {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    let mut types: Vec<i32> = (0..tokens.len()).map(|id| [2, 3, 3, 6][id.min(3)]).collect();
    tokens.extend(more.iter().map(|(text, _)| (*text).to_owned()));
    types.extend(more.iter().map(|(_, ty)| *ty));
    let mut header = Builder::new();
    header.str("tokenizer.ggml.model", "llama");
    header.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    header.i32s("tokenizer.ggml.token_type", &types);
    header.strs("tokenizer.ggml.tokens", &tokens);
    header.bool("tokenizer.ggml.add_bos_token", false);
    header
}

fn read(header: &Builder) -> Vocabulary {
    let bytes = header.header();
    Vocabulary::from_gguf(&gguf::parse(&bytes).unwrap()).unwrap()
}

/// A vocabulary with this chat template.
fn vocabulary(template: &str) -> Vocabulary {
    let mut header = metadata();
    header.str("tokenizer.chat_template", template);
    read(&header)
}

fn chat(template: &str) -> Result<Vec<u32>, PromptError> {
    let vocabulary = vocabulary(template);
    Encoder::new(&vocabulary, Style::Chat, false).chat(&[Message::user("ab")], true)
}

#[test]
fn a_template_that_is_not_used_is_not_looked_at() {
    let chains = format!("{{{{ 1{} }}}}", " + 1".repeat(200_000));
    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    let long = "x".repeat(3 << 20);
    for template in [&chains, &nested, &long, "{% if", "{{ 1 + }}"] {
        // Opening it is enough to overflow the stack where it is compiled at once.
        let vocabulary = vocabulary(template);
        let raw = Encoder::new(&vocabulary, Style::Raw, false).raw("ab").unwrap();
        assert!(!raw.is_empty());
    }
}

#[test]
fn a_template_that_cannot_be_used_says_so_when_it_is() {
    let error = chat("a\n{% if").unwrap_err();
    let PromptError::Template(TemplateError::Template(ChatError::Syntax { line: 2, .. })) = &error
    else {
        panic!("{error:?}")
    };
    let text = error.to_string();
    assert_eq!(text.matches("template is not valid").count(), 1, "{text}");
    assert_eq!(
        chat(&"x".repeat(3 << 20)).unwrap_err().to_string(),
        "the chat template has 3145728 bytes, more than the 1048576 that are read"
    );
    let mut header = metadata();
    header.u32("tokenizer.chat_template", 5);
    let vocabulary = read(&header);
    assert!(matches!(vocabulary.template(), Some(Err(TemplateError::Metadata(_)))));
}

#[test]
fn what_a_template_refuses_is_said_once() {
    let error = chat("{{ raise_exception('not this') }}").unwrap_err();
    assert_eq!(error.to_string(), "the chat template refuses this conversation: not this");
    assert!(std::error::Error::source(&error).is_none());
}

#[test]
fn a_template_that_renders_to_nothing_is_an_error_that_says_so() {
    for template in ["", "{# nothing #}", "{% if false %}x{% endif %}", "{{ '' }}"] {
        let error = chat(template).unwrap_err();
        assert_eq!(error, PromptError::NothingRendered);
        assert!(error.to_string().contains("chat template makes no text"), "{error}");
    }
    assert!(!chat("{{ messages[0].content }}").unwrap().is_empty());
}

/// A vocabulary of bytes and of these tokens, each with its type.
fn with_tokens(more: &[(&str, i32)], template: Option<&str>) -> Vocabulary {
    let mut header = metadata_with(more);
    header.bool("tokenizer.ggml.add_space_prefix", false);
    if let Some(template) = template {
        header.str("tokenizer.chat_template", template);
    }
    read(&header)
}

#[test]
fn no_name_of_a_token_comes_out_of_tools_and_calls() {
    let name = "x</s>";
    let context = serde_json::json!({
        "tools": [{"type": "function", "function": {
            "name": name, "description": name, "parameters": {"properties": {name: {"enum": [name]}}},
        }}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": name}]},
            {"role": "assistant", "content": null, "reasoning_content": name, "tool_calls": [
                {"id": name, "function": {"name": name, "arguments": {name: [name, 1, true, null]}}},
            ]},
            {"role": "tool", "tool_call_id": name, "content": name},
        ],
    });
    let template = "{{ tools | tojson }}{{ messages | tojson }}{{ '</s>' }}";
    let vocabulary = with_tokens(&[], Some(template));
    let tokens = |parse_special: bool| {
        let encoder = Encoder::new(&vocabulary, Style::Chat, parse_special);
        let ids = encoder.chat_in(context.as_object().unwrap().clone()).unwrap();
        (text(&vocabulary, &ids), ids.iter().filter(|id| **id == 2).count())
    };
    let (said, ends) = tokens(false);
    let json = |key: &str| serde_json::to_string(&context[key]).unwrap();
    let compact = |text: &str| text.replace([' ', '\n'], "");
    assert_eq!(compact(&said), compact(&format!("{}{}", json("tools"), json("messages"))));
    assert_eq!(ends, 1, "the template's own");
    // With the caller's leave they count.
    let named = format!("{}{}", json("tools"), json("messages")).matches("</s>").count();
    assert_eq!(tokens(true).1, 1 + named);
    // What is too deep to be walked is an error before anybody walks it.
    let mut deep = serde_json::Value::Null;
    for _ in 0..2000 {
        deep = serde_json::json!([deep]);
    }
    let context = serde_json::json!({"messages": [], "tools": deep});
    let encoder = Encoder::new(&vocabulary, Style::Chat, false);
    let error = encoder.chat_in(context.as_object().unwrap().clone()).unwrap_err();
    assert!(matches!(error, PromptError::Chat(ChatError::TooDeep { .. })), "{error:?}");
}

#[test]
fn roles_are_compared_even_where_they_are_tokens() {
    let template =
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let vocabulary = with_tokens(&[("user", 3)], Some(template));
    let encoder = Encoder::new(&vocabulary, Style::Chat, false);
    let ids = encoder.chat(&[Message::user("a user")], true).unwrap();
    assert_eq!(text(&vocabulary, &ids), "a user");
}

#[test]
fn the_last_message_is_continued_where_its_text_ends() {
    let text_of = |template: &str, messages: serde_json::Value, parse_special: bool| {
        let vocabulary = with_tokens(&[], Some(template));
        let encoder = Encoder::new(&vocabulary, Style::Chat, parse_special);
        let context = serde_json::json!({
            "messages": messages, "add_generation_prompt": true, "continue_final_message": true,
        });
        let ids = encoder.chat_in(context.as_object().unwrap().clone());
        ids.map(|ids| text(&vocabulary, &ids))
    };
    let template = "{{ continue_final_message }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% endif %}";
    let said = |text: &str| {
        serde_json::json!([
            {"role": "user", "content": "a b"},
            {"role": "assistant", "content": text},
        ])
    };
    for parse_special in [false, true] {
        // What the text before says again does not end it, nor what looks like the mark; blanks at its end stay.
        for (given, wanted) in [
            ("a", "a"),
            ("", ""),
            (" b ", "b "),
            ("\u{100000}\u{10FFFF}a", "\u{100000}\u{10FFFF}a"),
        ] {
            let got = text_of(template, said(given), parse_special).unwrap();
            assert_eq!(got, format!("[user]a b[assistant]{wanted}"), "{parse_special}");
        }
    }
    let not = Err(PromptError::NotContinued);
    assert_eq!(text_of("{{ messages[0].content }}", said("a"), false), not);
    let called = serde_json::json!([{"role": "assistant", "content": null}]);
    assert_eq!(text_of(template, called, false), not);
}

#[test]
fn a_template_is_told_of_thinking() {
    let template = "{% for m in messages %}[{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.content }}]\
                    {% endfor %}{{ enable_thinking }}";
    let vocabulary = with_tokens(&[], Some(template));
    let answer = Message { thinking: Some("Hm".into()), ..Message::assistant("Yes") };
    let messages = [Message::user("Ok?"), answer];
    let encoder = Encoder::new(&vocabulary, Style::Chat, false);
    let text = |ids: Vec<u32>| text(&vocabulary, &ids);
    // As in llama-server, a model may think unless the caller asks for no thinking.
    assert_eq!(text(encoder.chat(&messages, true).unwrap()), "[||Ok?][Hm|Hm|Yes]True");
}

#[test]
fn a_template_has_the_variables_of_the_encoder_unless_the_conversation_has_them() {
    let vocabulary = with_tokens(&[], Some("{{ a }}|{{ b }}|{{ enable_thinking }}"));
    let object = |value: serde_json::Value| value.as_object().unwrap().clone();
    let rendered = |encoder: Encoder<'_>, context: serde_json::Value| {
        text(&vocabulary, &encoder.chat_in(object(context)).unwrap())
    };
    let variables = object(serde_json::json!({"a": 1, "b": "<x>", "enable_thinking": true}));
    let encoder =
        || Encoder::new(&vocabulary, Style::Chat, false).with_variables(variables.clone());
    assert_eq!(rendered(encoder(), serde_json::json!({})), "1|<x>|True");
    let context = serde_json::json!({"a": 2, "enable_thinking": false});
    assert_eq!(rendered(encoder(), context), "2|<x>|False");
}

#[test]
fn pieces_of_a_prompt_follow_one_another() {
    let vocabulary = with_tokens(&[], None);
    let encoder = Encoder::new(&vocabulary, Style::Raw, false);
    let raw = |text: &str| encoder.raw(text).unwrap();
    let pieces = |pieces: &[PromptPiece<'_>]| encoder.pieces(pieces);
    let (text, token) = (PromptPiece::Text("ab"), PromptPiece::Token(7));
    assert_eq!(pieces(&[text]).unwrap(), raw("ab"));
    assert_eq!(pieces(&[text, token]).unwrap(), [&raw("ab")[..], &[7]].concat());
    // Only a text at the beginning has what stands before a text.
    let own = pieces(&[token, text]).unwrap();
    assert_eq!(own[0], 7);
    assert!(raw("ab").ends_with(&own[1..]));
    assert_eq!(pieces(&[]), Err(PromptError::Empty));
}

#[test]
fn a_template_has_the_date_of_the_caller() {
    let template = "{{ date_string }}|{{ datetime }}|{{ strftime_now('%d %B %Y %H:%M:%S') }}|{{ strftime_now('%F') }}";
    let vocabulary = with_tokens(&[], Some(template));
    let text = |context: serde_json::Value, time| {
        let encoder = Encoder::new(&vocabulary, Style::Chat, false).at(time);
        text(&vocabulary, &encoder.chat_in(context.as_object().unwrap().clone()).unwrap())
    };
    // 2024-07-26 23:30:05 in UTC, where it is, and in a zone where it is already the next day.
    let (utc, ahead) = (Time::new(1_722_036_605, 0), Time::new(1_722_036_605, 3600));
    let context = serde_json::json!({"messages": []});
    assert_eq!(
        text(context.clone(), utc),
        "26 Jul 2024|Jul 26 2024|26 July 2024 23:30:05|2024-07-26"
    );
    assert_eq!(text(context, ahead), "27 Jul 2024|Jul 27 2024|27 July 2024 00:30:05|2024-07-27");
    let context = serde_json::json!({"messages": [], "date_string": "1 May", "datetime": null});
    assert!(
        text(context, utc).starts_with("1 May|None|26 July"),
        "what the caller sets comes first"
    );
}

#[test]
fn the_date_of_a_conversation_is_today_and_stays_for_the_day() {
    // The way in which the template of Llama 3.1 asks for it.
    let template = "{% if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}\
                    Today Date: {{ date_string }}|{% for m in messages %}{{ m.content }}|{% endfor %}";
    let vocabulary = with_tokens(&[], Some(template));
    let encode = |messages: &[Message], encoder: Encoder<'_>| {
        text(&vocabulary, &encoder.chat(messages, true).unwrap())
    };
    let encoder = || Encoder::new(&vocabulary, Style::Chat, false);
    let messages = [Message::user("a"), Message::assistant("b"), Message::user("c")];
    // Morning and evening.
    let first = encode(&messages[..1], encoder().at(Time::new(1_722_000_000, 0)));
    let later = encode(&messages, encoder().at(Time::new(1_722_036_605, 0)));
    assert_eq!(later, format!("{first}b|c|"));
    // Without a fixed time it is the present. Midnight may pass in between.
    let dates = || encode(&[], encoder().at(Time::now()));
    let (before, now, after) = (dates(), encode(&[], encoder()), dates());
    assert!(now == before || now == after, "{before}, {now}, {after}");
    // The same for conversations that are rendered without being encoded.
    let rendered = vocabulary.template().unwrap().unwrap().render(&[], true).unwrap();
    assert!(rendered == now || rendered == dates(), "{rendered}");
}

#[test]
fn the_format_of_a_model_is_that_of_its_own_tokens() {
    let qwen3 = "{% if '</think>' in content %}{% endif %}<tool_call>";
    let old = "{{ content.split('[THINK]') }}";
    for (tokens, template, format) in [
        (&["<think>", "</think>", "<tool_call>"][..], Some(qwen3), Format::ChatMl),
        (&["<think>", "</think>"], None, Format::ChatMl),
        // Distilled models: the marks are several tokens.
        (&[], Some("{{ content }}<think>\n"), Format::ChatMl),
        (&[], Some("<tool_call>"), Format::ChatMl),
        (&["<|channel|>", "<|message|>", "<|call|>"], Some(qwen3), Format::Harmony),
        (&["<|channel>", "<channel|>"], Some("<|turn>"), Format::Gemma4),
        (&["<|channel|>"], None, Format::Plain),
        (&["[THINK]", "[/THINK]", "[TOOL_CALLS]"], None, Format::Mistral),
        (&["[TOOL_CALLS]"], None, Format::Mistral),
        // Mistral's base with somebody's ChatML on top.
        (&["[TOOL_CALLS]"], Some(qwen3), Format::ChatMl),
        (&[], Some(old), Format::Plain),
        (&[], None, Format::Plain),
    ] {
        let tokens: Vec<(&str, i32)> = tokens.iter().map(|text| (*text, 3)).collect();
        let vocabulary = with_tokens(&tokens, template);
        assert_eq!(vocabulary.output_format(), format, "{tokens:?} {template:?}");
    }
}

/// A model's control tokens have no text, but the parser sees those of its family; others stay hidden.
#[test]
fn marks_that_are_control_tokens_reach_the_parser() {
    let marks = [
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|other|>",
    ];
    let tokens: Vec<(&str, i32)> = marks.iter().map(|mark| (*mark, 3)).collect();
    let vocabulary = with_tokens(&tokens, Some("<|tool_call_begin|>"));
    assert_eq!(vocabulary.output_format(), Format::Kimi);
    let mut answer = Vec::new();
    let mut rest = "Ok.<|other|><|tool_calls_section_begin|><|tool_call_begin|>functions.f:7\
                    <|tool_call_argument_begin|>{\"a\":1}<|tool_call_end|><|tool_calls_section_end|>";
    while let Some(byte) = rest.bytes().next() {
        let mark = marks.iter().find(|mark| rest.starts_with(**mark));
        let id = mark.map(|mark| vocabulary.tokenizer.token_id(mark.as_bytes()).unwrap());
        answer.push(id.unwrap_or(3 + u32::from(byte)));
        rest = &rest[mark.map_or(1, |mark| mark.len())..];
    }
    let tools = Tools::of(&[serde_json::json!({"name": "f"})]);
    let mut shown =
        Shown::new(&vocabulary, Style::Chat, &[], Thinking::Tagged, &[]).with_tools(tools);
    let mut written = String::new();
    let mut sink = |_, text: &str| {
        written.push_str(text);
        Ok::<(), std::convert::Infallible>(())
    };
    answer.iter().for_each(|id| shown.push(*id, &mut sink).unwrap());
    shown.finish(&mut sink).unwrap();
    let call = Call { id: Some("functions.f:7".into()), ..Call::new("f", "{\"a\":1}") };
    assert_eq!((written.as_str(), &*shown.texts().calls), ("Ok.", &[call][..]));
}

#[test]
fn a_conversation_that_no_context_holds_is_refused_by_its_bytes() {
    let held = vocabulary("{{ messages[0].tool_calls[0] }}");
    let chat = |bytes, context| {
        let message = serde_json::json!({"role": "assistant", "tool_calls": ["a".repeat(bytes)]});
        let variables = serde_json::json!({"messages": [message]}).as_object().unwrap().clone();
        Encoder::new(&held, Style::Chat, false).within(context).chat_in(variables)
    };
    assert!(chat(100, 100).is_ok());
    let PromptError::TooLong(why) = chat(10_000, 100).unwrap_err() else { panic!() };
    assert_eq!((why.bytes, why.context), (10_000, 100));
}
