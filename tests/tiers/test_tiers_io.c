/* Reads and writes through one backend against a shadow copy in memory: random requests of both
 * directions in any order, tiny and deep queues, small and large blocks, one to three drives, a
 * drive that cuts, interrupts and delays, and no allocation on the way. The argument names the
 * backend: uring, uring_polled, uring_unregistered (as on an old kernel), pool, sim. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

enum { BLOCK = 4096, SLOTS = 24, SLOT_BLOCKS = 512, SLAB_BLOCKS = 6144, SEED = 20261121 };

static_assert((uint64_t)SLOTS * SLOT_BLOCKS * BLOCK <= 64 * 1024 * 1024, "arenas stay small");

static enum io_backend backend = IO_POOL;
static bool deny_registration, polls;
static uint32_t skipped_modes;
static slab_drive drives[3];
static slab store;
static arena memory;

/* One request with its piece of the arena and the blocks of the slab that it covers. */
struct slot {
    io_request request;
    uint32_t first_block, block_count;
    bool busy;
};
static struct slot slots[SLOTS];

/* [SLAB_BLOCKS] how often each block was written: its content follows from that. */
static uint32_t version[SLAB_BLOCKS];
static bool block_busy[SLAB_BLOCKS];

static void fill_block(unsigned char *data, uint32_t block, uint32_t generation)
{
    uint64_t words[BLOCK / 8];
    for (uint32_t i = 0; i < BLOCK / 8; i++)
        words[i] = ((uint64_t)generation << 40 | block) * 0x9e3779b97f4a7c15u + i;
    memcpy(data, words, BLOCK);
}

static int open_slab(uint32_t drive_count)
{
    static const double weights[] = {2.0, 1.0, 0.7};
    static const char *const names[] = {"x", "y", "z"};
    for (uint32_t i = 0; i < drive_count; i++)
        helper_drive(&drives[i], names[i], 64 * MIB, weights[i]);
    slab_config config = {.drives = drives,
                          .drive_count = drive_count,
                          .total_bytes = (uint64_t)SLAB_BLOCKS * BLOCK,
                          .stripe_bytes = MIB};
    return slab_open(&store, &config);
}

static int setup(void **state)
{
    memset(version, 0, sizeof version);
    memset(block_busy, 0, sizeof block_busy);
    memset(slots, 0, sizeof slots);
    arena_config config = {
        .name = "host", .size_bytes = (uint64_t)SLOTS * SLOT_BLOCKS * BLOCK, .touch_threads = 1};
    return directory_make(state) == 0 ? arena_init(&memory, &config) : -1;
}

static int teardown(void **state)
{
    arena_fini(&memory);
    if (store.drive_count && slab_remove(&store) < 0)
        return -1;
    return directory_remove(state);
}

static io *create(uint32_t queue_depth, uint64_t block_bytes, const io_faults *faults)
{
    /* Cut in three, so that requests cross registered regions and some memory is in none. */
    const io_region regions[2] = {
        {memory.base, 5 * SLOT_BLOCKS * BLOCK + 3 * BLOCK},
        {memory.base + 5 * SLOT_BLOCKS * BLOCK + 3 * BLOCK, 12 * SLOT_BLOCKS * BLOCK}};
    io_config config = {.target = &store,
                        .backend = backend,
                        .queue_depth = queue_depth,
                        .block_bytes = block_bytes,
                        .pool_threads = 3,
                        .regions = regions,
                        .region_count = 2,
                        .request_capacity = SLOTS,
                        .polls = polls,
                        .test = &(io_test){.deny_registration = deny_registration,
                                           .polls_plain_ring = true,
                                           .skipped_modes = skipped_modes,
                                           .faults = faults}};
    io *self = NULL;
    int rc = io_create(&config, &self);
    if (rc < 0)
        fail_msg("io_create: %s", err_text());
    io_stats stats;
    io_get_stats(self, &stats);
    assert_int_equal(stats.backend, backend);
    assert_int_equal(stats.polls, polls);
    if (backend != IO_URING || deny_registration)
        assert_false(stats.buffers_registered);
    return self;
}

static void write_everything(io *self)
{
    for (uint32_t block = 0; block < SLAB_BLOCKS; block += SLOT_BLOCKS) {
        for (uint32_t i = 0; i < SLOT_BLOCKS; i++)
            fill_block(memory.base + (uint64_t)i * BLOCK, block + i, 0);
        assert_int_equal(io_transfer(self, IO_WRITE, (uint64_t)block * BLOCK, memory.base,
                                     (uint64_t)SLOT_BLOCKS * BLOCK),
                         0);
    }
}

