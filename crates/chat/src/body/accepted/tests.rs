//! Conversations that templates refuse, or of which they leave something out: templates of our own, each with a habit of published ones,
//! and the published ones themselves where the folder of them is there.

use alight_formats::gguf::{self, write::Builder};
use alight_text::{Style, Vocabulary};
use serde_json::json;

use super::*;

/// A vocabulary of bytes with this chat template.
fn vocabulary(template: &str) -> Vocabulary {
    let mut tokens = vec!["<unk>".to_owned(), "<s>".into(), "</s>".into()];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    // Two families are known by these.
    let more = ["<|channel|>", "<|message|>", "<|channel>", "<channel|>"];
    let more = more.iter().filter(|token| template.contains(**token));
    tokens.extend(more.map(|token| (*token).to_owned()));
    let types: Vec<i32> =
        (0..tokens.len()).map(|id| if id < 259 { [2, 3, 3, 6][id.min(3)] } else { 4 }).collect();
    let mut header = Builder::new();
    header.str("tokenizer.ggml.model", "llama");
    header.f32s("tokenizer.ggml.scores", &vec![0.0; tokens.len()]);
    header.i32s("tokenizer.ggml.token_type", &types);
    header.strs("tokenizer.ggml.tokens", &tokens);
    header.bool("tokenizer.ggml.add_bos_token", false);
    header.str("tokenizer.chat_template", template);
    Vocabulary::from_gguf(&gguf::parse(&header.header()).unwrap()).unwrap()
}

fn variables(more: Value) -> Map<String, Value> {
    let mut context = Map::from_iter([("add_generation_prompt".to_owned(), true.into())]);
    context.extend(more.as_object().unwrap().clone());
    context
}

/// The messages with which a template takes a conversation, its prompt, and the sentences about them.
fn taken(
    vocabulary: &Vocabulary,
    messages: &[Value],
    more: Value,
) -> Result<(Vec<Value>, String, Vec<&'static str>), PromptError> {
    let encoder = Encoder::new(vocabulary, Style::Chat, false);
    let (context, messages) = (variables(more), messages.to_vec());
    let mut search = Search::new(&encoder, context, messages);
    let mut notes = search.probe()?;
    let rendered = match encoder.render(search.whole()) {
        Err(PromptError::Chat(_)) if search.refuses_tools() => {
            let without = json!({"tools": null});
            return taken(vocabulary, &search.messages, without);
        }
        Err(PromptError::Chat(error)) => {
            search.run(error)?;
            encoder.render(search.whole())?
        }
        rendered => rendered?,
    };
    for rule in search.rules.iter().filter(|rule| search.has_effect(rule)) {
        if !notes.contains(&rule.change.sentence()) {
            notes.push(rule.change.sentence());
        }
    }
    Ok((changed(&search.messages, &search.rules), rendered, notes))
}

