/* The named points. See failpoint.h. Nothing here allocates.
 *
 * While no point is armed, a point reads only `armed`. */
#include "base/failpoint.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

enum action_kind { ACTION_NONE, ACTION_SLEEP, ACTION_FAIL, ACTION_KILL };

enum { ARMED_ACTIONS = 1, ARMED_HOOK = 2 };

enum {
    SLEEP_MS_MAX = 3600 * 1000,
    ERRNO_MAX = 200, /* above all that Linux has */
    PART_BYTES = 80, /* "point=action"; a longer text is wrong */
};

/* All points. The comment of failpoint.h lists them with their places. */
static const char *const point_names[] = {
    "join.hub",      "slab.create",      "recut.begin",     "recut.copied",     "recut.switched",
    "recut.removed", "commit.begin",     "slab.sync",       "commit.synced",    "manifest.begin",
    "manifest.half", "manifest.written", "manifest.synced", "commit.durable",   "keep.begin",
    "keep.copied",   "remove.begin",     "remove.slabs",    "remove.manifests",
};

enum { POINT_COUNT = sizeof point_names / sizeof point_names[0] };

struct point {
    enum action_kind kind;
    uint64_t number; /* milliseconds, or the errno value */
    uint64_t at;     /* for ACTION_FAIL and ACTION_KILL: the time at which it acts, from 1 */
    atomic_uint_fast64_t met_count;
};
typedef struct point point;

typedef int (*hook_function)(void *user, const char *name);

static point points[POINT_COUNT];
static _Atomic(hook_function) hook_call;
static _Atomic(void *) hook_user;
static atomic_int armed;

static int find_point(const char *name)
{
    for (int i = 0; i < POINT_COUNT; i++)
        if (strcmp(point_names[i], name) == 0)
            return i;
    return -1;
}

/* ---- SLUICE_FAILPOINTS ---- */

/* Reads a decimal number of 1 to `most` at *text, and moves *text after it. */
static bool read_number(const char **text, uint64_t most, uint64_t *number)
{
    const char *at = *text;
    for (*number = 0; *at >= '0' && *at <= '9'; at++) {
        *number = 10 * *number + (uint64_t)(*at - '0');
        if (*number > most)
            return false;
    }
    bool is_number = at != *text && *number > 0;
    *text = at;
    return is_number;
}

/* Reads "@<n>" up to the end of the text. An empty text means the first time. */
static bool read_at(const char *text, uint64_t *at)
{
    *at = 1;
    if (*text == 0)
        return true;
    return *text++ == '@' && read_number(&text, INT64_MAX / 10, at) && *text == 0;
}

static bool read_errno(const char *name, size_t length, uint64_t *number)
{
    for (int value = 1; value <= ERRNO_MAX; value++) {
        const char *known = err_name(-value);
        if (known[0] == 'E' && strlen(known) == length && memcmp(known, name, length) == 0) {
            *number = (uint64_t)value;
            return true;
        }
    }
    return false;
}

/* Reads the action of a point, for example "kill@2". */
static bool read_action(const char *text, point *out)
{
    if (strncmp(text, "sleep:", 6) == 0) {
        text += 6;
        out->kind = ACTION_SLEEP;
        return read_number(&text, SLEEP_MS_MAX, &out->number) && strcmp(text, "ms") == 0;
    }
    if (strncmp(text, "fail:", 5) == 0) {
        text += 5;
        out->kind = ACTION_FAIL;
        size_t length = strcspn(text, "@");
        return read_errno(text, length, &out->number) && read_at(text + length, &out->at);
    }
    out->kind = ACTION_KILL;
    return strncmp(text, "kill", 4) == 0 && read_at(text + 4, &out->at);
}

