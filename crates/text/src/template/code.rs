//! The compiled form of a template: flat instructions for a machine with a stack of values.
//!
//! There is no tree: compiling recurses only as deep as [`MAX_NESTING`](super::compile::MAX_NESTING) allows,
//! and running and dropping do not recurse at all.

use super::names::{Compare, Filter, Test};

/// Index of a name in [`Program::names`].
pub(super) type Name = u32;
/// Index of an instruction.
pub(super) type Target = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

/// One instruction. "Pops" and "pushes" refer to the stack of values.
#[derive(Clone, Copy)]
pub(super) enum Op {
    /// Nothing: replaced by a jump to the condition of `a if c else b`.
    Nop,
    /// Ends the template.
    End,
    /// Writes a piece of the template's own text.
    Data(u32),
    /// Pops a value and writes it.
    Emit,
    Const(u32),
    None,
    /// The value of `a if c` where `c` is false.
    Undefined,
    /// Drops a value.
    Pop,
    Bool(bool),
    Load(Name),
    Store(Name),
    /// Pops a value, and sets an attribute of the namespace in the variable.
    StoreAttr(Name, Name),
    Attr(Name),
    /// Pops key and object, pushes the element.
    Item,
    /// Pops step, stop, start and object, pushes the slice.
    Slice,
    Not,
    Neg,
    Pos,
    Binary(Binary),
    Compare(Compare),
    /// Pops b and a. If `a op b`, pushes b; else pushes false and jumps.
    Chain(Compare, Target),
    /// Pops this many values and pushes them as one text.
    Concat(u32),
    List(u32),
    Tuple(u32),
    /// Pops this many pairs of key and value.
    Dict(u32),
    /// Pops a sequence and pushes its elements, this many, the first on top.
    Unpack(u32),
    Jump(Target),
    /// Pops a value.
    JumpIfFalse(Target),
    /// `and`: jumps and keeps the value if it is false, pops it otherwise.
    And(Target),
    /// `or`.
    Or(Target),
    Filter(Filter, u32),
    Test(Test, u32),
    /// A filter or test that does not exist, in a branch that may not be taken.
    Unknown(&'static str, Name),
    /// Pops arguments and callee; macros push their text when they return.
    Call(u32),
    /// Pops an iterable and begins a loop over it; true: a condition selects the items first,
    /// because the body uses `loop`.
    ForStart(bool),
    /// Begins the next round, in a scope of its own, and pushes the item; jumps if there is none.
    ForNext(Target),
    /// Jumps if the items have been selected already.
    ForPicked(Target),
    /// Pops the condition; if it is false, or items are being selected, jumps to the next round.
    ForTest(Target),
    /// Binds `loop`, and counts the round.
    ForBody,
    /// A round has completed, without `break` or `continue`.
    ForDone,
    /// Ends the loop; jumps (past `else`) if a round has completed.
    ForEnd(Target),
    PushScope,
    PopScope,
    /// Leaves this many scopes and captures at once (`break`, `continue`).
    Unwind(u16, u16),
    /// Redirects output to a new text.
    Capture,
    /// Pushes that text.
    EndCapture,
    /// Pushes a macro, bound to the scope.
    Macro(u32),
    /// Jumps if the parameter was given.
    IfGiven(Name, Target),
    /// Sets the parameter, which was neither given nor has a default, to undefined.
    NotGiven(Name),
    /// Returns from a macro with its output.
    Return,
}

/// The order of a call's arguments on the stack: positional ones, named ones, then those that these flags add.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CallShape {
    pub(super) positional: u32,
    pub(super) named: Vec<Name>,
    /// `*args`.
    pub(super) star: bool,
    /// `**kwargs`.
    pub(super) star_star: bool,
    /// The body of a call block.
    pub(super) caller: bool,
}

/// A macro, or the body of a call block.
#[derive(Debug, Default)]
pub(super) struct MacroCode {
    pub(super) name: Option<Name>,
    pub(super) parameters: Vec<Name>,
    pub(super) begin: Target,
    /// The body uses `caller`, `kwargs`, `varargs`.
    pub(super) caller: bool,
    pub(super) kwargs: bool,
    pub(super) varargs: bool,
}

#[derive(Debug)]
pub(super) enum Const {
    Text(Box<str>),
    Int(i128),
    Float(f64),
}

/// A compiled template.
#[derive(Default)]
pub(super) struct Program {
    pub(super) code: Vec<Op>,
    /// The line of each instruction.
    pub(super) lines: Vec<u32>,
    pub(super) names: Vec<Box<str>>,
    pub(super) consts: Vec<Const>,
    pub(super) data: Vec<Box<str>>,
    pub(super) shapes: Vec<CallShape>,
    pub(super) macros: Vec<MacroCode>,
    /// Names with a special meaning: `loop`, `caller`, `kwargs`, `varargs`.
    pub(super) loop_: Name,
    pub(super) caller: Name,
    pub(super) kwargs: Name,
    pub(super) varargs: Name,
}
