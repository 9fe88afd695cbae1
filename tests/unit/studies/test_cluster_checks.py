"""What a cluster cannot do for a study is told before anything is submitted."""

from pathlib import Path

import httpx
import pytest

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.studies.cluster_checks import (
    ClusterFindings,
    NodeKind,
    check_cluster,
    check_offers,
    own_kinds,
    pod_findings,
)
from tests.unit.studies.folders import make_study

A100 = NodeKind("gpu", 4, "a100", 2, 0)
CLUSTER = (A100, NodeKind("big", 2, "h100", 8, 80), NodeKind("cpu", 9, "", 0, 0))
TWO_GPUS = '[[strategies]]\nkind = "tensor_single_node"\ngpus_per_node = 2\n'


def check(
    tmp_path: Path,
    slurm: str,
    strategies: str = TWO_GPUS,
    cluster: tuple[NodeKind, ...] = CLUSTER,
) -> ClusterFindings:
    study = make_study(tmp_path, f"[slurm]\n{slurm}\n", strategies)
    return check_offers(study, cluster)


@pytest.mark.parametrize(
    ("slurm", "told"),
    [
        (
            'partition = "none"',
            "slurm.partition: is 'none', which the cluster does not",
        ),
        ('gres = "gpu:v100"', "slurm.gres: asks for GPUs of the type 'v100'"),
        (
            'gres = "gpx"',
            "slurm.gres: is 'gpx', but the GPUs of the cluster are called",
        ),
        (
            'partition = "cpu"',
            "slurm.gres: is 'gpu', but the GPUs of cpu are called no",
        ),
        (
            'partition = "gpu"\ngres = "gpu:h100"',
            "choose of: gpu, gpu:a100",
        ),
    ],
)
def test_what_slurm_would_refuse(tmp_path: Path, slurm: str, told: str) -> None:
    (fault,) = check(tmp_path, slurm).faults
    assert told in str(fault)


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (
            "gpus_per_node = 16\ntp = 4\npp = 4",
            "gpus_per_node: is 16, but a node has at",
        ),
        (
            "nodes = 5\ngpus_per_node = 2\ndp = 10",
            "nodes: is 5, but a partition has at",
        ),
        ("nodes = 3\ngpus_per_node = 4\ndp = 12", "at most 2 such nodes"),
    ],
)
def test_layouts_for_which_there_are_too_few_nodes(
    tmp_path: Path, layout: str, told: str
) -> None:
    found = check(tmp_path, "", f'[[strategies]]\nkind = "custom"\n{layout}\n')
    (fault,) = found.faults
    assert told in str(fault)


def test_a_model_that_does_not_fit_the_gpus_that_are_offered(tmp_path: Path) -> None:
    small = (NodeKind("gpu", 4, "t4", 2, 1),)
    (fault,) = check(tmp_path, "", cluster=small).faults
    assert "GiB per GPU" in str(fault) and "a GPU has 1" in str(fault)
    # What the study says of its GPUs counts more.
    assert not check(tmp_path, "gpu_memory_gb = 80", cluster=small).faults


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    found = check(tmp_path, 'partition = "gpu"')
    assert not found.faults and "set slurm.gpu_memory_gb" in found.warnings[0]
    down = NodeKind("gpu", 4, "a100", 2, 40, "all nodes are down")
    assert check(tmp_path, "", cluster=(down,)).warnings == (
        "no node can be used now: all nodes are down",
    )
    assert check(tmp_path, 'gres = ""') == ClusterFindings()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"items": [], "problems": {"slurm": "sinfo is not there"}}, "sinfo is not"),
        ({"items": [], "problems": {}}, "gpuyard knows no nodes of it"),
        (None, "the cluster was not checked"),
    ],
)
def test_a_cluster_that_does_not_answer_is_a_warning(
    tmp_path: Path, answer: dict[str, object] | None, told: str
) -> None:
    def offers(_: httpx.Request) -> httpx.Response:
        if answer is None:
            raise httpx.ConnectError("nobody is there")
        return httpx.Response(200, json=answer)

    study = make_study(tmp_path)
    transport = httpx.MockTransport(offers)
    with Client(Address("http://127.0.0.1:1", "x"), transport=transport) as client:
        found = check_cluster(study, client)
    assert not found.faults and told in found.warnings[0]


