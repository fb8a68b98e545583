//! The parts that all requests for an answer have in common, whatever the client: the model, the prompt's tokens, the sampling
//! options, and the place in the engine.

use alight_chat::answer::{AnswerOptions, Tools};
use alight_chat::body::conversation::{ToolChoice, encode};
use alight_chat::body::fields::{Fields, kind};
use alight_chat::body::refusal::{Refusal, TOO_LONG};
use alight_chat::body::{messages, options, thinking};
use alight_chat::grammar::{self, AnswerRules, Calls, Held, MAX_GRAMMAR_MEMORY};
use alight_chat::thinking::ThinkingBudget;
use alight_chat::worker::GenerateRequest;
use alight_model::Request;
use alight_text::infill::Gap;
use alight_text::output::Format;
use alight_text::prompt::{TooLong, check_length};
use alight_text::{EncodeOptions, Encoder, PromptError, Style};
use serde_json::{Map, Value, json};

use crate::apart::{is_cancelled, note, warn};
use crate::failure::Failure;
use crate::http::Call;
use crate::ids;
use crate::models::Serving;
use crate::worker::{self, Running};

/// Maximum number of answers to a request.
pub(crate) const MAX_CHOICES: usize = 128;
/// Maximum number of tokens whose logits are changed.
const MAX_BIASES: usize = 4096;

/// The note about a text that does not fit and is truncated.
const CUT: &str = "a text is cut to the context";

/// The note about tools that the template does not show.
const TOOLS_IN_WORDS: &str =
    "the template shows no tools in a known notation: they are described in words";

/// Returns the model that a body names.
pub(crate) fn model<'s>(call: &'s Call, fields: &mut Fields) -> Result<&'s Serving, Failure> {
    call.serving(fields.string("model")?.as_deref())
}

/// Takes the options by which a request's answers are generated.
pub(crate) fn ask(
    call: &Call,
    serving: &Serving,
    fields: &mut Fields,
    calls: Calls<'_>,
) -> Result<GenerateRequest, Failure> {
    let mut defaults = call.server.options.sampling;
    if !call.server.options.fixed_seed {
        defaults.seed = ids::random() >> 32;
    }
    let most = call.server.options.max_tokens;
    let (sampling, max_tokens) = options::sampling(fields, &defaults, most)?;
    let logit_bias = biases(fields, serving)?;
    let grammar = grammar::take(fields, calls, &serving.grammars).map_err(|why| match calls {
        Calls::May(tools) => of_tool(why.into(), tools, tools),
        Calls::None | Calls::Must => why.into(),
    })?;
    warn_of_left_out(grammar.as_ref());
    let ignore_eos = fields.truth("ignore_eos")?.unwrap_or(false);
    let ignore_eos = ignore_eos && AnswerRules::of(grammar.as_ref()).past_end;
    options::refuse_unsupported(fields)?;
    let salt = call.salt.clone();
    let request =
        Request { sampling, logit_bias, max_tokens, ignore_eos, salt, ..Request::default() };
    Ok(GenerateRequest { request, grammar, ..GenerateRequest::default() })
}

/// Warns of each keyword of a schema that no grammar can hold, of those that the client does not insist on.
fn warn_of_left_out(grammar: Option<&Held>) {
    for keyword in grammar.map(Held::left_out).unwrap_or_default() {
        warn(&format!("the answer is not held to {keyword} of its schema"));
    }
}

/// Names the tool among `listed` whose grammar failed by its name, and by its place among all tools of the request.
fn of_tool(failure: Failure, listed: &[Value], all: &[Value]) -> Failure {
    let Some((index, field)) = failure.tool() else { return failure };
    let Some(name) = listed.get(index).and_then(|tool| tool["function"]["name"].as_str()) else {
        return failure;
    };
    let place = all.iter().position(|tool| tool["function"]["name"] == name).unwrap_or(index);
    let (param, name) = (format!("tools[{place}]{field}"), format!("tool {name:?}: "));
    failure.renamed(param, &name)
}

/// Takes the biases that are added to the logits of tokens: an object keyed by token id, as in OpenAI's API, or a list of pairs, as
/// in llama-server's.
fn biases(fields: &mut Fields, serving: &Serving) -> Result<Vec<(u32, f32)>, Failure> {
    let vocab = serving.vocabulary().tokenizer.vocab_size();
    let what = format!(
        "an object of numbers by ids of tokens below {vocab}, at most {MAX_BIASES}, or a list of pairs of them"
    );
    let pair = |id: Option<u32>, bias: &Value| {
        let id = id.filter(|id| (*id as usize) < vocab)?;
        let bias = match bias {
            Value::Bool(false) => f32::NEG_INFINITY,
            bias => Some(bias.as_f64()? as f32).filter(|bias| bias.is_finite())?,
        };
        Some((id, bias))
    };
    let biases = fields.read("logit_bias", &what, |value| match &value {
        Value::Object(all) if all.len() <= MAX_BIASES => {
            all.iter().map(|(id, bias)| pair(id.parse().ok(), bias)).collect()
        }
        Value::Array(all) if all.len() <= MAX_BIASES => all
            .iter()
            .map(|one| {
                let id = one[0].as_u64().and_then(|id| u32::try_from(id).ok());
                pair(id, &one[1])
            })
            .collect::<Option<Vec<(u32, f32)>>>(),
        _ => None,
    })?;
    Ok(biases.unwrap_or_default())
}

