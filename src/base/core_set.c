/* Sets of cores and nodes. See core_set.h. */
#include "base/core_set.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CORE_SET_WORDS = CORE_SET_MAX / 64 };

uint32_t core_set_count(const core_set *self)
{
    uint32_t count = 0;
    for (int w = 0; w < CORE_SET_WORDS; w++)
        count += (uint32_t)__builtin_popcountll(self->words[w]);
    return count;
}

int core_set_next(const core_set *self, int from)
{
    for (int i = from < 0 ? 0 : from; i < CORE_SET_MAX; i = (i / 64 + 1) * 64) {
        uint64_t rest = self->words[i / 64] >> (i % 64);
        if (rest)
            return i + __builtin_ctzll(rest);
    }
    return -1;
}

bool core_set_equals(const core_set *a, const core_set *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

void core_set_and(core_set *target, const core_set *a, const core_set *b)
{
    for (int w = 0; w < CORE_SET_WORDS; w++)
        target->words[w] = a->words[w] & b->words[w];
}

void core_set_or(core_set *target, const core_set *a, const core_set *b)
{
    for (int w = 0; w < CORE_SET_WORDS; w++)
        target->words[w] = a->words[w] | b->words[w];
}

void core_set_minus(core_set *target, const core_set *a, const core_set *b)
{
    for (int w = 0; w < CORE_SET_WORDS; w++)
        target->words[w] = a->words[w] & ~b->words[w];
}

static const char *skip_blanks(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

/* Reads a number below CORE_SET_MAX and the blanks around it. If there is none, *at does not
 * move. */
static int read_number(const char **at, int *number)
{
    const char *digit = skip_blanks(*at);
    if (!isdigit((unsigned char)*digit))
        return *digit ? err_set(-EINVAL, "a number was expected before \"%.20s\"", digit)
                      : err_set(-EINVAL, "a number was expected at its end");
    int value = 0;
    for (; isdigit((unsigned char)*digit); digit++) {
        value = value * 10 + (*digit - '0');
        if (value >= CORE_SET_MAX)
            return err_set(-EINVAL, "numbers must be below %d", CORE_SET_MAX);
    }
    *number = value;
    *at = skip_blanks(digit);
    return 0;
}

static int parse_ranges(const char *at, core_set *set)
{
    for (;;) {
        int first, last;
        TRY(read_number(&at, &first));
        last = first;
        if (*at == '-') {
            at++;
            TRY(read_number(&at, &last));
        }
        if (last < first)
            return err_set(-EINVAL, "the range %d-%d runs backwards", first, last);
        for (int i = first; i <= last; i++)
            core_set_add(set, i);
        if (*at == 0)
            return 0;
        if (*at != ',')
            return err_set(-EINVAL, "a comma was expected before \"%.20s\"", at);
        at++;
    }
}

int core_set_parse(const char *text, core_set *out)
{
    memset(out, 0, sizeof *out);
    const char *at = skip_blanks(text);
    if (*at == 0)
        return 0;
    core_set set = {0};
    TRY(parse_ranges(at, &set));
    *out = set;
    return 0;
}

char *core_set_format(const core_set *self, char text[CORE_SET_TEXT_BYTES])
{
    size_t used = 0;
    snprintf(text, CORE_SET_TEXT_BYTES, "none");
    for (int first = core_set_next(self, 0); first >= 0;) {
        int last = first;
        while (core_set_has(self, last + 1))
            last++;
        char range[32]; /* at most ",1022-1023" */
        int length = last > first
                         ? snprintf(range, sizeof range, "%s%d-%d", used ? "," : "", first, last)
                         : snprintf(range, sizeof range, "%s%d", used ? "," : "", first);
        if (used + (size_t)length + sizeof ",..." > CORE_SET_TEXT_BYTES) {
            snprintf(text + used, CORE_SET_TEXT_BYTES - used, ",...");
            break;
        }
        memcpy(text + used, range, (size_t)length + 1);
        used += (size_t)length;
        first = core_set_next(self, last + 1);
    }
    return text;
}
