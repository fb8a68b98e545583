//! The table of routes, one line each.

use std::pin::Pin;

use hyper::{Method, StatusCode};

use crate::failure::{ErrorFormat, Failure};
use crate::http::{Answered, Call};
use crate::{anthropic, cohere, health, llama, ollama, openai, page, rerank, tei};

/// The function that answers a request.
type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Answered> + Send>>;

/// The authorisation that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthRequirement {
    /// None: any host name and no key. Only for the health check.
    Any,
    /// A host name of the server, and no key.
    Open,
    /// A host name of the server, and a key if there are keys.
    Key,
}

/// A route.
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Without `/v1`, which may precede it. `*` at its end matches anything: the name of a model may have a `/` in it.
    pub(crate) path: &'static str,
    pub(crate) auth: AuthRequirement,
    pub(crate) handler: Handler,
    /// The format of its failures.
    pub(crate) failure: ErrorFormat,
}

macro_rules! routes {
    ($($method:ident $path:literal $access:ident $shape:path => $handler:path,)*) => {
        &[$(Route {
            method: Method::$method,
            path: $path,
            auth: routes!(@$access),
            handler: |call| Box::pin($handler(call)),
            failure: $shape,
        },)*]
    };
    (@any) => { AuthRequirement::Any };
    (@open) => { AuthRequirement::Open };
    (@key) => { AuthRequirement::Key };
}

pub(crate) static ROUTES: &[Route] = routes![
    GET  "/"                 open Failure::openai => page::answer,
    GET  "/alight/memory"    key  Failure::openai => page::memory::answer,

    GET  "/health"           any  Failure::openai => health::answer,
    GET  "/models"           key  Failure::openai => openai::models::answer,
    GET  "/models/*"         key  Failure::openai => openai::models::one,
    POST "/chat/completions" key  Failure::openai => openai::chat::answer,
    POST "/chat/completions/input_tokens" key Failure::openai => openai::input_tokens::of_chat,
    POST "/completions"      key  Failure::openai => openai::completions::answer,
    POST "/responses"        key  Failure::openai => openai::responses::answer,
    POST "/responses/input_tokens" key Failure::openai => openai::input_tokens::answer,
    POST "/embeddings"       key  Failure::openai => openai::embeddings::answer,
    POST "/rerank"           key  Failure::openai => rerank::answer,
    POST "/reranking"        key  Failure::openai => rerank::answer,
    POST "/v2/rerank"        key  Failure::openai => rerank::answer,
    POST "/embed"            key  Failure::tei => tei::answer,
    POST "/v2/embed"         key  Failure::openai => cohere::answer,

    POST "/messages"              key Failure::anthropic => anthropic::messages::answer,
    POST "/messages/count_tokens" key Failure::anthropic => anthropic::count_tokens::answer,

    GET  "/api/version"  key Failure::ollama => ollama::version::answer,
    GET  "/api/tags"     key Failure::ollama => ollama::tags::answer,
    GET  "/api/ps"       key Failure::ollama => ollama::tags::running,
    POST "/api/show"     key Failure::ollama => ollama::show::answer,
    POST "/api/pull"     key Failure::ollama => ollama::pull::answer,
    POST "/api/chat"     key Failure::ollama => ollama::chat::answer,
    POST "/api/generate" key Failure::ollama => ollama::generate::answer,
    POST "/api/embed"    key Failure::ollama => ollama::embed::answer,
    POST "/api/embeddings" key Failure::ollama => ollama::embed::one,

    POST "/completion"     key Failure::openai => llama::completion::answer,
    POST "/infill"         key Failure::openai => llama::infill::answer,
    POST "/tokenize"       key Failure::openai => llama::tokenize::answer,
    POST "/detokenize"     key Failure::openai => llama::tokenize::back,
    POST "/apply-template" key Failure::openai => llama::apply_template::answer,
    GET  "/props"          key Failure::openai => llama::props::answer,
    GET  "/slots"          key Failure::openai => llama::slots::answer,
    POST "/slots/*"        key Failure::openai => llama::slot_files::answer,
    GET  "/lora-adapters"  key Failure::openai => llama::lora_adapters::list,
    POST "/lora-adapters"  key Failure::openai => llama::lora_adapters::set,
    POST "/load_lora_adapter"   key Failure::openai => llama::lora_adapters::load,
    POST "/unload_lora_adapter" key Failure::openai => llama::lora_adapters::unload,
    GET  "/metrics"        key Failure::openai => llama::metrics::answer,
];

impl Route {
    /// Returns the part of the path that the `*` matches, empty if it has none; `None` if it is another path.
    fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.strip_suffix('*') {
            None => (self.path == path).then_some(""),
            Some(before) => path.strip_prefix(before).filter(|rest| !rest.is_empty()),
        }
    }
}

