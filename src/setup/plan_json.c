/* plan.json: what was planned before the first step, for `report`, tools and the run that goes on.
 *
 *   world_size ... machine   a figure each, one a line (changes.c reads train_tokens so)
 *   placement                tier by kind, in ranges of units        tiers   budget and peak
 *   lanes                    bytes and seconds of the mean step      ceilings  bytes or flops per second
 *   unit_list                name, parameters, and per kind tier and bytes at rest, of each rank
 *   memory                   per tier what is in use over the predicted steady step (plan_memory.h)
 *   timeline                 per lane what it does in it
 *   reasons                  why states rest where they do */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "setup/memory_curves.h"
#include "setup/setup_internal.h"

static void put_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(out, "\\%c", *at);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fputc(*at, out);
    }
    fputc('"', out);
}

static void put_number(FILE *out, double value)
{
    if (isfinite(value))
        fprintf(out, "%.6g", value);
    else
        fputs("null", out);
}

/* One home per line of units with equal homes: "0-11": "nvme". */
static void put_homes(FILE *out, const struct setup *setup, int kind)
{
    uint32_t count = setup->net->unit_count;
    for (uint32_t first = 0; first < count;) {
        uint32_t last = first;
        while (last + 1 < count && setup->homes[kind][last + 1] == setup->homes[kind][first])
            last++;
        fprintf(out, "%s{\"units\": \"%u-%u\", \"tier\": \"%s\"}", first ? ", " : "", first, last,
                tier_name((enum tier)setup->homes[kind][first]));
        first = last + 1;
    }
}

static void put_figures(FILE *out, const struct setup *setup, const struct setup_summary *sum,
                        uint64_t train_tokens)
{
    fprintf(out,
            "{\n  \"world_size\": %u,\n  \"zero_stage\": %u,\n  \"parameters\": %" PRIu64
            ",\n  \"units\": %" PRIu64 ",\n  \"train_tokens\": %" PRIu64
            ",\n  \"tokens_per_step\": %" PRIu64
            ",\n  \"state_formats\": \"%s\",\n  \"state_bytes_per_parameter\": %.6g"
            ",\n  \"order\": \"%s\",\n  \"update\": \"%s\",\n  \"tile_elems\": %" PRIu64
            ",\n  \"held_stages\": %" PRIu64 ",\n  \"ops\": %" PRIu64
            ",\n  \"predicted_step_seconds\": %.6g,\n  \"bound_seconds\": %.6g,\n"
            "  \"machine\": \"%s\",\n",
            sum->world_size, sum->zero_stage, sum->param_count, sum->unit_count, train_tokens,
            sum->tokens_per_step, sum->state_formats, sum->state_param_bytes, sum->order,
            sum->update, sum->tile_elems, sum->held_stages, sum->op_count, sum->step_seconds,
            sum->bound_seconds, sum->machine_is_measured ? "measured" : "defaults");
    fprintf(out, "  \"model\": ");
    put_string(out, sum->model_name);
    fprintf(out, ",\n  \"machine_name\": ");
    put_string(out, sum->machine_name);
    fprintf(out, ",\n  \"device\": ");
    put_string(out, setup->gpu ? "GPU" : "CPU");
    fprintf(out,
            ",\n  \"steps\": %" PRIu64 ",\n  \"commit_every\": %" PRIu64
            ",\n  \"bottleneck\": \"%s\",\n  \"sent_bytes\": %" PRIu64 ",\n",
            setup->job->run.steps, setup->job->run.commit_every, sum->bottleneck, sum->sent_bytes);
}

/* Rates of one rank. A copy to the CPU's device arena reads and writes memory. */
static void put_ceilings(FILE *out, const plan_machine *machine)
{
    double copy = machine->dram_bytes_per_second / 2;
    double h2d = machine->device_is_cpu ? copy : machine->h2d_bytes_per_second;
    double d2h = machine->device_is_cpu ? copy : machine->d2h_bytes_per_second;
    const struct {
        const char *name;
        double rate;
    } rows[] = {
        {"read", machine->drive_read_bytes_per_second},
        {"write", machine->drive_write_bytes_per_second},
        {"h2d", h2d},
        {"d2h", d2h},
        {"comm", machine->comm_bytes_per_second},
        {"dram", machine->dram_bytes_per_second},
        {"flops", machine->device_flops_per_second},
    };
    fprintf(out, "  \"ceilings\": {");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fprintf(out, "%s\"%s\": ", i ? ", " : "", rows[i].name);
        put_number(out, rows[i].rate);
    }
    fprintf(out, "},\n");
}

