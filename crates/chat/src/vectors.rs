//! Texts as vectors, and pairs of texts as scores: the options, the tokens, and what becomes of the engine's output. The server, the command
//! and Python share it.
//!
//! A vector is pooled by the engine; here its leading elements are kept, and then it is divided by its length. A score is the first output
//! of the model's classifier, raw or as a probability: the sigmoid of the only output, or the softmax of several, in double precision, so that
//! scores near 1 do not become equal.
//!
//! Invariant: a text's vector depends on the model, the text and the options, and not on the texts beside it.

use std::fmt;

use alight_model::{ModelSpec, OfPrompt, Pooling, Request};
use alight_text::{EncoderInput, Fit, InputEncoder, InputError, Stop, Vocabulary};

use crate::worker::GenerateRequest;

/// The options of vectors. Without a value, the file's own settings count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VectorOptions {
    /// How the vectors of tokens become that of the text; by default the file's, or the mean.
    pub pooling: Option<Pooling>,
    /// The scale of a vector.
    pub normalization: Option<Normalization>,
    /// The number of leading elements that are kept.
    pub dimensions: Option<usize>,
    /// The prompt that precedes each text, by its name in the file; an empty name: none.
    pub prompt_name: Option<String>,
    /// The text that precedes each text.
    pub prompt: Option<String>,
    /// The maximum number of tokens of a text, if it is below the model's.
    pub max_tokens: Option<usize>,
    /// True if a text that is too long is shortened, and not refused.
    pub truncate: bool,
    /// True if names of special tokens in texts become those tokens.
    pub parse_special: bool,
}

/// The scale of a vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Normalization {
    /// Nothing.
    None,
    /// The largest absolute value becomes 32760.
    Max,
    /// The p-norm becomes 1; 2 is the length.
    Norm(u32),
}

impl Normalization {
    /// Returns the normalization with llama.cpp's number: −1 none, 0 the largest value, otherwise the p-norm.
    pub fn of_number(number: i64) -> Option<Normalization> {
        match number {
            -1 => Some(Normalization::None),
            0 => Some(Normalization::Max),
            p => u32::try_from(p).ok().filter(|p| *p <= MAX_NORM).map(Normalization::Norm),
        }
    }

    /// Changes a vector. One without a length, or whose length is no number, becomes zeros.
    pub fn apply(self, vector: &mut [f32]) {
        let (length, target) = match self {
            Normalization::None => return,
            Normalization::Max => {
                (vector.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs()))), 32760.0)
            }
            Normalization::Norm(2) => {
                let sum: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
                (sum.sqrt(), 1.0)
            }
            Normalization::Norm(p) => {
                let power = |x: &f32| libm::pow(f64::from(x.abs()), f64::from(p));
                (libm::pow(vector.iter().map(power).sum(), 1.0 / f64::from(p.max(1))), 1.0)
            }
        };
        let scale = if length > 0.0 { target / length } else { 0.0 };
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
    }
}

/// Maximum p of a p-norm: the powers of larger ones are no numbers.
const MAX_NORM: u32 = 64;

/// Why vectors or scores cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum VectorError {
    /// The texts have no tokens for this model.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The number of elements is not one of this model's.
    #[error(
        "the model makes vectors of {most} numbers, expected 1 to {most} dimensions, not {found}"
    )]
    Dimensions {
        /// The number requested.
        found: usize,
        /// The number of a whole vector.
        most: usize,
    },
    /// The file has no such prompt.
    #[error("the model has no prompt {name:?}: {}", Known(.known))]
    NoPrompt {
        /// The name requested.
        name: String,
        /// The names of the file.
        known: Vec<String>,
    },
    /// Vectors are requested of a model that scores pairs.
    #[error(
        "the model scores pairs of texts and makes no vectors: use `alight rerank`, or /v1/rerank of the server"
    )]
    ScoresOnly,
    /// The file says that the vectors of tokens are not combined.
    #[error(
        "the model's file says that it makes a vector of each token and none of a text: say how they are combined (pooling: mean, cls or last)"
    )]
    OfTokens,
    /// Scores are requested of a model without a classifier.
    #[error(
        "the model has no classifier, so it scores no pairs of texts: take a reranker (a cross-encoder), or compare vectors (`alight embed`)"
    )]
    NoScores,
}

