# The lanes of a GPU, under the executor. The runtime comes after what calls it, before CUDA's own.
sluice_gpu_test(test_gpu_lanes SOURCES test_gpu_lanes.c gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base
                INSTANCES order refusals clock faults TIMEOUT 60)
if(TARGET test_gpu_lanes)
    target_sources(test_gpu_lanes PRIVATE gpu_lanes_break.cu)
endif()
# Its comm lane: a stream that is watched, or a worker of the host.
sluice_gpu_test(test_gpu_lanes_comm SOURCES test_gpu_lanes_comm.c gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base TIMEOUT 60)
if(TARGET test_gpu_lanes_comm) # gpu_rig_break, which this test does not call
    target_sources(test_gpu_lanes_comm PRIVATE gpu_lanes_break.cu)
endif()
