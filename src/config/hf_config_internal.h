/* Shared by the files hf_config*.c: they translate config.json of a checkpoint into a model block,
 * and a model into config.json. Both directions follow from the same tables: a row that says which
 * key is read says which key is written. */
#ifndef SLUICE_CONFIG_HF_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_HF_CONFIG_INTERNAL_H

#include <jansson.h>

#include "config/config_internal.h"

struct hfi_config {
    char file[FILE_PATH_BYTES]; /* DIR/config.json, the name in messages */
    json_t *doc;                /* owned: an object */
    json_t *block;              /* owned: the model block that it means */
    uint64_t positions;         /* the longest sequence */
};
typedef struct hfi_config hfi_config;

/* --- hf_config_keys.c --- */

/* Sets "<file>: <key>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int hfi_error(const hfi_config *self, const char *key,
                                                    const char *format, ...);

/* Returns the value of a key; NULL if it is absent or null. */
const json_t *hfi_get(const hfi_config *self, const char *key);

/* hfi_uint reads a whole number of at least 1; fallback 0: the key must be there. hfi_bool reads a
 * bool. */
int hfi_uint(const hfi_config *self, const char *key, uint64_t fallback,
             uint64_t *value) MUST_CHECK;
int hfi_bool(const hfi_config *self, const char *key, bool fallback, bool *value) MUST_CHECK;

/* Reads a finite number above 0 from a block of config.json. Messages call the block `inside` ("":
 * the file's own keys). fallback 0: the key must be there. */
int hfi_real(const hfi_config *self, const json_t *block, const char *inside, const char *key,
             double fallback, double *value) MUST_CHECK;

/* Writes a key of the model block, and takes the reference to `value`. */
int hfi_put(hfi_config *self, const char *key, json_t *value) MUST_CHECK;

/* The ways to treat a key of config.json when it is read. */
enum hfi_kind {
    HFI_COUNT,        /* writes a whole number from 1 on; fallback 0: it must be there */
    HFI_WIDTH,        /* the same; the fallback is so many times hidden_size */
    HFI_NUMBER,       /* writes a number above 0; fallback 0: the same */
    HFI_FACTOR,       /* the same, unless it is 1 */
    HFI_INVERSE,      /* writes 1 / x of a number x */
    HFI_INVERSE_ROOT, /* writes 1 / sqrt(x) */
    HFI_CAP,          /* writes a number, if there is one: not if it is null, or fallback 0 */
    HFI_DROPOUT,      /* writes a probability, unless it is 0 */
    HFI_BALANCE,      /* writes a coefficient, if output_router_logits is true and it is not 0 */
    HFI_SWITCH,       /* writes true or false */
    HFI_OPTION,       /* writes true, if it is that */
    /* Refuse what is neither null nor the only value that is built. That value is written. */
    HFI_ONLY,        /* true or false, as the fallback says */
    HFI_ONLY_NUMBER, /* the fallback */
    HFI_ONLY_WIDTH,  /* the fallback, so many times hidden_size */
    HFI_ONLY_WORD,   /* this word */
    HFI_ONLY_EMPTY,  /* an empty list */
    HFI_ONLY_NULL,   /* null */
    /* Write `activation`, if the function is not that of the family. They refuse one that is not
     * built with, or without, a gate. Gemma: "gelu" means the tanh form, as transformers reads it;
     * older files have the true name in hidden_activation. */
    HFI_GATED,
    HFI_GATED_GEMMA,
    HFI_PLAIN,
};

struct hfi_key {
    const char *of; /* names of families (model_type); "rope": all with rotary positions */
    enum hfi_kind kind;
    /* The key of the model block; ONLY...: why; ONLY_WORD: the word; GATED, PLAIN: the family's own
     * function, in transformers' words. */
    const char *to;
    const char *from; /* NULL: no key says it, and the fallback is written */
    double fallback;
};
typedef struct hfi_key hfi_key;

/* Does what one row says, whatever families it is of. */
int hfi_read_key(hfi_config *self, const hfi_key *row) MUST_CHECK;
/* The way back: writes the row's key into a new config.json. Every number of the job's model must
 * be filled in, also those that a job may leave out. */
int hfi_write_key(json_t *config, const job *from, const hfi_key *row) MUST_CHECK;
/* True if the row says that the family's own activation is this one. */
bool hfi_is_own_activation(const hfi_key *row, enum activation which);

#define HFI_NEW_FILE "the new config.json" /* in messages */
/* Writes a key of a new config.json, and takes the reference to `value`. */
int hfi_add(json_t *config, const char *key, json_t *value) MUST_CHECK;

