/* Tables that are also pictures: stalls, lanes against their ceilings, the placement. They need no
 * script. See report_internal.h. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report/report_internal.h"

/* Writes one bar of a unit, divided by what it waited for. longest_us fills the width. */
static void put_stall(FILE *out, const reporti_trace *t, const reporti_stall *stall,
                      double longest_us)
{
    char text[REPORT_TEXT_BYTES];
    fputs("<tr>", out);
    fputs("<th scope=\"row\">", out);
    reporti_html(out, stall->unit == PROGRAM_NONE ? "(no unit)" : t->names[stall->unit]);
    fputs("</th><td class=\"bar\"><div class=\"track\">", out);
    for (int cause = 0; cause < STALL_CAUSES; cause++)
        if (stall->us[cause] > 0)
            fprintf(out, "<i class=\"lane-%s\" style=\"width:%.2f%%\"></i>",
                    reporti_stall_name(cause), 100 * stall->us[cause] / longest_us);
    fprintf(out, "</div></td><td>%s</td><td class=\"left\">",
            reporti_seconds(stall->total_us * 1e-6, text));
    bool is_first = true;
    for (int cause = 0; cause < STALL_CAUSES; cause++) {
        if (stall->us[cause] < 0.005 * stall->total_us)
            continue;
        fprintf(out, "%s%s %s", is_first ? "" : ", ", reporti_stall_name(cause),
                reporti_seconds(stall->us[cause] * 1e-6, text));
        is_first = false;
    }
    fputs("</td></tr>\n", out);
}

/* The legend, and a sentence for each cause that needs one. */
static void put_causes(FILE *out, const reporti_trace *t)
{
    static const char *const meanings[STALL_CAUSES] = {
        [LANE_READ] = "A read counts until its checksum is compared.",
        [LANE_COMM] = "comm is waiting for other ranks and for what they send.",
        [STALL_HAND_OVER] =
            "hand-over is no transfer: the op was ready, and the time went into learning that the "
            "op before it had ended and into waking its thread. Much of it means short ops, or a "
            "machine with other work.",
        [STALL_UNKNOWN] = "unknown: the trace does not say.",
    };
    double sums[STALL_CAUSES] = {0};
    for (uint32_t i = 0; i < t->stall_count; i++)
        for (int cause = 0; cause < STALL_CAUSES; cause++)
            sums[cause] += t->stalls[i].us[cause];
    fputs("<p class=\"legend\">waited for: ", out);
    for (int cause = 0; cause < STALL_CAUSES; cause++)
        if (sums[cause] > 0)
            fprintf(out, "<span><i class=\"lane-%s\"></i>%s</span> ", reporti_stall_name(cause),
                    reporti_stall_name(cause));
    fputs("</p>\n", out);
    fputs("<p class=\"quiet\">", out);
    for (int cause = 0; cause < STALL_CAUSES; cause++)
        if (sums[cause] > 0 && meanings[cause])
            fprintf(out, "%s ", meanings[cause]);
    fputs("</p>\n", out);
}

void reporti_put_stalls(FILE *out, const reporti_run *run)
{
    enum { ROWS_SHOWN = 16, ROWS_MAX = 400 };
    const reporti_trace *t = &run->trace;
    char text[REPORT_TEXT_BYTES];
    double total = 0;
    for (uint32_t i = 0; i < t->stall_count; i++)
        total += t->stalls[i].total_us;
    if (!t->has_step || t->stall_count == 0) {
        fputs(t->has_step ? "<p class=\"none\">Nothing waited.</p>\n"
                          : "<p class=\"none\">No trace of a step.</p>\n",
              out);
        return;
    }
    fprintf(out,
            "<p class=\"quiet\">Time in which the cores (or the GPU) were idle right before an op "
            "of the unit, in the mean over %u step%s of trace.json: %s of a step in all.</p>\n",
            t->stall_steps, t->stall_steps == 1 ? "" : "s", reporti_seconds(total * 1e-6, text));
    put_causes(out, t);
    uint32_t rows = t->stall_count < ROWS_MAX ? t->stall_count : ROWS_MAX;
    for (uint32_t i = 0; i < rows; i++) {
        if (i == ROWS_SHOWN)
            fprintf(out, "</tbody></table></div><details><summary>%u more units</summary>",
                    rows - i);
        if (i == 0 || i == ROWS_SHOWN)
            reporti_begin_table(out, "Stall by unit", "bars",
                                "unit|bar:stall|time|left:waited for");
        put_stall(out, t, &t->stalls[i], fmax(t->stalls[0].total_us, 1e-9));
    }
    fprintf(out, "</tbody></table></div>%s\n", rows > ROWS_SHOWN ? "</details>" : "");
    if (t->stall_count > rows)
        fprintf(out, "<p class=\"quiet\">%u units with less are left out.</p>\n",
                t->stall_count - rows);
}

