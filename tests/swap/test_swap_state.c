/* Optimizer state with two places over a slab of two drives: what a commit names is never touched,
 * by writes that succeed, are torn or fail; a read is of the newest place and finds wrong bytes
 * there; with and without places, sums and comparisons. The argument names the transport; what lies
 * on the slab is looked at past the lanes. */
#include <errno.h>
#include <poll.h>

#include "tests/swap/swap_state_rig.h"
#include "tests/unit.h"

/* Writes, all or one, reads and commits at random. After each the slab holds, at the place that the
 * last commit names, what that commit found, and at the newest place what was written last. */
static void commits_stay_as_they_were(void **state)
{
    enum { STEPS = 60 };
    uint64_t newest[EXTENTS] = {0}, durable[TILES] = {0}, commit_count = 0, moved = 0;
    print_message("%s: seed %d\n", transport_name, SEED);
    const io_faults rough = {
        .seed = SEED, .short_rate = 150, .retry_rate = 100, .latency_us_max = 200};
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){.faults = &rough});
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t step = 1; step <= STEPS; step++) {
        uint32_t i = (uint32_t)rng_below(SEED, 1, step, EXTENTS);
        switch (rng_below(SEED, 2, step, 6)) {
        case 0:
            place_table_commit(r.places);
            memcpy(durable, newest, sizeof durable);
            commit_count++;
            break;
        case 1:
            for (uint32_t k = 0; k < EXTENTS; k++)
                draw_content(source(&r, k), newest[k] = 1000 * step + k);
            assert_int_equal(executor_run(r.exec, &r.all_writes, step, NULL), 0);
            break;
        default:
            must_write(&r, i, newest[i] = 1000 * step + i);
            break;
        }
        if (newest[i] > 0)
            must_read(&r, i, newest[i]);
        for (uint32_t k = 0; k < TILES; k++) {
            const place_entry *item = entry_of(&r, k);
            if (newest[k] > 0 && !slab_has(&r, item->offset[item->newest], newest[k]))
                fail_msg("step %d: the newest place of tile %u is wrong", (int)step, k);
            if (durable[k] > 0 && !slab_has(&r, item->offset[item->committed], durable[k]))
                fail_msg("step %d: the committed place of tile %u is wrong", (int)step, k);
            moved += durable[k] > 0 && item->committed != item->newest;
            if (newest[k] == 0)
                continue;
            draw_content(source(&r, k), newest[k]);
            assert_true(item->has_sum[item->newest] &&
                        item->sum[item->newest] ==
                            checksum_sum(source(&r, k), EXTENT_BYTES, ELEMS, STREAMS));
        }
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    assert_true(commit_count > 4 && moved > STEPS / 2);
    rig_close(&r);
}

/* The content of the table for the commit's thread while reads are in flight. */
struct commit_view {
    place_table *places;
    uint8_t newest[TILES];
    uint64_t sum[TILES];
    uint64_t run_count;
};

static int run_commit(void *user, const program *prog, const op *item)
{
    struct commit_view *view = user;
    (void)prog;
    (void)item;
    for (uint32_t i = 0; i < TILES; i++) {
        const place_entry *found = place_table_at(view->places, i);
        view->newest[i] = found->newest;
        view->sum[i] = found->sum[found->newest];
    }
    place_table_commit(view->places);
    view->run_count++;
    return 0;
}

/* Write all ─► commit, and read all beside it ─► write all. */
static void make_committing_program(program *out)
{
    builder build;
    builder_init(&build, PROGRAM_STEADY, 0, HOST_BYTES, EXTENTS * EXTENT_BYTES);
    builder_home(&build, TIER_NVME, 0, EXTENTS * EXTENT_BYTES);
    builder_home(&build, TIER_HOST, 0, HOST_BYTES);
    for (uint32_t i = 0; i < TILES; i++)
        add_transfer(&build, OP_WRITE, i);
    uint32_t commit = builder_op(&build, OP_COMMIT);
    for (uint32_t i = 0; i < TILES; i++)
        builder_dep(&build, i);
    for (uint32_t i = 0; i < TILES; i++) {
        add_transfer(&build, OP_READ, i);
        builder_dep(&build, i);
    }
    for (uint32_t i = 0; i < TILES; i++) {
        add_transfer(&build, OP_WRITE, i);
        builder_dep(&build, commit);
        builder_dep(&build, commit + 1 + i);
    }
    builder_finish(&build, out);
    assert_ok(program_check(out));
}

