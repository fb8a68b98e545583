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
