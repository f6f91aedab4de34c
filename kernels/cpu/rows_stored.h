/* Expanding stored formats (kernels/ops_stored.h), and the values of their codes. Part of
 * rows_variant.c.
 *
 * With 4 bits, a scale has only 16 values. They are computed and rounded once for each run, and the
 * elements are looked up. Where the matrix is larger than the caches near a core, they are stored
 * past the caches, as memcpy does: other stores read each line from memory before they write it. */

enum { STREAMED_BYTES = 4 << 20 };

static const float stored_nf4[16] = STORED_NF4_VALUES, stored_fp4[16] = STORED_FP4_VALUES;
static const float stored_e2m1[16] = STORED_E2M1_VALUES;
static const float stored_dynamic_values[128] = STORED_DYNAMIC_VALUES;

static const float *half_byte_values(enum stored_code code)
{
    return code == STORED_CODE_NF4   ? stored_nf4
           : code == STORED_CODE_FP4 ? stored_fp4
                                     : stored_e2m1;
}

/* streams: past the caches; the target is aligned. */
#if defined(__AVX512F__)
enum { STORE_BYTES = 64 };
static inline void store_512(void *target, __m512i value, bool streams)
{
    if (streams)
        _mm512_stream_si512(target, value);
    else
        _mm512_storeu_si512(target, value);
}
#elif defined(__AVX2__)
enum { STORE_BYTES = 32 };
static inline void store_256(void *target, __m256i value, bool streams)
{
    if (streams)
        _mm256_stream_si256(target, value);
    else
        _mm256_storeu_si256(target, value);
}
#else
enum { STORE_BYTES = 1 };
#endif

/* Stores past the caches come before all later stores of this thread. */
static inline void end_stream(void)
{
#if defined(__AVX2__)
    _mm_sfence();
#endif
}

/* target[0..n) = table[code]. The first of two elements has the upper half of a byte, or the lower
 * one if `lower_first`. */
static inline void look_up_16(const uint8_t *codes, bool lower_first, const uint16_t table[16],
                              bool streams, uint16_t *target, size_t n)
{
    size_t i = 0;
    streams = streams && (uintptr_t)target % STORE_BYTES == 0;
#if defined(__AVX512F__)
    /* The permutation reads 5 bits of each index: with the table twice, the fifth is of no
     * consequence. */
    const __m512i twice = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)table));
    for (; i + 32 <= n; i += 32) {
        __m512i byte = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + i / 2)));
        __m512i idx =
            lower_first ? _mm512_or_si512(byte, _mm512_slli_epi32(byte, 12))
                        : _mm512_or_si512(_mm512_srli_epi32(byte, 4), _mm512_slli_epi32(byte, 16));
        store_512(target + i, _mm512_permutexvar_epi16(idx, twice), streams);
    }
#elif defined(__AVX2__)
    const __m128i low_mask = _mm_set1_epi16(0xff), mask = _mm_set1_epi8(15);
    __m128i first = _mm_loadu_si128((const __m128i *)table);
    __m128i second = _mm_loadu_si128((const __m128i *)(table + 8));
    __m128i lows =
        _mm_packus_epi16(_mm_and_si128(first, low_mask), _mm_and_si128(second, low_mask));
    __m128i highs = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    for (; i + 32 <= n; i += 32) {
        __m128i byte = _mm_loadu_si128((const __m128i *)(codes + i / 2));
        __m128i upper = _mm_and_si128(_mm_srli_epi16(byte, 4), mask);
        __m128i lower = _mm_and_si128(byte, mask);
        __m128i even = lower_first ? lower : upper, odd = lower_first ? upper : lower;
        __m128i idx[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
        for (int k = 0; k < 2; k++) {
            __m128i low = _mm_shuffle_epi8(lows, idx[k]), high = _mm_shuffle_epi8(highs, idx[k]);
            uint16_t *to = target + i + (size_t)k * 16;
            store_256(to,
                      _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)),
                      streams);
        }
    }
