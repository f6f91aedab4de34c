/* Adam on packed state of the CUDA backend for test_gpu_update: every byte of all streams against
 * every variant of the CPU, over all formats and types, blocks that are not full, alignments,
 * values that are not finite, and a unit of more than 2^32 elements. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "tests/cuda/gpu_update.h"
#include "tests/unit.h"

enum { STREAM_COUNT = 5, SLACK_BYTES = 64, STEPS = 2 };
enum stream { MASTER, M, V, GRADS, PARAMS };

struct packed_shape {
    uint64_t count, first_elem;
    enum tile_format formats[3]; /* master, m, v */
    enum dtype grad_type, param_type;
    uint64_t shift; /* elements off alignment; codes stay on their scales' */
    bool is_special, decoupled;
};

static uint64_t stream_bytes(const struct packed_shape *shape, enum stream stream)
{
    if (stream <= V)
        return tile_format_bytes(shape->formats[stream], shape->count);
    return shape->count * dtype_bytes(stream == GRADS ? shape->grad_type : shape->param_type);
}

static uint64_t stream_offset(const struct packed_shape *shape, enum stream stream)
{
    if (stream <= V && shape->formats[stream] == TILE_INT8)
        return 4 * shape->shift;
    uint64_t width = stream <= V       ? tile_format_bytes(shape->formats[stream], 1)
                     : stream == GRADS ? dtype_bytes(shape->grad_type)
                                       : dtype_bytes(shape->param_type);
    return (stream == M ? 2 : 1) * shape->shift * width;
}

static int update(const kernel_ops *ops, kernel_context *context, void *stream,
                  const struct packed_shape *shape, char *const blocks[STREAM_COUNT], uint64_t step)
{
    update_scalars scalars = {.learning_rate = 3e-3f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .epsilon = 1e-8f,
                              .weight_decay = 0.1f,
                              .decoupled = shape->decoupled,
                              .bias_correction1 = 0.19f,
                              .bias_correction2_sqrt = 0.3f,
                              .grad_scale = 0.37f};
    update_args args = {
        .count = shape->count,
        .streams =
            tile_streams_code(3, shape->formats[MASTER], shape->formats[M], shape->formats[V]),
        .master = blocks[MASTER] + stream_offset(shape, MASTER),
        .m = blocks[M] + stream_offset(shape, M),
        .v = blocks[V] + stream_offset(shape, V),
        .grads = blocks[GRADS] + stream_offset(shape, GRADS),
        .grad_type = shape->grad_type,
        .params = blocks[PARAMS] + stream_offset(shape, PARAMS),
        .param_type = shape->param_type,
        .scalars = &scalars,
        .rounding_key = 7 + step,
        .first_elem = shape->first_elem,
    };
    return ops->update(context, stream, &args);
}

/* Numbers as in training, or patterns of every kind. */
static void fill_stream(const struct packed_shape *shape, enum stream stream, uint64_t seed,
                        char *data)
{
    enum tile_format format = stream <= V ? shape->formats[stream] : TILE_FORMAT_COUNT;
    enum dtype type = stream == GRADS       ? shape->grad_type
                      : stream == PARAMS    ? shape->param_type
                      : format == TILE_FP32 ? DTYPE_FP32
                                            : DTYPE_BF16;
    static const float sizes[STREAM_COUNT] = {0.1f, 0.01f, 1e-4f, 0.01f, 0.1f};
    uint64_t bytes = stream_bytes(shape, stream);
    if (format == TILE_INT8 || format == TILE_LOW16) { /* any code; scales after each 4096 */
        for (uint64_t i = 0; i < bytes / 4; i++) {
            uint32_t bits = (uint32_t)rng_u64(seed, stream, i);
            if (format == TILE_INT8 && i % (TILE_CODE_BLOCK_BYTES / 4) >= TILE_CODE_BLOCK_ELEMS / 4)
                bits = shape->is_special && i % 5 == 0 ? special_bits[i % SPECIAL_COUNT]
                                                       : (bits & 0x03ffffff) | 0x38000000;
            memcpy(data + 4 * i, &bits, 4);
        }
        return;
    }
    for (uint64_t i = 0; i < shape->count; i++) {
        float value = sizes[stream] * rng_normal(seed, stream, i) * (i % 13 ? 1.0f : 1e-6f);
        if (shape->is_special && (i / 256 % 3 != 2 || i % 64 == 0))
            value = fp32_from_bits(special_bits[(i * (2 * stream + 1) + i / 40) % SPECIAL_COUNT]);
        if (stream == V && !shape->is_special)
            value = value < 0 ? -value : value;
        dtype_convert(&value, DTYPE_FP32, data + i * dtype_bytes(type), type, 1);
    }
}

