//! Python's `%` on strings, and `str.format`.

use super::budget::{Result, fail};
use super::machine::{Args, TemplateMachine};
use super::shown::clip;
use super::value::{Buffer, Map, Number, Text, Value};

/// The maximum number of digits after the point.
const MAX_PRECISION: usize = 1000;

/// The layout of a value in a field.
#[derive(Clone, Debug, Default)]
struct Spec {
    fill: Option<char>,
    /// `<`, `>`, `^`, `=`.
    align: Option<char>,
    /// `+`, `-`, space.
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    /// Digits in groups of three, with this between them.
    group: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// The source of the arguments of `%`.
struct Given<'v> {
    items: &'v [Value],
    next: usize,
    map: Option<&'v Map>,
}

impl Given<'_> {
    fn take(&mut self) -> Result<Value> {
        match self.items.get(self.next) {
            Some(value) => {
                self.next += 1;
                Ok(value.clone())
            }
            None => fail("there are not enough values for the format"),
        }
    }
}

/// Reads digits at the beginning of a text as a number; a number that no field can have is an error.
fn number(text: &mut &str) -> Result<Option<usize>> {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    if end == 0 {
        return Ok(None);
    }
    let (digits, rest) = text.split_at(end);
    *text = rest;
    match digits.parse() {
        Ok(n) if n < 1 << 40 => Ok(Some(n)),
        _ => fail("a number in a format is too large"),
    }
}

fn next_char(text: &mut &str) -> Option<char> {
    let c = text.chars().next()?;
    *text = &text[c.len_utf8()..];
    Some(c)
}

/// Digits of an integer with `,` or `_` between groups of `size`.
fn grouped(digits: &str, separator: char, size: usize) -> String {
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(size) {
            out.push(separator);
        }
        out.push(c);
    }
    out
}

/// `%e` and `%g` as C writes them; `x` is not negative.
fn scientific(x: f64, precision: usize) -> String {
    super::print::exponent(&format!("{x:.precision$e}"))
}

fn general(x: f64, precision: usize, keep_zeros: bool) -> String {
    let precision = precision.max(1);
    let text = scientific(x, precision - 1);
    let exponent: i32 = text.split_once('e').and_then(|(_, e)| e.parse().ok()).unwrap_or(0);
    let strip = |text: &str| match text.contains('.') && !keep_zeros {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "+00"));
        return format!("{}e{exponent}", strip(digits));
    }
    let digits = (precision as i32 - 1 - exponent).max(0) as usize;
    strip(&format!("{x:.digits$}"))
}

/// A float without its sign.
fn float_body(x: f64, kind: char, spec: &Spec) -> Result<String> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return fail(format!("a precision of more than {MAX_PRECISION} digits"));
    }
    let x = x.abs();
    let mut text = if x.is_nan() {
        "nan".to_owned()
    } else if x.is_infinite() {
        "inf".to_owned()
    } else {
        match kind.to_ascii_lowercase() {
            'f' => format!("{x:.precision$}"),
            '%' => format!("{:.precision$}%", x * 100.0),
            'e' => scientific(x, precision),
            _ => general(x, precision, spec.alternate),
        }
    };
    if kind.is_ascii_uppercase() {
        text = text.to_uppercase();
    }
    if let (Some(separator), true) = (spec.group, x.is_finite()) {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text = grouped(&text[..end], separator, 3) + &text[end..];
    }
    Ok(text)
}

/// An integer without its sign.
fn int_body(n: i128, kind: char, spec: &Spec) -> String {
    let n = n.unsigned_abs();
    let text = match kind {
        'x' => format!("{n:x}"),
        'X' => format!("{n:X}"),
        'o' => format!("{n:o}"),
        'b' => format!("{n:b}"),
        _ => n.to_string(),
    };
    let size = if matches!(kind, 'd' | 'n') { 3 } else { 4 };
    let text = match spec.group {
        Some(separator) => grouped(&text, separator, size),
        None => text,
    };
    match kind {
        'x' | 'X' | 'o' | 'b' if spec.alternate => format!("0{kind}{text}"),
        _ => text,
    }
}

