/* A stand-in for libcudnn on the host, for tests of attention_cudnn.c on machines without a GPU: it
 * takes the backend API's descriptors with their rules (nothing is set after
 * finalizing, nothing unfinalized is used, each number names one tensor) and runs an operation
 * graph by what its operations mean, one after the other, on host memory. So it says whether a
 * graph computes attention; whether cuDNN has an engine for it, only cuDNN can say
 * (test_cudnn_plans.c). fake_library.c gives its functions to cudai_library_open and
 * cudai_library_symbol. */
#ifndef SLUICE_TESTS_FAKE_CUDNN_H
#define SLUICE_TESTS_FAKE_CUDNN_H

#include <cudnn_backend.h>
#include <stdbool.h>
#include <stdint.h>

/* The behaviour that the test asks for, and the calls that were seen. The test zeroes it, and reads
 * and writes it freely. */
struct fake_cudnn {
    bool is_absent;            /* the library cannot be opened */
    bool fails_to_create;      /* cudnnCreate refuses */
    uint64_t version;          /* cudnnGetVersion; 0: 91900 */
    const char *missing;       /* an entry point that is not there, or NULL */
    uint64_t workspace_bytes;  /* that every plan asks for; each operation overwrites all of it */
    int refused_config_count;  /* so many of the configurations do not finalize */
    int unsound_config_count;  /* so many of those after them are nondeterministic */
    int config_count;          /* offered in all */
    int fail_run;              /* the run with this number (1, 2, ...) fails; 0: none */
    int run_count;             /* of cudnnBackendExecute */
    int live_descriptor_count; /* made and not destroyed */
    int live_handle_count;
    int64_t planned_engine_idx; /* of the newest plan */
    cudaStream_t stream;        /* of the newest run */
    cudaStream_t last_stream;   /* of the handle that was destroyed last, when it was */
};
extern struct fake_cudnn fake_cudnn;

enum {
    FAKE_ATTRS = 8,
    FAKE_ENGINE_CHOSEN = 900 /* configurations of the heuristics: 100, 101, ... */
};

struct fake_attr {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;
};

/* Any descriptor: what was set, by name. */
struct fake_descriptor {
    cudnnBackendDescriptorType_t type;
    bool is_finalized;
    struct fake_attr attrs[FAKE_ATTRS];
    int attr_count;
    /* given by the heuristics */
    struct fake_descriptor *graph;
    int config_idx;
};
typedef struct fake_descriptor fake_descriptor;

/* An attribute's values; NULL if it was not set. */
const void *fake_values(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name,
                        int64_t *count);
int64_t fake_int64(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name,
                   int64_t otherwise);
int fake_enum(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name);
fake_descriptor *fake_child(const fake_descriptor *descriptor, cudnnBackendAttributeName_t name);

/* fake_run.c: runs the operations of `graph` with the addresses of `pack`; false with the reason
 * printed where an operation's shapes do not fit or an address is missing. */
bool fake_run(const fake_descriptor *graph, const fake_descriptor *pack);

#endif
