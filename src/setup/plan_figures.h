/* The one table of a plan's figures: name, unit and member of struct setup_summary. The JSON of
 * `sluice plan` and plan.json (plan_json.c) are made from it, and the text of `sluice plan` and the
 * report of a run show the same figures. A figure has the same name in all of them. */
#ifndef SLUICE_SETUP_PLAN_FIGURES_H
#define SLUICE_SETUP_PLAN_FIGURES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "setup/summary.h"

enum setup_figure_type {
    FIGURE_COUNT, /* uint64_t */
    FIGURE_SMALL, /* uint32_t */
    FIGURE_REAL,  /* double; null in JSON where it is not finite */
    FIGURE_FLAG,  /* bool */
    FIGURE_CHARS, /* char[] */
    FIGURE_WORD,  /* const char * */
};

struct setup_figure {
    /* Names of nested objects with dots between them. TIER, KIND, LANE and RESOURCE stand for each
     * tier, state kind, lane and resource by its name: "lanes.LANE.bytes" is one row. */
    const char *path;
    const char *unit;     /* "" for texts, flags and plain numbers */
    size_t offset;        /* of the first value in struct setup_summary */
    size_t step_bytes[2]; /* from one value to the next, for each such word of the path, in order */
    enum setup_figure_type type;
    bool zero_is_unknown; /* 0 is null in JSON */
};

/* The rows, in the order of the JSON. */
const struct setup_figure *setup_figures(uint32_t *count);

/* All figures, the reasons and the waits as one object. The caller owns it. NULL: no memory. */
json_t *setup_plan_object(const struct setup_summary *plan);

#endif
