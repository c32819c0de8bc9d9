"""Checks that installed packages have the versions that rolecall needs."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rolecall.core.errors import ConfigError

EXTRA = re.compile(r"""extra == ["']([\w-]+)["']""")


@cache
def check_versions(extra: str = "", module: str = "") -> None:
    """Check the packages of an extra, or those that rolecall always needs.

    Of an extra only the package of `module` is checked where its name tells which one that is.
    Packages that are not installed are passed over. Raises ConfigError with a line for each wrong
    version.
    """
    requirements = [Requirement(text) for text in read_requirements(extra)]
    own = [one for one in requirements if canonicalize_name(one.name) in package_names(module)]
    problems = [problem for one in own or requirements if (problem := find_problem(one, extra))]
    if problems:
        raise ConfigError(*problems)


def read_requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, or those of no extra; none where rolecall is only a
    folder of sources.
    """
    try:
        texts = metadata.requires("rolecall") or []
    except metadata.PackageNotFoundError:
        return []
    return [text for text in texts if EXTRA.findall(text) == ([extra] if extra else [])]


def package_names(module: str) -> set[str]:
    """Return the names that a module's package may have: google.genai -> google, google-genai."""
    parts = module.split(".")
    return {canonicalize_name("-".join(parts[:count])) for count in range(1, len(parts) + 1)}


def find_problem(requirement: Requirement, extra: str) -> str:
    """Return what is wrong with the installed version of a package; "" if it fits."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return ""
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    needed = f"{requirement.name}{requirement.specifier}"
    owner, source = (f"rolecall[{extra}]",) * 2 if extra else ("rolecall", needed)
    return (
        f"{requirement.name} {version} is installed, and {owner} needs {needed}: "
        f"pip install '{source}'"
    )
