/* Restarting the program keeps its allowed cores, even if OpenMP, by the user's settings, has bound
 * the first thread to one of them before main began. The program runs itself as a child with each
 * environment. */
#include "base/thread.h"
#include "cli/cli.h"
#include "tests/unit.h"

static const char *self_path;

/* Runs the child, which prints its allowed cores and the spin count that it runs with. */
static void child_says(const char *environment, char *answer, size_t answer_bytes)
{
    char command[4608];
    snprintf(command, sizeof command,
             "unset OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY OMP_WAIT_POLICY GOMP_SPINCOUNT "
             "KMP_BLOCKTIME SLUICE_RESTARTED; %s '%s' child",
             environment, self_path);
    FILE *child = popen(command, "r");
    assert_non_null(child);
    answer[0] = 0;
    assert_non_null(fgets(answer, (int)answer_bytes, child));
    assert_int_equal(pclose(child), 0);
    printf("  %-60s %s", environment, answer);
}

static void cores_stay(void **state)
{
    core_set allowed, one = {0};
    char cores[CORE_SET_TEXT_BYTES], first[CORE_SET_TEXT_BYTES], environment[512], answer[256];
    char expected[256];
    assert_ok(thread_allowed_cores(&allowed));
    core_set_format(&allowed, cores);
    core_set_add(&one, core_set_next(&allowed, 0));
    core_set_format(&one, first);
    static const char *const settings[] = {"", "OMP_PROC_BIND=true", "OMP_PROC_BIND=close",
                                           "OMP_PLACES=cores", "OMP_PROC_BIND=false"};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        child_says(settings[i], answer, sizeof answer);
        snprintf(expected, sizeof expected, "cores %s spin 3000\n", cores);
        assert_string_equal(answer, expected);
        snprintf(environment, sizeof environment, "%s taskset -c %s", settings[i], first);
        child_says(environment, answer, sizeof answer);
        snprintf(expected, sizeof expected, "cores %s spin 3000\n", first);
        assert_string_equal(answer, expected);
        snprintf(environment, sizeof environment, "OMP_WAIT_POLICY=passive %s", settings[i]);
        child_says(environment, answer, sizeof answer); /* not started anew */
        snprintf(expected, sizeof expected, "cores %s spin none\n", cores);
        assert_string_equal(answer, expected);
    }
}

int main(int argc, char **argv)
{
    self_path = argv[0];
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        cli_threads_settle(argv);
        core_set allowed;
        char cores[CORE_SET_TEXT_BYTES];
        if (thread_allowed_cores(&allowed) < 0)
            return 1;
        const char *spin = getenv("GOMP_SPINCOUNT");
        printf("cores %s spin %s\n", core_set_format(&allowed, cores), spin ? spin : "none");
        return 0;
    }
    if (system("command -v taskset >/dev/null") != 0)
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(cores_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
