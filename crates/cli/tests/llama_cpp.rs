//! The options of llama.cpp's programs, given to the real commands: each does what it does there, or is answered with one sentence.
//! What comes of that is the table of docs/reference/llama-cpp.md, so the page says what the commands say. With `ALIGHT_WRITE=1` in the
//! environment, the test writes the page.
//!
//! The most used ones have a check of their own. They are those that the documents, scripts and examples of llama.cpp's repository name
//! most often, with those that people give to its server (October 2026). All others are in `data/llama_cpp_options.txt`, a line for
//! each, with an `X` for each value.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http::Serving;
use crate::support::{Done, alight, command, done, wild, write};

/// A model in a folder of its own, and in a hub's cache.
struct Case {
    folder: TempDir,
    model: String,
}

/// What becomes of an option.
enum Expected {
    /// It works, by this name of ours, as this shows.
    Works(&'static str, fn(&Case)),
    /// The command answers with a sentence.
    Answered,
}

use Expected::{Answered, Works};

/// An option of llama.cpp: its names, values to give it, and what `run` and `serve` make of it.
struct Row(&'static [&'static str], &'static [&'static str], Expected, Expected);

/// A run whose answer is drawn, up to its length.
const PROMPT: [&str; 8] = ["--raw", "--json", "--ignore-eos", "--temp", "9", "--seed", "1", "-n"];

impl Case {
    fn new() -> Case {
        let folder = tempfile::tempdir().unwrap();
        // Keys are long enough to be kept as q8_0.
        let spec =
            wild::Spec { heads: 2, kv_heads: 1, key_dim: 32, value_dim: 32, ..wild::Spec::llama() };
        let model = wild::model_of(folder.path(), spec);
        let cached = folder.path().join("hub/models--org--m");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        fs::create_dir_all(cached.join("refs")).unwrap();
        fs::create_dir_all(cached.join("snapshots").join(commit)).unwrap();
        fs::write(cached.join("refs/main"), commit).unwrap();
        fs::copy(&model, cached.join("snapshots").join(commit).join("m-F32.gguf")).unwrap();
        Case { folder, model }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = command(words);
        for name in ["HF_HOME", "HF_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE"]
        {
            command.env_remove(name);
        }
        let at = |name: &str| self.folder.path().join(name);
        command.env("HF_HUB_CACHE", at("hub")).env("HF_HUB_OFFLINE", "1").env("HOME", at("home"));
        command.env("XDG_CACHE_HOME", at("cache")).stdin(Stdio::null());
        command
    }

    fn said(&self, words: &[&str]) -> Done {
        done(self.command(words).output().unwrap())
    }

    /// The answer that `run` gives, with `words` in place of the model, in front of everything else.
    fn with(&self, words: &[&str]) -> Value {
        let usual = [&["run"], words, &PROMPT[..], &["5", "-c", "64"]].concat();
        let done = self.said(&[&usual[..], &["-p", "aaaa"]].concat()).succeeds();
        assert_eq!(done.stderr, "", "{words:?}");
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// The same with the model, and `words` after everything else.
    fn run(&self, words: &[&str]) -> Value {
        let usual = [&["run", &self.model], &PROMPT[..], &["5", "-p", "aaaa"]].concat();
        let done = self.said(&[&usual[..], words].concat()).succeeds();
        assert_eq!(done.stderr, "", "{words:?}");
        serde_json::from_str(&done.stdout).unwrap()
    }

    fn tokens(&self, words: &[&str]) -> Value {
        self.run(words)["tokens"].take()
    }

    /// Tokens of an answer in which tokens are drawn: another one is another sampler.
    fn usual(&self) -> Value {
        self.tokens(&[])
    }

    fn greedy(&self) -> Value {
        self.tokens(&["--temp", "0"])
    }

    fn serve(&self, words: &[&str]) -> Serving {
        let usual = ["serve", &self.model, "--no-cache", "--port", "0", "-n", "5"];
        Serving::of(self.command(&[&usual[..], words].concat()))
    }

    /// Its answer to a prompt, which says nothing of what the server was told.
    fn served(&self, words: &[&str]) -> String {
        let body = json!({"prompt": "aaaa", "ignore_eos": true});
        let answer = self.serve(words).post("/v1/completions", &body).json();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    }

    fn file(&self, name: &str, text: &str) -> String {
        write(self.folder.path(), name, text)
    }
}

/// With `words` the server draws as it does with temperature 0, and without them it does not.
fn makes_greedy(case: &Case, words: &[&str]) {
    let drawn = ["--temp", "9", "--seed", "3"];
    assert_eq!(
        case.served(&[&drawn[..], words].concat()),
        case.served(&["--temp", "0"]),
        "{words:?}"
    );
    assert_ne!(case.served(&drawn), case.served(&["--temp", "0"]));
}

/// The number of letters in the prompt of a conversation, as a server with these options renders it with these variables of its
/// request: one, those of `more`, four without thinking, and eight with a limit of 7 tokens for it.
fn rendered(case: &Case, options: &[&str], variables: Value) -> usize {
    let template = "a{{ more }}{% if not enable_thinking %}aaaa{% endif %}{% if thinking_budget == 7 %}aaaaaaaa{% endif %}";
    let template = case.file("template", template);
    let serving = case.serve(&[&["--chat-template-file", &template], options].concat());
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"messages": messages, "chat_template_kwargs": variables});
    let prompt = serving.post("/apply-template", &body).json()["prompt"].take();
    prompt.as_str().unwrap().matches('a').count()
}

/// A chat template that knows all that is said.
const TEMPLATE: &str = "aaaaa{% for message in messages %}{{ message.content }}{% endfor %}";

