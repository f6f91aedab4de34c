/* The bytes that tokens stand for, by the decoder of a tokenizer.json. See tokenizer_internal.h.
 *
 * A byte-level file writes the byte b as the character byte_alphabet[b], so that every byte is
 * visible: bytes that are visible in Latin-1 as themselves, the other 68 as U+0100 and following. A
 * token whose text has any other character cannot result from merges; it stands for its text
 * unchanged.
 *
 * All other decoders change each token by itself, except that they may drop a space at the
 * beginning of a text, or put a space between tokens. Here that space belongs to the token after
 * it. */
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_json.h"

enum { ALPHABET_END = 0x100 + 68, BYTE_TOKEN = 6 /* bytes of "<0x0A>" */, DEPTH_MAX = 8 };

void toki_byte_alphabet(uint16_t characters[TOKI_BYTE_VALUES])
{
    uint16_t next = 0x100;
    for (unsigned b = 0; b < TOKI_BYTE_VALUES; b++) {
        bool is_visible = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        characters[b] = is_visible ? (uint16_t)b : next++;
    }
    assert(next == ALPHABET_END);
}

/* The byte that each character of the alphabet stands for; -1: none. Filled at the first call. */
static int16_t byte_of[ALPHABET_END];
static pthread_once_t byte_of_once = PTHREAD_ONCE_INIT;

static void make_byte_of(void)
{
    uint16_t characters[TOKI_BYTE_VALUES];
    toki_byte_alphabet(characters);
    memset(byte_of, 0xff, sizeof byte_of);
    for (int16_t b = 0; b < TOKI_BYTE_VALUES; b++)
        byte_of[characters[b]] = b;
}

/* False if a character is not of the alphabet: the text then stands for itself. */
static bool decode_bytes(const char *text, size_t text_bytes, char *out, size_t *count)
{
    pthread_once(&byte_of_once, make_byte_of);
    size_t step;
    *count = 0;
    for (size_t at = 0; at < text_bytes; at += step) {
        uint32_t character = toki_decode(text + at, &step);
        if (character >= ALPHABET_END || byte_of[character] < 0) {
            memcpy(out, text, text_bytes);
            *count = text_bytes;
            return false;
        }
        out[(*count)++] = (char)byte_of[character];
    }
    return true;
}

int toki_byte_token(const char *text, size_t bytes)
{
    if (bytes != BYTE_TOKEN || memcmp(text, "<0x", 3) != 0 || text[5] != '>' ||
        !isxdigit((unsigned char)text[3]) || !isxdigit((unsigned char)text[4]))
        return -1;
    const char digits[] = {text[3], text[4], '\0'};
    return (int)strtol(digits, NULL, 16);
}

/* Replaces each `from` by `to`, which is not longer. */
static void replace_all(char *text, size_t *bytes, const char *from, const char *to)
{
    size_t from_bytes = strlen(from), to_bytes = strlen(to), filled = 0;
    for (size_t at = 0; at < *bytes;) {
        bool fits = *bytes - at >= from_bytes && memcmp(text + at, from, from_bytes) == 0;
        if (fits)
            memcpy(text + filled, to, to_bytes);
        else
            text[filled] = text[at];
        filled += fits ? to_bytes : 1;
        at += fits ? from_bytes : 1;
    }
    *bytes = filled;
}

