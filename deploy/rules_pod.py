"""Rules about one pod: its image, privileges, folders, amounts, and the times of its start and end."""

from __future__ import annotations

from typing import Any

from configs.errors import ToolkitError
from configs.planning import gib
from deploy.manifests import Object, tag_of
from deploy.problem import Found, Problem
from deploy.sizing import size
from deploy.workload import RUN_FOLDER, TMP_FOLDER, Case, Workload, quantity

END_MARGIN_SECONDS = 5  # between the server's own end and the kubelet's SIGKILL
LIVENESS_SECONDS = 30  # a pod under a quota may be stopped for a while, and a restart costs minutes
DEADLINE_SECONDS = 600  # Kubernetes' default of progressDeadlineSeconds


def image(case: Case) -> Found:
    """A tag that says what runs."""
    name = str(case.workload.container.get("image", ""))
    tag = tag_of(name)
    if "@" in name or (tag and tag != "latest"):
        return name
    return [Problem(case.workload.name, f"the image {name!r} has " + ("the tag latest" if tag else "no tag")
                    + ": what it is changes under the pods", "--image NAME:TAG, or NAME@sha256:…")]


def hardening(case: Case) -> Found:
    """No privilege, no token, no writable root."""
    pod, container = case.workload.pod, case.workload.container
    at_pod, at_container = pod.get("securityContext", {}), container.get("securityContext", {})
    both = {**at_pod, **at_container}
    wanted: list[tuple[str, Any, Any]] = [
        ("readOnlyRootFilesystem", both.get("readOnlyRootFilesystem"), True),
        ("allowPrivilegeEscalation", both.get("allowPrivilegeEscalation"), False),
        ("capabilities.drop", both.get("capabilities", {}).get("drop"), ["ALL"]),
        ("capabilities.add", both.get("capabilities", {}).get("add", []), []),
        ("runAsNonRoot", both.get("runAsNonRoot"), True),
        ("seccompProfile.type", both.get("seccompProfile", {}).get("type"), "RuntimeDefault"),
        ("privileged", both.get("privileged", False), False),
        ("automountServiceAccountToken", pod.get("automountServiceAccountToken"), False),
        *((name, pod.get(name, False), False) for name in ("hostNetwork", "hostPID", "hostIPC"))]
    problems = [Problem(case.workload.name, f"{name} is {found!r}", f"{name.rpartition('.')[2]}: {right!r}".lower()
                        if isinstance(right, bool) else f"{name}: {right}")
                for name, found, right in wanted if found != right]
    if not both.get("runAsUser"):
        problems.append(Problem(case.workload.name, f"runAsUser is {both.get('runAsUser')!r}", "runAsUser: 10001"))
    for each in case.of_kind("ServiceAccount"):
        if each.get("automountServiceAccountToken") is not False:
            problems.append(Problem(f"ServiceAccount {each['metadata']['name']}", "its token is mounted into pods",
                                    "automountServiceAccountToken: false"))
    return problems or f"uid {both['runAsUser']}, read-only root, no capabilities, no token"


def folders(case: Case) -> Found:
    """On a read-only root the server has two folders to write to, and they fit the pod's ephemeral storage."""
    workload = case.workload
    volumes = {each["name"]: each for each in workload.pod.get("volumes", [])}
    mounted = {mount["mountPath"].rstrip("/"): volumes.get(mount["name"], {})
               for mount in workload.container.get("volumeMounts", [])}
    problems = [Problem(workload.name, f"nothing can be written to {folder}", f"an emptyDir mounted at {folder}")
                for folder in (RUN_FOLDER, TMP_FOLDER) if "emptyDir" not in mounted.get(folder, {})]
    limits = [each["emptyDir"].get("sizeLimit") for each in volumes.values() if "emptyDir" in each]
    storage = workload.amount("limits", "ephemeral-storage")
    if None in limits:
        problems.append(Problem(workload.name, "an emptyDir has no sizeLimit: it may fill the node's disk",
                                "sizeLimit: 2Gi"))
    elif storage is None or sum(map(quantity, limits)) > storage:
        problems.append(Problem(workload.name, f"emptyDirs of {' + '.join(map(str, limits))} do not fit an "
                                f"ephemeral-storage limit of {_given(workload, 'limits', 'ephemeral-storage')}",
                                "a limit of at least their sum, and room for logs"))
    return problems or f"{RUN_FOLDER}, {TMP_FOLDER}: {' + '.join(map(str, limits))}"


