/* The optimizers' passes on the CPU, gradient closes (with their sums for the norm) and working
 * copies, against the memory limit. Every variant runs on 1 and on all threads. It takes turns, in
 * one run, with the best kernels that move the same streams (adam_limit.h).
 *
 *   bench_adam [--csv FILE] [--quick] [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS] [PASS]
 *
 * Defaults: 32 (1..256; 8 with --quick), 9 (>= 7), all cores, all passes. PASS is a part of a
 * pass's name. 32 Mi elements are 1 GiB. On machines with large last-level caches, a smaller size
 * does not measure memory.
 *
 * The working set has the layout of training: tiles of 1 Mi elements (base/tile.h), gradient and
 * working copy at their residues, on huge pages if the system provides them. GB/s count the bytes
 * that a pass must read and write, with the scales of 8-bit moments. Before the timing, one pass of
 * each kind by each variant is compared with the reference. */
#include <errno.h>
#include <math.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "perf/adam/adam_limit.h"
#include "perf/bench.h"

/* Best first. The reference is measured only if there is no other variant. */
static const enum cpu_isa variants[] = {CPU_AVX512, CPU_AVX2, CPU_NEON, CPU_BASELINE};

enum {
    TILE_ELEMS = 1 << 20,
    BLOCK_SUMS = TILE_ELEMS / SHARD_ELEMS_STEP,
    VARIANT_COUNT = sizeof variants / sizeof variants[0],
    LIMITS_KEPT = 2, /* kernels kept for the limit: the best of a first trial */
    LIMIT_LOOKS = 3,
    BODIES_MAX = VARIANT_COUNT + LIMITS_KEPT,
};

enum kind { ADAM, LION, ADAGRAD, CLOSE, COPY };

/* One pass over the elements. */
struct pass {
    const char *name;
    enum kind kind;
    enum dtype grad_type, param_type;
    /* the result has no own stream: params lie on master, or closed gradients on their sums */
    bool is_in_place;
    enum tile_format master, moments;
};

static const struct pass passes[] = {
    {"Adam bf16 gradient bf16 copy", ADAM, DTYPE_BF16, DTYPE_BF16, .is_in_place = false},
    {"Adam fp32 gradient bf16 copy", ADAM, DTYPE_FP32, DTYPE_BF16, .is_in_place = false},
    {"Adam fp32 gradient fp32 copy", ADAM, DTYPE_FP32, DTYPE_FP32, .is_in_place = false},
    {"Adam fp32 gradient no copy", ADAM, DTYPE_FP32, DTYPE_FP32, .is_in_place = true},
    {"Adam split master fp32 moments", ADAM, DTYPE_BF16, DTYPE_BF16, false, TILE_LOW16, TILE_FP32},
    {"Adam fp32 master bf16 moments", ADAM, DTYPE_BF16, DTYPE_BF16, false, TILE_FP32, TILE_BF16},
    {"Adam split master bf16 moments", ADAM, DTYPE_BF16, DTYPE_BF16, false, TILE_LOW16, TILE_BF16},
    {"Adam fp32 master 8-bit moments", ADAM, DTYPE_BF16, DTYPE_BF16, false, TILE_FP32, TILE_INT8},
    {"Adam split master 8-bit moments", ADAM, DTYPE_BF16, DTYPE_BF16, false, TILE_LOW16, TILE_INT8},
    {"Lion bf16 gradient bf16 copy", LION, DTYPE_BF16, DTYPE_BF16, .is_in_place = false},
    {"Lion fp32 gradient fp32 copy", LION, DTYPE_FP32, DTYPE_FP32, .is_in_place = false},
    {"Adagrad bf16 gradient bf16 copy", ADAGRAD, DTYPE_BF16, DTYPE_BF16, .is_in_place = false},
    {"Adagrad fp32 gradient fp32 copy", ADAGRAD, DTYPE_FP32, DTYPE_FP32, .is_in_place = false},
    {"gradient close to bf16", CLOSE, DTYPE_BF16, DTYPE_FP32, .is_in_place = false},
    {"gradient close in place", CLOSE, DTYPE_FP32, DTYPE_FP32, .is_in_place = true},
    {"working copy bf16", COPY, DTYPE_FP32, DTYPE_BF16, .is_in_place = false},
    {"working copy fp32", COPY, DTYPE_FP32, DTYPE_FP32, .is_in_place = false},
};
enum { PASS_COUNT = sizeof passes / sizeof passes[0] };

static const update_scalars scalars = {.learning_rate = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .epsilon = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .decoupled = true,
                                       .bias_correction1 = 0.5f,
                                       .bias_correction2_sqrt = 0.5f,
                                       .grad_scale = 0.9f};

/* ---- the working set ---- */

/* Elements [0, tile_count * TILE_ELEMS) as tiles of state, each with its gradient and working copy,
 * with room for streams of fp32. */
