//! Compares the layer with an ordinary network of one layer, whose embeddings are the inputs that the layer should have.

use std::collections::HashMap;
use std::path::Path;

use alight_testing::models::{Latent, Recurrence, Spec, distance};

use super::super::session::{Session, SessionOptions};
use super::*;
use crate::open::OpenOptions;

type Weights = HashMap<String, Vec<f32>>;

fn rms_norm(row: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = (mean + f64::from(eps)).sqrt().recip();
    row.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

/// Returns `eh_proj · [enorm(embedding); hnorm(state)]`, in 64 bits.
fn joined(spec: &Spec, weights: &Weights, token: u32, state: &[f32]) -> Vec<f32> {
    let (width, layer) = (spec.embd, spec.layers);
    let of = |name: &str| &weights[&format!("blk.{layer}.nextn.{name}.weight")];
    let embedding = &weights["token_embd.weight"][token as usize * width..][..width];
    let mut row = rms_norm(embedding, of("enorm"), spec.eps);
    row.extend(rms_norm(state, of("hnorm"), spec.eps));
    let products = of("eh_proj").chunks_exact(2 * width);
    let sum = |w: &[f32]| w.iter().zip(&row).map(|(w, x)| f64::from(*w) * x).sum::<f64>() as f32;
    products.map(sum).collect()
}

/// Writes the layer as an ordinary network, in which the embeddings of the tokens of `rows` are the vectors of `rows`.
fn ordinary(spec: &Spec, weights: &Weights, rows: &[(u32, Vec<f32>)], path: &Path) {
    let mut one = Spec { layers: 1, mtp: false, tied: false, ..spec.clone() };
    one.recurrent = one.recurrent.map(|(kind, _)| (kind, 1));
    one.latent = one.latent.map(|latent| Latent { leading: 0, ..latent });
    let own = |name: &str| match name {
        "output.weight" => weights["token_embd.weight"].clone(),
        "output_norm.weight" => {
            weights[&format!("blk.{}.nextn.shared_head_norm.weight", spec.layers)].clone()
        }
        "token_embd.weight" => {
            let mut all = vec![0.0; spec.vocab * spec.embd];
            for (token, row) in rows {
                all[*token as usize * spec.embd..][..spec.embd].copy_from_slice(row);
            }
            all
        }
        layer => weights[&layer.replace("blk.0.", &format!("blk.{}.", spec.layers))].clone(),
    };
    let tensors = one.tensors().into_iter().map(|(name, shape)| {
        let values = own(&name);
        (name, shape, values)
    });
    one.write_as(path, one.arch, tensors.collect());
}

/// Returns the logits after all tokens, and the final state.
fn last_of(model: &Model, tokens: &[u32]) -> (Vec<f32>, Vec<f32>) {
    let mut session = Session::new(model, &SessionOptions::default()).unwrap();
    let logits = session.feed(tokens).unwrap().to_vec();
    (logits, session.final_state())
}

#[test]
fn drafts_are_those_of_an_ordinary_layer_on_joined_rows() {
    let folder = tempfile::tempdir().unwrap();
    let qwen35 = Spec { recurrent: Some((Recurrence::DeltaNet([2, 4, 32]), 3)), ..Spec::qwen35() };
    for spec in [qwen35, Spec::deepseek2()] {
        let spec = Spec { mtp: true, ..spec };
        let (path, weights) = spec.write(folder.path());
        let model = Model::open(&path, &OpenOptions::default()).unwrap();
        // All different, so that each has its own embedding.
        let tokens: Vec<u32> = (0..90).map(|i| 3 + i * 7 % 290).collect();
        let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
        assert!(session.draft_with_mtp().unwrap());
        // More rows than are computed together, in two calls, and rows that are taken back.
        session.feed(&tokens[..67]).unwrap();
        session.feed(&tokens[67..75]).unwrap();
        for token in [5, 6, 4] {
            session.decode(token).unwrap();
        }
        assert_eq!(session.truncate(75), 75);
        for token in &tokens[75..80] {
            session.decode(*token).unwrap();
        }
        let states: Vec<_> = (1..=80).map(|n| last_of(&model, &tokens[..n]).1).collect();
        let mut rows = vec![(tokens[0], joined(&spec, &weights, tokens[0], &vec![0.0; spec.embd]))];
        for (token, state) in tokens[1..80].iter().zip(&states) {
            rows.push((*token, joined(&spec, &weights, *token, state)));
        }
        let head = session.mtp().unwrap();
        assert!(head.has_seen(80) && !head.has_seen(79));
        let mut state = states[79].clone();
        for (i, token) in tokens[80..84].iter().enumerate() {
            match i {
                0 => head.begin(*token).unwrap(),
                _ => head.decode(*token).unwrap(),
            }
            rows.push((*token, joined(&spec, &weights, *token, &state)));
            let path = folder.path().join(format!("{}-{i}.gguf", spec.arch));
            ordinary(&spec, &weights, &rows, &path);
            let one = Model::open(&path, &OpenOptions::default()).unwrap();
            let (logits, own) = last_of(&one, &tokens[..=80 + i]);
            let (most, found) =
                (logits.iter().fold(0f32, |m, x| m.max(x.abs())), distance(&logits, head.logits()));
            // Keys and values have 16 bits, and rows of prompts and of answers are summed in different orders.
            assert!(found < 2e-3 * most, "{}, token {i} of a draft: {found} of {most}", spec.arch);
            state = own;
        }
    }
}
