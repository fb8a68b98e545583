//! The calls of every family, as their templates and models write them, with the mistakes that models make; however the text is cut.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{as_it_comes, short_of, spans};
use super::{Format, Parser, Part, Tools};

/// Tools of a request.
fn tools() -> Tools {
    let f = json!({"type": "object", "properties": {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "boolean"},
        "d": {"type": "array"},
        "o": {"type": "object"},
        "e": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "code": {"type": "string"},
    }});
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let city = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let all = [
        tool("f", f),
        tool("g", json!({"type": "object", "properties": {}})),
        tool("get_weather", city),
        tool("free", Value::Null),
        tool("my-tool.v2", json!({"type": "object"})),
    ];
    Tools::of(&all)
}

fn parser(format: Format, prompt: &str) -> Parser {
    Parser::new(format, prompt).with_tools(tools())
}

/// The parts, the same in pieces and whole, however the text is cut.
fn read_after(format: Format, prompt: &str, text: &str) -> Vec<String> {
    let whole = short_of(|| parser(format, prompt), text);
    let pieces = short_of(|| parser(format, prompt).in_pieces(), text);
    assert_eq!(pieces, whole, "{format:?} {text}");
    whole
}

fn read(format: Format, text: &str) -> Vec<String> {
    read_after(format, "", text)
}

