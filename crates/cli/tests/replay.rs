//! `alight replay`: records of `alight run --json` and `alight batch --record` give the same answers again, wherever they are computed;
//! what differs is found, with its reason; hostile records are refused.

use std::path::Path;

use alight_kernels::Isa;
use serde_json::{Value, json};

use crate::support::said::{self, SAID, TEXT};
use crate::support::{Done, alight, everything, smollm2, text, wild, with_stdin, write};

/// A model whose tokens are a character each, and which writes any of them after any other.
fn letters(folder: &Path, name: &str, seed: u32) -> String {
    let letters: Vec<String> =
        "abcdefghijklmnopqrstuvwxyz0123456789{}[]\":,.\u{2581}".chars().map(String::from).collect();
    let tokens: Vec<(&str, i32)> = letters.iter().map(|letter| (letter.as_str(), TEXT)).collect();
    let mut bits = seed;
    let file = wild::with_tokens(wild::Spec::llama(), &tokens).file(|_, out| {
        for weight in out.chunks_exact_mut(4) {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let weight_of = 0.2 * ((bits >> 8) as f32 / (1 << 23) as f32 - 1.0);
            weight.copy_from_slice(&weight_of.to_le_bytes());
        }
    });
    write(folder, name, file)
}

/// The line of `run --json` for an answer in which tokens are drawn.
#[track_caller]
fn answered(model: &str, more: &[&str]) -> Value {
    let usual = ["run", model, "--raw", "ab", "--temp", "9", "--seed", "3", "-n", "60", "--json"];
    let done = alight(&[&usual[..], more].concat()).succeeds();
    serde_json::from_str(&done.stdout).unwrap()
}

/// Replays a line that comes on standard input.
fn replayed(record: &Value, model: &str, more: &[&str]) -> Done {
    let args = [&["replay", "-", model], more].concat();
    with_stdin(&args, record.to_string().as_bytes())
}

/// Asserts that an answer of this many tokens is equal.
#[track_caller]
fn is_equal(done: Done, tokens: usize) {
    let end = if tokens == 1 { "" } else { "s" };
    let Done { status, stdout, stderr } = done;
    assert_eq!((status, &*stderr), (Some(0), ""), "{stdout}");
    assert_eq!(stdout, format!("equal: {tokens} token{end}\n"));
}

#[track_caller]
fn differs(done: Done, parts: &[&str]) {
    assert_eq!(done.status, Some(1), "{}{}", done.stdout, done.stderr);
    for part in parts {
        assert!(done.stdout.contains(part), "{part:?} is not in {:?}", done.stdout);
    }
}

#[test]
fn an_answer_is_equal_on_any_number_of_threads_and_from_any_source() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let line = answered(&model, &["-t", "2"]);
    let record = &line["record"];
    assert_eq!(record["format"], 1);
    assert_eq!(record["alight"], env!("CARGO_PKG_VERSION"));
    assert_eq!(record["request"]["seed"], 3);
    assert_eq!(record["request"]["top_p"], json!(0.95));
    assert_eq!(record["request"]["prompt"].as_array().map(Vec::len), Some(3));
    assert_eq!(record["answer"]["tokens"], line["tokens"]);
    assert_eq!(record["model"]["name"], "letters");
    assert_eq!(record["model"]["hash"].as_str().map(str::len), Some(64));
    assert_eq!(
        (&record["model"]["architecture"], &record["template"]),
        (&json!("llama"), &Value::Null)
    );
    assert!(!record.to_string().contains(text(folder.path())), "no path");
    let tokens = line["tokens"].as_array().unwrap().len();
    for threads in ["1", "2", "3"] {
        is_equal(replayed(&line, &model, &["-t", threads]), tokens);
    }
    // The record alone, in several lines, in a file.
    let pretty = serde_json::to_string_pretty(record).unwrap();
    let file = write(folder.path(), "record.json", pretty);
    is_equal(alight(&["replay", &file, &model]), tokens);
    is_equal(alight(&["replay", &file, &model, "--load", "read"]), tokens);
    let json = alight(&["replay", &file, &model, "--json"]).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["equal"], &json["tokens"]), (&json!(true), &json!(tokens)));
    assert_eq!((&json["difference"], &json["why"]), (&Value::Null, &json!([])));
}

