/* The optimizers' passes on the CPU, gradient closes (with their sums for the norm) and working
 * copies, against the memory limit. Every variant runs on 1 and on all threads. It takes turns, in
 * one run, with the best kernel that moves the same streams (adam_limit.h).
 *
 *   bench_adam [--csv FILE] [--quick] [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS] [PASS]
 *
 * Defaults: 32 (1..256; 8 with --quick), 9 (>= 7), all cores, all passes. PASS is a part of a
 * pass's name. 32 Mi elements are 1 GiB. On machines with large last-level caches, a smaller size
 * does not measure memory.
 *
 * The working set has the layout of training: tiles of 1 Mi elements (base/tile.h; Lion and Adagrad
 * have two of Adam's three streams), gradient and working copy at their residues, on huge pages if
 * the system provides them. GB/s count the bytes that a pass must read and write. Before the
 * timing, one pass of each kind by each variant is compared with the reference. */
#include "perf/adam/bench_adam.h"
#include "base/rng.h"
#include "perf/adam/adam_limit.h"

enum {
    BLOCK_SUMS = TILE_ELEMS / SHARD_ELEMS_STEP,
    LIMITS_KEPT = 2, /* kernels kept for the limit: the best of a first trial */
    LIMIT_LOOKS = 3,
    BODIES_MAX = VARIANT_COUNT + LIMITS_KEPT,
};

enum kind { ADAM, LION, ADAGRAD, CLOSE, COPY };

/* One pass over the elements. `bytes` is per parameter. */
struct pass {
    const char *name;
    enum kind kind;
    enum dtype grad_type, param_type;
    /* the result has no own stream: params lie on master, or closed gradients on their sums */
    bool is_in_place;
    double bytes;
};

static const struct pass passes[] = {
    {"Adam bf16 gradient bf16 copy", ADAM, DTYPE_BF16, DTYPE_BF16, false, 28},
    {"Adam fp32 gradient bf16 copy", ADAM, DTYPE_FP32, DTYPE_BF16, false, 30},
    {"Adam fp32 gradient fp32 copy", ADAM, DTYPE_FP32, DTYPE_FP32, false, 32},
    {"Adam fp32 gradient no copy", ADAM, DTYPE_FP32, DTYPE_FP32, true, 28},
    {"Lion bf16 gradient bf16 copy", LION, DTYPE_BF16, DTYPE_BF16, false, 20},
    {"Lion fp32 gradient fp32 copy", LION, DTYPE_FP32, DTYPE_FP32, false, 24},
    {"Adagrad bf16 gradient bf16 copy", ADAGRAD, DTYPE_BF16, DTYPE_BF16, false, 20},
    {"Adagrad fp32 gradient fp32 copy", ADAGRAD, DTYPE_FP32, DTYPE_FP32, false, 24},
    {"gradient close to bf16", CLOSE, DTYPE_BF16, DTYPE_FP32, false, 6},
    {"gradient close in place", CLOSE, DTYPE_FP32, DTYPE_FP32, true, 4},
    {"working copy bf16", COPY, DTYPE_FP32, DTYPE_BF16, false, 6},
    {"working copy fp32", COPY, DTYPE_FP32, DTYPE_FP32, false, 8},
};
enum { PASS_COUNT = sizeof passes / sizeof passes[0] };

struct tile {
    float
        /* [TILE_ELEMS] fp32 each: master and moments; for a gradient close the first holds the
         * sums */
        *state[3];
    void *grads, *params;
};

static struct tile tile_at(const struct working_set *set, uint64_t tile_idx)
{
    char *state = set_state(set, tile_idx);
    uint64_t stride = tile_stream_stride(TILE_ELEMS);
    struct tile out = {
        .state = {(float *)state, (float *)(state + stride), (float *)(state + 2 * stride)},
        .grads = set_grads(set, tile_idx),
        .params = set_params(set, tile_idx),
    };
    return out;
}