static int unknown_point(const char *name)
{
    char list[POINT_COUNT * 20] = "";
    for (int i = 0; i < POINT_COUNT; i++)
        text_add(list, sizeof list, "%s%s", i ? ", " : "", point_names[i]);
    return err_set(ERR_USAGE, "SLUICE_FAILPOINTS: there is no point '%s'; there are %s", name,
                   list);
}

/* Reads one "<point>=<action>". */
static int read_part(const char *text, size_t length)
{
    char part[PART_BYTES];
    if (length >= sizeof part)
        return err_set(ERR_USAGE, "SLUICE_FAILPOINTS: '%.40s...' is no <point>=<action>", text);
    memcpy(part, text, length);
    part[length] = 0;
    char *equals = strchr(part, '=');
    if (!equals)
        return err_set(ERR_USAGE, "SLUICE_FAILPOINTS: '%s' is no <point>=<action>", part);
    *equals = 0;
    int idx = find_point(part);
    if (idx < 0)
        return unknown_point(part);
    point *target = &points[idx];
    if (target->kind != ACTION_NONE)
        return err_set(ERR_USAGE, "SLUICE_FAILPOINTS: %s has two actions; a point takes one", part);
    if (!read_action(equals + 1, target))
        return err_set(
            ERR_USAGE,
            "SLUICE_FAILPOINTS: the action '%s' of %s is none of sleep:<n>ms (up to an hour), "
            "fail:<ERRNO>[@<n>] and kill[@<n>]",
            equals + 1, part);
    return 0;
}

static void forget_actions(void)
{
    atomic_fetch_and(&armed, ~ARMED_ACTIONS);
    for (int i = 0; i < POINT_COUNT; i++) {
        points[i].kind = ACTION_NONE;
        atomic_store(&points[i].met_count, 0);
    }
}

int failpoint_init(void)
{
    forget_actions();
    const char *text = getenv("SLUICE_FAILPOINTS");
    bool has_actions = false;
    while (text && *text) {
        size_t length = strcspn(text, ";");
        if (length > 0) { /* "a=kill;" ends with an empty part */
            int rc = read_part(text, length);
            if (rc < 0) {
                forget_actions();
                return rc;
            }
            has_actions = true;
        }
        text += length + (text[length] == ';');
    }
    if (has_actions)
        atomic_fetch_or(&armed, ARMED_ACTIONS);
    return 0;
}

/* ---- at a point ---- */

static void sleep_ms(uint64_t ms)
{
    struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static int act(point *self, const char *name)
{
    uint64_t met = atomic_fetch_add(&self->met_count, 1) + 1;
    switch (self->kind) {
    case ACTION_NONE:
        break;
    case ACTION_SLEEP:
        sleep_ms(self->number);
        break;
    case ACTION_FAIL:
        if (met == self->at)
            return err_errno((int)self->number, "failpoint %s, met %llu times", name,
                             (unsigned long long)met);
        break;
    case ACTION_KILL:
        if (met == self->at) {
            (void)kill(getpid(), SIGKILL);
            for (;;) /* the signal may take a moment; nothing more may happen here */
                (void)pause();
        }
        break;
    }
    return 0;
}

int failpoint(const char *name)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed) == 0)
        return 0;
    /* acquire: orders the stores that were made before it was set */
    int which = atomic_load(&armed);
    int idx = find_point(name);
    assert(idx >= 0); /* a new point must be added to the list above */
    if (which & ARMED_HOOK) {
        hook_function call = atomic_load(&hook_call);
        int rc = call ? call(atomic_load(&hook_user), name) : 0;
        if (rc < 0)
            return rc;
    }
    return which & ARMED_ACTIONS ? act(&points[idx], name) : 0;
}

void failpoint_hook(int (*hook)(void *user, const char *name), void *user)
{
    if (!hook)
        atomic_fetch_and(&armed, ~ARMED_HOOK);
    atomic_store(&hook_user, user);
    atomic_store(&hook_call, hook);
    if (hook)
        atomic_fetch_or(&armed, ARMED_HOOK);
}
