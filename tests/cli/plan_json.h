/* Runs `sluice plan --json` in a test and reads figures of what it prints. */
#ifndef SLUICE_TESTS_CLI_PLAN_JSON_H
#define SLUICE_TESTS_CLI_PLAN_JSON_H

#include <jansson.h>
#include <sys/wait.h>

#include "tests/unit.h"

enum { PLAN_COMMAND_BYTES = 4096 };

/* Plans with these arguments, asserts the exit status, and returns the JSON, which the caller
 * owns. */
__attribute__((format(printf, 2, 3))) static inline json_t *plan_json(int expected,
                                                                      const char *format, ...)
{
    char command[PLAN_COMMAND_BYTES];
    int used = snprintf(command, sizeof command, "%s plan --json ", SLUICE_PROGRAM);
    va_list args;
    va_start(args, format);
    used += vsnprintf(command + used, sizeof command - (size_t)used, format, args);
    va_end(args);
    assert_true((size_t)used < sizeof command);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    json_error_t error;
    json_t *found = json_loadf(pipe, JSON_REJECT_DUPLICATES, &error);
    int status = pclose(pipe);
    if (!found)
        fail_msg("%s: line %d: %s", command, error.line, error.text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), expected);
    return found;
}

static inline json_t *member(const json_t *object, const char *key)
{
    json_t *found = json_object_get(object, key);
    if (!found)
        fail_msg("no member \"%s\"", key);
    return found;
}

static inline double number(const json_t *object, const char *key)
{
    json_t *found = member(object, key);
    if (!json_is_number(found))
        fail_msg("\"%s\" is no number", key);
    return json_number_value(found);
}

#endif