static int run_pass(kernel_context *context, const struct pass *pass, const struct tile *tile)
{
    static double sums[BLOCK_SUMS];
    float *master = tile->state[0];
    void *params = pass->is_in_place ? master : tile->params;
    update_args call = {
        .rule = pass->kind == LION      ? UPDATE_LION
                : pass->kind == ADAGRAD ? UPDATE_ADAGRAD
                                        : UPDATE_ADAM,
        .count = TILE_ELEMS,
        .master = master,
        .m = tile->state[1],
        .v = tile->state[pass->kind == ADAGRAD ? 1 : 2],
        .grads = tile->grads,
        .grad_type = pass->grad_type,
        .params = params,
        .param_type = pass->param_type,
        .scalars = &scalars,
    };
    grad_close_args close_call = {
        .count = TILE_ELEMS,
        .accumulator = master,
        .grads = pass->is_in_place ? (void *)master : tile->grads,
        .grad_type = pass->grad_type,
        .block_sums = sums,
    };
    switch (pass->kind) {
    case ADAM:
    case LION:
    case ADAGRAD:
        return cpui_update(context, NULL, &call);
    case CLOSE:
        return cpui_grad_close(context, NULL, &close_call);
    case COPY:
        return cpui_working_copy(context, NULL, master, tile->params, pass->param_type, TILE_ELEMS);
    }
    return -1;
}

/* Returns the streams that run_pass moves. */
static struct limit_streams limit_of(const struct pass *pass, const struct tile *tile, float one)
{
    struct limit_streams out = {.one = one};
    int updated = pass->kind == ADAM ? 3 : pass->kind == LION || pass->kind == ADAGRAD ? 2 : 0;
    for (int s = 0; s < updated; s++)
        out.updated[s] = tile->state[s];
    out.read = updated ? tile->grads : tile->state[0];
    out.read_bytes = updated ? (uint32_t)dtype_bytes(pass->grad_type) : 4;
    if (pass->is_in_place)
        return out;
    bool is_close = pass->kind == CLOSE;
    out.written = is_close ? tile->grads : tile->params;
    out.written_bytes = (uint32_t)dtype_bytes(is_close ? pass->grad_type : pass->param_type);
    return out;
}

/* Fills weights, moments and gradients as in training. */
static void set_make(struct working_set *set, uint64_t tile_count)
{
    set_create(set, tile_count, 3, sizeof(float));
    for (uint64_t t = 0; t < tile_count; t++) {
        struct tile tile = tile_at(set, t);
#pragma omp parallel for schedule(static)
        for (uint64_t i = 0; i < TILE_ELEMS; i++) {
            uint64_t bits = rng_u64(1, t, i);
            tile.state[0][i] = (float)(bits & 0xffff) * 1e-6f;
            tile.state[1][i] = (float)(bits >> 16 & 0xffff) * 1e-8f;
            tile.state[2][i] = (float)(bits >> 32 & 0xffff) * 1e-10f;
            /* About 1e-3 as fp32, and its halves as bf16. No subnormals result from it. */
            uint32_t halves = (uint32_t)(bits >> 48 & 0x7f) * 0x00010001u | 0x3a803a80u;
            memcpy((char *)tile.grads + 4 * i, &halves, 4);
            ((float *)tile.params)[i] = 0;
        }
    }
}

/* The code that is timed: a variant, or a kernel for the limit. */
struct body {
    const struct working_set *set;
    const struct pass *pass;
    const struct limit_kernel *limit; /* NULL: the variant of the context */
    kernel_context context;
};

static double run_body(void *user)
{
    struct body *body = user;
    volatile float one = 1.0f;
    int threads = body->context.thread_count;
    uint64_t start = clock_ns();
    for (uint64_t t = 0; t < body->set->tile_count; t++) {
        struct tile tile = tile_at(body->set, t);
        if (!body->limit) {
            bench_require(run_pass(&body->context, body->pass, &tile));
            continue;
        }
        struct limit_streams streams = limit_of(body->pass, &tile, one);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int share = 0; share < threads; share++)
            body->limit->run(
                &streams,
                size_round_up(TILE_ELEMS * (uint64_t)share / (uint64_t)threads, LIMIT_GROUP_ELEMS),
                size_round_up(TILE_ELEMS * (uint64_t)(share + 1) / (uint64_t)threads,
                              LIMIT_GROUP_ELEMS));
    }
    return (double)(clock_ns() - start) * 1e-9;
}

/* Tries all kernels and stores the fastest LIMITS_KEPT in `kept`. */
static void choose_limits(struct body like, const struct limit_kernel *kept[LIMITS_KEPT])
{
    double times[LIMITS_KEPT];
    for (int k = 0; k < LIMITS_KEPT; k++) { /* every processor has more kernels than these */
        times[k] = INFINITY;
        kept[k] = NULL;
    }
    for (int i = 0; i < limit_kernel_count; i++) {
        const struct limit_kernel *kernel = like.limit = &limit_kernels[i];
        if (!kernel->is_supported() || (kernel->is_past && like.pass->is_in_place))
            continue;
        double best = INFINITY;
        for (int look = 0; look < LIMIT_LOOKS; look++)
            best = fmin(best, run_body(&like));
        for (int k = 0; k < LIMITS_KEPT; k++) {
            if (best >= times[k])
                continue;
            double other_time = times[k];
            const struct limit_kernel *other = kept[k];
            times[k] = best;
            kept[k] = kernel;
            best = other_time;
            kernel = other;
        }
    }
}

