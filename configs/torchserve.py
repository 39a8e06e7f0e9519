"""What each TorchServe version can do, and the keys that its config.properties may hold.

0.6.0 starts the launcher with one instance hard-coded, so that all workers stand on the same cores; 0.6.1 numbers
them; 0.8.0 moved from Intel's launcher to PyTorch's own. `make test-versions` starts them for real.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import MachineError
from configs.plan import Slot


@dataclass(frozen=True)
class Launcher:
    """The CPU launcher that a TorchServe version starts its workers with.

    Attributes:
        module: what `python -m` runs.
        core_list: the name of its argument, and what has to stand before it.
        numbers_workers: whether each worker gets cores of its own.
    """

    module: str
    core_list: str
    numbers_workers: bool

    def arguments(self, slots: Sequence[Slot], threads: int) -> str:
        """cpu_launcher_args for these slots. Only commas and single blanks: TorchServe splits the arguments at
        blanks, and the launcher knows no ranges. The list has no more CPUs than the workers need, or a single
        worker would be started several times."""
        cpus = ",".join(str(cpu) for slot in slots for cpu in slot.cpus)
        return f"{self.core_list} {cpus} --ncores-per-instance {threads}"


# Intel's drops every CPU that is not the first hardware thread of its core, unless told not to.
_INTEL, _INTEL_LIST = "intel_extension_for_pytorch.cpu.launch", "--use-logical-cores --cores-list"
# 0.8.0 already asks for PyTorch's: given Intel's arguments its probe fails, and workers start without the launcher.
_LAUNCHERS = (
    ((0, 8, 0), Launcher("torch.backends.xeon.run_cpu", "--core-list", True)),
    ((0, 6, 1), Launcher(_INTEL, _INTEL_LIST, True)),
    ((0, 6, 0), Launcher(_INTEL, _INTEL_LIST, False)),
)



def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The keys of 0.12, the last version, by the type of their values. What is not here is ignored without a word.
BOOLEAN_KEYS = _names("""
    async_logging cpu_launcher_enable debug decode_input_request disable_system_metrics disable_token_authorization
    enable_envvars_config enable_grpc_ssl enable_metrics_api enable_model_api install_py_dep_per_model ipex_enable
    ipex_gpu_enable limit_max_image_pixels model_metrics_auto_detect prefer_direct_buffer ts_open_inference_protocol
    use_env_allowed_urls use_native_io
""")
INTEGER_KEYS = _names("""
    default_response_timeout default_startup_timeout default_workers_per_model grpc_inference_max_connection_age_ms
    grpc_inference_max_connection_age_grace_ms grpc_inference_port grpc_management_max_connection_age_ms
    grpc_management_max_connection_age_grace_ms grpc_management_port initial_distribution_port initial_worker_port
    io_ratio job_queue_size max_request_size max_response_size metric_time_interval netty_client_threads number_of_gpu
    number_of_netty_threads unregister_model_timeout
""")
# Read by the Python launcher, by rules of its own; model_store by Java as well.
PYTHON_KEYS = _names("model_store plugins_path vmargs")
KEYS = BOOLEAN_KEYS | INTEGER_KEYS | PYTHON_KEYS | _names("""
    allowed_urls blacklist_env_vars certificate_file cors_allowed_headers cors_allowed_methods cors_allowed_origin
    cpp_log_config cpu_launcher_args default_service_handler grpc_inference_address grpc_management_address
    inference_address keystore keystore_pass keystore_type load_models management_address metrics_address metrics_config
    metrics_mode model_server_home model_snapshot models private_key_file service_envelope system_metrics_cmd
    token_expiration_min ts_header_key_sequence_end ts_header_key_sequence_id ts_header_key_sequence_start version
    workflow_store
""")
# Only the file can set these; an environment variable can set any other (with enable_envvars_config=true).
_FILE_ONLY = _names("""
    enable_envvars_config io_ratio metric_time_interval model_snapshot models plugins_path system_metrics_cmd
    use_env_allowed_urls use_native_io version vmargs
""")
# What the `models` JSON may say of a model: counts, which must be above zero, and the rest.
MODEL_COUNTS = _names("batchSize maxBatchDelay maxWorkers minWorkers responseTimeout startupTimeout")
MODEL_KEYS = MODEL_COUNTS | _names("defaultVersion marName parallelLevel runtimeType")
# Known to an archive's model-config.yaml only.
YAML_KEYS = _names("""
    asyncCommunication clientTimeoutInMills continuousBatching deviceIds deviceType jobQueueSize maxNumSequence
    maxRetryTimeoutInSec maxSequenceJobQueueSize parallelType sequenceBatching sequenceMaxIdleMSec sequenceTimeoutMSec
    torchrun useJobTicket useVenv
""")


def key_of_variable(variable: str) -> str | None:
    """The key that an environment variable stands for, or None if it stands for none."""
    if not variable.startswith("TS_"):
        return None
    if variable == "TS_TOKEN_EXPIRATION_TIME_MIN":
        return "token_expiration_min"
    names = (variable.lower(), variable.lower().removeprefix("ts_"))
    return next((name for name in names if name in KEYS - _FILE_ONLY and name != "token_expiration_min"), None)


def installed_version() -> str:
    """The version of the TorchServe beside this interpreter.

    Raises:
        MachineError: there is none.
    """
    try:
        return importlib.metadata.version("torchserve")
    except importlib.metadata.PackageNotFoundError as error:
        raise MachineError("TorchServe is not installed", remedy="pip install torchserve==0.12.0") from error


def launcher_of(version: str) -> Launcher | None:
    """The launcher of a version, or None before 0.6.0, which has none.

    Raises:
        MachineError: not a version.
    """
    key = _numbers(version)
    return next((launcher for since, launcher in _LAUNCHERS if key >= since), None)


def knows_startup_timeout(version: str) -> bool:
    """Whether loading has a timeout of its own. Before 0.12.0 it counts as a response, and a worker that loads for
    longer than the response timeout is killed, again and again.

    Raises:
        MachineError: not a version.
    """
    return _numbers(version) >= (0, 12, 0)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if numbers is None:
        raise MachineError("this is no TorchServe version", why=repr(version))
    return tuple(int(number or 0) for number in numbers.groups())
