/* Adam on packed state on the CPU against the memory limit. Every variant runs each kind of state,
 * on 1 and on all threads. It takes turns, in one run, with kernels that only move the same
 * streams.
 *
 *   bench_adam_state [--csv FILE] [--quick] [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS] [KIND]
 *
 * Defaults: 32 (1..128; 8 with --quick), 9 (>= 7), all cores, all kinds. KIND is a part of a kind's
 * name. Gradients and working copies are bf16. The working set has the layout of training: tiles of
 * 1 Mi elements (base/tile.h), gradient and working copy at their residues, on huge pages if the
 * system provides them. Bytes per parameter count reads and writes; moments of 8 bits include their
 * scales. Before the timing, an update by each variant is compared with the reference. */
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/rng.h"
#include "perf/adam/bench_adam.h"

enum { LIMIT_STEP = 64, BODIES_MAX = 16 };

/* The distances in elements at which the limit's kernels prefetch. The fastest of them is the
 * limit. */
static const uint64_t limit_ahead[] = {512, 1024, 2048};
enum { LIMIT_COUNT = sizeof limit_ahead / sizeof limit_ahead[0] };

struct kind {
    const char *name;
    enum tile_format master, m, v;
};

static const struct kind kinds[] = {
    {"fp32 master fp32 moments", TILE_FP32, TILE_FP32, TILE_FP32},
    {"split master fp32 moments", TILE_LOW16, TILE_FP32, TILE_FP32},
    {"fp32 master bf16 moments", TILE_FP32, TILE_BF16, TILE_BF16},
    {"split master bf16 moments", TILE_LOW16, TILE_BF16, TILE_BF16},
    {"fp32 master 8-bit moments", TILE_FP32, TILE_INT8, TILE_INT8},
    {"split master 8-bit moments", TILE_LOW16, TILE_INT8, TILE_INT8},
};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

static uint32_t streams_of(const struct kind *kind)
{
    return tile_streams_code(3, kind->master, kind->m, kind->v);
}

static update_args tile_at(const struct working_set *set, const struct kind *kind, uint64_t t)
{
    char *state = set_state(set, t);
    uint32_t streams = streams_of(kind);
    return (update_args){
        .count = TILE_ELEMS,
        .streams = streams,
        .master = state,
        .m = state + tile_stream_offset(streams, TILE_ELEMS, 1),
        .v = state + tile_stream_offset(streams, TILE_ELEMS, 2),
        .grads = set_grads(set, t),
        .grad_type = DTYPE_BF16,
        .params = set_params(set, t),
        .param_type = DTYPE_BF16,
        .scalars = &scalars,
        .rounding_key = 1,
        .first_elem = t * TILE_ELEMS,
    };
}

/* Returns the bytes that an update moves per parameter. */
static double bytes_of(const struct kind *kind)
{
    uint32_t streams = streams_of(kind);
    double state = 2 * (double)tile_state_bytes(streams, TILE_ELEMS) / TILE_ELEMS;
    return state + 2 + 2 + (tile_master_is_split(streams) ? 2 : 0);
}

/* Fills weights and gradients as in training, and zero moments. With a split master the working
 * copy is part of the master. */
static void set_fill(const struct working_set *set, const struct kind *kind)
{
#pragma omp parallel for schedule(static)
    for (uint64_t t = 0; t < set->tile_count; t++) {
        update_args tile = tile_at(set, kind, t);
        memset(tile.master, 0, set->state_pitch);
        for (uint64_t i = 0; i < TILE_ELEMS; i += 4) {
            uint32_t words[4];
            rng_block(1, t, i, words);
            for (uint64_t n = 0; n < 4; n++) {
                uint16_t *grads = (uint16_t *)(uintptr_t)tile.grads;
                float weight = (float)(words[n] & 0xffff) * 1e-6f;
                grads[i + n] = (uint16_t)(0x3a80 | (words[n] >> 16 & 0x807f)); /* about 1e-3 */
                ((uint16_t *)tile.params)[i + n] = bf16_working_copy(weight);
                if (kind->master == TILE_LOW16)
                    ((uint16_t *)tile.master)[i + n] = master_low16(weight);
                else
                    ((float *)tile.master)[i + n] = weight;
            }
        }
    }
}

/* ---- the limit: the same streams, only moved ---- */

typedef long long limit_line __attribute__((vector_size(64), may_alias));

#define LIMIT_INLINE static inline __attribute__((always_inline))

