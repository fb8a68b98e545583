// A stand-in for libcuda and libnvrtc: the functions that alight-xla uses, with threads of this process as the GPU. Its devices
// share the memory of the process, a stream is a thread with a queue, and a module is the list of options it was "compiled"
// with: all kernels are in here already.
//
//     g++ -std=c++17 -O2 -fPIC -shared -pthread -ffp-contract=off -o libcuda_emulated.so driver.cpp
//
// The environment says what to play: ALIGHT_EMULATED_DEVICES (8), ALIGHT_EMULATED_PEERS=no (no peer access),
// ALIGHT_EMULATED_PEERS=lost (it is said to be there, and what is written does not arrive), ALIGHT_EMULATED_FABRIC=yes (memory can be
// opened on other hosts).
//
// Memory of 2 MiB and more is a file without a name, which another process opens by a handle for CUDA's IPC or fabric: what is written there
// arrives, as it does between GPUs, and a process that is killed leaves nothing.
//
// A copy out of page-locked memory reads it when the stream comes there, and one out of other memory when it is called, as CUDA does. What
// is copied has to be page-locked as a whole by one call, or not at all; where it goes, there has to be memory.
//
// Tests may ask for what CUDA may do and seldom does (`alight_be_late`): a stream does nothing until somebody waits for it.
//
// It is as strict about captures as CUDA may be: while a stream of a context captures, whatever waits for the context, or may, is
// refused, by whichever thread, and the capture is invalid.
//
// It is as strict about memory: what takes memory of a GPU, gives it back, or lets one use that of another or of the host (an allocation, a
// kernel that is loaded, a graph that is instantiated, peer access) waits until every kernel of the collective has ended that was
// launched before, on any GPU of this process, since such a kernel may wait for a rank that is not there yet. A kernel is loaded when its
// occupancy is asked for, or else when it is launched for the first time. A graph that was destroyed cannot be launched.
#include "shim.h"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <sys/mman.h>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "kernels.h"

// Of <unistd.h>, whose `pause` is another than the kernel's.
extern "C" {
int close(int) noexcept(false);
int ftruncate(int, off_t) noexcept;
int getpid() noexcept;
}

namespace {

// --- blocks: as many OS threads as are needed at once, since all of a grid must run at once ---

class Blocks {
  public:
    void run(std::function<void(Block&)> task) {
        std::unique_lock<std::mutex> lock(mutex);
        tasks.push_back(std::move(task));
        if (tasks.size() > idle) {
            idle++;
            std::thread([this] { work(); }).detach();
        }
        some.notify_one();
    }

  private:
    void work() {
        Block block{};
        for (;;) {
            std::function<void(Block&)> task;
            {
                std::unique_lock<std::mutex> lock(mutex);
                some.wait(lock, [this] { return !tasks.empty(); });
                task = std::move(tasks.front());
                tasks.pop_front();
                idle--;
            }
            task(block);
            std::unique_lock<std::mutex> lock(mutex);
            idle++;
        }
    }
    std::mutex mutex;
    std::condition_variable some;
    std::deque<std::function<void(Block&)>> tasks;
    size_t idle = 0;
};

// Never destroyed: detached threads use it to the end.
Blocks& blocks = *new Blocks;

// What `CUfunction` points to.
struct Loaded {
    Found found;
    std::atomic<size_t> shared{48 * 1024}; // bytes that a launch may ask for
    std::atomic<bool> there{false};        // in the GPU's memory
};

struct Launch {
    const Loaded* function;
    unsigned x, y, threads;
    std::vector<char> params;
};

void start(void* argument) {
    const Launch* launch = static_cast<const Launch*>(argument);
    launch->function->found.kernel(launch->params.data());
}

// --- kernels that wait for other ranks, and what waits for them ---

class Waiters {
  public:
    u64 begin() {
        std::unique_lock<std::mutex> lock(mutex);
        running.insert(next);
        return next++;
    }
    void end(u64 one) {
        std::unique_lock<std::mutex> lock(mutex);
        running.erase(one);
        ended.notify_all();
    }
    // Waits for those that there are, and not for others that begin meanwhile.
    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        const u64 now = next;
        if (!running.empty()) waited++;
        ended.wait(lock, [=] { return running.empty() || *running.begin() >= now; });
    }
    size_t calls_that_waited() {
        std::unique_lock<std::mutex> lock(mutex);
        return waited;
    }

