//! Keys and values of 8 bits, and of 4: a little less exact than those of 16, and as independent of everything else.

use alight_kernels::Isa;
use alight_model::{
    Engine, EngineOptions, Event, KvType, Model, ModelError, OpenOptions, Precision, PromptFolder,
    Request, Session, SessionOptions,
};

use alight_testing::models::{self, Latent, Spec, tokens};

/// The types, and the greatest mean divergence from answers with f16.
const CACHES: [(KvType, f64); 2] = [(KvType::Q8_0, 0.003), (KvType::Q4R, 0.1)];

fn open(path: &std::path::Path, isa: Isa) -> Model {
    let options =
        OpenOptions { threads: Some(models::threads()), isa: Some(isa), ..OpenOptions::default() };
    Model::open(path, &options).unwrap()
}

/// A session whose keys and values are so, which is fed `batch` tokens at a time.
fn session(model: &Model, cache_type: KvType, batch: usize) -> Session<'_> {
    let options = SessionOptions { cache_type, batch, ..SessionOptions::default() };
    Session::new(model, &options).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Models whose keys and values are multiples of 32 elements.
fn small(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let heads = |spec: Spec| Spec { key_dim: 32, value_dim: 64, ..spec };
    let latent = Latent { rank: 64, ..Spec::deepseek2().latent.unwrap() };
    vec![
        heads(Spec::llama()).write(folder).0,
        heads(Spec::gpt_oss()).write(folder).0,
        Spec { latent: Some(latent), rope_dims: Some(32), ..Spec::deepseek2() }.write(folder).0,
    ]
}

/// Some tokens of an answer and the bits of what they were chosen from.
fn answer(session: &mut Session<'_>, prompt: &[u32]) -> Vec<u32> {
    let mut all = bits(session.feed(prompt).unwrap());
    for token in [7, 21, 3] {
        all.extend(bits(session.decode(token).unwrap()));
    }
    all
}

#[test]
fn bits_do_not_depend_on_cuts_neighbours_or_files() {
    let folder = tempfile::tempdir().unwrap();
    for path in small(folder.path()) {
        for (isa, (cache, _)) in
            models::levels().into_iter().flat_map(|isa| CACHES.map(|c| (isa, c)))
        {
            let model = open(&path, isa);
            let what = format!("{cache}, {isa}, {}", path.display());
            let prompt = tokens(150, 290, 5);
            let expected = answer(&mut session(&model, cache, 512), &prompt);
            assert!(expected != answer(&mut session(&model, KvType::F16, 512), &prompt), "{what}");
            for batch in [1, 13, 64] {
                assert!(answer(&mut session(&model, cache, batch), &prompt) == expected, "{what}");
            }

            let own = tempfile::tempdir().unwrap();
            let prompts = PromptFolder::new(own.path().join("prompts"), u64::MAX);
            let mut first = session(&model, cache, 512);
            first.feed(&prompt).unwrap();
            first.keep(&prompts).unwrap().unwrap();
            let mut second = session(&model, cache, 512);
            assert_eq!(second.restore(&prompts, &prompt).positions, prompt.len() - 1, "{what}");
            let rest = second.position();
            assert!(answer(&mut second, &prompt[rest..]) == expected, "{what}");
            let mut other = session(&model, KvType::F16, 512);
            assert_eq!(other.restore(&prompts, &prompt).positions, 0, "{what}");

            let options = EngineOptions { cache_type: cache, ..EngineOptions::default() };
            let mut engine = Engine::new(&model, &options).unwrap();
            let request = |prompt: &[u32]| Request {
                prompt: prompt.to_vec(),
                max_tokens: 3,
                ignore_eos: true,
                ..Request::default()
            };
            let ids = [&prompt[..], &prompt[..100], &tokens(40, 290, 6)]
                .map(|prompt| engine.add(request(prompt)).unwrap());
            let mut first = None;
            while engine
                .step(&mut |id, event| {
                    if let (true, Event::Token(_, logits)) = (id == ids[0], &event) {
                        first.get_or_insert_with(|| bits(logits));
                    }
                })
                .unwrap()
            {}
            assert!(first.unwrap() == expected[..model.spec().vocab], "{what}");
        }
    }
}

/// Half the memory of keys and values, or a quarter, and logits that differ little: the mean over real text's positions.
#[test]
fn answers_of_real_models_change_little() {
    for file in [models::SMOLLM2, models::GEMMA3] {
        let Some(path) = models::real_model(file) else { continue };
        let model = open(&path, Isa::best());
        let text = "The water cycle describes how water moves on, above and below the surface of the Earth. The sun warms \
                    the oceans, water evaporates into the air, cools, and becomes clouds; it falls as rain or snow and \
                    flows back to the sea in rivers, where the cycle begins again.";
        let tokens = model.tokenizer().encode(text, Default::default()).unwrap();
        let logits = |cache_type| {
            let mut all: Vec<Vec<f32>> = Vec::new();
            // Rounding activations to 8 bits would make as much of any small difference.
            let prompt_precision = Precision::Bits16;
            let options = SessionOptions { cache_type, prompt_precision, ..Default::default() };
            let mut session = Session::new(&model, &options).unwrap();
            session.feed_each(&tokens, &mut |_, logits| all.push(logits.to_vec())).unwrap();
            all
        };
        let exact = logits(KvType::F16);
        for (cache, most) in CACHES {
            let rounded = logits(cache);
            let each = exact.iter().zip(&rounded).map(|(a, b)| models::divergence(a, b));
            let mean = each.sum::<f64>() / tokens.len() as f64;
            eprintln!("{file}, {cache}: mean KL {mean:.6}");
            assert!(mean > 0.0 && mean < most, "{file}, {cache}: {mean}");
        }
    }
}

#[test]
fn lengths_that_are_no_whole_groups_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    // Rows of 64 elements, of which the first 40 are values: they are rotated apart.
    let latent = Latent { rank: 40, ..Spec::deepseek2().latent.unwrap() };
    let spec = Spec { latent: Some(latent), rope_dims: Some(24), ..Spec::deepseek2() };
    let model = open(&spec.write(folder.path()).0, Isa::best());
    let of = |cache_type| {
        let options = SessionOptions { cache_type, ..SessionOptions::default() };
        Session::new(&model, &options).map(|_| ())
    };
    of(KvType::Q8_0).unwrap();
    assert!(matches!(of(KvType::Q4R), Err(ModelError::CacheType { found: 40, .. })));

    let model = open(&Spec::llama().write(folder.path()).0, Isa::best());
    for (cache_type, _) in CACHES {
        let options = SessionOptions { cache_type, ..SessionOptions::default() };
        let error = Session::new(&model, &options).err().unwrap();
        assert!(matches!(error, ModelError::CacheType { layer: 0, found: 16, expected: 32, .. }));
        assert_eq!(
            error.to_string(),
            format!(
                "keys and values cannot be kept as {cache_type}: those of layer 0 are 16 elements long, expected a multiple \
                 of 32; --cache-type f16 keeps them as they are"
            )
        );
        let options = EngineOptions { cache_type, ..EngineOptions::default() };
        assert!(matches!(Engine::new(&model, &options).err(), Some(ModelError::CacheType { .. })));
    }
}
