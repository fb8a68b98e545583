//! Random values of random schemas, written in every notation by a writer of its own: the parser gives them back, however the text is cut.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::tests::spans;
use super::{Format, Parser, Part, Tools};

/// An argument: its schema, and a value of it.
type Argument = (Value, Value);

/// A call: the index of the tool's name, and its arguments.
type Call = (usize, Vec<Argument>);

/// Names that every notation can write.
const NAMES: [&str; 3] = ["f", "get_weather", "files.read_2"];

/// Texts that are something else elsewhere.
const TRAPS: [&str; 24] = [
    "1.50",
    "true",
    "null",
    "None",
    "[1, 2]",
    "{\"a\": 1}",
    "\"q\"",
    "</parameter>",
    "</arg_value>",
    "</function>",
    "</tool_call>",
    "<tool_call>",
    "</invoke>",
    "</param>",
    "</｜DSML｜parameter>",
    "```",
    "}}",
    "]",
    ")",
    "[TOOL_CALLS]",
    "<|tool_call_end|>",
    "<think>",
    "\n\n",
    "\\n",
];

fn text() -> impl Strategy<Value = String> {
    let plain = "[a-zA-Z0-9 .,;:<>/{}()\\[\\]='\"\\\\|&\n\té🚀-]{1,6}";
    let part = prop_oneof![
        plain.boxed(),
        prop::sample::select(&TRAPS[..]).prop_map(str::to_owned).boxed()
    ];
    prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
}

/// A schema and several values of it.
fn values(depth: u32) -> BoxedStrategy<(Value, Vec<Value>)> {
    let several = |one: BoxedStrategy<Value>, schema: Value| {
        prop::collection::vec(one, 1..4).prop_map(move |all| (schema.clone(), all)).boxed()
    };
    let string = || text().prop_map(Value::from).boxed();
    // Where the schema allows other types, text is what cannot be one of them.
    let plain = || {
        let is_other = |text: &str| text == "null" || text == "None" || text.parse::<f64>().is_ok();
        let text =
            text().prop_map(move |text| if is_other(text.trim()) { text + "x" } else { text });
        text.prop_map(Value::from).boxed()
    };
    let integer = || any::<i32>().prop_map(Value::from).boxed();
    let leaves = prop_oneof![
        several(string(), json!({"type": "string"})),
        several(integer(), json!({"type": "integer"})),
        several(
            any::<i16>().prop_map(|n| json!(f64::from(n) + 0.25)).boxed(),
            json!({"type": "number"})
        ),
        several(any::<bool>().prop_map(Value::from).boxed(), json!({"type": "boolean"})),
        several(
            prop::sample::select(&["C", "true", "7"][..]).prop_map(Value::from).boxed(),
            json!({"enum": ["C", "true", "7"]})
        ),
        several(
            prop_oneof![Just(Value::Null).boxed(), plain()].boxed(),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]})
        ),
        several(prop_oneof![integer(), plain()].boxed(), json!({"type": ["string", "integer"]})),
        several(
            prop_oneof![integer(), Just(Value::Null).boxed()].boxed(),
            json!({"type": "integer", "nullable": true})
        ),
    ];
    if depth == 0 {
        return leaves.boxed();
    }
    let list = (values(depth - 1), any::<bool>()).prop_map(|((schema, all), is_empty)| {
        let all = if is_empty { Value::Array(Vec::new()) } else { all.into() };
        (json!({"type": "array", "items": schema}), vec![all])
    });
    let object = prop::collection::vec((values(depth - 1), any::<bool>()), 0..3).prop_map(|all| {
        let (mut properties, mut object) = (Map::new(), Map::new());
        for (i, ((schema, mut all), is_there)) in all.into_iter().enumerate() {
            properties.insert(format!("p{i}"), schema);
            if is_there {
                object.insert(format!("p{i}"), all.remove(0));
            }
        }
        (json!({"type": "object", "properties": properties}), vec![object.into()])
    });
    prop_oneof![4 => leaves, 1 => list, 1 => object].boxed()
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let argument = values(2).prop_map(|(schema, mut all)| (schema, all.remove(0)));
    let arguments = prop::collection::vec(argument, 0..4);
    prop::collection::vec(arguments, 1..4)
        .prop_map(|all| all.into_iter().enumerate().collect::<Vec<Call>>())
}

fn key(i: usize) -> String {
    format!("k_{i}")
}

