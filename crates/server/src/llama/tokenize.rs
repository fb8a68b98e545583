//! `POST /tokenize` and `POST /detokenize`

use alight_text::EncodeOptions;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::asking;
use crate::body::fields::Fields;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    let tokens = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = asking::model(call, &mut fields)?;
        let text = fields.string("content")?.unwrap_or_default();
        let begin = fields.truth("add_special")?.unwrap_or(false);
        let parse_special = fields.truth("parse_special")?.unwrap_or(true);
        let pieces = fields.truth("with_pieces")?.unwrap_or(false);
        let tokenizer = &serving.vocabulary().tokenizer;
        let options =
            EncodeOptions { add_bos: if begin { None } else { Some(false) }, parse_special };
        let ids = tokenizer.encode(&text, options);
        let ids = ids.map_err(|error| Failure::invalid(error.to_string()))?;
        let tokens = ids.into_iter().map(|id| match pieces {
            false => Value::from(id),
            true => {
                let mut bytes = Vec::new();
                tokenizer.decode_special(id, &mut bytes);
                let piece = match String::from_utf8(bytes) {
                    Ok(text) => Value::from(text),
                    // A part of a character.
                    Err(error) => error.into_bytes().into(),
                };
                json!({"id": id, "piece": piece})
            }
        });
        Ok(tokens.collect::<Value>())
    });
    Ok(http::json(StatusCode::OK, &json!({"tokens": tokens.await?})))
}

pub(crate) async fn back(call: Call) -> Answered {
    let text = call.apart(|call| {
        let mut fields = Fields::new(call.object()?);
        let serving = asking::model(call, &mut fields)?;
        let tokenizer = &serving.vocabulary().tokenizer;
        let vocab = tokenizer.vocab_size();
        let what = format!("a list of ids of tokens below {vocab}");
        let ids = fields.read("tokens", &what, |value| {
            let ids = value.as_array()?.iter().map(|id| {
                let id = u32::try_from(id.as_u64()?).ok()?;
                ((id as usize) < vocab).then_some(id)
            });
            ids.collect::<Option<Vec<u32>>>()
        })?;
        let mut bytes = Vec::new();
        ids.unwrap_or_default().iter().for_each(|id| tokenizer.decode_special(*id, &mut bytes));
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    });
    Ok(http::json(StatusCode::OK, &json!({"content": text.await?})))
}
