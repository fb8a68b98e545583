//! A call frame as XLA makes it, out of lists that outlive the call.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use alight_xla::api;

/// Attributes: their kinds, names and values, in the same order.
pub struct Attributes<'a> {
    pub kinds: &'a mut [c_int],
    pub names: &'a mut [*mut api::ByteSpan],
    pub values: &'a mut [*mut c_void],
}

/// The frame of a call with these arguments, results and attributes. `context` is what the functions of `api` expect;
/// `kinds` has an entry for each argument and each result.
pub fn frame(
    api: &api::Api,
    context: *mut c_void,
    kinds: &mut [c_int],
    inputs: &mut [*mut c_void],
    outputs: &mut [*mut c_void],
    attributes: Attributes<'_>,
) -> api::CallFrame {
    api::CallFrame {
        struct_size: size_of::<api::CallFrame>(),
        extension_start: null_mut(),
        api,
        ctx: context.cast(),
        stage: 0,
        args: api::Args {
            struct_size: size_of::<api::Args>(),
            extension_start: null_mut(),
            size: inputs.len() as i64,
            types: kinds.as_mut_ptr(),
            args: inputs.as_mut_ptr(),
        },
        rets: api::Rets {
            struct_size: size_of::<api::Rets>(),
            extension_start: null_mut(),
            size: outputs.len() as i64,
            types: kinds.as_mut_ptr(),
            rets: outputs.as_mut_ptr(),
        },
        attrs: api::Attrs {
            struct_size: size_of::<api::Attrs>(),
            extension_start: null_mut(),
            size: attributes.values.len() as i64,
            types: attributes.kinds.as_mut_ptr(),
            names: attributes.names.as_mut_ptr(),
            attrs: attributes.values.as_mut_ptr(),
        },
        future: null_mut(),
    }
}
