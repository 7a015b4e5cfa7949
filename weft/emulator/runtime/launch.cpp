// One launch from start to end: set up, run under guard of signals and a timer, check what is left, take down.
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <ucontext.h>
#endif
#include "grids.h"
#include "machine.h"
#include "memory.h"
#include "report.h"
#include "shadow.h"
#include "trace.h"

namespace weft_rt {

// ---- faults and timeouts ------------------------------------------------------------------------------------------

static sigjmp_buf escape;
static struct sigaction old_segv, old_bus, old_alarm, old_interrupt;
static const int ALARM = SIGUSR2;

static u64 program_counter(void* context) {
#if defined(__linux__) && defined(__x86_64__)
  return (u64)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__linux__) && defined(__aarch64__)
  return (u64)((ucontext_t*)context)->uc_mcontext.pc;
#else
  (void)context;
  return 0;
#endif
}

static bool in_kernel(void* context) {
  for (u32 g = 0; g < machine.grid_count; g++)
    if (program_counter(context) - machine.grids[g].kernel_first < machine.grids[g].kernel_bytes) return true;
  return false;
}

static void on_fault(int signal, siginfo_t* info, void* context) {
  if (!machine.running || !machine.current || !in_kernel(context)) {  // not ours: let it happen again, unguarded
    sigaction(signal, signal == SIGSEGV ? &old_segv : &old_bus, nullptr);
    return;
  }
  const Fiber* f = machine.current;
  const u64 address = (u64)info->si_addr, lowest = (u64)f->stack_top - (u64)machine.config.stack_kib * 1024;
  if (address - (lowest - 4096) < 4 * 4096)
    REPORT("stack-overflow", 0, 0, "raise stack_kib of the launch", "%s needs more than %u KiB of stack", describe_fiber(f),
           machine.config.stack_kib);
  else
    REPORT("memory-fault", 0, 0, "use load_global/store_global and their like, which check each access",
           "%s touches address 0x%llx, which is no memory (%s)", describe_fiber(f), (unsigned long long)address, describe_address(address));
  machine.aborted = true;
  siglongjmp(escape, 1);
}

// Only the kernel's own code is interrupted: the runtime may be inside malloc. It notices `timed_out` at the next switch.
static void on_alarm(int, siginfo_t*, void* context) {
  if (!machine.running) return;
  machine.timed_out = 1;
  if (!machine.current || !in_kernel(context)) return;
  machine.aborted = true;
  siglongjmp(escape, 1);
}

#if defined(__linux__)
static timer_t timer;
static bool have_timer = false;

static void set_timer(u64 first_ms, u64 repeat_ms) {
  struct itimerspec t = {{(time_t)(repeat_ms / 1000), (long)(repeat_ms % 1000) * 1000000},
                         {(time_t)(first_ms / 1000), (long)(first_ms % 1000) * 1000000}};
  if (have_timer) timer_settime(timer, 0, &t, nullptr);
}
static void make_timer() {
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = ALARM;
#if defined(sigev_notify_thread_id)
  event.sigev_notify_thread_id = (int)syscall(SYS_gettid);
#else
  event._sigev_un._tid = (int)syscall(SYS_gettid);
#endif
  have_timer = timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
}
static void drop_timer() {
  if (have_timer) timer_delete(timer);
}
#else
static void make_timer() {}
static void set_timer(u64, u64) {}
static void drop_timer() {}
#endif

// Ctrl-C ends the launch, and is the interpreter's after that.
static void on_interrupt(int signal, siginfo_t* info, void* context) {
  machine.interrupted = machine.timed_out = 1;
  set_timer(1, 20);
  if (old_interrupt.sa_flags & SA_SIGINFO)
    old_interrupt.sa_sigaction(signal, info, context);
  else if (old_interrupt.sa_handler != SIG_DFL && old_interrupt.sa_handler != SIG_IGN)
    old_interrupt.sa_handler(signal);
}

static const u64 SIGNAL_STACK_BYTES = 64 * 1024;
static stack_t old_signal_stack;
static char* signal_stack = nullptr;

static void install_guards() {
  if (!signal_stack) signal_stack = (char*)malloc(SIGNAL_STACK_BYTES);
  stack_t stack = {};
  stack.ss_sp = signal_stack;
  stack.ss_size = SIGNAL_STACK_BYTES;
  sigaltstack(&stack, &old_signal_stack);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  action.sa_sigaction = on_fault;
  sigaction(SIGSEGV, &action, &old_segv);
  sigaction(SIGBUS, &action, &old_bus);
  action.sa_sigaction = on_alarm;
  sigaction(ALARM, &action, &old_alarm);
  action.sa_sigaction = on_interrupt;
  sigaction(SIGINT, &action, &old_interrupt);
  make_timer();
  if (machine.config.timeout_ms) set_timer(machine.config.timeout_ms, 20);
}

