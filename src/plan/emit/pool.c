/* Memory for the short lists of a program under construction. See emit_internal.h.
 *
 * A step of a large model has hundreds of thousands of buffers with two lists each. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "plan/emit/emit_internal.h"

enum {
    CHUNK_BYTES = 16 << 10, /* of the first one; each next one is twice as large, */
    CHUNK_BYTES_MOST = 256 << 10,
    HEADER_BYTES = 16,
    FIRST_COUNT = 4, /* most buffers have few users */
};

/* Bytes for `bytes`, a multiple of 16, or NULL. */
static char *take(struct plani_pool *pool, uint64_t bytes)
{
    if (!pool->chunk || pool->used_bytes + bytes > pool->chunk_bytes) {
        uint64_t usual = size_min(size_max(2 * pool->chunk_bytes, CHUNK_BYTES), CHUNK_BYTES_MOST);
        uint64_t wanted = size_max(usual, HEADER_BYTES + bytes);
        char *fresh = mem_alloc(wanted, 1, "plan lists");
        if (!fresh)
            return NULL;
        memcpy(fresh, &pool->chunk, sizeof pool->chunk);
        *pool = (struct plani_pool){fresh, HEADER_BYTES, wanted};
    }
    char *taken = pool->chunk + pool->used_bytes;
    pool->used_bytes += bytes;
    return taken;
}

int plani_pool_grow(struct plani_pool *pool, void **list, uint32_t *capacity, size_t elem_bytes)
{
    assert(*capacity < UINT32_MAX / 2);
    uint32_t wanted = *capacity ? *capacity * 2 : FIRST_COUNT;
    char *fresh = take(pool, size_round_up(wanted * (uint64_t)elem_bytes, 16));
    if (!fresh)
        return -ENOMEM;
    if (*capacity > 0)
        memcpy(fresh, *list, *capacity * elem_bytes);
    *list = fresh;
    *capacity = wanted;
    return 0;
}

void plani_pool_fini(struct plani_pool *pool)
{
    while (pool->chunk) {
        char *before;
        memcpy(&before, pool->chunk, sizeof before);
        mem_free(pool->chunk);
        pool->chunk = before;
    }
    *pool = (struct plani_pool){0};
}
