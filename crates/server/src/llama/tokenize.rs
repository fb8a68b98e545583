//! `POST /tokenize` and `POST /detokenize`

use std::fmt::Write;

use alight_chat::body::fields::Fields;
use alight_chat::body::refusal::Refusal;
use alight_text::EncodeOptions;
use hyper::StatusCode;
use serde_json::{Value, json};

use crate::asking;
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

/// Maximum size of a text in bytes: its tokens, written with their pieces, are at most about thirty times as long.
const CONTENT: usize = 4 << 20;

pub(crate) async fn answer(call: Call) -> Answered {
    let written = call.apart(|call| {
        let mut fields = Fields::new(call.declared(&endpoints::TOKENIZE)?);
        let serving = asking::model(call, &mut fields)?;
        let text = fields.string("content")?.unwrap_or_default();
        if text.len() > CONTENT {
            let message = format!("it has {} bytes, expected at most {CONTENT}", text.len());
            return Err(Refusal::invalid("content", message).into());
        }
        let begin = fields.truth("add_special")?.unwrap_or(false);
        let parse_special = fields.truth("parse_special")?.unwrap_or(true);
        let pieces = fields.truth("with_pieces")?.unwrap_or(false);
        let tokenizer = &serving.vocabulary().tokenizer;
        let options =
            EncodeOptions { add_bos: if begin { None } else { Some(false) }, parse_special };
        let ids = tokenizer.encode(&text, options);
        let ids = ids.map_err(|error| Failure::invalid(error.to_string()))?;
        // Written one by one: JSON values for the tokens of a long text would use many times its memory.
        let mut written = String::from("{\"tokens\":[");
        for (i, id) in ids.into_iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            let _ = match pieces {
                false => write!(written, "{comma}{id}"),
                true => {
                    let mut bytes = Vec::new();
                    tokenizer.decode_special(id, &mut bytes);
                    let piece = match String::from_utf8(bytes) {
                        Ok(text) => Value::from(text),
                        // A part of a character.
                        Err(error) => error.into_bytes().into(),
                    };
                    write!(written, "{comma}{{\"id\":{id},\"piece\":{piece}}}")
                }
            };
        }
        written.push_str("]}");
        Ok(written)
    });
    Ok(http::text(StatusCode::OK, http::JSON, written.await?))
}

pub(crate) async fn back(call: Call) -> Answered {
    let text = call.apart(|call| {
        let mut fields = Fields::new(call.declared(&endpoints::DETOKENIZE)?);
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
