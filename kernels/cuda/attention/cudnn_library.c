/* Loads cuDNN at run time. The program also runs without it, and then reports why it is not
 * used. Called by the context's thread while the context is created and destroyed. The library's
 * own memory (host tables, modules on the GPU) grows with its first plans and is never counted
 * as ours. */
#include "kernels/cuda/attention/cudnn_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* The header must be 9.8 or later, since it then has all names used here. The library may be newer
 * or older, from CUDAI_CUDNN_VERSION_MIN on. */
static_assert(CUDNN_MAJOR == 9 && CUDNN_VERSION >= 90800, "cuda.cmake chooses the header");

struct entry {
    const char *name;
    size_t offset; /* of the pointer in cudai_cudnn */
};

static const struct entry entries[] = {
    {"cudnnCreate", offsetof(cudai_cudnn, create)},
    {"cudnnDestroy", offsetof(cudai_cudnn, destroy)},
    {"cudnnSetStream", offsetof(cudai_cudnn, set_stream)},
    {"cudnnGetVersion", offsetof(cudai_cudnn, get_version)},
    {"cudnnGetErrorString", offsetof(cudai_cudnn, error_string)},
    {"cudnnGetLastErrorString", offsetof(cudai_cudnn, last_error_string)},
    {"cudnnBackendCreateDescriptor", offsetof(cudai_cudnn, descriptor_create)},
    {"cudnnBackendDestroyDescriptor", offsetof(cudai_cudnn, descriptor_destroy)},
    {"cudnnBackendSetAttribute", offsetof(cudai_cudnn, set)},
    {"cudnnBackendGetAttribute", offsetof(cudai_cudnn, get)},
    {"cudnnBackendFinalize", offsetof(cudai_cudnn, finalize)},
    {"cudnnBackendExecute", offsetof(cudai_cudnn, execute)},
};

int cudai_cudnn_check(const cudai_cudnn *api, cudnnStatus_t status, const char *what)
{
    char message[512] = "";
    if (status == CUDNN_STATUS_SUCCESS)
        return 0;
    api->last_error_string(message, sizeof message);
    message[sizeof message - 1] = '\0';
    return err_set(ERR_BACKEND, "%s refused %s: %s (%d)%s%s", api->version, what,
                   api->error_string(status), (int)status, message[0] != '\0' ? ": " : "", message);
}

int cudai_cudnn_load(cudai_cudnn *api)
{
    static const char *const sonames[] = {"libcudnn.so.9", NULL};
    char why[256];
    memset(api, 0, sizeof *api);
    void *library = cudai_library_open(sonames, why, sizeof why);
    if (library == NULL)
        return err_set(ERR_BACKEND, "cuDNN 9 cannot be loaded: %s", why);
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *symbol = cudai_library_symbol(library, entries[i].name);
        if (symbol == NULL)
            return err_set(ERR_BACKEND, "libcudnn.so.9 has no %s", entries[i].name);
        memcpy((char *)api + entries[i].offset, &symbol, sizeof symbol);
    }
    api->workspace_bytes_max = CUDAI_CUDNN_WORKSPACE_BYTES;
    api->version_number = api->get_version();
    snprintf(api->version, sizeof api->version, "cuDNN %u.%u.%u",
             (unsigned)(api->version_number / 10000), (unsigned)(api->version_number / 100 % 100),
             (unsigned)(api->version_number % 100));
    if (api->version_number < CUDAI_CUDNN_VERSION_MIN)
        return err_set(ERR_BACKEND, "%s is too old: 9.6 or later is used", api->version);
    return 0;
}

int cudai_cudnn_create(kernel_context *context)
{
    /* the reason of the last context; it is the same for all */
    static char absence[ERR_TEXT_BYTES];
    context->cudnn = NULL;
    context->cudnn_absence = NULL;
    cudai_cudnn *api = mem_alloc(1, sizeof *api, "cudnn");
    if (api == NULL)
        return -ENOMEM;
    int rc = cudai_cudnn_load(api);
    /* fails if the driver is too old for the library, or if the library's parts do not match */
    if (rc == 0)
        rc = cudai_cudnn_check(api, api->create(&api->handle), "cudnnCreate");
    if (rc < 0) {
        snprintf(absence, sizeof absence, "%s", err_text());
        context->cudnn_absence = absence;
        mem_free(api);
        return 0;
    }
    api->compute_major = context->compute_major;
    context->cudnn = api;
    return 0;
}

void cudai_cudnn_destroy(kernel_context *context)
{
    if (context->cudnn == NULL)
        return;
    /* The stream of the last run may no longer exist, so the handle must not use it again. */
    (void)context->cudnn->set_stream(context->cudnn->handle, NULL);
    (void)context->cudnn->destroy(context->cudnn->handle);
    mem_free(context->cudnn);
    context->cudnn = NULL;
}

const char *cudai_cudnn_version(const kernel_context *context)
{
    return context->cudnn != NULL ? context->cudnn->version : NULL;
}