/// Texts of every family, and their parts.
const TEXTS: &[(Format, &str, &str, &[&str])] = &[
    // Qwen 3, Hermes.
    (
        Format::ChatMl,
        "",
        "<think>\nHm.\n</think>\n\nOk.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1.50\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        &["T:Hm.", "A:Ok.", "C:f {\"a\": \"1.50\"}", "C:g {}"],
    ),
    // Two objects in one block.
    (
        Format::ChatMl,
        "",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        &["C:f {\"b\": 1}", "C:g {}"],
    ),
    // ERNIE's answer.
    (
        Format::ChatMl,
        "<think>\n",
        "Hm.\n</think>\n\n\n<response>\nYes, <response>.\n</response>\n",
        &["T:Hm.", "A:Yes, <response>."],
    ),
    // Qwen3-Coder.
    (
        Format::ChatMl,
        "",
        "<tool_call>\n<function=f>\n<parameter=a>\n1.50\n</parameter>\n<parameter=b>\n3\n</parameter>\n<parameter=c>\nTrue\n</parameter>\n<parameter=d>\n[1, 2]\n</parameter>\n<parameter=o>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>",
        &["C:f {\"a\":\"1.50\",\"b\":3,\"c\":true,\"d\":[1, 2],\"o\":{\"a\": 1}}"],
    ),
    (
        Format::ChatMl,
        "",
        "<tool_call>\n<function=f>\n<parameter=code>\nx = 1\n\n</parameter>\n</function>\n<function=g>\n</function>\n</tool_call>\nSo.",
        &["C:f {\"code\":\"x = 1\\n\"}", "C:g {}", "A:So."],
    ),
    // An end mark in the value.
    (
        Format::ChatMl,
        "",
        "<tool_call>\n<function=f>\n<parameter=code>\na</parameter>\nb</tool_call>\"\\\n</parameter>\n<parameter=a>\n</function>\n</parameter>\n</function>\n</tool_call>",
        &["C:f {\"code\":\"a</parameter>\\nb</tool_call>\\\"\\\\\",\"a\":\"</function>\"}"],
    ),
    // A second end of a value; text between values; without the ends.
    (
        Format::ChatMl,
        "",
        "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</parameter>\n<parameter=b>\n1\n</parameter> and\n<parameter=c>\nfalse\n</parameter>\n</tool_call>",
        &["C:f {\"a\":\"x\",\"b\":1,\"c\":false}"],
    ),
    // Without the opening mark.
    (
        Format::ChatMl,
        "",
        "I look.\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
        &["A:I look.", "C:f {\"a\":\"1\"}"],
    ),
    // A call from thinking that has not ended; a mark there that is none.
    (
        Format::ChatMl,
        "<|im_start|>assistant\n<think>\n",
        "A <tool_call> or <function=x> it is.\n<tool_call>\n<function=f>\n<parameter=a>\nnull\n</parameter>\n</function>\n</tool_call>",
        &["T:A <tool_call> or <function=x> it is.", "C:f {\"a\":\"null\"}"],
    ),
    // JSON in tags, as Llama writes it.
    (
        Format::ChatMl,
        "",
        "<tool_call><function=f>{\"b\": 1}</function></tool_call>",
        &["C:f {\"b\": 1}"],
    ),
    // Gemma.
    (
        Format::Gemma4,
        "",
        "<|channel>thought\nHm.\n<channel|><|tool_call>call:f{a:<|\"|>x, \"y\" }<|\"|>,b:1,c:true,d:[<|\"|>a<|\"|>],o:{k:1}}<tool_call|><|tool_call>call:g{}<tool_call|>",
        &[
            "T:Hm.",
            "C:f {\"a\":\"x, \\\"y\\\" }\",\"b\":1,\"c\":true,\"d\":[\"a\"],\"o\":{\"k\":1}}",
            "C:g {}",
        ],
    ),
    // Ordinary quotes, with marks of the notation between them; the end mark in a text.
    (
        Format::Gemma4,
        "",
        "<|tool_call>call:f{a:\"x, y} \\\"z\\\" ]\",d:['it\"s', \"b\"],o:{\"k\":\"v\"},code:<|\"|><tool_call|><|\"|>}<tool_call|>",
        &[
            "C:f {\"a\":\"x, y} \\\"z\\\" ]\",\"d\":[\"it\\\"s\",\"b\"],\"o\":{\"k\":\"v\"},\"code\":\"<tool_call|>\"}",
        ],
    ),
    (
        Format::Gemma4,
        "",
        "<|tool_call>{\"name\": \"f\", \"arguments\": {\"b\": 1}}<tool_call|>",
        &["C:f {\"b\": 1}"],
    ),
    // gpt-oss.
    (
        Format::Harmony,
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"b\": 1}<|call|>",
        &["T:Hm.", "C:f {\"b\": 1}"],
    ),
    (
        Format::Harmony,
        "<|start|>assistant",
        "<|channel|>analysis to=functions.f code<|message|>{\"b\": 1}<|call|>",
        &["C:f {\"b\": 1}"],
    ),
    // Mistral.
    (
        Format::Mistral,
        "",
        "[THINK]Hm.[/THINK]Ok.[TOOL_CALLS]f[ARGS]{\"b\": 1}[TOOL_CALLS]g[CALL_ID]abc123DEF[ARGS]{}",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1}", "C:g {} #abc123DEF"],
    ),
    (
        Format::Mistral,
        "",
        "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"b\": 1}, \"id\": \"abc123DEF\"}, {\"name\": \"g\", \"arguments\": {}}]",
        &["C:f {\"b\": 1} #abc123DEF", "C:g {}"],
    ),
    // The arguments as a text, and the id before the name or none.
    (
        Format::Mistral,
        "",
        "[TOOL_CALLS][{\"id\": \"abc123DEF\", \"name\": \"f\", \"arguments\": \"{}\"}, {\"arguments\": {}, \"name\": \"g\", \"id\": 1}]",
        &["C:f {} #abc123DEF", "C:g {}"],
    ),
    (Format::Mistral, "", "[THINK]Hm.[TOOL_CALLS]f[ARGS]{\"b\": 1}", &["T:Hm.", "C:f {\"b\": 1}"]),
    // GLM 4.7, 4.5.
    (
        Format::Glm,
        "<|assistant|><think>",
        "Hm.</think><tool_call>f<arg_key>a</arg_key><arg_value>1.50</arg_value><arg_key>d</arg_key><arg_value>[1, 2]</arg_value></tool_call><tool_call>g</tool_call>",
        &["T:Hm.", "C:f {\"a\":\"1.50\",\"d\":[1, 2]}", "C:g {}"],
    ),
    (
        Format::Glm,
        "",
        "\n<think>Hm.</think>\nOk.\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x\n</arg_value>\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        &["T:Hm.", "A:Ok.", "C:f {\"a\":\"x\\n\",\"b\":2}"],
    ),
    // Without an opening mark of a key, with two ends of it, an end mark in a value, JSON.
    (
        Format::Glm,
        "",
        "<tool_call>get_weathercity</arg_key><arg_value>Rome</arg_value></tool_call>",
        &["C:get_weather {\"city\":\"Rome\"}"],
    ),
    (
        Format::Glm,
        "",
        "<tool_call>f\na</arg_key></arg_key>\n<arg_value>x</arg_value>y</arg_value>\nb</arg_key><arg_value>1</arg_value></arg_value></tool_call>",
        &["C:f {\"a\":\"x</arg_value>y\",\"b\":1}"],
    ),
    (Format::Glm, "", "<tool_call>f\n{\"b\": 1}\n</tool_call>", &["C:f {\"b\": 1}"]),
    (
        Format::Glm,
        "",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>",
        &["C:f {\"b\": 1}"],
    ),
    // Hy3, K2-Horizon.
    (
        Format::Hy3,
        "<think:opensource>",
        "Hm.</think:opensource><tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        &["T:Hm.", "C:f {\"a\":\"1\"}", "C:g {}"],
    ),
    (
        Format::Horizon,
        "",
        "<ifm|think_fast>Hm.</ifm|think_fast><ifm|tool_calls><ifm|tool_call>f\n<ifm|arg_key>b</ifm|arg_key><ifm|arg_value>1</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
        &["T:Hm.", "C:f {\"b\":1}"],
    ),
    // DeepSeek V3.1, V3.
    (
        Format::DeepSeek,
        "<think>",
        "Hm.</think>Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"b\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::DeepSeek,
        "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"code\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["C:f {\"code\": \"```\"}", "C:g {}"],
    ),
    (Format::DeepSeek, "", "<｜tool▁call▁begin｜>g<｜tool▁sep｜><｜tool▁call▁end｜>", &["C:g {}"]),
    // DeepSeek V3.2, V4.
    (
        Format::Dsml,
        "<think>",
        "Hm.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">1.50</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"false\">[1, 2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        &["T:Hm.", "C:f {\"a\":\"1.50\",\"x\":[1, 2]}", "C:g {}"],
    ),
    // ASCII bars; all arguments in one; no opening mark; a stray end.
    (
        Format::Dsml,
        "",
        "<|DSML|tool_calls><|DSML|invoke name=\"f\"><|DSML|parameter name=\"arguments\" string=\"false\">{\"b\": 1}</|DSML|parameter></|DSML|invoke></|DSML|tool_calls>",
        &["C:f {\"b\": 1}"],
    ),
    (
        Format::Dsml,
        "",
        "</｜DSML｜tool_calls>\nOk.\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter>y</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        &["A:Ok.", "C:f {\"a\":\"x</｜DSML｜parameter>y\"}"],
    ),
    // Kimi K2.
    (
        Format::Kimi,
        "",
        "<think>Hm.</think>Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"b\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1} #functions.f:0", "C:g {} #functions.g:1"],
    ),
    (
        Format::Kimi,
        "",
        "<think>Hm.<|tool_call_section_begin|><|tool_call_begin|>functions_get_weather_2<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_section_end|>",
        &["T:Hm.", "C:get_weather {} #functions_get_weather_2"],
    ),
    (
        Format::Kimi,
        "",
        "<|tool_call_begin|>f:3<|tool_call_argument_begin|>{\"b\": 1}<|tool_call_end|>",
        &["C:f {\"b\": 1} #f:3"],
    ),
    // Kimi K3.
    (
        Format::KimiK3,
        "<|open|>think<|sep|>",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Ok.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>1.50<|close|>argument<|sep|><|open|>argument key=\"b\" type=\"number\"<|sep|>2<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        &["T:Hm.", "A:Ok.", "C:f {\"a\":\"1.50\",\"b\":2}"],
    ),
    // MiniMax M2.
    (
        Format::MiniMax,
        "]~b]ai\n<think>\n",
        "Hm.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1.50</parameter>\n<parameter name=\"d\">[1, 2]</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n</minimax:tool_call>",
        &["T:Hm.", "C:f {\"a\":\"1.50\",\"d\":[1, 2]}", "C:g {}"],
    ),
    // MiniMax M3.
    (
        Format::MiniMax3,
        "",
        "<mm:think>\nHm.\n</mm:think>\n\nOk.\n]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<a>1.50]<]minimax[>[</a>]<]minimax[>[<d>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[<item>2]<]minimax[>[</item>]<]minimax[>[</d>]<]minimax[>[<o>]<]minimax[>[<k>x]<]minimax[>[</k>]<]minimax[>[</o>]<]minimax[>[<code><item>\n</item>]<]minimax[>[</code>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name=\"g\">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
        &[
            "T:Hm.",
            "A:Ok.",
            "C:f {\"a\":\"1.50\",\"d\":[1,2],\"o\":{\"k\":\"x\"},\"code\":\"<item>\\n</item>\"}",
            "C:g {}",
        ],
    ),
    (
        Format::MiniMax3,
        "",
        "</mm:think>\n]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<d>]<]minimax[>[</d>]<]minimax[>[<o>]<]minimax[>[</o>]<]minimax[>[<b>3]<]minimax[>[</b>]<]minimax[>[</tool_call>",
        &["C:f {\"d\":[],\"o\":{},\"b\":3}"],
    ),
    // Llama.
    (Format::Llama, "", "{\"name\": \"f\", \"parameters\": {\"b\": 1}}", &["C:f {\"b\": 1}"]),
    (
        Format::Llama,
        "",
        "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"a\": \"}\"}}\n",
        &["C:f {\"a\": \"}\"}"],
    ),
    (Format::Llama, "", "<|python_tag|>f.call(a=\"v\")", &["C:f {\"a\":\"v\"}"]),
    (
        Format::Llama,
        "",
        "<|python_start|>[f(a='x', b=-1, c=True, e=None, d=[1, (2, 3)], o={'k': \"v\"}), g()]<|python_end|>",
        &[
            "C:f {\"a\":\"x\",\"b\":-1,\"c\":true,\"e\":null,\"d\":[1,[2,3]],\"o\":{\"k\":\"v\"}}",
            "C:g {}",
        ],
    ),
    (Format::Llama, "", "[f(b=1), g()]", &["C:f {\"b\":1}", "C:g {}"]),
    (
        Format::Llama,
        "",
        "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}",
        &["C:f {}", "C:g {}"],
    ),
    (
        Format::Llama,
        "",
        "I look.\n{\"name\": \"f\", \"parameters\": {\"b\": 1}}",
        &["A:I look.", "C:f {\"b\": 1}"],
    ),
    (
        Format::Llama,
        "",
        "<function=f>{\"b\": 1}</function>",
        &["A:<function=f>{\"b\": 1}</function>"],
    ),
    (Format::Llama, "", "{\"name\": \"Ann\", \"age\": 3}", &["A:{\"name\": \"Ann\", \"age\": 3}"]),
    (Format::Llama, "", "[1, 2] and [f] and f(1).", &["A:[1, 2] and [f] and f(1)."]),
    // Seed-OSS: newlines belong to values.
    (
        Format::Seed,
        "",
        "<seed:think>Hm.</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=a>1.50</parameter>\n<parameter=code>\nx\n</parameter>\n</function>\n</seed:tool_call>",
        &["T:Hm.", "C:f {\"a\":\"1.50\",\"code\":\"\\nx\\n\"}"],
    ),
    // LFM2.
    (
        Format::Lfm2,
        "",
        "<think>Hm.</think><|tool_call_start|>[f(a=\"it's \\\"q\\\" \\n \\x41\\d\", b=1, c=true, e=null, d=[1], o={\"k\": 1}), my-tool.v2(x=\"\")]<|tool_call_end|>Ok.",
        &[
            "T:Hm.",
            "C:f {\"a\":\"it's \\\"q\\\" \\n A\\\\d\",\"b\":1,\"c\":true,\"e\":null,\"d\":[1],\"o\":{\"k\":1}}",
            "C:my-tool.v2 {\"x\":\"\"}",
            "A:Ok.",
        ],
    ),
    (
        Format::Lfm2,
        "",
        "<|tool_call_start|>[f(properties={\"a\": \"x\", \"b\": 1}), free(properties={\"a\": 1})]<|tool_call_end|>",
        &["C:f {\"a\":\"x\",\"b\":1}", "C:free {\"properties\":{\"a\":1}}"],
    ),
    (
        Format::Lfm2,
        "",
        "<|tool_call_start|>[f(code=\"\"\"a \"b\"\nc\"\"\")]<|tool_call_end|>",
        &["C:f {\"code\":\"a \\\"b\\\"\\nc\"}"],
    ),
    // Command R.
    (
        Format::Command,
        "<|START_THINKING|>",
        "Plan.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"b\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
        &["T:Plan.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::Command,
        "",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
        &["T:Hm.", "A:Yes."],
    ),
    // Granite 3, Phi-4-mini.
    (
        Format::Granite3,
        "",
        "<think>Hm.</think><response>Ok.</response><|tool_call|>[{\"name\": \"f\", \"arguments\": {\"d\": [[1], [2]]}}, {\"name\": \"g\", \"arguments\": {}}]",
        &["T:Hm.", "A:Ok.", "C:f {\"d\": [[1], [2]]}", "C:g {}"],
    ),
    (
        Format::Granite3,
        "",
        "functools[{\"name\": \"f\", \"arguments\": {\"b\": 1}}]",
        &["C:f {\"b\": 1}"],
    ),
    (Format::Granite3, "", "Python's functools[0] is none.", &["A:Python's functools[0] is none."]),
    (
        Format::Granite3,
        "",
        "<|tool_call|>[{\"name\": \"g\", \"arguments\": {}}]<|/tool_call|>",
        &["C:g {}"],
    ),
    // Nemotron Nano 2, Hunyuan, Apriel, MiniMax M1.
    (
        Format::Nemotron2,
        "<think>\n",
        "Hm.\n</think>\n\n<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"b\": 1}}, {\"name\": \"g\", \"arguments\": {}}]</TOOLCALL>",
        &["T:Hm.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::ToolCalls,
        "",
        "<think>\nHm.\n</think>\n<answer>\nOk.\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"b\": 1}}]</tool_calls>\n</answer>",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1}"],
    ),
    (
        Format::ToolCalls,
        "Here are my reasoning steps:\n",
        "Hm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]",
        &["T:Hm.", "A:Yes."],
    ),
    (
        Format::ToolCalls,
        "",
        "<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>",
        &["C:f {\"b\": 1}", "C:g {}"],
    ),
    // Apertus, Solar Open, MiniCPM5.
    (
        Format::Apertus,
        "",
        "<|inner_prefix|>Hm.<|inner_suffix|>Ok.<|tools_prefix|>[{\"f\": {\"b\": 1}}, {\"g\": {}}]<|tools_suffix|>",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::Solar,
        "",
        "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>f<|tool_call:args|>{\"b\": 1}<|tool_call:end|><|tool_call:begin|>abd<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        &["T:Hm.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::Solar,
        "",
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.<|end|>",
        &["T:Hm.", "A:Yes."],
    ),
    // DeepSeek V4.1: a blank in each tag; without the mark of all calls.
    (
        Format::Dsml,
        "<think>",
        "Hm.</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">1.50</｜DSML｜ parameter>y</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"b\" string=\"false\">2</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"g\">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        &["T:Hm.", "C:f {\"a\":\"1.50</｜DSML｜ parameter>y\",\"b\":2}", "C:g {}"],
    ),
    (
        Format::Dsml,
        "",
        "Ok.\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>",
        &["A:Ok.", "C:f {\"a\":\"x\"}"],
    ),
    // GigaChat 3.1, 3.
    (
        Format::GigaChat,
        "",
        "Ok.<|function_call|>{\"name\": \"f\", \"arguments\": {\"b\": 1}}",
        &["A:Ok.", "C:f {\"b\": 1}"],
    ),
    (
        Format::GigaChat,
        "",
        "Ok.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}",
        &["A:Ok.", "C:g {}"],
    ),
    // Muse Glimmer: headers, with and without what precedes them; without a header; a call without its mark.
    (
        Format::Muse,
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Ok, to=f it is.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">1.50</atem:parameter>\n<atem:parameter name=\"d\">[1, 2]</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=g<|message|><atem:function_calls>\n<atem:invoke name=\"g\">\n</atem:invoke>\n</atem:function_calls>",
        &["T:Hm.", "A:Ok, to=f it is.", "C:f {\"a\":\"1.50\",\"d\":[1, 2]}", "C:g {}"],
    ),
    (
        Format::Muse,
        "<|start|>assistant",
        " to=f<|message|><atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"code\">x</atem:parameter>\ny</atem:parameter></atem:invoke></atem:function_calls>",
        &["C:f {\"code\":\"x</atem:parameter>\\ny\"}"],
    ),
    (
        Format::Muse,
        "<|start|>assistant",
        "I look.\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">x</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
        &["A:I look.", "C:f {\"a\":\"x\"}"],
    ),
    (Format::Muse, "<|start|>assistant", " to=f is no header.", &["A: to=f is no header."]),
    (Format::Muse, "<|start|>assistant", "  to=user<|message|>Ok.", &["A: ", "A:Ok."]),
    (Format::Muse, "<|start|>assistant", "\n to=self<|message|>Hm.", &["T:Hm."]),
    // Inkling: typed blocks in any order; the name before a block; the arguments first; a call in thinking.
    (
        Format::Inkling,
        "<|message_model|>",
        "<|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Ok.<|end_message|><|message_model|>f<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": {\"b\": 1}}<|end_message|><|message_model|><|content_invoke_tool_json|>{\"args\": {}, \"name\": \"g\"}<|end_message|>",
        &["T:Hm.", "A:Ok.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::Inkling,
        "<|message_model|>",
        "f<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": {\"a\": \"<|end_message|>\"}}<|end_message|>",
        &["C:f {\"a\": \"<|end_message|>\"}"],
    ),
    (
        Format::Inkling,
        "",
        "<|content_thinking|>Hm.<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": {\"b\": 1}}<|end_message|>",
        &["T:Hm.", "C:f {\"b\": 1}"],
    ),
    // Functionary 3.1: a name in a tag, then JSON; an end in a value; the name of no tool.
    (
        Format::Functionary,
        "",
        "Ok.<function=f>{\"b\": 1}</function><function=g>{}</function>",
        &["A:Ok.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (
        Format::Functionary,
        "",
        "<function=f>{\"a\": \"x</function>\"}</function>",
        &["C:f {\"a\": \"x</function>\"}"],
    ),
    (Format::Functionary, "", "Write <function=x> first.", &["A:Write <function=x> first."]),
    // A family that is not known.
    (
        Format::Plain,
        "",
        "Ok.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        &["A:Ok.", "C:f {\"b\": 1}", "C:g {}"],
    ),
    (Format::Plain, "", "{\"name\": \"f\", \"arguments\": {\"b\": 1}}", &["C:f {\"b\": 1}"]),
    (
        Format::MiniCpm5,
        "",
        "<think>\nHm.\n</think>\n\n<function name=\"f\"><param name=\"a\">1.50</param><param name=\"code\"><![CDATA[</param> <b>]]></param></function>",
        &["T:Hm.", "C:f {\"a\":\"1.50\",\"code\":\"</param> <b>\"}"],
    ),
];

#[test]
fn calls_of_every_family() {
    for (format, prompt, text, expected) in TEXTS {
        assert_eq!(read_after(*format, prompt, text), *expected, "{format:?} {text}");
    }
    for format in Format::ALL {
        let calls = TEXTS.iter().filter(|(of, _, _, parts)| {
            *of == format && parts.iter().any(|part| part.starts_with("C:"))
        });
        assert!(calls.count() > 0, "{format:?}");
    }
}

/// The spans without the marks, and without the texts of calls, which may be attached to another piece.
fn bare(spans: Vec<(Part, String)>) -> Vec<(Part, String)> {
    let spans = spans.into_iter().filter(|(part, _)| *part != Part::Mark);
    let bare = |(part, raw)| match part {
        Part::Call(_) => (part, String::new()),
        part => (part, raw),
    };
    spans.map(bare).collect()
}

#[test]
fn every_split_in_two_gives_the_same() {
    for (format, prompt, text, _) in TEXTS {
        for pieces in [false, true] {
            let parser = || {
                if pieces { parser(*format, prompt).in_pieces() } else { parser(*format, prompt) }
            };
            let whole = spans(parser(), text, || usize::MAX);
            for at in 1..text.chars().count() {
                let mut sizes = [at, usize::MAX].into_iter();
                let cut = spans(parser(), text, || sizes.next().unwrap_or(usize::MAX));
                assert_eq!(cut, whole, "{format:?} {at} {text}");
            }
        }
    }
}

/// A text that ends early: what has been emitted stays, and the arguments are the beginning of the whole ones.
#[test]
fn a_text_that_is_cut_keeps_what_came() {
    for (format, prompt, text, _) in TEXTS {
        let whole = bare(spans(parser(*format, prompt).in_pieces(), text, || usize::MAX));
        for (at, _) in text.char_indices() {
            for (part, _) in spans(parser(*format, prompt).in_pieces(), &text[..at], || 1) {
                let Part::Call(call) = part else { continue };
                let same = |(part, _): &(Part, String)| match part {
                    Part::Call(other) => {
                        // A value that has ended here continues there, if no tag of the notation follows.
                        let open = call.arguments.strip_suffix('}').unwrap_or(&call.arguments);
                        let open = open.strip_suffix('"').unwrap_or(open);
                        other.name == call.name && other.arguments.starts_with(open)
                    }
                    _ => false,
                };
                assert!(whole.iter().any(same), "{format:?} {:?} {call:?}", &text[..at]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Cut anywhere: the same calls, and the same text.
    #[test]
    fn cut_anywhere(which in 0..TEXTS.len(), sizes in prop::collection::vec(1usize..9, 1..40), pieces: bool) {
        let (format, prompt, text, _) = TEXTS[which];
        let parser = || if pieces { parser(format, prompt).in_pieces() } else { parser(format, prompt) };
        let mut sizes = sizes.iter().copied().cycle();
        let cut = spans(parser(), text, || sizes.next().unwrap_or(1));
        prop_assert_eq!(cut, spans(parser(), text, || usize::MAX));
    }

    /// Parts of all texts of a family in any order, cut anywhere: no text is lost, and the cuts do not matter.
    #[test]
    fn any_order_cut_anywhere(
        which in 0..TEXTS.len(),
        parts in prop::collection::vec((0usize..400, 1usize..40), 1..12),
        sizes in prop::collection::vec(1usize..9, 1..40),
        pieces: bool,
    ) {
        let (format, prompt, ..) = TEXTS[which];
        let all: Vec<char> = TEXTS.iter().filter(|(of, ..)| *of == format).flat_map(|(_, _, text, _)| text.chars()).collect();
        let text: String = parts.iter().flat_map(|(at, len)| {
            let at = at % all.len();
            all[at..(at + len).min(all.len())].iter()
        }).collect();
        let parser = || if pieces { parser(format, prompt).in_pieces() } else { parser(format, prompt) };
        let mut sizes = sizes.iter().copied().cycle();
        let cut = spans(parser(), &text, || sizes.next().unwrap_or(1));
        prop_assert_eq!(cut, spans(parser(), &text, || usize::MAX), "{:?} {}", format, text);
    }

    /// Any text as the value of a string parameter comes back, in each notation that writes it raw.
    #[test]
    fn any_value_comes_back(value in "([a-z<>/{}\"'\\\\\n é]|</|parameter>|null|1\\.50){0,12}") {
        for (format, before, after) in [
            (Format::ChatMl, "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
            (Format::Seed, "<seed:tool_call>\n<function=f>\n<parameter=a>", "</parameter>\n</function>\n</seed:tool_call>"),
            (Format::Glm, "<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value></tool_call>"),
            (Format::MiniMax, "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">", "</parameter>\n</invoke>\n</minimax:tool_call>"),
            (Format::Gemma4, "<|tool_call>call:f{a:<|\"|>", "<|\"|>}<tool_call|>"),
        ] {
            let text = format!("{before}{value}{after}");
            // A tag at its very end looks like a second end.
            prop_assume!(!value.trim_end().ends_with("</parameter>"));
            let wanted = format!("C:f {}", json!({"a": value}));
            prop_assert_eq!(read(format, &text), vec![wanted], "{:?}", format);
        }
    }
}

#[test]
fn arguments_between_tags_are_handed_out_while_they_are_written() {
    let text = "<tool_call>\n<function=f>\n<parameter=a>\nab\nc\n</parameter>\n<parameter=b>\n12\n</parameter>\n</function>\n</tool_call>";
    let expected = ["f", "{\"a\":\"", "a", "b", "\\nc", "\"", ",\"b\":12", "}"];
    assert_eq!(as_it_comes(parser(Format::ChatMl, "").in_pieces(), text), expected);
    let text = "<|tool_call>call:f{a:<|\"|>ab<|\"|>,b:12}<tool_call|>";
    let expected = ["f", "{", "\"a\":\"", "a", "b", "\"", ",\"b\":12", "}"];
    let come = as_it_comes(parser(Format::Gemma4, "").in_pieces(), text);
    assert_eq!(come.concat(), expected.concat());
    assert!(come.len() >= 7, "{come:?}");
}

#[test]
fn an_unknown_tool_is_called_once_the_call_is_whole() {
    let come = |format, text: &str| as_it_comes(parser(format, "").in_pieces(), text);
    let call = "<tool_call>{\"name\": \"unknown\", \"arguments\": {\"a\": 1}}</tool_call>";
    assert_eq!(come(Format::ChatMl, call), ["unknown{\"a\": 1}"]);
    // One that does not become whole is text.
    for (format, text) in [
        (Format::ChatMl, "<tool_call>{\"name\": \"unknown\", \"arguments\": {\"a\": "),
        (Format::ChatMl, "<tool_call><function=NAME><parameter=KEY> is how it is written."),
        (Format::ChatMl, "Write <function=f> first."),
        (Format::Glm, "<tool_call>NAME<arg_key>KEY</arg_key> and so on"),
        (Format::Dsml, "<｜DSML｜invoke name=\"f\"> without its end"),
        (Format::Kimi, "<|tool_calls_section_begin|> and <|tool_call_begin|>"),
        (Format::Lfm2, "<|tool_call_start|>[nothing]<|tool_call_end|>"),
        (Format::Command, "<|START_ACTION|>[]<|END_ACTION|>"),
        (Format::MiniMax, "<invoke name=\"x\"></invoke>"),
        (Format::Llama, "<|python_tag|>print(1)"),
        (Format::Llama, "<|python_tag|>f(1)"),
        (Format::Lfm2, "<|tool_call_start|>[f(\"x\")]<|tool_call_end|>"),
        (Format::Gemma4, "<|tool_call>call:f{oops}<tool_call|>"),
        (Format::Plain, "<tool_call>{\"name\": \"unknown\", \"arguments\": {\"a\": "),
        (Format::Muse, "<atem:function_calls> and <atem:invoke name=\"x\"></atem:invoke>"),
        (Format::Inkling, "<|content_invoke_tool_json|>{}"),
        (Format::GigaChat, "<|function_call|>[]"),
    ] {
        let parts = spans(parser(format, "").in_pieces(), text, || 1);
        assert!(parts.iter().all(|(part, _)| *part == Part::Answer), "{format:?} {parts:?}");
    }
}

/// Little of JSON that is no call is held back.
#[test]
fn other_json_comes_as_it_is_written() {
    for (text, held) in [
        ("{\"city\": \"Rome\", \"x\": 1}", "{\"city\":"),
        ("[{\"name\": \"Ann\", \"age\": 3}]", "[{\"name\": \"Ann\""),
        ("[1, 2]", "[1"),
        ("{}", "{}"),
    ] {
        let come = as_it_comes(parser(Format::Llama, "").in_pieces(), text);
        assert_eq!(come[0], format!("A:{held}"), "{come:?}");
        let rest: String = come.iter().map(|piece| &piece[2..]).collect();
        assert_eq!(rest, text);
    }
}

#[test]
fn without_tools_no_unmarked_text_is_a_call() {
    for (format, text) in [
        (Format::Llama, "{\"name\": \"f\", \"parameters\": {}}"),
        (Format::ChatMl, "<function=f></function>"),
        (Format::ChatMl, "<think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
    ] {
        let parts = spans(Parser::new(format, "").in_pieces(), text, || 1);
        assert!(parts.iter().all(|(part, _)| !matches!(part, Part::Call(_))), "{parts:?}");
    }
}

#[test]
fn values_are_typed_by_the_schema_in_every_notation_without_types() {
    for (format, before, after) in [
        (
            Format::ChatMl,
            "<tool_call><function=f><parameter=KEY>",
            "</parameter></function></tool_call>",
        ),
        (
            Format::Seed,
            "<seed:tool_call><function=f><parameter=KEY>",
            "</parameter></function></seed:tool_call>",
        ),
        (Format::Glm, "<tool_call>f<arg_key>KEY</arg_key><arg_value>", "</arg_value></tool_call>"),
        (
            Format::Hy3,
            "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>KEY</arg_key:opensource><arg_value:opensource>",
            "</arg_value:opensource></tool_call:opensource></tool_calls:opensource>",
        ),
        (
            Format::MiniMax,
            "<minimax:tool_call><invoke name=\"f\"><parameter name=\"KEY\">",
            "</parameter></invoke></minimax:tool_call>",
        ),
        (Format::MiniCpm5, "<function name=\"f\"><param name=\"KEY\">", "</param></function>"),
        (
            Format::Muse,
            "<atem:function_calls><atem:invoke name=\"f\"><atem:parameter name=\"KEY\">",
            "</atem:parameter></atem:invoke></atem:function_calls>",
        ),
    ] {
        for (key, value, json) in [
            ("a", "1.50", "\"1.50\""),
            ("a", "true", "\"true\""),
            ("a", "null", "\"null\""),
            ("a", "[1, 2]", "\"[1, 2]\""),
            ("a", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""),
            ("a", "&lt;", "\"&lt;\""),
            ("a", "", "\"\""),
            ("b", "1.50", "1.50"),
            ("b", "one", "\"one\""),
            ("c", "False", "false"),
            ("d", "[1, 2]", "[1, 2]"),
            ("d", "[1, 2", "\"[1, 2\""),
            // The tag after the value, in a string.
            ("d", "[\"\\\"CLOSE\"]", "[\"\\\"CLOSE\"]"),
            ("o", "{\"a\": 1}", "{\"a\": 1}"),
            ("e", "null", "null"),
            ("e", "7", "\"7\""),
            // Not in the schema.
            ("z", "7", "7"),
            ("z", "x", "\"x\""),
        ] {
            let close = &after.trim_start()[..=after.trim_start().find('>').unwrap()];
            let [value, json] = [value, json].map(|text| text.replace("CLOSE", close));
            let text = format!("{}{value}{after}", before.replace("KEY", key));
            assert_eq!(read(format, &text), [format!("C:f {{\"{key}\":{json}}}")], "{format:?}");
        }
    }
}

#[test]
fn many_optional_parameters_in_any_order() {
    let properties: serde_json::Map<String, Value> =
        (0..50).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let tools = Tools::of(&[json!({"name": "f", "parameters": {"properties": properties}})]);
    let (mut text, mut wanted) = ("<tool_call>\n<function=f>\n".to_owned(), serde_json::Map::new());
    for i in (0..50).rev() {
        text.push_str(&format!("<parameter=p{i}>\n{i}\n</parameter>\n"));
        wanted.insert(format!("p{i}"), json!(i.to_string()));
    }
    text.push_str("</function>\n</tool_call>");
    let parts = short_of(|| Parser::new(Format::ChatMl, "").with_tools(tools.clone()), &text);
    assert_eq!(parts, [format!("C:f {}", Value::from(wanted))]);
}

/// However much text arrives, little of it is examined again.
#[test]
fn little_is_held() {
    for (format, prompt, text, _) in TEXTS {
        for at in (1..text.len()).filter(|at| text.is_char_boundary(*at)).step_by(13) {
            for more in [" ", "\n", "é", "\"", "{", "<", "x"] {
                let mut parser = parser(*format, prompt).in_pieces();
                parser.push(&text[..at], &mut |_| {});
                for _ in 0..200 {
                    parser.push(&more.repeat(16), &mut |_| {});
                }
                assert!(parser.held.len() < 2048, "{format:?} {:?} {more:?}", &text[..at]);
            }
        }
    }
}
