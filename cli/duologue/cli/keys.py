"""`duologue keys DIR [NAME ...]`: the CURVE keys by which the processes of several machines know each other.

    DIR/NAME.secret   the secret key of one process, or of all that share it: only its owner reads it
    DIR/allowed       the public keys, one a line with its name: every process gets this list

A key is exchanged in three steps: `--renew` puts a new one beside the old, both are allowed while the processes are
restarted, `--retire` strikes what is not in use any more.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from duologue.bus.curve import CurveKeys, make_pair, read_secret
from duologue.bus.errors import BusError
from duologue.cli.errors import UserError

LIST = "allowed"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the keys are kept; made if it is missing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="one pair for each; none: one for all, `fleet`")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--renew", action="store_true", help="make a new pair; the old key stays allowed")
    change.add_argument("--retire", action="store_true", help="allow the present keys of these names only")
    change.add_argument("--env", action="store_true", help="print one pair as variables, for an .env file of Compose")


def run(options: argparse.Namespace) -> int:
    names: list[str] = options.names or ["fleet"]
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} is no name of a process: letters, digits, dot, dash and underscore, at most 64")
    keys = KeyFolder(options.folder)
    if options.env:
        if len(names) != 1:
            raise UserError("--env prints one pair: give one name")
        print("\n".join(keys.as_environment(names[0])))
        return 0
    for name in names:
        print(keys.retire(name) if options.retire else keys.make(name, renew=options.renew))
    print(
        f"every process: [bus] curve_secret_file = its own, curve_allowed_file = {keys.folder / LIST}", file=sys.stderr
    )
    return 0


class KeyFolder:
    """The files above. Raises `UserError`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot keep keys in {folder}: {error.strerror}") from None

    def secret_of(self, name: str) -> Path:
        return self.folder / f"{name}.secret"

    def public_of(self, name: str) -> str:
        """The present public key of a name."""
        try:
            return CurveKeys(read_secret(self.secret_of(name))).public
        except BusError as error:
            raise UserError(str(error)) from None

    def make(self, name: str, *, renew: bool) -> str:
        """A pair, unless there is one; what was done, as a line."""
        if self.secret_of(name).exists() and not renew:
            self._allow(self.public_of(name), name)
            return f"{name}: has a key already ({self.secret_of(name)}); --renew makes another"
        public, secret = make_pair()
        # First the list: a process that finds the new secret is allowed at once.
        self._allow(public, name)
        self._write(self.secret_of(name), secret + "\n", 0o600)
        return f"{name}: {public} ({self.secret_of(name)})"

    def retire(self, name: str) -> str:
        """Strike the older keys of a name from the list."""
        present = self.public_of(name)
        lines = self._lines()
        kept = [line for line in lines if line.split()[1:2] != [name] or line.split()[0] == present]
        self._write(self.folder / LIST, "".join(f"{line}\n" for line in kept), 0o644)
        return f"{name}: {len(lines) - len(kept)} older keys are not allowed any more"

    def as_environment(self, name: str) -> list[str]:
        """Variables for Compose, quoted: a key holds `$` and `#`."""
        allowed = ",".join(line.split()[0] for line in self._lines())
        self.public_of(name)
        secret = read_secret(self.secret_of(name))
        return [f"DUOLOGUE_CURVE_SECRET='{secret}'", f"DUOLOGUE_CURVE_ALLOWED='{allowed}'"]

    def _allow(self, public: str, name: str) -> None:
        lines = self._lines()
        if all(line.split()[0] != public for line in lines):
            self._write(self.folder / LIST, "".join(f"{line}\n" for line in (*lines, f"{public} {name}")), 0o644)

    def _lines(self) -> list[str]:
        try:
            text = (self.folder / LIST).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.folder / LIST}: {error}") from None
        return [line for line in text.splitlines() if line.strip()]

    def _write(self, path: Path, text: str, mode: int) -> None:
        """Whole or not at all: a process that looks now finds the old file or the new one."""
        part = path.with_name(f".{path.name}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            part.chmod(mode)
            part.replace(path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
