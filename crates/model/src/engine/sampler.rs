//! Turns logits into a token: biases, penalties, top-k, top-p, min-p, temperature, then a draw.
//!
//! The stages, their order and their meaning are the same as in llama.cpp's default chain:
//! 1. biases are added; then penalties on the tokens accepted lately: the repeat penalty (a positive logit is divided by it, a
//!    negative one multiplied), the frequency penalty (subtracted as often as the token came) and the presence penalty (once);
//! 2. top-k: the k greatest logits; 3. top-p: the fewest of them whose probabilities reach p;
//! 4. min-p: the tokens at least p times as likely as the likeliest; 5. division by the temperature;
//! 6. a draw from the softmax of what is left. Temperature 0 takes the greatest logit after 1.
//!
//! Invariants: after [`Sampler::new`] nothing is allocated; the same seed and the same calls give
//! the same tokens (on another machine too, except for the last bit of its `exp`); of equal logits
//! the lower id is the greater; a NaN counts as −∞, and no logits whatever lead to a panic.

use std::cmp::Ordering;

/// How tokens are chosen. The defaults are llama.cpp's, except for the seed, which is 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Divides the logits; 0 (or a negative value) always takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the most likely tokens that make up this share of the probability; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely, relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// [`top_p`](Self::top_p) and [`min_p`](Self::min_p) leave at least this many tokens, or all that there are.
    pub min_keep: usize,
    /// Makes recently accepted tokens less likely by this factor; 1 has no effect.
    pub repeat_penalty: f32,
    /// Subtracted from the logit of a token for each time that it was recently accepted; 0 has no effect.
    pub frequency_penalty: f32,
    /// Subtracted from the logits of recently accepted tokens; 0 has no effect.
    pub presence_penalty: f32,
    /// Number of tokens that count as recent; 0: none.
    pub repeat_last_n: usize,
    /// Seed of the random draws.
    pub seed: u64,
}

impl Default for SamplerOptions {
    fn default() -> SamplerOptions {
        SamplerOptions::DEFAULT
    }
}

impl SamplerOptions {
    /// The defaults.
    pub const DEFAULT: SamplerOptions = SamplerOptions {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        min_keep: 0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        repeat_last_n: 64,
        seed: 0,
    };

    /// Always takes the most likely token.
    pub fn greedy() -> SamplerOptions {
        SamplerOptions { temperature: 0.0, ..SamplerOptions::default() }
    }
}

/// A token and its logit, never NaN.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    logit: f32,
    id: u32,
}

/// Orders candidates by descending logit; the lower id comes first among equal logits.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    // There is no NaN here, so `Equal` means equal (0 and −0 included).
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Chooses tokens and remembers the accepted ones.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    vocab_size: usize,
    random: Random,
    /// The last accepted tokens, a ring of at most `remembered`.
    last: Vec<u32>,
    remembered: usize,
    /// The index of the oldest token in a full ring.
    oldest: usize,
    /// Biases added to the logits of some tokens, ids ascending.
    bias: Vec<Candidate>,
    /// Tokens with a bias or a penalty, with their new logits, ids ascending.
    changed: Vec<Candidate>,
    /// Tokens still under consideration, at most `capacity` at a time.
    candidates: Vec<Candidate>,
    capacity: usize,
}

/// Capacity beyond k, so that the k best are not selected again for every candidate.
const SLACK: usize = 1024;

