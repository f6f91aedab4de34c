/* Products that leave B packed and products that find it so give the bits of those that do neither: tiles (bf16 where the
 * CPU has AMX), fp32, and widened products (fp16), either operand cut, k in several slices, bias, sums, odd sizes, 1 and 2
 * threads. The one that finds it is not given B, and writes nothing to what is packed; products that pack alike
 * take what the other has left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels/ops.h"

enum { GUARD_BYTES = 4096, SEED = 3 };

struct shape {
    uint64_t m, n, k;
    bool b_transposed, has_bias, accumulate, c_is_fp32;
};

/* Of tiles m is cut from 4 n on; of fp32 and widened products where it is the longer. Slices of k are 1024, 384, 8192. */
static const struct shape shapes[] = {
    {.m = 64, .n = 96, .k = 64, .b_transposed = true},
    {.m = 190, .n = 333, .k = 415, .b_transposed = true, .has_bias = true},
    {.m = 190, .n = 333, .k = 415},
    {.m = 700, .n = 171, .k = 257, .b_transposed = true, .has_bias = true},
    {.m = 700, .n = 171, .k = 257, .accumulate = true, .c_is_fp32 = true},
    {.m = 400, .n = 300, .k = 130, .c_is_fp32 = true},
    {.m = 96, .n = 1200, .k = 1500, .b_transposed = true},
    {.m = 96, .n = 1200, .k = 1500, .accumulate = true, .c_is_fp32 = true},
    {.m = 33, .n = 40, .k = 8800, .b_transposed = true},
    {.m = 300, .n = 40, .k = 8800},
    {.m = 50, .n = 64, .k = 9000},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

static void *random_block(enum dtype type, uint64_t count, uint64_t stream)
{
    char *data = mem_alloc(count, dtype_bytes(type), "test");
    assert_non_null(data);
    for (uint64_t i = 0; i < count; i++) {
        float value = (float)rng_uniform(SEED, stream, i) - 0.5f;
        dtype_convert(&value, DTYPE_FP32, data + i * dtype_bytes(type), type, 1);
    }
    return data;
}

/* Between guards, aligned to 64 bytes. */
struct guarded {
    unsigned char *block;
    size_t bytes;
};

static struct guarded guard(size_t bytes)
{
    struct guarded made = {.bytes = bytes};
    made.block = mem_alloc(bytes + 2 * GUARD_BYTES, 1, "test");
    assert_non_null(made.block);
    memset(made.block, 0xa5, bytes + 2 * GUARD_BYTES);
    assert_int_equal((uintptr_t)made.block % 64, 0);
    return made;
}

static void *inside(const struct guarded *self)
{
    return self->block + GUARD_BYTES;
}

static void expect_guards(const struct guarded *self)
{
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(self->block[i], 0xa5);
        assert_int_equal(self->block[GUARD_BYTES + self->bytes + i], 0xa5);
    }
}

struct operands {
    matmul_desc desc;
    void *a, *b, *bias, *scratch;
    struct guarded packed;
    char *c[3], *before; /* of matmul, matmul_pack, matmul_packed; what all begin with */
    uint64_t c_bytes;
};

static matmul_desc desc_of(const struct shape *shape, enum dtype type)
{
    return (matmul_desc){.m = shape->m,
                         .n = shape->n,
                         .k = shape->k,
                         .b_transposed = shape->b_transposed,
                         .has_bias = shape->has_bias,
                         .accumulate = shape->accumulate,
                         .ab_type = type,
                         .c_type = shape->c_is_fp32 ? DTYPE_FP32 : type,
                         .a_stride = shape->k + 3,
                         .b_stride = (shape->b_transposed ? shape->k : shape->n) + 5,
                         .c_stride = shape->n + 2};
}

static void start(struct operands *of, const kernel_matmul *product, const matmul_desc *desc,
                  uint64_t seed)
{
    *of = (struct operands){.desc = *desc};
    uint64_t rows = desc->b_transposed ? desc->n : desc->k;
    of->a = random_block(desc->ab_type, desc->m * desc->a_stride, seed);
    of->b = random_block(desc->ab_type, rows * desc->b_stride, seed + 1);
    of->bias = random_block(desc->ab_type, desc->n, seed + 2);
    of->before = random_block(desc->c_type, desc->m * desc->c_stride, seed + 3);
    of->c_bytes = desc->m * desc->c_stride * dtype_bytes(desc->c_type);
    of->scratch = mem_alloc(kernels_cpu.matmul_scratch_bytes(product) + 1, 1, "test");
    of->packed = guard(kernels_cpu.matmul_packed_bytes(product));
    for (int i = 0; i < 3; i++) {
        of->c[i] = mem_alloc(of->c_bytes, 1, "test");
        memcpy(of->c[i], of->before, of->c_bytes);
    }
}

static void end(struct operands *of)
{
    void *blocks[] = {of->a,    of->b,    of->bias, of->before,      of->scratch,
                      of->c[0], of->c[1], of->c[2], of->packed.block};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        mem_free(blocks[i]);
}