/* Fills a free slot with a random request on blocks that no other request uses; false if none
 * found. */
static bool draw_request(uint32_t slot_idx, uint64_t trial, uint32_t blocks_max)
{
    struct slot *slot = &slots[slot_idx];
    slot->block_count = 1 + (uint32_t)rng_below(SEED, 1, trial, blocks_max);
    slot->first_block = (uint32_t)rng_below(SEED, 2, trial, SLAB_BLOCKS - slot->block_count + 1);
    for (uint32_t i = 0; i < slot->block_count; i++)
        if (block_busy[slot->first_block + i])
            return false;
    /* Neighbouring slots' memory is contiguous: half of the requests start within their slot. */
    uint64_t skip = rng_below(SEED, 3, trial, SLOT_BLOCKS - slot->block_count + 1);
    unsigned char *data = memory.base + ((uint64_t)slot_idx * SLOT_BLOCKS + skip) * BLOCK;
    enum io_direction direction = rng_below(SEED, 4, trial, 2) ? IO_WRITE : IO_READ;
    for (uint32_t i = 0; i < slot->block_count; i++) {
        uint32_t block = slot->first_block + i;
        block_busy[block] = true;
        if (direction == IO_WRITE)
            fill_block(data + (uint64_t)i * BLOCK, block, ++version[block]);
        else
            memset(data + (uint64_t)i * BLOCK, 0xee, BLOCK);
    }
    slot->request = (io_request){.direction = direction,
                                 .offset = (uint64_t)slot->first_block * BLOCK,
                                 .data = data,
                                 .size_bytes = (uint64_t)slot->block_count * BLOCK,
                                 .user = slot};
    slot->busy = true;
    return true;
}

static void check_done(io_request *request)
{
    struct slot *slot = request->user;
    assert_ptr_equal(request, &slot->request);
    assert_true(slot->busy);
    assert_int_equal(request->result, 0);
    assert_int_equal(request->done_bytes, request->size_bytes);
    assert_true(request->start_ns > 0 && request->end_ns >= request->start_ns);
    unsigned char expected[BLOCK];
    for (uint32_t i = 0; i < slot->block_count; i++) {
        uint32_t block = slot->first_block + i;
        fill_block(expected, block, version[block]);
        assert_memory_equal((unsigned char *)request->data + (uint64_t)i * BLOCK, expected, BLOCK);
        block_busy[block] = false;
    }
    slot->busy = false;
}

static uint32_t poll_and_check(io *self, bool sleep)
{
    io_request *done[5];
    int count = io_poll(self, done, sizeof done / sizeof done[0]);
    if (count == 0 && sleep) {
        helper_sleep(self); /* never sleeps over a completion */
        count = io_poll(self, done, sizeof done / sizeof done[0]);
    }
    assert_true(count >= 0);
    for (int i = 0; i < count; i++)
        check_done(done[i]);
    return (uint32_t)count;
}

static void run_random(io *self, uint64_t request_count, uint32_t blocks_max, uint64_t first_trial)
{
    uint64_t submitted = 0, trial = first_trial;
    uint32_t busy = 0;
    mem_stats before, after;
    mem_get_stats(&before);
    while (submitted < request_count || busy) {
        for (uint32_t i = 0; i < SLOTS && submitted < request_count; i++) {
            if (slots[i].busy || !draw_request(i, trial++, blocks_max))
                continue;
            assert_int_equal(io_submit(self, &slots[i].request), 0);
            submitted++;
            busy++;
        }
        busy -= poll_and_check(self, busy > 0);
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count); /* nothing allocates after io_create */
    assert_int_equal(io_error(self)->code, 0);
}

static void verify_everything(io *self)
{
    unsigned char expected[BLOCK];
    for (uint32_t block = 0; block < SLAB_BLOCKS; block += SLOT_BLOCKS) {
        assert_int_equal(io_transfer(self, IO_READ, (uint64_t)block * BLOCK, memory.base,
                                     (uint64_t)SLOT_BLOCKS * BLOCK),
                         0);
        for (uint32_t i = 0; i < SLOT_BLOCKS; i++) {
            fill_block(expected, block + i, version[block + i]);
            assert_memory_equal(memory.base + (uint64_t)i * BLOCK, expected, BLOCK);
        }
    }
}

