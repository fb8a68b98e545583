//! Arrays of a frame as slices, after their types and shapes were checked.

use std::ffi::c_int;

use crate::api::data_type;
use crate::frame::{Array, Refusal};

/// An element type that XLA has a number for.
///
/// # Safety
/// Any bits of an element of the XLA type [`Element::TYPE`] are a valid value of this type.
pub(crate) unsafe trait Element: Copy {
    const TYPE: c_int;
    const NAME: &'static str;
}

macro_rules! elements {
    ($($type:ty: $number:ident $name:literal,)*) => {$(
        // SAFETY: all bits are valid values, and XLA's elements have the same representation.
        unsafe impl Element for $type {
            const TYPE: c_int = data_type::$number;
            const NAME: &'static str = $name;
        }
    )*};
}

elements! {
    u8: U8 "uint8",
    u32: U32 "uint32",
    i32: S32 "int32",
    f32: F32 "float32",
    // The raw bits.
    u16: F16 "float16",
}

/// The number of elements, after the checks that a slice requires.
fn checked<T: Element>(what: &str, array: &Array<'_>) -> Result<usize, Refusal> {
    if array.dtype != T::TYPE {
        return Err(Refusal::argument(format!(
            "{what} has elements of XLA's type {}, expected {} ({})",
            array.dtype,
            T::TYPE,
            T::NAME
        )));
    }
    let length = array.count().filter(|n| n.checked_mul(size_of::<T>()).is_some());
    let length =
        length.ok_or_else(|| Refusal::argument(format!("{what} is larger than any memory")))?;
    if length > 0 && !array.data.cast::<T>().is_aligned() {
        return Err(Refusal::argument(format!("{what} does not begin at an element's address")));
    }
    Ok(length)
}

/// The elements of an array.
///
/// # Safety
/// The array is valid for `'a`, dense, and not written to.
pub(crate) unsafe fn slice<'a, T: Element>(
    what: &str,
    array: &Array<'_>,
) -> Result<&'a [T], Refusal> {
    match checked::<T>(what, array)? {
        0 => Ok(&[]),
        // SAFETY: by the contract; the size fits in memory, the address is aligned for the type.
        length => Ok(unsafe { std::slice::from_raw_parts(array.data.cast(), length) }),
    }
}

/// The elements of an array, mutably.
///
/// # Safety
/// The array is valid for `'a`, dense, and not used elsewhere.
pub(crate) unsafe fn slice_mut<'a, T: Element>(
    what: &str,
    array: &Array<'_>,
) -> Result<&'a mut [T], Refusal> {
    match checked::<T>(what, array)? {
        0 => Ok(&mut []),
        // SAFETY: by the contract; the size fits in memory, the address is aligned for the type.
        length => Ok(unsafe { std::slice::from_raw_parts_mut(array.data.cast(), length) }),
    }
}

/// The only element of an array of rank 0.
///
/// # Safety
/// As for [`slice`].
pub(crate) unsafe fn scalar<T: Element>(what: &str, array: &Array<'_>) -> Result<T, Refusal> {
    // SAFETY: passed on.
    match (array.dims, unsafe { slice::<T>(what, array)? }) {
        ([], [value]) => Ok(*value),
        _ => Err(Refusal::argument(format!("{what} is {:?}, expected a scalar", array.dims))),
    }
}

/// The dimensions of an array of rank `N`.
pub(crate) fn dimensions<const N: usize>(
    what: &str,
    array: &Array<'_>,
) -> Result<[usize; N], Refusal> {
    let wrong =
        || Refusal::argument(format!("{what} is {:?}, expected {N} dimensions", array.dims));
    let dims = <[i64; N]>::try_from(array.dims).map_err(|_| wrong())?;
    match dims.iter().all(|length| usize::try_from(*length).is_ok()) {
        true => Ok(dims.map(|length| length as usize)),
        false => Err(wrong()),
    }
}

/// Returns an error if the array has another shape.
pub(crate) fn expect(what: &str, array: &Array<'_>, dims: &[usize]) -> Result<(), Refusal> {
    let same = array.dims.len() == dims.len()
        && array.dims.iter().zip(dims).all(|(a, b)| usize::try_from(*a) == Ok(*b));
    match same {
        true => Ok(()),
        false => Err(Refusal::argument(format!("{what} is {:?}, expected {dims:?}", array.dims))),
    }
}

/// An attribute's value as a size.
pub(crate) fn size(name: &str, value: i64) -> Result<usize, Refusal> {
    usize::try_from(value).map_err(|_| {
        Refusal::argument(format!("the attribute '{name}' has {value}, expected 0 or more"))
    })
}
