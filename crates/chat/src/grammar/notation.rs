//! Calls in a family's own notation, as rules of an llguidance grammar. The same description that the output parser reads says how they
//! are written, so that an answer that is held to calls is what the model would write of itself.

use alight_text::format::{
    Calls, Elements, Field, Form, Format, Header, Literal, Named, Object, Tagged, ValueTypes,
};
use alight_text::output::{Tools, Written};
use serde_json::{Map, Value, json};

use super::calls::{name, own_schema, schema};
use super::tree::TreeWriter;
use super::with_rules;
use crate::body::refusal::Refusal;

/// The end and the beginning of a fence around arguments.
const FENCE: [&str; 2] = ["```json", "```"];
/// Gemma's quote.
const QUOTE: &str = "<|\"|>";
/// Terminals that rules of several forms use: blanks between marks, an id that the model chooses, one of nine characters, a number, and a key.
const TERMINALS: &str = "BLANK: /[ \\n]{1,8}/\nID: /[A-Za-z0-9_.:-]{1,64}/\nSHORT_ID: /[A-Za-z0-9]{9}/\nCOUNTER: /[0-9]{1,5}/\nKEY: /[A-Za-z0-9_.-]{1,64}/\n";
/// Text that may be longer is not counted.
const MAX_COUNTED: u64 = 1000;

/// A text after which the rest of a call is held to a rule.
#[derive(Clone, Debug)]
pub(super) struct StartMark {
    pub(super) text: String,
    /// The name of the rule.
    pub(super) start: String,
    /// True if it only counts at the beginning of the answer, or of a line of it.
    pub(super) begins_line: bool,
}

/// Writes the rules of calls in one notation.
pub(super) struct Writer<'w> {
    calls: &'static Calls,
    form: &'static Form,
    header: Option<Header>,
    /// The marks around calls; empty if there are none.
    open: &'static str,
    close: &'static str,
    /// The marks that may be control tokens.
    tokens: &'static [&'static str],
    /// The id of a text that is a control token.
    control: &'w dyn Fn(&str) -> Option<u32>,
    /// True if the template contains a text.
    has: &'w dyn Fn(&str) -> bool,
}

