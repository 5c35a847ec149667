"""Files of the workspace."""

import os
import shutil
import tempfile
import unittest
from unittest import mock

import files
import workspace


class WorkspaceTest(unittest.TestCase):
    def walk(self, most):
        with tempfile.TemporaryDirectory() as root, mock.patch.object(workspace, "ROOT", root):
            os.mkdir(f"{root}/locked")
            open(f"{root}/a", "w").close()
            really = workspace.parent_of
            with mock.patch.object(workspace, "parent_of", lambda path: self.fails(path) or really(path)):
                return workspace.op_walk(most)

    def fails(self, path):
        if path == "locked/":
            raise PermissionError(13, "Permission denied")

    def test_what_cannot_be_read_is_not_taken_for_empty(self):
        told = self.walk(100)
        self.assertEqual(([entry[0] for entry in told["entries"]], told["unseen"]), (["a"], ["locked/"]))
        self.assertEqual(self.walk(1)["unseen"], [""])


class ReplaceTest(unittest.TestCase):
    def test_a_full_disk_costs_nothing_of_a_file(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"a b a")
            file.flush()
            with mock.patch.object(os, "posix_fallocate", side_effect=OSError(28, "No space left on device")):
                self.assertRaises(OSError, files.op_replace, file.name, "a", "longer")
            self.assertEqual(open(file.name).read(), "a b a")
            self.assertEqual(files.op_replace(file.name, "a", "longer"), {"count": 2})
            self.assertEqual(open(file.name).read(), "longer b longer")


class SearchTest(unittest.TestCase):
    def test_patterns_are_those_of_other_servers(self):
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(f"{root}/sub")
            for name in ("a.py", "b.txt", "sub/c.txt", "sub/{d}"):
                open(f"{root}/{name}", "w").close()
            for pattern, names in {
                "*.py": ["a.py"],
                "**/*.txt": ["b.txt", "c.txt"],
                "**/**/c*": ["c.txt"],
                "*.{py,txt}": ["a.py", "b.txt", "c.txt"],
                "{d": [],
                "{a,b}{.,_}{py,txt}": ["a.py", "b.txt"],
            }.items():
                found = [os.path.basename(entry["path"]) for entry in files.op_search(root, pattern)["entries"]]
                self.assertEqual(found, names, pattern)
            self.assertEqual(len(files.op_search(f"{root}/a.py", "*.py")["entries"]), 1)
            for pattern in ("{a,b}" * 40, "{" + "a," * 100 + "}"):
                self.assertRaises(files.Refused, files.op_search, root, pattern)


class FilesTest(unittest.TestCase):
    def test_an_error_that_has_no_number_of_its_own_is_told_in_words(self):
        def into_itself(**_paths):
            raise shutil.Error("Cannot move a directory '/a' into itself '/a/b'." + "!" * 2000)

        told = []
        with mock.patch.dict(files.OPERATIONS, move=into_itself), mock.patch.object(files, "send", lambda header, _data: told.append(header)):
            files.answer({"id": 1, "op": "move"}, b"")
        self.assertEqual((told[0]["problem"], told[0]["message"][:41], len(told[0]["message"])), ("invalid", "Cannot move a directory '/a' into itself ", 1000))
