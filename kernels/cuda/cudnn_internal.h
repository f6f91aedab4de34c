/* What the files of cuDNN's attention share; nobody else includes this. cuDNN's backend API is a C
 * API of descriptors: tensors and operations make an operation graph, a heuristic names engines
 * that can run it, and an engine's configuration makes an execution plan.
 *   cudnn_library.c     the library, found and loaded at run time; its errors
 *   cudnn_graph.c       tensors and operations; the choice of an engine; running a plan
 *   attention_cudnn.c   the graphs of attention and what cuda_internal.h promises of them
 * A graph and what it refers to belong to the thread of their kernel_context. */
#ifndef SLUICE_KERNELS_CUDNN_INTERNAL_H
#define SLUICE_KERNELS_CUDNN_INTERNAL_H

#include <cudnn_backend.h>
#include <cudnn_version.h>

#include "kernels/cuda/cuda_internal.h"

/* The oldest library that is used: from 9.6 the backward clears its own accumulators. */
enum { CUDAI_CUDNN_VERSION_MIN = 90600 };

/* What a part of the deterministic backward may take of the scratch: enough for blocks to fill a
 * GPU, 16 heads of 4096 tokens or 4 of 8192 with their parts of dK and dV. */
enum { CUDAI_CUDNN_WORKSPACE_BYTES = 640 << 20 };

/* The library. Its entry points have cuDNN's own types, taken from the header. */
struct cudai_cudnn {
    uint64_t version_number;      /* 91900 is 9.19.0 */
    char version[32];             /* "cuDNN 9.19.0" */
    int compute_major;            /* of the GPU that plans are made for */
    uint64_t workspace_bytes_max; /* of one part of a backward pass: CUDAI_CUDNN_WORKSPACE_BYTES */
    cudnnHandle_t handle;         /* NULL where plans are only made, from device_properties */
    /* of a GPU that is not here, or NULL: tests alone */
    cudnnBackendDescriptor_t device_properties;

    __typeof__(cudnnCreate) *create;
    __typeof__(cudnnDestroy) *destroy;
    __typeof__(cudnnSetStream) *set_stream;
    __typeof__(cudnnGetVersion) *get_version;
    __typeof__(cudnnGetErrorString) *error_string;
    __typeof__(cudnnGetLastErrorString) *last_error_string;
    __typeof__(cudnnBackendCreateDescriptor) *descriptor_create;
    __typeof__(cudnnBackendDestroyDescriptor) *descriptor_destroy;
    __typeof__(cudnnBackendSetAttribute) *set;
    __typeof__(cudnnBackendGetAttribute) *get;
    __typeof__(cudnnBackendFinalize) *finalize;
    __typeof__(cudnnBackendExecute) *execute;
};
typedef struct cudai_cudnn cudai_cudnn;

/* Loads the library and fills *api but for compute_major, handle and device_properties. 0, or
 * ERR_BACKEND with the reason: absent, too old, or without an entry point. */
int cudai_cudnn_load(cudai_cudnn *api) MUST_CHECK;

/* 0 for success, else ERR_BACKEND with `what`, cuDNN's name of the status and its own last
 * message. */
int cudai_cudnn_check(const cudai_cudnn *api, cudnnStatus_t status, const char *what) MUST_CHECK;

/* --- cudnn_graph.c
 * ------------------------------------------------------------------------------ */

/* Dimensions and strides in elements; always four: [B, H, rows, columns]. */
struct cudai_cudnn_shape {
    int64_t dims[4];
    int64_t strides[4];
};
typedef struct cudai_cudnn_shape cudai_cudnn_shape;

enum {
    CUDAI_CUDNN_OWNED_MAX = 192, /* descriptors of one graph; attention's backward has about 110 */
    CUDAI_CUDNN_OPS_MAX = 40,
    CUDAI_CUDNN_ARGS_MAX = 16,
    CUDAI_CUDNN_VIRTUAL_UID =
        1000, /* tensors that exist inside a kernel alone are numbered from here */
};

