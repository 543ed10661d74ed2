"""The manifests in config/kubernetes: valid, and all of one mind.

The custom resources of agent-sandbox are held against what its Go types of v1beta1 say; no cluster is asked.
"""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shelld_py.config import Settings

ROOT = Path(__file__).parent.parent / "config" / "kubernetes"
VERSION = "1.30"
OWN_KINDS = {"Pod", "NetworkPolicy", "PersistentVolumeClaim"}
ALLOWED = {
    "Sandbox": {"podTemplate", "volumeClaimTemplates", "service", "shutdownTime", "shutdownPolicy", "operatingMode"},
    "SandboxTemplate": {
        "podTemplate", "volumeClaimTemplates", "service", "networkPolicy", "networkPolicyManagement",
        "envVarsInjectionPolicy", "volumeClaimTemplatesPolicy", "generatedSecrets",
    },
    "SandboxWarmPool": {"replicas", "sandboxTemplateRef", "updateStrategy"},
    "SandboxClaim": {"warmPoolRef", "lifecycle", "additionalPodMetadata", "safeToEvict", "env"},
}  # fmt: skip


def _documents() -> list[tuple[str, dict[str, Any]]]:
    return [
        (path.relative_to(ROOT).as_posix(), document)
        for path in sorted(ROOT.rglob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document["kind"] != "Kustomization"
    ]


DOCUMENTS = _documents()
PODS = [
    (name, document["spec"] if document["kind"] == "Pod" else document["spec"]["podTemplate"]["spec"])
    for name, document in DOCUMENTS
    if document["kind"] in {"Pod", "Sandbox", "SandboxTemplate"}
]


def _validate(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=[name for name, _ in DOCUMENTS])
def test_a_manifest_is_valid(name: str, document: dict[str, Any]) -> None:
    """Its fields are known; a pod within another resource is one that Kubernetes would take by itself."""
    kind = document["kind"]
    if kind in OWN_KINDS:
        _validate(document)
    else:
        assert set(document["spec"]) <= ALLOWED[kind]
    if kind in {"Sandbox", "SandboxTemplate"}:
        template = document["spec"]["podTemplate"]
        metadata = {"name": "shelld-py", **template["metadata"]}
        _validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})


def test_an_invalid_manifest_is_found() -> None:
    """The validation can fail: a misspelt field is refused."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [], "restartPolcy": ""}}
    with pytest.raises(kubernetes_validate.ValidationError):
        _validate(pod)


@pytest.mark.parametrize(("name", "pod"), PODS, ids=[name for name, _ in PODS])
def test_every_pod_is_the_same(name: str, pod: dict[str, Any]) -> None:
    assert pod == PODS[0][1]


def test_the_grace_period_is_longer_than_the_shutdown() -> None:
    pod = PODS[-1][1]
    pause = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + Settings().timeout.shutdown


def test_nobody_can_be_faster_than_the_key() -> None:
    """The daemon has its key from its start, and the pod can do nothing to the node."""
    container = PODS[0][1]["containers"][0]
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["key"] == "key"
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("kustomization.yaml")), ids=lambda path: path.parent.name)
def test_a_kustomization_names_files_that_are_there(path: Path) -> None:
    for resource in yaml.safe_load(path.read_text(encoding="utf-8"))["resources"]:
        assert (path.parent / resource).exists()
