//! The sampler from outside: what it draws, how often, and what it does with odd logits.

use alight_model::{Sampler, SamplerOptions};

const PLAIN: SamplerOptions = SamplerOptions {
    temperature: 1.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    min_keep: 0,
    repeat_penalty: 1.0,
    frequency_penalty: 0.0,
    presence_penalty: 0.0,
    repeat_last_n: 64,
    seed: 7,
    ..SamplerOptions::DEFAULT
};

fn counts(options: SamplerOptions, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut sampler = Sampler::new(options, logits.len());
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits) as usize] += 1;
    }
    counts
}

/// Pearson's statistic against expected probabilities.
fn chi_squared(counts: &[usize], probabilities: &[f64]) -> f64 {
    let draws: usize = counts.iter().sum();
    counts
        .iter()
        .zip(probabilities)
        .map(|(&count, &p)| {
            let expected = p * draws as f64;
            (count as f64 - expected).powi(2) / expected
        })
        .sum()
}

fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn draws_follow_the_softmax() {
    let logits: Vec<f32> = (0..20).map(|i| ((i * 7) % 20) as f32 * 0.2 - 1.0).collect();
    for temperature in [0.5f32, 1.0, 2.0] {
        let counts = counts(SamplerOptions { temperature, ..PLAIN }, &logits, 200_000);
        let x2 = chi_squared(&counts, &softmax(&logits, f64::from(temperature)));
        // 19 degrees of freedom: 43.8 is exceeded once in a thousand.
        assert!(x2 < 43.8, "temperature {temperature}: {x2}");
    }
}

#[test]
fn draws_follow_the_softmax_of_what_is_kept() {
    let logits: Vec<f32> = (0..50).map(|i| -((i * 13 % 50) as f32) * 0.1).collect();
    let counts = counts(SamplerOptions { top_k: 10, ..PLAIN }, &logits, 100_000);
    let best: Vec<usize> = (0..50).filter(|i| (i * 13 % 50) < 10).collect();
    assert!((0..50).all(|i| best.contains(&i) == (counts[i] > 0)));
    let kept: Vec<f32> = best.iter().map(|&i| logits[i]).collect();
    let counts: Vec<usize> = best.iter().map(|&i| counts[i]).collect();
    let x2 = chi_squared(&counts, &softmax(&kept, 1.0));
    assert!(x2 < 27.9, "{x2}"); // 9 degrees of freedom, once in a thousand
}

#[test]
fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
    let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    let run = |seed| -> Vec<u32> {
        let mut sampler = Sampler::new(SamplerOptions { seed, ..SamplerOptions::default() }, 1000);
        (0..64).map(|_| sampler.sample(&logits)).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let mut sampler = Sampler::new(SamplerOptions { seed: 1, ..SamplerOptions::default() }, 1000);
    let first: Vec<u32> = (0..64).map(|_| sampler.sample(&logits)).collect();
    sampler.reset();
    let again: Vec<u32> = (0..64).map(|_| sampler.sample(&logits)).collect();
    assert_eq!(first, again);
}

#[test]
fn greedy_takes_the_first_greatest_wherever_it_stands() {
    let mut sampler = Sampler::new(SamplerOptions::greedy(), 1000);
    for at in 0..1000usize {
        let mut logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.7).cos()).collect();
        logits[at] = 5.0;
        assert_eq!(sampler.sample(&logits), at as u32);
        logits[(at * 31) % 1000] = 5.0;
        assert_eq!(sampler.sample(&logits), at.min((at * 31) % 1000) as u32);
    }
}

#[test]
fn a_tiny_temperature_is_greedy_too() {
    let logits = [1.0, 3.0, 2.999, -4.0];
    assert_eq!(counts(SamplerOptions { temperature: 1e-6, ..PLAIN }, &logits, 1000)[1], 1000);
    assert_eq!(counts(SamplerOptions { temperature: f32::NAN, ..PLAIN }, &logits, 10)[1], 10);
    assert_eq!(counts(SamplerOptions { top_k: 1, ..PLAIN }, &logits, 1000)[1], 1000);
}

