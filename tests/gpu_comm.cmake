# Collectives of several ranks by NCCL: on the simulated GPU with a stand-in for NCCL (fake_nccl), on a real GPU
# with the NCCL that is there. The stand-in is compiled with CUDA's own headers, as what calls it.
if(SLUICE_NCCL_FOUND AND TARGET comm_fixture AND NOT SLUICE_SANITIZE)
    add_library(fake_nccl OBJECT fake_nccl/fake_nccl.c)
    target_link_libraries(fake_nccl PUBLIC sluice_options)
    target_include_directories(fake_nccl SYSTEM PRIVATE ${NCCL_INCLUDE_DIR}
                               ${CUDAToolkit_INCLUDE_DIRS})
    sluice_gpu_test(test_comm_nccl LIBS comm_fixture sluice_comm INSTANCES one ranks failures
                    TIMEOUT 60)
    target_sources(test_comm_nccl_simulated PRIVATE $<TARGET_OBJECTS:fake_nccl>)
endif()

# What the build has, and the library that is there: it loads, all entry points and its version too.
sluice_test(test_comm_nccl_library LIBS sluice_comm LABELS cpu)
