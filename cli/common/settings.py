"""Settings of mq-admin: the cluster and the output, from options, environment and profiles."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

import click

from metaquorum.cli.common.security import KEYS, resolve_security
from metaquorum.client.security import PLAINTEXT, Security
from metaquorum.wire.primitives.frozen import frozen

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
OUTPUTS: Final = ("text", "json", "yaml")
_KEYS: Final[Mapping[str, tuple[type, ...]]] = {
    "bootstrap": (str,),
    "output": (str,),
    "timeout": (int, float),
    **dict.fromkeys(KEYS, (str,)),
}


@frozen
class Settings:
    bootstrap: str
    output: str
    timeout_s: float
    source: str  # origin of the bootstrap address, for messages
    security: Security = PLAINTEXT


@frozen
class Profiles:
    path: str
    default: str | None = None
    by_name: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def profiles_path(environment: Mapping[str, str]) -> str:
    folder = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "metaquorum", "mq-admin.toml")


def read_profiles(environment: Mapping[str, str]) -> Profiles:
    """Read the profiles file; no profiles if it does not exist.

    Raises click.UsageError if the file is invalid.
    """
    path = profiles_path(environment)
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except FileNotFoundError:
        return Profiles(path)
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} is not TOML: {error}") from None
    default = content.pop("default", None)
    profiles = content.pop("profiles", {})
    if content:
        there = "the file may have `default` and tables [profiles.NAME]"
        raise click.UsageError(f"{path}: {next(iter(content))} is unknown; {there}")
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise click.UsageError(f"{path}: profiles must be tables, [profiles.NAME]")
    if default is not None and default not in profiles:
        raise click.UsageError(f"{path}: the default profile {default!r} does not exist")
    for name, profile in profiles.items():
        _check_profile(path, name, profile)
    return Profiles(path, default, profiles)


def _check_profile(path: str, name: str, profile: Mapping[str, Any]) -> None:
    for key, value in profile.items():
        kinds = _KEYS.get(key)
        if kinds is None:
            text = f"{key} is unknown; the keys are {', '.join(_KEYS)}"
        elif type(value) not in kinds:
            text = f"{key} must be a {'string' if str in kinds else 'number'}"
        elif value == "":
            text = f"{key} is empty; set a value, or remove the line"
        elif key == "output" and value not in OUTPUTS:
            text = f"output must be one of {', '.join(OUTPUTS)}"
        else:
            continue
        raise click.UsageError(f"{path}: profile {name}: {text}")
    if "bootstrap" not in profile:
        raise click.UsageError(f"{path}: profile {name}: bootstrap is missing")


def resolve(options: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Return the settings: options, then the environment, then the default profile."""
    profiles = read_profiles(environment)
    name, profile_source = options.get("profile"), "--profile"
    bootstrap, source = options.get("bootstrap"), "--bootstrap"
    if not bootstrap and not name and environment.get("MQ_BOOTSTRAP"):
        bootstrap, source = environment["MQ_BOOTSTRAP"], "MQ_BOOTSTRAP"
    if not name and environment.get("MQ_PROFILE"):
        name, profile_source = environment["MQ_PROFILE"], "MQ_PROFILE"
    if not name and profiles.default:
        name, profile_source = profiles.default, "the default profile"
    profile: Mapping[str, Any] = {}
    if name:
        if name not in profiles.by_name:
            there = ", ".join(profiles.by_name) or "none"
            raise click.UsageError(
                f"{profile_source}: profile {name!r} does not exist in {profiles.path}; "
                f"profiles: {there}"
            )
        profile = profiles.by_name[name]
    if not bootstrap and profile:
        bootstrap, source = profile["bootstrap"], f"profile {name} ({profile_source})"
    if not bootstrap:
        bootstrap, source = DEFAULT_BOOTSTRAP, "the default"
    return Settings(
        bootstrap=bootstrap,
        output=options.get("output") or profile.get("output", "text"),
        timeout_s=float(options.get("timeout_s") or profile.get("timeout", 30)),
        source=source,
        security=resolve_security(
            options, profile if bootstrap == profile.get("bootstrap") else {}, environment
        ),
    )