#[test]
fn repeated_tokens_become_less_likely() {
    let options =
        SamplerOptions { repeat_penalty: 2.0, repeat_last_n: 2, ..SamplerOptions::greedy() };
    let mut sampler = Sampler::new(options, 4);
    let logits = [4.0, 3.0, 2.5, -1.0];
    assert_eq!(sampler.sample(&logits), 0);
    sampler.accept(0); // 2, 3, 2.5
    assert_eq!(sampler.sample(&logits), 1);
    sampler.accept(1); // 2, 1.5, 2.5
    assert_eq!(sampler.sample(&logits), 2);
    sampler.accept(2); // 4, 1.5, 1.25: 0 was accepted three tokens ago
    assert_eq!(sampler.sample(&logits), 0);
    sampler.accept(0); // 2, 3, 1.25: and now 1 was
    assert_eq!(sampler.sample(&logits), 1);
    // A negative logit is multiplied, so it sinks as well.
    let mut sampler = Sampler::new(options, 2);
    sampler.accept(0);
    assert_eq!(sampler.sample(&[-1.0, -1.5]), 1);
    // The same token twice is penalised once; one that is not in the vocabulary not at all.
    let mut sampler = Sampler::new(options, 2);
    sampler.accept(0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&[4.0, 1.5]), 0);
    sampler.accept(99);
    assert_eq!(sampler.sample(&[4.0, 1.5]), 0);
}

#[test]
fn penalties_come_before_top_k() {
    let options = SamplerOptions { top_k: 1, repeat_penalty: 10.0, repeat_last_n: 4, ..PLAIN };
    let mut sampler = Sampler::new(options, 3);
    sampler.accept(1);
    assert_eq!(sampler.sample(&[1.0, 2.0, 0.5]), 0);
}

#[test]
fn odd_logits_do_no_harm() {
    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;
    let odd: [(&[f32], &[u32]); 9] = [
        (&[NAN, 1.0, NAN], &[1]),
        (&[NAN, NAN], &[0]),
        (&[-INF, -INF, -INF], &[0]),
        (&[-INF, 0.0], &[1]),
        (&[1.0, INF, 2.0], &[1]),
        (&[INF, NAN, INF], &[0, 2]),
        (&[-INF, NAN], &[0]),
        (&[f32::MAX, f32::MIN], &[0]),
        (&[], &[0]),
    ];
    let stages = [
        PLAIN,
        SamplerOptions { xtc_probability: 1.0, dry_multiplier: 1.0, ..PLAIN },
        SamplerOptions { dry_multiplier: f32::MAX, dry_allowed_length: 0, ..PLAIN },
        SamplerOptions { top_n_sigma: 1.0, ..PLAIN },
        SamplerOptions { mirostat: 1, ..PLAIN },
        SamplerOptions { mirostat: 2, mirostat_tau: 0.0, mirostat_eta: 1e30, ..PLAIN },
    ];
    for ((logits, allowed), stages) in odd.into_iter().flat_map(|odd| stages.map(|on| (odd, on))) {
        for top_k in [0, 1, 2, 40] {
            for temperature in [0.0, 0.8, 1e-30, 1e30] {
                for top_p in [1.0, 0.9, 0.0, NAN] {
                    let options = SamplerOptions {
                        top_k,
                        temperature,
                        top_p,
                        min_p: 0.05,
                        repeat_penalty: 1.1,
                        ..stages
                    };
                    let mut sampler = Sampler::new(options, logits.len());
                    sampler.accept(0);
                    for _ in 0..20 {
                        let id = sampler.sample(logits);
                        assert!(allowed.contains(&id), "{logits:?} {options:?} gave {id}");
                    }
                }
            }
        }
    }
}

#[test]
fn logits_beyond_the_vocabulary_are_ignored() {
    let mut sampler = Sampler::new(SamplerOptions::greedy(), 2);
    assert_eq!(sampler.sample(&[1.0, 2.0, 9.0]), 1);
    let mut sampler = Sampler::new(PLAIN, 2);
    assert!((0..100).all(|_| sampler.sample(&[1.0, 2.0, 90.0]) < 2));
}