/// The failure for a text that is too long for the context whatever its tokens are.
fn too_long(why: TooLong) -> Failure {
    Refusal::new(TOO_LONG, why.to_string()).into()
}

/// Returns the tokens of a conversation, as a template renders it.
pub(crate) fn conversation(
    context: Map<String, Value>,
    serving: &Serving,
) -> Result<Vec<u32>, Failure> {
    let vocabulary = serving.vocabulary();
    let bytes = context["messages"].as_array().map_or(0, |all| messages::bytes(all));
    check_length(bytes, &vocabulary.tokenizer, serving.worker.context()).map_err(too_long)?;
    let encoder = Encoder::new(vocabulary, Style::Chat, false).until(is_cancelled);
    let refused = |error: PromptError| match error {
        PromptError::NoTemplate => Failure::invalid(format!(
            "{error}: ask /v1/completions to continue a text, or start the server with --chat-template-file"
        )),
        error => error.into(),
    };
    let encoded = encode(&encoder, context).map_err(refused)?;
    if encoded.tools_in_words {
        warn(TOOLS_IN_WORDS);
        serving.report_tools_in_words();
    }
    encoded.notes.iter().for_each(|sentence| warn(sentence));
    Ok(encoded.tokens)
}

/// Gives the variables about thinking the names and values that the template has. Returns the maximum number of tokens of thinking.
pub(crate) fn fit_thinking(
    context: &mut Map<String, Value>,
    may_think: bool,
    serving: &Serving,
) -> Option<usize> {
    let fitted = thinking::fit_for(context, serving.vocabulary(), may_think);
    if !may_think {
        note("without thinking, because the answer follows a grammar");
    }
    if !fitted.effort_is_known {
        note("the template has no reasoning effort");
    }
    fitted.budget
}

/// Returns the prompt of a conversation, and how its answer is to be parsed. If tools must be called, the answer is constrained to such
/// calls; otherwise to the grammar of `ask`, if it has one. Without either, calls of strict tools are constrained to their schemas. If the
/// prompt opens thinking, each of them begins where the thinking ends.
pub(crate) fn chat(
    mut context: Map<String, Value>,
    choice: &ToolChoice,
    stops: Vec<String>,
    ask: &mut GenerateRequest,
    serving: &Serving,
) -> Result<(Vec<u32>, AnswerOptions), Failure> {
    let call = !choice.must.is_empty();
    let all = context.get("tools").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if call {
        let held = grammar::of_calls(&choice.must, choice.one, &serving.grammars);
        ask.grammar = Some(held.map_err(|why| of_tool(why.into(), &choice.must, all))?);
        warn_of_left_out(ask.grammar.as_ref());
        ask.request.ignore_eos = false;
    }
    let held = ask.grammar.is_some();
    let rules = AnswerRules::of(ask.grammar.as_ref());
    let budget = fit_thinking(&mut context, rules.thinking, serving);
    let given = context.get("tools").and_then(Value::as_array);
    let tools = given.filter(|_| rules.marks).map(|tools| Tools::of(tools));
    if let Some(may_call) = given.filter(|_| !held) {
        let held = grammar::of_strict_calls(may_call, &serving.grammars);
        ask.grammar = held.map_err(|why| of_tool(why.into(), may_call, may_call))?;
        warn_of_left_out(ask.grammar.as_ref());
    }
    let vocabulary = serving.vocabulary();
    for name in &choice.with_grammar {
        warn(&format!("the input of the tool {name:?} is not held to its grammar"));
    }
    let mut prompt = conversation(context, serving)?;
    let mut chat = rules.marks;
    if call && !rules.marks {
        // A call without any mark: as the model would begin it.
        if matches!(vocabulary.output_format(), Format::ChatMl | Format::Glm) {
            let options = EncodeOptions { add_bos: Some(false), parse_special: true };
            let mark = vocabulary.tokenizer.encode("<tool_call>\n", options);
            prompt.extend(mark.map_err(|error| Failure::invalid(error.to_string()))?);
        }
    } else if let Some(held) = ask.grammar.take() {
        let held = held.after(&prompt, vocabulary);
        chat = AnswerRules::of(Some(&held)).marks;
        ask.grammar = Some(held);
    }
    let may_think = AnswerRules::of(ask.grammar.as_ref()).thinking;
    let budget = budget.filter(|_| may_think);
    ask.thinking = budget.map(|tokens| ThinkingBudget::new(tokens, vocabulary, tools.clone()));
    let (one_call, custom) = (choice.one, choice.custom.clone());
    let asked = AnswerOptions { chat, tools, call, one_call, custom, stops, ..Default::default() };
    Ok((prompt, asked))
}

