//! Whole bodies of requests to every address that takes one, through the server's own code: nested JSON in texts, tools, schemas and
//! grammars, which are compiled, templates of every format of answers, tokenization, and a short answer of a tiny model. Any bytes are a
//! line with a method and a path and a body after it, or else what a nearly correct body is made of.
//!
//! There is an answer, which is no failure of the server's; what is JSON is JSON; the engine has not failed; and what the grammars'
//! compiler does in a process of its own is no panic.
#![no_main]

use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use alight_fuzz::bodies::Maker;
use alight_fuzz::server::{self, LENIENT, Tiny, check_body, check_status, line_and_body, request};
use alight_text::output::Format;
use libfuzzer_sys::fuzz_target;

/// A template that refuses what templates refuse: other roles, two messages of one role, other ids, arguments as text.
const STRICT: &str = "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'tool', 'system'] %}{{ raise_exception('role') }}{% endif %}\
    {% if m.role == 'system' and not loop.first %}{{ raise_exception('system') }}{% endif %}\
    {% if not loop.first and m.role == messages[loop.index0 - 1].role and m.role != 'tool' %}{{ raise_exception('turns') }}{% endif %}\
    <|im_start|>{{ m.role }}\n{{ (m.content or '') | trim }}{% for call in m.tool_calls or [] %}\
    {% if call.id is defined and call.id | length != 9 %}{{ raise_exception('id') }}{% endif %}\
    <tool_call>{{ call.function.name }}{% for key, value in call.function.arguments | items %}{{ key }}={{ value | tojson }}{% endfor %}{% endfor %}\
    <|im_end|>\n{% endfor %}{% for tool in tools or [] %}{{ (tool.function or tool) | tojson }}{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

/// Memory that cannot be had is an error of the process that compiles, as it is without the sanitizer.
#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    const OPTIONS: &CStr = c"allocator_may_return_null=1:quarantine_size_mb=16";
    OPTIONS.as_ptr()
}

static NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| Format::ALL.iter().map(|format| format!("{format}").to_lowercase()).collect());

/// A model of each format. A template is recognised by the marks in it, wherever they are.
fn models() -> Vec<Tiny> {
    let model = |(i, format): (usize, Format)| {
        let body = if i % 2 == 1 { LENIENT } else { STRICT };
        let template = format!("{{# {} #}}{body}", format.marks().join(" "));
        Tiny { name: NAMES[i].clone(), template, marks: format.marks().to_vec() }
    };
    // The fuzzer ends the process at a panic; the process in which a grammar is tried has to end as it does elsewhere.
    let (this, hook) = (std::process::id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        if std::process::id() == this {
            hook(info);
        }
    }));
    Format::ALL.into_iter().enumerate().map(model).collect()
}

fuzz_target!(|data: &[u8]| {
    let server = server::server(models);
    let made;
    let (line, body) = match line_and_body(data) {
        Some((line, body)) => (line, body),
        None => {
            made = Maker::new(data).request(&NAMES);
            (&*made.0, &*made.1)
        }
    };
    let answer = server.answer(&request(line, body), false);
    check_status(&answer);
    check_body(&answer);
});
