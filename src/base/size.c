/* Sizes. See size.h. */
#include "base/size.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int size_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (__builtin_mul_overflow(a, b, out)) {
        *out = 0;
        return err_set(-EOVERFLOW, "%" PRIu64 " times %" PRIu64 " is more than 64 bits hold", a, b);
    }
    return 0;
}

int size_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (__builtin_add_overflow(a, b, out)) {
        *out = 0;
        return err_set(-EOVERFLOW, "%" PRIu64 " plus %" PRIu64 " is more than 64 bits hold", a, b);
    }
    return 0;
}

struct size_unit {
    const char *name;
    double bytes;
};

static const struct size_unit size_units[] = {
    {"", 1.0},       {"b", 1.0},    {"k", 0x1p10},   {"kb", 1e3},     {"kib", 0x1p10},
    {"m", 0x1p20},   {"mb", 1e6},   {"mib", 0x1p20}, {"g", 0x1p30},   {"gb", 1e9},
    {"gib", 0x1p30}, {"t", 0x1p40}, {"tb", 1e12},    {"tib", 0x1p40},
};

int size_parse(const char *text, uint64_t *bytes)
{
    *bytes = 0;
    char *end = NULL;
    if (!(text[0] >= '0' && text[0] <= '9') && text[0] != '.')
        return err_set(-EINVAL, "\"%s\" is not a size: write a number and a unit, as in 16GiB",
                       text);
    double value = strtod(text, &end);
    char *hex = strpbrk(text, "xX");
    if (hex && hex < end) /* strtod reads hexadecimal numbers, too */
        end = hex;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof size_units / sizeof size_units[0]; i++) {
        if (strcasecmp(end, size_units[i].name) != 0)
            continue;
        double product = value * size_units[i].bytes;
        if (!(product >= 0.0 && product < 0x1p63))
            return err_set(-EOVERFLOW, "\"%s\" is more than 2^63 bytes", text);
        *bytes = (uint64_t)floor(product);
        return 0;
    }
    return err_set(-EINVAL, "\"%s\" is not a size: units are B, KB, KiB, MB, MiB, GB, GiB, TB, TiB",
                   text);
}

char *size_format(uint64_t bytes, char text[SIZE_TEXT_BYTES])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof names / sizeof names[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, SIZE_TEXT_BYTES, unit == 0 ? "%.0f %s" : "%.2f %s", value, names[unit]);
    return text;
}
