"""`ensurepip` for a sandbox. There is no network from which a new virtual environment could get packages: it is given the template's, and
their pip."""

import os
import sys
import sysconfig

PACKAGES = f"/usr/local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
PIP = f"""#!{sys.executable}
import runpy

runpy.run_module("pip", run_name="__main__")
"""


def version():
    import importlib.metadata

    return importlib.metadata.version("pip")


def bootstrap(**_options):
    with open(os.path.join(sysconfig.get_path("purelib"), "template.pth"), "w") as file:
        file.write(f"{PACKAGES}\n")
    for name in ("pip", "pip3", f"pip3.{sys.version_info[1]}"):
        path = os.path.join(sysconfig.get_path("scripts"), name)
        with open(path, "w") as file:
            file.write(PIP)
        os.chmod(path, 0o755)
