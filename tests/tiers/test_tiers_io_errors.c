/* Errors of a drive reach the caller as typed errors that name file and offset, fail only the
 * requests concerned, and leave the queue usable. A ring that cannot be made is refused with
 * advice. The argument names the backend. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "tiers/io.h"
#include "tiers/io_faults.h"

static enum io_backend backend = IO_POOL;
static slab_drive drives[2];
static slab store;
static arena memory;

static int setup(void **state)
{
    arena_config config = {.name = "host", .size_bytes = 8 * MIB, .touch_threads = 1};
    if (directory_make(state) != 0 || arena_init(&memory, &config) < 0)
        return -1;
    helper_drive(&drives[0], "x", 64 * MIB, 1);
    helper_drive(&drives[1], "y", 64 * MIB, 1);
    slab_config slab_settings = {
        .drives = drives, .drive_count = 2, .total_bytes = 16 * MIB, .stripe_bytes = MIB};
    return slab_open(&store, &slab_settings);
}

static int teardown(void **state)
{
    arena_fini(&memory);
    return slab_remove(&store) == 0 ? directory_remove(state) : -1;
}

static bool deny_registration;
static uint32_t skipped_modes; /* io_test's */
static sim_store *bytes;       /* of the simulated drives */

static io *create(const io_faults *faults)
{
    const io_region region = {memory.base, memory.size_bytes};
    io_config config = {.target = &store,
                        .backend = backend,
                        .queue_depth = 2,
                        .block_bytes = 128 * KIB,
                        .regions = &region,
                        .region_count = 1,
                        .test = &(io_test){.deny_registration = deny_registration,
                                           .skipped_modes = skipped_modes,
                                           .faults = faults},
                        .store = bytes};
    io *self = NULL;
    if (io_create(&config, &self) < 0)
        fail_msg("io_create: %s", err_text());
    return self;
}

static void a_truncated_file_is_named(void **state)
{
    if (backend == IO_SIM)
        assert_int_equal(sim_store_create(&store, &bytes), 0);
    io *self = create(NULL);
    /* Drive 1 loses its third stripe and all after it, and a part of the second that is no
     * block. */
    uint64_t kept_bytes = SLAB_HEADER_BYTES + 2 * MIB - 100 * KIB - 1000;
    assert_int_equal(ftruncate(store.files[1].fd, (off_t)kept_bytes), 0);
    if (bytes)
        sim_store_cut(bytes, 1, kept_bytes);
    io_request requests[3] = {
        {.offset = 0, .data = memory.base, .size_bytes = 2 * MIB},
        {.offset = 2 * MIB, .data = memory.base + 2 * MIB, .size_bytes = 2 * MIB},
        {.offset = 4 * MIB, .data = memory.base + 4 * MIB, .size_bytes = 4 * MIB},
    };
    /* Stripe 3 is the second one of drive 1. */
    slab_piece piece;
    slab_map(&store, 3 * MIB, MIB, &piece);
    assert_int_equal(piece.drive_idx, 1);
    assert_int_equal(piece.file_offset, SLAB_HEADER_BYTES + MIB);
    assert_int_equal(io_submit(self, &requests[0]), 0);
    helper_wait_for(self, 1);
    assert_int_equal(requests[0].result, 0);
    assert_int_equal(io_error(self)->code, 0);
    assert_int_equal(io_submit(self, &requests[1]), 0);
    helper_wait_for(self, 1);
    assert_int_equal(requests[1].result, -EIO);
    assert_int_equal(requests[1].in_flight, 0);
    const err_record *error = io_error(self);
    assert_int_equal(error->code, -EIO);
    assert_non_null(strstr(error->text, store.files[1].path));
    assert_non_null(strstr(error->text, "end of file"));
    /* The offset is within the transfer that met the end, on a block boundary. */
    const char *at = strstr(error->text, "offset ");
    assert_non_null(at);
    unsigned long long offset = strtoull(at + 7, NULL, 10);
    assert_in_range(offset, kept_bytes - 128 * KIB, kept_bytes);
    /* Long requests stop early; the first error stays; other places still work. */
    assert_int_equal(io_submit(self, &requests[2]), 0);
    helper_wait_for(self, 1);
    assert_int_equal(requests[2].result, -EIO);
    assert_true(requests[2].done_bytes < requests[2].size_bytes);
    assert_non_null(strstr(io_error(self)->text, at));
    assert_int_equal(io_transfer(self, IO_READ, 0, memory.base, MIB), 0);
    assert_error(io_transfer(self, IO_READ, 5 * MIB, memory.base, MIB), -EIO, "end of file");
    /* Each failed request has its own text. */
    assert_int_equal(io_request_error(self, &requests[0]), 0);
    assert_int_equal(io_request_error(self, &requests[1]), -EIO);
    assert_string_equal(err_text(), io_error(self)->text);
    assert_int_equal(io_request_error(self, &requests[2]), -EIO);
    assert_string_not_equal(err_text(), io_error(self)->text);
    assert_non_null(strstr(err_text(), store.files[1].path));
    io_destroy(self);
    sim_store_destroy(bytes);
    bytes = NULL;
}

