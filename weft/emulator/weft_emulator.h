// The primitives of a kernel on the host: the same names as weft/device/primitives.cuh, as calls into the emulator runtime.
// Compiled with -DWEFT_EMULATOR; -DWEFT_CHECK_RACES reports every access to the runtime, else only bounds and alignment
// are checked, inline. The caller's line travels as a default argument, so no debug information is needed.
#pragma once
#include "abi.h"

#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

#define WEFT_DEVICE static inline __attribute__((always_inline, unused))
#define WEFT_UNROLL
#define WEFT_LIKELY(x) __builtin_expect(!!(x), 1)
#define WEFT_LINE int line = __builtin_LINE()

#define WEFT_ROLE(text) weft_emu_role(text)
#define WEFT_NAME(pointer, bytes, text) weft_emu_name(pointer, bytes, text)
#define WEFT_JOIN_(a, b) a##b
#define WEFT_JOIN(a, b) WEFT_JOIN_(a, b)
#define WEFT_LINE_NOTE(text)                                                    \
  static const WeftNote WEFT_JOIN(weft_note_text_, __LINE__) = {text, __LINE__}; \
  const weft::LineNote WEFT_JOIN(weft_note_, __LINE__)(&WEFT_JOIN(weft_note_text_, __LINE__))

#define threadIdx weft::unpack_dim(weft_state.thread_index)
#define blockIdx weft::unpack_dim(weft_state.block_index)
#define blockDim weft::unpack_dim(weft_state.block_dim)
#define gridDim weft::unpack_dim(weft_state.grid_dim)

