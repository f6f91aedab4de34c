/* The GPU as a tier (tiers/device.h): what it says of itself, memory and its refusals, pinned
 * memory, copies, and the order that streams and events keep; what the lanes rely on is shown here
 * on its own. Runs on the simulated GPU and on a real one. */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "tests/unit.h"
#include "tiers/device.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
static const bool is_simulated = true;
#else
static const bool is_simulated = false;
#endif

enum { ALIGNMENT = 2 << 20 };

static device *open_gpu(void)
{
    device *gpu;
    assert_ok(device_open(0, &gpu));
    return gpu;
}

static device_stream *make_stream(device *gpu)
{
    device_stream *stream;
    assert_ok(device_stream_create(gpu, false, &stream));
    return stream;
}

static device_event *make_event(device *gpu, bool is_timed)
{
    device_event *event;
    assert_ok(device_event_create(gpu, is_timed, &event));
    return event;
}

/* Pages of the host, pinned. */
static unsigned char *make_pinned(device *gpu, size_t size_bytes)
{
    void *memory =
        mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_ok(device_pin(gpu, memory, size_bytes));
    return memory;
}

static void drop_pinned(device *gpu, unsigned char *memory, size_t size_bytes)
{
    assert_ok(device_unpin(gpu, memory));
    munmap(memory, size_bytes);
}

static void random_bytes(unsigned char *target, size_t size_bytes, uint64_t seed)
{
    for (size_t i = 0; i < size_bytes; i++)
        target[i] = (unsigned char)rng_u64(seed, 1, i);
}

/* --- what it is ------------------------------------------------------------------------------- */

static void it_says_what_it_is(void **state)
{
    char text[DEVICE_TEXT_BYTES];
    uint32_t count = device_count(text);
    assert_true(count > 0);
    assert_string_equal(text, "");
    device *gpu = open_gpu();
    const device_info *info = device_get_info(gpu);
    printf("%s at %s: sm_%d%d, %u multiprocessors, %llu bytes, %.0f GB/s, driver %d, runtime %d\n",
           info->name, info->pci_bus_id, info->compute_major, info->compute_minor, info->sm_count,
           (unsigned long long)info->total_bytes, info->memory_bytes_per_second / 1e9,
           info->driver_version, info->runtime_version);
    assert_int_equal(info->device_idx, 0);
    assert_true(strlen(info->name) > 0);
    unsigned domain, bus, slot, function;
    assert_int_equal(sscanf(info->pci_bus_id, "%4x:%2x:%2x.%1x", &domain, &bus, &slot, &function),
                     4);
    for (const char *at = info->pci_bus_id; *at; at++)
        assert_false(isupper((unsigned char)*at));
    assert_true(info->compute_major >= 8 && info->compute_minor >= 0);
    assert_true(info->sm_count > 0 && info->total_bytes > 0);
    assert_true(info->memory_bytes_per_second >= 0.0);
    assert_true(info->driver_version >= 12000 && info->runtime_version >= 12000);
    device_close(gpu);
    device_close(NULL);
    assert_non_null(getenv("CUDA_DEVICE_MAX_CONNECTIONS"));

    assert_int_equal(device_open(count, &gpu), -EINVAL);
    assert_null(gpu);
    assert_non_null(strstr(err_text(), "there is no GPU"));
}

/* --- memory ----------------------------------------------------------------------------------- */

