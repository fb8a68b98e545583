//! Python's operators, subscripts and comparisons on values.

use std::cmp::Ordering;

use super::budget::{RenderStop, Result, fail};
use super::code::Binary;
use super::machine::TemplateMachine;
use super::names::{Compare, ViewKind};
use super::shown::clip;
use super::text;
use super::value::{Buffer, ListBuilder, Missing, Number, Range, Seq, Text, Value};

/// The result of an arithmetic operation that may not fit.
fn fits(result: Option<i128>) -> Result<Value> {
    match result {
        Some(n) => Ok(Value::Int(n)),
        None => fail("a number is too large: integers have 127 bits here"),
    }
}

fn symbol(op: Binary) -> &'static str {
    match op {
        Binary::Add => "+",
        Binary::Sub => "-",
        Binary::Mul => "*",
        Binary::Div => "/",
        Binary::FloorDiv => "//",
        Binary::Rem => "%",
        Binary::Pow => "**",
    }
}

/// The items that a slice selects: first index, step, number of items.
struct Cut {
    start: i128,
    step: i128,
    len: usize,
}

impl TemplateMachine<'_> {
    /// Returns an error if the value is undefined.
    pub(super) fn defined(&self, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(missing) => Err(RenderStop::Failed(self.describe_missing(*missing))),
            _ => Ok(()),
        }
    }

    /// "'x' is undefined".
    pub(super) fn describe_missing(&self, missing: Missing) -> String {
        let name = |name| clip(self.name(name));
        match missing {
            Missing::Variable(at) => format!("'{}' is undefined", name(at)),
            Missing::Attribute(of, at) => format!("{of} has no attribute or key '{}'", name(at)),
            Missing::Element(of) => format!("{of} has no such element"),
            Missing::Unsafe(of, at) => {
                format!("the attribute '{}' of {of} is out of reach", name(at))
            }
            Missing::Other(what) => what.into(),
        }
    }

    pub(super) fn negated(&self, value: &Value) -> Result<Value> {
        self.defined(value)?;
        match value.number() {
            Some(Number::Int(n)) => fits(n.checked_neg()),
            Some(Number::Float(x)) => Ok(Value::Float(-x)),
            None => fail(format!("{} cannot be negated", value.type_name())),
        }
    }

    pub(super) fn positive(&self, value: &Value) -> Result<Value> {
        self.defined(value)?;
        match value.number() {
            Some(Number::Int(n)) => Ok(Value::Int(n)),
            Some(Number::Float(x)) => Ok(Value::Float(x)),
            None => fail(format!("{} cannot have a sign", value.type_name())),
        }
    }

    pub(super) fn binary(&mut self, op: Binary, a: &Value, b: &Value) -> Result<Value> {
        if let (Binary::Rem, Value::Text(format)) = (op, a) {
            return self.format_percent(format, b);
        }
        self.defined(a)?;
        self.defined(b)?;
        if let (Some(a), Some(b)) = (a.number(), b.number()) {
            return arithmetic(op, a, b);
        }
        match (op, a, b) {
            (Binary::Add, Value::Text(a), Value::Text(b)) => {
                let mut out = Buffer::new(&self.budget)?;
                let safe = a.is_safe() || b.is_safe();
                for part in [a, b] {
                    if safe && !part.is_safe() {
                        text::escape(part, &mut out)?;
                    } else {
                        out.push_str(part)?;
                    }
                }
                let text = out.into_text()?;
                Ok(Value::Text(if safe { text.into_safe(&self.budget)? } else { text }))
            }
            (Binary::Add, Value::List(a), Value::List(b)) => {
                self.concat_items(a, b).map(Value::List)
            }
            (Binary::Add, Value::Tuple(a), Value::Tuple(b)) => {
                self.concat_items(a, b).map(Value::Tuple)
            }
            (Binary::Mul, items, count) | (Binary::Mul, count, items)
                if count.int().is_some()
                    && matches!(items, Value::Text(_) | Value::List(_) | Value::Tuple(_)) =>
            {
                let count = count.int().unwrap_or(0).max(0);
                self.repeated(items, usize::try_from(count).unwrap_or(usize::MAX))
            }
            _ => {
                let (a, b, op) = (a.type_name(), b.type_name(), symbol(op));
                fail(format!("'{op}' does not work between {a} and {b}"))
            }
        }
    }

    fn concat_items(&self, a: &Seq, b: &Seq) -> Result<Seq> {
        Seq::new(a.iter().chain(b.iter()).cloned(), &self.budget)
    }

    fn repeated(&self, items: &Value, count: usize) -> Result<Value> {
        match items {
            Value::Text(text) => {
                let mut out = Buffer::new(&self.budget)?;
                out.repeat(text, count)?;
                out.into_value()?.marked_like(text, &self.budget)
            }
            Value::List(of) | Value::Tuple(of) => {
                let count = if of.is_empty() { 0 } else { count };
                let repeated = std::iter::repeat_n(of, count).flat_map(|items| items.iter());
                let repeated = Seq::new(repeated.cloned(), &self.budget)?;
                Ok(match items {
                    Value::List(_) => Value::List(repeated),
                    _ => Value::Tuple(repeated),
                })
            }
            _ => Ok(Value::None),
        }
    }

    pub(super) fn compare(&mut self, op: Compare, a: &Value, b: &Value) -> Result<bool> {
        match op {
            Compare::Eq => self.equal(a, b),
            Compare::Ne => Ok(!self.equal(a, b)?),
            Compare::In => self.contains(b, a),
            Compare::NotIn => Ok(!self.contains(b, a)?),
            Compare::Lt | Compare::Le | Compare::Gt | Compare::Ge => {
                let order = self.partial_order(a, b)?;
                Ok(order.is_some_and(|order| match op {
                    Compare::Lt => order.is_lt(),
                    Compare::Le => order.is_le(),
                    Compare::Gt => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
        }
    }

    /// `a == b`. Recurses as deep as values nest; namespaces equal only themselves.
    pub(super) fn equal(&self, a: &Value, b: &Value) -> Result<bool> {
        self.budget.steps(1)?;
        if let (Some(a), Some(b)) = (a.number(), b.number()) {
            return Ok(a.order(b) == Some(Ordering::Equal));
        }
        Ok(match (a, b) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => {
                if a.same(b) {
                    return Ok(true);
                }
                if a.len() != b.len() {
                    return Ok(false);
                }
                self.budget.bytes(a.len())?;
                **a == **b
            }
            (Value::List(a), Value::List(b))
            | (Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
                if a.same(b) {
                    return Ok(true);
                }
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (a, b) in a.iter().zip(&**b) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if a.same(b) {
                    return Ok(true);
                }
                if a.len() != b.len() {
                    return Ok(false);
                }
                for (key, value) in a.entries() {
                    match b.get(key, &self.budget)? {
                        Some(other) if self.equal(value, other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Range(a), Value::Range(b)) => {
                a.len == b.len
                    && (a.len == 0 || (a.start == b.start && (a.len == 1 || a.step == b.step)))
            }
            (Value::Object(a), Value::Object(b)) => a == b,
            (Value::Loop(_, a), Value::Loop(_, b)) => a == b,
            (Value::Builtin(a), Value::Builtin(b)) => a == b,
            (Value::View(kind, a), Value::View(other, b)) => {
                // Keys and items are sets in Python; values are never equal.
                kind == other
                    && match kind {
                        ViewKind::Items => {
                            self.equal(&Value::Dict(a.clone()), &Value::Dict(b.clone()))?
                        }
                        // Python compares these by identity.
                        ViewKind::Values => false,
                        ViewKind::Keys => {
                            a.len() == b.len() && {
                                let mut all = true;
                                for (key, _) in a.entries() {
                                    all &= b.get(key, &self.budget)?.is_some();
                                }
                                all
                            }
                        }
                    }
            }
            (Value::Iter(a), Value::Iter(b)) => std::rc::Rc::ptr_eq(a, b),
            _ => false,
        })
    }

    /// The order of two values; an error if they have none. (NaN orders after everything.)
    pub(super) fn order(&self, a: &Value, b: &Value) -> Result<Ordering> {
        Ok(self.partial_order(a, b)?.unwrap_or(Ordering::Greater))
    }

    fn partial_order(&self, a: &Value, b: &Value) -> Result<Option<Ordering>> {
        self.defined(a)?;
        self.defined(b)?;
        self.budget.steps(1)?;
        if let (Some(a), Some(b)) = (a.number(), b.number()) {
            return Ok(a.order(b));
        }
        match (a, b) {
            (Value::Text(a), Value::Text(b)) => {
                self.budget.bytes(a.len().min(b.len()))?;
                Ok(Some((**a).cmp(&**b)))
            }
            (Value::List(a), Value::List(b))
            | (Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
                for (a, b) in a.iter().zip(&**b) {
                    if !self.equal(a, b)? {
                        return self.partial_order(a, b);
                    }
                }
                Ok(Some(a.len().cmp(&b.len())))
            }
            _ => fail(format!("{} and {} cannot be ordered", a.type_name(), b.type_name())),
        }
    }

    /// `item in container`.
    pub(super) fn contains(&self, container: &Value, item: &Value) -> Result<bool> {
        match container {
            Value::Text(text) => match item {
                Value::Text(part) => {
                    self.budget.bytes(text.len() + part.len())?;
                    Ok(text.contains(&**part))
                }
                _ => fail(format!("{} cannot be in a string", item.type_name())),
            },
            Value::Dict(map) | Value::View(ViewKind::Keys, map) => {
                Ok(map.get(item, &self.budget)?.is_some())
            }
            Value::Range(range) => Ok(match item.number() {
                Some(Number::Float(x)) if x.fract() == 0.0 && x.abs() < 1e18 => {
                    self.contains(container, &Value::Int(x as i128))?
                }
                Some(Number::Int(n)) => {
                    let Some(from) = n.checked_sub(i128::from(range.start)) else {
                        return Ok(false);
                    };
                    let step = i128::from(range.step);
                    // Dividing the lowest number by −1 has no result.
                    let index = from.checked_div(step).filter(|index| index * step == from);
                    index.is_some_and(|index| (0..i128::from(range.len)).contains(&index))
                }
                _ => false,
            }),
            _ => {
                for other in &*self.items(container)? {
                    if self.equal(other, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// `object[key]`, as in the sandbox: a missing element is undefined.
    pub(super) fn item(&mut self, object: &Value, key: &Value) -> Result<Value> {
        self.defined(object)?;
        if let Some(found) = self.element(object, key)? {
            return Ok(found);
        }
        if let Value::Text(name) = key {
            let name = name.clone();
            if let Some(found) = self.plain_attr(object, &name)? {
                return Ok(found);
            }
        }
        Ok(Value::Undefined(Missing::Element(object.type_name())))
    }

    /// The element of a list, string or dictionary.
    pub(super) fn element(&mut self, object: &Value, key: &Value) -> Result<Option<Value>> {
        let index = |len: usize| {
            let at = key.int()?;
            let at = if at < 0 { at + len as i128 } else { at };
            usize::try_from(at).ok().filter(|at| *at < len)
        };
        Ok(match object {
            Value::Dict(map) => match map.get(key, &self.budget) {
                Ok(found) => found.cloned(),
                // A value that cannot be a key is not found.
                Err(RenderStop::Failed(_)) => None,
                Err(stop) => return Err(stop),
            },
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                index(items.len()).map(|at| items[at].clone())
            }
            Value::Range(range) => index(range.len as usize).map(|at| Value::Int(range.get(at))),
            Value::Text(text) => match index(text.chars_len()) {
                Some(at) => {
                    let text = text.clone();
                    let at = self.byte_of(&text, at)?;
                    let c = text[at..].chars().next().unwrap_or_default();
                    Some(self.char(c)?.marked_like(&text, &self.budget)?)
                }
                None => None,
            },
            _ => None,
        })
    }

    /// The offset of a character.
    pub(super) fn byte_of(&self, text: &Text, char: usize) -> Result<usize> {
        if text.is_ascii() {
            return Ok(char.min(text.len()));
        }
        self.budget.bytes(text.len())?;
        Ok(text.char_indices().nth(char).map_or(text.len(), |(at, _)| at))
    }

    /// `object[start:stop:step]`.
    pub(super) fn slice(&mut self, object: &Value, bounds: [&Value; 3]) -> Result<Value> {
        self.defined(object)?;
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            *number = match bound {
                Value::None => None,
                bound => match bound.int() {
                    Some(n) => Some(n),
                    None => return fail(format!("{} cannot bound a slice", bound.type_name())),
                },
            };
        }
        match object {
            Value::Text(text) => {
                let cut = cut(numbers, text.chars_len())?;
                self.slice_text(text, &cut)?.marked_like(text, &self.budget)
            }
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                let cut = cut(numbers, items.len())?;
                if cut.len == items.len() && cut.step == 1 {
                    return Ok(object.clone());
                }
                let picked = (0..cut.len).map(|i| {
                    let at = cut.start + cut.step * i as i128;
                    items[at as usize].clone()
                });
                let picked = Seq::new(picked, &self.budget)?;
                Ok(match object {
                    Value::List(_) => Value::List(picked),
                    _ => Value::Tuple(picked),
                })
            }
            Value::Range(range) => {
                let cut = cut(numbers, range.len as usize)?;
                let start = i128::from(range.start) + i128::from(range.step) * cut.start;
                let step = i128::from(range.step).checked_mul(cut.step);
                // A step that does not fit leaves at most one item.
                let step = step.and_then(|step| i64::try_from(step).ok()).unwrap_or(1);
                let start = i64::try_from(start).unwrap_or(range.start);
                Ok(Value::Range(Range { start, step, len: cut.len as u32 }))
            }
            _ => fail(format!("{} cannot be sliced", object.type_name())),
        }
    }

    fn slice_text(&mut self, text: &Text, cut: &Cut) -> Result<Value> {
        if cut.step == 1 {
            let from = self.byte_of(text, usize::try_from(cut.start).unwrap_or(usize::MAX))?;
            let end = if text.is_ascii() {
                from + cut.len
            } else {
                self.budget.bytes(text.len())?;
                let rest = &text[from..];
                from + rest.char_indices().nth(cut.len).map_or(rest.len(), |(at, _)| at)
            };
            return Value::text(&text[from..end], &self.budget);
        }
        let mut out = Buffer::new(&self.budget)?;
        if text.is_ascii() {
            for i in 0..cut.len {
                let at = cut.start + cut.step * i as i128;
                out.push(char::from(text.as_bytes()[at as usize]))?;
            }
            return out.into_value();
        }
        // Four bytes per character, only while this runs.
        let _lease = self.budget.lease(4 * text.chars_len())?;
        self.budget.bytes(4 * text.len())?;
        let chars: Vec<char> = text.chars().collect();
        for i in 0..cut.len {
            let at = cut.start + cut.step * i as i128;
            out.push(chars[at as usize])?;
        }
        out.into_value()
    }

    /// All items that a loop over the value visits; an iterator is exhausted then.
    pub(super) fn items(&self, value: &Value) -> Result<Seq> {
        match value {
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => Ok(items.clone()),
            Value::Undefined(_) => Seq::new([], &self.budget),
            Value::Text(text) => {
                let mut list = ListBuilder::new(&self.budget)?;
                for c in text.chars() {
                    list.push(self.char(c)?)?;
                }
                list.finish()
            }
            Value::Range(range) => {
                let items = (0..range.len as usize).map(|i| Value::Int(range.get(i)));
                Seq::new(items, &self.budget)
            }
            Value::Dict(map) | Value::View(ViewKind::Keys, map) => {
                Seq::new(map.entries().iter().map(|(key, _)| key.clone()), &self.budget)
            }
            Value::View(ViewKind::Values, map) => {
                Seq::new(map.entries().iter().map(|(_, value)| value.clone()), &self.budget)
            }
            Value::View(ViewKind::Items, map) => {
                let mut list = ListBuilder::new(&self.budget)?;
                for (key, value) in map.entries() {
                    let pair = Seq::new([key.clone(), value.clone()], &self.budget)?;
                    list.push(Value::Tuple(pair))?;
                }
                list.finish()
            }
            Value::Iter(once) => {
                let at = once.at.replace(once.items.len());
                if at == 0 {
                    return Ok(once.items.clone());
                }
                Seq::new(once.items[at..].iter().cloned(), &self.budget)
            }
            _ => fail(format!("{} cannot be gone through", value.type_name())),
        }
    }

    /// A text of one character; ASCII ones are created once.
    pub(super) fn char(&self, c: char) -> Result<Value> {
        let new = || Value::text(c.encode_utf8(&mut [0; 4]), &self.budget);
        let mut chars = self.chars.borrow_mut();
        let Some(slot) = chars.get_mut(c as usize) else { return new() };
        match slot {
            Some(value) => Ok(value.clone()),
            None => {
                let value = new()?;
                *slot = Some(value.clone());
                Ok(value)
            }
        }
    }
}

/// Like Python's `slice.indices`.
fn cut([start, stop, step]: [Option<i128>; 3], len: usize) -> Result<Cut> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return fail("a slice's step cannot be 0");
    }
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |n: i128| {
        let n = if n < 0 { n.saturating_add(len) } else { n };
        n.clamp(low, high)
    };
    let start = start.map_or(if step > 0 { low } else { high }, clamp);
    let stop = stop.map_or(if step > 0 { high } else { low }, clamp);
    let (from, to) = if step > 0 { (start, stop) } else { (stop, start) };
    let len = if from < to { (to - from - 1) / step.saturating_abs() + 1 } else { 0 };
    Ok(Cut { start, step, len: usize::try_from(len).unwrap_or(0) })
}

/// Python's arithmetic: `/` yields a float, `//` and `%` round down.
fn arithmetic(op: Binary, a: Number, b: Number) -> Result<Value> {
    use Number::{Float, Int};
    let zero = match b {
        Int(b) => b == 0,
        Float(b) => b == 0.0,
    };
    if zero && matches!(op, Binary::Div | Binary::FloorDiv | Binary::Rem) {
        return fail("a division by zero");
    }
    if let (Int(a), Int(b)) = (a, b) {
        match op {
            Binary::Add => return fits(a.checked_add(b)),
            Binary::Sub => return fits(a.checked_sub(b)),
            Binary::Mul => return fits(a.checked_mul(b)),
            Binary::FloorDiv => {
                let quotient = a.checked_div(b);
                let down = a.checked_rem(b).is_some_and(|rest| rest != 0 && (rest < 0) != (b < 0));
                return fits(quotient.map(|q| q - i128::from(down)));
            }
            Binary::Rem => {
                let rest = a.checked_rem(b).unwrap_or(0);
                let up = rest != 0 && (rest < 0) != (b < 0);
                return Ok(Value::Int(if up { rest + b } else { rest }));
            }
            Binary::Pow if b >= 0 => {
                // Only these have powers that fit for exponents that do not.
                let power = match a {
                    0 | 1 => Some(if b == 0 { 1 } else { a }),
                    -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
                    _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
                };
                return fits(power);
            }
            Binary::Pow | Binary::Div => {}
        }
    }
    let (a, b) = (a.float(), b.float());
    Ok(Value::Float(match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Rem => floor_rem(a, b),
        Binary::FloorDiv => {
            let rest = floor_rem(a, b);
            let quotient = (a - rest) / b;
            if quotient == 0.0 { (0.0f64).copysign(a / b) } else { quotient.round() }
        }
        Binary::Pow => {
            if a == 0.0 && b < 0.0 {
                return fail("0 has no negative power");
            }
            let power = libm::pow(a, b);
            if power.is_nan() && !a.is_nan() && !b.is_nan() {
                return fail("a negative number has no such power");
            }
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return fail("a number is too large");
            }
            power
        }
    }))
}

fn floor_rem(a: f64, b: f64) -> f64 {
    let rest = a % b;
    if rest == 0.0 {
        (0.0f64).copysign(b)
    } else if (rest < 0.0) != (b < 0.0) {
        rest + b
    } else {
        rest
    }
}
