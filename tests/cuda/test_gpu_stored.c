/* Expanding stored formats by the CUDA backend: the reference backend's bits, for odd shapes, every
 * code and memory that is aligned for packs or not. */
#include "tests/cuda/gpu_fixture.h"
#include "tests/kernels/stored_draw.h"
#include "tests/unit.h"

/* shift: elements of the target, and bytes of the codes, after an aligned address. */
static void check(gpu_fixture *gpu, const struct stored_matrix *m, enum dtype type, uint64_t shift)
{
    uint64_t bytes = m->rows * m->columns * dtype_bytes(type), skip = shift * dtype_bytes(type);
    stored_expand_args args = {.format = m->format,
                               .rows = m->rows,
                               .columns = m->columns,
                               .codes = m->codes,
                               .scales = m->scales,
                               .type = type,
                               .target = m->values};
    assert_int_equal(kernels_reference.stored_expand(NULL, NULL, &args), 0);
    char *codes = gpu_alloc(gpu, m->layout.code_bytes + shift);
    char *target = gpu_alloc(gpu, bytes + skip);
    gpu_upload(gpu, codes + shift, m->codes, m->layout.code_bytes);
    args.codes = codes + shift;
    args.scales = gpu_alloc_copy(gpu, m->scales, m->layout.scale_bytes);
    args.target = target + skip;
    assert_int_equal(cudai_stored_expand(&gpu->context, gpu->stream, &args), 0);
    void *got = mem_alloc(bytes, 1, "test");
    assert_non_null(got);
    gpu_download(gpu, got, target + skip, bytes);
    if (memcmp(got, m->values, bytes) != 0)
        fail_msg("%s %d x %d %s shift %d: not the reference's bits", stored_format_name(m->format),
                 (int)m->rows, (int)m->columns, dtype_name(type), (int)shift);
    mem_free(got);
    gpu_free(gpu, codes);
    gpu_free(gpu, target);
    gpu_free(gpu, (void *)args.scales);
}

static void expands(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1},     {3, 43},   {5, 64},
                                        {130, 160}, {2, 1000}, {129, 132}};
    static const char *const kinds[] = {"plain", "tiny", "huge"};
    gpu_fixture *gpu = gpu_begin();
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
                struct stored_matrix m = {.format = (enum stored_format)format,
                                          .rows = sizes[s][0],
                                          .columns = sizes[s][1]};
                if (!stored_fits(m.format, m.columns))
                    continue;
                draw_matrix(&m, gpu->seed, s, kinds[k]);
                quantize_matrix(&m, &kernels_reference, NULL, DTYPE_FP32, m.source);
                for (int type = 0; type < DTYPE_COUNT; type++)
                    for (uint64_t shift = 0; shift < 2; shift++)
                        check(gpu, &m, (enum dtype)type, shift);
                free_matrix(&m);
            }
    gpu_end(gpu);
}

static void all_codes(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++) {
        struct stored_matrix m = {.format = (enum stored_format)format, .rows = 3, .columns = 256};
        draw_matrix(&m, gpu->seed, 1, "plain");
        quantize_matrix(&m, &kernels_reference, NULL, DTYPE_FP32, m.source);
        for (uint64_t i = 0; i < m.layout.code_bytes; i++) /* e4m3 without NaN */
            ((uint8_t *)m.codes)[i] =
                (uint8_t)(m.layout.code == STORED_CODE_E4M3 && (i & 127) == 127 ? 0 : i);
        for (int type = 0; type < DTYPE_COUNT; type++)
            check(gpu, &m, (enum dtype)type, 0);
        free_matrix(&m);
    }
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(expands), cmocka_unit_test(all_codes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
