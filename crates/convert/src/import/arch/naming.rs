//! Facts from the name of a model: `SmolLM2-135M-Instruct` is of the family SmolLM2, has 135
//! million parameters and was tuned to follow instructions. The rules are heuristics, the same as
//! in the `gguf` package, so that both produce the same names.

/// The parts of a model's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) name: Option<String>,
    pub(super) organization: Option<String>,
    pub(super) basename: Option<String>,
    pub(super) finetune: Option<String>,
    pub(super) version: Option<String>,
    pub(super) size_label: Option<String>,
}

impl Parts {
    /// Fills in missing parts from another guess.
    pub(super) fn or(self, other: Parts) -> Parts {
        Parts {
            name: self.name.or(other.name),
            organization: self.organization.or(other.organization),
            basename: self.basename.or(other.basename),
            finetune: self.finetune.or(other.finetune),
            version: self.version.or(other.version),
            size_label: self.size_label.or(other.size_label),
        }
    }
}

/// The possible meanings of a word. It can have several.
#[derive(Clone, Copy, Default)]
struct Word {
    base: bool,
    version: bool,
    ty: bool,
    size: bool,
    tune: bool,
}

impl Word {
    fn is_nothing(self) -> bool {
        !(self.base || self.version || self.ty || self.size || self.tune)
    }
}

/// Returns the parts of `id`, which is `organization/name` or `name`, for a model with `parameters`
/// parameters.
pub(super) fn parts(id: &str, parameters: u64) -> Parts {
    // A sentence is the name as it is.
    if id.contains(' ') {
        return Parts { name: title(id), ..Parts::default() };
    }
    let (organization, full) = match id.split_once('/') {
        Some((organization, full)) => (Some(organization), full),
        None => (None, id),
    };
    // A path, not a name.
    let organization = organization.filter(|organization| !organization.starts_with('.'));
    let mut words: Vec<String> =
        full.split('-').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let mut kinds: Vec<Word> =
        (0..words.len()).map(|i| classify(&mut words[i], i == 0, parameters)).collect();

    // "7B-mini": the number is the size.
    let has_digit = |word: &String| word.contains(|c: char| c.is_ascii_digit());
    if words.iter().zip(&kinds).any(|(word, kind)| kind.size && has_digit(word)) {
        for (word, kind) in words.iter().zip(&mut kinds) {
            kind.size &= !word.chars().all(char::is_alphabetic);
        }
    }
    let mut at_start = true;
    for (word, kind) in words.iter().zip(&mut kinds) {
        let is_word = kind.is_nothing() && word.starts_with(char::is_alphabetic);
        if at_start && (is_word || kind.version) {
            kind.base = true;
        } else {
            at_start = false;
            kind.tune |= kind.is_nothing();
        }
    }
    // A version at the end of the family's name is a version only.
    for kind in kinds.iter_mut().rev() {
        if !(kind.base && kind.version) {
            break;
        }
        kind.base = false;
    }
    let join = |wanted: fn(&Word) -> bool| {
        let chosen = words.iter().zip(&kinds).filter(|(_, kind)| wanted(kind));
        let chosen: Vec<&str> = chosen.map(|(word, _)| word.as_str()).collect();
        (!chosen.is_empty()).then_some(chosen)
    };
    let size = join(|kind| kind.size).map(|words| {
        let is_first = |(i, word): &(usize, &&str)| !words[..*i].contains(*word);
        words.iter().enumerate().filter(is_first).map(|(_, word)| *word).collect::<Vec<_>>()
    });
    let finetune = join(|kind| kind.tune);
    let version = join(|kind| kind.version && !kind.base);
    // A family name alone is too weak as evidence.
    let basename = join(|kind| kind.base)
        .filter(|_| size.is_some() || finetune.is_some() || version.is_some());
    let text = |words: Option<Vec<&str>>| words.map(|words| words.join("-"));
    Parts {
        name: title(full),
        organization: organization.and_then(title),
        basename: text(basename),
        finetune: text(finetune),
        version: text(version),
        size_label: text(size),
    }
}

/// Classifies one word of a name, and normalises its spelling.
fn classify(word: &mut String, is_first: bool, parameters: u64) -> Word {
    let mut kind = Word::default();
    let lower = word.to_ascii_lowercase();
    if is_version(&lower) {
        kind.version = true;
    } else if is_type(&lower) {
        kind.ty = true;
        *word = word.to_ascii_uppercase();
    } else if !is_first && is_size(&lower) {
        let mut size = regular_size(word);
        if is_far_off(&size, parameters) {
            // A context length: its letter is lower case.
            kind.tune = true;
            if let Some(letter) = size.pop() {
                size.push(letter.to_ascii_lowercase());
            }
        } else {
            kind.size = true;
        }
        *word = size;
    } else if !is_first && ["chat", "instruct", "vision", "lora"].contains(&&*lower) {
        kind.tune = true;
    }
    kind
}