/* bytes[unit][kind] at rest on this rank, in the tier that is the kind's home. */
static void sum_homes(const struct setup *setup, uint64_t (*bytes)[STATE_KIND_COUNT])
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    for (uint64_t i = 0; i < steady->home_count; i++) {
        const buffer *home = &steady->buffers[i];
        if (home->state_kind < STATE_KIND_COUNT && home->unit < setup->net->unit_count &&
            home->arena == setup->homes[home->state_kind][home->unit])
            bytes[home->unit][home->state_kind] += home->size_bytes;
    }
}

static int put_units(FILE *out, const struct setup *setup)
{
    uint32_t count = setup->net->unit_count;
    uint64_t(*bytes)[STATE_KIND_COUNT] = mem_alloc(count, sizeof *bytes, "plan.json");
    if (!bytes)
        return -ENOMEM;
    sum_homes(setup, bytes);
    fprintf(out, "  \"unit_list\": [");
    for (uint32_t u = 0; u < count; u++) {
        fprintf(out, "%s\n    {\"name\": ", u ? "," : "");
        put_string(out, setup->net->units[u].name);
        fprintf(out, ", \"parameters\": %" PRIu64 ", \"tiers\": [",
                setup->net->units[u].param_count);
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            fprintf(out, "%s\"%s\"", kind ? ", " : "", tier_name((enum tier)setup->homes[kind][u]));
        fprintf(out, "], \"bytes\": [");
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            fprintf(out, "%s%" PRIu64, kind ? ", " : "", bytes[u][kind]);
        fprintf(out, "]}");
    }
    fprintf(out, "\n  ],\n");
    mem_free(bytes);
    return 0;
}

/* The buffer that reaches a tier's highest byte in a steady step. */
static void put_peak_what(FILE *out, const struct setup *setup, const struct setup_summary *sum,
                          int tier)
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    char text[sizeof sum->peak_what[0] + 256] = "";
    uint32_t which = steady->peak_buffer[tier];
    if (sum->peak_what[tier][0]) {
        snprintf(text, sizeof text, "%s", sum->peak_what[tier]);
    } else if (which < steady->buffer_count) {
        const buffer *piece = &steady->buffers[which];
        snprintf(text, sizeof text, "%s%s%s%s%s%s",
                 piece->state_kind < STATE_KIND_COUNT
                     ? state_kind_key((enum state_kind)piece->state_kind)
                     : "scratch",
                 piece->unit < setup->net->unit_count ? " of " : "",
                 piece->unit < setup->net->unit_count ? setup->net->units[piece->unit].name : "",
                 piece->is_home ? ", at rest" : "",
                 piece->producer < steady->op_count ? ", first written by " : "",
                 piece->producer < steady->op_count
                     ? op_kind_name((enum op_kind)steady->ops[piece->producer].kind)
                     : "");
    }
    put_string(out, text);
}

static void put_point(FILE *out, const memory_point *point)
{
    fprintf(out, "[%.3f", (double)point->at_ns * 1e-3);
    for (int kind = 0; kind < PLAN_MEMORY_KINDS; kind++)
        fprintf(out, ",%" PRIu64, point->bytes[kind]);
    fputc(']', out);
}

static int put_memory(FILE *out, const struct setup *setup, const struct setup_summary *sum)
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    memory_curve *curve = mem_alloc(1, sizeof *curve, "plan.json");
    if (!curve)
        return -ENOMEM;
    int rc = 0;
    fprintf(out, "  \"memory\": {\n    \"fields\": [\"at_us\"");
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        fprintf(out, ", \"%s\"", state_kind_key((enum state_kind)kind));
    fprintf(out, ", \"other\"],\n    \"seconds\": %.9g", (double)steady->predicted_ns * 1e-9);
    for (int a = 0; rc == 0 && a < TIER_COUNT; a++) {
        rc = memory_curve_make(steady, (enum tier)a, curve);
        if (rc < 0)
            break;
        fprintf(out,
                ",\n    \"%s\": {\"peak_in_use_bytes\": %" PRIu64
                ", \"peak_at_us\": %.3f, \"highest_bytes\": %" PRIu64 ", \"highest_by\": ",
                tier_name((enum tier)a), curve->peak.total_bytes, (double)curve->peak_at_ns * 1e-3,
                steady->peak_bytes[a]);
        put_peak_what(out, setup, sum, a);
        fprintf(out, ", \"intervals\": %" PRIu64 ", \"points\": [", curve->interval_count);
        for (uint32_t i = 0; i < curve->count; i++) {
            fputs(i ? "," : "", out);
            put_point(out, &curve->points[i]);
        }
        fprintf(out, "]}");
    }
    fprintf(out, "\n  },\n");
    mem_free(curve);
    return rc;
}