/* Reads 64 elements of `width` bytes and writes them back. */
LIMIT_INLINE void limit_turn(char *stream, uint64_t width, uint64_t i, uint64_t ahead)
{
    limit_line lines[4], *at = (limit_line *)(stream + i * width);
    for (uint64_t n = 0; n < width; n++)
        lines[n] = at[n];
    __asm__ volatile("" ::: "memory"); /* keeps the stores */
    for (uint64_t n = 0; n < width; n++) {
        __builtin_prefetch(at + n + ahead * width / 64);
        at[n] = lines[n];
    }
}

/* Writes a line that is not read soon. It bypasses the caches if the processor can do this. */
LIMIT_INLINE void limit_past(char *to, limit_line line)
{
#ifdef __x86_64__
    for (int n = 0; n < 4; n++)
        _mm_stream_si128((__m128i *)to + n, _mm_set_epi64x(line[2 * n + 1], line[2 * n]));
#else
    *(limit_line *)to = line;
#endif
}

LIMIT_INLINE void limit_loop(const update_args *tile, uint64_t begin, uint64_t end, uint64_t ahead,
                             uint64_t master, uint64_t moments, bool is_split)
{
    char *params = tile->params;
    const char *grads = tile->grads;
    for (uint64_t i = begin; i < end; i += LIMIT_STEP) {
        limit_line read[2] = {((const limit_line *)(grads + 2 * i))[0],
                              ((const limit_line *)(grads + 2 * i))[1]};
        __builtin_prefetch(grads + 2 * (i + ahead));
        __builtin_prefetch(grads + 2 * (i + ahead) + 64);
        limit_turn(tile->master, master, i, ahead);
        limit_turn(tile->m, moments, i, ahead);
        limit_turn(tile->v, moments, i, ahead);
        if (is_split) {
            limit_turn(params, 2, i, ahead);
            __asm__ volatile("" : : "r"(read) : "memory");
        } else {
            limit_past(params + 2 * i, read[0]);
            limit_past(params + 2 * i + 64, read[1]);
        }
    }
}

LIMIT_INLINE void limit_kind(const update_args *tile, uint64_t begin, uint64_t end, uint64_t ahead)
{
    bool is_split = tile_master_is_split(tile->streams);
    uint64_t moments = tile_format_bytes(tile_stream_format(tile->streams, 1), 4096) / 4096;
    if (is_split && moments == 4)
        limit_loop(tile, begin, end, ahead, 2, 4, true);
    else if (is_split && moments == 2)
        limit_loop(tile, begin, end, ahead, 2, 2, true);
    else if (is_split)
        limit_loop(tile, begin, end, ahead, 2, 1, true);
    else if (moments == 4)
        limit_loop(tile, begin, end, ahead, 4, 4, false);
    else if (moments == 2)
        limit_loop(tile, begin, end, ahead, 4, 2, false);
    else
        limit_loop(tile, begin, end, ahead, 4, 1, false);
}

#ifdef __x86_64__

__attribute__((target("avx512f"))) static void limit_avx512(const update_args *tile, uint64_t begin,
                                                            uint64_t end, uint64_t ahead)
{
    limit_kind(tile, begin, end, ahead);
    _mm_sfence();
}

__attribute__((target("avx2"))) static void limit_avx2(const update_args *tile, uint64_t begin,
                                                       uint64_t end, uint64_t ahead)
{
    limit_kind(tile, begin, end, ahead);
    _mm_sfence();
}

static void limit_range(const update_args *tile, uint64_t begin, uint64_t end, uint64_t ahead)
{
    if (__builtin_cpu_supports("avx512f")) {
        limit_avx512(tile, begin, end, ahead);
    } else if (__builtin_cpu_supports("avx2")) {
        limit_avx2(tile, begin, end, ahead);
    } else {
        limit_kind(tile, begin, end, ahead);
        _mm_sfence();
    }
}

#else

static void limit_range(const update_args *tile, uint64_t begin, uint64_t end, uint64_t ahead)
{
    limit_kind(tile, begin, end, ahead);
}

#endif

static void limit_tile(const update_args *tile, int thread_count, uint64_t ahead)
{
#pragma omp parallel for schedule(static) num_threads(thread_count)
    for (int share = 0; share < thread_count; share++) {
        uint64_t steps = TILE_ELEMS / LIMIT_STEP, count = (uint64_t)thread_count;
        limit_range(tile, steps * (uint64_t)share / count * LIMIT_STEP,
                    steps * (uint64_t)(share + 1) / count * LIMIT_STEP, ahead);
    }
}

/* ---- rows ---- */

struct row {
    bool is_limit;  /* the limit's kernel, with `ahead`; otherwise the context's variant */
    uint64_t ahead; /* elements */
    const struct kind *kind;
    const struct working_set *set;
    kernel_context context;
};

