//! Any bytes as a request: to one of the server's addresses, with any body, or as a whole connection. There is an answer, which is no
//! failure of the server's; what is JSON is JSON; and the engine has not failed. The answers are computed, by a tiny model.
#![no_main]

use alight_fuzz::server::{self, LENIENT, Tiny, check_body, check_status, line_and_body, request};
use libfuzzer_sys::fuzz_target;

const MARKS: [&str; 4] = ["<tool_call>", "</tool_call>", "<think>", "</think>"];

fn models() -> Vec<Tiny> {
    vec![Tiny { name: "tiny".into(), template: LENIENT.into(), marks: MARKS.into() }]
}

fuzz_target!(|data: &[u8]| {
    let server = server::server(models);
    match line_and_body(data) {
        // A body to an address.
        Some((line, body)) => {
            let answer = server.answer(&request(line, body), false);
            check_status(&answer);
            check_body(&answer);
        }
        // A whole connection.
        None => {
            let answer = server.answer(data, true);
            if !answer.is_empty() {
                check_status(&answer);
            }
        }
    }
});
