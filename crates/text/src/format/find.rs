//! Recognises the family of a model by its template's text and its vocabulary.

use super::Format;

/// A row of the table: a format, and texts that give it away. One of `written` in the template is enough, where all texts of it
/// must occur; or else all of `tokens` in the vocabulary, if there are any.
struct Clue {
    format: Format,
    written: &'static [&'static [&'static str]],
    tokens: &'static [&'static str],
}

const fn clue(
    format: Format,
    written: &'static [&'static [&'static str]],
    tokens: &'static [&'static str],
) -> Clue {
    Clue { format, written, tokens }
}

/// The families, the most particular marks first: the first row that fits wins.
const CLUES: [Clue; 27] = [
    clue(Format::Inkling, &[&["<|content_invoke_tool_json|>"]], &["<|content_invoke_tool_json|>"]),
    clue(
        Format::GigaChat,
        &[&["<|function_call|>", "<|role_sep|>"], &["function call", "<|role_sep|>"]],
        &["<|function_call|>", "<|role_sep|>"],
    ),
    clue(Format::MiniMax3, &[&["]<]minimax[>["]], &["]<]minimax[>["]),
    clue(Format::MiniMax, &[&["<minimax:tool_call>"]], &["<minimax:tool_call>"]),
    clue(Format::Dsml, &[&["DSML"]], &["｜DSML｜"]),
    clue(Format::DeepSeek, &[&["tool▁calls▁begin"]], &["<｜tool▁calls▁begin｜>"]),
    clue(Format::Kimi, &[&["<|tool_call_begin|>"]], &["<|tool_call_begin|>"]),
    clue(Format::KimiK3, &[&["<|open|>", "<|sep|>"]], &["<|open|>", "<|close|>", "<|sep|>"]),
    clue(Format::Seed, &[&["<seed:tool_call>"]], &["<seed:tool_call>"]),
    clue(Format::Horizon, &[&["<ifm|arg_key>"], &["<ifm|tool_call"]], &["<ifm|tool_calls>"]),
    // The template builds the marks, so none is in its text.
    clue(Format::Hy3, &[&["arg_key", "opensource"]], &["<tool_call:opensource>"]),
    clue(Format::Glm, &[&["<arg_key>"]], &["<arg_key>", "<arg_value>"]),
    clue(Format::ChatMl, &[&["<function=", "<parameter="]], &[]),
    clue(Format::MiniCpm5, &[&["<function name=", "<param name="]], &[]),
    clue(Format::Gemma4, &[&["<|tool_call>call:"]], &[]),
    clue(Format::Mistral, &[&["[TOOL_CALLS]"]], &[]),
    clue(
        Format::Lfm2,
        &[&["<|tool_call_start|>"], &["List of tools: ["], &["<|tool_list_start|>"]],
        &["<|tool_call_start|>"],
    ),
    clue(Format::Command, &[&["<|START_ACTION|>"]], &["<|START_ACTION|>"]),
    clue(Format::Nemotron2, &[&["<TOOLCALL>"]], &["<TOOLCALL>"]),
    clue(
        Format::Granite3,
        &[&["<|tool_call|>"], &[" functools["], &["<|tool|>", "<|/tool|>"]],
        &["<|tool_call|>"],
    ),
    clue(Format::ToolCalls, &[&["<tool_calls>"]], &["<tool_calls>"]),
    clue(Format::Apertus, &[&["<|tools_prefix|>"]], &["<|tools_prefix|>"]),
    clue(Format::Solar, &[&["<|tool_call:begin|>"]], &["<|tool_call:begin|>"]),
    // JSON in these tags.
    clue(Format::Functionary, &[&["<function=", "</function>"]], &[]),
    clue(Format::Llama, &[&["<|python_tag|>"], &["ipython"]], &[]),
    clue(Format::ChatMl, &[&["<tool_call>"], &["<think>"], &["</think>"]], &["<think>"]),
    // Vocabularies of bases, on which other families are built: they count last.
    clue(Format::Mistral, &[], &["[TOOL_CALLS]"]),
];

/// Tokens that count where neither a template nor another token does.
const LAST: [(Format, &str); 5] = [
    (Format::Mistral, "[THINK]"),
    (Format::ChatMl, "<tool_call>"),
    (Format::Llama, "<|python_tag|>"),
    (Format::Llama, "<|python_start|>"),
    (Format::Command, "<|START_THINKING|>"),
];

