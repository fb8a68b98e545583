//! Recognises the format of a file by its first bytes, never by its name.
//!
//! Recognising is not reading: a recognised file may still be damaged, and its reader then reports how. Where
//! more than a magic number can distinguish formats, more is checked, so that a file is not attributed to a
//! format that it is not in.
//!
//! A new format is a variant of [`Format`], a line in [`recognise`] and one in [`Format::describe`].

/// Formats of weight files (and of their indexes) that are recognised. Not all have a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// GGUF, of either byte order.
    Gguf,
    /// The index of a model's safetensors files, `model.safetensors.index.json`.
    SafeTensorsIndex,
    /// safetensors.
    SafeTensors,
    /// A zip archive, PyTorch's format since version 1.6.
    TorchZip,
    /// A bare Python pickle, PyTorch's earlier format.
    TorchPickle,
    /// llama.cpp's files before GGUF: `ggml`, `ggmf`, `ggjt`.
    LegacyGgml,
    /// A LoRA adapter of the same time, `ggla`.
    LegacyLora,
    /// A saved session of the same time, `ggsn`.
    LegacySession,
}

/// The number of first bytes that [`recognise`] looks at; fewer suffice if a file is shorter.
pub const HEAD: usize = 4096;

impl Format {
    /// A description of a file in this format, with an article: "a safetensors file".
    pub fn describe(self) -> &'static str {
        match self {
            Format::Gguf => "a GGUF file",
            Format::SafeTensorsIndex => "an index of safetensors files",
            Format::SafeTensors => "a safetensors file",
            Format::TorchZip => "a zip archive, as PyTorch's .pth files are",
            Format::TorchPickle => "a Python pickle, as PyTorch files older than version 1.6 are",
            Format::LegacyGgml => "a legacy GGML file, as llama.cpp used before GGUF",
            Format::LegacyLora => "a legacy GGML adapter (LoRA)",
            Format::LegacySession => "a saved session of llama.cpp",
        }
    }
}

/// The format of a file that begins with `head`. `None` if it is not recognised.
pub fn recognise(head: &[u8]) -> Option<Format> {
    match head {
        [b'G', b'G', b'U', b'F', ..] => Some(Format::Gguf),
        [b'P', b'K', 3, 4, ..] => Some(Format::TorchZip),
        [b'l', b'm', b'g', b'g', ..]
        | [b'f', b'm', b'g', b'g', ..]
        | [b't', b'j', b'g', b'g', ..] => Some(Format::LegacyGgml),
        // The same, written by a big-endian machine; its reader refuses these by name.
        [b'g', b'g', b'm', b'l' | b'f', ..] | [b'g', b'g', b'j', b't', ..] => {
            Some(Format::LegacyGgml)
        }
        [b'a', b'l', b'g', b'g', ..] => Some(Format::LegacyLora),
        [b'n', b's', b'g', b'g', ..] => Some(Format::LegacySession),
        // A length of less than a terabyte (the reader reports if it is too large), then JSON.
        [_, _, _, _, _, 0, 0, 0, b'{', json @ ..] if begins_object(json) => {
            Some(Format::SafeTensors)
        }
        [0x80, 2..=5, ..] => Some(Format::TorchPickle),
        _ if begins_index(head) => Some(Format::SafeTensorsIndex),
        _ => None,
    }
}

/// Returns true if the bytes after a `{` can continue a JSON object: a key, or its end.
fn begins_object(json: &[u8]) -> bool {
    matches!(json.trim_ascii_start().first(), None | Some(b'"' | b'}'))
}

/// Returns true if `head` begins a JSON object with a key of an index near the beginning.
fn begins_index(head: &[u8]) -> bool {
    let json = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let Some(inside) = json.strip_prefix(b"{") else { return false };
    inside.trim_ascii_start().starts_with(b"\"weight_map\"")
        || (begins_object(inside) && contains(inside, b"\"weight_map\""))
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_their_first_bytes() {
        let of = recognise;
        assert_eq!(of(b"GGUF\x03\0\0\0\0\0"), Some(Format::Gguf));
        assert_eq!(of(b"PK\x03\x04...."), Some(Format::TorchZip));
        assert_eq!(of(b"\x80\x02\x8a\x0a"), Some(Format::TorchPickle));
        assert_eq!(of(b"lmgg"), Some(Format::LegacyGgml));
        assert_eq!(of(b"fmgg\x01\0\0\0"), Some(Format::LegacyGgml));
        assert_eq!(of(b"tjgg\x01\0\0\0"), Some(Format::LegacyGgml));
        assert_eq!(of(b"ggml"), Some(Format::LegacyGgml));
        assert_eq!(of(b"algg\x01\0\0\0"), Some(Format::LegacyLora));
        assert_eq!(of(b"nsgg\x01\0\0\0"), Some(Format::LegacySession));
        assert_eq!(of(b"\x10\x02\0\0\0\0\0\0{\"a\":1}"), Some(Format::SafeTensors));
        assert_eq!(of(b"\x02\0\0\0\0\0\0\0{}"), Some(Format::SafeTensors));
        // A header whose length happens to begin like another format.
        assert_eq!(of(b"\x80\x02\0\0\0\0\0\0{\"a\":1}"), Some(Format::SafeTensors));
        assert_eq!(of(b"\x7b\x02\0\0\0\0\0\0{  \"a\":1}"), Some(Format::SafeTensors));
        let index = br#"{ "metadata": {"total_size": 1}, "weight_map": {} }"#;
        assert_eq!(of(index), Some(Format::SafeTensorsIndex));
        assert_eq!(of(b"\n{\n \"weight_map\": {"), Some(Format::SafeTensorsIndex));
        for other in
            [&b""[..], b"PK", b"{\"a\": 1}", b"{", b"\x10\x02\0\0\0\0\0\0[\"a\"]", b"GGML", b"\x80"]
        {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn every_format_says_what_it_is() {
        assert_eq!(Format::SafeTensors.describe(), "a safetensors file");
        assert!(Format::LegacyGgml.describe().contains("GGML"));
    }
}
