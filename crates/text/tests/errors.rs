//! What a template's failures say, and JSON as Python writes it.

use alight_text::{ChatError, ChatTemplate};

fn render(source: &str, context: serde_json::Value) -> Result<String, ChatError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render_context(context.as_object().unwrap())
}

fn plain(source: &str) -> Result<String, ChatError> {
    render(source, serde_json::json!({}))
}

#[test]
fn json_is_written_as_python_writes_it() {
    let value = serde_json::json!({
        "b": [1, 2.0, 0.1, 1e16, 1e-5, -0.0, null, true, {}, []],
        "a": "é \"q\" \\ \n\u{1}/<>&'",
        "c": {"d": {"e": []}, "f": 12345678901234567890u64},
    });
    let context = serde_json::json!({ "v": value });
    // From Python: json.dumps(v, ensure_ascii=False) and with indent=2, sort_keys=True.
    assert_eq!(
        render("{{ v | tojson }}", context.clone()).unwrap(),
        "{\"b\": [1, 2.0, 0.1, 1e+16, 1e-05, -0.0, null, true, {}, []], \
         \"a\": \"é \\\"q\\\" \\\\ \\n\\u0001/<>&'\", \
         \"c\": {\"d\": {\"e\": []}, \"f\": 12345678901234567890}}"
    );
    assert_eq!(
        render("{{ v.c | tojson(indent=2) }}", context.clone()).unwrap(),
        "{\n  \"d\": {\n    \"e\": []\n  },\n  \"f\": 12345678901234567890\n}"
    );
    assert_eq!(
        render("{{ {'b': 1, 'a': [1]} | tojson(sort_keys=true, separators=(',', ':')) }}", context)
            .unwrap(),
        "{\"a\":[1],\"b\":1}"
    );
}

#[test]
fn a_refusal_is_told_apart_from_a_failure() {
    let refused = plain("{{ raise_exception('only ' ~ 'two') }}");
    assert_eq!(refused, Err(ChatError::Refused { message: "only two".into() }));
    let nested = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert_eq!(plain(nested), Err(ChatError::Refused { message: "deep".into() }));
    let failed = plain("\n{{ 1 + 'a' }}");
    assert!(matches!(failed, Err(ChatError::Failed { line: 2, .. })), "{failed:?}");
    assert!(matches!(plain("\n\n{% if %}"), Err(ChatError::Syntax { line: 3, .. })));
}

/// Every message says its line and each thing once. (The low item of issue 21.)
#[test]
fn messages_say_where_and_say_nothing_twice() {
    for (source, expected) in [
        ("a\n{{ x.y }}", "the chat template fails: 'x' is undefined (line 2 of the template)"),
        (
            "{{ messages.foo.bar }}",
            "the chat template fails: 'messages' is undefined (line 1 of the template)",
        ),
        (
            "{% set d = {} %}\n{{ d.foo.bar }}",
            "the chat template fails: a dictionary has no attribute or key 'foo' (line 2 of the template)",
        ),
        (
            "{{ 1 + 'a' }}",
            "the chat template fails: '+' does not work between an integer and a string (line 1 of the template)",
        ),
        (
            "{% if x %}\n{{ y }}",
            "the chat template is not valid: expected '{% elif %}' or '{% else %}' or '{% endif %}', \
             found the end of the template (line 2 of the template)",
        ),
        (
            "{{ x | nothing }}",
            "the chat template is not valid: there is no filter 'nothing' (line 1 of the template)",
        ),
        (
            "{{ raise_exception('Only\u{1b}[31m two\u{7}') }}",
            "the chat template refuses this conversation: Only\\u{1b}[31m two\\u{7}",
        ),
        (
            "{% for i in range(9) recursive %}{% endfor %}",
            "the chat template is not valid: recursive loops are not supported (line 1 of the template)",
        ),
        (
            "{{ 'x' * 99999999999 }}",
            "the chat template runs for too long: it holds too much text and too many values at once \
             (line 1 of the template)",
        ),
        (
            "{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}",
            "the chat template goes too deep: its macros call each other too deeply (line 2 of the template)",
        ),
    ] {
        // Steps are bytes too: the one with much text may meet either bound first.
        let error = plain(source).unwrap_err().to_string();
        let steps = expected.replace(
            "it holds too much text and too many values at once",
            "it takes too many steps",
        );
        assert!(error == expected || error == steps, "{source}: {error}");
        let words: Vec<&str> = error.split([' ', ':', '(']).filter(|w| !w.is_empty()).collect();
        assert!(words.windows(3).all(|w| w[0] != w[1] && w[..1] != w[2..]), "{error}");
    }
}

#[test]
fn a_source_has_a_limit_and_so_has_the_nesting_of_a_conversation() {
    let long = " ".repeat(alight_text::template::MAX_SOURCE + 1);
    assert!(matches!(ChatTemplate::new(&long, "", ""), Err(ChatError::TooLong { .. })));
    let mut deep = serde_json::json!(1);
    for _ in 0..1000 {
        deep = serde_json::json!([deep]);
    }
    let result = render("x", serde_json::json!({ "messages": deep }));
    assert!(matches!(result, Err(ChatError::TooDeep { line: 0, .. })), "{result:?}");
}

#[test]
fn the_same_template_and_conversation_make_the_same_text() {
    let source =
        "{{ {'b': 1, 'a': 2} }}{{ d }}{{ [3, 1, 2] | sort }}{{ d | tojson }}{{ d | dictsort }}";
    let context = serde_json::json!({ "d": {"z": 1, "y": [1.5, null], "x": {"w": "v"}} });
    let template = ChatTemplate::new(source, "", "").unwrap();
    let first = template.render_context(context.as_object().unwrap()).unwrap();
    for _ in 0..5 {
        assert_eq!(template.render_context(context.as_object().unwrap()).unwrap(), first);
    }
}
