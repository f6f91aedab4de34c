/* The curves and the timeline of plan.json. See memory_curves.h. */
#include "setup/memory_curves.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"

/* A transient comes or goes. */
struct change {
    uint64_t at_ns, bytes;
    uint8_t kind, comes;
};

static int by_time(const void *a, const void *b)
{
    const struct change *one = a, *other = b;
    if (one->at_ns != other->at_ns)
        return one->at_ns < other->at_ns ? -1 : 1;
    return (int)one->comes - (int)other->comes; /* what goes makes room for what comes */
}

static uint8_t kind_of(const buffer *piece)
{
    return piece->state_kind < STATE_KIND_COUNT ? piece->state_kind : STATE_KIND_COUNT;
}

/* Fills changes[2 * buffer_count], by time, and what rests. Returns their number. */
static uint64_t list_changes(const program *prog, enum tier arena, struct change *changes,
                             memory_point *now)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->buffer_count; i++) {
        const buffer *piece = &prog->buffers[i];
        if (piece->arena != arena)
            continue;
        if (piece->is_home || piece->producer >= prog->op_count ||
            piece->last_reader >= prog->op_count) {
            now->bytes[kind_of(piece)] += piece->size_bytes;
            now->total_bytes += piece->size_bytes;
            continue;
        }
        uint64_t begin = prog->ops[piece->producer].predicted_start_ns;
        uint64_t end = size_max(begin, prog->ops[piece->last_reader].predicted_end_ns);
        changes[count++] = (struct change){begin, piece->size_bytes, kind_of(piece), 1};
        changes[count++] = (struct change){end, piece->size_bytes, kind_of(piece), 0};
    }
    qsort(changes, count, sizeof *changes, by_time);
    return count;
}

/* Adds the state of one interval: to the slot of its time where slots are all that there is room
 * for. */
static void add_point(memory_curve *out, const memory_point *now, uint64_t slot_ns)
{
    out->interval_count++;
    if (now->total_bytes > out->peak.total_bytes || out->interval_count == 1) {
        out->peak = *now;
        out->peak_at_ns = now->at_ns;
    }
    memory_point *last = out->count > 0 ? &out->points[out->count - 1] : NULL;
    bool shares = last && slot_ns > 0 && last->at_ns / slot_ns == now->at_ns / slot_ns;
    if (shares || (last && out->count == PLAN_MEMORY_POINTS_MAX)) {
        uint64_t at_ns = last->at_ns;
        if (now->total_bytes > last->total_bytes)
            *last = *now;
        last->at_ns = at_ns;
        return;
    }
    out->points[out->count++] = *now;
}

static void walk(const struct change *changes, uint64_t count, memory_point now, uint64_t slot_ns,
                 memory_curve *out)
{
    memset(out, 0, sizeof *out);
    for (uint64_t i = 0;; i++) {
        if (i == count || changes[i].at_ns != now.at_ns) {
            add_point(out, &now, slot_ns);
            if (i == count)
                break;
            now.at_ns = changes[i].at_ns;
        }
        uint64_t bytes = changes[i].comes ? changes[i].bytes : 0 - changes[i].bytes;
        now.bytes[changes[i].kind] += bytes;
        now.total_bytes += bytes;
    }
}

int memory_curve_make(const program *prog, enum tier arena, memory_curve *out)
{
    memory_point rest = {0};
    struct change *changes =
        mem_alloc(2 * prog->buffer_count, sizeof *changes, "changes of memory");
    if (!changes)
        return -ENOMEM;
    uint64_t count = list_changes(prog, arena, changes, &rest);
    walk(changes, count, rest, 0, out);
    if (out->interval_count > PLAN_MEMORY_POINTS_MAX)
        walk(changes, count, rest, prog->predicted_ns / (PLAN_MEMORY_POINTS_MAX - 2) + 1, out);
    mem_free(changes);
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const memory_span *one = a, *other = b;
    if (one->start_ns != other->start_ns)
        return one->start_ns < other->start_ns ? -1 : 1;
    return (one->end_ns > other->end_ns) - (one->end_ns < other->end_ns);
}

/* Neighbours that lie within width_ns, gaps included, become one span. Returns how many are
 * left. */
static uint64_t join(memory_span *spans, uint64_t count, uint64_t width_ns)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < count; i++) {
        memory_span *last = used > 0 ? &spans[used - 1] : NULL;
        if (last && size_max(last->end_ns, spans[i].end_ns) - last->start_ns < width_ns) {
            last->end_ns = size_max(last->end_ns, spans[i].end_ns);
            last->op_count += spans[i].op_count;
        } else {
            spans[used++] = spans[i];
        }
    }
    return used;
}

int memory_lane_spans(const program *prog, enum lane_kind which, memory_span *spans,
                      uint64_t *width_ns)
{
    *width_ns = 0;
    memory_span *all = mem_alloc(prog->op_count, sizeof *all, "spans of a lane");
    if (!all)
        return -ENOMEM;
    uint64_t count = 0;
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        if (item->lane != which)
            continue;
        all[count++] = (memory_span){
            .start_ns = item->predicted_start_ns,
            .end_ns = item->predicted_end_ns,
            .op_count = 1,
            .unit = item->unit,
            .kind = item->kind,
        };
    }
    qsort(all, count, sizeof *all, by_start);
    for (uint64_t width = prog->predicted_ns / 100000 + 1; count > PLAN_SPANS_MAX; width *= 2) {
        *width_ns = width;
        count = join(all, count, width);
    }
    memcpy(spans, all, count * sizeof *all);
    mem_free(all);
    return (int)count;
}
