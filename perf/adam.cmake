if(TARGET kernels_adam)
    add_executable(bench_adam bench_adam.c adam_limit.c)
    target_link_libraries(bench_adam PRIVATE kernels_adam)
    # For perf/compare_adam.sh; a library, so that it takes turns with its peers in one process.
    add_library(adam_compared SHARED adam_library.c)
    target_link_libraries(adam_compared PRIVATE kernels_adam)
endif()
