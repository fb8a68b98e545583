//! llama.cpp files from before GGUF, in one part or several.

use alight_formats::ggml::parts::{self, Split};
use alight_formats::ggml::{self, Era, Ggml, Magic, vocabulary};

use super::find::Found;
use super::side::SideFiles;
use super::tensor::Entry;
use super::tokenizer::Tokens;
use super::{Draft, Request, huggingface, tokenizer};
use crate::ConvertError;
use crate::files::Files;
use crate::write::{Change, Elements, Item, ItemData, Order, Piece};

/// Training parameters of LLaMA 1 and 2; the files have none of them.
const CONTEXT: [u32; 2] = [2048, 4096];
const EPS: [f32; 2] = [1e-6, 1e-5];
/// llama.cpp's value for either, if they could not be distinguished.
const EPS_BETWEEN: f32 = 5e-6;

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
    let mut all = Vec::new();
    let copies = alight_files::copies(files.maps());
    for (map, copy) in files.maps().iter().zip(&copies) {
        let wrong = |source| ConvertError::Ggml { path: map.path().into(), source };
        let parsed = ggml::parse(copy);
        map.check()?;
        let file = parsed.map_err(wrong)?;
        all.push(if request.first_days {
            file.assume_era(Era::Rows).map_err(wrong)?
        } else {
            file
        });
    }
    let path = &found.weights[0];
    let wrong = |source| ConvertError::Parts { path: path.clone(), source };
    let model = parts::merge(&all).map_err(wrong)?;
    let bytes: Vec<&[u8]> = files.maps().iter().map(|map| map.bytes()).collect();
    let same = parts::check_replicas(&model, &bytes);
    files.check()?;
    same.map_err(wrong)?;

    let mut items = Vec::new();
    for tensor in &model.tensors {
        let piece = |piece: &parts::RowPiece| {
            let size = (piece.rows, piece.columns);
            let first_column = piece.first_column;
            let piece = Piece::new(piece.part as usize, piece.offset, size, piece.first_row);
            Piece { first_column, ..piece }
        };
        let from = Elements::Legacy(model.era, tensor.ty);
        items.push(Item {
            name: parts::gguf_name(tensor.name).unwrap_or_else(|| tensor.name.into()),
            ne: tensor.ne[..tensor.n_dims as usize].into(),
            from,
            to: from.current(),
            data: ItemData::Pieces(tensor.pieces.iter().map(piece).collect()),
            heads: None,
            change: Change::None,
            order: Order::Same,
        });
    }
    let mut notes = Vec::new();
    let keys = keys(&model, request, &mut notes);
    let reason = "follows from the numbers of the header";
    debug_assert!(model.tensors.iter().all(|tensor| tensor.split != Split::Skipped));
    Ok(Draft {
        recognised: recognised(&all[0], all.len()),
        architecture: "llama".into(),
        keys,
        tokens: tokens(&all[0], path, side, request, &mut notes)?,
        items,
        skipped: model.skipped.iter().map(|name| ((*name).into(), reason)).collect(),
        notes,
    })
}

fn recognised(first: &Ggml<'_>, parts: usize) -> String {
    let version = first.version.map_or(String::new(), |version| format!(" version {version}"));
    let several = if parts > 1 { format!(", {parts} parts") } else { String::new() };
    format!("legacy {}{version}{several}", first.magic)
}

/// The metadata of the network.
fn keys(
    model: &parts::MergedModel<'_>,
    request: Request<'_>,
    notes: &mut Vec<String>,
) -> Vec<(String, Entry)> {
    let hparams = &model.hparams;
    // LLaMA 2 appeared when files had the last format, and only its largest model shares keys.
    let shares = model.n_head_kv != hparams.n_head;
    let (context, eps) = match (shares, model.era) {
        (true, _) => (CONTEXT[1], EPS[1]),
        (false, Era::Current) => (CONTEXT[0], EPS_BETWEEN),
        (false, _) => (CONTEXT[0], EPS[0]),
    };
    if request.eps.is_none() || request.context.is_none() {
        notes.push(format!(
            "the file does not say which LLaMA it is: taken are norms with {} and {} positions; LLaMA 1 has \
             --eps 1e-6 --context 2048, LLaMA 2 has --eps 1e-5 --context 4096",
            request.eps.unwrap_or(eps),
            request.context.unwrap_or(context),
        ));
    }
    let u32 = |key: &str, value| (format!("llama.{key}"), Entry::U32(value));
    vec![
        ("general.name".into(), Entry::Str("LLaMA".into())),
        u32("vocab_size", hparams.n_vocab),
        u32("context_length", request.context.unwrap_or(context)),
        u32("embedding_length", hparams.n_embd),
        u32("block_count", hparams.n_layer),
        u32("feed_forward_length", u32::try_from(model.n_ff).unwrap_or(u32::MAX)),
        u32("rope.dimension_count", hparams.n_rot),
        u32("attention.head_count", hparams.n_head),
        u32("attention.head_count_kv", model.n_head_kv),
        ("llama.attention.layer_norm_rms_epsilon".into(), Entry::F32(request.eps.unwrap_or(eps))),
        ("llama.rope.freq_base".into(), Entry::F32(10_000.0)),
    ]
}

/// The tokenizer given by the user, or the tokens of the file.
fn tokens(
    first: &Ggml<'_>,
    path: &std::path::Path,
    side: &SideFiles,
    request: Request<'_>,
    notes: &mut Vec<String>,
) -> Result<Tokens, ConvertError> {
    if request.tokenizer.is_some() {
        let vocab = u64::from(first.hparams.n_vocab);
        let read = tokenizer::read(side, "llama", vocab, &[])?;
        return read.ok_or_else(|| huggingface::no_tokenizer(side));
    }
    let wrong = |source| ConvertError::Ggml { path: path.into(), source };
    let tokens = first.vocabulary.to_gguf().map_err(wrong)?;
    if first.magic == Magic::Ggml {
        notes.push(
            "the file has no scores of its tokens, so text will be cut into other tokens than the \
             model has learned: give the original tokenizer.model with --tokenizer"
                .into(),
        );
    }
    let str = |key: &str, value: &str| (format!("tokenizer.ggml.{key}"), Entry::Str(value.into()));
    let id = |key: &str, value| (format!("tokenizer.ggml.{key}_token_id"), Entry::U32(value));
    let keys = vec![
        str("model", "llama"),
        str("pre", "default"),
        (
            "tokenizer.ggml.tokens".into(),
            Entry::Strs(tokens.iter().map(|token| token.text.clone().into_owned()).collect()),
        ),
        (
            "tokenizer.ggml.scores".into(),
            Entry::F32s(tokens.iter().map(|token| token.score).collect()),
        ),
        (
            "tokenizer.ggml.token_type".into(),
            Entry::I32s(tokens.iter().map(|token| token.ty as i32).collect()),
        ),
        id("bos", vocabulary::BEGIN),
        id("eos", vocabulary::END),
        id("unknown", vocabulary::UNKNOWN),
        ("tokenizer.ggml.add_bos_token".into(), Entry::Bool(true)),
        ("tokenizer.ggml.add_eos_token".into(), Entry::Bool(false)),
    ];
    Ok(Tokens { keys, notes: Vec::new() })
}
