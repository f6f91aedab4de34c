/* Adam on packed state on the CPU against the memory limit: each kind of state by every variant, with 1..N
 * threads, beside kernels that only move the same streams, measured in turn with them in one run.
 *
 *   bench_adam_state [MILLIONS_OF_ELEMENTS] [RUNS] [THREADS] [KIND]   defaults 8 (1..64), 9, all cores, all
 *
 * and the common options of bench.h. Gradients are bf16, and the working copy too. The working set is laid
 * out as in training: tiles of 1 Mi elements (base/tile.h), gradient and working copy at their residues, on
 * huge pages where the system gives them. Bytes per parameter are those read plus those written; moments
 * of 8 bits have their scales in them. Before anything is timed, an update by each variant is compared with
 * the reference. */
#include <errno.h>
#include <omp.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "base/rng.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "perf/bench.h"

enum { TILE_ELEMS = 1 << 20, BODIES_MAX = 64, LIMIT_STEP = 64 };

/* Elements that the limit's kernels ask for ahead of their use: the fastest of them is the limit. */
static const uint64_t limit_ahead[] = {512, 1024, 2048};
enum { LIMIT_COUNT = sizeof limit_ahead / sizeof limit_ahead[0] };

static const char *const variant_names[] = {"avx512", "avx2"};
enum { VARIANT_COUNT = 2 };

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

/* Elements [0, tile_count * TILE_ELEMS) as tiles of state with their gradient and working copy. */
struct working_set {
    char *base;
    uint64_t bytes, tile_count, state_pitch, flat_pitch;
};

static const adam_scalars scalars = {.learning_rate = 1e-4f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .decoupled = true,
                                     .bias_correction1 = 0.5f,
                                     .bias_correction2_sqrt = 0.5f,
                                     .grad_scale = 0.9f};

static uint32_t streams_of(const struct kind *kind)
{
    return tile_streams_code(3, kind->master, kind->m, kind->v);
}

static adam_packed_args tile_at(const struct working_set *set, const struct kind *kind, uint64_t t)
{
    char *state = set->base + t * (set->state_pitch + 2 * set->flat_pitch);
    char *flat = state + set->state_pitch;
    uint32_t streams = streams_of(kind);
    return (adam_packed_args){
        .count = TILE_ELEMS,
        .streams = streams,
        .master = state,
        .m = state + tile_stream_offset(streams, TILE_ELEMS, 1),
        .v = state + tile_stream_offset(streams, TILE_ELEMS, 2),
        .grads = flat + TILE_RESIDUE_GRADS,
        .grad_type = DTYPE_BF16,
        .params = flat + set->flat_pitch + TILE_RESIDUE_PARAMS,
        .param_type = DTYPE_BF16,
        .scalars = &scalars,
        .rounding_key = 1,
        .first_elem = t * TILE_ELEMS,
    };
}

/* Bytes that an update moves of a parameter. */
static double bytes_of(const struct kind *kind)
{
    uint32_t streams = streams_of(kind);
    double state = 2 * (double)tile_state_bytes(streams, TILE_ELEMS) / TILE_ELEMS;
    return state + 2 + 2 + (tile_master_is_split(streams) ? 2 : 0);
}

