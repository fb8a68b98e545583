//! Models of a hub through the command: `pull`, `list`, `rm`, and `hf.co/…` and `-hf` where a model is given. The hub is
//! that of the tests of `crates/hub`; what it does when it lies is tested there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use alight_formats::GgmlType;
use alight_formats::gguf::write::Builder;
use serde_json::Value;

use crate::support::fake_hub::{COMMIT, FakeHub, REPO, bytes, sha256};
use crate::support::{self, Done, alight, command, done, ended, kill, pty, wild};

/// A hub, and an empty cache.
pub struct Case {
    pub hub: FakeHub,
    pub folder: tempfile::TempDir,
}

/// With a model that runs, as Q8_0, Q4_K_M and F16.
fn case() -> Case {
    let folder = tempfile::tempdir().unwrap();
    let model = fs::read(wild::model(folder.path())).unwrap();
    let hub = FakeHub::with(&[
        ("README.md", b"about it".to_vec()),
        ("mmproj-F16.gguf", b"no language model".to_vec()),
        ("m-Q8_0.gguf", model.clone()),
        ("m-Q4_K_M.gguf", [&model[..], &[0]].concat()),
        ("m-F16.gguf", [&model[..], &[0, 0]].concat()),
    ]);
    Case { hub, folder }
}

impl Case {
    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    pub fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = command(args);
        for name in
            ["HF_HOME", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE"]
        {
            command.env_remove(name);
        }
        command.env("HOME", self.folder.path()).env("HF_HUB_CACHE", self.cache());
        command.env("HF_ENDPOINT", &self.hub.endpoint).env("NO_PROXY", "*");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn alight(&self, args: &[&str]) -> Done {
        done(self.command(args).output().unwrap())
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.cache().join("models--org--model-GGUF/snapshots").join(COMMIT).join(name)
    }

    fn tokens(&self, options: &[&str]) -> Vec<Value> {
        let usual = ["--temp", "0", "-n", "3", "--ignore-eos", "--raw", "-p", "aaa", "--json"];
        let done = self.alight(&[&["run"], options, &usual].concat()).succeeds();
        let answer: Value = serde_json::from_str(&done.stdout).unwrap();
        answer["tokens"].as_array().unwrap().clone()
    }
}

#[test]
fn the_bar_of_a_pull_is_one_line_also_after_the_terminal_became_narrower() {
    let folder = tempfile::tempdir().unwrap();
    let hub = FakeHub::with(&[("m-Q8_0.gguf", bytes(3_000_000, 7))]);
    let case = Case { hub, folder };
    case.hub.plan().rate = Some(1_500_000);
    let mut pull = pty::Pty::start(case.command(&["pull", REPO]), None);
    pull.expect("pulling hf.co/");
    pull.expect(" of 3.00 MB");
    pull.resize(40);
    // One update may be on its way.
    pull.expect(" of 3.00 MB");
    pull.expect(" of 3.00 MB");
    let narrow = pull.text().len();
    assert!(pull.end().success(), "{}", pull.text());
    let text = pull.text().split_off(narrow);
    let (bars, said) = text.split_once("pulled ").expect("what was done is reported");
    let pieces: Vec<&str> = bars.split("\r\x1b[K").collect();
    assert!(pieces.len() > 1, "{text:?}");
    for piece in &pieces[1..] {
        assert!(piece.chars().count() < 40 && !piece.contains('\n'), "{piece:?}");
    }
    assert!(said.starts_with("hf.co/org/model-GGUF:Q8_0"), "{said:?}");
}

#[test]
fn pull_writes_where_the_model_is() {
    let case = case();
    let pulled = case.alight(&["pull", REPO, &format!("{REPO}:q8_0")]).succeeds();
    let expected =
        ["m-Q4_K_M.gguf", "m-Q8_0.gguf"].map(|name| case.file(name).display().to_string());
    assert_eq!(pulled.stdout.lines().collect::<Vec<_>>(), expected);
    let said: Vec<&str> = pulled.stderr.lines().collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[0].starts_with("pulling hf.co/org/model-GGUF:Q4_K_M ("), "{said:?}");
    assert!(said[1].starts_with("pulled hf.co/org/model-GGUF:Q4_K_M: "), "{said:?}");
    assert!(!pulled.stderr.contains('\x1b'), "a bar is for terminals");
    let again = case.alight(&["pull", "--json", REPO]).succeeds();
    assert_eq!(again.stderr, "");
    let json: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((&json["tag"], &json["received_bytes"]), (&"Q4_K_M".into(), &0.into()));
    assert_eq!((&json["commit"], &json["path"]), (&COMMIT.into(), &expected[0].as_str().into()));
    // Nothing is anywhere but in the cache.
    let mut there: Vec<_> =
        fs::read_dir(case.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    there.retain(|name| name != "hub" && !name.to_string_lossy().ends_with(".gguf"));
    assert!(there.is_empty(), "{there:?}");
}

#[test]
fn offline_pull_says_what_is_in_the_cache() {
    let case = case();
    let pulled = case.alight(&["pull", &format!("{REPO}:Q8_0")]).succeeds();
    case.hub.asked();
    let there = case.alight(&["pull", "--offline", REPO]).succeeds();
    assert_eq!((there.stdout, there.stderr.as_str()), (pulled.stdout, ""));
    let json = case.alight(&["pull", "--offline", "--json", REPO]).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["tag"], &json["received_bytes"]), (&"Q8_0".into(), &0.into()));
    let other = format!("{REPO}:Q4_K_M");
    case.alight(&["pull", "--offline", &other])
        .fails(1, &[&other, "nothing is fetched offline; of this repository it has Q8_0\n"]);
    case.alight(&["pull", "--offline", "org/none"]).fails(1, &["nothing is fetched offline\n"]);
    assert!(case.hub.asked().is_empty());
}

