/* The trace ring as Chrome trace events. See chrome_trace.h. */
#include "report/chrome_trace.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "report/report_names_internal.h"
#include "swap/program.h"

enum {
    TRACKS_PER_LANE = 64, /* more requests than this at once share the last track */
    EVENT_TEXT_BYTES = 1024,
    NO_INDEX = 0xffff, /* trace_event.micro_batch_or_tile without a value */
};

/* The time when each track is free again. Events come in the order in which they ended. */
struct tracks {
    uint64_t free_ns[LANE_COUNT][TRACKS_PER_LANE];
    int used_count[LANE_COUNT];
};

static int track_of(struct tracks *tracks, const trace_event *event)
{
    uint64_t *free_ns = tracks->free_ns[event->lane];
    int track = 0;
    while (track < TRACKS_PER_LANE - 1 && free_ns[track] > event->start_ns)
        track++;
    free_ns[track] = event->end_ns;
    if (track >= tracks->used_count[event->lane])
        tracks->used_count[event->lane] = track + 1;
    return track;
}

/* Returns the thread number of a lane's track. It is never 0, because viewers take thread 0 for the
 * kernel's. */
static int thread_of(int lane, int track)
{
    return 1 + lane * TRACKS_PER_LANE + track;
}

/* Appends "forward block.3 mb 1", "update block.3 tile 2" or "read block.3 #2". */
static void append_name(profi_text *text, const trace_event *event, const chrome_trace_names *names)
{
    char plain[256];
    profi_text name;
    profi_text_init(&name, plain, sizeof plain);
    profi_append(&name, "%s", op_kind_name((enum op_kind)event->kind));
    if (event->unit < names->unit_count && names->unit_names)
        profi_append(&name, " %.180s", names->unit_names[event->unit]);
    else if (event->unit != PROGRAM_NONE)
        profi_append(&name, " unit %u", event->unit);
    if (event->micro_batch_or_tile != NO_INDEX) {
        static const char *const index_words[OP_KIND_COUNT] = {
            [OP_FORWARD] = "mb ",     [OP_RECOMPUTE] = "mb ",      [OP_BACKWARD] = "mb ",
            [OP_GRAD_ADD] = "tile ",  [OP_GRAD_CLOSE] = "tile ",   [OP_UPDATE] = "tile ",
            [OP_INIT] = "tile ",      [OP_WORKING_COPY] = "tile ", [OP_NORM_PART] = "part ",
            [OP_DIRECTION] = "tile ",
        };
        const char *word = index_words[event->kind];
        profi_append(&name, " %s%u", word ? word : "#", event->micro_batch_or_tile);
    }
    profi_append_string(text, plain);
}

static void append_event(profi_text *text, const trace_event *event, int track, uint64_t origin_ns,
                         const chrome_trace_names *names)
{
    uint64_t end_ns = event->end_ns < event->start_ns ? event->start_ns : event->end_ns;
    profi_append(
        text, "{\"ph\":\"X\",\"pid\":%u,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"cat\":\"%s\"",
        names->rank, thread_of(event->lane, track), (double)(event->start_ns - origin_ns) * 1e-3,
        (double)(end_ns - event->start_ns) * 1e-3, lane_kind_name((enum lane_kind)event->lane));
    profi_append(text, ",\"name\":");
    append_name(text, event, names);
    profi_append(text, ",\"args\":{\"step\":%llu,\"bytes\":%llu,\"op\":%u",
                 (unsigned long long)event->step, (unsigned long long)event->bytes, event->op_idx);
    if (event->program < PROGRAM_KIND_COUNT)
        profi_append(text, ",\"program\":\"%s\"",
                     program_kind_name((enum program_kind)event->program));
    profi_append(text, ",\"stall_us\":%.3f", (double)event->stall_ns * 1e-3);
    if (event->stall_ns > 0 && event->stall_lane < LANE_COUNT)
        profi_append(text, ",\"stall_lane\":\"%s\"",
                     lane_kind_name((enum lane_kind)event->stall_lane));
    else if (event->stall_is_hand_over)
        profi_append(text, ",\"stall_lane\":\"%s\"", CHROME_TRACE_HAND_OVER);
    if (event->paused_ns > 0)
        profi_append(text, ",\"paused_us\":%.3f", (double)event->paused_ns * 1e-3);
    profi_append(text, "}}");
}