impl<'w> Writer<'w> {
    /// Creates it for the way in which a template writes calls; `None` if there is no notation whose calls a grammar can hold.
    pub(super) fn new(
        format: Format,
        has: &'w dyn Fn(&str) -> bool,
        control: &'w dyn Fn(&str) -> Option<u32>,
    ) -> Option<Writer<'w>> {
        let notation = format.notation();
        let calls = &notation.calls;
        let form = calls.form(has)?;
        // The spelling of the template. It may build marks from parts.
        let last = |mark: &str| has(mark.rsplit('｜').next().unwrap_or(mark));
        let own = calls.opens.iter().position(|mark| has(mark));
        let own = own.or_else(|| calls.opens.iter().position(|mark| control(mark).is_some()));
        let own = own.or_else(|| calls.opens.iter().position(|mark| last(mark))).unwrap_or(0);
        let (open, close) = match calls.markless {
            true => ("", ""),
            false => (calls.opens.get(own).copied(), calls.closes.get(own).copied()).or_empty(),
        };
        // Granite 3 ends its calls by no mark; other models of the family do.
        let unwritten = has(open) && !has(close) && control(close).is_none();
        let close = if unwritten { "" } else { close };
        let (header, tokens) = (notation.header, notation.tokens);
        Some(Writer { calls, form, header, open, close, tokens, control, has })
    }

    /// The marks after which calls begin.
    pub(super) fn marks(&self, tools: &[Value]) -> Result<Vec<StartMark>, Refusal> {
        if self.calls.markless {
            return self.unmarked(tools);
        }
        let own = match self.form {
            Form::Named(Named { open, .. })
            | Form::Tagged(Tagged { open, .. })
            | Form::Literal(Literal { open, .. })
            | Form::Elements(Elements { open, .. }) => *open,
            Form::Object(_) => "",
        };
        let own = Some(own).filter(|own| self.calls.bare.contains(own));
        let mark = |text: &str, start: &str| StartMark {
            text: text.to_owned(),
            start: start.to_owned(),
            begins_line: false,
        };
        let opens = self.calls.opens.iter().map(|text| mark(text, "rest"));
        Ok(opens.chain(own.map(|text| mark(text, "body"))).collect())
    }

    /// The texts with which calls without marks begin: they name one of the tools.
    fn unmarked(&self, tools: &[Value]) -> Result<Vec<StartMark>, Refusal> {
        let Form::Object(keys) = self.form else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (i, tool) in tools.iter().enumerate() {
            let name = json!(name(i, tool)?);
            for before in ["{", "{\"type\": \"function\", "] {
                let text = format!("{before}\"{}\": {name}", keys.name);
                all.push(StartMark { text, start: format!("after{i}"), begins_line: true });
            }
        }
        Ok(all)
    }

    /// The rules for what follows the marks of [`unmarked`](Self::unmarked), in addition to [`rules`](Self::rules).
    pub(super) fn unmarked_rules(&self, tools: &[Value]) -> String {
        let Form::Object(keys) = self.form else { return String::new() };
        let key = json!(format!("\"{}\":", keys.arguments.first().copied().unwrap_or("arguments")));
        let one = |i| format!("after{i}: \",\" BLANK? {key} BLANK? args{i} BLANK? \"}}\"\n");
        (0..tools.len()).map(one).collect()
    }

    /// True if calls have no marks, so that only their text distinguishes them from an answer.
    pub(super) fn is_unmarked(&self) -> bool {
        self.calls.markless
    }

    /// The rules `calls`, the whole of it; `rest`, the same after the opening mark; and `body`, a call after its own mark. With `one`,
    /// there is a single call.
    pub(super) fn rules(&self, tools: &[Value], one: bool) -> Result<String, Refusal> {
        let parsed = Tools::of(tools);
        let mut rules = String::new();
        for (i, tool) in tools.iter().enumerate() {
            let name = name(i, tool)?;
            let body = match self.form {
                Form::Object(keys) => self.object(i, name, tool, keys, &mut rules),
                Form::Named(named) => self.named(i, name, tool, named, &mut rules),
                Form::Tagged(tags) => self.tagged(i, name, tool, tags, &parsed, &mut rules),
                Form::Literal(literal) => self.literal(i, name, tool, literal, &parsed, &mut rules),
                Form::Elements(form) => self.elements(i, name, tool, form, &mut rules),
            };
            rules.push_str(&format!("body{i}: {body}\n"));
        }
        let all: Vec<String> = (0..tools.len()).map(|i| format!("body{i}")).collect();
        let own = match self.form {
            Form::Named(Named { open, .. })
            | Form::Tagged(Tagged { open, .. })
            | Form::Literal(Literal { open, .. })
            | Form::Elements(Elements { open, .. }) => self.mark(open),
            Form::Object(_) => String::new(),
        };
        let list = match self.form {
            Form::Object(keys) => keys.list,
            Form::Literal(literal) => literal.python,
            _ => false,
        };
        let inside = match (list, self.form.repeats() && !matches!(self.form, Form::Object(_))) {
            (true, _) if one => "\"[\" BLANK? call BLANK? \"]\"",
            (true, _) => "\"[\" BLANK? call (\",\" BLANK? call)* BLANK? \"]\"",
            (false, true) if !one => "call (BLANK? call)*",
            _ => "call",
        };
        let end = if self.close.is_empty() {
            String::new()
        } else {
            format!(" BLANK? {}", self.mark(self.close))
        };
        let (head, between) = self.header();
        let again = match one || self.open.is_empty() {
            true => String::new(),
            false => format!(" ({between}BLANK? section)*"),
        };
        // Of a mark that is longer after thinking, both.
        let opens = self.calls.opens.iter().filter(|mark| mark.ends_with(self.open));
        let opens: Vec<String> = opens.map(|mark| self.mark(mark)).collect();
        let open = match (self.open.is_empty(), opens.join(" | ")) {
            (true, _) => String::new(),
            (false, open) => format!("({open})"),
        };
        Ok(format!(
            "calls: section{again}\nsection: {head}{open} rest\nrest: BLANK? {inside}{end}\ncall: {own} body\nbody: {}\n{rules}{TERMINALS}",
            all.join(" | ")
        ))
    }

    /// The header of a message with a call, and what ends the message before it.
    fn header(&self) -> (String, String) {
        let Some(header) = &self.header else { return <(String, String)>::default() };
        let open = self.mark(header.open);
        let head = match (header.keeps_close, header.start) {
            (true, _) => format!("({open} KEY?)? "),
            (false, start) => {
                format!("({})? {open} KEY {} ", self.mark(start), self.mark(header.close))
            }
        };
        let between =
            if self.close == header.end { String::new() } else { self.mark(header.end) + " " };
        (head, between)
    }

    /// A text as parts of a rule: control tokens by their ids, the rest in quotes.
    pub(super) fn mark(&self, text: &str) -> String {
        mark(text, self.tokens, self.control)
    }

    /// A call of nested elements.
    fn elements(
        &self,
        i: usize,
        name: &str,
        tool: &Value,
        form: &'static Elements,
        rules: &mut String,
    ) -> String {
        if i == 0 {
            rules.push_str(&TreeWriter::shared(self, form));
        }
        let name = json!(format!("\"{name}\""));
        let mut tree = TreeWriter { writer: self, form, rules, count: 0, name: i.to_string() };
        let all = tree.object(&own_schema(tool), 0);
        let all = all.unwrap_or_else(|| "(BLANK? anyelement)*".to_owned());
        format!("{name} {} {all} BLANK? {}", self.mark(form.name_close), self.mark(form.close))
    }

    /// Parts of a rule for text up to a mark, and the mark. `text` is an expression for the text, `name` a terminal of its own.
    pub(super) fn until(&self, name: &str, text: &str, close: &str, rules: &mut String) -> String {
        until(name, text, close, (self.tokens, self.control), rules)
    }

    fn json(&self, name: &str, schema: &Value, rules: &mut String) {
        rules.push_str(&format!("{name}: %json {schema}\n"));
    }

    fn object(
        &self,
        i: usize,
        name: &str,
        tool: &Value,
        keys: &Object,
        rules: &mut String,
    ) -> String {
        let (name, args) = (json!(name), format!("args{i}"));
        self.json(&args, &schema(tool), rules);
        if keys.name.is_empty() {
            return format!("{} {args} \"}}\"", json!(format!("{{{name}: ")));
        }
        let key = keys.arguments.first().copied().unwrap_or("arguments");
        let begin = |before: &str| json!(format!("{before}\"{}\": {name}, \"{key}\": ", keys.name));
        if keys.id.is_empty() {
            let last = match keys.last_id {
                "" => String::new(),
                key => format!(" ({} SHORT_ID \"\\\"\")?", json!(format!(", \"{key}\": \""))),
            };
            return format!("{} {args}{last} \"}}\"", begin("{"));
        }
        let id = json!(format!("{{\"{}\": \"", keys.id));
        let plain = begin("{");
        format!("({plain} | {id} COUNTER {}) {args} BLANK? \"}}\"", begin("\", "))
    }

    fn named(
        &self,
        i: usize,
        name: &str,
        tool: &Value,
        named: &Named,
        rules: &mut String,
    ) -> String {
        let args = format!("args{i}");
        self.json(&args, &schema(tool), rules);
        let fenced = named.closes.contains(&FENCE[1]) && (self.has)(FENCE[0]);
        let text = |field: Field| match field {
            Field::Name if fenced => json!("function").to_string(),
            Field::Name => json!(name).to_string(),
            Field::NameIfAny if fenced => json!(format!("{name}\n{}\n", FENCE[0])).to_string(),
            Field::Id => "ID".to_owned(),
            Field::IdWithName => format!("{} COUNTER", json!(format!("functions.{name}:"))),
            Field::NameIfAny | Field::Nothing => String::new(),
        };
        let mut parts = vec![text(named.first)];
        for (mark, field) in named.fields {
            let part = format!("{} {}", self.mark(mark), text(*field));
            // An id after the name is not in every version.
            let optional = *field == Field::Id;
            parts.push(if optional { format!("({part})?") } else { part });
        }
        parts.push(args);
        for close in named.closes {
            match *close == FENCE[1] {
                true if fenced => parts.push(format!("\"\\n{}\" BLANK?", FENCE[1])),
                true => {}
                false => parts.push(self.mark(close)),
            }
        }
        parts.join(" ")
    }

    fn tagged(
        &self,
        i: usize,
        name: &str,
        tool: &Value,
        tags: &Tagged,
        tools: &Tools,
        rules: &mut String,
    ) -> String {
        let quoted = |open: &str, name: &str| match open.contains(' ') {
            true => json!(format!("\"{name}\"")).to_string(),
            false => json!(name).to_string(),
        };
        let mut head = quoted(tags.open, name);
        if tags.types == ValueTypes::Named {
            head.push_str(" \" index=\\\"\" COUNTER \"\\\"\"");
        }
        let head = format!("{head} {}", self.mark(tags.name_close));
        let end = match tags.close.is_empty() {
            true => String::new(),
            false => format!(" BLANK? {}", self.mark(tags.close)),
        };
        let close = tags.value_closes.last().copied().unwrap_or_default();
        let newline = if tags.newlines { "\n" } else { "" };
        let close = format!("{newline}{close}");
        // The tag before a value, whose type it may say.
        let before = |kind: &str| {
            let says = match (tags.types, kind) {
                (ValueTypes::Unwritten, _) => String::new(),
                (ValueTypes::IsString, kind) => format!(" string=\"{}\"", kind == "string"),
                (ValueTypes::Named, kind) => format!(" type=\"{kind}\""),
            };
            let value = match tags.value_open.is_empty() {
                true => String::new(),
                false => format!("BLANK? {}", self.mark(tags.value_open)),
            };
            let newline = if tags.newlines { "\"\\n\"" } else { "" };
            format!("{} {value} {newline}", self.mark(&format!("{says}{}", tags.key_close)))
        };
        let open = self.mark(tags.key_open);
        let Some(parameters) = parameters(tool) else {
            let key = match tags.key_open.contains(' ') {
                true => "\"\\\"\" KEY \"\\\"\"",
                false => "KEY",
            };
            let value = self.until(&format!("text{i}"), "(?s:.*)", &close, rules);
            return format!("{head} (BLANK? {open} {key} {} {value})*{end}", before("string"));
        };
        let mut parts = vec![head];
        for (j, parameter) in parameters.iter().enumerate() {
            let Parameter { key, schema, required } = parameter;
            let own = format!("{i}_{j}");
            let text = |rules: &mut String| match strings(schema) {
                Some(texts) => format!("({}) {}", texts.join(" | "), self.mark(&close)),
                None => self.until(&format!("text{own}"), &described(schema), &close, rules),
            };
            let json = |rules: &mut String| {
                self.json(
                    &format!("json{own}"),
                    &part_schema(tool, key, schema, ", ", ": "),
                    rules,
                );
                // Templates that write no types write such words, too.
                let words = tools.python_words(name, key);
                let words =
                    words.filter(|_| tags.types == ValueTypes::Unwritten && allows_any(schema));
                let values: Vec<String> = [format!("json{own}")]
                    .into_iter()
                    .chain(words.map(|word| json!(word).to_string()))
                    .collect();
                format!(
                    "{} ({}) {}",
                    json_before(tags.types, schema, &before),
                    values.join(" | "),
                    self.mark(&close)
                )
            };
            let value = match (tools.written(name, key), tags.types) {
                (Written::Json, _) => json(rules),
                (Written::Either, ValueTypes::IsString | ValueTypes::Named) => {
                    format!("({} {} | {})", before("string"), text(rules), json(rules))
                }
                (Written::Text | Written::Either, _) => {
                    format!("{} {}", before("string"), text(rules))
                }
            };
            let optional = if *required { "" } else { "?" };
            rules.push_str(&format!("p{own}: {open} {} {value}\n", quoted(tags.key_open, key)));
            parts.push(format!("(BLANK? p{own}){optional}"));
        }
        format!("{}{end}", parts.join(" "))
    }

    fn literal(
        &self,
        i: usize,
        name: &str,
        tool: &Value,
        literal: &Literal,
        tools: &Tools,
        rules: &mut String,
    ) -> String {
        let (begin, end) = literal.body;
        let (equals, comma, colon) =
            if literal.python { ("=", ", ", ": ") } else { (":", ",", ":") };
        let head = json!(format!("{name}{begin}"));
        let end = json!(end.to_string());
        let Some(mut parameters) = parameters(tool) else {
            self.json(&format!("any{i}"), &rules_of(json!({}), false, comma, colon), rules);
            let pair = format!("KEY \"{equals}\" any{i}");
            return format!("{head} ({pair} (\"{comma}\" {pair})*)? {end}");
        };
        if !literal.python {
            parameters.sort_by(|a, b| a.key.cmp(b.key));
        }
        for (j, Parameter { key, schema, .. }) in parameters.iter().enumerate() {
            let own = format!("{i}_{j}");
            let mut value = Vec::new();
            let written = if literal.python { Written::Json } else { tools.written(name, key) };
            if written != Written::Json {
                let text = match strings(schema) {
                    Some(texts) => format!("({}) {}", texts.join(" | "), self.mark(QUOTE)),
                    None => self.until(&format!("text{own}"), &described(schema), QUOTE, rules),
                };
                value.push(format!("{} {text}", self.mark(QUOTE)));
            }
            if written != Written::Text {
                let schema = part_schema(tool, key, schema, comma, colon);
                self.json(&format!("json{own}"), &schema, rules);
                value.push(format!("json{own}"));
            }
            let key = json!(format!("{key}{equals}"));
            rules.push_str(&format!("p{own}: {key} ({})\n", value.join(" | ")));
        }
        // After no parameter, and after another.
        let n = parameters.len();
        for (j, Parameter { required, .. }) in parameters.iter().enumerate() {
            let next = |state: &str| {
                if j + 1 < n { format!("{state}{i}_{}", j + 1) } else { "\"\"".to_owned() }
            };
            let skipped =
                |state: &str| if *required { String::new() } else { format!(" | {}", next(state)) };
            rules.push_str(&format!(
                "first{i}_{j}: p{i}_{j} {}{}\nnext{i}_{j}: \"{comma}\" p{i}_{j} {}{}\n",
                next("next"),
                skipped("first"),
                next("next"),
                skipped("next")
            ));
        }
        format!("{head} first{i}_0 {end}")
    }
}