#[test]
fn frequency_counts_and_presence_does_not() {
    let logits = [4.0, 3.0, 2.0];
    let greedy = |frequency_penalty, presence_penalty, accepted: &[u32]| {
        let options =
            SamplerOptions { frequency_penalty, presence_penalty, ..SamplerOptions::greedy() };
        let mut sampler = Sampler::new(options, 3);
        accepted.iter().for_each(|token| sampler.accept(*token));
        sampler.sample(&logits)
    };
    assert_eq!(greedy(0.75, 0.0, &[0]), 0); // 3.25
    assert_eq!(greedy(0.75, 0.0, &[0, 0]), 1); // 2.5
    assert_eq!(greedy(0.0, 0.75, &[0, 0]), 0); // 3.25
    assert_eq!(greedy(0.0, 1.25, &[0]), 1); // 2.75
    assert_eq!(greedy(0.75, 0.5, &[0, 1]), 0); // 2.75, 1.75
    assert_eq!(greedy(-1.5, 0.0, &[1]), 1, "a negative one makes tokens likelier"); // 4.5
    assert_eq!(greedy(0.0, 9.0, &[7]), 0, "not in the vocabulary");
}

#[test]
fn a_bias_is_added_before_penalties() {
    let options = SamplerOptions { repeat_penalty: 2.0, ..SamplerOptions::greedy() };
    let biased = |bias: &[(u32, f32)]| Sampler::new(options, 3).with_bias(bias);
    let logits = [4.0, 3.0, -2.0];
    assert_eq!(biased(&[(2, 6.5)]).sample(&logits), 2); // 4.5
    assert_eq!(biased(&[(0, f32::NEG_INFINITY)]).sample(&logits), 1);
    assert_eq!(biased(&[(1, 1.0), (9, 100.0), (1, 0.5)]).sample(&logits), 1); // 4.5
    // Added first, and halved then: the other way round it would stay the greatest.
    let mut sampler = biased(&[(0, 1.5)]);
    sampler.accept(0); // 2.75
    assert_eq!(sampler.sample(&logits), 1);
}

#[test]
fn a_token_that_is_ruled_out_is_never_drawn() {
    let bias = [(0, f32::NEG_INFINITY), (3, f32::NEG_INFINITY)];
    for top_k in [0, 2] {
        let options = SamplerOptions { top_k, ..PLAIN };
        let mut sampler = Sampler::new(options, 5).with_bias(&bias);
        assert!((0..1000).all(|_| ![0, 3].contains(&sampler.sample(&[9.0, 1.0, 1.0, 9.0, 1.0]))));
    }
}

#[test]
fn a_repetition_is_penalised_until_something_breaks_it() {
    let options = SamplerOptions { dry_multiplier: 1.0, dry_base: 2.0, ..SamplerOptions::greedy() };
    let logits = [0.0, 0.0, 0.0, 3.0, 1.5];
    let sampled = |options, accepted: &[u32]| {
        let mut sampler = Sampler::new(options, 5);
        accepted.iter().for_each(|id| sampler.accept(*id));
        sampler.sample(&logits)
    };
    // After 1 2 comes 3 once more: a penalty of 1; after 0 1 2, of 2; of three tokens, none.
    assert_eq!(sampled(options, &[1, 2, 3, 0, 1, 2]), 3);
    assert_eq!(sampled(options, &[0, 1, 2, 3, 0, 1, 2]), 4);
    assert_eq!(
        sampled(SamplerOptions { dry_allowed_length: 3, ..options }, &[0, 1, 2, 3, 0, 1, 2]),
        3
    );
    assert_eq!(
        sampled(SamplerOptions { dry_penalty_last_n: 6, ..options }, &[0, 1, 2, 3, 0, 1, 2]),
        3
    );
    assert_eq!(sampled(SamplerOptions { mirostat: 2, ..options }, &[0, 1, 2, 3, 0, 1, 2]), 3);
    // It is subtracted after the repeat penalty.
    let both = SamplerOptions { repeat_penalty: 1.5, dry_multiplier: 0.6, ..options };
    assert_eq!(sampled(both, &[0, 1, 2, 3, 0, 1, 2]), 4, "3 / 1.5 - 1.2 < 1.5");
}

