/* The command line's parts: options, suggestions, exit statuses, durations. */
#include <errno.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "tests/unit.h"

struct values {
    bool fresh;
    const char *prompt;
    uint64_t tokens;
    double temperature;
    cli_texts set;
    const char *operand;
};

static struct values parsed;

static const cli_option options[] = {
    {"fresh", CLI_FLAG, NULL, "h", .target = &parsed.fresh},
    {"prompt", CLI_TEXT, "TEXT", "h", .target = &parsed.prompt},
    {"tokens", CLI_COUNT, "N", "h", .target = &parsed.tokens, .min = 1, .max = 100},
    {"temperature", CLI_REAL, "X", "h", .target = &parsed.temperature, .min = 0, .max = 10},
    {"set", CLI_TEXTS, "K=V", "h", .target = &parsed.set},
};

static const cli_command command = {.name = "train",
                                    .operand = "JOB",
                                    .operands_min = 1,
                                    .operands_max = 1,
                                    .summary = "trains",
                                    CLI_OPTIONS(options)};

/* Parses `line`, a NULL-ended list. */
static int parse(struct values *out, const char *const *line)
{
    cli_texts operands;
    parsed = (struct values){.tokens = 7};
    char *argv[32];
    int argc = 0;
    for (; line[argc]; argc++)
        argv[argc] = (char *)(uintptr_t)line[argc];
    int rc = cli_parse(&command, argc, argv, &operands);
    parsed.operand = operands.count > 0 ? operands.items[0] : NULL;
    *out = parsed;
    return rc;
}

#define PARSE(out, ...) parse(out, (const char *const[]){__VA_ARGS__, NULL})

static void options_are_read(void **state)
{
    struct values got;
    assert_int_equal(PARSE(&got, "job.json", "--fresh", "--set", "a.b=1", "--set=c=d e", "--tokens",
                           "100", "--temperature=0.5", "--prompt", "--set"),
                     0);
    assert_string_equal(got.operand, "job.json");
    assert_true(got.fresh);
    assert_int_equal(got.set.count, 2);
    assert_string_equal(got.set.items[0], "a.b=1");
    assert_string_equal(got.set.items[1], "c=d e");
    assert_int_equal(got.tokens, 100);
    assert_true(got.temperature == 0.5);
    assert_string_equal(got.prompt, "--set");

    assert_int_equal(PARSE(&got, "-"), 0); /* standard input is an operand */
    assert_string_equal(got.operand, "-");
    assert_int_equal(got.tokens, 7);
    assert_int_equal(PARSE(&got, "--", "--fresh"), 0);
    assert_string_equal(got.operand, "--fresh");
    assert_false(got.fresh);
}

static void wrong_lines_are_refused(void **state)
{
    struct values got;
    assert_error(PARSE(&got, "job", "--frehs"), ERR_USAGE, "\"--frehs\"; nearest is --fresh");
    assert_error(PARSE(&got, "job", "-fresh"), ERR_USAGE, "nearest is --fresh");
    assert_error(PARSE(&got, "job", "--zzzzzzzz"), ERR_USAGE, "sluice train --help");
    assert_int_equal(PARSE(&got, "job", "--a-name-that-is-longer-than-all-that-we-have-here=1"),
                     ERR_USAGE);
    assert_error(PARSE(&got, "--fresh"), ERR_USAGE, "JOB is missing");
    assert_error(PARSE(&got, "one", "two"), ERR_USAGE, "\"one\" and \"two\"");
    assert_error(PARSE(&got, "job", "--set"), ERR_USAGE, "--set needs a value");
    assert_int_equal(PARSE(&got, "job", "--fresh=yes"), ERR_USAGE);
    assert_int_equal(PARSE(&got, "job", "-"), ERR_USAGE);

    static const char *const numbers[] = {"0", "101", "1.5", "ten", "", "1e999", "nan", "5x"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_error(PARSE(&got, "job", "--tokens", numbers[i]), ERR_USAGE,
                     "whole number from 1 to 100");
    }
}

