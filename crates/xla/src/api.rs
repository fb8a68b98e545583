//! XLA's FFI, version 0.3 of its C interface: `xla/ffi/api/c_api.h` in the include folder of jaxlib 0.10.2. The names are
//! those of the header without `XLA_FFI_`. `bindings/python/tests/test_ffi.py` compares sizes, offsets and constants with the installed
//! header.
//!
//! Built against the oldest supported version: a newer jaxlib accepts handlers of an older minor version, an older one rejects
//! newer handlers.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::AtomicI64;

macro_rules! constants {
    ($($(#[$doc:meta])* $name:ident ($header:literal) = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: std::ffi::c_int = $value;)*

        /// These constants, with their names in the header.
        pub const NAMED: &[(&str, std::ffi::c_int)] = &[$(($header, $name),)*];
    };
}

constants! {
    /// The interface's major version.
    MAJOR ("XLA_FFI_API_MAJOR") = 0;
    /// The interface's minor version.
    MINOR ("XLA_FFI_API_MINOR") = 3;
    /// The extension that requests metadata.
    EXTENSION_METADATA ("XLA_FFI_Extension_Metadata") = 1;
    /// The stage that creates states.
    STAGE_INSTANTIATE ("XLA_FFI_ExecutionStage_INSTANTIATE") = 0;
    /// An argument that is an array.
    BUFFER ("XLA_FFI_ArgType_BUFFER") = 1;
    /// A result that is an array.
    RESULT_BUFFER ("XLA_FFI_RetType_BUFFER") = 1;
    /// An attribute that is an array of numbers.
    ATTR_ARRAY ("XLA_FFI_AttrType_ARRAY") = 1;
    /// An attribute that is a number.
    ATTR_SCALAR ("XLA_FFI_AttrType_SCALAR") = 3;
}

/// `XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE`: the execute stage only launches, so it may be captured into a graph.
pub const COMMAND_BUFFER_COMPATIBLE: u32 = 1;

/// Element types, by number.
pub mod data_type {
    constants! {
        /// 32-bit signed integers.
        S32 ("XLA_FFI_DataType_S32") = 4;
        /// 64-bit signed integers.
        S64 ("XLA_FFI_DataType_S64") = 5;
        /// Bytes.
        U8 ("XLA_FFI_DataType_U8") = 6;
        /// 32-bit unsigned integers.
        U32 ("XLA_FFI_DataType_U32") = 8;
        /// IEEE binary16.
        F16 ("XLA_FFI_DataType_F16") = 10;
        /// IEEE binary32.
        F32 ("XLA_FFI_DataType_F32") = 11;
        /// The upper 16 bits of an f32.
        BF16 ("XLA_FFI_DataType_BF16") = 16;
    }
}

/// Codes of errors.
pub mod code {
    constants! {
        /// The arguments are invalid.
        INVALID_ARGUMENT ("XLA_FFI_Error_Code_INVALID_ARGUMENT") = 3;
        /// Something did not arrive in time.
        DEADLINE_EXCEEDED ("XLA_FFI_Error_Code_DEADLINE_EXCEEDED") = 4;
        /// The state does not permit the call.
        FAILED_PRECONDITION ("XLA_FFI_Error_Code_FAILED_PRECONDITION") = 9;
        /// An error in this library.
        INTERNAL ("XLA_FFI_Error_Code_INTERNAL") = 13;
    }
}

/// All constants, with their names in the header.
pub fn constants() -> Vec<(&'static str, c_int)> {
    [NAMED, data_type::NAMED, code::NAMED].concat()
}

/// An error of XLA, created by its `Error_Create`.
#[repr(C)]
pub struct Error {
    _opaque: [u8; 0],
}

/// XLA's context of a run.
#[repr(C)]
pub struct ExecutionContext {
    _opaque: [u8; 0],
}

/// A handler; it returns null on success.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;

/// A task for XLA's threads; its argument is the pointer that was scheduled with it.
pub type Task = unsafe extern "C" fn(*mut c_void);

/// A function of the interface.
pub type FfiFunction<A> = unsafe extern "C" fn(*mut A) -> *mut Error;

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident ($header:literal) { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[allow(missing_docs, non_snake_case)]
            pub struct $name { $(pub $field: $type,)* }
        )*

        /// The layout of every struct: the header's name, size, and names and offsets of its fields.
        pub fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$(($header, size_of::<$name>(), vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*]),)*]
        }
    };
}