def cpus(case: Case) -> Found:
    """The plan is made from the limit; exclusive cores come in whole ones, and only to Guaranteed pods."""
    workload = case.workload
    limit, request = workload.amount("limits", "cpu"), workload.amount("requests", "cpu")
    if not limit:
        return [Problem(f"{workload.name}: resources.limits.cpu", "no CPU limit: the pod would plan for the whole node",
                        "limits: {cpu: \"4\"}")]
    problems = []
    for name in ("cpu", "memory", "ephemeral-storage"):
        least, most = workload.amount("requests", name), workload.amount("limits", name)
        words = f"requests {_given(workload, 'requests', name)}, limits {_given(workload, 'limits', name)}"
        if least is not None and most is not None and least > most:
            problems.append(Problem(f"{workload.name}: {name}", words, "a request no higher than the limit"))
        elif workload.exclusive and name != "ephemeral-storage" and least != most:
            problems.append(Problem(f"{workload.name}: {name}", f"{words}: not Guaranteed, so without cores of its own",
                                    "requests equal to limits"))
    if workload.exclusive and limit.denominator != 1:
        problems.append(Problem(f"{workload.name}: cpu", f"{_given(workload, 'limits', 'cpu')} CPUs: the static CPU "
                                "manager policy gives cores of their own for whole numbers only", "a whole number"))
    targets = [("HorizontalPodAutoscaler " + each["metadata"]["name"], _utilization(each))
               for each in case.of_kind("HorizontalPodAutoscaler")]
    if workload.pod.get("scaleMetric") == "cpu":
        targets.append((workload.name, workload.pod.get("scaleTarget")))
    for where, target in targets:
        if target is not None and request and target >= 100 * limit / request:
            problems.append(Problem(where, f"it scales at {target} % of the request, which is the limit or beyond it: "
                                    "never", f"below {int(100 * limit / request)}"))
    kind = "exclusive" if workload.exclusive else "shared"
    return problems or (f"limit {_given(workload, 'limits', 'cpu')}, request "
                        f"{_given(workload, 'requests', 'cpu')}, {kind}")


def _utilization(autoscaler: Object) -> int | None:
    for each in autoscaler["spec"].get("metrics", []):
        if each.get("resource", {}).get("name") == "cpu":
            found: int | None = each["resource"]["target"].get("averageUtilization")
            return found
    return None


def memory(case: Case) -> Found:
    """The limit holds the workers that the CPUs are for, and the JVM."""
    workload, limit = case.workload, case.workload.amount("limits", "memory")
    where = f"{workload.name}: resources.limits.memory"
    if limit is None:
        return [Problem(where, "no memory limit: the node's memory bounds the workers", "limits: {memory: 8Gi}")]
    needed = size(case)
    if needed is None or case.models is None:
        return None
    each = ", ".join(f"{model.workers} × {model.name} of {gib(model.resident_bytes)}" for model in needed.plan.models)
    how = "measured" if all(model.measured for model in case.models) else "assumed: no measurement is at hand"
    if needed.memory > limit:
        return [Problem(where, f"{each} and the JVM take {gib(needed.memory)} ({how}); the limit is {gib(limit)}",
                        f"at least {-(-needed.memory // 2**30)}Gi, or fewer CPUs or workers")]
    return f"{gib(needed.memory)} of {gib(limit)}: {each}, JVM ({how})"


def start(case: Case) -> Found:
    """The kubelet waits longer for a start than the supervisor does, which says what is missing when it gives up."""
    workload, probe = case.workload, case.workload.container.get("startupProbe")
    if probe is None:
        return [Problem(workload.name, "no startupProbe: the liveness probe would end a pod that loads its models",
                        "startupProbe on /startup")]
    problems = _asks(case, "startupProbe", "/startup")
    budget = startup_seconds(workload)
    deadline = int(workload.spec.get("progressDeadlineSeconds", DEADLINE_SECONDS))
    if workload.spec and deadline <= budget:
        problems.append(Problem(f"{workload.name}: progressDeadlineSeconds", f"{deadline} s: a rollout is given up "
                                f"before the startup probe's {budget} s are over", f"more than {budget}"))
    try:
        needed = size(case)
    except ToolkitError:
        needed = None  # the rule about memory says so
    if needed and budget < needed.start_seconds:
        period = int(probe.get("periodSeconds", 10))
        problems.append(Problem(
            f"{workload.name}: startupProbe", f"failureThreshold × periodSeconds = {budget} s: the supervisor itself "
            f"waits up to {needed.start_seconds} s", f"failureThreshold: {-(-needed.start_seconds // period)}"))
    if problems or needed is None:
        return problems or None
    return f"{budget} s; the supervisor gives up after {needed.start_seconds} s at most"


