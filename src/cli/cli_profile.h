/* Prints the results of `sluice profile`, for people and as JSON. Main thread, after the steps. */
#ifndef SLUICE_CLI_CLI_PROFILE_H
#define SLUICE_CLI_CLI_PROFILE_H

#include <stdio.h>

#include "base/error.h"
#include "profile/profile.h"

/* Prints tables of at most 90 columns. */
void cli_print_profile(FILE *out, const struct profile_summary *summary);

/* Prints one JSON object and a newline. Returns -ENOMEM if it cannot be built. */
int cli_profile_json(FILE *out, const struct profile_summary *summary) MUST_CHECK;

#endif
