"""A package of a wrong version is named before anything else fails because of it."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from rolecall.core.errors import ConfigError
from rolecall.core.optional import optional
from rolecall.core.versions import check_versions, package_names, read_requirements
from tests.toy import command


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that puts a version of a package before the installed one."""
    monkeypatch.syspath_prepend(tmp_path)
    check_versions.cache_clear()

    def put(name: str, version: str) -> None:
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")

    yield put
    check_versions.cache_clear()


def extras() -> list[str]:
    return metadata.metadata("rolecall").get_all("Provides-Extra")


@pytest.mark.parametrize("extra", ["", *extras()])
def test_what_is_installed_here_fits(extra):
    check_versions.cache_clear()
    check_versions(extra)
    assert read_requirements(extra)


def test_a_wrong_version_of_an_extra_is_named_with_what_to_install(install):
    install("mcp", "1.9.4")
    problem = (
        r"^tools: mcp 1.9.4 is installed, and rolecall\[mcp\] needs mcp<3,>=2.3: "
        r"pip install 'rolecall\[mcp\]'$"
    )
    for _ in range(2):
        with pytest.raises(ConfigError, match=problem):
            optional("mcp", extra="mcp", key="tools")
    assert "mcp" in sys.modules


def test_only_the_package_of_a_module_is_checked(install):
    """`google-genai` is of the same extra as `anthropic`, and whoever asks one needs no other."""
    install("anthropic", "0.1")
    optional("google.genai", extra="coach")
    with pytest.raises(ConfigError, match=r"anthropic 0\.1 is installed"):
        optional("anthropic", extra="coach")


def test_a_wrong_version_of_what_is_always_needed_ends_a_command(install, capsys):
    install("peft", "0.2.0")
    assert command("check", "math") == 2
    needed = next(one for one in map(Requirement, read_requirements("")) if one.name == "peft")
    assert f"peft 0.2.0 is installed, and rolecall needs {needed}" in capsys.readouterr().err


def test_pre_releases_fit_and_missing_packages_are_passed_over(install):
    install("anthropic", "99.0rc1")
    check_versions("coach", "anthropic")
    assert not any(
        Version("0.1") in Requirement(text).specifier for text in read_requirements("mcp")
    )
    check_versions("no-such-extra")


def test_the_names_of_a_package():
    assert package_names("google.genai") == {"google", "google-genai"}
    assert package_names("sentence_transformers") == {"sentence-transformers"}
