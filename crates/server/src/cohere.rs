//! `POST /v2/embed`, of Cohere, and its first version, which has the address of Text Embeddings Inference ([`crate::tei`]).
//!
//! A vector is given as numbers, as base64 of little-endian f32, or as the signs of its numbers. Whole numbers (`int8`, `uint8`) are refused:
//! Cohere has a scale for each of its models, and other models state none.

use std::fmt::Write;
use std::sync::Arc;

use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::Refusal;
use alight_chat::vectors::Normalization;
use hyper::StatusCode;
use serde_json::{Map, Value, json};

use crate::embedding::{self, ManyVectors, Texts, VectorRules};
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};
use crate::shared::Shared;
use crate::{asking, ids};

/// The forms in which vectors are given, in the order in which they are listed.
const FORMS: [(&str, Form); 4] = [
    ("float", Form::Numbers),
    ("base64", Form::Base64),
    ("binary", Form::Signs { offset: 128 }),
    ("ubinary", Form::Signs { offset: 0 }),
];

/// A form of a vector.
#[derive(Clone, Copy)]
enum Form {
    Numbers,
    /// The bytes of its numbers.
    Base64,
    /// A bit for each number, 1 if it is above 0: eight in a whole number, the first in the highest bit, less `offset`.
    Signs {
        offset: i16,
    },
}

/// The prompts of a model's file that suit an `input_type`, the names that makers use for it.
const PROMPTS: [(&str, &[&str]); 4] = [
    ("search_document", &["search_document", "document", "passage", "retrieval.passage"]),
    ("search_query", &["search_query", "query", "retrieval.query"]),
    ("classification", &["classification", "Classification"]),
    ("clustering", &["clustering", "Clustering", "separation"]),
];

/// A request, as far as it shapes the response.
pub(crate) struct EmbedRequest {
    vectors: Texts,
    texts: Vec<Value>,
    forms: Vec<usize>,
    /// True for the second version.
    second: bool,
    /// True for the first version without `embedding_types`: one list of vectors.
    is_list: bool,
}

pub(crate) async fn answer(call: Call) -> Answered {
    let server = Arc::clone(&call.server);
    let request = call.apart(|call| begun(call, call.object()?, true)).await?;
    respond(request, &server).await
}

/// Computes the vectors, and writes the response.
pub(crate) async fn respond(request: EmbedRequest, server: &Shared) -> Answered {
    let EmbedRequest { vectors, texts, forms, second, is_list } = request;
    let ManyVectors { all, tokens, .. } = vectors.vectors(server).await?;
    let mut body = format!("{{\"id\":\"{}\",\"embeddings\":", ids::id("embed-"));
    body.push_str(if is_list { "" } else { "{" });
    for (i, form) in forms.into_iter().enumerate() {
        let (name, form) = FORMS[form];
        let comma = if i == 0 { "" } else { "," };
        let _ = if is_list { Ok(()) } else { write!(body, "{comma}\"{name}\":") };
        body.push('[');
        for (i, vector) in all.iter().enumerate() {
            body.push_str(if i == 0 { "" } else { "," });
            form.write(vector, &mut body);
        }
        body.push(']');
    }
    body.push_str(if is_list { "" } else { "}" });
    let kind = if is_list { "embeddings_floats" } else { "embeddings_by_type" };
    let version = if second { "2" } else { "1" };
    let meta =
        json!({"api_version": {"version": version}, "billed_units": {"input_tokens": tokens}});
    let texts = Value::Array(texts);
    let _ = write!(body, ",\"texts\":{texts},\"meta\":{meta},\"response_type\":\"{kind}\"}}");
    Ok(http::text(StatusCode::OK, http::JSON, body))
}

impl Form {
    fn write(self, vector: &[f32], out: &mut String) {
        match self {
            Form::Numbers => embedding::write(vector, out),
            Form::Base64 => embedding::write_base64(vector, out),
            Form::Signs { offset } => {
                let byte = |eight: &[f32]| {
                    let bit = |(i, x): (usize, &f32)| u8::from(*x > 0.0) << (7 - i);
                    i16::from(eight.iter().enumerate().map(bit).sum::<u8>()) - offset
                };
                let _ = write!(out, "{}", Value::from_iter(vector.chunks(8).map(byte)));
            }
        }
    }
}

