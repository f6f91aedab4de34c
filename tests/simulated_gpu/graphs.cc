// Captured streams as graphs. A graph is a straight list of the work that its stream captured; an
// executable graph costs memory of the GPU, as on a real one.
#include "internal.h"

using namespace simulated;

typedef std::vector<std::shared_ptr<captured_work>> work_list;

struct CUgraph_st {
    work_list nodes;
};

struct CUgraphExec_st {
    work_list nodes;
    void *memory;
};

enum { NODE_BYTES = 4096 }; // what CUDA takes for a node is not documented

static uint64_t captures_left = UINT64_MAX;

void simulated_gpu_fail_captures_after(uint64_t count)
{
    captures_left = count;
}

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    cudaError_t error = enter();
    return error != cudaSuccess ? error : report(begin_capture(stream));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = NULL;
    cudaError_t error = enter();
    work_list nodes;
    cudaError_t ended = end_capture(stream, &nodes);
    if (error == cudaSuccess)
        error = ended;
    if (error == cudaSuccess && captures_left == 0)
        error = cudaErrorStreamCaptureInvalidated;
    if (error != cudaSuccess)
        return report(error);
    if (captures_left != UINT64_MAX)
        captures_left--;
    *graph = new CUgraph_st{std::move(nodes)};
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && (!graph || nodes || !count))
        error = cudaErrorInvalidValue; /* only the number is known here */
    if (error == cudaSuccess)
        *count = graph->nodes.size();
    return report(error);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *made, cudaGraph_t graph,
                                          unsigned long long flags)
{
    *made = NULL;
    cudaError_t error = enter();
    if (error == cudaSuccess && (!graph || flags != 0))
        error = cudaErrorInvalidValue;
    void *memory = NULL;
    if (error == cudaSuccess)
        error = cudaMalloc(&memory, (graph->nodes.size() + 1) * NODE_BYTES);
    if (error == cudaSuccess)
        *made = new CUgraphExec_st{graph->nodes, memory};
    return report(error);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t)
{
    cudaError_t error = enter();
    return report(error == cudaSuccess && !graph ? cudaErrorInvalidValue : error);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    cudaError_t error = enter();
    if (error == cudaSuccess && !graph)
        error = cudaErrorInvalidValue;
    return report(error == cudaSuccess ? launch_captured(stream, graph->nodes) : error);
}

// Launched work holds its nodes, so that it may still run.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    if (!graph)
        return report(cudaErrorInvalidValue);
    cudaError_t error = cudaFree(graph->memory);
    delete graph;
    return report(error);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    if (!graph)
        return report(cudaErrorInvalidValue);
    delete graph;
    return cudaSuccess;
}
}
