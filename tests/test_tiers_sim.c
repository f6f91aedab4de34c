/* The simulated drive by itself: its bytes (sparse or whole, cut short, changed from outside), a slab
 * without files, and the order of completions, which follows from the seed alone. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tiers/io.h"
#include "tiers/sim.h"
#include "tiers_helpers.h"

enum { BLOCK = 4096, REQUESTS = 24, SEED = 20261121 };

static slab store;
static unsigned char memory[REQUESTS * BLOCK] __attribute__((aligned(4096)));
static unsigned char image[6 * 1024 * 1024];

static void open_slab(uint32_t drive_count, uint64_t total_bytes)
{
    static slab_drive drives[3];
    static const double weights[] = {3.0, 1.0, 1.0};
    memset(drives, 0, sizeof drives);
    for (uint32_t i = 0; i < drive_count; i++) {
        snprintf(drives[i].path, sizeof drives[i].path, "/nowhere/%u", i);
        drives[i].weight = weights[i];
    }
    slab_config config = {.drives = drives,
                          .drive_count = drive_count,
                          .total_bytes = total_bytes,
                          .uuid = {0xab},
                          .stripe_bytes = MIB};
    assert_int_equal(sim_slab_init(&store, &config), 0);
}

static void a_slab_without_files(void **state)
{
    (void)state;
    open_slab(3, 5 * MIB);
    assert_int_equal(store.drive_count, 3);
    assert_int_equal(store.total_bytes, 5 * MIB);
    assert_int_equal(store.drive_stripes[0], 3);
    assert_int_equal(store.files[1].file_bytes, SLAB_HEADER_BYTES + MIB);
    assert_non_null(strstr(store.files[2].path, "/nowhere/2/sluice-ab"));
    assert_non_null(strstr(store.files[2].path, "rank-0-drive-2.slab"));
    uint64_t seen[3] = {0};
    for (uint64_t at = 0; at < store.total_bytes; at += MIB) { /* each place once, none shared */
        slab_piece piece;
        slab_map(&store, at, MIB, &piece);
        assert_int_equal(piece.size_bytes, MIB);
        assert_int_equal(piece.file_offset, SLAB_HEADER_BYTES + seen[piece.drive_idx] * MIB);
        seen[piece.drive_idx]++;
    }
    static slab_drive small = {.path = "/nowhere", .budget_bytes = 3 * MIB};
    slab_config config = {
        .drives = &small, .drive_count = 1, .total_bytes = 4 * MIB, .stripe_bytes = MIB};
    assert_int_equal(sim_slab_init(&store, &config), ERR_NO_FIT);
    config.drive_count = 0;
    assert_int_equal(sim_slab_init(&store, &config), -EINVAL);
}

static void bytes_against_an_image(void **state)
{
    (void)state;
    print_message("seed %d\n", SEED);
    open_slab(1, 5 * MIB);
    sim_store *bytes;
    assert_int_equal(sim_store_create(&store, false, &bytes), 0);
    mem_stats before, after;
    mem_get_stats(&before);
    memset(image, 0, sizeof image);
    static unsigned char piece[300000];
    uint64_t end = store.files[0].file_bytes;
    for (uint64_t trial = 0; trial < 300; trial++) {
        uint64_t size = 1 + rng_below(SEED, 1, trial, sizeof piece);
        uint64_t at = rng_below(SEED, 2, trial, (trial < 100 ? MIB : end - size) + 1);
        if (rng_below(SEED, 3, trial, 2)) {
            memset(piece, (int)trial, size);
            memcpy(image + at, piece, size);
            assert_int_equal(sim_store_put(bytes, 0, at, piece, size), 0);
        } else {
            sim_store_get(bytes, 0, at, piece, size);
            assert_memory_equal(piece, image + at, size);
        }
        if (trial == 99) { /* sparse: what is not written takes nothing */
            mem_get_stats(&after);
            assert_in_range(after.live_bytes - before.live_bytes, 1, 2 * MIB);
        }
    }
    sim_store_destroy(bytes);
    sim_store_destroy(NULL);
    assert_int_equal(sim_store_create(&store, true, &bytes), 0);
    mem_get_stats(&before);
    assert_int_equal(sim_store_put(bytes, 0, end - 5, "bytes", 5), 0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count); /* whole: nothing allocates later */
    sim_store_destroy(bytes);
}

