//! Models as other programs have them, into one GGUF file.

mod arch;
mod side;
mod tensor;
mod tokenizer;
