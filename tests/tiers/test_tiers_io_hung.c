/* A drive that never answers, as the pool's threads meet it: pread does not return. The queue ends
 * at its limit, io_destroy and io_create end too, and a thread that comes back long after touches
 * nothing that is gone (which the sanitizers see). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/tiers/tiers_helpers.h"
#include "tests/unit.h"

enum { BLOCK = 4096, STUCK_MS = 10, STOP_MS = 1000 }; /* a busy drive answers sooner */

static slab_drive drives[1];
static slab store;
static unsigned char *memory; /* [2 * BLOCK], of malloc, so that its use after the end is seen */

/* Stands in for the C library's, also in the code under test: calls that begin while `hangs` is set
 * do not return before it is cleared. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool hangs;
static int hung_count;

ssize_t pread(int fd, void *data, size_t size_bytes, off_t offset)
{
    pthread_mutex_lock(&mutex);
    bool was_hung = hangs;
    hung_count += was_hung;
    while (hangs)
        pthread_cond_wait(&changed, &mutex);
    hung_count -= was_hung;
    pthread_mutex_unlock(&mutex);
    if (was_hung) {
        errno = EIO;
        return -1;
    }
    return syscall(SYS_pread64, fd, data, size_bytes, offset);
}

ssize_t pread64(int fd, void *data, size_t size_bytes, off64_t offset)
{
    return pread(fd, data, size_bytes, offset);
}

static void set_hangs(bool value)
{
    pthread_mutex_lock(&mutex);
    hangs = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

static int threads_hung(void)
{
    pthread_mutex_lock(&mutex);
    int count = hung_count;
    pthread_mutex_unlock(&mutex);
    return count;
}

static void sleep_ms(int ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&time, NULL);
}

/* Lets the `count` threads left behind go, and sees them end. */
static void release_threads(int count)
{
    int before = helper_count_entries("/proc/self/task") - 2;
    set_hangs(false);
    helper_wait_for_threads(before - count);
}

static int setup(void **state)
{
    if (directory_make(state) != 0 || posix_memalign((void **)&memory, BLOCK, 2 * BLOCK) != 0)
        return -1;
    helper_drive(&drives[0], "x", 64 * MIB, 1);
    slab_config config = {
        .drives = drives, .drive_count = 1, .total_bytes = 4 * MIB, .stripe_bytes = MIB};
    return slab_open(&store, &config);
}

static int teardown(void **state)
{
    if (slab_remove(&store) < 0)
        return -1;
    return directory_remove(state);
}

static int create(io **out)
{
    io_config config = {.target = &store,
                        .backend = IO_POOL,
                        .pool_threads = 3,
                        .stuck_ns = STUCK_MS * 1000000u,
                        .stop_ns = STOP_MS * 1000000u};
    return io_create(&config, out);
}

/* Standard error is the file "log" between the two. */
static int log_fd, kept_fd;

static void log_begin(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/log", directory);
    log_fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    kept_fd = dup(STDERR_FILENO);
    assert_true(log_fd >= 0 && kept_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0);
}

static void log_end(const char *says, const char *says_too)
{
    static char text[4096];
    assert_true(dup2(kept_fd, STDERR_FILENO) >= 0);
    ssize_t got = (ssize_t)syscall(SYS_pread64, log_fd, text, sizeof text - 1, 0);
    assert_true(got >= 0);
    text[got] = 0;
    if (!strstr(text, says) || !strstr(text, says_too))
        fail_msg("the log says '%s'", text);
    close(kept_fd);
    close(log_fd);
}

static void threads_that_hang_are_left_behind(void **state)
{
    int fds = helper_count_fds();
    mem_stats before, after;
    mem_get_stats(&before);
    io *self;
    assert_ok(create(&self));
    io_request requests[2] = {
        {.direction = IO_READ, .data = memory, .size_bytes = BLOCK},
        {.direction = IO_READ, .offset = BLOCK, .data = memory + BLOCK, .size_bytes = BLOCK}};
    set_hangs(true);
    for (int i = 0; i < 2; i++)
        assert_int_equal(io_submit(self, &requests[i]), 0);
    int rc;
    io_request *done[2];
    while ((rc = io_poll(self, done, 2)) == 0) {
        helper_sleep(self);
    }
    assert_error(rc, -ETIMEDOUT, "the read of 4096 bytes at offset ");
    assert_int_equal(threads_hung(), 2);
    log_begin();
    io_destroy(self);
    log_end("2 of 3 threads do not come back", "");
    assert_int_equal(helper_count_fds(), fds);
    free(memory); /* pread would not write to it any more: it fails */
    release_threads(2);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes); /* the last of them cleaned up */
}

/* Threads that come back while io_destroy waits are ended as usual, and nothing is left. */
static void *release_soon(void *argument)
{
    (void)argument;
    sleep_ms(300);
    set_hangs(false);
    return NULL;
}

static void late_threads_are_joined(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    io *self;
    assert_ok(create(&self));
    set_hangs(true);
    assert_int_equal(io_transfer(self, IO_READ, 0, memory, BLOCK), -ETIMEDOUT);
    pthread_t helper;
    assert_int_equal(pthread_create(&helper, NULL, release_soon, NULL), 0);
    io_destroy(self);
    pthread_join(helper, NULL);
    assert_int_equal(threads_hung(), 0);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    free(memory);
}

/* A drive that hangs before the run began. */
static void the_first_read_may_hang(void **state)
{
    int fds = helper_count_fds();
    io *self;
    set_hangs(true);
    log_begin();
    int rc = create(&self);
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", err_text());
    log_end("1 of 3 threads do not come back", "does not answer: its first read waits for ");
    assert_int_equal(rc, -ETIMEDOUT);
    assert_null(self);
    if (!strstr(text, "the first read of ") || !strstr(text, store.files[0].path) ||
        !strstr(text, "debug.io.stop_seconds"))
        fail_msg("'%s'", text);
    assert_int_equal(helper_count_fds(), fds);
    release_threads(1);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_that_hang_are_left_behind, setup, teardown),
        cmocka_unit_test_setup_teardown(late_threads_are_joined, setup, teardown),
        cmocka_unit_test_setup_teardown(the_first_read_may_hang, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
