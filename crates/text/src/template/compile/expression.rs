//! Expressions.

use super::super::code::{Binary, CallShape, Const, Name, Op};
use super::super::lexer::TokenKind;
use super::super::names::{Compare, Filter, Test};
use super::super::shown::clip;
use super::{Compiler, Result};

/// The kind of an expression, as far as its context needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpressionForm {
    /// A call: its instruction is the last one.
    Call,
    Other,
}

impl<'s> Compiler<'s> {
    /// Compiles an expression.
    pub(super) fn expression(&mut self) -> Result<ExpressionForm> {
        self.enter()?;
        let form = self.conditional()?;
        self.leave();
        Ok(form)
    }

    /// `a`, or `a if c`, or `a if c else b`.
    fn conditional(&mut self) -> Result<ExpressionForm> {
        // `a` precedes `c` in the source, but runs after it: a jump to `c` may be needed here.
        let start = self.emit(Op::Nop);
        let form = self.or()?;
        if !self.at_name("if") {
            if self.here() == start + 2 {
                // A single instruction that no jump passes over.
                self.program.code.remove(start as usize);
                self.program.lines.remove(start as usize);
            }
            return Ok(form);
        }
        let mut value = start + 1;
        while self.skip_name("if")? {
            let after_value = self.emit(Op::Jump(0));
            let condition = self.here();
            self.program.code[start as usize] = Op::Jump(condition);
            self.function().conditional += 1;
            self.or()?;
            let otherwise = self.emit(Op::JumpIfFalse(0));
            self.emit(Op::Jump(value));
            self.land(otherwise);
            if self.skip_name("else")? {
                self.enter()?;
                self.conditional()?;
                self.leave();
            } else {
                self.emit(Op::Undefined);
            }
            self.function().conditional -= 1;
            self.land(after_value);
            // The value of a following `if`.
            value = condition;
        }
        Ok(ExpressionForm::Other)
    }

    pub(super) fn or(&mut self) -> Result<ExpressionForm> {
        let mut form = self.and()?;
        let mut jumps = Vec::new();
        while self.skip_name("or")? {
            jumps.push(self.emit(Op::Or(0)));
            self.and()?;
            form = ExpressionForm::Other;
        }
        jumps.into_iter().for_each(|at| self.land(at));
        Ok(form)
    }

    fn and(&mut self) -> Result<ExpressionForm> {
        let mut form = self.not()?;
        let mut jumps = Vec::new();
        while self.skip_name("and")? {
            jumps.push(self.emit(Op::And(0)));
            self.not()?;
            form = ExpressionForm::Other;
        }
        jumps.into_iter().for_each(|at| self.land(at));
        Ok(form)
    }

    fn not(&mut self) -> Result<ExpressionForm> {
        let mut nots = 0;
        while self.skip_name("not")? {
            nots += 1;
        }
        let form = self.comparison()?;
        for _ in 0..nots {
            self.emit(Op::Not);
        }
        Ok(if nots > 0 { ExpressionForm::Other } else { form })
    }

    fn comparison_operator(&mut self) -> Result<Option<Compare>> {
        let op = match self.token.kind {
            TokenKind::Op("==") => Compare::Eq,
            TokenKind::Op("!=") => Compare::Ne,
            TokenKind::Op("<") => Compare::Lt,
            TokenKind::Op("<=") => Compare::Le,
            TokenKind::Op(">") => Compare::Gt,
            TokenKind::Op(">=") => Compare::Ge,
            TokenKind::Name("in") => Compare::In,
            TokenKind::Name("not") => {
                if *self.peek()? != TokenKind::Name("in") {
                    return Ok(None);
                }
                self.take()?;
                Compare::NotIn
            }
            _ => return Ok(None),
        };
        self.take()?;
        Ok(Some(op))
    }

