/* Muon of the CPU backend in the instruction set of the process: against the reference in double;
 * the same bits for all thread counts, and where a tile is updated in pieces; a matrix of rank one
 * against the polynomial by hand; nearly equal singular values; and values that are not finite. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 31, STEPS = 5, ELEMS = 40003, THREADS = 3 };

static enum cpu_isa tested_isa;

static kernel_context context_of(int threads)
{
    return (kernel_context){.thread_count = threads, .isa = tested_isa};
}

static float *new_floats(uint64_t count)
{
    float *data = mem_alloc(count, sizeof *data, "test operand");
    assert_non_null(data);
    return data;
}

static float *new_random(uint64_t count, uint64_t stream, float scale)
{
    float *data = new_floats(count);
    for (uint64_t i = 0; i < count; i++)
        data[i] = scale * rng_normal(SEED, stream, i);
    return data;
}

/* The backend's op in place, on a context of so many threads. */
static void orthogonalize(float *matrix, uint64_t rows, uint64_t columns, int threads)
{
    kernel_context context = context_of(threads);
    size_t bytes = cpui_orthogonalize_scratch_bytes(&context, rows, columns);
    char *scratch = mem_alloc(bytes + 64, 1, "test scratch");
    assert_non_null(scratch);
    memset(scratch, 0xff, bytes + 64); /* NaN; the last 64 bytes must stay */
    orthogonalize_args args = {rows, columns, matrix, STEPS, scratch};
    assert_int_equal(cpui_orthogonalize(&context, NULL, &args), 0);
    for (size_t i = bytes; i < bytes + 64; i++)
        assert_int_equal((unsigned char)scratch[i], 0xff);
    mem_free(scratch);
}

static void orthogonalize_reference(float *matrix, uint64_t rows, uint64_t columns)
{
    size_t bytes = kernels_reference.orthogonalize_scratch_bytes(NULL, rows, columns);
    void *scratch = mem_alloc(bytes, 1, "test scratch");
    assert_non_null(scratch);
    orthogonalize_args args = {rows, columns, matrix, STEPS, scratch};
    assert_int_equal(kernels_reference.orthogonalize(NULL, NULL, &args), 0);
    mem_free(scratch);
}

static const struct {
    uint64_t rows, columns;
} shapes[] = {{1, 1}, {1, 40}, {33, 1}, {5, 7}, {7, 5}, {64, 64}, {48, 200}, {131, 97}, {300, 161}};

static void matrices_are_those_of_the_reference(void **state)
{
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        uint64_t rows = shapes[s].rows, columns = shapes[s].columns, count = rows * columns;
        float *block = new_random(count + 1, s, 1e-3f), *expected = new_floats(count);
        float *matrix = block + s % 2; /* aligned to whole elements only */
        memcpy(expected, matrix, count * sizeof *expected);
        orthogonalize(matrix, rows, columns, THREADS);
        orthogonalize_reference(expected, rows, columns);
        double squares = 0, apart = 0;
        for (uint64_t i = 0; i < count; i++) {
            squares += (double)expected[i] * (double)expected[i];
            apart += pow((double)matrix[i] - (double)expected[i], 2);
        }
        /* fp32: about 15 products, whose errors the slope of the polynomial, 3.4 at 0, magnifies */
        if (!(sqrt(apart) <= 2e-5 * sqrt(squares)))
            fail_msg("%d x %d: %g of %g apart", (int)rows, (int)columns, sqrt(apart),
                     sqrt(squares));
        mem_free(block);
        mem_free(expected);
    }
}

static void threads_change_no_bit(void **state)
{
    for (size_t s = 5; s < sizeof shapes / sizeof shapes[0]; s++) {
        uint64_t rows = shapes[s].rows, columns = shapes[s].columns, count = rows * columns;
        float *one = new_random(count, 50 + s, 2.0f), *all = new_floats(count);
        for (int threads = 2; threads <= 5; threads++) {
            float *again = new_random(count, 50 + s, 2.0f);
            memcpy(all, again, count * sizeof *all);
            mem_free(again);
            if (threads == 2)
                orthogonalize(one, rows, columns, 1);
            orthogonalize(all, rows, columns, threads);
            assert_memory_equal(one, all, count * sizeof *all);
        }
        mem_free(one);
        mem_free(all);
    }
}

/* u v^T with |u| = |v| = 1 has one singular value s, and each step maps it to a s + b s^3 + c s^5.
 * Gradients of one token are such matrices. */
static void rank_one_follows_the_polynomial(void **state)
{
    enum { ROWS = 3, COLUMNS = 4 };
    static const float u[ROWS] = {2, -1, 2}, v[COLUMNS] = {1, 1, -1, 1};
    float matrix[ROWS * COLUMNS];
    double s = 1;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        matrix[i] = u[i / COLUMNS] * v[i % COLUMNS];
    for (int step = 0; step < STEPS; step++)
        s = ORTHOGONALIZE_A * s + ORTHOGONALIZE_B * pow(s, 3) + ORTHOGONALIZE_C * pow(s, 5);
    orthogonalize(matrix, ROWS, COLUMNS, 1);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        double expected = s * (double)u[i / COLUMNS] / 3 * (double)v[i % COLUMNS] / 2;
        assert_true(fabs((double)matrix[i] - expected) < 1e-5);
    }
}

