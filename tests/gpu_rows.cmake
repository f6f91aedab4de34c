# The dense row ops of the CUDA backend (norms, bias gradients, rope, activations, add, convert, zero)
# against the reference backend.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_rows PARTS base rows LIBS sluice_kernels_reference
                    INSTANCES norm_forward norm_backward head_norm sums activation rope point)
    sluice_gpu_test(test_gpu_rows_large PARTS base rows LIBS sluice_kernels_reference
                    INSTANCES norm sums activation rope point)
endif()