/* Makes a body for each variant. */
static int add_variants(struct body *bodies, const struct body *like)
{
    kernel_context contexts[VARIANT_COUNT];
    int count = variant_contexts(contexts, like->context.thread_count);
    for (int v = 0; v < count; v++) {
        bodies[v] = *like;
        bodies[v].context = contexts[v];
    }
    return count;
}

static void bench_pass(const struct working_set *set, const struct pass *pass, int threads,
                       int runs)
{
    struct body bodies[BODIES_MAX], like = {set, pass, NULL, {.thread_count = threads}};
    int variant_count = add_variants(bodies, &like), count = variant_count;
    const struct limit_kernel *kept[LIMITS_KEPT];
    choose_limits(like, kept);
    for (int k = 0; k < LIMITS_KEPT; k++) {
        bodies[count] = like;
        bodies[count++].limit = kept[k];
    }
    struct bench_body timed[BODIES_MAX];
    struct bench_summary out[BODIES_MAX];
    for (int i = 0; i < count; i++)
        timed[i] = (struct bench_body){run_body, &bodies[i]};
    bench_by_turns(timed, count, runs, out);
    int best = variant_count;
    for (int i = variant_count; i < count; i++)
        if (out[i].median < out[best].median)
            best = i;
    double elems = (double)set->tile_count * TILE_ELEMS, giga_bytes = elems * pass->bytes * 1e-9;
    printf("%s: %.0f bytes a parameter, %d thread%s; limit %.3f ns a parameter (%s) +-%.1f%%\n",
           pass->name, pass->bytes, threads, threads == 1 ? "" : "s",
           out[best].median / elems * 1e9, bodies[best].limit->name, 100 * out[best].spread);
    for (int i = 0; i < variant_count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s %s %d thread%s", pass->name,
                 cpui_adam_name(&bodies[i].context), threads, threads == 1 ? "" : "s");
        printf("  %.3f ns  ", out[i].median / elems * 1e9);
        bench_report(name, giga_bytes, "GB/s", &out[i], &out[best]);
    }
}

/* Runs one tile by each variant and by the reference, from equal inputs, and compares the
 * results. */
static void check_variants(void)
{
    for (int p = 0; p < PASS_COUNT; p++) {
        struct working_set expected, tested;
        struct body bodies[BODIES_MAX], like = {&expected, &passes[p], NULL, {.thread_count = 2}};
        int count = add_variants(bodies, &like);
        kernel_context reference = {.thread_count = 1};
        cpui_adam_select(&reference); /* chooses the baseline */
        set_make(&expected, 1);
        struct tile tile = tile_at(&expected, 0);
        bench_require(run_pass(&reference, &passes[p], &tile));
        for (int v = 0; v < count; v++) {
            set_make(&tested, 1);
            tile = tile_at(&tested, 0);
            bench_require(run_pass(&bodies[v].context, &passes[p], &tile));
            if (memcmp(tested.base, expected.base, expected.bytes) != 0)
                bench_require(err_set(ERR_INTERNAL, "%s: %s differs from the reference",
                                      passes[p].name, cpui_adam_name(&bodies[v].context)));
            set_destroy(&tested);
        }
        set_destroy(&expected);
    }
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    struct bench_adam_arguments taken = bench_adam_take(argc, argv, bench_is_quick() ? 8 : 32, 256);
    struct working_set set;
    bool found = false;
    for (int p = 0; p < PASS_COUNT; p++)
        found = found || strstr(passes[p].name, taken.part);
    if (!found)
        bench_usage("the fourth argument is no part of a pass's name, such as \"Adam bf16\"");
    check_variants();
    set_make(&set, (uint64_t)taken.millions);
    printf("%ld Mi elements in tiles of 1 Mi, median of %ld runs by turns\n", taken.millions,
           taken.runs);
    for (int p = 0; p < PASS_COUNT; p++) {
        if (!strstr(passes[p].name, taken.part))
            continue;
        bench_pass(&set, &passes[p], 1, (int)taken.runs);
        if (taken.threads > 1)
            bench_pass(&set, &passes[p], (int)taken.threads, (int)taken.runs);
    }
    set_destroy(&set);
    return 0;
}
