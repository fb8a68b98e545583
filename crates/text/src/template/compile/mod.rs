//! Compiles a template's source into a [`Program`], in one pass and with jinja2's grammar.
//!
//! Recursion is counted: every expression in brackets, every `else` of a conditional expression and
//! every block is one level of [`MAX_NESTING`]. Chains (of operators, filters, attributes, calls,
//! `elif`s, signs) are loops and add no level, however long.

mod expression;
mod statement;

use std::collections::HashMap;

use super::code::{CallShape, Const, MacroCode, Name, Op, Program, Target};
use super::lexer::{Lexer, SyntaxError, Token, TokenKind, error};

/// The maximum total nesting of blocks and expressions. (Templates in use have some 20.)
pub(super) const MAX_NESTING: u32 = 100;

type Result<T> = std::result::Result<T, SyntaxError>;

/// The scopes that `break` and `continue` leave inside a loop, and their targets.
struct LoopCode {
    /// Scopes and captures outside the loop's body.
    scopes: u16,
    captures: u16,
    next: Target,
    /// Jumps to the loop's end whose target is still unknown.
    breaks: Vec<Target>,
}

/// The function being compiled: the template, or a macro in it.
#[derive(Default)]
struct Function {
    scopes: u16,
    captures: u16,
    loops: Vec<LoopCode>,
    /// Depth of `if`s; inside them unknown filters are an error only when they run.
    conditional: u32,
    /// The special names that the body uses.
    caller: bool,
    kwargs: bool,
    varargs: bool,
}

pub(super) struct Compiler<'s> {
    lexer: Lexer<'s>,
    /// The current token, and the one after it if that has been needed.
    token: Token<'s>,
    ahead: Option<Token<'s>>,
    /// The line of the last token taken.
    line: u32,
    nesting: u32,
    program: Program,
    names: HashMap<&'s str, Name>,
    texts: HashMap<String, u32>,
    shapes: HashMap<(u32, Vec<Name>, [bool; 3]), u32>,
    functions: Vec<Function>,
    /// Uses of `loop` so far.
    loop_uses: u32,
}

/// Compiles a source from [`normalise`](super::lexer::normalise).
pub(super) fn compile(source: &str) -> Result<Program> {
    let mut lexer = Lexer::new(source);
    let token = lexer.next()?;
    let mut compiler = Compiler {
        lexer,
        line: token.line,
        token,
        ahead: None,
        nesting: 0,
        program: Program::default(),
        names: HashMap::new(),
        texts: HashMap::new(),
        shapes: HashMap::new(),
        functions: vec![Function::default()],
        loop_uses: 0,
    };
    compiler.program.loop_ = compiler.name("loop");
    compiler.program.caller = compiler.name("caller");
    compiler.program.kwargs = compiler.name("kwargs");
    compiler.program.varargs = compiler.name("varargs");
    compiler.body(&[])?;
    compiler.emit(Op::End);
    let mut program = compiler.program;
    program.code.shrink_to_fit();
    program.lines.shrink_to_fit();
    Ok(program)
}