/* --- hf_config_families.c --- */

typedef struct hfi_family hfi_family;
/* Finds the family of a model_type; NULL: there is none. */
const hfi_family *hfi_find_family(const char *name);
/* Returns family `idx`; NULL after the last. */
const hfi_family *hfi_family_at(uint32_t idx);
/* Returns the next row of a family after `row` (NULL: its first one); NULL: there is no other. The
 * late rows are those of families with has_late_experts: call hfi_next_late_key only if some block
 * has experts. */
const hfi_key *hfi_next_key(const hfi_family *of, const hfi_key *row);
const hfi_key *hfi_next_late_key(const hfi_family *of, const hfi_key *row);

/* --- hf_config_rope.c --- */

/* A family's rotary positions, as long as config.json says nothing else, and its own names of keys
 * outside the block if they are not transformers' usual ones (NULL). */
struct hfi_rope {
    double theta; /* 0: 10000 */
    double share; /* of each head that is rotated; 0: always all of it */
    const char *theta_key, *share_key;
    /* original_max_position_embeddings, in families that have this key outside the block; 0: the
     * others */
    uint64_t original;
    bool is_needed; /* config.json must have a block: without one transformers has its own */
};
typedef struct hfi_rope hfi_rope;

/* Writes rope_theta, partial_rotary_factor and rope_scaling, taken from rope_parameters,
 * rope_scaling or the file's own keys. The types yarn and dynamic may raise self->positions. */
int hfi_put_rope(hfi_config *self, const hfi_family *family) MUST_CHECK;
/* The way back. */
int hfi_write_rope(json_t *config, const model_spec *from, const hfi_family *of) MUST_CHECK;

/* --- hf_config_window.c --- */

/* The blocks that attend within a window, if config.json has no list of them. */
enum hfi_windowed {
    HFI_NO_WINDOWS,
    HFI_WINDOWS_EVERYWHERE,
    HFI_WINDOWS_FROM_ONE_ON,  /* from block `number` on */
    HFI_WINDOWS_WITHOUT_ROPE, /* those without rotary positions */
    HFI_WINDOWS_BUT_EVERY,    /* all but every `number`-th */
    HFI_WINDOWS_WITH_ROPE     /* the same; only blocks with a window have rotary positions */
};

struct hfi_windows {
    enum hfi_windowed blocks;
    uint64_t width, number; /* if config.json does not say; width 0: then there is no window */
};

struct hfi_family {
    const char *name;       /* model_type */
    const char *family;     /* model.family */
    const char *class_name; /* of the whole model in transformers */
    bool has_table;         /* of positions; the members below are about the others */
    uint64_t positions;     /* if config.json does not say */
    uint64_t kv_heads;      /* the same; 0: as many as heads */
    uint64_t head_dim;      /* the same; 0: hidden_size / heads */
    bool has_plain_heads;   /* head_dim is not written: it is always hidden_size / heads */
    hfi_rope rope;
    struct hfi_windows windows;
    /* The base of the rotary positions of blocks with a window, if config.json does not say; 0: it
     * is that of the blocks without one. Only positions of blocks without a window may be scaled.
     * window_theta_key: the key that says it; NULL: rope_parameters has a block for each of the two
     * kinds. */
    double window_theta;
    const char *window_theta_key;
    bool has_nope;         /* some blocks have none */
    bool has_scaled_rows;  /* the embedding's rows are multiplied by the root of hidden_size */
    bool has_latents;      /* multi-head latent attention; head_dim is the sum of two keys */
    bool has_late_experts; /* the first blocks may have none. If config.json does not say: */
    uint64_t dense_blocks, shared_experts, groups, groups_chosen;
    /* The scores of experts are a softmax, and topk_method says whether there are groups. */
    bool has_softmax;
};

/* Writes window and window_pattern. Call it after nope_interval is written; WITH_ROPE writes it. */
int hfi_put_window(hfi_config *self, const struct hfi_windows *of, uint64_t layers) MUST_CHECK;
/* Writes window_rope_theta, if there is a window. */
int hfi_put_window_rope(hfi_config *self, const hfi_family *of) MUST_CHECK;
/* The way back of hfi_put_window. */
int hfi_write_window(json_t *config, const model_spec *from,
                     const struct hfi_windows *of) MUST_CHECK;
/* True if a block attends within the window, or has that window's rotary positions. */
bool hfi_has_window(const model_spec *from, uint64_t block);

/* --- hf_config.c --- */

/* Fills self->block from self->doc. */
int hfi_fill_block(hfi_config *self) MUST_CHECK;

#endif
