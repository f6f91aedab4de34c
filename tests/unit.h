/* Every test in C includes this file. It includes cmocka, the headers that cmocka wants before it
 * and those that nearly every test uses, and adds two checks of a call, whose messages have the
 * error's text, how often and from which seed tests draw, and JSON in single quotes. */
#ifndef SLUICE_TESTS_UNIT_H
#define SLUICE_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

/* The call gives 0. */
#define assert_ok(call)                                                                            \
    do {                                                                                           \
        int unit_rc = (call);                                                                      \
        if (unit_rc != 0)                                                                          \
            fail_msg("%s: %s: %s", #call, err_name(unit_rc), err_text());                          \
    } while (0)

/* The call gives `code`, and the error's text has the words. */
#define assert_error(call, code, words)                                                            \
    do {                                                                                           \
        int unit_rc = (call);                                                                      \
        if (unit_rc != (code) || !strstr(err_text(), words))                                       \
            fail_msg("%s: %s: %s, which is not %s with \"%s\"", #call, err_name(unit_rc),          \
                     err_text(), err_name(code), words);                                           \
    } while (0)

/* How often a test draws: `few` times, or `many` times with SLUICE_TEST_MANY in the environment, as
 * the lines slow.many.NAME have it. */
static inline int unit_draws(int few, int many)
{
    return getenv("SLUICE_TEST_MANY") ? many : few;
}

/* The number in SLUICE_TEST_SEED, or else `usual`; printed. */
static inline uint64_t unit_seed(uint64_t usual)
{
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : usual;
    printf("seed %llu (SLUICE_TEST_SEED)\n", (unsigned long long)seed);
    return seed;
}

/* JSON in tests is written with ' for ", so that C needs no backslashes. This replaces them; a text
 * with a " in it is returned unchanged. The result is valid until the third call after this one. */
static inline const char *quoted(const char *text)
{
    static char rooms[3][8192];
    static unsigned calls;
    if (!text || strchr(text, '"'))
        return text;
    char *room = rooms[calls++ % 3];
    assert_true(strlen(text) < sizeof rooms[0]);
    strcpy(room, text);
    for (char *at = strchr(room, '\''); at; at = strchr(at, '\''))
        *at = '"';
    return room;
}

#endif