/* Singular values near 1 are what the method is for: of X X^T the diagonal is near 1, and the rest
 * small. */
static void rows_become_nearly_orthonormal(void **state)
{
    enum { ROWS = 20, COLUMNS = 400 };
    float *x = new_random((uint64_t)ROWS * COLUMNS, 90, 1.0f);
    orthogonalize(x, ROWS, COLUMNS, 2);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < ROWS; j++) {
            double dot = 0;
            for (int k = 0; k < COLUMNS; k++)
                dot += (double)x[i * COLUMNS + k] * (double)x[j * COLUMNS + k];
            assert_true(i == j ? dot > 0.4 && dot < 1.5 : fabs(dot) < 0.3);
        }
    mem_free(x);
}

static void zeros_stay_and_nan_spreads(void **state)
{
    float zeros[12] = {0}, bad[12];
    orthogonalize(zeros, 3, 4, 1);
    for (int i = 0; i < 12; i++) {
        assert_true(zeros[i] == 0.0f);
        bad[i] = 1.0f;
    }
    bad[5] = NAN;
    orthogonalize(bad, 3, 4, 1);
    for (int i = 0; i < 12; i++)
        assert_true(isnan(bad[i]));
}

/* ---- elementwise ---- */

struct tile {
    float *master, *m, *direction;
    void *grads;
    enum dtype type;
};

static void tile_init(struct tile *self, enum dtype type)
{
    float *g = new_random(ELEMS, 1, 3.0f);
    self->master = new_random(ELEMS, 2, 1.0f);
    self->m = new_random(ELEMS, 3, 0.1f);
    self->direction = new_random(ELEMS, 4, 1.0f);
    self->grads = mem_alloc(ELEMS, sizeof(float), "test operand");
    self->type = type;
    assert_non_null(self->grads);
    for (uint64_t i = 0; i < ELEMS; i++)
        if (type == DTYPE_FP32)
            ((float *)self->grads)[i] = g[i];
        else
            ((uint16_t *)self->grads)[i] =
                type == DTYPE_BF16 ? bf16_from_fp32(g[i]) : fp16_from_fp32(g[i]);
    mem_free(g);
}

static void tile_fini(struct tile *self)
{
    mem_free(self->master);
    mem_free(self->m);
    mem_free(self->direction);
    mem_free(self->grads);
}

/* Both ops on elements [begin, begin + count), by the backend or the reference. */
static void run_tile(const struct tile *self, uint64_t begin, uint64_t count, bool nesterov,
                     bool is_reference)
{
    kernel_context context = context_of(THREADS);
    muon_scalars scalars = {0.02f, 0.95f, 0.1f, nesterov, 0.25f};
    muon_args args = {
        .count = count,
        .master = self->master + begin,
        .m = self->m + begin,
        .grads = (char *)self->grads + begin * dtype_bytes(self->type),
        .grad_type = self->type,
        .direction = self->direction + begin,
        .rate = 0.03f,
        .scalars = &scalars,
    };
    const kernel_ops *ops = is_reference ? &kernels_reference : &kernels_cpu;
    assert_int_equal(ops->muon_direction(&context, NULL, &args), 0);
    assert_int_equal(ops->muon(&context, NULL, &args), 0);
}

static void assert_near(const float *a, const float *b)
{
    for (uint64_t i = 0; i < ELEMS; i++)
        assert_true(fabsf(a[i] - b[i]) <= 4e-7f * (1.0f + fabsf(b[i])));
}

static void steps_are_those_of_the_reference(void **state)
{
    static const enum dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    for (int i = 0; i < 6; i++) {
        struct tile ours, theirs, pieces;
        tile_init(&ours, types[i / 2]);
        tile_init(&theirs, types[i / 2]);
        tile_init(&pieces, types[i / 2]);
        for (int step = 0; step < 3; step++) {
            run_tile(&ours, 0, ELEMS, i % 2, false);
            run_tile(&theirs, 0, ELEMS, i % 2, true);
            for (uint64_t at = 0, next; at < ELEMS; at = next) { /* of odd lengths */
                next = at + 7001 < ELEMS ? at + 7001 : ELEMS;
                run_tile(&pieces, at, next - at, i % 2, false);
            }
        }
        assert_near(ours.master, theirs.master);
        assert_near(ours.m, theirs.m);
        assert_near(ours.direction, theirs.direction);
        assert_memory_equal(ours.master, pieces.master, ELEMS * sizeof(float));
        assert_memory_equal(ours.m, pieces.m, ELEMS * sizeof(float));
        assert_memory_equal(ours.direction, pieces.direction, ELEMS * sizeof(float));
        tile_fini(&ours);
        tile_fini(&theirs);
        tile_fini(&pieces);
    }
}

int main(void)
{
    if (isa_of_test(&tested_isa))
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_those_of_the_reference),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(rank_one_follows_the_polynomial),
        cmocka_unit_test(rows_become_nearly_orthonormal),
        cmocka_unit_test(zeros_stay_and_nan_spreads),
        cmocka_unit_test(steps_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