#[test]
fn every_option_and_every_end_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    for more in [
        &["--top-k", "3", "--min-p", "0.2", "--repeat-penalty", "1.3", "--repeat-last-n", "-1"][..],
        &["--dry-multiplier", "0.8", "--dry-sequence-breaker", "a", "--xtc-probability", "0.5"],
        &["--mirostat", "2", "--mirostat-ent", "3"],
        &["--samplers", "top_k;temperature"],
        &["--ignore-eos", "-n", "20"],
        &["-c", "24"],
        &["-n", "0"],
        &["--prompt-precision", "16"],
        &["--speculate", "4"],
        &["--seed", "-1"],
    ] {
        let line = answered(&model, more);
        let tokens = line["tokens"].as_array().unwrap().len();
        let done = replayed(&line, &model, &[]);
        assert!(done.stdout.starts_with("equal: "), "{more:?}: {}{}", done.stdout, done.stderr);
        is_equal(done, tokens);
    }
    let finish = |more: &[&str]| answered(&model, more)["record"]["answer"]["finish"].clone();
    assert_eq!(finish(&["--ignore-eos", "-n", "20"]), "length");
    assert_eq!(finish(&["--ignore-eos", "-c", "24"]), "context");
    let stops: Vec<String> =
        "abcdefghijklm".chars().map(|letter| format!("--stop={letter}")).collect();
    let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
    let line = answered(&model, &[&["--ignore-eos"], &stops[..]].concat());
    assert_eq!(line["record"]["answer"]["finish"], "stop_text");
    is_equal(replayed(&line, &model, &[]), line["tokens"].as_array().unwrap().len());
}

#[test]
fn an_answer_that_is_held_to_a_schema_or_a_grammar_is_held_again() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let schema = r#"{"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}"#;
    for (more, field) in [
        (&["--json-schema", schema][..], "json_schema"),
        (&["--grammar", "root ::= \"yes\" | \"no\" [0-9]{3}"], "grammar"),
        (&["--grammar", "%llguidance {}\nstart: /[a-f]{4,20}/"], "grammar"),
    ] {
        let mut line = answered(&model, more);
        assert!(!line["record"]["request"][field].is_null(), "{field}");
        is_equal(replayed(&line, &model, &[]), line["tokens"].as_array().unwrap().len());
        // Without the constraint the answer is another.
        line["record"]["request"].as_object_mut().unwrap().shift_remove(field);
        differs(replayed(&line, &model, &[]), &["differs at token "]);
    }
}