  private:
    std::mutex mutex;
    std::condition_variable ended;
    std::set<u64> running;
    u64 next = 0;
    size_t waited = 0;
};
Waiters& waiters = *new Waiters;

// The first time that a kernel is needed.
void load(Loaded* loaded) {
    if (!loaded->there.exchange(true)) waiters.wait();
}

void run(const Launch& launch) {
    std::mutex mutex;
    std::condition_variable ended;
    unsigned left = launch.x * launch.y;
    for (unsigned y = 0; y < launch.y; y++) {
        for (unsigned x = 0; x < launch.x; x++) {
            blocks.run([&, x, y](Block& block) {
                block.block = {x, y};
                block.threads = {launch.threads, 1};
                block.blocks = {launch.x, launch.y};
                block.run = start;
                block.argument = const_cast<Launch*>(&launch);
                // What the block before has left is no number.
                if (!launch.function->found.collective) memset(shared_rest, 0xff, sizeof shared_rest);
                run_block(block);
                std::unique_lock<std::mutex> lock(mutex);
                if (--left == 0) ended.notify_all();
            });
        }
    }
    std::unique_lock<std::mutex> lock(mutex);
    ended.wait(lock, [&] { return left == 0; });
}

// --- streams, events, graphs ---

typedef std::function<void()> Work;

struct Stream {
    std::mutex mutex;
    std::condition_variable change;
    std::deque<Work> queue;
    // Works that were added, that are done, and that somebody waits for.
    u64 added = 0, done = 0, wanted = 0;
    bool late = false; // does nothing that nobody waits for
    std::vector<Launch>* capturing = nullptr;
    bool invalid = false;
    size_t context = 0;
    std::thread thread{[this] { loop(); }};

    void loop() {
        for (;;) {
            Work work;
            {
                std::unique_lock<std::mutex> lock(mutex);
                change.wait(lock, [this] { return !queue.empty() && (!late || done < wanted); });
                work = std::move(queue.front());
                queue.pop_front();
            }
            work();
            std::unique_lock<std::mutex> lock(mutex);
            done++;
            change.notify_all();
        }
    }
    // Gives how many works there have been.
    u64 add(Work work) {
        std::unique_lock<std::mutex> lock(mutex);
        queue.push_back(std::move(work));
        change.notify_all();
        return ++added;
    }
    // Waits for the first `count` works.
    void wait(u64 count) {
        std::unique_lock<std::mutex> lock(mutex);
        wanted = std::max(wanted, count);
        change.notify_all();
        change.wait(lock, [=] { return done >= count; });
    }
    void wait() {
        mutex.lock();
        const u64 count = added;
        mutex.unlock();
        wait(count);
    }
    void be_late(bool yes) {
        std::unique_lock<std::mutex> lock(mutex);
        late = yes;
        change.notify_all();
    }
};

// A kernel of the collective waits for others from here on, though those before it on the stream may still run.
void put(Stream* stream, const Launch& launch) {
    if (!launch.function->found.collective) {
        stream->add([launch] { run(launch); });
        return;
    }
    const u64 one = waiters.begin();
    stream->add([launch, one] {
        run(launch);
        waiters.end(one);
    });
}

struct Event {
    u64 time;
    // Where it was recorded last, if it was.
    Stream* stream;
    u64 count;
};

struct Graph {
    std::vector<Launch> launches;
};
std::mutex& graphs_mutex = *new std::mutex;
// Those that were instantiated and not destroyed.
std::set<void*>& graphs = *new std::set<void*>;

