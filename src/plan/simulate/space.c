/* The memory of one arena while a program is scheduled: which stretch belongs to which buffer, and
 * where the next buffer goes.
 *
 *   floor                                                         budget
 *   |homes|  piece A (live)  | piece B (dead) | never used | piece C (live) | ...
 *
 * A dead piece remembers the buffer that used the bytes last, since a buffer that takes them over
 * must be ordered after it. A place is the lowest that fits (first fit). The gaps between live
 * pieces are listed beside the pieces: there are far fewer of them. To find a place without a scan
 * from the floor, buffers of equal size and residue form a class, and each class knows an address
 * below which there is no place for it. Taking memory keeps that true, and giving memory back can
 * only open a place inside the gap that it makes or widens. So a class that found nothing costs
 * nothing until memory that suits it is free again. Heap memory, freed by plani_space_fini; one
 * thread. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "plan/simulate/simulate_internal.h"

void plani_space_init(struct plani_space *space, uint64_t floor_bytes, uint64_t budget_bytes)
{
    memset(space, 0, sizeof *space);
    assert(floor_bytes <= budget_bytes);
    space->floor_bytes = floor_bytes;
    space->budget_bytes = budget_bytes;
}

void plani_space_fini(struct plani_space *space)
{
    mem_free(space->pieces);
    mem_free(space->gaps);
    mem_free(space->classes);
    memset(space, 0, sizeof *space);
}

/* The class of a buffer, made when it is the first of its kind; NULL without memory. A program has
 * few classes, and neighbours in serial order mostly share one, so the search begins at the last
 * answer. */
static struct plani_space_class *class_of(struct plani_space *space, uint64_t size_bytes,
                                          uint64_t residue, uint64_t from_bytes)
{
    for (uint32_t tried = 0, i = space->class_recent; tried < space->class_count; tried++, i++) {
        i = i < space->class_count ? i : 0;
        struct plani_space_class *item = &space->classes[i];
        if (item->size_bytes == size_bytes && item->residue == residue &&
            item->from_bytes == from_bytes) {
            space->class_recent = i;
            return item;
        }
    }
    if (space->class_count == space->class_capacity) {
        uint32_t wanted = space->class_capacity ? 2 * space->class_capacity : 16;
        void *bigger = mem_resize(space->classes, wanted, sizeof *space->classes, "plan space");
        if (!bigger)
            return NULL;
        space->classes = bigger;
        space->class_capacity = wanted;
    }
    struct plani_space_class *fresh = &space->classes[space->class_count++];
    *fresh = (struct plani_space_class){.size_bytes = size_bytes,
                                        .residue = residue,
                                        .from_bytes = from_bytes,
                                        .lowest = plani_align_offset(from_bytes, residue)};
    return fresh;
}

