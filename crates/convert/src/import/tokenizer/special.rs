//! Ids of tokens with a special meaning, and whether they are put around a text. The order of the
//! files is that of `SpecialVocab` in llama.cpp's package `gguf`: the names in
//! `tokenizer_config.json`, then the ids in `config.json`. The tokens' own file comes last.

use alight_formats::tokenizer::json;
use alight_text::tokenizer::MAX_END_IDS;
use serde_json::{Map, Value};

use super::super::side::SideFiles;
use super::base::Base;
use super::config::TokenizerConfig;
use crate::ConvertError;

/// Names at Hugging Face and in GGUF (`seperator` is spelled so there).
const NAMES: [(&str, &str); 8] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("mask", "mask"),
    ("eot", "eot"),
    ("eom", "eom"),
];

/// In the order in which they are written.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Special {
    /// GGUF name, id.
    pub ids: Vec<(&'static str, u32)>,
    /// GGUF name, whether it is added.
    pub add: Vec<(&'static str, bool)>,
    /// All tokens that end an answer, each once, if the files list more than one: the end of text first.
    pub ends: Vec<u32>,
}

impl Special {
    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn get(&self, name: &str) -> Option<u32> {
        self.ids.iter().find(|(known, _)| *known == name).map(|(_, id)| *id)
    }

    /// Sets an id that is not set yet.
    fn id(&mut self, name: &'static str, id: u32) {
        if !self.has(name) {
            self.ids.push((name, id));
        }
    }

    fn add(&mut self, name: &'static str, add: bool) {
        match self.add.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = add,
            None => self.add.push((name, add)),
        }
    }
}

/// Texts of the special tokens, updated from the template.
#[derive(Default)]
struct Spellings {
    bos: Option<String>,
    eos: Option<String>,
    sep: Option<String>,
    cls: Option<String>,
    /// The end of text before the template ended in another token.
    eot: Option<String>,
}

/// Reads the ids and flags from the files.
pub(super) fn find(
    base: &Base,
    config: &TokenizerConfig,
    json: Option<&json::File<'_>>,
    side: &SideFiles,
    notes: &mut Vec<String>,
) -> Result<Special, ConvertError> {
    let mut special = Special::default();
    let owned = |name: &str| config.token(name).map(str::to_owned);
    let mut spellings = Spellings {
        bos: owned("bos_token").or_else(|| owned("cls_token")),
        eos: owned("eos_token").or_else(|| owned("sep_token")),
        sep: owned("sep_token"),
        cls: owned("cls_token"),
        eot: None,
    };
    let mut fixed = false;
    if let Some(json) = json {
        fixed = processors(json, &mut spellings, &mut special, notes);
    }
    for (name, gguf) in NAMES {
        if matches!(name, "eom") || (name == "eot" && spellings.eot.is_none()) {
            continue;
        }
        let flag = config.flag(&format!("add_{name}_token"));
        if let Some(add) = flag.filter(|_| matches!(name, "bos" | "eos" | "sep")) {
            // A byte-level post-processor adds nothing, but the classes of some tokenizers do (Llama's,
            // also for DeepSeek), by this setting. llama.cpp follows the post-processor.
            if !fixed || !special.add.iter().any(|(known, _)| *known == name) {
                special.add(name, add);
            }
        }
        let text = match name {
            "bos" => spellings.bos.clone(),
            "eos" => spellings.eos.clone(),
            "sep" => spellings.sep.clone(),
            "eot" => spellings.eot.clone(),
            _ => owned(&format!("{name}_token")),
        };
        if let Some(id) = text.and_then(|text| token(base, json, &text)) {
            special.id(gguf, id);
        }
    }
    let model = side.tokenizer.json("config.json")?.unwrap_or_default();
    for (name, gguf) in NAMES {
        for id in ids(&model, &format!("{name}_token_id")).into_iter().take(1) {
            match in_range(base, id) {
                Some(id) => special.id(gguf, id),
                None => notes.push(format!(
                    "config.json: {name}_token_id is {id}, which is no token; it is left out"
                )),
            }
        }
    }
    let own = base.special;
    let own = [
        ("bos", own.bos),
        ("eos", own.eos),
        ("unknown", own.unknown),
        ("padding", own.padding),
        ("eot", own.eot),
        ("eom", own.eom),
    ];
    for (name, id) in own {
        if let Some(id) = id.and_then(|id| in_range(base, id.into())) {
            special.id(name, id);
        }
    }
    more_ends(base, &model, side, &mut special, notes);
    for (name, add) in [("bos", base.add_bos), ("eos", base.add_eos)] {
        if let Some(add) = add.filter(|_| !special.add.iter().any(|(known, _)| *known == name)) {
            special.add(name, add);
        }
    }
    Ok(special)
}

/// Returns the id of a text: an added token of `tokenizer.json`, or any token.
fn token(base: &Base, json: Option<&json::File<'_>>, text: &str) -> Option<u32> {
    let added = json.and_then(|json| {
        let found = json.added_tokens.iter().find(|added| added.content.as_str() == text)?;
        in_range(base, found.id.into())
    });
    added.or_else(|| base.id(text))
}

fn in_range(base: &Base, id: i64) -> Option<u32> {
    u32::try_from(id).ok().filter(|id| (*id as usize) < base.slots.len())
}

