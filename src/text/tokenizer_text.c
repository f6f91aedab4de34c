/* Prepares texts before they are cut: valid UTF-8, normal forms, and stand-ins for characters on
 * which versions of Unicode disagree. See tokenizer_internal.h.
 *
 * Which characters are letters, digits and marks depends on the version of Unicode. The
 * `tokenizers` library (0.23) matches patterns by Unicode 16, counts digits by Unicode 17 and
 * normalizes by Unicode 9. PCRE2 and utf8proc have the version of the system. Our ids must be the
 * library's on every system. So some characters are replaced before a pattern sees them: those
 * younger than Unicode 14, and the few whose class has changed since. The stand-in has the same
 * length in bytes, and in all versions since Unicode 14 the class that the library gives to the
 * original. In NFC, characters that the library does not know are kept.
 *
 * Both tables were made by asking the library about every character;
 * tests/reference/check_tokenizer.py asks again. */
#include <errno.h>
#include <string.h>

#include <utf8proc.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/utf8.h"
#include "text/tokenizer_internal.h"

enum { CHARACTERS = 0x110000 };

/* First and last character of a range, and the stand-in for its characters:
 *   U+A000, U+10280            letters without case
 *   U+20000                    an ideograph
 *   U+10400, U+10428           letters with case
 *   U+FFFF, U+1FFFF, U+530     no class
 *   U+1FFFE                    no class for patterns, but a number for the pre-tokenizer Digits
 * and so on. */
