//! `alight perplexity` and `alight bench` on a real model: that they run, what they write, and that
//! a model is no distance from itself. Agreement with llama.cpp's figures: `python -m evidence agree accuracy`.
//! Without the model file the tests say so and pass.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::wild::{self, Moe, Spec};
use crate::support::{alight, smollm2};

/// A file with a text of some 700 tokens.
fn text(dir: &Path) -> String {
    let mut text = String::new();
    for i in 0..60 {
        text += &format!("On day {i} the ship sailed {} miles towards the north. ", 7 * i + 3);
    }
    let path = dir.join("text.txt");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json(args: &[&str]) -> Value {
    let done = alight(args).succeeds();
    assert_eq!(done.stderr, "", "no progress where there is no terminal");
    assert_eq!(done.stdout.lines().count(), 1);
    serde_json::from_str(&done.stdout).unwrap()
}

#[test]
fn perplexity_of_a_text() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let text = text(dir.path());
    let args = ["perplexity", &model, &text, "-c", "128", "--chunks", "3"];
    let got = json(&[&args[..], &["--json"]].concat());
    assert_eq!((got["chunks"].as_u64(), got["n_ctx"].as_u64()), (Some(3), Some(128)));
    assert_eq!(got["positions"], 3 * 63);
    let value = got["perplexity"]["value"].as_f64().unwrap();
    assert!((1.0..30.0).contains(&value), "such a monotonous text is easy: {got}");
    assert!(got["perplexity"]["error"].as_f64().unwrap() > 0.0);
    let human = alight(&args).succeeds().stdout;
    assert!(human.starts_with(&format!("perplexity {value:.4} ± ")), "{human}");

    alight(&["perplexity", &model, &text, "-c", "4096"]).fails(1, &["at least 8192", "smaller -c"]);
    alight(&["perplexity", &model, "/nowhere.txt"]).fails(1, &["/nowhere.txt", "does not exist"]);
}

#[test]
fn a_model_is_no_distance_from_itself() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let text = text(dir.path());
    let base = dir.path().join("base.kl");
    let base = base.to_str().unwrap();
    let args = ["perplexity", &model, &text, "-c", "128", "--chunks", "2"];
    let saved = json(&[&args[..], &["--json", "--save-logits", base]].concat());
    assert_eq!(
        fs::metadata(base).unwrap().len(),
        20 + 2 * 128 * 4 + 2 * 63 * (49152 + 4) * 2,
        "the layout of llama-perplexity's files"
    );

    let got = json(&["perplexity", &model, "--kl-base", base, "--json"]);
    assert_eq!(got["positions"], 126);
    let number = |v: &Value| v.as_f64().unwrap();
    // 16 bits per log-probability are all that parts them.
    assert!(number(&got["kl"]["mean"]["value"]).abs() < 1e-5, "{got}");
    assert!(number(&got["kl"]["max"]).abs() < 1e-3, "{got}");
    assert!(number(&got["same_top"]["value"]) > 0.98, "{got}");
    assert!((number(&got["perplexity_ratio"]["value"]) - 1.0).abs() < 1e-4, "{got}");
    let parted = number(&got["perplexity"]["value"]) - number(&saved["perplexity"]["value"]);
    assert!(parted.abs() < 1e-9, "{got} {saved}");

    // One by one: other kernels, a little distance, never a large one.
    let steps =
        json(&["perplexity", &model, "--kl-base", base, "--json", "-b", "1", "--chunks", "1"]);
    assert_eq!(steps["positions"], 63);
    assert!(number(&steps["kl"]["mean"]["value"]) < 0.02, "{steps}");

    let human = alight(&["perplexity", &model, "--kl-base", base, "--chunks", "1"]).succeeds();
    assert!(human.stdout.contains("KL divergence  mean"), "{}", human.stdout);

    let cut = fs::read(base).unwrap();
    fs::write(base, &cut[..cut.len() - 2]).unwrap();
    alight(&["perplexity", &model, "--kl-base", base]).fails(1, &["base.kl", "not complete"]);
}

