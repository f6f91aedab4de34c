/* Prints plans, runs and profiles, for people and as JSON. Main thread; only before and after the
 * steps. */
#ifndef SLUICE_CLI_CLI_REPORT_H
#define SLUICE_CLI_CLI_REPORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>

#include "base/error.h"
#include "profile/profile.h"
#include "setup/published.h"
#include "setup/summary.h"
#include "train/train.h"

/* Tables of at most 90 columns: the job; where each state rests, why, and how that adds up to the
 * peaks; the predicted step with its bound, lanes and resources; commits and wear. */
void cli_print_plan(FILE *out, const struct setup_summary *plan);
/* The same without the parts that a run measures itself: lanes, resources, commits, wear,
 * reasons. */
void cli_print_plan_brief(FILE *out, const struct setup_summary *plan);

/* Prints the results of a run: steps and speed, held-out loss, GB moved per lane, peak memory per
 * tier. */
void cli_print_summary(FILE *out, const struct setup_summary *plan,
                       const struct train_summary *summary);

/* Prints the peak and the budget of each tier, and the peak of the process. */
void cli_print_peaks(FILE *out, const uint64_t peak_bytes[TIER_COUNT],
                     const uint64_t budget_bytes[TIER_COUNT], uint64_t resident_bytes);

/* Writes a count with a unit: "2048", "12.3K", "7.52M", "1.56B". Returns text. */
enum { CLI_FIGURE_BYTES = 48 };
const char *cli_count(double value, char text[CLI_FIGURE_BYTES]);

/* A paragraph of at most 90 columns, indented by `indent`, and by 2 more after the first line. */
void cli_print_folded(FILE *out, int indent, const char *text);

/* ZeRO's Table 1 and Table 2, from plan/zero.h. */
int cli_table_zero(FILE *out, bool json) MUST_CHECK;

/* Prints a published figure beside ours (setup/published.h), and above the first row of a paper its
 * name. `before`: the row before, or NULL. */
void cli_print_published(FILE *out, const struct setup_claim *before,
                         const struct setup_published *row);
/* The same as JSON, not rounded. The caller owns the object. */
json_t *cli_published_object(const struct setup_published *row);

/* One row: a job planned for a number of ranks. `problem`: why so many cannot run it, or "". */
struct cli_ranks_row {
    uint32_t ranks;
    int code; /* 0, or the error code of the problem */
    char problem[ERR_TEXT_BYTES];
    struct setup_summary plan; /* if code is 0 */
};
int cli_table_ranks(FILE *out, const struct cli_ranks_row *rows, uint32_t count,
                    bool json) MUST_CHECK;

/* Prints the result of plan --max-model, as text or as one JSON object. */
int cli_print_max_model(FILE *out, const char *family, const struct setup_max_model *found,
                        bool json) MUST_CHECK;

/* Print what `sluice profile` found, as tables or as one JSON object. */
void cli_print_profile(FILE *out, const struct profile_summary *summary);
int cli_profile_json(FILE *out, const struct profile_summary *summary) MUST_CHECK;

/* Prints the object and a newline, and frees it. -ENOMEM if it could not be built (NULL) or
 * printed. */
int cli_print_json(FILE *out, json_t *object) MUST_CHECK;

/* Bytes by the name of their tier. The caller owns the object. */
json_t *cli_tiers_object(const uint64_t bytes[TIER_COUNT]);

/* Prints the results of a run as one JSON object and a newline. -ENOMEM when it cannot be built. */
int cli_summary_json(FILE *out, const struct train_summary *summary) MUST_CHECK;

#endif
