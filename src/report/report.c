/* Reads a run's files and fills the template of the page. See report.h. */
#include "report/report.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "report/report_internal.h"

enum { PLAN_BYTES_MAX = 1 << 27 };

/* Writes the time at which a file of the run was written, UTC, or "" if there is no file. Returns
 * the time, or 0. */
static time_t date_of(const char *dir, const char *name, char text[32])
{
    char path[PATH_MAX];
    struct stat info;
    struct tm parts;
    text[0] = '\0';
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path ||
        stat(path, &info) != 0 || !S_ISREG(info.st_mode) || !gmtime_r(&info.st_mtime, &parts))
        return 0;
    strftime(text, 32, "%Y-%m-%d %H:%M UTC", &parts);
    return info.st_mtime;
}

static void read_dates(reporti_run *run)
{
    static const char *const names[] = {"plan.json", "metrics.jsonl", "trace.json"};
    time_t newest = 0;
    date_of(run->dir, "plan.json", run->began);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[32];
        time_t at = date_of(run->dir, names[i], text);
        if (at > newest) {
            newest = at;
            memcpy(run->ended, text, sizeof run->ended);
        }
    }
}

/* Reads the last part of the directory's real path, because a name such as "." says nothing. */
static void read_name(reporti_run *run)
{
    char *whole = realpath(run->dir, NULL);
    const char *slash = whole ? strrchr(whole, '/') : NULL;
    snprintf(run->name, sizeof run->name, "%s", slash && slash[1] ? slash + 1 : run->dir);
    free(whole);
}

static int read_plan(reporti_run *run)
{
    char path[PATH_MAX];
    struct stat info;
    json_error_t error;
    run->plan = json_object();
    if (!run->plan)
        return err_set(-ENOMEM, "no memory for the report");
    snprintf(path, sizeof path, "%s/plan.json", run->dir);
    if (stat(path, &info) != 0) {
        reporti_note(
            &run->notes,
            "plan.json is not there: what was predicted is not known, nor where states rest.");
        return 0;
    }
    if (!S_ISREG(info.st_mode) || info.st_size > PLAN_BYTES_MAX) {
        reporti_note(&run->notes, "plan.json is not a file of a plan's size, and is left out.");
        return 0;
    }
    json_t *plan = json_load_file(path, 0, &error);
    if (!json_is_object(plan)) {
        if (plan)
            reporti_note(&run->notes, "plan.json is left out: it is not an object.");
        else
            reporti_note(&run->notes, "plan.json is left out: line %d, column %d: %s.", error.line,
                         error.column, error.text);
        json_decref(plan);
        return 0;
    }
    json_decref(run->plan);
    run->plan = plan;
    run->has_plan = true;
    if (!json_is_object(json_object_get(plan, "memory_over_step")))
        reporti_note(
            &run->notes,
            "plan.json has no memory over the step, no predicted timeline and no ceilings.");
    return 0;
}

