/* io_sync: another thread syncs while the owner writes, nothing that was complete before is lost,
 * and an error is the drive's. The argument names the backend. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/failpoint.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"

enum { BLOCK = 4096, BLOCKS = 400, SEED = 5 };

static enum io_backend backend = IO_POOL;
static slab_drive drives[2];
static slab store;
static sim_store *bytes; /* of the simulated drive */
static arena memory;
static io *transport;

static int setup(void **state)
{
    arena_config config = {.name = "host", .size_bytes = 4 * MIB, .touch_threads = 1};
    if (directory_make(state) != 0 || arena_init(&memory, &config) < 0)
        return -1;
    helper_drive(&drives[0], "x", 64 * MIB, 1);
    helper_drive(&drives[1], "y", 64 * MIB, 1);
    slab_config slab_settings = {
        .drives = drives, .drive_count = 2, .total_bytes = 4 * MIB, .stripe_bytes = MIB};
    if (slab_open(&store, &slab_settings) < 0)
        return -1;
    if (backend == IO_SIM) {
        if (sim_store_create(&store, &bytes) < 0)
            return -1;
        sim_store_cache(bytes);
    }
    const io_region region = {memory.base, memory.size_bytes};
    io_config io_settings = {.target = &store,
                             .backend = backend,
                             .queue_depth = 4,
                             .regions = &region,
                             .region_count = 1,
                             .store = bytes};
    return io_create(&io_settings, &transport);
}

static int teardown(void **state)
{
    failpoint_hook(NULL, NULL);
    io_destroy(transport);
    arena_fini(&memory);
    sim_store_destroy(bytes);
    bytes = NULL;
    if (slab_remove(&store) < 0)
        return -1;
    return directory_remove(state);
}

struct syncer {
    atomic_int written_count; /* blocks whose writes are complete */
    atomic_int synced_count;  /* of them, when the last sync began */
    int sync_count;
    atomic_int result;
};

static void *sync_on(void *argument)
{
    struct syncer *self = argument;
    for (;;) {
        int written = atomic_load(&self->written_count);
        if (written == BLOCKS || atomic_load(&self->result) < 0)
            break; /* the last blocks are not synced */
        if (written == atomic_load(&self->synced_count)) {
            sched_yield();
            continue;
        }
        atomic_store(&self->result, io_sync(transport));
        atomic_store(&self->synced_count, written);
        self->sync_count++;
    }
    return NULL;
}

static void another_thread_syncs(void **state)
{
    print_message("seed %d\n", SEED);
    struct syncer self = {.sync_count = 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, sync_on, &self), 0);
    for (int i = 0; i < BLOCKS; i++) {
        memset(memory.base, 1 + i % 255, BLOCK);
        assert_ok(io_transfer(transport, IO_WRITE, (uint64_t)i * BLOCK, memory.base, BLOCK));
        atomic_store(&self.written_count, i + 1);
        while (i == BLOCKS / 2 && atomic_load(&self.synced_count) < BLOCKS / 4 &&
               atomic_load(&self.result) == 0)
            sched_yield(); /* what follows is written when there is something to lose */
    }
    pthread_join(thread, NULL);
    assert_int_equal(self.result, 0);
    print_message("%d syncs, the last of %d blocks\n", self.sync_count, self.synced_count);
    if (backend == IO_SIM)
        assert_int_equal(sim_store_lose_power(bytes, SEED), 0);
    int last = backend == IO_SIM ? self.synced_count : BLOCKS;
    for (int i = 0; i < last; i++) {
        assert_int_equal(io_transfer(transport, IO_READ, (uint64_t)i * BLOCK, memory.base, BLOCK),
                         0);
        for (int k = 0; k < BLOCK; k++)
            if (memory.base[k] != 1 + i % 255)
                fail_msg("block %d of %d synced: byte %d is %d", i, last, k, memory.base[k]);
    }
}

static int met(void *user, const char *name)
{
    int *count = user;
    if (strcmp(name, "slab.sync") != 0)
        return 0;
    ++*count;
    return *count == 2 ? err_errno(EIO, "the hook") : 0;
}

static void an_error_is_the_drives(void **state)
{
    int count = 0;
    failpoint_hook(met, &count);
    assert_int_equal(io_sync(transport), 0);
    assert_int_equal(io_sync(transport), -EIO);
    if (!strstr(err_text(), "fdatasync of the slab ") || !strstr(err_text(), store.files[0].path) ||
        !strstr(err_text(), "may be lost"))
        fail_msg("'%s'", err_text());
    assert_int_equal(count, 2);
    failpoint_hook(NULL, NULL);
    /* A failed sync makes nothing last. */
    if (backend == IO_SIM) {
        memset(memory.base, 7, BLOCK);
        int lost = 0;
        for (uint64_t seed = 0; seed < 40; seed++) {
            assert_int_equal(io_transfer(transport, IO_WRITE, 0, memory.base, BLOCK), 0);
            count = 1;
            failpoint_hook(met, &count);
            assert_int_equal(io_sync(transport), -EIO);
            failpoint_hook(NULL, NULL);
            assert_int_equal(sim_store_lose_power(bytes, seed), 0);
            unsigned char first;
            slab_piece piece;
            slab_map(&store, 0, BLOCK, &piece);
            sim_store_get(bytes, piece.drive_idx, piece.file_offset, &first, 1);
            lost += first == 0;
            sim_store_put(bytes, piece.drive_idx, piece.file_offset,
                          memset(memory.base + BLOCK, 0, BLOCK), BLOCK);
        }
        assert_in_range(lost, 1, 39);
    }
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "pool";
    backend = helper_backend(name);
    int skip = helper_skip(backend);
    if (skip)
        return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(another_thread_syncs, setup, teardown),
        cmocka_unit_test_setup_teardown(an_error_is_the_drives, setup, teardown),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
