"""What the tests of wrong uses share."""

import os
import tempfile
import threading
import unittest

import torch

import sluice
import sluice.torch
import torch_models as models
from torch_models import Language


def make(kind=Language, **options):
    return models.make(kind, dropout=0.0, **options)


class WrongUses(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = scratch.name
        self.data = models.batches(Language)

    def path(self, name):
        return os.path.join(self.directory, name)

    def engine(self, module=None, **options):
        options.setdefault("run_dir", self.path("run"))
        options.setdefault("device", "32MiB")
        engine = sluice.torch.Engine(make() if module is None else module, host="32MiB", **options)
        self.addCleanup(engine.close)
        return engine

    def begun(self, module=None, **options):
        """An engine that has made a step."""
        engine = self.engine(module, **options)
        models.engine_losses(engine, self.data[:1])
        return engine

    def optimizer(self, params=None, **options):
        params = make().parameters() if params is None else params
        made = sluice.torch.AdamW(params, host="64MiB", **options)
        self.addCleanup(made.close)
        return made

    def refused(self, text, function, *arguments, **options):
        with self.assertRaises(sluice.WrongJob) as caught:
            function(*arguments, **options)
        self.assertIn(text, str(caught.exception))

    def in_thread(self, function, *arguments):
        """Calls the function in another thread, which ends. Returns the exception or None."""
        found = []

        def call():
            try:
                function(*arguments)
            except sluice.Error as error:
                found.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return found[0] if found else None

    def step_is(self, expected, **options):
        """The run can be opened, and is at this step."""
        engine = self.engine(**options)
        engine.prepare(self.data[0])
        self.assertEqual(engine.info().step, expected)
        engine.close()
