//! The values of a template. They are immutable trees of bounded depth, so dropping, comparing and
//! printing them recurses at most [`MAX_DEPTH`] levels. Objects that can change (namespaces,
//! cyclers, macros with their scopes) are in the machine's arena and are referred to by index: no
//! value contains itself.

use std::cell::Cell;
use std::cmp::Ordering;
use std::ops::Deref;
use std::rc::Rc;

use super::budget::{Budget, Lease, RenderStop, Result, fail};
use super::code::Name;
use super::names::{Method, ViewKind};

/// The maximum nesting of a value. (A request's JSON is read to a depth of 128.)
pub(super) const MAX_DEPTH: u32 = 160;
/// The memory charged for a value on the heap, in addition to its contents.
const OVERHEAD: usize = 96;

/// The origin of an undefined value, for messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Missing {
    /// A variable.
    Variable(Name),
    /// An attribute or key of a value of the named type.
    Attribute(&'static str, Name),
    /// An element of a value of the named type, by a computed key.
    Element(&'static str),
    /// Something that the sandbox withholds.
    Unsafe(&'static str, Name),
    /// The first item of an empty sequence, and the like.
    Other(&'static str),
}

/// Callable values other than macros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builtin {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// Python's `range`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) step: i64,
    pub(super) len: u32,
}

impl Range {
    pub(super) fn get(self, index: usize) -> i128 {
        i128::from(self.start) + i128::from(self.step) * index as i128
    }
}

#[derive(Clone)]
pub(super) enum Value {
    Undefined(Missing),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(Text),
    List(Seq),
    Tuple(Seq),
    /// A pair from `groupby`: a tuple with names.
    Group(Seq),
    Dict(Map),
    Range(Range),
    View(ViewKind, Map),
    /// An iterator, which can be iterated once.
    Iter(Rc<Once>),
    /// A namespace, cycler, joiner or macro of the machine.
    Object(u32),
    /// The loop at this index in the stack of loops, with its number.
    Loop(u32, u32),
    Builtin(Builtin),
    Method(Rc<Bound>),
}

/// A method and its object.
pub(super) struct Bound {
    pub(super) of: Value,
    pub(super) method: Method,
    _lease: Lease,
}

/// An iterator over values that already exist.
pub(super) struct Once {
    pub(super) items: Seq,
    pub(super) at: Cell<usize>,
    /// Its name in Python.
    pub(super) name: &'static str,
}

pub(super) struct TextData {
    text: String,
    /// Its length in characters.
    chars: usize,
    /// Marked as HTML, by `safe` or `escape`: text appended to it is escaped.
    safe: bool,
    _lease: Lease,
}

/// A string.
#[derive(Clone)]
pub(super) struct Text(Rc<TextData>);

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0.text
    }
}

impl Text {
    pub(super) fn new(text: &str, budget: &Rc<Budget>) -> Result<Text> {
        budget.bytes(text.len())?;
        let lease = budget.lease(text.len() + OVERHEAD)?;
        Ok(Text::of(text.to_owned(), lease))
    }

    fn of(text: String, lease: Lease) -> Text {
        let chars = text.chars().count();
        Text(Rc::new(TextData { text, chars, safe: false, _lease: lease }))
    }

    /// True if it is marked as HTML.
    pub(super) fn is_safe(&self) -> bool {
        self.0.safe
    }

    /// The same text, marked as HTML.
    pub(super) fn into_safe(mut self, budget: &Rc<Budget>) -> Result<Text> {
        if !self.0.safe {
            if Rc::get_mut(&mut self.0).is_none() {
                self = Text::new(&self, budget)?;
            }
            if let Some(data) = Rc::get_mut(&mut self.0) {
                data.safe = true;
            }
        }
        Ok(self)
    }

    /// Its length in characters.
    pub(super) fn chars_len(&self) -> usize {
        self.0.chars
    }

    pub(super) fn is_ascii(&self) -> bool {
        self.0.chars == self.0.text.len()
    }

    pub(super) fn same(&self, other: &Text) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// A growing string. Its memory is leased before it grows.
pub(super) struct Buffer {
    text: String,
    lease: Lease,
    budget: Rc<Budget>,
}

impl Buffer {
    pub(super) fn new(budget: &Rc<Budget>) -> Result<Buffer> {
        let lease = budget.lease(OVERHEAD)?;
        Ok(Buffer { text: String::new(), lease, budget: Rc::clone(budget) })
    }

    /// Reserves `more` bytes, and charges their processing.
    fn reserve(&mut self, more: usize) -> Result<()> {
        self.budget.bytes(more)?;
        let needed = self.text.len().saturating_add(more);
        if needed > self.text.capacity() {
            let capacity = needed.max(self.text.len().saturating_mul(2)).max(32);
            self.lease.resize(capacity.saturating_add(OVERHEAD))?;
            self.text.reserve_exact(capacity - self.text.len());
        }
        Ok(())
    }

