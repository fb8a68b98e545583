//! Turns logits into a token: biases, penalties, top-n-sigma, top-k, top-p, min-p, XTC, temperature, then a draw.
//!
//! The stages, their order and their meaning are the same as in llama.cpp's default chain:
//! 1. biases are added; then penalties on the tokens accepted lately: the repeat penalty (a positive logit is divided by it, a
//!    negative one multiplied), the frequency penalty (subtracted as often as the token came) and the presence penalty (once); then
//!    [DRY](super::dry), which reduces the logits of tokens that would continue a repetition;
//! 2. top-n-sigma: the logits at most n standard deviations of all logits below the greatest;
//! 3. top-k: the k greatest logits; 4. top-p: the fewest of them whose probabilities reach p;
//! 5. min-p: the tokens at least p times as likely as the likeliest;
//! 6. XTC: with some probability, of the tokens at least as likely as a threshold only the least likely one stays, with all below it;
//! 7. division by the temperature;
//! 8. a draw from the softmax of what is left. Temperature 0 takes the greatest logit that is left: of all after 1, unless XTC is on.
//!
//! Mirostat replaces the penalties and 2 to 6, as in llama.cpp: after biases and the temperature, it draws from the likeliest tokens, whose number
//! follows from a limit of surprise (−log₂ of a token's probability). Each draw moves the limit, so that the mean surprise of an answer approaches a
//! target; each answer begins with the same limit.
//!
//! Invariants: after [`Sampler::new`] nothing is allocated; the same seed and the same calls give
//! the same tokens (on another machine too, except for the last bit of its `exp`); of equal logits
//! the lower id is the greater; a NaN counts as −∞, and no logits whatever lead to a panic.

use std::cmp::Ordering;
use std::sync::Arc;

use alight_kernels::matmul::best::Greatest;
use alight_text::{SequenceBreakers, Tokenizer};

use super::best::MAX_GREATEST;
use super::dry::{Dry, DryOptions};
use super::history::History;

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
    /// DRY: reduces the logits of tokens that would continue a repetition by this, times a power of [`dry_base`](Self::dry_base); 0 has no effect.
    pub dry_multiplier: f32,
    /// The base of the power, at least 1.
    pub dry_base: f32,
    /// The length of a repetition whose power is 0; shorter ones have no effect.
    pub dry_allowed_length: usize,
    /// Number of tokens in which repetitions are found; 0: none.
    pub dry_penalty_last_n: usize,
    /// XTC: the probability with which likely tokens are left out; 0: never.
    pub xtc_probability: f32,
    /// From this probability on a token is likely; above 0.5, XTC has no effect.
    pub xtc_threshold: f32,
    /// Keep the tokens whose logits are at most this many standard deviations below the greatest; 0 or less keeps all.
    pub top_n_sigma: f32,
    /// Draw with Mirostat of this version, 1 or 2, in place of the penalties and of top-n-sigma, top-k, top-p, min-p and XTC; 0: do not.
    pub mirostat: usize,
    /// Mirostat: the mean surprise of a token to aim at, in bits.
    pub mirostat_tau: f32,
    /// Mirostat: the share of a token's deviation from it by which the limit of surprise is changed.
    pub mirostat_eta: f32,
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
        dry_multiplier: 0.0,
        dry_base: 1.75,
        dry_allowed_length: 2,
        dry_penalty_last_n: 64,
        xtc_probability: 0.0,
        xtc_threshold: 0.1,
        top_n_sigma: -1.0,
        mirostat: 0,
        mirostat_tau: 5.0,
        mirostat_eta: 0.1,
        seed: 0,
    };

    /// Texts that break sequences for DRY, unless others are given.
    pub const DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

    /// Always takes the most likely token.
    pub fn greedy() -> SamplerOptions {
        SamplerOptions { temperature: 0.0, ..SamplerOptions::default() }
    }

    /// Number of recent tokens that have penalties.
    fn penalised(&self) -> usize {
        let plain = self.repeat_penalty == 1.0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0;
        let last_n = if plain || self.mirostat != 0 { 0 } else { self.repeat_last_n };
        last_n.min(MAX_REMEMBERED)
    }

    /// Returns true if DRY may reduce logits.
    pub(super) fn has_dry(&self) -> bool {
        !self.dry().are_off()
    }

    /// Returns the tokens of `texts`, or of [`DRY_SEQUENCE_BREAKERS`](Self::DRY_SEQUENCE_BREAKERS), for [`Sampler::with_breakers`]; none if DRY is
    /// off. It takes a search in all tokens.
    pub fn breakers(
        &self,
        tokenizer: &Tokenizer,
        texts: Option<&[String]>,
    ) -> Arc<SequenceBreakers> {
        match texts {
            _ if !self.has_dry() => Arc::default(),
            Some(texts) => Arc::new(SequenceBreakers::new(tokenizer, texts)),
            None => Arc::new(SequenceBreakers::new(tokenizer, &Self::DRY_SEQUENCE_BREAKERS)),
        }
    }

    fn dry(&self) -> DryOptions {
        DryOptions {
            multiplier: if self.mirostat != 0 { 0.0 } else { self.dry_multiplier },
            base: self.dry_base,
            allowed: self.dry_allowed_length,
            window: self.dry_penalty_last_n.min(MAX_REMEMBERED),
        }
    }

    /// Mirostat's limit of surprise at the beginning of an answer.
    fn first_surprise(&self) -> f64 {
        2.0 * f64::from(self.mirostat_tau)
    }

    /// Returns true if XTC may leave tokens out.
    fn has_xtc(&self) -> bool {
        self.mirostat == 0 && self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5
    }

    /// The number of tokens that top-k keeps; 0: all.
    fn kept(&self) -> usize {
        if self.mirostat == 0 { self.top_k } else { 0 }
    }

    /// Returns true if the temperature is 0. A NaN counts as 0.
    fn takes_greatest(&self) -> bool {
        self.temperature <= 0.0 || self.temperature.is_nan()
    }
}

