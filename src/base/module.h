/* A module: a model that is described by data, and whose passes the program computes that uses the
 * library (src/sluice.h). The words are those of model/model.h: a unit is a flat vector of tensors,
 * a stage one step of the forward order with the one or two units that it uses. src/config reads
 * the description from the key model.module, src/model makes units, stages and passes of it. Plain
 * data. */
#ifndef SLUICE_BASE_MODULE_H
#define SLUICE_BASE_MODULE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MODULE_NAME_BYTES = 96,
    MODULE_DIMENSIONS_MAX = 8,
    MODULE_GROUPS_MAX = 1024,
    MODULE_UNITS_MAX = 8192,
    MODULE_STAGES_MAX = 65536,
};

struct module_tensor {
    char name[MODULE_NAME_BYTES];
    uint64_t shape[MODULE_DIMENSIONS_MAX];
    uint32_t dimension_count; /* 0: one element */
};
typedef struct module_tensor module_tensor;

struct module_unit {
    char name[MODULE_NAME_BYTES];
    module_tensor *tensors; /* [tensor_count] */
    uint32_t tensor_count;
    uint32_t group;    /* its optimizer's numbers are those of this group */
    bool is_frozen;    /* it has no gradients and no optimizer state */
    bool has_matrices; /* Muon updates its tensors of two dimensions, Adam all other ones */
};
typedef struct module_unit module_unit;

/* The forward or the backward of a stage. */
struct module_pass {
    bool is_computed; /* the program computes it; false: there is nothing to do */
    double seconds;
    /* The part of `seconds` in which gradients are copied, unless the pass lends them. */
    double copy_seconds;
    bool uses[2]; /* of the stage's units: the pass reads the params */
    bool adds[2]; /* backward: the pass makes gradients */
};
typedef struct module_pass module_pass;

struct module_stage {
    char name[MODULE_NAME_BYTES];
    uint32_t units[2], unit_count; /* 1 or 2 */
    module_pass forward, backward;
};
typedef struct module_stage module_stage;

struct module_spec {
    char name[MODULE_NAME_BYTES];
    module_unit *units; /* [unit_count] */
    uint32_t unit_count;
    module_stage *stages; /* [stage_count], at least 2, in forward order */
    uint32_t stage_count;
    uint32_t group_count;
    bool lends_grads; /* a pass can leave its gradients where they are (sluice_module_lend) */
};
typedef struct module_spec module_spec;

#endif
