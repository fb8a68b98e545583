//! What an engine says of the tokens of prompts: their logits, their embedding, how far it is; and answers that are constrained.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use alight_formats::GgmlType;
use alight_model::{
    Constraint, Engine, EngineOptions, Event, Finish, GenerateOptions, Model, ModelError, OfPrompt,
    OpenOptions, Pooling, Request, RequestId, Sampler, SamplerOptions, Session, SessionOptions,
    Speculate, generate_constrained,
};

use alight_testing::models::{self, Spec, tokens};

fn models(folder: &Path) -> Vec<Model> {
    let quantised = |ty, spec| Spec { ty, ..spec }.write(folder).0;
    let paths = [
        quantised(GgmlType::Q4_0, Spec::llama()),
        quantised(GgmlType::Q8_0, Spec::gemma3()),
        quantised(GgmlType::Q4_0, Spec::gpt_oss()),
        quantised(GgmlType::F16, Spec::qwen35()),
        Spec::deepseek2().write(folder).0,
    ];
    let options = OpenOptions { threads: Some(models::threads()), ..OpenOptions::default() };
    paths.iter().map(|path| Model::open(path, &options).unwrap()).collect()
}

fn request(prompt: Vec<u32>, max_tokens: usize, of_prompt: OfPrompt) -> Request {
    let sampling = SamplerOptions::greedy();
    Request { prompt, sampling, max_tokens, ignore_eos: true, of_prompt, ..Request::default() }
}

/// What an engine has said of a request.
#[derive(Clone, Debug, Default)]
struct Said {
    reading: Vec<usize>,
    reused: Option<usize>,
    prompt_logits: Vec<Vec<f32>>,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    embedding: Option<Vec<f32>>,
    finish: Option<Finish>,
    failed: Option<String>,
}

impl Said {
    fn hear(&mut self, event: Event<'_>) {
        assert!(self.embedding.is_none() && self.finish.is_none() && self.failed.is_none());
        match event {
            Event::Reading { read, .. } => self.reading.push(read),
            Event::PromptLogits { position, logits } => {
                assert_eq!(position, self.prompt_logits.len());
                self.prompt_logits.push(logits.to_vec());
            }
            Event::Prompt { reused, .. } => assert!(self.reused.replace(reused).is_none()),
            Event::Token(token, logits) => {
                self.tokens.push(token);
                self.logits.push(logits.to_vec());
            }
            Event::Embedding(embedding) => self.embedding = Some(embedding.to_vec()),
            Event::Finished(finish) => self.finish = Some(finish),
            Event::Failed(error) => self.failed = Some(error.to_string()),
        }
    }
}

/// Computes requests together, in batches of at most `batch` rows.
fn all(model: &Model, batch: usize, requests: &[Request]) -> Vec<Said> {
    let options = EngineOptions { sequences: 4, batch, ..EngineOptions::default() };
    let mut engine = Engine::new(model, &options).unwrap();
    let add = |engine: &mut Engine<'_>, request: &Request| engine.add(request.clone()).unwrap();
    let ids: Vec<RequestId> = requests.iter().map(|request| add(&mut engine, request)).collect();
    let mut said = vec![Said::default(); requests.len()];
    while engine
        .step(&mut |id, event| said[ids.iter().position(|i| *i == id).unwrap()].hear(event))
        .unwrap()
    {}
    said
}

#[test]
fn logits_of_prompts_are_those_of_a_session() {
    let folder = tempfile::tempdir().unwrap();
    for model in models(folder.path()) {
        let vocab = model.spec().vocab;
        // One of many rows beside one that decodes, one that is known already, and one of a single token.
        let prompts = [90, 130, 130, 1].map(|n| tokens(n, vocab, 5));
        let kinds = [OfPrompt::Nothing, OfPrompt::Logits, OfPrompt::Logits, OfPrompt::Logits];
        let requests: Vec<Request> = prompts
            .iter()
            .zip(kinds)
            .map(|(prompt, kind)| request(prompt.clone(), 3, kind))
            .collect();
        for batch in [16, 64, 512] {
            let said = all(&model, batch, &requests);
            assert!(said[0].prompt_logits.is_empty());
            for (said, prompt) in said.iter().zip(&prompts).skip(1) {
                let mut session = Session::new(&model, &SessionOptions::default()).unwrap();
                let mut expected: Vec<Vec<f32>> = Vec::new();
                session.feed_each(prompt, &mut |_, logits| expected.push(logits.to_vec())).unwrap();
                let last = expected.pop().unwrap();
                assert_eq!(said.reused, Some(0), "all are computed");
                assert!(said.prompt_logits == expected, "{} of {batch}", model.name());
                assert!(said.logits[0] == last);
                assert_eq!((said.tokens.len(), said.finish), (3, Some(Finish::Length)));
                assert!(said.reading.is_sorted() && said.reading.iter().all(|n| *n < prompt.len()));
                assert_eq!(said.reading.is_empty(), prompt.len() == 1);
            }
        }
        // Nothing is generated if nothing is asked for.
        let said = all(&model, 512, &[request(prompts[1].clone(), 0, OfPrompt::Logits)]);
        assert_eq!((said[0].tokens.len(), said[0].prompt_logits.len()), (0, 129));
    }
}

