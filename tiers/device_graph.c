/* Graphs of the GPU's work on CUDA's runtime. See device.h.
 *
 * The capture mode is "relaxed": CUDA loads a kernel when it is first launched, which a stricter
 * mode may refuse while a stream captures. Nothing that is captured here allocates. */
#include <cuda_runtime_api.h>

#include "tiers/device.h"
#include "tiers/tiers_internal.h"

int tieri_cuda_check(int cuda_error, const char *what)
{
    cudaError_t code = (cudaError_t)cuda_error;
    if (code == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return err_set(ERR_BACKEND, "%s: CUDA says %s (%s)", what, cudaGetErrorName(code),
                   cudaGetErrorString(code));
}

int device_capture_begin(device *self, device_stream *stream)
{
    (void)self;
    return tieri_cuda_check(
        cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeRelaxed),
        "beginning to capture a stream");
}

/* Makes *out of `graph`, in the GPU's memory too, so that its first launch does nothing more. */
static int instantiate(cudaGraph_t graph, cudaStream_t stream, device_graph **out)
{
    cudaGraphExec_t made = NULL;
    TRY(tieri_cuda_check(cudaGraphInstantiateWithFlags(&made, graph, 0), "making a graph"));
    int rc = tieri_cuda_check(cudaGraphUpload(made, stream), "bringing a graph to the GPU");
    if (rc < 0)
        (void)cudaGraphExecDestroy(made);
    else
        *out = (device_graph *)made;
    return rc;
}

int device_capture_end(device *self, device_stream *stream, device_graph **out,
                       uint64_t *node_count)
{
    (void)self;
    cudaGraph_t graph = NULL;
    size_t count = 0;
    *out = NULL;
    *node_count = 0;
    TRY(tieri_cuda_check(cudaStreamEndCapture((cudaStream_t)stream, &graph), "capturing a stream"));
    int rc = tieri_cuda_check(cudaGraphGetNodes(graph, NULL, &count), "counting a graph's nodes");
    if (rc == 0 && count > 1)
        rc = instantiate(graph, (cudaStream_t)stream, out);
    if (rc == 0)
        *node_count = count;
    int destroyed = tieri_cuda_check(cudaGraphDestroy(graph), "freeing a captured graph");
    return rc < 0 ? rc : destroyed;
}

int device_graph_launch(device *self, device_graph *graph, device_stream *stream)
{
    (void)self;
    return tieri_cuda_check(cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream),
                            "launching a graph");
}

/* After an error of the GPU the call reports it again, and nobody is left to tell. */
void device_graph_destroy(device *self, device_graph *graph)
{
    (void)self;
    if (graph && cudaGraphExecDestroy((cudaGraphExec_t)graph) != cudaSuccess)
        (void)cudaGetLastError();
}
