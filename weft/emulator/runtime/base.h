// Small pieces under everything else: integer names, a growing array, text building, random numbers.
// The runtime uses no C++ standard library, so that it links with any compiler in a second.
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace weft_rt {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = unsigned long long;
using i32 = int32_t;
using i64 = long long;

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define ALWAYS_INLINE inline __attribute__((always_inline))
#define COLD __attribute__((cold, noinline))
#define EXPORT extern "C" __attribute__((visibility("default")))

inline u32 lowest_bit(u32 mask) { return (u32)__builtin_ctz(mask); }
inline u32 count_bits(u32 mask) { return (u32)__builtin_popcount(mask); }
template <class T> inline T min_of(T a, T b) { return a < b ? a : b; }
template <class T> inline T max_of(T a, T b) { return a > b ? a : b; }

// A growing array of plain values. Elements are moved with realloc; added ones are zeroed.
template <class T> struct List {
  T* items = nullptr;
  u32 count = 0, capacity = 0;

  T& operator[](u32 i) { return items[i]; }
  const T& operator[](u32 i) const { return items[i]; }
  T* begin() { return items; }
  T* end() { return items + count; }
  T& last() { return items[count - 1]; }
  void reserve(u32 wanted) {
    if (wanted <= capacity) return;
    u32 grown = max_of(wanted, capacity * 2 + 8);
    items = (T*)realloc((void*)items, grown * sizeof(T));
    memset((void*)(items + capacity), 0, (grown - capacity) * sizeof(T));
    capacity = grown;
  }
  void push(const T& value) {
    reserve(count + 1);
    items[count++] = value;
  }
  T& add() {
    reserve(count + 1);
    memset((void*)&items[count], 0, sizeof(T));
    return items[count++];
  }
  T pop() { return items[--count]; }
  void resize(u32 wanted) {
    reserve(wanted);
    if (wanted > count) memset((void*)(items + count), 0, (wanted - count) * sizeof(T));
    count = wanted;
  }
  void drop_front(u32 n) {
    memmove((void*)items, (void*)(items + n), (count - n) * sizeof(T));
    count -= n;
  }
  void clear() { count = 0; }
  void release() {
    free((void*)items);
    items = nullptr;
    count = capacity = 0;
  }
};

// Text under construction.
struct Text {
  List<char> characters;
  __attribute__((format(printf, 2, 3))) Text& add(const char* format, ...) {
    va_list list;
    va_start(list, format);
    add_list(format, list);
    va_end(list);
    return *this;
  }
  void add_list(const char* format, va_list list) {
    va_list again;
    va_copy(again, list);
    const u32 length = (u32)vsnprintf(nullptr, 0, format, list);
    characters.reserve(characters.count + length + 1);
    vsnprintf(characters.items + characters.count, length + 1, format, again);
    characters.count += length;
    va_end(again);
  }
  const char* c_str() {
    characters.push(0);
    characters.count--;
    return characters.items ? characters.items : "";
  }
  void release() { characters.release(); }
};

struct Random {
  u64 state;
  void seed(u64 seed) {
    state = seed * 0x9E3779B97F4A7C15ull + 0x1234567;
    if (!state) state = 1;
    next();
    next();
  }
  u64 next() {
    u64 x = state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return state = x;
  }
  u32 below(u32 bound) { return (u32)((next() >> 16) % bound); }
};

}  // namespace weft_rt
