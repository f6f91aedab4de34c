/* The critical path of a plan (plan/waits.h) as figures of the summary.
 * The sentence of each part is what `sluice plan` prints; the JSON has its figures as well. */
#ifndef SLUICE_SETUP_WAITS_TEXT_H
#define SLUICE_SETUP_WAITS_TEXT_H

#include <jansson.h>

#include "setup/summary.h"

/* Fills the waits of a summary whose other figures are known. None where memory is short. */
void setupi_summarize_waits(const struct setup *self, struct setup_summary *out);

/* The waits as an array of objects. The caller owns it. NULL: no memory. */
json_t *setupi_waits_json(const struct setup_summary *plan);

#endif