static void memory_is_reserved_once(void **state)
{
    static const uint64_t sizes[] = {1, 4096, 3 * MIB + 1, 33 * MIB};
    device *gpu = open_gpu();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *base, *other;
        uint64_t before, after, last;
        assert_ok(device_free_bytes(gpu, &before));
        assert_ok(device_reserve(gpu, sizes[i], &base));
        assert_non_null(base);
        assert_int_equal((uintptr_t)base % ALIGNMENT, 0);
        assert_ok(device_free_bytes(gpu, &after));
        if (is_simulated) { /* on a real one other processes may have their say */
            assert_true(before - after >= sizes[i]);
            assert_true(before - after < sizes[i] + 2 * ALIGNMENT);
        }
        device_stream *stream = make_stream(gpu); /* all of it may be written */
        assert_ok(device_fill(gpu, stream, base, 0xa5, sizes[i]));
        unsigned char end = 0;
        assert_ok(device_copy(gpu, stream, &end, base + sizes[i] - 1, 1, DEVICE_TO_HOST));
        assert_ok(device_synchronize(gpu, stream));
        assert_int_equal(end, 0xa5);
        assert_int_equal(device_reserve(gpu, 1, &other), -EINVAL);
        assert_null(other);
        assert_non_null(strstr(err_text(), "reserved already"));
        assert_ok(device_release(gpu));
        assert_ok(device_release(gpu)); /* nothing to release */
        assert_ok(device_free_bytes(gpu, &last));
        if (is_simulated)
            assert_int_equal(last, before);
    }
    unsigned char *none;
    assert_int_equal(device_reserve(gpu, 0, &none), -EINVAL);
    device_close(gpu);
}

static void a_budget_too_large_is_refused_with_numbers(void **state)
{
    device *gpu = open_gpu();
    uint64_t asked = 2 * device_get_info(gpu)->total_bytes, free_bytes;
    unsigned char *base;
    char asked_text[32], free_text[32];
    assert_int_equal(device_reserve(gpu, asked, &base), ERR_NO_FIT);
    assert_null(base);
    assert_ok(device_free_bytes(gpu, &free_bytes));
    snprintf(asked_text, sizeof asked_text, "(%llu bytes)", (unsigned long long)asked);
    snprintf(free_text, sizeof free_text, "(%llu bytes) are free", (unsigned long long)free_bytes);
    if (!strstr(err_text(), asked_text) || !strstr(err_text(), "tiers.device.budget") ||
        (is_simulated && !strstr(err_text(), free_text)))
        fail_msg("\"%s\" lacks the numbers", err_text());
    /* The refusal leaves no pending error and allocates nothing. */
    assert_ok(device_reserve(gpu, 4 * MIB, &base));
    device_close(gpu);
}

static void pinned_memory(void **state)
{
    enum { SIZE = 64 * 4096 };
    device *gpu = open_gpu();
    unsigned char *memory = make_pinned(gpu, SIZE), *second = make_pinned(gpu, 4096);
    assert_int_equal(device_pin(gpu, memory + 1, 4096), -EINVAL);
    assert_int_equal(device_pin(gpu, memory, 0), -EINVAL);
    assert_int_equal(device_pin(gpu, NULL, 4096), -EINVAL);
    assert_error(device_pin(gpu, memory, SIZE), ERR_BACKEND, "CUDA says");
    drop_pinned(gpu, memory, SIZE);
    assert_int_equal(device_unpin(gpu, memory), -EINVAL);
    memory = make_pinned(gpu, SIZE); /* may be pinned again */
    drop_pinned(gpu, memory, SIZE);

    void *small;
    assert_ok(device_alloc_pinned(gpu, 4097, &small));
    for (size_t i = 0; i < 4097; i++)
        assert_int_equal(((unsigned char *)small)[i], 0);
    device_stream *stream = make_stream(gpu);
    assert_ok(device_fill(gpu, stream, small, 7, 4097)); /* the GPU may write there */
    assert_ok(device_synchronize(gpu, stream));
    assert_int_equal(((unsigned char *)small)[4096], 7);
    device_close(gpu); /* frees `small`, unpins `second` */
    munmap(second, 4096);
}

/* Memory is registered in pieces that end where addresses are multiples of 64 GiB; a copy over such
 * an end takes two of CUDA's. */
