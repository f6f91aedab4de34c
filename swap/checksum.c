/* The table of sums: the distinct ranges that programs write, sorted, with a flag and a sum each.
 * See checksum.h. Only creation allocates.
 *
 *   extents by offset, then size; reach[i] = the furthest end of extents 0 .. i, so a walk backward
 *   from a place stops as soon as no earlier extent can overlap */
#include "swap/checksum.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/size.h"

struct checksum_table {
    uint64_t extent_count;
    checksum_extent *extents; /* [extent_count] by offset, then size */
    uint64_t *reach;          /* [extent_count] */
    uint8_t *known;           /* [extent_count] 1: has a sum */
};

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

/* Sorts the extents and drops duplicates. Returns how many are left. */
static uint64_t sort_extents(checksum_extent *list, uint64_t count)
{
    uint64_t kept = 0;
    if (count > 0)
        qsort(list, count, sizeof *list, compare_extents);
    for (uint64_t i = 0; i < count; i++)
        if (i == 0 || compare_extents(&list[i], &list[kept - 1]) != 0)
            list[kept++] = list[i];
    return kept;
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

/* Collects all ranges, sorted and without duplicates. The caller frees *extents. */
static int collect_extents(const program *const *programs, uint32_t program_count,
                           checksum_extent **extents, uint64_t *count)
{
    *extents = NULL;
    *count = 0;
    checksum_extent one;
    uint64_t all = 0;
    for (uint32_t p = 0; p < program_count; p++)
        for (uint64_t i = 0; i < programs[p]->op_count; i++)
            all += extent_range(programs[p], &programs[p]->ops[i], &one);
    checksum_extent *list = mem_alloc(all, sizeof *list, "checksums");
    if (!list)
        return -ENOMEM;
    uint64_t used = 0;
    for (uint32_t p = 0; p < program_count; p++)
        for (uint64_t i = 0; i < programs[p]->op_count; i++)
            if (extent_range(programs[p], &programs[p]->ops[i], &one))
                list[used++] = one;
    *extents = list;
    *count = sort_extents(list, all);
    return 0;
}

static void fill_reach(checksum_table *self)
{
    uint64_t reach = 0;
    for (uint64_t i = 0; i < self->extent_count; i++) {
        reach = size_max(reach, end_of(&self->extents[i]));
        self->reach[i] = reach;
    }
}

int checksum_create(const program *const *programs, uint32_t program_count, checksum_table **out)
{
    *out = NULL;
    checksum_table *self = mem_alloc(1, sizeof *self, "checksums");
    if (!self)
        return -ENOMEM;
    checksum_extent *all;
    int rc = collect_extents(programs, program_count, &all, &self->extent_count);
    if (rc == 0) { /* shrinks the list, which had one entry per op */
        self->extents = mem_resize(all, self->extent_count, sizeof *all, "checksums");
        if (!self->extents)
            mem_free(all);
    }
    self->reach = mem_alloc(self->extent_count, sizeof *self->reach, "checksums");
    self->known = mem_alloc(self->extent_count, sizeof *self->known, "checksums");
    if (!self->extents || !self->reach || !self->known) {
        checksum_destroy(self);
        return -ENOMEM;
    }
    fill_reach(self);
    *out = self;
    return 0;
}

int checksum_add(checksum_table *self, const checksum_extent *extents, uint64_t count)
{
    uint64_t before = self->extent_count, all = before + count;
    if (checksum_count(self) > 0)
        return err_set(-EINVAL, "checksums: ranges are added to a table that has sums");
    checksum_extent *list = mem_alloc(all, sizeof *list, "checksums");
    uint64_t *reach = mem_alloc(all, sizeof *reach, "checksums");
    uint8_t *known = mem_alloc(all, sizeof *known, "checksums");
    if (!list || !reach || !known) {
        mem_free(list);
        mem_free(reach);
        mem_free(known);
        return -ENOMEM;
    }
    for (uint64_t i = 0; i < all; i++)
        list[i] = i < before ? self->extents[i] : extents[i - before];
    mem_free(self->extents);
    mem_free(self->reach);
    mem_free(self->known);
    self->extents = list;
    self->reach = reach;
    self->known = known;
    self->extent_count = sort_extents(list, all);
    fill_reach(self);
    return 0;
}

void checksum_destroy(checksum_table *self)
{
    if (!self)
        return;
    mem_free(self->extents);
    mem_free(self->reach);
    mem_free(self->known);
    mem_free(self);
}

/* ---- use ---- */

/* How many extents begin before `offset`. */
static uint64_t count_before(const checksum_table *self, uint64_t offset)
{
    uint64_t low = 0, high = self->extent_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (self->extents[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

uint64_t checksum_capacity(const checksum_table *self)
{
    return self->extent_count;
}

uint64_t checksum_count(const checksum_table *self)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < self->extent_count; i++)
        count += self->known[i];
    return count;
}

void checksum_forget(checksum_table *self, uint64_t offset, uint64_t size_bytes)
{
    assert(size_bytes <= UINT64_MAX - offset);
    for (uint64_t i = count_before(self, offset + size_bytes); i-- > 0 && self->reach[i] > offset;)
        if (end_of(&self->extents[i]) > offset)
            self->known[i] = 0;
}

int checksum_put(checksum_table *self, const checksum_extent *extent)
{
    checksum_forget(self, extent->offset, extent->size_bytes);
    for (uint64_t i = count_before(self, extent->offset);
         i < self->extent_count && self->extents[i].offset == extent->offset; i++) {
        if (self->extents[i].size_bytes != extent->size_bytes)
            continue;
        self->extents[i].sum = extent->sum;
        self->known[i] = 1;
        return 0;
    }
    return err_set(-ENOENT, "checksums: no program writes %llu bytes at %llu of the nvme tier",
                   (unsigned long long)extent->size_bytes, (unsigned long long)extent->offset);
}

int checksum_verify(const checksum_table *self, uint64_t offset, uint64_t size_bytes,
                    const void *data, checksum_extent *expected, uint64_t *found)
{
    for (uint64_t i = count_before(self, offset);
         i < self->extent_count && self->extents[i].offset < offset + size_bytes; i++) {
        const checksum_extent *extent = &self->extents[i];
        if (end_of(extent) > offset + size_bytes || !self->known[i])
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
