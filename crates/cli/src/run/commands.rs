//! The commands of a chat: lines that begin with `/`.

use std::fmt::Write as _;
use std::fs::{DirEntry, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use alight_model::{GenerateOptions, SamplerOptions};
use alight_text::{Message, Style};
use anyhow::{Context, anyhow, bail};
use serde::Deserialize;
use serde_json::{Value, json};

use super::chat::{Chat, Question};
use super::engine::About;
use super::held::{Constraint, Holding};
use super::sampling::{ONLY_NATIVE, SamplingArgs, or_all};
use crate::interrupt::Interrupt;
use crate::outcome::Stop;
use crate::terminal_text::one_line;
use crate::text_input::{self, From};
use crate::{new_file, say, units};

/// Maximum bytes of a conversation or a text that is loaded.
const LIMIT: u64 = 64 << 20;

/// The state that commands read and change.
pub struct Talk<'a> {
    pub about: &'a About<'a>,
    pub style: Style,
    pub chat: Chat,
    /// The sampling options of answers.
    pub given: SamplingArgs,
    pub sampling: SamplerOptions,
    pub limits: GenerateOptions,
    /// True if this program computes, not JAX.
    pub native: bool,
    /// The constraint on answers.
    pub held: Option<Holding>,
    /// Tokens of the last prompt and its answer.
    pub tokens: usize,
    /// The positions of the context.
    pub context: usize,
    /// The file that this conversation was saved in or loaded from.
    pub file: Option<PathBuf>,
    /// Texts that come before the next message.
    pub texts: Vec<String>,
    /// True if a line about each answer is shown.
    pub verbose: bool,
    /// Ctrl-C, which ends a command that takes long.
    pub interrupt: Interrupt,
}

impl Talk<'_> {
    /// Returns the message with the texts that come before it.
    fn with_texts(&mut self, line: String) -> String {
        let mut parts = std::mem::take(&mut self.texts);
        parts.push(line);
        parts.join("\n\n")
    }
}

/// The action after a command.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// The next line is read.
    Listen,
    /// The model answers this.
    Ask(Question),
    /// The chat ends.
    Leave,
}

