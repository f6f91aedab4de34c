"""How tests start two ranks: by torchrun, and by Open MPI's mpirun."""

import os
import shutil
import sys

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
MPIRUN = ["mpirun", "--bind-to", "none", "-n", "2", sys.executable]

#: For programs that an mpirun starts on a machine with any number of cores, as any user.
MPIRUN_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def has_mpirun():
    return shutil.which("mpirun") is not None


def environment(launcher):
    own = MPIRUN_ENVIRONMENT if launcher is MPIRUN else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", **own}