#[test]
fn the_first_difference_is_shown_with_what_may_be_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let line = answered(&model, &["--ignore-eos", "-n", "20"]);
    let tokens: Vec<u64> =
        line["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut line = line.clone();
        change(&mut line["record"]);
        line
    };
    let other = if tokens[9] == 5 { 6 } else { 5 };
    let one = changed(&|record| record["answer"]["tokens"][9] = other.into());
    let known = "nothing of the record is different here";
    let at = format!("differs at token 10: recorded {other} '");
    differs(replayed(&one, &model, &[]), &[&at, &format!("now {} '", tokens[9]), known]);
    let json = replayed(&one, &model, &["--json", "--logprobs", "3"]);
    assert_eq!(json.status, Some(1));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&json["equal"], &json["tokens"]), (&json!(false), &json!(9)));
    let difference = &json["difference"];
    assert_eq!((&difference["token"], &difference["recorded"]["id"]), (&json!(10), &json!(other)));
    assert_eq!((&difference["now"]["id"], &difference["ends"]), (&json!(tokens[9]), &json!(false)));
    assert_eq!(json["logprobs"].as_array().map(Vec::len), Some(10));
    assert_eq!(json["logprobs"][0]["id"], tokens[0]);
    assert_eq!(json["logprobs"][0]["top"].as_array().map(Vec::len), Some(3));
    let shown = replayed(&one, &model, &["--logprobs"]).stdout;
    assert!(shown.contains("log-probabilities:\n") && shown.contains("  (now)"), "{shown}");

    // An end that came earlier, or later.
    let shorter = changed(&|record| {
        record["answer"]["tokens"].as_array_mut().unwrap().truncate(7);
        record["answer"]["finish"] = "stop".into();
    });
    differs(replayed(&shorter, &model, &[]), &["differs at token 8: recorded the end, now "]);
    let ended = answered(&model, &["-n", "2000", "-c", "4096"]);
    assert_eq!(ended["record"]["answer"]["finish"], "stop", "{ended}");
    let mut longer = ended.clone();
    longer["record"]["answer"]["tokens"].as_array_mut().unwrap().push(5.into());
    differs(replayed(&longer, &model, &[]), &["recorded 5 '", "now the end by 2 '</s>'"]);

    let seed = changed(&|record| record["request"]["seed"] = 4.into());
    differs(replayed(&seed, &model, &[]), &[known]);
    let version = changed(&|record| {
        record["answer"]["tokens"][0] = other.into();
        record["arithmetic"] = 1.into();
        record["commit"] = "\u{1b}[2J".into();
    });
    let out = replayed(&version, &model, &[]);
    assert!(!out.stdout.contains('\u{1b}'), "{:?}", out.stdout);
    differs(out, &["the arithmetic is another: version 1 then, ", "alight is another: "]);
    let model = letters(folder.path(), "other.gguf", 8);
    let hash = line["record"]["model"]["hash"].as_str().unwrap();
    let reason =
        format!("the model is another: 'letters' ({}) answered, this is 'other' (", &hash[..12]);
    differs(replayed(&line, &model, &[]), &[&reason]);
}

/// Each command refuses more sequence breakers than a record may have.
#[test]
fn more_texts_that_break_sequences_than_a_record_may_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let texts: Vec<String> = (0..33).map(|number| format!("{number}")).collect();
    let given: Vec<&str> =
        texts.iter().flat_map(|text| ["--dry-sequence-breaker", text.as_str()]).collect();
    let dry = ["--dry-multiplier", "0.8"];
    let line = answered(&model, &[&dry[..], &given[..64]].concat());
    is_equal(replayed(&line, &model, &[]), line["tokens"].as_array().unwrap().len());
    for command in [&["run", &model, "ab"][..], &["batch", &model], &["serve", &model]] {
        let done = alight(&[command, &given].concat());
        done.fails(2, &["--dry-sequence-breaker is given 33 times, expected at most 32"]);
    }
}