impl Sampler {
    /// Creates a sampler for logits of `vocab_size` tokens; further entries are ignored.
    pub fn new(options: SamplerOptions, vocab_size: usize) -> Sampler {
        // More than any context has.
        const MAX_REMEMBERED: usize = 1 << 20;
        let plain = options.repeat_penalty == 1.0
            && options.frequency_penalty == 0.0
            && options.presence_penalty == 0.0;
        let remembered = if plain { 0 } else { options.repeat_last_n.min(MAX_REMEMBERED) };
        let capacity = if options.temperature <= 0.0 {
            0
        } else if options.top_k == 0 {
            vocab_size
        } else {
            vocab_size.min(options.top_k.saturating_add(options.top_k.max(SLACK)))
        };
        Sampler {
            options,
            vocab_size,
            random: Random::new(options.seed),
            last: Vec::with_capacity(remembered),
            remembered,
            oldest: 0,
            bias: Vec::new(),
            changed: Vec::with_capacity(remembered),
            candidates: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Adds `bias` to the logits of tokens before any other stage. Several entries for a token are summed.
    pub fn with_bias(mut self, bias: &[(u32, f32)]) -> Sampler {
        self.bias.extend(bias.iter().map(|(id, bias)| Candidate { logit: *bias, id: *id }));
        sum_by_id(&mut self.bias);
        self.changed.reserve_exact(self.remembered + self.bias.len());
        self
    }

    /// The options that the sampler was created with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Counts `id` among the recent tokens.
    pub fn accept(&mut self, id: u32) {
        if self.last.len() < self.remembered {
            self.last.push(id);
        } else if let Some(slot) = self.last.get_mut(self.oldest) {
            *slot = id;
            self.oldest = (self.oldest + 1) % self.last.len();
        }
    }

    /// Forgets the accepted tokens and restarts the random draws.
    pub fn reset(&mut self) {
        self.last.clear();
        self.oldest = 0;
        self.random = Random::new(self.options.seed);
    }

    /// Chooses a token; 0 if there are no logits. Does not accept it.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let logits = &logits[..logits.len().min(self.vocab_size)];
        self.change(logits);
        // A NaN temperature counts as 0.
        if self.options.temperature <= 0.0 || self.options.temperature.is_nan() {
            return self.greatest(logits);
        }
        self.gather(logits);
        self.top_p();
        self.min_p();
        self.draw()
    }

    /// Computes the new logits of the tokens that have a bias or were recently accepted.
    fn change(&mut self, logits: &[f32]) {
        let SamplerOptions { repeat_penalty, frequency_penalty, presence_penalty, .. } =
            self.options;
        // First the number of recent occurrences of each.
        self.changed.clear();
        self.changed.extend(self.last.iter().map(|id| Candidate { logit: 1.0, id: *id }));
        self.changed.extend(self.bias.iter().map(|bias| Candidate { logit: 0.0, ..*bias }));
        self.changed.retain(|c| (c.id as usize) < logits.len());
        sum_by_id(&mut self.changed);
        for c in &mut self.changed {
            let count = c.logit;
            let mut logit = logits[c.id as usize];
            if let Ok(at) = self.bias.binary_search_by_key(&c.id, |bias| bias.id) {
                logit += self.bias[at].logit;
            }
            if count > 0.0 {
                logit = if logit <= 0.0 { logit * repeat_penalty } else { logit / repeat_penalty };
                logit -= count * frequency_penalty + presence_penalty;
            }
            c.logit = clean(logit);
        }
    }

    /// Returns the token with the greatest logit.
    fn greatest(&self, logits: &[f32]) -> u32 {
        let mut best = Candidate { logit: f32::NEG_INFINITY, id: u32::MAX };
        let mut offer = |c: Candidate| {
            if descending(&c, &best).is_lt() {
                best = c;
            }
        };
        let mut from = 0;
        for &changed in &self.changed {
            let to = changed.id as usize;
            offer(greatest_of(&logits[from..to], from));
            offer(changed);
            from = to + 1;
        }
        offer(greatest_of(&logits[from..], from));
        if best.id == u32::MAX { 0 } else { best.id }
    }

    /// Fills `candidates` with the top-k of the logits, unordered.
    fn gather(&mut self, logits: &[f32]) {
        self.candidates.clear();
        let k = match self.options.top_k {
            0 => logits.len(),
            k => k.min(logits.len()),
        };
        // A logit that is not greater than this cannot be among the k best: ids only increase, so an equal logit comes after k others.
        let mut floor = None;
        let changed = std::mem::take(&mut self.changed);
        let mut from = 0;
        for &c in &changed {
            let to = c.id as usize;
            self.gather_run(&logits[from..to], from, k, &mut floor);
            self.gather_run(&[c.logit], to, k, &mut floor);
            from = to + 1;
        }
        self.gather_run(&logits[from..], from, k, &mut floor);
        self.changed = changed;
        self.keep_best(k);
    }

    fn gather_run(&mut self, logits: &[f32], first: usize, k: usize, floor: &mut Option<f32>) {
        const BLOCK: usize = 64;
        for (i, block) in logits.chunks(BLOCK).enumerate() {
            if let Some(floor) = *floor {
                // Most blocks have no candidates; this loop is one vector comparison for each.
                let mut any = false;
                for &logit in block {
                    any |= logit > floor;
                }
                if !any {
                    continue;
                }
            }
            for (j, &logit) in block.iter().enumerate() {
                let logit = clean(logit);
                if floor.is_some_and(|floor| logit <= floor) {
                    continue;
                }
                if self.candidates.len() == self.capacity {
                    self.keep_best(k);
                    *floor = self.candidates.iter().map(|c| c.logit).reduce(f32::min);
                    if floor.is_some_and(|floor| logit <= floor) {
                        continue;
                    }
                }
                self.candidates.push(Candidate { logit, id: (first + i * BLOCK + j) as u32 });
            }
        }
    }

    /// Reduces the candidates to the k best, unordered.
    fn keep_best(&mut self, k: usize) {
        if k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(k, descending);
            self.candidates.truncate(k);
        }
    }