struct working_set {
    char *mapping, *base;
    uint64_t mapped_bytes;
    uint64_t bytes; /* bytes from base on */
    uint64_t tile_count, state_pitch, flat_pitch, tile_pitch;
};

/* Maps zeros, on huge pages if the system provides them. */
static void set_create(struct working_set *set, uint64_t tile_count)
{
    set->tile_count = tile_count;
    set->state_pitch = tile_pitch(TILE_ELEMS, TILE_STREAMS_MAX);
    set->flat_pitch =
        size_round_up(sizeof(float) * TILE_ELEMS, TILE_PERIOD_BYTES) + TILE_PERIOD_BYTES;
    set->tile_pitch = set->state_pitch + 2 * set->flat_pitch;
    set->bytes = tile_count * set->tile_pitch;
    set->mapped_bytes = set->bytes + 2 * MIB;
    set->mapping =
        mmap(NULL, set->mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (set->mapping == MAP_FAILED)
        bench_require(err_set(-ENOMEM, "no memory for %llu MiB of state, gradients and copies",
                              (unsigned long long)(set->mapped_bytes / MIB)));
    madvise(set->mapping, set->mapped_bytes, MADV_HUGEPAGE);
    set->base = (char *)size_round_up((uint64_t)(uintptr_t)set->mapping, 2 * MIB);
}

static void set_destroy(struct working_set *set)
{
    munmap(set->mapping, set->mapped_bytes);
}

/* A tile as the pass's update takes it. A gradient close has its sums in the master. */
static update_args tile_at(const struct working_set *set, const struct pass *pass, uint64_t t)
{
    char *state = set->base + t * set->tile_pitch, *flat = state + set->state_pitch;
    uint32_t streams =
        pass->kind == LION || pass->kind == ADAGRAD
            ? 2
            : tile_streams_code(TILE_STREAMS_MAX, pass->master, pass->moments, pass->moments);
    return (update_args){
        .count = TILE_ELEMS,
        .streams = streams,
        .master = state,
        .m = state + tile_stream_offset(streams, TILE_ELEMS, 1),
        .v = state + tile_stream_offset(streams, TILE_ELEMS, pass->kind == ADAGRAD ? 1 : 2),
        .grads = flat + TILE_RESIDUE_GRADS,
        .grad_type = pass->grad_type,
        .params = pass->is_in_place ? state : flat + set->flat_pitch + TILE_RESIDUE_PARAMS,
        .param_type = pass->param_type,
        .scalars = &scalars,
        .rule = pass->kind == LION      ? UPDATE_LION
                : pass->kind == ADAGRAD ? UPDATE_ADAGRAD
                                        : UPDATE_ADAM,
        .rounding_key = 1,
        .first_elem = t * TILE_ELEMS,
    };
}

/* Fills weights and gradients as in training, and zero moments. With a split master the working
 * copy is part of the master. */
static void set_fill(const struct working_set *set, const struct pass *pass)
{
#pragma omp parallel for schedule(static)
    for (uint64_t t = 0; t < set->tile_count; t++) {
        update_args tile = tile_at(set, pass, t);
        memset(tile.master, 0, set->tile_pitch);
        for (uint64_t i = 0; i < TILE_ELEMS; i += 4) {
            uint32_t words[4];
            rng_block(1, t, i, words);
            for (uint64_t n = 0; n < 4; n++) {
                float weight = (float)(words[n] & 0xffff) * 1e-6f;
                /* About 1e-3 as fp32, and its halves as bf16. No subnormals result from it. */
                uint32_t halves = (words[n] >> 16 & 0x807f) * 0x00010001u | 0x3a803a80u;
                memcpy((char *)(uintptr_t)tile.grads + 4 * (i + n), &halves, sizeof halves);
                if (pass->master == TILE_LOW16) {
                    ((uint16_t *)tile.params)[i + n] = bf16_working_copy(weight);
                    ((uint16_t *)tile.master)[i + n] = master_low16(weight);
                } else {
                    ((float *)tile.master)[i + n] = weight;
                }
            }
        }
    }
}

/* ---- passes, and kernels for their limits ---- */

static int run_pass(kernel_context *context, const struct pass *pass, const update_args *tile)
{
    static double sums[BLOCK_SUMS];
    if (pass->kind == COPY)
        return cpui_working_copy(context, NULL, tile->master, tile->params, tile->param_type,
                                 TILE_ELEMS);
    if (pass->kind != CLOSE)
        return cpui_update(context, NULL, tile);
    grad_close_args call = {
        .count = TILE_ELEMS,
        .accumulator = tile->master,
        .grads = pass->is_in_place ? tile->master : (void *)(uintptr_t)tile->grads,
        .grad_type = pass->grad_type,
        .block_sums = sums,
    };
    return cpui_grad_close(context, NULL, &call);
}

/* Returns the streams that run_pass moves. */
static struct limit_streams limit_of(const struct pass *pass, const update_args *tile)
{
    bool is_update = pass->kind != CLOSE && pass->kind != COPY, is_close = pass->kind == CLOSE;
    uint32_t grad_bytes = (uint32_t)dtype_bytes(tile->grad_type);
    uint32_t param_bytes = (uint32_t)dtype_bytes(tile->param_type);
    struct limit_streams out = {
        .read = is_update ? tile->grads : tile->master,
        .read_bytes = is_update ? grad_bytes : 4,
        .written = is_close ? (void *)(uintptr_t)tile->grads : tile->params,
        .written_bytes = is_close ? grad_bytes : param_bytes,
    };
    char *state[] = {tile->master, pass->kind == ADAGRAD ? tile->v : tile->m, tile->v};
    uint32_t count = is_update ? tile_stream_count(tile->streams) : 0;
    for (uint32_t s = 0; s < count; s++) {
        out.updated[s] = state[s];
        out.updated_bytes[s] = /* without the scales of 8-bit moments */
            (uint32_t)(tile_stream_bytes(tile->streams, TILE_ELEMS, s) / TILE_ELEMS);
    }
    if (tile_master_is_split(tile->streams)) {
        out.updated[count] = tile->params;
        out.updated_bytes[count] = param_bytes;
    }
    if (pass->is_in_place || tile_master_is_split(tile->streams))
        out.written_bytes = 0;
    return out;
}

/* Returns the bytes that a pass moves per parameter. */
static double bytes_of(const struct pass *pass, const update_args *tile)
{
    struct limit_streams moved = limit_of(pass, tile);
    double bytes = moved.read_bytes + moved.written_bytes;
    for (int s = 0; s < LIMIT_UPDATED_MAX && moved.updated[s]; s++)
        bytes += 2.0 * moved.updated_bytes[s];
    if (pass->moments == TILE_INT8)
        bytes += 2.0 * 2.0 * sizeof(float) / TILE_SCALE_ELEMS; /* scales of two moments */
    return bytes;
}

struct limit_kernel {
    const struct limit_width *width; /* NULL: none */
    const struct limit_way *way;
};

/* The code that is timed: a variant, or a kernel for the limit. */
struct body {
    const struct working_set *set;
    const struct pass *pass;
    struct limit_kernel limit; /* none: the variant of the context */
    kernel_context context;
};

static void run_limit(const struct limit_kernel *kernel, const struct limit_streams *streams,
                      int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int share = 0; share < threads; share++) {
        uint64_t groups = TILE_ELEMS / LIMIT_GROUP_ELEMS, count = (uint64_t)threads;
        kernel->width->run(streams, kernel->way,
                           groups * (uint64_t)share / count * LIMIT_GROUP_ELEMS,
                           groups * (uint64_t)(share + 1) / count * LIMIT_GROUP_ELEMS);
    }
}

