//! The part of CUDA's driver interface that is used here: `cuda.h`, declared by hand.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::error::CudaError;
use super::library::{Library, functions};

type Handle = *mut c_void;

functions! {
    /// With the names that the library exports, which contain versions.
    Functions {
        cuInit(c_uint);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut c_int, c_int);
        cuDeviceGetName(*mut c_char, c_int, c_int);
        cuDeviceGetAttribute(*mut c_int, c_int, c_int);
        cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
        cuDevicePrimaryCtxRetain(*mut Handle, c_int);
        cuCtxPushCurrent_v2(Handle);
        cuCtxPopCurrent_v2(*mut Handle);
        cuCtxEnablePeerAccess(Handle, c_uint);
        cuMemAlloc_v2(*mut u64, usize);
        cuMemFree_v2(u64);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut u64, *mut c_void, c_uint);
        cuMemsetD8Async(u64, u8, usize, Handle);
        cuMemcpyHtoDAsync_v2(u64, *const c_void, usize, Handle);
        cuMemcpyDtoHAsync_v2(*mut c_void, u64, usize, Handle);
        cuMemcpyDtoDAsync_v2(u64, u64, usize, Handle);
        cuIpcGetMemHandle(*mut Shareable, u64);
        cuIpcOpenMemHandle_v2(*mut u64, Shareable, c_uint);
        cuIpcCloseMemHandle(u64);
        cuMemGetAllocationGranularity(*mut usize, *const Allocation, c_int);
        cuMemCreate(*mut u64, usize, *const Allocation, u64);
        cuMemRelease(u64);
        cuMemExportToShareableHandle(*mut c_void, u64, c_int, u64);
        cuMemImportFromShareableHandle(*mut u64, *mut c_void, c_int);
        cuMemAddressReserve(*mut u64, usize, usize, u64, u64);
        cuMemAddressFree(u64, usize);
        cuMemMap(u64, usize, usize, u64, u64);
        cuMemUnmap(u64, usize);
        cuMemSetAccess(u64, usize, *const Access, usize);
        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuFuncSetAttribute(Handle, c_int, c_int);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(*mut c_int, Handle, c_int, usize);
        cuLaunchKernel(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
        cuStreamCreate(*mut Handle, c_uint);
        cuStreamSynchronize(Handle);
        cuStreamIsCapturing(Handle, *mut c_int);
        cuThreadExchangeStreamCaptureMode(*mut c_int);
        cuStreamBeginCapture_v2(Handle, c_int);
        cuStreamEndCapture(Handle, *mut Handle);
        cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
        cuGraphDestroy(Handle);
        cuGraphLaunch(Handle, Handle);
        cuEventCreate(*mut Handle, c_uint);
        cuEventRecord(Handle, Handle);
        cuEventSynchronize(Handle);
        cuStreamWaitEvent(Handle, Handle, c_uint);
        cuEventElapsedTime(*mut f32, Handle, Handle);
        cuGetErrorString(c_int, *mut *const c_char);
    }
}

/// `CU_DEVICE_ATTRIBUTE_…`.
const MULTIPROCESSORS: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_SHARED: c_int = 8;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY: c_int = 704;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const NO_MEMORY: c_int = 2;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
const PORTABLE_MAPPED: c_uint = 3;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIME: c_uint = 2;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`, `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const RELAXED: c_int = 2;
const THREAD_LOCAL: c_int = 1;

/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
const FABRIC_SUPPORTED: c_int = 128;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEERS: c_uint = 1;
/// `CU_MEM_HANDLE_TYPE_FABRIC`.
const FABRIC: c_int = 8;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`, `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const PINNED: c_int = 1;
const ON_DEVICE: c_int = 1;
const READ_WRITE: c_int = 3;

/// The handle with which another process opens memory of a GPU: `CUipcMemHandle` or `CUmemFabricHandle`, of 64 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Shareable(pub [u8; 64]);

/// `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct Allocation {
    kind: c_int,
    handles: c_int,
    location: Location,
    windows: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct Access {
    location: Location,
    flags: c_int,
}

/// The driver.
///
/// Nothing here waits for a context: XLA captures graphs in other threads, and CUDA would invalidate such a capture. Memory is set
/// and copied on a stream of this library, and unused memory is kept for later allocations instead of being freed.
pub struct Driver {
    pub(super) functions: Functions,
    /// By ordinal: the device's primary context, which is also XLA's. Retained, and never released.
    contexts: Mutex<Vec<Option<usize>>>,
    /// By device: the stream of this library.
    streams: Mutex<Vec<Option<Stream>>>,
    spare: Mutex<Vec<Spare>>,
    /// Unused page-locked memory of the host: address and number of words.
    spare_host: Mutex<Vec<(usize, usize)>>,
}

