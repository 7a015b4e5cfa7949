extern "C" __global__ void column_sum(
    const float* __restrict__ T0,
    float* __restrict__ T1,
    float* partials_T3,
    int* semaphores_T3,
    const int p0,  // ceildiv(ceildiv(T0.size[0], 16), 4)
    const int p1,  // (ceildiv(ceildiv(T0.size[0], 16), 4) * 16)
    const int p2,  // T0.size[0]
    const int p3,  // T0.size[1]
    const int p4,  // (T0.size[1] * ceildiv(ceildiv(T0.size[0], 16), 4) * 16)
    const int p5) {  // (T0.size[1] * 16)
  unsigned char* const shared = weft::dynamic_shared();
  bool last_T3 = false;
  float T4 = 0.f;  // sum
  float T3;  // sum
  #pragma unroll 1
  for (int i5 = 0; i5 < p0; ++i5) {  // iS27{ceildiv(ceildiv(T0.size[0], 16), 4)}
    float T2;  // of T0
    if (((((int)blockIdx.y * p1) + (i5 * 16) + (int)threadIdx.y) < p2) && ((((int)blockIdx.x * 32) + (int)threadIdx.x) < p3)) {
      T2 = weft::load_global<weft::Cache::unspecified>(T0 + ((int)blockIdx.y * p4) + (i5 * p5) + ((int)threadIdx.y * p3) + ((int)blockIdx.x * 32) + (int)threadIdx.x);
      T4 = (T4 + T2);
    }
  }
  {
    float value[1];
    value[0] = (((int)blockIdx.x * 32) + (int)threadIdx.x) < p3 ? T4 : 0.f;
    #pragma unroll 1
    for (int round = 0; round < 2; ++round) {
      if (round == 1) {
        last_T3 = weft::arrive_grid<1>(value, partials_T3, semaphores_T3, reinterpret_cast<int*>(reinterpret_cast<float*>(shared + 0)), blockIdx.x, blockIdx.y, gridDim.y, threadIdx.x, blockDim.x, threadIdx.y == 0);
        if (!last_T3) break;
        weft::fold_partials<weft::Sum, 1>(value, 0.f, partials_T3, blockIdx.x, gridDim.y, threadIdx.x, blockDim.x, threadIdx.y, blockDim.y);
      }
      weft::reduce_tree<weft::Sum, 1, false, true, false, 32, 16, 1>(value, reinterpret_cast<float*>(shared + 0));
    }
    T3 = value[0];
  }
  if (((((int)blockIdx.x * 32) + (int)threadIdx.x) < p3) && ((int)threadIdx.y == 0) && last_T3) {
    weft::store_global<weft::Cache::unspecified>(T1 + ((int)blockIdx.x * 32) + (int)threadIdx.x, T3);
  }
}
