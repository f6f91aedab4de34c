/* The per-thread error text. See error.h. */
#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/utf8.h"

static _Thread_local char err_thread_text[ERR_TEXT_BYTES];

int err_set(int code, const char *format, ...)
{
    assert(code < 0);
    char text[ERR_TEXT_BYTES]; /* an argument may be the present text itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    utf8_visible(text, strlen(text), "", err_thread_text, sizeof err_thread_text);
    return code;
}

int err_errno(int errno_value, const char *format, ...)
{
    assert(errno_value > 0);
    char text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct rlimit limit;
    if (errno_value == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        return err_set(
            -errno_value,
            "%s: this process has all of the %llu open files that it may have: raise that "
            "limit (ulimit -n)",
            text, (unsigned long long)limit.rlim_cur);
    return err_set(-errno_value, "%s: %s", text, strerror(errno_value));
}

int err_prefix(int code, const char *format, ...)
{
    char text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(code, "%s: %s", text, err_thread_text);
}

const char *err_text(void)
{
    return err_thread_text;
}

const char *err_name(int code)
{
    switch (code) {
    case ERR_USAGE:
        return "ERR_USAGE";
    case ERR_CONFIG:
        return "ERR_CONFIG";
    case ERR_INPUT:
        return "ERR_INPUT";
    case ERR_NO_FIT:
        return "ERR_NO_FIT";
    case ERR_STOPPED:
        return "ERR_STOPPED";
    case ERR_POISONED:
        return "ERR_POISONED";
    case ERR_CORRUPT:
        return "ERR_CORRUPT";
    case ERR_BACKEND:
        return "ERR_BACKEND";
    case ERR_DIVERGED:
        return "ERR_DIVERGED";
    case ERR_INTERNAL:
        return "ERR_INTERNAL";
    default:
        break;
    }
    const char *name = code < 0 ? strerrorname_np(-code) : NULL;
    return name ? name : "no error";
}

void err_save(err_record *record, int code)
{
    record->code = code;
    memcpy(record->text, err_thread_text, sizeof record->text);
}

int err_keep(err_record *first, int code)
{
    if (code < 0 && first->code == 0)
        err_save(first, code);
    return code;
}

int err_restore(const err_record *record)
{
    memcpy(err_thread_text, record->text, sizeof record->text);
    return record->code;
}
