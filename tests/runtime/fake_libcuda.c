/* A driver that drives nothing: it answers like libcuda and writes down what it is told. For tests without a GPU.
   Each launch logs its configuration and the first 8 bytes of every argument (128 from the argument `map_slot` on). */
#include <stddef.h>
#include <string.h>
typedef unsigned long long u64;
typedef unsigned u32;

struct attribute { u32 id, pad, value[16]; };
struct config { u32 grid[3], block[3], shared; void *stream; struct attribute *attributes; u32 count; };
struct launch { u32 grid[3], block[3], shared, count, ids[4], values[4][3]; u64 stream, function, context, args[32]; unsigned char map[128]; };

struct launch fake_launches[64];
int fake_launch_count, fake_arg_count, fake_map_slot = -1, fake_fail_next, fake_device_count = 2, fake_load_status, fake_blocks_per_sm = 2;
int fake_needs_context, fake_function_attributes[32], fake_attribute_sets, fake_capture_mode = 0, fake_load_capture_mode = -1;
u64 fake_context_stack[16]; int fake_context_depth, fake_current_context;
static int device_attributes[160] = {
  [1] = 1024, [10] = 32, [12] = 65536, [13] = 1980000, [16] = 132, [36] = 3201000, [37] = 6016, [38] = 62914560, [39] = 2048,
  [75] = 9, [76] = 0, [81] = 233472, [82] = 65536, [97] = 232448, [106] = 32, [120] = 1 };