def test_own_nodes_have_the_memory_of_their_smallest_gpu() -> None:
    nodes = [{"name": "a"}, {"name": "b"}]
    gpus = [
        {"node": "a", "memory_mb": 81920},
        {"node": "a", "memory_mb": 40960},
        {"node": "b", "memory_mb": None},
    ]
    assert own_kinds([*nodes, {"name": "c"}], gpus) == [
        NodeKind("local", 1, "", 2, 40),
        NodeKind("local", 1, "", 1, 0),
        NodeKind("local", 1, "", 0, 0),
    ]


def test_ray_on_own_nodes_is_refused(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        gpus = [{"node": name, "memory_mb": 81920} for name in ("a", "b")]
        nodes = [{"name": name} for name in ("a", "b")]
        items = gpus if request.url.path.endswith("gpus") else nodes
        return httpx.Response(200, json={"items": items, "next": None})

    strategies = (
        '[[strategies]]\nkind = "pipeline_across_nodes"\nnodes = 2\nengine = "vllm"\n'
    )
    study = make_study(tmp_path, "", strategies)
    address = Address("http://127.0.0.1:1", "secret")
    client = Client(address, transport=httpx.MockTransport(answer))
    (fault,) = check_cluster(study, client, "local").faults
    assert (fault.field, fault.remedy) == (
        "strategies.0.nodes",
        "choose vllm_server, or set nodes to 1",
    )


def test_what_pods_need(tmp_path: Path) -> None:
    def findings(sections: str) -> ClusterFindings:
        return pod_findings(make_study(tmp_path, sections, TWO_GPUS))

    (fault,) = findings("").faults
    assert (fault.field, fault.remedy) == (
        "kubernetes",
        "add the section [kubernetes] with image",
    )
    image = '[kubernetes]\nimage = "torch:1"\n'
    (warning,) = findings(image).warnings
    assert f"the model ({tmp_path / 'model'}) under the same path" in warning
    # The provider's settings may mount what the study does not.
    elsewhere = findings(f'{image}volumes = {{ "/elsewhere" = "pvc:x" }}\n')
    (warning,) = elsewhere.warnings
    assert not elsewhere.faults and f"the study's folder ({tmp_path})" in warning
    here = f'volumes = {{ "{tmp_path}" = "pvc:x" }}\n'
    assert findings(image + here) == ClusterFindings()
    layout = f'{TWO_GPUS}engine = "vllm"\nquantized_model = "/weights"\n'
    (warning,) = pod_findings(make_study(tmp_path, image + here, layout)).warnings
    assert warning.startswith("pods must see strategies.0.quantized_model (/weights)")
    inside = f'[slurm]\napptainer_image = "x.sif"\n{image}{here}'
    assert [one.field for one in findings(inside).faults] == ["slurm.apptainer_image"]


def test_kinds_of_nodes_of_kubernetes_are_one_place(tmp_path: Path) -> None:
    offer = {"provider": "kubernetes", "gpu_memory_gb": 80, "problem": ""}
    offers = [
        {**offer, "id": f"kubernetes/{name}", "nodes": 2, "gpu": name, "gpus": gpus}
        for name, gpus in (("h100", 8), ("a100", 2))
    ]

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"items": offers, "problems": {}})

    image = f'[kubernetes]\nimage = "i"\nvolumes = {{ "{tmp_path}" = "pvc:x" }}\n'
    layout = '[[strategies]]\nkind = "tensor_across_nodes"\nnodes = '
    transport = httpx.MockTransport(answer)
    with Client(Address("http://127.0.0.1:1", "x"), transport=transport) as client:
        study = make_study(tmp_path, image, f"{layout}4\n")
        assert not check_cluster(study, client, "kubernetes").faults
        study = make_study(tmp_path, image, f"{layout}8\n")
        (fault,) = check_cluster(study, client, "kubernetes").faults
    assert fault.fault == "is 8, but a partition has at most 4 such nodes"
