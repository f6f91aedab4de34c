/* What plans and runs say, for people and as JSON. Main thread; only before and after the steps. */
#ifndef SLUICE_CLI_CLI_REPORT_H
#define SLUICE_CLI_CLI_REPORT_H

#include <stdio.h>

#include "base/error.h"
#include "train/train.h"

/* Tables: the model, where each kind of state lives, peaks and budgets, lanes, the predicted step. */
void cli_print_plan(FILE *out, const struct plan_summary *plan);

/* What a run did: steps and speed, held-out loss, GB moved per lane, peak memory per tier. */
void cli_print_summary(FILE *out, const struct plan_summary *plan,
                       const struct train_summary *summary);

/* The same as one JSON object and a newline. -ENOMEM when it cannot be built. */
int cli_plan_json(FILE *out, const struct plan_summary *plan) MUST_CHECK;
int cli_summary_json(FILE *out, const struct train_summary *summary) MUST_CHECK;

#endif
