//! `alight quantize` on a real model.

use crate::support::*;

#[test]
fn a_real_model_answers_as_before() {
    let Some(model) = smollm2() else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let made = dir.path().join("q8_0.gguf");
    let made = made.to_str().unwrap();
    let done = alight(&["quantize", &model, "-o", made, "--type", "q8_0"]).succeeds();
    assert_eq!(done.stdout, "");
    for part in ["from Q4_1 to Q8_0", "stay F32", "rounded twice"] {
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    // 8 bits hold what 4 bits held nearly exactly, and the first words are much likelier than others.
    let ask = |file: &str| {
        let prompt = ["run", file, "The capital of France is", "-n", "8", "--temp", "0"];
        alight(&prompt).succeeds().stdout
    };
    assert_eq!(ask(made), ask(&model));

    alight(&["quantize", &model, "-o", made, "--type", "q8_0"])
        .fails(1, &["exists already", "--force"]);
    alight(&["quantize", &model, "-o", "x", "--type", "q3"]).fails_as_usage("q4_k_m");
    alight(&["quantize", &model, "-o", "x"]).fails_as_usage("--type");
    let matrix = ["quantize", &model, "-o", "x", "--type", "q4_0", "--imatrix"];
    alight(&[&matrix[..], &["no-such.imatrix"]].concat()).fails(1, &["no-such.imatrix"]);
    alight(&[&matrix[..], &[&model]].concat()).fails(1, &["importance matrix", "in_sum2"]);
    alight(&["quantize", "no-such.gguf", "-o", "x", "--type", "q8_0"]).fails(1, &["no-such.gguf"]);
}

/// A note tells how many matrices got another type than they were to have; tensors by name get theirs; an importance matrix is made and used.
#[test]
fn types_by_name_and_an_importance_matrix_that_is_made_here() {
    use crate::support::wild::{Moe, Spec};
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let moe = Moe { experts: 4, used: 1, width: 32, ..Moe::default() };
    let spec = Spec { moe: Some(moe), ..Spec::qwen3moe() };
    let (model, made, matrix, words) =
        (spec.write(dir.path()).0, path("made.gguf"), path("matrix.gguf"), path("text.txt"));
    let model = model.to_str().unwrap();
    std::fs::write(&words, "one two three four five six seven eight nine ten ".repeat(8)).unwrap();
    let measure = ["imatrix", model, &words, "-o", &matrix, "-c", "32", "--chunks", "3"];
    let done = alight(&measure).succeeds();
    assert_eq!(done.stdout, "");
    assert!(done.stderr.contains("measured on 3 chunks of 32 tokens"), "{}", done.stderr);
    alight(&measure).fails(1, &["exists already", "--force"]);
    alight(&["imatrix", model, &words, "-o", "x", "-c", "4096"]).fails(1, &["less than a chunk"]);
    let keys = inspect_json(&matrix);
    assert!(
        keys["tensors"].as_array().unwrap().iter().all(|t| t["name"] != "output.weight.in_sum2")
    );

    let quantize = ["quantize", model, "-o", &made, "--type", "q2_k", "--imatrix", &matrix];
    let by_name = ["--tensor-type", "attn_v=q8_0", "--tensor-type", "ffn_.*_exps=q5_0"];
    let done = alight(&[&quantize[..], &by_name].concat()).succeeds();
    assert!(done.stderr.contains(" instead of Q2_K"), "{}", done.stderr);
    let tensors = inspect_json(&made);
    let ty = |name: &str| {
        let all = tensors["tensors"].as_array().unwrap();
        all.iter().find(|t| t["name"] == name).unwrap()["type"].as_str().unwrap().to_owned()
    };
    assert_eq!(ty("blk.0.attn_v.weight"), "Q8_0");
    assert_eq!(ty("blk.1.ffn_up_exps.weight"), "Q5_0");
    alight(&[&quantize[..], &["--tensor-type", "attn_v"]].concat()).fails_as_usage("PATTERN=TYPE");
    alight(&[&quantize[..], &["--output-tensor-type", "q9"]].concat()).fails_as_usage("q4_k");
}

/// Metadata that is not read is named on stderr, and refused if that is asked for.
#[test]
fn metadata_that_is_not_read_is_named() {
    use crate::support::wild::Spec;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = Spec::llama().write(dir.path());
    let bytes = std::fs::read(&path).unwrap();
    let gguf = alight_formats::gguf::parse(&bytes).unwrap();
    let mut builder = alight_formats::gguf::write::Builder::new();
    gguf.metadata.iter().for_each(|(key, value)| {
        builder.value(key, value);
    });
    builder.f32("llama.rope.scaling.alpha", 50.0);
    for info in &gguf.tensors {
        builder.tensor(info.name, info.ty, info.shape()).unwrap();
    }
    let file = builder.file(|i, out| out.copy_from_slice(&bytes[gguf.tensors[i].range()]));
    let model = write(dir.path(), "doubtful.gguf", file);
    let named = "metadata \"llama.rope.scaling.alpha\" is not read";
    let run = ["run", &model, "hello", "-n", "2", "--temp", "0"];
    for command in [&run[..], &["inspect", &model]] {
        let stderr = alight(command).succeeds().stderr;
        assert_eq!(stderr.matches(named).count(), 1, "{stderr}");
    }
    assert!(inspect_json(&model)["warnings"][0].as_str().unwrap().contains(named));
    alight(&[&run[..], &["--strict"]].concat()).fails(1, &["doubtful.gguf", named]);
    let right = path.to_str().unwrap();
    alight(&["run", right, "hello", "-n", "2", "--strict"]).succeeds();
    assert_eq!(inspect_json(right).get("warnings"), None);
}
