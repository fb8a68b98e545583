//! Bodies of requests that are nearly in order, made of the bytes of a fuzzer: known fields with values of their kind, or of another;
//! conversations with calls and JSON in texts; tools, schemas, grammars.

use arbitrary::Unstructured;
use serde_json::{Map, Value, json};

/// How deep values are nested, apart from those that only nest.
const DEPTH: usize = 6;
/// How often a value only nests, at most: more than the server takes.
const NESTED: usize = 130;

/// The kind of a field's value.
#[derive(Clone, Copy)]
enum Kind {
    Messages,
    Items,
    Blocks,
    Tools,
    Choice,
    Format,
    Schema,
    Grammar,
    Regex,
    Prompt,
    Texts,
    Ids,
    Number,
    Count,
    Truth,
    Text,
    Options,
    Any,
}

use Kind::{
    Any, Blocks, Choice, Count, Format, Grammar, Ids, Items, Messages, Number, Prompt, Regex,
    Schema, Text, Texts, Tools, Truth,
};

/// The addresses that take a body, and the fields that most bodies for them have.
const ENDPOINTS: [(&str, &[(&str, Kind)]); 24] = [
    ("/v1/chat/completions", &[("messages", Messages), ("tools", Tools)]),
    ("/v1/chat/completions", &[("messages", Messages), ("response_format", Format)]),
    ("/v1/chat/completions", &[("messages", Messages), ("tools", Tools), ("tool_choice", Choice)]),
    ("/v1/chat/completions/input_tokens", &[("messages", Messages), ("tools", Tools)]),
    ("/v1/completions", &[("prompt", Prompt)]),
    ("/v1/responses", &[("input", Items), ("tools", Tools)]),
    ("/v1/responses", &[("input", Items), ("text", Format), ("tool_choice", Choice)]),
    ("/v1/responses/input_tokens", &[("input", Items)]),
    ("/v1/embeddings", &[("input", Prompt)]),
    ("/v1/messages", &[("messages", Blocks), ("tools", Tools), ("max_tokens", Count)]),
    ("/v1/messages", &[("messages", Blocks), ("output_format", Format), ("max_tokens", Count)]),
    ("/v1/messages/count_tokens", &[("messages", Blocks), ("tools", Tools)]),
    ("/api/show", &[]),
    ("/api/pull", &[]),
    ("/api/chat", &[("messages", Messages), ("tools", Tools), ("format", Schema)]),
    ("/api/generate", &[("prompt", Text), ("format", Schema)]),
    ("/api/embed", &[("input", Texts)]),
    ("/completion", &[("prompt", Prompt), ("grammar", Grammar)]),
    ("/completion", &[("prompt", Prompt), ("json_schema", Schema)]),
    ("/infill", &[("input_prefix", Text), ("input_suffix", Text)]),
    ("/tokenize", &[("content", Text)]),
    ("/detokenize", &[("tokens", Ids)]),
    ("/apply-template", &[("messages", Messages), ("tools", Tools)]),
    ("/slots/0?action=save", &[("filename", Text)]),
];

/// Fields that any body may have.
const FIELDS: [(&str, Kind); 62] = [
    ("stream", Truth),
    ("max_tokens", Count),
    ("n", Count),
    ("logprobs", Count),
    ("top_logprobs", Count),
    ("echo", Truth),
    ("suffix", Text),
    ("stop", Texts),
    ("stop_sequences", Texts),
    ("seed", Number),
    ("temperature", Number),
    ("top_p", Number),
    ("top_k", Number),
    ("min_p", Number),
    ("repeat_penalty", Number),
    ("presence_penalty", Number),
    ("frequency_penalty", Number),
    ("logit_bias", Any),
    ("response_format", Format),
    ("json_schema", Schema),
    ("grammar", Grammar),
    ("regex", Regex),
    ("tools", Tools),
    ("tool_choice", Choice),
    ("functions", Tools),
    ("function_call", Choice),
    ("parallel_tool_calls", Truth),
    ("chat_template_kwargs", Any),
    ("reasoning_effort", Text),
    ("reasoning", Any),
    ("thinking", Any),
    ("think", Truth),
    ("system", Text),
    ("instructions", Text),
    ("text", Format),
    ("format", Schema),
    ("options", Kind::Options),
    ("raw", Truth),
    ("template", Text),
    ("context", Ids),
    ("input_extra", Any),
    ("prompt", Prompt),
    ("input", Items),
    ("content", Text),
    ("tokens", Ids),
    ("add_special", Truth),
    ("with_pieces", Truth),
    ("parse_special", Truth),
    ("n_predict", Count),
    ("n_probs", Count),
    ("ignore_eos", Truth),
    ("return_progress", Truth),
    ("stream_options", Any),
    ("truncate", Truth),
    ("dimensions", Count),
    ("encoding_format", Text),
    ("add_generation_prompt", Truth),
    ("continue_final_message", Truth),
    ("structured_outputs", Schema),
    ("guided_json", Schema),
    ("guided_regex", Regex),
    ("messages", Messages),
];