/* The commit runs on a thread of its own, and needs no lock. */
static void a_commit_runs_beside_reads(void **state)
{
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){0});
    program prog;
    make_committing_program(&prog);
    const program *programs = &prog;
    struct commit_view view = {.places = r.places};
    lane_worker_config worker = {.name = "commit",
                                 .run = run_commit,
                                 .user = &view,
                                 .owner = 9,
                                 .depth = 1,
                                 .priority_lane = LANE_COMMIT};
    lane *commit_lane;
    assert_int_equal(lane_worker_create(&worker, &commit_lane), 0);
    executor_config config = {
        .lanes = {[LANE_READ] = r.io_lane, [LANE_WRITE] = r.io_lane, [LANE_COMMIT] = commit_lane},
        .programs = &programs,
        .program_count = 1};
    executor *exec;
    assert_int_equal(executor_create(&config, &exec), 0);
    for (uint64_t run = 1; run <= 8; run++) {
        for (uint32_t i = 0; i < TILES; i++)
            draw_content(source(&r, i), 10 * run + i);
        assert_ok(executor_run(exec, &prog, run, NULL));
        assert_int_equal(view.run_count, run);
        for (uint32_t i = 0; i < TILES; i++) {
            const place_entry *item = entry_of(&r, i);
            assert_int_equal(item->committed, view.newest[i]);
            assert_int_equal(item->newest, 1 - item->committed);
            assert_true(item->sum[item->committed] == view.sum[i]);
            assert_true(view.sum[i] == checksum_sum(source(&r, i), EXTENT_BYTES, ELEMS, STREAMS));
            assert_true(has_content(target(&r, i), 10 * run + i));
            assert_true(slab_has(&r, item->offset[item->committed], 10 * run + i));
            assert_int_equal(item->committed, (run - 1) % 2);
        }
    }
    executor_destroy(exec);
    commit_lane->ops->destroy(commit_lane);
    program_fini(&prog);
    rig_close(&r);
}

static void expect_corrupt(state_rig *r, uint32_t i, uint64_t offset, uint64_t expected_sum)
{
    char text[ERR_TEXT_BYTES], wanted[ERR_TEXT_BYTES];
    slab_piece piece;
    assert_int_equal(read_extent(r, i), ERR_CORRUPT);
    snprintf(text, sizeof text, "%s", err_text());
    slab_map(r->disk, offset, EXTENT_BYTES, &piece);
    bool is_cut = piece.size_bytes < EXTENT_BYTES;
    snprintf(wanted, sizeof wanted,
             "read of unit 3, tile %u (op 0): %s: %d bytes at offset %llu of %s%s have checksum "
             "%016llx, but %016llx was written: ",
             i, i == PARAMS ? "params" : "optimizer", (int)EXTENT_BYTES,
             (unsigned long long)piece.file_offset, r->disk->files[piece.drive_idx].path,
             is_cut ? " and in the stripes that follow" : "",
             (unsigned long long)checksum_sum(target(r, i), EXTENT_BYTES, ELEMS,
                                              i == PARAMS ? 0 : STREAMS),
             (unsigned long long)expected_sum);
    if (strncmp(text, wanted, strlen(wanted)) != 0 || !strstr(text, "`sluice verify`"))
        fail_msg("\"%s\" does not begin with \"%s\"", text, wanted);
    assert_int_equal(read_extent(r, i), ERR_POISONED);
}

static void wrong_bytes_are_found_where_they_count(void **state)
{
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){0});
    for (uint32_t i = 0; i < TILES; i++)
        must_write(&r, i, 10 + i);
    place_table_commit(r.places);
    for (uint32_t i = 0; i < TILES; i++)
        must_write(&r, i, 20 + i);
    for (uint32_t i = 0; i < TILES; i++) {
        place_entry *item = entry_of(&r, i);
        assert_int_not_equal(item->newest, item->committed);
        uint64_t newest_at = item->offset[item->newest], old_at = item->offset[item->committed];
        uint64_t byte = rng_below(SEED, 3, i, 4 * ELEMS) + i % STREAMS * STRIDE;
        flip(&r, newest_at, byte);
        expect_corrupt(&r, i, newest_at, item->sum[item->newest]);
        /* Not compared, or nothing to compare with: it goes through. */
        lanes_open(&r, (struct lanes_config){.trusts_reads = true});
        assert_int_equal(read_extent(&r, i), 0);
        assert_false(has_content(target(&r, i), 20 + i));
        lanes_open(&r, (struct lanes_config){0});
        item->has_sum[item->newest] = 0;
        assert_int_equal(read_extent(&r, i), 0);
        item->has_sum[item->newest] = 1;
        flip(&r, newest_at, byte);
        must_read(&r, i, 20 + i);
        /* Bytes that are no state, or not its newest place, do not matter here. */
        flip(&r, newest_at, PADDING_AT + i);
        flip(&r, old_at, byte);
        assert_int_equal(read_extent(&r, i), 0);
        flip(&r, newest_at, PADDING_AT + i);
        flip(&r, old_at, byte);
        must_read(&r, i, 20 + i);
    }
    rig_close(&r);
}

