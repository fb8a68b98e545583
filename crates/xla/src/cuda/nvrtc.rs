//! CUDA's run-time compiler, which the CUDA wheels of JAX install: `nvrtc.h`, declared by hand.
//!
//! It compiles to machine code for the GPU of this machine (a cubin): an older driver would reject the PTX of a newer compiler.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::error::CudaError;
use super::library::{Library, functions};

type Program = *mut c_void;

functions! {
    /// With the names that the library exports.
    Functions {
        nvrtcCreateProgram(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        nvrtcDestroyProgram(*mut Program);
        nvrtcCompileProgram(Program, c_int, *const *const c_char);
        nvrtcGetProgramLogSize(Program, *mut usize);
        nvrtcGetProgramLog(Program, *mut c_char);
        nvrtcGetCUBINSize(Program, *mut usize);
        nvrtcGetCUBIN(Program, *mut c_char);
    }
}

/// Folders that may contain the library; Python knows where wheels are installed.
static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(vec![]);

/// Sets folders to search before the system's. It must be called before anything is compiled.
pub fn look_in(folders: Vec<PathBuf>) {
    *FOLDERS.lock().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// Options of every compilation; python -m evidence check cuda has the same.
const OPTIONS: [&str; 5] =
    ["--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"];

fn load() -> Result<Functions, CudaError> {
    let mut names = vec![];
    if let Ok(path) = std::env::var("ALIGHT_LIBNVRTC") {
        names.push(path);
    } else {
        let folders = FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for folder in folders {
            // NVRTC searches its second library by name only, and finds it if it has been loaded.
            let builtins = libraries(&folder, "libnvrtc-builtins.so.");
            for path in libraries(&folder, "libnvrtc.so.") {
                let _ = Library::open(&builtins);
                names.push(path);
            }
        }
        names.extend(["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(String::from));
    }
    let (library, name) = Library::open(&names).map_err(CudaError::NoCompiler)?;
    Functions::load(&library).map_err(|error| CudaError::NoCompiler(format!("{name}: {error}")))
}

/// The files in `folder` whose names begin with `prefix`, the newest version first.
fn libraries(folder: &Path, prefix: &str) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder) else { return vec![] };
    let mut names: Vec<String> = files
        .filter_map(|file| Some(file.ok()?.path().to_str()?.to_owned()))
        .filter(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with(prefix)))
        .collect();
    names.sort_by(|a, b| b.cmp(a));
    names
}

fn functions() -> Result<&'static Functions, CudaError> {
    static LIBRARY: OnceLock<Result<Functions, CudaError>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Checks that there is a compiler.
pub fn available() -> Result<(), CudaError> {
    functions().map(|_| ())
}

/// Compiles a source, `(name, text)`, that may include one header, for an architecture ("sm_90") to its machine code.
pub(super) fn compile(
    (name, source): (&CStr, &str),
    (header_name, header): (&CStr, &str),
    architecture: &str,
    macros: &[String],
) -> Result<Vec<u8>, CudaError> {
    let functions = functions()?;
    let failed = |log: String| CudaError::Compile { architecture: architecture.into(), log };
    let options = OPTIONS.iter().map(ToString::to_string);
    let options = options.chain([format!("--gpu-architecture={architecture}")]);
    let options = options.chain(macros.iter().map(|name| format!("-D{name}")));
    let options: Result<Vec<_>, _> = options.map(CString::new).collect();
    let (Ok(options), Ok(text), Ok(header)) = (options, CString::new(source), CString::new(header))
    else {
        return Err(failed("a zero byte in its text or options".into()));
    };
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = null_mut();
    let (headers, header_names) = ([header.as_ptr()], [header_name.as_ptr()]);
    // SAFETY: strings that live for the call, and one header.
    let code = unsafe {
        (functions.nvrtcCreateProgram)(
            &mut program,
            text.as_ptr(),
            name.as_ptr(),
            1,
            headers.as_ptr(),
            header_names.as_ptr(),
        )
    };
    if code != 0 {
        return Err(failed(format!("nvrtcCreateProgram gives {code}")));
    }
    let mut program = Destroy(functions, program);
    // SAFETY: a program, and that many options.
    let code = unsafe {
        (functions.nvrtcCompileProgram)(program.1, pointers.len() as c_int, pointers.as_ptr())
    };
    if code != 0 {
        let log = program.get(functions.nvrtcGetProgramLogSize, functions.nvrtcGetProgramLog);
        let log =
            String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches('\0').to_owned();
        return Err(failed(format!("nvrtcCompileProgram gives {code}: {log}")));
    }
    program
        .get(functions.nvrtcGetCUBINSize, functions.nvrtcGetCUBIN)
        .ok_or_else(|| failed("NVRTC gives no machine code".into()))
}

/// Destroys a program, on every exit path.
struct Destroy<'a>(&'a Functions, Program);

impl Destroy<'_> {
    fn get(
        &mut self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut length = 0;
        // SAFETY: a program; writes a number.
        if unsafe { size(self.1, &mut length) } != 0 {
            return None;
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: the buffer has the size that NVRTC reported.
        (unsafe { get(self.1, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
    }
}

impl Drop for Destroy<'_> {
    fn drop(&mut self) {
        // SAFETY: a program, destroyed once.
        unsafe { (self.0.nvrtcDestroyProgram)(&mut self.1) };
    }
}
