//! Blocks and statements.

use std::collections::HashSet;

use super::super::code::{Name, Op, Target};
use super::super::lexer::TokenKind;
use super::super::shown::clip;
use super::expression::ExpressionForm;
use super::{Compiler, LoopCode, Result};

/// The target of an assignment.
enum Assigned {
    Name(Name),
    /// An attribute of a namespace.
    Attr(Name, Name),
    Tuple(Vec<Assigned>),
}

impl<'s> Compiler<'s> {
    /// Compiles text and tags up to a tag with one of these names, which is not taken; without any,
    /// up to the end of the template.
    pub(super) fn body(&mut self, ends: &[&str]) -> Result<()> {
        loop {
            match self.token.kind {
                TokenKind::End if ends.is_empty() => return Ok(()),
                TokenKind::End => {
                    return self.expected(&format!("'{{% {} %}}'", ends.join(" %}' or '{% ")));
                }
                TokenKind::Data(text) => {
                    let at = self.program.data.len() as u32;
                    self.program.data.push(text.into());
                    self.take()?;
                    self.emit(Op::Data(at));
                }
                TokenKind::PrintBegin => {
                    self.take()?;
                    self.tuple_until(false, |c| c.token.kind == TokenKind::PrintEnd)?;
                    self.emit(Op::Emit);
                    self.expect(TokenKind::PrintEnd)?;
                }
                TokenKind::BlockBegin => {
                    self.take()?;
                    if let TokenKind::Name(name) = self.token.kind
                        && ends.contains(&name)
                    {
                        return Ok(());
                    }
                    self.enter()?;
                    self.statement()?;
                    self.leave();
                    self.expect(TokenKind::BlockEnd)?;
                }
                _ => return self.expected("text or a tag"),
            }
        }
    }