/// `1`, `2.5`, `v0.3`, `iter3`.
fn is_version(word: &str) -> bool {
    let number = word.strip_prefix("iter").or(word.strip_prefix('v')).unwrap_or(word);
    number.split('.').all(is_digits)
}

/// `f16`, `bf16`, `fp32`, `q8_0`, `iq4_xs`.
fn is_type(word: &str) -> bool {
    let float = word.strip_prefix('b').unwrap_or(word);
    let float = float.strip_prefix('f').map(|rest| rest.strip_prefix('p').unwrap_or(rest));
    if float.is_some_and(|bits| bits == "16" || bits == "32") {
        return true;
    }
    let blocks = word.strip_prefix('i').unwrap_or(word).strip_prefix('q');
    let Some((digit, rest)) = blocks.and_then(|rest| rest.split_at_checked(1)) else {
        return false;
    };
    // After the digit: an underscore and one character, any number of times.
    let rest: Vec<char> = rest.chars().collect();
    let is_pair = |pair: &[char]| matches!(pair, ['_', c] if c.is_alphanumeric() || *c == '_');
    is_digits(digit) && rest.chunks(2).all(is_pair)
}

/// `7B`, `1.5b`, `8x7B`, `A3B`, `7b1`, `small`.
fn is_size(word: &str) -> bool {
    if ["small", "mini", "medium", "large", "l", "xl", "xxl"].contains(&word) {
        // "l" alone is not a size.
        return word != "l";
    }
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let mut rest = word;
    if let Some(active) = rest.strip_prefix('a') {
        rest = active;
    } else if let Some(times) = rest[digits(rest)..].strip_prefix('x').filter(|_| digits(rest) > 0)
    {
        rest = times;
    }
    if digits(rest) == 0 {
        return false;
    }
    rest = &rest[digits(rest)..];
    if let Some(fraction) = rest.strip_prefix(['.', '_']).filter(|fraction| digits(fraction) > 0) {
        rest = &fraction[digits(fraction)..];
    }
    let Some(rest) = rest.strip_prefix(['k', 'm', 'b', 't']) else { return false };
    rest.is_empty() || (rest.len() == 1 && is_digits(rest))
}

/// `1_5b` is 1.5B, `7b1` is 7.1B.
fn regular_size(word: &str) -> String {
    let mut size: Vec<char> = word.replace('_', ".").chars().collect();
    if let [.., letter, digit] = size[..]
        && digit.is_ascii_digit()
    {
        size.truncate(size.len() - 2);
        size.extend(['.', digit, letter]);
    }
    if let [.., before, letter] = &mut size[..]
        && before.is_ascii_digit()
    {
        letter.make_ascii_uppercase();
    }
    size.into_iter().collect()
}

/// True if a size is unrelated to the number of parameters.
fn is_far_off(size: &str, parameters: u64) -> bool {
    let Some((at, letter)) = size.char_indices().last() else { return false };
    let power = match letter {
        'K' => 1,
        'M' => 2,
        'B' => 3,
        'T' => 4,
        _ => return false,
    };
    let Ok(number) = size[..at].parse::<f64>() else { return false };
    let named = number * 1000f64.powi(power);
    parameters > 0 && (named - parameters as f64).abs() > (u128::from(parameters) * 7 / 8) as f64
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns a name for display: spaces for hyphens, words capitalised unless they are versions or
/// already have capitals.
fn title(name: &str) -> Option<String> {
    let words: Vec<String> = name.replace('-', " ").split_whitespace().map(title_word).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn title_word(word: &str) -> String {
    let is_lower = word.contains(char::is_lowercase) && !word.contains(char::is_uppercase);
    let numbered = word.strip_prefix('v').is_some_and(|rest| rest.split('.').all(is_digits));
    if !is_lower || numbered || word.starts_with(|c: char| c.is_ascii_digit()) {
        return word.into();
    }
    let mut inside = false;
    let capital = |c: char| {
        let first = c.is_alphabetic() && !inside;
        inside = c.is_alphabetic();
        if first { c.to_uppercase().collect::<Vec<_>>() } else { vec![c] }
    };
    word.chars().flat_map(capital).collect()
}

/// Formats a number of parameters with two digits or more: `135M`, `1.1B`.
pub(super) fn size_label(parameters: u64) -> String {
    let count = parameters as f64;
    let (scaled, letter) = match count {
        _ if count > 1e12 => (count * 1e-12, 'T'),
        _ if count > 1e9 => (count * 1e-9, 'B'),
        _ if count > 1e6 => (count * 1e-6, 'M'),
        _ => (count * 1e-3, 'K'),
    };
    let digits = match scaled.round_ties_even() {
        whole if whole < 1.0 => 0,
        whole => whole.to_string().len(),
    };
    format!("{scaled:.*}{letter}", 2usize.saturating_sub(digits))
}
