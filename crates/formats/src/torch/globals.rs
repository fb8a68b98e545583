//! The names that a pickle may look up, and their meaning here. Any other name is refused, with the name in the error.
//!
//! The list contains the building blocks of `state_dict()`s: the dictionary, four functions that rebuild a
//! tensor, and the classes of storages. `torch.Tensor`, `torch.nn.parameter.Parameter` and the dtypes are
//! arguments that two of these functions require; they are only compared, never called.

use std::fmt;

/// Declares [`TorchDtype`]: variant, bytes, and name in torch's interface and in this library.
macro_rules! dtypes {
    ($($variant:ident = $size:literal, $name:literal;)*) => {
        /// Type of a tensor's elements, little-endian.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types)]
        pub enum TorchDtype {
            $(#[doc = concat!("`torch.", $name, "`.")] $variant,)*
        }

        impl TorchDtype {
            /// Every type.
            pub const ALL: &'static [TorchDtype] = &[$(TorchDtype::$variant),*];

            /// Bytes of an element.
            pub const fn bytes(self) -> u64 {
                match self {
                    $(TorchDtype::$variant => $size,)*
                }
            }

            /// Torch's name, as in `torch.float16`, without the `torch.`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TorchDtype::$variant => $name,)*
                }
            }
        }
    };
}

dtypes! {
    F64 = 8, "float64";
    F32 = 4, "float32";
    F16 = 2, "float16";
    BF16 = 2, "bfloat16";
    I64 = 8, "int64";
    I32 = 4, "int32";
    I16 = 2, "int16";
    I8 = 1, "int8";
    U8 = 1, "uint8";
    Bool = 1, "bool";
    U64 = 8, "uint64";
    U32 = 4, "uint32";
    U16 = 2, "uint16";
    F8_E4M3 = 1, "float8_e4m3fn";
    F8_E5M2 = 1, "float8_e5m2";
}

impl fmt::Display for TorchDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor_v2`: the storage determines the type.
    TensorV2,
    /// `_rebuild_tensor_v3`: an argument determines the type.
    TensorV3,
    Parameter,
    FromType,
    /// A storage class with elements of this type. `UntypedStorage` counts bytes.
    Storage(TorchDtype),
    /// A class that `_rebuild_from_type_v2` names.
    Class,
    Dtype(TorchDtype),
}

impl Global {
    pub(super) fn find(module: &str, name: &str) -> Option<Global> {
        Some(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Global::TensorV2,
            ("torch._utils", "_rebuild_tensor_v3") => Global::TensorV3,
            ("torch._utils", "_rebuild_parameter") => Global::Parameter,
            ("torch._tensor", "_rebuild_from_type_v2") => Global::FromType,
            ("torch", "HalfStorage") => Global::Storage(TorchDtype::F16),
            ("torch", "BFloat16Storage") => Global::Storage(TorchDtype::BF16),
            ("torch", "FloatStorage") => Global::Storage(TorchDtype::F32),
            ("torch", "DoubleStorage") => Global::Storage(TorchDtype::F64),
            ("torch", "IntStorage") => Global::Storage(TorchDtype::I32),
            ("torch", "LongStorage") => Global::Storage(TorchDtype::I64),
            ("torch", "ShortStorage") => Global::Storage(TorchDtype::I16),
            ("torch", "CharStorage") => Global::Storage(TorchDtype::I8),
            ("torch", "ByteStorage") => Global::Storage(TorchDtype::U8),
            ("torch", "BoolStorage") => Global::Storage(TorchDtype::Bool),
            ("torch.storage", "UntypedStorage") => Global::Storage(TorchDtype::U8),
            ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => Global::Class,
            ("torch", dtype) => {
                Global::Dtype(*TorchDtype::ALL.iter().find(|known| known.name() == dtype)?)
            }
            _ => return None,
        })
    }
}
