//! Compiles the emulated driver, and takes it instead of CUDA's.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

fn source(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("cuda/emulated").join(name)
}

/// Compiles unless it has been: the name has a hash of everything that goes into it. None without a compiler.
pub fn compile(name: &str, output: &str, options: &[&str]) -> Option<PathBuf> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hash = DefaultHasher::new();
    for file in ["../allreduce_norm.cu", "../gpu.h", "../matmul.cu", "shim.h", "kernels.h", name] {
        std::fs::read(source(file)).unwrap().hash(&mut hash);
    }
    options.hash(&mut hash);
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{output}-{:016x}", hash.finish()));
    if path.exists() {
        return Some(path);
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let temporary = folder.join(format!("{output}-{}", std::process::id()));
    let done = Command::new(&compiler)
        .args(["-std=c++17", "-O1", "-pthread", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-w"])
        .args(options)
        .arg("-o")
        .args([&temporary, &source(name)])
        .output();
    match done {
        Err(error) => {
            println!("skipped: no C++ compiler, {compiler}: {error}");
            None
        }
        Ok(output) if !output.status.success() => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("tsan"), "{said}");
            println!("skipped: {compiler} has no thread sanitizer");
            None
        }
        Ok(_) => {
            std::fs::rename(&temporary, &path).unwrap();
            Some(path)
        }
    }
}

/// Takes the emulated driver instead of CUDA's. False where there is none.
pub fn emulated() -> bool {
    static READY: OnceLock<bool> = OnceLock::new();
    *READY.get_or_init(|| {
        let Some(path) = compile("driver.cpp", "libcuda_emulated.so", &["-fPIC", "-shared"]) else {
            return false;
        };
        for name in ["ALIGHT_LIBCUDA", "ALIGHT_LIBNVRTC"] {
            // SAFETY: this program reads the environment by the standard library alone, which locks it, until the driver is loaded after this.
            unsafe { std::env::set_var(name, &path) };
        }
        true
    })
}

/// A function of the emulated driver, which is loaded already.
fn own_function(name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    function(&std::env::var("ALIGHT_LIBCUDA").unwrap(), name)
}

/// Has a stream of the emulated driver do nothing that nobody waits for, or everything at once again.
pub fn be_late(stream: alight_xla::cuda::Stream, yes: bool) {
    // SAFETY: a function of a stream and a number.
    let call: extern "C" fn(*mut std::ffi::c_void, i32) =
        unsafe { std::mem::transmute(own_function(c"alight_be_late")) };
    call(stream.pointer(), i32::from(yes));
}

/// Refuses this thread copies out of memory that is not page-locked, or no more.
pub fn only_locked(yes: bool) {
    // SAFETY: a function of a number.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(own_function(c"alight_only_locked")) };
    call(i32::from(yes));
}

/// Of this thread's calls that copy out of the host's memory, or have to do with events, `count` pass, and the next fails; none if negative.
pub fn fail_after(count: i32) {
    // SAFETY: a function of a number.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(own_function(c"alight_fail_after")) };
    call(count);
}

/// This thread's next `count` allocations are refused for want of memory.
pub fn refuse_memory(count: i32) {
    // SAFETY: a function of a number.
    let call: extern "C" fn(i32) =
        unsafe { std::mem::transmute(own_function(c"alight_refuse_memory")) };
    call(count);
}

/// The GPUs that have a context, a bit for each.
pub fn contexts() -> u64 {
    // SAFETY: a function without arguments.
    let call: extern "C" fn() -> u64 =
        unsafe { std::mem::transmute(own_function(c"alight_contexts")) };
    call()
}

/// Bytes of the arguments of products with matrices in slots: of pairs that are listed, and that are counted.
pub fn sizes_of_pairs() -> [usize; 2] {
    // SAFETY: a function of a number.
    let size: extern "C" fn(i32) -> usize =
        unsafe { std::mem::transmute(own_function(c"alight_size_of_pairs")) };
    [0, 1].map(|counted| size(counted))
}

/// The emulated driver's own answer to a copy of `bytes` to the address `to`.
pub fn copy(to: u64, bytes: &[u8], stream: alight_xla::cuda::Stream) -> i32 {
    type Copy = extern "C" fn(u64, *const u8, usize, *mut std::ffi::c_void) -> i32;
    // SAFETY: a function of two addresses, a number and a stream.
    let call: Copy = unsafe { std::mem::transmute(own_function(c"cuMemcpyHtoDAsync_v2")) };
    call(to, bytes.as_ptr(), bytes.len(), stream.pointer())
}

/// Destroys a graph, which may not be launched any more.
pub fn destroy(graph: alight_xla::cuda::Graph) {
    // SAFETY: a function of a graph.
    let call: extern "C" fn(*mut std::ffi::c_void) -> i32 =
        unsafe { std::mem::transmute(own_function(c"cuGraphExecDestroy")) };
    assert_eq!(call(graph.pointer()), 0);
}

fn count(name: &std::ffi::CStr) -> usize {
    // SAFETY: a function without arguments.
    let call: extern "C" fn() -> usize = unsafe { std::mem::transmute(own_function(name)) };
    call()
}

/// Graphs that can be launched.
pub fn graphs() -> usize {
    count(c"alight_graphs")
}

/// How many calls have waited for kernels that may wait for another rank.
pub fn calls_that_waited() -> usize {
    count(c"alight_calls_that_waited")
}

/// A function of the emulated driver, at that path, which is loaded already.
fn function(path: &str, name: &std::ffi::CStr) -> *mut std::ffi::c_void {
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: the library is ours.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        let function = libc::dlsym(library, name.as_ptr());
        assert!(!function.is_null());
        function
    }
}

/// What the emulated driver says of a type of blocks.
pub fn sizes_of_blocks(path: &str, ty: i32) -> [usize; 3] {
    // SAFETY: a function of two numbers.
    let sizes: extern "C" fn(i32, i32) -> usize =
        unsafe { std::mem::transmute(function(path, c"alight_sizes_of_blocks")) };
    [0, 1, 2].map(|field| sizes(ty, field))
}

/// How many pieces of memory there are in this process that others can open, or that it has opened.
pub fn shared_pieces(path: &str) -> usize {
    // SAFETY: a function without arguments.
    let count: extern "C" fn() -> usize =
        unsafe { std::mem::transmute(function(path, c"alight_shared_pieces")) };
    count()
}
