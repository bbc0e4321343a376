/* Blocks and fibers: see machine.h. A fiber is entered once through a context of its own; from then on
 * control moves by the compiler's light jumps, which cost no system call. */
#include "machine.h"
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <set>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

MachineThread machine_thread;
unsigned char *machine_shared;

namespace {

constexpr size_t stack_bytes = 256 * 1024;
constexpr int most_threads = 1024;
constexpr size_t most_shared_bytes = 227 * 1024;

enum FiberState { FIBER_ENDED = 0, FIBER_READY, FIBER_AT_BARRIER, FIBER_AT_COLLECTIVE };

struct Fiber {
  void *jump[5]; /* where it goes on */
  bool entered;
  FiberState state;
  MachineThread thread;
  unsigned mask; /* of the collective it waits at */
  const void *value;
  size_t bytes;
  void *all;
  unsigned char *stack;
};

Fiber fibers[most_threads];
int fiber_count; /* of the block that runs */
Fiber *running;
void *scheduler_jump[5];
ucontext_t fiber_context;
const std::function<void()> *thread_function;
void (*kernel_key)();
bool lanes_backwards, warps_backwards;
std::set<void (*)()> *seen;

[[noreturn]] void stop(const char *what) {
  Dl_info info;
  const char *module = dladdr(reinterpret_cast<void *>(kernel_key), &info) ? info.dli_fname : "?";
  fprintf(stderr, "host machine: %s, in block (%u,%u,%u), thread (%u,%u,%u) of the kernel at %p of %s\n",
          what, machine_thread.block.x, machine_thread.block.y, machine_thread.block.z,
          machine_thread.thread.x, machine_thread.thread.y, machine_thread.thread.z,
          reinterpret_cast<void *>(kernel_key), module);
  abort();
}

#if defined(__SANITIZE_ADDRESS__)
void *scheduler_fake;
const void *scheduler_bottom;
size_t scheduler_size;
void leave_for_fiber(Fiber *fiber) {
  __sanitizer_start_switch_fiber(&scheduler_fake, fiber->stack, stack_bytes);
}
void back_in_scheduler() { __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr); }
void leave_for_scheduler(void **fake) {
  __sanitizer_start_switch_fiber(fake, scheduler_bottom, scheduler_size);
}
void back_in_fiber(void *fake) { __sanitizer_finish_switch_fiber(fake, &scheduler_bottom, &scheduler_size); }
#else
void leave_for_fiber(Fiber *) {}
void back_in_scheduler() {}
void leave_for_scheduler(void **) {}
void back_in_fiber(void *) {}
#endif

__attribute__((noinline)) void jump_to(void **place) { __builtin_longjmp(place, 1); }

/* From a fiber to the scheduler, and back when its turn comes. */
__attribute__((noinline)) void yield() {
  Fiber *self = running;
  void *fake = nullptr;
  if (__builtin_setjmp(self->jump) == 0) {
    leave_for_scheduler(&fake);
    jump_to(scheduler_jump);
  }
  back_in_fiber(fake);
}

void fiber_main() {
  back_in_fiber(nullptr);
  for (;;) {
    (*thread_function)();
    running->state = FIBER_ENDED;
    yield();
  }
}

void prepare_stack(Fiber *fiber) {
  fiber->stack = static_cast<unsigned char *>(
      mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0));
  if (fiber->stack == MAP_FAILED) stop("no memory for a thread's stack");
}

__attribute__((noinline)) void enter(Fiber *fiber) {
  if (!fiber->stack) prepare_stack(fiber);
  getcontext(&fiber_context);
  fiber_context.uc_stack.ss_sp = fiber->stack;
  fiber_context.uc_stack.ss_size = stack_bytes;
  fiber_context.uc_link = nullptr;
  makecontext(&fiber_context, fiber_main, 0);
  fiber->entered = true;
  setcontext(&fiber_context);
}

__attribute__((noinline)) void run(Fiber *fiber) {
  running = fiber;
  machine_thread = fiber->thread;
  if (__builtin_setjmp(scheduler_jump) == 0) {
    leave_for_fiber(fiber);
    if (fiber->entered)
      jump_to(fiber->jump);
    else
      enter(fiber);
  }
  back_in_scheduler();
}

/* Lets the collective of the warp that begins at `first` happen if its lanes are all there; a warp may be at
 * several, of different lanes. */
bool finish_collectives(int first) {
  bool any = false;
  for (int i = 0; i < 32 && first + i < fiber_count; i++) {
    Fiber *at = &fibers[first + i];
    if (at->state != FIBER_AT_COLLECTIVE) continue;
    bool complete = true;
    for (int k = 0; k < 32; k++) {
      if (!(at->mask >> k & 1U)) continue;
      machine_thread = at->thread;
      if (first + k >= fiber_count) stop("a warp collective names lanes that the block does not have");
      const Fiber *other = &fibers[first + k];
      if (other->state == FIBER_ENDED) stop("a warp collective names a lane whose thread has ended");
      complete = complete && other->state == FIBER_AT_COLLECTIVE && other->mask == at->mask;
    }
    if (!complete) continue;
    unsigned mask = at->mask;
    for (int k = 0; k < 32; k++)
      if ((mask >> k & 1U) && fibers[first + k].bytes != at->bytes)
        stop("lanes are at different collectives");
    for (int to = 0; to < 32; to++) {
      if (!(mask >> to & 1U)) continue;
      for (int from = 0; from < 32; from++)
        if (mask >> from & 1U)
          memcpy(static_cast<char *>(fibers[first + to].all) + (size_t)from * at->bytes,
                 fibers[first + from].value, at->bytes);
    }
    for (int k = 0; k < 32; k++)
      if (mask >> k & 1U) fibers[first + k].state = FIBER_READY;
    any = true;
  }
  return any;
}