/// True if a schema is seen to allow each value of the types that it names.
fn allows_any(schema: &Value) -> bool {
    let limits = ["enum", "const", "not", "if", "allOf", "$ref"];
    let members = ["anyOf", "oneOf"].iter().filter_map(|name| schema[name].as_array()).flatten();
    limits.iter().all(|name| schema.get(name).is_none()) && members.into_iter().all(allows_any)
}

/// The tag before a value that is JSON. Where it names a type, that is the one of the schema, or any where that does not say.
fn json_before(types: ValueTypes, schema: &Value, before: &dyn Fn(&str) -> String) -> String {
    let kind = match schema["type"].as_str() {
        Some("integer") => "number",
        Some(kind @ ("number" | "boolean" | "null" | "array" | "object")) => kind,
        _ if types != ValueTypes::Named => "object",
        _ => {
            let all = ["number", "boolean", "null", "array", "object"].map(before);
            return format!("({})", all.join(" | "));
        }
    };
    before(kind)
}

/// Two marks, of which one may be missing.
trait OrEmpty {
    fn or_empty(self) -> (&'static str, &'static str);
}

impl OrEmpty for (Option<&'static str>, Option<&'static str>) {
    fn or_empty(self) -> (&'static str, &'static str) {
        (self.0.unwrap_or_default(), self.1.unwrap_or_default())
    }
}