static void simulated_errors_are_typed(void **state)
{
    static const struct {
        io_faults faults;
        enum io_direction direction;
        int code;
        /* one block where the text's offset is looked at: of several transfers any may be the first
         * to fail */
        uint64_t size_bytes;
        const char *word;
    } cases[] = {
        {{.seed = 1, .eio_rate = 1000},
         IO_READ,
         -EIO,
         128 * KIB,
         "read of 131072 bytes at offset 4096"},
        {{.seed = 2, .eio_rate = 1000}, IO_WRITE, -EIO, 3 * MIB, "write of 131072 bytes"},
        {{.seed = 3, .torn_rate = 1000}, IO_WRITE, -EIO, 3 * MIB, "Input/output error"},
        {{.seed = 4, .enospc_rate = 1000}, IO_WRITE, -ENOSPC, 3 * MIB, "No space left on device"},
        {{.seed = 5, .retry_rate = 1000}, IO_READ, -EAGAIN, 3 * MIB, "read of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        io *self = create(&cases[i].faults);
        int rc = io_transfer(self, cases[i].direction, 0, memory.base, cases[i].size_bytes);
        if (cases[i].code == -EAGAIN) /* endless interruptions end, as one of the two */
            assert_true(rc == -EAGAIN || rc == -EINTR);
        else
            assert_int_equal(rc, cases[i].code);
        if (!strstr(err_text(), cases[i].word))
            fail_msg("'%s' lacks '%s'", err_text(), cases[i].word);
        assert_non_null(strstr(err_text(), ".slab"));
        assert_int_equal(io_error(self)->code, rc);
        io_destroy(self);
    }
}

/* Some transfers fail: each request ends, with the right result, and what succeeded is whole. */
static void rare_errors_fail_only_their_requests(void **state)
{
    const io_faults faults = {
        .seed = 11, .eio_rate = 30, .short_rate = 200, .retry_rate = 100, .latency_us_max = 100};
    io *self = create(&faults);
    int failed = 0, passed = 0;
    for (int round = 0; round < 12; round++) {
        io_request requests[8];
        for (int i = 0; i < 8; i++) {
            requests[i] = (io_request){.direction = i % 2 ? IO_WRITE : IO_READ,
                                       .offset = (uint64_t)i * 2 * MIB,
                                       .data = memory.base + (uint64_t)i * MIB,
                                       .size_bytes = MIB};
            assert_int_equal(io_submit(self, &requests[i]), 0);
        }
        helper_wait_for(self, 8);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(requests[i].in_flight, 0);
            if (requests[i].result == 0) {
                assert_int_equal(requests[i].done_bytes, MIB);
                passed++;
            } else {
                assert_int_equal(requests[i].result, -EIO);
                failed++;
            }
        }
    }
    assert_true(failed > 5 && passed > 20);
    io_destroy(self);
}

