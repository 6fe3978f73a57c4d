"""Checks the files of deploy/, with the program that they run.

The manifests of Kubernetes are checked against the types of its API, which the Debian package python3-kubernetes has: names
of fields, types of values, required fields. The Job must have as many completions as the plan has jobs, and its pod is run
here for one of them. The Slurm script may only have options that sbatch knows. It and the script for GNU parallel run a
small sweep, and the merged result must be what one process measures.

Usage: check-deploy.py QUIETLINE
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes.client as client
import yaml

DEPLOY = pathlib.Path(__file__).resolve().parent.parent / "deploy"
MODELS = {("batch/v1", "Job"): client.V1Job, ("v1", "PersistentVolumeClaim"): client.V1PersistentVolumeClaim}
SCALARS = {"str": str, "int": int, "bool": bool, "float": (int, float)}
# Options of sbatch that a script of this kind may use (man sbatch).
SBATCH = {"job-name", "nodes", "ntasks", "cpus-per-task", "exclusive", "hint", "time", "output", "error", "mem", "partition"}
# An experiment in virtual time: every machine measures the same.
SMALL = ["tsq", "--quick", "--runs", "2", "--seed", "5"]


def typed(value, kind, place):
    """What differs between a value and its type in the API, in words."""
    if kind in SCALARS:
        if not isinstance(value, SCALARS[kind]) or (kind != "bool" and isinstance(value, bool)):
            yield f"{place} is no {kind}: {value!r}"
    elif match := re.fullmatch(r"list\[(.*)\]", kind):
        if not isinstance(value, list):
            yield f"{place} is no list"
            return
        for index, item in enumerate(value):
            yield from typed(item, match[1], f"{place}[{index}]")
    elif match := re.fullmatch(r"dict\(str, (.*)\)", kind):
        if not isinstance(value, dict):
            yield f"{place} is no map"
            return
        for key, item in value.items():
            yield from typed(item, match[1], f"{place}.{key}")
    elif kind != "object":
        yield from model(value, getattr(client, kind), place)


def model(value, kind, place):
    """The same for an object."""
    if not isinstance(value, dict):
        yield f"{place} is no map"
        return
    names = {json_name: own for own, json_name in kind.attribute_map.items()}
    for key, item in value.items():
        if key not in names:
            yield f"{place}.{key} is no field of {kind.__name__}"
        else:
            yield from typed(item, kind.openapi_types[names[key]], f"{place}.{key}")
    try:
        # The constructor refuses an object without a required field.
        kind(**{names[key]: item for key, item in value.items() if key in names})
    except ValueError as error:
        yield f"{place}: {error}"


def manifests(program):
    """The manifests against the API, and the Job against the plan."""
    path = DEPLOY / "lab-job.yaml"
    jobs = plan(program, ["all"])
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        kind = (document.get("apiVersion"), document.get("kind"))
        if kind not in MODELS:
            yield f"{path.name}: {kind} is unknown"
            continue
        yield from (f"{path.name}: {text}" for text in model(document, MODELS[kind], document["kind"]))
        if kind[1] != "Job":
            continue
        spec = document["spec"]
        if (spec.get("completionMode"), spec.get("completions")) != ("Indexed", len(jobs)):
            yield f"{path.name}: completions must be {len(jobs)}, the jobs of the plan, in the mode Indexed"
        pod = spec["template"]["spec"]
        mounts = {mount["name"] for container in pod["containers"] for mount in container.get("volumeMounts", [])}
        if mounts - {volume["name"] for volume in pod.get("volumes", [])}:
            yield f"{path.name}: a mount has no volume"
        yield from pod_runs(program, pod["containers"][0], jobs)


def pod_runs(program, container, jobs):
    """Runs the command of the pod for the first job in virtual time."""
    job = next(job for job in jobs if job["experiment"] == "tsq")
    with tempfile.TemporaryDirectory() as folder:
        command = [word.replace("/results", folder).replace("lab all", "lab all --runs 2") for word in container["command"]]
        run = subprocess.run(command, env=environment(program, JOB_COMPLETION_INDEX=str(job["job"])), capture_output=True, text=True)
        results = [json.loads(path.read_text()) for path in pathlib.Path(folder).glob("*/lab.json")]
        if run.returncode or [result["jobs"][0]["job"] for result in results] != [job["job"]]:
            yield f"the pod's command failed: {run.stderr}"


def scripts(program):
    """The scripts by their syntax, their options, and a run."""
    for path in [DEPLOY / "lab.sbatch", DEPLOY / "lab-parallel.sh"]:
        if (syntax := subprocess.run(["bash", "-n", path], capture_output=True, text=True)).returncode:
            yield f"{path.name}: {syntax.stderr}"
    text = (DEPLOY / "lab.sbatch").read_text(encoding="utf-8")
    options = re.findall(r"^#SBATCH +--([a-z-]+)", text, re.M)
    yield from (f"lab.sbatch: sbatch has no option --{option}" for option in options if option not in SBATCH)
    if text.index("#SBATCH") > text.index("set -euo"):
        yield "lab.sbatch: sbatch ignores options after the first command"
    with tempfile.TemporaryDirectory() as folder:
        whole = lab(program, [*SMALL, "--json"])
        for job in plan(program, SMALL):
            task = environment(program, SLURM_ARRAY_TASK_ID=str(job["job"]), RESULTS=f"{folder}/slurm")
            subprocess.run(["bash", DEPLOY / "lab.sbatch", *SMALL], env=task, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        files = sorted(pathlib.Path(folder, "slurm").glob("*/lab.json"))
        yield from same("lab.sbatch", lab(program, ["merge", *files, "--json"]), whole)
        sweep = environment(program, RESULTS=f"{folder}/parallel")
        subprocess.run(["bash", DEPLOY / "lab-parallel.sh", *SMALL], env=sweep, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield from same("lab-parallel.sh", json.loads(pathlib.Path(folder, "parallel", "lab.json").read_text()), whole)


def same(name, merged, whole):
    """Compares two results without what depends on the time at which they were measured."""
    for result in (merged, whole):
        for experiment in result["experiments"]:
            experiment.pop("elapsed_s", None)
            for condition in experiment["conditions"]:
                condition.pop("load", None)
    if merged["experiments"] != whole["experiments"] or merged["repeat"] != whole["repeat"]:
        yield f"{name}: the merged result is not that of one process"


def environment(program, **more):
    """An environment in which the program is the first of its name."""
    return {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", **more}


def lab(program, arguments):
    """Runs `quietline lab` and returns its JSON object."""
    return json.loads(subprocess.run([program, "lab", *arguments], check=True, capture_output=True).stdout)


def plan(program, arguments):
    """The jobs of a command line."""
    run = subprocess.run([program, "lab", *arguments, "--plan"], check=True, capture_output=True, text=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def main() -> int:
    program = pathlib.Path(sys.argv[1]).resolve()
    bad = [*manifests(program), *scripts(program)]
    for text in bad:
        print(f"deploy: {text}")
    print(f"deploy: {len(list(DEPLOY.iterdir()))} files, {len(bad)} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