static void write_metadata(FILE *file, const struct tracks *tracks, const chrome_trace_names *names)
{
    char line[EVENT_TEXT_BYTES];
    profi_text text;
    profi_text_init(&text, line, sizeof line);
    profi_append(&text, "{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":",
                 names->rank);
    profi_append_string(&text, names->process ? names->process : "sluice");
    profi_append(&text, "}}");
    if (!text.is_cut)
        fprintf(file, "%s", line);
    else
        fprintf(file, "{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{}}",
                names->rank);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int track_count = tracks->used_count[lane] > 0 ? tracks->used_count[lane] : 1;
        for (int track = 0; track < track_count; track++) {
            int tid = thread_of(lane, track);
            char number[16] = "";
            if (track > 0)
                snprintf(number, sizeof number, " %d", track + 1);
            fprintf(file,
                    ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%d,\"name\":\"thread_name\",\"args\":"
                    "{\"name\":\"%s%s\"}},\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%d,\"name\":"
                    "\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
                    names->rank, tid, lane_kind_name((enum lane_kind)lane), number, names->rank,
                    tid, tid);
        }
    }
}

static void write_drives(FILE *file, const chrome_trace_names *names)
{
    for (uint32_t i = 0; i < 2 * names->drive_count; i++) {
        const chrome_trace_drive *drive = &names->drives[i / 2];
        const chrome_trace_times *times = &drive->ways[i % 2];
        if (times->count == 0)
            continue;
        char line[EVENT_TEXT_BYTES * 2];
        profi_text text;
        profi_text_init(&text, line, sizeof line);
        profi_append(
            &text,
            "{\"ph\":\"M\",\"pid\":%u,\"name\":\"drive_times\",\"args\":{\"drive\":", names->rank);
        profi_append_string(&text, drive->path);
        profi_append(&text,
                     ",\"direction\":\"%s\",\"transfers\":%llu,\"p50_us\":%.1f,\"p95_us\":%.1f,"
                     "\"p99_us\":%.1f,\"max_us\":%.1f}}",
                     i % 2 ? "write" : "read", (unsigned long long)times->count,
                     (double)times->p50_ns * 1e-3, (double)times->p95_ns * 1e-3,
                     (double)times->p99_ns * 1e-3, (double)times->max_ns * 1e-3);
        if (!text.is_cut)
            fprintf(file, ",\n%s", line);
    }
}

static void write_events(FILE *file, const trace *ring, const chrome_trace_names *names)
{
    uint64_t begin = ring->written > ring->capacity ? ring->written - ring->capacity : 0;
    uint64_t origin_ns = UINT64_MAX;
    for (uint64_t i = begin; i < ring->written; i++) {
        const trace_event *event = &ring->events[i & (ring->capacity - 1)];
        if (event->start_ns < origin_ns)
            origin_ns = event->start_ns;
    }
    struct tracks tracks = {0};
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"events_lost\":\"%llu\"},"
            "\"traceEvents\":[\n",
            (unsigned long long)begin);
    for (uint64_t i = begin; i < ring->written; i++) {
        const trace_event *event = &ring->events[i & (ring->capacity - 1)];
        if (event->lane >= LANE_COUNT || event->kind >= OP_KIND_COUNT)
            continue; /* not a valid event: an inconsistent ring must not become a bad file */
        char line[EVENT_TEXT_BYTES * 2];
        profi_text text;
        profi_text_init(&text, line, sizeof line);
        append_event(&text, event, track_of(&tracks, event), origin_ns, names);
        if (!text.is_cut)
            fprintf(file, "%s,\n", line);
    }
    write_metadata(file, &tracks, names);
    write_drives(file, names);
    fprintf(file, "\n]}\n");
}

struct written {
    const trace *ring;
    const chrome_trace_names *names;
};

static int write_ring(void *user, FILE *out)
{
    const struct written *self = user;
    write_events(out, self->ring, self->names);
    return 0;
}

int chrome_trace_write(const char *path, int mode, const trace *ring,
                       const chrome_trace_names *names)
{
    return file_write_with(path, mode, write_ring, &(struct written){ring, names});
}
