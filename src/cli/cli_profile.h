/* What `sluice profile` says, for people and as JSON. Main thread, after the steps. */
#ifndef SLUICE_CLI_CLI_PROFILE_H
#define SLUICE_CLI_CLI_PROFILE_H

#include <stdio.h>

#include "base/error.h"
#include "profile/profile.h"

/* Tables of at most 90 columns. */
void cli_print_profile(FILE *out, const struct profile_summary *summary);

/* One JSON object and a newline. -ENOMEM when it cannot be built. */
int cli_profile_json(FILE *out, const struct profile_summary *summary) MUST_CHECK;

#endif
