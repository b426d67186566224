"""Requests to an OpenAI-compatible chat endpoint, retried if the server is busy. The server is not
trusted: each request has a time limit, its reply a size limit, and the key appears nowhere."""

import asyncio
import concurrent.futures
import logging
import random
import re
import threading
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from clew.base.errors import ClewError, InputError, without_settings
from clew.base.texts import bytes_text, for_terminal, is_sendable
from clew.storage.reading import parse_json

logger = logging.getLogger(__name__)

_BUSY = (408, 409, 425, 429)
_LONGEST_WAIT_SECONDS = 300.0
_CLIENT_LOGGERS = (
    "httpx2",
    *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
)
_HIDDEN = "***"
# A key may be broken over lines, or escaped.
_BETWEEN = r"[\s\\\u200b]*"
# More than is ever shown, so that no part of a key remains at the cut.
_LONGEST_TEXT = 20_000


class JudgeError(ClewError):
    """The judge could not be reached, or its reply was unusable."""


class _TryAgainError(Exception):
    """A temporary failure; the message describes it."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """The chat endpoint, and how often and how long to try; `timeout_seconds` is the limit of a
    whole request. The key is never shown."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    key_name: str = "OPENAI_API_KEY"
    threads: int = 4
    attempts: int = 5
    timeout_seconds: float = 120.0
    first_wait_seconds: float = 1.0
    max_reply_bytes: int = 4_000_000

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise InputError(
                "it must be the name of the judge model.", setting="judge_model", value=self.model
            )
        if not _is_address(self.url):
            shown = self.url.rpartition("@")[2]
            raise InputError(
                "give the judge's URL as http://host:port/v1, and the key with `judge_key_env`.",
                setting="judge_url",
                value=shown,
            )

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


def _is_address(url: str) -> bool:
    try:
        httpx.URL(url)
        parts = urlsplit(url)
    except (httpx.InvalidURL, ValueError):
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None


@dataclass(frozen=True)
class _Reply:
    status: int
    headers: httpx.Headers
    body: bytes


class Chat:
    """An open connection. `ask` may be called from several threads; `stop` interrupts them.

    The requests run in an event loop of their own thread: only there can a whole request be given
    a time limit, from the first byte sent to the last one received.
    """

    def __init__(self, config: ChatConfig) -> None:
        self.config = config
        if config.key and not is_sendable(config.key):
            raise InputError(
                f"the key in {config.key_name} contains characters that are not allowed in an HTTP "
                "header: set it again without spaces and line breaks."
            )
        self.secret = Secret(config.key)
        for name in _CLIENT_LOGGERS:
            logging.getLogger(name).addFilter(self.secret)
        # A compressed reply could be a thousand times larger than what is received.
        headers = {"Accept-Encoding": "identity"}
        if config.key:
            headers["Authorization"] = f"Bearer {config.key}"
        self._client = httpx.AsyncClient(headers=headers, timeout=None, follow_redirects=False)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stopped = threading.Event()
        self._calls: set[concurrent.futures.Future[_Reply]] = set()
        self._options: dict[str, Any] = {"temperature": 0}
        self._reached = False

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for name in _CLIENT_LOGGERS:
            logging.getLogger(name).removeFilter(self.secret)

    async def _close(self) -> None:
        interrupted = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*interrupted, return_exceptions=True)
        await self._client.aclose()

    def stop(self) -> None:
        self._stopped.set()
        for call in list(self._calls):
            call.cancel()

    def ask(self, messages: list[dict[str, str]]) -> str:
        """The text of the reply. Raises JudgeError if every attempt failed, InputError if the URL,
        the model or the key is wrong."""
        wait = self.config.first_wait_seconds
        for attempt in range(1, self.config.attempts + 1):
            try:
                return self._ask_once(messages)
            except _TryAgainError as failure:
                if attempt == self.config.attempts or self._stopped.is_set():
                    raise JudgeError(self._gave_up(failure, attempt)) from None
                told = failure.wait_seconds
                seconds = told if told is not None else wait * random.uniform(0.75, 1.25)
                logger.info("%s; retrying in %.1f s", failure, seconds)
                self._stopped.wait(seconds)
                wait *= 2
        raise AssertionError("attempts must be at least 1")

    def _gave_up(self, failure: object, attempts: int) -> str:
        after = "" if attempts == 1 else f" after {attempts} attempts"
        return f"no usable reply from the judge at {self.config.address}{after}: {failure}."

    def _ask_once(self, messages: list[dict[str, str]]) -> str:
        body = {"model": self.config.model, "messages": messages, **self._options}
        reply = self._post(body)
        self._reached = True
        self._check_status(reply, body)
        if _is_compressed(reply):
            raise JudgeError(
                self._gave_up(
                    "its reply is compressed, although the request asked for plain JSON: turn "
                    "compression off in the server or the proxy before it",
                    1,
                )
            )
        text = _reply_text(reply)
        if text is None:
            shown = self.secret.hide(_decode(reply), 100)
            raise _TryAgainError(f"its reply is not a chat completion ({shown!r})")
        return text

    def _post(self, body: dict[str, Any]) -> _Reply:
        call = asyncio.run_coroutine_threadsafe(self._send(body), self._loop)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if self._stopped.is_set():
            call.cancel()
        try:
            return call.result()
        except httpx.ConnectError as error:
            reason = (
                f"the connection failed ({self._explain(error)}): check `judge_url`, and that the "
                "server is running"
            )
            # A server that has responded before may be restarting; one that never has is a wrong
            # URL.
            if not self._reached:
                raise JudgeError(self._gave_up(reason, 1)) from None
            raise _TryAgainError(reason) from None
        except TimeoutError:
            raise _TryAgainError(
                f"it did not reply within {self.config.timeout_seconds:g} s"
            ) from None
        except httpx.RequestError as error:
            raise _TryAgainError(f"the connection was lost ({self._explain(error)})") from None
        except concurrent.futures.CancelledError:
            raise _TryAgainError("it was interrupted") from None

    def _explain(self, error: httpx.RequestError) -> str:
        """An error's text may contain what the server sent."""
        return self.secret.hide(str(error)) or type(error).__name__

    async def _send(self, body: dict[str, Any]) -> _Reply:
        async with (
            asyncio.timeout(self.config.timeout_seconds),
            self._client.stream("POST", self.config.address, json=body) as reply,
        ):
            self._client.cookies.clear()  # none is wanted
            content = bytearray()
            async for piece in reply.aiter_raw():
                content += piece
                if len(content) > self.config.max_reply_bytes:
                    most = bytes_text(self.config.max_reply_bytes)
                    raise JudgeError(self._gave_up(f"its reply is larger than {most}", 1))
        return _Reply(reply.status_code, reply.headers, bytes(content))

    def _check_status(self, reply: _Reply, asked: dict[str, Any]) -> None:
        status, text = reply.status, self._excerpt(reply)
        if status in _BUSY or status >= 500:
            raise _TryAgainError(f"it returned {status} ({text})", _told_to_wait(reply))
        if status == 400 and "temperature" in text and "temperature" in asked:
            # Some models only accept their default temperature. There is no standard error code for
            # it; only the word in the reply shows it.
            self._options = {}
            raise _TryAgainError(f"it returned 400 ({text})", 0.0)
        if status in (401, 403):
            given = "it does not accept the key in" if self.config.key else "it requires a key: set"
            raise InputError(
                f"the judge at {self.config.address} returned {status} ({text}): {given} "
                f"{self.config.key_name}, or name another variable with `judge_key_env`."
            )
        if status != 200:
            raise InputError(
                f"the judge at {self.config.address} returned {status} ({text}): "
                f"check `judge_url` and `judge_model={self.config.model!r}`."
            )

    def _excerpt(self, reply: _Reply) -> str:
        moved = reply.headers.get("location")
        if moved:
            return f"moved to {self.secret.hide(moved)}"
        return self.secret.hide(_decode(reply)) or "no text"