static void compare(gpu_fixture *gpu, const cpu_variants *variants,
                    const struct packed_shape *shape)
{
    static const char *const names[STREAM_COUNT] = {"master", "m", "v", "grads", "params"};
    char *start[STREAM_COUNT], *want[STREAM_COUNT], *got[STREAM_COUNT], *device[STREAM_COUNT];
    uint64_t bytes[STREAM_COUNT];
    for (int i = 0; i < STREAM_COUNT; i++) {
        bytes[i] = size_round_up(stream_bytes(shape, (enum stream)i), 4) + SLACK_BYTES;
        start[i] = mem_alloc(bytes[i], 1, "test stream");
        want[i] = mem_alloc(bytes[i], 1, "test stream");
        got[i] = mem_alloc(bytes[i], 1, "test stream");
        assert_true(start[i] && want[i] && got[i]);
        memset(start[i], 0x5a, bytes[i]);
        fill_stream(shape, (enum stream)i, gpu->seed + shape->count,
                    start[i] + stream_offset(shape, (enum stream)i));
        device[i] = gpu_alloc_copy(gpu, start[i], bytes[i]);
    }
    for (uint64_t step = 0; step < STEPS; step++)
        assert_ok(update(&gpu_update_ops, &gpu->context, gpu->stream, shape, device, step));
    for (int i = 0; i < STREAM_COUNT; i++)
        gpu_download(gpu, got[i], device[i], bytes[i]);
    for (int variant = 0; variant < variants->count; variant++) {
        for (int i = 0; i < STREAM_COUNT; i++)
            memcpy(want[i], start[i], bytes[i]);
        for (uint64_t step = 0; step < STEPS; step++)
            assert_int_equal(
                update(&cpu_update_ops, variants->contexts[variant], NULL, shape, want, step), 0);
        for (int i = 0; i < STREAM_COUNT; i++) {
            char name[160];
            snprintf(
                name, sizeof name,
                "%s of packed Adam, formats %d %d %d, count %d, grads %s, params %s%s, against %s",
                names[i], (int)shape->formats[0], (int)shape->formats[1], (int)shape->formats[2],
                (int)shape->count, dtype_name(shape->grad_type), dtype_name(shape->param_type),
                shape->is_special ? ", special values" : "", variants->names[variant]);
            gpu_expect_same(name, got[i], want[i], bytes[i] / 4, 4);
        }
    }
    for (int i = 0; i < STREAM_COUNT; i++) {
        gpu_free(gpu, device[i]);
        mem_free(start[i]);
        mem_free(want[i]);
        mem_free(got[i]);
    }
}

/* Calls compare with every form of state and types, each with one of the counts. */
static void over_forms(const uint64_t *counts, int count_count, bool is_special)
{
    static const enum tile_format moments[] = {TILE_FP32, TILE_BF16, TILE_INT8};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    for (int idx = 0; idx < 4 * 9 * DTYPE_COUNT; idx++) {
        int kind = idx % 4, m = idx / 4 % 3, v = idx / 12 % 3, grad = idx / 36;
        struct packed_shape shape = {
            .count = counts[idx % count_count],
            .formats = {kind == 3 ? TILE_LOW16 : TILE_FP32, moments[m], moments[v]},
            .grad_type = (enum dtype)grad,
            .param_type = kind == 3 ? DTYPE_BF16 : (enum dtype)kind,
            .shift = (uint64_t)(idx / 5 % 3),
            .is_special = is_special,
            .decoupled = idx % 7 != 0,
        };
        compare(gpu, &variants, &shape);
    }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

void packed_updates_have_the_cpu_bits(void **state)
{
    static const uint64_t counts[] = {1, 3, 31, 255, 256, 257, 1023, 4096, 4096 + 300, 5000, 8192};
    over_forms(counts, sizeof counts / sizeof counts[0], false);
}

void packed_special_values_have_the_cpu_bits(void **state)
{
    static const uint64_t counts[] = {4096 + 77, 2048};
    over_forms(counts, 2, true);
}

/* Warps go round, and the upper half of the elements' numbers changes within the tile. */
void packed_warps_go_round(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    gpu->context.sm_count = 1; /* at most 32 blocks of 8 warps */
    struct packed_shape shape = {.count = 32 * 8 * 256 + 5 * 4096 + 19,
                                 .first_elem = ((uint64_t)1 << 32) - 2 * 4096,
                                 .formats = {TILE_LOW16, TILE_BF16, TILE_INT8},
                                 .grad_type = DTYPE_BF16,
                                 .param_type = DTYPE_BF16,
                                 .decoupled = true};
    compare(gpu, &variants, &shape);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}