    fn comparison(&mut self) -> Result<ExpressionForm> {
        let mut form = self.sum()?;
        let mut jumps = Vec::new();
        let mut pending = None;
        while let Some(op) = self.comparison_operator()? {
            if let Some(before) = pending.replace(op) {
                jumps.push(self.emit(Op::Chain(before, 0)));
            }
            self.sum()?;
            form = ExpressionForm::Other;
        }
        if let Some(op) = pending {
            self.emit(Op::Compare(op));
        }
        jumps.into_iter().for_each(|at| self.land(at));
        Ok(form)
    }

    fn sum(&mut self) -> Result<ExpressionForm> {
        let mut form = self.concat()?;
        loop {
            let op = match self.token.kind {
                TokenKind::Op("+") => Binary::Add,
                TokenKind::Op("-") => Binary::Sub,
                _ => return Ok(form),
            };
            self.take()?;
            self.concat()?;
            self.emit(Op::Binary(op));
            form = ExpressionForm::Other;
        }
    }

    fn concat(&mut self) -> Result<ExpressionForm> {
        let mut form = self.product()?;
        let mut parts = 1;
        while self.skip_op("~")? {
            self.product()?;
            parts += 1;
        }
        if parts > 1 {
            self.emit(Op::Concat(parts));
            form = ExpressionForm::Other;
        }
        Ok(form)
    }

    fn product(&mut self) -> Result<ExpressionForm> {
        let mut form = self.power()?;
        loop {
            let op = match self.token.kind {
                TokenKind::Op("*") => Binary::Mul,
                TokenKind::Op("/") => Binary::Div,
                TokenKind::Op("//") => Binary::FloorDiv,
                TokenKind::Op("%") => Binary::Rem,
                _ => return Ok(form),
            };
            self.take()?;
            self.power()?;
            self.emit(Op::Binary(op));
            form = ExpressionForm::Other;
        }
    }

    /// Left-associative, unlike in Python.
    fn power(&mut self) -> Result<ExpressionForm> {
        let mut form = self.unary()?;
        while self.skip_op("**")? {
            self.unary()?;
            self.emit(Op::Binary(Binary::Pow));
            form = ExpressionForm::Other;
        }
        Ok(form)
    }

    fn unary(&mut self) -> Result<ExpressionForm> {
        let mut signs = Vec::new();
        loop {
            if self.skip_op("-")? {
                signs.push(Op::Neg);
            } else if self.skip_op("+")? {
                signs.push(Op::Pos);
            } else {
                break;
            }
        }
        let mut form = self.primary()?;
        form = self.postfix(form)?;
        for sign in signs.into_iter().rev() {
            self.emit(sign);
            form = ExpressionForm::Other;
        }
        self.filters_and_tests(form)
    }

    fn primary(&mut self) -> Result<ExpressionForm> {
        match &self.token.kind {
            TokenKind::Name(name) => {
                let name = *name;
                self.take()?;
                let op = match name {
                    "true" | "True" => Op::Bool(true),
                    "false" | "False" => Op::Bool(false),
                    "none" | "None" => Op::None,
                    name => Op::Load(self.used(name)),
                };
                self.emit(op);
            }
            TokenKind::Text(_) => {
                let mut text = String::new();
                while let TokenKind::Text(part) = &self.token.kind {
                    text.push_str(part);
                    self.take()?;
                }
                self.text(&text);
            }
            TokenKind::Int(n) => {
                let n = *n;
                self.take()?;
                self.constant(Const::Int(n));
            }
            TokenKind::Float(x) => {
                let x = *x;
                self.take()?;
                self.constant(Const::Float(x));
            }
            TokenKind::Op("(") => {
                self.take()?;
                let form = self.tuple_until(true, |c| c.at_op(")"))?;
                self.expect_op(")")?;
                return Ok(form);
            }
            TokenKind::Op("[") => {
                self.take()?;
                let n = self.list_until("]", |c| c.expression().map(|_| ()))?;
                self.emit(Op::List(n));
            }
            TokenKind::Op("{") => {
                self.take()?;
                let n = self.list_until("}", |c| {
                    c.expression()?;
                    c.expect_op(":")?;
                    c.expression()?;
                    Ok(())
                })?;
                self.emit(Op::Dict(n));
            }
            _ => return self.expected("an expression"),
        }
        Ok(ExpressionForm::Other)
    }

