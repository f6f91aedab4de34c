# Several ranks on a GPU through the whole engine, as forked processes; on NCCL where it was compiled: on
# the simulated GPU with its stand-in. Included after gpu_comm.cmake. Several ranks on NCCL need a GPU for
# each, so that `nccl` is the simulated GPU's alone.
if(TARGET train_fixture AND TARGET comm_fixture AND NOT SLUICE_SANITIZE)
    sluice_gpu_test(test_gpu_ranks WHOLE SOURCES test_gpu_ranks.c gpu_ranks_rig.c
                    LIBS train_fixture comm_fixture TIMEOUT 300
                    INSTANCES stages placements one-on-nccl killed sampled memory)
    gpu_test_lines(test_gpu_ranks_simulated test_gpu_ranks.simulated cpu 300 broken)
    if(TARGET fake_nccl)
        target_sources(test_gpu_ranks_simulated PRIVATE $<TARGET_OBJECTS:fake_nccl>)
        target_compile_definitions(test_gpu_ranks_simulated PRIVATE GPU_RANKS_FAKE_NCCL)
        gpu_test_lines(test_gpu_ranks_simulated test_gpu_ranks.simulated cpu 300 nccl)
    endif()
    get_property(gpu_ranks_tests DIRECTORY PROPERTY TESTS)
    list(FILTER gpu_ranks_tests INCLUDE REGEX "^test_gpu_ranks\\.simulated")
    set_property(TEST ${gpu_ranks_tests} APPEND PROPERTY ENVIRONMENT
                 SLUICE_SIMULATED_GPU_DELAY_US=10)
endif()
