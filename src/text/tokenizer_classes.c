/* Classes of characters as the library has them for BERT: punctuation, marks, control characters,
 * capital letters. See tokenizer_internal.h.
 *
 * Its tables of punctuation and of non-spacing marks are of Unicode 8, that of all marks is of
 * Unicode 9, and lower case is of Unicode 17. utf8proc has the version of the system. So characters
 * are named here that became punctuation or marks since, or have changed. The table was made by
 * asking the library about every character; tests/reference/check_tokenizer.py asks again. */
#include <utf8proc.h>

#include "text/tokenizer_internal.h"

/* Characters that are punctuation or marks in Unicode 15, but not for the library. is_mark: it
 * counts as a mark, but not as a non-spacing one. */
static const struct {
    uint32_t first, last;
    bool is_mark;
} young[] = {
    {0x61D, 0x61D, false},     {0x8D4, 0x8E1, true},      {0x9FD, 0x9FD, false},
    {0xA76, 0xA76, false},     {0xAFA, 0xAFF, false},     {0xB55, 0xB55, false},
    {0xC04, 0xC04, false},     {0xC77, 0xC77, false},     {0xC84, 0xC84, false},
    {0xD00, 0xD00, false},     {0xD81, 0xD81, false},     {0x180F, 0x180F, false},
    {0x1885, 0x1886, true},    {0x1B7D, 0x1B7E, false},   {0x1CF7, 0x1CF7, false},
    {0x1DFB, 0x1DFB, true},    {0x2E43, 0x2E4F, false},   {0x2E52, 0x2E5D, false},
    {0xA8C5, 0xA8C5, true},    {0xA8FF, 0xA8FF, false},   {0xA9BD, 0xA9BD, true},
    {0x10EAD, 0x10EAD, false}, {0x10F55, 0x10F59, false}, {0x10F86, 0x10F89, false},
    {0x11073, 0x11074, false}, {0x110C2, 0x110C2, false}, {0x11145, 0x11146, false},
    {0x111C9, 0x111C9, false}, {0x111CE, 0x111CF, false}, {0x1123E, 0x1123E, true},
    {0x11438, 0x1143F, true},  {0x11442, 0x11444, true},  {0x11446, 0x11446, true},
    {0x1144B, 0x1144F, false}, {0x1145A, 0x1145B, false}, {0x1145D, 0x1145D, false},
    {0x11660, 0x1166C, false}, {0x116B9, 0x116B9, false}, {0x1182C, 0x11838, false},
    {0x1183B, 0x1183B, false}, {0x11931, 0x11935, false}, {0x11937, 0x11937, false},
    {0x1193B, 0x1193C, false}, {0x11940, 0x11940, false}, {0x11942, 0x11942, false},
    {0x11944, 0x11946, false}, {0x119D1, 0x119D7, false}, {0x119DA, 0x119DF, false},
    {0x119E2, 0x119E2, false}, {0x119E4, 0x119E4, false}, {0x11A01, 0x11A0A, false},
    {0x11A33, 0x11A33, false}, {0x11A35, 0x11A39, false}, {0x11A3B, 0x11A46, false},
    {0x11A51, 0x11A5B, false}, {0x11A8A, 0x11A98, false}, {0x11A9A, 0x11A9C, false},
    {0x11A9E, 0x11AA2, false}, {0x11C30, 0x11C36, true},  {0x11C38, 0x11C3D, true},
    {0x11C3F, 0x11C3F, true},  {0x11C41, 0x11C45, false}, {0x11C70, 0x11C71, false},
    {0x11C92, 0x11CA7, true},  {0x11CAA, 0x11CB0, true},  {0x11CB2, 0x11CB3, true},
    {0x11CB5, 0x11CB6, true},  {0x11D31, 0x11D36, false}, {0x11D3A, 0x11D3A, false},
    {0x11D3C, 0x11D3D, false}, {0x11D3F, 0x11D41, false}, {0x11D43, 0x11D43, false},
    {0x11D47, 0x11D47, false}, {0x11D8A, 0x11D8E, false}, {0x11D90, 0x11D91, false},
    {0x11D93, 0x11D96, false}, {0x11EF3, 0x11EF8, false}, {0x11FFF, 0x11FFF, false},
    {0x12FF1, 0x12FF2, false}, {0x16E97, 0x16E9A, false}, {0x16F4F, 0x16F4F, false},
    {0x16F7F, 0x16F87, false}, {0x16FE2, 0x16FE2, false}, {0x16FE4, 0x16FE4, false},
    {0x1CF00, 0x1CF2D, false}, {0x1CF30, 0x1CF46, false}, {0x1E000, 0x1E006, true},
    {0x1E008, 0x1E018, true},  {0x1E01B, 0x1E021, true},  {0x1E023, 0x1E024, true},
    {0x1E026, 0x1E02A, true},  {0x1E944, 0x1E94A, true},  {0x1E95E, 0x1E95F, false},
};
enum { YOUNG_COUNT = sizeof young / sizeof young[0] };

