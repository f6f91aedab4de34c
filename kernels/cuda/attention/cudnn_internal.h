/* Declarations that the files of cuDNN's attention share. Besides them only tests include this.
 * cuDNN's backend API is a C API of descriptors: tensors and operations form an operation graph, a
 * heuristic proposes engines that can run it, and the configuration of an engine becomes an
 * execution plan.
 *
 * A graph and everything that it refers to belong to the thread of their kernel_context. */
#ifndef SLUICE_KERNELS_CUDA_CUDNN_INTERNAL_H
#define SLUICE_KERNELS_CUDA_CUDNN_INTERNAL_H

#include <cudnn_backend.h>
#include <cudnn_version.h>

#include "kernels/cuda/cuda_internal.h"

/* The oldest version that is used. From 9.6 on the backward pass clears its own accumulators. */
enum { CUDAI_CUDNN_VERSION_MIN = 90600 };

/* Limit of the scratch for one part of the deterministic backward pass. It is enough for the blocks
 * to fill a GPU: 16 heads of 4096 tokens, or 4 heads of 8192, with their parts of dK and dV. */
enum { CUDAI_CUDNN_WORKSPACE_BYTES = 640 << 20 };

/* The loaded library. Its entry points have cuDNN's own types, from cuDNN's header. */
struct cudai_cudnn {
    uint64_t version_number;      /* 91900 is 9.19.0 */
    char version[32];             /* "cuDNN 9.19.0" */
    int compute_major;            /* of the GPU for which plans are made */
    uint64_t workspace_bytes_max; /* for one part of a backward pass: CUDAI_CUDNN_WORKSPACE_BYTES */
    cudnnHandle_t handle;         /* NULL if plans are only made, not run, from device_properties */
    /* The properties of a GPU that is not in this machine; only tests set it, else NULL. */
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

/* Loads the library and fills *api, except compute_major, handle and device_properties. Returns 0,
 * or ERR_BACKEND with the reason: absent, too old, or an entry point is missing. */
int cudai_cudnn_load(cudai_cudnn *api) MUST_CHECK;

/* Returns 0 for success, else ERR_BACKEND with `what`, cuDNN's name of the status and cuDNN's last
 * message. */
int cudai_cudnn_check(const cudai_cudnn *api, cudnnStatus_t status, const char *what) MUST_CHECK;

/* --- graphs and plans --- */

/* Dimensions and strides in elements. There are always four: [B, H, rows, columns]. */
struct cudai_cudnn_shape {
    int64_t dims[4];
    int64_t strides[4];
};
typedef struct cudai_cudnn_shape cudai_cudnn_shape;

enum {
    /* limit of descriptors per graph; attention's backward pass has about 110 */
    CUDAI_CUDNN_OWNED_MAX = 192,
    CUDAI_CUDNN_OPS_MAX = 40,
    CUDAI_CUDNN_ARGS_MAX = 16,
    CUDAI_CUDNN_VIRTUAL_UID = 1000, /* first number for tensors that exist only inside a kernel */
};

/* A graph under construction, and later its plan. Errors during construction are kept: after the
 * first one every further call does nothing, and cudai_cudnn_graph_plan returns it. The descriptors
 * live as long as the plan, since cuDNN does not document whether a plan needs them. */
struct cudai_cudnn_graph {
    const cudai_cudnn *api;
    cudnnBackendDescriptor_t owned[CUDAI_CUDNN_OWNED_MAX];
    int owned_count;
    cudnnBackendDescriptor_t ops[CUDAI_CUDNN_OPS_MAX];
    int op_count;
    int64_t virtual_count;
    int rc; /* the first error, or 0 */

    /* Filled by cudai_cudnn_graph_plan. */
    cudnnBackendDescriptor_t plan; /* one of owned */
    uint64_t workspace_bytes;
    int64_t engine_idx; /* cuDNN's number of the chosen engine */
};
typedef struct cudai_cudnn_graph cudai_cudnn_graph;

/* An engine and its knobs, for engines that the heuristics do not offer. */
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
void cudai_cudnn_graph_fini(cudai_cudnn_graph *graph); /* also valid for a graph of zeros */

/* Adds a tensor. With uid > 0 it is in memory, and cudai_cudnn_graph_run receives its address under
 * this number. With uid 0 it exists only inside a kernel. Returns NULL after an error. */
cudnnBackendDescriptor_t cudai_cudnn_tensor(cudai_cudnn_graph *graph,
                                            const cudai_cudnn_shape *shape, cudnnDataType_t type,
                                            int64_t uid);
/* Adds an fp32 number that cudai_cudnn_graph_run reads from host memory. */
cudnnBackendDescriptor_t cudai_cudnn_scalar(cudai_cudnn_graph *graph, int64_t uid);

/* y = mode(x, b), or mode(x, b, t) where t is a tensor of booleans; b and t may be NULL. */
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

/* Finishes the graph and makes its plan. `choice` sets the configuration. If it is NULL, the
 * heuristics' configurations are tried, best first, and the first one is taken that cuDNN accepts,
 * that needs at most workspace_bytes_max, and whose engine does not report itself as
 * nondeterministic. Returns ERR_BACKEND if there is none. The library may take host memory and
 * seconds to compile. */
int cudai_cudnn_graph_plan(cudai_cudnn_graph *graph, const cudai_cudnn_choice *choice,
                           uint64_t workspace_bytes_max) MUST_CHECK;

/* Enqueues the plan. `uids` and `addresses` [count] are device addresses, or host addresses for
 * scalars, which are read before the call returns. `workspace` is device memory of workspace_bytes;
 * NULL if that is 0. */
int cudai_cudnn_graph_run(const cudai_cudnn_graph *graph, void *stream, const int64_t *uids,
                          void *const *addresses, int count, void *workspace) MUST_CHECK;

/* Makes a plan of attention with the library at `api`, which must outlive the plan.
 * cudai_cudnn_plan_create does the same with the library of a context. */
int cudai_cudnn_plan_make(const cudai_cudnn *api, const attention_desc *desc,
                          cudai_cudnn_plan **plan) MUST_CHECK;

#endif
