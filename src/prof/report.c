/* The page. See report.h. */
#include "prof/report.h"

#include <errno.h>

int report_write(const char *run_dir, const char *path)
{
    (void)path;
    return err_set(-ENOTSUP, "%s: reports are not built yet", run_dir);
}
