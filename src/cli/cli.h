/* Shared by all commands: options, exit statuses, the stop request, the line of a step. Each
 * command is a file cmd_<name>.c.
 *
 * Only this folder prints results and exits. Results go to standard output; log lines and the one
 * error line go to standard error. Everything runs on the main thread. */
#ifndef SLUICE_CLI_CLI_H
#define SLUICE_CLI_CLI_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/text.h"

/* Exit statuses. 75 is EX_TEMPFAIL of sysexits.h: the same command, started again, continues. */
enum cli_exit {
    CLI_EXIT_DONE = 0,
    CLI_EXIT_FAILED = 1,
    CLI_EXIT_WRONG = 2, /* usage, configuration, or input that is missing or malformed */
    CLI_EXIT_NO_FIT = 3,
    CLI_EXIT_STOPPED = 75
};

/* --- args.c --- */

enum {
    CLI_TEXTS_MAX = 128,
    CLI_ASKS_HELP = 1,          /* --help */
    CLI_ASKS_KEYS = 2,          /* --keys */
    CLI_ASKS_KEYS_MARKDOWN = 3, /* --keys=markdown */
};

/* Operands, or the values of an option that may be given several times. Borrowed from argv. */
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
    const char *value; /* the name of the value in the help; NULL for a flag */
    const char *help;  /* with unit and default */
    double min, max;   /* limits of CLI_COUNT (up to 2^53) and CLI_REAL */
    void *target;      /* holds the default */
};
typedef struct cli_option cli_option;

/* How a command behaves if a launcher such as mpirun starts it in several processes. */
enum cli_launch {
    CLI_ONE_PROCESS, /* it is refused */
    CLI_EACH_ALONE,  /* each process runs it */
    CLI_RANKS        /* the processes are the ranks of one job: see launched_ranks.h */
};

struct cli_command {
    const char *name;
    const char *operand; /* names the operands together, such as "RUN FILE..."; "": takes none */
    uint32_t operands_min, operands_max; /* min 0: the command decides when one is missing */
    enum cli_launch launch;
    bool computes; /* uses all cores for a long time */
    /* Not NULL if the operand is a job file: prints the list of its keys for --keys, and as KEYS.md
     * has them for --keys=markdown. */
    void (*list_keys)(FILE *out, bool is_markdown);
    const char *summary; /* one line */
    const char *details; /* more lines for --help, or NULL */
    const cli_option *options;
    size_t option_count;
    /* CLI_RANKS: for how many seconds the ranks may wait for each other before they have read the
     * job. Called like `run`, before it. */
    double (*join_seconds)(const cli_texts *operands);
    /* called when the options' targets hold their values; returns 0 or an error code */
    int (*run)(const cli_texts *operands);
};
typedef struct cli_command cli_command;

/* The options of a command, from a static array. */
#define CLI_OPTIONS(table) .options = (table), .option_count = sizeof(table) / sizeof(table)[0]

/* Reads the arguments after the command's name into the options' targets. It accepts `--name value`
 * and `--name=value`; `--` ends the options. Returns 0; CLI_ASKS_HELP, or CLI_ASKS_KEYS of a
 * command that takes a job, for cli_print_help; ERR_USAGE with one sentence (and the nearest name)
 * for anything else that is wrong. */
int cli_parse(const cli_command *command, int argc, char **argv, cli_texts *operands) MUST_CHECK;

/* Prints what was asked for: a positive result of cli_parse. */
void cli_print_help(const cli_command *command, int asked);

/* The help of --auto, and how its value becomes a key of the job: adds "auto=VALUE" to the list of
 * --set. NULL adds nothing. The text stays until the next call. */
#define CLI_AUTO_HELP                                                                              \
    "who fills in the values \"auto\" of a DeepSpeed file: hf takes the defaults of\n"             \
    "Hugging Face's Trainer and logs each (default: none; keys that need a value are\n"            \
    "asked for)"
int cli_set_auto(cli_texts *set, const char *value) MUST_CHECK;

/* --- exit.c --- */

/* Turns an error code into an exit status. Only this function does it. 0 and above give
 * CLI_EXIT_DONE. */
int cli_exit_code(int code);

/* Ends a command: flushes standard output, prints "sluice: error: <text>" as exactly one line if
 * `code` is an error other than a requested stop, and returns the exit status. See cli_exit_as. */
int cli_finish(int code);

/* Prints this thread's error as that line, immediately. */
void cli_print_error(int code);