// 1 is the context of device 0, and so on.
thread_local std::vector<size_t> contexts;

int devices() {
    const char* text = getenv("ALIGHT_EMULATED_DEVICES");
    return text ? atoi(text) : 8;
}

std::string peers() {
    const char* text = getenv("ALIGHT_EMULATED_PEERS");
    return text ? text : "yes";
}

bool fabric() { return getenv("ALIGHT_EMULATED_FABRIC") != nullptr; }

enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NO_CONTEXT = 201, NOT_FOUND = 500, NO_PEERS = 217, ALREADY = 704, CAPTURE = 900, INVALIDATED = 901, NO_HANDLE = 400,
       NOT_SUPPORTED = 801, ALREADY_LOCKED = 712, NOT_LOCKED = 713, BROKEN = 719 };

std::mutex& captures_mutex = *new std::mutex;
// Those that capture.
std::vector<Stream*>& captures = *new std::vector<Stream*>;

// For what waits for the current context: refused while a stream of it captures.
int wait_for_context() {
    if (contexts.empty()) return NO_CONTEXT;
    std::unique_lock<std::mutex> lock(captures_mutex);
    int code = OK;
    for (Stream* stream : captures) {
        if (stream->context == contexts.back()) stream->invalid = true, code = CAPTURE;
    }
    return code;
}

// --- memory of several processes ---

constexpr size_t SHAREABLE = 2 << 20;
enum Kind { IPC = 1, FABRIC = 2 };

// A map of a file without a name. Those of others have no descriptor.
struct Shared {
    void* at;
    size_t size;
    int fd;
};
std::mutex& shared_mutex = *new std::mutex;
std::vector<Shared>& shared = *new std::vector<Shared>;
std::atomic<size_t> allocations{0};

struct Handle {
    int pid, fd, kind;
    u64 size;
    char rest[40];
};
static_assert(sizeof(Handle) == 64);
struct Allocation {
    int kind, handles, location_kind, location;
    void* windows;
    char flags[8];
};
static_assert(sizeof(Allocation) == 32);
struct Access {
    int kind, id, flags;
};

// --- where there is memory ---

// Ranges of addresses: where each begins, and its bytes.
class Ranges {
  public:
    void add(const void* at, size_t size) {
        std::unique_lock<std::mutex> lock(mutex);
        all[reinterpret_cast<u64>(at)] = size;
    }
    bool remove(const void* at) {
        std::unique_lock<std::mutex> lock(mutex);
        return all.erase(reinterpret_cast<u64>(at)) == 1;
    }
    // Whether `size` bytes from `at` on are in one range, and whether any of them is in some.
    bool hold(u64 at, size_t size, bool* any = nullptr) {
        std::unique_lock<std::mutex> lock(mutex);
        auto next = all.lower_bound(at + size);
        if (any) *any = false;
        if (next == all.begin()) return false;
        const auto [start, room] = *--next;
        if (any) *any = at < start + room;
        return start <= at && at + size <= start + room;
    }

  private:
    std::mutex mutex;
    std::map<u64, size_t> all;
};
// Of GPUs, and of the host what is page-locked.
Ranges& memories = *new Ranges;
Ranges& locked = *new Ranges;
// How many calls of this thread pass before one fails, of those that copy out of the host's memory and those with events; none if negative.
thread_local int passes = -1;
int failing() { return passes < 0 || passes-- > 0 ? OK : BROKEN; }
// Whether this thread may not copy out of memory that is not page-locked.
thread_local bool only_locked = false;
// How many allocations of this thread are refused from now on, for want of memory.
thread_local int refused = 0;

