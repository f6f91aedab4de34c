/* Weights packed once a unit: losses and weights are those of runs that pack them in each micro-batch, in every bit,
 * wherever states rest, kept and recomputed, in whole units and in parts, in both orders, in eval; of ranks too. fp16 is widened on every CPU, so
 * that there is something to hold whatever the machine. Arguments: fp16, or bf16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm_fixture.h"
#include "setup/summary.h"
#include "train/train.h"
#include "train_fixture.h"

enum { STEPS = 6, RANKS = 2 };

static fixture_model shape = {.family = "llama", .bf16 = true, .layers = 3, .hidden = 128};
static bool is_fp16 = true; /* else bf16, which some CPUs leave to a library that packs by itself */

static void set_type(fixture_sets *sets)
{
    fixture_set(sets, "run.steps=%d", STEPS);
    if (!is_fp16)
        return;
    fixture_set(sets, "bf16.enabled=false");
    fixture_set(sets, "fp16.enabled=true");
    fixture_set(sets, "fp16.initial_scale_power=12");
}

/* Settings of pairs of runs; `holds`: that packed weights are held, not only asked for. */
struct pair {
    const char *tier, *inner, *order, *update, *more;
    bool is_tight, holds;
};

static const struct pair pairs[] = {
    {"device", "recompute", "layer_major", "after_backward", NULL, false, true},
    {"device", "device", "layer_major", "after_backward", NULL, false, true},
    {"nvme", "recompute", "layer_major", "in_next_forward", "gradient_accumulation_steps=5", false,
     true},
    {"host", "host", "layer_major", "in_next_forward", "tiers.place.params=nvme", false, true},
    {"nvme", "recompute", "layer_major", "after_backward", "model.max_part_bytes=40000", false,
     true},
    {"nvme", "recompute", "layer_major", "in_next_forward", NULL, true, false},
    {"host", "recompute", "batch_major", "after_backward", NULL, false, false},
    {"host", "recompute", "layer_major", "in_next_forward", "train.lora={\"rank\":4}", false, true},
    {"host", "device", "layer_major", "in_next_forward", "run.paranoid=true", false, true},
};

static void make_sets(const struct pair *from, const char *packed, fixture_sets *sets)
{
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};
    memset(sets, 0, sizeof *sets);
    set_type(sets);
    for (int k = 0; k < 4; k++)
        fixture_set(sets, "tiers.place.%s=%s", kinds[k], from->tier);
    fixture_set(sets, "tiers.place.inner_activations=%s", from->inner);
    fixture_set(sets, "schedule.order=%s", from->order);
    fixture_set(sets, "schedule.update=%s", from->update);
    if (from->more)
        fixture_set(sets, "%s", from->more);
    if (from->is_tight)
        fixture_tighten("packs", &shape, sets);
    fixture_set(sets, "schedule.packed=%s", packed);
}

static void bits_are_those_of_runs_without(void **state)
{
    (void)state;
    static fixture_sets sets;
    static fixture_result without, with;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        printf("%s, %s, %s, %s%s\n", pairs[i].tier, pairs[i].inner, pairs[i].order,
               pairs[i].more ? pairs[i].more : "", pairs[i].is_tight ? ", least budgets" : "");
        fflush(stdout);
        make_sets(&pairs[i], "never", &sets);
        fixture_train_good("plain", &shape, &sets, &without);
        make_sets(&pairs[i], "always", &sets);
        fixture_train_good("packs", &shape, &sets, &with);
        assert_int_equal(without.plan.packed_bytes, 0);
        if (is_fp16 && pairs[i].holds)
            assert_true(with.plan.packed_bytes > 0);
        fixture_assert_same(&without, &with);
        fixture_remove("plain");
        fixture_remove("packs");
    }
}

/* Without measured times nothing is known to be gained: a run that is left alone holds nothing. */
static void none_are_held_for_nothing(void **state)
{
    (void)state;
    static fixture_sets sets;
    static fixture_result result;
    make_sets(&pairs[0], "auto", &sets);
    fixture_train_good("auto", &shape, &sets, &result);
    assert_int_equal(result.plan.packed_bytes, 0);
    fixture_remove("auto");
}

/* ---- ranks ------------------------------------------------------------------------------------- */

struct ranks_run {
    job *jobs[RANKS];
    uint64_t *hash, *packed_bytes; /* of rank 0, in shared memory */
};

static void keep_plan(void *user, const struct setup_summary *plan)
{
    *((struct ranks_run *)user)->packed_bytes = plan->packed_bytes;
}

static int train_rank(comm *self, void *user)
{
    struct ranks_run *all = user;
    struct train_summary summary;
    struct train_options options = {
        .job = all->jobs[comm_get_rank(self)], .comm = self, .hash_weights = true, .user = user};
    if (comm_get_rank(self) == 0)
        options.on_plan = keep_plan;
    int rc = train_run(&options, &summary);
    if (rc == 0 && comm_get_rank(self) == 0)
        *all->hash = summary.weights_hash;
    return rc;
}

static uint64_t hash_of_ranks(const char *packed, uint64_t *packed_bytes)
{
    static comm_fixture ranks;
    static fixture_sets sets;
    uint64_t *told = comm_fixture_shared(2 * sizeof *told);
    struct ranks_run all = {.hash = &told[0], .packed_bytes = &told[1]};
    make_sets(&(struct pair){.tier = "host",
                             .inner = "recompute",
                             .order = "layer_major",
                             .update = "in_next_forward"},
              packed, &sets);
    fixture_set(&sets, "zero_optimization.stage=3");
    fixture_set(&sets, "device.threads=1");
    for (int r = 0; r < RANKS; r++) {
        all.jobs[r] = fixture_job("ranks", &shape, &sets);
        all.jobs[r]->world = RANKS;
    }
    memset(&ranks, 0, sizeof ranks);
    ranks.world = RANKS;
    comm_fixture_run(&ranks, train_rank, &all);
    comm_fixture_expect_ok(&ranks);
    for (int r = 0; r < RANKS; r++)
        job_destroy(all.jobs[r]);
    fixture_remove("ranks");
    *packed_bytes = told[1];
    return told[0];
}

static void ranks_hold_them_as_well(void **state)
{
    (void)state;
    uint64_t without, with;
    uint64_t hash = hash_of_ranks("never", &without);
    assert_true(hash == hash_of_ranks("always", &with));
    assert_int_equal(without, 0);
    if (is_fp16)
        assert_true(with > 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        is_fp16 = strcmp(argv[1], "fp16") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            ranks_hold_them_as_well), /* first: ranks are forks of a process without threads */
        cmocka_unit_test(bits_are_those_of_runs_without),
        cmocka_unit_test(none_are_held_for_nothing),
    };
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