/* Sets how cli_finish ends. The defaults are true and false.
 * - `speaks` false: without the error line, because another rank prints it.
 * - `at_once` true: by _exit, because a library may wait for ranks that are gone. */
void cli_exit_as(bool speaks, bool at_once);

/* --- stop.c --- */

/* From here on SIGINT, SIGTERM, SIGUSR1 and SIGHUP ask for a stop. The first signal sets the flag
 * that is returned. A second one ends the process immediately, unless it comes so soon that both
 * are one request, or one of them is SIGHUP (stop.c). A signal that was ignored at the start stays
 * ignored, as SIGHUP is under nohup. mpirun passes SIGUSR1 on to its ranks without killing them,
 * unlike the others. `what` is the text that the first signal prints, such as "stopping when this
 * step is done"; NULL: nothing. */
const volatile sig_atomic_t *cli_stop_install(const char *what);

/* --- terminal.c --- */

/* From here on, if standard output is a terminal, control characters in what is printed become
 * visible text: \u001b. Line ends and tabs stay. Any other output gets the bytes as they are. Call
 * it once, before anything is printed. */
void cli_terminal_begin(void);
/* For --raw: what is printed from here on reaches a terminal unchanged. */
void cli_terminal_raw(void);
/* Writes a sequence of our own that controls the terminal, such as "\r\033[K", after what was
 * printed before. */
void cli_terminal_control(const char *sequence);

/* --- threads.c --- */

/* Restarts the process once, so that OpenMP threads without work sleep soon instead of spinning on
 * cores that copies and I/O need: OpenMP reads this setting from the environment before main. Does
 * nothing if the user has set OMP_WAIT_POLICY, GOMP_SPINCOUNT or KMP_BLOCKTIME, or if the program
 * cannot be started again (no /proc). Call it at the beginning of main; on success it does not
 * return. */
void cli_threads_settle(char **argv);

/* --- step_line.c --- */

struct train_progress;
enum { CLI_DURATION_BYTES = 32 };

/* Writes a duration as "12s", "3m 20s", "2h 05m" or "3d 04h". Returns `text`. */
char *cli_duration(double seconds, char text[CLI_DURATION_BYTES]);

/* Begins the display on standard output. On a terminal it is one line that is rewritten. Elsewhere
 * it is a plain line for each step that is a multiple of `every`, and for the last step. Log lines
 * clear the live line first. `plain` asks for plain lines on a terminal too, because mpirun gives
 * its ranks a terminal even if its own output goes elsewhere. Allocates nothing later. */
void cli_live_begin(uint64_t every, bool plain, bool quiet);
void cli_live_step(const struct train_progress *progress);

/* Prints a line that stays, such as a held-out loss. */
__attribute__((format(printf, 1, 2))) void cli_live_note(const char *format, ...);

/* Ends the display. The last live line stays. */
void cli_live_end(void);

/* --- progress.c: the line of progress, on standard error, of commands that take long --- */

struct cli_progress {
    const char *verb;  /* "imported"; for cli_progress_show */
    uint64_t start_ns; /* of cli_progress_begin */
    bool is_shown, is_terminal;
    atomic_bool is_drawn; /* a line is on the terminal; any thread that logs clears it */
    double shown_seconds; /* when the last line was written */
};
typedef struct cli_progress cli_progress;

/* Begins the display: a line that is rewritten on a terminal, else a plain line every ten seconds.
 * Log lines clear it first. */
void cli_progress_begin(cli_progress *self, const char *verb, bool is_shown);
/* Shows "imported 1.20 of 6.00 GB (20%)  0.85 GB/s  left 5s" if a line is due. `user` is the
 * cli_progress. */
void cli_progress_show(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
void cli_progress_clear(cli_progress *self); /* before other output */
void cli_progress_end(cli_progress *self);   /* clears the line */

/* For other lines. `seconds` since the beginning: true if it is time for the next line. */
bool cli_progress_is_due(const cli_progress *self, double seconds);
/* For commands that are mostly done at once: true if a line is due on a terminal, from two seconds
 * after the beginning on. Elsewhere never. */
bool cli_progress_is_late(const cli_progress *self, double *seconds);
__attribute__((format(printf, 3, 4))) void cli_progress_draw(cli_progress *self, double seconds,
                                                             const char *format, ...);

/* --- the commands --- */

extern const cli_command cli_import_command, cli_export_command, cli_train_command,
    cli_plan_command, cli_generate_command, cli_eval_command, cli_data_command, cli_verify_command,
    cli_inspect_command, cli_list_command, cli_remove_command, cli_probe_command,
    cli_profile_command, cli_report_command;

#endif