    pub(super) fn push_str(&mut self, text: &str) -> Result<()> {
        self.reserve(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push(&mut self, c: char) -> Result<()> {
        self.push_str(c.encode_utf8(&mut [0; 4]))
    }

    /// Appends `text` `count` times.
    pub(super) fn repeat(&mut self, text: &str, count: usize) -> Result<()> {
        self.reserve(text.len().saturating_mul(count))?;
        self.budget.steps(if text.is_empty() { 0 } else { count / 4 })?;
        if !text.is_empty() {
            self.text.extend(std::iter::repeat_n(text, count));
        }
        Ok(())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn into_text(mut self) -> Result<Text> {
        self.budget.bytes(self.text.len())?;
        if self.text.capacity() - self.text.len() > self.text.len() / 4 {
            self.text.shrink_to_fit();
            self.lease.resize(self.text.capacity() + OVERHEAD)?;
        }
        Ok(Text::of(self.text, self.lease))
    }

    pub(super) fn into_value(self) -> Result<Value> {
        self.into_text().map(Value::Text)
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }
}

pub(super) struct SeqData {
    items: Vec<Value>,
    depth: u32,
    _lease: Lease,
}

/// The items of a list or tuple.
#[derive(Clone)]
pub(super) struct Seq(Rc<SeqData>);

impl Deref for Seq {
    type Target = [Value];
    fn deref(&self) -> &[Value] {
        &self.0.items
    }
}

impl Seq {
    pub(super) fn same(&self, other: &Seq) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    /// A sequence of all `items`.
    pub(super) fn new(items: impl IntoIterator<Item = Value>, budget: &Rc<Budget>) -> Result<Seq> {
        let mut list = ListBuilder::new(budget)?;
        for item in items {
            list.push(item)?;
        }
        list.finish()
    }
}

/// A growing list. Its memory is leased before it grows.
pub(super) struct ListBuilder {
    items: Vec<Value>,
    depth: u32,
    lease: Lease,
    budget: Rc<Budget>,
}

impl ListBuilder {
    pub(super) fn new(budget: &Rc<Budget>) -> Result<ListBuilder> {
        let lease = budget.lease(OVERHEAD)?;
        Ok(ListBuilder { items: Vec::new(), depth: 0, lease, budget: Rc::clone(budget) })
    }

    pub(super) fn push(&mut self, item: Value) -> Result<()> {
        self.budget.steps(1)?;
        if self.items.len() == self.items.capacity() {
            let capacity = (self.items.len() * 2).max(4);
            self.lease.resize(capacity * size_of::<Value>() + OVERHEAD)?;
            self.items.reserve_exact(capacity - self.items.len());
        }
        self.depth = self.depth.max(item.depth());
        self.items.push(item);
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        let text = Text::new(text, &self.budget)?;
        self.push(Value::Text(text))
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn finish(mut self) -> Result<Seq> {
        let depth = nest(self.depth)?;
        self.items.shrink_to_fit();
        self.lease.resize(self.items.capacity() * size_of::<Value>() + OVERHEAD)?;
        Ok(Seq(Rc::new(SeqData { items: self.items, depth, _lease: self.lease })))
    }

    pub(super) fn list(self) -> Result<Value> {
        self.finish().map(Value::List)
    }

    pub(super) fn tuple(self) -> Result<Value> {
        self.finish().map(Value::Tuple)
    }

    pub(super) fn iter(self, name: &'static str) -> Result<Value> {
        let items = self.finish()?;
        Ok(Value::Iter(Rc::new(Once { items, at: Cell::new(0), name })))
    }
}

fn nest(depth: u32) -> Result<u32> {
    if depth >= MAX_DEPTH {
        return Err(RenderStop::TooDeep("it nests values too deeply"));
    }
    Ok(depth + 1)
}

pub(super) struct MapData {
    /// In order of insertion.
    entries: Vec<(Value, Value)>,
    /// Indices of the entries, in the order of their keys.
    order: Vec<u32>,
    depth: u32,
    _lease: Lease,
}

/// A dictionary.
#[derive(Clone)]
pub(super) struct Map(Rc<MapData>);

impl Map {
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.0.entries
    }

    pub(super) fn len(&self) -> usize {
        self.0.entries.len()
    }

    pub(super) fn same(&self, other: &Map) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }

    fn find(&self, mut compare: impl FnMut(&Value) -> Result<Ordering>) -> Result<Option<&Value>> {
        let (mut low, mut high) = (0, self.0.order.len());
        while low < high {
            let middle = (low + high) / 2;
            let (key, value) = &self.0.entries[self.0.order[middle] as usize];
            match compare(key)? {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Some(value)),
            }
        }
        Ok(None)
    }

    /// The value of a key; an error if the key's type cannot be a key.
    pub(super) fn get(&self, wanted: &Value, budget: &Budget) -> Result<Option<&Value>> {
        hashable(wanted, budget)?;
        self.find(|key| order_keys(key, wanted, budget))
    }

    pub(super) fn get_str(&self, wanted: &str, budget: &Budget) -> Result<Option<&Value>> {
        self.find(|key| {
            budget.bytes(wanted.len())?;
            Ok(match key {
                Value::Text(key) => (**key).cmp(wanted),
                key => rank(key).cmp(&TEXT_RANK),
            })
        })
    }
}

/// A growing dictionary; of entries with one key the last counts, at the position of the first.
pub(super) struct MapBuilder {
    entries: Vec<(Value, Value)>,
    depth: u32,
    lease: Lease,
    budget: Rc<Budget>,
}

impl MapBuilder {
    pub(super) fn new(budget: &Rc<Budget>) -> Result<MapBuilder> {
        let lease = budget.lease(OVERHEAD)?;
        Ok(MapBuilder { entries: Vec::new(), depth: 0, lease, budget: Rc::clone(budget) })
    }

