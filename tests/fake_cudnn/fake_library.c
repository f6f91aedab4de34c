/* The stand-in's descriptors and entry points; see fake_cudnn.h. */
#include "fake_cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_internal.h"

struct fake_cudnn fake_cudnn;

static char last_error[256];

static cudnnStatus_t refuse(cudnnStatus_t status, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return status;
}

/* --- attributes ------------------------------------------------------------------------------- */

static size_t attr_bytes(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
        return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    default: /* enums, fp32, int32 */
        return 4;
    }
}

const void *fake_values(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name,
                        int64_t *count)
{
    for (int i = 0; i < descriptor->attr_count; i++)
        if (descriptor->attrs[i].name == name) {
            if (count != NULL)
                *count = descriptor->attrs[i].count;
            return descriptor->attrs[i].values;
        }
    return NULL;
}

int64_t fake_int64(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name,
                   int64_t otherwise)
{
    const int64_t *value = fake_values(descriptor, name, NULL);
    return value != NULL ? *value : otherwise;
}

int fake_enum(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name)
{
    const int *value = fake_values(descriptor, name, NULL);
    return value != NULL ? *value : -1;
}

fake_descriptor *fake_child(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name)
{
    fake_descriptor *const *value = fake_values(descriptor, name, NULL);
    return value != NULL ? *value : NULL;
}

static cudnnStatus_t set_attribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t count,
                                   const void *values)
{
    fake_descriptor *descriptor = to;
    if (descriptor == NULL || values == NULL || count < 1)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute of nothing");
    if (descriptor->is_finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute after finalizing");
    if (fake_values(descriptor, name, NULL) != NULL || descriptor->attr_count == FAKE_ATTRS)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an attribute twice, or too many");
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++) {
            const fake_descriptor *child = ((fake_descriptor *const *)values)[i];
            if (child == NULL || !child->is_finalized)
                return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an unfinished descriptor");
        }
    struct fake_attr *attr = &descriptor->attrs[descriptor->attr_count++];
    size_t bytes = (size_t)count * attr_bytes(type);
    *attr = (struct fake_attr){name, type, count, malloc(bytes)};
    memcpy(attr->values, values, bytes);
    return CUDNN_STATUS_SUCCESS;
}

/* --- descriptors ------------------------------------------------------------------------------ */

static cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                       cudnnBackendDescriptor_t *made)
{
    fake_descriptor *descriptor = calloc(1, sizeof *descriptor);
    descriptor->type = type;
    fake_cudnn.live_descriptor_count++;
    *made = descriptor;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t dead)
{
    fake_descriptor *descriptor = dead;
    for (int i = 0; i < descriptor->attr_count; i++)
        free(descriptor->attrs[i].values);
    free(descriptor);
    fake_cudnn.live_descriptor_count--;
    return CUDNN_STATUS_SUCCESS;
}

static bool is_unsound(int config_idx)
{
    int after = config_idx - fake_cudnn.refused_config_count;
    return after >= 0 && after < fake_cudnn.unsound_config_count;
}

