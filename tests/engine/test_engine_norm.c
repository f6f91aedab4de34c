/* The global norm in parts: to the bit what norm_reduce makes of all blocks at once, at any number
 * of ranks, of units of any size, wherever the parts begin. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/shard.h"
#include "engine/engine.h"
#include "engine/engine_internal.h"
#include "setup/setup.h"
#include "tests/unit.h"

enum {
    UNITS_MAX = 40,
    BLOCKS_MAX = 3000, /* of a unit */
    WORLD_MAX = 5,
    SEEDS = 300,
};

/* A model of one rank's norm and of several ranks', with as many parts as the draw says. */
struct fixture {
    uint64_t elems[UNITS_MAX], block_begin[UNITS_MAX + 1];
    uint32_t part_begin[UNITS_MAX + 1], unit_count;
    struct setup setup;
    struct engine engine;
    double *whole; /* [block_count] the sums by block of the model */
    uint64_t block_count;
};
typedef struct fixture fixture;

struct draws {
    uint64_t seed, idx;
};
typedef struct draws draws;

static uint64_t draw(draws *rng, uint64_t below)
{
    return rng_below(rng->seed, 7, rng->idx++, below);
}

/* The magnitudes differ widely, so that another order of additions gives other bits. */
static double draw_sum(draws *rng)
{
    return ldexp(1 + (double)draw(rng, UINT64_C(1) << 40) * 0x1p-40, (int)draw(rng, 40) - 20);
}

static void fixture_begin(fixture *f, draws *rng, kernel_context *context, uint32_t world)
{
    memset(f, 0, sizeof *f);
    f->unit_count = 1 + (uint32_t)draw(rng, UNITS_MAX);
    uint64_t most = UINT64_C(1) << draw(rng, 12), own = 0, one_in = 1 + draw(rng, 5);
    plan_set *set = &f->setup.set;
    for (uint32_t u = 0; u < f->unit_count; u++) {
        uint64_t blocks = 1 + draw(rng, most < BLOCKS_MAX ? most : BLOCKS_MAX);
        f->elems[u] = blocks * SHARD_ELEMS_STEP;
        f->block_count += blocks;
        f->block_begin[u] = own;
        own += shard_elems(f->elems[u], world) / SHARD_ELEMS_STEP;
        if (u == 0 || draw(rng, one_in) == 0)
            f->part_begin[set->norm_part_count++] = u;
    }
    f->block_begin[f->unit_count] = own;
    f->part_begin[set->norm_part_count] = f->unit_count;
    set->norm_block_begin = f->block_begin;
    set->norm_part_begin = f->part_begin;
    f->setup.ops = &kernels_cpu;
    f->setup.context = context;
    f->setup.unit_elems = f->elems;
    f->setup.ranks.world = world;
    f->engine.setup = &f->setup;
    assert_ok(enginei_make_norm(&f->engine));
    f->whole = mem_alloc(f->block_count, sizeof *f->whole, "test");
    assert_non_null(f->whole);
    for (uint64_t i = 0; i < f->block_count; i++)
        f->whole[i] = draw_sum(rng);
}

static void fixture_end(fixture *f)
{
    mem_free(f->whole);
    mem_free(f->engine.results[0]);
}

/* The sums that an all-gather brings for the part's units: each rank's shards, and NaN as
 * padding. */
static void gather(const fixture *f, uint32_t part, double *gathered)
{
    uint32_t world = f->setup.ranks.world, first = f->part_begin[part];
    uint64_t at = 0;
    for (uint32_t r = 0; r < world; r++) {
        uint64_t unit_begin = 0;
        for (uint32_t u = 0; u < f->part_begin[part + 1]; u++) {
            uint64_t blocks = f->elems[u] / SHARD_ELEMS_STEP;
            uint64_t own = f->block_begin[u + 1] - f->block_begin[u];
            for (uint64_t k = 0; u >= first && k < own; k++)
                gathered[at++] =
                    r * own + k < blocks ? f->whole[unit_begin + r * own + k] : (double)NAN;
            unit_begin += blocks;
        }
    }
}

/* The parts, in an order of the draw's. */
static double total_in_parts(fixture *f, draws *rng)
{
    uint32_t world = f->setup.ranks.world, count = f->setup.set.norm_part_count;
    uint64_t bytes = world * f->block_begin[f->unit_count] * sizeof(double);
    double *gathered = mem_alloc(bytes, 1, "test"), *ordered = mem_alloc(bytes, 1, "test");
    assert_non_null(gathered);
    assert_non_null(ordered);
    uint32_t start = (uint32_t)draw(rng, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t part = (start + i) % count;
        gather(f, part, gathered);
        assert_ok(enginei_reduce_norm(&f->engine, NULL, part, gathered, ordered));
    }
    mem_free(gathered);
    mem_free(ordered);
    return enginei_norm_total(&f->engine);
}

static void assert_same_bits(uint64_t seed, double got, double want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("seed %llu: %a in parts, %a whole", (unsigned long long)seed, got, want);
}

static void parts_are_the_whole_tree(void **state)
{
    uint64_t part_count = 0, others = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        draws rng = {.seed = seed};
        fixture f;
        fixture_begin(&f, &rng, *state, 1 + (uint32_t)(seed % WORLD_MAX));
        double want, got = total_in_parts(&f, &rng), plain = 0;
        assert_int_equal(kernels_cpu.norm_reduce(*state, NULL, f.whole, f.block_count, &want), 0);
        assert_same_bits(seed, got, want);
        part_count += f.setup.set.norm_part_count;
        for (uint64_t i = 0; i < f.block_count; i++)
            plain += f.whole[i];
        others += plain != want;
        fixture_end(&f);
    }
    print_message("seeds 1 to %d: %llu parts; %llu sums would differ in another order\n", SEEDS,
                  (unsigned long long)part_count, (unsigned long long)others);
    assert_true(part_count > 5 * SEEDS && others > SEEDS / 2);
}

/* If a sum is not finite, the whole norm is not either, and has the bits that norm_reduce gives. */
static void overflow_in_a_part_is_the_norms(void **state)
{
    static const double bad[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        draws rng = {.seed = SEEDS + seed};
        fixture f;
        fixture_begin(&f, &rng, *state, 1 + (uint32_t)(seed % WORLD_MAX));
        f.whole[draw(&rng, f.block_count)] = bad[seed % 4];
        f.whole[draw(&rng, f.block_count)] = bad[seed / 4 % 4];
        double want, got = total_in_parts(&f, &rng);
        assert_int_equal(kernels_cpu.norm_reduce(*state, NULL, f.whole, f.block_count, &want), 0);
        assert_false(isfinite(want));
        assert_same_bits(seed, got, want);
        fixture_end(&f);
    }
}

static int make_context(void **state)
{
    kernel_context *context;
    int rc = kernels_cpu.context_create(&(kernel_context_config){.thread_count = 1}, &context);
    *state = context;
    return rc;
}

static int drop_context(void **state)
{
    kernels_cpu.context_destroy(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_the_whole_tree),
        cmocka_unit_test(overflow_in_a_part_is_the_norms),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
