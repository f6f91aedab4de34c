// One block of a kernel on one host thread: each thread of the block is a fiber. A fiber runs until
// it must wait for others; then the next is drawn from those that can run, warp by warp for a
// while, so that both near and far orders occur. No system call is made to switch.
//
// Fibers are kept from block to block; stacks end at a page that may not be touched.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "internal.h"

__thread simulated_place *simulated_here;

const char simulated_syncwarp[] = "__syncwarp";
const char simulated_shfl[] = "__shfl_sync";
const char simulated_shfl_up[] = "__shfl_up_sync";
const char simulated_shfl_down[] = "__shfl_down_sync";
const char simulated_shfl_xor[] = "__shfl_xor_sync";
static const char simulated_vote_name[] = "__ballot_sync, __any_sync or __all_sync";

namespace simulated
{

enum { WARP = 32, WARPS_MAX = BLOCK_THREADS_MAX / WARP, STACK_BYTES = 256 * 1024 };

enum fiber_state { FIBER_READY, FIBER_AT_BARRIER, FIBER_AT_WARP, FIBER_RETURNED };

struct fiber {
    jmp_buf context;
    simulated_place place;
    fiber_state state;
    unsigned idx; // in the block
    simulated_request *request;
    async_queue async;
    char *stack;
    ucontext_t start;
};

struct warp_state {
    uint32_t exists, waiting;
    simulated_request *requests[WARP];
    uint8_t ready[WARP]; // lanes, in no order
    unsigned ready_count;
    unsigned place_in_list; // of ready_warps
};

// The block that runs on this host thread.
struct runner {
    simulated_call *call;
    unsigned thread_count, live_count;
    warp_state warps[WARPS_MAX];
    uint8_t ready_warps[WARPS_MAX];
    unsigned ready_warp_count;
    unsigned current_warp;
    random_source random{0};
    std::vector<fiber *> fibers;
    fiber *running;
    jmp_buf home;
    // the block's barrier
    unsigned barrier_count;
    const char *barrier_file;
    int barrier_line;
};

static __thread runner *here;

// --- which fiber is next -------------------------------------------------------------------------

static void make_ready(runner *self, unsigned idx)
{
    warp_state *warp = &self->warps[idx / WARP];
    self->fibers[idx]->state = FIBER_READY;
    if (warp->ready_count == 0) {
        warp->place_in_list = self->ready_warp_count;
        self->ready_warps[self->ready_warp_count++] = static_cast<uint8_t>(idx / WARP);
    }
    warp->ready[warp->ready_count++] = static_cast<uint8_t>(idx % WARP);
}

static fiber *take_ready(runner *self)
{
    if (self->ready_warp_count == 0)
        return NULL;
    unsigned w = self->current_warp;
    if (self->warps[w].ready_count == 0 || (self->random.next() & 7) == 0)
        w = self->ready_warps[self->random.below(self->ready_warp_count)];
    self->current_warp = w;
    warp_state *warp = &self->warps[w];
    unsigned i = warp->ready_count > 1 ? self->random.below(warp->ready_count) : 0;
    unsigned lane = warp->ready[i];
    warp->ready[i] = warp->ready[--warp->ready_count];
    if (warp->ready_count == 0) {
        uint8_t last = self->ready_warps[--self->ready_warp_count];
        self->ready_warps[warp->place_in_list] = last;
        self->warps[last].place_in_list = warp->place_in_list;
    }
    return self->fibers[w * WARP + lane];
}

static std::string describe_thread(const fiber *f)
{
    char text[512];
    int n = snprintf(text, sizeof text, "  thread (%u, %u, %u): ", f->place.thread.x,
                     f->place.thread.y, f->place.thread.z);
    size_t left = sizeof text - static_cast<size_t>(n);
    if (f->state == FIBER_AT_WARP)
        snprintf(text + n, left, "waits at %s of lanes 0x%08x, %s:%d\n", f->request->what,
                 f->request->mask, f->request->file, f->request->line);
    else
        snprintf(text + n, left, "%s\n",
                 f->state == FIBER_RETURNED ? "has returned" : "waits at __syncthreads");
    return text;
}

// No thread can run and some have not returned. Names one thread of each kind.
[[noreturn]] static void fail_waiting(runner *self)
{
    std::string text;
    const fiber *last = NULL;
    unsigned counts[4] = {0, 0, 0, 0}, lines = 0;
    for (unsigned i = 0; i < self->thread_count; i++) {
        const fiber *f = self->fibers[i];
        counts[f->state]++;
        bool is_new = !last || last->state != f->state ||
                      (f->state == FIBER_AT_WARP && (last->request->line != f->request->line ||
                                                     last->request->mask != f->request->mask));
        if (is_new && lines++ < 12)
            text += describe_thread(f);
        last = f;
    }
    char barrier[256] = "";
    if (counts[FIBER_AT_BARRIER] > 0)
        snprintf(barrier, sizeof barrier, "  (the barrier: %s:%d)\n", self->barrier_file,
                 self->barrier_line);
    self->running = NULL;
    simulated_here->thread.x = UINT32_MAX; /* the message is not about one thread */
    simulated_fail("threads wait for others that do not come: %u at __syncthreads, %u at an "
                   "operation of their warp, %u have returned\n%s%s",
                   counts[FIBER_AT_BARRIER], counts[FIBER_AT_WARP], counts[FIBER_RETURNED], barrier,
                   text.c_str());
}

// The running fiber cannot go on (or has returned): another one runs. Comes back when it is its
// turn.
static __attribute__((noinline)) void switch_away(runner *self)
{
    fiber *old = self->running;
    fiber *next = take_ready(self);
    if (next == old)
        return;
    if (!next && self->live_count > 0)
        fail_waiting(self);
    if (_setjmp(old->context) != 0)
        return;
    self->running = next;
    if (!next)
        _longjmp(self->home, 1);
    simulated_here = &next->place;
    _longjmp(next->context, 1);
}

// --- fibers --------------------------------------------------------------------------------------

static void fiber_main()
{
    runner *self = here;
    if (_setjmp(self->running->context) == 0)
        _longjmp(self->home, 1);
    for (;;) {
        here->call->run(here->call);
        fiber *done = here->running;
        done->state = FIBER_RETURNED;
        done->async.copies.clear();
        done->async.group_ends.clear();
        here->live_count--;
        switch_away(here); /* comes back in the next block */
    }
}

static fiber *make_fiber(runner *self, unsigned idx)
{
    static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    fiber *made = new fiber();
    made->idx = idx;
    void *memory = mmap(NULL, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0) {
        perror("simulated GPU: a thread's stack");
        _exit(EXIT_FAILED);
    }
    made->stack = static_cast<char *>(memory);
    /* Tops at different lines of the cache. */
    size_t usable = STACK_BYTES - idx * 64 % 4096;
    getcontext(&made->start);
    made->start.uc_stack.ss_sp = made->stack + page;
    made->start.uc_stack.ss_size = usable;
    made->start.uc_link = NULL;
    makecontext(&made->start, fiber_main, 0);
    self->running = made;
    if (_setjmp(self->home) == 0)
        setcontext(&made->start);
    return made;
}

static void start_block(runner *self, simulated_call *call, uint3 block)
{
    unsigned count = call->block.x * call->block.y * call->block.z;
    while (self->fibers.size() < count)
        self->fibers.push_back(make_fiber(self, static_cast<unsigned>(self->fibers.size())));
    self->call = call;
    self->thread_count = self->live_count = count;
    self->ready_warp_count = self->barrier_count = self->current_warp = 0;
    for (unsigned w = 0; w * WARP < count; w++) {
        unsigned lanes = count - w * WARP;
        self->warps[w] = warp_state();
        self->warps[w].exists = lanes >= WARP ? 0xffffffffu : (1u << lanes) - 1u;
    }
    for (unsigned i = 0; i < count; i++) {
        fiber *f = self->fibers[i];
        f->place.thread = uint3{i % call->block.x, i / call->block.x % call->block.y,
                                i / call->block.x / call->block.y};
        f->place.block = block;
        f->place.block_dim = call->block;
        f->place.grid_dim = call->grid;
        make_ready(self, i);
    }
    self->current_warp = self->ready_warps[self->random.below(self->ready_warp_count)];
}

void run_block(simulated_call *call, uint3 block, uint64_t seed)
{
    if (!here)
        here = new runner();
    runner *self = here;
    self->random = random_source(seed);
    start_block(self, call, block);
    fiber *first = take_ready(self);
    if (_setjmp(self->home) == 0) {
        self->running = first;
        simulated_here = &first->place;
        _longjmp(first->context, 1);
    }
    here->running = NULL;
    simulated_here = NULL;
}

async_queue &get_async_queue()
{
    return here->running->async;
}

const char *running_kernel()
{
    return here && here->call && simulated_here ? symbol_name(here->call->kernel) : NULL;
}

} // namespace simulated