static void random_requests_against_shadow(void **state)
{
    print_message("seed %d\n", SEED);
    static const struct {
        uint32_t drive_count, queue_depth;
        uint64_t block_bytes;
        uint32_t blocks_max;
        uint64_t request_count;
    } cases[] = {
        {1, 16, MIB, SLOT_BLOCKS, 200}, {1, 1, 64 * KIB, 40, 200}, {2, 3, 4 * KIB, 12, 300},
        {3, 4, 256 * KIB, 300, 200},    {3, 0, 0, 16, 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memset(version, 0, sizeof version);
        assert_int_equal(open_slab(cases[i].drive_count), 0);
        int fds = helper_count_fds();
        io *self = create(cases[i].queue_depth, cases[i].block_bytes, NULL);
        write_everything(self);
        run_random(self, cases[i].request_count, cases[i].blocks_max, 100000 * i);
        verify_everything(self);
        io_stats stats;
        io_get_stats(self, &stats);
        assert_true(stats.bytes[IO_READ] > (uint64_t)SLAB_BLOCKS * BLOCK);
        assert_true(stats.bytes[IO_WRITE] > (uint64_t)SLAB_BLOCKS * BLOCK);
        if (cases[i].block_bytes)
            assert_true(stats.transfers[IO_READ] >= stats.bytes[IO_READ] / cases[i].block_bytes);
        io_destroy(self);
        assert_int_equal(helper_count_fds(), fds);
        assert_int_equal(slab_remove(&store), 0);
    }
}

/* A drive that cuts transfers short, interrupts and delays them changes nothing but the time. */
static void a_bad_day_changes_nothing(void **state)
{
    const io_faults faults = {
        .seed = 5, .short_rate = 300, .retry_rate = 200, .latency_us_max = 300};
    assert_int_equal(open_slab(2), 0);
    io *self = create(4, 64 * KIB, &faults);
    write_everything(self);
    run_random(self, 150, 100, 7000000);
    verify_everything(self);
    io_stats stats;
    io_get_stats(self, &stats);
    assert_true(stats.short_count > 50);
    assert_true(stats.retry_count > 50);
    io_destroy(self);
}

/* The canary: a bit flip that nobody reports must be seen by the comparison that the tests rest
 * on. */
static void a_flipped_bit_is_seen(void **state)
{
    const io_faults faults = {.seed = 6, .flip_rate = 1000};
    assert_int_equal(open_slab(1), 0);
    io *self = create(4, 64 * KIB, &faults);
    write_everything(self);
    unsigned char expected[BLOCK];
    fill_block(expected, 0, 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, BLOCK), 0);
    int different = 0;
    for (int i = 0; i < BLOCK; i++)
        different += memory.base[i] != expected[i];
    assert_int_equal(different, 1);
    io_destroy(self);
}

/* A region above 1 GiB is registered in pieces, and a request across their border works. The region
 * is one file of 4 MiB mapped again and again, so it takes no more memory than that. */
