//! The ways in which families of models divide their output: data that one parser reads. This module is below the tokenizer, which
//! never writes the marks into a user's text, and below the output parser.
//!
//! A family is one constant in `families`, and one row of the table that recognises it.

mod example;
mod families;
mod find;

use std::fmt;

/// The marks that divide a model's text: one for each family of notations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// None are known: all of it is the answer, except calls as such a model is asked to write them: `<tool_call>` around JSON.
    Plain,
    /// `<tool_call>` around JSON (Qwen, Hermes, Granite 4) or around `<function=NAME><parameter=KEY>…` (Qwen3-Coder, Qwen 3.5,
    /// Nemotron 3, Step), and `<think>…</think>`.
    ChatMl,
    /// The channels of gpt-oss: `<|channel|>analysis<|message|>…<|end|>`.
    Harmony,
    /// `<|channel>thought\n…<channel|>`, and `<|tool_call>call:NAME{…}<tool_call|>`.
    Gemma4,
    /// `[THINK]…[/THINK]`, and `[TOOL_CALLS]`.
    Mistral,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>…`: GLM 4.5 and later, Ling 3, Spark, Laguna.
    Glm,
    /// The same with the suffix `:opensource` in each mark: Hy3.
    Hy3,
    /// The same with marks `<ifm|…>`: K2-Horizon.
    Horizon,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}`: DeepSeek V3, R1, V3.1.
    DeepSeek,
    /// `<｜DSML｜invoke name="NAME">`: DeepSeek V3.2 and V4.
    Dsml,
    /// `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}`: Kimi K2.
    Kimi,
    /// `<|open|>call tool="NAME" index="0"<|sep|>`: Kimi K3.
    KimiK3,
    /// `<minimax:tool_call><invoke name="NAME">`: MiniMax M2.
    MiniMax,
    /// The same with a token before each tag, and with the keys as tags: MiniMax M3.
    MiniMax3,
    /// `{"name": …, "parameters": {…}}` or `[NAME(key=1)]`, without marks: Llama 3 and 4.
    Llama,
    /// `<seed:tool_call><function=NAME>`: Seed-OSS.
    Seed,
    /// `<|tool_call_start|>[NAME(key=1)]<|tool_call_end|>`: LFM2.
    Lfm2,
    /// `<|START_ACTION|>[{"tool_name": …}]<|END_ACTION|>`: Command R7B, Command A.
    Command,
    /// `<|tool_call|>[{…}]`, `functools[{…}]`: Granite 3, Phi-4-mini.
    Granite3,
    /// `<TOOLCALL>[{…}]</TOOLCALL>`: Nemotron Nano 2.
    Nemotron2,
    /// `<tool_calls>[{…}]</tool_calls>`: Hunyuan A13B, Apriel, MiniMax M1.
    ToolCalls,
    /// `<|tools_prefix|>[{"NAME": {…}}]<|tools_suffix|>`: Apertus.
    Apertus,
    /// `<|tool_call:begin|>ID<|tool_call:name|>NAME<|tool_call:args|>{…}`: Solar Open.
    Solar,
    /// `<function name="NAME"><param name="KEY">…`: MiniCPM5.
    MiniCpm5,
    /// `<|function_call|>{"name": …}`: GigaChat 3.
    GigaChat,
    /// ` to=NAME<|message|><atem:function_calls><atem:invoke name="NAME">`: Muse Glimmer.
    Muse,
    /// `<|content_invoke_tool_json|>{"name": …, "args": …}<|end_message|>`: Inkling.
    Inkling,
    /// `<function=NAME>{…}</function>`: Functionary 3.1, and Llama 3.1 as its makers describe custom tools.
    Functionary,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 28] = [
        Format::Plain,
        Format::ChatMl,
        Format::Harmony,
        Format::Gemma4,
        Format::Mistral,
        Format::Glm,
        Format::Hy3,
        Format::Horizon,
        Format::DeepSeek,
        Format::Dsml,
        Format::Kimi,
        Format::KimiK3,
        Format::MiniMax,
        Format::MiniMax3,
        Format::Llama,
        Format::Seed,
        Format::Lfm2,
        Format::Command,
        Format::Granite3,
        Format::Nemotron2,
        Format::ToolCalls,
        Format::Apertus,
        Format::Solar,
        Format::MiniCpm5,
        Format::GigaChat,
        Format::Muse,
        Format::Inkling,
        Format::Functionary,
    ];

    /// The format of this name.
    pub fn named(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Its name, for people and in options.
    pub fn name(self) -> &'static str {
        self.notation().name
    }

    /// The description of this format.
    pub fn notation(self) -> &'static Notation {
        families::notation(self)
    }

    /// The spellings that a parser must see, even where they are control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        self.notation().tokens
    }
}