#[test]
fn what_cannot_be_pulled_is_one_sentence() {
    let case = case();
    case.alight(&["pull", "name"]).fails(2, &["'name' is not the name of a model", "USER/REPO"]);
    case.alight(&["pull", "../x"]).fails(2, &["is not the name"]);
    case.alight(&["pull", "https://example.com/foo.gguf"])
        .fails(2, &["other servers than the hub", "curl -LO"]);
    case.alight(&["pull", REPO, "--revision", "../x"]).fails(2, &["a revision is"]);
    case.alight(&["pull", &format!("{REPO}:Q2_K")]).fails(1, &["'Q2_K'", "F16, Q4_K_M, Q8_0"]);
    case.alight(&["pull", "org/other"]).fails(1, &["org/other"]);
    let mut elsewhere = case.command(&["pull", REPO]);
    done(elsewhere.env("HF_ENDPOINT", "nonsense").output().unwrap()).fails(1, &["HF_ENDPOINT"]);
    let mut offline = case.command(&["pull", REPO]);
    done(offline.env("HF_HUB_OFFLINE", "1").output().unwrap()).fails(1, &["offline"]);
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    assert!(!case.cache().exists());
}

#[test]
fn a_name_is_a_model_wherever_a_path_is() {
    let case = case();
    let name = format!("hf.co/{REPO}:Q8_0");
    let local = wild::model(case.folder.path());
    let expected = case.tokens(&[&local]);
    assert_eq!(expected.len(), 3);
    let first = case.tokens(&[&name]);
    assert_eq!(first, expected);
    assert!(case.hub.asked().iter().any(|one| one.cdn));
    // From now on nobody is asked.
    for options in [
        &[&name[..]][..],
        &["-hf", "org/model-GGUF:Q8_0"],
        &["--hf-repo", "org/model-GGUF:q8_0", "--offline"],
        &["--hf-repo=org/model-GGUF:Q8_0"],
        &["-hf", REPO, "-hff", "m-Q8_0.gguf"],
        &["-hf", "org/model-GGUF:Q4_K_M", "-hff", "m-Q8_0.gguf"],
        &["-mu", &format!("https://huggingface.co/{REPO}/resolve/main/m-Q8_0.gguf")],
        &[&local, "-hfd", "org/model-GGUF:Q8_0"],
        &[&local, "--draft", &name],
    ] {
        assert_eq!(case.tokens(options), expected, "{options:?}");
    }
    assert!(case.hub.asked().is_empty());
    let shown = case.alight(&["inspect", &name, "--tensors"]).succeeds();
    assert_eq!(shown.stderr, "");
    case.alight(&["bench", "decode", &name, "-n", "2", "-r", "1"]).succeeds();
    let packed = case.folder.path().join("packed.gguf");
    case.alight(&["pack", &name, "-o", packed.to_str().unwrap()]).succeeds();
    assert!(case.hub.asked().is_empty());
}

#[test]
fn a_name_that_cannot_be_had_is_one_sentence() {
    let case = case();
    let run = |model: &str| case.alight(&["run", model, "x"]);
    run("hf.co/name").fails(2, &["is not the name of a model"]);
    run("http://example.com/foo.gguf").fails(2, &["other servers than the hub", "curl -LO"]);
    run(&format!("hf.co/{REPO}:Q2_K")).fails(1, &["F16, Q4_K_M, Q8_0"]);
    case.alight(&["run", "-hf"]).fails(2, &["-hf needs a value"]);
    case.alight(&["run", "-hff", "x.gguf", "x"]).fails(2, &["give -hf"]);
    run("org/model-GGUF:Q8_0").fails(1, &["does not exist", "hf.co/org/model-GGUF:Q8_0"]);
    case.hub.asked();
    case.alight(&["run", "--offline", "-hf", REPO, "x"]).fails(1, &["nothing is fetched offline"]);
    assert!(case.hub.asked().is_empty());
}