/* Destroyed in the midst of failing and retried work: waits, frees, leaks nothing. */
static void destroyed_while_busy(void **state)
{
    const io_faults faults = {
        .seed = 12, .eio_rate = 100, .short_rate = 300, .retry_rate = 300, .latency_us_max = 500};
    int fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    for (int round = 0; round < 10; round++) {
        io *self = create(&faults);
        io_request requests[8];
        for (int i = 0; i < 8; i++) {
            requests[i] = (io_request){.direction = i % 2 ? IO_WRITE : IO_READ,
                                       .offset = (uint64_t)i * 2 * MIB,
                                       .data = memory.base + (uint64_t)i * MIB,
                                       .size_bytes = MIB};
            assert_int_equal(io_submit(self, &requests[i]), 0);
        }
        io_request *done[8];
        for (int i = 0; i < round; i++)
            assert_true(io_poll(self, done, 8) >= 0);
        io_destroy(self);
    }
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

/* Fills the queue with reads. The requests are the caller's heap, so that it can go first. */
static io_request *submit_reads(io *self, int count)
{
    io_request *requests = mem_alloc((size_t)count, sizeof *requests, "test requests");
    assert_non_null(requests);
    for (int i = 0; i < count; i++) {
        requests[i] = (io_request){.direction = IO_READ,
                                   .offset = (uint64_t)i * 2 * MIB,
                                   .data = memory.base + (uint64_t)i * MIB,
                                   .size_bytes = MIB};
        assert_int_equal(io_submit(self, &requests[i]), 0);
    }
    return requests;
}

/* Polls until the queue says that it is broken. */
static int poll_to_the_end(io *self)
{
    for (;;) {
        io_request *done[8];
        int rc = io_poll(self, done, 8);
        if (rc < 0)
            return rc;
        if (rc == 0)
            helper_sleep(self);
    }
}

/* Frees the requests, destroys, and then nothing writes into the memory any more. */
static void destroy_broken(io *self, io_request *requests)
{
    io_request *done[8];
    assert_int_equal(io_poll(self, done, 8), ERR_POISONED);
    mem_free(requests);
    io_destroy(self);
    memset(memory.base, 0xa5, memory.size_bytes);
    (void)poll(NULL, 0, 20); /* for a straggler to show itself */
    for (uint64_t i = 0; i < memory.size_bytes; i++)
        if (memory.base[i] != 0xa5)
            fail_msg("byte %llu was written after io_destroy", (unsigned long long)i);
}

static void destroyed_after_the_queue_broke(void **state)
{
    int fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t round = 0; round < 10; round++) {
        const io_faults faults = {
            .seed = round, .break_after = 1 + 3 * round, .latency_us_max = 50};
        io *self = create(&faults);
        io_request *requests = submit_reads(self, 8);
        assert_error(poll_to_the_end(self), -EIO, "queue of reads and writes");
        destroy_broken(self, requests);
    }
    assert_int_equal(helper_count_fds(), fds);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
}

/* The descriptor of the only ring. */
static int find_ring(void)
{
    for (int fd = 0; fd < 256; fd++) {
        char link[64], target[64] = "";
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, "[io_uring]"))
            return fd;
    }
    return -1;
}

/* Makes the ring refuse every call from now on. Returns another descriptor of it. */
static int kill_ring(void)
{
    int ring = find_ring(), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(ring >= 0 && null >= 0);
    int kept = fcntl(ring, F_DUPFD_CLOEXEC, 0);
    assert_true(kept >= 0);
    assert_int_equal(dup2(null, ring), ring);
    close(null);
    return kept;
}

/* The ring's descriptor becomes one of /dev/null while the kernel has transfers: it refuses every
 * call from then on, and yet what it has must be over before io_destroy returns. A ring as old
 * kernels have it stores completions without a call. One that defers them needs calls, so it is
 * repaired before the end; until then nothing but the failed call tells that it broke. */
static void destroyed_after_the_ring_died(void **state)
{
    if (backend != IO_URING)
        skip();
    int fds = helper_count_fds();
    deny_registration = true; /* otherwise the ring does not need its descriptor */
    for (int round = 0; round < 10; round++) {
        bool defers = round % 2;
        skipped_modes = defers ? 0 : UINT32_MAX;
        io *self = create(NULL);
        io_request *requests = submit_reads(self, 8);
        io_request *done[8];
        assert_true(io_poll(self, done, 8) >= 0);
        int ring = find_ring(), kept = kill_ring();
        assert_true(poll_to_the_end(self) < 0);
        assert_non_null(strstr(err_text(), "queue of reads and writes"));
        if (defers)
            assert_int_equal(dup2(kept, ring), ring);
        close(kept);
        destroy_broken(self, requests);
    }
    deny_registration = false;
    skipped_modes = 0;
    assert_int_equal(helper_count_fds(), fds);
}

static void *fill_pipe_later(void *argument)
{
    static unsigned char page[4096];
    memset(page, 0x5a, sizeof page);
    (void)poll(NULL, 0, 50);
    if (write(*(int *)argument, page, sizeof page) != (ssize_t)sizeof page)
        abort();
    return NULL;
}

/* A drive that takes its time, here a pipe in the place of the slab's file: the transfer that the
 * kernel has when the queue breaks is over when io_destroy returns, so what it read has arrived by
 * then. */
