// Keeps the iterations of a long unrolled loop apart, in kernels that are compiled with WEFT_APART because they spill otherwise.
namespace weft {

// True. With WEFT_APART the compiler does not know it, and mixes nothing across the branch.
WEFT_DEVICE bool is_running() {
#if defined(WEFT_APART) && !defined(WEFT_EMULATOR)
  unsigned blocks;
  asm("mov.u32 %0, %%nctaid.x;" : "=r"(blocks));
  return blocks != 0u;
#else
  return true;
#endif
}

}  // namespace weft
