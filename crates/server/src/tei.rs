//! `POST /embed`, of Text Embeddings Inference; with `texts` it is that of Cohere's first version ([`crate::cohere`]).

use std::sync::Arc;

use alight_chat::body::fields::Fields;
use alight_chat::vectors::Normalization;
use hyper::StatusCode;

use crate::asking;
use crate::cohere;
use crate::embedding::{self, ManyVectors, VectorRules};
use crate::endpoints;
use crate::http::{self, Answered, Call};

pub(crate) async fn answer(call: Call) -> Answered {
    if call.object().is_ok_and(|body| body.contains_key("texts") && !body.contains_key("inputs")) {
        return cohere::first(call).await;
    }
    let server = Arc::clone(&call.server);
    let texts = call.apart(|call| {
        let mut fields = Fields::new(call.declared(&endpoints::TEI_EMBED)?);
        let serving = asking::model_of_vectors(call, &mut fields)?;
        let normalize = fields.truth("normalize")?.unwrap_or(true);
        let normalization = if normalize { Normalization::Norm(2) } else { Normalization::None };
        let cut = fields.truth("truncate")?.unwrap_or(false);
        embedding::take(
            call,
            serving,
            &mut fields,
            VectorRules { input: "inputs", cut, normalization, max_tokens: None },
        )
    });
    let ManyVectors { all, .. } = texts.await?.vectors(&server).await?;
    let mut body = String::from("[");
    for (i, vector) in all.iter().enumerate() {
        body.push_str(if i == 0 { "" } else { "," });
        embedding::write(vector, &mut body);
    }
    body.push(']');
    Ok(http::text(StatusCode::OK, http::JSON, body))
}