static void remove_guards() {
  drop_timer();
  sigaction(SIGSEGV, &old_segv, nullptr);
  sigaction(SIGBUS, &old_bus, nullptr);
  sigaction(ALARM, &old_alarm, nullptr);
  sigaction(SIGINT, &old_interrupt, nullptr);
  sigaltstack(&old_signal_stack, nullptr);
}

static COLD void report_timeout() {
  if (machine.interrupted) return;  // Python raises KeyboardInterrupt
  const Fiber* f = machine.current ? machine.current : machine.last_running;
  if (f)
    REPORT("timeout", f->line, 0, "look for a loop that cannot end, or raise timeout_s", "still running after %u ms; %s has not waited %s",
           machine.config.timeout_ms, describe_fiber(f), f->line ? format_text("since line %d", f->line) : "at all");
  else
    REPORT("timeout", 0, 0, "run fewer blocks, or raise timeout_s", "still running after %u ms, with %u of %u clusters started",
           machine.config.timeout_ms, machine.grid->next_unit, machine.grid->unit_order.count);
}

// ---- setting up and taking down -----------------------------------------------------------------------------------

// Finished units are kept for the next launch of the same shape: their memory is already mapped.
static bool same_shape(const Shape& a, const Shape& b, const Config& of_a, const Config& of_b) {
  return !memcmp(a.block, b.block, sizeof a.block) && !memcmp(a.cluster, b.cluster, sizeof a.cluster) && a.shared_bytes == b.shared_bytes &&
         a.shared_capacity_bytes == b.shared_capacity_bytes && of_a.check_races == of_b.check_races && of_a.stack_kib == of_b.stack_kib &&
         a.uses_cp_async == b.uses_cp_async;
}

static void find_kernel_code(Grid* grid) {
  Dl_info info;
  grid->kernel_first = grid->kernel_bytes = 0;
  if (!dladdr((void*)grid->entry, &info)) return;
  grid->kernel_first = (u64)info.dli_fbase;
  grid->kernel_bytes = 8u << 20;
}

static void set_up_grid(Grid* grid, u32 first_unit) {
  const Shape& shape = *grid;
  grid->block_threads = shape.block[0] * shape.block[1] * shape.block[2];
  grid->warps_per_block = (grid->block_threads + WARP_THREADS - 1) / WARP_THREADS;
  grid->unit_blocks = shape.cluster[0] * shape.cluster[1] * shape.cluster[2];
  grid->unit_count = shape.grid[0] / shape.cluster[0] * (shape.grid[1] / shape.cluster[1]) * (shape.grid[2] / shape.cluster[2]);
  grid->first_unit = first_unit;
  grid->next_unit = 0;
  machine.unit_threads = max_of(machine.unit_threads, grid->unit_blocks * grid->block_threads);
  machine.uses_cp_async |= shape.uses_cp_async != 0;
  find_kernel_code(grid);
}

static void set_up(const Config* config, u32 grid_count) {
  machine.config = *config;
  machine.grid_count = grid_count;
  machine.current = nullptr;
  machine.aborted = false;
  machine.timed_out = machine.interrupted = 0;
  machine.last_running = nullptr;
  machine.tick = machine.events = machine.switches = machine.sync_points = 0;
  memset(machine.sync_order, 0, sizeof machine.sync_order);
  machine.random.seed(config->seed);
  clear_findings();
  clear_trace();
  machine.unit_threads = 0;
  machine.uses_cp_async = false;
  for (u32 g = 0; g < grid_count; g++) set_up_grid(&machine.grids[g], g ? machine.grids[g - 1].first_unit + machine.grids[g - 1].unit_count : 0);
  use_grid(&machine.grids[0]);
  const u32 threads = machine.unit_threads;
  if (config->check_races) clocks.start(threads + COPY_SLOTS + (machine.uses_cp_async ? threads : 0));
  start_overlap();
}

static void check_outputs(Grid* grid) {
  use_grid(grid);
  for (Buffer& b : grid->buffers) {
    if (!b.shadow || b.shadow->initialised || b.workspace) continue;
    u64 first = 0, count = shadow_unwritten(b.shadow, b.first, b.bytes, &first);
    if (count)
      REPORT("output-not-written", 0, 0, "cover the whole output, or register it as initialised when the kernel writes only part of it",
             "%llu of the %llu bytes of '%s' were never written, the first at offset %llu", (unsigned long long)count, (unsigned long long)b.bytes,
             b.name, (unsigned long long)(first - b.first));
  }
}