/// Reads the body of a request of the first or the second version, and tokenizes the texts.
pub(crate) fn begun(
    call: &Call,
    mut body: Map<String, Value>,
    second: bool,
) -> Result<EmbedRequest, Failure> {
    call.admit(&endpoints::COHERE_EMBED, &mut body)?;
    let mut fields = Fields::new(body);
    let serving = asking::model_of_vectors(call, &mut fields)?;
    let forms = forms(&mut fields)?;
    let is_list = !second && forms.is_none();
    if let Some(purpose) = fields.string("input_type")? {
        let known = PROMPTS.map(|(name, _)| format!("{name:?}")).join(", ");
        let names = PROMPTS.iter().find(|(name, _)| *name == purpose).ok_or_else(|| {
            Refusal::invalid("input_type", format!("it is {purpose:?}, expected one of {known}"))
        })?;
        let prompts = &serving.vocabulary().sentence;
        let wanted = |name: &&&str| prompts.prompt(name).is_some();
        if !fields.has("prompt_name")
            && let Some(name) = names.1.iter().find(wanted)
        {
            fields.insert("prompt_name", (*name).into());
        }
    }
    if let Some(dimensions) = fields.any("output_dimension") {
        fields.insert("dimensions", dimensions);
    }
    let cut =
        fields.read("truncate", "\"END\" or \"NONE\": a beginning is never cut off", |value| {
            let known = ["NONE", "END"].iter().position(|known| value == *known);
            known.map(|at| at == 1)
        })?;
    let max_tokens = fields.count("max_tokens")?.filter(|n| *n > 0);
    let texts = texts(&mut fields)?;
    fields.insert("texts", texts.clone().into());
    let rules = VectorRules {
        input: "texts",
        cut: cut.unwrap_or(true),
        normalization: Normalization::Norm(2),
        max_tokens,
    };
    let vectors = embedding::take(call, serving, &mut fields, rules)
        .map_err(|failure| failure.in_words(&[("dimensions", "output_dimension")], ""))?;
    let forms = forms.unwrap_or_else(|| vec![0]);
    Ok(EmbedRequest { vectors, texts, forms, second, is_list })
}

/// Takes the forms of vectors, as positions in [`FORMS`], each once.
fn forms(fields: &mut Fields) -> Result<Option<Vec<usize>>, Refusal> {
    const NAME: &str = "embedding_types";
    let Some(wanted) = fields.list(NAME)? else { return Ok(None) };
    let mut forms = Vec::new();
    for (i, name) in wanted.iter().enumerate() {
        let known = FORMS.iter().position(|(known, _)| name == known);
        let at = known.ok_or_else(|| {
            let known = FORMS.map(|(name, _)| format!("{name:?}")).join(", ");
            let message = match name.as_str() {
                Some("int8" | "uint8") => {
                    format!("the model states no scale for whole numbers: expected one of {known}")
                }
                _ => format!("it is {name}, expected one of {known}"),
            };
            Refusal::invalid(format!("{NAME}[{i}]"), message)
        })?;
        if !forms.contains(&at) {
            forms.push(at);
        }
    }
    forms.sort_unstable();
    Ok((!forms.is_empty()).then_some(forms))
}

/// Takes the texts: `texts`, or `inputs` with one part of text each.
fn texts(fields: &mut Fields) -> Result<Vec<Value>, Refusal> {
    let (texts, inputs) = (fields.list("texts")?, fields.list("inputs")?);
    let all = match (texts, inputs) {
        (Some(texts), None) => {
            if let Some(i) = texts.iter().position(|text| !text.is_string()) {
                let message = format!("it is {}, expected a text", kind(&texts[i]));
                return Err(Refusal::invalid(format!("texts[{i}]"), message));
            }
            texts
        }
        (None, Some(inputs)) => {
            let texts = inputs.into_iter().enumerate().map(|(i, input)| {
                let text = match input["content"].as_array().map(Vec::as_slice) {
                    Some([part]) if part["type"] == "text" => part["text"].as_str(),
                    _ => None,
                };
                let message = "expected content of one part, {\"type\": \"text\", \"text\": \"…\"}";
                let wrong = || Refusal::invalid(format!("inputs[{i}]"), message);
                text.map(Value::from).ok_or_else(wrong)
            });
            texts.collect::<Result<_, _>>()?
        }
        (Some(_), Some(_)) => {
            return Err(Refusal::invalid(
                "inputs",
                "there are texts as well, expected one of them",
            ));
        }
        (None, None) => return Err(Refusal::invalid("texts", "it is missing")),
    };
    if all.is_empty() {
        return Err(Refusal::invalid("texts", "it is empty, expected at least one text"));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_packed_as_numpy_packs_bits() {
        let vector = [1.0, -1.0, 0.5, 0.0, -0.5, 2.0, 3.0, -1.0, 0.1];
        for (offset, expected) in [(0, "[166,128]"), (128, "[38,0]")] {
            let mut written = String::new();
            Form::Signs { offset }.write(&vector, &mut written);
            assert_eq!(written, expected);
        }
    }
}
