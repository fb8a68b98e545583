//! The parts that all requests for an answer have in common, whatever the client: the model, the prompt's tokens, the sampling
//! options, and the place in the engine.

use alight_chat::answer::{AnswerOptions, Tools};
use alight_chat::body::conversation::{ToolChoice, encode};
use alight_chat::body::declared::refused;
use alight_chat::body::fields::{Fields, kind, whole};
use alight_chat::body::refusal::{Refusal, TOO_LONG, UNSUPPORTED};
use alight_chat::body::thinking::{self, SWITCH};
use alight_chat::body::tools::CustomGrammar;
use alight_chat::body::{messages, options};
use alight_chat::grammar::{
    self, AnswerRules, Calls, CustomInputs, Held, MAX_GRAMMAR_MEMORY, NotHeld, PromptConstraint,
};
use alight_chat::thinking::ThinkingBudget;
use alight_chat::vectors::Vectors;
use alight_chat::worker::GenerateRequest;
use alight_model::{ModelSpec, Request};
use alight_text::infill::Gap;
use alight_text::output::Format;
use alight_text::prompt::{TooLong, check_length};
use alight_text::{EncodeOptions, Encoder, EncoderInput, PromptError, PromptPiece, Style};
use serde_json::{Map, Value, json};

use crate::apart::{is_cancelled, note, warn};
use crate::endpoints::NO_IMAGES;
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

/// The failure of a request for an answer to a model that writes none.
const NO_ANSWERS: &str = "the model makes vectors of texts, or scores them, and writes no answers: ask /v1/embeddings or /v1/rerank";

/// The note about tools that the template does not show.
const TOOLS_IN_WORDS: &str =
    "the template shows no tools in a known notation: they are described in words";

/// Returns the model that a body names.
pub(crate) fn model<'s>(call: &'s Call, fields: &mut Fields) -> Result<&'s Serving, Failure> {
    call.serving(fields.string("model")?.as_deref())
}

/// The same for vectors: without a name, the only model that makes nothing else.
pub(crate) fn model_of_vectors<'s>(
    call: &'s Call,
    fields: &mut Fields,
) -> Result<&'s Serving, Failure> {
    let of_vectors = |spec: &ModelSpec| !spec.generates() && spec.classifier.is_none();
    call.serving_for(fields.string("model")?.as_deref(), of_vectors)
}

/// The same for scores: without a name, the only model with a classifier.
pub(crate) fn model_of_scores<'s>(
    call: &'s Call,
    fields: &mut Fields,
) -> Result<&'s Serving, Failure> {
    call.serving_for(fields.string("model")?.as_deref(), |spec| spec.classifier.is_some())
}