static void regions_beyond_one_iovec(void **state)
{
    const uint64_t file_bytes = 4 * MIB, region_bytes = GIB + 8 * MIB;
    int fd = memfd_create("sluice-test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)file_bytes), 0);
    unsigned char *base =
        mmap(NULL, region_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(base != MAP_FAILED);
    for (uint64_t at = 0; at < region_bytes; at += file_bytes)
        assert_true(mmap(base + at, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                         0) != MAP_FAILED);
    assert_int_equal(open_slab(1), 0);
    const io_region region = {base, region_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .regions = &region,
                        .region_count = 1,
                        .test = &(io_test){.deny_registration = deny_registration}};
    io *self;
    assert_int_equal(io_create(&config, &self), 0);
    unsigned char *data = base + GIB - 600 * KIB; /* the first transfer of 1 MiB meets the border */
    for (uint32_t i = 0; i < 300; i++)
        fill_block(data + (uint64_t)i * BLOCK, i, 9);
    assert_int_equal(io_transfer(self, IO_WRITE, 8 * BLOCK, data, 300 * BLOCK), 0);
    for (uint64_t i = 0; i < 300 * BLOCK; i++)
        data[i] = 0;
    assert_int_equal(io_transfer(self, IO_READ, 8 * BLOCK, data, 300 * BLOCK), 0);
    unsigned char expected[BLOCK];
    for (uint32_t i = 0; i < 300; i++) {
        fill_block(expected, i, 9);
        assert_memory_equal(data + (uint64_t)i * BLOCK, expected, BLOCK);
    }
    io_stats stats;
    io_get_stats(self, &stats);
    print_message("buffers registered: %d\n", stats.buffers_registered);
    /* Registered: 600 + 600 KiB, cut at the border (else the kernel says EFAULT); if not: 1024 +
     * 176. */
    assert_int_equal(stats.transfers[IO_READ], 2);
    io_destroy(self);
    munmap(base, region_bytes);
    close(fd);
}

static void bad_requests_are_not_taken(void **state)
{
    assert_int_equal(open_slab(1), 0);
    io *self = create(2, 0, NULL);
    const io_request good = {.data = memory.base, .size_bytes = BLOCK};
    io_request bad[8];
    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].offset = 512;
    bad[1].size_bytes = 100;
    bad[2].size_bytes = 0;
    bad[3].data = memory.base + 8;
    bad[4].offset = store.total_bytes;
    bad[5].offset = UINT64_MAX - 4095;
    bad[6].size_bytes = store.total_bytes + BLOCK;
    bad[7].data = NULL;
    for (int i = 0; i < 8; i++)
        assert_int_equal(io_submit(self, &bad[i]), -EINVAL);
    io_request *done[1];
    assert_int_equal(io_poll(self, done, 1), 0);
    assert_int_equal(io_error(self)->code, 0);
    io_destroy(self);
}

static void capacity_is_a_limit(void **state)
{
    assert_int_equal(open_slab(1), 0);
    io *self = create(1, 0, NULL);
    io_request requests[SLOTS + 1];
    for (int i = 0; i <= SLOTS; i++) {
        requests[i] = (io_request){.offset = (uint64_t)i * BLOCK,
                                   .data = memory.base + (uint64_t)i * BLOCK,
                                   .size_bytes = BLOCK};
        assert_int_equal(io_submit(self, &requests[i]), i < SLOTS ? 0 : -EAGAIN);
    }
    io_request *done[1];
    int count;
    while ((count = io_poll(self, done, 1)) == 0)
        helper_sleep(self);
    assert_int_equal(count, 1);
    assert_int_equal(io_submit(self, &requests[SLOTS]), 0); /* one returned, one taken */
    assert_int_equal(io_submit(self, done[0]), -EAGAIN);
    for (int returned = 1; returned < SLOTS;) {
        helper_sleep(self); /* requests that do not fit in `done` keep the descriptor readable */
        count = io_poll(self, done, 1);
        assert_in_range(count, 0, 1);
        returned += count;
    }
    for (int i = 0; i < SLOTS / 2; i++)
        assert_int_equal(io_submit(self, &requests[i]), 0);
    io_destroy(self); /* with requests queued and in flight */
}

/* A direction alone uses all transfers, beside the other half of them; what it has too many goes
 * to the other as it returns. */
static void directions_share_the_depth(void **state)
{
    assert_int_equal(open_slab(1), 0);
    enum { DEPTH = 2, PIECES = 16 };
    for (int both = 0; both < 2; both++) {
        io *self = create(DEPTH, 16 * BLOCK, NULL);
        io_request requests[2] = {
            {.data = memory.base, .size_bytes = PIECES * 16 * BLOCK},
            {.direction = IO_WRITE,
             .offset = PIECES * 16 * BLOCK,
             .data = memory.base + PIECES * 16 * BLOCK,
             .size_bytes = PIECES * 16 * BLOCK},
        };
        io_stats stats;
        io_request *done[2];
        assert_int_equal(io_submit(self, &requests[0]), 0);
        if (both)
            assert_int_equal(io_submit(self, &requests[1]), 0);
        int count = io_poll(self, done, 2);
        io_get_stats(self, &stats);
        assert_int_equal(stats.transfers[IO_READ], both ? DEPTH : 2 * DEPTH);
        assert_int_equal(stats.transfers[IO_WRITE], both ? DEPTH : 0);
        if (!both)
            assert_int_equal(io_submit(self, &requests[1]), 0);
        for (int more; count < 2; count += more) {
            helper_sleep(self);
            more = io_poll(self, done, 2);
            assert_in_range(more, 0, 2);
        }
        assert_int_equal(requests[0].result | requests[1].result, 0);
        io_destroy(self);
    }
}

/* Polled completions are proved by a read. Without a queue for polling the drive refuses it, and
 * completions then come by interrupts. */
static void polling_is_proved(void **state)
{
    if (backend != IO_URING)
        return;
    assert_int_equal(open_slab(1), 0);
    io *self;
    const io_config config = {.target = &store, .backend = IO_URING, .polls = true};
    assert_int_equal(io_create(&config, &self), 0);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory.base, BLOCK), 0);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base + BLOCK, BLOCK), 0);
    assert_memory_equal(memory.base, memory.base + BLOCK, BLOCK);
    io_destroy(self);
}

/* The descriptor is not readable when there is no work, so a caller that sleeps on it does not
 * spin. */
