//! Inputs of matrices, summed up: against its definition, in any cut, for every kind of part.

use std::path::Path;

use alight_model::{MatrixInputs, Model, Session, SessionOptions};
use alight_testing::models::{self, Spec};

/// Reads a text in batches of this size. Returns its logits, and what was measured.
fn read(path: &Path, batch: usize, measured: bool) -> (Vec<f32>, Vec<MatrixInputs>) {
    let mut model = Model::open(path, &crate::options()).unwrap();
    if measured {
        model.measure_inputs();
    }
    let mut session =
        Session::new(&model, &SessionOptions { batch, ..SessionOptions::default() }).unwrap();
    let mut logits = Vec::new();
    for piece in models::tokens(TOKENS, model.spec().vocab, 5).chunks(batch) {
        session.feed_each(piece, &mut |_, row| logits.extend_from_slice(row)).unwrap();
    }
    (logits, model.measured_inputs().unwrap())
}

const TOKENS: usize = 40;

fn of<'i>(inputs: &'i [MatrixInputs], name: &str) -> &'i MatrixInputs {
    inputs.iter().find(|one| one.name == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_first_inputs_are_normed_embeddings_and_matrices_beside_each_other_have_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let spec = Spec::llama();
    let (path, weights) = spec.write(folder.path());
    let (logits, inputs) = read(&path, 64, true);
    assert_eq!(logits, read(&path, 64, false).0, "measuring changes nothing");
    let (embed, norm) = (&weights["token_embd.weight"], &weights["blk.0.attn_norm.weight"]);
    let mut expected = vec![0.0; spec.embd];
    for token in models::tokens(TOKENS, spec.vocab, 5) {
        let x = &embed[token as usize * spec.embd..][..spec.embd];
        let mean = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / spec.embd as f64;
        for ((sum, x), weight) in expected.iter_mut().zip(x).zip(norm) {
            let normed = f64::from(*x) * f64::from(*weight);
            *sum += normed * normed / (mean + f64::from(spec.eps));
        }
    }
    let query = of(&inputs, "blk.0.attn_q.weight");
    assert_eq!((query.columns, &query.counts[..]), (spec.embd, &[TOKENS as u64][..]));
    for (found, expected) in query.squares.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
    }
    for (one, other) in [("attn_q", "attn_k"), ("attn_q", "attn_v"), ("ffn_gate", "ffn_up")] {
        let layer = |name| &of(&inputs, &format!("blk.1.{name}.weight")).squares;
        assert_eq!(layer(one), layer(other), "{one} and {other}");
    }
    // The output has the inputs of all tokens, too.
    let output = if spec.tied { "token_embd.weight" } else { "output.weight" };
    assert_eq!(of(&inputs, output).counts, [TOKENS as u64]);
}

#[test]
fn experts_have_the_inputs_of_the_tokens_that_chose_them() {
    let folder = tempfile::tempdir().unwrap();
    let fused = |mut spec: Spec| {
        spec.moe.as_mut().unwrap().fused = true;
        spec
    };
    for spec in [Spec::qwen3moe(), fused(Spec::qwen3moe())] {
        let moe = spec.moe.unwrap();
        let (path, _) = spec.write(folder.path());
        let (_, inputs) = read(&path, 64, true);
        let first = if moe.fused { "ffn_gate_up_exps" } else { "ffn_gate_exps" };
        for layer in 0..spec.layers {
            let of = |name: &str| of(&inputs, &format!("blk.{layer}.{name}.weight"));
            let (router, experts, down) = (of("ffn_gate_inp"), of(first), of("ffn_down_exps"));
            assert_eq!(experts.counts.len(), moe.experts);
            assert_eq!(experts.counts, down.counts);
            assert_eq!(experts.counts.iter().sum::<u64>(), (TOKENS * moe.used) as u64);
            // Each token counts once for each of its experts.
            for column in 0..spec.embd {
                let all = experts.squares.iter().skip(column).step_by(spec.embd).sum::<f64>();
                let expected = moe.used as f64 * router.squares[column];
                assert!((all - expected).abs() <= 1e-9 * expected, "{all} {expected}");
            }
        }
    }
}

#[test]
fn every_matrix_is_measured_and_the_sums_do_not_depend_on_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    // Small ones that stay as they are, and the keys of heads that are one matrix with the values.
    let other =
        ["altup", "laurel", "conv", "ssm_a", "attn_sinks", "position_embd", "token_embd", "norm"];
    let specs = Spec::recurrent().into_iter().chain([
        Spec::gemma3(),
        Spec::gemma3n(),
        Spec::qwen2moe(),
        Spec::gpt_oss(),
        Spec::gptoss(),
        Spec::llama4(),
        Spec::deepseek2(),
        Spec::deepseek2_before_2025(),
    ]);
    for spec in specs {
        let (path, _) = spec.write(folder.path());
        let (_, inputs) = read(&path, 64, true);
        assert!(inputs == read(&path, 7, true).1, "{}: cut in another way", spec.arch);
        for (name, shape) in spec.tensors() {
            let is_matrix =
                name.starts_with("blk.") && shape.len() > 1 && name.ends_with(".weight");
            if !is_matrix || other.iter().any(|part| name.contains(part)) {
                continue;
            }
            let found = inputs.iter().find(|one| one.name == name);
            let found = found.unwrap_or_else(|| panic!("{}: no {name}", spec.arch));
            assert_eq!(found.columns, shape[0], "{}: {name}", spec.arch);
            assert_eq!(found.counts.len(), shape[2..].iter().product::<usize>().max(1), "{name}");
            assert!(found.squares.iter().all(|sum| sum.is_finite() && *sum >= 0.0), "{name}");
        }
    }
}