    fn resize_lease(&mut self, capacity: usize) -> Result<()> {
        self.lease.resize(capacity * (size_of::<(Value, Value)>() + 8) + OVERHEAD)
    }

    pub(super) fn push(&mut self, key: Value, value: Value) -> Result<()> {
        hashable(&key, &self.budget)?;
        self.budget.steps(2)?;
        if self.entries.len() == self.entries.capacity() {
            let capacity = (self.entries.len() * 2).max(2);
            self.resize_lease(capacity)?;
            self.entries.reserve_exact(capacity - self.entries.len());
        }
        self.depth = self.depth.max(key.depth()).max(value.depth());
        self.entries.push((key, value));
        Ok(())
    }

    pub(super) fn text(&mut self, key: &str, value: Value) -> Result<()> {
        let key = Text::new(key, &self.budget)?;
        self.push(Value::Text(key), value)
    }

    pub(super) fn finish(mut self) -> Result<Map> {
        let depth = nest(self.depth)?;
        let Ok(len) = u32::try_from(self.entries.len()) else {
            return Err(RenderStop::Endless("a dictionary has too many entries"));
        };
        let mut order: Vec<u32> = (0..len).collect();
        let entries = &mut self.entries;
        sort(&mut order, &self.budget, |a, b| {
            order_keys(&entries[*a as usize].0, &entries[*b as usize].0, &self.budget)
        })?;
        // Sorting is stable: equal keys are in `order` in the order of insertion.
        let mut doubled = Vec::new();
        for pair in order.windows(2) {
            let [a, b] = [pair[0] as usize, pair[1] as usize];
            if order_keys(&entries[a].0, &entries[b].0, &self.budget)?.is_eq() {
                doubled.push((a, b));
            }
        }
        if !doubled.is_empty() {
            return self.without_doubled(&order, &doubled);
        }
        self.entries.shrink_to_fit();
        self.resize_lease(self.entries.capacity())?;
        Ok(Map(Rc::new(MapData { entries: self.entries, order, depth, _lease: self.lease })))
    }

    /// `doubled`: indices of entries with the same key that are adjacent in the order of keys.
    fn without_doubled(mut self, order: &[u32], doubled: &[(usize, usize)]) -> Result<Map> {
        self.budget.steps(self.entries.len() * 2)?;
        // Later values move to the first position, which is never the second of a pair.
        let mut first: Vec<usize> = (0..order.len()).collect();
        let mut gone = vec![false; order.len()];
        for (a, b) in doubled {
            first[*b] = first[*a];
            gone[*b] = true;
        }
        for b in 0..first.len() {
            if gone[b] {
                self.entries[first[b]].1 = self.entries[b].1.clone();
            }
        }
        let mut at = 0;
        self.entries.retain(|_| {
            at += 1;
            !gone[at - 1]
        });
        self.finish()
    }

