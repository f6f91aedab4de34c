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

/* What a plan comes to, by the same formulas wherever it is printed; 0 where it is not known. */
struct cli_plan_figures {
    double steps_per_hour, tokens_per_second;
    double rank_flops_per_second;     /* the model's, as the field counts them */
    double hardware_flops_per_second; /* of a rank, recomputation included */
    double mfu;                       /* of the peak */
    double over_bound;                /* (step - bound) / bound */
    double over_schedule_bound;
    /* bytes to drives a step, of all ranks, per parameter of the model */
    double written_per_parameter;
    double host_bytes_a_day; /* written to the drives of a host */
    double drive_days;       /* until its endurance is written */
};
struct cli_plan_figures cli_plan_figures_of(const struct setup_summary *plan);

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

/* What a job's nvme tier takes with two places for optimizer state, and with one (run.commit_every
 * 0). */
void cli_place_bytes(const struct setup_summary *plan, uint64_t *with_commits,
                     uint64_t *without_commits);

/* Prints the object and a newline, and frees it. -ENOMEM where it could not be built (NULL) or
 * printed. */
int cli_print_json(FILE *out, json_t *object) MUST_CHECK;

/* The same as one JSON object and a newline. -ENOMEM when it cannot be built. */
json_t *cli_plan_object(const struct setup_summary *plan); /* the caller's */
int cli_plan_json(FILE *out, const struct setup_summary *plan) MUST_CHECK;
int cli_summary_json(FILE *out, const struct train_summary *summary) MUST_CHECK;

#endif
