# The CUDA backend's softmax cross-entropy: test_gpu_loss.c, test_gpu_loss_stride.c.
if(TARGET sluice_kernels_reference)
    sluice_gpu_test(test_gpu_loss PARTS rows LIBS sluice_kernels_reference)
    sluice_gpu_test(test_gpu_loss_stride PARTS rows LIBS sluice_kernels_reference)
endif()
