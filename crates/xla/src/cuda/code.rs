//! A kernel's code: compiled for the GPU of this machine, and loaded into it, once.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::driver::{Driver, Function};
use super::error::CudaError;
use super::nvrtc;

/// The header that the sources share, with the name by which they include it.
pub(super) const HEADER: (&CStr, &str) = (c"gpu.h", include_str!("../../cuda/gpu.h"));

/// A source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    AllreduceNorm,
    Matmul,
}

impl Source {
    /// Its name, for messages, and its text.
    pub(super) const fn file(self) -> (&'static CStr, &'static str) {
        match self {
            Source::AllreduceNorm => {
                (c"allreduce_norm.cu", include_str!("../../cuda/allreduce_norm.cu"))
            }
            Source::Matmul => (c"matmul.cu", include_str!("../../cuda/matmul.cu")),
        }
    }
}

/// A kernel of a source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code {
    pub(super) source: Source,
    /// The kernel's name.
    pub(super) entry: &'static CStr,
    pub(super) macros: Vec<String>,
    /// The maximum number of bytes of shared memory that a launch requests, in addition to the code's own.
    pub(super) shared: usize,
}

/// The maximum that a launch may request without prior permission.
const SHARED_ALWAYS: usize = 48 << 10;

impl Code {
    /// The kernel on a GPU: compiled and loaded the first time.
    ///
    /// CUDA may delay loading a kernel until the running ones have ended, and these may wait for a rank that comes here to load
    /// another one. So only this kernel's entry is locked meanwhile.
    pub(super) fn load(&self, driver: &Driver, ordinal: i64) -> Result<Function, CudaError> {
        type Entry = Arc<Mutex<Option<Function>>>;
        static LOADED: Mutex<Option<HashMap<(i64, Code), Entry>>> = Mutex::new(None);
        let entry = {
            let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
            let loaded = loaded.get_or_insert_default();
            loaded.entry((ordinal, self.clone())).or_default().clone()
        };
        let mut function = entry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = *function {
            return Ok(function);
        }
        let cubin = self.cubin(driver, ordinal)?;
        let loaded = driver.load_function(ordinal, &cubin, self.entry)?;
        if self.shared > SHARED_ALWAYS {
            driver.allow_shared(ordinal, loaded, self.shared)?;
        }
        Ok(*function.insert(loaded))
    }

    /// Several kernels are compiled at the same time, each once.
    fn cubin(&self, driver: &Driver, ordinal: i64) -> Result<Arc<[u8]>, CudaError> {
        type Key = ((i32, i32), Code);
        type Cubin = Arc<OnceLock<Result<Arc<[u8]>, CudaError>>>;
        static COMPILED: Mutex<Option<HashMap<Key, Cubin>>> = Mutex::new(None);
        let (major, minor) = architecture(driver, ordinal)?;
        let cubin = {
            let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = compiled.get_or_insert_default();
            compiled.entry(((major, minor), self.clone())).or_default().clone()
        };
        let compile = || {
            let architecture = format!("sm_{major}{minor}");
            nvrtc::compile(self.source.file(), HEADER, &architecture, &self.macros).map(Arc::from)
        };
        cubin.get_or_init(compile).clone()
    }
}

/// The compute capability to compile for.
pub(super) fn architecture(driver: &Driver, ordinal: i64) -> Result<(i32, i32), CudaError> {
    let (major, minor) = driver.capability(ordinal)?;
    if major < 8 {
        let reason = format!("compute capability {major}.{minor}, the kernel needs 8.0");
        return Err(CudaError::Device { ordinal, reason });
    }
    Ok((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the compiler that `make cuda` installs, if it is installed.
    #[test]
    fn the_library_compiles_kernels() {
        let venv = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv-cuda/lib");
        let python = std::fs::read_dir(venv).into_iter().flatten().flatten().next();
        let Some(python) = python else {
            return println!("skipped: no .venv-cuda, make cuda makes it");
        };
        nvrtc::look_in(vec![python.path().join("site-packages/nvidia/cu13/lib")]);
        nvrtc::available().unwrap();
        for code in [crate::cuda::kernel::an_example(), crate::cuda::blocks::an_example()] {
            let cubin = nvrtc::compile(code.source.file(), HEADER, "sm_90", &code.macros).unwrap();
            assert_eq!(cubin[..4], *b"\x7fELF");
            let name = code.entry.to_bytes();
            assert!(cubin.windows(name.len()).any(|bytes| bytes == name));
        }
        let wrong = (c"wrong.cu", "no C++");
        let error = nvrtc::compile(wrong, HEADER, "sm_90", &[]).unwrap_err().to_string();
        assert!(
            error.contains("does not compile the kernel for sm_90")
                && error.contains("wrong.cu(1)"),
            "{error}"
        );
    }
}