impl Format {
    /// Derives the format of a model from its template's text and from the marks that are a `token` of their own.
    ///
    /// The template decides: it has been written for the model, and a vocabulary may be that of the model's base. The vocabulary decides
    /// where the template names no marks. Two families are known by their vocabulary first, because no other model has these tokens.
    pub(crate) fn of(template: Option<&str>, token: impl Fn(&str) -> bool) -> Format {
        let all = |texts: &[&str]| texts.iter().all(|text| token(text));
        if template.is_some_and(|template| template.contains("<atem:function_calls>")) {
            return Format::Muse;
        }
        if all(&["<|channel|>", "<|message|>"]) {
            return Format::Harmony;
        }
        if all(&["<|channel>", "<channel|>"]) {
            return Format::Gemma4;
        }
        let written = |clue: &&Clue| {
            let of = |texts: &&[&str]| {
                template.is_some_and(|template| texts.iter().all(|text| template.contains(text)))
            };
            clue.written.iter().any(of)
        };
        let in_vocabulary = |clue: &&Clue| !clue.tokens.is_empty() && all(clue.tokens);
        let found = CLUES.iter().find(written).or_else(|| CLUES.iter().find(in_vocabulary));
        let last = || LAST.iter().find(|(_, text)| token(text)).map(|(format, _)| *format);
        found.map(|clue| clue.format).or_else(last).unwrap_or(Format::Plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(template: &str) -> Format {
        Format::of(Some(template), |_| false)
    }

    #[test]
    fn the_most_particular_mark_of_a_template_decides() {
        for (template, format) in [
            ("<think></think><minimax:tool_call>", Format::MiniMax),
            ("{{ '<｜DSML｜function_calls>' }}<think>", Format::Dsml),
            ("<think><｜tool▁calls▁begin｜>", Format::DeepSeek),
            ("<|tool_calls_section_begin|><|tool_call_begin|>", Format::Kimi),
            ("<|open|>think<|sep|>", Format::KimiK3),
            ("<seed:tool_call><function=<parameter=", Format::Seed),
            ("<tool_call>{{ name }}<arg_key>", Format::Glm),
            ("{{ '<arg_key:%s>' | format('opensource') }}", Format::Hy3),
            ("<tool_call><function=f><parameter=k>", Format::ChatMl),
            ("<think>[TOOL_CALLS]", Format::Mistral),
            ("List of tools: [", Format::Lfm2),
            ("<|START_THINKING|><|START_ACTION|>", Format::Command),
            ("<think><TOOLCALL>", Format::Nemotron2),
            ("<think><|tool_call|>", Format::Granite3),
            ("<tool_calls>[ not <tool_call>", Format::ToolCalls),
            ("<|inner_prefix|><|tools_prefix|>", Format::Apertus),
            ("<|think|><|tool_call:begin|>", Format::Solar),
            ("Environment: ipython", Format::Llama),
            ("<tool_call>\\n{\"name\"", Format::ChatMl),
            ("<param name='<function name='", Format::MiniCpm5),
            ("<ifm|tool_call>", Format::Horizon),
            ("<|role_sep|> function call", Format::GigaChat),
            ("<atem:function_calls>", Format::Muse),
            ("<|message_model|><|content_invoke_tool_json|>", Format::Inkling),
            ("ipython <function=f>{}</function>", Format::Functionary),
            ("{{ messages }}", Format::Plain),
        ] {
            assert_eq!(written(template), format, "{template}");
        }
    }

    #[test]
    fn each_format_has_a_name_of_its_own() {
        for format in Format::ALL {
            let name = format.name();
            assert!(!name.is_empty() && !name.contains(char::is_uppercase), "{format:?}: {name:?}");
            assert_eq!(Format::named(name), Some(format));
        }
        assert_eq!((Format::named(""), Format::named("Kimi")), (None, None));
    }

    /// The formats of the templates in the folder that `ALIGHT_TEMPLATES` names (llama.cpp's `models/templates`), if it does. A file's
    /// name says which it is.
    #[test]
    fn published_templates() {
        let Some(folder) = std::env::var_os("ALIGHT_TEMPLATES") else { return };
        let mut found = 0;
        for (name, format) in PUBLISHED {
            let path = std::path::Path::new(&folder).join(format!("{name}.jinja"));
            let Ok(template) = std::fs::read_to_string(path) else { continue };
            let format_found = Format::of(Some(&template), |text| {
                // The vocabularies are not there: these have the tokens.
                matches!(format, Format::Harmony | Format::Gemma4) && template.contains(text)
            });
            assert_eq!(format_found, format, "{name}");
            found += 1;
        }
        assert!(found > 40, "{found} of the templates are in the folder");
    }

    const PUBLISHED: [(&str, Format); 68] = [
        ("GigaChat3-10B-A1.8B", Format::GigaChat),
        ("GigaChat3.1-10B-A1.8B", Format::GigaChat),
        ("llm-jp-llm-jp-4.1-8b-thinking", Format::Harmony),
        ("meetkai-functionary-medium-v3.1", Format::Functionary),
        ("muse-glimmer", Format::Muse),
        ("Apertus-8B-Instruct", Format::Apertus),
        ("Apriel-1.6-15b-Thinker-fixed", Format::ToolCalls),
        ("Bielik-11B-v3.0-Instruct", Format::ChatMl),
        ("ByteDance-Seed-OSS", Format::Seed),
        ("Cohere2MoE", Format::Command),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", Format::Command),
        ("GLM-4.6", Format::Glm),
        ("GLM-4.7-Flash", Format::Glm),
        ("HuggingFaceTB-SmolLM3-3B", Format::ChatMl),
        ("Kimi-K2-Instruct", Format::Kimi),
        ("Kimi-K2-Thinking", Format::Kimi),
        ("moonshotai-Kimi-K2", Format::Kimi),
        ("Kimi-K3", Format::KimiK3),
        ("LFM2-8B-A1B", Format::Lfm2),
        ("LFM2.5-8B-A1B", Format::Lfm2),
        ("LFM2.5-Instruct", Format::Lfm2),
        ("MiMo-VL", Format::ChatMl),
        ("MiniMax-M1", Format::ToolCalls),
        ("MiniMax-M2", Format::MiniMax),
        ("MiniMax-M3", Format::MiniMax3),
        ("Mistral-Small-3.2-24B-Instruct-2506", Format::Mistral),
        ("mistralai-Ministral-3-14B-Reasoning-2512", Format::Mistral),
        ("mistralai-Mistral-Nemo-Instruct-2407", Format::Mistral),
        ("unsloth-mistral-Devstral-Small-2507", Format::Mistral),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", Format::ChatMl),
        ("NVIDIA-Nemotron-Nano-v2", Format::Nemotron2),
        ("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", Format::ChatMl),
        ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", Format::ChatMl),
        ("Qwen-QwQ-32B", Format::ChatMl),
        ("Qwen-Qwen2.5-7B-Instruct", Format::ChatMl),
        ("Qwen-Qwen3-0.6B", Format::ChatMl),
        ("Qwen3-Coder", Format::ChatMl),
        ("Qwen3.5-4B", Format::ChatMl),
        ("Reka-Edge", Format::ChatMl),
        ("Spark2.5", Format::Glm),
        ("inclusionai-ling-3.0-flash", Format::Glm),
        ("poolside-Laguna-S-2.1", Format::Glm),
        ("poolside-Laguna-XS-2.1", Format::Glm),
        ("poolside-Laguna-XS.2", Format::Glm),
        ("StepFun3.5-Flash", Format::ChatMl),
        ("deepseek-ai-DeepSeek-R1-Distill-Llama-8B", Format::DeepSeek),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", Format::DeepSeek),
        ("llama-cpp-deepseek-r1", Format::DeepSeek),
        ("deepseek-ai-DeepSeek-V3.1", Format::DeepSeek),
        ("deepseek-ai-DeepSeek-V3.2", Format::Dsml),
        ("deepseek-ai-DeepSeek-V4-Flash-0731", Format::Dsml),
        ("deepseek-ai-DeepSeek-V4", Format::Dsml),
        ("fireworks-ai-llama-3-firefunction-v2", Format::Granite3),
        ("google-gemma-2-2b-it", Format::Plain),
        ("google-gemma-4-31B-it-interleaved", Format::Gemma4),
        ("google-gemma-4-31B-it", Format::Gemma4),
        ("ibm-granite-granite-3.3-2B-Instruct", Format::Granite3),
        ("ibm-granite-granite-4.0", Format::ChatMl),
        ("ibm-granite-granite-4.1", Format::ChatMl),
        ("meta-llama-Llama-3.1-8B-Instruct", Format::Llama),
        ("meta-llama-Llama-3.2-3B-Instruct", Format::Llama),
        ("meta-llama-Llama-3.3-70B-Instruct", Format::Llama),
        ("microsoft-Phi-3.5-mini-instruct", Format::Plain),
        ("openai-gpt-oss-120b", Format::Harmony),
        ("openbmb-MiniCPM5-1B", Format::MiniCpm5),
        ("tencent-Hy3", Format::Hy3),
        ("unsloth-Apriel-1.5", Format::ToolCalls),
        ("upstage-Solar-Open-100B", Format::Solar),
    ];

    #[test]
    fn the_vocabulary_decides_where_the_template_names_no_marks() {
        for (tokens, format) in [
            (&["<｜tool▁calls▁begin｜>", "<think>"][..], Format::DeepSeek),
            (&["<|tool_call_begin|>", "<think>"], Format::Kimi),
            (&["<tool_call>"], Format::ChatMl),
            (&["[THINK]"], Format::Mistral),
            (&["<|python_tag|>"], Format::Llama),
            (&["<tool_call:opensource>"], Format::Hy3),
        ] {
            let token = |text: &str| tokens.contains(&text);
            assert_eq!(Format::of(Some("{{ messages }}"), token), format, "{tokens:?}");
            assert_eq!(Format::of(None, token), format, "{tokens:?}");
        }
    }
}
