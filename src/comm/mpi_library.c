/* Open MPI, found and loaded at run time by its soname where the loader looks ($LD_LIBRARY_PATH,
 * the loader's cache, the system's folders). See mpi_library.h. */
#include "comm/mpi_library.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const char soname[] = "libmpi.so.40";

commi_mpi_library commi_mpi_api;

struct entry {
    const char *name;
    size_t offset; /* of the pointer in commi_mpi_library */
};

static const struct entry entries[] = {
    {"MPI_Cancel", offsetof(commi_mpi_library, cancel)},
    {"MPI_Request_free", offsetof(commi_mpi_library, free_request)},
    {"MPI_Test", offsetof(commi_mpi_library, test)},
    {"MPI_Isend", offsetof(commi_mpi_library, send)},
    {"MPI_Irecv", offsetof(commi_mpi_library, receive)},
    {"MPI_Bcast", offsetof(commi_mpi_library, broadcast)},
    {"MPI_Comm_dup", offsetof(commi_mpi_library, duplicate)},
    {"MPI_Comm_free", offsetof(commi_mpi_library, free_group)},
    {"MPI_Comm_rank", offsetof(commi_mpi_library, get_rank)},
    {"MPI_Comm_size", offsetof(commi_mpi_library, get_size)},
    {"MPI_Comm_set_errhandler", offsetof(commi_mpi_library, set_error_handler)},
    {"MPI_Error_string", offsetof(commi_mpi_library, error_string)},
    {"MPI_Get_library_version", offsetof(commi_mpi_library, version_text)},
    {"MPI_Init_thread", offsetof(commi_mpi_library, init_thread)},
    {"MPI_Initialized", offsetof(commi_mpi_library, initialized)},
    {"MPI_Finalized", offsetof(commi_mpi_library, finalized)},
    {"MPI_Query_thread", offsetof(commi_mpi_library, query_thread)},
    {"MPI_Finalize", offsetof(commi_mpi_library, finalize)},
    {"MPI_Abort", offsetof(commi_mpi_library, abort)},
    {"ompi_mpi_comm_world", offsetof(commi_mpi_library, world)},
    {"ompi_mpi_byte", offsetof(commi_mpi_library, byte)},
    {"ompi_mpi_errors_return", offsetof(commi_mpi_library, errors_return)},
};

int commi_mpi_load(void)
{
    if (commi_mpi_api.init_thread)
        return 0;
    /* RTLD_GLOBAL: the plug-ins of older versions expect to find the library's symbols */
    void *library = dlopen(soname, RTLD_NOW | RTLD_GLOBAL);
    if (!library)
        return err_set(ERR_BACKEND,
                       "Open MPI cannot be loaded: %s; install it (Debian: libopenmpi3), name its "
                       "folder in LD_LIBRARY_PATH, or start one process",
                       dlerror());
    commi_mpi_library found;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *address = dlsym(library, entries[i].name);
        if (!address)
            return err_set(ERR_BACKEND, "%s has no %s: it is not Open MPI 3, 4 or 5", soname,
                           entries[i].name);
        memcpy((char *)&found + entries[i].offset, &address, sizeof address);
    }
    commi_mpi_api = found;
    return 0;
}