static double row_seconds(void *user)
{
    struct row *row = user;
    uint64_t start = clock_ns();
    for (uint64_t t = 0; t < row->set->tile_count; t++) {
        update_args tile = tile_at(row->set, row->kind, t);
        if (row->is_limit)
            limit_tile(&tile, row->context.thread_count, row->ahead);
        else
            bench_require(cpui_update(&row->context, NULL, &tile));
    }
    return (double)(clock_ns() - start) * 1e-9;
}

static void bench_kind(const struct working_set *set, const struct kind *kind, int runs,
                       int threads)
{
    kernel_context contexts[VARIANT_COUNT];
    struct row rows[BODIES_MAX];
    struct bench_body bodies[BODIES_MAX];
    struct bench_summary times[BODIES_MAX];
    int variant_count = variant_contexts(contexts, threads), count = variant_count + LIMIT_COUNT;
    for (int i = 0; i < count; i++) {
        rows[i] = (struct row){.is_limit = i >= variant_count, .kind = kind, .set = set};
        rows[i].context = contexts[rows[i].is_limit ? 0 : i];
        rows[i].ahead = rows[i].is_limit ? limit_ahead[i - variant_count] : 0;
        bodies[i] = (struct bench_body){row_seconds, &rows[i]};
    }
    bench_by_turns(bodies, count, runs, times);
    int best = variant_count;
    for (int i = variant_count; i < count; i++)
        if (times[i].median < times[best].median)
            best = i;
    double elems = (double)set->tile_count * TILE_ELEMS, bytes = bytes_of(kind);
    const char *plural = threads == 1 ? "" : "s";
    printf("Adam %s: %.2f bytes a parameter, %d thread%s; limit %.3f ns a parameter +-%.1f%%\n",
           kind->name, bytes, threads, plural, times[best].median / elems * 1e9,
           100 * times[best].spread);
    for (int i = 0; i < variant_count; i++) {
        char name[128];
        snprintf(name, sizeof name, "Adam %s %s %d thread%s", kind->name,
                 cpui_adam_name(&rows[i].context), threads, plural);
        printf("  %.3f ns  ", times[i].median / elems * 1e9);
        bench_report(name, bytes * elems * 1e-9, "GB/s", &times[i], &times[best]);
    }
}

/* Runs a tile by each variant and by the reference, from equal inputs, and compares the results. */
static void check_kind(const struct kind *kind)
{
    struct working_set want, got;
    kernel_context contexts[VARIANT_COUNT], reference = {.thread_count = 1};
    int count = variant_contexts(contexts, 1);
    set_create(&want, 1, TILE_STREAMS_MAX, 2);
    set_create(&got, 1, TILE_STREAMS_MAX, 2);
    set_fill(&want, kind);
    update_args tile = tile_at(&want, kind, 0);
    cpui_adam_select(&reference); /* chooses the baseline */
    bench_require(cpui_update(&reference, NULL, &tile));
    for (int v = 0; v < count; v++) {
        set_fill(&got, kind);
        tile = tile_at(&got, kind, 0);
        bench_require(cpui_update(&contexts[v], NULL, &tile));
        if (memcmp(want.base, got.base, want.bytes) != 0)
            bench_require(err_set(ERR_INTERNAL, "%s differs from the reference",
                                  cpui_adam_name(&contexts[v])));
    }
    set_destroy(&want);
    set_destroy(&got);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    struct bench_adam_arguments taken = bench_adam_take(argc, argv, bench_is_quick() ? 8 : 32, 128);
    struct working_set set;
    bool found = false;
    for (int i = 0; i < KIND_COUNT; i++)
        found = found || strstr(kinds[i].name, taken.part);
    if (!found)
        bench_usage("the fourth argument is no part of a kind's name, such as \"split master\"");
    set_create(&set, (uint64_t)taken.millions, TILE_STREAMS_MAX, 2);
    printf("%ld Mi elements in tiles of 1 Mi, median of %ld runs by turns\n", taken.millions,
           taken.runs);
    for (int i = 0; i < KIND_COUNT; i++) {
        if (!strstr(kinds[i].name, taken.part))
            continue;
        check_kind(&kinds[i]);
        set_fill(&set, &kinds[i]);
        bench_kind(&set, &kinds[i], (int)taken.runs, 1);
        if (taken.threads > 1)
            bench_kind(&set, &kinds[i], (int)taken.runs, (int)taken.threads);
    }
    set_destroy(&set);
    return 0;
}