#[test]
fn the_lines_of_a_batch_are_records() {
    let folder = tempfile::tempdir().unwrap();
    let model = said::model(folder.path(), &SAID, 3);
    let messages = json!([{"role": "user", "content": "a"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {}}}]);
    let schema = json!({"type": "json_schema", "json_schema": {"schema": {"type": "string"}, "strict": true}});
    let lines = [
        json!("a"),
        json!({"messages": messages, "tools": tools, "custom_id": "called"}),
        json!({"messages": messages, "stop": ["es."]}),
        json!({"messages": messages, "max_tokens": 4, "temperature": 1.5, "seed": 9}),
        json!({"messages": messages, "thinking_budget": 0, "tools": tools}),
        json!({"prompt": [3], "max_tokens": 3}),
        json!({"messages": messages, "unknown": 1}),
        json!({"messages": messages, "regex": "Y?", "max_tokens": 3}),
        json!({"messages": messages, "response_format": schema, "tools": tools, "max_tokens": 9}),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let out = with_stdin(&["batch", &model, "--parse-special", "--record"], input.as_bytes());
    assert_eq!(out.status, Some(1), "{}", out.stderr);
    let results: Vec<Value> =
        out.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recorded: Vec<bool> = results.iter().map(|line| line["record"].is_object()).collect();
    let answered: Vec<bool> = results.iter().map(|line| line["error"].is_null()).collect();
    assert_eq!(recorded, answered);
    assert!(!answered[6], "{}", results[6]);
    assert_eq!(results[0]["record"]["template"].as_str().map(str::len), Some(64));
    assert_eq!(results[2]["record"]["answer"]["finish"], "stop_text");
    assert_eq!(results[4]["record"]["request"]["thinking_budget"], 0);
    let file = write(folder.path(), "results.jsonl", &out.stdout);
    let done = alight(&["replay", &file, &model]).succeeds();
    let shown: Vec<&str> = done.stdout.lines().collect();
    let equal = answered.iter().filter(|answered| **answered).count();
    let failed = results.len() - equal;
    assert_eq!(shown.len(), equal + 1, "{}", done.stdout);
    assert!(shown[..equal].iter().all(|line| line.contains(": equal: ")), "{}", done.stdout);
    assert!(shown[1].starts_with("line 2 (called): equal: 8 tokens"), "{}", shown[1]);
    assert_eq!(
        shown[equal],
        format!("9 records: {equal} equal, 0 differ, {failed} without an answer")
    );
    // Of several records, one that differs and one that cannot be read do not keep the others from being replayed.
    let mut wrong = results.clone();
    wrong[0]["record"]["answer"]["tokens"][1] = 3.into();
    wrong[5]["record"]["request"]["tree"] = 1.into();
    let text: String = wrong.iter().map(|line| format!("{line}\n")).collect();
    let done = with_stdin(&["replay", "-", &model], text.as_bytes());
    assert_eq!(done.status, Some(2));
    assert!(done.stdout.starts_with("line 1: differs at token 2: "), "{}", done.stdout);
    assert!(
        done.stderr.contains("line 6: request.tree: there is no such field here"),
        "{}",
        done.stderr
    );
    assert!(done.stdout.contains(&format!("{} equal, 1 differs, 1 cannot be replayed", equal - 2)));
    // Without the option there is none.
    let out = with_stdin(&["batch", &model], b"\"a\"\n").succeeds().stdout;
    assert!(!out.contains("\"record\""), "{out}");
    with_stdin(&["replay", "-", &model], out.as_bytes()).fails(2, &["there is no record in it"]);
}

/// The mark that ends a thinking at its limit is that of the notation.
#[test]
fn the_notation_of_a_run_is_that_of_its_replay() {
    let folder = tempfile::tempdir().unwrap();
    let said = [
        ("[TH", TEXT),
        ("INK]So it is", TEXT),
        (" and so.", TEXT),
        ("[/THINK]", TEXT),
        ("Yes.", TEXT),
    ];
    let model = said::model(folder.path(), &said, 0);
    // Without a switch for thinking, which is ended by its mark instead.
    let template = write(folder.path(), "template", "{{ messages[-1].content }}<go>");
    let run = |more: &[&str]| {
        let usual = ["run", &*model, "a", "--temp", "0", "--json", "--no-thinking"];
        let template = ["--chat-template-file", &template];
        alight(&[&usual[..], &template, more].concat()).succeeds().stdout
    };
    let (mistral, own) = (run(&["--tool-format", "mistral"]), run(&[]));
    let line: Value = serde_json::from_str(&mistral).unwrap();
    assert_eq!(line["record"]["request"]["tool_format"], "mistral", "{line}");
    let file = write(folder.path(), "mistral.json", &mistral);
    alight(&["replay", &file, &model]).succeeds();
    // Read as the model shows it, the thinking would not have ended there.
    let mut other = line.clone();
    other["record"]["request"].as_object_mut().unwrap().remove("tool_format");
    let file = write(folder.path(), "other.json", other.to_string());
    let done = alight(&["replay", &file, &model]);
    assert_eq!(done.status, Some(1), "{}", done.stdout);
    let both = with_stdin(&["replay", "-", &model], format!("{mistral}{own}").as_bytes());
    assert_eq!(both.status, Some(2), "{}", both.stderr);
    let why = "request.tool_format: it is the model's own, and that of the first record is mistral";
    assert!(both.stderr.contains(why), "{}", both.stderr);
    other["record"]["request"]["tool_format"] = "Kimi".into();
    let file = write(folder.path(), "wrong.json", other.to_string());
    alight(&["replay", &file, &model]).fails(2, &["request.tool_format: expected one of plain"]);
}