impl TemplateMachine<'_> {
    /// Writes a field: sign, padding, body.
    fn write_field(
        &self,
        out: &mut Buffer,
        spec: &Spec,
        sign: &str,
        body: &str,
        align: char,
    ) -> Result<()> {
        self.budget.bytes(body.len())?;
        let missing = spec.width.saturating_sub(sign.len() + body.chars().count());
        let fill = spec.fill.unwrap_or(' ').encode_utf8(&mut [0; 4]).to_owned();
        let (left, inner, right) = match spec.align.unwrap_or(align) {
            '<' => (0, 0, missing),
            '^' => (missing / 2, 0, missing - missing / 2),
            '=' => (0, missing, 0),
            _ => (missing, 0, 0),
        };
        out.repeat(&fill, left)?;
        out.push_str(sign)?;
        out.repeat(&fill, inner)?;
        out.push_str(body)?;
        out.repeat(&fill, right)
    }

    fn sign(spec: &Spec, negative: bool) -> &'static str {
        match spec.sign {
            _ if negative => "-",
            Some('+') => "+",
            Some(' ') => " ",
            _ => "",
        }
    }

    /// `format % arg`.
    pub(super) fn format_percent(&mut self, format: &Text, arg: &Value) -> Result<Value> {
        let single = [arg.clone()];
        let mut given = Given { items: &single, next: 0, map: None };
        let tuple = matches!(arg, Value::Tuple(_) | Value::Group(_));
        match arg {
            Value::Tuple(items) | Value::Group(items) => given.items = items,
            Value::Dict(map) => given.map = Some(map),
            _ => {}
        }
        let mut out = Buffer::new(&self.budget)?;
        let mut rest: &str = format;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at])?;
            rest = &rest[at + 1..];
            self.percent_field(&mut rest, &mut given, &mut out)?;
        }
        out.push_str(rest)?;
        // As in Python, a list may remain unused, like a dictionary.
        let may_stay = !tuple && matches!(arg, Value::Dict(_) | Value::List(_) | Value::Range(_));
        if given.next < given.items.len() && !may_stay {
            return fail("not all values are used by the format");
        }
        out.into_value()
    }

    /// One field after its `%`.
    fn percent_field(
        &mut self,
        rest: &mut &str,
        given: &mut Given<'_>,
        out: &mut Buffer,
    ) -> Result<()> {
        let mut spec = Spec::default();
        let mut named = None;
        if let Some(inner) = rest.strip_prefix('(') {
            let Some((name, after)) = inner.split_once(')') else {
                return fail("a name in a format has no end");
            };
            let Some(map) = given.map else { return fail("the format needs a dictionary") };
            self.budget.bytes(name.len())?;
            match map.get_str(name, &self.budget)? {
                Some(value) => named = Some(value.clone()),
                None => return fail(format!("there is no '{}' to format", clip(name))),
            }
            *rest = after;
        }
        while let Some(flag) = rest.chars().next().filter(|c| "-+ 0#".contains(*c)) {
            next_char(rest);
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.zero = true,
                '#' => spec.alternate = true,
                '+' => spec.sign = Some('+'),
                _ => spec.sign = spec.sign.or(Some(' ')),
            }
        }
        let mut star = |rest: &mut &str| -> Result<Option<i128>> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                return super::methods::the_int(Some(given.take()?), "a width").map(Some);
            }
            Ok(number(rest)?.map(|n| n as i128))
        };
        if let Some(width) = star(rest)? {
            if width < 0 {
                spec.align = Some('<');
            }
            spec.width = usize::try_from(width.saturating_abs()).unwrap_or(usize::MAX / 8);
        }
        if let Some(after) = rest.strip_prefix('.') {
            *rest = after;
            let precision = star(rest)?.unwrap_or(0).max(0);
            spec.precision = Some(usize::try_from(precision).unwrap_or(usize::MAX));
        }
        while rest.starts_with(['h', 'l', 'L']) {
            next_char(rest);
        }
        let Some(kind) = next_char(rest) else { return fail("a format ends after '%'") };
        if kind == '%' {
            return out.push('%');
        }
        let value = match named {
            Some(value) => value,
            None => given.take()?,
        };
        self.percent_value(kind, spec, &value, out)
    }

    fn percent_value(
        &mut self,
        kind: char,
        mut spec: Spec,
        value: &Value,
        out: &mut Buffer,
    ) -> Result<()> {
        match kind {
            's' | 'r' | 'a' => {
                let text = if kind == 's' {
                    self.text_of(value)?
                } else {
                    let mut repr = Buffer::new(&self.budget)?;
                    self.write_repr(value, 0, &mut repr)?;
                    repr.into_text()?
                };
                let end = self.byte_of(&text, spec.precision.unwrap_or(usize::MAX))?;
                self.write_field(out, &spec, "", &text[..end], '>')
            }
            'c' => {
                let text = match value {
                    Value::Text(text) if text.chars_len() == 1 => text.clone(),
                    value => {
                        let code = value.int().and_then(|n| u32::try_from(n).ok());
                        let Some(c) = code.and_then(char::from_u32) else {
                            return fail("'%c' takes a character or its number");
                        };
                        Text::new(c.encode_utf8(&mut [0; 4]), &self.budget)?
                    }
                };
                self.write_field(out, &spec, "", &text, '>')
            }
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                self.defined(value)?;
                let n = match value.number() {
                    Some(Number::Int(n)) => n,
                    Some(Number::Float(x))
                        if matches!(kind, 'd' | 'i' | 'u') && x.is_finite() && x.abs() < 1e38 =>
                    {
                        x.trunc() as i128
                    }
                    _ => return fail(format!("'%{kind}' takes an integer")),
                };
                let kind = if matches!(kind, 'i' | 'u') { 'd' } else { kind };
                let mut body = int_body(n, kind, &spec);
                if let Some(digits) = spec.precision {
                    if digits > MAX_PRECISION {
                        return fail(format!("a precision of more than {MAX_PRECISION} digits"));
                    }
                    body = format!("{body:0>digits$}");
                }
                if spec.zero && spec.align.is_none() {
                    (spec.fill, spec.align) = (Some('0'), Some('='));
                }
                self.write_field(out, &spec, Self::sign(&spec, n < 0), &body, '>')
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                self.defined(value)?;
                let Some(x) = value.number().map(Number::float) else {
                    return fail(format!("'%{kind}' takes a number"));
                };
                let body = float_body(x, kind, &spec)?;
                if spec.zero && spec.align.is_none() {
                    (spec.fill, spec.align) = (Some('0'), Some('='));
                }
                let negative = x.is_sign_negative() && !x.is_nan();
                self.write_field(out, &spec, Self::sign(&spec, negative), &body, '>')
            }
            kind => fail(format!("'%{}' is no format", kind.escape_default())),
        }
    }

    /// `format.format(…)`.
    pub(super) fn format_braces(&mut self, format: &Text, args: Args) -> Result<Value> {
        let mut out = Buffer::new(&self.budget)?;
        let mut next = Some(0);
        self.braces(format, &args, &mut next, 0, &mut out)?;
        out.into_value()
    }

    /// `next`: the index of the next field without one; `None` once fields are numbered explicitly.
    fn braces(
        &mut self,
        format: &str,
        args: &Args,
        next: &mut Option<usize>,
        depth: u32,
        out: &mut Buffer,
    ) -> Result<()> {
        let mut rest = format;
        while let Some(at) = rest.find(['{', '}']) {
            out.push_str(&rest[..at])?;
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                out.push_str(brace)?;
                rest = after;
                continue;
            }
            if brace == "}" {
                return fail("a single '}' in a format");
            }
            if depth == 2 {
                return fail("fields of a format nest too deeply");
            }
            // The field ends at its closing brace; the specification may contain fields.
            let mut open = 1;
            let Some(end) = rest.find(|c| {
                open += i32::from(c == '{') - i32::from(c == '}');
                open == 0
            }) else {
                return fail("a single '{' in a format");
            };
            let field = &rest[..end];
            rest = &rest[end + 1..];
            self.brace_field(field, args, next, depth, out)?;
        }
        out.push_str(rest)
    }

    fn brace_field(
        &mut self,
        field: &str,
        args: &Args,
        next: &mut Option<usize>,
        depth: u32,
        out: &mut Buffer,
    ) -> Result<()> {
        self.budget.bytes(field.len())?;
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        let mut value = self.field_value(name, args, next)?;
        match conversion {
            None => {}
            Some("s") => value = Value::Text(self.text_of(&value)?),
            Some("r" | "a") => {
                let mut repr = Buffer::new(&self.budget)?;
                self.write_repr(&value, 0, &mut repr)?;
                value = repr.into_value()?;
            }
            Some(_) => return fail("a format has an unknown conversion after '!'"),
        }
        let mut expanded = Buffer::new(&self.budget)?;
        self.braces(spec, args, next, depth + 1, &mut expanded)?;
        self.format_value(&value, expanded.as_str(), out)
    }

    fn field_value(&mut self, name: &str, args: &Args, next: &mut Option<usize>) -> Result<Value> {
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(end);
        let place = if first.is_empty() {
            let Some(at) = *next else { return fail("a format numbers some fields only") };
            *next = Some(at + 1);
            Some(at)
        } else if first.bytes().all(|b| b.is_ascii_digit()) {
            if next.is_some_and(|at| at > 0) {
                return fail("a format numbers some fields only");
            }
            *next = None;
            Some(first.parse().unwrap_or(usize::MAX))
        } else {
            None
        };
        let found = match place {
            Some(at) => args.positional.get(at),
            None => {
                self.budget.steps(args.named.len())?;
                args.named.iter().find(|(n, _)| **n == *first).map(|(_, value)| value)
            }
        };
        let Some(mut value) = found.cloned() else {
            return fail(format!("there is no '{}' to format", clip(first)));
        };
        while !path.is_empty() {
            let (key, index) = if let Some(inner) = path.strip_prefix('[') {
                let Some((key, after)) = inner.split_once(']') else {
                    return fail("a format has a '[' without an end");
                };
                path = after;
                (key, true)
            } else if let Some(inner) = path.strip_prefix('.') {
                let end = inner.find(['.', '[']).unwrap_or(inner.len());
                path = &inner[end..];
                (&inner[..end], false)
            } else {
                return fail("a format has something after ']'");
            };
            value = match key.parse::<i128>() {
                Ok(n) if index && key.bytes().all(|b| b.is_ascii_digit()) => {
                    self.item(&value, &Value::Int(n))?
                }
                _ if index => {
                    let key = Value::text(key, &self.budget)?;
                    self.item(&value, &key)?
                }
                _ => {
                    let key = Text::new(key, &self.budget)?;
                    self.defined(&value)?;
                    match self.plain_attr(&value, &key)? {
                        Some(found) => found,
                        None => self.item(&value, &Value::Text(key))?,
                    }
                }
            };
        }
        Ok(value)
    }

    /// `format(value, spec)`.
    fn format_value(&mut self, value: &Value, spec: &str, out: &mut Buffer) -> Result<()> {
        if spec.is_empty() {
            return self.write(value, out);
        }
        let mut spec = read_spec(spec)?;
        let Some(number) = value.number() else {
            let Value::Text(text) = value else {
                let of = value.type_name();
                return fail(format!("{of} takes no format but the empty one"));
            };
            if !matches!(spec.kind, None | Some('s')) || spec.sign.is_some() || spec.group.is_some()
            {
                return fail("the format is not for strings");
            }
            let end = self.byte_of(text, spec.precision.unwrap_or(usize::MAX))?;
            if spec.zero {
                spec.fill = spec.fill.or(Some('0'));
            }
            return self.write_field(out, &spec, "", &text[..end], '<');
        };
        if spec.zero && spec.align.is_none() {
            (spec.fill, spec.align) = (spec.fill.or(Some('0')), Some('='));
        }
        let kind = spec.kind.unwrap_or(match number {
            Number::Int(_) => 'd',
            Number::Float(_) => 'r',
        });
        let (negative, body) = match (kind, number) {
            ('d' | 'n' | 'x' | 'X' | 'o' | 'b', Number::Int(n)) => {
                if spec.precision.is_some() {
                    return fail("an integer takes no precision");
                }
                (n < 0, int_body(n, kind, &spec))
            }
            ('c', Number::Int(n)) => {
                let Some(c) = u32::try_from(n).ok().and_then(char::from_u32) else {
                    return fail("there is no character of that number");
                };
                (false, c.to_string())
            }
            ('r', number) if spec.precision.is_none() => {
                let x = number.float();
                let mut body = super::print::float(x.abs());
                if let Some(separator) = spec.group {
                    let end = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
                    body = grouped(&body[..end], separator, 3) + &body[end..];
                }
                (x.is_sign_negative() && !x.is_nan(), body)
            }
            ('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%' | 'r' | 'n', number) => {
                let x = number.float();
                let kind = if kind == 'n' { 'g' } else { kind };
                (x.is_sign_negative() && !x.is_nan(), float_body(x, kind, &spec)?)
            }
            (kind, _) => {
                return fail(format!("'{}' is no format for a number", kind.escape_default()));
            }
        };
        self.write_field(out, &spec, Self::sign(&spec, negative), &body, '>')
    }
}