const WORDS: [&str; 44] = [
    "",
    "a",
    "f",
    "g",
    "user",
    "assistant",
    "system",
    "developer",
    "tool",
    "function",
    "text",
    "input_text",
    "output_text",
    "tool_use",
    "tool_result",
    "function_call",
    "function_call_output",
    "reasoning",
    "message",
    "thinking",
    "redacted_thinking",
    "image",
    "image_url",
    "none",
    "auto",
    "required",
    "any",
    "allowed_tools",
    "json_object",
    "json_schema",
    "json",
    "low",
    "high",
    "base64",
    "float",
    "disabled",
    "enabled",
    "<think>",
    "</think>",
    "<tool_call>",
    "<|im_end|>",
    "</s>",
    "item_reference",
    "custom",
];
const KEYS: [&str; 33] = [
    "type",
    "role",
    "content",
    "text",
    "name",
    "function",
    "arguments",
    "parameters",
    "input_schema",
    "schema",
    "strict",
    "id",
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "tool_calls",
    "input",
    "output",
    "mode",
    "tools",
    "reasoning_content",
    "thinking",
    "summary",
    "cache_control",
    "is_error",
    "description",
    "properties",
    "enable_thinking",
    "effort",
    "budget_tokens",
    "include_usage",
    "a",
    "b",
];
const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "null", "array", "object"];
const PATTERNS: [&str; 14] =
    ["a", "[a-z]", ".", "\\d", "(", ")", "|", "*", "+", "?", "{2,3}", "^", "$", "(?=a)"];
const RULES: [&str; 20] = [
    "root ::= ",
    "x ::= ",
    "x",
    "root",
    " | ",
    "\"a\"",
    "\"",
    "[a-z]",
    "[^\\n]",
    "(",
    ")",
    "*",
    "+",
    "?",
    "{2}",
    "{1,}",
    "\n",
    "# c\n",
    "%llguidance {}\nstart: ",
    "\\x41",
];
const BOUNDS: [&str; 15] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "uniqueItems",
    "additionalProperties",
    "default",
    "const",
];
const FORMATS: [&str; 8] = ["date-time", "email", "uri", "uuid", "ipv4", "ipv6", "date", "x"];

/// Makes bodies of bytes. Without bytes, everything is the first of its kind, and lists are empty.
pub struct Maker<'a> {
    bytes: Unstructured<'a>,
}

