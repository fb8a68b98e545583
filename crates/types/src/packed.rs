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
/// The newest supported version of it. Version 1 is version 2 without experts side by side.
pub const LAYOUT_VERSION: u64 = 2;
/// Type ids of packed tensors begin here ("Al" in the upper half); the canonical id is added.
pub const PACKED_BASE: u32 = 0x416c_0000;

/// Returns the type id of the packed form of `ty`; `None` if it has none.
pub const fn packed_id(ty: GgmlType) -> Option<u32> {
    if has_tiles(ty) { Some(PACKED_BASE | ty.id()) } else { None }
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

/// Returns the type of an id in a file, and true if it is packed.
///
/// # Errors
/// As [`GgmlType::from_id`], and [`TypeError::NotPackable`].
pub const fn type_of(id: u32) -> Result<(GgmlType, bool), TypeError> {
    if id & 0xffff_0000 != PACKED_BASE {
        return match GgmlType::from_id(id) {
            Ok(ty) => Ok((ty, false)),
            Err(error) => Err(error),
        };
    }
    match GgmlType::from_id(id & 0xffff) {
        Ok(ty) if has_tiles(ty) => Ok((ty, true)),
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
            assert_eq!(type_of(ty.id()), Ok((*ty, false)));
            match packed_id(*ty) {
                Some(id) => {
                    assert!(id > 1 << 30 && i32::try_from(id).is_ok(), "{id}");
                    assert_eq!(type_of(id), Ok((*ty, true)));
                    assert!(GgmlType::from_id(id).is_err(), "not a canonical type");
                }
                None => {
                    let id = PACKED_BASE | ty.id();
                    assert_eq!(type_of(id), Err(TypeError::NotPackable { id, ty: *ty }));
                }
            }
        }
        let unknown = PACKED_BASE | 4;
        assert_eq!(type_of(unknown), Err(TypeError::Unknown { id: unknown }));
        let plain = GgmlType::ALL.iter().filter(|ty| !has_tiles(**ty));
        assert!(plain.map(|ty| ty.name()).eq([
            "F32", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "I8", "I16", "I32",
            "I64", "F64", "IQ1_M"
        ]));
    }
}
