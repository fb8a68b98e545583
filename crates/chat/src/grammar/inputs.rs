//! Custom tools, whose input is a text that may follow a grammar: their functions with the grammar as the pattern of their only parameter.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;

use super::{Grammars, NotHeld, REGEX, Wanted, lark};
use crate::body::refusal::Refusal;
use crate::body::tools::{CustomGrammar, INPUT};

/// The patterns of the inputs of custom tools.
#[derive(Debug, Default)]
pub struct CustomInputs {
    /// By the name of the function.
    patterns: HashMap<String, String>,
}

impl CustomInputs {
    /// Reads the grammars of a request. A prompt shows them as the client wrote them.
    ///
    /// # Errors
    /// A grammar is none, is of an unknown language, or cannot be held within a call.
    pub fn of(all: &[CustomGrammar], grammars: &Grammars) -> Result<CustomInputs, NotHeld> {
        let mut patterns = HashMap::new();
        for one in all {
            let expression = expression(one)?;
            grammars.compiled(&one.param, Wanted::Regex(expression.clone()))?;
            patterns.insert(one.function.clone(), format!("^(?:{expression})$"));
        }
        Ok(CustomInputs { patterns })
    }

    /// The tools with the patterns of their inputs, from which no call departs.
    pub fn hold<'t>(&self, tools: &'t [Value]) -> Cow<'t, [Value]> {
        if self.patterns.is_empty() {
            return Cow::Borrowed(tools);
        }
        let mut tools = tools.to_vec();
        for tool in &mut tools {
            let function = &mut tool["function"];
            let pattern = function["name"].as_str().and_then(|name| self.patterns.get(name));
            if let Some(pattern) = pattern {
                function["parameters"]["properties"][INPUT]["pattern"] = pattern.as_str().into();
                function["strict"] = true.into();
            }
        }
        Cow::Owned(tools)
    }
}

/// The regular expression of an input, without anchors.
fn expression(
    CustomGrammar { param, syntax, definition, .. }: &CustomGrammar,
) -> Result<String, Refusal> {
    match &**syntax {
        "regex" => {
            let begun = definition.strip_prefix('^').unwrap_or(definition);
            let ended = begun.strip_suffix('$').filter(|rest| !rest.ends_with('\\'));
            Ok(ended.unwrap_or(begun).to_owned())
        }
        "lark" => lark::expression(definition, REGEX).map_err(|why| {
            let advice = "leave out the format, and describe the input in the tool's description";
            Refusal::invalid(param, format!("{why} ({advice})"))
        }),
        other => {
            let why = format!("its syntax is {other:?}, expected \"lark\" or \"regex\"");
            Err(Refusal::invalid(param, why))
        }
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use alight_text::format::Format;
    use serde_json::json;

    use super::super::Compiler;
    use super::super::notation::Writer;
    use super::*;
    use crate::body::tools::of_custom;

    /// The grammar of patches that Codex has its models write, in short.
    const PATCH: &str = "start: begin_patch hunk+ end_patch\nbegin_patch: \"*** Begin Patch\" LF\nend_patch: \"*** End Patch\" LF?\n\
        hunk: add_hunk | delete_hunk\nadd_hunk: \"*** Add File: \" filename LF add_line+\ndelete_hunk: \"*** Delete File: \" filename LF\n\
        filename: /(.+)/\nadd_line: \"+\" /(.*)/ LF -> line\n%import common.LF\n";

    fn grammar(syntax: &str, definition: &str) -> CustomGrammar {
        let (syntax, definition) = (syntax.to_owned(), definition.to_owned());
        let param = "tools[0].format.definition".to_owned();
        CustomGrammar { function: "edit".to_owned(), param, syntax, definition }
    }

    /// True if a call of the tool with this grammar may be written like this.
    fn accepts(format: Format, template: &str, of: &CustomGrammar, call: &str) -> bool {
        let pattern = format!("^(?:{})$", expression(of).unwrap());
        let inputs = CustomInputs { patterns: HashMap::from([("edit".to_owned(), pattern)]) };
        let tools = [of_custom("edit", &Value::Null, &Value::Null)];
        let (has, none) = (|text: &str| template.contains(text), |_: &str| None);
        let writer = Writer::new(format, &has, &none).unwrap();
        let rules = writer.rules(&inputs.hold(&tools), true).unwrap();
        let lark = format!("start: calls\n{rules}");
        let compiled = Compiler::of_bytes().compile(Wanted::Calls(lark.clone()));
        let mut grammar = compiled.unwrap_or_else(|why| panic!("{format:?} {why}\n{lark}"));
        grammar.accept_text(call.as_bytes())
    }

    #[test]
    fn the_input_of_a_custom_tool_is_held_to_its_grammar_in_each_kind_of_notation() {
        let patch = "*** Begin Patch\n*** Add File: a/b.txt\n+x \"y\"\n+\n*** Delete File: c\n*** End Patch";
        let date = "^\\d{4}/(?P<month>[0-9]{2})$";
        for (of, right, wrong) in [
            (grammar("lark", PATCH), patch, "*** Begin Patch\nx"),
            (grammar("regex", date), "2026/11", "26/11"),
        ] {
            for (format, template, before, after, quoted) in [
                (
                    Format::ChatMl,
                    "",
                    "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"input\": ",
                    "}}\n</tool_call>",
                    true,
                ),
                (
                    Format::ChatMl,
                    "<function=<parameter=",
                    "<tool_call>\n<function=edit>\n<parameter=input>\n",
                    "\n</parameter>\n</function>\n</tool_call>",
                    false,
                ),
                (
                    Format::Glm,
                    "",
                    "<tool_call>edit<arg_key>input</arg_key><arg_value>",
                    "</arg_value></tool_call>",
                    false,
                ),
                (
                    Format::Gemma4,
                    "",
                    "<|tool_call>call:edit{input:<|\"|>",
                    "<|\"|>}<tool_call|>",
                    false,
                ),
                (Format::Lfm2, "", "<|tool_call_start|>[edit(input=", ")]<|tool_call_end|>", true),
                (
                    Format::MiniMax3,
                    "",
                    "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"edit\">]<]minimax[>[<input>",
                    "]<]minimax[>[</input>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
                    false,
                ),
            ] {
                let written = |input: &str| match quoted {
                    true => format!("{before}{}{after}", json!(input)),
                    false => format!("{before}{input}{after}"),
                };
                assert!(accepts(format, template, &of, &written(right)), "{format:?} {right}");
                assert!(!accepts(format, template, &of, &written(wrong)), "{format:?} {wrong}");
            }
        }
    }

    #[test]
    fn a_grammar_that_cannot_be_held_is_refused_by_its_field() {
        for (of, wanted) in [
            (grammar("ebnf", "a"), "its syntax is \"ebnf\", expected \"lark\" or \"regex\""),
            (grammar("lark", "start: \"(\" start \")\" |"), "the rule \"start\" occurs in itself"),
        ] {
            let refusal = expression(&of).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some("tools[0].format.definition"));
            assert!(refusal.message.contains(wanted), "{}", refusal.message);
        }
    }
}
