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
