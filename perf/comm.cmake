# The exchange between ranks against the MPI library's, in one run.
if(TARGET sluice_comm AND SLUICE_MPI_FOUND)
    add_executable(bench_comm bench_comm.c)
    target_link_libraries(bench_comm PRIVATE sluice_comm sluice_options MPI::MPI_C)
endif()
