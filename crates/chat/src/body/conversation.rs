//! The conversation of a body, with its tools and the other variables of a chat template.

use alight_text::{Encoder, PromptError};
use serde_json::{Map, Value};

use super::accepted::{self, Accepted};
use super::fields::{Fields, kind};
use super::refusal::Refusal;
use super::tools::CustomGrammar;
use super::{in_words, messages, thinking, tools};

/// Hugging Face's names for the flag that the last message is continued instead of answered, and for the flag that the prompt ends with
/// the beginning of an answer.
const CONTINUED: &str = "continue_final_message";
const BEGUN: &str = "add_generation_prompt";

/// Returns the template variables for these messages.
pub fn context(messages: Vec<Value>) -> Map<String, Value> {
    Map::from_iter([("messages".to_owned(), messages.into()), (BEGUN.to_owned(), true.into())])
}

/// The tokens of a conversation.
pub struct Encoded {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// A sentence about each change with which the template takes the conversation, and about what it leaves out.
    pub notes: Vec<&'static str>,
    /// True if the template does not show tools, or not in a known notation, and the system message describes them in words.
    pub tools_in_words: bool,
}

/// Encodes a conversation, given as template variables. If the template refuses it, or leaves a part of it out, the messages get the
/// smallest changes with which it does neither. The beginning of a conversation keeps its changes when more follows.
///
/// # Errors
/// There is no template, or it rejects the conversation whatever is changed; the error is that of the unchanged one.
pub fn encode(
    encoder: &Encoder<'_>,
    mut context: Map<String, Value>,
) -> Result<Encoded, PromptError> {
    let unknown = !encoder.vocabulary().shows_tools()
        && in_words::describe_tools(encoder.vocabulary(), &mut context);
    let Accepted { tokens, notes, tools_in_words } = accepted::encode(encoder, context)?;
    Ok(Encoded { tokens, notes, tools_in_words: unknown || tools_in_words })
}

/// Takes the conversation of a body, as template variables. They include `tools` if the model may call any.
///
/// # Errors
/// Invalid messages or tools, or a choice of tools that cannot be met.
pub fn take(fields: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let (context, choice) = take_with_choice(fields)?;
    if !choice.custom.is_empty() {
        let why = "custom tools are not supported here, only functions";
        return Err(Refusal::unsupported("tools", why));
    }
    if choice.one {
        let why = "the number of calls cannot be limited here: only true is supported";
        return Err(Refusal::unsupported("parallel_tool_calls", why));
    }
    if choice.must.is_empty() {
        return Ok(context);
    }
    let why =
        "a model cannot be made to call a tool here: only \"auto\" and \"none\" are supported";
    Err(Refusal::unsupported("tool_choice", why))
}

/// The calls that a client wants in the answer to a conversation.
#[derive(Clone, Debug, Default)]
pub struct ToolChoice {
    /// The tools of which one must be called; if there are none, the model chooses.
    pub must: Vec<Value>,
    /// True if there may be one call only.
    pub one: bool,
    /// The names of the tools that get a text instead of arguments.
    pub custom: Vec<String>,
    /// The grammars that the texts of some of them follow.
    pub with_grammar: Vec<CustomGrammar>,
}

