//! The beginnings of calls: the name, and where the arguments begin.
//!
//! Invariant: decisions depend on the text alone, not on how it is cut, and at most [`MAX_HEAD`] bytes of it are looked at.

use super::calls::{Call, named};
use super::json::{JsonReader, MAX_HEAD, Open, Tail, within};
use super::params::attribute;
use super::schema::Tools;
use super::{earliest, literals};
use crate::format::{Calls, Elements, Field, Form, Literal, Named, Object, Tagged};

/// The maximum number of bytes of white space before a call.
pub(super) const MAX_BLANK: usize = 64;

/// The text after the beginning of a call.
#[derive(Debug)]
pub(super) enum Next {
    /// The arguments, a JSON object.
    Arguments(Tail),
    /// There are no arguments.
    Nothing,
    /// The whole object, with the name in it; `true`: in a list.
    Whole(&'static Object, bool),
    /// Arguments between tags, and the first key, if the name has run into it.
    Params(&'static Tagged, Option<String>),
    /// Arguments as literals.
    Values(&'static Literal),
    /// Arguments as elements.
    Tree(&'static Elements),
}

/// The beginning of a call.
#[derive(Debug)]
pub(super) struct Head {
    /// Without a name if it has not been read yet.
    pub(super) call: Call,
    /// The offset of what follows.
    pub(super) at: usize,
    pub(super) next: Next,
    pub(super) form: &'static Form,
}

/// The surroundings of a beginning.
pub(super) struct Place<'a> {
    pub(super) calls: &'static Calls,
    pub(super) tools: Option<&'a Tools>,
    /// The text ends here.
    pub(super) last: bool,
}

/// Reads the beginning of a call.
pub(super) fn head(place: &Place<'_>, text: &str) -> Result<Head, Open> {
    let rest = text.trim_start();
    let blank = text.len() - rest.len();
    if blank >= MAX_BLANK {
        return Err(Open::No);
    }
    if rest.is_empty() {
        return Err(Open::More);
    }
    let mut open = false;
    for form in place.calls.forms {
        match begins(form, rest) {
            Some(true) => {
                let mut head = of(place, form, rest)?;
                head.at += blank;
                return Ok(head);
            }
            Some(false) => {}
            None => open = true,
        }
    }
    Err(if open && rest.len() < MAX_HEAD { Open::More } else { Open::No })
}

/// Returns true if an object without any mark before it cannot be a call of a known tool: so little of other JSON is held back.
pub(super) fn is_other_object(keys: &Object, tools: &Tools, text: &str) -> bool {
    let mut reader = JsonReader::new(text);
    let mut read = || {
        reader.eat('[')?;
        reader.expect('{')?;
        loop {
            let key = reader.string()?;
            reader.expect(':')?;
            if key == keys.name {
                reader.blank();
                return Ok(!tools.has(&reader.string()?));
            }
            if !["type", "id"].contains(&&*key) {
                return Ok(true);
            }
            reader.value()?;
            reader.expect(',')?;
        }
    };
    match read() {
        Ok(other) => other,
        Err(Open::More) => false,
        // A list of something else is looked at as another form.
        Err(Open::No) => text.trim_start().starts_with('{'),
    }
}

/// Returns whether a call in this form may begin with `text`; `None`: more of it is needed.
fn begins(form: &Form, text: &str) -> Option<bool> {
    let prefix = |open: &str| match text.starts_with(open) {
        false if open.starts_with(text) => None,
        known => Some(known),
    };
    // After the bracket of a list.
    let in_list = || Some(text.strip_prefix('[')?.trim_start().chars().next());
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    match form {
        Form::Object(_) if text.starts_with('{') => Some(true),
        Form::Object(_) => match in_list() {
            None => Some(false),
            Some(next) => next.map(|c| c == '{'),
        },
        Form::Named(Named { open: "", .. }) => Some(text.starts_with(word)),
        Form::Tagged(Tagged { open: "", .. }) => Some(!text.starts_with(['{', '[', '<'])),
        Form::Literal(Literal { open: "", .. }) => match in_list() {
            None => Some(text.starts_with(letter)),
            Some(next) => next.map(letter),
        },
        Form::Named(Named { open, .. })
        | Form::Tagged(Tagged { open, .. })
        | Form::Literal(Literal { open, .. })
        | Form::Elements(Elements { open, .. }) => prefix(open),
    }
}

fn of(place: &Place<'_>, form: &'static Form, text: &str) -> Result<Head, Open> {
    let head = |call, at, next| Head { call, at, next, form };
    match form {
        Form::Object(keys) => match object(keys, text) {
            Err(Open::No) => {
                let list = text.starts_with('[');
                let at = text.find('{').ok_or(Open::No)?;
                Ok(head(Call::default(), at, Next::Whole(keys, list)))
            }
            read => {
                read.map(|(name, at, tail)| head(Call::new(name, ""), at, Next::Arguments(tail)))
            }
        },
        Form::Named(named) => {
            let (call, at, next) = within(text, |text| before_object(place, named, text))?;
            Ok(head(call, at, next))
        }
        Form::Tagged(tagged) => {
            let (name, at, key) = within(text, |text| tag(place, tagged, text))?;
            Ok(head(Call::new(name, ""), at, Next::Params(tagged, key)))
        }
        Form::Elements(elements) => {
            let (name, at) = within(text, |text| {
                let rest = &text[elements.open.len()..];
                let end = rest.find(elements.name_close).ok_or(Open::More)?;
                let name = named(attribute(&rest[..end]).0).ok_or(Open::No)?;
                Ok((name, elements.open.len() + end + elements.name_close.len()))
            })?;
            Ok(head(Call::new(name, ""), at, Next::Tree(elements)))
        }
        Form::Literal(literal) => {
            let (name, at) = literals::head(literal, text, literal.python)?;
            let call = Call::new(known(place.tools, name), "");
            Ok(head(call, at, Next::Values(literal)))
        }
    }
}

/// The next call of a list, after the comma.
pub(super) fn next_in_list(
    form: &'static Form,
    tools: Option<&Tools>,
    text: &str,
) -> Result<Head, Open> {
    let head = |call, at, next| Head { call, at, next, form };
    match form {
        Form::Object(keys) => match within(text, |text| {
            let mut reader = JsonReader::new(text);
            reader.object(keys).map(|name| (name, reader.at))
        }) {
            Err(Open::No) if text.trim_start().starts_with('{') => {
                let at = text.len() - text.trim_start().len();
                Ok(head(Call::default(), at, Next::Whole(keys, true)))
            }
            read => {
                read.map(|(name, at)| head(Call::new(name, ""), at, Next::Arguments(Tail::List)))
            }
        },
        Form::Literal(literal) => {
            let (name, at) = literals::head(literal, text, false)?;
            Ok(head(Call::new(known(tools, name), ""), at, Next::Values(literal)))
        }
        Form::Named(_) | Form::Tagged(_) | Form::Elements(_) => Err(Open::No),
    }
}

/// A name with or without the method `call`, which Llama adds.
fn known(tools: Option<&Tools>, name: String) -> String {
    let bare = name
        .strip_suffix(".call")
        .filter(|bare| tools.is_some_and(|tools| !tools.has(&name) && tools.has(bare)));
    bare.map(str::to_owned).unwrap_or(name)
}

/// `{"name": …, "arguments": {`, alone or in a list.
fn object(keys: &Object, text: &str) -> Result<(String, usize, Tail), Open> {
    within(text, |text| {
        let mut reader = JsonReader::new(text);
        let list = reader.eat('[')?;
        let name = reader.object(keys)?;
        Ok((name, reader.at, if list { Tail::List } else { Tail::Object }))
    })
}

/// A name between marks, up to the brace of the arguments or to the end of a call without any.
fn before_object(
    place: &Place<'_>,
    form: &'static Named,
    text: &str,
) -> Result<(Call, usize, Next), Open> {
    let calls = place.calls;
    let rest = &text[form.open.len()..];
    let ends = form.closes.iter().filter(|close| close.starts_with('<'));
    let ends: Vec<&str> = ends.chain(calls.closes).chain(calls.opens).copied().collect();
    let brace = rest.find('{');
    let (len, next) = match (brace, earliest(rest, &ends)) {
        (Some(brace), found) if found.is_none_or(|(at, _)| brace < at) => {
            (brace, Next::Arguments(Tail::Done))
        }
        (_, Some((at, _))) => (at, Next::Nothing),
        // Where nothing closes a call, the text's end does.
        _ if place.last && calls.closes.is_empty() => (rest.len(), Next::Nothing),
        _ => return Err(Open::More),
    };
    let call = fields(place, form, &rest[..len]).ok_or(Open::No)?;
    // Without arguments, the last mark must be there.
    let marked = form.fields.last().is_none_or(|(mark, _)| rest[..len].contains(mark));
    if matches!(next, Next::Nothing) && !marked {
        return Err(Open::No);
    }
    Ok((call, form.open.len() + len, next))
}

/// Reads the texts between marks.
fn fields(place: &Place<'_>, form: &Named, text: &str) -> Option<Call> {
    let marks: Vec<&str> = form.fields.iter().map(|(mark, _)| *mark).collect();
    let (mut call, mut field, mut rest) = (Call::default(), form.first, text);
    loop {
        let found = earliest(rest, &marks);
        let part = &rest[..found.map_or(rest.len(), |(at, _)| at)];
        read(field, part, place, &mut call)?;
        let Some((at, mark)) = found else { break };
        field = form.fields.iter().find(|(text, _)| *text == mark)?.1;
        rest = &rest[at + mark.len()..];
    }
    let valid = !call.name.is_empty() && !call.name.contains(char::is_whitespace);
    call.id = call.id.filter(|_| place.calls.ids);
    valid.then_some(call)
}

fn read(field: Field, text: &str, place: &Place<'_>, call: &mut Call) -> Option<()> {
    let text = text.trim();
    match field {
        Field::Name => call.name = text.to_owned(),
        Field::Id => call.id = Some(text.to_owned()).filter(|id| !id.is_empty()),
        Field::IdWithName => {
            call.name = name_in(text, place.tools).to_owned();
            call.id = Some(text.to_owned());
        }
        Field::NameIfAny => {
            let name = text.split("```").next().unwrap_or_default().trim();
            if !name.is_empty() {
                call.name = name.to_owned();
            }
        }
        Field::Nothing => return text.is_empty().then_some(()),
    }
    Some(())
}

/// The name in an id: `functions.NAME:0`, or a variant that models write.
fn name_in<'t>(id: &'t str, tools: Option<&Tools>) -> &'t str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let before = |text: &'t str, mark: char| {
        text.rsplit_once(mark).filter(|(_, number)| is_number(number)).map(|(name, _)| name)
    };
    let bare = id.strip_prefix("functions.").unwrap_or(id);
    let name = before(bare, ':').unwrap_or(bare);
    let Some(tools) = tools.filter(|tools| !tools.has(name)) else { return name };
    let other = id.strip_prefix("functions_").unwrap_or(name);
    let other = before(other, ':').unwrap_or(other);
    let others = [Some(other), before(other, '_'), before(name, '_')];
    others.into_iter().flatten().find(|name| tools.has(name)).unwrap_or(name)
}

/// A name in an opening tag, and what follows it.
fn tag(
    place: &Place<'_>,
    form: &'static Tagged,
    text: &str,
) -> Result<(String, usize, Option<String>), Open> {
    let rest = &text[form.open.len()..];
    let own = [form.key_open, form.key_close, form.close];
    let tags = own.iter().copied().filter(|tag| tag.starts_with('<'));
    let mut ends: Vec<&str> = tags.chain(place.calls.closes.iter().copied()).collect();
    ends.push(if form.name_close.is_empty() { "\n" } else { form.name_close });
    let found = earliest(rest, &ends);
    let name = rest[..found.map_or(rest.len(), |(at, _)| at)].trim();
    if form.name_close.is_empty() && name.contains([' ', '{', '(']) {
        return Err(Open::No);
    }
    let (at, end) = found.ok_or(Open::More)?;
    let (name, _) = attribute(&rest[..at]);
    let len = form.open.len() + at;
    let len = if end == form.name_close { len + end.len() } else { len };
    if end == form.key_close && end != form.name_close {
        // The name runs into the first key.
        let name = place.tools.and_then(|tools| tools.prefix_of(name)).ok_or(Open::No)?;
        let key = attribute(&rest[..at]).0[name.len()..].trim().to_owned();
        return Ok((name.to_owned(), len, Some(key)));
    }
    let name = named(name).filter(|name| !name.contains(char::is_whitespace)).ok_or(Open::No)?;
    if form.value_open.is_empty() {
        // A text that only mentions the tag has something else after it.
        let after = text[len..].trim_start();
        let mut tags = own.iter().chain(place.calls.closes).filter(|tag| !tag.is_empty());
        let begun = tags.clone().any(|tag| after.starts_with(tag)) || after.starts_with('{');
        let open = after.is_empty() || tags.any(|tag| tag.starts_with(after));
        match (begun, open) {
            (false, false) => return Err(Open::No),
            (false, true) if !place.last => return Err(Open::More),
            _ => {}
        }
    }
    Ok((name, len, None))
}
