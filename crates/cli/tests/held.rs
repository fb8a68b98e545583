//! Answers of `alight run` that are held to a schema or a grammar: what they are, that they are the server's, and what is refused.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::http::Serving;
use crate::support::pty::Pty;
use crate::support::said::{self, OWN, TEXT};
use crate::support::{self, Done, alight, command, done, wild, write};

/// A schema that tells a pet from most other things.
const PET: &str = r#"{
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["kind", "age"],
    "additionalProperties": false
}"#;
const GBNF: &str = "root ::= answer \" \" [0-9]{3}\nanswer ::= \"yes\" | \"no\"\n";
const LARK: &str = "%llguidance {}\nstart: (\"yes\" | \"no\") \" \" /[0-9]{3}/";

/// A model whose tokens are a character each, and which writes any of them after any other.
fn model(folder: &Path) -> String {
    let letters: Vec<String> =
        "abcdefghijklmnopqrstuvwxyz0123456789{}[]\":,.\u{2581}".chars().map(String::from).collect();
    let tokens: Vec<(&str, i32)> = letters.iter().map(|letter| (letter.as_str(), TEXT)).collect();
    let mut bits = 7_u32;
    let file = wild::with_tokens(wild::Spec::llama(), &tokens).file(|_, out| {
        for weight in out.chunks_exact_mut(4) {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let weight_of = 0.2 * ((bits >> 8) as f32 / (1 << 23) as f32 - 1.0);
            weight.copy_from_slice(&weight_of.to_le_bytes());
        }
    });
    write(folder, "letters.gguf", file)
}

/// An answer in which tokens are drawn, as a line of JSON.
fn answer(model: &str, seed: &str, more: &[&str]) -> Value {
    let usual = ["run", model, "--raw", "ab", "--temp", "9", "--seed", seed, "-n", "60", "--json"];
    let done = alight(&[&usual[..], more].concat()).succeeds();
    assert_eq!(done.stderr, "", "{more:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

#[track_caller]
fn is_a_pet(answer: &Value) {
    let pet: Value = serde_json::from_str(answer["text"].as_str().unwrap())
        .unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert!(pet["kind"] == "cat" || pet["kind"] == "dog", "{pet}");
    assert!((1..=99).contains(&pet["age"].as_i64().unwrap()), "{pet}");
    assert_eq!((pet.as_object().unwrap().len(), &answer["finish"]), (2, &json!("stop")));
}

#[track_caller]
fn follows_the_grammar(answer: &Value) {
    let text = answer["text"].as_str().unwrap();
    let (word, digits) = text.split_once(' ').unwrap_or_else(|| panic!("{text:?}"));
    assert!(word == "yes" || word == "no", "{text:?}");
    assert!(digits.len() == 3 && digits.bytes().all(|b| b.is_ascii_digit()), "{text:?}");
    assert_eq!(answer["finish"], "stop");
}

#[test]
fn an_answer_is_json_of_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let file = write(folder.path(), "pet.json", PET);
    let free = answer(&model, "0", &[]);
    assert!(serde_json::from_str::<Value>(free["text"].as_str().unwrap()).is_err(), "{free}");
    let mut all = Vec::new();
    for seed in ["0", "1", "2", "3"] {
        let held = answer(&model, seed, &["--json-schema", PET]);
        is_a_pet(&held);
        // By each name of the option; and nothing follows the end, whatever is ignored.
        for other in [
            ["-j", PET, "--ignore-eos"],
            ["--json-schema-file", &file, "--ignore-eos"],
            ["-jf", &file, "--speculate=4"],
        ] {
            assert_eq!(answer(&model, seed, &other)["tokens"], held["tokens"], "{other:?}");
        }
        all.push(held["text"].clone());
    }
    all.dedup();
    assert!(all.len() > 1, "the seed decides what the schema leaves open: {all:?}");
    // As Ollama has it: an object that is cut by its length, or whole.
    let any = answer(&model, "5", &["--format", "json"]);
    assert!(any["text"].as_str().unwrap().starts_with('{'), "{any}");
    let cut = answer(&model, "0", &["--json-schema", PET, "-n", "3"]);
    assert_eq!((&cut["finish"], cut["text"].as_str().unwrap().len()), (&json!("length"), 3));
    let stopped = answer(&model, "0", &["--json-schema", PET, "--stop", "\":"]);
    assert_eq!((&stopped["text"], &stopped["finish"]), (&json!("{\"kind"), &json!("stop")));
    // A pipe gets the answer and nothing else.
    let piped = alight(&["run", &model, "--raw", "ab", "-s", "1", "--temp", "9", "-j", PET]);
    let piped = piped.succeeds();
    assert_eq!((&*piped.stdout, &*piped.stderr), (&*format!("{}\n", all[1].as_str().unwrap()), ""));
}

#[test]
fn an_answer_follows_its_grammar() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let file = write(folder.path(), "answer.gbnf", GBNF);
    for seed in ["0", "1", "2"] {
        let held = answer(&model, seed, &["--grammar", GBNF]);
        follows_the_grammar(&held);
        assert_eq!(answer(&model, seed, &["--grammar-file", &file])["tokens"], held["tokens"]);
        follows_the_grammar(&answer(&model, seed, &["--grammar", LARK]));
    }
    assert!(!answer(&model, "0", &[])["text"].as_str().unwrap().starts_with(['y', 'n']));
}