u64 remember(const Shared& one) {
    std::unique_lock<std::mutex> lock(shared_mutex);
    shared.push_back(one);
    memories.add(one.at, one.size);
    return reinterpret_cast<u64>(one.at);
}
bool forget(u64 at) {
    std::unique_lock<std::mutex> lock(shared_mutex);
    for (size_t i = 0; i < shared.size(); i++) {
        if (reinterpret_cast<u64>(shared[i].at) != at) continue;
        memories.remove(shared[i].at);
        munmap(shared[i].at, shared[i].size);
        if (shared[i].fd >= 0) close(shared[i].fd);
        shared.erase(shared.begin() + i);
        return true;
    }
    return false;
}
Shared new_shared(size_t size) {
    Shared made{nullptr, size, memfd_create("alight-emulated", MFD_CLOEXEC)};
    if (made.fd < 0 || ftruncate(made.fd, size) != 0) return made;
    made.at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd, 0);
    if (made.at == MAP_FAILED) made.at = nullptr;
    return made;
}
Handle handle_of(const Shared& one, Kind kind) { return Handle{getpid(), one.fd, kind, one.size, {}}; }
// The file of a handle, if its process has it still.
int open_handle(const Handle& handle, Kind kind, Shared* opened) {
    if (handle.kind != kind || handle.size == 0) return NO_HANDLE;
    const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
    *opened = {nullptr, handle.size, open(path.c_str(), O_RDWR | O_CLOEXEC)};
    return opened->fd < 0 ? NO_HANDLE : OK;
}

} // namespace

extern "C" {

int cuInit(unsigned) { return devices() == 0 ? 100 : OK; }
int cuDeviceGetCount(int* count) { return *count = devices(), OK; }
int cuDeviceGet(int* device, int ordinal) {
    if (ordinal < 0 || ordinal >= devices()) return 101;
    return *device = ordinal, OK;
}
int cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "emulated"), OK; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
    case 16: return *value = 132, OK; // multiprocessors
    case 75: return *value = 9, OK;   // compute capability
    case 76: return *value = 0, OK;
    case 128: return *value = fabric(), OK;
    default: return INVALID;
    }
}
int cuDeviceCanAccessPeer(int* can, int, int) { return *can = peers() != "no", OK; }
// The GPUs that have a context, a bit for each.
static std::atomic<u64> retained{0};
u64 alight_contexts() { return retained; }
int cuDevicePrimaryCtxRetain(void** context, int device) {
    retained |= u64(1) << device;
    return *context = reinterpret_cast<void*>(static_cast<size_t>(device) + 1), OK;
}
int cuCtxPushCurrent_v2(void* context) { return contexts.push_back(reinterpret_cast<size_t>(context)), OK; }
int cuCtxPopCurrent_v2(void**) {
    if (contexts.empty()) return NO_CONTEXT;
    return contexts.pop_back(), OK;
}
int cuCtxSynchronize() { return wait_for_context(); }
int cuCtxEnablePeerAccess(void* peer, unsigned) {
    if (contexts.empty()) return NO_CONTEXT;
    if (peers() == "no") return NO_PEERS;
    static std::mutex mutex;
    static std::map<std::pair<size_t, void*>, bool> enabled;
    {
        std::unique_lock<std::mutex> lock(mutex);
        bool& here = enabled[{contexts.back(), peer}];
        if (here) return ALREADY;
        here = true;
    }
    return waiters.wait(), OK;
}
int cuMemAlloc_v2(u64* at, size_t size) {
    if (contexts.empty()) return NO_CONTEXT;
    if (refused > 0) return refused--, NO_MEMORY;
    waiters.wait();
    if (size >= SHAREABLE) {
        Shared made = new_shared(size);
        if (!made.at) return 2;
        memset(made.at, 0xa5, size);
        return *at = remember(made), OK;
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, size) != 0) return 2;
    memset(memory, 0xa5, size);
    memories.add(memory, size);
    return *at = reinterpret_cast<u64>(memory), OK;
}
int cuMemFree_v2(u64 at) {
    if (int code = wait_for_context()) return code;
    waiters.wait();
    if (forget(at)) return OK;
    memories.remove(reinterpret_cast<void*>(at));
    return free(reinterpret_cast<void*>(at)), OK;
}

// --- memory of several processes ---

