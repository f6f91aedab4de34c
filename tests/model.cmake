# The models: shapes, gradients, determinism, and the loss curve of PyTorch.
sluice_test(test_model_shapes LIBS sluice_model LABELS cpu)

if(TARGET sluice_kernels_reference)
    sluice_test(test_model_gradients LIBS sluice_model sluice_kernels_reference LABELS cpu
                INSTANCES gpt2 llama)
    if(TARGET sluice_kernels)
        target_link_libraries(test_model_gradients PRIVATE sluice_kernels)
        target_compile_definitions(test_model_gradients PRIVATE HAVE_KERNELS_CPU)
    endif()
endif()