#endif
    for (; i < n; i++) {
        unsigned byte = codes[i / 2];
        target[i] = table[(i % 2 == 0) == lower_first ? byte & 15 : byte >> 4];
    }
}

/* The same with elements of fp32. */
static inline void look_up_16_wide(const uint8_t *codes, bool lower_first, const float table[16],
                                   bool streams, float *target, size_t n)
{
    size_t i = 0;
    streams = streams && (uintptr_t)target % STORE_BYTES == 0;
#if defined(__AVX512F__)
    const __m512 values = _mm512_loadu_ps(table);
    for (; i + 16 <= n; i += 16) {
        __m512i byte = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(codes + i / 2)));
        __m512i idx =
            lower_first ? _mm512_or_si512(byte, _mm512_slli_epi64(byte, 28))
                        : _mm512_or_si512(_mm512_srli_epi64(byte, 4), _mm512_slli_epi64(byte, 32));
        store_512(target + i, _mm512_castps_si512(_mm512_permutexvar_ps(idx, values)), streams);
    }
#elif defined(__AVX2__)
    /* A permutation has 8 values and reads 3 bits of each index; the fourth selects one of two. */
    const __m256 first = _mm256_loadu_ps(table), second = _mm256_loadu_ps(table + 8);
    for (; i + 8 <= n; i += 8) {
        int32_t four;
        memcpy(&four, codes + i / 2, sizeof four);
        __m256i byte = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
        __m256i idx =
            lower_first ? _mm256_or_si256(byte, _mm256_slli_epi64(byte, 28))
                        : _mm256_or_si256(_mm256_srli_epi64(byte, 4), _mm256_slli_epi64(byte, 32));
        __m256 value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, idx),
                                        _mm256_permutevar8x32_ps(second, idx),
                                        _mm256_castsi256_ps(_mm256_slli_epi32(idx, 28)));
        store_256(target + i, _mm256_castps_si256(value), streams);
    }
#endif
    for (; i + 2 <= n; i += 2) {
        unsigned byte = codes[i / 2];
        target[i] = table[lower_first ? byte & 15 : byte >> 4];
        target[i + 1] = table[lower_first ? byte >> 4 : byte & 15];
    }
    if (i < n)
        target[i] = table[lower_first ? codes[i / 2] & 15 : codes[i / 2] >> 4];
}

/* Elements [at, at + n) of the matrix, which share a scale; `at` is even. */
static void expand_half_bytes(const stored_expand_args *args, enum stored_code code, uint64_t at,
                              size_t n, float scale, bool streams)
{
    const uint8_t *codes = (const uint8_t *)args->codes + at / 2;
    const float *values = half_byte_values(code);
    bool lower_first = code == STORED_CODE_E2M1;
    float products[16];
    uint16_t table[16];
#pragma omp simd
    for (int i = 0; i < 16; i++)
        products[i] = values[i] * scale;
    if (args->type == DTYPE_FP32) {
        look_up_16_wide(codes, lower_first, products, streams, (float *)args->target + at, n);
        return;
    }
    store_block(args->type, table, 0, 16, products);
    look_up_16(codes, lower_first, table, streams, (uint16_t *)args->target + at, n);
}

/* e4m3's value. Its bits, moved, are those of fp32 with an exponent that is 120 too low. */
static inline float e4m3_value(uint8_t code)
{
    uint32_t bits = (uint32_t)(code & 0x7f) << 20;
    uint32_t finite = fp32_bits(fp32_from_bits(bits) * 0x1p120f); /* exact, subnormals too */
    finite |= bits == 0x07f00000u ? 0x7fc00000u : 0u;
    return fp32_from_bits(finite | (uint32_t)(code & 0x80) << 24);
}

#if defined(__AVX512F__)
/* The values of 16 dynamic codes. Code 127 is 0; the others have their mirror images on its other
 * side. Four permutations of 32 values each do it: a gather takes twice as long. */
