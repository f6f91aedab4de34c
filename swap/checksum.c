/* The table of sums: the distinct ranges that programs write, sorted, with a flag and a sum each.
 * See checksum.h. Only creation and checksum_add allocate. */
#include "swap/checksum.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/size.h"

struct entry {
    checksum_extent extent;
    /* The furthest end of this and all earlier extents: a walk backward from a place stops as soon
     * as no earlier extent can overlap. */
    uint64_t reach;
    bool known; /* has a sum */
};
typedef struct entry entry;

struct checksum_table {
    uint64_t count;
    entry *entries; /* [count] by offset, then size */
};

static const char tag[] = "checksums";

/* ---- creation ---- */

static int compare_extents(const void *left, const void *right)
{
    const checksum_extent *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (a->size_bytes > b->size_bytes) - (a->size_bytes < b->size_bytes);
}

static uint64_t end_of(const checksum_extent *extent)
{
    return extent->offset + extent->size_bytes;
}

/* Sorts the first `count` entries, drops duplicates and finds what each reaches. */
static void sort_entries(checksum_table *self, uint64_t count)
{
    entry *list = self->entries;
    uint64_t reach = 0;
    if (count > 0)
        qsort(list, count, sizeof *list, compare_extents);
    self->count = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (self->count > 0 && compare_extents(&list[i], &list[self->count - 1]) == 0)
            continue;
        reach = size_max(reach, end_of(&list[i].extent));
        list[self->count++] = (entry){.extent = list[i].extent, .reach = reach};
    }
}

/* The range of the nvme arena that a write op fills; false for any other op. */
static bool extent_range(const program *prog, const op *item, checksum_extent *extent)
{
    const operand *found = item->kind == OP_WRITE ? op_operand(item, ROLE_TARGET) : NULL;
    if (!found || prog->buffers[found->buffer_idx].arena != TIER_NVME)
        return false;
    *extent = (checksum_extent){
        .offset = prog->buffers[found->buffer_idx].offset_bytes + found->offset_bytes,
        .size_bytes = found->size_bytes,
    };
    return true;
}

int checksum_create(const program *const *programs, uint32_t program_count, checksum_table **out)
{
    *out = NULL;
    checksum_table *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    checksum_extent one;
    uint64_t all = 0, used = 0;
    for (uint32_t p = 0; p < program_count; p++)
        for (uint64_t i = 0; i < programs[p]->op_count; i++)
            all += extent_range(programs[p], &programs[p]->ops[i], &one);
    self->entries = mem_alloc(all, sizeof *self->entries, tag);
    if (!self->entries) {
        checksum_destroy(self);
        return -ENOMEM;
    }
    for (uint32_t p = 0; p < program_count; p++)
        for (uint64_t i = 0; i < programs[p]->op_count; i++)
            if (extent_range(programs[p], &programs[p]->ops[i], &one))
                self->entries[used++].extent = one;
    sort_entries(self, all);
    entry *shrunk = mem_resize(self->entries, self->count, sizeof *shrunk, tag);
    if (shrunk)
        self->entries = shrunk;
    *out = self;
    return 0;
}

int checksum_add(checksum_table *self, const checksum_extent *extents, uint64_t count)
{
    if (checksum_count(self) > 0)
        return err_set(-EINVAL, "checksums: ranges are added to a table that has sums");
    entry *grown = mem_resize(self->entries, self->count + count, sizeof *grown, tag);
    if (!grown)
        return -ENOMEM;
    self->entries = grown;
    for (uint64_t i = 0; i < count; i++)
        grown[self->count + i] = (entry){.extent = extents[i]};
    sort_entries(self, self->count + count);
    return 0;
}

void checksum_destroy(checksum_table *self)
{
    if (!self)
        return;
    mem_free(self->entries);
    mem_free(self);
}

/* ---- use ---- */

/* How many extents begin before `offset`. */
static uint64_t count_before(const checksum_table *self, uint64_t offset)
{
    uint64_t low = 0, high = self->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (self->entries[middle].extent.offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t checksum_count(const checksum_table *self)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < self->count; i++)
        count += self->entries[i].known;
    return count;
}

void checksum_forget(checksum_table *self, uint64_t offset, uint64_t size_bytes)
{
    assert(size_bytes <= UINT64_MAX - offset);
    for (uint64_t i = count_before(self, offset + size_bytes);
         i-- > 0 && self->entries[i].reach > offset;)
        if (end_of(&self->entries[i].extent) > offset)
            self->entries[i].known = false;
}

int checksum_put(checksum_table *self, const checksum_extent *extent)
{
    checksum_forget(self, extent->offset, extent->size_bytes);
    for (uint64_t i = count_before(self, extent->offset); i < self->count; i++) {
        entry *item = &self->entries[i];
        if (item->extent.offset != extent->offset)
            break;
        if (item->extent.size_bytes != extent->size_bytes)
            continue;
        item->extent.sum = extent->sum;
        item->known = true;
        return 0;
    }
    return err_set(-ENOENT, "checksums: no program writes %llu bytes at %llu of the nvme tier",
                   (unsigned long long)extent->size_bytes, (unsigned long long)extent->offset);
}

int checksum_verify(const checksum_table *self, uint64_t offset, uint64_t size_bytes,
                    const void *data, checksum_extent *expected, uint64_t *found)
{
    for (uint64_t i = count_before(self, offset); i < self->count; i++) {
        const checksum_extent *extent = &self->entries[i].extent;
        if (extent->offset >= offset + size_bytes)
            break;
        if (end_of(extent) > offset + size_bytes || !self->entries[i].known)
            continue;
        *found = checksum_sum((const unsigned char *)data + (extent->offset - offset),
                              extent->size_bytes, 0, 0);
        if (*found != extent->sum) {
            *expected = *extent;
            return ERR_CORRUPT;
        }
    }
    return 0;
}