const TABLE: &[Row] = &[
    // The model, and what is said to it.
    Row(
        &["-m", "--model"],
        &["MODEL"],
        Works("MODEL", |case| {
            for name in ["-m", "--model"] {
                assert_eq!(case.with(&[name, &case.model])["tokens"], case.usual());
            }
        }),
        Works("MODEL", |case| {
            let serving = Serving::of(case.command(&["serve", "--port", "0", "-m", &case.model]));
            assert_eq!(serving.get("/health").status, 200);
        }),
    ),
    Row(
        &["-hf", "-hfr", "--hf-repo"],
        &["org/m"],
        Works("hf.co/USER/REPO", |case| {
            assert_eq!(case.with(&["-hf", "org/m"])["tokens"], case.usual());
        }),
        Works("hf.co/USER/REPO", |case| {
            let words = ["serve", "--port", "0", "-hf", "org/m:F32"];
            assert_eq!(Serving::of(case.command(&words)).get("/health").status, 200);
        }),
    ),
    Row(
        &["-hff", "--hf-file"],
        &["m-F32.gguf", "-hf", "org/m"],
        Works("hf.co/USER/REPO:FILE", |case| {
            let got = case.with(&["-hf", "org/m", "-hff", "m-F32.gguf"]);
            assert_eq!(got["tokens"], case.usual());
        }),
        Works("hf.co/USER/REPO:FILE", |case| {
            let words = ["serve", "--port", "0", "-hff", "m-F32.gguf", "-hf", "org/m"];
            assert_eq!(Serving::of(case.command(&words)).get("/health").status, 200);
        }),
    ),
    Row(
        &["--offline"],
        &[],
        Works("--offline", |case| {
            let mut online = case.command(&["run", "-hf", "org/none", "x", "--offline"]);
            let said = done(online.env_remove("HF_HUB_OFFLINE").output().unwrap());
            said.fails(1, &["offline"]);
        }),
        Works("--offline", |case| {
            let mut online = case.command(&["serve", "-hf", "org/none", "--offline"]);
            let said = done(online.env_remove("HF_HUB_OFFLINE").output().unwrap());
            said.fails(1, &["offline"]);
        }),
    ),
    Row(
        &["-p", "--prompt"],
        &["aaaa"],
        Works("PROMPT", |case| {
            let words = [&["run", &case.model, "aaaa"], &PROMPT[..], &["5"]].concat();
            let got: Value = serde_json::from_str(&case.said(&words).succeeds().stdout).unwrap();
            assert_eq!(got["tokens"], case.usual());
        }),
        Answered,
    ),
    Row(
        &["-f", "--file"],
        &["FILE"],
        Works("--file", |case| {
            let file = case.file("prompt", "aaaa");
            let words = [&["run", &case.model, "-f", &file], &PROMPT[..], &["5"]].concat();
            let got: Value = serde_json::from_str(&case.said(&words).succeeds().stdout).unwrap();
            assert_eq!(got["tokens"], case.usual());
        }),
        Answered,
    ),
    Row(
        &["-sys", "--system-prompt"],
        &["aa"],
        Works("--system", |case| {
            let template = case.file("template", TEMPLATE);
            let words = [
                "run",
                &case.model,
                "-p",
                "a",
                "--json",
                "-n",
                "1",
                "--chat-template-file",
                &template,
            ];
            let prompt = |more: &[&str]| {
                let done = case.said(&[&words[..], more].concat()).succeeds();
                serde_json::from_str::<Value>(&done.stdout).unwrap()["prompt_tokens"]
                    .as_u64()
                    .unwrap()
            };
            assert!(prompt(&["-sys", "aaaa"]) > prompt(&[]));
        }),
        Answered,
    ),
    Row(&["-e", "--escape"], &[], Answered, Answered),
    Row(&["-cnv", "--conversation"], &[], Answered, Answered),
    Row(
        &["-no-cnv", "--no-conversation"],
        &[],
        Works("--raw", |case| {
            // Not said to be so because the model has no template, but because it was asked for.
            assert_eq!(
                case.said(&["run", &case.model, "-p", "a", "-n", "1", "-no-cnv"]).succeeds().stderr,
                ""
            );
            assert_ne!(
                case.said(&["run", &case.model, "-p", "a", "-n", "1"]).succeeds().stderr,
                ""
            );
        }),
        Answered,
    ),
    Row(&["-i", "--interactive"], &[], Answered, Answered),
    Row(&["-st", "--single-turn"], &[], Answered, Answered),
    Row(&["--jinja"], &[], Answered, Answered),
    Row(&["--chat-template"], &["chatml"], Answered, Answered),
    Row(
        &["--chat-template-file"],
        &["FILE"],
        Works("--chat-template-file", |case| {
            let template = case.file("template", "aaaaaaaaaa");
            let words = [
                "run",
                &case.model,
                "-p",
                "a",
                "--json",
                "-n",
                "1",
                "--chat-template-file",
                &template,
            ];
            let got: Value = serde_json::from_str(&case.said(&words).succeeds().stdout).unwrap();
            assert!(got["prompt_tokens"].as_u64().unwrap() >= 10, "{got}");
        }),
        Works("--chat-template-file", |case| {
            let template = case.file("template", TEMPLATE);
            let serving = case.serve(&["--chat-template-file", &template]);
            let body = json!({"messages": [{"role": "user", "content": "a"}]});
            assert_eq!(serving.post("/apply-template", &body).json()["prompt"], "<s>aaaaaa");
        }),
    ),
    Row(
        &["--chat-template-kwargs"],
        &["{}"],
        Works("--chat-template-kwargs", |case| {
            let template = case.file("template", "a{{ more }}");
            let words = ["run", &case.model, "-p", "a", "--json", "-n", "1"];
            let words = [&words[..], &["--chat-template-file", &template]].concat();
            let tokens = |more: &[&str]| {
                let done = case.said(&[&words[..], more].concat()).succeeds();
                serde_json::from_str::<Value>(&done.stdout).unwrap()["prompt_tokens"].clone()
            };
            let given = tokens(&["--chat-template-kwargs", "{\"more\": \"aaaa\"}"]);
            assert_eq!(given.as_u64(), tokens(&[]).as_u64().map(|n| n + 4));
            for wrong in ["[]", "{", "{\"messages\": []}"] {
                let said = case.said(&[&words[..], &["--chat-template-kwargs", wrong]].concat());
                said.fails_as_usage("--chat-template-kwargs");
            }
        }),
        Works("--chat-template-kwargs", |case| {
            let given =
                ["--chat-template-kwargs", "{\"more\": \"aa\", \"enable_thinking\": false}"];
            assert_eq!(rendered(case, &given, json!({})), 1 + 2 + 4);
            let own = json!({"more": "a", "enable_thinking": true});
            assert_eq!(rendered(case, &given, own), 1 + 1);
            // The variable itself comes before the option for it.
            let given = [&given[..], &["--reasoning", "on"]].concat();
            assert_eq!(rendered(case, &given, json!({})), 1 + 2 + 4);
        }),
    ),
    Row(
        &["-rea", "--reasoning"],
        &["off"],
        Works("--no-thinking", |case| {
            // (It is refused with --raw, as --no-thinking is.)
            let said = case.said(&["run", &case.model, "-p", "a", "--raw", "-rea", "off"]);
            said.fails_as_usage("--no-thinking");
            case.run(&["--reasoning", "on"]);
        }),
        Works("--reasoning", |case| {
            for (name, when, wanted) in [
                ("--reasoning", "off", 1 + 4),
                ("-rea", "off", 1 + 4),
                ("-rea", "on", 1),
                ("--reasoning", "auto", 1),
            ] {
                assert_eq!(rendered(case, &[name, when], json!({})), wanted);
            }
            let own = json!({"enable_thinking": true});
            assert_eq!(rendered(case, &["--reasoning", "off"], own), 1);
        }),
    ),
    Row(
        &["--reasoning-budget"],
        &["0"],
        Works("--no-thinking", |case| {
            let said = case.said(&["run", &case.model, "-p", "a", "--raw", "--reasoning-budget=0"]);
            said.fails_as_usage("--no-thinking");
            case.run(&["--reasoning-budget", "-1"]);
        }),
        Works("--reasoning-budget", |case| {
            assert_eq!(rendered(case, &["--reasoning-budget", "7"], json!({})), 1 + 8);
            assert_eq!(rendered(case, &["--reasoning-budget", "-1"], json!({})), 1);
            let own = json!({"thinking_budget": 8});
            assert_eq!(rendered(case, &["--reasoning-budget", "7"], own), 1);
        }),
    ),
    Row(
        &["-j", "--json-schema"],
        &["{}"],
        Works("--json-schema", |case| {
            // Of the letters of JSON the model has none, so no answer can begin.
            for name in ["-j", "--json-schema"] {
                let words = ["run", &case.model, "--raw", "-p", "a", name, "{\"type\":\"null\"}"];
                case.said(&words).fails(2, &["--json-schema", "no answer can begin"]);
            }
        }),
        Answered,
    ),
    Row(
        &["--grammar"],
        &["root ::= \"a\""],
        Works("--grammar", |case| {
            let got = case.run(&["--grammar", "root ::= \"aa\""]);
            assert_eq!((&got["text"], &got["finish"]), (&json!("aa"), &json!("stop")));
        }),
        Answered,
    ),
    Row(&["-mm", "--mmproj"], &["m.gguf"], Answered, Answered),
    Row(
        &["--lora"],
        &["a.gguf"],
        Works("--lora", |case| {
            let words = ["run", &case.model, "--raw", "-p", "a", "--lora", "a.gguf"];
            case.said(&words).fails(1, &["a.gguf"]);
        }),
        Works("--lora", |case| {
            case.said(&["serve", &case.model, "--lora", "a.gguf"]).fails(1, &["a.gguf"]);
        }),
    ),
    // How long it is.
    Row(
        &["-n", "--predict", "--n-predict"],
        &["3"],
        Works("--predict", |case| {
            for name in ["-n", "--predict", "--n-predict"] {
                assert_eq!(case.run(&[name, "3"])["generated_tokens"], 3);
            }
        }),
        Works("--predict", |case| {
            let body = json!({"prompt": "aaaa", "ignore_eos": true});
            let answer = case.serve(&["-n", "3"]).post("/v1/completions", &body).json();
            assert_eq!(answer["usage"]["completion_tokens"], 3);
        }),
    ),
    Row(
        &["-c", "--ctx-size"],
        &["8"],
        Works("--ctx-size", |case| {
            assert_eq!(
                case.said(&["run", &case.model, "--raw", "-p", "aaaa", "--ignore-eos", "-c", "8"])
                    .succeeds()
                    .stderr
                    .matches("context of 8 tokens")
                    .count(),
                1
            );
        }),
        Works("--ctx-size", |case| {
            let props = case.serve(&["-c", "8"]).get("/props").json();
            assert_eq!(props["default_generation_settings"]["n_ctx"], 8);
        }),
    ),
    Row(
        &["--ignore-eos"],
        &[],
        Works("--ignore-eos", |case| {
            let some: Vec<u64> = (0..20)
                .map(|seed| {
                    let seed = seed.to_string();
                    let words = [
                        "run",
                        &case.model,
                        "--raw",
                        "--json",
                        "--temp",
                        "9",
                        "-s",
                        &seed,
                        "-n",
                        "20",
                        "-p",
                        "a",
                    ];
                    let got = case.said(&words).succeeds().stdout;
                    serde_json::from_str::<Value>(&got).unwrap()["generated_tokens"]
                        .as_u64()
                        .unwrap()
                })
                .collect();
            assert!(some.iter().any(|n| *n < 20), "{some:?}");
            assert_eq!(case.run(&["-n", "60", "--ignore-eos"])["generated_tokens"], 60);
        }),
        Answered,
    ),
    Row(
        &["-r", "--reverse-prompt"],
        &["a"],
        Works("--stop", |case| {
            let stopped = |name: &str| {
                let got = case.run(&["-n", "60", name, "a"]);
                (got["finish"].clone(), got["text"].as_str().unwrap().contains('a'))
            };
            let expected = (Value::from("stop"), false);
            assert_eq!((stopped("-r"), stopped("--reverse-prompt")), (expected.clone(), expected));
        }),
        Answered,
    ),
    Row(&["--context-shift"], &[], Answered, Answered),
    Row(&["--no-context-shift"], &[], Answered, Answered),
    Row(&["--keep"], &["4"], Answered, Answered),
    // How tokens are chosen.
    Row(
        &["-s", "--seed"],
        &["7"],
        Works("--seed", |case| {
            assert_eq!(case.run(&["-s", "7"])["seed"], 7);
            assert_eq!(case.tokens(&["-s", "7"]), case.tokens(&["--seed", "7"]));
        }),
        Works("--seed", |case| {
            let (one, other) = (["--temp", "9", "-s", "7"], ["--temp", "9", "--seed", "8"]);
            assert_eq!(case.served(&one), case.served(&one));
            assert_ne!(case.served(&one), case.served(&other));
        }),
    ),
    Row(
        &["--temp", "--temperature"],
        &["0"],
        Works("--temp", |case| {
            assert_eq!(case.tokens(&["--temperature", "0"]), case.greedy());
            assert_ne!(case.usual(), case.greedy());
        }),
        Works("--temp", |case| makes_greedy(case, &["--temperature", "0"])),
    ),
    Row(
        &["--top-k"],
        &["1"],
        Works("--top-k", |case| assert_eq!(case.tokens(&["--top-k", "1"]), case.greedy())),
        Works("--top-k", |case| makes_greedy(case, &["--top-k", "1"])),
    ),
    Row(
        &["--top-p"],
        &["0.0001"],
        Works("--top-p", |case| assert_eq!(case.tokens(&["--top-p", "0.0001"]), case.greedy())),
        Works("--top-p", |case| makes_greedy(case, &["--top-p", "0.0001"])),
    ),
    Row(
        &["--min-p"],
        &["1"],
        Works("--min-p", |case| assert_eq!(case.tokens(&["--min-p", "1"]), case.greedy())),
        Works("--min-p", |case| makes_greedy(case, &["--min-p", "1"])),
    ),
    Row(
        &["--repeat-penalty"],
        &["9"],
        Works("--repeat-penalty", |case| penalizes(case, &["--repeat-penalty", "9"])),
        Works("--repeat-penalty", |case| penalizes_served(case, &["--repeat-penalty", "9"])),
    ),
    Row(
        &["--repeat-last-n"],
        &["0"],
        Works("--repeat-last-n", |case| {
            let words = ["--temp", "0", "-n", "20", "--presence-penalty", "9"];
            assert_ne!(
                case.tokens(&words),
                case.tokens(&[&words[..], &["--repeat-last-n", "0"]].concat())
            );
        }),
        Works("--repeat-last-n", |case| {
            let words = ["--temp", "0", "-n", "20", "--presence-penalty", "9"];
            assert_ne!(
                case.served(&words),
                case.served(&[&words[..], &["--repeat-last-n", "0"]].concat())
            );
        }),
    ),
    Row(
        &["--presence-penalty"],
        &["9"],
        Works("--presence-penalty", |case| penalizes(case, &["--presence-penalty", "9"])),
        Works("--presence-penalty", |case| penalizes_served(case, &["--presence-penalty", "9"])),
    ),
    Row(
        &["--frequency-penalty"],
        &["9"],
        Works("--frequency-penalty", |case| penalizes(case, &["--frequency-penalty", "9"])),
        Works("--frequency-penalty", |case| penalizes_served(case, &["--frequency-penalty", "9"])),
    ),
    Row(
        &["--top-nsigma", "--top-n-sigma"],
        &["0.0001"],
        Works("--top-nsigma", |case| {
            for name in ["--top-nsigma", "--top-n-sigma"] {
                assert_eq!(case.tokens(&[name, "0.0001"]), case.greedy());
            }
        }),
        Works("--top-nsigma", |case| makes_greedy(case, &["--top-nsigma", "0.0001"])),
    ),
    Row(
        &["--xtc-probability"],
        &["1"],
        Works("--xtc-probability", |case| {
            differs(case, "--temp 0 --top-p 1 --min-p 0 --xtc-threshold 0", "--xtc-probability 1")
        }),
        Works("--xtc-probability", |case| {
            differs_served(
                case,
                "--temp 0 --top-p 1 --min-p 0 --xtc-threshold 0",
                "--xtc-probability 1",
            )
        }),
    ),
    Row(
        &["--xtc-threshold"],
        &["0.6"],
        Works("--xtc-threshold", |case| {
            changes_nothing(
                case,
                "--temp 0 --top-p 1 --min-p 0 --xtc-probability 1 --xtc-threshold 0.6",
                "--temp 0 --top-p 1 --min-p 0",
            )
        }),
        Works("--xtc-threshold", |case| {
            changes_nothing_served(
                case,
                "--temp 0 --top-p 1 --min-p 0 --xtc-probability 1 --xtc-threshold 0.6",
                "--temp 0 --top-p 1 --min-p 0",
            )
        }),
    ),
    Row(
        &["--dry-multiplier"],
        &["9"],
        Works("--dry-multiplier", |case| differs(case, "--temp 0 -n 20", "--dry-multiplier 9")),
        Works("--dry-multiplier", |case| {
            differs_served(case, "--temp 0 -n 20", "--dry-multiplier 9")
        }),
    ),
    Row(
        &["--dry-base"],
        &["40"],
        Works("--dry-base", |case| {
            differs(case, "--temp 0 -n 20 --dry-multiplier 0.0001", "--dry-base 40")
        }),
        Works("--dry-base", |case| {
            differs_served(case, "--temp 0 -n 20 --dry-multiplier 0.0001", "--dry-base 40")
        }),
    ),
    Row(
        &["--dry-allowed-length"],
        &["40"],
        Works("--dry-allowed-length", |case| {
            changes_nothing(
                case,
                "--temp 0 -n 20 --dry-multiplier 9 --dry-allowed-length 40",
                "--temp 0 -n 20",
            )
        }),
        Works("--dry-allowed-length", |case| {
            changes_nothing_served(
                case,
                "--temp 0 -n 20 --dry-multiplier 9 --dry-allowed-length 40",
                "--temp 0 -n 20",
            )
        }),
    ),
    Row(
        &["--dry-penalty-last-n"],
        &["0"],
        Works("--dry-penalty-last-n", |case| {
            changes_nothing(
                case,
                "--temp 0 -n 20 --dry-multiplier 9 --dry-penalty-last-n 0",
                "--temp 0 -n 20",
            )
        }),
        Works("--dry-penalty-last-n", |case| {
            changes_nothing_served(
                case,
                "--temp 0 -n 20 --dry-multiplier 9 --dry-penalty-last-n 0",
                "--temp 0 -n 20",
            )
        }),
    ),
    Row(
        &["--dry-sequence-breaker"],
        &["a"],
        Works("--dry-sequence-breaker", breaks),
        Works("--dry-sequence-breaker", breaks_served),
    ),
    Row(
        &["--mirostat"],
        &["2"],
        Works("--mirostat", |case| {
            for version in ["1", "2"] {
                let words = ["--mirostat", version, "--mirostat-ent", "0"];
                assert_eq!(case.tokens(&words), case.greedy());
            }
            assert_eq!(case.tokens(&["--mirostat", "0"]), case.usual());
        }),
        Works("--mirostat", |case| makes_greedy(case, &["--mirostat", "2", "--mirostat-ent", "0"])),
    ),
    Row(
        &["--mirostat-ent"],
        &["0"],
        Works("--mirostat-ent", |case| {
            differs(case, "--mirostat 2 --temp 9 --seed 1", "--mirostat-ent 0")
        }),
        Works("--mirostat-ent", |case| {
            differs_served(case, "--mirostat 2 --temp 9 --seed 1", "--mirostat-ent 0")
        }),
    ),
    Row(
        &["--mirostat-lr"],
        &["0.5"],
        Works("--mirostat-lr", |case| {
            differs(
                case,
                "--mirostat 2 --temp 9 --seed 1 --mirostat-ent 0.5 --mirostat-lr 0",
                "--mirostat-lr 9",
            )
        }),
        Works("--mirostat-lr", |case| {
            differs_served(
                case,
                "--mirostat 2 --temp 9 --seed 1 --mirostat-ent 0.5 --mirostat-lr 0",
                "--mirostat-lr 9",
            )
        }),
    ),
    Row(
        &["--samplers"],
        &["temperature"],
        Works("--samplers", |case| {
            changes_nothing(
                case,
                "--samplers top_k;temperature --top-k 3 --temp 9 --seed 1",
                "--top-p 1 --min-p 0 --top-k 3 --temp 9 --seed 1",
            )
        }),
        Works("--samplers", |case| {
            changes_nothing_served(
                case,
                "--samplers top_k;temperature --top-k 3 --temp 9 --seed 1",
                "--top-p 1 --min-p 0 --top-k 3 --temp 9 --seed 1",
            )
        }),
    ),
    Row(
        &["--sampler-seq", "--sampling-seq"],
        &["kt"],
        Works("--sampler-seq", |case| {
            for name in ["--sampler-seq", "--sampling-seq"] {
                changes_nothing(
                    case,
                    &format!("{name} kt --top-k 3 --temp 9 --seed 1"),
                    "--top-p 1 --min-p 0 --top-k 3 --temp 9 --seed 1",
                );
            }
        }),
        Works("--sampler-seq", |case| {
            changes_nothing_served(
                case,
                "--sampler-seq kt --top-k 3 --temp 9 --seed 1",
                "--top-p 1 --min-p 0 --top-k 3 --temp 9 --seed 1",
            )
        }),
    ),
    // How it is computed.
    Row(
        &["-t", "--threads"],
        &["1"],
        Works("--threads", |case| {
            assert_eq!(case.run(&["-t", "1"])["threads"], 1);
            assert_eq!(case.run(&["--threads", "2"])["threads"], 2);
        }),
        Works("--threads", |case| {
            case.said(&["serve", &case.model, "-t", "-1"]).fails_as_usage("from 1 to");
            assert_eq!(case.serve(&["-t", "1"]).get("/health").status, 200);
        }),
    ),
    Row(&["-tb", "--threads-batch"], &["8"], Answered, Answered),
    Row(
        &["-b", "--batch-size"],
        &["512"],
        Answered,
        Works("--batch-size", |case| {
            case.said(&["serve", &case.model, "-b", "0"]).fails_as_usage("--batch-size");
            assert_eq!(case.served(&["-b", "1", "--temp", "0"]), case.served(&["--temp", "0"]));
        }),
    ),
    Row(&["-ub", "--ubatch-size"], &["512"], Answered, Answered),
    Row(
        &["-cram", "--cache-ram"],
        &["1"],
        Answered,
        Works("--cache-ram", |case| {
            let reused = |words: &[&str]| {
                let serving = case.serve(words);
                let body = json!({"prompt": "a".repeat(150), "ignore_eos": true, "temperature": 0});
                let ask = || serving.post("/v1/completions", &body).json();
                let [first, again] = [ask(), ask()];
                assert_eq!(first["choices"][0]["text"], again["choices"][0]["text"]);
                again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
            };
            assert_eq!(reused(&["-cram", "0"]), 0);
            assert!(reused(&["--cache-ram", "-1"]) > 0);
            assert!(reused(&["-cram", "1"]) > 0);
            case.said(&["serve", &case.model, "-cram", "-2"]).fails_as_usage("--cache-ram");
        }),
    ),
    Row(&["-fa", "--flash-attn"], &["on"], Answered, Answered),
    Row(
        &["-ctk", "--cache-type-k"],
        &["q8_0"],
        Works("--cache-type", |case| holds_less(case, &["-ctk", "q8_0"])),
        Works("--cache-type", |case| {
            case.said(&["serve", &case.model, "--cache-type-k=q2_k"])
                .fails_as_usage("f16, q8_0, q4r");
            assert_eq!(case.serve(&["-ctk", "q8_0"]).get("/health").status, 200);
        }),
    ),
    Row(
        &["-ctv", "--cache-type-v"],
        &["q8_0"],
        Works("--cache-type", |case| holds_less(case, &["--cache-type-v=q8_0"])),
        Works("--cache-type", |case| {
            case.said(&["serve", &case.model, "-ctv", "q2_k"]).fails_as_usage("f16, q8_0, q4r");
            assert_eq!(case.serve(&["-ctv", "q8_0"]).get("/health").status, 200);
        }),
    ),
    Row(
        &["--mlock"],
        &[],
        Works("--lock", |case| {
            assert!(case.run(&["--mlock"])["load"]["bytes_locked"].as_u64().unwrap() > 0)
        }),
        Works("--lock", |case| assert_eq!(case.serve(&["--mlock"]).get("/health").status, 200)),
    ),
    Row(
        &["--no-mmap"],
        &[],
        Works("--load read", |case| assert_eq!(case.run(&["--no-mmap"])["load"]["method"], "read")),
        Works("--load read", |case| loads(case, "--no-mmap", "--load read")),
    ),
    Row(
        &["--mmap"],
        &[],
        Works("--load mmap", |case| assert_eq!(case.run(&["--mmap"])["load"]["method"], "mmap")),
        Works("--load mmap", |case| loads(case, "--mmap", "--load mmap")),
    ),
    Row(
        &["-lm", "--load-mode"],
        &["dio"],
        Works("--load, --lock", |case| {
            for (mode, method) in [("dio", "direct"), ("none", "read"), ("mmap", "mmap")] {
                assert_eq!(case.run(&["-lm", mode])["load"]["method"], method);
            }
            let both = case.run(&["--load-mode=mmap+mlock"])["load"].take();
            assert!(
                both["method"] == "mmap" && both["bytes_locked"].as_u64().unwrap() > 0,
                "{both}"
            );
        }),
        Works("--load, --lock", |case| {
            case.said(&["serve", &case.model, "-lm", "fast"])
                .fails(2, &["there is no -lm fast", "dio"]);
            assert_eq!(case.serve(&["-lm", "none"]).get("/health").status, 200);
        }),
    ),
    Row(&["-ngl", "--gpu-layers", "--n-gpu-layers"], &["99"], Answered, Answered),
    Row(&["-dev", "--device"], &["none"], Answered, Answered),
    Row(&["-sm", "--split-mode"], &["layer"], Answered, Answered),
    Row(&["-mg", "--main-gpu"], &["0"], Answered, Answered),
    Row(&["-ts", "--tensor-split"], &["1,1"], Answered, Answered),
    Row(&["-ot", "--override-tensor"], &["exps=CPU"], Answered, Answered),
    Row(&["-ncmoe", "--n-cpu-moe"], &["8"], Answered, Answered),
    Row(&["-nkvo", "--no-kv-offload"], &[], Answered, Answered),
    Row(&["--rope-scaling"], &["yarn"], Answered, Answered),
    Row(
        &["-md", "--model-draft", "--spec-draft-model"],
        &["MODEL"],
        Works("--draft", |case| {
            assert_eq!(case.tokens(&["-md", &case.model]), case.usual());
            case.said(&["run", &case.model, "--raw", "-p", "a", "-md", "none.gguf"])
                .fails(1, &["none.gguf"]);
        }),
        Works("--draft", |case| {
            assert_eq!(
                case.served(&["-md", &case.model, "--temp", "0"]),
                case.served(&["--temp", "0"])
            );
            case.said(&["serve", &case.model, "-md", "none.gguf"]).fails(1, &["none.gguf"]);
        }),
    ),
    Row(&["--prompt-cache"], &["FILE"], Answered, Answered),
    Row(&["--no-warmup"], &[], Answered, Answered),
    // What is shown.
    Row(&["-v", "--verbose", "--log-verbose"], &[], Answered, Answered),
    Row(
        &["--perf"],
        &[],
        Works("--stats", |case| {
            let said = case.said(&[
                "run",
                &case.model,
                "--raw",
                "-p",
                "a",
                "-n",
                "2",
                "--ignore-eos",
                "--perf",
            ]);
            assert!(said.succeeds().stderr.contains("tokens/s"));
        }),
        Answered,
    ),
    Row(&["-co", "--color"], &["on"], Answered, Answered),
    Row(&["--no-display-prompt"], &[], Answered, Answered),
    // The server.
    Row(
        &["-np", "--parallel"],
        &["3"],
        Answered,
        Works("--parallel", |case| {
            for name in ["-np", "--parallel"] {
                assert_eq!(case.serve(&[name, "3"]).get("/props").json()["total_slots"], 3);
            }
            case.said(&["serve", &case.model, "-np", "-1"]).fails_as_usage("from 1 to");
        }),
    ),
    Row(&["-cb", "--cont-batching"], &[], Answered, Answered),
    Row(
        &["-a", "--alias"],
        &["name"],
        Answered,
        Works("--alias", |case| {
            let models = case.serve(&["-a", "name"]).get("/v1/models").json();
            assert_eq!(models["data"][0]["id"], "name");
        }),
    ),
    Row(
        &["--host"],
        &["127.0.0.2"],
        Answered,
        Works("--host", |case| {
            let serving = case.serve(&["--host", "127.0.0.2"]);
            assert!(serving.address.starts_with("127.0.0.2:"), "{}", serving.address);
        }),
    ),
    Row(
        &["--port"],
        &["0"],
        Answered,
        Works("--port", |case| {
            let free =
                std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let serving = case.serve(&["--port", &free.to_string()]);
            assert!(serving.address.ends_with(&format!(":{free}")), "{}", serving.address);
        }),
    ),
    Row(
        &["--api-key"],
        &["secret"],
        Answered,
        Works("--api-key", |case| {
            let serving = case.serve(&["--api-key", "secret"]);
            assert_eq!(serving.get("/v1/models").status, 401);
            let key = [("Authorization", "Bearer secret")];
            assert_eq!(serving.request("GET", "/v1/models", &key, b"").status, 200);
        }),
    ),
    Row(
        &["--metrics"],
        &[],
        Answered,
        Works("--metrics", |case| {
            assert_eq!(case.serve(&["--metrics"]).get("/metrics").status, 200);
            assert_ne!(case.serve(&[]).get("/metrics").status, 200);
        }),
    ),
    Row(
        &["--slots"],
        &[],
        Answered,
        Works("--slots", |case| {
            assert_eq!(case.serve(&["--no-slots", "--slots"]).get("/slots").status, 200);
        }),
    ),
    Row(&["--embedding", "--embeddings"], &[], Answered, Answered),
];

