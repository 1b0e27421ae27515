"""What the tests share: a server to talk to, and a look at the processes of this machine."""

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest
import uuid

import mcp_types
from mcp import Client
from mcp.client.stdio import StdioServerParameters

BINARY = os.environ["COFFERDAM"]

LEGACY = "legacy"
NEW = "2026-07-28"
ERAS = (LEGACY, NEW)


class Case(unittest.IsolatedAsyncioTestCase):
    """A test with a workspace and a home of its own."""

    def setUp(self):
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="cofferdam-mcp-"))
        self.addCleanup(shutil.rmtree, self.base, ignore_errors=True)
        self.workspace = self.base / "work"
        self.home = self.base / "home"
        self.runtime = self.base / "run"
        for folder in (self.workspace, self.home, self.runtime):
            folder.mkdir(mode=0o700)
        self.env = {
            "HOME": str(self.home),
            "DSH_HOME": str(self.home / ".dsh"),
            "XDG_RUNTIME_DIR": str(self.runtime),
        }

    def server(self, *args):
        return StdioServerParameters(
            command=BINARY, args=["mcp", *args], env=self.env, cwd=str(self.workspace)
        )

    def client(self, *args, era=LEGACY, **options):
        return Client(self.server(*args), mode=era, **options)

    def fresh(self):
        """Empties the workspace between the eras of one test."""
        shutil.rmtree(self.workspace)
        self.workspace.mkdir(mode=0o700)

    def run_cofferdam(self, *args):
        return subprocess.run(
            [BINARY, *args],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=30,
        )

    def events(self):
        """Every event of every session's log, in the order of each log."""
        logs = sorted((self.home / ".dsh/sessions").glob("*.jsonl"))
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def bash(command, **more):
    return {"command": command, "description": "A command of a test", **more}


def escalating(command, to="workspace-write", **more):
    return bash(command, sandbox_permissions=to, justification="The test needs to write", **more)


def text(result):
    """The text of the tool's own result: the first block."""
    assert result.content[0].type == "text", result
    return result.content[0].text


def machine(result):
    return result.meta["cofferdam/result"]


class Marker:
    """A number of seconds to sleep that no other process sleeps."""

    def __init__(self):
        self.seconds = f"3600.{uuid.uuid4().int % 10**12:012d}"

    def processes(self):
        """The host's processes that have it among their arguments."""
        found = []
        for folder in pathlib.Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if self.seconds.encode() in (folder / "cmdline").read_bytes():
                        found.append(int(folder.name))
        return found

    async def appears(self, within=10):
        return await until(self.processes, within)

    async def vanishes(self, within=10):
        return await until(lambda: not self.processes(), within)


async def until(condition, within):
    """Whether `condition` became true in that many seconds."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        await asyncio.sleep(0.05)
    return False


def answering(action, content=None, asked=None):
    """An elicitation callback that always answers so, and notes what it was asked."""

    async def callback(_context, params):
        if asked is not None:
            asked.append(params)
        return mcp_types.ElicitResult(action=action, content=content)

    return callback