/// Unused memory of a GPU.
struct Spare {
    ordinal: i64,
    address: u64,
    bytes: usize,
}

/// A stream: XLA's, or one that was made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream(pub(crate) usize);

impl Stream {
    /// As a `CUstream`.
    pub fn pointer(self) -> *mut c_void {
        handle(self.0)
    }
}

/// A kernel, loaded into a device.
#[derive(Clone, Copy, Debug)]
pub struct Function(usize);

/// A graph that can be launched.
#[derive(Clone, Copy, Debug)]
pub struct Graph(usize);

impl Graph {
    /// As a `CUgraphExec`.
    pub fn pointer(self) -> *mut c_void {
        handle(self.0)
    }
}

/// A point in a stream.
#[derive(Clone, Copy, Debug)]
pub struct Event(usize);

pub(super) fn handle(address: usize) -> Handle {
    without_provenance_mut(address)
}

impl Driver {
    /// The driver of this machine, initialised; every call returns the same result.
    pub fn get() -> Result<&'static Driver, CudaError> {
        static DRIVER: OnceLock<Result<Driver, CudaError>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Driver, CudaError> {
        // Tests set another library.
        let names = match std::env::var("ALIGHT_LIBCUDA") {
            Ok(path) => vec![path],
            Err(_) => ["libcuda.so.1", "libcuda.so"].map(String::from).to_vec(),
        };
        let (library, _) = Library::open(&names).map_err(CudaError::NoDriver)?;
        let functions = Functions::load(&library).map_err(CudaError::NoDriver)?;
        let driver = Driver {
            functions,
            contexts: Mutex::default(),
            streams: Mutex::default(),
            spare: Mutex::default(),
            spare_host: Mutex::default(),
        };
        // SAFETY: as CUDA requires.
        driver.check("cuInit", unsafe { (driver.functions.cuInit)(0) })?;
        Ok(driver)
    }

