//! The token loop: how it ends, and what the session holds afterwards.

use std::ops::ControlFlow;

use alight_model::{
    Finish, GenerateOptions, Generated, Model, OpenOptions, Sampler, SamplerOptions, Session,
    SessionOptions, generate,
};

use alight_testing::models::{self, Spec};

fn greedy(
    session: &mut Session<'_>,
    prompt: &[u32],
    max_tokens: usize,
    ignore_eos: bool,
    stop_after: usize,
) -> (Generated, Vec<u32>) {
    let vocab = session.model().spec().vocab;
    let mut sampler = Sampler::new(SamplerOptions::greedy(), vocab);
    let mut out = Vec::new();
    let options = GenerateOptions { max_tokens, ignore_eos, ..GenerateOptions::default() };
    let generated = generate(session, &mut sampler, prompt, &options, &mut |token| {
        out.push(token);
        if out.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert_eq!(generated.tokens, out.len());
    (generated, out)
}

/// A model whose greedy answer to [`PROMPT`] has no end token in it for a while.
fn model(folder: &tempfile::TempDir) -> Model {
    let (path, _) = Spec::llama().write(folder.path());
    Model::open(&path, &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() })
        .unwrap()
}

const PROMPT: [u32; 3] = [1, 40, 50];
const ALL: usize = usize::MAX;

#[test]
fn it_ends_for_each_reason() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(&folder);
    let session = |context| {
        Session::new(&model, &SessionOptions { context, ..SessionOptions::default() }).unwrap()
    };
    let (long, answer) = greedy(&mut session(None), &PROMPT, 20, true, ALL);
    assert_eq!((long.finish, answer.len()), (Finish::Length, 20));

    let mut s = session(None);
    let (broken, out) = greedy(&mut s, &PROMPT, ALL, true, 7);
    assert_eq!((broken.finish, out.as_slice()), (Finish::Interrupted, &answer[..7]));
    assert_eq!(s.position(), 3 + 7);

    let mut s = session(Some(10));
    let (full, out) = greedy(&mut s, &PROMPT, ALL, true, ALL);
    assert_eq!(full.finish, Finish::ContextFull);
    // Seven fit; the eighth was sampled from the last position and does not fit itself.
    assert_eq!(out, answer[..8]);
    assert_eq!(s.position(), 10);

    let mut s = session(None);
    let (nothing, out) = greedy(&mut s, &PROMPT, 0, true, ALL);
    assert_eq!((nothing.finish, out.len(), s.position()), (Finish::Length, 0, 3));

    // The rest of the answer follows from where the session was left.
    let mut s = session(None);
    let (_, first) = greedy(&mut s, &PROMPT, 5, true, ALL);
    s.truncate(s.position() - 1);
    let (_, second) = greedy(&mut s, &first[4..], 15, true, ALL);
    assert_eq!([first, second].concat(), answer);
}

#[test]
fn an_end_token_is_neither_handed_out_nor_kept() {
    let folder = tempfile::tempdir().unwrap();
    // The output knows one answer only: the end of the sequence.
    let spec = Spec { tied: false, ..Spec::llama() };
    let mut b = spec.metadata("");
    let names = spec.tensors();
    for (name, shape) in &names {
        let shape: Vec<u64> = shape.iter().map(|n| *n as u64).collect();
        b.tensor(name, alight_formats::GgmlType::F32, &shape).unwrap();
    }
    let bytes = b.file(|i, out| {
        for (j, chunk) in out.chunks_exact_mut(4).enumerate() {
            let row = j / spec.embd;
            let value: f32 = if names[i].0 == "output.weight" && row != 2 { 0.0 } else { 1.0 };
            chunk.copy_from_slice(&value.to_le_bytes());
        }
    });
    let path = folder.path().join("end.gguf");
    std::fs::write(&path, bytes).unwrap();
    let model = Model::open(
        &path,
        &OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() },
    )
    .unwrap();
    let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
    let (ended, out) = greedy(&mut session, &PROMPT, ALL, false, ALL);
    assert_eq!((ended.finish, out.len(), session.position()), (Finish::Stop, 0, 3));
    session.truncate(0);
    let (ignored, out) = greedy(&mut session, &PROMPT, 4, true, ALL);
    assert_eq!((ignored.finish, out), (Finish::Length, vec![2; 4]));
}