/// Takes at most `most` texts to be computed: a text, its tokens, or a list of either. If `cut` is true, a text that is too long is truncated
/// to the context.
pub(crate) fn texts(
    fields: &mut Fields,
    name: &'static str,
    most: usize,
    cut: bool,
    serving: &Serving,
) -> Result<Vec<Vec<u32>>, Failure> {
    let missing = || Refusal::invalid(name, "it is missing");
    let all = match fields.any(name).ok_or_else(missing)? {
        Value::Array(items) if items.iter().any(|item| !item.is_number()) => items,
        one => vec![one],
    };
    if all.len() > most {
        let message = format!("there are {}, expected at most {most}", all.len());
        return Err(Refusal::invalid(name, message).into());
    }
    let vocabulary = serving.vocabulary();
    let encoder = Encoder::new(vocabulary, Style::Raw, false).until(is_cancelled);
    let context = serving.worker.context();
    let one = |value: Value| match value {
        Value::String(mut text) => {
            match check_length(text.len(), &vocabulary.tokenizer, context) {
                Err(why) if cut => {
                    note(CUT);
                    text.truncate(text.floor_char_boundary(why.most));
                }
                checked => {
                    checked.map_err(too_long)?;
                }
            }
            Ok(encoder.raw(&text)?)
        }
        Value::Array(ids) if !ids.is_empty() && ids.iter().all(Value::is_u64) => {
            let ids = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            let ids: Option<Vec<u32>> = ids.collect();
            let ids = ids.ok_or_else(|| Refusal::invalid(name, "a token's id is too large"))?;
            let vocab = vocabulary.tokenizer.vocab_size();
            if ids.iter().any(|id| *id as usize >= vocab) {
                let message = format!("a token's id is not below {vocab}, the number of tokens");
                return Err(Refusal::invalid(name, message).into());
            }
            Ok(ids)
        }
        other => {
            let message = format!("it is {}, expected a text or a list of token ids", kind(&other));
            Err(Refusal::invalid(name, message).into())
        }
    };
    // Before the next text is encoded.
    let fitting = |mut tokens: Vec<u32>| {
        if cut {
            if tokens.len() > context {
                note(CUT);
            }
            tokens.truncate(context);
        } else if tokens.len() > context {
            return Err(Failure::too_long(tokens.len(), context));
        }
        Ok(tokens)
    };
    let one = |value: Value| {
        if is_cancelled() { Err(Failure::ending()) } else { one(value).and_then(fitting) }
    };
    all.into_iter().map(one).collect()
}

/// Returns the tokens of a prompt that asks for the text that fills a gap.
pub(crate) fn infill(
    gap: &Gap,
    serving: &Serving,
    ask: &GenerateRequest,
) -> Result<Vec<u32>, Failure> {
    let context = serving.worker.context();
    // The other texts are read only as far as they are used.
    check_length(gap.line.len(), &serving.vocabulary().tokenizer, context).map_err(too_long)?;
    let encoder = Encoder::new(serving.vocabulary(), Style::Raw, false).until(is_cancelled);
    Ok(encoder.infill(gap, options::around_gap(context, ask.request.max_tokens))?)
}

/// Refuses prompts that are longer than the context.
pub(crate) fn check_fit(prompts: &[Vec<u32>], serving: &Serving) -> Result<(), Failure> {
    let context = serving.worker.context();
    match prompts.iter().find(|prompt| prompt.len() > context) {
        Some(long) => Err(Failure::too_long(long.len(), context)),
        None => Ok(()),
    }
}

/// Refuses answers whose grammars, one for each, take too much memory.
fn check_grammars(bytes: usize, answers: usize) -> Result<(), Refusal> {
    if answers < 2 || bytes.saturating_mul(answers) <= MAX_GRAMMAR_MEMORY {
        return Ok(());
    }
    let message = format!(
        "{answers} answers, each with a grammar of {} KiB, take more than {} MiB: ask for fewer answers, or for a simpler grammar",
        bytes.div_ceil(1 << 10),
        MAX_GRAMMAR_MEMORY >> 20
    );
    Err(Refusal::invalid("n", message))
}

/// Starts `n` answers to each prompt, with consecutive seeds.
pub(crate) fn begin(
    serving: &Serving,
    prompts: Vec<Vec<u32>>,
    n: usize,
    ask: &GenerateRequest,
) -> Result<Vec<(Running, Vec<u32>)>, Failure> {
    check_fit(&prompts, serving)?;
    check_grammars(ask.grammar.as_ref().map_or(0, Held::bytes), prompts.len().saturating_mul(n))?;
    let mut asks = Vec::new();
    for prompt in &prompts {
        for i in 0..n {
            let mut ask = ask.clone();
            ask.request.prompt.clone_from(prompt);
            let seed = &mut ask.request.sampling.seed;
            *seed = seed.wrapping_add(i as u64);
            asks.push(ask);
        }
    }
    let prompts: Vec<Vec<u32>> = asks.iter().map(|ask| ask.request.prompt.clone()).collect();
    let running = worker::generate(&serving.worker, &serving.errors, asks)?;
    Ok(running.into_iter().zip(prompts).collect())
}

/// Returns a tool call in the format of templates.
pub(crate) fn tool_call(id: &Value, name: &Value, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}