namespace weft {

// What the thread does until the end of the block that the note stands in.
struct LineNote {
  __forceinline__ LineNote(const WeftNote* note) { weft_emu_note(note); }
  __forceinline__ ~LineNote() { weft_emu_note(nullptr); }
};

struct Dim { unsigned x, y, z; };
WEFT_DEVICE Dim unpack_dim(weft_u64 packed) {
  return Dim{(unsigned)packed, (unsigned)(packed >> 32) & 0xffff, (unsigned)(packed >> 48)};
}

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
using TensorMap = WeftTensorMap;
enum class Cache { unspecified, all_levels, global, streaming };

// Keeps a parameter out of template deduction, so that store_global(float*, 0) is well formed.
template <class T> struct Same { using type = T; };
template <class T> using same = typename Same<T>::type;
template <bool> struct EnableIf {};
template <> struct EnableIf<true> { using type = int; };
template <bool Condition> using enable_if = typename EnableIf<Condition>::type;

// ---- register arrays ----------------------------------------------------------------------------------------------

// An array index that remembers the line it was written on.
struct Index {
  long long value;
  int line;
  __forceinline__ Index(long long index, WEFT_LINE) : value(index), line(line) {}
};

template <class T> WEFT_DEVICE void check_index(long long first, long long count, int elements, int line) {
  if (!WEFT_LIKELY(first >= 0 && first + count <= elements)) weft_emu_bad_index(first + (first >= 0 ? count - 1 : 0), elements, line);
}

#if defined(WEFT_CHECK_RACES)
// One element of an Array: reads as a T, and says so when it was never written.
template <class T> struct Element {
  T* value;
  unsigned char* written;
  int line;
  __forceinline__ T read() const {
    if (!WEFT_LIKELY(*written)) weft_emu_uninitialised_register(line);
    return *value;
  }
  __forceinline__ T write(T v) const { *written = 1; return *value = v; }
  __forceinline__ operator T() const { return read(); }
  __forceinline__ T operator=(T v) const { return write(v); }
  __forceinline__ T operator=(const Element& other) const { return write(other.read()); }
  template <class U> __forceinline__ T operator+=(U v) const { return write(read() + v); }
  template <class U> __forceinline__ T operator-=(U v) const { return write(read() - v); }
  template <class U> __forceinline__ T operator*=(U v) const { return write(read() * v); }
  template <class U> __forceinline__ T operator/=(U v) const { return write(read() / v); }
  template <class U> __forceinline__ T operator%=(U v) const { return write(read() % v); }
  template <class U> __forceinline__ T operator&=(U v) const { return write(read() & v); }
  template <class U> __forceinline__ T operator|=(U v) const { return write(read() | v); }
  template <class U> __forceinline__ T operator^=(U v) const { return write(read() ^ v); }
  template <class U> __forceinline__ T operator<<=(U v) const { return write(read() << v); }
  template <class U> __forceinline__ T operator>>=(U v) const { return write(read() >> v); }
  __forceinline__ T operator++() const { return write(read() + 1); }
  __forceinline__ T operator--() const { return write(read() - 1); }
  __forceinline__ T operator++(int) const { T old = read(); write(old + 1); return old; }
  __forceinline__ T operator--(int) const { T old = read(); write(old - 1); return old; }
};

template <class T, int N> struct Array {
  T data[N];
  unsigned char written[N];
  __forceinline__ Array() { __builtin_memset(written, 0, N); }
  __forceinline__ Element<T> operator[](Index i) {
    check_index<T>(i.value, 1, N, i.line);
    return Element<T>{data + i.value, written + i.value, i.line};
  }
  __forceinline__ T operator[](Index i) const { return get(i); }
  __forceinline__ T get(Index i) const {
    check_index<T>(i.value, 1, N, i.line);
    if (!WEFT_LIKELY(written[i.value])) weft_emu_uninitialised_register(i.line);
    return data[i.value];
  }
  __forceinline__ void fill(T v) { for (int i = 0; i < N; i++) { data[i] = v; written[i] = 1; } }
  // For the library: a range about to be written, or about to be read.
  __forceinline__ T* target(int first, int count, WEFT_LINE) {
    check_index<T>(first, count, N, line);
    __builtin_memset(written + first, 1, count);
    return data + first;
  }
  __forceinline__ const T* source(int first, int count, WEFT_LINE) const {
    check_index<T>(first, count, N, line);
    for (int i = 0; i < count; i++) if (!WEFT_LIKELY(written[first + i])) weft_emu_uninitialised_register(line);
    return data + first;
  }
};
#else
template <class T, int N> struct Array {
  T data[N];
  __forceinline__ T& operator[](Index i) { check_index<T>(i.value, 1, N, i.line); return data[i.value]; }
  __forceinline__ const T& operator[](Index i) const { check_index<T>(i.value, 1, N, i.line); return data[i.value]; }
  __forceinline__ T get(Index i) const { check_index<T>(i.value, 1, N, i.line); return data[i.value]; }
  __forceinline__ void fill(T v) { for (int i = 0; i < N; i++) data[i] = v; }
  __forceinline__ T* target(int first, int count, WEFT_LINE) { check_index<T>(first, count, N, line); return data + first; }
  __forceinline__ const T* source(int first, int count, WEFT_LINE) const { check_index<T>(first, count, N, line); return data + first; }
};
#endif

// ---- memory -------------------------------------------------------------------------------------------------------

// Whether one instruction moves so many bytes.
constexpr bool is_access(unsigned bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }
constexpr int VECTOR_BYTES = 32;  // of the widest access to global memory, which text asks for where the chip has it
// Widest: bytes of one instruction; what has more takes several.
template <int Bytes, unsigned Access, int Widest = 16> WEFT_DEVICE void check_access(const void* p, int line) {
  if constexpr (Bytes > Widest) {
    static_assert(Bytes % 8 == 0, "whole words");
    for (int i = 0; i < Bytes; i += 8) check_access<8, Access>((const char*)p + i, line);
    return;
  }
  static_assert(Bytes > Widest || is_access(Bytes) || Bytes == VECTOR_BYTES, "an access has 1, 2, 4, 8, 16 or 32 bytes");
#if defined(WEFT_CHECK_RACES)
  weft_emu_access(p, Bytes, Access, line);
#else
  const weft_u64 address = (weft_u64)p;
  weft_u64 first, bytes;
  if (Access & WEFT_SHARED) {
    first = weft_state.shared_first;
    bytes = weft_state.shared_bytes;
  } else {
    const WeftWindow& window = (Access & WEFT_WRITE ? weft_state.write : weft_state.read)[weft_window_of(address)];
    first = window.first;
    bytes = window.bytes;
  }
  const weft_u64 offset = address - first;
  if (!WEFT_LIKELY((offset < bytes) & (offset + Bytes <= bytes) & (address % Bytes == 0))) weft_emu_access(p, Bytes, Access, line);
#endif
}

// The accesses themselves. With the net for raw accesses, everything the text does to memory calls the runtime, but these.
#if defined(WEFT_RAW_NET)
WEFT_DEVICE void copy_bytes(void* to, const void* from, unsigned bytes) { weft_emu_copy(to, from, bytes); }
#else
WEFT_DEVICE void copy_bytes(void* to, const void* from, unsigned bytes) { __builtin_memcpy(to, from, bytes); }
#endif
template <class T> WEFT_DEVICE T read_memory(const T* p) { T v; copy_bytes(&v, p, sizeof(T)); return v; }
template <class T> WEFT_DEVICE void write_memory(T* p, T v) { copy_bytes(p, &v, sizeof(T)); }
template <class To, class From> WEFT_DEVICE To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To result;
  __builtin_memcpy(&result, &v, sizeof(To));
  return result;
}
struct alignas(16) TwoWords { weft_u64 low, high; };  // an element of 16 bytes, which the runtime takes as two
template <int N> struct ManyWords { weft_u64 word[N]; };  // the state of a fold that keeps many values
template <class T> WEFT_DEVICE weft_u64 to_bits(T v) { static_assert(is_access(sizeof(T)) && sizeof(T) <= 8, "one word"); weft_u64 bits = 0; __builtin_memcpy(&bits, &v, sizeof(T)); return bits; }
template <class T> WEFT_DEVICE T from_bits(weft_u64 bits) { static_assert(is_access(sizeof(T)) && sizeof(T) <= 8, "one word"); T v; __builtin_memcpy(&v, &bits, sizeof(T)); return v; }

