//! Selection of the files of a repository that belong to the requested model.
//!
//! A model is a `.gguf` file, or all parts of a split one. Files that are not a language model (image projectors, importance
//! matrices) are left out. The quantization is taken from the file's name: the last word of it that is the name of one.
//!
//! Besides, a repository of safetensors is one model: its weights and the files that describe it, all in the repository's own
//! folder. It is never a default, since it does not run before it is converted: its tag is [`SAFETENSORS`].

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use alight_formats::split::ShardName;

use crate::HubError;
use crate::name::{is_gguf, is_path};

/// The default order of preference, without a tag: the first one present is used. It is small enough for most machines, and good.
const ORDER: [&str; 28] = [
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_XL",
    "Q4_K_L",
    "Q4_K_S",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "Q4_1",
    "Q4_0",
    "Q5_K_M",
    "UD-Q5_K_XL",
    "Q5_K_S",
    "Q5_1",
    "Q5_0",
    "Q6_K",
    "Q8_0",
    "Q3_K_L",
    "Q3_K_M",
    "Q3_K_S",
    "BF16",
    "F16",
    "FP16",
    "F32",
    "IQ3_M",
    "Q2_K",
    "IQ2_M",
    "Q2_K_S",
];
/// Words in the names of files that are not a language model.
const OTHERS: [&str; 2] = ["mmproj", "imatrix"];

/// The tag of a repository's model in safetensors.
pub const SAFETENSORS: &str = "safetensors";
/// The ends of the names of files that describe a model in safetensors, and are in its folder: configuration, tokenizer, templates.
/// (Those of the weights are others: some repositories have them a second time, in other formats.)
const DESCRIPTIONS: [&str; 6] = [".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm"];
/// Maximum number of bytes of a description: more than any vocabulary.
const MAX_DESCRIPTION_BYTES: u64 = 256 << 20;

/// A model of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its files, by their paths in the repository; the first is the one that is opened.
    pub files: Vec<String>,
    /// Its quantization, if its name contains one.
    pub quantization: Option<String>,
    /// The first of its missing files.
    pub missing: Option<String>,
}

impl Model {
    /// True for a folder of safetensors, which is converted before it runs.
    pub fn is_safetensors(&self) -> bool {
        self.quantization.as_deref() == Some(SAFETENSORS)
    }

    /// Its name after `USER/REPO:`.
    pub fn tag(&self) -> &str {
        self.quantization.as_deref().unwrap_or(self.files.first().map_or("", String::as_str))
    }
}

/// The models among these files and their sizes, by name.
pub(crate) fn models<'n>(
    files: impl IntoIterator<Item = (&'n str, Option<u64>)> + Clone,
) -> Vec<Model> {
    let names = files.clone().into_iter().map(|(name, _)| name);
    let names: BTreeSet<&str> = names.filter(|name| is_model(name)).collect();
    let (mut models, mut parts) = (Vec::new(), BTreeMap::<_, Vec<u64>>::new());
    for name in names {
        let (folder, file) = split(name);
        match ShardName::parse(file) {
            Some(shard) => {
                parts.entry((folder, shard.prefix, shard.count)).or_default().push(shard.no)
            }
            None => models.push(Model {
                files: vec![name.to_owned()],
                quantization: quantization(file),
                missing: None,
            }),
        }
    }
    for ((folder, prefix, count), there) in parts {
        let path = |no: &u64| {
            let shard = ShardName { prefix, no: *no, count };
            format!("{folder}{}", shard.file_name(*no))
        };
        // The parts are sorted, since the names were: the first one out of place shows which one is missing.
        let missing = (0..count).zip(there.iter().map(Some).chain(iter::repeat(None)));
        let missing = missing.into_iter().find(|(no, there)| Some(no) != *there);
        models.push(Model {
            files: there.iter().map(path).collect(),
            quantization: quantization(prefix),
            missing: missing.map(|(no, _)| path(&no)),
        });
    }
    models.sort_by(|a, b| a.files.cmp(&b.files));
    models.extend(safetensors(files));
    models
}

