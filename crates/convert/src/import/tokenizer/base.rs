//! The tokens themselves: the file they come from, and one token for each row of the embedding.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use alight_formats::tokenizer::word_list::{self, WordListSpecial};
use alight_formats::tokenizer::{
    self, File, Kind, Model, Special, TokenType, TokenizerError, Vocabulary, WordPieceRules, json,
};

use super::super::side::SideFiles;
use super::config::TokenizerConfig;
use crate::ConvertError;

/// A token of the new file.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub text: String,
    pub score: f32,
    pub ty: TokenType,
}

/// Maximum length of a tokenizer file, in bytes; the longest known has 40 MB.
const MAX_FILE: u64 = 256 << 20;
/// Maximum number of rows of an embedding; the largest known is 262 208.
const MAX_ROWS: u64 = 1 << 22;

const MODEL: &str = "tokenizer.model";
const JSON: &str = "tokenizer.json";
/// The file of XLM-RoBERTa's tokens, whose ids are not those of the file.
const XLM_ROBERTA: &str = "sentencepiece.bpe.model";
/// BERT's list of tokens.
const WORDS: &str = "vocab.txt";

/// A tokenizer file.
struct FoundTokenizer {
    path: PathBuf,
    bytes: Vec<u8>,
    kind: FoundKind,
}

/// The kind of a tokenizer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundKind {
    /// Of a format that its content shows.
    Of(Kind),
    /// SentencePiece's, with XLM-RoBERTa's ids.
    XlmRoberta,
    /// A list of WordPiece's tokens.
    Words(WordPieceRules),
}

/// The files that contain tokens.
pub(super) struct TokenizerFiles {
    /// The file that the tokens are taken from.
    first: Option<FoundTokenizer>,
    /// `tokenizer.json`, if it is another file in its own format.
    json: Option<FoundTokenizer>,
    /// True if merges are kept where other models have scores: Gemma 4.
    merges: bool,
    /// The tokenizer's settings.
    config: TokenizerConfig,
}

fn wrong(path: &Path, error: &TokenizerError) -> ConvertError {
    ConvertError::Side { path: path.into(), problem: error.to_string() }
}

fn open(side: &SideFiles, path: PathBuf) -> Result<Option<FoundTokenizer>, ConvertError> {
    let Some(bytes) = side.small.read(&path, MAX_FILE)? else { return Ok(None) };
    if bytes.starts_with(b"version https://git-lfs") {
        let problem = "is not the file itself but a pointer of Git LFS to it; `git lfs pull` in its \
                       folder gets the file";
        return Err(ConvertError::Side { path, problem: problem.into() });
    }
    match tokenizer::recognise(&bytes) {
        Some(kind) => Ok(Some(FoundTokenizer { path, bytes, kind: FoundKind::Of(kind) })),
        None => Err(wrong(&path, &TokenizerError::NotRecognised)),
    }
}

/// Looks for the files. A file given by the user is used alone; otherwise `tokenizer.model` takes precedence if
/// it is SentencePiece's, which has the scores, and `tokenizer.json` for Qwen's models, Gemma 4 and Llama 3,
/// which never had them.
pub(super) fn find(side: &SideFiles, architecture: &str) -> Result<TokenizerFiles, ConvertError> {
    let merges = architecture == "gemma4";
    let config = TokenizerConfig::read(side)?;
    if let Some(path) = side.tokenizer_file() {
        let Some(found) = open(side, path.into())? else {
            let problem = "there is no such file, which was given for the tokenizer".into();
            return Err(ConvertError::Side { path: path.into(), problem });
        };
        return Ok(TokenizerFiles { first: Some(found), json: None, merges, config });
    }
    let (model, json) = (side.tokenizer.path(MODEL), side.tokenizer.path(JSON));
    let (model, json) = (open(side, model)?, open(side, json)?);
    let model_first = match &model {
        Some(_) if architecture.starts_with("qwen") || merges => false,
        Some(found) => found.kind == FoundKind::Of(Kind::SentencePiece),
        None => false,
    };
    let (first, json) = match (model, json) {
        (None, None) => (of_one_family(side, &config)?, None),
        (model, json) if model_first => {
            (model, json.filter(|found| found.kind == FoundKind::Of(Kind::Json)))
        }
        (model, None) => (model, None),
        (_, json) => (json, None),
    };
    Ok(TokenizerFiles { first, json, merges, config })
}

