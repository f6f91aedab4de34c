/* Small checkpoints in Hugging Face's layout, made by our own writer. Every element is a function
 * of its tensor's name and its place in the stored tensor, so that a reader can be checked without
 * another reader. Errors end the test. */
#ifndef SLUICE_TESTS_HF_FIXTURE_H
#define SLUICE_TESTS_HF_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "config/job.h"
#include "model/model.h"

extern char hf_dir[256]; /* of this test's own */
int hf_fixture_setup(void **state);
int hf_fixture_teardown(void **state);
/* hf_dir/NAME; valid until the eighth call after this one. */
const char *hf_fixture_path(const char *name);

/* Element `idx` of the stored tensor; exact in bf16 and in fp16. */
float hf_fixture_value(const char *stored_name, uint64_t idx);

struct hf_fixture_shape {
    enum model_family family;
    uint64_t layers, hidden, heads, kv_heads, ffn, vocab, positions;
    bool tied;
    uint64_t max_part_bytes;
    enum dtype type;                    /* of the working params, which decides about parts */
    uint64_t experts, experts_per_unit; /* of a mixture */
};
typedef struct hf_fixture_shape hf_fixture_shape;

/* Initializers of a small model of each family, with a vocabulary of this size. */
#define HF_FIXTURE_GPT2(VOCAB)                                                                     \
    {                                                                                              \
        .family = MODEL_GPT2, .layers = 2, .hidden = 96, .heads = 2, .kv_heads = 2, .ffn = 200,    \
        .vocab = (VOCAB), .positions = 24, .tied = true,                                           \
    }
#define HF_FIXTURE_LLAMA(VOCAB)                                                                    \
    {                                                                                              \
        .family = MODEL_LLAMA, .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 2, .ffn = 130,   \
        .vocab = (VOCAB), .positions = 24, .tied = false,                                          \
    }
#define HF_FIXTURE_GPT_NEOX(VOCAB)                                                                 \
    {                                                                                              \
        .family = MODEL_GPT_NEOX, .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 6,            \
        .ffn = 200, .vocab = (VOCAB), .positions = 24, .tied = false,                              \
    }
#define HF_FIXTURE_OPT(VOCAB)                                                                      \
    {                                                                                              \
        .family = MODEL_OPT, .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 6, .ffn = 200,     \
        .vocab = (VOCAB), .positions = 24, .tied = true,                                           \
    }

#define HF_FIXTURE_BERT(VOCAB)                                                                     \
    {                                                                                              \
        .family = MODEL_BERT, .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 6, .ffn = 130,    \
        .vocab = (VOCAB), .positions = 24, .tied = true,                                           \
    }

#define HF_FIXTURE_MIXTURE(FAMILY, VOCAB)                                                          \
    {                                                                                              \
        .family = (FAMILY), .layers = 2, .hidden = 96, .heads = 6, .kv_heads = 2, .ffn = 50,       \
        .vocab = (VOCAB), .positions = 24, .tied = false, .experts = 6,                            \
    }

/* The shape of a job's model, without experts. */
hf_fixture_shape hf_fixture_shape_of(const job *asked);
model *hf_fixture_model(const hf_fixture_shape *shape); /* the caller destroys it */

struct hf_fixture_form {
    enum dtype type;
    bool is_bare;      /* names without the prefix of a whole model; BERT: old names of norms */
    uint32_t shards;   /* 0: one model.safetensors */
    bool has_extras;   /* tensors that hold no parameters, and a tied output matrix */
    bool is_fused;     /* a mixture: one tensor for all experts of a block */
    const char *left;  /* a tensor that is left out; or NULL */
    const char *added; /* a tensor [2, 3] that belongs to no model; or NULL */
};
typedef struct hf_fixture_form hf_fixture_form;

/* Makes the directory and writes the weights of the uncut model into it. */
void hf_fixture_write(const char *dir, const hf_fixture_shape *shape, const hf_fixture_form *form);
/* Writes config.json of such a model. */
void hf_fixture_config(const char *dir, const hf_fixture_shape *shape);
/* Fails the test unless the directory's tensors are those of such a checkpoint, in this dtype. */
void hf_fixture_compare(const char *dir, const hf_fixture_shape *shape,
                        const hf_fixture_form *form);
/* The stored name of a tensor of the model, which holds no experts. */
void hf_fixture_name(const hf_fixture_shape *shape, const hf_fixture_form *form, const char *name,
                     char out[256]);
/* Element `idx` of a unit's flat vector, as it should be read; 0 for padding. */
float hf_fixture_expected(const model *net, const hf_fixture_shape *shape,
                          const hf_fixture_form *form, uint32_t unit, uint64_t idx);
/* Writes a text file into the directory. */
void hf_fixture_text(const char *dir, const char *name, const char *text);

#endif