    fn greatest_logit(&self) -> f32 {
        self.candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Keeps the most likely candidates whose probabilities together reach p.
    fn top_p(&mut self) {
        let p = self.options.top_p;
        if p >= 1.0 || p.is_nan() || self.candidates.len() < 2 {
            return;
        }
        let greatest = self.greatest_logit();
        let total: f64 = self.candidates.iter().map(|c| weight(c.logit, greatest, 1.0)).sum();
        let wanted = f64::from(p) * total;
        // The head is sorted in pieces: usually only a few candidates are needed, and there may be as many as the vocabulary has tokens.
        let mut sorted = 0;
        let mut step = 64;
        let mut reached = 0.0;
        while sorted < self.candidates.len() {
            let rest = &mut self.candidates[sorted..];
            let take = step.min(rest.len());
            if take < rest.len() {
                rest.select_nth_unstable_by(take, descending);
            }
            rest[..take].sort_unstable_by(descending);
            for (i, c) in rest[..take].iter().enumerate() {
                reached += weight(c.logit, greatest, 1.0);
                let kept = sorted + i + 1;
                if reached >= wanted && kept >= self.options.min_keep {
                    self.candidates.truncate(kept);
                    return;
                }
            }
            sorted += take;
            step *= 4;
        }
    }

    /// Keeps the candidates at least p times as likely as the most likely.
    fn min_p(&mut self) {
        let p = self.options.min_p;
        if p <= 0.0 || p.is_nan() {
            return;
        }
        let greatest = self.greatest_logit();
        // With p > 1 none would be left: the most likely candidate always stays.
        let floor = greatest + p.min(1.0).ln();
        if !floor.is_finite() {
            return;
        }
        let least = self.options.min_keep;
        match self.candidates.iter().filter(|c| c.logit >= floor).count() >= least {
            true => self.candidates.retain(|c| c.logit >= floor),
            false => self.keep_best(least),
        }
    }

    /// Draws from the softmax of the candidates at the configured temperature.
    fn draw(&mut self) -> u32 {
        let greatest = self.greatest_logit();
        let scale = 1.0 / f64::from(self.options.temperature);
        let weight = |c: &Candidate| weight(c.logit, greatest, scale);
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut left = self.random.unit() * total;
        let mut last = None;
        for c in &self.candidates {
            let weight = weight(c);
            if weight > 0.0 {
                last = Some(c.id);
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        // `last` also receives the remainder left by rounding; if no candidate has any weight (all −∞), the lowest id is chosen.
        last.or_else(|| self.candidates.iter().map(|c| c.id).min()).unwrap_or(0)
    }
}

/// Returns the probability up to a common factor: exp((logit − greatest)·scale). If the greatest is infinite, logits equal to it weigh 1 and all
/// others 0.
fn weight(logit: f32, greatest: f32, scale: f64) -> f64 {
    if greatest.is_infinite() {
        f64::from(u8::from(logit == greatest && greatest > 0.0))
    } else {
        ((f64::from(logit) - f64::from(greatest)) * scale).exp()
    }
}

/// Sorts by id, and merges entries with the same id.
fn sum_by_id(candidates: &mut Vec<Candidate>) {
    candidates.sort_unstable_by_key(|c| c.id);
    candidates.dedup_by(|from, into| {
        let same = from.id == into.id;
        if same {
            into.logit += from.logit;
        }
        same
    });
}

fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Returns the greatest of consecutive logits whose ids begin at `first`; id `u32::MAX` if there are none.
fn greatest_of(logits: &[f32], first: usize) -> Candidate {
    // First the value, in independent lanes that the compiler turns into vectors (a comparison with NaN is false, so NaN is never taken), then its
    // index.
    const LANES: usize = 32;
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (blocks, rest) = logits.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &logit) in lanes.iter_mut().zip(block) {
            *lane = if logit > *lane { logit } else { *lane };
        }
    }
    let mut logit = f32::NEG_INFINITY;
    for &other in lanes.iter().chain(rest) {
        logit = if other > logit { other } else { logit };
    }
    match logits.iter().position(|&other| other == logit) {
        Some(at) => Candidate { logit, id: (first + at) as u32 },
        // Only NaN.
        None if !logits.is_empty() => Candidate { logit, id: first as u32 },
        None => Candidate { logit, id: u32::MAX },
    }
}

/// xoshiro256++ (Blackman and Vigna, 2019), seeded through SplitMix64 as its authors advise.
#[derive(Clone, Debug)]
struct Random([u64; 4]);

impl Random {
    fn new(seed: u64) -> Random {
        let mut state = seed;
        Random(std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ z >> 31
        }))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number in [0, 1), with 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        // xoshiro256++ from the state 1, 2, 3, 4 (as in the reference implementation's tests).
        let mut random = Random([1, 2, 3, 4]);
        let got: Vec<u64> = (0..4).map(|_| random.next()).collect();
        assert_eq!(got, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
        // SplitMix64 from 0.
        assert_eq!(Random::new(0).0[0], 0xe220_a839_7b1d_cdaf);
    }

