//! A machine for the pickles of `state_dict()`s: a stack with marks, and a memo. It has only the opcodes that
//! torch's own pickling (protocol 2) uses for dictionaries of tensors; REDUCE and NEWOBJ, which call functions,
//! can only call those in [`super::rebuild`].
//!
//! Every opcode is at least one byte of the pickle and takes a constant number of steps for each value it
//! moves, so time is linear in the pickle's length. Containers are stored in tables and referred to by index: a
//! dictionary that contains itself is not a cycle in memory, and dropping deep nesting does not recurse.

use std::collections::HashMap;

use super::error::PickleError;
use super::globals::Global;
use super::opcodes;
use super::values::{PickledValue, Unpickled};
use super::zip::Zip;
use crate::text::shown;

/// Maximum number of opcodes. A tensor takes about 60.
pub const MAX_STEPS: usize = 8 << 20;
/// Maximum number of values on the stack. Python puts at most 1000 items of a container there at once, but
/// whole tuples.
pub const MAX_STACK: usize = 1 << 20;
/// Maximum number of marks on the stack at once.
pub const MAX_MARKS: usize = 256;
/// Maximum number of entries of the memo.
pub const MAX_MEMO: usize = 4 << 20;
/// Maximum bytes of the name of a module or of something in it.
pub const MAX_GLOBAL: usize = 256;
/// Maximum bytes of an integer; its value is kept if it fits into 64 bits.
pub const MAX_INTEGER: usize = 64;

/// Runs `pickle`, whose storages are records of `zip`.
pub(super) fn load<'a>(pickle: &'a [u8], zip: &Zip<'a>) -> Result<Unpickled<'a>, PickleError> {
    Machine::new(pickle, zip).run()
}

pub(super) struct Machine<'a, 'z> {
    bytes: &'a [u8],
    pos: usize,
    /// The offset of the opcode that is being executed, and its name.
    pub(super) at: usize,
    pub(super) what: &'static str,
    stack: Vec<PickledValue<'a>>,
    marks: Vec<usize>,
    memo: HashMap<u32, PickledValue<'a>>,
    pub(super) read: Unpickled<'a>,
    pub(super) zip: &'z Zip<'a>,
    pub(super) by_key: HashMap<&'a str, u32>,
}

impl<'a, 'z> Machine<'a, 'z> {
    fn new(bytes: &'a [u8], zip: &'z Zip<'a>) -> Self {
        let read = Unpickled {
            root: PickledValue::None,
            lists: Vec::new(),
            dicts: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
        };
        Machine {
            bytes,
            pos: 0,
            at: 0,
            what: "",
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            read,
            zip,
            by_key: HashMap::new(),
        }
    }

