//! The machine that runs a compiled template. It does not recurse: macros, loops and scopes are on
//! stacks of its own, and objects that can change or be cyclic live in its arenas until it is
//! dropped.

use std::cell::RefCell;
use std::rc::Rc;

use super::budget::{Budget, Lease, RenderStop, Result, fail};
use super::clock::Time;
use super::code::{Const, Name, Op, Program};
use super::shown::clip;
use super::value::{Buffer, Builtin, MapBuilder, Missing, Seq, Text, Value};

/// The maximum nesting of macro calls. (Python fails at some 250.)
const MAX_CALLS: usize = 250;
/// The memory charged for a variable in a scope or namespace.
const VARIABLE: usize = 64;

/// An object that can change, or refer to itself.
pub(super) enum TemplateObject {
    Namespace(Vec<(Text, Value)>),
    Cycler {
        items: Seq,
        at: usize,
    },
    Joiner {
        separator: Value,
        used: bool,
    },
    /// With the scope that it captures.
    Macro {
        code: u32,
        scope: u32,
    },
}

/// The variables of a block. Scope 0 is the template's.
struct Scope {
    parent: u32,
    vars: Vec<(Name, Value)>,
    /// Captured by a macro: it stays to the end.
    captured: bool,
    lease: Lease,
}

enum Picking {
    /// The body runs while items arrive.
    No,
    /// The condition is evaluated for all items before the body runs for any.
    Yes(Vec<Value>, Lease),
    Done,
}

/// A running loop.
pub(super) struct LoopState {
    number: u32,
    pub(super) items: Seq,
    /// The next item.
    at: usize,
    pub(super) index0: usize,
    pub(super) previous: Option<Value>,
    pub(super) current: Option<Value>,
    pub(super) changed: Option<Seq>,
    picking: Picking,
    rounds: usize,
    done: bool,
}

impl LoopState {
    pub(super) fn next(&self) -> Option<&Value> {
        self.items.get(self.at)
    }
}

/// A running macro.
struct Frame {
    back: u32,
    scope: u32,
    stack: usize,
    loops: usize,
}

/// Arguments of a call.
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Text, Value)>,
    /// For the values that `*` and `**` added.
    _lease: Option<Lease>,
}

impl Args {
    pub(super) fn none() -> Args {
        Args { positional: Vec::new(), named: Vec::new(), _lease: None }
    }

    /// Binds arguments to parameters as Python does; returns their values.
    pub(super) fn bind<const N: usize>(
        self,
        what: &str,
        parameters: [&str; N],
    ) -> Result<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            return fail(format!("{what} takes at most {N} arguments"));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let at = parameters.iter().position(|parameter| **parameter == *name);
            match at.map(|at| &mut bound[at]) {
                None => return fail(format!("{what} takes no argument '{}'", clip(&name))),
                Some(Some(_)) => {
                    return fail(format!("{what} got its argument '{}' twice", clip(&name)));
                }
                Some(slot) => *slot = Some(value),
            }
        }
        Ok(bound)
    }

    /// As [`bind`](Self::bind), with the first `required` parameters mandatory.
    pub(super) fn require<const N: usize>(
        self,
        what: &str,
        parameters: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N]> {
        let bound = self.bind(what, parameters)?;
        match bound.iter().take(required).position(Option::is_none) {
            Some(at) => fail(format!("{what} needs an argument '{}'", parameters[at])),
            None => Ok(bound),
        }
    }
}

pub(super) struct TemplateMachine<'t> {
    pub(super) program: &'t Program,
    pub(super) budget: Rc<Budget>,
    names: Vec<Text>,
    consts: Vec<Value>,
    /// Variables of the template, by name.
    globals: Vec<Option<Value>>,
    stack: Vec<Value>,
    outs: Vec<Buffer>,
    scopes: Vec<Scope>,
    free: Vec<u32>,
    scope: u32,
    loops: Vec<LoopState>,
    loops_begun: u32,
    frames: Vec<Frame>,
    pub(super) objects: Vec<TemplateObject>,
    /// Memory held by the objects.
    objects_lease: Lease,
    pub(super) chars: RefCell<[Option<Value>; 128]>,
    pc: usize,
    /// The time that the template knows.
    pub(super) now: Time,
}