#[test]
fn a_part_of_the_name_of_what_was_fetched_is_enough() {
    let case = case();
    let run = |model: &str| case.alight(&["run", model, "x", "-n", "1"]);
    let missing = |word: &str| run(word).fails(1, &["does not exist", " hf.co/USER/REPO"]);
    missing("Model");
    run(&format!("hf.co/{REPO}:Q8_0")).succeeds();
    case.hub.asked();
    for word in ["Model", "model-GGUF", "org/model", "MODEL:q8_0"] {
        let done = run(word).succeeds();
        let said = format!("'{word}' is hf.co/{REPO}:Q8_0");
        assert!(done.stderr.contains(&said), "{word}: {}", done.stderr);
    }
    let shown = case.alight(&["inspect", "model"]).succeeds();
    assert!(shown.stdout.contains("m-Q8_0.gguf"), "{}", shown.stdout);
    run("model:F16").fails(1, &["offline", "Q8_0"]);
    missing("other");
    // A file of that name is the file, and a misspelt path is a path.
    run("./model").fails(1, &["'./model' does not exist"]);
    run("model.gguf").fails(1, &["'model.gguf' does not exist"]);
    assert!(case.hub.asked().is_empty());
    // Another repository with it in its name.
    let other = case.cache().join("models--other--model-2/snapshots").join(COMMIT);
    fs::create_dir_all(&other).unwrap();
    fs::copy(case.file("m-Q8_0.gguf"), other.join("m-Q8_0.gguf")).unwrap();
    let refs = case.cache().join("models--other--model-2/refs");
    fs::create_dir_all(&refs).unwrap();
    fs::write(refs.join("main"), COMMIT).unwrap();
    run("mod").fails(1, &["several names", &format!("hf.co/{REPO}, hf.co/other/model-2")]);
    run("model").succeeds();
    run("model-2").succeeds();
}

#[test]
fn what_a_repository_has_is_listed_before_anything_is_fetched() {
    let case = case();
    case.hub.add("huge-Q6_K.gguf", vec![0], true);
    let sizes =
        |path: &str| case.hub.plan().files.iter().find(|f| f.path == path).unwrap().bytes.len();
    let (q8, f16) = (sizes("m-Q8_0.gguf"), sizes("m-F16.gguf"));
    // One that no memory holds.
    let listing = format!(
        r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m-Q8_0.gguf","size":{q8}}},
            {{"rfilename":"m-F16.gguf","size":{f16}}},{{"rfilename":"m-Q4_K_M.gguf","size":{q8}}},
            {{"rfilename":"huge-Q6_K.gguf","size":{}}}]}}"#,
        1_u64 << 43
    );
    case.hub.plan().listing = Some(listing);
    let list = case.alight(&["pull", "--list", REPO]).succeeds();
    let line = |tag: &str| {
        let name = format!("hf.co/{REPO}:{tag} ");
        list.stdout
            .lines()
            .find(|line| line.starts_with(&name))
            .unwrap_or_else(|| panic!("{tag}: {}", list.stdout))
    };
    assert!(list.stdout.lines().next().unwrap().contains("  here: "), "{}", list.stdout);
    assert!(line("Q8_0").ends_with("  fits"), "{}", list.stdout);
    assert!(line("Q4_K_M").ends_with("  fits, default"), "{}", list.stdout);
    assert!(
        line("Q6_K").contains("8.80 TB") && line("Q6_K").ends_with("  too large"),
        "{}",
        list.stdout
    );
    // The longest names that are usual have a line of 80 columns.
    let longest = list.stdout.lines().map(str::len).max().unwrap();
    assert!(longest - format!("hf.co/{REPO}:Q4_K_M").len() <= 79 - 52, "{}", list.stdout);
    assert_eq!(list.stderr, "");
    let json = case.alight(&["pull", "--list", "--json", REPO]).succeeds().stdout;
    let json: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let default: Vec<_> =
        json.iter().filter(|one| one["default"] == true).map(|one| &one["tag"]).collect();
    assert_eq!((json.len(), default), (4, vec![&Value::from("Q4_K_M")]));
    assert!(json.iter().any(|one| one["bytes"] == f16 && one["files"][0] == "m-F16.gguf"));
    assert!(!case.cache().exists() && case.hub.asked().iter().all(|one| !one.cdn));
    case.alight(&["pull", "--list", "--offline", REPO]).fails(1, &["nothing is fetched offline"]);
}

