//! llama-server's own endpoints, one file each.

pub(crate) mod apply_template;
pub(crate) mod completion;
pub(crate) mod infill;
pub(crate) mod lora_adapters;
pub(crate) mod metrics;
pub(crate) mod props;
mod settings;
pub(crate) mod slot_files;
pub(crate) mod slots;
pub(crate) mod tokenize;
