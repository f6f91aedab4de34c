/* What the files hf_config*.c share: config.json of a checkpoint on its way to a model
 * block. */
#ifndef SLUICE_CONFIG_HF_CONFIG_INTERNAL_H
#define SLUICE_CONFIG_HF_CONFIG_INTERNAL_H

#include <jansson.h>

#include "config/config_internal.h"

/* A default that there is not: the key must be there. */
#define HFI_REQUIRED UINT64_MAX

struct hfi_config {
    char file[FILE_PATH_BYTES]; /* DIR/config.json, as messages name it */
    json_t *doc;                /* owned: an object */
    json_t *block;              /* owned: the model block that it means */
    uint64_t positions;         /* the longest sequence */
    uint64_t window;            /* of attention; 0: none */
};
typedef struct hfi_config hfi_config;

/* --- hf_config_keys.c --- */

/* Sets "<file>: <key>: <text>" and returns ERR_CONFIG. */
__attribute__((format(printf, 3, 4))) int hfi_error(const hfi_config *self, const char *key,
                                                    const char *format, ...);

/* The value of a key; NULL where it is absent or null. */
const json_t *hfi_get(const hfi_config *self, const char *key);

/* A whole number from 1 on at `key`, or at `other` (or NULL) where `key` is absent, else the
 * fallback. */
int hfi_uint(const hfi_config *self, const char *key, const char *other, uint64_t fallback,
             uint64_t *value) MUST_CHECK;
int hfi_bool(const hfi_config *self, const char *key, bool fallback, bool *value) MUST_CHECK;

/* A finite number above 0 of a block of config.json, which is named `inside` ("" : the file's own).
 * fallback 0: it must be there. */
int hfi_real(const hfi_config *self, const json_t *block, const char *inside, const char *key,
             double fallback, double *value) MUST_CHECK;

/* ERR_CONFIG where the text is none of the list, which NULL ends. */
int hfi_one_of(const hfi_config *self, const char *key, const char *fallback,
               const char *const *known, const char *why) MUST_CHECK;

/* ERR_CONFIG where the switch is not as it has to be. */
int hfi_refuse(const hfi_config *self, const char *key, bool wanted, const char *why) MUST_CHECK;

/* A line in the log where the families' keys ask for dropout, which does not happen here. */
void hfi_say_dropout(const hfi_config *self);

/* Into the block. put takes the reference to `value`. real and bool: the value of config.json's key
 * `from`. */
int hfi_put(hfi_config *self, const char *key, json_t *value) MUST_CHECK;
int hfi_put_uint(hfi_config *self, const char *key, uint64_t value) MUST_CHECK;
int hfi_put_real(hfi_config *self, const char *key, const char *from, double fallback) MUST_CHECK;
int hfi_put_bool(hfi_config *self, const char *key, const char *from, bool fallback) MUST_CHECK;

/* --- hf_config_rope.c --- */

/* rope_theta and rope_scaling, from rope_parameters, rope_scaling or the file's own keys. */
int hfi_put_rope(hfi_config *self) MUST_CHECK;

#endif
