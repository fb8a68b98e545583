//! The format before GGUF.

use std::collections::HashMap;

use alight_pages::Map;

use super::{Counts, Imatrix, ImatrixEntry};
use crate::ConvertError;

/// Maximum number of bytes of a name of a tensor or of a data set.
const MAX_NAME_BYTES: usize = 4096;

/// Reads everything except the sums.
///
/// # Errors
/// It is not such a file.
pub(super) fn read(map: Map) -> Result<Imatrix, ConvertError> {
    let mut file = Cursor { map: &map, at: 0 };
    let mut entries = HashMap::new();
    let count = file.number("the number of entries")?;
    for _ in 0..count {
        let name = file.text("the length of a name")?;
        let calls = file.number("a number of calls")?;
        let sums = u64::from(file.number("a number of sums")?);
        let offset = file.skip(sums * 4, &name)?;
        // Without a number of calls, the sums are means already.
        let counts = Counts::All(if calls > 0 { calls as f32 } else { 1.0 });
        entries.insert(name, ImatrixEntry { sums, offset, counts });
    }
    if entries.is_empty() {
        return Err(file.wrong("has no entries"));
    }
    // The first files ended here.
    let (chunks, dataset) = match file.is_at_end() {
        true => (None, None),
        false => (
            Some(file.number("the number of chunks")?),
            Some(file.text("the length of the data set's name")?),
        ),
    };
    Ok(Imatrix { map, entries, chunks, dataset })
}

/// A position in the file.
struct Cursor<'m> {
    map: &'m Map,
    at: u64,
}

impl Cursor<'_> {
    fn left(&self) -> u64 {
        self.map.len() as u64 - self.at
    }

    fn is_at_end(&self) -> bool {
        self.left() == 0
    }

    fn wrong(&self, found: &str) -> ConvertError {
        ConvertError::Source {
            path: self.map.path().into(),
            problem: format!(
                "{found} (byte {}): expected an importance matrix, as llama-imatrix writes it",
                self.at
            ),
        }
    }

    /// Moves past `len` bytes, and returns the position of the first.
    fn skip(&mut self, len: u64, what: &str) -> Result<u64, ConvertError> {
        if len > self.left() {
            return Err(self.wrong(&format!("ends within {what:?}")));
        }
        let at = self.at;
        self.at += len;
        Ok(at)
    }

    fn bytes(&mut self, len: usize, what: &str) -> Result<Vec<u8>, ConvertError> {
        let at = self.skip(len as u64, what)?;
        let mut bytes = vec![0; len];
        self.map.read(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Reads a number that is not negative.
    fn number(&mut self, what: &str) -> Result<u32, ConvertError> {
        let bytes = self.bytes(4, what)?;
        let number = i32::from_le_bytes(bytes.try_into().unwrap_or_default());
        u32::try_from(number).map_err(|_| self.wrong(&format!("has {number} for {what}")))
    }

    /// Reads a text that its length precedes.
    fn text(&mut self, what: &str) -> Result<String, ConvertError> {
        let len = self.number(what)? as usize;
        if len > MAX_NAME_BYTES {
            return Err(self.wrong(&format!("has {len} for {what}")));
        }
        let bytes = self.bytes(len, what)?;
        // Some writers ended texts as C does.
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches('\0').to_owned())
    }
}
