//! Percent-encoding of addresses.

/// Decodes a part of an address: each `%` with two digits becomes a byte.
pub fn decoded(part: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), part);
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits =
            after.get(..2).filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(b'%'));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_addresses_are_decoded() {
        for (part, wanted) in [
            ("a", "a"),
            ("org%2Fmodel%3aQ4", "org/model:Q4"),
            ("%C3%A9%", "é%"),
            ("%2", "%2"),
            ("%zz%+1%é", "%zz%+1%é"),
        ] {
            assert_eq!(decoded(part), wanted);
        }
    }
}