/// `[[fill]align][sign][#][0][width][group][.precision][kind]`.
fn read_spec(text: &str) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut rest = text;
    let mut chars = text.chars();
    let (first, second) = (chars.next(), chars.next());
    let aligns = |c: Option<char>| c.filter(|c| matches!(c, '<' | '>' | '^' | '='));
    if let Some(align) = aligns(second) {
        (spec.fill, spec.align) = (first, Some(align));
        next_char(&mut rest);
        next_char(&mut rest);
    } else if let Some(align) = aligns(first) {
        spec.align = Some(align);
        next_char(&mut rest);
    }
    if rest.starts_with(['+', '-', ' ']) {
        spec.sign = next_char(&mut rest);
    }
    if let Some(after) = rest.strip_prefix('#') {
        (spec.alternate, rest) = (true, after);
    }
    if let Some(after) = rest.strip_prefix('0') {
        (spec.zero, rest) = (true, after);
    }
    spec.width = number(&mut rest)?.unwrap_or(0);
    if rest.starts_with([',', '_']) {
        spec.group = next_char(&mut rest);
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        let Some(precision) = number(&mut rest)? else {
            return fail("a format has a '.' without a precision");
        };
        spec.precision = Some(precision);
    }
    spec.kind = next_char(&mut rest);
    if !rest.is_empty() {
        return fail("a format has something after its end");
    }
    Ok(spec)
}
