/* Loads libraries of the CUDA toolkit at run time. So the program also starts on machines without
 * them, and it is not linked against them.
 *
 * A library is searched by its soname where the loader searches ($LD_LIBRARY_PATH, the loader's
 * cache, the system's directories), then where toolkits are installed: $CUDA_HOME/lib64,
 * $CUDA_PATH/lib64, /usr/local/cuda/lib64. The functions are called when a context is created. They
 * keep no state and never unload a library. Tests with the simulated GPU replace this file by
 * tests/simulated_gpu/cublaslt.c. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_internal.h"

/* Makes one attempt. A reason other than "no such file" replaces the earlier reason, because it
 * concerns a library that is installed. */
static void *attempt(const char *path, char *why, size_t why_bytes, bool *is_there)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library ? NULL : dlerror();
    if (reason == NULL || *is_there)
        return library;
    *is_there = strstr(reason, "No such file") == NULL;
    if (*is_there || why[0] == '\0')
        snprintf(why, why_bytes, "%s", reason);
    return NULL;
}

static void *attempt_in(const char *directory, const char *suffix, const char *soname, char *why,
                        size_t why_bytes, bool *is_there)
{
    char path[4096];
    if (directory == NULL || directory[0] == '\0')
        return NULL;
    int length = snprintf(path, sizeof path, "%s%s/%s", directory, suffix, soname);
    if (length < 0 || (size_t)length >= sizeof path)
        return NULL;
    return attempt(path, why, why_bytes, is_there);
}

void *cudai_library_open(const char *const *sonames, char *why, size_t why_bytes)
{
    bool is_there = false;
    if (why_bytes > 0)
        why[0] = '\0';
    for (const char *const *soname = sonames; *soname != NULL; soname++) {
        void *library = attempt(*soname, why, why_bytes, &is_there);
        if (library == NULL)
            library = attempt_in(getenv("CUDA_HOME"), "/lib64", *soname, why, why_bytes, &is_there);
        if (library == NULL)
            library = attempt_in(getenv("CUDA_PATH"), "/lib64", *soname, why, why_bytes, &is_there);
        if (library == NULL)
            library = attempt_in("/usr/local/cuda", "/lib64", *soname, why, why_bytes, &is_there);
        if (library != NULL)
            return library;
    }
    return NULL;
}

void *cudai_library_symbol(void *library, const char *name)
{
    return dlsym(library, name);
}