#[test]
fn a_mean_is_that_of_the_last_states_of_all_beginnings() {
    let folder = tempfile::tempdir().unwrap();
    for model in models(folder.path()) {
        let (vocab, n) = (model.spec().vocab, 70);
        let prompt = tokens(n, vocab, 9);
        let last = OfPrompt::Embedding(Pooling::Last);
        let mean = OfPrompt::Embedding(Pooling::Mean);
        let beginnings: Vec<Request> =
            (1..=n).map(|n| request(prompt[..n].to_vec(), 5, last)).collect();
        let ends: Vec<Vec<f32>> =
            all(&model, 64, &beginnings).into_iter().map(|said| said.embedding.unwrap()).collect();
        let mut expected = vec![0.0f64; model.spec().hidden_size];
        for end in &ends {
            expected.iter_mut().zip(end).for_each(|(sum, x)| *sum += f64::from(*x) / n as f64);
        }
        let together = [
            request(tokens(200, vocab, 1), 9, OfPrompt::Nothing),
            request(prompt.clone(), 0, mean),
            request(prompt[..1].to_vec(), 0, mean),
            request(prompt.clone(), 0, last),
        ];
        let mut before = None;
        for batch in [16, 512] {
            let said = all(&model, batch, &together);
            assert_eq!(said[0].tokens.len(), 9);
            let [_, many, one, end] = &said[..] else { panic!() };
            assert!(many.tokens.is_empty() && many.finish.is_none());
            let many = many.embedding.as_ref().unwrap();
            for (found, expected) in many.iter().zip(&expected) {
                assert!((f64::from(*found) - expected).abs() < 1e-5, "{}", model.name());
            }
            assert_eq!(one.embedding.as_ref().unwrap(), &ends[0]);
            assert_eq!(end.embedding.as_ref().unwrap(), ends.last().unwrap());
            // Nor does it depend on how the prompt was cut.
            assert!(before.replace(many.clone()).is_none_or(|before| before == *many));
        }
    }
}

/// Lets the answer be `script` alone, and remembers what came.
#[derive(Debug)]
struct Script {
    script: Vec<u32>,
    came: Arc<Mutex<Vec<u32>>>,
}

impl Constraint for Script {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), Box<str>> {
        let at = self.came.lock().unwrap().len();
        let Some(next) = self.script.get(at) else { return Err("the script has ended".into()) };
        let keep = logits[*next as usize];
        logits.fill(f32::NEG_INFINITY);
        logits[*next as usize] = keep;
        Ok(())
    }

    fn accept(&mut self, token: u32) {
        self.came.lock().unwrap().push(token);
    }
}

#[test]
fn a_constraint_decides_what_may_come() {
    let folder = tempfile::tempdir().unwrap();
    let model = &models(folder.path())[0];
    let vocab = model.spec().vocab;
    // What repeats is drafted, too, and the draft is not what the script wants.
    let script: Vec<u32> = [3, 4, 5, 6, 3, 4, 5, 7, 3, 4, 5, 6].to_vec();
    for temperature in [0.0, 1.0] {
        let mut engine = Engine::new(model, &EngineOptions::default()).unwrap();
        let came = Arc::new(Mutex::new(Vec::new()));
        let constraint = Script { script: script.clone(), came: came.clone() };
        let sampling = SamplerOptions { temperature, ..SamplerOptions::default() };
        let free = request(tokens(20, vocab, 3), 30, OfPrompt::Nothing);
        let request = Request { sampling, ..free.clone() };
        engine.add_constrained(request, Some(Box::new(constraint))).unwrap();
        let mut said = Said::default();
        while engine.step(&mut |_, event| said.hear(event)).unwrap() {}
        assert_eq!(said.tokens, script);
        assert_eq!(*came.lock().unwrap(), script);
        let why = ModelError::Constraint { why: "the script has ended".into() }.to_string();
        assert_eq!(said.failed, Some(why));
        // The logits are the model's own.
        assert!(said.logits[0] == all(model, 512, &[free])[0].logits[0]);
    }
}

/// The same of one sequence by itself, whatever is drafted.
#[test]
fn a_constraint_decides_what_may_come_in_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let model = &models(folder.path())[0];
    let prompt = tokens(20, model.spec().vocab, 3);
    let script: Vec<u32> = [3, 4, 5, 6, 3, 4, 5, 7, 3, 4, 5, 6].to_vec();
    for speculate in [Speculate::Off, Speculate::Tokens(3)] {
        let sampling = SamplerOptions { temperature: 1.0, ..SamplerOptions::default() };
        let mut session = Session::new(model, &SessionOptions::default()).unwrap();
        let mut sampler = Sampler::new(sampling, model.spec().vocab);
        let came = Arc::new(Mutex::new(Vec::new()));
        let mut constraint = Script { script: script.clone(), came: came.clone() };
        let mut said = Vec::new();
        let mut answer = |max_tokens| {
            let options = GenerateOptions { max_tokens, speculate, ..GenerateOptions::default() };
            let (session, sampler) = (&mut session, &mut sampler);
            let held: Option<&mut dyn Constraint> = Some(&mut constraint);
            said.clear();
            let answered =
                generate_constrained(session, sampler, &prompt, &options, held, &mut |id| {
                    said.push(id);
                    ControlFlow::Continue(())
                });
            (answered, said.clone(), came.lock().unwrap().split_off(0))
        };
        let (answered, said, told) = answer(script.len());
        assert_eq!((answered.unwrap().finish, &said, &told), (Finish::Length, &script, &script));
        // Where the constraint has nothing to say any more, the answer fails.
        let (answered, said, _) = answer(script.len() + 1);
        assert!(matches!(answered, Err(ModelError::Constraint { .. })), "{answered:?}");
        assert_eq!(said, script);
    }
}

#[test]
fn a_bias_forces_a_token() {
    let folder = tempfile::tempdir().unwrap();
    for model in models(folder.path()) {
        let free = request(tokens(20, model.spec().vocab, 3), 6, OfPrompt::Nothing);
        let forced = Request { logit_bias: vec![(11, 1000.0)], ..free.clone() };
        let said = all(&model, 512, &[free, forced]);
        assert_eq!(said[1].tokens, [11; 6]);
        assert!(said[0].logits[0] == said[1].logits[0]);
    }
}