/* Runs all three. */
static void expect_same_bits(kernel_matmul *product, const matmul_desc *desc)
{
    struct operands of;
    start(&of, product, desc, 10);
    const void *bias = desc->has_bias ? of.bias : NULL;
    void *packed = inside(&of.packed);
    assert_int_equal(kernels_cpu.matmul(product, NULL, of.a, of.b, bias, of.c[0], of.scratch), 0);
    assert_int_equal(
        kernels_cpu.matmul_pack(product, NULL, of.a, of.b, packed, bias, of.c[1], of.scratch), 0);
    expect_guards(&of.packed);
    assert_memory_equal(of.c[0], of.c[1], of.c_bytes);
    unsigned char *left = mem_alloc(of.packed.bytes, 1, "test");
    memcpy(left, packed, of.packed.bytes);
    assert_int_equal(
        kernels_cpu.matmul_packed(product, NULL, of.a, packed, bias, of.c[2], of.scratch), 0);
    expect_guards(&of.packed);
    assert_memory_equal(left, packed, of.packed.bytes);
    assert_memory_equal(of.c[0], of.c[2], of.c_bytes);
    mem_free(left);
    end(&of);
}

static uint32_t check_type(enum dtype type, int threads)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    uint32_t packed_count = 0;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        matmul_desc desc = desc_of(&shapes[i], type);
        kernel_matmul *product;
        assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), 0);
        if (kernels_cpu.matmul_packed_bytes(product) > 0) {
            expect_same_bits(product, &desc);
            packed_count++;
        }
        kernels_cpu.matmul_destroy(product);
    }
    kernels_cpu.context_destroy(context);
    return packed_count;
}

static void test_bits_are_those_of_the_plain_product(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        /* fp16 is widened on every CPU; bf16 on tiles, widened, or oneDNN's own; fp32 with AVX-512 and m cut. */
        assert_int_equal(check_type(DTYPE_FP16, threads), SHAPE_COUNT);
        check_type(DTYPE_BF16, threads);
        check_type(DTYPE_FP32, threads);
    }
}

/* What one has left the other takes, whose m is another; products of another n, k or kind are not alike. */
static void test_products_that_pack_alike(void **state)
{
    static const uint64_t rows[] = {33, 64, 300, 700, 2000};
    static const enum dtype types[] = {DTYPE_FP16, DTYPE_BF16, DTYPE_FP32};
    enum { COUNT = sizeof rows / sizeof rows[0] };
    (void)state;
    kernel_context_config config = {.thread_count = 2};
    kernel_context *context;
    uint32_t alike_count = 0;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    for (size_t t = 0; t < 3; t++) {
        kernel_matmul *made[COUNT], *other;
        matmul_desc descs[COUNT];
        for (size_t i = 0; i < COUNT; i++) {
            descs[i] = desc_of(&(struct shape){rows[i], 200, 300, .b_transposed = true}, types[t]);
            assert_int_equal(kernels_cpu.matmul_create(context, &descs[i], &made[i]), 0);
        }
        matmul_desc desc = desc_of(&(struct shape){300, 200, 301, .b_transposed = true}, types[t]);
        assert_int_equal(kernels_cpu.matmul_create(context, &desc, &other), 0);
        for (size_t i = 0; i < COUNT; i++)
            assert_false(kernels_cpu.matmul_packs_alike(made[i], other));
        kernels_cpu.matmul_destroy(other);
        for (size_t i = 0; i < COUNT; i++)
            for (size_t j = 0; j < COUNT; j++) {
                if (i == j || !kernels_cpu.matmul_packs_alike(made[i], made[j]))
                    continue;
                struct operands from, to;
                start(&from, made[i], &descs[i], 20);
                start(&to, made[j], &descs[j], 30);
                alike_count++;
                assert_int_equal(from.packed.bytes, to.packed.bytes);
                assert_int_equal(
                    kernels_cpu.matmul(made[j], NULL, to.a, from.b, NULL, to.c[0], to.scratch), 0);
                assert_int_equal(kernels_cpu.matmul_pack(made[i], NULL, from.a, from.b,
                                                         inside(&from.packed), NULL, from.c[0],
                                                         from.scratch),
                                 0);
                assert_int_equal(kernels_cpu.matmul_packed(made[j], NULL, to.a,
                                                           inside(&from.packed), NULL, to.c[1],
                                                           to.scratch),
                                 0);
                assert_memory_equal(to.c[0], to.c[1], to.c_bytes);
                end(&from);
                end(&to);
            }
        for (size_t i = 0; i < COUNT; i++)
            kernels_cpu.matmul_destroy(made[i]);
    }
    kernels_cpu.context_destroy(context);
    assert_true(alike_count > 0);
}

/* oneDNN's own have none; asking them is a mistake that is told. */
static void test_products_that_pack_nothing(void **state)
{
    (void)state;
    kernel_context_config config = {.thread_count = 1};
    kernel_context *context;
    kernel_matmul *product;
    float a[8] = {0}, b[8] = {0}, c[8];
    matmul_desc desc = desc_of(&(struct shape){1, 1, 2, .b_transposed = true}, DTYPE_FP32);
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), 0);
    assert_int_equal(kernels_cpu.matmul_packed_bytes(product), 0);
    assert_false(kernels_cpu.matmul_packs_alike(product, product));
    assert_int_equal(kernels_cpu.matmul_pack(product, NULL, a, b, c, NULL, c, c), ERR_INTERNAL);
    assert_int_equal(kernels_cpu.matmul_packed(product, NULL, a, b, NULL, c, c), ERR_INTERNAL);
    kernels_cpu.matmul_destroy(product);
    kernels_cpu.context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_the_plain_product),
        cmocka_unit_test(test_products_that_pack_alike),
        cmocka_unit_test(test_products_that_pack_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