def _decode(reply: _Reply) -> str:
    if _is_compressed(reply):
        return "a compressed text"
    return reply.body.decode("utf-8", "replace")


def _is_compressed(reply: _Reply) -> bool:
    coding = reply.headers.get("content-encoding", "")
    return coding.strip().lower() not in ("", "identity")


def _reply_text(reply: _Reply) -> str | None:
    """The text of a chat completion; None if the reply is something else."""
    try:
        found = parse_json(reply.body, finite=False, encodable=False)
        text = found["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return None
    return text if isinstance(text, str) else None


def _told_to_wait(reply: _Reply) -> float | None:
    """The seconds of a Retry-After header, which is a number or a date; None if there is none."""
    told = reply.headers.get("retry-after")
    if told is None:
        return None
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    if seconds > _LONGEST_WAIT_SECONDS:
        raise JudgeError(
            f"the judge returned {reply.status} and asks to wait {min(seconds, 1e9):,.0f} s: "
            "run the same command again after that."
        )
    return max(0.0, seconds)


class Secret:
    """Hides a key as it is, URL-encoded, escaped as in JSON, HTML or Python, broken over lines, and
    in Base64."""

    def __init__(self, key: str | None) -> None:
        self._pattern = _compile(key) if key else None

    def hide(self, text: str, most: int = 200) -> str:
        """A server's text for errors, logs and files: one line of at most `most` characters,
        without the key, and with nothing that a terminal or an error would interpret."""
        text = text[:_LONGEST_TEXT]
        if self._pattern is not None:
            text = self._pattern.sub(_HIDDEN, text)
        return for_terminal(without_settings(" ".join(text.split())))[:most]

    def filter(self, record: logging.LogRecord) -> bool:
        """As a filter of a logger: the HTTP client logs what a server sends."""
        record.msg, record.args = self.hide(record.getMessage(), _LONGEST_TEXT), ()
        return True


def _compile(key: str) -> re.Pattern[str]:
    plain = _BETWEEN.join(map(_spellings, key))
    coded = {
        encode(text.encode()).decode().rstrip("=")
        for encode in (b64encode, urlsafe_b64encode)
        for text in (key, f"Bearer {key}")
    }
    wrapped = (
        r"\s*".join(map(re.escape, text)) + "=*" for text in sorted(coded, key=len, reverse=True)
    )
    return re.compile("|".join((plain, *wrapped)), re.IGNORECASE)


def _spellings(sign: str) -> str:
    """A character as itself and in the escapes of URLs, JSON, Python and HTML."""
    code = ord(sign)
    escapes = rf"%(?:25)*{code:02x}|\\+u00{code:02x}|\\+x{code:02x}|&#0*{code};|&#x0*{code:x};"
    named = {"&": "|&amp;", "<": "|&lt;", ">": "|&gt;", '"': "|&quot;", "'": "|&apos;"}
    return f"(?:{re.escape(sign)}|{escapes}{named.get(sign, '')})"