static const struct stand_in {
    uint32_t first, last, by;
} stand_ins[] = {
    {0x558, 0x558, 0x530},       {0x58B, 0x58C, 0x530},       {0x5C8, 0x5C9, 0x530},
    {0x88F, 0x88F, 0xFFFF},      {0x897, 0x897, 0x1DC0},      {0xB53, 0xB54, 0xFFFF},
    {0xC5C, 0xC5C, 0xFFFF},      {0xCDC, 0xCDC, 0xFFFF},      {0xCF3, 0xCF3, 0x903},
    {0xECE, 0xECE, 0x1DC0},      {0x180E, 0x180E, 0x200B},    {0x1ACF, 0x1AF0, 0xFFFF},
    {0x1B4E, 0x1B4F, 0x2020},    {0x1B7F, 0x1B7F, 0x2020},    {0x1C89, 0x1C89, 0x1E00},
    {0x1C8A, 0x1C8A, 0x1E01},    {0x208F, 0x208F, 0xFFFF},    {0x209D, 0x209F, 0xFFFF},
    {0x20C1, 0x20C4, 0xFFFF},    {0x2427, 0x2429, 0x2600},    {0x2B96, 0x2B96, 0xFFFF},
    {0x2E60, 0x2E63, 0xFFFF},    {0x2FFC, 0x2FFF, 0x2600},    {0x31E4, 0x31E5, 0x2600},
    {0x31EF, 0x31EF, 0x2600},    {0xA7CB, 0xA7CC, 0x1E00},    {0xA7CD, 0xA7CD, 0x1E01},
    {0xA7CE, 0xA7CF, 0xFFFF},    {0xA7D2, 0xA7D2, 0xFFFF},    {0xA7D4, 0xA7D4, 0xFFFF},
    {0xA7DA, 0xA7DA, 0x1E00},    {0xA7DB, 0xA7DB, 0x1E01},    {0xA7DC, 0xA7DC, 0x1E00},
    {0xA7DD, 0xA7DD, 0xFFFF},    {0xA7E2, 0xA7E2, 0xFFFF},    {0xA7F1, 0xA7F1, 0xFFFF},
    {0xAB6C, 0xAB6D, 0xFFFF},    {0xFBC3, 0xFBD2, 0xFFFF},    {0xFD90, 0xFD91, 0xFFFF},
    {0xFDC8, 0xFDCE, 0xFFFF},    {0x105C0, 0x105F3, 0x10280}, {0x107BB, 0x107BF, 0x1FFFF},
    {0x10940, 0x10959, 0x1FFFF}, {0x10D40, 0x10D49, 0x104A0}, {0x10D4A, 0x10D4D, 0x10280},
    {0x10D4E, 0x10D4E, 0x16B40}, {0x10D4F, 0x10D4F, 0x10280}, {0x10D50, 0x10D65, 0x10400},
    {0x10D69, 0x10D6D, 0x1D167}, {0x10D6E, 0x10D6E, 0x10EAD}, {0x10D6F, 0x10D6F, 0x16B40},
    {0x10D70, 0x10D85, 0x10428}, {0x10D8E, 0x10D8F, 0x1D6C1}, {0x10EC2, 0x10EC4, 0x10280},
    {0x10EC5, 0x10EC7, 0x1FFFF}, {0x10EC9, 0x10EEE, 0x1FFFF}, {0x10EF0, 0x10EFB, 0x1FFFF},
    {0x10EFC, 0x10EFF, 0x1D167}, {0x1123F, 0x11240, 0x10280}, {0x11241, 0x11241, 0x1D167},
    {0x11380, 0x11389, 0x10280}, {0x1138B, 0x1138B, 0x10280}, {0x1138E, 0x1138E, 0x10280},
    {0x11390, 0x113B5, 0x10280}, {0x113B7, 0x113B7, 0x10280}, {0x113B8, 0x113BA, 0x11000},
    {0x113BB, 0x113C0, 0x1D167}, {0x113C2, 0x113C2, 0x11000}, {0x113C5, 0x113C5, 0x11000},
    {0x113C7, 0x113CA, 0x11000}, {0x113CC, 0x113CD, 0x11000}, {0x113CE, 0x113CE, 0x1D167},
    {0x113CF, 0x113CF, 0x11000}, {0x113D0, 0x113D0, 0x1D167}, {0x113D1, 0x113D1, 0x10280},
    {0x113D2, 0x113D2, 0x1D167}, {0x113D3, 0x113D3, 0x10280}, {0x113D4, 0x113D5, 0x10100},
    {0x113D7, 0x113D8, 0x10100}, {0x113E1, 0x113E2, 0x1D167}, {0x116D0, 0x116E3, 0x104A0},
    {0x1171E, 0x1171E, 0x11000}, {0x11B00, 0x11B09, 0x10100}, {0x11B0A, 0x11B0A, 0x1FFFF},
    {0x11B60, 0x11B67, 0x1FFFF}, {0x11BC0, 0x11BE0, 0x10280}, {0x11BE1, 0x11BE1, 0x10100},
    {0x11BF0, 0x11BF9, 0x104A0}, {0x11DB0, 0x11DDB, 0x1FFFF}, {0x11DE0, 0x11DE9, 0x1FFFE},
    {0x11DF0, 0x11DF1, 0x1FFFF}, {0x11F00, 0x11F01, 0x1D167}, {0x11F02, 0x11F02, 0x10280},
    {0x11F03, 0x11F03, 0x11000}, {0x11F04, 0x11F10, 0x10280}, {0x11F12, 0x11F33, 0x10280},
    {0x11F34, 0x11F35, 0x11000}, {0x11F36, 0x11F3A, 0x1D167}, {0x11F3E, 0x11F3F, 0x11000},
    {0x11F40, 0x11F40, 0x1D167}, {0x11F41, 0x11F41, 0x11000}, {0x11F42, 0x11F42, 0x1D167},
    {0x11F43, 0x11F4F, 0x10100}, {0x11F50, 0x11F59, 0x104A0}, {0x11F5A, 0x11F5A, 0x1D167},
    {0x1246F, 0x1246F, 0x1FFFF}, {0x12475, 0x1247F, 0x1FFFF}, {0x12550, 0x12686, 0x1FFFF},
    {0x1342F, 0x1342F, 0x10280}, {0x13439, 0x1343F, 0x110BD}, {0x13440, 0x13440, 0x1D167},
    {0x13441, 0x13446, 0x10280}, {0x13447, 0x13455, 0x1D167}, {0x13460, 0x143FA, 0x10280},
    {0x16100, 0x1611D, 0x10280}, {0x1611E, 0x16129, 0x1D167}, {0x1612A, 0x1612C, 0x11000},
    {0x1612D, 0x1612F, 0x1D167}, {0x16130, 0x16139, 0x104A0}, {0x16D40, 0x16D42, 0x16B40},
    {0x16D43, 0x16D6A, 0x10280}, {0x16D6B, 0x16D6C, 0x16B40}, {0x16D6D, 0x16D6F, 0x10100},
    {0x16D70, 0x16D79, 0x104A0}, {0x16EA0, 0x16EB8, 0x1FFFF}, {0x16EBB, 0x16ED3, 0x1FFFF},
    {0x16FF2, 0x16FF3, 0x1FFFF}, {0x16FF4, 0x16FF6, 0x1FFFE}, {0x187F8, 0x187FF, 0x1FFFF},
    {0x18CD6, 0x18CDA, 0x1FFFF}, {0x18CFF, 0x18CFF, 0x10280}, {0x18D09, 0x18D20, 0x1FFFF},
    {0x18D80, 0x18DF2, 0x1FFFF}, {0x18E00, 0x19191, 0x1FFFF}, {0x191A0, 0x191D2, 0x1FFFF},
    {0x1B123, 0x1B128, 0x1FFFF}, {0x1B132, 0x1B132, 0x10280}, {0x1B155, 0x1B155, 0x10280},
    {0x1B168, 0x1B168, 0x1FFFF}, {0x1CC00, 0x1CCEF, 0x1F300}, {0x1CCF0, 0x1CCF9, 0x104A0},
    {0x1CCFA, 0x1CCFC, 0x1FFFF}, {0x1CD00, 0x1CEB3, 0x1F300}, {0x1CEBA, 0x1CED0, 0x1FFFF},
    {0x1CED2, 0x1CED4, 0x1FFFF}, {0x1CEDD, 0x1CEFD, 0x1FFFF}, {0x1D127, 0x1D128, 0x1FFFF},
    {0x1D1EB, 0x1D1FF, 0x1FFFF}, {0x1D250, 0x1D281, 0x1FFFF}, {0x1D2C0, 0x1D2D3, 0x10107},
    {0x1D6A6, 0x1D6A6, 0x1FFFF}, {0x1DB00, 0x1DB1C, 0x1FFFF}, {0x1DF1F, 0x1DF24, 0x1FFFF},
    {0x1DF25, 0x1DF2A, 0x10428}, {0x1DF2B, 0x1DF81, 0x1FFFF}, {0x1DF90, 0x1DF96, 0x1FFFF},
    {0x1DFCD, 0x1DFFF, 0x1FFFF}, {0x1E030, 0x1E06D, 0x16B40}, {0x1E08F, 0x1E08F, 0x1D167},
    {0x1E4D0, 0x1E4EA, 0x10280}, {0x1E4EB, 0x1E4EB, 0x16B40}, {0x1E4EC, 0x1E4EF, 0x1D167},
    {0x1E4F0, 0x1E4F9, 0x104A0}, {0x1E5D0, 0x1E5ED, 0x10280}, {0x1E5EE, 0x1E5EF, 0x1D167},
    {0x1E5F0, 0x1E5F0, 0x10280}, {0x1E5F1, 0x1E5FA, 0x104A0}, {0x1E5FF, 0x1E5FF, 0x10100},
    {0x1E6C0, 0x1E6DE, 0x1FFFF}, {0x1E6E0, 0x1E6F5, 0x1FFFF}, {0x1E6FE, 0x1E6FF, 0x1FFFF},
    {0x1F1AE, 0x1F1AE, 0x1FFFF}, {0x1F6D8, 0x1F6D9, 0x1FFFF}, {0x1F6DC, 0x1F6DC, 0x1F300},
    {0x1F774, 0x1F776, 0x1F300}, {0x1F777, 0x1F77A, 0x1FFFF}, {0x1F77B, 0x1F77F, 0x1F300},
    {0x1F7D9, 0x1F7D9, 0x1F300}, {0x1F7DA, 0x1F7DB, 0x1FFFF}, {0x1F7F1, 0x1F7FF, 0x1FFFF},
    {0x1F8B2, 0x1F8BB, 0x1F300}, {0x1F8C0, 0x1F8C1, 0x1F300}, {0x1F8D0, 0x1F8D8, 0x1FFFF},
    {0x1FA54, 0x1FA57, 0x1FFFF}, {0x1FA75, 0x1FA77, 0x1F300}, {0x1FA87, 0x1FA89, 0x1F300},
    {0x1FA8A, 0x1FA8E, 0x1FFFF}, {0x1FA8F, 0x1FA8F, 0x1F300}, {0x1FAAD, 0x1FAAF, 0x1F300},
    {0x1FABB, 0x1FABF, 0x1F300}, {0x1FAC6, 0x1FAC6, 0x1F300}, {0x1FAC8, 0x1FAC8, 0x1FFFF},
    {0x1FACC, 0x1FACD, 0x1FFFF}, {0x1FACE, 0x1FACF, 0x1F300}, {0x1FADA, 0x1FADC, 0x1F300},
    {0x1FADD, 0x1FADD, 0x1FFFF}, {0x1FADF, 0x1FADF, 0x1F300}, {0x1FAE8, 0x1FAE9, 0x1F300},
    {0x1FAEA, 0x1FAEB, 0x1FFFF}, {0x1FAEF, 0x1FAEF, 0x1FFFF}, {0x1FAF7, 0x1FAF8, 0x1F300},
    {0x1FAF9, 0x1FAFA, 0x1FFFF}, {0x1FBCB, 0x1FBEF, 0x1F300}, {0x1FBFA, 0x1FBFA, 0x1FFFF},
    {0x1FFFE, 0x1FFFE, 0x1FFFF}, {0x2B739, 0x2B739, 0x20000}, {0x2B73A, 0x2B73F, 0x1FFFF},
    {0x2B81E, 0x2B81E, 0x1FFFF}, {0x2CEA2, 0x2CEAD, 0x1FFFF}, {0x2EBF0, 0x2EE5D, 0x20000},
    {0x31350, 0x323AF, 0x20000}, {0x323B0, 0x33479, 0x1FFFF}, {0x3D000, 0x3FC3F, 0x1FFFF},
};
enum { STAND_IN_COUNT = sizeof stand_ins / sizeof stand_ins[0] };

