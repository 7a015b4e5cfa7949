// The primitives of a kernel on the GPU. Their host twins are in weft/emulator/weft_emulator.h; docs/kernel_text.md is the
// contract between the two. Includes nothing. Compiles for sm_80 and up; what needs sm_90 is declared there only.
#define WEFT_DEVICE static __device__ __forceinline__
#define WEFT_UNROLL _Pragma("unroll")
#define WEFT_ROLE(text)
#define WEFT_NAME(pointer, bytes, text)
#define WEFT_LINE_NOTE(text)
#define WEFT_ENTRY(NAME)

namespace weft {

struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
enum class Cache { unspecified, all_levels, global, streaming };

// Keeps a parameter out of template deduction, so that store_global(float*, 0) is well formed.
template <class T> struct Same { using type = T; };
template <class T> using same = typename Same<T>::type;
template <bool> struct EnableIf {};
template <> struct EnableIf<true> { using type = int; };
template <bool Condition> using enable_if = typename EnableIf<Condition>::type;

template <class T, int N> struct Array {
  T data[N];
  __device__ __forceinline__ T& operator[](int i) { return data[i]; }
  __device__ __forceinline__ const T& operator[](int i) const { return data[i]; }
  __device__ __forceinline__ T get(int i) const { return data[i]; }
  __device__ __forceinline__ void fill(T v) {
#pragma unroll
    for (int i = 0; i < N; i++) data[i] = v;
  }
  // For the library: a range about to be written, or about to be read.
  __device__ __forceinline__ T* target(int first, int count) { return data + first; }
  __device__ __forceinline__ const T* source(int first, int count) const { return data + first; }
};

// ---- bits ---------------------------------------------------------------------------------------------------------

template <int Bytes> struct Unsigned;
template <> struct Unsigned<1> { using type = unsigned char; };
template <> struct Unsigned<2> { using type = unsigned short; };
template <> struct Unsigned<4> { using type = unsigned; };
template <> struct Unsigned<8> { using type = unsigned long long; };
template <class T> using bits_of = typename Unsigned<sizeof(T)>::type;

template <class To, class From> WEFT_DEVICE To bit_cast(From v) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To result;
  memcpy(&result, &v, sizeof(To));
  return result;
}
template <class T> WEFT_DEVICE bits_of<T> to_bits(T v) { return bit_cast<bits_of<T>>(v); }
// Whether one instruction moves so many bytes.
WEFT_DEVICE constexpr bool is_access(unsigned bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }
struct alignas(16) TwoWords { unsigned long long low, high; };  // an element of 16 bytes, which no register holds
template <int N> struct ManyWords { unsigned long long word[N]; };  // the state of a fold that keeps many values

// N elements as 32-bit words and back, without going through memory.
template <int N, class T> WEFT_DEVICE void pack_words(unsigned* words, const T* elements) {
  if constexpr (sizeof(T) == 16) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      const TwoWords halves = bit_cast<TwoWords>(elements[i]);
      pack_words<1>(words + 4 * i, &halves.low);
      pack_words<1>(words + 4 * i + 2, &halves.high);
    }
  } else if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      words[2 * i] = (unsigned)to_bits(elements[i]);
      words[2 * i + 1] = (unsigned)(to_bits(elements[i]) >> 32);
    }
  } else {
    constexpr int PER_WORD = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < N; i++) {
      const unsigned part = (unsigned)to_bits(elements[i]) << (i % PER_WORD * sizeof(T) * 8);
      words[i / PER_WORD] = i % PER_WORD ? words[i / PER_WORD] | part : part;
    }
  }
}
template <int N, class T> WEFT_DEVICE void unpack_words(T* elements, const unsigned* words) {
  if constexpr (sizeof(T) == 16) {
#pragma unroll
    for (int i = 0; i < N; i++) {
      TwoWords halves;
      unpack_words<1>(&halves.low, words + 4 * i);
      unpack_words<1>(&halves.high, words + 4 * i + 2);
      elements[i] = bit_cast<T>(halves);
    }
  } else if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int i = 0; i < N; i++) elements[i] = bit_cast<T>((unsigned long long)words[2 * i + 1] << 32 | words[2 * i]);
  } else {
    constexpr int PER_WORD = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < N; i++) elements[i] = bit_cast<T>((bits_of<T>)(words[i / PER_WORD] >> (i % PER_WORD * sizeof(T) * 8)));
  }
}