structs! {
    /// The head of an extension of a struct.
    ExtensionBase ("XLA_FFI_Extension_Base") { struct_size: usize, r#type: c_int, next: *mut ExtensionBase, }
    /// A version of the interface.
    ApiVersion ("XLA_FFI_Api_Version") {
        struct_size: usize, extension_start: *mut ExtensionBase, major_version: c_int, minor_version: c_int,
    }
    /// The arguments for the creation of an error.
    ErrorCreateArgs ("XLA_FFI_Error_Create_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, message: *const c_char, errc: c_int,
    }
    /// An array in the device's memory; `dims` has `rank` elements, outermost first.
    Buffer ("XLA_FFI_Buffer") {
        struct_size: usize, extension_start: *mut ExtensionBase, dtype: c_int, data: *mut c_void, rank: i64,
        dims: *mut i64,
    }
    /// Bytes; not terminated.
    ByteSpan ("XLA_FFI_ByteSpan") { ptr: *const c_char, len: usize, }
    /// An attribute that is a number.
    Scalar ("XLA_FFI_Scalar") { dtype: c_int, value: *mut c_void, }
    /// An attribute that is an array of numbers.
    Array ("XLA_FFI_Array") { dtype: c_int, size: usize, data: *mut c_void, }
    /// The number of a type; XLA writes it at registration.
    TypeId ("XLA_FFI_TypeId") { type_id: AtomicI64, }
    /// The destructor of a type.
    TypeInfo ("XLA_FFI_TypeInfo") {
        struct_size: usize, extension_start: *mut ExtensionBase, deleter: unsafe extern "C" fn(*mut c_void),
    }
    /// Arguments: `size` types and pointers.
    Args ("XLA_FFI_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, size: i64, types: *mut c_int, args: *mut *mut c_void,
    }
    /// Results: `size` types and pointers.
    Rets ("XLA_FFI_Rets") {
        struct_size: usize, extension_start: *mut ExtensionBase, size: i64, types: *mut c_int, rets: *mut *mut c_void,
    }
    /// Attributes: `size` types, names and pointers.
    Attrs ("XLA_FFI_Attrs") {
        struct_size: usize, extension_start: *mut ExtensionBase, size: i64, types: *mut c_int,
        names: *mut *mut ByteSpan, attrs: *mut *mut c_void,
    }
    /// A call of a handler.
    CallFrame ("XLA_FFI_CallFrame") {
        struct_size: usize, extension_start: *mut ExtensionBase, api: *const Api, ctx: *mut ExecutionContext,
        stage: c_int, args: Args, rets: Rets, attrs: Attrs, future: *mut c_void,
    }
    /// Sets the state of a call site.
    StateSetArgs ("XLA_FFI_State_Set_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, stage: c_int,
        type_id: *const TypeId, state: *mut c_void,
    }
    /// Gets the state of a call site.
    StateGetArgs ("XLA_FFI_State_Get_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, stage: c_int,
        type_id: *const TypeId, state: *mut c_void,
    }
    /// Gets the number of a run.
    RunIdGetArgs ("XLA_FFI_RunId_Get_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, run_id: i64,
    }
    /// Gets the number of a device.
    DeviceOrdinalGetArgs ("XLA_FFI_DeviceOrdinal_Get_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, device_ordinal: i32,
    }
    /// Destroys an error.
    ErrorDestroyArgs ("XLA_FFI_Error_Destroy_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, error: *mut Error,
    }
    /// Schedules a task to be run on one of XLA's threads, at some time.
    ScheduleArgs ("XLA_FFI_ThreadPool_Schedule_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, task: Task,
        data: *mut c_void,
    }
    /// Gets the number of XLA's threads.
    NumThreadsArgs ("XLA_FFI_ThreadPool_NumThreads_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, num_threads: *mut i64,
    }
    /// Gets the stream of a device.
    StreamGetArgs ("XLA_FFI_Stream_Get_Args") {
        struct_size: usize, extension_start: *mut ExtensionBase, ctx: *mut ExecutionContext, stream: *mut c_void,
    }
    /// A handler's description of itself.
    Metadata ("XLA_FFI_Metadata") {
        struct_size: usize, api_version: ApiVersion, traits: u32, state_type_id: i64,
    }
    /// XLA's request for it.
    MetadataExtension ("XLA_FFI_Metadata_Extension") { extension_base: ExtensionBase, metadata: *mut Metadata, }
    /// XLA's functions. Those not used here are bare pointers; optional ones may be null.
    Api ("XLA_FFI_Api") {
        struct_size: usize, extension_start: *mut ExtensionBase, api_version: ApiVersion, internal_api: *const c_void,
        XLA_FFI_Error_Create: FfiFunction<ErrorCreateArgs>,
        XLA_FFI_Error_GetMessage: *const c_void,
        XLA_FFI_Error_Destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
        XLA_FFI_Handler_Register: *const c_void,
        XLA_FFI_Stream_Get: FfiFunction<StreamGetArgs>,
        XLA_FFI_Type_Register: *const c_void,
        XLA_FFI_ExecutionContext_Get: *const c_void,
        XLA_FFI_State_Set: FfiFunction<StateSetArgs>,
        XLA_FFI_State_Get: FfiFunction<StateGetArgs>,
        XLA_FFI_DeviceMemory_Allocate: *const c_void,
        XLA_FFI_DeviceMemory_Free: *const c_void,
        XLA_FFI_ThreadPool_Schedule: Option<FfiFunction<ScheduleArgs>>,
        XLA_FFI_ThreadPool_NumThreads: Option<FfiFunction<NumThreadsArgs>>,
        XLA_FFI_Future_Create: *const c_void,
        XLA_FFI_Future_SetAvailable: *const c_void,
        XLA_FFI_Future_SetError: *const c_void,
        XLA_FFI_RunId_Get: FfiFunction<RunIdGetArgs>,
        XLA_FFI_DeviceOrdinal_Get: FfiFunction<DeviceOrdinalGetArgs>,
    }
}