using namespace simulated;

// --- barriers ------------------------------------------------------------------------------------

void simulated_block_meet(const char *file, int line)
{
    runner *self = here;
    if (self->barrier_count == 0) {
        self->barrier_file = file;
        self->barrier_line = line;
    } else if (line != self->barrier_line || strcmp(file, self->barrier_file) != 0) {
        simulated_fail("this thread is at the __syncthreads of %s:%d, others wait at %s:%d", file,
                       line, self->barrier_file, self->barrier_line);
    }
    self->running->state = FIBER_AT_BARRIER;
    if (++self->barrier_count == self->thread_count) {
        self->barrier_count = 0;
        for (unsigned i = 0; i < self->thread_count; i++)
            make_ready(self, i);
    }
    switch_away(self);
}

unsigned simulated_lane()
{
    return here->running->idx % WARP;
}

// Whether all lanes of the request's mask that exist wait with the same operation.
static bool has_met(const warp_state *warp, const simulated_request *request)
{
    uint32_t mask = request->mask & warp->exists;
    if ((warp->waiting & mask) != mask)
        return false;
    for (uint32_t left = mask; left != 0; left &= left - 1) {
        const simulated_request *other = warp->requests[__builtin_ctz(left)];
        if (other->what != request->what || (other->mask & warp->exists) != mask)
            return false;
    }
    return true;
}