// ---- arrays of elements of less than 32 bits ------------------------------------------------------------------------

// Bits of an element that shares a register with its neighbours; 0 if it has registers of its own.
template <class T> struct Packing { enum { bits = 0 }; };
template <> struct Packing<bf16> { enum { bits = 16 }; };
template <> struct Packing<f16> { enum { bits = 16 }; };
template <> struct Packing<bool> { enum { bits = 8 }; };
template <class T> WEFT_DEVICE unsigned code_of(T v) { return v.bits; }
WEFT_DEVICE unsigned code_of(bool v) { return v; }
template <class T> WEFT_DEVICE void set_code(T& v, unsigned code) { v.bits = code; }
WEFT_DEVICE void set_code(bool& v, unsigned code) { v = code & 1; }

// The array is made of words, and stays so across branches, where the compiler would otherwise give each element a register of its own. An element is
// read and written through Element.
template <class T> struct Element {
  unsigned& word;
  int shift;
  enum : unsigned { MASK = (1u << Packing<T>::bits) - 1 };
  __device__ __forceinline__ T read() const {
    T v;
    set_code(v, word >> shift & MASK);
    return v;
  }
  __device__ __forceinline__ operator T() const { return read(); }
  __device__ __forceinline__ void operator=(T v) const { word = (word & ~(MASK << shift)) | code_of(v) << shift; }
  __device__ __forceinline__ void operator=(const Element& other) const { *this = other.read(); }
};
template <class T, int N> struct PackedArray {
  enum { BITS = Packing<T>::bits, PER_WORD = 32 / BITS, WORDS = (N + PER_WORD - 1) / PER_WORD };
  unsigned words[WORDS];
  __device__ __forceinline__ Element<T> operator[](int i) { return Element<T>{words[i / PER_WORD], i % PER_WORD * BITS}; }
  __device__ __forceinline__ T operator[](int i) const { return get(i); }
  __device__ __forceinline__ T get(int i) const {
    T v;
    set_code(v, words[i / PER_WORD] >> i % PER_WORD * BITS & Element<T>::MASK);
    return v;
  }
  __device__ __forceinline__ void fill(T v) {
#pragma unroll
    for (int i = 0; i < WORDS; i++) words[i] = code_of(v) * (0xffffffffu / Element<T>::MASK);
  }
};
template <int N> struct Array<bf16, N> : PackedArray<bf16, N> {};
template <int N> struct Array<f16, N> : PackedArray<f16, N> {};
template <int N> struct Array<bool, N> : PackedArray<bool, N> {};

// The words of elements first .. first + N - 1, from and to an array. `first` is a multiple of N.
template <int N, class T, int M> WEFT_DEVICE void array_from_words(Array<T, M>& dst, int first, const unsigned* words) {
  constexpr int BITS = Packing<T>::bits;
  if constexpr (BITS == 0) {
    unpack_words<N>(dst.target(first, N), words);
  } else if constexpr (N * BITS % 32 == 0) {
#pragma unroll
    for (int i = 0; i < N * BITS / 32; i++) dst.words[first * BITS / 32 + i] = words[i];
  } else {
    static_assert(N * BITS < 32, "a vector is a part of a word, or whole words");
    constexpr unsigned MASK = (1u << N * BITS) - 1;
    unsigned& word = dst.words[first * BITS / 32];
    const int shift = first * BITS % 32;
    word = (word & ~(MASK << shift)) | (words[0] & MASK) << shift;
  }
}
template <int N, class T, int M> WEFT_DEVICE void words_from_array(unsigned* words, const Array<T, M>& src, int first) {
  constexpr int BITS = Packing<T>::bits;
  if constexpr (BITS == 0) {
    pack_words<N>(words, src.source(first, N));
  } else if constexpr (N * BITS % 32 == 0) {
#pragma unroll
    for (int i = 0; i < N * BITS / 32; i++) words[i] = src.words[first * BITS / 32 + i];
  } else {
    words[0] = src.words[first * BITS / 32] >> first * BITS % 32 & ((1u << N * BITS) - 1);
  }
}