int cuIpcGetMemHandle(Handle* handle, u64 at) {
    std::unique_lock<std::mutex> lock(shared_mutex);
    for (const Shared& one : shared) {
        if (reinterpret_cast<u64>(one.at) == at && one.fd >= 0) return *handle = handle_of(one, IPC), OK;
    }
    return INVALID;
}
int cuIpcOpenMemHandle_v2(u64* at, Handle handle, unsigned flags) {
    // A process cannot open its own, and peer access has to be asked for.
    if (contexts.empty() || handle.pid == getpid()) return NO_CONTEXT;
    if (flags != 1) return INVALID;
    if (peers() == "no") return NO_PEERS;
    waiters.wait();
    Shared opened;
    if (int code = open_handle(handle, IPC, &opened)) return code;
    opened.at = mmap(nullptr, opened.size, PROT_READ | PROT_WRITE, MAP_SHARED, opened.fd, 0);
    close(opened.fd);
    opened.fd = -1;
    if (opened.at == MAP_FAILED) return 2;
    return *at = remember(opened), OK;
}
int cuIpcCloseMemHandle(u64 at) { return forget(at) ? OK : INVALID; }

int cuMemGetAllocationGranularity(size_t* size, const Allocation* wanted, int) {
    if (wanted->kind != 1 || wanted->handles != 8 || wanted->location_kind != 1) return INVALID;
    return *size = SHAREABLE, OK;
}
// An allocation is a descriptor of its file, which maps keep after it has been released.
int cuMemCreate(u64* allocation, size_t size, const Allocation* wanted, u64) {
    if (!fabric()) return NOT_SUPPORTED;
    if (wanted->handles != 8 || size % SHAREABLE != 0) return INVALID;
    waiters.wait();
    int fd = memfd_create("alight-emulated", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, size) != 0) return 2;
    allocations++;
    return *allocation = static_cast<u64>(fd) << 32 | size >> 12, OK;
}
int cuMemRelease(u64 allocation) { return close(static_cast<int>(allocation >> 32)), allocations--, OK; }
int cuMemExportToShareableHandle(Handle* handle, u64 allocation, int type, u64) {
    if (type != 8) return INVALID;
    Shared one{nullptr, (allocation & 0xffffffff) << 12, static_cast<int>(allocation >> 32)};
    return *handle = handle_of(one, FABRIC), OK;
}
int cuMemImportFromShareableHandle(u64* allocation, Handle* handle, int type) {
    if (type != 8) return INVALID;
    if (!fabric() || peers() == "no") return NOT_SUPPORTED;
    Shared opened;
    if (int code = open_handle(*handle, FABRIC, &opened)) return code;
    allocations++;
    return *allocation = static_cast<u64>(opened.fd) << 32 | opened.size >> 12, OK;
}
int cuMemAddressReserve(u64* at, size_t size, size_t, u64, u64) {
    void* place = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return place == MAP_FAILED ? 2 : (*at = reinterpret_cast<u64>(place), OK);
}
int cuMemAddressFree(u64 at, size_t size) { return munmap(reinterpret_cast<void*>(at), size), OK; }
// Nobody may touch it before access is given.
int cuMemMap(u64 at, size_t size, size_t, u64 allocation, u64) {
    void* place = mmap(reinterpret_cast<void*>(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED, static_cast<int>(allocation >> 32), 0);
    if (place == MAP_FAILED) return 2;
    return memories.add(place, size), OK;
}
int cuMemUnmap(u64 at, size_t size) {
    memories.remove(reinterpret_cast<void*>(at));
    return mmap(reinterpret_cast<void*>(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0), OK;
}
int cuMemSetAccess(u64 at, size_t size, const Access* given, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (given[i].kind != 1 || given[i].id < 0 || given[i].id >= devices() || given[i].flags != 3) return INVALID;
    }
    if (count == 0) return INVALID;
    return mprotect(reinterpret_cast<void*>(at), size, PROT_READ | PROT_WRITE), OK;
}
// How much of it there is: pieces of memory that others can open or that were opened, and allocations.
size_t alight_shared_pieces() {
    std::unique_lock<std::mutex> lock(shared_mutex);
    return shared.size() + allocations;
}

int cuMemHostAlloc(void** at, size_t size, unsigned) {
    waiters.wait();
    *at = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return locked.add(*at, size), OK;
}
int cuMemFreeHost(void* at) {
    if (int code = wait_for_context()) return code;
    locked.remove(at);
    return free(at), OK;
}
int cuMemHostRegister_v2(void* at, size_t size, unsigned flags) {
    if (contexts.empty()) return NO_CONTEXT;
    bool any;
    locked.hold(reinterpret_cast<u64>(at), size, &any);
    if (any) return ALREADY_LOCKED;
    // Every GPU may copy from it.
    if (size == 0 || flags != 1) return INVALID;
    waiters.wait();
    return locked.add(at, size), OK;
}
int cuMemHostUnregister(void* at) {
    if (contexts.empty()) return NO_CONTEXT;
    return locked.remove(at) ? OK : NOT_LOCKED;
}
int cuMemHostGetDevicePointer_v2(u64* at, void* host, unsigned) { return *at = reinterpret_cast<u64>(host), OK; }
int cuMemsetD8_v2(u64 at, unsigned char value, size_t size) {
    if (int code = wait_for_context()) return code;
    return memset(reinterpret_cast<void*>(at), value, size), OK;
}
int cuMemsetD8Async(u64 at, unsigned char value, size_t size, void* stream) {
    return static_cast<Stream*>(stream)->add([=] { memset(reinterpret_cast<void*>(at), value, size); }), OK;
}
int cuMemcpyHtoD_v2(u64 to, const void* from, size_t size) {
    if (int code = wait_for_context()) return code;
    return memcpy(reinterpret_cast<void*>(to), from, size), OK;
}
int cuMemcpyDtoH_v2(void* to, u64 from, size_t size) {
    if (int code = wait_for_context()) return code;
    return memcpy(to, reinterpret_cast<void*>(from), size), OK;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t size, void* stream) {
    Stream* s = static_cast<Stream*>(stream);
    if (int code = failing()) return code;
    bool any;
    const bool all = locked.hold(reinterpret_cast<u64>(from), size, &any);
    if (!memories.hold(to, size) || any != all || (only_locked && !all)) return INVALID;
    if (s->capturing) return s->invalid = true, CAPTURE;
    if (all) return s->add([=] { memcpy(reinterpret_cast<void*>(to), from, size); }), OK;
    const char* bytes = static_cast<const char*>(from);
    const std::vector<char> staged(bytes, bytes + size);
    return s->add([=] { memcpy(reinterpret_cast<void*>(to), staged.data(), size); }), OK;
}
// For tests: refuses this thread copies out of memory that is not page-locked, or no more.
void alight_only_locked(int yes) { only_locked = yes; }
// For tests: of the calls of this thread that copy out of the host's memory, or have to do with events, `count` pass, and the next fails.
void alight_fail_after(int count) { passes = count; }
// For tests: this thread's next `count` allocations are refused for want of memory.
void alight_refuse_memory(int count) { refused = count; }
// For tests: a stream does nothing that nobody waits for, or does everything at once again.
void alight_be_late(void* stream, int yes) { static_cast<Stream*>(stream)->be_late(yes); }

int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t size, void* stream) {
    return static_cast<Stream*>(stream)->add([=] { memcpy(to, reinterpret_cast<void*>(from), size); }), OK;
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t size, void* stream) {
    const void* bytes = reinterpret_cast<const void*>(from);
    return static_cast<Stream*>(stream)->add([=] { memmove(reinterpret_cast<void*>(to), bytes, size); }), OK;
}

