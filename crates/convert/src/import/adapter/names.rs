//! The tensors of a PEFT folder by what they change.

use std::collections::BTreeMap;

use super::super::tensor::Tensor;

/// Before the names of the model's own modules.
const PREFIX: &str = "base_model.model.";
/// Before the names of modules that another wrapper has, which takes one parameter of it.
const INNER: &str = ".base_layer";

/// The tensors that an adapter has for a module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModuleTensors<'t> {
    /// `[r, in]`; that of an embedding is `[r, vocabulary]`.
    pub(super) a: Option<&'t Tensor>,
    /// `[out, r]`
    pub(super) b: Option<&'t Tensor>,
    /// `[out]`, of the second factor.
    pub(super) bias: Option<&'t Tensor>,
    /// `[out]`
    pub(super) magnitude: Option<&'t Tensor>,
    /// True if it is an embedding.
    pub(super) embedding: bool,
}

/// The tensors of a PEFT folder.
#[derive(Debug, Default)]
pub(super) struct Sorted<'t> {
    /// By the path of the module in the model, and by how many wrappers are around it: the outermost first.
    pub(super) modules: BTreeMap<(String, usize), ModuleTensors<'t>>,
    /// Tensors in place of the base's, by the base's name.
    pub(super) full: BTreeMap<String, &'t Tensor>,
    /// Weights of the base itself, by the base's name.
    pub(super) copies: BTreeMap<String, &'t Tensor>,
}

impl<'t> Sorted<'t> {
    /// Sorts tensors.
    ///
    /// # Errors
    /// Why a tensor cannot be used.
    pub(super) fn read(tensors: &'t [Tensor]) -> Result<Sorted<'t>, String> {
        let mut sorted = Sorted::default();
        for tensor in tensors {
            sorted.add(tensor)?;
        }
        Ok(sorted)
    }

    fn add(&mut self, tensor: &'t Tensor) -> Result<(), String> {
        let name = tensor.name.strip_prefix(PREFIX).unwrap_or(&tensor.name);
        if name.contains("trainable_tokens") {
            return Err(format!(
                "tensor \"{}\" has rows of the embedding, which GGUF has no form for (trainable_token_indices)",
                tensor.name
            ));
        }
        // The adapter's own name is in some files.
        let short = name.replace(".default", "");
        let Some(at) = short.find(".lora_") else {
            let base = short.replace(".modules_to_save", "").replace(".original_module", "");
            let is_copy = name.contains(".original_module") || base.ends_with(".base_layer.weight");
            let base = base.replace(INNER, "");
            let all = if is_copy { &mut self.copies } else { &mut self.full };
            return match all.insert(base, tensor) {
                None => Ok(()),
                Some(other) => Err(format!(
                    "tensors \"{}\" and \"{}\" are for the same",
                    other.name, tensor.name
                )),
            };
        };
        let (path, what) = short.split_at(at);
        let mut module = path;
        let mut depth = 0;
        while let Some(outer) = module.strip_suffix(INNER) {
            (module, depth) = (outer, depth + 1);
        }
        let entry = self.modules.entry((module.to_owned(), depth)).or_default();
        let place = match what {
            ".lora_A.weight" => &mut entry.a,
            ".lora_B.weight" => &mut entry.b,
            ".lora_B.bias" => &mut entry.bias,
            ".lora_magnitude_vector" | ".lora_magnitude_vector.weight" => &mut entry.magnitude,
            ".lora_embedding_A" => {
                entry.embedding = true;
                &mut entry.a
            }
            ".lora_embedding_B" => {
                entry.embedding = true;
                &mut entry.b
            }
            _ => {
                return Err(format!(
                    "tensor \"{}\" has no meaning that is known in an adapter",
                    tensor.name
                ));
            }
        };
        match place.replace(tensor) {
            None => Ok(()),
            Some(other) => {
                Err(format!("tensors \"{}\" and \"{}\" are for the same", other.name, tensor.name))
            }
        }
    }
}
