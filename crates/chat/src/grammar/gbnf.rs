//! Translates GBNF, llama.cpp's grammars, to llguidance's Lark.
//!
//! A rule that reaches no recursive rule becomes a terminal there, and so does each piece between rules that do: llguidance matches a
//! terminal as long as it can continue. A grammar in which a piece ends only because the next rule begins with text that could also
//! continue the piece therefore accepts less than in llama.cpp; grammars without recursive rules are read exactly.

use std::collections::HashMap;
use std::fmt::Write;

/// Maximum number of rules, depth of nested brackets, and count of a repetition.
const RULES: usize = 1000;
const DEPTH: usize = 64;
const TIMES: u32 = 2000;

/// A part of a rule.
#[derive(Clone, Debug)]
enum Node {
    Text(String),
    /// A regular expression of one character.
    Class(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Either(Vec<Node>),
    /// A minimum and a maximum number of repetitions.
    Times(Box<Node>, u32, Option<u32>),
}

/// Returns the same grammar in Lark.
pub(crate) fn lark(gbnf: &str) -> Result<String, String> {
    let mut reader =
        Reader { rest: gbnf, all: gbnf.len(), numbers: HashMap::new(), rules: Vec::new() };
    reader.skip();
    while !reader.rest.is_empty() {
        reader.rule()?;
    }
    let root = *reader.numbers.get("root").ok_or("there is no rule \"root\"")?;
    let unknown = reader.numbers.iter().find(|(_, number)| reader.rules[**number].is_none());
    if let Some((name, _)) = unknown {
        return Err(format!("there is no rule {name:?}"));
    }
    let rules: Vec<Node> = reader.rules.into_iter().flatten().collect();
    let mut writer = GbnfWriter { regular: regular(&rules), out: String::new(), pieces: 0 };
    let mut wanted = vec![false; rules.len()];
    let mut open = vec![root];
    while let Some(number) = open.pop() {
        if !std::mem::replace(&mut wanted[number], true) {
            each_rule(&rules[number], &mut |other| open.push(other));
        }
    }
    let start = writer.name(root);
    let _ = writeln!(writer.out, "start: {start}");
    for (number, rule) in rules.iter().enumerate().filter(|(number, _)| wanted[*number]) {
        let name = writer.name(number);
        let body = writer.node(rule, writer.regular[number]);
        let _ = writeln!(writer.out, "{name}: {body}");
    }
    Ok(writer.out)
}

fn each_rule(node: &Node, each: &mut dyn FnMut(usize)) {
    match node {
        Node::Text(_) | Node::Class(_) => {}
        Node::Rule(number) => each(*number),
        Node::Sequence(all) | Node::Either(all) => all.iter().for_each(|one| each_rule(one, each)),
        Node::Times(one, ..) => each_rule(one, each),
    }
}

/// For each rule, true if it reaches no recursive rule.
fn regular(rules: &[Node]) -> Vec<bool> {
    let mut known = vec![false; rules.len()];
    loop {
        let before = known.clone();
        for (number, rule) in rules.iter().enumerate() {
            let mut all = true;
            each_rule(rule, &mut |other| all &= known[other]);
            known[number] = all;
        }
        if known == before {
            return known;
        }
    }
}

struct GbnfWriter {
    regular: Vec<bool>,
    out: String,
    /// Number of terminals that were made from pieces of rules.
    pieces: usize,
}

impl GbnfWriter {
    fn name(&self, number: usize) -> String {
        format!("{}{number}", if self.regular[number] { "T" } else { "r" })
    }

    fn is_regular(&self, node: &Node) -> bool {
        let mut all = true;
        each_rule(node, &mut |number| all &= self.regular[number]);
        all
    }

    /// Writes a node, in a terminal or in a rule.
    fn node(&mut self, node: &Node, terminal: bool) -> String {
        if !terminal && self.is_regular(node) && !matches!(node, Node::Rule(_)) {
            let body = self.node(node, true);
            let name = format!("X{}", self.pieces);
            self.pieces += 1;
            let _ = writeln!(self.out, "{name}: {body}");
            return name;
        }
        match node {
            Node::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            Node::Class(class) => format!("/{class}/"),
            Node::Rule(number) => self.name(*number),
            Node::Sequence(all) if all.is_empty() => "\"\"".to_owned(),
            Node::Sequence(all) if terminal => self.joined(all, true, " "),
            Node::Sequence(all) => {
                // Adjacent nodes that reach no recursive rule become one terminal.
                let mut parts = Vec::new();
                for run in all.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b)) {
                    parts.push(match run {
                        [one] => one.clone(),
                        run => Node::Sequence(run.to_vec()),
                    });
                }
                self.joined(&parts, false, " ")
            }
            Node::Either(all) => self.joined(all, terminal, " | "),
            Node::Times(one, least, most) => {
                let one = self.node(one, terminal);
                let times = match (least, most) {
                    (0, Some(1)) => "?".to_owned(),
                    (0, None) => "*".to_owned(),
                    (1, None) => "+".to_owned(),
                    (least, None) => format!("{{{least},}}"),
                    (least, Some(most)) => format!("{{{least},{most}}}"),
                };
                format!("({one}){times}")
            }
        }
    }

    fn joined(&mut self, all: &[Node], terminal: bool, between: &str) -> String {
        let all: Vec<String> = all.iter().map(|node| self.node(node, terminal)).collect();
        format!("({})", all.join(between))
    }
}