#[test]
fn inspect_fetches_a_header_and_no_more() {
    let case = case();
    let q8 = case.hub.plan().files.iter().find(|f| f.path == "m-Q8_0.gguf").unwrap().bytes.clone();
    let large = [&q8[..], &vec![7; 24 << 20]].concat();
    case.hub.add("m-Q6_K.gguf", large.clone(), true);
    let name = format!("hf.co/{REPO}:Q6_K");
    case.hub.asked();
    let shown = case.alight(&["inspect", &name]).succeeds();
    let file = format!("file          hf.co/{REPO}:m-Q6_K.gguf");
    assert!(shown.stdout.contains(&file), "{}", shown.stdout);
    let needs = shown.stdout.lines().find(|line| line.starts_with("needs ")).unwrap();
    assert!(needs.contains("weights ") && shown.stdout.contains("fits in memory: "), "{needs}");
    assert!(!shown.stdout.contains("cached"), "nothing of it can be: {}", shown.stdout);
    let said = format!("{name} is not in the cache: its header was fetched, ");
    assert!(shown.stderr.contains(&said), "{}", shown.stderr);
    let ranges: Vec<_> = case.hub.asked().into_iter().filter_map(|one| one.range).collect();
    assert_eq!(ranges, [(0, (4 << 20) - 1)]);
    assert!(!case.cache().exists());
    let json = case.alight(&["inspect", "--json", &name]).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["files"][0]["bytes"], large.len());
    let needed = &json["session"]["needed"];
    assert_eq!(needed["mapped"], large.len());
    assert!(needed["keys_and_values"].as_u64().unwrap() > 0, "{needed}");
    // A header that is no header, and one whose end never comes.
    case.hub.add("m-Q5_K.gguf", vec![7; 5 << 20], true);
    case.alight(&["inspect", &format!("hf.co/{REPO}:Q5_K")])
        .fails(1, &["m-Q5_K.gguf", "not a GGUF file"]);
    case.hub.plan().content_range = Some("bytes 1-2/3".to_owned());
    case.alight(&["inspect", &name]).fails(1, &["another range"]);
}

#[test]
fn the_headers_that_inspect_fetches_leave_no_file_whatever_ends_it() {
    use std::io::Read;
    // Its list of tensors is longer than a pipe.
    let mut file = Builder::new();
    file.str("general.architecture", "llama");
    for no in 0..3000 {
        file.tensor(&format!("blk.{no}.attn_norm.weight"), GgmlType::F32, &[4]).unwrap();
    }
    let model = file.file(|_, bytes| bytes.fill(0));
    let folder = tempfile::tempdir().unwrap();
    let case = Case { hub: FakeHub::with(&[("m-F32.gguf", model)]), folder };
    let temporary = case.folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let name = format!("hf.co/{REPO}:F32");
    let mut inspect = case.command(&["inspect", "--tensors", &name]);
    let mut child = inspect.env("TMPDIR", &temporary).spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    assert_eq!(support::names(&temporary), [""; 0]);
    kill(&child, libc::SIGKILL);
    assert!(!ended(&mut child).success());
}

/// A folder of Hugging Face's with a small Llama.
fn safetensors(folder: &Path) {
    let (width, rows, vocab) = (32, 64, 384);
    let layer = "model.layers.0";
    let shapes = [
        ("model.embed_tokens.weight".to_owned(), vec![vocab, width]),
        ("model.norm.weight".to_owned(), vec![width]),
        (format!("{layer}.input_layernorm.weight"), vec![width]),
        (format!("{layer}.post_attention_layernorm.weight"), vec![width]),
        (format!("{layer}.self_attn.q_proj.weight"), vec![width, width]),
        (format!("{layer}.self_attn.k_proj.weight"), vec![width, width]),
        (format!("{layer}.self_attn.v_proj.weight"), vec![width, width]),
        (format!("{layer}.self_attn.o_proj.weight"), vec![width, width]),
        (format!("{layer}.mlp.gate_proj.weight"), vec![rows, width]),
        (format!("{layer}.mlp.up_proj.weight"), vec![rows, width]),
        (format!("{layer}.mlp.down_proj.weight"), vec![width, rows]),
    ];
    let tensors: Vec<_> = shapes
        .into_iter()
        .enumerate()
        .map(|(i, (name, shape))| support::folders::Tensor { name, shape, first: i })
        .collect();
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
        "intermediate_size": rows, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "vocab_size": vocab, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true,
        "hidden_act": "silu", "torch_dtype": "float32",
    });
    support::folders::write_folder(folder, &tensors, &config);
}

