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

/* ---- tokenizer_model.c ----
 *
 * The order of the calls: normalizer and model, then the added tokens, then the post-processor. */
int toki_read_model(const toki_reader *self) MUST_CHECK;
int toki_read_added(const toki_reader *self) MUST_CHECK;
int toki_read_post_processor(const toki_reader *self) MUST_CHECK;

#endif
