//! Access control. A page of any site can make the user's browser send requests to this server, either directly (the browser then
//! sends `Origin`) or through a name that the site points here (`Host` then has that name): both are refused unless the origin or
//! the name was configured.

use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::{HeaderMap, StatusCode};
use sha2::{Digest, Sha256};
use std::net::IpAddr;

use crate::failure::Failure;
use crate::{Options, is_socket_file};

/// The name in the list of origins that stands for all pages of this machine, at any port.
const LOCAL: &str = "localhost";

/// The access rules of a server.
pub(crate) struct Access {
    host: String,
    /// True if it listens on a Unix socket, which no browser can reach.
    socket: bool,
    origins: Vec<String>,
    keys: Vec<[u8; 32]>,
}

impl Access {
    pub(crate) fn new(options: &Options) -> Access {
        let keys = options.keys.iter().map(|key| Sha256::digest(key).into()).collect();
        let origins = options.origins.iter().map(|o| o.trim_end_matches('/').to_lowercase());
        let socket = is_socket_file(&options.host);
        Access { host: options.host.to_lowercase(), socket, origins: origins.collect(), keys }
    }

    /// Checks the names in the request. Returns the origin if the request comes from a page that is allowed.
    pub(crate) fn names(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, Failure> {
        let text = |name: HeaderName| -> Result<Option<String>, Failure> {
            let mut all = headers.get_all(&name).iter();
            let (Some(value), more) = (all.next(), all.next()) else { return Ok(None) };
            match (value.to_str(), more) {
                (Ok(value), None) => Ok(Some(value.to_lowercase())),
                (_, Some(_)) => Err(refused(format!("the request has several headers {name}"))),
                (Err(_), None) => Err(refused(format!("the header {name} is not ASCII"))),
            }
        };
        let host = text(HOST)?.unwrap_or_default();
        // A client that knows a key is not a page that lured the user here.
        if self.keys.is_empty() && !self.socket && !self.is_known(name_of(&host)) {
            return Err(refused(format!(
                "the request is for the host {host:?}, which is not the name of this server: use its address, or name the host with \
                 --host or --cors-origins"
            )));
        }
        let Some(origin) = text(ORIGIN)? else { return Ok(None) };
        let own = origin
            .split_once("://")
            .is_some_and(|(scheme, from)| ["http", "https"].contains(&scheme) && from == host);
        let is_allowed = |known: &String| match known.as_str() {
            "*" => true,
            LOCAL => is_local(&origin),
            known => known == origin,
        };
        if own || self.origins.iter().any(is_allowed) {
            return Ok(headers.get(ORIGIN).cloned());
        }
        Err(refused(format!(
            "requests from pages of {origin:?} are not allowed: name it with --cors-origins to allow them"
        )))
    }

    fn is_known(&self, name: &str) -> bool {
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let listed = || {
            let mut hosts = self.origins.iter().filter_map(|origin| origin.split_once("://"));
            hosts.any(|(_, host)| name_of(host) == name)
        };
        // A request without a name does not come from a browser. A name without a dot belongs to this network (a container, say), and no
        // site on the Internet can have one of these last parts.
        let own = match name.trim_end_matches('.').rsplit_once('.') {
            None => true,
            Some((_, last)) => ["localhost", "local", "internal"].contains(&last),
        };
        own || bare.parse::<IpAddr>().is_ok() || name == self.host || listed()
    }

    /// Checks that the request has one of the keys. Returns a salt that separates its user from others.
    pub(crate) fn key(&self, headers: &HeaderMap) -> Result<Box<str>, Failure> {
        if self.keys.is_empty() {
            return Ok("".into());
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim().as_bytes())
        });
        let plain = headers.get(HeaderName::from_static("x-api-key")).map(HeaderValue::as_bytes);
        let given = bearer.or(plain).ok_or_else(|| {
            unknown("there is no API key: send it as \"Authorization: Bearer KEY\" or as \"X-Api-Key: KEY\"")
        })?;
        let given: [u8; 32] = Sha256::digest(given).into();
        // Compares all keys and all bytes, so that the time reveals nothing.
        let known = self.keys.iter().fold(false, |known, key| {
            let differ = key.iter().zip(given).fold(0, |differ, (a, b)| differ | (a ^ b));
            known | (std::hint::black_box(differ) == 0)
        });
        if !known {
            return Err(unknown("this API key is not valid here"));
        }
        Ok(given.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
    }
}

/// True if a page comes from a program on the browser's own machine.
fn is_local(origin: &str) -> bool {
    let Some(("http" | "https", host)) = origin.split_once("://") else { return false };
    let name = name_of(host);
    let port = host[name.len()..].trim_start_matches(':');
    ["localhost", "127.0.0.1", "[::1]"].contains(&name)
        && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host[at..].contains(']') => &host[..at],
        _ => host,
    }
}