int cuModuleLoadData(void** module, const void* image) {
    waiters.wait();
    return *module = new std::string(static_cast<const char*>(image)), OK;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    const Found found = find_kernel(name, *static_cast<std::string*>(module));
    if (!found.kernel) return NOT_FOUND;
    return *function = new Loaded{found}, OK;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    // The most bytes of shared memory that a launch may ask for.
    if (contexts.empty()) return NO_CONTEXT;
    if (attribute != 8 || value < 0 || static_cast<size_t>(value) > SHARED_BYTES) return INVALID;
    return static_cast<Loaded*>(function)->shared = value, OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void* function, int threads, size_t) {
    load(static_cast<Loaded*>(function));
    return *count = 1024 / threads, OK;
}

int cuStreamCreate(void** stream, unsigned) {
    if (contexts.empty()) return NO_CONTEXT;
    Stream* made = new Stream;
    made->context = contexts.back();
    return *stream = made, OK;
}
int cuStreamSynchronize(void* stream) {
    Stream* s = static_cast<Stream*>(stream);
    if (s->capturing) return s->invalid = true, CAPTURE;
    return s->wait(), OK;
}
int cuStreamIsCapturing(void* stream, int* status) { return *status = static_cast<Stream*>(stream)->capturing ? 1 : 0, OK; }
int cuThreadExchangeStreamCaptureMode(int*) { return OK; }
int cuStreamBeginCapture_v2(void* stream, int) {
    Stream* s = static_cast<Stream*>(stream);
    std::unique_lock<std::mutex> lock(captures_mutex);
    captures.push_back(s);
    s->invalid = false;
    return s->capturing = new std::vector<Launch>, OK;
}
int cuStreamEndCapture(void* stream, void** graph) {
    Stream* s = static_cast<Stream*>(stream);
    if (!s->capturing) return CAPTURE;
    std::unique_lock<std::mutex> lock(captures_mutex);
    captures.erase(std::find(captures.begin(), captures.end(), s));
    *graph = s->invalid ? nullptr : new Graph{*s->capturing};
    delete s->capturing;
    return s->capturing = nullptr, s->invalid ? INVALIDATED : OK;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, u64) {
    waiters.wait();
    *executable = new Graph(*static_cast<Graph*>(graph));
    std::unique_lock<std::mutex> lock(graphs_mutex);
    return graphs.insert(*executable), OK;
}
int cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), OK; }
// What has been launched goes on.
int cuGraphExecDestroy(void* graph) {
    std::unique_lock<std::mutex> lock(graphs_mutex);
    if (graphs.erase(graph) == 0) return INVALID;
    return delete static_cast<Graph*>(graph), OK;
}
// For tests: how many graphs there are that can be launched, and how many calls have waited for kernels that wait.
size_t alight_graphs() {
    std::unique_lock<std::mutex> lock(graphs_mutex);
    return graphs.size();
}
size_t alight_calls_that_waited() { return waiters.calls_that_waited(); }
int cuGraphLaunch(void* graph, void* stream) {
    const Graph* g = static_cast<Graph*>(graph);
    std::unique_lock<std::mutex> lock(graphs_mutex);
    if (graphs.count(graph) == 0) return INVALID;
    for (const Launch& launch : g->launches) put(static_cast<Stream*>(stream), launch);
    return OK;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
                   void* stream, void** arguments, void**) {
    Loaded* loaded = static_cast<Loaded*>(function);
    if (x == 0 || y == 0 || y > 65535 || z != 1 || ty != 1 || tz != 1 || threads == 0 || threads > 640 || shared > loaded->shared) return INVALID;
    load(loaded);
    const char* params = static_cast<char*>(arguments[0]);
    Launch launch{loaded, x, y, threads, std::vector<char>(params, params + loaded->found.size)};
    Stream* s = static_cast<Stream*>(stream);
    if (loaded->found.collective && peers() == "lost") {
        // What a rank writes to its peers does not arrive.
        static Workspace* nowhere = static_cast<Workspace*>(calloc(1, 64 << 20));
        Params* p = reinterpret_cast<Params*>(launch.params.data());
        for (unsigned q = 0; q < p->ranks; q++) {
            if (q != p->rank) p->workspace[q] = reinterpret_cast<u64>(nowhere);
        }
    }
    if (s->capturing) return s->capturing->push_back(launch), OK;
    return put(s, launch), OK;
}

