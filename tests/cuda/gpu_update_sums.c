/* Working copies, closing of gradients and the norm on a GPU: to the bit what each variant of the
 * CPU backend gives. Part of test_gpu_update. */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "tests/cuda/gpu_update.h"
#include "tests/unit.h"

enum { SLACK_ELEMS = 8, BLOCK = SHARD_ELEMS_STEP };

/* --- large shapes --- */

bool has_room_for_large(const gpu_fixture *gpu, uint64_t bytes)
{
    size_t free_bytes, total_bytes;
    if (gpu->is_simulated)
        return false;
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    if (free_bytes >= bytes + GIB)
        return true;
    printf("left out: %" PRIu64 " bytes on the GPU are needed, %zu are free\n", bytes, free_bytes);
    return false;
}

void fill_repeated(gpu_fixture *gpu, void *target, uint64_t bytes, const void *chunk,
                   uint64_t chunk_bytes)
{
    gpu_upload(gpu, target, chunk, size_min(chunk_bytes, bytes));
    for (uint64_t at = chunk_bytes; at < bytes; at += chunk_bytes)
        assert_int_equal(cudaMemcpy((char *)target + at, target, size_min(chunk_bytes, bytes - at),
                                    cudaMemcpyDeviceToDevice),
                         cudaSuccess);
    gpu_sync(gpu);
}

void expect_repeated(gpu_fixture *gpu, const char *name, const void *source, uint64_t bytes,
                     const void *want, uint64_t chunk_bytes)
{
    char *got = mem_alloc(chunk_bytes, 1, "test chunk");
    assert_non_null(got);
    for (uint64_t at = 0; at < bytes; at += chunk_bytes) {
        uint64_t length = size_min(chunk_bytes, bytes - at);
        char text[96];
        snprintf(text, sizeof text, "%s from byte %" PRIu64, name, at);
        gpu_download(gpu, got, (const char *)source + at, length);
        if (memcmp(got, want, length) != 0)
            gpu_expect_same(text, got, want, length, 1);
    }
    mem_free(got);
}

/* --- values --- */

/* Numbers on both sides of every rounding: each upper half with the lower halves that decide a tie
 * to bf16; or each fp16 number, its neighbour halfway up and what lies beside that. */
enum { ROUNDINGS = 6 };
static float rounding_at(enum dtype type, uint64_t i)
{
    static const uint32_t lower[ROUNDINGS] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    static const uint32_t beside[ROUNDINGS] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x1fff};
    uint32_t half = (uint32_t)(i / ROUNDINGS % 65536);
    if (type != DTYPE_FP16)
        return fp32_from_bits(half << 16 | lower[i % ROUNDINGS]);
    float value = fp32_from_fp16((uint16_t)half);
    if (fabsf(value) >= 0x1p-14f || value != value)
        return fp32_from_bits(fp32_bits(value) + beside[i % ROUNDINGS]);
    /* Subnormal: its step is 2^-24, and fp32 still has digits below. */
    float step = (float)beside[i % ROUNDINGS] * 0x1p-37f;
    return half & 0x8000u ? value - step : value + step;
}

/* Numbers, special values, or random bits; i % 3 says which. */
static float mixed_at(uint64_t seed, uint64_t i)
{
    if (i % 3 == 0)
        return 0.1f * rng_normal(seed, 1, i);
    if (i % 3 == 1)
        return fp32_from_bits(special_bits[i / 3 % SPECIAL_COUNT]);
    return fp32_from_bits((uint32_t)rng_u64(seed, 2, i));
}

static float *alloc_floats(uint64_t count)
{
    float *values = mem_alloc(count, sizeof *values, "test values");
    assert_non_null(values);
    return values;
}

/* --- working copies --- */

