"""What measurements share: a directory to work in, a file of results, load by wrk."""

import json
import os
import shutil
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SECONDS = int(os.environ.get("MEASURE_SECONDS", 5))
MACHINE = os.environ.get("MEASURE_MACHINE")
KIB, MIB = 1 << 10, 1 << 20


class Run:
    """Measurements in one directory, with a line of JSON in one file for each figure."""

    def __init__(self, directory, results):
        self.directory, self.results = directory, results
        os.makedirs(directory, exist_ok=True)

    def note(self, what, **figures):
        line = json.dumps({"what": what, **figures, **({"machine": MACHINE} if MACHINE else {})})
        print(line, flush=True)
        with open(self.results, "a") as results:
            results.write(line + "\n")

    def place(self, name):
        """An empty directory."""
        path = os.path.join(self.directory, name)
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
        return path

    def lines(self, name, texts):
        path = os.path.join(self.directory, name)
        with open(path, "w") as out:
            out.writelines(text + "\n" for text in texts)
        return path


def wrk(url, paths, connections, *more, process=None):
    """A run over the paths, after a short one that fills caches. With a process, also the processor time that it took for each answer."""
    for seconds in (1, SECONDS):
        before = process and processor_seconds(process)
        command = ["wrk", f"-t{min(2, connections)}", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s",
                   os.path.join(HERE, "load.lua"), url, "--", paths, *map(str, more)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(ran.stdout.strip().splitlines()[-1])
    if process and figures["requests"]:
        figures["server_us"] = round((processor_seconds(process) - before) * 1e6 / figures["requests"], 1)
    return figures


def processor_seconds(process):
    """What all threads of a process have had so far."""
    with open(f"/proc/{process.pid}/stat") as stat:
        user, system = stat.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