static double run_body(void *user)
{
    struct body *body = user;
    uint64_t start = clock_ns();
    for (uint64_t t = 0; t < body->set->tile_count; t++) {
        update_args tile = tile_at(body->set, body->pass, t);
        if (body->limit.width) {
            struct limit_streams streams = limit_of(body->pass, &tile);
            run_limit(&body->limit, &streams, body->context.thread_count);
        } else {
            bench_require(run_pass(&body->context, body->pass, &tile));
        }
    }
    return (double)(clock_ns() - start) * 1e-9;
}

/* Puts a kernel among the fastest ones, which are sorted. */
static void keep_faster(struct limit_kernel kernel, double time,
                        struct limit_kernel kept[LIMITS_KEPT], double times[LIMITS_KEPT])
{
    int at = LIMITS_KEPT;
    for (; at > 0 && time < times[at - 1]; at--) {
        if (at == LIMITS_KEPT)
            continue;
        times[at] = times[at - 1];
        kept[at] = kept[at - 1];
    }
    if (at < LIMITS_KEPT) {
        times[at] = time;
        kept[at] = kernel;
    }
}

/* Tries all kernels and stores the fastest LIMITS_KEPT in `kept`. */
static void choose_limits(struct body like, struct limit_kernel kept[LIMITS_KEPT])
{
    double times[LIMITS_KEPT];
    for (int k = 0; k < LIMITS_KEPT; k++) /* every processor has more kernels than these */
        times[k] = INFINITY;
    update_args tile = tile_at(like.set, like.pass, 0);
    bool writes = limit_of(like.pass, &tile).written_bytes > 0;
    for (const struct limit_width *width = limit_widths;; width++) {
        for (int w = 0; w < LIMIT_WAYS && width->is_supported(); w++) {
            double best = INFINITY;
            if (limit_ways[w].is_past && !writes)
                continue;
            like.limit = (struct limit_kernel){width, &limit_ways[w]};
            for (int look = 0; look < LIMIT_LOOKS; look++)
                best = fmin(best, run_body(&like));
            keep_faster(like.limit, best, kept, times);
        }
        if (width->bytes == 16)
            return;
    }
}