/// An opening mark and the mark that ends its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The opening.
    pub open: &'static str,
    /// The end.
    pub close: &'static str,
}

/// The header of a message with the name of whom it is for, or of the tool that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The text before it, where a message precedes it in the same answer.
    pub start: &'static str,
    /// The text before the name.
    pub open: &'static str,
    /// The text after the name.
    pub close: &'static str,
    /// True if that text belongs to what follows.
    pub keeps_close: bool,
    /// The end of the message.
    pub end: &'static str,
}

/// How a family of models writes thinking, answers and calls.
#[derive(Debug)]
pub struct Notation {
    /// Its name.
    pub name: &'static str,
    /// The header of a message, where it names more than thinking or the answer.
    pub header: Option<Header>,
    /// The marks of thinking.
    pub thinking: &'static [Pair],
    /// True if thinking may also begin after answer text.
    pub thinking_anywhere: bool,
    /// The mark after an answer and its calls; empty if there is none.
    pub end: &'static str,
    /// Marks around the answer, which are not part of it.
    pub answer: &'static [Pair],
    /// How calls are written.
    pub calls: Calls,
    /// True if the results of calls must stand in the order of the calls, because the template writes them without their ids.
    pub ordered_results: bool,
    /// The spellings that the parser must see, even where they are control tokens.
    pub tokens: &'static [&'static str],
}

/// How a family of models writes calls.
#[derive(Debug)]
pub struct Calls {
    /// Openings of a call, or of several; in practice models write more than one spelling.
    pub opens: &'static [&'static str],
    /// Their ends. Empty: a call ends where its text does, or at the next opening.
    pub closes: &'static [&'static str],
    /// The ways in which a call is written between them, the usual one first.
    pub forms: &'static [Form],
    /// Beginnings of a call without its opening mark. It is taken as one if the name is that of a known tool.
    pub bare: &'static [&'static str],
    /// True if `bare` only counts at the beginning of a line.
    pub bare_lines: bool,
    /// True if an answer may begin with a call without any mark. It is taken as one if the name is that of a known tool.
    pub unmarked: bool,
    /// True if that is how the template writes them.
    pub markless: bool,
    /// True if models call a known tool from thinking that they have not ended. The call ends it.
    pub in_thinking: bool,
    /// True if the ids that the model gives its calls must be handed to the client: they are fed back as they were.
    pub ids: bool,
}

/// A way of writing a call.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// A JSON object with the name and the arguments, or a list of these.
    Object(Object),
    /// The name between marks, then the arguments as a JSON object.
    Named(Named),
    /// Each argument between tags. Text is written without quotes and escapes.
    Tagged(Tagged),
    /// The literals of a programming language, or similar ones.
    Literal(Literal),
    /// Nested elements, whose tags are the keys.
    Elements(Elements),
}

/// The keys of a call that is a JSON object.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// The key of the name. Empty: the name is the key of the arguments.
    pub name: &'static str,
    /// The keys of the arguments, the usual one first.
    pub arguments: &'static [&'static str],
    /// The key of an id that stands before the name; empty if there is none.
    pub id: &'static str,
    /// The key of an id that stands after the arguments, of nine letters or digits; empty if there is none.
    pub last_id: &'static str,
    /// True if the calls stand in a list.
    pub list: bool,
}

