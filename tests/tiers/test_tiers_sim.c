/* The simulated drive by itself: its bytes (cut short, changed from outside), the
 * order of completions, which follows from the seed alone, and what a loss of power leaves of the
 * writes since the last sync. */
#include <errno.h>
#include <poll.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"
#include "tiers/sim.h"

enum { BLOCK = 4096, REQUESTS = 24, SEED = 20261121 };

static slab store;
static unsigned char memory[REQUESTS * BLOCK] __attribute__((aligned(4096)));
static unsigned char image[6 * 1024 * 1024];

static void open_slab(uint32_t drive_count, uint64_t total_bytes)
{
    static slab_drive drives[2];
    if (store.drive_count > 0)
        assert_int_equal(slab_remove(&store), 0);
    helper_drive(&drives[0], "first", 0, 3.0);
    helper_drive(&drives[1], "second", 0, 1.0);
    slab_config config = {.drives = drives,
                          .drive_count = drive_count,
                          .total_bytes = total_bytes,
                          .uuid = {0xab},
                          .stripe_bytes = MIB};
    assert_int_equal(slab_open(&store, &config), 0);
}

static void bytes_against_an_image(void **state)
{
    print_message("seed %d\n", SEED);
    open_slab(1, 5 * MIB);
    sim_store *bytes;
    assert_int_equal(sim_store_create(&store, &bytes), 0);
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
            sim_store_put(bytes, 0, at, piece, size);
        } else {
            sim_store_get(bytes, 0, at, piece, size);
            assert_memory_equal(piece, image + at, size);
        }
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count); /* nothing allocates later */
    sim_store_destroy(bytes);
    sim_store_destroy(NULL);
}

/* Two queues, one store: what the first wrote the second reads; a store for another slab is
 * refused. */