static void the_descriptor_gets_quiet(void **state)
{
    assert_int_equal(open_slab(1), 0);
    io *self = create(0, 0, NULL);
    for (int round = 0; round < 20; round++) {
        io_request request = {.data = memory.base, .size_bytes = 64 * BLOCK};
        assert_int_equal(io_submit(self, &request), 0);
        io_request *done[1];
        int count, idle = 0;
        while ((count = io_poll(self, done, 1)) == 0) {
            helper_sleep(self);
            assert_true(++idle < 1000);
        }
        assert_int_equal(count, 1);
        struct pollfd waiter = {.fd = io_event_fd(self), .events = POLLIN};
        for (idle = 0; poll(&waiter, 1, 2) == 1; idle++) {
            assert_int_equal(io_poll(self, done, 1), 0);
            assert_true(idle < 10);
        }
    }
    io_destroy(self);
}

/* io_transfer in the midst of other requests leaves them to io_poll. */
static void transfer_among_others(void **state)
{
    assert_int_equal(open_slab(2), 0);
    io *self = create(2, 64 * KIB, NULL);
    write_everything(self);
    io_request others[6];
    for (int i = 0; i < 6; i++) {
        others[i] = (io_request){.offset = (uint64_t)i * 100 * BLOCK,
                                 .data = memory.base + (uint64_t)(i + 1) * SLOT_BLOCKS * BLOCK,
                                 .size_bytes = 100 * BLOCK};
        assert_int_equal(io_submit(self, &others[i]), 0);
    }
    assert_int_equal(io_transfer(self, IO_READ, 1000 * BLOCK, memory.base, 7 * BLOCK), 0);
    unsigned char expected[BLOCK];
    fill_block(expected, 1006, 0);
    assert_memory_equal(memory.base + 6 * BLOCK, expected, BLOCK);
    int returned = 0;
    while (returned < 6) {
        io_request *done[6];
        int count = io_poll(self, done, 6);
        assert_true(count >= 0);
        for (int i = 0; i < count; i++)
            assert_true(done[i] >= others && done[i] < others + 6);
        returned += count;
        if (returned < 6)
            helper_sleep(self);
    }
    io_destroy(self);
}

static void bad_configs_are_refused(void **state)
{
    assert_int_equal(open_slab(1), 0);
    int fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    io *self;
    io_config config = {.target = &store, .backend = backend, .block_bytes = 1000};
    assert_int_equal(io_create(&config, &self), -EINVAL);
    config.block_bytes = 2 * GIB;
    assert_int_equal(io_create(&config, &self), -EINVAL);
    config.block_bytes = 0;
    config.queue_depth = 100000;
    assert_int_equal(io_create(&config, &self), -EINVAL);
    config.queue_depth = 0;
    const io_region crooked = {memory.base + 1, BLOCK};
    config.regions = &crooked;
    config.region_count = 1;
    assert_int_equal(io_create(&config, &self), -EINVAL);
    assert_null(self);
    config.region_count = 0;
    config.backend = IO_URING;
    config.test = &(io_test){.uring_refusal = EPERM};
    assert_int_equal(io_create(&config, &self), -EPERM);
    assert_null(self);
    config.backend = IO_AUTO;
    assert_int_equal(io_create(&config, &self), 0); /* one warning, and the pool */
    io_stats stats;
    io_get_stats(self, &stats);
    assert_int_equal(stats.backend, IO_POOL);
    assert_int_equal(io_transfer(self, IO_WRITE, 0, memory.base, BLOCK), 0);
    io_destroy(self);
    io_destroy(NULL);
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "pool";
    backend = helper_backend(name);
    deny_registration = strcmp(name, "uring_unregistered") == 0;
    skipped_modes = deny_registration ? UINT32_MAX : 0; /* what an old kernel has */
    polls = strcmp(name, "uring_polled") == 0;
    int skip = helper_skip(backend);
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(random_requests_against_shadow, setup, teardown),
        cmocka_unit_test_setup_teardown(a_bad_day_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(a_flipped_bit_is_seen, setup, teardown),
        cmocka_unit_test_setup_teardown(regions_beyond_one_iovec, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_requests_are_not_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(capacity_is_a_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(directions_share_the_depth, setup, teardown),
        cmocka_unit_test_setup_teardown(polling_is_proved, setup, teardown),
        cmocka_unit_test_setup_teardown(the_descriptor_gets_quiet, setup, teardown),
        cmocka_unit_test_setup_teardown(transfer_among_others, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_configs_are_refused, setup, teardown),
    };
    const struct CMUnitTest polled[] = {
        cmocka_unit_test_setup_teardown(random_requests_against_shadow, setup, teardown),
        cmocka_unit_test_setup_teardown(capacity_is_a_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(transfer_among_others, setup, teardown),
    };
    return polls ? cmocka_run_group_tests_name(name, polled, NULL, NULL)
                 : cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
