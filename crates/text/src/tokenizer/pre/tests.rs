//! Cuts made by hand from the expressions, one text at a time. (`python -m evidence agree
//! pretokenizers` compares the ids of whole vocabularies under every name with llama.cpp's.)

use super::Pre;

fn cut(name: &str, text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    Pre::by_name(name).unwrap().split(text, |part| parts.push(part.to_owned()));
    assert_eq!(parts.concat(), text);
    parts
}

/// Each row: the text, cut at `¦`, under each of the names.
fn check(names: &[&str], rows: &[&str]) {
    for row in rows {
        let expected: Vec<&str> = row.split('¦').collect();
        for name in names {
            assert_eq!(cut(name, &row.replace('¦', "")), expected, "{name}");
        }
    }
}

#[test]
fn nothing_is_cut_into_nothing() {
    assert!(cut("gpt-2", "").is_empty() && cut("default", "").is_empty());
}

#[test]
fn gpt2() {
    check(
        &["gpt-2", "phi-2", "olmo"],
        &[
            "Hello¦ world¦!!¦ 123¦abc",
            "it¦'s¦ they¦'ve¦ I¦'ll¦x¦'re¦'¦D",
            "''¦s¦ '¦t",
            "a¦  ¦ b¦\n¦c¦ \n¦ d",
            "a¦   ",
            " a¦ ¦\u{a0}¦b¦ \u{3000}",
            "e¦\u{301}¦ ½²¦x",
            "\u{200d}\u{fe0f}🚀¦z",
        ],
    );
}

#[test]
fn digits_apart_and_then_gpt2() {
    check(&["smollm", "starcoder"], &["a¦ ¦1¦2¦3¦b", "x¦=-¦1¦.¦5¦e¦9", "²¦Ⅻ¦٣"]);
}

#[test]
fn runs_of_spaces_in_powers_of_two() {
    check(
        &["jais-2"],
        &["a¦  ¦ b¦    ¦  ¦ c¦        ", "a¦ ¦1¦  ¦ b¦ \n¦    ¦  ¦ ", "x¦ ¦\u{a0}¦1"],
    );
}

#[test]
fn llama3() {
    check(
        &["llama-bpe", "llama3", "dbrx", "smaug-bpe", "glm4"],
        &[
            "Hello¦ world¦!!¦ ¦123¦456¦7¦abc",
            "it¦'S¦ they¦'vE¦ I¦'LL¦'x",
            "(foo¦ (¦ (\n¦bar¦)\n\n¦\tx",
            "a¦ \n\n¦  ¦ b¦   ",
            "a¦ \r\n¦ \u{a0}¦\u{a0}b",
            "\u{301}a¦\u{301}",
            "a¦  \n \n¦ ¦ !.\r\n",
        ],
    );
    check(&["minicpm5"], &["a¦123¦45¦ ¦6"]);
}

#[test]
fn qwen_and_its_kin() {
    check(&["qwen2", "deepseek-r1-qwen", "grok-2"], &["a¦ ¦1¦2¦3¦'D¦\u{301}¦ \u{301}", "x¦'re"]);
    check(&["qwen35"], &["a\u{301}¦1¦\u{301}\u{301}b¦ \u{301}¦!¦ ?"]);
    check(&["ufakzeka"], &["Ali¦'nin¦ I¦'s"]);
    check(&["seed-coder"], &["a¦!¦\n¦b", "1¦2¦ !"]);
    check(&["laguna"], &["a¦ ¦\n\n¦ ¦ b"]);
    check(&["k2-horizon"], &["a\u{301}\u{200d}b¦123¦4"]);
}

#[test]
fn capitals_begin_words() {
    check(
        &["tekken"],
        &["Hello¦World¦HTTPServer¦ABC¦ abc¦D¦1¦2¦'s", "./¦x¦ //\n/¦y", "é¦ABC", "éABCÉÀa"],
    );
    check(&["gpt-4o", "llama4"], &["Hello's¦World¦ABC'LL¦123¦4"]);
    // A mark counts as a letter and may also precede one: it is a word of its own if the first alternative makes it one,
    // although the second would match the capital too.
    check(
        &["granite-embed-multi-97m"],
        &[
            "a\u{302}b¦ \u{302}\u{302}¦ ¦7¦\u{302}¦123¦4¦\u{302}¦\n¦\u{302}¦A'S¦\u{302}¦ \u{302}¦.¦ ¦ \u{302}",
            "x¦ \u{302}¦AB¦ \u{302}Ab¦ \u{302}\u{302}¦A",
            "\u{302}A\u{302}¦B's¦C",
        ],
    );
}

#[test]
fn default_and_falcon() {
    check(&["default"], &["a¦+=¦ b¦123¦45¦ ¦678¦`", "x¦ ¦...¦y¦'¦s", "²²²²¦ ¦123¦²"]);
    check(&["falcon"], &["a¦`+=¦b¦ ¦123¦45¦ 7"]);
}

#[test]
fn deepseek() {
    check(
        &["deepseek-v3", "hunyuan-dense"],
        &["123¦4¦日本カナ¦ab¦!cd¦ !!\n¦ e\u{301}¦\t¦ x", "a¦-b¦ -¦c"],
    );
    check(&["deepseek-coder"], &["ab¦\n¦\n¦ cd¦ ,.¦1¦2¦ ¦日本¦+", "日¦\u{3000}¦ (¦本"]);
}

#[test]
fn numbers_from_the_right() {
    check(&["superbpe"], &["it's a ¦1¦234¦567¦ b ¦890¦ ¦12"]);
    check(&["tiny_aya", "cohere2moe"], &["1¦234¦567¦HelloWorld's¦ e\u{301}¦ ./\n/¦ ¦12¦x"]);
    check(&["afmoe"], &["12¦345¦abc¦ ¦678¦日本ไ¦!cd¦ !!\n¦ e\u{301}"]);
}

#[test]
fn han_characters_apart() {
    check(&["kimi-k2"], &["日本¦カナabC's¦123¦4¦ é¦日¦ ¦日¦!!\n", "a¦\u{301}"]);
    check(&["youtu"], &["가나¦、。¦カナ日¦ abC's¦1¦2¦ ./"]);
}

#[test]
fn spaces_within_words() {
    check(&["exaone-moe"], &["it¦'s¦ two words e\u{301} x¦  ¦ y¦1¦2¦ !//¦ !\r¦\n", "!\n¦\n"]);
    check(&["deepseek-llm"], &["Ab¦ é¦12¦ ,.¦ ¦日本¦  ", "Ab¦\n¦ cd¦  "]);
}

#[test]
fn lines_apart() {
    check(&["gemma4", "sarvam-moe"], &["a b¦\n\n¦c\r¦\n"]);
}

#[test]
fn an_unknown_name_is_not_guessed() {
    assert!(Pre::by_name("nonesuch").is_none() && Pre::by_name("").is_none());
}