static cudnnStatus_t finalize(cudnnBackendDescriptor_t whom)
{
    fake_descriptor *descriptor = whom;
    if (descriptor->is_finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM, "finalized twice");
    if (descriptor->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
        const fake_descriptor *engine = fake_child(descriptor, CUDNN_ATTR_ENGINECFG_ENGINE);
        descriptor->graph = fake_child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
        descriptor->config_idx = FAKE_ENGINE_CHOSEN;
    }
    if (descriptor->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const fake_descriptor *config =
            fake_child(descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (fake_values(descriptor, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, NULL) == NULL)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a plan without a handle");
        if (config->config_idx < fake_cudnn.refused_config_count)
            return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "this configuration is refused");
        descriptor->graph = config->graph;
        fake_cudnn.planned_engine_idx = 100 + config->config_idx;
    }
    descriptor->is_finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_results(const fake_descriptor *heuristic, int64_t room, int64_t *count,
                                 fake_descriptor **configs)
{
    if (fake_enum(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE) != CUDNN_HEUR_MODE_A)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only mode A");
    *count = fake_cudnn.config_count;
    for (int i = 0; i < fake_cudnn.config_count && i < room; i++) {
        configs[i]->graph = fake_child(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        configs[i]->config_idx = i;
        configs[i]->is_finalized = true;
        *count = i + 1;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_attribute(cudnnBackendDescriptor_t from, cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t room, int64_t *count,
                                   void *values)
{
    fake_descriptor *descriptor = from;
    if (!descriptor->is_finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a question to an unfinished one");
    *count = 1;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return get_results(descriptor, room, count, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE: {
        fake_descriptor *engine = *(fake_descriptor **)values;
        engine->config_idx = descriptor->config_idx;
        engine->is_finalized = true;
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)values = 100 + descriptor->config_idx;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
        cudnnBackendNumericalNote_t *notes = values;
        notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        if (is_unsound(descriptor->config_idx)) {
            notes[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
            *count = 2;
        }
        return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = (int64_t)fake_cudnn.workspace_bytes;
        return CUDNN_STATUS_SUCCESS;
    default:
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "an unknown question");
    }
}

/* --- the handle ------------------------------------------------------------------------------- */

static cudaStream_t handle_stream;

static cudnnStatus_t create(cudnnHandle_t *handle)
{
    if (fake_cudnn.fails_to_create)
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "the driver is too old");
    *handle = malloc(1);
    fake_cudnn.live_handle_count++;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(cudnnHandle_t handle)
{
    free(handle);
    fake_cudnn.live_handle_count--;
    fake_cudnn.last_stream = handle_stream;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream)
{
    handle_stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

static size_t get_version(void)
{
    return fake_cudnn.version != 0 ? fake_cudnn.version : 91900;
}

static const char *error_string(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "FAKE_SUCCESS" : "FAKE_REFUSAL";
}

static void last_error_string(char *message, size_t bytes)
{
    snprintf(message, bytes, "%s", last_error);
}

static cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack)
{
    const fake_descriptor *descriptor = plan, *arguments = pack;
    if (!descriptor->is_finalized || !arguments->is_finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a run of something unfinished");
    if (++fake_cudnn.run_count == fake_cudnn.fail_run)
        return refuse(CUDNN_STATUS_EXECUTION_FAILED, "this run fails");
    fake_cudnn.stream = handle_stream;
    return fake_run(descriptor->graph, arguments)
               ? CUDNN_STATUS_SUCCESS
               : refuse(CUDNN_STATUS_EXECUTION_FAILED, "the graph cannot be run");
}

/* --- library.c's functions -------------------------------------------------------------------- */

typedef void (*entry_point)(void);

static const struct entry {
    const char *name;
    entry_point function;
} entries[] = {
    {"cudnnCreate", (entry_point)create},
    {"cudnnDestroy", (entry_point)destroy},
    {"cudnnSetStream", (entry_point)set_stream},
    {"cudnnGetVersion", (entry_point)get_version},
    {"cudnnGetErrorString", (entry_point)error_string},
    {"cudnnGetLastErrorString", (entry_point)last_error_string},
    {"cudnnBackendCreateDescriptor", (entry_point)create_descriptor},
    {"cudnnBackendDestroyDescriptor", (entry_point)destroy_descriptor},
    {"cudnnBackendSetAttribute", (entry_point)set_attribute},
    {"cudnnBackendGetAttribute", (entry_point)get_attribute},
    {"cudnnBackendFinalize", (entry_point)finalize},
    {"cudnnBackendExecute", (entry_point)execute},
};

void *cudai_library_open(const char *const *sonames, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "%s: hidden by the test", sonames[0]);
    return fake_cudnn.is_absent ? NULL : (void *)(uintptr_t)entries;
}

void *cudai_library_symbol(void *library, const char *name)
{
    void *symbol = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        if (strcmp(entries[i].name, name) == 0 &&
            (fake_cudnn.missing == NULL || strcmp(fake_cudnn.missing, name) != 0))
            memcpy(&symbol, &entries[i].function, sizeof symbol);
    return symbol;
}