/// The model in safetensors among these files and their sizes, if there is one. Its first file is `config.json`.
fn safetensors<'n>(files: impl IntoIterator<Item = (&'n str, Option<u64>)>) -> Option<Model> {
    // Only the repository's own folder: those in it are other forms of the model, or parts of it that are no language model.
    let of_folder = |name: &str| is_path(name) && !name.contains('/') && !name.starts_with('.');
    let files: Vec<_> = files.into_iter().filter(|(name, _)| of_folder(name)).collect();
    let is_weights = |name: &str| name.ends_with(".safetensors");
    // The maker's own form, which some repositories have as well: `consolidated.safetensors`.
    let is_usual = |name: &str| is_weights(name) && name.starts_with("model");
    let has_usual = files.iter().any(|(name, _)| is_usual(name));
    let mut weights: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    weights.retain(|name| if has_usual { is_usual(name) } else { is_weights(name) });
    if weights.is_empty() || !files.iter().any(|(name, _)| *name == "config.json") {
        return None;
    }
    weights.sort_unstable();
    let is_description = |(name, size): &&(&str, Option<u64>)| {
        DESCRIPTIONS.iter().any(|end| name.ends_with(end))
            && !is_weights(name)
            && size.is_none_or(|size| size <= MAX_DESCRIPTION_BYTES)
    };
    let mut all: Vec<String> =
        files.iter().filter(is_description).map(|(name, _)| (*name).to_owned()).collect();
    all.sort_by_key(|name| (name != "config.json", name.clone()));
    let missing = missing_part(&weights);
    all.extend(weights.into_iter().map(str::to_owned));
    Some(Model { files: all, quantization: Some(SAFETENSORS.to_owned()), missing })
}

/// The first file that is missing of `model-00001-of-00003.safetensors` and its like, sorted.
fn missing_part(weights: &[&str]) -> Option<String> {
    let parts = |name: &str| {
        let (stem, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        let (prefix, no) = stem.rsplit_once('-')?;
        Some((prefix.to_owned(), no.parse::<u64>().ok()?, count.parse::<u64>().ok()?, no.len()))
    };
    let (prefix, _, count, digits) = parts(weights.first()?)?;
    let name = |no: u64| format!("{prefix}-{no:0digits$}-of-{count:0digits$}.safetensors");
    // (A count that no repository has ends the search at the first one that is missing.)
    (1..=count).map(name).find(|name| !weights.contains(&name.as_str()))
}

/// The model selected by `tag`, or the default one.
///
/// # Errors
/// None fits, or several do.
pub(crate) fn choose<'m>(
    repo: &str,
    models: &'m [Model],
    tag: Option<&str>,
) -> Result<&'m Model, HubError> {
    let repo = || repo.to_owned();
    let is_gguf = |model: &&Model| !model.is_safetensors();
    if models.is_empty() || (tag.is_none() && !models.iter().any(|model| is_gguf(&model))) {
        return Err(HubError::NoModels { repo: repo(), safetensors: !models.is_empty() });
    }
    let fitting = match tag {
        Some(tag) => {
            let fitting = named(models, tag);
            if fitting.is_empty() {
                return Err(HubError::NoMatch {
                    repo: repo(),
                    tag: tag.to_owned(),
                    exist: tags(models),
                });
            }
            fitting
        }
        None => ORDER
            .iter()
            .map(|tag| named(models, tag))
            .find(|fitting| !fitting.is_empty())
            .unwrap_or_else(|| models.iter().filter(is_gguf).collect()),
    };
    let [model] = fitting[..] else {
        let exist = fitting.iter().filter_map(|model| model.files.first().cloned());
        return Err(HubError::Several { repo: repo(), exist: shortened(exist.collect()) });
    };
    match &model.missing {
        Some(file) => Err(HubError::ShardMissing { repo: repo(), file: file.clone() }),
        None => Ok(model),
    }
}