struct Reader<'g> {
    rest: &'g str,
    all: usize,
    numbers: HashMap<&'g str, usize>,
    rules: Vec<Option<Node>>,
}

impl<'g> Reader<'g> {
    fn fail<T>(&self, expected: &str) -> Result<T, String> {
        let at = self.all - self.rest.len();
        let found: String = self.rest.chars().take(12).collect();
        let found = if found.is_empty() { "its end".to_owned() } else { format!("{found:?}") };
        Err(format!("at byte {at} of the grammar is {found}, expected {expected}"))
    }

    /// Skips whitespace and comments.
    fn skip(&mut self) {
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(text) else { return false };
        self.rest = rest;
        self.skip();
        true
    }

    fn name(&mut self) -> Option<&'g str> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let (name, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        if name.is_empty() {
            return None;
        }
        self.rest = rest;
        self.skip();
        Some(name)
    }

    fn number_of(&mut self, name: &'g str) -> Result<usize, String> {
        let next = self.rules.len();
        let number = *self.numbers.entry(name).or_insert(next);
        if number == next {
            if next == RULES {
                return Err(format!("the grammar has more than {RULES} rules"));
            }
            self.rules.push(None);
        }
        Ok(number)
    }

    fn rule(&mut self) -> Result<(), String> {
        let Some(name) = self.name() else { return self.fail("the name of a rule") };
        if !self.eat("::=") {
            return self.fail("\"::=\"");
        }
        let number = self.number_of(name)?;
        self.rules[number] = Some(self.either(0)?);
        Ok(())
    }

    fn either(&mut self, depth: usize) -> Result<Node, String> {
        if depth > DEPTH {
            return self.fail("fewer brackets in one another");
        }
        let mut all = vec![self.sequence(depth)?];
        while self.eat("|") {
            all.push(self.sequence(depth)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Either(all) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Node, String> {
        let mut all: Vec<Node> = Vec::new();
        loop {
            let one = match self.rest.chars().next() {
                Some('"') => Node::Text(self.text()?),
                Some('[') => Node::Class(self.class()?),
                Some('.') => {
                    self.eat(".");
                    Node::Class("(?s:.)".to_owned())
                }
                Some('(') => {
                    self.eat("(");
                    let one = self.either(depth + 1)?;
                    if !self.eat(")") {
                        return self.fail("\")\"");
                    }
                    one
                }
                Some('*' | '+' | '?' | '{') => return self.fail("something to be repeated"),
                _ => {
                    let before = self.rest;
                    let Some(name) = self.name() else { break };
                    if self.rest.starts_with("::=") {
                        // The next rule.
                        self.rest = before;
                        break;
                    }
                    Node::Rule(self.number_of(name)?)
                }
            };
            all.push(self.repeated(one)?);
        }
        Ok(if all.len() == 1 { all.remove(0) } else { Node::Sequence(all) })
    }

    fn repeated(&mut self, mut one: Node) -> Result<Node, String> {
        for _ in 0..DEPTH {
            let (least, most) = if self.eat("*") {
                (0, None)
            } else if self.eat("+") {
                (1, None)
            } else if self.eat("?") {
                (0, Some(1))
            } else if self.eat("{") {
                let least = self.count()?;
                let most = if self.eat(",") { self.count()? } else { least };
                if !self.eat("}") {
                    return self.fail("\"}\"");
                }
                let (least, most) = (least.unwrap_or(0), most);
                if most.is_some_and(|most| most < least) {
                    return self.fail("no less than at least");
                }
                (least, most)
            } else {
                return Ok(one);
            };
            one = Node::Times(Box::new(one), least, most);
        }
        self.fail("fewer repetitions of repetitions")
    }

    fn count(&mut self) -> Result<Option<u32>, String> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Ok(None);
        }
        let Some(n) = digits.parse().ok().filter(|n| *n <= TIMES) else {
            return self.fail(&format!("a number up to {TIMES}"));
        };
        self.rest = rest;
        self.skip();
        Ok(Some(n))
    }

    /// Reads a character, which may be an escape.
    fn character(&mut self) -> Result<char, String> {
        let mut all = self.rest.chars();
        let Some(first) = all.next() else { return self.fail("a character") };
        self.rest = all.as_str();
        if first != '\\' {
            return Ok(first);
        }
        let Some(kind) = all.next() else { return self.fail("what is escaped") };
        self.rest = all.as_str();
        let digits = match kind {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '"' | '\\' | '[' | ']' | '-' | '^' | '/' => return Ok(kind),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return self.fail("a code as \\n, \\x41 or \\u0041 before it"),
        };
        let code = self.rest.get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok());
        let Some(found) = code.and_then(char::from_u32) else {
            return self.fail(&format!("{digits} digits of a character"));
        };
        self.rest = &self.rest[digits..];
        Ok(found)
    }

    fn text(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut text = String::new();
        while !self.rest.starts_with('"') {
            text.push(self.character()?);
        }
        self.eat("\"");
        Ok(text)
    }

    fn class(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut class = "[".to_owned();
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            class.push('^');
        }
        let empty = class.len();
        while !self.rest.starts_with(']') {
            let first = self.character()?;
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                last = self.character()?;
            }
            if last < first {
                return self.fail("a range that begins before it ends");
            }
            let _ = write!(class, "\\x{{{:x}}}-\\x{{{:x}}}", first as u32, last as u32);
        }
        self.eat("]");
        match (class.len() == empty, class.len()) {
            (true, 1) => self.fail("a character in front of \"]\""),
            // No character is excluded.
            (true, _) => Ok("(?s:.)".to_owned()),
            _ => Ok(class + "]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use llguidance::api::TopLevelGrammar;
    use llguidance::toktrie::ApproximateTokEnv;
    use llguidance::{Matcher, ParserFactory};

    use super::*;

    /// True if the grammar accepts a text.
    fn takes(gbnf: &str, text: &str) -> bool {
        let lark = lark(gbnf).unwrap_or_else(|e| panic!("{e}: {gbnf}"));
        let mut factory = ParserFactory::new_simple(&ApproximateTokEnv::single_byte_env()).unwrap();
        factory.quiet();
        let parser = factory.create_parser(TopLevelGrammar::from_lark(lark.clone()));
        let mut matcher = Matcher::new(Ok(parser.unwrap_or_else(|e| panic!("{e}: {lark}"))));
        let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
        let n = matcher.try_consume_tokens(&tokens).unwrap_or_else(|e| panic!("{e}: {lark}"));
        n == tokens.len() && matcher.is_accepting().unwrap_or_else(|e| panic!("{e}: {lark}"))
    }

    #[test]
    fn texts_are_those_of_the_grammar() {
        let json = r#"
            root   ::= object  # a comment
            value  ::= object | array | string | number | ("true" | "false" | "null") ws
            object ::=
              "{" ws (
                string ":" ws value
                ("," ws string ":" ws value)*
              )? "}" ws
            array  ::= "[" ws ( value ("," ws value)* )? "]" ws
            string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
            number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
            ws ::= | " " | "\n" [ \t]{0,20}
        "#;
        let nested = "root ::= item+\nitem ::= \"- \" [^\\n]+ \"\\n\"";
        let exact = "root ::= a b | \"ab\" \"c\"\na ::= \"a\"\nb ::= \"b\"+";
        let balanced = "root ::= \"(\" root? \")\"";
        for (gbnf, good, bad) in [
            (
                json,
                &["{}", "{ \"a\": [1, -2.5e3 , {\"b\":null}],\n \"é\\u00e9\": true}"][..],
                &["", "[1]", "{\"a\"}", "{\"a\": 01}", "{\"a\": \"\n\"}"][..],
            ),
            (nested, &["- a\n", "- a\n- b - c\n"], &["- \n", "a\n", "- a"]),
            (exact, &["ab", "abbb", "abc"], &["a", "abbc", "bc"]),
            (balanced, &["()", "((()))"], &["(", "(()", "()()"]),
            ("root ::= [a-c]{2,3} .", &["ab!", "abca", "abc\n"], &["ab", "a!!", "abcab"]),
            ("root ::= \"/\\\"\" [^\\]]", &["/\"x"], &["/\"]"]),
            ("root ::= \"\\u00e9\\U0001F600\"?", &["é😀", ""], &["é"]),
        ] {
            for text in good {
                assert!(takes(gbnf, text), "{text:?} {gbnf}\n{}", lark(gbnf).unwrap());
            }
            for text in bad {
                assert!(!takes(gbnf, text), "{text:?} {gbnf}");
            }
        }
    }

    #[test]
    fn what_is_no_grammar_is_said() {
        let deep = format!("root ::= {}", "(".repeat(100_000));
        let many: String = (0..=RULES).map(|i| format!("r{i} ::= \"a\"\n")).collect();
        for (gbnf, said) in [
            ("", "no rule \"root\""),
            ("root ::= other", "no rule \"other\""),
            ("root = \"a\"", "expected \"::=\""),
            ("root ::= \"a", "a character"),
            ("root ::= (\"a\"", "expected \")\""),
            ("root ::= \"a\"{3,2}", "no less"),
            ("root ::= \"a\"{1000000}", "a number up to"),
            ("root ::= [z-a]", "begins before"),
            ("root ::= []", "in front of"),
            ("root ::= *", "to be repeated"),
            ("root ::= \"\\ud800\"", "4 digits"),
            (&deep, "fewer brackets"),
            (&many, "more than"),
        ] {
            let error = lark(gbnf).unwrap_err();
            assert!(error.contains(said), "{gbnf:.40} {error}");
        }
    }
}