/// The server, a line of a batch and this command make the same tokens of the same wish.
#[test]
fn it_is_the_answer_of_the_server_and_of_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let serving = Serving::start(&[&model, "--no-cache"]);
    let schema: Value = serde_json::from_str(PET).unwrap();
    for (option, value, field, wanted) in [
        ("--json-schema", PET, "json_schema", schema),
        ("--grammar", GBNF, "grammar", json!(GBNF)),
        ("--grammar", LARK, "grammar", json!(LARK)),
    ] {
        for seed in [3, 4] {
            let own = answer(&model, &seed.to_string(), &[option, value])["text"].clone();
            let body = json!({"prompt": "ab", "temperature": 9, "seed": seed, "max_tokens": 60, field: wanted});
            let served = serving.post("/v1/completions", &body).json();
            assert_eq!(served["choices"][0]["text"], own, "{option} {seed}");
            let line =
                json!({"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body});
            let batch = support::with_stdin(&["batch", &model, "-q"], line.to_string().as_bytes());
            let line: Value = serde_json::from_str(&batch.succeeds().stdout).unwrap();
            assert_eq!(line["response"]["body"]["choices"][0]["text"], own, "{option} {seed}");
        }
    }
}

/// All of an answer is what was asked for: the model is not let think before it, and what looks like thinking is text.
#[test]
fn nothing_is_thought_before_an_answer_that_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let said = [("no", TEXT), ("<think>", OWN), ("</think>", OWN), ("Yes", TEXT)];
    let model = said::model(folder.path(), &said, 3);
    let run = |grammar: &str| {
        let args = ["run", &model, "a", "--parse-special", "--temp", "0", "--json", "--grammar"];
        let done = alight(&[&args[..], &[grammar]].concat()).succeeds();
        serde_json::from_str::<Value>(&done.stdout).unwrap()
    };
    // After the prompt that asks for no thinking this is the likeliest; after the other the first is, as none of both is likely.
    assert_eq!(run("root ::= \"no\" | \"Yes\"")["text"], "Yes");
    let marked = run("root ::= \"<think>\" \"no\"");
    assert_eq!(marked["answer"], "<think>no");
    assert_eq!(marked["thinking"], Value::Null);
}

#[test]
fn each_answer_of_a_chat_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let args = ["run", &model, "--temp", "9", "--no-history", "--grammar", "root ::= \"fine.\""];
    let mut program = command(&args);
    program.env("NO_COLOR", "1");
    let mut chat = Pty::start(program, None);
    for question in ["ab", "cd"] {
        chat.expect("\u{1b}[K> ");
        chat.wait_for_editing();
        chat.send(question.as_bytes());
        chat.send(b"\r");
        chat.expect("\u{1b}[?2004l");
        chat.expect("fine.");
    }
    chat.expect("\u{1b}[K> ");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success());
}