#[test]
fn safetensors_of_the_hub_are_pulled_and_converted() {
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("local");
    safetensors(&local);
    let hub =
        FakeHub::with(&[("pytorch_model.bin", bytes(100, 1)), ("onnx/model.onnx", bytes(100, 2))]);
    for entry in fs::read_dir(&local).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        hub.add(&name, fs::read(local.join(&name)).unwrap(), name.ends_with(".safetensors"));
    }
    let case = Case { hub, folder };
    // Nothing is fetched that would not run.
    let convert = format!("`alight convert hf.co/{REPO} -o model.gguf`");
    case.alight(&["run", &format!("hf.co/{REPO}"), "x"]).fails(1, &["no .gguf file", &convert]);
    assert!(!case.cache().exists());
    let expected = case.folder.path().join("expected.gguf");
    case.alight(&["convert", local.to_str().unwrap(), "-o", expected.to_str().unwrap()]).succeeds();
    let out = case.folder.path().join("out.gguf");
    let name = format!("hf.co/{REPO}");
    case.alight(&["convert", &name, "-o", out.to_str().unwrap(), "--offline"])
        .fails(1, &["offline"]);
    let converted = case.alight(&["convert", &name, "-o", out.to_str().unwrap()]).succeeds();
    assert!(
        converted.stderr.contains("pulled hf.co/org/model-GGUF:safetensors: "),
        "{}",
        converted.stderr
    );
    let (ours, theirs) = (fs::read(&out).unwrap(), fs::read(&expected).unwrap());
    // (The name of a model without one in its configuration is that of its folder.)
    assert!(ours.len().abs_diff(theirs.len()) < 256, "{} {}", ours.len(), theirs.len());
    assert_eq!(ours[ours.len() - 4096..], theirs[theirs.len() - 4096..]);
    // The other forms of the model stay where they are.
    let asked = case.hub.asked();
    assert!(asked.iter().all(|one| !one.path.contains("onnx") && !one.path.contains("pytorch")));
    // The folder is what `pull` prints, and nothing is fetched twice.
    let pulled = case.alight(&["pull", REPO]).succeeds();
    assert_eq!(
        (pulled.stdout.trim_end(), pulled.stderr.as_str()),
        (case.file("").to_str().unwrap().trim_end_matches('/'), "")
    );
    let again = case.alight(&["pull", "--offline", "--json", REPO]).succeeds().stdout;
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(
        (&again["tag"], &again["path"]),
        (&"safetensors".into(), &pulled.stdout.trim_end().into())
    );
    assert_eq!(again["files"].as_array().unwrap().len(), 3, "{again}");
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    let list = case.alight(&["list"]).succeeds().stdout;
    assert!(list.starts_with("hf.co/org/model-GGUF:safetensors  "), "{list}");
    case.alight(&["rm", REPO]).succeeds();
    assert!(!case.cache().join("models--org--model-GGUF").exists());
}

