/* Operation graphs of cuDNN's backend API: tensors and operations, the choice of an engine, and
 * runs of a plan. To make a graph allocates inside cuDNN, but no memory of ours. Each run creates
 * and destroys one small descriptor inside cuDNN, the variant pack: once finalized, it cannot take
 * a second set of addresses. All calls come from the context's thread. */
#include "kernels/cuda/attention/cudnn_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { CONFIGS_MAX = 64 };

void cudai_cudnn_graph_init(cudai_cudnn_graph *graph, const cudai_cudnn *api)
{
    memset(graph, 0, sizeof *graph);
    graph->api = api;
}

void cudai_cudnn_graph_fini(cudai_cudnn_graph *graph)
{
    while (graph->owned_count > 0)
        (void)graph->api->descriptor_destroy(graph->owned[--graph->owned_count]);
    memset(graph, 0, sizeof *graph);
}

/* --- construction --- */

/* Returns a new descriptor that the graph owns, or NULL after an error. */
static cudnnBackendDescriptor_t own(cudai_cudnn_graph *graph, cudnnBackendDescriptorType_t type,
                                    const char *what)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (graph->rc < 0)
        return NULL;
    assert(graph->owned_count < CUDAI_CUDNN_OWNED_MAX);
    graph->rc =
        cudai_cudnn_check(graph->api, graph->api->descriptor_create(type, &descriptor), what);
    if (graph->rc < 0)
        return NULL;
    graph->owned[graph->owned_count++] = descriptor;
    return descriptor;
}

/* Destroys the newest descriptors until `count` of them remain. */
static void disown(cudai_cudnn_graph *graph, int count)
{
    while (graph->owned_count > count)
        (void)graph->api->descriptor_destroy(graph->owned[--graph->owned_count]);
}

static void set(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                const void *values, const char *what)
{
    if (graph->rc == 0)
        graph->rc = cudai_cudnn_check(graph->api,
                                      graph->api->set(descriptor, name, type, count, values), what);
}

static void set_descriptor(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                           cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t value,
                           const char *what)
{
    set(graph, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value, what);
}

static void finalize(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                     const char *what)
{
    if (graph->rc == 0)
        graph->rc = cudai_cudnn_check(graph->api, graph->api->finalize(descriptor), what);
}