    pub(super) fn check(&self, function: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: returns a string that lives for ever, or null.
        unsafe { (self.functions.cuGetErrorString)(code, &mut text) };
        let message = match text.is_null() {
            true => "unknown".into(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(CudaError::Call { function, code, message })
    }

    /// The number of GPUs that this process sees.
    pub fn count(&self) -> Result<usize, CudaError> {
        let mut count = 0;
        // SAFETY: writes a number.
        self.check("cuDeviceGetCount", unsafe { (self.functions.cuDeviceGetCount)(&mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn device(&self, ordinal: i64) -> Result<c_int, CudaError> {
        let count = self.count()?;
        match usize::try_from(ordinal) {
            Ok(n) if n < count => {}
            _ => {
                let reason = format!("this process sees {count}");
                return Err(CudaError::Device { ordinal, reason });
            }
        }
        let mut device = 0;
        // SAFETY: writes a number; the ordinal is valid.
        let code = unsafe { (self.functions.cuDeviceGet)(&mut device, ordinal as c_int) };
        self.check("cuDeviceGet", code)?;
        Ok(device)
    }

    fn attribute(&self, ordinal: i64, attribute: c_int) -> Result<i32, CudaError> {
        let (device, mut value) = (self.device(ordinal)?, 0);
        // SAFETY: writes a number.
        let code = unsafe { (self.functions.cuDeviceGetAttribute)(&mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", code)?;
        Ok(value)
    }

    /// The compute capability, as (9, 0).
    pub fn capability(&self, ordinal: i64) -> Result<(i32, i32), CudaError> {
        Ok((self.attribute(ordinal, CAPABILITY_MAJOR)?, self.attribute(ordinal, CAPABILITY_MINOR)?))
    }

    /// The number of multiprocessors.
    pub fn multiprocessors(&self, ordinal: i64) -> Result<usize, CudaError> {
        Ok(usize::try_from(self.attribute(ordinal, MULTIPROCESSORS)?).unwrap_or(0))
    }

    /// The GPU's name.
    pub fn name(&self, ordinal: i64) -> Result<String, CudaError> {
        let device = self.device(ordinal)?;
        let mut name = [0u8; 256];
        // SAFETY: the buffer has the size that is passed.
        let code =
            unsafe { (self.functions.cuDeviceGetName)(name.as_mut_ptr().cast(), 256, device) };
        self.check("cuDeviceGetName", code)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    fn context(&self, ordinal: i64) -> Result<usize, CudaError> {
        let device = self.device(ordinal)?;
        kept(&self.contexts, ordinal as usize, || {
            let mut context = null_mut();
            // SAFETY: writes a handle.
            let code = unsafe { (self.functions.cuDevicePrimaryCtxRetain)(&mut context, device) };
            self.check("cuDevicePrimaryCtxRetain", code)?;
            Ok(context.addr())
        })
    }

    /// Calls `run` with the GPU's context current.
    pub fn on<T>(
        &self,
        ordinal: i64,
        run: impl FnOnce() -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let context = self.context(ordinal)?;
        // SAFETY: a context that is retained.
        let code = unsafe { (self.functions.cuCtxPushCurrent_v2)(handle(context)) };
        self.check("cuCtxPushCurrent", code)?;
        let _pop = Pop(self);
        run()
    }

    /// Calls `run`, which may do what is not allowed while another thread captures a graph in the strict mode.
    pub fn relaxed<T>(&self, run: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        let mut mode = RELAXED;
        // SAFETY: exchanges a number of this thread.
        let code = unsafe { (self.functions.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        self.check("cuThreadExchangeStreamCaptureMode", code)?;
        let result = run();
        // SAFETY: as above; restores the previous mode.
        unsafe { (self.functions.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        result
    }

    /// Gives kernels on `from` access to the memory of `to`.
    pub fn enable_peer(&self, from: i64, to: i64) -> Result<(), CudaError> {
        let (mut can, one, other) = (0, self.device(from)?, self.device(to)?);
        // SAFETY: writes a number.
        let code = unsafe { (self.functions.cuDeviceCanAccessPeer)(&mut can, one, other) };
        self.check("cuDeviceCanAccessPeer", code)?;
        if can == 0 {
            return Err(CudaError::NoPeers { from, to });
        }
        let peer = self.context(to)?;
        self.on(from, || {
            // SAFETY: both contexts are retained.
            match unsafe { (self.functions.cuCtxEnablePeerAccess)(handle(peer), 0) } {
                ALREADY => Ok(()),
                code => self.check("cuCtxEnablePeerAccess", code),
            }
        })
    }

    /// Calls `run` with this library's stream, and waits for its work there.
    fn apart(
        &self,
        ordinal: i64,
        run: impl FnOnce(Stream) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let at = self.device(ordinal)? as usize;
        let stream = kept(&self.streams, at, || self.stream(ordinal))?;
        self.on(ordinal, || run(stream))?;
        self.wait(ordinal, stream)
    }

    /// Writes bytes to the GPU's memory, and waits until they are written, but not for other uses of that memory.
    ///
    /// # Safety
    /// There is memory of that many bytes, valid for the GPU `ordinal`.
    pub(super) unsafe fn write(
        &self,
        ordinal: i64,
        to: u64,
        bytes: &[u8],
    ) -> Result<(), CudaError> {
        self.apart(ordinal, |stream| {
            let (from, copy) = (bytes.as_ptr(), self.functions.cuMemcpyHtoDAsync_v2);
            // SAFETY: by the contract; `apart` waits while `bytes` is alive.
            let code = unsafe { copy(to, from.cast(), bytes.len(), handle(stream.0)) };
            self.check("cuMemcpyHtoDAsync", code)
        })
    }

    /// Reads bytes of the GPU's memory. It does not wait for other uses of that memory.
    ///
    /// # Safety
    /// There is memory of that many bytes, valid for the GPU `ordinal`.
    pub(super) unsafe fn read(
        &self,
        ordinal: i64,
        from: u64,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        self.apart(ordinal, |stream| {
            let (to, copy) = (bytes.as_mut_ptr(), self.functions.cuMemcpyDtoHAsync_v2);
            // SAFETY: by the contract; `apart` waits while `bytes` is alive.
            let code = unsafe { copy(to.cast(), from, bytes.len(), handle(stream.0)) };
            self.check("cuMemcpyDtoHAsync", code)
        })
    }

    /// Allocates memory of the GPU, filled with zeros. It must only be dropped after all its uses have ended.
    pub fn allocate(&'static self, ordinal: i64, bytes: usize) -> Result<Memory, CudaError> {
        let (address, allocated) = match self.spare(ordinal, bytes) {
            Some(spare) => (spare.address, spare.bytes),
            None => (self.new_memory(ordinal, bytes.max(1))?, bytes.max(1)),
        };
        let memory = Memory { driver: self, ordinal, address, bytes, allocated };
        memory.fill(0)?;
        Ok(memory)
    }

    /// The smallest unused memory that is large enough, and not much too large.
    fn spare(&self, ordinal: i64, bytes: usize) -> Option<Spare> {
        let mut all = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |spare: &Spare| {
            spare.ordinal == ordinal && (bytes..=2 * bytes.max(1)).contains(&spare.bytes)
        };
        let fitting = all.iter().enumerate().filter(|(_, spare)| fits(spare));
        let (at, _) = fitting.min_by_key(|(_, spare)| spare.bytes)?;
        Some(all.swap_remove(at))
    }

    fn new_memory(&self, ordinal: i64, bytes: usize) -> Result<u64, CudaError> {
        self.on(ordinal, || {
            let mut address = 0;
            // SAFETY: writes an address.
            let mut code = unsafe { (self.functions.cuMemAlloc_v2)(&mut address, bytes) };
            if code == NO_MEMORY {
                let spares: Vec<Spare> = {
                    let mut all = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
                    all.extract_if(.., |spare| spare.ordinal == ordinal).collect()
                };
                // Without the lock: freeing may wait for a kernel that waits for a rank, which in turn waits for spare memory.
                for spare in spares {
                    // SAFETY: allocated here, and not in use.
                    unsafe { (self.functions.cuMemFree_v2)(spare.address) };
                }
                // SAFETY: as above.
                code = unsafe { (self.functions.cuMemAlloc_v2)(&mut address, bytes) };
            }
            self.check("cuMemAlloc", code)?;
            Ok(address)
        })
    }

    /// Allocates `words` zeros of the host's memory that every GPU can write to.
    pub fn allocate_host(
        &'static self,
        ordinal: i64,
        words: usize,
    ) -> Result<HostMemory, CudaError> {
        let spare = {
            let mut all = self.spare_host.lock().unwrap_or_else(PoisonError::into_inner);
            let found = all.iter().position(|(_, allocated)| *allocated >= words);
            found.map(|at| all.swap_remove(at))
        };
        self.on(ordinal, || {
            let mut pointer = null_mut();
            let allocated = match spare {
                Some((address, allocated)) => {
                    pointer = std::ptr::with_exposed_provenance_mut(address);
                    allocated
                }
                None => {
                    // SAFETY: writes a pointer.
                    let code = unsafe {
                        (self.functions.cuMemHostAlloc)(&mut pointer, words * 8, PORTABLE_MAPPED)
                    };
                    self.check("cuMemHostAlloc", code)?;
                    words
                }
            };
            // SAFETY: the memory has that size, and is not in use.
            unsafe { pointer.cast::<u8>().write_bytes(0, words * 8) };
            let pointer_of_words = pointer.cast();
            let mut memory = HostMemory {
                driver: self,
                pointer: pointer_of_words,
                words,
                allocated,
                address: 0,
            };
            // SAFETY: writes an address.
            let code = unsafe {
                (self.functions.cuMemHostGetDevicePointer_v2)(&mut memory.address, pointer, 0)
            };
            self.check("cuMemHostGetDevicePointer", code)?;
            Ok(memory)
        })
    }

    /// Loads a kernel into the GPU. It is never unloaded.
    pub fn load_function(
        &self,
        ordinal: i64,
        cubin: &[u8],
        name: &CStr,
    ) -> Result<Function, CudaError> {
        self.on(ordinal, || {
            let (mut module, mut function) = (null_mut(), null_mut());
            // SAFETY: a cubin of NVRTC, which contains its own length.
            let code =
                unsafe { (self.functions.cuModuleLoadData)(&mut module, cubin.as_ptr().cast()) };
            self.check("cuModuleLoadData", code)?;
            // SAFETY: a module, and a string.
            let code = unsafe {
                (self.functions.cuModuleGetFunction)(&mut function, module, name.as_ptr())
            };
            self.check("cuModuleGetFunction", code)?;
            Ok(Function(function.addr()))
        })
    }

    /// Permits launches of a kernel to request more than 48 KiB of shared memory.
    pub(super) fn allow_shared(
        &self,
        ordinal: i64,
        function: Function,
        bytes: usize,
    ) -> Result<(), CudaError> {
        self.on(ordinal, || {
            let set = self.functions.cuFuncSetAttribute;
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
            // SAFETY: a function that is loaded.
            let code = unsafe { set(handle(function.0), MAX_SHARED, bytes) };
            self.check("cuFuncSetAttribute", code)
        })
    }

    /// The number of blocks of a kernel that the GPU can run at once. This query loads the kernel, which the driver would otherwise
    /// do at the first launch.
    pub fn resident(
        &self,
        ordinal: i64,
        function: Function,
        threads: u32,
    ) -> Result<usize, CudaError> {
        let each = self.on(ordinal, || {
            let mut count = 0;
            let ask = self.functions.cuOccupancyMaxActiveBlocksPerMultiprocessor;
            // SAFETY: writes a number; the function is loaded.
            let code = unsafe { ask(&mut count, handle(function.0), threads as c_int, 0) };
            self.check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
            Ok(usize::try_from(count).unwrap_or(0))
        })?;
        Ok(each * self.multiprocessors(ordinal)?)
    }

    /// Launches a kernel with one argument, a struct, and `shared` bytes of shared memory.
    ///
    /// # Safety
    /// The context of the function and the stream is current. `argument` has the type that the kernel takes, and its pointers are
    /// valid until the kernel, or the graph that it is captured for, has ended.
    pub unsafe fn launch<T>(
        &self,
        function: Function,
        grid: (u32, u32),
        threads: u32,
        shared: u32,
        stream: Stream,
        argument: &T,
    ) -> Result<(), CudaError> {
        let mut arguments = [std::ptr::from_ref(argument).cast_mut().cast::<c_void>()];
        // SAFETY: by the contract; arguments are copied before the call returns.
        let code = unsafe {
            (self.functions.cuLaunchKernel)(
                handle(function.0),
                grid.0,
                grid.1,
                1,
                threads,
                1,
                1,
                shared,
                handle(stream.0),
                arguments.as_mut_ptr(),
                null_mut(),
            )
        };
        self.check("cuLaunchKernel", code)
    }

    /// True if work on the stream is captured into a graph.
    pub fn is_capturing(&self, stream: Stream) -> Result<bool, CudaError> {
        let mut status = 0;
        // SAFETY: writes a number.
        let code = unsafe { (self.functions.cuStreamIsCapturing)(handle(stream.0), &mut status) };
        self.check("cuStreamIsCapturing", code)?;
        Ok(status != 0)
    }

    /// Creates a stream of the GPU. It is never destroyed.
    pub fn stream(&self, ordinal: i64) -> Result<Stream, CudaError> {
        self.on(ordinal, || {
            let mut stream = null_mut();
            // SAFETY: writes a handle.
            let code = unsafe { (self.functions.cuStreamCreate)(&mut stream, NON_BLOCKING) };
            self.check("cuStreamCreate", code)?;
            Ok(Stream(stream.addr()))
        })
    }

    /// Waits until the stream is empty.
    pub fn wait(&self, ordinal: i64, stream: Stream) -> Result<(), CudaError> {
        self.on(ordinal, || {
            // SAFETY: a stream.
            self.check("cuStreamSynchronize", unsafe {
                (self.functions.cuStreamSynchronize)(handle(stream.0))
            })
        })
    }

    /// Captures the work that `run` puts on the stream. The graph is never destroyed.
    pub fn capture(
        &self,
        stream: Stream,
        run: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        // SAFETY: a stream.
        let code =
            unsafe { (self.functions.cuStreamBeginCapture_v2)(handle(stream.0), THREAD_LOCAL) };
        self.check("cuStreamBeginCapture", code)?;
        let result = run();
        let (mut graph, mut executable) = (null_mut(), null_mut());
        // SAFETY: a stream that captures.
        let code = unsafe { (self.functions.cuStreamEndCapture)(handle(stream.0), &mut graph) };
        result?;
        self.check("cuStreamEndCapture", code)?;
        // SAFETY: a graph.
        let code =
            unsafe { (self.functions.cuGraphInstantiateWithFlags)(&mut executable, graph, 0) };
        self.check("cuGraphInstantiate", code)?;
        // SAFETY: a graph, of which the executable one is independent.
        unsafe { (self.functions.cuGraphDestroy)(graph) };
        Ok(Graph(executable.addr()))
    }

    /// Puts a graph on the stream.
    pub fn replay(&self, graph: Graph, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: both are valid.
        self.check("cuGraphLaunch", unsafe {
            (self.functions.cuGraphLaunch)(handle(graph.0), handle(stream.0))
        })
    }

    /// Creates an event with timing. It is never destroyed.
    pub fn event(&self) -> Result<Event, CudaError> {
        let mut event = null_mut();
        // SAFETY: writes a handle; a context is current, or the call fails.
        self.check("cuEventCreate", unsafe { (self.functions.cuEventCreate)(&mut event, 0) })?;
        Ok(Event(event.addr()))
    }

    /// Creates an event without timing, for [`Driver::wait_for`]. It is never destroyed.
    pub fn mark(&self, ordinal: i64) -> Result<Event, CudaError> {
        self.on(ordinal, || {
            let mut event = null_mut();
            // SAFETY: writes a handle.
            let code = unsafe { (self.functions.cuEventCreate)(&mut event, NO_TIME) };
            self.check("cuEventCreate", code)?;
            Ok(Event(event.addr()))
        })
    }

    /// Makes the stream wait until the event's last recording has been reached; if it was never recorded, the stream does not wait.
    /// Recording the event again later does not change that.
    pub fn wait_for(&self, stream: Stream, event: Event) -> Result<(), CudaError> {
        // SAFETY: both are valid; 0 is the only flag.
        self.check("cuStreamWaitEvent", unsafe {
            (self.functions.cuStreamWaitEvent)(handle(stream.0), handle(event.0), 0)
        })
    }

    /// Waits, in this thread, until the event's last recording has been reached.
    pub fn reached(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: the event is valid.
        self.check("cuEventSynchronize", unsafe {
            (self.functions.cuEventSynchronize)(handle(event.0))
        })
    }

    /// Records the event on the stream.
    pub fn record(&self, event: Event, stream: Stream) -> Result<(), CudaError> {
        // SAFETY: both are valid.
        self.check("cuEventRecord", unsafe {
            (self.functions.cuEventRecord)(handle(event.0), handle(stream.0))
        })
    }

    /// Microseconds between two events that have been reached.
    pub fn elapsed(&self, from: Event, to: Event) -> Result<f64, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: writes a number.
        let code = unsafe {
            (self.functions.cuEventElapsedTime)(&mut milliseconds, handle(from.0), handle(to.0))
        };
        self.check("cuEventElapsedTime", code)?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

/// Returns the value kept for a GPU, or the result of `make`. That may wait for kernels, and these for a rank that requests the
/// value of another GPU, so nothing is locked meanwhile: if several threads make one, the first is kept.
fn kept<T: Copy>(
    all: &Mutex<Vec<Option<T>>>,
    at: usize,
    make: impl FnOnce() -> Result<T, CudaError>,
) -> Result<T, CudaError> {
    let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = lock().get(at).copied().flatten() {
        return Ok(found);
    }
    let made = make()?;
    let mut all = lock();
    if all.len() <= at {
        all.resize(at + 1, None);
    }
    Ok(*all[at].get_or_insert(made))
}

/// Pops a context, on every exit path.
struct Pop<'a>(&'a Driver);

impl Drop for Pop<'_> {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: pops the context that was pushed.
        unsafe { (self.0.functions.cuCtxPopCurrent_v2)(&mut context) };
    }
}

/// Memory of a GPU.
pub struct Memory {
    pub(super) driver: &'static Driver,
    pub(super) ordinal: i64,
    address: u64,
    bytes: usize,
    /// Bytes that were allocated.
    allocated: usize,
}

impl Memory {
    /// Its address on the GPU.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets all bytes, and waits until they are set.
    pub fn fill(&self, value: u8) -> Result<(), CudaError> {
        self.driver.apart(self.ordinal, |stream| self.fill_later(0, self.bytes, value, stream))
    }

    /// Sets `bytes` bytes from an offset on, in stream order.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn fill_later(
        &self,
        offset: usize,
        bytes: usize,
        value: u8,
        stream: Stream,
    ) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        self.driver.on(self.ordinal, || {
            let (to, set) = (self.address + offset as u64, self.driver.functions.cuMemsetD8Async);
            // SAFETY: within the memory, and a valid stream.
            self.driver.check("cuMemsetD8Async", unsafe { set(to, value, bytes, handle(stream.0)) })
        })
    }

    /// Copies the beginning of `from`, on the same GPU, to an offset, in stream order.
    ///
    /// # Panics
    /// If the bytes exceed either memory.
    pub fn copy_later(
        &self,
        offset: usize,
        from: &Memory,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        assert!(bytes <= from.bytes && self.ordinal == from.ordinal);
        self.driver.on(self.ordinal, || {
            let (to, copy) =
                (self.address + offset as u64, self.driver.functions.cuMemcpyDtoDAsync_v2);
            // SAFETY: within both memories, and a valid stream.
            let code = unsafe { copy(to, from.address, bytes, handle(stream.0)) };
            self.driver.check("cuMemcpyDtoDAsync", code)
        })
    }

    /// Writes bytes at an offset. It does not wait for other uses of the memory.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: within the memory.
        unsafe { self.driver.write(self.ordinal, self.address + offset as u64, bytes) }
    }

    /// Reads bytes at an offset. It does not wait for other uses of the memory.
    ///
    /// # Panics
    /// If they extend beyond the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes));
        // SAFETY: within the memory.
        unsafe { self.driver.read(self.ordinal, self.address + offset as u64, bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Memory { driver, ordinal, address, allocated, .. } = *self;
        let spare = Spare { ordinal, address, bytes: allocated };
        driver.spare.lock().unwrap_or_else(PoisonError::into_inner).push(spare);
    }
}

/// Words in the host's memory that GPUs write and the host reads.
pub struct HostMemory {
    driver: &'static Driver,
    pointer: *mut u64,
    words: usize,
    /// Words that were allocated.
    allocated: usize,
    address: u64,
}

// SAFETY: the words are only read, atomically, and have one owner.
unsafe impl Send for HostMemory {}
// SAFETY: as above.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Its address for kernels.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The current value of a word.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.words);
        // SAFETY: within the memory; GPUs write whole words.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.pointer.add(at)) }
            .load(std::sync::atomic::Ordering::Acquire)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        let mut all = self.driver.spare_host.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((self.pointer.expose_provenance(), self.allocated));
    }
}

/// Memory of a GPU that other processes can open, or memory of another process that this one has opened. Freeing it may wait for
/// the whole GPU, so it is for memory that lives as long as the process.
pub(super) struct SharedMemory {
    driver: &'static Driver,
    ordinal: i64,
    address: u64,
    bytes: usize,
    origin: Origin,
}

/// The origin of the memory, which decides how it is freed.
enum Origin {
    /// `cuMemAlloc`.
    Allocated,
    /// `cuIpcOpenMemHandle`.
    Opened,
    /// A map of an allocation, of this process or another one.
    Mapped { allocation: u64 },
}

impl Driver {
    /// True if memory of the GPU can be opened in processes on other hosts, over NVLink.
    pub fn has_fabric(&self, ordinal: i64) -> bool {
        self.attribute(ordinal, FABRIC_SUPPORTED).is_ok_and(|value| value != 0)
    }

    /// Allocates memory of the GPU that other processes can open, and returns its handle; the memory is not zeroed. With `fabric`,
    /// processes on other hosts can open it too, and all GPUs `users` of this process can use it; otherwise they need
    /// [`Driver::enable_peer`].
    pub(super) fn share(
        &'static self,
        ordinal: i64,
        bytes: usize,
        fabric: bool,
        users: &[i64],
    ) -> Result<(SharedMemory, Shareable), CudaError> {
        let mut shareable = Shareable([0; 64]);
        if !fabric {
            let address = self.new_memory(ordinal, bytes)?;
            let origin = Origin::Allocated;
            let memory = SharedMemory { driver: self, ordinal, address, bytes, origin };
            self.on(ordinal, || {
                // SAFETY: writes a handle of memory that exists.
                let code = unsafe { (self.functions.cuIpcGetMemHandle)(&mut shareable, address) };
                self.check("cuIpcGetMemHandle", code)
            })?;
            return Ok((memory, shareable));
        }
        let wanted = Allocation {
            kind: PINNED,
            handles: FABRIC,
            location: Location { kind: ON_DEVICE, id: self.device(ordinal)? },
            windows: null_mut(),
            flags: [0; 8],
        };
        let mut unit = 0;
        let get = self.functions.cuMemGetAllocationGranularity;
        // SAFETY: writes a number; 0 requests the minimum.
        self.check("cuMemGetAllocationGranularity", unsafe { get(&mut unit, &wanted, 0) })?;
        let bytes = bytes.next_multiple_of(unit.max(1));
        let mut allocation = 0;
        // SAFETY: writes a handle.
        let code = unsafe { (self.functions.cuMemCreate)(&mut allocation, bytes, &wanted, 0) };
        self.check("cuMemCreate", code)?;
        let memory = self.map(ordinal, allocation, bytes, unit, users)?;
        let to = std::ptr::from_mut(&mut shareable).cast();
        // SAFETY: writes a handle of that type; the allocation exists.
        let code =
            unsafe { (self.functions.cuMemExportToShareableHandle)(to, allocation, FABRIC, 0) };
        self.check("cuMemExportToShareableHandle", code)?;
        Ok((memory, shareable))
    }

    /// Opens memory of another process for the GPU `ordinal` of this one; with `fabric` for all of `users`.
    pub(super) fn open_shared(
        &'static self,
        ordinal: i64,
        mut shareable: Shareable,
        bytes: usize,
        fabric: bool,
        users: &[i64],
    ) -> Result<SharedMemory, CudaError> {
        if !fabric {
            return self.on(ordinal, || {
                let (mut address, open) = (0, self.functions.cuIpcOpenMemHandle_v2);
                // SAFETY: writes an address.
                let code = unsafe { open(&mut address, shareable, LAZY_PEERS) };
                self.check("cuIpcOpenMemHandle", code)?;
                let origin = Origin::Opened;
                Ok(SharedMemory { driver: self, ordinal, address, bytes, origin })
            });
        }
        let mut allocation = 0;
        let from = std::ptr::from_mut(&mut shareable).cast();
        self.on(ordinal, || {
            let import = self.functions.cuMemImportFromShareableHandle;
            // SAFETY: reads a handle of that type, and writes one.
            self.check("cuMemImportFromShareableHandle", unsafe {
                import(&mut allocation, from, FABRIC)
            })
        })?;
        self.map(ordinal, allocation, bytes, 0, users)
    }

    /// Maps an allocation, which the result owns, for the GPUs `users`.
    fn map(
        &'static self,
        ordinal: i64,
        allocation: u64,
        bytes: usize,
        unit: usize,
        users: &[i64],
    ) -> Result<SharedMemory, CudaError> {
        let mut address = 0;
        // SAFETY: writes an address.
        let mut code =
            unsafe { (self.functions.cuMemAddressReserve)(&mut address, bytes, unit, 0, 0) };
        let mut function = "cuMemAddressReserve";
        if code == 0 {
            // SAFETY: an address range reserved here, as large as the allocation.
            code = unsafe { (self.functions.cuMemMap)(address, bytes, 0, allocation, 0) };
            function = "cuMemMap";
            if code != 0 {
                // SAFETY: reserved above, and nothing is mapped there.
                unsafe { (self.functions.cuMemAddressFree)(address, bytes) };
            }
        }
        if let Err(error) = self.check(function, code) {
            // SAFETY: an allocation that is not used elsewhere.
            unsafe { (self.functions.cuMemRelease)(allocation) };
            return Err(error);
        }
        let origin = Origin::Mapped { allocation };
        let memory = SharedMemory { driver: self, ordinal, address, bytes, origin };
        let mut all = vec![];
        for user in users {
            let location = Location { kind: ON_DEVICE, id: self.device(*user)? };
            all.push(Access { location, flags: READ_WRITE });
        }
        let set = self.functions.cuMemSetAccess;
        // SAFETY: the range that was just mapped, and a list of the given length.
        self.check("cuMemSetAccess", unsafe { set(address, bytes, all.as_ptr(), all.len()) })?;
        Ok(memory)
    }
}

impl SharedMemory {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Sets all bytes to zero, and waits until they are set.
    pub(super) fn clear(&self) -> Result<(), CudaError> {
        self.driver.apart(self.ordinal, |stream| {
            let set = self.driver.functions.cuMemsetD8Async;
            // SAFETY: all of the memory, and a valid stream.
            let code = unsafe { set(self.address, 0, self.bytes, handle(stream.0)) };
            self.driver.check("cuMemsetD8Async", code)
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let functions = &self.driver.functions;
        let _ = self.driver.on(self.ordinal, || {
            // SAFETY: each is freed according to its origin, once.
            unsafe {
                match self.origin {
                    Origin::Allocated => {
                        (functions.cuMemFree_v2)(self.address);
                    }
                    Origin::Opened => {
                        (functions.cuIpcCloseMemHandle)(self.address);
                    }
                    Origin::Mapped { allocation } => {
                        (functions.cuMemUnmap)(self.address, self.bytes);
                        (functions.cuMemAddressFree)(self.address, self.bytes);
                        (functions.cuMemRelease)(allocation);
                    }
                }
            }
            Ok(())
        });
    }
}
