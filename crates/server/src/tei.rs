//! `POST /embed`, of Text Embeddings Inference; with `texts` it is that of Cohere's first version ([`crate::cohere`]).

use std::sync::Arc;

use alight_chat::body::fields::Fields;
use alight_chat::vectors::Normalization;
use hyper::StatusCode;

use crate::asking;
use crate::cohere::{self, EmbedRequest};
use crate::embedding::{self, ManyVectors, Texts, VectorRules};
use crate::endpoints;
use crate::failure::Failure;
use crate::http::{self, Answered, Call};

/// A request of one of the two.
enum EmbedBody {
    Tei(Texts),
    Cohere(EmbedRequest),
}

pub(crate) async fn answer(call: Call) -> Answered {
    let server = Arc::clone(&call.server);
    let texts = match call.apart(begun).await? {
        EmbedBody::Tei(texts) => texts,
        EmbedBody::Cohere(request) => return cohere::respond(request, &server).await,
    };
    let ManyVectors { all, .. } = texts.vectors(&server).await?;
    let mut body = String::from("[");
    for (i, vector) in all.iter().enumerate() {
        body.push_str(if i == 0 { "" } else { "," });
        embedding::write(vector, &mut body);
    }
    body.push(']');
    Ok(http::text(StatusCode::OK, http::JSON, body))
}

/// Reads the request, and tokenizes the texts.
fn begun(call: &Call) -> Result<EmbedBody, Failure> {
    let mut body = call.object()?;
    if body.contains_key("texts") && !body.contains_key("inputs") {
        return Ok(EmbedBody::Cohere(cohere::begun(call, body, false)?));
    }
    call.admit(&endpoints::TEI_EMBED, &mut body)?;
    let mut fields = Fields::new(body);
    let serving = asking::model_of_vectors(call, &mut fields)?;
    let normalize = fields.truth("normalize")?.unwrap_or(true);
    let normalization = if normalize { Normalization::Norm(2) } else { Normalization::None };
    let cut = fields.truth("truncate")?.unwrap_or(false);
    let rules = VectorRules { input: "inputs", cut, normalization, max_tokens: None };
    Ok(EmbedBody::Tei(embedding::take(call, serving, &mut fields, rules)?))
}