/// A text as parts of a rule: the `tokens` that are control tokens by their ids, the rest in quotes.
pub(super) fn mark(text: &str, tokens: &[&str], control: &dyn Fn(&str) -> Option<u32>) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let found =
            tokens.iter().filter_map(|token| Some((rest.find(token)?, token, control(token)?)));
        let found = found.min_by_key(|(at, token, _)| (*at, usize::MAX - token.len()));
        let (before, id, after) = match found {
            Some((at, token, id)) => (&rest[..at], Some(id), &rest[at + token.len()..]),
            None => (rest, None, ""),
        };
        if !before.is_empty() {
            parts.push(json!(before).to_string());
        }
        parts.extend(id.map(|id| format!("<[{id}]>")));
        rest = after;
    }
    parts.join(" ")
}

/// Returns the id of a control token by its spelling.
type ControlToken<'c> = &'c dyn Fn(&str) -> Option<u32>;

/// Parts of a rule for text up to a mark, and the mark. No text contains a control token, so that text before one ends there of itself.
pub(super) fn until(
    name: &str,
    text: &str,
    close: &str,
    (tokens, control): (&[&str], ControlToken<'_>),
    rules: &mut String,
) -> String {
    let found = tokens.iter().filter(|token| control(token).is_some());
    let at = found.filter_map(|token| close.find(token)).min();
    let (before, rest) = close.split_at(at.unwrap_or(close.len()));
    let expression = format!("{text}{}", escaped(before));
    if at.is_none() {
        rules.push_str(&format!("{name}[lazy]: /{expression}/\n"));
        return name.to_owned();
    }
    let rest = mark(rest, tokens, control);
    match before.is_empty() && text == "(?s:.*)" {
        true => {
            rules.push_str(&format!("{name}: /(?s:.+)/\n"));
            format!("{name}? {rest}")
        }
        false => {
            rules.push_str(&format!("{name}: /{expression}/\n"));
            format!("{name} {rest}")
        }
    }
}

/// A text as a regular expression between slashes.
pub(super) fn escaped(text: &str) -> String {
    let mut all = String::new();
    for c in text.chars() {
        match c {
            '\n' => all.push_str("\\n"),
            '.' | '^' | '$' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '\\'
            | '/' => all.extend(['\\', c]),
            c => all.push(c),
        }
    }
    all
}

/// A parameter of a tool.
struct Parameter<'t> {
    key: &'t str,
    schema: &'t Value,
    required: bool,
}

