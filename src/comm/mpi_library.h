/* Open MPI's entry points from the library that is found at run time, for programs that must also
 * start where there is none: the Python package. mpi.c, compiled with COMM_LOADS_MPI, includes this
 * header after mpi.h; the macros below then lead its calls through the table.
 *
 * Types and constants are Open MPI's, whose binary interface (libmpi.so.40) is that of its versions
 * 3 to 5. Other MPIs have other ones and are not loaded. */
#ifndef SLUICE_COMM_MPI_LIBRARY_H
#define SLUICE_COMM_MPI_LIBRARY_H

#include <mpi.h>

#include "base/error.h"

struct commi_mpi_library {
    int (*cancel)(MPI_Request *request);
    int (*free_request)(MPI_Request *request);
    int (*test)(MPI_Request *request, int *flag, MPI_Status *status);
    int (*send)(const void *data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm group,
                MPI_Request *request);
    int (*receive)(void *data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm group,
                   MPI_Request *request);
    int (*broadcast)(void *data, int count, MPI_Datatype type, int root, MPI_Comm group);
    int (*duplicate)(MPI_Comm group, MPI_Comm *out);
    int (*free_group)(MPI_Comm *group);
    int (*get_rank)(MPI_Comm group, int *rank);
    int (*get_size)(MPI_Comm group, int *size);
    int (*set_error_handler)(MPI_Comm group, MPI_Errhandler handler);
    int (*error_string)(int code, char *text, int *length);
    int (*version_text)(char *text, int *length);
    int (*init_thread)(int *argc, char ***argv, int wanted, int *provided);
    int (*initialized)(int *flag);
    int (*finalized)(int *flag);
    int (*query_thread)(int *provided);
    int (*finalize)(void);
    int (*abort)(MPI_Comm group, int status);
    void *world, *byte, *errors_return; /* MPI_COMM_WORLD, MPI_BYTE, MPI_ERRORS_RETURN */
};
typedef struct commi_mpi_library commi_mpi_library;

extern commi_mpi_library commi_mpi_api;

/* Loads the library at the first call and never unloads it. One thread at a time. ERR_BACKEND with
 * advice if there is none. */
int commi_mpi_load(void) MUST_CHECK;

#ifdef COMM_LOADS_MPI
#define MPI_Cancel              commi_mpi_api.cancel
#define MPI_Request_free        commi_mpi_api.free_request
#define MPI_Test                commi_mpi_api.test
#define MPI_Isend               commi_mpi_api.send
#define MPI_Irecv               commi_mpi_api.receive
#define MPI_Bcast               commi_mpi_api.broadcast
#define MPI_Comm_dup            commi_mpi_api.duplicate
#define MPI_Comm_free           commi_mpi_api.free_group
#define MPI_Comm_rank           commi_mpi_api.get_rank
#define MPI_Comm_size           commi_mpi_api.get_size
#define MPI_Comm_set_errhandler commi_mpi_api.set_error_handler
#define MPI_Error_string        commi_mpi_api.error_string
#define MPI_Get_library_version commi_mpi_api.version_text
#define MPI_Init_thread         commi_mpi_api.init_thread
#define MPI_Initialized         commi_mpi_api.initialized
#define MPI_Finalized           commi_mpi_api.finalized
#define MPI_Query_thread        commi_mpi_api.query_thread
#define MPI_Finalize            commi_mpi_api.finalize
#define MPI_Abort               commi_mpi_api.abort
#undef MPI_COMM_WORLD
#undef MPI_BYTE
#undef MPI_ERRORS_RETURN
#define MPI_COMM_WORLD    ((MPI_Comm)commi_mpi_api.world)
#define MPI_BYTE          ((MPI_Datatype)commi_mpi_api.byte)
#define MPI_ERRORS_RETURN ((MPI_Errhandler)commi_mpi_api.errors_return)
#endif

#endif
