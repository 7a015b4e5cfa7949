// The boundary between an emulated kernel and the emulator runtime: shared state and the functions a kernel calls.
// Included by both sides, so the two cannot drift apart. Includes nothing, so that a kernel builds in milliseconds.
#pragma once

#define WEFT_ABI_VERSION 4

typedef unsigned long long weft_u64;

// A range of memory that the last access near this address fell into. Checked inline by the kernel.
struct WeftWindow {
  weft_u64 first;
  weft_u64 bytes;
};

enum { WEFT_SHARED_TENSORS = 64 };  // further ones have the bounds of the block

enum { WEFT_WINDOW_BITS = 8, WEFT_WINDOWS = 1 << WEFT_WINDOW_BITS };

// The window of a page. Pages are scattered: rows of several tensors often lie a multiple of some power of two apart, almost.
static inline unsigned weft_window_of(weft_u64 address) { return (unsigned)((address >> 12) * 0x9E3779B97F4A7C15ull >> (64 - WEFT_WINDOW_BITS)); }

// What the text says a thread does, and where it says so.
struct WeftNote {
  const char* text;
  int line;
};

// A tensor in shared memory. bytes: 0 where they are not known.
struct WeftSharedTensor {
  weft_u64 first, bytes;
  const char* name;
};

// Of the running thread. Indices are packed: x in the low 32 bits, then y and z in 16 each.
struct WeftState {
  weft_u64 thread_index, block_index, block_dim, grid_dim;
  weft_u64 shared_first;   // dynamic shared memory of the running block
  weft_u64 shared_bytes;
  weft_u64 shared_tensors[WEFT_SHARED_TENSORS];  // bytes of each, 0 where they are not known
  WeftWindow read[WEFT_WINDOWS];    // registered buffers, found by weft_emu_access
  WeftWindow write[WEFT_WINDOWS];   // those that the kernel may write
};

// What an access does; or-ed together.
enum WeftAccess {
  WEFT_READ = 0,
  WEFT_WRITE = 1,
  WEFT_SHARED = 2,       // else global
  WEFT_STRONG = 4,       // volatile or atomic: never a race against another strong access
  WEFT_REMOTE = 8,       // shared memory of another block of the cluster
};

enum WeftAtomic {
  WEFT_ADD_I32, WEFT_ADD_U32, WEFT_ADD_U64, WEFT_ADD_F32, WEFT_ADD_F64,
  WEFT_MAX_I32, WEFT_MAX_U32, WEFT_MAX_I64, WEFT_MAX_U64, WEFT_MIN_I32, WEFT_MIN_U32, WEFT_MIN_I64, WEFT_MIN_U64,
};
enum WeftShuffle { WEFT_SHUFFLE_XOR, WEFT_SHUFFLE_DOWN, WEFT_SHUFFLE_INDEX };

// A tensor map as the emulator reads it. 128 bytes, like CUtensorMap; filled by weft.emulator.tensor_map.
struct WeftTensorMap {
  weft_u64 base;
  weft_u64 stride_bytes[5];      // of dimension 0 to 4; dimension 0 is contiguous
  unsigned extent[5];
  unsigned box[5];
  unsigned rank;
  unsigned element_bytes;
  unsigned swizzle_bytes;        // 0, 32, 64 or 128
  unsigned magic;                // 0x77656674, "weft"
  unsigned fill_nan;             // out-of-range elements: 0 = zero, 1 = NaN pattern
  unsigned unused;
  weft_u64 reserved[2];
};

extern "C" {
extern WeftState weft_state;

// Constant within a thread: the compiler may keep the result across switches.
unsigned weft_emu_cluster_rank() __attribute__((const));
unsigned weft_emu_cluster_size() __attribute__((const));

// Memory
void weft_emu_access(const void* address, unsigned bytes, unsigned access, int line);
void weft_emu_copy(void* to, const void* from, unsigned bytes);
void weft_emu_outside(const WeftSharedTensor* tensor, const void* p, weft_u64 bytes, int is_write, int line);
void weft_emu_named(WeftSharedTensor* tensor);
void weft_emu_bad_index(long long index, int elements, int line);
void weft_emu_bad_position(long long position, long long extent, int line);
void weft_emu_uninitialised_register(int line);
void weft_emu_sync_read(const void* address, unsigned bytes, int acquire, int line);
void weft_emu_sync_write(void* address, unsigned bytes, int release, int line);
void weft_emu_poll(const void* address, weft_u64 value, int line);
weft_u64 weft_emu_atomic(void* address, weft_u64 operand, int operation, int ordered, int line);
void weft_emu_thread_fence(int line);
void weft_emu_nanosleep(int line);

// Warps and blocks
void weft_emu_block_sync(int line);
void weft_emu_named_barrier(int id, int threads, int sync, int line);
void weft_emu_warp_sync(unsigned mask, int line);
weft_u64 weft_emu_shuffle(weft_u64 value, int kind, int operand, int line);
weft_u64 weft_emu_fold(weft_u64 value, unsigned width, int only_first, void (*fold_halves)(weft_u64* values, unsigned half), int line);
unsigned weft_emu_ballot(int predicate, int line);
int weft_emu_elect(int line);
void weft_emu_setmaxnreg(int increase, int registers, int line);

// Clusters
void weft_emu_cluster_arrive(int line);
void weft_emu_cluster_arrive_relaxed(int line);
void weft_emu_cluster_wait(int line);
void* weft_emu_remote_address(const void* local, unsigned rank, int line);
void weft_emu_store_async_remote(void* local, unsigned rank, weft_u64 value, unsigned bytes, void* local_barrier, int line);

// Barriers in shared memory and asynchronous copies
void weft_emu_mbarrier_init(void* barrier, unsigned count, int line);
void weft_emu_mbarrier_inval(void* barrier, int line);
void weft_emu_mbarrier_arrive(void* barrier, int line);
void weft_emu_mbarrier_arrive_remote(void* barrier, unsigned rank, int line);
void weft_emu_mbarrier_expect_tx(void* barrier, unsigned bytes, int arrive, int line);
void weft_emu_mbarrier_wait(void* barrier, long long phase, int exact, int line);
void weft_emu_fence_mbarrier_init(int line);
void weft_emu_fence_proxy_async(int line);
void weft_emu_bulk_load(void* shared_to, const void* from, unsigned bytes, void* barrier, int line);
void weft_emu_bulk_load_units(void* shared_to, const void* from, unsigned bytes, void* barrier, int line);
void weft_emu_bulk_store(void* to, const void* shared_from, unsigned bytes, int line);
void weft_emu_tensor_load(void* shared_to, const WeftTensorMap* map, const int* coordinates, int rank, void* barrier, int line);
void weft_emu_tensor_store(const WeftTensorMap* map, const void* shared_from, const int* coordinates, int rank, int line);
void weft_emu_bulk_commit(int line);
void weft_emu_bulk_wait(int groups, int read_only, int line);
void weft_emu_cp_async(void* shared_to, const void* from, unsigned bytes, int valid, int line);
void weft_emu_cp_async_commit(int line);
void weft_emu_cp_async_wait(int groups, int line);
void weft_emu_griddep_wait(int line);
void weft_emu_griddep_launch(int line);

// Names for reports
void weft_emu_role(const char* role);
void weft_emu_name(const void* address, weft_u64 bytes, const char* name);
void weft_emu_note(const WeftNote* note);  // null: its end
}
