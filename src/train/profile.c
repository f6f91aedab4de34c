/* Real steps against predicted ones. See profile.h. */
#include "train/profile.h"

#include <errno.h>
#include <string.h>

int profile_run(const struct profile_options *options, struct profile_summary *out)
{
    (void)options;
    memset(out, 0, sizeof *out);
    return err_set(-ENOTSUP, "sluice profile is not built yet");
}
