//! Libraries that are opened at run time: no part of CUDA is needed to build or start the program.

use std::ffi::{CStr, CString, c_void};

/// An opened library. It is never closed, since threads that it has started continue to run.
pub(super) struct Library(*mut c_void);

impl Library {
    /// Opens the first of `names` that exists; otherwise returns the system's messages about all of them.
    pub(super) fn open(names: &[String]) -> Result<(Library, String), String> {
        let mut messages = vec![];
        for name in names {
            let Ok(text) = CString::new(name.as_str()) else { continue };
            // SAFETY: the name is a string; initialisers of the library run, as with any library.
            let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            if !handle.is_null() {
                return Ok((Library(handle), name.clone()));
            }
            // SAFETY: after a failed dlopen it is a string or null.
            let error = unsafe { libc::dlerror() };
            if error.is_null() {
                messages.push(name.clone());
            } else {
                // SAFETY: a string that is valid until the next call of this thread.
                messages.push(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned());
            }
        }
        Err(messages.join("; "))
    }

    /// The address of a function.
    pub(super) fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: an open library, and a string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

/// Declares a table of C functions and `load`, which finds all of them or names the missing one.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident($($type:ty),*);)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $table { $(pub(super) $name: unsafe extern "C" fn($($type),*) -> std::ffi::c_int,)* }

        impl $table {
            pub(super) fn load(library: &$crate::cuda::library::Library) -> Result<$table, String> {
                Ok($table { $($name: {
                    let name = concat!(stringify!($name), "\0");
                    let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                    let address = library.find(name).ok_or(concat!("it has no ", stringify!($name)))?;
                    // SAFETY: the type is that of the vendor's header for this name.
                    unsafe {
                        std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> std::ffi::c_int>(
                            address,
                        )
                    }
                },)* })
            }
        }
    };
}
pub(super) use functions;