/* `shift` elements off alignment, with spare elements at the end. */
static void compare_copies(gpu_fixture *gpu, const cpu_variants *variants, const float *master,
                           uint64_t count, enum dtype type, uint64_t shift)
{
    uint64_t elems = count + SLACK_ELEMS, bytes = elems * dtype_bytes(type);
    uint64_t skip = shift * dtype_bytes(type);
    float *source = gpu_alloc_copy(gpu, master, 4 * elems);
    char *copy = gpu_alloc(gpu, bytes);
    char *got = mem_alloc(bytes, 1, "copy"), *want = mem_alloc(bytes, 1, "copy");
    assert_true(got && want);
    assert_ok(
        cudai_working_copy(&gpu->context, gpu->stream, source + shift, copy + skip, type, count));
    gpu_download(gpu, got, copy, bytes);
    for (int variant = 0; variant < variants->count; variant++) {
        memset(want, 0xff, bytes);
        assert_int_equal(cpu_update_ops.working_copy(variants->contexts[variant], NULL,
                                                     master + shift, want + skip, type, count),
                         0);
        char name[96];
        snprintf(name, sizeof name, "%s copy of %" PRIu64 ", shift %" PRIu64 ", against %s",
                 dtype_name(type), count, shift, variants->names[variant]);
        gpu_expect_same(name, got, want, elems, dtype_bytes(type));
    }
    gpu_free(gpu, source);
    gpu_free(gpu, copy);
    mem_free(got);
    mem_free(want);
}