    fn kept(options: SamplerOptions, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(options, logits.len());
        sampler.change(logits);
        sampler.gather(logits);
        sampler.top_p();
        sampler.min_p();
        let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    const ALL: SamplerOptions = SamplerOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        min_keep: 0,
        repeat_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        repeat_last_n: 0,
        seed: 0,
    };

    fn random_logits(n: usize, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        // Sums of uniform numbers, with many ties.
        (0..n)
            .map(|_| ((random.unit() + random.unit() + random.unit()) * 40.0).round() as f32 / 4.0)
            .collect()
    }

    #[test]
    fn top_k_keeps_exactly_the_k_best() {
        for (n, k) in [(1, 1), (5, 3), (100, 40), (5000, 40), (5000, 1), (70_000, 2000), (300, 500)]
        {
            let logits = random_logits(n, n as u64 + k as u64);
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by(|&a, &b| {
                logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
            });
            order.truncate(k);
            order.sort_unstable();
            assert_eq!(kept(SamplerOptions { top_k: k, ..ALL }, &logits), order, "{k} of {n}");
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_that_reach_p() {
        for (n, p) in [(10, 0.5f32), (1000, 0.9), (1000, 0.999), (20_000, 0.3), (10, 0.0)] {
            let logits = random_logits(n, n as u64);
            let mut order: Vec<u32> = (0..n as u32).collect();
            order.sort_by(|&a, &b| {
                logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b))
            });
            let weights: Vec<f64> =
                order.iter().map(|&i| f64::from(logits[i as usize]).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = 0.0;
            let count = weights
                .iter()
                .position(|w| {
                    sum += w / total;
                    sum >= f64::from(p)
                })
                .unwrap()
                + 1;
            order.truncate(count);
            order.sort_unstable();
            assert_eq!(kept(SamplerOptions { top_p: p, ..ALL }, &logits), order, "{p} of {n}");
        }
    }

    #[test]
    fn min_p_is_relative_to_the_likeliest() {
        let logits = [0.0, -1.0, -2.0, -3.0, -4.0];
        // exp(−2) = 0.135, exp(−3) = 0.0498
        assert_eq!(kept(SamplerOptions { min_p: 0.1, ..ALL }, &logits), [0, 1, 2]);
        assert_eq!(kept(SamplerOptions { min_p: 0.049, ..ALL }, &logits), [0, 1, 2, 3]);
        assert_eq!(kept(SamplerOptions { min_p: 1.0, ..ALL }, &logits), [0]);
        assert_eq!(kept(SamplerOptions { min_p: 7.0, ..ALL }, &logits), [0]);
    }

    #[test]
    fn top_p_and_min_p_leave_as_many_tokens_as_are_wanted() {
        let logits = [-4.0, 0.0, -1.0, -2.0, -3.0];
        for (min_keep, wanted) in [
            (0, &[1][..]),
            (1, &[1]),
            (3, &[1, 2, 3]),
            (5, &[0, 1, 2, 3, 4]),
            (9, &[0, 1, 2, 3, 4]),
        ] {
            for options in [
                SamplerOptions { top_p: 0.1, ..ALL },
                SamplerOptions { min_p: 0.9, ..ALL },
                SamplerOptions { top_p: 0.1, min_p: 0.9, ..ALL },
            ] {
                assert_eq!(kept(SamplerOptions { min_keep, ..options }, &logits), wanted);
            }
        }
        // It does not change what top-k leaves, nor what more than as many reach.
        let options = SamplerOptions { top_k: 2, top_p: 0.1, min_keep: 4, ..ALL };
        assert_eq!(kept(options, &logits), [1, 2]);
        let options = SamplerOptions { min_p: 0.1, min_keep: 2, ..ALL };
        assert_eq!(kept(options, &logits), [1, 2, 3]);
    }

    #[test]
    fn nothing_is_allocated_after_new() {
        let logits = random_logits(10_000, 3);
        for top_k in [0, 1, 40, 9_999, 20_000] {
            for temperature in [0.0, 0.8] {
                let options = SamplerOptions { top_k, temperature, repeat_penalty: 1.3, ..ALL };
                let options = SamplerOptions { repeat_last_n: 16, top_p: 0.9, ..options };
                let mut sampler = Sampler::new(options, logits.len());
                let capacity = |s: &Sampler| {
                    (s.last.capacity(), s.changed.capacity(), s.candidates.capacity())
                };
                let before = capacity(&sampler);
                for i in 0..50 {
                    let id = sampler.sample(&logits);
                    sampler.accept(id);
                    sampler.accept(i);
                }
                assert_eq!(capacity(&sampler), before);
            }
        }
    }
}