/// The tokens that repeat are fewer, or others.
fn penalizes(case: &Case, words: &[&str]) {
    let usual = ["--temp", "0", "-n", "20", "--repeat-penalty", "1"];
    assert_ne!(case.tokens(&[&usual[..], words].concat()), case.tokens(&usual), "{words:?}");
}

fn penalizes_served(case: &Case, words: &[&str]) {
    let usual = ["--temp", "0", "-n", "20", "--repeat-penalty", "1"];
    assert_ne!(case.served(&[&usual[..], words].concat()), case.served(&usual), "{words:?}");
}

/// With these options `more` makes a difference.
fn differs(case: &Case, options: &str, more: &str) {
    let both = format!("{options} {more}");
    assert_ne!(case.tokens(&words(&both)), case.tokens(&words(options)), "{more}");
}

fn differs_served(case: &Case, options: &str, more: &str) {
    let both = format!("{options} {more}");
    assert_ne!(case.served(&words(&both)), case.served(&words(options)), "{more}");
}

/// These options give what the others give.
fn changes_nothing(case: &Case, options: &str, others: &str) {
    assert_eq!(case.tokens(&words(options)), case.tokens(&words(others)), "{options}");
}

fn changes_nothing_served(case: &Case, options: &str, others: &str) {
    assert_eq!(case.served(&words(options)), case.served(&words(others)), "{options}");
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// Where each token breaks sequences, none repeats one.
const BREAKERS: [&str; 10] =
    ["<", "a", " ", "\u{1b}", "\u{9b}", "\u{7f}", "\u{202e}", "\u{2066}", "\u{8}", "\r"];

fn with_breakers<'w>(words: &[&'w str]) -> Vec<&'w str> {
    let breakers = BREAKERS.iter().flat_map(|text| ["--dry-sequence-breaker", text]);
    words.iter().copied().chain(breakers).collect()
}

