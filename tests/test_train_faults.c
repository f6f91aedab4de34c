/* Every transfer of a short run fails in turn with every fault: the run then ends with a typed error that
 * names what was moved, the file and the offset, or it gives the bits of the run without faults. Never
 * wrong numbers. All states rest on the simulated drive. Argument: which faults. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tiers/io.h"
#include "train_fixture.h"

enum { STEPS = 2, TRANSFERS_LEAST = 40 };

static const char *group = "errors";
static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 1, .hidden = 64};
static fixture_result clean;

static void make_sets(fixture_sets *sets)
{
    memset(sets, 0, sizeof *sets);
    static const char *const kinds[] = {"params", "grads", "optimizer", "activations",
                                        "inner_activations"};
    for (int k = 0; k < 5; k++)
        fixture_set(sets, "tiers.place.%s=nvme", kinds[k]);
    fixture_set(sets, "run.steps=%d", STEPS);
    fixture_set(sets, "gradient_accumulation_steps=1");
    fixture_set(sets, "schedule.update=after_backward");
    fixture_set(sets, "schedule.lookahead=1"); /* one order of transfers */
    fixture_set(sets, "aio.block_size=262144");
    fixture_set(sets, "model.seq_length=16");
}

/* The run with transfer `at` as bad as `kind` says; 0: none is. */
static void run(enum io_fault_kind kind, uint64_t at, fixture_result *result)
{
    static fixture_sets sets;
    make_sets(&sets);
    struct io_faults faults = {.seed = 1 + at, .at_transfer = at, .at_kind = kind, .stuck_us = 300};
    job *asked = fixture_job("faulty", &shape, &sets);
    fixture_call call = {
        .name = "faulty", .faults = &faults, .simulates_drives = true, .hashes_nothing = true};
    fixture_train(asked, &call, result);
    job_destroy(asked);
    fixture_remove("faulty");
}

static void assert_right(const fixture_result *result, const char *what, uint64_t at)
{
    assert_int_equal(result->step_count, clean.step_count);
    for (uint64_t i = 0; i < clean.step_count; i++)
        if (result->loss_bits[i] != clean.loss_bits[i])
            fail_msg("%s at transfer %llu: wrong loss of step %llu", what, (unsigned long long)at,
                     (unsigned long long)i + 1);
    /* The last evaluation reads all parameters as they were left. */
    if (result->summary.eval_loss != clean.summary.eval_loss)
        fail_msg("%s at transfer %llu: wrong final parameters", what, (unsigned long long)at);
}

static void assert_typed(const fixture_result *result, enum io_fault_kind kind, uint64_t at)
{
    static const int codes[IO_FAULT_KIND_COUNT] = {
        [IO_FAULT_EIO] = -EIO,
        [IO_FAULT_TORN] = -EIO,
        [IO_FAULT_ENOSPC] = -ENOSPC,
        [IO_FAULT_FLIP] = ERR_CORRUPT,
    };
    const char *what = io_fault_kind_name(kind);
    if (result->rc != codes[kind])
        fail_msg("%s at transfer %llu: %s: %s", what, (unsigned long long)at, err_name(result->rc),
                 result->error);
    if (!strstr(result->error, ".slab") || !strstr(result->error, "offset"))
        fail_msg("%s at transfer %llu: no file or offset in: %s", what, (unsigned long long)at,
                 result->error);
}

/* How often a transfer of the run met the fault and was an error for it. */
static uint64_t sweep(enum io_fault_kind kind, uint64_t transfers, uint64_t *named)
{
    static fixture_result result;
    uint64_t failed = 0;
    for (uint64_t at = 1; at <= transfers; at++) {
        run(kind, at, &result);
        if (result.rc == 0) {
            assert_right(&result, io_fault_kind_name(kind), at);
            continue;
        }
        assert_typed(&result, kind, at);
        failed++;
        *named += strstr(result.error, "of unit") != NULL;
    }
    return failed;
}

/* Transfers of the whole run: beyond the last one EIO meets nothing. */
static uint64_t count_transfers(void)
{
    static fixture_result result;
    uint64_t low = 1, high = TRANSFERS_LEAST;
    for (run(IO_FAULT_EIO, high, &result); result.rc != 0; run(IO_FAULT_EIO, high, &result)) {
        low = high;
        high *= 2;
    }
    while (low + 1 < high) {
        uint64_t middle = (low + high) / 2;
        run(IO_FAULT_EIO, middle, &result);
        if (result.rc != 0)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void every_transfer_fails_in_turn(void **state)
{
    (void)state;
    run(IO_FAULT_NONE, 0, &clean);
    assert_int_equal(clean.rc, 0);
    assert_int_equal(clean.step_count, STEPS);
    assert_true(clean.summary.eval_given);
    uint64_t transfers = count_transfers();
    assert_true(transfers >= TRANSFERS_LEAST);
    static const enum io_fault_kind errors[] = {IO_FAULT_EIO, IO_FAULT_TORN, IO_FAULT_ENOSPC,
                                                IO_FAULT_FLIP};
    static const enum io_fault_kind harmless[] = {IO_FAULT_SHORT, IO_FAULT_RETRY, IO_FAULT_LATENCY,
                                                  IO_FAULT_STUCK};
    bool fails = strcmp(group, "errors") == 0;
    for (int i = 0; i < 4; i++) {
        enum io_fault_kind kind = fails ? errors[i] : harmless[i];
        uint64_t named = 0, failed = sweep(kind, transfers, &named);
        print_message("%s at each of %llu transfers: %llu errors, %llu of them name a unit\n",
                      io_fault_kind_name(kind), (unsigned long long)transfers,
                      (unsigned long long)failed, (unsigned long long)named);
        if (!fails)
            assert_int_equal(failed, 0);
        else if (kind == IO_FAULT_EIO)
            assert_true(failed == transfers && named + 4 >= failed);
        else
            assert_true(failed >= transfers / 5 && named + 4 >= failed);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        group = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_transfer_fails_in_turn)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
