//! Fields of requests that nothing here knows: each is logged once, and counted for `/metrics`. The number of names is bounded.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::Log;

/// Maximum number of names, and of characters of each.
const MAX_NAMES: usize = 64;
const MAX_CHARS: usize = 60;
/// Counts all further names.
const OTHERS: &str = "(others)";

/// The unknown fields so far.
pub(crate) struct UnknownFields {
    /// By the name of the field.
    counts: Mutex<BTreeMap<String, u64>>,
    log: Log,
}

impl UnknownFields {
    pub(crate) fn new(log: Log) -> UnknownFields {
        UnknownFields { counts: Mutex::default(), log }
    }

    /// Counts a field of a request to this path.
    pub(crate) fn count(&self, path: &str, name: &str) {
        let mut shown: String = name.chars().take(MAX_CHARS).collect();
        if shown.len() < name.len() {
            shown.push('…');
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if !counts.contains_key(&shown) && counts.len() >= MAX_NAMES {
            shown = OTHERS.to_owned();
        }
        let count = counts.entry(shown.clone()).or_default();
        *count += 1;
        let first = *count == 1;
        drop(counts);
        if first {
            (self.log)(&format!(
                "{path} has no field {shown:?}: it is ignored (logged once; --metrics counts how often it comes)"
            ));
        }
    }

    /// Returns each name and how often it came.
    pub(crate) fn now(&self) -> Vec<(String, u64)> {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|(name, count)| (name.clone(), *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_name_is_logged_once_and_the_number_of_names_is_bounded() {
        let logged = Arc::new(Mutex::new(Vec::new()));
        let log: Log = {
            let logged = Arc::clone(&logged);
            Arc::new(move |text: &str| logged.lock().unwrap().push(text.to_owned()))
        };
        let fields = UnknownFields::new(log);
        fields.count("/completion", "a\n\u{1b}b");
        for i in 0..1000 {
            fields.count("/completion", "a\n\u{1b}b");
            fields.count("/completion", &format!("{i}{}", "é".repeat(100)));
        }
        let counts = fields.now();
        assert_eq!(counts.len(), MAX_NAMES + 1);
        let of = |name: &str| counts.iter().find(|(own, _)| own == name).unwrap().1;
        assert_eq!((of("a\n\u{1b}b"), of(OTHERS)), (1001, 1000 - (MAX_NAMES as u64 - 1)));
        assert!(counts.iter().all(|(name, _)| name.chars().count() <= MAX_CHARS + 1));
        let logged = logged.lock().unwrap();
        assert_eq!(logged.len(), MAX_NAMES + 1);
        assert!(logged[0].starts_with("/completion has no field \"a\\n\\u{1b}b\": "), "{logged:?}");
    }
}
