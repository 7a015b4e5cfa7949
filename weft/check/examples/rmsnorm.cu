// A hand-written kernel with weft's device library: persistent and warp-specialized. Two roles load rows with bulk copies through a ring of stages, two
// groups of warps normalize a row each, and the result leaves by bulk stores. Check it with: weft check rmsnorm.cu --launch rmsnorm.toml
#if defined(WEFT_EMULATOR)
WEFT_DEVICE float inverse_root(float x) { return 1.f / __builtin_sqrtf(x); }
#else
WEFT_DEVICE float inverse_root(float x) { return rsqrtf(x); }
#endif

// T5 = (T0 + T1) * rsqrt(mean((T0 + T1)^2) + eps) * T2.   Block (128, 3): y = 0, 1 compute a row each, y = 2 loads.
extern "C" __global__ void __launch_bounds__(384, 1) rmsnorm(const weft::bf16* __restrict__ T0, const weft::bf16* __restrict__ T1,
    const weft::bf16* __restrict__ T2, weft::bf16* __restrict__ T5, int rows, float eps) {
  constexpr int COLS = 1024, STAGES = 3, VECTORS = COLS / (128 * 8), ROW_BYTES = COLS * 2;
  unsigned char* shared = weft::dynamic_shared();
  weft::bf16* T0_s = (weft::bf16*)shared;                      // [STAGES][2][COLS]
  weft::bf16* T1_s = T0_s + STAGES * 2 * COLS;                 // [STAGES][2][COLS]
  weft::bf16* T5_s = T1_s + STAGES * 2 * COLS;                 // [2][COLS]
  unsigned long long* full_0 = (unsigned long long*)(T5_s + 2 * COLS);
  unsigned long long* full_1 = full_0 + STAGES;
  unsigned long long* empty_0 = full_1 + STAGES;
  unsigned long long* empty_1 = empty_0 + STAGES;
  float* partial = (float*)(empty_1 + STAGES);                 // [2 groups][2][4]
  const int t = threadIdx.x, group = threadIdx.y, warp = t / 32;
  if (group == 0 && t == 0) {
    for (int s = 0; s < STAGES; s++) {
      weft::mbarrier_init(full_0 + s, 1);
      weft::mbarrier_init(full_1 + s, 1);
      weft::mbarrier_init(empty_0 + s, 8);
      weft::mbarrier_init(empty_1 + s, 8);
    }
    WEFT_NAME(full_0, STAGES * 8, "full_0");
    WEFT_NAME(full_1, STAGES * 8, "full_1");
    WEFT_NAME(empty_0, STAGES * 8, "empty_0");
    WEFT_NAME(empty_1, STAGES * 8, "empty_1");
    weft::fence_mbarrier_init();
  }
  weft::block_sync();   // init
  const int tiles = (rows + 1) / 2;
  if (group == 2) {
    weft::setmaxnreg_dec<40>();
    if (warp == 0 && weft::elect()) {
      WEFT_ROLE("load T0");
      int k = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
        const int stage = k % STAGES, round = k / STAGES, tile_rows = rows - tile * 2 < 2 ? rows - tile * 2 : 2;
        weft::mbarrier_wait_phase(empty_0 + stage, round - 1);
        weft::fence_proxy_async_shared();   // reads before a copy
        weft::mbarrier_arrive_expect_tx(full_0 + stage, tile_rows * ROW_BYTES);
        weft::bulk_load(T0_s + stage * 2 * COLS, T0 + (long long)tile * 2 * COLS, tile_rows * ROW_BYTES, full_0 + stage);
      }
    } else if (warp == 1 && weft::elect()) {
      WEFT_ROLE("load T1");
      int k = 0;
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
        const int stage = k % STAGES, round = k / STAGES, tile_rows = rows - tile * 2 < 2 ? rows - tile * 2 : 2;
        weft::mbarrier_wait_phase(empty_1 + stage, round - 1);
        weft::fence_proxy_async_shared();   // reads before a copy
        weft::mbarrier_arrive_expect_tx(full_1 + stage, tile_rows * ROW_BYTES);
        weft::bulk_load(T1_s + stage * 2 * COLS, T1 + (long long)tile * 2 * COLS, tile_rows * ROW_BYTES, full_1 + stage);
      }
    }
  } else {
    weft::setmaxnreg_inc<232>();
    WEFT_ROLE(group ? "compute 1" : "compute 0");
    weft::Array<weft::bf16, VECTORS * 8> weight;
#pragma unroll
    for (int i = 0; i < VECTORS; i++) weft::load_global_vector<8>(weight, i * 8, T2 + (i * 128 + t) * 8);
    int k = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, k++) {
      const int row = tile * 2 + group, stage = k % STAGES, round = k / STAGES;
      weft::mbarrier_wait_phase(full_0 + stage, round);
      weft::mbarrier_wait_phase(full_1 + stage, round);
      if (row < rows) {
        weft::Array<float, VECTORS * 8> T3, T4;
        float square = 0.f;
        weft::Array<weft::bf16, 8> packed;
        // before reading
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
          weft::load_shared_vector<8>(packed, 0, T0_s + (stage * 2 + group) * COLS + (i * 128 + t) * 8);
          weft::convert_vector<8>(T3, i * 8, packed, 0);
          weft::load_shared_vector<8>(packed, 0, T1_s + (stage * 2 + group) * COLS + (i * 128 + t) * 8);
          weft::convert_vector<8>(T4, i * 8, packed, 0);
#pragma unroll
          for (int j = 0; j < 8; j++) {
            const float h = T3[i * 8 + j] + T4[i * 8 + j];
            T3[i * 8 + j] = h;
            square += h * h;
          }
        }
        weft::warp_sync(0xffffffffu);   // release
        if (weft::lane() == 0) { weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage); }
#pragma unroll
        for (int o = 16; o; o /= 2) square += weft::shuffle_xor(square, o);
        float* mine = partial + group * 8 + k % 2 * 4;
        if (weft::lane() == 0) weft::store_shared(mine + warp, square);
        if (t == 0) weft::bulk_wait_read<0>();
        weft::named_sync(1 + group, 128);   // reduction
        square = 0.f;
        for (int w = 0; w < 4; w++) square += weft::load_shared(mine + w);
        const float scale = inverse_root(square * (1.f / COLS) + eps);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
#pragma unroll
          for (int j = 0; j < 8; j++) T3[i * 8 + j] = T3[i * 8 + j] * scale * weft::convert<float>(weight[i * 8 + j]);
          weft::convert_vector<8>(packed, 0, T3, i * 8);
          weft::store_shared_vector<8>(T5_s + group * COLS + (i * 128 + t) * 8, packed, 0);
        }
        weft::fence_proxy_async_shared();
        weft::named_sync(1 + group, 128);   // output
        if (t == 0) {
          weft::bulk_store(T5 + (long long)row * COLS, T5_s + group * COLS, ROW_BYTES);
          weft::bulk_commit();
        }
      } else {
        weft::warp_sync(0xffffffffu);
        if (weft::lane() == 0) { weft::mbarrier_arrive(empty_0 + stage); weft::mbarrier_arrive(empty_1 + stage); }
      }
    }
    if (t == 0) weft::bulk_wait<0>();
  }
}