#[test]
fn benchmarks() {
    let Some(model) = smollm2() else { return };
    let number = |v: &Value| v.as_f64().unwrap_or_else(|| panic!("{v}"));
    for (what, size) in [("decode", "-n"), ("prefill", "-p")] {
        let got = json(&["bench", what, &model, size, "8", "-r", "2", "-d", "16", "--json"]);
        assert_eq!(got["what"], what);
        assert_eq!((got["tokens"].as_u64(), got["depth"].as_u64()), (Some(8), Some(16)));
        let rate = &got["tokens_per_second"];
        assert_eq!(rate["runs"], 2);
        assert!(number(&rate["min"]) > 0.0 && number(&rate["min"]) <= number(&rate["median"]));
        assert!(number(&rate["median"]) <= number(&rate["max"]));
        assert_eq!(got["token_ms"].is_null(), what == "prefill");
        let phases = got["phases"].as_array().unwrap();
        let names: Vec<_> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["open", "warm up", "measure"]);
        assert!(phases[2]["user_us"].as_u64().unwrap() > 0, "{got}");
        for key in ["bytes_per_second", "macs_per_second", "share_of_read_bandwidth"] {
            assert!(number(&got[key]) > 0.0, "{key}: {got}");
        }
        assert!(number(&got["limits"]["read_bytes_per_second"]) > 1e8, "{got}");
        // 134.5 M weights at 5.74 bits, the norms left out.
        if what == "decode" {
            let bytes = number(&got["work"]["weight_bytes"]) / 8.0;
            assert!((90e6..98e6).contains(&bytes), "{bytes}");
            let macs = number(&got["work"]["weight_macs"]) / 8.0;
            assert!((134e6..135e6).contains(&macs), "{macs}");
        }
    }
    let human = alight(&["bench", "decode", &model, "-n", "4", "-r", "1"]).succeeds();
    assert!(human.stdout.contains(" tokens/s, median of 1") && human.stderr.is_empty());
    assert!(human.stdout.contains("% of the "), "{}", human.stdout);
}

#[test]
fn a_table_of_models() {
    let Some(model) = smollm2() else { return };
    let few = ["-p", "8,0,4", "-n", "3", "-d", "0,5", "-r", "2"];
    let done = |format: &str, models: &[&str]| {
        let done = alight(&[&["bench"], models, &few, &["-o", format]].concat()).succeeds();
        assert_eq!(done.stderr, "");
        done.stdout
    };
    let rows: Value = serde_json::from_str(&done("json", &[&model, &model])).unwrap();
    let rows = rows.as_array().unwrap();
    let told: Vec<_> =
        rows.iter().map(|row| (&row["what"], &row["tokens"], &row["depth"])).collect();
    assert_eq!(rows.len(), 2 * 2 * 3, "{told:?}");
    assert_eq!(told[5], (&Value::from("decode"), &Value::from(3), &Value::from(5)));
    assert_eq!(rows[0]["bytes"], fs::metadata(&model).unwrap().len());
    for row in rows {
        let rate = &row["tokens_per_second"];
        assert!(rate["min"].as_f64().unwrap() > 0.0 && rate["runs"] == 2, "{row}");
    }
    let table = done("md", &["-m", &model]);
    let widths: Vec<_> = table.lines().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|width| *width == widths[0] && *width <= 110), "{table}");
    assert!(table.contains(" pp8 |") && table.contains(" tg3 @ d5 |"), "{table}");
    let csv = done("csv", &[&model]);
    assert_eq!(csv.lines().count(), 1 + 6, "{csv}");
    let commas = |line: &str| line.matches(',').count();
    assert!(csv.lines().all(|line| commas(line) == commas(csv.lines().next().unwrap())), "{csv}");
    // Several numbers of threads, and a line for each measurement.
    let args = ["bench", &*model, "-p", "4", "-n", "2", "-r", "1", "-t", "1,2", "-o", "jsonl"];
    let lines = alight(&args).succeeds().stdout;
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = rows.iter().map(|row| (row["threads"].as_u64(), &row["what"])).collect();
    let [prefill, decode] = ["prefill", "decode"].map(Value::from);
    let wanted = [(Some(1), &prefill), (Some(1), &decode), (Some(2), &prefill), (Some(2), &decode)];
    assert_eq!(told, wanted);
    alight(&["bench", &model, "-t", "1,0"]).fails_as_usage("expected a number from 1");
    alight(&["bench", &model, "-p", "0", "-n", "0"]).fails(2, &["nothing is to be measured"]);
    alight(&["bench"]).fails_as_usage("MODEL");
    alight(&["bench", &model, "-p", "many"]).fails_as_usage("expected numbers");
}