/* The rate of a lane while it was busy, as a share of the plan's ceiling; NAN: one is not known. */
static double reached_share(const reporti_run *run, int lane)
{
    char path[64];
    snprintf(path, sizeof path, "ceilings.%s", lane_kind_name((enum lane_kind)lane));
    double ceiling = reporti_number(run->plan, path);
    double busy = run->metrics.recent.mean.lanes[lane].busy_seconds;
    return ceiling > 0 && busy > 0 ? run->metrics.recent.mean.lanes[lane].bytes / busy / ceiling
                                   : NAN;
}

/* Says why lanes were faster than the ceiling, where that is so in the table. */
static void put_faster_lanes(FILE *out, const reporti_run *run)
{
    static const double visible = 1.005; /* as 101% in the table */
    bool drives = false, copies = false, ranks = false;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        bool is_over = reached_share(run, lane) >= visible;
        drives = drives || (is_over && (lane == LANE_READ || lane == LANE_WRITE));
        copies = copies || (is_over && (lane == LANE_H2D || lane == LANE_D2H));
        ranks = ranks || (is_over && lane == LANE_COMM);
    }
    if (!drives && !copies && !ranks)
        return;
    fputs("<p class=\"quiet\">More than 100%: the ceiling is what the plan assumed, not a limit of "
          "the machine.",
          out);
    if (json_is_false(reporti_at(run->plan, "machine.is_measured")))
        fputs(" It was not measured here: <code>sluice probe</code> measures it.", out);
    else if (reporti_is_disturbed(run))
        fputs(" It was measured beside other work, and was low for that: <code>sluice probe</code> "
              "on a quiet machine measures it again.",
              out);
    if (drives)
        fputs(" A drive is faster than in the probe while its own cache takes the bytes, or when "
              "only one direction runs.",
              out);
    if (copies)
        fputs(" A copy on the CPU is faster than DRAM where its bytes are still in a cache.", out);
    if (ranks)
        fputs(" Ranks of one host send through memory, faster where it is still in a cache.", out);
    fputs("</p>\n", out);
}

/* Writes a lane's mean rate over the step, and its rate while it was busy, against the plan's
 * ceiling. */
static void put_lane(FILE *out, const reporti_run *run, int lane)
{
    const reporti_recent *recent = &run->metrics.recent;
    char path[64], text[REPORT_TEXT_BYTES];
    const char *name = lane_kind_name((enum lane_kind)lane);
    snprintf(path, sizeof path, "ceilings.%s", name);
    double ceiling = reporti_number(run->plan, path), bytes = recent->mean.lanes[lane].bytes;
    double busy = recent->mean.lanes[lane].busy_seconds;
    double mean = bytes / fmax(recent->mean.seconds, 1e-12), peak = busy > 0 ? bytes / busy : 0;
    double whole = ceiling > 0 ? ceiling : fmax(peak, mean);
    fprintf(out, "<tr><th scope=\"row\">%s</th>", name);
    fprintf(
        out,
        "<td class=\"bar\"><div class=\"track over\"><i class=\"busy\" style=\"width:%.2f%%\"></i>"
        "<i class=\"mean\" style=\"width:%.2f%%\"></i></div></td>",
        fmin(100, 100 * peak / whole), fmin(100, 100 * mean / whole));
    reporti_put_cell(out, reporti_rate(mean, text));
    reporti_put_cell(out, reporti_rate(peak, text));
    reporti_put_cell(out, reporti_rate(ceiling > 0 ? ceiling : NAN, text));
    if (ceiling > 0)
        fprintf(out, "<td>%.0f%%</td>", busy > 0 ? 100 * reached_share(run, lane) : 0);
    else
        fputs("<td>\xe2\x80\x93</td>", out);
    reporti_put_cell(out, reporti_bytes(bytes, text));
    snprintf(path, sizeof path, "lanes.%s.bytes", name);
    reporti_put_cell(out, reporti_bytes(reporti_number(run->plan, path), text));
    reporti_put_cell(out, reporti_seconds(busy, text));
    reporti_put_cell(out, reporti_seconds(recent->mean.lanes[lane].stall_seconds, text));
    fputs("</tr>\n", out);
}