fn breaks(case: &Case) {
    let (plain, dry) = (["--temp", "0", "-n", "20"], ["--dry-multiplier", "9"]);
    let dry = [&plain[..], &dry].concat();
    let none = [&with_breakers(&dry)[..], &["--dry-sequence-breaker", "none"]].concat();
    assert_eq!(case.tokens(&with_breakers(&dry)), case.tokens(&plain));
    assert_ne!(case.tokens(&none), case.tokens(&plain));
}

fn breaks_served(case: &Case) {
    let plain = ["--temp", "0", "-n", "20"];
    let dry = [&plain[..], &["--dry-multiplier", "9"]].concat();
    assert_eq!(case.served(&with_breakers(&dry)), case.served(&plain));
}

/// Keys and values take less.
fn holds_less(case: &Case, words: &[&str]) {
    let held = |words: &[&str]| case.run(words)["held"]["keys_and_values"].as_u64().unwrap();
    assert!(held(words) < held(&[]), "{words:?}");
}

/// The server says with `--explain-load` that this option of ours was given.
fn loads(case: &Case, theirs: &str, ours: &str) {
    let serving = case.serve(&[theirs, "--explain-load"]);
    assert!(serving.stop(libc::SIGTERM).1.contains(ours), "{theirs}");
}

/// What a command says to an option that it does not have: `not needed: …` or `no: …`.
fn answer(case: &Case, command: &str, name: &str, values: &[&str]) -> String {
    // A file that is not there ends a command whose words are in order.
    let prompt: &[&str] = if command == "run" { &["-n", "1"] } else { &[] };
    let said = case.said(&[&[command, "none.gguf", name], values, prompt].concat());
    let lines: Vec<&str> = said.stderr.lines().collect();
    let [first, rest @ ..] = &lines[..] else { panic!("{command} {name} says nothing") };
    let whole = format!("{command} {name}: {}", said.stderr);
    if let Some(why) = first.strip_prefix(&format!("alight: note: {name} is not needed: ")) {
        assert!(
            said.status == Some(1) && rest.len() == 1 && rest[0].contains("none.gguf"),
            "{whole}"
        );
        return format!("not needed: {why}");
    }
    said.fails(2, &[]);
    assert!(rest.is_empty(), "{whole}");
    let why =
        first.strip_prefix("alight: error: there is no ").unwrap_or_else(|| panic!("{whole}"));
    let why = why.strip_prefix(name).unwrap_or_else(|| panic!("{whole}"));
    let (_, why) = why.split_once(": ").unwrap_or_else(|| panic!("{whole}"));
    format!("no: {why}")
}

