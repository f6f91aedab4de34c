/* Figures that papers published, each beside the figure that this planner gives for the same
 * question. `sluice plan --table published` prints them. Every row is a job planned for a
 * described machine, so a change of the planner changes it (tests/cli/test_cli_published.c).
 *
 * Only published figures stand here. A bar without a number in a paper has no row. */
#ifndef SLUICE_SETUP_PUBLISHED_H
#define SLUICE_SETUP_PUBLISHED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/words.h"

struct plan_watch;

enum published_figure {
    PUBLISHED_LARGEST,     /* parameters of the largest model of a family that fits */
    PUBLISHED_FITS,        /* 1: the job fits; 0: it does not */
    PUBLISHED_SAVING,      /* 16 bytes a parameter, by the bytes of states that rest on the GPU */
    PUBLISHED_TRAFFIC,     /* bytes a parameter and step between host and GPU, both directions */
    PUBLISHED_OPTIMIZER,   /* bytes of optimizer state that rest on one rank */
    PUBLISHED_ACTIVATIONS, /* bytes of one rank: activations at rest, and scratch of the GPU */
};

enum { PUBLISHED_SETS_MAX = 6 };

struct setup_claim {
    const char *name;                     /* "zero-64-stage1": one word, for tools */
    const char *source;                   /* rows of one source stand together */
    const char *what;                     /* the question, as a phrase */
    const char *machine;                  /* a name in configs/clusters.json */
    uint32_t ranks, stage;                /* ZeRO's stage */
    const char *family;                   /* of PUBLISHED_LARGEST */
    const char *sets[PUBLISHED_SETS_MAX]; /* "key.path=value": what differs from the common job */
    enum published_figure figure;
    double published;
    bool has_theory;    /* the paper also has the formula's figure, states alone in 32 GB */
    const char *reason; /* why ours differs; NULL: by at most 10 % */
};

struct setup_published {
    const struct setup_claim *claim;
    double ours;   /* the same unit as claim->published */
    double theory; /* 0: none */
    /* A job that does not fit, or the next larger model: the tier that stops it, with numbers. */
    char problem[ERR_TEXT_BYTES];
    uint64_t param_count;    /* 0: the job does not fit */
    uint64_t layers, hidden; /* of PUBLISHED_LARGEST */
    /* Bytes of one rank. `states`: at rest; 0 with PUBLISHED_LARGEST. `need`: the least that a
     * placement takes; the plan's peak with PUBLISHED_TRAFFIC and PUBLISHED_ACTIVATIONS. */
    uint64_t states[STATE_KIND_COUNT][TIER_COUNT];
    uint64_t need[TIER_COUNT], budget[TIER_COUNT];
};

uint32_t setup_published_count(void);
/* idx from 0. Constant storage. */
const struct setup_claim *setup_published_claim(uint32_t idx);

/* Plans row `idx`. `watch` (plan/plan_job.h) is told what the plan is doing; or NULL. A job that
 * does not fit is a result. ERR_INPUT if configs/ is not found; -ENOMEM. */
int setup_published_plan(uint32_t idx, struct plan_watch *watch,
                         struct setup_published *out) MUST_CHECK;

#endif