    pub(super) fn value(self) -> Result<Value> {
        self.finish().map(Value::Dict)
    }
}

const TEXT_RANK: u8 = 2;

fn rank(key: &Value) -> u8 {
    match key {
        Value::None => 0,
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => 1,
        Value::Text(_) => TEXT_RANK,
        Value::Tuple(_) | Value::Group(_) => 3,
        _ => 4,
    }
}

/// Returns an error for values that Python cannot hash.
pub(super) fn hashable(key: &Value, budget: &Budget) -> Result<()> {
    // Shared parts are visited each time, which may be often.
    budget.steps(1)?;
    match key {
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Text(_) => Ok(()),
        Value::Tuple(items) | Value::Group(items) => {
            items.iter().try_for_each(|item| hashable(item, budget))
        }
        _ => fail(format!("{} cannot be a key", key.type_name())),
    }
}

/// A total order of keys in which equal keys are equal. Recurses as deep as values nest.
fn order_keys(a: &Value, b: &Value, budget: &Budget) -> Result<Ordering> {
    budget.steps(1)?;
    Ok(match (a, b) {
        (Value::Text(a), Value::Text(b)) => {
            budget.bytes(a.len().min(b.len()))?;
            (**a).cmp(&**b)
        }
        (Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
            for (a, b) in a.iter().zip(&**b) {
                let order = order_keys(a, b, budget)?;
                if order.is_ne() {
                    return Ok(order);
                }
            }
            a.len().cmp(&b.len())
        }
        _ => match (a.number(), b.number()) {
            (Some(a), Some(b)) => a.total_order(b),
            _ => rank(a).cmp(&rank(b)),
        },
    })
}

/// A Python number; booleans are numbers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }
    }

    fn total_order(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => a.cmp(&b),
            // Adding 0 makes both zeros equal.
            (a, b) => (a.float() + 0.0).total_cmp(&(b.float() + 0.0)),
        }
    }

    /// `None`: one of them is NaN.
    pub(super) fn order(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        }
    }
}

/// Sorts as Python does: stable, with comparisons that may fail and need not be consistent.
pub(super) fn sort<T: Copy>(
    items: &mut Vec<T>,
    budget: &Budget,
    mut compare: impl FnMut(&T, &T) -> Result<Ordering>,
) -> Result<()> {
    let mut from = items.clone();
    let mut width = 1;
    while width < items.len() {
        budget.steps(items.len())?;
        std::mem::swap(items, &mut from);
        for start in (0..from.len()).step_by(2 * width) {
            let middle = (start + width).min(from.len());
            let end = (start + 2 * width).min(from.len());
            let (mut a, mut b) = (start, middle);
            for slot in &mut items[start..end] {
                let second =
                    a == middle || (b < end && compare(&from[b], &from[a])? == Ordering::Less);
                let taken = if second { &mut b } else { &mut a };
                *slot = from[*taken];
                *taken += 1;
            }
        }
        width *= 2;
    }
    Ok(())
}

impl Value {
    pub(super) fn text(text: &str, budget: &Rc<Budget>) -> Result<Value> {
        Text::new(text, budget).map(Value::Text)
    }

    pub(super) fn bound(self, method: Method, budget: &Rc<Budget>) -> Result<Value> {
        let lease = budget.lease(OVERHEAD)?;
        Ok(Value::Method(Rc::new(Bound { of: self, method, _lease: lease })))
    }

    fn depth(&self) -> u32 {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.0.depth,
            Value::Dict(map) | Value::View(_, map) => map.0.depth,
            Value::Iter(once) => once.items.0.depth,
            // A method has no methods, so this adds at most one level.
            Value::Method(bound) => bound.of.depth() + 1,
            _ => 0,
        }
    }

    /// The name of its type in Python.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "an undefined value",
            Value::None => "None",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Tuple(_) | Value::Group(_) => "a tuple",
            Value::Dict(_) => "a dictionary",
            Value::Range(_) => "a range",
            Value::View(..) => "a view of a dictionary",
            Value::Iter(_) => "an iterator",
            Value::Object(_) => "a namespace or macro",
            Value::Loop(..) => "a loop",
            Value::Builtin(_) => "a function",
            Value::Method(_) => "a method",
        }
    }

    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Value::Bool(b) => Some(Number::Int(i128::from(*b))),
            Value::Int(n) => Some(Number::Int(*n)),
            Value::Float(x) => Some(Number::Float(*x)),
            _ => None,
        }
    }

    /// The value as an integer, if it is an integer or a boolean.
    pub(super) fn int(&self) -> Option<i128> {
        match self.number() {
            Some(Number::Int(n)) => Some(n),
            _ => None,
        }
    }

    pub(super) fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => !items.is_empty(),
            Value::Dict(map) | Value::View(_, map) => map.len() > 0,
            Value::Range(range) => range.len > 0,
            Value::Loop(..)
            | Value::Iter(_)
            | Value::Object(_)
            | Value::Builtin(_)
            | Value::Method(_) => true,
        }
    }

    /// The value, marked as HTML if it is a string and `like` is marked.
    pub(super) fn marked_like(self, like: &Text, budget: &Rc<Budget>) -> Result<Value> {
        match self {
            Value::Text(text) if like.is_safe() => text.into_safe(budget).map(Value::Text),
            value => Ok(value),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }
}
