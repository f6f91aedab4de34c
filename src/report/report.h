/* report.html: what a run was and did, as one file that needs neither a network nor other files.
 *
 *   plan.json      figures, ceilings, memory, placement, predicted timeline
 *   metrics.jsonl  a line per step, reduced to bins as it is read
 *   trace.json     the ops of the last steps
 *
 * The page has tables and pictures. The tables are written here, so that they show without scripts.
 * The page's own script draws the pictures from one JSON block, "report-data". The page asks for
 * nothing from any network; its policy forbids it. A run that is still going on can be reported: a
 * last line without its end is not read. If a file is missing or damaged, the page names it, with
 * the line, and lacks only that file's part.
 *
 * One thread. Blocks on the files. Memory grows with the trace, not with the number of steps. */
#ifndef SLUICE_REPORT_REPORT_H
#define SLUICE_REPORT_REPORT_H

#include "base/error.h"

/* Writes the page to `path` (NULL: report.html in the run directory) by way of a temporary file
 * beside it and a rename. In the run directory the page has the permissions of metrics.jsonl,
 * elsewhere those of the umask. Returns ERR_INPUT if there is no such directory or it has none of a
 * run's files; else -errno. */
int report_write(const char *run_dir, const char *path) MUST_CHECK;

#endif
