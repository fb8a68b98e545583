//! Weights that are not finite: NaN or infinite scales of blocks. An answer that one of them takes part in is an error that names the tensor;
//! all others are as they were.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use alight_formats::{GgmlType, gguf};
use alight_kernels::half::{f32_to_bf16, f32_to_f16};
use alight_kernels::{Isa, ScaleField, WeightType};
use alight_model::{
    Engine, EngineOptions, Event, Model, ModelError, OpenOptions, Repack, Request, Session,
    SessionOptions,
};

use alight_testing::models::{self, Moe, Spec};

const BAD: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

/// A prompt of several tokens; the first row of every table is in use.
const PROMPT: [u32; 3] = [0, 5, 9];

/// A file and the tensors in it.
struct Made {
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Made {
    fn new(spec: &Spec, folder: &Path) -> Made {
        let (path, _) = spec.write(folder);
        let bytes = std::fs::read(&path).unwrap();
        Made { path, bytes }
    }

    /// The matrices of weights, and where the first block of each matrix (one, or one for each expert) is.
    fn matrices(&self) -> Vec<(String, WeightType, Vec<usize>)> {
        let gguf = gguf::parse(&self.bytes).unwrap();
        let matrices = gguf.tensors.iter().filter(|info| info.n_dims > 1 && info.ne[1] > 1);
        let found = matrices.map(|info| {
            // The biases of experts are one table with a row for each.
            let rows = if info.name.ends_with(".bias") { 1 } else { info.ne[1] };
            let each = (rows * info.row_bytes()) as usize;
            let range = info.range();
            let first = range.clone().step_by(each).collect();
            (info.name.to_owned(), WeightType::of(info.ty).unwrap(), first)
        });
        found.collect()
    }

    /// Calls `f` while the blocks at `at` have a scale (a weight, if the type is a float) that is `value`.
    fn with(&self, ty: WeightType, at: &[usize], value: f32, f: impl FnOnce()) {
        let file = File::options().write(true).open(&self.path).unwrap();
        for at in at {
            let old = &self.bytes[*at..at + ty.block_bytes()];
            let mut new = old.to_vec();
            match (ty, ty.scale_fields().last()) {
                (WeightType::F32, _) => new.copy_from_slice(&value.to_le_bytes()),
                (WeightType::F16, _) => new.copy_from_slice(&f32_to_f16(value).to_le_bytes()),
                (WeightType::BF16, _) => new.copy_from_slice(&f32_to_bf16(value).to_le_bytes()),
                (_, Some(field)) => field.set(&mut new, value),
                (_, None) => unreachable!("{ty} has no scales"),
            }
            file.write_all_at(&new, *at as u64).unwrap();
        }
        f();
        for at in at {
            file.write_all_at(&self.bytes[*at..at + ty.block_bytes()], *at as u64).unwrap();
        }
    }

    fn open(&self, repack: Repack, isa: Isa) -> Result<Model, ModelError> {
        let options =
            OpenOptions { threads: Some(1), repack, isa: Some(isa), ..OpenOptions::default() };
        Model::open(&self.path, &options)
    }
}

/// The logits after a prompt, and after a token that is decoded.
fn answers(model: &Model) -> [Result<Vec<f32>, ModelError>; 2] {
    let options = SessionOptions { context: Some(64), ..SessionOptions::default() };
    let session = || Session::new(model, &options).unwrap();
    [session().feed(&PROMPT).map(<[f32]>::to_vec), session().decode(PROMPT[0]).map(<[f32]>::to_vec)]
}

/// Checks that there is no answer, and that the error names the tensor. (Some are read into memory, and refused when the model is opened.)
fn refused(model: Result<Model, ModelError>, tensor: &str, what: &str) {
    let model = match model {
        Ok(model) => model,
        Err(error) => return assert!(error.to_string().contains(tensor), "{what}: {error}"),
    };
    for answer in answers(&model) {
        let error = match answer {
            Ok(logits) => panic!("{what}: an answer, by {:?}…", &logits[..4]),
            Err(error) => error,
        };
        let named =
            matches!(&error, ModelError::NotNumbers { weight: Some(name), .. } if name == tensor);
        assert!(named, "{what}: {error}");
    }
}

/// True if a scale of the type can be something other than a finite number. As ggml defines them, each byte of MXFP4's and NVFP4's scales is one.
fn can_be_bad(ty: WeightType) -> bool {
    let fields = ty.scale_fields();
    fields.iter().all(|field| matches!(field, ScaleField::F16(_) | ScaleField::F16Nibbles(_)))
}

/// Rows of whole blocks of every type.
fn wide() -> Spec {
    Spec {
        layers: 1,
        embd: 256,
        ff: 256,
        key_dim: 64,
        value_dim: 64,
        vocab: 64,
        context: 64,
        tied: false,
        ..Spec::llama()
    }
}

#[test]
fn a_scale_of_any_type_in_any_matrix_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    for ty in WeightType::ALL.into_iter().filter(|ty| can_be_bad(*ty)) {
        let made = Made::new(&Spec { ty: ty.ggml(), ..wide() }, folder.path());
        for (repack, isa) in [(Repack::Off, Isa::best()), (Repack::On, Isa::best())] {
            answers(&made.open(repack, isa).unwrap()).into_iter().for_each(|answer| {
                answer.unwrap_or_else(|error| panic!("{ty}: {error}"));
            });
            for (name, ty, at) in made.matrices() {
                for value in BAD {
                    let what = format!("{value} in {name} of {ty}, {repack:?}, {isa}");
                    made.with(ty, &at, value, || refused(made.open(repack, isa), &name, &what));
                }
            }
        }
    }
}