static int put_timeline(FILE *out, const struct setup *setup)
{
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    memory_span *spans = mem_alloc(PLAN_SPANS_MAX, sizeof *spans, "plan.json");
    if (!spans)
        return -ENOMEM;
    int count = 0;
    fprintf(out,
            "  \"timeline\": {\n    \"fields\": [\"start_us\", \"end_us\", \"kind\", \"unit\", "
            "\"ops\"],\n    \"seconds\": %.9g,\n    \"kinds\": [",
            (double)steady->predicted_ns * 1e-9);
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        fprintf(out, "%s\"%s\"", kind ? ", " : "", op_kind_name((enum op_kind)kind));
    fprintf(out, "]");
    for (int i = 0; i < LANE_COUNT; i++) {
        uint64_t width_ns;
        count = memory_lane_spans(steady, (enum lane_kind)i, spans, &width_ns);
        if (count < 0)
            break;
        fprintf(out, ",\n    \"%s\": {\"joined_within_us\": %.3f, \"spans\": [",
                lane_kind_name((enum lane_kind)i), (double)width_ns * 1e-3);
        for (int s = 0; s < count; s++)
            fprintf(out, "%s[%.3f,%.3f,%u,%" PRId64 ",%u]", s ? "," : "",
                    (double)spans[s].start_ns * 1e-3, (double)spans[s].end_ns * 1e-3, spans[s].kind,
                    spans[s].unit == PROGRAM_NONE ? (int64_t)-1 : (int64_t)spans[s].unit,
                    spans[s].op_count);
        fprintf(out, "]}");
    }
    fprintf(out, "\n  },\n");
    mem_free(spans);
    return count < 0 ? count : 0;
}

static void put_reasons(FILE *out, const struct setup_summary *sum)
{
    fprintf(out, "  \"reasons\": [");
    for (uint32_t i = 0; i < sum->reason_count && i < PLAN_REASONS_MAX; i++) {
        fprintf(out, "%s\n    ", i ? "," : "");
        put_string(out, sum->reasons[i]);
    }
    fprintf(out, "]\n");
}

static int put_plan(FILE *out, const struct setup *setup, const struct setup_summary *sum,
                    uint64_t train_tokens)
{
    put_figures(out, setup, sum, train_tokens);
    fprintf(out, "  \"placement\": {");
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        fprintf(out, "%s\n    \"%s\": [", kind ? "," : "", state_kind_key((enum state_kind)kind));
        put_homes(out, setup, kind);
        fprintf(out, "]");
    }
    fprintf(out, "\n  },\n  \"tiers\": {");
    for (int a = 0; a < TIER_COUNT; a++)
        fprintf(out, "%s\n    \"%s\": {\"budget_bytes\": %" PRIu64 ", \"peak_bytes\": %" PRIu64 "}",
                a ? "," : "", tier_name((enum tier)a), sum->budget_bytes[a], sum->peak_bytes[a]);
    fprintf(out, "\n  },\n  \"lanes\": {");
    for (int i = 0; i < LANE_COUNT; i++)
        fprintf(out, "%s\n    \"%s\": {\"bytes\": %" PRIu64 ", \"predicted_seconds\": %.6g}",
                i ? "," : "", lane_kind_name((enum lane_kind)i), sum->lane_bytes[i],
                sum->lane_seconds[i]);
    fprintf(out, "\n  },\n");
    put_ceilings(out, &setup->plan.machine);
    TRY(put_units(out, setup));
    TRY(put_memory(out, setup, sum));
    TRY(put_timeline(out, setup));
    put_reasons(out, sum);
    fprintf(out, "}\n");
    return 0;
}

int setup_plan_json(const struct setup *self, uint64_t train_tokens, char **text)
{
    struct setup_summary sum;
    setup_summarize(self, &sum);
    *text = NULL;
    size_t text_bytes = 0;
    FILE *out = open_memstream(text, &text_bytes);
    if (!out)
        return err_errno(errno, "no memory for plan.json");
    int rc = put_plan(out, self, &sum, train_tokens);
    if (fclose(out) != 0 && rc == 0)
        rc = err_errno(ENOMEM, "no memory for plan.json");
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
