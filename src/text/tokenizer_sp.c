/* SentencePiece models: makes their pieces the tokens of a tokenizer, and finds what is put around
 * a text. See tokenizer_internal.h.
 *
 * Ids are those of the library's own Encode, in the version that is linked. (If two ways to cut a
 * text have the same score, unigram models of 0.1 and 0.2 may differ.)
 * - The library normalizes, and its ids include what the model puts before a text, mostly one
 *   space.
 * - Control pieces ("<s>") in a text are ordinary text, as in the library. User-defined pieces are
 *   found with and without plain_text.
 * - In a token's bytes U+2581 is a space, and a byte piece ("<0x0A>") is its byte. So the tokens of
 *   a text, one after the other, are the normalized text with its first space.
 * - Beginning and end are put around a text if tokenizer_config.json beside the model says
 *   add_bos_token, add_eos_token; the library itself puts none. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_sp_library.h"

enum { NO_MEMORY = -2, UNKNOWN_SHOWN_BYTES = 5 };

static const char space_mark[] = "\xe2\x96\x81";      /* U+2581 */
static const char unknown_shown[] = " \xe2\x81\x87 "; /* as the library shows it */
_Static_assert(sizeof unknown_shown == UNKNOWN_SHOWN_BYTES + 1, "with its zero");

/* Writes the bytes that a piece stands for to out[max(bytes, UNKNOWN_SHOWN_BYTES)]. */
static size_t piece_bytes(const char *text, size_t bytes, enum sp_piece_kind kind, char *out)
{
    unsigned value;
    size_t count = 0;
    if (kind == SP_UNKNOWN) {
        memcpy(out, unknown_shown, UNKNOWN_SHOWN_BYTES);
        return UNKNOWN_SHOWN_BYTES;
    }
    if (kind == SP_BYTE && sscanf(text, "<0x%2x>", &value) == 1) {
        out[0] = (char)value;
        return 1;
    }
    for (size_t at = 0; at < bytes;) {
        bool is_mark =
            kind == SP_NORMAL && bytes - at >= 3 && memcmp(text + at, space_mark, 3) == 0;
        out[count++] = is_mark ? ' ' : text[at];
        at += is_mark ? 3 : 1;
    }
    return count;
}

static int read_vocab(tokenizer *self, const char *path)
{
    const sp_library *pieces = self->pieces;
    int count = sp_library_count(pieces);
    size_t bytes, all = 0;
    enum sp_piece_kind kind;
    if (count < 1 || count - 1 > TOKI_ID_MAX)
        return err_set(ERR_INPUT, "%s: the model has %d pieces; 1 to %d are supported", path, count,
                       TOKI_ID_MAX + 1);
    for (int id = 0; id < count; id++) {
        (void)sp_library_piece(pieces, id, &bytes, &kind);
        all += bytes + UNKNOWN_SHOWN_BYTES;
    }
    TRY(toki_vocab_reserve(self, (uint64_t)count, all));
    for (int id = 0; id < count; id++) {
        const char *text = sp_library_piece(pieces, id, &bytes, &kind);
        toki_token *token = &self->tokens[id];
        char *copy = self->arena + self->arena_count, *shown = copy + bytes;
        memcpy(copy, text, bytes);
        token->text = copy;
        token->text_bytes = (uint32_t)bytes;
        token->bytes = shown;
        token->byte_count = (uint32_t)piece_bytes(text, bytes, kind, shown);
        token->is_special = kind == SP_CONTROL;
        self->arena_count += bytes + token->byte_count;
    }
    return toki_vocab_index(self);
}

static int take_ids(void *user, const int *ids, size_t count)
{
    token_list *out = user;
    TRY(toki_list_reserve(out, count));
    for (size_t i = 0; i < count; i++)
        out->ids[out->count++] = ids[i];
    return 0;
}

static int put_around(const char *path, const json_t *config, const char *name, int32_t id,
                      token_list *out)
{
    const json_t *value = json_object_get(config, name);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return err_set(ERR_INPUT, "%s: %s is neither true nor false", path, name);
    if (!json_is_true(value))
        return 0;
    if (id < 0)
        return err_set(ERR_INPUT, "%s: %s is true, and the model has no such token", path, name);
    return take_ids(out, &id, 1);
}

/* Reads the settings of tokenizer_config.json beside the model. */
static int read_config(tokenizer *self, const char *model_path)
{
    char path[FILE_PATH_BYTES];
    json_t *config;
    TRY(tokenizer_beside(model_path, "tokenizer_config.json", path));
    if (access(path, F_OK) != 0)
        return 0;
    TRY(toki_json_read(path, &config, NULL));
    int rc = put_around(path, config, "add_bos_token", self->begin_id, &self->prefix);
    if (rc == 0)
        rc = put_around(path, config, "add_eos_token", self->end_id, &self->suffix);
    json_decref(config);
    const uint32_t counts[] = {(uint32_t)self->prefix.count, (uint32_t)self->suffix.count};
    self->hash = XXH3_64bits_withSeed(counts, sizeof counts, self->hash);
    return rc;
}

int toki_sp_open(tokenizer *self, const char *path)
{
    char *data, message[SP_MESSAGE_BYTES] = "it is too damaged to say how";
    uint64_t bytes;
    sp_library *pieces;
    TRY(file_read(path, TOKI_FILE_BYTES_MAX, &data, &bytes));
    self->hash = XXH3_64bits(data, bytes);
    int rc = sp_library_open(data, bytes, &pieces, message);
    mem_free(data);
    if (rc == NO_MEMORY)
        return err_set(-ENOMEM, "no memory for the SentencePiece model %s", path);
    if (rc < 0)
        return err_set(ERR_INPUT, "%s cannot be read as a SentencePiece model: %s", path, message);
    self->pieces = pieces;
    TRY(read_vocab(self, path));
    self->begin_id = sp_library_begin_id(pieces);
    self->end_id = sp_library_end_id(pieces);
    return read_config(self, path);
}

void toki_sp_close(tokenizer *self)
{
    sp_library_close(self->pieces);
    self->pieces = NULL;
}

int toki_sp_encode(const tokenizer *self, const char *text, size_t bytes, token_list *out)
{
    char message[SP_MESSAGE_BYTES] = "";
    toki_bytes copy = {0};
    int rc = toki_text_valid(text, bytes, &copy, &text, &bytes);
    if (rc == 0)
        rc = sp_library_encode(self->pieces, text, bytes, out, take_ids, message);
    mem_free(copy.data);
    if (rc == NO_MEMORY)
        return err_set(-ENOMEM, "no memory to make tokens of a text of %zu bytes", bytes);
    if (rc == -1)
        return err_set(ERR_BACKEND, "SentencePiece cannot make tokens of a text: %s", message);
    return rc;
}
