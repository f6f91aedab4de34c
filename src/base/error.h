/* Errors as values, for every module.
 *
 * A function that can fail returns an int: 0 or a count on success, a negative code on failure.
 * Codes are -errno or one of ERR_* below; codes of other libraries are converted where they enter.
 * err_set makes the text once, at the place that knows the operands. The text says what failed,
 * where, with which numbers, and what to do next. Each thread keeps its own text until its next
 * err_set. A worker thread hands its error to another thread with err_save and err_restore.
 *
 * Only src/cli prints errors and turns codes into exit statuses. Nothing here allocates. */
#ifndef SLUICE_BASE_ERROR_H
#define SLUICE_BASE_ERROR_H

enum err_code {
    ERR_USAGE = -10001,    /* wrong command line: exit 2 */
    ERR_CONFIG = -10002,   /* wrong key or value in the job file: exit 2 */
    ERR_INPUT = -10003,    /* data, model or run directory missing or malformed: exit 2 */
    ERR_NO_FIT = -10004,   /* the job does not fit a budget: exit 3 */
    ERR_STOPPED = -10005,  /* stopped on request after the state was committed: exit 75 */
    ERR_POISONED = -10006, /* the object failed before and refuses further work */
    ERR_CORRUPT = -10007,  /* stored bytes disagree with their checksum or format */
    ERR_BACKEND = -10008,  /* a library (oneDNN, CUDA, MPI, ...) refused; the text has its code */
    ERR_DIVERGED = -10010, /* training no longer gives finite numbers */
    ERR_INTERNAL = -10009, /* our own invariant is broken; please report */
};

enum { ERR_TEXT_BYTES = 1024 };

/* A code with its text, to carry an error between threads. `code` 0 means no error. */
struct err_record {
    int code;
    char text[ERR_TEXT_BYTES];
};
typedef struct err_record err_record;

/* Stores the formatted text as this thread's error and returns `code` (which must be negative). The
 * text becomes one line that cannot control a terminal (utf8_visible): it often quotes files. */
__attribute__((format(printf, 2, 3))) int err_set(int code, const char *format, ...);

/* As err_set, and appends ": <text of errno_value>", for EMFILE with the limit. Returns
 * -errno_value. */
__attribute__((format(printf, 2, 3))) int err_errno(int errno_value, const char *format, ...);

/* Puts "<formatted>: " before this thread's present text, keeping the code; returns `code`. */
__attribute__((format(printf, 2, 3))) int err_prefix(int code, const char *format, ...);

/* This thread's last text; "" when there is none. Valid until the thread's next err_set. */
const char *err_text(void);

/* A short name of a code, such as "ERR_NO_FIT" or "EIO". Static storage. */
const char *err_name(int code);

/* Copies `code` and this thread's text to *record. */
void err_save(err_record *record, int code);

/* err_save, if `code` is an error and *first holds none yet. Returns `code`. */
int err_keep(err_record *first, int code);

/* Makes the text of *record this thread's text and returns its code. */
int err_restore(const err_record *record);

/* Returns from the caller with the code of a failed call. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int try_rc_ = (call);                                                                      \
        if (try_rc_ < 0)                                                                           \
            return try_rc_;                                                                        \
    } while (0)

/* Stores the code of a failed call in `rc` and jumps to `label`. */
#define TRY_GOTO(rc, call, label)                                                                  \
    do {                                                                                           \
        (rc) = (call);                                                                             \
        if ((rc) < 0)                                                                              \
            goto label;                                                                            \
    } while (0)

/* For cleaning up: keeps the code of the first error. The thread's text is always that of the last
 * error, so save the first text with err_save if it is needed too. */
#define TRY_KEEP(rc, call)                                                                         \
    do {                                                                                           \
        int keep_rc_ = (call);                                                                     \
        if (keep_rc_ < 0 && (rc) >= 0)                                                             \
            (rc) = keep_rc_;                                                                       \
    } while (0)

#define MUST_CHECK __attribute__((warn_unused_result))

#endif