/// Returns a path that is no route without any `/v1` at its beginning, and true if there was one: clients differ in who adds it.
fn without_more_versions(path: &str) -> (&str, bool) {
    let mut rest = path;
    while let Some(after) = rest.strip_prefix("/v1").filter(|after| after.starts_with('/')) {
        rest = after;
    }
    (rest, rest.len() < path.len() || path == "/v1")
}

/// Returns the route of a request and the part that its `*` matches; or the format of the failure, and the failure. HEAD is allowed
/// wherever GET is, and its response has no body.
pub(crate) fn find<'p>(
    method: &Method,
    path: &'p str,
) -> Result<(&'static Route, &'p str), (ErrorFormat, Failure)> {
    // The base URL configured in a client may end with a `/`, to which the client adds its own.
    let slashes = path.len() - path.trim_start_matches('/').len();
    let plain = &path[slashes.saturating_sub(1)..];
    let within =
        plain.strip_prefix("/v1").filter(|rest| matches!(rest.bytes().next(), None | Some(b'/')));
    let plain = within.unwrap_or(plain).trim_end_matches('/');
    let plain = if plain.is_empty() { "/" } else { plain };
    let asked = if method == Method::HEAD { &Method::GET } else { method };
    let mut there = ROUTES.iter().filter_map(|route| Some((route, route.matches(plain)?)));
    let is_asked = |found: &(&Route, &str)| found.0.method == *asked;
    let (exact, first) = (there.clone().find(is_asked), there.next());
    match exact.or(first) {
        Some(found) if is_asked(&found) => Ok(found),
        Some((route, _)) => {
            let (methods, allow) = match (route.method == Method::GET, there.next().is_some()) {
                (true, false) => ("GET", "GET, HEAD"),
                (false, false) => ("POST", "POST"),
                (_, true) => ("GET and POST", "GET, HEAD, POST"),
            };
            let message = format!("{path} takes {methods}, not {method}");
            let status = StatusCode::METHOD_NOT_ALLOWED;
            let failure = Failure::new(status, "invalid_request_error", message);
            Err((route.failure, Failure { allow: Some(allow), ..failure }))
        }
        None => {
            let (plain, doubled) = without_more_versions(plain);
            let shape: ErrorFormat = match plain {
                ollama if ollama.starts_with("/api/") => Failure::ollama,
                anthropic if anthropic.starts_with("/messages") => Failure::anthropic,
                _ => Failure::openai,
            };
            let mut message = format!("there is nothing at {path:?}");
            if doubled {
                message += ": the base URL already ends with /v1, and the client adds another one: give the client the base URL without /v1";
            }
            Err((shape, Failure::not_found(message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_comes_twice_is_named() {
        for (path, key) in [
            ("/v1/v1/chat/completions", "error"),
            ("/v1/v1/v1/models", "error"),
            ("//v1/v1/", "error"),
            ("/v1/v1/messages", "type"),
        ] {
            let (shape, failure) = find(&Method::POST, path).err().unwrap();
            assert_eq!(failure.status, StatusCode::NOT_FOUND);
            assert!(failure.message.contains("already ends with /v1"), "{}", failure.message);
            assert!(shape(&failure).get(key).is_some(), "{path}");
        }
        for path in ["/v1/nothing", "/nothing", "/v1x/models", "/v1/v1x"] {
            let (_, failure) = find(&Method::GET, path).err().unwrap();
            assert!(!failure.message.contains("already"), "{}", failure.message);
        }
    }

    #[test]
    fn a_path_and_method_has_one_route_and_head_is_asked_where_get_is() {
        for (i, route) in ROUTES.iter().enumerate() {
            let same = |other: &Route| (other.path, &other.method) == (route.path, &route.method);
            assert!(!ROUTES[..i].iter().any(same), "{}", route.path);
            let path = route.path.replace('*', "x");
            assert!(find(&route.method, &path).is_ok_and(|found| std::ptr::eq(found.0, route)));
            let is_read = |other: &Route| other.path == route.path && other.method == Method::GET;
            assert_eq!(find(&Method::HEAD, &path).is_ok(), ROUTES.iter().any(is_read), "{path}");
            for path in [format!("/{path}"), format!("/v1{path}"), format!("//v1{path}/")] {
                let found = find(&route.method, &path);
                assert!(found.is_ok_and(|found| std::ptr::eq(found.0, route)), "{path}");
            }
            let failure = find(&Method::PUT, &path).err().unwrap().1;
            assert_eq!(failure.status, StatusCode::METHOD_NOT_ALLOWED);
            assert!(failure.allow.unwrap().contains(route.method.as_str()));
        }
    }
}