#[test]
fn what_is_no_record_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let line = answered(&model, &["-n", "5", "--ignore-eos"]);
    let cases: [(&[&str], Value, &str); 23] = [
        (&["format"], json!(2), "format: it is 2, expected 1"),
        (&["format"], json!(-1), "format: it is -1"),
        (&["request", "swirl"], json!(0.5), "request.swirl: there is no such field here"),
        (&["request", "temperature"], json!(-1), "request.temperature: it is -1"),
        (&["request", "top_k"], json!(1e300), "request.top_k"),
        (&["request", "seed"], json!("x"), "request.seed"),
        (&["request", "grammar"], json!("root ::= ("), "request.grammar"),
        (&["request", "json_schema"], json!([1]), "request.json_schema"),
        (&["request", "prompt"], json!([]), "request.prompt: it is a list of 0"),
        (&["request", "prompt"], json!("ab"), "request.prompt: it is \"ab\""),
        (&["request", "prompt"], json!([1, -2]), "request.prompt"),
        (
            &["request", "prompt"],
            json!([1, 1_u64 << 40]),
            "request.prompt: a token's id is too large",
        ),
        (
            &["request", "prompt"],
            json!([1, 9999]),
            "request.prompt: it has the token 9999, but the model has",
        ),
        (&["request", "prompt"], json!(vec![3; 5000]), "answer.tokens: there are 5"),
        (&["request"], json!(null), "request: it is missing"),
        (
            &["answer", "tokens"],
            json!([4_000_000_000_u32]),
            "answer.tokens: it has the token 4000000000",
        ),
        (&["answer", "tokens"], json!([1.5]), "answer.tokens: it is a list of 1"),
        (
            &["answer", "tokens"],
            json!(vec![3; 5000]),
            "answer.tokens: there are 5000, expected at most",
        ),
        (&["answer", "finish"], json!("tired"), "answer.finish: it is \"tired\""),
        (&["computed", "context"], json!(0), "computed.context: it is 0"),
        (&["computed", "context"], json!(1_u64 << 60), "computed.context"),
        (&["computed", "cache_type"], json!("q1"), "computed.cache_type"),
        (&["computed", "prompt_precision"], json!(9), "computed.prompt_precision"),
    ];
    let mut all = String::new();
    for (path, value, part) in &cases {
        let mut line = line.clone();
        let field = path.iter().fold(&mut line["record"], |at, name| &mut at[*name]);
        *field = value.clone();
        all += &format!("{line}\n");
        if path[0] == "format" {
            replayed(&line, &model, &[]).fails(2, &["standard input", part]);
        }
    }
    let done = with_stdin(&["replay", "-", &model], all.as_bytes());
    assert_eq!(
        (done.status, &*done.stdout),
        (Some(2), "23 records: 0 equal, 0 differ, 23 cannot be replayed\n"),
        "{}",
        done.stderr
    );
    let errors: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(errors.len(), cases.len(), "{}", done.stderr);
    for (i, ((_, _, part), error)) in cases.iter().zip(errors).enumerate() {
        let at = format!("alight: error: standard input: line {}: ", i + 1);
        assert!(error.starts_with(&at) && error.contains(part), "{part:?} is not in {error:?}");
    }
    for (input, part) in [
        ("", "it is empty"),
        ("{\"a\": NaN}", "it is no record"),
        ("[1]", "it is a list of 1, expected an object with a record"),
        ("{}", "there is no record in it"),
        ("{\"record\": 1}", "record: it is 1, expected an object"),
    ] {
        with_stdin(&["replay", "-", &model], input.as_bytes()).fails(2, &[part]);
    }
    let deep = format!("{{\"record\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    with_stdin(&["replay", "-", &model], deep.as_bytes()).fails(2, &["in one another"]);
    let file = write(folder.path(), "record.json", line.to_string());
    alight(&["replay", "/nowhere/x.json", &model]).fails(2, &["/nowhere/x.json"]);
    alight(&["replay", text(folder.path()), &model]).fails(2, &["is a folder"]);
    alight(&["replay", &file, "/nowhere/m.gguf"]).fails(2, &["/nowhere/m.gguf"]);
    alight(&["replay", &file, &model, "--cache-type", "f16"])
        .fails(2, &["--cache-type is one of the record's"]);
    alight(&["replay", &file, &model, "--logprobs", "0"]).fails_as_usage("from 1 to 100");
}

