/* A packed base under adapters: each stored format gives the same bits on the device, in host
 * memory and on drives, with as little memory as fits, at the same number of ranks. The formats
 * differ from each other and from the working dtype, so what is packed reaches the losses.
 *
 * test_ranks_packed RANKS */
#include "base/stored.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/unit.h"

enum { STEPS = 3 };

static const fixture_model shape = {.family = "llama", .bf16 = true, .layers = 2, .hidden = 64};
static const char *const tiers[] = {"device", "host", "nvme"};
enum { TIERS = sizeof tiers / sizeof tiers[0] };

static void set_job(fixture_sets *sets, enum stored_format format, const char *tier)
{
    memset(sets, 0, sizeof *sets);
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "run.eval_every=2");
    fixture_set(sets, "optimizer.params.lr=0.01");
    fixture_set(sets, "zero_optimization.stage=3");
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=0");
    fixture_set(sets, "train.lora={\"rank\":3,\"targets\":[\"q_proj\",\"down_proj\"]}");
    fixture_set(sets, "state.params=%s", stored_format_name(format));
    fixture_set(sets, "tiers.place.params=%s", tier);
}

static void places_change_no_bit(void **state)
{
    static mpi_result near, far;
    static uint32_t losses[STORED_FORMAT_COUNT]; /* bits of the last step's */
    for (int format = 0; format < STORED_FORMAT_COUNT; format++) {
        for (int t = 0; t < TIERS; t++) {
            static fixture_sets sets;
            set_job(&sets, (enum stored_format)format, tiers[t]);
            if (t > 0)
                mpi_tighten("far", &shape, &sets);
            mpi_train_good(t > 0 ? "far" : "near", &shape, &sets, t > 0 ? &far : &near);
            if (t > 0)
                mpi_assert_same(tiers[t], &near, &far);
        }
        if (mpi_rank != 0)
            continue;
        assert_int_equal(near.run.step_count, STEPS);
        assert_int_equal(near.eval_count, 2);
        losses[format] = near.run.loss_bits[STEPS - 1];
        for (int other = 0; other < format; other++)
            assert_true(losses[other] != losses[format]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_change_no_bit),
    };
    mpi_launch(argc, argv);
    return mpi_end(cmocka_run_group_tests(tests, mpi_setup, mpi_teardown));
}