/* Two queues, one store: what the first wrote the second reads; a store for another slab is refused. */
static void a_store_outlives_its_queues(void **state)
{
    (void)state;
    open_slab(2, 4 * MIB);
    sim_store *bytes;
    assert_int_equal(sim_store_create(&store, false, &bytes), 0);
    io_config config = {.target = &store, .backend = IO_SIM, .store = bytes};
    for (int round = 0; round < 3; round++) {
        io *self;
        assert_int_equal(io_create(&config, &self), 0);
        if (round == 0) {
            memset(memory, 0x3c, sizeof memory);
            assert_int_equal(io_transfer(self, IO_WRITE, 3 * MIB - BLOCK, memory, 4 * BLOCK), 0);
        }
        memset(memory, 0, sizeof memory);
        assert_int_equal(io_transfer(self, IO_READ, 3 * MIB - BLOCK, memory, 4 * BLOCK), 0);
        for (int i = 0; i < 4 * BLOCK; i++)
            assert_int_equal(memory[i], 0x3c);
        assert_int_equal(io_transfer(self, IO_READ, 0, memory, BLOCK), 0);
        assert_int_equal(memory[0], 0); /* never written */
        io_destroy(self);
    }
    /* Cut off: the end is met where it is, for reads and writes, and grows back. */
    io *self;
    assert_int_equal(io_create(&config, &self), 0);
    slab_piece piece;
    slab_map(&store, 0, BLOCK, &piece);
    sim_store_cut(bytes, piece.drive_idx, piece.file_offset + 2 * BLOCK);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory, 2 * BLOCK), 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory, 3 * BLOCK), -EIO);
    assert_non_null(strstr(err_text(), "end of file"));
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory, 3 * BLOCK), -ENOSPC);
    assert_non_null(strstr(err_text(), store.files[piece.drive_idx].path));
    sim_store_cut(bytes, piece.drive_idx, UINT64_MAX);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory, 3 * BLOCK), 0);
    io_destroy(self);
    open_slab(2, 6 * MIB);
    assert_int_equal(io_create(&config, &self), -EINVAL);
    assert_null(self);
    sim_store_destroy(bytes);
}

/* The order in which REQUESTS reads of one transfer each come back; submitted in two halves. */
static void order_of(uint64_t seed, int order[REQUESTS])
{
    const io_faults faults = {.seed = seed};
    io_config config = {
        .target = &store, .backend = IO_SIM, .queue_depth = REQUESTS, .faults = &faults};
    io *self;
    assert_int_equal(io_create(&config, &self), 0);
    io_request requests[REQUESTS];
    int submitted = 0, returned = 0;
    while (returned < REQUESTS) {
        for (; submitted < (returned ? REQUESTS : REQUESTS / 2); submitted++) {
            requests[submitted] = (io_request){.direction = IO_READ,
                                               .offset = (uint64_t)submitted * BLOCK,
                                               .data = memory + submitted * BLOCK,
                                               .size_bytes = BLOCK};
            assert_int_equal(io_submit(self, &requests[submitted]), 0);
        }
        io_request *done[REQUESTS];
        int count = io_poll(self, done, REQUESTS);
        assert_true(count >= 0);
        for (int i = 0; i < count; i++)
            order[returned++] = (int)(done[i] - requests);
        struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
        if (returned < REQUESTS)
            assert_int_equal(poll(&waiter, 1, 20000), 1);
    }
    /* Nothing is in flight: the descriptor gets quiet. */
    io_request *done[1];
    assert_int_equal(io_poll(self, done, 1), 0);
    struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
    assert_int_equal(poll(&waiter, 1, 0), 0);
    io_destroy(self);
}

static void the_order_follows_from_the_seed(void **state)
{
    (void)state;
    open_slab(1, MIB);
    int first[REQUESTS], again[REQUESTS], other[REQUESTS], in_place = 0, overtakes = 0;
    order_of(1, first);
    order_of(1, again);
    order_of(2, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    int last_early = 0;
    for (int i = 0; i < REQUESTS; i++) {
        in_place += first[i] == i;
        last_early = first[i] < REQUESTS / 2 ? i : last_early;
    }
    for (int i = 0; i < last_early; i++)
        overtakes += first[i] >= REQUESTS / 2;
    assert_true(in_place < REQUESTS / 2);
    assert_true(overtakes > 0); /* what was submitted later came back before */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slab_without_files),
        cmocka_unit_test(bytes_against_an_image),
        cmocka_unit_test(a_store_outlives_its_queues),
        cmocka_unit_test(the_order_follows_from_the_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
