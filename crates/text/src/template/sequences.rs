//! jinja2's filters on sequences.

use std::cmp::Ordering;

use super::budget::{Result, fail};
use super::machine::{Args, TemplateMachine};
use super::methods::the_int;
use super::names::{Filter, ViewKind};
use super::value::{Buffer, ListBuilder, Missing, Seq, Value, hashable, sort};

fn truth(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.truth())
}

impl TemplateMachine<'_> {
    pub(super) fn filter_items(
        &mut self,
        filter: Filter,
        value: &Value,
        args: Args,
    ) -> Result<Value> {
        match filter {
            Filter::Length => {
                args.bind("length", [])?;
                self.len(value)
            }
            Filter::List => {
                args.bind("list", [])?;
                self.items(value).map(Value::List)
            }
            Filter::First => self.first(value, args),
            Filter::Last => self.last(value, args),
            Filter::Reverse => self.turned_around(value, args),
            Filter::Items => self.dict_items(value, args),
            Filter::Join => self.joined_items(value, args),
            Filter::Sum => self.sum(value, args),
            Filter::Min | Filter::Max => self.extreme(filter, value, args),
            Filter::Sort | Filter::DictSort => self.sorted(filter, value, args),
            Filter::Unique => {
                let [exact, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
                let (exact, attribute) = (truth(exact), attribute.unwrap_or(Value::None));
                self.unique(value, &attribute, exact)
            }
            Filter::GroupBy => self.grouped(value, args),
            Filter::Batch | Filter::Slice => self.cut_up(filter, value, args),
            _ => fail("there is no such filter"),
        }
    }

    /// `first`.
    fn first(&mut self, value: &Value, args: Args) -> Result<Value> {
        let nothing = |what| Ok(Value::Undefined(Missing::Other(what)));
        args.bind("first", [])?;
        if let Value::Iter(once) = value {
            // It takes one item and leaves the others.
            let at = once.at.get();
            once.at.set((at + 1).min(once.items.len()));
            return match once.items.get(at) {
                Some(item) => Ok(item.clone()),
                None => nothing("there is no first item"),
            };
        }
        if let Value::Text(text) = value {
            return match text.chars().next() {
                Some(c) => self.char(c),
                None => nothing("there is no first item"),
            };
        }
        match self.items(value)?.first() {
            Some(item) => Ok(item.clone()),
            None => nothing("there is no first item"),
        }
    }

    /// `last`.
    fn last(&mut self, value: &Value, args: Args) -> Result<Value> {
        let nothing = |what| Ok(Value::Undefined(Missing::Other(what)));
        args.bind("last", [])?;
        self.reversible(value)?;
        if let Value::Text(text) = value {
            return match text.chars().next_back() {
                Some(c) => self.char(c),
                None => nothing("there is no last item"),
            };
        }
        match self.items(value)?.last() {
            Some(item) => Ok(item.clone()),
            None => nothing("there is no last item"),
        }
    }

    /// `reverse`.
    fn turned_around(&mut self, value: &Value, args: Args) -> Result<Value> {
        args.bind("reverse", [])?;
        if let Value::Text(_) = value {
            return self.slice(value, [&Value::None, &Value::None, &Value::Int(-1)]);
        }
        let items = self.items(value)?;
        let mut turned = ListBuilder::new(&self.budget)?;
        for item in items.iter().rev() {
            turned.push(item.clone())?;
        }
        // A value that cannot be iterated backwards becomes a list.
        match value {
            Value::Iter(_) | Value::Undefined(_) => turned.list(),
            _ => turned.iter("reversed"),
        }
    }

    /// `items`.
    fn dict_items(&mut self, value: &Value, args: Args) -> Result<Value> {
        args.bind("items", [])?;
        let items = match value {
            Value::Undefined(_) => Seq::new([], &self.budget)?,
            Value::Dict(map) => self.items(&Value::View(ViewKind::Items, map.clone()))?,
            _ => return fail("items takes a dictionary"),
        };
        let mut list = ListBuilder::new(&self.budget)?;
        for item in &*items {
            list.push(item.clone())?;
        }
        list.iter("generator")
    }

    /// `join`.
    fn joined_items(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
        let separator = match &separator {
            Some(separator) => Some(self.text_of(separator)?),
            None => None,
        };
        let attribute = attribute.unwrap_or(Value::None);
        let items = self.items(value)?;
        let mut out = Buffer::new(&self.budget)?;
        for (i, item) in items.iter().enumerate() {
            if let (Some(separator), true) = (&separator, i > 0) {
                out.push_str(separator)?;
            }
            let item = self.path(item, &attribute, None)?;
            self.write(&item, &mut out)?;
        }
        out.into_value()
    }

    /// `sum`.
    fn sum(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
        let attribute = attribute.unwrap_or(Value::None);
        let mut sum = start.unwrap_or(Value::Int(0));
        if matches!(sum, Value::Text(_)) {
            return fail("sum is not for strings: use join");
        }
        for item in &*self.items(value)? {
            let item = self.path(item, &attribute, None)?;
            sum = self.binary(super::code::Binary::Add, &sum, &item)?;
        }
        Ok(sum)
    }

    fn len(&self, value: &Value) -> Result<Value> {
        Ok(Value::Int(match value {
            Value::Undefined(_) => 0,
            Value::Text(text) => text.chars_len() as i128,
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => items.len() as i128,
            Value::Dict(map) | Value::View(_, map) => map.len() as i128,
            Value::Range(range) => i128::from(range.len),
            Value::Loop(place, number) => self.loop_state(*place, *number)?.items.len() as i128,
            _ => return fail(format!("{} has no length", value.type_name())),
        }))
    }

    fn reversible(&self, value: &Value) -> Result<()> {
        match value {
            Value::Undefined(_) | Value::Iter(_) => {
                fail(format!("{} cannot be gone through backwards", value.type_name()))
            }
            _ => Ok(()),
        }
    }

    fn extreme(&mut self, filter: Filter, value: &Value, args: Args) -> Result<Value> {
        let [exact, attribute] = args.bind("min and max", ["case_sensitive", "attribute"])?;
        let (exact, attribute) = (truth(exact), attribute.unwrap_or(Value::None));
        let mut best: Option<(Value, Value)> = None;
        for item in &*self.items(value)? {
            let key = self.sort_key(item, &attribute, exact)?;
            let better = match &best {
                None => true,
                Some((other, _)) if filter == Filter::Min => self.less(&key, other)?,
                Some((other, _)) => self.less(other, &key)?,
            };
            if better {
                best = Some((key, item.clone()));
            }
        }
        Ok(match best {
            Some((_, item)) => item,
            None => Value::Undefined(Missing::Other("there is nothing to choose from")),
        })
    }

    /// The indices of keys in sorted order.
    fn places(&mut self, keys: &[Value], reverse: bool) -> Result<Vec<u32>> {
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        let budget = std::rc::Rc::clone(&self.budget);
        sort(&mut order, &budget, |a, b| {
            let (a, b) = (&keys[*a as usize], &keys[*b as usize]);
            // Even in reverse, equal ones keep their order.
            let less = if reverse { self.less(b, a)? } else { self.less(a, b)? };
            Ok(if less { Ordering::Less } else { Ordering::Equal })
        })?;
        Ok(order)
    }

    fn sorted(&mut self, filter: Filter, value: &Value, args: Args) -> Result<Value> {
        let (items, keys, reverse) = if filter == Filter::Sort {
            let [reverse, exact, attribute] =
                args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
            let (exact, attribute) = (truth(exact), attribute.unwrap_or(Value::None));
            let items = self.items(value)?;
            let keys = self.multi_keys(&items, &attribute, exact)?;
            (items, keys, reverse)
        } else {
            let [exact, by, reverse] =
                args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
            let by = match &by {
                None => 0,
                Some(Value::Text(by)) if &**by == "key" => 0,
                Some(Value::Text(by)) if &**by == "value" => 1,
                Some(_) => return fail("dictsort sorts by 'key' or 'value'"),
            };
            let Value::Dict(map) = value else {
                self.defined(value)?;
                return fail(format!("dictsort takes a dictionary, not {}", value.type_name()));
            };
            let items = self.items(&Value::View(ViewKind::Items, map.clone()))?;
            let mut keys = ListBuilder::new(&self.budget)?;
            let exact = truth(exact);
            for item in &*items {
                keys.push(self.sort_key(item, &Value::Int(by), exact)?)?;
            }
            (items, keys.finish()?, reverse)
        };
        let order = self.places(&keys, truth(reverse))?;
        Seq::new(order.iter().map(|at| items[*at as usize].clone()), &self.budget).map(Value::List)
    }

    /// Keys by one attribute, or by several separated by commas.
    fn multi_keys(&mut self, items: &Seq, attribute: &Value, exact: bool) -> Result<Seq> {
        let mut paths = Vec::new();
        if let Value::Text(text) = attribute
            && text.contains(',')
        {
            self.budget.bytes(text.len())?;
            // The paths are short-lived, and leased as values.
            for path in text.split(',') {
                paths.push(Value::text(path, &self.budget)?);
            }
        } else {
            paths.push(attribute.clone());
        }
        let mut keys = ListBuilder::new(&self.budget)?;
        for item in &**items {
            if let [path] = &paths[..] {
                keys.push(self.sort_key(item, path, exact)?)?;
                continue;
            }
            let mut several = ListBuilder::new(&self.budget)?;
            for path in &paths {
                several.push(self.sort_key(item, path, exact)?)?;
            }
            keys.push(several.list()?)?;
        }
        keys.finish()
    }

    fn unique(&mut self, value: &Value, attribute: &Value, exact: bool) -> Result<Value> {
        let items = self.items(value)?;
        let mut keyed = super::value::MapBuilder::new(&self.budget)?;
        let mut seen = false;
        for item in &*items {
            let key = self.sort_key(item, attribute, exact)?;
            if key.is_undefined() {
                // All undefined values count as one key, which no dictionary here has.
                seen = true;
                continue;
            }
            hashable(&key, &self.budget)?;
            keyed.push(key, Value::None)?;
        }
        let keys = keyed.finish()?;
        let mut list = ListBuilder::new(&self.budget)?;
        // The first item for each key, in order.
        let mut next = 0;
        for item in &*items {
            let key = self.sort_key(item, attribute, exact)?;
            if key.is_undefined() {
                if std::mem::take(&mut seen) {
                    list.push(item.clone())?;
                }
                continue;
            }
            if let Some((wanted, _)) = keys.entries().get(next)
                && self.equal(wanted, &key)?
            {
                next += 1;
                list.push(item.clone())?;
            }
        }
        list.iter("generator")
    }

    fn grouped(&mut self, value: &Value, args: Args) -> Result<Value> {
        let [attribute, default, exact] =
            args.require("groupby", ["attribute", "default", "case_sensitive"], 1)?;
        let (attribute, exact) = (attribute.unwrap_or(Value::None), truth(exact));
        let items = self.items(value)?;
        let mut real = ListBuilder::new(&self.budget)?;
        let mut keys = ListBuilder::new(&self.budget)?;
        for item in &*items {
            let key = self.path(item, &attribute, default.as_ref())?;
            keys.push(self.sort_key(&key, &Value::None, exact)?)?;
            real.push(key)?;
        }
        let (real, keys) = (real.finish()?, keys.finish()?);
        let order = self.places(&keys, false)?;
        let mut groups = ListBuilder::new(&self.budget)?;
        let mut at = 0;
        while let Some(&first) = order.get(at) {
            let mut group = ListBuilder::new(&self.budget)?;
            while let Some(&place) = order.get(at)
                && self.equal(&keys[place as usize], &keys[first as usize])?
            {
                group.push(items[place as usize].clone())?;
                at += 1;
            }
            if group.len() == 0 {
                // A key that does not equal itself.
                group.push(items[first as usize].clone())?;
                at += 1;
            }
            let pair = [real[first as usize].clone(), group.list()?];
            groups.push(Value::Group(Seq::new(pair, &self.budget)?))?;
        }
        groups.list()
    }

    /// `batch` and `slice`: lists of lists.
    fn cut_up(&mut self, filter: Filter, value: &Value, args: Args) -> Result<Value> {
        let count_name = if filter == Filter::Batch { "linecount" } else { "slices" };
        let [count, fill] = args.require("the filter", [count_name, "fill_with"], 1)?;
        let count = the_int(count, "the count")?;
        let fill = fill.filter(|fill| !matches!(fill, Value::None));
        let items = self.items(value)?;
        let mut rows = ListBuilder::new(&self.budget)?;
        if filter == Filter::Batch {
            let size = usize::try_from(count).unwrap_or(if count < 0 { 0 } else { usize::MAX });
            if size == 0 {
                return fail("batch takes a count of at least 1");
            }
            for row in items.chunks(size) {
                let mut list = ListBuilder::new(&self.budget)?;
                for item in row {
                    list.push(item.clone())?;
                }
                while let (Some(fill), true) = (&fill, list.len() < size) {
                    list.push(fill.clone())?;
                }
                rows.push(list.list()?)?;
            }
            return rows.iter("generator");
        }
        if count == 0 {
            return fail("a division by zero");
        }
        let slices = usize::try_from(count).unwrap_or(0);
        let (each, more) = match slices {
            0 => (0, 0),
            slices => (items.len() / slices, items.len() % slices),
        };
        let mut at = 0;
        for number in 0..slices {
            let mut list = ListBuilder::new(&self.budget)?;
            let len = each + usize::from(number < more);
            for item in &items[at..at + len] {
                list.push(item.clone())?;
            }
            at += len;
            if let (Some(fill), true) = (&fill, number >= more) {
                list.push(fill.clone())?;
            }
            rows.push(list.list()?)?;
        }
        rows.iter("generator")
    }
}
