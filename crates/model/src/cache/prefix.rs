//! What of a prompt need not be computed again.

/// How many tokens at the beginning of `prompt` a cache that holds the positions of `cached` has already. The
/// last token of the prompt never counts: it is computed in any case, because its logits are wanted.
pub fn reusable(cached: &[u32], prompt: &[u32]) -> usize {
    let common = cached.iter().zip(prompt).take_while(|(a, b)| a == b).count();
    common.min(prompt.len().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::reusable;

    #[test]
    fn the_longest_common_beginning_but_for_the_last_token() {
        assert_eq!(reusable(&[], &[1, 2]), 0);
        assert_eq!(reusable(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(reusable(&[9, 2, 3], &[1, 2, 3]), 0);
        assert_eq!(reusable(&[1, 2, 3], &[1, 2, 3]), 2, "its last token is computed");
        assert_eq!(reusable(&[1, 2, 3, 4], &[1, 2]), 1, "and that of a shorter one");
        assert_eq!(reusable(&[1], &[]), 0);
    }
}