static cudnnBackendDescriptor_t make_tensor(cudai_cudnn_graph *graph,
                                            const cudai_cudnn_shape *shape, cudnnDataType_t type,
                                            int64_t uid, bool is_by_value)
{
    static const char what[] = "a tensor";
    bool is_virtual = uid == 0;
    /* needed by vector accesses; the caller's addresses are checked before they are used */
    int64_t alignment_bytes = is_by_value || type == CUDNN_DATA_FLOAT ? 4 : 16;
    cudnnBackendDescriptor_t tensor = own(graph, CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    if (is_virtual) {
        uid = CUDAI_CUDNN_VIRTUAL_UID + graph->virtual_count++;
        alignment_bytes = 16;
    }
    set(graph, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, shape->dims, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, shape->strides, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment_bytes,
        what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    set(graph, tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &is_by_value, what);
    finalize(graph, tensor, what);
    return graph->rc == 0 ? tensor : NULL;
}

cudnnBackendDescriptor_t cudai_cudnn_tensor(cudai_cudnn_graph *graph,
                                            const cudai_cudnn_shape *shape, cudnnDataType_t type,
                                            int64_t uid)
{
    return make_tensor(graph, shape, type, uid, false);
}

cudnnBackendDescriptor_t cudai_cudnn_scalar(cudai_cudnn_graph *graph, int64_t uid)
{
    static const cudai_cudnn_shape one = {{1, 1, 1, 1}, {1, 1, 1, 1}};
    assert(uid != 0);
    return make_tensor(graph, &one, CUDNN_DATA_FLOAT, uid, true);
}

static void add_op(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t op, const char *what)
{
    finalize(graph, op, what);
    if (graph->rc < 0)
        return;
    assert(graph->op_count < CUDAI_CUDNN_OPS_MAX);
    graph->ops[graph->op_count++] = op;
}

static void add_pointwise(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t descriptor,
                          cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t b,
                          cudnnBackendDescriptor_t t, cudnnBackendDescriptor_t y)
{
    static const char what[] = "a pointwise operation";
    cudnnBackendDescriptor_t op = own(graph, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, descriptor, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
    if (b != NULL)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
    if (t != NULL)
        set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
    add_op(graph, op, what);
}

static cudnnBackendDescriptor_t pointwise_mode(cudai_cudnn_graph *graph, cudnnPointwiseMode_t mode,
                                               cudnnDataType_t compute_type)
{
    static const char what[] = "a pointwise mode";
    cudnnBackendDescriptor_t descriptor = own(graph, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
    set(graph, descriptor, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(graph, descriptor, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute_type,
        what);
    return descriptor;
}

void cudai_cudnn_pointwise(cudai_cudnn_graph *graph, cudnnPointwiseMode_t mode,
                           cudnnDataType_t compute_type, cudnnBackendDescriptor_t x,
                           cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                           cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t descriptor = pointwise_mode(graph, mode, compute_type);
    finalize(graph, descriptor, "a pointwise mode");
    add_pointwise(graph, descriptor, x, b, t, y);
}

void cudai_cudnn_index(cudai_cudnn_graph *graph, int64_t axis, cudnnBackendDescriptor_t x,
                       cudnnBackendDescriptor_t y)
{
    cudnnBackendDescriptor_t descriptor =
        pointwise_mode(graph, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT);
    set(graph, descriptor, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis,
        "the axis of an index");
    finalize(graph, descriptor, "an index");
    add_pointwise(graph, descriptor, x, NULL, NULL, y);
}

void cudai_cudnn_matmul(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t a,
                        cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c)
{
    static const char what[] = "a matrix product";
    cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t descriptor = own(graph, CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
    set(graph, descriptor, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute_type,
        what);
    finalize(graph, descriptor, what);
    cudnnBackendDescriptor_t op = own(graph, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, descriptor, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
    add_op(graph, op, what);
}

void cudai_cudnn_reduce(cudai_cudnn_graph *graph, cudnnReduceTensorOp_t reduce_op,
                        cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y)
{
    static const char what[] = "a reduction";
    cudnnDataType_t compute_type = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t descriptor = own(graph, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
    set(graph, descriptor, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute_type,
        what);
    set(graph, descriptor, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
        &reduce_op, what);
    finalize(graph, descriptor, what);
    cudnnBackendDescriptor_t op = own(graph, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, descriptor, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
    add_op(graph, op, what);
}

void cudai_cudnn_reshape(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t y)
{
    static const char what[] = "a reshape";
    cudnnBackendDescriptor_t op = own(graph, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
    set_descriptor(graph, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
    add_op(graph, op, what);
}

/* --- the choice of an engine --- */

/* The facts that cuDNN reports about the engine of a configuration. */
struct engine_facts {
    int64_t engine_idx;
    bool is_nondeterministic;
};

static int get_engine_facts(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t config,
                            struct engine_facts *facts)
{
    static const char what[] = "to describe an engine";
    const cudai_cudnn *api = graph->api;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT + 16];
    int64_t count = 0;
    memset(facts, 0, sizeof *facts);
    cudnnBackendDescriptor_t engine = own(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
    TRY(graph->rc);
    TRY(cudai_cudnn_check(api,
                          api->get(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine),
                          what));
    TRY(cudai_cudnn_check(api,
                          api->get(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                   &count, &facts->engine_idx),
                          what));
    TRY(cudai_cudnn_check(api,
                          api->get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                   CUDNN_TYPE_NUMERICAL_NOTE,
                                   (int64_t)(sizeof notes / sizeof notes[0]), &count, notes),
                          what));
    for (int64_t i = 0; i < count && i < (int64_t)(sizeof notes / sizeof notes[0]); i++)
        facts->is_nondeterministic |= notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    return 0;
}

/* Makes the plan of one configuration. On error the graph is unchanged; only the error's text is
 * set. */
static int try_config(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t config,
                      uint64_t workspace_bytes_max)
{
    static const char what[] = "an execution plan";
    const cudai_cudnn *api = graph->api;
    struct engine_facts facts;
    int64_t count = 0, workspace_bytes = 0;
    int owned_count = graph->owned_count, rc;
    cudnnBackendDescriptor_t plan;

    TRY_GOTO(rc, get_engine_facts(graph, config, &facts), fail);
    if (facts.is_nondeterministic) {
        rc = err_set(ERR_BACKEND, "%s: engine %lld is not deterministic", api->version,
                     (long long)facts.engine_idx);
        goto fail;
    }
    disown(graph, owned_count);
    plan = own(graph, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, what);
    set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config, what);
    if (api->device_properties != NULL)
        set_descriptor(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, api->device_properties,
                       what);
    else
        set(graph, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &api->handle,
            what);
    finalize(graph, plan, what);
    TRY_GOTO(rc, graph->rc, fail);
    TRY_GOTO(rc,
             cudai_cudnn_check(api,
                               api->get(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                        CUDNN_TYPE_INT64, 1, &count, &workspace_bytes),
                               what),
             fail);
    if (workspace_bytes < 0 || (uint64_t)workspace_bytes > workspace_bytes_max) {
        rc = err_set(ERR_BACKEND,
                     "%s: engine %lld needs %lld bytes of workspace, more than the limit of %llu",
                     api->version, (long long)facts.engine_idx, (long long)workspace_bytes,
                     (unsigned long long)workspace_bytes_max);
        goto fail;
    }
    graph->plan = plan;
    graph->workspace_bytes = (uint64_t)workspace_bytes;
    graph->engine_idx = facts.engine_idx;
    return 0;

fail:
    disown(graph, owned_count);
    graph->rc = 0;
    return rc;
}

/* Asks the heuristics and takes the first configuration that works. */
static int try_heuristics(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t operation_graph,
                          uint64_t workspace_bytes_max)
{
    static const char what[] = "to propose engines";
    const cudai_cudnn *api = graph->api;
    cudnnBackendDescriptor_t configs[CONFIGS_MAX];
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0, offered = 0;

    cudnnBackendDescriptor_t heuristic = own(graph, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, what);
    set_descriptor(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operation_graph, what);
    set(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (api->device_properties != NULL)
        set_descriptor(graph, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, api->device_properties,
                       what);
    finalize(graph, heuristic, what);
    TRY(graph->rc);
    TRY(cudai_cudnn_check(api,
                          api->get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &offered, NULL),
                          what));
    if (offered > CONFIGS_MAX)
        offered = CONFIGS_MAX;
    for (int64_t i = 0; i < offered; i++)
        configs[i] = own(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    TRY(graph->rc);
    if (offered > 0)
        TRY(cudai_cudnn_check(api,
                              api->get(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &count, configs),
                              what));
    if (count <= 0)
        return err_set(ERR_BACKEND, "%s offers no engine for this attention", api->version);
    int rc = 0;
    for (int64_t i = 0; i < count && i < offered; i++) {
        rc = try_config(graph, configs[i], workspace_bytes_max);
        if (rc == 0)
            return 0;
    }
    return err_prefix(rc, "%s: none of %lld engine configurations works; the last", api->version,
                      (long long)count);
}

/* Tries the configuration that `choice` describes. */
static int try_choice(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t operation_graph,
                      const cudai_cudnn_choice *choice, uint64_t workspace_bytes_max)
{
    static const char what[] = "a chosen engine";
    cudnnBackendDescriptor_t knobs[sizeof choice->knobs / sizeof choice->knobs[0]];
    const cudai_cudnn *api = graph->api;

    cudnnBackendDescriptor_t engine = own(graph, CUDNN_BACKEND_ENGINE_DESCRIPTOR, what);
    set_descriptor(graph, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, operation_graph, what);
    set(graph, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &choice->engine_idx,
        what);
    if (api->device_properties != NULL)
        set_descriptor(graph, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, api->device_properties, what);
    finalize(graph, engine, what);
    for (int i = 0; i < choice->knob_count; i++) {
        knobs[i] = own(graph, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, what);
        set(graph, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
            &choice->knobs[i].type, what);
        set(graph, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
            &choice->knobs[i].value, what);
        finalize(graph, knobs[i], what);
    }
    cudnnBackendDescriptor_t config = own(graph, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, what);
    set_descriptor(graph, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine, what);
    set(graph, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        choice->knob_count, knobs, what);
    finalize(graph, config, what);
    TRY(graph->rc);
    return try_config(graph, config, workspace_bytes_max);
}

int cudai_cudnn_graph_plan(cudai_cudnn_graph *graph, const cudai_cudnn_choice *choice,
                           uint64_t workspace_bytes_max)
{
    static const char what[] = "the operation graph";
    const cudai_cudnn *api = graph->api;
    cudnnBackendDescriptor_t operation_graph =
        own(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
    set(graph, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
        graph->op_count, graph->ops, what);
    if (api->handle != NULL)
        set(graph, operation_graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
            &api->handle, what);
    finalize(graph, operation_graph, what);
    TRY(graph->rc);
    return choice != NULL ? try_choice(graph, operation_graph, choice, workspace_bytes_max)
                          : try_heuristics(graph, operation_graph, workspace_bytes_max);
}

/* --- running --- */

int cudai_cudnn_graph_run(const cudai_cudnn_graph *graph, void *stream, const int64_t *uids,
                          void *const *addresses, int count, void *workspace)
{
    static const char what[] = "to run attention";
    const cudai_cudnn *api = graph->api;
    cudnnBackendDescriptor_t pack = NULL;
    TRY(cudai_cudnn_check(api, api->set_stream(api->handle, (cudaStream_t)stream), what));
    TRY(cudai_cudnn_check(api, api->descriptor_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
                          what));
    cudnnStatus_t status =
        api->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count,
                          addresses);
    if (status == CUDNN_STATUS_SUCCESS)
        status =
            api->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->finalize(pack);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->execute(api->handle, graph->plan, pack);
    int rc = cudai_cudnn_check(api, status, what);
    (void)api->descriptor_destroy(pack);
    return rc;
}
