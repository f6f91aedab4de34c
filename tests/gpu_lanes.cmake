# The lanes of a GPU, under the executor.
sluice_gpu_test(test_gpu_lanes SOURCES test_gpu_lanes.c gpu_lanes_rig.c PARTS device runtime
                LIBS swap_fixture sluice_swap sluice_executor sluice_program sluice_base
                INSTANCES order refusals faults TIMEOUT 60)