/* Makes a body for each of this processor's variants. */
static int add_variants(struct body *bodies, const struct body *like)
{
    int count = 0;
    for (int v = 0; v < VARIANT_COUNT; v++) {
        bool is_reference = variants[v] == CPU_BASELINE;
        if (variants[v] > cpu_isa() || !cpu_has(variants[v]) || (is_reference && count > 0))
            continue;
        bodies[count] = *like;
        bodies[count].context.isa = variants[v];
        cpui_adam_select(&bodies[count++].context);
    }
    return count;
}

static void bench_pass(const struct working_set *set, const struct pass *pass, int threads,
                       int runs)
{
    struct body bodies[BODIES_MAX];
    struct body like = {.set = set, .pass = pass, .context = {.thread_count = threads}};
    int variant_count = add_variants(bodies, &like), count = variant_count;
    struct limit_kernel kept[LIMITS_KEPT];
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
    update_args tile = tile_at(set, pass, 0);
    double elems = (double)set->tile_count * TILE_ELEMS, bytes = bytes_of(pass, &tile);
    printf("%s: %.2f bytes a parameter, %d thread%s; limit %.3f ns a parameter (%u-byte %s) "
           "+-%.1f%%\n",
           pass->name, bytes, threads, threads == 1 ? "" : "s", out[best].median / elems * 1e9,
           bodies[best].limit.width->bytes, bodies[best].limit.way->name, 100 * out[best].spread);
    for (int i = 0; i < variant_count; i++) {
        char name[96];
        snprintf(name, sizeof name, "%s %s %d thread%s", pass->name,
                 cpui_adam_name(&bodies[i].context), threads, threads == 1 ? "" : "s");
        printf("  %.3f ns  ", out[i].median / elems * 1e9);
        bench_report(name, bytes * elems * 1e-9, "GB/s", &out[i], &out[best]);
    }
}

/* Runs one tile by each variant and by the reference, from equal inputs, and compares the
 * results. */
static void check_variants(const struct pass *pass)
{
    struct working_set expected, tested;
    struct body bodies[BODIES_MAX], like = {.pass = pass, .context = {.thread_count = 2}};
    int count = add_variants(bodies, &like);
    kernel_context reference = {.thread_count = 1};
    cpui_adam_select(&reference); /* chooses the baseline */
    set_create(&expected, 1);
    set_create(&tested, 1);
    set_fill(&expected, pass);
    update_args tile = tile_at(&expected, pass, 0);
    bench_require(run_pass(&reference, pass, &tile));
    for (int v = 0; v < count; v++) {
        set_fill(&tested, pass);
        tile = tile_at(&tested, pass, 0);
        bench_require(run_pass(&bodies[v].context, pass, &tile));
        if (memcmp(tested.base, expected.base, expected.bytes) != 0)
            bench_require(err_set(ERR_INTERNAL, "%s: %s differs from the reference", pass->name,
                                  cpui_adam_name(&bodies[v].context)));
    }
    set_destroy(&tested);
    set_destroy(&expected);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    if (argc > 5)
        bench_usage("at most 4 arguments: MILLIONS_OF_ELEMENTS RUNS THREADS PASS");
    bool is_quick = bench_is_quick();
    long millions = bench_number(argc, argv, 1, "MILLIONS_OF_ELEMENTS", is_quick ? 8 : 32, 1, 256);
    int runs = (int)bench_number(argc, argv, 2, "RUNS", is_quick ? 7 : 9, 7, BENCH_RUNS_MAX);
    int threads = (int)bench_threads(argc, argv, 3);
    const char *part = argc > 4 ? argv[4] : ""; /* of the names that are wanted */
    struct working_set set;
    bool found = false;
    for (int p = 0; p < PASS_COUNT; p++)
        found = found || strstr(passes[p].name, part);
    if (!found)
        bench_usage("the fourth argument is no part of a pass's name, such as \"Adam bf16\"");
    set_create(&set, (uint64_t)millions);
    printf("%ld Mi elements in tiles of 1 Mi, median of %d runs by turns\n", millions, runs);
    for (int p = 0; p < PASS_COUNT; p++) {
        if (!strstr(passes[p].name, part))
            continue;
        check_variants(&passes[p]);
        set_fill(&set, &passes[p]);
        bench_pass(&set, &passes[p], 1, runs);
        if (threads > 1)
            bench_pass(&set, &passes[p], threads, runs);
    }
    set_destroy(&set);
    return 0;
}