/// Maximum number of tokens that are remembered: more than any context has.
const MAX_REMEMBERED: usize = 1 << 20;

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
    /// The last accepted tokens, for penalties and DRY.
    history: History,
    dry: Dry,
    /// Mirostat: the limit of surprise, in bits.
    surprise: f64,
    /// Biases added to the logits of some tokens, ids ascending.
    bias: Vec<Candidate>,
    /// Tokens with a bias, a penalty or a repetition, with their new logits, ids ascending.
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
        let penalised = options.penalised();
        let dry = options.dry();
        let window = if dry.are_off() { 0 } else { dry.window };
        let capacity = if options.takes_greatest() && !options.has_xtc() {
            0
        } else if options.kept() == 0 {
            vocab_size
        } else {
            vocab_size.min(options.top_k.saturating_add(options.top_k.max(SLACK)))
        };
        Sampler {
            options,
            vocab_size,
            random: Random::new(options.seed),
            history: History::new(penalised.max(window)),
            dry: Dry::new(dry),
            surprise: options.first_surprise(),
            bias: Vec::new(),
            changed: Vec::with_capacity(penalised + window),
            candidates: Vec::with_capacity(capacity),
            capacity,
        }
    }

    /// Adds `bias` to the logits of tokens before any other stage. Several entries for a token are summed.
    pub fn with_bias(mut self, bias: &[(u32, f32)]) -> Sampler {
        self.bias.extend(bias.iter().map(|(id, bias)| Candidate { logit: *bias, id: *id }));
        sum_by_id(&mut self.bias);
        self.changed.reserve_exact(self.changed.capacity() + self.bias.len());
        self
    }

    /// Lets these texts break sequences for DRY; without them, none does.
    pub fn with_breakers(mut self, breakers: Arc<SequenceBreakers>) -> Sampler {
        self.dry.break_at(breakers);
        self
    }

    /// The options that the sampler was created with.
    pub fn options(&self) -> &SamplerOptions {
        &self.options
    }

    /// Counts `id` among the recent tokens.
    pub fn accept(&mut self, id: u32) {
        self.history.push(id);
    }

    /// Begins another answer: forgets the accepted tokens and what Mirostat has learned. The random draws go on.
    pub fn begin(&mut self) {
        self.history.clear();
        self.surprise = self.options.first_surprise();
    }

    /// As [`begin`](Self::begin), and restarts the random draws.
    pub fn reset(&mut self) {
        self.begin();
        self.random = Random::new(self.options.seed);
    }

    /// Returns true if what it accepts changes logits of later tokens.
    pub(super) fn remembers(&self) -> bool {
        self.options.penalised() > 0 || self.options.has_dry()
    }

    /// Requests the logits from which the next token is chosen. Returns false if these are all of them, or more than `most` of the greatest, and of
    /// tokens whose logits are changed.
    pub(super) fn request(&mut self, most: [usize; 2], to: &mut Greatest) -> bool {
        let SamplerOptions { mirostat, top_n_sigma, .. } = self.options;
        let k = match self.options.takes_greatest() && !self.options.has_xtc() {
            true => 1,
            // The deviation is that of all logits.
            false if mirostat != 0 || top_n_sigma > 0.0 => 0,
            false => self.options.kept(),
        };
        self.dry.find(&self.history);
        let recent = self.options.penalised().min(self.history.len());
        let changed = recent + self.bias.len() + self.dry.tokens().count();
        if k == 0 || k > most[0] || changed > most[1] {
            return false;
        }
        let recent = self.history.last(recent);
        let biased = self.bias.iter().map(|bias| bias.id);
        to.request(k, self.vocab_size, recent.chain(biased).chain(self.dry.tokens()));
        true
    }

    /// Chooses a token; 0 if there are no logits. Does not accept it.
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        let logits = &logits[..logits.len().min(self.vocab_size)];
        if self.options.takes_greatest() && !self.options.has_xtc() {
            self.change(logits);
            return self.greatest(logits);
        }
        self.narrow(logits);
        let (id, probability) = self.draw();
        if self.options.mirostat != 0 {
            self.learn(probability);
        }
        id
    }

    /// Fills `candidates` with the tokens to draw from.
    fn narrow(&mut self, logits: &[f32]) {
        self.change(logits);
        self.gather(logits);
        match self.options.mirostat {
            0 => {
                self.top_n_sigma(logits);
                self.top_p();
                self.min_p();
                self.xtc();
                if self.options.takes_greatest() {
                    self.keep_best(1);
                }
            }
            1 => {
                let k = self.mirostat_count();
                self.keep_best(k);
            }
            _ => self.keep_unsurprising(),
        }
    }

    /// Computes the new logits of the tokens that have a bias, were recently accepted, or would continue a repetition.
    fn change(&mut self, logits: &[f32]) {
        let SamplerOptions { repeat_penalty, frequency_penalty, presence_penalty, .. } =
            self.options;
        self.dry.find(&self.history);
        // First the number of recent occurrences of each.
        let recent = self.history.last(self.options.penalised());
        self.changed.clear();
        self.changed.extend(recent.map(|id| Candidate { logit: 1.0, id }));
        self.changed.extend(self.bias.iter().map(|bias| Candidate { logit: 0.0, ..*bias }));
        self.changed.extend(self.dry.tokens().map(|id| Candidate { logit: 0.0, id }));
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
            c.logit = clean(logit - self.dry.penalty(c.id));
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

    /// Fills `candidates` with the top-k of the logits, or with all of them; few of them are in descending order.
    fn gather(&mut self, logits: &[f32]) {
        self.candidates.clear();
        let k = match self.options.kept() {
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
        if (1..=MAX_GREATEST).contains(&self.options.kept()) {
            // In an order that does not depend on the logits that are not kept, which may not have been computed.
            self.candidates.sort_unstable_by(descending);
        }
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

    /// Keeps the candidates at most n standard deviations of all logits below the greatest. Logits of −∞ do not count.
    fn top_n_sigma(&mut self, logits: &[f32]) {
        let n = self.options.top_n_sigma;
        if n <= 0.0 || n.is_nan() || logits.len() < 2 {
            return;
        }
        let (count, sum) = self.sum(logits, |logit| logit);
        let mean = sum / count;
        let (_, squares) = self.sum(logits, |logit| (logit - mean) * (logit - mean));
        let floor = f64::from(self.greatest_logit()) - f64::from(n) * (squares / count).sqrt();
        // With an infinite logit there is no deviation: all stay.
        self.candidates.retain(|c| f64::from(c.logit) >= floor || floor.is_nan());
    }

    /// Returns the number of new logits above −∞, and the sum of `term` for them.
    fn sum(&self, logits: &[f32], term: impl Fn(f64) -> f64) -> (f64, f64) {
        // In lanes, which the compiler turns into vectors.
        const LANES: usize = 8;
        let (mut counts, mut sums) = ([0.0; LANES], [0.0; LANES]);
        let mut add = |logits: &[f32]| {
            for chunk in logits.chunks(LANES) {
                for ((&logit, count), sum) in chunk.iter().zip(&mut counts).zip(&mut sums) {
                    let counts = logit > f32::NEG_INFINITY;
                    *count += f64::from(u8::from(counts));
                    *sum += if counts { term(f64::from(logit)) } else { 0.0 };
                }
            }
        };
        let mut from = 0;
        for changed in &self.changed {
            let to = changed.id as usize;
            add(&logits[from..to]);
            add(&[changed.logit]);
            from = to + 1;
        }
        add(&logits[from..]);
        (counts.iter().sum(), sums.iter().sum())
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
        let floor = greatest + libm::logf(p.min(1.0));
        if !floor.is_finite() {
            return;
        }
        let least = self.options.min_keep;
        match self.candidates.iter().filter(|c| c.logit >= floor).count() >= least {
            true => self.candidates.retain(|c| c.logit >= floor),
            false => self.keep_best(least),
        }
    }

    /// With the configured probability, leaves out the likely candidates, except for the least likely of them.
    fn xtc(&mut self) {
        let SamplerOptions { xtc_probability, xtc_threshold, min_keep, .. } = self.options;
        if !self.options.has_xtc() || self.candidates.len() < 2 {
            return;
        }
        if self.random.unit() > f64::from(xtc_probability) {
            return;
        }
        let greatest = self.greatest_logit();
        let total: f64 = self.candidates.iter().map(|c| weight(c.logit, greatest, 1.0)).sum();
        if total == 0.0 {
            return;
        }
        let least = f64::from(xtc_threshold) * total;
        let is_likely = |c: &Candidate| weight(c.logit, greatest, 1.0) >= least;
        let likely = self.candidates.iter().filter(|c| is_likely(c));
        let Some(last) = likely.clone().copied().max_by(descending) else { return };
        if self.candidates.len() - (likely.count() - 1) >= min_keep {
            self.candidates.retain(|c| c.id == last.id || !is_likely(c));
        }
    }

    /// Moves Mirostat's limit of surprise by a share of the deviation of a drawn token's surprise from the target.
    fn learn(&mut self, probability: f64) {
        let SamplerOptions { mirostat_tau, mirostat_eta, .. } = self.options;
        let deviation = -libm::log2(probability) - f64::from(mirostat_tau);
        if deviation.is_finite() {
            self.surprise -= f64::from(mirostat_eta) * deviation;
        }
    }

    /// Mirostat 1: the number of candidates for the limit of surprise, if probabilities fall as a power of the rank (Zipf's law), whose exponent
    /// follows from the most likely candidates.
    fn mirostat_count(&mut self) -> usize {
        const RANKS: usize = 100;
        let scale = self.scale();
        let ranks = RANKS.min(self.candidates.len());
        if ranks < self.candidates.len() {
            self.candidates.select_nth_unstable_by(ranks, descending);
        }
        self.candidates[..ranks].sort_unstable_by(descending);
        let (mut products, mut squares) = (0.0, 0.0);
        for (i, pair) in self.candidates[..ranks].windows(2).enumerate() {
            let step = (f64::from(pair[0].logit) - f64::from(pair[1].logit)) * scale;
            if !step.is_finite() {
                break;
            }
            let rank = libm::log((i + 2) as f64 / (i + 1) as f64);
            products += rank * step;
            squares += rank * rank;
        }
        let exponent = products / squares;
        let excess = exponent - 1.0;
        let all = libm::pow(self.vocab_size as f64, -excess);
        let rest = excess * libm::exp2(self.surprise) / (1.0 - all);
        let count = libm::pow(rest, 1.0 / exponent);
        // A NaN becomes 0.
        (count as usize).max(1)
    }

    /// Mirostat 2: keeps the candidates whose surprise is not above the limit, or the most likely one.
    fn keep_unsurprising(&mut self) {
        let (greatest, scale) = (self.greatest_logit(), self.scale());
        let weight = |c: &Candidate| weight(c.logit, greatest, scale);
        let total: f64 = self.candidates.iter().map(weight).sum();
        let limit = self.surprise;
        let stays = |c: &Candidate| -libm::log2(weight(c) / total) <= limit;
        match self.candidates.iter().any(stays) {
            true => self.candidates.retain(stays),
            false => self.keep_best(1),
        }
    }

    /// The factor of logits that is the temperature's.
    fn scale(&self) -> f64 {
        if self.options.takes_greatest() { 1.0 } else { 1.0 / f64::from(self.options.temperature) }
    }

    /// Draws from the softmax of the candidates at the configured temperature. Returns the token and its probability among them.
    fn draw(&mut self) -> (u32, f64) {
        let (greatest, scale) = (self.greatest_logit(), self.scale());
        let weight = |c: &Candidate| weight(c.logit, greatest, scale);
        let total: f64 = self.candidates.iter().map(weight).sum();
        let mut left = self.random.unit() * total;
        let mut last = None;
        for c in &self.candidates {
            let weight = weight(c);
            if weight > 0.0 {
                last = Some((c.id, weight / total));
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        // `last` also receives the remainder left by rounding; if no candidate has any weight (all −∞), the lowest id is chosen.
        let lowest = || (self.candidates.iter().map(|c| c.id).min().unwrap_or(0), f64::NAN);
        last.unwrap_or_else(lowest)
    }
}

/// Returns the probability up to a common factor: exp((logit − greatest)·scale). If the greatest is infinite, logits equal to it weigh 1 and all
/// others 0.
fn weight(logit: f32, greatest: f32, scale: f64) -> f64 {
    if greatest.is_infinite() {
        f64::from(u8::from(logit == greatest && greatest > 0.0))
    } else {
        libm::exp((f64::from(logit) - f64::from(greatest)) * scale)
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
    use alight_formats::gguf::{self, write::Builder};
    use serde_json::Value;

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
        sampler.narrow(logits);
        let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    /// The tokens that are left, with their probabilities, ids ascending.
    fn distribution(sampler: &Sampler) -> Vec<(u32, f64)> {
        let (greatest, scale) = (sampler.greatest_logit(), sampler.scale());
        let weights = sampler.candidates.iter().map(|c| (c.id, weight(c.logit, greatest, scale)));
        let mut weights: Vec<(u32, f64)> = weights.filter(|(_, weight)| *weight > 1e-300).collect();
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        weights.iter_mut().for_each(|(_, weight)| *weight /= total);
        weights.sort_unstable_by_key(|(id, _)| *id);
        weights
    }

    /// The vocabulary of the cases: special tokens, bytes, and pieces of text.
    fn tokenizer(tokens: &Value) -> Tokenizer {
        let tokens: Vec<String> = tokens.as_array().unwrap().iter().map(text).collect();
        let spelled: Vec<String> = tokens.iter().map(|token| token.replace(' ', "▁")).collect();
        let kinds = |i: usize| [2, 3, 3].get(i).copied().unwrap_or(if i < 259 { 6 } else { 1 });
        let scores: Vec<f32> = (0..tokens.len()).map(|i| -(i as f32)).collect();
        let mut metadata = Builder::new();
        metadata.str("tokenizer.ggml.model", "llama");
        metadata.strs("tokenizer.ggml.tokens", &spelled);
        metadata.f32s("tokenizer.ggml.scores", &scores);
        metadata
            .i32s("tokenizer.ggml.token_type", &(0..tokens.len()).map(kinds).collect::<Vec<_>>());
        metadata.bool("tokenizer.ggml.add_space_prefix", false);
        Tokenizer::from_gguf(&gguf::parse(&metadata.header()).unwrap()).unwrap()
    }

    fn text(value: &Value) -> String {
        value.as_str().unwrap().to_owned()
    }

    /// The logits of a number, as `evidence/make/sampler_vectors.py` makes them.
    fn logits_of(number: u64, count: u64) -> Vec<f32> {
        let rank = |i: u64| ((i * 7919 + number * 104_729) % 1021) as f64;
        (0..count).map(|i| ((rank(i) / 128.0 - 4.0).powi(3) / 8.0) as f32).collect()
    }

    fn options_of(named: &Value) -> SamplerOptions {
        let mut options = SamplerOptions { seed: 7, ..SamplerOptions::default() };
        for (name, value) in named.as_object().unwrap() {
            let number = SamplerOptions::NUMBERS.iter().find(|number| number.name == name);
            match number {
                Some(number) => (number.set)(&mut options, value.as_f64().unwrap() as f32),
                None => {
                    let n = value.as_u64().unwrap() as usize;
                    (SamplerOptions::count(name).set)(&mut options, n);
                }
            }
        }
        options
    }

    #[test]
    fn what_is_kept_and_how_likely_it_is_equals_llama_cpp_s() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/samplers.json");
        let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let tokenizer = tokenizer(&all["tokens"]);
        let vocab = tokenizer.vocab_size();
        let cases = all["cases"].as_array().unwrap();
        assert!(cases.len() > 200);
        for (index, case) in cases.iter().enumerate() {
            let options = options_of(&case["options"]);
            let texts = case["breakers"].as_array();
            let texts: Option<Vec<String>> = texts.map(|all| all.iter().map(text).collect());
            let breakers = options.breakers(&tokenizer, texts.as_deref());
            let mut sampler = Sampler::new(options, vocab).with_breakers(breakers);
            let accepted = case["accepted"].as_array().unwrap().iter();
            accepted.for_each(|id| sampler.accept(id.as_u64().unwrap() as u32));
            for step in case["steps"].as_array().unwrap() {
                let logits = logits_of(step["logits"].as_u64().unwrap(), vocab as u64);
                sampler.narrow(&logits);
                let found = distribution(&sampler);
                let what = format!("case {index}, {}", case["options"]);
                assert_eq!(found.len() as u64, step["kept"].as_u64().unwrap(), "{what}");
                for pair in step["probabilities"].as_array().unwrap() {
                    let id = pair[0].as_u64().unwrap() as u32;
                    let wanted = pair[1].as_f64().unwrap();
                    let at = found.binary_search_by_key(&id, |(id, _)| *id);
                    let p = at.map(|at| found[at].1).unwrap_or(0.0);
                    assert!((p - wanted).abs() <= 2e-5 * wanted, "{what}: {id} {p} {wanted}");
                }
                if let Some(drawn) = step["drawn"].as_u64() {
                    let at = found.iter().position(|(id, _)| u64::from(*id) == drawn).unwrap();
                    sampler.learn(found[at].1);
                }
            }
        }
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
        ..SamplerOptions::DEFAULT
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
    fn top_n_sigma_keeps_what_is_within_n_deviations_of_the_greatest() {
        let logits = [0.0, -1.0, -2.0, -3.0, -4.0, f32::NEG_INFINITY, f32::NAN];
        // The deviation is √2: −∞ does not count.
        for (n, wanted) in [
            (-1.0, 7),
            (0.0, 7),
            (f32::NAN, 7),
            (0.5, 1),
            (1.0, 2),
            (1.5, 3),
            (2.0, 3),
            (2.2, 4),
            (9.0, 5),
        ] {
            let kept = kept(SamplerOptions { top_n_sigma: n, ..ALL }, &logits);
            assert_eq!(kept, (0..wanted).collect::<Vec<_>>(), "{n}");
        }
        // It is the deviation of all logits, and not only of those that top-k keeps.
        let both = SamplerOptions { top_n_sigma: 1.5, top_k: 4, ..ALL };
        assert_eq!(kept(both, &logits), [0, 1, 2]);
        let infinite = [1.0, f32::INFINITY, 0.0];
        assert_eq!(kept(SamplerOptions { top_n_sigma: 1.0, ..ALL }, &infinite), [0, 1, 2]);
        // Biases and penalties change it: now it is 2.18, and the greatest is 2.
        let mut sampler =
            Sampler::new(SamplerOptions { top_n_sigma: 1.2, ..ALL }, 5).with_bias(&[(1, 3.0)]);
        sampler.change(&logits[..5]);
        sampler.gather(&logits[..5]);
        sampler.top_n_sigma(&logits[..5]);
        let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1]);
    }

    #[test]
    fn xtc_leaves_out_likely_tokens_but_one() {
        // Probabilities 0.4, 0.3, 0.2 and 0.1.
        let logits = [0.2f32, 0.4, 0.1, 0.3].map(f32::ln);
        let kept = |xtc_threshold, min_keep| {
            let options = SamplerOptions { xtc_probability: 1.0, xtc_threshold, min_keep, ..ALL };
            let mut sampler = Sampler::new(options, 4);
            sampler.gather(&logits);
            sampler.xtc();
            let mut ids: Vec<u32> = sampler.candidates.iter().map(|c| c.id).collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(kept(0.15, 0), [0, 2]);
        assert_eq!(kept(0.25, 0), [0, 2, 3]);
        assert_eq!(kept(0.35, 0), [0, 1, 2, 3], "one likely token stays");
        assert_eq!(kept(0.05, 0), [2]);
        assert_eq!(kept(0.51, 0), [0, 1, 2, 3]);
        assert_eq!((kept(0.15, 2), kept(0.15, 3)), (vec![0, 2], vec![0, 1, 2, 3]));
    }

    #[test]
    fn mirostat_draws_from_tokens_below_its_limit_of_surprise() {
        // Surprises 1, 2, 3 and 3 bits.
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        let kept = |surprise: f64, temperature| {
            let options = SamplerOptions { mirostat: 2, temperature, ..ALL };
            let mut sampler = Sampler::new(options, 4);
            sampler.surprise = surprise;
            sampler.gather(&logits);
            sampler.keep_unsurprising();
            sampler.candidates.len()
        };
        let counts = [0.5, 1.1, 2.1, 3.1].map(|surprise| kept(surprise, 1.0));
        assert_eq!(counts, [1, 1, 2, 4]);
        // At half the temperature they are 0.46, 2.46 and 4.46 bits.
        let counts = [0.5, 2.4, 2.5, 4.4, 4.5].map(|surprise| kept(surprise, 0.5));
        assert_eq!(counts, [1, 1, 2, 2, 4]);
        // Each draw moves the limit by a share of its deviation from the target.
        let options = SamplerOptions { mirostat: 2, mirostat_tau: 0.25, mirostat_eta: 0.5, ..ALL };
        let mut sampler = Sampler::new(options, 4);
        assert_eq!((sampler.surprise, sampler.sample(&logits)), (0.5, 0));
        assert_eq!(sampler.surprise, 0.5 + 0.5 * 0.25, "one token alone is no surprise");
        sampler.begin();
        assert_eq!(sampler.surprise, 0.5);
    }

    #[test]
    fn mirostat_1_finds_the_exponent_of_zipf_s_law() {
        // Probabilities fall with the rank to the power of 1.5.
        let logits: Vec<f32> = (0..4000).map(|i| -1.5 * ((i + 1) as f32).ln()).collect();
        let mut sampler = Sampler::new(SamplerOptions { mirostat: 1, ..ALL }, logits.len());
        for surprise in [1.0f64, 3.0, 5.0] {
            sampler.surprise = surprise;
            sampler.gather(&logits);
            let wanted = (0.5 * surprise.exp2() / (1.0 - 4000f64.powf(-0.5))).powf(1.0 / 1.5);
            assert_eq!(sampler.mirostat_count(), wanted as usize);
        }
        for odd in [&[0.0][..], &[1.0, 1.0], &[f32::NEG_INFINITY; 3], &[f32::INFINITY, 0.0], &[]] {
            sampler.gather(odd);
            assert!(sampler.mirostat_count() >= 1);
        }
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
        let dry = SamplerOptions { dry_multiplier: 0.8, dry_penalty_last_n: 20, ..ALL };
        let plain = SamplerOptions { repeat_penalty: 1.3, repeat_last_n: 16, ..ALL };
        let all_on = SamplerOptions { xtc_probability: 0.5, top_n_sigma: 1.0, ..dry };
        let all_on = SamplerOptions { repeat_penalty: 1.3, repeat_last_n: 16, ..all_on };
        let mirostat = |mirostat| SamplerOptions { mirostat, ..dry };
        let starts = [plain, dry, all_on, mirostat(1), mirostat(2)];
        for (start, top_k) in
            starts.into_iter().flat_map(|start| [0, 1, 40, 20_000].map(|k| (start, k)))
        {
            for temperature in [0.0, 0.8] {
                let options = SamplerOptions { top_k, temperature, top_p: 0.9, ..start };
                let mut sampler = Sampler::new(options, logits.len());
                let capacity = |s: &Sampler| {
                    let own = [s.changed.capacity(), s.candidates.capacity()];
                    (own, s.history.capacity(), s.dry.capacity())
                };
                let before = capacity(&sampler);
                for i in 0..20 {
                    let id = sampler.sample(&logits);
                    sampler.accept(id);
                    sampler.accept(i);
                }
                assert_eq!(capacity(&sampler), before);
            }
        }
    }
}