    /// Compiles the body of a block, after its first tag; takes the name of the tag that ends it.
    fn block(&mut self, ends: &[&str]) -> Result<&'s str> {
        self.skip_op(":")?;
        self.expect(TokenKind::BlockEnd)?;
        self.body(ends)?;
        self.expect_name("the end of the block")
    }

    fn statement(&mut self) -> Result<()> {
        let TokenKind::Name(name) = self.token.kind else { return self.expected("a tag's name") };
        match name {
            "for" | "if" | "set" | "macro" | "call" | "filter" | "with" | "generation"
            | "autoescape" | "print" | "break" | "continue" => {
                self.take()?;
            }
            "block" | "extends" | "include" | "import" | "from" => {
                return self.fail(format!(
                    "the tag '{name}' needs other templates or blocks, which a chat template does \
                     not have"
                ));
            }
            _ => {
                let name = clip(name);
                return self.fail(format!("there is no tag '{name}', or not in this place"));
            }
        }
        match name {
            "for" => self.for_(),
            "if" => self.if_(),
            "set" => self.set(),
            "macro" => self.macro_(),
            "call" => self.call_block(),
            "filter" => self.filter_block(),
            "with" => self.with(),
            // It marks the model's text, for training.
            "generation" => self.scoped(|c| {
                c.block(&["endgeneration"])?;
                Ok(())
            }),
            "autoescape" => {
                if self.skip_name("true")? || self.skip_name("True")? {
                    return self.fail("a chat template is not HTML: nothing is escaped");
                }
                self.expression()?;
                self.emit(Op::Pop);
                self.scoped(|c| {
                    c.block(&["endautoescape"])?;
                    Ok(())
                })
            }
            "print" => self.print(),
            name => self.jump_out(name == "continue"),
        }
    }

    /// Compiles `inner` in a scope of its own.
    fn scoped(&mut self, inner: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.emit(Op::PushScope);
        self.function().scopes += 1;
        let conditional = std::mem::take(&mut self.function().conditional);
        inner(self)?;
        self.function().conditional = conditional;
        self.function().scopes -= 1;
        self.emit(Op::PopScope);
        Ok(())
    }

    fn print(&mut self) -> Result<()> {
        let mut first = true;
        while self.token.kind != TokenKind::BlockEnd {
            if !first {
                self.expect_op(",")?;
            }
            first = false;
            self.expression()?;
            self.emit(Op::Emit);
        }
        Ok(())
    }

    fn if_(&mut self) -> Result<()> {
        let mut ends = Vec::new();
        self.function().conditional += 1;
        loop {
            self.tuple_of(false, |c| c.token.kind == TokenKind::BlockEnd, Self::or_nested)?;
            let otherwise = self.emit(Op::JumpIfFalse(0));
            let end = self.block(&["elif", "else", "endif"])?;
            if end == "endif" {
                self.land(otherwise);
                break;
            }
            ends.push(self.emit(Op::Jump(0)));
            self.land(otherwise);
            if end == "else" {
                self.block(&["endif"])?;
                break;
            }
        }
        self.function().conditional -= 1;
        ends.into_iter().for_each(|at| self.land(at));
        Ok(())
    }

    /// An expression without `if`.
    fn or_nested(&mut self) -> Result<ExpressionForm> {
        self.enter()?;
        let form = self.or()?;
        self.leave();
        Ok(form)
    }

    fn for_(&mut self) -> Result<()> {
        let target = self.assigned(false, |c| c.at_name("in"))?;
        if matches!(target, Assigned::Name(name) if name == self.program.loop_) {
            return self.fail("a loop's variable cannot be called 'loop'");
        }
        if !self.skip_name("in")? {
            return self.expected("'in'");
        }
        let end = |c: &Self| c.token.kind == TokenKind::BlockEnd || c.at_name("recursive");
        self.tuple_of(false, end, Self::or_nested)?;
        let start = self.emit(Op::ForStart(false));
        let next = self.emit(Op::ForNext(0));
        self.function().scopes += 1;
        self.assign(&target);
        let mut picks = false;
        if self.skip_name("if")? {
            picks = true;
            let picked = self.emit(Op::ForPicked(0));
            self.expression()?;
            self.emit(Op::ForTest(next));
            self.land(picked);
        }
        if self.at_name("recursive") {
            return self.fail("recursive loops are not supported");
        }
        self.emit(Op::ForBody);
        let uses = self.loop_uses;
        let function = self.function();
        let (scopes, captures) = (function.scopes - 1, function.captures);
        function.loops.push(LoopCode { scopes, captures, next, breaks: Vec::new() });
        let conditional = std::mem::take(&mut function.conditional);
        let ended = self.block(&["endfor", "else"])?;
        self.function().conditional = conditional;
        if ended == "else" {
            self.emit(Op::ForDone);
        }
        self.emit(Op::PopScope);
        self.emit(Op::Jump(next));
        let function = self.function();
        function.scopes -= 1;
        let breaks = function.loops.pop().map(|code| code.breaks).unwrap_or_default();
        self.land(next);
        breaks.into_iter().for_each(|at| self.land(at));
        if picks && self.loop_uses > uses {
            self.program.code[start as usize] = Op::ForStart(true);
        }
        let after = self.emit(Op::ForEnd(0));
        if ended == "else" {
            self.scoped(|c| {
                c.block(&["endfor"])?;
                Ok(())
            })?;
        }
        self.land(after);
        Ok(())
    }

    fn jump_out(&mut self, goes_on: bool) -> Result<()> {
        let function = self.function();
        let (scopes, captures) = (function.scopes, function.captures);
        let Some(code) = function.loops.last() else {
            return self.fail("'break' and 'continue' are for loops");
        };
        let (scopes, captures, next) = (scopes - code.scopes, captures - code.captures, code.next);
        self.emit(Op::Unwind(scopes, captures));
        let jump = self.emit(Op::Jump(next));
        if !goes_on && let Some(code) = self.function().loops.last_mut() {
            code.breaks.push(jump);
        }
        Ok(())
    }

    /// The target of an assignment; `end` determines whether it ends after a comma.
    fn assigned(&mut self, namespaces: bool, end: impl Fn(&Self) -> bool) -> Result<Assigned> {
        if end(self) {
            return self.expected("a name");
        }
        let first = self.assigned_one(namespaces)?;
        let mut several = vec![first];
        let mut tuple = false;
        while self.skip_op(",")? {
            tuple = true;
            if end(self) {
                break;
            }
            several.push(self.assigned_one(namespaces)?);
        }
        match several.pop() {
            Some(only) if !tuple => Ok(only),
            last => {
                several.extend(last);
                Ok(Assigned::Tuple(several))
            }
        }
    }

    fn assigned_one(&mut self, namespaces: bool) -> Result<Assigned> {
        if self.skip_op("(")? {
            self.enter()?;
            let inner = self.assigned(false, |c| c.at_op(")"))?;
            self.leave();
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = self.assigned_name()?;
        if namespaces && self.skip_op(".")? {
            let attribute = self.expect_name("an attribute's name")?;
            return Ok(Assigned::Attr(name, self.name(attribute)));
        }
        Ok(Assigned::Name(name))
    }

    fn assigned_name(&mut self) -> Result<Name> {
        let name = self.expect_name("a name to assign to")?;
        if matches!(name, "true" | "false" | "none" | "True" | "False" | "None") {
            return super::super::lexer::error(
                self.line,
                format!("'{name}' cannot be assigned to"),
            );
        }
        Ok(self.name(name))
    }

    /// Pops a value into the target; recurses as deep as brackets nest.
    fn assign(&mut self, target: &Assigned) {
        match target {
            Assigned::Name(name) => {
                self.emit(Op::Store(*name));
            }
            Assigned::Attr(namespace, attribute) => {
                self.emit(Op::StoreAttr(*namespace, *attribute));
            }
            Assigned::Tuple(targets) => {
                self.emit(Op::Unpack(targets.len() as u32));
                targets.iter().for_each(|target| self.assign(target));
            }
        }
    }

    fn set(&mut self) -> Result<()> {
        let end = |c: &Self| c.token.kind == TokenKind::BlockEnd || c.at_op("=");
        let target = self.assigned(true, end)?;
        if self.skip_op("=")? {
            self.tuple_until(false, |c| c.token.kind == TokenKind::BlockEnd)?;
            self.assign(&target);
            return Ok(());
        }
        // The filters precede the body, and run after it.
        let mut filters: Vec<(Target, Target)> = Vec::new();
        let over = self.emit(Op::Jump(0));
        if self.at_op("|") {
            filters.push(self.filters_apart(false)?);
        }
        self.land(over);
        self.captured(&["endset"])?;
        self.run_apart(&filters);
        self.assign(&target);
        Ok(())
    }

    fn filter_block(&mut self) -> Result<()> {
        let over = self.emit(Op::Jump(0));
        let filters = [self.filters_apart(true)?];
        self.land(over);
        self.captured(&["endfilter"])?;
        self.run_apart(&filters);
        self.emit(Op::Emit);
        Ok(())
    }

    /// Compiles filters as a separate block of instructions; returns its start, and the jump after it.
    fn filters_apart(&mut self, inline: bool) -> Result<(Target, Target)> {
        let begin = self.here();
        if inline {
            self.filter()?;
        }
        while self.skip_op("|")? {
            self.filter()?;
        }
        Ok((begin, self.emit(Op::Jump(0))))
    }

    fn run_apart(&mut self, filters: &[(Target, Target)]) {
        for (begin, back) in filters {
            self.emit(Op::Jump(*begin));
            self.land(*back);
        }
    }

    /// Compiles a block's body; its text is pushed.
    fn captured(&mut self, ends: &[&str]) -> Result<()> {
        self.emit(Op::Capture);
        self.function().captures += 1;
        self.scoped(|c| {
            c.block(ends)?;
            Ok(())
        })?;
        self.function().captures -= 1;
        self.emit(Op::EndCapture);
        Ok(())
    }

    fn with(&mut self) -> Result<()> {
        // The values are evaluated in the outer scope.
        let mut targets = Vec::new();
        while self.token.kind != TokenKind::BlockEnd && !self.at_op(":") {
            if !targets.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.assigned_one(false)?;
            self.expect_op("=")?;
            self.expression()?;
            targets.push(target);
        }
        self.scoped(|c| {
            targets.iter().rev().for_each(|target| c.assign(target));
            c.block(&["endwith"])?;
            Ok(())
        })
    }

    /// The parameters of a macro, with the code of their defaults.
    fn signature(&mut self) -> Result<Vec<Name>> {
        self.expect_op("(")?;
        let mut parameters = Vec::new();
        let mut seen = HashSet::new();
        let mut defaults = false;
        while !self.at_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.assigned_name()?;
            if !seen.insert(name) {
                return self.fail("a macro has two parameters of one name");
            }
            parameters.push(name);
            let given = self.emit(Op::IfGiven(name, 0));
            if self.skip_op("=")? {
                defaults = true;
                self.expression()?;
                self.emit(Op::Store(name));
            } else if defaults {
                return self.fail("a parameter without a default follows one with a default");
            } else {
                self.emit(Op::NotGiven(name));
            }
            self.land(given);
        }
        self.expect_op(")")?;
        Ok(parameters)
    }

    fn macro_(&mut self) -> Result<()> {
        let name = self.assigned_name()?;
        let code = self.macro_code(Some(name), |c| {
            let parameters = c.signature()?;
            c.block(&["endmacro"])?;
            Ok(parameters)
        })?;
        self.emit(Op::Macro(code));
        self.emit(Op::Store(name));
        Ok(())
    }

    fn call_block(&mut self) -> Result<()> {
        // The parameters precede the call, but their defaults belong to the body.
        let mut call = None;
        let code = self.macro_code(None, |c| {
            let parameters = if c.at_op("(") { c.signature()? } else { Vec::new() };
            // The call is compiled in the middle of the body's code, which jumps over it.
            let over = c.emit(Op::Jump(0));
            let body = c.functions.pop().unwrap_or_default();
            let begin = c.here();
            let form = c.expression()?;
            c.functions.push(body);
            let shape = match c.program.code.pop() {
                Some(Op::Call(shape)) if form == ExpressionForm::Call => shape,
                _ => return c.fail("a call block needs a call"),
            };
            c.program.lines.pop();
            let mut shape = c.program.shapes[shape as usize].clone();
            shape.caller = true;
            let shape = c.shape(shape);
            let callers = c.emit(Op::Macro(0));
            c.emit(Op::Call(shape));
            c.emit(Op::Emit);
            let back = c.emit(Op::Jump(0));
            c.land(over);
            call = Some((begin, callers, back));
            c.block(&["endcall"])?;
            Ok(parameters)
        })?;
        if let Some((begin, callers, back)) = call {
            self.program.code[callers as usize] = Op::Macro(code);
            self.emit(Op::Jump(begin));
            self.land(back);
        }
        Ok(())
    }
}