/* Capital letters of Unicode 16 and 17, and their small ones. */
static const struct {
    uint32_t first, last, lower;
} young_capitals[] = {
    {0x1C89, 0x1C89, 0x1C8A},    {0xA7CB, 0xA7CB, 0x264},  {0xA7CC, 0xA7CC, 0xA7CD},
    {0xA7CE, 0xA7CE, 0xA7CF},    {0xA7D2, 0xA7D2, 0xA7D3}, {0xA7D4, 0xA7D4, 0xA7D5},
    {0xA7DA, 0xA7DA, 0xA7DB},    {0xA7DC, 0xA7DC, 0x19B},  {0x10D50, 0x10D65, 0x10D70},
    {0x16EA0, 0x16EB8, 0x16EBB},
};

enum young_kind { OLD, YOUNG, YOUNG_MARK };

static enum young_kind find_young(uint32_t character)
{
    size_t low = 0, high = YOUNG_COUNT;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (character > young[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < YOUNG_COUNT && character >= young[low].first)
        return young[low].is_mark ? YOUNG_MARK : YOUNG;
    return toki_is_unknown(character) ? YOUNG : OLD;
}

static utf8proc_category_t category(uint32_t character)
{
    return utf8proc_category((utf8proc_int32_t)character);
}

bool toki_is_punctuation(uint32_t character)
{
    if (character < 0x80)
        return (character >= '!' && character <= '/') || (character >= ':' && character <= '@') ||
               (character >= '[' && character <= '`') || (character >= '{' && character <= '~');
    if (character == 0x166d || character == 0x111c9)
        return true;
    utf8proc_category_t kind = category(character);
    return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO &&
           find_young(character) == OLD;
}

static int keep(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    out[0] = character;
    return 1;
}

/* White space becomes a space; control, format and private characters go. */
int toki_map_clean(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    if (character >= ' ' && character < 0x7f)
        return keep(character, out);
    if (character == '\t' || character == '\n' || character == '\r')
        return keep(' ', out);
    if (character == 0 || character == 0xfffd)
        return 0;
    utf8proc_category_t kind = category(character);
    bool is_control = kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF ||
                      kind == UTF8PROC_CATEGORY_CO;
    bool is_young = (character >= 0x890 && character <= 0x891) || character == 0x8e2 ||
                    character == 0x110cd || (character >= 0x13430 && character <= 0x13438) ||
                    toki_is_unknown(character);
    if (is_control && !is_young)
        return 0;
    return keep(toki_is_space(character) ? ' ' : character, out);
}

/* Spaces around ideographs. */
int toki_map_chinese(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    static const uint32_t blocks[][2] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},
                                         {0x20000, 0x2a6df}, {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf},
                                         {0x2f800, 0x2fa1f}};
    for (size_t i = 0; character >= blocks[0][0] && i < sizeof blocks / sizeof blocks[0]; i++)
        if (character >= blocks[i][0] && character <= blocks[i][1]) {
            out[0] = out[2] = ' ';
            out[1] = character;
            return 3;
        }
    return keep(character, out);
}

int toki_map_lower(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    if (character < 0x80)
        return keep(character >= 'A' && character <= 'Z' ? character + 32 : character, out);
    if (character == 0x130) { /* I with a dot: i, and the dot above as a mark */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    for (size_t i = 0; i < sizeof young_capitals / sizeof young_capitals[0]; i++)
        if (character >= young_capitals[i].first && character <= young_capitals[i].last)
            return keep(young_capitals[i].lower + (character - young_capitals[i].first), out);
    return keep((uint32_t)utf8proc_tolower((utf8proc_int32_t)character), out);
}

int toki_map_no_nonspacing(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    bool is_mark = character >= 0x80 && category(character) == UTF8PROC_CATEGORY_MN &&
                   find_young(character) == OLD;
    return is_mark || character == 0x1734 ? 0 : keep(character, out);
}

int toki_map_no_marks(uint32_t character, uint32_t out[TOKI_MAPPED_MAX])
{
    utf8proc_category_t kind = character < 0x80 ? UTF8PROC_CATEGORY_CN : category(character);
    bool is_mark = kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME &&
                   find_young(character) != YOUNG;
    return is_mark || character == 0x1cf2 || character == 0x1cf3 ? 0 : keep(character, out);
}
