//! The elements of a tensor that belong to a part of it, and their locations.

use std::ops::Range;

use alight_formats::gguf::TensorInfo;

/// The location of the bytes of a tensor in its file: contiguous from an offset on, or, for experts that alternate with those of
/// other tensors, some bytes of each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    pub offset: u64,
    /// Number of contiguous bytes.
    one: u64,
    /// Bytes from the start of one contiguous range to the start of the next.
    stride: u64,
}

impl Spread {
    pub fn of(info: &TensorInfo<'_>) -> Spread {
        let (offset, nbytes) = (info.offset, info.nbytes);
        match info.stride {
            None => Spread::contiguous(offset, nbytes),
            Some(stride) => Spread { offset, one: nbytes / info.ne[2], stride },
        }
    }

    pub fn contiguous(offset: u64, nbytes: u64) -> Spread {
        Spread { offset, one: nbytes.max(1), stride: nbytes.max(1) }
    }

    /// The bytes from the start of an expert to the start of the next, if experts of other tensors are in between.
    pub fn stride(&self) -> Option<u64> {
        (self.stride != self.one).then_some(self.stride)
    }

    /// The offset in the file of byte `at` of the tensor.
    pub fn place(&self, at: u64) -> u64 {
        self.offset + at / self.one * self.stride + at % self.one
    }

    /// The range of the file that contains these bytes of the tensor, and whether it contains nothing else.
    pub fn extent(&self, bytes: Range<u64>) -> (Range<u64>, bool) {
        let Some(last) = bytes.end.checked_sub(1).filter(|last| *last >= bytes.start) else {
            let place = self.place(bytes.start);
            return (place..place, true);
        };
        let whole = self.stride().is_none() || bytes.start / self.one == last / self.one;
        (self.place(bytes.start)..self.place(last) + 1, whole)
    }

    /// The number of bytes from `at` on that are contiguous in the file.
    pub fn run(&self, at: u64) -> usize {
        if self.stride().is_none() { usize::MAX } else { (self.one - at % self.one) as usize }
    }

    /// The number of contiguous bytes: those of a tensor, or of an expert.
    pub fn one(&self) -> usize {
        self.one as usize
    }
}

/// A part of an array in order: `count()` runs of `run` contiguous elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// Offset of the first run, in elements.
    first: usize,
    /// Elements of a run.
    pub run: usize,
    /// For each dimension with gaps, innermost first: the number of steps, and elements per step.
    jumps: Vec<(usize, usize)>,
}

impl Runs {
    /// The part `ranges` (one for each dimension) of an array of shape `shape`, outermost first.
    ///
    /// # Errors
    /// Ranges that are not within the shape, as a sentence.
    pub fn new(shape: &[u64], ranges: &[(u64, u64)]) -> Result<Runs, String> {
        if shape.len() != ranges.len() {
            let (found, expected) = (ranges.len(), shape.len());
            return Err(format!("{found} ranges, expected one for each of {expected} dimensions"));
        }
        for (axis, (&dim, &(start, stop))) in shape.iter().zip(ranges).enumerate() {
            if start > stop || stop > dim {
                return Err(format!("range {start}:{stop} of dimension {axis}, which has {dim}"));
            }
        }
        let mut runs = Runs { first: 0, run: 1, jumps: Vec::new() };
        // Strides of an empty array are arbitrary, and may overflow.
        if ranges.iter().any(|(start, stop)| start == stop) {
            return Ok(Runs { run: 0, ..runs });
        }
        let too_large = || "more elements than this machine can address".to_owned();
        let mut stride = 1usize;
        for (&dim, &(start, stop)) in shape.iter().zip(ranges).rev() {
            let size = |n: u64| usize::try_from(n).map_err(|_| too_large());
            let (dim, start, len) = (size(dim)?, size(start)?, size(stop - start)?);
            runs.first += start * stride;
            if runs.run == stride {
                runs.run = len * stride;
            } else if len > 1 {
                runs.jumps.push((len, stride));
            }
            stride = stride.checked_mul(dim).ok_or_else(too_large)?;
        }
        Ok(runs)
    }

    /// The number of runs.
    pub fn count(&self) -> usize {
        if self.run == 0 { 0 } else { self.jumps.iter().map(|(count, _)| count).product() }
    }

    /// Elements of the whole part.
    pub fn elements(&self) -> usize {
        self.count() * self.run
    }

    /// The start of run `i`, in elements.
    pub fn start(&self, mut i: usize) -> usize {
        let step = |at, &(count, stride): &(usize, usize)| {
            let offset = i % count * stride;
            i /= count;
            at + offset
        };
        self.jumps.iter().fold(self.first, step)
    }

    /// The range from the first element to the last, including those between runs.
    pub fn extent(&self) -> Range<usize> {
        match self.count() {
            0 => self.first..self.first,
            n => self.first..self.start(n - 1) + self.run,
        }
    }
}