/// The parameters of a tool in their order; `None` if its schema names none.
fn parameters(tool: &Value) -> Option<Vec<Parameter<'_>>> {
    let parameters = &tool["function"]["parameters"];
    let properties: &Map<String, Value> = parameters.get("properties")?.as_object()?;
    let required = parameters["required"].as_array();
    let all: Vec<_> = properties
        .iter()
        .map(|(key, schema)| Parameter {
            key,
            schema,
            required: required.is_some_and(|all| all.iter().any(|one| *one == **key)),
        })
        .collect();
    Some(all).filter(|all| !all.is_empty())
}

/// The texts that a value may be, in quotes, if its schema lists them.
pub(super) fn strings(schema: &Value) -> Option<Vec<String>> {
    let listed = match (&schema["enum"], schema.get("const")) {
        (Value::Array(listed), _) => listed.iter().collect(),
        (_, Some(one)) => vec![one],
        _ => return None,
    };
    let texts = listed.iter().map(|one| one.as_str().map(|text| json!(text).to_string()));
    texts.collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty())
}

/// An expression for text that its schema describes: by a pattern for the whole of it, or by its length.
pub(super) fn described(schema: &Value) -> String {
    match schema["pattern"].as_str().and_then(whole_pattern) {
        Some(pattern) => format!("(?:{})", between_slashes(pattern)),
        None => length(schema),
    }
}

/// A pattern that begins at the beginning of a text and ends at its end, without the anchors, if it has no others and does not look around.
fn whole_pattern(pattern: &str) -> Option<&str> {
    let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let (mut escaped, mut in_class, mut depth, mut before) = (false, false, 0u32, ' ');
    for c in inner.chars() {
        let plain = !std::mem::replace(&mut escaped, false);
        match c {
            // A word's border is a place, too.
            'b' | 'B' if !plain && !in_class => return None,
            _ if !plain => {}
            '\\' => escaped = true,
            ']' => in_class = false,
            _ if in_class => {}
            '[' => in_class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return None,
            '^' | '$' => return None,
            '=' | '!' if before == '?' => return None,
            _ => {}
        }
        before = if plain { c } else { ' ' };
    }
    (!escaped && !inner.contains("(?<=") && !inner.contains("(?<!")).then_some(inner)
}