static int read_run(const char *run_dir, reporti_run *run)
{
    char path[PATH_MAX], plan_path[PATH_MAX];
    struct stat info;
    run->dir = run_dir;
    if (stat(run_dir, &info) != 0)
        return err_set(ERR_INPUT, "cannot read run directory %s: %s", run_dir, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return err_set(ERR_INPUT, "%s is not a directory: report wants a run directory (run.dir)",
                       run_dir);
    if (strlen(run_dir) > sizeof path - 32)
        return err_set(ERR_INPUT, "the path of the run directory is longer than %zu bytes",
                       sizeof path - 32);
    snprintf(plan_path, sizeof plan_path, "%s/plan.json", run_dir);
    snprintf(path, sizeof path, "%s/job.json", run_dir);
    run->has_job = access(path, F_OK) == 0;
    read_name(run);
    read_dates(run);
    TRY(read_plan(run));
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    TRY(reporti_read_metrics(path, &run->notes, &run->metrics));
    snprintf(path, sizeof path, "%s/trace.json", run_dir);
    TRY(reporti_read_trace(path, &run->notes, &run->trace));
    if (!run->has_plan && !run->metrics.is_present && !run->trace.is_present && !run->has_job)
        return err_set(ERR_INPUT,
                       access(plan_path, F_OK) == 0
                           ? "%s holds no run: its plan.json is damaged, and there is no "
                             "metrics.jsonl, trace.json or job.json"
                           : "%s holds no run: no plan.json, metrics.jsonl, trace.json or job.json",
                       run_dir);
    return 0;
}

static void put_title(FILE *out, const reporti_run *run)
{
    const char *net = reporti_text(run->plan, "model");
    reporti_html(out, run->name);
    if (*net) {
        fputs(" \xc2\xb7 ", out);
        reporti_html(out, net);
    }
}

static void put_dates(FILE *out, const reporti_run *run)
{
    fputs("run directory <code>", out);
    reporti_html(out, run->dir);
    fputs("</code>", out);
    if (run->began[0])
        fprintf(out, " \xc2\xb7 planned %s", run->began);
    if (run->ended[0])
        fprintf(out, " \xc2\xb7 last written %s", run->ended);
}

/* Writes the part that stands for @NAME@. Returns 1 if there is no such part. */
static int put_part(FILE *out, const char *name, size_t length, const reporti_run *run)
{
    static const struct {
        const char *name;
        void (*put)(FILE *out, const reporti_run *run);
    } parts[] = {
        {"TITLE", put_title},
        {"DATES", put_dates},
        {"NOTES", reporti_put_notes},
        {"SUMMARY", reporti_put_summary},
        {"STEPS", reporti_put_steps},
        {"TIMELINE", reporti_put_timeline},
        {"STALLS", reporti_put_stalls},
        {"LANES", reporti_put_lanes},
        {"EXPERTS", reporti_put_experts},
        {"MEMORY", reporti_put_memory},
        {"PLACEMENT", reporti_put_placement},
        {"REASONS", reporti_put_reasons},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strlen(parts[i].name) == length && memcmp(parts[i].name, name, length) == 0) {
            parts[i].put(out, run);
            return 0;
        }
    if (length == 4 && memcmp(name, "DATA", 4) == 0)
        return reporti_put_data(out, run);
    if (length == 7 && memcmp(name, "VERSION", 7) == 0) {
        fputs(SLUICE_VERSION, out);
        return 0;
    }
    return 1;
}

static int put_page(FILE *out, const reporti_run *run)
{
    const char *at = reporti_page, *end = reporti_page + reporti_page_bytes;
    while (at < end) {
        const char *mark = memchr(at, '@', (size_t)(end - at));
        if (!mark)
            mark = end;
        fwrite(at, 1, (size_t)(mark - at), out);
        if (mark == end)
            break;
        size_t length = strspn(mark + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        int rc = length > 0 && mark[1 + length] == '@' ? put_part(out, mark + 1, length, run) : 1;
        if (rc < 0)
            return rc;
        if (rc == 1)
            fputc('@', out);
        at = rc == 1 ? mark + 1 : mark + length + 2;
    }
    return 0;
}

static int fill_page(void *user, FILE *out)
{
    return put_page(out, user);
}

static int write_page(const char *path, int mode, reporti_run *run)
{
    int rc = file_write_with(path, mode, fill_page, run);
    if (rc == -ENOENT || rc == -ENOTDIR)
        return err_set(ERR_INPUT, "cannot write the report's file %s: its folder is not there",
                       path);
    return rc;
}

/* The permissions of the files that the page shows. */
static int mode_of_run(const char *run_dir)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_dir);
    return file_mode_of(path);
}

int report_write(const char *run_dir, const char *path)
{
    char standard[PATH_MAX];
    reporti_run *run = mem_alloc(1, sizeof *run, "report");
    if (!run)
        return -ENOMEM;
    int rc = read_run(run_dir, run);
    if (rc == 0) {
        snprintf(standard, sizeof standard, "%s/report.html", run_dir);
        rc = path ? write_page(path, FILE_SHARED, run)
                  : write_page(standard, mode_of_run(run_dir), run);
    }
    reporti_trace_fini(&run->trace);
    json_decref(run->plan);
    mem_free(run);
    return rc;
}