/// Takes the options by which a request's answers are generated.
pub(crate) fn ask(
    call: &Call,
    serving: &Serving,
    fields: &mut Fields,
    calls: Calls<'_>,
) -> Result<GenerateRequest, Failure> {
    if !serving.model.spec().generates() {
        return Err(Failure::invalid(NO_ANSWERS));
    }
    let adapters = call.adapters(serving, fields)?;
    let mut defaults = call.server.options.sampling;
    if !call.server.options.fixed_seed {
        defaults.seed = ids::random() >> 32;
    }
    let most = call.server.options.max_tokens;
    let (sampling, max_tokens) = options::sampling(fields, &defaults, most)?;
    let breakers = options::sequence_breakers(fields)?;
    let dry_sequence_breakers =
        breakers.or_else(|| call.server.options.dry_sequence_breakers.clone());
    let logit_bias = biases(fields, serving)?;
    let grammar = grammar::take(fields, calls, &serving.grammars).map_err(|why| match calls {
        Calls::May(tools) => of_tool(why.into(), tools, tools),
        Calls::None | Calls::Must => why.into(),
    })?;
    warn_of_left_out(grammar.as_ref());
    let ignore_eos = fields.truth("ignore_eos")?.unwrap_or(false);
    let ignore_eos = ignore_eos && AnswerRules::of(grammar.as_ref()).past_end;
    let (salt, place) = (call.salt.clone(), place(call, fields, serving)?);
    let request = Request {
        sampling,
        dry_sequence_breakers,
        logit_bias,
        max_tokens,
        ignore_eos,
        salt,
        place,
        adapters,
        ..Request::default()
    };
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

/// Takes the biases that are added to the logits of tokens: an object keyed by token, as in OpenAI's API, or a list of pairs, as in
/// llama-server's. A token is named by its id, or several by a text, whose tokens they are.
fn biases(fields: &mut Fields, serving: &Serving) -> Result<Vec<(u32, f32)>, Failure> {
    let tokenizer = &serving.vocabulary().tokenizer;
    let vocab = tokenizer.vocab_size();
    let what = format!(
        "an object of numbers by texts, or by ids of tokens below {vocab}, at most {MAX_BIASES}, or a list of pairs of them"
    );
    let of_id = |id: u64| token_id(id, vocab);
    let of_text = |text: &str| {
        let options = EncodeOptions { add_bos: Some(false), parse_special: false };
        let text = Some(text).filter(|text| text.len() <= MAX_BIASES)?;
        tokenizer.encode(text, options).ok().filter(|ids| !ids.is_empty())
    };
    let of_name = |name: &str| match name.parse() {
        Ok(id) => Some(vec![of_id(id)?]),
        Err(_) => of_text(name),
    };
    let number = |bias: &Value| match bias {
        Value::Bool(false) => Some(f32::NEG_INFINITY),
        bias => Some(bias.as_f64()? as f32).filter(|bias| bias.is_finite()),
    };
    let mut biases = Vec::new();
    let mut add = |ids: Option<Vec<u32>>, bias: &Value| {
        let bias = number(bias)?;
        biases.extend(ids?.into_iter().map(|id| (id, bias)));
        (biases.len() <= MAX_BIASES).then_some(())
    };
    fields.read("logit_bias", &what, |value| match &value {
        Value::Object(all) => all.iter().try_for_each(|(name, bias)| add(of_name(name), bias)),
        Value::Array(all) => all.iter().try_for_each(|one| {
            let ids = match &one[0] {
                Value::String(text) => of_text(text),
                id => id.as_u64().and_then(of_id).map(|id| vec![id]),
            };
            add(ids, &one[1])
        }),
        _ => None,
    })?;
    Ok(biases)
}

/// Returns the id as a token's, if it is below the number of tokens.
fn token_id(id: u64, vocab: usize) -> Option<u32> {
    u32::try_from(id).ok().filter(|id| (*id as usize) < vocab)
}

/// Takes the slot that computes the answers: its place in the engine of the model.
fn place(call: &Call, fields: &mut Fields, serving: &Serving) -> Result<Option<usize>, Refusal> {
    let (first, places) = (slot(call, serving, 0), call.server.options.engine.sequences);
    let what = format!("a slot of this model, {first} to {}, or -1", first + places - 1);
    let place = fields.read("id_slot", &what, |value| match whole(&value)? {
        -1 => Some(None),
        n => {
            let place = usize::try_from(n).ok()?.checked_sub(first)?;
            (place < places).then_some(Some(place))
        }
    })?;
    Ok(place.flatten())
}

/// Returns the number under which `/slots` lists a place of a model.
pub(crate) fn slot(call: &Call, serving: &Serving, place: usize) -> usize {
    let models = call.server.models.all();
    let index = models.iter().position(|other| std::ptr::eq(other, serving));
    index.unwrap_or(0) * call.server.options.engine.sequences + place
}

/// Takes the number of answers to each prompt.
pub(crate) fn answers(fields: &mut Fields, name: &str) -> Result<usize, Refusal> {
    let what = format!("a whole number from 1 to {MAX_CHOICES}");
    let n = fields.read(name, &what, |value| {
        let n = usize::try_from(whole(&value)?).ok()?;
        (1..=MAX_CHOICES).contains(&n).then_some(n)
    })?;
    Ok(n.unwrap_or(1))
}

/// Refuses more answers than a request may have.
pub(crate) fn check_answers(prompts: usize, n: usize) -> Result<(), Refusal> {
    if prompts * n <= MAX_CHOICES {
        return Ok(());
    }
    let message = format!("{prompts} prompts with {n} answers each are more than {MAX_CHOICES}");
    Err(Refusal::invalid("prompt", message))
}

/// The failure for a text that is too long for the context whatever its tokens are.
fn too_long(why: TooLong) -> Failure {
    Refusal::new(TOO_LONG, why.to_string()).into()
}

/// Adds the variables of the template that the server has for requests that do not set them. They do not let a model think where it may not.
fn with_defaults(context: &mut Map<String, Value>, may_think: bool, serving: &Serving) {
    let fits = |name: &String| may_think || name != SWITCH;
    for (name, value) in serving.template_variables.iter().filter(|(name, _)| fits(name)) {
        context.entry(name).or_insert_with(|| value.clone());
    }
}

/// Returns the tokens of a conversation, as a template renders it.
pub(crate) fn conversation(
    context: Map<String, Value>,
    serving: &Serving,
) -> Result<Vec<u32>, Failure> {
    let vocabulary = serving.vocabulary();
    let bytes = context["messages"].as_array().map_or(0, |all| messages::bytes(all));
    let limit = serving.worker.context();
    // Of what is too long by its contents alone, nothing is rendered.
    check_length(bytes, &vocabulary.tokenizer, limit).map_err(too_long)?;
    let encoder = Encoder::new(vocabulary, Style::Chat, false).within(limit).until(is_cancelled);
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
    with_defaults(context, may_think, serving);
    let fitted = thinking::fit_for(context, serving.vocabulary(), may_think);
    if !may_think {
        note("without thinking, because the answer follows a grammar");
    }
    if !fitted.effort_is_known {
        note("the template has no reasoning effort");
    }
    fitted.budget
}

/// Reads the grammars of the inputs of custom tools. Where no call is held to its schema, those inputs are free, and a warning says so.
fn custom_inputs(
    all: &[CustomGrammar],
    holds: bool,
    serving: &Serving,
) -> Result<CustomInputs, Failure> {
    if holds && serving.vocabulary().shows_tools() {
        match CustomInputs::of(all, &serving.grammars) {
            Err(NotHeld::Refused(refusal)) if refusal.code == UNSUPPORTED => {}
            read => return Ok(read?),
        }
    }
    all.iter().for_each(warn_of_input);
    Ok(CustomInputs::default())
}

fn warn_of_input(CustomGrammar { function, .. }: &CustomGrammar) {
    warn(&format!("the input of the tool {function:?} is not held to its grammar"));
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
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
    // A schema holds the answer that stands in the place of a call.
    let inputs = custom_inputs(&choice.with_grammar, call || ask.grammar.is_none(), serving)?;
    if call {
        let must = inputs.hold(&choice.must);
        let held = grammar::of_calls(&must, choice.one, &serving.grammars);
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
        let held = grammar::of_strict_calls(&inputs.hold(may_call), &serving.grammars);
        ask.grammar = match held {
            // The schema of another tool is no reason to refuse, unless the client insists on that one.
            Err(NotHeld::Refused(_)) if !may_call.iter().any(is_strict) => {
                choice.with_grammar.iter().for_each(warn_of_input);
                None
            }
            held => held.map_err(|why| of_tool(why.into(), may_call, may_call))?,
        };
        warn_of_left_out(ask.grammar.as_ref());
    }
    let vocabulary = serving.vocabulary();
    let mut prompt = conversation(context, serving)?;
    // A call without any mark: it begins as the model would begin it, without thinking.
    let begun = call && !rules.marks;
    if begun && matches!(vocabulary.output_format(), Format::ChatMl | Format::Glm) {
        let options = EncodeOptions { add_bos: Some(false), parse_special: true };
        let mark = vocabulary.tokenizer.encode("<tool_call>\n", options);
        prompt.extend(mark.map_err(|error| Failure::invalid(error.to_string()))?);
    }
    let style = if begun { Style::Raw } else { Style::Chat };
    let answer = PromptConstraint::new(ask.grammar.take(), style, &prompt, vocabulary);
    let budget = budget.filter(|_| answer.rules.thinking);
    let chat = answer.rules.marks;
    ask.grammar = answer.held;
    ask.thinking = budget.map(|tokens| ThinkingBudget::new(tokens, vocabulary, tools.clone()));
    let (one_call, custom) = (choice.one, choice.custom.clone());
    let asked = AnswerOptions { chat, tools, call, one_call, custom, stops, ..Default::default() };
    Ok((prompt, asked))
}

/// How texts are read.
#[derive(Clone, Copy)]
pub(crate) struct TextRules {
    /// The maximum number of texts.
    pub(crate) most: usize,
    /// True if a text that is too long is truncated to the context.
    pub(crate) cut: bool,
    /// True if names of special tokens become these tokens.
    pub(crate) parse_special: bool,
}

/// Takes the rules for prompts that are continued: names of special tokens in them are those tokens, as llama-server has it, unless the client
/// wants them as text.
pub(crate) fn prompt_rules(fields: &mut Fields) -> Result<TextRules, Refusal> {
    let parse_special = fields.truth("parse_special")?.unwrap_or(true);
    Ok(TextRules { most: MAX_CHOICES, cut: false, parse_special })
}

/// Takes texts to be computed, in any form that llama-server has: a text, its tokens, both mixed, an object with a text, or a list of these.
pub(crate) fn texts(
    fields: &mut Fields,
    name: &'static str,
    rules: TextRules,
    serving: &Serving,
) -> Result<Vec<Vec<u32>>, Failure> {
    let all = listed(fields, name, rules.most)?;
    let reader = TextReader::new(name, rules, None, serving);
    all.into_iter().map(|value| Ok(reader.input(value)?.tokens)).collect()
}

/// As [`texts`], for their vectors: with what stands around a text, and within the limit that `vectors` has.
pub(crate) fn inputs(
    fields: &mut Fields,
    name: &'static str,
    most: usize,
    vectors: &Vectors<'_>,
    serving: &Serving,
) -> Result<Vec<EncoderInput>, Failure> {
    let all = listed(fields, name, most)?;
    let rules = TextRules { most, cut: false, parse_special: false };
    let reader = TextReader::new(name, rules, Some(vectors), serving);
    all.into_iter().map(|value| reader.input(value)).collect()
}

/// Takes one text or several.
fn listed(fields: &mut Fields, name: &'static str, most: usize) -> Result<Vec<Value>, Refusal> {
    let missing = || Refusal::invalid(name, "it is missing");
    let all = match fields.any(name).ok_or_else(missing)? {
        // A list with a token is one text.
        Value::Array(items) if !items.is_empty() && !items.iter().any(Value::is_number) => items,
        one => vec![one],
    };
    if all.len() > most {
        let message = format!("there are {}, expected at most {most}", all.len());
        return Err(Refusal::invalid(name, message));
    }
    Ok(all)
}

/// Reads the texts of a field.
struct TextReader<'s> {
    name: &'static str,
    rules: TextRules,
    serving: &'s Serving,
    encoder: Encoder<'s>,
    /// Makes inputs of texts, if their vectors are requested.
    vectors: Option<&'s Vectors<'s>>,
}

