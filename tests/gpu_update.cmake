# The optimizers, gradient close and norm of the CUDA backend against the CPU's, to the bit.
if(TARGET kernels_adam)
    sluice_gpu_test(test_gpu_update SOURCES test_gpu_update.c gpu_update_sums.c
                    gpu_update_state.c gpu_update_cpu.c
                    PARTS base update LIBS kernels_adam
                    INSTANCES adam lion adagrad packed copy close norm)
endif()
