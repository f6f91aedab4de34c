/* XXH3-64 of several streams, one after the other as if they were one. Included by one file per instruction
 * set, after xxhash.h with the types of its states visible. */

static inline uint64_t checksum_streams(const void *data, uint64_t stream_count,
                                        uint64_t stride_bytes, uint64_t stream_bytes)
{
    if (stream_count == 1)
        return XXH3_64bits(data, stream_bytes);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (uint64_t i = 0; i < stream_count; i++)
        XXH3_64bits_update(&state, (const unsigned char *)data + i * stride_bytes, stream_bytes);
    return XXH3_64bits_digest(&state);
}

/* The same of a tile whose streams but the first are zeros that lie nowhere. They are fed from `zeros`
 * [zero_bytes], which stays in the first cache. */
static inline uint64_t checksum_stream_and_zeros(const void *data, uint64_t stream_bytes,
                                                 uint64_t zero_stream_count, const void *zeros,
                                                 uint64_t zero_bytes)
{
    if (zero_stream_count == 0)
        return XXH3_64bits(data, stream_bytes);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, data, stream_bytes);
    for (uint64_t left = zero_stream_count * stream_bytes; left > 0;) {
        uint64_t part = left < zero_bytes ? left : zero_bytes;
        XXH3_64bits_update(&state, zeros, part);
        left -= part;
    }
    return XXH3_64bits_digest(&state);
}
