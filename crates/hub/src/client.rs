//! Requests: which server gets the token, which redirects are followed, which errors are retried and after which pause.
//!
//! **Invariant:** the token goes to the hub (scheme, host and port of the endpoint) and nowhere else. Redirects are followed here,
//! so that each hop is checked; https never redirects to http.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ureq::http::uri::{Scheme, Uri};
use ureq::http::{HeaderMap, Response};
#[cfg(feature = "tls")]
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use crate::{HubError, Settings};

/// Maximum number of consecutive redirects.
const HOPS: usize = 10;
/// Maximum number of consecutive tries without progress.
const TRIES: u32 = 6;
/// The same before any server has answered: there may be no network at all.
const FIRST_TRIES: u32 = 2;
/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_secs(20);
/// The longest pause that a server may request.
const PATIENCE: Duration = Duration::from_secs(300);
/// The longest time that a server may stay silent.
const SILENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// Maximum number of simultaneous connections to one server.
pub(crate) const CONNECTIONS: usize = 8;

/// Sends requests.
pub(crate) struct Client {
    agent: Agent,
    endpoint: String,
    hub: Origin,
    token: Option<String>,
    /// The first pause before a retry; each further one is twice as long.
    pause: Duration,
    /// True once any server has answered.
    answered: AtomicBool,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    /// Only the head of an answer. A redirect to another server is the answer if its headers describe the file.
    Head,
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin(Scheme, String, u16);

/// A failure: final, or to be retried.
#[derive(Debug)]
pub(crate) enum Trouble {
    Final(HubError),
    /// The pause is the one the server requests, if any.
    Again(HubError, Option<Duration>),
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Trouble {
        Trouble::Final(error)
    }
}

/// The result of a request: head and body of the answer, and the URL it came from.
pub(crate) struct Answer {
    pub response: Response<Body>,
    pub url: String,
    /// True if the hub answered.
    pub of_hub: bool,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// The text of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        text(self.response.headers(), name)
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

impl Client {
    pub fn new(settings: &Settings, pause: Duration) -> Result<Client, HubError> {
        let wrong = || HubError::Setting {
            variable: "HF_ENDPOINT",
            value: settings.endpoint.clone(),
            problem: "that is not the address of a hub",
        };
        let hub = settings.endpoint.parse().ok().as_ref().and_then(Origin::of).ok_or_else(wrong)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(64 << 10)
            .max_idle_connections_per_host(CONNECTIONS)
            .timeout_connect(Some(CONNECT))
            .timeout_resolve(Some(CONNECT))
            .timeout_per_read(Some(SILENCE))
            .timeout_per_write(Some(SILENCE))
            .timeout_recv_response(Some(2 * SILENCE))
            .user_agent(concat!("alight/", env!("CARGO_PKG_VERSION")));
        #[cfg(feature = "tls")]
        let config = config.tls_config(TlsConfig::builder().root_certs(certificates(&hub)).build());
        let agent = config.build().new_agent();
        let (endpoint, token) = (settings.endpoint.clone(), settings.token.clone());
        Ok(Client { agent, endpoint, hub, token, pause, answered: AtomicBool::new(false) })
    }

    /// A URL of the hub: the given parts in order, each of them a path.
    pub fn url(&self, parts: &[&str]) -> String {
        let parts = parts.iter().map(|part| format!("/{}", escaped(part)));
        parts.fold(self.endpoint.clone(), |url, part| url + &part)
    }

    /// True if requests to the hub carry a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Ends all requests in flight.
    pub fn shut_down(&self) {
        self.agent.clone().shutdown();
    }

