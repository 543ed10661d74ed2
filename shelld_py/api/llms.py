"""The API for a model that is handed nothing but a URL and a key: /llms.txt, made from the declarations.

Short on purpose: a line for each endpoint, and before that what cannot be guessed. Imported when it is first asked for.
"""

from functools import lru_cache
from typing import Final

import msgspec

from shelld_py.http.endpoint import Endpoint, Tag

_HEAD: Final = """\
# shelld-py

> A computer over HTTP: a bash that keeps its state, sessions, files with undo. This is all of the API in short;
> /openapi.json has every field.

Send `X-Shell-Key: KEY` with every request. The first key that is sent becomes the key, unless one was set. Send JSON
with `Content-Type: application/json`, or a command as the raw body. Ask for JSON with `Accept: application/json`: the
paths of the main shell answer text otherwise. Durations are seconds or text such as `30s`. An error is
`{"status", "code", "detail"}`: `detail` says what to do.

```sh
curl -X POST $URL/startup -H "X-Shell-Key: $KEY"
curl $URL/run -H "X-Shell-Key: $KEY" -d 'cd /tmp && pwd'
curl $URL/exec -H "X-Shell-Key: $KEY" -H 'Content-Type: application/json' -d '{"command": "ls", "timeout": "10s"}'
```

- `/run` keeps variables and directory for the next command, one at a time; `/exec` runs each command in a fresh shell,
  many at a time.
- A non-zero `exit_code` is no error: the status is 200. 202 means that the command goes on: it waits for input
  (`awaiting_input`; answer it with `POST /stdin?wait=10s`, the body is what to type, with its newline), or the wait was
  over (`timed_out`; go on with `/runs/{run_id}/wait`). A wait never ends a command; `/kill`
  and a `deadline` do.
- Long output is cut in the middle; `/runs/{run_id}/output?cursor=0` reads all of it, each time on from `next_cursor`.
- Start a server with `"timeout": 0` and wait for `until=port:8000`. Choose `run_id` yourself, and a repeat of the
  request joins the run.
- Paths of files are relative to the start directory. `replace` replaces every occurrence of `old_string`; give
  `expected_replacements`. `undo` takes back the last change of a file. Each change takes `if_match` (an `etag`), too.
"""
_WORTH_IT: Final = 5
"""So many names are longer than the path of the line that has them."""
_OF_EVERY_CHANGE: Final = ("if_match", "if_none_match")


@lru_cache(maxsize=1)
def text(endpoints: tuple[Endpoint, ...]) -> str:
    """Return the whole text."""
    parts, told = [_HEAD], dict[tuple[str, ...], str]()
    for tag in Tag:
        lines = [_line(endpoint, told) for endpoint in endpoints if endpoint.tag is tag and not _like_main(endpoint)]
        parts.append(f"## {tag.value}\n\n" + "".join(lines))
    verbs = [endpoint.path.rpartition("/")[2] for endpoint in endpoints if _like_main(endpoint)]
    parts.append(
        f"`/sessions/{{session_id}}/VERB` is for a session what `/VERB` is for the main shell: {', '.join(verbs)}.\n"
    )
    return "\n".join(parts)


def _like_main(endpoint: Endpoint) -> bool:
    """Whether it is a verb of a session, which the main shell has, too."""
    return endpoint.path.startswith("/sessions/{session_id}/")


def _line(endpoint: Endpoint, told: dict[tuple[str, ...], str]) -> str:
    """Return an endpoint in a line: what it takes in the query string and as JSON, and what it is for."""
    query = msgspec.structs.fields(endpoint.query) if endpoint.query else ()
    raw = endpoint.body is not None and endpoint.body.read is not None
    names = [] if raw else [field.name for field in query]
    takes = f" ?{_short(names, '&', endpoint.path, told)}".replace("?as ", "as ") if names else ""
    model = endpoint.body.model if endpoint.body else None
    if isinstance(model, type) and issubclass(model, msgspec.Struct):
        own = [field for field in msgspec.structs.fields(model) if field.name not in _OF_EVERY_CHANGE]
        members = [field.name + ("" if field.required else "?") for field in own]
        takes += f" {{{_short(members, ', ', endpoint.path, told)}}}"
    return f"- `{endpoint.method} {endpoint.path}`{takes}: {endpoint.summary.partition(';')[0]}\n"


def _short(names: list[str], between: str, path: str, told: dict[tuple[str, ...], str]) -> str:
    """Return the names; for those that an earlier line has told as well, at their beginning, only where."""
    for earlier, where in told.items():
        if len(earlier) >= _WORTH_IT and tuple(names[: len(earlier)]) == earlier:
            return between.join([f"as `{where}`", *names[len(earlier) :]])
    told[tuple(names)] = path
    return between.join(names)
