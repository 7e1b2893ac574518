"""Settings are read strictly, and what is wrong is said in one line that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.runtime.settings import MIB, SettingsError, SystemSettings, load_settings, settings_from

pytestmark = pytest.mark.unit


def refusal(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> str:
    path = tmp_path / "system.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as raised:
        load_settings(path, environment or {})
    message = str(raised.value)
    assert "\n" not in message
    return message.replace(str(path), "FILE")


def test_without_a_file_everything_has_its_default() -> None:
    settings = load_settings(None, {})
    assert settings == SystemSettings()
    assert (settings.gateway.host, settings.gateway.port) == ("127.0.0.1", 8080)
    assert settings.gateway.max_frame_bytes == 15 * MIB
    assert settings.session.overflow_policy == "close"
    assert settings.bus.window_bytes == 8 * MIB


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "system.toml"
    path.write_text('[gateway]\nport = 1\nhost = "a"\n[session]\nmax_sessions = 7\n')
    settings = load_settings(path, {"DUOLOGUE_GATEWAY__PORT": "2", "DUOLOGUE_STORE__URL": "redis://x"})
    assert (settings.gateway.port, settings.gateway.host) == (2, "a")
    assert settings.session.max_sessions == 7
    assert settings.store.url == "redis://x"


def test_the_environment_is_read_by_the_type_of_the_key() -> None:
    settings = load_settings(
        None,
        {
            "DUOLOGUE_GATEWAY__API_KEYS": "1234567890, second",
            "DUOLOGUE_GATEWAY__ALLOWED_ORIGINS": '["https://a", "https://b"]',
            "DUOLOGUE_GATEWAY__INSECURE": "true",
            "DUOLOGUE_BUS__HOST": "127",
            "DUOLOGUE_BUS__EXPIRY_S": "3",
            "DUOLOGUE_SHARED": "not a setting",
            "OTHER__THING": "not ours",
        },
    )
    assert settings.gateway.api_keys == ("1234567890", "second")
    assert settings.gateway.allowed_origins == ("https://a", "https://b")
    assert settings.gateway.insecure is True
    assert settings.bus.host == "127"
    assert settings.bus.expiry_s == 3.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[gateway]\nprot = 1",
            "FILE: `gateway.prot` is unknown: did you mean `port`? allowed here: host, port",
        ),
        ("[gatewy]\nport = 1", "FILE: `gatewy` is unknown: did you mean `gateway`?"),
        ("[gateway]\nport = 70000", "FILE: `gateway.port`: expected `int` <= 65535"),
        ('[gateway]\nport = "80"', "FILE: `gateway.port`: expected `int`, got `str`"),
        ("[session]\nmax_sessions = 0", "FILE: `session.max_sessions`: expected `int` >= 1"),
        ("[session]\nidle_ttl_s = 0", "FILE: `session.idle_ttl_s`: expected `float` > 0.0"),
        ('[session]\noverflow_policy = "x"', "must be one of 'close', 'fail_response'"),
        ("gateway = 3", "FILE: `gateway`: expected `object`"),
        ("[bus]\nexpiry_s = 0.5", "FILE: `bus`: `expiry_s` must be at least twice `heartbeat_s`"),
        ('[bus]\ncurve_secret_key = "x"\ncurve_secret_file = "y"', "are one or the other"),
        ('[bus]\ncurve_allowed_file = "x"', "need `curve_secret_file`"),
        ('[bus]\ncurve_secret_file = "x"', "CURVE keys are for tcp: set `host`"),
        ("pipelines = [1]", "FILE: `pipelines[0]`: expected `str`, got `int`"),
        ("[gateway", "FILE: not valid TOML"),
    ],
)
def test_a_fault_of_the_file_names_file_key_and_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    assert says in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        (
            "DUOLOGUE_GATEWAY__PROT",
            "1",
            "DUOLOGUE_GATEWAY__PROT: `gateway.prot` is unknown: did you mean `port`?",
        ),
        (
            "DUOLOGUE_GATE__PORT",
            "1",
            "DUOLOGUE_GATE__PORT: there is no section `gate`; there are gateway, session",
        ),
        ("DUOLOGUE_GATEWAY__PORT", "http", "DUOLOGUE_GATEWAY__PORT: expected `int`, got `str`"),
        ("DUOLOGUE_GATEWAY__PORT", "99999", "DUOLOGUE_GATEWAY__PORT: expected `int` <= 65535"),
        ("DUOLOGUE_GATEWAY__API_KEYS", "[1", "DUOLOGUE_GATEWAY__API_KEYS: "),
        ("DUOLOGUE_SESSION__OVERFLOW_POLICY", "x", "must be one of 'close', 'fail_response'"),
    ],
)
def test_a_fault_of_the_environment_names_the_variable(tmp_path: Path, variable: str, text: str, says: str) -> None:
    assert says in refusal(tmp_path, "", {variable: text})


def test_a_file_that_is_right_alone_and_wrong_with_the_environment(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[bus]\nexpiry_s = 2.0", {"DUOLOGUE_BUS__HEARTBEAT_S": "5"})
    assert "FILE with the environment: `bus`" in said


def test_no_value_is_ever_shown(tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    assert secret not in refusal(tmp_path, f'[gateway]\napi_keys = "{secret}"')
    assert secret not in refusal(tmp_path, f'[session]\noverflow_policy = "{secret}"')
    assert secret not in refusal(tmp_path, "", {"DUOLOGUE_GATEWAY__PORT": secret})
    assert secret not in refusal(tmp_path, "", {"DUOLOGUE_SESSION__OVERFLOW_POLICY": secret})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        load_settings(tmp_path / "missing.toml", {})


def test_a_document_of_a_programs_own() -> None:
    assert settings_from({"gateway": {"port": 9}}).gateway.port == 9
    with pytest.raises(SettingsError, match="^here: "):
        settings_from({"gateway": {"port": -1}}, "here")
