//! Qwen3-Reranker: a language model that judges a pair of texts, and whose score is how much likelier it continues with "yes" than with "no".
//!
//! The two rows of its output become the classifier, and the texts around a pair its template `rerank`, as in llama.cpp's converter
//! (`conversion/qwen.py`). Nothing in `config.json` tells it from a model that writes text: its name does.

use super::config::Config;
use super::describe::OUTPUT;
use super::encoder;
use crate::ConvertError;
use crate::import::side::SideFiles;
use crate::import::tensor::{Entry, Network, Place, Rule};
use crate::import::tokenizer;
use crate::write::Change;

const NAME: &str = "qwen3-reranker";
/// Maximum length of a card that is read, in bytes.
const MAX_CARD: u64 = 4 << 20;
/// The continuations that are compared; the score is the share of the first.
const ANSWERS: [&str; 2] = ["yes", "no"];
/// From the model's card, with the task that it has by default.
const TEMPLATE: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
    Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant \
    passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// Returns true if the folder, the configuration or the heading of the card has the name.
pub(super) fn is_reranker(side: &SideFiles, config: &Config) -> Result<bool, ConvertError> {
    let has = |text: &str| text.to_lowercase().contains(NAME);
    let path = side.network.path("config.json");
    let folder = path.canonicalize().ok().and_then(|path| path.parent().map(ToOwned::to_owned));
    let folder = folder.as_deref().and_then(|folder| folder.file_name()?.to_str());
    if folder.is_some_and(has) || config.word("_name_or_path")?.is_some_and(has) {
        return Ok(true);
    }
    let card = side.network.read("README.md", MAX_CARD).ok().flatten().unwrap_or_default();
    let card = String::from_utf8_lossy(&card);
    let is_heading = |line: &&str| line.starts_with("# ");
    Ok(card.lines().find(is_heading).is_some_and(has))
}

/// Makes the language model a network that scores pairs.
///
/// # Errors
/// Its tokenizer has not both answers.
pub(super) fn score(side: &SideFiles, network: &mut Network) -> Result<(), ConvertError> {
    let path = || side.tokenizer.path("tokenizer.json");
    let Some(ids) = tokenizer::ids(side, network.architecture, network.vocab, ANSWERS)? else {
        return Ok(()); // Which is an error where the tokenizer is read.
    };
    let rows = ids.into_iter().zip(ANSWERS).map(|(id, answer)| {
        let problem = format!("has no token {answer:?}, whose row of the output is the score");
        id.map(|id| (id.into(), 1)).ok_or(ConvertError::Side { path: path(), problem })
    });
    let place = Place::Rows(rows.collect::<Result<Vec<(u64, u64)>, _>>()?);
    let name = "cls.output.weight".to_owned();
    let classifier = Rule::Take { name, heads: None, change: Change::None, place };
    let is = |rule: &Rule, wanted: &str| matches!(rule, Rule::Take { name, .. } if name == wanted);
    let output = network.rules.iter_mut().find(|rule| is(rule, OUTPUT.gguf));
    match output {
        Some(rule) => *rule = classifier,
        None => {
            let embedding = network.rules.iter_mut().find(|rule| is(rule, "token_embd.weight"));
            if let Some(rule) = embedding {
                *rule = Rule::Several(vec![rule.clone(), classifier]);
            }
        }
    }
    let prefix = network.architecture;
    let labels = ANSWERS.map(str::to_owned).to_vec();
    network.keys.extend([
        (format!("{prefix}.pooling_type"), Entry::U32(encoder::RANK)),
        (format!("{prefix}.classifier.output_labels"), Entry::Strs(labels)),
    ]);
    network.templates.push(("rerank", TEMPLATE.to_owned()));
    network.notes.push(format!(
        "it is a reranker by its name: the rows of its output for {:?} and {:?} become its classifier, and it writes no text",
        ANSWERS[0], ANSWERS[1]
    ));
    Ok(())
}