static void memory_is_pinned_in_pieces(void **state)
{
    enum { SIZE = 32 * 4096, BEFORE = 3 * 4096 };
    uint64_t piece = (uint64_t)64 << 30, room = piece + 2 * SIZE;
    unsigned char *space =
        mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        skip(); /* a limit on address space */
    uint64_t to_end = size_round_up((uintptr_t)space + BEFORE, piece) - (uintptr_t)space;
    unsigned char *memory = space + to_end - BEFORE;
    assert_int_equal(mprotect(memory, SIZE, PROT_READ | PROT_WRITE), 0);
    device *gpu = open_gpu(), *other = open_gpu();
    device_stream *stream = make_stream(other);
    unsigned char *base;
    assert_ok(device_reserve(other, SIZE, &base));
    /* The second piece is taken: the first is given back. */
    assert_ok(device_pin(gpu, memory + BEFORE, 4096));
    assert_int_equal(device_pin(gpu, memory, SIZE), ERR_BACKEND);
    assert_ok(device_unpin(gpu, memory + BEFORE));
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_counters before, after;
    simulated_gpu_get_counters(&before);
#endif
    assert_ok(device_pin(gpu, memory, SIZE));
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_get_counters(&after);
    assert_int_equal(after.allocations - before.allocations, 2);
#endif
    /* Another device of the process knows nothing of the pieces, and copies all the same. */
    random_bytes(memory, SIZE / 2, 9);
    uint64_t at = 5, size_bytes = SIZE / 2 - at;
    unsigned char *half = memory + SIZE / 2;
    assert_ok(device_copy(other, stream, base, memory + at, size_bytes, DEVICE_FROM_HOST));
    assert_ok(device_copy(other, stream, half, base, size_bytes, DEVICE_TO_HOST));
    assert_ok(device_synchronize(other, stream));
    assert_memory_equal(half, memory + at, size_bytes);
    memset(memory, 0, SIZE / 2);
    assert_ok(device_copy(other, stream, memory + at, base, size_bytes, DEVICE_TO_HOST));
    assert_ok(device_synchronize(other, stream));
    assert_memory_equal(half, memory + at, size_bytes);
    assert_int_equal(memory[at - 1], 0);
    assert_ok(device_unpin(gpu, memory));
    assert_ok(device_pin(gpu, memory, SIZE)); /* every piece was released */
    device_close(other);
    device_close(gpu);
    munmap(space, room);
}

/* --- copies and order ------------------------------------------------------------------------- */

static void copies_and_fills(void **state)
{
    size_t size_bytes = is_simulated ? 3 * MIB + 5 : 300 * MIB + 5;
    size_t pages = size_round_up(size_bytes, 4096);
    device *gpu = open_gpu();
    device_stream *stream = make_stream(gpu);
    unsigned char *base;
    assert_ok(device_reserve(gpu, 2 * pages, &base));
    unsigned char *source = make_pinned(gpu, pages), *target = make_pinned(gpu, pages);
    random_bytes(source, size_bytes < MIB ? size_bytes : MIB, 5);
    for (size_t i = MIB; i < size_bytes; i += MIB)
        memcpy(source + i, source, size_min(MIB, size_bytes - i));
    memset(target, 1, pages);
    assert_ok(device_copy(gpu, stream, base, source, size_bytes, DEVICE_FROM_HOST));
    assert_ok(device_copy(gpu, stream, base + pages, base, size_bytes, DEVICE_WITHIN));
    assert_ok(device_fill(gpu, stream, base, 0x3c, 100));
    assert_ok(device_copy(gpu, stream, target, base + pages, size_bytes, DEVICE_TO_HOST));
    assert_ok(device_synchronize(gpu, stream));
    assert_memory_equal(target, source, size_bytes);
    assert_int_equal(target[size_bytes], 1);
    assert_ok(device_copy(gpu, stream, target, base, 101, DEVICE_TO_HOST));
    assert_ok(device_synchronize(gpu, NULL));
    for (int i = 0; i < 100; i++)
        assert_int_equal(target[i], 0x3c);
    assert_int_equal(target[100], source[100]);
    /* Three rows of 24 bytes, 1000 bytes apart in the copy of `source`, and no byte after them. */
    assert_ok(device_fill(gpu, stream, base, 0x3c, 100));
    assert_ok(device_gather_rows(gpu, stream, base, base + pages + 8, 1000, 24, 3));
    assert_ok(device_copy(gpu, stream, target, base, 100, DEVICE_TO_HOST));
    assert_ok(device_synchronize(gpu, stream));
    for (size_t row = 0; row < 3; row++)
        assert_memory_equal(target + row * 24, source + 8 + row * 1000, 24);
    assert_int_equal(target[72], 0x3c);
    drop_pinned(gpu, source, pages);
    drop_pinned(gpu, target, pages);
    device_close(gpu);
}