#[test]
fn the_models_to_begin_with_are_the_same_everywhere() {
    let help = case().alight(&["pull", "--help"]).succeeds().stdout;
    let of_help: Vec<&str> = help
        .split_whitespace()
        .filter(|word| word.starts_with("hf.co/") && !word.contains("USER"))
        .collect();
    assert_eq!(of_help.len(), 3, "{help}");
    for command in ["run", "serve"] {
        alight(&[command])
            .fails_as_usage(&format!("`alight {command} {}` fetches a small model", of_help[0]));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let run = case().alight(&["run", "--help"]).succeeds().stdout;
    for page in ["README.md", "docs/tutorial/first-ten-minutes.md", "docs/how-to/hub.md"] {
        let text = fs::read_to_string(root.join(page)).unwrap();
        for name in &of_help {
            assert!(text.contains(&format!("alight run {name}")), "{page} lacks {name}");
            assert!(run.contains(*name), "{name}");
        }
    }
}

#[test]
fn every_command_that_takes_a_name_can_be_told_to_fetch_nothing() {
    let case = case();
    let name = format!("hf.co/{REPO}:Q8_0");
    let out = case.folder.path().join("out.gguf");
    let out = out.to_str().unwrap();
    case.hub.asked();
    for words in [
        &["run", &name, "x"][..],
        &["batch", &name, "/dev/null"],
        &["serve", &name],
        &["inspect", &name],
        &["inspect", &name, "--watch"],
        &["convert", &name, "-o", out],
        &["perplexity", &name, "/dev/null"],
        &["bench", &name],
        &["bench", "decode", &name],
        &["pack", &name, "-o", out],
        &["quantize", &name, "-o", out, "--type", "q8_0"],
    ] {
        let words = [words, &["--offline"]].concat();
        case.alight(&words).fails(1, &["nothing is fetched offline"]);
    }
    assert!(case.hub.asked().is_empty());
}

#[test]
fn what_is_there_runs_when_the_hub_cannot_be_reached() {
    let case = case();
    case.alight(&["pull", &format!("{REPO}:Q8_0")]).succeeds();
    let nowhere = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let run = ["run", "-hf", REPO, "--raw", "-p", "aaa", "-n", "1"];
    case.hub.asked();
    let mut offline = case.command(&run);
    let answered = done(offline.env("HF_HUB_OFFLINE", "1").output().unwrap()).succeeds();
    assert_eq!(answered.stderr, "");
    assert!(case.hub.asked().is_empty());
    // Without a name of a quantization the hub may have something better.
    let mut alone = case.command(&run);
    let answered = done(alone.env("HF_ENDPOINT", nowhere).output().unwrap()).succeeds();
    assert!(answered.stderr.contains("org/model-GGUF:Q8_0 is in the cache"), "{}", answered.stderr);
    assert_eq!(answered.stderr.lines().count(), 1);
}

#[test]
fn all_parts_of_a_model_are_fetched_and_the_first_is_run() {
    let case = case();
    let parts = ["s/m-Q5_K_M-00001-of-00002.gguf", "s/m-Q5_K_M-00002-of-00002.gguf"];
    for (no, path) in parts.iter().enumerate() {
        case.hub.add(path, bytes(500, no as u64), true);
    }
    // Whether they are a model is not the hub's business.
    let failed = case.alight(&["run", &format!("hf.co/{REPO}:Q5_K_M"), "x"]);
    assert_eq!(failed.status, Some(1));
    assert!(failed.stderr.contains("m-Q5_K_M-00001-of-00002.gguf"), "{}", failed.stderr);
    for path in parts {
        assert_eq!(fs::metadata(case.file(path)).unwrap().len(), 500);
    }
}

#[test]
fn list_and_rm_know_what_is_there() {
    let case = case();
    assert_eq!(case.alight(&["list"]).succeeds().stdout, "");
    case.alight(&["pull", REPO, &format!("{REPO}:Q8_0")]).succeeds();
    let list = case.alight(&["list"]).succeeds();
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("hf.co/org/model-GGUF:Q4_K_M  ") && lines[0].ends_with("  now"),
        "{lines:?}"
    );
    let json = case.alight(&["ls", "--json"]).succeeds().stdout;
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["name"], "hf.co/org/model-GGUF:Q4_K_M");
    assert_eq!(first["path"], case.file("m-Q4_K_M.gguf").to_str().unwrap());
    case.alight(&["rm", REPO]).fails(1, &["Q4_K_M, Q8_0", "--all"]);
    let removed = case.alight(&["rm", &format!("hf.co/{REPO}:q4_k_m")]).succeeds();
    assert!(
        removed.stderr.starts_with("removed hf.co/org/model-GGUF:Q4_K_M, "),
        "{}",
        removed.stderr
    );
    assert!(!case.file("m-Q4_K_M.gguf").exists() && case.file("m-Q8_0.gguf").exists());
    case.alight(&["rm", &format!("{REPO}:Q4_K_M")]).fails(1, &["not in the cache", "alight list"]);
    // In short, and of several none is chosen.
    case.alight(&["pull", REPO]).succeeds();
    case.alight(&["rm", "model-gguf"]).fails(1, &["Q4_K_M, Q8_0", "--all"]);
    case.alight(&["rm", "another"]).fails(2, &["'another' is not the name of a model on the hub"]);
    let removed = case.alight(&["rm", "model:Q4_K_M"]).succeeds();
    assert!(
        removed.stderr.starts_with("removed hf.co/org/model-GGUF:Q4_K_M, "),
        "{}",
        removed.stderr
    );
    assert!(case.file("m-Q8_0.gguf").exists());
    case.alight(&["rm", "--all", REPO]).succeeds();
    assert_eq!(case.alight(&["list"]).succeeds().stdout, "");
    assert!(!case.cache().join("models--org--model-GGUF").exists());
}

#[test]
fn a_model_is_kept_packed_and_comes_back_to_the_byte() {
    let case = case();
    let name = format!("hf.co/{REPO}:Q8_0");
    let original =
        case.hub.plan().files.iter().find(|f| f.path == "m-Q8_0.gguf").unwrap().bytes.clone();
    let pulled = case.alight(&["pull", "--pack", &name]).succeeds();
    let path = case.file("m-Q8_0.packed.gguf").display().to_string();
    assert_eq!(pulled.stdout.trim_end(), path);
    let lines: Vec<&str> = pulled.stderr.lines().collect();
    assert!(
        lines[1].starts_with("pulled hf.co/org/model-GGUF:Q8_0: ")
            && lines[2].starts_with("packed hf.co/org/model-GGUF:Q8_0: "),
        "{lines:?}"
    );
    assert!(!case.file("m-Q8_0.gguf").exists());
    // Every command that takes a name finds it, and nobody is asked.
    case.hub.asked();
    let local = wild::model(case.folder.path());
    assert_eq!(case.tokens(&[&name]), case.tokens(&[&local]));
    assert_eq!(case.tokens(&["model"]), case.tokens(&["-hf", "org/model-GGUF:q8_0", "--pack"]));
    let shown = case.alight(&["inspect", &name]).succeeds().stdout;
    assert!(shown.contains("tiles16") && shown.contains("m-Q8_0.packed.gguf"), "{shown}");
    let list = case.alight(&["list"]).succeeds().stdout;
    assert!(list.starts_with(&name) && list.ends_with("  now  packed\n"), "{list}");
    let json = case.alight(&["list", "--json"]).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["packed"], &json["path"]), (&true.into(), &path.as_str().into()));
    assert!(case.hub.asked().is_empty());
    // The hub's own file comes back, and is not fetched for it.
    let out = case.folder.path().join("out.gguf");
    let unpacked = case.alight(&["unpack", &path, "-o", out.to_str().unwrap()]).succeeds();
    assert!(unpacked.stderr.contains(&sha256(&original)), "{}", unpacked.stderr);
    assert!(fs::read(&out).unwrap() == *original);
    let again = case.alight(&["pull", &name]).succeeds();
    assert_eq!(again.stdout.trim_end(), path);
    assert!(
        again.stderr.contains("kept packed, and nothing was fetched: `alight unpack`"),
        "{}",
        again.stderr
    );
    let again = case.alight(&["pull", "--pack", "--json", &name]).succeeds();
    assert_eq!(again.stderr, "");
    let json: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!((&json["packed"], &json["received_bytes"]), (&true.into(), &0.into()));
    assert_eq!(json["bytes"], fs::metadata(&path).unwrap().len());
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    case.alight(&["rm", &format!("{REPO}:m-Q8_0.gguf")]).succeeds();
    assert!(!case.cache().join("models--org--model-GGUF").exists());
}