def startup_seconds(workload: Workload) -> int:
    """How long the startup probe waits."""
    probe = workload.container.get("startupProbe") or {}
    return int(probe.get("initialDelaySeconds", 0)) + _patience(probe)


def _patience(probe: Object) -> int:
    """Seconds of failures that a probe bears."""
    return int(probe.get("failureThreshold", 3)) * int(probe.get("periodSeconds", 10))


def liveness(case: Case) -> Found:
    """A restart is for a server that has failed, not for one that is busy."""
    probe = case.workload.container.get("livenessProbe")
    if probe is None:
        return "none: the supervisor ends by itself when the server fails"
    problems = _asks(case, "livenessProbe", "/live")
    budget = _patience(probe)
    if budget < LIVENESS_SECONDS:
        problems.append(Problem(f"{case.workload.name}: livenessProbe", f"failureThreshold × periodSeconds = {budget} "
                                "s: a throttled pod would be restarted", f"at least {LIVENESS_SECONDS} s"))
    return problems or f"{budget} s without an answer"


def readiness(case: Case) -> Found:
    """Requests come to pods whose models are all loaded."""
    if case.workload.container.get("readinessProbe") is None:
        return [Problem(case.workload.name, "no readinessProbe: requests would come before the models are loaded",
                        "readinessProbe on /ready")]
    return _asks(case, "readinessProbe", "/ready") or "/ready"


def _asks(case: Case, name: str, path: str) -> list[Problem]:
    """Whether a probe asks the health port for the right thing."""
    get = case.workload.container[name].get("httpGet", {})
    problems = []
    if get.get("path") != path:
        problems.append(Problem(f"{case.workload.name}: {name}", f"it asks for {get.get('path')}", f"path: {path}"))
    port = get.get("port")
    number = case.workload.port(port) if isinstance(port, str) else port
    if case.settings is not None and number != case.settings.ports.health:
        problems.append(Problem(f"{case.workload.name}: {name}", f"it asks port {port}",
                                f"serving.yaml's health port, {case.settings.ports.health}"))
    return problems


def end(case: Case) -> Found:
    """SIGKILL comes after the server's own grace period."""
    if case.settings is None:
        return None
    workload, drain = case.workload, case.settings.drain
    total = int(workload.pod.get("terminationGracePeriodSeconds", 30))
    sleep = pre_stop_seconds(workload)
    problems = []
    if sleep is None:
        problems.append(Problem(f"{workload.name}: lifecycle.preStop", "none, or no sleep: load balancers that have "
                                "not noticed send requests to a pod that is told to end",
                                'exec: {command: [sleep, "5"]}'))
    needed = (sleep or 0) + drain.grace_seconds + END_MARGIN_SECONDS
    words = f"preStop {sleep or 0:g} s + drain.grace_seconds {drain.grace_seconds:g} s + {END_MARGIN_SECONDS} s"
    if needed > total:
        problems.append(Problem(f"{workload.name}: terminationGracePeriodSeconds", f"{total} s, and {words} = "
                                f"{needed:g} s", f"at least {needed:g}, or a shorter drain.grace_seconds"))
    if drain.notice_seconds >= drain.grace_seconds:
        problems.append(Problem("serving.yaml: drain", f"notice_seconds {drain.notice_seconds:g} is part of "
                                f"grace_seconds {drain.grace_seconds:g}, and leaves nothing of it",
                                "a longer grace_seconds"))
    return problems or f"{words} ≤ {total} s"


def pre_stop_seconds(workload: Workload) -> float | None:
    """How long preStop sleeps; None where it does not."""
    hook = workload.container.get("lifecycle", {}).get("preStop", {})
    if "sleep" in hook:
        return float(hook["sleep"]["seconds"])
    command = hook.get("exec", {}).get("command", [])
    try:
        return float(command[1]) if command[0].rpartition("/")[2] == "sleep" else None
    except (IndexError, ValueError):
        return None


def _given(workload: Workload, kind: str, resource: str) -> str:
    return str(workload.container.get("resources", {}).get(kind, {}).get(resource, "none"))