void simulated_warp_meet(simulated_request *request)
{
    runner *self = here;
    fiber *own = self->running;
    unsigned lane = own->idx % WARP;
    warp_state *warp = &self->warps[own->idx / WARP];
    if (!(request->mask >> lane & 1u))
        simulated_fail("%s (%s:%d): lane %u is not in its own mask 0x%08x", request->what,
                       request->file, request->line, lane, request->mask);
    own->request = request;
    own->state = FIBER_AT_WARP;
    warp->requests[lane] = request;
    warp->waiting |= 1u << lane;
    if (has_met(warp, request)) {
        uint32_t mask = request->mask & warp->exists;
        simulated_request *lanes[WARP];
        for (unsigned i = 0; i < WARP; i++)
            lanes[i] = mask >> i & 1u ? warp->requests[i] : NULL;
        request->complete(lanes);
        warp->waiting &= ~mask;
        unsigned first = own->idx - lane;
        for (uint32_t left = mask; left != 0; left &= left - 1)
            make_ready(self, first + static_cast<unsigned>(__builtin_ctz(left)));
    }
    switch_away(self);
}

void simulated_complete_nothing(simulated_request *const[32])
{
}

void simulated_complete_shuffle(simulated_request *const lanes[32])
{
    for (unsigned i = 0; i < WARP; i++) {
        simulated_shuffle_request *own = static_cast<simulated_shuffle_request *>(lanes[i]);
        if (!own)
            continue;
        simulated_request *source = lanes[own->source & 31];
        own->result =
            source ? static_cast<simulated_shuffle_request *>(source)->value : ~UINT64_C(0);
    }
}

struct ballot_request : simulated_request {
    bool predicate;
    uint32_t result;
};

static void complete_ballot(simulated_request *const lanes[32])
{
    uint32_t votes = 0;
    for (unsigned i = 0; i < WARP; i++)
        if (lanes[i] && static_cast<ballot_request *>(lanes[i])->predicate)
            votes |= 1u << i;
    for (unsigned i = 0; i < WARP; i++)
        if (lanes[i])
            static_cast<ballot_request *>(lanes[i])->result = votes;
}

unsigned simulated_ballot(unsigned mask, int predicate, const char *file, int line)
{
    ballot_request request;
    request.mask = mask;
    request.what = simulated_vote_name;
    request.complete = complete_ballot;
    request.file = file;
    request.line = line;
    request.predicate = predicate != 0;
    simulated_warp_meet(&request);
    return request.result;
}

void __nanosleep(unsigned)
{
    make_ready(here, here->running->idx);
    switch_away(here);
}