/// A command: its name, its arguments, its description, and its function.
struct ChatCommand {
    name: &'static str,
    takes: &'static str,
    about: &'static str,
    run: fn(&mut Talk<'_>, &str) -> anyhow::Result<Next>,
}

/// Maximum number of files of a folder that Tab looks at.
const MAX_LISTED: usize = 10_000;

/// The options that are no sampling options.
const OWN_OPTIONS: [&str; 2] = ["predict", "schema"];

/// All commands.
const COMMANDS: [ChatCommand; 11] = [
    ChatCommand { name: "/help", takes: "", about: "this list", run: help },
    ChatCommand { name: "/clear", takes: "", about: "begin a new conversation", run: clear },
    ChatCommand { name: "/system", takes: "[TEXT]", about: "the system prompt", run: system },
    ChatCommand {
        name: "/set",
        takes: "[NAME VALUE]",
        about: "temp 0.2, predict 100, schema FILE; alone: all options",
        run: set,
    },
    ChatCommand {
        name: "/read",
        takes: "FILE",
        about: "put a text before the next message",
        run: read,
    },
    ChatCommand {
        name: "/regen",
        takes: "",
        about: "another answer to the last message",
        run: regen,
    },
    ChatCommand {
        name: "/save",
        takes: "FILE",
        about: "write the conversation, as JSON",
        run: save,
    },
    ChatCommand { name: "/load", takes: "FILE", about: "go on with one that was saved", run: load },
    ChatCommand {
        name: "/info",
        takes: "",
        about: "the model, the context, the options",
        run: info,
    },
    ChatCommand {
        name: "/verbose",
        takes: "",
        about: "a line about each answer, or none again",
        run: verbose,
    },
    ChatCommand {
        name: "/bye",
        takes: "",
        about: "leave, as Ctrl-D does",
        run: |_, _| Ok(Next::Leave),
    },
];

/// Runs the command of a line; a line that is not a command is for the model.
pub fn run(line: String, talk: &mut Talk<'_>) -> anyhow::Result<Next> {
    let Some(name) = line.split_whitespace().next().filter(|_| line.starts_with('/')) else {
        return Ok(Next::Ask(Question::New(talk.with_texts(line))));
    };
    let called = match name {
        // The names in other programs.
        "/?" => "/help",
        "/exit" | "/quit" => "/bye",
        "/show" => bail!("there is no /show: /info has the model, the context and the options"),
        name => name,
    };
    let Some(command) = COMMANDS.iter().find(|command| command.name == called) else {
        bail!("there is no {name}: /help lists what there is; a space before it makes it a message")
    };
    let rest = line[name.len()..].trim();
    if command.takes.is_empty() && !rest.is_empty() {
        bail!("{name} takes nothing: '{rest}' is too much");
    }
    (command.run)(talk, rest)
}

/// Returns the completions of what was typed: names of commands, of options, and of files where a command takes one; and where the text
/// that they replace begins.
pub fn completions(typed: &str) -> (usize, Vec<String>) {
    let Some((name, rest)) = typed.split_once(' ') else {
        let is_begun = |name: &&str| typed.starts_with('/') && name.starts_with(typed);
        let names = COMMANDS.iter().map(|command| command.name).filter(is_begun);
        return (0, names.map(str::to_owned).collect());
    };
    let rest = rest.trim_start();
    let found = match (name, rest.split_once(' ')) {
        ("/set", Some(("schema", file))) => files(file.trim_start()),
        ("/set", None) => {
            let names = SamplingArgs::names().into_iter().chain(OWN_OPTIONS.map(str::to_owned));
            (rest.len(), names.filter(|name| name.starts_with(rest)).collect())
        }
        _ if COMMANDS.iter().any(|command| command.name == name && command.takes == "FILE") => {
            files(rest)
        }
        _ => (0, Vec::new()),
    };
    let (replaced, names) = found;
    (typed.len() - replaced, names)
}

/// Returns the files whose path begins like this, as they are typed, and the length of the text that each replaces: the name after the
/// last slash.
fn files(begun: &str) -> (usize, Vec<String>) {
    let (folder, start) = begun
        .rsplit_once('/')
        .map_or(("", begun), |(_, start)| (&begun[..begun.len() - start.len()], start));
    let listed = match folder {
        "" => Ok(PathBuf::from(".")),
        folder => path(folder),
    };
    let entries = listed.ok().and_then(|folder| folder.read_dir().ok());
    let name = |entry: DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_hidden = name.starts_with('.') && !start.starts_with('.');
        // A name that would drive the terminal is not typed for anybody.
        let is_plain = !is_hidden && one_line(&name) == name;
        let typed = quoted(&name);
        let folder = if entry.path().is_dir() { "/" } else { "" };
        (is_plain && typed.starts_with(start)).then(|| format!("{typed}{folder}"))
    };
    let mut names: Vec<String> =
        entries.into_iter().flatten().flatten().take(MAX_LISTED).filter_map(name).collect();
    names.sort();
    (start.len(), names)
}

/// Returns a name as it is typed: see [`unquoted`].
fn quoted(name: &str) -> String {
    name.chars().fold(String::new(), |mut typed, c| {
        if matches!(c, '\\' | '\'' | '"') {
            typed.push('\\');
        }
        typed.push(c);
        typed
    })
}

fn help(_: &mut Talk<'_>, _: &str) -> anyhow::Result<Next> {
    let mut text = String::new();
    for ChatCommand { name, takes, about, .. } in COMMANDS {
        let _ = writeln!(text, "{:<22} {about}", format!("{name} {takes}"));
    }
    text += "\
\"\"\"                    begins and ends a message of several lines
Alt-Enter              begins a new line of a message
Tab                    completes commands, options and names of files
Ctrl-C                 stops an answer, clears a line, and twice in a row leaves
arrow keys, Ctrl-R     earlier messages";
    say::plain(&text);
    Ok(Next::Listen)
}

fn clear(talk: &mut Talk<'_>, _: &str) -> anyhow::Result<Next> {
    talk.chat.clear();
    talk.texts.clear();
    (talk.tokens, talk.file) = (0, None);
    say::plain("(a new conversation)");
    Ok(Next::Listen)
}

fn system(talk: &mut Talk<'_>, text: &str) -> anyhow::Result<Next> {
    if talk.style == Style::Raw {
        bail!("there is no system prompt without a chat template");
    }
    if !text.is_empty() {
        talk.chat.system = Some(Message::system(text));
    }
    match &talk.chat.system {
        Some(message) => say::plain(&format!("(system: {})", message.content)),
        None => say::plain("(there is no system prompt)"),
    }
    Ok(Next::Listen)
}