int cuInit(u32 flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = fake_device_count; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i < fake_device_count ? 0 : 101; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "NVIDIA H200", n); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = device_attributes[a]; return 0; }
int cuGetErrorName(int e, const char **s) { *s = e == 200 ? "CUDA_ERROR_INVALID_IMAGE" : e == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_FAKE"; return 0; }
int cuGetErrorString(int e, const char **s) { *s = "a fake error"; return 0; }
int cuDevicePrimaryCtxRetain(u64 *c, int d) { *c = 0xc000 + d; return 0; }
int cuCtxPushCurrent_v2(u64 c) { fake_context_stack[fake_context_depth++] = c; return 0; }
int cuCtxPopCurrent_v2(u64 *c) { *c = fake_context_stack[--fake_context_depth]; return 0; }
int cuCtxGetCurrent(u64 *c) { *c = fake_context_depth ? fake_context_stack[fake_context_depth - 1] : fake_current_context; return 0; }
int cuThreadExchangeStreamCaptureMode(int *m) { int old = fake_capture_mode; fake_capture_mode = *m; *m = old; return 0; }
int cuModuleLoadData(u64 *m, const void *image) {
  fake_load_capture_mode = fake_capture_mode;
  *m = 0xabc; return fake_load_status ? fake_load_status : memcmp(image, "\x7f" "ELF", 4) ? 200 : 0; }
int fake_unloads, fake_sync_status;
int cuModuleUnload(u64 m) { fake_unloads++; return 0; }
int cuCtxSynchronize(void) { return fake_sync_status; }
int cuModuleGetFunction(u64 *f, u64 m, const char *name) { *f = 0xf00000001ull; return 0; }
int cuFuncGetAttribute(int *v, int a, u64 f) { *v = a == 0 ? 1024 : a == 4 ? 32 : fake_function_attributes[a]; return 0; }
int cuFuncSetAttribute(u64 f, int a, int v) { fake_function_attributes[a] = v; fake_attribute_sets++; return 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, u64 f, int threads, size_t shared) { *n = fake_blocks_per_sm; return 0; }
int cuOccupancyMaxActiveClusters(int *n, u64 f, const struct config *c) { *n = 4; return 0; }
int cuOccupancyMaxPotentialClusterSize(int *n, u64 f, const struct config *c) { *n = fake_function_attributes[14] ? 16 : 8; return 0; }
int cuTensorMapReplaceAddress(void *map, void *address) { if ((u64)address & 15) return 1; memcpy(map, &address, 8); return 0; }
int cuTensorMapEncodeTiled(void *map, int type, u32 rank, void *address, const u64 *dims, const u64 *strides, const u32 *box, const u32 *steps,
                           int interleave, int swizzle, int promotion, int fill) {
  if ((u64)map & 63 || box[0] > 256) return 1;
  memset(map, 0, 128); memcpy(map, &address, 8); ((u64 *)map)[1] = dims[0]; ((u64 *)map)[2] = rank > 1 ? strides[0] : 0; ((u64 *)map)[3] = box[0];
  ((u64 *)map)[4] = type; ((u64 *)map)[5] = swizzle; return 0; }
/* Graphs: what is launched while capturing becomes a node, whose arguments are copied then, and when its parameters are set. */
struct node { struct config c; u64 f, args[32]; };
struct node_params { u64 function; u32 grid[3], block[3], shared; void **params; void **extra; u64 kernel, context; };
static struct node fake_nodes[64];
int fake_node_count, fake_is_capturing, fake_graph_launches, fake_node_updates, fake_graph_status, fake_graphs_destroyed;
static void copy_args(struct node *n, void **params) { for (int i = 0; i < fake_arg_count && i < 32; i++) memcpy(&n->args[i], params[i], 8); }
int cuStreamCreate(u64 *s, u32 flags) { *s = 0x5757; return 0; }
int cuStreamBeginCapture_v2(u64 s, int mode) { fake_is_capturing = 1; fake_node_count = 0; return 0; }
int cuStreamEndCapture(u64 s, u64 *graph) { fake_is_capturing = 0; *graph = 0x6a; return 0; }
int cuStreamGetCaptureInfo_v3(u64 s, int *status, u64 *id, u64 *graph, u64 **nodes, void **edges, size_t *n) {
  static u64 last; last = fake_node_count; *nodes = &last; *n = 1; return 0; }
int cuGraphInstantiateWithFlags(u64 *exec, u64 graph, u64 flags) { *exec = 0x6e; return 0; }
int cuGraphDestroy(u64 graph) { return 0; }
int cuGraphExecDestroy(u64 exec) { fake_graphs_destroyed++; return 0; }
int cuGraphExecKernelNodeSetParams_v2(u64 exec, u64 node, const struct node_params *p) { fake_node_updates++; copy_args(&fake_nodes[node - 1], p->params); return 0; }
static void log_launch(const struct config *c, u64 f, u64 stream) {
  struct launch *to = &fake_launches[fake_launch_count++ % 64];
  memset(to, 0, sizeof *to);
  memcpy(to->grid, c->grid, 12); memcpy(to->block, c->block, 12);
  to->shared = c->shared; to->count = c->count; to->stream = stream; to->function = f; }
int cuGraphLaunch(u64 exec, u64 stream) {
  if (fake_graph_status) return fake_graph_status;
  fake_graph_launches++;
  for (int i = 0; i < fake_node_count; i++) {
    log_launch(&fake_nodes[i].c, fake_nodes[i].f, stream);
    memcpy(fake_launches[(fake_launch_count - 1) % 64].args, fake_nodes[i].args, 8 * 32); }
  return 0; }
int cuLaunchKernelEx(const struct config *c, u64 f, void **params, void **extra) {
  if (fake_is_capturing) { struct node *n = &fake_nodes[fake_node_count++]; n->c = *c; n->f = f; copy_args(n, params); return 0; }
  if (fake_fail_next) { int status = fake_fail_next; fake_fail_next = 0; return status; }
  if (fake_needs_context && !fake_context_depth) return 201;
  struct launch *to = &fake_launches[fake_launch_count++ % 64];
  memset(to, 0, sizeof *to);
  memcpy(to->grid, c->grid, 12); memcpy(to->block, c->block, 12);
  to->shared = c->shared; to->count = c->count; to->stream = (u64)c->stream; to->function = f;
  to->context = fake_context_depth ? fake_context_stack[fake_context_depth - 1] : 0;
  for (u32 i = 0; i < c->count && i < 4; i++) { to->ids[i] = c->attributes[i].id; memcpy(to->values[i], c->attributes[i].value, 12); }
  for (int i = 0; i < fake_arg_count && i < 32; i++) memcpy(&to->args[i], params[i], 8);
  if (fake_map_slot >= 0) memcpy(to->map, params[fake_map_slot], 128);
  return 0; }
