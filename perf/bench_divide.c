/* Whether cores divided between products and updates do more than both in turn on all cores: Adam waits for memory,
 * a product for arithmetic, so that beside each other each might leave the other what it does not need.
 *
 *   bench_divide [THREADS]      default: all cores, at least 2; and the common options of bench.h
 *
 * By turns: the products of a GPT-2 block over 1024 rows on all threads; Adam over memory (bf16 gradients and
 * parameters, fp32 state) on all threads; and both beside each other, Adam on one thread until it is through its
 * elements, products on the others as long. In turn the work of the third would take the first two's times of as many
 * products and elements: what of Adam's time is saved is the figure, 0 where dividing gains nothing, below where it
 * costs. The last line is a step that Adam takes a share of, if the whole of it could run beside products. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "base/size.h"
#include "base/tile.h"
#include "kernels/ops.h"
#include "perf/bench.h"

enum { ROWS = 1024, CHANNELS = 768, RUNS = 9, SHAPES = 4, REPEATS = 12 };

static const uint64_t columns_of[SHAPES] = {2304, 768, 3072, 768};
static const uint64_t depth_of[SHAPES] = {768, 768, 768, 3072};

/* The forward's products of a block on one context. */
struct products {
    kernel_context *context;
    kernel_matmul *items[SHAPES];
    unsigned char *a, *b, *c, *scratch;
};

struct divide {
    kernel_context *all, *one;
    struct products together, beside;
    adam_args adam;
    double product_seconds, adam_seconds; /* of the last runs on all threads */
    double flops;                         /* of products that were run beside the last Adam */
    double last_begin, last_end;          /* of the last of them, which Adam's end meets */
    double last_flops;
    _Atomic bool is_done;
};

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

/* Touched memory on huge pages, filled with small numbers of any type. */
static unsigned char *memory_of(uint64_t bytes)
{
    uint64_t step = 2 * MIB;
    bytes = size_round_up(bytes, step) + step;
    unsigned char *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        bench_require(err_set(-ENOMEM, "%llu bytes of memory", (unsigned long long)bytes));
    base = (unsigned char *)size_round_up((uint64_t)(uintptr_t)base, step);
    (void)madvise(base, bytes - step, MADV_HUGEPAGE);
    memset(base, 0x38, bytes - step);
    return base;
}

static kernel_context *context_of(int threads)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    bench_require(kernels_cpu.context_create(&config, &context));
    return context;
}

static void make_products(struct products *self, kernel_context *context)
{
    uint64_t scratch_bytes = 0;
    self->context = context;
    for (int i = 0; i < SHAPES; i++) {
        matmul_desc desc = {.m = ROWS,
                            .n = columns_of[i],
                            .k = depth_of[i],
                            .b_transposed = true,
                            .a_stride = depth_of[i],
                            .b_stride = depth_of[i],
                            .c_stride = columns_of[i],
                            .ab_type = DTYPE_BF16,
                            .c_type = DTYPE_BF16};
        bench_require(kernels_cpu.matmul_create(context, &desc, &self->items[i]));
        scratch_bytes = size_max(scratch_bytes, kernels_cpu.matmul_scratch_bytes(self->items[i]));
    }
    self->a = memory_of(2 * ROWS * 3072);
    self->b = memory_of(2 * 3072 * CHANNELS);
    self->c = memory_of(2 * ROWS * 3072);
    self->scratch = memory_of(scratch_bytes);
}

static double flops_of(int shape)
{
    return 2.0 * ROWS * (double)columns_of[shape] * (double)depth_of[shape];
}

static void run_product(const struct products *self, int shape)
{
    bench_require(kernels_cpu.matmul(self->items[shape], NULL, self->a, self->b, NULL, self->c,
                                     self->scratch));
}