fn refused(message: String) -> Failure {
    Failure::new(StatusCode::FORBIDDEN, "permission_error", message)
}

fn unknown(message: &str) -> Failure {
    Failure::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(origins: &[&str], keys: &[&str]) -> Access {
        let own = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
        Access::new(&Options {
            host: "Box.lan".into(),
            keys: own(keys),
            origins: own(origins),
            ..Options::of_tests()
        })
    }

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        all.iter().map(pair).collect()
    }

    #[test]
    fn only_names_of_this_server_and_of_pages_that_were_named() {
        let access = access(&["https://chat.example", "tauri://localhost"], &[]);
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LOCALHOST:1",
            "[::1]:8080",
            "192.168.0.7:80",
            "box.lan:8080",
            "a.localhost",
            "chat.example",
            // A container, a machine on this network, Docker's name for the host, a load balancer without a name.
            "alight:8080",
            "box.local",
            "host.docker.internal:8080",
            "localhost.",
            "",
        ] {
            assert_eq!(access.names(&headers(&[("host", host)])), Ok(None), "{host}");
        }
        for host in
            ["evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "local.evil"]
        {
            let failure = access.names(&headers(&[("host", host)])).unwrap_err();
            assert_eq!(failure.status, 403, "{host}");
        }
        for (origin, may) in [
            ("http://localhost:8080", true),
            ("https://chat.example", true),
            ("http://localhost:9090", false),
            // Ollama allows these by default.
            ("http://127.0.0.1:3000", false),
            ("http://0.0.0.0:8080", false),
            ("app://obsidian.md", false),
            ("file://", false),
            ("vscode-webview://x", false),
            ("tauri://localhost", true),
            ("tauri://localhost:8080", false),
            ("http://evil.example", false),
            ("null", false),
            ("", false),
        ] {
            let given = headers(&[("host", "localhost:8080"), ("origin", origin)]);
            assert_eq!(access.names(&given).is_ok(), may, "{origin}");
        }
    }

    #[test]
    fn pages_of_this_machine_may_be_allowed_at_any_port() {
        let access = access(&["localhost"], &[]);
        for (origin, may) in [
            ("http://localhost", true),
            ("http://localhost:3000", true),
            ("https://LOCALHOST:1", true),
            ("http://127.0.0.1:5173", true),
            ("http://[::1]:80", true),
            ("http://[::1]", true),
            ("http://a.localhost:80", false),
            ("http://localhost.evil.example", false),
            ("http://localhost:evil.example", false),
            ("http://localhost:80.evil.example", false),
            ("http://127.0.0.2", false),
            ("http://192.168.0.7:80", false),
            ("tauri://localhost", false),
            ("localhost", false),
            ("null", false),
        ] {
            let given = headers(&[("host", "localhost:8080"), ("origin", origin)]);
            assert_eq!(access.names(&given).is_ok(), may, "{origin}");
        }
        // It allows no other name of the server itself.
        assert!(access.names(&headers(&[("host", "evil.example")])).is_err());
    }

    #[test]
    fn a_host_that_comes_twice_or_is_no_text_is_refused() {
        let access = access(&[], &[]);
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(access.names(&twice).unwrap_err().status, 403);
        let mut other = HeaderMap::new();
        other.insert(HOST, HeaderValue::from_bytes(b"\xe9vil.example").unwrap());
        assert_eq!(access.names(&other).unwrap_err().status, 403);
        let mut origins = headers(&[("host", "localhost"), ("origin", "http://localhost")]);
        origins.append(ORIGIN, HeaderValue::from_static("http://evil.example"));
        assert_eq!(access.names(&origins).unwrap_err().status, 403);
    }

    #[test]
    fn keys_are_compared_and_part_their_users() {
        let access = access(&[], &["one", "two"]);
        let bearer = access.key(&headers(&[("authorization", "Bearer one")])).unwrap();
        assert_eq!(access.key(&headers(&[("x-api-key", "one")])).unwrap(), bearer);
        let other = access.key(&headers(&[("authorization", "bearer  two")])).unwrap();
        assert!(other != bearer && other.len() == 64);
        for given in [
            vec![],
            vec![("authorization", "Bearer three")],
            vec![("authorization", "Basic one")],
            vec![("x-api-key", "")],
        ] {
            assert_eq!(access.key(&headers(&given)).unwrap_err().status, 401, "{given:?}");
        }
        // A name that was not configured is no danger if the client knows a key.
        assert_eq!(access.names(&headers(&[("host", "proxy.example")])), Ok(None));
    }
}
