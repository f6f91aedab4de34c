/* Shared by the files hf_config*.c: they translate config.json of a checkpoint into a model
 * block. */
#ifndef SLUICE_CONFIG_HF_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_HF_CONFIG_INTERNAL_H

#include <jansson.h>

#include "config/config_internal.h"

/* Stands for a missing default: the key must be there. */
#define HFI_REQUIRED UINT64_MAX

struct hfi_config {
    char file[FILE_PATH_BYTES]; /* DIR/config.json, the name in messages */
    json_t *doc;                /* owned: an object */
    json_t *block;              /* owned: the model block that it means */
    uint64_t positions;         /* the longest sequence */
    bool has_window_rope;       /* blocks with a window have other rotary positions */
};
typedef struct hfi_config hfi_config;

/* --- hf_config_keys.c --- */

/* Sets "<file>: <key>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int hfi_error(const hfi_config *self, const char *key,
                                                    const char *format, ...);

/* Returns the value of a key; NULL if it is absent or null. */
const json_t *hfi_get(const hfi_config *self, const char *key);

/* hfi_uint reads a whole number of at least 1 from `key`, or from `other` (may be NULL) if `key` is
 * absent, or else takes the fallback. hfi_bool reads a bool in the same way. */
int hfi_uint(const hfi_config *self, const char *key, const char *other, uint64_t fallback,
             uint64_t *value) MUST_CHECK;
int hfi_bool(const hfi_config *self, const char *key, bool fallback, bool *value) MUST_CHECK;

/* Reads a finite number above 0 from a block of config.json. Messages call the block `inside` ("":
 * the file's own keys). fallback 0: the key must be there. */
int hfi_real(const hfi_config *self, const json_t *block, const char *inside, const char *key,
             double fallback, double *value) MUST_CHECK;

/* Returns ERR_CONFIG if the switch does not have the wanted value. */
int hfi_refuse(const hfi_config *self, const char *key, bool wanted, const char *why) MUST_CHECK;

/* These write into the block. hfi_put takes the reference to `value`. hfi_take_uint writes what
 * hfi_uint finds in `from` or `other`; hfi_put_real and hfi_put_bool write the value of `from`. */
int hfi_put(hfi_config *self, const char *key, json_t *value) MUST_CHECK;
int hfi_take_uint(hfi_config *self, const char *key, const char *from, const char *other,
                  uint64_t fallback, uint64_t *value) MUST_CHECK;
int hfi_put_real(hfi_config *self, const char *key, const char *from, double fallback) MUST_CHECK;
int hfi_put_bool(hfi_config *self, const char *key, const char *from, bool fallback) MUST_CHECK;
/* Writes the probability that `from` or the fallback gives, unless it is 0. */
int hfi_put_dropout(hfi_config *self, const char *key, const char *from,
                    double fallback) MUST_CHECK;
/* Writes `activation` if the function that `from` names is not `ours`, the family's own; `fallback`
 * is that in config.json's words. Refuses a function that is not built with or without a gate. */
int hfi_put_activation(hfi_config *self, const char *from, const char *fallback, const char *ours,
                       bool has_gate) MUST_CHECK;

/* --- hf_config_learned.c: each fills the block for its family --- */

int hfi_fill_gpt2(hfi_config *self) MUST_CHECK;
int hfi_fill_bert(hfi_config *self) MUST_CHECK;
int hfi_fill_opt(hfi_config *self) MUST_CHECK;

/* --- hf_config_rope.c --- */

/* A family's rotary positions, as long as config.json says nothing else, and its own names of keys
 * outside the block if they are not transformers' usual ones (NULL). */
struct hfi_rope {
    double theta;
    double share; /* of each head that is rotated; 0: always all of it */
    const char *theta_key, *share_key;
    /* original_max_position_embeddings, in families that have this key outside the block; 0: the
     * others */
    uint64_t original;
};
typedef struct hfi_rope hfi_rope;

/* Writes rope_theta, partial_rotary_factor and rope_scaling, taken from rope_parameters,
 * rope_scaling or the file's own keys. The types yarn and dynamic may raise self->positions. */
int hfi_put_rope(hfi_config *self, const hfi_rope *of) MUST_CHECK;

/* --- hf_config_window.c --- */

/* The blocks that attend within a window, if config.json has no list of them. */
enum hfi_windowed {
    HFI_NO_WINDOWS,
    HFI_WINDOWS_EVERYWHERE,
    HFI_WINDOWS_FROM_ONE_ON,  /* from block `number` on */
    HFI_WINDOWS_WITHOUT_ROPE, /* those without rotary positions */
    HFI_WINDOWS_BUT_EVERY     /* all but every `number`-th */
};

struct hfi_windows {
    enum hfi_windowed blocks;
    uint64_t width, number; /* if config.json does not say; width 0: then there is no window */
};

/* Writes window and window_pattern. Call it after nope_interval is written. */
int hfi_put_window(hfi_config *self, const struct hfi_windows *of, uint64_t layers) MUST_CHECK;
/* Writes window_rope_theta, if there is a window. */
int hfi_put_window_rope(hfi_config *self) MUST_CHECK;

#endif
