/* Where each stripe lies: pure arithmetic on the stripes per drive. slab_map runs for every
 * transfer; it allocates nothing.
 *
 * A zone's pattern spreads the drives' stripes as evenly as their counts allow (smooth weighted
 * round robin: in each step every drive gains its count as credit, and the richest drive gives one
 * stripe and pays a whole turn). */
#include <assert.h>
#include <string.h>

#include "base/size.h"
#include "tiers/tiers_internal.h"

static_assert(DRIVES_MAX <= 255, "a drive index fits a byte of the pattern");
static_assert(SLAB_PATTERN_MAX >= 2 * DRIVES_MAX, "the first zone takes most of the stripes");

static uint64_t greatest_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Sets zone->pattern_* from zone->drive_count_in_turn. */
static void make_pattern(slab_zone *zone, uint32_t drive_count)
{
    int64_t credit[DRIVES_MAX] = {0};
    uint8_t dealt[DRIVES_MAX] = {0};
    for (uint32_t i = 0; i < zone->pattern_count; i++) {
        uint32_t richest = 0;
        for (uint32_t drive = 0; drive < drive_count; drive++) {
            credit[drive] += zone->drive_count_in_turn[drive];
            if (credit[drive] > credit[richest])
                richest = drive;
        }
        credit[richest] -= zone->pattern_count;
        zone->pattern_drive[i] = (uint8_t)richest;
        zone->pattern_rank[i] = dealt[richest]++;
    }
    for (uint32_t drive = 0; drive < drive_count; drive++)
        assert(dealt[drive] == (uint8_t)zone->drive_count_in_turn[drive]);
}

/* Makes one zone out of the remaining stripes and returns how many it takes. A zone consists of
 * whole turns and never takes more of a drive than it has, so counts are rounded down. With at most
 * SLAB_PATTERN_MAX stripes left the counts are exact and the zone is the last. */
static uint64_t make_zone(slab_zone *zone, uint32_t drive_count, const uint64_t *left,
                          uint64_t left_count)
{
    uint64_t divisor = 0;
    for (uint32_t drive = 0; drive < drive_count; drive++) {
        unsigned __int128 scaled = (unsigned __int128)left[drive] * SLAB_PATTERN_MAX;
        uint64_t count =
            left_count <= SLAB_PATTERN_MAX ? left[drive] : (uint64_t)(scaled / left_count);
        zone->drive_count_in_turn[drive] = (uint32_t)count;
        divisor = greatest_divisor(divisor, count);
    }
    uint64_t turn_count = UINT64_MAX;
    zone->pattern_count = 0;
    for (uint32_t drive = 0; drive < drive_count; drive++) {
        uint32_t count = zone->drive_count_in_turn[drive] /= (uint32_t)divisor;
        zone->pattern_count += count;
        if (count)
            turn_count = size_min(turn_count, left[drive] / count);
    }
    make_pattern(zone, drive_count);
    zone->stripe_count = turn_count * zone->pattern_count;
    return zone->stripe_count;
}

int tieri_slab_layout(slab *self)
{
    uint64_t left[DRIVES_MAX], left_count = 0, used[DRIVES_MAX] = {0};
    for (uint32_t drive = 0; drive < self->drive_count; drive++) {
        left[drive] = self->drive_stripes[drive];
        left_count += left[drive];
    }
    self->zone_count = 0;
    uint64_t first_stripe = 0;
    while (left_count) {
        if (self->zone_count == SLAB_ZONES_MAX)
            return err_set(ERR_CORRUPT, "the stripe counts of the slab need over %d zones",
                           SLAB_ZONES_MAX);
        slab_zone *zone = &self->zones[self->zone_count++];
        memset(zone, 0, sizeof *zone);
        zone->first_stripe = first_stripe;
        memcpy(zone->drive_first, used, sizeof used);
        uint64_t taken = make_zone(zone, self->drive_count, left, left_count);
        uint64_t turns = taken / zone->pattern_count;
        for (uint32_t drive = 0; drive < self->drive_count; drive++) {
            left[drive] -= turns * zone->drive_count_in_turn[drive];
            used[drive] += turns * zone->drive_count_in_turn[drive];
        }
        left_count -= taken;
        first_stripe += taken;
    }
    return 0;
}

void slab_map(const slab *self, uint64_t offset, uint64_t size, slab_piece *piece)
{
    assert(size > 0);
    assert(offset < self->total_bytes);
    assert(size <= self->total_bytes - offset);
    uint64_t stripe = offset / self->stripe_bytes;
    uint64_t inside = offset - stripe * self->stripe_bytes;
    const slab_zone *zone = self->zones;
    while (stripe - zone->first_stripe >= zone->stripe_count)
        zone++;
    assert(zone < self->zones + self->zone_count);
    uint64_t turn = (stripe - zone->first_stripe) / zone->pattern_count;
    uint64_t place = (stripe - zone->first_stripe) % zone->pattern_count;
    uint32_t drive = zone->pattern_drive[place];
    uint64_t file_stripe = zone->drive_first[drive] + turn * zone->drive_count_in_turn[drive] +
                           zone->pattern_rank[place];
    /* If a drive is alone in its zone, its stripes are contiguous in the file too. */
    uint64_t run_stripes = 1;
    if (zone->pattern_count == 1)
        run_stripes = zone->first_stripe + zone->stripe_count - stripe;
    assert(file_stripe < self->drive_stripes[drive]);
    piece->drive_idx = drive;
    piece->file_offset = SLAB_HEADER_BYTES + file_stripe * self->stripe_bytes + inside;
    piece->size_bytes = size_min(size, run_stripes * self->stripe_bytes - inside);
}
