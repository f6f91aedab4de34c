# What one GPU trains; perf/gpu.sh runs it.
if(TARGET sluice_profile)
    add_executable(bench_gpu bench_gpu.c)
    target_link_libraries(bench_gpu PRIVATE sluice_profile sluice_options)
endif()
