//! The stages in which a token is chosen, by llama.cpp's names: a list of them turns the others off.

use thiserror::Error;

use super::sampler::SamplerOptions;

/// A stage.
struct Stage {
    name: &'static str,
    also: &'static [&'static str],
    /// Its letter in a list without names.
    letter: char,
    /// Turns it off.
    turn_off: fn(&mut SamplerOptions),
}

/// All stages, in their order.
const STAGES: [Stage; 8] = [
    Stage {
        name: "penalties",
        also: &[],
        letter: 'e',
        turn_off: |options| {
            options.repeat_penalty = 1.0;
            options.frequency_penalty = 0.0;
            options.presence_penalty = 0.0;
        },
    },
    Stage { name: "dry", also: &[], letter: 'd', turn_off: |options| options.dry_multiplier = 0.0 },
    Stage {
        name: "top_n_sigma",
        also: &["top-n-sigma"],
        letter: 's',
        turn_off: |options| options.top_n_sigma = -1.0,
    },
    Stage { name: "top_k", also: &["top-k"], letter: 'k', turn_off: |options| options.top_k = 0 },
    Stage {
        name: "top_p",
        also: &["top-p", "nucleus"],
        letter: 'p',
        turn_off: |options| options.top_p = 1.0,
    },
    Stage { name: "min_p", also: &["min-p"], letter: 'm', turn_off: |options| options.min_p = 0.0 },
    Stage {
        name: "xtc",
        also: &[],
        letter: 'x',
        turn_off: |options| options.xtc_probability = 0.0,
    },
    Stage {
        name: "temperature",
        also: &["temp"],
        letter: 't',
        turn_off: |options| options.temperature = 1.0,
    },
];

/// Stages of llama.cpp's that are always off here, so that they may stand anywhere in a list.
const ALWAYS_OFF: [&str; 6] = ["typ_p", "typical_p", "typical-p", "typ-p", "typ", "y"];

/// A list names no stage, or stages in another order.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StageError {
    /// There is no such stage.
    #[error("there is no stage {0:?}: there are {list}", list = SamplerStages::NAMES.join(", "))]
    Unknown(String),
    /// A stage comes after one that it precedes here, or twice.
    #[error(
        "{after} comes after {before}, and the order is always {list}: name them in this order, each once",
        list = SamplerStages::NAMES.join(", ")
    )]
    Order {
        /// The stage.
        after: &'static str,
        /// The one before it in the list.
        before: &'static str,
    },
}

/// Some of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplerStages([bool; STAGES.len()]);

impl SamplerStages {
    /// The names of all stages, in their order.
    pub const NAMES: [&'static str; STAGES.len()] = {
        let mut names = [""; STAGES.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = STAGES[i].name;
            i += 1;
        }
        names
    };

    /// Reads names.
    ///
    /// # Errors
    /// See [`StageError`].
    pub fn of_names<'n>(
        names: impl IntoIterator<Item = &'n str>,
    ) -> Result<SamplerStages, StageError> {
        SamplerStages::read(names, |stage, name| stage.name == name || stage.also.contains(&name))
    }

    /// Reads a text of letters, one for each stage.
    ///
    /// # Errors
    /// See [`StageError`].
    pub fn of_letters(letters: &str) -> Result<SamplerStages, StageError> {
        let letters = letters.split("").filter(|letter| !letter.is_empty());
        SamplerStages::read(letters, |stage, letter| letter.chars().eq([stage.letter]))
    }

    fn read<'n>(
        names: impl IntoIterator<Item = &'n str>,
        is_called: impl Fn(&Stage, &str) -> bool,
    ) -> Result<SamplerStages, StageError> {
        let mut stages = SamplerStages([false; STAGES.len()]);
        let mut last = None;
        for name in names {
            match STAGES.iter().position(|stage| is_called(stage, name)) {
                Some(at) => {
                    if let Some(before) = last.filter(|last| *last >= at) {
                        let [after, before] = [at, before].map(|at| STAGES[at].name);
                        return Err(StageError::Order { after, before });
                    }
                    (stages.0[at], last) = (true, Some(at));
                }
                None if ALWAYS_OFF.contains(&name) => {}
                None => return Err(StageError::Unknown(name.chars().take(40).collect())),
            }
        }
        Ok(stages)
    }

    /// The names of these stages.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        STAGES.iter().zip(self.0).filter(|(_, kept)| *kept).map(|(stage, _)| stage.name)
    }

    /// Turns off all other stages. With Mirostat, which replaces most of them, the options stay as they are, as in llama.cpp.
    pub fn keep(self, options: &mut SamplerOptions) {
        if options.mirostat == 0 {
            let others = STAGES.iter().zip(self.0).filter(|(_, kept)| !kept);
            others.for_each(|(stage, _)| (stage.turn_off)(options));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_that_are_not_named_are_off() {
        let given = SamplerOptions {
            temperature: 0.5,
            repeat_penalty: 1.2,
            dry_multiplier: 0.8,
            xtc_probability: 0.5,
            top_n_sigma: 1.0,
            ..SamplerOptions::default()
        };
        let kept = |stages: SamplerStages| {
            let mut options = given;
            stages.keep(&mut options);
            options
        };
        assert_eq!(kept(SamplerStages::of_names(SamplerStages::NAMES).unwrap()), given);
        assert_eq!(kept(SamplerStages::of_letters("edskypmxt").unwrap()), given);
        let some = SamplerStages::of_names(["dry", "typ_p", "top-k", "temp"]).unwrap();
        assert_eq!(some, SamplerStages::of_letters("dkt").unwrap());
        let plain = SamplerOptions {
            repeat_penalty: 1.0,
            xtc_probability: 0.0,
            top_n_sigma: -1.0,
            top_p: 1.0,
            min_p: 0.0,
            ..given
        };
        assert_eq!(kept(some), plain);
        let none = kept(SamplerStages::of_names([]).unwrap());
        assert_eq!((none.temperature, none.top_k, none.dry_multiplier), (1.0, 0, 0.0));
        let mut mirostat = SamplerOptions { mirostat: 2, ..given };
        SamplerStages::of_names([]).unwrap().keep(&mut mirostat);
        assert_eq!(mirostat, SamplerOptions { mirostat: 2, ..given });
    }

    #[test]
    fn another_order_is_refused() {
        let of = |names: &[&str]| {
            SamplerStages::of_names(names.iter().copied()).unwrap_err().to_string()
        };
        let order = "penalties, dry, top_n_sigma, top_k, top_p, min_p, xtc, temperature";
        assert_eq!(
            of(&["temperature", "top_k"]),
            format!(
                "top_k comes after temperature, and the order is always {order}: name them in this order, each once"
            )
        );
        assert!(of(&["xtc", "xtc"]).starts_with("xtc comes after xtc"));
        assert_eq!(of(&["infill"]), format!("there is no stage \"infill\": there are {order}"));
        assert!(
            SamplerStages::of_letters("tk").is_err() && SamplerStages::of_letters("é").is_err()
        );
    }
}
