/* report.html: what a run was and did, as one file that needs no network.
 *
 * Reads plan.json, metrics.jsonl and trace.json of the run directory; what is missing is named in the page. */
#ifndef SLUICE_PROF_REPORT_H
#define SLUICE_PROF_REPORT_H

#include "base/error.h"

/* Writes the page to `path` (NULL: report.html in the run directory), by way of a temporary file and a rename.
 * ERR_INPUT where there is no run or its files cannot be read; -errno. */
int report_write(const char *run_dir, const char *path) MUST_CHECK;

#endif