bool finish_barrier() {
  bool any = false;
  for (int i = 0; i < fiber_count; i++) {
    if (fibers[i].state == FIBER_ENDED) continue;
    if (fibers[i].state != FIBER_AT_BARRIER) return false;
    any = true;
  }
  for (int i = 0; i < fiber_count && any; i++)
    if (fibers[i].state == FIBER_AT_BARRIER) fibers[i].state = FIBER_READY;
  return any;
}

/* Runs the threads of the warp that begins at `first` as far as they come: whether any did. */
bool run_warp(int first) {
  int lanes = std::min(32, fiber_count - first);
  bool any = false;
  for (bool ran = true; ran;) {
    ran = false;
    for (int k = 0; k < lanes; k++) {
      Fiber *fiber = &fibers[first + (lanes_backwards ? lanes - 1 - k : k)];
      if (fiber->state != FIBER_READY) continue;
      run(fiber);
      ran = true;
    }
    lanes_backwards = !lanes_backwards;
    ran = finish_collectives(first) || ran;
    any = any || ran;
  }
  return any;
}

/* Runs who can run; false when the block has ended. */
bool turn() {
  int warps = (fiber_count + 31) / 32;
  bool ran = false, ended = true;
  for (int k = 0; k < warps; k++)
    ran = run_warp(32 * (warps_backwards ? warps - 1 - k : k)) || ran;
  warps_backwards = !warps_backwards;
  for (int i = 0; i < fiber_count; i++)
    ended = ended && fibers[i].state == FIBER_ENDED;
  if (ended) return false;
  ran = finish_barrier() || ran;
  if (!ran) {
    for (int i = 0; i < fiber_count; i++)
      if (fibers[i].state != FIBER_ENDED) machine_thread = fibers[i].thread;
    stop("threads wait for each other at different places");
  }
  return true;
}

void run_block(dim3 grid, dim3 block, uint3 place) {
  fiber_count = (int)(block.x * block.y * block.z);
  for (int i = 0; i < fiber_count; i++) {
    unsigned u = (unsigned)i;
    fibers[i].thread = {uint3{u % block.x, u / block.x % block.y, u / (block.x * block.y)}, place, block,
                        grid, i % 32};
    fibers[i].state = FIBER_READY;
  }
  while (turn()) {
  }
}

/* Kernels that ran, for the test that all of them do: one address a line, from the module's beginning. */
void write_seen() {
  const char *name = getenv("VRAMLAB_MACHINE_KERNELS");
  FILE *file = name ? fopen(name, "a") : nullptr;
  if (!file) return;
  for (void (*key)() : *seen) {
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(key), &info))
      fprintf(
          file, "%lx\n",
          (unsigned long)(reinterpret_cast<uintptr_t>(key) - reinterpret_cast<uintptr_t>(info.dli_fbase)));
  }
  fclose(file);
}

void run_kernel(dim3 grid, dim3 block, size_t shared_bytes, void (*key)(),
                const std::function<void()> &thread) {
  kernel_key = key;
  thread_function = &thread;
  constexpr uintptr_t alignment = 128;
  std::vector<unsigned char> shared(shared_bytes + alignment);
  machine_shared = shared.data() + (alignment - reinterpret_cast<uintptr_t>(shared.data()) % alignment);
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        memset(machine_shared, 0xFF, shared_bytes);
        run_block(grid, block, uint3{x, y, z});
      }
  machine_shared = nullptr;
  if (!seen) {
    seen = new std::set<void (*)()>;
    if (getenv("VRAMLAB_MACHINE_KERNELS")) atexit(write_seen);
  }
  seen->insert(key);
}

} // namespace

void machine_barrier() {
  running->state = FIBER_AT_BARRIER;
  yield();
}

void machine_gather(unsigned mask, const void *value, size_t bytes, void *all) {
  if (!(mask >> machine_thread.lane & 1U)) stop("a lane is not in the mask of its own collective");
  running->mask = mask;
  running->value = value;
  running->bytes = bytes;
  running->all = all;
  running->state = FIBER_AT_COLLECTIVE;
  yield();
}

cudaError_t machine_queue(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, void (*key)(),
                          std::function<void()> thread) {
  size_t threads = (size_t)block.x * block.y * block.z;
  if (threads == 0 || threads > (size_t)most_threads || block.z > 64 || grid.x == 0 || grid.y == 0 ||
      grid.z == 0 || grid.x > 2147483647U || grid.y > 65535U || grid.z > 65535U ||
      shared_bytes > most_shared_bytes)
    return cudaErrorInvalidConfiguration;
  return runtime_queue(stream, [=] { run_kernel(grid, block, shared_bytes, key, thread); });
}
