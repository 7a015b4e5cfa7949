// Switching between the stacks of two threads: a few instructions on x86-64 and aarch64, ucontext elsewhere.
// The switch is inlined (a called one mispredicts a return per level), hence the file must be built with -mno-red-zone.
#pragma once
#include "base.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#define WEFT_UCONTEXT 1          // may also be set by hand
#endif
#if defined(WEFT_UCONTEXT)
#include <ucontext.h>
#endif

namespace weft_rt {

// address: of what a switch to the thread reads first.
#if defined(WEFT_UCONTEXT)
struct Context {
  ucontext_t* machine;
  const char* address() const { return (const char*)machine; }
};
#else
struct Context {
  void* stack_pointer;
  const char* address() const { return (const char*)stack_pointer; }
};
static inline void drop_context(Context*) {}
#endif

#if defined(__x86_64__) && !defined(WEFT_UCONTEXT)
static ALWAYS_INLINE void switch_context(Context* save, const Context* load) {
  void** to_save = &save->stack_pointer;
  void* to_load = load->stack_pointer;
  asm volatile(
      "leaq 1f(%%rip), %%rax\n pushq %%rax\n pushq %%rbp\n pushq %%rbx\n"
      "movq %%rsp, (%0)\n movq %1, %%rsp\n"
      "popq %%rbx\n popq %%rbp\n popq %%rcx\n jmp *%%rcx\n 1:\n"
      : "+D"(to_save), "+S"(to_load)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0", "xmm1", "xmm2",
        "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
// Prepares a context that calls entry() on the stack whose highest address is top (16-byte aligned).
static inline void make_context(Context* context, char* top, u64, void (*entry)()) {
  u64* p = (u64*)top;
  *--p = 0;             // the return address that entry() must not use; keeps the stack aligned as after a call
  *--p = (u64)entry;
  *--p = 0;             // rbp
  *--p = 0;             // rbx
  context->stack_pointer = p;
}
#elif defined(__aarch64__) && !defined(WEFT_UCONTEXT)
static ALWAYS_INLINE void switch_context(Context* save, const Context* load) {
  register void** to_save asm("x0") = &save->stack_pointer;
  register void* to_load asm("x1") = load->stack_pointer;
  asm volatile(
      "adr x2, 1f\n sub sp, sp, #32\n stp x29, x2, [sp]\n str x19, [sp, #16]\n"
      "mov x3, sp\n str x3, [x0]\n mov sp, x1\n"
      "ldp x29, x2, [sp]\n ldr x19, [sp, #16]\n add sp, sp, #32\n br x2\n 1:\n"
      : "+r"(to_save), "+r"(to_load)
      :
      : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x20", "x21",
        "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7",
        "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24",
        "v25", "v26", "v27", "v28", "v29", "v30", "v31");
}
static inline void make_context(Context* context, char* top, u64, void (*entry)()) {
  u64* p = (u64*)top - 4;
  p[0] = 0;             // x29
  p[1] = (u64)entry;
  p[2] = p[3] = 0;      // x19
  context->stack_pointer = p;
}
#else
static inline ucontext_t* machine_context(Context* context) {
  if (!context->machine) context->machine = (ucontext_t*)calloc(1, sizeof(ucontext_t));
  return context->machine;
}
static inline void drop_context(Context* context) { free(context->machine); }
static inline void switch_context(Context* save, const Context* load) { swapcontext(machine_context(save), load->machine); }
static inline void make_context(Context* context, char* top, u64 bytes, void (*entry)()) {
  ucontext_t* machine = machine_context(context);
  getcontext(machine);
  machine->uc_stack.ss_sp = top - bytes;
  machine->uc_stack.ss_size = bytes;
  machine->uc_link = nullptr;
  makecontext(machine, entry, 0);
}
#endif

}  // namespace weft_rt
