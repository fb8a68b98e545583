//! jinja2's tests: `x is defined`, and those that `select` and the like take by name.

use super::budget::{Result, fail};
use super::machine::{Args, TemplateMachine};
use super::methods::the_int;
use super::names::{Filter, Is, Test};
use super::text;
use super::value::{Number, Value};

impl TemplateMachine<'_> {
    /// The tests that compare a value with another one.
    fn test_beside(&mut self, test: Test, value: &Value, args: Args) -> Result<bool> {
        let [other] = args.require("the test", ["other"], 1)?;
        let other = other.unwrap_or(Value::None);
        match test {
            Test::Compare(op) => self.compare(op, value, &other),
            Test::DivisibleBy => {
                self.defined(value)?;
                match (value.number(), other.number()) {
                    (Some(Number::Int(_)), Some(Number::Int(0))) => fail("a division by zero"),
                    (Some(Number::Int(a)), Some(Number::Int(b))) => {
                        Ok(a.checked_rem(b).unwrap_or(0) == 0)
                    }
                    (Some(a), Some(b)) => Ok(a.float() % b.float() == 0.0),
                    _ => fail("divisibleby is for numbers"),
                }
            }
            _ => Ok(same(value, &other)),
        }
    }

    pub(super) fn test(&mut self, test: Test, value: &Value, args: Args) -> Result<bool> {
        if let Test::Compare(_) | Test::DivisibleBy | Test::SameAs = test {
            return self.test_beside(test, value, args);
        }
        args.bind("the test", [])?;
        Ok(match test {
            Test::Boolean => matches!(value, Value::Bool(_)),
            Test::Callable => match value {
                Value::Object(at) => matches!(
                    self.objects[*at as usize],
                    super::machine::TemplateObject::Macro { .. }
                        | super::machine::TemplateObject::Joiner { .. }
                ),
                // An undefined value has `__call__`, which fails.
                Value::Undefined(_) => true,
                value => matches!(value, Value::Builtin(_) | Value::Method(_) | Value::Loop(..)),
            },
            Test::Defined(wanted) => value.is_undefined() != wanted,
            Test::Even(even) => {
                self.defined(value)?;
                match value.number() {
                    Some(Number::Int(n)) => (n % 2 == 0) == even,
                    Some(Number::Float(x)) => {
                        let rest = x.rem_euclid(2.0);
                        if even { rest == 0.0 } else { rest == 1.0 }
                    }
                    None => the_int(Some(value.clone()), "an even or odd number")? == 0,
                }
            }
            Test::Exact(wanted) => matches!(value, Value::Bool(b) if *b == wanted),
            Test::NameOfFilter => {
                matches!(value, Value::Text(name) if Filter::named(name).is_some())
            }
            Test::Float => matches!(value, Value::Float(_)),
            Test::Integer => matches!(value, Value::Int(_)),
            Test::Iterable => {
                matches!(
                    value,
                    Value::Undefined(_)
                        | Value::Text(_)
                        | Value::List(_)
                        | Value::Tuple(_)
                        | Value::Group(_)
                        | Value::Dict(_)
                        | Value::Range(_)
                        | Value::View(..)
                        | Value::Iter(_)
                        | Value::Loop(..)
                )
            }
            Test::Lower | Test::Upper => {
                let text = self.text_of(value)?;
                let is = if test == Test::Lower { Is::Lower } else { Is::Upper };
                text::is(&text, is, &self.budget)?
            }
            Test::Mapping => matches!(value, Value::Dict(_)),
            Test::None => matches!(value, Value::None),
            Test::Number => value.number().is_some(),
            Test::Sequence => {
                matches!(
                    value,
                    Value::Undefined(_)
                        | Value::Text(_)
                        | Value::List(_)
                        | Value::Tuple(_)
                        | Value::Group(_)
                        | Value::Dict(_)
                        | Value::Range(_)
                )
            }
            Test::String => matches!(value, Value::Text(_)),
            Test::NameOfOne => matches!(value, Value::Text(name) if Test::named(name).is_some()),
            Test::Escaped => matches!(value, Value::Text(text) if text.is_safe()),
            Test::Compare(_) | Test::DivisibleBy | Test::SameAs => false,
        })
    }
}

/// Python's `is`, where it does not depend on how Python stores values.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a.same(b) || (a.len() < 64 && **a == **b),
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => a.same(b),
        (Value::Dict(a), Value::Dict(b)) => a.same(b),
        (Value::Object(a), Value::Object(b)) => a == b,
        (Value::Builtin(a), Value::Builtin(b)) => a == b,
        _ => false,
    }
}