int cuEventCreate(void** event, unsigned) {
    if (contexts.empty()) return NO_CONTEXT;
    return *event = new Event{}, OK;
}
int cuEventRecord(void* event, void* stream) {
    Event* e = static_cast<Event*>(event);
    Stream* s = static_cast<Stream*>(stream);
    if (int code = failing()) return code;
    if (s->capturing) return s->invalid = true, CAPTURE;
    e->stream = s;
    return e->count = s->add([e] { e->time = now(); }), OK;
}
int cuEventSynchronize(void* event) {
    const Event* e = static_cast<Event*>(event);
    if (int code = failing()) return code;
    if (e->stream) e->stream->wait(e->count);
    return OK;
}
// What is waited for is what the event was recorded for when this is called.
int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
    Stream* s = static_cast<Stream*>(stream);
    const Event e = *static_cast<Event*>(event);
    if (int code = failing()) return code;
    if (flags != 0) return INVALID;
    if (s->capturing) return s->invalid = true, CAPTURE;
    if (e.stream) s->add([e] { e.stream->wait(e.count); });
    return OK;
}
int cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    return *milliseconds = static_cast<float>(static_cast<Event*>(to)->time - static_cast<Event*>(from)->time) / 1e6f, OK;
}
int cuGetErrorString(int code, const char** text) {
    thread_local static char buffer[64];
    snprintf(buffer, sizeof buffer, "emulated error %d", code);
    return *text = buffer, OK;
}

