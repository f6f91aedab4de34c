/* What plans and runs say, for people and as JSON. Main thread; only before and after the steps. */
#ifndef SLUICE_CLI_CLI_REPORT_H
#define SLUICE_CLI_CLI_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "base/error.h"
#include "setup/summary.h"
#include "train/train.h"

/* Tables of at most 90 columns: the job; where each state rests, why, and how that adds up to the
 * peaks; the predicted step with its bound, lanes and resources; commits and wear. report_plan.c */
void cli_print_plan(FILE *out, const struct setup_summary *plan);
/* The same without what a run's own figures will say better: lanes, resources, commits, wear,
 * reasons. */
void cli_print_plan_brief(FILE *out, const struct setup_summary *plan);

/* What a run did: steps and speed, held-out loss, GB moved per lane, peak memory per tier. */
void cli_print_summary(FILE *out, const struct setup_summary *plan,
                       const struct train_summary *summary);

/* Writes a count with a unit: "2048", "12.3K", "7.52M", "1.56B". Returns text. */
enum { CLI_FIGURE_BYTES = 48 };
const char *cli_count(double value, char text[CLI_FIGURE_BYTES]);

/* A paragraph of at most 90 columns, indented. */
void cli_print_folded(FILE *out, const char *text);

/* --- tables.c --- */

/* ZeRO's Table 1 and Table 2, from plan/zero.h. */
int cli_table_zero(FILE *out, bool json) MUST_CHECK;

/* A job planned for several numbers of ranks; `problem`: why it cannot be run by so many, "" where
 * it can. */
struct cli_ranks_row {
    uint32_t ranks;
    int code; /* 0, or of the problem */
    char problem[ERR_TEXT_BYTES];
    struct setup_summary plan; /* where code is 0 */
};
int cli_table_ranks(FILE *out, const struct cli_ranks_row *rows, uint32_t count,
                    bool json) MUST_CHECK;

/* What plan --max-model found, as text or as one JSON object. */
int cli_print_max_model(FILE *out, const char *family, const struct setup_max_model *found,
                        bool json) MUST_CHECK;

/* How many ranks the summary holds: all of them, up to 8. */
uint32_t cli_ranks_shown(const struct train_summary *summary);

/* Prints the object and a newline, and frees it. -ENOMEM where it could not be built (NULL) or
 * printed. */
int cli_print_json(FILE *out, json_t *object) MUST_CHECK;

/* Bytes by the name of their tier. The caller owns the object. */
json_t *cli_tiers_object(const uint64_t bytes[TIER_COUNT]);

/* What a run did, as one JSON object and a newline. -ENOMEM when it cannot be built. */
int cli_summary_json(FILE *out, const struct train_summary *summary) MUST_CHECK;

#endif
