/* One width of the kernels of adam_limit.h. adam_limit.c includes this file after it has defined
 *
 *   LIMIT_NAME(what)     the name of a function of this width
 *   LIMIT_BYTES          bytes of a vector
 *   LIMIT_TARGET         the attribute that allows its instructions
 *   LIMIT_PAST(at, v)    a store that bypasses the caches; may be an ordinary store */
typedef float LIMIT_NAME(vector) __attribute__((vector_size(LIMIT_BYTES), may_alias));

/* Reads a group of elements of `elem_bytes` and writes it back. Returns its first vector. */
LIMIT_TARGET static inline __attribute__((always_inline)) LIMIT_NAME(vector)
    LIMIT_NAME(turn)(char *stream, uint64_t elem_bytes, uint64_t i, uint64_t ahead)
{
    typedef LIMIT_NAME(vector) vector;
    vector lines[4 * LIMIT_GROUP_ELEMS / LIMIT_BYTES], *at = (vector *)(stream + i * elem_bytes);
    uint64_t count = LIMIT_GROUP_ELEMS * elem_bytes / LIMIT_BYTES;
    for (uint64_t k = 0; k < count; k++) {
        if (ahead > 0 && k * LIMIT_BYTES % 64 == 0)
            __builtin_prefetch((char *)(at + k) + ahead * elem_bytes);
        lines[k] = at[k];
    }
    __asm__ volatile("" ::: "memory"); /* keeps the stores */
    for (uint64_t k = 0; k < count; k++)
        at[k] = lines[k];
    return lines[0];
}

LIMIT_TARGET static void LIMIT_NAME(run)(const struct limit_streams *streams,
                                         const struct limit_way *way, uint64_t begin, uint64_t end)
{
    typedef LIMIT_NAME(vector) vector;
    uint64_t read_vectors = LIMIT_GROUP_ELEMS * streams->read_bytes / LIMIT_BYTES;
    uint64_t written_vectors = LIMIT_GROUP_ELEMS * streams->written_bytes / LIMIT_BYTES;
    uint64_t ahead = way->ahead;
    vector last = {0}, sum = {0};
    for (uint64_t i = begin; i < end; i += LIMIT_GROUP_ELEMS) {
        for (int s = 0; s < LIMIT_UPDATED_MAX && streams->updated[s]; s++) {
            if (streams->updated_bytes[s] == 4)
                last = LIMIT_NAME(turn)(streams->updated[s], 4, i, ahead);
            else if (streams->updated_bytes[s] == 2)
                last = LIMIT_NAME(turn)(streams->updated[s], 2, i, ahead);
            else
                last = LIMIT_NAME(turn)(streams->updated[s], 1, i, ahead);
        }
        const char *from = streams->read + i * streams->read_bytes;
        for (uint64_t k = 0; k < read_vectors; k++) {
            if (ahead > 0 && k * LIMIT_BYTES % 64 == 0)
                __builtin_prefetch(from + ahead * streams->read_bytes + k * LIMIT_BYTES);
            last = ((const vector *)from)[k];
            sum += last;
        }
        char *to = streams->written + i * streams->written_bytes;
        for (uint64_t k = 0; k < written_vectors; k++) {
            if (way->is_past) {
                LIMIT_PAST(to + k * LIMIT_BYTES, last);
                continue;
            }
            if (ahead > 0 && k * LIMIT_BYTES % 64 == 0)
                __builtin_prefetch(to + ahead * streams->written_bytes + k * LIMIT_BYTES, 1);
            ((vector *)to)[k] = last;
        }
    }
    limit_keep(&sum);
    limit_fence();
}