static void make_adam(adam_args *args, uint64_t count)
{
    static const adam_scalars scalars = {.learning_rate = 1e-6f,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.95f,
                                         .epsilon = 1e-8f,
                                         .decoupled = true,
                                         .bias_correction1 = 0.5f,
                                         .bias_correction2_sqrt = 0.5f,
                                         .grad_scale = 1.0f};
    unsigned char *state = memory_of(3 * tile_stream_stride(count));
    *args = (adam_args){.count = count,
                        .master = (float *)(void *)state,
                        .m = (float *)(void *)(state + tile_stream_stride(count)),
                        .v = (float *)(void *)(state + 2 * tile_stream_stride(count)),
                        .grads = memory_of(2 * count + TILE_PERIOD_BYTES) + TILE_RESIDUE_GRADS,
                        .grad_type = DTYPE_BF16,
                        .params = memory_of(2 * count + TILE_PERIOD_BYTES) + TILE_RESIDUE_PARAMS,
                        .param_type = DTYPE_BF16,
                        .scalars = &scalars};
}

static double products_alone(void *user)
{
    struct divide *self = user;
    double begin = now();
    for (int i = 0; i < REPEATS * SHAPES; i++)
        run_product(&self->together, i % SHAPES);
    return (self->product_seconds = now() - begin);
}

static double adam_alone(void *user)
{
    struct divide *self = user;
    double begin = now();
    bench_require(kernels_cpu.adam(self->all, NULL, &self->adam));
    return (self->adam_seconds = now() - begin);
}

/* Until Adam is done. */
static void *products_beside(void *user)
{
    struct divide *self = user;
    self->flops = 0;
    for (int i = 0; !atomic_load(&self->is_done); i = (i + 1) % SHAPES) {
        self->last_begin = now();
        run_product(&self->beside, i);
        self->last_end = now();
        self->last_flops = flops_of(i);
        self->flops += self->last_flops;
    }
    return NULL;
}

/* The last product counts by its share before Adam's end. */
static double both(void *user)
{
    struct divide *self = user;
    pthread_t other;
    atomic_store(&self->is_done, false);
    if (pthread_create(&other, NULL, products_beside, self) != 0)
        bench_require(err_set(ERR_INTERNAL, "a thread cannot be made"));
    double begin = now();
    bench_require(kernels_cpu.adam(self->one, NULL, &self->adam));
    double end = now();
    atomic_store(&self->is_done, true);
    pthread_join(other, NULL);
    if (self->flops > 0 && self->last_end > end)
        self->flops -= self->last_flops *
                       fmin((self->last_end - end) / (self->last_end - self->last_begin), 1);
    return end - begin;
}

/* What is saved beside each other of the time in turn, as a share of Adam's own on all threads. */
static double saved_share(void *user)
{
    struct divide *self = user;
    double beside = both(self), all = 0;
    for (int i = 0; i < SHAPES; i++)
        all += REPEATS * flops_of(i);
    double products = self->product_seconds * self->flops / all;
    return (self->adam_seconds + products - beside) / self->adam_seconds;
}

int main(int argc, char **argv)
{
    static struct divide self;
    bench_begin(&argc, argv);
    int threads = bench_threads(argc, argv, 1);
    if (threads < 2)
        bench_usage("one core cannot be divided: THREADS is 2 or more");
    self.all = context_of(threads);
    self.one = context_of(1);
    make_products(&self.together, self.all);
    make_products(&self.beside, context_of(threads - 1));
    make_adam(&self.adam, (bench_is_quick() ? 8 : 48) * MIB);
    printf("%s\n", kernels_cpu.describe(self.all));
    struct bench_body bodies[] = {
        {products_alone, &self}, {adam_alone, &self}, {saved_share, &self}};
    struct bench_summary time[3];
    int runs = bench_is_quick() ? 3 : RUNS;
    bench_by_turns(bodies, 3, runs, time);
    double flops = 0,
           bytes =
               28.0 * (double)self.adam.count; /* fp32 state twice, bf16 gradient and parameter */
    for (int i = 0; i < SHAPES; i++)
        flops += REPEATS * flops_of(i);
    bench_report("products on all threads", flops * 1e-9, "GFLOP/s", &time[0], NULL);
    bench_report("adam on all threads", bytes * 1e-9, "GB/s", &time[1], NULL);
    printf("%-52s %10.3f %-10s (%.3f to %.3f of %d runs)\n", "saved by dividing the cores",
           time[2].median, "of Adam", time[2].lowest, time[2].highest, runs);
    printf("%-52s %10.3f\n", "a step of which Adam is 0.09 in turn, divided",
           1 - 0.09 * time[2].median);
    bench_keep("saved by dividing the cores", time[2].median, "of Adam's time", 0, 0);
    return 0;
}
