//! Attributes and methods of values, as Python has them and the immutable sandbox permits them.

use super::budget::{RenderStop, Result, fail};
use super::code::Name;
use super::machine::{Args, TemplateMachine, TemplateObject};
use super::names::{Case, Method, Side, StrippedEnds, ViewKind, text_method};
use super::shown::readable;
use super::text;
use super::value::{Buffer, Builtin, ListBuilder, MapBuilder, Missing, Range, Text, Value};

/// Methods that would change a list or a dictionary.
fn changes(object: &Value, name: &str) -> bool {
    match object {
        Value::List(_) => matches!(
            name,
            "append" | "clear" | "pop" | "reverse" | "insert" | "sort" | "extend" | "remove"
        ),
        Value::Dict(_) => matches!(name, "clear" | "pop" | "popitem" | "setdefault" | "update"),
        _ => false,
    }
}

impl TemplateMachine<'_> {
    /// `object.name`, as in the sandbox: a missing attribute is undefined.
    pub(super) fn attr(&mut self, object: &Value, name: Name) -> Result<Value> {
        self.defined(object)?;
        let text = self.name(name);
        if changes(object, text) {
            return Ok(Value::Undefined(Missing::Unsafe(object.type_name(), name)));
        }
        if let Some(value) = self.plain_attr(object, text)? {
            return Ok(value);
        }
        let found = match object {
            Value::Dict(map) => map.get_str(text, &self.budget)?.cloned(),
            _ => None,
        };
        Ok(found.unwrap_or(Value::Undefined(Missing::Attribute(object.type_name(), name))))
    }

    /// An attribute in Python's sense: not an element. Attributes that begin with `_` are inaccessible.
    pub(super) fn plain_attr(&mut self, object: &Value, name: &str) -> Result<Option<Value>> {
        if let Value::Object(at) = object {
            return self.object_attr(*at, name);
        }
        if let Value::Loop(place, number) = object {
            return self.loop_attr(*place, *number, name);
        }
        if let (Value::Group(items), "grouper" | "list") = (object, name) {
            return Ok(Some(items[usize::from(name == "list")].clone()));
        }
        if let (Value::Int(_) | Value::Float(_) | Value::Bool(_), "real") = (object, name) {
            return self.positive(object).map(Some);
        }
        let method = match (object, name) {
            (Value::Text(_), _) => text_method(name),
            (Value::Dict(_), "get") => Some(Method::Get),
            (Value::Dict(_), "items") => Some(Method::View(ViewKind::Items)),
            (Value::Dict(_), "keys") => Some(Method::View(ViewKind::Keys)),
            (Value::Dict(_), "values") => Some(Method::View(ViewKind::Values)),
            (Value::Dict(_) | Value::List(_), "copy") => Some(Method::Copy),
            (Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_), "count") => {
                Some(Method::Count)
            }
            (Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_), "index") => {
                Some(Method::Index(false))
            }
            (Value::Float(_) | Value::Int(_), "is_integer") => Some(Method::IsInteger),
            _ => None,
        };
        match method {
            Some(method) => object.clone().bound(method, &self.budget).map(Some),
            None => Ok(None),
        }
    }

    fn object_attr(&self, at: u32, name: &str) -> Result<Option<Value>> {
        match &self.objects[at as usize] {
            TemplateObject::Namespace(vars) if !name.starts_with('_') => {
                self.namespace_get(vars, name)
            }
            TemplateObject::Cycler { items, at: place } => match name {
                "current" => Ok(Some(items[*place].clone())),
                "next" => Value::Object(at).bound(Method::CyclerNext, &self.budget).map(Some),
                "reset" => Value::Object(at).bound(Method::CyclerReset, &self.budget).map(Some),
                _ => Ok(None),
            },
            TemplateObject::Macro { code, .. } if name == "name" => {
                match self.program.macros[*code as usize].name {
                    Some(name) => Value::text(self.name(name), &self.budget).map(Some),
                    None => Ok(Some(Value::None)),
                }
            }
            _ => Ok(None),
        }
    }

    fn loop_attr(&mut self, place: u32, number: u32, name: &str) -> Result<Option<Value>> {
        let state = self.loop_state(place, number)?;
        let (index0, len) = (state.index0 as i128, state.items.len() as i128);
        let or = |value: Option<&Value>, what| {
            value.cloned().unwrap_or(Value::Undefined(Missing::Other(what)))
        };
        Ok(Some(match name {
            "index" => Value::Int(index0 + 1),
            "index0" => Value::Int(index0),
            "revindex" => Value::Int(len - index0),
            "revindex0" => Value::Int(len - index0 - 1),
            "first" => Value::Bool(index0 == 0),
            "last" => Value::Bool(index0 + 1 == len),
            "length" => Value::Int(len),
            "depth" => Value::Int(1),
            "depth0" => Value::Int(0),
            "previtem" => or(state.previous.as_ref(), "there is no previous item"),
            "nextitem" => or(state.next(), "there is no next item"),
            "cycle" => Value::Loop(place, number).bound(Method::LoopCycle, &self.budget)?,
            "changed" => Value::Loop(place, number).bound(Method::LoopChanged, &self.budget)?,
            _ => return Ok(None),
        }))
    }

    pub(super) fn call_method(&mut self, of: &Value, method: Method, args: Args) -> Result<Value> {
        match (of, method) {
            (Value::Text(text), _) => self.call_text_method(text, method, args),
            (Value::Dict(map), Method::Get) => {
                let [key, default] = args.require("get", ["key", "default"], 1)?;
                let found = map.get(&key.unwrap_or(Value::None), &self.budget)?;
                Ok(found.cloned().or(default).unwrap_or(Value::None))
            }
            (Value::Dict(map), Method::View(kind)) => {
                args.bind("a view of a dictionary", [])?;
                Ok(Value::View(kind, map.clone()))
            }
            (_, Method::Copy) => {
                args.bind("copy", [])?;
                Ok(of.clone())
            }
            (_, Method::IsInteger) => {
                args.bind("is_integer", [])?;
                Ok(Value::Bool(of.number().is_some_and(|n| n.float().fract() == 0.0)))
            }
            (Value::Loop(place, number), Method::LoopChanged) => {
                let values = super::value::Seq::new(args.positional, &self.budget)?;
                self.loop_changed(*place, *number, values).map(Value::Bool)
            }
            (Value::Loop(place, number), Method::LoopCycle) => {
                let index = self.loop_state(*place, *number)?.index0;
                match args.positional.len() {
                    0 => fail("cycle needs values to cycle through"),
                    n => Ok(args.positional[index % n].clone()),
                }
            }
            (Value::Object(at), Method::CyclerNext | Method::CyclerReset) => {
                args.bind("a cycler's method", [])?;
                let TemplateObject::Cycler { items, at } = &mut self.objects[*at as usize] else {
                    return Ok(Value::None);
                };
                let current = items[*at].clone();
                if method == Method::CyclerReset {
                    *at = 0;
                    return Ok(Value::None);
                }
                *at = (*at + 1) % items.len();
                Ok(current)
            }
            (_, Method::Count | Method::Index(_)) => {
                let [wanted, ..] = args.require("the method", ["value", "start", "stop"], 1)?;
                let wanted = wanted.unwrap_or(Value::None);
                let mut count = 0;
                for (i, item) in self.items(of)?.iter().enumerate() {
                    if self.equal(item, &wanted)? {
                        if method != Method::Count {
                            return Ok(Value::Int(i as i128));
                        }
                        count += 1;
                    }
                }
                match method {
                    Method::Count => Ok(Value::Int(count)),
                    _ => fail("index finds no such value"),
                }
            }
            _ => fail(format!("{} has no such method", of.type_name())),
        }
    }

    fn call_text_method(&mut self, text: &Text, method: Method, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        match method {
            Method::Case(case) => {
                args.bind("a method for case", [])?;
                text::case(text, case, &budget)?.marked_like(text, &budget)
            }
            Method::Casefold => {
                args.bind("casefold", [])?;
                text::case(text, Case::Lower, &budget)
            }
            Method::Is(question) => {
                args.bind("a question to a string", [])?;
                text::is(text, question, &budget).map(Value::Bool)
            }
            Method::Strip(ends) => self.stripped(text, ends, args),
            Method::Split(from_right) => {
                let [separator, most] = args.bind("split", ["sep", "maxsplit"])?;
                let separator = optional_text(separator, "split")?;
                let most = at_most(most, "split")?;
                text::split(text, separator.as_deref(), most, from_right, &budget)
            }
            Method::SplitLines => self.split_lines(text, args),
            Method::Replace => {
                let [old, new, count] = args.require("replace", ["old", "new", "count"], 2)?;
                let (old, new) = (the_text(old, "replace")?, the_text(new, "replace")?);
                text::replace(text, &old, &new, at_most(count, "replace")?, &budget)
            }
            Method::StartsWith | Method::EndsWith => self.begins_or_ends(text, method, args),
            Method::Find(from_right) | Method::Index(from_right) => {
                let found = self.find(text, from_right, args)?;
                match (found, method) {
                    (Some(at), _) => Ok(Value::Int(at as i128)),
                    (None, Method::Find(_)) => Ok(Value::Int(-1)),
                    (None, _) => fail("index finds no such text"),
                }
            }
            Method::Count => self.occurrences(text, args),
            Method::Join => self.joined(text, args),
            Method::Justify(side) => self.justified(text, side, args),
            Method::Zfill => self.zero_filled(text, args),
            Method::ExpandTabs => {
                let [width] = args.bind("expandtabs", ["tabsize"])?;
                let width = width.map_or(Ok(8), |width| the_int(Some(width), "the width"))?;
                let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
                text::expand_tabs(text, width, &budget)
            }
            Method::Partition(from_right) => {
                let [separator] = args.require("partition", ["sep"], 1)?;
                text::partition(text, &the_text(separator, "partition")?, from_right, &budget)
            }
            Method::RemovePrefix | Method::RemoveSuffix => {
                let [part] = args.require("the method", ["part"], 1)?;
                let part = the_text(part, "the method")?;
                let rest = match method {
                    Method::RemovePrefix => text.strip_prefix(&*part),
                    _ => text.strip_suffix(&*part),
                };
                Value::text(rest.unwrap_or(text), &budget)
            }
            Method::Format => self.format_braces(text, args),
            Method::FormatMap => self.format_map(text, args),
            _ => fail("a string has no such method"),
        }
    }

    /// `strip`, `lstrip`, `rstrip`.
    fn stripped(&mut self, text: &Text, ends: StrippedEnds, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [chars] = args.bind("strip", ["chars"])?;
        let chars = optional_text(chars, "strip")?;
        let stripped = text::strip(text, chars.as_ref(), ends, &budget)?;
        if stripped.len() == text.len() {
            return Ok(Value::Text(text.clone()));
        }
        Value::text(stripped, &budget)?.marked_like(text, &budget)
    }

    /// `join`.
    fn joined(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [items] = args.require("join", ["items"], 1)?;
        let items = self.items(&items.unwrap_or(Value::None))?;
        let mut out = Buffer::new(&budget)?;
        for (i, item) in items.iter().enumerate() {
            let Value::Text(item) = item else {
                let of = item.type_name();
                return fail(format!("join takes strings, but item {i} is {of}"));
            };
            out.push_str(if i > 0 { text } else { "" })?;
            out.push_str(item)?;
        }
        out.into_value()
    }

    /// `center`, `ljust`, `rjust`.
    fn justified(&mut self, text: &Text, side: Side, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [width, fill] = args.require("the method", ["width", "fillchar"], 1)?;
        let width = the_int(width, "the width")?;
        let fill = optional_text(fill, "the method")?;
        let fill = match fill.as_deref().map(|fill| (fill.chars().next(), fill)) {
            None => ' ',
            Some((Some(c), fill)) if c.len_utf8() == fill.len() => c,
            Some(_) => return fail("what fills must be one character"),
        };
        text::justify(text, width, fill, side, &budget)
    }

    /// `zfill`.
    fn zero_filled(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [width] = args.require("zfill", ["width"], 1)?;
        let width = the_int(width, "the width")?;
        let missing = width.saturating_sub(text.chars_len() as i128).max(0);
        let signed = usize::from(text.starts_with(['+', '-']));
        let mut out = Buffer::new(&budget)?;
        out.push_str(&text[..signed])?;
        out.repeat("0", usize::try_from(missing).unwrap_or(usize::MAX))?;
        out.push_str(&text[signed..])?;
        out.into_value()
    }

    /// `format_map`.
    fn format_map(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [map] = args.require("format_map", ["mapping"], 1)?;
        let Some(Value::Dict(map)) = map else {
            return fail("format_map takes a dictionary");
        };
        let mut args = Args::none();
        for (key, value) in map.entries() {
            budget.steps(8)?;
            if let Value::Text(key) = key {
                args.named.push((key.clone(), value.clone()));
            }
        }
        self.format_braces(text, args)
    }

    /// `count`.
    fn occurrences(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [part, start, stop] = args.require("count", ["sub", "start", "stop"], 1)?;
        let part = the_text(part, "count")?;
        let Some((within, _)) = self.bounded(text, start, stop)? else {
            return Ok(Value::Int(0));
        };
        budget.bytes(within.len() * 4 + part.len())?;
        Ok(Value::Int(within.matches(&*part).count() as i128))
    }

    /// `splitlines`.
    fn split_lines(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = std::rc::Rc::clone(&self.budget);
        let [ends] = args.bind("splitlines", ["keepends"])?;
        budget.bytes(text.len())?;
        let mut list = ListBuilder::new(&budget)?;
        for line in text::lines(text, ends.is_some_and(|ends| ends.truth())) {
            list.text(line)?;
        }
        list.list()
    }

    fn begins_or_ends(&mut self, text: &Text, method: Method, args: Args) -> Result<Value> {
        let [part, start, stop] = args.require("the method", ["part", "start", "stop"], 1)?;
        let Some((within, _)) = self.bounded(text, start, stop)? else {
            return Ok(Value::Bool(false));
        };
        let is = |part: &Text| match method {
            Method::StartsWith => within.starts_with(&**part),
            _ => within.ends_with(&**part),
        };
        Ok(Value::Bool(match part {
            Some(Value::Text(part)) => {
                self.budget.bytes(part.len())?;
                is(&part)
            }
            Some(Value::Tuple(parts)) => {
                let mut any = false;
                for part in &*parts {
                    let Value::Text(part) = part else {
                        return fail("the method takes a string or a tuple of strings");
                    };
                    self.budget.bytes(part.len())?;
                    any |= is(part);
                }
                any
            }
            _ => return fail("the method takes a string or a tuple of strings"),
        }))
    }

    /// The part of a text between two bounds, and the character at which it begins; `None` if the
    /// bounds leave nothing, not even the empty text.
    fn bounded<'t>(
        &mut self,
        text: &'t Text,
        start: Option<Value>,
        stop: Option<Value>,
    ) -> Result<Option<(&'t str, usize)>> {
        let len = text.chars_len() as i128;
        let bound = |value: Option<Value>, otherwise: i128| match value {
            None | Some(Value::None) => Ok(otherwise),
            Some(value) => {
                let at = the_int(Some(value), "a bound")?;
                Ok(if at < 0 { at.saturating_add(len).max(0) } else { at })
            }
        };
        let (start, stop) = (bound(start, 0)?, bound(stop, len)?.min(len));
        if start > stop {
            return Ok(None);
        }
        let (start, stop) = (start as usize, stop as usize);
        let (from, to) = (self.byte_of(text, start)?, self.byte_of(text, stop)?);
        Ok(Some((&text[from..to], start)))
    }

    fn find(&mut self, text: &Text, from_right: bool, args: Args) -> Result<Option<usize>> {
        let [part, start, stop] = args.require("find", ["sub", "start", "stop"], 1)?;
        let part = the_text(part, "find")?;
        let Some((within, start)) = self.bounded(text, start, stop)? else { return Ok(None) };
        self.budget.bytes(2 * within.len() + part.len())?;
        let at = if from_right { within.rfind(&*part) } else { within.find(&*part) };
        Ok(at.map(|at| start + within[..at].chars().count()))
    }

    pub(super) fn call_builtin(&mut self, builtin: Builtin, args: Args) -> Result<Value> {
        match builtin {
            Builtin::Range => range(args),
            Builtin::Dict => {
                let map = self.pairs("dict", args)?;
                let mut dict = MapBuilder::new(&self.budget)?;
                for (key, value) in map {
                    dict.push(key, value)?;
                }
                dict.value()
            }
            Builtin::Namespace => {
                let map = self.pairs("namespace", args)?;
                let mut dict = MapBuilder::new(&self.budget)?;
                for (key, value) in map {
                    dict.push(key, value)?;
                }
                let mut vars = Vec::new();
                for (key, value) in dict.finish()?.entries() {
                    if let Value::Text(key) = key {
                        vars.push((key.clone(), value.clone()));
                    }
                }
                self.new_object(TemplateObject::Namespace(vars))
            }
            Builtin::Cycler => {
                if args.positional.is_empty() || !args.named.is_empty() {
                    return fail("cycler takes the values to cycle through");
                }
                let items = super::value::Seq::new(args.positional, &self.budget)?;
                self.new_object(TemplateObject::Cycler { items, at: 0 })
            }
            Builtin::Joiner => {
                let [separator] = args.bind("joiner", ["sep"])?;
                let separator = match separator {
                    Some(separator) => separator,
                    None => Value::text(", ", &self.budget)?,
                };
                self.new_object(TemplateObject::Joiner { separator, used: false })
            }
            Builtin::RaiseException => {
                let [message] = args.require("raise_exception", ["message"], 1)?;
                let message = self.text_of(&message.unwrap_or(Value::None))?;
                Err(RenderStop::Refused(readable(&message)))
            }
            Builtin::StrftimeNow => {
                let [format] = args.require("strftime_now", ["format"], 1)?;
                let format = the_text(format, "strftime_now")?;
                // A directive of two characters becomes at most 12.
                self.budget.bytes(8 * format.len())?;
                let _lease = self.budget.lease(16 * format.len())?;
                Value::text(&self.now.format(&format), &self.budget)
            }
        }
    }

    /// The entries passed to `dict` and `namespace`.
    fn pairs(&mut self, what: &str, args: Args) -> Result<Vec<(Value, Value)>> {
        let mut pairs = Vec::new();
        if args.positional.len() > 1 {
            return fail(format!("{what} takes one dictionary at most"));
        }
        // The pairs briefly exist twice.
        let mut lease = self.budget.lease(0)?;
        match args.positional.first() {
            None => {}
            Some(Value::Dict(map)) => {
                self.budget.steps(map.len())?;
                lease.resize(map.len() * 64)?;
                pairs.extend_from_slice(map.entries());
            }
            Some(value) => {
                for item in &*self.items(value)? {
                    let pair = self.items(item)?;
                    let [key, value] = &*pair else {
                        return fail(format!("{what} takes a dictionary or pairs"));
                    };
                    lease.resize((pairs.len() + 1) * 128)?;
                    pairs.push((key.clone(), value.clone()));
                }
            }
        }
        for (name, value) in args.named {
            pairs.push((Value::Text(name), value));
        }
        Ok(pairs)
    }
}

