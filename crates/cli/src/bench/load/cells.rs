//! The cells of the matrix of measurements.

use std::fmt;
use std::str::FromStr;

use alight_pages::Load;
use serde::{Serialize, Serializer};

/// The state before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing of the file is in the page cache.
    Cold,
    /// All of the file is in the page cache; a new process.
    Warm,
    /// The process has answered before; a new session.
    Resident,
}

impl State {
    const ALL: [State; 3] = [State::Cold, State::Warm, State::Resident];

    fn name(self) -> &'static str {
        match self {
            State::Cold => "cold",
            State::Warm => "warm",
            State::Resident => "resident",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<State, String> {
        let found = State::ALL.into_iter().find(|s| s.name() == text);
        found.ok_or_else(|| "expected one of cold, warm, resident".to_owned())
    }
}

/// The file, and the handling of its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// The canonical file, computed on as it is.
    RepackOff,
    /// The canonical file, repacked while it is loaded.
    RepackOn,
    /// The canonical file, repacked if alight so decides.
    RepackAuto,
    /// The packed file, computed on as it is.
    Packed,
}

impl Variant {
    /// Returns the name shown to the user.
    pub fn name(self) -> &'static str {
        match self {
            Variant::RepackOff => "repack off",
            Variant::RepackOn => "repack on",
            Variant::RepackAuto => "repack auto",
            Variant::Packed => "packed file",
        }
    }

    /// Returns the value of `--repack`.
    pub fn flag(self) -> &'static str {
        match self {
            Variant::RepackOff | Variant::Packed => "off",
            Variant::RepackOn => "on",
            Variant::RepackAuto => "auto",
        }
    }
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The state before it.
    pub state: State,
    /// The file.
    pub variant: Variant,
    /// The load method.
    #[serde(serialize_with = "by_name")]
    pub load: Load,
}

fn by_name<S: Serializer>(load: &Load, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_str(load.name())
}

impl Cell {
    /// Returns the name shown to the user.
    pub fn name(&self) -> String {
        format!("{}, {}, {}", self.state, self.variant.name(), self.load)
    }

    /// Returns true if `self` is a choice of alight's, and `other` an alternative to it: the same
    /// state and file, with an explicit load method, and if repacking is alight's choice too, with
    /// explicit repacking.
    pub fn chose_against(&self, other: &Cell) -> bool {
        self.load == Load::Auto
            && other.load != Load::Auto
            && self.state == other.state
            && match self.variant {
                Variant::RepackAuto => other.variant != Variant::Packed,
                variant => variant == other.variant,
            }
    }
}

/// Returns the cells of these states and load methods (all, if none are named), in display order.
/// Alight's own choice, `repack auto` and `load auto`, is one cell per state.
pub fn matrix(states: &[State], loads: &[Load], packed: bool) -> Vec<Cell> {
    let wanted_state = |s: &State| states.is_empty() || states.contains(s);
    let wanted_load = |l: &Load| loads.is_empty() || loads.contains(l);
    let mut cells = Vec::new();
    for state in State::ALL.into_iter().filter(wanted_state) {
        for variant in [Variant::RepackOff, Variant::RepackOn, Variant::RepackAuto, Variant::Packed]
        {
            if variant == Variant::Packed && !packed {
                continue;
            }
            let of_variant = |l: &Load| variant != Variant::RepackAuto || *l == Load::Auto;
            let loads = [Load::Mmap, Load::Direct, Load::Read, Load::Auto];
            cells.extend(
                loads.into_iter().filter(wanted_load).filter(of_variant).map(|load| Cell {
                    state,
                    variant,
                    load,
                }),
            );
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_complete_and_can_be_cut() {
        let all = matrix(&[], &[], true);
        assert_eq!(all.len(), 3 * (4 + 4 + 1 + 4));
        for (i, cell) in all.iter().enumerate() {
            assert!(!all[..i].contains(cell), "{cell:?} twice");
        }
        assert_eq!(matrix(&[], &[], false).len(), 3 * (4 + 4 + 1));
        let few = matrix(&[State::Cold], &[Load::Mmap], true);
        let names: Vec<_> = few.iter().map(Cell::name).collect();
        assert_eq!(
            names,
            ["cold, repack off, mmap", "cold, repack on, mmap", "cold, packed file, mmap"]
        );
        assert!("tepid".parse::<State>().is_err());
    }

    #[test]
    fn auto_is_compared_with_what_it_could_have_chosen() {
        let cell = |state, variant, load| Cell { state, variant, load };
        let auto = cell(State::Cold, Variant::RepackOn, Load::Auto);
        assert!(auto.chose_against(&cell(State::Cold, Variant::RepackOn, Load::Read)));
        assert!(!auto.chose_against(&cell(State::Warm, Variant::RepackOn, Load::Read)));
        assert!(!auto.chose_against(&cell(State::Cold, Variant::RepackOff, Load::Read)));
        assert!(!auto.chose_against(&auto));
        assert!(!cell(State::Cold, Variant::RepackOn, Load::Read).chose_against(&auto));
        let free = cell(State::Cold, Variant::RepackAuto, Load::Auto);
        assert!(free.chose_against(&cell(State::Cold, Variant::RepackOff, Load::Mmap)));
        assert!(!free.chose_against(&cell(State::Cold, Variant::Packed, Load::Mmap)));
    }
}
