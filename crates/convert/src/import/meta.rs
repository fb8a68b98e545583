//! Meta's folders: `params.json`, and `consolidated.NN.pth`, each with a share of every matrix.

mod params;
mod split;

use std::collections::HashMap;

use alight_formats::ggml::parts::gguf_name;

use super::find::Found;
use super::side::SideFiles;
use super::tensor::Tensor;
use super::{Draft, Request, huggingface, tokenizer, torch};
use crate::ConvertError;
use crate::files::Files;
use crate::write::{Change, Item, Order};
use params::Params;

/// Reads all parts.
///
/// # Errors
/// One of them is wrong, or they do not belong together.
pub(super) fn read(
    found: &Found,
    files: &Files,
    side: &SideFiles,
    request: Request<'_>,
) -> Result<Draft, ConvertError> {
    let mut parts: Vec<HashMap<String, Tensor>> = Vec::new();
    let mut order = Vec::new();
    for (file, map) in files.maps().iter().enumerate() {
        let tensors = torch::of_file(map, file)?;
        if file == 0 {
            order = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        }
        parts.push(tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect());
    }
    let params = Params::read(side, found, &parts[0])?;
    let model = split::Model { maps: files.maps(), parts: &parts, params: &params };
    model.check_count()?;
    model.check_names(&order)?;
    let (mut items, mut skipped) = (Vec::new(), Vec::new());
    for name in &order {
        let Some(gguf) = gguf_name(name) else {
            skipped.push((name.clone(), "follows from the configuration"));
            continue;
        };
        let (whole, data) = model.whole(name)?;
        let from = parts[0][name].elements(files.maps())?;
        items.push(Item {
            name: gguf,
            ne: whole,
            from,
            to: from.current(),
            data,
            heads: None,
            change: Change::None,
            order: Order::Same,
        });
    }
    model.check_layers(&items)?;
    items.extend(
        params
            .rope_factors()
            .map(|factors| huggingface::computed("rope_freqs.weight".into(), factors)),
    );
    // Meta's folders of the first models have the tokenizer one level up.
    let above = found.folder.join("..");
    let nearby = request.tokenizer.is_none() && !found.folder.join("tokenizer.model").exists();
    let side = match nearby && above.join("tokenizer.model").is_file() {
        true => &SideFiles::new(&found.folder, Some(&above), &side.small),
        false => side,
    };
    let mut notes = Vec::new();
    let keys = params.keys(request, &mut notes);
    let tokens = tokenizer::read(side, "llama", params.vocab, &[])?;
    let several = if parts.len() == 1 { "1 part".into() } else { format!("{} parts", parts.len()) };
    Ok(Draft {
        recognised: format!("Meta's checkpoint, {several}"),
        architecture: "llama".into(),
        keys,
        tokens: tokens.ok_or_else(|| huggingface::no_tokenizer(side))?,
        items,
        skipped,
        notes,
    })
}
