//! The descriptions, one for each family.

use super::{
    Calls, Elements, Field, Form, Format, Header, Literal, Named, Notation, Object, Pair, Tagged,
    ValueTypes,
};

/// The description of a format.
pub(super) fn notation(format: Format) -> &'static Notation {
    match format {
        Format::Plain => &PLAIN,
        Format::ChatMl => &CHAT_ML,
        Format::Harmony => &HARMONY,
        Format::Gemma4 => &GEMMA4,
        Format::Mistral => &MISTRAL,
        Format::Glm => &GLM,
        Format::Hy3 => &HY3,
        Format::Horizon => &HORIZON,
        Format::DeepSeek => &DEEPSEEK,
        Format::Dsml => &DSML,
        Format::Kimi => &KIMI,
        Format::KimiK3 => &KIMI_K3,
        Format::MiniMax => &MINIMAX,
        Format::MiniMax3 => &MINIMAX3,
        Format::Llama => &LLAMA,
        Format::Seed => &SEED,
        Format::Lfm2 => &LFM2,
        Format::Command => &COMMAND,
        Format::Granite3 => &GRANITE3,
        Format::Nemotron2 => &NEMOTRON2,
        Format::ToolCalls => &TOOL_CALLS,
        Format::Apertus => &APERTUS,
        Format::Solar => &SOLAR,
        Format::MiniCpm5 => &MINICPM5,
        Format::GigaChat => &GIGACHAT,
        Format::Muse => &MUSE,
        Format::Inkling => &INKLING,
        Format::Functionary => &FUNCTIONARY,
    }
}

const THINK: Pair = pair("<think>", "</think>");

const fn pair(open: &'static str, close: &'static str) -> Pair {
    Pair { open, close }
}

/// No calls.
const NO_CALLS: Calls = Calls {
    opens: &[],
    closes: &[],
    forms: &[],
    bare: &[],
    bare_lines: false,
    unmarked: false,
    markless: false,
    in_thinking: false,
    ids: false,
};

/// A description of thinking in `<think>`, for others to start from.
const BASE: Notation = Notation {
    name: "",
    header: None,
    thinking: &[THINK],
    thinking_anywhere: false,
    end: "",
    answer: &[],
    calls: NO_CALLS,
    ordered_results: false,
    tokens: &["<think>", "</think>"],
};

const JSON: Form = Form::Object(OBJECT);

/// The same in a list.
const JSON_LIST: Form = Form::Object(Object { list: true, ..OBJECT });

const OBJECT: Object = Object {
    name: "name",
    arguments: &["arguments", "parameters"],
    id: "",
    last_id: "",
    list: false,
};

/// Qwen3-Coder's tags.
const FUNCTION: Tagged = Tagged {
    open: "<function=",
    name_close: ">",
    key_open: "<parameter=",
    key_close: ">",
    value_open: "",
    value_closes: &["\n</parameter>", "</parameter>"],
    close: "</function>",
    newlines: true,
    cdata: false,
    wraps: &[],
    types: ValueTypes::Unwritten,
};

/// GLM's tags.
const ARG_KEY: Tagged = Tagged {
    open: "",
    name_close: "",
    key_open: "<arg_key>",
    key_close: "</arg_key>",
    value_open: "<arg_value>",
    value_closes: &["</arg_value>"],
    close: "",
    newlines: false,
    cdata: false,
    wraps: &[],
    types: ValueTypes::Unwritten,
};

const PLAIN: Notation = Notation {
    name: "plain",
    thinking: &[],
    calls: Calls {
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        forms: &[JSON],
        bare: &["{\"name\""],
        bare_lines: true,
        unmarked: true,
        ..NO_CALLS
    },
    tokens: &[],
    ..BASE
};

