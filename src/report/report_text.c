/* Lines, notes, and text for people. See report_internal.h. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "report/chrome_trace.h"
#include "report/report_internal.h"

enum { LINE_BYTES = 1 << 16, PATH_PART_BYTES = 64 };

void reporti_note(reporti_notes *self, const char *format, ...)
{
    if (self->count == REPORT_NOTES_MAX) {
        self->unsaid++;
        return;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(self->text[self->count++], REPORT_NOTE_BYTES, format, args);
    va_end(args);
}

int reporti_lines_open(reporti_lines *self, const char *path, bool *found)
{
    memset(self, 0, sizeof *self);
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo would wait for a writer */
    *found = fd >= 0;
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return err_errno(errno, "cannot open %s", path);
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        *found = false;
        return err_set(ERR_INPUT, "%s is not a regular file", path);
    }
    self->text = mem_alloc(LINE_BYTES, 1, "a line of a run's file");
    self->file = fdopen(fd, "r");
    if (!self->text || !self->file) {
        if (self->file)
            fclose(self->file);
        else
            close(fd);
        mem_free(self->text);
        memset(self, 0, sizeof *self);
        *found = false;
        return err_set(-ENOMEM, "no memory to read %s", path);
    }
    return 0;
}

bool reporti_lines_next(reporti_lines *self)
{
    int letter;
    self->length = 0;
    self->is_whole = self->is_long = false;
    while ((letter = getc_unlocked(self->file)) != EOF) {
        if (letter == '\n') {
            self->is_whole = true;
            break;
        }
        if (self->length < LINE_BYTES - 1)
            self->text[self->length++] = (char)letter;
        else
            self->is_long = true;
    }
    self->text[self->length] = '\0';
    self->number++;
    return self->is_whole || self->length > 0;
}

void reporti_lines_close(reporti_lines *self)
{
    if (self->file)
        fclose(self->file);
    mem_free(self->text);
    memset(self, 0, sizeof *self);
}

double reporti_mean(const reporti_value *value)
{
    return value->count > 0 ? value->sum / (double)value->count : NAN;
}

const json_t *reporti_at(const json_t *root, const char *path)
{
    while (root && *path) {
        char part[PATH_PART_BYTES];
        size_t length = strcspn(path, ".");
        if (length >= sizeof part)
            return NULL;
        memcpy(part, path, length);
        part[length] = '\0';
        root = json_object_get(root, part);
        path += length + (path[length] == '.');
    }
    return root;
}

double reporti_number(const json_t *root, const char *path)
{
    const json_t *value = reporti_at(root, path);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const char *reporti_text(const json_t *root, const char *path)
{
    const char *text = json_string_value(reporti_at(root, path));
    return text ? text : "";
}

const char *reporti_lane_name(int lane)
{
    return lane < LANE_COUNT ? lane_kind_name((enum lane_kind)lane) : "unknown";
}

const char *reporti_stall_name(int cause)
{
    return cause == STALL_HAND_OVER ? CHROME_TRACE_HAND_OVER : reporti_lane_name(cause);
}

bool reporti_is_disturbed(const reporti_run *run)
{
    return json_is_true(reporti_at(run->plan, "machine.disturbed"));
}

const char *reporti_op_name(int kind)
{
    return kind < OP_KIND_COUNT ? op_kind_name((enum op_kind)kind) : "other";
}

void reporti_html(FILE *out, const char *text)
{
    for (const char *at = text; *at;) {
        int count = utf8_character(at, strnlen(at, 4));
        unsigned char first = (unsigned char)*at;
        if (*at == '&')
            fputs("&amp;", out);
        else if (*at == '<')
            fputs("&lt;", out);
        else if (*at == '>')
            fputs("&gt;", out);
        else if (*at == '"')
            fputs("&quot;", out);
        else if (count <= 0 || (first < 0x20 && first != '\n' && first != '\t') || first == 0x7f)
            fputs("&#xfffd;", out);
        else
            fwrite(at, 1, (size_t)count, out);
        at += count > 0 ? count : 1;
    }
}

void reporti_begin_table(FILE *out, const char *label, const char *css_class, const char *columns)
{
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"%s\">", label);
    if (css_class)
        fprintf(out, "<table class=\"%s\">", css_class);
    else
        fprintf(out, "<table><caption>%s</caption>", label);
    fputs("<thead><tr>", out);
    for (const char *at = columns; *at; at += *at == '|') {
        size_t length = strcspn(at, "|"), prefix = strcspn(at, ":|");
        fputs("<th scope=\"col\"", out);
        if (prefix < length) {
            fprintf(out, " class=\"%.*s\"", (int)prefix, at);
            at += prefix + 1;
            length -= prefix + 1;
        }
        fprintf(out, ">%.*s</th>", (int)length, at);
        at += length;
    }
    fputs("</tr></thead><tbody>\n", out);
}

void reporti_end_table(FILE *out)
{
    fputs("</tbody></table></div>\n", out);
}

void reporti_put_cell(FILE *out, const char *text)
{
    fputs("<td>", out);
    reporti_html(out, text);
    fputs("</td>", out);
}

static int by_size(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

double reporti_median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, by_size);
    return count > 0 ? values[count / 2] : NAN;
}

/* Writes three significant digits, with the unit that fits. */
static char *with_unit(double value, double step, const char *const *units, int unit_count,
                       char *text)
{
    if (!isfinite(value)) {
        snprintf(text, REPORT_TEXT_BYTES, "\xe2\x80\x93");
        return text;
    }
    int unit = 0;
    while (unit < unit_count - 1 && fabs(value) >= step * 0.9995) {
        value /= step;
        unit++;
    }
    int digits = fabs(value) >= 99.95 || (unit == 0 && value == floor(value)) ? 0
                 : fabs(value) >= 9.995                                       ? 1
                                                                              : 2;
    snprintf(text, REPORT_TEXT_BYTES, "%.*f%s%s", digits, value, units[unit][0] ? " " : "",
             units[unit]);
    return text;
}

char *reporti_bytes(double bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return with_unit(bytes, 1024, units, 6, text);
}

char *reporti_rate(double bytes_per_second, char *text)
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    return with_unit(bytes_per_second, 1000, units, 5, text);
}

char *reporti_count(double count, char *text)
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    return with_unit(count, 1000, units, 5, text);
}

char *reporti_seconds(double seconds, char *text)
{
    static const char *const units[] = {"ns", "\xc2\xb5s", "ms"};
    if (isfinite(seconds) && fabs(seconds) < 0.9995)
        return with_unit(seconds * 1e9, 1000, units, 3, text);
    if (isfinite(seconds) && seconds >= 7200)
        snprintf(text, REPORT_TEXT_BYTES, "%.0f h %02.0f min", floor(seconds / 3600),
                 floor(fmod(seconds, 3600) / 60));
    else if (isfinite(seconds) && seconds >= 120)
        snprintf(text, REPORT_TEXT_BYTES, "%.0f min %02.0f s", floor(seconds / 60),
                 floor(fmod(seconds, 60)));
    else
        return with_unit(seconds, 1e9, (const char *const[]){"s"}, 1, text);
    return text;
}

char *reporti_plain(double value, char *text)
{
    if (isfinite(value))
        snprintf(text, REPORT_TEXT_BYTES, "%.4g", value);
    else
        snprintf(text, REPORT_TEXT_BYTES, "\xe2\x80\x93");
    return text;
}
