# The simulated GPU itself: kernels, matrix instructions, the runtime.
foreach(name test_gpu_simulation test_gpu_simulation_matrix)
    sluice_gpu_test(${name} SOURCES ${name}.cc PARTS base SIMULATED_ONLY TIMEOUT 60)
endforeach()
sluice_gpu_test(test_gpu_simulation_runtime PARTS base SIMULATED_ONLY TIMEOUT 60)
# What the tests of the GPU share.
sluice_gpu_test(test_gpu_fixture PARTS base SIMULATED_ONLY TIMEOUT 60)
