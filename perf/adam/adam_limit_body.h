/* One width of the kernels of adam_limit.h. adam_limit.c includes this file after it has defined
 *
 *   LIMIT_NAME(what)     the name of a function of this width
 *   LIMIT_BYTES          bytes of a vector
 *   LIMIT_TARGET         the attribute that allows its instructions
 *   LIMIT_PAST(at, v)    a store that bypasses the caches; may be an ordinary store */
typedef float LIMIT_NAME(vector) __attribute__((vector_size(LIMIT_BYTES), may_alias));

LIMIT_TARGET static inline __attribute__((always_inline)) void
LIMIT_NAME(loop)(const struct limit_streams *streams, uint64_t begin, uint64_t end, bool is_past,
                 bool is_fetched)
{
    typedef LIMIT_NAME(vector) vector;
    enum { LANES = LIMIT_BYTES / 4, GROUP_VECTORS = 4 * LIMIT_GROUP_ELEMS / LIMIT_BYTES };
    uint64_t read_vectors = LIMIT_GROUP_ELEMS * streams->read_bytes / LIMIT_BYTES;
    uint64_t written_vectors = LIMIT_GROUP_ELEMS * streams->written_bytes / LIMIT_BYTES;
    vector one = (vector){0} + streams->one, last = one, sum = one;
    for (uint64_t i = begin; i < end; i += LIMIT_GROUP_ELEMS) {
        for (int s = 0; s < LIMIT_UPDATED_MAX && streams->updated[s]; s++) {
            vector *at = (vector *)(streams->updated[s] + i), lines[GROUP_VECTORS];
            for (int k = 0; k < GROUP_VECTORS; k++) {
                if (is_fetched && k * LIMIT_BYTES % 64 == 0)
                    __builtin_prefetch(streams->updated[s] + i + FETCH_ELEMS + k * LANES);
                lines[k] = at[k] * one;
            }
            for (int k = 0; k < GROUP_VECTORS; k++)
                at[k] = lines[k];
            last = lines[0];
        }
        if (streams->read) {
            const char *from = (const char *)streams->read + i * streams->read_bytes;
            for (uint64_t k = 0; k < read_vectors; k++) {
                if (is_fetched && k * LIMIT_BYTES % 64 == 0)
                    __builtin_prefetch(from + FETCH_ELEMS * streams->read_bytes + k * LIMIT_BYTES);
                last = ((const vector *)from)[k];
                sum += last;
            }
        }
        if (streams->written) {
            char *to = (char *)streams->written + i * streams->written_bytes;
            for (uint64_t k = 0; k < written_vectors; k++) {
                if (is_past) {
                    LIMIT_PAST(to + k * LIMIT_BYTES, last);
                    continue;
                }
                if (is_fetched && k * LIMIT_BYTES % 64 == 0)
                    __builtin_prefetch(to + FETCH_ELEMS * streams->written_bytes + k * LIMIT_BYTES,
                                       1);
                ((vector *)to)[k] = last;
            }
        }
    }
    limit_keep(&sum);
}

LIMIT_TARGET static void LIMIT_NAME(plain)(const struct limit_streams *streams, uint64_t begin,
                                           uint64_t end)
{
    LIMIT_NAME(loop)(streams, begin, end, false, false);
}

LIMIT_TARGET static void LIMIT_NAME(fetched)(const struct limit_streams *streams, uint64_t begin,
                                             uint64_t end)
{
    LIMIT_NAME(loop)(streams, begin, end, false, true);
}

LIMIT_TARGET static void LIMIT_NAME(past)(const struct limit_streams *streams, uint64_t begin,
                                          uint64_t end)
{
    LIMIT_NAME(loop)(streams, begin, end, true, false);
    limit_fence();
}

LIMIT_TARGET static void LIMIT_NAME(past_fetched)(const struct limit_streams *streams,
                                                  uint64_t begin, uint64_t end)
{
    LIMIT_NAME(loop)(streams, begin, end, true, true);
    limit_fence();
}
