/* report.html: what a run was and did, as one file that needs no network and nothing beside it.
 *
 *   plan.json      figures, ceilings, memory, placement, predicted timeline  -> report_plan.c
 *   metrics.jsonl  a line a step, reduced to bins as it is read              -> report_metrics.c
 *   trace.json     the ops of the last steps                                 -> report_trace.c
 *
 * The page has tables (written here, so that they are there without scripts) and pictures (drawn by
 * the page's own script from one JSON block, "report-data"). It asks for nothing from any network;
 * its policy forbids it. Works on a run that is going on: a last line without its end is not read.
 * A file that is missing or damaged is named in the page, with its line, and costs only its own
 * part.
 *
 * One thread; blocks on the files; memory grows with the trace, not with the number of steps. */
#ifndef SLUICE_PROF_REPORT_H
#define SLUICE_PROF_REPORT_H

#include "base/error.h"

/* Writes the page to `path` (NULL: report.html in the run directory), by way of a temporary file
 * beside it and a rename. ERR_INPUT where there is no such directory or it has none of a run's
 * files; -errno. */
int report_write(const char *run_dir, const char *path) MUST_CHECK;

#endif
