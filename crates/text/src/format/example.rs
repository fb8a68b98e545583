//! A call as a family writes it, for models whose template does not show them tools: it is the example that they are given.

use super::{Calls, Field, Form, Notation, Tagged, ValueTypes};

/// The end and the beginning of a fence around arguments.
const FENCE: [&str; 2] = ["```json", "```"];

impl Calls {
    /// The form in which a template writes calls; `has` returns whether the template contains a text.
    pub fn form(&self, has: &dyn Fn(&str) -> bool) -> Option<&'static Form> {
        // A template may build marks from parts.
        let built = |mark: &str| mark.rsplit_once('｜').is_some_and(|(_, last)| has(last));
        let written = |form: &&Form| match form {
            Form::Tagged(tags) => {
                (has(tags.open) || built(tags.open)) && (has(tags.key_open) || built(tags.key_open))
            }
            Form::Named(named) => named.fields.last().is_some_and(|(mark, _)| has(mark)),
            Form::Object(_) | Form::Literal(_) | Form::Elements(_) => false,
        };
        self.forms.iter().skip(1).find(written).or(self.forms.first())
    }

    /// The marks around calls, as a template spells them; empty where there are none.
    pub fn around(&self, has: &dyn Fn(&str) -> bool) -> [&'static str; 2] {
        let own = self.opens.iter().position(|mark| has(mark)).unwrap_or(0);
        let of = |marks: &[&'static str]| marks.get(own).or(marks.first()).copied();
        if self.markless {
            return [""; 2];
        }
        [of(self.opens).unwrap_or_default(), of(self.closes).unwrap_or_default()]
    }
}

impl Notation {
    /// A call of the tool `NAME` with the argument `KEY`; `None` if the family's calls are not described by forms.
    pub fn example(&self, has: &dyn Fn(&str) -> bool) -> Option<String> {
        let form = self.calls.form(has)?;
        let [open, close] = self.calls.around(has);
        let (call, line) = match form {
            Form::Object(keys) => {
                let arguments = "{\"KEY\": \"VALUE\"}";
                let call = match (keys.name, keys.arguments.first()) {
                    ("", _) | (_, None) => format!("{{\"NAME\": {arguments}}}"),
                    (name, Some(key)) => {
                        format!("{{\"{name}\": \"NAME\", \"{key}\": {arguments}}}")
                    }
                };
                (if keys.list { format!("[{call}]") } else { call }, !keys.list)
            }
            Form::Named(named) => {
                let fenced = named.closes.contains(&FENCE[1]) && has(FENCE[0]);
                let text = |field| match field {
                    Field::Name if fenced => "function",
                    Field::Name => "NAME",
                    Field::NameIfAny if fenced => "NAME\n```json\n",
                    Field::IdWithName => "functions.NAME:0",
                    Field::Id => "ID",
                    Field::NameIfAny | Field::Nothing => "",
                };
                // An id after the name is not in every version.
                let written = |(mark, field): &&(&str, Field)| *field != Field::Id || has(mark);
                let fields = named.fields.iter().filter(written);
                let fields: String =
                    fields.map(|(mark, field)| format!("{mark}{}", text(*field))).collect();
                let end = named.closes.iter().filter(|close| **close != FENCE[1]).copied();
                let end: String = fenced.then_some("\n```").into_iter().chain(end).collect();
                let first = text(named.first);
                (format!("{}{first}{fields}{{\"KEY\": \"VALUE\"}}{end}", named.open), false)
            }
            Form::Tagged(tags) => (tagged(tags), !self.calls.opens.is_empty()),
            Form::Literal(literal) => {
                let (begin, end) = literal.body;
                let call = match literal.python {
                    true => format!("[NAME{begin}KEY=\"VALUE\"{end}]"),
                    false => format!("{}NAME{begin}KEY:<|\"|>VALUE<|\"|>{end}", literal.open),
                };
                (call, false)
            }
            Form::Elements(tree) => {
                let mark = tree.mark;
                let value = format!("{mark}<KEY>VALUE{mark}</KEY>");
                (format!("{}\"NAME\"{}{value}{}", tree.open, tree.name_close, tree.close), true)
            }
        };
        let newline = if line && !open.is_empty() { "\n" } else { "" };
        let before_close = if close.is_empty() { "" } else { newline };
        Some(format!("{open}{newline}{call}{before_close}{close}"))
    }
}

fn tagged(tags: &Tagged) -> String {
    let quoted = |open: &str, text: &str| match open.contains(' ') {
        true => format!("{open}\"{text}\""),
        false => format!("{open}{text}"),
    };
    let index = if tags.types == ValueTypes::Named { " index=\"0\"" } else { "" };
    let kind = match tags.types {
        ValueTypes::Unwritten => "",
        ValueTypes::IsString => " string=\"true\"",
        ValueTypes::Named => " type=\"string\"",
    };
    let line = if tags.newlines { "\n" } else { "" };
    let close = tags.value_closes.last().copied().unwrap_or_default();
    let name = format!("{}{index}{}", quoted(tags.open, "NAME"), tags.name_close);
    let key =
        format!("{}{kind}{}{}", quoted(tags.key_open, "KEY"), tags.key_close, tags.value_open);
    format!("{name}\n{key}{line}VALUE{line}{close}\n{}", tags.close).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use crate::format::Format;
    use crate::output::{Parser, Part, Span};

    #[test]
    fn an_example_is_a_call_that_the_parser_reads() {
        for format in Format::ALL {
            for template in ["", "```json", "[ARGS]"] {
                let has = |text: &str| template.contains(text);
                let Some(example) = format.notation().example(&has) else {
                    assert_eq!(format, Format::Harmony);
                    continue;
                };
                let mut calls = Vec::new();
                let each = &mut |span: Span<'_>| match span.part {
                    Part::Call(call) => calls.push((call.name, call.arguments)),
                    Part::Mark => {}
                    part => {
                        assert!(span.raw.trim().is_empty(), "{part:?} {:?}: {example}", span.raw)
                    }
                };
                let tools = serde_json::json!([{"type": "function", "function": {"name": "NAME"}}]);
                let tools = crate::output::Tools::of(tools.as_array().unwrap());
                let mut parser = Parser::new(format, "").with_tools(tools);
                parser.push(&example, each);
                parser.finish(each);
                assert_eq!(calls.len(), 1, "{format}: {example}");
                let arguments: serde_json::Value = serde_json::from_str(&calls[0].1).unwrap();
                assert_eq!(
                    (&*calls[0].0, &arguments["KEY"]),
                    ("NAME", &"VALUE".into()),
                    "{format}"
                );
            }
        }
    }
}