/// Looks for the files of one family alone, where there is neither of the usual ones: XLM-RoBERTa's, or BERT's list of tokens.
fn of_one_family(
    side: &SideFiles,
    config: &TokenizerConfig,
) -> Result<Option<FoundTokenizer>, ConvertError> {
    let class = config.config.get("tokenizer_class").and_then(|class| class.as_str());
    let of = |families: &[&str]| {
        let class = class.map(|class| class.strip_suffix("Fast").unwrap_or(class));
        class.is_none_or(|class| families.contains(&class))
    };
    let refused = |path: PathBuf| {
        let class: String = class.unwrap_or_default().chars().take(60).collect();
        let problem = format!(
            "is of the tokenizer_class {class}, which is not read from such a file: save the tokenizer with transformers, which writes \
             tokenizer.json"
        );
        Err(ConvertError::Side { path, problem })
    };
    if let Some(found) = open(side, side.tokenizer.path(XLM_ROBERTA))? {
        if !of(&["XLMRobertaTokenizer"]) || found.kind != FoundKind::Of(Kind::SentencePiece) {
            return refused(found.path);
        }
        return Ok(Some(FoundTokenizer { kind: FoundKind::XlmRoberta, ..found }));
    }
    let path = side.tokenizer.path(WORDS);
    let Some(bytes) = side.small.read(&path, MAX_FILE)? else { return Ok(None) };
    let basic = config.flag("do_basic_tokenize").unwrap_or(true);
    if !of(&["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"]) || !basic {
        return refused(path);
    }
    let lowercase = config.flag("do_lower_case").unwrap_or(true);
    let rules = WordPieceRules {
        lowercase,
        strip_accents: config.flag("strip_accents").unwrap_or(lowercase),
        clean_text: true,
        split_ideographs: config.flag("tokenize_chinese_chars").unwrap_or(true),
    };
    Ok(Some(FoundTokenizer { path, bytes, kind: FoundKind::Words(rules) }))
}

impl TokenizerFiles {
    /// Returns `tokenizer.json`, if the tokens come from another file.
    pub fn json(&self) -> Result<Option<json::File<'_>>, ConvertError> {
        let Some(found) = &self.json else { return Ok(None) };
        json::parse(&found.bytes).map(Some).map_err(|error| wrong(&found.path, &error))
    }
}

/// The contents of a tokenizer file.
pub(super) struct Base {
    /// The file.
    pub path: PathBuf,
    /// True if it is SentencePiece's own file, and not a conversion of it.
    pub sentencepiece: bool,
    pub model: Model,
    pub pre: &'static str,
    /// One for each row of the embedding.
    pub slots: Vec<Slot>,
    pub merges: Vec<String>,
    pub special: Special,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: bool,
    /// Both for unigram only.
    pub remove_extra_whitespaces: bool,
    pub charsmap: Vec<u8>,
    /// For WordPiece only.
    pub word_piece: Option<WordPieceRules>,
    pub notes: Vec<String>,
    /// True if `notes` mentions that special tokens have no row.
    pub left_out: bool,
}

/// The tokens, and `tokenizer.json` if they come from it.
type Read<'f> = (Base, Option<json::File<'f>>);

