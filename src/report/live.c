/* The live line. See live.h. */
#include "report/live.h"

#include <math.h>
#include <stdio.h>

#include "report/report_names_internal.h"

/* The parts, in their order on the line. */
enum part { PART_STEP, PART_LOSS, PART_SPEED, PART_LANES, PART_STALL, PART_LEFT, PART_COUNT };

/* The parts in the order in which they are left out. */
static const enum part give_up_order[] = {PART_LEFT, PART_LANES, PART_STALL, PART_SPEED, PART_LOSS};
enum { GIVE_UP_COUNT = sizeof give_up_order / sizeof give_up_order[0] };

/* Appends "950", "1.23k" or "4.56M". */
static void append_rate(profi_text *text, double value)
{
    if (!isfinite(value) || value < 0)
        profi_append(text, "?");
    else if (value < 999.5)
        profi_append(text, "%.*f", value < 99.95 ? 1 : 0, value);
    else if (value < 999500)
        profi_append(text, "%.3gk", value * 1e-3);
    else
        profi_append(text, "%.3gM", value * 1e-6);
}

/* Appends "12s", "3m05s", "1h02m" or "4d03h". */
static void append_duration(profi_text *text, double seconds)
{
    if (!isfinite(seconds) || seconds > 1e9) {
        profi_append(text, "?");
        return;
    }
    uint64_t whole = (uint64_t)(seconds + 0.5);
    if (whole < 60)
        profi_append(text, "%us", (unsigned)whole);
    else if (whole < 3600)
        profi_append(text, "%um%02us", (unsigned)(whole / 60), (unsigned)(whole % 60));
    else if (whole < 86400)
        profi_append(text, "%uh%02um", (unsigned)(whole / 3600), (unsigned)(whole / 60 % 60));
    else
        profi_append(text, "%ud%02uh", (unsigned)(whole / 86400), (unsigned)(whole / 3600 % 24));
}

static void append_lanes(profi_text *text, const live_status *status)
{
    bool is_any = false;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (status->lane_bytes[lane] == 0 || !(status->step_seconds > 0))
            continue;
        double rate = (double)status->lane_bytes[lane] / status->step_seconds * 1e-9;
        profi_append(text, "%s%s %.2f", is_any ? " " : "", lane_kind_name((enum lane_kind)lane),
                     rate);
        is_any = true;
    }
    if (is_any)
        profi_append(text, " GB/s");
}

static void append_separator(profi_text *text)
{
    if (text->length > 0)
        profi_append(text, "  ");
}

/* Appends one part with the gap before it; nothing if the status has no value for it. */
static void append_part(profi_text *text, const live_status *status, enum part part)
{
    char body[LIVE_LINE_BYTES];
    profi_text out;
    profi_text_init(&out, body, sizeof body);
    switch (part) {
    case PART_STEP:
        profi_append(&out, "step %llu", (unsigned long long)status->step);
        if (status->steps > 0)
            profi_append(&out, "/%llu", (unsigned long long)status->steps);
        break;
    case PART_LOSS:
        profi_append(&out, "loss %.4f%s", status->loss, status->skipped ? " (skipped)" : "");
        break;
    case PART_SPEED:
        append_rate(&out, status->tokens_per_second);
        profi_append(&out, " tok/s");
        break;
    case PART_LANES:
        append_lanes(&out, status);
        break;
    case PART_STALL:
        if (isfinite(status->stall_share))
            profi_append(&out, "stall %.0f%%", 100 * status->stall_share);
        break;
    case PART_LEFT:
        if (status->seconds_left >= 0) {
            profi_append(&out, "left ");
            append_duration(&out, status->seconds_left);
        }
        break;
    case PART_COUNT:
        break;
    }
    if (out.length == 0)
        return;
    append_separator(text);
    profi_append(text, "%s", body);
}

size_t live_format(const live_status *status, unsigned width, char *text, size_t text_bytes)
{
    bool is_given_up[PART_COUNT] = {false};
    char line[LIVE_LINE_BYTES];
    profi_text out;
    for (int next = 0;; next++) {
        profi_text_init(&out, line, sizeof line);
        for (int part = 0; part < PART_COUNT; part++)
            if (!is_given_up[part])
                append_part(&out, status, (enum part)part);
        if (out.length <= width || next == GIVE_UP_COUNT)
            break;
        is_given_up[give_up_order[next]] = true;
    }
    size_t length = out.length < width ? out.length : width;
    profi_text cut;
    profi_text_init(&cut, text, text_bytes);
    profi_append(&cut, "%.*s", (int)length, line);
    return cut.length;
}

size_t live_format_plain(const live_status *status, char *text, size_t text_bytes)
{
    profi_text out;
    profi_text_init(&out, text, text_bytes);
    append_part(&out, status, PART_STEP);
    append_part(&out, status, PART_LOSS);
    if (status->has_router_losses)
        profi_append(&out, "  balance %.4f  router z %.4g", status->balance_loss,
                     status->router_z_loss);
    profi_append(&out, "  grad norm %.4g  lr %.4g  %.3f s", status->grad_norm, status->lr,
                 status->step_seconds);
    append_part(&out, status, PART_SPEED);
    append_part(&out, status, PART_LANES);
    append_part(&out, status, PART_STALL);
    append_part(&out, status, PART_LEFT);
    return out.length;
}
