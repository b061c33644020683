"""deploy/kubernetes against Kubernetes' own schemas, and against what the server has."""

import json
import os
import subprocess
import unittest
import urllib.request
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving import Server

FOLDER = Path(__file__).resolve().parents[2] / "deploy/kubernetes"
VERSIONS = ("1.31", kubernetes_validate.latest_version())


def load(name):
    return yaml.safe_load((FOLDER / name).read_text())


class KubernetesTest(unittest.TestCase):
    def test_files_are_what_kubernetes_takes(self):
        for path in sorted(FOLDER.glob("*.yaml")):
            with self.subTest(path.name):
                if path.name == "inference_pool.yaml":
                    continue  # of an extension: below
                for version in VERSIONS:
                    kubernetes_validate.validate(yaml.safe_load(path.read_text()), version, strict=True)

    def test_the_pool_is_what_the_inference_extension_takes(self):
        schema = json.loads((Path(__file__).parent / "inference_pool_schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        validator.validate(load("inference_pool.yaml"))
        # The names of earlier versions, and a port that is none.
        for field, value in (("extensionRef", {"name": "gapless-picker"}), ("targetPortNumber", 2020), ("targetPorts", [{"number": 0}])):
            broken = load("inference_pool.yaml")
            broken["spec"][field] = value
            self.assertFalse(validator.is_valid(broken), field)

    def test_a_mistake_is_found(self):
        broken = load("service.yaml")
        broken["spec"]["ports"][0]["prot"] = "TCP"
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, VERSIONS[0], strict=True)

    def test_files_speak_of_the_same_pods(self):
        deployment, service, pool = load("deployment.yaml"), load("service.yaml"), load("inference_pool.yaml")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        for selector in (deployment["spec"]["selector"]["matchLabels"], service["spec"]["selector"],
                         pool["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels.items())
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        [port] = container["ports"]
        self.assertEqual(service["spec"]["ports"][0]["targetPort"], port["name"])
        self.assertEqual([target["number"] for target in pool["spec"]["targetPorts"]], [port["containerPort"]])
        target = load("autoscaler.yaml")["spec"]["scaleTargetRef"]
        self.assertEqual((target["kind"], target["name"]), (deployment["kind"], deployment["metadata"]["name"]))

    def test_the_server_has_what_they_ask_for(self):
        deployment = load("deployment.yaml")
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        words = container["args"]
        usage = subprocess.run([os.environ["GAPLESS_BINARY"], "serve", "--help"], capture_output=True, text=True, check=True).stdout
        for word in words:
            if word.startswith("--"):
                self.assertIn(word, usage)
        value = lambda option: float(words[words.index(option) + 1])
        self.assertGreater(pod["terminationGracePeriodSeconds"], value("--drain-lead") + value("--drain-seconds"))

        server = Server("--api-key", "a-key-of-the-pods")
        try:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                # Who probes knows no key.
                with urllib.request.urlopen(server.url + container[probe]["httpGet"]["path"]) as response:
                    self.assertEqual(response.status, 200)
            names = {family.name.replace(":", "_") for family in text_string_to_metric_families(server.get("/metrics", "a-key-of-the-pods"))}
            [metric] = load("autoscaler.yaml")["spec"]["metrics"]
            self.assertIn(metric["pods"]["metric"]["name"], names)
        finally:
            server.stop()


if __name__ == "__main__":
    unittest.main()
