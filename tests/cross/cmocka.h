/* The part of cmocka that the tests of Adam use, for cross compilers, for which no cmocka is
 * installed (tests/checks/neon_adam.sh). The first failure ends the program with status 1. One
 * thread. */
#ifndef SLUICE_TESTS_CROSS_CMOCKA_H
#define SLUICE_TESTS_CROSS_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};

#define cmocka_unit_test(function)                                                                 \
    {                                                                                              \
#function, function                                                                        \
    }

#define fail_msg(...)                                                                              \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n");                                                                     \
        exit(1);                                                                                   \
    } while (0)

#define assert_true(condition)                                                                     \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("not true: %s", #condition);                                                  \
    } while (0)

#define assert_false(condition)      assert_true(!(condition))
#define assert_non_null(pointer)     assert_true((pointer) != NULL)
#define assert_null(pointer)         assert_true((pointer) == NULL)
#define assert_int_equal(a, b)       assert_true((long long)(a) == (long long)(b))
#define assert_string_equal(a, b)    assert_true(strcmp((a), (b)) == 0)
#define assert_memory_equal(a, b, n) assert_true(memcmp((a), (b), (n)) == 0)

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    cross_run((tests), sizeof(tests) / sizeof(tests)[0])

static inline int cross_run(const struct CMUnitTest *tests, size_t count)
{
    void *state = NULL;
    for (size_t i = 0; i < count; i++) {
        printf("%s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
    }
    printf("%zu tests passed\n", count);
    return 0;
}

#endif