/* One transfer of a write fails, in each way: into the other place first, then into the same
 * again. */
static void a_failed_write_leaves_the_commit(void **state)
{
    static const enum io_fault_kind kinds[] = {IO_FAULT_TORN, IO_FAULT_EIO, IO_FAULT_ENOSPC};
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){0});
    uint64_t number = 1, torn = 0;
    for (uint32_t i = 0; i < TILES; i++)
        for (uint64_t at = 1; at <= TRANSFERS; at++) {
            io_faults faults = {.seed = at, .at_transfer = at, .at_kind = kinds[(i + at) % 3]};
            int expected = faults.at_kind == IO_FAULT_ENOSPC ? -ENOSPC : -EIO;
            uint64_t durable = number++;
            must_write(&r, i, durable);
            place_table_commit(r.places);
            place_entry *item = entry_of(&r, i);
            uint8_t committed = item->committed, other = 1 - committed;

            lanes_open(&r, (struct lanes_config){.faults = &faults});
            assert_int_equal(write_extent(&r, i, number++), expected);
            assert_int_equal(strncmp(err_text(), "write of unit 3, tile ", 22), 0);
            assert_int_equal(item->newest, committed);
            assert_int_equal(item->committed, committed);
            assert_true(item->has_sum[committed] && !item->has_sum[other]);
            torn += !slab_has(&r, item->offset[other], number - 1);
            assert_true(slab_has(&r, item->offset[committed], durable));
            lanes_open(&r, (struct lanes_config){0});
            must_read(&r, i, durable);

            uint64_t second = number++;
            must_write(&r, i, second);
            assert_int_equal(item->newest, other);
            must_read(&r, i, second);
            lanes_open(&r, (struct lanes_config){.faults = &faults});
            assert_int_equal(write_extent(&r, i, number++), expected);
            assert_int_equal(item->newest, other); /* in place: nothing is known of it any more */
            assert_false(item->has_sum[other]);
            assert_true(slab_has(&r, item->offset[committed], durable));
            lanes_open(&r, (struct lanes_config){0});
            must_write(&r, i, number);
            must_read(&r, i, number++);
            assert_int_equal(item->newest, other);
            assert_true(slab_has(&r, item->offset[committed], durable));
        }
    assert_true(torn >= TILES);
    rig_close(&r);
}

static uint64_t count_sums(state_rig *r)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < place_table_count(r->places); i++)
        count +=
            place_table_at(r->places, i)->has_sum[0] + place_table_at(r->places, i)->has_sum[1];
    return count;
}

/* With and without places, a table of sums, comparisons: where bytes go, what is summed and
 * compared. */
static void places_and_sums_go_together(void **state)
{
    for (unsigned which = 0; which < 8; which++) {
        struct lanes_config config = {
            .no_places = which & 1, .no_sums = which & 2, .trusts_reads = which & 4};
        bool verifies = !config.no_sums && !config.trusts_reads;
        state_rig r;
        rig_open(&r);
        lanes_open(&r, config);
        for (uint32_t i = 0; i < EXTENTS; i++)
            draw_content(source(&r, i), 100 + i);
        assert_int_equal(executor_run(r.exec, &r.all_writes, 1, NULL), 0);
        assert_int_equal(checksum_count(r.sums), !verifies ? 0 : config.no_places ? EXTENTS : 1);
        assert_int_equal(count_sums(&r), config.no_places ? 0 : TILES);
        for (uint32_t i = 0; i < EXTENTS; i++) {
            bool has_place = i < TILES && !config.no_places;
            uint64_t logical = (uint64_t)i * EXTENT_BYTES;
            uint64_t at = has_place ? entry_of(&r, i)->offset[0] : logical;
            assert_true(slab_has(&r, at, 100 + i));
            assert_true(!has_place || !slab_has(&r, logical, 100 + i));
            must_read(&r, i, 100 + i);
            flip(&r, at, 17);
            bool seen = has_place ? !config.trusts_reads : verifies;
            int rc = read_extent(&r, i);
            if (rc != (seen ? ERR_CORRUPT : 0))
                fail_msg("case %u, extent %u: code %d", which, i, rc);
            flip(&r, at, 17);
            lanes_open(&r, config);
            must_read(&r, i, 100 + i);
        }
        /* A sum of the table does not outlive a write that is not summed. */
        lanes_open(&r, (struct lanes_config){.trusts_reads = true});
        must_write(&r, PARAMS, 200);
        lanes_open(&r, (struct lanes_config){0});
        must_read(&r, PARAMS, 200);
        rig_close(&r);
    }
}

