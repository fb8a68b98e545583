//! Lark grammars without recursion as regular expressions: a text that stands in JSON, or between the tags of a call, can be held to an
//! expression, and to no rules of its own.
//!
//! Invariant: the work is bounded by the length of the grammar and of the expression, and groups and rules nest at most [`MAX_DEPTH`] deep.

use std::collections::HashMap;
use std::iter::Peekable;
use std::str::Chars;

/// Maximum nesting of groups, and of rules in rules.
const MAX_DEPTH: usize = 24;
/// The terminals of Lark's own library that grammars import.
const COMMON: [(&str, &str); 18] = [
    ("CR", r"\r"),
    ("LF", r"\n"),
    ("NEWLINE", r"(?:\r?\n)+"),
    ("WS", r"[ \t\f\r\n]+"),
    ("WS_INLINE", r"[ \t]+"),
    ("DIGIT", "[0-9]"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("SIGNED_INT", r"[+\-]?[0-9]+"),
    ("DECIMAL", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"),
    ("NUMBER", r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?"),
    ("SIGNED_NUMBER", r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?"),
    ("LCASE_LETTER", "[a-z]"),
    ("UCASE_LETTER", "[A-Z]"),
    ("LETTER", "[A-Za-z]"),
    ("WORD", "[A-Za-z]+"),
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("ESCAPED_STRING", r#""(?:[^"\\]|\\.)*""#),
];

/// The reason why a grammar is no regular expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotRegular {
    /// The text is not Lark.
    #[error("line {line}: found {found}, expected {expected}")]
    Syntax { line: usize, found: String, expected: &'static str },
    /// A rule is not defined.
    #[error("there is no rule {0:?}")]
    Unknown(String),
    /// A rule occurs in itself.
    #[error(
        "the rule {0:?} occurs in itself, and only rules that do not can be held in the input of a tool"
    )]
    Recursive(String),
    /// A part that no expression has.
    #[error("line {line}: {what} cannot be held in the input of a tool")]
    Unsupported { line: usize, what: &'static str },
    /// It nests too deeply.
    #[error("it nests more than {MAX_DEPTH} deep")]
    TooDeep,
    /// The expression is too long.
    #[error("as one regular expression it has more than {0} bytes: make it simpler")]
    TooLong(usize),
}

/// A part of a rule.
enum Node {
    /// An expression that needs no group.
    Expression(String),
    Rule(String),
    Sequence(Vec<Node>),
    OneOf(Vec<Node>),
    Repeated(Box<Node>, String),
}

/// Returns the expression, of at most `most` bytes, of all texts that the rule `start` of a grammar allows.
pub(super) fn expression(grammar: &str, most: usize) -> Result<String, NotRegular> {
    let mut rules = HashMap::new();
    let mut reader = LarkReader { rest: grammar.chars().peekable(), line: 1 };
    while let Some((name, rule)) = reader.definition()? {
        rules.insert(name, rule);
    }
    let mut writer =
        ExpressionWriter { rules: &rules, open: Vec::new(), most, text: String::new() };
    writer.rule("start")?;
    Ok(writer.text)
}

/// Writes the expression of a rule.
struct ExpressionWriter<'g> {
    rules: &'g HashMap<String, Node>,
    /// The rules that are being written, one in the other.
    open: Vec<&'g str>,
    most: usize,
    text: String,
}

impl<'g> ExpressionWriter<'g> {
    fn push(&mut self, text: &str) -> Result<(), NotRegular> {
        self.text.push_str(text);
        if self.text.len() > self.most { Err(NotRegular::TooLong(self.most)) } else { Ok(()) }
    }

    fn rule(&mut self, name: &str) -> Result<(), NotRegular> {
        let known = self.rules.get_key_value(name);
        let (name, node) = known.ok_or_else(|| NotRegular::Unknown(name.to_owned()))?;
        if self.open.contains(&&**name) {
            return Err(NotRegular::Recursive(name.clone()));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(NotRegular::TooDeep);
        }
        self.open.push(name);
        self.node(node)?;
        self.open.pop();
        Ok(())
    }

    fn node(&mut self, node: &'g Node) -> Result<(), NotRegular> {
        match node {
            Node::Expression(text) => self.push(text),
            Node::Rule(name) => {
                self.push("(?:")?;
                self.rule(name)?;
                self.push(")")
            }
            Node::Sequence(parts) => parts.iter().try_for_each(|part| self.node(part)),
            Node::OneOf(parts) => {
                self.push("(?:")?;
                for (i, part) in parts.iter().enumerate() {
                    self.push(if i == 0 { "" } else { "|" })?;
                    self.node(part)?;
                }
                self.push(")")
            }
            Node::Repeated(part, count) => {
                self.push("(?:")?;
                self.node(part)?;
                self.push(")")?;
                self.push(count)
            }
        }
    }
}

/// Reads a grammar.
struct LarkReader<'g> {
    rest: Peekable<Chars<'g>>,
    line: usize,
}

impl LarkReader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    fn expected(&mut self, expected: &'static str) -> NotRegular {
        let found = self.peek().map_or("the end".to_owned(), |c| format!("{c:?}"));
        NotRegular::Syntax { line: self.line, found, expected }
    }

    fn unsupported(&self, what: &'static str) -> NotRegular {
        NotRegular::Unsupported { line: self.line, what }
    }

    /// Skips blanks and comments, and with `lines` ends of lines.
    fn blank(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            if c == '/' && self.rest.clone().nth(1) == Some('/') {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if c.is_whitespace() && (lines || c != '\n') {
                self.next();
            } else {
                break;
            }
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
            self.next();
        }
        name
    }

    /// The next rule or terminal with its name.
    fn definition(&mut self) -> Result<Option<(String, Node)>, NotRegular> {
        self.blank(true);
        if self.peek().is_none() {
            return Ok(None);
        }
        if self.eat('%') {
            return self.import().map(Some);
        }
        while self.eat('?') || self.eat('!') {}
        let name = self.name();
        if name.is_empty() {
            return Err(self.expected("the name of a rule"));
        }
        if self.eat('.') {
            // A priority changes how a text is divided, and not which texts there are.
            self.name();
        }
        self.blank(false);
        match self.peek() {
            Some('{') => return Err(self.unsupported("a rule with parameters")),
            Some('[') => return Err(self.unsupported("an attribute of a rule")),
            _ => {}
        }
        if !self.eat(':') {
            return Err(self.expected("a colon after the name of a rule"));
        }
        let node = self.choices(0)?;
        self.blank(false);
        match self.peek() {
            None | Some('\n') => Ok(Some((name, node))),
            _ => Err(self.expected("the end of the rule")),
        }
    }

    /// An import after its first character. Other directives are not supported.
    fn import(&mut self) -> Result<(String, Node), NotRegular> {
        match &*self.name() {
            "import" => {}
            "ignore" => return Err(self.unsupported("%ignore")),
            _ => return Err(self.unsupported("a directive other than %import")),
        }
        self.blank(false);
        let library = self.name();
        if library != "common" || !self.eat('.') {
            return Err(self.unsupported("an import other than %import common.NAME"));
        }
        let name = self.name();
        let known = COMMON.iter().find(|(known, _)| *known == name);
        let (_, expression) = known.ok_or_else(|| NotRegular::Unknown(format!("common.{name}")))?;
        self.blank(false);
        let mut alias = name;
        if self.eat('-') && self.eat('>') {
            self.blank(false);
            alias = self.name();
        }
        Ok((alias, Node::Expression(format!("(?:{expression})"))))
    }

    /// Sequences between bars. A bar may begin the next line.
    fn choices(&mut self, depth: usize) -> Result<Node, NotRegular> {
        if depth > MAX_DEPTH {
            return Err(NotRegular::TooDeep);
        }
        let mut all = vec![self.sequence(depth)?];
        loop {
            let here = self.rest.clone();
            let line = self.line;
            self.blank(true);
            if !self.eat('|') {
                // Of a group, ends of lines are blanks.
                if depth == 0 {
                    (self.rest, self.line) = (here, line);
                }
                break;
            }
            all.push(self.sequence(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::OneOf(all) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, NotRegular> {
        let mut parts = Vec::new();
        loop {
            self.blank(depth > 0);
            match self.peek() {
                None | Some('\n' | '|' | ')' | ']') => break,
                // The name of an alternative.
                Some('-') => {
                    self.next();
                    if !self.eat('>') {
                        return Err(self.expected("-> and a name"));
                    }
                    self.blank(false);
                    self.name();
                }
                _ => parts.push(self.part(depth)?),
            }
        }
        Ok(Node::Sequence(parts))
    }

    /// An atom, and how often it occurs.
    fn part(&mut self, depth: usize) -> Result<Node, NotRegular> {
        let atom = self.atom(depth)?;
        let mut count = String::new();
        match self.peek() {
            Some(c @ ('?' | '*' | '+')) => {
                self.next();
                count.push(c);
            }
            Some('~') => {
                self.next();
                self.blank(false);
                let least = self.name();
                let most = (self.eat('.') && self.eat('.')).then(|| self.name());
                count = self.count(&least, most)?;
            }
            Some('{') => {
                self.next();
                self.blank(false);
                let least = self.name();
                self.blank(false);
                let most = self.eat(',').then(|| {
                    self.blank(false);
                    self.name()
                });
                self.blank(false);
                if !self.eat('}') {
                    return Err(self.expected("} after a count"));
                }
                count = self.count(&least, most)?;
            }
            _ => return Ok(atom),
        }
        Ok(Node::Repeated(Box::new(atom), count))
    }

    fn count(&mut self, least: &str, most: Option<String>) -> Result<String, NotRegular> {
        let number = |text: &str| text.parse::<u16>().is_ok();
        let fits = most.as_deref().is_none_or(|most| most.is_empty() || number(most));
        if !fits || !number(least) {
            return Err(self.expected("a count of at most 65535"));
        }
        Ok(match most {
            Some(most) => format!("{{{least},{most}}}"),
            None => format!("{{{least}}}"),
        })
    }

    fn atom(&mut self, depth: usize) -> Result<Node, NotRegular> {
        match self.peek() {
            Some(open @ ('(' | '[')) => {
                self.next();
                let inner = self.choices(depth + 1)?;
                let close = if open == '(' { ')' } else { ']' };
                if !self.eat(close) {
                    return Err(self.expected("the end of a group"));
                }
                Ok(match open {
                    '(' => inner,
                    _ => Node::Repeated(Box::new(inner), "?".to_owned()),
                })
            }
            Some('"') => {
                let text = self.string()?;
                if self.rest.clone().take(2).eq("..".chars()) {
                    self.next();
                    self.next();
                    let last = self.string()?;
                    return self.range(&text, &last);
                }
                let flag = if self.eat('i') { "(?i:" } else { "(?:" };
                Ok(Node::Expression(format!("{flag}{})", super::notation::escaped(&text))))
            }
            Some('/') => self.regex().map(Node::Expression),
            Some('<') => Err(self.unsupported("a special token")),
            Some('%') => Err(self.unsupported("a grammar in a grammar")),
            Some(c) if c.is_ascii_alphabetic() || c == '_' => Ok(Node::Rule(self.name())),
            _ => Err(self.expected("a name, a text or a regular expression")),
        }
    }

    fn range(&mut self, first: &str, last: &str) -> Result<Node, NotRegular> {
        let one = |text: &str| Some(text.chars().next()?).filter(|c| c.len_utf8() == text.len());
        match (one(first), one(last)) {
            (Some(first), Some(last)) if first <= last => {
                let (first, last) = (u32::from(first), u32::from(last));
                Ok(Node::Expression(format!("[\\x{{{first:x}}}-\\x{{{last:x}}}]")))
            }
            _ => Err(self.expected("a range from a character to a later one")),
        }
    }

    /// A text in quotes, with the escapes of JSON.
    fn string(&mut self) -> Result<String, NotRegular> {
        let mut quoted = String::new();
        let mut escaped = false;
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.expected("the end of a text")),
                Some(c) => {
                    quoted.push(c);
                    self.next();
                    if c == '"' && !escaped && quoted.len() > 1 {
                        break;
                    }
                    escaped = c == '\\' && !escaped;
                }
            }
        }
        serde_json::from_str(&quoted)
            .map_err(|_| self.unsupported("an escape that JSON does not have"))
    }

    /// An expression between slashes, with its flags.
    fn regex(&mut self) -> Result<String, NotRegular> {
        self.next();
        let (mut text, mut escaped) = (String::new(), false);
        loop {
            match self.peek() {
                None | Some('\n') => return Err(self.expected("the end of a regular expression")),
                Some('/') if !escaped => {
                    self.next();
                    break;
                }
                Some(c) => {
                    text.push(c);
                    self.next();
                    escaped = c == '\\' && !escaped;
                }
            }
        }
        let mut flags = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_alphabetic) {
            match c {
                'i' | 's' => flags.push(c),
                // Texts are Unicode, and there are no anchors.
                'u' | 'm' => {}
                _ => {
                    return Err(
                        self.unsupported("a flag of a regular expression other than i, m, s and u")
                    );
                }
            }
            self.next();
        }
        Ok(format!("(?{flags}:{text})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(grammar: &str) -> Result<String, NotRegular> {
        expression(grammar, 4096)
    }

    #[test]
    fn a_grammar_becomes_one_expression() {
        for (grammar, wanted) in [
            ("start: \"a.b\"", r"(?:a\.b)"),
            (
                "// c\nstart: A B? // d\n\nA: \"a\"i\nB: /[\\/]b/s\n",
                r"(?:(?i:a))(?:(?:(?s:[\/]b)))?",
            ),
            ("start: x+\n  | y~2..3\nx: \"x\"\ny: \"y\"", r"(?:(?:(?:(?:x)))+|(?:(?:(?:y))){2,3})"),
            ("start: [\"a\"] (\"b\" |\n \"c\"){2,}", r"(?:(?:a))?(?:(?:(?:b)|(?:c))){2,}"),
            ("%import common.LF\nstart: \"a\"..\"f\" LF -> x", r"[\x{61}-\x{66}](?:(?:\n))"),
            ("%import common.INT -> N\n?start.2: N{3}", "(?:(?:(?:[0-9]+))){3}"),
        ] {
            assert_eq!(of(grammar).as_deref(), Ok(wanted), "{grammar}");
        }
    }

    #[test]
    fn what_no_expression_has_is_named() {
        for (grammar, wanted) in [
            ("start: \"(\" start \")\" |", "occurs in itself"),
            ("start: a", "no rule \"a\""),
            ("a: \"b\"", "no rule \"start\""),
            ("start: \"a\"\n%ignore \" \"", "line 2: %ignore"),
            ("start: <|x|>", "a special token"),
            ("start: %json {}", "a grammar in a grammar"),
            ("start[lazy]: \"a\"", "an attribute"),
            ("start: \"a", "line 1: found the end, expected the end of a text"),
            ("start \"a\"", "expected a colon"),
            ("start: (\"a\"", "the end of a group"),
            ("%import python.NAME\nstart: NAME", "an import other than"),
            ("start: \"a\"~70000", "a count"),
        ] {
            let error = of(grammar).unwrap_err().to_string();
            assert!(error.contains(wanted), "{grammar}: {error}");
        }
        assert_eq!(of(&format!("start: {}", "(".repeat(100_000))), Err(NotRegular::TooDeep));
        let doubling: String = (0..20).map(|i| format!("r{i}: r{} r{}\n", i + 1, i + 1)).collect();
        let bomb = format!("start: r0\n{doubling}r20: \"a\"");
        assert_eq!(of(&bomb), Err(NotRegular::TooLong(4096)));
    }
}
