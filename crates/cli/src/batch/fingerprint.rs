//! The origin of a result, in a few bytes. Results carry it, so that a run continues with those of its own model, options and
//! lines, and with no others.

use std::fmt;

use sha2::{Digest, Sha256};

/// Two hashes. They are the same in every version that computes the same answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of the model and the options, which all lines share.
    pub run: u64,
    /// Of the line.
    pub line: u64,
}

impl Fingerprint {
    /// Parses a fingerprint.
    pub fn parse(text: &str) -> Option<Fingerprint> {
        let (run, line) = text.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Fingerprint { run: number(run)?, line: number(line)? })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.run, self.line)
    }
}

/// Returns the hash of some bytes.
pub fn hash(bytes: &[u8]) -> u64 {
    let first = Sha256::digest(bytes).into_iter().take(8);
    first.fold(0, |hash, byte| hash << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again() {
        let made = Fingerprint { run: 7, line: hash(b"abc") };
        assert_eq!(made.to_string(), "0000000000000007-ba7816bf8f01cfea");
        assert_eq!(Fingerprint::parse(&made.to_string()), Some(made));
        assert_eq!(Fingerprint::parse("x-1"), None);
    }
}
