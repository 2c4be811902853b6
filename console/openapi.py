"""The OpenAPI document of the endpoints, from the models of their answers."""

import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from console.ports import Endpoint

PREFIX: Final = "/api/v1"
_REF: Final = "#/components/schemas/{model}"


class Trouble(BaseModel):
    """Why a request was not answered."""

    error: str


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The document (OpenAPI 3.1)."""
    answers = [(one.answer, "serialization") for one in endpoints]
    bodies = [(one.body, "validation") for one in endpoints if one.body is not None]
    asked: list[Any] = list(dict.fromkeys([*answers, *bodies, (Trouble, "serialization")]))
    named, schemas = models_json_schema(asked, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = re.sub(r":\w+\}", "}", one.path)  # a parameter's kind is in its schema
        paths.setdefault(PREFIX + path, {})[one.method.lower()] = _operation(one, named)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lichen console", "version": version("lichen")},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(one: Endpoint, named: dict[Any, Any]) -> dict[str, Any]:
    trouble = {"description": "why not", "content": _json(named[Trouble, "serialization"])}
    found: dict[str, Any] = {
        "operationId": _id(one),
        "summary": one.summary,
        "description": f"For the role {one.role.words}, and above.",
        "parameters": [*_in_path(one.path), *_in_query(one.query)],
        "responses": {
            "200": {"description": one.summary, "content": _json(named[one.answer, "serialization"])},
            "default": trouble,
        },
    }
    if one.body is not None:
        found["requestBody"] = {"required": True, "content": _json(named[one.body, "validation"])}
    return found


def _id(one: Endpoint) -> str:
    return "_".join([one.method.lower(), *re.findall(r"\w+", one.path)])


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _in_path(path: str) -> Iterable[dict[str, Any]]:
    for name, kind in re.findall(r"\{(\w+)(?::(\w+))?\}", path):
        schema = {"type": "integer" if kind == "int" else "string"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(model: type[BaseModel] | None) -> Iterable[dict[str, Any]]:
    if model is None:
        return
    schema = model.model_json_schema()
    for name, one in schema["properties"].items():
        flat = {key: value for key, value in one.items() if key != "title"}
        if "$ref" in flat:
            flat = schema["$defs"][flat.pop("$ref").rpartition("/")[2]] | flat
        yield {"name": name, "in": "query", "required": False, "schema": flat}