/// The same, where a command may have the option, or another one for it.
fn answer_or_works(case: &Case, command: &str, name: &str, values: &[&str]) -> String {
    let said = case.said(&[&[command, "none.gguf", name], values].concat());
    let by_itself = said.status == Some(0) && !said.stdout.is_empty() && said.stderr.is_empty();
    let taken = said.status == Some(1)
        && said.stderr.lines().count() == 1
        && said.stderr.contains("none.gguf");
    let wants = said.status == Some(2) && said.stderr.contains("invalid value 'X'");
    let asks =
        said.status == Some(1) && said.stderr.contains("'X'") || said.stderr.contains("'hf.co/X'");
    if by_itself || taken || wants || asks {
        "works".to_owned()
    } else {
        answer(case, command, name, values)
    }
}

/// A row of a table: names, what `run` makes of them, and `serve`.
fn row(names: &str, [run, serve]: &[String; 2]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
    let second = if serve == run { "the same" } else { serve };
    format!("| {names} | {} | {} |\n", cell(run), cell(second))
}

fn code(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[test]
fn the_most_used_options_work_or_are_answered_as_the_page_says() {
    let case = Case::new();
    let help = ["run", "serve"].map(|command| alight(&[command, "--help"]).succeeds().stdout);
    let mut most = String::from("| llama.cpp | `alight run` | `alight serve` |\n|---|---|---|\n");
    for Row(names, values, run, serve) in TABLE {
        let cells = [("run", run, &help[0]), ("serve", serve, &help[1])].map(
            |(command, expected, help)| match expected {
                Works(ours, check) => {
                    check(&case);
                    let options = ours.split(", ").map(|one| one.split(' ').next().unwrap());
                    let known = |one: &str| help.contains(one) || one.starts_with("hf.co/");
                    options.for_each(|one| assert!(known(one), "{command} has no {one}"));
                    if names.contains(ours) {
                        "works".to_owned()
                    } else {
                        format!("works: `{ours}`")
                    }
                }
                Answered => {
                    let texts: Vec<_> =
                        names.iter().map(|name| answer(&case, command, name, values)).collect();
                    assert!(texts.windows(2).all(|two| two[0] == two[1]), "{texts:?}");
                    texts[0].clone()
                }
            },
        );
        most += &row(&code(names), &cells);
    }
    // All others, by what is said of them.
    let mut others: Vec<([String; 2], Vec<String>)> = Vec::new();
    let mut differ = Vec::new();
    for line in include_str!("data/llama_cpp_options.txt").lines() {
        let (names, values): (Vec<&str>, Vec<&str>) =
            line.split(' ').partition(|word| word.starts_with('-'));
        let texts: Vec<[String; 2]> = names
            .iter()
            .map(|name| {
                ["run", "serve"].map(|command| answer_or_works(&case, command, name, &values))
            })
            .collect();
        if texts.windows(2).any(|two| two[0] != two[1]) {
            differ.push(format!("{names:?}: {texts:?}"));
        }
        let Some(said) = texts.into_iter().next() else { panic!("{line}") };
        match others.iter_mut().find(|(known, _)| *known == said) {
            Some((_, all)) => all.push(code(&names)),
            None => others.push((said, vec![code(&names)])),
        }
    }
    let mut rest = String::from("| llama.cpp | `alight run` | `alight serve` |\n|---|---|---|\n");
    for (cells, names) in others {
        rest += &row(&names.join("; "), &cells);
    }
    // Other names of an option are answered alike.
    assert!(differ.is_empty(), "{}", differ.join("\n"));
    page(&most, &rest);
}

/// Compares the tables with the page, or writes them into it.
fn page(most: &str, rest: &str) {
    let path: PathBuf =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/llama-cpp.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut made = text.clone();
    for (name, table) in [("most", most), ("rest", rest)] {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let (before, after) = made.split_once(&begin).expect(name);
        let (_, after) = after.split_once(&end).expect(name);
        made = format!("{before}{begin}\n{table}\n{end}{after}");
    }
    if std::env::var_os("ALIGHT_WRITE").is_some() {
        fs::write(&path, made).unwrap();
    } else if made != text {
        let new = made.lines().find(|line| !text.contains(line)).unwrap_or_default();
        panic!(
            "docs/reference/llama-cpp.md is not what the commands say; ALIGHT_WRITE=1 writes it. New: {new}"
        );
    }
}
