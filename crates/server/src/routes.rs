//! The table of addresses: one line each.

use std::pin::Pin;

use hyper::Method;

use crate::failure::{Failure, Written};
use crate::http::{Answered, Call};
use crate::{anthropic, health, llama, ollama, openai, page};

/// What answers.
type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Answered> + Send>>;

/// An address.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Without `/v1`, which may stand in front of it. `*` at its end stands for anything without a `/`.
    pub(crate) path: &'static str,
    /// Whether it is answered without a key.
    pub(crate) open: bool,
    pub(crate) handler: Handler,
    /// How its failures are written.
    pub(crate) failure: Written,
}

macro_rules! routes {
    ($($method:ident $path:literal $access:ident $shape:path => $handler:path,)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            open: routes!(@$access),
            handler: |call| Box::pin($handler(call)),
            failure: $shape,
        },)*]
    };
    (@open) => { true };
    (@key) => { false };
}

pub(crate) static ROUTES: &[Route] = routes![
    GET  "/"                 open Failure::openai => page::answer,
    GET  "/alight/memory"    key  Failure::openai => page::memory::answer,

    GET  "/health"           open Failure::openai => health::answer,
    GET  "/models"           key  Failure::openai => openai::models::answer,
    POST "/chat/completions" key  Failure::openai => openai::chat::answer,
    POST "/completions"      key  Failure::openai => openai::completions::answer,
    POST "/responses"        key  Failure::openai => openai::responses::answer,
    POST "/embeddings"       key  Failure::openai => openai::embeddings::answer,

    POST "/messages"              key Failure::anthropic => anthropic::messages::answer,
    POST "/messages/count_tokens" key Failure::anthropic => anthropic::count_tokens::answer,

    GET  "/api/version"  key Failure::ollama => ollama::version::answer,
    GET  "/api/tags"     key Failure::ollama => ollama::tags::answer,
    GET  "/api/ps"       key Failure::ollama => ollama::tags::running,
    POST "/api/show"     key Failure::ollama => ollama::show::answer,
    POST "/api/chat"     key Failure::ollama => ollama::chat::answer,
    POST "/api/generate" key Failure::ollama => ollama::generate::answer,
    POST "/api/embed"    key Failure::ollama => ollama::embed::answer,

    POST "/completion"     key Failure::openai => llama::completion::answer,
    POST "/tokenize"       key Failure::openai => llama::tokenize::answer,
    POST "/detokenize"     key Failure::openai => llama::tokenize::back,
    POST "/apply-template" key Failure::openai => llama::apply_template::answer,
    GET  "/props"          key Failure::openai => llama::props::answer,
    GET  "/slots"          key Failure::openai => llama::slots::answer,
    POST "/slots/*"        key Failure::openai => llama::slot_files::answer,
    GET  "/metrics"        key Failure::openai => llama::metrics::answer,
];

impl Route {
    /// What the `*` of its path stands for in this one, nothing if it has none; `None`: it is another path.
    fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.strip_suffix('*') {
            None => (self.path == path).then_some(""),
            Some(before) => {
                path.strip_prefix(before).filter(|rest| !rest.is_empty() && !rest.contains('/'))
            }
        }
    }
}

/// What answers a request, and what the `*` of its path stands for; or how its failure is written, and what it is.
pub(crate) fn find<'p>(
    method: &Method,
    path: &'p str,
) -> Result<(&'static Route, &'p str), (Written, Failure)> {
    let plain = path.strip_prefix("/v1").filter(|rest| rest.starts_with('/')).unwrap_or(path);
    let there = ROUTES.iter().filter_map(|route| Some((route, route.matches(plain)?)));
    let mut there = there.peekable();
    let Some((first, _)) = there.peek() else {
        let message = format!("there is nothing at {path:?}");
        return Err((Failure::openai, Failure::not_found(message)));
    };
    let shape = first.failure;
    let methods: Vec<&str> = there.clone().map(|(route, _)| route.method.as_str()).collect();
    there.find(|(route, _)| route.method == *method).ok_or_else(|| {
        let message = format!("{path} is asked by {}, not by {method}", methods.join(" or "));
        let status = hyper::StatusCode::METHOD_NOT_ALLOWED;
        (shape, Failure::new(status, "invalid_request_error", message))
    })
}
