//! The place where a new file is made, and its inputs.

use std::path::Path;

use alight_pages::{Input, Map, New, Replacement};

use crate::{ConvertError, Options};

/// A file to be made from others.
pub(crate) struct Target<'p> {
    pub(crate) path: &'p Path,
    replace: bool,
    inputs: Vec<Input>,
}

impl<'p> Target<'p> {
    /// Checks that a file may be made at `path` from `sources` and the `small` files next to them. If `path` is a
    /// link to a file, that file is replaced.
    ///
    /// # Errors
    /// It is one of the sources, may not be replaced, or something else is in the way.
    pub(crate) fn new(
        path: &'p Path,
        options: Options,
        sources: &[Map],
        small: &[Input],
    ) -> Result<Target<'p>, ConvertError> {
        let input = |map: &Map| {
            let read = |source| ConvertError::Read { path: map.path().into(), at: 0, source };
            Input::of(map.file()).map_err(read)
        };
        let mut inputs = sources.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        inputs.extend(small);
        let target = Target { path, replace: options.force, inputs };
        Replacement::check(path, target.of_len(0))?;
        Ok(target)
    }

    fn of_len(&self, len: u64) -> New<'_> {
        New { len, replace: self.replace, inputs: &self.inputs }
    }

    /// Creates the file, with a length of `len` bytes.
    ///
    /// # Errors
    /// As for [`new`](Target::new); or there is not enough disk space.
    pub(crate) fn create(&self, len: u64) -> Result<Replacement, ConvertError> {
        Ok(Replacement::create(self.path, self.of_len(len))?)
    }
}
