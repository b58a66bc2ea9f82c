"""Checks resources against Kubernetes' schemas and those of custom resources. An unknown field is an error.

Usage: check.py RELEASE DEFINITIONS FILE. Prints JSON: ``problems``, and ``unknown``, the kinds without a definition.
Runs in the environment of requirements/k8s.txt.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

Schemas = dict[tuple[str, str], Any]


def strict(schema: Any) -> Any:
    """A schema that refuses what a cluster would drop in silence: fields that it does not name."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not is_open:
        tight["additionalProperties"] = False
    return tight


def definitions(folder: Path) -> Schemas:
    """The schema of each custom resource, by API version and kind."""
    found: Schemas = {}
    for file in sorted(folder.glob("*.yaml")):
        spec = yaml.load(file.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            key = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
            found[key] = strict(version["schema"]["openAPIV3Schema"])
    return found


def problems(resource: dict[str, Any], release: str, custom: Schemas) -> Iterator[str]:
    """Return the problems of a resource; raise SchemaNotFoundError for an undefined kind."""
    name = f"{resource['kind']} {resource['metadata']['name']}"
    schema = custom.get((resource["apiVersion"], resource["kind"]))
    if schema is not None:
        for error in jsonschema.Draft202012Validator(schema).iter_errors(resource):
            yield f"{name}: {error.json_path}: {error.message}"
        return
    try:
        kubernetes_validate.validate(resource, release, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{name}: {error.json_path}: {error.message}"


def main(release: str, folder: str, file: str) -> None:
    custom = definitions(Path(folder))
    found: list[str] = []
    unknown: list[str] = []
    for resource in yaml.load_all(Path(file).read_text(), yaml.CSafeLoader):
        try:
            found.extend(problems(resource, release, custom))
        except kubernetes_validate.SchemaNotFoundError:
            unknown.append(f"{resource['apiVersion']} {resource['kind']}")
    print(json.dumps({"problems": found, "unknown": sorted(set(unknown))}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