/// True if no other model would be preferred without a tag.
pub(crate) fn is_first_choice(model: &Model) -> bool {
    model.quantization.as_deref().is_some_and(|tag| tag.eq_ignore_ascii_case(ORDER[0]))
}

/// The models of this name: by a file's path, else by its name, else by its quantization, else by that of Unsloth's dynamic ones.
fn named<'m>(models: &'m [Model], tag: &str) -> Vec<&'m Model> {
    let by = |fits: &dyn Fn(&Model) -> bool| models.iter().filter(|model| fits(model)).collect();
    let is = |text: &str| text.eq_ignore_ascii_case(tag);
    let label = |model: &Model| model.quantization.clone().unwrap_or_default();
    let rounds: [&dyn Fn(&Model) -> bool; 4] = [
        &|model| model.files.iter().any(|file| is(file)),
        &|model| model.files.iter().any(|file| is(split(file).1)),
        &|model| is(&label(model)),
        &|model| label(model).split_once('-').is_some_and(|(_, rest)| is(rest)),
    ];
    let found: Vec<Vec<&Model>> = rounds.into_iter().map(by).collect();
    found.into_iter().find(|fitting| !fitting.is_empty()).unwrap_or_default()
}

/// The tags that can be requested.
fn tags(models: &[Model]) -> Vec<String> {
    let mut tags: Vec<String> = Vec::new();
    for model in models {
        let twice = models.iter().filter(|other| other.tag() == model.tag()).count() > 1;
        let tag = if twice { model.files.first().cloned() } else { Some(model.tag().to_owned()) };
        tags.extend(tag);
    }
    shortened(tags)
}

/// Limits the list to what a user can read.
fn shortened(mut texts: Vec<String>) -> Vec<String> {
    let all = texts.len();
    if all > 40 {
        texts.truncate(40);
        texts.push(format!("and {} more", all - 40));
    }
    texts
}

fn is_model(name: &str) -> bool {
    let file = split(name).1.to_ascii_lowercase();
    is_path(name) && is_gguf(name) && !OTHERS.iter().any(|word| file.contains(word))
}

/// The folder, with its `/`, and the file.
fn split(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('/').map_or(0, |at| at + 1))
}

/// The quantization in a file's name: the last word that is one, with `UD-` if that precedes it.
fn quantization(file: &str) -> Option<String> {
    let stem = file.get(..file.len().saturating_sub(5)).filter(|_| is_gguf(file)).unwrap_or(file);
    let mut found: Option<(usize, &str)> = None;
    for (at, _) in stem.char_indices() {
        let begins = at == 0 || stem[..at].ends_with(['-', '.', '_']);
        let word = stem[at..].split(['-', '.']).next().unwrap_or_default();
        // Not the end of a word that is itself one.
        let within = found.is_some_and(|(from, word)| at < from + word.len());
        if begins && !within && is_quantization(word) {
            found = Some((at, word));
        }
    }
    let (at, word) = found?;
    let dynamic = stem[..at].to_ascii_uppercase().ends_with("UD-");
    Some(format!("{}{}", if dynamic { "UD-" } else { "" }, word.to_ascii_uppercase()))
}

