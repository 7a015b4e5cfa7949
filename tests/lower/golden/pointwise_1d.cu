extern "C" __global__ void pointwise_1d(
    const float* __restrict__ T0,
    const float* __restrict__ T1,
    float* __restrict__ T4,
    const int p0) {  // (T0.size[0] * 16)
  weft::Array<float, 4> T5;  // of T0
  weft::Array<float, 4> T7;  // relu
  if ((((int)blockIdx.x * 128) + (int)threadIdx.x) < p0) {
    weft::load_global_vector<4, weft::Cache::unspecified>(T5, 0, T0 + ((int)blockIdx.x * 512) + ((int)threadIdx.x * 4));
    #pragma unroll
    for (int i4 = 0; i4 < 4; ++i4) {  // iS26{4}
      float T6;  // of T1
      float T3;  // add
      T6 = weft::load_global<weft::Cache::unspecified>(T1 + (((int)threadIdx.x * 4) + i4) % 64);
      T3 = (T5[i4] + T6);
      T7[i4] = weft::relu(T3);
    }
    weft::store_global_vector<4, weft::Cache::unspecified>(T4 + ((int)blockIdx.x * 512) + ((int)threadIdx.x * 4), T7, 0);
  }
}