/// [`take`], with the calls that the client wants.
///
/// # Errors
/// As [`take`].
pub fn take_with_choice(fields: &mut Fields) -> Result<(Map<String, Value>, ToolChoice), Refusal> {
    let missing = || Refusal::invalid("messages", "they are missing");
    let given = fields.list("messages")?.ok_or_else(missing)?;
    let mut context = context(messages::for_template(given)?);
    let (continued, begun) = (fields.truth(CONTINUED)?, fields.truth(BEGUN)?);
    if (continued, begun) == (Some(true), Some(true)) {
        let why = format!(
            "it is true, and so is {CONTINUED}: an answer is begun, or a message continued, not both"
        );
        return Err(Refusal::invalid(BEGUN, why));
    }
    // A client that asks for the beginning of an answer wants a message of its own.
    let wanted = continued.or(begun.filter(|begun| *begun).map(|_| false));
    if is_continued(&context["messages"], wanted)? {
        context.insert(CONTINUED.to_owned(), true.into());
    }
    if let Some(begun) = begun {
        context.insert(BEGUN.to_owned(), begun.into());
    }
    let mut tools = fields.list("tools")?.filter(|tools| !tools.is_empty());
    let mut wanted = ToolChoice::default();
    for (i, tool) in tools.iter_mut().flatten().enumerate() {
        tools::to_function(tool, &format!("tools[{i}]"), &mut wanted)?;
    }
    let choice = fields.any("tool_choice").unwrap_or("auto".into());
    wanted.one = fields.truth("parallel_tool_calls")? == Some(false) && tools.is_some();
    let (tools, choice, allowed) = match (tools, allowed_tools(&choice)) {
        (Some(tools), Some(allowed)) => {
            let (mode, subset) = allowed_of(allowed, &tools)?;
            // A model that may choose sees only what it may call.
            let shown = if mode == "auto" { subset.clone() } else { tools };
            (Some(shown), Value::from(mode), Some(subset))
        }
        (tools, _) => (tools, choice, None),
    };
    let must_call = &mut wanted.must;
    match (tools, choice.as_str()) {
        (None, Some("auto" | "none")) | (Some(_), Some("none")) => {}
        (None, _) => return Err(Refusal::invalid("tool_choice", "there are no tools")),
        (Some(tools), choice_word) => {
            match (choice_word, named(&choice)) {
                (Some("auto"), _) => {}
                (Some("required" | "any"), _) => {
                    must_call.clone_from(allowed.as_ref().unwrap_or(&tools));
                }
                (None, Some(name)) => {
                    wanted.one = true;
                    must_call.extend(tools.iter().find(|tool| named(tool) == Some(name)).cloned());
                    if must_call.is_empty() {
                        let why = format!("there is no tool {name:?}");
                        return Err(Refusal::invalid("tool_choice", why));
                    }
                }
                _ => {
                    let why =
                        "expected \"auto\", \"none\", \"required\", or the name of a function";
                    return Err(Refusal::invalid("tool_choice", why));
                }
            }
            context.insert("tools".to_owned(), tools.into());
        }
    }
    thinking::take(fields, &mut context)?;
    for (key, value) in fields.object("chat_template_kwargs")?.unwrap_or_default() {
        if context.contains_key(&key) || ["tools", CONTINUED].contains(&&*key) {
            let param = format!("chat_template_kwargs.{key}");
            return Err(Refusal::invalid(param, "it is a field of its own"));
        }
        context.insert(key, value);
    }
    Ok((context, wanted))
}

/// Returns true if the last message is continued: an assistant message is, as with Anthropic and llama-server, unless `wanted` is false.
fn is_continued(messages: &Value, wanted: Option<bool>) -> Result<bool, Refusal> {
    let last = messages.as_array().and_then(|all| all.last());
    let calls = |last: &Value| last["tool_calls"].as_array().is_some_and(|all| !all.is_empty());
    let own = last.is_some_and(|last| last["role"] == "assistant" && !calls(last));
    if wanted == Some(true) && !own {
        return Err(Refusal::invalid(CONTINUED, "the last message is not a text of the assistant"));
    }
    Ok(wanted.unwrap_or(own))
}

/// The object of a choice among some of the tools: OpenAI's two APIs have it at different places.
fn allowed_tools(choice: &Value) -> Option<&Value> {
    let allowed = choice["type"] == "allowed_tools";
    allowed.then(|| choice.get("allowed_tools").unwrap_or(choice))
}

/// The mode of such a choice, and its tools.
fn allowed_of(allowed: &Value, tools: &[Value]) -> Result<(&'static str, Vec<Value>), Refusal> {
    let refused = |why: String| Refusal::invalid("tool_choice", why);
    let mode = match allowed["mode"].as_str() {
        Some("auto") => "auto",
        Some("required") => "required",
        _ => {
            let found = kind(&allowed["mode"]);
            let why = format!("its mode is {found}, expected \"auto\" or \"required\"");
            return Err(refused(why));
        }
    };
    let listed = allowed["tools"].as_array().filter(|listed| !listed.is_empty());
    let listed = listed.ok_or_else(|| refused("it has no list of tools".to_owned()))?;
    let mut names = Vec::new();
    for one in listed {
        let name = named(one).filter(|name| tools.iter().any(|tool| named(tool) == Some(name)));
        let found = named(one).map_or_else(|| kind(one), |name| format!("{name:?}"));
        names.push(name.ok_or_else(|| refused(format!("there is no tool {found}")))?);
    }
    let of = |tool: &&Value| named(tool).is_some_and(|name| names.contains(&name));
    Ok((mode, tools.iter().filter(of).cloned().collect()))
}

