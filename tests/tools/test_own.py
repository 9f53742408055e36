"""Which files an allowance has to name."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.tools.own import powerful_part

PARTS = [
    ("notes/a.md", ""),
    ("a.git/config", ""),
    ("sub/config.yaml", ""),
    ("objects/HEAD", ""),
    (".git/config", ".git"),
    (".git/hooks/pre-commit", ".git"),
    ("sub/.git/hooks/new", ".git"),
    (".GIT/hooks/pre-commit", ".GIT"),
    (".git", ".git"),
    ("bare/hooks/pre-commit", "bare"),
    ("short/hooks/pre-commit", ".git"),
    ("linked/.git/config", "bare"),
    ("hooked/.git/hooks/pre-commit", "pre-commit"),
    ("hooked/tracked/pre-commit", "pre-commit"),
    ("AGENTS.md", "AGENTS.md"),
    ("sub/Agents.MD", "Agents.MD"),
    ("CLAUDE.md", "CLAUDE.md"),
    (".mcp.json", ".mcp.json"),
    ("config.yaml", "config.yaml"),
    ("prompts/system.yaml", "system.yaml"),
    ("Prompts/System.yaml", "System.yaml"),
    ("prompts/other.yaml", ""),
    ("by-link.yaml", "system.yaml"),
]


REPOSITORIES = [
    ("sub/config sub/HEAD sub/objects/keep sub/refs/keep", "sub"),
    ("sub/objects/keep sub/refs/keep sub/config sub/HEAD", "sub"),
    ("config refs/keep objects/keep head", "head"),
    ("a/b/config a/b/HEAD a/b/commondir", "b"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "work"
    for folder in (".git/hooks", "prompts", "linked", "hooked/.git", "hooked/tracked", "objects", "refs"):
        (root / folder).mkdir(parents=True)
    for folder in ("bare/objects", "bare/refs"):
        (root / folder).mkdir(parents=True)
    (root / "bare/HEAD").write_text("ref: refs/heads/main\n")
    (root / "prompts/system.yaml").write_text("messages: []\n")
    (root / "short").symlink_to(".git")
    (root / "linked/.git").symlink_to("../bare")
    (root / "hooked/.git/hooks").symlink_to("../tracked")
    (root / "by-link.yaml").symlink_to("prompts/system.yaml")
    return root


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("path", "part"), PARTS)
def test_which_part_of_a_path_has_to_be_named(root: Path, path: str, part: str) -> None:
    parts = (root / path).resolve().relative_to(root).parts
    own = [root / "prompts/../prompts/system.yaml", root.parent / "elsewhere.yaml"]
    assert powerful_part(root, parts, path, own) == part


@pytest.mark.parametrize(("paths", "part"), REPOSITORIES)
def test_the_file_that_completes_a_repository_has_to_be_named(tmp_path: Path, paths: str, part: str) -> None:
    root = tmp_path.resolve()
    asked = []
    for path in paths.split():
        asked.append(powerful_part(root, Path(path).parts, path, []))
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    assert asked == [*[""] * (len(asked) - 1), part]
