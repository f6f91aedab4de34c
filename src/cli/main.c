/* sluice: reads the command's name and calls the command. See cli.h. */
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/failpoint.h"
#include "base/limits.h"
#include "cli/cli.h"
#include "cli/launched_ranks.h"

static const cli_command *const main_commands[] = {
    &cli_train_command,   &cli_plan_command,   &cli_generate_command, &cli_eval_command,
    &cli_data_command,    &cli_import_command, &cli_export_command,   &cli_verify_command,
    &cli_inspect_command, &cli_list_command,   &cli_remove_command,   &cli_probe_command,
    &cli_profile_command, &cli_report_command,
};
enum { MAIN_COMMAND_COUNT = sizeof main_commands / sizeof main_commands[0] };

static void main_print_help(void)
{
    printf("sluice %s: trains transformer models larger than the memory of all devices\n\n",
           SLUICE_VERSION);
    for (size_t i = 0; i < MAIN_COMMAND_COUNT; i++)
        printf("  sluice %-8s %-18s %s\n", main_commands[i]->name, main_commands[i]->operand,
               main_commands[i]->summary);
    printf("\n  sluice COMMAND --help    options of a command, with units and defaults\n"
           "  sluice --version\n\n"
           "exit status: 0 done; 1 failed; 2 wrong usage, configuration or input;\n"
           "             3 does not fit the budgets; 75 stopped on request, the same command "
           "without --fresh resumes\n");
}

static int main_unknown(const char *name)
{
    struct nearest nearest = {0};
    if (name[0] == '-')
        return err_set(ERR_USAGE,
                       "\"%s\" is no option of sluice itself; options of a command stand after it",
                       name);
    for (size_t i = 0; i < MAIN_COMMAND_COUNT; i++)
        nearest_offer(&nearest, name, main_commands[i]->name);
    if (nearest_is_near(&nearest, name))
        return err_set(ERR_USAGE, "unknown command \"%s\"; nearest is %s", name, nearest.name);
    return err_set(ERR_USAGE, "unknown command \"%s\"; sluice help lists them", name);
}

static const cli_command *main_find(const char *name)
{
    for (size_t i = 0; i < MAIN_COMMAND_COUNT; i++)
        if (strcmp(main_commands[i]->name, name) == 0)
            return main_commands[i];
    return NULL;
}

static int main_run(const cli_command *command, int argc, char **argv)
{
    cli_texts operands;
    int rc = cli_parse(command, argc, argv, &operands);
    if (command->launch == CLI_RANKS) { /* before anything is printed: once by all ranks */
        err_record parsed;
        err_save(&parsed, rc);
        TRY(cli_ranks_join(rc == 0 ? command->join_seconds(&operands) : 0.0));
        rc = err_restore(&parsed);
    }
    if (rc > 0)
        cli_print_help(command, rc);
    if (rc == 0 && command->launch == CLI_ONE_PROCESS)
        rc = cli_ranks_refuse(command->name);
    if (rc == 0)
        rc = command->run(&operands);
    /* In train, all ranks have the same arguments and the same job. After the run, and in other
     * commands, there is nothing left to leave. */
    return cli_ranks_leave(cli_ranks(), rc, true);
}

static int main_dispatch(int argc, char **argv)
{
    if (argc < 2)
        return err_set(ERR_USAGE, "a command is missing; sluice help lists them");
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "version") == 0) {
        printf("sluice %s\n", SLUICE_VERSION);
        return 0;
    }
    bool asks_help = strcmp(name, "help") == 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || (asks_help && argc == 2)) {
        main_print_help();
        return 0;
    }
    const char *wanted = asks_help ? argv[2] : name;
    char help_option[] = "--help";
    char *help_argv[] = {help_option, NULL};
    const cli_command *command = main_find(wanted);
    if (!command)
        return main_unknown(wanted);
    return asks_help ? main_run(command, 1, help_argv) : main_run(command, argc - 2, argv + 2);
}

/* If standard input, output or error is closed, the next file that is opened would get its number,
 * and lines for people would be written into a run's state. This opens /dev/null in place of each,
 * in the direction that fails as a closed file would. */
static int main_fill_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return err_errno(errno, "cannot open /dev/null");
    return 0;
}

int main(int argc, char **argv)
{
    int rc = main_fill_standard_files();
    cli_terminal_begin();
    if (rc == 0)
        rc = failpoint_init(); /* only tests set failpoints */
    if (rc == 0)
        rc = cpu_isa_check();
    if (rc == 0)
        rc = limits_begin();
    const cli_command *command = argc > 2 ? main_find(argv[1]) : NULL;
    if (rc == 0 && command && command->computes) {
        cli_threads_settle(argv);
        rc = limits_check_threads((uint32_t)omp_get_max_threads());
    }
    if (rc < 0)
        return cli_finish(rc);
    signal(SIGPIPE, SIG_IGN); /* a reader of the output that ends must not end a run */
    signal(SIGXFSZ, SIG_IGN); /* ulimit -f: returns an error with a sentence instead */
    return cli_finish(main_dispatch(argc, argv));
}