fn set(talk: &mut Talk<'_>, text: &str) -> anyhow::Result<Next> {
    if let Some((name, value)) = text.split_once(char::is_whitespace) {
        let value = value.trim();
        // The names on the command line, and those in requests.
        let name = match &*name.replace('_', "-") {
            "n-predict" | "num-predict" => "predict".to_owned(),
            name => name.to_owned(),
        };
        let name = name.as_str();
        if name == "predict" {
            let most: i64 = value.parse().ok().filter(|n| *n >= -2).ok_or_else(|| {
                anyhow!(
                    "'{value}' is no number of tokens: expected one from 0 on, or -1 for no limit"
                )
            })?;
            talk.limits.max_tokens = usize::try_from(most).unwrap_or(usize::MAX);
        } else if name == "schema" {
            talk.held = schema(talk, value)?;
        } else if !talk.native && ONLY_NATIVE.contains(&name.replace('-', "_").as_str()) {
            bail!("{name} is not an option of the JAX engine");
        } else {
            talk.given.change(name, value)?;
            talk.sampling = talk.given.options();
        }
    } else if text.is_empty() {
        say::plain(&all_options(talk));
        return Ok(Next::Listen);
    } else if !is_option(text) {
        bail!("there is no option '{text}': /set alone lists all");
    } else {
        bail!("/set takes a name and a value, such as /set temp 0.2: /set alone lists all");
    }
    say::plain(&options(talk));
    Ok(Next::Listen)
}

/// Returns true if there is an option of this name.
fn is_option(name: &str) -> bool {
    let name = name.replace('_', "-");
    OWN_OPTIONS.contains(&&*name) || SamplingArgs::names().contains(&name)
}

/// Returns a line for each option: its name, its value and what it does.
fn all_options(talk: &Talk<'_>) -> String {
    let own = [
        ("predict", predict(talk), "Generate at most N tokens; -1 has no limit".to_owned()),
        (
            "schema",
            constraint_name(talk).to_owned(),
            "JSON schema of each answer: a file, {…} or off".to_owned(),
        ),
    ];
    let sampling = talk.given.listed(&talk.sampling).into_iter();
    let lines = sampling.chain(own.map(|(name, value, about)| (name.to_owned(), value, about)));
    let lines: Vec<String> =
        lines.map(|(name, value, about)| format!("{name:<20} {value:<8}  {about}")).collect();
    lines.join("\n")
}

fn read(talk: &mut Talk<'_>, text: &str) -> anyhow::Result<Next> {
    if text.is_empty() {
        bail!("/read takes the name of a text file");
    }
    let path = path(text)?;
    let from = path.clone();
    // A pipe may have no writer.
    let read =
        move |_: &dyn Fn() -> bool| text_input::read_any(From::File(&from), "the text", LIMIT);
    let Some((text, encoding)) = talk.interrupt.unless_pressed(read).transpose()? else {
        say::line("(stopped: nothing was read)");
        return Ok(Next::Listen);
    };
    if let Some(encoding) = encoding {
        say::note(&format!("'{}' is not UTF-8: it is read as {encoding}", path.display()));
    }
    say::line(&format!(
        "({} of '{}' before the next message)",
        units::bytes(text.len() as u64),
        path.display()
    ));
    talk.texts.push(text.trim_end_matches(['\r', '\n']).to_owned());
    Ok(Next::Listen)
}

fn verbose(talk: &mut Talk<'_>, _: &str) -> anyhow::Result<Next> {
    talk.verbose = !talk.verbose;
    say::plain(match talk.verbose {
        true => "(a line about each answer follows it)",
        false => "(answers alone)",
    });
    Ok(Next::Listen)
}

/// Returns the constraint on answers from now on: a JSON schema, or none.
fn schema(talk: &Talk<'_>, text: &str) -> anyhow::Result<Option<Holding>> {
    if text == "off" {
        return Ok(None);
    }
    if !talk.native {
        bail!("schema is not an option of the JAX engine");
    }
    let asked = Constraint::in_chat(text, path);
    match asked.and_then(|asked| asked.held(talk.about.vocabulary)) {
        Ok(holding) if text.starts_with('{') => {
            let shown = match text.char_indices().nth(40) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text.to_owned(),
            };
            Ok(Some(Holding { by: format!("schema {shown}"), ..holding }))
        }
        Ok(holding) => Ok(Some(holding)),
        Err(Stop::Failed(error)) => Err(error),
        Err(Stop::Usage(why)) => bail!(why),
        Err(_) => bail!("the schema cannot be read"),
    }
}