/// The states, proven; what each cell tells; and that the picture is one.
#[cfg(target_os = "linux")]
#[test]
fn loading_by_every_way() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("load.svg");
    let args = ["bench", "load", &model, "--no-packed", "-r", "1", "--load", "mmap,direct,auto"];
    let got = json(&[&args[..], &["--json", "--svg", svg.to_str().unwrap()]].concat());
    let cells = got["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3 * (3 + 3 + 1));
    assert_eq!(got["same_token"], true, "{got}");
    let bytes = fs::metadata(&model).unwrap().len();
    for cell in cells {
        let number = |key: &str| cell[key]["median"].as_f64().unwrap_or_else(|| panic!("{cell}"));
        assert!(number("first_token_ms") > 0.0 && number("peak_rss") > 1e6, "{cell}");
        assert!(number("rss_anon") > 0.0 && number("pss") > 0.0, "{cell}");
        // Other tests use the same file, so it may be warm again before it is read.
        if cell["state"] == "warm" && cell["load"] == "mmap" && cell["state_proven"] == true {
            assert!(number("read_bytes") < bytes as f64 / 10.0, "{cell}");
        }
        if cell["load"] == "direct" && cell["state"] == "warm" {
            assert!(number("read_bytes") > 0.8 * bytes as f64, "read from the disk: {cell}");
        }
        assert_eq!(cell["of_best"].is_null(), cell["load"] != "auto", "{cell}");
    }
    assert!(got["disk"]["alight_ms"]["median"].as_f64().unwrap() > 0.0);
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg "));

    let text = alight(&[&args[..], &["--state", "warm"]].concat()).succeeds().stdout;
    assert!(text.contains("\nwarm: ") && !text.contains("\ncold: "), "{text}");
    let wrong = alight(&["bench", "load", &model, "--state", "tepid"]);
    assert!(wrong.status == Some(2) && wrong.stderr.contains("cold, warm, resident"));
    alight(&["bench", "load", &model, "--packed", "/nowhere.gguf"]).fails(1, &["/nowhere.gguf"]);
}

#[test]
fn a_recorded_choice_of_experts_is_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let file = path.to_str().unwrap();
    // Two layers of 20 experts, of which one always comes and one is another each time.
    let mut text = "alight experts 1\n20 20\n".to_owned();
    for i in 0..40 {
        text += &format!("{} 3 {}\n", i % 2, 4 + i * 7 % 16);
    }
    fs::write(&path, text).unwrap();
    let done = alight(&["bench", "experts", "--replay", file, "--json"]).succeeds();
    let rows: Vec<Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 9);
    let mut before = 0.0;
    for row in &rows {
        let share = |rule: &str| row[rule].as_f64().unwrap();
        let (room, best) = (row["room"].as_u64().unwrap(), share("clairvoyant"));
        assert!(row["experts"] == 40 && best >= before, "{row}");
        assert!(share("alight") <= best && share("least_recent") <= best, "{row}");
        // What always comes stays, from the room for it and for what else comes at once.
        assert!(room < 4 || share("alight") >= 0.5, "{row}");
        before = best;
    }
    let table = alight(&["bench", "experts", "--replay", file]).succeeds().stdout;
    assert!(table.contains("clairvoyant") && table.lines().count() == 11, "{table}");
    fs::write(&path, "alight experts 1\n20 20\n0 20\n").unwrap();
    alight(&["bench", "experts", "--replay", file]).fails(1, &[file, "line 3", "below 20"]);
    let both = alight(&["bench", "experts", "--replay", file, "--memory", "4G"]);
    assert_eq!(both.status, Some(2));
    assert_eq!(alight(&["bench", "experts"]).status, Some(2));
    alight(&["bench", "experts", "--replay", file, "--svg=x.svg"]).fails_as_usage("--svg");
}