static void a_broken_queue_is_waited_for(void **state)
{
    if (backend != IO_URING)
        skip(); /* the pool's pread refuses a pipe */
    const io_faults faults = {.seed = 1, .break_after = 1};
    deny_registration = true; /* else the ring keeps the file itself */
    for (int round = 0; round < 2; round++) {
        skipped_modes = round == 1 ? UINT32_MAX : 0; /* see destroyed_after_the_ring_died */
        io *self = create(&faults);
        int ends[2], kept = dup(store.files[0].fd);
        assert_int_equal(pipe(ends), 0);
        assert_int_equal(dup2(ends[0], store.files[0].fd), store.files[0].fd);
        memset(memory.base, 0, 4096);
        io_request request = {.direction = IO_READ, .data = memory.base, .size_bytes = 4096};
        assert_int_equal(io_submit(self, &request), 0);
        assert_int_equal(poll_to_the_end(self), -EIO);
        if (round == 1)
            close(kill_ring());
        pthread_t writer;
        assert_int_equal(pthread_create(&writer, NULL, fill_pipe_later, &ends[1]), 0);
        io_destroy(self);
        for (int i = 0; i < 4096; i++)
            assert_int_equal(memory.base[i], 0x5a);
        pthread_join(writer, NULL);
        assert_int_equal(dup2(kept, store.files[0].fd), store.files[0].fd);
        close(kept);
        close(ends[0]);
        close(ends[1]);
    }
    skipped_modes = 0;
    deny_registration = false;
}

/* Each reason why there is no ring has its own advice, which is in the error of IO_URING and in the
 * warning of IO_AUTO. */
static void refusals_of_io_uring_have_advice(void **state)
{
    static const struct {
        int code;
        const char *advice;
    } cases[] = {
        {EMFILE, "(ulimit -n)"},       {ENFILE, "raise the sysctl fs.file-max"},
        {ENOMEM, " for 64 transfers"}, {EPERM, "io_uring_disabled"},
        {EACCES, "io_uring_disabled"}, {ENOSYS, "need Linux 5.6 or later"},
        {EBUSY, "io.backend=pool"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        io *self;
        const io_config config = {.target = &store,
                                  .backend = IO_URING,
                                  .test = &(io_test){.uring_refusal = cases[i].code}};
        assert_int_equal(io_create(&config, &self), -cases[i].code);
        if (strncmp(err_text(), "io_uring_setup: ", 16) != 0 ||
            !strstr(err_text(), cases[i].advice))
            fail_msg("%s: '%s'", strerror(cases[i].code), err_text());
    }
}

/* The kernel itself refuses descriptors: first those of the queue, then that of the ring. */
static void descriptors_may_run_out(void **state)
{
    if (backend != IO_URING) /* whether there is io_uring is known only for its instances */
        return;
    struct rlimit all, few;
    int next = dup(STDERR_FILENO); /* the lowest that is free */
    assert_true(next >= 0 && getrlimit(RLIMIT_NOFILE, &all) == 0);
    close(next);
    bool is_of_ring = false;
    for (int limit = next; !is_of_ring; limit++) {
        io *self;
        const io_config config = {.target = &store, .backend = IO_URING};
        few = (struct rlimit){.rlim_cur = (rlim_t)limit, .rlim_max = all.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        int rc = io_create(&config, &self);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
        assert_int_equal(rc, -EMFILE); /* never success before the ring was refused */
        if (!strstr(err_text(), "open files that it may have: raise that limit (ulimit -n)"))
            fail_msg("limit %d: '%s'", limit, err_text());
        is_of_ring = strncmp(err_text(), "io_uring_setup: ", 16) == 0;
        assert_true(is_of_ring || strncmp(err_text(), "io: eventfd, timerfd", 20) == 0);
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
        cmocka_unit_test_setup_teardown(a_truncated_file_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(simulated_errors_are_typed, setup, teardown),
        cmocka_unit_test_setup_teardown(rare_errors_fail_only_their_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(destroyed_while_busy, setup, teardown),
        cmocka_unit_test_setup_teardown(destroyed_after_the_queue_broke, setup, teardown),
        cmocka_unit_test_setup_teardown(destroyed_after_the_ring_died, setup, teardown),
        cmocka_unit_test_setup_teardown(a_broken_queue_is_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals_of_io_uring_have_advice, setup, teardown),
        cmocka_unit_test_setup_teardown(descriptors_may_run_out, setup, teardown),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}
