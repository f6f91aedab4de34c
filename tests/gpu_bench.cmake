# perf/bench_gpu, whose own checks are few, on the simulated GPU: it must come to its table.
if(TARGET sluice_profile AND NOT SLUICE_SANITIZE)
    add_executable(bench_gpu_simulated ${PROJECT_SOURCE_DIR}/perf/gpu/bench_gpu.c
                   $<TARGET_OBJECTS:gpu_simulated_objects>)
    target_link_libraries(bench_gpu_simulated PRIVATE sluice_profile simulated_options)
    target_include_directories(bench_gpu_simulated BEFORE
                               PRIVATE ${CMAKE_CURRENT_LIST_DIR}/simulated_gpu/include)
    set_target_properties(bench_gpu_simulated PROPERTIES LINKER_LANGUAGE CXX)
    add_test(NAME bench_gpu.simulated COMMAND ${CMAKE_CURRENT_LIST_DIR}/check_bench_gpu.sh
             $<TARGET_FILE:bench_gpu_simulated> ${PROJECT_SOURCE_DIR}/perf/gpu/quick.json)
    set_tests_properties(bench_gpu.simulated PROPERTIES LABELS cpu TIMEOUT 120
                         ENVIRONMENT "OMP_WAIT_POLICY=passive;SLUICE_SIMULATED_GPU_DELAY_US=10")
endif()