    fn run(mut self) -> Result<Unpickled<'a>, PickleError> {
        for _ in 0..MAX_STEPS {
            self.at = self.pos;
            let code = *self.bytes.get(self.pos).ok_or(PickleError::NoStop)?;
            self.pos += 1;
            self.what = opcodes::name(code);
            if code == b'.' {
                return self.stop();
            }
            self.step(code)?;
            if self.stack.len() > MAX_STACK {
                return Err(self.limit("values on the stack", MAX_STACK));
            }
        }
        Err(self.limit("opcodes", MAX_STEPS))
    }

    fn stop(mut self) -> Result<Unpickled<'a>, PickleError> {
        let left = self.bytes.len() - self.pos;
        if left != 0 {
            return Err(PickleError::AfterStop { left });
        }
        match self.stack[..] {
            [root] if self.marks.is_empty() => self.read.root = root,
            _ => {
                return Err(PickleError::StackAtStop { at: self.at, found: self.stack.len() });
            }
        }
        Ok(self.read)
    }

    /// Executes one opcode. The order is that of the list of accepted ones.
    fn step(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            0x80 => {
                let [found] = self.take()?;
                if !(2..=5).contains(&found) {
                    return Err(PickleError::Protocol { found });
                }
            }
            // A frame gives the number of bytes that a reader may fetch at once; only their presence matters.
            0x95 => {
                let len = u64::from_le_bytes(self.take()?);
                if len > (self.bytes.len() - self.pos) as u64 {
                    return Err(self.truncated());
                }
            }
            b'(' if self.marks.len() == MAX_MARKS => return Err(self.limit("marks", MAX_MARKS)),
            b'(' => self.marks.push(self.stack.len()),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let global = Global::find(module, name).ok_or_else(|| PickleError::Global {
                    name: format!("{module}.{name}").into(),
                    at: self.at,
                })?;
                self.push(PickledValue::Global(global));
            }
            b'R' => {
                let (args, callee) = (self.pop()?, self.pop()?);
                let made = self.call(callee, args)?;
                self.push(made);
            }
            0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                let PickledValue::Global(Global::OrderedDict) = class else {
                    return Err(self.operand(class, "collections.OrderedDict"));
                };
                let made = self.call(class, args)?;
                self.push(made);
            }
            b'b' => {
                // Attributes of a dictionary (torch's _metadata: versions of modules). They are not among its
                // items, so they are dropped.
                let (_state, object) = (self.pop()?, self.pop()?);
                let PickledValue::Dict(_) = object else {
                    return Err(self.operand(object, "a dictionary"));
                };
                self.push(object);
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(storage);
            }
            b'}' => {
                let dict = self.dict();
                self.push(dict);
            }
            b']' => {
                let list = self.list(Vec::new());
                self.push(PickledValue::List(list));
            }
            b')' => self.tuple(0)?,
            0x8f => self.push(PickledValue::Set),
            b't' => {
                let mark = self.mark()?;
                self.tuple(self.stack.len() - mark)?;
            }
            0x85..=0x87 => self.tuple(usize::from(code - 0x84))?,
            b'a' | b'e' | b's' | b'u' => self.step_items(code)?,
            _ => return self.step_value(code),
        }
        Ok(())
    }

    /// [`step`](Machine::step) for opcodes that put items into a list or a dictionary.
    fn step_items(&mut self, code: u8) -> Result<(), PickleError> {
        match code {
            b'a' => {
                let value = self.pop()?;
                self.append(self.stack.len(), Some(value))
            }
            b'e' => {
                let mark = self.mark()?;
                self.append(mark, None)
            }
            b's' => {
                self.need(3)?;
                self.set_items(self.stack.len() - 2)
            }
            _ => {
                let mark = self.mark()?;
                self.set_items(mark)
            }
        }
    }

    /// [`step`](Machine::step) for opcodes with a value in the pickle itself, and for opcodes of the memo.
    fn step_value(&mut self, code: u8) -> Result<(), PickleError> {
        let value = match code {
            b'N' => PickledValue::None,
            0x88 => PickledValue::Bool(true),
            0x89 => PickledValue::Bool(false),
            b'J' => PickledValue::Int(i32::from_le_bytes(self.take()?).into()),
            b'K' => PickledValue::Int(self.byte()?.into()),
            b'M' => PickledValue::Int(u16::from_le_bytes(self.take()?).into()),
            b'G' => PickledValue::Float(f64::from_be_bytes(self.take()?)),
            0x8a => {
                let len = self.byte()?;
                self.long(len.into())?
            }
            b'X' => {
                let len = self.u32()?;
                PickledValue::Str(self.text(len as usize)?)
            }
            b'U' => {
                let len = self.byte()?;
                PickledValue::Str(self.text(len.into())?)
            }
            b'q' => {
                let index = self.byte()?;
                return self.put(index.into());
            }
            b'r' => {
                let index = self.u32()?;
                return self.put(index);
            }
            b'h' => {
                let index = self.byte()?;
                return self.get(index.into());
            }
            b'j' => {
                let index = self.u32()?;
                return self.get(index);
            }
            code => return Err(PickleError::Opcode { code, name: self.what, at: self.at }),
        };
        self.push(value);
        Ok(())
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        let [byte] = self.take()?;
        Ok(byte)
    }

    fn u32(&mut self) -> Result<u32, PickleError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn push(&mut self, value: PickledValue<'a>) {
        self.stack.push(value);
    }

    /// Checks that at least `count` values are on the stack above the last mark.
    fn need(&self, count: usize) -> Result<(), PickleError> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() - floor < count {
            return Err(self.underflow());
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<PickledValue<'a>, PickleError> {
        self.need(1)?;
        self.stack.pop().ok_or_else(|| self.underflow())
    }

    /// Removes the last mark and returns its position: the start of the values above it.
    fn mark(&mut self) -> Result<usize, PickleError> {
        self.marks.pop().ok_or_else(|| self.underflow())
    }

    fn put(&mut self, index: u32) -> Result<(), PickleError> {
        let value = self.pop()?;
        self.push(value);
        self.memo.insert(index, value);
        if self.memo.len() > MAX_MEMO {
            return Err(self.limit("entries of the memo", MAX_MEMO));
        }
        Ok(())
    }

    fn get(&mut self, index: u32) -> Result<(), PickleError> {
        let value = self.memo.get(&index).copied();
        self.push(value.ok_or(PickleError::NoMemo { index, at: self.at })?);
        Ok(())
    }

    /// Adds a list or tuple and returns its index.
    fn list(&mut self, items: Vec<PickledValue<'a>>) -> u32 {
        // At most one per opcode, so the number fits.
        self.read.lists.push(items);
        (self.read.lists.len() - 1) as u32
    }

    /// Adds a dictionary.
    pub(super) fn dict(&mut self) -> PickledValue<'a> {
        self.read.dicts.push(Vec::new());
        PickledValue::Dict((self.read.dicts.len() - 1) as u32)
    }

    /// Replaces the last `count` values with a tuple.
    fn tuple(&mut self, count: usize) -> Result<(), PickleError> {
        self.need(count)?;
        let items = self.stack.split_off(self.stack.len() - count);
        let tuple = self.list(items);
        self.push(PickledValue::Tuple(tuple));
        Ok(())
    }

    /// Moves the values on the stack from `from` on, and `value`, into the list below.
    fn append(&mut self, from: usize, value: Option<PickledValue<'a>>) -> Result<(), PickleError> {
        let items = self.stack.split_off(from);
        self.need(1)?;
        let Some(PickledValue::List(list)) = self.stack.last().copied() else {
            return Err(self.operand(self.stack[from - 1], "a list"));
        };
        self.read.lists[list as usize].extend(items.into_iter().chain(value));
        Ok(())
    }

    /// Moves keys and values from `from` on into the dictionary below.
    fn set_items(&mut self, from: usize) -> Result<(), PickleError> {
        let items = self.stack.split_off(from);
        self.need(1)?;
        let Some(PickledValue::Dict(dict)) = self.stack.last().copied() else {
            return Err(self.operand(self.stack[from - 1], "a dictionary"));
        };
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.underflow());
        }
        self.read.dicts[dict as usize].extend(pairs.iter().map(|[key, value]| (*key, *value)));
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let chunk = self.bytes[self.pos..].first_chunk::<N>().ok_or_else(|| self.truncated())?;
        self.pos += N;
        Ok(*chunk)
    }

    fn slice(&mut self, len: usize) -> Result<&'a [u8], PickleError> {
        let (slice, _) =
            self.bytes[self.pos..].split_at_checked(len).ok_or_else(|| self.truncated())?;
        self.pos += len;
        Ok(slice)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, PickleError> {
        let bytes = self.slice(len)?;
        self.utf8(bytes)
    }

    fn utf8(&self, bytes: &'a [u8]) -> Result<&'a str, PickleError> {
        std::str::from_utf8(bytes)
            .map_err(|_| PickleError::NotUtf8 { at: self.at, text: shown(bytes).into() })
    }

    /// Returns the bytes up to the next newline, which is consumed too.
    fn line(&mut self) -> Result<&'a str, PickleError> {
        let rest = &self.bytes[self.pos..];
        let window = &rest[..rest.len().min(MAX_GLOBAL + 1)];
        let Some(len) = window.iter().position(|byte| *byte == b'\n') else {
            return Err(match window.len() > MAX_GLOBAL {
                true => self.limit("bytes of a global's name", MAX_GLOBAL),
                false => self.truncated(),
            });
        };
        self.pos += len + 1;
        self.utf8(&rest[..len])
    }

    /// Reads an integer of `len` bytes, two's complement.
    fn long(&mut self, len: usize) -> Result<PickledValue<'a>, PickleError> {
        if len > MAX_INTEGER {
            return Err(PickleError::LongInteger { at: self.at, bytes: len, limit: MAX_INTEGER });
        }
        let bytes = self.slice(len)?;
        let sign = if bytes.last().is_some_and(|byte| *byte >= 0x80) { 0xff } else { 0 };
        let mut wide = [sign; 8];
        let (low, high) = bytes.split_at(len.min(8));
        wide[..low.len()].copy_from_slice(low);
        // The value is the low 64 bits only if all bytes above repeat their sign.
        let extended = if wide[7] >= 0x80 { 0xff } else { 0 };
        Ok(match extended == sign && high.iter().all(|byte| *byte == sign) {
            true => PickledValue::Int(i64::from_le_bytes(wide)),
            false => PickledValue::BigInt,
        })
    }

    fn truncated(&self) -> PickleError {
        PickleError::Truncated { what: self.what, at: self.at }
    }

    fn underflow(&self) -> PickleError {
        PickleError::Underflow { what: self.what, at: self.at }
    }

    fn limit(&self, what: &'static str, limit: usize) -> PickleError {
        PickleError::Limit { what, limit, at: self.at }
    }

    pub(super) fn operand(&self, found: PickledValue<'_>, expected: &'static str) -> PickleError {
        PickleError::Operand { what: self.what, at: self.at, found: found.kind(), expected }
    }
}