#[test]
fn it_is_noticed_on_every_simd_level_and_in_every_architecture() {
    let folder = tempfile::tempdir().unwrap();
    let levels = Isa::available();
    let mut of = levels.iter().cycle();
    let others =
        [Spec::gemma3n(), Spec::deepseek2(), Spec::deepseek2_before_2025(), Spec::llama4()];
    let all = Spec::every().into_iter().chain(Spec::recurrent()).chain(others);
    for (i, spec) in all.enumerate() {
        let moe = spec.moe.map(|moe| Moe { selection: false, ..moe });
        // Both types of each architecture by `make test-all`, one and then the other by `make test`.
        let both = [GgmlType::Q8_0, GgmlType::F16];
        for ty in if models::everything() { &both[..] } else { &both[i % 2..][..1] } {
            let ty = *ty;
            if ty == GgmlType::Q8_0
                && spec
                    .tensors()
                    .iter()
                    .any(|(_, shape)| !shape[0].is_multiple_of(32) && shape.len() > 1)
            {
                continue;
            }
            let made = Made::new(&Spec { ty, moe, ..spec.clone() }, folder.path());
            // Each value has its own ways to get lost; which type it comes from makes no difference.
            let values = if ty == GgmlType::F16 { &BAD[..] } else { &BAD[2..] };
            for (name, ty, at) in made.matrices() {
                for &value in values {
                    let isa = *of.next().unwrap();
                    let what = format!("{value} in {name} of {ty}, {}, {isa}", spec.arch);
                    made.with(ty, &at, value, || refused(made.open(Repack::On, isa), &name, &what));
                }
            }
        }
    }
}

#[test]
fn weights_that_no_token_uses_are_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let moe = Moe { experts: 7, used: 2, width: 256, ..Moe::default() };
    let spec = Spec { arch: "qwen3moe", moe: Some(moe), ty: GgmlType::Q8_0, seed: 51, ..wide() };
    let spec = Spec { key_dim: 64, eps: 1e-6, ..spec };
    let made = Made::new(&spec, folder.path());
    let open = || made.open(Repack::On, Isa::best()).unwrap();
    let clean = answers(&open()).map(|answer| answer.unwrap());
    for (name, ty, at) in made.matrices() {
        let row = spec.embd / ty.block_len() * ty.block_bytes();
        if name == "token_embd.weight" {
            made.with(ty, &[at[0] + 7 * row], f32::NAN, || {
                assert_eq!(answers(&open()).map(|answer| answer.unwrap()), clean);
            });
        }
        if name.ends_with("_exps.weight") {
            let mut unused = 0;
            for expert in at {
                made.with(ty, &[expert], f32::NAN, || match &answers(&open())[1] {
                    Ok(logits) => {
                        assert_eq!(*logits, clean[1], "{name}");
                        unused += 1;
                    }
                    Err(error) => assert!(error.to_string().contains(&name), "{error}"),
                });
            }
            assert_eq!(unused, moe.experts - moe.used, "{name}");
        }
    }
}

#[test]
fn a_request_fails_by_it_and_no_token_is_handed_out() {
    let folder = tempfile::tempdir().unwrap();
    let made = Made::new(&Spec { ty: GgmlType::Q4_K, ..wide() }, folder.path());
    let (name, ty, at) =
        made.matrices().into_iter().find(|(name, ..)| name.contains("attn_v")).unwrap();
    made.with(ty, &at, f32::NAN, || {
        let model = made.open(Repack::Off, Isa::best()).unwrap();
        let mut engine = Engine::new(&model, &EngineOptions::default()).unwrap();
        engine
            .add(Request { prompt: PROMPT.to_vec(), max_tokens: 4, ..Request::default() })
            .unwrap();
        let mut failed = None;
        while !engine.is_idle() {
            engine
                .step(&mut |_, event| match event {
                    Event::Token(token, _) => panic!("token {token}"),
                    Event::Failed(error) => failed = Some(error.to_string()),
                    _ => {}
                })
                .unwrap();
        }
        let failed = failed.expect("an error");
        assert!(failed.contains(&name), "{failed}");
    });
}