/// The tools of these calls.
fn tools(calls: &[Call]) -> Tools {
    let tool = |(name, arguments): &Call| {
        let properties: Map<String, Value> =
            arguments.iter().enumerate().map(|(i, (schema, _))| (key(i), schema.clone())).collect();
        json!({"name": NAMES[*name], "parameters": {"type": "object", "properties": properties}})
    };
    Tools::of(&calls.iter().map(tool).collect::<Vec<_>>())
}

fn object(arguments: &[Argument]) -> Value {
    let all = arguments.iter().enumerate().map(|(i, (_, value))| (key(i), value.clone()));
    Value::Object(all.collect())
}

/// Text as it is, all else as JSON.
fn raw(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Calls, with `between` between them, each between tags: before and after the name, a key and a value, and after the call.
fn tagged(calls: &[Call], between: &str, tags: [&str; 6]) -> String {
    let [open, name, before_key, before_value, after, close] = tags;
    each(calls, between, |call| {
        let mut text = format!("{open}{}{name}", NAMES[call.0]);
        for (i, (_, value)) in call.1.iter().enumerate() {
            let kind = if value.is_string() { "true" } else { "false" };
            let before_value = before_value.replace("IS_STRING", kind);
            text.push_str(&format!("{before_key}{}{before_value}{}{after}", key(i), raw(value)));
        }
        text + close
    })
}

fn gemma(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(all) => {
            format!("[{}]", all.iter().map(gemma).collect::<Vec<_>>().join(","))
        }
        Value::Object(all) => {
            let pairs = all.iter().map(|(key, value)| format!("{key}:{}", gemma(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::String(text) => {
            let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
            format!(
                "'{}'",
                text.replace('\t', "\\t").replace('é', "\\xe9").replace('🚀', "\\U0001f680")
            )
        }
        Value::Array(all) => {
            format!("[{}]", all.iter().map(python).collect::<Vec<_>>().join(", "))
        }
        Value::Object(all) => {
            let pairs = all.iter().map(|(key, value)| format!("'{key}': {}", python(value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Number(number) => number.to_string(),
    }
}

fn pythonic(calls: &[Call]) -> String {
    let one = |(name, arguments): &Call| {
        let all = arguments.iter().enumerate();
        let all = all.map(|(i, (_, value))| format!("{}={}", key(i), python(value)));
        format!("{}({})", NAMES[*name], all.collect::<Vec<_>>().join(", "))
    };
    format!("[{}]", calls.iter().map(one).collect::<Vec<_>>().join(", "))
}

const M3: &str = "]<]minimax[>[";

fn elements(tag: &str, value: &Value) -> String {
    let inner = match value {
        Value::Array(all) => all.iter().map(|one| elements("item", one)).collect(),
        Value::Object(all) => all.iter().map(|(key, one)| elements(key, one)).collect(),
        other => raw(other),
    };
    format!("{M3}<{tag}>{inner}{M3}</{tag}>")
}

/// A way of writing calls.
struct Way {
    format: Format,
    write: fn(&[Call]) -> String,
    /// The tag after a value whose text has no quotes, and those that may follow it.
    close: &'static str,
    next: &'static [&'static str],
    /// Texts that a value cannot have in it.
    never: &'static [&'static str],
    /// True if there is one call only.
    one: bool,
}

const JSON: Way =
    Way { format: Format::ChatMl, write: hermes, close: "", next: &[], never: &[], one: false };

fn each(calls: &[Call], between: &str, one: impl Fn(&Call) -> String) -> String {
    calls.iter().map(one).collect::<Vec<_>>().join(between)
}

fn hermes(calls: &[Call]) -> String {
    each(calls, "\n", |(name, arguments)| {
        let call = json!({"name": NAMES[*name], "arguments": object(arguments)});
        format!("<tool_call>\n{call}\n</tool_call>")
    })
}

/// Calls as a list of objects with these keys.
fn list(calls: &[Call], name: &str, arguments: &str) -> String {
    let one = |call: &Call| json!({name: NAMES[call.0], arguments: object(&call.1)});
    Value::from(calls.iter().map(one).collect::<Vec<_>>()).to_string()
}

const WAYS: [Way; 31] = [
    JSON,
    Way {
        write: |calls| {
            tagged(
                calls,
                "\n",
                [
                    "<tool_call>\n<function=",
                    ">\n",
                    "<parameter=",
                    ">\n",
                    "\n</parameter>\n",
                    "</function>\n</tool_call>",
                ],
            )
        },
        close: "</parameter>",
        next: &[
            "<parameter=",
            "</parameter>",
            "</function>",
            "</tool_call>",
            "<tool_call>",
            "<function=",
        ],
        ..JSON
    },
    Way {
        format: Format::Seed,
        write: |calls| {
            tagged(
                calls,
                "\n",
                [
                    "<seed:tool_call>\n<function=",
                    ">\n",
                    "<parameter=",
                    ">",
                    "</parameter>\n",
                    "</function>\n</seed:tool_call>",
                ],
            )
        },
        close: "</parameter>",
        next: &["<parameter=", "</parameter>", "</function>"],
        ..JSON
    },
    Way {
        format: Format::Glm,
        write: |calls| {
            tagged(
                calls,
                "",
                [
                    "<tool_call>",
                    "",
                    "<arg_key>",
                    "</arg_key><arg_value>",
                    "</arg_value>",
                    "</tool_call>",
                ],
            )
        },
        close: "</arg_value>",
        next: &["</arg_value>", "<arg_key>", "</tool_call>", "<tool_call>"],
        ..JSON
    },
    Way {
        format: Format::Glm,
        write: |calls| {
            tagged(
                calls,
                "\n",
                [
                    "<tool_call>",
                    "\n",
                    "<arg_key>",
                    "</arg_key>\n<arg_value>",
                    "</arg_value>\n",
                    "</tool_call>",
                ],
            )
        },
        close: "</arg_value>",
        next: &["</arg_value>", "<arg_key>", "</tool_call>", "<tool_call>"],
        ..JSON
    },
    Way {
        format: Format::Hy3,
        write: |calls| {
            let inner = tagged(
                calls,
                "\n",
                [
                    "<tool_call:opensource>",
                    "<tool_sep:opensource>\n",
                    "<arg_key:opensource>",
                    "</arg_key:opensource>\n<arg_value:opensource>",
                    "</arg_value:opensource>\n",
                    "</tool_call:opensource>",
                ],
            );
            format!("<tool_calls:opensource>\n{inner}\n</tool_calls:opensource>")
        },
        ..JSON
    },
    Way {
        format: Format::Horizon,
        write: |calls| {
            let inner = tagged(
                calls,
                "\n",
                [
                    "<ifm|tool_call>",
                    "\n",
                    "<ifm|arg_key>",
                    "</ifm|arg_key>\n<ifm|arg_value>",
                    "</ifm|arg_value>\n",
                    "</ifm|tool_call>",
                ],
            );
            format!("<ifm|tool_calls>\n{inner}\n</ifm|tool_calls>")
        },
        ..JSON
    },
    Way {
        format: Format::Dsml,
        write: |calls| {
            let inner = tagged(
                calls,
                "\n",
                [
                    "<｜DSML｜invoke name=\"",
                    "\">\n",
                    "<｜DSML｜parameter name=\"",
                    "\" string=\"IS_STRING\">",
                    "</｜DSML｜parameter>\n",
                    "</｜DSML｜invoke>",
                ],
            );
            format!("\n\n<｜DSML｜tool_calls>\n{inner}\n</｜DSML｜tool_calls>")
        },
        close: "</｜DSML｜parameter>",
        next: &["</｜DSML｜parameter>"],
        ..JSON
    },
    Way {
        format: Format::MiniMax,
        write: |calls| {
            let inner = tagged(
                calls,
                "\n",
                [
                    "<invoke name=\"",
                    "\">\n",
                    "<parameter name=\"",
                    "\">",
                    "</parameter>\n",
                    "</invoke>",
                ],
            );
            format!("<minimax:tool_call>\n{inner}\n</minimax:tool_call>")
        },
        close: "</parameter>",
        next: &["</parameter>", "</invoke>"],
        ..JSON
    },
    Way {
        format: Format::MiniCpm5,
        write: |calls| {
            tagged(
                calls,
                "\n",
                ["<function name=\"", "\">", "<param name=\"", "\">", "</param>", "</function>"],
            )
        },
        close: "</param>",
        next: &["</param>", "</function>"],
        never: &["]]>"],
        ..JSON
    },
    Way {
        format: Format::KimiK3,
        write: |calls| {
            let inner = each(calls, "", |(name, arguments)| {
                let all = arguments.iter().enumerate().map(|(i, (_, value))| {
                    let kind = match value {
                        Value::Null => "null",
                        Value::Bool(_) => "boolean",
                        Value::Number(_) => "number",
                        Value::String(_) => "string",
                        Value::Array(_) => "array",
                        Value::Object(_) => "object",
                    };
                    format!("<|open|>argument key=\"{}\" type=\"{kind}\"<|sep|>{}<|close|>argument<|sep|>", key(i), raw(value))
                });
                format!(
                    "<|open|>call tool=\"{}\" index=\"1\"<|sep|>{}<|close|>call<|sep|>",
                    NAMES[*name],
                    all.collect::<String>()
                )
            });
            format!("<|open|>tools<|sep|>{inner}<|close|>tools<|sep|>")
        },
        ..JSON
    },
    Way {
        format: Format::MiniMax3,
        write: |calls| {
            let inner = each(calls, "\n", |(name, arguments)| {
                let all = arguments.iter().enumerate();
                let all: String = all.map(|(i, (_, value))| elements(&key(i), value)).collect();
                format!("{M3}<invoke name=\"{}\">{all}{M3}</invoke>", NAMES[*name])
            });
            format!("{M3}<tool_call>\n{inner}\n{M3}</tool_call>")
        },
        ..JSON
    },
    Way {
        format: Format::Gemma4,
        write: |calls| {
            each(calls, "", |(name, arguments)| {
                format!(
                    "<|tool_call>call:{}{}<tool_call|>",
                    NAMES[*name],
                    gemma(&object(arguments))
                )
            })
        },
        ..JSON
    },
    Way {
        format: Format::Lfm2,
        write: |calls| format!("<|tool_call_start|>{}<|tool_call_end|>", pythonic(calls)),
        ..JSON
    },
    Way { format: Format::Llama, write: pythonic, ..JSON },
    Way {
        format: Format::Llama,
        write: |calls| {
            each(calls, "; ", |(name, arguments)| {
                json!({"name": NAMES[*name], "parameters": object(arguments)}).to_string()
            })
        },
        ..JSON
    },
    Way {
        format: Format::Mistral,
        write: |calls| format!("[TOOL_CALLS]{}", list(calls, "name", "arguments")),
        ..JSON
    },
    Way {
        format: Format::Mistral,
        write: |calls| {
            each(calls, "", |(name, arguments)| {
                format!("[TOOL_CALLS]{}[CALL_ID]abcdef123[ARGS]{}", NAMES[*name], object(arguments))
            })
        },
        ..JSON
    },
    Way {
        format: Format::DeepSeek,
        write: |calls| {
            let inner = each(calls, "\n", |(name, arguments)| {
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>",
                    NAMES[*name],
                    object(arguments)
                )
            });
            format!("<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>")
        },
        ..JSON
    },
    Way {
        format: Format::DeepSeek,
        write: |calls| {
            let inner = each(calls, "", |(name, arguments)| {
                format!(
                    "<｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
                    NAMES[*name],
                    object(arguments)
                )
            });
            format!("<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>")
        },
        ..JSON
    },
    Way {
        format: Format::Kimi,
        write: |calls| {
            let inner = each(calls, "", |(name, arguments)| {
                format!(
                    "<|tool_call_begin|>functions.{}:7<|tool_call_argument_begin|>{}<|tool_call_end|>",
                    NAMES[*name],
                    object(arguments)
                )
            });
            format!("<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>")
        },
        ..JSON
    },
    Way {
        format: Format::Command,
        write: |calls| {
            let calls = list(calls, "tool_name", "parameters");
            format!("<|START_ACTION|>{calls}<|END_ACTION|>")
        },
        ..JSON
    },
    Way {
        format: Format::Granite3,
        write: |calls| format!("<|tool_call|>{}", list(calls, "name", "arguments")),
        ..JSON
    },
    Way {
        format: Format::Nemotron2,
        write: |calls| format!("<TOOLCALL>{}</TOOLCALL>", list(calls, "name", "arguments")),
        ..JSON
    },
    Way {
        format: Format::ToolCalls,
        write: |calls| format!("<tool_calls>{}</tool_calls>", list(calls, "name", "arguments")),
        ..JSON
    },
    Way {
        format: Format::Apertus,
        write: |calls| {
            let one = |call: &Call| json!({NAMES[call.0]: object(&call.1)});
            let calls = Value::from(calls.iter().map(one).collect::<Vec<_>>());
            format!("<|tools_prefix|>{calls}<|tools_suffix|>")
        },
        ..JSON
    },
    Way {
        format: Format::Solar,
        write: |calls| {
            let inner = each(calls, "", |(name, arguments)| {
                format!(
                    "<|tool_call:begin|>abc<|tool_call:name|>{}<|tool_call:args|>{}<|tool_call:end|>",
                    NAMES[*name],
                    object(arguments)
                )
            });
            format!("<|begin|>assistant<|tool_calls|>{inner}<|calls|>")
        },
        ..JSON
    },
    Way {
        format: Format::Functionary,
        write: |calls| {
            each(calls, "", |(name, arguments)| {
                format!("<function={}>{}</function>", NAMES[*name], object(arguments))
            })
        },
        ..JSON
    },
    Way {
        format: Format::GigaChat,
        write: |calls| {
            let (name, arguments) = &calls[0];
            let call = json!({"name": NAMES[*name], "arguments": object(arguments)});
            format!("<|function_call|>{call}")
        },
        one: true,
        ..JSON
    },
    Way {
        format: Format::Inkling,
        write: |calls| {
            each(calls, "<|message_model|>", |(name, arguments)| {
                let call = json!({"name": NAMES[*name], "args": object(arguments)});
                format!("<|content_invoke_tool_json|>{call}<|end_message|>")
            })
        },
        ..JSON
    },
    Way {
        format: Format::Muse,
        write: |calls| {
            each(calls, "<|eom|><|start|>assistant", |call| {
                let inner = tagged(
                    std::slice::from_ref(call),
                    "",
                    [
                        "<atem:invoke name=\"",
                        "\">\n",
                        "<atem:parameter name=\"",
                        "\">",
                        "</atem:parameter>\n",
                        "</atem:invoke>",
                    ],
                );
                format!(
                    " to={}<|message|><atem:function_calls>\n{inner}\n</atem:function_calls>",
                    NAMES[call.0]
                )
            })
        },
        close: "</atem:parameter>",
        next: &["</atem:parameter>", "</atem:invoke>"],
        ..JSON
    },
];

/// gpt-oss has one call in a message.
const HARMONY: Way = Way {
    format: Format::Harmony,
    write: |calls| {
        let (name, arguments) = &calls[0];
        format!(
            "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}<|call|>",
            NAMES[*name],
            object(arguments)
        )
    },
    one: true,
    ..JSON
};

impl Way {
    /// True if a value, as it is written, would be read as something else by anybody.
    fn is_ambiguous(&self, (_, value): &Argument) -> bool {
        if self.never.iter().any(|never| value.to_string().contains(never)) {
            return true;
        }
        if self.close.is_empty() {
            return false;
        }
        // The tag after a value, where the notation could go on.
        let full = format!("{}{}", raw(value), self.close);
        let mut ends = full.match_indices(self.close).map(|(at, _)| &full[at + self.close.len()..]);
        ends.any(|rest| self.next.iter().any(|tag| rest.trim_start().starts_with(tag)))
    }
}

/// The calls that the parser reads, cut into pieces of these sizes.
fn read(
    way: &Way,
    calls: &[Call],
    text: &str,
    sizes: &[usize],
    pieces: bool,
) -> Vec<(String, Value)> {
    let parser = Parser::new(way.format, "").with_tools(tools(calls));
    let parser = if pieces { parser.in_pieces() } else { parser };
    let mut sizes = sizes.iter().copied().cycle();
    let read = spans(parser, text, || sizes.next().unwrap_or(1)).into_iter();
    let call = |(part, raw): (Part, String)| match part {
        Part::Call(call) => {
            let arguments = serde_json::from_str(&call.arguments);
            Some((call.name, arguments.unwrap_or_else(|_| Value::from(call.arguments))))
        }
        Part::Mark => None,
        other => raw
            .trim()
            .is_empty()
            .then_some(())
            .map_or_else(|| Some((format!("{other:?}"), Value::from(raw.clone()))), |()| None),
    };
    read.filter_map(call).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn every_value_comes_back(
        calls in calls(),
        sizes in prop::collection::vec(1usize..9, 1..40),
        pieces: bool,
    ) {
        for way in WAYS.iter().chain([&HARMONY]) {
            let mut kept = calls.clone();
            for (_, arguments) in &mut kept {
                arguments.retain(|argument| !way.is_ambiguous(argument));
            }
            kept.truncate(if way.one { 1 } else { kept.len() });
            let text = (way.write)(&kept);
            let wanted: Vec<_> = kept.iter().map(|(name, arguments)| (NAMES[*name].to_owned(), object(arguments))).collect();
            prop_assert_eq!(read(way, &kept, &text, &sizes, pieces), wanted, "{:?} {}", way.format, text);
        }
    }
}
