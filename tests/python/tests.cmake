# The Python package: its wheel in a fresh virtual environment.
if(TARGET python_package)
    test_line(python_wheel COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/python/check_wheel.sh ${PROJECT_SOURCE_DIR}
              ${PROJECT_BINARY_DIR} LABELS cpu nvme TIMEOUT 240)
    set(SLUICE_TORCH_PYTHON "" CACHE FILEPATH "a Python that has torch, for the tests of sluice.torch")
    test_line(python_torch COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/python/check_torch.sh ${PROJECT_SOURCE_DIR}
              ${PROJECT_BINARY_DIR} ${SLUICE_TORCH_PYTHON} LABELS cpu nvme TIMEOUT 900)
endif()