/// Writes every message, tools, calls and results.
const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}\
    {{ m.content or '' }}{% for c in m.tool_calls or [] %}<call {{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}>\
    {% endfor %}{{ '\\n' }}{% endfor %}{# tools <tool_call> #}";

/// Puts a check of each message in front.
fn with_check(check: &str) -> String {
    format!("{{% for m in messages %}}{check}{{% endfor %}}{PLAIN}")
}

fn refusing(condition: &str) -> String {
    with_check(&format!("{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"))
}

/// Roles must alternate, except for calls and results; ids have nine characters.
fn alternating() -> String {
    format!(
        "{{% set ns = namespace(n=0) %}}\
         {{% for m in messages %}}{{% if not (loop.first and m.role == 'system') %}}\
         {{% if m.role != 'tool' and not m.tool_calls %}}\
         {{% if (m.role == 'user') != (ns.n % 2 == 0) %}}{{{{ raise_exception('roles alternate') }}}}{{% endif %}}\
         {{% set ns.n = ns.n + 1 %}}{{% endif %}}\
         {{% for c in m.tool_calls or [] %}}{{% if c.id is not defined or c.id | length != 9 %}}{{{{ raise_exception('nine') }}}}{{% endif %}}\
         {{% endfor %}}\
         {{% if m.role == 'tool' and m.tool_call_id | length != 9 %}}{{{{ raise_exception('nine') }}}}{{% endif %}}\
         {{% endif %}}{{% endfor %}}{PLAIN}"
    )
}

/// No system message, no tools, and roles alternate strictly: Gemma 2.
const STRICT: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
    {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}\
    <{{ m.role }}>{{ m.content }}\n{% endfor %}";

fn call_of(id: &str, name: &str, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

fn calls_of(text: &str, calls: &[Value]) -> Value {
    json!({"role": "assistant", "content": text, "tool_calls": calls})
}

fn result_of(id: &str, text: &str) -> Value {
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

/// The prompt of messages and the sentences.
fn prompt(template: &str, messages: &[Value]) -> (String, Vec<&'static str>) {
    let (_, prompt, notes) = taken(&vocabulary(template), messages, json!({})).unwrap();
    (prompt, notes)
}

#[test]
fn a_conversation_that_is_taken_stays_as_it_is() {
    let call = call_of("1", "f", json!({"a": 1}));
    let messages = [system("s"), user("a"), calls_of("b", &[call]), result_of("1", "c"), user("d")];
    let (messages_taken, _, notes) = taken(&vocabulary(PLAIN), &messages, json!({})).unwrap();
    assert_eq!((&messages_taken[..], notes), (&messages[..], vec![]));
}

#[test]
fn each_refusal_has_its_smallest_change() {
    let call = |id: &str| call_of(id, "f", json!({"a": 1}));
    let thought = json!({"role": "assistant", "content": "t", "reasoning_content": "r", "tool_calls": [call("1")]});
    let later = "m.role == 'system' and not loop.first";
    for (template, messages, wanted, notes) in [
        (
            refusing("(m.tool_calls or []) | length > 1"),
            vec![
                user("a"),
                calls_of("b", &[call("1"), call("2")]),
                result_of("2", "c"),
                result_of("1", "d"),
            ],
            "<user>a\n<assistant>b<call 1 f {\"a\": 1}>\n<tool>d\n<assistant><call 2 f {\"a\": 1}>\n<tool>c\n",
            vec!["each call has a message of its own"],
        ),
        (
            refusing("m.tool_calls and m.tool_calls[0].function.arguments is string"),
            vec![user("a"), calls_of("", &[call_of("1", "f", json!("{\"b"))])],
            "<user>a\n<assistant><call 1 f {\"arguments\": \"{\\\"b\"}>\n",
            vec!["arguments that are no JSON object are the value of one"],
        ),
        (
            refusing("m.tool_calls and m.tool_calls[0].function.arguments is mapping"),
            vec![user("a"), calls_of("", &[call("1")])],
            "<user>a\n<assistant><call 1 f \"{\\\"a\\\": 1}\">\n",
            vec!["arguments of calls are text"],
        ),
        (
            refusing("m.tool_calls and m.content is not none"),
            vec![user("a"), calls_of("", &[call("1")])],
            "<user>a\n<assistant><call 1 f {\"a\": 1}>\n",
            vec!["the content of a message with calls is null"],
        ),
        (
            refusing("m.tool_calls and m.content and m.reasoning_content"),
            vec![user("a"), thought.clone()],
            "<user>a\n<assistant>[r\n\nt]<call 1 f {\"a\": 1}>\n",
            vec!["the text before a call is part of the thinking"],
        ),
        (
            refusing("m.reasoning_content"),
            vec![user("a"), thought],
            "<user>a\n<assistant>t<call 1 f {\"a\": 1}>\n",
            vec!["the thinking of a message is left out"],
        ),
        (
            refusing("m.role == 'assistant' and m.content == '' and not m.tool_calls"),
            vec![user("a"), answer(""), user("b")],
            "<user>a\n<assistant> \n<user>b\n",
            vec!["an empty answer is a blank"],
        ),
        (
            refusing(later),
            vec![system("s"), user("a"), answer("b"), system("t"), user("c")],
            "<system>s\n<user>a\n<assistant>b\n<user>t\n<user>c\n",
            vec!["a later system message is the user's"],
        ),
        (
            refusing("m.role == 'tool' and loop.index0 == 1"),
            vec![user("a"), result_of("1", "b"), user("c")],
            "<user>a\n<user><tool_response>\nb\n</tool_response>\n<user>c\n",
            vec!["the result of a call is the user's"],
        ),
        (
            refusing("loop.first and m.role == 'assistant'"),
            vec![answer("a"), user("b")],
            "<user>\n<assistant>a\n<user>b\n",
            vec!["an empty message of the user's stands before the first answer"],
        ),
        (
            alternating(),
            vec![user("a"), user("b"), answer("c"), user("d")],
            "<user>a\n\nb\n<assistant>c\n<user>d\n",
            vec!["messages of one role that follow one another are one"],
        ),
    ] {
        let (prompt, found) = prompt(&template, &messages);
        assert_eq!((&*prompt, found), (wanted, notes), "{messages:?}");
    }
}

#[test]
fn changes_are_combined_where_one_is_not_enough() {
    // Ids, and a result before the user's message.
    let call = call_of("call_of_openai", "f", json!({}));
    let messages = [user("a"), calls_of("", &[call]), result_of("call_of_openai", "b"), user("c")];
    let (messages, _, notes) = taken(&vocabulary(&alternating()), &messages, json!({})).unwrap();
    assert_eq!(
        notes,
        [
            "ids of calls have nine characters",
            "an empty answer stands between a result and the user's message"
        ]
    );
    let id = messages[1]["tool_calls"][0]["id"].as_str().unwrap();
    assert_eq!(
        (id.len(), &messages[2]["tool_call_id"], &messages[3]),
        (9, &json!(id), &answer(""))
    );
    assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");

    // Two small changes are less than one that rewrites calls.
    let template = with_check(
        "{% if m.role == 'assistant' and m.content == '' and not m.tool_calls %}{{ raise_exception('no') }}{% endif %}",
    );
    let template = template.replace(PLAIN, &alternating());
    let call = call_of("Zqid00001", "f", json!({}));
    let messages = [user("a"), calls_of("", &[call]), result_of("Zqid00001", "b"), user("c")];
    let (messages, _, _) = taken(&vocabulary(&template), &messages, json!({})).unwrap();
    assert_eq!((messages.len(), &messages[3]), (5, &answer(" ")));

    // No role but two, which alternate.
    let call = call_of("1", "f", json!({"a": 1}));
    let messages = [system("s"), user("a"), calls_of("", &[call]), result_of("1", "b"), user("c")];
    let (prompt, _) = prompt(STRICT, &messages);
    let written = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    let wanted = format!(
        "<user>s\n\na\n<assistant>{written}\n<user><tool_response>\nb\n</tool_response>\n\nc\n"
    );
    assert_eq!(prompt, wanted);
}

#[test]
fn what_is_left_out_without_an_error_is_shown() {
    let call = |id: &str, name: &str| call_of(id, name, json!({"a": 1}));
    // Only the first call of a message; no system message after the first; no text before calls; calls only without text.
    let first = PLAIN.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]");
    let systems =
        PLAIN.replace("messages %}", "messages if m.role != 'system' or m == messages[0] %}");
    let text = PLAIN.replace("m.content or ''", "'' if m.tool_calls else m.content");
    let null =
        PLAIN.replace("m.tool_calls or []", "((m.tool_calls or []) if m.content is none else [])");
    for (template, messages, wanted, note) in [
        (
            first,
            vec![
                user("a"),
                calls_of("", &[call("1", "f"), call("2", "g")]),
                result_of("1", "b"),
                result_of("2", "c"),
            ],
            "<user>a\n<assistant><call 1 f {\"a\": 1}>\n<tool>b\n<assistant><call 2 g {\"a\": 1}>\n<tool>c\n",
            "each call has a message of its own",
        ),
        (
            systems,
            vec![system("s"), user("a"), answer("b"), system("t"), user("c")],
            "<system>s\n<user>a\n<assistant>b\n<user>t\n<user>c\n",
            "a later system message is the user's",
        ),
        (
            text,
            vec![user("a"), calls_of("b", &[call("1", "f")]), result_of("1", "c")],
            "<user>a\n<assistant>b\n<assistant><call 1 f {\"a\": 1}>\n<tool>c\n",
            "the text before a call is a message of its own",
        ),
        (
            null,
            vec![user("a"), calls_of("", &[call("1", "f")]), result_of("1", "c")],
            "<user>a\n<assistant><call 1 f {\"a\": 1}>\n<tool>c\n",
            "the content of a message with calls is null",
        ),
    ] {
        let (prompt, notes) = prompt(&template, &messages);
        assert_eq!((&*prompt, notes), (wanted, vec![note]), "{template}");
    }
    // Two changes are needed for one thing: DeepSeek R1's.
    let null = "{% for m in messages %}<{{ m.role }}>{% if m.content is none %}{{ m.tool_calls[0].function.arguments + '!' }}\
        {% else %}{{ m.content }}{% endif %}{% endfor %}{# tools <tool_call> #}";
    let messages = [user("a"), calls_of("", &[call("1", "f")]), result_of("1", "c")];
    assert_eq!(prompt(null, &messages).0, "<user>a<assistant>{\"a\": 1}!<tool>c");
    // Nothing helps: it is reported.
    let none = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}{# tools <tool_call> #}";
    let messages = [system("s"), user("a")];
    let (prompt, notes) = prompt(none, &messages);
    assert_eq!((&*prompt, notes), ("sa", vec!["the system message is the user's"]));
    let last = "{{ messages[-1].content }}{# tools <tool_call> #}";
    let (_, _, notes) = taken(&vocabulary(last), &messages, json!({})).unwrap();
    assert_eq!(notes, ["the template leaves out the system message"]);
}

#[test]
fn an_error_that_nothing_mends_is_that_of_the_conversation() {
    let template = refusing("m.content == 'never'");
    let error = taken(&vocabulary(&template), &[user("never")], json!({})).unwrap_err();
    assert_eq!(error, PromptError::Chat(ChatError::Refused { message: "no".into() }));
}

#[test]
fn what_a_long_conversation_needs_is_not_sought_for_long() {
    let vocabulary = vocabulary(&refusing("'never' in m.content"));
    let encoder = Encoder::new(&vocabulary, Style::Chat, false);
    let messages = [user("a"), answer("b"), system("c"), user("never")];
    let once = messages.iter().map(cost).sum::<usize>() + 2 * VALUE_COST;
    let renderings = |max_rendered: usize| {
        let mut search = Search::new(&encoder, variables(json!({})), messages.to_vec());
        search.max_rendered = max_rendered;
        let Err(PromptError::Chat(error)) = encoder.render(search.whole()) else { panic!() };
        assert_eq!(search.run(error.clone()), Err(PromptError::Chat(error)));
        search.trials
    };
    let (unlimited, limited) = (renderings(usize::MAX), renderings(3 * once));
    assert!(limited < 10 && unlimited > limited, "{limited} of {unlimited}");
}

#[test]
fn tools_that_a_template_cannot_show_are_described_in_words() {
    let fails = format!("{{% if tools %}}{{{{ tools.missing.name }}}}{{% endif %}}{PLAIN}");
    let plain = PLAIN.replace("tools <tool_call>", "");
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "Does it."}}]);
    let calls =
        [user("a"), calls_of("b", &[call_of("1", "f", json!({"a": 1}))]), result_of("1", "c")];
    for (template, in_words) in [(&*fails, true), (&*plain, true), (PLAIN, false)] {
        let vocabulary = vocabulary(template);
        let encoder = Encoder::new(&vocabulary, Style::Chat, false);
        let prompt = |messages: &[Value]| {
            let mut context = variables(json!({"tools": tools}));
            context.insert("messages".to_owned(), messages.into());
            let encoded = super::super::conversation::encode(&encoder, context).unwrap();
            assert_eq!(encoded.tools_in_words, in_words, "{template}");
            let text = vocabulary.tokenizer.decode(&encoded.tokens).replace('\u{2581}', " ");
            text.trim_start().to_owned()
        };
        let texts =
            [prompt(&calls[..1]), prompt(&calls), prompt(&[&[system("s")], &calls[..1]].concat())];
        let described = "{\"name\": \"f\", \"description\": \"Does it.\"}\n\nTo call";
        assert_eq!(texts[0].contains(described), in_words, "{}", texts[0]);
        let example =
            "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"KEY\": \"VALUE\"}}\n</tool_call>";
        assert_eq!(texts[0].contains(example), in_words, "{}", texts[0]);
        // The next request begins with the prompt of the one before.
        assert!(texts[1].starts_with(&texts[0]), "{texts:?}");
        assert!(!in_words || texts[2].starts_with("<system>s\n\nYou can call"), "{}", texts[2]);
        // A notation that is not known is not used for the calls.
        let written = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert_eq!(texts[1].contains(written), template == plain, "{}", texts[1]);
    }
}

