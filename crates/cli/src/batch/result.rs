//! A line of results, in the format of OpenAI's batches.

use std::time::{SystemTime, UNIX_EPOCH};

use alight_chat::body::refusal::Refusal;
use serde::Serialize;
use serde_json::{Value, json};

use super::fingerprint::Fingerprint;
use crate::record::Record;
use crate::terminal_text;

/// Identifies a line of the input.
#[derive(Clone, Debug)]
pub struct LineId {
    /// From 1.
    pub number: u64,
    /// The line's own id.
    pub custom_id: Option<String>,
    /// The origin of its result.
    pub fingerprint: Fingerprint,
}

/// The prefix of the ids of results; the number of the line follows.
pub const ID: &str = "batch_req_";
/// The code of a line with the `custom_id` of an earlier line.
pub const DUPLICATE: &str = "duplicate_custom_id";

/// The outcome of a line.
#[derive(Debug)]
pub enum LineOutcome {
    /// The body of the response, and the record of it if that was requested.
    Answered(Value, Option<Box<Record>>),
    /// The line requests something impossible.
    Refused(Refusal),
    /// The model failed, or the compiler of grammars.
    Failed(Refusal),
}

#[derive(Serialize)]
struct ResultLine<'a> {
    id: String,
    custom_id: Option<&'a str>,
    response: Response,
    error: Option<Value>,
    /// Not OpenAI's.
    fingerprint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Box<Record>>,
}

#[derive(Serialize)]
struct Response {
    status_code: u16,
    request_id: String,
    body: Value,
}

/// Returns a result as a line, with its newline. Nothing in it drives a terminal.
pub fn line(of: &LineId, outcome: LineOutcome) -> String {
    let number = of.number;
    let failed = |status: u16, refusal: Refusal| {
        let Refusal { code, param, message } = refusal;
        let message = format!("line {number}: {message}");
        let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
        let body =
            json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
        let error = json!({"code": code, "message": message, "param": param, "line": number});
        (status, body, Some(error), None)
    };
    let (status_code, body, error, record) = match outcome {
        LineOutcome::Answered(body, record) => (200, body, None, record),
        LineOutcome::Refused(refusal) => failed(400, refusal),
        LineOutcome::Failed(refusal) => failed(500, refusal),
    };
    let response = Response { status_code, request_id: format!("req_{number}"), body };
    let custom_id = of.custom_id.as_deref();
    let (id, fingerprint) = (format!("{ID}{number}"), of.fingerprint.to_string());
    let line = ResultLine { id, custom_id, response, error, fingerprint, record };
    let mut bytes = Vec::new();
    // Values of this kind can always be serialised, and writing to memory does not fail.
    let _ = terminal_text::escape_json(&line, &mut bytes);
    bytes.push(b'\n');
    String::from_utf8(bytes).unwrap_or_default()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