bool toki_decode_token(const toki_decoder *self, const char *text, size_t text_bytes, char *out,
                       size_t *count)
{
    static const char *const cleaned[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    int value;
    if (self->is_byte_level)
        return decode_bytes(text, text_bytes, out, count);
    *count = 0;
    if (self->falls_back && (value = toki_byte_token(text, text_bytes)) >= 0) {
        out[(*count)++] = (char)value;
        return true;
    }
    size_t prefix_bytes = strlen(self->prefix);
    bool continues = prefix_bytes > 0 && text_bytes >= prefix_bytes &&
                     memcmp(text, self->prefix, prefix_bytes) == 0;
    if (self->joins && !continues)
        out[(*count)++] = ' ';
    if (continues) {
        text += prefix_bytes;
        text_bytes -= prefix_bytes;
    }
    memcpy(out + *count, text, text_bytes);
    *count += text_bytes;
    for (uint32_t i = 0; i < self->count; i++)
        replace_all(out, count, self->replacements[i].from, self->replacements[i].to);
    for (size_t i = 0; self->cleans && i < sizeof cleaned / sizeof cleaned[0]; i++)
        replace_all(out, count, cleaned[i][0], cleaned[i][1]);
    return true;
}

/* --- reading --- */

static int add_replacement(const toki_reader *self, const char *from, const char *to)
{
    toki_decoder *decoder = &self->self->decoder;
    if (decoder->count == TOKI_DECODER_MAX ||
        strlen(from) >= sizeof decoder->replacements[0].from || !from[0] ||
        strlen(to) > strlen(from))
        return err_set(ERR_CONFIG,
                       "%s: a decoder that replaces \"%.40s\" by \"%.40s\" is not supported",
                       self->path, from, to);
    snprintf(decoder->replacements[decoder->count].from, sizeof decoder->replacements[0].from, "%s",
             from);
    snprintf(decoder->replacements[decoder->count++].to, sizeof decoder->replacements[0].to, "%s",
             to);
    return 0;
}

static int read_replace(const toki_reader *self, const json_t *part)
{
    json_t *pattern, *from, *to;
    TRY(toki_member(self, "decoder", part, "pattern", JSON_OBJECT, &pattern));
    TRY(toki_member(self, "decoder.pattern", pattern, "String", JSON_STRING, &from));
    TRY(toki_member(self, "decoder", part, "content", JSON_STRING, &to));
    if (!from || !to)
        return err_set(ERR_CONFIG,
                       "%s: a Replace of decoder needs a String as pattern, and a content",
                       self->path);
    return add_replacement(self, json_string_value(from), json_string_value(to));
}

static int read_wordpiece(const toki_reader *self, const json_t *part)
{
    toki_decoder *decoder = &self->self->decoder;
    json_t *prefix;
    TRY(toki_member(self, "decoder", part, "prefix", JSON_STRING, &prefix));
    TRY(toki_member_bool(self, "decoder", part, "cleanup", true, &decoder->cleans));
    decoder->joins = true;
    const char *text = prefix ? json_string_value(prefix) : "##";
    if (strlen(text) >= sizeof decoder->prefix)
        return err_set(ERR_CONFIG, "%s: decoder.prefix of %zu bytes is not supported", self->path,
                       strlen(text));
    snprintf(decoder->prefix, sizeof decoder->prefix, "%s", text);
    return 0;
}

/* A Strip is taken if it can strip only at the beginning of the whole text. */
static int read_strip(const toki_reader *self, const json_t *part, bool is_fused)
{
    const json_t *stop = json_object_get(part, "stop");
    if (!is_fused || (stop && !json_is_null(stop) && json_integer_value(stop) != 0))
        return err_set(ERR_CONFIG,
                       "%s: a Strip of decoder is supported only after Fuse, at the beginning",
                       self->path);
    return 0;
}

static int read_decoder(const toki_reader *self, const json_t *part, int depth, bool *is_fused)
{
    const char *type;
    json_t *list;
    const json_t *item;
    size_t i;
    toki_mark mark;
    TRY(toki_type(self, "decoder", part, &type));
    if (strcmp(type, "Sequence") == 0 && depth < DEPTH_MAX) {
        TRY(toki_member(self, "decoder", part, "decoders", JSON_ARRAY, &list));
        json_array_foreach(list, i, item) TRY(read_decoder(self, item, depth + 1, is_fused));
        return 0;
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(self, part);
    if (strcmp(type, "WordPiece") == 0)
        return read_wordpiece(self, part);
    if (strcmp(type, "Metaspace") == 0) {
        TRY(toki_read_mark(self, "decoder", part, &mark));
        return add_replacement(self, mark.text, " ");
    }
    if (strcmp(type, "Strip") == 0)
        return read_strip(self, part, *is_fused);
    if (strcmp(type, "ByteFallback") == 0)
        self->self->decoder.falls_back = true;
    else if (strcmp(type, "Fuse") == 0)
        *is_fused = true;
    else
        return err_set(ERR_CONFIG, "%s: the decoder %s is not supported", self->path, type);
    return 0;
}

int toki_read_decoder(const toki_reader *self)
{
    const json_t *part = json_object_get(self->root, "decoder");
    bool is_fused = false;
    if (self->self->decoder.is_byte_level)
        return 0;
    self->self->decoder.joins = !part || json_is_null(part); /* as the library does then */
    return self->self->decoder.joins ? 0 : read_decoder(self, part, 0, &is_fused);
}
