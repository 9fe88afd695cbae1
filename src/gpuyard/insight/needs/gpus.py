"""Whether a program uses a GPU, and how many it uses."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.insight.gpu_use import says_gpu
from gpuyard.insight.needs.config_files import parsed_config
from gpuyard.insight.needs.facts import Facts
from gpuyard.insight.needs.made_models import placed
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import Place, Thing, Value, whole

_COUNT_OPTIONS = re.compile(
    r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|gpus[-_]per[-_]node)"
    r"(?:=|\s+)(\d{1,4})(?!\d)"
)
_NODE_OPTIONS = re.compile(
    r"--(?:nnodes|num[-_]machines|num[-_]nodes)(?:=|\s+)(\d{1,4})(?!\d)"
)
# `-n` of Composer.
_COMPOSER = re.compile(r"\bcomposer\b.{0,200}?\s(?:-n|--nproc)[= ]\s*(\d{1,4})(?!\d)")
# Options of programs that start their own processes. One GPU may be its number.
_OWN_OPTION = re.compile(r"--(?:num[-_]gpus?|n[-_]?gpus?|gpus)")
_MPI = re.compile(r"\b(?:mpirun|horovodrun)\b.{0,1000}?\s-n?p\s+(\d{1,4})(?!\d)")
_TAKE_ANY = ("Trainer", "Accelerator", "Fabric")
_TAKE_ANY_OF = (
    "transformers",
    "trl",
    "pytorch_lightning",
    "accelerate",
    "sentence_transformers",
    "setfit",
    "composer",
)
_DEVICE_NAMES = frozenset(
    {"torch.cuda.set_device", "torch.cuda.current_device"}
    | {"torch.accelerator.current_accelerator", "torch.accelerator.set_device_index"}
    | {"ignite.distributed.device", "ignite.distributed.auto_model"}
)
_JAX = re.compile(
    r"\b(?:jax|nnx|eqx|hk)\.(?:jit|pmap|grad|value_and_grad)\b"
    r"|^[ \t]*(?:import|from)[ \t]+(?:optax|flax|haiku|equinox)\b",
    re.MULTILINE,
)
_TENSORFLOW_1 = re.compile(
    r"\btf\.(?:compat\.v1\.)?"
    r"(?:estimator\.|Session\(|layers\.|contrib\.|train\.\w{0,40}Optimizer\()"
)
_ALWAYS = frozenset({"YOLO", "FastLanguageModel", "LLM"})
_MOST_READ = 100
_MOST_OF_A_NODE = 64
_LONGEST_SCRIPT = 100_000
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GpuCount:
    """How many GPUs on each of how many nodes, and where that stands. `in_one`: one
    process sees them all.
    """

    count: int
    nodes: int = 1
    place: Place | None = None
    reason: str = ""
    in_one: bool = False


def gpu_sign(
    facts: Facts, sources: Sources, arguments: Sequence[str]
) -> tuple[str, Place | None] | None:
    """What in a program is meant for a GPU, and where; None if it runs on the CPU."""
    if _chooses_cpu(facts, arguments) or uses_tpu(facts):
        return None
    for call in facts.calls:
        thing = call.thing
        sign = _sign_of(thing)
        if sign is not None:
            return sign, placed(thing)
    for path in _followed(facts, sources)[:_MOST_READ]:
        text = sources.text(path) or ""
        sign = says_gpu(text, arguments)
        if sign is None and _JAX.search(text):
            sign = "JAX computes on a GPU where there is one"
        if sign is None and _TENSORFLOW_1.search(text):
            sign = "TensorFlow computes on a GPU where there is one"
        if sign is not None:
            return sign, Place(path, 0)
    return None


def _followed(facts: Facts, sources: Sources) -> list[str]:
    """The program, what it imports, and what it calls."""
    entry = sources.entry
    text = sources.text(entry) or ""
    imported = [sources.module(name, entry) for name in _IMPORTED.findall(text)]
    called = {call.thing.place.path for call in facts.calls}
    code = [path for path in called if path.endswith((".py", ".ipynb"))]
    found = [entry, *filter(None, imported), *sorted(code)]
    return list(dict.fromkeys(found))


def _chooses_cpu(facts: Facts, arguments: Sequence[str]) -> bool:
    words = " ".join(arguments)
    if re.search(r"--(no[-_]cuda|cpu|use[-_]cpu)\b", words):
        return True
    if re.search(r"--(device|accelerator)[= ]cpu\b", words):
        return True
    for thing in facts.named("Trainer", "Accelerator"):
        if (
            thing.keywords.get("accelerator") == "cpu"
            or thing.keywords.get("cpu") is True
        ):
            return True
    return any(call.thing.keywords.get("use_cpu") is True for call in facts.calls)


def uses_tpu(facts: Facts) -> bool:
    """Whether an option or a configuration of the program chooses a TPU."""
    given = facts.settings
    kinds = [given.get(name) for name in ("hardware", "accelerator", "device")]
    names = [given.get(name) for name in ("tpu_name", "tpu")]
    is_named = any(name and isinstance(name, str) for name in names)
    return "tpu" in kinds or given.get("use_tpu") is True or is_named


def _sign_of(thing: Thing) -> str | None:
    """Why a call is meant for a GPU."""
    last = thing.last_name
    name = thing.name
    if last.endswith(_TAKE_ANY) and name.startswith(_TAKE_ANY_OF):
        return f"{last} uses a GPU where there is one"
    if last in _ALWAYS or last == "cuda":
        return last
    if name == "deepspeed.initialize":
        return name
    if name in _DEVICE_NAMES:
        return name
    if last in ("to", "device") and any(map(_is_cuda, _words_of(thing))):
        return "device=cuda"
    if name.startswith("keras") and last in ("fit", "fit_generator", "train_on_batch"):
        return "TensorFlow trains on a GPU where there is one"
    if name.startswith(("jax.jit", "jax.grad", "jax.value_and_grad", "jax.pmap")):
        return "JAX computes on a GPU where there is one"
    if name.startswith("tensorflow") and last in ("GradientTape", "function"):
        return "TensorFlow trains on a GPU where there is one"
    if name.startswith("fastai") and last.endswith(("learner", "Learner")):
        return "fastai trains on a GPU where there is one"
    if name.startswith("stable_baselines3") and last == "learn":
        return "Stable-Baselines3 uses a GPU where there is one"
    if name.startswith(("sentence_transformers", "spacy")) and last == "fit":
        return "it trains on a GPU where there is one"
    for keyword in ("device", "accelerator", "tree_method", "task_type", "device_map"):
        if _is_cuda(thing.keywords.get(keyword)):
            return f"{keyword}={thing.keywords[keyword]}"
    params = thing.argument(0, "params", default=None)
    if isinstance(params, dict) and any(map(_is_cuda, params.values())):
        return "params say cuda"
    return None


def _words_of(thing: Thing) -> list[Value]:
    found: list[Value] = []
    for value in (*thing.arguments, *thing.keywords.values()):
        is_device = isinstance(value, Thing) and value.last_name == "device"
        found += value.arguments if isinstance(value, Thing) and is_device else [value]
    return found


def _is_cuda(value: Value) -> bool:
    if isinstance(value, Thing) and value.last_name == "device":
        return any(map(_is_cuda, value.arguments))
    if not isinstance(value, str):
        return False
    text = value.lower()
    return text.startswith(("cuda", "gpu")) or text in ("gpu_hist", "auto")


def launched_gpus(launcher: Sequence[str], config: Thing | None) -> GpuCount | None:
    """How many GPUs the words of a launcher say, or its configuration file."""
    found = _launched(" ".join(launcher))
    if found is not None or config is None:
        return found
    processes = whole(config.keywords.get("num_processes"))
    if not processes:
        return None
    nodes = whole(config.keywords.get("num_machines")) or 1
    count = max(processes // nodes, 1)
    return GpuCount(count, nodes, config.place, f"num_processes: {processes}")


def gpus_of(
    facts: Facts,
    sources: Sources,
    arguments: Sequence[str],
    environment: dict[str, str],
) -> GpuCount:
    """How many GPUs a program uses whose launcher does not say it; one where nothing
    says more.
    """
    own = _own_count(arguments)
    if own is not None:
        return own
    for call in facts.calls:
        found = _count_of(call.thing)
        if found is not None:
            return found
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if re.fullmatch(r"\d+(,\d+)+", visible):
        return GpuCount(
            visible.count(",") + 1,
            reason=f"CUDA_VISIBLE_DEVICES={visible}",
            in_one=True,
        )
    return _scripted(sources) or GpuCount(1)


def _own_count(arguments: Sequence[str]) -> GpuCount | None:
    """What an option of the program says, such as `--gpus 4`."""
    for at, word in enumerate(arguments):
        (option, equals, value) = word.partition("=")
        if _OWN_OPTION.fullmatch(option):
            given = value if equals else " ".join(arguments[at + 1 : at + 2])
            count = _number_of_devices(given)
            if count is not None and 1 < count <= _MOST_OF_A_NODE:
                return GpuCount(count, reason=f"`{option} {given}`")
    return None


def _launched(line: str) -> GpuCount | None:
    """What the words of a launcher say."""
    count = _COUNT_OPTIONS.search(line) or _MPI.search(line) or _COMPOSER.search(line)
    if count is None:
        return None
    nodes = _NODE_OPTIONS.search(line)
    machines = max(int(nodes[1]), 1) if nodes else 1
    per_node = max(int(count[1]), 1)
    if "num_processes" in count[0] or "num-processes" in count[0]:
        per_node = max(per_node // machines, 1)
    return GpuCount(per_node, machines, reason=f"`{line.strip()[:80]}`")


def _count_of(thing: Thing) -> GpuCount | None:
    last = thing.last_name
    if last in ("Trainer", "Fabric"):
        devices = thing.argument(-1, "devices", "gpus", default=None)
        nodes = whole(thing.argument(-1, "num_nodes", default=1)) or 1
        count = _number_of_devices(devices)
        if count is not None or nodes > 1:
            return GpuCount(count or 1, nodes, placed(thing))
    if last in ("spawn", "start_processes", "xmp_spawn"):
        count = whole(thing.argument(2, "nprocs"))
        return GpuCount(count, 1, placed(thing)) if count else None
    if last in ("notebook_launcher", "debug_launcher"):
        count = whole(thing.argument(2, "num_processes"))
        return GpuCount(count, 1, placed(thing)) if count else None
    if last in ("DataParallel", "MirroredStrategy"):
        devices = thing.argument(
            1 if last == "DataParallel" else 0, "device_ids", "devices"
        )
        count = (
            _number_of_devices(devices) if isinstance(devices, list | tuple) else None
        )
        return GpuCount(count, 1, placed(thing)) if count else None
    if last == "ScalingConfig" and thing.keywords.get("use_gpu") is True:
        count = whole(thing.argument(0, "num_workers"))
        return GpuCount(count, 1, placed(thing)) if count else None
    if last == "LLM":
        names = ("tensor_parallel_size", "pipeline_parallel_size")
        ways = [_number_of_devices(thing.keywords.get(name, 1)) for name in names]
        count = (ways[0] or 1) * (ways[1] or 1)
        return GpuCount(count, 1, placed(thing)) if count > 1 else None
    if last == "train":
        devices = thing.keywords.get("device")
        count = _number_of_devices(devices) if isinstance(devices, list) else None
        return GpuCount(count, 1, placed(thing)) if count else None
    return None


def _number_of_devices(devices: Value) -> int | None:
    if isinstance(devices, list | tuple):
        return len(devices) or None
    if isinstance(devices, str) and re.fullmatch(r"\d+(,\d+)+", devices):
        return devices.count(",") + 1
    count = whole(devices)
    return count if count and count < 10_000 else None


def _scripted(sources: Sources) -> GpuCount | None:
    """What scripts beside the program say that launch it."""
    entry = sources.entry.rpartition("/")[2]
    named = re.compile(rf"(?:^|[\s/]){re.escape(entry)}(?:\s|$)")
    for path in sources.paths():
        text = sources.text(path) or ""
        if len(text) > _LONGEST_SCRIPT:
            continue
        if path.endswith((".sh", ".slurm", ".sbatch", "Makefile")) and entry in text:
            for line in text.replace("\\\n", " ").splitlines():
                found = _launched(line) if named.search(line) else None
                if found is not None and not line.lstrip().startswith("#"):
                    return GpuCount(
                        found.count, found.nodes, Place(path, 0), found.reason
                    )
        is_beside = "/" not in path and path.endswith((".yaml", ".yml"))
        is_beside = is_beside and entry.endswith(".py")
        if is_beside and "num_processes" in text:
            config = parsed_config(text)
            count = (
                whole(config.get("num_processes")) if isinstance(config, dict) else None
            )
            if count:
                nodes = whole(config.get("num_machines")) or 1
                return GpuCount(
                    max(count // nodes, 1), nodes, Place(path, 0), "num_processes"
                )
    return None