/// The names of prompts for a message.
struct Known<'a>(&'a [String]);

impl fmt::Display for Known<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => write!(f, "its file has none, so write it before the text"),
            names => write!(f, "it has {}", names.join(", ")),
        }
    }
}

/// The vectors and scores that a model makes of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorModel {
    /// The pooling that its file states.
    pub pooling: Option<Pooling>,
    /// The number of elements of a vector.
    pub width: usize,
    /// True if it has a classifier.
    pub scores: bool,
}

impl From<&ModelSpec> for VectorModel {
    fn from(spec: &ModelSpec) -> VectorModel {
        let (pooling, width) = (spec.pooling, spec.embedding_size);
        VectorModel { pooling, width, scores: spec.classifier.is_some() }
    }
}

/// Makes requests for vectors, and vectors of what they bring.
pub struct Vectors<'m> {
    encoder: InputEncoder<'m>,
    prompt: String,
    fit: Fit,
    pooling: Pooling,
    normalization: Normalization,
    /// The number of elements of a vector.
    pub dimensions: usize,
}

impl<'m> Vectors<'m> {
    /// Creates it for a model, whose engine has a context of `context` tokens.
    ///
    /// # Errors
    /// See [`VectorError`].
    pub fn new(
        model: impl Into<VectorModel>,
        vocabulary: &'m Vocabulary,
        context: usize,
        options: &VectorOptions,
        stop: Stop,
    ) -> Result<Vectors<'m>, VectorError> {
        let model = model.into();
        let pooling = options.pooling.or(model.pooling).unwrap_or(Pooling::Mean);
        match pooling {
            Pooling::Rank => return Err(VectorError::ScoresOnly),
            Pooling::None => return Err(VectorError::OfTokens),
            Pooling::Mean | Pooling::Cls | Pooling::Last => {}
        }
        let (most, settings) = (model.width, &vocabulary.sentence);
        let dimensions = match options.dimensions {
            Some(found) if !(1..=most).contains(&found) => {
                return Err(VectorError::Dimensions { found, most });
            }
            Some(found) => found,
            None => settings.dimensions.unwrap_or(most).min(most),
        };
        let default = settings.default_prompt.as_deref();
        let prompt = match (&options.prompt, options.prompt_name.as_deref().or(default)) {
            (Some(prompt), _) => prompt.clone(),
            (None, None | Some("")) => String::new(),
            (None, Some(name)) => match settings.prompt(name) {
                Some(prompt) => prompt.to_owned(),
                None => {
                    let known = settings.prompts.iter().map(|(name, _)| name.to_string());
                    return Err(VectorError::NoPrompt {
                        name: name.into(),
                        known: known.collect(),
                    });
                }
            },
        };
        let fit = Fit {
            limit: limit(vocabulary, context, options.max_tokens),
            truncate: options.truncate,
        };
        Ok(Vectors {
            encoder: InputEncoder::new(vocabulary, options.parse_special, stop),
            prompt,
            fit,
            pooling,
            normalization: options.normalization.unwrap_or(Normalization::Norm(2)),
            dimensions,
        })
    }

    /// The tokens of a text, after the prompt.
    ///
    /// # Errors
    /// [`VectorError::Input`].
    pub fn text(&self, text: &str) -> Result<EncoderInput, VectorError> {
        if self.prompt.is_empty() {
            return Ok(self.encoder.text(text, self.fit)?);
        }
        Ok(self.encoder.text(&format!("{}{text}", self.prompt), self.fit)?)
    }

    /// Tokens that the caller has made.
    ///
    /// # Errors
    /// [`VectorError::Input`].
    pub fn tokens(&self, tokens: Vec<u32>) -> Result<EncoderInput, VectorError> {
        Ok(self.encoder.tokens(tokens, self.fit)?)
    }

    /// The request for the vector of an input.
    pub fn request(&self, input: EncoderInput) -> GenerateRequest {
        request(input, self.pooling)
    }

    /// The vector of what the engine has pooled.
    pub fn finish(&self, mut pooled: Vec<f32>) -> Vec<f32> {
        pooled.truncate(self.dimensions);
        self.normalization.apply(&mut pooled);
        pooled
    }
}