static void too_many_texts(void **state)
{
    static char set[] = "--set=a=1";
    char *argv[CLI_TEXTS_MAX + 2];
    cli_texts operands;
    parsed.set.count = 0;
    for (int i = 0; i < CLI_TEXTS_MAX + 1; i++)
        argv[i] = set;
    argv[CLI_TEXTS_MAX + 1] = NULL;
    assert_int_equal(cli_parse(&command, CLI_TEXTS_MAX + 1, argv, &operands), ERR_USAGE);
    assert_int_equal(parsed.set.count, CLI_TEXTS_MAX);
}

static void exit_statuses(void **state)
{
    assert_int_equal(cli_exit_code(0), 0);
    assert_int_equal(cli_exit_code(3), 0);
    assert_int_equal(cli_exit_code(ERR_USAGE), 2);
    assert_int_equal(cli_exit_code(ERR_CONFIG), 2);
    assert_int_equal(cli_exit_code(ERR_INPUT), 2);
    assert_int_equal(cli_exit_code(ERR_NO_FIT), 3);
    assert_int_equal(cli_exit_code(ERR_STOPPED), 75);
    static const int others[] = {ERR_POISONED, ERR_CORRUPT, ERR_BACKEND, ERR_INTERNAL,
                                 -ENOSPC,      -EIO,        -ENOMEM};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(cli_exit_code(others[i]), 1);
}

static void durations(void **state)
{
    char text[CLI_DURATION_BYTES];
    assert_string_equal(cli_duration(0, text), "0s");
    assert_string_equal(cli_duration(59.5, text), "1m 00s");
    assert_string_equal(cli_duration(200, text), "3m 20s");
    assert_string_equal(cli_duration(7500, text), "2h 05m");
    assert_string_equal(cli_duration(273600, text), "3d 04h");
    assert_string_equal(cli_duration(-1, text), "?");
    assert_string_equal(cli_duration(1e300, text), "?");
}

/* Reads what `child` prints to a terminal, or to a pipe. */
static void read_output(bool is_terminal, void (*child)(void), char text[128])
{
    int fds[2], fd = -1;
    assert_int_equal(pipe(fds), 0);
    fflush(stdout);
    pid_t pid = is_terminal ? forkpty(&fd, NULL, NULL, NULL) : fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!is_terminal)
            dup2(fds[1], STDOUT_FILENO);
        cli_terminal_begin();
        child();
        fflush(stdout);
        _exit(0);
    }
    close(fds[1]);
    size_t used = 0;
    ssize_t got;
    while ((got = read(is_terminal ? fd : fds[0], text + used, 127 - used)) > 0)
        used += (size_t)got;
    text[used] = '\0';
    close(fds[0]);
    if (is_terminal)
        close(fd);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void print_unsafe(void)
{
    printf("\x1b[2J\t\xc2");
    fflush(stdout); /* a character in two writes */
    printf("\x9b"
           "0m \xc3");
    fflush(stdout);
    printf("\xa9\n");
}

static void print_raw(void)
{
    cli_terminal_raw();
    printf("\x1b[2J");
}

static void print_control(void)
{
    printf("a\x1b");
    cli_terminal_control("\x1b[K");
}

/* The terminal ends a line by \r\n. */
static void terminal_gets_no_control_characters(void **state)
{
    char text[128];
    read_output(true, print_unsafe, text);
    assert_string_equal(text, "\\u001b[2J\t\\u009b0m \xc3\xa9\r\n");
    read_output(false, print_unsafe, text);
    assert_string_equal(text, "\x1b[2J\t\xc2\x9b"
                              "0m \xc3\xa9\n");
    read_output(true, print_raw, text);
    assert_string_equal(text, "\x1b[2J");
    read_output(true, print_control, text);
    assert_string_equal(text, "a\\u001b\x1b[K");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_read), cmocka_unit_test(wrong_lines_are_refused),
        cmocka_unit_test(too_many_texts),   cmocka_unit_test(exit_statuses),
        cmocka_unit_test(durations),        cmocka_unit_test(terminal_gets_no_control_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
