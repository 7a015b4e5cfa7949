extern "C" __global__ void __launch_bounds__(384, 1) pipeline(
    const weft::bf16* __restrict__ T0,
    const weft::bf16* __restrict__ T1,
    weft::bf16* __restrict__ T10,
    const int p0,  // (ceildiv((T0.size[1] * 12), 128) * 128)
    const int p1,  // (ceildiv((T0.size[1] * 12), 128) * 256)
    const int p2,  // ((ceildiv((T0.size[1] * 12), 128) * 256) + (ceildiv((ceildiv(T0.size[1], 8) * 32), 128) * 128) + 128)
    const int p3,  // ((ceildiv((T0.size[1] * 12), 128) * 256) + (ceildiv((ceildiv(T0.size[1], 8) * 32), 128) * 128) + 256)
    const int p4,  // ((ceildiv((T0.size[1] * 12), 128) * 256) + (ceildiv((ceildiv(T0.size[1], 8) * 32), 128) * 128) + 384)
    const int p5,  // ((ceildiv((T0.size[1] * 12), 128) * 256) + (ceildiv((ceildiv(T0.size[1], 8) * 32), 128) * 128) + 512)
    const int p6,  // ceildiv(ceildiv(T0.size[0], 2), 2)
    const int p7,  // T0.size[0]
    const int p8,  // (T0.size[1] * 2)
    const int p9,  // T0.size[1]
    const int p10,  // (T0.size[1] * 4)
    const int p11,  // ceildiv(T0.size[1], 8)
    const int p12,  // ((ceildiv((T0.size[1] * 12), 128) * 256) + (ceildiv((ceildiv(T0.size[1], 8) * 32), 128) * 128))
    const int p13) {  // (ceildiv(T0.size[1], 8) * 8)
  unsigned char* const shared = weft::dynamic_shared();
  weft::bf16* const T11 = reinterpret_cast<weft::bf16*>(shared + 0);
  weft::bf16* const T12 = reinterpret_cast<weft::bf16*>(shared + p0);
  weft::bf16* const T15 = reinterpret_cast<weft::bf16*>(shared + p1);
  unsigned long long* const full_0 = reinterpret_cast<unsigned long long*>(shared + p2);
  unsigned long long* const empty_0 = reinterpret_cast<unsigned long long*>(shared + p3);
  unsigned long long* const full_1 = reinterpret_cast<unsigned long long*>(shared + p4);
  unsigned long long* const empty_1 = reinterpret_cast<unsigned long long*>(shared + p5);
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    for (int stage = 0; stage < 6; ++stage) weft::mbarrier_init(full_0 + stage, 1);
    WEFT_NAME(full_0, 48, "full_0");
    for (int stage = 0; stage < 6; ++stage) weft::mbarrier_init(empty_0 + stage, 128);
    WEFT_NAME(empty_0, 48, "empty_0");
    for (int stage = 0; stage < 6; ++stage) weft::mbarrier_init(full_1 + stage, 1);
    WEFT_NAME(full_1, 48, "full_1");
    for (int stage = 0; stage < 6; ++stage) weft::mbarrier_init(empty_1 + stage, 128);
    WEFT_NAME(empty_1, 48, "empty_1");
    weft::fence_mbarrier_init();
  }
  weft::block_sync();  // the barriers are initialised
  if (threadIdx.y >= 2) {
    weft::setmaxnreg_dec<40>();
    const unsigned async_thread = threadIdx.x;
    if (async_thread / 32 == 0) {
      WEFT_ROLE("load T11");
      if (weft::elect()) {
        #pragma unroll 1
        for (int i1 = 0; i1 < p6; ++i1) {  // iS88{ceildiv(ceildiv(T0.size[0], 2), 2)}
          #pragma unroll 1
          for (int i20 = 0; i20 < 2; ++i20) {  // iS87{2}
            {
              const int stage_0 = ((i1 % 3) * 2) + i20;
              weft::mbarrier_wait_phase(empty_0 + stage_0, (i1 / 3) + -1);  // a stage for T11
              weft::fence_proxy_async_shared();  // after what has been read there
              weft::mbarrier_arrive_expect_tx(full_0 + stage_0, ((((int)blockIdx.x * 2) + (i1 * 4) + i20) < p7 ? p8 : 0));
              if ((((int)blockIdx.x * 2) + (i1 * 4) + i20) < p7) {
                weft::bulk_load(T11 + stage_0 * p9, T0 + ((int)blockIdx.x * p8) + (i1 * p10) + (i20 * p9), p8, full_0 + stage_0);
              }
            }
          }
        }
      }
    }
    else if (async_thread / 32 == 1) {
      WEFT_ROLE("load T12");
      if (weft::elect()) {
        #pragma unroll 1
        for (int i1 = 0; i1 < p6; ++i1) {  // iS88{ceildiv(ceildiv(T0.size[0], 2), 2)}
          #pragma unroll 1
          for (int i16 = 0; i16 < 2; ++i16) {  // iS91{2}
            {
              const int stage_1 = ((i1 % 3) * 2) + i16;
              weft::mbarrier_wait_phase(empty_1 + stage_1, (i1 / 3) + -1);  // a stage for T12
              weft::fence_proxy_async_shared();  // after what has been read there
              weft::mbarrier_arrive_expect_tx(full_1 + stage_1, ((((int)blockIdx.x * 2) + (i1 * 4) + i16) < p7 ? p8 : 0));
              if ((((int)blockIdx.x * 2) + (i1 * 4) + i16) < p7) {
                weft::bulk_load(T12 + stage_1 * p9, T1 + ((int)blockIdx.x * p8) + (i1 * p10) + (i16 * p9), p8, full_1 + stage_1);
              }
            }
          }
        }
      }
    }
  }
  else {
    WEFT_ROLE("compute");
    weft::setmaxnreg_inc<232>();
    #pragma unroll 1
    for (int i1 = 0; i1 < p6; ++i1) {  // iS88{ceildiv(ceildiv(T0.size[0], 2), 2)}
      weft::Array<weft::bf16, 8> T13;  // of T11
      weft::Array<weft::bf16, 8> T14;  // of T12
      weft::Array<float, 8> T5;  // mul
      float T17 = 0.f;  // sum
      float T7;  // sum
      weft::Array<weft::bf16, 8> T16;  // cast
      const int stage_0 = ((i1 % 3) * 2) + (int)threadIdx.y;
      weft::mbarrier_wait_phase(full_0 + stage_0, i1 / 3);  // T11 loaded
      if (((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x < p11)) {
        weft::load_shared_vector<8>(T13, 0, T11 + (stage_0 * p9) + ((int)threadIdx.x * 8));
      }
      weft::release_stage(empty_0 + stage_0);  // T11 read
      const int stage_1 = ((i1 % 3) * 2) + (int)threadIdx.y;
      weft::mbarrier_wait_phase(full_1 + stage_1, i1 / 3);  // T12 loaded
      if (((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x < p11)) {
        weft::load_shared_vector<8>(T14, 0, T12 + (stage_1 * p9) + ((int)threadIdx.x * 8));
      }
      weft::release_stage(empty_1 + stage_1);  // T12 read
      if (((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x < p11)) {
        #pragma unroll
        for (int i13 = 0; i13 < 8; ++i13) {  // iS134{8}
          float T2;  // cast
          float T3;  // cast
          float T4;  // add
          T2 = weft::convert<float>(T13[i13]);
          T3 = weft::convert<float>(T14[i13]);
          T4 = (T2 + T3);
          T5[i13] = (T4 * 0.5f);
        }
        #pragma unroll
        for (int i11 = 0; i11 < 8; ++i11) {  // iS118{8}
          float T6;  // mul
          T6 = (T5[i11] * T5[i11]);
          T17 = (T17 + T6);
        }
      }
      if (threadIdx.x == 0) weft::bulk_wait_read<0>();  // the last store has read T15
      {
        float value[1];
        value[0] = ((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x < p11) ? T17 : 0.f;
        weft::reduce_group<weft::Sum, 1, 128>(value, reinterpret_cast<float*>(shared + p12) + ((i1 % 2) * 8) + ((int)threadIdx.y * 4), (int)threadIdx.x, 1 + (int)threadIdx.y);
        T7 = value[0];
      }
      if (((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x < p11)) {
        #pragma unroll
        for (int i9 = 0; i9 < 8; ++i9) {  // iS130{8}
          float T9;  // mul
          T9 = (T5[i9] * T7);
          T16[i9] = weft::convert<weft::bf16>(T9);
        }
        weft::store_shared_vector<8>(T15 + ((int)threadIdx.y * p13) + ((int)threadIdx.x * 8), T16, 0);
      }
      weft::fence_proxy_async_shared();
      weft::named_sync(1 + (int)threadIdx.y, 128);  // T15: written by threads, stored in bulk
      if (((((int)blockIdx.x * 2) + (i1 * 4) + (int)threadIdx.y) < p7) && ((int)threadIdx.x == 0)) {
        weft::bulk_store(T10 + ((int)blockIdx.x * p8) + (i1 * p10) + ((int)threadIdx.y * p9), T15 + (int)threadIdx.y * p13, p8);
        weft::bulk_commit();
      }
    }
    if (threadIdx.x == 0) weft::bulk_wait<0>();
  }
}
