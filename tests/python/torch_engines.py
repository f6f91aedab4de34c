"""What the tests of sluice.torch.Engine share: engines in a scratch directory."""

import os
import tempfile
import unittest

import torch

import sluice
import sluice.torch
from simulated_core import open_simulated


class Engines(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.count = 0

    def engine(self, module, **options):
        self.count += 1
        name = options.pop("name", f"run{self.count}")
        options.setdefault("optimizer", sluice.AdamW(lr=1e-3))
        engine = sluice.torch.Engine(
            module, device=options.pop("device", "32MiB"),
            host=options.pop("host", "32MiB"),
            nvme=options.pop("nvme", [os.path.join(self.directory, "drive")]),
            run_dir=os.path.join(self.directory, name), **options,
        )
        self.addCleanup(engine.close)
        return engine

    def assert_near(self, found, expected):
        """Within some units in the last place: Adam is written with other operations here."""
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected):
            self.assertLessEqual(abs(one - other), 1e-6 * max(1.0, abs(other)))

    def assert_refused(self, text, function, *arguments, **options):
        with self.assertRaises(sluice.Error) as caught:
            function(*arguments, **options)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(caught.exception.status, 2)


class OverTheStandIn(Engines):
    """The module's side alone. The stand-in puts NaN into what a turn leaves behind."""

    def engine(self, module, **options):
        engine = super().engine(module, **options)
        engine._open_core = open_simulated
        return engine