#[test]
fn a_template_that_iterates_over_tools_gets_an_empty_list_where_there_are_none() {
    let needs = format!("{{% for t in tools %}}{{{{ t.function.name }}}}{{% endfor %}}{PLAIN}");
    for (template, more, note) in [
        (&*needs, json!({}), true),
        (&*needs, json!({"tools": null}), true),
        (&*needs, json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), false),
        (PLAIN, json!({}), false),
    ] {
        let vocabulary = vocabulary(template);
        let encoder = Encoder::new(&vocabulary, Style::Chat, false);
        let mut context = variables(more.clone());
        context.insert("messages".to_owned(), json!([user("a")]));
        let encoded = encode(&encoder, context).unwrap();
        assert_eq!(encoded.notes.contains(&EMPTY_LIST), note, "{template} {more}");
        assert!(!encoded.tools_in_words);
        let text = vocabulary.tokenizer.decode(&encoded.tokens).replace('\u{2581}', " ");
        assert!(text.trim_start().ends_with("<user>a\n"), "{text}");
    }
}

/// Numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A conversation as agents have them: with calls, results, later system messages, two messages of one role, thinking.
fn conversation(numbers: &mut Numbers) -> Vec<Value> {
    let mut all = Vec::new();
    if numbers.below(2) == 0 {
        all.push(system("Be kind."));
    }
    all.push(user("Question 0"));
    for turn in 1..2 + numbers.below(6) {
        let mut own = answer(if numbers.below(4) == 0 { "" } else { "Text." });
        if numbers.below(3) == 0 {
            own["reasoning_content"] = "Thought.".into();
            own["thinking"] = "Thought.".into();
        }
        let count = numbers.below(3);
        if count == 0 {
            all.push(own);
        } else {
            let id = |i: u64| match turn % 2 {
                0 => format!("call_{turn}_{i}_of_some_client"),
                _ => format!("Call{turn:04}{i}"),
            };
            let arguments = |numbers: &mut Numbers| match numbers.below(8) {
                0 => json!("{\"cut"),
                _ => json!({"path": "a.rs", "n": 3}),
            };
            let calls: Vec<Value> =
                (0..count).map(|i| call_of(&id(i), "read", arguments(numbers))).collect();
            own["tool_calls"] = calls.into();
            all.push(own);
            all.extend((0..count).map(|i| result_of(&id(i), "Result.")));
        }
        match numbers.below(5) {
            0 => all.push(system("A reminder.")),
            1 => all.push(user("One more.")),
            _ => {}
        }
        if count == 0 || numbers.below(3) == 0 {
            all.push(user(&format!("Question {turn}")));
        }
    }
    all
}

