/* The table of places: entries sorted by logical offset and found by binary search. See
 * place_table.h. Creation allocates the table, and scratch for its checks; nothing else
 * allocates. */
#include "swap/place_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct place_table {
    uint64_t count;
    place_entry *entries; /* [count] by logical_offset; they do not overlap */
};

static const char tag[] = "places";

/* ---- creation ---- */

/* The bytes of the slab that an entry may be written to. */
struct slab_span {
    uint64_t begin, end;
    uint32_t unit, tile;
};
typedef struct slab_span slab_span;

static int compare_entries(const void *left, const void *right)
{
    const place_entry *a = left, *b = right;
    return (a->logical_offset > b->logical_offset) - (a->logical_offset < b->logical_offset);
}

static int compare_spans(const void *left, const void *right)
{
    const slab_span *a = left, *b = right;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static int check_entry(const place_entry *item)
{
    uint64_t last = UINT64_MAX - item->size_bytes; /* the highest offset that does not wrap */
    if (item->size_bytes == 0 || item->logical_offset > last || item->offset[0] > last ||
        item->offset[1] > last)
        return err_set(-EINVAL,
                       "places: unit %u, tile %u: %llu bytes at %llu, on the slab at %llu or %llu, "
                       "is no range",
                       item->unit, item->tile, (unsigned long long)item->size_bytes,
                       (unsigned long long)item->logical_offset,
                       (unsigned long long)item->offset[0], (unsigned long long)item->offset[1]);
    if (item->newest > PLACE_NONE || item->committed > PLACE_NONE ||
        (item->newest == PLACE_NONE && item->committed != PLACE_NONE))
        return err_set(-EINVAL,
                       "places: unit %u, tile %u: place %u is said to be its newest and %u "
                       "committed; a place is 0 or 1, or %d for none",
                       item->unit, item->tile, item->newest, item->committed, (int)PLACE_NONE);
    return 0;
}

static int check_logical(const place_table *self)
{
    for (uint64_t i = 1; i < self->count; i++) {
        const place_entry *before = &self->entries[i - 1], *item = &self->entries[i];
        if (item->logical_offset - before->logical_offset < before->size_bytes)
            return err_set(-EINVAL,
                           "places: unit %u, tile %u (%llu bytes at %llu) and unit %u, tile %u (at "
                           "%llu) overlap in the nvme arena",
                           before->unit, before->tile, (unsigned long long)before->size_bytes,
                           (unsigned long long)before->logical_offset, item->unit, item->tile,
                           (unsigned long long)item->logical_offset);
    }
    return 0;
}

/* Checks all places of all entries. Two equal places of an entry count once. */
static int check_slab(const place_table *self)
{
    slab_span *spans = mem_alloc(2 * self->count, sizeof *spans, tag);
    if (!spans)
        return -ENOMEM;
    uint64_t used = 0;
    for (uint64_t i = 0; i < self->count; i++) {
        const place_entry *item = &self->entries[i];
        int place_count = item->offset[0] != item->offset[1] ? 2 : 1;
        for (int which = 0; which < place_count; which++)
            spans[used++] = (slab_span){item->offset[which], item->offset[which] + item->size_bytes,
                                        item->unit, item->tile};
    }
    if (used > 0)
        qsort(spans, used, sizeof *spans, compare_spans);
    int rc = 0;
    for (uint64_t i = 1; i < used && rc == 0; i++) {
        const slab_span *before = &spans[i - 1], *item = &spans[i];
        if (item->begin < before->end)
            rc = err_set(-EINVAL,
                         "places: a place of unit %u, tile %u (bytes %llu to %llu of the slab) and "
                         "one of unit %u, tile %u (from %llu) overlap",
                         before->unit, before->tile, (unsigned long long)before->begin,
                         (unsigned long long)before->end, item->unit, item->tile,
                         (unsigned long long)item->begin);
    }
    mem_free(spans);
    return rc;
}

static int fill(place_table *self, const place_entry *entries, uint64_t count)
{
    self->entries = mem_alloc(count, sizeof *self->entries, tag);
    if (!self->entries)
        return -ENOMEM;
    self->count = count;
    if (count > 0) {
        memcpy(self->entries, entries, count * sizeof *entries);
        qsort(self->entries, count, sizeof *entries, compare_entries);
    }
    for (uint64_t i = 0; i < count; i++)
        TRY(check_entry(&self->entries[i]));
    TRY(check_logical(self));
    return check_slab(self);
}

int place_table_create(const place_entry *entries, uint64_t count, place_table **out)
{
    *out = NULL;
    place_table *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    int rc = fill(self, entries, count);
    if (rc < 0) {
        place_table_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void place_table_destroy(place_table *self)
{
    if (!self)
        return;
    mem_free(self->entries);
    mem_free(self);
}

/* ---- use ---- */

uint64_t place_table_count(const place_table *self)
{
    return self->count;
}

place_entry *place_table_at(place_table *self, uint64_t idx)
{
    assert(idx < self->count);
    return &self->entries[idx];
}

place_entry *place_table_find(place_table *self, uint64_t logical_offset, uint64_t size_bytes)
{
    uint64_t low = 0, high = self->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (self->entries[middle].logical_offset < logical_offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == self->count)
        return NULL;
    place_entry *found = &self->entries[low];
    return found->logical_offset == logical_offset && found->size_bytes == size_bytes ? found
                                                                                      : NULL;
}

void place_begin_write(place_entry *self, uint8_t which)
{
    assert(which < PLACE_NONE);
    assert(which != self->committed || self->offset[0] == self->offset[1]);
    self->has_sum[which] = 0;
}

void place_written(place_entry *self, uint8_t which, uint64_t sum)
{
    assert(which < PLACE_NONE);
    assert(which != self->committed || self->offset[0] == self->offset[1]);
    self->sum[which] = sum;
    self->has_sum[which] = 1;
    self->newest = which;
}

void place_table_commit(place_table *self)
{
    for (uint64_t i = 0; i < self->count; i++)
        self->entries[i].committed = self->entries[i].newest;
}