impl<'s> Compiler<'s> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        error(self.token.line, message)
    }

    /// Fails with a message that states what was expected instead of the token.
    fn expected<T>(&self, what: &str) -> Result<T> {
        self.fail(format!("expected {what}, found {}", self.token.kind.describe()))
    }

    /// Takes the token.
    fn take(&mut self) -> Result<TokenKind<'s>> {
        let next = match self.ahead.take() {
            Some(token) => token,
            None => self.lexer.next()?,
        };
        self.line = self.token.line;
        Ok(std::mem::replace(&mut self.token, next).kind)
    }

    /// The token after the current one.
    fn peek(&mut self) -> Result<&TokenKind<'s>> {
        let ahead = match self.ahead.take() {
            Some(token) => token,
            None => self.lexer.next()?,
        };
        Ok(&self.ahead.insert(ahead).kind)
    }

    fn at_op(&self, op: &str) -> bool {
        matches!(self.token.kind, TokenKind::Op(found) if found == op)
    }

    fn at_name(&self, name: &str) -> bool {
        matches!(self.token.kind, TokenKind::Name(found) if found == name)
    }

    /// Takes an operator if it is the current token.
    fn skip_op(&mut self, op: &str) -> Result<bool> {
        let found = self.at_op(op);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    fn skip_name(&mut self, name: &str) -> Result<bool> {
        let found = self.at_name(name);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op)? { Ok(()) } else { self.expected(&format!("'{op}'")) }
    }

    fn expect_name(&mut self, what: &str) -> Result<&'s str> {
        match self.token.kind {
            TokenKind::Name(name) => {
                self.take()?;
                Ok(name)
            }
            _ => self.expected(what),
        }
    }

    fn expect(&mut self, kind: TokenKind<'static>) -> Result<()> {
        if self.token.kind == kind {
            self.take()?;
            return Ok(());
        }
        self.expected(&kind.describe())
    }

    /// Enters one level; [`Self::leave`] follows unless there is an error.
    fn enter(&mut self) -> Result<()> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fail(format!("blocks and brackets nest deeper than {MAX_NESTING} levels"));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.nesting -= 1;
    }

    fn here(&self) -> Target {
        // A source of one mebibyte makes some million instructions.
        self.program.code.len() as Target
    }

    /// Adds an instruction; returns its index.
    fn emit(&mut self, op: Op) -> Target {
        let at = self.here();
        self.program.code.push(op);
        self.program.lines.push(self.line);
        at
    }

    /// Sets the target of the jump at `at` to `target`.
    fn aim(&mut self, at: Target, target: Target) {
        match &mut self.program.code[at as usize] {
            Op::Chain(_, to)
            | Op::Jump(to)
            | Op::JumpIfFalse(to)
            | Op::And(to)
            | Op::Or(to)
            | Op::ForNext(to)
            | Op::ForPicked(to)
            | Op::ForTest(to)
            | Op::ForEnd(to)
            | Op::IfGiven(_, to) => *to = target,
            _ => {}
        }
    }

    /// Sets the target of the jump at `at` to the next instruction.
    fn land(&mut self, at: Target) {
        self.aim(at, self.here());
    }

    fn name(&mut self, name: &'s str) -> Name {
        *self.names.entry(name).or_insert_with(|| {
            self.program.names.push(name.into());
            (self.program.names.len() - 1) as Name
        })
    }

    /// The name of a variable that is read.
    fn used(&mut self, name: &'s str) -> Name {
        match name {
            "loop" => self.loop_uses += 1,
            // An outer macro counts as using the names that an inner one uses.
            "caller" => self.functions.iter_mut().for_each(|f| f.caller = true),
            "kwargs" => self.functions.iter_mut().for_each(|f| f.kwargs = true),
            "varargs" => self.functions.iter_mut().for_each(|f| f.varargs = true),
            _ => {}
        }
        self.name(name)
    }

    fn text(&mut self, text: &str) {
        let at = match self.texts.get(text) {
            Some(at) => *at,
            None => {
                let at = self.program.consts.len() as u32;
                self.program.consts.push(Const::Text(text.into()));
                self.texts.insert(text.to_owned(), at);
                at
            }
        };
        self.emit(Op::Const(at));
    }

    fn constant(&mut self, value: Const) {
        let at = self.program.consts.len() as u32;
        self.program.consts.push(value);
        self.emit(Op::Const(at));
    }

    fn shape(&mut self, shape: CallShape) -> u32 {
        let key =
            (shape.positional, shape.named.clone(), [shape.star, shape.star_star, shape.caller]);
        if let Some(at) = self.shapes.get(&key) {
            return *at;
        }
        let at = self.program.shapes.len() as u32;
        self.program.shapes.push(shape);
        self.shapes.insert(key, at);
        at
    }

    /// There is always one: the template's.
    fn function(&mut self) -> &mut Function {
        let last = self.functions.len() - 1;
        &mut self.functions[last]
    }

    /// Compiles a macro: its parameters with their defaults, and its `body`.
    fn macro_code(
        &mut self,
        name: Option<Name>,
        body: impl FnOnce(&mut Self) -> Result<Vec<Name>>,
    ) -> Result<u32> {
        let skip = self.emit(Op::Jump(0));
        let begin = self.here();
        self.functions.push(Function::default());
        let parameters = body(self)?;
        self.emit(Op::Return);
        self.land(skip);
        let function = self.functions.pop().unwrap_or_default();
        let (caller, kwargs, varargs) = (function.caller, function.kwargs, function.varargs);
        let code = MacroCode { name, parameters, begin, caller, kwargs, varargs };
        self.program.macros.push(code);
        Ok((self.program.macros.len() - 1) as u32)
    }
}