/// A name between marks, before a JSON object.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The mark before a call; empty if it is the one before all calls.
    pub open: &'static str,
    /// The text after that mark.
    pub first: Field,
    /// The marks that may follow, each with the meaning of the text after it.
    pub fields: &'static [(&'static str, Field)],
    /// Texts after the arguments.
    pub closes: &'static [&'static str],
}

/// The meaning of a text in the beginning of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name.
    Name,
    /// The id of the call.
    Id,
    /// An id that has the name in it: `functions.NAME:0`.
    IdWithName,
    /// If it is not empty, the name; perhaps with the beginning of a fence after it.
    NameIfAny,
    /// Nothing.
    Nothing,
}

/// The tags of a call whose arguments are written one by one.
#[derive(Clone, Copy, Debug)]
pub struct Tagged {
    /// The text before the name; empty if it is the mark before all calls.
    pub open: &'static str,
    /// The text after the name; empty: a newline or the next tag.
    pub name_close: &'static str,
    /// The text before a key.
    pub key_open: &'static str,
    /// The text after it.
    pub key_close: &'static str,
    /// The text before a value, where it is not the one after the key.
    pub value_open: &'static str,
    /// The text after a value, and the same with the newline that belongs to it.
    pub value_closes: &'static [&'static str],
    /// The end of the call; empty if it is the end of all calls.
    pub close: &'static str,
    /// True if a newline before and after each value belongs to the notation.
    pub newlines: bool,
    /// True if a value may stand in `<![CDATA[…]]>`.
    pub cdata: bool,
    /// Names under which models wrap all arguments, although the tool has no such parameter.
    pub wraps: &'static [&'static str],
    /// How the tag before a value says its type.
    pub types: ValueTypes,
}

/// How a tag says the type of the value after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueTypes {
    /// It does not: the schema does.
    Unwritten,
    /// `string="true"` for text, `string="false"` for JSON.
    IsString,
    /// `type="string"`, `type="number"`; the call has an index.
    Named,
}

/// The literals of a call.
#[derive(Clone, Copy, Debug)]
pub struct Literal {
    /// The text before the name.
    pub open: &'static str,
    /// The text after the name, and the end of the call.
    pub body: (char, char),
    /// True for Python's literals: keys are followed by `=`, strings have Python's escapes, and calls stand in a list.
    pub python: bool,
    /// Names under which models wrap all arguments, although the tool has no such parameter.
    pub wraps: &'static [&'static str],
}

/// The elements of a call.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// The text before the name.
    pub open: &'static str,
    /// The text after it.
    pub name_close: &'static str,
    /// The text before every tag.
    pub mark: &'static str,
    /// The end of the call.
    pub close: &'static str,
}

impl Notation {
    /// The marks of the thinking that a prompt with this end has opened, if it has.
    pub fn opened(&self, prompt_end: &str) -> Option<&'static Pair> {
        let end = prompt_end.trim_end();
        self.thinking.iter().find(|pair| end.ends_with(pair.open))
    }
}

impl Form {
    /// The texts that end a call in this form.
    pub(crate) fn closes(&self) -> &'static [&'static str] {
        match self {
            Form::Named(named) => named.closes,
            Form::Object(_) | Form::Tagged(_) | Form::Literal(_) | Form::Elements(_) => &[],
        }
    }

    /// True if several calls in this form may follow one opening mark.
    pub fn repeats(&self) -> bool {
        match self {
            Form::Object(_) | Form::Elements(_) => true,
            Form::Named(named) => !named.open.is_empty(),
            Form::Tagged(tagged) => !tagged.open.is_empty(),
            Form::Literal(literal) => !literal.open.is_empty(),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
