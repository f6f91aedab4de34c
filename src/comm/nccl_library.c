/* NCCL, found and loaded at run time. It is searched by its soname where the loader looks
 * ($LD_LIBRARY_PATH, the loader's cache, the system's folders), then in lib and lib64 of
 * $NCCL_HOME, $CUDA_HOME, $CUDA_PATH and /usr/local/cuda. See nccl_library.h. */
#include "comm/nccl_library.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION_MIN = 21400 }; /* the first whose calls need not block; in the encoding since 2.9 */
static_assert(NCCL_VERSION_CODE >= VERSION_MIN, "nccl.cmake chooses the header");

static const char soname[] = "libnccl.so.2";

struct entry {
    const char *name;
    size_t offset; /* of the pointer in commi_nccl_library */
};

static const struct entry entries[] = {
    {"ncclGetVersion", offsetof(commi_nccl_library, get_version)},
    {"ncclGetUniqueId", offsetof(commi_nccl_library, get_unique_id)},
    {"ncclCommInitRankConfig", offsetof(commi_nccl_library, init_rank)},
    {"ncclCommFinalize", offsetof(commi_nccl_library, finalize)},
    {"ncclCommDestroy", offsetof(commi_nccl_library, destroy)},
    {"ncclCommAbort", offsetof(commi_nccl_library, abort)},
    {"ncclCommGetAsyncError", offsetof(commi_nccl_library, get_async_error)},
    {"ncclGetErrorString", offsetof(commi_nccl_library, error_string)},
    {"ncclGetLastError", offsetof(commi_nccl_library, last_error)},
    {"ncclAllGather", offsetof(commi_nccl_library, all_gather)},
    {"ncclReduceScatter", offsetof(commi_nccl_library, reduce_scatter)},
    {"ncclSend", offsetof(commi_nccl_library, send)},
    {"ncclRecv", offsetof(commi_nccl_library, receive)},
    {"ncclGroupStart", offsetof(commi_nccl_library, group_start)},
    {"ncclGroupEnd", offsetof(commi_nccl_library, group_end)},
};

/* Why no library was loaded. The error of a library that exists is preferred to "no such file". */
struct reason {
    char text[256];
    bool is_there;
};

static void *attempt(const char *path, struct reason *why)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *text = library ? NULL : dlerror();
    if (!text || why->is_there)
        return library;
    why->is_there = strstr(text, "No such file") == NULL;
    if (why->is_there || why->text[0] == '\0')
        snprintf(why->text, sizeof why->text, "%s", text);
    return NULL;
}

static void *find(struct reason *why)
{
    const char *homes[] = {getenv("NCCL_HOME"), getenv("CUDA_HOME"), getenv("CUDA_PATH"),
                           "/usr/local/cuda"};
    static const char *const folders[] = {"lib", "lib64"};
    void *library = attempt(soname, why);
    for (size_t i = 0; !library && i < sizeof homes / sizeof *homes; i++)
        for (size_t k = 0; !library && homes[i] && homes[i][0] && k < 2; k++) {
            char path[4096];
            int length = snprintf(path, sizeof path, "%s/%s/%s", homes[i], folders[k], soname);
            if (length > 0 && (size_t)length < sizeof path)
                library = attempt(path, why);
        }
    return library;
}

int commi_nccl_load(commi_nccl_library *api)
{
    struct reason why = {.text = ""};
    memset(api, 0, sizeof *api);
    void *library = find(&why); /* a second dlopen returns the same library */
    if (!library)
        return err_set(ERR_BACKEND,
                       "NCCL cannot be loaded: %s; install it (libnccl2), name its folder in "
                       "LD_LIBRARY_PATH or NCCL_HOME, or set comm.backend to \"staged\"",
                       why.text);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *symbol = dlsym(library, entries[i].name);
        if (!symbol)
            return err_set(ERR_BACKEND,
                           "%s has no %s: NCCL 2.14 or later is needed, or set comm.backend to "
                           "\"staged\"",
                           soname, entries[i].name);
        memcpy((char *)api + entries[i].offset, &symbol, sizeof symbol);
    }
    ncclResult_t result = api->get_version(&api->version_code);
    if (result != ncclSuccess)
        return err_set(ERR_BACKEND, "NCCL does not say its version: %s", api->error_string(result));
    int code = api->version_code;
    snprintf(api->version, sizeof api->version, "NCCL %d.%d.%d", code / 10000, code / 100 % 100,
             code % 100);
    if (code < VERSION_MIN)
        return err_set(ERR_BACKEND,
                       "NCCL is too old (version code %d): 2.14 or later is needed, or set "
                       "comm.backend to \"staged\"",
                       code);
    return 0;
}