impl<'s> TextReader<'s> {
    fn new(
        name: &'static str,
        rules: TextRules,
        vectors: Option<&'s Vectors<'s>>,
        serving: &'s Serving,
    ) -> TextReader<'s> {
        let encoder = Encoder::new(serving.vocabulary(), Style::Raw, rules.parse_special);
        TextReader { name, rules, serving, encoder: encoder.until(is_cancelled), vectors }
    }

    /// Returns the tokens of a text, which fit into the context.
    fn input(&self, value: Value) -> Result<EncoderInput, Failure> {
        if is_cancelled() {
            return Err(Failure::ending());
        }
        let context = self.serving.worker.context();
        let mut input = match value {
            Value::String(text) => self.text(text)?,
            Value::Array(pieces) if !pieces.is_empty() => {
                let tokens = self.pieces(&pieces)?;
                match self.vectors {
                    Some(vectors) => vectors.tokens(tokens)?,
                    None => EncoderInput { tokens, ..EncoderInput::default() },
                }
            }
            Value::Object(object) => self.object(object)?,
            other => {
                let expected = "expected a text, a list of token ids and texts, or an object with prompt_string";
                let message = format!("it is {}, {expected}", kind(&other));
                return Err(Refusal::invalid(self.name, message).into());
            }
        };
        if input.tokens.len() > context {
            if !self.rules.cut {
                return Err(Failure::too_long(input.tokens.len(), context));
            }
            note(CUT);
            input.tokens.truncate(context);
        }
        Ok(input)
    }

    fn text(&self, mut text: String) -> Result<EncoderInput, Failure> {
        if let Some(vectors) = self.vectors {
            return Ok(vectors.text(&text)?);
        }
        match self.check(text.len()) {
            Err(why) if self.rules.cut => {
                note(CUT);
                text.truncate(text.floor_char_boundary(why.most));
            }
            checked => checked.map_err(too_long)?,
        }
        let tokens = self.encoder.raw(&text)?;
        Ok(EncoderInput { tokens, ..EncoderInput::default() })
    }

    /// Checks the number of bytes of a text before it is encoded.
    fn check(&self, bytes: usize) -> Result<(), TooLong> {
        check_length(bytes, &self.serving.vocabulary().tokenizer, self.serving.worker.context())
    }

    fn pieces<'v>(&self, pieces: &'v [Value]) -> Result<Vec<u32>, Failure> {
        let vocab = self.serving.vocabulary().tokenizer.vocab_size();
        let piece = |value: &'v Value| match value {
            Value::String(text) => Ok(PromptPiece::Text(text)),
            value => match value.as_u64().and_then(|id| token_id(id, vocab)) {
                Some(id) => Ok(PromptPiece::Token(id)),
                None => {
                    let found = kind(value);
                    let message = format!(
                        "{found} is in it, expected texts and ids of tokens below {vocab}, the number of tokens"
                    );
                    Err(Refusal::invalid(self.name, message))
                }
            },
        };
        let pieces = pieces.iter().map(piece).collect::<Result<Vec<PromptPiece<'_>>, _>>()?;
        let bytes = |piece: &PromptPiece<'_>| match piece {
            PromptPiece::Text(text) => text.len(),
            PromptPiece::Token(_) => 0,
        };
        self.check(pieces.iter().map(bytes).sum()).map_err(too_long)?;
        Ok(self.encoder.pieces(&pieces)?)
    }

    /// llama-server's forms of a text that may have pictures and sounds in it.
    fn object(&self, mut object: Map<String, Value>) -> Result<EncoderInput, Failure> {
        let media = object.shift_remove("multimodal_data").unwrap_or_default();
        let path = format!("{}.", self.name);
        let checked = refused("multimodal_data", &["[]"], NO_IMAGES).check(&media);
        checked.map_err(|refusal| refusal.within(&path))?;
        if let Some(Value::Array(parts)) = object.get("content") {
            return self.text(messages::joined(parts, &format!("{path}content"))?);
        }
        let text = Fields::new(object).string("prompt_string");
        let text = text.map_err(|refusal| refusal.within(&path))?;
        let missing = || Refusal::invalid(format!("{path}prompt_string"), "it is missing");
        self.text(text.ok_or_else(missing)?)
    }
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
    begin_each(serving, asks)
}

/// Starts these requests.
pub(crate) fn begin_each(
    serving: &Serving,
    asks: Vec<GenerateRequest>,
) -> Result<Vec<(Running, Vec<u32>)>, Failure> {
    let prompts: Vec<Vec<u32>> = asks.iter().map(|ask| ask.request.prompt.clone()).collect();
    let running = worker::generate(&serving.worker, &serving.errors, asks)?;
    Ok(running.into_iter().zip(prompts).collect())
}

/// Returns a tool call in the format of templates.
pub(crate) fn tool_call(id: &Value, name: &Value, arguments: Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}
