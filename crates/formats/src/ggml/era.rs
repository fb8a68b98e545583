//! The layouts of blocks over time.

use std::fmt;

use thiserror::Error;

use alight_types::GgmlType;

/// The meaning of a type's number, by time. Scales are f32 in all eras before the last, except for Q4_2, Q4_3,
/// Q5_0 and Q5_1, where they were always f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// `ggml` of 10 March 2023 and a few days after: a row holds all its scales (for Q4_1 all
    /// minima, then all scales), then all its quants. Nibbles as in [`Era::Pairs`].
    Rows,
    /// `ggml` after that, `ggmf`, and `ggjt` version 1: blocks. Byte `l` holds elements `2l` (low
    /// nibble) and `2l + 1` (high).
    Pairs,
    /// `ggjt` version 2: byte `j` holds elements `j` (low nibble) and `j + 16` (high).
    Halves,
    /// `ggjt` version 3: as in GGUF. Scales are f16; there are K-quants.
    Current,
}

impl fmt::Display for Era {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Era::Rows => "scales before quants in every row (March 2023)",
            Era::Pairs => "f32 scales, nibbles in pairs",
            Era::Halves => "f32 scales, nibbles in halves",
            Era::Current => "as in GGUF",
        })
    }
}

/// The types of tensors in these files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)]
#[allow(missing_docs)] // names are ggml's
pub enum LegacyType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q4_2 = 4,
    Q4_3 = 5,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
}

use LegacyType as T;

impl LegacyType {
    /// Every type, in the order of ids.
    pub const ALL: [LegacyType; 14] = [
        T::F32,
        T::F16,
        T::Q4_0,
        T::Q4_1,
        T::Q4_2,
        T::Q4_3,
        T::Q5_0,
        T::Q5_1,
        T::Q8_0,
        T::Q2_K,
        T::Q3_K,
        T::Q4_K,
        T::Q5_K,
        T::Q6_K,
    ];

    /// ggml's name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            T::Q4_2 => "Q4_2",
            T::Q4_3 => "Q4_3",
            other => other.current().name(),
        }
    }

    /// Its number in a file.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The GGUF type that its elements are converted to, see [`super::blocks`]. Q4_2 and Q4_3 have no
    /// counterpart and become F16.
    pub const fn current(self) -> GgmlType {
        match self {
            T::F32 => GgmlType::F32,
            T::F16 | T::Q4_2 | T::Q4_3 => GgmlType::F16,
            T::Q4_0 => GgmlType::Q4_0,
            T::Q4_1 => GgmlType::Q4_1,
            T::Q5_0 => GgmlType::Q5_0,
            T::Q5_1 => GgmlType::Q5_1,
            T::Q8_0 => GgmlType::Q8_0,
            T::Q2_K => GgmlType::Q2_K,
            T::Q3_K => GgmlType::Q3_K,
            T::Q4_K => GgmlType::Q4_K,
            T::Q5_K => GgmlType::Q5_K,
            T::Q6_K => GgmlType::Q6_K,
        }
    }
}

impl fmt::Display for LegacyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Era {
    /// Elements and bytes of a block of `ty`, or `None` if the era does not have the type. In [`Era::Rows`] a
    /// row has as many bytes as if it consisted of such blocks.
    pub const fn block(self, ty: LegacyType) -> Option<(u64, u64)> {
        Some(match (self, ty) {
            (_, T::F32) => (1, 4),
            (_, T::F16) => (1, 2),
            (Era::Current, T::Q4_2 | T::Q4_3) => return None,
            (Era::Current, ty) => (ty.current().block_len(), ty.current().block_bytes()),
            (_, T::Q4_0) => (32, 20),
            (_, T::Q4_1) => (32, 24),
            (Era::Pairs, T::Q4_2) => (16, 10),
            (Era::Pairs, T::Q4_3) => (16, 12),
            (Era::Pairs | Era::Halves, T::Q5_0) => (32, 22),
            (Era::Pairs | Era::Halves, T::Q5_1) => (32, 24),
            (Era::Pairs | Era::Halves, T::Q8_0) => (32, 36),
            _ => return None,
        })
    }

    /// The type with this number in a file.
    ///
    /// # Errors
    /// There is no such type, or there was none in this era.
    pub fn type_of(self, id: i32) -> Result<LegacyType, LegacyTypeError> {
        let ty = LegacyType::ALL.into_iter().find(|ty| i64::from(ty.id()) == i64::from(id));
        let ty = ty.ok_or(LegacyTypeError::Unknown { id })?;
        match self.block(ty) {
            Some(_) => Ok(ty),
            None => Err(LegacyTypeError::NotThen { ty, era: self }),
        }
    }
}

/// The reason why the number of a type is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages explain the fields
pub enum LegacyTypeError {
    #[error("type {id} is unknown; weights of such files are of types 0 to 8 and 10 to 14")]
    Unknown { id: i32 },

    #[error("type {} ({ty}) does not occur in files whose blocks are {era}", ty.id())]
    NotThen { ty: LegacyType, era: Era },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented table, line by line.
    #[test]
    fn blocks_have_the_sizes_of_their_time() {
        let sizes = |era: Era| {
            let all = LegacyType::ALL.iter();
            all.map(|ty| era.block(*ty).map_or((0, 0), |size| size)).collect::<Vec<_>>()
        };
        let none = (0, 0);
        let rows = [(1, 4), (1, 2), (32, 20), (32, 24)];
        assert_eq!(sizes(Era::Rows), [&rows[..], &[none; 10]].concat());
        let five_eight = [(32, 22), (32, 24), (32, 36)];
        let pairs = [&rows[..], &[(16, 10), (16, 12)], &five_eight, &[none; 5]].concat();
        assert_eq!(sizes(Era::Pairs), pairs);
        let halves = [&rows[..], &[none; 2], &five_eight, &[none; 5]].concat();
        assert_eq!(sizes(Era::Halves), halves);
        let current = [
            (1, 4),
            (1, 2),
            (32, 18),
            (32, 20),
            none,
            none,
            (32, 22),
            (32, 24),
            (32, 34),
            (256, 84),
            (256, 110),
            (256, 144),
            (256, 176),
            (256, 210),
        ];
        assert_eq!(sizes(Era::Current), current);
    }

    #[test]
    fn ids_are_ggml_s_and_the_rest_is_refused() {
        for id in -2..100 {
            match Era::Current.type_of(id) {
                Ok(ty) => assert!(ty.id() as i32 == id && ty.current().id() == ty.id()),
                Err(LegacyTypeError::NotThen { ty, .. }) => assert!([4, 5].contains(&ty.id())),
                Err(_) => assert!(!(0..15).contains(&id) || id == 9, "{id}"),
            }
        }
        let text = |era: Era, id| era.type_of(id).unwrap_err().to_string();
        assert!(text(Era::Halves, 4).contains("Q4_2") && text(Era::Current, 5).contains("Q4_3"));
        assert!(
            text(Era::Pairs, 12).contains("Q4_K")
                && text(Era::Pairs, i32::MIN).contains("-2147483648")
        );
        assert!(Era::Rows.type_of(6).is_err() && Era::Pairs.type_of(9).is_err());
    }
}