void copies_have_the_cpu_bits(void **state)
{
    enum { COUNT_MAX = 32 * 256 * 4 * 4 + 4 * 5000 + 3 };
    static const uint64_t counts[] = {0, 1, 3, 4, 7, 31, 4096, 9999, COUNT_MAX};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    gpu->context.sm_count = 1; /* the largest count goes round the grid's threads */
    float *master = alloc_floats(COUNT_MAX + SLACK_ELEMS);
    for (uint64_t i = 0; i < COUNT_MAX + SLACK_ELEMS; i++)
        master[i] = mixed_at(gpu->seed, i);
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (uint64_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (uint64_t shift = 0; shift < 4; shift += 1 + i % 2)
                compare_copies(gpu, &variants, master, counts[i], (enum dtype)type, shift);
    mem_free(master);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

void copies_of_every_half(void **state)
{
    enum { COUNT = 65536 * ROUNDINGS };
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    float *master = alloc_floats(COUNT + SLACK_ELEMS);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        for (uint64_t i = 0; i < COUNT; i++)
            master[i] = rounding_at((enum dtype)type, i);
        compare_copies(gpu, &variants, master, COUNT, (enum dtype)type, 0);
    }
    mem_free(master);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* More than 2^31 elements; see many_elements in test_gpu_update.c. */
void copy_of_many_elements(void **state)
{
    enum { PERIOD = 3 << 20 };
    uint64_t count = ((uint64_t)1 << 31) + PERIOD + 5;
    gpu_fixture *gpu = gpu_begin();
    if (!has_room_for_large(gpu, 6 * count)) {
        gpu_end(gpu);
        return;
    }
    cpu_variants variants;
    cpu_variants_open(&variants);
    float *master = alloc_floats(PERIOD);
    uint16_t *want = mem_alloc(PERIOD, sizeof *want, "copy");
    assert_non_null(want);
    for (uint64_t i = 0; i < PERIOD; i++)
        master[i] = mixed_at(gpu->seed, i);
    float *source = gpu_alloc(gpu, 4 * count);
    void *copy = gpu_alloc(gpu, 2 * count);
    fill_repeated(gpu, source, 4 * count, master, 4 * (uint64_t)PERIOD);
    assert_int_equal(
        cudai_working_copy(&gpu->context, gpu->stream, source, copy, DTYPE_BF16, count), 0);
    assert_int_equal(cpu_update_ops.working_copy(variants.contexts[variants.count - 1], NULL,
                                                 master, want, DTYPE_BF16, PERIOD),
                     0);
    expect_repeated(gpu, "copy", copy, 2 * count, want, 2 * (uint64_t)PERIOD);
    mem_free(master);
    mem_free(want);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* --- closing --- */

/* Closes blocks of the accumulator, which starts `shift` elements off alignment; grads start at
 * twice that, or on the accumulator. */
static void compare_closing(gpu_fixture *gpu, const cpu_variants *variants,
                            const float *accumulator, uint64_t blocks, enum dtype type,
                            uint64_t shift, bool is_in_place)
{
    uint64_t count = blocks * BLOCK, elems = count + SLACK_ELEMS;
    uint64_t bytes = elems * (is_in_place ? 4 : dtype_bytes(type));
    uint64_t skip = (is_in_place ? shift : 2 * shift) * dtype_bytes(type);
    float *source = gpu_alloc_copy(gpu, accumulator, 4 * elems);
    char *grads = is_in_place ? (char *)source : gpu_alloc(gpu, bytes);
    double *sums = gpu_alloc(gpu, blocks * sizeof *sums);
    char *got = mem_alloc(bytes, 1, "grads"), *want = mem_alloc(bytes, 1, "grads");
    double *got_sums = mem_alloc(blocks, sizeof *sums, "sums");
    double *want_sums = mem_alloc(blocks, sizeof *sums, "sums");
    assert_true(got && want && got_sums && want_sums);
    grad_close_args args = {.count = count,
                            .accumulator = source + shift,
                            .grads = grads + skip,
                            .grad_type = type,
                            .block_sums = sums};
    assert_ok(cudai_grad_close(&gpu->context, gpu->stream, &args));
    gpu_download(gpu, got, grads, bytes);
    gpu_download(gpu, got_sums, sums, blocks * sizeof *sums);
    for (int variant = 0; variant < variants->count; variant++) {
        if (is_in_place)
            memcpy(want, accumulator, bytes);
        else
            memset(want, 0xff, bytes);
        args.accumulator =
            is_in_place ? (const float *)(const void *)(want + skip) : accumulator + shift;
        args.grads = want + skip;
        args.block_sums = want_sums;
        assert_int_equal(cpu_update_ops.grad_close(variants->contexts[variant], NULL, &args), 0);
        char name[96];
        snprintf(name, sizeof name, "%s of %" PRIu64 " blocks%s, shift %" PRIu64 ", against %s",
                 dtype_name(type), blocks, is_in_place ? " in place" : "", shift,
                 variants->names[variant]);
        gpu_expect_same(name, got, want, elems, bytes / elems);
        gpu_expect_same(name, got_sums, want_sums, blocks, sizeof *sums);
    }
    gpu_free(gpu, source);
    if (!is_in_place)
        gpu_free(gpu, grads);
    gpu_free(gpu, sums);
    mem_free(got);
    mem_free(want);
    mem_free(got_sums);
    mem_free(want_sums);
}

/* Numbers of many sizes, whose sums depend on the order; some blocks with special values, some with
 * those that are finite. */
static void fill_accumulator(float *values, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t block = i / BLOCK;
        values[i] = ldexpf(rng_normal(seed, 3, i), (int)(rng_u64(seed, 4, i) % 24) - 12);
        float special = fp32_from_bits(special_bits[i % SPECIAL_COUNT]);
        if (block % 5 == 3 && (isfinite(special) || block % 10 == 8) && i % 7 == 0)
            values[i] = special;
        if (block % 11 == 6 && i % BLOCK == block % BLOCK)
            values[i] = block % 2 ? INFINITY : fp32_from_bits(0xffc12345);
    }
}

void closing_has_the_cpu_bits(void **state)
{
    enum { ROUND = 32 * 2 * 8, BLOCKS_MAX = ROUND + 19 };
    static const uint64_t counts[] = {0, 1, 2, 7, 8, 9, 17, 33};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    gpu->context.sm_count =
        1; /* at most 32 blocks of two warps, each with eight blocks at a time */
    float *accumulator = alloc_floats((uint64_t)BLOCKS_MAX * BLOCK + SLACK_ELEMS);
    fill_accumulator(accumulator, (uint64_t)BLOCKS_MAX * BLOCK + SLACK_ELEMS, gpu->seed);
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (uint64_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (uint64_t shift = 0; shift < 3; shift++) {
                bool may_be_in_place = type == DTYPE_FP32;
                compare_closing(gpu, &variants, accumulator, counts[i], (enum dtype)type, shift,
                                false);
                if (may_be_in_place)
                    compare_closing(gpu, &variants, accumulator, counts[i], (enum dtype)type, shift,
                                    true);
            }
    compare_closing(gpu, &variants, accumulator, BLOCKS_MAX, DTYPE_BF16, 0, false);
    mem_free(accumulator);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

void closing_of_every_half(void **state)
{
    enum { COUNT = 65536 * ROUNDINGS };
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    float *accumulator = alloc_floats(COUNT + SLACK_ELEMS);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        for (uint64_t i = 0; i < COUNT; i++)
            accumulator[i] = rounding_at((enum dtype)type, i);
        compare_closing(gpu, &variants, accumulator, COUNT / BLOCK, (enum dtype)type, 0, false);
    }
    mem_free(accumulator);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* More than 2^31 elements; see many_elements in test_gpu_update.c. */
void closing_many_elements(void **state)
{
    enum { PERIOD_BLOCKS = 3 << 8, PERIOD = PERIOD_BLOCKS * BLOCK };
    uint64_t blocks = ((uint64_t)1 << 31) / BLOCK + PERIOD_BLOCKS + 5, count = blocks * BLOCK;
    gpu_fixture *gpu = gpu_begin();
    if (!has_room_for_large(gpu, 6 * count + 8 * blocks)) {
        gpu_end(gpu);
        return;
    }
    cpu_variants variants;
    cpu_variants_open(&variants);
    float *accumulator = alloc_floats(PERIOD);
    uint16_t *want = mem_alloc(PERIOD, sizeof *want, "grads");
    double *want_sums = mem_alloc(PERIOD_BLOCKS, sizeof *want_sums, "sums");
    assert_true(want && want_sums);
    fill_accumulator(accumulator, PERIOD, gpu->seed);
    grad_close_args args = {.count = count,
                            .accumulator = gpu_alloc(gpu, 4 * count),
                            .grads = gpu_alloc(gpu, 2 * count),
                            .grad_type = DTYPE_BF16,
                            .block_sums = gpu_alloc(gpu, 8 * blocks)};
    fill_repeated(gpu, (void *)(uintptr_t)args.accumulator, 4 * count, accumulator,
                  4 * (uint64_t)PERIOD);
    assert_int_equal(cudai_grad_close(&gpu->context, gpu->stream, &args), 0);
    grad_close_args expected = {.count = PERIOD,
                                .accumulator = accumulator,
                                .grads = want,
                                .grad_type = DTYPE_BF16,
                                .block_sums = want_sums};
    assert_int_equal(
        cpu_update_ops.grad_close(variants.contexts[variants.count - 1], NULL, &expected), 0);
    expect_repeated(gpu, "grads", args.grads, 2 * count, want, 2 * (uint64_t)PERIOD);
    expect_repeated(gpu, "sums", args.block_sums, 8 * blocks, want_sums,
                    8 * (uint64_t)PERIOD_BLOCKS);
    mem_free(accumulator);
    mem_free(want);
    mem_free(want_sums);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* --- the norm --- */

static double *alloc_sums(uint64_t count, uint64_t seed)
{
    double *sums = mem_alloc(count, sizeof *sums, "sums");
    assert_non_null(sums);
    for (uint64_t i = 0; i < count; i++) /* of many sizes and both signs: the order shows */
        sums[i] = ldexp(rng_uniform(seed, 5, i) - 0.25, (int)(rng_u64(seed, 6, i) % 40));
    return sums;
}

/* In device memory and in pinned host memory, from a start that may be off 16 bytes. */
static void compare_norm(gpu_fixture *gpu, const cpu_variants *variants, const double *sums,
                         uint64_t count, uint64_t shift, bool is_pinned)
{
    double *source = gpu_alloc(gpu, 8 * (count + shift)), *total, got, want;
    gpu_upload(gpu, source + shift, sums, 8 * count);
    if (is_pinned)
        assert_int_equal(cudaHostAlloc((void **)&total, sizeof *total, cudaHostAllocDefault),
                         cudaSuccess);
    else
        total = gpu_alloc(gpu, sizeof *total);
    assert_ok(cudai_norm_reduce(&gpu->context, gpu->stream, source + shift, count, total));
    gpu_sync(gpu);
    if (is_pinned)
        got = *total;
    else
        gpu_download(gpu, &got, total, sizeof got);
    for (int variant = 0; variant < variants->count; variant++) {
        assert_int_equal(
            cpu_update_ops.norm_reduce(variants->contexts[variant], NULL, sums, count, &want), 0);
        char name[64];
        snprintf(name, sizeof name, "norm of %" PRIu64 ", shift %" PRIu64, count, shift);
        gpu_expect_same(name, &got, &want, 1, sizeof got);
    }
    if (is_pinned)
        assert_int_equal(cudaFreeHost(total), cudaSuccess);
    else
        gpu_free(gpu, total);
    gpu_free(gpu, source);
}

void norm_is_the_cpu_tree(void **state)
{
    enum { COUNT_MAX = 100003 };
    static const uint64_t counts[] = {0,    1,        2,     3,         5,        7,    63,
                                      64,   65,       100,   511,       512,      513,  1023,
                                      4095, 4096,     4097,  4608,      8191,     8192, 8193,
                                      9999, 4096 * 3, 32768, 32768 + 1, COUNT_MAX};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    double *sums = alloc_sums(COUNT_MAX, gpu->seed);
    for (uint64_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (uint64_t shift = 0; shift < 2; shift++)
            compare_norm(gpu, &variants, sums, counts[i], shift, (i + shift) % 2);
    mem_free(sums);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* Zeros with a sign, subnormals, infinities and NaN of any payload, at the first, an inner and the
 * last place. */
void norm_of_odd_values(void **state)
{
    enum { COUNT = 4613 };
    static const uint64_t odd_bits[] = {0x0000000000000001u, 0x7ff0000000000000u,
                                        0xfff0000000000000u, 0x7ff8000000000000u,
                                        0xfff8000000001234u, 0x7ff0000000000001u};
    static const uint64_t places[] = {0, 600, COUNT - 1};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    double *sums = alloc_sums(COUNT, gpu->seed);
    for (uint64_t i = 0; i < sizeof odd_bits / sizeof odd_bits[0]; i++)
        for (uint64_t place = 0; place < 3; place++) {
            double kept = sums[places[place]];
            memcpy(&sums[places[place]], &odd_bits[i], sizeof kept);
            compare_norm(gpu, &variants, sums, COUNT, 0, false);
            compare_norm(gpu, &variants, sums + places[place], 1, 0, false);
            sums[places[place]] = kept;
        }
    for (uint64_t i = 0; i < COUNT; i++)
        sums[i] = -0.0;
    compare_norm(gpu, &variants, sums, COUNT, 0, false);
    compare_norm(gpu, &variants, sums, 1, 0, false);
    for (uint64_t i = 0; i < COUNT; i++)
        sums[i] = i % 3 ? 0x1p-1074 : 0.0;
    compare_norm(gpu, &variants, sums, COUNT, 0, false);
    mem_free(sums);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* One after the other on the stream without waiting: each leaves the counter as it found it. */
void norm_calls_follow_one_another(void **state)
{
    enum { CALLS = 12, COUNT_MAX = 30011 };
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    double *sums = alloc_sums(COUNT_MAX, gpu->seed + 1), got[CALLS], want[CALLS];
    double *source = gpu_alloc_copy(gpu, sums, 8 * (uint64_t)COUNT_MAX);
    double *totals = gpu_alloc(gpu, sizeof got);
    for (uint64_t i = 0; i < CALLS; i++) {
        uint64_t begin = 17 * i, count = i % 3 ? COUNT_MAX - 1000 * i : 5 * i;
        assert_int_equal(cudai_norm_reduce(&gpu->context, gpu->stream, source + begin,
                                           size_min(count, COUNT_MAX - begin), totals + i),
                         0);
        assert_int_equal(cpu_update_ops.norm_reduce(variants.contexts[0], NULL, sums + begin,
                                                    size_min(count, COUNT_MAX - begin), &want[i]),
                         0);
    }
    gpu_download(gpu, got, totals, sizeof got);
    gpu_expect_same("norms in a row", got, want, CALLS, sizeof got[0]);
    mem_free(sums);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* Where a block of threads must take more than its least share: above 1024 times 4096 sums; on a
 * GPU those of a quarter of 2^40 elements, 512 MiB. */
void norm_of_many_sums(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    uint64_t count = gpu->is_simulated ? ((uint64_t)1 << 22) + 4097 : ((uint64_t)1 << 26) + 12345;
    double *sums = alloc_sums(count, gpu->seed);
    compare_norm(gpu, &variants, sums, count, 0, true);
    double total = 0;
    assert_int_equal(
        cudai_norm_reduce(&gpu->context, gpu->stream, sums, ((uint64_t)1 << 30) + 1, &total),
        ERR_INTERNAL);
    mem_free(sums);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}