/// The sandbox's `range`, of at most 100,000 numbers.
fn range(args: Args) -> Result<Value> {
    const MAX_RANGE: i128 = 100_000;
    if !args.named.is_empty() {
        return fail("range takes no named arguments");
    }
    let mut numbers = Vec::new();
    for value in args.positional.iter().take(4) {
        numbers.push(the_int(Some(value.clone()), "an argument of range")?);
    }
    let (start, stop, step) = match numbers[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return fail("range takes one to three integers"),
    };
    if step == 0 {
        return fail("the step of a range cannot be 0");
    }
    let distance = if step > 0 { stop.checked_sub(start) } else { start.checked_sub(stop) };
    let len = match distance {
        Some(distance) if distance <= 0 => 0,
        Some(distance) => (distance - 1) / step.saturating_abs() + 1,
        None => i128::MAX,
    };
    if len > MAX_RANGE {
        return Err(RenderStop::Endless("it asks for a range of more than 100000 numbers"));
    }
    // With at most one number the step is irrelevant.
    let step = i64::try_from(step).or(if len < 2 { Ok(1) } else { Err(()) });
    match (i64::try_from(start), step) {
        (Ok(start), Ok(step)) => Ok(Value::Range(Range { start, step, len: len as u32 })),
        _ => fail("a number of a range is too large"),
    }
}