/// A regular expression as it is written between slashes.
fn between_slashes(expression: &str) -> String {
    let (mut all, mut escaped) = (String::new(), false);
    for c in expression.chars() {
        match c {
            '/' if !escaped => all.push_str("\\/"),
            '\n' if escaped => {
                all.pop();
                all.push_str("\\n");
            }
            '\n' => all.push_str("\\n"),
            c => all.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    all
}

/// An expression for text of the length that its schema wants.
fn length(schema: &Value) -> String {
    let of = |key: &str| schema[key].as_u64().filter(|n| *n <= MAX_COUNTED);
    match (of("minLength"), of("maxLength")) {
        (None | Some(0), None) => "(?s:.*)".to_owned(),
        (least, None) => format!("(?s:.{{{},}})", least.unwrap_or(0)),
        (least, Some(most)) => format!("(?s:.{{{},{most}}})", least.unwrap_or(0).min(most)),
    }
}

pub(super) fn rules_of(mut schema: Value, strict: bool, item: &str, key: &str) -> Value {
    if schema.is_boolean() {
        schema = if schema == json!(false) { json!({"not": {}}) } else { json!({}) };
    }
    with_rules(&mut schema, strict);
    schema["x-guidance"]["item_separator"] = item.into();
    schema["x-guidance"]["key_separator"] = key.into();
    schema
}

/// The schema of one parameter, on its own.
fn part_schema(tool: &Value, key: &str, schema: &Value, item: &str, colon: &str) -> Value {
    let strict = tool["function"]["strict"] == true;
    if !schema.to_string().contains("\"$ref\"") {
        return rules_of(schema.clone(), strict, item, colon);
    }
    // References count from the root of the tool's schema.
    let mut root = own_schema(tool);
    moved(&mut root);
    let step = key.replace('~', "~0").replace('/', "~1");
    let part = json!({"$ref": format!("#/$defs/root/properties/{step}"), "$defs": {"root": root}});
    rules_of(part, strict, item, colon)
}

/// Makes references count from where the root of the schema is moved to.
fn moved(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                match inner {
                    Value::String(reference) if key == "$ref" && reference.starts_with('#') => {
                        *reference = format!("#/$defs/root{}", &reference[1..]);
                    }
                    inner => moved(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(moved),
        _ => {}
    }
}

#[cfg(all(test, feature = "grammar"))]
mod tests {
    use super::super::{Compiler, Wanted};
    use super::*;

    fn tools() -> Vec<Value> {
        let parameters = json!({"type": "object", "properties": {
            "city": {"type": "string"}, "n": {"type": "integer"}, "unit": {"enum": ["C", "F"]}, "on": {"$ref": "#/$defs/on"},
            "l": {"type": "array", "items": {"type": "string"}}
        }, "required": ["city", "n"], "additionalProperties": false, "$defs": {"on": {"type": "boolean"}}});
        vec![
            json!({"type": "function", "function": {"name": "f", "parameters": parameters}}),
            json!({"type": "function", "function": {"name": "g"}}),
        ]
    }

    /// True if an answer that must be calls may be this text, whole.
    fn accepts(format: Format, template: &str, text: &str, one: bool) -> bool {
        let (has, none) = (|text: &str| template.contains(text), |_: &str| None);
        let writer = Writer::new(format, &has, &none).unwrap();
        let lark = format!("start: calls\n{}", writer.rules(&tools(), one).unwrap());
        let compiled = Compiler::of_bytes().compile(Wanted::Calls(lark.clone()));
        let mut grammar = compiled.unwrap_or_else(|why| panic!("{format:?} {why}\n{lark}"));
        if !grammar.accept_text(text.as_bytes()) {
            return false;
        }
        grammar.has_ended() || grammar.mask().unwrap().allowed.is_allowed(256)
    }

    /// Calls of `f` and `g` as each family writes them, and the text of its template that decides.
    const CALLS: [(Format, &str, &str, &str); 26] = [
        (
            Format::MiniMax3,
            "",
            "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[<n>1]<]minimax[>[</n>]<]minimax[>[<l>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[</l>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
            "\n]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"g\">]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
        ),
        (
            Format::Plain,
            "",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}\n</tool_call>",
            "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            Format::Dsml,
            " invoke name= parameter name= calls>",
            "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"city\" string=\"true\">Oslo</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
            "<｜DSML｜ calls><｜DSML｜ invoke name=\"g\"></｜DSML｜ invoke></｜DSML｜ calls>",
        ),
        (
            Format::GigaChat,
            "",
            "<|function_call|>{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}",
            "<|function_call|>{\"name\": \"g\", \"arguments\": {}}",
        ),
        (
            Format::Muse,
            "",
            " to=f<|message|><atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"city\">Oslo</atem:parameter>\n<atem:parameter name=\"n\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
            "<|eom|><|start|>assistant to=g<|message|><atem:function_calls><atem:invoke name=\"g\"></atem:invoke></atem:function_calls>",
        ),
        (
            Format::Functionary,
            "",
            "<function=f>{\"city\": \"Oslo\", \"n\": 1}</function>",
            "<function=g>{}</function>",
        ),
        (
            Format::Inkling,
            "",
            "<|content_invoke_tool_json|>{\"name\": \"f\", \"args\": {\"city\": \"Oslo\", \"n\": 1}}<|end_message|>",
            "<|message_model|>g<|content_invoke_tool_json|>{\"name\": \"g\", \"args\": {}}<|end_message|>",
        ),
        (
            Format::ChatMl,
            "",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}\n</tool_call>",
            "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            Format::ChatMl,
            "<function=<parameter=",
            "<tool_call>\n<function=f>\n<parameter=city>\nOslo </parameter>\nx\n</parameter>\n<parameter=n>\n1\n</parameter>\n<parameter=l>\n[\"a\", \"b\"]\n</parameter>\n</function>\n</tool_call>",
            "\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        (
            Format::Seed,
            "",
            "<seed:tool_call>\n<function=f>\n<parameter=city>Oslo</parameter>\n<parameter=n>1</parameter>\n<parameter=unit>C</parameter>\n</function>\n</seed:tool_call>",
            "\n<seed:tool_call><function=g></function></seed:tool_call>",
        ),
        (
            Format::Glm,
            "",
            "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n<arg_key>on</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
            "<tool_call>g</tool_call>",
        ),
        (
            Format::Hy3,
            "",
            "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
            "\n<tool_calls:opensource><tool_call:opensource>g<tool_sep:opensource></tool_call:opensource></tool_calls:opensource>",
        ),
        (
            Format::DeepSeek,
            "```json",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"city\": \"Oslo\", \"n\": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            Format::DeepSeek,
            "",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"city\": \"Oslo\", \"n\": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ),
        (
            Format::Dsml,
            "function_calls",
            "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            "<｜DSML｜function_calls><｜DSML｜invoke name=\"g\"></｜DSML｜invoke></｜DSML｜function_calls>",
        ),
        (
            Format::Kimi,
            "",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"n\": 1}<|tool_call_end|><|tool_calls_section_end|>",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        ),
        (
            Format::KimiK3,
            "",
            "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"0\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Oslo<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
            "<|open|>tools<|sep|><|open|>call tool=\"g\" index=\"1\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ),
        (
            Format::MiniMax,
            "",
            "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">Oslo</parameter>\n<parameter name=\"n\">1</parameter>\n</invoke>\n</minimax:tool_call>",
            "<minimax:tool_call><invoke name=\"g\"></invoke></minimax:tool_call>",
        ),
        (
            Format::Mistral,
            "",
            "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}]",
            "[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}, \"id\": \"a1B2c3D4e\"}]",
        ),
        (
            Format::Mistral,
            "[ARGS]",
            "[TOOL_CALLS]f[ARGS]{\"city\": \"Oslo\", \"n\": 1}",
            "[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}",
        ),
        (
            Format::Command,
            "",
            "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": {\"city\": \"Oslo\", \"n\": 1}}\n]<|END_ACTION|>",
            "<|START_ACTION|>[{\"tool_name\": \"g\", \"parameters\": {}}]<|END_ACTION|>",
        ),
        (
            Format::Apertus,
            "",
            "<|tools_prefix|>[{\"f\": {\"city\": \"Oslo\", \"n\": 1}}]<|tools_suffix|>",
            "<|tools_prefix|>[{\"g\": {}}]<|tools_suffix|>",
        ),
        (
            Format::Solar,
            "",
            "<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{\"city\": \"Oslo\", \"n\": 1}<|tool_call:end|><|calls|>",
            "<|tool_calls|><|tool_call:begin|>a2<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        ),
        (
            Format::MiniCpm5,
            "",
            "<function name=\"f\"><param name=\"city\">Oslo</param><param name=\"n\">1</param></function>",
            "",
        ),
        (
            Format::Lfm2,
            "",
            "<|tool_call_start|>[f(city=\"Oslo\", n=1, on=true)]<|tool_call_end|>",
            "<|tool_call_start|>[g()]<|tool_call_end|>",
        ),
        (
            Format::Gemma4,
            "",
            "<|tool_call>call:f{city:<|\"|>Oslo<|\"|>,l:[\"a\"],n:1,unit:<|\"|>C<|\"|>}<tool_call|>",
            "<|tool_call>call:g{}<tool_call|>",
        ),
    ];

    #[test]
    fn each_family_s_own_text_is_accepted_and_the_parser_reads_it() {
        for (format, template, call, other) in CALLS {
            assert!(accepts(format, template, call, true), "{format:?} {call}");
            let two = format!("{call}{other}");
            assert!(accepts(format, template, &two, false), "{format:?} {two}");
            assert_eq!(accepts(format, template, &two, true), other.is_empty(), "{format:?} {two}");
            // Half a call is none, and text before it is not allowed.
            assert!(
                !accepts(format, template, &call[..call.rfind('n').unwrap()], true),
                "{format:?}"
            );
            assert!(!accepts(format, template, &format!("So: {call}"), true), "{format:?}");
            let mut parser =
                alight_text::output::Parser::new(format, "").with_tools(Tools::of(&tools()));
            let mut names = Vec::new();
            let each = &mut |span: alight_text::output::Span<'_>| {
                if let alight_text::output::Part::Call(call) = &span.part {
                    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                    names.push((call.name.clone(), arguments["n"].clone()));
                }
            };
            parser.push(&two, each);
            parser.finish(each);
            let mut wanted = vec![("f".to_owned(), json!(1)), ("g".to_owned(), Value::Null)];
            wanted.truncate(if other.is_empty() { 1 } else { 2 });
            assert_eq!(names, wanted, "{format:?}");
        }
    }

    #[test]
    fn calls_end_as_the_template_ends_them_and_begin_as_they_do_after_thinking() {
        let granite =
            "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}]";
        assert!(accepts(Format::Granite3, "'<|tool_call|>'", granite, true));
        let phi = format!("{granite}<|/tool_call|>");
        assert!(accepts(Format::Granite3, "<|tool_call|><|/tool_call|>", &phi, true));
        assert!(!accepts(Format::Granite3, "<|tool_call|><|/tool_call|>", granite, true));
        let solar = CALLS.iter().find(|(format, ..)| *format == Format::Solar).unwrap().2;
        assert!(accepts(Format::Solar, "", &format!("<|begin|>assistant{solar}"), true));
    }

    #[test]
    fn a_tag_names_the_type_of_json() {
        let call = |kind: &str| {
            format!(
                "<|open|>tools<|sep|><|open|>call tool=\"h\" index=\"1\"<|sep|><|open|>argument key=\"x\" type=\"{kind}\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
            )
        };
        for (schema, kinds) in [
            (json!({"type": "integer"}), &["number"][..]),
            (json!({"enum": [1, true, []]}), &["number", "boolean", "array", "object", "null"]),
        ] {
            let parameters =
                json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
            let tools =
                [json!({"type": "function", "function": {"name": "h", "parameters": parameters}})];
            let (has, none) = (|_: &str| false, |_: &str| None);
            let writer = Writer::new(Format::KimiK3, &has, &none).unwrap();
            let lark = format!("start: calls\n{}", writer.rules(&tools, true).unwrap());
            for kind in ["number", "integer", "boolean", "array", "object", "null"] {
                let mut grammar =
                    Compiler::of_bytes().compile(Wanted::Calls(lark.clone())).unwrap();
                assert_eq!(
                    grammar.accept_text(call(kind).as_bytes()),
                    kinds.contains(&kind),
                    "{kind}"
                );
            }
        }
    }

    /// Templates of tagged notations feed truth values back in Python's words, which models then write.
    #[test]
    fn words_of_python_are_values_where_the_schema_allows_them() {
        let either = json!({"anyOf": [{"type": "boolean"}, {"type": "null"}]});
        for (schema, words) in [
            (json!({"type": "boolean"}), &["true", "True", "False"][..]),
            (json!({"type": ["boolean", "null"]}), &["false", "True", "False", "None"]),
            (either, &["null", "True", "False", "None"]),
            (json!({"const": true}), &["true"]),
            (json!({"anyOf": [{"const": true}, {"type": "null"}]}), &["true", "null"]),
            (json!({"type": "integer"}), &["1"]),
        ] {
            let parameters =
                json!({"type": "object", "properties": {"x": schema}, "required": ["x"]});
            let tools =
                [json!({"type": "function", "function": {"name": "h", "parameters": parameters}})];
            let (has, none) = (|text: &str| "<function=<parameter=".contains(text), |_: &str| None);
            let writer = Writer::new(Format::ChatMl, &has, &none).unwrap();
            let lark = format!("start: calls\n{}", writer.rules(&tools, true).unwrap());
            for word in ["true", "false", "null", "True", "False", "None", "1"] {
                let call = format!(
                    "<tool_call>\n<function=h>\n<parameter=x>\n{word}\n</parameter>\n</function>\n</tool_call>"
                );
                let mut grammar =
                    Compiler::of_bytes().compile(Wanted::Calls(lark.clone())).unwrap();
                let json = serde_json::from_str::<Value>(word);
                let is_json = json.is_ok_and(|value| allowed(&schema, &value));
                let wanted = is_json || words.contains(&word);
                assert_eq!(grammar.accept_text(call.as_bytes()), wanted, "{schema} {word}");
            }
        }
    }

    /// True if one of the few schemas above allows a value.
    fn allowed(schema: &Value, value: &Value) -> bool {
        let is = |name: &str| match name {
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            _ => value.is_i64(),
        };
        match (&schema["type"], schema.get("const"), schema["anyOf"].as_array()) {
            (Value::String(name), ..) => is(name),
            (Value::Array(names), ..) => names.iter().any(|name| is(name.as_str().unwrap())),
            (_, Some(only), _) => only == value,
            (.., Some(all)) => all.iter().any(|one| allowed(one, value)),
            _ => false,
        }
    }

    #[test]
    fn wrong_arguments_and_unknown_tools_are_not() {
        for (format, template, call, _) in CALLS {
            for (right, wrong) in [("n", "m"), ("1", "x"), ("f", "h")] {
                // The last place where it stands for an argument or for the name.
                let places: Vec<usize> = call.match_indices(right).map(|(at, _)| at).collect();
                let changed = |at: &usize| format!("{}{wrong}{}", &call[..*at], &call[at + 1..]);
                assert!(
                    places.iter().any(|at| !accepts(format, template, &changed(at), true)),
                    "{format:?} {right}"
                );
            }
            let without = call.replace("Oslo", "");
            assert!(accepts(format, template, &without, true), "{format:?} {without}");
        }
        // A missing argument, and one of a list.
        let glm = "<tool_call>f<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>";
        assert!(!accepts(Format::Glm, "", glm, true));
        let seed = CALLS[2].2.replace(">C<", ">K<");
        assert!(!accepts(Format::Seed, "", &seed, true));
    }

    #[test]
    fn a_pattern_of_a_whole_text_is_held_between_tags() {
        for (pattern, inner) in [
            ("^a/b$", Some("a/b")),
            ("^(?:a|[$^]\\\\)$", Some("(?:a|[$^]\\\\)")),
            ("^a|b$", None),
            ("a", None),
            ("^a\\$", None),
            ("^a$b$", None),
            ("^(?=a)a$", None),
            ("^(?<!a)a$", None),
            ("^a\\b$", None),
        ] {
            assert_eq!(whole_pattern(pattern), inner, "{pattern}");
        }
        assert_eq!(between_slashes("a/b\\/c\n\\\\/"), "a\\/b\\/c\\n\\\\\\/");
        let schema = json!({"pattern": "^a/b$", "minLength": 9});
        assert_eq!(described(&schema), "(?:a\\/b)");
    }

    #[test]
    fn llama_s_calls_have_no_marks() {
        let call = "{\"name\": \"f\", \"parameters\": {\"city\": \"Oslo\", \"n\": 1}}";
        assert!(accepts(Format::Llama, "", call, true));
        assert!(!accepts(Format::Llama, "", &call.replace("parameters", "arguments"), true));
    }

    #[test]
    fn the_name_of_a_tool_begins_a_call_without_marks() {
        let (has, none) = (|_: &str| false, |_: &str| None);
        let writer = Writer::new(Format::Llama, &has, &none).unwrap();
        let marks = writer.marks(&tools()).unwrap();
        let begins: Vec<&str> = marks.iter().map(|mark| &*mark.text).collect();
        assert_eq!(begins.len(), 4);
        assert!(begins.contains(&"{\"name\": \"f\""), "{begins:?}");
        assert!(begins.contains(&"{\"type\": \"function\", \"name\": \"g\""), "{begins:?}");
        let rules = writer.rules(&tools(), false).unwrap() + &writer.unmarked_rules(&tools());
        for (text, fits) in [
            (", \"parameters\": {\"city\": \"Oslo\", \"n\": 1}}", true),
            (", \"parameters\": {\"city\": \"Oslo\"}}", false),
            (", \"arguments\": {\"city\": \"Oslo\", \"n\": 1}}", false),
        ] {
            let lark = format!("start: {}\n{rules}", marks[0].start);
            let mut grammar = Compiler::of_bytes().compile(Wanted::Calls(lark)).unwrap();
            assert_eq!(grammar.accept_text(text.as_bytes()), fits, "{text}");
        }
    }
}