impl<'t> TemplateMachine<'t> {
    /// Creates a machine; `variable` provides the initial values of the template's variables.
    pub(super) fn new(
        program: &'t Program,
        budget: Rc<Budget>,
        now: Time,
        mut variable: impl FnMut(&str) -> Result<Option<Value>>,
    ) -> Result<TemplateMachine<'t>> {
        let mut names = Vec::with_capacity(program.names.len());
        let mut globals = Vec::with_capacity(program.names.len());
        for name in &program.names {
            names.push(Text::new(name, &budget)?);
            globals.push(variable(name)?.or_else(|| builtin(name)));
        }
        let mut consts = Vec::with_capacity(program.consts.len());
        for value in &program.consts {
            consts.push(match value {
                Const::Text(text) => Value::text(text, &budget)?,
                Const::Int(n) => Value::Int(*n),
                Const::Float(x) => Value::Float(*x),
            });
        }
        let root = Scope { parent: 0, vars: Vec::new(), captured: true, lease: budget.lease(0)? };
        Ok(TemplateMachine {
            program,
            names,
            consts,
            globals,
            stack: Vec::new(),
            outs: vec![Buffer::new(&budget)?],
            scopes: vec![root],
            free: Vec::new(),
            scope: 0,
            loops: Vec::new(),
            loops_begun: 0,
            frames: Vec::new(),
            objects: Vec::new(),
            objects_lease: budget.lease(0)?,
            chars: RefCell::new([const { None }; 128]),
            pc: 0,
            now,
            budget,
        })
    }

    /// Runs the template; returns its text, or the reason why there is none and the line.
    pub(super) fn run(mut self) -> std::result::Result<String, (RenderStop, u32)> {
        match self.steps() {
            Ok(()) => Ok(self.outs.pop().map(Buffer::into_string).unwrap_or_default()),
            Err(stop) => {
                let line = self.program.lines.get(self.pc.saturating_sub(1)).copied();
                Err((stop, line.unwrap_or(0)))
            }
        }
    }

    pub(super) fn name(&self, name: Name) -> &'t str {
        &self.program.names[name as usize]
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    /// The compiler balances pushes and pops: there is always a value.
    fn pop(&mut self) -> Value {
        self.stack.pop().unwrap_or(Value::None)
    }

    fn jump(&mut self, target: u32) {
        self.pc = target as usize;
    }

    fn steps(&mut self) -> Result<()> {
        loop {
            let op = self.program.code[self.pc];
            self.pc += 1;
            self.budget.steps(1)?;
            match op {
                Op::End => return Ok(()),
                Op::Nop => {}
                Op::Data(at) => {
                    let text = &self.program.data[at as usize];
                    self.out().push_str(text)?;
                }
                Op::Emit => {
                    let value = self.pop();
                    self.emit(&value)?;
                }
                Op::Const(at) => self.push(self.consts[at as usize].clone()),
                Op::None => self.push(Value::None),
                Op::Undefined => {
                    let missing = Missing::Other("a condition without 'else' is false");
                    self.push(Value::Undefined(missing));
                }
                Op::Pop => {
                    self.pop();
                }
                Op::Bool(b) => self.push(Value::Bool(b)),
                Op::Load(name) => {
                    let value = self.load(name)?;
                    self.push(value);
                }
                Op::Store(name) => {
                    let value = self.pop();
                    self.store(name, value)?;
                }
                Op::StoreAttr(namespace, attribute) => self.store_attr(namespace, attribute)?,
                Op::Attr(_) | Op::Item | Op::Slice => self.access(op)?,
                Op::Not
                | Op::Neg
                | Op::Pos
                | Op::Binary(_)
                | Op::Compare(_)
                | Op::Chain(..)
                | Op::Concat(_)
                | Op::And(_)
                | Op::Or(_) => self.operator(op)?,
                Op::List(_) | Op::Tuple(_) | Op::Dict(_) | Op::Unpack(_) => self.collect(op)?,
                Op::Jump(target) => self.jump(target),
                Op::JumpIfFalse(target) => {
                    if !self.pop().truth() {
                        self.jump(target);
                    }
                }
                Op::Filter(..) | Op::Test(..) | Op::Unknown(..) | Op::Call(_) => self.apply(op)?,
                Op::ForStart(..)
                | Op::ForNext(_)
                | Op::ForPicked(_)
                | Op::ForTest(_)
                | Op::ForBody
                | Op::ForDone
                | Op::ForEnd(_) => self.loop_op(op)?,
                Op::PushScope | Op::PopScope | Op::Unwind(..) | Op::Capture | Op::EndCapture => {
                    self.scope_op(op)?
                }
                Op::Macro(_) | Op::IfGiven(..) | Op::NotGiven(_) | Op::Return => {
                    self.macro_op(op)?
                }
            }
        }
    }

    /// An attribute, an item or a slice of the value below its keys.
    fn access(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Attr(name) => {
                let object = self.pop();
                let value = self.attr(&object, name)?;
                self.push(value);
            }
            Op::Item => {
                let [object, key] = [self.pop(), self.pop()];
                let [object, key] = [key, object];
                let value = self.item(&object, &key)?;
                self.push(value);
            }
            Op::Slice => {
                let [step, stop, start] = [self.pop(), self.pop(), self.pop()];
                let object = self.pop();
                let value = self.slice(&object, [&start, &stop, &step])?;
                self.push(value);
            }
            _ => {}
        }
        Ok(())
    }

    /// Unary and binary operators, comparisons, `and` and `or`, on the top of the stack.
    fn operator(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Not => {
                let value = self.pop();
                self.push(Value::Bool(!value.truth()));
            }
            Op::Neg => {
                let value = self.pop();
                let value = self.negated(&value)?;
                self.push(value);
            }
            Op::Pos => {
                let value = self.pop();
                let value = self.positive(&value)?;
                self.push(value);
            }
            Op::Binary(op) => {
                let [b, a] = [self.pop(), self.pop()];
                let value = self.binary(op, &a, &b)?;
                self.push(value);
            }
            Op::Compare(op) => {
                let [b, a] = [self.pop(), self.pop()];
                let value = self.compare(op, &a, &b)?;
                self.push(Value::Bool(value));
            }
            Op::Chain(op, end) => {
                let [b, a] = [self.pop(), self.pop()];
                if self.compare(op, &a, &b)? {
                    self.push(b);
                } else {
                    self.push(Value::Bool(false));
                    self.jump(end);
                }
            }
            Op::Concat(n) => self.concat(n as usize)?,
            Op::And(target) | Op::Or(target) => {
                let value = self.pop();
                if value.truth() == matches!(op, Op::Or(_)) {
                    self.push(value);
                    self.jump(target);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Makes a list, a tuple or a dictionary of the top of the stack, or unpacks one.
    fn collect(&mut self, op: Op) -> Result<()> {
        match op {
            Op::List(n) => {
                let items = self.take(n as usize)?;
                self.push(Value::List(items));
            }
            Op::Tuple(n) => {
                let items = self.take(n as usize)?;
                self.push(Value::Tuple(items));
            }
            Op::Dict(n) => self.dict(n as usize)?,
            Op::Unpack(n) => self.unpack(n as usize)?,
            _ => {}
        }
        Ok(())
    }

    /// A filter, a test or a call, with its arguments on the stack.
    fn apply(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Filter(filter, shape) => {
                let args = self.args(shape)?;
                let value = self.pop();
                let value = self.filter(filter, value, args)?;
                self.push(value);
            }
            Op::Test(test, shape) => {
                let args = self.args(shape)?;
                let value = self.pop();
                let result = self.test(test, &value, args)?;
                self.push(Value::Bool(result));
            }
            Op::Unknown(what, name) => {
                let name = clip(self.name(name));
                return fail(format!("there is no {what} '{name}'"));
            }
            Op::Call(shape) => {
                let args = self.args(shape)?;
                let callee = self.pop();
                self.call(&callee, args)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins and ends scopes and captured text.
    fn scope_op(&mut self, op: Op) -> Result<()> {
        match op {
            Op::PushScope => self.enter_scope(self.scope)?,
            Op::PopScope => self.leave_scope(),
            Op::Unwind(scopes, captures) => {
                for _ in 0..scopes {
                    self.leave_scope();
                }
                self.outs.truncate(self.outs.len() - usize::from(captures));
            }
            Op::Capture => self.outs.push(Buffer::new(&self.budget)?),
            Op::EndCapture => {
                let text = self.end_capture()?;
                self.push(text);
            }
            _ => {}
        }
        Ok(())
    }

    /// Creates macros, sets their parameters, and returns from them.
    fn macro_op(&mut self, op: Op) -> Result<()> {
        match op {
            Op::Macro(code) => {
                let value = self.new_macro(code)?;
                self.push(value);
            }
            Op::IfGiven(name, target) => {
                let vars = &self.scopes[self.scope as usize].vars;
                self.budget.steps(vars.len() / 8)?;
                if vars.iter().any(|(n, _)| *n == name) {
                    self.jump(target);
                }
            }
            Op::NotGiven(name) => {
                let missing = Missing::Other("a parameter of the macro was not given");
                self.store(name, Value::Undefined(missing))?;
            }
            Op::Return => self.return_from_macro()?,
            _ => {}
        }
        Ok(())
    }

    /// The current output: there is always one text.
    fn out(&mut self) -> &mut Buffer {
        let last = self.outs.len() - 1;
        &mut self.outs[last]
    }

    fn emit(&mut self, value: &Value) -> Result<()> {
        let Some(mut out) = self.outs.pop() else { return Ok(()) };
        let result = self.write(value, &mut out);
        self.outs.push(out);
        result
    }

    fn end_capture(&mut self) -> Result<Value> {
        match self.outs.pop() {
            Some(out) => out.into_value(),
            None => Ok(Value::None),
        }
    }

    /// Pops `n` values into a sequence.
    fn take(&mut self, n: usize) -> Result<Seq> {
        let items = self.stack.drain(self.stack.len() - n..);
        Seq::new(items, &self.budget)
    }

    fn concat(&mut self, n: usize) -> Result<()> {
        let mut out = Buffer::new(&self.budget)?;
        let from = self.stack.len() - n;
        for value in &self.stack[from..] {
            self.write(value, &mut out)?;
        }
        self.stack.truncate(from);
        let value = out.into_value()?;
        self.push(value);
        Ok(())
    }

    fn dict(&mut self, pairs: usize) -> Result<()> {
        let mut map = MapBuilder::new(&self.budget)?;
        let mut items = self.stack.drain(self.stack.len() - 2 * pairs..);
        while let (Some(key), Some(value)) = (items.next(), items.next()) {
            map.push(key, value)?;
        }
        drop(items);
        let value = map.value()?;
        self.push(value);
        Ok(())
    }

    fn unpack(&mut self, n: usize) -> Result<()> {
        let value = self.pop();
        let items = self.items(&value)?;
        if items.len() != n {
            return fail(format!("{n} values are to be unpacked, but there are {}", items.len()));
        }
        self.stack.extend(items.iter().rev().cloned());
        Ok(())
    }

    // Variables.

    fn load(&mut self, name: Name) -> Result<Value> {
        let mut at = self.scope;
        while at != 0 {
            let scope = &self.scopes[at as usize];
            self.budget.steps(1 + scope.vars.len() / 8)?;
            if let Some((_, value)) = scope.vars.iter().find(|(n, _)| *n == name) {
                return Ok(value.clone());
            }
            at = scope.parent;
        }
        let value = self.globals[name as usize].clone();
        Ok(value.unwrap_or(Value::Undefined(Missing::Variable(name))))
    }

    fn store(&mut self, name: Name, value: Value) -> Result<()> {
        if self.scope == 0 {
            self.globals[name as usize] = Some(value);
            return Ok(());
        }
        let scope = &mut self.scopes[self.scope as usize];
        self.budget.steps(scope.vars.len() / 8)?;
        match scope.vars.iter_mut().find(|(n, _)| *n == name) {
            Some((_, slot)) => *slot = value,
            None => {
                scope.lease.resize((scope.vars.len() + 1) * VARIABLE)?;
                scope.vars.push((name, value));
            }
        }
        Ok(())
    }

    fn store_attr(&mut self, namespace: Name, attribute: Name) -> Result<()> {
        let value = self.pop();
        let object = self.load(namespace)?;
        if let Value::Object(at) = object
            && let TemplateObject::Namespace(vars) = &mut self.objects[at as usize]
        {
            let name = self.names[attribute as usize].clone();
            self.budget.steps(vars.len())?;
            match vars.iter_mut().find(|(n, _)| **n == *name) {
                Some((_, slot)) => *slot = value,
                None => {
                    self.objects_lease.resize(self.objects_lease.bytes() + VARIABLE)?;
                    vars.push((name, value));
                }
            }
            return Ok(());
        }
        let name = clip(self.name(namespace));
        fail(format!("'{name}' is no namespace: only attributes of namespaces can be set"))
    }

    /// An attribute of a namespace.
    pub(super) fn namespace_get(
        &self,
        vars: &[(Text, Value)],
        name: &str,
    ) -> Result<Option<Value>> {
        self.budget.steps(vars.len() / 2)?;
        Ok(vars.iter().find(|(n, _)| **n == *name).map(|(_, value)| value.clone()))
    }

    pub(super) fn new_object(&mut self, object: TemplateObject) -> Result<Value> {
        let vars = if let TemplateObject::Namespace(vars) = &object { vars.len() } else { 0 };
        let more = (vars + 2) * VARIABLE;
        self.objects_lease.resize(self.objects_lease.bytes() + more)?;
        let index = self.objects.len() as u32;
        self.objects.push(object);
        Ok(Value::Object(index))
    }

    // Scopes.

    fn enter_scope(&mut self, parent: u32) -> Result<()> {
        self.scope = match self.free.pop() {
            Some(at) => {
                self.scopes[at as usize].parent = parent;
                at
            }
            None => {
                // The scope itself is charged with the objects: it is never freed.
                self.objects_lease.resize(self.objects_lease.bytes() + 2 * VARIABLE)?;
                let lease = self.budget.lease(0)?;
                self.scopes.push(Scope { parent, vars: Vec::new(), captured: false, lease });
                (self.scopes.len() - 1) as u32
            }
        };
        Ok(())
    }

    fn leave_scope(&mut self) {
        let at = self.scope;
        let scope = &mut self.scopes[at as usize];
        self.scope = scope.parent;
        if !scope.captured {
            // Except for a little, memory without a lease is not kept either.
            scope.vars.clear();
            scope.vars.shrink_to(8);
            // Shrinking cannot fail.
            let _ = scope.lease.resize(0);
            self.free.push(at);
        }
    }

    /// Creates a macro that captures the scope, which therefore stays, as do the scopes around it.
    fn new_macro(&mut self, code: u32) -> Result<Value> {
        let mut at = self.scope;
        while !self.scopes[at as usize].captured {
            self.scopes[at as usize].captured = true;
            at = self.scopes[at as usize].parent;
        }
        self.new_object(TemplateObject::Macro { code, scope: self.scope })
    }

    // Loops.

    fn loop_op(&mut self, op: Op) -> Result<()> {
        if let Op::ForStart(pick) = op {
            return self.begin_loop(pick);
        }
        // The compiler emits these only inside a loop.
        let place = self.loops.len() - 1;
        let state = &mut self.loops[place];
        match op {
            Op::ForNext(end) => {
                if state.at == state.items.len()
                    && let Picking::Yes(picked, _) =
                        std::mem::replace(&mut state.picking, Picking::Done)
                {
                    state.items = Seq::new(picked, &self.budget)?;
                    state.at = 0;
                }
                let Some(item) = state.items.get(state.at).cloned() else {
                    self.jump(end);
                    return Ok(());
                };
                state.at += 1;
                self.enter_scope(self.scope)?;
                self.push(item);
            }
            Op::ForPicked(body) => {
                if matches!(state.picking, Picking::Done) {
                    self.jump(body);
                }
            }
            Op::ForTest(next) => {
                let passed = self.pop().truth();
                let state = &mut self.loops[place];
                let mut go_on = passed;
                if let Picking::Yes(picked, lease) = &mut state.picking {
                    go_on = false;
                    if passed {
                        lease.resize((picked.len() + 1) * 2 * size_of::<Value>())?;
                        picked.push(state.items[state.at - 1].clone());
                    }
                }
                if !go_on {
                    self.leave_scope();
                    self.jump(next);
                }
            }
            Op::ForBody => {
                let item = state.items[state.at - 1].clone();
                state.index0 = state.rounds;
                state.rounds += 1;
                state.previous = state.current.replace(item);
                let value = Value::Loop(place as u32, state.number);
                self.store(self.program.loop_, value)?;
            }
            Op::ForDone => state.done = true,
            Op::ForEnd(after) => {
                let done = state.done;
                self.loops.pop();
                if done {
                    self.jump(after);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Begins a loop over the value on the stack; with `pick`, its items are tested before it runs.
    fn begin_loop(&mut self, pick: bool) -> Result<()> {
        let value = self.pop();
        let items = self.items(&value)?;
        let picking =
            if pick { Picking::Yes(Vec::new(), self.budget.lease(0)?) } else { Picking::No };
        self.loops_begun = self.loops_begun.wrapping_add(1);
        self.loops.push(LoopState {
            number: self.loops_begun,
            items,
            at: 0,
            index0: 0,
            previous: None,
            current: None,
            changed: None,
            picking,
            rounds: 0,
            done: false,
        });
        Ok(())
    }

    /// The loop that a value refers to.
    pub(super) fn loop_state(&self, place: u32, number: u32) -> Result<&LoopState> {
        match self.loops.get(place as usize).filter(|state| state.number == number) {
            Some(state) => Ok(state),
            None => fail("a loop is asked for after its end"),
        }
    }

    /// `loop.changed(...)`.
    pub(super) fn loop_changed(&mut self, place: u32, number: u32, values: Seq) -> Result<bool> {
        let before = self.loop_state(place, number)?.changed.clone();
        if let Some(before) = before
            && self.equal(&Value::Tuple(before), &Value::Tuple(values.clone()))?
        {
            return Ok(false);
        }
        self.loops[place as usize].changed = Some(values);
        Ok(true)
    }

    // Calls.

    /// Pops a call's arguments.
    fn args(&mut self, shape: u32) -> Result<Args> {
        let shape = &self.program.shapes[shape as usize];
        let caller = shape.caller.then(|| self.pop());
        let star_star = shape.star_star.then(|| self.pop());
        let star = shape.star.then(|| self.pop());
        let named_from = self.stack.len() - shape.named.len();
        let values = self.stack.drain(named_from..);
        let names = shape.named.iter().map(|name| self.names[*name as usize].clone());
        let mut named: Vec<(Text, Value)> = names.zip(values).collect();
        let mut positional = self.stack.split_off(named_from - shape.positional as usize);
        let mut lease = None;
        if let Some(star) = star {
            let items = self.items(&star)?;
            self.budget.steps(items.len())?;
            lease = Some(self.budget.lease((items.len() + positional.len()) * 64)?);
            positional.extend(items.iter().cloned());
        }
        if let Some(star_star) = star_star {
            let Value::Dict(map) = &star_star else {
                return fail("what follows '**' must be a dictionary");
            };
            self.budget.steps(map.len())?;
            let bytes = lease.as_ref().map_or(0, Lease::bytes) + map.len() * 128;
            match &mut lease {
                Some(lease) => lease.resize(bytes)?,
                None => lease = Some(self.budget.lease(bytes)?),
            }
            for (key, value) in map.entries() {
                let Value::Text(key) = key else { return fail("arguments are named by strings") };
                named.push((key.clone(), value.clone()));
            }
        }
        if let Some(caller) = caller {
            named.push((self.names[self.program.caller as usize].clone(), caller));
        }
        Ok(Args { positional, named, _lease: lease })
    }

    /// Calls a value: pushes its result, or begins a macro that will.
    fn call(&mut self, callee: &Value, args: Args) -> Result<()> {
        let result = match callee {
            Value::Object(at) => match &mut self.objects[*at as usize] {
                TemplateObject::Macro { code, scope } => {
                    let (code, scope) = (*code, *scope);
                    return self.call_macro(code, scope, args);
                }
                TemplateObject::Joiner { separator, used } => {
                    args.bind("a joiner", [])?;
                    match std::mem::replace(used, true) {
                        false => Value::text("", &self.budget)?,
                        true => separator.clone(),
                    }
                }
                _ => return fail("a namespace cannot be called"),
            },
            Value::Builtin(builtin) => self.call_builtin(*builtin, args)?,
            Value::Method(bound) => self.call_method(&bound.of, bound.method, args)?,
            Value::Loop(..) => return fail("recursive loops are not supported"),
            value => {
                self.defined(value)?;
                return fail(format!("{} cannot be called", value.type_name()));
            }
        };
        self.push(result);
        Ok(())
    }

    fn call_macro(&mut self, code: u32, scope: u32, args: Args) -> Result<()> {
        if self.frames.len() >= MAX_CALLS {
            return Err(RenderStop::TooDeep("its macros call each other too deeply"));
        }
        self.frames.push(Frame {
            back: self.pc as u32,
            scope: self.scope,
            stack: self.stack.len(),
            loops: self.loops.len(),
        });
        self.enter_scope(scope)?;
        self.outs.push(Buffer::new(&self.budget)?);
        self.bind_macro(code, args)?;
        self.jump(self.program.macros[code as usize].begin);
        Ok(())
    }

    /// Binds arguments to a macro's variables, like jinja2's `Macro.__call__`.
    fn bind_macro(&mut self, code: u32, args: Args) -> Result<()> {
        let code = &self.program.macros[code as usize];
        let name = code.name.map_or("a call block's body", |name| self.name(name));
        let mut named = args.named;
        let mut positional = args.positional.into_iter();
        self.budget.steps(code.parameters.len() * (1 + named.len()))?;
        for (&parameter, value) in code.parameters.iter().zip(positional.by_ref()) {
            self.store(parameter, value)?;
        }
        let given = self.scopes[self.scope as usize].vars.len();
        for &parameter in code.parameters.iter().skip(given) {
            let parameter_name = self.name(parameter);
            if let Some(at) = named.iter().position(|(name, _)| **name == *parameter_name) {
                let (_, value) = named.remove(at);
                self.store(parameter, value)?;
            }
        }
        if code.caller && !code.parameters.contains(&self.program.caller) {
            let at = named.iter().position(|(name, _)| &**name == "caller");
            let caller = match at {
                Some(at) => named.remove(at).1,
                None => Value::Undefined(Missing::Other("no caller is defined")),
            };
            self.store(self.program.caller, caller)?;
        }
        if code.kwargs {
            let mut map = MapBuilder::new(&self.budget)?;
            for (name, value) in named {
                map.push(Value::Text(name), value)?;
            }
            let map = map.value()?;
            self.store(self.program.kwargs, map)?;
        } else if let Some((extra, _)) = named.first() {
            let (name, extra) = (clip(name), clip(extra));
            return fail(format!("the macro '{name}' takes no argument '{extra}'"));
        }
        if code.varargs {
            let rest = Seq::new(positional, &self.budget)?;
            self.store(self.program.varargs, Value::Tuple(rest))?;
        } else if positional.next().is_some() {
            let (name, most) = (clip(name), code.parameters.len());
            return fail(format!("the macro '{name}' takes at most {most} arguments"));
        }
        Ok(())
    }

    fn return_from_macro(&mut self) -> Result<()> {
        let text = self.end_capture()?;
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        self.leave_scope();
        self.scope = frame.scope;
        self.stack.truncate(frame.stack);
        self.loops.truncate(frame.loops);
        self.pc = frame.back as usize;
        self.push(text);
        Ok(())
    }
}

fn builtin(name: &str) -> Option<Value> {
    Some(Value::Builtin(match name {
        "range" => Builtin::Range,
        "dict" => Builtin::Dict,
        "namespace" => Builtin::Namespace,
        "cycler" => Builtin::Cycler,
        "joiner" => Builtin::Joiner,
        "raise_exception" => Builtin::RaiseException,
        "strftime_now" => Builtin::StrftimeNow,
        _ => return None,
    }))
}