#[test]
fn xtc_applies_as_often_as_it_should_and_with_temperature_0_too() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
    let options = SamplerOptions { xtc_probability: 0.25, ..PLAIN };
    let found = counts(options, &logits, 100_000);
    // In a quarter of the draws, only the least likely of the first three stays, beside the last.
    let share = |i: usize| [0.5, 0.3, 0.15, 0.05][i] * 0.75 + [0.0, 0.0, 0.75, 0.25][i] * 0.25;
    let x2 = chi_squared(&found, &[0, 1, 2, 3].map(share));
    assert!(x2 < 16.3, "{x2}"); // 3 degrees of freedom, once in a thousand
    let options = SamplerOptions { xtc_probability: 1.0, temperature: 0.0, ..PLAIN };
    assert_eq!(counts(options, &logits, 100), [0, 0, 100, 0]);
    let options = SamplerOptions { xtc_probability: 0.5, ..options };
    let found = counts(options, &logits, 10_000);
    assert!(found[1] + found[3] == 0 && found[0].abs_diff(5000) < 200, "{found:?}");
}

#[test]
fn mirostat_brings_the_surprise_to_its_target() {
    // As in a text: the logits of each token are others.
    let logits: Vec<Vec<f32>> = (0..50)
        .map(|t| {
            (0..2000)
                .map(|i| ((i * (2 * t + 1) * 37 % 2003 + 1) as f32 / 2003.0).ln() * -1.4)
                .collect()
        })
        .collect();
    for mirostat in [1, 2] {
        for target in [2.0f32, 4.0] {
            let options = SamplerOptions { mirostat, mirostat_tau: target, ..PLAIN };
            let mut sampler = Sampler::new(options, 2000);
            let mut total = 0.0;
            for step in 0..2000 {
                let logits = &logits[step % 50];
                let p = softmax(logits, 1.0);
                let id = sampler.sample(logits);
                if step >= 500 {
                    total -= p[id as usize].log2();
                }
            }
            // Of the whole distribution it is a little more than among the tokens that are left.
            let mean = total / 1500.0;
            assert!((f64::from(target) - 0.2..f64::from(target) + 1.5).contains(&mean), "{mean}");
        }
    }
    // Top-k and the penalties have no effect.
    let plain = SamplerOptions { mirostat: 2, ..PLAIN };
    let more =
        SamplerOptions { top_k: 1, top_p: 0.1, repeat_penalty: 9.0, top_n_sigma: 0.1, ..plain };
    let run = |options| -> Vec<u32> {
        let mut sampler = Sampler::new(options, 2000);
        let next = |logits: &Vec<f32>| {
            let id = sampler.sample(logits);
            sampler.accept(id);
            id
        };
        logits.iter().map(next).collect()
    };
    assert_eq!(run(plain), run(more));
}

#[test]
fn an_answer_begins_with_nothing_learned() {
    let logits: Vec<f32> = (0..500).map(|i| (i as f32 * 0.37).sin() * 3.0).collect();
    let all = [
        SamplerOptions { mirostat: 2, mirostat_tau: 2.0, ..PLAIN },
        SamplerOptions { dry_multiplier: 5.0, dry_allowed_length: 1, top_k: 5, ..PLAIN },
        SamplerOptions { repeat_penalty: 3.0, top_k: 5, ..PLAIN },
    ];
    for options in all {
        let answer = |sampler: &mut Sampler| -> Vec<u32> {
            let next = |_| {
                let id = sampler.sample(&logits);
                sampler.accept(id);
                id
            };
            (0..40).map(next).collect()
        };
        let mut sampler = Sampler::new(options, 500);
        let first = answer(&mut sampler);
        sampler.reset();
        assert_eq!(answer(&mut sampler), first);
        // After `begin`, the same as another sampler with as many draws before.
        let mut other = Sampler::new(options, 500);
        let _unused: Vec<u32> = (0..40).map(|_| other.sample(&logits)).collect();
        other.begin();
        sampler.begin();
        assert_eq!(answer(&mut sampler), answer(&mut other), "{options:?}");
    }
}