impl Base {
    /// Reads the tokens of a folder, for an embedding of `rows`, and `tokenizer.json` if they come from
    /// it; `None` if there is no such file.
    pub fn read(files: &TokenizerFiles, rows: u64) -> Result<Option<Read<'_>>, ConvertError> {
        let Some(found) = &files.first else { return Ok(None) };
        let kind = match found.kind {
            FoundKind::Of(kind) => kind,
            FoundKind::XlmRoberta => Kind::SentencePiece,
            FoundKind::Words(rules) => {
                let text = |name: &str, usual| files.config.token(name).unwrap_or(usual);
                let special = WordListSpecial {
                    unknown: text("unk_token", "[UNK]"),
                    begin: text("cls_token", "[CLS]"),
                    end: text("sep_token", "[SEP]"),
                    padding: text("pad_token", "[PAD]"),
                    others: &[text("mask_token", "[MASK]")],
                };
                let parsed = word_list::parse(&found.bytes, rules, &special);
                let vocabulary = parsed.map_err(|error| wrong(&found.path, &error))?;
                return Ok(Some((Base::of(&found.path, false, vocabulary, rows)?, None)));
            }
        };
        let parsed = kind.parse(&found.bytes);
        let parsed = parsed.and_then(|file| {
            let vocabulary = match &file {
                File::Json(json) if files.merges => json.over_characters(),
                File::SentencePiece(file) if found.kind == FoundKind::XlmRoberta => {
                    file.xlm_roberta()
                }
                file => file.vocabulary(),
            };
            Ok((vocabulary?, file))
        });
        let (vocabulary, file) = parsed.map_err(|error| wrong(&found.path, &error))?;
        let sentencepiece = kind == Kind::SentencePiece;
        let base = Base::of(&found.path, sentencepiece, vocabulary, rows)?;
        let json = match file {
            File::Json(json) => Some(*json),
            File::SentencePiece(_) | File::Tiktoken(_) => None,
        };
        Ok(Some((base, json)))
    }

    fn of(
        path: &Path,
        sentencepiece: bool,
        vocabulary: Vocabulary<'_>,
        rows: u64,
    ) -> Result<Base, ConvertError> {
        let side = |problem| Err(ConvertError::Side { path: path.into(), problem });
        if rows > MAX_ROWS {
            return side(format!("the embedding has {rows} rows, expected at most {MAX_ROWS}"));
        }
        let mut slots: Vec<Slot> = (0..rows).map(padding).collect();
        let mut notes = vocabulary.notes;
        let mut left_out = Vec::new();
        let tokens = vocabulary.tokens.len();
        for token in vocabulary.tokens {
            let text = token.text.into_owned();
            match slots.get_mut(token.id as usize) {
                Some(slot) => *slot = Slot { text, score: token.score, ty: token.ty },
                // Gemma 3 has a token for images for which its text models have no row.
                None if matches!(token.ty, TokenType::Control | TokenType::UserDefined) => {
                    left_out.push(text);
                }
                None => {
                    return side(format!(
                        "token {} has no row in the embedding, which has {rows}; the file has \
                         {tokens} tokens and belongs to another model",
                        token.id
                    ));
                }
            }
        }
        if let Some(first) = left_out.first() {
            notes.push(format!(
                "{} special tokens have no row in the embedding and are left out, the first of them \
                 {first:?}",
                left_out.len()
            ));
        }
        Ok(Base {
            path: path.into(),
            sentencepiece,
            model: vocabulary.model,
            pre: vocabulary.pre,
            slots,
            merges: vocabulary.merges.into_iter().map(|merge| merge.into_owned()).collect(),
            special: vocabulary.special,
            add_bos: vocabulary.add_bos,
            add_eos: vocabulary.add_eos,
            add_space_prefix: vocabulary.add_space_prefix,
            remove_extra_whitespaces: vocabulary.remove_extra_whitespaces,
            charsmap: vocabulary.charsmap.into_owned(),
            word_piece: vocabulary.word_piece,
            notes,
            left_out: !left_out.is_empty(),
        })
    }

    /// Returns the id of exactly this text.
    pub fn id(&self, text: &str) -> Option<u32> {
        // Less than 2^32 rows.
        self.slots.iter().position(|slot| slot.text == text).map(|id| id as u32)
    }

    /// Checks that no two tokens have the same text, which a tokenizer could not distinguish.
    pub fn check_texts(&self) -> Result<(), ConvertError> {
        let mut ids = HashMap::with_capacity(self.slots.len());
        for (id, slot) in self.slots.iter().enumerate() {
            if let Some(first) = ids.insert(slot.text.as_str(), id) {
                let (first, second) = (first as u64, id as u64);
                let text = slot.text.as_str().into();
                return Err(wrong(
                    &self.path,
                    &TokenizerError::DuplicateToken { first, second, text },
                ));
            }
        }
        Ok(())
    }
}

/// The token of a row that has none, as in llama.cpp's converter.
fn padding(id: u64) -> Slot {
    Slot { text: format!("[PAD{id}]"), score: -10_000.0, ty: TokenType::Unused }
}
