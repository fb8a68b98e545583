//! Metadata of a file that nothing reads.
//!
//! A key that is not read may change what other programs compute, so it is reported, unless it is in the table here. Which keys an
//! architecture reads is not written down anywhere: [`Keys`] remembers it while the network is built.

use alight_formats::gguf::Value;

use super::Keys;

/// Keys without an effect on what is computed here, in files of any architecture, with the reason. A `*` at the end stands for
/// anything.
const HARMLESS: [(&str, &str); 21] = [
    ("vocab_size", "the tokens in the file are counted"),
    ("feed_forward_length", "the tensors have the width, if there are dense layers"),
    ("expert_feed_forward_length", "the tensors have the width"),
    ("expert_shared_feed_forward_length", "the tensors have the width"),
    ("expert_shared_count", "the tensors have the width of all of them together"),
    ("tensor_data_layout", "names the order of rows that all files of the architecture have"),
    (
        "rope.scaling.finetuned",
        "says how a scaling was found; architectures to which it says more read it",
    ),
    ("rope.dimension_sections", "in text, all components of a position are the same number"),
    ("rope.mrope_section", "the same, in Ollama's files"),
    ("rope.mrope_interleaved", "the same"),
    ("n_deepstack_layers", "of pictures"),
    ("deepstack_mapping", "of pictures"),
    ("vision.*", "of pictures, in Ollama's files"),
    ("audio.*", "of sound, in Ollama's files"),
    ("mm.*", "of pictures, in Ollama's files"),
    ("image_token_id", "of pictures"),
    ("embedding_length_out", "the tensors have the length"),
    ("dense_2_feat_*", "the tensors have the lengths"),
    ("dense_3_feat_*", "the tensors have the lengths"),
    ("decoder_start_token_id", "of a decoder, which encoders leave out"),
    ("decoder_block_count", "of a decoder, which encoders leave out"),
];

impl Keys<'_, '_> {
    /// The keys under the prefix, in the order of the file, that nothing has read and that are not known to be harmless. A number
    /// that is 0 stands for something that the model does not have.
    pub(crate) fn unread(&self) -> Vec<String> {
        let (read, start) = (self.read.borrow(), self.name(""));
        let unread = self.gguf.metadata.iter().filter(|(name, value)| {
            let key = name.strip_prefix(&*start);
            key.is_some_and(|key| !is_harmless(key)) && !is_zero(value) && !read.contains(*name)
        });
        unread.map(|(name, _)| (*name).to_owned()).collect()
    }
}

/// True if a key is in the table.
fn is_harmless(key: &str) -> bool {
    HARMLESS.iter().any(|(known, _)| match known.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => key == *known,
    })
}

/// True for the number 0. (False is an answer to a question, and not the absence of something.)
fn is_zero(value: &Value<'_>) -> bool {
    match value {
        Value::Bool(_) | Value::Str(_) | Value::Array(_) => false,
        Value::F32(value) => *value == 0.0,
        Value::F64(value) => *value == 0.0,
        Value::U8(0) | Value::U16(0) | Value::U32(0) | Value::U64(0) => true,
        Value::I8(0) | Value::I16(0) | Value::I32(0) | Value::I64(0) => true,
        _ => false,
    }
}
