//! The wire format of Protocol Buffers, as far as SentencePiece's models need it: varints, 32-bit and 64-bit
//! values, and byte strings. From the public description of the encoding.
//!
//! Groups, which the language dropped after its second version, are refused. Nothing is copied.

use super::TokenizerError;

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FieldValue<'a> {
    Varint(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub number: u32,
    pub value: FieldValue<'a>,
    /// The name of its message.
    message: &'static str,
    /// Its offset in the file.
    at: usize,
    /// The offset of its value in the file, if the value is bytes.
    inside: usize,
}

/// The fields of a message, in order. Ends after the first error.
pub(super) struct Fields<'a> {
    message: &'static str,
    bytes: &'a [u8],
    /// The offset of `bytes` in the file.
    base: usize,
    at: usize,
}

impl<'a> Fields<'a> {
    /// The fields of the message that is the whole file.
    pub fn of_file(message: &'static str, bytes: &'a [u8]) -> Fields<'a> {
        Fields { message, bytes, base: 0, at: 0 }
    }

    fn wrong<T>(&self, problem: &'static str) -> Result<T, TokenizerError> {
        Err(TokenizerError::Wire { message: self.message, at: self.base + self.at, problem })
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at) else {
                return self.wrong("the file is cut short in a number");
            };
            // Only one bit of the tenth byte is used.
            if shift == 63 && byte > 1 {
                return self.wrong("a number has more than 64 bits");
            }
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        self.wrong("a number has more than 64 bits")
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], TokenizerError> {
        let found = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let Some(found) = found else {
            return self.wrong("the file is cut short in a value");
        };
        self.at += N;
        Ok(*found)
    }

    fn field(&mut self) -> Result<Field<'a>, TokenizerError> {
        let at = self.base + self.at;
        let tag = self.varint()?;
        let number = match u32::try_from(tag >> 3) {
            Ok(number @ 1..=0x1fff_ffff) => number,
            _ => return self.wrong("the number of a field is not from 1 to 2^29 - 1"),
        };
        let mut inside = 0;
        let value = match tag & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => FieldValue::Fixed64(u64::from_le_bytes(self.take()?)),
            5 => FieldValue::Fixed32(u32::from_le_bytes(self.take()?)),
            2 => {
                let len = self.varint()?;
                let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
                let Some(bytes) = end.and_then(|end| self.bytes.get(self.at..end)) else {
                    return self.wrong("a field is longer than what is left of its message");
                };
                inside = self.base + self.at;
                self.at += bytes.len();
                FieldValue::Bytes(bytes)
            }
            3 | 4 => return self.wrong("a group, which SentencePiece's models do not have"),
            _ => return self.wrong("wire type 6 or 7, which there is not"),
        };
        Ok(Field { number, value, message: self.message, at, inside })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, TokenizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.at = self.bytes.len();
        }
        Some(field)
    }
}

impl<'a> Field<'a> {
    fn wrong<T>(&self, expected: u8) -> Result<T, TokenizerError> {
        let found = match self.value {
            FieldValue::Varint(_) => 0,
            FieldValue::Fixed64(_) => 1,
            FieldValue::Bytes(_) => 2,
            FieldValue::Fixed32(_) => 5,
        };
        let Field { message, at, number: field, .. } = *self;
        Err(TokenizerError::WireType { message, at, field, found, expected })
    }

    pub fn varint(&self) -> Result<u64, TokenizerError> {
        if let FieldValue::Varint(value) = self.value { Ok(value) } else { self.wrong(0) }
    }

    pub fn bool(&self) -> Result<bool, TokenizerError> {
        Ok(self.varint()? != 0)
    }

    pub fn f32(&self) -> Result<f32, TokenizerError> {
        if let FieldValue::Fixed32(bits) = self.value {
            Ok(f32::from_bits(bits))
        } else {
            self.wrong(5)
        }
    }

    pub fn bytes(&self) -> Result<&'a [u8], TokenizerError> {
        if let FieldValue::Bytes(bytes) = self.value { Ok(bytes) } else { self.wrong(2) }
    }

    /// The fields of the message in this field.
    pub fn message(&self, message: &'static str) -> Result<Fields<'a>, TokenizerError> {
        Ok(Fields { message, bytes: self.bytes()?, base: self.inside, at: 0 })
    }
}