/* A graph while it is made, then its plan. While it is made errors stick: after the first one every
 * further call does nothing, and cudai_cudnn_graph_plan returns it. The descriptors live as long as
 * the plan; whether cuDNN needs them so long is nowhere promised. */
struct cudai_cudnn_graph {
    const cudai_cudnn *api;
    cudnnBackendDescriptor_t owned[CUDAI_CUDNN_OWNED_MAX];
    int owned_count;
    cudnnBackendDescriptor_t ops[CUDAI_CUDNN_OPS_MAX];
    int op_count;
    int64_t virtual_count;
    int rc; /* the first error, or 0 */

    /* cudai_cudnn_graph_plan */
    cudnnBackendDescriptor_t plan; /* one of owned */
    uint64_t workspace_bytes;
    int64_t engine_idx; /* cuDNN's number of the engine that was taken */
};
typedef struct cudai_cudnn_graph cudai_cudnn_graph;

/* An engine and its knobs, for what the heuristics do not offer. */
struct cudai_cudnn_choice {
    int64_t engine_idx;
    int knob_count;
    struct {
        cudnnBackendKnobType_t type;
        int64_t value;
    } knobs[8];
};
typedef struct cudai_cudnn_choice cudai_cudnn_choice;

void cudai_cudnn_graph_init(cudai_cudnn_graph *graph, const cudai_cudnn *api);
void cudai_cudnn_graph_fini(cudai_cudnn_graph *graph); /* also of a graph that is all zeros */

/* A tensor in memory with the number that running gives its address under, or with uid 0 one that
 * never leaves a kernel. NULL after an error. */
cudnnBackendDescriptor_t cudai_cudnn_tensor(cudai_cudnn_graph *graph,
                                            const cudai_cudnn_shape *shape, cudnnDataType_t type,
                                            int64_t uid);
/* An fp32 number that running reads from host memory. */
cudnnBackendDescriptor_t cudai_cudnn_scalar(cudai_cudnn_graph *graph, int64_t uid);

/* y = mode(x, b), or mode(x, b, t) with t a tensor of booleans; b and t may be NULL. */
void cudai_cudnn_pointwise(cudai_cudnn_graph *graph, cudnnPointwiseMode_t mode,
                           cudnnDataType_t compute_type, cudnnBackendDescriptor_t x,
                           cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t t,
                           cudnnBackendDescriptor_t y);
/* y = the index of each element of x along `axis`, int32. */
void cudai_cudnn_index(cudai_cudnn_graph *graph, int64_t axis, cudnnBackendDescriptor_t x,
                       cudnnBackendDescriptor_t y);
void cudai_cudnn_matmul(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t a,
                        cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t c);
void cudai_cudnn_reduce(cudai_cudnn_graph *graph, cudnnReduceTensorOp_t op,
                        cudnnBackendDescriptor_t x, cudnnBackendDescriptor_t y);
void cudai_cudnn_reshape(cudai_cudnn_graph *graph, cudnnBackendDescriptor_t x,
                         cudnnBackendDescriptor_t y);

/* Closes the graph and makes the plan: of the configuration `choice`, or with NULL of the first one
 * of the heuristics, best first, that cuDNN accepts, that needs at most workspace_bytes_max and
 * whose engine does not declare itself nondeterministic. ERR_BACKEND where there is none. Host
 * memory and seconds of compiling are the library's. */
int cudai_cudnn_graph_plan(cudai_cudnn_graph *graph, const cudai_cudnn_choice *choice,
                           uint64_t workspace_bytes_max) MUST_CHECK;

/* Enqueues the plan. uids and addresses [count]: device memory, or host memory for scalars, which
 * is read before the call returns. workspace: workspace_bytes of device memory, or NULL where that
 * is 0. */
int cudai_cudnn_graph_run(const cudai_cudnn_graph *graph, void *stream, const int64_t *uids,
                          void *const *addresses, int count, void *workspace) MUST_CHECK;

/* A plan of attention over the library at `api`, which must outlive it: cudai_cudnn_plan_create for
 * a context's library. */
int cudai_cudnn_plan_make(const cudai_cudnn *api, const attention_desc *desc,
                          cudai_cudnn_plan **plan) MUST_CHECK;

#endif