/* Marks of Unicode 10 to 14, the characters that they compose with, and characters that are
 * compatible with others (the last ranges). The library keeps all of these unchanged. */
static const struct {
    uint32_t first, last;
} unknown_marks[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070},
    {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x16FF0, 0x16FF1}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xAB69, 0xAB69},   {0x10781, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};
enum { UNKNOWN_COUNT = sizeof unknown_marks / sizeof unknown_marks[0] };

int toki_bytes_reserve(toki_bytes *self, size_t more)
{
    if (self->capacity - self->count >= more)
        return 0;
    size_t capacity = size_max(self->capacity + self->capacity / 2, self->count + more);
    char *data = mem_resize(self->data, capacity, 1, "tokenizer text");
    if (!data)
        return -ENOMEM;
    self->data = data;
    self->capacity = capacity;
    return 0;
}

uint32_t toki_decode(const char *text, size_t *bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] < 0x80) {
        *bytes = 1;
        return at[0];
    }
    if (at[0] < 0xe0) {
        *bytes = 2;
        return (at[0] & 0x1fu) << 6 | (at[1] & 0x3fu);
    }
    if (at[0] < 0xf0) {
        *bytes = 3;
        return (at[0] & 0x0fu) << 12 | (at[1] & 0x3fu) << 6 | (at[2] & 0x3fu);
    }
    *bytes = 4;
    return (at[0] & 0x07u) << 18 | (at[1] & 0x3fu) << 12 | (at[2] & 0x3fu) << 6 | (at[3] & 0x3fu);
}

