"""The imports at a start, and the public names of the package."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from double import NEWER, serve, text
from support.project import ROOT

import chain


def run(code: str, cwd: Path = ROOT) -> str:
    """Run Python code in a new interpreter, and return its output."""
    command = [sys.executable, "-W", "error", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_package_imports_its_parts_late() -> None:
    run("""
import chain
assert {name for name in sys.modules if name.startswith("chain")} == {"chain", "chain.version"}
assert set(chain.__all__) <= set(dir(chain))
assert "Chain" not in vars(chain)
assert chain.plan.Plan.__name__ == "Plan"

from chain import *
assert not set(chain.__all__) - set(globals())
assert not {"anthropic", "pydantic", "prompt_toolkit", "yaml"} & set(sys.modules)

import chain.app.open, chain.tools.files, chain.tools.plan_tools
assert "chain.agent.executor" in sys.modules
assert "pydantic" not in sys.modules
""")


def test_no_module_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    # Commands of the model write there.
    (tmp_path / "yaml.py").write_text("open('run', 'w').close()")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "cli", "explain", "hello"]
    subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=True)
    assert not (tmp_path / "run").exists()


LOAD_SETTINGS = """
from pathlib import Path
from chain import load_settings
settings = load_settings(config=None, environ={}, cwd=Path.cwd(), flags={"model": "offline"})
settings.chain(), settings.model("offline")
print(*sys.modules)
"""


def test_loading_settings_imports_few_modules(tmp_path: Path) -> None:
    imported = set(run(LOAD_SETTINGS, tmp_path).split())
    assert "yaml" in imported
    assert not imported & {"trio", "asyncio", "pydantic", "prompt_toolkit", "anthropic"}
    of_chain = {name for name in imported if name.startswith("chain") and not name.startswith("chain.config")}
    # Of the providers, only the modules that a request needs are excluded.
    assert {name for name in of_chain if not name.startswith("chain.provider")} == {
        *("chain", "chain.version", "chain.errors", "chain.text", "chain.text.commas", "chain.regular_file"),
    }
    for_requests_only = ("client", "encoding", "stream", "model", "reader", "rules")
    assert not {name for name in of_chain if name.endswith(for_requests_only)}


async def test_a_run_imports_no_slow_library(tmp_path: Path) -> None:
    model = {"provider": "anthropic", "model": NEWER, "api_key": "test-key"}
    async with serve([text("Hi.")]) as double:
        definitions = {"double": {**model, "base_url": double.url}}
        (tmp_path / "config.yaml").write_text(json.dumps({"models": {"default": "double", "definitions": definitions}}))
        code = "import sys\nfrom cli.main import main\nmain(sys.argv[1:])\nprint(*sys.modules)"
        ran = await trio.run_process(
            [sys.executable, "-c", code, "-p", "hi", "--config", "config.yaml", "--no-stdin"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": os.environ["PATH"], "NO_PROXY": "*"},
            capture_stdout=True,
            capture_stderr=True,
        )
        tools = [tool["name"] for tool in double.requests[0].body["tools"]]
    answer, modules = ran.stdout.decode().splitlines()
    assert answer == "Hi."
    assert {"shell", "read_file", "plan_list"} <= {*tools}, "the default tools are offered"
    slow_libraries = "anthropic pydantic pydantic_core prompt_toolkit markdown_it pygments regex selectolax"
    for_servers = "mcp mcp_types jsonschema chain.tools.mcp.servers chain.app.serving"
    assert not {*slow_libraries.split(), *for_servers.split()} & {*modules.split()}


def test_markdown_libraries_are_imported_late() -> None:
    run("""
from cli.show.markdown_flow import *
MarkdownFlow(80, MarkdownStyle()).add("# not yet")
assert not {"markdown_it", "pygments"} & set(sys.modules)
import cli.show.markdown_flow as m; m.warm()
assert {"markdown_it", "pygments"} <= set(sys.modules)
""")


def test_type_checkers_see_the_public_names() -> None:
    tree = ast.parse(Path(chain.__file__).read_text(encoding="utf-8"))
    imports = next(
        node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed_names: dict[str, object] = {}  # after the imports that only a type checker sees
    exec(compile(ast.Module(imports, []), "imports", "exec"), typed_names)
    del typed_names["__builtins__"]
    assert set(typed_names) == set(chain.__all__) - {"__version__"}
    for name, value in typed_names.items():
        assert getattr(chain, name) is value, name


def test_an_unknown_name_raises_the_usual_errors() -> None:
    with pytest.raises(AttributeError, match="module 'chain' has no attribute 'open_chains'"):
        chain.open_chains  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'open_chains' from 'chain'"):
        from chain import open_chains  # type: ignore[attr-defined]  # noqa: F401