// ---- global memory ------------------------------------------------------------------------------------------------

// One load or store instruction of 1 to 16 bytes, or 32 where a chip has such and the compiler knows them, else two; with a cache operator. Words beyond the
// access are left alone.
#if __CUDA_ARCH__ >= 1000 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1209
#define WEFT_HAS_32_BYTES 1
#define WEFT_LOAD_32(OPERATOR)                                                                                               \
  asm volatile("ld.global" OPERATOR ".v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"                                        \
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]), "=r"(w[4]), "=r"(w[5]), "=r"(w[6]), "=r"(w[7]) : "l"(p) : "memory")
#define WEFT_STORE_32(OPERATOR)                                                                                              \
  asm volatile("st.global" OPERATOR ".v8.b32 [%8], {%0, %1, %2, %3, %4, %5, %6, %7};"                                        \
               ::"r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), "r"(w[7]), "l"(p) : "memory")
#else
#define WEFT_HAS_32_BYTES 0
#define WEFT_LOAD_32(OPERATOR)
#define WEFT_STORE_32(OPERATOR)
#endif
struct alignas(32) EightWords { unsigned word[8]; };
#define WEFT_LOAD(OPERATOR)                                                                                                  \
  if constexpr (Bytes == 32) { WEFT_LOAD_32(OPERATOR); }                                                                     \
  else if constexpr (Bytes == 16)                                                                                            \
    asm volatile("ld.global" OPERATOR ".v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p) : "memory"); \
  else if constexpr (Bytes == 8)                                                                                             \
    asm volatile("ld.global" OPERATOR ".v2.u32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(p) : "memory");               \
  else if constexpr (Bytes == 4)                                                                                             \
    asm volatile("ld.global" OPERATOR ".u32 %0, [%1];" : "=r"(w[0]) : "l"(p) : "memory");                                    \
  else if constexpr (Bytes == 2)                                                                                             \
    asm volatile("ld.global" OPERATOR ".u16 %0, [%1];" : "=r"(w[0]) : "l"(p) : "memory");                                    \
  else                                                                                                                       \
    asm volatile("ld.global" OPERATOR ".u8 %0, [%1];" : "=r"(w[0]) : "l"(p) : "memory")
#define WEFT_STORE(OPERATOR)                                                                                                 \
  if constexpr (Bytes == 32) { WEFT_STORE_32(OPERATOR); }                                                                    \
  else if constexpr (Bytes == 16)                                                                                            \
    asm volatile("st.global" OPERATOR ".v4.u32 [%4], {%0, %1, %2, %3};" ::"r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(p) : "memory"); \
  else if constexpr (Bytes == 8)                                                                                             \
    asm volatile("st.global" OPERATOR ".v2.u32 [%2], {%0, %1};" ::"r"(w[0]), "r"(w[1]), "l"(p) : "memory");                  \
  else if constexpr (Bytes == 4)                                                                                             \
    asm volatile("st.global" OPERATOR ".u32 [%1], %0;" ::"r"(w[0]), "l"(p) : "memory");                                      \
  else if constexpr (Bytes == 2)                                                                                             \
    asm volatile("st.global" OPERATOR ".u16 [%1], %0;" ::"r"(w[0]), "l"(p) : "memory");                                      \
  else                                                                                                                       \
    asm volatile("st.global" OPERATOR ".u8 [%1], %0;" ::"r"(w[0]), "l"(p) : "memory")

template <int Bytes, Cache C> WEFT_DEVICE void load_words(unsigned* w, const void* p) {
  static_assert(is_access(Bytes) || Bytes == 32, "an access has 1, 2, 4, 8, 16 or 32 bytes");
  if constexpr (Bytes == 32 && !WEFT_HAS_32_BYTES) {
    load_words<16, C>(w, p);
    load_words<16, C>(w + 4, static_cast<const char*>(p) + 16);
  } else if constexpr (C == Cache::all_levels) { WEFT_LOAD(".ca"); }
  else if constexpr (C == Cache::global) { WEFT_LOAD(".cg"); }
  else if constexpr (C == Cache::streaming) { WEFT_LOAD(".cs"); }
  else if constexpr (Bytes == 32) {             // plain loads, so that the compiler may use the read-only path
    const EightWords v = *(const EightWords*)p;
#pragma unroll
    for (int i = 0; i < 8; i++) w[i] = v.word[i];
  } else if constexpr (Bytes == 16) {
    const uint4 v = *(const uint4*)p;
    w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
  } else if constexpr (Bytes == 8) {
    const uint2 v = *(const uint2*)p;
    w[0] = v.x, w[1] = v.y;
  } else {
    w[0] = *(const typename Unsigned<Bytes>::type*)p;
  }
}
template <int Bytes, Cache C> WEFT_DEVICE void store_words(void* p, const unsigned* w) {
  static_assert(is_access(Bytes) || Bytes == 32, "an access has 1, 2, 4, 8, 16 or 32 bytes");
  if constexpr (Bytes == 32 && !WEFT_HAS_32_BYTES) {
    store_words<16, C>(p, w);
    store_words<16, C>(static_cast<char*>(p) + 16, w + 4);
  } else if constexpr (C == Cache::all_levels) { WEFT_STORE(".wb"); }
  else if constexpr (C == Cache::global) { WEFT_STORE(".cg"); }
  else if constexpr (C == Cache::streaming) { WEFT_STORE(".cs"); }
  else if constexpr (Bytes == 32) *(EightWords*)p = EightWords{{w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]}};
  else if constexpr (Bytes == 16) *(uint4*)p = make_uint4(w[0], w[1], w[2], w[3]);
  else if constexpr (Bytes == 8) *(uint2*)p = make_uint2(w[0], w[1]);
  else *(typename Unsigned<Bytes>::type*)p = (typename Unsigned<Bytes>::type)w[0];
}
#undef WEFT_LOAD
#undef WEFT_STORE
#undef WEFT_LOAD_32
#undef WEFT_STORE_32

// The same pointer, of which the compiler cannot know that all threads of a warp have it: it moves what one address gives to all threads into a uniform
// register, and so waits for a load that is meant for later right where it is issued.
template <class T> WEFT_DEVICE const T* of_thread(const T* p) {
  unsigned zero;
  asm("and.b32 %0, %1, 1024;" : "=r"(zero) : "r"(threadIdx.x));
  return p + zero;
}
template <Cache C = Cache::unspecified, class T> WEFT_DEVICE T load_global(const T* p) {
  unsigned words[4];
  T v;
  load_words<sizeof(T), C>(words, p);
  unpack_words<1>(&v, words);
  return v;
}
template <Cache C = Cache::unspecified, class T> WEFT_DEVICE void store_global(T* p, same<T> v) {
  unsigned words[4];
  pack_words<1>(words, &v);
  store_words<sizeof(T), C>(p, words);
}
template <int N, Cache C = Cache::unspecified, class T, int M> WEFT_DEVICE void load_global_vector(Array<T, M>& dst, int dst_offset, const T* p) {
  unsigned words[N * sizeof(T) > 16 ? 8 : 4];
  load_words<N * sizeof(T), C>(words, p);
  array_from_words<N>(dst, dst_offset, words);
}
template <int N, Cache C = Cache::unspecified, class T, int M> WEFT_DEVICE void store_global_vector(T* p, const Array<T, M>& src, int src_offset) {
  unsigned words[N * sizeof(T) > 16 ? 8 : 4];
  words_from_array<N>(words, src, src_offset);
  store_words<N * sizeof(T), C>(p, words);
}

// Accesses that other blocks may race with; 1 to 8 bytes, or 16 as two of 8, which another block may see one after the other.
#define WEFT_STRONG_LOAD(NAME, ORDER)                                                                       \
  template <class T> WEFT_DEVICE T NAME(const T* p) {                                                       \
    static_assert(is_access(sizeof(T)), #NAME " takes 1, 2, 4, 8 or 16 bytes");                             \
    if constexpr (sizeof(T) == 16) {                                                                        \
      const unsigned long long* halves = (const unsigned long long*)p;                                      \
      return bit_cast<T>(TwoWords{NAME(halves), NAME(halves + 1)});                                         \
    } else if constexpr (sizeof(T) == 8) {                                                                  \
      unsigned long long v;                                                                                 \
      asm volatile("ld." ORDER ".gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");                  \
      return bit_cast<T>(v);                                                                                \
    } else {                                                                                                \
      unsigned v;                                                                                           \
      if constexpr (sizeof(T) == 4) asm volatile("ld." ORDER ".gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");      \
      else if constexpr (sizeof(T) == 2) asm volatile("ld." ORDER ".gpu.global.u16 %0, [%1];" : "=r"(v) : "l"(p) : "memory"); \
      else asm volatile("ld." ORDER ".gpu.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");              \
      return bit_cast<T>((bits_of<T>)v);                                                                    \
    }                                                                                                       \
  }
#define WEFT_STRONG_STORE(NAME, ORDER)                                                                      \
  template <class T> WEFT_DEVICE void NAME(T* p, same<T> v) {                                               \
    static_assert(is_access(sizeof(T)) && sizeof(T) <= 8, #NAME " takes 1, 2, 4 or 8 bytes");               \
    if constexpr (sizeof(T) == 8) asm volatile("st." ORDER ".gpu.global.u64 [%1], %0;" ::"l"(to_bits(v)), "l"(p) : "memory");                    \
    else if constexpr (sizeof(T) == 4) asm volatile("st." ORDER ".gpu.global.u32 [%1], %0;" ::"r"(to_bits(v)), "l"(p) : "memory");               \
    else if constexpr (sizeof(T) == 2) asm volatile("st." ORDER ".gpu.global.u16 [%1], %0;" ::"r"((unsigned)to_bits(v)), "l"(p) : "memory");     \
    else asm volatile("st." ORDER ".gpu.global.u8 [%1], %0;" ::"r"((unsigned)to_bits(v)), "l"(p) : "memory"); \
  }
WEFT_STRONG_LOAD(load_global_volatile, "relaxed")
WEFT_STRONG_LOAD(load_acquire, "acquire")
WEFT_STRONG_STORE(store_global_volatile, "relaxed")
WEFT_STRONG_STORE(store_release, "release")
#undef WEFT_STRONG_LOAD
#undef WEFT_STRONG_STORE

WEFT_DEVICE int atomic_add(int* p, int v) { return atomicAdd(p, v); }
WEFT_DEVICE unsigned atomic_add(unsigned* p, unsigned v) { return atomicAdd(p, v); }
WEFT_DEVICE unsigned long long atomic_add(unsigned long long* p, unsigned long long v) { return atomicAdd(p, v); }
WEFT_DEVICE float atomic_add(float* p, float v) { return atomicAdd(p, v); }
WEFT_DEVICE double atomic_add(double* p, double v) { return atomicAdd(p, v); }
#define WEFT_ATOMIC_EXTREMA(T)                                                  \
  WEFT_DEVICE T atomic_max(T* p, T v) { return atomicMax(p, v); }               \
  WEFT_DEVICE T atomic_min(T* p, T v) { return atomicMin(p, v); }
WEFT_ATOMIC_EXTREMA(int)
WEFT_ATOMIC_EXTREMA(unsigned)
WEFT_ATOMIC_EXTREMA(long long)
WEFT_ATOMIC_EXTREMA(unsigned long long)
#undef WEFT_ATOMIC_EXTREMA
// Adds N neighbouring elements at an address that is a multiple of the vector: one instruction from 9.0 on. Each element is added atomically, not the vector.
template <int N, int M> WEFT_DEVICE void atomic_add_vector(float* p, const Array<float, M>& src, int src_offset) {
  static_assert(N == 2 || N == 4, "vectors of 8 and 16 bytes");
  const float* v = src.source(src_offset, N);
#if __CUDA_ARCH__ >= 900
  if constexpr (N == 4) asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]) : "memory");
  else asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v[0]), "f"(v[1]) : "memory");