static void expect_refused(state_rig *r, const program *prog, const char *op_text, const char *why)
{
    assert_int_equal(executor_run(r->exec, prog, 1, NULL), ERR_INTERNAL);
    if (strncmp(err_text(), op_text, strlen(op_text)) != 0 || !strstr(err_text(), why))
        fail_msg("\"%s\"", err_text());
    lanes_open(r, (struct lanes_config){0});
}

/* Extents that the table lacks, and reads of what was never written, are named. */
static void what_has_no_place_is_refused(void **state)
{
    state_rig r;
    rig_open(&r);
    place_table_destroy(r.places);
    r.places = make_places(TILES - 1);
    lanes_open(&r, (struct lanes_config){0});
    expect_refused(&r, &r.write[TILES - 1], "write of unit 3, tile 4 (op 0): ",
                   "has no extent of 1024 elements in 167936 bytes at 671744 of the nvme arena");
    expect_refused(&r, &r.read[TILES - 1], "read of unit 3, tile 4 (op 0): ", "has no extent");
    expect_refused(&r, &r.read[1], "read of unit 3, tile 1 (op 0): ",
                   "nothing was written yet to the extent of unit 3, tile 1");
    r.write[1].ops[0].elem_count++;
    expect_refused(&r, &r.write[1], "write of unit 3, tile 1 (op 0): ", "has no extent of 1025");
    r.write[1].ops[0].elem_count--;
    assert_int_equal(count_sums(&r) + checksum_count(r.sums), 0);
    must_write(&r, 1, 5);
    must_read(&r, 1, 5);
    must_write(&r, PARAMS, 6); /* and ops that need none go on as usual */
    flip(&r, PARAMS_AT, PADDING_AT);
    place_entry *item = entry_of(&r, 1);
    expect_corrupt(&r, PARAMS, PARAMS_AT, checksum_sum(source(&r, PARAMS), EXTENT_BYTES, 0, 0));
    assert_int_equal(item->newest, 0);
    rig_close(&r);
}

/* Reads are not compared, so a write of params is not summed and overtakes the sum of a write of
 * optimizer state that was submitted before. It may not overtake that write: it goes behind a read
 * that goes behind the write. */
static void writes_do_not_overtake_each_other(void **state)
{
    state_rig r;
    rig_open(&r);
    lanes_open(&r, (struct lanes_config){.trusts_reads = true});
    must_write(&r, 1, 11);
    draw_content(source(&r, 0), 12);
    draw_content(source(&r, PARAMS), 13);
    const program *programs[] = {&r.write[0], &r.read[1], &r.write[PARAMS]};
    lane_request requests[3], *done[3];
    lane *to = r.io_lane;
    for (uint32_t i = 0; i < 3; i++) {
        requests[i] = (lane_request){.prog = programs[i],
                                     .item = &programs[i]->ops[0],
                                     .behind = i > 0 ? &requests[i - 1] : NULL};
        assert_int_equal(to->ops->submit(to, &requests[i]), 0);
    }
    struct pollfd fd = {.fd = to->ops->event_fd(to), .events = POLLIN};
    for (int count = 0; count < 3;) {
        int more = to->ops->poll(to, done, 3);
        assert_true(more >= 0);
        count += more;
        if (more == 0 && poll(&fd, 1, 20000) != 1)
            fail_msg("%d of 3 requests are complete, and the rest waits for nothing", count);
    }
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(requests[i].result, 0);
    assert_true(has_content(target(&r, 1), 11));
    assert_true(slab_has(&r, PARAMS_AT, 13));
    rig_close(&r);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        transport_name = argv[1];
    int skip = helper_skip(helper_backend(transport_name));
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_stay_as_they_were),
        cmocka_unit_test(a_commit_runs_beside_reads),
        cmocka_unit_test(wrong_bytes_are_found_where_they_count),
        cmocka_unit_test(a_failed_write_leaves_the_commit),
        cmocka_unit_test(places_and_sums_go_together),
        cmocka_unit_test(what_has_no_place_is_refused),
        cmocka_unit_test(writes_do_not_overtake_each_other),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
