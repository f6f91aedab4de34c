/* Rows of logits with gaps between them (an odd vocabulary padded to 16 bytes) give the reference's
 * losses and gradients, whole and in parts, in place and not. The gaps may hold anything (NaN here)
 * and keep their bytes. */
#include <math.h>

#include "base/rng.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { ROWS = 7, COLUMNS_MAX = 2051, STRIDE_MAX = 2080 };

static float logits[ROWS * STRIDE_MAX], want[ROWS * STRIDE_MAX], got[ROWS * STRIDE_MAX];
static float losses[2][ROWS];
static int32_t targets[ROWS];
static unsigned char raw[ROWS * STRIDE_MAX * 4];

static void run(gpu_fixture *gpu, enum dtype type, uint64_t columns, uint64_t stride, bool is_cut,
                bool in_place)
{
    uint64_t elem_bytes = dtype_bytes(type), count = ROWS * stride;
    cross_entropy_args args = {type,    ROWS,      columns, stride, logits,
                               targets, losses[0], raw,     0.25f,  0};
    memset(raw, 0, sizeof raw);
    assert_int_equal(kernels_reference.cross_entropy(NULL, NULL, &args), 0);
    gpu_widen(raw, type, want, count);
    float *stats = gpu_alloc(gpu, 4 * ROWS * sizeof(float));
    unsigned char *grads = gpu_alloc(gpu, count * elem_bytes);
    float *source = gpu_alloc_copy(gpu, logits, count * sizeof(float));
    int32_t *aims = gpu_alloc_copy(gpu, targets, sizeof targets);
    gpu_fill(gpu, grads, 0xa5, count * elem_bytes);
    if (in_place) { /* what lies between the rows is the logits' then */
        gpu_free(gpu, grads);
        grads = (unsigned char *)source;
    }
    args = (cross_entropy_args){type, ROWS, columns, stride, source, aims, stats, grads, 0.25f, 0};
    softmax_part_args part = {.type = type,
                              .rows = ROWS,
                              .columns = columns,
                              .stride = stride,
                              .is_first = true,
                              .logits = source,
                              .targets = aims,
                              .largest = stats + ROWS,
                              .sum = stats + 2 * ROWS,
                              .target_logit = stats + 3 * ROWS,
                              .losses = stats,
                              .logits_grad = grads,
                              .grad_scale = 0.25f};
    if (is_cut) {
        assert_int_equal(cudai_softmax_part(&gpu->context, gpu->stream, &part), 0);
        assert_int_equal(cudai_softmax_losses(&gpu->context, gpu->stream, &part), 0);
        assert_int_equal(cudai_cross_entropy_part(&gpu->context, gpu->stream, &part), 0);
    } else {
        assert_int_equal(cudai_cross_entropy(&gpu->context, gpu->stream, &args), 0);
    }
    gpu_download(gpu, losses[1], stats, sizeof losses[1]);
    gpu_download(gpu, raw, grads, count * elem_bytes);
    gpu_widen(raw, type, got, count);
    gpu_expect_close("losses", losses[1], losses[0], ROWS, 1e-6, 1e-6);
    for (uint64_t row = 0; row < ROWS; row++) {
        gpu_expect_close("gradients", got + row * stride, want + row * stride, columns, 1e-7,
                         type == DTYPE_FP32   ? 1e-5
                         : type == DTYPE_FP16 ? 1e-3
                                              : 8e-3);
        for (uint64_t i = (row * stride + columns) * elem_bytes;
             i < (row + 1) * stride * elem_bytes; i++)
            assert_int_equal(raw[i], in_place ? ((const unsigned char *)logits)[i] : 0xa5);
    }
    gpu_free(gpu, stats);
    if (!in_place)
        gpu_free(gpu, grads);
    gpu_free(gpu, source);
    gpu_free(gpu, aims);
}

static void rows_may_lie_apart(void **state)
{
    static const struct {
        uint64_t columns, stride;
    } shapes[] = {{1, 8},      {3, 4}, {77, 80}, {77, 79}, {515, 520}, {COLUMNS_MAX, 2056},
                  {2048, 2056}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int type = 0; type < DTYPE_COUNT; type++)
            for (int is_cut = 0; is_cut < 2; is_cut++) {
                for (uint64_t i = 0; i < ROWS * shapes[s].stride; i++)
                    logits[i] = 3.0f * rng_normal(gpu->seed, s, i);
                for (uint64_t i = 0; i < ROWS * shapes[s].stride; i++)
                    if (i % shapes[s].stride >= shapes[s].columns)
                        logits[i] = NAN;
                for (uint64_t row = 0; row < ROWS; row++)
                    targets[row] =
                        row == 2 ? -1 : (int32_t)rng_below(gpu->seed, 9, row, shapes[s].columns);
                targets[0] = (int32_t)shapes[s].columns - 1;
                run(gpu, (enum dtype)type, shapes[s].columns, shapes[s].stride, is_cut, false);
                if (type == DTYPE_FP32)
                    run(gpu, DTYPE_FP32, shapes[s].columns, shapes[s].stride, is_cut, true);
            }
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_may_lie_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
