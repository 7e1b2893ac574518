"""Which processes make up a system, and what they inherit."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import pytest

from duologue.cli.errors import UserError
from duologue.cli.home import Home
from duologue.cli.supervisor.child import ChildSpec, inherited
from duologue.cli.supervisor.plan import SystemPlan, plan_system, standby_by_default, usable_cpus
from duologue.runtime.settings import settings_from

pytestmark = pytest.mark.unit


def planned(tmp_path: Path, *pipelines: str) -> SystemPlan:
    return plan_system(settings_from({"pipelines": pipelines}), Home(tmp_path), tmp_path / "c.toml", embedded=False)


def served(spec: ChildSpec) -> str:
    return spec.argv[spec.argv.index("--pipelines") + 1]


def test_pipelines_of_one_group_share_a_process(tmp_path: Path) -> None:
    workers = planned(tmp_path, "loopback", "loopback-1s").workers
    assert [(spec.name, served(spec)) for spec in workers] == [
        ("worker-loopback-a", "loopback,loopback-1s"),
        ("worker-loopback-b", "loopback,loopback-1s"),
    ]


def test_a_group_runs_in_as_many_workers_as_its_stages_ask_for(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = (files("duologue.models.loopback") / "loopback.toml").read_text().replace('"loopback"', '"mine"')
    mine.write_text(text.replace('name = "voice"', 'name = "voice"\nreplicas = 2'))
    workers = planned(tmp_path, "loopback", str(mine)).workers
    assert [spec.name for spec in workers] == ["worker-loopback-a", "worker-loopback-b-1", "worker-loopback-b-2"]
    assert [spec.argv[spec.argv.index("--id") + 1] for spec in workers] == [spec.name for spec in workers]
    assert {spec.argv[spec.argv.index("--worker") + 1] for spec in workers[1:]} == {"loopback-b"}


def test_a_worker_is_told_the_file_it_was_given_not_the_name_in_it(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    text = (files("duologue.models.loopback") / "loopback.toml").read_text()
    mine.write_text(text.replace('name = "loopback"', 'name = "mine"'))
    assert {served(spec) for spec in planned(tmp_path, str(mine)).workers} == {str(mine)}


def test_an_unknown_pipeline_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-model"):
        planned(tmp_path, "no-such-model")


def in_environment(folder: Path, venv: str, name: str) -> str:
    """A pipeline whose worker loopback-a has an environment of its own."""
    path = folder / f"{name}.toml"
    text = (files("duologue.models.loopback") / "loopback.toml").read_text().replace('"loopback"', f'"{name}"')
    path.write_text(text.replace('worker = "loopback-a"', f'worker = "loopback-a"\nvenv = "{venv}"'))
    return str(path)


def test_a_worker_runs_with_the_interpreter_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_ENVS", str(tmp_path))
    mine = in_environment(tmp_path, "apart", "mine")
    with pytest.raises(UserError, match=f"mine.*{tmp_path}/apart"):
        planned(tmp_path, mine)
    python = tmp_path / "apart" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    first, second = planned(tmp_path, mine).workers
    assert (first.argv[0], second.argv[0]) == (str(python), sys.executable)
    with pytest.raises(UserError, match="pipeline loopback: venv of worker loopback-a is ''.*'apart' in pipeline mine"):
        planned(tmp_path, mine, "loopback")


def options(spec: ChildSpec, name: str) -> str:
    return spec.argv[spec.argv.index(name) + 1] if name in spec.argv else ""


def test_gateways_take_ports_and_their_workers_share_them(tmp_path: Path) -> None:
    document = {"pipelines": ["loopback"], "gateway": {"port": 9000, "metrics_port": 9100}}
    document["supervisor"] = {"gateways": 2, "gateway_workers": 2}
    gateways = plan_system(settings_from(document), Home(tmp_path), tmp_path / "c.toml", embedded=False).gateways
    assert [(spec.name, options(spec, "--port"), options(spec, "--metrics-port")) for spec in gateways] == [
        ("gateway-1-1", "9000", "9100"),
        ("gateway-1-2", "9000", "9101"),
        ("gateway-2-1", "9001", "9102"),
        ("gateway-2-2", "9001", "9103"),
    ]
    assert all("--reuse-port" in spec.argv for spec in gateways)


def test_one_gateway_shares_nothing(tmp_path: Path) -> None:
    (gateway,) = planned(tmp_path, "loopback").gateways
    assert gateway.name == "gateway-1" and options(gateway, "--id") == "gateway-1"
    assert not {"--reuse-port", "--metrics-port"} & set(gateway.argv)


@pytest.mark.parametrize(("standby", "told"), [(0, []), (1, ["shard-3"]), (2, ["shard-2", "shard-3"])])
def test_the_last_shards_are_on_standby(tmp_path: Path, standby: int, told: list[str]) -> None:
    document = {"pipelines": ["loopback"], "supervisor": {"shards": 3, "standby": standby}}
    shards = plan_system(settings_from(document), Home(tmp_path), tmp_path / "c.toml", embedded=False).shards
    assert [spec.name for spec in shards] == ["shard-1", "shard-2", "shard-3"]
    assert [spec.name for spec in shards if "--standby" in spec.argv] == told


def test_where_there_are_few_cpus_one_shard_is_on_standby() -> None:
    assert [standby_by_default(cpus) for cpus in (1, 2, 3, 4, 64)] == [1, 1, 1, 0, 0]
    assert usable_cpus() >= 1


def test_settings_in_the_environment_reach_children_through_their_configuration_only() -> None:
    environment = {"PATH": "/bin", "DUOLOGUE_HOME": "/h", "DUOLOGUE_GATEWAY__PORT": "9", "DUOLOGUE_STORE__URL": "x"}
    assert inherited(environment) == {"PATH": "/bin", "DUOLOGUE_HOME": "/h"}
