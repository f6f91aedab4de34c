# The Python package: its wheel in a fresh virtual environment.
if(TARGET python_package)
    add_test(NAME python_wheel COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/python/check_wheel.sh ${PROJECT_SOURCE_DIR}
             ${PROJECT_BINARY_DIR})
    set_tests_properties(python_wheel PROPERTIES LABELS "cpu;nvme" TIMEOUT 240 SKIP_RETURN_CODE 77
                         ENVIRONMENT OMP_WAIT_POLICY=passive)
    set(SLUICE_TORCH_PYTHON "" CACHE FILEPATH "a Python that has torch, for the tests of sluice.torch")
    add_test(NAME python_torch COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/python/check_torch.sh ${PROJECT_SOURCE_DIR}
             ${PROJECT_BINARY_DIR} ${SLUICE_TORCH_PYTHON})
    set_tests_properties(python_torch PROPERTIES LABELS "cpu;nvme" TIMEOUT 900 SKIP_RETURN_CODE 77
                         ENVIRONMENT OMP_WAIT_POLICY=passive)
endif()