/// Checks that a template takes conversations, and each beginning of one with the same changes as the whole.
fn keeps_beginnings(name: &str, template: &str, more: &Value, refused: &mut Vec<String>) -> usize {
    let vocabulary = vocabulary(template);
    let mut changed = 0;
    for seed in 0..24 {
        let messages = conversation(&mut Numbers(seed * 77 + 5));
        let whole = match taken(&vocabulary, &messages, more.clone()) {
            Ok(whole) => whole,
            Err(error) => {
                refused.push(format!("{name} {seed}: {error}"));
                continue;
            }
        };
        changed += usize::from(!whole.2.is_empty());
        for cut in cuts(&messages) {
            let Ok(begun) = taken(&vocabulary, &messages[..cut], more.clone()) else { continue };
            let same = whole.0.iter().zip(&begun.0).take_while(|(a, b)| a == b).count();
            assert_eq!(same, begun.0.len(), "{name} {seed} {cut}: {:?} {:?}", begun.2, whole.2);
        }
    }
    changed
}

#[test]
fn the_beginning_of_a_conversation_keeps_its_changes() {
    let one = refusing("(m.tool_calls or []) | length > 1");
    let both = refusing("m.tool_calls and m.content and m.thinking");
    for (name, template) in [
        ("plain", PLAIN.to_owned()),
        ("alternating", alternating()),
        ("strict", STRICT.to_owned()),
        ("one call", one),
        ("both", both),
        ("objects", refusing("m.tool_calls and m.tool_calls[0].function.arguments is string")),
        ("texts", refusing("m.tool_calls and m.tool_calls[0].function.arguments is mapping")),
        ("later", refusing("m.role == 'system' and not loop.first")),
    ] {
        let mut refused = Vec::new();
        let changed = keeps_beginnings(name, &template, &json!({}), &mut refused);
        assert_eq!(refused, [""; 0], "{name}");
        assert_eq!(changed > 0, name != "plain", "{name}");
    }
}

/// The same for the templates in the folder that `ALIGHT_TEMPLATES` names (llama.cpp's `models/templates`), if it does.
#[test]
fn published_templates_keep_beginnings() {
    let Some(folder) = std::env::var_os("ALIGHT_TEMPLATES") else { return };
    let tools = json!([{"type": "function", "function": {"name": "read", "description": "Reads a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "Its path."},
            "n": {"type": "integer", "description": "The first line."}}, "required": ["path"]}}}]);
    let (mut found, mut refused) = (0, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "jinja") {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let template = std::fs::read_to_string(&path).unwrap();
        let changed = keeps_beginnings(&name, &template, &json!({"tools": tools}), &mut refused);
        let messages = conversation(&mut Numbers(8));
        let notes =
            taken(&vocabulary(&template), &messages, json!({"tools": tools})).map(|taken| taken.2);
        println!("{name}: {changed} of 24 changed, {notes:?}");
        found += 1;
    }
    assert!(found > 60, "{found} templates are in the folder");
    // It wants the tools in a variable of its own.
    refused.retain(|refusal| !refusal.contains("firefunction"));
    assert_eq!(refused, [""; 0]);
}
