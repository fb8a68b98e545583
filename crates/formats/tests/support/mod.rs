//! What several files of tests have in common: files under construction, and what is checked of every result.

pub mod memory;
pub mod raw;
pub mod refused;
pub mod safetensors_dump;
pub mod sentencepiece;
pub mod tokenizer_json;
pub mod torch_check;
pub mod torch_files;