/// `Q4_K_M`, `IQ3_XXS`, `TQ1_0`, `BF16`, `F32`, `MXFP4_MOE`.
fn is_quantization(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    if ["F16", "F32", "BF16", "FP16", "FP32"].contains(&word.as_str()) || word.starts_with("MXFP4")
    {
        return true;
    }
    let rest = word.strip_prefix(['I', 'T']).unwrap_or(&word);
    let Some(rest) = rest.strip_prefix('Q') else { return false };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let rest = &rest[digits..];
    digits == 1
        && (rest.is_empty() || rest.starts_with('_'))
        && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized<'n>(names: &[&'n str]) -> impl IntoIterator<Item = (&'n str, Option<u64>)> + Clone {
        names.iter().map(|name| (*name, None)).collect::<Vec<_>>()
    }

    fn chosen(names: &[&str], tag: Option<&str>) -> Result<String, String> {
        let models = models(sized(names));
        let model = choose("a/b", &models, tag).map_err(|error| error.to_string())?;
        Ok(model.files.join(" "))
    }

    #[test]
    fn quantizations_are_known_by_their_names() {
        for (file, expected) in [
            ("SmolLM2-135M-Instruct-Q4_K_M.gguf", Some("Q4_K_M")),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", Some("Q4_1")),
            ("gemma-3-270m-q4_k_m.gguf", Some("Q4_K_M")),
            ("Qwen3-8B-UD-Q4_K_XL.gguf", Some("UD-Q4_K_XL")),
            ("gemma_it_Q8_0.gguf", Some("Q8_0")),
            ("x-IQ3_XXS.GGUF", Some("IQ3_XXS")),
            ("gpt-oss-20b-MXFP4.gguf", Some("MXFP4")),
            ("x-bf16.gguf", Some("BF16")),
            ("x-Q4_0_4_4.gguf", Some("Q4_0_4_4")),
            ("model.gguf", None),
            ("Qwen3-Q.gguf", None),
            ("ünï-Q6_K.gguf", Some("Q6_K")),
        ] {
            assert_eq!(quantization(file).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn the_model_that_is_meant_is_found() {
        let names = [
            "README.md",
            "mmproj-model-f16.gguf",
            "m-imatrix.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_S.gguf",
            "m-UD-Q4_K_XL.gguf",
            "m-IQ4_XS.gguf",
            "big/m-BF16-00001-of-00002.gguf",
            "big/m-BF16-00002-of-00002.gguf",
        ];
        let both = "big/m-BF16-00001-of-00002.gguf big/m-BF16-00002-of-00002.gguf";
        assert_eq!(chosen(&names, None).unwrap(), "m-UD-Q4_K_XL.gguf");
        assert_eq!(chosen(&names, Some("q8_0")).unwrap(), "m-Q8_0.gguf");
        assert_eq!(chosen(&names, Some("Q4_K_XL")).unwrap(), "m-UD-Q4_K_XL.gguf");
        assert_eq!(chosen(&names, Some("BF16")).unwrap(), both);
        assert_eq!(chosen(&names, Some("m-BF16-00001-of-00002.gguf")).unwrap(), both);
        assert_eq!(chosen(&names, Some("m-Q4_K_S.gguf")).unwrap(), "m-Q4_K_S.gguf");
        // A part of a name is not the name.
        let error = chosen(&names, Some("Q4_K")).unwrap_err();
        assert!(error.ends_with("it has BF16, IQ4_XS, Q4_K_S, Q8_0, UD-Q4_K_XL"), "{error}");
        assert!(chosen(&names, Some("F16")).is_err(), "a projector is not a model");
    }

    #[test]
    fn the_default_is_the_first_of_a_list_or_the_only_one() {
        assert_eq!(chosen(&["a-Q8_0.gguf", "a-Q4_K_M.gguf"], None).unwrap(), "a-Q4_K_M.gguf");
        assert_eq!(chosen(&["a-F16.gguf", "a-Q8_0.gguf"], None).unwrap(), "a-Q8_0.gguf");
        assert_eq!(chosen(&["weights.gguf"], None).unwrap(), "weights.gguf");
        let error = chosen(&["x.gguf", "y.gguf"], None).unwrap_err();
        assert!(error.contains("x.gguf, y.gguf"), "{error}");
        let error = chosen(&["a-Q4_K_M.gguf", "draft/b-Q4_K_M.gguf"], None).unwrap_err();
        assert!(error.contains("a-Q4_K_M.gguf, draft/b-Q4_K_M.gguf"), "{error}");
        assert!(chosen(&["x.safetensors"], None).unwrap_err().contains("no .gguf file"));
    }

    #[test]
    fn a_repository_of_safetensors_is_one_model_that_is_no_default() {
        let names = [
            ".gitattributes",
            "README.md",
            "LICENSE",
            "config.json",
            "consolidated.safetensors",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "onnx/model.onnx",
            "original/model.safetensors",
            "pytorch_model.bin",
            "tokenizer.json",
            "tokenizer.model",
            "../config.json",
        ];
        let error = chosen(&names, None).unwrap_err();
        assert!(error.contains("no .gguf file") && error.contains("alight convert"), "{error}");
        let all = "config.json generation_config.json model.safetensors.index.json tokenizer.json \
                   tokenizer.model model-00001-of-00002.safetensors model-00002-of-00002.safetensors";
        assert_eq!(chosen(&names, Some("safetensors")).unwrap(), all);
        let with_gguf = [&names[..], &["m-Q8_0.gguf"]].concat();
        assert_eq!(chosen(&with_gguf, None).unwrap(), "m-Q8_0.gguf");
        assert_eq!(chosen(&with_gguf, Some("Safetensors")).unwrap(), all);
        let error = chosen(&with_gguf, Some("Q2_K")).unwrap_err();
        assert!(error.ends_with("it has Q8_0, safetensors"), "{error}");
        // One part is missing; there is no configuration; there is only the maker's own form.
        let error = chosen(&names[..7], Some("safetensors")).unwrap_err();
        assert!(error.contains("'model-00002-of-00002.safetensors'"), "{error}");
        assert!(chosen(&names[4..], Some("safetensors")).is_err());
        let own = chosen(&["config.json", "consolidated.safetensors"], Some("safetensors"));
        assert_eq!(own.unwrap(), "config.json consolidated.safetensors");
        let large = [("config.json", None), ("x.json", Some(1 << 40)), ("x.safetensors", None)];
        assert_eq!(models(large)[0].files, ["config.json", "x.safetensors"]);
        // A count that no repository has costs nothing.
        let odd = ["config.json", "model-00001-of-18446744073709551615.safetensors"];
        assert!(chosen(&odd, Some("safetensors")).unwrap_err().contains("00002-of-"));
    }

    #[test]
    fn a_model_that_lacks_a_part_is_an_error_that_names_it() {
        let names = ["m-Q8_0-00002-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"];
        let error = chosen(&names, Some("Q8_0")).unwrap_err();
        assert!(error.contains("'m-Q8_0-00001-of-00003.gguf'"), "{error}");
    }

    #[test]
    fn no_name_of_a_file_is_too_strange() {
        let pieces = [
            "m",
            "Q4_K_M",
            "q8_0",
            "-",
            "_",
            ".",
            "/",
            "UD-",
            "-00001-of-00002",
            "-99999-of-99999",
            ".gguf",
            "ü",
            "..",
            "",
        ];
        let mut state = 1u64;
        for _ in 0..2000 {
            let mut name = String::new();
            for _ in 0..state % 7 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                name += pieces[(state >> 33) as usize % pieces.len()];
            }
            state = state.wrapping_add(1);
            for model in models(sized(&[name.as_str(), "other-Q4_K_M.gguf"])) {
                assert!(!model.tag().is_empty(), "{name}");
                if model.missing.is_none() {
                    assert_eq!(
                        named(std::slice::from_ref(&model), &model.files[0]).len(),
                        1,
                        "{name}"
                    );
                }
            }
        }
    }

    #[test]
    fn no_more_is_said_than_can_be_read() {
        let names: Vec<String> = (0..500).map(|i| format!("m{i}.gguf")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = chosen(&names, Some("Q4_0")).unwrap_err();
        assert!(error.contains("and 460 more") && error.len() < 1000, "{error}");
    }
}