static inline __m512 dynamic_values_512(__m512i codes, const __m512 table[8])
{
    __m512i apart = _mm512_sub_epi32(codes, _mm512_set1_epi32(STORED_DYNAMIC_ZERO));
    __m512i idx = _mm512_sub_epi32(_mm512_abs_epi32(apart), _mm512_set1_epi32(1));
    __mmask16 is_odd = _mm512_test_epi32_mask(idx, _mm512_set1_epi32(32));
    __mmask16 is_upper = _mm512_test_epi32_mask(idx, _mm512_set1_epi32(64));
    __m512 part[4];
    for (int k = 0; k < 4; k++)
        part[k] = _mm512_permutex2var_ps(table[2 * k], idx, table[2 * k + 1]);
    __m512 value = _mm512_mask_mov_ps(_mm512_mask_mov_ps(part[0], is_odd, part[1]), is_upper,
                                      _mm512_mask_mov_ps(part[2], is_odd, part[3]));
    __m512i sign = _mm512_and_si512(apart, _mm512_set1_epi32((int)0x80000000u));
    return _mm512_castsi512_ps(_mm512_maskz_xor_epi32(_mm512_test_epi32_mask(apart, apart),
                                                      _mm512_castps_si512(value), sign));
}
#endif

/* values: of all codes. With AVX-512 only the rest of fewer than 16 codes reads it. */
static inline void look_up_256(const uint8_t *codes, const float values[256], float scale,
                               float *out, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    __m512 table[8];
    for (int k = 0; k < 8; k++)
        table[k] = _mm512_loadu_ps(stored_dynamic_values + (size_t)k * 16);
    for (; i + 16 <= n; i += 16) {
        __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(codes + i)));
        _mm512_storeu_ps(out + i,
                         _mm512_mul_ps(dynamic_values_512(code, table), _mm512_set1_ps(scale)));
    }
#endif
    for (; i < n; i++)
        out[i] = values[codes[i]] * scale;
}

#if defined(__AVX512F__)
/* Dynamic codes of one scale to 16 bits, as with 4 bits: the 128 products with values above 0 are
 * rounded once, and those below have their mirror images. Returns how many of n elements are
 * done. */
static inline size_t expand_dynamic_half(const uint8_t *codes, enum dtype type, float scale,
                                         bool streams, uint16_t *target, size_t n)
{
    enum { VALUES = 128 };
    if (n < VALUES)
        return 0;
    __m512i table[4];
    for (int k = 0; k < 4; k++) {
        __m256i half[2];
        for (int h = 0; h < 2; h++) {
            __m512 values = _mm512_loadu_ps(stored_dynamic_values + k * 32 + h * 16);
            __m512 products = _mm512_mul_ps(values, _mm512_set1_ps(scale));
            half[h] = type == DTYPE_BF16 ? narrow_bf16_512(products) : narrow_fp16_512(products);
        }
        table[k] = _mm512_inserti64x4(_mm512_castsi256_si512(half[0]), half[1], 1);
    }
    uint16_t zero;
    store_one(type, &zero, 0, 0.0f * scale);
    size_t i = 0;
    streams = streams && (uintptr_t)target % STORE_BYTES == 0;
    for (; i + 32 <= n; i += 32) {
        __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(codes + i)));
        __m512i apart = _mm512_sub_epi16(code, _mm512_set1_epi16(STORED_DYNAMIC_ZERO));
        __m512i idx = _mm512_sub_epi16(_mm512_abs_epi16(apart), _mm512_set1_epi16(1));
        __mmask32 is_upper = _mm512_test_epi16_mask(idx, _mm512_set1_epi16(64));
        __m512i value =
            _mm512_mask_mov_epi16(_mm512_permutex2var_epi16(table[0], idx, table[1]), is_upper,
                                  _mm512_permutex2var_epi16(table[2], idx, table[3]));
        __m512i sign = _mm512_and_si512(apart, _mm512_set1_epi16((short)0x8000));
        store_512(target + i,
                  _mm512_mask_mov_epi16(_mm512_set1_epi16((short)zero),
                                        _mm512_test_epi16_mask(apart, apart),
                                        _mm512_xor_si512(value, sign)),
                  streams);
    }
    return i;
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
/* Eight values of dynamic codes. A gather takes twice as long on a Zen 3 core. */
static inline __m256 dynamic_values_256(const uint8_t *codes, const float values[256])
{
    uint64_t c;
    memcpy(&c, codes, sizeof c);
    return _mm256_setr_ps(values[c & 255], values[c >> 8 & 255], values[c >> 16 & 255],
                          values[c >> 24 & 255], values[c >> 32 & 255], values[c >> 40 & 255],
                          values[c >> 48 & 255], values[c >> 56]);
}

