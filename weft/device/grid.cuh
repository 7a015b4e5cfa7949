// requires:
// Where all blocks of a grid meet. Read first: meet_grid.
namespace weft {

// All blocks of the grid, which run at once (a cooperative launch), meet. One thread of each block calls it, between two barriers of the block: what any
// thread of a block wrote before, every thread of every block sees afterwards. barrier: two ints, zero and left zero.
WEFT_DEVICE void meet_grid(int* barrier) {
  const int blocks = static_cast<int>(gridDim.x * gridDim.y * gridDim.z);
  if (atomic_add_acquire_release(barrier, 1) != blocks - 1) {
    while (load_acquire(barrier) != blocks) {
    }
  }
  if (atomic_add_acquire_release(barrier + 1, 1) == blocks - 1) {  // all have left: nobody looks at the first one any more
    store_global_volatile(barrier, 0);
    store_global_volatile(barrier + 1, 0);
  }
}

}  // namespace weft
