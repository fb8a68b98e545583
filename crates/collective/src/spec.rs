//! The computation of a call: shapes, types and arguments.

use std::fmt;

use crate::error::CollectiveError;

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// The upper half of an f32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl Element {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Element::Bf16 | Element::F16 => 2,
            Element::F32 => 4,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::F32 => "f32",
        })
    }
}

/// The shape of a call, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Rows (tokens).
    pub rows: usize,
    /// Elements of a row.
    pub hidden: usize,
    /// Type of operands, residuals and results.
    pub element: Element,
    /// Type of the norms' weights: `element`, or [`Element::F32`].
    pub weight: Element,
    /// Number added to the norms' weights before they multiply: false 0 (Llama), true 1 (Gemma).
    pub bias: bool,
    /// Number added to the mean of squares.
    pub epsilon: f32,
    /// True if the sum is normalised before the residual is added (Gemma 2 and 3).
    pub post_norm: bool,
}

impl Spec {
    /// Bytes of an operand, `[rows, hidden]` elements; `None` if no memory could hold it.
    pub fn bytes(&self) -> Option<usize> {
        let bytes = self.rows.checked_mul(self.hidden)?.checked_mul(self.element.size())?;
        (bytes <= isize::MAX as usize).then_some(bytes)
    }

    /// Returns true if the norms' weights have the operands' type or f32.
    pub fn has_known_weights(&self) -> bool {
        self.weight == self.element || self.weight == Element::F32
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}, {}] {}, weights {} + {}{}, epsilon {:e}",
            self.rows,
            self.hidden,
            self.element,
            self.weight,
            u8::from(self.bias),
            if self.post_norm { ", post-norm" } else { "" },
            self.epsilon
        )
    }
}

/// The arguments of one rank. All are arrays of elements in native byte order, at any address.
///
/// The residual and the weights must be the same on every rank. If they are not, the ranks' results may differ, and
/// depend on the algorithm; nothing worse happens.
#[derive(Debug)]
pub struct Args<'a> {
    /// This rank's part of the sum, `[rows, hidden]`; `None`: it is in `normed`, and is overwritten there.
    pub partial: Option<&'a [u8]>,
    /// The array that the sum is added to, `[rows, hidden]`; `None`: it is in `new_residual`, and is overwritten there.
    pub residual: Option<&'a [u8]>,
    /// The norm's weights, `[hidden]`.
    pub weight: &'a [u8],
    /// The post-norm's weights, `[hidden]`, if there is a post-norm.
    pub post_weight: Option<&'a [u8]>,
    /// Result: the norm of the new residual, `[rows, hidden]`.
    pub normed: &'a mut [u8],
    /// Result: the new residual, `[rows, hidden]`.
    pub new_residual: &'a mut [u8],
}

/// Checks that the arguments of `rank` have the lengths that `spec` gives and fit into `capacity` bytes. Returns the bytes
/// of an operand.
pub(crate) fn check(
    rank: usize,
    spec: &Spec,
    args: &Args<'_>,
    capacity: usize,
) -> Result<usize, CollectiveError> {
    let impossible = |problem| CollectiveError::Shape { rank, problem, shape: spec.to_string() };
    let bytes = spec.bytes().ok_or_else(|| impossible("larger than any memory"))?;
    if spec.hidden == 0 {
        return Err(impossible("a row without elements has no norm"));
    }
    if !spec.has_known_weights() {
        return Err(impossible("the weights must have the operands' type or be f32"));
    }
    if !(spec.epsilon >= 0.0 && spec.epsilon.is_finite()) {
        return Err(impossible("epsilon must be a finite number that is not negative"));
    }
    if spec.post_norm != args.post_weight.is_some() {
        return Err(impossible("a post-norm needs its weights, and weights need a post-norm"));
    }
    let Some(weights) = spec.hidden.checked_mul(spec.weight.size()) else {
        return Err(impossible("larger than any memory"));
    };
    for (what, found, expected) in [
        ("the operand", args.partial.map_or(bytes, <[u8]>::len), bytes),
        ("the residual", args.residual.map_or(bytes, <[u8]>::len), bytes),
        ("the norm's weight", args.weight.len(), weights),
        ("the post-norm's weight", args.post_weight.map_or(weights, <[u8]>::len), weights),
        ("the result", args.normed.len(), bytes),
        ("the new residual", args.new_residual.len(), bytes),
    ] {
        if found != expected {
            let shape = spec.to_string();
            return Err(CollectiveError::Length { rank, what, found, expected, shape });
        }
    }
    if bytes > capacity {
        let shape = spec.to_string();
        return Err(CollectiveError::Capacity { rank, found: bytes, capacity, shape });
    }
    Ok(bytes)
}
