/* The memory of one arena while a program is scheduled: which stretch belongs to which buffer, and
 * where the next buffer goes.
 *
 *   floor                                                         budget
 *   |homes|  piece A (live)  | piece B (dead) | never used | piece C (live) | ...
 *
 * A dead piece remembers the buffer that used the bytes last, since a buffer that takes them over
 * must be ordered after it. A place is the lowest that fits (first fit). To find it without a scan
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
#include "base/tile.h"
#include "plan/simulate_internal.h"

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
    mem_free(space->classes);
    memset(space, 0, sizeof *space);
}

/* The class of a buffer, made when it is the first of its kind; NULL without memory. A program has
 * few classes, and neighbours in serial order mostly share one, so the search begins at the last
 * answer. */
static struct plani_space_class *class_of(struct plani_space *space, uint64_t size_bytes,
                                          uint64_t residue)
{
    for (uint32_t tried = 0; tried < space->class_count; tried++) {
        uint32_t i = (space->class_recent + tried) % space->class_count;
        struct plani_space_class *item = &space->classes[i];
        if (item->size_bytes == size_bytes && item->residue == residue) {
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
                                        .lowest = plani_align_offset(space->floor_bytes, residue)};
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

int plani_space_find(struct plani_space *space, uint64_t size_bytes, uint64_t residue,
                     uint64_t *offset)
{
    *offset = UINT64_MAX;
    struct plani_space_class *sought = class_of(space, size_bytes, residue);
    if (!sought)
        return -ENOMEM;
    if (sought->lowest == UINT64_MAX)
        return 0;
    uint64_t place = sought->lowest;
    for (uint64_t i = piece_above(space, place); i < space->count; i++) {
        const struct plani_piece *item = &space->pieces[i];
        if (!item->live || item->end <= place)
            continue;
        if (item->begin >= place + size_bytes)
            break;
        place = plani_align_offset(item->end, residue);
    }
    sought->lowest = place + size_bytes <= space->budget_bytes ? place : UINT64_MAX;
    *offset = sought->lowest;
    return 0;
}

int plani_space_take(struct plani_space *space, uint64_t begin, uint64_t end, uint32_t fresh,
                     plani_space_order *order, void *context)
{
    if (space->count + 2 >= space->capacity) {
        uint64_t wanted = space->capacity ? space->capacity * 2 : 256;
        void *bigger = mem_resize(space->pieces, wanted, sizeof *space->pieces, "plan space");
        if (!bigger)
            return -ENOMEM;
        space->pieces = bigger;
        space->capacity = wanted;
    }
    assert(begin < end && begin >= space->floor_bytes && end <= space->budget_bytes);
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
    return 0;
}

void plani_space_release(struct plani_space *space, uint64_t begin)
{
    uint64_t idx = piece_above(space, begin);
    assert(idx < space->count && space->pieces[idx].begin == begin && space->pieces[idx].live);
    space->pieces[idx].live = false; /* a live piece is never cut: it is the whole buffer */
    uint64_t low = idx, high = idx + 1;
    while (low > 0 && !space->pieces[low - 1].live)
        low--;
    while (high < space->count && !space->pieces[high].live)
        high++;
    uint64_t gap_begin = low > 0 ? space->pieces[low - 1].end : space->floor_bytes;
    uint64_t gap_end = high < space->count ? space->pieces[high].begin : space->budget_bytes;
    for (uint32_t i = 0; i < space->class_count; i++) {
        struct plani_space_class *item = &space->classes[i];
        uint64_t place = plani_align_offset(gap_begin, item->residue);
        if (place < item->lowest && place + item->size_bytes <= gap_end)
            item->lowest = place;
    }
}