/* Sixteen values, before they are multiplied by their scale. */
static inline void values_256(enum stored_code code, const uint8_t *codes, const float *values,
                              __m256 out[2])
{
    __m128i all = _mm_loadu_si128((const __m128i *)codes);
    if (code == STORED_CODE_DYNAMIC) {
        out[0] = dynamic_values_256(codes, values);
        out[1] = dynamic_values_256(codes + 8, values);
    } else if (code == STORED_CODE_INT8) {
        out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all));
        out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)));
    } else { /* moved, the bits are those of fp16 with an exponent that is 8 too low */
        const __m256i most = _mm256_set1_epi16(0x3f80);
        __m256i bits = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(all), 7),
                                        _mm256_set1_epi16((short)0xbf80));
        __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, most), most);
        bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
        for (int k = 0; k < 2; k++)
            out[k] = _mm256_mul_ps(_mm256_set1_ps(0x1p8f),
                                   _mm256_cvtph_ps(k ? _mm256_extracti128_si256(bits, 1)
                                                     : _mm256_castsi256_si128(bits)));
    }
}

/* Codes of one scale: loads, products and stores in one pass. Returns how many of n elements are
 * done. `code` and `type` are constants in each inlined copy. */
static inline __attribute__((always_inline)) size_t
expand_bytes_256(enum stored_code code, const uint8_t *codes, const float *values, float scale,
                 enum dtype type, bool streams, void *target, size_t n)
{
    __m256 factor = _mm256_set1_ps(scale), part = _mm256_set1_ps((float)(1.0 / 127.0));
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 x[2];
        values_256(code, codes + i, values, x);
        for (int k = 0; k < 2; k++) {
            x[k] = _mm256_mul_ps(x[k], factor);
            if (code == STORED_CODE_INT8)
                x[k] = _mm256_mul_ps(x[k], part);
            if (type == DTYPE_FP32)
                store_256((float *)target + i + 8 * k, _mm256_castps_si256(x[k]), streams);
        }
        if (type != DTYPE_FP32)
            store_256((uint16_t *)target + i,
                      type == DTYPE_BF16 ? narrow_bf16_256(x[0], x[1])
                                         : narrow_fp16_256(x[0], x[1]),
                      streams);
    }
    return i;
}

static inline __attribute__((always_inline)) size_t
expand_code_256(enum stored_code code, const uint8_t *codes, const float *values, float scale,
                enum dtype type, bool streams, void *target, size_t n)
{
    streams = streams && (uintptr_t)target % STORE_BYTES == 0;
    if (type == DTYPE_BF16)
        return expand_bytes_256(code, codes, values, scale, DTYPE_BF16, streams, target, n);
    if (type == DTYPE_FP16)
        return expand_bytes_256(code, codes, values, scale, DTYPE_FP16, streams, target, n);
    return expand_bytes_256(code, codes, values, scale, DTYPE_FP32, streams, target, n);
}
#endif