#[test]
fn what_is_there_is_packed_without_a_network() {
    let case = case();
    let name = format!("{REPO}:Q8_0");
    case.alight(&["pull", &name]).succeeds();
    case.hub.asked();
    let packed = case.alight(&["pull", "--pack", "--offline", &name]).succeeds();
    assert_eq!(packed.stdout.trim_end(), case.file("m-Q8_0.packed.gguf").to_str().unwrap());
    assert!(!case.file("m-Q8_0.gguf").exists() && case.hub.asked().is_empty());
    case.alight(&["pull", "--pack", "--list", &name]).fails_as_usage("--list");
    // A split model, and one whose packed form cannot be written.
    for no in [1, 2] {
        case.hub.add(&format!("s-Q5_K_M-0000{no}-of-00002.gguf"), bytes(500, no), true);
    }
    let error = ["cannot be kept packed", "several files", "run it with --pack"];
    case.alight(&["pull", "--pack", &format!("{REPO}:Q5_K_M")]).fails(1, &error);
    assert!(case.hub.asked().iter().all(|one| !one.cdn));
    case.hub.add("broken-Q6_K.gguf", bytes(5000, 1), true);
    let failed = case.alight(&["pull", "--pack", &format!("{REPO}:Q6_K")]);
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("Q6_K stays in the cache as the hub has it"),
        "{}",
        failed.stderr
    );
    assert_eq!(fs::read(case.file("broken-Q6_K.gguf")).unwrap(), bytes(5000, 1));
}

#[test]
fn whatever_ends_the_packing_the_next_call_packs_what_was_fetched() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let model = fs::read(support::source(folder.path(), 48)).unwrap();
    let case = Case { hub: FakeHub::with(&[("m-F16.gguf", model.clone())]), folder };
    let name = format!("{REPO}:F16");
    let cached = case.cache().join("models--org--model-GGUF");
    for signal in [libc::SIGKILL, libc::SIGINT] {
        loop {
            let mut child = case.command(&["pull", "--pack", &name]).spawn().unwrap();
            let mut stderr = BufReader::new(child.stderr.take().unwrap());
            let mut said = String::new();
            // The second time nothing is fetched.
            while signal == libc::SIGKILL && !said.contains("pulled ") {
                assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
            }
            kill(&child, signal);
            if !ended(&mut child).success() {
                break;
            }
            // The packing was faster than the signal: once more, from what is fetched.
            fs::remove_dir_all(&cached).unwrap();
            if signal == libc::SIGINT {
                case.alight(&["pull", &name]).succeeds();
            }
        }
        assert!(fs::read(case.file("m-F16.gguf")).unwrap() == model);
    }
    case.hub.asked();
    let path = case.alight(&["pull", "--pack", &name]).succeeds().stdout;
    assert!(case.hub.asked().iter().all(|one| !one.cdn), "it is fetched once");
    let blobs = fs::read_dir(cached.join("blobs")).unwrap();
    assert_eq!(blobs.count(), 1);
    let out = case.folder.path().join("out.gguf");
    case.alight(&["unpack", path.trim_end(), "-o", out.to_str().unwrap()]).succeeds();
    assert!(fs::read(&out).unwrap() == model);
}