/// Returns the id or ids under a key, also from the text part of a larger model's configuration.
fn ids(config: &Map<String, Value>, key: &str) -> Vec<i64> {
    let inner = || config.get("text_config")?.get(key);
    match config.get(key).filter(|value| !value.is_null()).or_else(inner) {
        Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_i64).collect(),
        Some(id) => id.as_i64().into_iter().collect(),
        None => Vec::new(),
    }
}

/// A model may list several tokens that end an answer, whereas llama.cpp has keys for the end of text, of turn and of
/// message, and recognises the others by their text only. So the list is kept as well.
fn more_ends(
    base: &Base,
    model: &Map<String, Value>,
    side: &SideFiles,
    special: &mut Special,
    notes: &mut Vec<String>,
) {
    // Mistakes in it are reported where the sampling settings are read.
    let settings = side.tokenizer.json("generation_config.json").ok().flatten().unwrap_or_default();
    let mut ends: Vec<u32> = special.get("eos").into_iter().collect();
    // The first id of config.json has been checked with its other ids.
    for (file, config, checked) in
        [("generation_config.json", &settings, 0), ("config.json", model, 1)]
    {
        let mut left_out = Vec::new();
        for (at, id) in ids(config, "eos_token_id").into_iter().enumerate() {
            match in_range(base, id) {
                Some(id) if ends.contains(&id) => {}
                Some(id) if ends.len() < MAX_END_IDS => ends.push(id),
                None if at < checked => {}
                _ => left_out.push(id),
            }
        }
        if let Some(first) = left_out.first() {
            notes.push(format!(
                "{file}: {} ids of eos_token_id are left out, the first is {first}: they are no tokens, or more than \
                 {MAX_END_IDS}",
                left_out.len()
            ));
        }
    }
    for &id in &ends {
        if !special.has("eos") {
            special.id("eos", id);
        } else if base.slots[id as usize].text == "<|eom_id|>" {
            special.id("eom", id);
        } else if special.get("eos") != Some(id) {
            special.id("eot", id);
        }
    }
    if ends.len() > 1 {
        special.ends = ends;
    }
}

/// Adds the tokens that the post-processor puts around a text. Returns whether that is certain and
/// takes precedence over the flags of the configuration.
fn processors(
    json: &json::File<'_>,
    spellings: &mut Spellings,
    special: &mut Special,
    notes: &mut Vec<String>,
) -> bool {
    let mut fixed = false;
    for step in json.post_processor.as_ref().map(json::Component::steps).unwrap_or_default() {
        match step.kind.as_str() {
            "ByteLevel" => {
                for name in ["bos", "eos"] {
                    if !special.add.iter().any(|(known, _)| *known == name) {
                        special.add(name, false);
                    }
                }
            }
            "RobertaProcessing" => {
                fixed = true;
                for name in ["bos", "eos", "sep"] {
                    special.add(name, true);
                }
            }
            "TemplateProcessing" => {
                fixed = true;
                template(step, spellings, special, notes);
            }
            other => notes.push(format!(
                "the tokenizer's post_processor {:?} is not known; whether special tokens go around \
                 a text is taken from the other files",
                other.chars().take(40).collect::<String>()
            )),
        }
    }
    fixed
}

/// A template of the form `bos A eos`, and `bos A sep B eos` for two texts.
fn template(
    step: &json::Component<'_>,
    spellings: &mut Spellings,
    special: &mut Special,
    notes: &mut Vec<String>,
) {
    let single = step.single.as_deref().unwrap_or_default();
    let (mut first, mut last) = (None, None);
    if let [begin, .., end] = single {
        (first, last) = (begin.token(), end.token());
    }
    if let Some(first) = first {
        let known =
            [&spellings.bos, &spellings.cls].into_iter().flatten().any(|text| text == first);
        if !known && spellings.bos.is_none() {
            spellings.bos = Some(first.into());
        }
        let is_bos = known || spellings.bos.as_deref() == Some(first);
        special.add("bos", is_bos);
        if !is_bos {
            notes.push(format!(
                "the tokenizer begins texts with {first:?}, which is not its begin of text; it is left \
                 out"
            ));
        }
    }
    if let Some(last) = last {
        if spellings.eos.as_deref() != Some(last) {
            spellings.eot = spellings.eos.replace(last.into());
        }
        special.add("eos", true);
    }
    let pair = step.pair.as_deref().unwrap_or_default();
    let begins = first.is_some() && pair.first().and_then(json::TemplatePiece::token) == first;
    let ends = last.is_some() && pair.last().and_then(json::TemplatePiece::token) == last;
    let pair = pair.get(usize::from(begins)..pair.len() - usize::from(ends)).unwrap_or_default();
    let is = |piece: &json::TemplatePiece<'_>, text| matches!(piece, json::TemplatePiece::Sequence { id } if id.as_str() == text);
    if let [a, between @ .., b] = pair
        && is(a, "A")
        && is(b, "B")
        && let [separator, rest @ ..] = between
    {
        let separates = |piece: &json::TemplatePiece<'_>| {
            let ends = [&spellings.sep, &spellings.eos];
            piece.token().is_some_and(|text| ends.into_iter().flatten().any(|end| end == text))
        };
        let add = (separates(separator) && last.is_none())
            || matches!(rest, [second] if separates(second));
        special.add("sep", add);
        if add && spellings.sep.is_none() {
            spellings.sep = spellings.eos.clone();
        }
    }
}