bool toki_is_space(uint32_t character)
{
    return (character >= 9 && character <= 13) || character == 0x20 || character == 0x85 ||
           character == 0xa0 || character == 0x1680 ||
           (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
           character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

/* The number of leading ASCII bytes; long runs are counted in steps of eight. */
static size_t ascii_run(const char *text, size_t bytes)
{
    size_t at = 0;
    for (; at + 8 <= bytes; at += 8) {
        uint64_t eight;
        memcpy(&eight, text + at, sizeof eight);
        if (eight & 0x8080808080808080u)
            break;
    }
    while (at < bytes && (unsigned char)text[at] < 0x80)
        at++;
    return at;
}

int toki_append(toki_bytes *self, const void *text, size_t bytes)
{
    if (bytes == 0)
        return 0; /* there may be no memory yet */
    TRY(toki_bytes_reserve(self, bytes));
    memcpy(self->data + self->count, text, bytes);
    self->count += bytes;
    return 0;
}

/* Ends a copy that has the changed text up to byte `taken`. If nothing was taken, the text itself
 * is the result. */
static int end_copy(const char *text, size_t bytes, size_t taken, toki_bytes *copy,
                    const char **out, size_t *out_bytes)
{
    *out = text;
    *out_bytes = bytes;
    if (taken == 0)
        return 0;
    TRY(toki_append(copy, text + taken, bytes - taken));
    *out = copy->data;
    *out_bytes = copy->count;
    return 0;
}

int toki_text_valid(const char *text, size_t bytes, toki_bytes *copy, const char **out,
                    size_t *out_bytes)
{
    size_t at = 0, taken = 0;
    copy->count = 0;
    while (at < bytes) {
        at += ascii_run(text + at, bytes - at);
        if (at == bytes)
            break;
        int length = utf8_character(text + at, bytes - at);
        if (length > 0) {
            at += (size_t)length;
            continue;
        }
        TRY(toki_append(copy, text + taken, at - taken));
        TRY(toki_append(copy, "\xef\xbf\xbd", 3)); /* U+FFFD */
        at += length < 0 ? (size_t)-length : bytes - at;
        taken = at;
    }
    return end_copy(text, bytes, taken, copy, out, out_bytes);
}

/* --- stand-ins --- */

uint32_t toki_stand_in(uint32_t character)
{
    if (character < stand_ins[0].first)
        return character;
    size_t low = 0, high = STAND_IN_COUNT;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (character > stand_ins[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < STAND_IN_COUNT && character >= stand_ins[low].first ? stand_ins[low].by
                                                                     : character;
}

/* For characters of up to three bytes, indexed by all bits except the last six: 1 if one of the 64
 * characters may have a stand-in. Filled at the first call. */
static uint8_t three_bytes[1024];
static pthread_once_t three_bytes_once = PTHREAD_ONCE_INIT;

static void make_three_bytes(void)
{
    for (size_t i = 0; i < STAND_IN_COUNT; i++)
        for (uint32_t c = stand_ins[i].first; c <= stand_ins[i].last && c < 0x10000; c++)
            three_bytes[c >> 6] = 1;
}

int toki_text_shadow(const char *text, size_t bytes, toki_bytes *copy, const char **out)
{
    pthread_once(&three_bytes_once, make_three_bytes);
    bool is_copied = false;
    for (size_t at = 0; at < bytes;) {
        at += ascii_run(text + at, bytes - at);
        if (at == bytes)
            break;
        size_t step;
        uint32_t character = toki_decode(text + at, &step);
        if (character >= 0x10000 || three_bytes[character >> 6]) {
            uint32_t by = toki_stand_in(character);
            if (by != character) {
                if (!is_copied) {
                    copy->count = 0;
                    TRY(toki_bytes_reserve(copy, bytes));
                    memcpy(copy->data, text, bytes);
                    is_copied = true;
                }
                utf8proc_encode_char((utf8proc_int32_t)by, (utf8proc_uint8_t *)copy->data + at);
            }
        }
        at += step;
    }
    *out = is_copied ? copy->data : text;
    return 0;
}

/* --- normal forms --- */

static bool composes(enum toki_form form)
{
    return form == TOKI_NFC || form == TOKI_NFKC;
}

static utf8proc_option_t compatible(enum toki_form form)
{
    return form == TOKI_NFKC || form == TOKI_NFKD ? UTF8PROC_COMPAT : 0;
}

bool toki_is_unknown(uint32_t character)
{
    for (size_t i = 0; i < UNKNOWN_COUNT; i++)
        if (character >= unknown_marks[i].first && character <= unknown_marks[i].last)
            return true;
    return toki_stand_in(character) != character && character != 0x180e && character != 0x1171e;
}

/* True if the character begins a new cluster (it is not a mark and composes with nothing before it)
 * and is its own normal form. */
static bool is_steady(uint32_t character, enum toki_form form)
{
    if (toki_is_unknown(character))
        return true;
    const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)character);
    if (property->combining_class != 0 || property->category == UTF8PROC_CATEGORY_MN ||
        property->category == UTF8PROC_CATEGORY_MC || property->category == UTF8PROC_CATEGORY_ME)
        return false;
    if (character >= 0x1160 && character <= 0x11ff) /* vowels and final consonants of Hangul */
        return false;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)character, parts, 32,
                                UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | compatible(form), &boundary);
    if (count == 1)
        return parts[0] == (utf8proc_int32_t)character;
    if (count < 1 || count > 32 || !composes(form))
        return false;
    count = utf8proc_normalize_utf32(parts, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return count == 1 && parts[0] == (utf8proc_int32_t)character;
}

int toki_steady_make(enum toki_form form, uint8_t **out)
{
    *out = mem_alloc(CHARACTERS / 8, 1, "tokenizer normal form");
    if (!*out)
        return -ENOMEM;
    for (uint32_t c = 0; c < CHARACTERS; c++)
        if (c < 0x80 || is_steady(c, form))
            (*out)[c / 8] |= (uint8_t)(1u << (c % 8));
    return 0;
}

/* Appends the normal form of a few characters. */
static int append_normal(enum toki_form form, const char *text, size_t bytes, toki_bytes *copy)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t count =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &normal,
                     UTF8PROC_STABLE | (composes(form) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                         compatible(form));
    if (count < 0)
        return err_set(ERR_INTERNAL, "utf8proc cannot normalize a text of %zu bytes: %s", bytes,
                       utf8proc_errmsg(count));
    int rc = toki_append(copy, normal, (size_t)count);
    free(normal); /* utf8proc's, from malloc */
    return rc;
}

