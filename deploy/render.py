"""Writes deploy/rendered: what kubectl makes of deploy/kustomize, and what Helm makes of deploy/helm.

    python3.12 -m venv v && v/bin/pip install helm-sdkpy pyyaml && v/bin/python deploy/render.py

Helm installs the chart into a double of an API server that records what is created, so what Helm checks on the way (templates,
values.schema.json) is checked. The first line of each file is the hash of what it was made from: tests/deploy.rs compares it.
"""
import asyncio
import hashlib
import http.server
import json
import os
import subprocess
import tempfile
import threading
from pathlib import Path

import helm_sdkpy
import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "helm" / "homing"
KUSTOMIZE = HERE / "kustomize"
OUT = HERE / "rendered"
KINDS = {
    "v1": ["ConfigMap", "ServiceAccount", "Service", "Secret", "Pod"],
    "apps/v1": ["Deployment"],
    "policy/v1": ["PodDisruptionBudget"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
    "inference.networking.k8s.io/v1": ["InferencePool"],
    "gateway.networking.k8s.io/v1": ["HTTPRoute"],
}


def plural(kind):
    return kind.lower()[:-1] + "ies" if kind.endswith("y") else kind.lower() + "s"


class Double(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, value, code=200):
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        groups = [g for g in KINDS if "/" in g]
        if path == "/version":
            return self.answer({"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        if path == "/api":
            return self.answer({"kind": "APIVersions", "versions": ["v1"]})
        if path == "/apis":
            entry = lambda g: {"groupVersion": g, "version": g.split("/")[1]}
            list_ = [{"name": g.split("/")[0], "versions": [entry(g)], "preferredVersion": entry(g)} for g in groups]
            return self.answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": list_})
        for group, kinds in KINDS.items():
            if path == (f"/apis/{group}" if "/" in group else f"/api/{group}"):
                verbs = ["create", "get", "list", "patch", "update", "delete", "watch"]
                rows = [{"name": plural(k), "singularName": "", "kind": k, "namespaced": True, "verbs": verbs} for k in kinds]
                return self.answer({"kind": "APIResourceList", "groupVersion": group, "resources": rows})
        if path.endswith("/secrets"):
            return self.answer({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []})
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        return self.answer(missing, 404)

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        if "protobuf" in self.headers.get("content-type", ""):
            # Helm's own record of the release.
            return self.answer({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "release"}}, 201)
        value = json.loads(raw)
        self.server.created.append(value)
        return self.answer({**value, "metadata": {**value["metadata"], "uid": "u", "resourceVersion": "1"}}, 201)

    do_PUT = do_PATCH = do_POST


def install(values):
    """What Helm creates with these values."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Double)
    server.created = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as tmp:
        file = os.path.join(tmp, "kubeconfig")
        context = {"cluster": "c", "user": "u", "namespace": "inference"}
        Path(file).write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "contexts": [{"name": "c", "context": context}], "users": [{"name": "u", "user": {}}],
        }))
        config = helm_sdkpy.Configuration(namespace="inference", kubeconfig=file)
        action = helm_sdkpy.Install(config)
        asyncio.run(action.run("homing", str(CHART), values=values, wait=False))
    server.shutdown()
    return server.created


def digest(root):
    """Of a directory: names and contents of its files, in order of the names."""
    sums = hashlib.sha256()
    for path in sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: str(p.relative_to(root))):
        sums.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return sums.hexdigest()


def write(name, root, text):
    OUT.mkdir(exist_ok=True)
    (OUT / name).write_text(f"# sha256 of {root.relative_to(HERE.parent)}: {digest(root)}\n{text}")
    print(OUT / name)


def main():
    for values in ({"mode": "nonsense"}, {"replicas": -1}, {"modelServers": {"ports": []}}, {"unknown": 1}):
        try:
            install(values)
        except helm_sdkpy.InstallError as refused:
            assert "schema" in str(refused), refused
        else:
            raise AssertionError(f"{values} should have been refused")
    for mode in ("proxy", "extproc"):
        write(f"helm-{mode}.yaml", CHART, yaml.safe_dump_all(install({"mode": mode}), sort_keys=True))
        made = subprocess.run(["kubectl", "kustomize", KUSTOMIZE / mode], check=True, capture_output=True, text=True)
        write(f"kustomize-{mode}.yaml", KUSTOMIZE, made.stdout)
    bare = install({"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}})
    assert not {"NetworkPolicy", "PodDisruptionBudget"} & {o["kind"] for o in bare}
    other = install({"mode": "extproc", "gateway": None, "config": {"queue": {"max": 7}, "workers": 3}, "workers": 2})
    text = next(o for o in other if o["kind"] == "ConfigMap")["data"]["homing.yaml"]
    assert yaml.safe_load(text)["queue"]["max"] == 7 and yaml.safe_load(text)["workers"] == 3, text
    assert "HTTPRoute" not in {o["kind"] for o in other}


main()