/// The name of a tool, or of the chosen one.
fn named(tool: &Value) -> Option<&str> {
    let names = [&tool["function"]["name"], &tool["custom"]["name"], &tool["name"]];
    names.into_iter().find_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_begun_or_a_message_continued() {
        let own = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let asked = json!([{"role": "user", "content": "a"}]);
        // With each pair of flags: whether the message is continued, and the variable of the template.
        for (messages, begun, continued, wanted) in [
            (&own, Value::Null, Value::Null, Some((true, true))),
            (&own, json!(false), json!(true), Some((true, false))),
            (&own, json!(false), Value::Null, Some((true, false))),
            (&own, json!(false), json!(false), Some((false, false))),
            (&own, json!(true), Value::Null, Some((false, true))),
            (&own, json!(true), json!(false), Some((false, true))),
            (&own, json!(true), json!(true), None),
            (&asked, json!(false), Value::Null, Some((false, false))),
            (&asked, json!(false), json!(true), None),
        ] {
            let body = json!({"messages": messages, BEGUN: begun, CONTINUED: continued});
            let taken = take(&mut Fields::new(body.as_object().unwrap().clone()));
            let got =
                taken.map(|context| (context.contains_key(CONTINUED), context[BEGUN] == true));
            assert_eq!(got.ok(), wanted, "{body}");
        }
    }

    #[test]
    fn a_client_chooses_the_calls() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let tools = [tool("f"), tool("g"), tool("h")];
        let some = |mode: &str, names: &[&str]| {
            let all: Value = names.iter().map(|name| tool(name)).collect();
            json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": all}})
        };
        let flat = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "h"}]});
        for (choice, parallel, shown, must, one) in [
            (json!("auto"), Value::Null, 3, "", false),
            (json!("auto"), json!(false), 3, "", true),
            (json!("required"), json!(true), 3, "fgh", false),
            (json!("required"), json!(false), 3, "fgh", true),
            (tool("g"), Value::Null, 3, "g", true),
            (some("auto", &["g", "f"]), Value::Null, 2, "", false),
            (some("required", &["g", "f"]), Value::Null, 3, "fg", false),
            (flat, Value::Null, 3, "h", false),
        ] {
            let messages = json!([{"role": "user", "content": "a"}]);
            let body = json!({"messages": messages, "tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel});
            let mut fields = Fields::new(body.as_object().unwrap().clone());
            let (context, wanted) = take_with_choice(&mut fields).unwrap();
            let names: String = wanted.must.iter().map(|tool| named(tool).unwrap()).collect();
            assert_eq!(context["tools"].as_array().unwrap().len(), shown, "{choice}");
            assert_eq!((&*names, wanted.one), (must, one), "{choice}");
        }
        for choice in [some("auto", &["x"]), some("never", &["f"]), some("auto", &[])] {
            let messages = json!([{"role": "user", "content": "a"}]);
            let body = json!({"messages": messages, "tools": tools, "tool_choice": choice});
            let mut fields = Fields::new(body.as_object().unwrap().clone());
            let refusal = take_with_choice(&mut fields).unwrap_err();
            assert_eq!(refusal.param.as_deref(), Some("tool_choice"));
        }
    }

    #[test]
    fn a_last_message_of_the_assistant_s_is_continued_unless_the_client_says_otherwise() {
        let called = json!([{"function": {"name": "f", "arguments": "{}"}}]);
        let said = |more: Value| {
            let mut last = json!({"role": "assistant", "content": "b"});
            last.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([{"role": "user", "content": "a"}, last])
        };
        for (messages, wanted, continued) in [
            (said(json!({})), Value::Null, Some(true)),
            (said(json!({"content": null, "tool_calls": []})), Value::Null, Some(true)),
            (said(json!({})), json!(false), Some(false)),
            (said(json!({"tool_calls": called})), Value::Null, Some(false)),
            (said(json!({"tool_calls": called})), json!(true), None),
            (said(json!({"role": "user"})), Value::Null, Some(false)),
            (said(json!({"role": "user"})), json!(true), None),
        ] {
            let body = json!({"messages": messages, CONTINUED: wanted});
            let taken = take(&mut Fields::new(body.as_object().unwrap().clone()));
            let got = taken.map(|context| context.contains_key(CONTINUED));
            assert_eq!(got.ok(), continued, "{body}");
        }
    }
}