    /// Compiles comma-separated `item`s up to a closing bracket; returns their number.
    fn list_until(
        &mut self,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<u32> {
        let mut n = 0;
        while !self.at_op(close) {
            if n > 0 {
                self.expect_op(",")?;
                if self.at_op(close) {
                    break;
                }
            }
            item(self)?;
            n += 1;
        }
        self.expect_op(close)?;
        Ok(n)
    }

    /// Compiles one expression, or several separated by commas, which make a tuple. `end`
    /// determines whether it ends after a comma; with `empty` there may be none.
    pub(super) fn tuple_until(
        &mut self,
        empty: bool,
        end: impl Fn(&Self) -> bool,
    ) -> Result<ExpressionForm> {
        self.tuple_of(empty, end, Self::expression)
    }

    /// As [`tuple_until`](Self::tuple_until), with other expressions.
    pub(super) fn tuple_of(
        &mut self,
        empty: bool,
        end: impl Fn(&Self) -> bool,
        item: impl Fn(&mut Self) -> Result<ExpressionForm>,
    ) -> Result<ExpressionForm> {
        if end(self) {
            if !empty {
                return self.expected("an expression");
            }
            self.emit(Op::Tuple(0));
            return Ok(ExpressionForm::Other);
        }
        let form = item(self)?;
        let mut n = 1;
        let mut tuple = false;
        while self.skip_op(",")? {
            tuple = true;
            if end(self) {
                break;
            }
            item(self)?;
            n += 1;
        }
        if tuple {
            self.emit(Op::Tuple(n));
            return Ok(ExpressionForm::Other);
        }
        Ok(form)
    }

    /// Attributes, elements and calls.
    fn postfix(&mut self, mut form: ExpressionForm) -> Result<ExpressionForm> {
        loop {
            form = match self.token.kind {
                TokenKind::Op(".") => {
                    self.take()?;
                    match self.token.kind {
                        TokenKind::Name(name) => {
                            self.take()?;
                            let name = self.name(name);
                            self.emit(Op::Attr(name));
                        }
                        TokenKind::Int(n) => {
                            self.take()?;
                            self.constant(Const::Int(n));
                            self.emit(Op::Item);
                        }
                        _ => return self.expected("a name or a number after '.'"),
                    }
                    ExpressionForm::Other
                }
                TokenKind::Op("[") => {
                    self.take()?;
                    self.subscript()?;
                    ExpressionForm::Other
                }
                TokenKind::Op("(") => self.call()?,
                _ => return Ok(form),
            }
        }
    }

    /// The part between `[` and `]`.
    fn subscript(&mut self) -> Result<()> {
        if !self.at_op(":") {
            if self.skip_op("]")? {
                self.emit(Op::Tuple(0));
                self.emit(Op::Item);
                return Ok(());
            }
            self.expression()?;
            if self.at_op(",") {
                let mut n = 1;
                while self.skip_op(",")? {
                    self.expression()?;
                    n += 1;
                }
                self.emit(Op::Tuple(n));
            }
            if self.skip_op("]")? {
                self.emit(Op::Item);
                return Ok(());
            }
        } else {
            self.emit(Op::None);
        }
        self.expect_op(":")?;
        if self.at_op(":") || self.at_op("]") {
            self.emit(Op::None);
        } else {
            self.expression()?;
        }
        if self.skip_op(":")? && !self.at_op("]") {
            self.expression()?;
        } else {
            self.emit(Op::None);
        }
        self.expect_op("]")?;
        self.emit(Op::Slice);
        Ok(())
    }

    fn call(&mut self) -> Result<ExpressionForm> {
        let shape = self.arguments()?;
        let shape = self.shape(shape);
        self.emit(Op::Call(shape));
        Ok(ExpressionForm::Call)
    }

    /// The arguments of a call, from its `(`.
    pub(super) fn arguments(&mut self) -> Result<CallShape> {
        self.expect_op("(")?;
        let mut shape = CallShape::default();
        let mut first = true;
        while !self.at_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.at_op(")") {
                    break;
                }
            }
            first = false;
            if self.at_op("*") && !shape.star && !shape.star_star {
                self.take()?;
                if !shape.named.is_empty() {
                    return self.fail("'*' comes before arguments with names");
                }
                self.expression()?;
                shape.star = true;
            } else if self.at_op("**") && !shape.star_star {
                self.take()?;
                self.expression()?;
                shape.star_star = true;
            } else if let TokenKind::Name(name) = self.token.kind
                && *self.peek()? == TokenKind::Op("=")
            {
                if shape.star || shape.star_star {
                    return self.fail("arguments with names come before '*' and '**'");
                }
                self.take()?;
                self.take()?;
                let name = self.name(name);
                self.expression()?;
                shape.named.push(name);
            } else {
                if shape.star || shape.star_star || !shape.named.is_empty() {
                    return self.fail("arguments without names come first");
                }
                self.expression()?;
                shape.positional += 1;
            }
        }
        self.expect_op(")")?;
        let mut names = shape.named.clone();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return self.fail("an argument is given twice");
        }
        Ok(shape)
    }

    fn filters_and_tests(&mut self, mut form: ExpressionForm) -> Result<ExpressionForm> {
        loop {
            form = match self.token.kind {
                TokenKind::Op("|") => {
                    self.take()?;
                    self.filter()?;
                    ExpressionForm::Other
                }
                TokenKind::Name("is") => {
                    self.take()?;
                    self.test()?;
                    ExpressionForm::Other
                }
                TokenKind::Op("(") => self.call()?,
                _ => return Ok(form),
            }
        }
    }

    /// A name that may contain dots.
    fn dotted(&mut self, what: &str) -> Result<String> {
        let mut name = self.expect_name(what)?.to_owned();
        while self.skip_op(".")? {
            name.push('.');
            name.push_str(self.expect_name(what)?);
        }
        Ok(name)
    }

    /// A filter, after its `|`.
    pub(super) fn filter(&mut self) -> Result<()> {
        let name = self.dotted("a filter's name")?;
        let shape = if self.at_op("(") { self.arguments()? } else { CallShape::default() };
        match Filter::named(&name) {
            Some(filter) => {
                let shape = self.shape(shape);
                self.emit(Op::Filter(filter, shape));
                Ok(())
            }
            None => self.unknown("filter", &name),
        }
    }

    /// In a branch that may not be taken, this is an error only when it runs.
    fn unknown(&mut self, what: &'static str, name: &str) -> Result<()> {
        if self.function().conditional == 0 {
            let name = clip(name);
            return super::error(self.line, format!("there is no {what} '{name}'"));
        }
        let at = self.program.names.len() as Name;
        self.program.names.push(name.into());
        self.emit(Op::Unknown(what, at));
        Ok(())
    }

    /// A test, after its `is`.
    fn test(&mut self) -> Result<()> {
        let negated = self.skip_name("not")?;
        let name = self.dotted("a test's name")?;
        let mut shape = CallShape::default();
        match &self.token.kind {
            TokenKind::Op("(") => shape = self.arguments()?,
            TokenKind::Name("is") => return self.fail("tests cannot follow each other"),
            TokenKind::Name("else" | "or" | "and") => {}
            TokenKind::Name(_)
            | TokenKind::Text(_)
            | TokenKind::Int(_)
            | TokenKind::Float(_)
            | TokenKind::Op("[" | "{") => {
                let form = self.primary()?;
                self.postfix(form)?;
                shape.positional = 1;
            }
            _ => {}
        }
        let test: Option<Test> = Test::named(&name);
        match test {
            Some(test) => {
                let shape = self.shape(shape);
                self.emit(Op::Test(test, shape));
            }
            None => self.unknown("test", &name)?,
        }
        if negated {
            self.emit(Op::Not);
        }
        Ok(())
    }
}