template <class T> WEFT_DEVICE const T* of_thread(const T* p) { return p; }
template <Cache C = Cache::unspecified, class T> WEFT_DEVICE T load_global(const T* p, WEFT_LINE) {
  static_assert(is_access(sizeof(T)), "load_global takes 1, 2, 4, 8 or 16 bytes");
  check_access<sizeof(T), WEFT_READ>(p, line);
  return read_memory(p);
}
template <Cache C = Cache::unspecified, class T> WEFT_DEVICE void store_global(T* p, same<T> v, WEFT_LINE) {
  static_assert(is_access(sizeof(T)), "store_global takes 1, 2, 4, 8 or 16 bytes");
  check_access<sizeof(T), WEFT_WRITE>(p, line);
  write_memory(p, v);
}
template <int N, Cache C = Cache::unspecified, class T, int M>
WEFT_DEVICE void load_global_vector(Array<T, M>& dst, int dst_offset, const T* p, WEFT_LINE) {
  static_assert(is_access(sizeof(T)) && N * sizeof(T) <= VECTOR_BYTES, "elements of 1, 2, 4, 8 or 16 bytes; an access has up to 32");
  check_access<N * sizeof(T), WEFT_READ, VECTOR_BYTES>(p, line);
  copy_bytes(dst.target(dst_offset, N, line), p, N * sizeof(T));
}
template <int N, Cache C = Cache::unspecified, class T, int M>
WEFT_DEVICE void store_global_vector(T* p, const Array<T, M>& src, int src_offset, WEFT_LINE) {
  static_assert(is_access(sizeof(T)) && N * sizeof(T) <= VECTOR_BYTES, "elements of 1, 2, 4, 8 or 16 bytes; an access has up to 32");
  check_access<N * sizeof(T), WEFT_WRITE, VECTOR_BYTES>(p, line);
  copy_bytes(p, src.source(src_offset, N, line), N * sizeof(T));
}
// acquires, releases: 0 for accesses that other threads see at once, but that order nothing else
template <class T> WEFT_DEVICE T load_strong(const T* p, int acquires, int line) {
  static_assert(is_access(sizeof(T)), "a strong load takes 1, 2, 4, 8 or 16 bytes");
  check_access<sizeof(T), WEFT_READ | WEFT_STRONG>(p, line);
  weft_emu_sync_read(p, sizeof(T), acquires, line);
  T v = read_memory(p);
  if constexpr (sizeof(T) <= 8) weft_emu_poll(p, to_bits(v), line);  // nothing waits for an element of 16 bytes
  return v;
}
template <class T> WEFT_DEVICE void store_strong(T* p, T v, int releases, int line) {
  check_access<sizeof(T), WEFT_WRITE | WEFT_STRONG>(p, line);
  weft_emu_sync_write(p, sizeof(T), releases, line);
  write_memory(p, v);
}
template <class T> WEFT_DEVICE T load_global_volatile(const T* p, WEFT_LINE) { return load_strong(p, 0, line); }
template <class T> WEFT_DEVICE void store_global_volatile(T* p, same<T> v, WEFT_LINE) {
  static_assert(sizeof(T) <= 8, "store_global_volatile takes 1, 2, 4 or 8 bytes");
  store_strong(p, (T)v, 0, line);
}
template <class T> WEFT_DEVICE T load_acquire(const T* p, WEFT_LINE) { return load_strong(p, 1, line); }
template <class T> WEFT_DEVICE void store_release(T* p, same<T> v, WEFT_LINE) {
  static_assert(sizeof(T) <= 8, "store_release takes 1, 2, 4 or 8 bytes");
  store_strong(p, (T)v, 1, line);
}