impl<'a> Maker<'a> {
    pub fn new(bytes: &'a [u8]) -> Maker<'a> {
        Maker { bytes: Unstructured::new(bytes) }
    }

    /// The line of a request and its body. The body names one of these models.
    pub fn request(&mut self, models: &[String]) -> (String, Vec<u8>) {
        let (path, fields) = ENDPOINTS[self.below(ENDPOINTS.len())];
        let mut body = Map::new();
        if let Some(model) = models.get(self.below(models.len() + 1)) {
            body.insert("model".into(), model.as_str().into());
        }
        for (name, kind) in fields {
            if !self.rarely() {
                let value = self.field(*kind);
                body.insert((*name).into(), value);
            }
        }
        for _ in 0..self.below(6) {
            let (name, kind) = FIELDS[self.below(FIELDS.len())];
            let value = self.field(kind);
            body.insert(name.into(), value);
        }
        let mut body = Value::Object(body).to_string().into_bytes();
        if self.rarely() {
            let at = self.below(body.len() + 1);
            match self.below(3) {
                0 => body.truncate(at),
                1 => drop(body.splice(at..at, self.text().into_bytes())),
                _ => body.splice(0..0, *b"\xef\xbb\xbf").for_each(drop),
            }
        }
        (format!("POST {path}"), body)
    }

    fn byte(&mut self) -> u8 {
        self.bytes.arbitrary().unwrap_or(0)
    }

    fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n.max(1)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// True once in a while, and not without bytes.
    fn rarely(&mut self) -> bool {
        self.byte() > 240
    }

    fn some<T>(&mut self, max: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let number = if self.bytes.is_empty() { 0 } else { self.below(max + 1) };
        (0..number).map(|_| make(self)).collect()
    }

    fn text(&mut self) -> String {
        match self.below(8) {
            0..4 => self.pick(&WORDS).into(),
            4 => {
                let value = self.value(DEPTH / 2);
                self.as_text(&value)
            }
            5 => "a ".repeat(self.below(256)),
            _ => {
                let length = self.below(24).min(self.bytes.len());
                String::from_utf8_lossy(self.bytes.bytes(length).unwrap_or_default()).into_owned()
            }
        }
    }

    /// JSON as a text, which may be cut.
    fn as_text(&mut self, value: &Value) -> String {
        let mut text = value.to_string();
        if self.rarely() {
            let at = text.floor_char_boundary(self.below(text.len() + 1));
            text.truncate(at);
        }
        text
    }

    fn number(&mut self) -> Value {
        match self.below(6) {
            0 => self.byte().into(),
            1 => (-1).into(),
            2 => json!(f64::from(self.byte()) / 100.0),
            3 => self.bytes.arbitrary::<i64>().unwrap_or(0).into(),
            4 => self.bytes.arbitrary::<u64>().unwrap_or(0).into(),
            _ => json!(self.bytes.arbitrary::<f64>().unwrap_or(0.0)),
        }
    }

    /// Any value.
    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => (self.byte() % 2 == 0).into(),
            2 => self.number(),
            3 | 4 => self.pick(&WORDS).into(),
            5 => self.some(4, |it| it.value(depth - 1)).into(),
            6 | 7 => {
                let all = self.some(4, |it| (it.key(), it.value(depth - 1)));
                Value::Object(all.into_iter().collect())
            }
            _ => self.nested(),
        }
    }

    /// A value within values.
    fn nested(&mut self) -> Value {
        let (list, times) = (self.byte() % 2 == 0, self.below(NESTED));
        let inner = self.number();
        (0..times).fold(inner, |inner, _| if list { json!([inner]) } else { json!({"a": inner}) })
    }

    fn key(&mut self) -> String {
        if self.rarely() { self.text() } else { self.pick(&KEYS).into() }
    }

    /// An object of these members, of which one may be missing or another value, and one more may be there.
    fn nearly(&mut self, members: Value) -> Value {
        let Value::Object(mut object) = members else { return members };
        if self.rarely() && !object.is_empty() {
            let key = object.keys().nth(self.below(object.len())).cloned().unwrap_or_default();
            match self.below(2) {
                0 => drop(object.remove(&key)),
                _ => drop(object.insert(key, self.value(2))),
            }
        }
        if self.rarely() {
            let (key, value) = (self.key(), self.value(2));
            object.insert(key, value);
        }
        object.into()
    }

    fn field(&mut self, kind: Kind) -> Value {
        if self.rarely() {
            return self.value(DEPTH);
        }
        match kind {
            Kind::Messages => self.some(6, Self::message).into(),
            Kind::Items if self.rarely() => self.text().into(),
            Kind::Items => self.some(6, Self::item).into(),
            Kind::Blocks => self.some(6, Self::message_of_blocks).into(),
            Kind::Tools => self.some(4, Self::tool).into(),
            Kind::Choice => self.choice(),
            Kind::Format => self.format(),
            Kind::Schema if self.rarely() => "json".into(),
            Kind::Schema => self.schema(DEPTH),
            Kind::Grammar => self.some(16, |it| it.pick(&RULES)).concat().into(),
            Kind::Regex => self.regex().into(),
            Kind::Prompt => match self.below(4) {
                0 | 1 => self.text().into(),
                2 => self.some(4, |it| it.field(Kind::Text)).into(),
                _ => self.some(4, |it| it.field(Kind::Ids)).into(),
            },
            Kind::Texts => self.some(4, Self::text).into(),
            Kind::Ids => self.some(16, |it| u32::from(it.byte())).into(),
            Kind::Number => self.number(),
            Kind::Count => self.below(12).into(),
            Kind::Truth => (self.byte() % 2 == 0).into(),
            Kind::Text => self.text().into(),
            Kind::Options => {
                let all = self.some(4, |it| {
                    let (name, kind) = FIELDS[it.below(18)];
                    (name.to_owned(), it.field(kind))
                });
                Value::Object(all.into_iter().collect())
            }
            Kind::Any => self.value(3),
        }
    }

    /// The arguments of a call: an object as a text, or another text, or the object itself.
    fn arguments(&mut self) -> Value {
        let value = match self.below(4) {
            0 => json!({"a": self.text()}),
            1 => json!({"a": self.nested()}),
            _ => self.value(DEPTH),
        };
        if self.rarely() { value } else { self.as_text(&value).into() }
    }

    fn content(&mut self) -> Value {
        match self.below(4) {
            0 => Value::Null,
            1 | 2 => self.text().into(),
            _ => {
                let part = |it: &mut Self| {
                    let (ty, text) =
                        (it.pick(&["text", "input_text", "output_text", "image_url"]), it.text());
                    it.nearly(json!({"type": ty, "text": text}))
                };
                self.some(3, part).into()
            }
        }
    }

    fn name(&mut self) -> &'static str {
        self.pick(&["f", "g", "a b", "", "f.g"])
    }

    fn message(&mut self) -> Value {
        let role =
            self.pick(&["user", "assistant", "tool", "system", "developer", "function", "bob"]);
        let content = self.content();
        let mut message = json!({"role": role, "content": content});
        if role == "assistant" {
            let call = |it: &mut Self| {
                let (name, arguments) = (it.name(), it.arguments());
                let function = it.nearly(json!({"name": name, "arguments": arguments}));
                let id = it.pick(&["c", "d", "123456789", "functions.f:0"]);
                it.nearly(json!({"id": id, "type": "function", "function": function}))
            };
            message["tool_calls"] = self.some(3, call).into();
            if self.byte() % 4 == 1 {
                message["reasoning_content"] = self.text().into();
            }
        }
        if ["tool", "function"].contains(&role) {
            message["tool_call_id"] = self.pick(&["c", "d", "123456789", "functions.f:0"]).into();
            message["name"] = self.name().into();
        }
        self.nearly(message)
    }

    fn item(&mut self) -> Value {
        let item = match self.below(5) {
            0 | 1 => return self.message(),
            2 => {
                let (name, arguments) = (self.name(), self.arguments());
                json!({"type": "function_call", "call_id": "c", "name": name, "arguments": arguments})
            }
            3 => json!({"type": "function_call_output", "call_id": "c", "output": self.content()}),
            _ => json!({"type": "reasoning", "summary": [], "content": self.content()}),
        };
        self.nearly(item)
    }

    fn message_of_blocks(&mut self) -> Value {
        let block = |it: &mut Self| {
            let block = match it.below(5) {
                0 | 1 => json!({"type": "text", "text": it.text()}),
                2 => {
                    let (name, input) = (it.name(), it.value(DEPTH));
                    json!({"type": "tool_use", "id": "c", "name": name, "input": input})
                }
                3 => json!({"type": "tool_result", "tool_use_id": "c", "content": it.content()}),
                _ => json!({"type": "thinking", "thinking": it.text(), "signature": ""}),
            };
            it.nearly(block)
        };
        let role = self.pick(&["user", "assistant", "system"]);
        let content = self.some(4, block);
        self.nearly(json!({"role": role, "content": content}))
    }

    /// A tool as each of the interfaces has them.
    fn tool(&mut self) -> Value {
        let (name, schema, strict) = (self.name(), self.schema(DEPTH), self.byte() % 2 == 0);
        let tool = match self.below(4) {
            0 | 1 => {
                let function = json!({"name": name, "description": "d", "parameters": schema, "strict": strict});
                let function = self.nearly(function);
                json!({"type": "function", "function": function})
            }
            2 => json!({"type": "function", "name": name, "parameters": schema, "strict": strict}),
            _ => json!({"name": name, "input_schema": schema}),
        };
        self.nearly(tool)
    }

    fn choice(&mut self) -> Value {
        match self.below(5) {
            0 => self.pick(&["required", "auto", "none", "any"]).into(),
            1 => json!({"type": "function", "function": {"name": self.name()}}),
            2 => {
                json!({"type": self.pick(&["function", "tool", "any", "auto"]), "name": self.name()})
            }
            3 => {
                let tools = self.some(3, |it| json!({"type": "function", "name": it.name()}));
                json!({"type": "allowed_tools", "mode": "required", "tools": tools})
            }
            _ => self.value(3),
        }
    }

    /// A format of an answer as each of the interfaces has them.
    fn format(&mut self) -> Value {
        let (schema, strict) = (self.schema(DEPTH), self.byte() % 2 == 0);
        let format = match self.below(5) {
            0 => json!({"type": "json_object"}),
            1 => json!({"type": "json_object", "schema": schema}),
            2 => {
                json!({"type": "json_schema", "json_schema": {"name": "n", "strict": strict, "schema": schema}})
            }
            3 => json!({"type": "json_schema", "name": "n", "strict": strict, "schema": schema}),
            _ => json!({"format": {"type": "json_schema", "name": "n", "schema": schema}}),
        };
        self.nearly(format)
    }

    fn regex(&mut self) -> String {
        self.some(10, |it| it.pick(&PATTERNS)).concat()
    }

    fn schema(&mut self, depth: usize) -> Value {
        if depth == 0 {
            return json!({"type": self.pick(&TYPES)});
        }
        let members = |it: &mut Self, max| -> Map<String, Value> {
            let all = it.some(max, |it| {
                (it.pick(&["a", "b", "c/d", "~e", ""]).to_owned(), it.schema(depth - 1))
            });
            all.into_iter().collect()
        };
        let mut schema = match self.below(12) {
            0..4 => {
                let mut object = json!({"type": "object", "properties": members(self, 3)});
                if self.byte() % 2 == 1 {
                    object["required"] = self.some(3, |it| it.pick(&["a", "b", "x"])).into();
                }
                object
            }
            4 => json!({"type": "array", "items": self.schema(depth - 1)}),
            5 => json!({"type": "string", "pattern": self.regex()}),
            6 => json!({"type": "string", "format": self.pick(&FORMATS)}),
            7 => json!({"enum": self.some(4, |it| it.value(1))}),
            8 => {
                let key = self.pick(&["anyOf", "oneOf", "allOf", "prefixItems"]);
                json!({key: self.some(3, |it| it.schema(depth - 1))})
            }
            9 => {
                let to = self.pick(&[
                    "#",
                    "#/$defs/a",
                    "#/$defs/c~1d",
                    "#/properties/a",
                    "#/$defs/%7e",
                    "x",
                ]);
                json!({"$ref": to, "$defs": members(self, 2)})
            }
            10 => json!({"type": self.some(3, |it| it.pick(&TYPES))}),
            _ => json!({"type": self.pick(&TYPES)}),
        };
        if self.byte() % 4 == 1 {
            let key = self.pick(&BOUNDS);
            schema[key] = if self.rarely() { self.value(1) } else { self.below(40).into() };
        }
        self.nearly(schema)
    }
}
