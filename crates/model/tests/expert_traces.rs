//! Which experts stay in memory, replayed from recorded runs (`tests/data/experts`): by expected next use never much worse than by last
//! use alone, and better where memory is short and some experts are chosen more often than others.
//!
//! For each NAME of qwen3, gpt-oss and flat they were made by `python -m evidence make random-model a3b FILE --layers 4 --routing NAME` and
//! `alight bench experts FILE --memory 20G -n 128 --trace-experts tests/data/experts/NAME.txt`.

use alight_model::{ExpertTrace, Rule};

/// How many experts have room, in percent of all.
const SHARES: [usize; 10] = [3, 5, 10, 15, 20, 25, 30, 40, 50, 75];

/// For each share: the hit rates in percent by [`Rule::ALL`], of the second half of a run.
fn hits(name: &str) -> Vec<(usize, [f64; 3])> {
    let path = format!("{}/../../tests/data/experts/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let trace: ExpertTrace = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
    let hits = |share| {
        let room = trace.experts() * share / 100;
        let replayed =
            Rule::ALL.map(|rule| trace.replay(room, rule, trace.visits() / 2).unwrap().share());
        (share, replayed.map(|share| 100.0 * share))
    };
    SHARES.map(hits).to_vec()
}

#[test]
fn what_is_kept_is_chosen_again_at_least_as_often_as_what_was_chosen_last() {
    for (name, skewed) in [("qwen3", true), ("gpt-oss", true), ("flat", false)] {
        for (share, [ours, last, best]) in hits(name) {
            println!("{name}, {share} %: {ours:.1}, by last use {last:.1}, at best {best:.1}");
            assert!(ours >= last - 1.0, "{name}, {share} %: {ours} and {last}");
            assert!(ours <= best, "{name}, {share} %: {ours} and {best}");
            if skewed && share == 10 {
                assert!(ours >= last + 5.0, "{name}, {share} %: {ours} and {last}");
            }
        }
    }
}