/// A generator of small random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

/// Replaces a random value within this one.
fn mutate(value: &mut Value, random: &mut Random) {
    let inner = match value {
        Value::Object(fields) if !fields.is_empty() => {
            let at = random.below(fields.len());
            fields.values_mut().nth(at)
        }
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            items.get_mut(at)
        }
        _ => None,
    };
    if let Some(inner) = inner.filter(|_| !random.0.is_multiple_of(5)) {
        return mutate(inner, random);
    }
    let values = [
        Value::Null,
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("\u{1b}[2J\0"),
        json!([]),
        json!([0, 1, 2]),
        json!([[[]]]),
        json!({}),
        json!({"record": {}}),
        json!(true),
    ];
    *value = values[random.below(values.len())].clone();
}

#[test]
fn a_record_in_which_anything_is_changed_is_equal_or_different_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = letters(folder.path(), "letters.gguf", 7);
    let schema = r#"{"type": "array", "items": {"type": "integer"}, "maxItems": 3}"#;
    let sources =
        [answered(&model, &["-n", "4"]), answered(&model, &["-n", "8", "--json-schema", schema])];
    let mut random = Random(11);
    let (mut lines, n) = (String::new(), 300);
    for i in 0..n {
        let mut line = json!({"record": sources[i % 2]["record"]});
        for _ in 0..=random.below(3) {
            mutate(&mut line, &mut random);
        }
        lines += &format!("{line}\n");
    }
    let done = with_stdin(&["replay", "-", &model, "--json"], lines.as_bytes());
    assert!(
        !done.stderr.contains("panicked") && !done.stderr.contains('\u{1b}'),
        "{}",
        done.stderr
    );
    assert_eq!(done.status, Some(2), "{}", done.stderr);
    let errors = done.stderr.lines().filter(|line| line.starts_with("alight: error: ")).count();
    let compared = done.stdout.lines().count();
    // A line that is an object with an `error` is no record, and no error.
    assert_eq!(errors + compared, n, "{}", done.stderr);
    assert!(compared > n / 10 && errors > n / 10, "{compared} {errors}");
    for line in done.stdout.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["equal"] == true, line["difference"].is_null(), "{line}");
    }
}

/// A record of a real model, computed with these options, and the file of that.
fn of_a_real_model(seed: &str, more: &[&str]) -> Option<(Value, String)> {
    let model = smollm2()?;
    let prompt = "Name three colours, and say why you like them.";
    let args = ["run", &model, prompt, "--json", "-n", "48", "--seed", seed, "--temp", "0.9"];
    let line = alight(&[&args[..], more].concat()).succeeds().stdout;
    Some((serde_json::from_str(&line).unwrap(), model))
}

#[test]
fn an_answer_is_equal_in_every_layout_and_at_every_simd_level() {
    let Some((line, model)) = of_a_real_model("5", &[]) else { return };
    let tokens = line["tokens"].as_array().unwrap().len();
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.gguf");
    alight(&["pack", &model, "-o", text(&packed)]).succeeds();
    // Prompts in bf16 have bits of their own.
    for isa in Isa::available().into_iter().filter(|isa| isa.bits() == Isa::SCALAR.bits()) {
        for file in [&model, text(&packed)] {
            // Each level in each layout takes seconds, the portable one more. Tests of the kernels compare them, too.
            let quick = if isa == Isa::best() {
                file != model
            } else {
                isa.to_string() == "avx2" && file == model
            };
            if quick || everything() {
                is_equal(replayed(&line, file, &["--isa", &isa.to_string()]), tokens);
            }
        }
    }
}