#else
  for (int i = 0; i < N; ++i) atomicAdd(p + i, v[i]);
#endif
}
WEFT_DEVICE unsigned atomic_add_acquire_release(unsigned* p, unsigned v) {
  unsigned old;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
WEFT_DEVICE int atomic_add_acquire_release(int* p, int v) { return (int)atomic_add_acquire_release((unsigned*)p, (unsigned)v); }
WEFT_DEVICE void thread_fence() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
WEFT_DEVICE void nanosleep(unsigned ns) { __nanosleep(ns); }

// ---- shared memory ------------------------------------------------------------------------------------------------

extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
WEFT_DEVICE unsigned char* dynamic_shared() { return dynamic_shared_memory; }
WEFT_DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

template <class T> WEFT_DEVICE T load_shared(const T* p) { return *p; }
template <class T> WEFT_DEVICE void store_shared(T* p, same<T> v) { *p = v; }
template <int N, class T, int M> WEFT_DEVICE void load_shared_vector(Array<T, M>& dst, int dst_offset, const T* p) {
  static_assert(is_access(N * sizeof(T)), "an access to shared memory has 1, 2, 4, 8 or 16 bytes");
  unsigned words[4];
  load_words<N * sizeof(T), Cache::unspecified>(words, p);
  array_from_words<N>(dst, dst_offset, words);
}
template <int N, class T, int M> WEFT_DEVICE void store_shared_vector(T* p, const Array<T, M>& src, int src_offset) {
  static_assert(is_access(N * sizeof(T)), "an access to shared memory has 1, 2, 4, 8 or 16 bytes");
  unsigned words[4];
  words_from_array<N>(words, src, src_offset);
  store_words<N * sizeof(T), Cache::unspecified>(p, words);
}

// ---- threads ------------------------------------------------------------------------------------------------------

WEFT_DEVICE unsigned lane() {
  unsigned v;
  asm("mov.u32 %0, %%laneid;" : "=r"(v));
  return v;
}
WEFT_DEVICE unsigned warp_of(unsigned linear) { return linear / 32; }
WEFT_DEVICE void block_sync() { __syncthreads(); }
WEFT_DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
WEFT_DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
WEFT_DEVICE void warp_sync(unsigned mask = 0xffffffffu) { __syncwarp(mask); }

#define WEFT_SHUFFLE(NAME, INTRINSIC)                                                                        \
  template <class T> WEFT_DEVICE T NAME(T v, int operand) {                                                  \
    if constexpr (sizeof(T) > 16) {                                                                          \
      ManyWords<sizeof(T) / 8> words = bit_cast<ManyWords<sizeof(T) / 8>>(v);                                \
      _Pragma("unroll") for (int i = 0; i < (int)(sizeof(T) / 8); i++) words.word[i] = NAME(words.word[i], operand); \
      return bit_cast<T>(words);                                                                             \
    } else if constexpr (sizeof(T) == 16) {                                                                  \
      const TwoWords halves = bit_cast<TwoWords>(v);                                                         \
      return bit_cast<T>(TwoWords{NAME(halves.low, operand), NAME(halves.high, operand)});                   \
    } else if constexpr (sizeof(T) == 8) return bit_cast<T>(INTRINSIC(0xffffffffu, to_bits(v), operand));    \
    else return bit_cast<T>((bits_of<T>)INTRINSIC(0xffffffffu, (unsigned)to_bits(v), operand));              \
  }
WEFT_SHUFFLE(shuffle_xor, __shfl_xor_sync)
WEFT_SHUFFLE(shuffle_down, __shfl_down_sync)
WEFT_SHUFFLE(shuffle_index, __shfl_sync)
#undef WEFT_SHUFFLE
WEFT_DEVICE unsigned ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }

// ---- copies of single elements into shared memory (sm_80) ---------------------------------------------------------

template <int Bytes> WEFT_DEVICE void cp_async(void* shared_dst, const void* global_src, bool valid = true) {
  static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp_async copies 4, 8 or 16 bytes");
  const int source_bytes = valid ? Bytes : 0;
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared_dst)), "l"(global_src), "r"(source_bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared_dst)), "l"(global_src), "n"(Bytes), "r"(source_bytes) : "memory");
}
WEFT_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> WEFT_DEVICE void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
WEFT_DEVICE bool elect() {
  unsigned leads;
  asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(leads));
  return leads;
}
template <int N> WEFT_DEVICE void setmaxnreg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> WEFT_DEVICE void setmaxnreg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
WEFT_DEVICE void griddep_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
WEFT_DEVICE void griddep_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- clusters -----------------------------------------------------------------------------------------------------

WEFT_DEVICE unsigned cluster_rank() {
  unsigned v;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v));
  return v;
}
WEFT_DEVICE unsigned cluster_size() {
  unsigned v;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(v));
  return v;
}
WEFT_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
WEFT_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }  // orders no memory: no fence to wait for
WEFT_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
WEFT_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
WEFT_DEVICE unsigned remote_address(const void* local, unsigned rank) {
  unsigned v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(shared_address(local)), "r"(rank));
  return v;
}
template <class T> WEFT_DEVICE void store_shared_remote(T* local_address, unsigned rank, same<T> v) {
  const unsigned p = remote_address(local_address, rank);
  if constexpr (sizeof(T) > 8) {  // a complex<double>, or the state of a fold with several fields
    static_assert(sizeof(T) % 4 == 0, "store_shared_remote stores whole words");
    unsigned words[sizeof(T) / 4];
    memcpy(words, &v, sizeof(T));
#pragma unroll
    for (unsigned i = 0; i < sizeof(T) / 4; i++) asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(p + 4 * i), "r"(words[i]) : "memory");
  } else if constexpr (sizeof(T) == 8) asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(p), "l"(to_bits(v)) : "memory");
  else if constexpr (sizeof(T) == 4) asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(p), "r"(to_bits(v)) : "memory");
  else if constexpr (sizeof(T) == 2) asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(p), "h"(to_bits(v)) : "memory");
  else asm volatile("st.shared::cluster.u8 [%0], %1;" ::"r"(p), "r"((unsigned)to_bits(v)) : "memory");
}
// A store of 4 or 8 bytes that runs beside the thread; the barrier at `local_barrier` in the same block of the cluster counts its bytes when they are there.
template <class T> WEFT_DEVICE void store_async_remote(T* local_address, unsigned rank, same<T> v, unsigned long long* local_barrier) {
  const unsigned p = remote_address(local_address, rank), bar = remote_address(local_barrier, rank);
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "store_async_remote stores 4 or 8 bytes");
  if constexpr (sizeof(T) == 8)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];" ::"r"(p), "l"(to_bits(v)), "r"(bar) : "memory");
  else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(p), "r"(to_bits(v)), "r"(bar) : "memory");
}
template <class T> WEFT_DEVICE T load_shared_remote(const T* local_address, unsigned rank) {
  static_assert(is_access(sizeof(T)) && sizeof(T) <= 8, "load_shared_remote takes 1, 2, 4 or 8 bytes");
  const unsigned p = remote_address(local_address, rank);
  if constexpr (sizeof(T) == 8) {
    unsigned long long v;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(v) : "r"(p) : "memory");
    return bit_cast<T>(v);
  } else {
    unsigned v;
    if constexpr (sizeof(T) == 4) asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
    else if constexpr (sizeof(T) == 2) asm volatile("ld.shared::cluster.u16 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
    else asm volatile("ld.shared::cluster.u8 %0, [%1];" : "=r"(v) : "r"(p) : "memory");
    return bit_cast<T>((bits_of<T>)v);
  }
}