#[test]
fn a_picture_of_experts() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 16, used: 3, width: 64, ..Moe::default() };
    let spec = Spec { embd: 64, layers: 6, moe: Some(moe), ..Spec::qwen3moe() };
    let model = wild::model_of(dir.path(), spec);
    let svg = dir.path().join("experts.svg");
    let drawn = |memory: &str| {
        let svg = svg.to_str().unwrap();
        alight(&["bench", "experts", &model, "--memory", memory, "-n", "8", "--svg", svg, "--json"])
    };
    let told = drawn("1B");
    told.fails(1, &["raise --memory"]);
    let after = |words: &str| -> u64 {
        let (_, rest) = told.stderr.split_once(words).unwrap();
        rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
    };
    // The slots hold the experts of two of the six layers.
    let memory = 2 * after("experts of one layer take ") + after("everything else takes ");
    drawn(&format!("{memory}B")).succeeds();
    let text = fs::read_to_string(&svg).unwrap();
    assert!(text.starts_with("<svg ") && text.contains("6 layers with experts, tokens 1 to 16"));
    assert!(
        text.contains("class=\"hit\" d=\"M") && text.contains("class=\"miss\" d=\"M"),
        "{text}"
    );
    // It is not replaced unasked; and if all experts are in memory, there is nothing to draw.
    drawn("8G").fails(1, &["experts.svg"]);
    fs::remove_file(&svg).unwrap();
    let whole = drawn("8G").succeeds();
    assert!(whole.stderr.contains("no picture") && !svg.exists(), "{}", whole.stderr);
}

/// In a control group where one can be had, and otherwise it is said that there is none.
#[test]
fn the_map_is_measured_beside_slots() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let moe = Moe { experts: 32, used: 3, width: 256, ..Moe::default() };
    let spec = Spec { embd: 128, layers: 6, moe: Some(moe), ..Spec::qwen3moe() };
    let model = wild::model_of(dir.path(), spec);
    let told = alight(&["bench", "experts", &model, "--memory", "160M,8G", "-n", "6", "--json"]);
    let told = told.succeeds();
    let rows: Vec<Value> =
        told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ways: Vec<&Value> = rows.iter().filter_map(|row| row.get("way")).collect();
    // Where all of it fits, the model itself is used by the map.
    assert_eq!(ways, ["slots", "map", "map"], "{}", told.stderr);
    let [slots, map, whole] = [0, 1, 2].map(|i| &rows[i]);
    assert!(slots["room"].as_u64() < slots["experts"].as_u64(), "{slots}");
    assert!(whole["room"].is_null() && whole.get("limited").is_none(), "{whole}");
    assert_eq!((&map["memory"], &map["same_answer"]), (&slots["memory"], &Value::from(true)));
    let rates = ["prompt_tokens_per_second", "tokens_per_second"];
    assert!(rates.iter().all(|rate| map[rate].as_f64().unwrap() > 0.0), "{map}");
    assert_eq!(
        map["limited"] == false,
        told.stderr.contains("no control group"),
        "{}",
        told.stderr
    );
}

#[test]
fn experts_in_less_memory() {
    let Some(model) = smollm2() else { return };
    // Without experts there is nothing to bring: the model runs as it does, and the row says so.
    let row = json(&["bench", "experts", &model, "--memory", "8G", "-n", "2", "--json"]);
    assert_eq!((row["memory"].as_u64(), row["experts"].as_u64()), (Some(8_000_000_000), None));
    assert!(row["tokens_per_second"].as_f64().unwrap() > 0.0 && row["same_answer"] == true);
    for sizes in ["", "8X", "1G,", "-1G"] {
        alight(&["bench", "experts", &model, &format!("--memory={sizes}")])
            .fails_as_usage("--memory");
    }
}
