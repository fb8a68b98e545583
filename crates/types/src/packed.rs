//! The packed layout's name, version, tile and type ids.
//!
//! A packed tensor holds the bits of the canonical one in another order: the same number of bytes, in tiles of [`TILE_ROWS`] rows
//! instead of rows (`docs/reference/packed-layout.md`). Since the bytes mean something else, it has another type id:
//! [`packed_id`], far outside the ids of ggml and its forks, so that a reader that does not know the layout refuses the file
//! instead of computing garbage.

use crate::{GgmlType, TypeError};

/// Rows of a tile; a packed matrix is a whole number of tiles.
pub const TILE_ROWS: u64 = 16;
/// The only layout: tiles of 16 rows.
pub const LAYOUT: &str = "tiles16";
/// The newest supported version of it. Version 1 is version 2 without experts side by side, version 2 is version 3 without planes.
pub const LAYOUT_VERSION: u64 = 3;
/// The first version of it that has planes.
pub const PLANES_VERSION: u64 = 3;
/// Type ids of tensors in tiles begin here ("Al" in the upper half); the canonical id is added.
pub const PACKED_BASE: u32 = 0x416c_0000;
/// Type ids of tensors in planes begin here; the canonical id is added.
pub const PLANES_BASE: u32 = 0x416d_0000;

/// The arrangement of a packed tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Tiles of [`TILE_ROWS`] rows.
    Tiles,
    /// The high bits of the codes in tiles, apart from the low ones in rows, for each [group](group_rows) of rows: an output matrix, of whose rows
    /// few are read whole.
    Planes,
}

/// Returns the type id of a packed form of `ty`; `None` if it has none.
pub const fn packed_id(ty: GgmlType, packing: Packing) -> Option<u32> {
    match packing {
        Packing::Tiles if has_tiles(ty) => Some(PACKED_BASE | ty.id()),
        Packing::Planes if has_planes(ty) => Some(PLANES_BASE | ty.id()),
        _ => None,
    }
}

/// Returns true if a matrix of this type can be stored in planes.
pub const fn has_planes(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::Q8_0)
}

/// Maximum number of bytes of a group of rows in planes, unless 32 rows have more.
const MAX_GROUP: u64 = 4 << 20;

/// Returns the number of rows of a group in planes, whose high bits precede their low bits; the last group may have fewer. A multiple of 32.
pub const fn group_rows(row_bytes: u64) -> u64 {
    let rows = MAX_GROUP / if row_bytes == 0 { 1 } else { row_bytes } / 32 * 32;
    if rows == 0 { 32 } else { rows }
}

/// Returns true if matrices of this type have a packed form: the 16-bit floats and all quantised types except those with a code
/// book, whose rows are faster to look up one by one. F32 has none: the kernels already read it as it is, and models contain
/// little of it.
///
/// The arrangement of a type's tile is defined by its kernels; until a type has some, nothing
/// writes its packed form, and nothing computes with it.
pub const fn has_tiles(ty: GgmlType) -> bool {
    use GgmlType::*;
    let codebook = matches!(ty, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S);
    ty.is_quantised() && !codebook || matches!(ty, F16 | BF16)
}

/// Returns the type of an id in a file, and its arrangement if it is packed.
///
/// # Errors
/// As [`GgmlType::from_id`], and [`TypeError::NotPackable`].
pub const fn type_of(id: u32) -> Result<(GgmlType, Option<Packing>), TypeError> {
    let packing = match id & 0xffff_0000 {
        PACKED_BASE => Packing::Tiles,
        PLANES_BASE => Packing::Planes,
        _ => {
            return match GgmlType::from_id(id) {
                Ok(ty) => Ok((ty, None)),
                Err(error) => Err(error),
            };
        }
    };
    match GgmlType::from_id(id & 0xffff) {
        Ok(ty) if packed_id(ty, packing).is_some() => Ok((ty, Some(packing))),
        Ok(ty) => Err(TypeError::NotPackable { id, ty }),
        Err(_) => Err(TypeError::Unknown { id }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_ids_are_far_from_every_other_and_positive() {
        for ty in GgmlType::ALL {
            assert_eq!(type_of(ty.id()), Ok((*ty, None)));
            for (packing, base) in [(Packing::Tiles, PACKED_BASE), (Packing::Planes, PLANES_BASE)] {
                match packed_id(*ty, packing) {
                    Some(id) => {
                        assert!(id > 1 << 30 && i32::try_from(id).is_ok(), "{id}");
                        assert_eq!(type_of(id), Ok((*ty, Some(packing))));
                        assert!(GgmlType::from_id(id).is_err(), "not a canonical type");
                    }
                    None => {
                        let id = base | ty.id();
                        assert_eq!(type_of(id), Err(TypeError::NotPackable { id, ty: *ty }));
                    }
                }
            }
        }
        let unknown = PACKED_BASE | 4;
        assert_eq!(type_of(unknown), Err(TypeError::Unknown { id: unknown }));
        assert!(GgmlType::ALL.iter().all(|ty| !has_planes(*ty) || has_tiles(*ty)));
        let plain = GgmlType::ALL.iter().filter(|ty| !has_tiles(**ty));
        assert!(plain.map(|ty| ty.name()).eq([
            "F32", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "I8", "I16", "I32",
            "I64", "F64", "IQ1_M"
        ]));
    }

    #[test]
    fn a_group_of_rows_in_planes_has_4_mib_or_32_rows() {
        assert_eq!([680, 1, 0, 131_072, 200_000].map(group_rows), [6144, 4 << 20, 4 << 20, 32, 32]);
    }
}