/* Writes what a lane did not move because no token chose the experts, in the run and as the plan
 * expected it. */
static void put_spared(FILE *out, const reporti_run *run, int lane)
{
    char path[64], text[REPORT_TEXT_BYTES];
    const char *name = lane_kind_name((enum lane_kind)lane);
    double bytes = run->metrics.recent.mean.lanes[lane].bytes;
    double spared = run->metrics.recent.mean.lanes[lane].spared_bytes;
    snprintf(path, sizeof path, "lanes.%s.spared_bytes", name);
    double expected = reporti_number(run->plan, path);
    if (!(spared > 0 || expected > 0))
        return;
    fprintf(out, "<tr><th scope=\"row\">%s</th>", name);
    reporti_put_cell(out, reporti_bytes(bytes, text));
    reporti_put_cell(out, reporti_bytes(spared, text));
    fprintf(out, "<td>%.0f%%</td>", 100 * spared / fmax(bytes + spared, 1));
    reporti_put_cell(out, reporti_bytes(expected, text));
    fputs("</tr>\n", out);
}

void reporti_put_experts(FILE *out, const reporti_run *run)
{
    const reporti_recent *recent = &run->metrics.recent;
    double passes = recent->mean.expert_passes;
    double planned = reporti_number(run->plan, "experts.passes");
    if (recent->count == 0 || !(passes > 0))
        return;
    fprintf(out,
            "<section id=\"experts\">\n<h2>Experts that were hit</h2>\n<p class=\"quiet\">%.1f%% "
            "of %.0f passes of experts in a step had a token that chose them",
            100 * recent->mean.expert_passes_hit / passes, passes);
    if (planned > 0)
        fprintf(out, " (%.1f%% expected, if all experts are chosen alike)",
                100 * reporti_number(run->plan, "experts.passes_hit") / planned);
    fputs(". The others were left where they rest.</p>\n", out);
    reporti_begin_table(out, "Bytes of a step, by lane", NULL,
                        "lane|moved|spared|of all|spared, expected");
    for (int lane = 0; lane < LANE_COUNT; lane++)
        put_spared(out, run, lane);
    reporti_end_table(out);
    fputs("</section>\n", out);
}

static void put_products(FILE *out, const reporti_run *run)
{
    double reached = run->metrics.recent.mean.tflops * 1e12;
    double world = fmax(1, reporti_number(run->plan, "world_size"));
    double ceiling = reporti_number(run->plan, "ceilings.flops") * world;
    if (!(reached > 0))
        return;
    fprintf(out, "<p class=\"quiet\">The model's own arithmetic ran at %.3g TFLOP/s",
            reached * 1e-12);
    if (ceiling > 0)
        fprintf(out, ", %.0f%% of the %.3g TFLOP/s that the plan takes for matrix products",
                100 * reached / ceiling, ceiling * 1e-12);
    fputs(".</p>\n", out);
}

void reporti_put_lanes(FILE *out, const reporti_run *run)
{
    const reporti_recent *recent = &run->metrics.recent;
    if (recent->count == 0) {
        fputs("<p class=\"none\">No steps.</p>\n", out);
        return;
    }
    const json_t *is_measured = reporti_at(run->plan, "machine.is_measured");
    fprintf(out,
            "<p class=\"quiet\">Mean of the last %u steps, of one rank. The full width is the "
            "ceiling that the plan takes%s.</p>\n"
            "<p class=\"legend\"><span><i class=\"mean\"></i>over the whole step</span> <span><i "
            "class=\"busy\"></i>while busy</span></p>\n",
            recent->count,
            json_is_true(is_measured)    ? reporti_is_disturbed(run)
                                               ? ", as measured on this machine beside other work"
                                               : ", as measured on this machine"
            : json_is_false(is_measured) ? ", a stated default"
                                         : "");
    reporti_begin_table(out, "Lanes", "bars",
                        "lane|bar:share of the ceiling|over the step|while busy|ceiling|reached|"
                        "moved a step|predicted|busy|waited for");
    int shown = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++)
        if (recent->mean.lanes[lane].bytes > 0) {
            put_lane(out, run, lane);
            shown++;
        }
    if (shown == 0)
        fputs("<tr><td colspan=\"10\" class=\"left\">No lane moved a byte.</td></tr>", out);
    reporti_end_table(out);
    put_faster_lanes(out, run);
    put_products(out, run);
}

