//! jinja2's filters.

use std::rc::Rc;

use super::budget::{RenderStop, Result, fail};
use super::machine::{Args, TemplateMachine};
use super::methods::{optional_text, the_int, the_text};
use super::names::{Case, Compare, Filter, Side, StrippedEnds, Test, ViewKind};
use super::shown::clip;
use super::text;
use super::value::{Buffer, ListBuilder, Missing, Number, Seq, Text, Value};

/// The maximum nesting of `map('map', 'map', …)`.
const MAX_MAPS: u32 = 8;

impl TemplateMachine<'_> {
    pub(super) fn filter(&mut self, filter: Filter, value: Value, args: Args) -> Result<Value> {
        self.filter_at(filter, value, args, 0)
    }

    /// `depth`: the number of filters that this one is an argument of.
    pub(super) fn filter_at(
        &mut self,
        filter: Filter,
        value: Value,
        args: Args,
        depth: u32,
    ) -> Result<Value> {
        if depth > MAX_MAPS {
            return Err(RenderStop::TooDeep("its filters call each other too deeply"));
        }
        match filter {
            Filter::Map
            | Filter::Select
            | Filter::SelectAttr
            | Filter::Reject
            | Filter::RejectAttr => self.filter_through(filter, &value, args, depth),
            Filter::Batch
            | Filter::DictSort
            | Filter::First
            | Filter::GroupBy
            | Filter::Items
            | Filter::Join
            | Filter::Last
            | Filter::Length
            | Filter::List
            | Filter::Max
            | Filter::Min
            | Filter::Reverse
            | Filter::Slice
            | Filter::Sort
            | Filter::Sum
            | Filter::Unique => self.filter_items(filter, &value, args),
            Filter::Abs | Filter::FileSize | Filter::Float | Filter::Int | Filter::Round => {
                self.filter_number(filter, &value, args)
            }
            Filter::Attr | Filter::Default | Filter::Safe | Filter::ToJson => {
                self.filter_any(filter, value, args)
            }
            _ => self.filter_text(filter, &value, args),
        }
    }

    fn filter_any(&mut self, filter: Filter, value: Value, args: Args) -> Result<Value> {
        match filter {
            Filter::ToJson => self.json_of(&value, args),
            Filter::Default => {
                let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
                let falsy = boolean.is_some_and(|b| b.truth()) && !value.truth();
                match default {
                    _ if !(value.is_undefined() || falsy) => Ok(value),
                    Some(default) => Ok(default),
                    None => Value::text("", &self.budget),
                }
            }
            Filter::Attr => {
                let [name] = args.require("attr", ["name"], 1)?;
                let name = the_text(name, "attr")?;
                self.defined(&value)?;
                let found = self.plain_attr(&value, &name)?;
                Ok(found.unwrap_or(Value::Undefined(Missing::Element(value.type_name()))))
            }
            _ => {
                args.bind("safe", [])?;
                self.text_of(&value)?.into_safe(&self.budget).map(Value::Text)
            }
        }
    }

    fn filter_text(&mut self, filter: Filter, value: &Value, args: Args) -> Result<Value> {
        let budget = Rc::clone(&self.budget);
        let text = self.text_of(value)?;
        match filter {
            Filter::Upper | Filter::Lower | Filter::Capitalize | Filter::Title => {
                args.bind(filter.name(), [])?;
                let cased = match filter {
                    Filter::Upper => text::case(&text, Case::Upper, &budget),
                    Filter::Lower => text::case(&text, Case::Lower, &budget),
                    Filter::Capitalize => text::case(&text, Case::Capitalize, &budget),
                    _ => return text::filter_title(&text, &budget),
                };
                cased?.marked_like(&text, &budget)
            }
            Filter::String => {
                args.bind("string", [])?;
                Ok(Value::Text(text))
            }
            Filter::Trim => {
                let [chars] = args.bind("trim", ["chars"])?;
                let chars = optional_text(chars, "trim")?;
                let stripped = text::strip(&text, chars.as_ref(), StrippedEnds::Both, &budget)?;
                if stripped.len() == text.len() {
                    return Ok(Value::Text(text));
                }
                Value::text(stripped, &budget)?.marked_like(&text, &budget)
            }
            Filter::Replace => self.replaced(&text, args),
            Filter::Center => {
                let [width] = args.bind("center", ["width"])?;
                let width = width.map_or(Ok(80), |width| the_int(Some(width), "the width"))?;
                text::justify(&text, width, ' ', Side::Center, &budget)?.marked_like(&text, &budget)
            }
            Filter::Format => self.formatted(&text, args),
            Filter::Escape | Filter::ForceEscape => {
                args.bind("escape", [])?;
                if text.is_safe() && filter == Filter::Escape {
                    return Ok(Value::Text(text));
                }
                let mut out = Buffer::new(&budget)?;
                text::escape(&text, &mut out)?;
                out.into_text()?.into_safe(&budget).map(Value::Text)
            }
            Filter::WordCount => {
                args.bind("wordcount", [])?;
                budget.bytes(2 * text.len())?;
                let words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
                Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i128))
            }
            Filter::UrlEncode => {
                args.bind("urlencode", [])?;
                self.url_encoded(value, &text)
            }
            Filter::Indent | Filter::Truncate => {
                // These do not turn other values into strings.
                self.defined(value)?;
                if !matches!(value, Value::Text(_)) {
                    return fail(format!("{} takes a string", filter.name()));
                }
                match filter {
                    Filter::Indent => self.indented(&text, args)?.marked_like(&text, &budget),
                    _ => self.truncated(&text, args),
                }
            }
            _ => fail("there is no such filter"),
        }
    }

    /// `replace`.
    fn replaced(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = Rc::clone(&self.budget);
        let [old, new, count] = args.require("replace", ["old", "new", "count"], 2)?;
        let old = self.text_of(&old.unwrap_or(Value::None))?;
        let new = self.text_of(&new.unwrap_or(Value::None))?;
        let count = match count {
            None | Some(Value::None) => None,
            count => usize::try_from(the_int(count, "the count")?).ok(),
        };
        text::replace(text, &old, &new, count, &budget)
    }

    /// `format`.
    fn formatted(&mut self, text: &Text, args: Args) -> Result<Value> {
        let budget = Rc::clone(&self.budget);
        if !args.named.is_empty() && !args.positional.is_empty() {
            return fail("format takes arguments by position or by name, not both");
        }
        let arg = if args.named.is_empty() {
            Value::Tuple(Seq::new(args.positional, &budget)?)
        } else {
            let mut map = super::value::MapBuilder::new(&budget)?;
            for (name, value) in args.named {
                map.push(Value::Text(name), value)?;
            }
            map.value()?
        };
        self.format_percent(text, &arg)
    }

    fn indented(&mut self, text: &Text, args: Args) -> Result<Value> {
        let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
        let indent = match width {
            Some(Value::Text(indent)) => indent,
            width => {
                let width = width.map_or(Ok(4), |width| the_int(Some(width), "the width"))?;
                let mut spaces = Buffer::new(&self.budget)?;
                spaces.repeat(" ", usize::try_from(width.max(0)).unwrap_or(usize::MAX))?;
                spaces.into_text()?
            }
        };
        let blank = blank.is_some_and(|blank| blank.truth());
        self.budget.bytes(text.len())?;
        let mut out = Buffer::new(&self.budget)?;
        if first.is_some_and(|first| first.truth()) {
            out.push_str(&indent)?;
        }
        let mut wrote = false;
        // jinja2 appends a line end first, so that one at the end is kept.
        let mut write = |line: &str| -> Result<()> {
            if wrote {
                out.push('\n')?;
                if blank || !line.is_empty() {
                    out.push_str(&indent)?;
                }
            }
            wrote = true;
            out.push_str(line)
        };
        let mut ended = true;
        for line in text::lines(text, true) {
            let bare = text::lines(line, false).next().unwrap_or_default();
            ended = bare.len() != line.len();
            write(bare)?;
        }
        // A `\r` at the end would form a single line end with the `\n`.
        if ended && !text.ends_with('\r') {
            write("")?;
        }
        out.into_value()
    }

    fn truncated(&mut self, text: &Text, args: Args) -> Result<Value> {
        let [length, kill_words, end, leeway] =
            args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
        let number = |value: Option<Value>, otherwise: i128| match value {
            None | Some(Value::None) => Ok(otherwise),
            value => the_int(value, "the length"),
        };
        let (length, leeway) = (number(length, 255)?, number(leeway, 5)?);
        let end = match end {
            None => Text::new("...", &self.budget)?,
            end => the_text(end, "truncate")?,
        };
        let end_len = end.chars_len() as i128;
        if length < end_len || leeway < 0 {
            return fail("truncate cannot make a text shorter than what it ends in");
        }
        if text.chars_len() as i128 <= length.saturating_add(leeway) {
            return Ok(Value::Text(text.clone()));
        }
        let at = self.byte_of(text, usize::try_from(length - end_len).unwrap_or(usize::MAX))?;
        let mut kept = &text[..at];
        if !kill_words.is_some_and(|kill| kill.truth()) {
            self.budget.bytes(kept.len())?;
            kept = kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept);
        }
        let mut out = Buffer::new(&self.budget)?;
        out.push_str(kept)?;
        out.push_str(&end)?;
        out.into_value()
    }

    fn url_encoded(&mut self, value: &Value, text: &Text) -> Result<Value> {
        let mut out = Buffer::new(&self.budget)?;
        let pairs = match value {
            Value::Dict(map) => self.items(&Value::View(ViewKind::Items, map.clone()))?,
            Value::List(items) | Value::Tuple(items) => items.clone(),
            _ => {
                quote(text, false, &mut out)?;
                return out.into_value();
            }
        };
        for (i, pair) in pairs.iter().enumerate() {
            let [key, value] = &*self.items(pair)? else {
                return fail("urlencode takes a string, a dictionary or pairs");
            };
            out.push_str(if i > 0 { "&" } else { "" })?;
            quote(&self.text_of(key)?, true, &mut out)?;
            out.push('=')?;
            quote(&self.text_of(value)?, true, &mut out)?;
        }
        out.into_value()
    }

    fn filter_number(&mut self, filter: Filter, value: &Value, args: Args) -> Result<Value> {
        match filter {
            Filter::Abs => {
                args.bind("abs", [])?;
                self.defined(value)?;
                match value.number() {
                    Some(Number::Int(n)) => match n.checked_abs() {
                        Some(n) => Ok(Value::Int(n)),
                        None => fail("a number is too large"),
                    },
                    Some(Number::Float(x)) => Ok(Value::Float(x.abs())),
                    None => fail(format!("abs takes a number, not {}", value.type_name())),
                }
            }
            Filter::Float => {
                let [default] = args.bind("float", ["default"])?;
                self.defined(value)?;
                if let Value::Text(text) = value {
                    self.budget.bytes(2 * text.len())?;
                }
                Ok(match as_float(value) {
                    Some(x) => Value::Float(x),
                    None => default.unwrap_or(Value::Float(0.0)),
                })
            }
            Filter::Int => {
                let [default, base] = args.bind("int", ["default", "base"])?;
                let base = base.map_or(Ok(10), |base| the_int(Some(base), "the base"))?;
                self.defined(value)?;
                if let Value::Text(text) = value {
                    self.budget.bytes(2 * text.len())?;
                }
                Ok(match as_int(value, base) {
                    Some(n) => Value::Int(n),
                    None => default.unwrap_or(Value::Int(0)),
                })
            }
            Filter::Round => {
                let [precision, method] = args.bind("round", ["precision", "method"])?;
                let precision = precision.map_or(Ok(0), |p| the_int(Some(p), "the precision"))?;
                let method = match method {
                    None => Text::new("common", &self.budget)?,
                    method => the_text(method, "round")?,
                };
                self.defined(value)?;
                let Some(number) = value.number() else {
                    return fail(format!("round takes a number, not {}", value.type_name()));
                };
                rounded(number, precision, &method)
            }
            _ => {
                let [binary] = args.bind("filesizeformat", ["binary"])?;
                self.defined(value)?;
                let Some(bytes) = as_float(value) else {
                    return fail("filesizeformat takes a number");
                };
                let text = file_size(bytes, binary.is_some_and(|binary| binary.truth()));
                Value::text(&text, &self.budget)
            }
        }
    }

    /// `map`, `select` and the like: an iterator over the items that they pass or produce.
    fn filter_through(
        &mut self,
        filter: Filter,
        value: &Value,
        mut args: Args,
        depth: u32,
    ) -> Result<Value> {
        let mut list = ListBuilder::new(&self.budget)?;
        if !value.truth() {
            return list.iter("generator");
        }
        let items = self.items(value)?;
        let by_attribute = matches!(filter, Filter::SelectAttr | Filter::RejectAttr);
        if filter == Filter::Map && args.positional.is_empty() {
            let [attribute, default] = args.bind("map", ["attribute", "default"])?;
            let Some(attribute) = attribute else {
                return fail("map takes a filter's name or an attribute");
            };
            for item in &*items {
                list.push(self.path(item, &attribute, default.as_ref())?)?;
            }
            return list.iter("generator");
        }
        self.budget.steps(args.positional.len())?;
        let mut positional = std::mem::take(&mut args.positional).into_iter();
        let attribute = if by_attribute {
            match positional.next() {
                Some(attribute) => Some(attribute),
                None => return fail(format!("{} needs an attribute", filter.name())),
            }
        } else {
            None
        };
        let name = positional.next();
        args.positional = positional.collect();
        for item in &*items {
            self.budget.steps(1 + args.positional.len() + args.named.len())?;
            let tried = match &attribute {
                Some(attribute) => self.path(item, attribute, None)?,
                None => item.clone(),
            };
            let mut own = Args::none();
            own.positional = args.positional.clone();
            own.named = args.named.clone();
            if filter == Filter::Map {
                let name = the_text(name.clone(), "map")?;
                let Some(inner) = Filter::named(&name) else {
                    return fail(format!("there is no filter '{}'", clip(&name)));
                };
                list.push(self.filter_at(inner, tried, own, depth + 1)?)?;
                continue;
            }
            let passes = match &name {
                None => tried.truth(),
                Some(name) => {
                    let name = the_text(Some(name.clone()), "the filter")?;
                    let Some(test) = Test::named(&name) else {
                        return fail(format!("there is no test '{}'", clip(&name)));
                    };
                    self.test(test, &tried, own)?
                }
            };
            if passes == matches!(filter, Filter::Select | Filter::SelectAttr) {
                list.push(item.clone())?;
            }
        }
        list.iter("generator")
    }

    /// Follows a path such as `address.city` or `0`, with a default for missing elements.
    pub(super) fn path(
        &mut self,
        value: &Value,
        path: &Value,
        default: Option<&Value>,
    ) -> Result<Value> {
        self.budget.steps(1)?;
        let mut at = value.clone();
        let default = default.filter(|default| !matches!(default, Value::None));
        let step = |machine: &mut Self, at: &mut Value, key: &Value| -> Result<()> {
            *at = machine.item(at, key)?;
            if let (true, Some(default)) = (at.is_undefined(), default) {
                *at = default.clone();
            }
            Ok(())
        };
        match path {
            Value::None => {}
            Value::Text(path) => {
                self.budget.bytes(path.len())?;
                for part in path.split('.') {
                    let number = part.bytes().all(|b| b.is_ascii_digit());
                    let key = match part.parse::<i128>().ok().filter(|_| number) {
                        Some(n) => Value::Int(n),
                        None => Value::text(part, &self.budget)?,
                    };
                    step(self, &mut at, &key)?;
                }
            }
            path => step(self, &mut at, path)?,
        }
        Ok(at)
    }

    /// As [`path`](Self::path); strings in lower case unless `exact`.
    pub(super) fn sort_key(&mut self, value: &Value, path: &Value, exact: bool) -> Result<Value> {
        let key = self.path(value, path, None)?;
        match &key {
            Value::Text(text) if !exact => text::case(text, Case::Lower, &self.budget),
            _ => Ok(key),
        }
    }

    /// Returns true if the first value orders before the second.
    pub(super) fn less(&mut self, a: &Value, b: &Value) -> Result<bool> {
        self.compare(Compare::Lt, a, b)
    }
}

fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Text(text) => text::parse_float(text),
        value => value.number().map(Number::float),
    }
}

fn as_int(value: &Value, base: i128) -> Option<i128> {
    let whole = |x: f64| (x.is_finite() && x.abs() < 1e38).then(|| x.trunc() as i128);
    match value {
        Value::Text(text) => {
            text::parse_int(text, base).or_else(|| text::parse_float(text).and_then(whole))
        }
        value => match value.number()? {
            Number::Int(n) => Some(n),
            Number::Float(x) => whole(x),
        },
    }
}

fn rounded(number: Number, precision: i128, method: &str) -> Result<Value> {
    if !(-30..=300).contains(&precision) {
        return fail("round takes a precision from -30 to 300");
    }
    let digits = precision as i32;
    match method {
        "common" => match number {
            Number::Int(n) if digits >= 0 => Ok(Value::Int(n)),
            Number::Int(n) => {
                // Rounds half to even.
                let unit = 10i128.pow(digits.unsigned_abs());
                let (below, rest) = (n.div_euclid(unit), n.rem_euclid(unit));
                let up = rest * 2 > unit || (rest * 2 == unit && below % 2 != 0);
                match (below + i128::from(up)).checked_mul(unit) {
                    Some(n) => Ok(Value::Int(n)),
                    None => fail("a number is too large"),
                }
            }
            Number::Float(x) if digits >= 0 && x.is_finite() => {
                // Exact decimals, half to even, like Python's `round`.
                let text = format!("{x:.*}", digits as usize);
                Ok(Value::Float(text.parse().unwrap_or(x)))
            }
            Number::Float(x) if x.is_finite() => {
                let unit = libm::pow(10.0, f64::from(-digits));
                Ok(Value::Float((x / unit).round_ties_even() * unit))
            }
            Number::Float(x) => Ok(Value::Float(x)),
        },
        "ceil" | "floor" => {
            let unit = libm::pow(10.0, f64::from(digits));
            let scaled = number.float() * unit;
            let whole = if method == "ceil" { scaled.ceil() } else { scaled.floor() };
            Ok(Value::Float(whole / unit))
        }
        _ => fail("round takes the methods 'common', 'ceil' and 'floor'"),
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return "1 Byte".into();
    }
    if bytes < base {
        return format!("{} Bytes", bytes.trunc());
    }
    let mut unit = base;
    let mut prefixes = ["k", "M", "G", "T", "P", "E", "Z", "Y"].into_iter().peekable();
    loop {
        let prefix = prefixes.next().unwrap_or("Y");
        if bytes < unit * base || prefixes.peek().is_none() {
            let prefix = if binary { prefix.to_uppercase() + "i" } else { prefix.into() };
            return format!("{:.1} {prefix}B", bytes / unit);
        }
        unit *= base;
    }
}

/// Python's `urllib.parse.quote`; with `plus` as in a query.
fn quote(text: &str, plus: bool, out: &mut Buffer) -> Result<()> {
    for b in text.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(b))?;
            }
            b'/' if !plus => out.push('/')?,
            b' ' if plus => out.push('+')?,
            b => out.push_str(&format!("%{b:02X}"))?,
        }
    }
    Ok(())
}