// NVRTC: the "cubin" is the list of options.
struct Program {
    std::string options;
};
int nvrtcCreateProgram(void** program, const char*, const char*, int, const char* const*, const char* const*) {
    return *program = new Program, 0;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Program*>(*program), 0; }
int nvrtcCompileProgram(void* program, int count, const char* const* options) {
    for (int i = 0; i < count; i++) static_cast<Program*>(program)->options += std::string(options[i]) + " ";
    return 0;
}
int nvrtcGetProgramLogSize(void*, size_t* size) { return *size = 1, 0; }
int nvrtcGetProgramLog(void*, char* log) { return *log = 0, 0; }
int nvrtcGetCUBINSize(void* program, size_t* size) { return *size = static_cast<Program*>(program)->options.size() + 1, 0; }
int nvrtcGetCUBIN(void* program, char* cubin) { return strcpy(cubin, static_cast<Program*>(program)->options.c_str()), 0; }

// So that a test can compare them with Rust's.
size_t alight_size_of_params() { return sizeof(Params); }
size_t alight_size_of_workspace() { return sizeof(Workspace); }
size_t alight_offset_of(int field) {
    const size_t offsets[] = {offsetof(Params, partial), offsetof(Params, report), offsetof(Params, delay),
                              offsetof(Params, rank), offsetof(Params, delay_phase), offsetof(Params, epsilon)};
    return offsets[field];
}
size_t alight_size_of_matmul_params() { return sizeof(matmul::Params); }
size_t alight_size_of_pairs(int counted) { return counted ? sizeof(matmul::Counted) : sizeof(matmul::Listed); }
// By type, in the order of BlockType: bytes of a step's place, columns between gaps, and steps at a time.
size_t alight_sizes_of_blocks(int type, int field) {
#define SIZES(W) {matmul::Of_blocks<matmul::W>::PLACE, matmul::W::RUN, matmul::Of_blocks<matmul::W>::STAGES}
    const size_t sizes[][3] = {SIZES(Q4_0), SIZES(Q4_1), SIZES(Q8_0), SIZES(MXFP4), SIZES(Q4_K), SIZES(Q5_K), SIZES(Q6_K)};
    return sizes[type][field];
}
}
