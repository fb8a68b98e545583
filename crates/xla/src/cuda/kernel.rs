//! The kernel of the collective: the variant for a shape, its grid, and its arguments.

use alight_collective::{Element, Spec};

use super::code::{Code, Source};
use super::driver::{Driver, Function};
use super::error::CudaError;

/// Maximum number of ranks, as in the source.
pub const RANKS: usize = 16;
/// Maximum number of blocks of a grid, as in the source.
pub const BLOCKS: usize = 64;
/// The increment of the call counter by a call, as in the source.
pub const CALL: u64 = 1024;
/// Maximum number of threads of a block: the kernel is compiled for this many.
const THREADS: usize = 640;
/// Bytes of a vector.
const VECTOR: usize = 16;
/// Bytes before the slots of a workspace: `Workspace` of the source.
pub const HEADER: usize = 8 * (2 + BLOCKS + RANKS * BLOCKS);
/// The offsets of the call counter, and of the word that blocks all further calls.
pub const DONE: usize = 0;
/// See [`DONE`].
pub const POISON: usize = 8;

/// The distribution of a call over a GPU: a pure function of its shape, the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks; they share the rows.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32.
    pub threads: u32,
    /// Vectors of a thread: 1, 2 or 4.
    pub vectors: u32,
    /// True if rows begin at multiples of 16 bytes.
    pub whole: bool,
}

impl Shape {
    /// The shape of a call with at least one row.
    pub fn of(spec: &Spec) -> Result<Shape, CudaError> {
        let per_vector = VECTOR / spec.element.size();
        let vectors = spec.hidden.div_ceil(per_vector);
        let each = [1, 2, 4].into_iter().find(|each| vectors <= each * THREADS);
        let (Some(each), Ok(rows)) = (each, u32::try_from(spec.rows)) else {
            return Err(CudaError::Unsupported(format!(
                "rows of {} elements of {}: the kernel takes at most {}",
                spec.hidden,
                spec.element,
                4 * THREADS * per_vector
            )));
        };
        if rows == 0 || vectors == 0 {
            return Err(CudaError::Unsupported("no rows, or rows without elements".into()));
        }
        if !spec.has_known_weights() {
            return Err(CudaError::Unsupported(format!(
                "weights of {} for operands of {}: they have the operands' type or are f32",
                spec.weight, spec.element
            )));
        }
        Ok(Shape {
            blocks: rows.min(BLOCKS as u32),
            threads: vectors.div_ceil(each).next_multiple_of(32) as u32,
            vectors: each as u32,
            whole: (spec.hidden * spec.element.size()).is_multiple_of(VECTOR),
        })
    }
}

/// A variant of the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    element: Element,
    weight: Element,
    vectors: u32,
    whole: bool,
    post: bool,
    /// Additional macros: for tests.
    more: Vec<&'static str>,
}

impl Variant {
    /// The variant for a call.
    pub fn of(spec: &Spec, shape: &Shape) -> Variant {
        Variant {
            element: spec.element,
            weight: spec.weight,
            vectors: shape.vectors,
            whole: shape.whole,
            post: spec.post_norm,
            more: vec![],
        }
    }

    /// The same with additional macros, with which tests break it.
    pub fn with(mut self, more: &[&'static str]) -> Variant {
        self.more.extend(more);
        self
    }

    fn code(&self) -> Code {
        let mut macros = vec![
            format!("ALIGHT_ELEMENT={}", name(self.element)),
            format!("ALIGHT_WEIGHT={}", name(self.weight)),
            format!("ALIGHT_VECTORS={}", self.vectors),
            format!("ALIGHT_WHOLE={}", self.whole),
            format!("ALIGHT_POST={}", self.post),
        ];
        macros.extend(self.more.iter().map(ToString::to_string));
        let (source, entry) = (Source::AllreduceNorm, c"alight_allreduce_norm");
        Code { source, entry, macros, shared: 0 }
    }

    /// The variant on a GPU: compiled and loaded the first time.
    pub fn load(&self, driver: &Driver, ordinal: i64) -> Result<Function, CudaError> {
        self.code().load(driver, ordinal)
    }
}

/// The sources' name of an element type.
pub(super) fn name(element: Element) -> &'static str {
    match element {
        Element::Bf16 => "Bf16",
        Element::F16 => "F16",
        Element::F32 => "F32",
    }
}

/// The kernel's argument: `Params` of the source.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Params {
    pub workspace: [u64; RANKS],
    pub partial: u64,
    pub residual: u64,
    pub weight: u64,
    pub post_weight: u64,
    pub normed: u64,
    pub new_residual: u64,
    pub report: u64,
    pub index: u64,
    pub slot: u64,
    pub limit: u64,
    pub stride: u64,
    pub delay: u64,
    pub inverse_hidden: f64,
    pub rank: u32,
    pub ranks: u32,
    pub rows: u32,
    pub hidden: u32,
    pub delay_rank: u32,
    pub delay_phase: u32,
    pub bias: f32,
    pub epsilon: f32,
    pub place: u32,
    pub reserved: u32,
}

#[cfg(test)]
const SPEC: Spec = Spec {
    rows: 3,
    hidden: 4608,
    element: Element::Bf16,
    weight: Element::F32,
    bias: true,
    epsilon: 1e-6,
    post_norm: true,
};

/// For a test of the compiler.
#[cfg(test)]
pub(super) fn an_example() -> Code {
    Variant::of(&SPEC, &Shape::of(&SPEC).unwrap()).code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes() {
        let of = |rows, hidden, element| {
            let shape = Shape::of(&Spec { rows, hidden, element, ..SPEC }).unwrap();
            assert!(
                shape.threads as usize * shape.vectors as usize * VECTOR / element.size() >= hidden
            );
            (shape.blocks, shape.threads, shape.vectors, shape.whole)
        };
        assert_eq!(of(1, 4608, Element::Bf16), (1, 576, 1, true));
        assert_eq!(of(32, 4608, Element::F32), (32, 576, 2, true));
        assert_eq!(of(1000, 5120, Element::F16), (64, 640, 1, true));
        assert_eq!(of(1, 5121, Element::F16), (1, 352, 2, false));
        assert_eq!(of(1, 16384, Element::Bf16), (1, 512, 4, true));
        assert_eq!(of(2, 20480, Element::Bf16), (2, 640, 4, true));
        assert_eq!(of(2, 1, Element::F32), (2, 32, 1, false));
        for (rows, hidden) in [(1, 20481), (0, 8), (1, 0)] {
            assert!(Shape::of(&Spec { rows, hidden, ..SPEC }).is_err());
        }
        let wrong = Spec { element: Element::F32, weight: Element::Bf16, ..SPEC };
        let text = Shape::of(&wrong).unwrap_err().to_string();
        assert!(text.contains("weights of bf16 for operands of f32"), "{text}");
    }
}
