/* Access to tokenizer.json for its readers: members by name, with their types checked and one
 * sentence for each defect. See tokenizer_internal.h. */
#ifndef SLUICE_TEXT_TOKENIZER_JSON_H
#define SLUICE_TEXT_TOKENIZER_JSON_H

#include <jansson.h>

#include "text/tokenizer_internal.h"

enum { TOKI_FILE_BYTES_MAX = 256 << 20, TOKI_WHERE_BYTES = 4352 };

struct toki_reader {
    const char *path;
    tokenizer *self;
    json_t *root;
};
typedef struct toki_reader toki_reader;

/* Reads the JSON document in a file; free it with json_decref. ERR_INPUT if there is none. *hash:
 * XXH3 of the file; `hash` may be NULL. */
int toki_json_read(const char *path, json_t **out, uint64_t *hash) MUST_CHECK;

/* A member of the given type (a string, a list or an object), or NULL if it is missing or null.
 * `where` names the object in messages. ERR_INPUT for a wrong type. */
int toki_member(const toki_reader *self, const char *where, const json_t *object, const char *name,
                json_type type, json_t **out) MUST_CHECK;
int toki_member_bool(const toki_reader *self, const char *where, const json_t *object,
                     const char *name, bool preset, bool *out) MUST_CHECK;
/* The "type" of a part of the file; never NULL on success. */
int toki_type(const toki_reader *self, const char *where, const json_t *object,
              const char **out) MUST_CHECK;
/* An id: an integer of 0 to TOKI_ID_MAX. */
int toki_id(const toki_reader *self, const char *where, const json_t *value,
            int32_t *out) MUST_CHECK;

/* The "replacement" of a Metaspace: one character. */
int toki_read_mark(const toki_reader *self, const char *where, const json_t *part,
                   toki_mark *out) MUST_CHECK;

enum { TOKI_SHOWN = 40 }; /* bytes of a token's text in a message */
static inline int toki_shown(size_t bytes)
{
    return bytes < TOKI_SHOWN ? (int)bytes : TOKI_SHOWN;
}

/* The text of an entry of added_tokens; NULL if it has none, which toki_read_added reports. */
const char *toki_content_of(const json_t *added, size_t *bytes);
size_t toki_vocab_size(const json_t *vocab); /* entries of model.vocab */

/* ---- tokenizer_model.c, tokenizer_specials.c, tokenizer_steps.c, tokenizer_decoder.c ----
 *
 * The order of the calls: decoder, model, normalizer, then the added tokens, then the
 * post-processor. The decoder's is_byte_level is set before. */
int toki_read_decoder(const toki_reader *self) MUST_CHECK;
int toki_read_normalizer(const toki_reader *self) MUST_CHECK;
int toki_read_model(const toki_reader *self) MUST_CHECK;
int toki_read_added(const toki_reader *self) MUST_CHECK;
int toki_read_post_processor(const toki_reader *self) MUST_CHECK;

#endif