    /// Sends one request and follows redirects.
    pub fn send(
        &self,
        method: Method,
        url: &str,
        range: Option<(u64, u64)>,
    ) -> Result<Answer, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..HOPS {
            let wrong = |problem: &str| answer(&url, problem);
            let uri: Uri =
                url.parse().map_err(|_| wrong("a redirect leads to no valid address"))?;
            let origin =
                Origin::of(&uri).ok_or_else(|| wrong("a redirect leads to no valid address"))?;
            if cfg!(not(feature = "tls")) && origin.0 == Scheme::HTTPS {
                return Err(HubError::NoTls { url: shown(&url) }.into());
            }
            let of_hub = origin == self.hub;
            let mut request = match method {
                Method::Get => self.agent.get(&uri),
                Method::Head => self.agent.head(&uri),
            };
            // Compressed content has another size, and no ranges.
            request = request.header("Accept-Encoding", "identity");
            if let Some(token) = self.token.as_ref().filter(|_| of_hub) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some((first, last)) = range {
                request = request.header("Range", format!("bytes={first}-{last}"));
            }
            let response = request.call().map_err(|error| lost(&url, &error))?;
            self.answered.store(true, Ordering::Relaxed);
            let status = response.status().as_u16();
            if !matches!(status, 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { response, url, of_hub });
            }
            let location = text(response.headers(), "location").unwrap_or_default();
            let next = joined(&uri, location)
                .ok_or_else(|| wrong("a redirect leads to no valid address"))?;
            let there = next.parse().ok().as_ref().and_then(Origin::of);
            let there = there.ok_or_else(|| wrong("a redirect leads to no valid address"))?;
            if origin.0 == Scheme::HTTPS && there.0 != Scheme::HTTPS {
                return Err(wrong("a redirect leads from https to http").into());
            }
            // A mirror may redirect to the hub itself, whose headers then describe the file.
            let has_etag =
                ["x-linked-etag", "etag"].iter().any(|name| response.headers().contains_key(*name));
            if method == Method::Head && there != origin && has_etag {
                return Ok(Answer { response, url: next, of_hub });
            }
            url = next;
        }
        Err(answer(&url, "too many redirects").into())
    }

    /// Calls `attempt` until it succeeds, fails for good, or fails too often without progress. `attempt` returns its total progress
    /// so far: as long as that grows, it is retried.
    pub fn patiently<T>(
        &self,
        stop: &dyn Fn() -> bool,
        mut attempt: impl FnMut() -> (u64, Result<T, Trouble>),
    ) -> Result<T, HubError> {
        let (mut tries, mut before) = (0, 0);
        loop {
            let (progress, result) = attempt();
            if result.is_err() && stop() {
                return Err(HubError::Stopped);
            }
            let (error, asked) = match result {
                Ok(done) => return Ok(done),
                Err(Trouble::Final(error)) => return Err(error),
                Err(Trouble::Again(error, asked)) => (error, asked),
            };
            if progress > before {
                (before, tries) = (progress, 0);
            }
            tries += 1;
            let answered = self.answered.load(Ordering::Relaxed);
            if tries >= if answered { TRIES } else { FIRST_TRIES } {
                return Err(error);
            }
            let own = self.pause.saturating_mul(1 << (tries - 1)).min(MAX_PAUSE);
            let pause = asked.unwrap_or(own);
            if pause > PATIENCE {
                return Err(error);
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !stop() {
                thread::sleep((until - Instant::now().min(until)).min(Duration::from_millis(50)));
            }
            if stop() {
                return Err(HubError::Stopped);
            }
        }
    }
}

impl Origin {
    fn of(uri: &Uri) -> Option<Origin> {
        let scheme = uri.scheme()?.clone();
        let usual = if scheme == Scheme::HTTPS { 443 } else { 80 };
        if scheme != Scheme::HTTPS && scheme != Scheme::HTTP {
            return None;
        }
        // User information before the host would be sent to it.
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
        let port = authority.port_u16().unwrap_or(usual);
        Some(Origin(scheme, authority.host().to_ascii_lowercase(), port))
    }
}

/// The certificates of the system, or Mozilla's if the system has none.
#[cfg(feature = "tls")]
fn certificates(hub: &Origin) -> RootCerts {
    // Not for HTTP: reading a hundred files takes milliseconds.
    if hub.0 == Scheme::HTTP {
        return RootCerts::WebPki;
    }
    let found = rustls_native_certs::load_native_certs().certs;
    let found: Vec<Certificate<'static>> =
        found.iter().map(|one| Certificate::from_der(one).to_owned()).collect();
    match found.is_empty() {
        true => RootCerts::WebPki,
        false => RootCerts::from(found.into_iter()),
    }
}

/// The target of a redirect.
fn joined(from: &Uri, location: &str) -> Option<String> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    if location.is_empty() || location.len() > 16 << 10 {
        return None;
    }
    Some(if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.contains("://") {
        location.to_owned()
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    })
}

/// A URL for messages, without its query, which may contain a signature.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().chars().take(300).collect()
}