#[test]
fn what_makes_no_grammar_is_refused_by_its_option_and_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let at = |name: &str, text: &str| write(folder.path(), name, text);
    let (text, list, empty) = (at("text", "a pet"), at("list", "[1, 2]"), at("empty", " \n"));
    let (rule, latin) = (at("rule", "root ::= other\n"), folder.path().join("latin"));
    std::fs::write(&latin, b"root ::= \"\xe9\"").unwrap();
    let latin = support::text(&latin);
    let huge = at("huge", &format!("root ::= \"{}\"", "a".repeat(300 << 10)));
    let endless = "/dev/zero";
    let missing = format!("{}/none", folder.path().display());
    let refused = |option: &str, value: &str| -> Done {
        alight(&["run", &model, "--raw", "ab", "-n", "3", option, value])
    };
    for (option, value, parts) in [
        ("--json-schema", "a pet", &["--json-schema: ", "not JSON", "line 1 column 1"][..]),
        ("--json-schema", "7", &["--json-schema: ", "is 7, expected an object"]),
        ("--json-schema", "", &["--json-schema: ", "not JSON"]),
        ("--json-schema", "{\"type\": \"nonsense\"}", &["--json-schema: ", "no grammar"]),
        ("--json-schema", "{\"$ref\": \"#\"}", &["--json-schema: ", "no grammar"]),
        ("--grammar", "", &["--grammar: ", "empty", "root ::="]),
        ("--grammar", "root = \"a\"", &["--grammar: ", "no grammar"]),
        ("--grammar", "%llguidance {}\nstart: (", &["--grammar: ", "no grammar"]),
    ] {
        refused(option, value).fails(2, parts);
    }
    // If the value is the name of a file, the error names the option that reads files.
    refused("--json-schema", &text).fails(2, &["not JSON", "--json-schema-file reads"]);
    refused("--grammar", &rule).fails(2, &["no grammar", "--grammar-file reads"]);
    for (option, file, parts) in [
        ("--json-schema-file", &*text, &["not JSON"][..]),
        ("--json-schema-file", &list, &["a list of 2, expected an object"]),
        ("--json-schema-file", &missing, &["does not exist"]),
        ("--json-schema-file", endless, &["the schema", "longer than 1 MiB"]),
        ("--grammar-file", &empty, &["empty, expected a rule"]),
        ("--grammar-file", &rule, &["no grammar", "other"]),
        ("--grammar-file", &huge, &["307211 bytes, expected at most 262144"]),
        ("--grammar-file", endless, &["the grammar", "longer than 1 MiB"]),
        ("--grammar-file", latin, &["not UTF-8"]),
    ] {
        refused(option, file).fails(1, &[&[option, &format!("'{file}'")][..], parts].concat());
    }
    // What needs no model to be refused is refused before there is one.
    alight(&["run", "/none.gguf", "ab", "--grammar", ""]).fails(2, &["--grammar"]);
}

#[test]
fn an_answer_is_held_to_one_of_them() {
    let all = ["--json-schema", "--json-schema-file", "--grammar", "--grammar-file"];
    for (i, one) in all.iter().enumerate() {
        for other in &all[i + 1..] {
            let both = alight(&["run", "m.gguf", "x", one, "{}", other, "{}"]);
            both.fails_as_usage(one);
            both.fails_as_usage(other);
        }
    }
    let jax = ["run", "m.gguf", "x", "--engine", "jax", "--json-schema", "{}"];
    alight(&jax).fails(2, &["--json-schema", "JAX"]);
    let sections = alight(&["run", "--help"]).succeeds().stdout;
    all.iter().for_each(|option| assert!(sections.contains(option), "{option}"));
}

/// A default of the user's counts where nothing is given, and conflicts with nothing that is.
#[test]
fn a_default_holds_answers_too() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path());
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let args = ["run", &model, "--raw", "ab", "--temp", "9", "-s", "1", "-n", "60", "--json"];
        let mut command = command(&[&args[..], words].concat());
        command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
        done(command.output().unwrap())
    };
    let line = |done: Done| serde_json::from_str::<Value>(&done.succeeds().stdout).unwrap();
    let (schema, grammar) = (("ALIGHT_JSON_SCHEMA", PET), ("ALIGHT_GRAMMAR", GBNF));
    is_a_pet(&line(run(&[], &[schema])));
    follows_the_grammar(&line(run(&["--grammar", GBNF], &[schema])));
    run(&[], &[schema, grammar]).fails(2, &["--json-schema and --grammar", "defaults"]);
}

#[test]
fn thinking_that_the_template_cannot_turn_off_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let said = [("<think>", OWN), ("So ", TEXT), ("</think>", OWN), ("Yes.", TEXT)];
    let model = said::model(folder.path(), &said, 0);
    let template = write(folder.path(), "template", "{{ messages[-1].content }}<think>");
    let answer = |more: &[&str]| {
        let usual = ["run", &*model, "a", "--temp", "0", "--json"];
        let given = ["--chat-template-file", &*template];
        let done = alight(&[&usual[..], &given, more].concat()).succeeds();
        let answer: Value = serde_json::from_str(&done.stdout).unwrap();
        (answer["text"].as_str().unwrap().to_owned(), answer["generated_tokens"].clone())
    };
    let (text, tokens) = answer(&[]);
    assert!(text.contains("So ") && tokens == 3, "{text} {tokens}");
    assert_eq!(answer(&["--no-thinking"]), ("Yes.".to_owned(), json!(2)));
}

