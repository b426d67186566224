"""A fake of the Hugging Face Hub on loopback: repositories with commits, over the requests that
huggingface_hub makes. It can be told to cut a download, and to list any names and sizes."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_of-the-tests"
Files = dict[str, bytes]
_TEMPLATE = "/{repo_id}/resolve/{revision}/{filename}"


@dataclass
class Repository:
    """The files of every commit, oldest first; `listed` replaces what is listed of the last."""

    private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    listed: dict[str, int] | None = None

    def commit(self, files: Files) -> str:
        name = sha1(repr((len(self.commits), sorted(files))).encode()).hexdigest()
        self.commits[name] = files
        return name

    def resolve(self, revision: str) -> str | None:
        newest = [*self.commits][-1]
        known = {"main": newest, **self.tags, **{one: one for one in self.commits}}
        return known.get(revision)

    def sizes(self, commit: str) -> dict[str, int]:
        sizes = {name: len(content) for name, content in self.commits[commit].items()}
        return sizes if self.listed is None else self.listed


@dataclass
class FakeHub:
    """`cut` is the name of a file whose downloads end after half of it."""

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    cut: str = ""


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    do_GET = do_POST = do_PUT = do_HEAD

    def _answer(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        token = self.headers.get("Authorization")
        self.is_known = token == f"Bearer {TOKEN}"
        if token and not self.is_known:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif path in ("", "/", "/api/validate-yaml"):
            self._send({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create()
        elif path.startswith("/lfs/"):
            self.hub.objects[path.removeprefix("/lfs/")] = self.body
            self._send({})
        else:
            self._route(path)

    def _route(self, path: str) -> None:
        found = re.fullmatch(r"(?:/api/models)?/(\w[\w-]*/\w[\w-]*)(?:\.git)?((?:/.*)?)", path)
        name, rest = found.groups() if found else ("", "")
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and not self.is_known):
            self._refuse(404 if self.is_known else 401, "RepoNotFound", "Repository not found")
            return
        if self.command in ("POST", "PUT") and not self.is_known:
            self._refuse(403, "", "You have no permission to write there")
            return
        kind, *more = rest.strip("/").split("/", 1)
        getattr(self, f"_on_{kind or 'revision'}")(name, repository, *more)

    def _create(self) -> None:
        given = json.loads(self.body)
        name = f"{given.get('organization', 'ann')}/{given['name']}"
        if not self.is_known:
            self._refuse(401, "", "Invalid username or password.")
            return
        repository = Repository(private=_is_private(given))
        repository.commit({".gitattributes": b""})
        self.hub.repositories[name] = repository
        self._send({"url": f"{self.hub.endpoint}/{name}", "name": name})

    def _on_revision(self, name: str, repository: Repository, revision: str = "main") -> None:
        commit = repository.resolve(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        siblings = [
            {"rfilename": one, "size": size} for one, size in repository.sizes(commit).items()
        ]
        about = {"_id": "1", "id": name, "modelId": name, "private": repository.private}
        self._send({**about, "sha": commit, "siblings": siblings, "tags": [], "downloads": 0})

    def _on_settings(self, _: str, repository: Repository) -> None:
        repository.private = _is_private(json.loads(self.body))
        self._send({})

    def _on_preupload(self, _: str, __: Repository, ___: str) -> None:
        files = [
            {"path": path, "uploadMode": "lfs" if "safetensors" in path else "regular"}
            for path in (one["path"] for one in json.loads(self.body)["files"])
        ]
        self._send({"files": [{**one, "shouldIgnore": False} for one in files]})

    def _on_info(self, _: str, __: Repository, ___: str) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{one['oid']}"}}}
            for one in json.loads(self.body)["objects"]
        ]
        self._send({"transfer": "basic", "objects": objects})

    def _on_commit(self, name: str, repository: Repository, _: str) -> None:
        files = dict(repository.commits[str(repository.resolve("main"))])
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(files)
        url = f"{self.hub.endpoint}/{name}/commit/{commit}"
        self._send({"commitUrl": url, "commitOid": commit})

    def _on_tree(self, _: str, repository: Repository, revision: str) -> None:
        sizes = repository.sizes(str(repository.resolve(revision)))
        files = [{"type": "file", "path": one, "size": size} for one, size in sizes.items()]
        self._send([{**one, "oid": sha1(str(one).encode()).hexdigest()} for one in files])

    def _on_resolve(self, _: str, repository: Repository, rest: str) -> None:
        revision, _, name = rest.partition("/")
        commit = str(repository.resolve(revision))
        content = repository.commits[commit].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        first = int((self.headers.get("Range") or "bytes=0-")[6:].rstrip("-"))
        tag = sha256(content).hexdigest()
        self._send(content[first:], {"X-Repo-Commit": commit, "ETag": f'"{tag}"'}, name)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message}
        self._send({"error": message}, headers, status=status)

    def _send(
        self, content: Any, headers: dict[str, str] | None = None, name: str = "", status: int = 200
    ) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(206 if name and self.headers.get("Range") else status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        is_cut = name and name == self.hub.cut
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        self.close_connection = bool(is_cut)


def _is_private(given: dict[str, Any]) -> bool:
    """By either of the names that huggingface_hub has given it."""
    return bool(given.get("private")) or given.get("visibility") == "private"


@contextmanager
def open_hub(cache: Path) -> Iterator[FakeHub]:
    """The Hub of huggingface_hub until the block ends, with an empty cache and a good token."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", TOKEN)
        for name, end in (("ENDPOINT", ""), ("HUGGINGFACE_CO_URL_TEMPLATE", _TEMPLATE)):
            patch.setattr(f"huggingface_hub.constants.{name}", f"{hub.endpoint}{end}")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield hub
    server.shutdown()
    server.server_close()
    thread.join()
