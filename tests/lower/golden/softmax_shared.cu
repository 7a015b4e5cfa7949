extern "C" __global__ void softmax_shared(
    const weft::bf16* __restrict__ T0,
    weft::bf16* __restrict__ T9,
    const int p0,  // ceildiv(T0.size[1], 128)
    const int p1,  // T0.size[1]
    const int p2,  // (ceildiv(T0.size[1], 128) * 768)
    const int p3,  // (ceildiv(T0.size[1], 128) * 256)
    const int p4) {  // ((ceildiv(T0.size[1], 128) * 768) + 128)
  unsigned char* const shared = weft::dynamic_shared();
  weft::bf16* const T10 = reinterpret_cast<weft::bf16*>(shared + 0);
  #pragma unroll 1
  for (int i8 = 0; i8 < p0; ++i8) {  // iS32{ceildiv(T0.size[1], 128)}
    if (((i8 * 128) + (int)threadIdx.x) < p1) {
      weft::store_shared(T10 + (i8 * 128) + (int)threadIdx.x, weft::load_global<weft::Cache::unspecified>(T0 + ((int)blockIdx.x * p1) + (i8 * 128) + (int)threadIdx.x));
    }
  }
  float T14 = -weft::infinity<float>();  // max
  #pragma unroll 1
  for (int i7 = 0; i7 < p0; ++i7) {  // iS30{ceildiv(T0.size[1], 128)}
    float T1;  // cast
    if (((i7 * 128) + (int)threadIdx.x) < p1) {
      T1 = weft::convert<float>(weft::load_shared(T10 + (i7 * 128) + (int)threadIdx.x));
      T14 = weft::maximum(T14, T1);
    }
  }
  float T2;  // max
  {
    float value[1];
    value[0] = T14;
    weft::reduce_rows<weft::Max, 1, false, true>(value, -weft::infinity<float>(), reinterpret_cast<float*>(shared + p2), 128u);
    T2 = value[0];
  }
  float* const T13 = reinterpret_cast<float*>(shared + p3);
  float T15 = 0.f;  // sum
  #pragma unroll 1
  for (int i5 = 0; i5 < p0; ++i5) {  // iS36{ceildiv(T0.size[1], 128)}
    float T12;  // cast
    float T4;  // sub
    float T5;  // exp
    if (((i5 * 128) + (int)threadIdx.x) < p1) {
      T12 = weft::convert<float>(weft::load_shared(T10 + (i5 * 128) + (int)threadIdx.x));
      T4 = (T12 - T2);
      T5 = weft::narrow_exp(T4);
      weft::store_shared(T13 + (i5 * 128) + (int)threadIdx.x, T5);
      T15 = (T15 + T5);
    }
  }
  float T6;  // sum
  {
    float value[1];
    value[0] = T15;
    weft::reduce_rows<weft::Sum, 1, false, true>(value, 0.f, reinterpret_cast<float*>(shared + p4), 128u);
    T6 = value[0];
  }
  #pragma unroll 1
  for (int i2 = 0; i2 < p0; ++i2) {  // iS48{ceildiv(T0.size[1], 128)}
    float T8;  // div
    weft::bf16 T11;  // cast
    if (((i2 * 128) + (int)threadIdx.x) < p1) {
      T8 = weft::narrow_div(weft::load_shared(T13 + (i2 * 128) + (int)threadIdx.x), T6);
      T11 = weft::convert<weft::bf16>(T8);
      weft::store_global<weft::Cache::unspecified>(T9 + ((int)blockIdx.x * p1) + (i2 * 128) + (int)threadIdx.x, T11);
    }
  }
}