/// Returns the options as text.
fn options(talk: &Talk<'_>) -> String {
    let options = talk.sampling;
    let SamplerOptions { temperature, top_k, top_p, min_p, seed, .. } = options;
    let SamplerOptions { repeat_penalty, frequency_penalty, presence_penalty, .. } = options;
    let last_n = or_all(options.repeat_last_n);
    let (predict, constraint) = (predict(talk), constraint_name(talk));
    let mut parts = vec![
        format!(
            "temp {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, seed {seed}, predict {predict}"
        ),
        format!("repeat-penalty {repeat_penalty}, repeat-last-n {last_n}"),
        format!("frequency-penalty {frequency_penalty}, presence-penalty {presence_penalty}"),
    ];
    parts.extend(further(&options));
    parts.push(format!("constraint {constraint}"));
    format!("options  {}", parts.join(", "))
}

/// Returns the options of the stages that are off by default, if they are on.
fn further(options: &SamplerOptions) -> Vec<String> {
    let SamplerOptions {
        dry_multiplier,
        dry_base,
        dry_allowed_length,
        dry_penalty_last_n,
        xtc_probability,
        xtc_threshold,
        top_n_sigma,
        mirostat,
        mirostat_tau,
        mirostat_eta,
        // `options` shows these.
        temperature: _,
        top_k: _,
        top_p: _,
        min_p: _,
        repeat_penalty: _,
        frequency_penalty: _,
        presence_penalty: _,
        repeat_last_n: _,
        seed: _,
        // No option sets it.
        min_keep: _,
    } = options;
    let dry = format!(
        "dry-multiplier {dry_multiplier}, dry-base {dry_base}, dry-allowed-length {dry_allowed_length}, dry-penalty-last-n {}",
        or_all(*dry_penalty_last_n)
    );
    let stages = [
        (*dry_multiplier > 0.0, dry),
        (
            *xtc_probability > 0.0,
            format!("xtc-probability {xtc_probability}, xtc-threshold {xtc_threshold}"),
        ),
        (*top_n_sigma > 0.0, format!("top-nsigma {top_n_sigma}")),
        (
            *mirostat > 0,
            format!("mirostat {mirostat}, mirostat-ent {mirostat_tau}, mirostat-lr {mirostat_eta}"),
        ),
    ];
    stages.into_iter().filter(|(is_on, _)| *is_on).map(|(_, line)| line).collect()
}

fn predict(talk: &Talk<'_>) -> String {
    i64::try_from(talk.limits.max_tokens).unwrap_or(-1).to_string()
}

/// Returns the constraint on answers.
fn constraint_name<'t>(talk: &'t Talk<'_>) -> &'t str {
    talk.held.as_ref().map_or("none", |holding| &holding.by)
}

fn regen(talk: &mut Talk<'_>, _: &str) -> anyhow::Result<Next> {
    let last = talk.chat.last_question();
    last.map(Next::Ask).ok_or_else(|| anyhow!("nothing has been asked yet"))
}

fn save(talk: &mut Talk<'_>, text: &str) -> anyhow::Result<Next> {
    if text.is_empty() {
        bail!("/save takes the name of a file");
    }
    let path = &path(text)?;
    let messages: Vec<Value> = talk.chat.all().map(Message::to_json).collect();
    let value = json!({ "model": talk.about.name, "messages": messages });
    let bytes = format!("{value}\n");
    // Only the conversation's own file is overwritten.
    let own = talk.file.as_deref() == Some(path);
    if !own && path.symlink_metadata().is_ok() {
        bail!(
            "'{}' already exists, and was not saved from this conversation: give another name",
            path.display()
        );
    }
    let file = new_file::create(path, own, &[], bytes.len() as u64)?;
    // A conversation is private.
    let private = file.file().set_permissions(Permissions::from_mode(0o600));
    private.with_context(|| format!("'{}'", path.display()))?;
    let written = file.file().write_all(bytes.as_bytes());
    written.with_context(|| format!("'{}'", path.display()))?;
    file.commit().map_err(|e| anyhow!(e))?;
    talk.file = Some(path.to_owned());
    say::line(&format!("({} messages in '{}')", messages.len(), path.display()));
    Ok(Next::Listen)
}

/// Returns the typed path. There is no shell to expand `~`.
fn path(text: &str) -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    Ok(match text.strip_prefix("~/").zip(home) {
        Some((rest, home)) => Path::new(&home).join(unquoted(rest)?),
        None => unquoted(text)?.into(),
    })
}

/// Returns a name without its quotes and backslashes, which mean the same as in a shell; blanks need none here, as there is only one
/// name.
fn unquoted(text: &str) -> anyhow::Result<String> {
    let (mut name, mut quote) = (String::new(), None);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            // Between double quotes, a backslash is literal unless it escapes the next character.
            ('\\', None) => name.extend(rest.next()),
            ('\\', Some('"')) if matches!(rest.peek(), Some('"' | '\\')) => {
                name.extend(rest.next())
            }
            (c, _) => name.push(c),
        }
    }
    if let Some(open) = quote {
        bail!("the quote {open} of this name has no other end");
    }
    Ok(name)
}

