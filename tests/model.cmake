# The models: shapes, gradients, determinism, and the loss curve of PyTorch.
sluice_test(test_model_shapes LIBS sluice_model LABELS cpu)
