/* NCCL's entry points, with its header's prototypes, from the library found at run time. */
#ifndef SLUICE_COMM_NCCL_LIBRARY_H
#define SLUICE_COMM_NCCL_LIBRARY_H

#include <nccl.h>

#include "base/error.h"

struct commi_nccl_library {
    ncclResult_t (*get_version)(int *version);
    ncclResult_t (*get_unique_id)(ncclUniqueId *id);
    ncclResult_t (*init_rank)(ncclComm_t *handle, int rank_count, ncclUniqueId id, int rank,
                              ncclConfig_t *config);
    ncclResult_t (*finalize)(ncclComm_t handle);
    ncclResult_t (*destroy)(ncclComm_t handle);
    ncclResult_t (*abort)(ncclComm_t handle);
    ncclResult_t (*get_async_error)(ncclComm_t handle, ncclResult_t *result);
    const char *(*error_string)(ncclResult_t result);
    const char *(*last_error)(ncclComm_t handle);
    ncclResult_t (*all_gather)(const void *source, void *target, size_t source_count,
                               ncclDataType_t type, ncclComm_t handle, cudaStream_t stream);
    ncclResult_t (*reduce_scatter)(const void *source, void *target, size_t target_count,
                                   ncclDataType_t type, ncclRedOp_t kind, ncclComm_t handle,
                                   cudaStream_t stream);
    ncclResult_t (*send)(const void *source, size_t count, ncclDataType_t type, int rank,
                         ncclComm_t handle, cudaStream_t stream);
    ncclResult_t (*receive)(void *target, size_t count, ncclDataType_t type, int rank,
                            ncclComm_t handle, cudaStream_t stream);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    int version_code;
    char version[24]; /* "NCCL 2.28.9" */
};
typedef struct commi_nccl_library commi_nccl_library;

/* Loads the library at the first call and never unloads it. Any thread; one at a time. ERR_BACKEND,
 * with advice: there is no library, or it is older than 2.14. Tests with the simulated GPU replace
 * nccl_library.c by tests/fake_nccl. */
int commi_nccl_load(commi_nccl_library *api) MUST_CHECK;

#endif