/* Moves a block through `hops` places on alternating streams, each hop ordered after the one before
 * by an event if `ordered`; returns whether the block came through. */
static bool passes_on(device *gpu, device_stream *streams[2], device_event *event,
                      unsigned char *base, unsigned char *host, bool ordered)
{
    enum { HOPS = 12, BLOCK = 8192 };
    random_bytes(host, BLOCK, 77);
    memset(host + BLOCK, 0, BLOCK);
    assert_ok(device_fill(gpu, streams[0], base, 0, (HOPS + 1) * BLOCK));
    assert_ok(device_copy(gpu, streams[0], base, host, BLOCK, DEVICE_FROM_HOST));
    for (int hop = 0; hop < HOPS; hop++) {
        device_stream *from = streams[hop % 2], *to = streams[(hop + 1) % 2];
        if (ordered) {
            assert_ok(device_record(gpu, event, from));
            assert_ok(device_wait(gpu, to, event));
        }
        assert_ok(device_copy(gpu, to, base + (hop + 1) * BLOCK, base + hop * BLOCK, BLOCK,
                              DEVICE_WITHIN));
    }
    assert_ok(device_synchronize(gpu, NULL));
    assert_ok(
        device_copy(gpu, streams[0], host + BLOCK, base + HOPS * BLOCK, BLOCK, DEVICE_TO_HOST));
    assert_ok(device_synchronize(gpu, streams[0]));
    return memcmp(host, host + BLOCK, BLOCK) == 0;
}

/* One event serves all hops: a wait is for the record that stood when it was enqueued. */
static void events_order_streams(void **state)
{
    device *gpu = open_gpu();
    device_stream *streams[2] = {make_stream(gpu), make_stream(gpu)};
    device_event *event = make_event(gpu, false);
    unsigned char *base, *host = make_pinned(gpu, 16384);
    assert_ok(device_reserve(gpu, MIB, &base));
    bool always = true;
    for (int i = 0; i < 20; i++) {
        assert_true(passes_on(gpu, streams, event, base, host, true));
        always = passes_on(gpu, streams, event, base, host, false) && always;
    }
    if (is_simulated) /* whose delays show what a missing wait does */
        assert_false(always);
    drop_pinned(gpu, host, 16384);
    device_close(gpu);
}

