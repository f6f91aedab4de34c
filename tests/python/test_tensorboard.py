"""run.tensorboard: what TensorBoard would show of a run that was killed and went on is what
metrics.jsonl holds. Read by a reader of the test's own."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import sluice
from tiny import tiny_job


def fields(data):
    """(number, value) of each field of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size


def events(directory):
    """(step, tag, value) of each scalar, and (step, None, None) where a process began; of all files
    in the order of their names."""
    for name in sorted(os.listdir(directory)):
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        at = 0
        while at < len(data):
            (count,) = struct.unpack_from("<Q", data, at)
            event = dict(fields(data[at + 12 : at + 12 + count]))
            at += 12 + count + 4
            if 7 in event:
                yield event[2], None, None
            if 5 in event:
                value = dict(fields(dict(fields(event[5]))[1]))
                yield event[2], value[1].decode(), struct.unpack("<f", value[2])[0]


def shown(directory):
    """What is left of each tag: a process drops what came before it from its first step on."""
    curves = {}
    for step, tag, value in events(directory):
        if tag is None:
            for points in curves.values():
                for late in [other for other in points if other >= step]:
                    del points[late]
        else:
            curves.setdefault(tag, {})[step] = value
    return curves


KILLED = """
import json, os, sys
import sluice
sluice.train(json.loads(sys.argv[1]), on_step=lambda step: step.step == 5 and os._exit(9))
"""


class TensorBoard(unittest.TestCase):
    def test_a_killed_run_goes_on(self):
        with tempfile.TemporaryDirectory() as directory:
            board = os.path.join(directory, "board")
            job = tiny_job(directory, run={"steps": 7, "commit_every": 2, "eval_every": 3,
                                           "tensorboard": board})
            killed = subprocess.run([sys.executable, "-c", KILLED, json.dumps(job)])
            self.assertEqual(killed.returncode, 9)
            before = shown(board)
            self.assertEqual(max(before["train/loss"]), 5)
            made = sluice.train(job)
            self.assertTrue(made.resumed)
            self.assertLess(made.steps_done, 7)
            self.assertEqual(len(os.listdir(board)), 2)

            curves = shown(board)
            metrics = sluice.Run(job["run"]["dir"]).metrics()
            for tag, name in (("train/loss", "loss"), ("train/grad_norm", "grad_norm"),
                              ("train/lr", "lr"), ("speed/seconds", "seconds")):
                wanted = {line.step: getattr(line, name) for line in metrics.steps}
                self.assertEqual(list(curves[tag]), list(range(1, 8)), tag)
                for step, value in curves[tag].items():
                    self.assertAlmostEqual(value, wanted[step], delta=1e-6 * abs(wanted[step]))
            self.assertEqual(list(curves["valid/loss"]), [line.step for line in metrics.evaluations])
            self.assertEqual(curves["peak_bytes/nvme"][7], metrics.steps[-1].peak_bytes.nvme)
            self.assertIn("lanes_stall/read", curves)

    def test_off_by_default_and_true_is_the_run_directory(self):
        with tempfile.TemporaryDirectory() as directory:
            job = tiny_job(directory, run={"steps": 1})
            sluice.train(job)
            self.assertNotIn("tensorboard", os.listdir(job["run"]["dir"]))
            sluice.train(job, set={"run.tensorboard": True, "run.steps": 2})
            curves = shown(os.path.join(job["run"]["dir"], "tensorboard"))
            self.assertEqual(list(curves["train/loss"]), [2])


if __name__ == "__main__":
    unittest.main()
