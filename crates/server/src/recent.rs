//! The items of answers that were sent lately. Clients of `/v1/responses` may refer to them by their ids instead of sending them again.
//!
//! Invariant: an item is found with the API key that it was made for, and with no other.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// Maximum bytes of all items, as JSON.
pub(crate) const MAX_BYTES: usize = 16 << 20;
/// The bytes that an item takes in addition to its text.
const OVERHEAD: usize = 256;

/// The salt of a key, and the id of an item.
type Key = (Box<str>, Box<str>);

/// The last items, the oldest of which are forgotten first.
#[derive(Default)]
pub(crate) struct RecentItems(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    items: HashMap<Key, Box<str>>,
    /// The keys of the items, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

impl RecentItems {
    /// Remembers the items of an answer, for the key with this salt.
    pub(crate) fn keep(&self, salt: &str, items: &[Value]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for item in items {
            if let Some(id) = item["id"].as_str() {
                kept.add((salt.into(), id.into()), item.to_string().into());
            }
        }
    }

    /// Returns the item with this id, if it is remembered.
    pub(crate) fn find(&self, salt: &str, id: &str) -> Option<Value> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::from_str(kept.items.get(&(salt.into(), id.into()))?).ok()
    }
}

/// The bytes that an item takes.
fn size(key: &Key, item: &str) -> usize {
    OVERHEAD + 2 * (key.0.len() + key.1.len()) + item.len()
}

impl Kept {
    fn add(&mut self, key: Key, item: Box<str>) {
        let size_of_it = size(&key, &item);
        if size_of_it > MAX_BYTES || self.items.contains_key(&key) {
            return;
        }
        while self.bytes + size_of_it > MAX_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(item) = self.items.remove(&oldest) {
                self.bytes -= size(&oldest, &item);
            }
        }
        self.bytes += size_of_it;
        self.order.push_back(key.clone());
        self.items.insert(key, item);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_items_are_forgotten_and_a_key_has_its_own() {
        let recent = RecentItems::default();
        let item = |id: &str, bytes: usize| json!({"id": id, "text": "x".repeat(bytes)});
        recent.keep("a", &[item("1", 10), item("2", MAX_BYTES / 2)]);
        assert_eq!(recent.find("a", "1"), Some(item("1", 10)));
        assert_eq!((recent.find("b", "1"), recent.find("a", "3")), (None, None));
        // One that is too large replaces nothing.
        recent.keep("a", &[item("4", MAX_BYTES)]);
        assert!(recent.find("a", "4").is_none() && recent.find("a", "1").is_some());
        recent.keep("a", &[item("3", MAX_BYTES / 2)]);
        assert!(recent.find("a", "1").is_none() && recent.find("a", "2").is_none());
        assert!(recent.find("a", "3").is_some());
        let kept = recent.0.lock().unwrap();
        assert!(kept.bytes <= MAX_BYTES && kept.order.len() == kept.items.len());
    }
}