/* The first piece that ends above the address. */
static uint64_t piece_above(const struct plani_space *space, uint64_t address)
{
    uint64_t low = 0, high = space->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (space->pieces[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The first gap that ends above the address. */
static uint64_t gap_above(const struct plani_space *space, uint64_t address)
{
    uint64_t low = 0, high = space->gap_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (space->gaps[middle].end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_in_gap(const struct plani_space *space, uint64_t idx, uint64_t begin, uint64_t end)
{
    return idx < space->gap_count && space->gaps[idx].begin <= begin && end <= space->gaps[idx].end;
}

/* Replaces `old_count` gaps from `first` on by `fresh`. */
static void replace_gaps(struct plani_space *space, uint64_t first, uint64_t old_count,
                         const struct plani_gap *fresh, uint64_t fresh_count)
{
    struct plani_gap *at = space->gaps + first;
    assert(first + old_count <= space->gap_count);
    assert(space->gap_count + fresh_count <= space->gap_capacity + old_count);
    if (old_count != fresh_count)
        memmove(at + fresh_count, at + old_count,
                (space->gap_count - first - old_count) * sizeof *at);
    memcpy(at, fresh, fresh_count * sizeof *at);
    space->gap_count += fresh_count - old_count;
}

/* Room for all gaps that there can be after the next take: at most one more than pieces, of which a
 * take adds two. Releasing then needs no memory. A new space is one gap. -ENOMEM. */
static int grow_gaps(struct plani_space *space)
{
    bool is_new = !space->gaps;
    uint64_t most = space->count + 3;
    if (most <= space->gap_capacity)
        return 0;
    uint64_t wanted = size_max(2 * most, 64);
    void *bigger = mem_resize(space->gaps, wanted, sizeof *space->gaps, "plan space");
    if (!bigger)
        return -ENOMEM;
    space->gaps = bigger;
    space->gap_capacity = wanted;
    if (is_new && space->floor_bytes < space->budget_bytes)
        space->gaps[space->gap_count++] =
            (struct plani_gap){space->floor_bytes, space->budget_bytes};
    return 0;
}

int plani_space_find(struct plani_space *space, uint64_t size_bytes, uint64_t residue,
                     uint64_t from_bytes, uint64_t *offset)
{
    *offset = UINT64_MAX;
    struct plani_space_class *sought =
        class_of(space, size_bytes, residue, size_max(from_bytes, space->floor_bytes));
    if (!sought)
        return -ENOMEM;
    TRY(grow_gaps(space));
    const uint64_t lowest = sought->lowest;
    if (lowest == UINT64_MAX)
        return 0;
    sought->lowest = UINT64_MAX;
    for (uint64_t i = gap_above(space, lowest); i < space->gap_count; i++) {
        const struct plani_gap *gap = &space->gaps[i];
        uint64_t place = size_max(plani_align_offset(gap->begin, residue), lowest);
        if (place + size_bytes <= gap->end) {
            sought->lowest = place;
            space->gap_recent = i;
            break;
        }
    }
    *offset = sought->lowest;
    return 0;
}

bool plani_space_is_free(const struct plani_space *space, uint64_t begin, uint64_t end)
{
    if (!space->gaps) /* new */
        return space->floor_bytes <= begin && end <= space->budget_bytes;
    return is_in_gap(space, gap_above(space, begin), begin, end);
}

/* Takes [begin, end) out of the gap that it lies in, which mostly is the one found last. */
static void cut_gap(struct plani_space *space, uint64_t begin, uint64_t end)
{
    uint64_t idx = space->gap_recent, count = 0;
    if (!is_in_gap(space, idx, begin, end))
        idx = gap_above(space, begin);
    assert(is_in_gap(space, idx, begin, end));
    const struct plani_gap old = space->gaps[idx];
    struct plani_gap rest[2];
    if (old.begin < begin)
        rest[count++] = (struct plani_gap){old.begin, begin};
    if (end < old.end)
        rest[count++] = (struct plani_gap){end, old.end};
    replace_gaps(space, idx, 1, rest, count);
}

/* Puts [begin, end) back and returns the gap that it became a part of. */
static struct plani_gap widen_gap(struct plani_space *space, uint64_t begin, uint64_t end)
{
    uint64_t after = gap_above(space, begin), first = after, count = 0;
    struct plani_gap whole = {begin, end};
    assert(after == space->gap_count || space->gaps[after].begin >= end); /* not free yet */
    if (after < space->gap_count && space->gaps[after].begin == end) {
        whole.end = space->gaps[after].end;
        count++;
    }
    if (after > 0 && space->gaps[after - 1].end == begin) {
        whole.begin = space->gaps[--first].begin;
        count++;
    }
    replace_gaps(space, first, count, &whole, 1);
    return whole;
}

int plani_space_take(struct plani_space *space, uint64_t begin, uint64_t end, uint32_t fresh,
                     plani_space_order *order, void *context)
{
    assert(begin < end && begin >= space->floor_bytes && end <= space->budget_bytes);
    if (!order) {
        TRY(grow_gaps(space));
        space->count++;
        cut_gap(space, begin, end);
        return 0;
    }
    if (space->count + 2 >= space->capacity) {
        uint64_t wanted = space->capacity ? space->capacity * 2 : 256;
        void *bigger = mem_resize(space->pieces, wanted, sizeof *space->pieces, "plan space");
        if (!bigger)
            return -ENOMEM;
        space->pieces = bigger;
        space->capacity = wanted;
    }
    TRY(grow_gaps(space));
    uint64_t first = piece_above(space, begin), last = first; /* pieces [first, last) overlap */
    struct plani_piece left = {0}, right = {0};
    uint32_t before = PROGRAM_NONE;
    while (last < space->count && space->pieces[last].begin < end) {
        struct plani_piece *item = &space->pieces[last];
        assert(!item->live);
        if (item->buffer_idx != before)
            TRY(order(context, item->buffer_idx, fresh));
        before = item->buffer_idx;
        if (item->begin < begin)
            left = (struct plani_piece){item->begin, begin, item->buffer_idx, false};
        if (item->end > end)
            right = (struct plani_piece){end, item->end, item->buffer_idx, false};
        last++;
    }
    struct plani_piece fill[3];
    uint64_t fill_count = 0;
    if (left.end > left.begin)
        fill[fill_count++] = left;
    fill[fill_count++] = (struct plani_piece){begin, end, fresh, true};
    if (right.end > right.begin)
        fill[fill_count++] = right;
    if (fill_count != last - first)
        memmove(space->pieces + first + fill_count, space->pieces + last,
                (space->count - last) * sizeof *space->pieces);
    memcpy(space->pieces + first, fill, fill_count * sizeof *fill);
    space->count += fill_count - (last - first);
    cut_gap(space, begin, end);
    return 0;
}

void plani_space_release(struct plani_space *space, uint64_t begin, uint64_t end)
{
    if (space->pieces) {
        struct plani_piece *item = &space->pieces[piece_above(space, begin)];
        assert(item->begin == begin && item->end == end && item->live);
        item->live = false; /* a live piece is never cut: it is the whole buffer */
    } else {
        space->count--;
    }
    struct plani_gap gap = widen_gap(space, begin, end);
    for (uint32_t i = 0; i < space->class_count; i++) {
        struct plani_space_class *item = &space->classes[i];
        if (gap.begin >= item->lowest)
            continue;
        uint64_t place = plani_align_offset(size_max(gap.begin, item->from_bytes), item->residue);
        if (place < item->lowest && place + item->size_bytes <= gap.end)
            item->lowest = place;
    }
}
