/* Counted heap allocation. See mem.h.
 *
 *   block:  [ header 64 bytes: bytes ][ user bytes ... ]
 */
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { MEM_HEADER_BYTES = 64 };

struct mem_header {
    size_t user_bytes;
};

static atomic_uint_fast64_t mem_call_count, mem_after_seal, mem_live, mem_live_max;
static atomic_bool mem_sealed;
static _Atomic(const char *) mem_first_tag;

static struct mem_header *header_of(void *block)
{
    return (struct mem_header *)((char *)block - MEM_HEADER_BYTES);
}

static void count_call(const char *tag)
{
    atomic_fetch_add_explicit(&mem_call_count, 1, memory_order_relaxed);
    if (atomic_load_explicit(&mem_sealed, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&mem_after_seal, 1, memory_order_relaxed);
        const char *none = NULL;
        atomic_compare_exchange_strong(&mem_first_tag, &none, tag);
    }
}

static void count_live(size_t bytes)
{
    uint64_t live = atomic_fetch_add(&mem_live, bytes) + bytes;
    uint64_t peak = atomic_load(&mem_live_max);
    while (live > peak && !atomic_compare_exchange_weak(&mem_live_max, &peak, live))
        ;
}

void *mem_alloc(size_t count, size_t elem_bytes, const char *tag)
{
    uint64_t user_bytes, total_bytes;
    if (size_mul(count, elem_bytes, &user_bytes) < 0 ||
        size_add(user_bytes, 2 * MEM_HEADER_BYTES, &total_bytes) < 0) {
        err_set(-ENOMEM, "%s: %zu elements of %zu bytes overflow", tag, count, elem_bytes);
        return NULL;
    }
    count_call(tag);
    total_bytes = size_round_up(user_bytes, MEM_HEADER_BYTES) + MEM_HEADER_BYTES;
    char *base = aligned_alloc(MEM_HEADER_BYTES, total_bytes);
    if (!base) {
        err_set(-ENOMEM, "%s: no memory for %llu bytes", tag, (unsigned long long)user_bytes);
        return NULL;
    }
    memset(base, 0, total_bytes);
    ((struct mem_header *)base)->user_bytes = user_bytes;
    count_live(user_bytes);
    return base + MEM_HEADER_BYTES;
}

void *mem_resize(void *block, size_t count, size_t elem_bytes, const char *tag)
{
    void *fresh = mem_alloc(count, elem_bytes, tag);
    if (!fresh || !block)
        return fresh;
    size_t old_bytes = header_of(block)->user_bytes;
    size_t new_bytes = count * elem_bytes;
    memcpy(fresh, block, old_bytes < new_bytes ? old_bytes : new_bytes);
    mem_free(block);
    return fresh;
}

char *mem_string(const char *text, const char *tag)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mem_alloc(bytes, 1, tag);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void mem_free(void *block)
{
    if (!block)
        return;
    struct mem_header *header = header_of(block);
    atomic_fetch_sub(&mem_live, header->user_bytes);
    free(header);
}

void mem_seal(void)
{
    atomic_store(&mem_first_tag, NULL);
    atomic_store(&mem_after_seal, 0);
    atomic_store(&mem_sealed, true);
}

void mem_unseal(void)
{
    atomic_store(&mem_sealed, false);
}

void mem_get_stats(mem_stats *stats)
{
    stats->call_count = atomic_load(&mem_call_count);
    stats->call_count_after_seal = atomic_load(&mem_after_seal);
    stats->live_bytes = atomic_load(&mem_live);
    stats->live_bytes_max = atomic_load(&mem_live_max);
    stats->first_tag_after_seal = atomic_load(&mem_first_tag);
}