fn load(talk: &mut Talk<'_>, text: &str) -> anyhow::Result<Next> {
    if text.is_empty() {
        bail!("/load takes the name of a file that /save wrote");
    }
    if talk.style == Style::Raw {
        bail!("without a chat template there is no conversation to go on with");
    }
    let path = path(text)?;
    let from = path.clone();
    // A file may be long, and a pipe may have no writer.
    let Some(messages) = talk.interrupt.unless_pressed(move |_| saved(&from)).transpose()? else {
        say::line("(stopped: the conversation is as it was)");
        return Ok(Next::Listen);
    };
    say::line(&format!("({} messages of '{}')", messages.len(), path.display()));
    talk.chat.replace(messages);
    (talk.tokens, talk.file) = (0, Some(path));
    Ok(Next::Listen)
}

/// Reads the messages of a file that `/save` wrote.
fn saved(path: &Path) -> anyhow::Result<Vec<Message>> {
    let text = text_input::read(From::File(path), "the conversation", LIMIT)?;
    parse(&text)
        .with_context(|| format!("'{}' is no conversation that /save wrote", path.display()))
}

/// The part of a file that is kept. Nothing else of it takes memory while it is parsed.
#[derive(Deserialize)]
struct Saved {
    messages: Vec<SavedMessage>,
}

#[derive(Deserialize)]
struct SavedMessage {
    role: String,
    content: String,
    reasoning_content: Option<String>,
}

/// Returns the messages of a file: an optional system message, then user and assistant in turn.
fn parse(text: &str) -> anyhow::Result<Vec<Message>> {
    let saved: Saved = serde_json::from_str(text)?;
    let message = |SavedMessage { role, content, reasoning_content: thinking }| Message {
        thinking,
        ..Message::new(role, content)
    };
    let messages: Vec<Message> = saved.messages.into_iter().map(message).collect();
    let first = usize::from(messages.first().is_some_and(|message| message.role == "system"));
    for (i, message) in messages[first..].iter().enumerate() {
        let expected = ["user", "assistant"][i % 2];
        if message.role != expected {
            bail!("message {} is of '{}': expected '{expected}'", first + i + 1, message.role);
        }
    }
    // A message without an answer would be sent along with the next one.
    if (messages.len() - first) % 2 == 1 {
        bail!("the last message has no answer");
    }
    Ok(messages)
}

fn info(talk: &mut Talk<'_>, _: &str) -> anyhow::Result<Next> {
    let About { name, trained, .. } = talk.about;
    say::plain(&format!(
        "model    {name}\ncontext  {} of {} tokens used by {} (trained for {})\n{}",
        units::grouped(talk.tokens),
        units::grouped(talk.context),
        units::so_many(talk.chat.exchanges(), "exchange"),
        units::grouped(*trained),
        options(talk),
    ));
    Ok(Next::Listen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_of_a_name_are_those_of_a_shell() {
        for (typed, name) in [
            ("a b.json", "a b.json"),
            ("\"a b.json\"", "a b.json"),
            ("'a \"b\".json'", "a \"b\".json"),
            ("a\\ b.json", "a b.json"),
            ("\"a\\\"b\\c\"", "a\"b\\c"),
            ("'a'\"b\"c", "abc"),
        ] {
            assert_eq!(path(typed).unwrap(), Path::new(name), "{typed}");
        }
        let error = path("it's.json").unwrap_err().to_string();
        assert!(error.contains("no other end"), "{error}");
    }

    #[test]
    fn a_conversation_that_makes_no_sense_is_refused() {
        let of = |messages: &str| parse(&format!("{{\"messages\": [{messages}]}}"));
        let message = |role: &str| format!("{{\"role\": \"{role}\", \"content\": \"x\"}}");
        let [system, user, assistant] = ["system", "user", "assistant"].map(message);
        assert_eq!(of("").unwrap(), []);
        assert_eq!(of(&format!("{system},{user},{assistant}")).unwrap().len(), 3);
        for wrong in [
            user.clone(),
            format!("{assistant},{user}"),
            format!("{user},{user}"),
            format!("{user},{system}"),
            "{\"role\": \"user\"}".to_owned(),
            "7".to_owned(),
        ] {
            assert!(of(&wrong).is_err(), "{wrong}");
        }
        assert!(parse("{}").is_err() && parse("no").is_err());
    }
}