WEFT_DEVICE int atomic_add(int* p, int v, WEFT_LINE) { return from_bits<int>(weft_emu_atomic(p, to_bits(v), WEFT_ADD_I32, 0, line)); }
WEFT_DEVICE unsigned atomic_add(unsigned* p, unsigned v, WEFT_LINE) { return (unsigned)weft_emu_atomic(p, v, WEFT_ADD_U32, 0, line); }
WEFT_DEVICE weft_u64 atomic_add(weft_u64* p, weft_u64 v, WEFT_LINE) { return weft_emu_atomic(p, v, WEFT_ADD_U64, 0, line); }
WEFT_DEVICE float atomic_add(float* p, float v, WEFT_LINE) { return from_bits<float>(weft_emu_atomic(p, to_bits(v), WEFT_ADD_F32, 0, line)); }
WEFT_DEVICE double atomic_add(double* p, double v, WEFT_LINE) { return from_bits<double>(weft_emu_atomic(p, to_bits(v), WEFT_ADD_F64, 0, line)); }
#define WEFT_ATOMIC_EXTREMA(T, S)                                                                                              \
  WEFT_DEVICE T atomic_max(T* p, T v, WEFT_LINE) { return from_bits<T>(weft_emu_atomic(p, to_bits(v), WEFT_MAX_##S, 0, line)); } \
  WEFT_DEVICE T atomic_min(T* p, T v, WEFT_LINE) { return from_bits<T>(weft_emu_atomic(p, to_bits(v), WEFT_MIN_##S, 0, line)); }
WEFT_ATOMIC_EXTREMA(int, I32)
WEFT_ATOMIC_EXTREMA(unsigned, U32)
WEFT_ATOMIC_EXTREMA(long long, I64)
WEFT_ATOMIC_EXTREMA(weft_u64, U64)
#undef WEFT_ATOMIC_EXTREMA
template <int N, int M> WEFT_DEVICE void atomic_add_vector(float* p, const Array<float, M>& src, int src_offset, WEFT_LINE) {
  static_assert(N == 2 || N == 4, "vectors of 8 and 16 bytes");
  check_access<N * sizeof(float), WEFT_WRITE | WEFT_STRONG>(p, line);  // of the whole vector, and its alignment
  const float* v = src.source(src_offset, N, line);
  for (int i = 0; i < N; ++i) atomic_add(p + i, v[i], line);
}
WEFT_DEVICE unsigned atomic_add_acquire_release(unsigned* p, unsigned v, WEFT_LINE) { return (unsigned)weft_emu_atomic(p, v, WEFT_ADD_U32, 1, line); }
WEFT_DEVICE int atomic_add_acquire_release(int* p, int v, WEFT_LINE) { return from_bits<int>(weft_emu_atomic(p, to_bits(v), WEFT_ADD_I32, 1, line)); }
WEFT_DEVICE void thread_fence(WEFT_LINE) { weft_emu_thread_fence(line); }
WEFT_DEVICE void nanosleep(unsigned, WEFT_LINE) { weft_emu_nanosleep(line); }

WEFT_DEVICE unsigned char* dynamic_shared() { return (unsigned char*)__builtin_assume_aligned((void*)weft_state.shared_first, 1024); }
template <class T> WEFT_DEVICE T load_shared(const T* p, WEFT_LINE) {
  check_access<sizeof(T), WEFT_READ | WEFT_SHARED>(p, line);
  return read_memory(p);
}
template <class T> WEFT_DEVICE void store_shared(T* p, same<T> v, WEFT_LINE) {
  check_access<sizeof(T), WEFT_WRITE | WEFT_SHARED>(p, line);
  write_memory(p, v);
}
template <int N, class T, int M> WEFT_DEVICE void load_shared_vector(Array<T, M>& dst, int dst_offset, const T* p, WEFT_LINE) {
  static_assert(is_access(N * sizeof(T)), "an access to shared memory has 1, 2, 4, 8 or 16 bytes");
  check_access<N * sizeof(T), WEFT_READ | WEFT_SHARED>(p, line);
  copy_bytes(dst.target(dst_offset, N, line), p, N * sizeof(T));
}
template <int N, class T, int M> WEFT_DEVICE void store_shared_vector(T* p, const Array<T, M>& src, int src_offset, WEFT_LINE) {
  static_assert(is_access(N * sizeof(T)), "an access to shared memory has 1, 2, 4, 8 or 16 bytes");
  check_access<N * sizeof(T), WEFT_WRITE | WEFT_SHARED>(p, line);
  copy_bytes(p, src.source(src_offset, N, line), N * sizeof(T));
}

// A pointer that knows which tensor in shared memory it was made from: `source_map.with_shared_tensors` puts of() around the names of tensors.
template <class T> struct SharedPointer {
  T* p;
  WeftSharedTensor tensor;
  __forceinline__ operator T*() const { return p; }
  template <class I> __forceinline__ SharedPointer operator+(I elements) const { return {p + elements, tensor}; }
  __forceinline__ T* inside(weft_u64 bytes, int is_write, int line) const {
    const weft_u64 offset = (weft_u64)p - tensor.first;
    if (tensor.bytes && !WEFT_LIKELY((offset < tensor.bytes) & (offset + bytes <= tensor.bytes))) weft_emu_outside(&tensor, p, bytes, is_write, line);
    return p;
  }
};
template <class T> WEFT_DEVICE SharedPointer<T> of(T* p, int number, const char* name) { return {p, {(weft_u64)p, weft_state.shared_tensors[number], name}}; }
template <class T> WEFT_DEVICE SharedPointer<T> of(T* p) {
  SharedPointer<T> made = {p, {(weft_u64)p, 0, ""}};
  weft_emu_named(&made.tensor);
  return made;
}
template <class T> WEFT_DEVICE T load_shared(SharedPointer<T> p, WEFT_LINE) { return load_shared(p.inside(sizeof(T), 0, line), line); }
template <class T> WEFT_DEVICE void store_shared(SharedPointer<T> p, same<T> v, WEFT_LINE) { store_shared(p.inside(sizeof(T), 1, line), v, line); }
template <int N, class T, int M> WEFT_DEVICE void load_shared_vector(Array<T, M>& dst, int dst_offset, SharedPointer<T> p, WEFT_LINE) {
  load_shared_vector<N>(dst, dst_offset, (const T*)p.inside(N * sizeof(T), 0, line), line);
}
template <int N, class T, int M> WEFT_DEVICE void store_shared_vector(SharedPointer<T> p, const Array<T, M>& src, int src_offset, WEFT_LINE) {
  store_shared_vector<N>(p.inside(N * sizeof(T), 1, line), src, src_offset, line);
}

// ---- threads ------------------------------------------------------------------------------------------------------

WEFT_DEVICE unsigned own_linear_thread() {
  const Dim t = threadIdx, d = blockDim;
  return (t.z * d.y + t.y) * d.x + t.x;
}
WEFT_DEVICE unsigned lane() { return own_linear_thread() % 32; }
WEFT_DEVICE unsigned warp_of(unsigned linear) { return linear / 32; }

WEFT_DEVICE void block_sync(WEFT_LINE) { weft_emu_block_sync(line); }
WEFT_DEVICE void named_sync(int id, int threads, WEFT_LINE) { weft_emu_named_barrier(id, threads, 1, line); }
WEFT_DEVICE void named_arrive(int id, int threads, WEFT_LINE) { weft_emu_named_barrier(id, threads, 0, line); }
WEFT_DEVICE void warp_sync(unsigned mask = 0xffffffffu, WEFT_LINE) { weft_emu_warp_sync(mask, line); }
template <class T> WEFT_DEVICE T shuffle(T v, int kind, int operand, int line) {
  if constexpr (sizeof(T) > 16) {
    ManyWords<sizeof(T) / 8> words = bit_cast<ManyWords<sizeof(T) / 8>>(v);
    for (weft_u64& word : words.word) word = weft_emu_shuffle(word, kind, operand, line);
    return bit_cast<T>(words);
  } else if constexpr (sizeof(T) == 16) {
    TwoWords halves = bit_cast<TwoWords>(v);
    halves.low = weft_emu_shuffle(halves.low, kind, operand, line);
    halves.high = weft_emu_shuffle(halves.high, kind, operand, line);
    return bit_cast<T>(halves);
  } else return from_bits<T>(weft_emu_shuffle(to_bits(v), kind, operand, line));
}
template <class T> WEFT_DEVICE T shuffle_xor(T v, int lanemask, WEFT_LINE) { return shuffle(v, WEFT_SHUFFLE_XOR, lanemask, line); }
template <class T> WEFT_DEVICE T shuffle_down(T v, int delta, WEFT_LINE) { return shuffle(v, WEFT_SHUFFLE_DOWN, delta, line); }
template <class T> WEFT_DEVICE T shuffle_index(T v, int lane, WEFT_LINE) { return shuffle(v, WEFT_SHUFFLE_INDEX, lane, line); }
// What a butterfly of shuffles over groups of `Width` lanes leaves in each lane: the lanes meet once, and one computes for all, in the same order. A
// combination must not depend on which of two values comes first, so that all lanes of a group have the same.
template <class Op, class T> __attribute__((noinline)) void fold_halves(weft_u64* values, unsigned half) {
  for (unsigned i = 0; i < half; i++) values[i] = to_bits(Op::combine(from_bits<T>(values[i]), from_bits<T>(values[i + half])));
}
template <class Op, int Width, class T> WEFT_DEVICE T fold_lanes(T value, WEFT_LINE) {
  if constexpr (sizeof(T) >= 16) {
    for (int offset = Width / 2; offset > 0; offset /= 2) value = Op::combine(value, shuffle_xor(value, offset, line));
    return value;
  } else return from_bits<T>(weft_emu_fold(to_bits(value), Width, 0, &fold_halves<Op, T>, line));
}
// Of the first `count` lanes, whose number is rounded up to a power of two; all lanes get what these have.
template <class Op, class T> WEFT_DEVICE T fold_first_lanes(T value, unsigned count, WEFT_LINE) {
  if constexpr (sizeof(T) >= 16) {
    for (int offset = 16; offset > 0; offset /= 2)
      if (count > (unsigned)offset) value = Op::combine(value, shuffle_xor(value, offset, line));
    return shuffle_index(value, 0, line);
  } else return from_bits<T>(weft_emu_fold(to_bits(value), count, 1, &fold_halves<Op, T>, line));
}
#if defined(WEFT_CHECK_RACES)
template <class T> WEFT_DEVICE T shuffle_xor(Element<T> v, int lanemask, WEFT_LINE) { return shuffle_xor<T>(v.read(), lanemask, line); }
template <class T> WEFT_DEVICE T shuffle_down(Element<T> v, int delta, WEFT_LINE) { return shuffle_down<T>(v.read(), delta, line); }
template <class T> WEFT_DEVICE T shuffle_index(Element<T> v, int lane, WEFT_LINE) { return shuffle_index<T>(v.read(), lane, line); }
#endif
WEFT_DEVICE unsigned ballot(bool predicate, WEFT_LINE) { return weft_emu_ballot(predicate, line); }
WEFT_DEVICE bool elect(WEFT_LINE) { return weft_emu_elect(line); }
template <int N> WEFT_DEVICE void setmaxnreg_inc(WEFT_LINE) { weft_emu_setmaxnreg(1, N, line); }
template <int N> WEFT_DEVICE void setmaxnreg_dec(WEFT_LINE) { weft_emu_setmaxnreg(0, N, line); }

// ---- clusters -----------------------------------------------------------------------------------------------------

WEFT_DEVICE unsigned cluster_rank() { return weft_emu_cluster_rank(); }
WEFT_DEVICE unsigned cluster_size() { return weft_emu_cluster_size(); }
WEFT_DEVICE void cluster_arrive(WEFT_LINE) { weft_emu_cluster_arrive(line); }
WEFT_DEVICE void cluster_arrive_relaxed(WEFT_LINE) { weft_emu_cluster_arrive_relaxed(line); }
WEFT_DEVICE void cluster_wait(WEFT_LINE) { weft_emu_cluster_wait(line); }
WEFT_DEVICE void cluster_sync(WEFT_LINE) { weft_emu_cluster_arrive(line); weft_emu_cluster_wait(line); }
template <class T> WEFT_DEVICE void store_shared_remote(T* local_address, unsigned rank, same<T> v, WEFT_LINE) {
  static_assert(sizeof(T) > 8 ? sizeof(T) % 4 == 0 : is_access(sizeof(T)), "store_shared_remote stores 1 or 2 bytes, or whole words");
  T* p = (T*)weft_emu_remote_address(local_address, rank, line);
  weft_emu_access(p, sizeof(T), WEFT_WRITE | WEFT_SHARED | WEFT_REMOTE, line);
  write_memory(p, v);
}
template <class T> WEFT_DEVICE void store_async_remote(T* local_address, unsigned rank, same<T> v, weft_u64* local_barrier, WEFT_LINE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "store_async_remote stores 4 or 8 bytes");
  weft_emu_store_async_remote(local_address, rank, to_bits(v), sizeof(T), local_barrier, line);
}
template <class T> WEFT_DEVICE T load_shared_remote(const T* local_address, unsigned rank, WEFT_LINE) {
  static_assert(is_access(sizeof(T)) && sizeof(T) <= 8, "load_shared_remote takes 1, 2, 4 or 8 bytes");
  const T* p = (const T*)weft_emu_remote_address(local_address, rank, line);
  weft_emu_access(p, sizeof(T), WEFT_READ | WEFT_SHARED | WEFT_REMOTE, line);
  return read_memory(p);
}

// ---- barriers in shared memory, asynchronous copies ---------------------------------------------------------------

WEFT_DEVICE void mbarrier_init(weft_u64* bar, unsigned count, WEFT_LINE) { weft_emu_mbarrier_init(bar, count, line); }
WEFT_DEVICE void mbarrier_inval(weft_u64* bar, WEFT_LINE) { weft_emu_mbarrier_inval(bar, line); }
WEFT_DEVICE void mbarrier_arrive(weft_u64* bar, WEFT_LINE) { weft_emu_mbarrier_arrive(bar, line); }
WEFT_DEVICE void mbarrier_arrive_remote(weft_u64* bar, unsigned rank, WEFT_LINE) { weft_emu_mbarrier_arrive_remote(bar, rank, line); }
WEFT_DEVICE void mbarrier_arrive_expect_tx(weft_u64* bar, unsigned bytes, WEFT_LINE) { weft_emu_mbarrier_expect_tx(bar, bytes, 1, line); }
WEFT_DEVICE void mbarrier_expect_tx(weft_u64* bar, unsigned bytes, WEFT_LINE) { weft_emu_mbarrier_expect_tx(bar, bytes, 0, line); }
WEFT_DEVICE void mbarrier_wait_parity(weft_u64* bar, unsigned parity, WEFT_LINE) { weft_emu_mbarrier_wait(bar, parity & 1, 0, line); }
WEFT_DEVICE void mbarrier_wait_phase(weft_u64* bar, long long phase, WEFT_LINE) { weft_emu_mbarrier_wait(bar, phase, 1, line); }
WEFT_DEVICE void fence_mbarrier_init(WEFT_LINE) { weft_emu_fence_mbarrier_init(line); }
WEFT_DEVICE void fence_proxy_async(WEFT_LINE) { weft_emu_fence_proxy_async(line); }
WEFT_DEVICE void fence_proxy_async_shared(WEFT_LINE) { weft_emu_fence_proxy_async(line); }
WEFT_DEVICE void bulk_load(void* shared_dst, const void* global_src, unsigned bytes, weft_u64* bar, WEFT_LINE) {
  weft_emu_bulk_load(shared_dst, global_src, bytes, bar, line);
}
WEFT_DEVICE void bulk_load_units(void* shared_dst, const void* global_src, unsigned bytes, weft_u64* bar, WEFT_LINE) {
  weft_emu_bulk_load_units(shared_dst, global_src, bytes, bar, line);
}
WEFT_DEVICE void bulk_store(void* global_dst, const void* shared_src, unsigned bytes, WEFT_LINE) { weft_emu_bulk_store(global_dst, shared_src, bytes, line); }
template <class T> WEFT_DEVICE void bulk_load(SharedPointer<T> shared_dst, const void* global_src, unsigned bytes, weft_u64* bar, WEFT_LINE) {
  bulk_load((void*)shared_dst.inside(bytes, 1, line), global_src, bytes, bar, line);
}
template <class T> WEFT_DEVICE void bulk_store(void* global_dst, SharedPointer<T> shared_src, unsigned bytes, WEFT_LINE) {
  bulk_store(global_dst, (const void*)shared_src.inside(bytes, 0, line), bytes, line);
}
WEFT_DEVICE void bulk_commit(WEFT_LINE) { weft_emu_bulk_commit(line); }
template <int N> WEFT_DEVICE void bulk_wait(WEFT_LINE) { weft_emu_bulk_wait(N, 0, line); }
template <int N> WEFT_DEVICE void bulk_wait_read(WEFT_LINE) { weft_emu_bulk_wait(N, 1, line); }
template <int Bytes> WEFT_DEVICE void cp_async(void* shared_dst, const void* global_src, bool valid = true, WEFT_LINE) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp_async copies 4, 8 or 16 bytes");
  weft_emu_cp_async(shared_dst, global_src, Bytes, valid, line);
}
template <int Bytes, class T> WEFT_DEVICE void cp_async(SharedPointer<T> shared_dst, const void* global_src, bool valid = true, WEFT_LINE) {
  cp_async<Bytes>((void*)shared_dst.inside(Bytes, 1, line), global_src, valid, line);
}
WEFT_DEVICE void cp_async_commit(WEFT_LINE) { weft_emu_cp_async_commit(line); }
template <int N> WEFT_DEVICE void cp_async_wait(WEFT_LINE) { weft_emu_cp_async_wait(N, line); }

// tensor_load<2>(dst, map, x, y, bar): an overload per rank. The line of a store must not be mistaken for a coordinate.
struct Line { int value; __forceinline__ Line(WEFT_LINE) : value(line) {} };
inline weft_u64 box_bytes(const TensorMap* map) {
  weft_u64 bytes = map->element_bytes;
  for (unsigned i = 0; i < map->rank && i < 5; i++) bytes *= map->box[i];
  return bytes;
}
#define WEFT_TENSOR_COPY(RANK, PARAMETERS, VALUES)                                                            \
  template <int rank, enable_if<rank == RANK> = 0>                                                            \
  WEFT_DEVICE void tensor_load(void* shared_dst, const TensorMap* map, PARAMETERS, weft_u64* bar, WEFT_LINE) { \
    const int at[RANK] = {VALUES};                                                                            \
    weft_emu_tensor_load(shared_dst, map, at, RANK, bar, line);                                               \
  }                                                                                                           \
  template <int rank, enable_if<rank == RANK> = 0>                                                            \
  WEFT_DEVICE void tensor_store(const TensorMap* map, const void* shared_src, PARAMETERS, Line line = Line()) { \
    const int at[RANK] = {VALUES};                                                                            \
    weft_emu_tensor_store(map, shared_src, at, RANK, line.value);                                             \
  }                                                                                                           \
  template <int rank, class T, enable_if<rank == RANK> = 0>                                                   \
  WEFT_DEVICE void tensor_load(SharedPointer<T> dst, const TensorMap* map, PARAMETERS, weft_u64* bar, WEFT_LINE) { \
    tensor_load<rank>((void*)dst.inside(box_bytes(map), 1, line), map, VALUES, bar, line);                    \
  }                                                                                                           \
  template <int rank, class T, enable_if<rank == RANK> = 0>                                                   \
  WEFT_DEVICE void tensor_store(const TensorMap* map, SharedPointer<T> src, PARAMETERS, Line line = Line()) { \
    tensor_store<rank>(map, (const void*)src.inside(box_bytes(map), 0, line.value), VALUES, line);            \
  }
#define WEFT_LIST(...) __VA_ARGS__
WEFT_TENSOR_COPY(1, int a, a)
WEFT_TENSOR_COPY(2, WEFT_LIST(int a, int b), WEFT_LIST(a, b))
WEFT_TENSOR_COPY(3, WEFT_LIST(int a, int b, int c), WEFT_LIST(a, b, c))
WEFT_TENSOR_COPY(4, WEFT_LIST(int a, int b, int c, int d), WEFT_LIST(a, b, c, d))
WEFT_TENSOR_COPY(5, WEFT_LIST(int a, int b, int c, int d, int e), WEFT_LIST(a, b, c, d, e))
#undef WEFT_TENSOR_COPY
#undef WEFT_LIST
WEFT_DEVICE void griddep_wait(WEFT_LINE) { weft_emu_griddep_wait(line); }
WEFT_DEVICE void griddep_launch(WEFT_LINE) { weft_emu_griddep_launch(line); }

// ---- kernel entry -------------------------------------------------------------------------------------------------

// Unpacks an array of pointers to the arguments, as cuLaunchKernel does.
template <int... I> struct Sequence {};
template <class A, class B> struct Join;
template <int... I, int... J> struct Join<Sequence<I...>, Sequence<J...>> { using type = Sequence<I..., sizeof...(I) + J...>; };
template <int N> struct MakeSequence {  // of halves: compilers nest templates some 900 deep, and a kernel may have thousands of parameters
  using type = typename Join<typename MakeSequence<N / 2>::type, typename MakeSequence<N - N / 2>::type>::type;
};
template <> struct MakeSequence<0> { using type = Sequence<>; };
template <> struct MakeSequence<1> { using type = Sequence<0>; };
template <class... A, int... I> WEFT_DEVICE void call_kernel(void (*kernel)(A...), void** arguments, Sequence<I...>) {
  kernel(*(A*)arguments[I]...);
}
template <class... A> WEFT_DEVICE void call_kernel(void (*kernel)(A...), void** arguments) {
  call_kernel(kernel, arguments, typename MakeSequence<sizeof...(A)>::type());
}
// Number of parameters, then the size of each: lets the launcher refuse wrong arguments.
template <class... A> WEFT_DEVICE int parameter_sizes(void (*)(A...), unsigned* sizes) {
  const unsigned all[] = {(unsigned)sizeof(A)..., 0};
  for (unsigned i = 0; i < sizeof...(A); i++) sizes[i] = all[i];
  return sizeof...(A);
}

}  // namespace weft

#define WEFT_EXPORT extern "C" __attribute__((visibility("default")))
#define WEFT_ENTRY(NAME)                                                                                      \
  WEFT_EXPORT void NAME##_weft_entry(void** arguments) { weft::call_kernel(&NAME, arguments); }               \
  WEFT_EXPORT int NAME##_weft_parameters(unsigned* sizes) { return weft::parameter_sizes(&NAME, sizes); }