static void a_store_outlives_its_queues(void **state)
{
    open_slab(2, 4 * MIB);
    sim_store *bytes;
    assert_int_equal(sim_store_create(&store, &bytes), 0);
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
    assert_error(io_transfer(self, IO_READ, 0, memory, 3 * BLOCK), -EIO, "end of file");
    assert_error(io_transfer(self, IO_WRITE, 0, memory, 3 * BLOCK), -ENOSPC,
                 store.files[piece.drive_idx].path);
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
    io_config config = {.target = &store,
                        .backend = IO_SIM,
                        .queue_depth = REQUESTS,
                        .test = &(io_test){.faults = &faults}};
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
        if (returned < REQUESTS)
            helper_sleep(self);
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

/* ---- loss of power ---- */

enum { SECTOR = 512, FIELD_BLOCKS = REQUESTS, FIELD_SECTORS = FIELD_BLOCKS * BLOCK / SECTOR };

enum {
    SYNCED_WRITES = 16,
    LOST_WRITES = 12,
    WRITE_BLOCKS_MAX = 3,
    FIELD_WRITES = SYNCED_WRITES + LOST_WRITES
};

/* The number of each write is in every 4 bytes of it; `last` is what reads must see, `versions` the
 * bit of each write that a sector may be left with. */
struct field {
    uint64_t first_block[FIELD_WRITES], block_count[FIELD_WRITES];
    uint32_t last[FIELD_SECTORS];
    uint64_t versions[FIELD_SECTORS];
};

static void put_field(io *self, struct field *field, uint64_t seed, uint32_t write_idx)
{
    uint64_t first = rng_below(seed, 11, write_idx, FIELD_BLOCKS);
    uint64_t count =
        1 + rng_below(seed, 12, write_idx, size_min(WRITE_BLOCKS_MAX, FIELD_BLOCKS - first));
    for (uint64_t i = 0; i < count * BLOCK; i += sizeof write_idx)
        memcpy(memory + i, &write_idx, sizeof write_idx);
    assert_ok(io_transfer(self, IO_WRITE, first * BLOCK, memory, count * BLOCK));
    field->first_block[write_idx] = first;
    field->block_count[write_idx] = count;
    for (uint64_t i = first * BLOCK / SECTOR; i < (first + count) * BLOCK / SECTOR; i++) {
        field->last[i] = write_idx;
        field->versions[i] |= (uint64_t)1 << write_idx;
    }
}

/* Which write each sector holds; sectors are of one write each. */
static void get_field(io *self, uint32_t found[FIELD_SECTORS])
{
    assert_int_equal(io_transfer(self, IO_READ, 0, memory, FIELD_BLOCKS * BLOCK), 0);
    for (int i = 0; i < FIELD_SECTORS; i++) {
        memcpy(&found[i], memory + i * SECTOR, sizeof found[i]);
        for (int k = 0; k < SECTOR; k += (int)sizeof found[i])
            assert_memory_equal(memory + i * SECTOR + k, &found[i], sizeof found[i]);
    }
}

/* How many sectors of the write hold it, of those that no other unsynced write covers. */
static int survivors_of(const struct field *field, const uint32_t found[FIELD_SECTORS],
                        uint32_t write_idx, int *alone_count)
{
    int count = 0;
    *alone_count = 0;
    uint64_t lost_writes = ~(uint64_t)0 << SYNCED_WRITES;
    for (int i = 0; i < FIELD_SECTORS; i++)
        if ((field->versions[i] & lost_writes) == (uint64_t)1 << write_idx) {
            *alone_count += 1;
            count += found[i] == write_idx;
        }
    return count;
}

struct power_counts {
    int lost, kept, between, torn, overtaken, nothing, everything;
    int newest_on_top, older_on_top; /* sectors of several writes, where nothing was lost */
};

/* Before the sync nothing may be lost, after it anything. */
static void lose_once(uint64_t seed, struct power_counts *counts)
{
    static struct field field;
    uint32_t found[FIELD_SECTORS];
    sim_store *bytes;
    memset(&field, 0, sizeof field);
    assert_int_equal(sim_store_create(&store, &bytes), 0);
    sim_store_cache(bytes);
    sim_store_cache(bytes); /* it stays the same cache */
    io_config config = {.target = &store, .backend = IO_SIM, .store = bytes};
    io *self;
    assert_int_equal(io_create(&config, &self), 0);
    for (uint32_t i = 0; i < SYNCED_WRITES; i++)
        put_field(self, &field, seed, i);
    assert_int_equal(io_sync(self), 0);
    for (int i = 0; i < FIELD_SECTORS; i++)
        field.versions[i] = (uint64_t)1 << field.last[i];
    for (uint32_t i = SYNCED_WRITES; i < FIELD_WRITES; i++)
        put_field(self, &field, seed, i);
    get_field(self, found);
    assert_memory_equal(found, field.last, sizeof found); /* reads see the cache */
    assert_int_equal(sim_store_lose_power(bytes, seed), 0);
    get_field(self, found);
    int lost = 0, kept = 0, between = 0, last_whole = -1, first_gone = FIELD_WRITES;
    for (int i = 0; i < FIELD_SECTORS; i++) {
        if (found[i] >= FIELD_WRITES || !(field.versions[i] >> found[i] & 1))
            fail_msg("seed %llu: sector %d holds write %u", (unsigned long long)seed, i, found[i]);
        if (field.last[i] < SYNCED_WRITES)
            continue;
        lost += found[i] < SYNCED_WRITES;
        kept += found[i] == field.last[i];
        between += found[i] >= SYNCED_WRITES && found[i] < field.last[i];
    }
    for (uint32_t i = SYNCED_WRITES; i < FIELD_WRITES; i++) {
        int alone, survivors = survivors_of(&field, found, i, &alone);
        counts->torn += survivors > 0 && survivors < alone;
        last_whole = alone > 0 && survivors == alone ? (int)i : last_whole;
        first_gone =
            alone > 0 && survivors == 0 && first_gone == FIELD_WRITES ? (int)i : first_gone;
    }
    for (int i = 0; i < FIELD_SECTORS && lost == 0; i++) {
        uint64_t unsynced = field.versions[i] >> SYNCED_WRITES;
        bool several = (unsynced & (unsynced - 1)) != 0;
        counts->newest_on_top += several && found[i] == field.last[i];
        counts->older_on_top += several && found[i] != field.last[i];
    }
    counts->lost += lost > 0 && kept > 0;
    counts->between += between > 0;
    counts->overtaken += first_gone < last_whole;
    counts->nothing += kept == 0;
    counts->everything += lost == 0;
    /* The surviving bytes are on the drive: a further loss takes nothing of them. */
    uint32_t again[FIELD_SECTORS];
    assert_int_equal(sim_store_lose_power(bytes, seed + 1), 0);
    get_field(self, again);
    assert_memory_equal(found, again, sizeof found);
    io_destroy(self);
    sim_store_destroy(bytes);
}

static void power_is_lost(void **state)
{
    enum { TRIALS = 200 };
    print_message("seeds from %d\n", SEED);
    open_slab(1, MIB);
    struct power_counts counts = {0};
    for (uint64_t trial = 0; trial < TRIALS; trial++)
        lose_once(SEED + trial, &counts);
    print_message("of %d losses: some lost and some kept %d, neither first nor last %d, torn %d, "
                  "later kept and earlier lost %d, nothing kept %d, all of it %d\n",
                  TRIALS, counts.lost, counts.between, counts.torn, counts.overtaken,
                  counts.nothing, counts.everything);
    assert_true(counts.lost > TRIALS / 4);
    assert_true(counts.between > TRIALS / 4);
    assert_true(counts.torn > TRIALS / 4);
    assert_true(counts.overtaken > TRIALS / 8);
    assert_true(counts.nothing > 0 && counts.everything > 0);
    print_message(
        "where nothing was lost, the newest write is on top of %d sectors, an older one of %d\n",
        counts.newest_on_top, counts.older_on_top);
    assert_true(counts.newest_on_top > counts.older_on_top / 4);
    assert_true(counts.older_on_top > counts.newest_on_top / 4);
    /* The same seed, the same loss; no cache, nothing to lose. */
    struct power_counts first = {0}, same = {0};
    lose_once(SEED, &first);
    lose_once(SEED, &same);
    assert_memory_equal(&first, &same, sizeof first);
    sim_store *bytes;
    assert_int_equal(sim_store_create(&store, &bytes), 0);
    sim_store_put(bytes, 0, 0, "bytes", 5);
    sim_store_sync(bytes);
    assert_int_equal(sim_store_lose_power(bytes, 1), -EINVAL);
    char text[5];
    sim_store_get(bytes, 0, 0, text, sizeof text);
    assert_memory_equal(text, "bytes", sizeof text);
    sim_store_destroy(bytes);
}

/* A sync empties the log and keeps its memory: the same work again allocates nothing, and a log
 * that nobody empties grows beyond its first room. */
static void the_log_is_bounded_by_syncs(void **state)
{
    open_slab(1, MIB);
    sim_store *bytes;
    mem_stats before, after;
    assert_int_equal(sim_store_create(&store, &bytes), 0);
    sim_store_cache(bytes);
    io_config config = {.target = &store, .backend = IO_SIM, .store = bytes};
    io *self;
    assert_int_equal(io_create(&config, &self), 0);
    for (int round = 0; round < 3; round++) {
        mem_get_stats(&before);
        for (int i = 0; i < 1500; i++) {
            memset(memory, round * 50 + i % 50, BLOCK);
            assert_int_equal(io_transfer(self, IO_WRITE, 0, memory, BLOCK), 0);
        }
        mem_get_stats(&after);
        assert_int_equal(after.call_count > before.call_count, round == 0);
        if (round < 2)
            assert_int_equal(io_sync(self), 0);
    }
    assert_int_equal(sim_store_lose_power(bytes, SEED), 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory, BLOCK), 0);
    for (int i = 0; i < BLOCK; i++) /* of the second round, its last; or any of the third */
        assert_true(memory[i] == 99 || (memory[i] >= 100 && memory[i] < 150));
    io_destroy(self);
    sim_store_destroy(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_against_an_image),
        cmocka_unit_test(a_store_outlives_its_queues),
        cmocka_unit_test(the_order_follows_from_the_seed),
        cmocka_unit_test(power_is_lost),
        cmocka_unit_test(the_log_is_bounded_by_syncs),
    };
    return cmocka_run_group_tests(tests, directory_make, directory_remove);
}
