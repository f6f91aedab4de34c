/* Points at which tests make a process wait, fail or die: what the environment may say, and that
 * each action happens at its point and time and nowhere else. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "tests/unit.h"

static void init(const char *text)
{
    assert_int_equal(setenv("SLUICE_FAILPOINTS", text, 1), 0);
    if (failpoint_init() < 0)
        fail_msg("'%s': %s", text, err_text());
}

static int reset(void **state)
{
    failpoint_hook(NULL, NULL);
    unsetenv("SLUICE_FAILPOINTS");
    return failpoint_init();
}

static void nothing_is_asked_for(void **state)
{
    assert_ok(failpoint("commit.begin"));
    init("");
    assert_ok(failpoint("commit.begin"));
    init(";");
    assert_ok(failpoint("commit.begin"));
}

static void a_point_fails_at_its_time(void **state)
{
    init("manifest.written=fail:EIO@3;commit.synced=fail:ENOSPC");
    for (int i = 1; i <= 5; i++) {
        assert_int_equal(failpoint("manifest.written"), i == 3 ? -EIO : 0);
        if (i == 3 && (!strstr(err_text(), "manifest.written") || !strstr(err_text(), "3")))
            fail_msg("'%s'", err_text());
        assert_int_equal(failpoint("commit.synced"), i == 1 ? -ENOSPC : 0);
        assert_ok(failpoint("manifest.synced"));
    }
    init("manifest.written=fail:EROFS"); /* read anew: counted anew, and the rest is forgotten */
    assert_ok(failpoint("commit.synced"));
    assert_int_equal(failpoint("manifest.written"), -EROFS);
    static const struct {
        const char *text;
        int code;
    } errors[] = {{"slab.sync=fail:ENODEV", -ENODEV},
                  {"slab.sync=fail:EINTR@1;", -EINTR},
                  {"slab.sync=fail:ETIMEDOUT", -ETIMEDOUT}};
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        init(errors[i].text);
        assert_int_equal(failpoint("slab.sync"), errors[i].code);
        assert_ok(failpoint("slab.sync"));
    }
}

static void a_point_waits_each_time(void **state)
{
    init("keep.copied=sleep:15ms");
    uint64_t begin_ns = clock_ns();
    assert_ok(failpoint("keep.copied"));
    assert_ok(failpoint("keep.copied"));
    assert_true(clock_ns() - begin_ns >= 30 * 1000000); /* it may be longer, never shorter */
}

/* The signal that ended a child which met the point so often; 0: it lived. */
static int end_of_child(int meets)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int rc = 0;
        for (int i = 0; i < meets; i++)
            rc |= failpoint("commit.durable");
        _exit(rc != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void a_point_kills(void **state)
{
    init("commit.durable=kill@3");
    assert_int_equal(end_of_child(2), 0);
    assert_int_equal(end_of_child(3), SIGKILL);
    init("commit.durable=kill");
    assert_int_equal(end_of_child(1), SIGKILL);
}

static void what_cannot_be_read_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"commit.beginn=kill", "no point 'commit.beginn'; there are join.hub, slab.create"},
        {"commit.begin", "'commit.begin' is no <point>=<action>"},
        {"=kill", "no point ''"},
        {"commit.begin=", "the action '' of commit.begin"},
        {"commit.begin=die", "the action 'die'"},
        {"commit.begin=kill@0", "kill@0"},
        {"commit.begin=kill@", "kill@"},
        {"commit.begin=kill3", "kill3"},
        {"commit.begin=kill@2x", "kill@2x"},
        {"commit.begin=kill@99999999999999999999999", "kill@9999"},
        {"commit.begin=fail", "the action 'fail'"},
        {"commit.begin=fail:", "the action 'fail:'"},
        {"commit.begin=fail:EWRONG", "EWRONG"},
        {"commit.begin=fail:EI", "fail:EI'"},
        {"commit.begin=fail:ERR_USAGE", "ERR_USAGE"},
        {"commit.begin=fail:EIO@-1", "EIO@-1"},
        {"commit.begin=sleep:20", "sleep:20"},
        {"commit.begin=sleep:20s", "sleep:20s"},
        {"commit.begin=sleep:ms", "sleep:ms"},
        {"commit.begin=sleep:3600001ms", "3600001"},
        {"commit.begin=kill,sleep:1ms", "kill,sleep"},
        {"commit.begin=kill;commit.begin=sleep:1ms", "two actions"},
        {"commit.begin=kill; commit.synced=kill", "' commit.synced'"},
        {"commit.begin=sleep:"
         "00000000000000000000000000000000000000000000000000000000000000000001ms",
         "'commit.begin=sleep:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        init("commit.synced=fail:EIO");
        assert_int_equal(setenv("SLUICE_FAILPOINTS", bad[i].text, 1), 0);
        int rc = failpoint_init();
        if (rc != ERR_USAGE || !strstr(err_text(), bad[i].says) ||
            !strstr(err_text(), "SLUICE_FAILPOINTS"))
            fail_msg("'%s': %d, '%s'", bad[i].text, rc, err_text());
        assert_ok(failpoint("commit.begin")); /* nothing of it is in force */
        assert_ok(failpoint("commit.synced"));
    }
    /* The list is whole: its last name is in the text. */
    assert_int_equal(setenv("SLUICE_FAILPOINTS", "x=kill", 1), 0);
    assert_error(failpoint_init(), ERR_USAGE, "keep.copied");
}

struct seen {
    char names[256];
    const char *fails_at;
};

static int on_point(void *user, const char *name)
{
    struct seen *seen = user;
    strcat(strcat(seen->names, name), " ");
    return seen->fails_at && strcmp(name, seen->fails_at) == 0 ? err_set(-EDOM, "by the hook") : 0;
}

static void a_hook_sees_every_point(void **state)
{
    struct seen seen = {.fails_at = "commit.synced"};
    init("commit.synced=fail:EIO;manifest.begin=fail:EIO@2");
    failpoint_hook(on_point, &seen);
    assert_ok(failpoint("commit.begin"));
    assert_int_equal(failpoint("commit.synced"), -EDOM); /* before the action */
    assert_string_equal(err_text(), "by the hook");
    assert_ok(failpoint("manifest.begin"));
    assert_int_equal(failpoint("manifest.begin"), -EIO);
    assert_string_equal(seen.names, "commit.begin commit.synced manifest.begin manifest.begin ");
    failpoint_hook(NULL, NULL);
    assert_int_equal(failpoint("commit.synced"), -EIO); /* its first time was the hook's */
    assert_ok(failpoint("commit.begin"));
    assert_string_equal(seen.names, "commit.begin commit.synced manifest.begin manifest.begin ");
    /* A hook alone. */
    seen.names[0] = 0;
    assert_int_equal(unsetenv("SLUICE_FAILPOINTS"), 0);
    assert_ok(failpoint_init());
    failpoint_hook(on_point, &seen);
    assert_ok(failpoint("slab.create"));
    assert_string_equal(seen.names, "slab.create ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_is_asked_for, reset, reset),
        cmocka_unit_test_setup_teardown(a_point_fails_at_its_time, reset, reset),
        cmocka_unit_test_setup_teardown(a_point_waits_each_time, reset, reset),
        cmocka_unit_test_setup_teardown(a_point_kills, reset, reset),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_refused, reset, reset),
        cmocka_unit_test_setup_teardown(a_hook_sees_every_point, reset, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