// Finished units whose memory stays mapped for the next launch; a launch of many resident blocks gives most of it back.
static const u32 KEPT_UNITS = 16;

static void take_down() {
  drop_copies();
  for (Unit* unit : machine.resident) retire_unit(unit);
  machine.resident.clear();
  machine.polling.clear();
  end_overlap();
  for (Shadow* shadow : machine.shadows) {
    reset_shadow(shadow);
    free_shadow(shadow);
  }
  machine.shadows.clear();
  for (u32 g = 0; g < machine.grid_count; g++) {
    Grid* grid = &machine.grids[g];
    for (Unit* unit : grid->pool)
      for (u32 i = 0; i < unit->block_count; i++) reset_shadow(unit->blocks[i]->shadow);
    grid->buffers.clear();
    grid->unit_order.clear();
  }
  release_shadow_pools();
  shrink_pool(&machine.grids[0], KEPT_UNITS);
  if (machine.grid_count > 1) shrink_pool(&machine.grids[1], 0);
  drop_sync_variables();
  clocks.forget_memos();
}

static void run_guarded() {
  install_guards();
  machine.running = true;
  if (sigsetjmp(escape, 1) == 0) run_all();
  machine.running = false;
  if (machine.timed_out) report_timeout();
  machine.current = nullptr;
  remove_guards();
}

}  // namespace weft_rt

using namespace weft_rt;

struct BufferArgument {
  u64 address, bytes;
  const char* name;
  u32 written, initialised, workspace, constant;
};
// Filled by native.py, as are Config and Shape.
struct GridArgument {
  void (*entry)(void**);
  void** arguments;
  const char* name;
  const BufferArgument* buffers;
  const unsigned* order;         // the units that run
  const u64* shared_tensors;     // bytes of each
  u32 buffer_count, order_count, shared_tensor_count;
  u32 complete;                  // the units are all of the grid, so outputs must be covered
  Shape shape;
};
struct Statistics {
  u64 switches, joins, findings, sync_points, order;
};

static void take_grid(Grid* grid, const GridArgument& given, u32 number, const Config& config) {
  if (!same_shape(*grid, given.shape, machine.config, config)) {
    if (grid->pool.count) shrink_pool(grid, 0);
  }
  *(Shape*)grid = given.shape;
  grid->number = number;
  grid->name = given.name;
  grid->entry = given.entry;
  grid->arguments = given.arguments;
  grid->shared_tensors = given.shared_tensors;
  grid->shared_tensor_count = given.shared_tensor_count;
  for (u32 i = 0; i < given.buffer_count; i++) {
    const BufferArgument& a = given.buffers[i];
    grid->buffers.push(Buffer{a.address, a.bytes, a.name, a.written != 0, a.initialised != 0, a.workspace != 0, a.constant != 0, nullptr});
  }
  for (u32 i = 0; i < given.order_count; i++) grid->unit_order.push(given.order[i]);
}

// A launch's buffers have a shadow each, where it is needed.
static void make_shadows(Grid* grid) {
  for (Buffer& b : grid->buffers)
    if (b.written || !b.initialised) {
      b.shadow = make_shadow(b.first, b.bytes, b.initialised);
      machine.shadows.push(b.shadow);
    }
}

// Runs one grid, or two of which the second may start before the first has ended. Returns the number of findings.
EXPORT int weft_rt_launch(const GridArgument* grids, unsigned grid_count, const Config* config, Statistics* statistics) {
  for (u32 g = 0; g < grid_count; g++) take_grid(&machine.grids[g], grids[g], g, *config);
  set_up(config, grid_count);
  if (grid_count > 1)
    share_shadows();
  else
    make_shadows(&machine.grids[0]);
  clocks.joins = 0;
  run_guarded();
  machine.current_block = nullptr;
  for (u32 g = 0; g < grid_count; g++)
    if (grids[g].complete && !machine.aborted && !machine.timed_out) check_outputs(&machine.grids[g]);
  take_down();
  u64 met = 0;
  for (u64 one : machine.sync_order) met = (met ^ one) * 0x9E3779B97F4A7C15ull;
  *statistics = {machine.switches, clocks.joins, finding_count(), machine.sync_points, met};
  return (int)finding_count();
}
EXPORT int weft_rt_abi_version() { return WEFT_ABI_VERSION; }