/* Weights and gradients as in training, moments zero; the working copy of a split master is its own. */
static void set_fill(const struct working_set *set, const struct kind *kind)
{
#pragma omp parallel for schedule(static)
    for (uint64_t t = 0; t < set->tile_count; t++) {
        adam_packed_args tile = tile_at(set, kind, t);
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

static int set_create(struct working_set *set, uint64_t tile_count)
{
    set->tile_count = tile_count;
    set->state_pitch = tile_pitch(TILE_ELEMS, TILE_STREAMS_MAX);
    set->flat_pitch =
        size_round_up(2 * (uint64_t)TILE_ELEMS, TILE_PERIOD_BYTES) + TILE_PERIOD_BYTES;
    set->bytes = tile_count * (set->state_pitch + 2 * set->flat_pitch) + 2 * MIB;
    void *mapping =
        mmap(NULL, set->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return -1;
    madvise(mapping, set->bytes, MADV_HUGEPAGE);
    set->base = (char *)size_round_up((uint64_t)(uintptr_t)mapping, 2 * MIB);
    set->bytes -= 2 * MIB;
    memset(set->base, 0, set->bytes);
    return 0;
}

/* ---- the limit: the same streams, moved ---- */

#ifdef __x86_64__

#define LIMIT_INLINE static inline __attribute__((always_inline, target("avx512f")))

/* Reads 64 elements of `width` bytes and writes them back. */
LIMIT_INLINE void limit_turn(char *stream, uint64_t width, uint64_t i, uint64_t ahead)
{
    __m512i lines[4];
    char *at = stream + i * width;
    for (uint64_t n = 0; n < width; n++)
        lines[n] = _mm512_loadu_si512(at + 64 * n);
    for (uint64_t n = 0; n < width; n++) {
        __builtin_prefetch(at + ahead * width + 64 * n);
        __asm__ volatile("" : "+v"(lines[n])); /* so that the store stays */
        _mm512_storeu_si512(at + 64 * n, lines[n]);
    }
}

LIMIT_INLINE void limit_loop(const adam_packed_args *tile, uint64_t begin, uint64_t end,
                             uint64_t ahead, uint64_t master, uint64_t moments, bool is_split)
{
    char *params = tile->params;
    const char *grads = tile->grads;
    for (uint64_t i = begin; i < end; i += LIMIT_STEP) {
        __m512i first = _mm512_loadu_si512(grads + 2 * i);
        __m512i second = _mm512_loadu_si512(grads + 2 * i + 64);
        __builtin_prefetch(grads + 2 * (i + ahead));
        __builtin_prefetch(grads + 2 * (i + ahead) + 64);
        __asm__ volatile("" : "+v"(first), "+v"(second));
        limit_turn(tile->master, master, i, ahead);
        limit_turn(tile->m, moments, i, ahead);
        limit_turn(tile->v, moments, i, ahead);
        if (is_split) {
            limit_turn(params, 2, i, ahead);
        } else {
            _mm512_stream_si512((__m512i *)(params + 2 * i), first);
            _mm512_stream_si512((__m512i *)(params + 2 * i + 64), second);
        }
    }
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void
limit_range(const adam_packed_args *tile, uint64_t begin, uint64_t end, uint64_t ahead)
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

static bool has_limit(void)
{
    return __builtin_cpu_supports("avx512f");
}

#else

static void limit_range(const adam_packed_args *tile, uint64_t begin, uint64_t end, uint64_t ahead)
{
    (void)tile, (void)begin, (void)end, (void)ahead;
}

static bool has_limit(void)
{
    return false;
}

#endif

static void limit_tile(const adam_packed_args *tile, int thread_count, uint64_t ahead)
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
    const char *variant; /* NULL: a limit, which asks `ahead` */
    uint64_t ahead;
    const struct kind *kind;
    const struct working_set *set;
    kernel_context context;
};

static double row_seconds(void *user)
{
    struct row *row = user;
    uint64_t start = clock_ns();
    for (uint64_t t = 0; t < row->set->tile_count; t++) {
        adam_packed_args tile = tile_at(row->set, row->kind, t);
        if (row->variant)
            bench_require(cpui_adam_packed(&row->context, NULL, &tile));
        else
            limit_tile(&tile, row->context.thread_count, row->ahead);
    }
    return (double)(clock_ns() - start) * 1e-9;
}

static void bench_kind(const struct working_set *set, const struct kind *kind, int runs,
                       int threads)
{
    struct row rows[BODIES_MAX];
    struct bench_body bodies[BODIES_MAX];
    struct bench_summary times[BODIES_MAX];
    int count = 0;
    set_fill(set, kind);
    for (int thread_count = 1; thread_count <= threads; thread_count++)
        for (int v = has_limit() ? -LIMIT_COUNT : 0; v < VARIANT_COUNT && count < BODIES_MAX; v++) {
            struct row *row = &rows[count];
            *row = (struct row){.kind = kind, .set = set};
            row->context.thread_count = thread_count;
            if (v < 0)
                row->ahead = limit_ahead[-1 - v];
            else
                row->variant = variant_names[v];
            if (row->variant && cpui_adam_select(&row->context, row->variant) < 0)
                continue;
            bodies[count++] = (struct bench_body){row_seconds, row};
        }
    bench_by_turns(bodies, count, runs, times);
    double elems = (double)set->tile_count * TILE_ELEMS, bytes = bytes_of(kind);
    const struct bench_summary *limit = NULL;
    int limit_threads = 0;
    printf("%s: %.2f bytes per parameter\n", kind->name, bytes);
    for (int i = 0; i < count; i++) {
        const char *variant = rows[i].variant ? rows[i].variant : "limit";
        int thread_count = rows[i].context.thread_count;
        if (!rows[i].variant) {
            bool is_first = !limit || limit_threads != thread_count;
            if (is_first || times[i].median < limit->median)
                limit = &times[i];
            limit_threads = thread_count;
            if (i + 1 < count && !rows[i + 1].variant)
                continue; /* the last of them prints the fastest */
        }
        const struct bench_summary *time = rows[i].variant ? &times[i] : limit;
        printf("  %d thread%s %-7s %6.3f ns/param %6.1f GB/s +-%4.1f%%", thread_count,
               thread_count == 1 ? " " : "s", variant, time->median / elems * 1e9,
               bytes * elems / time->median * 1e-9, 100 * time->spread);
        if (rows[i].variant) {
            char name[128];
            double rate = bytes * elems * 1e-9;
            snprintf(name, sizeof name, "Adam %s %s %d thread%s", kind->name, variant, thread_count,
                     thread_count == 1 ? "" : "s");
            if (limit)
                printf("  %5.1f%% of the limit", 100 * limit->median / time->median);
            bench_keep(name, rate / time->median, "GB/s", limit ? rate / limit->median : 0,
                       time->spread);
        }
        printf("\n");
    }
}

/* A tile by each variant and by the reference, from equal inputs. */
static void check_kind(const struct kind *kind)
{
    struct working_set want, got;
    kernel_context context = {.thread_count = 1};
    if (set_create(&want, 1) < 0 || set_create(&got, 1) < 0)
        bench_require(err_set(-ENOMEM, "no memory"));
    set_fill(&want, kind);
    adam_packed_args tile = tile_at(&want, kind, 0);
    bench_require(cpui_adam_select(&context, "reference"));
    bench_require(cpui_adam_packed(&context, NULL, &tile));
    for (int v = 0; v < VARIANT_COUNT; v++) {
        if (cpui_adam_select(&context, variant_names[v]) < 0)
            continue;
        set_fill(&got, kind);
        tile = tile_at(&got, kind, 0);
        bench_require(cpui_adam_packed(&context, NULL, &tile));
        if (memcmp(want.base, got.base, want.bytes) != 0)
            bench_require(err_set(ERR_INTERNAL, "%s differs from the reference", variant_names[v]));
    }
    munmap(want.base, want.bytes);
    munmap(got.base, got.bytes);
}

int main(int argc, char **argv)
{
    bench_begin(&argc, argv);
    long millions = argc > 1 ? atol(argv[1]) : bench_is_quick() ? 4 : 8;
    long runs = argc > 2 ? atol(argv[2]) : bench_is_quick() ? 7 : 9;
    long threads = argc > 3 ? atol(argv[3]) : omp_get_num_procs();
    if (millions < 1 || millions > 64 || runs < 7 || runs > BENCH_RUNS_MAX || threads < 1) {
        fprintf(
            stderr,
            "usage: bench_adam_state [MILLIONS_OF_ELEMENTS 1..64] [RUNS 7..%d] [THREADS] [KIND]\n",
            BENCH_RUNS_MAX);
        return 2;
    }
    struct working_set set;
    if (set_create(&set, (uint64_t)millions) < 0)
        bench_require(err_set(-ENOMEM, "no memory for %ld Mi parameters", millions));
    printf("%ld Mi elements in tiles of 1 Mi, median of %ld interleaved runs\n", millions, runs);
    for (int i = 0; i < KIND_COUNT; i++) {
        if (argc > 4 && !strstr(kinds[i].name, argv[4]))
            continue;
        check_kind(&kinds[i]);
        bench_kind(&set, &kinds[i], (int)runs, (int)threads);
    }
    return 0;
}