static const char *home_of(const json_t *unit, size_t kind)
{
    const char *tier = json_string_value(json_array_get(json_object_get(unit, "tiers"), kind));
    return tier ? tier : "";
}

static double bytes_of(const json_t *unit, size_t kind)
{
    const json_t *value = json_array_get(json_object_get(unit, "bytes"), kind);
    return json_is_number(value) ? json_number_value(value) : 0;
}

static bool has_equal_homes(const json_t *one, const json_t *other)
{
    bool same = true;
    for (size_t kind = 0; same && kind < STATE_KIND_COUNT; kind++)
        same = strcmp(home_of(one, kind), home_of(other, kind)) == 0;
    return same;
}

/* Returns the CSS class of a tier's colour; a name that is not a tier has none. */
static const char *tier_class(const char *tier)
{
    for (int i = 0; i < TIER_WORD_COUNT; i++)
        if (i != TIER_AUTO && strcmp(tier, tier_name((enum tier)i)) == 0)
            return tier_name(tier_of_home((unsigned)i));
    return "none";
}

/* Writes units [first, end) in one row, because all their homes are equal. */
static void put_placement_row(FILE *out, const json_t *list, size_t first, size_t end)
{
    const json_t *unit = json_array_get(list, first);
    char text[REPORT_TEXT_BYTES];
    double parameters = 0;
    for (size_t u = first; u < end; u++)
        parameters += fmax(0, reporti_number(json_array_get(list, u), "parameters"));
    fputs("<tr><th scope=\"row\">", out);
    reporti_html(out, reporti_text(unit, "name"));
    if (end - first > 1) {
        fputs(" \xe2\x80\x93 ", out);
        reporti_html(out, reporti_text(json_array_get(list, end - 1), "name"));
        fprintf(out, "<span>%zu units</span>", end - first);
    }
    fprintf(out, "</th><td>%s</td>", reporti_count(parameters, text));
    for (size_t kind = 0; kind < STATE_KIND_COUNT; kind++) {
        const char *tier = home_of(unit, kind);
        double bytes = 0;
        for (size_t u = first; u < end; u++)
            bytes += bytes_of(json_array_get(list, u), kind);
        fprintf(out, "<td class=\"home %s\">", tier_class(tier));
        reporti_html(out, bytes > 0 || strcmp(tier, "recompute") == 0 ? tier : "\xe2\x80\x93");
        if (bytes > 0)
            fprintf(out, "<span>%s</span>", reporti_bytes(bytes, text));
        fputs("</td>", out);
    }
    fputs("</tr>\n", out);
}

void reporti_put_placement(FILE *out, const reporti_run *run)
{
    const json_t *list = json_object_get(run->plan, "unit_list");
    size_t count = json_array_size(list);
    if (count == 0) {
        fputs("<p class=\"none\">The plan does not list the units.</p>\n", out);
        return;
    }
    fputs("<p class=\"legend\"><span><i class=\"device\"></i>device</span> <span><i "
          "class=\"host\"></i>host</span> <span><i class=\"nvme\"></i>nvme</span> <span><i "
          "class=\"recompute\"></i>computed again</span></p>\n",
          out);
    static_assert(STATE_KIND_COUNT == 5, "each kind has a column");
    reporti_begin_table(out, "Placement", "map",
                        "unit|size|parameters|gradients|optimizer|activations|inner activations");
    for (size_t first = 0; first < count;) {
        size_t end = first + 1;
        while (end < count &&
               has_equal_homes(json_array_get(list, first), json_array_get(list, end)))
            end++;
        put_placement_row(out, list, first, end);
        first = end;
    }
    reporti_end_table(out);
    fputs("<p class=\"quiet\">Bytes at rest on each rank. Neighbours with "
          "equal homes share a row.</p>\n",
          out);
}