/// The error for an answer that is not one of a hub.
pub(crate) fn answer(url: &str, problem: impl Into<String>) -> HubError {
    HubError::Answer { url: shown(url), problem: problem.into() }
}

/// The error for a connection that failed.
fn lost(url: &str, error: &ureq::Error) -> Trouble {
    match error {
        ureq::Error::HostNotFound => {
            Trouble::Again(unreachable(url, &"the host is not found"), None)
        }
        // TLS errors are final. (Certificates of the wrong time or name come from networks that require a sign-in first.)
        ureq::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            untrusted(url, error).into()
        }
        #[cfg(feature = "tls")]
        ureq::Error::Rustls(error) => untrusted(url, error).into(),
        ureq::Error::Io(error) => Trouble::Again(unreachable(url, error), None),
        ureq::Error::Timeout(_) | ureq::Error::ConnectionFailed => {
            Trouble::Again(unreachable(url, error), None)
        }
        // Half a head: the server closed the connection.
        ureq::Error::Protocol(_) => Trouble::Again(connection(url, error), None),
        ureq::Error::LargeResponseHeader(..) => answer(url, "its head is too large").into(),
        _ => connection(url, error).into(),
    }
}

/// A server that cannot be reached: more often than not, there is no network.
fn unreachable(url: &str, error: &dyn std::fmt::Display) -> HubError {
    connection(url, &format!("{error}; is there a network, or does it need a proxy (HTTPS_PROXY)?"))
}

/// A connection that cannot be trusted.
fn untrusted(url: &str, error: &dyn std::fmt::Display) -> HubError {
    let problem = format!("{error}; SSL_CERT_FILE can name certificates that you trust");
    HubError::Connection { url: shown(url), problem }
}

/// A [`HubError::Connection`].
pub(crate) fn connection(url: &str, error: &dyn std::fmt::Display) -> HubError {
    HubError::Connection { url: shown(url), problem: error.to_string() }
}

/// The error for a status that is neither a success nor a refusal.
pub(crate) fn status(answer: &Answer) -> Trouble {
    let (url, status) = (shown(&answer.url), answer.status());
    // Bodies of errors are not read.
    match status {
        429 => {
            let asked = asked_pause(answer);
            let seconds = asked.map_or(0, |pause| pause.as_secs());
            Trouble::Again(HubError::RateLimited { url, seconds }, asked)
        }
        408 | 425 | 500..=599 => {
            Trouble::Again(HubError::Status { url, status }, asked_pause(answer))
        }
        _ => Trouble::Final(HubError::Status { url, status }),
    }
}

/// `Retry-After: 5`, or `RateLimit: "resolvers";r=0;t=5`, which the hub sends instead.
fn asked_pause(answer: &Answer) -> Option<Duration> {
    let seconds = |text: &str| text.trim().parse().ok().map(Duration::from_secs);
    if let Some(asked) = answer.header("retry-after").and_then(seconds) {
        return Some(asked);
    }
    let limit = answer.header("ratelimit")?;
    limit.split(';').find_map(|field| seconds(field.trim().strip_prefix("t=")?))
}

/// A path, percent-encoded for a URL.
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let from: Uri = "https://hub.example/a/resolve/x?y=1".parse().unwrap();
        for (location, expected) in [
            ("https://cdn.example/z?s=1", "https://cdn.example/z?s=1"),
            ("/b/c", "https://hub.example/b/c"),
            ("//cdn.example/c", "https://cdn.example/c"),
            ("c", "https://hub.example/a/resolve/c"),
        ] {
            assert_eq!(joined(&from, location).unwrap(), expected);
        }
        assert_eq!(joined(&from, ""), None);
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |url: &str| Origin::of(&url.parse().unwrap());
        assert_eq!(origin("https://HUB.example/x"), origin("https://hub.example:443"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("http://hub.example:1"), origin("http://hub.example:2"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example.evil.example"));
        assert_eq!(origin("https://hub.example@evil.example"), None);
        assert_eq!(origin("file://hub.example/x"), None);
    }

    #[test]
    fn a_path_is_escaped() {
        assert_eq!(escaped("a b/c?d#e%.gguf"), "a%20b/c%3Fd%23e%25.gguf");
        assert_eq!(shown("https://x/y?Signature=secret"), "https://x/y");
    }
}