/// Waits until so much of a body has been asked for that something has come.
fn until_something_came(incomplete: &Path) {
    let patience = std::time::Instant::now();
    while fs::metadata(incomplete).map_or(0, |meta| std::os::unix::fs::MetadataExt::blocks(&meta))
        < 512
    {
        assert!(patience.elapsed() < support::PATIENCE, "nothing comes");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn ctrl_c_keeps_what_was_received_and_the_next_pull_goes_on() {
    let case = case();
    let large = bytes(20 << 20, 1);
    case.hub.add("large-Q6_K.gguf", large.clone(), true);
    let incomplete = case.cache().join("models--org--model-GGUF/blobs");
    let incomplete = incomplete.join(format!("{}.alight.incomplete", sha256(&large)));
    let name = format!("{REPO}:Q6_K");
    let model = format!("hf.co/{name}");
    for args in [&["pull", &name][..], &["tokenize", &model, "x"]] {
        // As many bytes more come each time.
        case.hub.plan().quota = Some(4 << 20);
        let mut child = case.command(args).spawn().unwrap();
        until_something_came(&incomplete);
        while case.hub.plan().quota != Some(0) {
            thread::sleep(Duration::from_millis(5));
        }
        kill(&child, libc::SIGINT);
        let status = ended(&mut child);
        let stopped = done(child.wait_with_output().unwrap());
        assert_eq!(status.code(), Some(130), "{}", stopped.stderr);
        assert_eq!(stopped.stdout, "");
        assert!(
            stopped.stderr.contains("are kept; the next pull continues from there"),
            "{}",
            stopped.stderr
        );
        assert!(incomplete.exists() && !case.file("large-Q6_K.gguf").exists());
    }
    let mut list = pty::Pty::start(case.command(&["list"]), None);
    assert!(list.end().success());
    let said = list.text();
    assert!(
        said.contains("there is no model in ")
            && said.contains(" of org/model-GGUF are in the cache from a pull"),
        "{said}"
    );
    case.hub.plan().quota = None;
    let pulled = case.alight(&["pull", "--json", &name]).succeeds();
    assert!(pulled.stderr.contains("are in the cache; fits in memory"), "{}", pulled.stderr);
    let json: Value = serde_json::from_str(&pulled.stdout).unwrap();
    let received = json["received_bytes"].as_u64().unwrap();
    assert!(received < large.len() as u64, "{received}");
    assert!(fs::read(case.file("large-Q6_K.gguf")).unwrap() == large);
}

#[test]
fn after_a_pull_ctrl_c_is_what_it_is_without_one() {
    use std::io::{BufRead, BufReader, Read};
    let case = case();
    let name = format!("hf.co/{REPO}:Q8_0");
    // A server lets what is being answered end.
    let mut server = case.command(&["serve", &name, "--port", "0", "--no-cache"]).spawn().unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("listening on ") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    assert!(said.contains("pulled "), "{said}");
    kill(&server, libc::SIGINT);
    let status = ended(&mut server);
    stderr.read_to_string(&mut said).unwrap();
    assert!(status.code() == Some(0) && said.contains("shutting down: "), "{status}: {said}");
    // And what measures is ended.
    fs::remove_dir_all(case.cache()).unwrap();
    let mut bench =
        case.command(&["bench", "decode", &name, "-n", "100", "-r", "1000000"]).spawn().unwrap();
    let mut stderr = BufReader::new(bench.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("pulled ") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    kill(&bench, libc::SIGINT);
    let status = ended(&mut bench);
    assert!(!status.success(), "{status}");
}

#[test]
fn a_killed_pull_keeps_what_was_received() {
    let case = case();
    let large = bytes(20 << 20, 2);
    case.hub.add("large-Q6_K.gguf", large.clone(), true);
    case.hub.plan().quota = Some(4 << 20);
    let name = format!("{REPO}:Q6_K");
    let mut child = case.command(&["pull", &name]).spawn().unwrap();
    while case.hub.plan().quota != Some(0) {
        thread::sleep(Duration::from_millis(5));
    }
    let incomplete = case.cache().join("models--org--model-GGUF/blobs");
    until_something_came(&incomplete.join(format!("{}.alight.incomplete", sha256(&large))));
    kill(&child, libc::SIGKILL);
    ended(&mut child);
    case.hub.plan().quota = None;
    let json = case.alight(&["pull", "--json", &name]).succeeds().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert!(json["received_bytes"].as_u64().unwrap() < large.len() as u64);
    assert!(fs::read(case.file("large-Q6_K.gguf")).unwrap() == large);
}

#[test]
fn the_token_is_found_where_other_tools_keep_it() {
    let case = case();
    case.hub.plan().token = Some("hf_secret".to_owned());
    case.alight(&["pull", REPO]).fails(1, &["HF_TOKEN", "hf auth login"]);
    let home = case.folder.path().join("hf");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("token"), "hf_secret\n").unwrap();
    let mut with_file = case.command(&["pull", REPO]);
    done(with_file.env("HF_HOME", &home).output().unwrap()).succeeds();
    let mut with_variable = case.command(&["pull", &format!("{REPO}:Q8_0")]);
    done(with_variable.env("HF_TOKEN", "hf_secret").output().unwrap()).succeeds();
    assert!(case.hub.asked().iter().all(|one| !one.cdn || one.token.is_none()));
}
