// The net for raw accesses: a kernel compiled with -fsanitize=thread calls these hooks for each access that it makes itself,
// and not for those of the primitives (weft_emu_copy). A hook that finds the address in a buffer or in shared memory has found
// an access that nobody checked. Linked instead of the sanitizer's own runtime.
#include "machine.h"
#include "report.h"

namespace weft_rt {

static bool is_checked_memory(u64 address) {
  const Unit* unit = machine.current->block->unit;
  for (u32 i = 0; i < unit->block_count; i++)
    if (address - (u64)unit->blocks[i]->shared < machine.grid->shared_capacity_bytes) return true;
  for (const Buffer& b : machine.grid->buffers)
    if (address - b.first < b.bytes) return true;
  return false;
}

static void look_at(const void* p, u64 bytes, const char* noun) {
  const Fiber* f = machine.current;
  if (!machine.running || !f) return;
  const u64 address = (u64)p, stack_bytes = (u64)machine.config.stack_kib * 1024;
  if ((u64)f->stack_top - address <= stack_bytes || !is_checked_memory(address)) return;
  REPORT("raw-access", f->line, 0, "use load_global, store_shared and their like: only those are checked",
         "%s of %llu bytes of %s by %s goes around the primitives; the thread waited last at line %d", noun, (unsigned long long)bytes,
         describe_address(address), describe_fiber(f), f->line);
}

}  // namespace weft_rt

using weft_rt::look_at;
using weft_rt::u64;

EXPORT void weft_emu_copy(void* to, const void* from, unsigned bytes) { memcpy(to, from, bytes); }

#define HOOKS(BYTES)                                                                                   \
  EXPORT void __tsan_read##BYTES(void* p) { look_at(p, BYTES, "read"); }                               \
  EXPORT void __tsan_write##BYTES(void* p) { look_at(p, BYTES, "write"); }                             \
  EXPORT void __tsan_read_write##BYTES(void* p) { look_at(p, BYTES, "read and write"); }               \
  EXPORT void __tsan_unaligned_read##BYTES(void* p) { look_at(p, BYTES, "read"); }                     \
  EXPORT void __tsan_unaligned_write##BYTES(void* p) { look_at(p, BYTES, "write"); }                   \
  EXPORT void __tsan_unaligned_read_write##BYTES(void* p) { look_at(p, BYTES, "read and write"); }     \
  EXPORT void __tsan_volatile_read##BYTES(void* p) { look_at(p, BYTES, "read"); }                      \
  EXPORT void __tsan_volatile_write##BYTES(void* p) { look_at(p, BYTES, "write"); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
#undef HOOKS
EXPORT void __tsan_read_range(void* p, u64 bytes) { look_at(p, bytes, "read"); }
EXPORT void __tsan_write_range(void* p, u64 bytes) { look_at(p, bytes, "write"); }
EXPORT void* __tsan_memcpy(void* to, const void* from, u64 bytes) {
  look_at(from, bytes, "read");
  look_at(to, bytes, "write");
  return memcpy(to, from, bytes);
}
EXPORT void* __tsan_memmove(void* to, const void* from, u64 bytes) {
  look_at(from, bytes, "read");
  look_at(to, bytes, "write");
  return memmove(to, from, bytes);
}
EXPORT void* __tsan_memset(void* to, int value, u64 bytes) {
  look_at(to, bytes, "write");
  return memset(to, value, bytes);
}
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void*) {}
EXPORT void __tsan_func_exit() {}