static void hold(void *user)
{
    atomic_bool *is_released = user;
    while (!atomic_load(is_released))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void a_wait_is_for_the_record_of_its_time(void **state)
{
    device *gpu = open_gpu();
    device_stream *first = make_stream(gpu), *second = make_stream(gpu);
    device_event *event = make_event(gpu, true), *never = make_event(gpu, false);
    atomic_bool is_released = false;
    assert_int_equal(device_event_done(gpu, never), 1);
    assert_ok(device_wait(gpu, second, never)); /* for nothing */
    assert_ok(device_record(gpu, event, first));
    assert_ok(device_wait(gpu, second, event));
    assert_ok(device_call(gpu, first, hold, &is_released));
    assert_ok(device_record(gpu, event, first));
    /* `second` waits for the first record alone: the other one cannot come before the release. */
    assert_ok(device_synchronize(gpu, second));
    assert_int_equal(device_event_done(gpu, event), 0);
    atomic_store(&is_released, true);
    assert_ok(device_synchronize(gpu, first));
    assert_int_equal(device_event_done(gpu, event), 1);
    device_close(gpu);
}

static void times_have_a_sign(void **state)
{
    device *gpu = open_gpu();
    device_stream *streams[2] = {make_stream(gpu), make_stream(gpu)};
    device_event *early = make_event(gpu, true), *late = make_event(gpu, true);
    unsigned char *base;
    int64_t forward, backward, none;
    assert_ok(device_reserve(gpu, 32 * MIB, &base));
    assert_ok(device_record(gpu, early, streams[0]));
    assert_ok(device_fill(gpu, streams[0], base, 1, 32 * MIB));
    assert_ok(device_synchronize(gpu, streams[0]));
    assert_ok(device_record(gpu, late, streams[1]));
    assert_ok(device_synchronize(gpu, streams[1]));
    assert_ok(device_elapsed_ns(gpu, early, late, &forward));
    assert_ok(device_elapsed_ns(gpu, late, early, &backward));
    assert_ok(device_elapsed_ns(gpu, late, late, &none));
    assert_true(forward > 0);
    assert_true(llabs(backward + forward) <= 1000); /* floats of milliseconds */
    assert_int_equal(none, 0);
    device_event *untimed = make_event(gpu, false);
    assert_ok(device_record(gpu, untimed, streams[0]));
    assert_ok(device_synchronize(gpu, NULL));
    assert_int_equal(device_elapsed_ns(gpu, early, untimed, &none), ERR_BACKEND);
    /* That was the caller's error, and is over. */
    assert_int_equal(device_event_done(gpu, late), 1);
    assert_ok(device_synchronize(gpu, NULL));
    device_close(gpu);
}

struct call_log {
    const unsigned char *memory; /* pinned: what the stream wrote before the call */
    unsigned char seen[16];
    int count;
};

static void note_byte(void *user)
{
    struct call_log *log = user;
    log->seen[log->count++] = *log->memory;
}

/* Work of another thread on its own stream. The thread keeps a result code and asserts nothing,
 * since cmocka works in the test's thread alone. */
struct errand {
    device *gpu;
    device_stream *stream;
    device_event *event;
    unsigned char *base, *host; /* of ERRAND_BYTES, and twice that */
    int rc;
};

enum { ERRAND_BYTES = 4096 };

static void *run_errand(void *user)
{
    struct errand *self = user;
    self->rc = device_attach(self->gpu);
    if (self->rc == 0)
        self->rc = device_copy(self->gpu, self->stream, self->base, self->host, ERRAND_BYTES,
                               DEVICE_FROM_HOST);
    if (self->rc == 0)
        self->rc = device_fill(self->gpu, self->stream, self->base, 7, ERRAND_BYTES / 2);
    if (self->rc == 0)
        self->rc = device_copy(self->gpu, self->stream, self->host + ERRAND_BYTES, self->base,
                               ERRAND_BYTES, DEVICE_TO_HOST);
    if (self->rc == 0)
        self->rc = device_record(self->gpu, self->event, self->stream);
    if (self->rc == 0)
        self->rc = device_synchronize(self->gpu, self->stream);
    if (self->rc == 0)
        self->rc = device_event_done(self->gpu, self->event);
    return NULL;
}

static void another_thread_copies(void **state)
{
    device *gpu = open_gpu();
    struct errand errand = {
        .gpu = gpu, .stream = make_stream(gpu), .event = make_event(gpu, false)};
    assert_ok(device_reserve(gpu, ERRAND_BYTES, &errand.base));
    errand.host = make_pinned(gpu, 2 * ERRAND_BYTES);
    memset(errand.host, 3, ERRAND_BYTES);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_errand, &errand), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(errand.rc, 1);
    for (int i = 0; i < ERRAND_BYTES; i++)
        assert_int_equal(errand.host[ERRAND_BYTES + i], i < ERRAND_BYTES / 2 ? 7 : 3);
    device_close(gpu);
    munmap(errand.host, 2 * ERRAND_BYTES);
}

static void functions_run_in_their_turn(void **state)
{
    device *gpu = open_gpu();
    device_stream *stream = make_stream(gpu);
    void *memory;
    assert_ok(device_alloc_pinned(gpu, 64, &memory));
    struct call_log log = {.memory = memory};
    for (int i = 0; i < 16; i++) {
        assert_ok(device_fill(gpu, stream, memory, (uint8_t)(i + 1), 64));
        assert_ok(device_call(gpu, stream, note_byte, &log));
    }
    assert_ok(device_synchronize(gpu, stream));
    assert_int_equal(log.count, 16);
    for (int i = 0; i < 16; i++)
        assert_int_equal(log.seen[i], i + 1);
    device_close(gpu);
}

