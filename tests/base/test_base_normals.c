/* Normal random numbers drawn together have the bits of those drawn one by one, in the instruction
 * set that SLUICE_ISA names: large and small indices, counts that end within a block, and enough
 * numbers that some are computed again. */
#include "base/cpu.h"
#include "base/rng.h"
#include "tests/unit.h"

enum { COUNT = 200000 };

static float values[COUNT];

static void expect_each(uint64_t seed, uint64_t stream, uint64_t begin, uint64_t count)
{
    memset(values, 0xff, sizeof values);
    rng_normals(seed, stream, begin, count, values);
    for (uint64_t i = 0; i < count; i++) {
        float one = rng_normal(seed, stream, begin + i);
        assert_memory_equal(&values[i], &one, sizeof one);
    }
    if (count < COUNT) { /* nothing behind the last one is written */
        const uint8_t untouched[sizeof(float)] = {0xff, 0xff, 0xff, 0xff};
        assert_memory_equal(&values[count], untouched, sizeof untouched);
    }
}

static void together_as_one_by_one(void **state)
{
    for (uint64_t seed = 0; seed < 8; seed++)
        expect_each(seed << 35 | seed, seed << 33 | 5, (seed << 31) - 3, COUNT);
    for (uint64_t count = 0; count < 600; count += 37)
        expect_each(UINT64_MAX - count, UINT64_MAX, UINT64_MAX - 300, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(together_as_one_by_one)};
    if (cpu_isa_check() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