/* values: what the codes of STORED_CODE_DYNAMIC mean. */
static void expand_bytes(const stored_expand_args *args, enum stored_code code, uint64_t at,
                         size_t n, float scale, const float *values, bool streams)
{
    float buffer[ROWS_BLOCK];
    size_t done = 0;
#if defined(__AVX512F__)
    if (code == STORED_CODE_DYNAMIC && args->type != DTYPE_FP32)
        done = expand_dynamic_half((const uint8_t *)args->codes + at, args->type, scale, streams,
                                   (uint16_t *)args->target + at, n);
#elif defined(__AVX2__)
    const uint8_t *first = (const uint8_t *)args->codes + at;
    char *place = (char *)args->target + at * dtype_bytes(args->type);
    if (code == STORED_CODE_DYNAMIC)
        done = expand_code_256(STORED_CODE_DYNAMIC, first, values, scale, args->type, streams,
                               place, n);
    else if (code == STORED_CODE_INT8)
        done =
            expand_code_256(STORED_CODE_INT8, first, values, scale, args->type, streams, place, n);
    else
        done =
            expand_code_256(STORED_CODE_E4M3, first, values, scale, args->type, streams, place, n);
#else
#endif
    for (size_t begin = done; begin < n; begin += ROWS_BLOCK) {
        size_t some = block_elems(n, begin);
        const uint8_t *codes = (const uint8_t *)args->codes + at + begin;
        float *out = store_place(args->type, args->target, at + begin, buffer);
        if (code == STORED_CODE_DYNAMIC) {
            look_up_256(codes, values, scale, out, some);
        } else if (code == STORED_CODE_INT8) {
#pragma omp simd
            for (size_t i = 0; i < some; i++)
                out[i] = (float)(int8_t)codes[i] * scale * (float)(1.0 / 127.0);
        } else {
#pragma omp simd
            for (size_t i = 0; i < some; i++)
                out[i] = e4m3_value(codes[i]) * scale;
        }
        store_block(args->type, args->target, at + begin, some, out);
    }
}

/* dynamic: the values of all dynamic codes. Looking a scale up there needs no branch, which would
 * be mispredicted for every other scale. */
static inline float scale_value(const stored_layout *layout, const void *scales, uint64_t idx,
                                const float dynamic[256])
{
    if (layout->scale == STORED_SCALE_FP32)
        return ((const float *)scales)[idx];
    if (layout->scale == STORED_SCALE_E8M0)
        return fp32_from_bits(stored_e8m0_bits(((const uint8_t *)scales)[idx]));
    struct stored_double parts = stored_double_of(scales, layout->scale_count);
    return dynamic[parts.codes[idx]] * parts.absmax[idx / STORED_DOUBLE_GROUP] + *parts.offset;
}

static void fill_dynamic(float values[256])
{
    for (unsigned i = 0; i < 256; i++)
        values[i] = stored_dynamic(stored_dynamic_values, i);
}

/* Threads share out the runs of all lines. */
static void stored_expand(int threads, const stored_expand_args *args)
{
    const stored_layout layout = stored_layout_of(args->format, args->rows, args->columns);
    bool streams = args->rows * args->columns * dtype_bytes(args->type) >= STREAMED_BYTES;
    float dynamic[256];
    if (layout.code == STORED_CODE_DYNAMIC || layout.scale == STORED_SCALE_DOUBLE)
        fill_dynamic(dynamic);
#pragma omp parallel num_threads(team(threads, args->rows * args->columns))
    {
#pragma omp for collapse(2) schedule(static) nowait
        for (uint64_t line = 0; line < layout.lines; line++)
            for (uint64_t run = 0; run < layout.line_runs; run++) {
                uint64_t begin = run * layout.run_elems, rest = layout.line_elems - begin;
                uint64_t at = line * layout.line_elems + begin;
                size_t n = (size_t)(rest < layout.run_elems ? rest : layout.run_elems);
                uint64_t idx = line / layout.lines_per_scale * layout.line_runs + run;
                float scale = scale_value(&layout, args->scales, idx, dynamic);
                if (stored_code_is_half_byte(layout.code))
                    expand_half_bytes(args, layout.code, at, n, scale, streams);
                else
                    expand_bytes(args, layout.code, at, n, scale, dynamic, streams);
            }
        if (streams)
            end_stream();
    }
}
