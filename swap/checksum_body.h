/* XXH3-64 of several streams, one after the other as if they were one. Included by one file per
 * instruction set, after xxhash.h with the types of its states visible, and checksum_internal.h. */

static inline uint64_t checksum_streams(const void *data, const struct swapi_stream *streams,
                                        uint32_t stream_count)
{
    const unsigned char *bytes = data;
    if (stream_count == 1)
        return XXH3_64bits(bytes + streams[0].offset, streams[0].size_bytes);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (uint32_t i = 0; i < stream_count; i++)
        XXH3_64bits_update(&state, bytes + streams[i].offset, streams[i].size_bytes);
    return XXH3_64bits_digest(&state);
}

/* The same for a tile whose streams after the first are zeros, others_bytes together. The zeros are
 * fed from `zeros` [zero_bytes], which stays in the first-level cache. */
static inline uint64_t checksum_stream_and_zeros(const void *data, uint64_t stream_bytes,
                                                 uint64_t others_bytes, const void *zeros,
                                                 uint64_t zero_bytes)
{
    if (others_bytes == 0)
        return XXH3_64bits(data, stream_bytes);
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, data, stream_bytes);
    for (uint64_t left = others_bytes; left > 0;) {
        uint64_t part = left < zero_bytes ? left : zero_bytes;
        XXH3_64bits_update(&state, zeros, part);
        left -= part;
    }
    return XXH3_64bits_digest(&state);
}
