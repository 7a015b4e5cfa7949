// Clusters of 16 blocks under synccheck, without weft: is an illegal access ours or the tool's?
//     nvcc -arch=sm_90a -o control synccheck_control.cu && compute-sanitizer --tool synccheck ./control 16 31 4096 128 8
// Arguments: blocks of a cluster; features (1 barrier of the cluster in each turn, 2 remote stores and arrivals, 4 a meeting of the grid under a cooperative launch,
// 8 barriers of the block, 16 clusters along y); bytes of dynamic shared memory; threads; clusters.
#include <cuda_runtime.h>
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>
__device__ unsigned rank_() { unsigned v; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(v)); return v; }
__device__ unsigned addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ unsigned remote(unsigned a, unsigned r) { unsigned v; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(r)); return v; }
__global__ void k(float* out, int* meet, int n, int features, int turns) {
  extern __shared__ float big[];
  __shared__ unsigned long long bar[2];
  __shared__ float in[2][16 * 32];
  unsigned r = rank_(), t = threadIdx.x, lane = t % 32, warp = t / 32, warps = blockDim.x / 32;
  if (t == 0) { for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(addr(&bar[i])), "r"(n * warps)); asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  big[t] = t;
#ifdef HEAVY  // many registers live across the loop
  float heavy[120];
  for (int i = 0; i < 120; i++) heavy[i] = out ? t * 0.5f + i : 0;
#pragma unroll 1
  for (int j = 0; j < turns; j++)
#pragma unroll
    for (int i = 0; i < 120; i++) heavy[i] = heavy[i] * 1.0001f + heavy[(i + 7) % 120];
#endif
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  float sum = t + 1.0f;
  for (int i = 0; i < turns; i++) {
    if (features & 1) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
    if (features & 2) {
      if (lane < n) {
        asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote(addr(&in[i % 2][r * warps + warp]), lane)), "f"(sum) : "memory");
      }
      __syncwarp();
      if (lane < n) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote(addr(&bar[i % 2]), lane)) : "memory");
      unsigned done; do { asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(addr(&bar[i % 2])), "r"((i / 2) & 1) : "memory"); } while (!done);
      float s = 0; for (int e = 0; e < n * warps; e++) s += in[i % 2][e]; sum = s * 0.001f + t;
    }
    if (features & 8) __syncthreads();
  }
#ifdef HEAVY
#pragma unroll
  for (int i = 0; i < 120; i++) sum += heavy[i];
#endif
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + t] = sum + big[t];
  if (features & 4) {
    __syncthreads();
    if (t == 0) { __threadfence(); int all = gridDim.x * gridDim.y; atomicAdd(meet, 1); while (atomicAdd(meet, 0) < all) {} __threadfence(); }
    __syncthreads();
    out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + t] += out[(((blockIdx.y * gridDim.x + blockIdx.x) + 1) % (gridDim.x * gridDim.y)) * blockDim.x + t] * 0;
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
int main(int c, char** v) {
  int n = atoi(v[1]), features = atoi(v[2]), bytes = atoi(v[3]), threads = atoi(v[4]), clusters = atoi(v[5]);
  float* out; int* meet; cudaMalloc(&out, 4 * n * clusters * threads); cudaMalloc(&meet, 4); cudaMemset(meet, 0, 4);
  cudaFuncSetAttribute(k, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  cudaLaunchConfig_t g = {}; g.gridDim = features & 16 ? dim3(n, clusters) : dim3(n * clusters); g.blockDim = dim3(threads); g.dynamicSmemBytes = bytes;
  cudaLaunchAttribute a[2]; a[0].id = cudaLaunchAttributeClusterDimension; a[0].val.clusterDim.x = n; a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
  a[1].id = cudaLaunchAttributeCooperative; a[1].val.cooperative = 1; g.attrs = a; g.numAttrs = features & 4 ? 2 : 1;
  int most = -1; cudaOccupancyMaxActiveClusters(&most, k, &g);
  cudaError_t e1 = cudaLaunchKernelEx(&g, k, out, meet, n, features, 7);
  cudaError_t e2 = cudaDeviceSynchronize();
  printf("cluster %d features %d shared %d threads %d clusters %d (of %d at once): launch %s, run %s\n", n, features, bytes, threads, clusters, most, cudaGetErrorName(e1), cudaGetErrorName(e2));
}