const CHAT_ML: Notation = Notation {
    name: "chatml",
    // ERNIE's and Granite's answers after thinking.
    answer: &[pair("<response>", "</response>")],
    calls: Calls {
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        forms: &[JSON, Form::Tagged(FUNCTION)],
        bare: &["<function="],
        in_thinking: true,
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<tool_call>", "</tool_call>"],
    ..BASE
};

/// Headers are read by code of their own; `forms` and marks do not occur.
const HARMONY: Notation = Notation {
    name: "harmony",
    thinking: &[],
    tokens: &[
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ],
    ..BASE
};

const GEMMA4: Notation = Notation {
    name: "gemma4",
    thinking: &[pair("<|channel>thought", "<channel|>")],
    thinking_anywhere: true,
    calls: Calls {
        opens: &["<|tool_call>"],
        closes: &["<tool_call|>"],
        forms: &[
            Form::Literal(Literal { open: "call:", body: ('{', '}'), python: false, wraps: &[] }),
            JSON,
        ],
        ..NO_CALLS
    },
    tokens: &["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|\"|>"],
    ..BASE
};

const MISTRAL: Notation = Notation {
    name: "mistral",
    thinking: &[pair("[THINK]", "[/THINK]"), THINK],
    calls: Calls {
        opens: &["[TOOL_CALLS]"],
        forms: &[
            Form::Object(Object { last_id: "id", list: true, ..OBJECT }),
            Form::Named(Named {
                open: "",
                first: Field::Name,
                fields: &[("[CALL_ID]", Field::Id), ("[ARGS]", Field::Nothing)],
                closes: &[],
            }),
        ],
        in_thinking: true,
        ids: true,
        ..NO_CALLS
    },
    tokens: &["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>"],
    ..BASE
};

const GLM: Notation = Notation {
    name: "glm",
    calls: Calls {
        opens: &["<tool_call>"],
        closes: &["</tool_call>"],
        forms: &[Form::Tagged(ARG_KEY), JSON],
        ..NO_CALLS
    },
    tokens: &[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ],
    ..BASE
};

const HY3: Notation = Notation {
    name: "hy3",
    thinking: &[pair("<think:opensource>", "</think:opensource>"), THINK],
    calls: Calls {
        opens: &["<tool_calls:opensource>"],
        closes: &["</tool_calls:opensource>"],
        forms: &[Form::Tagged(Tagged {
            open: "<tool_call:opensource>",
            name_close: "<tool_sep:opensource>",
            key_open: "<arg_key:opensource>",
            key_close: "</arg_key:opensource>",
            value_open: "<arg_value:opensource>",
            value_closes: &["</arg_value:opensource>"],
            close: "</tool_call:opensource>",
            newlines: false,
            cdata: false,
            wraps: &[],
            types: ValueTypes::Unwritten,
        })],
        bare: &["<tool_call:opensource>"],
        ..NO_CALLS
    },
    tokens: &[
        "<think:opensource>",
        "</think:opensource>",
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
        "<tool_call:opensource>",
        "</tool_call:opensource>",
        "<tool_sep:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    ],
    ..BASE
};

const HORIZON: Notation = Notation {
    name: "horizon",
    thinking: &[
        pair("<ifm|think>", "</ifm|think>"),
        pair("<ifm|think_fast>", "</ifm|think_fast>"),
        pair("<ifm|think_faster>", "</ifm|think_faster>"),
    ],
    calls: Calls {
        opens: &["<ifm|tool_calls>"],
        closes: &["</ifm|tool_calls>"],
        forms: &[Form::Tagged(Tagged {
            open: "<ifm|tool_call>",
            name_close: "",
            key_open: "<ifm|arg_key>",
            key_close: "</ifm|arg_key>",
            value_open: "<ifm|arg_value>",
            value_closes: &["</ifm|arg_value>"],
            close: "</ifm|tool_call>",
            newlines: false,
            cdata: false,
            wraps: &[],
            types: ValueTypes::Unwritten,
        })],
        bare: &["<ifm|tool_call>"],
        ..NO_CALLS
    },
    tokens: &[
        "<ifm|think>",
        "</ifm|think>",
        "<ifm|think_fast>",
        "</ifm|think_fast>",
        "<ifm|think_faster>",
        "</ifm|think_faster>",
        "<ifm|tool_calls>",
        "</ifm|tool_calls>",
        "<ifm|tool_call>",
        "</ifm|tool_call>",
        "<ifm|arg_key>",
        "</ifm|arg_key>",
        "<ifm|arg_value>",
        "</ifm|arg_value>",
    ],
    ..BASE
};

const DEEPSEEK: Notation = Notation {
    name: "deepseek",
    calls: Calls {
        opens: &["<｜tool▁calls▁begin｜>"],
        closes: &["<｜tool▁calls▁end｜>"],
        forms: &[Form::Named(Named {
            open: "<｜tool▁call▁begin｜>",
            first: Field::Name,
            fields: &[("<｜tool▁sep｜>", Field::NameIfAny)],
            closes: &["```", "<｜tool▁call▁end｜>"],
        })],
        bare: &["<｜tool▁call▁begin｜>"],
        ..NO_CALLS
    },
    tokens: &[
        "<think>",
        "</think>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ],
    ..BASE
};

/// DeepSeek's tags.
const INVOKE: Tagged = Tagged {
    open: "<｜DSML｜invoke name=",
    name_close: ">",
    key_open: "<｜DSML｜parameter name=",
    key_close: ">",
    value_open: "",
    value_closes: &["</｜DSML｜parameter>"],
    close: "</｜DSML｜invoke>",
    newlines: false,
    cdata: false,
    wraps: &["arguments", "input"],
    types: ValueTypes::IsString,
};

const DSML: Notation = Notation {
    name: "dsml",
    calls: Calls {
        opens: &[
            "<｜DSML｜function_calls>",
            "<｜DSML｜tool_calls>",
            "<|DSML|function_calls>",
            "<|DSML|tool_calls>",
            "<｜DSML｜ calls>",
            "<｜DSML｜ tool_calls>",
        ],
        closes: &[
            "</｜DSML｜function_calls>",
            "</｜DSML｜tool_calls>",
            "</|DSML|function_calls>",
            "</|DSML|tool_calls>",
            "</｜DSML｜ calls>",
            "</｜DSML｜ tool_calls>",
        ],
        forms: &[
            Form::Tagged(INVOKE),
            // With the ASCII bar that models write by mistake.
            Form::Tagged(Tagged {
                open: "<|DSML|invoke name=",
                key_open: "<|DSML|parameter name=",
                value_closes: &["</|DSML|parameter>"],
                close: "</|DSML|invoke>",
                ..INVOKE
            }),
            // With the blank of V4.1.
            Form::Tagged(Tagged {
                open: "<｜DSML｜ invoke name=",
                key_open: "<｜DSML｜ parameter name=",
                value_closes: &["</｜DSML｜ parameter>"],
                close: "</｜DSML｜ invoke>",
                ..INVOKE
            }),
        ],
        bare: &["<｜DSML｜invoke name=", "<|DSML|invoke name=", "<｜DSML｜ invoke name="],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "｜DSML｜"],
    ordered_results: true,
    ..BASE
};

const KIMI: Notation = Notation {
    name: "kimi",
    calls: Calls {
        opens: &["<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"],
        closes: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
        forms: &[Form::Named(Named {
            open: "<|tool_call_begin|>",
            first: Field::IdWithName,
            fields: &[("<|tool_call_argument_begin|>", Field::Nothing)],
            closes: &["<|tool_call_end|>"],
        })],
        bare: &["<|tool_call_begin|>"],
        in_thinking: true,
        ids: true,
        ..NO_CALLS
    },
    tokens: &[
        "<think>",
        "</think>",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    ..BASE
};

const KIMI_K3: Notation = Notation {
    name: "kimi-k3",
    thinking: &[pair("<|open|>think<|sep|>", "<|close|>think<|sep|>")],
    end: "<|close|>message<|sep|>",
    answer: &[
        pair("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        pair("<|close|>message<|sep|>", ""),
    ],
    calls: Calls {
        opens: &["<|open|>tools<|sep|>"],
        closes: &["<|close|>tools<|sep|>"],
        forms: &[Form::Tagged(Tagged {
            open: "<|open|>call tool=",
            name_close: "<|sep|>",
            key_open: "<|open|>argument key=",
            key_close: "<|sep|>",
            value_open: "",
            value_closes: &["<|close|>argument<|sep|>"],
            close: "<|close|>call<|sep|>",
            newlines: false,
            cdata: false,
            wraps: &[],
            types: ValueTypes::Named,
        })],
        bare: &["<|open|>call tool="],
        ..NO_CALLS
    },
    tokens: &["<|open|>", "<|close|>", "<|sep|>"],
    ..BASE
};

const MINIMAX: Notation = Notation {
    name: "minimax",
    calls: Calls {
        opens: &["<minimax:tool_call>"],
        closes: &["</minimax:tool_call>"],
        forms: &[Form::Tagged(Tagged {
            open: "<invoke name=",
            name_close: ">",
            key_open: "<parameter name=",
            key_close: ">",
            value_open: "",
            value_closes: &["</parameter>"],
            close: "</invoke>",
            newlines: false,
            cdata: false,
            wraps: &[],
            types: ValueTypes::Unwritten,
        })],
        bare: &["<invoke name="],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"],
    ..BASE
};

const MINIMAX3: Notation = Notation {
    name: "minimax-m3",
    thinking: &[pair("<mm:think>", "</mm:think>")],
    // Without thinking, its end stands alone.
    answer: &[pair("</mm:think>", "")],
    calls: Calls {
        opens: &["]<]minimax[>[<tool_call>"],
        closes: &["]<]minimax[>[</tool_call>"],
        forms: &[Form::Elements(Elements {
            open: "]<]minimax[>[<invoke name=",
            name_close: ">",
            mark: "]<]minimax[>[",
            close: "]<]minimax[>[</invoke>",
        })],
        bare: &["]<]minimax[>[<invoke name="],
        ..NO_CALLS
    },
    tokens: &["<mm:think>", "</mm:think>", "]<]minimax[>["],
    ..BASE
};

const PYTHON: Literal = Literal { open: "", body: ('(', ')'), python: true, wraps: &[] };

const LLAMA: Notation = Notation {
    name: "llama",
    calls: Calls {
        opens: &["<|python_tag|>", "<|python_start|>"],
        closes: &["<|python_end|>"],
        forms: &[
            Form::Object(Object { arguments: &["parameters", "arguments"], ..OBJECT }),
            Form::Tagged(FUNCTION),
            Form::Literal(PYTHON),
        ],
        bare: &["{\"name\"", "{\"type\"", "<function="],
        bare_lines: true,
        unmarked: true,
        markless: true,
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<|python_tag|>", "<|python_start|>", "<|python_end|>"],
    ..BASE
};

const SEED: Notation = Notation {
    name: "seed",
    thinking: &[pair("<seed:think>", "</seed:think>")],
    calls: Calls {
        opens: &["<seed:tool_call>"],
        closes: &["</seed:tool_call>"],
        forms: &[Form::Tagged(Tagged {
            value_closes: &["</parameter>"],
            newlines: false,
            ..FUNCTION
        })],
        bare: &["<function="],
        ..NO_CALLS
    },
    tokens: &["<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"],
    ..BASE
};

const LFM2: Notation = Notation {
    name: "lfm2",
    calls: Calls {
        opens: &["<|tool_call_start|>"],
        closes: &["<|tool_call_end|>"],
        forms: &[Form::Literal(Literal { wraps: &["properties"], ..PYTHON }), JSON],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<|tool_call_start|>", "<|tool_call_end|>"],
    ..BASE
};

const COMMAND: Notation = Notation {
    name: "command",
    thinking: &[pair("<|START_THINKING|>", "<|END_THINKING|>")],
    answer: &[
        pair("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        pair("<|START_TEXT|>", "<|END_TEXT|>"),
    ],
    calls: Calls {
        opens: &["<|START_ACTION|>"],
        closes: &["<|END_ACTION|>"],
        forms: &[Form::Object(Object {
            name: "tool_name",
            arguments: &["parameters"],
            id: "tool_call_id",
            list: true,
            ..OBJECT
        })],
        ..NO_CALLS
    },
    tokens: &[
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
    ],
    ..BASE
};

const GRANITE3: Notation = Notation {
    name: "granite3",
    answer: &[pair("<response>", "</response>")],
    calls: Calls {
        opens: &["<|tool_call|>", "<tool_call>", "functools"],
        closes: &["<|/tool_call|>", "</tool_call>"],
        forms: &[JSON_LIST],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<|tool_call|>", "<|/tool_call|>", "<tool_call>"],
    ..BASE
};

const NEMOTRON2: Notation = Notation {
    name: "nemotron2",
    calls: Calls {
        opens: &["<TOOLCALL>"],
        closes: &["</TOOLCALL>"],
        forms: &[JSON_LIST],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<TOOLCALL>", "</TOOLCALL>"],
    ..BASE
};

const TOOL_CALLS: Notation = Notation {
    name: "tool-calls",
    // Apriel's thinking has no opening mark: its prompt ends with a sentence.
    thinking: &[THINK, pair("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")],
    answer: &[
        pair("<answer>", "</answer>"),
        pair("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
    ],
    calls: Calls {
        opens: &["<tool_calls>"],
        closes: &["</tool_calls>"],
        forms: &[JSON_LIST],
        ..NO_CALLS
    },
    tokens: &[
        "<think>",
        "</think>",
        "<tool_calls>",
        "</tool_calls>",
        "<answer>",
        "</answer>",
        "[BEGIN FINAL RESPONSE]",
        "[END FINAL RESPONSE]",
    ],
    ..BASE
};

const APERTUS: Notation = Notation {
    name: "apertus",
    thinking: &[pair("<|inner_prefix|>", "<|inner_suffix|>")],
    thinking_anywhere: true,
    calls: Calls {
        opens: &["<|tools_prefix|>"],
        closes: &["<|tools_suffix|>"],
        forms: &[Form::Object(Object { name: "", arguments: &[], list: true, ..OBJECT })],
        ..NO_CALLS
    },
    tokens: &["<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"],
    ..BASE
};

const SOLAR: Notation = Notation {
    name: "solar",
    thinking: &[pair("<|think|>", "<|end|>")],
    answer: &[
        pair("<|begin|>assistant<|content|>", "<|end|>"),
        pair("<|content|>", "<|end|>"),
        pair("<|begin|>assistant", ""),
    ],
    calls: Calls {
        opens: &["<|tool_calls|>", "<|begin|>assistant<|tool_calls|>"],
        closes: &["<|calls|>"],
        forms: &[Form::Named(Named {
            open: "<|tool_call:begin|>",
            first: Field::Id,
            fields: &[("<|tool_call:name|>", Field::Name), ("<|tool_call:args|>", Field::Nothing)],
            closes: &["<|tool_call:end|>"],
        })],
        bare: &["<|tool_call:begin|>"],
        ..NO_CALLS
    },
    tokens: &[
        "<|think|>",
        "<|end|>",
        "<|begin|>",
        "<|content|>",
        "<|tool_calls|>",
        "<|calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    ],
    ..BASE
};

const MINICPM5: Notation = Notation {
    name: "minicpm5",
    calls: Calls {
        forms: &[Form::Tagged(Tagged {
            open: "<function name=",
            name_close: ">",
            key_open: "<param name=",
            key_close: ">",
            value_open: "",
            value_closes: &["]]></param>", "</param>"],
            close: "</function>",
            newlines: false,
            cdata: true,
            wraps: &[],
            types: ValueTypes::Unwritten,
        })],
        bare: &["<function name="],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>"],
    ..BASE
};

const GIGACHAT: Notation = Notation {
    name: "gigachat",
    calls: Calls {
        // The second as the template of the first models has it, whose call is a message of its own.
        opens: &[
            "<|function_call|>",
            "<|message_sep|>\n\nfunction call<|role_sep|>",
            "function call<|role_sep|>",
        ],
        forms: &[JSON],
        ..NO_CALLS
    },
    tokens: &["<think>", "</think>", "<|function_call|>", "<|message_sep|>", "<|role_sep|>"],
    ..BASE
};

const MUSE: Notation = Notation {
    name: "muse",
    header: Some(Header {
        start: "<|start|>assistant",
        open: " to=",
        close: "<|message|>",
        keeps_close: false,
        end: "<|eom|>",
    }),
    thinking: &[
        pair(" to=self<|message|>", "<|eom|>"),
        pair("<|start|>assistant to=self<|message|>", "<|eom|>"),
    ],
    answer: &[
        pair(" to=user<|message|>", "<|eom|>"),
        pair("<|start|>assistant to=user<|message|>", "<|eom|>"),
    ],
    calls: Calls {
        opens: &["<atem:function_calls>"],
        closes: &["</atem:function_calls>"],
        forms: &[Form::Tagged(Tagged {
            open: "<atem:invoke name=",
            name_close: ">",
            key_open: "<atem:parameter name=",
            key_close: ">",
            value_open: "",
            value_closes: &["</atem:parameter>"],
            close: "</atem:invoke>",
            newlines: false,
            cdata: false,
            wraps: &[],
            types: ValueTypes::Unwritten,
        })],
        bare: &["<atem:invoke name="],
        ..NO_CALLS
    },
    tokens: &["<|start|>", "<|message|>", "<|eom|>"],
    ..BASE
};

const INKLING: Notation = Notation {
    name: "inkling",
    // A message that calls a tool may have its name before the kind of its content.
    header: Some(Header {
        start: "",
        open: "<|message_model|>",
        close: "<|content_",
        keeps_close: true,
        end: "<|end_message|>",
    }),
    thinking: &[pair("<|content_thinking|>", "<|end_message|>")],
    thinking_anywhere: true,
    answer: &[pair("<|content_text|>", "<|end_message|>")],
    calls: Calls {
        opens: &["<|content_invoke_tool_json|>"],
        closes: &["<|end_message|>", "<|content_model_end_sampling|>"],
        forms: &[Form::Object(Object {
            arguments: &["args", "arguments", "parameters"],
            ..OBJECT
        })],
        in_thinking: true,
        ..NO_CALLS
    },
    tokens: &[
        "<|message_model|>",
        "<|content_thinking|>",
        "<|content_text|>",
        "<|content_invoke_tool_json|>",
        "<|end_message|>",
        "<|content_model_end_sampling|>",
    ],
    ..BASE
};

const FUNCTIONARY: Notation = Notation {
    name: "functionary",
    calls: Calls {
        forms: &[Form::Named(Named {
            open: "<function=",
            first: Field::Name,
            fields: &[(">", Field::Nothing)],
            closes: &["</function>"],
        })],
        bare: &["<function="],
        ..NO_CALLS
    },
    ..BASE
};
