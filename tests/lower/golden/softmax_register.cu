extern "C" __global__ void softmax_register(
    const weft::bf16* __restrict__ T0,
    weft::bf16* __restrict__ T9,
    const int p0,  // ceildiv(ceildiv(T0.size[1], 8), 4)
    const int p1,  // ceildiv(T0.size[1], 8)
    const int p2,  // T0.size[1]
    const int p3,  // (ceildiv(ceildiv(T0.size[1], 8), 4) * 8)
    const int p4) {  // (ceildiv((ceildiv(ceildiv(ceildiv(T0.size[1], 8), 4), 32) * 4), 128) * 128)
  unsigned char* const shared = weft::dynamic_shared();
  weft::Array<float, 32> T1;  // cast
  #pragma unroll
  for (int i12 = 0; i12 < 4; ++i12) {  // iS38{4}
    weft::Array<weft::bf16, 8> T10;  // of T0
    if (((int)threadIdx.x < p0) && (((i12 * p0) + (int)threadIdx.x) < p1)) {
      weft::load_global_vector<8, weft::Cache::unspecified>(T10, 0, T0 + ((int)blockIdx.x * p2) + (i12 * p3) + ((int)threadIdx.x * 8));
      #pragma unroll
      for (int i13 = 0; i13 < 8; ++i13) {  // iS29{8}
        T1[(i12 * 8) + i13] = weft::convert<float>(T10[i13]);
      }
    }
  }
  float T12 = -weft::infinity<float>();  // max
  #pragma unroll
  for (int i10 = 0; i10 < 4; ++i10) {  // rS76{4}rf
    if (((int)threadIdx.x < p0) && (((i10 * p0) + (int)threadIdx.x) < p1)) {
      #pragma unroll
      for (int i11 = 0; i11 < 8; ++i11) {  // rS75{8}rf
        T12 = weft::maximum(T12, T1[(i10 * 8) + i11]);
      }
    }
  }
  float T2;  // max
  {
    float value[1];
    value[0] = (int)threadIdx.x < p0 ? T12 : -weft::infinity<float>();
    weft::reduce_rows<weft::Max, 1, false, true>(value, -weft::infinity<float>(), reinterpret_cast<float*>(shared + 0), blockDim.x);
    T2 = value[0];
  }
  weft::Array<float, 32> T5;  // exp
  #pragma unroll
  for (int i8 = 0; i8 < 4; ++i8) {  // iS34{4}
    if (((int)threadIdx.x < p0) && (((i8 * p0) + (int)threadIdx.x) < p1)) {
      #pragma unroll
      for (int i9 = 0; i9 < 8; ++i9) {  // iS33{8}
        float T4;  // sub
        T4 = (T1[(i8 * 8) + i9] - T2);
        T5[(i8 * 8) + i9] = weft::narrow_exp(T4);
      }
    }
  }
  float T13 = 0.f;  // sum
  #pragma unroll
  for (int i6 = 0; i6 < 4; ++i6) {  // rS83{4}rf
    if (((int)threadIdx.x < p0) && (((i6 * p0) + (int)threadIdx.x) < p1)) {
      #pragma unroll
      for (int i7 = 0; i7 < 8; ++i7) {  // rS82{8}rf
        T13 = (T13 + T5[(i6 * 8) + i7]);
      }
    }
  }
  float T6;  // sum
  {
    float value[1];
    value[0] = (int)threadIdx.x < p0 ? T13 : 0.f;
    weft::reduce_rows<weft::Sum, 1, false, true>(value, 0.f, reinterpret_cast<float*>(shared + p4), blockDim.x);
    T6 = value[0];
  }
  #pragma unroll
  for (int i2 = 0; i2 < 4; ++i2) {  // iS58{4}
    weft::Array<weft::bf16, 8> T11;  // cast
    if (((int)threadIdx.x < p0) && (((i2 * p0) + (int)threadIdx.x) < p1)) {
      #pragma unroll
      for (int i5 = 0; i5 < 8; ++i5) {  // iS57{8}
        float T8;  // div
        T8 = weft::narrow_div(T5[(i2 * 8) + i5], T6);
        T11[i5] = weft::convert<weft::bf16>(T8);
      }
      weft::store_global_vector<8, weft::Cache::unspecified>(T9 + ((int)blockIdx.x * p2) + (i2 * p3) + ((int)threadIdx.x * 8), T11, 0);
    }
  }
}