/// The meaning of a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScoreRule {
    /// A probability: the sigmoid of the only output, or the first of the softmax of several.
    #[default]
    Probability,
    /// The first output of the classifier.
    Raw,
}

impl ScoreRule {
    /// The score of the outputs of a classifier; NaN of none.
    pub fn of(self, outputs: &[f32]) -> f64 {
        let Some(first) = outputs.first().map(|x| f64::from(*x)) else { return f64::NAN };
        match (self, outputs) {
            (ScoreRule::Raw, _) => first,
            (ScoreRule::Probability, [_]) => 1.0 / (1.0 + libm::exp(-first)),
            (ScoreRule::Probability, all) => {
                let most = all.iter().fold(f64::NEG_INFINITY, |most, x| most.max(f64::from(*x)));
                let power = |x: f64| libm::exp(x - most);
                power(first) / all.iter().map(|x| power(f64::from(*x))).sum::<f64>()
            }
        }
    }
}

/// Makes requests for the scores of pairs.
pub struct Scores<'m> {
    encoder: InputEncoder<'m>,
    fit: Fit,
}

impl<'m> Scores<'m> {
    /// Creates it for a model, whose engine has a context of `context` tokens.
    ///
    /// # Errors
    /// [`VectorError::NoScores`].
    pub fn new(
        model: impl Into<VectorModel>,
        vocabulary: &'m Vocabulary,
        context: usize,
        max_tokens: Option<usize>,
        truncate: bool,
        stop: Stop,
    ) -> Result<Scores<'m>, VectorError> {
        if !model.into().scores {
            return Err(VectorError::NoScores);
        }
        let fit = Fit { limit: limit(vocabulary, context, max_tokens), truncate };
        Ok(Scores { encoder: InputEncoder::new(vocabulary, false, stop), fit })
    }

    /// The tokens of a query and a document.
    ///
    /// # Errors
    /// [`VectorError::Input`].
    pub fn pair(&self, query: &str, document: &str) -> Result<EncoderInput, VectorError> {
        Ok(self.encoder.pair(query, document, self.fit)?)
    }

    /// The request for the score of a pair.
    pub fn request(&self, input: EncoderInput) -> GenerateRequest {
        request(input, Pooling::Rank)
    }
}

/// The order of scores by which documents are listed: the highest first, equal ones in the order of the documents.
pub fn ranked(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order
}

/// The cosine of the angle between two vectors; 0 if one of them has no length.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    let lengths = (product(a, a) * product(b, b)).sqrt();
    if lengths > 0.0 { product(a, b) / lengths } else { 0.0 }
}

fn limit(vocabulary: &Vocabulary, context: usize, requested: Option<usize>) -> usize {
    let own = vocabulary.sentence.max_tokens.unwrap_or(usize::MAX);
    context.min(own).min(requested.unwrap_or(usize::MAX))
}

fn request(input: EncoderInput, pooling: Pooling) -> GenerateRequest {
    let EncoderInput { tokens, second, .. } = input;
    let request = Request {
        prompt: tokens,
        second_segment: second,
        of_prompt: OfPrompt::Embedding(pooling),
        ..Request::default()
    };
    GenerateRequest { request, ..GenerateRequest::default() }
}
