/* What the commands share: options, exit codes, the stop request, the live line.
 *
 *   main.c         the list of commands, --version, help      args.c    options of a command
 *   cmd_train.c    sluice train JOB                           exit.c    code -> exit status, one line
 *   cmd_plan.c     sluice plan JOB                            stop.c    SIGINT, SIGTERM, SIGUSR1
 *   cmd_generate.c sluice generate RUN                        live.c    a line a step
 *   cmd_eval.c     sluice eval RUN FILE...
 *   cmd_data.c     sluice data tokenize FILE...
 *   cmd_verify.c   sluice verify RUN                          threads.c how idle threads wait
 *   cmd_import.c   sluice import HF_DIR RUN                   progress.c a line of bytes moved (cli_progress.h)
 *   cmd_export.c   sluice export RUN HF_DIR
 *   cmd_inspect.c  sluice inspect RUN                          ranks.c   several processes (cli_ranks.h)
 *   bigram.c       sluice-bigram, a baseline for the quickstart, not installed
 *
 * Only this folder prints results and exits; results go to standard output, log lines and the one
 * error line to standard error. Everything runs on the main thread. */
#ifndef SLUICE_CLI_CLI_H
#define SLUICE_CLI_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "report/live.h"

/* Exit statuses. 75 is EX_TEMPFAIL of sysexits.h: the same command continues. */
enum cli_exit {
    CLI_EXIT_DONE = 0,
    CLI_EXIT_FAILED = 1,
    CLI_EXIT_WRONG = 2, /* usage, configuration, or input that is missing or malformed */
    CLI_EXIT_NO_FIT = 3,
    CLI_EXIT_STOPPED = 75
};

/* --- args.c --- */

enum { CLI_TEXTS_MAX = 128, CLI_HELP_SHOWN = 1 };

/* The values of an option that may be given several times. Borrowed from argv. */
struct cli_texts {
    const char *items[CLI_TEXTS_MAX];
    uint32_t count;
};
typedef struct cli_texts cli_texts;

enum cli_type {
    CLI_FLAG,  /* target: bool, set to true */
    CLI_TEXT,  /* target: const char * */
    CLI_TEXTS, /* target: cli_texts */
    CLI_COUNT, /* target: uint64_t, a whole number in [min, max] */
    CLI_REAL   /* target: double in [min, max] */
};

struct cli_option {
    const char *name; /* without the dashes */
    enum cli_type type;
    const char *value; /* what the help calls the value; NULL for a flag */
    const char *help;  /* with unit and default */
    double min, max;   /* CLI_COUNT (up to 2^53) and CLI_REAL */
    void *target;      /* holds the default */
};
typedef struct cli_option cli_option;

struct cli_command {
    const char *name;
    const char *operand; /* the one operand, such as "JOB"; "": none is taken */
    bool is_optional;    /* the operand may be missing: the command says when it may */
    /* of cli_parse_all: how many there are at least, named together by `operand` */
    uint32_t operands_min;
    /* The operand is a job file: --keys lists its keys, --keys=markdown as KEYS.md has them; or
     * NULL. */
    void (*list_keys)(FILE *out, bool is_markdown);
    const char *summary;               /* one line */
    const char *details;               /* more lines for --help, or NULL */
    int (*run)(int argc, char **argv); /* arguments after the command's name; 0 or an error code */
};
typedef struct cli_command cli_command;

/* Reads the arguments into the options' targets. `--name value` and `--name=value`; `--` ends the
 * options; `--help` prints the help, and `--keys` of a command that takes a job the keys of one: both
 * return CLI_HELP_SHOWN. ERR_USAGE with one sentence (and the
 * nearest name) for anything else that does not fit. */
int cli_parse(const cli_command *command, const cli_option *options, size_t option_count, int argc,
              char **argv, const char **positional) MUST_CHECK;

/* The same for a command of several operands, at most CLI_TEXTS_MAX. */
int cli_parse_all(const cli_command *command, const cli_option *options, size_t option_count,
                  int argc, char **argv, cli_texts *operands) MUST_CHECK;

/* The name nearest to `name` among `count` names that lie `stride_bytes` apart, each the first
 * member (const char *) of its element; NULL when none is near enough to be meant. */
const char *cli_nearest(const char *name, const void *names, size_t count, size_t stride_bytes);

/* --- exit.c --- */

/* The one place where error codes become exit statuses. 0 and above: done. */
int cli_exit_code(int code);

/* Ends a command: flushes standard output, prints "sluice: error: <text>" as exactly one line where
 * `code` is an error other than a stop on request, and returns the exit status. See cli_exit_as. */
int cli_finish(int code);

/* Prints this thread's error as that line, now. */
void cli_print_error(int code);

/* How cli_finish ends: `speaks` false: without the error line, which another rank prints;
 * `at_once`: by _exit, because a library may wait for ranks that are gone. Before: true, false. */
void cli_exit_as(bool speaks, bool at_once);

/* --- stop.c --- */

/* From here on SIGINT, SIGTERM and SIGUSR1 (which mpirun hands on to its ranks, unlike the others
 * without killing them) ask for a stop: the first sets the flag that is returned, the second ends
 * the process at once. A signal that was ignored at the start stays ignored. `what` is what the
 * first says: "stopping when this step is done"; NULL: nothing. */
const volatile sig_atomic_t *cli_stop_install(const char *what);

/* --- threads.c --- */

/* Starts the process anew, once, so that OpenMP threads without work sleep soon instead of spinning
 * on cores that copies and I/O need: OpenMP reads this from the environment before main. Does
 * nothing where the user has set OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME, and where the
 * program cannot be started again (no /proc). For the very beginning of main: on success it does
 * not return. */
void cli_threads_settle(char **argv);

/* --- live.c --- */

enum { CLI_DURATION_BYTES = 32 };

/* "12s", "3m 20s", "2h 05m", "3d 04h". Returns `text`. */
char *cli_duration(double seconds, char text[CLI_DURATION_BYTES]);

/* Begins the display on standard output: one line that is rewritten on a terminal, else a plain
 * line for each step whose number is a multiple of `every` and for the last. Log lines clear the
 * live line first. `plain`: plain lines on what looks like a terminal too; mpirun gives its ranks
 * one wherever its own output goes. Allocates nothing later. */
void cli_live_begin(uint64_t every, bool plain, bool quiet);
void cli_live_step(const live_status *status);

/* A line that stays, such as a held-out loss. */
__attribute__((format(printf, 1, 2))) void cli_live_note(const char *format, ...);

/* Ends the display; the last live line stays. */
void cli_live_end(void);

/* --- the commands --- */

int cli_train(int argc, char **argv) MUST_CHECK;
int cli_plan(int argc, char **argv) MUST_CHECK;
int cli_generate(int argc, char **argv) MUST_CHECK;
int cli_eval(int argc, char **argv) MUST_CHECK;
int cli_data(int argc, char **argv) MUST_CHECK;
int cli_import(int argc, char **argv) MUST_CHECK;
int cli_export(int argc, char **argv) MUST_CHECK;
int cli_verify(int argc, char **argv) MUST_CHECK;
int cli_inspect(int argc, char **argv) MUST_CHECK;
int cli_probe(int argc, char **argv) MUST_CHECK;
int cli_profile(int argc, char **argv) MUST_CHECK;
int cli_report(int argc, char **argv) MUST_CHECK;

extern const cli_command cli_import_command, cli_export_command, cli_train_command,
    cli_plan_command, cli_generate_command, cli_eval_command, cli_data_command, cli_verify_command,
    cli_inspect_command, cli_probe_command, cli_profile_command, cli_report_command;

#endif
