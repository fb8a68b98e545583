//! The places that a sequence can go back to: positions after which the states of recurrent layers were copied, and the pages of layers with a window
//! stayed in use.
//!
//! Everything before such a place can be seen from it, so a sequence that goes back to one continues as if it had never gone further.

use super::CacheError;
use super::pages::Pages;
use super::states::{Kept, States};
use super::windows::WindowPages;
use crate::positions::{PLACES_OF_WINDOWS, POSITIONS, Windows};

/// Number of places of a sequence with recurrent states.
pub(super) const PLACES: usize = 4;

/// The places of one sequence, if it needs any: one whose layers all keep all positions can be cut anywhere.
pub(crate) struct Places {
    /// Ordered by position.
    kept: Vec<SavedPlace>,
    /// Memory for further ones.
    spare: Vec<SavedPlace>,
}

/// The computed state of a sequence after its first tokens.
pub(crate) struct SavedPlace {
    /// The number of these tokens.
    pub(crate) position: usize,
    /// The states of recurrent layers.
    pub(crate) states: Kept,
    /// The pages of layers with a window.
    pub(crate) window: WindowPages,
}

impl Places {
    /// Creates memory for the places of a sequence of up to `pages` pages.
    ///
    /// # Errors
    /// The system does not provide the address space.
    pub(crate) fn new(
        states: &States,
        windows: &Windows,
        pages: usize,
    ) -> Result<Places, CacheError> {
        let most = match (states.is_empty(), windows.is_empty()) {
            (true, true) => 0,
            (true, false) => PLACES_OF_WINDOWS,
            (false, _) => PLACES,
        };
        let pages = if windows.is_empty() { 0 } else { pages };
        let spare = (0..most).map(|_| {
            let window = WindowPages::with_capacity(pages);
            Ok(SavedPlace { position: 0, states: states.unsaved()?, window })
        });
        Ok(Places { kept: Vec::with_capacity(most), spare: spare.collect::<Result<_, _>>()? })
    }

    /// The latest one of at most `most` tokens.
    pub(crate) fn latest_within(&self, most: usize) -> Option<&SavedPlace> {
        self.kept.iter().rfind(|place| place.position <= most)
    }

    /// One of at least `position` tokens that has the pages from `first` on.
    pub(crate) fn with_page(&self, first: usize, position: usize) -> Option<&SavedPlace> {
        let has = |place: &&SavedPlace| place.position >= position && place.window.first() <= first;
        self.kept.iter().find(has)
    }

    /// The position of the latest one; 0 without one.
    pub(crate) fn latest(&self) -> usize {
        self.kept.last().map_or(0, |place| place.position)
    }

    /// Saves a place after `position` tokens. If there are too many, the one whose neighbours are closest to each other is dropped; the latest earlier
    /// one stays.
    pub(crate) fn save(
        &mut self,
        position: usize,
        (states, window): (&States, &WindowPages),
        windows: &Windows,
        pool: &mut Pages,
    ) {
        if position == self.latest() || self.kept.capacity() == 0 {
            return;
        }
        let mut place = self.spare.pop().unwrap_or_else(|| {
            let before = |i: usize| if i == 0 { 0 } else { self.kept[i - 1].position };
            let gap = |i: &usize| self.kept[i + 1].position - before(*i);
            let least = (0..self.kept.len() - 1).min_by_key(gap).expect("several places");
            self.kept.remove(least)
        });
        place.position = position;
        states.save_to(&mut place.states);
        if !windows.is_empty() {
            let pages = windows.kept_from(position)..position.div_ceil(POSITIONS);
            place.window.share(window, pages, pool);
        }
        self.kept.push(place);
    }

    /// Drops the places of more than `most` tokens.
    pub(crate) fn drop_after(&mut self, most: usize, pool: &mut Pages) {
        while let Some(mut place) = self.kept.pop_if(|place| place.position > most) {
            place.window.clear(pool);
            self.spare.push(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::pages::NeededFor;

    fn no_pages() -> Pages {
        Pages::new(0, 0, &[], NeededFor::Sequence).unwrap()
    }

    fn save(places: &mut Places, states: &States, position: usize) {
        let none = WindowPages::default();
        places.save(position, (states, &none), &Windows::default(), &mut no_pages());
    }

    #[test]
    fn it_goes_back_to_the_latest_place_that_is_early_enough() {
        let mut states = States::new([2, 0, 1].into_iter()).unwrap();
        let mut places = Places::new(&states, &Windows::default(), 0).unwrap();
        for position in [3, 8] {
            states.layer(0).fill(position as f32);
            save(&mut places, &states, position);
        }
        let at = |places: &Places, most| places.latest_within(most).map(|place| place.position);
        assert_eq!([100, 8, 7, 2].map(|most| at(&places, most)), [Some(8), Some(8), Some(3), None]);
        states.restore(&places.latest_within(7).unwrap().states);
        assert_eq!(states.layer(0), [3.0; 2]);
        places.drop_after(7, &mut no_pages());
        assert_eq!((at(&places, 100), places.latest()), (Some(3), 3), "what came later is gone");
        places.drop_after(0, &mut no_pages());
        assert_eq!((at(&places, 100), places.latest()), (None, 0));
    }

    #[test]
    fn when_there_are_too_many_the_closest_ones_go() {
        let states = States::new([2].into_iter()).unwrap();
        let mut places = Places::new(&states, &Windows::default(), 0).unwrap();
        for position in [100, 110, 300, 500, 900, 1000] {
            save(&mut places, &states, position);
        }
        let kept: Vec<usize> = places.kept.iter().map(|place| place.position).collect();
        assert_eq!(kept, [300, 500, 900, 1000], "{kept:?}");
        assert!(places.spare.is_empty());
    }

    #[test]
    fn a_sequence_that_can_be_cut_anywhere_has_none() {
        let states = States::new([0].into_iter()).unwrap();
        let mut places = Places::new(&states, &Windows::default(), 9).unwrap();
        save(&mut places, &states, 5);
        assert_eq!(places.latest(), 0);
    }
}
