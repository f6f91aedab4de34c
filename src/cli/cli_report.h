/* What plans and runs say, for people and as JSON. Main thread; only before and after the steps. */
#ifndef SLUICE_CLI_CLI_REPORT_H
#define SLUICE_CLI_CLI_REPORT_H

#include <stdio.h>

#include <jansson.h>

#include "base/error.h"
#include "train/train.h"

/* Tables: the model, where each kind of state lives, peaks and budgets, lanes, the predicted step. */
void cli_print_plan(FILE *out, const struct plan_summary *plan);

/* What a run did: steps and speed, held-out loss, GB moved per lane, peak memory per tier. */
void cli_print_summary(FILE *out, const struct plan_summary *plan,
                       const struct train_summary *summary);

/* How many ranks the summary holds: all of them, up to 8. */
uint32_t cli_ranks_shown(const struct train_summary *summary);

/* What a job's nvme tier takes with two places for optimizer state, and with one (run.commit_every 0). */
void cli_place_bytes(const struct plan_summary *plan, uint64_t *with_commits,
                     uint64_t *without_commits);

/* Prints the object and a newline, and frees it. -ENOMEM where it could not be built (NULL) or printed. */
int cli_print_json(FILE *out, json_t *object) MUST_CHECK;

/* The same as one JSON object and a newline. -ENOMEM when it cannot be built. */
int cli_plan_json(FILE *out, const struct plan_summary *plan) MUST_CHECK;
int cli_summary_json(FILE *out, const struct train_summary *summary) MUST_CHECK;

#endif
