/* Arenas: exact size, alignment, refusal of what cannot be had, and what the kernel says of
 * memory. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "tests/unit.h"
#include "tiers/arena.h"

static arena_config config_of(uint64_t size_bytes)
{
    return (arena_config){.name = "host", .size_bytes = size_bytes, .touch_threads = 2};
}

static int is_mapped(const unsigned char *page)
{
    unsigned char state;
    return mincore((void *)(uintptr_t)page, 4096, &state) == 0;
}

static void exact_size_and_alignment(void **state)
{
    static const uint64_t sizes[] = {1,       4096,           4097,    2 * MIB - 4096,
                                     2 * MIB, 2 * MIB + 4096, 5 * MIB, 33 * MIB + 12288,
                                     64 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        arena_config config = config_of(sizes[i]);
        arena host;
        assert_int_equal(arena_init(&host, &config), 0);
        assert_int_equal(host.size_bytes, size_round_up(sizes[i], 4096));
        assert_int_equal((uintptr_t)host.base % (sizes[i] >= 2 * MIB ? 2 * MIB : 4096), 0);
        assert_string_equal(host.name, "host");
        assert_true(host.huge_bytes <= host.size_bytes);
        for (uint64_t at = 0; at < host.size_bytes; at += 4096)
            assert_true(host.base[at] == 0 && is_mapped(host.base + at));
        host.base[host.size_bytes - 1] = 1;
        unsigned char *base = host.base;
        arena_fini(&host);
        assert_null(host.base);
        assert_false(is_mapped(base));
    }
}

static void every_page_is_resident(void **state)
{
    arena_config config = config_of(48 * MIB);
    uint64_t before, after, peak, mapped;
    assert_int_equal(arena_process_memory(&before, NULL, NULL), 0);
    arena host;
    assert_int_equal(arena_init(&host, &config), 0);
    assert_int_equal(arena_process_memory(&after, &peak, &mapped), 0);
    assert_true(after >= before + 47 * MIB);
#ifndef __SANITIZE_THREAD__ /* whose shadow memory grows with ours */
    assert_true(after <= before + 52 * MIB);
#endif
    assert_true(peak >= after && mapped >= after);
    unsigned char resident[48 * MIB / 4096];
    assert_int_equal(mincore(host.base, host.size_bytes, resident), 0);
    for (size_t i = 0; i < sizeof resident; i++)
        assert_true(resident[i] & 1);
    arena_fini(&host);
    assert_int_equal(arena_process_memory(&after, NULL, NULL), 0);
#ifndef __SANITIZE_THREAD__
    assert_true(after < before + 8 * MIB);
#endif
}

/* The sum of the bytes at the beginning of each page, as a forked process reads it. */
static int sum_in_child(const arena *of)
{
    int status, sum = 0;
    pid_t child = fork();
    if (child == 0) {
        for (uint64_t at = 0; at < of->size_bytes; at += 4096)
            sum += of->base[at];
        _exit(sum);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void forks_read_zeros_until_they_get_a_copy(void **state)
{
    arena_config config = config_of(4 * MIB);
    arena host;
    assert_int_equal(arena_init(&host, &config), 0);
    for (int page = 0; page < 5; page++)
        host.base[page * 4096] = 1;
    assert_int_equal(sum_in_child(&host), 0);
    arena_copy_on_fork(&host);
    assert_int_equal(sum_in_child(&host), 5);
    arena_empty(&host, 4095, 3 * 4096 + 1); /* two whole pages */
    assert_int_equal(host.base[0] + host.base[3 * 4096] + host.base[4 * 4096], 3);
    assert_int_equal(host.base[4096] + host.base[2 * 4096], 0);
    assert_int_equal(sum_in_child(&host), 3);
    arena_empty(&host, 4096, 4096);
    arena_empty(&host, 0, host.size_bytes);
    assert_int_equal(host.base[0], 0);
    arena_fini(&host);
}

static void too_much_is_refused(void **state)
{
    uint64_t available;
    assert_int_equal(arena_available_memory(&available), 0);
    assert_true(available > 64 * MIB && available < (uint64_t)1 << 50);
    arena host;
    arena_config config = config_of(available + available / 2);
    assert_int_equal(arena_init(&host, &config), -ENOMEM);
    assert_null(host.base);
    assert_non_null(strstr(err_text(), "host arena needs"));
    assert_non_null(strstr(err_text(), "available"));
    config.size_bytes = UINT64_MAX;
    assert_true(arena_init(&host, &config) < 0);
    config.size_bytes = UINT64_MAX / 2;
    assert_int_equal(arena_init(&host, &config), -ENOMEM);
    config.size_bytes = 0;
    assert_int_equal(arena_init(&host, &config), -EINVAL);
    arena_fini(&host); /* harmless for an arena that was never made */
}

static void two_arenas_are_counted_apart(void **state)
{
    arena_config config = config_of(8 * MIB);
    arena first, second;
    assert_int_equal(arena_init(&first, &config), 0);
    config.name = "device";
    assert_int_equal(arena_init(&second, &config), 0);
    assert_true(first.huge_bytes <= 8 * MIB && second.huge_bytes <= 8 * MIB);
    memset(first.base, 1, first.size_bytes);
    for (uint64_t at = 0; at < second.size_bytes; at++)
        assert_int_equal(second.base[at], 0);
    arena_fini(&first);
    arena_fini(&second);
}

static void process_memory_allocates_nothing(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    uint64_t resident, peak, mapped;
    for (int i = 0; i < 10; i++)
        assert_int_equal(arena_process_memory(&resident, &peak, &mapped), 0);
    assert_int_equal(arena_process_memory(NULL, NULL, NULL), 0);
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_size_and_alignment),
        cmocka_unit_test(every_page_is_resident),
        cmocka_unit_test(forks_read_zeros_until_they_get_a_copy),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(two_arenas_are_counted_apart),
        cmocka_unit_test(process_memory_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
