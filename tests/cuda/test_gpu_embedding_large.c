/* The CUDA backend's embedding and its gradient with over 2^31 elements in the table, the output
 * and the gradients; on the simulated GPU, or one with little memory, the same with small
 * numbers. */
#include "base/mem.h"
#include "kernels/ops.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

static void *block(uint64_t bytes)
{
    void *memory = mem_alloc(bytes + 1, 1, "test");
    assert_non_null(memory);
    return memory;
}

struct shape {
    uint64_t channels, vocab, rows; /* vocab and rows odd, vocab < rows < 2 vocab - 4 */
};

/* Even rows have the last token; an odd row r has token r modulo vocab - 1. */
static int32_t token_of_row(const struct shape *shape, uint64_t row)
{
    return (int32_t)(row % 2 == 0 ? shape->vocab - 1 : row % (shape->vocab - 1));
}

static const uint16_t common = 0x4040; /* bf16 3.0: all elements of the table but its last row's */

static uint16_t last_value(uint64_t channel)
{
    return bf16_from_fp32((float)(channel % 8)); /* sums of 2^19 of them are exact in fp32 */
}

static void check_output(gpu_fixture *gpu, const struct shape *shape, const uint16_t *output)
{
    uint16_t *got = block(shape->channels * sizeof *got);
    for (uint64_t row = shape->rows - 2; row < shape->rows; row++) { /* a common one, a last one */
        gpu_download(gpu, got, output + row * shape->channels, shape->channels * sizeof *got);
        for (uint64_t c = 0; c < shape->channels; c++)
            assert_int_equal(got[c], row % 2 == 0 ? last_value(c) : common);
    }
    mem_free(got);
}

static void check_gradient(gpu_fixture *gpu, const struct shape *shape, const float *table_grad)
{
    uint64_t tokens[] = {shape->vocab - 1, shape->vocab - 3, shape->vocab - 4};
    float *got = block(shape->channels * sizeof *got);
    for (int i = 0; i < 3; i++) {
        gpu_download(gpu, got, table_grad + tokens[i] * shape->channels,
                     shape->channels * sizeof *got);
        for (uint64_t c = 0; c < shape->channels; c++) {
            float last = (float)(c % 8) * (float)(shape->rows / 2 + 1);
            /* vocab - 3 is even and has no odd row, vocab - 4 has one */
            assert_true(got[c] == (i == 0 ? last : i == 1 ? 0.0f : 3.0f));
        }
    }
    mem_free(got);
}

static void large_shapes(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    struct shape shape = {2056, (1 << 20) + 3, (1 << 20) + 5};
    if (gpu->is_simulated || gpu->total_bytes < 40ull << 30) {
        printf("small numbers: it takes a GPU with 40 GiB\n");
        shape = (struct shape){24, (1 << 10) + 3, (1 << 10) + 5};
    }
    uint64_t channels = shape.channels, elems = shape.vocab * channels;
    int32_t *ids = block(shape.rows * sizeof *ids);
    uint16_t *last = block(channels * sizeof *last);
    for (uint64_t row = 0; row < shape.rows; row++)
        ids[row] = token_of_row(&shape, row);
    for (uint64_t c = 0; c < channels; c++)
        last[c] = last_value(c);
    uint16_t *table = gpu_alloc(gpu, elems * sizeof *table);
    uint16_t *output = gpu_alloc(gpu, shape.rows * channels * sizeof *output);
    float *table_grad = gpu_alloc(gpu, elems * sizeof *table_grad);
    gpu_fill(gpu, table, 0x40, elems * sizeof *table);
    gpu_fill(gpu, table_grad, 0, elems * sizeof *table_grad);
    gpu_upload(gpu, table + (elems - channels), last, channels * sizeof *last);
    embedding_args args = {.type = DTYPE_BF16,
                           .batch = 1,
                           .tokens = shape.rows,
                           .channels = channels,
                           .vocab = shape.vocab,
                           .token_ids = gpu_alloc_copy(gpu, ids, shape.rows * sizeof *ids),
                           .token_table = table,
                           .output = output};
    assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    check_output(gpu, &shape, output);
    uint64_t scratch_bytes =
        cudai_embedding_grad_scratch_bytes(&gpu->context, shape.rows, shape.vocab);
    embedding_grad_args back = {.type = DTYPE_BF16,
                                .batch = 1,
                                .tokens = shape.rows,
                                .channels = channels,
                                .vocab = shape.vocab,
                                .token_ids = args.token_ids,
                                .output_grad = output,
                                .token_table_grad = table_grad,
                                .scratch = gpu_alloc(gpu, scratch_bytes)};
    assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &back), 0);
    check_gradient(gpu, &shape, table_grad);
    mem_free(ids);
    mem_free(last);
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