pub(super) fn the_text(value: Option<Value>, what: &str) -> Result<Text> {
    match value {
        Some(Value::Text(text)) => Ok(text),
        Some(value) => fail(format!("{what} takes a string, not {}", value.type_name())),
        None => fail(format!("{what} needs a string")),
    }
}

/// A string; `None` gives no string.
pub(super) fn optional_text(value: Option<Value>, what: &str) -> Result<Option<Text>> {
    match value {
        None | Some(Value::None) => Ok(None),
        value => the_text(value, what).map(Some),
    }
}

pub(super) fn the_int(value: Option<Value>, what: &str) -> Result<i128> {
    match value.as_ref().map(|value| (value.int(), value.type_name())) {
        Some((Some(n), _)) => Ok(n),
        Some((None, of)) => fail(format!("{what} must be an integer, not {of}")),
        None => fail(format!("{what} must be an integer")),
    }
}

/// A count; a negative one means no limit.
fn at_most(value: Option<Value>, what: &str) -> Result<Option<usize>> {
    let Some(value) = value else { return Ok(None) };
    let count = the_int(Some(value), what)?;
    Ok(if count < 0 {
        None
    } else {
        Some(usize::try_from(count).unwrap_or(usize::MAX - 1).min(usize::MAX - 1))
    })
}