// ---- barriers in shared memory ------------------------------------------------------------------------------------

WEFT_DEVICE void mbarrier_init(unsigned long long* bar, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}
WEFT_DEVICE void mbarrier_inval(unsigned long long* bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(bar)) : "memory"); }
WEFT_DEVICE void mbarrier_arrive(unsigned long long* bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory"); }
WEFT_DEVICE void mbarrier_arrive_remote(unsigned long long* bar, unsigned rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote_address(bar, rank)) : "memory");
}
WEFT_DEVICE void mbarrier_arrive_expect_tx(unsigned long long* bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
WEFT_DEVICE void mbarrier_expect_tx(unsigned long long* bar, unsigned bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}
WEFT_DEVICE void mbarrier_wait_parity(unsigned long long* bar, unsigned parity) {
  const unsigned p = shared_address(bar);
  unsigned done;
  do {
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(done) : "r"(p), "r"(parity) : "memory");
  } while (!done);
}
WEFT_DEVICE void mbarrier_wait_phase(unsigned long long* bar, long long phase) { mbarrier_wait_parity(bar, (unsigned)phase & 1); }
WEFT_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
WEFT_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
WEFT_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- bulk copies --------------------------------------------------------------------------------------------------

WEFT_DEVICE void bulk_load(void* shared_dst, const void* global_src, unsigned bytes, unsigned long long* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(shared_dst)), "l"(global_src), "r"(bytes), "r"(shared_address(bar)) : "memory");
}
// Loads the units of 16 bytes that hold `bytes` bytes from global_src on, which lands at shared_dst + (address of global_src) % 16. What else is in these units
// is no part of what was asked for; reading it is safe, because memory comes in larger units than these, each whole.
WEFT_DEVICE void bulk_load_units(void* shared_dst, const void* global_src, unsigned bytes, unsigned long long* bar) {
  const unsigned before = static_cast<unsigned>(reinterpret_cast<unsigned long long>(global_src)) % 16;
  bulk_load(shared_dst, static_cast<const char*>(global_src) - before, (before + bytes + 15) / 16 * 16, bar);
}
WEFT_DEVICE void bulk_store(void* global_dst, const void* shared_src, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global_dst), "r"(shared_address(shared_src)), "r"(bytes) : "memory");
}
WEFT_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> WEFT_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }
template <int N> WEFT_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }

#define WEFT_TENSOR_COPY(RANK, PARAMETERS, LOAD_PLACES, LOAD_BARRIER, STORE_PLACES, OPERANDS)                                   \
  template <int rank, enable_if<rank == RANK> = 0> WEFT_DEVICE void tensor_load(void* shared_dst, const TensorMap* map, PARAMETERS, unsigned long long* bar) { \
    asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" LOAD_PLACES "}], [" LOAD_BARRIER "];" \
                 ::"r"(shared_address(shared_dst)), "l"(map), OPERANDS, "r"(shared_address(bar)) : "memory");                   \
  }                                                                                                                             \
  template <int rank, enable_if<rank == RANK> = 0> WEFT_DEVICE void tensor_store(const TensorMap* map, const void* shared_src, PARAMETERS) {                 \
    asm volatile("cp.async.bulk.tensor." #RANK "d.global.shared::cta.tile.bulk_group [%0, {" STORE_PLACES "}], [%1];"           \
                 ::"l"(map), "r"(shared_address(shared_src)), OPERANDS : "memory");                                             \
  }
#define WEFT_LIST(...) __VA_ARGS__
WEFT_TENSOR_COPY(1, WEFT_LIST(int a), "%2", "%3", "%2", WEFT_LIST("r"(a)))
WEFT_TENSOR_COPY(2, WEFT_LIST(int a, int b), "%2, %3", "%4", "%2, %3", WEFT_LIST("r"(a), "r"(b)))
WEFT_TENSOR_COPY(3, WEFT_LIST(int a, int b, int c), "%2, %3, %4", "%5", "%2, %3, %4", WEFT_LIST("r"(a), "r"(b), "r"(c)))
WEFT_TENSOR_COPY(4, WEFT_LIST(int a, int b, int c, int d), "%2, %3, %4, %5", "%6", "%2, %3, %4, %5", WEFT_LIST("r"(a), "r"(b), "r"(c), "r"(d)))
WEFT_TENSOR_COPY(5, WEFT_LIST(int a, int b, int c, int d, int e), "%2, %3, %4, %5, %6", "%7", "%2, %3, %4, %5, %6",
                 WEFT_LIST("r"(a), "r"(b), "r"(c), "r"(d), "r"(e)))
#undef WEFT_TENSOR_COPY
#undef WEFT_LIST
#else
WEFT_DEVICE bool elect() { return lane() == 0; }
#endif

}  // namespace weft
