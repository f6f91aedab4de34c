if(TARGET kernels_adam)
    add_executable(bench_adam bench_adam.c adam_limit.c)
    target_link_libraries(bench_adam PRIVATE kernels_adam)
endif()