static void close_gives_everything_back(void **state)
{
    mem_stats before, after;
    uint64_t free_before, free_after;
    unsigned char *base;
    void *small,
        *pages = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mem_get_stats(&before);
    device *gpu = open_gpu();
    assert_ok(device_free_bytes(gpu, &free_before));
    assert_ok(device_reserve(gpu, 8 * MIB, &base));
    assert_ok(device_pin(gpu, pages, 65536));
    assert_ok(device_alloc_pinned(gpu, 4096, &small));
    for (int i = 0; i < 40; i++) {
        device_event *event = make_event(gpu, i % 2);
        device_stream *stream = make_stream(gpu);
        assert_ok(device_fill(gpu, stream, base, 1, 4096)); /* close waits */
        assert_ok(device_record(gpu, event, stream));
    }
    device_close(gpu);
    mem_get_stats(&after);
    assert_int_equal(after.live_bytes, before.live_bytes);
    gpu = open_gpu();
    assert_ok(device_free_bytes(gpu, &free_after));
    if (is_simulated)
        assert_int_equal(free_after, free_before);
    assert_ok(device_pin(gpu, pages, 65536)); /* was unpinned */
    device_close(gpu);
    munmap(pages, 65536);
}

/* --- what only the simulated GPU can do ------------------------------------------------------- */

#ifdef SLUICE_SIMULATED_GPU
static void without_a_gpu_there_is_a_sentence(void **state)
{
    char text[DEVICE_TEXT_BYTES];
    device *gpu;
    simulated_gpu_set_absent(1);
    uint32_t count = device_count(text);
    int rc = device_open(0, &gpu);
    simulated_gpu_set_absent(0);
    assert_int_equal(count, 0);
    printf("absent: \"%s\"; open: \"%s\"\n", text, err_text());
    assert_true(strncmp(text, "no ", 3) == 0);
    assert_int_equal(rc, -EINVAL);
    assert_null(gpu);
    assert_non_null(strstr(err_text(), text));
    assert_true(device_count(text) > 0);
}

static void set_flag(void *user)
{
    atomic_store((atomic_bool *)user, true);
}

static void a_failed_gpu_fails_every_call(void **state)
{
    device *gpu = open_gpu();
    device_stream *stream = make_stream(gpu);
    device_event *event = make_event(gpu, true);
    atomic_bool was_called = false;
    unsigned char *base;
    assert_ok(device_reserve(gpu, MIB, &base));
    simulated_gpu_inject_fault(SIMULATED_FAULT_ANY, 1);
    assert_ok(device_fill(gpu, stream, base, 1, 4096));
    assert_ok(device_fill(gpu, stream, base, 2, 4096)); /* fails as it runs */
    int rc = device_record(gpu, event, stream);
    if (rc == 0)
        rc = device_call(gpu, stream, set_flag, &was_called);
    assert_true(rc == 0 || rc == ERR_BACKEND); /* later calls may know already */
    assert_error(device_synchronize(gpu, stream), ERR_BACKEND, "cudaErrorIllegalAddress");
    assert_int_equal(device_event_done(gpu, event), ERR_BACKEND);
    assert_int_equal(device_fill(gpu, stream, base, 1, 4096), ERR_BACKEND);
    assert_int_equal(device_synchronize(gpu, NULL), ERR_BACKEND);
    assert_int_equal(device_release(gpu), ERR_BACKEND);
    assert_false(atomic_load(&was_called));
    device_close(gpu); /* does not hang */
    simulated_gpu_clear_fault();
    gpu = open_gpu();
    device_close(gpu);
}
#endif

int main(void)
{
    char text[DEVICE_TEXT_BYTES];
    if (device_count(text) == 0) {
        printf("skipped: %s\n", text);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_says_what_it_is),
        cmocka_unit_test(memory_is_reserved_once),
        cmocka_unit_test(a_budget_too_large_is_refused_with_numbers),
        cmocka_unit_test(pinned_memory),
        cmocka_unit_test(memory_is_pinned_in_pieces),
        cmocka_unit_test(copies_and_fills),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(a_wait_is_for_the_record_of_its_time),
        cmocka_unit_test(times_have_a_sign),
        cmocka_unit_test(another_thread_copies),
        cmocka_unit_test(functions_run_in_their_turn),
        cmocka_unit_test(close_gives_everything_back),
#ifdef SLUICE_SIMULATED_GPU
        cmocka_unit_test(without_a_gpu_there_is_a_sentence),
        cmocka_unit_test(a_failed_gpu_fails_every_call),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
