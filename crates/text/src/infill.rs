//! The prompt that requests the text between two others ("fill in the middle", as editors do while the user types).
//!
//! The order is that of Qwen2.5-Coder's training (arXiv 2409.12186), and llama-server's:
//!
//! ```text
//! [repository]myproject
//! [separator]name of a file
//! its text
//! [separator]filename
//! [prefix]text before the gap[suffix]text after it[middle]
//! ```
//!
//! If a model has no token for repositories or files, names are left out and each other file follows a line `--- snippet ---`.

use crate::prompt::{Encoder, PromptError};
use crate::tokenizer::{InfillIds, TokenizerError};

/// A gap and the text around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// The text before the gap.
    pub before: String,
    /// The end of that text: the part on the gap's own line, which is never left out.
    pub line: String,
    /// The text after the gap.
    pub after: String,
    /// Other files of the project that may help: names and texts. The last is the nearest to the gap.
    pub files: Vec<(String, String)>,
}

/// The maximum numbers of tokens of a prompt. Text farther from the gap is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapLimits {
    /// For the text before and after the gap together: three quarters for the former, one for the latter.
    pub around: usize,
    /// For the whole prompt: other files get the rest.
    pub total: usize,
}

/// Names that models have seen in these places, used where the real one is unknown.
const PROJECT: &str = "myproject\n";
const FILE: &str = "filename\n";
/// Separates files if the model has no token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

impl Encoder<'_> {
    /// The tokens of a prompt that requests the text of a gap. Names of special tokens in its texts are plain text.
    ///
    /// # Errors
    /// [`PromptError::NoInfill`], [`PromptError::Tokenizer`].
    ///
    /// ```
    /// use alight_formats::gguf::{self, write::Builder};
    /// use alight_text::{Encoder, Style, Vocabulary, infill::{Gap, GapLimits}};
    ///
    /// let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    /// tokens.extend(["<PRE>", "<SUF>", "<MID>"].map(String::from));
    /// // 6: a byte, 3: control.
    /// let types: Vec<i32> = [6; 256].into_iter().chain([3; 3]).collect();
    /// let mut metadata = Builder::new();
    /// metadata.str("tokenizer.ggml.model", "llama");
    /// metadata.strs("tokenizer.ggml.tokens", &tokens);
    /// metadata.f32s("tokenizer.ggml.scores", &[0.0; 259]);
    /// metadata.i32s("tokenizer.ggml.token_type", &types);
    /// metadata.bool("tokenizer.ggml.add_space_prefix", false);
    /// metadata.bool("tokenizer.ggml.add_bos_token", false);
    /// let file = metadata.header();
    /// let vocabulary = Vocabulary::from_gguf(&gguf::parse(&file)?)?;
    ///
    /// let gap = Gap { before: "1+".into(), after: "=3".into(), ..Gap::default() };
    /// let encoder = Encoder::new(&vocabulary, Style::Raw, false);
    /// let prompt = encoder.infill(&gap, GapLimits { around: 100, total: 100 })?;
    /// assert_eq!(prompt, [256, 49, 43, 257, 61, 51, 258]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn infill(&self, gap: &Gap, limits: GapLimits) -> Result<Vec<u32>, PromptError> {
        let ids = self.tokenizer().infill().ok_or(PromptError::NoInfill)?;
        let quarter = limits.around / 4;
        let line = self.plain(&gap.line)?;
        let before = self.last(&gap.before, 3 * quarter)?;
        let after = self.first(&gap.after, quarter.saturating_sub(2 + line.len()))?;
        let most = limits.total.saturating_sub(before.len() + line.len() + after.len() + 3);
        let files = self.files(gap, ids, most)?;
        let [prefix, suffix, middle] = [ids.prefix, ids.suffix, ids.middle].map(|id| vec![id]);
        let parts = [files, prefix, before, line, suffix, after, middle];
        Ok(self.begun(parts.concat()))
    }

    /// The last tokens before the gap's own file, at `most` that many, in time that depends only on that number.
    fn files(&self, gap: &Gap, ids: InfillIds, most: usize) -> Result<Vec<u32>, TokenizerError> {
        let named = |id: Option<u32>, name: &str| -> Result<Vec<u32>, TokenizerError> {
            let Some(id) = id else { return Ok(Vec::new()) };
            Ok([vec![id], self.last(name, most)?].concat())
        };
        // From the gap backwards, until there is enough.
        let mut parts = vec![named(ids.separator, FILE)?];
        let mut count = parts[0].len();
        for (name, text) in gap.files.iter().rev() {
            if count >= most {
                break;
            }
            let text = self.last(text, most)?;
            let before = match ids.separator {
                None => self.plain(SNIPPET)?,
                separator => named(separator, &format!("{name}\n"))?,
            };
            count += before.len() + text.len();
            parts.extend([text, before]);
        }
        parts.push(named(ids.repository, PROJECT)?);
        parts.reverse();
        let mut tokens = parts.concat();
        tokens.drain(..tokens.len().saturating_sub(most));
        Ok(tokens)
    }

    /// The first tokens of a text, at `most` that many, in time that depends only on that number.
    fn first(&self, text: &str, most: usize) -> Result<Vec<u32>, TokenizerError> {
        let end = text.floor_char_boundary(self.bytes_of(most));
        let mut tokens = self.plain(&text[..end])?;
        tokens.truncate(most);
        Ok(tokens)
    }

    /// The last tokens of a text, likewise.
    fn last(&self, text: &str, most: usize) -> Result<Vec<u32>, TokenizerError> {
        let start = text.ceil_char_boundary(text.len().saturating_sub(self.bytes_of(most)));
        let mut tokens = self.plain(&text[start..])?;
        tokens.drain(..tokens.len().saturating_sub(most));
        Ok(tokens)
    }

    /// The maximum number of bytes of a text that `tokens` tokens can represent.
    fn bytes_of(&self, tokens: usize) -> usize {
        let longest = self.tokenizer().longest_token().max(char::MAX.len_utf8());
        // One more, because the cut may fall within a token.
        tokens.saturating_add(1).saturating_mul(longest)
    }

    /// The tokens of a text, without special tokens.
    fn plain(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, false)
    }
}