/// The marks between thinking and answer may be cut anywhere, and the answer may begin in the token that ends them.
#[test]
fn an_answer_is_held_after_marks_that_tokens_divide() {
    let folder = tempfile::tempdir().unwrap();
    let template =
        write(folder.path(), "template", "{# <response> #}{{ messages[-1].content }}<think>");
    let think = ("<think>", OWN);
    let cut: [&[(&str, i32)]; 6] = [
        &[think, ("So </think>\n<res", TEXT), ("ponse>", TEXT), ("No.", TEXT), ("Yes.", TEXT)],
        &[think, ("So </think>", TEXT), ("\n<res", TEXT), ("ponse>\n", TEXT), ("Yes.", TEXT)],
        &[think, ("So </think>\n<response>Ye", TEXT), ("No.", TEXT), ("s.", TEXT), ("Ye", TEXT)],
        &[
            think,
            ("So </think>\n<respo", TEXT),
            ("nse>\nYe", TEXT),
            ("No.", TEXT),
            ("s.", TEXT),
            ("Ye", TEXT),
        ],
        &[think, ("So </think>", TEXT), ("\nYe", TEXT), ("No.", TEXT), ("s.", TEXT), ("Ye", TEXT)],
        &[think, ("So </think> Ye", TEXT), ("No.", TEXT), ("s.", TEXT), ("Ye", TEXT)],
    ];
    for said in cut {
        let model = said::model(folder.path(), said, 0);
        let args = ["run", &model, "a", "--temp", "0", "--json", "--chat-template-file", &template];
        let held = [&args[..], &["--tool-format", "chatml", "--grammar", "root ::= \"Yes.\""]];
        let done = alight(&held.concat()).succeeds();
        let line: Value = serde_json::from_str(&done.stdout).unwrap();
        // A space between thinking and answer may be the answer's.
        let answer = line["answer"].as_str().unwrap().trim();
        assert_eq!((&line["thinking"], answer), (&json!("So "), "Yes."), "{line}");
    }
}

/// A prompt that opens thinking, by a template without a switch for it: the answer is held from where that ends, by this command, in its
/// chat, in its record, and by the server.
#[test]
fn an_answer_is_held_from_where_thinking_ends_that_the_template_opens() {
    let folder = tempfile::tempdir().unwrap();
    let said = [("<think>", OWN), ("So ", TEXT), ("</think>", OWN), ("No.", TEXT), ("Yes.", TEXT)];
    let model = said::model(folder.path(), &said, 0);
    let template = write(folder.path(), "template", "{{ messages[-1].content }}<think>");
    let grammar = "root ::= \"Yes.\"";
    let usual = ["run", &*model, "--temp", "0", "--chat-template-file", &*template];
    let held = [&usual[..], &["--grammar", grammar]].concat();
    for (more, thinking, tokens) in
        [(&[][..], json!("So "), 3), (&["--no-thinking"], json!(null), 2)]
    {
        let done = alight(&[&held[..], &["a", "--json"], more].concat()).succeeds();
        let line: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!((&line["thinking"], &line["answer"]), (&thinking, &json!("Yes.")), "{line}");
        assert_eq!(line["generated_tokens"], tokens);
        let replayed = support::with_stdin(&["replay", "-", &model], line.to_string().as_bytes());
        assert_eq!(replayed.succeeds().stdout, format!("equal: {tokens} tokens\n"));
    }
    let serving = Serving::start(&[&model, "--no-cache", "--chat-template-file", &template]);
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"messages": messages, "temperature": 0, "grammar": grammar});
    let message = &serving.post("/v1/chat/completions", &body).json()["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "So ");
    assert_eq!(message["content"], "Yes.");
    let mut program = command(&[&held[..], &["--no-history"]].concat());
    program.env("NO_COLOR", "1");
    let mut chat = Pty::start(program, None);
    for _ in 0..2 {
        chat.expect("\u{1b}[K> ");
        chat.wait_for_editing();
        chat.send(b"a\r");
        chat.expect("\u{1b}[?2004l");
        chat.expect("So ");
        chat.expect("Yes.");
    }
    chat.expect("\u{1b}[K> ");
    chat.wait_for_editing();
    chat.send(b"\x04");
    assert!(chat.end().success());
}