int toki_text_normal(enum toki_form form, const uint8_t *steady, const char *text, size_t bytes,
                     toki_bytes *copy, const char **out, size_t *out_bytes)
{
    size_t taken = 0;    /* the bytes before it are in the copy */
    size_t previous = 0; /* where the last steady character began */
    copy->count = 0;
    for (size_t at = 0; at < bytes;) {
        size_t run = ascii_run(text + at, bytes - at), step;
        if (run) {
            at += run;
            previous = at - 1;
            continue;
        }
        uint32_t character = toki_decode(text + at, &step);
        if (steady[character / 8] & (1u << (character % 8))) {
            previous = at;
            at += step;
            continue;
        }
        do { /* a cluster: from the last steady character to the next one */
            at += step;
            if (at == bytes)
                break;
            character = toki_decode(text + at, &step);
        } while (!(steady[character / 8] & (1u << (character % 8))));
        character = toki_decode(text + previous, &step);
        if (previous < at && toki_is_unknown(character)) /* utf8proc might treat it as a mark */
            previous += step;
        TRY(toki_append(copy, text + taken, previous - taken));
        TRY(append_normal(form, text + previous, at - previous, copy));
        taken = previous = at;
    }
    return end_copy(text, bytes, taken, copy, out, out_bytes);
}
